"""The verb ``demo``: the main job on data whose answer is known.

What computes is imported when it is needed. It trains, audits, and checks whether attention finds the words that decide a text's label.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.distributed import check_one_process
from hf_attnprobe.options import LARGEST_SEED, Options, option, public_function
from hf_attnprobe.storage.folders import alone_in, write_json
from hf_attnprobe.training.options import TrainingOptions


if TYPE_CHECKING:
    import datasets
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hf_attnprobe.audit_reports.report import Report
    from hf_attnprobe.training.trainer import TrainedClassifier

MARK = "demo.json"  # says that everything in a folder is a demo's
N_QUESTIONS = 60
TEMPLATE = "{context}\n\n{question}"
WIDTH = 64  # of word vectors and encoder
BATCH_SIZE = 128


@dataclass(frozen=True)
class DemoOptions(Options):
    """The classifier of :func:`hf_attnprobe.demo`, and how much it is trained."""

    encoder: Literal[
        "bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none"
    ] = option("bilstm", "encoder of the classifier")
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
    epochs: int = option(
        6, "epochs of the training", at_least=1, at_most=100_000
    )
    seed: int = option(
        0, "seed of everything random", at_least=0, at_most=LARGEST_SEED
    )


@dataclass(frozen=True)
class RationaleScores:
    """How well importances find the deciding words; all shares are in [0, 1].

    Attributes:
        top_in_rationale: share of texts whose most important token decides, by importance.
        weight_on_rationale: share of an importance's weight on deciding words.
        chance: what a random token, or uniform weights, would reach.
        n: number of texts.
    """

    top_in_rationale: dict[str, float]
    weight_on_rationale: dict[str, float]
    chance: float
    n: int


@public_function
def demo(
    output_dir: str | Path = "attnprobe-demo",
    *,
    options: DemoOptions = DemoOptions(),
    progress: bool = True,
) -> "tuple[Report, RationaleScores, dict[str, float]]":
    """Trains an attention classifier on generated reviews and audits it.

    Args:
        output_dir: the model goes to ``model`` in it, the audit to ``audit``. Those of an
            earlier demo are replaced.
        options: the classifier, and how much data.
        progress: show bars on stderr.

    Returns:
        report: of the audit.
        found: how well attention, gradient and leave-one-out find the deciding words.
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
        model, tokenizer, metrics = _trained(data, folder, options, progress)
        report = audit(
            folder / "model",
            data["test"],
            options=AuditOptions(seed=options.seed),
            output_dir=folder / "audit",
            progress=progress,
        )
    return report, rationale_scores(model, tokenizer, data["test"]), metrics


def demo_language_model(
    output_dir: str | Path = "attnprobe-demo",
    *,
    seed: int = 0,
    progress: bool = True,
) -> "tuple[Report, dict[str, float]]":
    """Trains a small decoder to answer from passages and audits it.

    What every answer rests on is known: one record of the passage, see
    :mod:`hf_attnprobe.data.synthetic`.

    Args:
        output_dir, progress: as for :func:`demo`.
        seed: of weights, passages and questions.

    Returns:
        report: of the audit.
        metrics: shares in [0, 1]: of questions whose answer greedy decoding says.
    """
    from hf_attnprobe.data.answers import Answers
    from hf_attnprobe.data.synthetic import record_questions
    from hf_attnprobe.training.decoder import exact_share, train_decoder

    check_one_process("demo")
    asked = [*record_questions(N_QUESTIONS, seed=seed)]
    with alone_in(output_dir, MARK) as folder:
        write_json(folder / MARK, {"language_model": True, "seed": seed})
        shutil.rmtree(folder / "audit", ignore_errors=True)
        model, tokenizer = train_decoder(
            folder / "model", seed=seed, progress=progress
        )
        report = audit(
            folder / "model",
            Answers(asked, units="passage", template=TEMPLATE),
            ["default", "head_roles", "head_ablation"],
            options=AuditOptions(seed=seed, heads=["all"]),
            output_dir=folder / "audit",
            progress=progress,
        )
    return report, {"exact_answers": exact_share(model, tokenizer, asked)}


def _trained(
    data: "datasets.DatasetDict",
    folder: Path,
    options: DemoOptions,
    progress: bool,
) -> "TrainedClassifier":
    """The classifier of the demo, in ``model`` of its folder."""
    from hf_attnprobe.attention_classifier import AttentionClassifierConfig
    from hf_attnprobe.training.classifier import train_classifier

    config = AttentionClassifierConfig(
        encoder=options.encoder, embedding_size=WIDTH, encoder_size=WIDTH
    )
    return train_classifier(
        config,
        data["train"],
        data["validation"],
        test=data["test"],
        output_dir=folder / "model",
        options=TrainingOptions(
            seed=options.seed, epochs=options.epochs, learning_rate=2e-3
        ),
        progress=progress,
    )


def rationale_scores(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    examples: "datasets.Dataset",
) -> RationaleScores:
    """Scores attention, gradient and leave-one-out against the known deciding words.

    Args:
        examples: rows with ``rationale``, positions of the deciding words among the text's
            words.
    """
    import torch

    from hf_attnprobe.adapters import wrap
    from hf_attnprobe.data.columns import column_of
    from hf_attnprobe.inference.batching import collate
    from hf_attnprobe.inference.encoding import tokenize

    adapter = wrap(model)
    texts = tokenize(tokenizer, examples, adapter).texts
    ids = column_of(examples, "example_id")
    rationales = dict(zip(ids, column_of(examples, "rationale"), strict=True))
    top: dict[str, list[Tensor]] = {}
    weight: dict[str, list[Tensor]] = {}
    shares = []
    for start in range(0, len(texts), BATCH_SIZE):
        chunk = texts[start : start + BATCH_SIZE]
        batch = collate(adapter, chunk, tokenizer.pad_token_id)
        observation = adapter.observe(batch)
        content = batch.content_mask
        decisive = _rationale_mask(
            content, [rationales[k] for k in batch.example_ids]
        )
        shares.append(decisive.sum(-1) / content.sum(-1))
        importances = {
            "attention": observation.read(adapter.sites()[0]),
            "gradient": observation.gradient_importance(),
            "leave-one-out": observation.leave_one_out_importance(),
        }
        for name, values in importances.items():
            values = values * content
            most = values.argmax(-1, keepdim=True)
            hits = decisive.gather(1, most)[:, 0].double()
            top.setdefault(name, []).append(hits)
            share = (values * decisive).sum(-1) / values.sum(-1)
            weight.setdefault(name, []).append(share)
    return RationaleScores(
        {name: float(torch.cat(parts).mean()) for name, parts in top.items()},
        {
            name: float(torch.cat(parts).nanmean())
            for name, parts in weight.items()
        },
        float(torch.cat(shares).mean()),
        len(texts),
    )


def _rationale_mask(content: "Tensor", rationales: list[list[int]]) -> "Tensor":
    """Bool [batch, keys], True at the n-th content position for every word number n."""
    import torch

    order = content.cumsum(-1) - 1
    rows = [
        torch.isin(order[row], torch.tensor(words))
        for row, words in enumerate(rationales)
    ]
    return torch.stack(rows) & content


def rationale_line(found: RationaleScores) -> str:
    """What was found on one line of a terminal."""
    first = " · ".join(
        f"{name} {share:.0%}" for name, share in found.top_in_rationale.items()
    )
    return f"deciding word first: {first} · chance {found.chance:.0%} ({found.n} texts)"


def rationale_sentences(found: RationaleScores) -> list[str]:
    """What was found, in plain words."""
    share = found.top_in_rationale["attention"]
    word = "mostly found" if share >= 0.5 else "mostly missed"
    lines = [
        f"attention {word} the deciding words (a random token is one of them in "
        f"{found.chance:.0%} of texts):"
    ]
    for name, first in found.top_in_rationale.items():
        lines.append(
            f"{name} puts a deciding word first in {first:.0%} of {found.n} texts and "
            f"{found.weight_on_rationale[name]:.0%} of its weight on deciding words"
        )
    return lines
