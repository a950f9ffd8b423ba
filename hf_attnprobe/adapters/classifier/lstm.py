"""A bidirectional LSTM layer that keeps its steps, so that it can be differentiated cheaply and resumed anywhere.

Three savings over ``nn.LSTM`` and autograd, with the same numbers:

- tanh x = 2σ(2x) − 1, and σ is several times cheaper to compute: a step is one σ over all four gates and one over the
  cell. So that no scaling is left to do, candidate weights and the cell are kept doubled, the hidden state is halved.
- gradient × input is the derivative with respect to a factor on a word's vector, and the gates are linear in that
  vector: it is the gates' gradient times what the word put into them. No gradient reaches the vectors themselves.
- the word's share of the gates is computed once per distinct word of a batch.

A direction's tensors are time-first, [steps, batch, ...], and every text *ends* at the last step: copies of a text that
skip one word are then only ever added, never taken away (leave_one_out.py).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


SUFFIXES = ("l0", "l0_reverse")  # of the weights of the two directions


class Trace(NamedTuple):
    """One direction after its run; gates in PyTorch's order: input, forget, candidate, output.

    place: position in the text of each step, and step of each position, [batch, steps]. alive: bool [steps, batch].
    inputs: what words and bias put into the gates; gates: after σ (the candidate less ½), each [steps, batch, 4 · size].
    cell: doubled, hidden: halved, each [steps + 1, batch, size], before the first step 0.
    recurrent: [size, 4 · size]. bias: [4 · size].
    """

    place: Tensor
    step: Tensor
    alive: Tensor
    inputs: Tensor
    gates: Tensor
    cell: Tensor
    hidden: Tensor
    recurrent: Tensor
    bias: Tensor

    unit = 2.0  # what the hidden state here is to be multiplied by

    def copies(self, step: Tensor, text: Tensor) -> tuple[Tensor, ...]:
        """Hidden state and cell before the given steps of the given texts, each [copies, size]."""
        return self.hidden[step, text], self.cell[step, text]

    def go_on(
        self, t: int, text: Tensor, gates: Tensor, hidden: Tensor, cell: Tensor
    ) -> None:
        """Step ``t`` of copies of texts, in place; ``gates`` is room to work in."""
        torch.index_select(self.inputs[t], 0, text, out=gates).addmm_(
            hidden, self.recurrent
        )
        advance(gates, cell, hidden)

    def states(self) -> Tensor:
        """This direction's half of the encoder states, [batch, keys, size]."""
        return 2 * align(self.hidden[1:].transpose(0, 1), self.step)


def align(values: Tensor, place: Tensor) -> Tensor:
    """Positions to steps, or back: [batch, keys, ...] at ``place`` [batch, keys]."""
    return values[torch.arange(len(values), device=values.device)[:, None], place]


def places(
    attention_mask: Tensor,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """``place`` and ``step`` of each direction over right-padded texts [batch, keys]."""
    n_keys = attention_mask.shape[1]
    keys = torch.arange(n_keys, device=attention_mask.device)
    padding = n_keys - attention_mask.sum(-1, keepdim=True)
    backward = (n_keys - 1 - keys).expand_as(attention_mask)
    return ((keys - padding) % n_keys, (keys + padding) % n_keys), (backward, backward)


def trace(
    lstm, embedding: Tensor, input_ids: Tensor, attention_mask: Tensor
) -> tuple[Trace, Trace]:
    """Runs both directions over right-padded texts [batch, keys]."""
    words, index = input_ids.unique(return_inverse=True)
    vectors, traces = embedding[words], []
    for suffix, (place, step) in zip(SUFFIXES, places(attention_mask), strict=True):
        weight, recurrent, bias = _gate_weights(lstm, suffix)
        inputs = F.linear(vectors, weight, bias)[index.gather(1, place).t()]
        alive = attention_mask.gather(1, place).t().bool()
        traces.append(
            Trace(
                place,
                step,
                alive,
                inputs,
                *_run(inputs, alive, recurrent),
                recurrent,
                bias,
            )
        )
    return tuple(traces)


def _gate_weights(lstm, suffix: str) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of one direction in the scaling of this file."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weight, recurrent, bias, more = (
        getattr(lstm, f"{name}_{suffix}") for name in names
    )
    scale = torch.ones_like(bias)
    scale[2 * lstm.hidden_size : 3 * lstm.hidden_size] = 2
    return (
        weight * scale[:, None],
        (2 * recurrent * scale[:, None]).t().contiguous(),
        (bias + more) * scale,
    )


def _run(
    inputs: Tensor, alive: Tensor, recurrent: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gates, cell and hidden of a trace."""
    n_steps, n_batch, width = inputs.shape
    gates = inputs.clone()
    cell, hidden = inputs.new_zeros(2, n_steps + 1, n_batch, width // 4)
    for t, whole in enumerate(alive.all(1).tolist()):
        cell[t + 1] = cell[t]
        advance(gates[t].addmm_(hidden[t], recurrent), cell[t + 1], hidden[t + 1])
        if not whole:
            cell[t + 1] *= alive[t, :, None]
            hidden[t + 1] *= alive[t, :, None]
    return gates, cell, hidden


def advance(gates: Tensor, cell: Tensor, hidden: Tensor) -> None:
    """One step in place: gates [rows, 4 · size] before σ to after it, the cell and the hidden state to the next."""
    into, forget, candidate, out = gates.sigmoid_().split(cell.shape[-1], dim=-1)
    cell.mul_(forget).addcmul_(into, candidate.sub_(0.5), value=4)
    torch.mul(out, cell.sigmoid().sub_(0.5), out=hidden)


class States(torch.autograd.Function):
    """Encoder states of a traced layer as a function of a factor on each word's vector, [batch, keys], which is 1."""

    @staticmethod
    def forward(ctx, factor: Tensor, *traces: Trace) -> Tensor:
        ctx.traces = traces
        return torch.cat([trace.states() for trace in traces], dim=-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope: Tensor):
        halves = slope.chunk(2, dim=-1)
        parts = [
            _factor_gradient(trace, half)
            for trace, half in zip(ctx.traces, halves, strict=True)
        ]
        return parts[0] + parts[1], None, None


def _factor_gradient(trace: Trace, slope: Tensor) -> Tensor:
    """Gradient × input [batch, keys] through one direction, from the gradient of its states [batch, keys, size]."""
    gradient = _gate_gradient(trace, 2 * align(slope, trace.place).transpose(0, 1))
    return align(((trace.inputs - trace.bias) * gradient).sum(-1).t(), trace.step)


def _gate_gradient(trace: Trace, slope: Tensor) -> Tensor:
    """Gradient before σ, [steps, batch, 4 · size], from that of the halved hidden states [steps, batch, size]."""
    size, recurrent = slope.shape[-1], trace.recurrent.t()
    into, forget, candidate, out = trace.gates.split(size, dim=-1)
    squashed = trace.cell[1:].sigmoid().sub_(0.5)
    to_cell = (0.25 - squashed.square()).mul_(out)
    # What each gate's σ does to the cell (the first three) or to the hidden state (the last one).
    gradient = (trace.gates - trace.gates.square()).unflatten(-1, (4, size))
    gradient[:, :, 2] = 0.25 - candidate.square()
    for part, factor in enumerate((4 * candidate, trace.cell[:-1], 4 * into, squashed)):
        gradient[:, :, part] *= factor
    gradient *= trace.alive[..., None, None]
    hidden, cell = torch.zeros_like(slope[0]), torch.zeros_like(slope[0])
    for t in range(len(slope) - 1, -1, -1):
        hidden = slope[t] + hidden
        cell.addcmul_(hidden, to_cell[t])
        gradient[t, :, :3] *= cell.unsqueeze(1)
        gradient[t, :, 3] *= hidden
        cell *= forget[t]
        hidden = gradient[t].flatten(1) @ recurrent
    return gradient.flatten(2)
