"""Compare the effect and the path share of single heads with their mean ablation.

    attnprobe audit --model minilm-sst --dataset sst --test-limit 24 --no-prune \\
        --tests permutation uniform_attention head_ablation --set permutation.n_permutations=5 \\
        --output-dir heads
    python benchmarks/head_ablation.py heads

Mean ablation replaces the output of a head with its mean. For each other statistic, the script prints the
rank correlation over all heads with the output change by mean ablation, the number of heads that are
among the foremost by both, and the foremost heads.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import hypergeom, spearmanr

from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.storage.rows import read_rows


ABLATION = "mean_tvd"
"""Output change by mean ablation."""
STATISTICS = {
    "median_tvd": "effect (shuffled weights)",
    "uniform_tvd": "output change by even weights",
    "path_share": "path share (even weights)",
    "zero_tvd": "output change by zeroing",
}
"""Description of each statistic that is compared with mean ablation."""
N_FOREMOST = 10
"""Number of heads that count as foremost."""


def list_foremost_heads(means: pd.Series, n_heads: int) -> list[str]:
    """List the heads with the largest means, the largest first, written as layer.head."""
    heads = means.sort_values(ascending=False, kind="stable").index[:n_heads]
    return [".".join(map(str, head)) for head in heads]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "audits", nargs="+", type=Path, help="folder of an audit of single heads, or of its shares"
    )
    arguments = parser.parse_args()
    shares = [Rows.coerce(read_rows(folder / "rows")) for folder in arguments.audits]
    ablation = pd.concat([rows.build_head_frame(ABLATION) for rows in shares])
    ablation_means = ablation.mean()
    n_heads = len(ablation_means)
    n_foremost = min(N_FOREMOST, n_heads)
    ablated_heads = list_foremost_heads(ablation_means, n_foremost)
    chance = hypergeom(n_heads, n_foremost, n_foremost).mean()
    print(f"{len(ablation)} texts, {n_heads} heads; foremost by mean ablation: {ablated_heads}")
    for statistic, description in STATISTICS.items():
        frame = pd.concat([rows.build_head_frame(statistic) for rows in shares])
        if frame.empty:
            print(f"{description}: not measured")
            continue
        means = frame.mean().reindex(ablation_means.index)
        correlation = spearmanr(means, ablation_means, nan_policy="omit").statistic
        heads = list_foremost_heads(means, n_foremost)
        n_common = len(np.intersect1d(heads, ablated_heads))
        print(
            f"{description}: rank correlation {correlation:.2f}, {n_common} of {n_foremost} foremost "
            f"heads in common ({chance:.1f} by chance), foremost: {heads}"
        )


if __name__ == "__main__":
    main()
