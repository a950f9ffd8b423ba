"""audit, compare and report: the commands that test models as they are."""

import argparse
import dataclasses
import json
from typing import Any

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.checkpoint_comparison.options import ComparisonOptions
from hf_attnprobe.cli.flags import add_json, add_options
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.faithfulness import DEFAULT, tests
from hf_attnprobe.faithfulness.registry import parse_tests
from hf_attnprobe.options import from_flat


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Flags of audit: of the data, the audit, and every test."""
    known = tests()
    parser.add_argument("--model", required=True, help="folder or Hub id of the model")
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        help=f"tests to run: {', '.join(known)}; {DEFAULT} stands for those that suit "
        f"the model and the data (default: {DEFAULT})",
    )
    parser.add_argument(
        "--output-dir",
        help="folder for rows, summary.json and report.md; run again with the same "
        "folder to continue (default: keep nothing)",
    )
    add_json(parser)
    data = parser.add_argument_group("data")
    add_options(data, Data, leave_out=["train_limit"])
    add_options(parser.add_argument_group("the audit"), AuditOptions)
    added: set[str] = set()
    for name, test in known.items():
        group = parser.add_argument_group(f"options of the test {name}")
        add_options(group, test.options, leave_out=added)
        added.update(field.name for field in dataclasses.fields(test.options))


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Flags of compare."""
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
    add_options(parser, ComparisonOptions)
    add_json(parser, "table")


def add_report(parser: argparse.ArgumentParser) -> None:
    """Flags of report."""
    parser.add_argument(
        "audit", help="output folder of an audit, a retraining or a study"
    )
    parser.add_argument(
        "--output", help="a .md file to write (default: print the Markdown)"
    )


def run_audit(arguments: dict[str, Any]) -> None:
    """Audits and prints the report."""
    from hf_attnprobe.auditing.report import to_json
    from hf_attnprobe.auditing.run import audit
    from hf_attnprobe.distributed import process_state

    report = audit(
        arguments["model"],
        from_flat(arguments, Data),
        parse_tests(arguments["tests"], arguments),
        options=from_flat(arguments, AuditOptions),
        output_dir=arguments["output_dir"],
    )
    if process_state().is_main_process:
        print(json.dumps(to_json(report)) if arguments["json"] else report)


def run_compare(arguments: dict[str, Any]) -> None:
    """Runs the same tests on several checkpoints and prints one table."""
    from hf_attnprobe.checkpoint_comparison.report import to_json
    from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints

    comparison = compare_checkpoints(
        arguments["models"],
        from_flat(arguments, Data),
        output_dir=arguments["output_dir"],
        options=from_flat(arguments, ComparisonOptions),
    )
    print(json.dumps(to_json(comparison)) if arguments["json"] else comparison)


def run_report(arguments: dict[str, Any]) -> None:
    """Renders the report of an audit or a retraining again, or shows that of a study."""
    from hf_attnprobe.studies.rendering import render_report

    text = render_report(arguments["audit"], arguments["output"])
    if arguments["output"] is None:
        print(text, end="")
