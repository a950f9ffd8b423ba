"""Twins that have learned nothing: what shuffling and a new start keep, and how they are audited."""

import copy

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

from hf_attnprobe import AttnProbeError, AuditOptions, audit, compare_audits
from hf_attnprobe.checkpoints.weights import RANDOMISERS, change_weights
from tests.helpers import tiny_models


def weights_of(model):
    return {name: weight.clone() for name, weight in model.named_parameters()}


def twin(model, how, seed=0):
    other = copy.deepcopy(model)
    change_weights(other, how, seed)
    return other


def test_shuffling_keeps_the_sizes_of_every_tensor():
    model = tiny_models.bert(60, layers=2, spread=0.02)
    table = model.get_input_embeddings()
    with torch.no_grad():
        table.weight[table.padding_idx] = 0
    own, shuffled = weights_of(model), weights_of(twin(model, "randomised", seed=3))
    assert own.keys() == shuffled.keys()
    for name, weight in own.items():
        assert torch.equal(weight.flatten().sort().values, shuffled[name].flatten().sort().values)
        if weight.unique().numel() > 8:
            assert not torch.equal(weight, shuffled[name]), name
    of_padding = shuffled["bert.embeddings.word_embeddings.weight"][table.padding_idx]
    assert not of_padding.any()


def test_an_untrained_twin_is_the_configuration_s_own_start():
    model = tiny_models.bert(60, layers=1, spread=0.5)
    fresh = weights_of(twin(model, "untrained", seed=5))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = weights_of(BertForSequenceClassification(model.config))
    for name, weight in expected.items():
        assert torch.equal(weight, fresh[name]), name


@pytest.mark.parametrize("how", RANDOMISERS)
def test_a_seed_decides_the_twin(how):
    model = tiny_models.bert(60, layers=1, spread=0.02)
    first, again, other = (weights_of(twin(model, how, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not all(torch.equal(weight, other[name]) for name, weight in first.items())


def test_what_has_no_start_of_its_own_is_refused():
    with pytest.raises(AttnProbeError, match=r"needs a Transformers model, got Linear"):
        change_weights(nn.Linear(3, 2), "untrained")
    model = tiny_models.bert(60, layers=1, spread=0.02)
    model.classifier = nn.Sequential(model.classifier)
    with pytest.raises(
        AttnProbeError, match=r"has the weights 'classifier\.\S+'\. Use --weights 'rand"
    ):
        change_weights(model, "untrained")


def test_a_twin_is_audited_and_compared_as_any_model(make_model, tokenizer, reviews, tmp_path):
    model = make_model("mlp")
    own = weights_of(model)
    texts = reviews["test"].remove_columns("rationale")
    given = {"tokenizer": tokenizer, "progress": False}
    tests = ["permutation"]
    audit(model, texts, tests, output_dir=tmp_path / "model", **given)
    options = AuditOptions(weights="randomised", seed=0)
    by_option = audit(model, texts, tests, options=options, output_dir=tmp_path / "twin", **given)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, own[name]), name
    by_hand = audit(twin(model, "randomised"), texts, tests, **given)
    assert by_option.statistics == by_hand.statistics
    assert by_option.provenance["origin"] == {"weights": "randomised"}
    compared = compare_audits([tmp_path / "model", tmp_path / "twin"])
    assert [name.rpartition(", ")[2] for name in compared.names] == ["as saved", "randomised"]
    assert any(question.differences[0] for question in compared.questions)
