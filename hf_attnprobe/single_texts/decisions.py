"""What a model predicts of a text, and what its label says, in words."""

from collections import Counter

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import Batch
from hf_attnprobe.functional.predictions import Prediction


def predicted(
    prediction: Prediction,
    probs: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str, float | None]:
    """What is predicted of a batch of one text, and its probability.

    Of several parts it is the mean of their probabilities, of a number there is none.

    Args:
        probs: [1, entries].
    """
    if prediction.is_number:
        return _numbers(prediction.value(probs)[0]), None
    parts = prediction.grouped(probs)[0]
    present = parts.sum(-1) > 0
    decided = prediction.decision(probs)[0].masked_fill(~present, -1)
    probability = parts.amax(-1).sum() / present.sum()
    return _decisions(prediction, decided, batch, tokenizer), float(probability)


def labelled(
    prediction: Prediction,
    probs: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str | None, bool | None]:
    """The label of a batch of one text, and whether it is what is predicted.

    None without a label, or where a number makes no decision.
    """
    labels = batch.labels
    if labels is None:
        return None, None
    own = labels[0].flatten()
    if prediction.is_number:
        if bool(own.isnan().any()):
            return None, None
        words = _numbers(own)
    elif not (own >= 0).any():
        return None, None
    else:
        words = _decisions(prediction, own.long(), batch, tokenizer)
    if not prediction.decides:
        return words, None
    share = float(prediction.right(probs, labels)[0])
    return words, None if share != share else share == 1


def _numbers(values: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in values.tolist())


def _decisions(
    prediction: Prediction,
    decided: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> str:
    """Decisions int [parts], −1 where there is none, in words."""
    numbers, kind = decided.tolist(), prediction.kind
    if kind == "labels":
        held = [n for n, k in zip(prediction.parts, numbers, strict=True) if k == 1]
        return ", ".join(held) or "none of the labels"
    if kind == "tags":
        counted = Counter(prediction.outcomes[k] for k in numbers if k >= 0)
        return ", ".join(f"{name} × {n}" for name, n in counted.most_common())
    if kind == "span":
        return _answer(numbers, batch, tokenizer)
    if kind == "words":
        return _words(numbers, batch, tokenizer)
    if kind == "choice":
        return f"choice {numbers[0] + 1}"
    names = prediction.outcomes
    return names[numbers[0]] if numbers[0] < len(names) else str(numbers[0])


def _answer(places: list[int], batch: Batch, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text between start and end."""
    start, end = places[:2]
    ids = batch.inputs["input_ids"][0]
    if not 0 <= start <= end < len(ids):
        return "no answer"
    return str(tokenizer.decode(ids[start : end + 1]))


def _words(numbers: list[int], batch: Batch, tokenizer: PreTrainedTokenizerBase) -> str:
    """The words under the masks, by their places among the likeliest."""
    kept = batch.inputs.get("kept", torch.empty(1, len(numbers), 0))[0]
    words = []
    for row, number in zip(kept.tolist(), numbers, strict=False):
        known = 0 <= number < len(row)
        words.append(str(tokenizer.decode([row[number]])).strip() if known else "another word")
    return ", ".join(words)
