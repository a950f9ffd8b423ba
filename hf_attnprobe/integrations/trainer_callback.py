"""Audits during training: a callback for Transformers' Trainer."""

import contextlib
import dataclasses
import logging
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.api import audit
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import Asked
from hf_attnprobe.data.specs import Answers, Data, as_data
from hf_attnprobe.reports.experiment_trackers import GROUP, with_interval
from hf_attnprobe.reports.report import Report
from hf_attnprobe.statistics.summary import site_of_model


logger = logging.getLogger(__name__)
PREFIX = f"eval_{GROUP}"
SCORE = "faithfulness"
LOGGED = (
    SCORE,
    "attention_leave_one_out_tau",
    "attention_gradient_tau",
    "max_attention",
    "median_tvd",
    "standard_tvd",
    "uniform_tvd",
    "zero_tvd",
    "share_of_largest@0.01",
    "contextual_gain",
    "source_found@attention",
)
"""The score, and statistics that are logged where their test runs."""
CHEAP = ("scale", "permutation")
"""Tests of a classifier that is in training."""
REHEARSED = 2  # texts that are audited before the training, to hear of mistakes early


class AttentionFaithfulnessCallback(TrainerCallback):
    """Audits a small sample of texts at evaluations and logs the results.

        trainer = Trainer(model, arguments, processing_class=tokenizer, …)
        AttentionFaithfulnessCallback(data["validation"]).add_to(trainer)

    They go through the Trainer's log, so to its history and to all that ``report_to``
    names, as ``eval_attention_faithfulness/faithfulness`` (0 a random order of the tokens, 1
    the best one) and ``eval_attention_faithfulness/TEST.STATISTIC`` with ``_low`` and
    ``_high``, the ends of the 95% interval over the texts, and ``_n``, the texts behind it. Of a
    model with several heads they are of all its attention edited at once. The training
    is the same with and without the callback, to the last bit.

    Args:
        dataset: as :func:`~hf_attnprobe.audit` takes it.
        tests: names of tests, or their options. None: scale and permutation, of a language
            model's answers those of an audit.
        options: of the audit. None audits a model with several heads without single ones.
        every: an audit at each so manieth evaluation, beginning with the first.
        limit: texts, drawn by a hash of their ids, the same at each audit; a
            :class:`~hf_attnprobe.Data` with a ``test_limit`` has its own.
        statistics: names of those that are logged.
        tokenizer: that of the model; None takes the Trainer's ``processing_class``.
    """

    def __init__(
        self,
        dataset: Any,
        tests: Asked | None = None,
        *,
        options: AuditOptions | None = None,
        every: int = 1,
        limit: int = 50,
        statistics: Sequence[str] | str = LOGGED,
        tokenizer: Any = None,
    ) -> None:
        if every < 1:
            raise AttnProbeError(
                f"expected an audit at each 1st, 2nd, … evaluation, got every={every}; "
                "give 1 or more"
            )
        data = as_data(dataset)
        self.data = dataclasses.replace(data, test_limit=data.test_limit or limit)
        of_answers = isinstance(data, Answers)
        self.tests = tests or (None if of_answers else CHEAP)
        self.options = options
        self.every = every
        names = [statistics] if isinstance(statistics, str) else statistics
        self.statistics: tuple[str, ...] = tuple(names)
        self.tokenizer = tokenizer
        self.trainer: Trainer | None = None
        self.report: Report | None = None
        self._n_evaluations = 0
        self._last_step: int | None = None

    def add_to(self, trainer: Trainer) -> "AttentionFaithfulnessCallback":
        """Adds this callback to a Trainer and logs through it.

        A callback sees no Trainer, and those of ``report_to`` are called before it, so
        that only the Trainer's own log reaches them.

        Raises:
            AttnProbeError: the weights are spread over processes.
        """
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise AttnProbeError(
                "expected a model that is whole on every process, FSDP and DeepSpeed "
                "spread its weights; leave the callback out and audit the checkpoints"
            )
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """Refuses ``callbacks=[…]``: a callback added that way cannot log."""
        self._log({})

    def _log(self, numbers: dict[str, float]) -> None:
        if self.trainer is None:
            raise AttnProbeError(
                "expected a callback that knows its Trainer, got it in callbacks=[…] or "
                "add_callback; call AttentionFaithfulnessCallback(…).add_to(trainer) "
                "instead"
            )
        if numbers:
            self.trainer.log(numbers)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        **known: Any,
    ) -> None:
        """Audits two texts, so that errors come before the training."""
        self._log({})
        self._n_evaluations, self._last_step = 0, None
        screened = self.options is not None and self.options.screen is not None
        if not screened:  # a screen needs both halves of the texts
            few = dataclasses.replace(self.data, test_limit=REHEARSED)
            report = self._audit(few, model, args, known.get("processing_class"))
            self._check_statistics(report)
        if args.eval_strategy == "no":
            logger.warning(
                "this Trainer does not evaluate while it trains, so attention is not "
                "audited; set eval_strategy to steps or epoch"
            )

    def _check_statistics(self, report: Report) -> None:
        """Refuses names of statistics that would never be logged."""
        there = dict.fromkeys([SCORE, *(s.statistic for s in report.statistics)])
        if there.keys().isdisjoint(self.statistics):
            raise AttnProbeError(
                f"expected statistics of the tests, got {', '.join(self.statistics)}; "
                f"there are {', '.join(there)}"
            )

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        **known: Any,
    ) -> None:
        """Audits and logs, once per step whatever number of data sets is evaluated."""
        if state.global_step == self._last_step:
            return
        self._last_step = state.global_step
        turn, self._n_evaluations = self._n_evaluations, self._n_evaluations + 1
        if turn % self.every:
            return
        reads = known.get("processing_class")
        self.report = self._audit(self.data, model, args, reads)
        self._log(logged(self.report, self.statistics))

    def _audit(self, data: Data, model: nn.Module, args: Any, reads: Any) -> Report:
        """Audits; every process takes its share of the texts and gets the whole report."""
        with unchanged(model), _meeting_place(Path(args.output_dir)) as folder:
            return audit(
                model,
                data,
                self.tests,
                options=self.options or _options_for(model),
                output_dir=folder,
                tokenizer=self.tokenizer or reads,
                progress=False,
            )


def logged(report: Report, names: Sequence[str]) -> dict[str, float]:
    """Means of the named statistics over all texts, for all the model's attention.

    Where single heads alone were audited, layer and head follow the name. Undefined means
    are left out. Trackers refuse an @, so a dot stands for it.
    """
    place = site_of_model(report.rows)
    numbers = with_interval(PREFIX + SCORE, report.score) if SCORE in names else {}
    for s in report.statistics:
        at = (s.layer, s.head)
        if s.group != "all" or s.statistic not in names or place not in (None, at):
            continue
        key = f"{PREFIX}{s.test}.{s.statistic}".replace("@", ".")
        key += f".{s.layer}.{s.head}" if place is None else ""
        numbers |= with_interval(key, s)
    return numbers


def _options_for(model: nn.Module) -> AuditOptions:
    """Cheap options: of several heads only all of them at once."""
    single = len(wrap(model).sites()) == 1
    return AuditOptions(prune=False, single_heads=single)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restores the modes of a model's modules and all random states on leaving."""
    modes = [(module, module.training) for module in model.modules()]
    states = random_states()
    try:
        yield
    finally:
        restore(states)
        for module, mode in modes:
            module.training = mode


def random_states() -> Mapping[str, Any]:
    """States of all random generators that a training uses."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore(states: Mapping[str, Any]) -> None:
    """Restores what :func:`random_states` returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])


@contextlib.contextmanager
def _meeting_place(output_dir: Path) -> Iterator[Path | None]:
    """A folder where several processes collect their rows; None for one process."""
    state = process_state()
    if state.num_processes == 1:
        yield None
        return
    folder = output_dir / ".attention_faithfulness"
    _clear(folder)
    yield folder
    _clear(folder)


def _clear(folder: Path) -> None:
    """Deletes a folder; every process waits until it is gone."""
    state = process_state()
    state.wait_for_everyone()
    if state.is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
    state.wait_for_everyone()
