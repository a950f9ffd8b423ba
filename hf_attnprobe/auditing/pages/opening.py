"""The opening of an audit's page: the question, the answer, of what and how sure."""

from collections.abc import Sequence

from hf_attnprobe.auditing.forms.notes import (
    attention_line,
    predicts_note,
    target_note,
    units_note,
)
from hf_attnprobe.auditing.pages.at_a_glance import counted, glance
from hf_attnprobe.auditing.pages.by_class import classes_note
from hf_attnprobe.auditing.pages.cards import card
from hf_attnprobe.auditing.pages.shown_to_users import may_be_shown, what_is_shown
from hf_attnprobe.auditing.pages.what_would_change import change_sentences
from hf_attnprobe.auditing.pages.which_heads import (
    heads_of_model,
    tested_heads,
    which_heads,
)
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import QUESTION
from hf_attnprobe.page.elements import bullets, grade, paragraphs, section
from hf_attnprobe.page.html import Html, tag
from hf_attnprobe.statistics.known_truth import row_of
from hf_attnprobe.statistics.verdicts import Finding


NOT_ASKED = (
    "No question about the attention as a whole was asked: heads were tested one by one, "
    "or too few tests were run."
)


def opening(report: AuditResult) -> Html:
    """Question, graded answer, what is predicted, by which model, from which texts."""
    answer, line = str(report.answer), attention_line(report)
    return tag(
        "header",
        tag("h1", QUESTION),
        tag(
            "div",
            tag(
                "p",
                grade(answer),
                " ",
                _why(report),
                class_="lead",
            ),
            class_=f"answer {answer.replace(' ', '-')}",
        ),
        *paragraphs([line] if line else []),
        facts(report),
        glance(report),
    )


def facts(report: AuditResult) -> Html:
    """Model, texts and seed, in a list of terms."""
    known = {
        "model": tag("code", report.model),
        "texts": [f"{report.n:,} of ", tag("code", str(report.dataset))],
        "predicts": " ".join(predicts_note(report)).removeprefix("Predicts ") or None,
        "classes": classes_note(report),
        "right predictions": _quality(report.findings),
        "compared with": _compared_with(report),
        "attention tested": _tested(report),
        "which heads matter": which_heads(report),
        "this verdict elsewhere": _calibrated(report),
        "seed": str(report.seed),
    }
    pairs = [(name, said) for name, said in known.items() if said]
    return tag(
        "dl",
        *[[tag("dt", name), tag("dd", said)] for name, said in pairs],
    )


def _calibrated(report: AuditResult) -> str | None:
    """How often such a verdict is wrong on models of known truth."""
    known = row_of("whole", report.n)
    has_own = any(f.partly is not None for f in report.findings)
    return None if known is None or has_own else known.sentence


def _quality(findings: Sequence[Finding]) -> str | None:
    """Accuracy beside that of always saying the same, where both are known."""
    for f in findings:
        if f.rule == "accuracy" and f.n and "majority" in f.yardsticks:
            majority = f.yardsticks["majority"]
            return (
                f"{majority + f.value:.2f} of {f.n} texts; always saying the most "
                f"frequent answer {majority:.2f}"
            )
    return None


def _compared_with(report: AuditResult) -> str:
    control = report.provenance.get("control", "none")
    if control == "none":
        return "chance and gradients only; no control was run"
    return f"a control: this model with {control}"


def _tested(report: AuditResult) -> str:
    """Which attention the answer is about."""
    places = {(s.layer, s.head) for s in report.statistics}
    n_all = len(heads_of_model(report))
    n_heads = len(tested_heads(report))
    one_by_one = f"{n_heads} heads one by one" if n_heads != 1 else "one head"
    if n_heads < n_all:
        one_by_one = (
            f"{n_heads} of {n_all} heads one by one; all {n_all} were screened by a quick estimate"
        )
    if (-1, -1) not in places:
        return one_by_one
    together = "all heads at once, which the answers are about"
    return f"{together}; {one_by_one}" if n_heads else together


def _why(report: AuditResult) -> str:
    """What the answer rests on: how many questions say what."""
    if not any(f.is_about_attention for f in report.findings):
        return NOT_ASKED
    return counted(report.findings)


def standing(report: AuditResult) -> Html:
    """Is the model any good, what is the control, and what else stands beside it."""
    return section(
        "What the answer stands on",
        *[card(f, report.words) for f in report.findings if f.rule == "accuracy"],
        bullets(
            [
                *[f"CONTRADICTION, report it: {s}" for s in report.contradictions],
                _control_note(report),
                *units_note(report),
                *target_note(report),
                *report.notes,
            ]
        ),
        id="stands-on",
    )


def _control_note(report: AuditResult) -> str:
    """Compared with what: the control, or that there is none."""
    control = report.provenance.get("control", "none")
    if control == "none":
        return (
            "Control: none was run, so what the same weights at other tokens would reach "
            "is not known. Run the audit with --control auto for one."
        )
    return f"Control: the same tests on this model with {control}."


def for_users(report: AuditResult) -> Html:
    """May it be shown, what speaks for and against, and what would change that."""
    headed = what_is_shown(report.findings)
    reasons = [
        [tag("dt", heading), tag("dd", bullets(sentences))] for heading, sentences in headed.items()
    ]
    return section(
        "May this attention be shown to users as an explanation?",
        *paragraphs([may_be_shown(report.findings)]),
        tag("dl", *reasons) if reasons else None,
        tag("h3", "What would change the verdict"),
        bullets(change_sentences(report)),
        id="for-users",
    )
