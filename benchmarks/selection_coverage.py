"""Does the interval of the largest head cover the truth? A large audit stands for the population.

    attnprobe audit --model minilm-sst --dataset sst --split test --tests uniform_attention --output-dir large
    OMP_NUM_THREADS=1 python benchmarks/selection_coverage.py --audit large --statistic uniform_tvd

Samples of 200 texts are drawn from it with replacement. Of each the head with the largest mean is chosen, and asked is
whether its interval has the mean of the population: the interval that is simultaneous over all heads, and the head's own
(mean ± 1.96 standard errors). Bar: at least 95% for the first.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from hf_attnprobe.statistics.estimates import (
    CONFIDENCE_LEVEL,
    SINGLE_CRITICAL_VALUE,
    compute_interval_at_critical_value,
    estimate_critical_value,
)
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.storage.rows import read_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audit", type=Path, required=True)
    parser.add_argument("--statistic", default="uniform_tvd")
    parser.add_argument("--n-texts", type=int, default=200)
    parser.add_argument("--n-samples", type=int, default=2000)
    parser.add_argument("--n-draws", type=int, default=1000)
    args = parser.parse_args()

    population = Rows.coerce(read_rows(args.audit / "rows")).build_head_frame(args.statistic)
    values = population.to_numpy()
    truth = np.nanmean(values, axis=0)
    top = truth.argmax()
    print(
        f"{args.statistic}: {values.shape[0]} texts, {values.shape[1]} heads; largest "
        f"{'.'.join(map(str, population.columns[top]))} with {truth[top]:.4f}"
    )
    generator = np.random.default_rng(0)
    covered, everywhere, below = np.zeros(2), np.zeros(2), np.zeros(2)
    excess, chosen, critical = [], [], []
    for _ in range(args.n_samples):
        rows = generator.integers(0, len(values), args.n_texts)
        sample = values[rows]
        means = np.nanmean(sample, axis=0)
        best = int(means.argmax())
        critical.append(estimate_critical_value(sample, n_draws=args.n_draws))
        for k, standard_errors in enumerate((critical[-1], SINGLE_CRITICAL_VALUE)):
            low, high = compute_interval_at_critical_value(sample, standard_errors)
            inside = (low <= truth) & (truth <= high)
            covered[k] += inside[best]
            everywhere[k] += inside.all()
            below[k] += (low <= truth).all()
        excess.append(means[best] - truth[best])
        chosen.append(best)
    print(f"samples {args.n_samples} of {args.n_texts} texts")
    print(f"the chosen head is the population's: {np.mean(np.equal(chosen, top)):.1%}")
    print(f"its mean is too large by {np.mean(excess):+.4f} on average")
    for k, name in enumerate(("simultaneous", "each for itself")):
        shares = np.array([covered[k], everywhere[k], below[k]]) / args.n_samples
        print(
            f"{name}: covers the chosen head {shares[0]:.1%}, all heads {shares[1]:.1%}; "
            f"its low ends are right for all heads {shares[2]:.1%}"
        )
    found = np.mean(critical)
    n_independent = np.log(CONFIDENCE_LEVEL) / np.log(2 * ndtr(found) - 1)  # Šidák
    print(
        f"standard errors to either side {found:.2f} (one head 1.96): as of "
        f"{n_independent:.0f} independent heads of {values.shape[1]}"
    )


if __name__ == "__main__":
    main()
