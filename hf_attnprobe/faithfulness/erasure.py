"""Do large weights matter to the decision?

Serrano & Smith 2019, Section 4: weights are erased, the encoder stays.

Question: does the size of an attention weight say how much the decision rests on what
          it weighs?
Measure:  weights are set to 0 and the rest divided by its sum. One weight: how much
          farther the output moves (JS, nats) without the largest than without another
          one drawn at random, and which of the two flip the decision. Sets: weights go
          in the order of a ranking until the decision flips; the share of the text's
          tokens that is gone by then, and of its attention.
Compare:  attention as a ranking with random orders, the gradient with respect to the
          weights, attention × gradient, leave-one-out, gradient × input; in heads of
          Transformers effective attention and norms; of a layer or of all heads
          together, attention rolled out and that of the last layer.
Lead:     behind the tokens that a decision rests on, it flips by the noise of the rest.
          So the same orders are followed until nine tenths of the decision's lead (its
          log-odds over each other class) are gone: the evidence, not the last tenth of
          it.
Exactly:  where the read-out is linear, the smallest set that flips the decision, what
          every ranking wastes, and how far it gets from a random order to that set. For
          two classes attention × gradient is, up to the bias, proportional to the
          margins that this set is made of.
Texts:    all orders are compared on the texts that some set flips (elsewhere: that some
          of the tried orders flips). There an order that never flips the decision counts
          as all tokens, and as all of their attention. The paper leaves such texts out,
          ranking by ranking, which lets worse rankings off on harder texts.
Target:   with a class to explain the decision is for it or not for it, and what speaks
          for the side that a text is on goes first: for the class or against it.
          Of more than two classes the smallest set is then not known: for a change
          towards the target it has to pass all others at once.
Reading:  attention is no ideal ranking where another flips the decision with less.
Caution:  where nearly all attention is gone, the decision rests on a small rest,
          divided by its sum: an input that the model never saw in training.

In a head, a word is erased in every query row, so what ranks it is read over all rows
that can reach the output. Special tokens keep their weight. In a group of heads a word
is erased in all of them at once. The exact minimum is out of reach for both:
``greedy_bound_size``, the least that any of the orders needed, bounds it from above.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import Erasure
from hf_attnprobe.faithfulness.rankings import (
    GIVEN,
    OF_GROUP,
    attention_of,
    is_possible,
    ranking,
    removals_until,
    tied,
)
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd
from hf_attnprobe.functional.erasure import (
    FlipSet,
    erase_each,
    minimal_flip_set,
    never_as_all,
    removal_order,
    removals_to_flip,
    way_to_best,
)
from hf_attnprobe.functional.intervention import (
    drawn_place,
    random_permutations,
    zero_out,
)
from hf_attnprobe.functional.rank import kendall_tau_b
from hf_attnprobe.protocol import (
    Decisions,
    LinearReadout,
    Observation,
    Site,
)


RANKINGS = (
    "attention",
    "gradient",
    "product",
    "leave_one_out",
    "input_gradient",
)
FROM_BELOW = ("attention", "gradient", "product")
"""The paper's rankings; ``least_attention`` is that of attention from its other end."""
OF_HEADS_ALONE = ("effective_attention", "norm_based")
ORDER_STREAM = 1 << 40  # added to the seed: other shuffles than ``permutation``'s
COPIES_AT_ONCE = 32
"""Of edited attention, for each layer of the site."""

READINGS: TestReadings = {
    "delta_js": (
        "erasing the largest weight moves the output by {mean:.3f} nats more than "
        "erasing another one"
    ),
    "delta_js_expected": (
        "erasing the largest weight moves the output by {mean:.3f} nats more than "
        "erasing any other does on average"
    ),
    "delta_js_unnormalised": (
        "if what is left is not renormalised, the largest weight moves the output by "
        "{mean:.3f} nats more than another"
    ),
    "delta_attention": "the largest weight is larger than that other one by {mean:.2f}",
    "top_moves_most": share(
        "in {mean:.0%} of texts no other single weight moves the output more than the largest"
    ),
    "top_flips": share("erasing the largest weight flips {decision} in {mean:.1%} of texts"),
    "random_flips": share("erasing a random other weight flips {decision} in {mean:.1%} of texts"),
    "only_top_flips": share(
        "in {mean:.1%} of texts the largest weight flips {decision} and the random other does not"
    ),
    "only_random_flips": share(
        "in {mean:.1%} of texts the random other weight flips {decision} and the largest does not"
    ),
    "both_flip": share("in {mean:.1%} of texts either of the two flips {decision}"),
    "neither_flips": share("in {mean:.1%} of texts neither of the two flips {decision}"),
    "fraction_to_flip": share(
        "in the order of {key}, {decision} flips when {mean:.0%} of the tokens are "
        "erased (of texts that can be flipped; never counts as all)"
    ),
    "never_flips": share(
        "in {mean:.0%} of the texts that can be flipped, the order of {key} never flips {decision}"
    ),
    "probability_mass_removed": (
        "in the order of {key}, {median:.0%} of the attention is gone when "
        "{decision} flips (median; never counts as all)"
    ),
    "minimal_fraction": share(
        "the smallest set that flips {decision} holds {mean:.0%} of the tokens"
    ),
    "minimal_size": ("the smallest set that flips {decision} has {median:g} tokens (median)"),
    "no_set_flips": share("in {mean:.0%} of texts no set of tokens flips {decision}"),
    "no_order_flips": share("in {mean:.0%} of texts none of the tried orders flips {decision}"),
    "regret": (
        "the order of {key} erases {mean:.1f} tokens more than are needed to flip "
        "{decision} (never counts as all)"
    ),
    "way_to_best": (
        "of the tokens that a random order erases beyond the smallest set, the order of {key} "
        "saves {mean:.0%} (mean over texts that some set flips)"
    ),
    "way_to_best_tried": (
        "of the tokens that a random order erases beyond the best order tried, the order of "
        "{key} saves {mean:.0%} (mean over texts that one of them flips)"
    ),
    "fraction_to_lose_lead": (
        "in the order of {key}, nine tenths of the lead are gone when {mean:.2f} of the "
        "tokens are erased (of texts in which some order gets there; never counts as all)"
    ),
    "lead_is_lost": share(
        "in {mean:.0%} of texts some order of erasing weights takes nine tenths of the lead"
    ),
    "product_margin_tau": (
        "attention × gradient and the exact margins order the tokens with rank "
        "correlation {mean:.2f}"
    ),
    "greedy_bound_size": (
        "at most {median:.0f} tokens need be erased to flip {decision}, by the best "
        "of the tried orders (median)"
    ),
}


@dataclass(frozen=True)
class ErasureResult:
    """All [batch], or [batch] by ranking. NaN for texts of one token.

    The single-weight cells are 0 or 1. ``no_set_flips`` is 0 or 1, known exactly where
    the read-out is linear; else ``no_order_flips`` says whether none of the tried orders
    flips the decision. What is by ranking is NaN where it is 1. On all other texts an
    order that never flips the decision counts as all tokens: fraction 1, the attention
    of all tokens, ``regret`` all tokens beyond the smallest set. ``random`` averages its
    draws, and its ``never_flips`` is the share of draws that do not; ``random_1`` is the
    first draw. With ``bottom_up`` its orders are among the tried ones.

    ``fraction_to_lose_lead`` is in (0, 1]: when nine tenths of the lead are gone, of
    several parts that of the first; NaN in texts in which no order gets there, empty for
    numbers. Its ``best`` is the smallest set, or where the read-out is not linear the
    best order tried. ``lead_is_lost`` is 1 where some order gets there, else 0.

    ``way_to_best`` is (random − it) / (random − smallest set), at most 1, negative where
    it is worse than a random order; NaN where a random order needs the least.
    ``way_to_best_tried`` is the same with the best of the tried orders, of
    ``greedy_bound_size`` tokens, in place of the smallest set. The exact ones are None or
    empty where the read-out is not linear, or a target is one of more than two classes,
    and those of tried orders elsewhere.
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
    does="sets weights to 0 one after the other until the decision flips",
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
    """Erases single weights at a site, and then all of them in the order of each ranking.

    Without ``renormalise`` the output moves for want of weight too.
    """
    observation = observation.explaining(options.target)
    attention = attention_of(observation, site)
    content, token_logits = (
        observation.batch.content_mask,
        observation.token_logits,
    )
    ranked = rankings(observation, site, seed)
    rules = {"renormalise": options.renormalise, "all_zero": options.all_zero}
    single = single_weight(observation, site, draw=options.draw, seed=seed, **rules)
    exact = _smallest(observation, attention, **rules)
    if exact is not None:
        ranked["margin"] = exact.margin
    if options.bottom_up:
        ranked |= {f"least_{name}": -ranked[name] for name in FROM_BELOW if name in ranked}
    order = orders(observation, content, ranked, options.n_random, seed)
    lost: Tensor | None = None
    if token_logits is not None:
        bias = observation.model.require(LinearReadout).readout_bias()
        n_removed = removals_to_flip(
            attention,
            token_logits,
            content,
            order,
            bias=bias,
            target=observation.explains,
            **rules,
        )
    else:
        n_removed, lost = _removals_by_replay(observation, site, order, content, **rules)
    names = ("random", *ranked)
    gathered = partial(
        _by_ranking,
        names=names,
        n_random=options.n_random,
        each=options.each_random,
    )
    n_tokens = content.sum(-1)
    best = _fewest(n_removed) if exact is None else exact.size
    can_flip = ~best.isnan()
    counted = never_as_all(n_removed, n_tokens, can_flip)
    removals = gathered(counted)
    never = n_removed.isnan().double().masked_fill(~can_flip, torch.nan)
    mass = _mass(attention * content, order, counted)
    way = {name: way_to_best(removals[name], removals["random"], best) for name in ranked}
    others: dict[str, Any] = {**single}  # fields of tensors and of tensors by ranking
    none = (~can_flip).double().masked_fill(n_tokens < 2, torch.nan)
    if exact is None:
        others |= {"greedy_bound_size": best, "no_order_flips": none}
        others["way_to_best_tried"] = way
    else:
        others |= _exact(exact, ranked["product"], content)
        others |= {"no_set_flips": none, "way_to_best": way}
        others["regret"] = {name: n - best for name, n in removals.items()}
    of_prediction = observation.explains is None or observation.probs.shape[-1] == 2
    if of_prediction and not observation.model.prediction.is_number:
        losing = _losing_lead(observation, attention, order, lost, gathered)
        is_lost = (~losing["best"].isnan()).double()
        others["fraction_to_lose_lead"] = losing
        others["lead_is_lost"] = is_lost.masked_fill(n_tokens < 2, torch.nan)
    return ErasureResult(
        **others,
        fraction_to_flip={name: n / n_tokens for name, n in removals.items()},
        never_flips=gathered(never),
        probability_mass_removed=gathered(mass),
    )


LEAD_KEPT = 0.1
"""Of the lead: what is left of it when the evidence counts as gone."""


def _losing_lead(
    observation: Observation,
    attention: Tensor,
    order: Tensor,
    lost: Tensor | None,
    gathered: Callable[[Tensor], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Share of the tokens erased by the time nine tenths of the lead are gone.

    By ranking, with ``best`` the fewest that do it: exactly where the read-out is
    linear, else of the tried orders.

    Args:
        attention: of the site, [batch, keys].
        order: [orders, batch, keys].
        lost: removals where the model was replayed, [orders, batch].
        gathered: from orders to rankings.
    """
    content, token_logits = (
        observation.batch.content_mask,
        observation.token_logits,
    )
    if token_logits is not None:
        logits = (attention[..., None] * token_logits).sum(1, keepdim=True)
        raised = token_logits.double() + _raise(logits.double())
        lost = removals_to_flip(attention, raised, content, order)
        fewest = minimal_flip_set(attention, raised, content).size
    else:
        assert lost is not None
        fewest = _fewest(lost)
    n_tokens = content.sum(-1)
    counted = never_as_all(lost, n_tokens, ~fewest.isnan())
    removals = gathered(counted) | {"best": fewest}
    return {name: n / n_tokens for name, n in removals.items()}


def _raise(logits: Tensor) -> Tensor:
    """What to add to each other class's logit so that a tenth of the lead becomes a tie.

    Shape: [..., classes] -> the same, 0 for the predicted class.
    """
    return LEAD_KEPT * (logits.amax(-1, keepdim=True) - logits)


def _raised(observation: Observation) -> Tensor:
    """What to multiply each other outcome's probability by so that a tenth of the lead becomes
    a tie.

    Shape: [batch, entries].
    """
    probs, prediction = observation.probs, observation.model.prediction
    if prediction.is_number:
        return torch.ones_like(probs)
    n_outcomes = prediction.n_outcomes or 1
    if prediction.n_parts is not None:
        n_outcomes = probs.shape[-1] // prediction.n_parts
    # A probability next to 1 has no digits below this one (float64: log-odds of 36).
    rounding = torch.finfo(probs.dtype).eps
    logs = probs.clamp_min(rounding).log().unflatten(-1, (-1, n_outcomes))
    return _raise(logs).exp().flatten(-2)


def _smallest(
    observation: Observation,
    attention: Tensor,
    *,
    renormalise: bool,
    all_zero: bool,
) -> FlipSet | None:
    """The smallest set that flips the decision; None where the read-out is not linear."""
    token_logits = observation.token_logits
    if token_logits is None:
        return None
    if observation.explains is not None and token_logits.shape[-1] > 2:
        return None
    return minimal_flip_set(
        attention,
        token_logits,
        observation.batch.content_mask,
        bias=observation.model.require(LinearReadout).readout_bias(),
        renormalise=renormalise,
        all_zero=all_zero,
    )


def rankings(observation: Observation, site: Site, seed: int = 0) -> dict[str, Tensor]:
    """The rankings that the model has, by which weights are erased, largest first.

    Args:
        seed: of scores that somebody gave, moved to other units.

    Returns:
        Dense ranks [batch, keys] by name.
    """
    names: tuple[str, ...] = (*RANKINGS, *GIVEN)
    if observation.token_logits is None:
        names = (*RANKINGS, *OF_HEADS_ALONE, *OF_GROUP, *GIVEN)
    return {
        name: ranking(observation, site, name, seed=seed, rows="reaching")
        for name in names
        if is_possible(observation, site, name)
    }


def orders(
    observation: Observation,
    content: Tensor,
    ranked: dict[str, Tensor],
    n_random: int,
    seed: int,
) -> Tensor:
    """Orders of removal: ``n_random`` random ones, then those of the rankings.

    Shape: int64 [orders, batch, keys].
    """
    ids = observation.batch.example_ids
    shuffled = random_permutations(
        content[:, None], n_random, seed=seed + ORDER_STREAM, example_ids=ids
    )[:, :, 0]
    ranks = torch.stack([*ranked.values()])
    return removal_order(torch.cat([shuffled.double(), ranks.double()]), content)


def _removals_by_replay(
    observation: Observation,
    site: Site,
    order: Tensor,
    content: Tensor,
    *,
    renormalise: bool,
    all_zero: bool,
) -> Tensor:
    """Like :func:`removals_to_flip`, but runs the model after every removal.

    Returns:
        Removals until the decision flips, and until nine tenths of its lead are gone,
        float64 [2, orders, batch].
    """
    n_tokens = content.sum(-1)
    steps = torch.arange(1, int(n_tokens.max()) + 1, device=content.device)
    counts = steps[:, None].expand(-1, len(content))
    raised = _raised(observation)

    def happens(gone: Tensor) -> Tensor:
        after = erased(observation, site, gone, renormalise=renormalise, all_zero=all_zero)
        is_real = ~after.isnan().any(-1)
        flips = observation.flips(after) & is_real
        loses = observation.flips(after * raised) & is_real
        return torch.stack([flips, loses])

    turns = order.argsort(-1)
    n_removed = removals_until(happens, 2, turns, content, counts)
    return n_removed.masked_fill(n_tokens < 2, torch.nan)


def _by_ranking(
    values: Tensor, *, names: tuple[str, ...], n_random: int, each: bool
) -> dict[str, Tensor]:
    """Splits [orders, batch] by ranking; the random orders are averaged and come first."""
    random = values[:n_random].mean(0)
    found = dict(zip(names, [random, *values[n_random:]], strict=True))
    if each:
        found |= {f"random_{n}": own for n, own in enumerate(values[:n_random], 1)}
    return found


def _mass(attention: Tensor, order: Tensor, n_removed: Tensor) -> Tensor:
    """Attention erased by the first ``n_removed`` tokens of each order, [orders, batch]."""
    in_order = attention.double().expand(order.shape).gather(-1, order)
    turns = torch.arange(order.shape[-1], device=order.device)
    gone = turns < n_removed[..., None]
    return (in_order * gone).sum(-1).masked_fill(n_removed.isnan(), torch.nan)


def _fewest(n_removed: Tensor) -> Tensor:
    """The fewest removals over all orders, [batch]; NaN where no order flips."""
    fewest = n_removed.nan_to_num(torch.inf).amin(0)
    return fewest.masked_fill(fewest.isinf(), torch.nan)


def _exact(smallest: FlipSet, product: Tensor, content: Tensor) -> dict[str, Tensor]:
    """Size of the smallest set that flips the decision, and τ of its margins with ``product``."""
    n_tokens = content.sum(-1)
    margin = tied("margin", smallest.margin, content)
    return {
        "minimal_fraction": smallest.size / n_tokens,
        "minimal_size": smallest.size,
        "product_margin_tau": kendall_tau_b(product, margin, content).tau,
    }


# --- One weight erased at a time (Serrano & Smith 2019, Section 4.2) ---------


DRAW_STREAM = 3  # apart from the other tests' random numbers


def erased(
    observation: Observation,
    site: Site,
    gone: Tensor,
    *,
    renormalise: bool = True,
    all_zero: bool = False,
) -> Tensor:
    """Probabilities [copies, batch, classes] with some weights of a site set to 0.

    They go in every query row, or in that of the site where it has one; of a group, in
    all of its heads at once.

    Args:
        gone: bool [copies, batch, keys], the units whose weights are set to 0.
        all_zero: keep the answer where no weight is left; else NaN.
    """
    n_layers = len(observation.model.members(site))
    parts = gone.split(max(1, COPIES_AT_ONCE // n_layers))
    together = partial(_erased, observation, site, renormalise)
    probs = torch.cat([*map(together, parts)])
    if all_zero:
        return probs
    left = (attention_of(observation, site) * ~gone).sum(-1, keepdim=True) > 0
    return probs.masked_fill(~left, torch.nan)


def _erased(observation: Observation, site: Site, renormalise: bool, gone: Tensor) -> Tensor:
    """:func:`erased` of few copies at once, also where no weight is left."""
    model = observation.model

    def change(layer: int, attention: Tensor) -> Tensor:
        keys = model.positions(observation, layer, gone)[:, :, None, None]
        movable = model.visible(observation, layer)[:, None]
        return zero_out(attention, keys, renormalise=renormalise, movable=movable)

    return model.replay(observation, observation.edited(site, change))


def other_positions(
    top: Tensor,
    content: Tensor,
    draw: str,
    *,
    seed: int,
    example_ids: Sequence[int],
) -> Tensor:
    """Draws another position of each text to compare ``top`` [batch] with.

    Shape: int64 [batch]; ``top`` itself in texts of one token.

    Args:
        content: bool [batch, keys].
        draw: "uniform" over the positions that are not ``top``; "released" as the
            paper's code has it: uniform over all but the first, so that the draw may be
            ``top``.
    """
    drawn = top.clone()
    for row, example_id in enumerate(example_ids):
        positions = content[row].nonzero()[:, 0]
        if len(positions) < 2:
            continue
        others = positions[1:] if draw == "released" else positions[positions != top[row]]
        place = drawn_place(seed, int(example_id), DRAW_STREAM, len(others))
        drawn[row] = others[place]
    return drawn


def single_weight(
    observation: Observation,
    site: Site,
    *,
    renormalise: bool,
    draw: str,
    all_zero: bool,
    seed: int,
) -> dict[str, Tensor]:
    """The statistics of erasing one weight, by name, each [batch].

    NaN for texts of one token.
    """
    attention = attention_of(observation, site)
    content = observation.batch.content_mask
    top = attention.masked_fill(~content, -1).argmax(-1)
    other = other_positions(
        top, content, draw, seed=seed, example_ids=observation.batch.example_ids
    )
    pair = torch.stack([top, other])[..., None]
    gone = torch.zeros_like(content).expand(2, -1, -1).scatter(-1, pair, True)
    erase = partial(erased, observation, site, gone, all_zero=all_zero)
    probs = erase(renormalise=renormalise).double()
    as_left = erase(renormalise=False).double() if renormalise else probs
    top_weight, other_weight = attention.expand(2, -1, -1).gather(-1, pair)[..., 0]
    values = {
        "delta_js": _top_minus_other(observation, probs),
        "delta_js_unnormalised": _top_minus_other(observation, as_left),
        "delta_attention": top_weight - other_weight,
        **_flips(observation, probs),
    }
    token_logits = observation.token_logits
    if token_logits is not None:
        bias = observation.model.require(LinearReadout).readout_bias()
        weights = attention * content
        each = erase_each(weights, token_logits, bias=bias, renormalise=renormalise)
        if not all_zero:
            each = _where_left(each, weights)
        values |= _against_all(observation, each, top, content)
    return _where(values, content.sum(-1) > 1)


def _where(values: dict[str, Tensor], defined: Tensor) -> dict[str, Tensor]:
    """The values as float64; NaN where they are undefined."""
    return {name: value.double().masked_fill(~defined, torch.nan) for name, value in values.items()}


def _top_minus_other(observation: Observation, after: Tensor) -> Tensor:
    """JS(p, without the top weight) − JS(p, without the other); NaN for a number."""
    if observation.model.prediction.is_number:
        return torch.full_like(after[0, ..., 0], torch.nan, dtype=torch.float64)
    top, other = jsd(observation.probs.double(), after)
    return top - other


def _flips(observation: Observation, after: Tensor) -> dict[str, Tensor]:
    """Which of the two erasures flip the decision.

    NaN where one leaves nothing to decide on.
    """
    top, other = observation.flips(after)
    cells = {
        "top_flips": top,
        "random_flips": other,
        "only_top_flips": top & ~other,
        "only_random_flips": other & ~top,
        "both_flip": top & other,
        "neither_flips": ~(top | other),
    }
    return _where(cells, ~after.isnan().any(-1).any(0))


def _where_left(after: Tensor, attention: Tensor) -> Tensor:
    """Logits without each weight [batch, keys, classes].

    NaN where no other token has any.
    """
    weighed = attention > 0
    alone = weighed.sum(-1, keepdim=True) <= weighed
    return after.masked_fill(alone[..., None], torch.nan)


def _against_all(
    observation: Observation, after: Tensor, top: Tensor, content: Tensor
) -> dict[str, Tensor]:
    """Compares the top weight with every other one instead of a drawn one.

    Shape: after, the logits without each weight, [batch, keys, classes].
    """
    before = observation.probs.double().unsqueeze(1)
    moved = jsd(before, after.softmax(-1))
    place = top[:, None]
    own = moved.gather(-1, place)[:, 0]
    others = moved.masked_fill(~content, 0).scatter(-1, place, 0)
    n_others = content.sum(-1) - 1
    mean = others.sum(-1) / n_others
    # Rounding aside: of two equal tokens either is the one that moves most.
    largest = others.amax(-1)
    most = own >= largest * (1 - 1e-6) - 1e-15
    return {
        "delta_js_expected": own - mean,
        "top_moves_most": most.double().masked_fill(own.isnan(), torch.nan),
    }
