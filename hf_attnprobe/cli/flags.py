"""Flags, made from the classes of options that the commands' functions take."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hf_attnprobe.options import Options, from_flat


T = TypeVar("T", bound=Options)
Parser = argparse.ArgumentParser | argparse._ArgumentGroup


DATA_HELP = (
    "name (sst, imdb, agnews, …), Hub id, or a folder that datasets.load_dataset reads"
)


def at_least(
    least: float, kind: Callable[[str], int | float] = int
) -> Callable[[str], int | float]:
    """The type of a flag whose numbers start at ``least``."""

    def number(text: str) -> int | float:
        if not kind(text) >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, got {text}")
        return kind(text)

    return number


def add_options(
    parser: Parser,
    kind: type[Options],
    fields: Sequence[str] | None = None,
    *,
    leave_out: Sequence[str] = (),
) -> None:
    """One flag for each field of a class of options.

    Args:
        parser: a parser, or a group of one.
        kind: the class; type, choices, help and default are those of its fields.
        fields: the fields that the command uses; None for all.
        leave_out: fields that it does not use.
    """
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        used = fields is None or field.name in fields
        if used and field.name not in leave_out:
            _add_option(parser, field, hints[field.name])


def _add_option(parser: Parser, field: dataclasses.Field, hint: Any) -> None:
    flag, said = field.name.replace("_", "-"), field.metadata["help"]
    if hint is bool and field.default:
        settings = {
            "dest": field.name,
            "action": "store_false",
            "help": f"do not {_escaped(said)}",
        }
        parser.add_argument(f"--no-{flag}", **settings)
    elif hint is bool:
        parser.add_argument(f"--{flag}", action="store_true", help=_escaped(said))
    else:
        settings = _settings(hint, field.metadata)
        required = field.default is dataclasses.MISSING
        default = None if required else field.default
        parser.add_argument(
            f"--{flag}",
            required=required,
            default=default,
            help=_escaped(said, default),
            **settings,
        )


def _escaped(said: str, default: Any = None) -> str:
    """Help as argparse formats it, with the default where there is one."""
    said = said.replace("%", "%%")
    return said if default is None else f"{said} (default: %(default)s)"


def _settings(hint: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Type, choices and number of values of an option's type.

    >>> _settings(Literal["a", "b"] | None, {})
    {'choices': ('a', 'b')}
    """
    kinds = _alternatives(hint)
    several = [kind for kind in kinds if get_origin(kind) not in (None, Literal)]
    if several:
        kinds = list(get_args(several[0]))
    found: dict[str, Any] = {"nargs": "+"} if several else {}
    if metadata.get("metavar"):
        found["metavar"] = metadata["metavar"]
    if get_origin(kinds[0]) is Literal:
        return {**found, "choices": get_args(kinds[0])}
    number = next((kind for kind in (float, int) if kind in kinds), None)
    if number is None or str in kinds:
        return found
    least = metadata.get("at_least")
    return {**found, "type": number if least is None else at_least(least, number)}


def _alternatives(hint: Any) -> list[Any]:
    """The types of a union, without None."""
    if get_origin(hint) not in (Union, UnionType):
        return [hint]
    return [kind for kind in get_args(hint) if kind is not NoneType]


def take(arguments: dict[str, Any], kind: type[T]) -> T:
    """The options of ``kind`` among parsed arguments, which lose them."""
    options = from_flat(arguments, kind)
    for field in dataclasses.fields(kind):
        arguments.pop(field.name, None)
    return options


def add_data(parser) -> None:
    """One data set, its columns, and the seed."""
    parser.add_argument("--dataset", required=True, help=DATA_HELP)
    add_columns(parser)
    parser.add_argument("--seed", type=at_least(0), default=0)


def add_columns(parser) -> None:
    """What in a data set the texts are."""
    parser.add_argument(
        "--config", help="configuration of the data set, where it has several"
    )
    parser.add_argument(
        "--text-column",
        nargs="+",
        metavar="COLUMN",
        help="default: text, else sentence; several are joined by a space",
    )
    parser.add_argument("--label-column", help="default: label")


def add_training_limit(parser) -> None:
    """How many texts to train on."""
    parser.add_argument(
        "--limit",
        type=at_least(1),
        help="only so many training texts, even over the classes",
    )


def add_json(parser, what: str = "summary") -> None:
    """The form of the output."""
    parser.add_argument("--json", action="store_true", help=f"print the {what} as JSON")
