"""audit, compare and report: the commands that test models as they are."""

import argparse
import json
import sys
from typing import Any

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.checkpoint_comparison.options import TESTS, ComparisonOptions
from hf_attnprobe.cli.flags import (
    CommandParser,
    add_audited,
    add_help_all,
    add_json,
    add_options,
    add_tests,
    add_verbose,
    asked,
    of_audits,
)
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.options import Options, from_flat
from hf_attnprobe.terminal import show


FAILED = 3
"""Exit code of an audit whose answer is among those of ``--fail-on``."""
FAILING = ("yes", "mostly-yes", "partly", "mostly-no", "no", "cannot-say")
"""The answers, each as one word."""


def add_audit(parser: CommandParser) -> None:
    """Flags of audit: of the data, the audit, and its tests."""
    add_help_all(parser)
    add_audited(parser)
    parser.add_argument(
        "--output-dir",
        metavar="FOLDER",
        help="folder for rows, summary.json, report.md and report.html; run again with "
        "the same folder to continue (default: keep nothing)",
    )
    add_json(parser)
    add_verbose(parser)
    parser.add_argument(
        "--estimate",
        action="store_true",
        help="say how much work, time, memory and disk space the audit will take, from a "
        "few texts and heads, and end; nothing is written",
    )
    parser.add_argument(
        "--fail-on",
        nargs="+",
        choices=FAILING,
        default=(),
        metavar="ANSWER",
        help=f"end with exit code {FAILED} where the answer is one of these: {', '.join(FAILING)}",
    )


def add_compare(parser: CommandParser) -> None:
    """Flags of compare."""
    add_help_all(parser)
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="attention classifiers (folders or Hub ids)",
    )
    add_options(parser, Data)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="folder for audits and table; run again with the same folder to continue",
    )
    add_tests(parser, TESTS, "all but adversary, which trains models", of_comparisons)
    add_options(parser, ComparisonOptions)
    add_json(parser, "table")


def add_report(parser: argparse.ArgumentParser) -> None:
    """Flags of report."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="output folder of a verb; several audits are compared",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write, in the form that its ending names: .html, .md, .json, .csv "
        "or .tex (default: print Markdown)",
    )
    parser.add_argument(
        "--figures",
        metavar="FOLDER",
        help="folder for the figures of an audit, as SVG and PDF",
    )


def run_audit(arguments: dict[str, Any]) -> int:
    """Audits and prints the report; its exit code is that of ``--fail-on``."""
    given = {
        "model": arguments["model"],
        "dataset": from_flat(arguments, Data),
        "options": from_flat(arguments, AuditOptions),
        "tests": asked(arguments, of_audits),
        "output_dir": arguments["output_dir"],
    }

    from hf_attnprobe.auditing.report import place_lines
    from hf_attnprobe.auditing.result import to_json
    from hf_attnprobe.auditing.run import audit
    from hf_attnprobe.distributed import process_state

    if arguments["estimate"]:
        from hf_attnprobe.auditing.estimate import estimate_audit

        told = estimate_audit(**given)
        show(json.dumps(told.to_json()) if arguments["json"] else told.to_text())
        return 0
    report = audit(**given)
    if process_state().is_main_process:
        if arguments["json"]:
            show(json.dumps(to_json(report)))
        else:
            show(report.to_text(verbose=arguments["verbose"]), end="\n\n")
            show("\n".join(place_lines(arguments["output_dir"])))
    if str(report.answer).replace(" ", "-") not in arguments["fail_on"]:
        return 0
    if process_state().is_main_process:
        show(f"attnprobe: the answer is {report.answer}, on which --fail-on fails", file=sys.stderr)
    return FAILED


def of_comparisons() -> dict[str, type[Options]]:
    """The classes of the options of a comparison's tests."""
    from hf_attnprobe.checkpoint_comparison.run import comparison_kinds

    return comparison_kinds()


def run_compare(arguments: dict[str, Any]) -> None:
    """Runs the same tests on several checkpoints and prints one table."""
    data, options = from_flat(arguments, Data), from_flat(arguments, ComparisonOptions)
    tests = asked(arguments, of_comparisons)

    from hf_attnprobe.checkpoint_comparison.report import to_json
    from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
    from hf_attnprobe.distributed import process_state

    comparison = compare_checkpoints(
        arguments["models"],
        data,
        tests,
        output_dir=arguments["output_dir"],
        options=options,
    )
    if process_state().is_main_process:
        show(json.dumps(to_json(comparison)) if arguments["json"] else comparison)


def run_report(arguments: dict[str, Any]) -> None:
    """Shows results again, in the form that is asked for."""
    from hf_attnprobe.rendering import render_report, save_figures

    folders, figures = arguments["folders"], arguments["figures"]
    if figures is not None:
        save_figures(folders, figures)
        show(f"figures in {figures}")
    if figures is not None and arguments["output"] is None:
        return
    text = render_report(folders, arguments["output"])
    if arguments["output"] is None:
        show(text, end="")
    else:
        show(f"report in {arguments['output']}")
