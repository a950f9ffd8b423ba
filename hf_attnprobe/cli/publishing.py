"""card: what a checkpoint's README says, and its way to the Hub."""

import argparse
import sys
from typing import Any

from hf_attnprobe.cli.flags import add_options
from hf_attnprobe.hub.options import CardOptions
from hf_attnprobe.options import from_flat
from hf_attnprobe.terminal import show


def add_card(parser: argparse.ArgumentParser) -> None:
    """Flags of card."""
    parser.add_argument("model", metavar="MODEL", help="folder of a checkpoint")
    parser.add_argument(
        "audits",
        nargs="*",
        metavar="AUDIT",
        help="output folders of its audits (default: the card says that it was not audited)",
    )
    add_options(parser, CardOptions)


def run_card(arguments: dict[str, Any]) -> None:
    """Writes a checkpoint's card, and publishes both where that is asked for."""
    from hf_attnprobe.hub.publish import announcement, write_card

    options = from_flat(arguments, CardOptions)
    if options.push_to_hub is not None:
        show(announcement(options, len(arguments["audits"])), file=sys.stderr)
    show(write_card(arguments["model"], arguments["audits"], options=options))
