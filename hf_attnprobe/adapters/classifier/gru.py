"""A bidirectional GRU layer that can be resumed anywhere, after it ran.

Its states are all that a step needs. A direction's tensors are time-first and every text
ends at the last step, as in lstm.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_attnprobe.adapters.classifier.lstm import (
    SUFFIXES,
    align,
    gate_weights,
    positions,
)


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

    def go_on(self, t: int, text: Tensor, gates: Tensor, state: list[Tensor]) -> None:
        """Step ``t`` of copies of texts, in place; as that of an LSTM's trace."""
        (hidden,) = state
        n_open = 2 * hidden.shape[1]  # reset and update
        given = self.inputs[t].index_select(0, text)
        torch.addmm(self.bias, hidden, self.recurrent, out=gates)
        opened = gates[:, :n_open].add_(given[:, :n_open]).sigmoid_()
        reset, update = opened.chunk(2, dim=-1)
        candidate = given[:, n_open:].addcmul_(reset, gates[:, n_open:]).tanh_()
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
    for suffix, half, (position, step) in zip(SUFFIXES, halves, directions, strict=True):
        weight, recurrent, bias, bias_hidden = gate_weights(gru, suffix)
        inputs = align(F.linear(embeddings, weight, bias), position).transpose(0, 1)
        hidden = align(half, position).transpose(0, 1)
        hidden = F.pad(hidden, (0, 0, 0, 0, 1, 0))
        recurrent = recurrent.t()
        traces.append(GRUTrace(position, step, inputs, hidden, recurrent, bias_hidden))
    return traces
