"""Recurrent encoders that resume around a deleted token instead of starting again."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


SUFFIXES = ("l0", "l0_reverse")  # of the weights of the two directions


@dataclass(frozen=True, eq=False)
class Trace:
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
        unit: what the hidden state here is to be multiplied by.
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
    unit: ClassVar[float] = 2.0

    def copies(self, step: Tensor, text: Tensor) -> tuple[Tensor, ...]:
        """Hidden state and cell before steps of texts, each [copies, size]."""
        return self.hidden[step, text], self.cell[step, text]

    def go_on(
        self, t: int, text: Tensor, gates: Tensor, state: list[Tensor]
    ) -> None:
        """Step ``t`` of copies of texts, in place.

        Args:
            t: number of the step.
            text: the text of each copy.
            gates: room to work in, [copies, 4 · size].
            state: hidden state and cell of the copies.
        """
        hidden, cell = state
        torch.index_select(self.inputs[t], 0, text, out=gates)
        gates.addmm_(hidden, self.recurrent)
        advance(gates, cell, hidden)

    def states(self) -> Tensor:
        """This direction's half of the encoder states, [batch, keys, size]."""
        return 2 * align(self.hidden[1:].transpose(0, 1), self.step)


def align(values: Tensor, position: Tensor) -> Tensor:
    """Positions to steps, or back: [batch, keys, ...] at ``position`` [batch, keys]."""
    rows = torch.arange(len(values), device=values.device)[:, None]
    return values[rows, position]


def positions(attention_mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns position and step of both directions, over right-padded texts [batch, keys]."""
    n_keys = attention_mask.shape[1]
    keys = torch.arange(n_keys, device=attention_mask.device)
    padding = n_keys - attention_mask.sum(-1, keepdim=True)
    position = (keys - padding) % n_keys
    step = (keys + padding) % n_keys
    backward = n_keys - 1 - keys
    backward = backward.expand_as(attention_mask)
    return [(position, step), (backward, backward)]


def gate_weights(layer: nn.Module, suffix: str) -> list[Tensor]:
    """Input and recurrent weights, input and recurrent bias of one direction."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [layer.get_parameter(f"{name}_{suffix}") for name in names]


def trace(
    lstm: nn.Module,
    embedding: Tensor,
    input_ids: Tensor,
    attention_mask: Tensor,
) -> list[Trace]:
    """Runs both directions over right-padded texts [batch, keys]."""
    words, index = input_ids.unique(return_inverse=True)
    vectors, traces = embedding[words], []
    directions = positions(attention_mask)
    for suffix, (position, step) in zip(SUFFIXES, directions, strict=True):
        weight, recurrent, bias, more = gate_weights(lstm, suffix)
        scale = torch.ones_like(bias)
        scale.chunk(4)[2].fill_(2)  # of the candidate
        bias = (bias + more) * scale
        recurrent = (2 * recurrent * scale[:, None]).t().contiguous()
        of_words = F.linear(vectors, weight * scale[:, None], bias)
        inputs = of_words[index.gather(1, position).t()]
        alive = attention_mask.gather(1, position).t().bool()
        gates, cell, hidden = _run(inputs, alive, recurrent)
        traces.append(
            Trace(
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


def _run(
    inputs: Tensor, alive: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gates, cell and hidden states of a trace."""
    n_steps, n_batch, width = inputs.shape
    gates = inputs.clone()
    cell, hidden = inputs.new_zeros(2, n_steps + 1, n_batch, width // 4)
    for t, all_alive in enumerate(alive.all(1).tolist()):
        new_cell, new_hidden = cell[t + 1], hidden[t + 1]
        new_cell.copy_(cell[t])
        opened = gates[t].addmm_(hidden[t], recurrent)
        advance(opened, new_cell, new_hidden)
        if not all_alive:
            is_alive = alive[t, :, None]
            new_cell *= is_alive
            new_hidden *= is_alive
    return gates, cell, hidden


def advance(gates: Tensor, cell: Tensor, hidden: Tensor) -> None:
    """One step in place, from gates [rows, 4 · size] before σ to those after it.

    The cell and the hidden state become the next ones.
    """
    into, forget, candidate, out = gates.sigmoid_().split(
        cell.shape[-1], dim=-1
    )
    cell.mul_(forget).addcmul_(into, candidate.sub_(0.5), value=4)
    torch.mul(out, cell.sigmoid().sub_(0.5), out=hidden)


class States(torch.autograd.Function):
    """Encoder states of a traced layer as a function of a factor on each word's vector.

    The factor [batch, keys] is 1.
    """

    @staticmethod
    def forward(ctx: Any, factor: Tensor, *traces: Trace) -> Tensor:
        ctx.traces = traces
        return torch.cat([trace.states() for trace in traces], dim=-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        forward, backward = ctx.traces
        of_forward, of_backward = slope.chunk(2, dim=-1)
        total = _factor_gradient(forward, of_forward)
        return total + _factor_gradient(backward, of_backward), None, None


def _factor_gradient(trace: Trace, slope: Tensor) -> Tensor:
    """Gradient × input [batch, keys] through one direction.

    Args:
        slope: the gradient of its states, [batch, keys, size].
    """
    of_hidden = 2 * align(slope, trace.position).transpose(0, 1)
    of_words = trace.inputs - trace.bias
    products = of_words * _gate_gradient(trace, of_hidden)
    return align(products.sum(-1).t(), trace.step)


def _gate_gradient(trace: Trace, slope: Tensor) -> Tensor:
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


# --- A bidirectional GRU layer that can be resumed anywhere, after it ran ------------------------
# Its states are all that a step needs. A direction's tensors are time-first and every text
# ends at the last step, as in lstm.py.


@dataclass(frozen=True, eq=False)
class GRUTrace:
    """One direction after its run; gates are reset, update, candidate.

    Attributes:
        position: in the text, of each step, [batch, steps].
        step: of each position of the text, [batch, steps].
        inputs: what words and their bias put into the gates, [steps, batch, 3 · size].
        hidden: [steps + 1, batch, size], before the first step 0.
        recurrent: [size, 3 · size].
        bias: [3 · size].
        unit: what the hidden state here is to be multiplied by.
    """

    position: Tensor
    step: Tensor
    inputs: Tensor
    hidden: Tensor
    recurrent: Tensor
    bias: Tensor
    unit: ClassVar[float] = 1.0

    def copies(self, step: Tensor, text: Tensor) -> tuple[Tensor, ...]:
        """Hidden state before the given steps of the given texts, [copies, size]."""
        return (self.hidden[step, text],)

    def go_on(
        self, t: int, text: Tensor, gates: Tensor, state: list[Tensor]
    ) -> None:
        """Step ``t`` of copies of texts, in place; as that of an LSTM's trace."""
        (hidden,) = state
        n_open = 2 * hidden.shape[1]  # reset and update
        given = self.inputs[t].index_select(0, text)
        torch.addmm(self.bias, hidden, self.recurrent, out=gates)
        opened = gates[:, :n_open]
        opened.add_(given[:, :n_open]).sigmoid_()
        reset, update = opened.chunk(2, dim=-1)
        candidate = given[:, n_open:]
        candidate.addcmul_(reset, gates[:, n_open:]).tanh_()
        hidden.sub_(candidate).mul_(update).add_(candidate)


def trace_gru(
    gru: nn.Module, embeddings: Tensor, states: Tensor, attention_mask: Tensor
) -> list[GRUTrace]:
    """Both directions over right-padded texts.

    Args:
        gru: the layer.
        embeddings: word vectors [batch, keys, size].
        states: what the layer made of them, [batch, keys, 2 · size].
        attention_mask: [batch, keys].
    """
    halves = (states * attention_mask.unsqueeze(-1)).chunk(2, dim=-1)
    directions = positions(attention_mask)
    traces = []
    for suffix, half, (position, step) in zip(
        SUFFIXES, halves, directions, strict=True
    ):
        weight, recurrent, bias, bias_hidden = gate_weights(gru, suffix)
        inputs = align(F.linear(embeddings, weight, bias), position).transpose(
            0, 1
        )
        hidden = align(half, position).transpose(0, 1)
        hidden = F.pad(hidden, (0, 0, 0, 0, 1, 0))
        recurrent = recurrent.t()
        traces.append(
            GRUTrace(position, step, inputs, hidden, recurrent, bias_hidden)
        )
    return traces
