"""A few texts with their attention and the adversary that gives the same output."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import AttentionModelBase, Batch
from hf_attnprobe.auditing.report import Example
from hf_attnprobe.faithfulness.adversarial import Adversarial, adversarial
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text


def show(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    tokenizer: PreTrainedTokenizerBase,
    classes: Sequence[str],
) -> tuple[Example, ...]:
    """Texts with their attention and the exact adversary at ε = .05.

    Returns:
        No example where the adversary cannot be computed exactly.
    """
    batch = collate(adapter, texts, tokenizer.pad_token_id or 0)
    observation, site = adapter.observe(batch), adapter.sites()[0]
    token_logits = observation.token_logits
    if token_logits is None or token_logits.shape[-1] != 2:
        return ()
    result = adversarial(observation, site, Adversarial(epsilons=(0.05,)))
    adversary, divergence = result.attention[0.05], result.epsilon_max_jsd[0.05]
    after = adapter.replay(observation, {site.layer: adversary[None, :, None]})[0]
    shown = []
    for row, text in enumerate(texts):
        content = batch.content_mask[row]
        predicted = int(observation.probs[row].argmax())
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


def _units(
    batch: Batch, row: int, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    """The tokens or sentences of a text that are explained."""
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
