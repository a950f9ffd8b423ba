"""Test ``fragility``: how much does the score of a model depend on its attention?

Tutek & Šnajder 2020, Section 4.1.

Question
    How many texts does a model still classify correctly if its trained attention (Tr) is replaced
    with uniform attention (Un) or with permuted attention (Pm), and nothing else changes?

Measure
    The predicted class with each type of attention, one row per text. Any score, and a confidence
    interval for its change, can be computed from these rows. There are ``n_draws`` permutations,
    the same as in the test ``permutation``. A score under Pm pools all draws.

Comparison
    The same model before and after training that ties its states to their words.

Interpretation
    A large loss means that attention matters to the decision. It does not show that attention is
    faithful.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import Fragility
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.intervention import make_uniform, permute, replace_head
from hf_attnprobe.protocol import Decisions, Observation, Site


READINGS: TestReadings = {
    "trained_share": make_share_reading(
        "with its trained attention the model predicts class {key} in {mean:.0%} of texts"
    ),
    "uniform_share": make_share_reading(
        "with uniform attention the model predicts class {key} in {mean:.0%} of texts"
    ),
    "permuted_share": make_share_reading(
        "with permuted attention the model predicts class {key} in {mean:.0%} of draws"
    ),
    "trained_correct": make_share_reading(
        "with its trained attention the model is right in {mean:.1%} of texts"
    ),
    "uniform_correct": make_share_reading(
        "with uniform attention the model is right in {mean:.1%} of texts"
    ),
    "permuted_correct": make_share_reading(
        "with permuted attention the model is right in {mean:.1%} of draws"
    ),
}


@dataclass(frozen=True)
class FragilityResult:
    """Statistics from the test ``fragility``: tensors ``[batch]``, or mappings to them by class.

    Attributes:
        trained_share: 1 if the class is predicted with the trained attention, else 0.
        uniform_share: 1 if the class is predicted with uniform attention, else 0.
        permuted_share: Share of the permutations with which the class is predicted.
        trained_correct: Share of the text's labels that are predicted correctly with the trained
            attention. This statistic and the next two are NaN in texts without a label.
        uniform_correct: Share of the labels predicted correctly with uniform attention.
        permuted_correct: Share of the labels predicted correctly with permuted attention, averaged
            over the permutations.
    """

    trained_share: dict[int, Tensor]
    uniform_share: dict[int, Tensor]
    permuted_share: dict[int, Tensor]
    trained_correct: Tensor
    uniform_correct: Tensor
    permuted_correct: Tensor


@register_test(
    readings=READINGS,
    summary="compares decisions under trained, uniform and shuffled attention",
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
    """Compare the decisions with a head's trained, uniform and permuted attention.

    Each query's weights are replaced over its visible keys, as in ``permutation`` and
    ``uniform_attention``.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head.
        options: Number of permutations.
        seed: Seed for the permutations.

    Returns:
        Statistics per text.
    """
    model, attention = observation.model, observation.attention[site.layer]
    trained = attention[:, site.head]
    uniform = make_uniform(trained, model.get_visible_keys(observation, site.layer))
    permutations = observation.draw_permutations(site.layer, options.n_draws, seed)
    edits = torch.cat([uniform[None], permute(trained, permutations)])
    edited_attention = replace_head(attention, site.head, site.query, edits)
    edited_probs = model.replay(observation, {site.layer: edited_attention})
    # Copy 0 has the trained attention, copy 1 uniform attention, the others permutations.
    probs = torch.cat([observation.probs[None], edited_probs])
    correct_shares = _compute_correct_shares(observation, probs)
    return FragilityResult(
        _compute_class_shares(observation, probs[:1]),
        _compute_class_shares(observation, probs[1:2]),
        _compute_class_shares(observation, probs[2:]),
        correct_shares[0],
        correct_shares[1],
        correct_shares[2:].mean(0),
    )


def _compute_class_shares(observation: Observation, probs: Tensor) -> dict[int, Tensor]:
    """Return the share of edited copies for which the model predicts each class.

    Args:
        observation: Model outputs and attention for a batch.
        probs: Probabilities for edited copies of the texts, ``[copies, batch, entries]``.

    Returns:
        Shares ``[batch]`` by class index; empty if the model has no class names.
    """
    prediction = observation.model.prediction
    # With classes, there is one decision per text.
    decisions = prediction.decide(probs)[..., 0]
    classes = range(len(prediction.class_names))
    return {label: (decisions == label).double().mean(0) for label in classes}


def _compute_correct_shares(observation: Observation, probs: Tensor) -> Tensor:
    """Return the share of labels that the model predicts correctly for each edited copy.

    In classification, it is 0 or 1, because a text has one label.

    Args:
        observation: Model outputs and attention for a batch.
        probs: Probabilities for edited copies of the texts, ``[copies, batch, entries]``.

    Returns:
        Shares ``[copies, batch]``; NaN in texts without a label.
    """
    labels = observation.batch.labels
    if labels is None:
        return torch.full_like(probs[..., 0], torch.nan)
    return observation.model.prediction.compute_accuracy(probs, labels)
