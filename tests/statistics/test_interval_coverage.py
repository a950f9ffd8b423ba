"""How often the intervals hold, simulated again: a part of the cells; all of them where slow tests run."""

import json

import numpy as np
import pytest

from coverage_table import SIMULATIONS, SIZES, STORED, measure_coverage


FOUND = {(row["kind"], row["texts"]): row["found"] for row in json.loads(STORED.read_text())}
ENOUGH = 0.93
BELOW = {
    ("mean", "lognormal, σ 1"): (30,),
    ("mean", "90% are 0, else Beta(1, 4)"): (30,),
    ("mean", "97% are 0, else Beta(1, 4)"): (30, 100),
    ("R²", "predictions that explain .36"): (30,),
    ("mean", "exponential, every text 2 to 5 times"): SIZES,
}
"""What the documentation says holds less often."""
QUICK = [
    cell for cell in SIMULATIONS if cell[0].startswith(("mean", "share of", "difference of shares"))
]


def test_every_cell_is_stored_and_holds_often_enough():
    assert list(FOUND) == list(SIMULATIONS)
    for cell, found in FOUND.items():
        if not cell[0].startswith("all of"):
            below = {n for n in SIZES if found[str(n)][0] < ENOUGH}
            assert below == set(BELOW.get(cell, ())), cell


def test_means_and_shares_of_thirty_texts():
    for cell in QUICK:
        assert measure_coverage(SIMULATIONS[cell], 30) == pytest.approx(
            FOUND[cell]["30"], abs=0.005
        ), cell


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("cell", SIMULATIONS)
def test_all_cells(cell, n):
    found = measure_coverage(SIMULATIONS[cell], n)
    np.testing.assert_allclose(found, FOUND[cell][str(n)], atol=0.005)
