"""Layers of attention classifiers: states of the orthogonal LSTM are orthogonal to the mean before them."""

import torch

from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.models.attention_classifier.layers_attention_classifier import (
    OrthogonalLSTMEncoder,
)


def test_states_of_the_orthogonal_lstm_are_orthogonal_to_the_mean_before_them():
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        vocab_size=12, embedding_size=5, encoder="orthogonal_lstm", encoder_size=6
    )
    encoder = OrthogonalLSTMEncoder(config, 5).double()
    states = encoder(2 * torch.randn(3, 9, 5, dtype=torch.float64), torch.ones(3, 9))
    for t in range(1, 9):
        assert ((states[:, t] * states[:, :t].mean(1)).sum(-1).abs() < 1e-12).all()
    assert (states.norm(dim=-1) > 1e-3).all()
