"""The verdict of an audit in about ten lines: question, answer, a line per finding."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_attnprobe import markdown
from hf_attnprobe.auditing.forms.notes import attention_line
from hf_attnprobe.auditing.group_tables import EVERYWHERE, of_groups
from hf_attnprobe.auditing.heads.values import AGREES, MATTERS, by_head, head_intervals
from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.auditing.verdict import ALL_TEXTS, QUESTION, grounds
from hf_attnprobe.statistics.questions import QUESTIONS
from hf_attnprobe.statistics.verdict_lines import WIDTH, cut, plain_line, tail, verdict_line
from hf_attnprobe.statistics.verdicts import RULES, Finding, conclude
from hf_attnprobe.statistics.wording import Words
from hf_attnprobe.terminal import visible


EDITS = {
    "median_tvd": "shuffled",
    "uniform_tvd": "uniform",
    "zero_tvd": "zeroed",
    "mean_tvd": "output averaged",
    "resample_tvd": "output of another text",
}
"""What is done to heads, by what it moves the output, in order of preference."""
BEHIND_LINES = {"uniform_attention", "head_ablation"} | {q.test for q in QUESTIONS.values()}
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
        *textwrap.wrap(attention_line(report), WIDTH),
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
    concluded = conclude(report.findings)
    answer = str(concluded.answer).upper()
    counted = f" ({grounds(concluded)})" if concluded.answers else ""
    texts = f": {report.n} texts{_left_out(report.provenance)}, seed {report.seed}"
    name = tail(f"{report.model} on {report.dataset}", max(WIDTH - len(texts), 20))
    return [*textwrap.wrap(f"{QUESTION} {answer}{counted}", WIDTH), name + texts]


def _unusual_lines(provenance: Mapping) -> list[str]:
    """What is explained, where that is not every token of a text for what it predicts."""
    lines = []
    options = provenance.get("options", {}).values()
    targets = {o["target"]: None for o in options if o.get("target") is not None}
    for target in targets:
        lines.append(f"Explained is why a text is decided for {target} or not.")
    if provenance.get("attended") == "text":
        lines.append("Attention is over the first text of a pair; the second is its query.")
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
            lines.append(RULES[rule].asks)
        for f in found:
            asked = RULES[rule].asks
            if f.group != ALL_TEXTS:
                asked = f"  predicted {f.group}"
            pieces = finding_pieces(f, report.words)
            lines.append(verdict_line(asked, str(f.answer), pieces))
    return lines


def finding_pieces(found: Finding, words: Words) -> list[str]:
    """The numbers of a finding's line, the most telling first."""
    if not found.n:  # there is nothing to compare
        return [f"{found.open_because[:1].upper()}{found.open_because[1:]}"]
    rule = found.graded_by
    graded = f"≤ {found.number}" if found.is_upper_bound else found.number
    is_number = found.rule == "accuracy" and words.is_number
    line = f"R² {graded}" if is_number else rule.line.format(graded)
    beside = rule.beside(found.yardsticks)
    if "the control" in rule.ends and "control" not in found.yardsticks:
        beside.append("no control run")
    return [line, *beside, *([rule.graded] if found.is_about_attention else [])]


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
    if len(by_head(report.statistics, "median_tvd")) > 1:
        lines.append("3.9: head 9 of layer 3; intervals of heads hold for all at once")
    lines += _in_lines(_legend(report))
    for note in report.notes:  # all of it is in the verbose form
        lines += textwrap.wrap(note.split(". ")[0].rstrip(".") + ".", WIDTH)
    return ["", *lines] if lines else []


def _in_lines(pieces: Sequence[str]) -> list[str]:
    """All pieces, as many on a line as it has place for."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + 3 + len(piece) <= WIDTH:
            lines[-1] += f" · {piece}"
        else:
            lines.append(piece)
    return lines


def _legend(report: AuditResult) -> list[str]:
    legend = []
    if "control" in report.provenance:
        legend.append("control: the weights at other tokens")
    rules = dict.fromkeys(f.rule for f in report.findings)
    legend += [report.words.fill(line) for rule in rules for line in RULES[rule].legend]
    return list(dict.fromkeys(legend))
