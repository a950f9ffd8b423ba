"""Is attention distributed over a text as its attributions are?

Mohankumar et al. 2020, Section 5.3.

Question: do tokens get attention in proportion to what they do to the output?
Measure:  Pearson correlation and Jensen-Shannon divergence between the attention of a
          text's tokens and (a) |gradient × input| with the attention held fixed, (b)
          |integrated gradients| from embeddings of 0 (Sundararajan et al. 2017). Each
          is divided by its sum over the text's tokens, special ones left out.
Compare:  (a) with (b): how far two attributions agree with each other. The paper compares trained models with each other.
Reading:  correlation 1 and divergence 0 the same shares; correlation 0 no linear
          relation, divergence .69 shares of different tokens.

Integrated gradients go through the attention, so that over all tokens they add up to the
change of the output from embeddings of 0; ``integrated_gap`` is what is missing. It is
large where a norm stretches tiny embeddings to full size, as without position embeddings:
no number of points finds that jump. The paper's released code lets no gradient flow
through the attention, which is computed anew at every point, and takes 50 points by the
trapezoid rule; ``attention=held`` does the first, with Gauss-Legendre points.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.options import AttributionAgreement
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.functional.divergence import jsd
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.functional.predictions import entry_sum
from hf_attnprobe.functional.similarity import pearson
from hf_attnprobe.protocol import (
    Differentiable,
    IntegratedGradients,
    Observation,
    Site,
)


PAIRS = (
    ("attention", "gradient"),
    ("attention", "integrated"),
    ("gradient", "integrated"),
)
READINGS = {
    "attention_gradient_pearson": (
        "the shares of attention and of |gradient × input| have a Pearson correlation "
        "of {mean:.2f} over a text's tokens (1 is proportional)"
    ),
    "attention_gradient_jsd": (
        "the shares of attention and of |gradient × input| are a divergence of "
        "{mean:.2f} apart (at most 0.69)"
    ),
    "attention_integrated_pearson": (
        "the shares of attention and of |integrated gradients| have a Pearson "
        "correlation of {mean:.2f}"
    ),
    "attention_integrated_jsd": (
        "the shares of attention and of |integrated gradients| are a divergence of "
        "{mean:.2f} apart (at most 0.69)"
    ),
    "gradient_integrated_pearson": (
        "the two attributions, the yardstick, have a Pearson correlation of {mean:.2f} "
        "with each other"
    ),
    "gradient_integrated_jsd": (
        "the two attributions are a divergence of {mean:.2f} apart (at most 0.69)"
    ),
    "integrated_gap": (
        "integrated gradients miss {mean:.3f} of the change in probability that they "
        "should add up to"
    ),
}


@dataclass(frozen=True)
class AttributionAgreementResult:
    """All [batch]: Pearson correlations in [−1, 1], divergences in [0, ln 2] (nats).

    ``integrated_gap``: |Σ integrated gradients − (p(text) − p(embeddings of 0))|, over
    all tokens and special ones; None with attention held.

    NaN where one of the two is 0 everywhere; correlations also for one-token texts and
    constant shares. In a text of two tokens a correlation is −1 or 1.
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
    does="compares attention with integrated gradients",
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
    """Agreement of the shares of attention, gradients and integrated gradients.

    Args:
        seed: unused, nothing here is random.
    """
    observation = observation.explaining(options.target)
    content = observation.batch.content_mask
    integrated = integrated_gradients(observation, options)
    shares = {
        "attention": _shares(observation.read(site), content),
        "gradient": _shares(observation.gradient_importance(), content),
        "integrated": _shares(integrated.abs(), content),
    }
    found = {}
    for a, b in PAIRS:
        found[f"{a}_{b}_pearson"] = pearson(shares[a], shares[b], content)
        found[f"{a}_{b}_jsd"] = jsd(shares[a], shares[b])
    if options.attention == "free":
        found["integrated_gap"] = _gap(observation, integrated)
    return AttributionAgreementResult(**found)


def integrated_gradients(
    observation: Observation,
    options: AttributionAgreement = AttributionAgreement(),
) -> Tensor:
    """Integrated gradients of the explained class's probability, signed [batch, keys]."""

    def compute() -> Tensor:
        return observation.model.require(IntegratedGradients).integrated_gradient(
            observation,
            observation.target(None),
            options.n_steps,
            through_attention=options.attention == "free",
        )

    key = "integrated gradients", observation.explains, options
    return observation.remember(key, compute)


def _gap(observation: Observation, integrated: Tensor) -> Tensor:
    """Completeness error: how far the attributions are from summing to the change, [batch]."""
    model = observation.model.require(IntegratedGradients)
    without = observation.remember(
        "probs_without_embeddings",
        lambda: model.probs_without_embeddings(observation),
    )
    change = entry_sum(observation.probs - without, observation.target(None))
    return (integrated.sum(-1) - change).abs()


def _shares(values: Tensor, content: Tensor) -> Tensor:
    """Non-negative values divided by their sum over content; NaN where all are 0."""
    inside = torch.where(content, values.double(), 0.0)
    has_any = (inside > 0).any(-1, keepdim=True)
    return torch.where(has_any, normalise(inside), torch.nan)
