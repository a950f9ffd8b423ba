"""study: many steps, one report."""

import argparse
import json
from pathlib import Path
from typing import Any

from hf_attnprobe.cli.flags import DATA_HELP, at_least


def add_study(parser: argparse.ArgumentParser) -> None:
    """Flags of study."""
    add = parser.add_argument
    add(
        "file",
        help="a YAML file; or a study of the package: encoders, room, transfer, "
        "which-tasks; or the tables of a paper: jain-wallace, mohankumar, "
        "serrano-smith, tutek-snajder, wiegreffe-pinter",
    )
    add(
        "--output-dir",
        required=True,
        help="for steps and report; run again with the same folder to continue",
    )
    add(
        "--quick", action="store_true", help="a short run, with the file's own settings"
    )
    add(
        "--dataset",
        nargs="+",
        metavar="DATASET",
        help=f"{DATA_HELP}, or name=folder: a folder that stands for a named data set "
        "and is cut as that one is (default: those of the file)",
    )
    add("--dataset-config", help="configuration of the data sets")
    add(
        "--text-column",
        nargs="+",
        metavar="COLUMN",
        help="default: text, else sentence; several are joined by a space",
    )
    add("--label-column", help="default: label")
    add(
        "--train-limit",
        type=at_least(1),
        help="train on only so many texts, even over the classes",
    )
    add("--seed", type=at_least(0), default=0, help="of the steps that set none")
    add("--word-vectors", help="pretrained word vectors for trainings that name none")
    add("--json", action="store_true", help="print the summary as JSON")


def run_study(arguments: dict[str, Any]) -> None:
    """Runs a study file, or the rest of it, and prints the report."""
    from hf_attnprobe.options import from_flat
    from hf_attnprobe.studies.options import StudyOptions
    from hf_attnprobe.studies.report import to_json
    from hf_attnprobe.studies.run import study

    folder = Path(arguments["output_dir"])
    options = from_flat(arguments, StudyOptions)
    report = study(arguments["file"], output_dir=folder, options=options)
    if arguments["json"]:
        print(json.dumps(to_json(report)))
    else:
        print(f"{report}\n\nfull report in {folder / 'report.md'}")
