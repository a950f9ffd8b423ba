"""Logging of an audit's numbers and its page to TensorBoard, Weights & Biases or MLflow."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import check_known_names
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.verdicts import Finding


METRIC_PREFIX = "attention_faithfulness/"
"""Prefix of metric names in experiment trackers, as in "attention_faithfulness/effect"."""

MLFLOW_PAGE_FILE = "attention_faithfulness.html"
"""Name of the file in which MLflow stores the HTML report."""

Metrics = Mapping[str, float]
"""Values of logged metrics by name, such as ``{"attention_faithfulness/effect": 0.21}``."""

Tracker = str | Callable[[dict[str, float]], Any]
"""Name of a supported package, or a function that logs a dictionary, such as ``trainer.log``."""


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


def log_metrics(
    tracker: Tracker,
    metrics: dict[str, float],
    page: DocumentedResult,
    step: int | None,
) -> None:
    """Log metrics and the report to an experiment tracker, such as TensorBoard.

    Args:
        tracker: name of a supported package, or a function that logs a dictionary.
        metrics: metric values by name.
        page: the report. It is not logged if the tracker is a function.
        step: training step; None if unknown.

    Raises:
        AttnProbeError: If the tracker is unknown or its package is not installed.
    """
    if not isinstance(tracker, str):
        tracker(metrics)
        return
    check_known_names("tracker", [tracker], TRACKERS)
    try:
        TRACKERS[tracker](metrics, page, step)
    except ModuleNotFoundError as error:
        raise AttnProbeError(
            f"tracker '{tracker}' needs the package {error.name}. Install it with "
            f"'pip install {error.name}'."
        ) from error


def _log_to_tensorboard(metrics: Metrics, page: DocumentedResult, step: int | None) -> None:
    """Log metrics to TensorBoard, and the report as Markdown text.

    The folder is the environment variable ``TENSORBOARD_LOGGING_DIR``, or ``runs`` by default.
    """
    writer = import_module("torch.utils.tensorboard").SummaryWriter
    with writer(os.getenv("TENSORBOARD_LOGGING_DIR")) as run:
        for name, value in metrics.items():
            run.add_scalar(name, value, step)
        run.add_text(f"{METRIC_PREFIX}report", page.to_markdown(), step)


def _log_to_wandb(metrics: Metrics, page: DocumentedResult, step: int | None) -> None:
    """Log metrics and the report's HTML page to Weights & Biases.

    They are added to the active run, or else to a new run in the project ``WANDB_PROJECT``.
    """
    wandb = import_module("wandb")
    active_run = wandb.run
    # An active run stays open, but a new run is finished after logging.
    run_context = nullcontext(active_run) if active_run else wandb.init()
    with run_context as run:
        run.log({**metrics, f"{METRIC_PREFIX}page": wandb.Html(page.to_html())}, step=step)


def _log_to_mlflow(metrics: Metrics, page: DocumentedResult, step: int | None) -> None:
    """Log metrics and the report's HTML page to MLflow: to the active run, or else to a new run."""
    mlflow = import_module("mlflow")
    active_run = mlflow.active_run()
    # An active run stays open, but a new run is finished after logging.
    run_context = nullcontext(active_run) if active_run else mlflow.start_run()
    with run_context:
        mlflow.log_metrics(dict(metrics), step=step)
        mlflow.log_text(page.to_html(), MLFLOW_PAGE_FILE)


TRACKERS = {
    "tensorboard": _log_to_tensorboard,
    "wandb": _log_to_wandb,
    "mlflow": _log_to_mlflow,
}
"""Maps the name of an experiment tracker to the function that logs metrics and the report to it."""
