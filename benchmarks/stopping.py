"""Does an audit that stops find what the full one finds? A full audit stands for the population.

    attnprobe audit --model minilm-sst --dataset sst --split test --tests head_ablation --no-groups --output-dir large
    OMP_NUM_THREADS=1 python benchmarks/stopping.py --audit large --statistic zero_tvd

Its texts are put into many random orders. In each the heads race for the first ten, and in each every head is run until
its interval, which holds for all heads at once and at every look, is narrow enough. Bars: the same ten in at least 95 of
100 orders at no more than 20% of the full audit's replays; intervals that hold in at least 95%.

Replays: of the race one per head and text (``--race-replays``), of all tests together ``--test-replays`` per site and text; a full audit has
them at all heads and groups, one with ``--top`` at the ten and at all attention.
"""

import argparse
from pathlib import Path

import numpy as np

from hf_attnprobe.auditing.heads import values_by_head
from hf_attnprobe.statistics.stopping import confidence_sequence, standing
from hf_attnprobe.storage.rows import read_rows


FIRST_ROUND, GROWTH = 32, 1.5  # as in auditing/rounds.py


def looks(n_texts: int) -> list[int]:
    """How many texts are done after each round."""
    found = [min(FIRST_ROUND, n_texts)]
    while found[-1] < n_texts:
        n = found[-1]
        found.append(min(n_texts, max(n + FIRST_ROUND, int(n * GROWTH))))
    return found


def race(drawn: np.ndarray, n_first: int) -> tuple[set[int], np.ndarray, bool]:
    """The heads found, texts taken by head, and whether all was decided by bands."""
    n_texts, n_heads = drawn.shape
    seen = np.full_like(drawn, np.nan)
    open_heads = np.ones(n_heads, dtype=bool)
    done = 0
    for n in looks(n_texts):
        seen[done:n, open_heads] = drawn[done:n, open_heads]
        found, done = standing(seen[:n], n_first, n_texts), n
        open_heads = found.undecided
        if not open_heads.any():
            break
    return set(found.first()), (~np.isnan(seen)).sum(0), not open_heads.any()


def until(drawn: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether each head's interval holds when it stops, and how many texts it took."""
    n_texts, n_heads = drawn.shape
    truth, level = drawn.mean(0), 1 - 0.05 / n_heads
    holds, taken = np.zeros(n_heads, dtype=bool), np.zeros(n_heads, dtype=int)
    open_heads = np.arange(n_heads)
    for n in looks(n_texts):
        low, high = confidence_sequence(drawn[:n, open_heads], n_texts, level=level)
        stop = (high - low <= width) | (n == n_texts)
        for place in np.flatnonzero(stop):
            head = open_heads[place]
            holds[head] = low[place] - 1e-9 <= truth[head] <= high[place] + 1e-9
            taken[head] = n
        open_heads = open_heads[~stop]
        if not len(open_heads):
            break
    return holds, taken


def report_races(values: np.ndarray, args: argparse.Namespace) -> None:
    n_texts, n_heads = values.shape
    truth = set(np.argsort(-values.mean(0))[: args.top].tolist())
    generator = np.random.default_rng(0)
    same, decided, texts, shares = [], [], [], []
    full = (n_heads + args.n_groups) * n_texts * args.test_replays
    for _ in range(args.n_orders):
        found, taken, is_decided = race(generator.permutation(values), args.top)
        same.append(found == truth)
        decided.append(is_decided)
        texts.append(taken.sum() / (n_heads * n_texts))
        rest = (args.top + 1) * n_texts * args.test_replays
        shares.append((taken.sum() * args.race_replays + rest) / full)
    print(
        f"--top {args.top}: the same heads in {sum(same)} of {args.n_orders} orders; decided "
        f"before the texts ran out or at their end in {sum(decided)}; the race took "
        f"{np.mean(texts):.1%} of its runs; replays {np.mean(shares):.1%} of the full audit's "
        f"(most {np.max(shares):.1%})"
    )


def report_until(values: np.ndarray, args: argparse.Namespace) -> None:
    for width in args.widths:
        generator = np.random.default_rng(1)
        results = [until(generator.permutation(values), width) for _ in range(args.n_orders)]
        holds = np.array([h for h, _ in results])
        taken = np.array([t for _, t in results])
        print(
            f"--until width={width}: intervals hold in {holds.mean():.2%}, the worst head in "
            f"{holds.mean(0).min():.0%}, all heads at once in {holds.all(1).mean():.0%} of "
            f"{args.n_orders} orders; runs {taken.mean() / len(values):.1%} of all"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--audit", type=Path, required=True)
    parser.add_argument("--statistic", default="zero_tvd")
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--widths", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    parser.add_argument("--n-orders", type=int, default=100)
    parser.add_argument("--n-groups", type=int, default=7)
    parser.add_argument("--race-replays", type=float, default=3)
    parser.add_argument("--test-replays", type=float, default=104)
    args = parser.parse_args()
    values = values_by_head(read_rows(args.audit / "rows"), args.statistic).to_numpy()
    print(f"{args.statistic}: {values.shape[0]} texts, {values.shape[1]} heads")
    report_races(values, args)
    report_until(values, args)


if __name__ == "__main__":
    main()
