"""How good the model is, from a merged summary."""

import numpy as np

from hf_attnprobe.statistics.bootstrap import Estimate
from hf_attnprobe.statistics.merging.derived import GAP, RIGHT
from hf_attnprobe.statistics.merging.partial import EVERY, Partial, of_cell
from hf_attnprobe.statistics.merging.records import estimate_of
from hf_attnprobe.statistics.quality import Quality
from hf_attnprobe.statistics.shares import ONE_COLUMN, share_interval
from hf_attnprobe.statistics.summary import PREDICTION


def merged_quality(partial: Partial) -> Quality:
    """What ``quality`` says of the rows, of a model that predicts one class per text.

    Args:
        partial: of all texts, with derived columns.
    """
    every = of_cell(partial, EVERY)
    at = {key[2]: k for k, key in enumerate(every.keys) if key[1] == PREDICTION}
    sure = estimate_of(every, (PREDICTION, "probability", -1, -1))
    n = int(every.n[at["predicted_class"]]) if "predicted_class" in at else 0
    labels = [k for name, k in at.items() if name.startswith(RIGHT)]
    if not labels:
        return Quality(None, None, None, sure, None, n, 0)
    sizes, hits = every.n[labels], every.n_one[labels]
    n_labelled, n_right = int(sizes.sum()), int(hits.sum())
    first = min(labels, key=lambda k: (-every.n[k], _label(every.keys[k])))
    n_usual = int(every.n[first])
    low, high = share_interval(np.array(n_right), np.array(n_labelled)).tolist()
    gained = n_right - int(every.n_one[first])
    return Quality(
        accuracy=Estimate(n_right / n_labelled, (low, high), n_labelled),
        majority=n_usual / n_labelled,
        beyond_majority=_beyond(gained, n_usual - int(every.n_one[first]), n_labelled),
        top_probability=sure,
        calibration_error=_calibration_error(every, n_labelled),
        n=n,
        n_labelled=n_labelled,
    )


def _label(key: tuple) -> int:
    """The label that a column is of; of equally many the smallest is the majority."""
    return int(str(key[2]).removeprefix(RIGHT))


def _beyond(gained: int, lost: int, n: int) -> Estimate:
    """Accuracy less the majority's, as ``paired_share_interval`` of Bonet & Price 2012.

    Args:
        gained: texts on which only the model is right. lost: only the majority. n: all.
    """
    first, second = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    middle = first - second
    half = ONE_COLUMN * np.sqrt((first + second - middle**2) / (n + 2))
    low, high = np.clip([middle - half, middle + half], -1, 1).tolist()
    return Estimate((gained - lost) / n, (low, high), n)


def _calibration_error(every: Partial, n_labelled: int) -> float | None:
    """Σ over bins of share of texts × |accuracy − mean probability|."""
    own = [k for k, key in enumerate(every.keys) if str(key[2]).startswith(GAP)]
    if every.n[own].sum() < n_labelled:  # some have no probability
        return None
    return float(np.abs(every.n[own] * every.mean[own]).sum() / n_labelled)
