"""Does attention point at the words that people call the reason?

Human rationales, as ERASER scores them.

Question: how far does a ranking of a text's tokens agree with those that people marked
          (DeYoung et al. 2020, Section 4)?
Measure:  area under the precision-recall curve of the ranking, with straight lines
          between its points (ERASER's AUPRC) and in steps (average precision); and, of
          as many of its first tokens as people marked in this text, F1 over tokens, and
          precision, recall and F1 over spans, where a span is found that shares half of
          its union with a marked one. ERASER's IOU F1 is the F1 of the mean precision P
          and the mean recall R, 2PR / (P + R), not the mean of the texts' F1. Marked
          words that were cut off with the end of a text that is too long count in
          nothing. And the share of the attention on the units that is on marked ones.
Compare:  gradients, leave-one-out, and a random ranking; with ``integrated_gradients``
          integrated gradients too. Even attention would give the marked units their
          share of all units.
Reading:  1 the people's words, in front of all others. It says nothing on faithfulness:
          a model may decide for other reasons than people do, and an explanation that
          shows them is right (Jacovi & Goldberg 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import Plausibility
from hf_attnprobe.faithfulness.rankings import (
    ranking,
    rankings_of_text,
    tied,
)
from hf_attnprobe.faithfulness.registry import AuditPreview, register_test
from hf_attnprobe.functional.erasure import removal_rank
from hf_attnprobe.functional.plausibility import (
    auprc,
    average_precision,
    iou_scores,
    share_of_marked,
    token_f1,
)
from hf_attnprobe.protocol import (
    Differentiable,
    EditableInputs,
    IntegratedGradients,
    Observation,
    Site,
)


N_POINTS = 50  # of the integral of integrated gradients

READINGS: TestReadings = {
    "auprc": (
        "the area under the precision-recall curve of {key} against the words that "
        "people marked is {mean:.2f} (ERASER's AUPRC; 1 is all of them in front)"
    ),
    "average_precision": (
        "{key} puts the words that people marked in front with average precision "
        "{mean:.2f} (1 is in front of all others)"
    ),
    "token_f1": share(
        "of the words that people marked, {mean:.0%} are among as many that {key} ranks first"
    ),
    "iou_precision": share(
        "of the spans that {key} ranks first, {mean:.0%} match one that people marked"
    ),
    "iou_recall": (
        "per span that people marked, {mean:.2f} of those that {key} ranks first match one"
    ),
    "iou_f1": (
        "the spans that people marked and those that {key} ranks first match with F1 "
        "{mean:.2f}, the mean of the texts' own (ERASER takes the F1 of mean precision "
        "and mean recall)"
    ),
    "attention_on_rationale": share(
        "of the attention on what is explained of a text, {mean:.0%} is on the words "
        "that people marked"
    ),
    "rationale_size": share(
        "these are {mean:.0%} of what is explained, which is what even attention would give them"
    ),
}


@dataclass(frozen=True)
class PlausibilityResult:
    """Scores by ranking, all [batch], in [0, 1] (recall and F1 of spans: at least 0).

    ``attention_on_rationale`` is NaN too where no unit has attention.
    NaN for texts of which no unit or every unit is marked.
    """

    auprc: Mapping[str, Tensor]
    average_precision: Mapping[str, Tensor]
    token_f1: Mapping[str, Tensor]
    iou_precision: Mapping[str, Tensor]
    iou_recall: Mapping[str, Tensor]
    iou_f1: Mapping[str, Tensor]
    attention_on_rationale: Tensor
    rationale_size: Tensor


def _check(preview: AuditPreview, options: Plausibility) -> None:
    if not preview.rationales:
        raise AttnProbeError(
            "expected human rationales for the test plausibility, found none that a fast "
            "tokenizer could place in what the model attends to (words, but sentences in "
            "a hierarchical one); give the data a column 'rationale' with the positions of "
            "the decisive words, or leave the test out"
        )
    if options.integrated_gradients:
        preview.shortest.model.require(IntegratedGradients)


@register_test(
    readings=READINGS,
    does="compares attention with the tokens that people marked",
    needs=(Differentiable, EditableInputs),
    default="rationales",
    check=_check,
)
def plausibility(
    observation: Observation,
    site: Site,
    options: Plausibility = Plausibility(),
    *,
    seed: int = 0,
) -> PlausibilityResult:
    """Agreement of attention and other rankings with the rationales of the batch.

    Args:
        seed: of the random ranking.
    """
    content = observation.batch.content_mask
    marked = observation.batch.rationale
    marked = torch.zeros_like(content) if marked is None else marked & content
    names = ("attention", *rankings_of_text(observation))
    scores = {name: ranking(observation, site, name, seed=seed) for name in names}
    if options.integrated_gradients:
        scores["integrated_gradient"] = _integrated_ranks(observation)
    n_marked = marked.sum(-1, keepdim=True)
    chosen = {name: (removal_rank(x, content) < n_marked) & content for name, x in scores.items()}
    by_span = {name: iou_scores(x, marked, content) for name, x in chosen.items()}
    attention = observation.read(site)
    return PlausibilityResult(
        {name: auprc(x, marked, content) for name, x in scores.items()},
        {name: average_precision(x, marked, content) for name, x in scores.items()},
        {name: token_f1(x, marked, content) for name, x in chosen.items()},
        {name: found.precision for name, found in by_span.items()},
        {name: found.recall for name, found in by_span.items()},
        {name: found.f1 for name, found in by_span.items()},
        share_of_marked(attention, marked, content),
        share_of_marked(torch.ones_like(attention), marked, content),
    )


def _integrated_ranks(observation: Observation) -> Tensor:
    """Dense ranks of |integrated gradients| of the predicted class, [batch, keys]."""

    def compute() -> Tensor:
        values = observation.model.require(IntegratedGradients).integrated_gradient(
            observation, observation.target(None), N_POINTS
        )
        content = observation.batch.content_mask
        return tied("integrated_gradient", values.abs(), content)

    return observation.remember("ranking integrated_gradient", compute)
