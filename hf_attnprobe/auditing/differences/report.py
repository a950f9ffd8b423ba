"""A comparison of audits, and how it is written. Pure: data in, strings out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hf_attnprobe import markdown
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.statistics.differences import Difference
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.storage.provenance import plain
from hf_attnprobe.terminal import visible


SCHEMA_VERSION = 1
CANNOT_BE_TOLD = "cannot be told apart"


@dataclass(frozen=True)
class ComparedQuestion:
    """One question, as every audit answers it.

    Attributes:
        rule: key of the rule.
        findings: of every audit: none where it was not asked, several where predicted
            classes have different answers.
        measure: the number whose differences are taken, in words; empty without any.
        means: of that number over each audit's own texts; None without it.
        differences: of every audit behind the first to the first; None without both.
        sentences: what each of these differences says.
    """

    rule: str
    findings: tuple[tuple[Finding, ...], ...]
    measure: str
    means: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]
    sentences: tuple[str, ...]

    @property
    def question(self) -> str:
        """What is asked."""
        return RULES[self.rule].question

    def answer(self, number: int) -> str:
        """An audit's answer, of each class where classes differ; empty without one."""
        said = self.findings[number]
        if len(said) == 1:
            return str(said[0].answer)
        return ", ".join(f"{f.group}: {f.answer}" for f in said)

    def changed(self, number: int) -> bool:
        """Whether an audit's answer is another than the first's, and told from it.

        Not where one of both cannot say.
        """
        difference = self.differences[number - 1]
        answers = self.answer(0), self.answer(number)
        open_ = any(not a or Answer.CANNOT_SAY in a for a in answers)
        told = difference is not None and difference.can_be_told
        return told and not open_ and answers[0] != answers[1]


@dataclass(frozen=True)
class ComparedStatistic:
    """One statistic at one place.

    Attributes:
        test: the faithfulness test it is of.
        statistic: its name, or ``name@key``.
        layer: where it was measured; negative for groups of heads and the whole model.
        head: as ``layer``.
        means: of every audit over its own texts.
        differences: of every audit behind the first to the first; None where that has
            no such statistic that may be compared.
    """

    test: str
    statistic: str
    layer: int
    head: int
    means: tuple[Estimate | None, ...]
    differences: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Setting:
    """What was not the same in all audits.

    Attributes:
        name: of the setting, in words.
        values: of every audit, in words.
    """

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class AuditComparison:
    """Several audits, and their differences to the first. ``print`` gives the text.

    Attributes:
        names: of the audits, short and all different.
        models: that were audited.
        datasets: and on which texts.
        n: texts of every audit.
        n_shared: texts that an audit behind the first shares with the first; 0 where
            the data are others.
        answers: whether attention explains the predictions, by audit.
        questions: in the order of the rules.
        statistics: all that the first audit shares with another one.
        settings: what differs in settings, model and versions.
        cautions: what the comparison cannot say.
        seed: of the resamples.
        reports: the audits.
    """

    names: tuple[str, ...]
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    n: tuple[int, ...]
    n_shared: tuple[int, ...]
    answers: tuple[Answer, ...]
    questions: tuple[ComparedQuestion, ...]
    statistics: tuple[ComparedStatistic, ...]
    settings: tuple[Setting, ...]
    cautions: tuple[str, ...]
    seed: int
    reports: tuple[AuditResult, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        return to_text(self)


# --- words --------------------------------------------------------------------------


def signed(difference: Difference | None, *, digits: int = 3) -> str:
    """A difference with its simultaneous interval; a dash without one.

    A difference too small for its digits is written with one of its own.
    """
    if difference is None or difference.value != difference.value:
        return markdown.MISSING
    value = difference.value
    shown = markdown.number(value, digits=digits, sign="+")
    if value and abs(value) < 0.5 / 10**digits:
        shown = f"{value:+.0e}"
    bounds = markdown.bounds(difference.simultaneous, digits=digits, sign="+")
    return f"{shown} {bounds}"


def difference_sentence(question: ComparedQuestion, number: int, names: Sequence[str]) -> str:
    """What the difference of an audit to the first says of a question."""
    rule = RULES[question.rule].name
    first, other = names[0], names[number]
    answers = question.answer(0), question.answer(number)
    difference = question.differences[number - 1]
    sides = (
        f"{rule}: {answers[0] or 'not asked'} for {first}, {answers[1] or 'not asked'} for {other}"
    )
    if difference is None or difference.value != difference.value:
        return f"{sides}; the numbers are not compared."
    values = f"{difference.other:z.3f} against {difference.first:z.3f}"
    pairs = f"{difference.n} texts that both have"
    if not difference.paired:
        pairs = f"other texts, {difference.n} or more of each"
    measured = f"{question.measure}: {values} over {pairs}, difference {signed(difference)}"
    if difference.can_be_told:
        moved = "higher" if difference.value > 0 else "lower"
        said = f"the number of {other} is {moved}"
        if question.changed(number):
            said = f"the answer changed: {said}"
    else:
        said = f"the two {CANNOT_BE_TOLD}"
        if answers[0] != answers[1]:
            said = f"the answers differ, but over all texts {said}"
    return f"{sides}; {said} ({measured})."


def reading_note(comparison: AuditComparison) -> str:
    """How the intervals are to be read."""
    n_statistics = sum(d is not None for s in comparison.statistics for d in s.differences)
    n_questions = sum(d is not None for q in comparison.questions for d in q.differences)
    return (
        f"Differences are the audit's minus that of {comparison.names[0]}. Intervals hold "
        f"at once with 95% probability: those of the questions over all {n_questions} "
        f"differences of questions, those of the statistics over all {n_statistics} of "
        "statistics (multiplier bootstrap over texts). Where one holds 0, or there are "
        f"fewer than {MIN_TEXTS} texts, the audits {CANNOT_BE_TOLD} there."
    )


def title(comparison: AuditComparison) -> str:
    """What is compared, on one line."""
    first, *others = comparison.names
    return f"{', '.join(others)} beside {first}"


# --- forms --------------------------------------------------------------------------


def to_text(comparison: AuditComparison) -> str:
    """What each question says, the cautions, and what differs, for a terminal."""
    lines = [title(comparison)]
    for name, dataset, n, answer in _audits(comparison):
        lines.append(f"  {name}: {answer} ({n} texts of {dataset})")
    for number, name in enumerate(comparison.names[1:]):
        lines += ["", f"{name} against {comparison.names[0]}"]
        lines += [f"  {q.sentences[number]}" for q in comparison.questions]
    lines += ["", "Caution", *(f"  {c}" for c in comparison.cautions)]
    lines += [f"  {reading_note(comparison)}"]
    settings = [f"  {s.name}: {' | '.join(s.values)}" for s in comparison.settings]
    return visible("\n".join([*lines, "", "What differs", *settings]))


def _audits(
    comparison: AuditComparison,
) -> Iterator[tuple[str, str, int, Answer]]:
    yield from zip(
        comparison.names,
        comparison.datasets,
        comparison.n,
        comparison.answers,
        strict=True,
    )


def to_markdown(comparison: AuditComparison) -> str:
    """The same with all statistics in a table."""
    names = comparison.names
    audits = [
        [n, f"`{m}`", d, k, str(a)]
        for (n, d, k, a), m in zip(_audits(comparison), comparison.models, strict=True)
    ]
    lines = [f"# {title(comparison)}", ""]
    head = ["audit", "model", "texts of", "n", "does attention explain?"]
    lines += markdown.table(head, audits)
    answers = [
        [q.question, *(q.answer(k) or markdown.MISSING for k in range(len(names)))]
        for q in comparison.questions
    ]
    lines += markdown.section("answers", markdown.table(["question", *names], answers))
    said = [s for q in comparison.questions for s in q.sentences]
    lines += ["", *markdown.bullets(said)]
    lines += markdown.section("caution", markdown.bullets(comparison.cautions))
    settings = markdown.table(
        ["setting", *names], [[s.name, *s.values] for s in comparison.settings]
    )
    lines += markdown.section("what differs", settings)
    rows = [
        [*_place(s), *map(_mean, s.means), *map(signed, s.differences)]
        for s in comparison.statistics
    ]
    head = ["test", "statistic", "layer", "head", *names]
    head += [f"{name} − {names[0]}" for name in names[1:]]
    table = [*markdown.table(head, rows), "", reading_note(comparison)]
    return markdown.document(lines + markdown.section("all statistics", table))


def _place(s: ComparedStatistic) -> tuple[str, str, int, int]:
    return s.test, s.statistic, s.layer, s.head


def _mean(estimate: Estimate | None) -> str:
    if estimate is None:
        return markdown.MISSING
    return markdown.interval(estimate.value, estimate.ci95)


def to_json(comparison: AuditComparison) -> dict:
    """Plain data; NaN becomes None."""
    fields = {k: v for k, v in vars(comparison).items() if k != "reports"}
    return plain(fields) | {"schema_version": SCHEMA_VERSION}
