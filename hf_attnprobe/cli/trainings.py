"""demo, train, retrain and deceive: the commands that train models."""

import json
from pathlib import Path

from hf_attnprobe.cli.flags import (
    add_adversaries,
    add_data,
    add_json,
    add_training_limit,
    at_least,
)


# Flags of train that are fields of AttentionClassifierConfig, and those that mean nothing to a pretrained model.
ARCHITECTURE = (
    "encoder",
    "hierarchical",
    "attention",
    "attention_size",
    "embedding_size",
    "encoder_size",
)
ARCHITECTURE += (
    "kernel_sizes",
    "embedding_dropout",
    "sentence_dropout",
    "logit_dropout",
)
ARCHITECTURE += (
    "residual_connection",
    "tying",
    "mlm_weight",
    "mlm_rate",
    "conicity_weight",
)
ONLY_CLASSIFIER = (
    "recipe",
    "min_document_frequency",
    "max_grad_norm",
    "plateau_factor",
    "patience",
    "vectors",
)


def add_demo(parser) -> None:
    """Flags of demo."""
    parser.add_argument(
        "--output-dir",
        default="attnprobe-demo",
        help="for model and audit (default: %(default)s)",
    )
    parser.add_argument(
        "--encoder", choices=("bilstm", "cnn", "mlp", "none"), default="bilstm"
    )
    parser.add_argument(
        "--n-examples",
        type=at_least(1),
        default=3000,
        help="generated texts (default: %(default)s)",
    )
    parser.add_argument("--epochs", type=at_least(1), default=6)
    parser.add_argument("--seed", type=at_least(0), default=0)


def add_train(parser) -> None:
    """Flags of train."""
    add_data(parser)
    parser.add_argument("--output-dir", required=True, help="where the checkpoint goes")
    parser.add_argument(
        "--model",
        help="fine-tune this pretrained Transformer (folder or Hub id) instead",
    )
    parser.add_argument("--max-length", type=at_least(1), help="cut longer texts")
    add_training_limit(parser)
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="(with --model)"
    )
    parser.add_argument(
        "--recipe",
        choices=("jain-wallace", "serrano-smith"),
        default="jain-wallace",
        help="sets what is not given",
    )
    _add_architecture(parser)
    parser.add_argument(
        "--epochs",
        type=at_least(1),
        help="default: 8 (serrano-smith 15), with --model 3",
    )
    parser.add_argument(
        "--batch-size", type=at_least(1), help="default: 32 (serrano-smith 64)"
    )
    parser.add_argument(
        "--learning-rate",
        type=at_least(0, float),
        help="default: 1e-3 (serrano-smith 4e-4), with --model 5e-5",
    )
    parser.add_argument(
        "--weight-decay",
        type=at_least(0, float),
        help="default: 1e-5 (0), with --model 0.01",
    )
    parser.add_argument(
        "--max-grad-norm",
        type=at_least(0, float),
        help="default: 0, no clipping (serrano-smith 10)",
    )
    parser.add_argument(
        "--plateau-factor",
        type=at_least(0, float),
        help="of the learning rate without progress (serrano-smith 0.5)",
    )
    parser.add_argument(
        "--patience",
        type=at_least(1),
        help="epochs without progress that end it (serrano-smith 5)",
    )
    parser.add_argument(
        "--min-document-frequency",
        type=at_least(1),
        help="words in fewer texts are unknown (default: 1, serrano-smith 5)",
    )
    parser.add_argument(
        "--vectors",
        help="pretrained word vectors, a word2vec, fastText or GloVe text file",
    )
    add_json(parser, "scores")


def _add_architecture(parser) -> None:
    encoders = ("bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none")
    parser.add_argument(
        "--encoder", choices=encoders, help="default: bilstm (serrano-smith bigru)"
    )
    parser.add_argument(
        "--hierarchical",
        action="store_true",
        help="words make sentences, sentences make the text",
    )
    parser.add_argument(
        "--attention",
        choices=("additive", "dot_product", "uniform"),
        help="default: additive",
    )
    parser.add_argument(
        "--attention-size",
        type=at_least(1),
        help="default: half the states (serrano-smith 100)",
    )
    parser.add_argument(
        "--embedding-size", type=at_least(1), help="default: 300 (serrano-smith 200)"
    )
    parser.add_argument(
        "--encoder-size",
        type=at_least(1),
        help="per direction for bilstm, bigru; default: 128 (serrano-smith 50)",
    )
    parser.add_argument(
        "--kernel-sizes",
        type=at_least(1),
        nargs="+",
        help="of cnn; default: 1 3 5 7 (serrano-smith 3 5)",
    )
    for name, of in (
        ("embedding", "word vectors"),
        ("sentence", "sentence vectors"),
        ("logit", "logits"),
    ):
        parser.add_argument(
            f"--{name}-dropout",
            type=at_least(0, float),
            help=f"on {of} (default: 0, or the recipe's)",
        )
    _add_regularisers(parser)


def _add_regularisers(parser) -> None:
    parser.add_argument(
        "--residual-connection",
        choices=("none", "concat", "residual"),
        help="of states to their word vectors (none)",
    )
    for name, what in (
        ("tying", "of the distance between states and their word vectors"),
        ("mlm-weight", "of telling masked words from the states"),
        ("conicity-weight", "of states that point the same way"),
    ):
        parser.add_argument(
            f"--{name}",
            type=at_least(0, float),
            help=f"weight in the loss {what} (default: 0)",
        )
    parser.add_argument(
        "--mlm-rate",
        type=at_least(0, float),
        help="share of words masked for it (default: 0.15)",
    )


def add_retrain(parser) -> None:
    """Flags of retrain."""
    parser.add_argument(
        "--model",
        required=True,
        help="the base, an attention classifier (folder or Hub id)",
    )
    add_data(parser)
    parser.add_argument(
        "--tests",
        nargs="+",
        metavar="TEST",
        help="uniform seeds adversary diagnostic_mlp (default: all)",
    )
    parser.add_argument(
        "--output-dir",
        required=True,
        help="for models, rows and report; the same again continues",
    )
    add_training_limit(parser)
    parser.add_argument(
        "--n-seeds",
        type=at_least(1),
        default=8,
        help="runs of seeds (default: %(default)s)",
    )
    add_adversaries(parser)
    parser.add_argument(
        "--tvd-scale",
        choices=("true", "half"),
        default="true",
        help="of an adversary's loss (the paper's code: half)",
    )
    parser.add_argument(
        "--patience",
        type=at_least(1),
        default=10,
        help="epochs without a lower loss that end an adversary",
    )
    parser.add_argument(
        "--recipe",
        choices=("jain-wallace", "serrano-smith"),
        help="default: the base's, as all below",
    )
    parser.add_argument("--epochs", type=at_least(1), help="of all but the adversaries")
    parser.add_argument("--batch-size", type=at_least(1))
    parser.add_argument("--learning-rate", type=at_least(0, float))
    parser.add_argument("--weight-decay", type=at_least(0, float))
    parser.add_argument("--vectors", help="pretrained word vectors")
    add_json(parser)


def add_deceive(parser) -> None:
    """Flags of deceive."""
    parser.add_argument(
        "--model", required=True, help="a trained classifier (folder or Hub id)"
    )
    add_data(parser)
    parser.add_argument(
        "--tokens",
        nargs="+",
        required=True,
        metavar="TOKEN",
        help="that it must not be seen to attend to",
    )
    parser.add_argument("--output-dir", required=True, help="where the checkpoint goes")
    parser.add_argument(
        "--weight",
        type=at_least(0, float),
        default=1.0,
        help="λ of the penalty (default: %(default)s)",
    )
    parser.add_argument(
        "--over-heads",
        choices=("mean", "max"),
        default="mean",
        help="penalty of several heads",
    )
    parser.add_argument(
        "--layers",
        choices=("last", "all"),
        default="last",
        help="of a Transformer, whose heads",
    )
    parser.add_argument(
        "--epochs", type=at_least(1), default=5, help="default: %(default)s"
    )
    parser.add_argument(
        "--batch-size", type=at_least(1), default=32, help="default: %(default)s"
    )
    parser.add_argument(
        "--learning-rate",
        type=at_least(0, float),
        help="default: the classifier's own, or 5e-5",
    )
    add_training_limit(parser)
    parser.add_argument("--trust-remote-code", action="store_true")
    add_json(parser, "numbers")


def run_demo(arguments: dict) -> None:
    """Trains, audits, and prints the report and how well attention found the deciding words."""
    from hf_attnprobe.demonstration import demo, rationale_sentences

    report, found, metrics = demo(**arguments)
    scores = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}" for name, value in metrics.items()
    )
    folder = Path(arguments["output_dir"])
    print(f"{report}\n\nModel\n  {scores}\n\nDeciding words")
    print("\n".join(f"  {line}" for line in rationale_sentences(found)))
    print(
        f"\nModel in {folder / 'model'}, full report in {folder / 'audit' / 'report.md'}"
    )


def run_train(arguments: dict) -> None:
    """Trains on the splits train and validation; scores the test split where there is one."""
    from hf_attnprobe.data.splits import load_splits
    from hf_attnprobe.training.classifier import train_classifier
    from hf_attnprobe.training.fine_tuning import fine_tune
    from hf_attnprobe.training.procedures import papers_config

    as_json = arguments.pop("json")
    data = {
        k: arguments.pop(k)
        for k in ("dataset", "config", "text_column", "label_column", "limit")
    }
    of_classifier = {k: arguments.pop(k) for k in ARCHITECTURE}
    only_classifier = {k: arguments.pop(k) for k in ONLY_CLASSIFIER}
    trust_remote_code, pretrained = (
        arguments.pop("trust_remote_code"),
        arguments.pop("model"),
    )
    options = {k: v for k, v in arguments.items() if v is not None}
    config = data.pop("config")
    splits = load_splits(**data, dataset_config=config, seed=arguments["seed"])
    if pretrained is None:
        architecture = papers_config(only_classifier["recipe"], **of_classifier)
        _, _, metrics = train_classifier(
            architecture, **splits, **only_classifier, **options
        )
    else:
        _, _, metrics = fine_tune(
            pretrained, **splits, trust_remote_code=trust_remote_code, **options
        )
    if as_json:
        print(
            json.dumps(
                {
                    "model": arguments["output_dir"],
                    "seed": arguments["seed"],
                    "metrics": metrics,
                }
            )
        )
        return
    print(
        "\n".join(
            f"{name.replace('_', ' ')}: {value:.3f}" for name, value in metrics.items()
        )
    )
    print(f"model in {arguments['output_dir']}")


def run_retrain(arguments: dict) -> None:
    """Trains models beside a base and prints what they say of it."""
    from hf_attnprobe.retraining.report import to_json
    from hf_attnprobe.retraining.run import retrain

    as_json = arguments.pop("json")
    report = retrain(**arguments)
    print(json.dumps(to_json(report)) if as_json else report)


def run_deceive(arguments: dict) -> None:
    """Trains a model against attention to some tokens and prints what became of accuracy and attention."""
    from hf_attnprobe.deception.report import to_json
    from hf_attnprobe.deception.run import deceive

    as_json = arguments.pop("json")
    found = deceive(**arguments)
    print(
        json.dumps(to_json(found))
        if as_json
        else f"{found}\nmodel in {arguments['output_dir']}"
    )
