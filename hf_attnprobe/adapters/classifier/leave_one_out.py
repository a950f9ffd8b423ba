"""Leave-one-out for attention classifiers, which recomputes only the states that a deletion changes.

Deleting token i leaves many encoder states unchanged:

- BiLSTM: the forward states before i and the backward states after i.
- CNN: all states that are farther from i than the convolution kernel reaches.
- Encoders without context: all states.

For every deleted position and every remaining position, a deletion method returns the new state's
attention score `[batch, deleted, keys]` and its classifier outputs
`[batch, deleted, keys, outputs]`. An attention-weighted sum then gives the classifier output after
each deletion. It is the same as if the token were deleted and the text encoded again (Jain &
Wallace 2019, Algorithm 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# --- Recurrent encoders that resume after a deleted token ----------------------------------------
# The LSTM is evaluated with sigmoids only: tanh(x) = 2σ(2x) - 1. To save operations, cell states
# are stored multiplied by 2, hidden states divided by 2, and candidate gates as σ(2x) - 1/2. The
# weights are rescaled accordingly.


DIRECTION_SUFFIXES = ("l0", "l0_reverse")
"""Suffixes of the parameter names of `nn.LSTM`, for the forward and the backward direction.

For example, `weight_ih_l0` is the name of the input weights of the forward direction.
"""


@dataclass(frozen=True, eq=False)
class LstmTrace:
    """All intermediate values from one direction of an LSTM.

    Gates are in the order input, forget, candidate, output. Steps count the tokens in the order in
    which this direction reads the text.

    Attributes:
        position: Text position at each step, int `[batch, steps]`.
        step: Step at which each text position is read, int `[batch, steps]`.
        reads_token: Whether each step reads a real token, bool `[steps, batch]`.
        inputs: Contribution of word vectors and biases to the gates, `[steps, batch, 4 · size]`.
        gates: Gates after the sigmoid, with 1/2 subtracted from the candidate,
            `[steps, batch, 4 · size]`.
        cell: Doubled cell states before each step and after the last step,
            `[steps + 1, batch, size]`.
        hidden: Halved hidden states before each step and after the last step,
            `[steps + 1, batch, size]`.
        input_weight: Input weights, `[4 · size, embedding]`.
        recurrent: Recurrent weights, `[size, 4 · size]`.
        bias: Sum of both biases, `[4 · size]`.
    """

    position: Tensor
    step: Tensor
    reads_token: Tensor
    inputs: Tensor
    gates: Tensor
    cell: Tensor
    hidden: Tensor
    input_weight: Tensor
    recurrent: Tensor
    bias: Tensor

    def get_states(self) -> Tensor:
        """Return this direction's half of the encoder states, `[batch, keys, size]`."""
        return 2 * gather_positions(self.hidden[1:].transpose(0, 1), self.step)


def gather_positions(values: Tensor, index: Tensor) -> Tensor:
    """Select each text's values at the positions that an index tensor contains.

    Args:
        values: Values `[batch, keys, ...]`.
        index: Positions to select, int `[batch, selected]`.

    Returns:
        Values `[batch, selected, ...]`.
    """
    rows = torch.arange(len(values), device=values.device)[:, None]
    return values[rows, index]


def compute_step_positions(attention_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Compute the order in which both directions of an LSTM read padded texts.

    Padding is read first in both directions, so that all texts end at the same step.

    Args:
        attention_mask: Mask for right-padded texts, `[batch, keys]`.

    Returns:
        For the forward and the backward direction, the text position read at each step, and the
        step at which each position is read; all are int `[batch, keys]`.
    """
    n_keys = attention_mask.shape[1]
    keys = torch.arange(n_keys, device=attention_mask.device)
    # The forward direction reads the padding at the end first, so its positions are rotated.
    n_padding = n_keys - attention_mask.sum(-1, keepdim=True)
    position = (keys - n_padding) % n_keys
    step = (keys + n_padding) % n_keys
    backward = n_keys - 1 - keys
    backward = backward.expand_as(attention_mask)
    return [(position, step), (backward, backward)]


def get_gate_weights(layer: nn.Module, suffix: str) -> list[Tensor]:
    """Return the parameters for one direction of an LSTM layer.

    Args:
        layer: An `nn.LSTM` module.
        suffix: One of `DIRECTION_SUFFIXES`.

    Returns:
        Input weights, recurrent weights, input bias and recurrent bias.
    """
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [layer.get_parameter(f"{name}_{suffix}") for name in names]


def trace_lstm(
    lstm: nn.Module,
    embedding: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor,
) -> list[LstmTrace]:
    """Run both directions of an LSTM and record their intermediate values.

    Args:
        lstm: A bidirectional `nn.LSTM` with one layer.
        embedding: Word vectors for the whole vocabulary, `[words, embedding]`.
        input_ids: Token ids of right-padded texts, int `[batch, keys]`.
        attention_mask: Text mask, `[batch, keys]`.

    Returns:
        Traces of the forward and the backward direction.
    """
    words, word_index = input_ids.unique(return_inverse=True)
    vectors = embedding[words]
    traces = []
    directions = compute_step_positions(attention_mask)
    for suffix, (position, step) in zip(DIRECTION_SUFFIXES, directions, strict=True):
        weight, recurrent, bias, recurrent_bias = get_gate_weights(lstm, suffix)
        # The candidate gate is a tanh, which is computed as a sigmoid of twice its argument.
        scale = torch.ones_like(bias)
        scale.chunk(4)[2].fill_(2)
        bias = (bias + recurrent_bias) * scale
        recurrent = (2 * recurrent * scale[:, None]).t().contiguous()
        weight = weight * scale[:, None]
        # Each distinct word is multiplied by the weights only once.
        word_inputs = F.linear(vectors, weight, bias)
        inputs = word_inputs[word_index.gather(1, position).t()]
        reads_token = attention_mask.gather(1, position).t().bool()
        gates, cell, hidden = _run_direction(inputs, reads_token, recurrent)
        traces.append(
            LstmTrace(
                position=position,
                step=step,
                reads_token=reads_token,
                inputs=inputs,
                gates=gates,
                cell=cell,
                hidden=hidden,
                input_weight=weight,
                recurrent=recurrent,
                bias=bias,
            )
        )
    return traces


def _run_direction(
    inputs: Tensor, reads_token: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one LSTM direction, and return its gates, cell states and hidden states.

    See `LstmTrace` for their shapes and scaling.

    Args:
        inputs: Gate inputs from the words, `[steps, batch, 4 · size]`.
        reads_token: Whether each step reads a token and not padding, bool `[steps, batch]`.
        recurrent: Recurrent weights, `[size, 4 · size]`.
    """
    n_steps, n_batch, width = inputs.shape
    gates = inputs.clone()
    cell, hidden = inputs.new_zeros(2, n_steps + 1, n_batch, width // 4)
    for t, all_read_tokens in enumerate(reads_token.all(1).tolist()):
        new_cell, new_hidden = cell[t + 1], hidden[t + 1]
        new_cell.copy_(cell[t])
        step_gates = gates[t].addmm_(hidden[t], recurrent)
        advance_step(step_gates, new_cell, new_hidden)
        if not all_read_tokens:
            # Padding comes before the text, so the state is still 0.
            has_started = reads_token[t, :, None]
            new_cell *= has_started
            new_hidden *= has_started
    return gates, cell, hidden


def advance_step(gates: Tensor, cell: Tensor, hidden: Tensor) -> None:
    """Advance an LSTM by one step, in place.

    Args:
        gates: Gates before the sigmoid, `[rows, 4 · size]`; overwritten with the gates after the
            sigmoid.
        cell: Doubled cell states, `[rows, size]`; overwritten with the next cell states.
        hidden: Buffer `[rows, size]`; overwritten with the next halved hidden states.
    """
    into, forget, candidate, out = gates.sigmoid_().split(cell.shape[-1], dim=-1)
    # Candidate gates are stored as σ(2x) - 1/2 = tanh(x) / 2, so that the doubled cell state 2c
    # becomes forget · 2c + 4 · into · candidate, which is twice the usual update.
    cell.mul_(forget).addcmul_(into, candidate.sub_(0.5), value=4)
    # σ(2c) - 1/2 = tanh(c) / 2, so this is half of the usual hidden state.
    torch.mul(out, cell.sigmoid().sub_(0.5), out=hidden)


def compute_lstm_gradient_times_input(traces: Sequence[LstmTrace], gradient: Tensor) -> Tensor:
    """Compute gradient × input for the word vectors, through both directions of an LSTM.

    Args:
        traces: Traces of the forward and the backward direction.
        gradient: Gradient with respect to the encoder states, `[batch, keys, hidden]`.

    Returns:
        Signed values `[batch, keys]`, summed over the embedding dimensions.
    """
    forward, backward = traces
    forward_gradient, backward_gradient = gradient.chunk(2, dim=-1)
    total = _compute_direction_product(forward, forward_gradient)
    return total + _compute_direction_product(backward, backward_gradient)


def _compute_direction_product(trace: LstmTrace, gradient: Tensor) -> Tensor:
    """Compute gradient × input through one direction of an LSTM, `[batch, keys]`.

    Args:
        trace: The direction's trace.
        gradient: Gradient with respect to this direction's states, `[batch, keys, size]`.
    """
    # The trace stores halved hidden states, so the gradient with respect to them is doubled.
    hidden_gradient = 2 * gather_positions(gradient, trace.position).transpose(0, 1)
    word_inputs = trace.inputs - trace.bias
    products = word_inputs * _compute_gate_gradient(trace, hidden_gradient)
    return gather_positions(products.sum(-1).t(), trace.step)


def _compute_gate_gradient(trace: LstmTrace, hidden_gradient: Tensor) -> Tensor:
    """Backpropagate through an LSTM to its gates before the sigmoid, `[steps, batch, 4 · size]`.

    Args:
        trace: Trace of one direction.
        hidden_gradient: Gradient with respect to the halved hidden states,
            `[steps, batch, size]`.
    """
    size = hidden_gradient.shape[-1]
    recurrent = trace.recurrent.t()
    into, forget, candidate, out = trace.gates.split(size, dim=-1)
    squashed = trace.cell[1:].sigmoid().sub_(0.5)
    to_cell = (0.25 - squashed.square()).mul_(out)
    # Derivative of the cell state with respect to the first three gates, and of the hidden state
    # with respect to the output gate, each before the sigmoid.
    gradient = trace.gates - trace.gates.square()
    gradient = gradient.unflatten(-1, (4, size))
    gradient[:, :, 2] = 0.25 - candidate.square()
    gradient[:, :, 0] *= 4 * candidate
    gradient[:, :, 1] *= trace.cell[:-1]
    gradient[:, :, 2] *= 4 * into
    gradient[:, :, 3] *= squashed
    gradient *= trace.reads_token[..., None, None]

    hidden = torch.zeros_like(hidden_gradient[0])
    cell = torch.zeros_like(hidden_gradient[0])
    for t in reversed(range(len(hidden_gradient))):
        hidden = hidden_gradient[t] + hidden
        cell.addcmul_(hidden, to_cell[t])
        step_gradient = gradient[t]
        step_gradient[:, :3] *= cell.unsqueeze(1)
        step_gradient[:, 3] *= hidden
        cell *= forget[t]
        hidden = step_gradient.flatten(1) @ recurrent
    return gradient.flatten(2)


MAX_COPIES_PER_STEP = 512
"""Maximum number of text copies for which one LSTM step is computed at once.

Each copy of a text lacks one token. The gates of 512 copies fit into the cache of a CPU core.
"""


class ClassifierState(NamedTuple):
    """Results from one forward pass of an attention classifier.

    Attributes:
        embeddings: Word vectors, `[batch, keys, embedding]`; empty if `traces` are stored instead.
        traces: Traces of both directions of a BiLSTM; empty for other encoders.
        states: Encoder states, `[batch, keys, hidden]`.
        token_logits: Logits for each encoder state alone, `[batch, keys, classes]`.
    """

    embeddings: Tensor
    traces: Sequence[LstmTrace]
    states: Tensor
    token_logits: Tensor


class Readout(NamedTuple):
    """Linear map that computes an encoder state's attention score and classifier outputs together.

    Attributes:
        weight: Joint weights, `[projection + outputs, hidden]`.
        bias: Joint biases, `[projection + outputs]`.
        query: Vector by which the projection is multiplied after a sigmoid, `[projection]`. None
            if the projection is the attention score itself.
        n_outputs: Number of classifier outputs.
    """

    weight: Tensor
    bias: Tensor
    query: Tensor | None
    n_outputs: int

    def read(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results from encoder states.

        Args:
            states: Encoder states, `[..., hidden]`.

        Returns:
            Attention scores `[...]` and classifier outputs `[..., outputs]`.
        """
        return self.finish(F.linear(states, self.weight, self.bias))

    def finish(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the results from encoder states that have been multiplied by the joint weights.

        Args:
            projected: Projection for the attention score, followed by the classifier outputs,
                `[..., projection + outputs]`.

        Returns:
            Attention scores `[...]` and classifier outputs `[..., outputs]`.
        """
        n_projection = projected.shape[-1] - self.n_outputs
        projection = projected[..., :n_projection]
        outputs = projected[..., n_projection:]
        if self.query is None:
            return projection.squeeze(-1), outputs
        return projection.sigmoid() @ self.query, outputs


JOINT_READOUTS = ("additive", "dot_product", "uniform")
"""Types of attention that `create_readout` can combine with the classification head."""


def create_readout(attention_type: str, attention: nn.Module, head_weight: Tensor) -> Readout:
    """Combine a classifier's attention and classification head into one linear map of its states.

    The classification head's bias is not included; it is added once to the final logits.

    Args:
        attention_type: "additive", "dot_product" or "uniform".
        attention: The attention module, of this type.
        head_weight: Weight matrix of the classification head, `[outputs, hidden]`.

    Returns:
        The joint read-out.
    """
    weight = torch.zeros_like(head_weight[:1])
    bias = torch.zeros_like(weight[:, 0])
    query = None
    if attention_type == "additive":
        # tanh(x) = 2σ(2x) - 1. A sigmoid is faster, and the softmax cancels the constant.
        weight = 2 * attention.get_parameter("projection.weight")
        bias = 2 * attention.get_parameter("projection.bias")
        query = 2 * attention.get_parameter("query.weight")[0]
    elif attention_type == "dot_product":
        weight = attention.get_parameter("query.weight") / head_weight.shape[1] ** 0.5
    n_outputs = len(head_weight)
    weight = torch.cat([weight, head_weight])
    bias = F.pad(bias, (0, n_outputs))
    return Readout(weight, bias, query, n_outputs)


def compute_leave_one_out_outputs(
    encoder_type: str,
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> Tensor:
    """Compute the classifier outputs, without the bias, after deleting each token alone.

    Args:
        encoder_type: Encoder type, a key in `DELETION_METHODS`.
        encoder: The encoder module, of this type.
        readout: Joint read-out for the encoder states.
        state: Results from a forward pass over the whole texts, without a gradient graph.
        attention_mask: Text mask, `[batch, keys]`.
        content: Mask for the tokens that receive attention, bool `[batch, keys]`.

    Returns:
        Outputs `[batch, deleted, outputs]`; 0 if the only token of a text is deleted.
    """
    compute_scores = DELETION_METHODS[encoder_type]
    scores, outputs = compute_scores(encoder, readout, state, attention_mask, content)
    # The softmax is computed over the tokens that remain after each deletion.
    n_keys = content.shape[1]
    is_deleted = torch.eye(n_keys, dtype=torch.bool, device=content.device)
    remaining = content[:, None, :] & ~is_deleted
    lowest_score = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~remaining, lowest_score)
    weights = scores.softmax(-1) * remaining
    weighted = weights.unsqueeze(-1) * outputs
    return weighted.sum(2)


def _delete_without_context(
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return scores and outputs for an encoder whose states do not depend on other tokens."""
    scores, outputs = readout.read(state.states)
    n_keys = content.shape[1]
    outputs = outputs[:, None].expand(-1, n_keys, -1, -1)
    return scores[:, None].expand(-1, n_keys, -1), outputs


def _delete_from_cnn(
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute scores and outputs for a CNN, whose states change only near a deleted token.

    A convolution is the sum Σ_d K_d x_{t+d} over kernel positions d. The products K_d x_t are
    computed once. For tokens near a deleted token, they are summed with shifted positions.
    """
    embeddings = state.embeddings * attention_mask.unsqueeze(-1)
    products, biases = [], []
    for convolution in encoder.get_submodule("convolutions").children():
        weight = convolution.get_parameter("weight")
        products.append(torch.einsum("bke,fed->dbkf", embeddings, weight))
        biases.append(convolution.get_parameter("bias"))
    old_scores, old_outputs = _delete_without_context(
        encoder, readout, state, attention_mask, content
    )
    scores, outputs = old_scores.clone(), old_outputs.clone()
    n_keys = content.shape[1]
    reach = max(len(product) for product in products) // 2
    positions = torch.arange(n_keys, device=content.device)
    for offset in range(-reach, reach + 1):
        if offset == 0:
            continue
        deleted = positions[max(0, -offset) : n_keys - max(0, offset)]
        channels = []
        for product, bias in zip(products, biases, strict=True):
            channels.append(_convolve_without_token(product, offset, deleted) + bias)
        score, output = readout.read(torch.cat(channels, dim=-1).relu())
        scores[:, deleted, deleted + offset] = score
        outputs[:, deleted, deleted + offset] = output
    return scores, outputs


def _convolve_without_token(product: Tensor, offset: int, deleted: Tensor) -> Tensor:
    """Compute a convolution at one position near each deleted token, as if it did not exist.

    Args:
        product: Products K_d x_t for each kernel position d, `[width, batch, keys, filters]`.
        offset: Position of the output relative to the deleted token.
        deleted: Positions of the deleted tokens, int `[deleted]`.

    Returns:
        Convolution output before the bias, `[batch, deleted, filters]`.
    """
    half_width = len(product) // 2
    n_keys = product.shape[2]
    total = torch.zeros_like(product[0][:, deleted])
    for d, values in enumerate(product, start=-half_width):
        source_offset = offset + d
        # Tokens on the other side of the deleted token are now one position closer.
        if offset < 0 <= source_offset:
            source_offset += 1
        elif offset > 0 >= source_offset:
            source_offset -= 1
        source = deleted + source_offset
        is_inside = ((source >= 0) & (source < n_keys))[:, None]
        total = total + values[:, source.clamp(0, n_keys - 1)] * is_inside
    return total


def _delete_from_bilstm(
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute scores and outputs for a BiLSTM by resuming each direction after the deleted token.

    After the deleted token, only the forward half of each state changes. Before it, only the
    backward half changes. The other half is taken from the whole text.
    """
    forward, backward = state.traces
    # The joint linear map is a sum of one term per half of a state.
    weight, backward_weight = readout.weight.chunk(2, dim=1)
    forward_states, backward_states = state.states.chunk(2, dim=-1)
    constant = F.linear(backward_states, backward_weight, readout.bias)
    scores, outputs = _resume_direction(forward, content, constant, weight, readout)
    constant = F.linear(forward_states, weight, readout.bias)
    backward_scores, backward_outputs = _resume_direction(
        backward, content, constant, backward_weight, readout
    )
    # The results of each direction are 0 at the positions that only the other direction changes.
    return scores.add_(backward_scores), outputs.add_(backward_outputs)


def _resume_direction(
    trace: LstmTrace,
    content: Tensor,
    constant: Tensor,
    weight: Tensor,
    readout: Readout,
) -> tuple[Tensor, Tensor]:
    """Resume one LSTM direction after each deleted token, as if this token did not exist.

    One copy of the text is created for each deleted token. It starts from the state before the
    token, and advances together with the copies that were created earlier.

    Args:
        trace: The direction's trace.
        content: Mask for the tokens that may be deleted, bool `[batch, keys]`.
        constant: Contribution of the other direction's states to the read-out,
            `[batch, keys, projection + outputs]`.
        weight: Read-out weights for this direction, `[projection + outputs, size]`.
        readout: Joint read-out for the encoder states.

    Returns:
        Attention scores `[batch, deleted, keys]` and outputs `[batch, deleted, keys, outputs]`.
        Both are 0 at positions that this direction reads before the deleted token.
    """
    is_deleted = gather_positions(content, trace.position).t()
    constant = gather_positions(constant, trace.position)
    constant = constant.transpose(0, 1).contiguous()
    # The factor 2 compensates for halved hidden states.
    weight = 2 * weight.t().contiguous()

    # Copies are ordered by the step at which they start.
    step, text = is_deleted.nonzero().unbind(1)
    n_copies = is_deleted.sum(1).cumsum(0).tolist()
    hidden, cell = trace.hidden[step, text], trace.cell[step, text]
    n_steps = len(constant)
    scores = constant.new_zeros(len(text), n_steps)
    outputs = constant.new_zeros(len(text), n_steps, readout.n_outputs)
    gates = constant.new_empty(MAX_COPIES_PER_STEP, trace.recurrent.shape[1])
    projected = constant.new_empty(MAX_COPIES_PER_STEP, weight.shape[1])
    last_step = int(step[-1]) if len(step) else 0
    for t in range(1, last_step + 1):
        n_running = n_copies[t - 1]
        for start in range(0, n_running, MAX_COPIES_PER_STEP):
            end = min(start + MAX_COPIES_PER_STEP, n_running)
            n_rows = end - start
            rows = slice(start, end)
            texts = text[rows]
            step_gates = torch.index_select(trace.inputs[t], 0, texts, out=gates[:n_rows])
            step_gates.addmm_(hidden[rows], trace.recurrent)
            advance_step(step_gates, cell[rows], hidden[rows])
            step_projection = torch.index_select(constant[t], 0, texts, out=projected[:n_rows])
            step_projection.addmm_(hidden[rows], weight)
            scores[rows, t], outputs[rows, t] = readout.finish(step_projection)
    position = trace.position[text, step]
    scores = _arrange_by_deletion(scores, text, position, trace.step)
    outputs = _arrange_by_deletion(outputs, text, position, trace.step)
    return scores, outputs


def _arrange_by_deletion(rows: Tensor, text: Tensor, position: Tensor, step: Tensor) -> Tensor:
    """Arrange the values of all text copies by text, deleted token and position.

    Each copy of a text lacks one token.

    Args:
        rows: Values of each copy at each step, `[copies, steps, ...]`.
        text: Index of each copy's text, int `[copies]`.
        position: Position of each copy's deleted token, int `[copies]`.
        step: Step at which each text position is read, int `[batch, keys]`.

    Returns:
        Values `[batch, deleted, keys, ...]`.
    """
    arranged = rows.new_zeros(*step.shape, *rows.shape[1:])
    # Convert steps to text positions.
    arranged[text, position] = gather_positions(rows, step[text])
    return arranged


DeletionMethod = Callable[
    [nn.Module, Readout, ClassifierState, Tensor, Tensor], tuple[Tensor, Tensor]
]
"""Type of a function that computes the effect of deleting each token alone.

It receives the encoder, the read-out, the state, the attention mask and the content mask. It
returns attention scores `[batch, deleted, keys]` and outputs `[batch, deleted, keys, outputs]`.
"""

DELETION_METHODS: dict[str, DeletionMethod] = {
    "bilstm": _delete_from_bilstm,
    "cnn": _delete_from_cnn,
    "mlp": _delete_without_context,
    "none": _delete_without_context,
}
"""Maps each encoder type to the function that computes the effects of deleting single tokens."""
