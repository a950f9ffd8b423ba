"""All numbers of an audit in tables, and those of the papers beside them."""

from collections.abc import Mapping, Sequence

from hf_attnprobe import markdown
from hf_attnprobe.auditing.forms.notes import (
    Key,
    controls_of,
    few_parts,
    has_line,
    place_of,
)
from hf_attnprobe.auditing.group_tables import place_name
from hf_attnprobe.auditing.heads.values import has_several
from hf_attnprobe.auditing.ranking_tables import comparison_sentences
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.page.elements import bullets, details, section, table
from hf_attnprobe.page.html import Child, Html, tag
from hf_attnprobe.published import PUBLISHED
from hf_attnprobe.statistics.differences import Comparison, Contrast
from hf_attnprobe.statistics.summary import Statistic, find_statistic, sentence


MOST_ROWS = 250
"""A page with more statistics leaves some of them to the files beside it."""


def all_numbers(report: AuditResult) -> Html:
    """Every statistic with the control's, comparisons, and published numbers."""
    shown, left = shown_statistics(report)
    control = controls_of(report)
    rows = [[*_row(report, s), *_control(control, s)] for s in shown]
    head: list[Child] = ["statistic", "texts predicted", "mean [95% interval]"]
    head += ["median", "std", "texts"]
    head += ["control's mean", "difference to it [95% interval]"] if control else []
    return section(
        "All numbers",
        published_beside_ours(report),
        details("what each number says", bullets(_in_words(report, shown))),
        details(
            f"the table: {len(rows):,} statistics with their intervals",
            tag("p", left) if left else None,
            table(head, rows, caption="statistics over texts"),
        ),
        _comparisons(report),
        id="numbers",
    )


def shown_statistics(report: AuditResult) -> tuple[list[Statistic], str]:
    """The statistics of the table, and a sentence about those that are not in it.

    Of models with several heads the numbers of single heads and layers are in the table
    of sites.
    """
    shown = few_parts(report.statistics)
    if len(shown) > MOST_ROWS and has_several(report.statistics):
        shown = [s for s in shown if s.layer == s.head == -1]
    if len(shown) > MOST_ROWS:
        shown = [s for s in shown if s.group == "all" or has_line(s.statistic)]
    if len(shown) > MOST_ROWS:
        shown = [s for s in shown if s.group == "all"]
    if len(shown) > MOST_ROWS:
        shown = [s for s in shown if s.n and has_line(s.statistic)][:MOST_ROWS]
    n_left = len(report.statistics) - len(shown)
    if not n_left:
        return shown, ""
    return shown, (
        f"{n_left:,} of {len(report.statistics):,} statistics are not in this table: of "
        "single heads and layers, single classes or parts, or p-values. All are written "
        "by attnprobe report FOLDER --output numbers.csv, where FOLDER is the audit's "
        "output folder."
    )


def _row(report: AuditResult, s: Statistic) -> list[Child]:
    name = s.statistic
    if has_several(report.statistics):
        sets = report.provenance.get("head_sets") or []
        name += f" ({place_name((s.layer, s.head), sets)})"
    n: Child = f"{s.n} ({s.undefined} undefined)" if s.undefined else s.n
    return [name, s.group, markdown.interval(s.mean, s.ci95), s.median, s.std, n]


def _control(control: Mapping[Key, Contrast], s: Statistic) -> list[Child]:
    if not control:
        return []
    beside = control.get(place_of(s))
    if beside is None:
        return [None, None]
    return [beside.control_mean, markdown.interval(beside.value, beside.ci95)]


def _in_words(report: AuditResult, shown: Sequence[Statistic]) -> list[str]:
    known = readings()
    return [
        f"{s.statistic}: {sentence(s, known, report.words)}."
        for s in shown
        if s.group == "all"
        and has_line(s.statistic)
        and s.statistic.partition("@")[0] in known.get(s.test, {})
        and (not has_several(report.statistics) or (s.layer, s.head) == (-1, -1))
    ]


def _comparisons(report: AuditResult) -> Html | None:
    """Rankings compared on the same texts."""
    if not report.comparisons:
        return None
    head = ["test", "statistic", "first", "second", "first − second", "95% interval"]
    head += ["n", "p", "p after Holm's correction"]
    rows = [
        [c.test, c.statistic, c.first, c.second, c.value, *_of_comparison(c)]
        for c in report.comparisons
    ]
    return details(
        "rankings compared on the same texts",
        bullets(comparison_sentences(report.comparisons)),
        table(head, rows, caption="paired differences of rankings"),
    )


def _of_comparison(c: Comparison) -> list[Child]:
    return [markdown.bounds(c.ci95, sign="+"), c.n, c.p_value, c.adjusted_p_value]


# --- published ----------------------------------------------------------------------


def published_beside_ours(report: AuditResult) -> Html | None:
    """Numbers of Jain & Wallace 2019 for this data set; None where there are none."""
    dataset = report.dataset.published_as
    encoder = report.provenance.get("architecture", {}).get("encoder")
    rows = [
        row
        for row in [*_tau(report, dataset), *_jsd(report, dataset)]
        if encoder is None or row[1] == encoder
    ]
    if not rows or has_several(report.statistics):
        return None
    head = ["number", "their encoder", "texts predicted", "here", "published"]
    which = "" if encoder else "; which encoder this model has is not recorded"
    return tag(
        "div",
        tag("h3", "Published numbers beside these"),
        tag(
            "p",
            f"Jain & Wallace 2019 on {dataset}: τ from Table 2, ε-max JSD from the "
            f"authors' released reruns (their search finds less than the exact "
            f"maximum here){which}. Their models are other trainings.",
        ),
        table(head, rows, sortable=False),
    )


def _tau(report: AuditResult, dataset: str) -> list[list[Child]]:
    rows: list[list[Child]] = []
    for measure, by_encoder in PUBLISHED.tau.get(dataset, {}).items():
        label = f"τ of attention with {measure.replace('_', '-')}, mean"
        for encoder, values in by_encoder.items():
            for group, (theirs, *_) in _by_group(report, values):
                ours = _ours(report, f"attention_{measure}_tau", group)
                if ours is not None:
                    rows.append([label, encoder, group, ours.mean, theirs])
    return rows


def _jsd(report: AuditResult, dataset: str) -> list[list[Child]]:
    rows: list[list[Child]] = []
    for encoder, values in PUBLISHED.epsilon_max_jsd.get(dataset, {}).items():
        for group, theirs in _by_group(report, values):
            ours = _ours(report, "epsilon_max_jsd@0.05", group)
            if ours is not None:
                label = "ε-max JSD (ε = .05), median"
                rows.append([label, encoder, group, ours.median, theirs])
    return rows


def _by_group(report: AuditResult, values: Sequence) -> list[tuple[str, Sequence]]:
    """Published values by our name of the class; of all texts where there is one."""
    classes = report.provenance.get("classes", [])
    if len(values) == 1:
        return [("all", values[0])]
    if len(values) != len(classes):
        return []
    return list(zip(map(str, classes), values, strict=True))


def _ours(report: AuditResult, name: str, group: str) -> Statistic | None:
    return find_statistic(report.statistics, name, group=group)
