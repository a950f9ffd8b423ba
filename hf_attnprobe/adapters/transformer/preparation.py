"""From tokenizer output to a batch for a Transformer.

Which positions are real, which are special, and which tokens are one word.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters.token_deletion import units_of_words
from hf_attnprobe.adapters.transformer.inputs import n_patches
from hf_attnprobe.adapters.transformer.layout import Layout
from hf_attnprobe.adapters.transformer.readout import pads_left
from hf_attnprobe.errors import AttnProbeError


LEVELS = ("token", "word")


def masks(
    model: PreTrainedModel, layout: Layout, inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Positions that may receive attention, and special ones, both bool [batch, keys].

    Raises:
        AttnProbeError: inputs are missing, or are not those of this model.
    """
    if layout.n_keys is not None:
        # before the patches come [CLS] and its like
        positions = torch.arange(layout.n_keys, device=model.device)
        special = positions < layout.n_keys - n_patches(model.config)
        special = special.expand(len(inputs["pixel_values"]), -1)
        return torch.ones_like(special), special
    needed = {"input_ids", "attention_mask", "special_tokens_mask"}
    missing = needed - inputs.keys()
    if missing:
        raise AttnProbeError(
            f"expected {', '.join(sorted(missing))} in a batch; the tokenizer gives them when asked"
        )
    largest = int(inputs["input_ids"].max())
    table = model.get_input_embeddings().weight
    assert isinstance(table, Tensor)  # a module's attributes may be modules too
    if largest >= len(table):
        raise AttnProbeError(
            f"expected token ids below {len(table)}, got {largest}; use the tokenizer of this model"
        )
    mask = inputs["attention_mask"].bool()
    if pads_left(model.config) and not mask[:, -1].all():
        raise AttnProbeError(
            "expected padding on the left, got it on the right; "
            f"{type(model).__name__} classifies at the last position"
        )
    return mask, inputs["special_tokens_mask"].bool()


def units(level: str | None, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
    """For each position the one that stands for it, int64 [batch, keys].

    That is the first piece of its word, or itself.

    Raises:
        AttnProbeError: words are asked for, and the batch has none.
    """
    if level == "word" and "word_ids" not in inputs:
        raise AttnProbeError(
            "expected word_ids in a batch, got none; use a fast tokenizer or level='token'"
        )
    if level == "token" or "word_ids" not in inputs:
        return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return units_of_words(inputs["word_ids"])
