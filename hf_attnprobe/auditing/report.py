"""An audit as text, JSON or Markdown. Pure: a :class:`Report` in, a string out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.auditing.group_tables import (
    BY_PART,
    MOST_PARTS,
    group_section,
    group_sentences,
)
from hf_attnprobe.auditing.head_tables import (
    has_several,
    head_sentences,
    head_tables,
    prune_table,
    prune_title,
)
from hf_attnprobe.auditing.ranking_tables import (
    comparison_section,
    comparison_sentences,
    ranked_lines,
    section_in_words,
)
from hf_attnprobe.auditing.verdict import (
    conclusion,
    conclusion_sentence,
    zero_ablation_only,
)
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness import readings
from hf_attnprobe.faithfulness.adversarial import EPSILONS
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.statistics.bins import attention_bin
from hf_attnprobe.statistics.comparisons import Comparison
from hf_attnprobe.statistics.contrasts import Contrast
from hf_attnprobe.statistics.summary import Statistic, key_of, sentence
from hf_attnprobe.statistics.verdicts import Answer, Finding
from hf_attnprobe.statistics.wording import Words, words_of
from hf_attnprobe.storage.plain_data import from_plain, plain
from hf_attnprobe.storage.provenance import provenance_section


BINNED = {
    "median_tvd": "median Δŷ under shuffling",
    "epsilon_max_jsd@0.01": "ε-max JSD (ε = .01)",
}
"""Statistics shown by the largest attention weight, as in the papers' violin plots."""
SHOWN_WEIGHT = 0.05  # tokens of shown texts with less attention have no number


@dataclass(frozen=True)
class Example:
    """One text with its attention and the adversary found for it.

    Attributes:
        example_id: of the text.
        tokens: without padding.
        label: the true class, where the text has one.
        predicted: the predicted class.
        prob: its probability.
        attention: over the tokens.
        adversary: other attention over the tokens with nearly the same output.
        adversary_prob: probability of the predicted class under it.
        adversary_jsd: its Jensen-Shannon divergence from the attention.
        segments: of pairs, for each token 0 in the text and 1 in the second text.
    """

    example_id: int
    tokens: tuple[str, ...]
    label: str | None
    predicted: str
    prob: float
    attention: tuple[float, ...]
    adversary: tuple[float, ...] = ()
    adversary_prob: float | None = None
    adversary_jsd: float | None = None
    segments: tuple[int, ...] = ()


@dataclass(frozen=True)
class Report:
    """What an audit says. ``print(report)`` gives one line per statistic.

    Attributes:
        model: folder, Hub id, or class of the model.
        dataset: the texts' data set and split.
        n: texts.
        seed: of the audit.
        statistics: over all texts and by predicted class.
        provenance: settings, versions and fingerprints.
        examples: a few texts shown beside their adversaries.
        prune: accuracy by the number of heads zero-ablated together.
        comparisons: paired tests of rankings.
        findings: every question with its answer.
        contrasts: every statistic beside the control's, where one was run.
        contradictions: what the mathematics forbids and the rows say; none without a
            mistake in the program.
        notes: sentences that belong beside the findings.
        example_ids: of the texts.
        rows: one value per test, statistic, text, layer and head.
    """

    model: str
    dataset: DatasetName
    n: int
    seed: int
    statistics: tuple[Statistic, ...]
    provenance: dict
    examples: tuple[Example, ...] = ()
    prune: PruneCurve | None = None
    comparisons: tuple[Comparison, ...] = ()
    findings: tuple[Finding, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    example_ids: tuple[int, ...] = field(default=(), repr=False)
    rows: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False, compare=False)

    def __str__(self) -> str:
        return to_text(self)

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows

    @property
    def words(self) -> Words:
        """How sentences speak of what the model predicts."""
        unit = self.provenance.get("unit_of_number", "")
        return words_of(self.provenance.get("prediction"), unit=unit)

    @property
    def predicts(self) -> str:
        """What the model predicts, in words; empty in reports of older versions."""
        return self.words.predicts

    @property
    def answer(self) -> Answer:
        """Whether attention explains the predictions: yes, partly, no, cannot say."""
        return conclusion(self.findings)


def to_json(report: Report) -> dict:
    """Plain data, as ``audit --json`` prints it; NaN becomes None."""
    return {
        "model": report.model,
        "dataset": str(report.dataset),
        "n": report.n,
        "seed": report.seed,
        "predicts": report.predicts,
        "answer": str(report.answer),
        "findings": plain(report.findings),
        "statistics": plain(report.statistics),
        "contrasts": plain(report.contrasts),
        "contradictions": list(report.contradictions),
        "notes": list(report.notes),
        "comparisons": plain(report.comparisons),
        "provenance": report.provenance,
    }


def extras_to_json(report: Report) -> dict:
    """What the summary has beside :func:`to_json`: shown texts, prune curve, ids."""
    return {
        "examples": plain(report.examples),
        "prune": plain(report.prune),
        "example_ids": list(report.example_ids),
    }


def from_json(data: Mapping) -> Report:
    """The inverse of :func:`to_json` and :func:`extras_to_json`, without the rows."""
    curve = data.get("prune")
    comparisons = data.get("comparisons", [])
    return Report(
        model=data["model"],
        dataset=DatasetName.parse(data["dataset"]),
        n=data["n"],
        seed=data["seed"],
        statistics=tuple(from_plain(Statistic, s) for s in data["statistics"]),
        provenance=data["provenance"],
        examples=tuple(from_plain(Example, e) for e in data.get("examples", [])),
        prune=from_plain(PruneCurve, curve) if curve else None,
        comparisons=tuple(from_plain(Comparison, c) for c in comparisons),
        findings=tuple(_finding(f) for f in data.get("findings", [])),
        contrasts=tuple(from_plain(Contrast, c) for c in data.get("contrasts", [])),
        contradictions=tuple(data.get("contradictions", [])),
        notes=tuple(data.get("notes", [])),
        example_ids=tuple(data.get("example_ids", [])),
    )


def _finding(data: Mapping) -> Finding:
    found = from_plain(Finding, data)
    return replace(found, answer=Answer(found.answer))


# --- text ---------------------------------------------------------------------------


def to_text(report: Report) -> str:
    """One line per statistic, a table of rankings, the comparisons and the verdict.

    All over all texts. p-values and most of the frontier are in :func:`to_markdown`.
    """
    lines = [
        f"{report.model} on {report.dataset}: {report.n} texts, seed {report.seed}",
        *_predicts_note(report),
        *_units_note(report),
        *_target_note(report),
        *_quality_lines(report),
        "",
    ]
    if has_several(report.statistics):
        lines += [*_group_section(report)]
        lines += [*head_tables(report.statistics, report.rows, report.words), ""]
    else:
        lines += [*_test_lines(report), "", *_comparison_lines(report)]
    return "\n".join(lines + _verdict_lines(report))


def _quality_lines(report: Report) -> list[str]:
    """How good the model is on these texts, and what stands beside its numbers."""
    lines = [f"CONTRADICTION, report it: {s}" for s in report.contradictions]
    lines += [f.sentence for f in report.findings if f.rule == "accuracy"]
    if "control" in report.provenance:
        lines.append(
            "Control: the same tests on this model without what it learned "
            f"({report.provenance['control']}); one draw."
        )
    return lines


def _predicts_note(report: Report) -> list[str]:
    """What is predicted, and what a change, a flip and a loss of it are."""
    words = report.words
    if not words.predicts:
        return []
    return [f"Predicts {words.predicts}. {words.meaning}".rstrip()]


def _units_note(report: Report) -> list[str]:
    """What the texts and their units are, where that is not one text of tokens."""
    notes = []
    columns = report.provenance.get("text_columns", "")
    if columns not in ("", "text", "sentence"):
        notes.append(f"Columns read as texts: {columns}.")
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
            "This model's attention weighs sentences: what is called a token here is a "
            "sentence."
        )
    return notes


def _target_note(report: Report) -> list[str]:
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


def _test_lines(report: Report) -> list[str]:
    """The statistics of every test over all texts, and its table of rankings."""
    overall = _few_parts([s for s in report.statistics if s.group == "all"])
    shown = [s for s in overall if _has_line(s.statistic) and not _of_ranking(s)]
    width = max((len(s.statistic) for s in shown), default=0)
    lines = []
    control, words = _controls(report), report.words
    for test in dict.fromkeys(s.test for s in overall):
        of_test = [
            _statistic_line(s, width, control.get(_key(s)), words)
            for s in shown
            if s.test == test
        ]
        of_test += ranked_lines([s for s in overall if s.test == test])
        lines += [test, *(of_test or [f"  undefined for all {report.n} texts"])]
    return lines


def _few_parts(statistics: Sequence[Statistic]) -> list[Statistic]:
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


def _of_ranking(s: Statistic) -> bool:
    """Whether it is of one ranking, ``name@ranking``."""
    return isinstance(key_of(s.statistic), str)


def _has_line(statistic: str) -> bool:
    """Not p-values; of the frontier the papers' two ε; of the rankings attention."""
    name = statistic.partition("@")[0]
    shown = (None, "attention", *EPSILONS)
    return not name.endswith("_p_value") and key_of(statistic) in shown


Key = tuple[str, str, int, int, str]


def _key(s: Statistic | Contrast) -> Key:
    return s.test, s.statistic, s.layer, s.head, s.group


def _controls(report: Report) -> dict[Key, Contrast]:
    """What the control says, by what it is said of."""
    return {_key(c): c for c in report.contrasts if c.n}


def _statistic_line(
    s: Statistic, width: int, control: Contrast | None, words: Words
) -> str:
    value = markdown.interval(s.mean, s.ci95) if s.n else "undefined"
    aside = f"({s.undefined} undefined) " if s.undefined and s.n else ""
    if control is not None:
        aside += f"(control {markdown.number(control.control_mean)}) "
    said = sentence(s, readings(), words)
    return f"  {s.statistic:<{width}}  {value:<24} n {s.n:<6} {aside}{said}"


def _comparison_lines(report: Report) -> list[str]:
    lines = [f"  {line}" for line in comparison_sentences(report.comparisons)]
    title = (
        "Comparisons on the same texts (p ≤ .05 after Holm's correction over those of "
        "a test; of erasure on texts that can be flipped, where never counts as all)"
    )
    return [title, *lines, ""] if lines else []


def _verdict_lines(report: Report) -> list[str]:
    lines = [f"  {line}" for line in _verdict(report)]
    return ["Verdict", *lines] if lines else []


def _verdict(report: Report) -> list[str]:
    """The answer, what it rests on, and what the heads say one by one."""
    answer = conclusion_sentence(report.findings)
    lines = [answer] if answer else []
    lines += [f.sentence for f in report.findings if f.rule != "accuracy"]
    lines += report.notes
    if has_several(report.statistics):
        words = report.words
        lines += group_sentences(report.statistics, words)
        return lines + head_sentences(report.statistics, report.rows, words)
    ablated = zero_ablation_only(report.statistics)
    return [*lines, ablated] if ablated else lines


# --- Markdown -----------------------------------------------------------------------


def to_markdown(report: Report) -> str:
    """The report a reader opens first.

    Verdict, tables with readings, texts shown beside their adversaries, provenance.
    """
    parts = [
        f"# Does attention explain `{report.model}`?",
        "",
        f"{report.n} texts of `{report.dataset}`, seed {report.seed}.",
        *_predicts_note(report),
        *_units_note(report),
        "",
        *markdown.bullets(
            [*_target_note(report), *_quality_lines(report), *_verdict(report)]
        ),
    ]
    if has_several(
        report.statistics
    ):  # all the numbers are in summary.json and the rows
        parts += _group_section(report)
        parts += head_tables(report.statistics, report.rows, report.words)
        parts += _prune_section(report.prune, report.words)
    else:
        for test in dict.fromkeys(s.test for s in report.statistics):
            parts += _test_section(test, report)
            parts += comparison_section(test, report.comparisons)
        parts += _bins_section(report)
    parts += _examples_section(report.examples)
    return "\n".join(parts + provenance_section(report.provenance)) + "\n"


def _group_section(report: Report) -> list[str]:
    sets = report.provenance.get("head_sets") or []
    return group_section(report.statistics, sets, report.words)


def _prune_section(curve: PruneCurve | None, words: Words) -> list[str]:
    if curve is None:
        return []
    return markdown.section(prune_title(curve), prune_table(curve, words), level=3)


def _test_section(test: str, report: Report) -> list[str]:
    """All numbers of a test; of single rankings only those over all texts."""
    statistics = _few_parts([s for s in report.statistics if s.test == test])
    if not statistics:
        return []
    control = _controls(report)
    rows = [
        _statistic_row(s) + (_control_cells(control.get(_key(s))) if control else [])
        for s in statistics
        if s.group == "all" or not _of_ranking(s)
    ]
    head = [
        "statistic",
        "predicted",
        "mean",
        "95% interval",
        "median",
        "std",
        "n",
        "undefined",
        *(["control", "difference, 95% interval"] if control else []),
    ]
    sentences = [
        f"{s.statistic}: {sentence(s, readings(), report.words)}."
        for s in statistics
        if s.group == "all" and _has_line(s.statistic)
    ]
    return [
        "",
        f"## {test}",
        *section_in_words(test, statistics, report.rows),
        "",
        *markdown.table(head, rows),
        "",
        *markdown.bullets(sentences),
    ]


def _statistic_row(s: Statistic) -> list[object]:
    numbers = [
        markdown.number(s.mean),
        markdown.bounds(s.ci95),
        markdown.number(s.median),
        markdown.number(s.std),
    ]
    return [s.statistic, s.group, *numbers, s.n, s.undefined]


def _control_cells(contrast: Contrast | None) -> list[object]:
    """The control's mean, and the paired difference to it."""
    if contrast is None:
        return [markdown.MISSING, markdown.MISSING]
    difference = markdown.interval(contrast.difference, contrast.ci95)
    return [markdown.number(contrast.control_mean), difference]


def _bins_section(report: Report) -> list[str]:
    """Medians by predicted class and largest attention weight, of the one head.

    As the violin plots of Jain & Wallace 2019 (Figure 6), which part the classes too: a
    mean of both may be a value between two modes that no text has.
    """
    rows = report.rows
    if not len(rows):
        return []
    wanted = rows[rows.statistic.isin(["max_attention", "predicted_class", *BINNED])]
    wide = wanted.pivot_table(index="example_id", columns="statistic", values="value")
    shown = [name for name in BINNED if name in wide]
    if "max_attention" not in wide or "predicted_class" not in wide or not shown:
        return []
    classes = report.provenance.get("classes", [])
    by = [wide.predicted_class.astype(int), attention_bin(wide.max_attention)]
    table: list[list[object]] = []
    for (predicted, weight), texts in wide.groupby(by, observed=True):
        name = _class_name(int(predicted), classes)
        medians = map(markdown.number, texts[shown].median())
        table.append([name, weight, len(texts), *medians])
    head = ["predicted", "largest weight", "n", *(BINNED[name] for name in shown)]
    return markdown.section("by largest attention weight", markdown.table(head, table))


def _class_name(predicted: int, classes: Sequence[str]) -> str:
    """By number where it has no name; "all" where no single class is predicted."""
    if predicted < 0:
        return "all"
    return classes[predicted] if predicted < len(classes) else str(predicted)


def _examples_section(examples: Sequence[Example]) -> list[str]:
    parts = ["", "## texts"] if examples else []
    for e in examples:
        truth = "" if e.label is None else f", labelled {e.label}"
        predicted = f"predicted {e.predicted} with probability {e.prob:.3f}"
        parts += ["", f"Text {e.example_id}{truth}: {predicted}.", ""]
        parts.append(f"- attention: {_weights(e, e.attention)}")
        if e.adversary:
            parts.append(
                f"- adversary (JSD {e.adversary_jsd:.2f}, probability "
                f"{e.adversary_prob:.3f}): {_weights(e, e.adversary)}"
            )
    return parts


def _weights(example: Example, weights: Sequence[float]) -> str:
    """The text; tokens with much attention are bold, with their weight.

    Of a pair it says where each text begins.
    """
    words = []
    names, before = ("(text)", "(second text)"), None
    for k, (token, weight) in enumerate(zip(example.tokens, weights, strict=True)):
        if example.segments and example.segments[k] != before:
            before = example.segments[k]
            words.append(names[before])
        shown = weight >= SHOWN_WEIGHT
        words.append(f"**{token}** ({weight:.2f})" if shown else token)
    return " ".join(words)
