"""study: many steps, one report."""

import argparse
import json
from pathlib import Path
from typing import Any

from hf_attnprobe.cli.flags import add_json, add_options
from hf_attnprobe.studies.options import StudyOptions
from hf_attnprobe.terminal import show


def add_study(parser: argparse.ArgumentParser) -> None:
    """Flags of study."""
    parser.add_argument(
        "file",
        help="a YAML file; or a study of the package: encoders, room, transfer, "
        "which-tasks; or the tables of a paper: jain-wallace, mohankumar, "
        "serrano-smith, tutek-snajder, wiegreffe-pinter",
    )
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for steps and report; run again with the same folder to continue",
    )
    add_options(parser, StudyOptions)
    add_json(parser)


def run_study(arguments: dict[str, Any]) -> None:
    """Runs a study file, or the rest of it, and prints the report."""
    from hf_attnprobe.options import from_flat
    from hf_attnprobe.studies.report import to_json
    from hf_attnprobe.studies.run import study

    folder = Path(arguments["output_dir"])
    options = from_flat(arguments, StudyOptions)
    report = study(arguments["file"], output_dir=folder, options=options)
    if arguments["json"]:
        show(json.dumps(to_json(report)))
    else:
        show(f"{report}\n\nfull report in {folder / 'report.md'}")
