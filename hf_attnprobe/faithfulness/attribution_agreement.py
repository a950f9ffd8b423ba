"""Test ``attribution_agreement``: is attention distributed over a text like its attributions?

Mohankumar et al. 2020, Section 5.3.

Question
    Do tokens receive attention in proportion to their influence on the output?

Measure
    Pearson correlation and Jensen-Shannon divergence between a text's attention and (a) |gradient ×
    input| with the attention held fixed, (b) |integrated gradients| from zero embeddings
    (Sundararajan et al. 2017). Each quantity is divided by its sum over the text's tokens, without
    special tokens.

Baseline
    The agreement between (a) and (b), two attributions. The paper compares trained models with each
    other.

Interpretation
    Correlation 1 and divergence 0: equal shares. Correlation 0: no linear relation. Divergence .69
    (ln 2): the shares are on different tokens.

Integrated gradients
    By default, the gradients flow through the attention. The sum over all tokens then equals the
    difference between the output and the output for zero embeddings. ``integrated_gap`` is the
    error in this sum.

    The error is large if the output jumps near zero embeddings. This happens if a normalisation
    layer stretches tiny embeddings to full size, as in models without position embeddings.
    Additional integration points do not resolve the jump.

    In the paper's released code, no gradient flows through the attention. It is recomputed at each
    of 50 points of the trapezoidal rule. ``attention=held`` does the same with Gauss-Legendre
    points.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.options import AttributionAgreement
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.functional.predictions import sum_entries
from hf_attnprobe.functional.similarity import pearson
from hf_attnprobe.protocol import (
    Differentiable,
    IntegratedGradients,
    Observation,
    Site,
)


COMPARED_SCORE_PAIRS = (
    ("attention", "gradient"),
    ("attention", "integrated"),
    ("gradient", "integrated"),
)
"""Pairs of token scores whose agreement is measured: attention weights, gradient × input, and
integrated gradients. For example, ``attention_gradient_pearson`` is a statistic for the first
pair."""
READINGS = {
    "attention_gradient_pearson": (
        "the shares of attention and of |gradient × input| have a Pearson correlation of "
        "{mean:.2f} over a text's tokens (1 is proportional)"
    ),
    "attention_gradient_jsd": (
        "the shares of attention and of |gradient × input| have a divergence of {mean:.2f} (at "
        "most 0.69)"
    ),
    "attention_integrated_pearson": (
        "the shares of attention and of |integrated gradients| have a Pearson correlation of "
        "{mean:.2f}"
    ),
    "attention_integrated_jsd": (
        "the shares of attention and of |integrated gradients| have a divergence of {mean:.2f} (at "
        "most 0.69)"
    ),
    "gradient_integrated_pearson": (
        "the two attributions, the baseline, have a Pearson correlation of {mean:.2f}"
    ),
    "gradient_integrated_jsd": (
        "the two attributions have a divergence of {mean:.2f} (at most 0.69)"
    ),
    "integrated_gap": (
        "the sum of integrated gradients differs from the change in probability by {mean:.3f}"
    ),
}


@dataclass(frozen=True)
class AttributionAgreementResult:
    """Statistics from the test ``attribution_agreement``, tensors ``[batch]``.

    Correlations are in [−1, 1] and divergences in [0, ln 2] nats. Both are NaN if one of the
    compared quantities is 0 everywhere; correlations are also NaN in one-token texts and for
    constant shares. In two-token texts, a correlation is −1 or 1.

    Attributes:
        attention_gradient_pearson: Correlation between attention and |gradient × input|.
        attention_gradient_jsd: Divergence between attention and |gradient × input|.
        attention_integrated_pearson: Correlation between attention and |integrated gradients|.
        attention_integrated_jsd: Divergence between attention and |integrated gradients|.
        gradient_integrated_pearson: Correlation between the two attributions.
        gradient_integrated_jsd: Divergence between the two attributions.
        integrated_gap: |Σ integrated gradients − (p(text) − p(embeddings of 0))| over all tokens,
            including special tokens. None if the attention is held.
    """

    attention_gradient_pearson: Tensor
    attention_gradient_jsd: Tensor
    attention_integrated_pearson: Tensor
    attention_integrated_jsd: Tensor
    gradient_integrated_pearson: Tensor
    gradient_integrated_jsd: Tensor
    integrated_gap: Tensor | None = None


@register_test(
    readings=READINGS,
    summary="compares attention with integrated gradients",
    needs=(Differentiable, IntegratedGradients),
    default="on request",
    groups=True,
)
def attribution_agreement(
    observation: Observation,
    site: Site,
    options: AttributionAgreement = AttributionAgreement(),
    *,
    seed: int = 0,
) -> AttributionAgreementResult:
    """Compare how attention, gradients and integrated gradients are distributed over the tokens.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head or head group.
        options: Explained class and integration.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    observation = observation.with_target(options.target)
    content = observation.batch.content_mask
    integrated = compute_integrated_gradients(observation, options)
    shares = {
        "attention": _compute_shares(observation.read(site), content),
        "gradient": _compute_shares(observation.compute_gradient_importance(), content),
        "integrated": _compute_shares(integrated.abs(), content),
    }
    statistics = {}
    for first, second in COMPARED_SCORE_PAIRS:
        correlation = pearson(shares[first], shares[second], content)
        statistics[f"{first}_{second}_pearson"] = correlation
        statistics[f"{first}_{second}_jsd"] = jsd(shares[first], shares[second])
    if options.attention == "free":
        statistics["integrated_gap"] = _compute_completeness_gap(observation, integrated)
    return AttributionAgreementResult(**statistics)


def compute_integrated_gradients(
    observation: Observation,
    options: AttributionAgreement = AttributionAgreement(),
) -> Tensor:
    """Compute how much each token contributes to the explained class's probability.

    The method is integrated gradients. The result is stored with the observation, so that other
    tests with the same options can use it again.

    Args:
        observation: Model outputs and attention for a batch.
        options: Number of integration points, and whether gradients flow through the attention.

    Returns:
        Signed attributions ``[batch, keys]``.
    """

    def compute() -> Tensor:
        model = observation.model.require(IntegratedGradients)
        # None selects the explained class, which by default is the predicted class.
        target_classes = observation.get_target_classes(None)
        return model.compute_integrated_gradients(
            observation,
            target_classes,
            options.n_steps,
            through_attention=options.attention == "free",
        )

    key = "integrated gradients", observation.explained_class, options
    return observation.remember(key, compute)


def _compute_completeness_gap(observation: Observation, integrated: Tensor) -> Tensor:
    """Return the numerical error of integrated gradients, ``[batch]``.

    The attributions of all tokens should sum to the difference between the output for the text and
    the output for zero embeddings. The error is the absolute difference between the two. It would
    be 0 with infinitely many integration points.

    Args:
        observation: Model outputs and attention for a batch.
        integrated: Integrated gradients ``[batch, keys]``.
    """
    model = observation.model.require(IntegratedGradients)
    probs_at_zero = observation.remember(
        "probs_without_embeddings",
        lambda: model.compute_zero_embedding_probs(observation),
    )
    target_classes = observation.get_target_classes(None)
    change = sum_entries(observation.probs - probs_at_zero, target_classes)
    return (integrated.sum(-1) - change).abs()


def _compute_shares(values: Tensor, content: Tensor) -> Tensor:
    """Divide non-negative values by their sum over the units; return NaN if all are 0."""
    unit_values = torch.where(content, values.double(), 0.0)
    has_positive = (unit_values > 0).any(-1, keepdim=True)
    return torch.where(has_positive, normalise(unit_values), torch.nan)
