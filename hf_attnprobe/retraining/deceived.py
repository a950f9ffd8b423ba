"""What training against attention to some tokens did. Pure: numbers in, text out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.plain_data import plain
from hf_attnprobe.reports.document import (
    Answered,
    Cell,
    Document,
    Section,
    Table,
)
from hf_attnprobe.reports.forms import Documented
from hf_attnprobe.retraining.document import in_full
from hf_attnprobe.retraining.verdict import all_of, graded
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer
from hf_attnprobe.statistics.scores import Score, compare_scores, find_score
from hf_attnprobe.statistics.verdicts import Finding


@dataclass(frozen=True)
class Deception(Documented):
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
        n_controlled: texts with an impermissible token and at least as many others.
        hidden: half of the mass before minus that after, mean over heads, per text.
        moved: total variation of the output when the tokens are deleted, over the texts
            with a control, by ``before`` and ``after``.
        control: the same when as many other tokens are deleted, mean over the draws.
        beyond: ``moved`` minus ``control``, paired by text.
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
    n_controlled: int
    hidden: Estimate
    moved: dict[str, Estimate]
    control: dict[str, Estimate]
    beyond: dict[str, Estimate]

    def document(self) -> Document:
        """All that it says."""
        return deception_document(self)

    def score(self, when: str, metric: str) -> Score:
        """The score ``before`` or ``after``."""
        found = find_score(self.scores, when, metric)
        assert found is not None  # both models are scored by every metric
        return found


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
        control: the same without as many others [texts]; NaN for a text with fewer
            others than impermissible tokens.
    """

    labels: np.ndarray
    probs: np.ndarray
    named: np.ndarray
    mean_mass: np.ndarray
    largest_mass: np.ndarray
    moved: np.ndarray
    control: np.ndarray


def deception_of(
    before: Measured, after: Measured, *, seed: int, **settings: Any
) -> Deception:
    """The result from the measurements before and after the training.

    Args:
        before: of the model that was trained on.
        after: of the trained model.
        seed: of the training.
        settings: the fields of :class:`Deception` that say what was done.
    """
    models = {"before": before, "after": after}
    named = before.named > 0
    controlled = named & ~np.isnan(before.control)
    masses = {
        "before": before.mean_mass,
        "after": after.mean_mass,
        "largest before": before.largest_mass,
        "largest after": after.largest_mass,
        "tokens": before.named,
    }
    return Deception(
        **settings,
        n=len(named),
        n_named=int(named.sum()),
        n_controlled=int(controlled.sum()),
        scores=compare_scores(
            before.labels.astype(int),
            {when: m.probs for when, m in models.items()},
            reference="before",
            seed=seed,
        ),
        masses=_means(masses, named),
        hidden=mean_estimate((before.mean_mass / 2 - after.mean_mass)[named]),
        moved=_means({when: m.moved for when, m in models.items()}, controlled),
        control=_means(
            {when: m.control for when, m in models.items()}, controlled
        ),
        beyond=_means(
            {when: m.moved - m.control for when, m in models.items()},
            controlled,
        ),
    )


def _means(
    values: Mapping[str, np.ndarray], texts: np.ndarray
) -> dict[str, Estimate]:
    """The means over some of the texts, bool [texts], by name."""
    return {name: mean_estimate(of[texts]) for name, of in values.items()}


def findings(deception: Deception) -> dict[str, Finding]:
    """What the intervals allow to say, by the rules ``use``, ``hiding`` and ``loss``.

    Returns:
        ``used_before`` and ``used_after``: whether the model used the tokens and still does;
        ``hidden``: whether half of the attention to them is gone; ``lost``: whether accuracy is.
    """
    return {
        "used_before": graded("use", deception.beyond["before"]),
        "used_after": graded("use", deception.beyond["after"]),
        "hidden": graded("hiding", deception.hidden),
        "lost": graded("loss", deception.score("after", "accuracy").lost),
    }


def overall(deception: Deception) -> Answer:
    """Whether attention hides what the model uses."""
    answers = {
        name: found.answer for name, found in findings(deception).items()
    }
    if not deception.n_controlled:
        return Answer.CANNOT_SAY
    if answers["used_before"] == Answer.NO:
        return Answer.NO
    return all_of(
        answers["used_after"], answers["hidden"], answers["lost"].opposite
    )


def conclusion(deception: Deception) -> str:
    """The answer, and what became of attention and of use."""
    return f"Hiding: {overall(deception)}. {what_became(deception)}"


def what_became(deception: Deception) -> str:
    """What became of attention and of use, a sentence for each."""
    if not deception.n_named:
        return (
            "None of the test texts has an impermissible token: they say nothing about "
            "attention to them."
        )
    if not deception.n_controlled:
        return (
            "In no text with an impermissible token are there as many others, so there is "
            "no control to compare with."
        )
    found = findings(deception)
    said = [found[name].sentence for name in ("used_after", "hidden", "lost")]
    if found["used_before"].answer == Answer.NO:
        said = [
            f"There was nothing to hide. Before: {found['used_before'].sentence}",
            said[-1],
        ]
    if min(deception.n_controlled, deception.n_named) < MIN_TEXTS:
        said.append(f"Fewer than {MIN_TEXTS} texts tell nothing.")
    return " ".join(said)


def deception_data(deception: Deception) -> dict:
    """Plain data; NaN becomes None."""
    answers = {
        name: str(found.answer) for name, found in findings(deception).items()
    }
    said = {"verdict": conclusion(deception), "answers": answers}
    return plain(deception) | {"dataset": str(deception.dataset)} | said


QUESTIONS = (
    "Did the model use the tokens before?",
    "Does it use them after?",
    "Has attention to them gone?",
    "Is accuracy lost?",
)
QUESTION = "Does the model's attention hide what the model uses?"
LEAD = (
    "A classifier was trained further with a penalty on its attention to some tokens, "
    "called impermissible. If it still uses them, classifies as well and no longer "
    "attends to them, its attention hides this use. A token is used where deleting "
    "it moves the output more than deleting other tokens does (total variation, 0 to 1)."
)
LIMITS = (
    "A yes shows that attention can be trained to hide use; it does not show that other models "
    "do so. A no does not show that none can: another weight of the penalty might succeed. "
    "Intervals are over the test texts, for one training."
)


def deception_document(d: Deception) -> Document:
    """All that a deception says."""
    asked = zip(QUESTIONS, findings(d).values(), strict=True)
    answers = [in_full(question, found) for question, found in asked]
    table = Table(
        ["", "before", "after"],
        _before_and_after(d),
        caption="Means with 95% intervals over texts",
        sortable=False,
    )
    of_texts = (
        f"Mass is that of the {d.n_named} texts with an impermissible token, of "
        f"whose tokens {d.masses['tokens'].value:.1%} are impermissible; moves "
        f"are those of the {d.n_controlled} of them with as many others or "
        "more. Intervals are over texts, of one training."
    )
    heads = "the last layer" if d.layers == "last" else "all layers"
    made = (
        f"{d.model} on {d.dataset}, trained on with λ {d.weight:g} on attention to "
        f"{', '.join(d.tokens)} ({d.over_heads} over the heads of {heads}): {d.n} texts."
    )
    return Document(
        f"Does {d.model} hide what it uses?",
        [LEAD, Answered(QUESTION, overall(d), what_became(d))],
        [
            Section("The answers", answers, id="answers"),
            Section("What this cannot say", [LIMITS], id="limits"),
            Section(
                "Before and after", [table, of_texts], id="numbers", brief=True
            ),
            Section("How it was made", [made], id="provenance", brief=True),
        ],
        data=deception_data(d),
    )


def _before_and_after(d: Deception) -> list[list[Cell]]:
    """What was measured: its name, before, after."""
    metrics = dict.fromkeys(score.metric for score in d.scores)
    scores: list[list[Cell]] = [
        [m.replace("_", " "), d.score("before", m), d.score("after", m)]
        for m in metrics
    ]
    masses = d.masses
    return [
        *scores,
        [
            "mass on the impermissible tokens, mean over heads",
            masses["before"],
            masses["after"],
        ],
        [
            "of the head with the most",
            masses["largest before"],
            masses["largest after"],
        ],
        ["output moved by deleting them", d.moved["before"], d.moved["after"]],
        ["by deleting as many others", d.control["before"], d.control["after"]],
        ["difference per text", d.beyond["before"], d.beyond["after"]],
    ]
