"""Frozen results to plain data for JSON, and back. NaN is None there: JSON has no word for it."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from types import NoneType
from typing import get_args, get_type_hints


def plain(value):
    """Dataclasses as dicts, tuples as lists, NaN as None.

    >>> plain({"ci95": (0.5, float("nan"))})
    {'ci95': [0.5, None]}
    """
    if is_dataclass(value):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and value != value else value


def in_words(value) -> str:
    """Nested plain data on one line.

    >>> in_words({"permutation": {"n_permutations": 100}, "layers": [0, 1], "seed": None})
    'permutation (n_permutations 100), layers 0 1, seed none'
    """
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name} ({in_words(v)})"
            if isinstance(v, Mapping)
            else f"{name} {in_words(v)}"
            for name, v in value.items()
        )
    if isinstance(value, list | tuple):
        return " ".join(map(in_words, value)) or "none"
    return "none" if value is None else str(value)


def real(value):
    """Lists as tuples, None as NaN.

    >>> real([0.5, None, "a"])
    (0.5, nan, 'a')
    """
    if isinstance(value, list):
        return tuple(map(real, value))
    return float("nan") if value is None else value


def read(kind: type, fields: Mapping):
    """A dataclass from what :func:`plain` made of it; None stays None in fields that are declared to take it."""
    optional = {
        name
        for name, hint in get_type_hints(kind).items()
        if NoneType in get_args(hint)
    }
    return kind(
        **{
            name: None if v is None and name in optional else real(v)
            for name, v in fields.items()
        }
    )
