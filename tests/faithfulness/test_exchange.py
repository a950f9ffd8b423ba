"""Compare every statistic of exchanged words with a plain loop over edited texts."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from hf_attnprobe import audit, build_tokenizer
from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.exchange import (
    UNIT_DONOR_STREAM,
    ExchangeResult,
    collect_unit_donors,
    exchange,
)
from hf_attnprobe.faithfulness.options import Exchange
from hf_attnprobe.faithfulness.rankings import compute_ranking
from hf_attnprobe.protocol import ALL, Site, UnitDonors
from hf_attnprobe.storage.rows import collect_statistics
from tests.faithfulness.test_scale import compute_gini_by_pairs
from tests.helpers import pair_models, tiny_models
from tests.helpers.audit_by_name import audit_by_name


SEED = 5
SHARPNESS = 0.37
IDS = (3, 1, 4, 15, 9, 8)


# --- models and their texts ----------------------------------------------------------------------


@dataclass
class Case:
    """A model with texts, how a text is encoded, and how its units are read and replaced.

    Attributes:
        model: the model, in float64.
        texts: its texts, in any form.
        encode: function from texts to inputs of the adapter.
        split: function from a text to the token ids of each unit.
        join: function from a text and new token ids of each unit to the edited text.
        segments: function from a text to the segment of each unit.
        kind: what it predicts: "classes", "labels", "number" or "tags".
    """

    model: torch.nn.Module
    texts: list
    encode: Callable
    split: Callable = list
    join: Callable = lambda text, units: units
    segments: Callable = lambda text: [0] * len(text)
    kind: str = "classes"

    def prepare(self, adapter, texts=None, ids=None):
        """Prepare texts as an audit does, with their segments."""
        texts = self.texts if texts is None else texts
        inputs = self.encode(texts)
        segments = inputs.pop("segments", None)
        batch = adapter.prepare(inputs, IDS[: len(texts)] if ids is None else ids)
        return batch if segments is None else replace(batch, segments=segments)

    @torch.no_grad()
    def compute_logits(self, text):
        """Run one text through the model itself."""
        inputs = self.encode([text])
        extra = ("special_tokens_mask", "word_ids", "segments")
        return self.model(**{k: v for k, v in inputs.items() if k not in extra}).logits[0]

    def compute_distributions(self, text, sharpness):
        """Compute the output of one text at a temperature, [parts, outcomes]."""
        logits = sharpness * self.compute_logits(text)
        if self.kind == "number":
            return logits[:, None]
        if self.kind == "labels":
            return torch.stack([-logits, logits], -1).sigmoid()
        if self.kind == "tags":
            return logits[1:-1].softmax(-1)  # not of the special tokens at both ends
        return logits.softmax(-1)[None]

    def decide(self, text):
        return self.compute_distributions(text, 1.0).argmax(-1).tolist()


def centre(case):
    """Change the biases so that texts are predicted otherwise than others."""
    logits = [case.compute_logits(text) for text in case.texts]
    output = getattr(case.model.classifier, "output", case.model.classifier)
    mean = torch.stack(logits).mean(0)
    with torch.no_grad():
        # A binary classifier has one number, the difference of the two logits.
        output.bias -= mean if len(output.bias) == len(mean) else mean.diff()
    return case


def encode_words(texts):
    """Encode texts that are lists of words of one or more pieces."""
    inputs = tiny_models.encoded([[2, *itertools.chain(*text), 3] for text in texts])
    words = [
        torch.tensor([-1, *(k for k, word in enumerate(text) for _ in word), -1]) for text in texts
    ]
    return inputs | {"word_ids": pad_sequence(words, batch_first=True, padding_value=-1)}


def encode_tokens(texts):
    """Encode texts that are lists of words of a single piece."""
    inputs = encode_words(texts)
    del inputs["word_ids"]
    return inputs


def encode_pairs(texts):
    """Encode pairs of texts with token types and segments; the second text may be empty."""
    rows, types, segments = [], [], []
    for first, second in texts:
        ids = [2, *itertools.chain(*first), 3]
        tokens = [*itertools.chain(*second)]
        rows.append([*ids, *tokens, 3])
        types.append(torch.tensor([0] * len(ids) + [1] * (len(tokens) + 1)))
        segment = [-1, *([0] * (len(ids) - 2)), -1, *([1] * len(tokens)), -1]
        segments.append(torch.tensor(segment))
    return tiny_models.encoded(rows) | {
        "token_type_ids": pad_sequence(types, batch_first=True),
        "segments": pad_sequence(segments, batch_first=True, padding_value=-1),
    }


TOKEN_TEXTS = [
    [[9], [6], [41], [7], [11]],
    [[8], [5]],
    [[token] for token in range(5, 17)],
    [[12]],
    [[30], [31], [9]],
    [[40], [41], [17], [44]],
]
WORD_TEXTS = [
    [[9], [6, 41, 7], [11], [20]],
    [[8], [5, 5]],
    [[5, 6], [7], [8, 9, 10], [11], [12], [13, 14]],
    [[12, 44]],
    [[30], [31], [9, 33]],
    [[40], [41, 42], [17], [44], [9]],
]
PAIR_TEXTS = [
    ([[9], [6], [41], [7]], [[11], [20]]),
    ([[8], [5]], [[51], [52], [53], [54]]),
    ([[5], [6], [7], [8], [9]], [[50]]),
    ([[12]], []),
    ([[30], [31]], [[9], [33], [55]]),
    ([[40], [41], [42]], [[17], [44]]),
]


def make_classifier(n_labels=2):
    sizes = {"read_out": 10, "query": 10, "seed": 1, "num_labels": n_labels}
    model = tiny_models.classifier(60, **sizes).double()
    return centre(Case(model, TOKEN_TEXTS, encode_tokens))


def make_bert(kind="classes", texts=WORD_TEXTS, encode=encode_words, **case):
    model = tiny_models.bert(heads=4, width=32, **tiny_models.HEADS[kind]).double()
    with torch.no_grad():
        model.classifier.weight *= 8
    made = Case(model, texts, encode, kind=kind, **case)
    return made if kind in ("number", "tags") else centre(made)


def make_bert_of_pairs():
    return make_bert(
        texts=PAIR_TEXTS,
        encode=encode_pairs,
        split=lambda text: [*text[0], *text[1]],
        join=lambda text, units: (units[: len(text[0])], units[len(text[0]) :]),
        segments=lambda text: [0] * len(text[0]) + [1] * len(text[1]),
    )


def make_pair_classifier():
    """Words of the first text are exchanged; the question is the text's own."""
    pairs = [*pair_models.PAIRS, ([7, 10, 12, 5], [9, 9]), ([14, 8], [10])]
    return centre(
        Case(
            pair_models.make(),
            pairs,
            pair_models.make_batch,
            split=lambda text: [[token] for token in text[0]],
            join=lambda text, units: ([*itertools.chain(*units)], text[1]),
            segments=lambda text: [0] * len(text[0]),
        )
    )


def make_hierarchical():
    """A unit is a sentence, which the separator ends."""
    separator = 4
    fields = {"encoder": "bigru", "hierarchical": True, "sep_token_id": separator}
    model = tiny_models.classifier(read_out=9, query=5, num_labels=3, **fields).double()

    def encode(texts):
        rows = [
            [2, *itertools.chain(*([*sentence, separator] for sentence in text)), 3]
            for text in texts
        ]
        return tiny_models.encoded(rows, special=(2, 3, separator))

    texts = [
        [[5, 6, 7, 7], [8], [9, 5, 10]],
        [[5, 6]],
        [[7, 9, 8], [6, 6]],
        [[11], [10]],
        [[9], [8, 8, 5], [6], [11, 7]],
        [[10, 6], [7]],
    ]
    return centre(Case(model, texts, encode))


CASES = {
    "classifier of 2": make_classifier,
    "classifier of 3": lambda: make_classifier(3),
    "pair classifier": make_pair_classifier,
    "hierarchical": make_hierarchical,
    "bert": make_bert,
    "bert of pairs": make_bert_of_pairs,
    "labels": lambda: make_bert("labels"),
    "number": lambda: make_bert("number"),
    "tags": lambda: make_bert("tags", [text * 2 for text in TOKEN_TEXTS], encode_tokens),
}
"""Functions that make a model of each kind, with texts."""


def get_site(adapter):
    return adapter.sites()[0] if len(adapter.sites()) == 1 else Site(ALL, ALL)


def observe(case, *, sharpness=SHARPNESS, donor_batches=None, texts=None, ids=None, seed=SEED):
    """Observe texts of a case by an adapter whose donors are all texts of the case."""
    adapter = wrap(case.model, dtype=torch.float64)
    adapter.sharpness = sharpness
    batches = [case.prepare(adapter)]
    if donor_batches is not None:
        batches = [
            case.prepare(adapter, [case.texts[k] for k in rows], tuple(IDS[k] for k in rows))
            for rows in donor_batches
        ]
    adapter.unit_donors = collect_unit_donors(adapter, batches, seed)
    return adapter.observe(case.prepare(adapter, texts, ids))


# --- by hand -------------------------------------------------------------------------------------


class ByHand:
    """Texts of a case, each edited and run through the model by itself."""

    def __init__(self, case, *, n_donors, target=None, sharpness=SHARPNESS):
        self.case, self.n_donors, self.target, self.sharpness = case, n_donors, target, sharpness
        self.orders = cache(self.compute_orders)
        self.distributions = cache(self.compute_distributions)

    def compute_orders(self, row):
        """Units of a text by segment, the one with most attention first."""
        adapter = wrap(self.case.model, dtype=torch.float64)
        observation = adapter.observe(self.case.prepare(adapter, [self.case.texts[row]], (0,)))
        attention = observation.read(get_site(adapter))[0][observation.batch.content_mask[0]]
        orders = {}
        for unit, segment in enumerate(self.case.segments(self.case.texts[row])):
            orders.setdefault(segment, []).append(unit)
        return {s: sorted(units, key=lambda u: -attention[u]) for s, units in orders.items()}

    def find_candidates(self, row):
        """Rows of the texts that are predicted otherwise and have the same segments."""
        texts, kind = self.case.texts, self.case.kind
        rows = [other for other in range(len(texts)) if other != row]
        rows = [k for k in rows if set(self.orders(row)) <= set(self.orders(k))]
        if kind == "number":
            numbers = [float(self.case.compute_logits(text)[0]) for text in texts]
            distances = [abs(number - numbers[row]) for number in numbers]
            middle = sorted(distances)[(len(texts) - 1) // 2]
            return [k for k in rows if distances[k] >= middle and distances[k] > 0]
        if kind == "tags":
            return rows
        decisions = [self.case.decide(text) for text in texts]
        if self.target is None:
            return [k for k in rows if decisions[k] != decisions[row]]
        is_for = [decision[0] == self.target for decision in decisions]
        return [k for k in rows if is_for[k] != is_for[row]]

    def draw_donors(self, row):
        """Rows of the donors of a text; with few candidates, some of them again."""
        candidates = self.find_candidates(row)
        seeds = np.random.SeedSequence([SEED, IDS[row], UNIT_DONOR_STREAM])
        drawn = np.random.default_rng(seeds).permutation(len(candidates))
        return [candidates[drawn[k % len(drawn)]] for k in range(self.n_donors) if len(drawn)]

    def replace_units(self, row, donor):
        """New token ids of every unit of a text from a donor."""
        orders, donor_orders = self.orders(row), self.orders(donor)
        donor_units = self.case.split(self.case.texts[donor])
        new = {}
        for segment, units in orders.items():
            for rank, unit in enumerate(units):
                donor_rank = min(rank, len(donor_orders[segment]) - 1)
                new[unit] = donor_units[donor_orders[segment][donor_rank]]
        return new

    def compute_distributions(self, row, donor, exchanged):
        text = self.case.texts[row]
        units = self.case.split(text)
        if exchanged:
            new = self.replace_units(row, donor)
            units = [new[k] if k in exchanged else unit for k, unit in enumerate(units)]
        edited = self.case.join(text, units)
        return self.case.compute_distributions(edited, self.sharpness)

    def move(self, row, donor, exchanged):
        before = self.distributions(row, None, frozenset())
        after = self.distributions(row, donor, frozenset(exchanged))
        if self.case.kind == "number":
            return float((after - before).abs().mean())
        if self.target is not None:
            return float((after - before)[0, self.target].abs())
        return float((after - before).abs().sum(-1).mean() / 2)

    def compute_mean_movement(self, row, exchanged, n_donors=None):
        donors = self.draw_donors(row)[:n_donors]
        return np.mean([self.move(row, donor, exchanged) for donor in donors])

    def compute_losses(self, row):
        n_units = len(self.case.split(self.case.texts[row]))
        return [self.compute_mean_movement(row, [unit]) for unit in range(n_units)]

    def compute_removal(self, row, order):
        """Of the first two donors alone."""
        shares = (0.01, 0.05, 0.1, 0.2, 0.5)
        counts = [max(1, math.ceil(round(len(order) * share, 9))) for share in shares]
        return np.mean([self.compute_mean_movement(row, order[:count], 2) for count in counts])

    def compute_same_word_share(self, row, attention):
        units = self.case.split(self.case.texts[row])
        new = [self.replace_units(row, donor) for donor in self.draw_donors(row)]
        is_same = [all(contents[k] == unit for contents in new) for k, unit in enumerate(units)]
        return sum(a for a, same in zip(attention, is_same, strict=True) if same) / sum(attention)


def compute_mass(scores, losses):
    """Overlap of two distributions, and the mean overlap over all orders of the first."""
    shares, wanted = np.array(scores) / np.sum(scores), np.array(losses) / np.sum(losses)
    orders = itertools.permutations(range(len(shares)))
    moved = [np.minimum(shares[[*order]], wanted).sum() for order in orders]
    return np.minimum(shares, wanted).sum(), np.mean(moved)


PARAMETERS = [
    *[(name, 3, None) for name in CASES],
    ("classifier of 3", 1, None),
    ("classifier of 3", 7, 1),
    ("bert", 4, 2),
]


DAILY_NAMES = ("classifier of 3", "hierarchical", "tags", "number")


@pytest.mark.parametrize(
    "name, n_donors, target",
    [
        pytest.param(*values, marks=[] if values[0] in DAILY_NAMES else pytest.mark.slow)
        for values in PARAMETERS
    ],
)
def test_every_statistic_is_that_of_a_plain_loop(name, n_donors, target):
    case = CASES[name]()
    observation = observe(case)
    site = get_site(observation.model)
    result = exchange(observation, site, Exchange(target=target, n_donors=n_donors), seed=SEED)
    observation = observation.with_target(target)
    hand = ByHand(case, n_donors=n_donors, target=target)
    content = observation.batch.content_mask
    n_measured, movements = 0, set()
    for row, text in enumerate(case.texts):
        if not hand.draw_donors(row):
            assert result.largest_exchange[row].isnan()
            continue
        n_measured += 1
        n_units = len(case.split(text))
        attention = observation.read(site)[row][content[row]].tolist()
        losses = hand.compute_losses(row)
        movements |= {round(loss, 6) for loss in losses}
        assert result.largest_exchange[row].item() == pytest.approx(max(losses), abs=1e-9)
        same_word = hand.compute_same_word_share(row, attention)
        assert result.same_word[row].item() == pytest.approx(same_word, abs=1e-9)
        removals = [hand.compute_removal(row, sorted(range(n_units), key=lambda k: -losses[k]))]
        for ranking, importance in result.exchange_importance.items():
            ranks = compute_ranking(observation, site, ranking, seed=SEED)[row][content[row]]
            order = sorted(range(n_units), key=lambda k: -ranks[k])
            removals.append(hand.compute_removal(row, order))
            removal = result.exchange_removal[ranking][row].item()
            assert removal == pytest.approx(removals[-1], abs=1e-9), ranking
            if n_units > 1:
                expected = compute_gini_by_pairs(losses, ranks.tolist())
                assert importance[row].item() == pytest.approx(expected, abs=1e-7), ranking
            else:  # no pair of words to be ordered
                assert importance[row].isnan()
        best = result.exchange_removal["best"][row].item()
        assert best == pytest.approx(max(removals), abs=1e-9)
        if n_units <= 6:
            overlap, chance = compute_mass(attention, losses)
            assert result.exchange_mass["attention"][row].item() == pytest.approx(overlap)
            by_chance = result.exchange_mass_by_chance["attention"][row].item()
            assert by_chance == pytest.approx(chance)
    # Nearly all texts were compared, and words differ in how much they matter.
    assert n_measured >= len(case.texts) - 1 and len(movements) > n_measured
    assert {"attention", "random", "leave_one_out"} <= result.exchange_importance.keys()
    assert not {"random", "leave_one_out"} & result.exchange_mass.keys()


def test_words_of_pairs_come_from_the_same_text_of_a_pair():
    """The first text is exchanged for the donor's first; a donor without a second gives nothing."""
    case = make_bert_of_pairs()
    donors = observe(case).model.unit_donors
    assert [set(units) for units in donors.units] == [{0, 1}] * 3 + [{0}] + [{0, 1}] * 2
    for row, (first, second) in enumerate(case.texts):
        contents = {s: [[*ids] for ids in units] for s, units in donors.units[row].items()}
        assert sorted(contents[0]) == sorted(first)
        assert sorted(contents.get(1, [])) == sorted(second)
    hand = ByHand(case, n_donors=9)
    drawn = {row: set(hand.draw_donors(row)) for row in range(len(case.texts))}
    assert all(3 not in drawn[row] for row in drawn if row != 3)
    assert drawn[3]  # to which pairs give words of their first text


# --- what the donors depend on -------------------------------------------------------------------


def flatten(result):
    """Values of each statistic, by its name in stored rows."""
    return collect_statistics(result)


def assert_equal(result, expected, rows):
    """Check that all statistics of some texts are those of rows of another result."""
    result, expected = flatten(result), flatten(expected)
    assert result.keys() == expected.keys() and len(result) > 20
    for name, values in result.items():
        wanted = torch.as_tensor(expected[name])[list(rows)]
        torch.testing.assert_close(
            torch.as_tensor(values), wanted, atol=1e-9, rtol=0, equal_nan=True
        )


BATCHES = [
    [[0], [1], [2], [3], [4], [5]],
    [[4, 1], [0, 5, 3], [2]],
    [[5, 4, 3], [2, 1, 0]],
]


@pytest.mark.parametrize("name", ["classifier of 3", "bert", "bert of pairs", "tags"])
def test_other_batches_and_orders_of_texts_change_nothing(name):
    case = CASES[name]()
    observation = observe(case)
    site = get_site(observation.model)
    expected = exchange(observation, site, seed=SEED)
    for batches in BATCHES:
        for rows in batches:
            texts, ids = [case.texts[k] for k in rows], tuple(IDS[k] for k in rows)
            part = observe(case, texts=texts, ids=ids)
            assert_equal(exchange(part, site, seed=SEED), expected, rows)
    # How the sample of donors is divided into batches does not matter either.
    separate = observe(case, donor_batches=BATCHES[0])
    assert_equal(exchange(separate, site, seed=SEED), expected, range(6))


def test_another_seed_or_id_draws_other_donors():
    """One donor of many: the values are those of other donors, and most of them differ."""
    case = make_classifier()
    draws = np.random.default_rng(0)
    lengths = draws.integers(3, 9, 30)
    case = centre(
        replace(case, texts=[[[int(t)] for t in draws.integers(5, 60, n)] for n in lengths])
    )
    adapter = wrap(case.model, dtype=torch.float64)
    batch = case.prepare(adapter, ids=tuple(range(100, 130)))
    adapter.unit_donors = collect_unit_donors(adapter, [batch], SEED)

    def measure(seed, texts, ids):
        observation = adapter.observe(case.prepare(adapter, texts, ids))
        return exchange(observation, Site(0, 0), Exchange(n_donors=1), seed=seed)

    texts = case.texts[:10]
    ids = tuple(range(100, 110))
    first = measure(SEED, texts, ids).largest_exchange
    assert (first == measure(SEED, texts, ids).largest_exchange).all()
    assert (first != measure(SEED + 1, texts, ids).largest_exchange).sum() > 5
    other_ids = tuple(range(500, 510))
    assert (first != measure(SEED, texts, other_ids).largest_exchange).sum() > 5


def test_equal_weights_are_ordered_by_lot_for_each_text_alone():
    case = make_classifier()
    with torch.no_grad():
        for parameter in case.model.attention_classifier.attention.parameters():
            parameter.zero_()
    case = centre(case)
    donors = observe(case).model.unit_donors

    def list_contents(donors):
        return [[int(ids) for ids in units[0]] for units in donors.units]

    contents = list_contents(donors)
    assert contents[2] != [*range(5, 17)] and sorted(contents[2]) == [*range(5, 17)]
    for batches in BATCHES:
        others = observe(case, donor_batches=batches).model.unit_donors
        by_id = dict(zip(others.example_ids, list_contents(others), strict=True))
        assert [by_id[example_id] for example_id in IDS] == contents
    assert list_contents(observe(case, seed=SEED + 1).model.unit_donors) != contents


# --- texts and models without anything to exchange -----------------------------------------------


@pytest.mark.parametrize("name", ["classifier of 3", "bert", "labels", "number"])
def test_without_another_prediction_everything_is_undefined(name):
    """Every text is predicted alike: one class, the same labels, or the same number."""
    case = CASES[name]()
    with torch.no_grad():
        if name == "number":
            case.model.classifier.weight.zero_()
        case.model.classifier.bias.fill_(99.0 if name == "labels" else 0.0)
        case.model.classifier.bias[-1] = 99.0
    observation = observe(case)
    result = exchange(observation, get_site(observation.model), seed=SEED)
    statistics = flatten(result)
    assert len(statistics) > 20 and {"same_word", "largest_exchange"} < statistics.keys()
    for statistic, values in statistics.items():
        assert np.isnan(np.asarray(values)).all(), statistic


def test_only_the_texts_without_donors_are_undefined():
    """The donors are one text of each class; it is no donor of itself."""
    case = make_classifier()
    decisions = [case.decide(text)[0] for text in case.texts]
    alike = [row for row, decision in enumerate(decisions) if decision == decisions[0]]
    observation = observe(case, donor_batches=[[alike[0]]])
    result = exchange(observation, Site(0, 0), seed=SEED)
    has_none = torch.tensor([row in alike for row in range(len(decisions))])
    assert has_none.any() and not has_none.all()
    for values in (result.largest_exchange, result.same_word, *result.exchange_removal.values()):
        assert (values.isnan() == has_none).all()


def test_without_a_sample_there_are_no_statistics():
    adapter = wrap(make_classifier().model, dtype=torch.float64)
    observation = adapter.observe(make_classifier().prepare(adapter))
    assert exchange(observation, Site(0, 0)) == ExchangeResult()
    assert collect_statistics(ExchangeResult()) == {}


def test_a_text_without_words_has_no_numbers():
    case = make_classifier()
    observation = observe(case, texts=[case.texts[0], [], case.texts[1]], ids=(3, 77, 1))
    result = exchange(observation, Site(0, 0), seed=SEED)
    for values in (result.largest_exchange, result.same_word, result.exchange_removal["best"]):
        assert values.isnan().tolist() == [False, True, False]


def test_where_nothing_matters_importance_and_mass_are_undefined_and_removal_is_zero():
    """Words are exchanged for those of texts that are predicted otherwise, here by hand."""
    case = make_classifier()
    observation = observe(case)
    donors = observation.model.unit_donors
    with torch.no_grad():
        case.model.classifier.weight.zero_()
        case.model.classifier.bias.fill_(-1.0)
    adapter = wrap(case.model, dtype=torch.float64)
    (decision,) = {case.decide(text)[0] for text in case.texts}
    other = torch.eye(2, dtype=torch.float64)[1 - decision]
    adapter.unit_donors = UnitDonors(
        tuple(range(100, 106)), (other,) * 6, donors.units, (None,) * 6
    )
    result = exchange(adapter.observe(case.prepare(adapter)), Site(0, 0), seed=SEED)
    assert result.exchange_importance["attention"].isnan().all()
    assert result.exchange_mass["attention"].isnan().all()
    assert result.exchange_removal["best"].abs().max() < 1e-9
    assert result.largest_exchange.abs().max() < 1e-9


# --- the standard temperature, and words that every text has -------------------------------------


@pytest.mark.parametrize("gain", [0.1, 3.0])
@pytest.mark.parametrize("name", ["classifier of 2", "classifier of 3", "bert", "labels", "number"])
def test_multiplied_logits_change_nothing(name, gain):
    """The temperature that makes predictions alike depends on the gain, the statistics do not."""

    def measure(case):
        adapter = wrap(case.model, dtype=torch.float64)
        probs = adapter.observe(case.prepare(adapter)).probs
        sharpness = adapter.prediction.compute_standard_sharpness(probs)
        observation = observe(case, sharpness=sharpness)
        return sharpness, exchange(observation, get_site(observation.model), seed=SEED)

    case = CASES[name]()
    sharpness, before = measure(case)
    with torch.no_grad():
        for parameter in case.model.classifier.parameters():
            parameter *= gain
    new_sharpness, after = measure(case)
    assert new_sharpness == pytest.approx(sharpness / gain, rel=1e-6)
    before, after = flatten(before), flatten(after)
    assert before.keys() == after.keys() and len(before) > 20
    # Some rankings are read at the model's own temperature, and the best order may be one of them.
    if name == "number":
        moving = "nothing"
    elif name == "classifier of 2":  # a gain multiplies all gradients of a text by one number
        moving = "@(leave_one_out|best)$"
    else:
        moving = "@(gradient|product|input_gradient|leave_one_out|best)$"
    same = [statistic for statistic in before if not re.search(moving, statistic)]
    assert len(same) >= 7 and (name != "number" or len(same) == len(before))
    for statistic in same:
        values = before[statistic]
        np.testing.assert_allclose(
            np.asarray(after[statistic]), np.asarray(values), atol=1e-6, err_msg=statistic
        )


def test_a_word_that_every_donor_has_is_exchanged_for_itself():
    """Its attention is counted, and its exchange moves nothing."""
    case = make_classifier()
    observation = observe(case)
    adapter = observation.model
    attention = observation.read(Site(0, 0))[0, 1:6]
    order = attention.argsort(descending=True).tolist()
    own = [torch.tensor(case.texts[0][unit]) for unit in order]
    other = torch.tensor([59])
    # Of four donors, the first two words are those of the text; the third is so in two of them.
    donors = [(*own[:2], word, other, other) for word in (own[2], other, own[2], other)]
    opposite = 1 - observation.probs[0].argmax().item()
    probs = torch.eye(2, dtype=torch.float64)[opposite]
    adapter.unit_donors = UnitDonors(
        tuple(range(100, 104)),
        (probs,) * 4,
        tuple({0: units} for units in donors),
        (None,) * 4,
    )
    text = adapter.observe(case.prepare(adapter, [case.texts[0]], (3,)))
    result = exchange(text, Site(0, 0), seed=SEED)
    share = (attention[order[0]] + attention[order[1]]) / attention.sum()
    assert result.same_word.item() == pytest.approx(share.item())
    assert 0 < share < 1
    # The first word is that of the text in all donors, so that a removal of it alone moves nothing.
    importance = result.exchange_importance["attention"].item()
    assert importance < 0
    adapter.unit_donors = UnitDonors((100,), (probs,), ({0: tuple(own)},), (None,))
    text = adapter.observe(case.prepare(adapter, [case.texts[0]], (3,)))
    result = exchange(text, Site(0, 0), seed=SEED)
    assert result.same_word.item() == pytest.approx(1.0)
    assert result.largest_exchange.item() == pytest.approx(0, abs=1e-12)
    assert result.exchange_importance["attention"].isnan().all()


def test_a_copy_of_a_text_is_no_donor():
    """It can be predicted otherwise, for example as another tag or after an edit of its labels."""
    case = make_classifier()
    observation = observe(case)
    adapter = observation.model
    text = case.prepare(adapter, [case.texts[0]], (3,))
    probs = torch.eye(2, dtype=torch.float64)[1 - observation.probs[0].argmax().item()]
    units = {0: (torch.tensor([59]),)}
    adapter.unit_donors = UnitDonors((100,), (probs,), (units,), (7,))
    for identity, is_copy in ((7, True), (8, False)):
        observation = adapter.observe(replace(text, identities=torch.tensor([identity])))
        result = exchange(observation, Site(0, 0), seed=SEED)
        assert result.largest_exchange.isnan().all() == is_copy


# --- audits --------------------------------------------------------------------------------------


def make_reviews(n=40):
    """Random texts of one to eight words, and these words."""
    words = [a + b for a in "bdfgk" for b in ("am", "em", "im", "om")]
    draws = np.random.default_rng(2)
    texts = [" ".join(draws.choice(words, draws.integers(1, 9))) for _ in range(n)]
    return [{"text": text, "label": k % 2} for k, text in enumerate(texts)], words


def make_audited_model():
    """A classifier that predicts both classes, with its texts and tokenizer."""
    rows, words = make_reviews()
    tokenizer = build_tokenizer([" ".join(words)] * 9)
    model = tiny_models.classifier(tokenizer, read_out=9, query=5).double()
    with torch.no_grad():
        ids = [tokenizer(row["text"], return_tensors="pt")["input_ids"] for row in rows]
        logits = [model(text, attention_mask=torch.ones_like(text)).logits[0] for text in ids]
        model.classifier.bias -= torch.stack(logits).mean(0).diff()
    return model, rows, tokenizer


def test_an_audit_draws_from_the_same_sample_whatever_its_limit():
    model, rows, tokenizer = make_audited_model()
    run = {"tests": [Exchange(n_donors=2)], "tokenizer": tokenizer}
    whole = audit_by_name(model, rows, **run).to_pandas()
    known = whole[(whole.test == "exchange") & (whole.statistic == "largest_exchange")]
    assert known.value.notna().all() and len(known) == 40
    key = ["test", "statistic", "layer", "head", "example_id"]
    for options in ({"test_limit": 13, "batch_size": 2}, {"batch_size": 7}, {"test_limit": 1}):
        part = audit_by_name(model, rows, **options, **run).to_pandas()
        part = part[part.test == "exchange"]
        both = part.merge(whole, on=key, validate="1:1")
        assert len(both) == len(part) > 0
        np.testing.assert_allclose(both.value_x, both.value_y, atol=1e-9)


def test_copies_do_not_fill_the_sample_of_donors():
    """With four copies of each text, the sample contains the same texts as without copies."""
    model, rows, tokenizer = make_audited_model()
    run = {"tests": [Exchange(n_donors=2)], "tokenizer": tokenizer}
    once = audit_by_name(model, rows, **run).to_pandas()
    copied = audit_by_name(model, rows * 4, **run).to_pandas()
    key = ["test", "statistic", "layer", "head", "example_id"]
    both = once[once.test == "exchange"].merge(copied, on=key, validate="1:1")
    assert set(both.example_id) == {*range(40)} and copied.example_id.nunique() == 160
    np.testing.assert_allclose(both.value_x, both.value_y, atol=1e-9)


def test_an_audit_of_one_predicted_class_deletes_words_instead():
    model, rows, tokenizer = make_audited_model()
    with torch.no_grad():
        model.classifier.bias.fill_(99.0)
    tests = ["exchange", "scale", "erasure", "uniform_attention"]
    report = audit(model, rows, tests, tokenizer=tokenizer, progress=False)
    values = report.to_pandas().query("test == 'exchange'").value
    assert len(values) and values.isna().all()
    findings = {finding.rule: finding for finding in report.findings}
    assert "no texts with another prediction were available" in findings["faithfulness"].sentence
    assert "when left out" in findings["importance"].sentence
