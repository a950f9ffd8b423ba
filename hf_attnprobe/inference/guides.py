"""Attention weights of one model, by example id, to be imposed on another."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.data.columns import column_of
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


# Attention weights [content tokens] by example id: the input of a model with guided
# attention. One guide per split, since an id names a text within its split.
Guide = Mapping[int, Tensor]


def guide_rows(
    guide: Guide,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
    special_ids: Collection[int],
) -> list[list[float]]:
    """The guide's weights at the tokens of every text, 0 at special tokens.

    Args:
        guide: weights of every text, as many as it has content tokens.
        examples: the texts.
        input_ids: their tokens.
        special_ids: tokens that attention never goes to, see :func:`special_ids`.

    Returns:
        Lists as long as those of ``input_ids``.

    Raises:
        AttnProbeError: a text without weights, or with another number of them than it
            has content tokens.
    """
    rows = zip(column_of(examples, "example_id"), input_ids, strict=True)
    return [guide_row(guide, k, tokens, special_ids) for k, tokens in rows]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that never receive attention; unknown words count as words."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def guide_row(
    guide: Guide,
    example_id: int,
    tokens: list[int],
    special_ids: Collection[int],
) -> list[float]:
    """The guide's weights at the tokens of one text; see :func:`guide_rows`."""
    is_content = [token not in special_ids for token in tokens]
    n_content = sum(is_content)
    if n_content == 0:
        return [0.0] * len(tokens)
    if example_id not in guide:
        raise AttnProbeError(
            "expected attention weights for every text, the guide has none for text "
            f"{example_id}; read it on the same texts"
        )
    weights = torch.as_tensor(guide[example_id]).tolist()
    if len(weights) != n_content:
        raise AttnProbeError(
            f"expected {n_content} weights for text {example_id}, one per token, the "
            f"guide has {len(weights)}; guide and model must cut texts into the same "
            "tokens"
        )
    remaining = iter(weights)
    return [next(remaining) if content else 0.0 for content in is_content]
