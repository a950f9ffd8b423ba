"""A few texts shown whole: their attention, and beside it the adversary that gives the same output."""

from collections.abc import Sequence

import torch

from hf_attnprobe.attention_model import Batch
from hf_attnprobe.auditing.report import Example
from hf_attnprobe.faithfulness import PROBES
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text


def show(
    adapter, texts: Sequence[Text], tokenizer, classes: Sequence[str]
) -> tuple[Example, ...]:
    """Texts with their attention and, where it can be had exactly, the adversary at ε = .05."""
    batch = collate(adapter, texts, tokenizer.pad_token_id or 0)
    observation, site = adapter.observe(batch), adapter.sites()[0]
    token_logits = observation.token_logits
    if token_logits is None or token_logits.shape[-1] != 2:
        return ()
    found = PROBES["adversarial"](adapter, observation, site, epsilons=(0.05,))
    adversary, divergence = found.attention[0.05], found.epsilon_max_jsd[0.05]
    after = adapter.replay(observation, {site.layer: adversary[None, :, None]})[0]
    shown = []
    for row, text in enumerate(texts):
        content, predicted = (
            batch.content_mask[row],
            int(observation.probs[row].argmax()),
        )
        shown.append(
            Example(
                example_id=text.example_id,
                tokens=_units(batch, row, tokenizer),
                label=classes[text.label] if text.label >= 0 else None,
                predicted=classes[predicted],
                prob=float(observation.probs[row, predicted]),
                attention=tuple(observation.read(site)[row][content].tolist()),
                adversary=tuple(adversary[row, 0][content].tolist()),
                adversary_prob=float(after[row, predicted]),
                adversary_jsd=float(divergence[row]),
            )
        )
    return tuple(shown)


def _units(batch: Batch, row: int, tokenizer) -> tuple[str, ...]:
    """What of a text is explained: its tokens, or its sentences."""
    content, ids = batch.content_mask[row], batch.inputs["input_ids"][row]
    if content.shape == ids.shape:
        return tuple(tokenizer.convert_ids_to_tokens(ids[content].tolist()))
    inside = (
        batch.inputs["units"][row]
        == torch.arange(int(content.sum()), device=ids.device)[:, None]
    )
    return tuple(
        " ".join(tokenizer.convert_ids_to_tokens(ids[words].tolist()))
        for words in inside
    )
