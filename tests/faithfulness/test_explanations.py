"""Compare all attention maps of a tiny BERT with maps from hooks and weights, one text at a time."""

import pytest
import scipy.stats
import torch
from transformers.models.bert import modeling_bert

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.explanations import add_layer_sites, explanations
from hf_attnprobe.faithfulness.options import Explanations
from hf_attnprobe.faithfulness.rankings import HEAD_MAPS
from hf_attnprobe.faithfulness.registry import AuditPreview
from hf_attnprobe.faithfulness.registry import load_tests as all_tests
from hf_attnprobe.protocol import ALL, Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import adapter_families as families
from tests.helpers import tiny_models
from tests.helpers.adapter_families import make, prepare
from tests.helpers.attention_maps_by_hand import TEXTS, ByHand, make_model, make_padded_inputs


@pytest.fixture(scope="module")
def observed():
    adapter = wrap(make_model())
    return adapter, adapter.observe(adapter.prepare(make_padded_inputs(), (0, 1, 2)))


def test_a_layer_is_asked_once_behind_its_heads():
    sites = [Site(0, 1, 3), Site(0, 2, 3), Site(4, 0, 3)]
    assert add_layer_sites(sites) == [*sites, Site(0, ALL, 3), Site(4, ALL, 3)]
    assert add_layer_sites([Site()]) == [Site()]


def test_another_query_is_read_from_its_own_row(observed):
    _adapter, observation = observed
    result = explanations(observation, Site(1, ALL, 1)).rollout_tau[0].item()
    row = ByHand(TEXTS[0]).rollout(1, ALL)[1, 1:-1]
    expected = scipy.stats.kendalltau(
        row, observation.compute_leave_one_out_importance()[0, 1:8]
    ).statistic
    assert result == pytest.approx(expected)


def test_what_a_model_does_not_allow_is_left_out(monkeypatch):
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", families.transposed)
    adapter = wrap(make_model("eager"))
    observation = adapter.observe(adapter.prepare(make_padded_inputs(), (0, 1, 2)))
    heads, layer = (
        collect_statistics(explanations(observation, Site(1, head))) for head in (1, ALL)
    )
    assert heads.keys() == {"raw_attention_tau", "attention_times_gradient_tau"}
    assert "layer_norm_based_tau" not in layer
    assert {"rollout_tau", "value_zeroing_tau"} <= layer.keys()


def test_two_stacks_have_no_rollout():
    adapter = wrap(families.make("bart"))
    observation = adapter.observe(families.prepare(adapter))
    encoder, decoder = (explanations(observation, Site(layer, ALL)) for layer in (1, 4))
    assert encoder.rollout_tau is not None and encoder.value_zeroing_rollout_tau is not None
    assert decoder.rollout_tau is None and decoder.value_zeroing_rollout_tau is None
    assert decoder.value_zeroing_tau is not None


def test_a_classifier_has_the_readings_of_its_head():
    adapter = wrap(tiny_models.classifier(60, embedding_size=8, encoder_size=2))
    observation = adapter.observe(adapter.prepare(make_padded_inputs(), (0, 1, 2)))
    result = collect_statistics(explanations(observation, Site()))
    assert result.keys() == {f"{name}_tau" for name in HEAD_MAPS}
    assert "rollout_tau" not in collect_statistics(explanations(observation, Site(0, ALL)))


# Attention flow against linear programs, which know nothing of paths


def test_longer_texts_have_no_flow_and_all_too_long_is_an_error():
    adapter = TransformerAdapter(make("bert"), dtype=torch.float64)
    observation = adapter.observe(prepare(adapter))
    lengths = observation.batch.mask.sum(-1).tolist()
    assert lengths == [9, 5, 7]
    short = explanations(observation, Site(1, ALL), Explanations(flow_positions=7))
    assert short.flow_tau.isnan().tolist() == [True, False, False]
    assert explanations(observation, Site(1, ALL)).flow_tau is None
    assert explanations(observation, Site(1, 1), Explanations(flow_positions=7)).flow_tau is None
    preview = AuditPreview(observation, adapter.sites(), False)
    check = all_tests()["explanations"].check
    with pytest.raises(AttnProbeError, match="too small, because the shortest text has 5"):
        check(preview, Explanations(flow_positions=4))
