"""What training against attention to some tokens did. Pure: numbers in, text out."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_attnprobe import markdown
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.statistics.bootstrap import Estimate, mean_estimate
from hf_attnprobe.statistics.scores import Score, compare_scores
from hf_attnprobe.storage.plain_data import plain


KEPT = 0.02  # of accuracy may be lost
USED = 0.05  # total variation of the output without the tokens; below, unused


@dataclass(frozen=True)
class Deception:
    """What training against attention to ``tokens`` did. ``print`` gives the table.

    Attributes:
        model: that was trained on.
        dataset: the test texts' data set and split.
        tokens: the impermissible tokens (Pruthi et al. 2020).
        weight: λ of the penalty on attention to them.
        over_heads: the penalty's, ``mean`` or ``max``.
        layers: whose heads, ``last`` or ``all``.
        n: test texts.
        n_named: test texts with an impermissible token.
        scores: on all test texts, of ``before`` and ``after``.
        masses: attention mass on the tokens, over the texts that have them: the mean
            over heads ``before`` and ``after``, that of the head with the most
            ``largest before`` and ``largest after``; and ``tokens``, their share of a
            text's tokens.
        moved: total variation of the output when the tokens are deleted, over the same
            texts, by ``before`` and ``after``.
    """

    model: str
    dataset: DatasetName
    tokens: tuple[str, ...]
    weight: float
    over_heads: str
    layers: str
    n: int
    n_named: int
    scores: tuple[Score, ...]
    masses: dict[str, Estimate]
    moved: dict[str, Estimate]

    def __str__(self) -> str:
        return to_text(self)

    def score(self, when: str, metric: str) -> Score:
        """The score ``before`` or ``after``."""
        by_name = {(s.model, s.metric): s for s in self.scores}
        return by_name[when, metric]


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured of the test texts, in the order of their ids.

    Attributes:
        labels: true classes [texts].
        probs: [texts, classes].
        named: share of impermissible tokens [texts].
        mean_mass: attention mass on them, the mean over heads [texts].
        largest_mass: that of the head with the most [texts].
        moved: total variation of the output without them [texts].
    """

    labels: np.ndarray
    probs: np.ndarray
    named: np.ndarray
    mean_mass: np.ndarray
    largest_mass: np.ndarray
    moved: np.ndarray


def deception_of(
    before: Measured, after: Measured, *, seed: int, **settings: Any
) -> Deception:
    """The result from the measurements before and after the training.

    Args:
        before: of the model that was trained on.
        after: of the trained model.
        seed: of the bootstrap.
        settings: the fields of :class:`Deception` that say what was done.
    """
    has_tokens = before.named > 0
    columns = {
        "before": before.mean_mass,
        "after": after.mean_mass,
        "largest before": before.largest_mass,
        "largest after": after.largest_mass,
        "tokens": before.named,
        "moved before": before.moved,
        "moved after": after.moved,
    }
    probs = {"before": before.probs, "after": after.probs}
    means = {
        name: mean_estimate(values[has_tokens], seed=seed)
        for name, values in columns.items()
    }
    return Deception(
        **settings,
        n=len(has_tokens),
        n_named=int(has_tokens.sum()),
        scores=compare_scores(
            before.labels.astype(int), probs, reference="before", seed=seed
        ),
        moved={"before": means.pop("moved before"), "after": means.pop("moved after")},
        masses=means,
    )


def verdict(deception: Deception) -> str:
    """What became of attention and of use, with the thresholds."""
    if not deception.n_named:
        return (
            "None of the test texts has an impermissible token: they say nothing about "
            "attention to them."
        )
    masses, moves = deception.masses, deception.moved
    mass_before, mass = masses["before"].value, masses["after"].value
    moved_before, moved = moves["before"].value, moves["after"].value
    lost = deception.score("after", "accuracy").difference
    kept = "kept" if lost < KEPT else "not kept"
    if moved_before < USED:
        return (
            "There was nothing to hide: deleting the impermissible tokens moved the "
            f"output by {moved_before:.3f} before (from {USED} they are used), and by "
            f"{moved:.3f} after; accuracy is {kept} (lost: {lost:.3f}), mass went from "
            f"{mass_before:.2f} to {mass:.2f}."
        )
    seen = "no longer shows" if mass <= mass_before / 2 else "still shows"
    used = "uses" if moved >= moved_before / 2 else "hardly uses"
    return (
        f"Accuracy is {kept} (lost: {lost:.3f}; kept below {KEPT}); the model {used} "
        f"the impermissible tokens, and its attention {seen} it: mass "
        f"{mass_before:.2f} before, {mass:.2f} after; deleting them moves the output "
        f"by {moved_before:.2f} before, {moved:.2f} after (from half of it on: shows, "
        "uses)."
    )


def to_json(deception: Deception) -> dict:
    """Plain data; NaN becomes None."""
    return plain(deception) | {"dataset": str(deception.dataset)}


def to_text(deception: Deception) -> str:
    """The table in Markdown."""
    heads = "the last layer" if deception.layers == "last" else "all layers"
    title = (
        f"{deception.model} on {deception.dataset}, trained on with λ "
        f"{deception.weight:g} on attention to {', '.join(deception.tokens)} "
        f"({deception.over_heads} over the heads of {heads}): {deception.n} texts"
    )
    note = (
        f"Mass and move are those of the {deception.n_named} texts with an "
        f"impermissible token, of whose tokens {deception.masses['tokens'].value:.1%} "
        "are impermissible."
    )
    table = markdown.table(["", "before", "after"], _rows(deception))
    return "\n".join([title, "", *table, "", note, "", verdict(deception)])


def _rows(deception: Deception) -> list[list[str]]:
    rows = []
    for metric in dict.fromkeys(score.metric for score in deception.scores):
        before = deception.score("before", metric)
        after = deception.score("after", metric)
        rows.append(_row(metric.replace("_", " "), before, after))
    masses, moved = deception.masses, deception.moved
    mean_mass = "mass on the impermissible tokens, mean over heads"
    rows.append(_row(mean_mass, masses["before"], masses["after"]))
    largest = masses["largest before"], masses["largest after"]
    rows.append(_row("of the head with the most", *largest))
    rows.append(_row("output moved by deleting them", moved["before"], moved["after"]))
    return rows


def _row(name: str, before: Score | Estimate, after: Score | Estimate) -> list[str]:
    first = markdown.interval(before.value, before.ci95)
    second = markdown.interval(after.value, after.ci95)
    return [name, first, second]
