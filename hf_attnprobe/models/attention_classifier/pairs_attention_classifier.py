"""Modules for pair models, in which a second text is the attention query.

The design follows the released code of Jain & Wallace 2019. The attention is on the first text,
such as a story or a premise. The second text, such as a question or a hypothesis, has its own word
vectors and encoder and is represented by one vector q. Both texts are in one sequence, as
tokenizers encode pairs: ``token_type_ids`` is 0 in the first text and 1 in the second.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .configuration_attention_classifier import AttentionClassifierConfig
from .layers_attention_classifier import ATTENTION_CLASSES, ENCODER_CLASSES, count_tokens


class Pair(NamedTuple):
    """Positions of the two texts in each sequence.

    Attributes:
        first: Mask for the first text's tokens, int64 ``[batch, keys]``.
        order: Positions of the second text's tokens, followed by padding, int64
            ``[batch, second]``.
        second: Mask that is 0 for padding in ``order``, int64 ``[batch, second]``.
    """

    first: Tensor
    order: Tensor
    second: Tensor

    def select_second(self, values: Tensor) -> Tensor:
        """Select the values at the positions of the second text.

        Args:
            values: Values for both texts, ``[batch, keys, ...]``.

        Returns:
            Values for the second text only, ``[batch, second, ...]``.
        """
        rows = torch.arange(len(values), device=values.device)[:, None]
        return values[rows, self.order]


def split_pair(attention_mask: Tensor, token_type_ids: Tensor | None) -> Pair:
    """Find the positions of the two texts in each sequence.

    Args:
        attention_mask: Positions without padding, ``[batch, keys]``.
        token_type_ids: 0 in the first text and 1 in the second text, ``[batch, keys]``.

    Returns:
        Text positions.

    Raises:
        ValueError: If a text is missing, or if the second text precedes the first.
    """
    if token_type_ids is None:
        raise ValueError(
            "token_type_ids are needed to separate the two texts. Create the tokenizer with "
            "build_tokenizer(…, pairs=True), and call tokenizer(text, text_pair)."
        )
    is_token = attention_mask.bool()
    first = is_token & (token_type_ids == 0)
    second = is_token & (token_type_ids == 1)
    for name, mask in (("first", first), ("second", second)):
        missing_rows = (~mask.any(-1)).nonzero()[:, 0].tolist()
        if missing_rows:
            raise ValueError(
                f"row {missing_rows[0]} of the batch has no {name} text, but the model reads text "
                "pairs. Call tokenizer(text, text_pair)."
            )
    if (first[:, 1:] & second[:, :-1]).any() or (first & ~is_token[:, :1]).any():
        raise ValueError(
            "expected the first text (token type 0) before the second text (token type 1) and "
            "padding on the right. Call tokenizer(text, text_pair) with tokenizer.padding_side = "
            "'right'."
        )
    n_second = int(second.sum(-1).max())
    order = (~second).long().argsort(dim=-1, stable=True)[:, :n_second]
    return Pair(first.long(), order, second.gather(1, order).long())


class QueryReader(nn.Module):
    """Word vectors and encoder for the second text, which compute its vector q.

    The encoder has the same type as for the first text. With a recurrent encoder, q is the last
    state in each direction; with ``cnn``, each filter's largest value over the words; with ``mlp``
    and ``none``, the mean over the words. The paper's code takes this mean over padding too, so
    that q depends on the other texts in the batch.

    Args:
        config: Model configuration.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.encoder_name = config.encoder
        self.embeddings = nn.Embedding(
            config.vocab_size,
            config.embedding_size,
            padding_idx=config.pad_token_id,
        )
        self.encoder = ENCODER_CLASSES[config.encoder](config, config.embedding_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor, content_mask: Tensor) -> Tensor:
        """Encode the second text, and summarise its states in one vector q.

        The vector is the mean or the maximum of the states, or the last state, depending on the
        encoder.

        Args:
            vectors: Word vectors ``[batch, second, embedding]``.
            attention_mask: Positions without padding, ``[batch, second]``.
            content_mask: Positions without padding and special tokens, ``[batch, second]``.

        Returns:
            Vectors ``[batch, hidden]``.
        """
        states = self.encoder(vectors, attention_mask)
        if self.encoder_name in ("mlp", "none"):
            weights = content_mask.to(states.dtype)
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
            return torch.einsum("bk,bkh->bh", weights, states)
        if self.encoder_name == "cnn":
            # A ReLU computes the states, so that masked values of 0 never exceed them.
            return (states * content_mask.unsqueeze(-1)).amax(1)
        rows = torch.arange(len(states), device=states.device)
        last_states = states[rows, count_tokens(attention_mask) - 1]
        if self.encoder_name == "orthogonal_lstm":
            return last_states
        # The forward direction ends at the last word, and the backward direction at the first.
        half = states.shape[-1] // 2
        return torch.cat([last_states[:, :half], states[:, 0, half:]], dim=-1)


class QueriedAdditiveAttention(nn.Module):
    """Additive attention with a query, score_t = v · tanh(W_p h_t + b_p + W_q q + b_q)."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        size = config.attention_size or config.hidden_size // 2
        self.projection = nn.Linear(config.hidden_size, size)
        self.query_projection = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor, query: Tensor) -> Tensor:
        """Compute scores ``[batch, keys]`` for states, given a query ``[batch, hidden]``."""
        inner = self.projection(states) + self.query_projection(query)[:, None]
        return self.query(inner.tanh()).squeeze(-1)


class QueriedDotProductAttention(nn.Module):
    """Dot-product attention with a query, score_t = h_t · q / √hidden, without parameters."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()

    def forward(self, states: Tensor, query: Tensor) -> Tensor:
        """Compute scores ``[batch, keys]`` for states, given a query ``[batch, hidden]``."""
        return torch.einsum("bkh,bh->bk", states, query) / states.shape[-1] ** 0.5


QUERIED_ATTENTION_CLASSES = ATTENTION_CLASSES | {
    "additive": QueriedAdditiveAttention,
    "dot_product": QueriedDotProductAttention,
}
"""Maps values of the configuration field ``attention`` to classes, for models that read text pairs.

In these models, the second text (the query) determines the attention to the first text.
"""


class PairDecoder(nn.Module):
    """Read-out for pair models, logits = W tanh(W_p c + b_p + W_q q + b_q) + b.

    c is the context vector and q the second text's vector. The inner width is half the state width.
    The paper's released code has the same biases.

    Args:
        config: Model configuration.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        # The configuration checks that num_labels is set.
        assert config.num_labels is not None
        size = max(1, config.hidden_size // 2)
        self.context = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(config.hidden_size, size)
        self.output = nn.Linear(size, config.num_labels)

    def forward(self, context: Tensor, query: Tensor) -> Tensor:
        """Compute the logits of the classes from both texts.

        Args:
            context: Context vectors, which represent the first texts, ``[..., hidden]``.
            query: Vectors q, which represent the second texts, ``[..., hidden]``.

        Returns:
            Logits ``[..., classes]``.
        """
        return self.output((self.context(context) + self.query(query)).tanh())


def find_candidates(input_ids: Tensor, first: Tensor, answer_token_ids: list[int]) -> Tensor:
    """Find the labels whose word occurs in the first text.

    If none occurs, all labels are possible.

    Args:
        input_ids: Token ids, int64 ``[batch, keys]``.
        first: 1 at the positions of the first text and 0 elsewhere, ``[batch, keys]``.
        answer_token_ids: Token id of the word for each label.

    Returns:
        Which labels are possible, bool ``[batch, classes]``.
    """
    answers = torch.tensor(answer_token_ids, device=input_ids.device)
    # Compare each token with the word for each label: [batch, keys, classes].
    is_answer = input_ids[..., None] == answers
    is_in_first = is_answer & first.bool()[..., None]
    return allow_all_if_none(is_in_first.any(1))


def allow_all_if_none(candidates: Tensor) -> Tensor:
    """Allow all labels in texts for which no label is allowed.

    Only allowed labels (candidates) can be predicted.

    Args:
        candidates: Which labels are candidates, bool ``[batch, classes]``.

    Returns:
        Label mask, bool ``[batch, classes]``, with at least one label per text.
    """
    return candidates | ~candidates.any(-1, keepdim=True)


def check_label_candidates(labels: Tensor, candidates: Tensor) -> None:
    """Check that the answer to each question occurs in the text about which the question is asked.

    In a model with ``answer_token_ids``, every label stands for a word. The model only predicts
    words of the first text (candidates). The loss of any other label would be infinite.

    Args:
        labels: Correct labels, int64 ``[batch]``. Negative labels are ignored.
        candidates: Labels whose words occur in the first text, bool ``[batch, classes]``.

    Raises:
        ValueError: If the word of a correct label does not occur in the first text.
    """
    is_candidate = candidates.gather(-1, labels.clamp_min(0)[:, None])[:, 0]
    invalid_rows = (~is_candidate & (labels >= 0)).nonzero()[:, 0]
    if len(invalid_rows):
        row = int(invalid_rows[0])
        raise ValueError(
            f"row {row} of the batch has label {int(labels[row])}, but the model can only answer with "
            "words of the first text, and the word of this label is not among them. Remove such "
            "rows, or set answer_token_ids=None to allow all labels."
        )
