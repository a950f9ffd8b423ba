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
          of texts), pairs of the least attended tokens (functional/linear.py), then the
          paper's search from its random starts and from the best of these. All are lower
          bounds.
Reading:  beside ``largest_jsd``, the farthest with no regard to the output: a share of 0
          says that the output pins the weights down, 1 that it does not at all. What
          was found is a lower bound, so only an upper bound can say "pinned down".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.intervention import (
    held_and_mass,
    random_generator,
)
from hf_attnprobe.functional.linear import (
    epsilon_max_jsd,
    epsilon_max_jsd_bounds,
    farthest_on_edges,
)
from hf_attnprobe.functional.search import (
    Distance,
    linear_distance,
    search_adversarial_attention,
    steered_candidates,
)
from hf_attnprobe.protocol import (
    Differentiable,
    LinearReadout,
    Observation,
    Site,
)


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
        has_none = self.largest_jsd == 0
        for name in ("", "_upper"):
            known = getattr(self, "epsilon_max_jsd" + name)
            shares = {
                e: (values / self.largest_jsd).masked_fill(has_none, torch.nan)
                for e, values in known.items()
            }
            object.__setattr__(self, "share_of_largest" + name, shares)


# --- The farthest attention that is found, candidate by candidate --------------------------------


def only_row(observation: Observation, site: Site) -> tuple[Tensor, Tensor]:
    """Attention of a single-query model, and which keys it may use, each [batch, keys]."""
    visible = observation.model.visible(observation, site.layer)
    return observation.attention[site.layer][:, site.head, 0], visible[:, 0]


def as_only_query(
    epsilons: Sequence[float], attention: Sequence[Tensor] | Tensor
) -> dict[float, Tensor]:
    """By ε: attention [batch, keys] as that of a single query, [batch, 1, keys]."""
    return {e: found[:, None] for e, found in zip(epsilons, attention, strict=True)}


def counting_queries(observation: Observation, layer: int, query: int | None) -> Tensor:
    """Which rows are moved and averaged over, bool [batch, queries].

    Those that can reach the output; one row where one was asked for.
    """
    if query is None:
        return observation.reaching(layer)
    real = observation.model.visible(observation, layer).any(-1)
    is_asked = torch.zeros_like(real)
    is_asked[:, query] = True
    return real & is_asked


PAPERS_EPSILON = 0.01  # its search aims at this one, whichever is read
NOISE_STREAM = 1  # apart from the permutations' random numbers
SMALLEST_START = 1e-4  # a weight of 0 has no logarithm to start a search from
SMALLEST_MASS = 1e-30  # of what a row may move
AIM = 0.995  # of ε: the last step of a search may lie a little past its aim


class Search(NamedTuple):
    """Length of the gradient search: random starts, and steps from each."""

    n_starts: int
    n_steps: int
    seed: int


def _noise(visible: Tensor, example_ids: Sequence[int], n_starts: int, seed: int) -> Tensor:
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


class Farthest:
    """The farthest attention of a site that was found within each ε.

    All rows of attention of the site's heads stand under one another: *rows* are the
    queries of one head, or those of every head of a group.

    Attributes:
        own: the model's attention, [batch, rows, keys].
        visible: what a row may attend to, bool [batch, rows, keys].
        counting: the rows that are moved and averaged over, bool [batch, rows].
        largest: the JSD of the farthest attention with no regard to the output, [batch].
        jsd: by ε, of the farthest that was found, [batch].
        attention: by ε, that attention [batch, rows, keys]; none of groups of heads.
    """

    def __init__(self, observation: Observation, site: Site, epsilons: Sequence[float]) -> None:
        self.observation, self.site = observation, site
        model = observation.model
        visible, counting = [], []
        for layer, heads in model.members(site).items():
            sees = model.visible(observation, layer)
            counts = counting_queries(observation, layer, site.query)
            visible.append(sees.repeat(1, len(heads), 1))
            counting.append(counts.repeat(1, len(heads)))
        self.own = self._rows_of(observation.attention)
        self.visible = torch.cat(visible, dim=1)
        self.counting = torch.cat(counting, dim=1)
        self.largest = self._mean(largest_jsd(self.own, self.visible))
        self.jsd = dict.fromkeys(epsilons, torch.zeros_like(self.largest))
        self.attention: dict[float, Tensor] = {}
        if not site.is_group:
            self.attention = dict.fromkeys(epsilons, self.own)

    def _rows_of(self, maps: Sequence[Tensor]) -> Tensor:
        """Maps by layer, each [batch, heads, queries, keys] -> [batch, rows, keys]."""
        members = self.observation.model.members(self.site)
        rows = [maps[k][:, heads].flatten(1, 2) for k, heads in members.items()]
        return torch.cat(rows, dim=1)

    def _mean(self, values: Tensor) -> Tensor:
        """Mean over the counted rows, [..., batch, rows] -> [..., batch]."""
        weights = self.counting.to(values.dtype)
        return (values * weights).sum(-1) / weights.sum(-1).clamp_min(1)

    def replay(self, rows: Tensor) -> Tensor:
        """Probabilities with all rows replaced.

        Shape: [copies, batch, rows, keys] -> [copies, batch, classes].
        """
        observation = self.observation
        sizes = {}
        for layer, heads in observation.model.members(self.site).items():
            sizes[layer] = len(heads) * observation.attention[layer].shape[2]
        parts = rows.split(list(sizes.values()), dim=2)
        by_layer = dict(zip(sizes, parts, strict=True))

        def change(layer: int, own: Tensor) -> Tensor:
            return by_layer[layer].unflatten(2, own.shape[1:3])

        edited = observation.edited(self.site, change)
        return observation.model.replay(observation, edited)

    @torch.no_grad()
    def add(self, candidates: Tensor, epsilons: Iterable[float] = ()) -> None:
        """Runs the model with candidates, and keeps those that are farther than all before.

        Args:
            candidates: [copies, batch, rows, keys].
            epsilons: which they are for; by default all.
        """
        change = tvd(self.replay(candidates), self.observation.probs)
        divergence = self._mean(jsd(candidates, self.own))
        text = torch.arange(len(self.own), device=change.device)
        for epsilon in epsilons or self.jsd:
            reach = divergence.masked_fill(change > epsilon, -1)
            found, copy = reach.max(0)
            before = self.jsd[epsilon]
            is_farther = found > before
            self.jsd[epsilon] = torch.where(is_farther, found, before)
            if epsilon in self.attention:
                known = self.attention[epsilon]
                new = candidates[copy, text].to(known.dtype)
                is_new = is_farther[:, None, None]
                self.attention[epsilon] = torch.where(is_new, new, known)

    def is_free(self, epsilon: float) -> bool:
        """Whether nothing can be farther within ε, in any text."""
        left = self.largest - self.jsd[epsilon]
        return bool((left <= ROUNDING).all())

    def candidates(self) -> Iterator[Tensor]:
        """Yields candidates from the model linearised in its attention, each [batch, rows, keys].

        Only rows that count are moved.
        """
        slope = self._rows_of(self.observation.attention_gradient)
        movable = self.visible & self.counting[..., None]
        return steered_candidates(self.own, slope, movable)

    # The search of Jain & Wallace 2019 (Algorithm 3), of one head

    def search(self, start: Tensor, distance: Distance, epsilon: float, n_steps: int) -> Tensor:
        """Attention that the gradient search reaches from logits.

        Shape: [copies, batch, queries, keys], and the result.
        """
        held, mass = held_and_mass(self.own, self.visible)
        moved = search_adversarial_attention(
            start.flatten(1, 2),
            (self.own - held).div(mass.clamp_min(SMALLEST_MASS)).flatten(0, 1),
            self.visible.flatten(0, 1),
            distance,
            epsilon=epsilon,
            n_steps=n_steps,
        )
        return moved.unflatten(1, self.own.shape[:2]) * mass + held

    def random_starts(self, search: Search) -> Tensor:
        """Logits to search from, [starts, batch, queries, keys]."""
        ids = self.observation.batch.example_ids
        noise = _noise(self.visible, ids, search.n_starts, search.seed)
        return 3 * noise.to(self.own)

    def distance(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """The change of the output and its gradient, through the model.

        Shape: [copies, batch · queries, keys], what a row may move as a distribution ->
        [copies, batch · queries] and [copies, batch · queries, keys].
        """
        held, mass = held_and_mass(self.own, self.visible)
        n_queries = self.own.shape[1]
        given = candidates.unflatten(1, self.own.shape[:2])
        with torch.enable_grad():
            leaf = given.detach().requires_grad_()
            after = self.replay(leaf * mass + held)
            change = tvd(after, self.observation.probs)
            (slope,) = torch.autograd.grad(change.sum(), leaf)
        of_texts = change.detach()[:, :, None]
        rows = of_texts.expand(-1, -1, n_queries)
        return rows.flatten(1, 2), slope.flatten(1, 2)

    @property
    def result(self) -> AdversarialResult:
        """What was found, a lower bound."""
        is_exact = torch.zeros_like(self.largest)
        return AdversarialResult(self.jsd, self.largest, is_exact, attention=self.attention)


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
    farthest = Farthest(observation, site, epsilons)
    farthest.jsd |= zip(epsilons, bounds.lower, strict=True)
    farthest.attention |= as_only_query(epsilons, bounds.attention)
    distance = linear_distance(token_logits, observation.probs)
    for epsilon in epsilons if n_steps else ():
        known = farthest.attention[epsilon].to(attention)
        start = known.clamp_min(SMALLEST_START).log()[None]
        moved = farthest.search(start, distance, epsilon, n_steps)
        farthest.add(moved, [epsilon])
    upper = dict(zip(epsilons, bounds.upper, strict=True))
    return replace(farthest.result, epsilon_max_jsd_upper=upper)


def by_search(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
    search: Search,
) -> AdversarialResult:
    """Lower bound for a linear read-out, by the paper's search from random starts."""
    farthest = Farthest(observation, site, epsilons)
    distance = linear_distance(token_logits, observation.probs)
    start = farthest.random_starts(search)
    moved = farthest.search(start, distance, PAPERS_EPSILON, search.n_steps)
    farthest.add(moved)
    return farthest.result


# --- The farthest attention of heads whose model is not linear in it -----------------------------


def by_model(
    observation: Observation,
    site: Site,
    epsilons: Sequence[float],
    search: Search,
) -> AdversarialResult:
    """Lower bound for a head, or for several heads moved together.

    The linear candidates; of one head the paper's search, and where it has but one
    query, attention on one or two tokens.
    """
    farthest = Farthest(observation, site, epsilons)
    candidates = farthest.candidates()
    first = next(candidates)
    farthest.add(first[None])
    # Most heads are free: no attention is farther than this first candidate.
    if farthest.is_free(min(epsilons)):
        return farthest.result
    if site.is_group:  # copies of all attention of a model are large
        for candidate in candidates:
            farthest.add(candidate[None])
            if farthest.is_free(min(epsilons)):
                break
        return farthest.result
    farthest.add(torch.stack([*candidates]))
    if has_one_row(observation, site):
        _search_row(farthest, first, search)
        return farthest.result
    for epsilon in epsilons if search.n_steps else ():
        start = farthest.random_starts(search)
        moved = farthest.search(start, farthest.distance, epsilon, search.n_steps)
        is_moved = farthest.counting[..., None]
        farthest.add(torch.where(is_moved, moved, farthest.own))
    return farthest.result


def _search_row(farthest: Farthest, vertex: Tensor, search: Search) -> None:
    """Adds attention on one or two tokens, and what the search finds from there.

    Args:
        vertex: the farthest attention of all, to first order, [batch, 1, keys].
    """
    attention, visible = farthest.own[:, 0], farthest.visible[:, 0]
    probs = farthest.observation.probs

    def replay(rows: Tensor) -> Tensor:
        return farthest.replay(rows[:, :, None])

    for epsilon in farthest.jsd:
        on_edges = farthest_on_edges(attention, visible, replay, probs, epsilon)
        farthest.add(on_edges[:, :, None])
        if search.n_steps == 0 or farthest.is_free(epsilon):
            continue
        known = farthest.attention[epsilon].to(vertex)
        guided = torch.stack([known, vertex]).clamp_min(SMALLEST_START).log()
        for start in (farthest.random_starts(search), guided):
            farthest.add(farthest.search(start, farthest.distance, AIM * epsilon, search.n_steps))


def has_one_row(observation: Observation, site: Site) -> bool:
    """Whether the model's only attention is one head with one query."""
    is_only = len(observation.model.sites()) == 1
    return is_only and observation.attention[site.layer].shape[1:3] == (1, 1)


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
    if site.is_group or token_logits is None:
        is_row = has_one_row(observation, site)
        search = _search(options, seed, PAPERS_STEPS if is_row else 0)
        return by_model(observation, site, epsilons, search)
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
        heads = [Site(layer, head) for layer in members for head in members[layer]]
        if len(heads) == 1:
            return heads[0]._replace(query=site.query)
    return site
