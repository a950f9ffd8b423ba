"""Compare comprehensiveness, sufficiency and NAOPC with a plain loop over edited token lists."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BertForSequenceClassification

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.input_erasure import HEAD_RANKINGS, input_erasure
from hf_attnprobe.faithfulness.options import InputErasure
from hf_attnprobe.faithfulness.rankings import TEXT_RANKINGS, compute_ranking
from hf_attnprobe.functional import aopc
from hf_attnprobe.protocol import Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import tiny_models


TEXTS = (
    [2, *range(5, 30), 3],
    [2, 9, 6, 4, 7, 11, 3],
    [2, 8, 5, 3],
    [2, 12, 3],
    [2, *range(31, 42), 3],
)
WORDS = (
    [n // 2 for n in range(25)],
    [0, 1, 1, 1, 2],
    [0, 1],
    [0],
    [0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 6],
)
MASK = 4


def classifier():
    return tiny_models.classifier(60, read_out=10, query=10, seed=1)


def bert():
    return tiny_models.bert(heads=4, width=32, num_labels=3)


def observe(model, texts=TEXTS, words=WORDS, example_ids=(3, 1, 4, 15, 9)):
    """Words of several pieces where the model is a Transformer."""
    adapter = wrap(model, dtype=torch.float64, mask_id=MASK)
    inputs = tiny_models.encoded(texts)
    if isinstance(model, BertForSequenceClassification):
        rows = [torch.tensor([-1, *row, -1]) for row in words]
        inputs["word_ids"] = pad_sequence(rows, batch_first=True, padding_value=-1)
    return adapter, adapter.observe(adapter.prepare(inputs, example_ids))


def list_units(observation, row):
    """Token positions of each unit of a text, from its first token on."""
    firsts = observation.batch.content_mask[row].nonzero()[:, 0].tolist()
    if "units" not in observation.batch.inputs:
        return [[first] for first in firsts]
    last = int((observation.batch.inputs["input_ids"][row] > 0).sum()) - 1
    return [list(range(start, end)) for start, end in itertools.pairwise([*firsts, last])]


class ByHand:
    """p of the predicted class of one text without some of its units, through the model itself."""

    def __init__(self, model, observation, row, by="deletion", sharpness=1.0):
        self.model, self.by, self.sharpness = model.double(), by, sharpness
        self.ids = [token for token in observation.batch.inputs["input_ids"][row].tolist() if token]
        self.units = list_units(observation, row)
        self.target = int(observation.probs[row].argmax())
        self.p = functools.cache(self.p_without)

    @torch.no_grad()
    def p_without(self, gone):
        places = {place for unit in gone for place in self.units[unit]}
        if self.by == "mask":
            ids = [MASK if place in places else token for place, token in enumerate(self.ids)]
        else:
            ids = [token for place, token in enumerate(self.ids) if place not in places]
        ids = torch.tensor([ids])
        logits = self.model(ids, attention_mask=torch.ones_like(ids)).logits[0]
        return (self.sharpness * logits).softmax(-1)[self.target].item()

    def drop(self, gone):
        return self.p(frozenset()) - self.p(frozenset(gone))

    def removal(self, order, *, kept=False):
        """The mean drop without the first 1, 5, 10, 20 and 50%, or with these alone."""
        shares = (0.01, 0.05, 0.1, 0.2, 0.5)
        counts = [max(1, math.ceil(round(len(order) * share, 9))) for share in shares]
        return sum(self.drop(order[n:] if kept else order[:n]) for n in counts) / 5

    def aopc(self, order):
        return sum(self.drop(order[: k + 1]) for k in range(len(order))) / len(order)

    @property
    def every_order(self):
        return [*itertools.permutations(range(len(self.units)))]

    def values(self):
        """Shapley values: the mean over all orders of what a unit's leaving costs."""
        result = np.zeros(len(self.units))
        for order in self.every_order:
            for k, unit in enumerate(order):
                result[unit] += self.drop(order[: k + 1]) - self.drop(order[:k])
        return result / len(self.every_order)


def rank_by_all_orders(adapter, observation, site, row):
    """The units of a text in the order of every ranking, highest first, then by place; from the importances themselves."""
    content = observation.batch.content_mask[row]
    slopes = observation.attention_gradient[site.layer] * observation.attention[site.layer]
    values = {
        "attention": observation.read(site),
        "product": adapter.select_row(observation, slopes[:, site.head], site),
        "input_gradient": observation.compute_gradient_importance(),
        "leave_one_out": observation.compute_leave_one_out_importance(),
        "random": compute_ranking(observation, site, "random", seed=5),
    }
    scores = {name: x[row][content].tolist() for name, x in values.items()}
    return {
        name: sorted(range(len(x)), key=lambda unit: (-x[unit], unit)) for name, x in scores.items()
    }


CASES = [(classifier, Site()), (bert, Site(0, 1)), (bert, Site(1, 2, 0))]


@pytest.mark.parametrize("by", ["deletion", "mask"])
@pytest.mark.parametrize(("make", "site"), CASES)
def test_both_are_what_a_plain_loop_finds(make, site, by):
    model = make()
    adapter, observation = observe(model)
    result = input_erasure(observation, site, InputErasure(by=by), seed=5)
    assert (
        result.comprehensiveness.keys()
        == result.sufficiency.keys()
        == {*HEAD_RANKINGS, *TEXT_RANKINGS}
    )
    for row in range(len(TEXTS)):
        hand = ByHand(model, observation, row, by)
        for name, order in rank_by_all_orders(adapter, observation, site, row).items():
            comprehensiveness, sufficiency = hand.removal(order), hand.removal(order, kept=True)
            own = result.comprehensiveness[name][row].item(), result.sufficiency[name][row].item()
            assert own == pytest.approx((comprehensiveness, sufficiency), abs=1e-6), name


@pytest.mark.parametrize(("make", "site"), CASES[:2])
def test_normalised_is_placed_between_all_orders(make, site):
    model = make()
    adapter, observation = observe(model)
    result = input_erasure(observation, site, InputErasure(beam_width=1), seed=5)
    for row in (1, 2):
        hand = ByHand(model, observation, row)
        every = [hand.aopc(order) for order in hand.every_order]
        low, high = min(every), max(every)
        for name, order in rank_by_all_orders(adapter, observation, site, row).items():
            expected = [(hand.aopc(o) - low) / (high - low) for o in (order, order[::-1])]
            own = result.naopc_comprehensiveness[name][row], result.naopc_sufficiency[name][row]
            assert [*map(float, own)] == pytest.approx(expected, abs=1e-4), name
    assert all(x[3].isnan() for x in result.naopc_comprehensiveness.values())  # one unit, one order


@pytest.mark.parametrize(("make", "site"), CASES[:2])
def test_a_wide_beam_is_exact_and_a_narrow_one_within(make, site, monkeypatch):
    _, observation = observe(make(), TEXTS[1:], WORDS[1:], (1, 4, 15, 9))
    short = observation.batch.content_mask.sum(-1) <= 8
    exact = collect_statistics(input_erasure(observation, site, InputErasure(beam_width=1)))
    monkeypatch.setattr(aopc, "MAX_UNITS_OF_EXACT_BOUNDS", 0)
    _adapter, observation = observe(make(), TEXTS[1:], WORDS[1:], (1, 4, 15, 9))
    wide, narrow = (
        collect_statistics(input_erasure(observation, site, InputErasure(beam_width=k)))
        for k in (40, 1)
    )
    for name, values in exact.items():
        if name.startswith("naopc"):
            result = wide[name][short]
            torch.testing.assert_close(result, values[short], atol=1e-6, rtol=0, equal_nan=True)
            real = narrow[name][~narrow[name].isnan()]
            assert ((real >= 0) & (real <= 1)).all()


def test_not_normalised_unless_asked():
    _adapter, observation = observe(classifier())
    result = input_erasure(observation, Site())
    assert result.naopc_comprehensiveness is result.naopc_sufficiency is None


def test_the_seed_is_of_the_random_ranking_alone():
    _adapter, observation = observe(bert())
    first, second = (
        collect_statistics(input_erasure(observation, Site(1, 0), seed=seed)) for seed in (0, 1)
    )
    apart = {
        name.split("@")[1]
        for name in first
        if not torch.allclose(first[name], second[name], rtol=0, atol=1e-9)
    }
    assert apart == {"random"}


def test_what_does_not_depend_on_the_head_is_run_once(monkeypatch):
    adapter, observation = observe(bert())
    content, asked, n_run = observation.batch.content_mask, set(), []
    erase, logits = adapter.erase_inputs, adapter.compute_logits

    def note_sets(observation, sets, **options):
        for erased in sets & content:
            asked.update((row, tuple(gone.tolist())) for row, gone in enumerate(erased))
        return erase(observation, sets, **options)

    def note_texts(inputs, *edit):
        n_run.extend([] if edit else [len(inputs["input_ids"])])
        return logits(inputs, *edit)

    monkeypatch.setattr(adapter, "erase_inputs", note_sets)
    monkeypatch.setattr(adapter, "compute_logits", note_texts)
    for site in (Site(0, 0), Site(0, 1), Site(1, 3)):
        input_erasure(observation, site)
    assert sum(n_run) == sum(any(gone) for _, gone in asked) > 100
