"""Compare interchange with full forward passes and hooks, one text at a time."""

import logging
from functools import partial

import numpy as np
import pytest
import torch
from transformers.models.bert import modeling_bert

from hf_attnprobe import audit, build_tokenizer
from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.site_selection import parse_head_sets
from hf_attnprobe.faithfulness.interchange import (
    INTERCHANGE_DONOR_STREAM,
    collect_donors,
    interchange,
)
from hf_attnprobe.faithfulness.options import Interchange
from hf_attnprobe.protocol import ALL, HEAD_SET, Donors, ExchangeableStates, Site
from tests.helpers import pair_models, tiny_models
from tests.helpers.audit_by_name import audit_by_name


SEED = 3
EVERYWHERE = Site(ALL, ALL)


def run_interchange(adapter, batches, sites, batch=None):
    """Interchange at each site, with the donors of some batches; of one of them or of another batch."""
    adapter.donors = collect_donors(adapter, batches, sites, SEED)
    observation = adapter.observe(batch or batches[0])
    return [interchange(observation, site, Interchange(n_others=99), seed=SEED) for site in sites]


def draw_donor_by_hand(decisions, row, example_id):
    """The text that is drawn among those decided otherwise."""
    others = [k for k, other in enumerate(decisions) if other != decisions[row]]
    draw = np.random.default_rng(
        np.random.SeedSequence([SEED, example_id, INTERCHANGE_DONOR_STREAM])
    )
    return others[draw.integers(len(others))]


def check(result, run, by_row):
    """That the result is what whole passes say.

    Args:
        run: (row, place, donor row) -> probabilities before and after an exchange by hand.
        by_row: of every text: its id, its places, the one with most attention.
    """
    before = [run(row, None, None) for row in range(len(by_row))]
    decisions = [int(probs.argmax()) for probs in before]
    assert len(set(decisions)) > 1
    for row, (example_id, places, top) in enumerate(by_row):
        donor = draw_donor_by_hand(decisions, row, example_id)
        after = {place: run(row, place, donor) for place in places}
        moved = {p: (after[p] - before[row]).abs().sum() / 2 for p in places}
        follows = {p: float(after[p].argmax() == decisions[donor]) for p in places}
        others = [place for place in places if place != top]
        assert float(result.follows["attention"][row]) == follows[top]
        assert float(result.moved["attention"][row]) == pytest.approx(float(moved[top]), abs=1e-9)
        if not others:
            assert result.follows["other"][row].isnan() and result.moved["other"][row].isnan()
            continue
        expected = np.mean([float(moved[p]) for p in others])
        assert float(result.moved["other"][row]) == pytest.approx(expected, abs=1e-9)
        expected = np.mean([follows[p] for p in others])
        assert float(result.follows["other"][row]) == pytest.approx(expected)


class Hooked:
    """A model whose states are exchanged by hooks on its encoder, and whose attention is held by one.

    Args:
        encoder, attention: modules whose outputs are the states, and the scores of the attention.
        run: (row) -> probabilities of one text.
    """

    def __init__(self, encoder, attention, run):
        self.encoder, self.attention, self.run = encoder, attention, run

    def __call__(self, row, place, donor, donor_place=None):
        if place is None:
            return self.run(row)
        states, _ = self.of(donor)
        new = states[0, donor_place]
        _, held = self.of(row)

        def exchange(module, args, output):
            output = output.clone()
            output[0, place] = new
            return output

        hold = self.attention.register_forward_hook(lambda *_: held)
        with self.encoder.register_forward_hook(exchange), hold:
            return self.run(row)

    def of(self, row):
        """States and scores of a text, as the modules give them last."""
        seen = {}
        note = lambda module, _, output: seen.update({module: output.clone()})  # noqa: E731
        with self.encoder.register_forward_hook(note), self.attention.register_forward_hook(note):
            self.run(row)
        return seen[self.encoder], seen[self.attention]


def make_single_case(encoder, attention, n_labels):
    """A model, texts, how they are encoded, and how many units each has."""
    fields = {"encoder": encoder, "attention": attention, "num_labels": n_labels}
    model = tiny_models.classifier(60, read_out=8, query=5, kernel_sizes=(3, 5), **fields)
    texts = [[2, *row[1:-1], 3] for row in tiny_models.five_texts()]
    return model, texts, tiny_models.encoded, [len(text) - 2 for text in texts]


def make_pair_case(encoder, attention):
    """The other state is read beside the text's own question."""
    several = [*pair_models.PAIRS, ([7, 10, 12, 5], [9, 9]), ([14, 8], [10])]
    model = pair_models.make(encoder, attention)
    with torch.no_grad():  # texts are predicted otherwise than others
        model.classifier.output.bias -= model(**pair_models.make_batch(several)).logits.mean(0)
    return model, several, pair_models.make_batch, [len(first) for first, _ in several]


def make_hierarchical_case():
    sep, texts = 4, [[[5, 6, 7, 7], [8], [9, 5, 10]], [[5, 6]], [[7, 9, 8], [6, 6]], [[11], [10]]]
    fields = {"encoder": "bigru", "hierarchical": True, "sep_token_id": sep}
    model = tiny_models.classifier(read_out=9, query=5, num_labels=3, **fields)
    rows = [[2, *(i for sentence in text for i in [*sentence, sep]), 3] for text in texts]
    return model, rows, partial(tiny_models.encoded, special=(2, 3, sep)), [*map(len, texts)]


KINDS = [
    (make_single_case, "none", "additive", 2),
    (make_single_case, "mlp", "dot_product", 3),
    (make_single_case, "cnn", "additive", 2),
    (make_single_case, "bilstm", "additive", 4),
    (make_pair_case, "bilstm", "additive"),
    (make_pair_case, "cnn", "dot_product"),
    (make_hierarchical_case,),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind[1:])))
def test_a_classifier_reads_the_other_state_with_the_weights_it_has(kind):
    make, *fields = kind
    model, texts, encode, n_units = make(*fields)
    adapter, ids = wrap(model), tuple(range(10, 10 + len(texts)))
    batch = adapter.prepare(encode(texts), ids)
    (site,) = adapter.sites()
    (result,) = run_interchange(adapter, [batch], [site])
    base = model.double().attention_classifier
    reader = base.sentences if model.config.hierarchical else base

    @torch.no_grad()
    def run(row):
        inputs = encode(texts[row : row + 1])
        inputs.pop("special_tokens_mask", None)
        return model(**inputs).logits.softmax(-1)[0]

    hooked = Hooked(reader.encoder, reader.attention, run)
    tops = adapter.observe(batch).read(site).argmax(-1).tolist()
    start = 0 if model.config.hierarchical else 1  # behind a start token
    places = [range(start, start + n) for n in n_units]
    rows = [*zip(ids, places, tops, strict=True)]
    check(result, lambda row, place, donor: hooked(row, place, donor, tops[donor or 0]), rows)
    assert {"gradient", "product", "leave_one_out", "input_gradient"} <= result.follows.keys()
    assert result.follows.keys() == result.moved.keys()


# --- heads of Transformers -----------------------------------------------------------------------

IDS = (3, 1, 4, 15, 9, 8)


def make_bert(implementation="eager", n_labels=3):
    model = tiny_models.bert(
        layers=3, heads=4, width=32, num_labels=n_labels, attn_implementation=implementation
    ).double()
    with torch.no_grad():  # texts are predicted otherwise than others
        model.classifier.weight *= 8
        logits = [model(input_ids=torch.tensor([text])).logits[0] for text in bert_texts()]
        model.classifier.bias -= torch.stack(logits).mean(0)
    return model


def bert_texts():
    return [*tiny_models.five_texts(), [1, 40, 41, 17, 2]]


def group_by_word(inputs):
    """The same texts, the second and third token of each one word."""
    words = torch.arange(inputs["input_ids"].shape[1]).expand_as(inputs["input_ids"]).clone()
    words[:, 3:] -= 1
    return {**inputs, "word_ids": words.masked_fill(inputs["special_tokens_mask"].bool(), -1)}


class ByHand:
    """A BERT whose attention is written out, so that values can be replaced and weights held."""

    def __init__(self, model, monkeypatch):
        self.model, self.weights, self.values, self.edit = model, {}, {}, None
        self.layers = [layer.attention.self for layer in model.bert.encoder.layer]
        self.plain = modeling_bert.eager_attention_forward
        monkeypatch.setattr(modeling_bert, "eager_attention_forward", self.attend)

    def attend(self, module, query, key, value, mask, scaling=None, dropout=0.0, **kwargs):
        if module not in self.layers:
            return self.plain(module, query, key, value, mask, scaling, dropout, **kwargs)
        layer = self.layers.index(module)
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        weights = scores.softmax(-1)
        if self.edit is None:
            self.weights[layer], self.values[layer] = weights, value
            return (weights @ value).transpose(1, 2), weights
        heads, rows, places, new = self.edit.get(layer, ((), slice(None), (), None))
        if layer in self.edit:
            weights = self.held[layer]
        output = weights @ value
        for number, head in enumerate(heads):
            changed = value[:, head].clone()
            changed[:, places] = new[number]
            output[:, head, rows] = (weights[:, head] @ changed)[:, rows]
        return output.transpose(1, 2), weights

    @torch.no_grad()
    def run(self, text, edit=None):
        self.edit = edit
        probs = self.model(input_ids=torch.tensor([text])).logits.softmax(-1)[0]
        if edit is None:
            self.held = dict(self.weights)
        return probs


SITES = [Site(0, 1), Site(1, 2, 0), Site(2, 3), Site(1, ALL), Site(HEAD_SET, 0), EVERYWHERE]


@pytest.mark.parametrize("words", [False, True], ids=["tokens", "words"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_heads_read_the_other_values_with_the_weights_they_have(implementation, words, monkeypatch):
    texts = bert_texts()
    adapter = wrap(make_bert(implementation))
    adapter.head_sets = parse_head_sets(adapter, ["0.3+2.0+2.1"])
    inputs = tiny_models.encoded(texts, special=(1, 2))
    batch = adapter.prepare(group_by_word(inputs) if words else inputs, IDS)
    results = run_interchange(adapter, [batch], SITES)
    observation = adapter.observe(batch)
    hand = ByHand(make_bert(), monkeypatch)
    for site, result in zip(SITES, results, strict=True):
        check_site(observation, site, result, hand, texts, words)


def check_site(observation, site, result, hand, texts, words):
    """That interchange at a site is what passes of the attention that is written out say."""
    members = observation.model.get_heads_by_layer(site)
    # Whether these weights are right is tested in `test_planted_heads`.
    weights = observation.compute_head_weights(site)
    rows = slice(None) if site.query is None else slice(site.query, site.query + 1)

    def pieces(row, place):
        return [2, 3] if words and place == 2 and len(texts[row]) > 4 else [place]

    tops, places = [], []
    for row, text in enumerate(texts):
        of_text = [p for p in range(1, len(text) - 1) if p != 3 or pieces(row, 2) == [2]]
        maps = [observation.attention[n][row, heads, 0] for n, heads in members.items()]
        mean = weights[row] @ torch.cat(maps)  # from [CLS]
        tops.append(max(of_text, key=lambda p, m=mean, r=row: float(m[pieces(r, p)].sum())))
        places.append(of_text)

    def run(row, place, donor):
        if place is None:
            return hand.run(texts[row])
        hand.run(texts[donor])
        given, at = dict(hand.values), pieces(donor, tops[donor])
        hand.run(texts[row])
        edit = {}
        for layer, heads in members.items():
            new = [given[layer][0, head, at].mean(0) for head in heads]
            edit[layer] = heads, rows, pieces(row, place), new
        return hand.run(texts[row], edit)

    check(result, run, [*zip(IDS, places, tops, strict=True)])
    assert result.moved["attention"].max() > 0.01


def test_a_model_that_cannot_be_vectorised_gives_the_same():
    adapter = wrap(make_bert())
    batch = adapter.prepare(tiny_models.encoded(bert_texts(), special=(1, 2)), IDS)
    sites = [Site(0, 1), Site(1, ALL), EVERYWHERE]
    expected = run_interchange(adapter, [batch], sites)
    adapter.__dict__["supports_vmap"] = False
    for result, whole in zip(run_interchange(adapter, [batch], sites), expected, strict=True):
        for key, values in whole.moved.items():
            torch.testing.assert_close(
                result.moved[key], values, atol=1e-10, rtol=0, equal_nan=True
            )


# --- audits --------------------------------------------------------------------------------------


def reviews(n=40):
    words = [a + b for a in "bdfgk" for b in ("am", "em", "im", "om")]
    draws = np.random.default_rng(2)
    texts = [" ".join(draws.choice(words, draws.integers(1, 9))) for _ in range(n)]
    return [{"text": text, "label": k % 2} for k, text in enumerate(texts)], words


@pytest.mark.slow
def test_an_audit_draws_from_the_same_sample_whatever_its_limit():
    rows, words = reviews()
    tokenizer = build_tokenizer([" ".join(words)] * 9)
    model = tiny_models.bert(tokenizer, layers=2, spread=0.8).double()
    with torch.no_grad():
        model.classifier.weight *= 8
        ids = [tokenizer(row["text"], return_tensors="pt")["input_ids"] for row in rows]
        logits = torch.stack([model(input_ids=text).logits[0] for text in ids])
        model.classifier.bias -= logits.mean(0)
    tests = [Interchange(n_others=3), "head_ablation"]
    run = {"tests": tests, "tokenizer": tokenizer}
    whole = audit_by_name(model, rows, **run).to_pandas()
    result = whole[whole.test == "interchange"]
    places = {(layer, head) for layer in range(2) for head in (0, 1, ALL)} | {(ALL, ALL)}
    assert set(zip(result.layer, result["head"], strict=True)) == places
    names = {name.partition("@")[2] for name in result.statistic}
    assert {"attention", "other", "leave_one_out", "rollout"} < names
    assert set(result[result.statistic == "follows@attention"].value.dropna()) == {0, 1}
    # what is drawn, and from which texts, is the same for some of the texts in other batches
    part = audit_by_name(model, rows, test_limit=13, batch_size=2, **run).to_pandas()
    key = ["test", "statistic", "layer", "head", "example_id"]
    both = part.merge(whole, on=key, validate="1:1")
    assert len(both) == len(part) > 0
    np.testing.assert_allclose(both.value_x, both.value_y, atol=1e-9)


def test_texts_that_are_predicted_alike_have_nothing_to_exchange(caplog):
    rows, words = reviews(9)
    tokenizer = build_tokenizer([" ".join(words)] * 9)
    model = tiny_models.classifier(tokenizer)
    with torch.no_grad():
        model.classifier.bias.fill_(99)
    with caplog.at_level(logging.WARNING, logger="hf_attnprobe"):
        report = audit(model, rows, ["interchange"], tokenizer=tokenizer, progress=False)
    result = report.to_pandas().query("test == 'interchange'")
    assert result.value.isna().all() and len(result)
    (said,) = [r.getMessage() for r in caplog.records if "interchange" in r.getMessage()]
    assert "All 9 texts of its sample have the same prediction" in said


def test_it_needs_a_decision_for_one_of_the_same_classes():
    for kind in ("labels", "tags", "span", "number"):
        model = wrap(tiny_models.bert(**tiny_models.HEADS[kind]))
        assert "the same classes for every text" in model.lacks(ExchangeableStates)
    assert not wrap(tiny_models.bert()).lacks(ExchangeableStates)


def test_a_text_without_words_has_no_numbers():
    adapter, observation = tiny_models.seen(
        tiny_models.classifier(read_out=9), [[2, 5, 6, 3], [2, 3, 0, 0]]
    )
    states = torch.ones(2, 1, adapter.model.config.hidden_size).double()
    adapter.donors = Donors(torch.tensor([[0], [1]]), {Site(): {0: states}})
    result = interchange(observation, Site())
    assert result.follows["attention"].isnan().tolist() == [False, True]
    assert result.moved["attention"].isnan().tolist() == [False, True]


def test_without_other_texts_there_are_no_numbers():
    _, observation = tiny_models.seen(tiny_models.classifier(), [[2, 5, 6, 3], [2, 7, 3, 0]])
    result = interchange(observation, Site())
    assert result.follows == result.moved == {}
