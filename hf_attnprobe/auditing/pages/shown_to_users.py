"""May this attention be shown to people as an explanation? From the graded answers."""

from collections.abc import Sequence

from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import RULES, Finding, conclude, names_of


WARN = "Only with a warning. Highlighting shows where the model looked, not why it decided"
MAY = {
    Answer.YES: "Yes, with the note below. All questions that decide support it",
    Answer.MOSTLY_YES: WARN,
    Answer.PARTLY: WARN,
    Answer.MOSTLY_NO: WARN,
    Answer.NO: "No",
    Answer.CANNOT_SAY: "Not yet: this audit cannot tell",
}
ONLY_BESIDE = "If it is shown, then with the sentences below beside it."
CAUTIONS = {
    Answer.YES: "That holds on average over texts like these, for this one training of "
    "the model; a single text may be otherwise.",
    Answer.MOSTLY_YES: ONLY_BESIDE,
    Answer.PARTLY: ONLY_BESIDE,
    Answer.MOSTLY_NO: ONLY_BESIDE,
    Answer.NO: "Shown as a heat map it would say something about the prediction that "
    "these tests do not bear out.",
    Answer.CANNOT_SAY: "This does not mean that attention is wrong.",
}


def may_be_shown(findings: Sequence[Finding]) -> str:
    """The answer in one or two sentences, no stronger than the graded one."""
    concluded = conclude(findings)
    answer, why = concluded.answer, concluded.why
    if answer == Answer.CANNOT_SAY and not why:
        why = _why_not_known(findings)
    return f"{MAY[answer]}{f', because {why}' if why and answer != Answer.YES else ''}. {CAUTIONS[answer]}"


def _why_not_known(findings: Sequence[Finding]) -> str:
    """What stands in the way of an answer, where it is known."""
    asked = [f for f in findings if f.is_about_attention]
    if not asked:
        return "no question about the attention as a whole was asked"
    open_ones = [f for f in asked if f.answer == Answer.CANNOT_SAY]
    return f"{names_of(dict.fromkeys(f.rule for f in open_ones))} had no clear answer"


def what_is_shown(findings: Sequence[Finding]) -> dict[str, list[str]]:
    """What may be said for, against and neither, in words, by that heading."""
    said: dict[str, list[str]] = {}
    for f in findings:
        rule = RULES[f.rule]
        if not f.is_about_attention:
            continue
        heading, words = {
            Answer.YES: ("For it", rule.if_yes),
            Answer.NO: ("Against it", rule.if_no),
            Answer.PARTLY: ("Between", f"only in part: {rule.if_yes}"),
            Answer.CANNOT_SAY: ("Not known", f"whether {rule.if_yes}"),
        }[f.answer]
        said.setdefault(heading, []).append(f"{words}{f.where} [{rule.name}]")
    order = ("For it", "Between", "Against it", "Not known")
    return {heading: said[heading] for heading in order if heading in said}
