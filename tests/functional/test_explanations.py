"""Explanations against hand-computed cases, explicit loops and the null space of a singular value decomposition."""

import numpy as np
import pytest
import torch

from hf_attnprobe.functional.explanations import (
    cosine_distance,
    effective_attention,
    rollout,
    value_zeroing,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_attention(*shape, dtype=torch.double):
    return torch.randn(*shape, generator=generator(), dtype=dtype).softmax(-1)


def test_rollout_is_the_matrix_product_of_the_layers():
    layers = [random_attention(2, 4, 5, 5) + k for k in range(3)]
    for residual in (True, False):
        found = rollout([layer.mean(1) for layer in layers], residual=residual)
        for row in range(2):
            expected = np.eye(5)
            for layer in layers:
                mean = layer[row].mean(0).numpy()
                expected = ((0.5 * mean + 0.5 * np.eye(5)) if residual else mean) @ expected
            np.testing.assert_allclose(found[row].numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_effective_attention_gives_the_same_output_without_the_null_space(dtype):
    attention = random_attention(2, 3, 9, 9, dtype=dtype)
    values = torch.randn(2, 3, 9, 4, generator=generator(), dtype=dtype)
    projection = torch.randn(3, 4, 16, generator=generator(1), dtype=dtype)
    found = effective_attention(attention, values)
    # The head's contribution to the layer.
    contribution = (values @ projection).double()
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(
        found @ contribution, attention.double() @ contribution, atol=tolerance, rtol=0
    )
    assert (found - attention).abs().amax((-2, -1)).min() > 0.01
    left = torch.linalg.svd(contribution).U
    null = left[..., 4:]  # nine keys, rank four
    expected = torch.zeros(2, 3, 9, 5).double()
    torch.testing.assert_close(found @ null, expected, atol=tolerance, rtol=0)
    removed = attention - found  # and nothing but the null space is removed
    ours = removed @ null @ null.transpose(-2, -1)
    torch.testing.assert_close(ours, removed.double(), atol=tolerance, rtol=0)


def test_effective_attention_of_a_short_text_is_attention():
    attention = random_attention(1, 4, 4)
    values = torch.randn(1, 4, 6, generator=generator(), dtype=torch.double)
    torch.testing.assert_close(effective_attention(attention, values), attention)


def test_effective_attention_by_hand():
    attention = torch.tensor([[0.7, 0.2, 0.1, 0.0]])
    same = torch.tensor(
        [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 0.0]]
    )  # equal values, and padding: rank one
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0]]).double()
    torch.testing.assert_close(effective_attention(attention, same), expected)
    assert effective_attention(attention, torch.zeros(4, 2)).tolist() == [[0.0] * 4]


def test_cosine_distance_is_exactly_zero_for_the_same():
    a, b = torch.randn(2, 7, 5, generator=generator())
    assert not cosine_distance(a, a.clone()).any() and cosine_distance(a, 3 * a).max() < 1e-13
    expected = 1 - torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1)
    torch.testing.assert_close(cosine_distance(a, b), expected)
    assert cosine_distance(
        torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    ).item() == pytest.approx(1)


def test_value_zeroing_shares_out_what_is_visible():
    distances = torch.tensor([[[1.0, 3.0, 9.0], [0.0, 0.0, 0.0]]])
    visible = torch.tensor([[[True, True, False], [True, True, False]]])
    assert value_zeroing(distances, visible).tolist() == [[[0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]]
