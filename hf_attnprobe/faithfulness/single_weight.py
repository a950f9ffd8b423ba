"""One weight erased at a time: the single-weight half of ``erasure``.

Serrano & Smith 2019, Section 4.2.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from hf_attnprobe.attention_model import LinearReadout, Observation, Site
from hf_attnprobe.faithfulness.rankings import attention_of
from hf_attnprobe.functional.divergence import jsd
from hf_attnprobe.functional.erasure import erase_each
from hf_attnprobe.functional.intervention import drawn_place, zero_out


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
    model = observation.model

    def change(layer: int, attention: Tensor) -> Tensor:
        keys = model.positions(observation, layer, gone)[:, :, None, None]
        movable = model.visible(observation, layer)[:, None]
        return zero_out(
            attention, keys, renormalise=renormalise, movable=movable
        )

    probs = model.replay(observation, observation.edited(site, change))
    if all_zero:
        return probs
    left = (attention_of(observation, site) * ~gone).sum(-1, keepdim=True) > 0
    return probs.masked_fill(~left, torch.nan)


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
        others = (
            positions[1:]
            if draw == "released"
            else positions[positions != top[row]]
        )
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
    top_weight, other_weight = attention.expand(2, -1, -1).gather(-1, pair)[
        ..., 0
    ]
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
        each = erase_each(
            weights, token_logits, bias=bias, renormalise=renormalise
        )
        if not all_zero:
            each = _where_left(each, weights)
        values |= _against_all(observation, each, top, content)
    return _where(values, content.sum(-1) > 1)


def _where(values: dict[str, Tensor], defined: Tensor) -> dict[str, Tensor]:
    """The values as float64; NaN where they are undefined."""
    return {
        name: value.double().masked_fill(~defined, torch.nan)
        for name, value in values.items()
    }


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
