"""Provenance of results: recorded settings, versions and summaries, and the command to repeat a run.

- :func:`collect_settings` returns the options of a command that differ from their defaults, without
  secrets. :func:`format_repeat_command` converts them back to a command.
- :func:`read_summary` reads ``summary.json`` in the folder of a finished run.
- :func:`write_texts` and :func:`read_texts` write and read the example texts of an audit.
"""

import dataclasses
import json
import math
import os
import platform
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import DEFAULT_TESTS, Options, format_option_value
from hf_attnprobe.core.serialization import convert_to_plain, parse_plain, read_json
from hf_attnprobe.data.specs import Data
from hf_attnprobe.plots.highlighted_text import HighlightedText
from hf_attnprobe.storage.folders import write_json


Result = TypeVar("Result")


# --- Settings as text ---


def format_settings(value: Any) -> str:
    """Format nested settings on one line.

    Args:
        value: Dicts, lists, strings, numbers, booleans or None.

    >>> format_settings({"permutation": {"n_permutations": 100}, "layers": [0, 1]})
    'permutation (n_permutations 100), layers 0 1'
    """
    if isinstance(value, Mapping):
        parts = []
        for name, item in value.items():
            text = format_settings(item)
            parts.append(f"{name} ({text})" if isinstance(item, Mapping) else f"{name} {text}")
        return ", ".join(parts)
    if isinstance(value, list | tuple):
        return " ".join(map(format_settings, value)) or "none"
    return "none" if value is None else str(value)


def flatten_settings(settings: Mapping, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested settings to pairs of a path and a value, both as text.

    Args:
        settings: Settings by name; a value can be a mapping again.
        prefix: Text in front of every path, such as "options: ".

    Yields:
        Pairs (path, value) for the innermost settings.

    >>> [*flatten_settings({"options": {"permutation": {"n_permutations": 100}}})]
    [('options: permutation: n permutations', '100')]
    """
    for name, value in settings.items():
        path = f"{prefix}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{path}: ")
        else:
            yield path, format_settings(value)


# --- Summaries of finished runs ---

AUDIT_FILE = "audit.json"
"""Name of the file with an audit's identity, which marks its output folder."""
SUMMARY_FILE = "summary.json"
"""Name of the file with the summary of a finished run, in its output folder."""
PARSE_ERRORS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions that parsing raises if a stored file does not have the expected structure.

A RecursionError is raised for JSON with thousands of nested lists.
"""
RECORDED_PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")
"""Packages whose versions are recorded with every result, because results depend on them."""


DISTINCT_TEXTS_KEY = "different_texts"
"""Provenance key of the number of different texts, if a text occurs several times in the data."""

EARLIER_RUNS_KEY = "earlier_runs"
"""Provenance key of the settings of earlier runs in the same output folder.

It only lists settings that differ from those of the last run, and is missing if there are none.
"""
FITTED_MAP_KEY = "fitted_map"
"""Provenance key of the fitted attention map that an audit compared with attention.

Its entries are the name of the ranking in the rows, the description of the map, and the certificate.
"""
SCORES_FINGERPRINT_KEY = "scores_fingerprint"
"""Provenance key of the fingerprint of user-provided scores. Only audits of such scores have it."""
UNSUPPORTED_TESTS_KEY = "unsupported_tests"
"""Provenance key of the tests that a verdict usually requires, but that the model cannot run.

Each test is mapped to the reason. There is no such entry if the model can run all of them.
"""


class Provenance(TypedDict, total=False):
    """Provenance keys that reports read; the recorded provenance can have further keys.

    Attributes:
        model_fingerprint: Hash of the model weights.
        data_fingerprint: Hash of the data set, or hashes of its splits by split name.
        different_texts: Number of different texts; only if a text occurs several times.
        unsupported_tests: Reasons for tests that a verdict usually requires, but that the model cannot
            run, by test name.
        fitted_map: Ranking, description and certificate of the attention map of ``--map``.
        options: Options of each test, by test name.
        sites: Tested layers and heads.
        head_sets: Names of tested head sets.
        prediction: Description of the predictions, such as classes or numbers.
        tests: Test names.
        classes: Class names.
        earlier_runs: Command options of earlier runs in the same folder, if they were different.
        asked_for: Command options that differ from their defaults, see `collect_settings`.
        architecture: Description of the model architecture.
        versions: Python and package versions, see `get_versions`.
        attention: Attention type.
        text_columns: Names of the data set columns that contain the texts.
        dtype: Number format for the computation, such as "float32".
        sharpness: Factor on the logits for the standard temperature.
        noise_floor: Largest difference between losses of an answer, in nats, that rounding alone
            causes; only for language models in half precision.
        segment: The tested text in each pair; None for both texts.
        unit_of_number: Unit in which a regression model predicts.
        instance: Name of one instance, such as "patch"; only if the inputs are bags or images.
        input: Name of one input, "image"; only if the inputs are images.
        n_available: Number of texts in the data set, before a limit on the number of texts.
        skipped_empty: Number of texts without tokens, which were skipped.
        truncated: Number of texts that were cut because they are too long for the model.
        truncated_tokens: Number of tokens of these texts before they were cut.
        truncated_tokens_read: Number of tokens of these texts that the model read.
        max_length: Maximum number of tokens that the model reads; only if texts were cut.
        unknown_tokens: Share of tokens that are not in the vocabulary.
        notes: Remarks for the report.
    """

    model_fingerprint: str
    data_fingerprint: str | dict[str, str]
    different_texts: int
    unsupported_tests: dict[str, str]
    fitted_map: dict[str, str]
    options: dict[str, dict[str, Any]]
    sites: dict[str, Any]
    head_sets: tuple[str, ...]
    prediction: dict[str, Any]
    tests: tuple[str, ...]
    classes: tuple[str, ...]
    asked_for: dict[str, Any]
    earlier_runs: list[dict[str, Any]]
    architecture: dict[str, Any]
    versions: dict[str, str]
    attention: str | None
    text_columns: str | None
    dtype: str
    sharpness: float
    noise_floor: float
    segment: str | None
    unit_of_number: str
    instance: str
    input: str
    n_available: int
    skipped_empty: int
    truncated: int
    truncated_tokens: int
    truncated_tokens_read: int
    max_length: int
    unknown_tokens: float
    notes: tuple[str, ...]


def get_versions() -> dict[str, str]:
    """Return the installed versions of Python and `RECORDED_PACKAGES`, by name."""
    package_versions = {name: version(name) for name in RECORDED_PACKAGES}
    return package_versions | {"python": platform.python_version()}


def read_summary(
    folder: str | Path,
    parse: Callable[[dict[str, Any]], Result],
    *,
    run_name: str,
    verb: str,
    check: Callable[[Mapping[str, Any], str], None] = lambda data, source: None,
) -> Result:
    """Read the summary of a finished run from its output folder.

    Args:
        folder: Output folder.
        parse: Function that creates the result from the summary data.
        run_name: Name of the run with an article for error messages, such as "an audit".
        verb: Command that creates the summary for error messages, such as "the audit".
        check: Function that takes the data and the file name, and raises an error if this version
            cannot parse the summary.

    Returns:
        The result that ``parse`` creates.

    Raises:
        AttnProbeError: There is no summary, or it cannot be read.
    """
    file = Path(folder) / SUMMARY_FILE
    if not file.is_file():
        raise AttnProbeError(
            f"expected {run_name} in {folder}, but the file {SUMMARY_FILE} is missing. Wait until "
            f"{verb} has finished, or run it again."
        )
    data = read_json(file, dict[str, Any], f"Run {verb} again.")
    check(data, str(file))
    try:
        return parse(data)
    except PARSE_ERRORS as error:
        raise AttnProbeError(f"cannot read {file} ({error}). Run {verb} again.") from error


# --- Settings of a command, and the command to repeat it ---

PERFORMANCE_OPTIONS = ("batch_size", "memory_budget")
"""Names of the audit options that affect only performance (speed and memory), not the results."""
OBJECT_NAME = "an object in Python"
"""Name that is recorded for a model or data set that was passed as a Python object."""


def collect_settings(
    model: Any,
    data: Data,
    options: Options,
    tests: Mapping[str, Options],
    default_options: Mapping[str, Options],
    *,
    excluded: Collection[str] = (),
) -> dict[str, Any]:
    """Collect the options of a command that differ from their defaults.

    Args:
        model: A :class:`~hf_attnprobe.core.options.SavedModel`, a name, or an object. For an object
            only `OBJECT_NAME` is recorded.
        data: The data set with its options.
        options: Options of the command.
        tests: The selected tests with their options.
        default_options: Default options of the tests, by test name.
        excluded: Options that the command does not use or that do not change results.

    Returns:
        Values by option name; "tests" contains the changed options by test name.
    """
    if isinstance(model, Options):
        settings = _collect_changes(model)
    else:
        settings = {"model": get_recorded_name(model)}
    settings["dataset"] = get_recorded_name(data.dataset)
    settings |= _collect_changes(data, excluded=("dataset", *excluded))
    settings |= _collect_changes(options, excluded=excluded)
    changed_test_options: dict[str, dict[str, Any]] = {}
    for name, test_options in tests.items():
        if name == DEFAULT_TESTS:
            changed_test_options[name] = {}
        else:
            changed_test_options[name] = _collect_changes(test_options, default_options[name])
    selects_default_tests = changed_test_options in ({}, {DEFAULT_TESTS: {}})
    if not selects_default_tests:
        settings["tests"] = changed_test_options
    return settings


def get_recorded_name(source: Any) -> str:
    """Return the path or name of a model or data set, or `OBJECT_NAME` for an object."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else OBJECT_NAME


def _collect_changes(
    options: Options,
    default_options: Options | None = None,
    *,
    excluded: Collection[str] = (),
) -> dict[str, Any]:
    """Return the options that differ from their defaults, without secret ones such as tokens.

    Args:
        options: The options.
        default_options: The defaults; None for the defaults of the dataclass.
        excluded: Names of fields to leave out.
    """
    changes = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        default = field.default if default_options is None else getattr(default_options, field.name)
        # Fields that are declared as secret have `repr=False`.
        if field.repr and field.name not in excluded and value != default:
            changes[field.name] = _convert_to_plain(value)
    return changes


def _convert_to_plain(value: Any) -> Any:
    """Convert a path to text and a tuple to a list; return other values unchanged."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return list(value) if isinstance(value, list | tuple) else value


def format_repeat_command(verb: str, provenance: Mapping[str, Any], **changes: Any) -> str:
    """Return the shell command that repeats a run.

    Args:
        verb: Command name, such as "audit".
        provenance: A report's record of its run. The key "asked_for" contains the settings that
            were passed to the command.
        changes: New values for some settings, by name.

    Returns:
        A command line such as ``attnprobe audit --model bilstm-sst --dataset sst --seed 1``.
    """
    settings = {**provenance["asked_for"], **changes}
    options_by_test = settings.pop("tests", {})
    # Values for the flag --set, such as "permutation.n_permutations=50".
    assignments = []
    for test, test_options in options_by_test.items():
        for name, value in test_options.items():
            assignments.append(f"{test}.{name}={format_option_value(value)}")
    settings |= {"tests": list(options_by_test) or None, "set": assignments or None}
    return shlex.join(["attnprobe", verb, *_format_flags(settings)])


def format_all_commands(verb: str, provenance: Mapping[str, Any]) -> list[str]:
    """Return the shell commands of all runs in an output folder, in their order.

    Args:
        verb: Command name, such as "audit".
        provenance: A report's record of its run and of earlier runs in the same folder.

    Returns:
        Different commands. The last one is that of the report.
    """
    earlier_commands = [
        format_repeat_command(verb, {"asked_for": settings})
        for settings in provenance.get(EARLIER_RUNS_KEY, ())
    ]
    return [*earlier_commands, format_repeat_command(verb, provenance)]


def _format_flags(settings: Mapping[str, Any]) -> list[str]:
    """Convert settings to command-line flags, such as ``--seed 1``; None is omitted."""
    flags: list[str] = []
    for name, value in settings.items():
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
    """Check whether a command line can repeat a run.

    It cannot if the model, the data set or the scores were passed as Python objects.

    Args:
        provenance: A report's record of its run. The key "asked_for" contains the settings.
    """
    settings = provenance["asked_for"]
    return OBJECT_NAME not in (settings["model"], settings["dataset"], settings.get("scores"))


# --- Example texts of an audit ---

TEXTS_FILE = "texts.json"
"""Name of the file with the example texts, in an audit's output folder."""


def write_texts(folder: Path, texts: Sequence[HighlightedText]) -> None:
    """Write the example texts of an audit, completely or not at all.

    Args:
        folder: Output folder.
        texts: The example texts.
    """
    write_json(folder / TEXTS_FILE, {"texts": convert_to_plain(texts)})


def read_texts(folder: Path) -> tuple[HighlightedText, ...]:
    """Read the example texts of an audit.

    Args:
        folder: Output folder.

    Returns:
        The example texts; empty if there are none or they cannot be read.
    """
    try:
        stored = json.loads((folder / TEXTS_FILE).read_text(encoding="utf-8"))
        return tuple(map(parse_text, stored["texts"]))
    except (OSError, *PARSE_ERRORS):
        return ()


def parse_text(data: Mapping[str, Any]) -> HighlightedText:
    """Restore an example text of a report from the data in a JSON file.

    Args:
        data: Plain data that :func:`write_texts` stored.

    Returns:
        The text; its numbers do not contain NaN.

    Raises:
        ValueError: The text has no attention scores.
    """
    text = parse_plain(HighlightedText, data)
    if "attention" not in text.scores:
        raise ValueError(f"text {text.example_id} has no attention scores")
    defined_numbers = {
        name: number for name, number in text.numbers.items() if not math.isnan(number)
    }
    return dataclasses.replace(text, numbers=defined_numbers)
