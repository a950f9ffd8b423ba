"""What models can do is known before a test runs; a model's own refusal is an error."""

import pytest
import torch
from torch import nn

from hf_attnprobe import Site
from hf_attnprobe.adapters import register_adapter, wrap
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.erasure import erasure
from hf_attnprobe.faithfulness.explanations import explanations
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.protocol import (
    AttentionModel,
    AttentionModelBase,
    BlockOutputs,
    EditableInputs,
    ExchangeableStates,
    HeadOutputs,
    LinearReadout,
    MaskedReplay,
    Stack,
)
from hf_attnprobe.testing import CHECKS
from tests.helpers import tiny_models
from tests.helpers.adapter_families import get_shared_model, make, prepare


ALL = CHECKS.keys()


def classifier(**options):
    return wrap(tiny_models.classifier(60, **options))


def lacking(model, site=None):
    return {capability for capability in ALL if model.lacks(capability, site)}


@pytest.mark.parametrize("options", [{}, {"hierarchical": True, "sep_token_id": 4}])
def test_an_attention_classifier_has_one_layer(options):
    model = classifier(**options)
    assert lacking(model) == {BlockOutputs, HeadOutputs, MaskedReplay, Stack}
    assert isinstance(model, AttentionModel) and not model.lacks(AttentionModel)
    with pytest.raises(AttnProbeError, match="Adapter does not have the methods of Stack"):
        model.require(Stack)


@pytest.mark.parametrize("family", ["bert", "llama", "falcon"])
def test_a_transformer_has_no_linear_readout(family):
    model = wrap(get_shared_model(family))
    assert lacking(model) == lacking(model, Site(1)) == {LinearReadout}
    observation = model.observe(prepare(model))
    assert observation.token_logits is None


def test_patches_of_images_can_be_left_out_and_exchanged():
    model = wrap(get_shared_model("vit"))
    assert lacking(model) == {LinearReadout}
    assert model.unit == "patch" and model.reads_images


def test_where_two_stacks_meet_there_is_no_stack():
    model = wrap(get_shared_model("bart"))
    stacked = [not model.lacks(Stack, Site(layer)) for layer in range(6)]
    assert stacked == [True, True, False, False, False, False]
    with pytest.raises(AttnProbeError, match=r"single stack of layers up to cross\.0, but"):
        model.list_layers_below(3)


def test_what_a_model_is_called_and_counts():
    model = wrap(get_shared_model("roberta"))
    assert (model.unit, model.n_embeddings) == ("word", 60)
    assert model.label_names == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert wrap(get_shared_model("roberta"), level="token").unit == "token"
    sentences = classifier(hierarchical=True, sep_token_id=4)
    assert (sentences.unit, sentences.separator_ids) == ("sentence", {4})
    assert wrap(get_shared_model("vit")).n_embeddings is None
    single = make("bert")
    assert (
        wrap(single).compute_fingerprint()
        == wrap(single, dtype=torch.float64).compute_fingerprint()
    )


@pytest.mark.parametrize("run", [erasure, explanations])
def test_a_model_that_refuses_one_shorter_text_is_not_passed_over(run, monkeypatch):
    """It would lose its leave-one-out, for this batch only, and nobody would know."""
    model = wrap(make("bert"))
    observation, logits = model.observe(prepare(model)), model.compute_logits

    def refuse(inputs, *arguments, **options):
        if 4 in inputs["attention_mask"].sum(1):  # a text of five tokens without one
            raise ValueError("no text of four tokens, please")
        return logits(inputs, *arguments, **options)

    monkeypatch.setattr(model, "compute_logits", refuse)
    with pytest.raises(AttnProbeError, match=r"refused a batch .*: no text of four"):
        run(observation, Site(1, 1))


# Registering


class Plain(nn.Module):
    """No Transformers model, and no Transformer."""


class PlainAdapter(AttentionModelBase):
    label_names = ("no", "yes")

    def __init__(self, model, *, mask_id=None):
        self.model, self.mask_id = model, mask_id

    sites = prepare = observe = replay = lambda self: None
    get_visible_keys = select_row = lambda self: None


class ErasingAdapter(PlainAdapter):
    def erase_inputs(self, observation, erased, *, operator="deletion"):
        return None


def test_a_missing_capability_names_the_missing_methods():
    adapter = ErasingAdapter(Plain())
    assert adapter.lacks(EditableInputs) is None
    reason = load_tests()["input_erasure"].lacks(adapter, Site(0, 0))
    assert reason.endswith("(missing: compute_gradient_times_input, compute_attention_gradient)")
    assert adapter.lacks(ExchangeableStates).endswith(
        "(missing: replay_interchange, get_states, compute_head_values)"
    )


def test_adapters_are_registered_by_class_and_by_model_type(monkeypatch):
    monkeypatch.setattr("hf_attnprobe.adapters._factories", {})
    with pytest.raises(AttnProbeError, match="register it with register_adapter"):
        wrap(Plain())
    register_adapter(Plain, PlainAdapter)
    adapter = wrap(Plain(), mask_id=3)
    assert type(adapter) is PlainAdapter and adapter.mask_id == 3
    assert wrap(adapter) is adapter
    register_adapter("bert", lambda model: PlainAdapter(model))
    assert type(wrap(get_shared_model("bert"))) is PlainAdapter
    assert type(wrap(get_shared_model("gpt2"))) is TransformerAdapter
    with pytest.raises(AttnProbeError, match="expected a model class or a model type"):
        register_adapter(3, PlainAdapter)


# Finding attention


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_attention_is_found_by_what_it_computes(family, implementation):
    """Under another name it is the same attention, in the same modules."""
    model, renamed = (make(family, attn_implementation=implementation) for _ in "ab")
    for module in renamed.modules():
        if "Attention" in type(module).__name__:
            module.__class__ = type("Mixer", (type(module),), {})
    expected, found = wrap(model), wrap(renamed)
    assert found.layers == expected.layers
    assert {type(m).__name__ for m in found.layout.modules.values()} == {"Mixer"}
    seen, known = (adapter.observe(prepare(adapter)) for adapter in (found, expected))
    for ours, theirs in zip(seen.attention, known.attention, strict=True):
        assert torch.equal(ours, theirs)
    found.self_check(seen.batch)
