"""The tests that train models: each registers itself in its own file.

A retraining is a function over a base: it trains with the base's recorded settings and returns
tensors [texts] as other tests do, so rows, summary and readings are the same; scores that are no
mean of texts (F1, AUC) come with paired intervals (``statistics/scores.py``).
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from hf_attnprobe.options import Asked, Options, options_with_default
from hf_attnprobe.readings import TestReadings
from hf_attnprobe.retraining import TESTS


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class RetrainingTest:
    """A test that trains models beside a base.

    Attributes:
        name: of the test, its function and its folder.
        title: one line, for reports.
        function: takes a base, splits and options, and returns a frozen result.
        options: class of its options.
        readings: a sentence for every statistic of the result, or its ``Reading``.
        n_models: how many models the options make it train.
        default: whether it is run without being asked for.
    """

    name: str
    title: str
    function: Callable[..., Any]
    options: type[Options]
    readings: TestReadings
    n_models: Callable[[Any], int]
    default: bool = True


_registered: dict[str, RetrainingTest] = {}


@cache
def retrainings() -> dict[str, RetrainingTest]:
    """All of them by name, in the order in which one can use another's models."""
    for name in TESTS:
        importlib.import_module(f"hf_attnprobe.retraining.{name}")
    return {name: _registered[name] for name in TESTS}


def readings() -> dict[str, TestReadings]:
    """Their readings, by test and statistic."""
    return {name: test.readings for name, test in retrainings().items()}


def register_retraining(
    *,
    title: str,
    readings: TestReadings,
    options: type[Options] = Options,
    n_models: Callable[[Any], int],
    default: bool = True,
) -> Callable[[Function], Function]:
    """Registers the decorated function as a test under its own name."""

    def register(function: Function) -> Function:
        name = function.__name__
        test = RetrainingTest(name, title, function, options, readings, n_models, default)
        _registered[name] = test
        return function

    return register


def asked_retrainings(asked: Asked | None) -> dict[str, Options]:
    """The options of the tests that are asked for, in the order in which they run.

    Args:
        asked: as :func:`~hf_attnprobe.options.options_by_test` takes it; "default" and None
            are all tests but those that run on request only.

    Raises:
        AttnProbeError: what :func:`~hf_attnprobe.options.options_by_test` refuses.
    """
    known = retrainings()
    kinds = {name: test.options for name, test in known.items()}
    return options_with_default(asked, kinds, [n for n, test in known.items() if test.default])
