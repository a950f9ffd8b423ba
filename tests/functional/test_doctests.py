"""The examples in the docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import hf_attnprobe.functional


PACKAGE = Path(hf_attnprobe.__file__).parent
SHOWING = [file for file in PACKAGE.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8")]


def test_examples_in_docstrings():
    wrong, n_tried = {}, 0
    for file in SHOWING:
        name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
        found = doctest.testmod(importlib.import_module(name))
        n_tried += found.attempted
        if found.failed:
            wrong[name] = found
    assert not wrong
    assert n_tried >= 60


def test_the_namespace_is_sorted_and_documented():
    names = hf_attnprobe.functional.__all__
    assert names == sorted(names)
    for name in names:
        member = getattr(hf_attnprobe.functional, name)
        assert name == "Distance" or member.__doc__
