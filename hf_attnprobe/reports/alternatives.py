"""Recommends what to show instead of attention: a measured ranking that passes, or a fitted map."""

import math
from dataclasses import dataclass
from typing import Any

from hf_attnprobe.documents.blocks import NextStep
from hf_attnprobe.reports.number_tables import CHANCE_SCORES_KEY
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.reports.score_verdict import SCORES_RANKING, estimate_score_advantage
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.grades import Answer, grade
from hf_attnprobe.statistics.questions import COMPARED_RANKINGS
from hf_attnprobe.statistics.verdicts import choose_question_set, index_by_rule
from hf_attnprobe.storage.provenance import (
    FITTED_MAP_KEY,
    format_repeat_command,
    is_repeatable,
)


RECOMMENDED_RANKINGS = ("last_layer", "rollout", "product", "input_gradient")
"""Rankings that a report may recommend instead of attention. The first two are computed from attention.

Leave-one-out is not recommended, because faithfulness compares all rankings with the effects of single
units. User-provided scores are not recommended, because the report is about them.
"""


@dataclass(frozen=True)
class MeasuredRanking:
    """A ranking whose faithfulness was measured in an audit.

    Attributes:
        name: Name of the ranking in the rows, such as "product".
        label: Name in reports, such as "attention × gradient".
        faithfulness: Faithfulness of the ranking, with the confidence interval.
    """

    name: str
    label: str
    faithfulness: Estimate

    def __str__(self) -> str:
        return f"{self.label}: {self.faithfulness.interval_text}"


def find_passing_ranking(report: AuditResult) -> MeasuredRanking | None:
    """Find the measured ranking that passes although attention does not.

    A ranking passes if its faithfulness gets the answer yes, and is larger than the faithfulness of
    attention. If attention has the larger faithfulness, it fails for another reason, such as its path
    share, and no ranking is recommended. If the audit evaluates user-provided scores, they take the role
    of attention. Both numbers are computed from the same texts. Because up to
    four rankings are compared on these texts, the interval of the best one is slightly optimistic.
    ``fit_map`` certifies a map on other texts than those by which the map was chosen.

    Args:
        report: Result of an audit, with rows.

    Returns:
        The fitted map if it passes, otherwise the passing ranking with the largest faithfulness. None
        if attention passes itself, if the model is not better than guessing, or if no measured ranking
        passes.
    """
    conclusion = report.conclusion
    if conclusion.answer == Answer.YES or conclusion.is_closed:
        return None
    fitted_map = measure_fitted_map(report)
    if fitted_map is not None and grade_ranking(report, fitted_map) == Answer.YES:
        return fitted_map
    score = conclusion.score
    audited_faithfulness = -math.inf if score is None else score.value
    passing = []
    for name in RECOMMENDED_RANKINGS:
        ranking = measure_ranking(report, name)
        if ranking is None or ranking.faithfulness.value <= audited_faithfulness:
            continue
        if grade_ranking(report, ranking) == Answer.YES:
            passing.append(ranking)
    return max(passing, key=lambda ranking: ranking.faithfulness.value, default=None)


def measure_ranking(report: AuditResult, name: str) -> MeasuredRanking | None:
    """Return a ranking with its faithfulness, which is measured like the faithfulness of attention.

    Args:
        report: Result of an audit, with rows.
        name: Name of the ranking in the rows, such as "product".

    Returns:
        The ranking; None if fewer than two parts of its faithfulness were measured.
    """
    score = report.ranking_faithfulness.get(name)
    if score is None:
        return None
    return MeasuredRanking(name, get_ranking_labels(report)[name], score)


def measure_fitted_map(report: AuditResult) -> MeasuredRanking | None:
    """Return the fitted attention map with its faithfulness; None if the audit evaluated no map.

    Args:
        report: Result of an audit, with rows.
    """
    fitted_map = report.provenance.get(FITTED_MAP_KEY)
    return None if fitted_map is None else measure_ranking(report, fitted_map["ranking"])


def grade_ranking(report: AuditResult, ranking: MeasuredRanking) -> Answer:
    """Grade the faithfulness of a ranking: whether it shows what the predictions are based on.

    Args:
        report: Result of an audit.
        ranking: The ranking with its faithfulness.
    """
    min_texts = choose_question_set(index_by_rule(report.findings)).min_texts
    return grade(ranking.faithfulness, report.rules["faithfulness"], min_texts)


def get_ranking_labels(report: AuditResult) -> dict[str, str]:
    """Return the labels that reports print for rankings, such as "attention × gradient".

    Args:
        report: Result of an audit.

    Returns:
        The label of each ranking. The keys are the names of the rankings in the rows, such as
        "product".
    """
    labels = {"attention": "attention", **COMPARED_RANKINGS}
    if report.evaluates_scores:
        labels[CHANCE_SCORES_KEY] = "the same scores at random"
    fitted_map = report.provenance.get(FITTED_MAP_KEY)
    if fitted_map is not None:
        labels[fitted_map["ranking"]] = f"fitted map: {fitted_map['description']}"
    return labels


def measure_all_rankings(report: AuditResult) -> list[MeasuredRanking]:
    """List attention and all rankings that were compared with attention, with their faithfulness.

    Args:
        report: Result of an audit, with rows.

    Returns:
        The rankings with enough texts for a number, the best one first.
    """
    rankings = [measure_ranking(report, name) for name in get_ranking_labels(report)]
    measured_rankings = [
        ranking
        for ranking in rankings
        if ranking is not None and (ranking.faithfulness.n or 0) >= MIN_DISPLAYED_TEXTS
    ]
    return sorted(measured_rankings, key=lambda ranking: -ranking.faithfulness.value)


def describe_user_scores(report: AuditResult) -> str:
    """Describe the faithfulness of user-provided scores, next to attention and chance.

    Args:
        report: Result of an audit that evaluates scores.

    Returns:
        A sentence; empty if the faithfulness of the scores was not measured on enough texts.
    """
    by_name = {ranking.name: ranking.faithfulness for ranking in measure_all_rankings(report)}
    if SCORES_RANKING not in by_name:
        return ""
    rankings_by_relation: dict[str, list[str]] = {}
    for name, label in (("attention", "attention"), (CHANCE_SCORES_KEY, "chance")):
        if name in by_name:
            relation = _compare_scores_with(report, name)
            ranking = f"{label} ({by_name[name].interval_text})"
            rankings_by_relation.setdefault(relation, []).append(ranking)
    clauses = [
        f"{relation} {' and '.join(rankings)}"
        for relation, rankings in rankings_by_relation.items()
    ]
    comparison = f", {' and '.join(clauses)}" if clauses else ""
    return f"Your scores: {by_name[SCORES_RANKING].interval_text}{comparison}."


def _compare_scores_with(report: AuditResult, name: str) -> str:
    """Return "above", "below" or another relation of the scores' faithfulness to that of a ranking."""
    assert report.evidence is not None
    advantage = estimate_score_advantage(report.evidence, name)
    min_texts = report.conclusion.question_set.min_texts
    if advantage is None or advantage.ci95 is None or (advantage.n or 0) < min_texts:
        return "next to"
    low, high = advantage.ci95
    if low > 0:
        return "above"
    return "below" if high < 0 else "not clearly different from"


def choose_displayed_ranking(report: AuditResult) -> str | None:
    """Choose the ranking whose scores example texts display next to attention.

    Args:
        report: Result of an audit, with rows.

    Returns:
        Name of a ranking in the rows: the fitted map, or the ranking that the report recommends. None
        if the audit has neither.
    """
    ranking = measure_fitted_map(report) or find_passing_ranking(report)
    return None if ranking is None else ranking.name


def describe_fitted_map(report: AuditResult) -> str:
    """Describe the faithfulness of the fitted map in this audit, and its certificate.

    Args:
        report: Result of an audit, with rows.

    Returns:
        Sentences; empty if the audit evaluated no map.
    """
    fitted_map = report.provenance.get(FITTED_MAP_KEY)
    if fitted_map is None:
        return ""
    map_ranking = measure_fitted_map(report)
    number = "not measured"
    if map_ranking is not None and (map_ranking.faithfulness.n or 0) >= MIN_DISPLAYED_TEXTS:
        number = map_ranking.faithfulness.interval_text
    description = fitted_map["description"]
    return (
        f"{description[:1].upper()}{description[1:]}: faithfulness {number} in this audit. "
        f"{fitted_map['certificate']}."
    )


NO_ALTERNATIVE = "No other ranking that was measured passes either."
"""Sentence if attention and all other measured rankings do not get the answer yes."""

FIT_MAP_FOLDER = "map"
"""Output folder in the suggested command."""
N_FIT_MAP_PROMPTS = 80
"""Advisable number of prompts for fitting a map: 20 to choose the map, and 60 to certify it."""
FIT_MAP_TIME_FACTOR = 1.2
"""Time to fit a map, as a multiple of an audit of the same prompts.

In addition to the audit, the attention of every single head is read. With SmolLM2-135M and prompts of
eight sentences, this took 0.5 CPU seconds more than the 4.9 to 6.8 seconds of a prompt's tests.
"""
SETTINGS_NOT_FOR_FIT_MAP = (
    "tests",
    "layers",
    "heads",
    "head_sets",
    "groups",
    "single_heads",
    "screen",
    "share",
    "query",
    "limits",
    "map",
    "time",
    "prune",
    "scores",
)
"""Settings of an audit that are left out of the suggested command ``attnprobe fit-map``."""


def recommend_fit_map(report: AuditResult) -> NextStep | None:
    """Recommend to fit an attention map of a language model whose mean attention does not pass.

    Single heads of a language model may pass although the mean over all heads does not. An ordinary
    audit of a language model measures no ranking that could be shown instead of this mean.

    Args:
        report: Result of an audit.

    Returns:
        The command with the time that it takes, or the advice to add prompts if the data set has too
        few. None if the answer is neither no nor partly, or if a fitted map or another passing ranking
        was measured.
    """
    conclusion = report.conclusion
    if conclusion.answer not in (Answer.NO, Answer.PARTLY) or conclusion.is_closed:
        return None
    if report.evaluates_scores:
        return None
    if report.words.kind != "answer" or choose_displayed_ranking(report) is not None:
        return None
    n_prompts = max(N_FIT_MAP_PROMPTS, report.n)
    n_available = report.provenance.get("n_available", n_prompts)
    if n_available < n_prompts:
        return NextStep(
            "With attnprobe fit-map, you can look for heads whose attention shows what the answers are "
            f"based on. This takes about {n_prompts} prompts, but the data set contains only "
            f"{n_available}. Add more of them."
        )
    factor = FIT_MAP_TIME_FACTOR * n_prompts / report.n
    advice = (
        "Look for heads whose attention shows what the answers are based on. With "
        f"{n_prompts} prompts, this takes about {factor:.2g} times as long as this audit:"
    )
    if not is_repeatable(report.provenance):
        return NextStep(f"{advice} run attnprobe fit-map, or call fit_map(model, data).")
    changes: dict[str, Any] = dict.fromkeys(SETTINGS_NOT_FOR_FIT_MAP)
    changes |= {"test_limit": n_prompts, "output_dir": FIT_MAP_FOLDER}
    # The setting "tests" is a mapping, which may be empty but not None.
    changes["tests"] = {}
    return NextStep(advice, format_repeat_command("fit-map", report.provenance, **changes))


def recommend_alternative(report: AuditResult) -> str | None:
    """Recommend what to show to users if attention does not explain the predictions.

    Args:
        report: Result of an audit.

    Returns:
        A sentence with a measured ranking that passes and its faithfulness; otherwise the sentence
        that no other measured ranking passes. None if attention passes, if the model is not better
        than guessing, or if no other ranking was measured.
    """
    ranking = find_passing_ranking(report)
    if ranking is not None:
        interval = ranking.faithfulness.interval_text
        label = ranking.label.replace("fitted map: ", "the fitted map, ")
        return f"Show {label} instead: its faithfulness is {interval}."
    conclusion = report.conclusion
    if conclusion.answer not in (Answer.NO, Answer.PARTLY) or conclusion.is_closed:
        return None
    if report.words.kind == "answer" and measure_fitted_map(report) is None:
        return None
    rankings = [measure_ranking(report, name) for name in RECOMMENDED_RANKINGS]
    rankings.append(measure_fitted_map(report))
    has_other_ranking = any(ranking is not None for ranking in rankings)
    return NO_ALTERNATIVE if has_other_ranking else None
