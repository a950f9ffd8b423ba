"""audit, compare and report: the commands that test models as they are."""

import json
from pathlib import Path

from hf_attnprobe.cli.flags import (
    add_adversaries,
    add_data,
    add_json,
    add_texts,
    at_least,
)
from hf_attnprobe.errors import AttnProbeError


def add_audit(parser) -> None:
    """Flags of audit."""
    parser.add_argument("--model", required=True, help="model folder or Hub id")
    add_data(parser)
    add_texts(parser)
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="default: all")
    parser.add_argument(
        "--output-dir",
        help="for rows, summary.json and report.md; the same again continues",
    )
    parser.add_argument(
        "--layers", type=int, nargs="+", metavar="LAYER", help="default: all"
    )
    parser.add_argument(
        "--heads", type=int, nargs="+", metavar="HEAD", help="default: all"
    )
    parser.add_argument(
        "--query",
        type=int,
        help="only this query row of each head (default: all of them)",
    )
    parser.add_argument(
        "--screen",
        type=at_least(1),
        metavar="N",
        help="test the N heads that seem to matter most",
    )
    parser.add_argument(
        "--no-prune",
        dest="prune",
        action="store_false",
        help="no curve of heads silenced together",
    )
    parser.add_argument(
        "--target",
        type=int,
        help="class whose probability is explained (default: the predicted one)",
    )
    parser.add_argument("--n-permutations", type=at_least(1), default=100)
    parser.add_argument(
        "--method",
        choices=("auto", "exact", "search"),
        default="auto",
        help="of the adversarial test",
    )
    parser.add_argument(
        "--n-starts",
        type=at_least(1),
        default=5,
        help="of the gradient search (default: %(default)s)",
    )
    parser.add_argument(
        "--n-steps",
        type=at_least(0),
        help="of the gradient search (default: 500, for Transformers 0)",
    )
    parser.add_argument(
        "--no-renormalise",
        dest="renormalise",
        action="store_false",
        help="in the erasure test",
    )
    parser.add_argument(
        "--draw",
        choices=("uniform", "released"),
        default="uniform",
        help="of the other weight in the erasure test",
    )
    parser.add_argument(
        "--all-zero",
        action="store_true",
        help="in the erasure test, count the bias alone as well",
    )
    parser.add_argument(
        "--erase-by",
        choices=("deletion", "mask"),
        default="deletion",
        help="how input erasure takes tokens out",
    )
    parser.add_argument(
        "--naopc-beam",
        type=at_least(0),
        default=0,
        metavar="WIDTH",
        help="also normalise input erasure, with a beam search of this width for longer texts",
    )
    parser.add_argument(
        "--level",
        choices=("word", "token"),
        help="of explanations of Transformers (default: word)",
    )
    parser.add_argument(
        "--no-truncate",
        dest="truncate",
        action="store_false",
        help="refuse texts that are too long",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "bfloat16", "float16"),
        help="to compute in",
    )
    parser.add_argument(
        "--batch-size",
        type=at_least(1),
        default=64,
        help="texts at once, at most (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-budget", default="2GB", help="such as 500MB (default: %(default)s)"
    )
    parser.add_argument("--trust-remote-code", action="store_true")
    add_json(parser)


def add_compare(parser) -> None:
    """Flags of compare."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="attention classifiers (folders or Hub ids)",
    )
    add_data(parser)
    parser.add_argument(
        "--output-dir",
        required=True,
        help="for audits and table; the same again continues",
    )
    tests = ("fragility", "single_token", "adversarial", "conicity")
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        default=tests,
        help=f"default: {' '.join(tests)}; adversary trains models besides",
    )
    add_texts(parser)
    parser.add_argument(
        "--train-limit",
        type=at_least(1),
        help="only so many training texts for adversaries",
    )
    add_adversaries(parser)
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

    as_json = arguments.pop("json")
    report = audit(**arguments)
    if process_state().is_main_process:
        print(json.dumps(to_json(report)) if as_json else report)


def run_compare(arguments: dict) -> None:
    """Runs the same tests on several checkpoints and prints one table."""
    from hf_attnprobe.checkpoint_comparison.report import to_json
    from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints

    as_json = arguments.pop("json")
    comparison = compare_checkpoints(**arguments)
    print(json.dumps(to_json(comparison)) if as_json else comparison)


def run_report(arguments: dict) -> None:
    """Renders the folder of an audit or a retraining again, from its rows and summary; shows that of a study."""
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
