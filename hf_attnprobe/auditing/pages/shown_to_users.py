"""May this attention be shown to people as an explanation? From the graded answers."""

from collections.abc import Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.pages.plain_words import QUESTIONS
from hf_attnprobe.auditing.verdict import ALL_TEXTS, conclusion
from hf_attnprobe.statistics.verdicts import RULES, Answer, Finding


MAY = {
    Answer.YES: "With care. No question that was asked here speaks against it",
    Answer.PARTLY: "Not without saying what it does not show. The questions disagree",
    Answer.NO: "No. No question that was asked here speaks for it",
    Answer.CANNOT_SAY: "Not on the strength of this audit. It cannot tell",
}
CAUTIONS = {
    Answer.YES: "That holds on average over texts like these, for this one training of "
    "the model; a single text may be otherwise.",
    Answer.PARTLY: "If it is shown, then with the sentences below beside it, and not as "
    "the reason for the prediction.",
    Answer.NO: "Shown as a heat map it would say something about the prediction that "
    "these tests do not bear out.",
    Answer.CANNOT_SAY: "That is no evidence against attention either; the section on "
    "what would change the verdict says what is missing.",
}


def may_be_shown(findings: Sequence[Finding]) -> str:
    """The answer in one or two sentences, no stronger than the graded one."""
    answer = conclusion(findings)
    why = _why_not_known(findings) if answer == Answer.CANNOT_SAY else ""
    return f"{MAY[answer]}{why}. {CAUTIONS[answer]}"


def _why_not_known(findings: Sequence[Finding]) -> str:
    """What stands in the way of an answer, where it is known."""
    quality = [f for f in findings if f.rule == "accuracy" and f.n]
    if any(f.answer != Answer.YES for f in quality):
        return (
            ": the model is not shown to be better than always saying the same, so "
            "there is nothing worth an explanation"
        )
    asked = [f for f in findings if f.rule != "accuracy"]
    if not asked:
        return ": no question about the attention as a whole was asked"
    open_ones = [f for f in asked if f.answer == Answer.CANNOT_SAY]
    names = ", ".join(dict.fromkeys(RULES[f.rule].name.lower() for f in open_ones))
    return f", because {names} had no clear answer"


def what_is_shown(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """What may be said for, against and neither, in words, by that heading."""
    said: dict[str, list[str]] = {}
    for f in findings:
        plain = QUESTIONS.get(f.rule)
        if f.rule == "accuracy" or plain is None:
            continue
        heading, words = {
            Answer.YES: ("For it", plain.yes),
            Answer.NO: ("Against it", plain.no),
            Answer.PARTLY: ("Between", f"only in part: {plain.yes}"),
            Answer.CANNOT_SAY: ("Not known", f"whether {plain.yes}"),
        }[f.answer]
        where = "" if f.group == ALL_TEXTS else f" (texts predicted {f.group})"
        sentence = f"{words}{where}{_control_too(f)} [{RULES[f.rule].name}]"
        said.setdefault(heading, []).append(sentence)
    order = ("For it", "Between", "Against it", "Not known")
    return {heading: said[heading] for heading in order if heading in said}


NEAR = 0.5
"""Share of a threshold from which a control comes near to it."""
CONTROL_TOO = {
    "removal": "loses {control} too beyond what random tokens cost, the model {model}",
    "erasure": "goes {control} of the way too, the model {model}",
}
"""Questions that are graded by the model's own number, without taking off the control's."""


def _control_too(finding: Finding) -> str:
    """That the control comes near the threshold, where the answer does not count that."""
    control = finding.yardsticks.get("control")
    rule, pattern = RULES[finding.rule], CONTROL_TOO.get(finding.rule)
    threshold = rule.yes if finding.answer == Answer.YES else rule.partly
    graded_up = finding.answer in (Answer.YES, Answer.PARTLY)
    if control is None or pattern is None or not graded_up:
        return ""
    if control < NEAR * threshold:
        return ""
    said = pattern.format(
        control=markdown.number(control, digits=2),
        model=markdown.interval(finding.value, finding.ci95, digits=2),
    )
    return f"; but the control, this model without what it learned, {said}"
