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
          none can exceed (functional/linear.py).
Search:   the paper's gradient search (functional/search.py), for a linear read-out on
          request. For heads of a Transformer, where 500 steps through the model are out
          of reach, candidates from the linearised model (functional/search.py),
          checked by running it; the paper's search through the model on request
          (``n_steps``). For one head with one query that is read by no linear map (pairs
          of texts), all single tokens and pairs of tokens (functional/search.py), then the
          paper's search from its random starts and from the best of these. All are lower
          bounds.
Reading:  beside ``largest_jsd``, the farthest with no regard to the output: a share of 0
          says that the output pins the weights down, 1 that it does not at all. What
          was found is a lower bound, so only an upper bound can say "pinned down".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.intervention import (
    at_head,
    held_and_mass,
    random_generator,
)
from hf_attnprobe.functional.linear import (
    epsilon_max_jsd,
    epsilon_max_jsd_bounds,
)
from hf_attnprobe.functional.search import (
    Distance,
    farthest_on_edges,
    linear_distance,
    pulled_back,
    search_adversarial_attention,
    steered_candidates,
)
from hf_attnprobe.readings import TestReadings, share


# --- The farthest attention within ε, found in the ways that models and heads allow ---
# A head's adversary comes from the linearised model and is checked by running it, the farthest
# attention first: on most heads that already keeps the output, and nothing can be farther. 500 steps
# of 5 starts through the model, per head and text, would by our estimate be days for a small BERT on
# 200 sentences.


ROUNDING = 1e-6  # of a JSD in float32


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
                e: _share(values, self.largest_jsd)
                for e, values in known.items()
            }
            object.__setattr__(self, "share_of_largest" + name, shares)


def _share(values: Tensor, largest: Tensor) -> Tensor:
    return (values / largest).masked_fill(largest == 0, torch.nan)


def lower_bound(
    epsilons: Sequence[float],
    best: list[tuple[Tensor, Tensor]],
    largest: Tensor,
) -> AdversarialResult:
    """The result for the best candidate found at each ε."""
    by_epsilon = dict(zip(epsilons, best, strict=True))
    return AdversarialResult(
        {
            epsilon: divergence
            for epsilon, (divergence, _) in by_epsilon.items()
        },
        largest,
        torch.zeros_like(largest),
        attention={
            epsilon: found for epsilon, (_, found) in by_epsilon.items()
        },
    )


# --- The rows of attention that are moved and counted, of a head and of a group of heads ---------


def only_row(observation: Observation, site: Site) -> tuple[Tensor, Tensor]:
    """Attention of a single-query model, and which keys it may use, each [batch, keys]."""
    visible = observation.model.visible(observation, site.layer)
    return observation.attention[site.layer][:, site.head, 0], visible[:, 0]


def as_only_query(
    epsilons: Sequence[float], attention: Sequence[Tensor] | Tensor
) -> dict[float, Tensor]:
    """By ε: attention [batch, keys] as that of a single query, [batch, 1, keys]."""
    return {
        e: found[:, None] for e, found in zip(epsilons, attention, strict=True)
    }


def counting_queries(
    observation: Observation, layer: int, query: int | None
) -> Tensor:
    """Which rows are moved and averaged over, bool [batch, queries].

    Those that can reach the output; one row where one was asked for.
    """
    if query is None:
        return observation.reaching(layer)
    real = observation.model.visible(observation, layer).any(-1)
    is_asked = torch.zeros_like(real)
    is_asked[:, query] = True
    return real & is_asked


def mean_over_rows(values: Tensor, counting: Tensor) -> Tensor:
    """Mean over the counted rows, [..., batch, rows] -> [..., batch]."""
    weights = counting.to(values.dtype)
    return (values * weights).sum(-1) / weights.sum(-1).clamp_min(1)


def stacked_rows(
    observation: Observation,
    site: Site,
    maps: Mapping[int, Tensor] | Sequence[Tensor],
) -> Tensor:
    """All attention rows of a site's heads, concatenated.

    Shape: maps by layer, each [batch, heads, queries, keys] -> [batch, rows, keys].
    """
    members = observation.model.members(site)
    return torch.cat(
        [maps[k][:, heads].flatten(1, 2) for k, heads in members.items()], 1
    )


def counting_rows(observation: Observation, site: Site) -> Tensor:
    """:func:`counting_queries` for all rows of a site's heads, bool [batch, rows]."""
    members = observation.model.members(site)
    return torch.cat(
        [
            counting_queries(observation, layer, site.query).repeat(
                1, len(heads)
            )
            for layer, heads in members.items()
        ],
        dim=1,
    )


def visible_rows(observation: Observation, site: Site) -> Tensor:
    """What each row of a site's heads may attend to, bool [batch, rows, keys]."""
    members = observation.model.members(site)
    return torch.cat(
        [
            observation.model.visible(observation, layer).repeat(
                1, len(heads), 1
            )
            for layer, heads in members.items()
        ],
        dim=1,
    )


# --- Candidates for the farthest attention: proposed, checked by the model, compared -------------


class Candidates(NamedTuple):
    """Candidate attention, its JSD from the original, and how far it moves the output.

    Shape: [copies, batch, queries, keys], and twice [copies, batch].
    """

    attention: Tensor
    divergence: Tensor
    change: Tensor


def checked_by_model(
    observation: Observation, site: Site, attention: Tensor
) -> Candidates:
    """Runs the model with each candidate and measures how far the output moves."""
    model, layer = observation.model, observation.attention[site.layer]
    edited = at_head(layer, site.head, site.query, attention)
    with torch.no_grad():
        probs = model.replay(observation, {site.layer: edited})
    counting = counting_queries(observation, site.layer, site.query)
    divergence = mean_over_rows(jsd(attention, layer[:, site.head]), counting)
    return Candidates(attention, divergence, tvd(probs, observation.probs))


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


def candidates_of(observation: Observation, site: Site) -> Iterator[Tensor]:
    """Yields candidates from the model linearised in its attention, each [batch, rows, keys].

    Only rows that count are moved.
    """
    attention = stacked_rows(observation, site, observation.attention)
    slope = stacked_rows(observation, site, observation.attention_gradient)
    movable = visible_rows(observation, site)
    movable = movable & counting_rows(observation, site)[..., None]
    return steered_candidates(attention, slope, movable)


# --- The search of Jain & Wallace 2019 (Algorithm 3) from random starts, of one head -------------

PAPERS_EPSILON = 0.01  # its search aims at this one, whichever is read
NOISE_STREAM = 1  # apart from the permutations' random numbers
SMALLEST_START = 1e-4  # a weight of 0 has no logarithm to start a search from
SMALLEST_MASS = 1e-30  # of what a row may move


class Search(NamedTuple):
    """Length of the gradient search: random starts, and steps from each."""

    n_starts: int
    n_steps: int
    seed: int


def gradient_search(
    observation: Observation,
    site: Site,
    distance: Distance,
    search: Search,
    epsilon: float,
) -> Tensor:
    """Attention that the gradient search reaches from each random start.

    Shape: attention [starts, batch, queries, keys].
    """
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    noise = _noise(
        visible, observation.batch.example_ids, search.n_starts, search.seed
    )
    start = 3 * noise.to(attention)
    held, mass = held_and_mass(attention, visible)
    moved = search_adversarial_attention(
        start.flatten(-3, -2),
        (attention - held).div(mass.clamp_min(SMALLEST_MASS)).flatten(-3, -2),
        visible.expand(attention.shape).flatten(-3, -2),
        distance,
        epsilon=epsilon,
        n_steps=search.n_steps,
    )
    return moved.unflatten(1, attention.shape[:2]) * mass + held


def model_distance(observation: Observation, site: Site) -> Distance:
    """Returns what measures the change of the output and its gradient, through the model.

    Shape: [copies, batch · queries, keys], what a row may move as a distribution.
    """
    model = observation.model
    attention = observation.attention[site.layer]
    n_batch, n_queries = attention.shape[0], attention.shape[2]
    visible = model.visible(observation, site.layer)
    held, mass = held_and_mass(attention[:, site.head], visible)

    def distance(candidates: Tensor) -> tuple[Tensor, Tensor]:
        given = candidates.unflatten(1, (n_batch, n_queries))
        with torch.enable_grad():
            leaf = given.detach().requires_grad_()
            edited = at_head(
                attention, site.head, site.query, leaf * mass + held
            )
            after = model.replay(observation, {site.layer: edited})
            change = tvd(after, observation.probs)
            (slope,) = torch.autograd.grad(change.sum(), leaf)
        of_texts = change.detach()[:, :, None]
        rows = of_texts.expand(-1, -1, n_queries)
        return rows.flatten(1, 2), slope.flatten(1, 2)

    return distance


def _noise(
    visible: Tensor, example_ids: Sequence[int], n_starts: int, seed: int
) -> Tensor:
    """Draws standard normal values where attention may be, [starts, batch, queries, keys]."""
    rows = visible.cpu().numpy()
    noise = np.zeros((n_starts, *rows.shape))
    for example, example_id in enumerate(example_ids):
        queries = rows[example].any(1)
        keys = rows[example].any(0)
        generator = random_generator(seed, int(example_id), NOISE_STREAM)
        shape = (n_starts, queries.sum(), keys.sum())
        places = (slice(None), *np.ix_(queries, keys))
        noise[:, example][places] = generator.standard_normal(shape)
    return torch.from_numpy(noise).to(visible.device)


# --- The farthest attention of a linear read-out, logit = Σ a_t u_t ------------------------------


def exactly(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
) -> AdversarialResult:
    """Exact maximum for a linear read-out of two classes, by vertex enumeration."""
    attention, visible = only_row(observation, site)
    scores = token_logits[..., 1] - token_logits[..., 0]
    exact = epsilon_max_jsd(attention, scores, visible, epsilons)
    largest = largest_jsd(attention, visible)
    return AdversarialResult(
        dict(zip(epsilons, exact.jsd, strict=True)),
        largest,
        torch.ones_like(largest),
        attention=as_only_query(epsilons, exact.attention),
    )


def within_bounds(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
    n_steps: int,
) -> AdversarialResult:
    """Lower and upper bounds for a linear read-out of more than two classes.

    With ``n_steps`` the gradient search goes on from the best that is attained.
    """
    attention, visible = only_row(observation, site)
    bounds = epsilon_max_jsd_bounds(attention, token_logits, visible, epsilons)
    largest = largest_jsd(attention, visible)
    lower, farthest = list(bounds.lower), list(bounds.attention)
    if n_steps:
        distance = linear_distance(token_logits, observation.probs)
        for k, epsilon in enumerate(epsilons):
            start = (
                bounds.attention[k]
                .to(attention)
                .clamp_min(SMALLEST_START)
                .log()
            )
            moved = search_adversarial_attention(
                start[None],
                attention,
                visible,
                distance,
                epsilon=epsilon,
                n_steps=n_steps,
            )
            candidates = checked_by_model(observation, site, moved[:, :, None])
            ((found, searched),) = best_within(
                candidates, attention[:, None], [epsilon]
            )
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
        attention=as_only_query(epsilons, farthest),
    )


def by_search(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
    search: Search,
) -> AdversarialResult:
    """Lower bound for a linear read-out, by the paper's search from random starts."""
    attention, visible = only_row(observation, site)
    distance = linear_distance(token_logits, observation.probs)
    moved = gradient_search(observation, site, distance, search, PAPERS_EPSILON)
    candidates = checked_by_model(observation, site, moved)
    best = best_within(candidates, attention[:, None], epsilons)
    return lower_bound(epsilons, best, largest_jsd(attention, visible))


# --- The farthest attention of one head whose model is not linear in it --------------------------


def of_head(
    observation: Observation,
    site: Site,
    epsilons: Sequence[float],
    search: Search,
) -> AdversarialResult:
    """Lower bound for one head of a Transformer: the linear candidates, then the paper's search."""
    attention = observation.attention[site.layer][:, site.head]
    visible = observation.model.visible(observation, site.layer)
    counting = counting_queries(observation, site.layer, site.query)
    largest = mean_over_rows(largest_jsd(attention, visible), counting)
    candidates = candidates_of(observation, site)
    checked = [checked_by_model(observation, site, next(candidates)[None])]
    # Most heads are free: no attention is farther than this first candidate.
    if (checked[0].change > min(epsilons)).any():
        rest = torch.stack(list(candidates))
        checked.append(checked_by_model(observation, site, rest))
        if search.n_steps:
            distance = model_distance(observation, site)
            for epsilon in epsilons:
                moved = gradient_search(
                    observation, site, distance, search, epsilon
                )
                moved = torch.where(counting[..., None], moved, attention)
                checked.append(checked_by_model(observation, site, moved))
    together = Candidates(*map(torch.cat, zip(*checked, strict=True)))
    return lower_bound(
        epsilons, best_within(together, attention, epsilons), largest
    )


def of_row(
    observation: Observation,
    site: Site,
    epsilons: Sequence[float],
    search: Search,
) -> AdversarialResult:
    """Lower bound for a model of one head and one query whose read-out is not linear."""
    attention, visible = only_row(observation, site)
    candidates = torch.stack(list(candidates_of(observation, site)))
    checked = [checked_by_model(observation, site, candidates)]

    def replay(rows: Tensor) -> Tensor:
        edited = {site.layer: rows[:, :, None, None]}
        return observation.model.replay(observation, edited)

    on_edges = farthest_on_edges(
        attention, visible, replay, observation.probs, epsilons
    )
    checked.append(checked_by_model(observation, site, on_edges[:, :, None]))
    largest = largest_jsd(attention, visible)
    distance = model_distance(observation, site)
    for epsilon, farthest in zip(epsilons, on_edges, strict=True):
        is_farthest = largest - jsd(farthest, attention) <= ROUNDING
        if search.n_steps == 0 or is_farthest.all():
            continue
        random = gradient_search(observation, site, distance, search, epsilon)
        vertices = torch.stack([farthest, candidates[0][:, 0]])
        guided = search_adversarial_attention(
            vertices.clamp_min(SMALLEST_START).log(),
            attention,
            visible,
            distance,
            epsilon=epsilon,
            n_steps=search.n_steps,
        )
        moved = torch.cat([random[:, :, 0], guided])
        moved = pulled_back(
            moved, attention, replay, observation.probs, epsilon
        )
        checked.append(checked_by_model(observation, site, moved[:, :, None]))
    together = Candidates(*map(torch.cat, zip(*checked, strict=True)))
    best = best_within(together, attention[:, None], epsilons)
    return lower_bound(epsilons, best, largest)


def has_one_row(observation: Observation, site: Site) -> bool:
    """Whether the model's only attention is one head with one query."""
    is_only = len(observation.model.sites()) == 1
    return is_only and observation.attention[site.layer].shape[1:3] == (1, 1)


# --- The farthest attention of several heads, moved together -------------------------------------


def of_group(
    observation: Observation, site: Site, epsilons: Sequence[float]
) -> AdversarialResult:
    """Lower bound for several heads moved together, from the linear candidates alone.

    One candidate at a time: copies of all attention of a model are large.
    """
    own = stacked_rows(observation, site, observation.attention)
    counting = counting_rows(observation, site)
    visible = visible_rows(observation, site)
    largest = mean_over_rows(largest_jsd(own, visible), counting)
    farthest = {epsilon: torch.zeros_like(largest) for epsilon in epsilons}
    for candidate in candidates_of(observation, site):
        probs = _replay_rows(observation, site, candidate)
        change = tvd(probs, observation.probs)
        divergence = mean_over_rows(jsd(candidate, own), counting)
        for epsilon, known in farthest.items():
            found = divergence.masked_fill(change > epsilon, 0)
            farthest[epsilon] = torch.maximum(known, found)
        # Nothing is farther than all of it; most candidates are not needed.
        if (largest - farthest[min(epsilons)] <= ROUNDING).all():
            break
    return AdversarialResult(farthest, largest, torch.zeros_like(largest))


def _replay_rows(observation: Observation, site: Site, rows: Tensor) -> Tensor:
    """Returns probabilities when all rows of a site's heads are replaced.

    Shape: [batch, rows, keys] -> [batch, classes].
    """
    members = observation.model.members(site)
    sizes = []
    for layer, heads in members.items():
        n_queries = observation.attention[layer].shape[2]
        sizes.append(len(heads) * n_queries)
    parts = dict(zip(members, rows.split(sizes, dim=1), strict=True))

    def change(layer: int, own: Tensor) -> Tensor:
        return parts[layer].unflatten(1, own.shape[1:3])[None]

    edited = observation.edited(site, change)
    with torch.no_grad():
        return observation.model.replay(observation, edited)[0]


EPSILONS = (0.01, 0.05)
"""The paper's, for classification and for question answering; its code evaluates at .05."""
FRONTIER = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
PAPERS_STEPS = 500

READINGS: TestReadings = {
    "epsilon_max_jsd": (
        "the farthest attention found that keeps the output within {key} lies at a divergence "
        "of {mean:.2f}"
    ),
    "epsilon_max_jsd_upper": (
        "no attention that keeps the output within {key} lies beyond a divergence of {mean:.2f}"
    ),
    "epsilon_max_jsd_exact": share(
        "how far attention can be moved is known exactly in {mean:.0%} of texts; in the "
        "others it is the farthest attention that was found"
    ),
    "share_of_largest": share(
        "that is at least {mean:.0%} of the largest divergence there is (ε = {key}; mean over "
        "texts)"
    ),
    "share_of_largest_upper": share(
        "that is at most {mean:.0%} of the largest divergence there is (ε = {key}; mean over texts)"
    ),
    "largest_jsd": (
        "whatever the output, the farthest attention lies at a divergence of {mean:.2f}"
    ),
}


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
    does="searches other attention that keeps the output",
    needs=((LinearReadout, Differentiable),),
    groups=True,
    check=lambda preview, options: _check_method(preview.shortest, options),
)
def adversarial(
    observation: Observation,
    site: Site,
    options: Adversarial = Adversarial(),
    *,
    seed: int = 0,
) -> AdversarialResult:
    """Finds the attention farthest from the model's own that moves the output by at most ε.

    The paper's search has 5 random starts and 500 steps of Adam with ε = .01.

    Raises:
        AttnProbeError: ``exact`` on a model whose read-out is not binary and linear.
    """
    _check_method(observation, options)
    site = _only_member(observation, site)
    token_logits = observation.token_logits
    is_exact = token_logits is not None and token_logits.shape[-1] == 2
    is_exact = is_exact and options.method != "search" and not site.is_group
    epsilons = options.epsilons
    if epsilons is None:
        epsilons = FRONTIER if is_exact else EPSILONS
    if site.is_group:
        return of_group(observation, site, epsilons)
    if token_logits is None and has_one_row(observation, site):
        search = _search(options, seed, PAPERS_STEPS)
        return of_row(observation, site, epsilons, search)
    if token_logits is None:
        search = _search(options, seed, 0)
        return of_head(observation, site, epsilons, search)
    if is_exact:
        return exactly(observation, site, token_logits, epsilons)
    if options.method == "search":
        search = _search(options, seed, PAPERS_STEPS)
        return by_search(observation, site, token_logits, epsilons, search)
    n_steps = options.n_steps or 0
    return within_bounds(observation, site, token_logits, epsilons, n_steps)


def _search(options: Adversarial, seed: int, default_steps: int) -> Search:
    n_steps = default_steps if options.n_steps is None else options.n_steps
    return Search(options.n_starts, n_steps, seed)


def _only_member(observation: Observation, site: Site) -> Site:
    """A group of one head is that head."""
    if site.is_group:
        members = observation.model.members(site)
        heads = [
            Site(layer, head) for layer in members for head in members[layer]
        ]
        if len(heads) == 1:
            return heads[0]._replace(query=site.query)
    return site
