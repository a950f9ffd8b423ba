"""Could attention have looked elsewhere with the same output?

Jain & Wallace 2019, Section 4.2.2, Algorithm 3.

Question: how different can the weights of one text be while the output stays within ε?
Measure:  ε-max JSD, the largest Jensen-Shannon divergence (nats, at most ln 2) from the
          model's attention among attentions that move the output by at most ε in total
          variation. Of a head with several queries, and of a group of heads, the mean
          over the rows that can reach the output; only those are moved.
Exactly:  for a linear read-out of two classes, by vertex enumeration
          (functional/linear.py).
Bounds:   for a linear read-out of more classes, what an attention attains, and what
          none can exceed (functional/bounds.py).
Search:   the paper's gradient search (functional/search.py), for a linear read-out on
          request. For heads of a Transformer, where 500 steps through the model are out
          of reach, candidates from the linearised model (functional/steering.py),
          checked by running it; the paper's search through the model on request
          (``n_steps``). For one head with one query that is read by no linear map (pairs
          of texts), all single tokens and pairs of tokens (functional/edges.py), then the
          paper's search from its random starts and from the best of these. All are lower
          bounds.
Reading:  beside ``largest_jsd``, the farthest with no regard to the output: a share of 0
          says that the output pins the weights down, 1 that it does not at all. What
          was found is a lower bound, so only an upper bound can say "pinned down".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    Differentiable,
    LinearReadout,
    Observation,
    Site,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.bounds import epsilon_max_jsd_bounds
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.edges import farthest_on_edges, pulled_back
from hf_attnprobe.functional.intervention import at_head, random_generator
from hf_attnprobe.functional.linear import epsilon_max_jsd
from hf_attnprobe.functional.search import (
    Distance,
    linear_distance,
    search_adversarial_attention,
)
from hf_attnprobe.functional.steering import steered_candidates
from hf_attnprobe.options import Options, option


EPSILONS = (0.01, 0.05)
"""The paper's, for classification and for question answering; its code evaluates at .05."""
FRONTIER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
PAPERS_EPSILON = 0.01  # its search aims at this one, whichever is read
NOISE_STREAM = 1  # apart from the permutations' random numbers
ROUNDING = 1e-6  # of a JSD in float32
SMALLEST_START = 1e-4  # a weight of 0 has no logarithm to start a search from

READINGS = {
    "epsilon_max_jsd": (
        "with the output within {key} of the original, attention can be moved by a "
        "divergence of at least {mean:.2f}"
    ),
    "epsilon_max_jsd_upper": (
        "with the output within {key} of the original, attention can be moved by a "
        "divergence of at most {mean:.2f}"
    ),
    "epsilon_max_jsd_exact": (
        "how far attention can be moved is known exactly in {mean:.0%} of texts; in the "
        "others it is the farthest attention that was found"
    ),
    "share_of_largest": (
        "that is at least {mean:.0%} of the way to the farthest attention of all (ε = "
        "{key}; mean over texts)"
    ),
    "share_of_largest_upper": (
        "that is at most {mean:.0%} of the way to the farthest attention of all (ε = "
        "{key}; mean over texts)"
    ),
    "largest_jsd": (
        "with no regard to the output, attention can be moved by a divergence of exactly "
        "{mean:.2f}"
    ),
}
HEAD_TITLES = {
    "epsilon_max_jsd@0.05": (
        "how far the attention can at least be moved with the output within .05 (JSD, of "
        "at most `largest_jsd`)"
    ),
    "share_of_largest@0.01": (
        "the same with the output within .01, as a share of `largest_jsd`"
    ),
}


@dataclass(frozen=True)
class Adversarial(Options):
    """How the farthest attention is found, and how far the output may move."""

    method: Literal["auto", "exact", "search"] = option(
        "auto",
        "exact works for binary linear read-outs, search (the paper's for linear ones) for "
        "all models; auto takes exact if possible, then bounds, then search",
    )
    epsilons: Sequence[float] | None = option(
        None,
        "distances that the output may move (default: .01 and .05; exact: nine from .001 "
        "to .5)",
        at_least=0,
        metavar="EPSILON",
    )
    n_starts: int = option(
        5, "random starts of the gradient search", at_least=1, at_most=1_000
    )
    n_steps: int | None = option(
        None,
        "steps of the gradient search (default: 500 with --method search and for models "
        "of pairs; else 0, no search: the best of candidates that are checked); where the "
        "answer is exact and for groups of heads there is no search",
        at_least=0,
        at_most=100_000,
    )


@dataclass(frozen=True)
class AdversarialResult:
    """How far attention can be moved, in nats; all [batch] or, by ε, each [batch].

    Attributes:
        epsilon_max_jsd: by ε, what an attention within ε attains, in [0, ln 2].
        largest_jsd: of any attention, whatever the output.
        epsilon_max_jsd_exact: 1 where ``epsilon_max_jsd`` is the farthest of all within
            ε, 0 where it is a lower bound.
        epsilon_max_jsd_upper: by ε, what none within ε exceeds; only where it is known
            and is another number: linear read-outs of more than two classes.
        share_of_largest, share_of_largest_upper: both as a share of ``largest_jsd``;
            NaN where that is 0.
        attention: by ε, the adversary that was found, to be shown beside the original,
            each [batch, queries, keys]; none for groups of heads.
    """

    epsilon_max_jsd: dict[float, Tensor]
    largest_jsd: Tensor
    epsilon_max_jsd_exact: Tensor
    epsilon_max_jsd_upper: dict[float, Tensor] = field(default_factory=dict)
    share_of_largest: dict[float, Tensor] = field(init=False)
    share_of_largest_upper: dict[float, Tensor] = field(init=False)
    attention: dict[float, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("", "_upper"):
            known = getattr(self, "epsilon_max_jsd" + name)
            shares = {
                e: _share(values, self.largest_jsd) for e, values in known.items()
            }
            object.__setattr__(self, "share_of_largest" + name, shares)


def _share(values: Tensor, largest: Tensor) -> Tensor:
    return (values / largest).masked_fill(largest == 0, torch.nan)


def _check_method(observation: Observation, options: Adversarial) -> None:
    token_logits = observation.token_logits
    is_binary = token_logits is not None and token_logits.shape[-1] == 2
    if options.method == "exact" and not is_binary:
        raise AttnProbeError(
            "method='exact' needs a binary linear read-out (two labels, logit = Σ a_t "
            "u_t), which this model does not have; use method='search', or 'auto', which "
            "gives bounds for linear read-outs of more labels"
        )


@register_test(
    readings=READINGS,
    head_titles=HEAD_TITLES,
    needs=((LinearReadout, Differentiable),),
    groups=True,
    gradient_copies_at_once=lambda options: options.n_starts if options.n_steps else 1,
    check=lambda preview, options: _check_method(preview.shortest, options),
)
def adversarial(
    observation: Observation,
    site: Site,
    options: Adversarial = Adversarial(),
    *,
    seed: int = 0,
) -> AdversarialResult:
    """The farthest attention within each ε.

    The paper's search has 5 random starts and 500 steps of Adam with ε = .01.

    Raises:
        AttnProbeError: ``exact`` on a model whose read-out is not binary and linear.
    """
    _check_method(observation, options)
    site = _only_member(observation, site)
    if site.is_group:
        return _of_group(observation, site, options)
    token_logits = observation.token_logits
    if token_logits is None and _has_one_row(observation, site):
        return _of_row(observation, site, options, seed)
    if token_logits is None:
        return _of_head(observation, site, options, seed)
    if options.method == "search":
        return _by_search(observation, site, token_logits, options, seed)
    if token_logits.shape[-1] == 2:
        return _exact(observation, site, token_logits, options)
    return _bounded(observation, site, token_logits, options)


def _only_member(observation: Observation, site: Site) -> Site:
    """A group of one head is that head."""
    if site.is_group:
        members = observation.model.members(site)
        heads = [Site(layer, head) for layer in members for head in members[layer]]
        if len(heads) == 1:
            return heads[0]._replace(query=site.query)
    return site


def _exact(
    observation: Observation, site: Site, token_logits: Tensor, options: Adversarial
) -> AdversarialResult:
    """Of a linear read-out of two classes."""
    attention, visible = _row(observation, site)
    epsilons = FRONTIER if options.epsilons is None else options.epsilons
    scores = token_logits[..., 1] - token_logits[..., 0]
    exact = epsilon_max_jsd(attention, scores, visible, epsilons)
    largest = largest_jsd(attention, visible)
    return AdversarialResult(
        dict(zip(epsilons, exact.jsd, strict=True)),
        largest,
        torch.ones_like(largest),
        attention=_by_epsilon(epsilons, exact.attention),
    )


def _bounded(
    observation: Observation, site: Site, token_logits: Tensor, options: Adversarial
) -> AdversarialResult:
    """Of a linear read-out of more classes; the search goes on from the best if asked."""
    attention, visible = _row(observation, site)
    epsilons = EPSILONS if options.epsilons is None else options.epsilons
    bounds = epsilon_max_jsd_bounds(attention, token_logits, visible, epsilons)
    largest = largest_jsd(attention, visible)
    lower, farthest = list(bounds.lower), list(bounds.attention)
    if options.n_steps:
        distance = linear_distance(token_logits, observation.probs)
        for k, epsilon in enumerate(epsilons):
            start = bounds.attention[k].to(attention).clamp_min(SMALLEST_START).log()
            moved = search_adversarial_attention(
                start[None],
                attention,
                visible,
                distance,
                epsilon=epsilon,
                n_steps=options.n_steps,
            )
            checked = _check(observation, site, moved[:, :, None])
            own = attention[:, None]
            ((found, searched),) = best_within(checked, own, [epsilon])
            is_farther = found > lower[k]
            lower[k] = torch.where(is_farther, found, lower[k])
            farthest[k] = torch.where(
                is_farther[:, None], searched[:, 0].to(farthest[k]), farthest[k]
            )
    return AdversarialResult(
        dict(zip(epsilons, lower, strict=True)),
        largest,
        torch.zeros_like(largest),
        epsilon_max_jsd_upper=dict(zip(epsilons, bounds.upper, strict=True)),
        attention=_by_epsilon(epsilons, farthest),
    )


def _by_search(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    options: Adversarial,
    seed: int,
) -> AdversarialResult:
    """The paper's search, of a linear read-out."""
    attention, visible = _row(observation, site)
    epsilons = EPSILONS if options.epsilons is None else options.epsilons
    n_steps = 500 if options.n_steps is None else options.n_steps
    distance = linear_distance(token_logits, observation.probs)
    moved = _gradient_search(
        observation, site, options.n_starts, seed, distance, n_steps, PAPERS_EPSILON
    )
    checked = _check(observation, site, moved)
    best = best_within(checked, attention[:, None], epsilons)
    return _lower_bound(epsilons, best, largest_jsd(attention, visible))


def _of_head(
    observation: Observation, site: Site, options: Adversarial, seed: int
) -> AdversarialResult:
    """Of one head of a model that is not linear."""
    epsilons = EPSILONS if options.epsilons is None else options.epsilons
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    counting = _counting(observation, site.layer, site.query)
    largest = _over_rows(largest_jsd(attention, visible), counting)
    candidates = _candidates(observation, site)
    checked = [_check(observation, site, next(candidates)[None])]
    # Most heads are free: no attention is farther than this first candidate.
    if (checked[0].change > min(epsilons)).any():
        rest = torch.stack(list(candidates))
        checked.append(_check(observation, site, rest))
        if options.n_steps:
            distance = _model_distance(observation, site)
            search = partial(
                _gradient_search, observation, site, options.n_starts, seed, distance
            )
            for epsilon in epsilons:
                moved = search(options.n_steps, epsilon)
                moved = torch.where(counting[..., None], moved, attention)
                checked.append(_check(observation, site, moved))
    together = Candidates(*map(torch.cat, zip(*checked, strict=True)))
    return _lower_bound(epsilons, best_within(together, attention, epsilons), largest)


def _has_one_row(observation: Observation, site: Site) -> bool:
    """Whether the model's attention is one head with one query, of one layer."""
    is_only = len(observation.model.sites()) == 1
    return is_only and observation.attention[site.layer].shape[1:3] == (1, 1)


def _of_row(
    observation: Observation, site: Site, options: Adversarial, seed: int
) -> AdversarialResult:
    """Of one head with one query, read by no linear map."""
    epsilons = EPSILONS if options.epsilons is None else options.epsilons
    n_steps = 500 if options.n_steps is None else options.n_steps
    attention, visible = _row(observation, site)
    candidates = torch.stack(list(_candidates(observation, site)))
    checked = [_check(observation, site, candidates)]

    def replay(rows: Tensor) -> Tensor:
        edited = {site.layer: rows[:, :, None, None]}
        return observation.model.replay(observation, edited)

    on_edges = farthest_on_edges(
        attention, visible, replay, observation.probs, epsilons
    )
    checked.append(_check(observation, site, on_edges[:, :, None]))
    largest = largest_jsd(attention, visible)
    distance = _model_distance(observation, site)
    for epsilon, farthest in zip(epsilons, on_edges, strict=True):
        is_farthest = largest - jsd(farthest, attention) <= ROUNDING
        if n_steps == 0 or is_farthest.all():
            continue
        random = _gradient_search(
            observation, site, options.n_starts, seed, distance, n_steps, epsilon
        )
        vertices = torch.stack([farthest, candidates[0][:, 0]])
        guided = search_adversarial_attention(
            vertices.clamp_min(SMALLEST_START).log(),
            attention,
            visible,
            distance,
            epsilon=epsilon,
            n_steps=n_steps,
        )
        moved = torch.cat([random[:, :, 0], guided])
        moved = pulled_back(moved, attention, replay, observation.probs, epsilon)
        checked.append(_check(observation, site, moved[:, :, None]))
    together = Candidates(*map(torch.cat, zip(*checked, strict=True)))
    best = best_within(together, attention[:, None], epsilons)
    return _lower_bound(epsilons, best, largest)


def _of_group(
    observation: Observation, site: Site, options: Adversarial
) -> AdversarialResult:
    """Of several heads, moved together; ``n_steps`` means nothing here.

    One candidate at a time: copies of all attention of a model are large.
    """
    epsilons = EPSILONS if options.epsilons is None else options.epsilons
    own = _stacked(observation, site, observation.attention)
    counting = _counting_rows(observation, site)
    visible = _visible_rows(observation, site)
    largest = _over_rows(largest_jsd(own, visible), counting)
    farthest = {epsilon: torch.zeros_like(largest) for epsilon in epsilons}
    for candidate in _candidates(observation, site):
        probs = _replay_rows(observation, site, candidate)
        change = tvd(probs, observation.probs)
        divergence = _over_rows(jsd(candidate, own), counting)
        for epsilon, known in farthest.items():
            found = divergence.masked_fill(change > epsilon, 0)
            farthest[epsilon] = torch.maximum(known, found)
        # Nothing is farther than all of it; most candidates are not needed.
        if (largest - farthest[min(epsilons)] <= ROUNDING).all():
            break
    return AdversarialResult(farthest, largest, torch.zeros_like(largest))


def _lower_bound(
    epsilons: Sequence[float], best: list[tuple[Tensor, Tensor]], largest: Tensor
) -> AdversarialResult:
    by_epsilon = dict(zip(epsilons, best, strict=True))
    return AdversarialResult(
        {epsilon: divergence for epsilon, (divergence, _) in by_epsilon.items()},
        largest,
        torch.zeros_like(largest),
        attention={epsilon: found for epsilon, (_, found) in by_epsilon.items()},
    )


def _row(observation: Observation, site: Site) -> tuple[Tensor, Tensor]:
    """The one row of a linear read-out and what it may attend to, [batch, keys]."""
    visible = observation.model.visible(observation, site.layer)
    return observation.attention[site.layer][:, site.head, 0], visible[:, 0]


def _by_epsilon(
    epsilons: Sequence[float], attention: Sequence[Tensor] | Tensor
) -> dict[float, Tensor]:
    """By ε [batch, keys] as the only query of [batch, queries, keys]."""
    return {e: found[:, None] for e, found in zip(epsilons, attention, strict=True)}


def _counting(observation: Observation, layer: int, query: int | None) -> Tensor:
    """The rows that are moved and counted, bool [batch, queries].

    Those that can reach the output; one row where one was asked for.
    """
    if query is None:
        return observation.reaching(layer)
    real = observation.model.visible(observation, layer).any(-1)
    is_asked = torch.zeros_like(real)
    is_asked[:, query] = True
    return real & is_asked


def _over_rows(values: Tensor, counting: Tensor) -> Tensor:
    """Mean over the rows that count, [..., batch, rows] -> [..., batch]."""
    weights = counting.to(values.dtype)
    return (values * weights).sum(-1) / weights.sum(-1).clamp_min(1)


def _stacked(
    observation: Observation, site: Site, maps: Mapping[int, Tensor] | Sequence[Tensor]
) -> Tensor:
    """All rows of a site's heads, one below the other.

    Shape: maps by layer, each [batch, heads, queries, keys] -> [batch, rows, keys].
    """
    members = observation.model.members(site)
    return torch.cat(
        [maps[k][:, heads].flatten(1, 2) for k, heads in members.items()], 1
    )


def _counting_rows(observation: Observation, site: Site) -> Tensor:
    """As :func:`_counting`, of all rows of a site's heads, bool [batch, rows]."""
    members = observation.model.members(site)
    return torch.cat(
        [
            _counting(observation, layer, site.query).repeat(1, len(heads))
            for layer, heads in members.items()
        ],
        dim=1,
    )


def _visible_rows(observation: Observation, site: Site) -> Tensor:
    """What each row of a site's heads may attend to, bool [batch, rows, keys]."""
    members = observation.model.members(site)
    return torch.cat(
        [
            observation.model.visible(observation, layer).repeat(1, len(heads), 1)
            for layer, heads in members.items()
        ],
        dim=1,
    )


def _candidates(observation: Observation, site: Site) -> Iterator[Tensor]:
    """Candidates of the linearised model, each [batch, rows, keys].

    Only rows that count are moved.
    """
    attention = _stacked(observation, site, observation.attention)
    slope = _stacked(observation, site, observation.attention_gradient)
    movable = _visible_rows(observation, site)
    movable = movable & _counting_rows(observation, site)[..., None]
    return steered_candidates(attention, slope, movable)


def _replay_rows(observation: Observation, site: Site, rows: Tensor) -> Tensor:
    """Probabilities with all rows of a site's heads replaced.

    Shape: [batch, rows, keys] -> [batch, classes].
    """
    members = observation.model.members(site)
    sizes = [
        len(heads) * observation.attention[layer].shape[2]
        for layer, heads in members.items()
    ]
    parts = dict(zip(members, rows.split(sizes, dim=1), strict=True))

    def change(layer: int, own: Tensor) -> Tensor:
        return parts[layer].unflatten(1, own.shape[1:3])[None]

    with torch.no_grad():
        return observation.model.replay(observation, observation.edited(site, change))[
            0
        ]


def _gradient_search(
    observation: Observation,
    site: Site,
    n_starts: int,
    seed: int,
    distance: Distance,
    n_steps: int,
    epsilon: float,
) -> Tensor:
    """The paper's search from random starts.

    Shape: attention [starts, batch, queries, keys].
    """
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    noise = _noise(visible, observation.batch.example_ids, n_starts, seed)
    start = 3 * noise.to(attention)
    moved = search_adversarial_attention(
        start.flatten(-3, -2),
        attention.flatten(-3, -2),
        visible.expand(attention.shape).flatten(-3, -2),
        distance,
        epsilon=epsilon,
        n_steps=n_steps,
    )
    return moved.unflatten(1, attention.shape[:2])


class Candidates(NamedTuple):
    """Attentions with their JSD to the original and the change of the output.

    Shape: [copies, batch, queries, keys], and twice [copies, batch].
    """

    attention: Tensor
    divergence: Tensor
    change: Tensor


def _check(observation: Observation, site: Site, attention: Tensor) -> Candidates:
    """Candidates with the change of the output when the model is run with them."""
    model, layer = observation.model, observation.attention[site.layer]
    edited = at_head(layer, site.head, site.query, attention)
    with torch.no_grad():
        probs = model.replay(observation, {site.layer: edited})
    counting = _counting(observation, site.layer, site.query)
    divergence = _over_rows(jsd(attention, layer[:, site.head]), counting)
    return Candidates(attention, divergence, tvd(probs, observation.probs))


def _model_distance(observation: Observation, site: Site) -> Distance:
    """Distance and its gradient through the model.

    Shape: [copies, batch · queries, keys].
    """
    model = observation.model
    attention = observation.attention[site.layer]
    n_batch, n_queries = attention.shape[0], attention.shape[2]

    def distance(candidates: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = (
                candidates.unflatten(1, (n_batch, n_queries)).detach().requires_grad_()
            )
            edited = at_head(attention, site.head, site.query, leaf)
            change = tvd(
                model.replay(observation, {site.layer: edited}), observation.probs
            )
            (slope,) = torch.autograd.grad(change.sum(), leaf)
        rows = change.detach()[:, :, None].expand(-1, -1, n_queries)
        return rows.flatten(1, 2), slope.flatten(1, 2)

    return distance


def best_within(
    candidates: Candidates, original: Tensor, epsilons: Sequence[float]
) -> list[tuple[Tensor, Tensor]]:
    """The farthest candidate whose change is at most ε, for each ε.

    Where there is none it is the ``original`` [batch, queries, keys], whose JSD is 0.
    """
    attention = torch.cat([original[None], candidates.attention])
    divergence = _with_zero(candidates.divergence)
    change = _with_zero(candidates.change)
    rows = torch.arange(len(original), device=original.device)
    best = []
    for epsilon in epsilons:
        values, index = divergence.masked_fill(change > epsilon, -1).max(0)
        best.append((values, attention[index, rows]))
    return best


def _with_zero(values: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(values[:1]), values])


def _noise(
    visible: Tensor, example_ids: Sequence[int], n_starts: int, seed: int
) -> Tensor:
    """Standard normal draws where attention may be, [starts, batch, queries, keys]."""
    rows = visible.cpu().numpy()
    noise = np.zeros((n_starts, *rows.shape))
    for example, example_id in enumerate(example_ids):
        queries, keys = (rows[example].any(axis) for axis in (1, 0))
        generator = random_generator(seed, int(example_id), NOISE_STREAM)
        shape = (n_starts, queries.sum(), keys.sum())
        places = (slice(None), *np.ix_(queries, keys))
        noise[:, example][places] = generator.standard_normal(shape)
    return torch.from_numpy(noise).to(visible.device)
