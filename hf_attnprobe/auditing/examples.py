"""A few texts with their attention and the adversary that gives the same output."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import AttentionModelBase, Batch
from hf_attnprobe.auditing.report import Example
from hf_attnprobe.faithfulness.adversarial import Adversarial, adversarial
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text


SHOWN_EPSILON = 0.05


def show(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    tokenizer: PreTrainedTokenizerBase,
    options: Adversarial,
    *,
    seed: int,
) -> tuple[Example, ...]:
    """Texts with their attention and the adversary that the audit's options find.

    Args:
        options: those of the audit, so that a text's numbers are those of its rows.
        seed: of the audit.

    Returns:
        No example where the model has several heads or its read-out is not linear.
    """
    batch = collate(adapter, texts, tokenizer.pad_token_id or 0)
    observation, sites = adapter.observe(batch), adapter.sites()
    if len(sites) > 1 or observation.token_logits is None:
        return ()
    site, classes = sites[0], adapter.label_names
    result = adversarial(observation, site, options, seed=seed)
    known = list(result.attention)
    epsilon = SHOWN_EPSILON if SHOWN_EPSILON in known else known[0]
    adversary, divergence = result.attention[epsilon], result.epsilon_max_jsd[epsilon]
    after = adapter.replay(observation, {site.layer: adversary[None, :, None]})[0]
    shown = []
    for row, text in enumerate(texts):
        content = batch.content_mask[row]
        predicted = int(observation.probs[row].argmax())
        shown.append(
            Example(
                example_id=text.example_id,
                tokens=_units(batch, row, tokenizer),
                segments=_segments(batch, row),
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


def _segments(batch: Batch, row: int) -> tuple[int, ...]:
    """Which text of the pair each token that is explained is of."""
    if batch.segments is None:
        return ()
    return tuple(batch.segments[row][batch.content_mask[row]].tolist())


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
