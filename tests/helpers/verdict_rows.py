"""Rows of models that are graded: predictions, and attention that is some way from random to best."""

import numpy as np
import pandas as pd

from hf_attnprobe.reports.verdict import compute_findings
from tests.helpers.synthetic_rows import make_rows


def rows_of(test, columns, *, layer=0, head=0):
    """Long rows of one site from columns of per-text values."""
    named = {(test, name): values for name, values in columns.items()}
    return make_rows(named, layer=layer, head=head)


def predictions(predicted, labels, probability=0.9):
    n = len(predicted)
    columns = {
        "predicted_class": predicted,
        "label": labels,
        "probability": np.full(n, probability),
        "n_tokens": np.full(n, 9.0),
    }
    return rows_of("prediction", columns, layer=-1, head=-1)


def good_model(n, **tests):
    """Rows of a model that is right, with the statistics of some tests."""
    labels = np.arange(n) % 2.0
    return pd.concat([predictions(labels, labels), *(rows_of(t, c) for t, c in tests.items())])


def found(rule, rows, labels=("neg", "pos")):
    return [f for f in compute_findings(rows, labels) if f.rule == rule]


def way_of(ways, lost=None):
    """Statistics of the four parts, each text ``ways`` [texts] from random to best."""
    n = len(ways)
    every = np.ones(n)
    random, best = 0.6, 0.2
    return {
        "scale": {
            "importance@attention": ways,
            "removal@attention": 0.1 + 0.4 * ways,
            "removal@random": 0.1 * every,
            "removal@best": 0.5 * every,
            "mass@attention": 0.2 + 0.8 * ways,
            "mass_by_chance@attention": 0.2 * every,
            "largest_loss": 0.6 * every,
        },
        "erasure": {
            "fraction_to_lose_lead@attention": random - ways * (random - best),
            "fraction_to_lose_lead@random": random * every,
            "fraction_to_lose_lead@best": best * every,
            "lead_is_lost": every if lost is None else lost,
        },
    }


def exchanging(ways):
    """Statistics of the parts by exchange, each text ``ways`` [texts] from random to best."""
    every = np.ones(len(ways))
    return {
        "exchange": {
            "exchange_importance@attention": ways,
            "exchange_removal@attention": 0.2 + 0.6 * ways,
            "exchange_removal@random": 0.2 * every,
            "exchange_removal@best": 0.8 * every,
            "exchange_mass@attention": 0.3 + 0.7 * ways,
            "exchange_mass_by_chance@attention": 0.3 * every,
        }
    }


def moving(n, moved, worst=None):
    """Statistics of shuffles that move the output so far, and of a path share that fits to them.

    The path share is four times the movement, so that both have the same position relative to
    their thresholds (.05 and .2).
    """
    worst = 2 * moved if worst is None else worst
    standard = {"standard_tvd": np.full(n, moved), "largest_standard_tvd": np.full(n, worst)}
    path_share = np.full(n, min(1.0, 4 * moved))
    return {
        "permutation": {**standard, "median_tvd": np.full(n, moved)},
        "uniform_attention": {"path_share": path_share, "uniform_tvd": np.full(n, moved)},
    }
