"""What is said beside the answers of several audits. Pure."""

from hf_attnprobe.auditing.differences.numbers import LESS_CONTROL
from hf_attnprobe.auditing.differences.report import AuditComparison, ComparedQuestion
from hf_attnprobe.statistics.verdicts import RULES


def of_controls(comparison: AuditComparison) -> str:
    """Of which questions the control's number is taken off."""
    less = [q for q in comparison.questions if q.measure.endswith(LESS_CONTROL)]
    names = " and ".join(RULES[q.rule].name.lower() for q in less)
    if not names:
        return "No control's number is taken off."
    return f"The control's number is taken off for {names}, and for no other question."


def by_class(comparison: AuditComparison, question: ComparedQuestion, number: int) -> str:
    """Both audits' answers where one has several, by class, and they are not the same."""
    several = any(len(question.findings[k]) > 1 for k in (0, number))
    answers = [question.answer(k) or "not asked" for k in (0, number)]
    if not several or answers[0] == answers[1]:
        return ""
    names = comparison.names[0], comparison.names[number]
    pairs = zip(names, answers, strict=True)
    return f" ({'; '.join(f'{name} {said}' for name, said in pairs)})"
