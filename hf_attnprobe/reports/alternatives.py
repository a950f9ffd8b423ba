"""What a report recommends instead of attention: a measured ranking that passes, or a fitted map."""

from dataclasses import dataclass

from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import Answer, grade
from hf_attnprobe.statistics.questions import COMPARED_RANKINGS
from hf_attnprobe.statistics.scale import compute_faithfulness
from hf_attnprobe.statistics.verdicts import choose_question_set, conclude, index_by_rule


RECOMMENDED_RANKINGS = ("last_layer", "rollout", "product", "input_gradient")
"""Rankings that a report may recommend instead of attention, those of attention first.

Leave-one-out is not among them, because faithfulness compares all rankings with the effects of single
units. The user-provided scores are not either, because the report is about them.
"""


@dataclass(frozen=True)
class PassingRanking:
    """A ranking that was measured in an audit and shows what the predictions are based on.

    Attributes:
        name: Name of the ranking in the rows, such as "product".
        label: Name in reports, such as "attention × gradient".
        faithfulness: Its faithfulness with the confidence interval.
    """

    name: str
    label: str
    faithfulness: Estimate

    def __str__(self) -> str:
        return f"{self.label}: {self.faithfulness.interval_text}"


def find_passing_ranking(report: AuditResult) -> PassingRanking | None:
    """Find the measured ranking that passes although attention does not.

    A ranking passes if its faithfulness alone gets the answer yes. It is read from the same texts as
    that of attention. Because up to four rankings are compared on these texts, the interval of the
    best one is slightly optimistic. ``fit_map`` certifies a map on texts that the choice did not see.

    Args:
        report: Result of an audit, with rows.

    Returns:
        The passing ranking with the largest faithfulness; None if attention passes itself, if the
        model is not better than guessing, or if no measured ranking passes.
    """
    conclusion = conclude(report.findings)
    if conclusion.answer == Answer.YES or conclusion.is_closed or report.evidence is None:
        return None
    rule = report.rules["faithfulness"]
    question_set = choose_question_set(index_by_rule(report.findings))
    explained = report.evidence.explained_evidence
    passing = []
    for name in RECOMMENDED_RANKINGS:
        score = compute_faithfulness(explained.texts, name, explained.parts).score
        if score.n and grade(score, rule, question_set.min_texts) == Answer.YES:
            label = COMPARED_RANKINGS[name]
            passing.append(PassingRanking(name, label, score.plain_estimate))
    return max(passing, key=lambda ranking: ranking.faithfulness.value, default=None)


NO_ALTERNATIVE = "No other ranking that was measured passes either."
"""Sentence for a classifier if attention and all other measured rankings do not get the answer yes."""

FIT_MAP_ADVICE = "To look for heads whose attention passes, run attnprobe fit-map."
"""Sentence for a language model, whose single heads may pass although their mean does not."""


def recommend_alternative(report: AuditResult) -> str | None:
    """Recommend what to show to users if attention does not explain the predictions.

    Args:
        report: Result of an audit.

    Returns:
        A sentence with a measured ranking that passes and its faithfulness; otherwise a sentence about
        the search for a map. None if attention passes, if the model is not better than guessing, or
        if nothing is known about other rankings.
    """
    ranking = find_passing_ranking(report)
    if ranking is not None:
        interval = ranking.faithfulness.interval_text
        return f"Show {ranking.label} instead: its faithfulness is {interval}."
    conclusion = conclude(report.findings)
    if conclusion.answer not in (Answer.NO, Answer.PARTLY) or conclusion.is_closed:
        return None
    if report.words.kind == "answer":
        return FIT_MAP_ADVICE
    if report.evidence is None:
        return None
    explained = report.evidence.explained_evidence
    has_other_ranking = any(
        compute_faithfulness(explained.texts, name, explained.parts).score.n
        for name in RECOMMENDED_RANKINGS
    )
    return NO_ALTERNATIVE if has_other_ranking else None
