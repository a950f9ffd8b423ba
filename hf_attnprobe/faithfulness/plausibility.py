"""Test ``plausibility``: does attention highlight the words that people chose as the reason?

Human rationales, scored as in ERASER (DeYoung et al. 2020, Section 4).

Question
    How well does a ranking of a text's tokens agree with the tokens that people marked?

Measure
    Area under the ranking's precision-recall curve, with linear interpolation (ERASER's AUPRC) and
    with steps (average precision).

    The ranking's first tokens are also compared with the marked tokens, for as many tokens as
    people marked in the text. The scores are F1 over tokens, and precision, recall and F1 over
    spans. A span matches a marked span if their intersection is at least half of their union.

    ERASER's IOU F1 is 2PR / (P + R), with the mean precision P and the mean recall R over texts. It
    differs from the mean F1 over texts.

    The share of the attention on marked tokens is also reported. Marked words that were truncated
    with the end of a long text are not counted anywhere.

Compared rankings
    Attention, gradients, leave-one-out, and a random ranking; with ``integrated_gradients`` also
    integrated gradients. Uniform attention would give the marked tokens their share of all tokens.

Interpretation
    1: the ranking puts the marked tokens before all others. Plausibility is not faithfulness: a
    model can decide for other reasons than people, and an explanation that reveals this is correct
    (Jacovi & Goldberg 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import Plausibility
from hf_attnprobe.faithfulness.rankings import (
    compute_ranking,
    list_text_rankings,
    rank_scores,
)
from hf_attnprobe.faithfulness.registry import AuditPreview, register_test
from hf_attnprobe.functional.erasure import compute_removal_rank
from hf_attnprobe.functional.plausibility import (
    auprc,
    average_precision,
    compute_iou_scores,
    compute_marked_share,
    token_f1,
)
from hf_attnprobe.protocol import (
    Differentiable,
    EditableInputs,
    IntegratedGradients,
    Observation,
    Site,
)


N_INTEGRATION_POINTS = 50
"""Number of points at which integrated gradients evaluate the gradient. They lie between zero
embeddings and the embeddings of the text."""

READINGS: TestReadings = {
    "auprc": (
        "the area under the precision-recall curve of {key} against the words that people marked "
        "is {mean:.2f} (ERASER's AUPRC; 1 if all of them rank first)"
    ),
    "average_precision": (
        "the average precision of {key} against the words that people marked is {mean:.2f} (1 if "
        "all of them rank first)"
    ),
    "token_f1": make_share_reading(
        "{mean:.0%} of the words that people marked are among equally many words that {key} ranks "
        "first"
    ),
    "iou_precision": make_share_reading(
        "{mean:.0%} of the spans that {key} ranks first match a span that people marked"
    ),
    "iou_recall": (
        "each span that people marked is matched by {mean:.2f} of the spans that {key} ranks first"
    ),
    "iou_f1": (
        "the spans that {key} ranks first match the marked spans with an F1 of {mean:.2f} (mean of "
        "the texts' F1; ERASER uses the F1 of mean precision and mean recall)"
    ),
    "attention_on_rationale": make_share_reading(
        "the words that people marked receive {mean:.0%} of the attention on the explained words"
    ),
    "rationale_size": make_share_reading(
        "the marked words are {mean:.0%} of the explained words, which is the share that uniform "
        "attention would give them"
    ),
}


@dataclass(frozen=True)
class PlausibilityResult:
    """Statistics from the test ``plausibility``: tensors ``[batch]``, or mappings by ranking.

    All are in [0, 1], except that recall and F1 over spans can exceed 1. They are NaN in texts in
    which no unit or every unit is marked.

    Attributes:
        auprc: Area under the precision-recall curve with linear interpolation.
        average_precision: Area under the precision-recall curve with steps.
        token_f1: F1 over tokens.
        iou_precision: Precision over spans.
        iou_recall: Recall over spans.
        iou_f1: F1 over spans.
        attention_on_rationale: Share of the units' attention that is on marked units. NaN also if
            no unit has attention.
        rationale_size: Share of the units that are marked.
    """

    auprc: Mapping[str, Tensor]
    average_precision: Mapping[str, Tensor]
    token_f1: Mapping[str, Tensor]
    iou_precision: Mapping[str, Tensor]
    iou_recall: Mapping[str, Tensor]
    iou_f1: Mapping[str, Tensor]
    attention_on_rationale: Tensor
    rationale_size: Tensor


def _check_rationales(preview: AuditPreview, options: Plausibility) -> None:
    """Raise AttnProbeError if the data or the model lack something that the test needs.

    The data must contain human rationales: words that people marked as the reason for the label.
    With the option ``integrated_gradients``, the model must support integrated gradients.
    """
    if not preview.rationales:
        raise AttnProbeError(
            "the test 'plausibility' needs the words that people marked as the reason for the label, "
            "but found none. Add a column 'rationale' with the positions of these words. If the data "
            "has this column, choose a model with a fast tokenizer, which can locate words."
        )
    if options.integrated_gradients:
        preview.shortest_text.model.require(IntegratedGradients)


@register_test(
    readings=READINGS,
    summary="compares attention with the tokens that people marked as the reason",
    needs=(Differentiable, EditableInputs),
    default="rationales",
    check=_check_rationales,
)
def plausibility(
    observation: Observation,
    site: Site,
    options: Plausibility = Plausibility(),
    *,
    seed: int = 0,
) -> PlausibilityResult:
    """Score attention and other rankings against the batch's human rationales.

    Args:
        observation: Model outputs and attention for a batch with rationales.
        site: Head whose attention is ranked.
        options: Additional rankings.
        seed: Seed for the random ranking.

    Returns:
        Statistics per text and ranking.
    """
    content = observation.batch.content_mask
    rationale = observation.batch.rationale
    marked = torch.zeros_like(content) if rationale is None else rationale & content
    names = ("attention", *list_text_rankings(observation))
    ranks_by_name = {name: compute_ranking(observation, site, name, seed=seed) for name in names}
    if options.integrated_gradients:
        ranks_by_name["integrated_gradient"] = _rank_integrated_gradients(observation)
    n_marked = marked.sum(-1, keepdim=True)
    top_tokens = {
        name: (compute_removal_rank(ranks, content) < n_marked) & content
        for name, ranks in ranks_by_name.items()
    }
    span_scores = {
        name: compute_iou_scores(tokens, marked, content) for name, tokens in top_tokens.items()
    }
    attention = observation.read(site)
    return PlausibilityResult(
        {name: auprc(ranks, marked, content) for name, ranks in ranks_by_name.items()},
        {name: average_precision(ranks, marked, content) for name, ranks in ranks_by_name.items()},
        {name: token_f1(tokens, marked, content) for name, tokens in top_tokens.items()},
        {name: scores.precision for name, scores in span_scores.items()},
        {name: scores.recall for name, scores in span_scores.items()},
        {name: scores.f1 for name, scores in span_scores.items()},
        compute_marked_share(attention, marked, content),
        compute_marked_share(torch.ones_like(attention), marked, content),
    )


def _rank_integrated_gradients(observation: Observation) -> Tensor:
    """Rank the units by the size of their integrated gradients, ``[batch, keys]``."""

    def compute() -> Tensor:
        model = observation.model.require(IntegratedGradients)
        # None selects the explained class, which by default is the predicted class.
        target_classes = observation.get_target_classes(None)
        attributions = model.compute_integrated_gradients(
            observation, target_classes, N_INTEGRATION_POINTS
        )
        content = observation.batch.content_mask
        return rank_scores("integrated_gradient", attributions.abs(), content)

    return observation.remember("ranking integrated_gradient", compute)
