"""Rows on disk: one tidy Parquet table per audit, with one value per row.

The rows are stored in a folder of Parquet files ("parts"), usually one part per batch of texts.
Together the parts are one table with the columns of `SCHEMA`:

- ``test`` and ``statistic``: names, such as "permutation" and "median_tvd".
- ``layer`` and ``head``: the site, counted from 0. A whole layer has head −1. The whole model has
  layer −1 and head −1. The k-th head set has layer −2 and head k. Rows of the test "prediction"
  describe the model output, so their layer and head are null.
- ``example_id``: the text id.
- ``value``: a float64. NaN means that the statistic is undefined for this text. A statistic that was
  not measured has no row.

``pandas.read_parquet(folder)`` reads the parts without this package. :func:`read_rows` also checks that
no part is damaged or belongs to another audit, and drops duplicate values.

Every part is written completely or not at all. Several processes can therefore write into one folder.
The metadata of a part contain a SHA-256 digest of its rows and a hash of the audit settings.

Start reading at :func:`build_rows` (values to table), :func:`append_rows` (table to disk) and
:func:`load_rows` (disk to :class:`~hf_attnprobe.statistics.rows.Rows`).
"""

import hashlib
import itertools
import json
import os
import uuid
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.protocol import AttentionModelBase, Batch, Site
from hf_attnprobe.statistics.rows import IDENTITY_STATISTIC, PREDICTION_TEST, Column, Rows
from hf_attnprobe.storage.folders import get_temporary_path
from hf_attnprobe.storage.provenance import PARSE_ERRORS


NO_SITE = Site(layer=-1, head=-1)
"""Placeholder for the site in rows that describe the model output and therefore belong to no site.

In Parquet files, the layer and the head of these rows are null.
"""

TestSite = tuple[str, int, int]
"""Test name, layer and head, such as ``("permutation", 0, 3)``."""
FinishedIds = Mapping[TestSite, Collection[int]]
"""Ids of the texts that have results, by test name, layer and head."""


# --- Statistics of a batch, before they are rows ---


def collect_statistics(result: object) -> dict[str, torch.Tensor]:
    """Collect the statistics in the result of a faithfulness test.

    A result field is a statistic if it is a tensor of shape ``[batch]``. A field that maps keys to such
    tensors gives one statistic per key, named ``field@key``. Other fields are ignored.

    Args:
        result: Result dataclass of a test.

    Returns:
        Tensors ``[batch]`` with one number per text, by statistic name.
    """
    statistics = {}
    for field, value in vars(result).items():
        if isinstance(value, Mapping):
            tensors = {f"{field}@{key}": tensor for key, tensor in value.items()}
        else:
            tensors = {field: value}
        for name, tensor in tensors.items():
            if isinstance(tensor, torch.Tensor) and tensor.dim() == 1:
                statistics[name] = tensor
    return statistics


def compute_batch_prediction_statistics(
    adapter: AttentionModelBase, batch: Batch, probs: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Compute statistics that describe the predictions and labels of one batch.

    See :func:`compute_prediction_statistics`. The statistic ``identity`` is added if it is known. It
    is a hash of everything that the model reads, by which reports recognise copies of a text.

    Args:
        adapter: The model.
        batch: The texts, with labels (−1 or NaN for a text without a label).
        probs: Predicted probabilities, ``[batch, entries]``.

    Returns:
        Tensors ``[batch]`` with one number per text, by statistic name.

    Raises:
        AttnProbeError: A probability is NaN, for example because the training diverged.
    """
    nan_rows = probs.isnan().flatten(1).any(1).nonzero()[:, 0].tolist()
    if nan_rows:
        raise AttnProbeError(
            f"the model predicts NaN for text {batch.example_ids[nan_rows[0]]}. Check its weights and "
            "--dtype."
        )
    # The collator labels unlabelled texts with −1, so labels always exist.
    assert batch.labels is not None
    n_tokens = batch.content_mask.sum(-1)
    statistics = compute_prediction_statistics(adapter.prediction, probs, batch.labels, n_tokens)
    if batch.identities is not None:
        statistics[IDENTITY_STATISTIC] = batch.identities
    return statistics


def compute_prediction_statistics(
    prediction: Prediction,
    probs: torch.Tensor,
    labels: torch.Tensor,
    n_tokens: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Compute the statistics that describe predictions and labels.

    Every model has ``predicted_class``, ``probability`` (of the predicted class), ``label`` and
    ``n_tokens``. ``predicted_class`` and ``label`` are −1 if the model does not predict a single class.
    Further statistics depend on the task:

    - Several predictions per text (multi-label, tagging, spans): ``correct`` is the share of correctly
      predicted labels (NaN without labels), and ``probability`` is a mean over the predictions.
      Multi-label models also have ``label@NAME``, and taggers ``label_share@NAME``.
    - Regression: ``value`` is the predicted and ``labelled_value`` the labelled number in the unit of
      the data. If there are several numbers per text, both are means.

    Args:
        prediction: Description of what the entries of ``probs`` mean.
        probs: Predicted probabilities, ``[batch, entries]``.
        labels: True labels, ``[batch]`` or ``[batch, parts]``; −1 or NaN for a missing label.
        n_tokens: Text lengths in tokens, without special tokens and padding, ``[batch]``.

    Returns:
        Tensors ``[batch]`` with one number per text, by statistic name.
    """
    if prediction.is_number:
        statistics = _compute_number_statistics(prediction, probs, labels)
        return statistics | {"n_tokens": n_tokens}
    if prediction.has_one_part:
        probability, predicted_class = probs.max(-1)
        return {
            "predicted_class": predicted_class,
            "probability": probability,
            "label": labels,
            "n_tokens": n_tokens,
        }
    no_class = torch.full_like(n_tokens, -1)
    parts = prediction.group_by_part(probs)
    # Texts can have fewer parts than the tensor; the probabilities of missing parts are 0.
    n_parts = (parts.sum(-1) > 0).sum(-1)
    mean_top_probability = parts.amax(-1).sum(-1) / n_parts
    return {
        "predicted_class": no_class,
        "probability": mean_top_probability,
        "label": no_class,
        "correct": prediction.compute_accuracy(probs, labels),
        "n_tokens": n_tokens,
        **_compute_label_statistics(prediction, labels),
    }


def _compute_label_statistics(
    prediction: Prediction, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Compute statistics of the true labels, from which reports compute majority-class baselines.

    - A multi-label model has the statistic ``label@NAME`` for each label. It is 1 or 0, or −1 for a
      missing label.
    - A tagger has the statistic ``label_share@NAME`` for each tag. It is the share of labelled words
      that have this tag, or NaN without labels.
    - Other models have no such statistics.

    Args:
        prediction: Description of the model's predictions.
        labels: True labels, ``[batch, parts]``; −1 for a missing label.

    Returns:
        Tensors ``[batch]`` by statistic name.
    """
    if labels.dim() != 2:
        return {}
    if prediction.kind == "labels":
        columns = zip(prediction.parts, labels.unbind(1), strict=True)
        return {f"label@{name}": column for name, column in columns}
    if prediction.kind != "tags":
        return {}
    n_labelled = (labels >= 0).sum(1)
    return {
        f"label_share@{name}": (labels == tag).sum(1) / n_labelled
        for tag, name in enumerate(prediction.outcomes)
    }


def _compute_number_statistics(
    prediction: Prediction, probs: torch.Tensor, labels: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Compute the prediction statistics of a regression model.

    Args:
        prediction: Description of the model's predictions. If it has a threshold, a number above the
            threshold is class 0, and any other number is class 1.
        probs: Predictions, ``[batch, entries]``.
        labels: True numbers; NaN for a missing label.

    Returns:
        Tensors ``[batch]`` by statistic name.
    """
    # If there are several numbers per text, their mean is used.
    labels = labels.to(probs.device, probs.dtype).reshape(len(probs), -1).mean(-1)
    no_class = torch.full(labels.shape, -1, device=probs.device)
    statistics = {
        "predicted_class": no_class,
        "probability": torch.full_like(labels, torch.nan),
        "label": no_class,
        "value": prediction.decode_number(probs).mean(-1),
        "labelled_value": labels,
    }
    if prediction.decides and prediction.has_one_part:
        is_below_threshold = (labels <= prediction.origin).long()
        statistics["predicted_class"] = probs.argmax(-1)
        statistics["label"] = is_below_threshold.where(~labels.isnan(), -1)
    return statistics


# --- Tables of rows in memory ---

NAME_TYPE = pa.dictionary(pa.int32(), pa.string())
"""Arrow type for the columns that contain names.

Each different name is stored only once. The rows store the index of their name.
"""
SCHEMA = pa.schema(
    [
        ("test", NAME_TYPE),
        ("statistic", NAME_TYPE),
        ("layer", pa.int32()),
        ("head", pa.int32()),
        ("example_id", pa.int64()),
        ("value", pa.float64()),
    ]
)
"""Arrow schema for a table with one value per row: the value of a statistic at a site for a text."""


def build_rows(
    test: str,
    example_ids: Iterable[int],
    statistics_by_site: Mapping[Site, Mapping[str, torch.Tensor]],
) -> pa.Table:
    """Build a table with the values that one test measured on some texts.

    Values are stored in float64, because results are compared with reference implementations to 1e-12.
    With float32, a file would be at most a third smaller.

    Args:
        test: Test name. In rows of the test "prediction", layer and head are null.
        example_ids: Text ids.
        statistics_by_site: Statistics by site and name, each ``[texts]``. The statistics can differ
            between sites.

    Returns:
        A table with the columns of `SCHEMA` and one row per value.

    Raises:
        ValueError: A statistic does not have one value per text.

    Example:
        rows = build_rows("permutation", [7, 3], {Site(0, 0): {"median_tvd": torch.rand(2)}})
        append_rows(Path("out/rows"), rows)
    """
    ids = np.asarray(tuple(example_ids), dtype=np.int64)
    names, sites, columns = [], [], []
    for site, statistics in statistics_by_site.items():
        for name, tensor in statistics.items():
            values = tensor.detach().to(torch.float64).cpu().numpy()
            if values.shape != ids.shape:
                raise ValueError(f"{name} must have shape {ids.shape}, got {values.shape}")
            names.append(name)
            sites.append((site.layer, site.head))
            columns.append(values)
    n_values = len(columns) * len(ids)
    distinct_names, name_codes = np.unique(np.array(names, dtype=object), return_inverse=True)
    layers, heads = np.repeat(np.array(sites, np.int32).reshape(-1, 2), len(ids), axis=0).T
    has_no_site = np.full(n_values, test == PREDICTION_TEST)
    values = np.concatenate([np.empty(0), *columns])
    # Sign bits of zero and NaN differ between processors, and would change the digest.
    values = np.where(np.isnan(values), np.nan, values) + 0.0
    return pa.table(
        [
            _encode_names([test], np.zeros(n_values, np.int32)),
            _encode_names(distinct_names.tolist(), np.repeat(name_codes, len(ids))),
            pa.array(layers, mask=has_no_site),
            pa.array(heads, mask=has_no_site),
            np.tile(ids, len(columns)),
            values,
        ],
        schema=SCHEMA,
    )


def _encode_names(names: list[str], codes: np.ndarray) -> pa.DictionaryArray:
    """Build a dictionary-encoded column whose k-th entry is ``names[codes[k]]``."""
    codes = codes.astype(np.int32, copy=False)
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string()))


def concatenate_rows(tables: Iterable[pa.Table]) -> pa.Table:
    """Concatenate tables of rows; without tables, return a table without rows."""
    return pa.concat_tables([SCHEMA.empty_table(), *tables])


class _Keys(NamedTuple):
    """Key columns of a table as arrays ``[rows]``, with names replaced by integer codes.

    Attributes:
        test_names: Sorted test names.
        statistic_names: Sorted statistic names.
        test_codes: Index into ``test_names``.
        statistic_codes: Index into ``statistic_names``.
        layers: Layer number; −1 for null.
        heads: Head number; −1 for null.
    """

    test_names: list[str]
    statistic_names: list[str]
    test_codes: np.ndarray
    statistic_codes: np.ndarray
    layers: np.ndarray
    heads: np.ndarray


def _decode_keys(table: pa.Table) -> _Keys:
    """Convert the columns test, statistic, layer and head of a table to arrays of integers."""
    table = table.unify_dictionaries()
    test_names, test_codes = _decode_names(table["test"])
    statistic_names, statistic_codes = _decode_names(table["statistic"])
    layers = table["layer"].fill_null(-1).to_numpy()
    heads = table["head"].fill_null(-1).to_numpy()
    return _Keys(test_names, statistic_names, test_codes, statistic_codes, layers, heads)


def _decode_names(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """Decode a dictionary-encoded column of names.

    Returns:
        The names that occur in the column, sorted, and for every row the index of its name.
    """
    encoded = column.combine_chunks()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    # The dictionary can also contain names that do not occur.
    code_counts = np.bincount(codes, minlength=len(names))
    occurring_codes = np.flatnonzero(code_counts).tolist()
    sorted_codes = sorted(occurring_codes, key=lambda code: names[code])
    sorted_names = [names[code] for code in sorted_codes]
    index_by_code = np.zeros(len(names), np.int32)
    index_by_code[sorted_codes] = np.arange(len(sorted_codes))
    return sorted_names, index_by_code[codes]


def _sort_rows(table: pa.Table) -> pa.Table:
    """Sort rows by test, statistic, layer, head and text id, so that equal rows give equal files."""
    keys = _decode_keys(table)
    ids = table["example_id"].to_numpy()
    # `lexsort` sorts by its last key first, so the keys are listed in reverse.
    order = np.lexsort([ids, keys.heads, keys.layers, keys.statistic_codes, keys.test_codes])
    test_column = _encode_names(keys.test_names, keys.test_codes[order])
    statistic_column = _encode_names(keys.statistic_names, keys.statistic_codes[order])
    number_columns = table.select(["layer", "head", "example_id", "value"]).take(pa.array(order))
    return pa.table([test_column, statistic_column, *number_columns.columns], schema=SCHEMA)


class _Series(NamedTuple):
    """Consecutive rows of a table with the same test, statistic and site.

    Attributes:
        column: The test, statistic, layer and head of these rows.
        ids: Text ids, ``[rows]``.
        values: Values of the statistic, ``[rows]``.
    """

    column: Column
    ids: np.ndarray
    values: np.ndarray


def _split_into_series(table: pa.Table) -> Iterator[_Series]:
    """Split a table into series of consecutive rows with the same test, statistic, layer and head."""
    keys = _decode_keys(table)
    ids, values = table["example_id"].to_numpy(), table["value"].to_numpy()
    key_columns = (keys.test_codes, keys.statistic_codes, keys.layers, keys.heads)
    # A series starts at the first row, and at every row that differs from the row before in the
    # test, the statistic, the layer or the head.
    differs_from_previous = [key_column[1:] != key_column[:-1] for key_column in key_columns]
    is_start = np.ones(len(table), dtype=bool)
    is_start[1:] = np.any(differs_from_previous, axis=0)
    bounds = [*np.flatnonzero(is_start).tolist(), len(table)]
    for start, stop in itertools.pairwise(bounds):
        test = keys.test_names[keys.test_codes[start]]
        statistic = keys.statistic_names[keys.statistic_codes[start]]
        layer, head = keys.layers[start].item(), keys.heads[start].item()
        column = (test, statistic, layer, head)
        yield _Series(column, ids[start:stop], values[start:stop])


def _compute_digest(table: pa.Table) -> str:
    """Compute a SHA-256 digest over all cells of a sorted table."""
    # Rows of one series have the same test, statistic, layer and head, which are hashed only once.
    columns = [(series.column, len(series.ids)) for series in _split_into_series(table)]
    digest = hashlib.sha256(json.dumps(columns).encode())
    digest.update(table["example_id"].to_numpy())
    digest.update(table["value"].to_numpy())
    return digest.hexdigest()


# --- Parts: tables on disk ---

FORMAT_VERSION = 3
"""Version number of the format in which rows are stored as Parquet files.

Files with another version number cannot be read.
"""
METADATA_KEY = "attnprobe"
"""Key of our entry in the metadata of a Parquet file.

The entry is a JSON object with the format version, a hash of the audit settings and a digest of
the rows.
"""
REPAIR_ADVICE = "Delete this file and run the audit again."
"""Advice at the end of every error message about a rows file that cannot be used."""


def append_rows(folder: Path, rows: pa.Table, *, name: str | None = None) -> None:
    """Write rows as a new file in a folder.

    The file has a temporary name while it is written, so other processes never see it incomplete.

    Args:
        folder: Folder for the parts, which is created if it does not exist.
        rows: A table from :func:`build_rows` or :func:`concatenate_rows`.
        name: Part name; an existing part with this name is replaced. None for a random name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = name or uuid.uuid4().hex
    temporary_file = get_temporary_path(folder / name)
    try:
        write_part(rows, temporary_file, hash_audit_settings(folder))
        os.replace(temporary_file, folder / f"part-{name}.parquet")
    except BaseException:
        # On a full disk, an incomplete file would occupy space.
        temporary_file.unlink(missing_ok=True)
        raise


def write_part(rows: pa.Table, file: Path, audit_hash: str | None) -> None:
    """Write a table of rows as a Parquet file, with its digest and audit hash in the metadata.

    Args:
        rows: A table from :func:`build_rows` or :func:`concatenate_rows`.
        file: File path.
        audit_hash: Result of :func:`hash_audit_settings`.
    """
    table = _sort_rows(rows)
    record = {"format": FORMAT_VERSION, "audit": audit_hash, "digest": _compute_digest(table)}
    with pq.ParquetWriter(
        file,
        SCHEMA,
        compression="zstd",
        use_dictionary=["test", "statistic", "layer", "head"],
        column_encoding={"example_id": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT"},
        write_page_checksum=True,
        # Without the Arrow schema, pandas and datasets read names as plain strings.
        store_schema=False,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({METADATA_KEY: json.dumps(record)})


def hash_audit_settings(folder: Path) -> str | None:
    """Compute a SHA-256 hash of the settings in ``audit.json``.

    Args:
        folder: A folder of rows. Its parent folder contains ``audit.json``.

    Returns:
        The hash; None if there is no such file.
    """
    settings_file = folder.parent / "audit.json"
    if not settings_file.is_file():
        return None
    return hashlib.sha256(settings_file.read_bytes()).hexdigest()


def read_part(part: Path) -> pa.Table:
    """Read and check the rows of one part.

    Args:
        part: Path of the Parquet file.

    Returns:
        A table with the columns of `SCHEMA`, sorted.

    Raises:
        AttnProbeError: The file cannot be read, was changed after it was written, has another format,
            or was written by an audit with other settings.
    """
    read_errors = (OSError, NotImplementedError, *PARSE_ERRORS)
    try:
        with pq.ParquetFile(
            part, read_dictionary=["test", "statistic"], page_checksum_verification=True
        ) as file:
            metadata = file.metadata.metadata or {}
            record = json.loads(metadata.get(METADATA_KEY.encode(), b"{}"))
            has_this_format = record.get("format") == FORMAT_VERSION
            if has_this_format:
                table = file.read().replace_schema_metadata(None)
                if table.schema != SCHEMA or _compute_digest(table) != record["digest"]:
                    raise ValueError("the file was changed after it was written")
                audit_hash = record["audit"]
    except read_errors as error:
        raise AttnProbeError(f"cannot read the rows in {part}. {REPAIR_ADVICE}") from error
    if not has_this_format:
        raise AttnProbeError(f"this version cannot read the file format of {part}. {REPAIR_ADVICE}")
    if hash_audit_settings(part.parent) not in (None, audit_hash):
        raise AttnProbeError(
            f"{part} does not belong to the audit in {part.parent.parent}. {REPAIR_ADVICE}"
        )
    return table


def list_parts(folder: str | Path) -> list[Path]:
    """List the Parquet files that contain the rows in a folder, sorted by name."""
    return sorted(Path(folder).glob("part-*.parquet"))


def read_finished_ids(folder: Path) -> dict[TestSite, set[int]]:
    """Read the ids of all texts that have rows, separately for every test, layer and head.

    Args:
        folder: A folder of rows.

    Returns:
        Text ids by test, layer and head.

    Raises:
        AttnProbeError: See :func:`read_part`.
    """
    finished_ids: dict[TestSite, set[int]] = {}
    for part in list_parts(folder):
        for (test, _, layer, head), ids, _ in _split_into_series(read_part(part)):
            finished_ids.setdefault((test, layer, head), set()).update(ids.tolist())
    return finished_ids


# --- Rows of many parts, read one column at a time ---
# A part contains all statistics for a few texts, but a report reads one statistic for all texts at a
# time. Therefore every part is read once, and its values are copied to a temporary file from which
# single columns can be read.

MAX_BYTES_IN_MEMORY = 2**23
"""Maximum size of collected values in memory, in bytes. Larger values go to a temporary file."""


class _ColumnStore:
    """Temporary store that collects tables of rows, and reads single columns of all tables.

    The temporary file takes 8 bytes per value. It is deleted when neither this object nor the
    :class:`Rows` made from it are referenced any more.
    """

    def __init__(self) -> None:
        self._ids: list[np.ndarray] = []
        # Each column has several pieces: an index into `_ids`, and an offset in the file.
        self._pieces: dict[Column, list[tuple[int, int]]] = {}
        self._file = SpooledTemporaryFile(max_size=MAX_BYTES_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def add(self, table: pa.Table, test: str | None = None) -> None:
        """Add the rows of a table, or only the rows of one test."""
        for column, ids, values in _split_into_series(table):
            if test is not None and column[0] != test:
                continue
            # Consecutive series usually have the same text ids, which are then stored only once.
            # They are copied, because a slice would keep the whole table in memory.
            if not self._ids or not np.array_equal(self._ids[-1], ids):
                self._ids.append(ids.copy())
            piece = (len(self._ids) - 1, self._file.tell())
            self._pieces.setdefault(column, []).append(piece)
            self._file.write(values.tobytes())

    def finish(self) -> Rows:
        """Combine all added tables; if they contain a value several times, use the first one."""
        all_ids = np.unique(np.concatenate([np.empty(0, np.int64), *self._ids]))
        positions = [np.searchsorted(all_ids, ids).astype(np.int32) for ids in self._ids]
        self._ids.clear()

        # `Rows` calls these functions when it needs a column. Until then, values stay in the file.
        def read_values(column: Column) -> np.ndarray:
            values = np.full(len(all_ids), np.nan)
            # Pieces are read in reverse, so that the first value for a text overwrites the others.
            for index, offset in reversed(self._pieces[column]):
                self._file.seek(offset)
                n_bytes = values.itemsize * len(positions[index])
                values[positions[index]] = np.frombuffer(self._file.read(n_bytes))
            return values

        def read_is_measured(column: Column) -> np.ndarray:
            is_measured = np.zeros(len(all_ids), dtype=bool)
            for index, _ in self._pieces[column]:
                is_measured[positions[index]] = True
            return is_measured

        return Rows(
            ids=all_ids,
            columns=tuple(sorted(self._pieces)),
            read_column=read_values,
            read_mask=read_is_measured,
        )


def collect_rows(tables: Iterable[pa.Table], test: str | None = None) -> Rows:
    """Combine tables of rows, such as all parts of an audit that ran on several machines.

    Args:
        tables: Tables from :func:`build_rows`, :func:`concatenate_rows` or :func:`read_part`. If a
            value occurs in several tables, the first one counts.
        test: Name of a test; None for all tests.

    Returns:
        Rows whose columns are read from a temporary file when they are needed.
    """
    store = _ColumnStore()
    for table in tables:
        store.add(table, test)
    return store.finish()


def load_rows(folder: str | Path, test: str | None = None) -> Rows:
    """Load the rows in a folder, for all tests or for one.

    Args:
        folder: A folder of rows.
        test: Name of a test; None for all tests.

    Returns:
        Rows whose columns are read from a temporary file when they are needed.

    Raises:
        AttnProbeError: See :func:`read_part`.
    """
    return collect_rows((read_part(part) for part in list_parts(folder)), test)


@public_function
def read_rows(folder: str | Path, test: str | None = None) -> pd.DataFrame:
    """Read all rows in a folder as a tidy table with one value per row.

    Unlike ``pandas.read_parquet(folder)``, this function checks all files and drops duplicate values,
    which two processes may have written.

    Args:
        folder: ``rows`` in the output folder of an audit or a retraining.
        test: Name of a test; None for all tests.

    Returns:
        The columns test, statistic, layer, head, example_id and value, sorted in this order. Layer
        and head are −1 in rows of the test "prediction". A value is NaN if the statistic is undefined
        for the text.

    Raises:
        AttnProbeError: A part is damaged, has another format, or belongs to another audit than its
            folder.

    Example:
        rows = read_rows("out/rows", "permutation")
        print(rows.groupby(["statistic", "layer", "head"]).value.mean())
    """
    return load_rows(folder, test).build_long_frame()
