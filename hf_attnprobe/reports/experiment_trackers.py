"""An audit's numbers as metrics for experiment trackers, which Accelerate or the caller writes to.

Accelerate supports TensorBoard, Weights & Biases, trackio, MLflow and others, so this package has no
code for single trackers.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.verdicts import Finding


logger = logging.getLogger(__name__)

METRIC_PREFIX = "attention_faithfulness/"
"""Prefix of metric names in experiment trackers, as in "attention_faithfulness/effect"."""

Tracker: TypeAlias = "Accelerator | GeneralTracker | Callable[..., Any]"
"""An ``Accelerator`` with active trackers, one of Accelerate's trackers, or a function that logs a
dictionary, such as ``trainer.log``."""


def collect_metrics(findings: Sequence[Finding]) -> dict[str, float]:
    """Return the findings about attention as metrics for an experiment tracker.

    Args:
        findings: the audit's findings.

    Returns:
        Value, interval ends and text count for each question, by metric name.
    """
    metrics: dict[str, float] = {}
    for finding in findings:
        if finding.is_about_attention and finding.n >= MIN_DISPLAYED_TEXTS:
            estimate = Estimate(finding.value, finding.ci95, finding.n)
            metrics |= expand_estimate(METRIC_PREFIX + finding.rule, estimate)
    return metrics


def expand_estimate(name: str, estimate: Estimate) -> dict[str, float]:
    """Convert an estimate to metrics: value, interval ends, and text count.

    Args:
        name: metric name; the suffixes "_low", "_high" and "_n" are added.
        estimate: the estimate; values that are not finite are omitted.
    """
    if not estimate.n:
        return {}
    low, high = estimate.ci95 or (math.nan, math.nan)
    metrics = {name: estimate.value, f"{name}_low": low, f"{name}_high": high}
    finite_metrics = {key: value for key, value in metrics.items() if math.isfinite(value)}
    return finite_metrics | {f"{name}_n": estimate.n}


def log_metrics(tracker: Tracker, metrics: dict[str, float], step: int | None) -> None:
    """Log metrics to an experiment tracker, such as trackio.

    Args:
        tracker: an ``Accelerator``, one of Accelerate's trackers, or a function that logs a
            dictionary.
        metrics: metric values by name.
        step: training step; None to log without a step.

    Raises:
        AttnProbeError: If the tracker is of another type, or the ``Accelerator`` has no active
            tracker.
    """
    if isinstance(tracker, Accelerator) and not tracker.trackers:
        # Accelerate ignores trackers whose package is missing, and would log nothing.
        raise AttnProbeError(
            "the Accelerator has no active tracker. Install the package of the tracker that you "
            "pass as log_with, and call accelerator.init_trackers(project) before log_to."
        )
    log = tracker.log if isinstance(tracker, Accelerator | GeneralTracker) else tracker
    if not callable(log):
        raise AttnProbeError(
            "log_to expects an accelerate.Accelerator, one of its trackers, or a function that "
            f"logs a dict, got {tracker!r}. For a tracker by name, use "
            "Accelerator(log_with=name) and accelerator.init_trackers(project)."
        )
    if not metrics:
        logger.warning(
            "log_to logs no number, because no question was measured on at least %d texts",
            MIN_DISPLAYED_TEXTS,
        )
    if step is None:
        log(metrics)
    else:
        log(metrics, step=step)
