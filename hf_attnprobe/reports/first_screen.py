"""The first screen of an audit's report: the answer, advice, and the most important numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.progress import format_duration
from hf_attnprobe.core.terminal import truncate_start
from hf_attnprobe.documents.blocks import (
    AnswerBlock,
    Block,
    Cell,
    CodeBlock,
    FormattedNumber,
    InlineText,
    NextStep,
    NumberLine,
    ScoreTable,
    ScoreTableRow,
    Table,
    UserText,
)
from hf_attnprobe.plots.highlighted_text import MIN_SOURCE_LOSS
from hf_attnprobe.reports.alternatives import (
    describe_fitted_map,
    describe_user_scores,
    measure_all_rankings,
    recommend_alternative,
    recommend_fit_map,
)
from hf_attnprobe.reports.head_tables import describe_important_heads, index_by_site
from hf_attnprobe.reports.next_step import count_shares, has_stopped_early, recommend_next_step
from hf_attnprobe.reports.number_tables import CHANCE_SCORES_KEY
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.reports.score_verdict import SCORES_CLAUSES, SCORES_PART_MEANINGS
from hf_attnprobe.reports.verdict import (
    describe_finding,
    explain_open_answer,
    format_answer_reason,
    format_conclusion_reason,
    format_sentence,
    get_min_texts,
)
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer
from hf_attnprobe.statistics.heads import ALL_ATTENTION_SITE
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import (
    DISPLAY_ADVICE,
    DISPLAY_QUESTION,
    Finding,
    conclude,
    index_by_rule,
    join_rule_names,
    join_words,
)
from hf_attnprobe.statistics.wording import Wording
from hf_attnprobe.storage.provenance import UNSUPPORTED_TESTS_KEY


SCALE_DESCRIPTION = "0 = {units} in random order, 1 = the best possible order"
"""Explanation of the faithfulness scale.

``{units}`` is replaced by the audited units, such as "words".
"""

ONLY_HEADS_REASON = (
    "Only single heads or layers were tested, but the answer describes the attention as a whole."
)
"""Reason for the answer "cannot say" if no test concerned the attention as a whole."""

STOPPED_REASON = "The time limit ended the audit before the tests of all attention together had run on enough texts."
"""Reason for the answer "cannot say" if the time was too short for any number about all attention."""

OTHER_TESTS_REASON = "The tests that ran do not answer this question. It needs the tests {tests}."
"""Reason for the answer "cannot say" if none of the required tests ran."""

SCORES_NOT_MEASURED_REASON = (
    "The faithfulness of the scores was not measured. It needs the tests {tests}, and {n} texts."
)
"""Reason for the answer "cannot say" if user-provided scores have no faithfulness."""

NO_OWN_ANSWER_REASON = (
    "The model itself generates none of the {n} provided answers, so {explanation} cannot explain "
    "them. Omit the answers to audit those that the model generates."
)
"""Reason for the answer "cannot say" if the model generates none of the answers of the user.

``{explanation}`` is replaced by "its attention" or "the scores".
"""


COMMAND_INTRODUCTION = (
    "Run this command. To continue from the saved results, add --output-dir FOLDER:"
)
"""Introduction of a suggested command.

The command itself has no output folder, because reports may be moved, and because the names of local
folders are private.
"""

PRIMARY_SENTENCES = ("time", "texts", "accuracy", "own", "audited")
"""Keys of the sentences that a page displays before the example texts.

They contain the time limit, the texts that were cut or left out, the model's accuracy, and what was
audited. The other sentences follow after the texts.
"""

SECONDARY_TITLE = "What else was measured"
"""Heading above the sentences that a page displays after the example texts."""


def build_first_screen(report: AuditResult) -> list[Block]:
    """Build the answer with its reason, a row for every question, and advice on the next step.

    If there are too few texts for numbers, the rows with numbers are omitted.

    Args:
        report: the audit's result.

    Returns:
        Blocks in the order of the report.
    """
    has_too_few_texts = report.n_distinct < MIN_DISPLAYED_TEXTS
    number_rows = [] if has_too_few_texts else [*_build_scale_rows(report)]
    sentences: dict[str, InlineText] = {"sources": describe_missing_sources(report)}
    if not report.evaluates_scores:
        effects = {} if has_too_few_texts else _describe_effects(report)
        sentences = {
            **effects,
            **sentences,
            "position": describe_position_bias(report),
            "heads": describe_important_heads(report),
        }
    sentences |= {
        "fitted map": describe_fitted_map(report),
        "time": _describe_time_limit(report),
        "texts": " ".join(
            f"{sentence}." for sentence in describe_text_losses(report.provenance, report.n)
        ),
        **_describe_predictions(report),
        "audited": _describe_subject(report),
    }
    display_advice = [f"{DISPLAY_QUESTION} {DISPLAY_ADVICE[report.answer]}"]
    alternative = None if has_too_few_texts else recommend_alternative(report)
    if alternative:
        display_advice.append(alternative)
    return [
        AnswerBlock("", str(report.answer), explain_verdict(report), display_advice),
        None if report.evaluates_scores else describe_source_hits(report),
        [
            f"CONTRADICTION, please report it: {contradiction}"
            for contradiction in report.contradictions
        ],
        ScoreTable(
            [*number_rows, *_build_sentence_rows(report, sentences)],
            secondary_title=SECONDARY_TITLE,
        ),
        _build_next_step(report),
    ]


def _build_sentence_rows(
    report: AuditResult, sentences: Mapping[str, InlineText]
) -> Iterator[ScoreTableRow]:
    """Yield a row for each sentence that is not empty.

    If the key of a sentence is a question, the row has the name of this question and a mark for its
    answer.
    """
    findings = index_by_rule(report.findings)
    for key, sentence in sentences.items():
        if not sentence:
            continue
        finding = findings.get(key)
        yield ScoreTableRow(
            key if finding is None else finding.name.lower(),
            None,
            sentence,
            is_secondary=key not in PRIMARY_SENTENCES,
            grade="" if finding is None else str(finding.answer),
        )


def _build_next_step(report: AuditResult) -> NextStep | None:
    """Build the box with the advice on what to do next; None if there is nothing to advise."""
    advice = recommend_next_step(report)
    if isinstance(advice, CodeBlock):
        return NextStep(COMMAND_INTRODUCTION, advice.text, resumes=True)
    return NextStep(advice) if advice else recommend_fit_map(report)


def describe_text_losses(provenance: Mapping[str, Any], n_texts: int) -> list[str]:
    """Describe how many texts are blank and left out, and which part of long texts was cut off.

    Args:
        provenance: The report's record of its model, data and options.
        n_texts: Number of audited texts.

    Returns:
        Sentences without a full stop; empty if all texts were read completely.

    >>> counts = {"truncated": 2, "truncated_tokens": 4000, "truncated_tokens_read": 1024}
    >>> describe_text_losses({**counts, "max_length": 512}, 30)
    ['2 of 30 texts were cut to 512 tokens; 26% of their tokens were read']
    """
    sentences = []
    n_empty = provenance.get("skipped_empty", 0)
    if n_empty:
        verb = "is" if n_empty == 1 else "are"
        sentences.append(f"{n_empty} of {n_texts + n_empty} texts {verb} blank and left out")
    n_truncated, n_tokens = provenance.get("truncated", 0), provenance.get("truncated_tokens", 0)
    if n_truncated and n_tokens:
        share = provenance["truncated_tokens_read"] / n_tokens
        # A text that was cut was not read completely.
        percentage = "less than 1%" if share < 0.01 else f"{min(share, 0.99):.0%}"
        verb, whose = ("was", "its") if n_truncated == 1 else ("were", "their")
        sentences.append(
            f"{n_truncated} of {n_texts} texts {verb} cut to {provenance['max_length']} tokens; "
            f"{percentage} of {whose} tokens were read"
        )
    return sentences


def explain_verdict(report: AuditResult) -> str:
    """Return the reason for the audit's answer in one or two sentences.

    Args:
        report: the audit's result.
    """
    if report.evaluates_scores:
        return " ".join(
            filter(None, [describe_user_scores(report), _explain_scores_answer(report)])
        )
    own_answers = index_by_rule(report.findings).get("own")
    if own_answers is not None and own_answers.value == 0:
        return NO_OWN_ANSWER_REASON.format(n=own_answers.n, explanation="its attention")
    if not any(finding.is_about_attention for finding in report.findings):
        conclusion = conclude(report.findings)
        # A model that predicts no better than guessing needs no further tests.
        if not (
            conclusion.is_closed and conclusion.gate is not None and conclusion.gate.value <= 0
        ):
            if report.evidence is None and len(report.rows):
                # The provenance describes all attention together if it was to be tested.
                is_requested = "attention" in report.provenance
                has_stopped = has_stopped_early(report.provenance.get("stopping"))
                return STOPPED_REASON if is_requested and has_stopped else ONLY_HEADS_REASON
            tests = join_words(conclusion.question_set.required_tests)
            return OTHER_TESTS_REASON.format(tests=tests)
    return format_answer_reason(report.findings, report.words)


def _explain_scores_answer(report: AuditResult) -> str:
    """Return one sentence with the reason for the answer about user-provided scores."""
    conclusion = report.conclusion
    own_answers = index_by_rule(report.findings).get("own")
    if own_answers is not None and own_answers.value == 0:
        return NO_OWN_ANSWER_REASON.format(n=own_answers.n, explanation="the scores")
    if conclusion.score is None and not conclusion.is_closed:
        tests = join_words(conclusion.question_set.required_tests)
        return SCORES_NOT_MEASURED_REASON.format(tests=tests, n=MIN_DISPLAYED_TEXTS)
    return format_conclusion_reason(conclusion, report.words, SCORES_CLAUSES)


UNIT_BASELINES = {
    "chance": "Guessing would find about",
    "longest": "the longest {unit}",
    "first": "the first one",
    "last": "the last one",
    "commonest place": "the one at the most common position",
}
"""Maps each baseline to its words in a report.

A baseline picks a unit, such as a sentence, without looking at attention. The report adds the
number of prompts for which this is the right unit, as in "the longest sentence 12".
"""


def describe_source_hits(report: AuditResult) -> str | None:
    """Describe in how many prompts attention is highest on the unit that the answer depends on.

    The count is compared with three baselines: guessing, the longest unit, and the most successful
    baseline in ``UNIT_BASELINES``.

    Args:
        report: the audit's result.

    Returns:
        Two sentences; None if this was not measured or there are too few prompts.
    """
    source = index_by_rule(report.findings).get("source")
    if source is None or source.n < MIN_DISPLAYED_TEXTS:
        return None
    counts = {name: share * source.n for name, share in source.yardsticks.items()}
    best_baseline = max(UNIT_BASELINES, key=lambda name: counts[name])
    unit = report.words.unit_noun
    # The keys of a dictionary contain each baseline once.
    baselines = dict.fromkeys(["chance", "longest", best_baseline])
    baseline_counts = [
        f"{UNIT_BASELINES[name].format(unit=unit)} {counts[name]:.0f}" for name in baselines
    ]
    prompts = report.words.format_text_count(source.n)
    return (
        f"In {counts['found']:.0f} of {prompts}, attention is highest on the {unit} that the answer "
        f"depends on. {', '.join(baseline_counts)}."
    )


def describe_missing_sources(report: AuditResult) -> str:
    """Describe how many answers rest on no single unit, and the noise floor of the losses.

    Args:
        report: the audit's result.

    Returns:
        Sentences; empty for classifiers, or if every answer has a source and rounding is negligible.
    """
    evidence = report.evidence
    if evidence is None or "unit_loss@0" not in evidence.texts:
        return ""
    names = [name for name in evidence.texts.statistic_names if name.startswith("unit_loss@")]
    losses = np.stack([evidence.get_values(name) for name in names])
    largest_losses = np.nan_to_num(losses, nan=-np.inf).max(0)
    n_without = int((largest_losses < MIN_SOURCE_LOSS).sum())
    unit = report.words.unit_noun
    sentences = []
    if n_without:
        prompts = report.words.format_text_count(len(largest_losses))
        sentences.append(
            f"In {n_without} of {prompts}, the answer rests on no single {unit}: none costs it "
            f"{MIN_SOURCE_LOSS:g} nats or more."
        )
    noise_floor = report.provenance.get("noise_floor")
    if noise_floor:
        options = report.provenance["options"].get("knockout", {})
        threshold = max(noise_floor, options.get("least_effect", 0.0))
        sentences.append(
            f"Losses below {threshold:.2g} nats count as noise: rounding changes them by up to "
            f"{noise_floor:.2g} in this number format."
        )
    return " ".join(sentences)


def describe_position_bias(report: AuditResult) -> str:
    """Describe the position or length that attention prefers, if this does not explain the predictions.

    Args:
        report: the audit's result.

    Returns:
        A sentence; empty if attention has no clear preference, or if this was not measured.
    """
    bias = report.position_bias
    if bias is None:
        return ""
    unit = report.words.unit_noun
    texts = report.words.format_text_count(bias.n)
    explained = "answer" if report.words.kind == "answer" else "prediction"
    return (
        f"Attention ranks the {bias.position} {unit} first in {bias.n_attended:.0f} of {texts}; the "
        f"{explained} depends most on this {unit} in {bias.n_decisive:.0f}."
    )


# --- the numbers ---------------------------------------------------------------------------------


def _build_scale_rows(report: AuditResult) -> Iterator[ScoreTableRow]:
    """Yield a row for faithfulness and a row for each of its parts."""
    words = report.words
    for finding in report.answer_findings:
        if finding.role not in ("score", "part"):
            continue
        is_part = finding.role == "part"
        line = build_number_line(finding)
        if line and not is_part:
            meaning = words.fill(SCALE_DESCRIPTION)
            averaged_parts = describe_averaged_parts(report, finding)
            if averaged_parts:
                meaning += f"; {averaged_parts}"
        elif report.evaluates_scores:
            meaning = _describe_scores_part(finding, words)
        else:
            meaning = describe_finding(finding, words)
        number = FormattedNumber(finding.value, finding.ci95, digits=2) if line else None
        yield ScoreTableRow(
            finding.name.lower(), number, meaning, line, is_part, grade=str(finding.answer)
        )
    if report.evaluates_scores:
        yield from _build_comparison_rows(report)


def _describe_scores_part(finding: Finding, words: Wording) -> str:
    """Describe what a part of the scores' faithfulness measures, and why its answer is open."""
    meaning = words.fill(SCORES_PART_MEANINGS.get(finding.rule, ""))
    if finding.answer != Answer.CANNOT_SAY:
        return meaning
    reason = explain_open_answer(finding, words, counts_missing_texts=False)
    return f"{meaning}: {reason}" if meaning else reason


def _build_comparison_rows(report: AuditResult) -> Iterator[ScoreTableRow]:
    """Yield rows with the faithfulness of attention and of the same scores at random, without grade."""
    rule = report.rules["faithfulness"]
    for ranking in measure_all_rankings(report):
        if ranking.name in COMPARED_WITH_SCORES:
            number = FormattedNumber(
                ranking.faithfulness.value, ranking.faithfulness.ci95, digits=2
            )
            line = NumberLine(number, rule.thresholds, dict(rule.scale_ends), (0.0, 1.0))
            yield ScoreTableRow(
                COMPARED_WITH_SCORES[ranking.name], number, COMPARISON_MEANING, line
            )


COMPARED_WITH_SCORES = {"attention": "attention", CHANCE_SCORES_KEY: "at random"}
"""Maps the rankings with which user-provided scores are compared to the names of their rows."""

COMPARISON_MEANING = "faithfulness on the same scale, for comparison"
"""Explanation of the rows with which user-provided scores are compared."""


def describe_averaged_parts(report: AuditResult, score: Finding) -> str:
    """Describe which parts were averaged to faithfulness, and why other parts were not.

    Args:
        report: the audit's result.
        score: the finding about faithfulness.

    Returns:
        A clause such as "mean of importance, removal and mass; erasure was not measured". It is empty
        if the finding does not record its parts.
    """
    if not score.averaged_parts:
        return ""
    findings = index_by_rule(report.answer_findings)
    counts = {findings[key].n for key in score.averaged_parts if key in findings}
    names = []
    for key in score.averaged_parts:
        name = join_rule_names([key])
        # The numbers of texts are only printed if they differ.
        if len(counts) > 1 and key in findings:
            name += f" ({report.words.format_text_count(findings[key].n)})"
        names.append(name)
    clauses = [f"mean of {join_words(names)}"]
    question_set = report.conclusion.question_set
    omitted_parts: dict[str, list[str]] = {}
    for key in question_set.list_keys("part"):
        if key not in score.averaged_parts:
            reason = _explain_omitted_part(report, score, key)
            omitted_parts.setdefault(reason, []).append(join_rule_names([key]))
    for reason, omitted_names in omitted_parts.items():
        verb = "was" if len(omitted_names) == 1 else "were"
        clauses.append(f"{join_words(omitted_names)} {verb} {reason}")
    return "; ".join(clauses)


def _explain_omitted_part(report: AuditResult, score: Finding, key: str) -> str:
    """Explain why a part of faithfulness was not averaged, as the end of "erasure was …"."""
    test = ALL_QUESTIONS[key].test
    n_texts = score.incomplete_tests.get(test)
    if test in report.provenance.get(UNSUPPORTED_TESTS_KEY, ()):
        return "not possible for this model"
    if n_texts == 0:
        return "not measured"
    measured = index_by_rule(report.answer_findings).get(key)
    if n_texts is None and measured is not None:
        n_texts = measured.n
    if n_texts:
        return f"only measured on {report.words.format_text_count(n_texts)}"
    return "not defined for these texts"


def build_number_line(finding: Finding) -> NumberLine | None:
    """Build a number line with a finding's number and its thresholds.

    Args:
        finding: the finding.

    Returns:
        The number line; None if the finding has no number or too few texts.
    """
    if not finding.number or finding.n < MIN_DISPLAYED_TEXTS:
        return None
    rule = finding.rule_with_thresholds
    has_unit_scale = {0.0, 1.0} <= set(rule.scale_ends.values())
    ends = (0.0, 1.0) if has_unit_scale else None
    upper_bound = finding.yardsticks.get("upper_bound")
    references = dict(rule.scale_ends)
    if upper_bound is not None:
        references["certainly at least"] = 1 - upper_bound
    number = FormattedNumber(finding.value, finding.ci95, digits=2)
    prefix = "at most" if finding.is_upper_bound else ""
    return NumberLine(number, rule.thresholds, references, ends, prefix)


def _describe_effects(report: AuditResult) -> dict[str, str]:
    """Return a sentence for each edit of attention, by question.

    A sentence is empty if the edit was not tested.
    """
    findings = index_by_rule(report.findings)
    return {
        "path_share": _describe_path_share(findings.get("path_share"), report),
        "effect": _describe_effect(findings.get("effect"), report),
        "path": _describe_with_number(findings.get("path"), report),
        "interchange": _describe_interchange(report),
        "uniqueness": _describe_uniqueness(findings.get("uniqueness"), report),
    }


def _describe_with_number(finding: Finding | None, report: AuditResult) -> str:
    """Return a sentence that explains a finding, with its number in brackets."""
    if finding is None:
        return ""
    has_number = finding.n >= MIN_DISPLAYED_TEXTS and not math.isnan(finding.value)
    number = f" ({finding.value:.0%})" if has_number else ""
    return format_sentence(f"{describe_finding(finding, report.words)}{number}")


def _describe_path_share(path_share: Finding | None, report: AuditResult) -> str:
    """Return a sentence on how much of the decision passes through attention."""
    if path_share is None:
        return ""
    if path_share.n < MIN_DISPLAYED_TEXTS:
        return format_sentence(describe_finding(path_share, report.words))
    note = f"{path_share.rule_with_thresholds.yes:.0%} or more counts"
    if path_share.answer == Answer.CANNOT_SAY:
        note += f"; {_describe_uncertainty(path_share, report)}"
    return f"{path_share.value:.0%} of the decision passes through attention ({note})."


UNCERTAIN_NOTE = "too uncertain to tell"
"""Note after a number if its confidence interval contains the threshold."""


def _describe_uncertainty(finding: Finding, report: AuditResult) -> str:
    """Return a note on why a number does not answer its question: too few texts, or its interval."""
    min_texts = get_min_texts(report.words)
    if finding.n < min_texts:
        return f"only {finding.n} of the {min_texts} required {report.words.texts}"
    return UNCERTAIN_NOTE


LARGE_EFFECT_RATIO = 2.0
"""Ratio of two effects of shuffling attention above which a report states both.

One effect is measured on the model itself. The other effect is measured at the standard temperature,
at which the model would be 95% sure of its predictions.
"""


def _describe_effect(effect: Finding | None, report: AuditResult) -> str:
    """Return a sentence on how much shuffled attention weights change the output."""
    if effect is None:
        return ""
    if effect.n < MIN_DISPLAYED_TEXTS:
        return format_sentence(describe_finding(effect, report.words))
    change = f"{effect.value:.0%}"
    original_change = effect.yardsticks.get("published", effect.value)
    if report.words.is_number:
        change = f"{effect.value:.2f} standard deviations of its predictions"
    elif effect.value > LARGE_EFFECT_RATIO * original_change:
        change = f"{original_change:.0%}, or by {effect.value:.0%} if the model were 95% sure"
    notes = []
    # The effect decides the verdict of a language model only.
    if report.words.kind == "answer":
        notes.append(f"{effect.rule_with_thresholds.yes:.0%} or more counts")
    if effect.answer == Answer.CANNOT_SAY:
        notes.append(_describe_uncertainty(effect, report))
    note = f" ({'; '.join(notes)})" if notes else ""
    flips = effect.yardsticks.get("flips")
    flip_clause = ""
    if effect.answer == Answer.NO and flips is not None:
        flip_clause = f", and {flips:.0%} of the shuffles flip its decision"
    return f"Shuffling the weights changes the output by {change}{note}{flip_clause}."


def _describe_uniqueness(uniqueness: Finding | None, report: AuditResult) -> str:
    """Return a sentence on how different other weights with nearly the same output can be."""
    if uniqueness is None:
        return ""
    if uniqueness.n < MIN_DISPLAYED_TEXTS or uniqueness.answer == Answer.CANNOT_SAY:
        return format_sentence(describe_finding(uniqueness, report.words))
    # A finding's value of 1 means that no other weights give nearly the same output.
    distance = 1 - uniqueness.value
    if uniqueness.answer == Answer.YES:
        return (
            f"Other weights that are more than {distance:.0%} of the maximum distance away change the "
            "output."
        )
    bound = "at least " if uniqueness.is_upper_bound else ""
    return (
        f"Other weights that are {bound}{distance:.0%} of the maximum distance away give nearly the "
        "same output."
    )


def _describe_interchange(report: AuditResult) -> str:
    """Return a sentence on how often swapping the state of a unit flips the prediction.

    The most attended unit, such as a word, is compared with another unit of the text.
    """
    attended = find_model_statistic(report, "follows@attention")
    control = find_model_statistic(report, "follows@other")
    if attended is None or control is None or min(attended.n, control.n) < MIN_DISPLAYED_TEXTS:
        return ""
    unit = report.words.unit_noun
    return (
        f"Swapping the most attended {unit} flips {attended.mean:.0%} of predictions, another {unit} "
        f"{control.mean:.0%}."
    )


def find_model_statistic(report: AuditResult, name: str) -> Statistic | None:
    """Find a statistic about the model's attention as a whole.

    Args:
        report: the audit's result.
        name: the statistic's name.

    Returns:
        The statistic for all heads together, or for the only head; None if it was not measured.
    """
    statistics = index_by_site(report.statistics, name)
    if ALL_ATTENTION_SITE in statistics:
        return statistics[ALL_ATTENTION_SITE]
    if len(statistics) == 1:
        (only_statistic,) = statistics.values()
        return only_statistic
    return None


def describe_stopping(stopping: Mapping[str, Any] | None) -> list[str]:
    """Return notes about an audit's time limit and the progress within it.

    Args:
        stopping: entry "stopping" in the provenance; None without a time limit.

    Returns:
        Sentences; empty without a time limit.
    """
    if stopping is None:
        return []
    progress = (
        f"With --time (spent: {_format_time_spent(stopping)}), {stopping['runs_done']:,} of "
        f"the {stopping['runs_of_full_audit']:,} runs of a complete audit were done (a run is one "
        "test of one head, or set of heads, on one text)"
    )
    if not has_stopped_early(stopping):
        return [f"{progress}, so the audit is complete."]
    remaining = ""
    if "seconds_left" in stopping:
        remaining = f" The rest would take {format_duration(stopping['seconds_left'])}."
    return [
        f"{progress}.{remaining} Each test used a random sample of the {stopping['n_texts']:,} "
        f"texts.{_describe_head_progress(stopping.get('heads'))}",
        "Confidence intervals assume that the number of texts was fixed in advance. If you resume an "
        "audit until you like its answer, errors are more frequent than the intervals state.",
        "Left out because of the time limit: the ablation of heads in pairs, and all but three example "
        "texts.",
    ]


def _describe_head_progress(heads: Mapping[str, int] | None) -> str:
    """Return a sentence about the heads that were tested within a time limit, with a space before it.

    Args:
        heads: entry "heads" of the record of the time limit; None if no single heads were tested.
    """
    if heads is None:
        return ""
    return (
        f" The effect of {heads['n_screened']} of {heads['n_heads']} heads was estimated to first "
        f"order. In the order of these estimates, {format_count(heads['n_tested'], 'head')} could be "
        f"tested one by one on at least {MIN_TEXTS} texts."
    )


def _describe_time_limit(report: AuditResult) -> str:
    """Return a sentence about an early stop and the unanswered questions.

    The sentence is empty if the audit is complete.
    """
    stopping = report.provenance.get("stopping")
    if not has_stopped_early(stopping):
        return ""
    answered = index_by_rule(report.answer_findings)
    questions = report.conclusion.question_set.questions
    unanswered = [
        key
        for key, question in questions.items()
        if key not in answered and question.test in report.provenance["tests"]
    ]
    missing = f", before {join_rule_names(unanswered)}" if unanswered else ""
    text_counts = [f.n for f in report.answer_findings if f.is_about_attention and f.n]
    sample = ""
    if text_counts:
        smallest, largest = min(text_counts), max(text_counts)
        count_range = str(smallest) if smallest == largest else f"{smallest} to {largest}"
        sample = f" The answers are based on {count_range} {report.words.texts}."
    return f"Stopped after {_format_time_spent(stopping)} (--time){missing}.{sample}"


def _format_time_spent(stopping: Mapping[str, Any]) -> str:
    """Format the duration of an audit with its number format, such as "about 2 min in float32".

    Args:
        stopping: entry "stopping" in the provenance. Its entry "dtype" is missing in reports of
            earlier versions.
    """
    number_format = f" in {stopping['dtype']}" if "dtype" in stopping else ""
    return f"{format_duration(stopping['seconds'])}{number_format}"


def _describe_predictions(report: AuditResult) -> dict[str, str]:
    """Return a sentence on how often the model is right, or on the answers of a language model.

    The key of the sentence is the question that it answers: "accuracy" or "own". A report without
    enough texts has no such sentence.
    """
    findings = index_by_rule(
        f for f in report.findings if not f.is_about_attention and f.n >= MIN_DISPLAYED_TEXTS
    )
    accuracy, own_answers = findings.get("accuracy"), findings.get("own")
    if own_answers is not None:
        return {"own": format_sentence(_describe_own_answers(own_answers, report))}
    if accuracy is None:
        return {}
    texts = report.words.format_text_count(accuracy.n)
    if report.words.is_number:
        return {"accuracy": f"R² {accuracy.value:.2f} on {texts}."}
    if "accuracy" not in accuracy.yardsticks:
        return {}
    share_right = accuracy.yardsticks["accuracy"]
    majority = accuracy.yardsticks["majority"]
    # Only a model that is always right is printed as 100%.
    printed_share = share_right if share_right == 1 else min(share_right, 0.99)
    if report.words.kind == "labels":
        texts = f"the labels of {texts}"
    return {
        "accuracy": f"Right in {printed_share:.0%} of {texts} (most frequent answer: {majority:.0%})."
    }


def _describe_subject(report: AuditResult) -> InlineText:
    """Return a line with the model's name, the number of texts, and their data set."""
    model = truncate_start(report.model, MAX_MODEL_NAME_LENGTH)
    text_count = report.words.format_text_count(report.n, report.n_distinct)
    shares = _describe_shares(report.provenance.get("share"))
    return UserText(model), f", {text_count} of ", UserText(str(report.dataset)), shares


def _describe_own_answers(own_answers: Finding, report: AuditResult) -> str:
    """Return a clause about the answers of a language model.

    The user may have provided answers that the model itself does not generate. In this case, the
    clause counts the answers that it does generate. Otherwise, the clause counts the correct answers.
    """
    if own_answers.value < 1:
        n_generated = round(own_answers.value * own_answers.n)
        return (
            f"the model itself generates {n_generated} of {own_answers.n} answers, and the numbers "
            "are for these"
        )
    correctness = [text.correct for text in report.examples if text.correct is not None]
    if not correctness:
        return "the answers are its own, but it is not known which are right"
    return f"the answers are its own, {correctness.count(True)} of {len(correctness)} right"


def _describe_shares(shares: Sequence[Any] | None) -> str:
    """Return a note in brackets if shares of a split audit are missing, such as " (2 of 4 shares)".

    Args:
        shares: index and total of one share, or a list of such pairs; None if the audit was not
            split.
    """
    n_joined, n_shares = count_shares(shares)
    return "" if n_joined == n_shares else f" ({n_joined} of {n_shares} shares)"


MAX_MODEL_NAME_LENGTH = 40
"""Maximum length, in characters, of a model name in a report's summary.

Longer names are shortened.
"""


# --- rankings on the same scale ------------------------------------------------------------------


def build_rankings_table(report: AuditResult) -> Table | None:
    """Build a table that compares rankings, such as gradients, with attention by faithfulness.

    Args:
        report: the audit's result.

    Returns:
        The table, best ranking first; None if only one ranking was measured.
    """
    rows: list[list[Cell]] = [
        [
            ranking.label,
            FormattedNumber(ranking.faithfulness.value, ranking.faithfulness.ci95, digits=2),
        ]
        for ranking in measure_all_rankings(report)
    ]
    return Table(["ranking", "faithfulness [95%]"], rows) if len(rows) > 1 else None
