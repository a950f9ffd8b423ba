"""Uniform attention: it equals a hook that sets the weights."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import replace_head
from hf_attnprobe.protocol import Site
from tests.helpers import tiny_models
from tests.helpers.hooked_bert import SITES, inputs, make_model, predict_with_hook


@pytest.fixture(scope="module")
def observed():
    adapter = wrap(make_model())
    observation = adapter.observe(adapter.prepare(inputs(), (3, 1, 4, 15, 9)))
    return adapter, observation


@pytest.mark.parametrize("site", SITES)
def test_uniform_attention_equals_a_hook(observed, site):
    _adapter, observation = observed
    visible = observation.batch.mask[:, None, None].expand(-1, -1, 8, -1).double()
    flat = (visible / visible.sum(-1, keepdim=True))[:, 0]
    edited = replace_head(
        observation.attention[site.layer].double(), site.head, site.query, flat[None]
    )[0]
    expected = predict_with_hook(site, edited)
    result = uniform_attention(observation, site)
    assert torch.allclose(result.uniform_tvd, tvd(expected, observation.probs), atol=1e-6)
    assert torch.equal(
        result.uniform_flip, (expected.argmax(-1) != observation.probs.argmax(-1)).double()
    )


# --- the share of the decision that passes through the pattern -----------------------------------


def compute_margins(logits, decisions):
    """The logit of each text's decision, minus the largest one of all others."""
    margins = []
    for row, decision in zip(logits.tolist(), decisions, strict=True):
        others = [logit for k, logit in enumerate(row) if k != decision]
        margins.append(row[decision] - max(others))
    return torch.tensor(margins, dtype=torch.float64)


def compute_share(logits, even_logits):
    decisions = logits.argmax(-1).tolist()
    share = 1 - compute_margins(even_logits, decisions) / compute_margins(logits, decisions)
    return share.clamp(0, 1)


def even_out(attention, content, site):
    """Attention of a layer in which the words of a text share their weight in a head."""
    edited = attention.clone()
    for row, is_word in enumerate(content):
        words = is_word.nonzero()[:, 0].tolist()
        queries = range(attention.shape[2]) if site.query is None else [site.query]
        for query in queries:
            weights = attention[row, site.head, query, words]
            edited[row, site.head, query, words] = weights.sum() / len(words)
    return edited


@pytest.mark.parametrize("site", SITES)
def test_the_path_share_equals_a_hook_that_spares_special_tokens(observed, site):
    """Words share what they have together; the special tokens keep what they have."""
    _adapter, observation = observed
    content = observation.batch.content_mask
    before = observation.attention[site.layer].double()
    after = even_out(before, content, site)
    share = uniform_attention(observation, site).path_share
    expected = compute_share(
        predict_with_hook(site, before).log(), predict_with_hook(site, after).log()
    )
    n_words = content.sum(-1)
    assert sorted(n_words.tolist())[:2] == [1, 3]
    assert torch.equal(share.isnan(), n_words == 1)
    torch.testing.assert_close(share[n_words > 1], expected[n_words > 1], atol=1e-6, rtol=1e-6)


def test_some_of_these_shares_are_neither_all_nor_nothing(observed):
    _adapter, observation = observed
    shares = torch.cat([uniform_attention(observation, site).path_share for site in SITES])
    assert ((shares > 0) & (shares < 1)).sum() > 3


TEXTS = ([2, 9, 6, 4, 7, 11, 3], [2, 8, 5, 3], [2, *range(5, 17), 3], [2, 12, 3])


def observe_classifier(n_labels, gain=1.0, bias=None, query=10):
    sizes = {"read_out": 10, "query": query, "seed": 1, "num_labels": n_labels}
    model = tiny_models.classifier(60, **sizes).double()
    with torch.no_grad():
        if bias is not None:
            model.classifier.bias.fill_(bias)
        for parameter in model.classifier.parameters():
            parameter *= gain
    adapter = wrap(model)
    return adapter.observe(adapter.prepare(tiny_models.encoded(TEXTS), (3, 1, 4, 15)))


@pytest.mark.parametrize("n_labels", [2, 3])
def test_the_path_share_of_a_classifier_is_that_of_its_mean_state(n_labels):
    observation = observe_classifier(n_labels)
    decode, states = observation.model.model.decode, observation.state.states.detach()
    logits, even_logits = [], []
    for row, words in enumerate(observation.batch.content_mask):
        attention = observation.read(Site(0, 0))[row, words]
        logits.append(decode(attention @ states[row, words]))
        even_logits.append(decode(states[row, words].mean(0)))
    expected = compute_share(torch.stack(logits).detach(), torch.stack(even_logits).detach())
    share = uniform_attention(observation, Site(0, 0)).path_share
    torch.testing.assert_close(share[:3], expected[:3])
    assert share[3].isnan()  # one word


def test_the_path_share_is_the_known_share_of_a_constructed_model():
    """A word gives one class, all others nothing; a bias gives a part of the margin to the class."""
    for bypass in (0.0, 0.25, 0.8, 1.0):
        model = tiny_models.classifier(
            60, encoder="none", attention="dot_product", embedding_size=4
        ).double()
        with torch.no_grad():
            embeddings = model.get_input_embeddings().weight.zero_()
            embeddings[9] = torch.tensor([50.0, 0, 0, 0])
            for parameter in model.attention_classifier.attention.parameters():
                parameter.fill_(1.0)
            state = model(torch.tensor([[2, 9, 3]])).logits  # only shapes are read here
            assert state.shape == (1, 2)
            model.classifier.weight.zero_()[0, 0] = (1 - bypass) / 50
            model.classifier.bias.fill_(bypass)
        adapter = wrap(model)
        n_words = 10
        text = [2, 9, *range(20, 20 + n_words - 1), 3]
        observation = adapter.observe(adapter.prepare(tiny_models.encoded([text]), (0,)))
        weight = observation.read(Site(0, 0))[0, 1].item()
        assert weight > 0.99
        share = uniform_attention(observation, Site(0, 0)).path_share.item()
        margin = weight * (1 - bypass) + bypass
        assert share == pytest.approx((weight - 1 / n_words) * (1 - bypass) / margin)
        assert share == pytest.approx((1 - bypass) * (1 - 1 / n_words), abs=0.01)


@pytest.mark.parametrize("gain", [0.1, 3.0])
@pytest.mark.parametrize("n_labels", [2, 3])
def test_the_path_share_depends_on_no_temperature(n_labels, gain):
    before, after = (
        uniform_attention(observe_classifier(n_labels, g), Site(0, 0)) for g in (1.0, gain)
    )
    torch.testing.assert_close(after.path_share, before.path_share, equal_nan=True)
    changed = ~torch.isclose(after.uniform_tvd, before.uniform_tvd)
    assert changed[:3].all()


def test_a_decision_that_turns_passes_as_a_whole_and_one_that_grows_does_not_pass():
    """Shares beyond 1 and below 0 are cut."""
    shares = torch.cat(
        [
            uniform_attention(observe_classifier(2, bias=bias, query=query), Site(0, 0)).path_share
            for bias in (-1.5, -0.5, 0.0, 0.5, 1.5)
            for query in (10, -10)
        ]
    )
    known = shares[~shares.isnan()]
    assert known.min() == 0 and known.max() == 1 and ((known > 0) & (known < 1)).sum() > 5


def test_the_path_share_of_a_number_is_its_change_in_standard_deviations():
    model = tiny_models.bert(heads=4, width=32, **tiny_models.HEADS["number"]).double()
    adapter = wrap(model)
    batch = adapter.prepare(tiny_models.encoded(TEXTS), (3, 1, 4, 15))
    observation = adapter.observe(batch)
    site = Site(0, 1)
    edited = even_out(observation.attention[0], batch.content_mask, site)
    numbers = adapter.replay(observation, {0: edited[None]})[0]
    changes = (numbers - observation.probs)[:3, 0].abs().double()
    assert (changes > 0).all()
    for deviation in (0.5 * changes.min(), 2 * changes.max(), changes.mean()):
        adapter.sharpness = 1 / deviation.item()
        share = uniform_attention(adapter.observe(batch), site).path_share
        torch.testing.assert_close(share[:3], (changes / deviation).clamp(max=1))
        assert share[3].isnan()
