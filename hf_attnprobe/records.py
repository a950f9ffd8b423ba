"""Rows on disk: one value per test, statistic, text, layer and head. Every mean can be recomputed from them.

A folder of Parquet parts, one per batch, each written whole or not at all; ``pandas.read_parquet(folder)`` reads it.
Several processes write parts side by side, and a part that is there is work that need not be done again.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from hf_attnprobe.attention_model import Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.loading import write_atomically as write_atomically


IDENTITY = "audit.json"  # what the rows of a folder belong to
COLUMNS = ("test", "statistic", "example_id", "layer", "head", "value")
NO_SITE = Site(layer=-1, head=-1)  # rows about the whole model, such as its prediction


@contextlib.contextmanager
def claim(folder: Path, identity: Mapping, state: PartialState, *, name: str = IDENTITY) -> Iterator[None]:
    """Marks the folder as this run's, on all processes together; where it fails before the first rows, the mark goes.

    Args:
        name: of the file that is the mark.

    Raises:
        AttnProbeError: the folder holds other files, or the rows of a run with another identity.
    """
    existed, answer = folder.exists(), [None]
    if state.is_main_process:
        try:
            answer = [_take(folder, identity, name)]
        except AttnProbeError as error:
            answer = [str(error)]
    broadcast_object_list(answer)  # no process may wait for one that has given up
    if isinstance(answer[0], str):
        raise AttnProbeError(answer[0])
    try:
        yield
    except BaseException:
        if answer[0] and state.is_main_process and not any((folder / "rows").glob("part-*")):
            (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "rows", ignore_errors=True)
            if not existed:
                with contextlib.suppress(OSError):  # something else is in it
                    folder.rmdir()
        raise


def _take(folder: Path, identity: Mapping, name: str) -> bool:
    """Whether the folder is new; it now says whose it is."""
    file = folder / name
    try:
        if file.exists():
            _check_identity(folder, json.loads(file.read_text()), identity, name.removesuffix(".json"))
            return False
        if folder.exists() and any(not f.name.startswith(".") for f in folder.iterdir()):
            raise AttnProbeError(
                f"expected an empty or a new folder, {folder} holds other files; choose another --output-dir"
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(identity, indent=1) + "\n")
    except (OSError, json.JSONDecodeError) as error:
        raise AttnProbeError(f"cannot use {folder} for the output ({error}); choose another --output-dir") from error
    return True


def _check_identity(folder: Path, held, identity: Mapping, kind: str) -> None:
    held = held if isinstance(held, dict) else {}
    wrong = [key for key, value in json.loads(json.dumps(identity)).items() if held.get(key) != value]
    if wrong:
        raise AttnProbeError(
            f"{folder} belongs to another {kind}: its {', '.join(w.replace('_', ' ') for w in wrong)} "
            f"({_differing(held.get(wrong[0]), identity[wrong[0]])}) is not this one's "
            f"({_differing(identity[wrong[0]], held.get(wrong[0]))}); choose another --output-dir"
        )


def _differing(value, other):
    """Of settings by name those that are not the other's."""
    if not isinstance(value, Mapping) or not isinstance(other, Mapping):
        return value
    other = json.loads(json.dumps(other))  # a tuple comes back as a list
    changed = {k: v for k, v in json.loads(json.dumps(value)).items() if k not in other or other[k] != v}
    return ", ".join(f"{k} {_differing(v, other.get(k))}" for k, v in changed.items()) or "none of them"


def statistics_of(result) -> dict[str, torch.Tensor]:
    """The per-text statistics of a test's result: its fields of shape [batch], and mappings of those as ``name@key``."""
    found = {}
    for field in dataclasses.fields(result):
        value = getattr(result, field.name)
        named = (
            {f"{field.name}@{key}": v for key, v in value.items()}
            if isinstance(value, Mapping)
            else {field.name: value}
        )
        found |= {name: v for name, v in named.items() if isinstance(v, torch.Tensor) and v.dim() == 1}
    return found


def to_rows(test: str, statistics: Mapping[str, torch.Tensor], example_ids: Iterable[int], site: Site) -> pd.DataFrame:
    """One row per statistic and text; statistics each [batch]."""
    ids = np.asarray(tuple(example_ids), dtype=np.int64)
    values = [v.detach().to(torch.float64).cpu().numpy() for v in statistics.values()]
    return pd.DataFrame(
        {
            "test": test,
            "statistic": np.repeat(list(statistics), len(ids)),
            "example_id": np.tile(ids, len(values)),
            "layer": np.int32(site.layer),
            "head": np.int32(site.head),
            "value": np.concatenate(values) if values else np.empty(0),
        }
    )


def append(folder: Path, rows: pd.DataFrame, *, name: str | None = None) -> None:
    """Adds a part, or replaces the one of that name. Readers never see half of it: it gets its name when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    name = name or uuid.uuid4().hex
    hidden = folder / f".{name}"
    rows.to_parquet(hidden, index=False)
    os.replace(hidden, folder / f"part-{name}.parquet")


def read(folder: Path) -> pd.DataFrame:
    """All rows, each once, in an order that depends on nothing but their content."""
    parts = [_read_part(part, COLUMNS) for part in sorted(folder.glob("part-*.parquet"))]
    if not parts:
        return pd.DataFrame({name: [] for name in COLUMNS})
    rows = pd.concat(parts, ignore_index=True).sort_values(list(COLUMNS[:5]), kind="stable")
    return rows.drop_duplicates(list(COLUMNS[:5]), ignore_index=True)  # two runs in one folder may have met


def done(folder: Path) -> dict[str, set[int]]:
    """By test, the ids of the texts that have rows."""
    finished: dict[str, set[int]] = {}
    for part in folder.glob("part-*.parquet"):
        rows = _read_part(part, ("test", "example_id")).drop_duplicates()
        for test, ids in rows.groupby("test").example_id:
            finished.setdefault(test, set()).update(ids.tolist())
    return finished


def _read_part(part: Path, columns: Sequence[str]) -> pd.DataFrame:
    try:
        return pd.read_parquet(part, columns=list(columns))
    except (OSError, ValueError, NotImplementedError) as error:  # what pyarrow raises derives from these
        raise AttnProbeError(f"cannot read the rows in {part}; delete it and run the audit again") from error
