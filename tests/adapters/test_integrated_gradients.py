"""Integrated gradients: they add up to the change of a plain forward pass, and equal a path integral written by hand."""

import copy

import pytest
import torch

from tests.helpers import tiny_models
from tests.helpers.adapter_families import get_shared_model, observe_texts


IDS = torch.tensor([[2, 5, 6, 7, 8, 9, 3], [2, 9, 5, 3, 0, 0, 0], [2, 7, 7, 10, 11, 3, 0]])
SENTENCES = torch.tensor([[2, 5, 6, 4, 8, 9, 4, 10, 3], [2, 9, 5, 4, 7, 3, 0, 0, 0]])
N_POINTS = 301


def classifier(num_labels=3, **options):
    options = {"sep_token_id": 4} | options
    return tiny_models.classifier(read_out=5, query=5, num_labels=num_labels, **options).double()


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
    adapter, observation = tiny_models.seen(model, ids)
    target = torch.tensor([1, 0, 1])[: len(ids)]
    found = adapter.compute_integrated_gradients(observation, target, 50)
    without = copy.deepcopy(model)
    without.attention_classifier.embeddings.weight.data.zero_()
    with torch.no_grad():
        whole, blank = (of_target(m(ids).logits.softmax(-1), target) for m in (model, without))
    expected = whole - blank
    assert expected.abs().min() > 1e-3  # or there is nothing to add up to
    torch.testing.assert_close(found.sum(-1), expected, atol=1e-9, rtol=0)
    held = adapter.compute_integrated_gradients(observation, target, 50, through_attention=False)
    assert (held.sum(-1) - expected).abs().max() > 1e-4


def path_integral(probs_of, vectors, target, n_points):
    """The slope of the target's probability along the way from 0 to the word vectors, by trapezoids."""
    steps, slopes = torch.linspace(0, 1, n_points, dtype=torch.float64), []
    for step in steps:
        inputs = (step * vectors).requires_grad_()
        (slope,) = torch.autograd.grad(of_target(probs_of(inputs), target).sum(), inputs)
        slopes.append((slope * vectors).sum(-1))
    return torch.trapezoid(torch.stack(slopes), steps, dim=0)


@pytest.mark.parametrize("through_attention", [True, False])
def test_of_a_classifier_they_are_the_path_integral(through_attention):
    model = classifier(encoder="bilstm")
    adapter, observation = tiny_models.seen(model, IDS)
    target = torch.tensor([2, 0, 1])
    base, mask = model.attention_classifier, (IDS != 0).long()
    content = mask.bool() & (IDS != 2) & (IDS != 3)

    def probs_of(inputs):
        states = base.encoder(inputs, mask)
        attention = base.attention(states).masked_fill(~content, -torch.inf).softmax(-1)
        attention = attention if through_attention else attention.detach()
        context = (attention[..., None] * states).sum(1)
        return (context @ model.classifier.weight.t() + model.classifier.bias).softmax(-1)

    expected = path_integral(probs_of, base.embeddings(IDS).detach(), target, N_POINTS)
    options = {"through_attention": through_attention}
    found = adapter.compute_integrated_gradients(observation, target, 50, **options)
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
        without = adapter.compute_logits(observation.batch.inputs).softmax(-1)
    for handle in handles:
        handle.remove()
    return of_target(observation.probs, target) - of_target(without, target)


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "bart", "vit"])
def test_of_a_transformer_they_add_up_to_the_change_of_the_output(family):
    adapter, observation = observe_texts(get_shared_model(family), dtype=torch.float64)
    target = observation.get_target_classes(None)
    found = adapter.compute_integrated_gradients(observation, target, 60)
    assert not found[~observation.batch.mask].any()
    expected = change_of_output(adapter, observation, target)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(found.sum(-1), expected.to(found.dtype), atol=1e-5, rtol=0)


def test_of_a_bert_they_are_the_path_integral():
    model = copy.deepcopy(get_shared_model("bert")).double()
    adapter, observation = observe_texts(model, level="token")
    inputs = observation.batch.inputs
    target = observation.get_target_classes(None)

    def probs_of(vectors):
        outputs = model(inputs_embeds=vectors, attention_mask=inputs["attention_mask"])
        return outputs.logits.softmax(-1)

    vectors = model.get_input_embeddings()(inputs["input_ids"]).detach()
    expected = path_integral(probs_of, vectors, target, 201)
    found = adapter.compute_integrated_gradients(observation, target, 50)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
