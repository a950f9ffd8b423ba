"""Notes in a report on the smallest effect that an audit would detect.

The command ``attnprobe detection-limit`` plants effects of known size in a copy of the model and
stores the measurements that these functions read.
"""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import pandas as pd

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.serialization import read_json
from hf_attnprobe.statistics.detection import (
    DetectionRule,
    compute_dose_effects,
    estimate_detection_limit,
    interpolate_effect,
    pivot_by_dose,
)
from hf_attnprobe.statistics.grades import Rule
from hf_attnprobe.statistics.heads import EFFECT_STATISTIC, PATH_SHARE_STATISTIC, build_head_rule
from hf_attnprobe.storage.folders import find_differences


DETECTION_LIMITS_FILE = "spike_in.json"
"""Name of the file in which ``attnprobe detection-limit`` stores its results.

"Spike-in" means that effects of known size were planted in the model.
"""

ROWS_FILE = "rows.csv"
"""Name of the file with the single measurements of ``attnprobe detection-limit``.

It has one row for each head, text, and size of the planted effect.
"""

REPEAT_ADVICE = "Run attnprobe detection-limit again with another folder."
"""Advice at the end of error messages about missing or damaged files."""


class DetectionLimitRecord(TypedDict):
    """Entries of ``spike_in.json``.

    Attributes:
        model: the model's name.
        fingerprints: fingerprints of model and settings, named as in an audit's identity.
        rows_sha256: SHA-256 hash of the measurements file.
    """

    model: str
    fingerprints: dict[str, str]
    rows_sha256: str


def build_detection_rule(
    statistic: str, rules: Mapping[str, Rule], *, n_heads: int, is_all_attention: bool
) -> DetectionRule:
    """Build the rule by which an audit finds that the decision depends on a head.

    Args:
        statistic: the path share, or an output change.
        rules: rules with the keys "path_share" and "effect".
        n_heads: number of heads that are compared, with simultaneous confidence intervals.
        is_all_attention: whether the head is all attention of the model. It then needs a larger
            path share than one of several heads.
    """
    if statistic != PATH_SHARE_STATISTIC:
        return DetectionRule(rules["effect"].yes, n_heads)
    rule = rules["path_share"]
    return DetectionRule((rule if is_all_attention else build_head_rule(rule)).yes, n_heads)


def describe_detection_limits(
    rows: pd.DataFrame,
    *,
    n: int,
    n_heads: int,
    is_all_attention: bool,
    rules: Mapping[str, Rule],
    seed: int,
) -> list[str]:
    """Describe how small an effect of attention can be so that an audit still detects it.

    To find out, effects of known size were planted in single heads.

    Args:
        rows: result of :func:`read_planted_rows`.
        n: number of audited texts.
        n_heads: number of heads that the audit tests.
        is_all_attention: whether the only tested head represents all attention of the model.
        rules: the audit's rules, by key.
        seed: seed for the simulated audits.

    Returns:
        A note for each head in which effects were planted.
    """
    has_path_share = (rows.statistic == PATH_SHARE_STATISTIC).any()
    statistic = PATH_SHARE_STATISTIC if has_path_share else EFFECT_STATISTIC
    rule = build_detection_rule(
        statistic, rules, n_heads=n_heads, is_all_attention=is_all_attention
    )
    result = "the head has an effect"
    if has_path_share:
        result = f"{rule.threshold:.0%} of the decision or more passes through the head"
    notes = []
    for head, head_rows in rows.groupby("head"):
        limit = _format_limit(head_rows, statistic, n, seed, rule)
        if limit:
            notes.append(
                f"Detection limit: effects of known size were planted in head {head} of a copy of this "
                f"model. An audit of {format_count(n, 'text')} finds in 95% of draws that {result} "
                f"if the head changes {limit} of the probability or more. The audit may miss smaller effects."
            )
    return notes


def read_planted_rows(folder: str | Path, identity: Mapping[str, Any]) -> pd.DataFrame:
    """Read the measurements with planted effects, and check that they fit the audit.

    Args:
        folder: output folder of ``attnprobe detection-limit``.
        identity: the audit's identity, with the fingerprints of its model.

    Returns:
        Data frame with the columns head, dose (size of the planted effect), example_id, statistic
        and value.

    Raises:
        AttnProbeError: If the folder has no such measurements, they are for another model, or the
            file has changed.
    """
    path = Path(folder) / DETECTION_LIMITS_FILE
    record = read_json(path, DetectionLimitRecord, REPEAT_ADVICE)
    differences = find_differences(identity, record["fingerprints"])
    if differences:
        raise AttnProbeError(
            f"the detection limits in {folder} do not fit this audit. They were measured for "
            f"{record['model']} with another {' and '.join(differences).replace('_', ' ')}. Run "
            "attnprobe detection-limit for the audited model."
        )
    try:
        content = (Path(folder) / ROWS_FILE).read_bytes()
    except OSError as error:
        raise AttnProbeError(
            f"cannot read the measured detection limits ({error}). {REPEAT_ADVICE}"
        ) from error
    if hashlib.sha256(content).hexdigest() != record["rows_sha256"]:
        raise AttnProbeError(
            f"{Path(folder) / ROWS_FILE} has changed since it was written. {REPEAT_ADVICE}"
        )
    return pd.read_csv(io.BytesIO(content), dtype={"head": str})


def _format_limit(
    rows: pd.DataFrame, statistic: str, n: int, seed: int, rule: DetectionRule
) -> str:
    """Format the smallest effect that an audit detects in a head, with its confidence interval.

    Args:
        rows: values for one head. The size of a planted effect is called its dose.
        statistic: statistic by which the audit detects an effect.
        n: number of audited texts.
        seed: seed for the simulated audits.
        rule: rule by which an audit detects an effect.

    Returns:
        The effect size; empty if fewer than two texts were measured with every dose.
    """
    values = pivot_by_dose(rows, statistic)
    n_texts = values.shape[1]
    if n_texts < 2:
        return ""
    # The second result (the change in log odds) is not needed.
    effects, _ = compute_dose_effects(rows, 1)
    detectable_dose = estimate_detection_limit(values, n, seed, rule)
    limit = interpolate_effect(effects, detectable_dose)
    size = markdown.format_interval(limit.effect, limit.interval, digits=3)
    if limit.interval is None:
        return f"more than {size}, the largest planted effect,"
    return size
