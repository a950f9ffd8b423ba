"""Exact answers and bounds where the read-out is linear: logit = Σ_t a_t u_t, u_t = w·h_t + b.

Questions that the papers sample or call infeasible.

Common arguments:
    attention: [batch, keys].
    scores: the u_t of a binary model, the difference of the two logits, [batch, keys].
    mask: bool [batch, keys].

All arithmetic is in float64. What is said to hold every attention within ε is widened by
the rounding, :data:`ROUNDING`: equal scores, saturated outputs and ε = 0 are decided by
the last digit otherwise.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd, vertex_jsd
from hf_attnprobe.functional.search import bisected


CANDIDATES_AT_ONCE = 1 << 16  # what stays in a core's cache
# Of a logit, relative to the largest score: a sum over a thousand tokens stays below.
ROUNDING = 2.0**-44
PROBABILITY_ROUNDING = 2.0**-50  # of a total variation distance, at most 1


class FarthestAttention(NamedTuple):
    """The attention farthest from a given one within each ε.

    Attributes:
        jsd: float64 [epsilons, batch], in nats.
        attention: float64 [epsilons, batch, keys], an attention that has this JSD.
    """

    jsd: Tensor
    attention: Tensor


def permutation_extremes(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest logit over all T! permutations of a text's weights.

    By the rearrangement inequality: sort both the same way for the largest, opposite
    ways for the smallest.

    Returns:
        Smallest and largest Σ_t a_π(t) u_t, each float64 [batch].
    """
    weights = _sorted(attention, mask)
    smallest = -(weights * _sorted(-scores, mask)).sum(-1)
    return smallest, (weights * _sorted(scores, mask)).sum(-1)


def permutation_moments(attention: Tensor, scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the logit over uniformly random permutations.

    The mean is T·ā·ū, the variance Σ(a − ā)² Σ(u − ū)² / (T − 1) (Hoeffding 1951).

    Returns:
        Mean and variance of Σ_t a_π(t) u_t, each float64 [batch]; the variance of a
        single token is 0.
    """
    n = mask.sum(-1).clamp_min(1).to(torch.float64)
    a_mean, a_squares = _mean_and_squares(attention, mask, n)
    u_mean, u_squares = _mean_and_squares(scores, mask, n)
    return n * a_mean * u_mean, a_squares * u_squares / (n - 1).clamp_min(1)


def epsilon_max_jsd(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """The attention with the largest JSD that moves the probability by at most ε; exact.

    |σ(Σ a'_t u_t) − p| ≤ ε cuts the simplex by two parallel planes. JSD is convex in
    a', so its maximum lies at a vertex, and a vertex has at most two non-zero
    weights: O(T²) candidates, no optimiser. Jain & Wallace 2019 (Section 4.2.2)
    search the same set.

    Args:
        epsilons: bounds on the change of the probability, in (0, 1].
    """
    chunk = max(1, CANDIDATES_AT_ONCE // max(1, mask.shape[-1] ** 2))
    return FarthestAttention(*_in_chunks(_farthest, chunk, attention, scores, mask, epsilons))


Answers = Callable[[Tensor, Tensor, Tensor, Sequence[float]], Iterable[Tensor]]
"""Attention, scores or logits, mask, ε -> tensors [epsilons, batch, ...]."""


def _in_chunks(
    function: Answers,
    n_at_once: int,
    attention: Tensor,
    scores: Tensor,
    mask: Tensor,
    epsilons: Sequence[float],
) -> Iterator[Tensor]:
    """Answers of so many texts at once in float64, each [epsilons, batch, ...]."""
    chunks = zip(
        attention.double().split(n_at_once),
        scores.double().split(n_at_once),
        mask.split(n_at_once),
        strict=True,
    )
    parts = [function(*tensors, epsilons) for tensors in chunks]
    for part in zip(*parts, strict=True):
        yield torch.cat(part, dim=1)


class Edges(NamedTuple):
    """All pairs of tokens i < j; i, j [pairs], all others [batch, pairs].

    ``entropy`` is a_i ln a_i + a_j ln a_j, ``gap`` is u_j − u_i.
    """

    i: Tensor
    j: Tensor
    is_real: Tensor
    score_i: Tensor
    gap: Tensor
    a_i: Tensor
    a_j: Tensor
    entropy: Tensor

    @property
    def numbers(self) -> Tensor:
        """[1, pairs]."""
        return torch.arange(len(self.i), device=self.i.device)[None]


def edges_of(attention: Tensor, scores: Tensor, mask: Tensor) -> Edges:
    """The edges of the simplex: attentions to two tokens; arguments as above."""
    n_keys = mask.shape[-1]
    i, j = torch.triu_indices(n_keys, n_keys, offset=1, device=mask.device)
    score_i = scores.index_select(1, i)
    gap = scores.index_select(1, j) - score_i
    a_i = attention.index_select(1, i)
    a_j = attention.index_select(1, j)
    return Edges(
        i=i,
        j=j,
        is_real=mask[:, i] & mask[:, j],
        score_i=score_i,
        gap=gap.masked_fill(gap == 0, torch.finfo(gap.dtype).tiny),
        a_i=a_i,
        a_j=a_j,
        entropy=_x_log_x(a_i) + _x_log_x(a_j),
    )


def _farthest(
    attention: Tensor, scores: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> FarthestAttention:
    """:func:`epsilon_max_jsd` for a chunk of the batch."""
    if mask.shape[-1] < 2:
        jsd = attention.new_zeros(len(epsilons), len(attention))
        return FarthestAttention(jsd, attention.repeat(len(epsilons), 1, 1))
    logit = (attention * scores).sum(-1, keepdim=True)
    # Both probabilities: next to 1, 1 − p has lost what the other still holds.
    prob, rest = logit.sigmoid(), (-logit).sigmoid()
    size = scores.masked_fill(~mask, 0).abs().amax(-1, keepdim=True)
    edges = edges_of(attention, scores, mask)
    jsds, attentions = [], []
    for epsilon in epsilons:
        low, high = log_odds_within(prob, rest, size, epsilon)
        jsd, farthest = farthest_between(attention, edges, low, high)
        jsds.append(jsd)
        attentions.append(farthest)
    return FarthestAttention(torch.stack(jsds), torch.stack(attentions))


def log_odds_within(
    prob: Tensor, other: Tensor, size: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The range of ln p/q where both probabilities move by at most ε.

    Rounded outward, so that no attention is left out that is within ε in float64.

    Args:
        prob, other: the two probabilities; of two classes they add up to 1.
        size: the largest logit of any token, without its sign.

    Returns:
        Lowest and highest log odds; infinite where a probability can become 0.
    """
    moved = epsilon + PROBABILITY_ROUNDING
    low = (prob - moved).clamp_min(0).log() - (other + moved).log()
    high = (prob + moved).log() - (other - moved).clamp_min(0).log()
    low = low - ROUNDING * (size + low.abs())
    high = high + ROUNDING * (size + high.abs())
    return low, high


def farthest_between(
    attention: Tensor, edges: Edges, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the farthest attention with low ≤ Σ a'_t u_t ≤ high (each [batch, 1]).

    On the edge between two tokens the feasible weights are an interval; convexity puts
    the maximum at one of its ends.

    Returns:
        Its JSD [batch], and itself [batch, keys].
    """
    ends = interval_ends(edges, low, high)
    is_feasible = edges.is_real & (ends.amin(0) <= 1)
    is_feasible &= ends.amax(0) >= 0
    ends = ends.clamp_(0, 1)
    jsd = two_point_jsd(edges, ends).masked_fill_(~is_feasible, -1)
    jsd = jsd.transpose(0, 1).flatten(1)  # [batch, ends · pairs]
    best, end = jsd.max(-1)
    weight = ends.transpose(0, 1).flatten(1)
    weight = weight.gather(1, end[:, None])

    pair = end % len(edges.i)
    i = edges.i[pair][:, None]
    j = edges.j[pair][:, None]
    vertex = torch.zeros_like(attention)
    vertex = vertex.scatter(1, j, weight)
    vertex = vertex.scatter(1, i, 1 - weight)
    # A text of one token has no edge: its attention cannot move.
    vertex = torch.where(best[:, None] >= 0, vertex, attention)
    return best.clamp_min(0), vertex


def interval_ends(edges: Edges, low: Tensor, high: Tensor) -> Tensor:
    """Weight on j at which the logit is low and at which it is high, [2, batch, pairs].

    Between both lie the weights with low ≤ Σ a'_t u_t ≤ high (each [batch, 1]); none
    where they lie on one side of [0, 1].
    """
    return torch.stack([low - edges.score_i, high - edges.score_i]).div_(edges.gap)


def two_point_jsd(edges: Edges, weight: Tensor) -> Tensor:
    """Returns the JSD of attention to (1 − weight) on i and weight on j, [2, batch, pairs].

    Every other token t contributes a_t ln 2.
    """
    rest = 1 - weight
    total = _x_log_x(weight)
    total += _x_log_x(rest)
    total += edges.entropy
    total -= _x_log_x(rest.add_(edges.a_i))
    total -= _x_log_x(edges.a_j + weight)
    return total.div_(2).add_(math.log(2))


def _x_log_x(x: Tensor) -> Tensor:
    return x.clamp_min(torch.finfo(x.dtype).tiny).log_().mul_(x)


def _sorted(values: Tensor, mask: Tensor) -> Tensor:
    """Ascending over the mask, then zeros."""
    ranked = values.double().masked_fill(~mask, torch.inf).sort(-1).values
    return ranked.masked_fill(torch.isinf(ranked), 0)


def _mean_and_squares(values: Tensor, mask: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sum of squared deviations over the mask, each [batch]."""
    values = values.double() * mask
    mean = values.sum(-1) / n
    deviations = (values - mean[:, None]) * mask
    return mean, deviations.square().sum(-1)


# --- Bounds for any number of classes: logits = Σ_t a_t u_t ------------------
# With two classes the outputs within ε are a slab between two parallel planes, and its
# vertices give the exact answer, as above. With more they are a set of
# another shape, so the answer is held between two numbers.
#
# Upper bound: where the output moves by at most ε in total variation, every probability
# does. So for a pair of classes i, j
#
#     ln (p_i − ε)₊ − ln (p_j + ε)  ≤  Σ_t a'_t (u_ti − u_tj)  ≤  ln (p_i + ε) − ln (p_j − ε)₊
#
# which is a slab that holds all of the set: its exact answer is no smaller. The smallest
# over the pairs counts.
#
# A slab is rounded outward: the upper bound also holds for what is within ε in float64.
#
# Lower bound: the farthest of attentions that are checked, in float64. First those to two tokens: on
# such an edge of the simplex the slabs of all pairs leave an interval, and JSD is convex
# in it, so the outermost feasible weights are the best ones. Then those of a linear program,
# see :func:`farthest_by_program`.


NUMBERS_AT_ONCE = 1 << 19
# Of classes, the most probable first: all pairs of 8 classes. Any of them give bounds.
MAX_PAIRS = 28
GRID = 9  # weights that are tried on each edge
REFINED = 32  # ends of edges whose feasible weights are found by bisection
N_BISECTIONS = 40
INNER = 1 - 1e-9  # of ε: what is found up to there is within ε however it is rounded
TOLERANCE = 1e-6  # of log-odds, more than what the solver of programs allows


class JsdBounds(NamedTuple):
    """A lower and an upper bound of the ε-max JSD.

    Attributes:
        lower: float64 [epsilons, batch], in nats, what ``attention`` has.
        upper: float64 [epsilons, batch], no attention within ε is farther, but for the
            rounding of a JSD (1e-15).
        attention: float64 [epsilons, batch, keys], its output is within ε.
    """

    lower: Tensor
    upper: Tensor
    attention: Tensor


def epsilon_max_jsd_bounds(
    attention: Tensor, logits: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> JsdBounds:
    """A lower and an upper bound of :func:`epsilon_max_jsd` for several classes.

    With two classes and ε above 0 both are the exact answer, to 1e-7. At ε = 0 the last
    digit decides which candidates are within: the lower bound may be far too low.

    Args:
        attention: [batch, keys].
        logits: the u_t, what each token alone would give, [batch, keys, classes].
        mask: bool [batch, keys].
        epsilons: bounds on the total variation distance of the output, in [0, 1].
    """
    n_keys, n_classes = logits.shape[1:]
    chunk = max(1, NUMBERS_AT_ONCE // max(1, n_keys**2 // 2 * n_classes))
    return JsdBounds(*_in_chunks(_bounds, chunk, attention, logits, mask, epsilons))


def _bounds(
    attention: Tensor, logits: Tensor, mask: Tensor, epsilons: Sequence[float]
) -> JsdBounds:
    """:func:`epsilon_max_jsd_bounds` for one chunk of the batch."""
    if mask.shape[-1] < 2:
        zero = attention.new_zeros(len(epsilons), len(attention))
        return JsdBounds(zero, zero, attention.repeat(len(epsilons), 1, 1))
    probs = _output(attention, logits)
    # The most probable class first; the order of classes means nothing here.
    probs, order = probs.sort(-1, descending=True)
    logits = logits.gather(-1, order[:, None].expand_as(logits))

    found = []
    for epsilon in epsilons:
        upper, pairs = _of_slabs(attention, logits, mask, probs, epsilon)
        edges = _on_edges(attention, logits, pairs, probs, epsilon)
        planned = farthest_by_program(attention, logits, mask, epsilon)
        candidates = torch.cat([torch.stack([attention, planned]), edges])
        farthest, lower = _farthest_candidate(candidates, attention, logits, probs, epsilon)
        found.append((lower, upper, farthest))
    return JsdBounds(*map(torch.stack, zip(*found, strict=True)))


def _output(attention: Tensor, logits: Tensor) -> Tensor:
    """Probabilities, [..., batch, keys] -> [..., batch, classes]."""
    return torch.einsum("...bk,bkn->...bn", attention, logits).softmax(-1)


def _farthest_candidate(
    candidates: Tensor,
    attention: Tensor,
    logits: Tensor,
    probs: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """The farthest candidate within ε and its JSD; the first is the attention itself."""
    outputs = _output(candidates, logits)
    change = tvd(outputs, probs).clamp(max=1)  # rounding
    change[0] = 0
    divergence = jsd(candidates, attention)
    within = divergence.masked_fill(change > epsilon, -1)
    best, index = within.max(0)
    text = torch.arange(len(attention), device=attention.device)
    return candidates[index, text], best.clamp_min(0)


def slabs(probs: Tensor, size: Tensor, epsilon: float) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """Yields classes i, j and the range of their log odds within ε, each [batch, 1]."""
    n_classes = probs.shape[-1]
    pairs = itertools.combinations(range(n_classes), 2)
    most_probable = sorted(pairs, key=sum)[:MAX_PAIRS]
    for i, j in most_probable:
        low, high = log_odds_within(probs[:, [i]], probs[:, [j]], size, epsilon)
        yield i, j, low, high


class Pairs(NamedTuple):
    """Pairs of tokens, and between what the weight on the second must lie.

    ``low`` and ``high`` are [batch, pairs], in [0, 1], and only where ``is_open``.
    """

    edges: Edges
    low: Tensor
    high: Tensor
    is_open: Tensor


def _of_slabs(
    attention: Tensor,
    logits: Tensor,
    mask: Tensor,
    probs: Tensor,
    epsilon: float,
) -> tuple[Tensor, Pairs]:
    """Returns the least upper bound over all slabs [batch], and the part of edges inside them."""
    upper = largest_jsd(attention, mask)
    n_keys = mask.shape[-1]
    n_pairs = n_keys * (n_keys - 1) // 2
    lowest = attention.new_zeros(len(attention), n_pairs)
    highest = torch.ones_like(lowest)
    # No difference of two logits is larger.
    size = logits.masked_fill(~mask[..., None], 0).abs()
    size = 2 * size.amax(2).amax(1)[:, None]

    for i, j, low, high in slabs(probs, size, epsilon):
        difference = logits[..., i] - logits[..., j]
        edges = edges_of(attention, difference, mask)
        farthest, _ = farthest_between(attention, edges, low, high)
        upper = torch.minimum(upper, farthest)
        ends = interval_ends(edges, low, high)
        lowest = torch.maximum(lowest, ends.amin(0))
        highest = torch.minimum(highest, ends.amax(0))

    is_open = edges.is_real & (lowest <= highest)
    lowest = lowest.clamp(0, 1)
    highest = highest.clamp(0, 1)
    return upper, Pairs(edges, lowest, highest, is_open)


def _on_edges(
    attention: Tensor,
    logits: Tensor,
    pairs: Pairs,
    probs: Tensor,
    epsilon: float,
) -> Tensor:
    """Returns the best attentions to two tokens, [refined, batch, keys]."""
    edges = pairs.edges
    text = torch.arange(len(logits), device=logits.device)[:, None]
    # Outputs that share no class are at 1, a little less or more; all of them are within.
    limit = INNER * epsilon if epsilon < 1 else math.inf

    def along(pair: Tensor) -> Callable[[Tensor], Tensor]:
        from_i = logits[text, edges.i[pair]]
        to_j = logits[text, edges.j[pair]]

        def change(weight: Tensor) -> Tensor:
            output = torch.lerp(from_i, to_j, weight[..., None]).softmax(-1)
            return tvd(output, probs[:, None])

        return change

    ends = ends_on_edges(pairs, along, limit, GRID)
    first, second = edges.i[ends.pair], edges.j[ends.pair]
    return ends.attention(attention, first, second)


Along = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""Edges by number, [batch, some] -> from weights on their second tokens, of this shape, to
how far they move the output."""


class Ends(NamedTuple):
    """Ends of edges within ε, each [batch, ends].

    Attributes:
        pair: number of the edge.
        weight: on its second token.
        is_found: whether there is one.
    """

    pair: Tensor
    weight: Tensor
    is_found: Tensor

    def attention(self, attention: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Attention on these tokens [ends, batch, keys]; the given one where none is found."""
        two = on_two(first, second, self.weight, attention.shape[-1])
        two = torch.where(self.is_found[..., None], two, attention[:, None])
        return two.transpose(0, 1)


def on_two(first: Tensor, second: Tensor, weight: Tensor, n_keys: int) -> Tensor:
    """Attention on two tokens, ``weight`` on the second, [...] each -> [..., keys]."""
    two = weight.new_zeros(*weight.shape, n_keys)
    weight_on_second = weight[..., None]
    two.scatter_(-1, second[..., None], weight_on_second)
    return two.scatter_(-1, first[..., None], 1 - weight_on_second)


def ends_on_edges(pairs: Pairs, along: Along, limit: float, n_weights: int) -> Ends:
    """Returns the outermost attentions within ε on those edges that may be farthest.

    Between the outermost weights of a grid that are feasible and their neighbours, which
    are not, bisection finds the boundary.

    Args:
        limit: of the change of the output, ε.
        n_weights: that are tried on each edge.
    """
    edges = pairs.edges
    change = along(edges.numbers)

    # Feasible weights and those next to them that are not, of the lower and the upper end
    # [2, batch, pairs]; the same weight twice where nothing more can be had.
    inside = torch.stack([pairs.low, pairs.low])
    outside = inside.clone()
    is_met = was_within = torch.zeros_like(pairs.is_open)
    previous = pairs.low
    for step in range(n_weights):
        weight = torch.lerp(pairs.low, pairs.high, step / (n_weights - 1))
        within = (change(weight) <= limit) & pairs.is_open
        is_first = within & ~is_met
        inside[0] = torch.where(is_first, weight, inside[0])
        outside[0] = torch.where(is_first, previous, outside[0])
        inside[1] = torch.where(within, weight, inside[1])
        outside[1] = torch.where(within | was_within, weight, outside[1])
        is_met = is_met | within
        was_within = within
        previous = weight

    # The ends that may be farthest are refined; −1 stands for an edge without an end.
    hope = two_point_jsd(edges, outside.clone()).masked_fill(~is_met, -1)
    hope = _by_text(hope)
    hope, chosen = hope.topk(min(REFINED, hope.shape[-1]))
    inside = _by_text(inside).gather(1, chosen)
    outside = _by_text(outside).gather(1, chosen)
    pair = chosen % len(edges.i)
    change = along(pair)
    weight, _ = bisected(lambda weight: change(weight) <= limit, inside, outside, N_BISECTIONS)
    return Ends(pair, weight, hope >= 0)


def _by_text(values: Tensor) -> Tensor:
    """[ends, batch, pairs] -> [batch, ends · pairs]."""
    return values.transpose(0, 1).flatten(1)


def farthest_by_program(attention: Tensor, logits: Tensor, mask: Tensor, epsilon: float) -> Tensor:
    """Returns far attentions within ε, by a linear program for each text.

    Where the log-odds of every class against one of them move by at most 2 artanh ε, the
    output moves by at most ε. Among such attention the program finds the largest
    Σ a'_t v_t, where v_t is the JSD of all attention on token t: an upper bound of the JSD
    of a', as JSD is convex. Few tokens have weight.

    Args:
        attention, logits, mask: as in :func:`epsilon_max_jsd_bounds`, float64.

    Returns:
        [batch, keys]; the given attention where the solver fails. Check it.
    """
    from scipy.optimize import linprog

    reach = 2 * math.atanh(min(epsilon, INNER)) - TOLERANCE
    scores = logits - logits[..., :1]
    moved = scores - torch.einsum("bk,bkn->bn", attention, scores)[:, None]
    value = vertex_jsd(attention)
    found = attention.clone()
    for text in (mask.sum(-1) > 1).nonzero()[:, 0].tolist():
        sees = mask[text]
        log_odds = moved[text, sees].t()
        sides = torch.cat([log_odds, -log_odds]).cpu().numpy()
        solved = linprog(
            -value[text, sees].cpu().numpy(),
            A_ub=sides,
            b_ub=[reach] * len(sides),
            A_eq=np.ones((1, sides.shape[1])),
            b_eq=[1],
        )
        if solved.success:
            weights = torch.from_numpy(solved.x).clamp_min(0).to(attention)
            found[text, sees] = weights / weights.sum()
    return found


# --- A read-out that is not linear -------------------------------------------
# Attention on two tokens is where to look first here too, where nothing bounds the weights
# beforehand. What is found is within ε, and a lower bound.


Replay = Callable[[Tensor], Tensor]
"""Attention [copies, batch, keys] -> probabilities [copies, batch, classes]."""

MOST_TOKENS = 32  # edges between these, the least attended: 496 of them
FINE_GRID = 33


@torch.no_grad()
def farthest_on_edges(
    attention: Tensor,
    visible: Tensor,
    replay: Replay,
    probs: Tensor,
    epsilon: float,
) -> Tensor:
    """Returns far attentions on two tokens that move the output by at most ε.

    Args:
        attention: the model's [batch, keys].
        visible: bool [batch, keys], the tokens that may receive weight.
        replay: runs the model with other attention.
        probs: the model's output [batch, classes].
        epsilon: bound on the total variation distance of the output.

    Returns:
        [ends, batch, keys]; the model's own where none is found.
    """
    order = attention.masked_fill(~visible, torch.inf)
    order = order.argsort(dim=-1, stable=True)[:, :MOST_TOKENS]
    few = attention.gather(1, order)
    is_real = visible.gather(1, order)
    edges = edges_of(few, torch.zeros_like(few), is_real)
    text = torch.arange(len(order), device=order.device)[:, None]

    def tokens_of(pair: Tensor) -> tuple[Tensor, Tensor]:
        return order[text, edges.i[pair]], order[text, edges.j[pair]]

    def along(pair: Tensor) -> Callable[[Tensor], Tensor]:
        first, second = tokens_of(pair)

        def change(weight: Tensor) -> Tensor:
            rows = on_two(first, second, weight, attention.shape[-1])
            after = replay(rows.transpose(0, 1))
            return tvd(after, probs).t()

        return change

    # Where none of these weights is within ε, one beside that of least change may be.
    change = along(edges.numbers)
    zero = torch.zeros_like(edges.entropy)
    weights = torch.linspace(0, 1, FINE_GRID).to(zero)
    changes = [change(zero + weight) for weight in weights]
    least, place = torch.stack(changes).min(0)
    nearest = weights[place]
    reach = torch.where(least > epsilon, weights[1], 1.0)
    low = (nearest - reach).clamp_min(0)
    high = (nearest + reach).clamp_max(1)

    pairs = Pairs(edges, low, high, edges.is_real)
    ends = ends_on_edges(pairs, along, epsilon, FINE_GRID)
    return ends.attention(attention, *tokens_of(ends.pair))
