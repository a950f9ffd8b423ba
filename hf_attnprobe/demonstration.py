"""The verb ``demo``: the main job on data whose answer is known.

What computes is imported when it is needed. It trains, audits, and says whether attention finds
the words that decide a text's label.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hf_attnprobe.audits.api import audit
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.core.distributed import check_one_process
from hf_attnprobe.core.options import LARGEST_SEED, Options, option, public_function
from hf_attnprobe.storage.folders import alone_in, write_json
from hf_attnprobe.training.options import TrainingOptions


if TYPE_CHECKING:
    import datasets

    from hf_attnprobe.reports.report import Report

MARK = "demo.json"  # says that everything in a folder is a demo's
N_QUESTIONS = 60
TEMPLATE = "{context}\n\n{question}"
WIDTH = 64  # of word vectors and encoder


@dataclass(frozen=True)
class DemoOptions(Options):
    """The classifier of :func:`hf_attnprobe.demonstration`, and how much it is trained."""

    encoder: Literal["bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none"] = option(
        "bilstm", "encoder of the classifier"
    )
    n_examples: int = option(
        3000,
        "generated texts; two thirds train, a sixth is audited",
        at_least=1,
        at_most=10_000_000,
    )
    language_model: bool = option(
        False,
        "train a small decoder that answers from passages, in place of the classifier; of the "
        "other options it uses the seed alone",
    )
    epochs: int = option(6, "epochs of the training", at_least=1, at_most=100_000)
    seed: int = option(0, "seed of everything random", at_least=0, at_most=LARGEST_SEED)


FOUND = {
    "attention": "token_f1@attention",
    "gradient × input": "token_f1@input_gradient",
    "leaving out": "token_f1@leave_one_out",
    "chance": "rationale_size",
}
"""Statistics of the test plausibility, by what is ranked."""


@public_function
def demo(
    output_dir: str | Path = "attnprobe-demo",
    *,
    options: DemoOptions = DemoOptions(),
    progress: bool = True,
) -> "tuple[Report, dict[str, float]]":
    """Trains an attention classifier on generated reviews and audits it.

    Args:
        output_dir: the model goes to ``model`` in it, its texts to ``data``, the audit to
            ``audit``. Those of an earlier demo are replaced.
        options: the classifier, and how much data.
        progress: show bars on stderr.

    Returns:
        report: of the audit.
        metrics: scores of the model in [0, 1], by name.

    Raises:
        AttnProbeError: too few examples, or a folder with other files.
    """
    from hf_attnprobe.data.synthetic import rationale_dataset

    check_one_process("demo")
    data = rationale_dataset(options.n_examples, seed=options.seed)
    with alone_in(output_dir, MARK) as folder:
        write_json(folder / MARK, asdict(options))
        # The audit of an earlier demo's model.
        shutil.rmtree(folder / "audit", ignore_errors=True)
        metrics = _trained(data, folder, options, progress)
        data.save_to_disk(folder / "data")
        report = audit(
            folder / "model",
            folder / "data",
            options=AuditOptions(seed=options.seed),
            output_dir=folder / "audit",
            progress=progress,
        )
    return report, metrics


def demo_language_model(
    output_dir: str | Path = "attnprobe-demo",
    *,
    seed: int = 0,
    progress: bool = True,
) -> "Report":
    """Trains a small decoder to answer from passages and audits it.

    What every answer rests on is known: one record of the passage, see
    :mod:`hf_attnprobe.data.synthetic`.

    Args:
        output_dir, progress: as for :func:`demo`.
        seed: of weights, passages and questions.

    Returns:
        The report of the audit.
    """
    import datasets

    from hf_attnprobe.data.specs import Answers
    from hf_attnprobe.data.synthetic import record_questions
    from hf_attnprobe.training.decoder import train_decoder

    check_one_process("demo")
    asked = datasets.Dataset.from_list([*record_questions(N_QUESTIONS, seed=seed)])
    with alone_in(output_dir, MARK) as folder:
        write_json(folder / MARK, {"language_model": True, "seed": seed})
        shutil.rmtree(folder / "audit", ignore_errors=True)
        train_decoder(folder / "model", seed=seed, progress=progress)
        asked.to_json(folder / "questions.jsonl")
        return audit(
            folder / "model",
            Answers(folder / "questions.jsonl", units="passage", template=TEMPLATE),
            ["default", "head_roles", "head_ablation"],
            options=AuditOptions(seed=seed, heads=["all"]),
            output_dir=folder / "audit",
            progress=progress,
        )


def _trained(
    data: "datasets.DatasetDict",
    folder: Path,
    options: DemoOptions,
    progress: bool,
) -> dict[str, float]:
    """Trains the demo's classifier into ``model`` of its folder; its scores."""
    from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
    from hf_attnprobe.training.classifier import train_classifier

    config = AttentionClassifierConfig(
        encoder=options.encoder, embedding_size=WIDTH, encoder_size=WIDTH
    )
    _, _, metrics = train_classifier(
        config,
        data["train"],
        data["validation"],
        test=data["test"],
        output_dir=folder / "model",
        options=TrainingOptions(seed=options.seed, epochs=options.epochs, learning_rate=2e-3),
        progress=progress,
    )
    return metrics


def rationale_line(report: "Report") -> str:
    """Says how well rankings find the words that are known to decide, on one line."""
    from hf_attnprobe.reports.first_screen import whole

    found = {name: whole(report, statistic) for name, statistic in FOUND.items()}
    shares = " · ".join(
        f"{name} {share.mean:.0%}" for name, share in found.items() if share is not None
    )
    return f"deciding words, of as many ranked first: {shares} ({report.n} texts)"
