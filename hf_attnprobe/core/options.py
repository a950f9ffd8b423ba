"""Options as frozen dataclasses: one definition for Python, command line, study and metric.

    @dataclass(frozen=True)
    class Permutation(Options):
        n_permutations: int = option(100, "random shuffles per text", at_least=1)

A field carries its help text and its range. Values are checked when the object is made,
so a wrong one is refused wherever it came from. The options of several tests are one
mapping from names of tests to such objects, see :func:`options_by_test`.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import os
import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import (
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.progress import quiet_libraries
from hf_attnprobe.core.serialization import alternatives, describe, fits, in_short


T = TypeVar("T", bound="Options")
F = TypeVar("F", bound=Callable[..., Any])
DEFAULT = "default"
"""Stands for the tests that suit model and data, among the names of tests."""
LARGEST = 2**63 - 1
"""The largest number of any option: tensors and tables hold no larger whole one."""
LARGEST_SEED = 2**32 - 1
"""NumPy's generators, which every training seeds, take no larger one."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""``org/name``."""
LONGEST_PART = 255
"""Bytes of the name of a file or a folder, in all file systems of today."""


def option(
    default: Any = dataclasses.MISSING,
    help: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    metavar: str | None = None,
    daily: bool = True,
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
        daily: whether the help of a command shows it without being asked for all.
        secret: whether the value is never shown.

    Choices are stated in the type, as ``Literal["deletion", "mask"]``.
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "metavar": metavar,
        "daily": daily,
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


def public_function(function: F) -> F:
    """The function, which refuses arguments of other types than it declares before all else.

    Libraries are quiet while it works. Types that are declared as texts, of what is imported
    later, are checked by whoever uses the value.
    """
    declared = inspect.signature(function)

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        for name, value in declared.bind(*arguments, **named).arguments.items():
            hint = declared.parameters[name].annotation
            if not isinstance(hint, str) and not fits(value, hint):
                is_named = dataclasses.is_dataclass(hint)
                expected = getattr(hint, "__name__", "") if is_named else describe(hint)
                raise AttnProbeError(
                    f"expected {expected} for {name} of {function.__name__}, got "
                    f"{in_short(value)}; see help({function.__name__})"
                )
        with quiet_libraries():
            return function(*arguments, **named)

    return cast(F, checked)


Asked: TypeAlias = (
    str | Options | Sequence[str | Options] | Mapping[str, Mapping[str, Any] | Options | None]
)
"""Tests as a user asks for them: names, option objects, or options by name of the test."""


@functools.cache
def hints_of(kind: type[Options]) -> dict[str, Any]:
    """The types of a class's fields; a study makes the same options thousands of times."""
    return get_type_hints(kind)


def names_of(kinds: Sequence[type[Options]]) -> dict[str, dataclasses.Field]:
    """The fields of several option classes by name."""
    return {field.name: field for kind in kinds for field in dataclasses.fields(kind)}


def from_flat(values: Mapping[str, Any], kind: type[T]) -> T:
    """The options of ``kind`` among values by name; other names are left alone."""
    return kind(**{name: values[name] for name in names_of([kind]) if name in values})


def from_names(values: Mapping[str, Any], kind: type[T], of: str = "") -> T:
    """The options of ``kind`` from values by name.

    Args:
        of: whose options they are, for errors: " of permutation".

    Raises:
        AttnProbeError: an unknown name, or a value of a wrong type or out of its range.
    """
    check_known("option", values, names_of([kind]), of=of)
    return kind(**values)


def options_by_test(asked: Asked, kinds: Mapping[str, type[Options]]) -> dict[str, Options | None]:
    """The tests that are asked for, with their options.

        options_by_test(["erasure", Permutation(n_permutations=50)], kinds)
        options_by_test({"erasure": {}, "permutation": {"n_permutations": 50}}, kinds)

    Args:
        asked: a list of names and option objects, or a mapping from names to options,
            which may be values by name.
        kinds: the classes of the options of all tests, by name of the test.

    Returns:
        Options by name of the test, in the order asked for; None where nothing is said
        of them.

    Raises:
        AttnProbeError: no test, an unknown one, two options for one test, or an option
            or value that the test does not have.
    """
    chosen: dict[str, Options | None] = {}
    for name, given in _named(asked, kinds):
        check_known("test", [name], kinds)
        if isinstance(given, Mapping):
            given = from_names(given, kinds[name], of=f" of {name}") if given else None
        if given is not None and not isinstance(given, kinds[name]):
            raise AttnProbeError(f"expected names with values for {name}, got {in_short(given)}")
        if None not in (given, chosen.get(name)) and given != chosen[name]:
            raise AttnProbeError(f"expected options of {name} once, got them twice")
        chosen[name] = given or chosen.get(name)
    if not chosen:
        raise AttnProbeError(f"expected at least one test of {', '.join(kinds)}, got none")
    return chosen


def options_with_default(
    asked: Asked | None,
    kinds: Mapping[str, type[Options]],
    default: Collection[str],
) -> dict[str, Options]:
    """The tests that are asked for, in the order of ``kinds``; None is "default".

    Args:
        default: names of the tests that "default" stands for.
    """
    given = options_by_test(DEFAULT if asked is None else asked, {**kinds, DEFAULT: Options})
    wanted = {*given, *(default if DEFAULT in given else ())}
    return {name: given.get(name) or kind() for name, kind in kinds.items() if name in wanted}


def _named(asked: Asked, kinds: Mapping[str, type[Options]]) -> list[tuple[str, Any]]:
    """Name and options, or None, of everything asked for."""
    if isinstance(asked, Mapping):
        return [(str(name), given) for name, given in asked.items()]
    items = [asked] if isinstance(asked, str | Options) else asked
    if not isinstance(items, Iterable):
        raise AttnProbeError(f"expected names of tests, or options by name, got {in_short(asked)}")
    names = {kind: name for name, kind in kinds.items() if dataclasses.fields(kind)}
    return [
        (names.get(type(item), repr(item)), item)
        if isinstance(item, Options)
        else (str(item), None)
        for item in items
    ]


def check_known(what: str, names: Iterable[str], known: Iterable[str], of: str = "") -> None:
    """Raises AttnProbeError where a name is not among those known.

    >>> check_known("test", ["erasures"], ["erasure", "permutation"])
    Traceback (most recent call last):
    hf_attnprobe.core.errors.AttnProbeError: unknown test 'erasures'; did you mean erasure?
    """
    known = list(known)
    for name in names:
        if name in known:
            continue
        meant = near(str(name), known)
        advice = f"did you mean {meant}?" if meant else f"expected one of {', '.join(known)}"
        raise AttnProbeError(f"unknown {what} {in_short(name)}{of}; {advice}")


def near(name: str, known: Iterable[str]) -> str | None:
    """Which of the known names a mistyped one may mean.

    >>> near("--modle", ["--model", "--heads"])
    '--model'
    """
    return next(
        iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)),
        None,
    )


def check_at_least(least: float | None, **values: Any) -> None:
    """Raises AttnProbeError where a number is below ``least``; None was not given."""
    for name, item in _items(values) if least is not None else ():
        if item is not None and not item >= least:
            raise AttnProbeError(
                f"{name} must be at least {least:g}, got {in_short(item)}; give more"
            )


def _items(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields values with their names, those of a list each by itself."""
    for name, value in values.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            yield name, item


def check_at_most(most: float | None, **values: Any) -> None:
    """Raises AttnProbeError where a number is above ``most``, or none that is finite.

    Without ``most`` it must be within ± :data:`LARGEST`.
    """
    bound = LARGEST if most is None else most
    for name, item in _items(values):
        if isinstance(item, bool) or not isinstance(item, int | float):
            continue
        if isinstance(item, float) and not math.isfinite(item):
            raise AttnProbeError(f"expected a finite number for {name}, got {item}; give one")
        if not -LARGEST <= item <= bound:
            limit = f"at most {bound:,}"
            if item < 0:
                limit = f"at least {-LARGEST:,}"
            raise AttnProbeError(f"{name} must be {limit}, got {in_short(item)}; give another")


# --- a model by its name ------------------------------------------------------------------

Task = Literal[
    "text-classification",
    "token-classification",
    "question-answering",
    "multiple-choice",
    "fill-mask",
    "image-classification",
    "text-generation",
]


@dataclasses.dataclass(frozen=True)
class SavedModel(Options):
    """A model that was saved: its name, and what loading it needs to know.

    Verbs take it wherever they take a model:
    ``audit(SavedModel("org/model", revision="v1"), "sst")``.
    A folder or a Hub id alone stands for ``SavedModel(model)``.
    """

    model: str | Path = option(help="folder or Hub id of the model")
    task: Task | None = option(
        None,
        "head that is meant, where the model's configuration names none",
        daily=False,
    )
    revision: str | None = option(
        None,
        "branch, tag or commit on the Hub, also written as org/name@revision",
        daily=False,
    )
    subfolder: str | None = option(
        None,
        "folder of the model within its repository or folder",
        metavar="FOLDER",
        daily=False,
    )
    gguf_file: str | None = option(
        None,
        "GGUF file of a language model within its repository or folder, which is dequantised",
        metavar="FILE",
        daily=False,
    )
    token: str | None = option(
        None,
        "token of the Hub for a private model (default: that of hf auth login, or of the "
        "variable HF_TOKEN); it is not recorded",
        secret=True,
        daily=False,
    )
    trust_remote_code: bool = option(
        False, "run code that comes with a model from the Hub", daily=False
    )
    allow_pickle: bool = option(
        False,
        "read weights that are not safetensors; reading those can run code hidden in them",
        daily=False,
    )


def as_saved(model: Any) -> Any:
    """A model given by its name, as :class:`SavedModel`; an object as it is."""
    is_name = isinstance(model, str | os.PathLike)
    return SavedModel(os.fspath(model)) if is_name else model


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


def check_path(what: str, name: str) -> None:
    """Raises AttnProbeError where a name can only be a path, and nothing is there.

    Hub ids have one / at most, and no full stop in front.

    Args:
        what: that is expected there.
        name: a path or an id, which may end in @revision.
    """
    place = name if Path(name).exists() else name.partition("@")[0]
    is_path = place.startswith((".", "/", "~")) or place.count("/") > 1
    if is_path and "://" not in place and not Path(place).exists():
        raise AttnProbeError(f"expected a {what} at {place}, there is nothing; check the path")


# --- options as text --------------------------------------------------------------------


def item_of(hint: Any) -> tuple[Any, bool]:
    """What a text of an option is read as, and whether there may be several.

    >>> item_of(Sequence[float] | None), item_of(str | int | None)
    ((<class 'float'>, True), (<class 'str'>, False))
    """
    kinds = alternatives(hint)
    lists = [kind for kind in kinds if get_origin(kind) not in (None, Literal)]
    return (get_args(lists[0])[0], True) if lists else (kinds[0], False)


def from_text(kind: type[Options], name: str, text: str) -> Any:
    """The value of a field that is written as text; those of a list are divided by commas.

    Raises:
        AttnProbeError: a text that is not of the field's type.
    """
    hint = hints_of(kind)[name]  # type: ignore[arg-type]  # a class has a hash
    item, several = item_of(hint)
    if text == "none" and fits(None, hint):
        return None
    try:
        return [_read(item, part) for part in text.split(",")] if several else _read(item, text)
    except (ValueError, KeyError) as error:
        raise AttnProbeError(f"expected {describe(hint)} for {name}, got {text!r}") from error


def _read(kind: Any, text: str) -> Any:
    if kind is bool:
        return {"true": True, "false": False}[text]
    return kind(text) if kind in (int, float) else text


def asked_in_words(
    names: Sequence[str] | None,
    words: Sequence[str],
    kinds: Mapping[str, type[Options]],
) -> dict[str, dict[str, Any]]:
    """The tests that a command line asks for, as :func:`options_by_test` takes them.

        asked_in_words(None, ["permutation.n_permutations=50"], kinds)
        {"default": {}, "permutation": {"n_permutations": 50}}

    Args:
        names: of the tests; None is "default".
        words: options as TEST.OPTION=VALUE; a test whose option is set is asked for too.
        kinds: the classes of the options of all tests, by name of the test.

    Raises:
        AttnProbeError: another form, an unknown test or option, or a value of a wrong type.
    """
    asked: dict[str, dict[str, Any]] = {
        name: {} for name in ([DEFAULT] if names is None else names)
    }
    for word in words:
        path, equals, text = word.partition("=")
        test, dot, name = path.partition(".")
        if not (dot and equals):
            raise AttnProbeError(f"expected TEST.OPTION=VALUE behind --set, got {word!r}")
        check_known("test", [test], kinds)
        check_known("option", [name], names_of([kinds[test]]), of=f" of {test}")
        asked.setdefault(test, {})[name] = from_text(kinds[test], name, text)
    return asked


def as_text(value: Any) -> str:
    """A value as :func:`from_text` reads it.

    >>> as_text([0.01, 0.05]), as_text(True), as_text(None)
    ('0.01,0.05', 'true', 'none')
    """
    if isinstance(value, list | tuple):
        return ",".join(map(as_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
