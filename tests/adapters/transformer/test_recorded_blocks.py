"""Recorded blocks: calls are counted, resumed and undone."""

import pytest
import torch

from hf_attnprobe.adapters.transformer.attention_hooks import hook_attention
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    find_attention_blocks,
    record_outputs,
    repeat_batch,
    skip_first_calls,
)
from tests.adapters.transformer.test_attention_hooks import Model, attention_modules, uniform


@pytest.fixture
def x():
    return torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))


def hooks_of(model):
    return [
        len(m._forward_hooks) + len(m._forward_pre_hooks) + ("forward" in m.__dict__)
        for m in model.modules()
    ]


def test_nothing_is_left_behind_also_after_an_exception(x):
    model = Model()
    before, expected = hooks_of(model), model(x)
    blocks = find_attention_blocks(model, attention_modules(model))

    def fail(layer, weights, scores):
        raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        hook_attention(attention_modules(model), fail),
        skip_first_calls(blocks, [x]),
    ):
        model(x)
    with (
        pytest.raises(FloatingPointError),
        hook_attention(attention_modules(model), uniform),
        record_outputs(blocks),
    ):
        model(x * torch.nan)
    assert hooks_of(model) == before and torch.equal(model(x), expected)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_resuming_skips_calls_and_numbers_the_others_on(x):
    model, seen = Model(), []
    modules = attention_modules(model)
    blocks = find_attention_blocks(model, modules)
    assert blocks == list(model.layers)
    with record_outputs(blocks) as outputs:
        expected = model(x)

    def note(layer, weights, scores):
        seen.append(layer)
        return weights

    with hook_attention(modules, note, first_layer=2), skip_first_calls(blocks, outputs[:2]):
        assert torch.equal(model(torch.zeros_like(x)), expected)
    assert seen == [2]


def test_one_block_called_again_and_again_is_counted_by_calls(x):
    model = Model()
    model.layers[1] = model.layers[2] = model.layers[0]
    blocks = find_attention_blocks(model, attention_modules(model))
    with record_outputs(blocks) as outputs:
        expected = model(x)
    assert len(blocks) == 1 and len(outputs) == 3
    with skip_first_calls(blocks, outputs[:2]):
        assert torch.equal(model(torch.zeros_like(x)), expected)
    assert "forward" not in model.layers[0].__dict__


def test_somebody_elses_forward_is_put_back(x):
    model = Model()
    model.layers[0].forward = lambda x: x
    mine = model.layers[0].forward
    with skip_first_calls(list(model.layers), [x]):
        pass
    assert model.layers[0].forward is mine and "forward" not in model.layers[1].__dict__


def test_repeated_leaves_what_the_batch_shares():
    hidden, bias = torch.arange(4.0).view(2, 2), torch.ones(1, 3)
    found, (kept, nothing) = repeat_batch((hidden, (bias, None)), 2, 2)
    assert found.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3]] and kept is bias and nothing is None
