"""Leave-one-out for attention classifiers; recomputes only the states that a deletion changes.

Removing token i leaves the forward recurrent states before i and the backward ones after
i as they were; a convolution changes only within its reach of i; a context-free state
never. What is left is one attention-weighted sum per deletion.

Every part returns, for each deleted position and each kept one, the attention score
[batch, deleted, keys] and the read-out [batch, deleted, keys, outputs] of the new state.
Equal to deleting and re-encoding (Jain & Wallace 2019, Algorithm 1), which the tests do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# --- Recurrent encoders that resume around a deleted token -------------------


DIRECTION_SUFFIXES = ("l0", "l0_reverse")  # of the weights of the two directions


@dataclass(frozen=True, eq=False)
class LstmTrace:
    """One direction after its run; gates are input, forget, candidate, output.

    Attributes:
        position: in the text, of each step, [batch, steps].
        step: of each position of the text, [batch, steps].
        alive: bool [steps, batch].
        inputs: what words and bias put into the gates, [steps, batch, 4 · size].
        gates: after σ (the candidate less ½), [steps, batch, 4 · size].
        cell: doubled, [steps + 1, batch, size], before the first step 0.
        hidden: halved, [steps + 1, batch, size], before the first step 0.
        recurrent: [size, 4 · size].
        bias: [4 · size].
    """

    position: Tensor
    step: Tensor
    alive: Tensor
    inputs: Tensor
    gates: Tensor
    cell: Tensor
    hidden: Tensor
    recurrent: Tensor
    bias: Tensor

    def get_states(self) -> Tensor:
        """This direction's half of the encoder states, [batch, keys, size]."""
        return 2 * gather_positions(self.hidden[1:].transpose(0, 1), self.step)


def gather_positions(values: Tensor, position: Tensor) -> Tensor:
    """Positions to steps, or back: [batch, keys, ...] at ``position`` [batch, keys]."""
    rows = torch.arange(len(values), device=values.device)[:, None]
    return values[rows, position]


def compute_step_positions(attention_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns position and step of both directions, over right-padded texts [batch, keys]."""
    n_keys = attention_mask.shape[1]
    keys = torch.arange(n_keys, device=attention_mask.device)
    padding = n_keys - attention_mask.sum(-1, keepdim=True)
    position = (keys - padding) % n_keys
    step = (keys + padding) % n_keys
    backward = n_keys - 1 - keys
    backward = backward.expand_as(attention_mask)
    return [(position, step), (backward, backward)]


def get_gate_weights(layer: nn.Module, suffix: str) -> list[Tensor]:
    """Input and recurrent weights, input and recurrent bias of one direction."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [layer.get_parameter(f"{name}_{suffix}") for name in names]


def trace_lstm(
    lstm: nn.Module,
    embedding: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor,
) -> list[LstmTrace]:
    """Runs both directions over right-padded texts [batch, keys]."""
    words, index = input_ids.unique(return_inverse=True)
    vectors, traces = embedding[words], []
    directions = compute_step_positions(attention_mask)
    for suffix, (position, step) in zip(DIRECTION_SUFFIXES, directions, strict=True):
        weight, recurrent, bias, more = get_gate_weights(lstm, suffix)
        scale = torch.ones_like(bias)
        scale.chunk(4)[2].fill_(2)  # of the candidate
        bias = (bias + more) * scale
        recurrent = (2 * recurrent * scale[:, None]).t().contiguous()
        of_words = F.linear(vectors, weight * scale[:, None], bias)
        inputs = of_words[index.gather(1, position).t()]
        alive = attention_mask.gather(1, position).t().bool()
        gates, cell, hidden = _run(inputs, alive, recurrent)
        traces.append(
            LstmTrace(
                position=position,
                step=step,
                alive=alive,
                inputs=inputs,
                gates=gates,
                cell=cell,
                hidden=hidden,
                recurrent=recurrent,
                bias=bias,
            )
        )
    return traces


def _run(inputs: Tensor, alive: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gates, cell and hidden states of a trace."""
    n_steps, n_batch, width = inputs.shape
    gates = inputs.clone()
    cell, hidden = inputs.new_zeros(2, n_steps + 1, n_batch, width // 4)
    for t, all_alive in enumerate(alive.all(1).tolist()):
        new_cell, new_hidden = cell[t + 1], hidden[t + 1]
        new_cell.copy_(cell[t])
        opened = gates[t].addmm_(hidden[t], recurrent)
        advance_step(opened, new_cell, new_hidden)
        if not all_alive:
            is_alive = alive[t, :, None]
            new_cell *= is_alive
            new_hidden *= is_alive
    return gates, cell, hidden


def advance_step(gates: Tensor, cell: Tensor, hidden: Tensor) -> None:
    """One step in place, from gates [rows, 4 · size] before σ to those after it.

    The cell and the hidden state become the next ones.
    """
    into, forget, candidate, out = gates.sigmoid_().split(cell.shape[-1], dim=-1)
    cell.mul_(forget).addcmul_(into, candidate.sub_(0.5), value=4)
    torch.mul(out, cell.sigmoid().sub_(0.5), out=hidden)


def compute_gradient_times_input(traces: Sequence[LstmTrace], slope: Tensor) -> Tensor:
    """Gradient × input [batch, keys] of the words' vectors, both directions added up.

    Args:
        traces: forward and backward.
        slope: the gradient of the encoder's states, [batch, keys, hidden].
    """
    forward, backward = traces
    of_forward, of_backward = slope.chunk(2, dim=-1)
    total = _factor_gradient(forward, of_forward)
    return total + _factor_gradient(backward, of_backward)


def _factor_gradient(trace: LstmTrace, slope: Tensor) -> Tensor:
    """Gradient × input [batch, keys] through one direction.

    Args:
        slope: the gradient of its states, [batch, keys, size].
    """
    of_hidden = 2 * gather_positions(slope, trace.position).transpose(0, 1)
    of_words = trace.inputs - trace.bias
    products = of_words * _gate_gradient(trace, of_hidden)
    return gather_positions(products.sum(-1).t(), trace.step)


def _gate_gradient(trace: LstmTrace, slope: Tensor) -> Tensor:
    """Returns the gradient before σ, [steps, batch, 4 · size].

    Args:
        slope: the gradient of the halved hidden states, [steps, batch, size].
    """
    size = slope.shape[-1]
    recurrent = trace.recurrent.t()
    into, forget, candidate, out = trace.gates.split(size, dim=-1)
    squashed = trace.cell[1:].sigmoid().sub_(0.5)
    to_cell = (0.25 - squashed.square()).mul_(out)
    # what each gate's σ does to the cell (the first three) or the hidden state (the last)
    gradient = trace.gates - trace.gates.square()
    gradient = gradient.unflatten(-1, (4, size))
    gradient[:, :, 2] = 0.25 - candidate.square()
    gradient[:, :, 0] *= 4 * candidate
    gradient[:, :, 1] *= trace.cell[:-1]
    gradient[:, :, 2] *= 4 * into
    gradient[:, :, 3] *= squashed
    gradient *= trace.alive[..., None, None]

    hidden = torch.zeros_like(slope[0])
    cell = torch.zeros_like(slope[0])
    for t in reversed(range(len(slope))):
        hidden = slope[t] + hidden
        cell.addcmul_(hidden, to_cell[t])
        at_step = gradient[t]
        at_step[:, :3] *= cell.unsqueeze(1)
        at_step[:, 3] *= hidden
        cell *= forget[t]
        hidden = at_step.flatten(1) @ recurrent
    return gradient.flatten(2)


COPIES_PER_STEP = 512
"""Copies per step of a resumed layer: what keeps their gates in a core's cache."""


class ClassifierState(NamedTuple):
    """Results of one forward pass that the tests read.

    Attributes:
        embeddings: the word vectors; none where the encoder keeps ``traces`` instead.
        traces: of the encoder's run, for a BiLSTM.
        states: [batch, keys, hidden].
        token_logits: the read-out of each, [batch, keys, classes].
    """

    embeddings: Tensor
    traces: Sequence[LstmTrace]
    states: Tensor
    token_logits: Tensor


class Readout(NamedTuple):
    """Read-out of one encoder state: a joint linear map, then the score.

    Attributes:
        weight: [projection + outputs, hidden].
        bias: [projection + outputs].
        query: [projection], what the projection after σ is multiplied by; None where the
            projection is the score itself.
        n_outputs: number of logits.
    """

    weight: Tensor
    bias: Tensor
    query: Tensor | None
    n_outputs: int

    def read(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [...] and outputs [..., outputs] of states [..., hidden]."""
        return self.finish(F.linear(states, self.weight, self.bias))

    def finish(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [...] and outputs [..., outputs] from weight · h + bias."""
        n_inner = projected.shape[-1] - self.n_outputs
        inner = projected[..., :n_inner]
        outputs = projected[..., n_inner:]
        if self.query is None:
            return inner.squeeze(-1), outputs
        return inner.sigmoid() @ self.query, outputs


def create_readout(kind: str, attention: nn.Module, decode: Tensor) -> Readout:
    """Returns the read-out of an attention classifier.

    The classifier's bias is left out, it is added once at the end.

    Args:
        kind: "additive", "dot_product" or "uniform".
        attention: the module of that kind.
        decode: the classifier's weight [outputs, hidden].
    """
    weight = torch.zeros_like(decode[:1])
    bias = torch.zeros_like(weight[:, 0])
    query = None
    if kind == "additive":
        # tanh x = 2σ(2x) − 1: σ is cheaper, and the softmax cancels what is constant
        weight = 2 * attention.get_parameter("projection.weight")
        bias = 2 * attention.get_parameter("projection.bias")
        query = 2 * attention.get_parameter("query.weight")[0]
    elif kind == "dot_product":
        weight = attention.get_parameter("query.weight") / decode.shape[1] ** 0.5
    n_outputs = len(decode)
    weight = torch.cat([weight, decode])
    bias = F.pad(bias, (0, n_outputs))
    return Readout(weight, bias, query, n_outputs)


def compute_leave_one_out_outputs(
    kind: str,
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> Tensor:
    """Returns the read-out, without bias, of the text without each token; 0 of the only one.

    Args:
        kind: one of ``DELETION_METHODS``.
        encoder: of that kind.
        readout: of the encoder's states.
        state: of the whole text; no graph is recorded.
        attention_mask, content: [batch, keys].

    Returns:
        [batch, deleted, outputs].
    """
    scores, outputs = DELETION_METHODS[kind](encoder, readout, state, attention_mask, content)
    n_keys = content.shape[1]
    deleted = torch.eye(n_keys, dtype=torch.bool, device=content.device)
    kept = content[:, None, :] & ~deleted
    lowest = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~kept, lowest)
    weights = scores.softmax(-1) * kept
    weighted = weights.unsqueeze(-1) * outputs
    return weighted.sum(2)


def _context_free(
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    """For an encoder in which no state depends on another token."""
    scores, outputs = readout.read(state.states)
    n_keys = content.shape[1]
    of_each = outputs[:, None].expand(-1, n_keys, -1, -1)
    return scores[:, None].expand(-1, n_keys, -1), of_each


def _cnn(
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    """For a CNN: recomputes the states of the deleted token's neighbours i + δ alone.

    Each is a sum of taps K_d x_t computed once.
    """
    embeddings = state.embeddings * attention_mask.unsqueeze(-1)
    taps, biases = [], []
    for convolution in encoder.get_submodule("convolutions").children():
        weight = convolution.get_parameter("weight")
        taps.append(torch.einsum("bke,fed->dbkf", embeddings, weight))
        biases.append(convolution.get_parameter("bias"))
    unchanged = _context_free(encoder, readout, state, attention_mask, content)
    scores, outputs = unchanged[0].clone(), unchanged[1].clone()
    n_keys, reach = content.shape[1], max(len(tap) for tap in taps) // 2
    positions = torch.arange(n_keys, device=content.device)
    for delta in range(-reach, reach + 1):
        if delta == 0:
            continue
        deleted = positions[max(0, -delta) : n_keys - max(0, delta)]
        pieces = []
        for tap, bias in zip(taps, biases, strict=True):
            pieces.append(_tap_sum(tap, delta, deleted) + bias)
        score, output = readout.read(torch.cat(pieces, dim=-1).relu())
        scores[:, deleted, deleted + delta] = score
        outputs[:, deleted, deleted + delta] = output
    return scores, outputs


def _tap_sum(tap: Tensor, delta: int, deleted: Tensor) -> Tensor:
    """Convolution at i + delta when token i is deleted, [batch, deleted, filters].

    Shape: tap [width, batch, keys, filters].
    """
    half, n_keys = len(tap) // 2, tap.shape[2]
    total = torch.zeros_like(tap[0][:, deleted])
    for d, values in enumerate(tap, start=-half):
        source = delta + d  # relative to the deleted token
        if delta < 0 <= source:  # what lies beyond the token moves up by one
            source += 1
        elif delta > 0 >= source:
            source -= 1
        position = deleted + source
        inside = ((position >= 0) & (position < n_keys))[:, None]
        total = total + values[:, position.clamp(0, n_keys - 1)] * inside
    return total


def _bilstm(
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    """For a BiLSTM: each direction resumes after the deleted token.

    The other direction's half of the state is the original one.
    """
    forward, backward = state.traces
    weight, weight_back = readout.weight.chunk(2, dim=1)
    half, half_back = state.states.chunk(2, dim=-1)
    kept = F.linear(half_back, weight_back, readout.bias)
    scores, outputs = _resume(forward, content, kept, weight, readout)
    kept = F.linear(half, weight, readout.bias)
    more_scores, more_outputs = _resume(backward, content, kept, weight_back, readout)
    return scores.add_(more_scores), outputs.add_(more_outputs)


def _resume(
    trace: LstmTrace,
    content: Tensor,
    kept: Tensor,
    weight: Tensor,
    readout: Readout,
) -> tuple[Tensor, Tensor]:
    """Resumes after every token as if it were not there.

    Copies are added at the token's step, from the state before it.

    Args:
        trace: of one direction.
        content: bool [batch, keys].
        kept: what the other direction's states put into the read-out, [batch, keys,
            projection].
        weight: of this direction in the read-out, [projection, size].
        readout: the read-out.

    Returns:
        Scores [batch, deleted, keys] and outputs [batch, deleted, keys, outputs], 0 where
        nothing is resumed.
    """
    is_deleted = gather_positions(content, trace.position).t()
    kept = gather_positions(kept, trace.position)
    kept = kept.transpose(0, 1).contiguous()
    weight = 2 * weight.t().contiguous()  # hidden states are halved

    # One copy per token that can be left out, in the order of steps.
    step, text = is_deleted.nonzero().unbind(1)
    n_copies = is_deleted.sum(1).cumsum(0).tolist()
    hidden, cell = trace.hidden[step, text], trace.cell[step, text]
    n_steps = len(kept)
    scores = kept.new_zeros(len(text), n_steps)
    outputs = kept.new_zeros(len(text), n_steps, readout.n_outputs)
    gates = kept.new_empty(COPIES_PER_STEP, trace.recurrent.shape[1])
    projected = kept.new_empty(COPIES_PER_STEP, weight.shape[1])
    last = int(step[-1]) if len(step) else 0
    for t in range(1, last + 1):
        n_begun = n_copies[t - 1]
        for start in range(0, n_begun, COPIES_PER_STEP):
            end = min(start + COPIES_PER_STEP, n_begun)
            n_rows = end - start
            rows = slice(start, end)
            texts = text[rows]
            opened = torch.index_select(trace.inputs[t], 0, texts, out=gates[:n_rows])
            opened.addmm_(hidden[rows], trace.recurrent)
            advance_step(opened, cell[rows], hidden[rows])
            read = torch.index_select(kept[t], 0, texts, out=projected[:n_rows])
            read.addmm_(hidden[rows], weight)
            scores[rows, t], outputs[rows, t] = readout.finish(read)
    position = trace.position[text, step]
    scores = _at(scores, text, position, trace.step)
    outputs = _at(outputs, text, position, trace.step)
    return scores, outputs


def _at(rows: Tensor, text: Tensor, position: Tensor, step: Tensor) -> Tensor:
    """Copies [copies, steps, ...] to [batch, deleted, keys, ...]."""
    placed = rows.new_zeros(*step.shape, *rows.shape[1:])
    placed[text, position] = gather_positions(rows, step[text])
    return placed


DeletionMethod = Callable[[nn.Module, Readout, ClassifierState, Tensor, Tensor], tuple[Tensor, Tensor]]

DELETION_METHODS: dict[str, DeletionMethod] = {
    "bilstm": _bilstm,
    "cnn": _cnn,
    "mlp": _context_free,
    "none": _context_free,
}
