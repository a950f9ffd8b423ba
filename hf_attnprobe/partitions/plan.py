"""An audit for many machines, planned: its options, its texts, and its parts."""

import dataclasses
import gc
import hashlib
import io
import json
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hf_attnprobe.auditing.prepare import N_REFERENCE
from hf_attnprobe.data.columns import column_of, has_images
from hf_attnprobe.data.examples import OpenedSplit, columns_read, labels_alone, read_split
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import RATIONALES, second_texts
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.plain_data import from_plain
from hf_attnprobe.statistics.samples import by_hash
from hf_attnprobe.storage.provenance import UNREADABLE


if TYPE_CHECKING:
    import datasets


# --- The plan of a job: all that decides its bytes, in one file whose hash is its name -----------

PLAN = "plan.json"
FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """The description of a job, fixed before it starts.

    Attributes:
        model: its name, its fingerprints, where on the Hub it is from, and the SHA-256 of
            its weight files where it is a folder.
        data: what was asked for (name, revision, split, columns), the number of texts
            and the columns read.
        tests: the tests that run, with their options.
        left_out: by test, why it does not run.
        options: of the audit, beyond the defaults.
        classes: names of the model's classes.
        prediction: what the model predicts, as plain data.
        reference: ids of the texts whose head outputs stand in for an ablated head's.
        rationales: whether the texts say what people marked.
        spread: standard deviation of numeric labels, the unit of a predicted number.
        control: what the control is, in words; "none" without one.
        control_draws: how many draws of it are run.
        texts: of each partition the number of texts and the SHA-256 of its file.
        seed: of all random numbers, and of the sharing out of ids.
        versions: of the packages that compute the numbers.
        format: of this file.
    """

    model: Mapping[str, Any]
    data: Mapping[str, Any]
    tests: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, str]
    options: Mapping[str, Any]
    classes: Sequence[str]
    prediction: Mapping[str, Any]
    reference: Sequence[int]
    rationales: bool
    spread: float | None
    control: str
    control_draws: int
    texts: Sequence[Mapping[str, Any]]
    seed: int
    versions: Mapping[str, str]
    format: int = FORMAT

    @property
    def n_partitions(self) -> int:
        """Number of partitions, whatever the number of workers."""
        return len(self.texts)

    @property
    def n_texts(self) -> int:
        """Number of texts of all partitions."""
        return sum(part["texts"] for part in self.texts)

    @cached_property  # every record is held against it
    def name(self) -> str:
        """SHA-256 of the plan as canonical JSON: the job's name."""
        return hashlib.sha256(canonical(dataclasses.asdict(self))).hexdigest()


def canonical(data: Any) -> bytes:
    """Plain data as JSON that has one form: sorted names, no spaces, UTF-8.

    >>> canonical({"b": 1, "a": ["é"]}).decode()
    '{"a":["é"],"b":1}'
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def write_plan(store: Store, plan: Plan) -> None:
    """Writes ``plan.json``.

    Raises:
        AttnProbeError: the place holds another job's plan.
    """
    held = store.read(PLAN)
    if held is not None and read_plan(store).name != plan.name:
        raise AttnProbeError(
            f"{store.url} holds the plan of another job; choose another --output-dir"
        )
    document = {"job": plan.name, "plan": dataclasses.asdict(plan)}
    store.write(PLAN, json.dumps(document, indent=1, sort_keys=True).encode() + b"\n")


def read_plan(store: Store) -> Plan:
    """The plan of a job.

    Raises:
        AttnProbeError: there is none, it was changed, or another version wrote it.
    """
    held = store.read(PLAN)
    if held is None:
        raise AttnProbeError(
            f"expected a job with its {PLAN} in {store.url}, found none; make it with "
            "attnprobe plan"
        )
    try:
        document = json.loads(held)
        plan, job = Plan(**document["plan"]), document["job"]
    except (ValueError, TypeError, KeyError) as error:
        raise AttnProbeError(
            f"{store.url}/{PLAN} is no plan that this version reads ({error}); make it "
            "again with attnprobe plan"
        ) from error
    if plan.format != FORMAT or plan.name != job:
        raise AttnProbeError(
            f"{store.url}/{PLAN} was changed after it was made: its hash is not the "
            "job's name; make it again with attnprobe plan"
        )
    return plan


def partition_of(
    example_ids: np.ndarray | Sequence[int], n_partitions: int, seed: int
) -> np.ndarray:
    """The partition of each text: a hash of its id and the seed, modulo their number.

    SplitMix64's finaliser (Steele, Lea and Flood 2014), a bijection of 64 bits.

    Args:
        example_ids: [texts].
        n_partitions: at least 1.
        seed: of the plan.

    Returns:
        int64 [texts], from 0.

    >>> partition_of([0, 1, 2, 3], 4, seed=0).tolist()
    [1, 2, 0, 0]
    """
    bits = np.asarray(example_ids, dtype=np.int64).astype(np.uint64)
    bits = bits + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits % np.uint64(n_partitions)).astype(np.int64)


# --- Parts of a job on disk: written whole, trusted by their checksum ----------------------------


@dataclass(frozen=True)
class Part:
    """The result of one partition.

    Attributes:
        index: of the partition.
        ids: of the texts with rows, ascending.
        n_rows: of the wide table.
        aside: by id of a text that was set aside, why.
        n_split: batches that had to be run in pieces; their last bits may differ.
        files: contents by ending, ``parquet`` the rows.
    """

    index: int
    ids: Sequence[int]
    n_rows: int
    aside: Mapping[int, str]
    n_split: int
    files: Mapping[str, bytes]


def rows_ending(draw: int | None = None) -> str:
    """The ending of the file of rows: of the model, or of a draw of its control."""
    return "parquet" if draw is None else f"control-{draw}.parquet"


class File(TypedDict):
    """One of a part's files."""

    bytes: int
    sha256: str


class Aside(TypedDict):
    """A text that was set aside."""

    example_id: int
    reason: str


class Record(TypedDict):
    """Identifies the content of a part, without times or names of workers."""

    job: str
    partition: int
    texts: int
    audited: int
    without_tokens: int
    set_aside: tuple[Aside, ...]
    split_batches: int
    rows: int
    ids_sha256: str
    files: dict[str, File]


def part_name(k: int, ending: str) -> str:
    """A file of a partition."""
    return f"parts/part-{k:05d}.{ending}"


def commit(store: Store, plan: Plan, part: Part) -> Mapping[str, Any]:
    """Puts a part into the job: its files, then the record that vouches for them.

    Returns:
        The record.

    Raises:
        AttnProbeError: the partition is done, with other bytes.
    """
    record = _record(plan, part)
    _check_same(read_record(store, plan, part.index), record)
    for ending, data in part.files.items():
        store.write(part_name(part.index, ending), data)
    store.write(part_name(part.index, "json"), canonical(record) + b"\n")
    _check_same(read_record(store, plan, part.index), record)
    return record


def read_record(store: Store, plan: Plan, k: int) -> Mapping[str, Any] | None:
    """The record of a finished partition; None where it is still to be done.

    It must be of this plan, and its files there with their sizes; what they hold is
    checked by :func:`read_part`.
    """
    held = store.read(part_name(k, "json"))
    if held is None:
        return None
    try:
        record = from_plain(Record, json.loads(held))
        is_own = record["job"] == plan.name and record["partition"] == k
        files = record["files"]
        sizes = {ending: file["bytes"] for ending, file in files.items()}
    except UNREADABLE:
        return None
    found = {ending: store.size(part_name(k, ending)) for ending in sizes}
    return record if is_own and sizes and found == sizes else None


def read_part(store: Store, plan: Plan, k: int, ending: str) -> bytes:
    """A file of a finished partition, for which its record vouches.

    Raises:
        AttnProbeError: the partition is not done, or the file is not the one.
    """
    record = read_record(store, plan, k)
    if record is None:
        raise AttnProbeError(
            f"partition {k} of {plan.n_partitions} is not done; go on with attnprobe "
            f"work {store.url}"
        )
    return read_held(store, record, ending)


def read_held(store: Store, record: Mapping[str, Any], ending: str) -> bytes:
    """A file of the partition of this record; see :func:`read_part`."""
    k = record["partition"]
    data = store.read(part_name(k, ending))
    if data is None or _sha256(data) != record["files"][ending]["sha256"]:
        raise AttnProbeError(
            f"{store.url}/{part_name(k, ending)} is not what was written; delete "
            f"{part_name(k, 'json')} and run attnprobe work {store.url}"
        )
    return data


def records(store: Store, plan: Plan) -> dict[int, Mapping[str, Any]]:
    """The records of the finished partitions, by partition."""
    found = {k: read_record(store, plan, k) for k in range(plan.n_partitions)}
    return {k: record for k, record in found.items() if record is not None}


def _record(plan: Plan, part: Part) -> dict[str, Any]:
    """The record of a part, without times or names of workers."""
    texts = plan.texts[part.index]["texts"]
    files = {
        ending: {"bytes": len(data), "sha256": _sha256(data)} for ending, data in part.files.items()
    }
    aside = [{"example_id": key, "reason": why} for key, why in part.aside.items()]
    return {
        "job": plan.name,
        "partition": part.index,
        "texts": texts,
        "audited": len(part.ids),
        "without_tokens": texts - len(part.ids) - len(aside),
        "set_aside": aside,
        "split_batches": part.n_split,
        "rows": part.n_rows,
        "ids_sha256": _sha256(canonical(list(part.ids))),
        "files": files,
    }


def _check_same(held: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> None:
    """Raises AttnProbeError where a partition came out differently."""
    if held is None or held["files"] == ours["files"]:
        return
    raise AttnProbeError(
        f"partition {ours['partition']} was computed twice with different results: "
        f"SHA-256 {held['files']['parquet']['sha256'][:16]} is there, "
        f"{ours['files']['parquet']['sha256'][:16]} came now; the first stays. Use "
        "machines of one kind and equal libraries for one job"
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- The texts of a job, shared out over its partitions once, when it is planned -----------------
# A worker reads the file of its partition and nothing else, neither the data set nor other
# texts. So its memory does not grow with the data, and data that changes after the plan
# changes nothing.

TEXTS = "texts"
"""The folder of the texts."""
ID = "example_id"
AT_ONCE = 20_000
"""Rows that are in memory while texts are shared out."""


@dataclass(frozen=True)
class Shared:
    """What was seen of the texts while they were shared out; see ``Plan``."""

    texts: list[dict[str, Any]]
    columns: str
    rationales: bool
    spread: float | None
    reference: list[int]


@dataclass
class _Seen:
    """What is gathered from block to block."""

    columns: str = ""
    rationales: bool = False
    labels: list[np.ndarray] = field(default_factory=list)
    reference: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)


def share_out(
    reopen: Callable[[], OpenedSplit],
    store: Store,
    n_partitions: int,
    seed: int,
    limit: int | None,
) -> Shared:
    """Writes the texts of every partition, in the order of their ids.

    Args:
        reopen: opens the split; what it has mapped is closed before texts are read.
        store: of the job.
        n_partitions, seed: of the plan.
        limit: number of texts of a fixed sample; None for all of them.

    Raises:
        AttnProbeError: no texts, or ones that :func:`load_examples` refuses.
    """
    seen = _Seen()
    with tempfile.TemporaryDirectory() as folder:
        for examples in _blocks(reopen):
            _look(seen, examples, limit)
            _spill(examples, Path(folder), n_partitions, seed)
        drawn = None if limit is None else np.asarray(seen.drawn, dtype=np.int64)
        parts = [_write_part(store, k, Path(folder), drawn) for k in range(n_partitions)]
    if not any(part["texts"] for part in parts):
        raise AttnProbeError(
            "the split has no example left after the recipe's filters; choose another with --split"
        )
    return Shared(parts, seen.columns, seen.rationales, _spread(seen), seen.reference)


def read_texts_of(store: Store, k: int, sha256: str) -> "datasets.Dataset":
    """The texts of a partition, as ``load_examples`` gives them.

    Raises:
        AttnProbeError: they are missing, or not those of the plan.
    """
    import datasets

    held = store.read(texts_name(k))
    if held is None or hashlib.sha256(held).hexdigest() != sha256:
        raise AttnProbeError(
            f"{store.url}/{texts_name(k)} is missing or not the one of the plan; make "
            "the plan again in another folder"
        )
    table = pq.read_table(io.BytesIO(held))
    features = datasets.Features.from_arrow_schema(table.schema)
    info = datasets.DatasetInfo(features=features)
    return datasets.Dataset(table, info=info)


def texts_name(k: int) -> str:
    """The file of a partition's texts."""
    return f"{TEXTS}/part-{k:05d}.parquet"


def _blocks(reopen: Callable[[], OpenedSplit]) -> "Iterator[datasets.Dataset]":
    """The split as examples, some thousand rows at a time."""
    opened = labels_alone(reopen())
    rows, n_rows = opened.rows, len(opened.source)
    features, files = opened.source.features, _files_of(opened.source)
    tables = partial(_in_files, files) if files else partial(_in_memory, opened.source)
    recipe, splits, name = opened.recipe, opened.splits, opened.name
    del opened  # and with it what is mapped of the files
    gc.collect()
    ids, start = _ids_of(tables(), n_rows), 0
    for table in tables():
        stop = start + len(table)
        inside = rows[bisect_left(rows, start) : bisect_left(rows, stop)]
        places = np.asarray(inside, dtype=np.int64) - start
        block = _numbered(table.take(pa.array(places)), features, ids[start:stop][places])
        yield read_split(OpenedSplit(block, range(len(block)), splits, recipe, name))
        start = stop


def _files_of(source: "datasets.Dataset") -> list[str]:
    """The Arrow files that hold just these rows, in order; none of rows in memory."""
    files = [file["filename"] for file in source.cache_files]
    if source._indices is not None:  # in another order than in the files
        return []
    n_rows, schema = 0, source.data.schema
    for file in files:
        with pa.OSFile(file) as opened, pa.ipc.open_stream(opened) as stream:
            if not stream.schema.equals(schema):
                return []
            n_rows += sum(batch.num_rows for batch in stream)
    return files if n_rows == len(source) else []


def _in_files(files: Sequence[str]) -> Iterator[pa.Table]:
    """Rows of Arrow files, read and not mapped: pages of a mapped file count as memory."""
    for file in files:
        with pa.OSFile(file) as opened, pa.ipc.open_stream(opened) as stream:
            held: list[pa.RecordBatch] = []
            for batch in stream:
                held.append(batch)
                if sum(map(len, held)) >= AT_ONCE:
                    yield pa.Table.from_batches(held)
                    held = []
            if held:
                yield pa.Table.from_batches(held)


def _in_memory(source: "datasets.Dataset") -> Iterator[pa.Table]:
    """Rows in memory."""
    for start in range(0, len(source), AT_ONCE):
        yield source.with_format("arrow")[start : start + AT_ONCE]


def _numbered(table: pa.Table, features: Mapping[str, Any], ids: np.ndarray) -> "datasets.Dataset":
    """Rows with the ids that they have in the whole split."""
    import datasets

    if ID in table.column_names:
        table = table.drop_columns(ID)
    table = table.append_column(ID, pa.array(ids)).replace_schema_metadata()
    kinds = {name: kind for name, kind in features.items() if name != ID}
    info = datasets.DatasetInfo(features=datasets.Features(kinds | {ID: datasets.Value("int64")}))
    return datasets.Dataset(table, info=info, fingerprint="a block")  # or all of it is hashed


def _ids_of(tables: Iterator[pa.Table], n_rows: int) -> np.ndarray:
    """The ids that ``load_examples`` would give, [rows]."""
    found = []
    for table in tables:
        ids = table[ID] if ID in table.column_names else pa.chunked_array([pa.nulls(1)])
        if not pa.types.is_integer(ids.type) or ids.null_count:
            return np.arange(n_rows, dtype=np.int64)
        found.append(ids.to_numpy().astype(np.int64))
    ids = np.concatenate(found)
    is_one_each = ids.min() >= 0 and _are_different(ids)
    return ids if is_one_each else np.arange(n_rows, dtype=np.int64)


def _are_different(ids: np.ndarray) -> bool:
    """Whether no id occurs twice; of ids in order without a copy of all of them."""
    if (ids[1:] > ids[:-1]).all():
        return True
    ids = np.sort(ids)
    return bool((ids[1:] != ids[:-1]).all())


def _look(seen: _Seen, examples: "datasets.Dataset", limit: int | None) -> None:
    """Gathers what the plan records about all texts together."""
    ids = column_of(examples, "example_id")
    seen.columns = columns_read(examples)
    names = RATIONALES & set(examples.column_names)
    seen.rationales |= any(any(column_of(examples, name)) for name in names)
    if _are_numbers(examples):
        seen.labels.append(np.asarray(column_of(examples, "label"), dtype=np.float64))
    seen.reference = _first_by_hash(seen.reference + _with_text(examples), N_REFERENCE)
    if limit is not None:
        seen.drawn = _first_by_hash(seen.drawn + ids, limit)


def _are_numbers(examples: "datasets.Dataset") -> bool:
    feature = examples.features["label"]
    is_single = not hasattr(feature, "feature") and not hasattr(feature, "names")
    return is_single and str(feature.dtype).startswith(("int", "float"))


def _spread(seen: _Seen) -> float | None:
    """Standard deviation of numeric labels; None where they are none, or all equal."""
    labels = np.concatenate(seen.labels) if seen.labels else np.empty(0)
    known = labels[~np.isnan(labels)]
    return float(np.std(known)) or None if len(known) > 1 else None


def _first_by_hash(ids: Sequence[int], n: int) -> list[int]:
    return [ids[k] for k in by_hash(ids, n)]


def _with_text(examples: "datasets.Dataset") -> list[int]:
    """Ids of the texts that are not empty, or of images."""
    ids = column_of(examples, "example_id")
    if has_images(examples):
        return ids
    firsts, seconds = column_of(examples, "text"), second_texts(examples)
    pairs = zip(ids, firsts, seconds or [""] * len(ids), strict=True)
    return [example_id for example_id, a, b in pairs if (a + b).strip()]


def _spill(examples: "datasets.Dataset", folder: Path, n_partitions: int, seed: int) -> None:
    """Appends a block's texts to the files of their partitions, on this machine."""
    table = examples.with_format("arrow")[:]
    ids = table["example_id"].to_numpy()
    parts = partition_of(ids, n_partitions, seed)
    order = np.argsort(parts, kind="stable")
    present, starts = np.unique(parts[order], return_index=True)
    for k, rows in zip(present, np.split(order, starts[1:]), strict=True):
        with (folder / f"{k}.arrow").open("ab") as file:
            piece = table.take(pa.array(rows))
            with pa.ipc.new_stream(file, piece.schema) as stream:
                stream.write_table(piece)
    if not (folder / "schema.arrow").exists():
        (folder / "schema.arrow").write_bytes(table.schema.serialize())


def _write_part(store: Store, k: int, folder: Path, drawn: np.ndarray | None) -> dict[str, Any]:
    """The texts of one partition as Parquet; its number of texts and its SHA-256."""
    schema = pa.ipc.read_schema(pa.py_buffer((folder / "schema.arrow").read_bytes()))
    tables = [schema.empty_table(), *_streams(folder / f"{k}.arrow")]
    table = pa.concat_tables(tables, promote_options="default")
    ids = table["example_id"].to_numpy()
    if drawn is not None:
        table = table.filter(pa.array(np.isin(ids, drawn)))
        ids = table["example_id"].to_numpy()
    table = table.take(pa.array(np.argsort(ids))).combine_chunks()
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    store.write(texts_name(k), data)
    return {"texts": table.num_rows, "sha256": hashlib.sha256(data).hexdigest()}


def _streams(file: Path) -> Iterator[pa.Table]:
    """The tables of one stream after the other; none without a file."""
    if not file.exists():
        return
    size = file.stat().st_size
    with file.open("rb") as opened:
        while opened.tell() < size:
            yield pa.ipc.open_stream(opened).read_all()
