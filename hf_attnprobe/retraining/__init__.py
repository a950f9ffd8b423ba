"""Tests that train variants of a base model and compare them with it.

The tests are those of Wiegreffe & Pinter 2019 (``uniform``, ``seeds``, ``adversary``,
``diagnostic_mlp``) and of Pruthi et al. 2020 (``deception``). For example, ``uniform`` trains the
base model again without its attention, to find out whether the attention is needed.

- :func:`hf_attnprobe.retrain` runs the tests and returns a report.
- :func:`hf_attnprobe.transfer` trains a model with the attention of another one.

Each test is a function that yields variants of the base model. It is registered in its own file
with :func:`register_retraining`. Start reading in ``controls.py``, which has the simplest tests.
``base_model.py`` trains and measures the variants, ``verdict.py`` grades the results, and
``report.py`` prints them.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import Options, TestSelection, resolve_tests
from hf_attnprobe.core.readings import TestReadings
from hf_attnprobe.retraining.options import DEFAULT_RETRAINING_TESTS, OPTIONS_BY_TEST, Deception


@dataclass(frozen=True, eq=False)
class RetrainingTest:
    """A test that trains variants of a base model.

    Attributes:
        name: Test name. The generator function and the output folder have the same name.
        title: One-line description for reports.
        make_variants: Function ``make_variants(setup, options)`` that yields the variants. It
            neither trains nor measures a model.
        readings: Sentence or ``Reading`` that describes each statistic.
        summarize: Function ``summarize(results, options)`` that adds statistics which combine all
            variants.
        check: Function ``check(setup, options)`` that raises ``AttnProbeError`` if the test cannot
            run on the model and the data.
        reference: Name of the variant with which all scores are compared.
        trains_from_scratch: Whether the variants start from random weights. The base model must
            then be a flat attention classifier. Otherwise any classifier is accepted.
    """

    name: str
    title: str
    make_variants: Callable[..., Iterator[Any]]
    readings: TestReadings
    summarize: Callable[..., None] | None = None
    check: Callable[..., None] | None = None
    reference: str = "base"
    trains_from_scratch: bool = True


_registered: dict[str, RetrainingTest] = {}
VariantGenerator = TypeVar("VariantGenerator", bound=Callable[..., Iterator[Any]])


def register_retraining(**record: Any) -> Callable[[VariantGenerator], VariantGenerator]:
    """Return a decorator that registers a function as a retraining test.

    The function yields variants: models that are trained like the base model, with one change. The
    test gets the function's name.

    Args:
        **record: All other attributes of :class:`RetrainingTest`.

    Example:
        Register a test that trains the base model with half the learning rate::

            @register_retraining(title="A model trained more slowly", readings=READINGS)
            def slow(setup, options):
                rate = setup.base.settings.learning_rate / 2
                yield Variant("slow", "slow", partial(train_variant, learning_rate=rate))
    """

    def register(make_variants: VariantGenerator) -> VariantGenerator:
        name = make_variants.__name__
        _registered[name] = RetrainingTest(name=name, make_variants=make_variants, **record)
        return make_variants

    return register


@cache
def get_retraining_tests() -> dict[str, RetrainingTest]:
    """Return all retraining tests by name, in their running order.

    A test comes after the tests whose models it uses.
    """
    for file in ("controls", "adversary", "deception"):
        importlib.import_module(f"hf_attnprobe.retraining.{file}")
    return {name: _registered[name] for name in OPTIONS_BY_TEST}


def get_retraining_readings() -> dict[str, TestReadings]:
    """Return the descriptions of all statistics, by test and statistic name."""
    return {name: test.readings for name, test in get_retraining_tests().items()}


def select_retraining_tests(selection: TestSelection | None) -> dict[str, Options]:
    """Return the options of each selected test, by test name in running order.

    Args:
        selection: Test names, or options by test name, see
            :func:`~hf_attnprobe.core.options.collect_test_options`. None and "default" select
            :data:`~hf_attnprobe.retraining.options.DEFAULT_RETRAINING_TESTS`.

    Raises:
        AttnProbeError: If a test or an option does not exist, or if ``deception`` has no words.
    """
    selected = resolve_tests(selection, OPTIONS_BY_TEST, DEFAULT_RETRAINING_TESTS)
    deception = selected.get("deception")
    if isinstance(deception, Deception) and not deception.words:
        raise AttnProbeError(
            "the test deception needs a list of words that the model should learn to hide. Pass "
            "it with --set deception.words=WORD,WORD."
        )
    return selected
