"""Attention on one or two tokens, where the output is no linear function of it.

For a linear read-out of two classes the farthest attention within ε lies on an edge, with
all weight on two tokens (functional/linear.py). Elsewhere edges are where to look first:
along one the JSD is convex, so within each stretch where the output stays within ε the
farthest attention is at an end of the stretch. The ends are found on a grid and made
precise by bisection. What is found is feasible, and a lower bound.

Common arguments:
    attention: the model's [batch, keys].
    visible: bool [batch, keys], the tokens that may receive weight.
    replay: attention [copies, batch, keys] -> probabilities [copies, batch, classes].
    probs: the model's output [batch, classes].
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, tvd


Replay = Callable[[Tensor], Tensor]

MOST_TOKENS = 32  # edges between these, the least attended: 496 of them
GRID = 16  # cells on each edge
CELLS_REFINED = 64  # of each text, those that reach farthest
N_BISECTIONS = 30
NUMBERS_AT_ONCE = 1 << 22  # of candidate attention


class _Points(NamedTuple):
    """Attention on two tokens, each [copies, batch].

    Attributes:
        first, second: positions of the tokens.
        weight: of the first one, in [0, 1].
    """

    first: Tensor
    second: Tensor
    weight: Tensor

    def dense(self, n_keys: int) -> Tensor:
        """[copies, batch, keys]."""
        rows = self.weight.new_zeros(*self.weight.shape, n_keys)
        rows = rows.scatter_add(
            -1, self.first[..., None], self.weight[..., None]
        )
        rest = 1 - self.weight
        return rows.scatter_add(-1, self.second[..., None], rest[..., None])


class _Outcome(NamedTuple):
    """The model's outputs for candidates, each [copies, batch].

    Attributes:
        divergence: JSD to the model's attention.
        change: total variation distance to its output.
    """

    divergence: Tensor
    change: Tensor

    def only(self, valid: Tensor) -> "_Outcome":
        """Without those that are no candidates: these change everything."""
        return self._replace(change=self.change.masked_fill(~valid, torch.inf))


def farthest_on_edges(
    attention: Tensor,
    visible: Tensor,
    replay: Replay,
    probs: Tensor,
    epsilons: Sequence[float],
) -> Tensor:
    """The farthest attention on one or two tokens that moves the output by at most ε.

    Of single tokens all are tried, of pairs those among the :data:`MOST_TOKENS` least
    attended. Where none is within ε it is the model's own attention.

    Args:
        epsilons: each at least 0.

    Returns:
        [epsilons, batch, keys]. Rounding may put it past ε: check it.
    """
    n_keys = attention.shape[1]

    def ask(points: _Points) -> _Outcome:
        n_at_once = max(1, NUMBERS_AT_ONCE // attention.numel())
        parts = []
        for rows in torch.arange(len(points.weight)).split(n_at_once):
            some = _Points(*(part[rows] for part in points))
            dense = some.dense(n_keys)
            parts.append(_outcome(dense, attention, replay, probs))
        return _Outcome(*map(torch.cat, zip(*parts, strict=True)))

    vertices = _vertices(attention)
    outcome = ask(vertices).only(visible.t())
    edges, is_edge = _edges(attention, visible)
    points = _Points(*(part.flatten(0, 1) for part in edges))
    flat = ask(points).only(is_edge.repeat(GRID + 1, 1))
    on_grid = _Outcome(
        *(part.unflatten(0, edges.weight.shape[:2]) for part in flat)
    )
    found = []
    for epsilon in epsilons:
        best = _best(attention, vertices, outcome, epsilon)
        best = _farther(
            best, _best(attention, points, flat, epsilon), attention
        )
        if len(points.weight):
            ends, is_end = _ends(edges, on_grid, ask, epsilon)
            refined = _best(attention, ends, ask(ends).only(is_end), epsilon)
            best = _farther(best, refined, attention)
        found.append(best)
    return torch.stack(found)


def pulled_back(
    candidates: Tensor,
    attention: Tensor,
    replay: Replay,
    probs: Tensor,
    epsilon: float,
) -> Tensor:
    """Returns the farthest points within ε on the lines from the model's attention to candidates.

    A candidate within ε stays as it is. The way may leave ε and come back; then it is the
    point where bisection ends.

    Shape: candidates [copies, batch, keys], and the result.
    """
    near = torch.zeros_like(candidates[..., :1])
    far = torch.ones_like(near)
    at_end = _outcome(candidates, attention, replay, probs)
    whole = at_end.change <= epsilon
    near = near.masked_fill(whole[..., None], 1)
    for _ in range(N_BISECTIONS):
        middle = (near + far) / 2
        moved = attention + middle * (candidates - attention)
        outcome = _outcome(moved, attention, replay, probs)
        inside = (outcome.change <= epsilon)[..., None]
        near = torch.where(inside, middle, near)
        far = torch.where(inside, far, middle)
    return attention + near * (candidates - attention)


@torch.no_grad()
def _outcome(
    candidates: Tensor, attention: Tensor, replay: Replay, probs: Tensor
) -> _Outcome:
    after = replay(candidates)
    return _Outcome(jsd(candidates, attention), tvd(after, probs))


def _vertices(attention: Tensor) -> _Points:
    """All weight on each position in turn, [keys, batch]."""
    n_batch, n_keys = attention.shape
    place = torch.arange(n_keys, device=attention.device)[:, None].expand(
        -1, n_batch
    )
    return _Points(place, place, torch.ones_like(attention).t())


def _edges(attention: Tensor, visible: Tensor) -> tuple[_Points, Tensor]:
    """Returns grid points between tokens, [points, pairs, batch], and which pairs a text has."""
    device = attention.device
    counts = visible.sum(-1)
    n_tokens = 0
    if len(counts):
        n_tokens = min(MOST_TOKENS, int(counts.max()))
    # The tokens with the least weight first.
    order = attention.masked_fill(~visible, torch.inf)
    order = order.argsort(dim=-1, stable=True)

    pairs = list(itertools.combinations(range(n_tokens), 2))
    places = torch.tensor(pairs, dtype=torch.long, device=device)
    places = places.view(-1, 2)
    first, second = order.t()[places].unbind(1)  # [pairs, batch]
    has_pair = places[:, 1:] < counts

    grid = torch.linspace(0, 1, GRID + 1, device=device).to(attention)
    weight = grid[:, None, None].expand(-1, *first.shape)
    first = first.expand_as(weight)
    second = second.expand_as(weight)
    return _Points(first, second, weight), has_pair


def _best(
    attention: Tensor, points: _Points, outcome: _Outcome, epsilon: float
) -> Tensor:
    """Returns the farthest of some points within ε, [batch, keys]; the own attention if none."""
    if not len(points.weight):
        return attention
    reach = outcome.divergence.masked_fill(outcome.change > epsilon, -1)
    value, index = reach.max(0)
    chosen = _Points(*(part.gather(0, index[None]) for part in points))
    dense = chosen.dense(attention.shape[1])[0]
    is_within = (value >= 0)[:, None]
    return torch.where(is_within, dense, attention)


def _farther(one: Tensor, other: Tensor, attention: Tensor) -> Tensor:
    is_farther = jsd(other, attention) > jsd(one, attention)
    return torch.where(is_farther[:, None], other, one)


def _ends(
    edges: _Points,
    on_grid: _Outcome,
    ask: Callable[[_Points], _Outcome],
    epsilon: float,
) -> tuple[_Points, Tensor]:
    """Returns the ends of the stretches within ε between grid points.

    Looked for from grid points within ε beside one that is not, and from where the output
    moves least between grid points that are all past ε.

    Returns:
        The points, and which of them were looked for, bool [points, batch].
    """
    change = on_grid.change
    below, above = _beside(change, torch.inf)
    is_inside = change <= epsilon
    at_border = is_inside & ((below > epsilon) | (above > epsilon))
    is_lowest = (change <= below) & (change <= above)
    promises = (at_border | (~is_inside & is_lowest)) & change.isfinite()
    neighbours = [*_beside(on_grid.divergence, 0.0), on_grid.divergence]
    reach = (
        torch.stack(neighbours).amax(0).masked_fill(~promises, -1).flatten(0, 1)
    )
    reach, chosen = reach.topk(min(CELLS_REFINED, len(reach)), dim=0)

    def at(values: Tensor) -> Tensor:
        return values.flatten(0, 1).gather(0, chosen)

    first, second, weight = (at(part) for part in edges)

    def change_at(weight: Tensor) -> Tensor:
        return ask(_Points(first, second, weight)).change

    low = (weight - 1 / GRID).clamp_min(0)
    high = (weight + 1 / GRID).clamp_max(1)
    left, right = low, high
    for _ in range(N_BISECTIONS):  # thirds: there is one lowest point
        third = (right - left) / 3
        falls = change_at(left + third) > change_at(right - third)
        left = torch.where(falls, left + third, left)
        right = torch.where(falls, right, right - third)
    start = torch.where(at(is_inside), weight, (left + right) / 2)
    ends = []
    for end in (low, high):
        near, far = start, end
        for _ in range(N_BISECTIONS):
            middle = (near + far) / 2
            within = change_at(middle) <= epsilon
            near = torch.where(within, middle, near)
            far = torch.where(within, far, middle)
        ends.append(near)
    points = _Points(first.repeat(2, 1), second.repeat(2, 1), torch.cat(ends))
    return points, (reach >= 0).repeat(2, 1)


def _beside(values: Tensor, border: float) -> tuple[Tensor, Tensor]:
    """Values of the grid points below and above, ``border`` beyond the ends."""
    edge = torch.full_like(values[:1], border)
    return torch.cat([edge, values[:-1]]), torch.cat([values[1:], edge])
