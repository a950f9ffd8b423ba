"""What every form of an audit says: its model, its quality, its verdict, in sentences."""

from collections import Counter
from collections.abc import Sequence

from hf_attnprobe.auditing.group_tables import (
    BY_PART,
    EVERYWHERE,
    MOST_PARTS,
    group_section,
    group_sentences,
)
from hf_attnprobe.auditing.heads.sentences import head_sentences
from hf_attnprobe.auditing.heads.values import has_several
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import conclusion_sentence, zero_ablation_only
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.statistics.differences import Contrast
from hf_attnprobe.statistics.summary import ALL_TEXTS, Statistic, key_of


def predicts_note(report: AuditResult) -> list[str]:
    """What is predicted, and what a change, a flip and a loss of it are."""
    words = report.words
    if not words.predicts:
        return []
    return [f"Predicts {words.predicts}. {words.meaning}".rstrip()]


def units_note(report: AuditResult) -> list[str]:
    """What the texts and their units are, where that is not one text of tokens."""
    notes = []
    columns = report.provenance.get("text_columns", "")
    if columns not in ("", "text", "sentence"):
        notes.append(f"Columns read as texts: {columns}.")
    if report.provenance.get("attended") == "text":
        notes.append(
            "This model attends to the first text of each pair; the second is its query, "
            "which is neither explained, left out nor erased."
        )
    segment = report.provenance.get("segment")
    if segment is not None:
        first = segment == "text"
        explained, held = ("first", "second") if first else ("second", "first")
        notes.append(
            f"Importances, leave-one-out and erasure are of the {explained} text of each "
            f"pair; the {held} stays as it is. Edits of attention reach both."
        )
    if report.provenance.get("units") == "sentences":
        notes.append(
            "This model's attention weighs sentences: what is called a token here is a sentence."
        )
    return notes


def target_note(report: AuditResult) -> list[str]:
    """Which class is explained where it is not the predicted one."""
    targets: dict[str, list[str]] = {}
    for test, options in report.provenance.get("options", {}).items():
        if options.get("target") is not None:
            targets.setdefault(str(options["target"]), []).append(test)
    return [
        f"Explained is in {', '.join(tests)} why a text is decided for the class {target} "
        "or not: what is said there of the predicted class is of the side that the text "
        f"is on, {target} or all other classes together, and a decision flips where it "
        "changes sides."
        for target, tests in targets.items()
    ]


def quality_lines(report: AuditResult) -> list[str]:
    """How good the model is on these texts, and what stands beside its numbers."""
    lines = [f"CONTRADICTION, report it: {s}" for s in report.contradictions]
    which = attention_line(report)
    lines += [f"{which}."] if which else []
    lines += [f.sentence for f in report.findings if not f.is_about_attention]
    if "control" in report.provenance:
        lines.append(f"Control: the same tests on this model with {report.provenance['control']}.")
    return lines


def verdict_lines(report: AuditResult) -> list[str]:
    """The answer, what it rests on, and what the heads say one by one."""
    answer = conclusion_sentence(report.findings)
    lines = [answer] if answer else []
    lines += [f.sentence for f in report.findings if f.is_about_attention]
    lines += report.notes
    if has_several(report.statistics):
        words = report.words
        lines += group_sentences(report.statistics, words)
        return lines + head_sentences(report.statistics, report.rows, words)
    ablated = zero_ablation_only(report.statistics)
    return [*lines, ablated] if ablated else lines


def group_lines(report: AuditResult) -> list[str]:
    """The tables of groups of heads: layers, the whole model, named sets."""
    sets = report.provenance.get("head_sets") or []
    return group_section(report.statistics, sets, report.words)


def few_parts(statistics: Sequence[Statistic]) -> list[Statistic]:
    """Of what is said of each part of a prediction only the first parts."""
    seen: Counter[str] = Counter()
    kept = []
    for s in statistics:
        family = s.statistic.partition("@")[0]
        if family in BY_PART and s.group == "all":
            seen[family] += 1
        if seen[family] <= MOST_PARTS:
            kept.append(s)
    return kept


def is_of_ranking(s: Statistic) -> bool:
    """Whether it is of one ranking, ``name@ranking``."""
    return isinstance(key_of(s.statistic), str)


def has_line(statistic: str) -> bool:
    """Not p-values; of the frontier the papers' two ε; of the rankings attention."""
    name = statistic.partition("@")[0]
    shown = (None, "attention", *EPSILONS)
    return not name.endswith("_p_value") and key_of(statistic) in shown


Key = tuple[str, str, int, int, str]


def place_of(s: Statistic | Contrast) -> Key:
    """What a number is of, whether the model's or beside the control's."""
    return s.test, s.statistic, s.layer, s.head, s.group


def controls_of(report: AuditResult) -> dict[Key, Contrast]:
    """What the control says, by what it is said of."""
    return {place_of(c): c for c in report.contrasts if c.n}


def attention_line(report: AuditResult) -> str:
    """Which attention is meant, and its share that is not shown; empty if not known."""
    which = report.provenance.get("attention")
    if not which:
        return ""
    share = _special_share(report)
    if share is None or share < 0.005:
        return f"Attention: {which}"
    held = " and the text that is held" if report.provenance.get("segment") else ""
    return f"Attention: {which}; {share:.0%} of it on special tokens{held}, not shown"


def _special_share(report: AuditResult) -> float | None:
    """Of all heads at once, else of the only one."""
    known = {
        (s.layer, s.head): s.mean
        for s in report.statistics
        if s.statistic == "special_attention" and s.group == ALL_TEXTS and s.n
    }
    if EVERYWHERE in known:
        return known[EVERYWHERE]
    return next(iter(known.values())) if len(known) == 1 else None
