"""Attention hooks against torch's fused attention, and that no hook remains afterwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hf_attnprobe.adapters.transformer.attention_hooks import (
    compute_eager_attention,
    hook_attention,
)


SPELLINGS = {
    "F.softmax": lambda x: F.softmax(x, dim=-1),
    "torch.softmax": lambda x: torch.softmax(x, -1),
    "Tensor.softmax": lambda x: x.softmax(3),
    "nn.Softmax": lambda x: nn.Softmax(dim=-1)(x),
    "torch.special.softmax": lambda x: torch.special.softmax(x, -1),
    "F.softmax(input=)": lambda x: F.softmax(input=x, dim=-1, dtype=torch.float64).to(x.dtype),
}


class SelfAttention(nn.Module):
    def __init__(self, softmax):
        super().__init__()
        self.softmax = softmax

    def forward(self, x):
        return self.softmax(x) @ x


class Block(nn.Module):
    def __init__(self, softmax=SPELLINGS["F.softmax"]):
        super().__init__()
        self.attention = SelfAttention(softmax)

    def forward(self, x):
        if x.isnan().any():
            raise FloatingPointError
        return x + self.attention(x) * x.softmax(-1)  # the second softmax is outside of attention


class Model(nn.Module):
    def __init__(self, *spellings):
        super().__init__()
        self.layers = nn.ModuleList(
            Block(softmax) for softmax in spellings or list(SPELLINGS.values())[:3]
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def attention_modules(model):
    named = model.named_modules()
    return {name: module for name, module in named if type(module) is SelfAttention}


@pytest.fixture
def x():
    return torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))


def uniform(layer, weights, scores):
    return torch.full_like(weights, 1 / weights.shape[-1])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_softmax_is_seen_once_inside_attention_only(spelling, x):
    model, seen = Model(SPELLINGS[spelling]), []

    def note(layer, weights, scores):
        seen.append((layer, weights, scores))
        return weights

    with hook_attention(attention_modules(model), note) as hook:
        same = model(x)
    ((layer, weights, scores),) = seen
    assert layer == 0 and hook.names == ["layers.0.attention"]
    assert torch.equal(same, model(x)) and torch.equal(scores, x)
    torch.testing.assert_close(weights.float(), x.softmax(-1))
    with hook_attention(attention_modules(model), uniform):
        torch.testing.assert_close(model(x), x + x.mean(-2, keepdim=True) * x.softmax(-1))


def test_texts_and_heads_in_one_axis_are_edited_as_two(x):
    model = Model(lambda x: x.flatten(0, 1).softmax(-1).unflatten(0, x.shape[:2]))
    model.layers[0].attention.num_heads = 3
    with hook_attention(attention_modules(model), uniform):
        torch.testing.assert_close(model(x), x + x.mean(-2, keepdim=True) * x.softmax(-1))


def test_softmaxes_of_other_shape_or_axis_are_not_attention(x):
    spellings = [
        lambda x: x.flatten(0, 1).softmax(-1).view_as(x),
        lambda x: x.softmax(1),
        lambda x: x.softmax(2),
    ]
    model = Model(*spellings)
    with hook_attention(attention_modules(model), uniform) as hook:
        model(x)
    assert hook.names == []


SEED = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.rand(2, 1, 5, 6, generator=SEED) > 0.4},
        {"attn_mask": torch.randn(5, 6, generator=SEED)},
        {"enable_gqa": True},
        {"enable_gqa": True, "is_causal": True},
    ],
    ids=["plain", "causal", "scale", "mask", "scores", "grouped", "grouped-causal"],
)
def test_attend_is_scaled_dot_product_attention(options):
    generator = torch.Generator().manual_seed(0)
    n_heads = 2 if "enable_gqa" in options else 4
    query = torch.randn(2, 4, 5, 8, generator=generator)
    key, value = torch.randn(2, 2, n_heads, 6, 8, generator=generator)
    if options.get("attn_mask") is not None and options["attn_mask"].dtype == torch.bool:
        options["attn_mask"][..., 0] = True  # no row without a visible key
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    found = compute_eager_attention(
        query, key, value, **options, edit=lambda weights, scores: weights
    )
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_attend_in_half_precision_keeps_float32_weights():
    query, key, value = torch.randn(3, 1, 2, 4, 8).bfloat16()
    seen = []
    found = compute_eager_attention(
        query, key, value, edit=lambda weights, scores: seen.append(weights) or weights
    )
    assert found.dtype == torch.bfloat16 and seen[0].dtype == torch.float32
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(1, 2, 4))


def test_fused_attention_is_edited_and_gradients_reach_the_edit(x):
    model = Model(lambda x: F.scaled_dot_product_attention(x, x, torch.eye(5).expand_as(x)))
    attention = torch.rand(2, 3, 5, 5).requires_grad_()
    with hook_attention(attention_modules(model), lambda layer, weights, scores: attention):
        found = model(x)
    torch.testing.assert_close(found, x + attention @ x * x.softmax(-1))
    (slope,) = torch.autograd.grad(found.sum(), attention)
    torch.testing.assert_close(slope, torch.einsum("...qd,...kd->...qk", x.softmax(-1), x))
