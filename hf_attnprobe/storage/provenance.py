"""Plain data for JSON, and what a result was made with."""

import itertools
import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from hf_attnprobe.errors import AttnProbeError


Result = TypeVar("Result")


def plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, enums as their values, NaN as None.

    A field may have another name there: ``field(metadata={"written_as": "mean"})``. What has
    a function ``parse``, as the name of a data set, is its text.

    >>> plain({"ci95": (0.5, float("nan"))})
    {'ci95': [0.5, None]}
    """
    if hasattr(value, "parse"):  # what can be made of its text again
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {written_as(field): plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Enum):
        return value.value
    is_nan = isinstance(value, float) and value != value
    return None if is_nan else value


def written_as(field: Field) -> str:
    """The name of a field in plain data."""
    return field.metadata.get("written_as", field.name)


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


def from_plain(hint: Any, value: Any) -> Any:
    """What :func:`plain` was given, from what it made of it and the type that it had.

    >>> from_plain(tuple[float, ...], [0.5, None])
    (0.5, nan)

    Args:
        hint: a type; dataclasses, tuples, mappings, unions and enums of others within.
        value: plain data. None is NaN, unless the type takes None.

    Raises:
        KeyError: a dataclass has no field of that name.
        TypeError: a field without a default is missing.
        ValueError: an enum has no such value.
    """
    kinds = get_args(hint)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        if value is None and NoneType in kinds:
            return None
        fitting = [kind for kind in kinds if _can_be(kind, value)]
        return from_plain(fitting[0], value) if fitting else value
    if isinstance(hint, type) and hasattr(hint, "parse"):
        return hint.parse(value)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        names = {written_as(field): field.name for field in fields(hint)}
        given = {names[written]: inner for written, inner in value.items()}
        return hint(**{name: from_plain(hints[name], inner) for name, inner in given.items()})
    if isinstance(value, Mapping) and kinds:
        return {name: from_plain(kinds[1], inner) for name, inner in value.items()}
    if isinstance(hint, type) and hasattr(hint, "_fields"):  # a named tuple
        return hint(*map(from_plain, get_type_hints(hint).values(), value))
    if isinstance(value, list) and get_origin(hint) is tuple:
        each = itertools.repeat(kinds[0]) if kinds[-1] is Ellipsis else kinds
        return tuple(from_plain(kind, inner) for kind, inner in zip(each, value, strict=False))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return float("nan") if value is None and hint is float else value


def _can_be(kind: Any, value: Any) -> bool:
    """Whether a type, one of several, is that of plain data which is not the value itself."""
    if value is None:
        return kind is float
    if isinstance(value, Mapping):
        return is_dataclass(kind) or get_origin(kind) is dict
    if isinstance(value, list):
        return get_origin(kind) is tuple
    return isinstance(kind, type) and issubclass(kind, Enum)


# --- Where numbers come from: the versions of what computed them, and the stored summary ---------

SUMMARY = "summary.json"

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What a torn or foreign summary raises, in reading or in parsing."""
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute the numbers, by name."""
    found = {name: version(name) for name in PACKAGES}
    return found | {"python": platform.python_version()}


def read_summary(
    folder: str | Path,
    parse: Callable[[dict[str, Any]], Result],
    *,
    kind: str,
    verb: str,
    check: Callable[[Mapping[str, Any], str], None] = lambda data, source: None,
) -> Result:
    """What a finished run left in its folder.

    Args:
        folder: of the run.
        parse: makes the result of the summary's data.
        kind: of run, with its article, such as "an audit".
        verb: what is to be run where the summary is missing or torn.
        check: of data and the file's name; raises AttnProbeError for what cannot be
            parsed by this version.

    Raises:
        AttnProbeError: no summary there, or one that cannot be read.
    """
    file = Path(folder) / SUMMARY
    if not file.is_file():
        raise AttnProbeError(
            f"expected {kind} in {folder}, found no {SUMMARY} there; finish or run {verb} first"
        )
    unreadable = AttnProbeError(f"cannot read the summary in {file}; run {verb} again")
    try:
        data = dict(json.loads(file.read_text(encoding="utf-8")))
    except UNREADABLE as error:
        raise unreadable from error
    check(data, str(file))
    try:
        return parse(data)
    except UNREADABLE as error:
        raise unreadable from error
