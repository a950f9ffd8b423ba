"""The screen of heads: it is the slope of the output towards the edit."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.screen import screen
from hf_attnprobe.functional.intervention import replace_head
from tests.helpers.hooked_bert import SITES, inputs, make_model, predict_with_hook


@pytest.fixture(scope="module")
def observed():
    adapter = wrap(make_model())
    observation = adapter.observe(adapter.prepare(inputs(), (3, 1, 4, 15, 9)))
    return adapter, observation


@pytest.mark.parametrize("site", SITES)
def test_screen_is_the_slope_of_the_output_towards_the_edit(observed, site):
    _adapter, observation = observed
    result = screen(observation, site)
    attention = observation.attention[site.layer]
    visible = observation.batch.mask[:, None].expand(-1, 8, -1)
    flat = visible / visible.sum(-1, keepdim=True)
    step = 1e-5
    for name, end in (
        ("first_order_uniform", flat.to(attention)),
        ("first_order_zero", torch.zeros_like(flat).to(attention)),
    ):
        own = attention[:, site.head]
        nudged = [own + sign * step * (end - own) for sign in (1, -1)]
        place = observation.get_target_classes(None)[:, None]
        edits = [replace_head(attention, site.head, site.query, x[None])[0] for x in nudged]
        up, down = (predict_with_hook(site, edit.double()).gather(1, place)[:, 0] for edit in edits)
        # Rows of padding queries are part of the edit here, but nothing reads them.
        assert torch.allclose(
            getattr(result, name).double(), ((up - down) / (2 * step)).abs(), atol=1e-4
        )


@pytest.mark.parametrize("site", SITES)
def test_even_weights_cost_what_the_output_loses_on_the_way_to_them(observed, site):
    """Special tokens keep their weights, and a gain of the predicted class counts as no loss."""
    adapter, observation = observed
    result = screen(observation, site).first_order_even.double()
    attention = observation.attention[site.layer]
    content = adapter.get_unit_positions(observation, site.layer, observation.batch.content_mask)[
        :, None
    ]
    own = attention[:, site.head]
    mass = (own * content).sum(-1, keepdim=True)
    even = torch.where(content, mass / content.sum(-1, keepdim=True).clamp_min(1), own)
    step = 1e-5
    edits = []
    for sign in (1, -1):
        nudged = own + sign * step * (even - own)
        edits.append(replace_head(attention, site.head, site.query, nudged[None])[0])
    place = observation.get_target_classes(None)[:, None]
    up, down = (predict_with_hook(site, edit.double()).gather(1, place)[:, 0] for edit in edits)
    slope = (up - down) / (2 * step)
    assert torch.allclose(result, (-slope).clamp_min(0), atol=1e-6, rtol=1e-3)
    assert slope.min() < -1e-5 or slope.max() > 1e-5
