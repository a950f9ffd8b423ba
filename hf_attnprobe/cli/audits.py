"""audit, compare and report: the commands that test models as they are."""

import argparse
import dataclasses
import json
from pathlib import Path

from hf_attnprobe.auditing.options import WHERE, AuditOptions, from_names
from hf_attnprobe.checkpoint_comparison.options import ComparisonOptions
from hf_attnprobe.cli.flags import (
    add_json,
    add_options,
    take,
)
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import DEFAULT, tests
from hf_attnprobe.options import from_flat


USED = (
    "dataset",
    "dataset_config",
    "text_column",
    "label_column",
    "split",
    "test_limit",
)
"""The data arguments of an audit; it trains nothing."""


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Flags of audit: of the data, the audit, and every test."""
    known = tests()
    parser.add_argument("--model", required=True, help="model folder or Hub id")
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        help=f"of {', '.join(known)}; {DEFAULT} for those that suit model and data, "
        "which is the default",
    )
    parser.add_argument(
        "--output-dir",
        help="for rows, summary.json and report.md; the same again continues",
    )
    add_json(parser)
    add_options(parser.add_argument_group("data"), Data, USED)
    where = parser.add_argument_group("where to look")
    add_options(where, AuditOptions, WHERE)
    names = [field.name for field in dataclasses.fields(AuditOptions)]
    how = parser.add_argument_group("how to run")
    add_options(how, AuditOptions, [name for name in names if name not in WHERE])
    added: set[str] = set()
    for name, test in known.items():
        fields = [field.name for field in dataclasses.fields(test.options)]
        new = [field for field in fields if field not in added]
        if new:
            group = parser.add_argument_group(f"the test {name}")
            add_options(group, test.options, new)
            added.update(new)


def add_compare(parser) -> None:
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
        help="for audits and table; the same again continues",
    )
    add_options(parser, ComparisonOptions)
    add_json(parser, "table")


def add_report(parser) -> None:
    """Flags of report."""
    parser.add_argument(
        "audit", help="output folder of an audit, a retraining or a study"
    )
    parser.add_argument("--output", help="a .md file (default: Markdown on stdout)")


def run_audit(arguments: dict) -> None:
    """Audits and prints the report."""
    from hf_attnprobe.auditing.report import to_json
    from hf_attnprobe.auditing.run import audit
    from hf_attnprobe.distributed import process_state

    as_json, data = arguments.pop("json"), take(arguments, Data)
    model, output_dir = arguments.pop("model"), arguments.pop("output_dir")
    request = from_names(arguments.pop("tests"), arguments)
    report = audit(
        model, data, request.tests, options=request.options, output_dir=output_dir
    )
    if process_state().is_main_process:
        print(json.dumps(to_json(report)) if as_json else report)


def run_compare(arguments: dict) -> None:
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


def run_report(arguments: dict) -> None:
    """Renders the folder of an audit or a retraining again, from its rows and summary.

    Shows that of a study.
    """
    from hf_attnprobe.auditing import report
    from hf_attnprobe.auditing.run import read_audit
    from hf_attnprobe.retraining import report as retraining_report
    from hf_attnprobe.retraining.run import KIND, read_retraining
    from hf_attnprobe.studies.run import read_text
    from hf_attnprobe.studies.state import STATE

    folder, output = Path(arguments["audit"]), arguments["output"]
    if (folder / f"{KIND}.json").is_file():
        text = retraining_report.to_markdown(read_retraining(folder))
    elif (folder / STATE).is_file():
        text = read_text(folder)
    else:
        text = report.to_markdown(read_audit(folder))
    if output is None:
        print(text, end="")
        return
    if not output.endswith(".md"):
        raise AttnProbeError(f"expected an output file ending in .md, got {output}")
    try:
        Path(output).write_text(text)
    except OSError as error:
        raise AttnProbeError(
            f"cannot write {output} ({error}); choose another --output"
        ) from error
