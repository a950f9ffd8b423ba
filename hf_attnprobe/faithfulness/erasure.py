"""Test ``erasure``: do large attention weights matter to the decision?

Serrano & Smith 2019, Section 4. Weights are set to 0, and the encoder's states stay as they are.

Question
    Does the size of an attention weight indicate how much the decision depends on its token?

Measure
    An erased weight is set to 0, and the remaining weights are divided by their sum.

    - Single weights: the largest weight is compared with a random other weight. The test reports
      which of the two changes the output more when it is erased (Jensen-Shannon divergence, in
      nats), and which of the two flips the decision.
    - Sets of weights: weights are erased in ranking order until the decision flips. The test
      reports the share of the tokens that have been erased at that step, and their attention.

Compared rankings
    - Always: attention, random orders, the gradient with respect to the weights, attention ×
      gradient, leave-one-out, and gradient × input.
    - For single Transformer heads: also effective attention and norm-based attention.
    - For a layer or for all heads together: also attention rollout.
    - For all heads together: also the attention of the last layer.

Margin
    When all important tokens have been erased, noise in the other tokens determines when the
    decision flips. The test therefore also reports when an order has removed nine tenths of a
    margin. A margin is the log-odds between the predicted class and another class. The statistics
    ``fraction_to_lose_lead`` and ``lead_is_lost`` call it the lead.

Exact statistics
    With a linear read-out, the smallest set of weights that flips the decision is known. The test
    reports how many more weights each ranking erases than this set contains. It also reports the
    position of the ranking between a random order (0) and the smallest set (1).

    The smallest set is determined by the token margins. For two classes, they are proportional to
    attention × gradient, up to the bias.

Compared texts
    All orders are compared on the same texts: those in which some set of weights flips the
    decision. (Without a linear read-out, only the tested orders are known.) In these texts, an
    order that never flips the decision counts as all tokens and all of their attention.

    The paper omits such texts for each ranking separately. This favours rankings that fail on
    difficult texts.

Explained class
    With a target class, the decision is for or against this class. The tokens that support the
    predicted side are erased first. If the model has more than two classes, the smallest set is not
    known for a target class, because the target must overtake all other classes at once.

Interpretation
    Attention is not an ideal ranking if another ranking flips the decision with fewer tokens. After
    nearly all attention has been erased, the decision depends on a few renormalised weights, which
    is an input that the model never saw in training.

Transformers
    In a head, a unit is erased in every query row. Rankings by the attention therefore use all rows
    that can influence the output. Special tokens keep their weights. In a head group, a unit is
    erased in all heads at once. The smallest set is not known; ``greedy_bound_size``, the smallest
    number that any order needs, is an upper bound for its size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import Erasure
from hf_attnprobe.faithfulness.rankings import (
    FITTED_MAP_RANKING,
    GROUP_RANKINGS,
    USER_SCORE_RANKINGS,
    compute_ranking,
    compute_site_attention,
    count_removals_until,
    is_ranking_available,
    rank_scores,
)
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd
from hf_attnprobe.functional.erasure import (
    FlipSet,
    compute_removal_order,
    count_removals_to_flip,
    erase_each_weight,
    find_minimal_flip_set,
    normalise_removals,
    replace_unflipped_counts,
)
from hf_attnprobe.functional.intervention import (
    draw_index,
    draw_permutations,
    zero_out,
)
from hf_attnprobe.functional.rank import kendall_tau_b
from hf_attnprobe.protocol import (
    Decisions,
    LinearReadout,
    Observation,
    Site,
)


ERASURE_RANKINGS = (
    "attention",
    "gradient",
    "product",
    "leave_one_out",
    "input_gradient",
)
"""Names of the rankings by which attention weights are erased in every model, most important weight
first."""
REVERSIBLE_RANKINGS = ("attention", "gradient", "product")
"""Names of the rankings that are also used in reverse order, least important weight first. For
example, the reverse of ``attention`` is called ``least_attention``."""
SINGLE_HEAD_RANKINGS = ("effective_attention", "norm_based")
"""Names of the rankings that are only available for single heads in Transformers. They take the
value vectors into account."""
ERASURE_SEED_OFFSET = 1 << 40
"""Number that is added to the seed for random erasure orders. Otherwise, these orders would equal
the shuffles in the test ``permutation``."""
MAX_EDITED_LAYERS_PER_PASS = 32
"""Largest number of layers whose attention is edited in one forward pass, summed over all copies of
the batch. It limits the memory."""
REMAINING_MARGIN_SHARE = 0.1
"""Share of the original margin at which the evidence for a decision counts as erased. The margin is
the predicted class's logit minus the logit of another class."""

READINGS: TestReadings = {
    "delta_js": (
        "erasing the largest weight moves the output by {mean:.3f} nats more than erasing a "
        "random other weight"
    ),
    "delta_js_expected": (
        "erasing the largest weight moves the output by {mean:.3f} nats more than erasing another "
        "weight does on average"
    ),
    "delta_js_unnormalised": (
        "without renormalising the remaining weights, erasing the largest weight moves the output "
        "by {mean:.3f} nats more than erasing a random other weight"
    ),
    "delta_attention": "the largest weight exceeds the random other weight by {mean:.2f}",
    "top_moves_most": make_share_reading(
        "in {mean:.0%} of texts no other single weight moves the output more than the largest"
    ),
    "top_flips": make_share_reading(
        "erasing the largest weight flips {decision} in {mean:.1%} of texts"
    ),
    "random_flips": make_share_reading(
        "erasing a random other weight flips {decision} in {mean:.1%} of texts"
    ),
    "only_top_flips": make_share_reading(
        "in {mean:.1%} of texts the largest weight flips {decision} and the random other weight "
        "does not"
    ),
    "only_random_flips": make_share_reading(
        "in {mean:.1%} of texts the random other weight flips {decision} and the largest weight "
        "does not"
    ),
    "both_flip": make_share_reading(
        "in {mean:.1%} of texts either of the two weights flips {decision}"
    ),
    "neither_flips": make_share_reading(
        "in {mean:.1%} of texts neither of the two weights flips {decision}"
    ),
    "fraction_to_flip": make_share_reading(
        "in the order of {key}, {decision} flips when {mean:.0%} of the tokens have been erased "
        "(texts that can be flipped; an order that never flips counts as all tokens)"
    ),
    "never_flips": make_share_reading(
        "in {mean:.0%} of the texts that can be flipped, the order of {key} never flips {decision}"
    ),
    "probability_mass_removed": (
        "in the order of {key}, {median:.0%} of the attention has been erased when {decision} "
        "flips (median; an order that never flips counts as all tokens)"
    ),
    "minimal_fraction": make_share_reading(
        "the smallest set that flips {decision} contains {mean:.0%} of the tokens"
    ),
    "minimal_size": "the smallest set that flips {decision} has {median:g} tokens (median)",
    "no_set_flips": make_share_reading("in {mean:.0%} of texts no set of tokens flips {decision}"),
    "no_order_flips": make_share_reading(
        "in {mean:.0%} of texts none of the tested orders flips {decision}"
    ),
    "regret": (
        "the order of {key} erases {mean:.1f} tokens more than necessary to flip {decision} (an "
        "order that never flips counts as all tokens)"
    ),
    "way_to_best": (
        "the order of {key} avoids {mean:.0%} of the tokens that a random order erases beyond the "
        "smallest set (mean over texts that some set flips)"
    ),
    "way_to_best_tried": (
        "the order of {key} avoids {mean:.0%} of the tokens that a random order erases beyond the "
        "best tested order (mean over texts that some order flips)"
    ),
    "fraction_to_lose_lead": (
        "in the order of {key}, nine tenths of the margin are lost when {mean:.2f} of the tokens "
        "have been erased (texts in which some order achieves this; an order that does not counts "
        "as all tokens)"
    ),
    "lead_is_lost": make_share_reading(
        "in {mean:.0%} of texts some order of erasing weights removes nine tenths of the margin"
    ),
    "product_margin_tau": (
        "attention × gradient and the exact token margins have a rank correlation of {mean:.2f}"
    ),
    "greedy_bound_size": (
        "at most {median:.0f} tokens need to be erased to flip {decision}, by the best tested "
        "order (median)"
    ),
}


@dataclass(frozen=True)
class ErasureResult:
    """Statistics from the test ``erasure``: tensors ``[batch]``, or mappings to them by ranking.

    All values are NaN in one-token texts. Statistics by ranking are also NaN in texts that cannot
    be flipped. In all other texts, an order that never flips the decision counts as all tokens. The
    ranking ``random`` is the mean over all random orders, and ``random_1`` is the first of them.
    Statistics about the smallest set are None or empty if the read-out is not linear, or if a
    target is one of more than two classes; statistics about tested orders are None or empty
    otherwise.

    Attributes:
        delta_js: Output change (Jensen-Shannon, nats) without the largest weight, minus the output
            change without a random other weight.
        delta_attention: Largest weight minus random other weight.
        top_flips: 1 if the decision flips without the largest weight, else 0.
        random_flips: 1 if it flips without the random other weight, else 0.
        only_top_flips: 1 if only the first of the two flips the decision, else 0.
        only_random_flips: 1 if only the second of the two flips the decision, else 0.
        both_flip: 1 if each of the two flips the decision, else 0.
        neither_flips: 1 if neither of the two flips the decision, else 0.
        delta_js_unnormalised: ``delta_js`` with the remaining weights left as they are.
        fraction_to_flip: Share of the tokens that are erased when the decision flips, in (0, 1].
        never_flips: 1 if the order never flips the decision, else 0. For ``random``, the share of
            the random orders that never flip it.
        probability_mass_removed: Attention that is erased when the decision flips, in [0, 1].
        delta_js_expected: ``delta_js`` with the mean over all other weights. Linear read-outs only.
        top_moves_most: 1 if no other weight moves the output more than the largest. Linear
            read-outs only.
        minimal_fraction: Share of the tokens in the smallest set that flips the decision.
        minimal_size: Number of tokens in the smallest set that flips the decision.
        no_set_flips: 1 if no set of tokens flips the decision, else 0.
        no_order_flips: 1 if none of the tested orders flips the decision, else 0.
        fraction_to_lose_lead: Share of the tokens that have been erased when nine tenths of the
            margin are lost, in (0, 1]; NaN in texts in which no order achieves this. ``best`` is
            the smallest set, or the best tested order. If the prediction has several parts, the
            first part to lose its margin counts. Empty for numbers.
        lead_is_lost: 1 if some order removes nine tenths of the margin, else 0.
        regret: Number of tokens that the order erases beyond the smallest set's size.
        way_to_best: (random − order) / (random − smallest set), with the numbers of erased tokens;
            at most 1, negative if the order is worse than a random one. NaN if a random order needs
            no more tokens than the smallest set.
        way_to_best_tried: ``way_to_best`` with the best tested order instead of the smallest set.
        product_margin_tau: Kendall's τ-b between attention × gradient and the exact token margins.
        greedy_bound_size: Number of tokens that the best tested order erases.
    """

    delta_js: Tensor
    delta_attention: Tensor
    top_flips: Tensor
    random_flips: Tensor
    only_top_flips: Tensor
    only_random_flips: Tensor
    both_flip: Tensor
    neither_flips: Tensor
    delta_js_unnormalised: Tensor
    fraction_to_flip: dict[str, Tensor]
    never_flips: dict[str, Tensor]
    probability_mass_removed: dict[str, Tensor]
    delta_js_expected: Tensor | None = None
    top_moves_most: Tensor | None = None
    minimal_fraction: Tensor | None = None
    minimal_size: Tensor | None = None
    no_set_flips: Tensor | None = None
    no_order_flips: Tensor | None = None
    fraction_to_lose_lead: dict[str, Tensor] = field(default_factory=dict)
    lead_is_lost: Tensor | None = None
    regret: dict[str, Tensor] = field(default_factory=dict)
    way_to_best: dict[str, Tensor] = field(default_factory=dict)
    way_to_best_tried: dict[str, Tensor] = field(default_factory=dict)
    product_margin_tau: Tensor | None = None
    greedy_bound_size: Tensor | None = None


@register_test(
    readings=READINGS,
    summary="sets attention weights to 0 one after the other until the decision flips",
    groups=True,
    needs=(Decisions,),
)
@torch.no_grad()
def erasure(
    observation: Observation,
    site: Site,
    options: Erasure = Erasure(),
    *,
    seed: int = 0,
) -> ErasureResult:
    """Erase single weights at a site, and then all weights in each ranking's order.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose weights are erased.
        options: Erasure rules and compared orders. Without ``renormalise``, the output also moves
            because the sum of the weights shrinks.
        seed: Seed for the random orders and the random other weight.

    Returns:
        Statistics per text.
    """
    observation = observation.with_target(options.target)
    attention = compute_site_attention(observation, site)
    content = observation.batch.content_mask
    token_logits = observation.token_logits
    n_tokens = content.sum(-1)
    rules = {"renormalise": options.renormalise, "all_zero": options.all_zero}

    statistics: dict[str, Any] = measure_single_weight(
        observation, site, draw=options.draw, seed=seed, **rules
    )
    ranks_by_name = compute_rankings(observation, site, seed)
    smallest_set = _find_smallest_flip_set(observation, attention, **rules)
    if smallest_set is not None:
        ranks_by_name["margin"] = smallest_set.token_margins
    if options.bottom_up:
        reversible = [name for name in REVERSIBLE_RANKINGS if name in ranks_by_name]
        ranks_by_name |= {f"least_{name}": -ranks_by_name[name] for name in reversible}
    order = build_removal_orders(observation, content, ranks_by_name, options.n_random, seed)

    margin_removals: Tensor | None = None
    if token_logits is not None:
        bias = observation.model.require(LinearReadout).get_readout_bias()
        n_removed = count_removals_to_flip(
            attention,
            token_logits,
            content,
            order,
            bias=bias,
            target=observation.explained_class,
            **rules,
        )
    else:
        n_removed, margin_removals = _count_removals_by_replay(
            observation, site, order, content, **rules
        )

    group_by_ranking = partial(
        _group_by_ranking,
        names=("random", *ranks_by_name),
        n_random=options.n_random,
        each_random=options.each_random,
    )
    if smallest_set is None:
        fewest_removals = _find_fewest_removals(n_removed)
    else:
        fewest_removals = smallest_set.size
    can_flip = ~fewest_removals.isnan()
    cannot_flip = (~can_flip).double().masked_fill(n_tokens < 2, torch.nan)
    never_flips = n_removed.isnan().double().masked_fill(~can_flip, torch.nan)
    order_counts = replace_unflipped_counts(n_removed, n_tokens, can_flip)
    counts = group_by_ranking(order_counts)
    positions = {
        name: normalise_removals(counts[name], counts["random"], fewest_removals)
        for name in ranks_by_name
    }
    if smallest_set is None:
        statistics["greedy_bound_size"] = fewest_removals
        statistics["no_order_flips"] = cannot_flip
        statistics["way_to_best_tried"] = positions
    else:
        statistics |= _compute_exact_statistics(smallest_set, ranks_by_name["product"], content)
        statistics["no_set_flips"] = cannot_flip
        statistics["way_to_best"] = positions
        statistics["regret"] = {name: count - fewest_removals for name, count in counts.items()}
    has_margin = observation.explained_class is None or observation.probs.shape[-1] == 2
    if has_margin and not observation.model.prediction.is_number:
        fractions = _measure_margin_loss(
            observation, site, attention, order, margin_removals, group_by_ranking
        )
        is_margin_lost = (~fractions["best"].isnan()).double()
        statistics["fraction_to_lose_lead"] = fractions
        statistics["lead_is_lost"] = is_margin_lost.masked_fill(n_tokens < 2, torch.nan)
    erased_attention = _sum_erased_attention(attention * content, order, order_counts)
    return ErasureResult(
        **statistics,
        fraction_to_flip={name: count / n_tokens for name, count in counts.items()},
        never_flips=group_by_ranking(never_flips),
        probability_mass_removed=group_by_ranking(erased_attention),
    )


# --- Orders of removal -----------------------------------------------------------------------


def compute_rankings(observation: Observation, site: Site, seed: int = 0) -> dict[str, Tensor]:
    """Rank the tokens by attention and by all other available importance scores.

    Each ranking gives an order in which attention weights are erased.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        seed: Seed for the shuffled user-provided scores.

    Returns:
        Ranks ``[batch, keys]`` by ranking name. The token with the largest rank is erased first.
    """
    added_names = (FITTED_MAP_RANKING, *USER_SCORE_RANKINGS)
    names: tuple[str, ...] = (*ERASURE_RANKINGS, *added_names)
    # Models with a linear read-out have token logits. For all other models, more rankings exist.
    if observation.token_logits is None:
        names = (*ERASURE_RANKINGS, *SINGLE_HEAD_RANKINGS, *GROUP_RANKINGS, *added_names)
    return {
        name: compute_ranking(observation, site, name, seed=seed, rows="reaching")
        for name in names
        if is_ranking_available(observation, site, name)
    }


def build_removal_orders(
    observation: Observation,
    content: Tensor,
    ranks_by_name: dict[str, Tensor],
    n_random: int,
    seed: int,
) -> Tensor:
    """List the orders in which tokens are removed: first random orders, then one per ranking.

    Args:
        observation: Model outputs and attention for a batch.
        content: Whether each key is a token to be removed (no padding or special token), bool
            ``[batch, keys]``.
        ranks_by_name: Ranks ``[batch, keys]`` by ranking name. The largest rank is removed first.
        n_random: Number of random orders.
        seed: Seed for the random orders.

    Returns:
        Positions of the tokens in removal order, int64 ``[orders, batch, keys]``.
    """
    # draw_permutations works on [batch, queries, keys]. An axis with a single query is added here,
    # and removed from the result [orders, batch, queries, keys].
    random_scores = draw_permutations(
        content[:, None],
        n_random,
        seed=seed + ERASURE_SEED_OFFSET,
        example_ids=observation.batch.example_ids,
    ).squeeze(2)
    ranks = torch.stack([*ranks_by_name.values()])
    return compute_removal_order(torch.cat([random_scores.double(), ranks.double()]), content)


def _group_by_ranking(
    values: Tensor, *, names: tuple[str, ...], n_random: int, each_random: bool
) -> dict[str, Tensor]:
    """Split values by ranking, and average the values for the random orders.

    Args:
        values: Values ``[orders, batch]``, one row for each order that
            :func:`build_removal_orders` returns. The random orders come first.
        names: "random", followed by the ranking names.
        n_random: Number of random orders.
        each_random: Whether the result also contains the values for each single random order, as
            "random_1", "random_2" and so on.

    Returns:
        Values ``[batch]`` by ranking name.
    """
    random_mean = values[:n_random].mean(0)
    values_by_name = dict(zip(names, [random_mean, *values[n_random:]], strict=True))
    if each_random:
        for number, random_values in enumerate(values[:n_random], 1):
            values_by_name[f"random_{number}"] = random_values
    return values_by_name


# --- Sets of weights that flip the decision (Serrano & Smith 2019, Section 4.3) --------------


def _find_smallest_flip_set(
    observation: Observation,
    attention: Tensor,
    *,
    renormalise: bool,
    all_zero: bool,
) -> FlipSet | None:
    """Return the smallest set of attention weights whose erasure flips the decision.

    Args:
        observation: Model outputs and attention for a batch.
        attention: Attention ``[batch, keys]``.
        renormalise: Whether the remaining weights are divided by their sum.
        all_zero: Whether all weights may be erased.

    Returns:
        The set; None if it cannot be computed. It is only computed for models whose logits are
        linear in the attention. If a class to be explained was chosen, the model must also have
        two classes.
    """
    token_logits = observation.token_logits
    if token_logits is None:
        return None
    if observation.explained_class is not None and token_logits.shape[-1] > 2:
        return None
    return find_minimal_flip_set(
        attention,
        token_logits,
        observation.batch.content_mask,
        bias=observation.model.require(LinearReadout).get_readout_bias(),
        renormalise=renormalise,
        all_zero=all_zero,
    )


def _count_removals_by_replay(
    observation: Observation,
    site: Site,
    order: Tensor,
    content: Tensor,
    *,
    renormalise: bool,
    all_zero: bool,
) -> Tensor:
    """Count the removals until the decision flips and until the margin is lost.

    In contrast to :func:`count_removals_to_flip`, the model is run after every removal.

    Returns:
        Removal counts, float64 ``[2, orders, batch]``. The margin counts as lost when nine tenths
        of it have been removed.
    """
    n_tokens = content.sum(-1)
    steps = torch.arange(1, int(n_tokens.max()) + 1, device=content.device)
    counts = steps[:, None].expand(-1, len(content))
    margin_factors = _compute_margin_factors(observation)

    def detect_events(is_erased: Tensor) -> Tensor:
        probs = predict_without_weights(
            observation, site, is_erased, renormalise=renormalise, all_zero=all_zero
        )
        is_defined = ~probs.isnan().any(-1)
        flips = observation.find_flips(probs) & is_defined
        loses_margin = observation.find_flips(probs * margin_factors) & is_defined
        return torch.stack([flips, loses_margin])

    places = order.argsort(-1)
    n_removed = count_removals_until(detect_events, 2, places, content, counts)
    return n_removed.masked_fill(n_tokens < 2, torch.nan)


def _find_fewest_removals(n_removed: Tensor) -> Tensor:
    """Return the fewest removals over all orders, ``[batch]``; NaN if no order flips."""
    fewest = n_removed.nan_to_num(torch.inf).amin(0)
    return fewest.masked_fill(fewest.isinf(), torch.nan)


def _sum_erased_attention(attention: Tensor, order: Tensor, n_removed: Tensor) -> Tensor:
    """Sum the attention on the tokens that an order removes first.

    Args:
        attention: Attention ``[batch, keys]``.
        order: Positions of the tokens in removal order, int64 ``[orders, batch, keys]``.
        n_removed: Number of removed tokens, ``[orders, batch]``; NaN if it is undefined.

    Returns:
        Sums ``[orders, batch]``; NaN if ``n_removed`` is NaN.
    """
    ordered_attention = attention.double().expand(order.shape).gather(-1, order)
    index_in_order = torch.arange(order.shape[-1], device=order.device)
    is_erased = index_in_order < n_removed[..., None]
    erased_attention = (ordered_attention * is_erased).sum(-1)
    return erased_attention.masked_fill(n_removed.isnan(), torch.nan)


def _compute_exact_statistics(
    smallest_set: FlipSet, product_ranks: Tensor, content: Tensor
) -> dict[str, Tensor]:
    """Return statistics about the smallest set of weights whose erasure flips the decision.

    These are the size of the set, and the size divided by the number of tokens. The third statistic
    is the rank correlation (Kendall's τ-b) between attention × gradient and the token margins. The
    margin of a token is its contribution to the decision.

    Args:
        smallest_set: Smallest set of weights that flips the decision, with the token margins.
        product_ranks: Ranks by attention × gradient, ``[batch, keys]``.
        content: Whether each key is a token to be ranked (no padding or special token), bool
            ``[batch, keys]``.
    """
    margin_ranks = rank_scores("margin", smallest_set.token_margins, content)
    return {
        "minimal_fraction": smallest_set.size / content.sum(-1),
        "minimal_size": smallest_set.size,
        "product_margin_tau": kendall_tau_b(product_ranks, margin_ranks, content).tau,
    }


# --- Loss of nine tenths of the margin -------------------------------------------------------
# Before each comparison, every other class's logit is raised by a tenth of its distance to the
# predicted class. A decision by the raised logits flips exactly when a tenth of the original margin
# is left, so that the same code counts removals until a flip and until the margin is lost.


def _measure_margin_loss(
    observation: Observation,
    site: Site,
    attention: Tensor,
    order: Tensor,
    margin_removals: Tensor | None,
    group_by_ranking: Callable[[Tensor], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Return the share of tokens erased when nine tenths of the margin are lost.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose weights are erased.
        attention: Site attention, ``[batch, keys]``.
        order: Removal orders, ``[orders, batch, keys]``.
        margin_removals: Removals until the margin is lost, ``[orders, batch]``, if they were
            counted by running the model. None for linear read-outs, for which they are computed.
        group_by_ranking: Function that splits values by order into values by ranking.

    Returns:
        Shares ``[batch]`` by ranking. The entry ``best`` is the smallest set for linear read-outs
        and the best tested order otherwise.
    """
    content = observation.batch.content_mask
    token_logits = observation.token_logits
    if token_logits is not None:
        logits = (attention[..., None] * token_logits).sum(1, keepdim=True)
        raised_logits = token_logits.double() + _compute_margin_offsets(logits.double())
        margin_removals = count_removals_to_flip(attention, raised_logits, content, order)
        fewest_removals = find_minimal_flip_set(attention, raised_logits, content).size
    else:
        assert margin_removals is not None
        fewest_removals = _find_fewest_removals(margin_removals)
    margin_removals, fewest_removals = _count_last_removals(
        observation, site, attention, order, margin_removals, fewest_removals
    )
    n_tokens = content.sum(-1)
    counts = replace_unflipped_counts(margin_removals, n_tokens, ~fewest_removals.isnan())
    counts_by_ranking = group_by_ranking(counts) | {"best": fewest_removals}
    return {name: count / n_tokens for name, count in counts_by_ranking.items()}


def _count_last_removals(
    observation: Observation,
    site: Site,
    attention: Tensor,
    order: Tensor,
    margin_removals: Tensor,
    fewest_removals: Tensor,
) -> tuple[Tensor, Tensor]:
    """Count the removal of the last positive weight in texts that have weights of exactly 0.

    After this removal, only tokens with the weight 0 remain, so no attention is left. Models with
    sparse attention often need this step, because their attention is on a single token. In texts
    without zero weights, it would remove the whole text, and it is not counted. If the model
    decides the same without any attention, then the step does not count either.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group whose weights are erased.
        attention: Site attention, ``[batch, keys]``.
        order: Removal orders, ``[orders, batch, keys]``.
        margin_removals: Removals until the margin is lost, ``[orders, batch]``.
        fewest_removals: Smallest such number of removals, ``[batch]``.

    Returns:
        Both numbers of removals with the last step.
    """
    content = observation.batch.content_mask
    is_positive = (attention > 0) & content
    has_zeros = is_positive.any(-1) & (content & ~is_positive).any(-1)
    if not has_zeros.any():
        return margin_removals, fewest_removals
    probs = predict_without_weights(observation, site, content[None], all_zero=True)[0]
    prediction = observation.model.prediction
    decisions = prediction.decide(observation.probs)
    margin = prediction.compute_decision_margins(observation.probs, decisions)
    margin_without_attention = prediction.compute_decision_margins(probs, decisions)
    is_lost = has_zeros & (margin_without_attention <= REMAINING_MARGIN_SHARE * margin)
    turns = order.argsort(-1)
    last_positive_turn = turns.masked_fill(~is_positive, -1).amax(-1)
    n_until_empty = (last_positive_turn + 1).double()
    n_positive = is_positive.sum(-1).double()
    return (
        torch.fmin(margin_removals, n_until_empty).where(is_lost, margin_removals),
        torch.fmin(fewest_removals, n_positive).where(is_lost, fewest_removals),
    )


def _compute_margin_offsets(logits: Tensor) -> Tensor:
    """Return a small bonus for the logit of each class that is not predicted.

    The bonus is a tenth of the distance between this logit and the largest logit. With the bonus,
    the decision already flips when nine tenths of the distance are erased. For example, the logits
    (2, 1) have the offsets (0, 0.1).

    Args:
        logits: Logits or log-probabilities ``[..., classes]``.

    Returns:
        Offsets ``[..., classes]``; 0 for the predicted class.
    """
    return REMAINING_MARGIN_SHARE * (logits.amax(-1, keepdim=True) - logits)


def _compute_margin_factors(observation: Observation) -> Tensor:
    """Return a factor above 1 for the probability of each class that is not predicted.

    With these factors, the decision already flips when nine tenths of the evidence for it are
    erased. The factors are the exponentials of the offsets in :func:`_compute_margin_offsets`.

    Returns:
        Factors ``[batch, entries]``; 1 for the predicted outcome.
    """
    probs, prediction = observation.probs, observation.model.prediction
    if prediction.is_number:
        return torch.ones_like(probs)
    # A prediction with several parts, such as one tag per word, has the same outcomes in each part.
    n_outcomes = prediction.n_outcomes or 1
    if prediction.n_parts is not None:
        n_outcomes = probs.shape[-1] // prediction.n_parts
    # The logarithm of 0 is infinite, so smaller probabilities are replaced by the machine precision.
    smallest_prob = torch.finfo(probs.dtype).eps
    log_probs = probs.clamp_min(smallest_prob).log().unflatten(-1, (-1, n_outcomes))
    return _compute_margin_offsets(log_probs).exp().flatten(-2)


# --- Predictions without some weights --------------------------------------------------------


def predict_without_weights(
    observation: Observation,
    site: Site,
    is_erased: Tensor,
    *,
    renormalise: bool = True,
    all_zero: bool = False,
) -> Tensor:
    """Return the probabilities with the attention to some units set to 0.

    The weights are erased in every query row, or only in row ``site.query``. In a group, they are
    erased in all heads at once.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        is_erased: Units whose weights are erased, bool ``[copies, batch, keys]``.
        renormalise: Whether the remaining weights are divided by their sum.
        all_zero: Whether to return the output without any attention if no weight remains. By
            default, NaN is returned in this case.

    Returns:
        Probabilities ``[copies, batch, classes]``.
    """
    probs = observation.model.replay_without_units(
        observation, site, is_erased, renormalise=renormalise
    )
    if probs is None:
        n_layers = len(observation.model.get_heads_by_layer(site))
        chunks = is_erased.split(max(1, MAX_EDITED_LAYERS_PER_PASS // n_layers))
        replay = partial(_replay_without_weights, observation, site, renormalise)
        probs = torch.cat([*map(replay, chunks)])
    if all_zero:
        return probs
    attention = compute_site_attention(observation, site)
    remaining_attention = (attention * ~is_erased).sum(-1, keepdim=True)
    return probs.masked_fill(~(remaining_attention > 0), torch.nan)


def _replay_without_weights(
    observation: Observation, site: Site, renormalise: bool, is_erased: Tensor
) -> Tensor:
    """Run the model on a few copies of a batch with the attention to some units set to 0.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        renormalise: Whether the remaining weights are divided by their sum.
        is_erased: Units whose weights are erased, bool ``[copies, batch, keys]``.

    Returns:
        Probabilities ``[copies, batch, classes]``.
    """
    model = observation.model

    def erase(layer: int, attention: Tensor) -> Tensor:
        # Axes for heads and queries are added to the masks.
        keys = model.get_unit_positions(observation, layer, is_erased)[:, :, None, None]
        # Only visible keys (no padding) can receive the weight of the erased keys.
        movable = model.get_visible_keys(observation, layer)[:, None]
        return zero_out(attention, keys, renormalise=renormalise, movable=movable)

    return model.replay(observation, observation.edit_attention(site, erase))


# --- Erasure of a single weight (Serrano & Smith 2019, Section 4.2) --------------------------

OTHER_WEIGHT_STREAM = 3
"""Index of the random number stream that draws another attention weight in each text. Its effect is
compared with the effect of the largest weight."""


def draw_other_positions(
    top: Tensor,
    content: Tensor,
    draw: str,
    *,
    seed: int,
    example_ids: Sequence[int],
) -> Tensor:
    """Draw a position in each text to be compared with the most attended position.

    Args:
        top: Most attended position in each text, int64 ``[batch]``.
        content: Whether each key is a token that can be drawn (no padding or special token), bool
            ``[batch, keys]``.
        draw: "uniform" draws from all positions except ``top``. "released" draws from all positions
            except the first, like the code released with Serrano & Smith 2019, and can return
            ``top``.
        seed: Seed for the draw.
        example_ids: Ids of the texts.

    Returns:
        Positions, int64 ``[batch]``; ``top`` in texts with a single token.
    """
    drawn_positions = top.clone()
    for row, example_id in enumerate(example_ids):
        positions = content[row].nonzero()[:, 0]
        if len(positions) < 2:
            continue
        candidates = positions[1:] if draw == "released" else positions[positions != top[row]]
        index = draw_index(seed, int(example_id), OTHER_WEIGHT_STREAM, len(candidates))
        drawn_positions[row] = candidates[index]
    return drawn_positions


def measure_single_weight(
    observation: Observation,
    site: Site,
    *,
    renormalise: bool,
    draw: str,
    all_zero: bool,
    seed: int,
) -> dict[str, Tensor]:
    """Compare how the output changes without the largest weight and without another weight.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        renormalise: Whether the remaining weights are divided by their sum.
        draw: How to draw the other weight, see :func:`draw_other_positions`.
        all_zero: Whether to use the output without any attention if no weight remains.
        seed: Seed for the draw.

    Returns:
        Statistics ``[batch]`` by name; NaN for one-token texts.
    """
    attention = compute_site_attention(observation, site)
    content = observation.batch.content_mask
    top = attention.masked_fill(~content, -1).argmax(-1)
    other = draw_other_positions(
        top, content, draw, seed=seed, example_ids=observation.batch.example_ids
    )
    pair = torch.stack([top, other])[..., None]
    is_erased = torch.zeros_like(content).expand(2, -1, -1).scatter(-1, pair, True)
    erase = partial(predict_without_weights, observation, site, is_erased, all_zero=all_zero)
    probs = erase(renormalise=renormalise).double()
    unnormalised_probs = erase(renormalise=False).double() if renormalise else probs
    top_weight, other_weight = attention.expand(2, -1, -1).gather(-1, pair)[..., 0]
    statistics = {
        "delta_js": _compare_output_changes(observation, probs),
        "delta_js_unnormalised": _compare_output_changes(observation, unnormalised_probs),
        "delta_attention": top_weight - other_weight,
        **_detect_flips(observation, probs),
    }
    token_logits = observation.token_logits
    if token_logits is not None:
        bias = observation.model.require(LinearReadout).get_readout_bias()
        weights = attention * content
        logits = erase_each_weight(weights, token_logits, bias=bias, renormalise=renormalise)
        if not all_zero:
            logits = _mask_lone_weights(logits, weights)
        statistics |= _compare_with_all_weights(observation, logits, top, content)
    return _mask_undefined(statistics, content.sum(-1) > 1)


def _mask_undefined(statistics: dict[str, Tensor], is_defined: Tensor) -> dict[str, Tensor]:
    """Return the statistics as float64, with NaN in the texts in which they are undefined."""
    return {
        name: values.double().masked_fill(~is_defined, torch.nan)
        for name, values in statistics.items()
    }


def _compare_output_changes(observation: Observation, probs: Tensor) -> Tensor:
    """Compare the effects of the largest weight and of a random other weight on the output.

    Args:
        observation: Model outputs and attention for a batch.
        probs: Probabilities without the largest weight (row 0) and without a random other weight
            (row 1), ``[2, batch, classes]``.

    Returns:
        Change without the largest weight minus change without the other weight, ``[batch]``. The
        changes are Jensen-Shannon divergences in nats. NaN for models that predict a number.
    """
    if observation.model.prediction.is_number:
        return torch.full_like(probs[0, ..., 0], torch.nan, dtype=torch.float64)
    top_change, other_change = jsd(observation.probs.double(), probs)
    return top_change - other_change


def _detect_flips(observation: Observation, probs: Tensor) -> dict[str, Tensor]:
    """Return which of two erasures flip the decision, ``[batch]`` by statistic.

    Args:
        observation: Model outputs and attention for a batch.
        probs: Probabilities without the largest weight (row 0) and without a random other weight
            (row 1), ``[2, batch, classes]``. Statistics are NaN in texts with NaN probabilities.
    """
    # The first axis of `probs` has the two erasures.
    top_flips, other_flips = observation.find_flips(probs)
    flips = {
        "top_flips": top_flips,
        "random_flips": other_flips,
        "only_top_flips": top_flips & ~other_flips,
        "only_random_flips": other_flips & ~top_flips,
        "both_flip": top_flips & other_flips,
        "neither_flips": ~(top_flips | other_flips),
    }
    return _mask_undefined(flips, ~probs.isnan().any(-1).any(0))


def _mask_lone_weights(logits: Tensor, attention: Tensor) -> Tensor:
    """Set the logits to NaN where erasing a weight leaves only zero weights in the text.

    Args:
        logits: Logits after each weight alone is erased, ``[batch, keys, classes]``.
        attention: Attention ``[batch, keys]``.
    """
    is_positive = attention > 0
    # Number of positive weights that remain after each weight alone is erased.
    n_remaining = is_positive.sum(-1, keepdim=True) - is_positive.long()
    return logits.masked_fill((n_remaining == 0)[..., None], torch.nan)


def _compare_with_all_weights(
    observation: Observation, logits: Tensor, top: Tensor, content: Tensor
) -> dict[str, Tensor]:
    """Test whether erasing the largest weight changes the output more than erasing other weights.

    Args:
        observation: Model outputs and attention for a batch.
        logits: Logits after each weight alone is erased, ``[batch, keys, classes]``.
        top: Position of the largest weight, int64 ``[batch]``.
        content: Whether each key is a token to be erased (no padding or special token), bool
            ``[batch, keys]``.

    Returns:
        Two statistics ``[batch]``. ``delta_js_expected`` is the JSD when the largest weight is
        erased, minus the mean JSD when one of the other weights is erased. ``top_moves_most`` is 1
        if erasing the largest weight changes the output most, and 0 otherwise.
    """
    original_probs = observation.probs.double().unsqueeze(1)
    changes = jsd(original_probs, logits.softmax(-1))
    top_index = top[:, None]
    top_change = changes.gather(-1, top_index)[:, 0]
    # The change for the largest weight is set to 0, so that only other weights are summed.
    other_changes = changes.masked_fill(~content, 0).scatter(-1, top_index, 0)
    n_others = content.sum(-1) - 1
    mean_change = other_changes.sum(-1) / n_others
    # The tolerance lets either of two equal tokens count as the token with the largest change.
    largest_change = other_changes.amax(-1)
    top_moves_most = top_change >= largest_change * (1 - 1e-6) - 1e-15
    return {
        "delta_js_expected": top_change - mean_change,
        "top_moves_most": top_moves_most.double().masked_fill(top_change.isnan(), torch.nan),
    }
