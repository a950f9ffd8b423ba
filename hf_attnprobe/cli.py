"""attnprobe demo | train | audit | report: every verb is a public function, every flag one of its keyword arguments.

Results go to stdout, progress and log to stderr. A known error is one line and exit code 1, a usage error exit code 2.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hf_attnprobe.errors import AttnProbeError


DATA_HELP = "name (sst, imdb, agnews, …), Hub id, or a folder that datasets.load_dataset reads"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = vars(build_parser().parse_args(argv))
    command = arguments.pop("command")
    try:
        _quiet()
        return COMMANDS[command](arguments) or 0
    except AttnProbeError as error:
        print(f"attnprobe: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("attnprobe: interrupted; run the same command again to continue", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    parser = argparse.ArgumentParser(
        prog="attnprobe", description="Does this model's attention explain its predictions?"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_demo(commands.add_parser("demo", help="train and audit on generated data whose evidence is known"))
    _add_train(commands.add_parser("train", help="train an attention classifier"))
    _add_audit(commands.add_parser("audit", help="run faithfulness tests on a model"))
    _add_report(commands.add_parser("report", help="render the report of an audit"))
    return parser


def _at_least(least: int, kind: Callable = int) -> Callable[[str], int | float]:
    """The type of a flag whose numbers start at ``least``."""

    def number(text: str) -> int | float:
        if not kind(text) >= least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        return kind(text)

    return number


def _add_demo(parser) -> None:
    parser.add_argument("--output-dir", default="attnprobe-demo", help="for model and audit (default: %(default)s)")
    parser.add_argument("--encoder", choices=("bilstm", "cnn", "mlp", "none"), default="bilstm")
    parser.add_argument("--n-examples", type=_at_least(1), default=3000, help="generated texts (default: %(default)s)")
    parser.add_argument("--epochs", type=_at_least(1), default=6)
    parser.add_argument("--seed", type=_at_least(0), default=0)


def _add_data(parser) -> None:
    parser.add_argument("--dataset", required=True, help=DATA_HELP)
    parser.add_argument("--config", help="configuration of the data set, where it has several")
    parser.add_argument("--text-column", help="default: text, else sentence")
    parser.add_argument("--label-column", help="default: label")
    parser.add_argument("--seed", type=_at_least(0), default=0)


def _add_train(parser) -> None:
    _add_data(parser)
    parser.add_argument("--output-dir", required=True, help="where the checkpoint goes")
    parser.add_argument("--model", help="fine-tune this pretrained Transformer (folder or Hub id) instead")
    parser.add_argument("--max-length", type=_at_least(1), help="cut longer texts (with --model)")
    parser.add_argument("--trust-remote-code", action="store_true", help="(with --model)")
    parser.add_argument("--encoder", choices=("bilstm", "cnn", "mlp", "none"), default="bilstm")
    parser.add_argument("--attention", choices=("additive", "dot_product", "uniform"), default="additive")
    parser.add_argument("--embedding-size", type=_at_least(1), default=300)
    parser.add_argument(
        "--encoder-size", type=_at_least(1), default=128, help="per direction for bilstm (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=_at_least(1), help="default: 8, with --model 3")
    parser.add_argument("--batch-size", type=_at_least(1), default=32)
    parser.add_argument("--learning-rate", type=_at_least(0, float), help="default: 1e-3, with --model 5e-5")
    parser.add_argument("--weight-decay", type=_at_least(0, float), help="default: 1e-5, with --model 0.01")
    parser.add_argument(
        "--min-document-frequency", type=_at_least(1), default=1, help="words in fewer texts are unknown"
    )
    parser.add_argument("--vectors", help="pretrained word vectors, a word2vec, fastText or GloVe text file")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")


def _add_audit(parser) -> None:
    parser.add_argument("--model", required=True, help="model folder or Hub id")
    _add_data(parser)
    parser.add_argument("--split", default="test")
    parser.add_argument("--tests", nargs="+", metavar="TEST", help="default: all")
    parser.add_argument("--output-dir", help="for rows, summary.json and report.md; the same again continues")
    parser.add_argument("--limit", type=_at_least(1), help="only the first so many texts")
    parser.add_argument("--layers", type=int, nargs="+", metavar="LAYER", help="default: all")
    parser.add_argument("--heads", type=int, nargs="+", metavar="HEAD", help="default: all")
    parser.add_argument("--query", type=int, help="only this query row of each head (default: all of them)")
    parser.add_argument("--screen", type=_at_least(1), metavar="N", help="test the N heads that seem to matter most")
    parser.add_argument("--target", type=int, help="class whose probability is explained (default: the predicted one)")
    parser.add_argument("--n-permutations", type=_at_least(1), default=100)
    parser.add_argument(
        "--method", choices=("auto", "exact", "search"), default="auto", help="of the adversarial test"
    )
    parser.add_argument(
        "--n-starts", type=_at_least(1), default=5, help="of the gradient search (default: %(default)s)"
    )
    parser.add_argument(
        "--n-steps", type=_at_least(0), help="of the gradient search (default: 500, for Transformers 0)"
    )
    parser.add_argument("--level", choices=("word", "token"), help="of explanations of Transformers (default: word)")
    parser.add_argument("--no-truncate", dest="truncate", action="store_false", help="refuse texts that are too long")
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16", "float16"), help="to compute in")
    parser.add_argument(
        "--batch-size", type=_at_least(1), default=64, help="texts at once, at most (default: %(default)s)"
    )
    parser.add_argument("--memory-budget", default="2GB", help="such as 500MB (default: %(default)s)")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_report(parser) -> None:
    parser.add_argument("audit", help="output folder of an audit")
    parser.add_argument("--output", help="a .md file (default: Markdown on stdout)")


def run_demo(arguments: dict) -> None:
    """Trains, audits, and prints the report and what was found of the evidence."""
    from hf_attnprobe.demo import demo, evidence_sentences

    report, found, metrics = demo(**arguments)
    scores = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in metrics.items())
    folder = Path(arguments["output_dir"])
    print(f"{report}\n\nModel\n  {scores}\n\nEvidence")
    print("\n".join(f"  {line}" for line in evidence_sentences(found)))
    print(f"\nModel in {folder / 'model'}, full report in {folder / 'audit' / 'report.md'}")


def run_train(arguments: dict) -> None:
    """Trains on the splits train and validation; scores the test split where there is one."""
    from hf_attnprobe.attention_classifier import AttentionClassifierConfig
    from hf_attnprobe.training import fine_tune, load_splits, train_classifier

    as_json = arguments.pop("json")
    data = {k: arguments.pop(k) for k in ("dataset", "config", "text_column", "label_column")}
    of_classifier = {k: arguments.pop(k) for k in ("encoder", "attention", "embedding_size", "encoder_size")}
    only_classifier = {k: arguments.pop(k) for k in ("min_document_frequency", "vectors")}
    only_transformer = {k: arguments.pop(k) for k in ("max_length", "trust_remote_code")}
    pretrained = arguments.pop("model")
    options = {k: v for k, v in arguments.items() if v is not None}
    splits = load_splits(**data, seed=arguments["seed"])
    if pretrained is None:
        try:
            architecture = AttentionClassifierConfig(**of_classifier)
        except ValueError as error:  # the checkpoint code knows no error but Python's
            raise AttnProbeError(str(error)) from error
        _, _, metrics = train_classifier(architecture, **splits, **only_classifier, **options)
    else:
        _, _, metrics = fine_tune(pretrained, **splits, **only_transformer, **options)
    if as_json:
        print(json.dumps({"model": arguments["output_dir"], "seed": arguments["seed"], "metrics": metrics}))
        return
    print("\n".join(f"{name.replace('_', ' ')}: {value:.3f}" for name, value in metrics.items()))
    print(f"model in {arguments['output_dir']}")


def run_audit(arguments: dict) -> None:
    """Audits and prints the report."""
    from hf_attnprobe.auditing import audit
    from hf_attnprobe.distributed import process_state
    from hf_attnprobe.report import to_json

    as_json = arguments.pop("json")
    report = audit(**arguments)
    if process_state().is_main_process:
        print(json.dumps(to_json(report)) if as_json else report)


def run_report(arguments: dict) -> None:
    """Renders an audit's folder again, from its rows and summary."""
    from hf_attnprobe.auditing import read_audit
    from hf_attnprobe.report import to_markdown

    text, output = to_markdown(read_audit(arguments["audit"])), arguments["output"]
    if output is None:
        print(text, end="")
        return
    if not output.endswith(".md"):
        raise AttnProbeError(f"expected an output file ending in .md, got {output}")
    try:
        Path(output).write_text(text)
    except OSError as error:
        raise AttnProbeError(f"cannot write {output} ({error}); choose another --output") from error


def _quiet() -> None:
    """Progress of the work, not of the libraries under it."""
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    try:
        import datasets
    except ImportError:
        return
    datasets.disable_progress_bars()


COMMANDS = {"demo": run_demo, "train": run_train, "audit": run_audit, "report": run_report}
