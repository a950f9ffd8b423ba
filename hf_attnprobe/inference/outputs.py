"""What a model says of every text of a split and where it looks, by example id; and weights to be imposed on another."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.pretrained import PretrainedFacts
from hf_attnprobe.attention_model import Observation, Site
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.inference.guides import Guide, guide_row, special_ids


@dataclass(frozen=True, eq=False)
class Outputs:
    """A model on the texts of a split that have tokens, in the order of their ids.

    labels int [texts], probs [texts, classes].
    attention, mask [texts, tokens]: the weights over a text's content tokens (no special ones) in their order, summing
    to 1, then padding. Where tokens are pieces of words, a word's weight stands at its place among the words.
    """

    example_ids: tuple[int, ...]
    labels: Tensor
    probs: Tensor
    attention: Tensor
    mask: Tensor


def observations(
    model, tokenizer, examples, *, batch_size: int = 64, **options
) -> Iterator[Observation]:
    """The texts in batches of similar length, seen by ``wrap(model, **options)``."""
    adapter = wrap(model, **options)
    texts, _ = tokenize(tokenizer, examples, adapter)
    texts = sorted(texts, key=lambda t: (len(t.inputs["input_ids"]), t.example_id))
    for start in range(0, len(texts), batch_size):
        yield adapter.observe(
            collate(
                adapter, texts[start : start + batch_size], tokenizer.pad_token_id or 0
            )
        )


def read_outputs(
    model, tokenizer, examples, *, site: Site | None = None, **options
) -> Outputs:
    """Runs a model over a split.

    Args:
        model: anything :func:`hf_attnprobe.wrap` takes, with its tokenizer; ``options`` are for :func:`observations`.
        site: the head that is read; ``None`` is the first one. What it gives to special tokens is left out and the
            rest divided by its sum. Of a hierarchical model, always a word's weight in its sentence times the
            sentence's.
    """
    rows = []
    for observation in observations(model, tokenizer, examples, **options):
        batch = observation.batch
        if observation.model.unit == "sentence":
            weights, content_mask = _word_weights(observation)
        else:
            weights = observation.read(site or observation.model.sites()[0]).detach()
            content_mask = batch.content_mask
        parts = zip(
            batch.example_ids,
            batch.labels,
            observation.probs.detach(),
            weights,
            content_mask,
            strict=True,
        )
        rows += [
            (k, label, probs, _normalised(row[content]))
            for k, label, probs, row, content in parts
        ]
    rows.sort(key=lambda row: row[0])
    ids, labels, probs, weights = zip(*rows, strict=True)
    mask = pad_sequence(
        [torch.ones_like(w, dtype=torch.bool) for w in weights], batch_first=True
    )
    attention = pad_sequence(list(weights), batch_first=True)
    return Outputs(
        ids,
        torch.stack(labels).cpu(),
        torch.stack(probs).cpu(),
        attention.cpu(),
        mask.cpu(),
    )


def _word_weights(observation: Observation) -> tuple[Tensor, Tensor]:
    """Of words over all sentences, and which tokens are words, both [batch, keys]; the adapter's own are of sentences."""
    words, sentences = (level.detach()[:, 0] for level in observation.attention)
    return (sentences @ words)[:, 0], observation.batch.inputs["units"] >= 0


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)


def to_guide(outputs: Outputs) -> Guide:
    """The attention of every text, by example id."""
    return {
        k: weights[real]
        for k, weights, real in zip(
            outputs.example_ids, outputs.attention, outputs.mask, strict=True
        )
    }


@torch.no_grad()
def predict(
    model,
    tokenizer,
    examples,
    *,
    guide: Guide | None = None,
    without: Collection[int] = (),
    batch_size: int = 128,
) -> Tensor:
    """Probabilities [texts, classes] in the order of :class:`Outputs`, of a model that may need a guide; of the texts
    ``without`` the tokens of these ids."""
    texts, _ = tokenize(tokenizer, examples, PretrainedFacts(model))
    texts = sorted(texts, key=lambda t: t.example_id)
    model, rows = model.eval(), []
    for start in range(0, len(texts), batch_size):
        chunk = texts[start : start + batch_size]
        kept = ([k for k in t.inputs["input_ids"] if k not in without] for t in chunk)
        columns = {
            "input_ids": [ids or [tokenizer.pad_token_id] for ids in kept]
        }  # no model reads nothing
        inputs = dict(tokenizer.pad(columns, return_tensors="pt"))
        if guide is not None:
            weights = [
                guide_row(
                    guide, t.example_id, t.inputs["input_ids"], special_ids(tokenizer)
                )
                for t in chunk
            ]
            inputs["guide"] = pad_sequence(
                [torch.tensor(row) for row in weights], batch_first=True
            )
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        rows.append(model(**inputs).logits.double().softmax(-1).cpu())
    return torch.cat(rows)
