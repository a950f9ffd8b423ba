"""What retrainings found on one page. Pure: a result in, a string out."""

from collections.abc import Iterator

from hf_attnprobe.page import elements
from hf_attnprobe.page.document import document, fragment
from hf_attnprobe.page.html import Child, Html, tag
from hf_attnprobe.retraining.pages.numbers import (
    all_statistics,
    curve_figure,
    score_tables,
    seed_figure,
)
from hf_attnprobe.retraining.pages.opening import constant_guess, opening
from hf_attnprobe.retraining.pages.words import as_reason, glossary, limits
from hf_attnprobe.retraining.result import (
    RetrainingResult,
    to_json,
)
from hf_attnprobe.statistics.scores import find_score
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.storage.asked import repeating
from hf_attnprobe.storage.provenance import in_words


MEASURED = (
    "How far two attentions are apart is their Jensen-Shannon divergence (JSD): 0 for "
    "the same weights, at most .69 = ln 2. How far two outputs are apart is total variation "
    "(TVD), 0 to 1. F1 is the score of a model on the test texts, 0 to 1."
)
RAW = (
    "The raw numbers, one value per test, statistic and text, lie in rows/ of the output "
    "folder (Parquet); summary.json there holds what they sum up to. The means with their "
    "intervals as one table, of that folder:"
)


def retraining_page(report: RetrainingResult) -> str:
    """The page of a retraining: one self-contained HTML file."""
    return document(
        f"What another training of {report.model} would have learned",
        *_body(report),
        data=to_json(report),
    )


def retraining_fragment(report: RetrainingResult) -> Html:
    """The same for a notebook's cell."""
    return fragment(*_body(report))


def _body(report: RetrainingResult) -> list[Child]:
    parts = [
        opening(report),
        elements.section("The answers", *_answers(report), id="verdict"),
        elements.section(
            "May this attention be shown to users as the reason?",
            *as_reason(report),
            id="reason",
        ),
        elements.section("What this cannot say", *limits(report), id="limits"),
        elements.section("How good every model is", *score_tables(report), id="scores"),
        elements.section("How far attention moves", *curve_figure(report), id="curve"),
        elements.section("What another seed changes", *seed_figure(report), id="seeds"),
        elements.section("All statistics", *all_statistics(report), id="statistics"),
        elements.section("How it was made", *_origin(report), id="provenance"),
    ]
    return [*parts, glossary(parts)]


def _answers(report: RetrainingResult) -> Iterator[Html]:
    verdict = report.verdict
    for finding in verdict.findings():
        beside = _beside_transfer(report) if finding.rule == "transfer" else None
        yield _answer(finding, beside)
    if verdict.chance:
        yield tag(
            "article",
            tag("h3", "How far does attention move by chance?"),
            tag("p", verdict.chance),
            class_="answer",
        )
    yield tag("p", MEASURED)


def _beside_transfer(report: RetrainingResult) -> Html | None:
    """F1 that a guide or a guess without any knowledge of attention has."""
    known = []
    uniform = find_score(report.scores.get("diagnostic_mlp", ()), "uniform guide")
    if uniform is not None:
        known.append(f"guided by equal weights {uniform.value:.3f}")
    guess = constant_guess(report)
    if guess is not None:
        known.append(f"the best constant guess {guess[0]:.3f}")
    return tag("p", f"Beside it, F1: {', '.join(known)}.") if known else None


def _answer(finding: Finding, beside: Html | None = None) -> Html:
    """A question with its answer, and the graded number on a line."""
    rule = RULES[finding.rule]
    low, high = finding.ci95 or (None, None)
    line = elements.scale(finding.value, low, high, thresholds={"yes above": rule.yes})
    measure = tag("p", f"On the line: {rule.measure}.", class_="source")
    return elements.answer(
        rule.question, str(finding.answer), finding.sentence, beside, line, measure
    )


def _origin(report: RetrainingResult) -> Iterator[Html]:
    """The models, the command, and the settings."""
    rows = [[m.name, m.n_epochs] for m in report.models]
    caption = "Models trained, folders below the output folder"
    yield elements.table(["model", "epochs"], rows, caption=caption)
    yield tag("p", "To repeat it:")
    yield tag("pre", tag("code", command(report)))
    yield tag("p", RAW)
    yield tag("pre", tag("code", "attnprobe report FOLDER --output numbers.csv"))
    settings = [[k, in_words(v)] for k, v in report.provenance.items()]
    table = elements.table(["setting", "value"], settings, sortable=False)
    yield elements.details("All settings, fingerprints and versions", table)


def command(report: RetrainingResult) -> str:
    """The line for a shell that trains all of it again."""
    return f"{repeating('retrain', report.provenance)} --output-dir DIR"
