"""Leave-one-out for attention classifiers; recomputes only the states that a deletion changes.

Removing token i leaves the forward recurrent states before i and the backward ones after
i as they were; a convolution changes only within its reach of i; a context-free state
never. What is left is one attention-weighted sum per deletion.

Every part returns, for each deleted position and each kept one, the attention score
[batch, deleted, keys] and the read-out [batch, deleted, keys, outputs] of the new state.
Equal to deleting and re-encoding (Jain & Wallace 2019, Algorithm 1), which the tests do.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_attnprobe.adapters.classifier.recurrent import (
    GRUTrace,
    Trace,
    align,
    trace_gru,
)


ROWS_AT_ONCE = 512
"""Copies per step of a resumed layer: what keeps their gates in a core's cache."""


class ClassifierState(NamedTuple):
    """Results of one forward pass that the tests read.

    Attributes:
        factor: ones [batch, keys] on the word vectors; the derivative with respect to
            it is gradient × input.
        embeddings: the word vectors; none where the encoder keeps ``traces`` instead.
        traces: of the encoder's run, for a BiLSTM.
        states, token_logits: with the graph to ``factor``.
    """

    factor: Tensor
    embeddings: Tensor
    traces: Sequence[Trace]
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


def readout_of(kind: str, attention: nn.Module, decode: Tensor) -> Readout:
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
        weight = (
            attention.get_parameter("query.weight") / decode.shape[1] ** 0.5
        )
    n_outputs = len(decode)
    weight = torch.cat([weight, decode])
    bias = F.pad(bias, (0, n_outputs))
    return Readout(weight, bias, query, n_outputs)


def leave_one_out_outputs(
    kind: str,
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> Tensor:
    """Returns the read-out, without bias, of the text without each token; 0 of the only one.

    Args:
        kind: one of ``PARTS``.
        encoder: of that kind.
        readout: of the encoder's states.
        state: of the whole text; no graph is recorded.
        attention_mask, content: [batch, keys].

    Returns:
        [batch, deleted, outputs].
    """
    scores, outputs = PARTS[kind](
        encoder, readout, state, attention_mask, content
    )
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
    return _recurrent(state.traces, readout, state.states, content)


def _bigru(
    encoder: nn.Module,
    readout: Readout,
    state: ClassifierState,
    attention_mask: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    states, gru = state.states.detach(), encoder.get_submodule("gru")
    traces = trace_gru(gru, state.embeddings, states, attention_mask)
    return _recurrent(traces, readout, states, content)


def _recurrent(
    traces: Sequence[Trace | GRUTrace],
    readout: Readout,
    states: Tensor,
    content: Tensor,
) -> tuple[Tensor, Tensor]:
    """For a recurrent encoder: each direction resumes after the deleted token.

    The other direction's half of the state is the original one.
    """
    forward, backward = traces
    weight, weight_back = readout.weight.chunk(2, dim=1)
    half, half_back = states.chunk(2, dim=-1)
    kept = F.linear(half_back, weight_back, readout.bias)
    scores, outputs = _resume(forward, content, kept, weight, readout)
    kept = F.linear(half, weight, readout.bias)
    more_scores, more_outputs = _resume(
        backward, content, kept, weight_back, readout
    )
    return scores.add_(more_scores), outputs.add_(more_outputs)


def _resume(
    trace: Trace | GRUTrace,
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
    is_deleted = align(content, trace.position).t()
    kept = align(kept, trace.position)
    kept = kept.transpose(0, 1).contiguous()
    weight = trace.unit * weight.t().contiguous()

    # One copy per token that can be left out, in the order of steps.
    step, text = is_deleted.nonzero().unbind(1)
    n_copies = is_deleted.sum(1).cumsum(0).tolist()
    state = trace.copies(step, text)
    n_steps = len(kept)
    scores = kept.new_zeros(len(text), n_steps)
    outputs = kept.new_zeros(len(text), n_steps, readout.n_outputs)
    gates = kept.new_empty(ROWS_AT_ONCE, trace.recurrent.shape[1])
    projected = kept.new_empty(ROWS_AT_ONCE, weight.shape[1])
    last = int(step[-1]) if len(step) else 0
    for t in range(1, last + 1):
        n_begun = n_copies[t - 1]
        for start in range(0, n_begun, ROWS_AT_ONCE):
            end = min(start + ROWS_AT_ONCE, n_begun)
            n_rows = end - start
            rows = slice(start, end)
            texts = text[rows]
            copies = [values[rows] for values in state]
            trace.go_on(t, texts, gates[:n_rows], copies)
            read = torch.index_select(kept[t], 0, texts, out=projected[:n_rows])
            read.addmm_(copies[0], weight)
            scores[rows, t], outputs[rows, t] = readout.finish(read)
    position = trace.position[text, step]
    scores = _at(scores, text, position, trace.step)
    outputs = _at(outputs, text, position, trace.step)
    return scores, outputs


def _at(rows: Tensor, text: Tensor, position: Tensor, step: Tensor) -> Tensor:
    """Copies [copies, steps, ...] to [batch, deleted, keys, ...]."""
    placed = rows.new_zeros(*step.shape, *rows.shape[1:])
    placed[text, position] = align(rows, step[text])
    return placed


Part = Callable[
    [nn.Module, Readout, ClassifierState, Tensor, Tensor], tuple[Tensor, Tensor]
]

PARTS: dict[str, Part] = {
    "bilstm": _bilstm,
    "bigru": _bigru,
    "cnn": _cnn,
    "mlp": _context_free,
    "none": _context_free,
}
