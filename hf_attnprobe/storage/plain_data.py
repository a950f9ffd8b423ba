"""Frozen results to plain data for JSON, and back. NaN is None there."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints


Result = TypeVar("Result")


def plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, enums as their values, NaN as None.

    >>> plain({"ci95": (0.5, float("nan"))})
    {'ci95': [0.5, None]}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Enum):
        return value.value
    is_nan = isinstance(value, float) and value != value
    return None if is_nan else value


def in_words(value: Any) -> str:
    """Nested plain data on one line.

    >>> in_words({"permutation": {"n_permutations": 100}, "layers": [0, 1]})
    'permutation (n_permutations 100), layers 0 1'
    """
    if isinstance(value, Mapping):
        return ", ".join(_pair_in_words(name, inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(in_words, value)) or "none"
    return "none" if value is None else str(value)


def _pair_in_words(name: str, value: Any) -> str:
    words = in_words(value)
    return f"{name} ({words})" if isinstance(value, Mapping) else f"{name} {words}"


def values_from_plain(value: Any) -> Any:
    """Lists as tuples, None as NaN.

    >>> values_from_plain([0.5, None, "a"])
    (0.5, nan, 'a')
    """
    if isinstance(value, list):
        return tuple(map(values_from_plain, value))
    return float("nan") if value is None else value


def from_plain(kind: type[Result], fields: Mapping) -> Result:
    """A dataclass from what :func:`plain` made of it.

    None is NaN again, except in fields that are declared to take None.
    """
    hints = get_type_hints(kind)
    optional = {name for name, hint in hints.items() if NoneType in get_args(hint)}
    values = {}
    for name, value in fields.items():
        kept = value is None and name in optional
        values[name] = None if kept else values_from_plain(value)
    return kind(**values)
