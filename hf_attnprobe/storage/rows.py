"""Rows on disk: one value per test, statistic, text, layer and head.

Every mean can be recomputed from them. They are a folder of Parquet parts, one per
batch, each written whole or not at all; ``pandas.read_parquet(folder)`` reads it.
Several processes write parts side by side, and a part that is there is work done.
"""

import hashlib
import os
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from hf_attnprobe.attention_model import Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.statistics.rows import PREDICTION, Rows
from hf_attnprobe.storage.folders import half_written


KEY = ("test", "statistic", "example_id", "layer", "head")  # there is one value of each
COLUMNS = (*KEY, "value")
PLACE_OF_ID = ("test", "layer", "head", "example_id")
TYPES = {
    "test": "str",
    "statistic": "str",
    "example_id": "int64",
    "layer": "int32",
    "head": "int32",
    "value": "float64",
}
NO_SITE = Site(layer=-1, head=-1)  # rows about the whole model, such as its prediction
NUMBERS = ("predicted_class", "label", "n_tokens")
"""What no prediction lacks."""
ROUNDING = 0.01  # of 16 bits
OWNER = "attnprobe_audit"
"""Under which a part names its audit; ``pandas.read_parquet(part).attrs`` has it."""
AGAIN = "delete it and run the audit again"


def statistics_of(result: object) -> dict[str, torch.Tensor]:
    """The per-text statistics of a test's result, each [batch], by name.

    Args:
        result: a dataclass; its fields of shape [batch] count, and mappings of those as
            ``name@key``.
    """
    statistics = {}
    for name, value in vars(result).items():
        values = {name: value}
        if isinstance(value, Mapping):
            values = {f"{name}@{key}": inner for key, inner in value.items()}
        for full_name, inner in values.items():
            if isinstance(inner, torch.Tensor) and inner.dim() == 1:
                statistics[full_name] = inner
    return statistics


def prediction_statistics(
    prediction: Prediction,
    probs: torch.Tensor,
    labels: torch.Tensor,
    n_tokens: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """The rows about the model's predictions, by statistic, each [batch].

    ``predicted_class`` and ``label`` are −1 where there is no single class; then
    ``correct`` is the share of a text's labels that are met (NaN without labels), with
    which labels those are where they have names (``label@name`` of labels that may hold,
    ``label_share@name`` of tags), and of a number there are ``value`` and ``labelled_value`` in the data's unit, their means where
    there are several.

    Args:
        prediction: what the entries of ``probs`` are.
        probs: [batch, entries].
        labels: the true ones [batch] or [batch, parts]; −1, or NaN, for a text without
            one.
        n_tokens: of each text without special tokens and padding, [batch].
    """
    if prediction.is_number:
        return _of_number(prediction, probs, labels) | {"n_tokens": n_tokens}
    if prediction.has_one_part:
        probability, predicted = probs.max(-1)
        return {
            "predicted_class": predicted,
            "probability": probability,
            "label": labels,
            "n_tokens": n_tokens,
        }
    none = torch.full_like(n_tokens, -1)
    parts = prediction.grouped(probs)
    present = parts.sum(-1) > 0
    return {
        "predicted_class": none,
        "probability": parts.amax(-1).sum(-1) / present.sum(-1),
        "label": none,
        "correct": prediction.right(probs, labels),
        "n_tokens": n_tokens,
        **_labels_by_name(prediction, labels),
    }


def _labels_by_name(prediction: Prediction, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Which labels a text has, so that what is most frequent can be counted.

    ``label@name`` is 1, 0 or −1 of every label that may hold, ``label_share@name`` the
    share of a text's labelled words that have a tag, NaN without any.
    """
    if prediction.kind == "labels" and labels.dim() == 2:
        columns = zip(prediction.parts, labels.unbind(1), strict=True)
        return {f"label@{name}": column for name, column in columns}
    if prediction.kind != "tags" or labels.dim() != 2:
        return {}
    n_known = (labels >= 0).sum(1)
    return {
        f"label_share@{name}": (labels == k).sum(1) / n_known
        for k, name in enumerate(prediction.outcomes)
    }


def _of_number(
    prediction: Prediction, probs: torch.Tensor, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The statistics of a predicted number, and of its side of a threshold."""
    labels = labels.to(probs.device, probs.dtype).reshape(len(probs), -1).mean(-1)
    statistics = {
        "predicted_class": torch.full(labels.shape, -1, device=probs.device),
        "probability": torch.full_like(labels, torch.nan),
        "label": torch.full(labels.shape, -1, device=probs.device),
        "value": prediction.value(probs).mean(-1),
        "labelled_value": labels,
    }
    if prediction.decides and prediction.has_one_part:
        statistics["predicted_class"] = probs.argmax(-1)
        side = (labels <= prediction.origin).long()
        statistics["label"] = side.where(~labels.isnan(), -1)
    return statistics


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
    """Adds a part, or replaces the one of that name; readers never see half of it.

    Args:
        folder: of the parts; made where there is none.
        rows: as :func:`to_rows` makes them.
        name: of the part; by default a new one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = name or uuid.uuid4().hex
    hidden = half_written(folder / name)
    rows = rows.copy(deep=False)
    rows.attrs = {OWNER: owner(folder)}
    try:
        rows.to_parquet(hidden, index=False, write_page_checksum=True)
        os.replace(hidden, folder / f"part-{name}.parquet")
    except BaseException:  # a full disk needs the space
        hidden.unlink(missing_ok=True)
        raise


def owner(folder: Path) -> str | None:
    """SHA-256 of the mark of the audit, or control, that a folder of rows is in.

    None where there is no mark.
    """
    for mark in (folder.parent / f"{kind}.json" for kind in ("audit", "control")):
        if mark.is_file():
            return hashlib.sha256(mark.read_bytes()).hexdigest()
    return None


def read_rows(folder: str | Path, test: str | None = None) -> pd.DataFrame:
    """All rows of a folder, long, each once, in an order that only depends on them.

    Args:
        folder: ``rows`` in the folder of an audit, a draw of its control, or a retraining.
        test: whose rows alone are read; None: those of all.

    Raises:
        AttnProbeError: see :func:`read_part`.
    """
    files = sorted(Path(folder).glob("part-*.parquet"))
    if not files:
        return pd.DataFrame({name: [] for name in COLUMNS})
    parts = [read_part(file, COLUMNS, test) for file in files]
    rows = pd.concat(parts, ignore_index=True).sort_values(list(KEY), kind="stable")
    # Two runs in one folder may have met: the rows of both are the same.
    return rows.drop_duplicates(list(KEY), ignore_index=True)


def draw_folder(audit: Path, draw: int) -> Path:
    """Where an audit keeps the rows of a draw of its control."""
    return audit / "control" / f"draw-{draw}" / "rows"


def read_draws(audit: Path) -> list[Rows]:
    """The rows of each draw of an audit's control; none without one."""
    draws = sorted(
        int(folder.name.partition("-")[2]) for folder in (audit / "control").glob("draw-[0-9]*")
    )
    return [Rows.of(read_rows(draw_folder(audit, n))) for n in draws]


Place = tuple[str, int, int]
"""A test, and the layer and head where it looked."""


def finished_ids(folder: Path) -> dict[Place, set[int]]:
    """The ids of the texts that have rows, by test and site."""
    finished: dict[Place, set[int]] = {}
    for part in folder.glob("part-*.parquet"):
        for place, ids in ids_by_place(read_part(part, PLACE_OF_ID)).items():
            finished.setdefault(place, set()).update(ids)
    return finished


def ids_by_place(rows: pd.DataFrame) -> dict[Place, list[int]]:
    """The ids of the texts that rows are of, each once, by test and site."""
    pairs = rows[list(PLACE_OF_ID)].drop_duplicates()
    by_place = pairs.groupby(["test", "layer", "head"], sort=False).example_id
    return {
        (str(test), int(layer), int(head)): ids.tolist() for (test, layer, head), ids in by_place
    }


def read_part(
    part: Path, columns: Sequence[str] = COLUMNS, test: str | None = None
) -> pd.DataFrame:
    """Reads the rows of one part, or of one test in it.

    Raises:
        AttnProbeError: it cannot be read, is of another audit than its folder, has rows
            without a test or statistic, or holds predictions that none can be.
    """
    wrong = (OSError, ValueError, LookupError, TypeError, NotImplementedError)
    try:
        rows = pd.read_parquet(
            part,
            columns=list(columns),
            filters=None if test is None else [("test", "==", test)],
            page_checksum_verification=True,
        )
        found = rows.attrs.get(OWNER)
        rows = _of_their_types(rows[list(columns)])
    except wrong as error:  # what pyarrow and pandas raise
        raise AttnProbeError(f"cannot read the rows in {part}; {AGAIN}") from error
    if owner(part.parent) not in (None, found):
        raise AttnProbeError(
            f"expected rows of the audit in {part.parent.parent}, those in {part} are of "
            f"another one; {AGAIN}"
        )
    rows.attrs = {}
    if "value" in columns:
        _check_predictions(rows, part)
    return rows


def _of_their_types(rows: pd.DataFrame) -> pd.DataFrame:
    """Raises ValueError for columns of other types, as whole numbers with gaps are."""
    for name in rows:
        if TYPES[name].startswith("int") and not pd.api.types.is_integer_dtype(rows[name]):
            raise ValueError(f"{name} is no column of whole numbers")
        if name != "value" and rows[name].isna().any():
            raise ValueError(f"a row has no {name}")
    return rows.astype({name: TYPES[name] for name in rows})


def _check_predictions(rows: pd.DataFrame, part: Path) -> None:
    """Raises AttnProbeError for what no model predicts, such as a probability of 5."""
    own = rows[rows.test == PREDICTION]
    wrong = ~np.isfinite(own.value) & own.statistic.isin(NUMBERS)
    if not (own.statistic == "value").any():  # a predicted number has no probability
        is_possible = own.value.between(-ROUNDING, 1 + ROUNDING)
        wrong |= (own.statistic == "probability") & ~is_possible
    for row in own[wrong].head(1).itertuples():
        expected = "from 0 to 1" if row.statistic == "probability" else "that is finite"
        raise AttnProbeError(
            f"expected a {row.statistic} {expected} in {part}, text {row.example_id} has "
            f"{row.value:g}; {AGAIN}"
        )


Done = Mapping[Place, Collection[int]]
"""The ids of the texts that have rows, by test, layer and head."""
