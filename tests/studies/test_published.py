"""Published numbers: they are of every data set and class."""

from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.studies.published import PUBLISHED


def test_published_numbers_are_of_every_data_set_and_class():
    tables = PUBLISHED.tau, PUBLISHED.epsilon_max_jsd, PUBLISHED.permutation
    assert all(set(table) == set(PUBLISHED.reruns) for table in tables)
    for name in PUBLISHED.reruns:
        n = 1 if name in PUBLISHED.pooled else RECIPES[name].card.n_classes
        by_class = [*PUBLISHED.epsilon_max_jsd[name].values()]
        for table in (PUBLISHED.tau, PUBLISHED.permutation):
            by_class += [found for below in table[name].values() for found in below.values()]
        assert {len(values) for values in by_class} == {n}
