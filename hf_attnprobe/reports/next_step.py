"""The next step of a user whose audit has no answer yet: a command, or advice in words.

A command is derived from what the answer lacks: tests, the attention as a whole, texts, time, or units that
attention can order. Everything that is missing is added at once. The command therefore always differs from
the commands that have already run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from hf_attnprobe.documents.blocks import CodeBlock
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.reports.verdict import get_min_texts, is_close_to_guessing, suggest_total_texts
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.scale import (
    ANSWER_PARTS,
    CLASSIFIER_PARTS,
    MIN_FAITHFULNESS_PARTS,
)
from hf_attnprobe.statistics.verdicts import (
    Conclusion,
    Finding,
    index_by_rule,
    join_words,
    list_deciding_findings,
)
from hf_attnprobe.storage.folders import normalize_settings
from hf_attnprobe.storage.provenance import (
    EARLIER_RUNS_KEY,
    SCORES_FINGERPRINT_KEY,
    UNSUPPORTED_TESTS_KEY,
    format_repeat_command,
    is_repeatable,
)


BETTER_MODEL_ADVICE = (
    "More texts will hardly change this: train the model further, or audit a better one."
)
"""Advice for a model that predicts no better than guessing."""

TRAIN_FURTHER_ADVICE = (
    "Or train the model further: the better it is than guessing, the fewer texts are needed."
)
"""Advice for a model that is better than guessing, but not certainly."""

NO_NUMBER_ADVICE = (
    "The required tests ran, but no text gave a number. For example, attention to a single word has no "
    "pattern that could be tested. Audit texts with several words."
)
"""Advice if required questions have no number, although their tests were run."""

TOO_CLOSE_ADVICE = (
    "More {texts} will hardly settle this, because the number is too close to its threshold."
)
"""Advice if so many texts would be needed that a command with more texts is not suggested."""

UNSUPPORTED_ADVICE = (
    "There will be no other answer: faithfulness needs at least two parts, and the model cannot run the "
    "tests {tests}."
)
"""Advice if the model cannot run the tests by which the parts of faithfulness are measured."""

NO_OTHER_STEP_ADVICE = "No other command would change this. The audits that could have given an answer have already run."
"""Advice if the command that would be suggested has already run in the same folder."""

MIN_TEXT_FACTOR = 2
"""Smallest factor by which a suggested number of texts exceeds the present one."""

TEXTS_AFTER_TOO_FEW = 100
"""Suggested number of texts after an audit with fewer texts than an answer requires.

With 100 texts, the half-width of most intervals is at most .1.
"""

MIN_TIME_FACTOR = 2
"""Smallest factor by which a suggested time limit exceeds the previous one."""

FIRST_TIME_FACTOR = 10
"""Factor by which a suggested time limit exceeds the previous one if a required test did not start."""

WHOLE_ATTENTION_SETTINGS = ("layers", "heads", "groups", "screen")
"""Settings that restrict an audit to some heads or layers.

They are dropped from a command that tests the attention as a whole.
"""


def has_stopped_early(
    stopping: Mapping[str, Any] | None,
) -> TypeGuard[Mapping[str, Any]]:
    """Check whether a time limit ended an audit before it was complete.

    Args:
        stopping: entry "stopping" in the provenance; None without a time limit.
    """
    return stopping is not None and stopping["runs_done"] < stopping["runs_of_full_audit"]


def count_shares(shares: Sequence[Any] | None) -> tuple[int, int]:
    """Count the shares of a split audit that a report contains.

    Args:
        shares: entry "share" in the provenance: index and total of one share, or a list of such
            pairs; None if the audit was not split.

    Returns:
        Number of shares in the report, and number of all shares; both are 0 if the audit was not
        split.

    >>> count_shares((1, 4)), count_shares([(1, 4), (3, 4)]), count_shares(None)
    ((1, 4), (2, 4), (0, 0))
    """
    if shares is None:
        return 0, 0
    share_list = [shares] if isinstance(shares[0], int) else shares
    return len(share_list), max(total for _, total in share_list)


def recommend_next_step(report: AuditResult) -> CodeBlock | str | None:
    """Return the command or the advice that should settle an open answer.

    Args:
        report: the audit's result.

    Returns:
        A command that has not run yet, or advice in words; None if the answer is not open, or if no
        step would settle it and the reason for the answer explains this.
    """
    conclusion = report.conclusion
    if conclusion.answer != Answer.CANNOT_SAY:
        return None
    own_answers = index_by_rule(report.findings).get("own")
    if own_answers is not None and own_answers.value == 0:
        # The model generates none of the answers, so no other test or text would help.
        return None
    # The gate is the finding that must be "yes" before attention is judged, such as accuracy.
    gate = conclusion.gate
    if conclusion.is_closed and gate is not None and gate.value <= 0:
        return BETTER_MODEL_ADVICE
    tests_by_lack = _count_missing_runs(report, conclusion)
    changes = _select_whole_attention(report)
    changes |= _add_missing_tests(report, tests_by_lack)
    has_no_number = not tests_by_lack and bool(conclusion.missing)
    if has_no_number:
        unsupported_tests = _list_unsupported_tests(report)
        if unsupported_tests:
            return UNSUPPORTED_ADVICE.format(tests=join_words(unsupported_tests))
        if report.provenance.get("asked_for", {}).get("level") == "word":
            # Words of several tokens have parts that attention can order.
            changes["level"] = "token"
        elif report.n_distinct >= conclusion.question_set.min_texts:
            return NO_NUMBER_ADVICE
    n_needed = _count_needed_texts(report, conclusion)
    if has_stopped_early(report.provenance.get("stopping")):
        return _recommend_more_time(report, conclusion, tests_by_lack, n_needed, changes)
    return _recommend_more_texts(report, conclusion, n_needed, changes)


def _recommend_more_texts(
    report: AuditResult, conclusion: Conclusion, n_needed: int | None, changes: dict[str, Any]
) -> CodeBlock | str | None:
    """Return the command with more texts and other changes, for an audit without a time limit.

    Args:
        report: the audit's result.
        conclusion: the verdict.
        n_needed: number of texts that should settle the answer; None if this is unknown.
        changes: other settings that the command changes.

    Returns:
        The command, or the reason why there are no more texts; None if no change would help.
    """
    if n_needed is not None:
        n_needed = _limit_to_available(report, n_needed)
        obstacle = _explain_missing_texts(report, n_needed)
        if obstacle is None:
            changes = {**changes, "test_limit": n_needed, "time": None}
        elif not changes or report.n_distinct < conclusion.question_set.min_texts:
            return obstacle
    return build_command(report, **changes) if changes else _explain_no_step(report, conclusion)


def _explain_no_step(report: AuditResult, conclusion: Conclusion) -> str | None:
    """Explain why no command would settle the answer; None if the reason for the answer explains it."""
    if conclusion.is_closed:
        return BETTER_MODEL_ADVICE
    if conclusion.why:
        return TOO_CLOSE_ADVICE.format(texts=report.words.texts)
    return None


def get_verb(provenance: Mapping[str, Any]) -> str:
    """Return the name of the command that made a report: "evaluate-scores" or "audit".

    Args:
        provenance: the report's record of its run.
    """
    return "evaluate-scores" if SCORES_FINGERPRINT_KEY in provenance else "audit"


def build_command(report: AuditResult, **changes: Any) -> CodeBlock | str:
    """Return this audit's command with changed arguments, or advice if the command is unknown.

    Args:
        report: the audit's result.
        changes: new values of settings; None removes a setting.

    Returns:
        The command. If the model or the data was an object in Python, the changes are returned in
        words. If an earlier run in the same folder had exactly these settings, the advice states that
        no other step is known.
    """
    settings = normalize_settings({**report.provenance.get("asked_for", {}), **changes})
    settings = {name: value for name, value in settings.items() if value is not None}
    known_settings = [
        report.provenance.get("asked_for", {}),
        *report.provenance.get(EARLIER_RUNS_KEY, ()),
    ]
    if settings in map(normalize_settings, known_settings):
        return NO_OTHER_STEP_ADVICE
    if is_repeatable(report.provenance):
        return CodeBlock(
            format_repeat_command(get_verb(report.provenance), report.provenance, **changes)
        )
    flags, dropped_flags = [], []
    previous_settings = report.provenance.get("asked_for", {})
    for name, value in changes.items():
        flag = f"--{name.replace('_', '-')}"
        if value is not None:
            # The tests are a mapping, of which the command line lists the names.
            printed_value = " ".join(value) if isinstance(value, Mapping) else value
            flags.append(f"{flag} {printed_value}")
        elif name in previous_settings:
            dropped_flags.append(flag)
    clauses = [f"with {' '.join(flags)}"] if flags else []
    if dropped_flags:
        clauses.append(f"without {' '.join(dropped_flags)}")
    return f"Run the audit again {' and '.join(clauses)}."


def _count_missing_runs(report: AuditResult, conclusion: Conclusion) -> dict[str, int]:
    """Count the texts of all required tests that did not run on enough texts.

    Args:
        report: the audit's result.
        conclusion: the verdict.

    Returns:
        Number of texts on which the test ran, by test name. It is 0 for a test that did not run.
    """
    if conclusion.incomplete_tests:
        return dict(conclusion.incomplete_tests)
    unsupported_tests = report.provenance.get(UNSUPPORTED_TESTS_KEY, ())
    required_tests = [
        test for test in conclusion.question_set.required_tests if test not in unsupported_tests
    ]
    if report.evidence is not None:
        return report.evidence.count_missing_runs(required_tests)
    if not conclusion.missing:
        return {}
    # There are no rows about the attention as a whole.
    requested_tests = report.provenance.get("tests", ())
    if len(report.rows):
        requested_tests = ()
    return {test: 0 for test in required_tests if test not in requested_tests}


def _add_missing_tests(report: AuditResult, tests_by_lack: Mapping[str, int]) -> dict[str, Any]:
    """Return the setting that adds the missing tests; empty if all of them were requested."""
    requested_tests = report.provenance.get("tests", ())
    missing_tests: dict[str, dict] = {
        test: {} for test in tests_by_lack if test not in requested_tests
    }
    if not missing_tests:
        return {}
    previous_tests = report.provenance.get("asked_for", {}).get("tests", {})
    return {"tests": {**previous_tests, **missing_tests}}


def _select_required_tests(report: AuditResult, conclusion: Conclusion) -> dict[str, Any]:
    """Return the setting that runs only the tests of the verdict; empty if no other test was requested."""
    requested_tests = report.provenance.get("tests", ())
    required_tests = [
        test for test in conclusion.question_set.required_tests if test in requested_tests
    ]
    if set(required_tests) == set(requested_tests):
        return {}
    previous_tests = report.provenance.get("asked_for", {}).get("tests", {})
    return {"tests": {test: previous_tests.get(test, {}) for test in required_tests}}


def _select_whole_attention(report: AuditResult) -> dict[str, Any]:
    """Return settings for a test of the attention as a whole; empty if the audit tested it."""
    if report.evidence is not None or not len(report.rows):
        return {}
    settings = report.provenance.get("asked_for", {})
    return {name: None for name in WHOLE_ATTENTION_SETTINGS if name in settings}


def _list_unsupported_tests(report: AuditResult) -> list[str]:
    """List the tests that the model cannot run, if faithfulness is therefore impossible to measure.

    Returns:
        Test names; empty if the model allows at least two parts of faithfulness.
    """
    unsupported_tests = report.provenance.get(UNSUPPORTED_TESTS_KEY, {})
    parts = ANSWER_PARTS if report.words.kind == "answer" else CLASSIFIER_PARTS
    n_possible = 0
    for part in parts:
        variants = [part] if part.fallback is None else [part, part.fallback]
        n_possible += any(variant.test not in unsupported_tests for variant in variants)
    return [] if n_possible >= MIN_FAITHFULNESS_PARTS else list(unsupported_tests)


def _count_needed_texts(report: AuditResult, conclusion: Conclusion) -> int | None:
    """Estimate how many texts an audit needs to settle all open questions of the verdict.

    Args:
        report: the audit's result.
        conclusion: the verdict.

    Returns:
        The number of texts, including copies and texts without a number; None if more texts would
        not settle any question. The estimate is often slightly too small, so the number is at least
        twice the present one. Fewer texts than an answer requires do not show how many are needed; the
        number is then at least :data:`TEXTS_AFTER_TOO_FEW`.
    """
    min_texts = get_min_texts(report.words)
    counts = [
        _scale_text_count(report, finding, suggested)
        for finding in list_deciding_findings(report.answer_findings)
        if finding.answer == Answer.CANNOT_SAY and not finding.incomplete_tests
        if (suggested := suggest_total_texts(finding, min_texts)) is not None
    ]
    if 0 < report.n_distinct < min_texts:
        counts.append(math.ceil(min_texts * report.n / report.n_distinct))
    if not counts:
        return None
    if report.n_distinct < min_texts:
        counts.append(TEXTS_AFTER_TOO_FEW)
    elif not has_stopped_early(report.provenance.get("stopping")):
        counts.append(MIN_TEXT_FACTOR * report.n)
    return max(counts)


def _scale_text_count(report: AuditResult, finding: Finding, n_texts: int) -> int:
    """Convert a number of texts with a value to the number of texts that an audit must contain.

    For example, if a question has a value for only 20 of 100 audited texts, 30 texts with a value need
    an audit of 150 texts.
    """
    n_tested = finding.n
    if report.evidence is not None and finding.is_about_attention:
        n_tested = max(report.evidence.n_tested.values(), default=finding.n)
    return math.ceil(n_texts * n_tested / finding.n * report.n / report.n_distinct)


def _limit_to_available(report: AuditResult, n_needed: int) -> int:
    """Limit a suggested number of texts to the size of the data set, if this may settle the answer.

    If the audit has too few texts for any answer, all texts of the data set may be sufficient.
    Otherwise, the number is unchanged, because fewer texts than needed would leave the answer open.
    """
    n_available = report.provenance.get("n_available", n_needed)
    min_texts = get_min_texts(report.words)
    if report.n_distinct < min_texts and n_available > report.n:
        min_total = math.ceil(min_texts * report.n / max(report.n_distinct, 1))
        return max(min(n_needed, n_available), min_total)
    return n_needed


def _explain_missing_texts(report: AuditResult, n_needed: int) -> str | None:
    """Explain why a larger limit would not provide enough texts; None if it would.

    The number of texts in the data set is unknown for audits from earlier versions. A larger limit is
    then assumed to provide more texts if the audit read as many texts as its limit allowed.

    Args:
        report: the audit's result.
        n_needed: number of texts that should settle the answer.
    """
    n_joined, n_shares = count_shares(report.provenance.get("share"))
    if n_joined < n_shares:
        return "Some shares are missing. Join all of them with attnprobe report."
    limit = report.provenance.get("asked_for", {}).get("test_limit")
    n_read = report.n + report.provenance.get("skipped_empty", 0)
    n_available = report.provenance.get("n_available", math.inf)
    # An audit may read fewer texts than its limit, because it leaves out texts with undefined logits.
    is_limited = limit is not None and (n_read >= limit or limit < n_available < math.inf)
    if is_limited and n_needed <= n_available:
        return None
    texts = report.words.texts
    advice = f"This audit used all available {texts}. Add more of them."
    if is_limited and n_available > n_read:
        advice = (
            f"An answer may need about {report.words.format_text_count(n_needed)}, but the data set "
            f"contains only {n_available:,}. Add more of them."
        )
    if is_close_to_guessing(report.conclusion.gate):
        advice += f" {TRAIN_FURTHER_ADVICE}"
    if report.evidence is not None and report.evidence.default_classes:
        names = ", ".join(report.evidence.default_classes)
        advice += (
            f" {texts.capitalize()} that are predicted as {names} do not count, because they contain "
            "nothing to highlight."
        )
    return advice


def _recommend_more_time(
    report: AuditResult,
    conclusion: Conclusion,
    tests_by_lack: Mapping[str, int],
    n_needed: int | None,
    changes: dict[str, Any],
) -> CodeBlock | str | None:
    """Return the command with a longer time limit for an audit that stopped at its time limit.

    Args:
        report: the audit's result.
        conclusion: the verdict.
        tests_by_lack: number of texts on which each incomplete test ran, by test name.
        n_needed: number of texts that should settle the answer; None if this is unknown.
        changes: other settings that the command changes.

    Returns:
        The command, or advice in words; None if more texts would not settle the answer.
    """
    stopping = report.provenance["stopping"]
    n_texts, min_texts = stopping["n_texts"], conclusion.question_set.min_texts
    n_goal = n_needed
    if tests_by_lack:
        n_goal = max(n_needed or 0, min_texts)
    if n_goal is None and not changes:
        return _explain_no_step(report, conclusion)
    if n_goal is not None and n_goal > n_texts:
        n_goal = _limit_to_available(report, n_goal)
        obstacle = _explain_missing_texts(report, n_goal)
        if obstacle is None:
            return build_command(report, **{**changes, "test_limit": n_goal, "time": None})
        if n_texts < min_texts:
            return obstacle
        if not tests_by_lack and not changes:
            return f"Even all {n_texts:,} {report.words.texts} of this audit may leave the answer open."
    if not tests_by_lack and stopping.get("heads") is None:
        # The time would otherwise also be spent on tests that cannot settle the answer.
        changes = {**_select_required_tests(report, conclusion), **changes}
    n_reached = min(tests_by_lack.values(), default=conclusion.n)
    previous_limit = max(stopping["seconds"], stopping.get("time_limit", 0))
    factor: float = FIRST_TIME_FACTOR
    if tests_by_lack and n_goal is not None and "seconds_for_answer" in stopping:
        # The durations of all required tests were measured.
        needed_limit = stopping["seconds_for_answer"] * n_goal / min_texts
        factor = max(MIN_TIME_FACTOR, needed_limit / previous_limit)
    elif n_reached and n_goal is not None:
        factor = max(MIN_TIME_FACTOR, math.ceil(n_goal / n_reached))
    time: str | None = None
    if factor < stopping["runs_of_full_audit"] / max(stopping["runs_done"], 1):
        time = _format_time_limit(factor * previous_limit)
    return build_command(report, **{**changes, "time": time})


def _format_time_limit(seconds: float) -> str:
    """Format a time limit for the option ``--time``, rounded up to minutes, or to hours from 100 minutes.

    >>> _format_time_limit(90), _format_time_limit(9000)
    ('2m', '3h')
    """
    if seconds < 100 * 60:
        return f"{math.ceil(seconds / 60)}m"
    return f"{math.ceil(seconds / 3600)}h"
