"""Tests that train models beside a base (Wiegreffe & Pinter 2019, Mohankumar et al. 2020).

A test is a function that yields variants of the base, and registers itself in its file;
``base.py`` trains the variants, reads and compares them.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from hf_attnprobe.core.options import Asked, Options, options_with_default
from hf_attnprobe.core.readings import TestReadings
from hf_attnprobe.retraining.options import KINDS


@dataclass(frozen=True, eq=False)
class RetrainingTest:
    """A test that trains models beside a base.

    Attributes:
        name: of the test, its function and its folder.
        title: one line, for reports.
        variants: ``variants(setup, options)`` yields the models of a setup; nothing is trained
            or read in it.
        readings: a sentence for every statistic, or its ``Reading``.
        together: ``together(tested, options)`` adds what is said of all variants together.
        reference: the model that the others are compared with.
    """

    name: str
    title: str
    variants: Callable[..., Iterator[Any]]
    readings: TestReadings
    together: Callable[..., None] | None = None
    reference: str = "base"


_registered: dict[str, RetrainingTest] = {}
Yields = TypeVar("Yields", bound=Callable[..., Iterator[Any]])


def register_retraining(**record: Any) -> Callable[[Yields], Yields]:
    """Registers the decorated function, which yields variants, as a test under its own name.

    Args:
        record: other attributes of :class:`RetrainingTest`.
    """

    def register(variants: Yields) -> Yields:
        name = variants.__name__
        _registered[name] = RetrainingTest(name=name, variants=variants, **record)
        return variants

    return register


@cache
def retrainings() -> dict[str, RetrainingTest]:
    """All of them by name, in the order in which one can use another's models."""
    for file in ("controls", "adversary"):
        importlib.import_module(f"hf_attnprobe.retraining.{file}")
    return {name: _registered[name] for name in KINDS}


def readings() -> dict[str, TestReadings]:
    """Their readings, by test and statistic."""
    return {name: test.readings for name, test in retrainings().items()}


def asked_retrainings(asked: Asked | None) -> dict[str, Options]:
    """The options of the tests that are asked for, in the order in which they run.

    Args:
        asked: as :func:`~hf_attnprobe.core.options.options_by_test` takes it; "default" and None
            are all tests.

    Raises:
        AttnProbeError: what :func:`~hf_attnprobe.core.options.options_by_test` refuses.
    """
    return options_with_default(asked, KINDS, [*KINDS])
