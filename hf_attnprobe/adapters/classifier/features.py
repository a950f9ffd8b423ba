"""Adapter for the attention classifiers that read bags of features instead of texts."""

from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.adapters.pooling import PoolingAdapter
from hf_attnprobe.adapters.pretrained import get_class_names, use_eval_mode
from hf_attnprobe.models.attention_classifier.modeling_attention_classifier import (
    AttentionClassifierForSequenceClassification,
)


INSTANCEWISE_ENCODERS = ("mlp", "none")
"""Encoders that compute the state of an instance from its own vector alone."""


class FeatureClassifierAdapter(PoolingAdapter):
    """Adapter for a classifier with ``inputs="features"``.

    Args:
        model: The classifier.
        dtype: Data type for all computations.
    """

    has_linear_head = True
    model: AttentionClassifierForSequenceClassification

    def __init__(
        self,
        model: AttentionClassifierForSequenceClassification,
        *,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(model, label_names=get_class_names(model.config), dtype=dtype)
        self.feature_size = model.config.feature_size
        self.mixes_instances = model.config.encoder not in INSTANCEWISE_ENCODERS
        if model.config.class_attention:
            self.n_heads = len(self.label_names)
        self._base = self.model.attention_classifier

    def encode(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Compute the encoder states, `[batch, instances, hidden]`."""
        return self._base.encode(vectors, mask.long())

    def score(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention scores.

        Args:
            states: Encoder states, `[batch, instances, hidden]`.
            mask: Positions without padding, bool `[batch, instances]`.

        Returns:
            Scores `[batch, instances]`, or `[batch, classes, instances]` with one attention per class.
        """
        return self._base.attention(states)

    def classify(self, pooled: Tensor) -> Tensor:
        """Compute the logits, `[rows, classes]`.

        Args:
            pooled: Context vectors `[rows, hidden]`, or `[rows, classes, hidden]` with one attention
                per class.
        """
        return self.model.decode(pooled)

    def run_module(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Compute the logits with the original model, `[batch, classes]`."""
        model: Any = self.user_model
        dtype: torch.dtype = model.dtype
        with use_eval_mode(model):
            output = model(features=inputs.to(dtype), attention_mask=mask.long())
        return output.logits
