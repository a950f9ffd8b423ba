"""How much does attention vary by chance? Wiegreffe & Pinter 2019, Section 3.3.

Question: trained again with another seed, does the same model look at the same tokens?
Measure:  per test text, the Jensen-Shannon divergence of each run's attention to the
          base's, median over the runs; the total variation distance of their outputs, mean
          over the runs.
Compare:  by the base's largest weight in the papers' four bins, and by predicted class.
          This is the baseline for every adversary: what is no farther than another seed is
          no counter-example.
Reading:  0 every run attends alike; .69 the attention is the seed's, not the task's.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.inference.outputs import read_outputs
from hf_attnprobe.readings import TestReadings, share
from hf_attnprobe.retraining.base import (
    Base,
    Progress,
    Splits,
    Trained,
    compare_probs,
    is_correct,
    silent,
    train_again,
)
from hf_attnprobe.retraining.options import Seeds
from hf_attnprobe.retraining.registry import register_retraining
from hf_attnprobe.statistics.scores import Score


READINGS: TestReadings = {
    "max_attention": "the token with the most attention has {mean:.2f} of it",
    "seed_jsd": (
        "another seed moves the attention by a divergence of {mean:.2f} (at most "
        "0.69; median over the runs)"
    ),
    "seed_tvd": "another seed moves the output by {mean:.2f} of 1 (mean over the runs)",
    "one_seed_jsd": "seed {key} moves the attention by a divergence of {mean:.2f}",
    "one_seed_tvd": "seed {key} moves the output by {mean:.2f} of 1",
    "one_seed_correct": share("seed {key} is right in {mean:.0%} of texts"),
}


@dataclass(frozen=True)
class SeedsResult:
    """Result of :func:`seeds`; tensors are [texts].

    Attributes:
        max_attention: the base's largest weight, in [0, 1].
        seed_jsd: median over the runs of the JSD to the base's attention, in [0, ln 2].
        seed_tvd: mean over the runs of the total variation of the outputs, in [0, 1].
        one_seed_jsd, one_seed_tvd: those of single runs, by seed.
        one_seed_correct: 1 where the run is right, else 0, by seed.
        scores: of ``base`` and of one model per seed.
        trained: one model per seed.
    """

    max_attention: Tensor
    seed_jsd: Tensor
    seed_tvd: Tensor
    one_seed_jsd: dict[int, Tensor]
    one_seed_tvd: dict[int, Tensor]
    one_seed_correct: dict[int, Tensor]
    scores: tuple[Score, ...]
    trained: tuple[Trained, ...]


@register_retraining(
    title="The same model with other seeds",
    readings=READINGS,
    options=Seeds,
    n_models=lambda options: options.n_seeds,
)
def seeds(
    base: Base,
    splits: Splits,
    options: Seeds = Seeds(),
    *,
    output_dir: str | Path,
    seed: int = 0,
    progress: Progress = silent,
) -> SeedsResult:
    """Trains the base with the seeds 0, 1, 2, … without its own.

    The paper's are 50, 257, 500231, 100078, 12504, 90754789, 8988812 and 2; no seed is
    better than another.

    Args:
        splits: train, validation and test texts.
        options: how many seeds.
        output_dir: one folder per seed in it.
        seed: of the bootstrap.
    """
    own = base.outputs(splits["test"])
    trained, divergences, changes, correct = [], {}, {}, {}
    probs = {"base": own.probs}
    for other_seed in other_seeds(base.settings.seed, options.n_seeds):
        folder = Path(output_dir) / str(other_seed)
        run = train_again(base, splits, folder, seed=other_seed, progress=progress)
        other = read_outputs(run.model, base.tokenizer, splits["test"])
        trained.append(run)
        divergences[other_seed] = jsd(own.attention, other.attention)
        changes[other_seed] = tvd(own.probs, other.probs)
        correct[other_seed] = is_correct(other.probs, own.labels)
        probs[f"seed {other_seed}"] = other.probs
    # Of an even number of runs, quantile gives the mean of the two in the middle.
    median = torch.stack(list(divergences.values())).quantile(0.5, dim=0)
    return SeedsResult(
        own.attention.amax(-1),
        median,
        torch.stack(list(changes.values())).mean(0),
        divergences,
        changes,
        correct,
        compare_probs(own.labels, probs, reference="base", seed=seed),
        tuple(trained),
    )


def other_seeds(own: int, n: int) -> list[int]:
    """The first n seeds that are not the base's.

    >>> other_seeds(1, 3)
    [0, 2, 3]
    """
    return [seed for seed in range(n + 1) if seed != own][:n]
