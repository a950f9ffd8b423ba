"""An audit as a document; the terminal shows its first screen. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.serialization import read_packaged
from hf_attnprobe.documents.blocks import (
    Answered,
    Block,
    Code,
    Document,
    Facts,
    Folded,
    Listing,
    Note,
    Section,
    Strong,
    Table,
    Texts,
    glossary,
)
from hf_attnprobe.documents.blocks import (
    Words as Said,
)
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.plots.chart import Chart
from hf_attnprobe.plots.shown_text import FIRST, ShownText
from hf_attnprobe.protocol import AnswersFromPassage
from hf_attnprobe.reports.charts import audit_charts
from hf_attnprobe.reports.first_screen import (
    first_screen,
    line_of,
    rankings,
    whole,
)
from hf_attnprobe.reports.head_tables import (
    HOW_TO_READ,
    has_several,
    head_maps,
    head_table,
    heads_of,
    part_section,
    prune_table,
    prune_title,
    tested_heads,
    which_heads,
)
from hf_attnprobe.reports.number_tables import JUDGED, judged, numbers_section
from hf_attnprobe.reports.result import AuditResult, to_json
from hf_attnprobe.reports.verdict import (
    QUESTION,
    least_texts,
    may_be_shown,
    sentence,
    what_is_missing,
    zero_ablation_only,
)
from hf_attnprobe.statistics.calibration_table import known_truth, nearest_sentence
from hf_attnprobe.statistics.estimates import MIN_SHOWN
from hf_attnprobe.statistics.heads import EVERYWHERE, Place
from hf_attnprobe.statistics.questions import EVERY_QUESTION
from hf_attnprobe.statistics.summary import site_of_model
from hf_attnprobe.statistics.verdicts import (
    ANSWERS,
    MAY_I,
    RULES,
    Finding,
    asked_by,
    by_rule,
)
from hf_attnprobe.statistics.wording import Words
from hf_attnprobe.storage.provenance import (
    flat,
    in_words,
    is_repeatable,
    repeating,
)


GLOSSARY: Mapping[str, str] = read_packaged(
    Path(__file__).with_name("glossary.yaml"), Mapping[str, str]
)
"""What the words of a report mean, for who has read none of the papers."""

MOST_EMBEDDED = 60
"""Statistics that the data of a page has at most."""


def document_of(report: AuditResult) -> Document:
    """An audit as a document, for every output format.

    Args:
        report: with its rows; without them there are no charts and no intervals of heads.
    """
    words, shown = report.words, _on_page(report.examples)
    attention = attention_line(report) or "not known"
    sections = [
        Section(
            _texts_title(shown, words),
            [Texts(shown[:N_FIRST]), Note(f"Attention: {attention}")] if shown else [],
            id="texts",
        ),
        Section(
            MAY_I,
            [" ".join(may_be_shown(report.findings, words))],
        ),
        Section("The given scores", judged(report), id="given", brief=True),
        Section(
            "Other rankings of the same texts",
            [rankings(report)],
            id="rankings",
        ),
        heads_section(report),
        part_section(report.statistics),
    ]
    folded = [
        questions(report),
        Section(f"More {words.texts}", [Texts(shown[N_FIRST:])], id="more-texts"),
        audited(report),
        not_tested(report),
        origin(report),
        numbers_section(report),
    ]
    meanings = glossary([*sections, *folded], GLOSSARY)
    return Document(
        f"Does attention explain {report.model}?",
        first_screen(report),
        [
            *sections,
            *(replace(part, folded=True) for part in [*folded, meanings]),
        ],
        data=page_data(report),
        heading=QUESTION,
    )


N_FIRST = 3
"""Texts that are seen at once: one where attention is right, one where not, a wrong prediction."""


def _texts_title(shown: Sequence[ShownText], words: Words) -> str:
    """Returns how many texts are seen at once, as a heading."""
    texts, n_seen = words.texts, len(shown[:N_FIRST])
    one = texts.removesuffix("s")
    counted = (texts, f"one {one}", f"two {texts}", f"three {texts}")
    return counted[n_seen].capitalize()


def page_data(report: AuditResult) -> dict[str, Any]:
    """The report for machines, short enough for a page.

    Of many statistics it has none; ``left_out`` names the lists that ``summary.json`` has.
    """
    data = to_json(report)
    if len(report.statistics) <= MOST_EMBEDDED:
        return data
    cut: dict[str, list] = {"statistics": [], "comparisons": []}
    return {**data, **cut, "left_out": list(cut)}


def predicts_note(report: AuditResult) -> list[str]:
    """What the model predicts, and what a change, a flip and a loss of it mean."""
    words = report.words
    if not words.predicts:
        return []
    return [f"Predicts {words.predicts}. {words.meaning}".rstrip()]


def units_note(report: AuditResult) -> list[str]:
    """What texts and units are, unless they are texts of tokens."""
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
            f"Importances, leaving out and erasure are about the {explained} text of each "
            f"pair; the {held} stays as it is. Edits of attention reach both."
        )
    units = report.provenance.get("units")
    if units is not None:
        notes.append(
            f"This model's attention weighs {units}: where tokens are spoken of, these are meant."
        )
    return notes


def target_note(report: AuditResult) -> list[str]:
    """The explained class, if it is not the predicted one."""
    targets: dict[str, list[str]] = {}
    for test, options in report.provenance.get("options", {}).items():
        if options.get("target") is not None:
            targets.setdefault(str(options["target"]), []).append(test)
    return [
        f"{', '.join(tests)}: these tests explain why a text is decided for the class {target} or "
        f'not. There, "the predicted class" is the side that the text is on ({target}, or all '
        "other classes together), and a decision flips where it changes sides."
        for target, tests in targets.items()
    ]


def attention_line(report: AuditResult) -> str:
    """Which attention is meant, and its share on tokens not shown; empty if unknown."""
    which = report.provenance.get("attention")
    if not which:
        return ""
    sink, passage = (whole(report, name) for name in ("sink_share", "passage_share"))
    if sink and passage:
        on_units = f"{passage.mean:.0%} of it on the passage, which is shown"
        return f"{which}; {on_units}, {sink.mean:.0%} on the sink"
    special = whole(report, "special_attention")
    if special is None or special.mean < 0.005:
        return which
    held = " and the text that is held" if report.provenance.get("segment") else ""
    return f"{which}; {special.mean:.0%} of it on special tokens{held}, not shown"


# --- what was audited -------------------------------------------------------------------------


def audited(report: AuditResult) -> Section:
    """Returns model, texts and seed, and what must be known of them."""
    provenance = report.provenance
    stands_by_texts = bool(_on_page(report.examples))
    known: dict[str, Said | list[Said] | None] = {
        "model": Code(report.model),
        "texts": (
            f"{report.n:,} of ",
            Code(str(report.dataset)),
            _left_out(provenance),
        ),
        "predicts": " ".join(predicts_note(report)).removeprefix("Predicts ") or None,
        "classes": classes_note(report),
        "attention": None if stands_by_texts else attention_line(report) or None,
        "attention tested": _tested(report),
        "how often it errs": _calibrated(report),
        "seed": str(report.seed),
    }
    notes = [*units_note(report), *target_note(report), *report.notes]
    return Section("What was audited", [Facts(known), notes], id="audited")


def _left_out(provenance: Mapping) -> str:
    """What happened to texts that are too long or empty."""
    asides = []
    if provenance.get("truncated"):
        asides.append(f"{provenance['truncated']} cut to the model's length")
    if provenance.get("skipped_empty"):
        asides.append(f"{provenance['skipped_empty']} empty left out")
    return f" ({', '.join(asides)})" if asides else ""


def _calibrated(report: AuditResult) -> str | None:
    """How often such a verdict is wrong on models of known truth, and which are most like it.

    None of language models, and of a verdict by somebody's own thresholds.
    """
    asked = asked_by(by_rule(report.findings))
    about = [f for f in report.findings if f.is_about_attention and f.rule != "uniqueness"]
    has_own = any(f.partly is not None for f in report.findings)
    if asked is ANSWERS or has_own or not about:
        return None
    place = {f.rule: f.value for f in about if f.value == f.value}
    return f"{known_truth().sentence} {nearest_sentence(place)}"


def _tested(report: AuditResult) -> str:
    """The attention that the answer is about."""
    places = {s.place for s in report.statistics}
    n_all = len(heads_of(report.statistics))
    n_heads = len(tested_heads(report.statistics))
    one_by_one = f"{n_heads} heads one by one" if n_heads != 1 else "one head"
    if n_heads < n_all:
        one_by_one = (
            f"{n_heads} of {n_all} heads one by one; all {n_all} were screened by a quick estimate"
        )
    if (-1, -1) not in places:
        return one_by_one
    together = "all heads at once, which the answers are about"
    return f"{together}; {one_by_one}" if n_heads else together


def classes_note(report: AuditResult) -> str | None:
    """The classes, and the number of texts predicted each, if known."""
    classes = [str(c) for c in report.provenance.get("classes", [])]
    if not classes:
        return None
    counts = {c: max((s.n for s in report.statistics if s.group == c), default=0) for c in classes}
    if len(classes) > MOST:
        return f"{len(classes)} classes"
    if not any(counts.values()):
        return ", ".join(classes)
    return ", ".join(f"{c} ({n:,} texts predicted so)" for c, n in counts.items())


# --- the questions ----------------------------------------------------------------------------


def card(finding: Finding, words: Words, *said: str | None) -> Answered:
    """A question with its answer, its number on a line, and its yardsticks.

    Of fewer texts than have a number it says that they are too few.

    Args:
        finding: the answer.
        words: of the kind of prediction.
        said: more sentences behind that of the finding.
    """
    rule = finding.graded_by
    found, yardsticks = finding.said, _beside(finding)
    if 0 < finding.n < MIN_SHOWN:
        found, yardsticks = sentence(what_is_missing(finding, words)), []
    return Answered(
        f"{rule.name}: {rule.question}",
        str(finding.answer),
        found,
        [
            Note(words.fill(rule.done)),
            *said,
            line_of(finding),
            Folded(
                "yardsticks and how it is graded",
                [yardsticks, *_rule(finding, words)],
            ),
        ],
    )


def _beside(finding: Finding) -> list[Said]:
    known = RULES[finding.rule].yardsticks
    return [
        f"{known.get(name, name.replace('_', ' '))}: {markdown.number(value, digits=2)}"
        for name, value in finding.yardsticks.items()
    ]


def _rule(finding: Finding, words: Words) -> list[str]:
    rule, least = finding.graded_by, least_texts(words)
    return [
        f"Measured: {rule.measure}.",
        f"Graded: {rule.graded}; a 95% interval that crosses a threshold, or fewer than "
        f"{least} {words.texts}, cannot say.",
        f"Source: {rule.source}.",
    ]


def questions(report: AuditResult) -> Section:
    """Returns a card for each question, followed by its charts."""
    charts = charts_of_audit(report)
    parts: list[Block] = []
    shown: set[str] = set()
    for finding in report.findings:
        asked = EVERY_QUESTION.get(finding.rule)
        own = () if asked is None else asked.charts
        parts += [
            card(finding, report.words),
            *(c for c in charts if c.key in own),
        ]
        shown |= {*own}
    parts += [c for c in charts if c.key not in shown]
    return Section("The questions, one by one", parts, id="questions")


def charts_of_audit(report: AuditResult, site: Place | None = None) -> tuple[Chart, ...]:
    """Charts of the attention that the answers are about, or of that at a site."""
    place = site or (site_of_model(report.rows) if len(report.rows) else None)
    if place is None:
        return ()
    return audit_charts(
        report.rows,
        report.provenance.get("classes", ()),
        site=place,
        words=report.words,
    )


MOST = 6


# --- heads ------------------------------------------------------------------------------------


def heads_section(report: AuditResult) -> Section | None:
    """Single heads and groups; None of one head, or where all attention alone was tested."""
    places = {(s.layer, s.head) for s in report.statistics}
    if places == {EVERYWHERE} or not has_several(report.statistics):
        return None
    answer, curve = which_heads(report), report.prune
    return Section(
        "Which heads count",
        [
            Strong(answer) if answer else None,
            *head_maps(report.judged, report.rules),
            Folded(
                "Heads and groups of heads, all numbers",
                [HOW_TO_READ, head_table(report)],
            ),
            None
            if curve is None
            else Folded(prune_title(curve), [prune_table(curve, report.words)]),
        ],
        id="heads",
    )


# --- limits, and where it comes from -----------------------------------------------------------


def _on_page(examples: Sequence[ShownText]) -> list[ShownText]:
    """Returns the texts that were chosen for a reason, those of the first screen first."""
    chosen = [text for text in examples if text.why]
    return sorted(chosen, key=lambda text: (*FIRST, text.why).index(text.why))


LIMITS = (
    "Everything here is a mean over these texts. For a single text the opposite may be true.",
    "The model was trained once. Another seed may attend differently.",
    "Intervals are over texts; they say nothing about other kinds of texts.",
    "Edited attention and texts with tokens taken out are not what the model was trained on.",
    "A yes means that a test found no disagreement of this size. It is no proof that "
    "people draw the right conclusions from a heat map.",
)


def not_tested(report: AuditResult) -> Section:
    """Questions without an answer, tests that did not run, and limits."""
    asked = by_rule(report.findings)
    unasked = [
        f"{RULES[rule].name}: {RULES[rule].question} No test of this audit answers this."
        for rule in asked_by(asked).questions
        if rule not in asked
    ]
    left_out = report.provenance.get("left_out", {})
    known = {*report.provenance.get("tests", []), *left_out}
    answers = report.words.kind == "answer"
    others = [
        name
        for name, test in tests().items()
        if name not in known and (answers or AnswersFromPassage not in test.needs)
    ]
    not_run = [f"{_test(name)} was left out: {why}" for name, why in left_out.items()]
    not_run += [f"not asked for: {_test(name)}" for name in others]
    ablated = zero_ablation_only(report.statistics)
    share = report.provenance.get("unknown_tokens")
    unknown = f"{share or 0:.1%} of the tokens are unknown to the model's tokenizer."
    limits = [*LIMITS, unknown if share else "", ablated or ""]
    return Section(
        "What was not tested, and limits",
        [
            [*unasked, *not_run],
            Section(
                "Limits",
                [[*filter(None, limits)]],
                id="what-tests-cannot-tell",
            ),
        ],
        id="limits",
    )


def _test(name: str) -> str:
    """A test with what it does, where it is installed and says so."""
    known = tests().get(name)
    return f"{name} ({known.does})" if known is not None and known.does else name


OF_PYTHON = (
    "Model or data were objects in Python, so no command repeats this by itself; with "
    "their names in place of the words in quotes it would be:"
)

INSTALLED = "hf_attnprobe is installed from a clone of it by "
ROWS = (
    " there. The numbers lie beside report.html in the audit's folder: a row for each text "
    "and statistic in rows/, the means in summary.json."
)


SAME = "The same command gives the same numbers"
SAME_TEXTS = (
    "The same command reaches more or fewer texts in its --time from run to run; each text that "
    "it reaches gets the same numbers"
)


def origin(report: AuditResult) -> Section:
    """The command, versions, fingerprints, and every setting."""
    said = report.provenance
    settings = [*flat(said)]
    known = {
        "model": said.get("model_fingerprint"),
        "data": said.get("data_fingerprint"),
        **said.get("versions", {}),
    }
    made_with = {name: value for name, value in known.items() if value}
    return Section(
        "How to repeat it, and where the numbers come from",
        [
            None if is_repeatable(said) else OF_PYTHON,
            Listing(repeating("judge" if JUDGED in said else "audit", said)),
            f"{SAME if 'stopping' not in said else SAME_TEXTS} with the same versions and fingerprints: "
            f"{in_words(made_with) or 'none are recorded'}.",
            (INSTALLED, Code("pip install ."), ROWS),
            Folded(
                "Every setting",
                [Table(["setting", "value"], settings, sortable=False)],
            ),
        ],
        id="origin",
    )
