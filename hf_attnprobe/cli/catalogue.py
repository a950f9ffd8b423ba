"""datasets: the data sets that have a name."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from hf_attnprobe.cli.flags import add_json
from hf_attnprobe.terminal import show


if TYPE_CHECKING:
    from hf_attnprobe.data.catalogue import KnownDataset


HEADER = ("name", "task", "train / validation / test", "classes", "at hand", "source")


def add_datasets(parser: argparse.ArgumentParser) -> None:
    """Flags of datasets."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="data sets to say all of; NAME=FOLDER reads the folder and counts its texts "
        "(default: a row for each)",
    )
    add_json(parser, "data sets")


def run_datasets(arguments: dict[str, Any]) -> None:
    """Lists the data sets that have a name, or says what to bring for some."""
    from hf_attnprobe.data.catalogue import known_datasets

    known = known_datasets(*arguments["names"])
    if arguments["json"]:
        show(json.dumps([dataset.to_json() for dataset in known]))
    elif arguments["names"]:
        show("\n\n".join(map(str, known)))
    else:
        show(_table(known))


def _table(known: "list[KnownDataset]") -> str:
    """A row for each data set, in columns, and the licences below."""
    rows = [HEADER, *map(_cells, known)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(n) for cell, n in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.append("\nLicences")
    names: dict[str, list[str]] = {}
    for dataset in known:
        names.setdefault(dataset.card.licence, []).append(dataset.name)
    lines += [f"  {', '.join(who)}: {licence}" for licence, who in names.items()]
    lines.append(
        "\n`attnprobe datasets NAME` says which files to bring and how they are cut. "
        "A folder stands for a name as NAME=FOLDER."
    )
    return "\n".join(lines)


def _cells(dataset: "KnownDataset") -> tuple[str, ...]:
    card = dataset.card
    return (
        dataset.name,
        card.task,
        card.sizes_in_words(),
        str(card.n_classes or "–"),
        "yes" if dataset.at_hand else "no",
        dataset.source if dataset.is_on_hub else "files to bring",
    )
