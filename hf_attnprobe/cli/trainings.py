"""demo, train, retrain and deceive: the commands that train models."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from hf_attnprobe.cli.flags import (
    CommandParser,
    add_help_all,
    add_json,
    add_options,
    add_tests,
    add_verbose,
    asked,
)
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.deception.options import DeceptionOptions
from hf_attnprobe.demonstration import (
    DemoOptions,
    demo,
    rationale_line,
    rationale_sentences,
)
from hf_attnprobe.hub.options import CardOptions, PublishingOptions
from hf_attnprobe.options import Options, from_flat
from hf_attnprobe.retraining import TESTS
from hf_attnprobe.retraining.options import RetrainOptions
from hf_attnprobe.terminal import show
from hf_attnprobe.training.options import Architecture, TrainingOptions


TESTING = ("split", "test_limit")
"""Data arguments that mean nothing where all splits are used."""


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Flags of demo."""
    parser.add_argument(
        "--output-dir",
        default="attnprobe-demo",
        help="folder for model and audit (default: %(default)s)",
    )
    add_options(parser, DemoOptions)
    add_verbose(parser)


def add_train(parser: CommandParser) -> None:
    """Flags of train."""
    add_help_all(parser)
    add_options(parser, Data, leave_out=TESTING)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for the checkpoint; run again with the same folder to continue",
    )
    parser.add_argument(
        "--model",
        help="fine-tune this pretrained Transformer (folder or Hub id) instead of training an "
        "attention classifier",
    )
    add_options(parser, TrainingOptions)
    add_options(parser, Architecture)
    add_options(parser.add_argument_group("the Hub"), PublishingOptions)
    add_json(parser, "scores")


def add_retrain(parser: CommandParser) -> None:
    """Flags of retrain."""
    add_help_all(parser)
    parser.add_argument(
        "--model",
        required=True,
        help="folder or Hub id of the base model, an attention classifier",
    )
    add_options(parser, Data, leave_out=TESTING)
    add_tests(parser, TESTS, "all but rationale", of_retrainings)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for models, rows and report; run again with the same folder to continue",
    )
    add_options(parser, RetrainOptions)
    add_json(parser)
    add_verbose(parser)


def add_deceive(parser: argparse.ArgumentParser) -> None:
    """Flags of deceive."""
    parser.add_argument("--model", required=True, help="folder or Hub id of a trained classifier")
    add_options(parser, Data, leave_out=TESTING)
    parser.add_argument(
        "--tokens",
        nargs="+",
        required=True,
        metavar="TOKEN",
        help="impermissible tokens: the model learns to put no attention on them",
    )
    parser.add_argument("--output-dir", required=True, help="folder for the checkpoint")
    add_options(parser, DeceptionOptions)
    add_json(parser, "numbers")


def run_demo(arguments: dict[str, Any]) -> None:
    """Trains, audits, and prints the report and how well attention finds the rationale."""
    from hf_attnprobe.auditing.report import place_lines

    folder = Path(arguments["output_dir"])
    report, found, metrics = demo(folder, options=from_flat(arguments, DemoOptions))
    verbose = arguments["verbose"]
    show(report.to_text(verbose=verbose), end="\n\n")
    if verbose:
        show(f"Model\n  {', '.join(_scores(metrics, '{} {:.3f}'))}\n\nRationale")
        show("\n".join(f"  {line}" for line in rationale_sentences(found)), end="\n\n")
    else:
        show(rationale_line(found), end="\n\n")
    show(f"model    {folder / 'model'}")
    show("\n".join(place_lines(folder / "audit")))


def run_train(arguments: dict[str, Any]) -> None:
    """Trains on the splits train and validation; scores the test split where there is one."""
    from_flat(arguments, PublishingOptions)  # refused before anything is trained
    data, options = from_flat(arguments, Data), from_flat(arguments, TrainingOptions)
    architecture = from_flat(arguments, Architecture)

    from hf_attnprobe.distributed import process_state
    from hf_attnprobe.training.run import train

    _, _, metrics = train(
        data,
        output_dir=arguments["output_dir"],
        model=arguments["model"],
        architecture=vars(architecture),
        options=options,
    )
    if not process_state().is_main_process:
        return
    if arguments["json"]:
        shown = {"model": arguments["output_dir"], "seed": arguments["seed"]}
        show(json.dumps(shown | {"metrics": metrics}))
    else:
        show("\n".join(_scores(metrics, "{}: {:.3f}")))
        show(f"model in {arguments['output_dir']}")
    if arguments["push_to_hub"] is not None:
        _publish(arguments)


def _publish(arguments: dict[str, Any]) -> None:
    """Publishes what was trained; says where on stderr, since stdout is for scores."""
    from hf_attnprobe.hub.publish import write_card

    written = write_card(arguments["output_dir"], options=from_flat(arguments, CardOptions))
    show(written, file=sys.stderr)


def of_retrainings() -> dict[str, type[Options]]:
    """The classes of the options of the tests that train models."""
    from hf_attnprobe.retraining.registry import retrainings

    return {name: test.options for name, test in retrainings().items()}


def run_retrain(arguments: dict[str, Any]) -> None:
    """Trains models beside a base and prints what they say of it."""
    data, options = from_flat(arguments, Data), from_flat(arguments, RetrainOptions)

    from hf_attnprobe.auditing.report import place_lines
    from hf_attnprobe.retraining.result import to_json
    from hf_attnprobe.retraining.run import retrain

    report = retrain(
        arguments["model"],
        data,
        asked(arguments, of_retrainings),
        output_dir=arguments["output_dir"],
        options=options,
    )
    if arguments["json"]:
        show(json.dumps(to_json(report)))
    else:
        show(report.to_text(verbose=arguments["verbose"]), end="\n\n")
        show("\n".join(place_lines(arguments["output_dir"])))


def run_deceive(arguments: dict[str, Any]) -> None:
    """Trains a model against attention to some tokens and prints what became of both."""
    data, options = from_flat(arguments, Data), from_flat(arguments, DeceptionOptions)

    from hf_attnprobe.deception.report import to_json
    from hf_attnprobe.deception.run import deceive

    deception = deceive(
        arguments["model"],
        data,
        arguments["tokens"],
        output_dir=arguments["output_dir"],
        options=options,
    )
    if arguments["json"]:
        show(json.dumps(to_json(deception)))
    else:
        show(f"{deception}\nmodel in {arguments['output_dir']}")


def _scores(metrics: dict[str, float], form: str) -> list[str]:
    """Name and value of every score."""
    return [form.format(name.replace("_", " "), metrics[name]) for name in metrics]
