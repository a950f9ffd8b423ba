"""Check for all tests and sites that results do not depend on padding, order or the other texts of a batch."""

from dataclasses import replace

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.site_selection import list_sites_by_test, parse_head_sets
from hf_attnprobe.faithfulness import options
from hf_attnprobe.faithfulness.interchange import collect_donors
from hf_attnprobe.faithfulness.registry import load_tests as all_tests
from hf_attnprobe.protocol import ALL, HEAD_SET, ExchangeableStates, HeadOutputs, Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import pair_models, tiny_models


ROWS = (
    [2, 5, 6, 7, 7, 8, 9, 5, 3],
    [2, 9, 6, 4, 7, 3],
    [2, 8, 5, 3],
    [2, 7, 3],
    [2, 11, 9, 12, 6, 8, 14, 3],
)
IDS, LABELS = (3, 1, 4, 15, 9), torch.tensor([1, 0, -1, 1, 0])
EVERY_OPTION = [
    options.Adversarial(method="search", n_steps=5, n_starts=2),
    options.AttributionAgreement(attention="held", n_steps=5),
    options.Erasure(renormalise=False, draw="released", all_zero=True, bottom_up=True),
    options.Explanations(flow_positions=8, target=1),
    options.InputErasure(by="mask", beam_width=2, tokens_to_flip=True),
    options.Plausibility(integrated_gradients=True),
    options.Shapley(exact_units=3, n_orders=5),
]
MODELS = {
    "two classes": lambda: tiny_models.classifier(20, read_out=10, query=10),
    "four classes": lambda: tiny_models.classifier(
        20, read_out=10, encoder="cnn", attention="dot_product", num_labels=4
    ),
    "bert": lambda: tiny_models.bert(20, num_labels=3),
    "sentences": lambda: tiny_models.classifier(
        20, read_out=5, query=5, encoder="bigru", num_labels=3, hierarchical=True, sep_token_id=8
    ),
    "pairs": lambda: pair_models.make(answers=[5, 6, 7]),
}
GROUPS = (Site(1, ALL), Site(ALL, ALL), Site(HEAD_SET, 0), Site(ALL, ALL, 0))


def make_batch(adapter, rows, extra=0):
    """Some of the texts, of which something is marked; a pair's second text has its first two words."""
    chosen = [ROWS[row] for row in rows]
    inputs = tiny_models.encoded(chosen, extra=extra)
    if adapter.model.config.to_dict().get("query_encoder"):
        longest = max(map(len, chosen)) + 4 + extra
        inputs = pair_models.make_batch([(row[1:-1], row[1:-1][:2]) for row in chosen], longest)
    batch = adapter.prepare(inputs, tuple(IDS[row] for row in rows), LABELS[list(rows)])
    marked = batch.content_mask.clone()
    marked[:, 3::2] = False
    return replace(batch, rationale=marked)


def test_options_that_are_none_of_all_tests():
    assert {type(given) for given in EVERY_OPTION} <= {t.options for t in all_tests().values()}


@pytest.mark.parametrize("name", tiny_models.daily(MODELS, ("two classes", "sentences")))
def test_alone_or_together(name):
    adapter = wrap(MODELS[name](), dtype=torch.float64, mask_id=1)
    sites, groups = adapter.sites(), ()
    if name == "bert":
        sites, groups = [Site(0, 1), Site(1, 0, 0)], GROUPS
        adapter.head_sets = parse_head_sets(adapter, ("0.1+1.0",))
    if not adapter.lacks(HeadOutputs):
        sample = tiny_models.encoded([ROWS[2], [2, 13, 10, 3], [2, 17, 3]])
        adapter.set_reference(adapter.prepare(sample, (4, 7, 8)))
    order, alone_of = (4, 2, 0, 3, 1), (0, 3, 4)
    whole_batch = make_batch(adapter, range(5))
    if not adapter.lacks(ExchangeableStates):
        adapter.donors = collect_donors(adapter, [whole_batch], [*sites, *groups], 3)
    together = adapter.observe(whole_batch)
    other = adapter.observe(make_batch(adapter, order, extra=3))
    alone = {row: adapter.observe(make_batch(adapter, [row], extra=row)) for row in alone_of}
    n_compared, random = 0, set()
    for test_name, places in list_sites_by_test([*all_tests()], adapter, sites, groups).items():
        test = all_tests()[test_name]
        for site in places:
            for chosen in [None, *(own for own in EVERY_OPTION if type(own) is test.options)]:
                arguments = () if chosen is None else (chosen,)

                def found(seen, seed=3, test=test, site=site, arguments=arguments):
                    return collect_statistics(test.function(seen, site, *arguments, seed=seed))

                whole, moved = found(together), found(other)
                single = {row: found(alone[row]) for row in alone_of}
                again = found(together, seed=4) if name == "four classes" else whole
                for statistic, values in whole.items():
                    if not torch.allclose(again[statistic], values, equal_nan=True):
                        random.add(test_name)
                    where = (test_name, site, chosen, statistic)
                    both = [(values[list(order)], moved[statistic])]
                    both += [(values[[row]], single[row][statistic]) for row in alone_of]
                    for ours, theirs in both:
                        assert torch.allclose(ours, theirs, atol=1e-8, equal_nan=True), where
                    n_compared += 1
    assert n_compared > 150
    if name == "four classes":  # nothing else knows of the seed
        drawn = [
            "permutation",
            "adversarial",
            "erasure",
            "input_erasure",
            "plausibility",
            "scale",
            "shapley",
        ]
        assert random - {"fragility"} == {*drawn}  # of few shuffles all may decide alike
