"""Two audits of the same texts, pair by pair."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from hf_attnprobe.statistics.differences import contrast
from hf_attnprobe.statistics.summary import find_statistic


def tidy(test, statistic, values, *, layer=0, head=0, ids=None):
    ids = range(len(values)) if ids is None else ids
    return pd.DataFrame(
        {
            "test": test,
            "statistic": statistic,
            "example_id": ids,
            "layer": layer,
            "head": head,
            "value": values,
        }
    )


@pytest.fixture
def two_audits():
    """Values that share most of their noise, some undefined; other order of texts."""
    rng = np.random.default_rng(0)
    n = 120
    shared = rng.normal(size=n)
    of_model = shared + 0.2 + rng.normal(size=n) / 20
    of_control = shared + rng.normal(size=n) / 20
    of_model[:5], of_control[3:9] = np.nan, np.nan
    classes = rng.integers(0, 2, n).astype(float)
    rows = pd.concat(
        [
            tidy("prediction", "predicted_class", classes, layer=-1, head=-1),
            tidy("correlation", "tau", of_model),
            tidy("correlation", "tau", of_model + 1, layer=-1, head=-1),
            tidy("correlation", "only_here", of_model),
        ]
    )
    other = pd.concat(
        [
            tidy("prediction", "predicted_class", 1 - classes, layer=-1, head=-1),
            tidy("correlation", "tau", of_control),
            tidy("correlation", "tau", of_control - 1, layer=-1, head=-1),
            tidy("correlation", "only_there", of_control),
        ]
    ).sample(frac=1, random_state=1)
    return rows, other, classes, of_model, of_control


def test_differences_equal_numpy(two_audits):
    rows, other, classes, of_model, of_control = two_audits
    contrasts = contrast(rows, other, ["neg", "pos", "never"])
    assert {c.statistic for c in contrasts} == {"tau"}
    assert [c.group for c in contrasts] == ["all", "neg", "pos"] * 2
    groups = {"all": classes >= 0, "neg": classes == 0, "pos": classes == 1}
    for group, members in groups.items():
        paired = members & ~np.isnan(of_model - of_control)
        found = find_statistic(contrasts, "tau", group=group)
        assert found.n == paired.sum()
        assert found.mean == pytest.approx(of_model[paired].mean())
        assert found.control_mean == pytest.approx(of_control[paired].mean())
        assert found.value == pytest.approx((of_model - of_control)[paired].mean())
    of_all_heads = find_statistic(contrasts, "tau", layer=-1, head=-1)
    assert of_all_heads.value == pytest.approx(find_statistic(contrasts, "tau").value + 2)


def test_pairing_takes_out_what_the_models_share(two_audits):
    """As the paired t interval, and narrower than one of two samples of texts."""
    rows, other, _, of_model, of_control = two_audits
    found = find_statistic(contrast(rows, other, ["neg", "pos"]), "tau")
    differences = (of_model - of_control)[~np.isnan(of_model - of_control)]
    expected = scipy.stats.ttest_1samp(differences, 0).confidence_interval()
    assert found.ci95 == pytest.approx((expected.low, expected.high), abs=0.004)
    unpaired = scipy.stats.ttest_ind(of_model, of_control, nan_policy="omit")
    wide = unpaired.confidence_interval()
    assert found.ci95[1] - found.ci95[0] < (wide.high - wide.low) / 5


def test_only_texts_of_both_count(two_audits):
    rows, other, _, of_model, _ = two_audits
    other = other[other.example_id >= 60]
    found = find_statistic(contrast(rows, other, ["neg", "pos"]), "tau")
    assert found.n == 60
    assert found.mean == pytest.approx(of_model[60:].mean())


def test_without_a_pair_there_is_no_contrast():
    rows = tidy("correlation", "tau", [0.5, np.nan])
    other = tidy("correlation", "tau", [np.nan, 0.5])
    (only,) = contrast(rows, other, [])
    assert only.n == 0
    assert np.isnan([only.mean, only.value, *only.ci95]).all()
    assert find_statistic([only], "tau") is None
    elsewhere = tidy("correlation", "tau", [0.5], ids=[7])
    assert contrast(rows, elsewhere, []) == ()
