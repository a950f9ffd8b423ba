"""A bidirectional GRU layer that can be resumed anywhere, after it ran: its states are all that a step needs.

A direction's tensors are time-first and every text ends at the last step, as in lstm.py.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.adapters.classifier.lstm import SUFFIXES, align, places


class GRUTrace(NamedTuple):
    """One direction after its run; gates in PyTorch's order: reset, update, candidate.

    place: position in the text of each step, and step of each position, [batch, steps].
    inputs: what words and their bias put into the gates, [steps, batch, 3 · size].
    hidden: [steps + 1, batch, size], before the first step 0. recurrent: [size, 3 · size]. bias: [3 · size].
    """

    place: Tensor
    step: Tensor
    inputs: Tensor
    hidden: Tensor
    recurrent: Tensor
    bias: Tensor

    unit = 1.0  # what the hidden state here is to be multiplied by

    def copies(self, step: Tensor, text: Tensor) -> tuple[Tensor, ...]:
        """Hidden state before the given steps of the given texts, [copies, size]."""
        return (self.hidden[step, text],)

    def go_on(self, t: int, text: Tensor, gates: Tensor, hidden: Tensor) -> None:
        """Step ``t`` of copies of texts, in place; ``gates`` is room to work in."""
        size = hidden.shape[1]
        given = self.inputs[t].index_select(0, text)
        torch.addmm(self.bias, hidden, self.recurrent, out=gates)
        reset, update = (
            gates[:, : 2 * size].add_(given[:, : 2 * size]).sigmoid_().chunk(2, dim=-1)
        )
        candidate = given[:, 2 * size :].addcmul_(reset, gates[:, 2 * size :]).tanh_()
        hidden.sub_(candidate).mul_(update).add_(candidate)


def trace_gru(
    gru, embeddings: Tensor, states: Tensor, attention_mask: Tensor
) -> tuple[GRUTrace, GRUTrace]:
    """Both directions over right-padded texts, from word vectors [batch, keys, size] and states [batch, keys, 2 · size]."""
    traces = []
    for suffix, half, (place, step) in zip(
        SUFFIXES, states.chunk(2, dim=-1), places(attention_mask), strict=True
    ):
        weight, recurrent, bias, bias_hidden = (
            getattr(gru, f"{name}_{suffix}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        inputs = align(F.linear(embeddings, weight, bias), place).transpose(0, 1)
        hidden = align(half * attention_mask.unsqueeze(-1), place).transpose(0, 1)
        hidden = F.pad(hidden, (0, 0, 0, 0, 1, 0))
        traces.append(GRUTrace(place, step, inputs, hidden, recurrent.t(), bias_hidden))
    return tuple(traces)
