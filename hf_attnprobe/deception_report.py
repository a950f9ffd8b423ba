"""What training against attention to some tokens did, as numbers, text and JSON. Pure."""

from dataclasses import dataclass

import numpy as np

from hf_attnprobe.checkpoint_tables import Estimate
from hf_attnprobe.plain_data import plain
from hf_attnprobe.scores import Score, compare
from hf_attnprobe.summary import bootstrap_interval


@dataclass(frozen=True)
class Deception:
    """What training against attention to ``tokens`` did. ``print`` gives the table.

    n, n_named: test texts, and those with a named token in them.
    scores: on all test texts, of ``before`` and ``after``.
    masses: over the texts with named tokens, attention mass on them ``before`` and ``after``, the mean over heads and the
    largest (``largest before``); ``tokens``: their share of a text's tokens.
    """

    model: str
    dataset: str
    tokens: tuple[str, ...]
    weight: float
    over_heads: str
    n: int
    n_named: int
    scores: tuple[Score, ...]
    masses: dict[str, Estimate]

    def __str__(self) -> str:
        return to_text(self)


@dataclass(frozen=True, eq=False)
class Measured:
    """Of the test texts in the order of their ids: labels, named (share of tokens) and masses [texts], probs [texts, …]."""

    labels: np.ndarray
    probs: np.ndarray
    named: np.ndarray
    mean_mass: np.ndarray
    largest_mass: np.ndarray


def deception_of(before: Measured, after: Measured, *, seed: int, **told) -> Deception:
    """The result from both measurements; ``told`` are the fields that say what was done."""
    has = before.named > 0
    columns = {
        "before": before.mean_mass, "after": after.mean_mass, "largest before": before.largest_mass,
        "largest after": after.largest_mass, "tokens": before.named,
    }  # fmt: skip
    values = np.stack([column[has] for column in columns.values()], axis=1)
    means = values.mean(0) if len(values) else np.full(len(columns), np.nan)
    low, high = bootstrap_interval(values, seed=seed) if len(values) else (means, means)
    masses = {name: Estimate(float(means[k]), (float(low[k]), float(high[k]))) for k, name in enumerate(columns)}
    probs = {"before": before.probs, "after": after.probs}
    scores = compare(before.labels, probs, reference="before", seed=seed)
    return Deception(**told, n=len(has), n_named=int(has.sum()), scores=scores, masses=masses)


def to_json(found: Deception) -> dict:
    """Plain data; NaN becomes None."""
    return plain(found)


def to_text(found: Deception) -> str:
    """The table in Markdown."""
    rows = []
    for metric in dict.fromkeys(score.metric for score in found.scores):
        values = {s.model: (s.value, s.ci95) for s in found.scores if s.metric == metric}
        rows.append((metric.replace("_", " "), *(_cell(*values[when]) for when in ("before", "after"))))
    for name, prefix in (("mass on the named tokens, mean over heads", ""), ("of the head with the most", "largest ")):
        masses = (found.masses[f"{prefix}{when}"] for when in ("before", "after"))
        rows.append((name, *(_cell(mass.value, mass.ci95) for mass in masses)))
    share = found.masses["tokens"].value
    return "\n".join(
        [
            f"{found.model} on {found.dataset}, trained on with λ {found.weight:g} on attention to {', '.join(found.tokens)} "
            f"({found.over_heads} over heads): {found.n} texts",
            "",
            "| | before | after |",
            "| --- | --- | --- |",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            f"Mass is that of the {found.n_named} texts with a named token, of whose tokens {share:.1%} are named.",
        ]
    )


def _cell(value: float, ci95: tuple[float, float]) -> str:
    return f"{value:.3f} [{ci95[0]:.3f}, {ci95[1]:.3f}]"
