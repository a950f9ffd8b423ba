"""Plain data by type hints: values to JSON, and JSON or YAML to values, in one place.

What a file holds is a dataclass of dataclasses. One reader follows their hints and names the
field that is wrong: YAML that stands beside the code, summaries of finished runs.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import yaml

from hf_attnprobe.core.errors import AttnProbeError


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
hints_of = cache(get_type_hints)
"""The types of a class's fields by name; of 64 summaries each is asked for once."""
WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a text",
    list: "a list",
    dict: "names with values",
}


def read_packaged(file: Path, kind: Any) -> Any:
    """The content of a YAML file of the package as values of a type, see :func:`from_plain`."""
    content = yaml.load(file.read_text(encoding="utf-8"), LOADER)  # nosec B506: a safe loader
    return from_plain(kind, content, file.name)


def read_json(file: Path, kind: Any, advice: str) -> Any:
    """Returns the content of a JSON file as a value of a type, see :func:`from_plain`.

    Args:
        advice: what to do where it is none.

    Raises:
        AttnProbeError: the file is not there, is no JSON, or holds something else.
    """
    try:
        return from_plain(kind, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise AttnProbeError(f"cannot read {file} ({error}); {advice}") from error


def plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, enums as their values, NaN as None.

    A field may have another name there: ``field(metadata={"written_as": "mean"})``. What has
    a function ``parse``, as the name of a data set, is its text.

    >>> plain({"ci95": (0.5, float("nan"))})
    {'ci95': [0.5, None]}
    """
    if hasattr(value, "parse"):  # what can be made of its text again
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, Enum):
        return value.value
    is_nan = isinstance(value, float) and value != value
    return None if is_nan else value


def plain_fields(value: Any, *besides: str) -> dict[str, Any]:
    """The fields of a dataclass by name, but for those that files of their own hold."""
    fields = [field for field in dataclasses.fields(value) if field.name not in besides]
    return {written_as(field): plain(getattr(value, field.name)) for field in fields}


def written_as(field: dataclasses.Field) -> str:
    """The name of a field in plain data."""
    return field.metadata.get("written_as", field.name)


def from_plain(hint: Any, value: Any, place: str = "") -> Any:
    """What :func:`plain` was given, from what it made of it and the type that it had.

    >>> from_plain(tuple[float, ...], [0.5, None])
    (0.5, nan)

    Args:
        hint: a type; dataclasses, typed dicts, tuples, mappings, unions and enums of others
            within. A typed dict may hold more than it names.
        value: plain data. None is NaN, unless the type takes None.
        place: where the data stand, for errors: a file, and the names on the way.

    Raises:
        AttnProbeError: a value of another type, a name that the dataclass does not know, or
            one that it needs and that is not there.
    """
    kind = _kind_of(value, hint)
    if kind is float and value is None:
        return float("nan")
    if not _is_written(value, kind):
        raise _unexpected(describe(hint), in_short(value), place)
    if hasattr(kind, "parse"):
        return kind.parse(value)
    if dataclasses.is_dataclass(kind):
        return _made(kind, value, place)
    if is_typeddict(kind):
        return _known(kind, value, place)
    inner = get_args(kind)
    if isinstance(value, dict) and inner:
        return {name: from_plain(inner[1], v, _below(place, name)) for name, v in value.items()}
    is_named = hasattr(kind, "_fields")
    if isinstance(value, list) and (is_named or get_origin(kind) is tuple):
        kinds = _items(kind, len(value))
        if len(kinds) != len(value):
            raise _unexpected(f"{len(kinds)} values", str(len(value)), place)
        pairs = enumerate(zip(kinds, value, strict=True), 1)
        items = [from_plain(one, inner, f"{place} {k}".strip()) for k, (one, inner) in pairs]
        return kind(*items) if is_named else tuple(items)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


def _made(kind: Any, value: Mapping[str, Any], place: str) -> Any:
    """A dataclass of named values."""
    fields = {written_as(field): field for field in dataclasses.fields(kind)}
    missing = dataclasses.MISSING
    for name, field in fields.items():
        if name not in value and field.default is field.default_factory is missing:
            raise _unexpected("a value", "none", _below(place, name))
    hints, given = hints_of(kind), {}
    for name, inner in value.items():
        if name not in fields:
            raise _unexpected(f"one of {', '.join(fields)}", in_short(name), place)
        own = fields[name].name
        given[own] = from_plain(hints[own], inner, _below(place, name))
    return kind(**given)


def _known(kind: Any, value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Values by name, those that a typed dict names of its types; there may be others."""
    for name in sorted(kind.__required_keys__ - value.keys()):
        raise _unexpected("a value", "none", _below(place, name))
    hints = hints_of(kind)
    return {
        name: from_plain(hints.get(name, Any), inner, _below(place, name))
        for name, inner in value.items()
    }


def stored_fields(kind: Any, data: Mapping[str, Any], *besides: str) -> dict[str, Any]:
    """The fields of a result, from a summary that may say more than them.

    Args:
        kind: a dataclass.
        data: plain data by name.
        besides: fields that files of their own hold.

    Raises:
        KeyError: the summary lacks a field.
        AttnProbeError: as :func:`from_plain`.
    """
    hints = hints_of(kind)
    names = [field.name for field in dataclasses.fields(kind) if field.name not in besides]
    return {name: from_plain(hints[name], data[name], name) for name in names}


def _below(place: str, name: str) -> str:
    return f"{place}, {name}" if place else str(name)


def _unexpected(expected: str, got: str, place: str) -> AttnProbeError:
    where = f"{place}: " if place else ""
    return AttnProbeError(f"{where}expected {expected}, got {got}")


def _items(kind: Any, n: int) -> list[Any]:
    """The types of the items of a tuple, a list or a named tuple of n values."""
    if hasattr(kind, "_fields"):
        return list(hints_of(kind).values())
    inner = get_args(kind)
    return list(inner) if get_origin(kind) is tuple and inner[-1] is not ... else [inner[0]] * n


# --- Types as they are written -------------------------------------------------------------------


def alternatives(hint: Any) -> list[Any]:
    """The types of a union, without None.

    >>> alternatives(int | None), alternatives(str)
    ([<class 'int'>], [<class 'str'>])
    """
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not NoneType]


def _kind_of(value: Any, hint: Any) -> Any:
    """The type of a union that a value is of, or the first; another type as it is."""
    if value is None and NoneType in get_args(hint):
        return NoneType
    kinds = alternatives(hint)
    return next((kind for kind in kinds if _is_written(value, kind)), kinds[0])


def _is_written(value: Any, kind: Any) -> bool:
    """Whether plain data stand for a value of a type; what is inside is not looked at."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if isinstance(value, bool):  # which is no number, though Python takes it for one
        return kind in (bool, Any)
    return isinstance(value, _written(kind))


@cache
def _written(kind: Any) -> tuple[type, ...]:
    origin = get_origin(kind) or kind
    if hasattr(kind, "parse"):
        return (str,)
    if kind in (None, NoneType):
        return (NoneType,)
    if kind is float:
        return (float, int)
    if kind is Path:
        return (str, Path)
    if kind is Any or not isinstance(origin, type):
        return (object,)
    if dataclasses.is_dataclass(origin) or issubclass(origin, Mapping):
        return (Mapping,)
    if issubclass(origin, Enum):
        return (str, int)
    is_list = issubclass(origin, Sequence) and not issubclass(origin, str)
    return (list, tuple) if is_list else (origin,)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that an option declares.

    >>> fits(3, float), fits("3", int), fits(["a"], list[str] | None), fits(True, int)
    (True, False, True, False)
    """
    is_none = value is None and NoneType in get_args(hint)
    return is_none or any(_is_of(value, kind) for kind in alternatives(hint))


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type that is no union."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return isinstance(value, kind)
    if not _is_written(value, kind):
        return False
    if not isinstance(value, list | tuple) or not get_args(kind):
        return True
    kinds = _items(kind, len(value))
    return len(kinds) == len(value) and all(map(fits, value, kinds))


def describe(hint: Any) -> str:
    """A type in words.

    >>> describe(int | None), describe(tuple[float, ...] | None), describe(Literal["a", "b"])
    ('a whole number', 'a list of numbers', 'a or b')
    """
    kinds = alternatives(hint)
    if len(kinds) > 1:
        return " or ".join(dict.fromkeys(map(describe, kinds)))
    kind = kinds[0]
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if Mapping in _written(kind):
        return WORDS[dict]
    if list in _written(kind) and get_args(kind):
        item = describe(get_args(kind)[0])
        is_one = item.startswith("a ") and " or " not in item
        return f"a list of {item.split(' ', 1)[-1].removesuffix('s')}s" if is_one else "a list"
    is_object = isinstance(kind, type) and not issubclass(kind, Enum) and not hasattr(kind, "parse")
    return WORDS.get(kind) or (kind.__name__ if is_object else "a text")


def in_short(value: Any) -> str:
    """A value in an error's line: its repr, cut where it is long.

    >>> in_short("a"), in_short(10**6000)
    ("'a'", 'a whole number of more than 80 digits')
    """
    if isinstance(value, int) and abs(value) >= 10**80:
        return "a whole number of more than 80 digits"
    try:
        said = repr(value)
    except (
        ValueError,
        RecursionError,
    ):  # such a number, or such nesting, inside it
        said = f"a {type(value).__name__}"
    return said if len(said) <= 200 else f"{said[:200]}…"
