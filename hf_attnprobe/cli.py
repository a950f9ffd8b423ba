"""attnprobe demo | train | audit | retrain | compare | deceive | study | reproduce | report: every verb is a public function, every flag one of its keyword arguments.

Results go to stdout, progress and log to stderr. A known error is one line and exit code 1, a usage error exit code 2.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hf_attnprobe.errors import AttnProbeError


# Flags of train that are fields of AttentionClassifierConfig, and those that mean nothing to a pretrained model.
ARCHITECTURE = ("encoder", "hierarchical", "attention", "attention_size", "embedding_size", "encoder_size")
ARCHITECTURE += ("kernel_sizes", "embedding_dropout", "sentence_dropout", "logit_dropout")
ARCHITECTURE += ("residual_connection", "tying", "mlm_weight", "mlm_rate", "conicity_weight")
ONLY_CLASSIFIER = ("recipe", "min_document_frequency", "max_grad_norm", "plateau_factor", "patience", "vectors")
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
    _add_retrain(commands.add_parser("retrain", help="train models beside a base: the tests that no probe can be"))
    _add_study(commands.add_parser("study", help="run the steps of a study file, and report on all of them"))
    _add_reproduce(commands.add_parser("reproduce", help="run a paper's tables, the published numbers beside ours"))
    _add_compare(commands.add_parser("compare", help="put checkpoints beside one another, regularised or not"))
    _add_deceive(commands.add_parser("deceive", help="train a model to hide its attention to some tokens"))
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
    parser.add_argument(
        "--text-column", nargs="+", metavar="COLUMN", help="default: text, else sentence; several are joined by a space"
    )
    parser.add_argument("--label-column", help="default: label")
    parser.add_argument("--seed", type=_at_least(0), default=0)


def _add_train(parser) -> None:
    _add_data(parser)
    parser.add_argument("--output-dir", required=True, help="where the checkpoint goes")
    parser.add_argument("--model", help="fine-tune this pretrained Transformer (folder or Hub id) instead")
    parser.add_argument("--max-length", type=_at_least(1), help="cut longer texts")
    parser.add_argument("--limit", type=_at_least(1), help="only so many training texts, even over the classes")
    parser.add_argument("--trust-remote-code", action="store_true", help="(with --model)")
    parser.add_argument(
        "--recipe", choices=("jain-wallace", "serrano-smith"), default="jain-wallace", help="sets what is not given"
    )
    _add_architecture(parser)
    parser.add_argument("--epochs", type=_at_least(1), help="default: 8 (serrano-smith 15), with --model 3")
    parser.add_argument("--batch-size", type=_at_least(1), help="default: 32 (serrano-smith 64)")
    parser.add_argument(
        "--learning-rate", type=_at_least(0, float), help="default: 1e-3 (serrano-smith 4e-4), with --model 5e-5"
    )
    parser.add_argument("--weight-decay", type=_at_least(0, float), help="default: 1e-5 (0), with --model 0.01")
    parser.add_argument("--max-grad-norm", type=_at_least(0, float), help="default: 0, no clipping (serrano-smith 10)")
    parser.add_argument(
        "--plateau-factor", type=_at_least(0, float), help="of the learning rate without progress (serrano-smith 0.5)"
    )
    parser.add_argument("--patience", type=_at_least(1), help="epochs without progress that end it (serrano-smith 5)")
    parser.add_argument(
        "--min-document-frequency", type=_at_least(1), help="words in fewer texts are unknown (default: 1, serrano-smith 5)"
    )
    parser.add_argument("--vectors", help="pretrained word vectors, a word2vec, fastText or GloVe text file")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")


def _add_architecture(parser) -> None:
    encoders = ("bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none")
    parser.add_argument("--encoder", choices=encoders, help="default: bilstm (serrano-smith bigru)")
    parser.add_argument("--hierarchical", action="store_true", help="words make sentences, sentences make the text")
    parser.add_argument("--attention", choices=("additive", "dot_product", "uniform"), help="default: additive")
    parser.add_argument("--attention-size", type=_at_least(1), help="default: half the states (serrano-smith 100)")
    parser.add_argument("--embedding-size", type=_at_least(1), help="default: 300 (serrano-smith 200)")
    parser.add_argument(
        "--encoder-size", type=_at_least(1), help="per direction for bilstm, bigru; default: 128 (serrano-smith 50)"
    )
    parser.add_argument("--kernel-sizes", type=_at_least(1), nargs="+", help="of cnn; default: 1 3 5 7 (serrano-smith 3 5)")
    for name, of in (("embedding", "word vectors"), ("sentence", "sentence vectors"), ("logit", "logits")):
        parser.add_argument(f"--{name}-dropout", type=_at_least(0, float), help=f"on {of} (default: 0, or the recipe's)")
    _add_regularisers(parser)


def _add_regularisers(parser) -> None:
    parser.add_argument(
        "--residual-connection", choices=("none", "concat", "residual"), help="of states to their word vectors (none)"
    )
    for name, what in (
        ("tying", "of the distance between states and their word vectors"),
        ("mlm-weight", "of telling masked words from the states"),
        ("conicity-weight", "of states that point the same way"),
    ):
        parser.add_argument(f"--{name}", type=_at_least(0, float), help=f"weight in the loss {what} (default: 0)")
    parser.add_argument("--mlm-rate", type=_at_least(0, float), help="share of words masked for it (default: 0.15)")


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
    parser.add_argument("--no-prune", dest="prune", action="store_false", help="no curve of heads silenced together")
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
    parser.add_argument("--no-renormalise", dest="renormalise", action="store_false", help="in the erasure test")
    parser.add_argument(
        "--draw", choices=("uniform", "released"), default="uniform", help="of the other weight in the erasure test"
    )
    parser.add_argument("--all-zero", action="store_true", help="in the erasure test, count the bias alone as well")
    parser.add_argument(
        "--erase-by", choices=("deletion", "mask"), default="deletion", help="how input erasure takes tokens out"
    )
    parser.add_argument(
        "--naopc-beam", type=_at_least(0), default=0, metavar="WIDTH",
        help="also normalise input erasure, with a beam search of this width for longer texts",
    )  # fmt: skip
    parser.add_argument("--level", choices=("word", "token"), help="of explanations of Transformers (default: word)")
    parser.add_argument("--no-truncate", dest="truncate", action="store_false", help="refuse texts that are too long")
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16", "float16"), help="to compute in")
    parser.add_argument(
        "--batch-size", type=_at_least(1), default=64, help="texts at once, at most (default: %(default)s)"
    )
    parser.add_argument("--memory-budget", default="2GB", help="such as 500MB (default: %(default)s)")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_retrain(parser) -> None:
    parser.add_argument("--model", required=True, help="the base, an attention classifier (folder or Hub id)")
    _add_data(parser)
    parser.add_argument(
        "--tests", nargs="+", metavar="TEST", help="uniform seeds adversary diagnostic_mlp (default: all)"
    )
    parser.add_argument("--output-dir", required=True, help="for models, rows and report; the same again continues")
    parser.add_argument("--limit", type=_at_least(1), help="only so many training texts, even over the classes")
    parser.add_argument("--n-seeds", type=_at_least(1), default=8, help="runs of seeds (default: %(default)s)")
    parser.add_argument("--lambdas", type=_at_least(0, float), nargs="+", metavar="LAMBDA", help="of the adversaries")
    parser.add_argument(
        "--tvd-scale", choices=("true", "half"), default="true", help="of an adversary's loss (the paper's code: half)"
    )
    parser.add_argument("--adversary-epochs", type=_at_least(1), default=80, help="at most (default: %(default)s)")
    parser.add_argument(
        "--patience", type=_at_least(1), default=10, help="epochs without a lower loss that end an adversary"
    )
    parser.add_argument(
        "--recipe", choices=("jain-wallace", "serrano-smith"), help="default: the base's, as all below"
    )
    parser.add_argument("--epochs", type=_at_least(1), help="of all but the adversaries")
    parser.add_argument("--batch-size", type=_at_least(1))
    parser.add_argument("--learning-rate", type=_at_least(0, float))
    parser.add_argument("--weight-decay", type=_at_least(0, float))
    parser.add_argument("--vectors", help="pretrained word vectors")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_study(parser) -> None:
    parser.add_argument("file", help="a YAML file, or one that is ready: which-tasks, encoders, transfer, room, …")
    _add_study_options(parser, needs_data=False)


def _add_reproduce(parser) -> None:
    parser.add_argument("paper", help="jain-wallace, serrano-smith, wiegreffe-pinter, tutek-snajder or mohankumar")
    _add_study_options(parser, needs_data=True)


def _add_study_options(parser, *, needs_data: bool) -> None:
    parser.add_argument(
        "--dataset", nargs="+", required=needs_data, metavar="DATASET",
        help=f"{DATA_HELP}, or name=folder: a folder that stands for a named one and is cut as it is"
        + ("" if needs_data else " (default: the file's)"),
    )  # fmt: skip
    parser.add_argument("--output-dir", required=True, help="for steps and report; the same again continues")
    parser.add_argument("--quick", action="store_true", help="a short run, with the file's own shorter settings")
    parser.add_argument("--config", help="configuration of the data sets")
    parser.add_argument("--text-column", nargs="+", metavar="COLUMN", help="default: text, else sentence")
    parser.add_argument("--label-column", help="default: label")
    parser.add_argument("--limit", type=_at_least(1), help="only so many training texts, even over the classes")
    parser.add_argument("--seed", type=_at_least(0), default=0, help="of all steps that set none")
    parser.add_argument("--vectors", help="pretrained word vectors for all trainings that name none")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _add_compare(parser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="attention classifiers (folders or Hub ids)")
    _add_data(parser)
    parser.add_argument("--output-dir", required=True, help="for audits and table; the same again continues")
    tests = ("fragility", "single_token", "adversarial", "conicity")
    parser.add_argument(
        "--tests", nargs="+", metavar="TEST", default=tests,
        help=f"default: {' '.join(tests)}; adversary trains models besides",
    )  # fmt: skip
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=_at_least(1), help="only the first so many texts")
    parser.add_argument("--train-limit", type=_at_least(1), help="only so many training texts for adversaries")
    parser.add_argument("--lambdas", type=_at_least(0, float), nargs="+", metavar="LAMBDA", help="of the adversaries")
    parser.add_argument("--adversary-epochs", type=_at_least(1), default=80, help="at most (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def _add_deceive(parser) -> None:
    parser.add_argument("--model", required=True, help="a trained classifier (folder or Hub id)")
    _add_data(parser)
    parser.add_argument(
        "--tokens", nargs="+", required=True, metavar="TOKEN", help="that it must not be seen to attend to"
    )
    parser.add_argument("--output-dir", required=True, help="where the checkpoint goes")
    parser.add_argument(
        "--weight", type=_at_least(0, float), default=1.0, help="λ of the penalty (default: %(default)s)"
    )
    parser.add_argument("--over-heads", choices=("mean", "max"), default="mean", help="penalty of several heads")
    parser.add_argument("--epochs", type=_at_least(1), default=5, help="default: %(default)s")
    parser.add_argument("--batch-size", type=_at_least(1), default=32, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=_at_least(0, float), help="default: the classifier's own, or 5e-5")
    parser.add_argument("--limit", type=_at_least(1), help="only so many training texts, even over the classes")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _add_report(parser) -> None:
    parser.add_argument("audit", help="output folder of an audit, a retraining or a study")
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
    from hf_attnprobe.objectives import papers_config
    from hf_attnprobe.training import fine_tune, load_splits, train_classifier

    as_json = arguments.pop("json")
    data = {k: arguments.pop(k) for k in ("dataset", "config", "text_column", "label_column", "limit")}
    of_classifier = {k: arguments.pop(k) for k in ARCHITECTURE}
    only_classifier = {k: arguments.pop(k) for k in ONLY_CLASSIFIER}
    trust_remote_code, pretrained = arguments.pop("trust_remote_code"), arguments.pop("model")
    options = {k: v for k, v in arguments.items() if v is not None}
    splits = load_splits(**data, seed=arguments["seed"])
    if pretrained is None:
        architecture = papers_config(only_classifier["recipe"], **of_classifier)
        _, _, metrics = train_classifier(architecture, **splits, **only_classifier, **options)
    else:
        _, _, metrics = fine_tune(pretrained, **splits, trust_remote_code=trust_remote_code, **options)
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


def run_retrain(arguments: dict) -> None:
    """Trains models beside a base and prints what they say of it."""
    from hf_attnprobe.retraining import retrain
    from hf_attnprobe.retraining_report import to_json

    as_json = arguments.pop("json")
    report = retrain(**arguments)
    print(json.dumps(to_json(report)) if as_json else report)


def run_study(arguments: dict) -> None:
    """Runs a study file, or the rest of it, and prints the report."""
    from hf_attnprobe.study import study

    _print_study(study, arguments)


def run_reproduce(arguments: dict) -> None:
    """Runs the study file of a paper, or the rest of it, and prints the report."""
    from hf_attnprobe.study import reproduce

    _print_study(reproduce, arguments)


def _print_study(function: Callable, arguments: dict) -> None:
    from hf_attnprobe.study_report import to_json

    as_json = arguments.pop("json")
    report = function(**arguments)
    if as_json:
        print(json.dumps(to_json(report)))
        return
    print(f"{report}\n\nfull report in {Path(arguments['output_dir']) / 'report.md'}")


def run_compare(arguments: dict) -> None:
    """Runs the same tests on several checkpoints and prints one table."""
    from hf_attnprobe.checkpoint_comparison import compare_checkpoints
    from hf_attnprobe.checkpoint_tables import to_json

    as_json = arguments.pop("json")
    comparison = compare_checkpoints(**arguments)
    print(json.dumps(to_json(comparison)) if as_json else comparison)


def run_deceive(arguments: dict) -> None:
    """Trains a model against attention to some tokens and prints what became of accuracy and attention."""
    from hf_attnprobe.deception import deceive
    from hf_attnprobe.deception_report import to_json

    as_json = arguments.pop("json")
    found = deceive(**arguments)
    print(json.dumps(to_json(found)) if as_json else f"{found}\nmodel in {arguments['output_dir']}")


def run_report(arguments: dict) -> None:
    """Renders the folder of an audit or a retraining again, from its rows and summary; shows that of a study."""
    from hf_attnprobe import report, retraining_report
    from hf_attnprobe.auditing import read_audit
    from hf_attnprobe.retraining import IDENTITY, read_retraining
    from hf_attnprobe.study import STATE, read_text

    folder, output = Path(arguments["audit"]), arguments["output"]
    if (folder / IDENTITY).is_file():
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


COMMANDS = {
    "demo": run_demo, "train": run_train, "audit": run_audit, "retrain": run_retrain, "study": run_study,
    "reproduce": run_reproduce, "compare": run_compare, "deceive": run_deceive, "report": run_report,
}  # fmt: skip
