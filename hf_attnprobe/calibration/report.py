"""How often the verdict is wrong on models of known truth: as data, JSON and Markdown."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from hf_attnprobe.calibration.constructs import CONSTRUCTS, WHOLE
from hf_attnprobe.calibration.options import CalibrationOptions
from hf_attnprobe.plain_data import plain_fields, stored_fields
from hf_attnprobe.reports.document import Cell as Entry
from hf_attnprobe.reports.document import (
    Code,
    Document,
    Facts,
    Figures,
    Number,
    Section,
    Table,
    Words,
)
from hf_attnprobe.reports.forms import Documented
from hf_attnprobe.statistics.known_truth import MEASURED, RuleRow, share
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.folders import write_atomically, write_json
from hf_attnprobe.storage.provenance import versions


Outcome = Literal["right", "wrong", "undecided"]
NOTHING = "no answer"
"""Of a question that no text of a model answers, such as when no erasure flips any."""
SAYING = {True: ("yes", "mostly yes"), False: ("no", "mostly no")}
ASKED = ("accuracy", "importance", "assignment", "uniqueness", "erasure", "removal")
QUESTIONS = (*ASKED, WHOLE)


@dataclass(frozen=True)
class Cell:
    """A question to the models of one kind.

    Attributes:
        construct, rule, n: the kind, the question (or "whole"), the texts of each model.
        truth: the right answer, yes or no; None where none is known.
        answers: how many models got which answer.
        mean, sd: of the graded number over the models; None where there is none.
    """

    construct: str
    rule: str
    n: int
    truth: bool | None
    answers: dict[str, int]
    mean: float | None
    sd: float | None


@dataclass(frozen=True)
class Calibration(Documented):
    """How often each question is answered wrongly. ``print(found)`` shows the table.

    Attributes:
        draws, texts, seed: models of each kind, texts, where the drawing began.
        cells: a question to the models of one kind, by number of texts.
        rules: a question over all kinds.
        thresholds: by rule, where "partly" and "yes" begin.
        versions: of the packages that computed the numbers.
        seconds: of the processor.
        models: what was answered of each model; None when read from a file.
    """

    draws: int
    texts: tuple[int, ...]
    seed: int
    cells: tuple[Cell, ...]
    rules: tuple[RuleRow, ...]
    thresholds: dict[str, tuple[float, float]]
    versions: dict[str, str]
    seconds: float
    models: pd.DataFrame | None = None

    def document(self) -> Document:
        """All that it says."""
        return document_of(self)


def outcome_of(answer: str, truth: bool) -> Outcome:
    """Whether an answer is right.

    "partly" is wrong where the truth is no, since it claims something, and undecided
    where it is yes.

    >>> outcome_of("mostly yes", True), outcome_of("partly", False)
    ('right', 'wrong')
    """
    if answer in SAYING[truth]:
        return "right"
    is_wrong = answer in SAYING[not truth] or (answer == "partly" and not truth)
    return "wrong" if is_wrong else "undecided"


def calibration_of(
    models: pd.DataFrame, options: CalibrationOptions, seconds: float
) -> Calibration:
    """The errors, from what was answered of each model."""
    cells = tuple(_cells(models, options))
    rules = [_rule_row(models, cells, r, n) for r in QUESTIONS for n in options.n_texts]
    return Calibration(
        options.n_draws,
        options.n_texts,
        options.seed,
        cells,
        tuple(rules),
        {key: (RULES[key].partly, RULES[key].yes) for key in ASKED},
        versions(),
        round(seconds, 1),
        models,
    )


def _cells(models: pd.DataFrame, options: CalibrationOptions) -> Iterator[Cell]:
    told = dict(list(models.groupby(["construct", "rule", "n"])))
    for construct, rule in itertools.product(dict.fromkeys(models.construct), QUESTIONS):
        truth = CONSTRUCTS[construct].truths.get(rule)
        for n in CONSTRUCTS[construct].sizes(options.n_texts):
            own = told.get((construct, rule, n), models[:0])
            answers = own.answer.value_counts().to_dict()
            if len(own) < options.n_draws:
                answers[NOTHING] = options.n_draws - len(own)
            holds = None if truth is None else truth.holds
            numbers = _rounded(own.value.mean()), _rounded(own.value.std())
            yield Cell(construct, rule, n, holds, dict(sorted(answers.items())), *numbers)


def _rounded(value: float) -> float | None:
    return round(float(value), 4) if value == value else None


def _rule_row(models: pd.DataFrame, cells: Sequence[Cell], rule: str, n: int) -> RuleRow:
    truths = {c.construct: c.truth for c in cells if (c.rule, c.n) == (rule, n)}
    told: Counter[tuple[bool, Outcome]] = Counter()
    for cell in cells:
        if (cell.rule, cell.n) == (rule, n) and cell.truth is not None:
            for answer, count in cell.answers.items():
                told[cell.truth, outcome_of(answer, cell.truth)] += count
    own = models[(models.rule == rule) & (models.n == n)]
    known = own.value.notna()
    holds, fails = (known & (own.construct.map(truths) == truth) for truth in (True, False))
    n_models = {truth: sum(k for (t, _), k in told.items() if t is truth) for truth in SAYING}
    return RuleRow(
        rule,
        n,
        false_yes=told[False, "wrong"],
        no=n_models[False],
        false_no=told[True, "wrong"],
        yes=n_models[True],
        undecided_no=told[False, "undecided"],
        undecided_yes=told[True, "undecided"],
        auroc=auroc(own.value[holds].to_numpy(), own.value[fails].to_numpy()),
        changed=_rounded(own.changed.mean()),
    )


def auroc(positive: np.ndarray, negative: np.ndarray) -> float | None:
    """How often a positive number is above a negative one, ties counted half.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not len(positive) or not len(negative):
        return None
    difference = positive[:, None] - negative
    above = (difference > 0).mean() + (difference == 0).mean() / 2
    return round(float(above), 4)


@cache
def measured() -> Calibration:
    """The calibration that comes with this version."""
    return from_json(json.loads((files(__package__) / MEASURED).read_text()))


def to_json(found: Calibration) -> dict[str, Any]:
    """Plain data, without what was answered of each model."""
    return plain_fields(found, "models")


def from_json(data: Mapping[str, Any]) -> Calibration:
    """What :func:`to_json` made."""
    return Calibration(**stored_fields(Calibration, data, "models"))


def write(found: Calibration, folder: Path) -> None:
    """Writes summary, Markdown and the answers of each model."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MEASURED, to_json(found))
    write_atomically(folder / "calibration.md", found.to_markdown())
    write_atomically(folder / "calibration.html", found.to_html())
    if found.models is not None:
        table = found.models.to_csv(index=False, float_format="%.6g")
        write_atomically(folder / "answers.csv", table)


TOLD = "What is true, and how many models were told what."
OPENING = (
    Code("attnprobe calibrate"),
    " makes models by hand whose truth follows from their formula (",
    Code("hf_attnprobe/calibration/constructs.py"),
    "), audits them, and counts what the verdict says of them. A false yes is a yes, mostly yes "
    "or partly where the truth is no, a false no a no or mostly no where it is yes; anything "
    "else that is not right is undecided. Behind each count stands the exact 95% interval of its "
    "share. AUROC is how often the graded number of a model whose truth is yes is above that of "
    "one whose truth is no; the last column is the share of answers that another draw of the "
    "control changes. Questions whose answer the formula does not give are left empty.",
)


def document_of(found: Calibration) -> Document:
    """All that a calibration says."""
    drawn = (
        f"{found.draws} models of each kind, seeds from {found.seed} on, "
        f"{', '.join(map(str, found.texts))} texts of 8 to 14 words; "
        f"{found.seconds:.0f} s of one processor. Versions: "
        f"{', '.join(f'{k} {v}' for k, v in found.versions.items())}."
    )
    most = f"Answers on {found.texts[-1]} texts"
    return Document(
        "How often the verdict is wrong",
        [OPENING, drawn],
        [
            Section("By question", [by_rule(found)], id="rules", brief=True),
            Section(most, [TOLD, by_construct(found)], id="told", brief=True),
            Section("Right answers by number of texts", [by_texts(found)], id="texts"),
            Section("What is true, and why", [reasons(found)], id="truths"),
        ],
        data=to_json(found),
    )


def by_rule(found: Calibration) -> Table:
    """Errors of each question by number of texts."""
    head = ["question", "texts", "false yes", "false no", "undecided", "AUROC"]
    head += ["changed by another control"]
    rows: list[list[Entry]] = [
        [
            _name(row.rule),
            row.n,
            Figures(share(row.false_yes, row.no)),
            Figures(share(row.false_no, row.yes)),
            Figures(share(row.undecided_no + row.undecided_yes, row.no + row.yes)),
            None if row.auroc is None else Number(row.auroc, digits=2),
            None if row.changed is None else Number(row.changed, digits=2),
        ]
        for row in found.rules
    ]
    return Table(head, rows, "Wrong and undecided answers by question and number of texts")


def by_construct(found: Calibration) -> Table:
    """What is true of each kind, and what its models were told, on most texts."""
    head = ["model", *[_name(rule) for rule in QUESTIONS]]
    cells = {(c.construct, c.rule): c for c in found.cells}  # the last is of most texts
    most = {cell.construct: cell.n for cell in found.cells}
    rows = [
        [
            kind if n == found.texts[-1] else f"{kind} ({n} texts)",
            *[_told(cells[kind, rule]) for rule in QUESTIONS],
        ]
        for kind, n in most.items()
    ]
    return Table(
        head, rows, f"Models of each kind by what they were told, on {found.texts[-1]} texts"
    )


def _told(cell: Cell) -> str | None:
    """What is true and what was said."""
    if cell.truth is None:
        return None
    told = [
        f"{answer} {models} (wrong)"
        if outcome_of(answer, cell.truth) == "wrong"
        else f"{answer} {models}"
        for answer, models in sorted(cell.answers.items(), key=lambda pair: -pair[1])
    ]
    return f"({'yes' if cell.truth else 'no'}) {', '.join(told)}"


def by_texts(found: Calibration) -> Table:
    """Shares of right answers."""
    known = [cell for cell in found.cells if cell.truth is not None]
    head = ["question", "truth", *[f"{n} texts" for n in found.texts]]
    rows = []
    for rule in QUESTIONS:
        for truth in (True, False):
            own = [c for c in known if c.rule == rule and c.truth is truth]
            if own:
                by_n = [[c for c in own if c.n == n] for n in found.texts]
                right = [_right(cells) for cells in by_n]
                rows.append([_name(rule), "yes" if truth else "no", *right])
    return Table(head, rows, "Shares of right answers by what is true")


def _right(cells: Sequence[Cell]) -> Figures:
    told = [
        (outcome_of(answer, bool(c.truth)), k) for c in cells for answer, k in c.answers.items()
    ]
    right = sum(k for outcome, k in told if outcome == "right")
    return Figures(share(right, sum(k for _, k in told)))


def reasons(found: Calibration) -> Facts:
    """Of each kind what it is, and what is true of it and why."""
    said: dict[str, Words | list[Words] | None] = {}
    for name in dict.fromkeys(cell.construct for cell in found.cells):
        construct = CONSTRUCTS[name]
        truths = [
            f"{_name(rule)} {'yes' if truth.holds else 'no'}: {truth.why}."
            for rule, truth in construct.truths.items()
        ]
        said[name] = [f"{construct.says}.", *truths]
    return Facts(said)


def _name(rule: str) -> str:
    return rule if rule == WHOLE else RULES[rule].name.lower()
