"""Conicity of a classifier's states, of a head's values and of sentences."""

import math

import pytest
import torch

from hf_attnprobe.faithfulness.conicity import conicity
from hf_attnprobe.protocol import Site
from tests.helpers.probed_models import MODELS, SITE, TEXTS, bert, classifier, observe


def compute_conicity_by_hand(vectors):
    """(conicity, absolute conicity) of a list of vectors."""
    mean = [sum(v[i] for v in vectors) / len(vectors) for i in range(len(vectors[0]))]
    norm = math.hypot(*mean)
    cosines = [
        sum(a * b for a, b in zip(v, mean, strict=True)) / (math.hypot(*v) * norm) for v in vectors
    ]
    return sum(cosines) / len(cosines), sum(map(abs, cosines)) / len(cosines)


@pytest.mark.parametrize("kind", ["bilstm", "concat", "residual", "orthogonal"])
def test_conicity_of_a_classifiers_states(kind):
    model = MODELS[kind]()
    _adapter, observation = observe(model)
    result = conicity(observation, SITE)
    for row, text in enumerate(TEXTS):
        outputs = model.double()(torch.tensor([text]), output_hidden_states=True)
        expected = compute_conicity_by_hand(outputs.hidden_states[0][0, 1:-1].tolist())
        found = result.conicity[row].item(), result.absolute_conicity[row].item()
        assert found == pytest.approx(expected, abs=1e-9)


def test_conicity_of_a_heads_values():
    model, site = bert(), Site(1, 2)
    _adapter, observation = observe(model)
    result = conicity(observation, site)
    model, seen = model.double(), []
    model.bert.encoder.layer[1].attention.self.value.register_forward_hook(
        lambda m, i, output: seen.append(output)
    )
    for row, text in enumerate(TEXTS):
        model(torch.tensor([text]))
        values = seen[-1][0, 1:-1, 8:12]
        found = result.conicity[row].item(), result.absolute_conicity[row].item()
        assert found == pytest.approx(compute_conicity_by_hand(values.tolist()), abs=1e-9)


def test_conicity_of_a_hierarchical_models_sentences():
    model = classifier(hierarchical=True, sep_token_id=4, encoder="bigru")
    adapter, observation = observe(model)
    assert observation.batch.mask.sum(-1).tolist() == [1, 2, 1, 1]
    result = conicity(observation, adapter.sites()[0])
    states = model.double()(torch.tensor([TEXTS[1]]), output_hidden_states=True).hidden_states[0][0]
    assert result.conicity[1].item() == pytest.approx(
        compute_conicity_by_hand(states.tolist())[0], abs=1e-9
    )
    assert result.conicity[0].item() == pytest.approx(1)
