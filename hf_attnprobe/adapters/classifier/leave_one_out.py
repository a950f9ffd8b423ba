"""Leave-one-out for the attention classifiers without re-encoding what a deletion cannot reach.

Removing token i leaves the forward recurrent states before i and the backward ones after i as they were; a convolution
changes only within its reach of i; a context-free state never. What is left is one attention-weighted sum per deletion.

Every function returns, for each deleted position and each kept one, the attention score [batch, deleted, keys] and the
read-out [batch, deleted, keys, outputs] of the new state. Equal to deleting and re-encoding (Jain & Wallace 2019,
Algorithm 1), which the tests do.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.adapters.classifier.gru import GRUTrace, trace_gru
from hf_attnprobe.adapters.classifier.lstm import Trace, align


ROWS_AT_ONCE = (
    512  # copies per step of a resumed layer: what keeps their gates in a core's cache
)


class Readout(NamedTuple):
    """All that is done to one encoder state: a joint linear map, then the score's own non-linearity.

    weight: [projection + outputs, hidden]. bias: the same rows. score: [..., projection] -> [...].
    """

    weight: Tensor
    bias: Tensor
    score: Callable[[Tensor], Tensor]
    n_outputs: int

    def finish(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [...] and outputs [..., outputs] from weight · h + bias."""
        inner, outputs = projected.split(
            [projected.shape[-1] - self.n_outputs, self.n_outputs], dim=-1
        )
        return self.score(inner), outputs


def readout_of(model) -> Readout:
    """The read-out of an attention classifier; the classifier's bias is left out, it is added once at the end."""
    attention, decode = model.attention_classifier.attention, model.classifier.weight
    if model.config.attention == "additive":
        # tanh x = 2σ(2x) − 1: σ is cheaper, and what it leaves constant the softmax over the scores cancels.
        weight, bias, query = (
            2 * attention.projection.weight,
            2 * attention.projection.bias,
            2 * attention.query.weight[0],
        )
        score = lambda inner: inner.sigmoid() @ query  # noqa: E731
    else:
        weight = torch.zeros_like(decode[:1])
        if model.config.attention == "dot_product":
            weight = attention.query.weight / decode.shape[1] ** 0.5
        bias, score = torch.zeros_like(weight[:, 0]), lambda inner: inner.squeeze(-1)
    bias = torch.cat([bias, torch.zeros_like(decode[:, 0])])
    return Readout(torch.cat([weight, decode]), bias, score, len(decode))


def leave_one_out_logits(
    model, state, attention_mask: Tensor, content: Tensor
) -> Tensor:
    """Raw read-out [batch, deleted, outputs] of the text without each token; without its only token: the bias.

    Args:
        state: embeddings, states and traces of the whole text, see :class:`ClassifierState`; no graph is recorded.
    """
    readout = readout_of(model)
    encoder = model.attention_classifier.encoder
    scores, outputs = PARTS[model.config.encoder](
        encoder, readout, state, attention_mask, content
    )
    kept = content[:, None, :] & ~torch.eye(
        content.shape[1], dtype=torch.bool, device=content.device
    )
    weights = (
        scores.masked_fill(~kept, torch.finfo(scores.dtype).min).softmax(-1) * kept
    )
    return (weights.unsqueeze(-1) * outputs).sum(2) + model.classifier.bias


def _context_free(
    encoder, readout, state, attention_mask, content
) -> tuple[Tensor, Tensor]:
    """No state depends on another token."""
    scores, outputs = readout.finish(
        F.linear(state.states, readout.weight, readout.bias)
    )
    n_keys = content.shape[1]
    return scores[:, None].expand(-1, n_keys, -1), outputs[:, None].expand(
        -1, n_keys, -1, -1
    )


def _cnn(encoder, readout, state, attention_mask, content) -> tuple[Tensor, Tensor]:
    """New states only for the neighbours i + δ of the deleted i; each is a sum of taps K_d x_t computed once."""
    reach = max(c.kernel_size[0] for c in encoder.convolutions) // 2
    embeddings = state.embeddings * attention_mask.unsqueeze(-1)
    taps = [
        torch.einsum("bke,fed->dbkf", embeddings, c.weight)
        for c in encoder.convolutions
    ]
    scores, outputs = (
        x.clone()
        for x in _context_free(encoder, readout, state, attention_mask, content)
    )
    n_keys = content.shape[1]
    for delta in (d for d in range(-reach, reach + 1) if d):
        deleted = torch.arange(
            max(0, -delta), n_keys - max(0, delta), device=content.device
        )
        pieces = [
            _tap_sum(tap, delta, deleted) + convolution.bias
            for tap, convolution in zip(taps, encoder.convolutions, strict=True)
        ]
        new = F.linear(torch.cat(pieces, dim=-1).relu(), readout.weight, readout.bias)
        scores[:, deleted, deleted + delta], outputs[:, deleted, deleted + delta] = (
            readout.finish(new)
        )
    return scores, outputs


def _tap_sum(tap: Tensor, delta: int, deleted: Tensor) -> Tensor:
    """Convolution at i + delta with token i gone, [batch, deleted, filters]; tap [width, batch, keys, filters]."""
    half, n_keys = len(tap) // 2, tap.shape[2]
    total = 0
    for d in range(-half, half + 1):
        source = (
            delta + d
        )  # relative to the deleted token; what lies beyond it moves up by one
        if delta < 0 <= source:
            source += 1
        elif delta > 0 >= source:
            source -= 1
        place = deleted + source
        inside = ((place >= 0) & (place < n_keys))[:, None]
        total = total + tap[d + half][:, place.clamp(0, n_keys - 1)] * inside
    return total


def _bilstm(encoder, readout, state, attention_mask, content) -> tuple[Tensor, Tensor]:
    return _recurrent(state.traces, readout, state.states, content)


def _bigru(encoder, readout, state, attention_mask, content) -> tuple[Tensor, Tensor]:
    states = state.states.detach()
    return _recurrent(
        trace_gru(encoder.gru, state.embeddings, states, attention_mask),
        readout,
        states,
        content,
    )


def _recurrent(traces, readout, states, content) -> tuple[Tensor, Tensor]:
    """Each direction resumes behind the deleted token; the other direction's half of the state is the original one."""
    weights, halves = readout.weight.chunk(2, dim=1), states.chunk(2, dim=-1)
    found = [
        _resume(trace, content, F.linear(half, other, readout.bias), weight, readout)
        for trace, weight, other, half in zip(
            traces, weights, weights[::-1], halves[::-1], strict=True
        )
    ]
    scores, outputs = (
        forward.add_(backward) for forward, backward in zip(*found, strict=True)
    )
    return scores, outputs


def _resume(
    trace: Trace | GRUTrace,
    content: Tensor,
    kept: Tensor,
    weight: Tensor,
    readout: Readout,
) -> tuple[Tensor, Tensor]:
    """Goes on behind every token as if it were not there: copies are added at its step, from the state before it.

    Shape: kept [batch, keys, projection], what the other direction's states put into the read-out; weight [projection,
    size] -> scores [batch, deleted, keys], outputs [batch, deleted, keys, outputs], 0 where nothing is resumed.
    """
    content, kept = (
        align(content, trace.place).t(),
        align(kept, trace.place).transpose(0, 1).contiguous(),
    )
    step, text = content.nonzero().unbind(1)
    n_copies, weight = (
        content.sum(1).cumsum(0).tolist(),
        trace.unit * weight.t().contiguous(),
    )
    hidden, *others = trace.copies(step, text)
    scores = kept.new_zeros(len(text), len(content))
    outputs = kept.new_zeros(len(text), len(content), readout.n_outputs)
    last = int(step[-1]) if len(step) else 0
    gates, projected = (
        kept.new_empty(ROWS_AT_ONCE, n)
        for n in (trace.recurrent.shape[1], weight.shape[1])
    )
    for t in range(1, last + 1):
        for start in range(0, n_copies[t - 1], ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, n_copies[t - 1]))
            g, q = gates[: rows.stop - start], projected[: rows.stop - start]
            trace.go_on(t, text[rows], g, hidden[rows], *(x[rows] for x in others))
            torch.index_select(kept[t], 0, text[rows], out=q).addmm_(
                hidden[rows], weight
            )
            scores[rows, t], outputs[rows, t] = readout.finish(q)
    position = trace.place[text, step]
    return tuple(_at(x, text, position, trace.step) for x in (scores, outputs))


def _at(rows: Tensor, text: Tensor, position: Tensor, step: Tensor) -> Tensor:
    """Copies [copies, steps, ...] to [batch, deleted, keys, ...]."""
    placed = rows.new_zeros(*step.shape, *rows.shape[1:])
    placed[text, position] = align(rows, step[text])
    return placed


PARTS = {
    "bilstm": _bilstm,
    "bigru": _bigru,
    "cnn": _cnn,
    "mlp": _context_free,
    "none": _context_free,
}
