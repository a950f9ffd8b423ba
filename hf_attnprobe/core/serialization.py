"""Conversion between dataclasses and plain data (JSON and YAML), driven by type hints.

:func:`convert_to_plain` converts a dataclass to dicts, lists and numbers. :func:`parse_plain` converts them back,
and names the field in an error if a value has another type than the hint of its field. It reads the
YAML files of this package and the summaries of finished runs.

:func:`matches_type` and :func:`describe_type` check values of options by their type hints.
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
"""Safe YAML loader, implemented in C if that is installed."""
MAX_DISPLAY_LENGTH = 200
"""Maximum length of a value in an error message, in characters."""
MAX_DISPLAY_DIGITS = 80
"""Maximum length of an integer in an error message, in digits."""
TYPE_DESCRIPTIONS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a text",
    list: "a list",
    dict: "names with values",
}
"""Names of types in error messages."""


@cache
def get_field_types(data_class: Any) -> dict[str, Any]:
    """Return the type hints of the fields of a class by name; results are cached."""
    return get_type_hints(data_class)


def read_package_yaml(file: Path, hint: Any) -> Any:
    """Read a YAML file that is part of this package.

    Args:
        file: File path.
        hint: Type of its content, see :func:`parse_plain`.

    Returns:
        A value of this type.
    """
    content = yaml.load(file.read_text(encoding="utf-8"), YAML_LOADER)  # nosec B506: a safe loader
    return parse_plain(hint, content, file.name)


def read_json(file: Path, hint: Any, advice: str) -> Any:
    """Read a JSON file.

    Args:
        file: File path.
        hint: Type of its content, see :func:`parse_plain`.
        advice: What the user can do if the file cannot be read, for the error message.

    Returns:
        A value of this type.

    Raises:
        AttnProbeError: The file does not exist, is not JSON, or has content of another type.
    """
    try:
        return parse_plain(hint, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise AttnProbeError(f"cannot read {file} ({error}); {advice}") from error


# --- Values to plain data ---


def convert_to_plain(value: Any) -> Any:
    """Convert a value to plain data that JSON can store.

    Dataclasses become dicts, tuples become lists, enums become their values, and NaN becomes None. A
    field can be renamed with ``field(metadata={"plain_name": "mean"})``. An object with a method
    ``parse``, such as the name of a data set, becomes its text.

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
        excluded: Field names to leave out, for example because other files store them.

    Returns:
        Plain data by name.
    """
    return {
        get_plain_name(field): convert_to_plain(getattr(value, field.name))
        for field in dataclasses.fields(value)
        if field.name not in excluded
    }


def get_plain_name(field: dataclasses.Field) -> str:
    """Return the name of a dataclass field in plain data."""
    return field.metadata.get("plain_name", field.name)


# --- Plain data to values ---


def parse_plain(hint: Any, value: Any, location: str = "") -> Any:
    """Restore a value from the plain data that :func:`convert_to_plain` made from it.

    Args:
        hint: Type of the value: a dataclass, typed dict, named tuple, tuple, mapping, union or enum,
            and nested types. A typed dict may have further keys.
        value: Plain data. None means NaN if the type is float.
        location: Where the data come from, for error messages: a file and the names of the fields.

    Returns:
        A value of the type.

    Raises:
        AttnProbeError: A value has another type, a dataclass does not have a field of this name, or
            a required field is missing.

    >>> parse_plain(tuple[float, ...], [0.5, None])
    (0.5, nan)
    """
    kind = _select_type(value, hint)
    if kind is float and value is None:
        return float("nan")
    if not _can_represent(value, kind):
        raise _make_error(describe_type(hint), format_short(value), location)
    if hasattr(kind, "parse"):
        return kind.parse(value)
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, value, location)
    if is_typeddict(kind):
        return _parse_typed_dict(kind, value, location)
    type_arguments = get_args(kind)
    if isinstance(value, dict) and type_arguments:
        item_type = type_arguments[1]
        return {
            name: parse_plain(item_type, item, _extend_location(location, name))
            for name, item in value.items()
        }
    is_named_tuple = hasattr(kind, "_fields")
    if isinstance(value, list) and (is_named_tuple or get_origin(kind) is tuple):
        items = _parse_items(kind, value, location)
        return kind(*items) if is_named_tuple else tuple(items)
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    return kind(value) if is_enum else value


def _parse_items(kind: Any, values: list[Any], location: str) -> list[Any]:
    """Parse the items of a tuple type."""
    item_types = _get_item_types(kind, len(values))
    if len(item_types) != len(values):
        raise _make_error(f"{len(item_types)} values", str(len(values)), location)
    return [
        parse_plain(item_type, item, f"{location} {number}".strip())
        for number, (item_type, item) in enumerate(zip(item_types, values, strict=True), 1)
    ]


def _parse_dataclass(data_class: Any, value: Mapping[str, Any], location: str) -> Any:
    """Parse the fields of a dataclass and create an instance."""
    fields = {get_plain_name(field): field for field in dataclasses.fields(data_class)}
    for name, field in fields.items():
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if is_required and name not in value:
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


def _parse_typed_dict(kind: Any, value: Mapping[str, Any], location: str) -> dict[str, Any]:
    """Parse the values that a typed dict declares, and keep the others as they are."""
    for name in sorted(kind.__required_keys__ - value.keys()):
        raise _make_error("a value", "none", _extend_location(location, name))
    field_types = get_field_types(kind)
    return {
        name: parse_plain(field_types.get(name, Any), item, _extend_location(location, name))
        for name, item in value.items()
    }


def parse_fields(data_class: Any, data: Mapping[str, Any], *excluded: str) -> dict[str, Any]:
    """Parse the fields of a dataclass from plain data that may contain further values.

    Args:
        data_class: The dataclass.
        data: Plain data by name.
        excluded: Field names that are not in the data.

    Returns:
        Values of the fields by name.

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
    """Append the name of a field to the location of the data."""
    return f"{location}, {name}" if location else str(name)


def _make_error(expected: str, received: str, location: str) -> AttnProbeError:
    """Return the error for a value of another type than expected."""
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
    return [kind for kind in get_args(hint) if kind is not NoneType]


def _select_type(value: Any, hint: Any) -> Any:
    """Return the first type of a union that fits plain data, or the first type if none fits."""
    if value is None and NoneType in get_args(hint):
        return NoneType
    alternatives = list_alternatives(hint)
    return next((kind for kind in alternatives if _can_represent(value, kind)), alternatives[0])


def _can_represent(value: Any, kind: Any) -> bool:
    """Return whether plain data can represent a type; items inside are not checked."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    # In Python, a bool is also an int.
    if isinstance(value, bool):
        return kind in (bool, Any)
    return isinstance(value, _get_plain_types(kind))


@cache
def _get_plain_types(kind: Any) -> tuple[type, ...]:
    """Return the types of plain data that represent a type."""
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


def _get_item_types(kind: Any, n_items: int) -> list[Any]:
    """Return the type of each item of a tuple, list or named tuple type."""
    if hasattr(kind, "_fields"):
        return list(get_field_types(kind).values())
    type_arguments = get_args(kind)
    has_fixed_length = get_origin(kind) is tuple and type_arguments[-1] is not ...
    return list(type_arguments) if has_fixed_length else [type_arguments[0]] * n_items


def matches_type(value: Any, hint: Any) -> bool:
    """Return whether a value has the type that an option declares.

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
        _matches_single_type(value, kind) for kind in list_alternatives(hint)
    )


def _matches_single_type(value: Any, kind: Any) -> bool:
    """Return whether a value, including its items, has a type that is not a union."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return isinstance(value, kind)
    if not _can_represent(value, kind):
        return False
    if not isinstance(value, list | tuple) or not get_args(kind):
        return True
    item_types = _get_item_types(kind, len(value))
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
    kind = alternatives[0]
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    plain_types = _get_plain_types(kind)
    if Mapping in plain_types:
        return TYPE_DESCRIPTIONS[dict]
    if list in plain_types and get_args(kind):
        item = describe_type(get_args(kind)[0])
        if not item.startswith("a ") or " or " in item:
            return "a list"
        return f"a list of {item.split(' ', 1)[1].removesuffix('s')}s"
    if kind in TYPE_DESCRIPTIONS:
        return TYPE_DESCRIPTIONS[kind]
    is_text = not isinstance(kind, type) or issubclass(kind, Enum) or hasattr(kind, "parse")
    return "a text" if is_text else kind.__name__


def format_short(value: Any) -> str:
    """Format a value for an error message: its ``repr``, truncated if it is long.

    Args:
        value: Any value.

    Returns:
        A text of at most about `MAX_DISPLAY_LENGTH` characters.

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
