"""The examples in the docstrings give what they say."""

import doctest
import importlib
import pkgutil

import hf_attnprobe.functional


NAMES = [
    m.name
    for m in pkgutil.iter_modules(hf_attnprobe.functional.__path__, "hf_attnprobe.functional.")
]


def test_examples_in_docstrings():
    found = [doctest.testmod(importlib.import_module(name)) for name in NAMES]
    assert sum(result.failed for result in found) == 0
    assert sum(result.attempted for result in found) >= 3


def test_the_namespace_is_sorted_and_documented():
    names = hf_attnprobe.functional.__all__
    assert names == sorted(names)
    for name in names:
        member = getattr(hf_attnprobe.functional, name)
        assert name == "Distance" or member.__doc__
