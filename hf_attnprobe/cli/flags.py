"""Flags, made from the classes of options that the commands' functions take."""

import argparse
import dataclasses
from collections.abc import Callable, Collection
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.faithfulness import DEFAULT, tests
from hf_attnprobe.options import Options


Parser = argparse.ArgumentParser | argparse._ArgumentGroup
Number = int | float


def add_options(
    parser: Parser,
    kind: type[Options],
    *,
    leave_out: Collection[str] = (),
    only_said: bool = False,
) -> None:
    """One flag for each field of a class of options.

    Args:
        parser: a parser, or a group of one.
        kind: the class; type, choices, help and default are those of its fields.
        leave_out: fields that the command does not use.
        only_said: whether the arguments have no value where the flag is not given.
    """
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name not in leave_out:
            action = _add_option(parser, field, _alternatives(hints[field.name]))
            if only_said:
                action.default = argparse.SUPPRESS


def add_audited(parser: argparse.ArgumentParser) -> None:
    """Flags that say what is audited: model, tests, data, and the options of both."""
    known = tests()
    parser.add_argument("--model", required=True, help="folder or Hub id of the model")
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        help=f"tests to run: {', '.join(known)}; {DEFAULT} stands for those that suit "
        f"the model and the data (default: {DEFAULT})",
    )
    data = parser.add_argument_group("data")
    add_options(data, Data, leave_out=["train_limit"])
    add_options(parser.add_argument_group("the audit"), AuditOptions)
    added: set[str] = set()
    for name, test in known.items():
        group = parser.add_argument_group(f"options of the test {name}")
        add_options(group, test.options, leave_out=added, only_said=True)
        added.update(field.name for field in dataclasses.fields(test.options))


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


def _add_option(parser: Parser, field: dataclasses.Field, kinds: list[Any]) -> argparse.Action:
    name, default, metadata = field.name, field.default, field.metadata
    flag = name.replace("_", "-")
    text = metadata["help"].replace("%", "%%")
    if bool in kinds and default:
        return parser.add_argument(
            f"--no-{flag}", dest=name, action="store_false", help=f"do not {text}"
        )
    if bool in kinds:
        return parser.add_argument(f"--{flag}", action="store_true", default=default, help=text)
    lists = [kind for kind in kinds if get_origin(kind) not in (None, Literal)]
    item = get_args(lists[0])[0] if lists else kinds[0]
    required = default is dataclasses.MISSING
    return parser.add_argument(
        f"--{flag}",
        required=required,
        default=None if required else default,
        help=text + _shown_default(default),
        metavar=metadata["metavar"],
        nargs="+" if lists else None,
        choices=get_args(item) if get_origin(item) is Literal else None,
        type=_parser_of(item, metadata["at_least"]),
    )


def _alternatives(hint: Any) -> list[Any]:
    """The types of a union, without None."""
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not NoneType]


def _shown_default(default: Any) -> str:
    """The default behind the help; nothing where the help itself says what None means."""
    if default is None or default is dataclasses.MISSING:
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
