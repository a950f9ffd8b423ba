"""How a command line is read: flags made from classes of options, help, and errors.

Nothing here imports what computes, so that help and errors come at once.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from hf_attnprobe.audits.options import AuditOptions, options_of_tests
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    DEFAULT,
    Options,
    SavedModel,
    as_text,
    asked_in_words,
    check_known,
    from_flat,
    item_of,
    names_of,
    near,
)
from hf_attnprobe.core.serialization import alternatives
from hf_attnprobe.core.terminal import show
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.faithfulness.options import TESTS


Parser = argparse.ArgumentParser | argparse._ArgumentGroup
Number = int | float
Kinds = Callable[[], Mapping[str, type[Options]]]
"""Finds the classes of the options of all tests, by name of the test."""


class CommandParser(argparse.ArgumentParser):
    """A parser of one command, or of all of them.

    Its help shows the flags of every day, ``--help-all`` every flag and the options of
    tests. An unknown command or flag is refused before anything else is looked at.

    Attributes:
        kinds: of the tests that the command runs; None where it runs none.
    """

    kinds: Kinds | None = None

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"formatter_class": _DailyHelp, **given})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Reads the arguments, once their names are known."""
        words = sys.argv[1:] if args is None else list(args)
        self._check_names(words)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """What is wrong, where to look, and exit code 2."""
        self.exit(2, f"{self.prog}: {message}\nsee {self.prog} --help\n")

    def _check_names(self, words: Sequence[str]) -> None:
        flags = list(self._option_string_actions)
        of_commands = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        commands = list(of_commands[0].choices) if of_commands else []
        for word in words:
            flag = word.partition("=")[0]
            if word == "--" or word in commands:
                return
            if commands and not word.startswith("-"):
                self.error(f"unknown command {word!r}; {_meant(word, commands)}")
            if flag.startswith("--") and not any(known.startswith(flag) for known in flags):
                self.error(f"unknown flag {flag}; {_meant(flag, flags)}")


OF_DEVICES = "a GPU is used where PyTorch sees one: CUDA_VISIBLE_DEVICES=1 chooses, empty none"


def _meant(name: str, known: Sequence[str]) -> str:
    if name == "--device":
        return OF_DEVICES
    meant = near(name, known)
    if meant is not None:
        return f"did you mean {meant}?"
    if "--set" in known:
        return "options of tests are written --set TEST.OPTION=VALUE, see --help-all"
    if name.startswith("--"):
        return f"{'--help-all' if '--help-all' in known else '--help'} lists every one"
    return f"expected one of {', '.join(known)}"


class _DailyHelp(argparse.HelpFormatter):
    """The flags of every day; the usage has what must be given."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Any,
        prefix: Any = None,
    ) -> None:
        needed = [a for a in actions if a.required or not a.option_strings]
        others = argparse.Action([], "flags", nargs="*", metavar="FLAG")
        super().add_usage(usage, [*needed, others], [], prefix)

    def add_argument(self, action: argparse.Action) -> None:
        if getattr(action, "daily", True):
            super().add_argument(action)


class _AllHelp(_DailyHelp):
    """Every flag."""

    def add_argument(self, action: argparse.Action) -> None:
        argparse.HelpFormatter.add_argument(self, action)


class _ShowAll(argparse.Action):
    """Shows every flag and the options of tests, and ends."""

    def __call__(self, parser: Any, *_: Any) -> None:
        parser.formatter_class = _AllHelp
        of_tests = "" if parser.kinds is None else "\n" + _options_of_tests(parser.kinds())
        show(parser.format_help() + of_tests, end="")
        parser.exit(0)


def _options_of_tests(kinds: Mapping[str, type[Options]]) -> str:
    """The options of tests as ``--set`` takes them, with their help."""
    listing = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
    group = listing.add_argument_group("options of tests, behind --set")
    for test, kind in kinds.items():
        hints = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            text = field.metadata["help"].replace("%", "%%")
            item, several = item_of(hints[field.name])
            value = field.metadata["metavar"] or field.name.upper()
            if get_origin(item) is Literal:
                value = "|".join(get_args(item))
            if item is bool:
                value = "true|false"
            if several:
                value += ",…"
            name = f"{test}.{field.name}"
            text += _shown_default(field.default)
            group.add_argument(name, metavar=f"{name}={value}", help=text)
    return listing.format_help().lstrip()


def add_help_all(parser: argparse.ArgumentParser) -> None:
    """The flag that shows all flags."""
    parser.add_argument(
        "--help-all",
        action=_ShowAll,
        nargs=0,
        help="show every flag, and every option of tests",
    )


def add_options(parser: Parser, kind: type[Options], *, leave_out: Collection[str] = ()) -> None:
    """One flag for each field of a class of options.

    Args:
        parser: a parser, or a group of one.
        kind: the class; type, choices, help and default are those of its fields.
        leave_out: fields that the command does not use.
    """
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name not in leave_out:
            _add_option(parser, field, hints[field.name])


def add_tests(parser: CommandParser, names: Iterable[str], default: str, kinds: Kinds) -> None:
    """Which tests run, and their options.

    Args:
        names: of all tests, or of the built-in ones.
        default: which run where none is named, in words.
        kinds: of all tests.
    """
    parser.kinds = kinds
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        type=_checked(lambda word: check_known("test", [word], [*kinds(), DEFAULT])),
        help=f"tests to run: {', '.join(names)} ({DEFAULT}: {default})",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        type=_checked(lambda word: _check_option(word, kinds())),
        metavar="TEST.OPTION=VALUE",
        help="options of tests, such as permutation.n_permutations=50",
    )


def _checked(check: Callable[[str], None]) -> Callable[[str], str]:
    """What returns a word as it is, where the check lets it pass."""

    def same(word: str) -> str:
        try:
            check(word)
        except AttnProbeError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return word

    return same


def _check_option(word: str, kinds: Mapping[str, type[Options]]) -> None:
    """Raises AttnProbeError for TEST.OPTION=VALUE without such a test, option or value."""
    ((test, values),) = asked_in_words([], [word], kinds).items()
    kinds[test](**values)


def asked(arguments: Mapping[str, Any], kinds: Kinds) -> dict[str, dict[str, Any]] | None:
    """The tests that are asked for with the options that were set; None by default."""
    if arguments["tests"] is None and not arguments["set"]:
        return None
    return asked_in_words(arguments["tests"], arguments["set"], kinds())


SUITING = "those that suit the model and the data"


def add_audited(parser: CommandParser, default: str = SUITING, *, model: bool = True) -> None:
    """Flags that say what is audited: model, tests, data, and the options of both.

    Args:
        default: the tests that run where none is named, in words.
        model: whether one model is audited, which has a flag.
    """
    loaded = parser.add_argument_group("the model")
    add_options(loaded, SavedModel, leave_out=() if model else ["model"])
    add_tests(parser, TESTS, default, options_of_tests)
    data = parser.add_argument_group("data")
    add_options(data, Data, leave_out=["train_limit"])
    add_options(parser.add_argument_group("the audit"), AuditOptions)


def add_answers(parser: CommandParser) -> None:
    """Flags that say what a language model is asked."""
    group = parser.add_argument_group("passages and questions, of a language model")
    add_options(group, Answers, leave_out=names_of([Data]))


def data_of(arguments: Mapping[str, Any]) -> Data:
    """The data that is audited; with passages and questions where a flag speaks of them."""
    fields = names_of([Answers])
    own = fields.keys() & arguments.keys() - names_of([Data])
    speaks = any(arguments[name] != fields[name].default for name in own)
    return from_flat(arguments, Answers if speaks else Data)


def add_json(parser: Parser, what: str = "summary") -> None:
    """The form of the output."""
    parser.add_argument("--json", action="store_true", help=f"print the {what} as JSON")


def add_verbose(parser: Parser) -> None:
    """How much is printed."""
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print every number, not the first screen alone",
    )


def _add_option(parser: Parser, field: dataclasses.Field, hint: Any) -> None:
    name, default, metadata = field.name, field.default, field.metadata
    text = metadata["help"].replace("%", "%%")
    item, several = item_of(hint)
    flag = f"--{name.replace('_', '-')}"
    given: dict[str, Any]
    if item is bool:
        given = {"action": "store_true", "default": default}
        if default:
            flag, text = flag.replace("--", "--no-", 1), f"do not {text}"
            given = {"action": "store_false", "dest": name}
    else:
        text += _shown_default(default)
        given = {
            "required": default is dataclasses.MISSING,
            "default": None if default is dataclasses.MISSING else default,
            "metavar": metadata["metavar"],
            "nargs": "+" if several else None,
            "choices": get_args(item) if get_origin(item) is Literal else None,
            "type": _parser_of(item, metadata["at_least"]),
        }
    action = parser.add_argument(flag, help=text, **given)
    action.daily = metadata["daily"]  # type: ignore[attr-defined]


def _shown_default(default: Any) -> str:
    """The default behind the help; nothing where the help itself says what None means."""
    if default in (None, ()) or default is dataclasses.MISSING:
        return ""
    words = default if isinstance(default, tuple) else [default]
    return f" (default: {' '.join(map(as_text, words))})"


def _parser_of(kind: Any, least: float | None) -> Callable[[str], Any]:
    """What makes the value of a flag from its text: a number, or one of the words beside it."""
    several = alternatives(kind)
    numbers = [one for one in several if one in (int, float)]
    if not numbers:
        return str
    words = {word for one in several for word in get_args(one)}

    def number(text: str) -> Number | str:
        if text in words:
            return text
        value = numbers[0](text)
        if least is not None and not value >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, got {text}")
        return value

    return number
