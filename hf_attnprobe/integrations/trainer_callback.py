"""Audits during training, with a callback for the Transformers Trainer.

Start reading at :class:`AttentionFaithfulnessCallback`.
"""

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
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import TestSelection
from hf_attnprobe.data.specs import Answers, Data, make_data
from hf_attnprobe.reports.experiment_trackers import METRIC_PREFIX, expand_estimate
from hf_attnprobe.reports.report import Report
from hf_attnprobe.statistics.summary import find_model_site


logger = logging.getLogger(__name__)
LOG_PREFIX = f"eval_{METRIC_PREFIX}"
"""Prefix of the names of all logged results: ``eval_attention_faithfulness/``.

The Trainer treats only results with ``eval_`` in front as evaluation results.
"""
SCORE_NAME = "faithfulness"
"""Name of the faithfulness score in the logs, without the prefix."""
DEFAULT_STATISTICS = (
    SCORE_NAME,
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
"""Names of the results that are logged by default: the faithfulness score and some statistics.

A statistic is logged only if its test is part of the audit.
"""
CLASSIFIER_TESTS = ("scale", "permutation")
"""Tests that run by default if the Trainer trains a classifier.

Both are fast, so they delay the training only a little.
"""
N_TRIAL_TEXTS = 2
"""Number of texts in the trial audit before training, so that errors in the setup appear early."""


class AttentionFaithfulnessCallback(TrainerCallback):
    """Trainer callback that audits a small sample of texts at evaluations, and logs the results.

    The Trainer writes the results to its history and to all trackers in ``report_to``:

    - ``eval_attention_faithfulness/faithfulness`` is the faithfulness score: 0 for a random token order,
      1 for the best order.
    - ``eval_attention_faithfulness/TEST.STATISTIC`` is the mean of a statistic. The suffixes ``_low`` and
      ``_high`` denote the bounds of its 95% confidence interval, and ``_n`` the number of texts.

    If a model has several heads, the tests change the attention of all heads together. The callback does
    not change the training: the weights are the same to the last bit.

    Args:
        dataset: Data set as in :func:`~hf_attnprobe.audit`.
        tests: Test names, or their options. The default is `CLASSIFIER_TESTS` for classifiers, and
            the default tests of an audit for language models.
        options: Audit options. By default, single heads are not tested.
        every: Interval between audits, in evaluations; the first evaluation always has an audit.
        limit: Number of texts. They are selected by a hash of their ids, so every audit uses the same
            texts. ``test_limit`` of a :class:`~hf_attnprobe.Data` takes precedence.
        statistics: Names of statistics to log.
        tokenizer: A tokenizer; None for the Trainer's ``processing_class``.

    Raises:
        AttnProbeError: ``every`` is less than 1.

    Example:
        trainer = Trainer(model, arguments, processing_class=tokenizer, …)
        AttentionFaithfulnessCallback(data["validation"]).add_to(trainer)
    """

    def __init__(
        self,
        dataset: Any,
        tests: TestSelection | None = None,
        *,
        options: AuditOptions | None = None,
        every: int = 1,
        limit: int = 50,
        statistics: Sequence[str] | str = DEFAULT_STATISTICS,
        tokenizer: Any = None,
    ) -> None:
        if every < 1:
            raise AttnProbeError(f"every must be at least 1, got {every}")
        data = make_data(dataset)
        self.data = dataclasses.replace(data, test_limit=data.test_limit or limit)
        default_tests = None if isinstance(data, Answers) else CLASSIFIER_TESTS
        self.tests = tests or default_tests
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
        """Add this callback to a Trainer, so that it can log its results.

        ``callbacks=[…]`` is not enough: a callback does not know its Trainer, and only
        ``Trainer.log`` can send results to trackers after an evaluation.

        Args:
            trainer: The Trainer that runs the audits.

        Returns:
            This callback.

        Raises:
            AttnProbeError: FSDP or DeepSpeed splits the weights between processes.
        """
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise AttnProbeError(
                "attention cannot be audited during training with FSDP or DeepSpeed, because they "
                "split the weights between processes. Remove this callback, and audit the saved "
                "checkpoints instead."
            )
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def on_init_end(self, *_: Any, **__: Any) -> None:
        """Raise an error if the callback was passed in ``callbacks=[…]``."""
        self._get_trainer()

    def _get_trainer(self) -> Trainer:
        """Return the Trainer, or raise an error if :meth:`add_to` was not called."""
        if self.trainer is None:
            raise AttnProbeError(
                "AttentionFaithfulnessCallback cannot log its results if it is added with "
                "callbacks=[…] or add_callback. Call "
                "AttentionFaithfulnessCallback(…).add_to(trainer) instead."
            )
        return self.trainer

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Audit two texts for a trial, so that errors appear before the training starts."""
        self._get_trainer()
        self._n_evaluations, self._last_step = 0, None
        # The option screen, which selects heads on one half of the texts for the other half, needs
        # more than two texts.
        has_screen = self.options is not None and self.options.screen is not None
        if not has_screen:
            sample = dataclasses.replace(self.data, test_limit=N_TRIAL_TEXTS)
            report = self._audit(sample, model, args, kwargs.get("processing_class"))
            self._check_statistics(report)
        if args.eval_strategy == "no":
            logger.warning(
                "attention is not audited, because this Trainer does not evaluate during training. "
                "Set eval_strategy to 'steps' or 'epoch'."
            )

    def _check_statistics(self, report: Report) -> None:
        """Raise an error if none of the requested statistics was computed."""
        computed_names = [statistic.statistic for statistic in report.statistics]
        available_names = dict.fromkeys([SCORE_NAME, *computed_names])
        if available_names.keys().isdisjoint(self.statistics):
            raise AttnProbeError(
                f"unknown statistics {', '.join(self.statistics)}. Choose from "
                f"{', '.join(available_names)}."
            )

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Audit the model after an evaluation, and log the results.

        If several data sets are evaluated at the same step, the model is audited only once.
        """
        if state.global_step == self._last_step:
            return
        self._last_step = state.global_step
        # Only every k-th evaluation has an audit, where k is the argument `every`.
        evaluation_number = self._n_evaluations
        self._n_evaluations += 1
        if evaluation_number % self.every:
            return
        self.report = self._audit(self.data, model, args, kwargs.get("processing_class"))
        numbers = select_logged_numbers(self.report, self.statistics)
        trainer = self._get_trainer()
        if numbers:
            trainer.log(numbers)

    def _audit(self, data: Data, model: nn.Module, args: Any, processing_class: Any) -> Report:
        """Audit the model. Each process audits a part of the texts and gets the full report."""
        with preserve_state(model), _create_shared_folder(Path(args.output_dir)) as folder:
            return audit(
                model,
                data,
                self.tests,
                options=self.options or _choose_options(model),
                output_dir=folder,
                tokenizer=self.tokenizer or processing_class,
                progress=False,
            )


def select_logged_numbers(report: Report, names: Sequence[str]) -> dict[str, float]:
    """Select the numbers to log from a report: means with their confidence intervals.

    Args:
        report: The report.
        names: Statistic names to log.

    Returns:
        Means over all texts, by logged name. They describe all heads together; if only single heads were
        audited, each name ends in layer and head. Undefined means are omitted. A dot replaces @ in
        names, because trackers do not accept @.
    """
    model_site = find_model_site(report.rows)
    numbers: dict[str, float] = {}
    if SCORE_NAME in names:
        numbers |= expand_estimate(LOG_PREFIX + SCORE_NAME, report.score)
    for statistic in report.statistics:
        if statistic.group != "all" or statistic.statistic not in names:
            continue
        # If there are results for all heads together, results for single heads are skipped.
        if model_site not in (None, (statistic.layer, statistic.head)):
            continue
        name = f"{LOG_PREFIX}{statistic.test}.{statistic.statistic}".replace("@", ".")
        if model_site is None:
            name += f".{statistic.layer}.{statistic.head}"
        numbers |= expand_estimate(name, statistic)
    return numbers


def _choose_options(model: nn.Module) -> AuditOptions:
    """Choose options for a fast audit. Several heads are tested together, not one by one."""
    has_one_site = len(wrap(model).sites()) == 1
    return AuditOptions(prune=False, single_heads=has_one_site)


@contextlib.contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Restore a model's training modes and all random states at the end of a ``with`` block.

    Args:
        model: The model.
    """
    modes = [(module, module.training) for module in model.modules()]
    states = get_random_states()
    try:
        yield
    finally:
        set_random_states(states)
        for module, mode in modes:
            module.training = mode


def get_random_states() -> Mapping[str, Any]:
    """Return the states of all random generators that training can use, by library."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set the states of all random generators to earlier ones.

    Args:
        states: Result of :func:`get_random_states`.
    """
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])


@contextlib.contextmanager
def _create_shared_folder(output_dir: Path) -> Iterator[Path | None]:
    """Yield a temporary folder in which several processes collect their rows.

    Yields:
        The folder; None if there is only one process.
    """
    state = get_process_state()
    if state.num_processes == 1:
        yield None
        return
    folder = output_dir / ".attention_faithfulness"
    # An interrupted training can leave an old folder.
    _delete_folder(folder)
    yield folder
    _delete_folder(folder)


def _delete_folder(folder: Path) -> None:
    """Delete a folder in the main process, and wait in every process until it is deleted."""
    state = get_process_state()
    # Before the deletion, wait until no process uses the folder any more.
    state.wait_for_everyone()
    if state.is_main_process:
        shutil.rmtree(folder, ignore_errors=True)
    state.wait_for_everyone()
