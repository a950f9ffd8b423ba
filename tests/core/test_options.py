"""Options in words: they are read as they are written, and wrong words are refused."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from hf_attnprobe import AttnProbeError, Options, option
from hf_attnprobe.core.options import format_option_value, parse_option, parse_set_arguments
from hf_attnprobe.faithfulness import registry


KINDS = {name: test.options for name, test in registry.load_tests().items()}


def test_options_in_words():
    assert parse_set_arguments(None, [], KINDS) == {"default": {}}
    words = ["permutation.n_permutations=7", "erasure.renormalise=false", "erasure.draw=uniform"]
    words += ["correlation.tops=1,3", "adversarial.epsilons=.01", "adversarial.n_steps=none"]
    assert parse_set_arguments(["erasure"], words, KINDS) == {
        "erasure": {"renormalise": False, "draw": "uniform"},
        "permutation": {"n_permutations": 7},
        "correlation": {"tops": [1, 3]},
        "adversarial": {"epsilons": [0.01], "n_steps": None},
    }


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("n_permutations=7", "expected TEST.OPTION=VALUE after --set"),
        ("permutation.n_permutations", "expected TEST.OPTION=VALUE after --set"),
        ("permutations.n=7", r"unknown test 'permutations'; did you mean permutation\?"),
        ("erasure.normalise=true", "of erasure; did you mean renormalise"),
        ("permutation.x=1", "'x' of permutation; expected one of n_permutations"),
        ("permutation.n_permutations=ten", "expected a whole number for n_permutations"),
        ("erasure.renormalise=1", "expected true or false for renormalise, got '1'"),
        ("correlation.tops=1,", "expected a list of whole numbers for tops"),
    ],
)
def test_wrong_words(word, message):
    with pytest.raises(AttnProbeError, match=message):
        parse_set_arguments(None, [word], KINDS)


@pytest.mark.parametrize(
    "value", [50, 0.25, True, False, None, "mask", [1, 3], [0.01, 0.05]], ids=str
)
def test_words_are_read_as_they_are_written(value):
    field = {int: "a", float: "b", bool: "c", type(None): "d", str: "e"}
    name = field.get(type(value)) or ("f" if isinstance(value[0], int) else "g")

    @dataclass(frozen=True)
    class Every(Options):
        a: int = option(0)
        b: float = option(0.0)
        c: bool = option(False)
        d: int | None = option(3)
        e: Literal["deletion", "mask"] = option("deletion")
        f: Sequence[int] = option(())
        g: Sequence[float] = option(())

    assert parse_option(Every, name, format_option_value(value)) == value
