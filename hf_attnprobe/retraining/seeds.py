"""How much does attention vary by chance? Wiegreffe & Pinter 2019, Section 3.3: variance within a model.

Question: trained again with another seed, does the same model look at the same tokens?
Measure:  per test text, the Jensen-Shannon divergence of each run's attention to the base's, median over the runs; the
          total variation distance of their outputs, mean over the runs.
Compare:  by the base's largest weight in the papers' four bins, and by predicted class. This is the yardstick for every
          adversary: what is no farther than another seed is no counter-example.
Reading:  0 every run attends alike; .69 the attention is the seed's, not the task's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.inference.outputs import read_outputs
from hf_attnprobe.retraining.base import Base, Progress, Trained, silent, train_again
from hf_attnprobe.statistics.scores import Score, compare


READINGS = {
    "max_attention": "the token with the most attention has {mean:.2f} of it",
    "seed_jsd": "another seed moves the attention by a divergence of {mean:.2f} (at most 0.69; median over the runs)",
    "seed_tvd": "another seed moves the output by {mean:.2f} of 1 (mean over the runs)",
    "one_seed_jsd": "seed {key} moves the attention by a divergence of {mean:.2f}",
    "one_seed_tvd": "seed {key} moves the output by {mean:.2f} of 1",
}


@dataclass(frozen=True)
class SeedsResult:
    """The tensors are [texts]; ``one_seed_…`` by seed. ``scores`` has ``base`` and one model per seed."""

    max_attention: Tensor
    seed_jsd: Tensor
    seed_tvd: Tensor
    one_seed_jsd: dict[int, Tensor]
    one_seed_tvd: dict[int, Tensor]
    scores: tuple[Score, ...]
    trained: tuple[Trained, ...]


def seeds(
    base: Base,
    sets: Mapping,
    *,
    output_dir: str | Path,
    n_seeds: int = 8,
    seed: int = 0,
    progress: Progress = silent,
) -> SeedsResult:
    """Trains the base's configuration with other seeds: 0, 1, 2, … without the base's own.

    The paper's are 50, 257, 500231, 100078, 12504, 90754789, 8988812 and 2; no seed is better than another.

    Args:
        sets: train, validation and test texts. output_dir: one folder per seed in it.
        seed: of the bootstrap.
    """
    trained = {
        k: train_again(base, sets, Path(output_dir) / str(k), seed=k, progress=progress)
        for k in other_seeds(base.settings["seed"], n_seeds)
    }
    own = base.outputs(sets["test"])
    runs = {
        k: read_outputs(run.model, base.tokenizer, sets["test"])
        for k, run in trained.items()
    }
    divergences = {k: jsd(own.attention, run.attention) for k, run in runs.items()}
    changes = {k: tvd(own.probs, run.probs) for k, run in runs.items()}
    probs = {"base": own.probs.numpy()} | {
        f"seed {k}": run.probs.numpy() for k, run in runs.items()
    }
    return SeedsResult(
        own.attention.amax(-1),
        torch.stack(list(divergences.values())).quantile(
            0.5, dim=0
        ),  # the mean of the two in the middle
        torch.stack(list(changes.values())).mean(0),
        divergences,
        changes,
        compare(own.labels, probs, reference="base", seed=seed),
        tuple(trained.values()),
    )


def other_seeds(own: int, n: int) -> list[int]:
    """The first n seeds that are not the base's.

    >>> other_seeds(1, 3)
    [0, 2, 3]
    """
    return [k for k in range(n + 1) if k != own][:n]
