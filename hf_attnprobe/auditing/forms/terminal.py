"""The verdict of an audit in about ten lines: question, answer, a line per finding."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hf_attnprobe import markdown
from hf_attnprobe.auditing.group_tables import EVERYWHERE, of_groups
from hf_attnprobe.auditing.heads.values import AGREES, MATTERS, by_head, head_intervals
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import ALL_TEXTS, QUESTION, is_at_chance
from hf_attnprobe.statistics.summary import Statistic, find_statistic
from hf_attnprobe.statistics.verdict_lines import (
    WIDTH,
    cut,
    fitting,
    plain_line,
    tail,
    verdict_line,
)
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.terminal import visible


QUESTIONS = {
    "accuracy": "Is the model any good?",
    "importance": "Do weights rank what matters?",
    "assignment": "Do shuffled weights matter?",
    "uniqueness": "Do only these weights do it?",
    "erasure": "Do the top weights decide?",
    "removal": "Do the top tokens decide?",
}
"""What each rule asks, in plain words and at most thirty letters."""
EDITS = {
    "median_tvd": "shuffled",
    "uniform_tvd": "uniform",
    "zero_tvd": "zeroed",
    "mean_tvd": "output averaged",
    "resample_tvd": "output of another text",
}
"""What is done to heads, by what it moves the output, in order of preference."""
BEHIND_LINES = {
    "correlation",
    "permutation",
    "adversarial",
    "erasure",
    "input_erasure",
    "uniform_attention",
    "head_ablation",
}
"""Tests whose numbers stand in a line; others are named."""
TAU = "attention_leave_one_out_tau"
MOST_LAYERS = 12  # whose numbers stand in one line
N_FOREMOST = 3


def short_text(report: AuditResult) -> str:
    """Question and answer, a line per finding, then whole model, layers and heads.

    Every line has at most ``WIDTH`` columns. What a line says more than an answer is a
    number of :attr:`AuditResult.findings` or :attr:`AuditResult.statistics`, rounded.
    """
    lines = [
        *(cut(f"CONTRADICTION, report it: {s}", WIDTH) for s in report.contradictions),
        *_answer_lines(report),
        *(cut(line, WIDTH) for line in _unusual_lines(report.provenance)),
        "",
        *_finding_lines(report),
        *_group_lines(report),
        *_head_lines(report),
        *_note_lines(report),
    ]
    return visible("\n".join(lines))


def place_lines(folder: str | Path | None) -> list[str]:
    """Where page, numbers and rows of an audit lie; how to keep them where they do not."""
    more = "All numbers: --verbose."
    if folder is None:
        return [f"{more} Nothing was kept; --output-dir DIR keeps page and rows."]
    places = {
        "page": "report.html",
        "text": "report.md",
        "numbers": "summary.json",
        "rows": "rows",
    }
    known = {what: Path(folder) / name for what, name in places.items()}
    lines = [f"{what:<8} {file}" for what, file in known.items() if file.exists()]
    return [*lines, more]


def _answer_lines(report: AuditResult) -> list[str]:
    answer = str(report.answer).upper()
    if is_at_chance(report.findings):
        answer += " (the model is not shown to beat chance)"
    texts = f": {report.n} texts{_left_out(report.provenance)}, seed {report.seed}"
    name = tail(f"{report.model} on {report.dataset}", max(WIDTH - len(texts), 20))
    return [f"{QUESTION} {answer}", name + texts]


def _unusual_lines(provenance: Mapping) -> list[str]:
    """What is explained, where that is not every token of a text for what it predicts."""
    lines = []
    options = provenance.get("options", {}).values()
    targets = {o["target"]: None for o in options if o.get("target") is not None}
    for target in targets:
        lines.append(f"Explained is why a text is decided for {target} or not.")
    if provenance.get("attended") == "text":
        lines.append(
            "Attention is over the first text of a pair; the second is its query."
        )
    segment = provenance.get("segment")
    if segment is not None:
        which = "first" if segment == "text" else "second"
        lines.append(f"Importances and erasure are of the {which} text of each pair.")
    if provenance.get("units") == "sentences":
        lines.append("This model attends to sentences: what is called a token is one.")
    return lines


def _left_out(provenance: Mapping) -> str:
    """What became of texts that are too long or empty."""
    asides = []
    if provenance.get("truncated"):
        asides.append(f"{provenance['truncated']} cut to the model's length")
    if provenance.get("skipped_empty"):
        asides.append(f"{provenance['skipped_empty']} empty left out")
    return f" ({', '.join(asides)})" if asides else ""


# --- a line per finding -------------------------------------------------------------


def _finding_lines(report: AuditResult) -> list[str]:
    """A line per question, or per class where the classes are answered differently."""
    lines = []
    for rule in dict.fromkeys(f.rule for f in report.findings):
        found = [f for f in report.findings if f.rule == rule]
        if any(f.group != ALL_TEXTS for f in found):
            lines.append(QUESTIONS[rule])
        for f in found:
            asked = QUESTIONS[rule]
            if f.group != ALL_TEXTS:
                asked = f"  predicted {f.group}"
            lines.append(verdict_line(asked, str(f.answer), PIECES[rule](f, report)))
    return lines


def _accuracy(found: Finding, report: AuditResult) -> list[str]:
    if not found.n:  # the sentence says why there is nothing to compare
        return [found.sentence.split(". ")[1].rstrip(".")]
    beside = found.yardsticks
    if report.words.is_number:
        return [
            f"R² {_graded(found)}",
            f"error {beside['mean_absolute_error']:.2f}",
            f"of always the mean {beside['mean_absolute_error_of_mean']:.2f}",
        ]
    right = beside.get("accuracy", beside["majority"] + found.value)
    return [
        f"right {right:.2f}",
        f"majority {beside['majority']:.2f}",
        f"more by {_graded(found)}",
    ]


def _importance(found: Finding, report: AuditResult) -> list[str]:
    return [
        *_beside_control("τ", TAU, found, report),
        *_yardstick("gradients", "gradient", found),
        *(_thresholds(found) if "control" in found.yardsticks else []),
    ]


def _assignment(found: Finding, report: AuditResult) -> list[str]:
    shuffled = _beside_control("moves", "median_tvd", found, report)
    return [*shuffled, *_thresholds(found)]


def _beside_control(
    what: str, name: str, found: Finding, report: AuditResult
) -> list[str]:
    """A number beside the control's; without a control the number is what is graded."""
    if "control" not in found.yardsticks:
        return [f"{what} {_graded(found)}", "no control run"]
    own = _statistic(report, name, found.group)
    return [
        *([] if own is None else [f"{what} {own.mean:z.2f}"]),
        *_yardstick("control", "control", found),
        f"more by {_graded(found)}",
    ]


def _uniqueness(found: Finding, report: AuditResult) -> list[str]:
    """Said of the way that others go, of which the graded number is the rest."""
    exact = _statistic(report, "epsilon_max_jsd_exact", found.group)
    least = "" if exact is not None and exact.mean == 1 else "≥ "
    ci95 = found.ci95 and (1 - found.ci95[1], 1 - found.ci95[0])
    way = markdown.interval(1 - found.value, ci95, digits=2)
    return [
        f"others go {least}{way} of the way",
        *_yardstick("control", "control", found),
        f"yes up to {1 - RULES[found.rule].yes:.2f}",
    ]


def _erasure(found: Finding, report: AuditResult) -> list[str]:
    return [
        f"{_graded(found)} from random to best order",
        *_yardstick("control", "control", found),
        *_thresholds(found),
    ]


def _removal(found: Finding, report: AuditResult) -> list[str]:
    names = [f"comprehensiveness@{by}" for by in ("attention", "mean_attention")]
    own = [s for n in names if (s := _statistic(report, n, found.group)) is not None]
    return [
        *(f"loses {s.mean:z.2f}" for s in own[:1]),
        *_yardstick("random", "random", found),
        f"more by {_graded(found)}",
        *_yardstick("control's", "control", found),
        *_thresholds(found),
    ]


Pieces = Callable[[Finding, AuditResult], list[str]]
PIECES: dict[str, Pieces] = {
    "accuracy": _accuracy,
    "importance": _importance,
    "assignment": _assignment,
    "uniqueness": _uniqueness,
    "erasure": _erasure,
    "removal": _removal,
}
"""The numbers of a finding's line, the most telling first."""


def _graded(found: Finding) -> str:
    return markdown.interval(found.value, found.ci95, digits=2)


def _yardstick(label: str, name: str, found: Finding) -> list[str]:
    value = found.yardsticks.get(name)
    return [] if value is None else [f"{label} {value:z.2f}"]


def _thresholds(found: Finding) -> list[str]:
    rule = RULES[found.rule]
    if rule.partly == rule.yes:
        return [f"yes from {rule.yes:.2f}"]
    return [f"partly from {rule.partly:.2f}, yes from {rule.yes:.2f}"]


def _statistic(report: AuditResult, name: str, group: str) -> Statistic | None:
    """Of the model's attention as a whole: all heads at once, or its only head."""
    for layer, head in _sites_of_model(report.statistics):
        found = find_statistic(
            report.statistics, name, group=group, layer=layer, head=head
        )
        if found is not None:
            return found
    return None


def _sites_of_model(statistics: Sequence[Statistic]) -> list[tuple[int, int]]:
    """As :func:`hf_attnprobe.auditing.verdict.site_of_model`, without the rows."""
    sites = {(s.layer, s.head) for s in statistics}
    if EVERYWHERE in sites:
        return [EVERYWHERE]
    heads = [site for site in sites if min(site) >= 0]
    return heads if len(heads) == 1 else []


# --- the whole model, its layers, its heads ------------------------------------------


def _group_lines(report: AuditResult) -> list[str]:
    """What all attention does, and each layer, when it is edited at once."""
    known = {name: of_groups(report.statistics, name) for name in EDITS}
    whole = [
        f"{EDITS[name]} {markdown.interval(s.mean, s.ci95, digits=2)}"
        for name, values in known.items()
        if (s := values.get(EVERYWHERE)) is not None
    ]
    lines = ["", plain_line("whole model", whole)] if whole else []
    for name, values in known.items():
        layers = {layer: s.mean for (layer, _), s in values.items() if layer >= 0}
        if layers:
            return [*lines, _layer_line(EDITS[name], layers)]
    return lines


def _layer_line(edit: str, means: Mapping[int, float]) -> str:
    """All layers in their order, or the foremost of many."""
    layers = sorted(means)
    if len(layers) > MOST_LAYERS:
        layers = sorted(layers, key=lambda layer: -means[layer])[:N_FOREMOST]
        foremost = [f"layer {layer} {means[layer]:.2f}" for layer in layers]
        return plain_line("layers", [f"{edit}: most of {len(means)}", *foremost])
    numbers = "  ".join(f"{layer}: {means[layer]:.2f}" for layer in layers)
    return plain_line("layers", [f"{edit}  {numbers}"])


def _head_lines(report: AuditResult) -> list[str]:
    """How many heads matter and agree, and the foremost with their intervals."""
    known = {name: by_head(report.statistics, name) for name in (*EDITS, TAU)}
    effects = [name for name in EDITS if len(known[name]) > 1]
    lines = []
    if effects:
        lines.append(_head_line(EDITS[effects[0]], effects[0], MATTERS, report))
    if len(known[TAU]) > 1:
        lines.append(_head_line("τ", TAU, AGREES, report))
    if not lines:
        return []
    return lines


def _head_line(what: str, name: str, threshold: float, report: AuditResult) -> str:
    means = by_head(report.statistics, name)
    intervals = head_intervals(report.rows, name)
    surely = sum(low >= threshold for low, _ in intervals.values())
    count = f"{what} {threshold:.2f} or more: {surely} of {len(means)} surely"
    if not intervals:
        n_above = sum(mean >= threshold for mean in means.values())
        count = f"{what} {threshold:.2f} or more: {n_above} of {len(means)} by the mean"
    known = intervals or means
    foremost = sorted(known, key=means.__getitem__, reverse=True)[:N_FOREMOST]
    named = [
        f"{layer}.{head} {markdown.interval(means[layer, head], intervals.get((layer, head)), digits=2)}"
        for layer, head in foremost
    ]
    return plain_line("heads", [count, *named])


def _note_lines(report: AuditResult) -> list[str]:
    """What the words mean, and what else is to be seen."""
    others = {s.test for s in report.statistics} - BEHIND_LINES
    lines = [plain_line("also run", sorted(others))] if others else []
    legend = fitting(_legend(report), WIDTH)
    if len(by_head(report.statistics, "median_tvd")) > 1:
        lines.append("3.9: head 9 of layer 3; intervals of heads hold for all at once")
    lines += [legend] if legend else []
    for note in report.notes:  # all of it is in the verbose form
        lines += textwrap.wrap(note.split(". ")[0].rstrip(".") + ".", WIDTH)
    return ["", *lines] if lines else []


def _legend(report: AuditResult) -> list[str]:
    rules = {f.rule for f in report.findings}
    legend = []
    if "importance" in rules:
        legend.append("τ: rank correlation with leaving tokens out")
    if "control" in report.provenance:
        legend.append("control: this model without what it learned")
    if "assignment" in rules:
        unit = report.words.unit if report.words.is_number else "0 to 1"
        legend.append(f"moves: the output, {unit}")
    return legend
