"""Parts of a job on disk: written whole, trusted by their checksum."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.partitions.plan import Plan, canonical
from hf_attnprobe.partitions.store import Store


@dataclass(frozen=True)
class Part:
    """What a partition came to.

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
        record = json.loads(held)
        is_own = record["job"] == plan.name and record["partition"] == k
        files = record["files"]
        sizes = {ending: file["bytes"] for ending, file in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
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
    """What is said of a part; nothing of clocks or of who did it."""
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
