"""Data sets drawn at random are read with the labels that they have, or refused in one line."""

from collections import Counter

import pytest

from tests.helpers.random_data import check_case, draw_case


N_DAILY = 60
N_SLOW = 1000

pytestmark = pytest.mark.usefixtures("private_cache")


def check_cases(seeds, folder):
    outcomes = Counter()
    for seed in seeds:
        case_folder = folder / f"case-{seed}"
        case_folder.mkdir()
        outcomes[check_case(draw_case(seed, case_folder))] += 1
    return outcomes


def test_drawn_data_are_read_or_refused(tmp_path):
    outcomes = check_cases(range(N_DAILY), tmp_path)
    assert outcomes["read"] > outcomes["refused"] > 0


@pytest.mark.slow
def test_many_drawn_data_are_read_or_refused(tmp_path):
    outcomes = check_cases(range(N_DAILY, N_DAILY + N_SLOW), tmp_path)
    assert outcomes["read"] > outcomes["refused"] > 0
