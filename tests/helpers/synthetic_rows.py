"""Synthetic rows in the long form that audits store."""

import numpy as np
import pandas as pd


def make_rows(values, *, ids=None, layer=0, head=0):
    """Make rows of one site.

    Args:
        values: values [texts], or one number for all texts, by (test, statistic).
        ids: ids of the texts; by default 0, 1, … up to the length of the longest values.
        layer: layer of the site.
        head: head of the site.
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


def make_test_rows(values, test, layer=0, head=0):
    """Make rows of one test from statistics [texts] by name, with the ids 100, 101, …."""
    ids = np.arange(100, 100 + len(next(iter(values.values()))))
    named = {(test, name): column for name, column in values.items()}
    return make_rows(named, ids=ids, layer=np.int32(layer), head=np.int32(head))


def make_audit_rows(n=400, n_classes=2, layer=0, head=0):
    """Make rows of every test that has a chart, with NaN as in the rows of real audits."""
    generator = np.random.default_rng(7)

    def uniform():
        return generator.uniform(size=n)

    smallest = generator.uniform(0.05, 0.4, size=n)
    flips = {
        "fraction_to_flip@attention": smallest + 0.5 * uniform(),
        "fraction_to_flip@random": smallest + 0.6 * uniform(),
        "fraction_to_flip@random_1": smallest + 0.6 * uniform(),
        "fraction_to_flip@product": smallest + 0.1 * uniform(),
        "fraction_to_flip@margin": smallest,
        "never_flips@attention": (uniform() < 0.2).astype(float),
        "minimal_fraction": smallest,
    }
    cannot_flip = uniform() < 0.3
    flips = {name: np.where(cannot_flip, np.nan, column) for name, column in flips.items()}
    taus = {}
    for measure in ("leave_one_out", "gradient"):
        tau = generator.uniform(-1, 1, size=n)
        tau[:3] = np.nan, 1.0, -1.0
        taus[f"attention_{measure}_tau"] = tau
        taus[f"attention_{measure}_significant"] = (tau > 0.5).astype(float)
    max_attention = uniform()
    max_attention[0] = 1.0
    largest_jsd = generator.uniform(0.3, np.log(2), size=n)
    parts = {
        "correlation": {**taus, "significant_by_chance": 0.025 * np.ones(n)},
        "permutation": {"max_attention": max_attention, "median_tvd": uniform() ** 2},
        "adversarial": {
            "epsilon_max_jsd@0.01": largest_jsd * uniform(),
            "epsilon_max_jsd@0.05": largest_jsd * np.sqrt(uniform()),
            "epsilon_max_jsd_exact": np.ones(n),
            "largest_jsd": largest_jsd,
        },
        "erasure": {
            **flips,
            "delta_attention": uniform(),
            "delta_js": generator.normal(0.1, 0.1, n),
        },
        "input_erasure": {
            f"{family}@{ranking}": generator.normal(mean, 0.2, size=n)
            for family in ("comprehensiveness", "sufficiency")
            for ranking, mean in (("attention", 0.3), ("random", 0.1), ("product", 0.4))
        },
        "plausibility": {"auprc@attention": uniform(), "auprc@random": 0.2 * uniform()},
    }
    rows = [make_test_rows(v, test, layer, head) for test, v in parts.items()]
    predicted = {"predicted_class": np.arange(n) % n_classes, "n_tokens": np.full(n, 9)}
    rows.append(make_test_rows(predicted, "prediction", -1, -1))
    return pd.concat(rows, ignore_index=True).sample(frac=1, random_state=0)


def convert_to_exchange(rows):
    """Rename the statistics of the test "scale" to those of the same parts by exchange.

    The largest loss has no such counterpart. It is left out.
    """
    is_part = rows.statistic.str.startswith(("importance@", "removal@", "mass"))
    exchanged = rows[(rows.test == "scale") & is_part]
    return exchanged.assign(test="exchange", statistic="exchange_" + exchanged.statistic)


def make_head_rows(site, effect, share, n=80, seed=0):
    """Make rows of a head with a given effect, whose attention is right in a share of the texts.

    Importance, removal and mass, and therefore faithfulness, are equal to ``share``. The path share
    of a head or a layer is equal to the effect, and that of all attention is four times as large.

    Args:
        site: layer and head.
        effect: mean change of the output by the median shuffle.
        share: share of the texts.
        n: number of texts.
        seed: seed of the random generator.
    """
    generator = np.random.default_rng([seed, *(index + 2 for index in site)])
    is_right = (np.arange(n) < round(share * n)).astype(float)
    generator.shuffle(is_right)
    changes = generator.uniform(0, 2, size=n)
    changes *= effect / changes.mean()
    scale_values = {
        "importance@attention": is_right,
        "mass@attention": 0.2 + 0.8 * is_right,
        "mass_by_chance@attention": np.full(n, 0.2),
        "removal@attention": 0.1 + 0.4 * is_right,
        "removal@random": np.full(n, 0.1),
        "removal@best": np.full(n, 0.5),
    }
    shuffle_values = {
        "median_tvd": changes / 2,
        "standard_tvd": changes,
        "largest_standard_tvd": 1.5 * changes,
    }
    factor = 4 if site == (-1, -1) else 1
    path_values = {"path_share": np.minimum(1, factor * changes), "uniform_tvd": changes}
    rows = [
        make_test_rows(shuffle_values, "permutation", *site),
        make_test_rows(path_values, "uniform_attention", *site),
        make_test_rows(scale_values, "scale", *site),
    ]
    return pd.concat(rows, ignore_index=True)


def make_many_head_rows(n=80, n_layers=3, n_heads=4):
    """Make rows of single heads, of layers, and of all attention."""
    generator = np.random.default_rng(3)
    sites = [(k, h) for k in range(n_layers) for h in (*range(n_heads), -1)]
    rows = []
    for layer, head in [*sites, (-1, -1)]:
        effect = 0.04 * (2 + layer) * (1 if head >= 0 else 4)
        share = 0.9 if head in (1, -1) else 0.1 * head
        rows.append(make_head_rows((layer, head), effect, share, n))
        tau = {"attention_leave_one_out_tau": generator.uniform(-0.4, 0.6, size=n)}
        rows.append(make_test_rows(tau, "correlation", layer, head))
    rows.append(make_test_rows({"predicted_class": np.arange(n) % 2}, "prediction", -1, -1))
    return pd.concat(rows, ignore_index=True)
