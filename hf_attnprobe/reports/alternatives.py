"""Finds a ranking that a report may recommend instead of attention."""

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
