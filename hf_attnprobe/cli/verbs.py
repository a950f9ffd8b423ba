"""What each command takes, and what it prints: flags made into options, results shown."""

import argparse
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit
from urllib.request import getproxies

from hf_attnprobe.audits.options import (
    AuditOptions,
    Weights,
    options_of_tests,
)
from hf_attnprobe.cli.flags import (
    CommandParser,
    add_answers,
    add_audited,
    add_help_all,
    add_json,
    add_options,
    add_tests,
    add_verbose,
    asked,
    data_of,
)
from hf_attnprobe.core.options import SavedModel, check_path, from_flat
from hf_attnprobe.core.progress import say
from hf_attnprobe.core.terminal import show
from hf_attnprobe.data.specs import Data
from hf_attnprobe.demonstration import (
    DemoOptions,
    demo,
    demo_language_model,
    rationale_line,
)
from hf_attnprobe.integrations.card_options import CardOptions, PublishingOptions
from hf_attnprobe.planted_effects.options import SpikeOptions
from hf_attnprobe.retraining.options import KINDS as RETRAININGS
from hf_attnprobe.retraining.options import DeceptionOptions, RetrainOptions
from hf_attnprobe.storage.folders import check_usable
from hf_attnprobe.studies.steps import StudyOptions
from hf_attnprobe.training.options import Architecture, TrainingOptions


if TYPE_CHECKING:
    from hf_attnprobe.data.catalog import KnownDataset
    from hf_attnprobe.reports.comparison import AuditComparison
    from hf_attnprobe.reports.report import Report


FAILED = 3
"""Exit code of an audit that meets a condition of ``--fail-on``."""
FAILING = ("yes", "partly", "no", "cannot-say")
"""The answers, each as one word."""


def add_audit(parser: CommandParser) -> None:
    """Flags of audit: of the data, the audit, and its tests."""
    add_help_all(parser)
    add_audited(parser)
    add_answers(parser)
    _add_printed(parser)
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="say how long each test will take, from a first round of a few texts and heads, and end",
    )
    parser.add_argument(
        "--fail-on",
        nargs="+",
        default=(),
        metavar="CONDITION",
        help=f"end with exit code {FAILED} where the answer is one of these "
        f"({', '.join(FAILING)}), or where a score is so: 'faithfulness<.5' 'accuracy<.9'",
    )


def _add_printed(parser: CommandParser) -> None:
    """Flags that say where an audit goes, and what is printed of it."""
    parser.add_argument(
        "--output-dir",
        metavar="FOLDER",
        help="folder for rows, summary.json, report.md and report.html; run again with "
        "the same folder to continue (default: keep nothing)",
    )
    add_json(parser)
    add_verbose(parser)


def add_judge(parser: CommandParser) -> None:
    """Flags of judge: those of audit, and the scores."""
    add_help_all(parser)
    parser.add_argument(
        "--scores",
        required=True,
        metavar="FILE",
        help="csv, tsv, json, jsonl or parquet with the columns id and score; score is a list for each text, or "
        "a number with unit (from 0), with start and end of a span of characters, or with source, "
        "words of a passage; a column token is checked against the model's tokens",
    )
    add_audited(
        parser,
        "input_erasure, erasure, and shapley over 8 phrases; of a language model sources",
    )
    _add_printed(parser)


def add_compare(parser: CommandParser) -> None:
    """Flags of compare: those of audit, and the models."""
    add_help_all(parser)
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="two models or more (folders or Hub ids); each is compared with the first",
    )
    add_audited(parser, model=False)
    add_answers(parser)
    _add_comparison(parser)


def add_survive(parser: CommandParser) -> None:
    """Flags of survive: those of audit, and the versions."""
    add_help_all(parser)
    parser.add_argument(
        "--versions",
        nargs="+",
        required=True,
        metavar="VERSION",
        help="what to compare the model with: its weights changed "
        f"({', '.join(get_args(Weights))}), or other models (folders or Hub ids)",
    )
    add_audited(parser)
    add_answers(parser)
    _add_comparison(parser)


def _add_comparison(parser: CommandParser) -> None:
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for an audit of each and the comparison; run again with the same folder "
        "to continue",
    )
    _add_fail_on_change(parser)
    add_json(parser, "comparison")


def _add_fail_on_change(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on-change",
        action="store_true",
        help=f"end with exit code {FAILED}, and a line for each, where another answer than the "
        "first's is certain",
    )


def add_report(parser: argparse.ArgumentParser) -> None:
    """Flags of report."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="output folder of a verb; several audits are compared, shares of one joined",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write, in the form that its ending names: .html, .md, .json or .csv "
        "(default: print what the verb printed)",
    )
    parser.add_argument(
        "--figures",
        metavar="FOLDER",
        help="folder for the figures of an audit or a retraining, as SVG and PDF",
    )
    _add_fail_on_change(parser)


def run_audit(arguments: dict[str, Any]) -> int:
    """Audits and prints the report; its exit code is that of ``--fail-on``."""
    given = _audited(arguments)

    from hf_attnprobe.audits.api import audit
    from hf_attnprobe.core.distributed import process_state
    from hf_attnprobe.reports.ci_gate import conditions, failures

    wanted = conditions(arguments["fail_on"])
    if arguments["estimate"]:
        from hf_attnprobe.audits.pipeline import estimate_audit

        told = estimate_audit(**given)
        show(json.dumps(told.to_json()) if arguments["json"] else told.to_text())
        return 0
    report = audit(**given)
    _show_audit(report, arguments)
    reasons = failures(report, wanted)
    if not reasons:
        return 0
    if process_state().is_main_process:
        said = f"attnprobe: {'; '.join(reasons)}; --fail-on fails"
        show(said, file=sys.stderr)
    return FAILED


def run_judge(arguments: dict[str, Any]) -> None:
    """Judges scores that somebody gave, and prints the report."""
    given = _audited(arguments)

    from hf_attnprobe.audits.api import judge

    report = judge(scores=arguments["scores"], **given)
    _show_audit(report, arguments)


def _audited(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a verb is given that audits, by the names of its arguments."""
    return {
        "model": from_flat(arguments, SavedModel),
        "dataset": data_of(arguments),
        "options": from_flat(arguments, AuditOptions),
        "tests": asked(arguments, options_of_tests),
        "output_dir": arguments["output_dir"],
    }


def _show_audit(report: "Report", arguments: Mapping[str, Any]) -> None:
    """Prints a report in the form that is asked for, from one process."""
    from hf_attnprobe.audits.options import folder_of
    from hf_attnprobe.core.distributed import process_state
    from hf_attnprobe.reports.report import place_line
    from hf_attnprobe.reports.result import to_json

    if not process_state().is_main_process:
        return
    if arguments["json"]:
        show(json.dumps(to_json(report)))
    else:
        show(report.to_text(verbose=arguments["verbose"]))
        folder, share = arguments["output_dir"], arguments["share"]
        if folder is not None and share is not None:
            folder = folder_of(folder, report.provenance["share"])
        show(place_line(folder))


def run_compare(arguments: dict[str, Any]) -> int:
    """Audits several models alike and prints how they differ from the first."""
    model, *versions = arguments["models"]
    return run_survive({**arguments, "model": model, "versions": versions})


def run_survive(arguments: dict[str, Any]) -> int:
    """Audits versions of a model and prints what they change."""
    given = _audited(arguments)
    versions = [
        word if word in get_args(Weights) else replace(given["model"], model=word)
        for word in arguments["versions"]
    ]

    from hf_attnprobe.audits.compare import survive
    from hf_attnprobe.core.distributed import process_state

    comparison = survive(versions=versions, **given)
    if process_state().is_main_process:
        if arguments["json"]:
            show(comparison.to_json())
        else:
            show(comparison, end="\n\n")
            show(
                f"page {Path(arguments['output_dir']) / 'report.html'}; an audit beside it of each"
            )
    return _changed(comparison, arguments)


def _changed(comparison: "AuditComparison", arguments: Mapping[str, Any]) -> int:
    """Says each answer that is another for certain, in a line; the exit code."""
    from hf_attnprobe.core.distributed import process_state
    from hf_attnprobe.reports.comparison import changed_answers

    changed = changed_answers(comparison)
    if process_state().is_main_process:
        for sentence in changed:
            show(f"attnprobe: changed: {sentence}", file=sys.stderr)
    return FAILED if changed and arguments["fail_on_change"] else 0


def run_report(arguments: dict[str, Any]) -> int:
    """Shows results again, in the form that is asked for."""
    from hf_attnprobe.render import (
        render_report,
        save_figures,
        terminal_report,
    )

    folders, figures = arguments["folders"], arguments["figures"]
    if figures is not None:
        save_figures(folders, figures)
        show(f"figures in {figures}")
    if arguments["output"] is not None:
        render_report(folders, arguments["output"])
        show(f"report in {arguments['output']}")
    elif figures is None:
        show(terminal_report(folders))
    if not arguments["fail_on_change"]:
        return 0
    from hf_attnprobe.reports.comparison import compare_audits

    return _changed(compare_audits(folders), arguments)


# --- demo, train, retrain and deceive: the commands that train models ----------------------------

FOR_CLASSIFIERS = ("model", "task", "gguf_file", "token")
"""Of a saved model what stands elsewhere among the flags of a training, or means nothing."""
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
    add_options(parser, SavedModel, leave_out=FOR_CLASSIFIERS)
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
    add_tests(parser, RETRAININGS, "all of them", lambda: RETRAININGS)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for models, rows and report; run again with the same folder to continue",
    )
    add_options(parser, RetrainOptions)
    add_json(parser)
    add_verbose(parser)


def add_deceive(parser: CommandParser) -> None:
    """Flags of deceive."""
    add_help_all(parser)
    add_options(parser, SavedModel, leave_out=["task", "gguf_file"])
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
    folder, options = (
        Path(arguments["output_dir"]),
        from_flat(arguments, DemoOptions),
    )
    verbose = arguments["verbose"]

    from hf_attnprobe.reports.report import place_line

    if options.language_model:
        report = demo_language_model(folder, seed=options.seed)
        show(report.to_text(verbose=verbose))
        show(place_line(folder / "audit"))
        return
    report, metrics = demo(folder, options=options)
    show(report.to_text(verbose=verbose))
    show(place_line(folder / "audit"), end="\n\n")
    if verbose:
        show(f"Model\n  {', '.join(_scores(metrics, '{} {:.3f}'))}\n")
    show(rationale_line(report))


def run_train(arguments: dict[str, Any]) -> None:
    """Trains on the splits train and validation; scores the test split where there is one."""
    from_flat(arguments, PublishingOptions)  # refused before anything is trained
    data, options = (
        from_flat(arguments, Data),
        from_flat(arguments, TrainingOptions),
    )
    architecture = from_flat(arguments, Architecture)

    from hf_attnprobe.core.distributed import process_state
    from hf_attnprobe.training.run import train

    is_tuned = arguments["model"] is not None
    _, _, metrics = train(
        data,
        output_dir=arguments["output_dir"],
        model=from_flat(arguments, SavedModel) if is_tuned else None,
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
    from hf_attnprobe.integrations.publishing import write_card

    written = write_card(arguments["output_dir"], options=from_flat(arguments, CardOptions))
    show(written, file=sys.stderr)


def run_retrain(arguments: dict[str, Any]) -> None:
    """Trains models beside a base and prints what they say of it."""
    data, options = (
        from_flat(arguments, Data),
        from_flat(arguments, RetrainOptions),
    )

    from hf_attnprobe.reports.report import place_line
    from hf_attnprobe.retraining.run import retrain
    from hf_attnprobe.retraining.verdict import to_json

    report = retrain(
        arguments["model"],
        data,
        asked(arguments, lambda: RETRAININGS),
        output_dir=arguments["output_dir"],
        options=options,
    )
    if arguments["json"]:
        show(json.dumps(to_json(report)))
    else:
        show(report.to_text(verbose=arguments["verbose"]))
        show(place_line(arguments["output_dir"]))


def run_deceive(arguments: dict[str, Any]) -> None:
    """Trains a model against attention to some tokens and prints what became of both."""
    data, options = (
        from_flat(arguments, Data),
        from_flat(arguments, DeceptionOptions),
    )

    from hf_attnprobe.retraining.deception import deceive, deception_data

    deception = deceive(
        from_flat(arguments, SavedModel),
        data,
        arguments["tokens"],
        output_dir=arguments["output_dir"],
        options=options,
    )
    if arguments["json"]:
        show(json.dumps(deception_data(deception)))
    else:
        show(f"{deception}\nmodel in {arguments['output_dir']}")


def _scores(metrics: dict[str, float], form: str) -> list[str]:
    """Name and value of every score."""
    return [form.format(name.replace("_", " "), metrics[name]) for name in metrics]


# --- study: many steps, one report ---------------------------------------------------------------


def add_study(parser: argparse.ArgumentParser) -> None:
    """Flags of study."""
    parser.add_argument(
        "study",
        metavar="STUDY",
        help="a Python file with a function study(steps), whose code is run; or a study of the "
        "package: encoders, room, transfer, which-tasks; or the tables of a paper: jain-wallace, "
        "mohankumar, serrano-smith, tutek-snajder, wiegreffe-pinter",
    )
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for steps and report; run again with the same folder to continue",
    )
    add_options(parser, StudyOptions)
    add_json(parser)


def run_study(arguments: dict[str, Any]) -> None:
    """Runs a study, or the rest of it, and prints the report."""
    folder = Path(arguments["output_dir"])
    options = from_flat(arguments, StudyOptions)

    from hf_attnprobe.studies.builtin import check_study

    check_study(arguments["study"])

    from hf_attnprobe.core.serialization import plain
    from hf_attnprobe.studies.run import study

    report = study(arguments["study"], output_dir=folder, options=options)
    if arguments["json"]:
        show(json.dumps(plain(report)))
    else:
        show(f"{report}\n\nfull report in {folder / 'report.md'}")


# --- spike: what the tests see of an effect of known size ----------------------------------------


def add_spike(parser: CommandParser) -> None:
    """Flags of spike."""
    add_help_all(parser)
    parser.add_argument("model", metavar="MODEL", help="folder or Hub id of the model")
    parser.add_argument("--output-dir", help="folder for spike_in.json, its page and rows.csv")
    add_options(parser, SpikeOptions)
    add_options(parser, Data, leave_out=["train_limit"])
    add_answers(parser)
    add_json(parser)


def run_spike(arguments: dict[str, Any]) -> None:
    """Plants an effect of known size in copies of a model and prints what sees it."""
    from hf_attnprobe.planted_effects.detection_limit import spike_in

    planted = from_flat(arguments, SpikeOptions)
    folder = arguments["output_dir"]
    seen = spike_in(arguments["model"], data_of(arguments), folder, options=planted)
    show(seen.to_json() if arguments["json"] else str(seen))


# --- card: what a checkpoint's README says, and its way to the Hub -------------------------------


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
    from hf_attnprobe.integrations.publishing import announcement, write_card

    options = from_flat(arguments, CardOptions)
    if options.push_to_hub is not None:
        show(announcement(options, len(arguments["audits"])), file=sys.stderr)
    show(write_card(arguments["model"], arguments["audits"], options=options))


# --- datasets: the data sets that have a name ----------------------------------------------------

HEADER = (
    "name",
    "task",
    "train / validation / test",
    "classes",
    "at hand",
    "source",
)


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
    from hf_attnprobe.data.catalog import known_datasets

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


# --- all commands --------------------------------------------------------------------------------


COMMANDS: dict[str, Callable[[dict[str, Any]], int | None]] = {
    "demo": run_demo,
    "train": run_train,
    "audit": run_audit,
    "judge": run_judge,
    "retrain": run_retrain,
    "study": run_study,
    "compare": run_compare,
    "survive": run_survive,
    "deceive": run_deceive,
    "spike": run_spike,
    "report": run_report,
    "card": run_card,
    "datasets": run_datasets,
}


FLAGS: dict[str, tuple[Callable[[CommandParser], None], str, str]] = {
    "demo": (
        add_demo,
        "train and audit on generated data whose deciding words are known",
        "--output-dir attnprobe-demo",
    ),
    "train": (
        add_train,
        "train an attention classifier",
        "--dataset sst --output-dir bilstm-sst",
    ),
    "audit": (
        add_audit,
        "run faithfulness tests on a model",
        "--model bilstm-sst --dataset sst --time 10m",
    ),
    "judge": (
        add_judge,
        "run tests of rankings on scores that somebody gave the tokens",
        "--model bert --dataset sst --scores shap.csv",
    ),
    "retrain": (
        add_retrain,
        "run the tests that train models (Wiegreffe & Pinter 2019)",
        "--model bilstm-sst --dataset sst --output-dir beside",
    ),
    "study": (
        add_study,
        "run a study of many steps or a paper's tables, with one report",
        "jain-wallace --dataset sst --output-dir table --quick",
    ),
    "compare": (
        add_compare,
        "audit several models alike and compare each with the first",
        "bert-1 bert-2 --dataset sst --output-dir both",
    ),
    "survive": (
        add_survive,
        "ask whether rounding or other changes of a model change the answer",
        "--model bert --dataset sst --versions int8 --output-dir rounded",
    ),
    "deceive": (
        add_deceive,
        "train a model to hide its attention to some tokens",
        "--model bilstm-sst --dataset sst --tokens he she --output-dir hidden",
    ),
    "spike": (
        add_spike,
        "ask what the tests see of an effect of known size in a model",
        "bert --dataset sst --output-dir seen",
    ),
    "report": (
        add_report,
        "render the report of an audit",
        "audit --output page.html",
    ),
    "card": (
        add_card,
        "write a checkpoint's model card, and publish both on the Hub",
        "bilstm-sst audit",
    ),
    "datasets": (
        add_datasets,
        "list the data sets that have a name, and what to bring",
        "sst",
    ),
}
"""What adds the flags of a command, what its help says, and an example of the flags."""


def run(words: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    arguments = vars(build_parser().parse_args(words))
    command = arguments.pop("command")
    check_places(arguments)
    if _may_ask_the_hub(arguments) and not _reaches_the_hub():
        os.environ["HF_HUB_OFFLINE"] = "1"  # else it is tried for a minute
    with _log_on_stderr():
        return COMMANDS[command](arguments) or 0


HUB = "https://huggingface.co"
SECONDS_TO_REACH = 3.0


def _may_ask_the_hub(arguments: Mapping[str, Any]) -> bool:
    """Whether a command loads a model or data that are not on this disk."""
    if "dataset" not in arguments:
        return False
    model = arguments.get("model") or arguments.get("models") or "."
    places = (str(one).rpartition("=")[2] for one in (model, arguments["dataset"]))
    return not all(Path(place).exists() for place in places)


def _reaches_the_hub() -> bool:
    """Whether the Hub answers, as far as is seen; behind a proxy nothing is."""
    if getproxies().keys() - {"no"} or "HF_HUB_OFFLINE" in os.environ:
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT", HUB))
    port = hub.port or (80 if hub.scheme == "http" else 443)
    with suppress(OSError):
        socket.create_connection((hub.hostname, port), SECONDS_TO_REACH).close()
        return True
    return False


def build_parser() -> CommandParser:
    """All commands and flags."""
    parser = CommandParser(
        prog="attnprobe",
        usage="attnprobe COMMAND [FLAG ...]",
        description="Does this model's attention explain its predictions?",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {version('hf_attnprobe')}",
    )
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        prog="attnprobe",
        title="commands",
        metavar="COMMAND",
    )
    for name, (add_flags, said, example) in FLAGS.items():
        epilog = f"for example: attnprobe {name} {example}"
        add_flags(commands.add_parser(name, help=said, epilog=epilog))
    return parser


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows the log of this package, and not those of the libraries below it."""
    log = logging.getLogger("hf_attnprobe")
    level, handler = log.level, _BesideBar()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _BesideBar(logging.Handler):
    """Writes to stderr, above a bar that is open."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def check_places(arguments: Mapping[str, Any]) -> None:
    """Checks what can be checked of paths before anything is imported that takes seconds.

    Raises:
        AttnProbeError: a path where nothing is, or a folder that cannot be written to.
    """
    models = [arguments.get("model"), *arguments.get("models", ())]
    for model in filter(None, models):
        check_path("model", model)
    if arguments.get("dataset") is not None:
        from hf_attnprobe.data.sources import recipe_of

        recipe_of(arguments["dataset"])
    output_dir = arguments.get("output_dir")
    if output_dir is not None and "://" not in output_dir:
        check_usable(output_dir)
