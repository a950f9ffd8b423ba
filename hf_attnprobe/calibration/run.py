"""The public function ``calibrate``: models of known truth in, errors of the verdict out."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from hf_attnprobe.attention_model import ALL, AttentionModelBase, Batch, Site
from hf_attnprobe.auditing.control import reassigned
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.sweep import CONTROLLED, read_by_verdict, run_batch
from hf_attnprobe.auditing.verdict import conclusion, findings_from
from hf_attnprobe.calibration.constructed import Drawn
from hf_attnprobe.calibration.constructs import CONSTRUCTS, WHOLE, Construct
from hf_attnprobe.calibration.options import CalibrationOptions
from hf_attnprobe.calibration.report import Calibration, calibration_of, write
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.options import InputErasure
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.statistics.evidence import evidence_of
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.summary import DRAW, PREDICTION, predictions_of
from hf_attnprobe.statistics.verdicts import Finding
from hf_attnprobe.storage.rows import NO_SITE


logger = logging.getLogger(__name__)
TESTS = ("correlation", "permutation", "adversarial", "erasure", "input_erasure")
"""What the questions about attention need."""
OPTIONS = read_by_verdict({"input_erasure": InputErasure()})
"""Of these tests: what no verdict reads is left out."""


@quiet_libraries()
def calibrate(
    output_dir: str | Path | None = None,
    *,
    options: CalibrationOptions = CalibrationOptions(),
) -> Calibration:
    """Audits constructed models whose truth is known, and counts the wrong answers.

    Nothing is trained or downloaded. Each model is audited once, on the largest number of
    texts; the verdict on fewer is made of the rows of the first of them.

    Args:
        output_dir: where ``calibration.json``, its page, ``calibration.md`` and
            ``answers.csv``, an answer a row, go; None writes nothing.
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
        evidence, predictions = evidence_of(rows, control), predictions_of(rows)
        assert evidence is not None  # every drawn model has one attention
        for n in sizes:
            first = predictions.index[predictions.index < n]
            found = findings_from(
                evidence.of(first),
                predictions.loc[first],
                drawn.adapter.label_names,
                seed=seed,
            )
            place = {"construct": name, "draw": number, "n": n}
            for rule in dict.fromkeys(f.rule for f in found):
                of_rule = [f for f in found if f.rule == rule]
                answer, value = _one(of_rule)
                changed = of_rule[0].other_draws
                yield place | {
                    "rule": rule,
                    "answer": answer,
                    "value": value,
                    "changed": float("nan") if changed is None else changed,
                }
            whole = {"rule": WHOLE, "answer": str(conclusion(found))}
            yield place | whole | {"value": float("nan"), "changed": float("nan")}


def _one(found: Sequence[Finding]) -> tuple[str, float]:
    """One answer; "partly" where those of the classes part, its number their mean."""
    said = {f.answer for f in found}
    answer = said.pop() if len(said) == 1 else Answer.PARTLY
    n = sum(f.n for f in found)
    return str(answer), sum(f.value * f.n for f in found) / n if n else float("nan")


def rows_of(drawn: Drawn, *, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of an audit of a drawn model, and of all draws of its control.

    Those of :func:`hf_attnprobe.audit` with the tests of this module, without its page,
    its folder and its shown texts, in a third of the time.

    Args:
        drawn: the model and its texts.
        seed: of the audit.
    """
    adapter, batch = drawn.adapter, batch_of(drawn)
    own = _tested(adapter, batch, TESTS, seed)
    draws = reassigned(adapter, AuditOptions(seed=seed))
    control = [
        _tested(draw, batch, CONTROLLED, seed).assign(**{DRAW: number})
        for number, draw in enumerate(draws)
    ]
    return own, pd.concat(control, ignore_index=True)


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


def _tested(
    adapter: AttentionModelBase, batch: Batch, tests: Sequence[str], seed: int
) -> pd.DataFrame:
    sites = adapter.sites()
    whole = sites if len(sites) == 1 else [Site(ALL, ALL)]
    where = dict.fromkeys(tests, whole) | {PREDICTION: [NO_SITE]}
    return run_batch(adapter, batch, where, OPTIONS, seed)
