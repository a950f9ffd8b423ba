"""Coverage of faithfulness's 95% interval: how often it holds what a large pool of texts says.

The texts of a pool are measured once; samples are drawn from their rows with replacement, so no
model runs in the loop. The standard temperature is the pool's, as an audit finds it once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.truth.kinds import EVERY_KIND
from benchmarks.truth.measure import rows_of, texts_of
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scale import CLASSIFIER_PARTS, Part, compute_faithfulness


POOLS = ("retrieval", "last word", "graded", "behind a mark", "right in 50%")
N_POOL = 3000
SIZES = (30, 100, 500)
N_DRAWS = 2000


def pool_of(name: str, *, seed: int = 0, n_texts: int = N_POOL) -> dict[str, np.ndarray]:
    """What faithfulness is made of, for every text of a pool, by statistic."""
    model, batch = EVERY_KIND[name].draw(name, seed=seed, n_texts=n_texts)
    rows = rows_of(model, batch, seed=seed, tests=("scale", "exchange", "erasure"))
    texts = texts_of(rows)
    return {
        column: texts.get_values(column) for part in CLASSIFIER_PARTS for column in columns_of(part)
    }


def columns_of(part: Part) -> list[str]:
    """The statistics that a part of attention's faithfulness is made of."""
    return [*part.format_statistic_names("attention"), *filter(None, [part.reach_statistic])]


def sampled(pool: Mapping[str, np.ndarray], places: np.ndarray) -> Texts:
    """The texts at some places of a pool; a place may come several times."""
    return Texts(
        len(places), lambda: np.arange(len(places)), tuple(pool), lambda name: pool[name][places]
    )


def coverage(pool: Mapping[str, np.ndarray], *, seed: int, n_draws: int = N_DRAWS) -> pd.DataFrame:
    """Share of samples whose interval holds the pool's faithfulness, a row per size."""
    n_pool = len(next(iter(pool.values())))
    truth = compute_faithfulness(sampled(pool, np.arange(n_pool))).score.value
    draws = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for n in SIZES:
        samples = (sampled(pool, draws.integers(n_pool, size=n)) for _ in range(n_draws))
        ends = np.array([compute_faithfulness(texts).score.ci95 for texts in samples])
        low, high = ends.T
        inside = (low <= truth) & (truth <= high)
        below, above = (truth < low).mean(), (truth > high).mean()
        rows.append(
            {"n": n, "truth": truth, "inside": inside.mean(), "below": below, "above": above}
        )
    return pd.DataFrame(rows)
