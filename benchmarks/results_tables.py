"""Tables of docs/results.md, from the folders of finished audits. Pure but for reading them.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hf_attnprobe.core.formatting import (
    MISSING_NUMBER,
    format_interval,
    format_number,
    format_table,
)
from hf_attnprobe.reports.report import Report
from hf_attnprobe.reports.verdict import compute_findings
from hf_attnprobe.statistics.summary import ALL_TEXTS_GROUP, Statistic, find_model_site
from hf_attnprobe.statistics.verdicts import Finding, conclude
from hf_attnprobe.studies.published import PUBLISHED
from hf_attnprobe.studies.steps import name_dataset


PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PARTS = ("importance", "erasure", "removal", "mass")
RANKINGS = {
    "product": "attention × gradient",
    "input_gradient": "gradient × input",
    "leave_one_out": "leaving out",
}
EPSILON = 0.05
"""Of the papers' ε-max JSD."""
TAUS = ("attention_gradient", "attention_leave_one_out", "gradient_leave_one_out")


def filled(page: str, folder: Path) -> str:
    """Returns a page with its tables made anew from the audits in a folder."""
    reports = {
        place.parent.name.removeprefix("audit-"): Report.load(place.parent)
        for place in sorted(folder.glob("audit-*/summary.json"))
    }

    def made(place: re.Match[str]) -> str:
        lines = TABLES[place[2]](reports)
        return "\n".join([place[1].rstrip(), "", *lines, "", place[3]])

    return PLACE.sub(made, page)


# --- faithfulness -------------------------------------------------------------------------------


def faithfulness(reports: dict[str, Report], models: Iterable[str]) -> list[str]:
    """Returns a row per model: faithfulness, its parts, effects, and the answer."""
    head = ["model", "texts", "accuracy", "faithfulness [95%]", *PARTS]
    head += ["path share", "effect", "uniqueness", "interchange", "answer", "of two halves"]
    return format_table(head, [_row(model, reports[model]) for model in models if model in reports])


def _row(model: str, report: Report) -> list[str]:
    by_rule = {finding.rule: finding for finding in report.findings}
    score = report.score
    accuracy = by_rule["accuracy"].yardsticks.get("accuracy")
    pinned = by_rule.get("uniqueness")
    return [
        model,
        str(report.n),
        format_number(accuracy, digits=2),
        f"**{format_interval(score.value, score.ci95, digits=2)}**",
        *(_said(by_rule.get(part)) for part in PARTS),
        _said(by_rule.get("path_share")),
        _said(by_rule.get("effect")),
        _said(pinned) if pinned is not None and pinned.n else MISSING_NUMBER,
        _pair(*([_mean(report, f"follows@{place}")] for place in ("attention", "other"))),
        f"**{report.answer}**",
        " / ".join(_answers_of_halves(report)),
    ]


def _said(finding: Finding | None) -> str:
    """Returns a finding's number with its interval."""
    return (
        MISSING_NUMBER
        if finding is None
        else format_interval(finding.value, finding.ci95, digits=2)
    )


def _answers_of_halves(report: Report) -> Iterator[str]:
    """Yields the verdict of every second text, and of the others."""
    for half in (report.example_ids[::2], report.example_ids[1::2]):
        rows, classes = report.rows.select_ids(half), report.provenance["classes"]
        found = compute_findings(
            rows,
            classes,
            seed=report.seed,
            words=report.words,
            unsupported_tests=report.provenance.get("unsupported_tests", ()),
        )
        yield str(conclude(found).answer)


def rankings(reports: dict[str, Report], models: Iterable[str]) -> list[str]:
    """Returns a row per model: the faithfulness of attention and of other rankings."""
    rows = []
    for model in (model for model in models if model in reports):
        score = next(f for f in reports[model].findings if f.role == "score")
        others = [format_number(score.yardsticks.get(name), digits=2) for name in RANKINGS]
        rows.append([model, format_number(score.value, digits=2), *others])
    return format_table(["model", "attention", *RANKINGS.values()], rows)


# --- beside the papers --------------------------------------------------------------------------


def beside_papers(reports: dict[str, Report], models: Iterable[str]) -> list[str]:
    """Returns a row per model: Kendall's τ and ε-max JSD, ours / the authors' rerun."""
    head = ["model", "τ(attention, gradient)", "τ(attention, leaving out)"]
    head += ["τ(gradient, leaving out)", f"ε-max JSD ({EPSILON}), median by class"]
    rows = [_beside(model, reports[model]) for model in models if model in reports]
    return format_table(head, rows)


def _beside(model: str, report: Report) -> list[str]:
    dataset = name_dataset(report.dataset.name)
    encoder = report.provenance["architecture"]["encoder"]
    rerun = PUBLISHED.reruns.get(dataset, {}).get(encoder, {}).get("additive")
    published = [pair and pair[0] for pair in rerun[:3]] if rerun else [None] * 3
    taus = [_mean(report, f"{name}_tau") for name in TAUS]
    jsd = PUBLISHED.epsilon_max_jsd.get(dataset, {}).get(encoder, ())
    return [
        model,
        *(_pair([ours], [theirs]) for ours, theirs in zip(taus, published, strict=True)),
        _pair(_medians(report, f"epsilon_max_jsd@{EPSILON}"), jsd),
    ]


def _pair(ours: Sequence[float | None], theirs: Sequence[float | None]) -> str:
    """Returns our numbers / the published ones."""
    both = [", ".join(format_number(one, digits=2) for one in side) for side in (ours, theirs)]
    return " / ".join(one or MISSING_NUMBER for one in both)


def _mean(report: Report, statistic: str) -> float | None:
    found = _by_group(report, statistic).get(ALL_TEXTS_GROUP)
    return None if found is None else found.mean


def _medians(report: Report, statistic: str) -> list[float]:
    """Returns the median over the texts of each predicted class; of all where they are many."""
    classes = report.provenance["classes"]
    found = _by_group(report, statistic)
    groups = classes if len(classes) == 2 else [ALL_TEXTS_GROUP]
    return [found[group].median for group in groups if group in found]


def _by_group(report: Report, statistic: str) -> dict[str, Statistic]:
    """Returns a statistic of what stands for the model's attention, by predicted class."""
    place = find_model_site(report.rows)
    own = [s for s in report.statistics if s.statistic == statistic]
    return {s.group: s for s in own if (s.layer, s.head) == place}


# --- which models -------------------------------------------------------------------------------

ENCODERS = ("none", "mlp", "cnn", "bilstm")
SST = [f"{encoder}-sst{seed}" for encoder in ENCODERS for seed in ("", "-seed1", "-seed2")]
SHORT = ["none-imdb", "bilstm-imdb", "none-agnews-binary", "bilstm-agnews-binary"]
OTHERS = [*SHORT, "bilstm-babi1", "minilm-sst"]
FIRST = [f"{encoder}-sst" for encoder in ENCODERS]
TABLES = {
    "sst": lambda reports: faithfulness(reports, SST),
    "others": lambda reports: faithfulness(reports, OTHERS),
    "rankings": lambda reports: rankings(reports, [*FIRST, *OTHERS]),
    "papers": lambda reports: beside_papers(reports, [*FIRST, *SHORT, "bilstm-babi1"]),
}
