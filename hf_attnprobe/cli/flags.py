"""Flags generated from option classes, and flags that several commands have."""

import argparse
import dataclasses
from collections.abc import Callable, Collection, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hf_attnprobe.options import Options


DATA_HELP = (
    "name (sst, imdb, agnews, …), Hub id, or a folder that datasets.load_dataset reads"
)


def at_least(least: float, kind: Callable = int) -> Callable[[str], int | float]:
    """The type of a flag whose numbers start at ``least``."""

    def number(text: str) -> int | float:
        if not kind(text) >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return kind(text)

    number.__name__ = kind.__name__  # argparse names it where the text is no number
    return number


def add_options(
    parser: argparse.ArgumentParser,
    kind: type[Options],
    *,
    leave_out: Collection[str] = (),
) -> None:
    """One flag for every field of an option class: its type, range, help and default."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name not in leave_out:
            flag = "--" + field.name.replace("_", "-")
            add_flag(parser, flag, field, hints[field.name])


def add_flag(
    parser: argparse.ArgumentParser, flag: str, field: dataclasses.Field, hint: Any
) -> None:
    """The flag of one option."""
    alternatives = [hint]
    if get_origin(hint) in (Union, UnionType):
        alternatives = [kind for kind in get_args(hint) if kind is not NoneType]
    help = field.metadata["help"]
    if alternatives == [bool]:
        action = "store_false" if field.default is True else "store_true"
        flag = flag.replace("--", "--no-", 1) if field.default is True else flag
        parser.add_argument(
            flag, dest=field.name, action=action, default=field.default, help=help
        )
        return
    arguments: dict[str, Any] = {"metavar": field.metadata["metavar"]}
    if field.default is dataclasses.MISSING:
        arguments["required"] = True
    else:
        arguments["default"] = field.default
        if field.default is not None and not isinstance(field.default, Sequence):
            help = f"{help} (default: %(default)s)"
    item = alternatives[0]
    sequence = [
        kind for kind in alternatives if get_origin(kind) not in (None, Literal)
    ]
    if sequence:
        arguments["nargs"] = "+"
        item = get_args(sequence[0])[0]
    if get_origin(item) is Literal:
        arguments["choices"] = get_args(item)
        arguments["metavar"] = None
    elif item in (int, float):
        least = field.metadata["at_least"]
        arguments["type"] = item if least is None else at_least(least, item)
    parser.add_argument(flag, help=help, **arguments)


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


def add_texts(parser) -> None:
    """The texts that are tested."""
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--limit",
        type=at_least(1),
        help="only so many texts, drawn by their ids: always the same ones",
    )


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
