"""The command ``attnprobe demo``: train and audit a model on data whose explanation is known.

Every generated text has known words that decide its label, so the demonstration can report whether
attention finds them. Slow imports happen inside the functions.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hf_attnprobe.audits.api import audit
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.core.distributed import require_single_process
from hf_attnprobe.core.options import MAX_SEED, Options, option, public_function
from hf_attnprobe.storage.folders import reserve_folder, write_json
from hf_attnprobe.training.options import TrainingOptions


if TYPE_CHECKING:
    import datasets

    from hf_attnprobe.reports.report import Report


DEMO_MARKER_FILE = "demo.json"
"""Name of the file that marks a folder as the output of ``attnprobe demo``.

A new demonstration may replace a folder with this file.
"""

N_QUESTIONS = 60
"""Number of generated questions on which the demonstration's language model is audited."""

PROMPT_TEMPLATE = "{context}\n\n{question}"
"""Template of the prompts for the demonstration's language model: a passage and a question."""

HIDDEN_SIZE = 64
"""Size of each embedding and each hidden state in the demonstration's classifier."""


@dataclass(frozen=True)
class DemoOptions(Options):
    """Options of :func:`demo`: the classifier and its training."""

    encoder: Literal["bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none"] = option(
        "bilstm", "encoder of the classifier"
    )
    n_examples: int = option(
        3000,
        "generated texts: two thirds for training, a sixth for the audit",
        at_least=1,
        at_most=10_000_000,
    )
    language_model: bool = option(
        False,
        "train a small decoder that answers questions about passages, instead of the classifier; "
        "only --seed applies to it",
    )
    epochs: int = option(6, "training epochs", at_least=1, at_most=100_000)
    seed: int = option(0, "seed of all random numbers", at_least=0, at_most=MAX_SEED)


RATIONALE_STATISTICS = {
    "attention": "token_f1@attention",
    "gradient × input": "token_f1@input_gradient",
    "leave-one-out": "token_f1@leave_one_out",
    "chance": "rationale_size",
}
"""Maps each ranking of words to the statistic that the demonstration prints for it.

``token_f1@…`` is the F1 score of a ranking's top words against the words that decide the label.
``rationale_size`` is the proportion of deciding words in the text: the score of a random ranking.
"""


@public_function
def demo(
    output_dir: str | Path = "attnprobe-demo",
    *,
    options: DemoOptions = DemoOptions(),
    progress: bool = True,
) -> "tuple[Report, dict[str, float]]":
    """Train an attention classifier on generated reviews and audit it.

    Example::

        report, metrics = demo("my-demo", options=DemoOptions(encoder="cnn"))

    Args:
        output_dir: folder for the subfolders ``model``, ``data`` and ``audit``. An earlier
            demonstration in it is replaced.
        options: the classifier, its training, and the amount of data.
        progress: show progress bars on stderr.

    Returns:
        report: the audit's report.
        metrics: the classifier's metrics on the test texts, in [0, 1], by name.

    Raises:
        AttnProbeError: If there are too few examples, or the folder contains other files.
    """
    from hf_attnprobe.data.synthetic import make_rationale_dataset

    require_single_process("demo")
    data = make_rationale_dataset(options.n_examples, seed=options.seed)
    with reserve_folder(output_dir, DEMO_MARKER_FILE) as folder:
        write_json(folder / DEMO_MARKER_FILE, asdict(options))
        # An existing audit belongs to the model of an earlier demonstration.
        shutil.rmtree(folder / "audit", ignore_errors=True)
        metrics = _train_model(data, folder, options, progress)
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
    """Train a small decoder to answer questions about passages, and audit it.

    Each answer is known to depend on one record of its passage, see
    :mod:`hf_attnprobe.data.synthetic`.

    Args:
        output_dir: folder for the model, the questions and the audit.
        seed: seed for weights, passages and questions.
        progress: show progress bars on stderr.

    Returns:
        The audit's report.

    Raises:
        AttnProbeError: If the folder contains other files.
    """
    import datasets

    from hf_attnprobe.data.specs import Answers
    from hf_attnprobe.data.synthetic import generate_record_questions
    from hf_attnprobe.training.decoder import train_decoder

    require_single_process("demo")
    questions = datasets.Dataset.from_list([*generate_record_questions(N_QUESTIONS, seed=seed)])
    with reserve_folder(output_dir, DEMO_MARKER_FILE) as folder:
        write_json(folder / DEMO_MARKER_FILE, {"language_model": True, "seed": seed})
        shutil.rmtree(folder / "audit", ignore_errors=True)
        train_decoder(folder / "model", seed=seed, progress=progress)
        questions.to_json(folder / "questions.jsonl")
        return audit(
            folder / "model",
            Answers(folder / "questions.jsonl", units="passage", template=PROMPT_TEMPLATE),
            ["default", "head_roles", "head_ablation"],
            options=AuditOptions(seed=seed, heads=["all"]),
            output_dir=folder / "audit",
            progress=progress,
        )


def _train_model(
    data: "datasets.DatasetDict",
    folder: Path,
    options: DemoOptions,
    progress: bool,
) -> dict[str, float]:
    """Train the classifier, save it in the subfolder ``model``, and return its metrics."""
    from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
    from hf_attnprobe.training.classifier import train_classifier

    config = AttentionClassifierConfig(
        encoder=options.encoder, embedding_size=HIDDEN_SIZE, encoder_size=HIDDEN_SIZE
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


def format_rationale_line(report: "Report") -> str:
    """Format a line that compares how well the rankings find the words that decide the label.

    Args:
        report: the demonstration's report.
    """
    from hf_attnprobe.reports.first_screen import find_model_statistic

    statistics = {
        name: find_model_statistic(report, statistic)
        for name, statistic in RATIONALE_STATISTICS.items()
    }
    shares = " · ".join(
        f"{name} {statistic.mean:.0%}"
        for name, statistic in statistics.items()
        if statistic is not None
    )
    texts = report.words.format_text_count(report.n, report.n_distinct)
    return f"Share of top-ranked words that decide the label: {shares} ({texts})"
