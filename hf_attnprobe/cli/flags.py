"""Build command-line flags from option dataclasses, and format help and usage errors.

Each field in an :class:`~hf_attnprobe.core.options.Options` class becomes one flag: its type,
default, choices and help text come from the field. This module does not import torch or
transformers, so that ``--help`` and usage errors appear immediately.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from hf_attnprobe.audits.options import AuditOptions, load_test_options
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import (
    DEFAULT_TESTS,
    Options,
    SavedModel,
    check_known_names,
    collect_fields,
    find_similar_name,
    format_option_value,
    get_item_type,
    parse_set_arguments,
    select_options,
)
from hf_attnprobe.core.serialization import list_alternatives
from hf_attnprobe.core.terminal import escape_line, print_text
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.faithfulness.options import TEST_NAMES


ParserOrGroup = argparse.ArgumentParser | argparse._ArgumentGroup
Number = int | float
LoadTestOptions = Callable[[], Mapping[str, type[Options]]]
"""Function that returns the options classes of all tests, by test name."""


class CommandParser(argparse.ArgumentParser):
    """Parser for one command, or for ``attnprobe`` as a whole.

    ``--help`` shows the basic flags, ``--help-all`` shows every flag and the options of the tests.
    An unknown command or flag is refused before any other argument is parsed.

    Attributes:
        load_test_options: Function that returns the options classes of all tests that the command
            can run, by test name; None if the command runs no tests.
    """

    load_test_options: LoadTestOptions | None = None

    def __init__(self, **parser_options: Any) -> None:
        super().__init__(**{"formatter_class": BasicHelpFormatter, **parser_options})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Check that the command and all flags exist, then parse the arguments."""
        words = sys.argv[1:] if args is None else list(args)
        self._check_names(words)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the usage error and a pointer to ``--help``, and exit with code 2."""
        # The message may quote a word of the command line, which may contain escape characters.
        self.exit(2, f"{self.prog}: {escape_line(message)}\nsee {self.prog} --help\n")

    def _check_names(self, words: Sequence[str]) -> None:
        """Exit with a usage error and a suggestion if a word is an unknown command or flag."""
        flags = list(self._option_string_actions)
        subparsers = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        commands = list(subparsers[0].choices) if subparsers else []
        for word in words:
            flag = word.partition("=")[0]
            if word == "--" or word in commands:
                return
            if commands and not word.startswith("-"):
                self.error(f"unknown command {word!r}; {_suggest_name(word, commands)}")
            if flag.startswith("--") and not any(name.startswith(flag) for name in flags):
                self.error(f"unknown flag {flag}; {_suggest_name(flag, flags)}")


DEVICE_HINT = (
    "there is no --device flag, because a GPU is used if PyTorch finds one. Set CUDA_VISIBLE_DEVICES "
    "to choose a device, for example to 1 for the second GPU, or to an empty value for the CPU."
)
"""Hint that is printed if a user passes the flag ``--device``, which does not exist."""


def _suggest_name(name: str, valid_names: Sequence[str]) -> str:
    """Return a hint for a user who typed an unknown command or flag.

    Args:
        name: The unknown name.
        valid_names: Names of all commands, or of all flags.
    """
    if name == "--device":
        return DEVICE_HINT
    closest_name = find_similar_name(name, valid_names)
    if closest_name is not None:
        return f"did you mean {closest_name}?"
    if "--set" in valid_names:
        return "to set an option of a test, use --set TEST.OPTION=VALUE; --help-all lists them"
    if name.startswith("--"):
        return f"{'--help-all' if '--help-all' in valid_names else '--help'} lists all flags"
    return f"expected one of {', '.join(valid_names)}"


class BasicHelpFormatter(argparse.HelpFormatter):
    """Help formatter for ``--help``, which lists only the basic flags."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Any,
        prefix: Any = None,
    ) -> None:
        """Add a usage line with the required arguments, followed by "[FLAG ...]"."""
        required_actions = [a for a in actions if a.required or not a.option_strings]
        optional_flags = argparse.Action([], "flags", nargs="*", metavar="FLAG")
        super().add_usage(usage, [*required_actions, optional_flags], [], prefix)

    def add_argument(self, action: argparse.Action) -> None:
        """Add the help of a flag if it is a basic one."""
        if getattr(action, "basic", True):
            super().add_argument(action)


class FullHelpFormatter(BasicHelpFormatter):
    """Help formatter for ``--help-all``, which lists every flag."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add the help of a flag, whether it is basic or not."""
        argparse.HelpFormatter.add_argument(self, action)


class ShowAllFlags(argparse.Action):
    """Action of ``--help-all``: print all flags and test options, and exit."""

    def __call__(self, parser: Any, *_: Any) -> None:
        """Print the full help and exit."""
        parser.formatter_class = FullHelpFormatter
        help_text = parser.format_help()
        if parser.load_test_options is not None:
            help_text += "\n" + _format_test_options(parser.load_test_options())
        print_text(help_text, end="")
        parser.exit(0)


def _format_test_options(options_by_test: Mapping[str, type[Options]]) -> str:
    """Return a help text that lists the options of all tests, as ``TEST.OPTION=VALUE``."""
    # This parser is only used to format the help text.
    listing = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
    group = listing.add_argument_group("options of tests, to be used with --set")
    for test, options_class in options_by_test.items():
        hints = get_type_hints(options_class)
        for field in dataclasses.fields(options_class):
            text = field.metadata["help"].replace("%", "%%")
            item, is_list = get_item_type(hints[field.name])
            value = field.metadata["metavar"] or field.name.upper()
            if get_origin(item) is Literal:
                value = "|".join(get_args(item))
            if item is bool:
                value = "true|false"
            if is_list:
                value += ",…"
            name = f"{test}.{field.name}"
            text += _format_default(field.default)
            group.add_argument(name, metavar=f"{name}={value}", help=text)
    return listing.format_help().lstrip()


def add_help_all_flag(parser: argparse.ArgumentParser) -> None:
    """Add ``--help-all``, which prints every flag and every test option."""
    parser.add_argument(
        "--help-all",
        action=ShowAllFlags,
        nargs=0,
        help="show every flag and every option of the tests",
    )


def add_option_flags(
    parser: ParserOrGroup, options_class: type[Options], *, excluded: Collection[str] = ()
) -> None:
    """Add one flag for each field of an options class.

    Args:
        parser: Parser or argument group to add the flags to.
        options_class: Class whose fields provide the type, choices, help text and default for each
            flag.
        excluded: Names of fields that do not become flags.
    """
    hints = get_type_hints(options_class)
    for field in dataclasses.fields(options_class):
        if field.name not in excluded:
            _add_flag(parser, field, hints[field.name])


def add_test_flags(
    parser: CommandParser,
    names: Iterable[str],
    default: str,
    load_test_options: LoadTestOptions,
    *,
    note: str = "",
) -> None:
    """Add ``--tests`` and ``--set``, which select tests and set their options.

    Args:
        parser: Parser of the command.
        names: Names of the tests that the help text lists.
        default: Description of the tests that run if ``--tests`` is not used.
        load_test_options: Function that returns the options classes of all tests, by test name.
        note: End of the help text, after the default; empty for none.
    """
    parser.load_test_options = load_test_options
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        type=_make_argument_type(
            lambda word: check_known_names("test", [word], [*load_test_options(), DEFAULT_TESTS])
        ),
        help=f"tests to run: {', '.join(names)} ({DEFAULT_TESTS}: {default}){note}",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        type=_make_argument_type(lambda word: _check_option(word, load_test_options())),
        metavar="TEST.OPTION=VALUE",
        help="set options of tests, for example permutation.n_permutations=50",
    )


def _make_argument_type(check: Callable[[str], None]) -> Callable[[str], str]:
    """Create an argparse type that accepts only words for which a check passes.

    Args:
        check: Function that raises ``AttnProbeError`` for an invalid word.

    Returns:
        A function that returns a valid word unchanged, and raises an argparse error otherwise.
    """

    def validate(word: str) -> str:
        try:
            check(word)
        except AttnProbeError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return word

    return validate


def _check_option(word: str, options_by_test: Mapping[str, type[Options]]) -> None:
    """Check that test, option and value exist in an argument such as ``TEST.OPTION=VALUE``."""
    ((test, values),) = parse_set_arguments([], [word], options_by_test).items()
    # The options class checks the value.
    options_by_test[test](**values)


def parse_test_selection(
    arguments: Mapping[str, Any], load_test_options: LoadTestOptions
) -> dict[str, dict[str, Any]] | None:
    """Convert the flags ``--tests`` and ``--set`` to the options of each selected test.

    Returns:
        Options by test name. It is None if neither flag is used; the command then runs its default
        tests.
    """
    if arguments["tests"] is None and not arguments["set"]:
        return None
    return parse_set_arguments(arguments["tests"], arguments["set"], load_test_options())


SUITABLE_TESTS = "all tests that suit the model and the data"
"""Default of the flag ``--tests``, as described in its help text."""


VERDICT_TESTS = (
    "An answer other than cannot say needs all of scale, erasure, exchange and uniform_attention that the "
    "model can run, or for a language model sources, permutation and knockout"
)
"""Sentence in the help text of ``--tests`` that names the tests without which there is no verdict."""


def add_audit_flags(
    parser: CommandParser, default: str = SUITABLE_TESTS, *, model: bool = True
) -> None:
    """Add the flags of an audit: the model, the tests, the data and the audit's options.

    Args:
        parser: Parser of the command.
        default: Description of the tests that run if ``--tests`` is not used.
        model: Whether to add ``--model``; False if the command takes its models as positional
            arguments.
    """
    model_group = parser.add_argument_group("the model")
    add_option_flags(model_group, SavedModel, excluded=() if model else ["model"])
    add_test_flags(parser, TEST_NAMES, default, load_test_options, note=f". {VERDICT_TESTS}")
    data = parser.add_argument_group("data")
    add_option_flags(data, Data, excluded=["train_limit"])
    add_option_flags(parser.add_argument_group("the audit"), AuditOptions)


def add_answer_flags(parser: CommandParser) -> None:
    """Add the flags that describe passages and questions for a language model."""
    group = parser.add_argument_group("passages and questions, for language models")
    add_option_flags(group, Answers, excluded=collect_fields([Data]))


def build_data(arguments: Mapping[str, Any]) -> Data:
    """Convert parsed flags to the description of the data to audit.

    Returns:
        :class:`Answers` (passages with questions) if the user set any flag that only
        :class:`Answers` has, otherwise :class:`Data` (texts).
    """
    fields = collect_fields([Answers])
    answer_fields = fields.keys() & arguments.keys() - collect_fields([Data])
    has_answer_flags = any(arguments[name] != fields[name].default for name in answer_fields)
    return select_options(arguments, Answers if has_answer_flags else Data)


def add_json_flag(parser: ParserOrGroup, content: str = "summary") -> None:
    """Add ``--json``, which prints a command's ``content``, such as its summary, as JSON."""
    parser.add_argument("--json", action="store_true", help=f"print the {content} as JSON")


def add_verbose_flag(parser: ParserOrGroup) -> None:
    """Add ``--verbose``, which prints all numbers of a report instead of its first screen."""
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print every number instead of the first screen only",
    )


def _add_flag(parser: ParserOrGroup, field: dataclasses.Field, hint: Any) -> None:
    """Add a command-line flag for one field of an options class.

    Args:
        parser: Parser or argument group to add the flag to.
        field: The field, with its help text in ``field.metadata``.
        hint: Type of the field.
    """
    name, default, metadata = field.name, field.default, field.metadata
    text = metadata["help"].replace("%", "%%")
    item, is_list = get_item_type(hint)
    flag = f"--{name.replace('_', '-')}"
    settings: dict[str, Any]
    if item is bool:
        settings = {"action": "store_true", "default": default}
        if default:
            # An option that is on by default gets a flag that switches it off.
            flag, text = flag.replace("--", "--no-", 1), f"do not {text}"
            settings = {"action": "store_false", "dest": name}
    else:
        text += _format_default(default)
        settings = {
            "required": default is dataclasses.MISSING,
            "default": None if default is dataclasses.MISSING else default,
            "metavar": metadata["metavar"],
            "nargs": "+" if is_list else None,
            "choices": get_args(item) if get_origin(item) is Literal else None,
            "type": _make_value_parser(item, metadata["at_least"]),
        }
    action = parser.add_argument(flag, help=text, **settings)
    action.basic = metadata["basic"]  # type: ignore[attr-defined]


def _format_default(default: Any) -> str:
    """Format a default value for a help text, such as " (default: 16)".

    The result is empty if there is no default, or if the default is None or an empty tuple.
    """
    if default in (None, ()) or default is dataclasses.MISSING:
        return ""
    values = default if isinstance(default, tuple) else [default]
    formatted_values = " ".join(map(format_option_value, values))
    return f" (default: {formatted_values})"


def _make_value_parser(hint: Any, minimum: float | None) -> Callable[[str], Any]:
    """Return a function that converts a flag's text to a number, an accepted word or a string.

    Args:
        hint: Type of the flag's value, such as ``float``, or ``int | Literal["all"]``.
        minimum: Smallest accepted number.
    """
    value_types = list_alternatives(hint)
    number_types = [value_type for value_type in value_types if value_type in (int, float)]
    if not number_types:
        return str
    accepted_words = {word for value_type in value_types for word in get_args(value_type)}

    def parse_number(text: str) -> Number | str:
        if text in accepted_words:
            return text
        value = number_types[0](text)
        if minimum is not None and not value >= minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum:g}, got {text}")
        return value

    return parse_number
