"""Small models with random weights for tests of checkpoints, and edits of their configuration files."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, PreTrainedModel

from tests.helpers import tiny_models


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
"""Configuration fields of the small models."""


def build_bert(
    vocab_size: int, kind: str = "BertForSequenceClassification", **options: Any
) -> PreTrainedModel:
    """Build a small BERT of a given class."""
    return tiny_models.bert(vocab_size, kind=getattr(transformers, kind), spread=0.02, **options)


def build_llama(kind: str, vocab_size: int = 30, **fields: Any) -> PreTrainedModel:
    """Build a small Llama with a head such as "CausalLM"."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocab_size, **SIZES, num_key_value_heads=2, **fields)
    return getattr(transformers, f"LlamaFor{kind}")(config)


def edit_config(folder: Path, **values: Any) -> None:
    """Change fields in the configuration file of a saved model; None removes a field."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    remaining = {name: value for name, value in config.items() if value is not None}
    file.write_text(json.dumps(remaining))
