"""Flags that several commands have, and their kinds."""

import argparse
from collections.abc import Callable


DATA_HELP = (
    "name (sst, imdb, agnews, …), Hub id, or a folder that datasets.load_dataset reads"
)


def at_least(least: int, kind: Callable = int) -> Callable[[str], int | float]:
    """The type of a flag whose numbers start at ``least``."""

    def number(text: str) -> int | float:
        if not kind(text) >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return kind(text)

    return number


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


def add_adversaries(parser) -> None:
    """How adversaries are trained."""
    parser.add_argument(
        "--lambdas",
        type=at_least(0, float),
        nargs="+",
        metavar="LAMBDA",
        help="of the adversaries",
    )
    parser.add_argument(
        "--adversary-epochs",
        type=at_least(1),
        default=80,
        help="at most (default: %(default)s)",
    )


def add_json(parser, what: str = "summary") -> None:
    """The form of the output."""
    parser.add_argument("--json", action="store_true", help=f"print the {what} as JSON")
