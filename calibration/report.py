"""Error rates of the verdict on models of known truth, as data, JSON and Markdown."""

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

from calibration.constructs import CONSTRUCTS, WHOLE, Construct, Truth
from calibration.decoders import DECODERS, Decoder
from calibration.options import CalibrationOptions
from calibration.trained import TRAINED, Proof, Trained, truths_of
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
from hf_attnprobe.statistics.known_truth import MEASURED, OF_DECODERS, RuleRow, share
from hf_attnprobe.statistics.questions import QUESTIONS
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.folders import write_atomically, write_json
from hf_attnprobe.storage.provenance import versions


Outcome = Literal["right", "wrong", "undecided"]
NOTHING = "no answer"
"""Of a question that no text of a model answers, such as when no erasure flips any."""
SAYING = {True: ("yes", "mostly yes"), False: ("no", "mostly no")}
ASKED = ("accuracy", *QUESTIONS)
ASKED_OF_ANSWERS = ("passage", "source", "order", "exchange", "path")
"""All but uniqueness, of which there is only a lower bound."""
Kind = Construct | Decoder | Trained
KINDS: Mapping[str, Kind] = {**CONSTRUCTS, **DECODERS, **TRAINED}


@dataclass(frozen=True)
class Cell:
    """Answers to one question for the models of one kind.

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
    """Error rates of each question. ``print(found)`` shows the table.

    Attributes:
        draws, texts, seed: models of each kind, texts, where the drawing began.
        cells: a question to the models of one kind, by number of texts.
        rules: a question over all kinds.
        thresholds: by rule, where "partly" and "yes" begin.
        versions: of the packages that computed the numbers.
        seconds: of the processor.
        proofs: of trained models, what each is proved to do.
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
    proofs: tuple[Proof, ...] = ()
    models: pd.DataFrame | None = None

    def document(self) -> Document:
        """The calibration as a document."""
        return document_of(self)

    @property
    def of_answers(self) -> bool:
        """Whether the models answer from a passage."""
        return "passage" in self.thresholds

    @property
    def graded(self) -> tuple[str, ...]:
        """The questions, and the whole verdict."""
        return (*self.thresholds, WHOLE)


def outcome_of(answer: str, truth: bool) -> Outcome:
    """Whether an answer is right, wrong or open.

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
    models: pd.DataFrame,
    options: CalibrationOptions,
    seconds: float,
    proofs: tuple[Proof, ...] = (),
) -> Calibration:
    """Counts errors in the answers for each model."""
    asked = ASKED_OF_ANSWERS if options.decoders else ASKED
    graded = (*asked, WHOLE)
    cells = tuple(_cells(models, options, graded, proofs))
    rules = [_rule_row(models, cells, r, n) for r in graded for n in options.n_texts]
    return Calibration(
        options.n_draws,
        options.n_texts,
        options.seed,
        cells,
        tuple(rules),
        {key: (RULES[key].partly, RULES[key].yes) for key in asked},
        versions(),
        round(seconds, 1),
        proofs,
        models,
    )


def _truths(construct: str, proofs: Sequence[Proof]) -> Mapping[str, Truth]:
    """What is true of a kind by its formula, or what its trained models prove."""
    kind = KINDS[construct]
    if isinstance(kind, Trained):
        return truths_of([proof for proof in proofs if proof.construct == construct])
    return kind.truths


def _cells(
    models: pd.DataFrame,
    options: CalibrationOptions,
    graded: Sequence[str],
    proofs: Sequence[Proof],
) -> Iterator[Cell]:
    told = dict(list(models.groupby(["construct", "rule", "n"])))
    for construct, rule in itertools.product(dict.fromkeys(models.construct), graded):
        truth = _truths(construct, proofs).get(rule)
        for n in KINDS[construct].sizes(options.n_texts):
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
    )


def auroc(positive: np.ndarray, negative: np.ndarray) -> float | None:
    """Probability that a positive number exceeds a negative one; ties count half.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    if not len(positive) or not len(negative):
        return None
    difference = positive[:, None] - negative
    above = (difference > 0).mean() + (difference == 0).mean() / 2
    return round(float(above), 4)


@cache
def measured(*, decoders: bool = False) -> Calibration:
    """The calibration shipped with this version, of classifiers or of language models."""
    name = OF_DECODERS if decoders else MEASURED
    return from_json(json.loads((files(__package__) / name).read_text()))


def to_json(found: Calibration) -> dict[str, Any]:
    """Plain data, without the answers for each model."""
    return plain_fields(found, "models")


def from_json(data: Mapping[str, Any]) -> Calibration:
    """The inverse of :func:`to_json`."""
    return Calibration(**stored_fields(Calibration, data, "models"))


def write(found: Calibration, folder: Path) -> None:
    """Writes summary, Markdown and the answers for each model."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MEASURED, to_json(found))
    write_atomically(folder / "calibration.md", found.to_markdown())
    write_atomically(folder / "calibration.html", found.to_html())
    if found.models is not None:
        table = found.models.to_csv(index=False, float_format="%.6g")
        write_atomically(folder / "answers.csv", table)


TOLD = "What is true, and how many models were told what."
SAID = (
    "), audits them, and counts what the verdict says of them. A false yes is a yes, mostly yes "
    "or partly where the truth is no, a false no a no or mostly no where it is yes; anything "
    "else that is not right is undecided. Behind each count stands the exact 95% interval of its "
    "share. AUROC is how often the graded number of a model whose truth is yes is above that of "
    "one whose truth is no. Questions whose answer the formula does not give are left empty."
)


OF_TRAINED = (
    " trains classifiers on texts whose label only a planted word says, the signal: an accuracy "
    "above one half, by its exact 95% interval, proves that they use it, and a text needs it where "
    "its class is not sure (.9) without (Zhou et al. 2022; ",
    Code("hf_attnprobe/calibration/trained.py"),
    "). It asks which rankings name the signal, and which a planted word that says nothing, the "
    "void; and it counts what the verdict says where a truth follows.",
)


def _opening(found: Calibration) -> Words:
    """How the numbers were made."""
    if found.proofs:
        return (Code("attnprobe calibrate --trained"), *OF_TRAINED)
    command, file = "attnprobe calibrate", "constructs.py"
    if found.of_answers:
        command, file = f"{command} --decoders", "decoders.py"
    of_what = "language models" if found.of_answers else "models"
    return (
        Code(command),
        f" makes {of_what} by hand whose truth follows from their formula (",
        Code(f"hf_attnprobe/calibration/{file}"),
        SAID,
    )


def document_of(found: Calibration) -> Document:
    """The calibration as a document."""
    proved = [
        Section("Proof of use", [by_proof(found)], id="proofs", brief=True),
        Section("Which rankings name the signal", [by_ranking(found)], id="named", brief=True),
    ]
    drawn = (
        f"{found.draws} models of each kind, seeds from {found.seed} on, "
        f"{', '.join(map(str, found.texts))} texts of 8 to 14 "
        f"{'units' if found.of_answers else 'words'}; "
        f"{found.seconds:.0f} s of one processor. Versions: "
        f"{', '.join(f'{k} {v}' for k, v in found.versions.items())}."
    )
    most = f"Answers on {found.texts[-1]} texts"
    title = "How often the verdict is wrong"
    if found.of_answers:
        title += " of a language model"
    if found.proofs:
        title = "What is said of trained models that are proved to use a word"
    return Document(
        title,
        [_opening(found), drawn],
        [
            *(proved if found.proofs else ()),
            Section("By question", [by_rule(found)], id="rules", brief=True),
            Section(most, [TOLD, by_construct(found)], id="told", brief=True),
            Section("Right answers by number of texts", [by_texts(found)], id="texts"),
            Section("What is true, and why", [reasons(found)], id="truths"),
        ],
        data=to_json(found),
    )


def by_proof(found: Calibration) -> Table:
    """What the models of each kind are proved to do."""
    head = ["model", "right", "follow the signal", "follow the void"]
    head += ["sure without the signal", "proved"]
    rows: list[list[Entry]] = []
    for kind, own in _by_kind(found):
        follows = _over([proof.follows for proof in own])
        void = _over([proof.follows_void for proof in own])
        right = share(sum(proof.right for proof in own), sum(proof.n for proof in own))
        sure = _over([proof.sure_without for proof in own])
        n_proved = sum(proof.is_proved for proof in own)
        rows.append([kind, Figures(right), follows, void, sure, f"{n_proved} of {len(own)}"])
    caption = "Test texts by what decides their class; means over models, the least and the largest"
    return Table(head, rows, caption)


def by_ranking(found: Calibration) -> Table:
    """How often each ranking names the planted words first."""
    names = dict.fromkeys(name for proof in found.proofs for name in proof.named)
    head = ["model", *[Code(name) for name in names]]
    rows: list[list[Entry]] = [
        [kind, *[_named([(p.named.get(n), p.named_void.get(n)) for p in own]) for n in names]]
        for kind, own in _by_kind(found)
    ]
    caption = "Share of texts in which the signal is first, and the void; means over models"
    return Table(head, rows, caption)


def _by_kind(found: Calibration) -> Iterator[tuple[str, list[Proof]]]:
    for kind in dict.fromkeys(proof.construct for proof in found.proofs):
        yield kind, [proof for proof in found.proofs if proof.construct == kind]


def _over(values: Sequence[float]) -> Number:
    return Number(float(np.mean(values)), (min(values), max(values)), digits=2)


def _named(pairs: Sequence[tuple[float | None, float | None]]) -> Entry:
    known = [(signal, void) for signal, void in pairs if signal is not None and void is not None]
    if not known:
        return None
    signal, void = np.mean(known, axis=0)
    return Figures(f"{signal:.2f}, {void:.2f}")


def by_rule(found: Calibration) -> Table:
    """Errors of each question by number of texts."""
    head = ["question", "texts", "false yes", "false no", "undecided", "AUROC"]
    rows: list[list[Entry]] = [
        [
            _name(row.rule),
            row.n,
            Figures(share(row.false_yes, row.no)),
            Figures(share(row.false_no, row.yes)),
            Figures(share(row.undecided_no + row.undecided_yes, row.no + row.yes)),
            None if row.auroc is None else Number(row.auroc, digits=2),
        ]
        for row in found.rules
    ]
    return Table(head, rows, "Wrong and undecided answers by question and number of texts")


def by_construct(found: Calibration) -> Table:
    """What is true of each kind, and what its models were told, on most texts."""
    head = ["model", *[_name(rule) for rule in found.graded]]
    cells = {(c.construct, c.rule): c for c in found.cells}  # the last is of most texts
    most = {cell.construct: cell.n for cell in found.cells}
    rows = [
        [
            kind if n == found.texts[-1] else f"{kind} ({n} texts)",
            *[_told(cells[kind, rule], shows_all=bool(found.proofs)) for rule in found.graded],
        ]
        for kind, n in most.items()
    ]
    return Table(
        head, rows, f"Models of each kind by what they were told, on {found.texts[-1]} texts"
    )


def _told(cell: Cell, *, shows_all: bool) -> str | None:
    """What the models were told, behind the truth; without one, only where that is asked for."""
    if cell.truth is None and not shows_all:
        return None
    answers = sorted(cell.answers.items(), key=lambda pair: -pair[1])
    if cell.truth is None:
        return ", ".join(f"{answer} {models}" for answer, models in answers)
    told = [
        f"{answer} {models} (wrong)"
        if outcome_of(answer, cell.truth) == "wrong"
        else f"{answer} {models}"
        for answer, models in answers
    ]
    return f"({'yes' if cell.truth else 'no'}) {', '.join(told)}"


def by_texts(found: Calibration) -> Table:
    """Shares of right answers."""
    known = [cell for cell in found.cells if cell.truth is not None]
    head = ["question", "truth", *[f"{n} texts" for n in found.texts]]
    rows = []
    for rule in found.graded:
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
    """For each kind: what it is, its truth and the reason."""
    said: dict[str, Words | list[Words] | None] = {}
    for name in dict.fromkeys(cell.construct for cell in found.cells):
        construct = KINDS[name]
        truths = [
            f"{_name(rule)} {'yes' if truth.holds else 'no'}: {truth.why}."
            for rule, truth in _truths(name, found.proofs).items()
        ]
        said[name] = [f"{construct.says}.", *truths]
    return Facts(said)


def _name(rule: str) -> str:
    return rule if rule == WHOLE else RULES[rule].name.lower()
