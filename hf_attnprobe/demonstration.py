"""Train and audit a model on texts whose deciding words are known.

So whether attention found these words, the rationale, can be checked.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.report import Report
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.data.examples import column_of
from hf_attnprobe.data.synthetic import rationale_dataset
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.options import check_at_least
from hf_attnprobe.storage.folders import check_new_folder
from hf_attnprobe.training.classifier import train_classifier


MARK = "demo.json"  # says that everything in a folder is a demo's


@dataclass(frozen=True)
class RationaleScores:
    """How well each importance finds the rationale, in [0, 1].

    Attributes:
        top_in_rationale: share of texts whose highest token belongs to it.
        weight_on_rationale: mean share of the weight that lies on it.
        chance: what a random token, or uniform weights, would reach.
        n: number of texts.
    """

    top_in_rationale: dict[str, float]
    weight_on_rationale: dict[str, float]
    chance: float
    n: int


def demo(
    output_dir: str | Path = "attnprobe-demo",
    *,
    encoder: str = "bilstm",
    n_examples: int = 3000,
    epochs: int = 6,
    seed: int = 0,
    progress: bool = True,
) -> tuple[Report, RationaleScores, dict[str, float]]:
    """Train an attention classifier on generated reviews, audit it, and score it.

    Its attention is compared with the known rationale of every text.

    Args:
        output_dir: the model goes to ``model`` in it, the audit to ``audit``; those of an earlier demo are replaced.
        n_examples: generated texts; two thirds train, a sixth is audited.

    Returns:
        The report, how well each importance finds the rationale, and the model's
        scores.
    """
    check_at_least(1, epochs=epochs)
    data = rationale_dataset(n_examples, seed=seed)
    output_dir = check_new_folder(output_dir, holding=MARK)
    output_dir.mkdir(parents=True, exist_ok=True)
    (output_dir / MARK).write_text(
        json.dumps(
            {
                "encoder": encoder,
                "n_examples": n_examples,
                "epochs": epochs,
                "seed": seed,
            }
        )
    )
    shutil.rmtree(
        output_dir / "audit", ignore_errors=True
    )  # of an earlier demo's model
    config = AttentionClassifierConfig(
        encoder=encoder, embedding_size=64, encoder_size=64
    )
    model, tokenizer, metrics = train_classifier(
        config,
        data["train"],
        data["validation"],
        test=data["test"],
        output_dir=output_dir / "model",
        seed=seed,
        epochs=epochs,
        learning_rate=2e-3,
        progress=progress,
    )
    report = audit(
        output_dir / "model",
        data["test"],
        options=AuditOptions(seed=seed),
        output_dir=output_dir / "audit",
        progress=progress,
    )
    return report, rationale_scores(model, tokenizer, data["test"]), metrics


def rationale_scores(model, tokenizer, examples) -> RationaleScores:
    """Score attention, gradient and leave-one-out against the rationale of every text.

    Args:
        examples: rows with ``rationale``, positions of the deciding words among the
            text's words.
    """
    adapter = wrap(model)
    texts = tokenize(tokenizer, examples, adapter).texts
    ids = column_of(examples, "example_id")
    rationales = dict(zip(ids, column_of(examples, "rationale"), strict=True))
    top: dict[str, list[Tensor]] = {}
    weight: dict[str, list[Tensor]] = {}
    shares = []
    for start in range(0, len(texts), 128):
        batch = collate(adapter, texts[start : start + 128], tokenizer.pad_token_id)
        observation, content = adapter.observe(batch), batch.content_mask
        decisive = _rationale_mask(content, [rationales[k] for k in batch.example_ids])
        shares.append(decisive.sum(-1) / content.sum(-1))
        importances = {
            "attention": observation.read(adapter.sites()[0]),
            "gradient": observation.gradient_importance(),
            "leave-one-out": observation.leave_one_out_importance(),
        }
        for name, values in importances.items():
            values = values * content
            top.setdefault(name, []).append(
                decisive.gather(1, values.argmax(-1, keepdim=True))[:, 0].double()
            )
            weight.setdefault(name, []).append(
                (values * decisive).sum(-1) / values.sum(-1)
            )
    return RationaleScores(
        {name: float(torch.cat(parts).mean()) for name, parts in top.items()},
        {name: float(torch.cat(parts).nanmean()) for name, parts in weight.items()},
        float(torch.cat(shares).mean()),
        len(texts),
    )


def _rationale_mask(content: Tensor, rationales: list[list[int]]) -> Tensor:
    """Bool [batch, keys]: True at content position n for every word n of a rationale."""
    order = content.cumsum(-1) - 1
    rows = [
        torch.isin(order[row], torch.tensor(words))
        for row, words in enumerate(rationales)
    ]
    return torch.stack(rows) & content


def rationale_sentences(found: RationaleScores) -> list[str]:
    """What was found, in plain words."""
    lines = [
        f"{name} puts a deciding word first in {found.top_in_rationale[name]:.0%} of {found.n} texts and "
        f"{found.weight_on_rationale[name]:.0%} of its weight on deciding words"
        for name in found.top_in_rationale
    ]
    share = found.top_in_rationale["attention"]
    word = "mostly found" if share >= 0.5 else "mostly missed"
    return [
        f"attention {word} the deciding words (a random token is one of them in "
        f"{found.chance:.0%} of texts):",
        *lines,
    ]
