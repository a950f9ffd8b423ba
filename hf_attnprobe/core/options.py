"""Options of functions and commands, as frozen dataclasses with checked values.

The same definition is used by Python, the command line, studies and the evaluate metric:

    @dataclass(frozen=True)
    class Permutation(Options):
        n_permutations: int = option(100, "random shuffles per text", at_least=1)

Each field has a help text and a range, which is checked when an instance is created. Options for
several tests are a mapping from test names to options, see :func:`collect_test_options`.
"""

import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args, get_origin

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.progress import silence_libraries
from hf_attnprobe.core.serialization import (
    describe_type,
    format_short,
    get_field_types,
    list_alternatives,
    matches_type,
)


T = TypeVar("T", bound="Options")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_TESTS = "default"
"""Name that selects all tests that suit the model and the data, as in ``--tests default``."""
MAX_NUMBER = 2**63 - 1
"""Largest absolute value that a numeric option accepts: the largest signed 64-bit integer."""
MAX_SEED = 2**32 - 1
"""Largest seed that NumPy's random generators accept."""
HUB_ID_PATTERN = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""Pattern for the id of a model or data set on the Hugging Face Hub, such as ``org/name``."""
MAX_NAME_BYTES = 255
"""Maximum length of a file or folder name in common file systems, in bytes."""


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",  # noqa: A002
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    metavar: str | None = None,
    basic: bool = True,
    secret: bool = False,
) -> Any:
    """Declare a field of an :class:`Options` dataclass.

    If only some values are allowed, declare them in the type: ``Literal["deletion", "mask"]``.

    Args:
        default: Default value; omit it for a required option.
        help: Description in one line, for the command line and the documentation.
        at_least: Smallest allowed number; applies to each item of a list.
        at_most: Largest allowed number; applies to each item of a list.
        metavar: Placeholder for the value in command-line help, such as "FOLDER".
        basic: Whether ``--help`` lists the option; ``--help-all`` lists every option.
        secret: Whether the value must not be displayed or recorded, such as a token.

    Returns:
        A dataclass field.
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "metavar": metavar,
        "basic": basic,
    }
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclasses.dataclass(frozen=True)
class Options:
    """Base class for option dataclasses, which checks values when an instance is created.

    Raises:
        AttnProbeError: A value has the wrong type, is outside its range, or is not one of the choices.
    """

    def __post_init__(self) -> None:
        field_types = get_field_types(type(self))  # type: ignore[arg-type]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            field_type = field_types[field.name]
            if not matches_type(value, field_type):
                raise AttnProbeError(
                    f"expected {describe_type(field_type)} for {field.name}, got "
                    f"{format_short(value)}"
                )
            check_minimum(field.metadata.get("at_least"), **{field.name: value})
            check_maximum(field.metadata.get("at_most"), **{field.name: value})


def _describe_hint(hint: Any) -> str:
    """Describe a type hint for an error message. A dataclass is described by its name."""
    if dataclasses.is_dataclass(hint):
        return getattr(hint, "__name__", "")
    return describe_type(hint)


def public_function(function: F) -> F:
    """Decorate a function of the public API. Users call it directly, so it needs three additions.

    First, its arguments are checked against their type hints. Type hints that are strings (for
    types that are imported later) are not checked. Second, other libraries are silenced while it
    runs. Third, gradients can be computed even if the user calls it inside
    `torch.inference_mode()`.

    Args:
        function: The function.

    Returns:
        A function that raises `AttnProbeError` if an argument does not match its type hint. While it
        runs, progress bars and warnings from other libraries are switched off.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call_checked(*arguments: Any, **named_arguments: Any) -> Any:
        bound_arguments = signature.bind(*arguments, **named_arguments).arguments
        for name, value in bound_arguments.items():
            hint = signature.parameters[name].annotation
            if not isinstance(hint, str) and not matches_type(value, hint):
                expected = _describe_hint(hint)
                raise AttnProbeError(
                    f"expected {expected} for {name} of {function.__name__}, got "
                    f"{format_short(value)}. See help({function.__name__})."
                )
        with silence_libraries(), leave_inference_mode():
            return function(*arguments, **named_arguments)

    return cast(F, call_checked)


@contextlib.contextmanager
def leave_inference_mode() -> Iterator[None]:
    """Make gradients possible in a ``with`` block, even inside `torch.inference_mode()`."""
    # Inference mode cannot be active before torch is imported, which would take long.
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False):
        yield


# --- Options of several tests ---

TestSelection: TypeAlias = (
    str | Options | Sequence[str | Options] | Mapping[str, Mapping[str, Any] | Options | None]
)
"""Type for a selection of tests.

Allowed are one test or a list of tests, each as a name (``"erasure"``) or an options object
(``Permutation(n_permutations=50)``), or a mapping such as ``{"permutation": {"n_permutations": 50}}``.
"""


def collect_fields(option_classes: Sequence[type[Options]]) -> dict[str, dataclasses.Field]:
    """Collect the dataclass fields of several option classes in a dict, by field name."""
    return {
        field.name: field
        for option_class in option_classes
        for field in dataclasses.fields(option_class)
    }


def select_options(values: Mapping[str, Any], option_class: type[T]) -> T:
    """Create an options object from a dictionary, and ignore keys that are not its fields.

    Args:
        values: Values by name, for example all arguments of a command.
        option_class: Options class.

    Returns:
        An instance of the class.
    """
    field_names = collect_fields([option_class])
    known_values = {name: values[name] for name in field_names if name in values}
    return option_class(**known_values)


def build_options(values: Mapping[str, Any], option_class: type[T], suffix: str = "") -> T:
    """Create an options object from a dictionary, and reject keys that are not its fields.

    Args:
        values: Values by name.
        option_class: Options class.
        suffix: Text after the option name in an error message, such as " of permutation".

    Returns:
        An instance of the class.

    Raises:
        AttnProbeError: A name is unknown, or a value has the wrong type or is outside its range.
    """
    check_known_names("option", values, collect_fields([option_class]), suffix=suffix)
    return option_class(**values)


def collect_test_options(
    selection: TestSelection, option_classes: Mapping[str, type[Options]]
) -> dict[str, Options | None]:
    """Convert a user's selection of tests to a mapping from test names to options.

    Args:
        selection: Test names and option objects in a list, or a mapping from names to options.
            Options in a mapping can also be values by name.
        option_classes: Options classes of all tests, by test name.

    Returns:
        Options by test name, in the selected order; None for a test without specified options.

    Raises:
        AttnProbeError: No test or an unknown test is selected, a test has contradictory options, or an
            option is unknown or invalid.

    Example:
        collect_test_options(["erasure", Permutation(n_permutations=50)], option_classes)
        collect_test_options({"erasure": {}, "permutation": {"n_permutations": 50}}, option_classes)
    """
    options_by_test: dict[str, Options | None] = {}
    for name, options in _list_named_options(selection, option_classes):
        check_known_names("test", [name], option_classes)
        if isinstance(options, Mapping):
            option_class, suffix = option_classes[name], f" of {name}"
            options = build_options(options, option_class, suffix) if options else None
        if options is not None and not isinstance(options, option_classes[name]):
            raise AttnProbeError(
                f"expected a dictionary of options for the test {name!r}, got "
                f"{format_short(options)}"
            )
        earlier_options = options_by_test.get(name)
        has_both = options is not None and earlier_options is not None
        if has_both and options != earlier_options:
            raise AttnProbeError(
                f"the test {name!r} is listed twice with different options. Keep one of them."
            )
        options_by_test[name] = options or earlier_options
    if not options_by_test:
        raise AttnProbeError(
            f"expected at least one test, got none. Choose from {', '.join(option_classes)}."
        )
    return options_by_test


def resolve_tests(
    selection: TestSelection | None,
    option_classes: Mapping[str, type[Options]],
    default: Collection[str],
) -> dict[str, Options]:
    """Return the options of all tests that the user selected.

    The name "default" selects the default tests. A test that is selected without options gets its
    default options.

    Args:
        selection: See :func:`collect_test_options`; None selects "default".
        option_classes: Options classes of all tests, by test name.
        default: Names of the default tests.

    Returns:
        Options by test name, in the order of ``option_classes``.
    """
    options_by_test = collect_test_options(
        DEFAULT_TESTS if selection is None else selection,
        {**option_classes, DEFAULT_TESTS: Options},
    )
    selected_names = set(options_by_test)
    if DEFAULT_TESTS in options_by_test:
        selected_names.update(default)
    return {
        name: options_by_test.get(name) or option_class()
        for name, option_class in option_classes.items()
        if name in selected_names
    }


def _list_named_options(
    selection: TestSelection, option_classes: Mapping[str, type[Options]]
) -> list[tuple[str, Any]]:
    """Convert a selection of tests to a list of pairs (test name, options).

    The options are None for a test that is selected by its name only.
    """
    if isinstance(selection, Mapping):
        return [(str(name), options) for name, options in selection.items()]
    items = [selection] if isinstance(selection, str | Options) else selection
    if not isinstance(items, Iterable):
        raise AttnProbeError(
            "expected test names or a dictionary from test names to options, got "
            f"{format_short(selection)}"
        )
    # Tests without options share a class, so an instance of it does not identify a test.
    test_names = {
        option_class: name
        for name, option_class in option_classes.items()
        if dataclasses.fields(option_class)
    }
    named_options: list[tuple[str, Any]] = []
    for item in items:
        if isinstance(item, Options):
            named_options.append((test_names.get(type(item), repr(item)), item))
        else:
            named_options.append((str(item), None))
    return named_options


# --- Checks of names and numbers ---


def check_known_names(
    noun: str, names: Iterable[str], known_names: Iterable[str], suffix: str = ""
) -> None:
    """Raise an error for an unknown name, and suggest a similar known one.

    Args:
        noun: Noun for a name in the error message, such as "test".
        names: Names to check.
        known_names: All valid names.
        suffix: Text after the name in the error message, such as " of permutation".

    Raises:
        AttnProbeError: A name is unknown.

    >>> check_known_names("test", ["erasures"], ["erasure", "permutation"])
    Traceback (most recent call last):
    hf_attnprobe.core.errors.AttnProbeError: unknown test 'erasures'; did you mean erasure?
    """
    known_names = list(known_names)
    for name in names:
        if name in known_names:
            continue
        similar_name = find_similar_name(str(name), known_names)
        if similar_name:
            advice = f"did you mean {similar_name}?"
        else:
            advice = f"expected one of {', '.join(known_names)}"
        raise AttnProbeError(f"unknown {noun} {format_short(name)}{suffix}; {advice}")


def find_similar_name(name: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a mistyped one, or None.

    Args:
        name: The mistyped name.
        known_names: All valid names.

    >>> find_similar_name("--modle", ["--model", "--heads"])
    '--model'
    """
    matches = difflib.get_close_matches(name, list(known_names), n=1, cutoff=0.7)
    return matches[0] if matches else None


def check_minimum(minimum: float | None, **values: Any) -> None:
    """Raise an error if a number is too small.

    Args:
        minimum: Smallest allowed number; None allows every number.
        values: Numbers or lists of numbers, by option name. None is not checked.

    Raises:
        AttnProbeError: A number is below the minimum.
    """
    if minimum is None:
        return
    for name, value in _iterate_values(values):
        # In contrast to `value < minimum`, `not value >= minimum` is also true for NaN.
        if value is not None and not value >= minimum:
            raise AttnProbeError(f"{name} must be at least {minimum:g}, got {format_short(value)}")


def _iterate_values(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield pairs of a name and a value; a list is split into one pair for each of its items."""
    for name, value in values.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            yield name, item


def check_maximum(maximum: float | None, **values: Any) -> None:
    """Raise an error if a number is too large or not finite.

    Args:
        maximum: Largest allowed number; None means `MAX_NUMBER`.
        values: Values or lists of values, by option name. Only numbers are checked.

    Raises:
        AttnProbeError: A number is above the maximum, below −`MAX_NUMBER`, infinite or NaN.
    """
    upper_bound = MAX_NUMBER if maximum is None else maximum
    for name, value in _iterate_values(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise AttnProbeError(f"{name} must be a finite number, got {value}")
        if not -MAX_NUMBER <= value <= upper_bound:
            limit = f"at least {-MAX_NUMBER:,}" if value < 0 else f"at most {upper_bound:,}"
            raise AttnProbeError(f"{name} must be {limit}, got {format_short(value)}")


# --- Models by name ---

Task = Literal[
    "text-classification",
    "token-classification",
    "question-answering",
    "multiple-choice",
    "fill-mask",
    "image-classification",
    "text-generation",
]
"""Names of supported model tasks, the same as those of Transformers pipelines."""


@dataclasses.dataclass(frozen=True)
class SavedModel(Options):
    """Name of a saved model, with the options to load it.

    Every function that takes a model also takes a `SavedModel`. A plain folder or Hub id is short for
    ``SavedModel(model)``.

    Example:
        audit(SavedModel("org/model", revision="v1"), "sst")
    """

    model: str | Path = option(help="folder or Hub id of the model")
    task: Task | None = option(
        None,
        "task of the model, if its configuration does not name one",
        basic=False,
    )
    revision: str | None = option(
        None,
        "branch, tag or commit on the Hub, also written as org/name@revision",
        basic=False,
    )
    subfolder: str | None = option(
        None,
        "folder of the model within its repository or folder",
        metavar="FOLDER",
        basic=False,
    )
    gguf_file: str | None = option(
        None,
        "GGUF file of a language model within its repository or folder, which is dequantised",
        metavar="FILE",
        basic=False,
    )
    token: str | None = option(
        None,
        "token of the Hub for a private model (default: the token of hf auth login, or of the "
        "variable HF_TOKEN); it is not recorded",
        secret=True,
        basic=False,
    )
    trust_remote_code: bool = option(
        False, "run code that comes with a model from the Hub", basic=False
    )
    allow_pickle: bool = option(
        False,
        "read weights that are not safetensors; such files can run hidden code",
        basic=False,
    )


def convert_model_name(model: Any) -> Any:
    """Convert the name of a model to a :class:`SavedModel`.

    Args:
        model: A folder, a Hub id, or a model object. An object is returned unchanged.
    """
    is_name = isinstance(model, str | os.PathLike)
    return SavedModel(os.fspath(model)) if is_name else model


def check_name(purpose: str, name: str) -> None:
    """Raise an error for a name that cannot be a path or a Hub id.

    Args:
        purpose: Purpose of the name for the error message, such as "the output".
        name: A path or an id.

    Raises:
        AttnProbeError: The name contains a null character, or a part that is too long.
    """
    n_bytes = max(len(part.encode(errors="replace")) for part in name.split("/"))
    if n_bytes > MAX_NAME_BYTES or "\0" in name:
        raise AttnProbeError(
            f"expected a path or an id for {purpose}, got {format_short(name)}. Choose a "
            f"name without null characters and with at most {MAX_NAME_BYTES} bytes."
        )


def check_path(purpose: str, name: str) -> None:
    """Raise an error if a name is a path that does not exist.

    A name is a path, and not a Hub id, if it begins with ``.``, ``/`` or ``~``, or if it contains
    several slashes.

    Args:
        purpose: Expected content of the path for the error message, such as "model".
        name: A path or an id, possibly followed by ``@revision``.

    Raises:
        AttnProbeError: The path does not exist.
    """
    # Remove a revision, as in "folder/model@main", unless it is part of an existing path.
    path = name if Path(name).exists() else name.partition("@")[0]
    if is_path(path) and not Path(path).exists():
        raise AttnProbeError(f"expected a {purpose} at {path}, which does not exist")


def is_path(name: str) -> bool:
    """Return whether a name can only be a path, and not a Hub id or the address of a file.

    >>> is_path("./reviews"), is_path("data/reviews/2024"), is_path("SetFit/sst2")
    (True, True, False)
    """
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return looks_like_path and "://" not in name


# --- Options as text ---


def get_item_type(hint: Any) -> tuple[Any, bool]:
    """Return the type of an option's value from its type hint.

    If the option can be a list, the type of its items is returned.

    Args:
        hint: Type hint of the option.

    Returns:
        The first type that the hint allows, and whether the option is a list.

    >>> get_item_type(Sequence[float] | None), get_item_type(str | int | None)
    ((<class 'float'>, True), (<class 'str'>, False))
    """
    alternatives = list_alternatives(hint)
    list_types = [
        alternative
        for alternative in alternatives
        if get_origin(alternative) not in (None, Literal)
    ]
    if list_types:
        return get_args(list_types[0])[0], True
    return alternatives[0], False


def parse_option(option_class: type[Options], name: str, text: str) -> Any:
    """Parse an option value from text, in which list items are separated by commas.

    Args:
        option_class: Options class.
        name: Option name.
        text: The value as text; "none" for None.

    Returns:
        The value.

    Raises:
        AttnProbeError: The text cannot be converted to the option type.
    """
    hint = get_field_types(option_class)[name]  # type: ignore[arg-type]
    item_type, is_list = get_item_type(hint)
    if text == "none" and matches_type(None, hint):
        return None
    try:
        if is_list:
            return [_parse_item(item_type, part) for part in text.split(",")]
        return _parse_item(item_type, text)
    except (ValueError, KeyError) as error:
        raise AttnProbeError(f"expected {describe_type(hint)} for {name}, got {text!r}") from error


def _parse_item(item_type: Any, text: str) -> Any:
    """Convert text to a bool, int or float. For any other type, return the text unchanged."""
    if item_type is bool:
        return {"true": True, "false": False}[text]
    return item_type(text) if item_type in (int, float) else text


def parse_set_arguments(
    names: Sequence[str] | None,
    assignments: Sequence[str],
    option_classes: Mapping[str, type[Options]],
) -> dict[str, dict[str, Any]]:
    """Parse the command-line flags ``--tests NAME`` and ``--set TEST.OPTION=VALUE``.

    Args:
        names: Test names; None selects "default".
        assignments: Options as TEST.OPTION=VALUE. A test whose option is set is also selected.
        option_classes: Options classes of all tests, by test name.

    Returns:
        A selection of tests for :func:`collect_test_options`.

    Raises:
        AttnProbeError: An assignment does not have this form, the test or option is unknown, or the
            value has the wrong type.

    Example:
        parse_set_arguments(None, ["permutation.n_permutations=50"], option_classes)
        # {"default": {}, "permutation": {"n_permutations": 50}}
    """
    selection: dict[str, dict[str, Any]] = {
        name: {} for name in ([DEFAULT_TESTS] if names is None else names)
    }
    for assignment in assignments:
        path, equals_sign, text = assignment.partition("=")
        test, dot, name = path.partition(".")
        if not (dot and equals_sign):
            raise AttnProbeError(
                "expected TEST.OPTION=VALUE after --set, such as "
                f"permutation.n_permutations=50, got {assignment!r}"
            )
        check_known_names("test", [test], option_classes)
        option_class = option_classes[test]
        check_known_names("option", [name], collect_fields([option_class]), suffix=f" of {test}")
        selection.setdefault(test, {})[name] = parse_option(option_class, name, text)
    return selection


def format_option_value(value: Any) -> str:
    """Format an option value as text that :func:`parse_option` can read.

    Args:
        value: The value.

    >>> format_option_value([0.01, 0.05]), format_option_value(True), format_option_value(None)
    ('0.01,0.05', 'true', 'none')
    """
    if isinstance(value, list | tuple):
        return ",".join(map(format_option_value, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
