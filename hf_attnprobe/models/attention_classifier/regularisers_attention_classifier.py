"""Penalties that keep a state close to its own word, or the states of a text apart.

They act while training only. Each is one number per text, [batch], to be added to the
loss of that text: whether a batch's losses are summed or averaged, its penalties are
too, so a weight means the same in both.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    SequenceClassifierOutput,
)

from .configuration_attention_classifier import AttentionClassifierConfig


@dataclass
class RegularisedModelOutput(BaseModelOutputWithPooling):
    """Adds ``regularization`` [batch], the weighted penalties of every text.

    None outside of training, and for a model without penalties. Of a model of pairs also
    ``query_state`` [batch, hidden], what the second text asks, and ``candidates``, bool
    [batch, classes], the answers that the first one allows; None is all.
    """

    regularization: Tensor | None = None
    query_state: Tensor | None = None
    candidates: Tensor | None = None


@dataclass
class RegularisedClassifierOutput(SequenceClassifierOutput):
    """As :class:`RegularisedModelOutput`; ``loss`` contains the mean penalty."""

    regularization: Tensor | None = None


def connect(states: Tensor, vectors: Tensor, how: str) -> Tensor:
    """States with their own word vectors (Tutek & Šnajder 2020, Section 3).

    Args:
        states: [batch, keys, hidden].
        vectors: [batch, keys, embedding].
        how: "concat" puts the vectors beside the states, "residual" adds them, "none"
            leaves them out.
    """
    if how == "concat":
        return torch.cat([states, vectors], dim=-1)
    return states + vectors if how == "residual" else states


def mean_of(values: Tensor, content: Tensor) -> Tensor:
    """Mean of values [batch, keys] over the content of every text, [batch].

    0 for an empty text.
    """
    total = (values * content).sum(-1)
    return total / content.sum(-1).clamp(min=1)


def tying(states: Tensor, vectors: Tensor, content: Tensor) -> Tensor:
    """1/T Σ_t ‖h_t − e_t‖² over the content, [batch].

    Tutek & Šnajder 2020, Section 3; the norm is squared.
    """
    return mean_of((states - vectors).square().sum(-1), content)


def conicity(states: Tensor, content: Tensor) -> Tensor:
    """1/T Σ_t cos(h_t, mean state) over the content, [batch] in [−1, 1].

    Mohankumar et al. 2020, Section 2; with its sign, as there.
    """
    # The sum points the same way as the mean.
    total = (states * content.unsqueeze(-1)).sum(1, keepdim=True)
    return mean_of(F.cosine_similarity(states, total, dim=-1), content)


def draw_masked(maskable: Tensor, rate: float) -> Tensor:
    """Each position of ``maskable`` with probability ``rate``, bool [batch, keys]."""
    return maskable & (torch.rand(maskable.shape, device=maskable.device) < rate)


class Regulariser(nn.Module):
    """The weighted sum of a configuration's penalties."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.config = config
        if config.mlm_weight:
            self.words = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(
        self,
        states: Tensor,
        vectors: Tensor,
        content: Tensor,
        input_ids: Tensor | None,
        encode_masked: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """The penalty of every text, [batch].

        Args:
            states: h [batch, keys, hidden].
            vectors: the word vectors they were made of, [batch, keys, embedding].
            content: bool [batch, keys].
            input_ids: int64 [batch, keys]; needed to mask words.
            encode_masked: masked words, bool [batch, keys] -> the states without them.
        """
        config = self.config
        penalty = states.new_zeros(len(states))
        if config.tying:
            penalty = penalty + config.tying * tying(states, vectors, content)
        if config.conicity_weight:
            penalty = penalty + config.conicity_weight * conicity(states, content)
        if config.mlm_weight:
            loss = self.masked_words(content, input_ids, encode_masked)
            penalty = penalty + config.mlm_weight * loss
        return penalty

    def masked_words(
        self,
        content: Tensor,
        input_ids: Tensor | None,
        encode_masked: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Mean cross-entropy of the masked words, [batch] (Tutek & Šnajder 2020).

        Only content is masked, and no unknown words, which cannot be predicted. 0 where
        no word is masked.

        Raises:
            ValueError: no ``input_ids``.
        """
        if input_ids is None:
            raise ValueError(
                "expected input_ids to mask words of, got only inputs_embeds; set mlm_weight=0"
            )
        is_known = input_ids != self.config.unk_token_id
        masked = draw_masked(content & is_known, self.config.mlm_rate)
        logits = self.words(encode_masked(masked)[masked])
        losses = F.cross_entropy(logits, input_ids[masked], reduction="none")
        by_position = logits.new_zeros(masked.shape)
        by_position = by_position.masked_scatter(masked, losses.to(logits.dtype))
        return mean_of(by_position, masked)
