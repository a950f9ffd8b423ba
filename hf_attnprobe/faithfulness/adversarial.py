"""Test ``adversarial``: could very different attention give the same output?

Jain & Wallace 2019, Section 4.2.2, Algorithm 3.

Question
    How far can the attention weights of a text be moved while the output stays within ε?

Measure
    ε-max JSD: the largest Jensen-Shannon divergence (nats, at most ln 2) from the model's attention
    among all attention distributions that change the output by at most ε (total variation
    distance). For a head with several queries and for head groups, it is the mean over the query
    rows that can influence the output; only these rows are moved.

Exact
    For a linear read-out of two classes, by enumerating vertices (``functional/linear.py``).

Bounds
    For a linear read-out of more classes: a divergence that some attention attains, and one that no
    attention exceeds (``functional/linear.py``).

Search
    All other results are lower bounds. For a linear read-out, the paper's gradient search
    (``functional/search.py``) is available on request.

    For Transformer heads, the model is approximated by a linear function of its attention. This
    gives candidates, which are checked by running the model. The most distant attention is tried
    first. For most heads, it keeps the output, so no further search is needed.

    The paper's search through the model is available on request (``n_steps``). By default it is
    skipped, because it needs 5 starts of 500 steps for each head and text. For a small BERT and 200
    sentences, this would take days (an estimate).

    Models for text pairs have one head with one query and a non-linear read-out. The test first
    tries attention on two of the least attended tokens, and then runs the paper's search from
    random starts and from the best candidate.

Interpretation
    Compare with ``largest_jsd``, the divergence of the most distant attention with any output. If
    the ε-max JSD is a share of 0 of it, the output determines the weights. At a share of 1, the
    output does not constrain them at all. A search only gives a lower bound, so only an upper bound
    can show that the output determines the weights.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd, largest_jsd, tvd
from hf_attnprobe.functional.intervention import (
    create_random_generator,
    split_fixed_weights,
)
from hf_attnprobe.functional.linear import (
    MAX_EXACT_TOKENS,
    epsilon_max_jsd,
    epsilon_max_jsd_bounds,
    search_edges_by_replay,
)
from hf_attnprobe.functional.search import (
    Distance,
    generate_steered_candidates,
    make_linear_distance,
    search_adversarial_attention,
)
from hf_attnprobe.protocol import (
    Differentiable,
    LinearReadout,
    Observation,
    Site,
)


EPSILONS = (0.01, 0.05)
"""Default limits ε on the output change, measured by the total variation distance. Jain & Wallace
2019 name 0.01 for classification and 0.05 for question answering."""
CURVE_EPSILONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Default limits ε on the output change for the exact method. It computes the largest divergence
for each limit, so the results form a curve of divergence against ε."""
PAPER_EPSILON = 0.01
"""Output change ε that Jain & Wallace 2019 aim at in their search for different attention."""
PAPER_STEPS = 500
"""Number of optimizer steps in the search for different attention in Jain & Wallace 2019."""
STARTING_POINT_STREAM = 1
"""Index of the random number stream that draws starting points for the search for different
attention."""
SMALLEST_START_WEIGHT = 1e-4
"""Smallest attention weight in a starting point of the search for different attention. Smaller
weights are raised to this value, because the search uses logarithms and ln 0 is infinite."""
SMALLEST_DIVISOR = 1e-30
"""Smallest number by which attention weights are divided when they are normalised. It avoids a
division by 0."""
SEARCH_TARGET_SHARE = 0.995
"""Share of the allowed output change ε that the search for different attention aims at. It is
slightly below 1, because the last step of the search can go too far."""
JSD_ROUNDING = 1e-6
"""Largest rounding error of a Jensen-Shannon divergence in float32, in nats."""

READINGS: TestReadings = {
    "epsilon_max_jsd": (
        "the most distant attention found that changes the output by at most {key} has a "
        "divergence of {mean:.2f}"
    ),
    "epsilon_max_jsd_upper": (
        "no attention that changes the output by at most {key} has a divergence above {mean:.2f}"
    ),
    "epsilon_max_jsd_exact": make_share_reading(
        "the most distant attention is known exactly in {mean:.0%} of texts; in the other texts "
        "it is the most distant attention found"
    ),
    "share_of_largest": make_share_reading(
        "this is at least {mean:.0%} of the largest possible divergence (ε = {key}; mean over "
        "texts)"
    ),
    "share_of_largest_upper": make_share_reading(
        "this is at most {mean:.0%} of the largest possible divergence (ε = {key}; mean over texts)"
    ),
    "largest_jsd": (
        "if the output may change arbitrarily, the most distant attention has a divergence of "
        "{mean:.2f}"
    ),
}


@dataclass(frozen=True)
class AdversarialResult:
    """Statistics from the test ``adversarial``: tensors ``[batch]``, or mappings to them by ε.

    Attributes:
        epsilon_max_jsd: Divergence that some attention within ε attains, in [0, ln 2] nats.
        largest_jsd: Divergence of the most distant attention with any output, in nats.
        epsilon_max_jsd_exact: 1 if ``epsilon_max_jsd`` is the largest divergence within ε, 0 if it
            is a lower bound.
        epsilon_max_jsd_upper: Divergence that no attention within ε exceeds. Only for linear
            read-outs of more than two classes.
        share_of_largest: ``epsilon_max_jsd`` as a share of ``largest_jsd``; NaN if ``largest_jsd``
            is 0.
        share_of_largest_upper: ``epsilon_max_jsd_upper`` as a share of ``largest_jsd``.
        attention: Most distant attention found within ε, ``[batch, queries, keys]``, for display
            next to the original. Empty for head groups.
    """

    epsilon_max_jsd: dict[float, Tensor]
    largest_jsd: Tensor
    epsilon_max_jsd_exact: Tensor
    epsilon_max_jsd_upper: dict[float, Tensor] = field(default_factory=dict)
    share_of_largest: dict[float, Tensor] = field(init=False)
    share_of_largest_upper: dict[float, Tensor] = field(init=False)
    attention: dict[float, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A frozen dataclass can only set its fields through `object`.
        shares = self._divide_by_largest(self.epsilon_max_jsd)
        object.__setattr__(self, "share_of_largest", shares)
        upper_shares = self._divide_by_largest(self.epsilon_max_jsd_upper)
        object.__setattr__(self, "share_of_largest_upper", upper_shares)

    def _divide_by_largest(self, divergences: dict[float, Tensor]) -> dict[float, Tensor]:
        """Divide divergences by the largest possible divergence.

        The result is NaN in texts in which the largest possible divergence is 0, for example because
        the text has a single token.
        """
        is_zero = self.largest_jsd == 0
        return {
            epsilon: (values / self.largest_jsd).masked_fill(is_zero, torch.nan)
            for epsilon, values in divergences.items()
        }


def _check_method(observation: Observation, options: Adversarial) -> None:
    """Raise AttnProbeError if the exact method is requested for a model that it does not support.

    It supports models with two classes and with logits that are linear in the attention.
    """
    token_logits = observation.token_logits
    is_binary = token_logits is not None and token_logits.shape[-1] == 2
    if options.method == "exact" and not is_binary:
        raise AttnProbeError(
            "method='exact' only works for models with two classes and a linear read-out "
            "(logit = Σ a_t u_t). Use method='auto' or method='search' for this model."
        )


@register_test(
    readings=READINGS,
    summary="searches for different attention that keeps the output",
    needs=((LinearReadout, Differentiable),),
    groups=True,
    check=lambda preview, options: _check_method(preview.shortest_text, options),
)
def adversarial(
    observation: Observation,
    site: Site,
    options: Adversarial = Adversarial(),
    *,
    seed: int = 0,
) -> AdversarialResult:
    """Find the most distant attention that changes the output by at most ε.

    The paper's search has 5 random starts and 500 steps of Adam with ε = .01.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose attention is moved.
        options: Method, allowed output changes, and number of search steps.
        seed: Seed for the random starts.

    Returns:
        Statistics per text.

    Raises:
        AttnProbeError: If the exact method is requested and the read-out is not binary and linear.
    """
    _check_method(observation, options)
    site = _reduce_to_head(observation, site)
    token_logits = observation.token_logits
    is_binary = token_logits is not None and token_logits.shape[-1] == 2
    use_exact = is_binary and options.method != "search" and not site.is_group
    epsilons = options.epsilons
    if epsilons is None:
        epsilons = CURVE_EPSILONS if use_exact else EPSILONS
    if site.is_group or token_logits is None:
        default_steps = PAPER_STEPS if has_one_row(observation, site) else 0
        settings = _build_search(options, seed, default_steps)
        return search_model(observation, site, epsilons, settings)
    if use_exact:
        return find_exact(observation, site, token_logits, epsilons)
    # All pairs of tokens would be compared for all pairs of classes.
    is_too_long = token_logits.shape[1] > MAX_EXACT_TOKENS
    if options.method == "search" or is_too_long:
        settings = _build_search(options, seed, PAPER_STEPS)
        return search_linear(observation, site, token_logits, epsilons, settings)
    return find_bounds(observation, site, token_logits, epsilons, options.n_steps or 0)


class SearchSettings(NamedTuple):
    """Settings for the gradient search.

    Attributes:
        n_starts: Number of random starting points.
        n_steps: Number of steps from each starting point.
        seed: Seed for the starting points.
    """

    n_starts: int
    n_steps: int
    seed: int


def _build_search(options: Adversarial, seed: int, default_steps: int) -> SearchSettings:
    """Build the search settings; ``default_steps`` applies if the options set no step count."""
    n_steps = default_steps if options.n_steps is None else options.n_steps
    return SearchSettings(options.n_starts, n_steps, seed)


def _reduce_to_head(observation: Observation, site: Site) -> Site:
    """Replace a head group with only one head by this head.

    A larger group and a single head are returned unchanged.
    """
    if site.is_group:
        heads = []
        for layer, layer_heads in observation.model.get_heads_by_layer(site).items():
            heads += [Site(layer, head) for head in layer_heads]
        if len(heads) == 1:
            return heads[0]._replace(query=site.query)
    return site


def has_one_row(observation: Observation, site: Site) -> bool:
    """Return whether the model has a single head that computes a single attention row.

    An LSTM classifier with attention pooling is an example: one query attends to all tokens.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.
    """
    if len(observation.model.sites()) > 1:
        return False
    _, n_heads, n_queries, _ = observation.attention[site.layer].shape
    return n_heads == 1 and n_queries == 1


# --- Collection of candidates --------------------------------------------------------------


def get_single_row(observation: Observation, site: Site) -> tuple[Tensor, Tensor]:
    """Return the attention row of a single-query model, and the keys that it can attend to.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.

    Returns:
        Attention and mask of visible keys, each ``[batch, keys]``.
    """
    visible = observation.model.get_visible_keys(observation, site.layer)
    return observation.attention[site.layer][:, site.head, 0], visible[:, 0]


def add_query_axis(
    epsilons: Sequence[float], attention: Sequence[Tensor] | Tensor
) -> dict[float, Tensor]:
    """Give the attention for each ε an axis of length 1 for the query.

    Models with a single query store their attention without this axis.

    Args:
        epsilons: Allowed output changes.
        attention: Attention ``[batch, keys]``, one tensor per ε.

    Returns:
        Attention ``[batch, 1, keys]`` by ε.
    """
    return {epsilon: weights[:, None] for epsilon, weights in zip(epsilons, attention, strict=True)}


def find_replaced_rows(observation: Observation, layer: int, query: int | None) -> Tensor:
    """Return which query rows in a layer get new attention.

    The distance between the original and the new attention is the mean over these rows.

    Args:
        observation: Model outputs and attention for a batch.
        layer: Attention layer.
        query: Single query row to be replaced. None replaces all rows that can influence the
            output.

    Returns:
        Mask, bool ``[batch, queries]``.
    """
    if query is None:
        return observation.find_effective_queries(layer)
    # Padding cannot attend to any key.
    is_real_token = observation.model.get_visible_keys(observation, layer).any(-1)
    is_requested = torch.zeros_like(is_real_token)
    is_requested[:, query] = True
    return is_real_token & is_requested


def _draw_noise(visible: Tensor, example_ids: Sequence[int], n_starts: int, seed: int) -> Tensor:
    """Draw random numbers from the standard normal distribution, one per attention weight.

    Args:
        visible: Which keys each query can attend to, bool ``[batch, queries, keys]``.
        example_ids: Ids of the texts.
        n_starts: Number of random starting points of a search.
        seed: Seed for the draw.

    Returns:
        Numbers ``[starts, batch, queries, keys]``; 0 for padding.
    """
    is_visible = visible.cpu().numpy()
    noise = np.zeros((n_starts, *is_visible.shape))
    for row, example_id in enumerate(example_ids):
        queries = is_visible[row].any(1)
        keys = is_visible[row].any(0)
        generator = create_random_generator(seed, int(example_id), STARTING_POINT_STREAM)
        # Only positions without padding are drawn, so that padding does not change the numbers.
        shape = (n_starts, queries.sum(), keys.sum())
        # All combinations of these queries and keys, in all starting points.
        positions = (slice(None), *np.ix_(queries, keys))
        noise[:, row][positions] = generator.standard_normal(shape)
    return torch.from_numpy(noise).to(visible.device)


class FarthestSearch:
    """Search for a site's most distant attention within each ε, and its best results so far.

    All heads' query rows are stacked, so that *rows* are one head's queries, or all queries in a
    head group.

    Attributes:
        original: The model's attention, ``[batch, rows, keys]``.
        visible: Keys that a row can attend to, bool ``[batch, rows, keys]``.
        replaced_rows: Rows whose attention is replaced, bool ``[batch, rows]``. Divergences are
            averaged over these rows.
        largest: Divergence of the most distant attention with any output, ``[batch]``.
        jsd: Divergence of the most distant attention found, ``[batch]`` by ε.
        attention: Most distant attention found, ``[batch, rows, keys]`` by ε. Empty for head
            groups.
    """

    def __init__(self, observation: Observation, site: Site, epsilons: Sequence[float]) -> None:
        self.observation, self.site = observation, site
        model = observation.model
        visible, replaced_rows = [], []
        for layer, heads in model.get_heads_by_layer(site).items():
            layer_visible = model.get_visible_keys(observation, layer)
            layer_replaced_rows = find_replaced_rows(observation, layer, site.query)
            visible.append(layer_visible.repeat(1, len(heads), 1))
            replaced_rows.append(layer_replaced_rows.repeat(1, len(heads)))
        self.original = self._stack_rows(observation.attention)
        self.visible = torch.cat(visible, dim=1)
        self.replaced_rows = torch.cat(replaced_rows, dim=1)
        self.largest = self._average_rows(largest_jsd(self.original, self.visible))
        self.jsd = dict.fromkeys(epsilons, torch.zeros_like(self.largest))
        self.attention: dict[float, Tensor] = {}
        if not site.is_group:
            self.attention = dict.fromkeys(epsilons, self.original)

    def _stack_rows(self, maps: Sequence[Tensor]) -> Tensor:
        """Stack each layer's map ``[batch, heads, queries, keys]`` to ``[batch, rows, keys]``."""
        heads_by_layer = self.observation.model.get_heads_by_layer(self.site)
        rows = [maps[layer][:, heads].flatten(1, 2) for layer, heads in heads_by_layer.items()]
        return torch.cat(rows, dim=1)

    def _average_rows(self, values: Tensor) -> Tensor:
        """Return the mean over the replaced rows, ``[..., batch, rows] -> [..., batch]``."""
        weights = self.replaced_rows.to(values.dtype)
        return (values * weights).sum(-1) / weights.sum(-1).clamp_min(1)

    def replay(self, rows: Tensor) -> Tensor:
        """Run copies of the batch with different attention and return the probabilities.

        Args:
            rows: New attention ``[copies, batch, rows, keys]``. The rows are the queries of all the
                site's heads, one head after the other and one layer after the other.

        Returns:
            Probabilities ``[copies, batch, classes]``.
        """
        observation = self.observation
        n_rows = {}
        for layer, heads in observation.model.get_heads_by_layer(self.site).items():
            n_rows[layer] = len(heads) * observation.attention[layer].shape[2]
        layer_rows = rows.split(list(n_rows.values()), dim=2)
        rows_by_layer = dict(zip(n_rows, layer_rows, strict=True))

        def replace_attention(layer: int, attention: Tensor) -> Tensor:
            # The rows are split into heads and queries again.
            return rows_by_layer[layer].unflatten(2, attention.shape[1:3])

        edited = observation.edit_attention(self.site, replace_attention)
        return observation.model.replay(observation, edited)

    @torch.no_grad()
    def add_candidates(self, candidates: Tensor, epsilons: Iterable[float] = ()) -> None:
        """Run the model with candidate attention, and store the best candidate for each ε.

        A candidate is stored if it changes the output by at most ε and differs more from the
        original attention (Jensen-Shannon divergence) than all earlier candidates.

        Args:
            candidates: Attention ``[copies, batch, rows, keys]``.
            epsilons: Allowed output changes for which the candidates are tested; by default all.
        """
        output_change = tvd(self.replay(candidates), self.observation.probs)
        divergence = self._average_rows(jsd(candidates, self.original))
        text = torch.arange(len(self.original), device=output_change.device)
        for epsilon in epsilons or self.jsd:
            # A candidate that changes the output too much gets −1, so that it is never the best.
            allowed_divergence = divergence.masked_fill(output_change > epsilon, -1)
            best_divergence, best_copy = allowed_divergence.max(0)
            is_farther = best_divergence > self.jsd[epsilon]
            self.jsd[epsilon] = torch.where(is_farther, best_divergence, self.jsd[epsilon])
            if epsilon in self.attention:
                current = self.attention[epsilon]
                best = candidates[best_copy, text].to(current.dtype)
                self.attention[epsilon] = torch.where(is_farther[:, None, None], best, current)

    def is_finished(self, epsilon: float) -> bool:
        """Check whether the search is already finished, because nothing better can be found.

        The search looks for attention that differs as much as possible from the original, while
        the output changes by at most ε. It is finished if the difference found for each text is as
        large as it could be if the output were allowed to change at will.

        Args:
            epsilon: Allowed output change ε.
        """
        upper_bound = self.largest
        best_found = self.jsd[epsilon]
        return bool((upper_bound - best_found <= JSD_ROUNDING).all())

    def generate_candidates(self) -> Iterator[Tensor]:
        """Yield candidates for attention that differs much but hardly changes the output.

        They are computed from the gradient of the output with respect to the attention. Each
        candidate is ``[batch, rows, keys]``. Rows outside :attr:`replaced_rows` keep their original
        attention.
        """
        gradient = self._stack_rows(self.observation.attention_gradient)
        is_replaceable = self.visible & self.replaced_rows[..., None]
        return generate_steered_candidates(self.original, gradient, is_replaceable)

    def search(self, start: Tensor, distance: Distance, epsilon: float, n_steps: int) -> Tensor:
        """Search for the attention of a single head that differs most from the original.

        This is the gradient search in Jain & Wallace 2019 (Algorithm 3). It only redistributes the
        weights on visible keys. The other weights are fixed.

        Args:
            start: Initial attention as logits, ``[copies, batch, queries, keys]``.
            distance: Function that returns the output change and its gradient.
            epsilon: Output change that the search aims at.
            n_steps: Number of steps.

        Returns:
            Attention ``[copies, batch, queries, keys]``.
        """
        # An attention row is fixed_weights + movable_sum · shares. The search only changes the
        # shares, which sum to 1.
        fixed_weights, movable_sum = split_fixed_weights(self.original, self.visible)
        original_shares = (self.original - fixed_weights) / movable_sum.clamp_min(SMALLEST_DIVISOR)
        movable_shares = search_adversarial_attention(
            start.flatten(1, 2),
            original_shares.flatten(0, 1),
            self.visible.flatten(0, 1),
            distance,
            epsilon=epsilon,
            n_steps=n_steps,
        )
        return movable_shares.unflatten(1, self.original.shape[:2]) * movable_sum + fixed_weights

    def draw_starts(self, settings: SearchSettings) -> Tensor:
        """Draw random attention logits at which searches start.

        They have a normal distribution with mean 0 and standard deviation 3.

        Args:
            settings: Number of starting points and seed.

        Returns:
            Logits ``[starts, batch, queries, keys]``.
        """
        example_ids = self.observation.batch.example_ids
        noise = _draw_noise(self.visible, example_ids, settings.n_starts, settings.seed)
        return 3 * noise.to(self.original)

    def measure_distance(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Run the model with candidate attention, and return the output change and its gradient.

        Args:
            candidates: Attention on the visible keys, ``[copies, batch · queries, keys]``. Each row
                sums to 1.

        Returns:
            Output changes ``[copies, batch · queries]``, and gradients with respect to the
            candidates, ``[copies, batch · queries, keys]``. The output change is the same for all
            queries in a text.
        """
        # An attention row is fixed_weights + movable_sum · shares. The candidates are the shares.
        fixed_weights, movable_sum = split_fixed_weights(self.original, self.visible)
        n_queries = self.original.shape[1]
        movable_shares = candidates.unflatten(1, self.original.shape[:2])
        with torch.enable_grad():
            movable_shares = movable_shares.detach().requires_grad_()
            probs = self.replay(movable_shares * movable_sum + fixed_weights)
            output_change = tvd(probs, self.observation.probs)
            (gradient,) = torch.autograd.grad(output_change.sum(), movable_shares)
        # The output change of a text is repeated for each query, [copies, batch, queries].
        row_changes = output_change.detach()[:, :, None].expand(-1, -1, n_queries)
        return row_changes.flatten(1, 2), gradient.flatten(1, 2)

    @property
    def result(self) -> AdversarialResult:
        """Search result, in which all divergences are lower bounds."""
        is_exact = torch.zeros_like(self.largest)
        return AdversarialResult(self.jsd, self.largest, is_exact, attention=self.attention)


# --- Linear read-outs, logit = Σ a_t u_t -------------------------------------------------------


def find_exact(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
) -> AdversarialResult:
    """Find the attention that differs most from the original, in a model with two classes.

    The logits must be linear in the attention. The attention may change the output by at most ε.
    The allowed attention rows then form a polytope, and the divergence is largest at one of its
    vertices. All vertices are compared, so that the result is exact, unless the text has more than
    :data:`~hf_attnprobe.functional.linear.MAX_EXACT_TOKENS` tokens.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.
        token_logits: Logits that result if one token receives all attention, ``[batch, keys, 2]``.
        epsilons: Allowed output changes.

    Returns:
        Statistics per text.
    """
    attention, visible = get_single_row(observation, site)
    # With two classes, the output only depends on the difference between the two logits.
    scores = token_logits[..., 1] - token_logits[..., 0]
    exact = epsilon_max_jsd(attention, scores, visible, epsilons)
    largest = largest_jsd(attention, visible)
    return AdversarialResult(
        epsilon_max_jsd=dict(zip(epsilons, exact.jsd, strict=True)),
        largest_jsd=largest,
        epsilon_max_jsd_exact=torch.full_like(largest, attention.shape[-1] <= MAX_EXACT_TOKENS),
        attention=add_query_axis(epsilons, exact.attention),
    )


def find_bounds(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
    n_steps: int,
) -> AdversarialResult:
    """Bound the largest divergence within each ε, for a linear read-out with several classes.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.
        token_logits: Logits u_t that the read-out gives each token, ``[batch, keys, classes]``.
        epsilons: Allowed output changes.
        n_steps: Number of gradient search steps, starting from the lower bound. 0 skips the search.

    Returns:
        Statistics per text.
    """
    attention, visible = get_single_row(observation, site)
    bounds = epsilon_max_jsd_bounds(attention, token_logits, visible, epsilons)
    farthest = FarthestSearch(observation, site, epsilons)
    farthest.jsd |= zip(epsilons, bounds.lower, strict=True)
    farthest.attention |= add_query_axis(epsilons, bounds.attention)
    if n_steps:
        distance = make_linear_distance(token_logits, observation.probs)
        for epsilon in epsilons:
            best = farthest.attention[epsilon].to(attention)
            start = best.clamp_min(SMALLEST_START_WEIGHT).log()[None]
            candidates = farthest.search(start, distance, epsilon, n_steps)
            farthest.add_candidates(candidates, [epsilon])
    upper = dict(zip(epsilons, bounds.upper, strict=True))
    return replace(farthest.result, epsilon_max_jsd_upper=upper)


def search_linear(
    observation: Observation,
    site: Site,
    token_logits: Tensor,
    epsilons: Sequence[float],
    settings: SearchSettings,
) -> AdversarialResult:
    """Search for attention that differs much from the original but hardly changes the output.

    This is the gradient search in Jain & Wallace 2019, which starts from random attention. The
    logits must be linear in the attention. The search can miss the attention that differs most, so
    its results are lower bounds.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.
        token_logits: Logits that result if one token receives all attention,
            ``[batch, keys, classes]``.
        epsilons: Allowed output changes.
        settings: Search settings.

    Returns:
        Statistics per text.
    """
    farthest = FarthestSearch(observation, site, epsilons)
    distance = make_linear_distance(token_logits, observation.probs)
    start = farthest.draw_starts(settings)
    candidates = farthest.search(start, distance, PAPER_EPSILON, settings.n_steps)
    farthest.add_candidates(candidates)
    return farthest.result


# --- Models that are not linear in their attention -------------------------------------------


def search_model(
    observation: Observation,
    site: Site,
    epsilons: Sequence[float],
    settings: SearchSettings,
) -> AdversarialResult:
    """Search for the most distant attention by running the model, for a head or a head group.

    The divergences are lower bounds.

    Candidates from the linearised model are tried for all sites. For a single head, the paper's
    search follows, and for a head with a single query also attention on one or two tokens.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        epsilons: Allowed output changes.
        settings: Search settings.

    Returns:
        Statistics per text.
    """
    farthest = FarthestSearch(observation, site, epsilons)
    candidates = farthest.generate_candidates()
    most_distant = next(candidates)
    farthest.add_candidates(most_distant[None])
    # For most heads, the output tolerates the most distant attention, so the search ends here.
    if farthest.is_finished(min(epsilons)):
        return farthest.result
    if site.is_group:
        # Copies of a model's whole attention are large, so they are tried one by one.
        for candidate in candidates:
            farthest.add_candidates(candidate[None])
            if farthest.is_finished(min(epsilons)):
                break
        return farthest.result
    farthest.add_candidates(torch.stack([*candidates]))
    if has_one_row(observation, site):
        _search_single_row(farthest, most_distant, settings)
        return farthest.result
    if settings.n_steps:
        is_replaced = farthest.replaced_rows[..., None]
        for epsilon in epsilons:
            start = farthest.draw_starts(settings)
            attention = farthest.search(start, farthest.measure_distance, epsilon, settings.n_steps)
            farthest.add_candidates(torch.where(is_replaced, attention, farthest.original))
    return farthest.result


def _search_single_row(
    farthest: FarthestSearch, most_distant: Tensor, settings: SearchSettings
) -> None:
    """Add candidates for a model with a single attention row.

    The first candidates put all attention on one or two tokens. The others come from the gradient
    search in Jain & Wallace 2019. It starts from random logits, from the best attention so far, and
    from ``most_distant``.

    Args:
        farthest: Search to which the candidates are added.
        most_distant: Attention that differs most from the original if the output may change
            arbitrarily, ``[batch, 1, keys]``.
        settings: Search settings.
    """
    attention, visible = farthest.original[:, 0], farthest.visible[:, 0]
    probs = farthest.observation.probs

    def replay(rows: Tensor) -> Tensor:
        # The model expects an axis for the query, between the batch and the keys.
        return farthest.replay(rows[:, :, None])

    for epsilon in farthest.jsd:
        on_two_tokens = search_edges_by_replay(attention, visible, replay, probs, epsilon)
        farthest.add_candidates(on_two_tokens[:, :, None])
        if settings.n_steps == 0 or farthest.is_finished(epsilon):
            continue
        best = farthest.attention[epsilon].to(most_distant)
        guided_starts = torch.stack([best, most_distant]).clamp_min(SMALLEST_START_WEIGHT).log()
        for start in (farthest.draw_starts(settings), guided_starts):
            candidates = farthest.search(
                start, farthest.measure_distance, SEARCH_TARGET_SHARE * epsilon, settings.n_steps
            )
            farthest.add_candidates(candidates)
