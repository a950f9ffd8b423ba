"""Model and results of the reference implementation of Jain & Wallace 2019, if they are available."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)


ORACLE_FILE = Path(__file__).parents[2] / "../shared/oracles/jw_lstm_tanh.npz"
REFERENCE_NAMES = {
    "attention_classifier.embeddings.weight": "w.encoder.embedding.weight",
    "attention_classifier.attention.projection.weight": "w.decoder.attention.attn1.weight",
    "attention_classifier.attention.projection.bias": "w.decoder.attention.attn1.bias",
    "attention_classifier.attention.query.weight": "w.decoder.attention.attn2.weight",
    "classifier.weight": "w.decoder.linear_1.weight",
    "classifier.bias": "w.decoder.linear_1.bias",
}


def load_oracle() -> dict[str, torch.Tensor]:
    """Return all arrays of the oracle as tensors, or skip the test if the file is missing."""
    if not ORACLE_FILE.exists():
        pytest.skip("the results of the reference implementation are not on this machine")
    with np.load(ORACLE_FILE) as arrays:
        widened = {
            name: arrays[name].astype(np.int64) if arrays[name].dtype.kind in "iu" else arrays[name]
            for name in arrays
        }
    return {name: torch.from_numpy(array) for name, array in widened.items()}


def load_model(oracle: dict[str, torch.Tensor]) -> AttentionClassifierForSequenceClassification:
    """Return a classifier with the weights of the reference implementation."""
    config = AttentionClassifierConfig(vocab_size=len(oracle["w.encoder.embedding.weight"]))
    model = AttentionClassifierForSequenceClassification(config)
    lstm = {
        f"attention_classifier.encoder.lstm.{k.rsplit('.', 1)[1]}": k
        for k in oracle
        if ".rnn." in k
    }
    model.load_state_dict(
        {ours: oracle[theirs] for ours, theirs in (REFERENCE_NAMES | lstm).items()}
    )
    return model.eval()
