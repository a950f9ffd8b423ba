"""How a result was made, in words, and the summary that a finished run left."""

import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.plain_data import read_json


Result = TypeVar("Result")


def in_words(value: Any) -> str:
    """Nested plain data on one line.

    >>> in_words({"permutation": {"n_permutations": 100}, "layers": [0, 1]})
    'permutation (n_permutations 100), layers 0 1'
    """
    if isinstance(value, Mapping):
        return ", ".join(
            _pair_in_words(name, inner) for name, inner in value.items()
        )
    if isinstance(value, list | tuple):
        return " ".join(map(in_words, value)) or "none"
    return "none" if value is None else str(value)


def _pair_in_words(name: str, value: Any) -> str:
    words = in_words(value)
    return (
        f"{name} ({words})" if isinstance(value, Mapping) else f"{name} {words}"
    )


# --- Where numbers come from: the versions of what computed them, and the stored summary ---------

SUMMARY = "summary.json"

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError)
"""What a foreign summary raises where it is parsed."""
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


class Provenance(TypedDict, total=False):
    """How a result was made, as far as a report reads it; there may be more."""

    model_fingerprint: str
    data_fingerprint: str | dict[str, str]  # or of each split
    options: dict[str, dict[str, Any]]
    sites: dict[str, Any]
    head_sets: tuple[str, ...]
    prediction: dict[str, Any]
    tests: tuple[str, ...]
    classes: tuple[str, ...]
    asked_for: dict[str, Any]
    architecture: dict[str, Any]
    versions: dict[str, str]
    attention: str | None
    text_columns: str | None
    dtype: str
    sharpness: float
    segment: str | None
    unit_of_number: str
    skipped_empty: int
    truncated: int
    unknown_tokens: float
    notes: tuple[str, ...]


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
    """Reads the summary in a finished run's folder.

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
    again = f"run {verb} again"
    data = read_json(file, dict[str, Any], again)
    check(data, str(file))
    try:
        return parse(data)
    except UNREADABLE as error:
        raise AttnProbeError(
            f"cannot read {file} ({error}); {again}"
        ) from error
