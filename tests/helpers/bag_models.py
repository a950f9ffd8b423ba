"""Bags of instances with known truth, and small modules that pool them by attention."""

import numpy as np
import torch
from torch import nn

from hf_attnprobe import PoolingAdapter


WIDTH = 8


class GatedPooling(nn.Module):
    """Gated attention (Ilse et al. 2018), written independently of the package."""

    def __init__(self, width=WIDTH, hidden=12, n_classes=2):
        super().__init__()
        self.tanh_map, self.gate_map = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.score_map, self.head = nn.Linear(hidden, 1), nn.Linear(width, n_classes)

    def score(self, vectors):
        return self.score_map(self.tanh_map(vectors).tanh() * self.gate_map(vectors).sigmoid())[
            ..., 0
        ]

    def forward(self, vectors, mask):
        weights = self.score(vectors).masked_fill(~mask, -torch.inf).softmax(-1)
        return self.head((weights[..., None] * vectors).sum(1))


class GatedAdapter(PoolingAdapter):
    label_names = ("negative", "positive")
    unit = "patch"
    has_linear_head = True

    def score(self, states, mask):
        return self.model.score(states)

    def classify(self, pooled):
        return self.model.head(pooled)

    def run_module(self, inputs, mask):
        return self.model(inputs, mask)


class BypassAdapter(GatedAdapter):
    """The extreme instances decide, and hardly anything passes through attention."""

    has_linear_head = False

    def predict(self, attention, states, mask):
        pooled = self.model.head((attention @ states)[:, 0])
        cubes = states**3 * mask[..., None]
        return 0.02 * pooled + self.model.head(cubes.sum(1) / 20)

    def compute_empty_logits(self, states):
        return self.model.head(torch.zeros_like(states[:, 0]))

    def run_module(self, inputs, mask):
        return None


def make_bags(n_bags, seed, n_instances=(10, 14)):
    """Bags in which two key instances decide; the sign of their first feature is the class."""
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(n_bags):
        n = int(generator.integers(*n_instances))
        features = generator.normal(size=(n, WIDTH))
        keys = sorted(generator.choice(n, 2, replace=False).tolist())
        label = index % 2
        features[keys, 0] = 4.0 if label else -4.0
        rows.append({"features": features.tolist(), "label": label, "rationale": keys})
    return rows


def set_key_weights(model):
    """Set the weights such that attention is on instances whose first feature is large.

    The head reads the first feature only.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # One of the two units is about 1 if the first feature is ±4; otherwise both are below 0.
        model.tanh_map.weight[0, 0], model.tanh_map.weight[1, 0] = 1.0, -1.0
        model.tanh_map.bias[:2] = -2.5
        model.gate_map.bias.fill_(9.0)
        model.score_map.weight[0, :2] = 3.0
        model.head.weight[1, 0] = 1.0
    return model


def set_idle_weights(model, strength=0.02):
    """Set the weights such that attention follows a feature that the head does not read.

    With a small strength, attention is nearly uniform, so its order has no effect.
    """
    set_key_weights(model)
    with torch.no_grad():
        model.tanh_map.weight[:2] = 0
        model.tanh_map.bias[:2] = 0
        model.tanh_map.weight[0, 1] = 1.0
        model.score_map.weight[0, :2] = strength
    return model
