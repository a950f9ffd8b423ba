"""Encoders and attention modules for attention classifiers.

The same modules read the words of a text and, in hierarchical models, its sentences. Every encoder
is created from a configuration and the width of its input, and maps vectors ``[batch, keys,
input]`` with a mask ``[batch, keys]`` to states ``[batch, keys, hidden]``. Every attention module
maps states to scores ``[batch, keys]``.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .configuration_attention_classifier import AttentionClassifierConfig


def run_recurrent(rnn: nn.LSTM | nn.GRU, vectors: Tensor, attention_mask: Tensor) -> Tensor:
    """Run a bidirectional recurrent layer, such that padding does not affect the result.

    The backward direction starts at each text's last token.

    Args:
        rnn: Bidirectional recurrent layer with ``batch_first=True``.
        vectors: Input vectors ``[batch, keys, input]``.
        attention_mask: Positions without padding ``[batch, keys]``, padding on the right.

    Returns:
        States ``[batch, keys, 2 · size]``.
    """
    lengths = count_tokens(attention_mask)
    # On a CPU, a packed sequence's gradient copies the whole sequence once per step. Training
    # therefore runs the two directions separately, which is faster.
    if rnn.training and vectors.device.type == "cpu":
        return _run_both_directions(rnn, vectors, lengths)
    packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=vectors.shape[1])
    return states


def count_tokens(attention_mask: Tensor) -> Tensor:
    """Count the tokens in each text. An empty text counts as one token.

    Args:
        attention_mask: Positions without padding, ``[batch, keys]``.

    Returns:
        Token counts, int64 ``[batch]``.

    Raises:
        ValueError: If a token follows padding, because packed sequences start at the first
            position.
    """
    is_token = attention_mask.bool()
    # In a text with padding on the left, a token follows a position that is not a token.
    if (is_token[:, 1:] & ~is_token[:, :-1]).any():
        raise ValueError(
            "expected padding on the right only. Set tokenizer.padding_side = 'right'."
        )
    return is_token.sum(-1).clamp(min=1)


def _run_both_directions(rnn: nn.LSTM | nn.GRU, vectors: Tensor, lengths: Tensor) -> Tensor:
    """Run the two directions of a bidirectional layer one after the other.

    The backward direction reads the texts in reverse order, and its states are reversed again.

    Padding comes last in both directions and does not have to be skipped. This function uses
    private PyTorch functions, because no public function runs a single direction.
    """
    keys = torch.arange(vectors.shape[1])
    # The positions of each text in reverse order. Padding stays after the text: for a text with 3
    # words in a batch with 5 positions, the order is 2, 1, 0, 4, 3.
    reversed_keys = (lengths[:, None] - 1 - keys).remainder(len(keys))[..., None]
    weights = rnn._flat_weights
    zeros = vectors.new_zeros(1, len(vectors), rnn.hidden_size)
    run: Callable[..., tuple[Tensor, ...]] = torch._VF.lstm
    start: Tensor | tuple[Tensor, Tensor] = (zeros, zeros)
    if isinstance(rnn, nn.GRU):
        run, start = torch._VF.gru, zeros
    # The options are has_biases, num_layers, dropout, train, bidirectional and batch_first.
    options = (True, 1, 0.0, True, False, True)
    forward = run(vectors, start, weights[:4], *options)[0]
    reversed_texts = vectors.take_along_dim(reversed_keys, 1)
    backward = run(reversed_texts, start, weights[4:], *options)[0]
    return torch.cat([forward, backward.take_along_dim(reversed_keys, 1)], dim=-1)


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
        """Compute states ``[batch, keys, hidden]`` from vectors ``[batch, keys, input]``."""
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
        """Compute states ``[batch, keys, hidden]`` from vectors ``[batch, keys, input]``."""
        return run_recurrent(self.gru, vectors, attention_mask)


class OrthogonalLSTMEncoder(nn.Module):
    """One unidirectional LSTM layer whose states are orthogonal to the mean of earlier states.

    Mohankumar et al. 2020, Section 4.1: each new state's projection on the mean of all earlier
    states is subtracted from it, and the result is passed to the next step. The initial state is
    zero, so that outputs are reproducible; the paper's code draws a random one for every pass.
    """

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(input_size, config.encoder_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute states ``[batch, keys, hidden]`` from vectors ``[batch, keys, input]``."""
        # Padding on the left would be read as part of the text, so this raises an error.
        count_tokens(attention_mask)
        hidden = cell = total = vectors.new_zeros(len(vectors), self.cell.hidden_size)
        states = []
        for vector in vectors.unbind(1):
            hidden, cell = self.cell(vector, (hidden, cell))
            # The new state is made orthogonal to the mean of all earlier states, by subtracting
            # its component in this direction. The sum has the same direction as the mean. If the
            # sum is zero, nothing is subtracted.
            squared_length = total.square().sum(-1, keepdim=True)
            smallest = torch.finfo(hidden.dtype).tiny
            squared_length = squared_length.clamp_min(smallest)
            coefficient = (hidden * total).sum(-1, keepdim=True) / squared_length
            hidden = hidden - coefficient * total
            total = total + hidden
            states.append(hidden)
        return torch.stack(states, dim=1)


class CNNEncoder(nn.Module):
    """Parallel convolutions with several widths, followed by ReLU, with one state per token."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        n_filters = config.encoder_size // len(config.kernel_sizes)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(input_size, n_filters, size, padding=size // 2)
            for size in config.kernel_sizes
        )

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute states ``[batch, keys, hidden]`` from vectors ``[batch, keys, input]``."""
        # Convolutions add zeros at both ends of a text. Padding is also set to zero, so that it
        # does not change the result.
        vectors = (vectors * attention_mask.unsqueeze(-1)).transpose(1, 2)
        states = [convolution(vectors) for convolution in self.convolutions]
        return torch.cat(states, dim=1).relu().transpose(1, 2)


class MLPEncoder(nn.Module):
    """Linear layer and tanh for each token alone, called "average" in the papers."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, config.encoder_size)

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute states ``[batch, keys, hidden]`` from vectors ``[batch, keys, input]``."""
        return self.linear(vectors).tanh()


class NoEncoder(nn.Module):
    """Identity: the states are the input vectors."""

    def __init__(self, config: AttentionClassifierConfig, input_size: int) -> None:
        super().__init__()

    def forward(self, vectors: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute states ``[batch, keys, hidden]`` from vectors ``[batch, keys, input]``."""
        return vectors


def attend(
    attention: nn.Module,
    states: Tensor,
    mask: Tensor,
    query: Tensor | None = None,
) -> Tensor:
    """Compute attention scores with a module, and convert them to attention weights.

    Args:
        attention: Module that maps states ``[batch, keys, hidden]`` to scores ``[batch, keys]``.
        states: States ``[batch, keys, hidden]``.
        mask: Tokens that may receive attention, bool ``[batch, keys]``.
        query: Query vectors ``[batch, hidden]``, for modules that need them.

    Returns:
        Weights ``[batch, keys]``, which sum to 1 over the mask and are exactly 0 elsewhere. If the
        mask is empty, all weights are 0. With one attention per class, ``[batch, classes, keys]``.
    """
    scores = attention(states) if query is None else attention(states, query)
    if scores.dim() > mask.dim():
        mask = mask[:, None]
    scores = scores.masked_fill(~mask, torch.finfo(states.dtype).min)
    # The product sets all weights to 0 if the mask is empty.
    return scores.softmax(-1) * mask


class AdditiveAttention(nn.Module):
    """Additive attention, score_t = v · tanh(W h_t + b) (Jain & Wallace 2019, Section 2).

    v is the learned context vector of Yang et al. 2016.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        size = config.attention_size or config.hidden_size // 2
        self.projection = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Compute scores ``[batch, keys]`` from states ``[batch, keys, hidden]``."""
        return self.query(self.projection(states).tanh()).squeeze(-1)


class GatedAttention(nn.Module):
    """Gated attention, score_t = w · (tanh(V h_t + b) ⊙ σ(U h_t + c)) (Ilse et al. 2018, Eq. 9).

    ⊙ is the product of each pair of entries. The attention weights are the softmax of the scores.
    The paper's layers V and U have no biases b and c; the implementations that are in use have them.
    With ``class_attention``, each class has its own vector w (Lu et al. 2021, CLAM_MB).
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        size = config.attention_size or max(1, config.hidden_size // 2)
        self.projection = nn.Linear(config.hidden_size, size)
        self.gate = nn.Linear(config.hidden_size, size)
        # The configuration checks that num_labels is set.
        assert config.num_labels is not None
        self.has_class_attention = config.class_attention
        self.query = nn.Linear(size, config.num_labels if config.class_attention else 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Compute attention scores from states.

        Args:
            states: States ``[batch, keys, hidden]``.

        Returns:
            Scores ``[batch, keys]``, or ``[batch, classes, keys]`` with one attention per class.
        """
        gated = self.projection(states).tanh() * self.gate(states).sigmoid()
        scores = self.query(gated)
        return scores.transpose(1, 2) if self.has_class_attention else scores.squeeze(-1)


class DotProductAttention(nn.Module):
    """Dot-product attention, score_t = w · h_t / √hidden (Jain & Wallace 2019, Section 2)."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.query = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Compute scores ``[batch, keys]`` from states ``[batch, keys, hidden]``."""
        scores = self.query(states).squeeze(-1)
        return scores / states.shape[-1] ** 0.5


class UniformAttention(nn.Module):
    """Uniform attention, 1/T for every token (Wiegreffe & Pinter 2019, Section 3.1)."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()

    def forward(self, states: Tensor, query: Tensor | None = None) -> Tensor:
        """Return scores of 0, ``[batch, keys]``."""
        return states.new_zeros(states.shape[:-1])


class GuidedAttention(nn.Module):
    """Imposed attention: the caller provides the weights with every text."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()

    def forward(self, states: Tensor, query: Tensor | None = None) -> Tensor:
        """Raise an error, because this module cannot compute attention.

        With ``attention='guided'``, attention weights are an input of the model: ``guide``.
        """
        raise ValueError(
            "a model with attention='guided' does not compute attention weights. Pass them as "
            "guide=[batch, keys]."
        )


ENCODER_CLASSES = {
    "bilstm": BiLSTMEncoder,
    "bigru": BiGRUEncoder,
    "orthogonal_lstm": OrthogonalLSTMEncoder,
    "cnn": CNNEncoder,
    "mlp": MLPEncoder,
    "none": NoEncoder,
}
"""Maps values of the configuration field ``encoder`` to encoder classes."""
ATTENTION_CLASSES = {
    "additive": AdditiveAttention,
    "gated": GatedAttention,
    "dot_product": DotProductAttention,
    "uniform": UniformAttention,
    "guided": GuidedAttention,
}
"""Maps values of the configuration field ``attention`` to attention classes."""
