"""The examples in the docstrings give what they say."""

import doctest
import importlib
import pkgutil

import pytest

import hf_attnprobe.functional


NAMES = [
    m.name
    for m in pkgutil.iter_modules(hf_attnprobe.functional.__path__, "hf_attnprobe.functional.")
]


@pytest.mark.parametrize("name", NAMES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_some():
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in NAMES) >= 3


def test_the_namespace_is_sorted_and_documented():
    names = hf_attnprobe.functional.__all__
    assert names == sorted(names)
    for name in names:
        member = getattr(hf_attnprobe.functional, name)
        assert name == "Distance" or member.__doc__
