"""Penalties that tie a state to its word, or that keep the states of a text apart.

They act in training only. Each penalty is one number per text, ``[batch]``, which is added to the
loss of the text. Penalties are summed or averaged over a batch like the losses, so that their
weights have the same meaning in both cases.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    SequenceClassifierOutput,
)

from .configuration_attention_classifier import AttentionClassifierConfig


@dataclass
class RegularisedModelOutput(BaseModelOutputWithPooling):
    """Output of the base model with penalties.

    Attributes:
        regularization: Weighted penalties of every text ``[batch]``. None in evaluation mode and
            for models without penalties.
        query_state: Vector q that represents the second text in a pair model, ``[batch, hidden]``.
        candidates: Possible answers in a pair model, bool ``[batch, classes]``. None if all labels
            are possible.
    """

    regularization: Tensor | None = None
    query_state: Tensor | None = None
    candidates: Tensor | None = None


@dataclass
class RegularisedClassifierOutput(SequenceClassifierOutput):
    """Output of the classifier, whose ``loss`` includes the mean penalty.

    Attributes:
        regularization: Weighted penalties of every text ``[batch]``. None in evaluation mode and
            for models without penalties.
    """

    regularization: Tensor | None = None


def connect_word_vectors(states: Tensor, vectors: Tensor, connection: str) -> Tensor:
    """Concatenate or add word vectors to the encoder's states (Tutek & Šnajder 2020, Section 3).

    Args:
        states: States ``[batch, keys, hidden]``.
        vectors: Word vectors ``[batch, keys, embedding]``.
        connection: "concat" concatenates states and vectors, "residual" adds them, "none" returns
            the states.

    Returns:
        States ``[batch, keys, hidden]``, or with "concat" ``[batch, keys, hidden + embedding]``.
    """
    if connection == "concat":
        return torch.cat([states, vectors], dim=-1)
    if connection == "residual":
        return states + vectors
    return states


def average_over_content(values: Tensor, content: Tensor) -> Tensor:
    """Average values over each text's words, without special tokens and padding.

    Args:
        values: Values ``[batch, keys]``.
        content: Mask for words (no special tokens or padding), bool ``[batch, keys]``.

    Returns:
        Means ``[batch]``; 0 for texts without words.
    """
    total = (values * content).sum(-1)
    return total / content.sum(-1).clamp(min=1)


def compute_tying_penalty(states: Tensor, vectors: Tensor, content: Tensor) -> Tensor:
    """Compute the mean squared distance between the states and the word vectors of a text.

    As a penalty, it keeps each word's state similar to its word vector: 1/T Σ_t ‖h_t − e_t‖²
    (Tutek & Šnajder 2020, Section 3; there without the square).

    Args:
        states: States h ``[batch, keys, hidden]``.
        vectors: Word vectors e ``[batch, keys, hidden]``.
        content: Mask for words (no special tokens or padding), bool ``[batch, keys]``.

    Returns:
        Penalties ``[batch]``.
    """
    return average_over_content((states - vectors).square().sum(-1), content)


def compute_conicity(states: Tensor, content: Tensor) -> Tensor:
    """Compute conicity, the mean cosine between a text's states and their mean.

    It is 1 if all states have the same direction (Mohankumar et al. 2020, Section 2).

    Args:
        states: States h ``[batch, keys, hidden]``.
        content: Mask for words (no special tokens or padding), bool ``[batch, keys]``.

    Returns:
        Conicity ``[batch]`` in [−1, 1].
    """
    # The sum has the same direction as the mean.
    total = (states * content.unsqueeze(-1)).sum(1, keepdim=True)
    return average_over_content(cosine_similarity(states, total, dim=-1), content)


def draw_masked_words(maskable: Tensor, rate: float) -> Tensor:
    """Choose words to be masked at random, each with the same probability.

    Args:
        maskable: Words that may be masked, bool ``[batch, keys]``.
        rate: Probability that a word is masked.

    Returns:
        Words to be masked, bool ``[batch, keys]``.
    """
    return maskable & (torch.rand(maskable.shape, device=maskable.device) < rate)


class Regulariser(nn.Module):
    """Weighted sum of all penalties that a configuration sets.

    Args:
        config: Model configuration.
    """

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
        """Compute the sum of all penalties for each text, multiplied by their weights.

        Args:
            states: States ``[batch, keys, hidden]``.
            vectors: Word vectors from which the states were computed, ``[batch, keys, embedding]``.
            content: Mask for words (no special tokens or padding), bool ``[batch, keys]``.
            input_ids: Token ids, int64 ``[batch, keys]``. They are needed for masked words.
            encode_masked: Function that receives the words to mask, bool ``[batch, keys]``, and
                returns the states that the encoder computes without these words.

        Returns:
            Penalties ``[batch]``.
        """
        config = self.config
        penalty = states.new_zeros(len(states))
        if config.tying:
            penalty = penalty + config.tying * compute_tying_penalty(states, vectors, content)
        if config.conicity_weight:
            penalty = penalty + config.conicity_weight * compute_conicity(states, content)
        if config.mlm_weight:
            loss = self.compute_masked_word_loss(content, input_ids, encode_masked)
            penalty = penalty + config.mlm_weight * loss
        return penalty

    def compute_masked_word_loss(
        self,
        content: Tensor,
        input_ids: Tensor | None,
        encode_masked: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """Mask some words, and compute how well the model predicts them from the other words.

        The result is the mean cross-entropy on the masked words (Tutek & Šnajder 2020). Special
        tokens and unknown words are never masked, because they cannot be predicted.

        Args:
            content: Mask for words (no special tokens or padding), bool ``[batch, keys]``.
            input_ids: Token ids, int64 ``[batch, keys]``.
            encode_masked: Function that receives the words to mask and returns the states; see
                :meth:`forward`.

        Returns:
            Cross-entropies ``[batch]``; 0 for texts without a masked word.

        Raises:
            ValueError: If ``input_ids`` are missing.
        """
        if input_ids is None:
            raise ValueError(
                "input_ids are needed to mask words, but only inputs_embeds were passed. Pass "
                "input_ids, or set mlm_weight=0."
            )
        is_known_word = input_ids != self.config.unk_token_id
        masked = draw_masked_words(content & is_known_word, self.config.mlm_rate)
        logits = self.words(encode_masked(masked)[masked])
        losses = cross_entropy(logits, input_ids[masked], reduction="none")
        position_losses = logits.new_zeros(masked.shape)
        position_losses = position_losses.masked_scatter(masked, losses.to(logits.dtype))
        return average_over_content(position_losses, masked)
