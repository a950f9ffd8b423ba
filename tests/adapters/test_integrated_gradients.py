"""Integrated gradients: they add up to the change of a plain forward pass, and equal a path integral written by hand."""

import copy

import pytest
import torch
from families import observed, shared

import zoo
from hf_attnprobe.attention_model import Site
from hf_attnprobe.faithfulness.attribution_agreement import attribution_agreement
from hf_attnprobe.faithfulness.options import AttributionAgreement


IDS = torch.tensor([[2, 5, 6, 7, 8, 9, 3], [2, 9, 5, 3, 0, 0, 0], [2, 7, 7, 10, 11, 3, 0]])
SENTENCES = torch.tensor([[2, 5, 6, 4, 8, 9, 4, 10, 3], [2, 9, 5, 4, 7, 3, 0, 0, 0]])
N_POINTS = 301


def classifier(num_labels=3, **options):
    options = {"sep_token_id": 4} | options
    return zoo.classifier(read_out=5, query=5, num_labels=num_labels, **options).double()


def of_target(probs, target):
    return probs.gather(-1, target[:, None])[:, 0]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"encoder": "bilstm"}, IDS),
        ({"encoder": "mlp", "num_labels": 2}, IDS),
        ({"encoder": "bigru", "attention": "dot_product"}, IDS),
        ({"encoder": "bigru", "hierarchical": True}, SENTENCES),
    ],
)
def test_of_a_classifier_they_add_up_to_the_change_of_the_output(options, ids):
    model = classifier(**options)
    adapter, observation = zoo.seen(model, ids)
    target = torch.tensor([1, 0, 1])[: len(ids)]
    found = adapter.integrated_gradient(observation, target, 50)
    without = copy.deepcopy(model)
    without.attention_classifier.embeddings.weight.data.zero_()
    with torch.no_grad():
        expected = of_target(model(ids).logits.softmax(-1), target) - of_target(
            without(ids).logits.softmax(-1), target
        )
    assert expected.abs().min() > 1e-3  # or there is nothing to add up to
    torch.testing.assert_close(found.sum(-1), expected, atol=1e-9, rtol=0)
    held = adapter.integrated_gradient(observation, target, 50, through_attention=False)
    assert (held.sum(-1) - expected).abs().max() > 1e-4


def trapezoid(values, steps):
    return torch.trapezoid(values, steps, dim=0)


@pytest.mark.parametrize("through_attention", [True, False])
def test_of_a_classifier_they_are_the_path_integral(through_attention):
    model = classifier(encoder="bilstm")
    adapter, observation = zoo.seen(model, IDS)
    target = torch.tensor([2, 0, 1])
    base = model.attention_classifier
    vectors, mask = base.embeddings(IDS).detach(), (IDS != 0).long()
    content = mask.bool() & (IDS != 2) & (IDS != 3)
    steps = torch.linspace(0, 1, N_POINTS, dtype=torch.float64)
    integrand = []
    for s in steps:
        inputs = (s * vectors).requires_grad_()
        states = base.encoder(inputs, mask)
        scores = base.attention(states).masked_fill(~content, -torch.inf)
        attention = scores.softmax(-1)
        if not through_attention:
            attention = attention.detach()
        context = (attention[..., None] * states).sum(1)
        probs = (context @ model.classifier.weight.t() + model.classifier.bias).softmax(-1)
        (slope,) = torch.autograd.grad(of_target(probs, target).sum(), inputs)
        integrand.append((slope * vectors).sum(-1))
    expected = trapezoid(torch.stack(integrand), steps)
    found = adapter.integrated_gradient(
        observation, target, 50, through_attention=through_attention
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def change_of_output(adapter, observation, target):
    """p(text) − p(embeddings of 0), by hooks of our own."""
    n_calls = []

    def blank(module, args, output):
        n_calls.append(1)
        zero = torch.zeros_like(output)
        if len(n_calls) > 1:  # a decoder's start token is none of the text
            zero[:, 0] = output[:, 0]
        return zero

    handles = [module.register_forward_hook(blank) for module in adapter.layout.embeddings.modules]
    with torch.no_grad():
        without = adapter.logits(observation.batch.inputs).softmax(-1)
    for handle in handles:
        handle.remove()
    return of_target(observation.probs, target) - of_target(without, target)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "bart", "vit"])
def test_of_a_transformer_they_add_up_to_the_change_of_the_output(family):
    adapter, observation = observed(shared(family), dtype=torch.float64)
    target = observation.target(None)
    found = adapter.integrated_gradient(observation, target, 60)
    assert not found[~observation.batch.mask].any()
    expected = change_of_output(adapter, observation, target)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found.sum(-1), expected.to(found.dtype), atol=1e-5, rtol=0)


def test_where_a_norm_stretches_tiny_embeddings_the_gap_is_said():
    """DeBERTa without position embeddings jumps at embeddings of 0: no sum of gradients contains the jump."""
    adapter, observation = observed(shared("deberta"), dtype=torch.float64)
    target = observation.target(None)
    summed = adapter.integrated_gradient(observation, target, 50).sum(-1)
    expected = (summed - change_of_output(adapter, observation, target)).abs()
    found = attribution_agreement(observation, Site(1, 2)).integrated_gap
    torch.testing.assert_close(found, expected.to(found.dtype), atol=1e-9, rtol=0)
    assert found.max() > 0.01
    held = AttributionAgreement(attention="held", n_steps=5)
    assert attribution_agreement(observation, Site(1, 2), held).integrated_gap is None


def test_of_a_bert_they_are_the_path_integral():
    model = copy.deepcopy(shared("bert")).double()
    adapter, observation = observed(model, level="token")
    inputs = dict(observation.batch.inputs)
    target = observation.target(None)
    vectors = model.get_input_embeddings()(inputs["input_ids"]).detach()
    steps = torch.linspace(0, 1, 201, dtype=torch.float64)
    integrand = []
    for s in steps:
        scaled = (s * vectors).requires_grad_()
        outputs = model(inputs_embeds=scaled, attention_mask=inputs["attention_mask"])
        explained = of_target(outputs.logits.softmax(-1), target).sum()
        (slope,) = torch.autograd.grad(explained, scaled)
        integrand.append((slope * vectors).sum(-1))
    expected = trapezoid(torch.stack(integrand), steps)
    found = adapter.integrated_gradient(observation, target, 50)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_agreement_of_attention_and_attributions_against_scipy():
    from scipy.spatial.distance import jensenshannon
    from scipy.stats import pearsonr

    adapter, observation = zoo.seen(classifier(encoder="bilstm"), IDS)
    options = AttributionAgreement(n_steps=20, target=1)
    found = attribution_agreement(observation, Site(), options)
    target = torch.ones(len(IDS), dtype=torch.int64)
    measures = {
        "attention": observation.attention[0][:, 0, 0],
        "gradient": adapter.gradient(observation, target).abs(),
        "integrated": adapter.integrated_gradient(observation, target, 20).abs(),
    }
    for a, b in (
        ("attention", "gradient"),
        ("attention", "integrated"),
        ("gradient", "integrated"),
    ):
        for row, real in enumerate(observation.batch.content_mask):
            x, y = (measures[name][row][real].numpy() for name in (a, b))
            x, y = x / x.sum(), y / y.sum()
            wanted = pearsonr(x, y)[0]
            assert getattr(found, f"{a}_{b}_pearson")[row].item() == pytest.approx(wanted, abs=1e-9)
            expected = jensenshannon(x, y) ** 2
            assert getattr(found, f"{a}_{b}_jsd")[row].item() == pytest.approx(expected, abs=1e-9)


def test_agreement_is_undefined_where_there_is_nothing_to_compare():
    ids = torch.tensor([[2, 5, 3, 0], [2, 6, 6, 3]])
    _, observation = zoo.seen(classifier(), ids)
    found = attribution_agreement(observation, Site())
    assert found.attention_integrated_pearson[0].isnan()  # one token
    assert found.attention_integrated_jsd[0].item() == pytest.approx(0, abs=1e-12)
