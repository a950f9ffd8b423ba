"""Options as frozen dataclasses: one definition for Python, command line, study file and metric.

    @dataclass(frozen=True)
    class Permutation(Options):
        n_permutations: int = option(100, "random shuffles per text", at_least=1)

A field carries its help text and its range. Values are checked when the object is made,
so a wrong one is refused wherever it came from.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hf_attnprobe.errors import AttnProbeError


T = TypeVar("T", bound="Options")
LARGEST = 2**63 - 1
"""The largest number of any option: tensors and tables hold no larger whole one."""
LARGEST_SEED = 2**32 - 1
"""NumPy's generators, which every training seeds, take no larger one."""
LONGEST_PART = 255
"""Bytes of the name of a file or a folder, in all file systems of today."""


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    metavar: str | None = None,
    secret: bool = False,
) -> Any:
    """A field of an :class:`Options` dataclass.

    Args:
        default: leave it out for a required option.
        help: one line, shown by the command line and in the documentation.
        at_least: smallest number allowed, for the items of a list too.
        at_most: largest number allowed, likewise: what is absurd in itself is refused
            before memory is asked for.
        metavar: the name of the value in the command line's help.
        secret: whether the value is never shown.

    Choices are stated in the type, as ``Literal["deletion", "mask"]``.
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "metavar": metavar,
    }
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclasses.dataclass(frozen=True)
class Options:
    """Base class of all options. Subclasses are frozen dataclasses.

    Raises:
        AttnProbeError: a value of the wrong type, outside its range or not among its choices.
    """

    def __post_init__(self) -> None:
        hints = hints_of(type(self))  # type: ignore[arg-type]  # a class has a hash
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not fits(value, hints[field.name]):
                expected = describe(hints[field.name])
                raise AttnProbeError(f"expected {expected} for {field.name}, got {in_short(value)}")
            check_at_least(field.metadata.get("at_least"), **{field.name: value})
            check_at_most(field.metadata.get("at_most"), **{field.name: value})


@cache
def hints_of(kind: type[Options]) -> dict[str, Any]:
    """The types of a class's fields; a study makes the same options thousands of times."""
    return get_type_hints(kind)


def in_short(value: Any) -> str:
    """A value in an error's line: its repr, cut where it is long.

    >>> in_short("a"), in_short(10**6000)
    ("'a'", 'a whole number of more than 80 digits')
    """
    if isinstance(value, int) and abs(value) >= 10**80:
        return "a whole number of more than 80 digits"
    try:
        said = repr(value)
    except (ValueError, RecursionError):  # such a number, or such nesting, inside it
        said = f"a {type(value).__name__}"
    return said if len(said) <= 200 else f"{said[:200]}…"


def names_of(kinds: Sequence[type[Options]]) -> dict[str, dataclasses.Field]:
    """The fields of several option classes by name; a name they share means the same."""
    return {field.name: field for kind in kinds for field in dataclasses.fields(kind)}


def from_flat(values: Mapping[str, Any], kind: type[T]) -> T:
    """The options of ``kind`` among values by name; other names are left alone."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def check_known(values: Mapping[str, Any], kinds: Sequence[type[Options]]) -> None:
    """Raises AttnProbeError where a name belongs to none of ``kinds``."""
    known = names_of(kinds)
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise AttnProbeError(f"expected options of {', '.join(sorted(known))}, got {unknown[0]!r}")


def check_at_least(least: float | None, **values: Any) -> None:
    """Raises AttnProbeError where a number is below ``least``; None was not given."""
    if least is None:
        return
    for name, value in values.items():
        items = value if isinstance(value, list | tuple) else [value]
        for item in items:
            if item is not None and not item >= least:
                raise AttnProbeError(f"{name} must be at least {least:g}, got {in_short(item)}")


def check_at_most(most: float | None, **values: Any) -> None:
    """Raises AttnProbeError where a number is above ``most``, or none that is finite.

    Without ``most`` it must be within ± :data:`LARGEST`.
    """
    bound = LARGEST if most is None else most
    for name, value in values.items():
        items = value if isinstance(value, list | tuple) else [value]
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int | float):
                continue
            if isinstance(item, float) and not math.isfinite(item):
                raise AttnProbeError(f"expected a finite number for {name}, got {item}")
            if not -LARGEST <= item <= bound:
                limit = f"at most {bound:,}" if item > 0 else f"at least {-LARGEST:,}"
                raise AttnProbeError(f"{name} must be {limit}, got {in_short(item)}")


def check_name(what: str, name: str) -> None:
    """Raises AttnProbeError where no file system and no Hub can know a name.

    Args:
        what: the option that it was given for.
        name: a path or an id.
    """
    longest = max(len(part.encode(errors="replace")) for part in name.split("/"))
    if longest > LONGEST_PART or "\0" in name:
        raise AttnProbeError(
            f"expected a path or an id for {what}, of at most {LONGEST_PART} bytes "
            f"between its /, got {in_short(name)}"
        )


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that an option declares.

    >>> fits(3, float), fits("3", int), fits(["a"], Sequence[str] | None), fits(True, int)
    (True, False, True, False)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, kind) for kind in inner)
    if origin is Literal:
        return value in inner
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    if origin is not None:
        return isinstance(value, list | tuple) and all(fits(v, inner[0]) for v in value)
    if hint in (None, NoneType):
        return value is None
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float)
    if hint is Path:
        return isinstance(value, str | Path)
    return not isinstance(hint, type) or isinstance(value, hint)


def describe(hint: Any) -> str:
    """The declared type in words.

    >>> describe(int | None), describe(Sequence[float] | None), describe(Literal["a", "b"])
    ('a whole number', 'a list of numbers', 'a or b')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [describe(kind) for kind in inner if kind is not NoneType]
        return " or ".join(dict.fromkeys(kinds))
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin is not None:
        item = describe(inner[0]).split(" ", 1)[-1].removesuffix("s")
        return f"a list of {item}s"
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    return words.get(hint, "a text")
