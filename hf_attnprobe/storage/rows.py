"""Rows on disk: one value per test, statistic, text, layer and head. Every mean can be recomputed from them.

A folder of Parquet parts, one per batch, each written whole or not at all; ``pandas.read_parquet(folder)`` reads it.
Several processes write parts side by side, and a part that is there is work that need not be done again.
"""

import dataclasses
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from hf_attnprobe.attention_model import Site
from hf_attnprobe.errors import AttnProbeError


COLUMNS = ("test", "statistic", "example_id", "layer", "head", "value")
NO_SITE = Site(layer=-1, head=-1)  # rows about the whole model, such as its prediction


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
        found |= {
            name: v
            for name, v in named.items()
            if isinstance(v, torch.Tensor) and v.dim() == 1
        }
    return found


def to_rows(
    test: str,
    statistics: Mapping[str, torch.Tensor],
    example_ids: Iterable[int],
    site: Site,
) -> pd.DataFrame:
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


def append_rows(folder: Path, rows: pd.DataFrame, *, name: str | None = None) -> None:
    """Adds a part, or replaces the one of that name. Readers never see half of it: it gets its name when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    name = name or uuid.uuid4().hex
    hidden = folder / f".{name}"
    rows.to_parquet(hidden, index=False)
    os.replace(hidden, folder / f"part-{name}.parquet")


def read_rows(folder: Path) -> pd.DataFrame:
    """All rows, each once, in an order that depends on nothing but their content."""
    parts = [
        _read_part(part, COLUMNS) for part in sorted(folder.glob("part-*.parquet"))
    ]
    if not parts:
        return pd.DataFrame({name: [] for name in COLUMNS})
    rows = pd.concat(parts, ignore_index=True).sort_values(
        list(COLUMNS[:5]), kind="stable"
    )
    return rows.drop_duplicates(
        list(COLUMNS[:5]), ignore_index=True
    )  # two runs in one folder may have met


def finished_ids(folder: Path) -> dict[str, set[int]]:
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
    except (
        OSError,
        ValueError,
        NotImplementedError,
    ) as error:  # what pyarrow raises derives from these
        raise AttnProbeError(
            f"cannot read the rows in {part}; delete it and run the audit again"
        ) from error
