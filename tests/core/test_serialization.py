"""Results as JSON and back: what is undefined stays undefined, what may be None stays None."""

import json
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from hf_attnprobe.core.serialization import convert_to_plain, parse_plain
from hf_attnprobe.data.examples import DatasetName


class Kind(StrEnum):
    GOOD = "good"


@dataclass(frozen=True)
class Result:
    name: str
    mean: float
    ci95: tuple[float, float]
    best: float | None = None
    by_class: tuple[tuple[str, float], ...] = ()
    dataset: DatasetName = DatasetName("sst", "test")
    kind: Kind = Kind.GOOD
    inner: dict[str, tuple["Result", ...]] = field(default_factory=dict)
    cells: "tuple[str | int | float | Result | None, ...]" = ()


@pytest.mark.parametrize(
    "result",
    [
        Result("a", 0.5, (0.25, 1.0)),
        Result(
            "b", float("nan"), (float("nan"), float("nan")), None, (("x", 1.0), ("y", float("nan")))
        ),
        Result("c", float("inf"), (0.0, 1.0), 2.0),
        Result(
            "d",
            0.5,
            (0.0, 1.0),
            inner={"a": (Result("e", 0.5, (0.0, 1.0)),)},
            cells=("x", 1, 0.5, None, Result("f", float("nan"), (0.0, 1.0))),
        ),
    ],
    ids=lambda result: result.name,
)
def test_there_and_back(result):
    again = parse_plain(Result, json.loads(json.dumps(convert_to_plain(result))))
    assert repr(again) == repr(result)  # nan is not equal to itself


def test_json_without_nan():
    found = convert_to_plain(
        {"rows": (Result("a", float("nan"), (0.0, float("nan"))), [float("nan"), 1])}
    )
    assert json.loads(json.dumps(found, allow_nan=False))["rows"][1] == [None, 1]


def test_other_fields_are_refused():
    with pytest.raises(ValueError, match="more"):
        parse_plain(Result, {"name": "a", "mean": 0.5, "ci95": [0, 1], "more": 1})
