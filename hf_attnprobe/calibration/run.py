"""The public function ``calibrate``: models of known truth in, errors of the verdict out."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from hf_attnprobe.attention_model import ALL, AttentionModelBase, Batch, Site
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.subject import make_subject
from hf_attnprobe.auditing.sweep import run_batch
from hf_attnprobe.auditing.verdict import conclusion, findings
from hf_attnprobe.calibration.constructed import Drawn
from hf_attnprobe.calibration.constructs import CONSTRUCTS, WHOLE, Construct
from hf_attnprobe.calibration.options import CalibrationOptions
from hf_attnprobe.calibration.report import Calibration, calibration_of, write
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.statistics.verdicts import Answer, Finding
from hf_attnprobe.storage.rows import NO_SITE


logger = logging.getLogger(__name__)
TESTS = ("correlation", "permutation", "adversarial", "erasure", "input_erasure")
"""What the questions about attention need."""
REDRAW = 1_000_003
"""Between the seeds of two draws of a control."""


def calibrate(
    output_dir: str | Path | None = None,
    *,
    options: CalibrationOptions = CalibrationOptions(),
) -> Calibration:
    """Audits constructed models whose truth is known, and counts the wrong answers.

    Nothing is trained or downloaded. Each model is audited once, on the largest number of
    texts; the verdict on fewer is made of the rows of the first of them.

    Args:
        output_dir: where ``calibration.json``, ``calibration.md`` and ``answers.csv``, an
            answer a row, go; None writes nothing.
        options: which kinds of models, how many of each, and on how many texts.

    Returns:
        What was answered to each question, beside what is true.

    Raises:
        AttnProbeError: an unknown kind of model.
    """
    begun = time.process_time()
    chosen = _chosen(options.constructs)
    answers: list[dict[str, Any]] = []
    for name, construct in chosen.items():
        answers += _answers(name, construct, options)
        seconds = time.process_time() - begun
        logger.info("%s: %d models; %.0f s so far", name, options.n_draws, seconds)
    found = calibration_of(pd.DataFrame(answers), options, time.process_time() - begun)
    if output_dir is not None:
        write(found, Path(output_dir))
    return found


def _chosen(names: Sequence[str] | None) -> Mapping[str, Construct]:
    unknown = set(names or ()) - CONSTRUCTS.keys()
    if unknown:
        raise AttnProbeError(
            f"unknown construct {', '.join(sorted(unknown))}; the known ones are "
            f"{', '.join(CONSTRUCTS)}"
        )
    return {n: c for n, c in CONSTRUCTS.items() if names is None or n in names}


def _answers(
    name: str, construct: Construct, options: CalibrationOptions
) -> Iterator[dict[str, Any]]:
    """What is answered of each model of a kind, a row per question and number of texts."""
    sizes = construct.sizes(options.n_texts)
    for number in range(options.n_draws if sizes else 0):
        seed = options.seed + number
        drawn = construct.draw(name, seed=seed, n_texts=sizes[-1])
        rows, control = rows_of(drawn, seed=seed)
        redrawn = [
            control_rows_of(drawn, seed=seed, redraw=k + 1)
            for k in range(options.redraws)
        ]
        for n in sizes:
            first, *others = (
                _verdict(drawn, rows, rows_of_control, n, options.seed)
                for rows_of_control in (control, *redrawn)
            )
            for rule, (answer, value) in first.items():
                differ = [other[rule][0] != answer for other in others]
                yield {
                    "construct": name,
                    "draw": number,
                    "n": n,
                    "rule": rule,
                    "answer": answer,
                    "value": value,
                    "changed": sum(differ) / len(differ) if differ else float("nan"),
                }


def _verdict(
    drawn: Drawn, rows: pd.DataFrame, control: pd.DataFrame | None, n: int, seed: int
) -> dict[str, tuple[str, float]]:
    """Answer and number by question, of the first ``n`` texts; the whole has no number."""
    some = rows[rows.example_id < n]
    others = None if control is None else control[control.example_id < n]
    found = findings(some, others, drawn.adapter.label_names, seed=seed)
    rules = dict.fromkeys(f.rule for f in found)
    said = {rule: _one([f for f in found if f.rule == rule]) for rule in rules}
    return said | {WHOLE: (str(conclusion(found)), float("nan"))}


def _one(found: Sequence[Finding]) -> tuple[str, float]:
    """One answer; "partly" where those of the classes part, its number their mean."""
    said = {f.answer for f in found}
    answer = said.pop() if len(said) == 1 else Answer.PARTLY
    n = sum(f.n for f in found)
    return str(answer), sum(f.value * f.n for f in found) / n if n else float("nan")


def rows_of(drawn: Drawn, *, seed: int) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The rows of an audit of a drawn model, and of its control.

    Those of :func:`hf_attnprobe.audit` with the tests of this module, without its page,
    its folder and its shown texts, in a third of the time.

    Args:
        drawn: the model and its texts.
        seed: of the audit.
    """
    own = _tested(drawn.adapter, batch_of(drawn), seed)
    return own, control_rows_of(drawn, seed=seed)


def control_rows_of(drawn: Drawn, *, seed: int, redraw: int = 0) -> pd.DataFrame | None:
    """The rows of a drawn model's control; None where there is no control.

    Args:
        drawn: the model and its texts.
        seed: of the audit.
        redraw: 0 for the audit's own control, other numbers for other draws of it.
    """
    options = AuditOptions(seed=seed + redraw * REDRAW)
    device = torch.device("cpu")
    subject = make_subject(drawn.adapter, drawn.tokenizer, options, device)
    if subject.control is None:
        return None
    return _tested(subject.control, batch_of(drawn), seed)


def batch_of(drawn: Drawn) -> Batch:
    """All texts of a drawn model at once."""
    inputs = drawn.tokenizer(
        list(drawn.texts),
        padding=True,
        return_special_tokens_mask=True,
        return_tensors="pt",
    )
    ids = tuple(range(len(drawn.texts)))
    return drawn.adapter.prepare(inputs, ids, torch.tensor(drawn.labels))


def _tested(adapter: AttentionModelBase, batch: Batch, seed: int) -> pd.DataFrame:
    sites = adapter.sites()
    whole = sites if len(sites) == 1 else [Site(ALL, ALL)]
    where = dict.fromkeys(TESTS, whole) | {PREDICTION: [NO_SITE]}
    return run_batch(adapter, batch, where, {}, seed)
