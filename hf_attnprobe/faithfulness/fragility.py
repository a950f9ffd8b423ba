"""How much of a model's score hangs on its attention?

Tutek & Šnajder 2020, Section 4.1.

Question: if the trained attention (Tr) is replaced by uniform attention (Un) or by a
          permutation of itself (Pm), how many texts does the model, otherwise left as
          it is, still get right?
Measure:  the predicted class under each, one row per text, so that any score and the
          interval of its change can be had from the rows. Of the permutations there are
          ``n_draws``, those of the test ``permutation``; a score under Pm is that of
          all draws together.
Compare:  the same model before and after training that ties its states to their words.
Reading:  a large loss means that attention matters to the decision; by itself it does
          not make attention faithful.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import Fragility
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.intervention import at_head, permute, uniform
from hf_attnprobe.protocol import Decisions, Observation, Site


READINGS: TestReadings = {
    "trained_share": share(
        "with its trained attention the model predicts class {key} in {mean:.0%} of texts"
    ),
    "uniform_share": share(
        "with uniform attention class {key} is predicted in {mean:.0%} of texts"
    ),
    "permuted_share": share(
        "with permuted attention class {key} is predicted in {mean:.0%} of draws"
    ),
    "trained_correct": share(
        "with its trained attention the model is right in {mean:.1%} of texts"
    ),
    "uniform_correct": share("with uniform attention the model is right in {mean:.1%} of texts"),
    "permuted_correct": share("with permuted attention the model is right in {mean:.1%} of draws"),
}


@dataclass(frozen=True)
class FragilityResult:
    """All [batch].

    Shares by class: whether it is predicted; for permutations the share of draws in which
    it is. Then the share that is correct, NaN for a text without a label.
    """

    trained_share: dict[int, Tensor]
    uniform_share: dict[int, Tensor]
    permuted_share: dict[int, Tensor]
    trained_correct: Tensor
    uniform_correct: Tensor
    permuted_correct: Tensor


@register_test(
    readings=READINGS,
    does="asks whether decisions stay with even and with shuffled attention",
    default="on request",
    needs=(Decisions,),
)
@torch.no_grad()
def fragility(
    observation: Observation,
    site: Site,
    options: Fragility = Fragility(),
    *,
    seed: int = 0,
) -> FragilityResult:
    """Compares the decision under trained, uniform and permuted attention of a head.

    As in ``permutation`` and ``uniform_attention`` every query's weights are replaced, over
    the keys it may see.
    """
    model, attention = observation.model, observation.attention[site.layer]
    trained = attention[:, site.head]
    flat = uniform(trained, model.visible(observation, site.layer))
    order = observation.permutations(site.layer, options.n_draws, seed)
    edits = torch.cat([flat[None], permute(trained, order)])
    edited = at_head(attention, site.head, site.query, edits)
    after = model.replay(observation, {site.layer: edited})
    outputs = torch.cat([observation.probs[None], after])
    right = _right(observation, outputs)
    return FragilityResult(
        _shares(observation, outputs[:1]),
        _shares(observation, outputs[1:2]),
        _shares(observation, outputs[2:]),
        right[0],
        right[1],
        right[2:].mean(0),
    )


def _shares(observation: Observation, outputs: Tensor) -> dict[int, Tensor]:
    """Share of the copies [copies, batch, entries] that predict each class.

    Empty where there are no classes to name.
    """
    prediction = observation.model.prediction
    decided = prediction.decision(outputs)[..., 0]
    return {k: (decided == k).double().mean(0) for k in range(len(prediction.class_names))}


def _right(observation: Observation, outputs: Tensor) -> Tensor:
    """Share of each text's labels that are predicted right, [copies, batch]; NaN without a
    label.
    """
    labels = observation.batch.labels
    if labels is None:
        return torch.full_like(outputs[..., 0], torch.nan)
    return observation.model.prediction.right(outputs, labels)
