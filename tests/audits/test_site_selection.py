"""Selection of sites: halves of the texts, groups of heads, and sets of heads that are refused."""

import pytest

from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.site_selection import (
    assign_half,
    list_groups,
    list_sites_by_test,
    parse_head_sets,
)
from hf_attnprobe.faithfulness.registry import load_tests as all_tests
from hf_attnprobe.protocol import ALL, HEAD_SET, Site
from hf_attnprobe.statistics.sampling import draw_sample
from tests.faithfulness.test_groups import EVERYWHERE, N_HEADS, N_LAYERS, RUNS, make_model, observe
from tests.helpers.error_messages import refuses


def test_halves_are_even_and_depend_on_the_id_alone():
    found = [assign_half(i) for i in range(10_000)]
    assert found[:8] == [0, 0, 1, 1, 0, 1, 0, 0]  # for ever: folders rely on it
    assert sum(found) == pytest.approx(5000, abs=200)
    for n in (50, 200):  # a drawn sample has both halves
        drawn = draw_sample(range(10_000), range(10_000), n)
        assert 0.3 < sum(assign_half(i) for i in drawn) / n < 0.7


def test_which_groups_are_tested():
    adapter = observe().model
    heads = adapter.sites()
    sets = [Site(HEAD_SET, 0), Site(HEAD_SET, 1)]
    layers = [Site(layer, ALL) for layer in range(N_LAYERS)]
    assert list_groups(adapter, heads) == [EVERYWHERE, *layers, *sets]
    assert list_groups(adapter, heads, includes_layers=False) == sets
    assert list_groups(adapter, heads[1:]) == [*layers[1:], *sets]
    asked = [site._replace(query=2) for site in heads[:N_HEADS]]
    assert list_groups(adapter, asked)[0] == Site(0, ALL, 2)
    where = list_sites_by_test(["permutation", "conicity"], adapter, heads[:2], [EVERYWHERE])
    assert where == {"permutation": [*heads[:2], EVERYWHERE], "conicity": heads[:2]}
    assert all(all_tests()[name].groups for name in RUNS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("5", r"such as 0.0\+2.3, got .* the heads 0.0 to 2.3"),
        ("1.0+", r"such as 0.0\+2.3, got .* the heads 0.0 to 2.3"),
        ("1.0,2.1", r"such as 0.0\+2.3, got .* the heads 0.0 to 2.3"),
        ("-1.0", r"such as 0.0\+2.3, got .* the heads 0.0 to 2.3"),
        ("1.0+1.0", "different heads"),
        ("3.0", "got '3.0'.* the heads 0.0 to 2.3"),
        ("0.1+2.4", "got '0.1\\+2.4'.* the heads 0.0 to 2.3"),
    ],
)
def test_other_sets_of_heads_are_refused_in_one_line(name, said):
    adapter = wrap(make_model())
    with refuses(said) as caught:
        parse_head_sets(adapter, [name])
    assert "--head-sets" in str(caught.value)
    assert repr(name) in str(caught.value)
