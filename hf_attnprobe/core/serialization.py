"""Conversion between dataclasses and plain data (JSON and YAML), driven by type hints.

:func:`convert_to_plain` converts a dataclass to dicts, lists and numbers. :func:`parse_plain` converts
them back; if a value does not match the type hint of its field, the error message names the field.
Both are used for summaries of finished runs, and the second also for the package's YAML files.

:func:`matches_type` and :func:`describe_type` check option values by their type hints.
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


YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Class that reads YAML files without running code from them.

The C version is faster, but it is not always installed.
"""
MAX_DISPLAY_LENGTH = 200
"""Number of characters to which a value is shortened in an error message."""
MAX_DISPLAY_DIGITS = 80
"""Maximum number of digits of an integer that is printed in full in an error message."""
TYPE_DESCRIPTIONS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a text",
    list: "a list",
    dict: "names with values",
}
"""Maps a type to its description in error messages, as in "expected a whole number, got …"."""


@cache
def get_field_types(data_class: Any) -> dict[str, Any]:
    """Return the type hints of a class by field name; results are cached."""
    return get_type_hints(data_class)


def read_package_yaml(file: Path, hint: Any) -> Any:
    """Read a YAML file that is part of this package.

    Args:
        file: File path.
        hint: Type of the content, see :func:`parse_plain`.

    Returns:
        The content, as a value of this type.
    """
    # YAML_LOADER is a safe loader, which cannot run code.
    content = yaml.load(file.read_text(encoding="utf-8"), YAML_LOADER)  # nosec B506
    return parse_plain(hint, content, file.name)


def read_json(file: Path, hint: Any, advice: str) -> Any:
    """Read a JSON file.

    Args:
        file: File path.
        hint: Type of the content, see :func:`parse_plain`.
        advice: Last sentence of the error message: the advice for users if the file cannot be read.

    Returns:
        The content, as a value of this type.

    Raises:
        AttnProbeError: The file does not exist, is not JSON, or its content has another type.
    """
    try:
        return parse_plain(hint, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise AttnProbeError(f"cannot read {file} ({error}). {advice}") from error


# --- Values to plain data ---


def convert_to_plain(value: Any) -> Any:
    """Convert a value to plain data that JSON can store.

    Dataclasses become dicts, tuples become lists, enums become their values, and NaN becomes None. A
    field can be renamed with ``field(metadata={"plain_name": "mean"})``. An object with a method
    ``parse``, such as a data set name, is converted with ``str``.

    Args:
        value: The value.

    Returns:
        Plain data, from which :func:`parse_plain` restores the value.

    >>> convert_to_plain({"ci95": (0.5, float("nan"))})
    {'ci95': [0.5, None]}
    """
    if hasattr(value, "parse"):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return convert_fields(value)
    if isinstance(value, Mapping):
        return {name: convert_to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [convert_to_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    is_nan = isinstance(value, float) and value != value
    return None if is_nan else value


def convert_fields(value: Any, *excluded: str) -> dict[str, Any]:
    """Convert the fields of a dataclass instance to plain data.

    Args:
        value: The instance.
        excluded: Names of fields to omit, for example because other files store them.

    Returns:
        Plain data by field name.
    """
    return {
        get_plain_name(field): convert_to_plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.name not in excluded
    }


def get_plain_name(field: dataclasses.Field) -> str:
    """Return the key for a dataclass field in plain data: its "plain_name", or else its name."""
    return field.metadata.get("plain_name", field.name)


# --- Plain data to values ---


def parse_plain(hint: Any, value: Any, location: str = "") -> Any:
    """Restore a value from the plain data that :func:`convert_to_plain` made from it.

    Args:
        hint: Type of the value: a dataclass, typed dict, named tuple, tuple, mapping, union or enum;
            types can be nested. A typed dict may have undeclared keys.
        value: Plain data. None means NaN if the type is float.
        location: Source of the data for error messages: a file and field names.

    Returns:
        A value of the type.

    Raises:
        AttnProbeError: A value has another type, a field name is unknown, or a required field is
            missing.

    >>> parse_plain(tuple[float, ...], [0.5, None])
    (0.5, nan)
    """
    target_type = _select_type(value, hint)
    if target_type is float and value is None:
        return float("nan")
    if not _can_represent(value, target_type):
        raise _make_error(describe_type(hint), format_short(value), location)
    if hasattr(target_type, "parse"):
        return target_type.parse(value)
    if dataclasses.is_dataclass(target_type):
        return _parse_dataclass(target_type, value, location)
    if is_typeddict(target_type):
        return _parse_typed_dict(target_type, value, location)
    type_arguments = get_args(target_type)
    if isinstance(value, dict) and type_arguments:
        item_type = type_arguments[1]
        return {
            name: parse_plain(item_type, item, _extend_location(location, name))
            for name, item in value.items()
        }
    is_named_tuple = hasattr(target_type, "_fields")
    if isinstance(value, list) and (is_named_tuple or get_origin(target_type) is tuple):
        items = _parse_items(target_type, value, location)
        return target_type(*items) if is_named_tuple else tuple(items)
    is_enum = isinstance(target_type, type) and issubclass(target_type, Enum)
    return target_type(value) if is_enum else value


def _parse_items(target_type: Any, values: list[Any], location: str) -> list[Any]:
    """Parse the items of a list or tuple.

    In a tuple of fixed length, every item has a type of its own.
    """
    item_types = _get_item_types(target_type, len(values))
    if len(item_types) != len(values):
        raise _make_error(f"{len(item_types)} values", str(len(values)), location)
    return [
        parse_plain(item_type, item, f"{location} {number}".strip())
        for number, (item_type, item) in enumerate(zip(item_types, values, strict=True), 1)
    ]


def _parse_dataclass(data_class: Any, value: Mapping[str, Any], location: str) -> Any:
    """Create an instance of a dataclass from its parsed fields."""
    fields = {get_plain_name(field): field for field in dataclasses.fields(data_class)}
    for name, field in fields.items():
        has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if not has_default and name not in value:
            raise _make_error("a value", "none", _extend_location(location, name))
    field_types = get_field_types(data_class)
    arguments = {}
    for name, item in value.items():
        if name not in fields:
            raise _make_error(f"one of {', '.join(fields)}", format_short(name), location)
        field_name = fields[name].name
        arguments[field_name] = parse_plain(
            field_types[field_name], item, _extend_location(location, name)
        )
    return data_class(**arguments)


def _parse_typed_dict(target_type: Any, value: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Parse the declared keys of a typed dict; values under other keys stay unchanged."""
    for name in sorted(target_type.__required_keys__ - value.keys()):
        raise _make_error("a value", "none", _extend_location(location, name))
    field_types = get_field_types(target_type)
    return {
        name: parse_plain(field_types.get(name, Any), item, _extend_location(location, name))
        for name, item in value.items()
    }


def parse_fields(data_class: Any, data: Mapping[str, Any], *excluded: str) -> dict[str, Any]:
    """Parse the field values of a dataclass from plain data.

    Args:
        data_class: The dataclass.
        data: Plain data by name. Keys that are not fields are ignored.
        excluded: Names of fields to skip, because the data do not contain them.

    Returns:
        Parsed values by field name.

    Raises:
        KeyError: A field is missing.
        AttnProbeError: See :func:`parse_plain`.
    """
    field_types = get_field_types(data_class)
    return {
        field.name: parse_plain(field_types[field.name], data[field.name], field.name)
        for field in dataclasses.fields(data_class)
        if field.name not in excluded
    }


def _extend_location(location: str, name: str) -> str:
    """Append a field name to a location text such as "recipes.yaml, sst"."""
    return f"{location}, {name}" if location else str(name)


def _make_error(expected: str, received: str, location: str) -> AttnProbeError:
    """Create an error that states the expected value, the received value, and the location."""
    prefix = f"{location}: " if location else ""
    return AttnProbeError(f"{prefix}expected {expected}, got {received}")


# --- Type hints ---


def list_alternatives(hint: Any) -> list[Any]:
    """List the types of a union without None; for any other type, list only this type.

    Args:
        hint: A type hint.

    >>> list_alternatives(int | None), list_alternatives(str)
    ([<class 'int'>], [<class 'str'>])
    """
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [target_type for target_type in get_args(hint) if target_type is not NoneType]


def _select_type(value: Any, hint: Any) -> Any:
    """Select the type in a union to which a plain value can be parsed.

    Args:
        value: Plain data.
        hint: A union of types, or a single type.

    Returns:
        The first suitable type; if there is none, the first type of the union.
    """
    if value is None and NoneType in get_args(hint):
        return NoneType
    alternatives = list_alternatives(hint)
    return next(
        (target_type for target_type in alternatives if _can_represent(value, target_type)),
        alternatives[0],
    )


def _can_represent(value: Any, target_type: Any) -> bool:
    """Check whether a plain value can be parsed to a type, without checking nested items."""
    if get_origin(target_type) is Literal:
        return value in get_args(target_type)
    # A bool is an instance of int, but does not count as a number.
    if isinstance(value, bool):
        return target_type in (bool, Any)
    return isinstance(value, _get_plain_types(target_type))


@cache
def _get_plain_types(target_type: Any) -> tuple[type, ...]:
    """Return the Python types of the plain values that can be parsed to a type.

    For example, a float can be parsed from a float or an int, and a path from a string.
    """
    origin = get_origin(target_type) or target_type
    if hasattr(target_type, "parse"):
        return (str,)
    if target_type in (None, NoneType):
        return (NoneType,)
    if target_type is float:
        return (float, int)
    if target_type is Path:
        return (str, Path)
    if target_type is Any or not isinstance(origin, type):
        return (object,)
    if dataclasses.is_dataclass(origin) or issubclass(origin, Mapping):
        return (Mapping,)
    if issubclass(origin, Enum):
        return (str, int)
    is_list = issubclass(origin, Sequence) and not issubclass(origin, str)
    return (list, tuple) if is_list else (origin,)


def _get_item_types(target_type: Any, n_items: int) -> list[Any]:
    """Return the type of every item in a tuple, list or named tuple with ``n_items`` items."""
    if hasattr(target_type, "_fields"):
        return list(get_field_types(target_type).values())
    type_arguments = get_args(target_type)
    has_fixed_length = get_origin(target_type) is tuple and type_arguments[-1] is not ...
    return list(type_arguments) if has_fixed_length else [type_arguments[0]] * n_items


def matches_type(value: Any, hint: Any) -> bool:
    """Check whether a value and its nested items match a type hint.

    Args:
        value: The value.
        hint: Type hint. A whole number also matches float.

    >>> matches_type(3, float), matches_type("3", int)
    (True, False)
    >>> matches_type(["a"], list[str] | None), matches_type(True, int)
    (True, False)
    """
    is_allowed_none = value is None and NoneType in get_args(hint)
    return is_allowed_none or any(
        _matches_single_type(value, target_type) for target_type in list_alternatives(hint)
    )


def _matches_single_type(value: Any, target_type: Any) -> bool:
    """Check whether a value and its items match a type that is not a union."""
    if dataclasses.is_dataclass(target_type) and isinstance(target_type, type):
        return isinstance(value, target_type)
    if not _can_represent(value, target_type):
        return False
    if not isinstance(value, list | tuple) or not get_args(target_type):
        return True
    item_types = _get_item_types(target_type, len(value))
    return len(item_types) == len(value) and all(map(matches_type, value, item_types))


def describe_type(hint: Any) -> str:
    """Describe a type in words, for error messages.

    Args:
        hint: A type hint.

    >>> describe_type(int | None), describe_type(tuple[float, ...] | None)
    ('a whole number', 'a list of numbers')
    >>> describe_type(Literal["a", "b"])
    'a or b'
    """
    alternatives = list_alternatives(hint)
    if len(alternatives) > 1:
        return " or ".join(dict.fromkeys(map(describe_type, alternatives)))
    target_type = alternatives[0]
    if get_origin(target_type) is Literal:
        return " or ".join(map(str, get_args(target_type)))
    plain_types = _get_plain_types(target_type)
    if Mapping in plain_types:
        return TYPE_DESCRIPTIONS[dict]
    if list in plain_types and get_args(target_type):
        item_description = describe_type(get_args(target_type)[0])
        if not item_description.startswith("a ") or " or " in item_description:
            return "a list"
        # Make the plural, for example "numbers" from "a number".
        item_noun = item_description.removeprefix("a ").removesuffix("s")
        return f"a list of {item_noun}s"
    if target_type in TYPE_DESCRIPTIONS:
        return TYPE_DESCRIPTIONS[target_type]
    is_text = (
        not isinstance(target_type, type)
        or issubclass(target_type, Enum)
        or hasattr(target_type, "parse")
    )
    return "a text" if is_text else target_type.__name__


def format_short(value: Any) -> str:
    """Format a value for an error message: its ``repr``, truncated if it is long.

    Args:
        value: Any value.

    Returns:
        A text of at most `MAX_DISPLAY_LENGTH` characters and an ellipsis.

    >>> format_short("a"), format_short(10**6000)
    ("'a'", 'a whole number of more than 80 digits')
    """
    if isinstance(value, int) and abs(value) >= 10**MAX_DISPLAY_DIGITS:
        return f"a whole number of more than {MAX_DISPLAY_DIGITS} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # The value contains a huge integer, or is nested too deeply.
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_DISPLAY_LENGTH else f"{text[:MAX_DISPLAY_LENGTH]}…"
