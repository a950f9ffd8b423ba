"""What keeps a state about its own word, or the states of a text apart; all of it while training, none of it after.

Every penalty is one number per text, [batch], meant to be added to that text's own loss: whether a batch's losses are
summed or averaged, its penalties are too, and a weight means the same.
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


@dataclass
class RegularisedModelOutput(BaseModelOutputWithPooling):
    """``regularization`` [batch]: the weighted penalties of every text; None outside of training and without any."""

    regularization: Tensor | None = None


@dataclass
class RegularisedClassifierOutput(SequenceClassifierOutput):
    """As :class:`RegularisedModelOutput`; ``loss`` has the mean of ``regularization`` in it."""

    regularization: Tensor | None = None


def connect(states: Tensor, vectors: Tensor, how: str) -> Tensor:
    """States with their own word vectors beside ("concat") or in them ("residual") (Tutek & Šnajder 2020, Section 3)."""
    if how == "concat":
        return torch.cat([states, vectors], dim=-1)
    return states + vectors if how == "residual" else states


def mean_of(values: Tensor, content: Tensor) -> Tensor:
    """Mean over the content of every text, [batch] from [batch, keys]; 0 for an empty text."""
    return (values * content).sum(-1) / content.sum(-1).clamp(min=1)


def tying(states: Tensor, vectors: Tensor, content: Tensor) -> Tensor:
    """1/T Σ_t ‖h_t − e_t‖² over the content, [batch] (Tutek & Šnajder 2020, Section 3; the norm is squared)."""
    return mean_of((states - vectors).square().sum(-1), content)


def conicity(states: Tensor, content: Tensor) -> Tensor:
    """1/T Σ_t cos(h_t, mean state) over the content, [batch] (Mohankumar et al. 2020, Section 2; with its sign, as there)."""
    total = (states * content.unsqueeze(-1)).sum(
        1, keepdim=True
    )  # a mean and a sum point the same way
    return mean_of(F.cosine_similarity(states, total, dim=-1), content)


def draw_masked(maskable: Tensor, rate: float) -> Tensor:
    """Each of the ``maskable`` positions with probability ``rate``, from PyTorch's own random numbers; bool [batch, keys]."""
    return maskable & (torch.rand(maskable.shape, device=maskable.device) < rate)


class Regulariser(nn.Module):
    """The weighted sum of a configuration's penalties."""

    def __init__(self, config):
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
        """Of every text, [batch].

        Args:
            states, vectors: h [batch, keys, hidden] and the word vectors that they were made of.
            content: bool [batch, keys].
            encode_masked: from which words are masked, bool [batch, keys], to the states without them.
        """
        config, penalty = self.config, states.new_zeros(len(states))
        if config.tying:
            penalty = penalty + config.tying * tying(states, vectors, content)
        if config.conicity_weight:
            penalty = penalty + config.conicity_weight * conicity(states, content)
        if config.mlm_weight:
            penalty = penalty + config.mlm_weight * self.masked_words(
                content, input_ids, encode_masked
            )
        return penalty

    def masked_words(
        self, content: Tensor, input_ids: Tensor | None, encode_masked: Callable
    ) -> Tensor:
        """Mean cross-entropy of the masked words of every text, [batch]; 0 where none is masked (Tutek & Šnajder 2020).

        Only content is masked, and no unknown word, of which there is nothing to tell.
        """
        if input_ids is None:
            raise ValueError(
                "expected input_ids to mask words of, got only inputs_embeds; set mlm_weight=0"
            )
        masked = draw_masked(
            content & (input_ids != self.config.unk_token_id), self.config.mlm_rate
        )
        logits = self.words(encode_masked(masked)[masked])
        losses = F.cross_entropy(logits, input_ids[masked], reduction="none")
        placed = logits.new_zeros(masked.shape).masked_scatter(
            masked, losses.to(logits.dtype)
        )
        return mean_of(placed, masked)
