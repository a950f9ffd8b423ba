"""Flags, made from the classes of options that the commands' functions take."""

import argparse
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.faithfulness import tests
from hf_attnprobe.options import DEFAULT, Options, asked_in_words, item_of


Parser = argparse.ArgumentParser | argparse._ArgumentGroup
Number = int | float


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


def add_tests(parser: Parser, names: Iterable[str], default: str) -> None:
    """Which tests run, and their options.

    Args:
        names: of all tests.
        default: which run where none is named, in words.
    """
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        help=f"tests to run: {', '.join(names)}; {DEFAULT} stands for {default} "
        f"(default: {DEFAULT})",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="TEST.OPTION=VALUE",
        help="options of tests, such as permutation.n_permutations=50",
    )


def add_audited(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is audited: model, tests, data, and the options of both."""
    parser.add_argument("--model", required=True, help="folder or Hub id of the model")
    add_tests(parser, tests(), "those that suit the model and the data")
    data = parser.add_argument_group("data")
    add_options(data, Data, leave_out=["train_limit"])
    add_options(parser.add_argument_group("the audit"), AuditOptions)


def audited_tests(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tests of an audit with the options that were set, by name."""
    kinds = {name: test.options for name, test in tests().items()}
    return asked_in_words(arguments["tests"], arguments["set"], kinds)


def add_json(parser: Parser, what: str = "summary") -> None:
    """The form of the output."""
    parser.add_argument("--json", action="store_true", help=f"print the {what} as JSON")


def add_verbose(parser: Parser) -> None:
    """How much is printed."""
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print every number, not the verdict alone",
    )


def _add_option(parser: Parser, field: dataclasses.Field, hint: Any) -> None:
    name, default, metadata = field.name, field.default, field.metadata
    flag = name.replace("_", "-")
    text = metadata["help"].replace("%", "%%")
    item, several = item_of(hint)
    if item is bool and default:
        parser.add_argument(f"--no-{flag}", dest=name, action="store_false", help=f"do not {text}")
        return
    if item is bool:
        parser.add_argument(f"--{flag}", action="store_true", default=default, help=text)
        return
    required = default is dataclasses.MISSING
    parser.add_argument(
        f"--{flag}",
        required=required,
        default=None if required else default,
        help=text + _shown_default(default),
        metavar=metadata["metavar"],
        nargs="+" if several else None,
        choices=get_args(item) if get_origin(item) is Literal else None,
        type=_parser_of(item, metadata["at_least"]),
    )


def _shown_default(default: Any) -> str:
    """The default behind the help; nothing where the help itself says what None means."""
    if default in (None, ()) or default is dataclasses.MISSING:
        return ""
    words = default if isinstance(default, tuple) else [default]
    return f" (default: {' '.join(map(str, words))})"


def _parser_of(kind: Any, least: float | None) -> Callable[[str], Any]:
    """What makes the value of a flag from its text."""
    if kind not in (int, float):
        return str

    def number(text: str) -> Number:
        value = kind(text)
        if least is not None and not value >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, got {text}")
        return value

    return number
