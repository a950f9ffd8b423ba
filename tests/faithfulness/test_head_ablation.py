"""Compare head ablation with hooks in a tiny BERT, one unpadded text at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.models.bert import modeling_bert

from hf_attnprobe.adapters import wrap
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.head_ablation import (
    ABLATION_DONOR_STREAM,
    head_ablation,
    predict_without_heads,
    sort_sites_by_effect,
)
from hf_attnprobe.protocol import HeadOutputs, Site
from tests.helpers import adapter_families as families
from tests.helpers import tiny_models


SITES = [Site(0, 1), Site(1, 0), Site(2, 3), Site(1, 2, 0)]
WIDTH = 8
IDS = (3, 1, 4, 15, 9)
SAMPLE_IDS = (4, 7, 8)  # one of them is also audited


def make_model(implementation="sdpa"):
    return tiny_models.bert(
        layers=3, heads=4, width=32, intermediate_size=48, attn_implementation=implementation
    ).double()


def make_texts(seed, lengths):
    generator = torch.Generator().manual_seed(seed)
    return [[1, *torch.randint(5, 60, (n,), generator=generator).tolist(), 2] for n in lengths]


AUDITED, SAMPLE = make_texts(1, (6, 6, 3, 1, 4)), make_texts(2, (3, 5, 1))
SAMPLE[0] = AUDITED[2]


def encode_texts(rows):
    return tiny_models.encoded(rows, special=(1, 2))


@pytest.fixture(scope="module", params=["eager", "sdpa"])
def observed(request):
    adapter = wrap(make_model(request.param))
    adapter.set_reference(adapter.prepare(encode_texts(SAMPLE), SAMPLE_IDS))
    return adapter, adapter.observe(adapter.prepare(encode_texts(AUDITED), IDS))


def get_head_slice(site):
    """The head's slice of what BERT's self-attention gives [batch, queries, heads · width], at the edited queries."""
    queries = slice(None) if site.query is None else site.query
    return slice(None), queries, slice(site.head * WIDTH, (site.head + 1) * WIDTH)


def run(model, text, layer, hook):
    """Probabilities of one text, unpadded, with a forward hook on a layer's self-attention."""
    with (
        torch.no_grad(),
        model.bert.encoder.layer[layer].attention.self.register_forward_hook(hook),
    ):
        return model(input_ids=torch.tensor([text])).logits.softmax(-1)[0]


def compute_head_output(model, text, site):
    seen = []
    run(model, text, site.layer, lambda module, args, output: seen.append(output[0]) or None)
    return seen[0][0, :, get_head_slice(site)[2]]


def predict_with_head_output(model, text, site, new):
    def hook(module, args, output):
        context = output[0].clone()
        context[get_head_slice(site)] = new if site.query is None else new[site.query]
        return (context, *output[1:])

    return run(model, text, site.layer, hook)


def compute_ablation_by_hand(site, kind, seed):
    """Change of output and flip of each audited text, by the definitions."""
    model, changes = make_model(), []
    for example_id, text in zip(IDS, AUDITED, strict=True):
        outputs = [compute_head_output(model, other, site) for other in SAMPLE]
        new = torch.zeros(len(text), WIDTH, dtype=torch.double)
        if kind == "mean":
            new += torch.cat(outputs).mean(0)
        if kind == "resample":
            known = zip(outputs, SAMPLE_IDS, strict=True)
            others = [output for output, own in known if own != example_id]
            draw = np.random.default_rng(
                np.random.SeedSequence([seed, example_id, ABLATION_DONOR_STREAM])
            )
            donor = others[draw.integers(len(others))]
            new += donor.mean(0)
            new[: len(donor)] = donor[: len(text)]
        before, after = (
            run(model, text, 0, lambda *_: None),
            predict_with_head_output(model, text, site, new),
        )
        flips = after.argmax() != before.argmax()
        changes.append(((after - before).abs().sum().item() / 2, float(flips)))
    return torch.tensor(changes, dtype=torch.double).unbind(1)


@pytest.mark.parametrize("site", SITES)
def test_every_ablation_equals_a_hook(observed, site):
    _adapter, observation = observed
    result = head_ablation(observation, site, seed=5)
    for kind in ("zero", "mean", "resample"):
        expected, flips = compute_ablation_by_hand(site, kind, 5)
        ours = getattr(result, f"{kind}_tvd").double()
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)
        assert torch.equal(getattr(result, f"{kind}_flip"), flips)
    assert result.resample_tvd.max() > 0.01 and result.mean_tvd.max() > 0.01


def test_a_text_alone_in_the_sample_has_no_other():
    adapter = wrap(make_model())
    batch = adapter.prepare(encode_texts(AUDITED[:2]), IDS[:2])
    observation = adapter.observe(batch)
    assert head_ablation(observation, Site()).mean_tvd is None  # no sample yet
    adapter.set_reference(adapter.prepare(encode_texts(AUDITED[:1]), IDS[:1]))
    result = head_ablation(observation, Site())
    for values in (result.resample_tvd, result.resample_flip):
        assert values.isnan().tolist() == [True, False]
    assert result.mean_tvd.isfinite().all()


def test_a_copy_of_a_text_is_no_donor():
    """The copy has another id, and its head outputs would change nothing."""
    adapter = wrap(make_model())
    batch = adapter.prepare(encode_texts(AUDITED[:1]), (30,))
    sample = adapter.prepare(encode_texts(AUDITED[:2]), (50, 51))
    adapter.set_reference(replace(sample, identities=torch.tensor([7, 8])))
    observation = adapter.observe(replace(batch, identities=torch.tensor([7])))
    site = Site(1, 0)
    results = [head_ablation(observation, site, seed=seed).resample_tvd for seed in range(8)]
    assert torch.stack(results).min() > 1e-3
    assert all(torch.equal(result, results[0]) for result in results)


def test_other_arithmetic_than_attention_times_values_leaves_zero_alone(monkeypatch):
    plain = modeling_bert.eager_attention_forward

    def gated(*args, **kwargs):
        output, weights = plain(*args, **kwargs)
        return output + 0.1, weights

    for changed in (gated, families.transposed):
        monkeypatch.setattr(modeling_bert, "eager_attention_forward", changed)
        adapter = wrap(make_model("eager"))
        if not adapter.lacks(HeadOutputs):
            adapter.set_reference(adapter.prepare(encode_texts(SAMPLE), SAMPLE_IDS))
        result = head_ablation(
            adapter.observe(adapter.prepare(encode_texts(AUDITED), IDS)), Site(1, 1)
        )
        assert result.zero_tvd.max() > 0
        assert (result.mean_tvd is None) == (changed is families.transposed)


def test_the_head_of_a_classifier_can_be_silenced():
    adapter = wrap(tiny_models.classifier(60))
    inputs = encode_texts(AUDITED)
    batch = adapter.prepare(inputs, IDS)
    observation = adapter.observe(batch)
    result = head_ablation(observation, Site())
    bias = adapter.model.classifier.bias.detach()
    base = torch.cat([torch.zeros(1), bias]).softmax(-1) if len(bias) == 1 else bias.softmax(-1)
    torch.testing.assert_close(result.zero_tvd, (observation.probs - base).abs().sum(-1) / 2)
    assert result.mean_tvd is result.resample_flip is None
    with pytest.raises(AttnProbeError, match="methods of HeadOutputs"):
        adapter.require(HeadOutputs)


# Several heads together


def test_without_removed_heads_the_output_is_the_models_own(observed):
    adapter, observation = observed
    nothing = predict_without_heads(adapter, observation, [[], []])
    assert torch.equal(nothing, observation.probs.expand(2, -1, -1))


def predict_classes_without(model, heads):
    """What each audited text is decided for where hooks silence some heads."""

    def silence(site):
        def hook(module, args, output):
            context = output[0].clone()
            context[get_head_slice(site)] = 0
            return (context, *output[1:])

        return model.bert.encoder.layer[site.layer].attention.self.register_forward_hook(hook)

    handles = [silence(site) for site in heads]
    with torch.no_grad():
        result = [model(input_ids=torch.tensor([text])).logits[0].argmax() for text in AUDITED]
    for handle in handles:
        handle.remove()
    return torch.stack(result)


def test_predictions_without_heads_equal_hooks(observed):
    adapter, observation = observed
    model = make_model()
    places = ((1, 2), (0, 0), (1, 0), (2, 3), (0, 1), (0, 2), (0, 3), (2, 0))
    ranking = [Site(*place) for place in places]
    removed_heads = [ranking[:n] for n in range(9)]
    probs = predict_without_heads(adapter, observation, removed_heads)
    for heads, head_probs in zip(removed_heads, probs, strict=True):
        assert torch.equal(head_probs.argmax(-1), predict_classes_without(model, heads))


def test_the_least_effect_goes_first():
    effects = {(1, 0): 0.5, (0, 1): 0.1, (0, 0): 0.1}
    assert sort_sites_by_effect(effects) == [Site(0, 0), Site(0, 1), Site(1, 0)]


# The audit
