"""Head outputs of every family: attention times values, read, replaced, masked and projected as the model does it."""

import pytest
import torch

from hf_attnprobe import Site
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.transformer.recorded_blocks import record_outputs
from hf_attnprobe.adapters.transformer.replay import (
    compute_outputs_and_values,
    extract_hidden_states,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.protocol import ALL, HeadOutputs
from tests.adapters.transformer.test_adapter import state_of
from tests.helpers.adapter_families import get_shared_model, make, observe_texts, prepare


PROJECTIONS = {
    "bert": "bert.encoder.layer.{}.attention.output.dense",
    "distilbert": "distilbert.transformer.layer.{}.attention.out_lin",
    "deberta_v2": "deberta.encoder.layer.{}.attention.output.dense",
    "modernbert": "model.layers.{}.attn.Wo",
    "gpt2": "transformer.h.{}.attn.c_proj",
    "gpt_neox": "gpt_neox.layers.{}.attention.dense",
    "llama": "model.layers.{}.self_attn.o_proj",
    "falcon": "transformer.h.{}.self_attention.dense",
    "bloom": "transformer.h.{}.self_attention.dense",
}


@pytest.mark.parametrize("implementation", [None, "eager"])
def test_outputs_are_attention_times_values(family, implementation):
    adapter = TransformerAdapter(make(family, attn_implementation=implementation))
    batch = prepare(adapter)
    before = state_of(adapter.model)
    observation = adapter.observe(batch)
    outputs, values = compute_outputs_and_values(adapter, batch)
    for attention, output, value in zip(observation.attention, outputs, values, strict=True):
        assert output.shape[:3] == attention.shape[:3] and value.shape[1] == attention.shape[1]
        torch.testing.assert_close(output, attention @ value, atol=1e-6, rtol=1e-5)
    assert adapter.lacks(HeadOutputs) is None
    assert state_of(adapter.model) == before


def test_reading_nothing_at_a_unit_is_having_no_weight_there(adapter, observation):
    """A state of 0 in place of a unit's own; its own moves nothing, whichever heads read it."""
    unit = observation.batch.content_mask.int().argmax(-1)
    at_unit = torch.nn.functional.one_hot(unit, observation.batch.mask.shape[1]).bool()
    n_layers = len(adapter.layers)
    for site in (Site(0, 1), Site(n_layers - 1, 0), Site(ALL, ALL)):
        places, own = {}, {}
        for layer, heads in adapter.get_heads_by_layer(site).items():
            places[layer] = adapter.get_unit_positions(observation, layer, at_unit)
            values = observation.head_values[layer][:, heads]
            own[layer] = (values * places[layer][:, None, :, None]).sum(2)
        same = adapter.replay_interchange(observation, site, unit[None], own)[0]
        torch.testing.assert_close(same, observation.probs, atol=1e-5, rtol=0)
        if site.is_group:
            continue
        none = {layer: torch.zeros_like(states) for layer, states in own.items()}
        found = adapter.replay_interchange(observation, site, unit[None], none)
        keys = places[site.layer][:, None, None]
        edit = observation.edit_attention(
            site, lambda _, weights, keys=keys: (weights * ~keys)[None]
        )
        torch.testing.assert_close(found, adapter.replay(observation, edit), atol=1e-5, rtol=0)


def test_masked_attention_is_what_the_layer_comes_to(adapter, observation):
    """Two heads silenced at once: the upper layer's other heads attend to what the lower edit has left."""
    last, n_texts = len(adapter.layers) - 1, len(observation.probs)
    kept = {
        layer: torch.ones(2, n_texts, adapter.layers[layer].n_heads, 1, 1) for layer in (0, last)
    }
    kept[0][1, :, 1] = kept[last][1, :, 2] = 0

    def edit(layer, weights, scores):
        return weights * kept[layer][1] if layer in kept else weights

    expected = adapter.compute_logits(observation.batch.inputs, edit).softmax(-1)
    untouched, found = adapter.replay_masked(observation, kept)
    torch.testing.assert_close(untouched, observation.probs, atol=1e-6, rtol=0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (found - untouched).abs().max() > 1e-4


def test_block_outputs_are_those_of_a_full_pass(adapter, observation):
    before, n_keys = state_of(adapter.model), observation.batch.mask.shape[1]
    kept = ~torch.eye(n_keys, dtype=torch.bool)[[1, 2], None, None, None].expand(
        -1, len(observation.probs), -1, -1, -1
    )
    for layer in {0, len(adapter.layers) - 1}:
        found = adapter.compute_block_output(observation, layer, kept)
        for copy, mask in zip(found, kept, strict=True):
            with record_outputs(adapter.layout.blocks) as outputs, torch.no_grad():

                def edit(n, weights, scores, mask=mask, layer=layer):
                    return weights * mask if n == layer else weights

                adapter.compute_logits(observation.batch.inputs, edit)
            expected = extract_hidden_states(
                adapter, outputs[adapter.layers[layer].n_blocks_before]
            )
            assert expected.shape[:2] == observation.attention[layer].shape[::2]
            torch.testing.assert_close(copy, expected, atol=1e-5, rtol=1e-5)
    assert state_of(adapter.model) == before
    assert torch.overrides._get_current_function_mode_stack() == []


def test_projections_are_slices_of_the_weights(family, adapter):
    found = adapter.get_output_projections()
    assert [p.shape for p in found] == [(layer.n_heads, 8, 32) for layer in adapter.layers]
    if family in PROJECTIONS:
        for layer, projection in enumerate(found):
            weight = adapter.model.get_submodule(PROJECTIONS[family].format(layer)).weight
            weight = weight if family == "gpt2" else weight.T  # Conv1D
            assert torch.equal(projection.flatten(0, 1), weight)


def test_projections_of_t5_and_xlnet():
    t5 = TransformerAdapter(get_shared_model("t5"))
    for layer, projection in zip(t5.layers, t5.get_output_projections(), strict=True):
        assert torch.equal(
            projection.flatten(0, 1), t5.model.get_submodule(layer.module).o.weight.T
        )
    xlnet = TransformerAdapter(get_shared_model("xlnet"))
    o = xlnet.model.transformer.layer[1].rel_attn.o  # [hidden, heads, width]
    assert torch.equal(xlnet.get_output_projections()[1], o.permute(1, 2, 0))


def test_a_model_without_lists_of_layers_has_no_block_outputs():
    adapter = TransformerAdapter(make("bert"))
    adapter.layout = adapter.layout._replace(blocks=[])
    observation = adapter.observe(prepare(adapter))
    with pytest.raises(AttnProbeError, match="found none in BertForSequenceClassification"):
        adapter.compute_block_output(observation, 0, torch.ones(1, 3, 1, 1, 9))


def test_grouped_queries_of_a_single_token():
    adapter, observation = observe_texts(get_shared_model("llama"), [[11]])
    values = adapter.compute_head_values(observation)
    found = adapter.replay_outputs(observation, Site(1, 3), values[1][None, :, 3])
    torch.testing.assert_close(found[0], observation.probs)
    masked = adapter.replay_masked(
        observation, {1: torch.tensor([1.0, 1, 1, 0]).view(1, 1, 4, 1, 1)}
    )
    silent = adapter.replay_outputs(
        observation, Site(1, 3), torch.zeros_like(values[1][None, :, 3])
    )
    torch.testing.assert_close(masked, silent)
