"""The single numbers by which the field has called attention faithful, from the same texts."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.functional.erasure import compute_removal_order
from hf_attnprobe.protocol import AttentionModelBase, Batch, EditableInputs
from hf_attnprobe.statistics.rows import Texts


STEPS_AT_ONCE = 16

COLUMNS: Mapping[str, tuple[str, int]] = {
    "τ, leave-one-out": ("attention_leave_one_out_tau", 1),
    "τ, gradients": ("attention_gradient_tau", 1),
    "median Δŷ": ("median_tvd", 1),
    "ε-max JSD": ("epsilon_max_jsd@0.01", -1),
    "fraction to flip": ("fraction_to_flip@attention", -1),
    "comprehensiveness": ("comprehensiveness@attention", 1),
    "sufficiency": ("sufficiency@attention", -1),
    "normalised AOPC": ("naopc_comprehensiveness@attention", 1),
}
"""The statistic whose mean over texts each is, and its sign: more is more faithful.

Jain & Wallace 2019 (τ, median Δŷ, ε-max JSD), Serrano & Smith 2019 (fraction to flip), DeYoung et
al. 2020 (comprehensiveness, sufficiency), Edin et al. 2025 (normalised AOPC); AOPC itself, the
mean loss over every step, is that of Samek et al. 2017.
"""


def single_numbers(
    model: AttentionModelBase, batch: Batch, texts: Texts
) -> dict[str, float | None]:
    """Each number of a model, turned so that more is more faithful; None where it has none."""
    found = {
        name: sign * mean(texts.get_values(column)) for name, (column, sign) in COLUMNS.items()
    }
    found["AOPC"] = mean(aopc(model, batch).numpy())
    return {name: None if np.isnan(value) else value for name, value in found.items()}


def mean(values: np.ndarray) -> float:
    """The mean of what is known, NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def aopc(model: AttentionModelBase, batch: Batch) -> Tensor:
    """Mean loss of the predicted class as words leave one by one, most attended first, [batch]."""
    observed = model.observe(batch)
    attention = observed.read(choose_model_attention(model)[0])
    turn = compute_removal_order(attention[None], batch.content_mask)[0].argsort(-1)
    n_words = batch.content_mask.sum(-1)
    predicted = observed.probs.argmax(-1)
    before = observed.probs.gather(-1, predicted[:, None])[:, 0]
    total = torch.zeros_like(before)
    for steps in torch.arange(1, int(n_words.max()) + 1).split(STEPS_AT_ONCE):
        gone = (turn < steps[:, None, None]) & batch.content_mask
        after = model.require(EditableInputs).erase_inputs(observed, gone)
        of_predicted = after.gather(-1, predicted[None, :, None].expand(len(steps), -1, 1))
        lost = before - of_predicted[..., 0]
        total = total + (lost * (steps[:, None] <= n_words)).sum(0)
    return total / n_words


def auroc(positive: np.ndarray, negative: np.ndarray) -> float:
    """Probability that a positive number exceeds a negative one; ties count half.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    return float(compare_pairs(positive, negative).mean())


def compare_pairs(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """Compare each positive value with each negative one: 1 if it is larger, 0.5 if equal.

    Args:
        positive: Values of models that should have large ones, ``[positive]``.
        negative: Values of models that should have small ones, ``[negative]``.

    Returns:
        Comparisons ``[positive, negative]``.
    """
    return (positive[:, None] > negative) + (positive[:, None] == negative) / 2


def cross_sensitivity(values: Mapping[tuple[float, object], float]) -> float:
    """How far a number moves over a nuisance at equal p, at most.

    Args:
        values: by p and level.
    """
    ps = {p for p, _ in values}
    return max(float(np.ptp([v for (p, _), v in values.items() if p == own])) for own in ps)
