"""The commands of ``attnprobe``. Each has two functions: one adds its flags, the other runs it.

``COMMANDS`` contains the functions that run the commands. ``COMMAND_HELP`` contains the functions
that add their flags, with a help line and an example. Modules that import torch are imported inside
the functions, so that ``--help`` is fast.
"""

import argparse
import json
import logging
import math
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
    WeightChange,
    load_test_options,
)
from hf_attnprobe.citations.options import CiteOptions
from hf_attnprobe.cli.flags import (
    CommandParser,
    add_answer_flags,
    add_audit_flags,
    add_help_all_flag,
    add_json_flag,
    add_option_flags,
    add_test_flags,
    add_verbose_flag,
    build_data,
    parse_test_selection,
)
from hf_attnprobe.core.options import SavedModel, check_path, select_options
from hf_attnprobe.core.progress import print_line
from hf_attnprobe.core.terminal import print_text
from hf_attnprobe.data.specs import Data
from hf_attnprobe.demonstration import (
    DemoOptions,
    demo,
    demo_language_model,
    format_rationale_line,
)
from hf_attnprobe.integrations.card_options import CardOptions, PublishingOptions
from hf_attnprobe.maps.options import CHOOSING_SHARE, REFUSED_OPTIONS
from hf_attnprobe.planted_effects.options import DetectionLimitOptions
from hf_attnprobe.retraining.options import DEFAULT_RETRAINING_TESTS, RetrainOptions
from hf_attnprobe.retraining.options import OPTIONS_BY_TEST as RETRAININGS
from hf_attnprobe.storage.folders import check_writable
from hf_attnprobe.studies.steps import StudyOptions
from hf_attnprobe.training.options import Architecture, TrainingOptions


if TYPE_CHECKING:
    from hf_attnprobe.data.catalog import KnownDataset
    from hf_attnprobe.reports.comparison import AuditComparison
    from hf_attnprobe.reports.report import Report


CONDITION_MET_EXIT_CODE = 3
"""Exit code if a condition of ``--fail-on`` or ``--fail-on-change`` is met."""
ANSWER_CONDITIONS = ("yes", "partly", "no", "cannot-say")
"""Answers that can be used as a condition for ``--fail-on``, as in ``--fail-on no cannot-say``."""


def add_audit_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe audit``."""
    add_help_all_flag(parser)
    add_audit_flags(parser)
    add_answer_flags(parser)
    _add_output_flags(parser)
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="print how long each test will take, measured on a few texts and heads, and exit",
    )
    _add_fail_on(parser)


def _add_fail_on(parser: CommandParser) -> None:
    """Add ``--fail-on``, which reports the answer or a score through the exit code."""
    parser.add_argument(
        "--fail-on",
        nargs="+",
        default=(),
        metavar="CONDITION",
        help=f"exit with code {CONDITION_MET_EXIT_CODE} if the answer is one of "
        f"{', '.join(ANSWER_CONDITIONS)}, or if a score meets a condition such as "
        "'faithfulness<.5' or 'accuracy<.9'. With 'faithfulness<.5 surely', the whole confidence "
        "interval must meet the condition; with 'possibly', one end of it",
    )


def add_fit_map_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe fit-map``."""
    add_help_all_flag(parser)
    add_option_flags(parser.add_argument_group("the model"), SavedModel)
    parser.add_argument(
        "--choosing-share",
        type=float,
        default=CHOOSING_SHARE,
        metavar="SHARE",
        help="share of the texts by which the map is chosen, from 0.1 to 0.5; the others certify it "
        "(default: %(default)s)",
    )
    add_option_flags(parser.add_argument_group("data"), Data, excluded=["train_limit"])
    add_answer_flags(parser)
    audit_group = parser.add_argument_group("the audit of the certifying texts")
    add_option_flags(audit_group, AuditOptions, excluded=REFUSED_OPTIONS)
    parser.add_argument(
        "--output-dir",
        metavar="FOLDER",
        help="folder for attention_map.json (only if a map is certified), fit_map.json and the audit; "
        "the same command then reuses generated answers and the audit, but chooses the map again "
        "(default: nothing is saved)",
    )
    add_json_flag(parser, "result")


def _add_output_flags(parser: CommandParser) -> None:
    """Add ``--output-dir``, ``--json`` and ``--verbose``."""
    parser.add_argument(
        "--output-dir",
        metavar="FOLDER",
        help="folder for rows, summary.json, report.md and report.html; run the same command again "
        "to resume (default: nothing is saved)",
    )
    add_json_flag(parser)
    add_verbose_flag(parser)


def add_evaluate_scores_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe evaluate-scores``: all audit flags, and ``--scores``."""
    add_help_all_flag(parser)
    parser.add_argument(
        "--scores",
        required=True,
        metavar="FILE",
        help="csv, tsv, json, jsonl or parquet file with the columns id and score. The id of a text is "
        "its example_id: the value of this column of the data if it exists, otherwise the number of "
        "its row, counted from 0 (load_examples lists the ids). Each row of the file contains either "
        "all scores of a text as a list, or the score of one unit. In the second case, the "
        "unit is given by its number from 0 (column unit), its characters in the text (columns "
        "start and end) or its words (column source). If there is a column token, its values are "
        "compared with the model's tokens",
    )
    add_audit_flags(
        parser,
        "exchange, scale, erasure, input_erasure, and shapley over 8 phrases; for a language model, "
        "sources",
    )
    _add_output_flags(parser)
    _add_fail_on(parser)


def add_compare_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe compare``: all audit flags, and the models to compare."""
    add_help_all_flag(parser)
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a model (folder or Hub id), followed by the versions to compare with it: other "
        f"models, or changes to its weights ({', '.join(get_args(WeightChange))})",
    )
    add_audit_flags(parser, model=False)
    add_answer_flags(parser)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for one audit per model and for the comparison; run the same command again "
        "to resume",
    )
    _add_fail_on_change(parser)
    add_json_flag(parser, "comparison")


def _add_fail_on_change(parser: argparse.ArgumentParser) -> None:
    """Add ``--fail-on-change``, which reports changed answers through the exit code."""
    parser.add_argument(
        "--fail-on-change",
        action="store_true",
        help="if an answer certainly differs from the first audit's answer, print it and exit with "
        f"code {CONDITION_MET_EXIT_CODE}",
    )


def add_report_command(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``attnprobe report``."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="output folder of a command; several audits are compared, and shares of one audit are "
        "joined",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write; its suffix selects the format: .html, .md, .json or .csv "
        "(default: print the report as the command printed it)",
    )
    parser.add_argument(
        "--figures",
        metavar="FOLDER",
        help="folder for the figures of an audit or a retraining, as SVG, PDF and PNG files",
    )
    _add_fail_on_change(parser)


def run_audit(arguments: dict[str, Any]) -> int:
    """Run an audit, print its report, and return an exit code according to ``--fail-on``."""
    audit_arguments = _build_audit_arguments(arguments)

    from hf_attnprobe.audits.api import audit
    from hf_attnprobe.reports.ci_gate import list_failures, parse_conditions

    fail_conditions = parse_conditions(arguments["fail_on"])
    if arguments["estimate"]:
        from hf_attnprobe.audits.pipeline import estimate_audit

        estimate = estimate_audit(**audit_arguments)
        print_text(json.dumps(estimate.to_json()) if arguments["json"] else estimate.to_text())
        return 0
    report = audit(**audit_arguments)
    _print_audit(report, arguments)
    return _print_failures(list_failures(report, fail_conditions))


def _print_failures(reasons: Sequence[str]) -> int:
    """Print why the conditions of ``--fail-on`` are met, and return the exit code.

    Args:
        reasons: One reason for each condition that is met; empty if none is met.
    """
    from hf_attnprobe.core.distributed import get_process_state

    if not reasons:
        return 0
    if get_process_state().is_main_process:
        print_text(f"attnprobe: --fail-on: {'; '.join(reasons)}", file=sys.stderr)
    return CONDITION_MET_EXIT_CODE


def run_evaluate_scores(arguments: dict[str, Any]) -> int:
    """Evaluate user-provided scores, print the report, and return an exit code by ``--fail-on``."""
    audit_arguments = _build_audit_arguments(arguments)

    from hf_attnprobe.audits.api import evaluate_scores
    from hf_attnprobe.reports.ci_gate import (
        COMPARABLE_USER_SCORES,
        list_failures,
        parse_conditions,
    )

    fail_conditions = parse_conditions(arguments["fail_on"], scores=COMPARABLE_USER_SCORES)
    report = evaluate_scores(scores=arguments["scores"], **audit_arguments)
    _print_audit(report, arguments)
    return _print_failures(list_failures(report, fail_conditions))


def run_fit_map(arguments: dict[str, Any]) -> None:
    """Choose an attention map of a model, certify it on other texts, and print the result."""
    data = build_data(arguments)
    # Report a misspelt column before torch is imported and the model is loaded.
    data.check_named_columns()

    from hf_attnprobe.attention_map import MAP_FILE
    from hf_attnprobe.maps.fitting import CERTIFICATION_FOLDER, fit_map

    fitted = fit_map(
        select_options(arguments, SavedModel),
        data,
        choosing_share=arguments["choosing_share"],
        options=select_options(arguments, AuditOptions),
        output_dir=arguments["output_dir"],
    )
    if arguments["json"]:
        print_text(json.dumps(fitted.to_json()))
        return
    print_text(str(fitted))
    if arguments["output_dir"] is not None:
        folder = Path(arguments["output_dir"])
        if fitted.map is not None:
            print_text(f"map in {folder / MAP_FILE}")
        print_text(f"audit in {folder / CERTIFICATION_FOLDER}")


def _build_audit_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parsed flags to the keyword arguments that all audit functions share."""
    audit_arguments = {
        "model": select_options(arguments, SavedModel),
        "dataset": build_data(arguments),
        "options": select_options(arguments, AuditOptions),
        "tests": parse_test_selection(arguments, load_test_options),
        "output_dir": arguments["output_dir"],
    }
    # Report a misspelt column before torch is imported and the model is loaded.
    audit_arguments["dataset"].check_named_columns()
    return audit_arguments


def _print_audit(report: "Report", arguments: Mapping[str, Any]) -> None:
    """Print a report as text or JSON, from the first process only."""
    from hf_attnprobe.audits.options import get_share_folder
    from hf_attnprobe.core.distributed import get_process_state
    from hf_attnprobe.reports.report import format_page_line
    from hf_attnprobe.reports.result import convert_report_to_json

    if not get_process_state().is_main_process:
        return
    if arguments["json"]:
        print_text(json.dumps(convert_report_to_json(report)))
    else:
        folder, share = arguments["output_dir"], arguments["share"]
        print_text(report.to_text(verbose=arguments["verbose"], output_dir=folder))
        if folder is not None and share is not None:
            folder = get_share_folder(folder, report.provenance["share"])
        print_text(format_page_line(folder))


def run_compare(arguments: dict[str, Any]) -> int:
    """Audit a model and other versions of it, and print how their answers differ."""
    model, *names = arguments["models"]
    audit_arguments = _build_audit_arguments({**arguments, "model": model})
    versions = [
        name if name in get_args(WeightChange) else replace(audit_arguments["model"], model=name)
        for name in names
    ]

    from hf_attnprobe.audits.compare import compare
    from hf_attnprobe.core.distributed import get_process_state

    comparison = compare(versions=versions, **audit_arguments)
    if get_process_state().is_main_process:
        if arguments["json"]:
            print_text(comparison.to_json())
        else:
            print_text(comparison, end="\n\n")
            page = Path(arguments["output_dir"]) / "report.html"
            print_text(f"report in {page}; the audit of each model is in the same folder")
    return _report_changed_answers(comparison, arguments)


def _report_changed_answers(comparison: "AuditComparison", arguments: Mapping[str, Any]) -> int:
    """Print each answer whose change exceeds the uncertainty, and return the exit code."""
    from hf_attnprobe.core.distributed import get_process_state
    from hf_attnprobe.reports.comparison import list_changed_answers

    sentences = list_changed_answers(comparison)
    if get_process_state().is_main_process:
        for sentence in sentences:
            print_text(f"attnprobe: changed: {sentence}", file=sys.stderr)
    return CONDITION_MET_EXIT_CODE if sentences and arguments["fail_on_change"] else 0


def run_report(arguments: dict[str, Any]) -> int:
    """Print or save the report of one or more output folders."""
    from hf_attnprobe.render import (
        render_report,
        render_terminal_report,
        save_figures,
    )

    folders, figures = arguments["folders"], arguments["figures"]
    if figures is not None:
        save_figures(folders, figures)
        print_text(f"figures in {figures}")
    if arguments["output"] is not None:
        render_report(folders, arguments["output"])
        print_text(f"report in {arguments['output']}")
    elif figures is None:
        print_text(render_terminal_report(folders))
    if not arguments["fail_on_change"]:
        return 0
    from hf_attnprobe.reports.comparison import compare_audits

    return _report_changed_answers(compare_audits(folders), arguments)


# --- commands that train models ------------------------------------------------------------------

MODEL_FIELDS_NOT_FOR_TRAINING = ("model", "task", "gguf_file", "token")
"""Fields of ``SavedModel`` that are not converted to flags of ``train``.

``--model`` and ``--token`` are defined separately. The other fields have no effect on a training.
"""
TEST_SPLIT_FIELDS = ("split", "test_limit")
"""Fields of ``Data`` that select test texts.

Commands such as ``train`` use all splits of a data set, so they have no flags for these fields.
"""


def add_demo_command(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``attnprobe demo``."""
    parser.add_argument(
        "--output-dir",
        default="attnprobe-demo",
        help="folder for model and audit (default: %(default)s)",
    )
    add_option_flags(parser, DemoOptions)
    add_verbose_flag(parser)


def add_train_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe train``."""
    add_help_all_flag(parser)
    add_option_flags(parser, Data, excluded=TEST_SPLIT_FIELDS)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for the checkpoint; run the same command again to resume",
    )
    parser.add_argument(
        "--model",
        help="fine-tune this pretrained Transformer (folder or Hub id) instead of training an "
        "attention classifier",
    )
    add_option_flags(parser, SavedModel, excluded=MODEL_FIELDS_NOT_FOR_TRAINING)
    add_option_flags(parser, TrainingOptions)
    add_option_flags(parser, Architecture)
    add_option_flags(parser.add_argument_group("the Hub"), PublishingOptions)
    add_json_flag(parser, "scores")


def add_retrain_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe retrain``."""
    add_help_all_flag(parser)
    add_option_flags(parser, SavedModel, excluded=["task", "gguf_file"])
    add_option_flags(parser, Data, excluded=TEST_SPLIT_FIELDS)
    add_test_flags(parser, RETRAININGS, ", ".join(DEFAULT_RETRAINING_TESTS), lambda: RETRAININGS)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for models, rows and report; run the same command again to resume",
    )
    add_option_flags(parser, RetrainOptions)
    add_json_flag(parser)
    add_verbose_flag(parser)


def run_demo(arguments: dict[str, Any]) -> None:
    """Train and audit a small model, then print the report and the attention on the rationale."""
    folder = Path(arguments["output_dir"])
    options = select_options(arguments, DemoOptions)
    verbose = arguments["verbose"]

    from hf_attnprobe.reports.report import format_page_line

    if options.language_model:
        report = demo_language_model(folder, seed=options.seed)
        print_text(report.to_text(verbose=verbose))
        print_text(format_page_line(folder / "audit"))
        return
    report, metrics = demo(folder, options=options)
    print_text(report.to_text(verbose=verbose))
    print_text(format_page_line(folder / "audit"), end="\n\n")
    if verbose:
        print_text(f"Model\n  {', '.join(_format_scores(metrics, '{} {:.3f}'))}\n")
    print_text(format_rationale_line(report))


def run_train(arguments: dict[str, Any]) -> None:
    """Train a classifier, print its scores, and publish it if ``--push-to-hub`` is set."""
    # Invalid publishing options must be refused before the training, not after it.
    select_options(arguments, PublishingOptions)
    data = select_options(arguments, Data)
    options = select_options(arguments, TrainingOptions)
    architecture = select_options(arguments, Architecture)
    data.check_named_columns()

    from hf_attnprobe.core.distributed import get_process_state
    from hf_attnprobe.training.run import train

    is_fine_tuning = arguments["model"] is not None
    _, _, metrics = train(
        data,
        output_dir=arguments["output_dir"],
        model=select_options(arguments, SavedModel) if is_fine_tuning else None,
        architecture=vars(architecture),
        options=options,
    )
    if not get_process_state().is_main_process:
        return
    if arguments["json"]:
        settings = {"model": arguments["output_dir"], "seed": arguments["seed"]}
        print_text(json.dumps(settings | {"metrics": metrics}))
    else:
        print_text("\n".join(_format_scores(metrics, "{}: {:.3f}")))
        print_text(f"model in {arguments['output_dir']}")
    if arguments["push_to_hub"] is not None:
        _publish(arguments)


def _publish(arguments: dict[str, Any]) -> None:
    """Publish a trained checkpoint and print its address."""
    from hf_attnprobe.integrations.publishing import write_card

    options = select_options(arguments, CardOptions)
    message = write_card(arguments["output_dir"], options=options)
    # The scores are on stdout, and programs may read them from there.
    print_text(message, file=sys.stderr)


def run_retrain(arguments: dict[str, Any]) -> None:
    """Train variants of a base model and print the report."""
    data = select_options(arguments, Data)
    options = select_options(arguments, RetrainOptions)
    data.check_named_columns()

    from hf_attnprobe.reports.report import format_page_line
    from hf_attnprobe.retraining.run import retrain
    from hf_attnprobe.retraining.verdict import convert_retraining_to_json

    report = retrain(
        select_options(arguments, SavedModel),
        data,
        parse_test_selection(arguments, lambda: RETRAININGS),
        output_dir=arguments["output_dir"],
        options=options,
    )
    if arguments["json"]:
        print_text(json.dumps(convert_retraining_to_json(report)))
    else:
        print_text(report.to_text(verbose=arguments["verbose"]))
        print_text(format_page_line(arguments["output_dir"]))


def _format_scores(metrics: dict[str, float], template: str) -> list[str]:
    """Format each score by a template with two fields, the score's name and its value."""
    return [template.format(name.replace("_", " "), value) for name, value in metrics.items()]


# --- study ---------------------------------------------------------------------------------------


def add_study_command(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``attnprobe study``."""
    parser.add_argument(
        "study",
        metavar="STUDY",
        help="a Python file with a function study(steps), whose code is run; or a built-in study: "
        "encoders, room, transfer, which-tasks; or the experiments of a paper: "
        "jain-wallace, mohankumar, serrano-smith, tutek-snajder, wiegreffe-pinter",
    )
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for steps and report; run the same command again to resume",
    )
    add_option_flags(parser, StudyOptions)
    add_json_flag(parser)


def run_study(arguments: dict[str, Any]) -> None:
    """Run a study, or resume it, and print the report."""
    folder = Path(arguments["output_dir"])
    options = select_options(arguments, StudyOptions)

    from hf_attnprobe.studies.builtin import check_study

    check_study(arguments["study"])

    from hf_attnprobe.core.serialization import convert_to_plain
    from hf_attnprobe.studies.run import study

    report = study(arguments["study"], output_dir=folder, options=options)
    if arguments["json"]:
        print_text(json.dumps(convert_to_plain(report)))
    else:
        print_text(f"{report}\n\nfull report in {folder / 'report.md'}")


# --- detection-limit -----------------------------------------------------------------------------


def add_detection_limit_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe detection-limit``."""
    add_help_all_flag(parser)
    parser.add_argument("model", metavar="MODEL", help="folder or Hub id of the model")
    parser.add_argument("--output-dir", help="folder for spike_in.json, the report and rows.csv")
    add_option_flags(parser, DetectionLimitOptions)
    add_option_flags(parser, Data, excluded=["train_limit"])
    add_answer_flags(parser)
    add_json_flag(parser)


def run_detection_limit(arguments: dict[str, Any]) -> None:
    """Find the smallest effect that the tests can detect in a model, and print the report.

    For this purpose, effects with known sizes are added to the model.
    """
    data = build_data(arguments)
    data.check_named_columns()

    from hf_attnprobe.planted_effects.detection_limit import find_detection_limit

    report = find_detection_limit(
        arguments["model"],
        data,
        arguments["output_dir"],
        options=select_options(arguments, DetectionLimitOptions),
    )
    print_text(report.to_json() if arguments["json"] else str(report))


# --- cite ----------------------------------------------------------------------------------------


def add_cite_command(parser: CommandParser) -> None:
    """Add the flags of ``attnprobe cite``."""
    add_help_all_flag(parser)
    add_option_flags(parser.add_argument_group("the model"), SavedModel, excluded=["task"])
    parser.add_argument(
        "--dataset",
        required=True,
        metavar="FILE",
        help="json or jsonl file; each row has passages (a list of texts, or of objects with title "
        "and text), a question, and an answer with markers such as [1] or [2, 3]",
    )
    parser.add_argument(
        "--output-dir",
        metavar="FOLDER",
        help="folder for citations.json, report.md and report.html (default: nothing is saved)",
    )
    add_option_flags(parser, CiteOptions)
    parser.add_argument(
        "--fail-on",
        nargs="+",
        default=(),
        metavar="CONDITION",
        help=f"exit with code {CONDITION_MET_EXIT_CODE} if a share of citations meets a condition "
        "such as 'used<.8'; the shares are used, known, unused, other and undecided",
    )
    add_json_flag(parser, "results")
    add_verbose_flag(parser)


def run_cite(arguments: dict[str, Any]) -> int:
    """Check the citations of answers, print the report, and return an exit code."""
    from hf_attnprobe.citations.api import cite
    from hf_attnprobe.citations.report import USES_BY_SHARE
    from hf_attnprobe.reports.ci_gate import parse_conditions
    from hf_attnprobe.reports.report import format_page_line

    conditions = parse_conditions(arguments["fail_on"], answers=(), scores=tuple(USES_BY_SHARE))
    report = cite(
        select_options(arguments, SavedModel),
        None,
        Path(arguments["dataset"]),
        arguments["output_dir"],
        options=select_options(arguments, CiteOptions),
    )
    if arguments["json"]:
        print_text(report.to_json(), end="")
    else:
        print_text(report.to_text(verbose=arguments["verbose"]))
        if arguments["output_dir"] is not None:
            print_text(format_page_line(arguments["output_dir"]))
    reasons = []
    for condition in conditions:
        share = report.estimate_share(condition.question)
        reason = condition.explain_score_failure(share.value, share.ci95 or (math.nan, math.nan))
        if reason:
            reasons.append(reason)
    return _print_failures(reasons)


# --- card ----------------------------------------------------------------------------------------


def add_card_command(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``attnprobe card``."""
    parser.add_argument("model", metavar="MODEL", help="folder of a checkpoint")
    parser.add_argument(
        "audits",
        nargs="*",
        metavar="AUDIT",
        help="output folders of its audits (default: the card states that the model was not "
        "audited)",
    )
    add_option_flags(parser, CardOptions)


def run_card(arguments: dict[str, Any]) -> None:
    """Write a checkpoint's model card, and publish both if ``--push-to-hub`` is set."""
    from hf_attnprobe.integrations.publishing import describe_upload, write_card

    options = select_options(arguments, CardOptions)
    if options.push_to_hub is not None:
        print_text(describe_upload(options, len(arguments["audits"])), file=sys.stderr)
    print_text(write_card(arguments["model"], arguments["audits"], options=options))


# --- datasets ------------------------------------------------------------------------------------

DATASET_COLUMNS = (
    "name",
    "task",
    "train / validation / test",
    "classes",
    "at hand",
    "source",
)
"""Column titles in the table that ``attnprobe datasets`` prints."""


def add_datasets_command(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``attnprobe datasets``."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="data sets to describe in full; NAME=FOLDER reads the folder and counts its texts "
        "(default: list all data sets, one per row)",
    )
    add_json_flag(parser, "data sets")


def run_datasets(arguments: dict[str, Any]) -> None:
    """List the registered data sets, or describe some of them and the files they need."""
    from hf_attnprobe.data.catalog import list_datasets

    datasets = list_datasets(*arguments["names"])
    if arguments["json"]:
        print_text(json.dumps([dataset.to_json() for dataset in datasets]))
    elif arguments["names"]:
        print_text("\n\n".join(map(str, datasets)))
    else:
        print_text(_format_dataset_table(datasets))


def _format_dataset_table(datasets: "list[KnownDataset]") -> str:
    """Return a table with one data set per row, followed by the licences."""
    rows = [DATASET_COLUMNS, *map(_list_cells, datasets)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.append("\nLicences")
    names_by_licence: dict[str, list[str]] = {}
    for dataset in datasets:
        names_by_licence.setdefault(dataset.card.licence, []).append(dataset.name)
    for licence, names in names_by_licence.items():
        lines.append(f"  {', '.join(names)}: {licence}")
    lines.append(
        "\n`attnprobe datasets NAME` describes a data set: the files it needs and how it is split. "
        "Use NAME=FOLDER to read a data set from a folder."
    )
    return "\n".join(lines)


def _list_cells(dataset: "KnownDataset") -> tuple[str, ...]:
    """Return the table cells that describe a data set, in the order of :data:`DATASET_COLUMNS`."""
    card = dataset.card
    return (
        dataset.name,
        card.task,
        card.format_sizes(),
        str(card.n_classes or "–"),
        "yes" if dataset.at_hand else "no",
        dataset.source if dataset.is_on_hub else "files to bring",
    )


# --- all commands --------------------------------------------------------------------------------


COMMANDS: dict[str, Callable[[dict[str, Any]], int | None]] = {
    "demo": run_demo,
    "train": run_train,
    "audit": run_audit,
    "evaluate-scores": run_evaluate_scores,
    "retrain": run_retrain,
    "study": run_study,
    "compare": run_compare,
    "fit-map": run_fit_map,
    "detection-limit": run_detection_limit,
    "cite": run_cite,
    "report": run_report,
    "card": run_card,
    "datasets": run_datasets,
}
"""Functions that run the commands, by command name. They return an exit code, or None for 0."""


COMMAND_HELP: dict[str, tuple[Callable[[CommandParser], None], str, str]] = {
    "demo": (
        add_demo_command,
        "train and audit a small model on generated reviews whose deciding words are known",
        "--output-dir attnprobe-demo",
    ),
    "train": (
        add_train_command,
        "train an attention classifier, or fine-tune a Transformer",
        "--dataset sst --output-dir bilstm-sst",
    ),
    "audit": (
        add_audit_command,
        "test whether the attention of a model explains its predictions",
        "--model bilstm-sst --dataset sst --time 10m",
    ),
    "evaluate-scores": (
        add_evaluate_scores_command,
        "evaluate token scores of any other explanation method",
        "--model bert --dataset sst --scores shap.csv",
    ),
    "retrain": (
        add_retrain_command,
        "run the tests that train variants of a model (Wiegreffe & Pinter 2019)",
        "--model bilstm-sst --dataset sst --output-dir retraining",
    ),
    "study": (
        add_study_command,
        "compute the tables of a paper, or run a study of your own",
        "jain-wallace --dataset sst --output-dir table --quick",
    ),
    "compare": (
        add_compare_command,
        "audit several models or versions of a model, and compare each with the first",
        "bert bert-2 int8 --dataset sst --output-dir comparison",
    ),
    "fit-map": (
        add_fit_map_command,
        "choose an attention map of a model, and certify it on other texts",
        "--model bilstm-sst --dataset sst --output-dir map",
    ),
    "detection-limit": (
        add_detection_limit_command,
        "find the smallest planted effect that the tests detect in a model",
        "bert --dataset sst --output-dir detection-limit",
    ),
    "cite": (
        add_cite_command,
        "check whether a language model used the passages that its answers cite",
        "--model smollm2 --dataset answers.jsonl --output-dir citations",
    ),
    "report": (
        add_report_command,
        "print, convert, join or compare finished reports",
        "audit --output page.html",
    ),
    "card": (
        add_card_command,
        "write the model card of a checkpoint, and publish both on the Hub",
        "bilstm-sst audit",
    ),
    "datasets": (
        add_datasets_command,
        "list the registered data sets and the files that they need",
        "sst",
    ),
}
"""Help by command name: the function that adds its flags, a help line, and example flags."""


def run_command(words: Sequence[str]) -> int:
    """Parse a command line, run the command and return its exit code."""
    arguments = vars(build_parser().parse_args(words))
    command = arguments.pop("command")
    check_paths(arguments)
    if _may_need_hub(arguments) and not _can_reach_hub():
        # In offline mode, the Hub libraries fail immediately. Otherwise, they would retry for
        # about a minute.
        os.environ["HF_HUB_OFFLINE"] = "1"
    with _log_to_stderr():
        return COMMANDS[command](arguments) or 0


DEFAULT_HUB_URL = "https://huggingface.co"
"""Hub address if the environment variable ``HF_ENDPOINT`` is not set."""
HUB_TIMEOUT_SECONDS = 3.0
"""Maximum time, in seconds, to wait for the Hub. After that, the command works offline."""


def _may_need_hub(arguments: Mapping[str, Any]) -> bool:
    """Check whether the command loads a model or data that are not local files."""
    if "dataset" not in arguments:
        return False
    model = arguments.get("model") or arguments.get("models") or "."
    for source in (model, arguments["dataset"]):
        # A data set can be given as name=folder. Only the folder is a path.
        path = str(source).rpartition("=")[2]
        if not Path(path).exists():
            return True
    return False


def _can_reach_hub() -> bool:
    """Check whether the Hub accepts connections.

    If a proxy is configured, or the user chose offline mode, nothing is checked, and the result is
    True.
    """
    if getproxies().keys() - {"no"} or "HF_HUB_OFFLINE" in os.environ:
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT", DEFAULT_HUB_URL))
    port = hub.port or (80 if hub.scheme == "http" else 443)
    with suppress(OSError):
        socket.create_connection((hub.hostname, port), HUB_TIMEOUT_SECONDS).close()
        return True
    return False


def build_parser() -> CommandParser:
    """Build the parser for all commands and their flags."""
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
    for name, (add_flags, summary, example) in COMMAND_HELP.items():
        epilog = f"for example: attnprobe {name} {example}"
        add_flags(commands.add_parser(name, help=summary, epilog=epilog))
    return parser


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Print this package's log messages to stderr inside a ``with`` block."""
    package_logger = logging.getLogger("hf_attnprobe")
    previous_level = package_logger.level
    handler = ProgressAwareHandler()
    package_logger.setLevel(logging.INFO)
    package_logger.addHandler(handler)
    try:
        yield
    finally:
        package_logger.removeHandler(handler)
        package_logger.setLevel(previous_level)


class ProgressAwareHandler(logging.Handler):
    """Handler that prints log messages to stderr above an open progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log message."""
        print_line(self.format(record))


def check_paths(arguments: Mapping[str, Any]) -> None:
    """Check that a command can read its model, map and data, and write its output.

    This happens before any slow import, so that the user sees an error immediately.

    Args:
        arguments: Parsed flags of the command.

    Raises:
        AttnProbeError: If the path of a model, map or data set does not exist, or if the output folder is not
            writable.
    """
    models = [arguments.get("model"), *arguments.get("models", ())]
    for model in filter(None, models):
        check_path("model", model)
    if arguments.get("map") is not None:
        check_path("map", arguments["map"])
    if arguments.get("dataset") is not None:
        from hf_attnprobe.data.sources import resolve_recipe

        resolve_recipe(arguments["dataset"])
    output_dir = arguments.get("output_dir")
    if output_dir is not None and "://" not in output_dir:
        check_writable(output_dir)
