"""Similarity of states: two definitions of conicity agree."""

import torch

from hf_attnprobe.functional.similarity import conicity as functional_conicity
from hf_attnprobe.models.attention_classifier.regularisers_attention_classifier import (
    compute_conicity,
)


def test_both_definitions_of_conicity_agree():
    states, content = torch.randn(5, 7, 3), torch.rand(5, 7) < 0.7
    content[:, 0] = True
    torch.testing.assert_close(
        compute_conicity(states, content), functional_conicity(states, content)
    )
