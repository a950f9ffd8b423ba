"""The encoders and attentions, of words and of sentences alike.

Every encoder is made from a configuration and the width of its input. It maps vectors
[batch, keys, input] with a mask [batch, keys] to states [batch, keys, hidden]. Every
attention maps states to scores [batch, keys].
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .configuration_attention_classifier import AttentionClassifierConfig


def run_recurrent(rnn: nn.LSTM | nn.GRU, vectors: Tensor, attention_mask: Tensor) -> Tensor:
    """States of a bidirectional layer that never reads padding.

    The backward direction starts at the last token.

    Args:
        rnn: one layer, batch first.
        vectors: [batch, keys, input].
        attention_mask: [batch, keys], padding on the right.

    Returns:
        [batch, keys, 2 · size].
    """
    lengths = lengths_of(attention_mask)
    # On a CPU the backward pass of a packed sequence copies the whole sequence once per
    # step, so training goes another way.
    if rnn.training and vectors.device.type == "cpu":
        return _run_each_way(rnn, vectors, lengths)
    packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=vectors.shape[1])
    return states


def lengths_of(attention_mask: Tensor) -> Tensor:
    """Number of tokens of every text, at least 1, int64 [batch].

    Raises:
        ValueError: padding before a token. Packing reads the first positions, whatever
            they hold.
    """
    is_real = attention_mask.bool()
    if (is_real[:, 1:] & ~is_real[:, :-1]).any():
        raise ValueError("expected padding on the right only; set tokenizer.padding_side = 'right'")
    return is_real.sum(-1).clamp(min=1)


def _run_each_way(rnn: nn.LSTM | nn.GRU, vectors: Tensor, lengths: Tensor) -> Tensor:
    """Forward over the texts, and forward over the reversed texts.

    Padding comes last in both and need not be skipped. PyTorch has no public function
    that runs one direction of a bidirectional layer: hence its private ones.
    """
    keys = torch.arange(vectors.shape[1])
    mirror = (lengths[:, None] - 1 - keys).remainder(len(keys))[..., None]
    weights = rnn._flat_weights
    zeros = vectors.new_zeros(1, len(vectors), rnn.hidden_size)
    run: Callable[..., tuple[Tensor, ...]] = torch._VF.lstm
    start: Tensor | tuple[Tensor, Tensor] = (zeros, zeros)
    if isinstance(rnn, nn.GRU):
        run, start = torch._VF.gru, zeros
    # has_biases, num_layers, dropout, train, bidirectional, batch_first
    options = (True, 1, 0.0, True, False, True)
    forward = run(vectors, start, weights[:4], *options)[0]
    reversed_texts = vectors.take_along_dim(mirror, 1)
    backward = run(reversed_texts, start, weights[4:], *options)[0]
    return torch.cat([forward, backward.take_along_dim(mirror, 1)], dim=-1)


class BiLSTMEncoder(nn.Module):
    """One bidirectional LSTM layer (Jain & Wallace 2019, Section 2)."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_size,
            config.encoder_size,
            batch_first=True,
            bidirectional=True,
        )

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return run_recurrent(self.lstm, vectors, attention_mask)


class BiGRUEncoder(nn.Module):
    """One bidirectional GRU layer (Yang et al. 2016, Section 2.2)."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        self.gru = nn.GRU(
            input_size,
            config.encoder_size,
            batch_first=True,
            bidirectional=True,
        )

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return run_recurrent(self.gru, vectors, attention_mask)


class OrthogonalLSTMEncoder(nn.Module):
    """One LSTM layer in one direction with states orthogonal to their mean so far.

    Mohankumar et al. 2020, Section 4.1: a new state loses its projection on the mean of
    all states before it, and the rest is the input of the next step. The first state is
    zero, where the paper's code draws one for every pass: outputs must be repeatable.
    """

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(input_size, config.encoder_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        lengths_of(attention_mask)
        hidden = cell = total = vectors.new_zeros(len(vectors), self.cell.hidden_size)
        states = []
        for vector in vectors.unbind(1):
            hidden, cell = self.cell(vector, (hidden, cell))
            # The sum points the same way as the mean; on a zero sum nothing is projected.
            squared_length = total.square().sum(-1, keepdim=True)
            smallest = torch.finfo(hidden.dtype).tiny
            squared_length = squared_length.clamp_min(smallest)
            along = (hidden * total).sum(-1, keepdim=True) / squared_length
            hidden = hidden - along * total
            total = total + hidden
            states.append(hidden)
        return torch.stack(states, dim=1)


class CNNEncoder(nn.Module):
    """Convolutions of several widths side by side, ReLU; one state per token."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        n_filters = config.encoder_size // len(config.kernel_sizes)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(input_size, n_filters, size, padding=size // 2)
            for size in config.kernel_sizes
        )

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        # Padding must look like the zero border that an unpadded text has.
        vectors = (vectors * attention_mask.unsqueeze(-1)).transpose(1, 2)
        states = [convolution(vectors) for convolution in self.convolutions]
        return torch.cat(states, dim=1).relu().transpose(1, 2)


class MLPEncoder(nn.Module):
    """Token-wise linear layer and tanh, without context (the papers' "average")."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, config.encoder_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return self.linear(vectors).tanh()


class NoEncoder(nn.Module):
    """The vectors themselves."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return vectors


def attend(
    attention: nn.Module,
    states: Tensor,
    mask: Tensor,
    query: Tensor | None = None,
) -> Tensor:
    """Attention weights from the scores of an attention module.

    Args:
        attention: states [batch, keys, hidden] -> scores [batch, keys].
        states: [batch, keys, hidden].
        mask: bool [batch, keys], the tokens that may receive weight.
        query: what is asked of each text [batch, hidden], where that differs.

    Returns:
        [batch, keys]: sums to 1 over the mask, exactly 0 elsewhere; all 0 where the
        mask is empty.
    """
    scores = attention(states) if query is None else attention(states, query)
    scores = scores.masked_fill(~mask, torch.finfo(states.dtype).min)
    return scores.softmax(-1) * mask


class AdditiveAttention(nn.Module):
    """score_t = v · tanh(W h_t + b) (Jain & Wallace 2019, Section 2).

    v is the learned context vector of Yang et al. 2016.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        size = config.attention_size or config.hidden_size // 2
        self.projection = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.query(self.projection(states).tanh()).squeeze(-1)


class DotProductAttention(nn.Module):
    """score_t = w · h_t / √hidden (Jain & Wallace 2019, Section 2)."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        scores = self.query(states).squeeze(-1)
        return scores / states.shape[-1] ** 0.5


class UniformAttention(nn.Module):
    """score_t = 0: every real token gets 1/T (Wiegreffe & Pinter 2019, Section 3.1)."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()

    def forward(self, states: Tensor, query: Tensor | None = None) -> Tensor:
        return states.new_zeros(states.shape[:-1])


class GuidedAttention(nn.Module):
    """No scores: the weights are given with every text."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()

    def forward(self, states: Tensor, query: Tensor | None = None) -> Tensor:
        raise ValueError(
            "expected attention weights, which this model does not compute; pass "
            "guide=[batch, keys]"
        )


ENCODERS = {
    "bilstm": BiLSTMEncoder,
    "bigru": BiGRUEncoder,
    "orthogonal_lstm": OrthogonalLSTMEncoder,
    "cnn": CNNEncoder,
    "mlp": MLPEncoder,
    "none": NoEncoder,
}
ATTENTIONS = {
    "additive": AdditiveAttention,
    "dot_product": DotProductAttention,
    "uniform": UniformAttention,
    "guided": GuidedAttention,
}
