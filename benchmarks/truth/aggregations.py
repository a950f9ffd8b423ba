"""Comparison of ways to combine the parts of faithfulness into one number.

Importance, removal and mass can be measured by exchanging words or by deleting them, and the parts
can be averaged in several ways. Each way is evaluated on the same constructed models: how often its
answers are wrong, how well it separates the truths, and how it responds to the share of texts in
which attention is right.

A kind counts as wrong, opposite or open if any of its models is. *Opposite* answers are "no" for a
model whose truth is yes, and "yes" for a model whose truth is no.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.truth import thresholds
from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.faithfulness.exchange import draw_replacements, measure_exchanges
from hf_attnprobe.faithfulness.input_erasure import mark_top_units
from hf_attnprobe.faithfulness.options import Exchange
from hf_attnprobe.faithfulness.rankings import compute_ranking
from hf_attnprobe.faithfulness.scale import list_rankings
from hf_attnprobe.functional.erasure import compute_removal_rank
from hf_attnprobe.protocol import AttentionModelBase, Batch
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.questions import PARTLY_THRESHOLD, YES_THRESHOLD
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scale import (
    CLASSIFIER_PARTS,
    DELETION_PARTS,
    ERASURE,
    IMPORTANCE,
    MASS,
    REMOVAL,
    Part,
)


CROSS_FITTED_STATISTIC = "exchange_removal@cross_fitted_best"
"""Name of the statistic that :func:`add_cross_fitted_best` adds."""
DELETION_IMPORTANCE, _, DELETION_REMOVAL, DELETION_MASS = DELETION_PARTS
CROSS_FITTED_REMOVAL = replace(
    REMOVAL,
    columns=("exchange_removal@random", "exchange_removal@{}", CROSS_FITTED_STATISTIC),
)
"""Removal by exchange, relative to the best order that was found on other donors."""
BOTH_OPERATORS = (
    *(IMPORTANCE, DELETION_IMPORTANCE),
    *(ERASURE, ERASURE),
    *(REMOVAL, DELETION_REMOVAL),
    *(MASS, DELETION_MASS),
)
"""Parts whose mean is the mean over four parts, each measured by exchange and by deletion. Erasure
has only one operator, so it occurs twice."""


@dataclass(frozen=True)
class Aggregation:
    """A way to combine parts into one faithfulness number.

    Attributes:
        parts: Parts whose mean is the number.
        description: What is combined.
    """

    parts: Sequence[Part]
    description: str


AGGREGATIONS: Mapping[str, Aggregation] = {
    "F before": Aggregation(
        DELETION_PARTS, "importance, removal and mass by deletion, and erasure"
    ),
    "m1": Aggregation(
        (DELETION_IMPORTANCE, ERASURE, REMOVAL, DELETION_MASS),
        "removal by exchange, importance and mass by deletion, and erasure",
    ),
    "F now": Aggregation(CLASSIFIER_PARTS, "importance, removal and mass by exchange, and erasure"),
    "both operators": Aggregation(
        BOTH_OPERATORS, "the mean of each part by exchange and by deletion"
    ),
    "cross-fitted best": Aggregation(
        (IMPORTANCE, ERASURE, CROSS_FITTED_REMOVAL, MASS),
        "F now, but the best order for removal is found with other donors than it is evaluated with",
    ),
}
"""Maps the name of each aggregation to its definition, in the order of the tables."""


# --- Cross-fitted best order -------------------------------------------------------------------


@torch.no_grad()
def measure_cross_fitted_best(model: AttentionModelBase, batch: Batch, *, seed: int) -> Tensor:
    """Measure removal by exchange for the best order, with separate donors for search and evaluation.

    The best order is the best of many, so its removal is biased upwards if the same donors decide
    which order is best and how good it is. Here, the donors are split into two halves. The best
    order is found with one half and evaluated with the other one, and vice versa.

    Args:
        model: Model with donors and standard temperature.
        batch: Texts.
        seed: Seed for donors and for ties of the attention.

    Returns:
        Mean output change over both halves ``[batch]``; NaN in texts without a donor.
    """
    observation = model.observe(batch)
    site = choose_model_attention(model)[0]
    draws = draw_replacements(observation, Exchange().n_donors, seed)
    content = batch.content_mask
    scores_by_ranking = [
        compute_ranking(observation, site, name, seed=seed).double()
        for name in list_rankings(observation, site)
    ]
    single_words = torch.eye(content.shape[1], dtype=torch.bool)[:, None]
    # Output change for each exchanged word, [donors, words, batch].
    changes = measure_exchanges(observation, draws, single_words.expand(-1, len(content), -1))
    halves = torch.arange(Exchange().n_donors).chunk(2)
    removals = []
    for searched, evaluated in (halves, halves[::-1]):
        losses = changes[searched].mean(0).T.masked_fill(~content, 0)
        turns = torch.stack(
            [compute_removal_rank(scores, content) for scores in (*scores_by_ranking, losses)]
        )
        top_words = mark_top_units(observation, turns)
        by_donor = measure_exchanges(observation, draws, top_words.flatten(0, 1))
        # Mean over the numbers of removed words, [donors, orders, batch].
        removal = by_donor.unflatten(1, top_words.shape[:2]).mean(1)
        best_order = removal[searched].mean(0).argmax(0)
        removals.append(removal[evaluated].mean(0).gather(0, best_order[None])[0])
    return torch.stack(removals).mean(0).masked_fill(~draws.has_donor, torch.nan)


def add_cross_fitted_best(texts: Texts, values: np.ndarray) -> Texts:
    """Add the statistic :data:`CROSS_FITTED_STATISTIC`.

    Args:
        texts: Statistics at one site.
        values: Result of :func:`measure_cross_fitted_best` for these texts.
    """

    def read_statistic(name: str) -> np.ndarray:
        return values if name == CROSS_FITTED_STATISTIC else texts.read_statistic(name)

    names = (*texts.statistic_names, CROSS_FITTED_STATISTIC)
    return replace(texts, statistic_names=names, read_statistic=read_statistic)


# --- Answers and errors ------------------------------------------------------------------------


def select_aggregation(models: pd.DataFrame, name: str) -> pd.DataFrame:
    """Make an aggregation the faithfulness of a table, in which ``thresholds`` reads it.

    Args:
        models: One row per model, with the columns of :func:`benchmarks.truth.scoreboard.read_models`.
        name: Aggregation.
    """
    columns = {}
    for end in ("", " low", " high", " n"):
        columns[f"faithfulness{end}"] = models[f"{name}{end}"]
        columns[f"path_share{end}"] = models[f"path share{end}"]
    return models.assign(**columns)


def answer_models(
    models: pd.DataFrame, partly: float = PARTLY_THRESHOLD, yes: float = YES_THRESHOLD
) -> pd.Series:
    """Answer for each model whether its attention is faithful.

    The answer is "no" if the path share or faithfulness is certainly too low. It is "cannot say"
    if an interval contains a threshold.

    Args:
        models: One row per model, as :func:`select_aggregation` returns it.
        partly: Smallest faithfulness for "partly".
        yes: Smallest faithfulness for "yes".
    """
    return thresholds.answers(models, partly, yes)


@dataclass(frozen=True)
class Errors:
    """Kinds with errors, by name.

    Attributes:
        wrong: Kinds with an answer that is not the truth, other than "cannot say".
        opposite: Kinds with the answer "no" although the truth is yes, or "yes" although it is no.
        open: Kinds with the answer "cannot say", but no wrong answer.
    """

    wrong: list[str]
    opposite: list[str]
    open: list[str]


OPPOSITE_ANSWERS = {"yes": "no", "no": "yes"}
"""Maps a truth to the opposite answer. The truth "partly" has none."""


def find_errors(models: pd.DataFrame, answers: pd.Series) -> Errors:
    """Find the kinds with errors; mixtures are ignored.

    Args:
        models: One row per model.
        answers: Answer for each model.
    """
    kinds = thresholds.constructed(models)
    answers = answers[kinds.index]
    is_open = answers == str(Answer.CANNOT_SAY)
    is_wrong = ~is_open & (answers != kinds.truth)
    is_opposite = answers == kinds.truth.map(OPPOSITE_ANSWERS)
    wrong = sorted(set(kinds.kind[is_wrong]))
    opposite = sorted(set(kinds.kind[is_opposite]))
    return Errors(wrong, opposite, sorted(set(kinds.kind[is_open]) - set(wrong)))


def evaluate_on_other_half(models: pd.DataFrame) -> tuple[tuple[float, float], Errors]:
    """Choose thresholds on half of the kinds and the mixtures, and test them on the other kinds.

    If there are several seeds, the thresholds are chosen with even seeds and tested with odd ones.

    Args:
        models: One row per model.

    Returns:
        The thresholds for "partly" and "yes", and the errors.
    """
    first_half, second_half = thresholds.halves(models)
    is_mixture = models.kind.str.startswith("right in")
    is_even = models.seed % 2 == 0
    is_tested = ~is_even if (~is_even).any() else is_even
    partly, yes = thresholds.chosen(models[is_even & (models.kind.isin(first_half) | is_mixture)])
    tested = models[is_tested & models.kind.isin(second_half)]
    return (partly, yes), find_errors(tested, answer_models(tested, partly, yes))


def evaluate_leaving_one_out(models: pd.DataFrame) -> Errors:
    """Answer for each kind with thresholds that were chosen from all other kinds.

    Args:
        models: One row per model.

    Returns:
        Errors of all kinds.
    """
    answers = []
    costs = thresholds.costs_by_kind(models)
    total = costs.sum()
    for kind in costs.index:
        partly, yes = thresholds.cheapest(total - costs.loc[kind])
        answers.append(answer_models(models[models.kind == kind], partly, yes))
    all_answers = pd.concat(answers)
    return find_errors(models.loc[all_answers.index], all_answers)
