"""The first screen of an audit: the answer, what to do about it, and its numbers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from hf_attnprobe.core.progress import in_words
from hf_attnprobe.core.terminal import tail
from hf_attnprobe.documents.blocks import (
    Answered,
    Block,
    Cell,
    Listing,
    Number,
    NumberLine,
    Score,
    Scores,
    Table,
)
from hf_attnprobe.reports.head_tables import at_places, which_heads
from hf_attnprobe.reports.result import AuditResult
from hf_attnprobe.reports.verdict import (
    answer_sentence,
    least_texts,
    meaning,
    sentence,
    texts_in_all,
)
from hf_attnprobe.statistics.estimates import MIN_SHOWN
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.heads import EVERYWHERE
from hf_attnprobe.statistics.questions import EVERY_QUESTION, RANKED_BESIDE
from hf_attnprobe.statistics.scale import placed
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import (
    MAY,
    MAY_I,
    Finding,
    also_needs,
    by_rule,
    conclude,
    names_of,
)
from hf_attnprobe.storage.provenance import is_repeatable, repeating


SCALE = "0 = {units} in random order, 1 = the best possible order"
NOT_ASKED = (
    "No question about the attention as a whole was asked: heads were tested one by one, "
    "or too few tests were run."
)
NONE_OWN = (
    "The model itself says none of the {n} answers that were given, so nothing explains how it "
    "says them: leave the answers out, and it gives its own."
)


AT_FIRST = ("users", "time", "model")
"""Sentences that a page shows beside the scale, before its texts."""


def first_screen(report: AuditResult) -> list[Block]:
    """Returns the answer with what to do about it, and a row for every question.

    Of fewer texts than have a number the answer alone says that they are too few.
    """
    is_few = report.n < MIN_SHOWN
    numbers = [] if is_few else [*_on_the_scale(report)]
    sentences = {} if is_few else _of_effects(report)
    sentences |= {
        "heads": which_heads(report),
        "users": f"{MAY_I} {MAY[report.answer]}",
        "time": _time(report),
        "model": _model(report),
    }
    beside = [
        Score(name, None, said, is_beside=name not in AT_FIRST)
        for name, said in sentences.items()
        if said
    ]
    advice = what_to_do(report)
    run = " Run this:" if isinstance(advice, Listing) else ""
    return [
        Answered("", str(report.answer), f"{why(report)}{run}"),
        advice,
        found_by_attention(report),
        [f"CONTRADICTION, report it: {said}" for said in report.contradictions],
        Scores([*numbers, *beside]),
    ]


def why(report: AuditResult) -> str:
    """Returns what the answer rests on, in a sentence."""
    own = by_rule(report.findings).get("own")
    if own is not None and own.value == 0:
        return NONE_OWN.format(n=own.n)
    if not any(f.is_about_attention for f in report.findings):
        return NOT_ASKED
    return answer_sentence(report.findings, report.words)


WITHOUT = {
    "chance": "Guessing would hit about",
    "longest": "the longest {unit}",
    "first": "the first one",
    "last": "the last one",
    "commonest place": "the one at the commonest place",
}
"""In words, what finds a unit without attention, in the order in which it is said."""


def found_by_attention(report: AuditResult) -> str | None:
    """Returns in how many prompts attention finds what the answer rests on; None of other models.

    Beside it chance, length, and the place that finds it oftenest where that is more.
    """
    source = by_rule(report.findings).get("source")
    if source is None or source.n < MIN_SHOWN:
        return None
    counts = {name: share * source.n for name, share in source.yardsticks.items()}
    oftenest = max(WITHOUT, key=counts.__getitem__)
    unit = report.words.units.removesuffix("s")
    beside = ", ".join(
        f"{WITHOUT[name].format(unit=unit)} {counts[name]:.0f}"
        for name in dict.fromkeys(["chance", "longest", oftenest])
    )
    prompts = report.words.counted(source.n)
    return (
        f"In {counts['found']:.0f} of {prompts} attention is highest on the {unit} that the answer "
        f"rests on. {beside}."
    )


# --- what to do about it -------------------------------------------------------------------------


BETTER_MODEL = "More texts will hardly change that: train the model further, or audit a better one."


def what_to_do(report: AuditResult) -> Listing | str | None:
    """Returns the command that would give an answer; None where there is one, or none would."""
    concluded = conclude(report.findings)
    if concluded.answer != Answer.CANNOT_SAY:
        return None
    own = by_rule(report.findings).get("own")
    if own is not None and own.value == 0:
        return None
    gate = concluded.gate
    if concluded.is_closed and gate is not None and gate.value <= 0:
        return BETTER_MODEL
    if concluded.why == also_needs(concluded.missing):
        ran = report.provenance.get("asked_for", {}).get("tests", {})
        tests: dict[str, dict] = {EVERY_QUESTION[key].test: {} for key in concluded.missing}
        if own is None:
            tests = {"scale": {}, "erasure": {}, **tests}
        return _command(report, tests={**ran, **tests})
    return _more_texts(report)


def _more_texts(report: AuditResult) -> Listing | str | None:
    """Returns the command with as many texts as the open questions need."""
    decides, least = ("score", "effect", "gate"), least_texts(report.words)
    open_ones = [f for f in report.findings if f.role in decides and f.answer == Answer.CANNOT_SAY]
    needed = [n for f in open_ones if (n := texts_in_all(f, least)) is not None]
    if not needed:
        return None
    stopping = report.provenance.get("stopping")
    has_more = "test_limit" in report.provenance.get("asked_for", {})
    texts = report.words.texts
    reached = max(needed) if has_more else least
    if stopped_early(stopping) and reached <= stopping["n_texts"]:
        n = stopping["n_texts"]
        done = stopping["runs_done"] / stopping["runs_of_full_audit"]
        said = f"{GOES_ON}; {done:.1%} is done."
        if max(needed) > n:
            said += f" Even all {n:,} {texts} here may leave it open."
        return said
    if _shares(report.provenance.get("share")):
        return "Shares are missing; attnprobe report joins them."
    if not has_more:
        return f"Add more {texts}: all here were used."
    return _command(report, test_limit=max(needed), time=None)


def _command(report: AuditResult, **changed: Any) -> Listing | str:
    """Returns the audit's command with other arguments, where it has one."""
    if is_repeatable(report.provenance):
        return Listing(repeating("audit", report.provenance, **changed))
    values = {
        name: " ".join(v) if isinstance(v, Mapping) else v
        for name, v in changed.items()
        if v is not None
    }
    flags = " ".join(f"--{name.replace('_', '-')} {v}" for name, v in values.items())
    return f"Run the audit again with {flags}."


# --- the numbers ---------------------------------------------------------------------------------


def _on_the_scale(report: AuditResult) -> Iterator[Score]:
    """Yields faithfulness, then its parts, each with its meaning."""
    for f in report.findings:
        if f.role not in ("score", "part"):
            continue
        is_part, line, words = f.role == "part", line_of(f), report.words
        is_scale = line and not is_part
        said = words.fill(SCALE) if is_scale else meaning(f, words)
        number = Number(f.value, f.ci95, digits=2) if line else None
        yield Score(f.name.lower(), number, said, line, is_part)


def line_of(finding: Finding) -> NumberLine | None:
    """Returns the number with its interval on a line with thresholds; None without a number."""
    if not finding.number or finding.n < MIN_SHOWN:
        return None
    rule = finding.graded_by
    ends = (0.0, 1.0) if set(rule.ends.values()) >= {0.0, 1.0} else None
    bound = finding.yardsticks.get("upper_bound")
    marks = {
        **rule.ends,
        **({} if bound is None else {"certainly at least": 1 - bound}),
    }
    number = Number(finding.value, finding.ci95, digits=2)
    before = "at most" if finding.is_upper_bound else ""
    return NumberLine(number, rule.thresholds, marks, ends, before)


def _of_effects(report: AuditResult) -> dict[str, str]:
    """Returns what edits of attention do, a sentence each."""
    found = by_rule(report.findings)
    return {
        "effect": _effect(found.get("effect"), report),
        "path": _clause(found.get("path"), report),
        "interchange": _interchange(report),
        "uniqueness": _uniqueness(found.get("uniqueness"), report),
    }


def _clause(finding: Finding | None, report: AuditResult) -> str:
    """Returns what a number means, with it, in a sentence."""
    if finding is None:
        return ""
    known = finding.n >= MIN_SHOWN and finding.value == finding.value
    number = f" ({finding.value:.0%})" if known else ""
    return sentence(f"{meaning(finding, report.words)}{number}")


FAR = 2.0
"""Times as large as the change of the output as it is: then both are said."""


def _effect(effect: Finding | None, report: AuditResult) -> str:
    """Returns how far the median shuffle moves what the model says, in a sentence."""
    if effect is None:
        return ""
    if effect.n < MIN_SHOWN:
        return sentence(meaning(effect, report.words))
    moved = f"{effect.value:.0%}"
    raw = effect.yardsticks.get("published", effect.value)
    if report.words.is_number:
        moved = f"{effect.value:.2f} standard deviations of its predictions"
    elif effect.value > FAR * raw:
        moved = f"{raw:.0%}, were it 95% sure by {moved}"
    flips = effect.yardsticks.get("flips")
    is_small = effect.answer == Answer.NO and flips is not None
    decisions = f", and {flips:.0%} of the shuffles flip its decision" if is_small else ""
    enough = f" ({effect.graded_by.yes:.0%} or more counts)"
    if effect.answer == Answer.CANNOT_SAY:
        enough = " (not settled)"
    elif report.words.is_number:
        enough = ""
    return f"Shuffling the weights changes what the model says by {moved}{enough}{decisions}."


def _uniqueness(found: Finding | None, report: AuditResult) -> str:
    """Returns how far weights can be that give nearly the same output, in a sentence."""
    if found is None:
        return ""
    if found.n < MIN_SHOWN or found.answer == Answer.CANNOT_SAY:
        return sentence(meaning(found, report.words))
    least = "at least " if found.is_upper_bound else ""
    output = "nearly the same output"
    if found.answer == Answer.YES:
        least = "over "
        output = "another output"
    return f"Weights {least}{1 - found.value:.0%} as far off as can be give {output}."


def _interchange(report: AuditResult) -> str:
    """Returns how often the decision follows an exchanged state, in a sentence."""
    own, other = (whole(report, f"follows@{what}") for what in ("attention", "other"))
    if own is None or other is None or min(own.n, other.n) < MIN_SHOWN:
        return ""
    one = report.words.units.removesuffix("s")
    return (
        f"Swapping the most attended {one} turns {own.mean:.0%} of predictions, another {one} "
        f"{other.mean:.0%}."
    )


def whole(report: AuditResult, name: str) -> Statistic | None:
    """Returns a statistic of the model's attention as a whole; None where there is none."""
    known = at_places(report.statistics, name)
    only = next(iter(known.values())) if len(known) == 1 else None
    return known.get(EVERYWHERE, only)


GOES_ON = "With --output-dir the same command, run again, goes on"


def stopped_early(
    facts: Mapping[str, Any] | None,
) -> TypeGuard[Mapping[str, Any]]:
    """Whether time ended an audit before it was whole; ``facts`` as below."""
    return facts is not None and facts["runs_done"] < facts["runs_of_full_audit"]


LEFT_OUT = "accuracy as heads are removed together, all shown texts but three"
"""Of a report in haste, because it takes the model once more."""


def stopping_notes(facts: Mapping[str, Any] | None) -> list[str]:
    """What a report says of an audit with a time.

    Args:
        facts: "stopping" of the report's provenance; None of an ordinary audit.
    """
    if facts is None:
        return []
    done, full = facts["runs_done"], facts["runs_of_full_audit"]
    said = (
        f"With --time ({in_words(facts['seconds'])}), {done:,} of the {full:,} runs of a whole audit "
        "were made (a run is one test of one head, or set of heads, on one text)"
    )
    if not stopped_early(facts):
        return [f"{said}, so nothing was left out."]
    return [
        f"{said}. Tests saw texts drawn at random from {facts['n_texts']:,}.",
        "Intervals are those of as many texts chosen beforehand: who goes on until an answer "
        "pleases errs more often than they say.",
        f"Left out for want of time: {LEFT_OUT}.",
    ]


def _time(report: AuditResult) -> str:
    """Returns that time ended the audit, before which questions, and on how many texts.

    Nothing of an audit that is whole.
    """
    facts = report.provenance.get("stopping")
    if not stopped_early(facts):
        return ""
    begun = by_rule(report.findings)
    missed = [
        key
        for key, asked in conclude(report.findings).asked.questions.items()
        if key not in begun and asked.test in report.provenance["tests"]
    ]
    before = f", before {names_of(missed)}" if missed else ""
    sizes = {f.n for f in report.findings if f.is_about_attention and f.n}
    seen = ""
    if sizes:
        ends = sorted({min(sizes), max(sizes)})
        numbers = " to ".join(map(str, ends))
        seen = f" Answers are of {numbers} {report.words.texts}."
    return f"Stopped after {in_words(facts['seconds'])} (--time){before}.{seen}"


def _model(report: AuditResult) -> str:
    """Returns which model it is, on which texts, and how good it is there."""
    known = by_rule(f for f in report.findings if not f.is_about_attention and f.n >= MIN_SHOWN)
    shares = _shares(report.provenance.get("share"))
    accuracy, own = known.get("accuracy"), known.get("own")
    n = report.n if accuracy is None else accuracy.n
    texts = f"{report.words.counted(n)} of {report.dataset}{shares}"
    if own is not None:
        texts = f"{texts}; {_own(own, report)}"
    elif accuracy is not None and report.words.is_number:
        texts = f"R² {accuracy.value:.2f} on {texts}"
    elif accuracy is not None and "accuracy" in accuracy.yardsticks:
        right, usual = (accuracy.yardsticks[name] for name in ("accuracy", "majority"))
        shown = right if right == 1 else min(right, 0.99)  # 100% is all of them
        if report.words.kind == "labels":
            texts = f"the labels of {texts}"
        texts = f"right in {shown:.0%} of {texts} (most frequent answer: {usual:.0%})"
    return f"{tail(report.model, MOST_LETTERS)}, {texts}"


def _own(own: Finding, report: AuditResult) -> str:
    """Returns how many answers the model says itself, of which the numbers are, or are right."""
    if own.value < 1:
        said = f"{round(own.value * own.n)} of {own.n} answers"
        return f"it says {said} itself, and the numbers are of these"
    known = [one.correct for one in report.examples if one.correct is not None]
    if not known:
        return "the answers are its own; which are right is not known"
    return f"the answers are its own, {known.count(True)} of {len(known)} right"


def _shares(said: Sequence[Any] | None) -> str:
    """Returns how many shares of an audit were made, where some are missing.

    Args:
        said: number of a share and of how many, or those of several; None of a whole audit.
    """
    shares = [] if said is None else [said] if isinstance(said[0], int) else said
    n = max((of for _, of in shares), default=0)
    return "" if len(shares) == n else f" ({len(shares)} of {n} shares)"


MOST_LETTERS = 40
"""Of the name of a model on the first screen."""


# --- rankings on the same scale ------------------------------------------------------------------


def rankings(report: AuditResult) -> Table | None:
    """Returns the faithfulness of each ranking on the same texts; None with attention alone."""
    evidence = report.evidence
    if evidence is None:
        return None
    own = evidence.explained
    names = {"attention": "attention", **RANKED_BESIDE}
    found = {name: placed(own.texts, name, own.parts).score for name in names}
    known = {name: score for name, score in found.items() if (score.n or 0) >= MIN_SHOWN}
    ordered = sorted(known, key=lambda name: -known[name].value)
    rows: list[list[Cell]] = [
        [names[name], Number(known[name].value, known[name].ci95, digits=2)] for name in ordered
    ]
    return Table(["ranking", "faithfulness [95%]"], rows) if len(rows) > 1 else None
