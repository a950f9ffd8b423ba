"""study and reproduce: many steps, one report."""

import json
from collections.abc import Callable
from pathlib import Path

from hf_attnprobe.cli.flags import (
    DATA_HELP,
    add_columns,
    add_json,
    add_training_limit,
    at_least,
)


def add_study(parser) -> None:
    """Flags of study."""
    parser.add_argument(
        "file",
        help="a YAML file, or one that is ready: which-tasks, encoders, transfer, room, …",
    )
    _add_options(parser, needs_data=False)


def add_reproduce(parser) -> None:
    """Flags of reproduce."""
    parser.add_argument(
        "paper",
        help="jain-wallace, serrano-smith, wiegreffe-pinter, tutek-snajder or mohankumar",
    )
    _add_options(parser, needs_data=True)


def _add_options(parser, *, needs_data: bool) -> None:
    parser.add_argument(
        "--dataset",
        nargs="+",
        required=needs_data,
        metavar="DATASET",
        help=f"{DATA_HELP}, or name=folder: a folder that stands for a named one and is cut as it is"
        + ("" if needs_data else " (default: the file's)"),
    )
    parser.add_argument(
        "--output-dir",
        required=True,
        help="for steps and report; the same again continues",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a short run, with the file's own shorter settings",
    )
    add_columns(parser)
    add_training_limit(parser)
    parser.add_argument(
        "--seed", type=at_least(0), default=0, help="of all steps that set none"
    )
    parser.add_argument(
        "--vectors", help="pretrained word vectors for all trainings that name none"
    )
    add_json(parser)


def run_study(arguments: dict) -> None:
    """Runs a study file, or the rest of it, and prints the report."""
    from hf_attnprobe.studies.run import study

    _print(study, arguments)


def run_reproduce(arguments: dict) -> None:
    """Runs the study file of a paper, or the rest of it, and prints the report."""
    from hf_attnprobe.studies.run import reproduce

    _print(reproduce, arguments)


def _print(function: Callable, arguments: dict) -> None:
    from hf_attnprobe.studies.report import to_json

    as_json = arguments.pop("json")
    report = function(**arguments)
    if as_json:
        print(json.dumps(to_json(report)))
        return
    print(f"{report}\n\nfull report in {Path(arguments['output_dir']) / 'report.md'}")
