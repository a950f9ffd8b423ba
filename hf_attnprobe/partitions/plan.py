"""The plan of a job: all that decides its bytes, in one file whose hash is its name."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.partitions.store import Store


PLAN = "plan.json"
FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """What a job is, fixed before it starts.

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

    @property
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
    [3, 1, 2, 1]
    """
    bits = np.asarray(example_ids, dtype=np.int64).astype(np.uint64)
    bits = bits + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits % np.uint64(n_partitions)).astype(np.int64)
