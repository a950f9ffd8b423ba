"""One weight erased at a time: the single-weight half of ``erasure``.

Serrano & Smith 2019, Section 4.2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_attnprobe.attention_model import LinearReadout, Observation, Site
from hf_attnprobe.functional.divergence import jsd
from hf_attnprobe.functional.erasure import erase_each
from hf_attnprobe.functional.intervention import at_head, random_generator, zero_out


DRAW_STREAM = 3  # apart from the other tests' random numbers


def erased(
    observation: Observation,
    site: Site,
    gone: Tensor,
    *,
    renormalise: bool = True,
    all_zero: bool = False,
) -> Tensor:
    """Probabilities [copies, batch, classes] with some weights of one head set to 0.

    The weights are edited in every query row, or in that of the site where it has one.

    Args:
        gone: bool [copies, batch, keys], the units whose weights are set to 0.
        all_zero: keep the answer where the row that is read has no weight left; else NaN.
    """
    model, attention = observation.model, observation.attention[site.layer]
    places = model.positions(observation, site.layer, gone).unsqueeze(-2)
    new = zero_out(attention[:, site.head], places, renormalise=renormalise)
    probs = model.replay(
        observation, {site.layer: at_head(attention, site.head, site.query, new)}
    )
    left = (observation.read(site) * ~gone).sum(-1, keepdim=True) > 0
    return probs if all_zero else probs.masked_fill(~left, torch.nan)


def other_positions(
    top: Tensor, content: Tensor, draw: str, *, seed: int, example_ids: Sequence[int]
) -> Tensor:
    """A random position of each text to compare ``top`` [batch] with.

    Shape: int64 [batch]; ``top`` itself in texts of one token.

    Args:
        content: bool [batch, keys].
        draw: "uniform" over the positions that are not ``top``; "released" as the
            paper's code has it: uniform over all but the first, so that the draw may be
            ``top``.
    """
    own = (content.cumsum(-1).gather(-1, top[:, None])[:, 0] - 1).tolist()
    wanted = []
    for place, length, example_id in zip(
        own, content.sum(-1).tolist(), example_ids, strict=True
    ):
        random = random_generator(seed, int(example_id), DRAW_STREAM)
        if length < 2:
            wanted.append(place)
        elif draw == "released":
            wanted.append(int(random.integers(1, length)))
        else:
            chosen = int(random.integers(length - 1))
            wanted.append(chosen + (chosen >= place))
    rank = torch.tensor(wanted, device=content.device)[:, None] + 1
    return ((content.cumsum(-1) == rank) & content).to(torch.int8).argmax(-1)


def single_weight(
    observation: Observation,
    site: Site,
    *,
    renormalise: bool,
    draw: str,
    all_zero: bool,
    seed: int,
) -> dict[str, Tensor]:
    """The statistics of the single-weight test by name, each [batch].

    NaN for texts of one token.
    """
    attention, content = observation.read(site), observation.batch.content_mask
    top = attention.masked_fill(~content, -1).argmax(-1)
    other = other_positions(
        top, content, draw, seed=seed, example_ids=observation.batch.example_ids
    )
    pair = torch.stack([top, other])
    gone = torch.zeros(
        2, *content.shape, dtype=torch.bool, device=content.device
    ).scatter(-1, pair[..., None], True)

    def after(renormalise: bool) -> Tensor:
        return erased(
            observation, site, gone, renormalise=renormalise, all_zero=all_zero
        ).double()

    probs = after(renormalise)
    weights = attention.gather(-1, pair.t())
    found = {
        "delta_js": _top_minus_other(observation, probs),
        "delta_js_unnormalised": _top_minus_other(
            observation, after(False) if renormalise else probs
        ),
        "delta_attention": weights[:, 0] - weights[:, 1],
        **_flips(observation, probs),
    }
    token_logits = observation.token_logits
    if token_logits is not None:
        each = erase_each(
            attention * content,
            token_logits,
            bias=observation.model.require(LinearReadout).readout_bias(),
            renormalise=renormalise,
        )
        found |= _against_all(
            observation,
            each if all_zero else _where_left(each, attention * content),
            top,
            content,
        )
    return {
        name: value.double().masked_fill(content.sum(-1) < 2, torch.nan)
        for name, value in found.items()
    }


def _top_minus_other(observation: Observation, after: Tensor) -> Tensor:
    """JS(p, without the top weight) − JS(p, without the other)."""
    return jsd(observation.probs.double(), after).diff(dim=0)[0].neg()


def _flips(observation: Observation, after: Tensor) -> dict[str, Tensor]:
    """Which of the two erasures change the decision.

    NaN where one leaves nothing to decide on.
    """
    top, other = after.argmax(-1) != observation.probs.argmax(-1)
    cells = {
        "top_flips": top,
        "random_flips": other,
        "only_top_flips": top & ~other,
        "only_random_flips": other & ~top,
        "both_flip": top & other,
        "neither_flips": ~(top | other),
    }
    undefined = after.isnan().any(-1).any(0)
    return {
        name: cell.double().masked_fill(undefined, torch.nan)
        for name, cell in cells.items()
    }


def _where_left(after: Tensor, attention: Tensor) -> Tensor:
    """Logits without each weight [batch, keys, classes].

    NaN where no other token has any.
    """
    alone = (attention > 0).sum(-1, keepdim=True) <= (attention > 0)
    return after.masked_fill(alone.unsqueeze(-1), torch.nan)


def _against_all(
    observation: Observation, after: Tensor, top: Tensor, content: Tensor
) -> dict[str, Tensor]:
    """Against all other weights instead of one that is drawn.

    Shape: after, the logits without each weight, [batch, keys, classes].
    """
    moved = jsd(observation.probs.double().unsqueeze(1), after.softmax(-1))
    own = moved.gather(-1, top[:, None])[:, 0]
    others = moved.masked_fill(~content, 0).scatter(-1, top[:, None], 0)
    mean = others.sum(-1) / (content.sum(-1) - 1)
    # Rounding aside: of two equal tokens either is the one that moves most.
    most = own >= others.amax(-1) * (1 - 1e-6) - 1e-15
    return {
        "delta_js_expected": own - mean,
        "top_moves_most": most.double().masked_fill(own.isnan(), torch.nan),
    }
