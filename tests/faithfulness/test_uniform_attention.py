"""Uniform attention: it equals a hook that sets the weights."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import replace_head
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
