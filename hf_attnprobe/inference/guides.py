"""Attention weights by example id, to be imposed on another model."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hf_attnprobe.errors import AttnProbeError


# Attention weights by example id, each [content tokens] in their order: what a model with guided attention is given.
# One per split: an id names a text within its split.
Guide = Mapping[int, Tensor]


def guide_rows(
    guide: Guide, examples, input_ids: list[list[int]], special_ids: set[int]
) -> list[list[float]]:
    """The guide's weights at the tokens of every text, 0 at special tokens; as long as its ``input_ids``.

    Raises:
        AttnProbeError: a text that the guide has no weights for, or another number of them than it has tokens.
    """
    ids = examples.with_format(None)["example_id"][:]
    return [
        guide_row(guide, k, tokens, special_ids)
        for k, tokens in zip(ids, input_ids, strict=True)
    ]


def special_ids(tokenizer) -> set[int]:
    """Tokens that attention never goes to; an unknown word is a word."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def guide_row(
    guide: Guide, example_id: int, tokens: list[int], special_ids: set[int]
) -> list[float]:
    """The weights of one text at its tokens, 0 at special ones; see :func:`guide_rows`."""
    content = [token not in special_ids for token in tokens]
    n_tokens = sum(content)
    if n_tokens == 0:  # an empty text: nothing to attend to
        return [0.0] * len(tokens)
    if example_id not in guide:
        raise AttnProbeError(
            f"expected attention weights for every text, the guide has none for text {example_id}; read it on the same "
            "texts"
        )
    weights = iter(torch.as_tensor(guide[example_id]).tolist())
    if len(guide[example_id]) != n_tokens:
        raise AttnProbeError(
            f"expected {n_tokens} weights for text {example_id}, one per token, the guide has "
            f"{len(guide[example_id])}; guide and model must cut texts into the same tokens"
        )
    return [next(weights) if real else 0.0 for real in content]
