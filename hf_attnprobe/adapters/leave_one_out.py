"""Leave-one-out for the attention classifiers without re-encoding what a deletion cannot reach.

Removing token i leaves the forward LSTM states before i and the backward ones after i as they were; a convolution
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
        inner, outputs = projected.split([projected.shape[-1] - self.n_outputs, self.n_outputs], dim=-1)
        return self.score(inner), outputs


def readout_of(model) -> Readout:
    """The read-out of an attention classifier; the classifier's bias is left out, it is added once at the end."""
    attention, decode = model.attention_classifier.attention, model.classifier.weight
    if model.config.attention == "additive":
        weight, bias, query = attention.projection.weight, attention.projection.bias, attention.query.weight[0]
        score = lambda inner: inner.tanh() @ query  # noqa: E731
    else:
        weight = torch.zeros_like(decode[:1])
        if model.config.attention == "dot_product":
            weight = attention.query.weight / decode.shape[1] ** 0.5
        bias, score = torch.zeros_like(weight[:, 0]), lambda inner: inner.squeeze(-1)
    bias = torch.cat([bias, torch.zeros_like(decode[:, 0])])
    return Readout(torch.cat([weight, decode]), bias, score, len(decode))


def leave_one_out_logits(model, embeddings: Tensor, attention_mask: Tensor, content: Tensor, states: Tensor) -> Tensor:
    """Raw read-out [batch, deleted, outputs] of the text without each token; without its only token: the bias."""
    readout = readout_of(model)
    encoder = model.attention_classifier.encoder
    parts = PARTS[model.config.encoder](encoder, readout, embeddings, attention_mask, content, states)
    scores, outputs = parts
    kept = content[:, None, :] & ~torch.eye(content.shape[1], dtype=torch.bool, device=content.device)
    weights = scores.masked_fill(~kept, torch.finfo(scores.dtype).min).softmax(-1) * kept
    return torch.einsum("bik,biko->bio", weights, outputs) + model.classifier.bias


def _context_free(encoder, readout, embeddings, attention_mask, content, states) -> tuple[Tensor, Tensor]:
    """No state depends on another token."""
    scores, outputs = readout.finish(F.linear(states, readout.weight, readout.bias))
    n_keys = states.shape[1]
    return scores[:, None].expand(-1, n_keys, -1), outputs[:, None].expand(-1, n_keys, -1, -1)


def _cnn(encoder, readout, embeddings, attention_mask, content, states) -> tuple[Tensor, Tensor]:
    """New states only for the neighbours i + δ of the deleted i; each is a sum of taps K_d x_t computed once."""
    reach = max(c.kernel_size[0] for c in encoder.convolutions) // 2
    embeddings = embeddings * attention_mask.unsqueeze(-1)
    taps = [torch.einsum("bke,fed->dbkf", embeddings, c.weight) for c in encoder.convolutions]
    scores, outputs = (x.clone() for x in _context_free(encoder, readout, None, None, None, states))
    n_keys = states.shape[1]
    for delta in (d for d in range(-reach, reach + 1) if d):
        deleted = torch.arange(max(0, -delta), n_keys - max(0, delta), device=states.device)
        pieces = [
            _tap_sum(tap, delta, deleted) + convolution.bias
            for tap, convolution in zip(taps, encoder.convolutions, strict=True)
        ]
        new = F.linear(torch.cat(pieces, dim=-1).relu(), readout.weight, readout.bias)
        scores[:, deleted, deleted + delta], outputs[:, deleted, deleted + delta] = readout.finish(new)
    return scores, outputs


def _tap_sum(tap: Tensor, delta: int, deleted: Tensor) -> Tensor:
    """Convolution at i + delta with token i gone, [batch, deleted, filters]; tap [width, batch, keys, filters]."""
    half, n_keys = len(tap) // 2, tap.shape[2]
    total = 0
    for d in range(-half, half + 1):
        source = delta + d  # relative to the deleted token; what lies beyond it moves up by one
        if delta < 0 <= source:
            source += 1
        elif delta > 0 >= source:
            source -= 1
        place = deleted + source
        inside = ((place >= 0) & (place < n_keys))[:, None]
        total = total + tap[d + half][:, place.clamp(0, n_keys - 1)] * inside
    return total


def _bilstm(encoder, readout, embeddings, attention_mask, content, states) -> tuple[Tensor, Tensor]:
    """Each direction resumes from the deleted token; the other direction's half of the state is the original one."""
    lstm, size = encoder.lstm, encoder.lstm.hidden_size
    halves = readout.weight[:, :size], readout.weight[:, size:]
    kept = [
        F.linear(states[..., part], half) for part, half in zip((slice(size), slice(size, None)), halves, strict=True)
    ]
    found = []
    for suffix, half, other in (("l0", halves[0], kept[1]), ("l0_reverse", halves[1], kept[0])):
        flip = (lambda x: x.flip(1)) if suffix.endswith("reverse") else (lambda x: x)
        weights = [getattr(lstm, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        sequence = [flip(x).transpose(0, 1) for x in (embeddings, attention_mask, content, other + readout.bias)]
        scores, outputs = _resume(*sequence, weights, half, readout)
        flip_both = (lambda x: x.flip(0, 1)) if suffix.endswith("reverse") else (lambda x: x)
        found.append((flip_both(scores).permute(2, 0, 1), flip_both(outputs).permute(2, 0, 1, 3)))
    return found[0][0] + found[1][0], found[0][1] + found[1][1]


def _resume(embeddings, alive, content, other, weights, projection, readout) -> tuple[Tensor, Tensor]:
    """One direction over time-first tensors: copy i skips token i, so it starts from the state before it.

    Returns scores [deleted, keys, batch] and outputs [deleted, keys, batch, outputs], zero for keys before the deleted.
    """
    (w_in, w_hidden, b_in, b_hidden), (n_keys, n_batch) = weights, alive.shape
    size = w_hidden.shape[1]
    order = torch.arange(4 * size, device=alive.device).view(4, size)[[0, 1, 3, 2]].flatten()  # i, f, o, then g
    inputs = F.linear(embeddings, w_in[order], (b_in + b_hidden)[order])
    recurrent = w_hidden[order].t().contiguous()
    places = content.any(1).nonzero()[:, 0]
    first, last = (int(places[0]), int(places[-1])) if len(places) else (0, -1)
    hidden, cell = inputs.new_zeros(2, last - first + 3, n_batch, size)  # row 0: nothing deleted; row 1 + k: first + k
    scores = inputs.new_zeros(n_keys, n_keys, n_batch)
    outputs = inputs.new_zeros(n_keys, n_keys, n_batch, readout.n_outputs)
    for t in range(last + 1):
        n_rows = 1 + max(0, t - first)
        if t >= first:
            hidden[n_rows], cell[n_rows] = hidden[0], cell[0]
        _lstm_step(hidden[:n_rows], cell[:n_rows], inputs[t], recurrent)
        hidden[:n_rows] *= alive[t, :, None]
        cell[:n_rows] *= alive[t, :, None]
        new = readout.finish(hidden[1:n_rows] @ projection.t() + other[t])
        scores[first : first + n_rows - 1, t], outputs[first : first + n_rows - 1, t] = new
    return scores, outputs


def _lstm_step(hidden: Tensor, cell: Tensor, inputs: Tensor, recurrent: Tensor) -> None:
    """One LSTM step in place; rows [copies, batch, size], gates ordered input, forget, output, candidate."""
    size = hidden.shape[-1]
    gates = torch.matmul(hidden.flatten(0, 1), recurrent).view(*hidden.shape[:2], -1).add_(inputs)
    into, forget, out = gates[..., : 3 * size].sigmoid_().split(size, dim=-1)
    cell.mul_(forget).add_(gates[..., 3 * size :].tanh_().mul_(into))
    torch.mul(out, cell.tanh(), out=hidden)


PARTS = {"bilstm": _bilstm, "cnn": _cnn, "mlp": _context_free, "none": _context_free}
