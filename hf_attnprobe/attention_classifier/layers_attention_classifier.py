"""The encoders and attentions, of words and of sentences alike.

Every encoder is made of a configuration and the width of its input, and maps vectors [batch, keys, input] with a mask
[batch, keys] to states [batch, keys, hidden]; every attention maps states to scores [batch, keys].
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def run_recurrent(rnn: nn.Module, vectors: Tensor, attention_mask: Tensor) -> Tensor:
    """States [batch, keys, 2 · size] of a bidirectional layer that never reads padding: backward starts at the last token.

    On a CPU the backward pass of a packed sequence copies the whole sequence once per step, so training goes another way.
    """
    lengths = lengths_of(attention_mask)
    if rnn.training and vectors.device.type == "cpu":
        return _run_each_way(rnn, vectors, lengths)
    packed = pack_padded_sequence(
        vectors, lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    return pad_packed_sequence(
        rnn(packed)[0], batch_first=True, total_length=vectors.shape[1]
    )[0]


def lengths_of(attention_mask: Tensor) -> Tensor:
    """Number of tokens of every text, at least 1, [batch]; an error where padding comes before one of them."""
    real = attention_mask.bool()
    if (
        real[:, 1:] & ~real[:, :-1]
    ).any():  # packing reads the first positions, whatever they hold
        raise ValueError(
            "expected padding on the right only; set tokenizer.padding_side = 'right'"
        )
    return real.sum(-1).clamp(min=1)


def _run_each_way(rnn: nn.Module, vectors: Tensor, lengths: Tensor) -> Tensor:
    """Forward over the texts, forward over the reversed texts: padding only ever comes last, and need not be skipped."""
    keys = torch.arange(vectors.shape[1])
    mirror = (lengths[:, None] - 1 - keys).remainder(len(keys))[..., None]
    zeros, weights = (
        vectors.new_zeros(1, len(vectors), rnn.hidden_size),
        rnn._flat_weights,
    )
    run, start = (
        (torch._VF.gru, zeros)
        if isinstance(rnn, nn.GRU)
        else (torch._VF.lstm, (zeros, zeros))
    )
    options = (
        True,
        1,
        0.0,
        True,
        False,
        True,
    )  # biases, layers, dropout, training, bidirectional, batch first
    forward = run(vectors, start, weights[:4], *options)[0]
    backward = run(vectors.take_along_dim(mirror, 1), start, weights[4:], *options)[0]
    return torch.cat([forward, backward.take_along_dim(mirror, 1)], dim=-1)


class BiLSTMEncoder(nn.Module):
    """One bidirectional LSTM layer."""

    def __init__(self, config, input_size: int):
        super().__init__()
        self.lstm = nn.LSTM(
            input_size, config.encoder_size, batch_first=True, bidirectional=True
        )

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return run_recurrent(self.lstm, vectors, attention_mask)


class BiGRUEncoder(nn.Module):
    """One bidirectional GRU layer (Yang et al. 2016, Section 2.2)."""

    def __init__(self, config, input_size: int):
        super().__init__()
        self.gru = nn.GRU(
            input_size, config.encoder_size, batch_first=True, bidirectional=True
        )

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return run_recurrent(self.gru, vectors, attention_mask)


class OrthogonalLSTMEncoder(nn.Module):
    """One LSTM layer in one direction whose states are made orthogonal to the mean of all before them (Mohankumar et al.
    2020, Section 4.1): what a step makes loses its projection on that mean, and the rest is what the next step gets.

    It starts from zeros, where the paper's code draws a beginning for every pass: outputs are to be the same each time.
    """

    def __init__(self, config, input_size: int):
        super().__init__()
        self.cell = nn.LSTMCell(input_size, config.encoder_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        lengths_of(attention_mask)
        hidden = cell = total = vectors.new_zeros(len(vectors), self.cell.hidden_size)
        states = []
        for vector in vectors.unbind(1):
            hidden, cell = self.cell(vector, (hidden, cell))
            hidden = hidden - _projection(
                hidden, total
            )  # a sum points where the mean does
            total = total + hidden
            states.append(hidden)
        return torch.stack(states, dim=1)


def _projection(values: Tensor, direction: Tensor) -> Tensor:
    """Of [batch, size] on [batch, size]; nothing on a direction of zero length."""
    length = (
        direction.square()
        .sum(-1, keepdim=True)
        .clamp_min(torch.finfo(values.dtype).tiny)
    )
    return (values * direction).sum(-1, keepdim=True) / length * direction


class CNNEncoder(nn.Module):
    """Convolutions of several widths side by side, ReLU; one state per token, no pooling."""

    def __init__(self, config, input_size: int):
        super().__init__()
        n_filters = config.encoder_size // len(config.kernel_sizes)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(input_size, n_filters, size, padding=size // 2)
            for size in config.kernel_sizes
        )

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        # Padding must look like the zero border that an unpadded text has.
        vectors = (vectors * attention_mask.unsqueeze(-1)).transpose(1, 2)
        return (
            torch.cat(
                [convolution(vectors) for convolution in self.convolutions], dim=1
            )
            .relu()
            .transpose(1, 2)
        )


class MLPEncoder(nn.Module):
    """Token-wise linear layer and tanh: no context at all (the papers' "average" encoder)."""

    def __init__(self, config, input_size: int):
        super().__init__()
        self.linear = nn.Linear(input_size, config.encoder_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return self.linear(vectors).tanh()


class NoEncoder(nn.Module):
    """The vectors themselves."""

    def __init__(self, config, input_size: int):
        super().__init__()

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        return vectors


def attend(attention: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    """Attention [batch, keys]: sums to 1 where ``mask`` is True, exactly 0 elsewhere; all 0 where there is nothing."""
    scores = attention(states).masked_fill(~mask, torch.finfo(states.dtype).min)
    return scores.softmax(-1) * mask


class AdditiveAttention(nn.Module):
    """score_t = v · tanh(W h_t + b); v is the learned context vector of Yang et al. 2016."""

    def __init__(self, config):
        super().__init__()
        size = config.attention_size or config.hidden_size // 2
        self.projection = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.query(self.projection(states).tanh()).squeeze(-1)


class DotProductAttention(nn.Module):
    """score_t = w · h_t / √hidden."""

    def __init__(self, config):
        super().__init__()
        self.query = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.query(states).squeeze(-1) / states.shape[-1] ** 0.5


class UniformAttention(nn.Module):
    """score_t = 0: every real token gets 1/T."""

    def __init__(self, config):
        super().__init__()

    def forward(self, states: Tensor) -> Tensor:
        return states.new_zeros(states.shape[:-1])


class GuidedAttention(nn.Module):
    """No scores: the weights are given, not computed."""

    def __init__(self, config):
        super().__init__()

    def forward(self, states: Tensor) -> Tensor:
        raise ValueError(
            "expected attention weights, which this model does not compute; pass guide=[batch, keys]"
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
