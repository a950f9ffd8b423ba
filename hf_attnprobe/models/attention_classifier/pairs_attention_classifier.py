"""Pairs of texts: the second one is the query (Jain & Wallace 2019, released code).

The first text (a story, a premise) is attended to. The second (a question, a
hypothesis) has word vectors and an encoder of its own, and is one vector q. Both come
in one sequence, as tokenizers write pairs: ``token_type_ids`` is 0 in the first text
and 1 in the second.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .configuration_attention_classifier import AttentionClassifierConfig
from .layers_attention_classifier import ATTENTIONS, ENCODERS, lengths_of


class Pair(NamedTuple):
    """Where the two texts of each sequence are.

    Attributes:
        first: the tokens of the first text, int64 [batch, keys].
        order: the positions of the second text's tokens, padding behind them, int64
            [batch, second].
        second: which of these are tokens, int64 [batch, second].
    """

    first: Tensor
    order: Tensor
    second: Tensor

    def of_second(self, values: Tensor) -> Tensor:
        """Values [batch, keys, ...] at the second text, [batch, second, ...]."""
        rows = torch.arange(len(values), device=values.device)[:, None]
        return values[rows, self.order]


def split_pair(attention_mask: Tensor, token_type_ids: Tensor | None) -> Pair:
    """The two texts of each sequence, both of shape [batch, keys].

    Raises:
        ValueError: no second text, no first one, or the second one before the first.
    """
    if token_type_ids is None:
        raise ValueError(
            "expected token_type_ids, which say where the second text begins; tokenize "
            "pairs: tokenizer(text, text_pair) with build_tokenizer(…, pairs=True)"
        )
    is_real = attention_mask.bool()
    first, second = (
        is_real & (token_type_ids == 0),
        is_real & (token_type_ids == 1),
    )
    for name, part in (("first", first), ("second", second)):
        missing = (~part.any(-1)).nonzero()[:, 0].tolist()
        if missing:
            raise ValueError(
                f"expected two texts per row, row {missing[0]} of the batch has no "
                f"{name} one; give text and text_pair"
            )
    if (first[:, 1:] & second[:, :-1]).any() or (first & ~is_real[:, :1]).any():
        raise ValueError(
            "expected the first text (token type 0) before the second (1) and padding on the right"
        )
    n_second = int(second.sum(-1).max())
    order = (~second).long().argsort(dim=-1, stable=True)[:, :n_second]
    return Pair(first.long(), order, second.gather(1, order).long())


class QueryReader(nn.Module):
    """Word vectors and encoder of the second text: q [batch, hidden].

    The encoder is of the same kind as that of the first text. Of a recurrent one q is
    the last state of each direction, of ``cnn`` the largest value of each filter over
    the words, of ``mlp`` and ``none`` the mean over the words. (The paper's code
    averages over all positions, padding too; then q depends on the rest of the batch.)
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.kind = config.encoder
        self.embeddings = nn.Embedding(
            config.vocab_size,
            config.embedding_size,
            padding_idx=config.pad_token_id,
        )
        self.encoder = ENCODERS[config.encoder](config, config.embedding_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor, content_mask: Tensor) -> Tensor:
        """q of word vectors [batch, second, embedding] and masks [batch, second]."""
        states = self.encoder(vectors, attention_mask)
        if self.kind in ("mlp", "none"):
            weights = content_mask.to(states.dtype)
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
            return torch.einsum("bk,bkh->bh", weights, states)
        if self.kind == "cnn":  # nothing is below the 0 of its ReLU
            return (states * content_mask.unsqueeze(-1)).amax(1)
        rows = torch.arange(len(states), device=states.device)
        last = states[rows, lengths_of(attention_mask) - 1]
        if self.kind == "orthogonal_lstm":
            return last
        half = states.shape[-1] // 2
        return torch.cat([last[:, :half], states[:, 0, half:]], dim=-1)


class QueriedAdditiveAttention(nn.Module):
    """score_t = v · tanh(W_p h_t + b_p + W_q q + b_q)."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        size = config.attention_size or config.hidden_size // 2
        self.projection = nn.Linear(config.hidden_size, size)
        self.query_projection = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor, query: Tensor) -> Tensor:
        inner = self.projection(states) + self.query_projection(query)[:, None]
        return self.query(inner.tanh()).squeeze(-1)


class QueriedDotProductAttention(nn.Module):
    """score_t = h_t · q / √hidden, nothing to train."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()

    def forward(self, states: Tensor, query: Tensor) -> Tensor:
        return torch.einsum("bkh,bh->bk", states, query) / states.shape[-1] ** 0.5


QUERIED_ATTENTIONS = ATTENTIONS | {
    "additive": QueriedAdditiveAttention,
    "dot_product": QueriedDotProductAttention,
}


class PairDecoder(nn.Module):
    """logits = W tanh(W_p c + b_p + W_q q + b_q) + b, one per label.

    The inner width is half of the states'. The biases are those of the released code.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        assert config.num_labels is not None  # the configuration has checked it
        size = max(1, config.hidden_size // 2)
        self.context = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(config.hidden_size, size)
        self.output = nn.Linear(size, config.num_labels)

    def forward(self, context: Tensor, query: Tensor) -> Tensor:
        """Logits [..., classes] of context and query vectors [..., hidden]."""
        return self.output((self.context(context) + self.query(query)).tanh())


def find_candidates(input_ids: Tensor, first: Tensor, answer_token_ids: list[int]) -> Tensor:
    """Which labels occur in the first text, bool [batch, classes].

    All of them where none occurs.

    Args:
        input_ids: int64 [batch, keys].
        first: the content of the first text, [batch, keys].
        answer_token_ids: the token of each label.
    """
    answers = torch.tensor(answer_token_ids, device=input_ids.device)
    is_answer = input_ids[..., None] == answers
    return all_if_none((is_answer & first.bool()[..., None]).any(1))


def all_if_none(candidates: Tensor) -> Tensor:
    """Every label of a text without any candidate, bool [batch, classes]."""
    return candidates | ~candidates.any(-1, keepdim=True)


def check_answers(labels: Tensor, candidates: Tensor) -> None:
    """Raises ValueError where a label is no candidate: its loss would be infinite."""
    known = labels.clamp_min(0)[:, None]
    outside = (~candidates.gather(-1, known)[:, 0] & (labels >= 0)).nonzero()[:, 0]
    if len(outside):
        row = int(outside[0])
        raise ValueError(
            f"expected every label among the candidates of its text, row {row} of the "
            f"batch has label {int(labels[row])}, whose word is not in its first text; "
            "leave such texts out or set answer_token_ids=None"
        )
