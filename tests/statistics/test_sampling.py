"""Samples: the texts that are drawn, ordered, shared out and counted."""

import hashlib

import pandas as pd

from hf_attnprobe.statistics.rows import Rows, select_gapless_rows
from hf_attnprobe.statistics.sampling import (
    draw_random_order,
    draw_sample,
    list_share_indices,
    order_by_hash,
)
from tests.helpers.synthetic_rows import make_rows


def test_only_texts_up_to_a_gap_count_whatever_was_run():
    order = draw_random_order(range(10), seed=4)
    gap = order[:2] + order[3:]
    rows = [
        make_rows({("a", "x"): 1.0}, ids=sorted(ids), head=head)
        for head, ids in enumerate((order[:6], gap))
    ]
    kept = select_gapless_rows(Rows.coerce(pd.concat(rows)), order)
    by_place = (
        kept.build_long_frame().groupby(["test", "layer", "head"]).example_id.agg(set).to_dict()
    )
    assert by_place == {("a", 0, 0): set(order[:6]), ("a", 0, 1): set(order[:2])}


def test_the_order_is_that_of_the_hashes_of_the_ids():
    ids = [7, 3, 11, 2, 19]
    hashes = [hashlib.sha256(str(number).encode()).hexdigest() for number in ids]
    expected = sorted(range(len(ids)), key=hashes.__getitem__)
    assert order_by_hash(ids) == expected
    assert order_by_hash(ids, 2) == expected[:2]


def test_a_smaller_sample_is_part_of_a_larger_one():
    rows, ids = [*range(100, 160)], [*range(0, 180, 3)]
    samples = [draw_sample(rows, ids, n) for n in (5, 20, 60)]
    assert [len(sample) for sample in samples] == [5, 20, 60]
    assert set(samples[0]) < set(samples[1]) < set(samples[2])
    assert all(sample == sorted(sample) for sample in samples)
    assert draw_sample(rows, ids, None) == rows
    turned = draw_sample(rows[::-1], ids[::-1], 5)
    assert sorted(turned) == samples[0]  # whatever the order of the rows


def test_a_random_order_depends_on_its_seed_alone():
    orders = [draw_random_order(range(50), seed) for seed in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == [*range(50)] for order in orders)
    assert draw_random_order([*range(50)][::-1] * 2, 1) == orders[1]


def test_shares_are_of_similar_size_and_those_of_the_ids():
    shares = [list_share_indices(range(3000), (k, 3)) for k in range(3)]
    assert all(900 < len(share) < 1100 for share in shares)
    assert list_share_indices([5, 8, 13], (0, 1)) == [0, 1, 2]
    for k in range(3):
        turned = list_share_indices(range(2999, -1, -1), (k, 3))
        assert sorted(2999 - index for index in turned) == shares[k]
