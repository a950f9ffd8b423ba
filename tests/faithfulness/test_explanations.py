"""Compare all attention maps of a tiny BERT with maps from hooks and weights, one text at a time."""

import numpy as np
import pytest
import scipy.stats
import torch
from transformers.models.bert import modeling_bert

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.explanations import add_layer_sites, explanations
from hf_attnprobe.faithfulness.options import Explanations
from hf_attnprobe.faithfulness.rankings import (
    HEAD_MAPS,
)
from hf_attnprobe.faithfulness.registry import AuditPreview
from hf_attnprobe.faithfulness.registry import load_tests as all_tests
from hf_attnprobe.protocol import ALL, Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import adapter_families as families
from tests.helpers import tiny_models
from tests.helpers.adapter_families import make, prepare


WIDTH, N_HEADS, N_LAYERS = 4, 4, 3
TEXTS = ([1, 11, 12, 13, 14, 15, 16, 17, 2], [1, 21, 22, 23, 2], [1, 31, 2])


def make_model(implementation="sdpa"):
    model = tiny_models.bert(
        layers=N_LAYERS, heads=N_HEADS, attn_implementation=implementation
    ).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.4)  # BERT's start at 0, where nobody sees them forgotten
    return model


def make_padded_inputs():
    return tiny_models.encoded(TEXTS, special=(1, 2))


@pytest.fixture(scope="module")
def observed():
    adapter = wrap(make_model())
    return adapter, adapter.observe(adapter.prepare(make_padded_inputs(), (0, 1, 2)))


class ByHand:
    """All maps [queries, keys] of one text from the eager model."""

    def __init__(self, text):
        self.model = make_model("eager")
        ids = torch.tensor([text])
        with torch.enable_grad():
            result = self.model(input_ids=ids, output_attentions=True, output_hidden_states=True)
            probs = result.logits.softmax(-1)[0]
            self.slopes = [s[0] for s in torch.autograd.grad(probs.max(), result.attentions)]
        self.attention = [a[0].detach() for a in result.attentions]
        self.hidden = [h.detach() for h in result.hidden_states]

    def f(self, layer, head):
        """(x W_V + b_V) W_O of every token."""
        module = self.model.bert.encoder.layer[layer].attention
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        value, dense = module.self.value, module.output.dense
        values = self.hidden[layer][0] @ value.weight[part].T + value.bias[part]
        return (values @ dense.weight[:, part].T).detach()

    def raw_attention(self, layer, head):
        return self.attention[layer][head]

    def attention_times_gradient(self, layer, head):
        return self.attention[layer][head] * self.slopes[layer][head]

    def effective_attention(self, layer, head):
        transform, attention = self.f(layer, head).numpy(), self.attention[layer][head].numpy()
        left, singular, _ = np.linalg.svd(transform)
        null = left[:, (singular > 1e-9).sum() :]
        return torch.from_numpy(attention - attention @ null @ null.T)

    def norm_based(self, layer, head):
        return self.attention[layer][head] * self.f(layer, head).norm(dim=-1)

    def mean_attention(self, layer, head):
        return sum(self.attention[layer]) / N_HEADS

    def rollout(self, layer, head):
        total = torch.eye(len(self.hidden[0][0])).double()
        for attention in self.attention[: layer + 1]:
            total = (0.5 * attention.mean(0) + 0.5 * torch.eye(len(total))) @ total
        return total

    def layer_norm_based(self, layer, head):
        parts = [self.attention[layer][h][..., None] * self.f(layer, h) for h in range(N_HEADS)]
        return sum(parts).norm(dim=-1)

    def value_zeroing(self, layer, head):
        block, columns = self.model.bert.encoder.layer[layer], []
        for j in range(len(self.hidden[0][0])):

            def zero(module, args, output, j=j):
                output = output.clone()
                output[:, j] = 0
                return output

            with torch.no_grad(), block.attention.self.value.register_forward_hook(zero):
                moved = block(self.hidden[layer])
            moved = moved[0] if isinstance(moved, tuple) else moved
            columns.append(1 - torch.cosine_similarity(moved, self.hidden[layer + 1], dim=-1)[0])
        result = torch.stack(columns, dim=1)
        return result / result.sum(1, keepdim=True)

    def value_zeroing_rollout(self, layer, head):
        total = torch.eye(len(self.hidden[0][0])).double()
        for below in range(layer + 1):
            total = self.value_zeroing(below, head) @ total
        return total


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
    with pytest.raises(
        AttnProbeError, match="too small for attention flow: the shortest text has 5"
    ):
        check(preview, Explanations(flow_positions=4))
