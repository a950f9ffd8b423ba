"""plan and work: an audit cut into partitions, for many processes and machines."""

import argparse
from typing import Any

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.cli.flags import (
    CommandParser,
    add_audited,
    add_help_all,
    add_options,
    asked,
    of_audits,
)
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.options import from_flat
from hf_attnprobe.partitions.options import WorkOptions
from hf_attnprobe.terminal import show


def add_plan(parser: CommandParser) -> None:
    """Flags of plan: those of audit, and the job's."""
    add_help_all(parser)
    add_audited(parser)
    parser.add_argument(
        "--output-dir",
        required=True,
        metavar="JOB",
        help="folder of the job, or a URL that fsspec knows, such as s3://bucket/job",
    )
    parser.add_argument(
        "--partitions",
        type=int,
        default=64,
        metavar="N",
        help="parts of the job, eight or more for each worker (default: 64)",
    )


def add_work(parser: argparse.ArgumentParser) -> None:
    """Flags of work."""
    parser.add_argument("job", metavar="JOB", help="folder or URL of attnprobe plan")
    add_options(parser, WorkOptions)


def run_plan(arguments: dict[str, Any]) -> None:
    """Plans an audit and says how to work on it."""
    from hf_attnprobe.partitions.planning import plan_audit

    plan = plan_audit(
        arguments["model"],
        from_flat(arguments, Data),
        asked(arguments, of_audits),
        options=from_flat(arguments, AuditOptions),
        output_dir=arguments["output_dir"],
        partitions=arguments["partitions"],
    )
    job = arguments["output_dir"]
    show(f"job {plan.name[:16]}: {plan.n_texts} texts in {plan.n_partitions} partitions")
    show(f"attnprobe work {job}  # as many of these as you like, anywhere")


def run_work(arguments: dict[str, Any]) -> None:
    """Works on a job until nothing of it is left."""
    from hf_attnprobe.partitions.work import work

    show(work(arguments["job"], options=from_flat(arguments, WorkOptions)))
