"""The verb ``calibrate``: models of known truth in, errors of the verdict out."""

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from calibration.constructs import CONSTRUCTS, WHOLE, Drawn
from calibration.decoders import DECODERS, DrawnDecoder
from calibration.options import CalibrationOptions
from calibration.report import Calibration, Kind, calibration_of, write
from calibration.trained import TRAINED, Proof, Trained, proof_of
from hf_attnprobe.attention_model import AttentionModelBase, Batch
from hf_attnprobe.auditing.sweep import run_batch
from hf_attnprobe.auditing.verdict import conclusion, findings_from
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.options import Sources
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.statistics.evidence import evidence_of
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.summary import PREDICTION, predictions_of
from hf_attnprobe.statistics.verdicts import Finding
from hf_attnprobe.statistics.wording import words_of
from hf_attnprobe.storage.rows import NO_SITE, rows_of_parts
from hf_attnprobe.texts import whole_attention


logger = logging.getLogger(__name__)
TESTS = ("correlation", "permutation", "adversarial", "erasure", "input_erasure")
"""What the questions about attention need."""
MOST_SEARCHED = 12
"""Heads: of more, the search for another attention would take hours, and decides no verdict."""
TESTS_OF_ANSWERS = ("sources", "knockout", "permutation")
OPTIONS = {"sources": Sources(exact_units=0, masks=0)}
"""Of these tests: what no verdict reads is left out."""


@quiet_libraries()
def calibrate(
    output_dir: str | Path | None = None,
    *,
    options: CalibrationOptions = CalibrationOptions(),
) -> Calibration:
    """Audits models whose truth is known and counts the wrong answers.

    By default they are constructed: nothing is trained or downloaded. Each model is audited
    once, on the largest number of texts; the verdict on fewer is made of the rows of the first
    of them.

    Args:
        output_dir: where ``calibration.json``, its page, ``calibration.md`` and
            ``answers.csv``, an answer a row, go, and trained models; None writes nothing.
        options: which kinds of models, how many of each, and on how many texts.

    Returns:
        What was answered to each question, beside what is true.

    Raises:
        AttnProbeError: an unknown kind of model.
    """
    begun = time.process_time()
    answers: list[dict[str, Any]] = []
    proofs: list[Proof] = []
    with contextlib.ExitStack() as stack:
        folder = output_dir or stack.enter_context(tempfile.TemporaryDirectory())
        for name, kind in _chosen(options, Path(folder)).items():
            sizes = kind.sizes(options.n_texts)
            for number in range(options.n_draws if sizes else 0):
                seed = options.seed + number
                drawn = kind.draw(name, seed=seed, n_texts=sizes[-1])
                place = {"construct": name, "draw": number}
                answers += [place | said for said in _answers(drawn, sizes, seed)]
                if isinstance(kind, Trained) and isinstance(drawn, Drawn):
                    proofs.append(proof_of(name, number, drawn, batch_of(drawn), seed=seed))
            seconds = time.process_time() - begun
            logger.info("%s: %d models; %.0f s so far", name, options.n_draws, seconds)
    seconds = time.process_time() - begun
    found = calibration_of(pd.DataFrame(answers), options, seconds, tuple(proofs))
    if output_dir is not None:
        write(found, Path(output_dir))
    return found


def _chosen(options: CalibrationOptions, folder: Path) -> Mapping[str, Kind]:
    """The kinds of models by name; trained ones go below the folder."""
    known: Mapping[str, Kind] = DECODERS if options.decoders else CONSTRUCTS
    if options.trained:
        start, folder = options.pretrained, folder / "models"
        known = {n: replace(kind, folder=folder, start=start) for n, kind in TRAINED.items()}
    names = options.constructs
    unknown = set(names or ()) - known.keys()
    if unknown:
        raise AttnProbeError(
            f"unknown construct {', '.join(sorted(unknown))}; the known ones are {', '.join(known)}"
        )
    if names is None:
        names = [
            n for n, kind in known.items() if not (isinstance(kind, Trained) and kind.lacks_start)
        ]
    chosen = {n: kind for n, kind in known.items() if n in names}
    if not any(kind.sizes(options.n_texts) for kind in chosen.values()):
        sizes = ", ".join(map(str, options.n_texts))
        raise AttnProbeError(
            f"expected fewer texts for {', '.join(chosen)}, which cost too much on {sizes}; "
            "add --texts 30"
        )
    return chosen


def _answers(
    drawn: Drawn | DrawnDecoder, sizes: Sequence[int], seed: int
) -> Iterator[dict[str, Any]]:
    """Answers for a model, a row per question and number of texts."""
    rows = rows_of(drawn, seed=seed)
    words = words_of(asdict(drawn.adapter.prediction))
    names = drawn.adapter.label_names
    evidence, predictions = evidence_of(rows, names, words=words), predictions_of(rows)
    assert evidence is not None  # every drawn model has one attention
    for n in sizes:
        found = findings_from(
            evidence.where(evidence.texts.index < n),
            predictions.where(predictions.index < n),
            words=words,
            seed=seed,
        )
        for rule in dict.fromkeys(f.rule for f in found):
            of_rule = [f for f in found if f.rule == rule]
            answer, value = _one(of_rule)
            yield {"n": n, "rule": rule, "answer": answer, "value": value}
        answer = str(conclusion(found))
        yield {"n": n, "rule": WHOLE, "answer": answer, "value": float("nan")}


def _one(found: Sequence[Finding]) -> tuple[str, float]:
    """One answer; "partly" where the classes' answers differ, with the mean of their numbers."""
    said = {f.answer for f in found}
    answer = said.pop() if len(said) == 1 else Answer.PARTLY
    n = sum(f.n for f in found)
    return str(answer), sum(f.value * f.n for f in found) / n if n else float("nan")


def rows_of(drawn: Drawn | DrawnDecoder, *, seed: int) -> pd.DataFrame:
    """Rows of an audit of a drawn model.

    Those of :func:`hf_attnprobe.audit` with the tests of this module, without its page,
    its folder and its shown texts, in a third of the time.

    Args:
        drawn: the model and its texts.
        seed: of the audit.
    """
    if isinstance(drawn, DrawnDecoder):
        return _tested(drawn.adapter, drawn.batch, TESTS_OF_ANSWERS, seed)
    return _tested(drawn.adapter, batch_of(drawn), TESTS, seed)


def batch_of(drawn: Drawn) -> Batch:
    """All texts of a drawn model as one batch."""
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
    is_searched = len(adapter.sites()) <= MOST_SEARCHED
    chosen = [test for test in tests if is_searched or test != "adversarial"]
    site, _ = whole_attention(adapter)
    where = {test: [site] for test in chosen} | {PREDICTION: [NO_SITE]}
    return rows_of_parts([run_batch(adapter, batch, where, OPTIONS, seed)]).long()
