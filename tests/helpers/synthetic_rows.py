"""Rows as audits write them, made up by hand."""

import numpy as np
import pandas as pd


def rows_of_texts(values, *, ids=None, layer=0, head=0):
    """Rows of one place.

    Args:
        values: [texts], or one number for all, by test and statistic.
        ids: of the texts; else their numbers, as many as the longest values.
        layer: of the place.
        head: of the place.
    """
    if ids is None:
        ids = range(max(np.size(column) for column in values.values()))
    frames = [
        pd.DataFrame({"test": test, "statistic": name, "example_id": ids}).assign(
            layer=layer, head=head, value=np.broadcast_to(column, len(ids)).astype(float)
        )
        for (test, name), column in values.items()
    ]
    return pd.concat(frames, ignore_index=True)


def long_rows(values, test, layer=0, head=0):
    """Rows of statistics [texts] by name; ids are 100, 101, …"""
    ids = np.arange(100, 100 + len(next(iter(values.values()))))
    named = {(test, name): column for name, column in values.items()}
    return rows_of_texts(named, ids=ids, layer=np.int32(layer), head=np.int32(head))


def audit_rows(n=400, n_classes=2, layer=0, head=0):
    """Rows of every test that has a chart, with NaN where tests leave them."""
    draw = np.random.default_rng(7)
    uniform = lambda: draw.uniform(size=n)  # noqa: E731
    smallest = draw.uniform(0.05, 0.4, size=n)
    flips = {
        "fraction_to_flip@attention": smallest + 0.5 * uniform(),
        "fraction_to_flip@random": smallest + 0.6 * uniform(),
        "fraction_to_flip@random_1": smallest + 0.6 * uniform(),
        "fraction_to_flip@product": smallest + 0.1 * uniform(),
        "fraction_to_flip@margin": smallest,
        "never_flips@attention": (uniform() < 0.2).astype(float),
        "minimal_fraction": smallest,
    }
    cannot = uniform() < 0.3
    flips = {name: np.where(cannot, np.nan, column) for name, column in flips.items()}
    taus = {}
    for measure in ("leave_one_out", "gradient"):
        tau = draw.uniform(-1, 1, size=n)
        tau[:3] = np.nan, 1.0, -1.0
        taus[f"attention_{measure}_tau"] = tau
        taus[f"attention_{measure}_significant"] = (tau > 0.5).astype(float)
    largest = uniform()
    largest[0] = 1.0
    farthest = draw.uniform(0.3, np.log(2), size=n)
    parts = {
        "correlation": {**taus, "significant_by_chance": 0.025 * np.ones(n)},
        "permutation": {"max_attention": largest, "median_tvd": uniform() ** 2},
        "adversarial": {
            "epsilon_max_jsd@0.01": farthest * uniform(),
            "epsilon_max_jsd@0.05": farthest * np.sqrt(uniform()),
            "epsilon_max_jsd_exact": np.ones(n),
            "largest_jsd": farthest,
        },
        "erasure": {**flips, "delta_attention": uniform(), "delta_js": draw.normal(0.1, 0.1, n)},
        "input_erasure": {
            f"{family}@{ranking}": draw.normal(mean, 0.2, size=n)
            for family in ("comprehensiveness", "sufficiency")
            for ranking, mean in (("attention", 0.3), ("random", 0.1), ("product", 0.4))
        },
        "plausibility": {"auprc@attention": uniform(), "auprc@random": 0.2 * uniform()},
    }
    rows = [long_rows(v, test, layer, head) for test, v in parts.items()]
    predicted = {"predicted_class": np.arange(n) % n_classes, "n_tokens": np.full(n, 9)}
    rows.append(long_rows(predicted, "prediction", -1, -1))
    return pd.concat(rows, ignore_index=True).sample(frac=1, random_state=0)


def judged_rows(place, effect, share, n=80, seed=0):
    """Rows of a head that shuffling moves by ``effect``, right in a ``share`` of the texts.

    The four statistics that vary have means of just these places between random and best, so
    that importance, removal, mass and their mean, faithfulness, are the share.
    """
    draw = np.random.default_rng([seed, *(side + 2 for side in place)])
    right = (np.arange(n) < round(share * n)).astype(float)
    draw.shuffle(right)
    moved = draw.uniform(0, 2, size=n)
    moved *= effect / moved.mean()
    of_scale = {
        "importance@attention": right,
        "mass@attention": 0.2 + 0.8 * right,
        "mass_by_chance@attention": np.full(n, 0.2),
        "removal@attention": 0.1 + 0.4 * right,
        "removal@random": np.full(n, 0.1),
        "removal@best": np.full(n, 0.5),
    }
    shuffled = {"median_tvd": moved / 2, "standard_tvd": moved, "largest_standard_tvd": 1.5 * moved}
    rows = [long_rows(shuffled, "permutation", *place), long_rows(of_scale, "scale", *place)]
    return pd.concat(rows, ignore_index=True)


def head_rows(n=80, n_layers=3, n_heads=4):
    """Rows of single heads, of layers, and of all attention."""
    draw = np.random.default_rng(3)
    sites = [(k, h) for k in range(n_layers) for h in (*range(n_heads), -1)]
    rows = []
    for layer, head in [*sites, (-1, -1)]:
        effect = 0.04 * (2 + layer) * (1 if head >= 0 else 4)
        share = 0.9 if head in (1, -1) else 0.1 * head
        rows.append(judged_rows((layer, head), effect, share, n))
        tau = {"attention_leave_one_out_tau": draw.uniform(-0.4, 0.6, size=n)}
        rows.append(long_rows(tau, "correlation", layer, head))
    rows.append(long_rows({"predicted_class": np.arange(n) % 2}, "prediction", -1, -1))
    return pd.concat(rows, ignore_index=True)
