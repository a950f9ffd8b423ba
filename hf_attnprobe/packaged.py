"""Data that stands beside the code: YAML files of the package, checked when they are read."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import yaml


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_packaged(file: Path, kind: Any) -> Any:
    """The content of a YAML file as values of a type.

    Args:
        file: of the package.
        kind: the type of its content: a dataclass, a mapping, a tuple, a text, a number, a truth
            value, or several of them. Lists become tuples, and mappings dataclasses where the
            type says so.

    Raises:
        ValueError: a value of another type, a key that the dataclass does not know, or one that
            it needs and that is not there. It names the file and the key.
    """
    content = yaml.load(file.read_text(encoding="utf-8"), LOADER)  # nosec B506: a safe loader
    return _converted(content, kind, file.name)


def _converted(value: Any, kind: Any, place: str) -> Any:
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        kind = next((one for one in inner if isinstance(value, _plain(one))), inner[0])
        inner = get_args(kind)
    if not isinstance(value, _plain(kind)):
        expected = " or ".join(one.__name__ for one in _plain(kind))
        raise ValueError(f"{place}: expected {expected}, got {str(value)[:100]!r}")
    if is_dataclass(kind):
        return _made(value, kind, place)
    if isinstance(value, dict):
        return {key: _converted(v, inner[1], f"{place}, {key}") for key, v in value.items()}
    if isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            raise ValueError(f"{place}: expected {len(kinds)} values, got {len(value)}")
        return tuple(_converted(v, one, place) for v, one in zip(value, kinds, strict=True))
    return value


def _plain(kind: Any) -> tuple[type, ...]:
    """The types that a value has in YAML where it stands for one of ``kind``."""
    if is_dataclass(kind) or get_origin(kind) is Mapping:
        return (dict,)
    if get_origin(kind) is tuple:
        return (list,)
    return {float: (float, int), None: (NoneType,)}.get(kind, (kind,))


def _made(value: Any, kind: Any, place: str) -> Any:
    """A dataclass of named values."""
    known = {field.name: field for field in fields(kind)}
    for name in value.keys() - known:
        raise ValueError(f"{place}, {name}: expected one of {', '.join(known)}")
    for name, field in known.items():
        if name not in value and field.default is field.default_factory is MISSING:
            raise ValueError(f"{place}, {name}: expected a value, got none")
    kinds = get_type_hints(kind)
    return kind(**{k: _converted(v, kinds[k], f"{place}, {k}") for k, v in value.items()})
