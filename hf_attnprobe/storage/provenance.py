"""How a result was made: versions, summary, options that differ from the defaults, shown texts.

Options are data, and the command that repeats a verb. Secrets are never recorded.
"""

import dataclasses
import json
import os
import platform
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import DEFAULT, Options, as_text
from hf_attnprobe.core.serialization import from_plain, plain, read_json
from hf_attnprobe.data.specs import Data
from hf_attnprobe.plots.shown_text import ShownText
from hf_attnprobe.storage.folders import write_json


Result = TypeVar("Result")


def in_words(value: Any) -> str:
    """Nested plain data on one line.

    >>> in_words({"permutation": {"n_permutations": 100}, "layers": [0, 1]})
    'permutation (n_permutations 100), layers 0 1'
    """
    if isinstance(value, Mapping):
        pairs = []
        for name, inner in value.items():
            words = in_words(inner)
            pairs.append(f"{name} ({words})" if isinstance(inner, Mapping) else f"{name} {words}")
        return ", ".join(pairs)
    if isinstance(value, list | tuple):
        return " ".join(map(in_words, value)) or "none"
    return "none" if value is None else str(value)


def flat(settings: Mapping, before: str = "") -> Iterator[tuple[str, str]]:
    """Yields nested settings one by one, with the names on the way.

    >>> [*flat({"options": {"permutation": {"n_permutations": 100}}})]
    [('options: permutation: n permutations', '100')]
    """
    for name, value in settings.items():
        named = f"{before}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{named}: ")
        else:
            yield named, in_words(value)


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
        raise AttnProbeError(f"cannot read {file} ({error}); {again}") from error


# --- What was asked for: the options of a verb that differ from the defaults ---

WITHOUT_EFFECT = ("batch_size", "memory_budget")
"""Options of an audit that change no number."""
OBJECT = "an object in Python"


def asked_for(
    model: Any,
    data: Data,
    options: Options,
    tests: Mapping[str, Options],
    usual: Mapping[str, Options],
    *,
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """The options of a verb that differ from the defaults, by the name of their flag.

    A model or data set that is an object is recorded as being one.

    Args:
        model: a :class:`~hf_attnprobe.core.options.SavedModel`, a name, or an object.
        tests: the tests that were asked for, with their options.
        usual: the options of tests of which nothing is said, by name of the test.
        leave_out: arguments that mean nothing to the verb, or change no number.
    """
    said = {
        name: {} if name == DEFAULT else _changed(given, usual[name])
        for name, given in tests.items()
    }
    is_saved = isinstance(model, Options)
    return {
        **(_changed(model) if is_saved else {"model": named(model)}),
        "dataset": named(data.dataset),
        **_changed(data, leave_out=("dataset", *leave_out)),
        **_changed(options, leave_out=leave_out),
        **({} if said in ({}, {DEFAULT: {}}) else {"tests": said}),
    }


def named(thing: Any) -> str:
    """A path or a name; of an object that it is one."""
    return os.fspath(thing) if isinstance(thing, str | os.PathLike) else OBJECT


def _changed(
    options: Options,
    usual: Options | None = None,
    *,
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """Fields that are not the usual ones, which are the defaults; no secret ones."""
    changed = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        expected = field.default if usual is None else getattr(usual, field.name)
        if field.repr and field.name not in leave_out and value != expected:
            changed[field.name] = _plain(value)
    return changed


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return list(value) if isinstance(value, list | tuple) else value


def repeating(verb: str, provenance: Mapping[str, Any], **changed: Any) -> str:
    """Returns the line for a shell that repeats a verb, by its report's provenance.

    Args:
        changed: arguments with other values than they had.
    """
    asked = {**provenance["asked_for"], **changed}
    said = asked.pop("tests", {})
    values = [
        f"{test}.{name}={as_text(value)}"
        for test, options in said.items()
        for name, value in options.items()
    ]
    flags = _flags(asked | {"tests": [*said] or None, "set": values or None})
    return shlex.join(["attnprobe", verb, *flags])


def _flags(asked: Mapping[str, Any]) -> list[str]:
    """Values by name as flags; true and false as the flag alone."""
    flags: list[str] = []
    for name, value in asked.items():
        flag = name.replace("_", "-")
        if value is True:
            flags.append(f"--{flag}")
        elif value is False:
            flags.append(f"--no-{flag}")
        elif value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            flags += [f"--{flag}", *map(str, values)]
    return flags


def is_repeatable(provenance: Mapping[str, Any]) -> bool:
    """Whether model and data have names that a command can be given."""
    asked = provenance["asked_for"]
    return OBJECT not in (asked["model"], asked["dataset"], asked.get("scores"))


# --- Shown texts: ``texts.json`` in the folder of an audit ---

TEXTS = "texts.json"


def write_texts(folder: Path, texts: Sequence[ShownText]) -> None:
    """Writes the texts that an audit shows into its folder, all or none."""
    write_json(folder / TEXTS, {"texts": plain(texts)})


def read_texts(folder: Path) -> tuple[ShownText, ...]:
    """The texts in an audit's folder; none where it has none that can be read."""
    try:
        held = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
        return tuple(map(text_from_plain, held["texts"]))
    except (OSError, *UNREADABLE):
        return ()


def text_from_plain(data: Mapping[str, Any]) -> ShownText:
    """The inverse of ``plain``."""
    text = from_plain(ShownText, data)
    if "attention" not in text.scores:
        raise ValueError(f"expected attention in text {text.example_id}")
    known = {name: n for name, n in text.numbers.items() if n == n}
    return dataclasses.replace(text, numbers=known)
