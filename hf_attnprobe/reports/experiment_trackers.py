"""The numbers of an audit, and its page, in the tracker of experiments that has the training."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import check_known
from hf_attnprobe.documents.formats import Documented
from hf_attnprobe.statistics.estimates import MIN_SHOWN, Estimate
from hf_attnprobe.statistics.verdicts import Finding


GROUP = "attention_faithfulness/"
PAGE = "attention_faithfulness.html"
Numbers = Mapping[str, float]
Tracker = str | Callable[[dict[str, float]], Any]
"""The name of a package, or what logs a dict of numbers, as ``trainer.log`` does."""


def numbers_by_name(findings: Sequence[Finding]) -> dict[str, float]:
    """Returns the number of each question about attention with its interval and texts, by name."""
    numbers: dict[str, float] = {}
    for found in findings:
        if found.is_about_attention and found.n >= MIN_SHOWN:
            estimate = Estimate(found.value, found.ci95, found.n)
            numbers |= with_interval(GROUP + found.rule, estimate)
    return numbers


def with_interval(key: str, estimate: Estimate) -> dict[str, float]:
    """Returns a number with the ends of its interval and its texts; without undefined ones."""
    if not estimate.n:
        return {}
    low, high = estimate.ci95 or (math.nan, math.nan)
    found = {key: estimate.value, f"{key}_low": low, f"{key}_high": high}
    numbers = {name: value for name, value in found.items() if math.isfinite(value)}
    return numbers | {f"{key}_n": estimate.n}


def log_to(
    tracker: Tracker,
    numbers: dict[str, float],
    page: Documented,
    step: int | None,
) -> None:
    """Logs numbers; to a tracker by its name the page too.

    Raises:
        AttnProbeError: a name that is not known, or a package that is not installed.
    """
    if not isinstance(tracker, str):
        tracker(numbers)
        return
    check_known("tracker", [tracker], TRACKERS)
    try:
        TRACKERS[tracker](numbers, page, step)
    except ModuleNotFoundError as error:
        raise AttnProbeError(
            f"expected the package {tracker}, {error.name} is not installed; pip install {error.name}"
        ) from error


def _to_tensorboard(numbers: Numbers, page: Documented, step: int | None) -> None:
    """Logs to ``TENSORBOARD_LOGGING_DIR``, else to ``runs``; TensorBoard shows Markdown."""
    writer = import_module("torch.utils.tensorboard").SummaryWriter
    with writer(os.getenv("TENSORBOARD_LOGGING_DIR")) as run:
        for name, value in numbers.items():
            run.add_scalar(name, value, step)
        run.add_text(f"{GROUP}report", page.to_markdown(), step)


def _to_wandb(numbers: Numbers, page: Documented, step: int | None) -> None:
    """Logs to the run that is open, else to one of its own in ``WANDB_PROJECT``."""
    wandb = import_module("wandb")
    opened = wandb.run
    with nullcontext(opened) if opened else wandb.init() as run:
        run.log({**numbers, f"{GROUP}page": wandb.Html(page.to_html())}, step=step)


def _to_mlflow(numbers: Numbers, page: Documented, step: int | None) -> None:
    """Logs to the run that is open, else to one of its own."""
    mlflow = import_module("mlflow")
    opened = mlflow.active_run()
    with nullcontext(opened) if opened else mlflow.start_run():
        mlflow.log_metrics(dict(numbers), step=step)
        mlflow.log_text(page.to_html(), PAGE)


TRACKERS = {
    "tensorboard": _to_tensorboard,
    "wandb": _to_wandb,
    "mlflow": _to_mlflow,
}
