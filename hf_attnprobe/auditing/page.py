"""One audit as a page that stands by itself, and as a fragment for notebooks."""

from collections.abc import Mapping
from typing import Any

from hf_attnprobe.auditing.heads.values import has_several
from hf_attnprobe.auditing.pages.cards import card, questions
from hf_attnprobe.auditing.pages.heads import heads
from hf_attnprobe.auditing.pages.limits import glossary, not_tested
from hf_attnprobe.auditing.pages.numbers import all_numbers
from hf_attnprobe.auditing.pages.opening import for_users, opening, standing
from hf_attnprobe.auditing.pages.origin import origin
from hf_attnprobe.auditing.pages.which_heads import which_heads
from hf_attnprobe.auditing.result import AuditResult, to_json
from hf_attnprobe.charts.audit_charts import audit_charts
from hf_attnprobe.charts.chart import Chart
from hf_attnprobe.charts.head_maps import group_charts, head_maps
from hf_attnprobe.page.document import document, fragment
from hf_attnprobe.page.html import Html
from hf_attnprobe.page.texts import texts_section
from hf_attnprobe.published import Published
from hf_attnprobe.statistics.summary import site_of_model


MOST_EMBEDDED = 60
"""Statistics that the data of a page has; of more only those of all texts."""


def audit_page(report: AuditResult) -> str:
    """The whole page: the same report gives the same bytes.

    Args:
        report: of :func:`~hf_attnprobe.audit`, with its rows; without them there are
            no charts and no intervals of single heads.
    """
    parts = [
        opening(report),
        for_users(report),
        standing(report),
        questions(report, _charts(report)),
        _heads(report),
        _texts(report),
        not_tested(report),
    ]
    numbers = all_numbers(report)
    return document(
        f"Does attention explain {report.model}?",
        *parts,
        glossary([*parts, numbers]),
        origin(report),
        numbers,
        data=page_data(report),
    )


def audit_fragment(report: AuditResult) -> Html:
    """The verdict and the cards, for a notebook's cell."""
    cards = [card(finding, report.words) for finding in report.findings]
    return fragment(opening(report), *cards)


def page_data(report: AuditResult) -> dict[str, Any]:
    """The report for machines, short enough for a page.

    Of many statistics those of all texts and the model's attention as a whole, without
    contrasts; ``left_out`` names the lists of which ``report.json`` has more.
    """
    data, several = to_json(report), has_several(report.statistics)
    if len(report.statistics) <= MOST_EMBEDDED:
        return data
    own = [s for s in data["statistics"] if _is_about_all(s, several)]
    cut = {"statistics": own[:MOST_EMBEDDED], "contrasts": []}
    return {**data, **cut, "left_out": list(cut)}


def _is_about_all(statistic: Mapping[str, Any], several: bool) -> bool:
    """Whether it is of all texts and of the model's attention as a whole."""
    place = statistic["layer"], statistic["head"]
    return statistic["group"] == "all" and (place == (-1, -1) or not several)


def _charts(report: AuditResult) -> tuple[Chart, ...]:
    """Those of the attention that the answers are about."""
    site = site_of_model(report.rows) if len(report.rows) else None
    if site is None:
        return ()
    return audit_charts(
        report.rows,
        report.provenance.get("classes", []),
        site=site,
        words=report.words,
        published=published_as(report),
        seed=report.seed,
    )


def published_as(report: AuditResult) -> Published | None:
    """What the papers call data and model; None where the model's kind is not known."""
    kind = report.provenance.get("architecture")
    if kind is None:
        return None
    return Published(report.dataset.published_as, kind["encoder"], kind["attention"])


def _heads(report: AuditResult) -> Html | None:
    """Groups and single heads, where there are several."""
    if not has_several(report.statistics):
        return None
    rows, seed, words = report.rows, report.seed, report.words
    if not len(rows):
        return heads(report, (), (), which_heads(report))
    return heads(
        report,
        group_charts(rows, seed=seed, words=words),
        head_maps(rows, seed=seed, words=words),
        which_heads(report),
    )


def _texts(report: AuditResult) -> Html | None:
    """A few texts with what the rankings of their tokens say."""
    return texts_section(report.examples) if report.examples else None
