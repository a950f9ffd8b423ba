"""Plain data for JSON, and what a result was made with."""

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from hf_attnprobe import markdown
from hf_attnprobe.errors import AttnProbeError


Result = TypeVar("Result")


def plain(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, enums as their values, NaN as None.

    A field may have another name there: ``field(metadata={"written_as": "mean"})``.

    >>> plain({"ci95": (0.5, float("nan"))})
    {'ci95': [0.5, None]}
    """
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


def values_from_plain(value: Any) -> Any:
    """Lists as tuples, None as NaN.

    >>> values_from_plain([0.5, None, "a"])
    (0.5, nan, 'a')
    """
    if isinstance(value, list):
        return tuple(map(values_from_plain, value))
    return float("nan") if value is None else value


def from_plain(kind: type[Result], written: Mapping) -> Result:
    """A dataclass from what :func:`plain` made of it.

    None is NaN again, except in fields that are declared to take None.
    """
    hints = get_type_hints(kind)
    optional = {name for name, hint in hints.items() if NoneType in get_args(hint)}
    names = {written_as(field): field.name for field in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for given, value in written.items():
        name = names.get(given, given)
        kept = value is None and name in optional
        values[name] = None if kept else values_from_plain(value)
    return kind(**values)


# --- Where numbers come from: the versions of what computed them, and the stored summary ---------

SUMMARY = "summary.json"

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError)
"""What a torn or foreign summary raises, in reading or in parsing."""
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute the numbers, by name."""
    found = {name: version(name) for name in PACKAGES}
    return found | {"python": platform.python_version()}


def provenance_section(provenance: Mapping) -> list[str]:
    """The section of a Markdown report that says where its numbers come from."""
    lines = [f"{name}: {in_words(value)}" for name, value in provenance.items()]
    return ["", "## provenance", "", *markdown.bullets(lines)]


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
