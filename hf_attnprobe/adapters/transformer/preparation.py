"""From tokenizer output to a batch for a Transformer: what is real, what is special, which tokens are one word."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from hf_attnprobe.adapters.token_deletion import units_of_words
from hf_attnprobe.adapters.transformer.layout import Layout
from hf_attnprobe.adapters.transformer.readout import pads_left
from hf_attnprobe.errors import AttnProbeError


LEVELS = ("token", "word")


def masks(model, layout: Layout, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Positions that may receive attention, and special ones, both bool [batch, keys]."""
    if layout.n_keys is not None:
        mask = torch.ones(
            len(inputs["pixel_values"]),
            layout.n_keys,
            dtype=torch.bool,
            device=model.device,
        )
        places = torch.arange(layout.n_keys, device=model.device).expand(mask.shape)
        return mask, places < layout.n_keys - n_patches(model.config)
    if (
        missing := {"input_ids", "attention_mask", "special_tokens_mask"}
        - inputs.keys()
    ):
        raise AttnProbeError(
            f"expected {', '.join(sorted(missing))} in a batch; the tokenizer gives them when asked"
        )
    largest, known = (
        int(inputs["input_ids"].max()),
        model.get_input_embeddings().weight.shape[0],
    )
    if largest >= known:
        raise AttnProbeError(
            f"expected token ids below {known}, got {largest}; use the tokenizer of this model"
        )
    if pads_left(model.config) and not inputs["attention_mask"][:, -1].all():
        raise AttnProbeError(
            f"expected padding on the left, got it on the right; {type(model).__name__} classifies at the last position"
        )
    return inputs["attention_mask"].bool(), inputs["special_tokens_mask"].bool()


def units(level: str | None, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
    """For each position the one that stands for it, int64 [batch, keys]: the first piece of its word, or itself."""
    if level == "word" and "word_ids" not in inputs:
        raise AttnProbeError(
            "expected word_ids in a batch, got none; use a fast tokenizer or level='token'"
        )
    if level == "token" or "word_ids" not in inputs:
        return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return units_of_words(inputs["word_ids"])


def n_patches(config) -> int:
    """Positions of an image that show a part of it; before them come [CLS] and its like."""
    size, patch = (
        x if isinstance(x, list | tuple) else (x, x)
        for x in (config.image_size, config.patch_size)
    )
    return math.prod(a // b for a, b in zip(size, patch, strict=True))
