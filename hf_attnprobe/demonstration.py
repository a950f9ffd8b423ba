"""The main job on data whose answer is known: train, audit, and check whether attention found the evidence."""

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
from hf_attnprobe.data.synthetic import evidence_dataset
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.options import check_at_least
from hf_attnprobe.storage.folders import check_new_folder
from hf_attnprobe.training.classifier import train_classifier


MARK = "demo.json"  # says that everything in a folder is a demo's


@dataclass(frozen=True)
class EvidenceFound:
    """How often an importance puts an evidence token first, and how much of its weight lies on evidence, in [0, 1].

    ``chance`` is what a random token, or uniform weights, would reach.
    """

    top_is_evidence: dict[str, float]
    weight_on_evidence: dict[str, float]
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
) -> tuple[Report, EvidenceFound, dict[str, float]]:
    """Trains an attention classifier on generated reviews, audits it, and compares its attention with the evidence.

    Args:
        output_dir: the model goes to ``model`` in it, the audit to ``audit``; those of an earlier demo are replaced.
        n_examples: generated texts; two thirds train, a sixth is audited.

    Returns:
        The report, what each importance found of the evidence, and the model's scores.
    """
    check_at_least(1, epochs=epochs)
    data = evidence_dataset(n_examples, seed=seed)
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
    return report, evidence_found(model, tokenizer, data["test"]), metrics


def evidence_found(model, tokenizer, examples) -> EvidenceFound:
    """Scores attention, gradient and leave-one-out against the known evidence of every text.

    Args:
        examples: rows with ``evidence``, positions of the deciding words among the text's words.
    """
    adapter = wrap(model)
    texts, _ = tokenize(tokenizer, examples, adapter)
    columns = examples.with_format(None)[:]
    evidence = dict(zip(columns["example_id"], columns["evidence"], strict=True))
    top: dict[str, list[Tensor]] = {}
    weight: dict[str, list[Tensor]] = {}
    shares = []
    for start in range(0, len(texts), 128):
        batch = collate(adapter, texts[start : start + 128], tokenizer.pad_token_id)
        observation, content = adapter.observe(batch), batch.content_mask
        decisive = _evidence_mask(content, [evidence[k] for k in batch.example_ids])
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
    return EvidenceFound(
        {name: float(torch.cat(parts).mean()) for name, parts in top.items()},
        {name: float(torch.cat(parts).nanmean()) for name, parts in weight.items()},
        float(torch.cat(shares).mean()),
        len(texts),
    )


def _evidence_mask(content: Tensor, evidence: list[list[int]]) -> Tensor:
    """Bool [batch, keys], True at the n-th content position for every word number n of the evidence."""
    order = content.cumsum(-1) - 1
    rows = [
        torch.isin(order[row], torch.tensor(words))
        for row, words in enumerate(evidence)
    ]
    return torch.stack(rows) & content


def evidence_sentences(found: EvidenceFound) -> list[str]:
    """What was found, in plain words."""
    lines = [
        f"{name} puts a deciding word first in {found.top_is_evidence[name]:.0%} of {found.n} texts and "
        f"{found.weight_on_evidence[name]:.0%} of its weight on deciding words"
        for name in found.top_is_evidence
    ]
    share = found.top_is_evidence["attention"]
    word = "mostly found" if share >= 0.5 else "mostly missed"
    return [
        f"attention {word} the evidence (a random token would find it in {found.chance:.0%} of texts):",
        *lines,
    ]
