"""Trainings of models that are stopped at a step, and comparison of their weights."""

import torch

from hf_attnprobe import AttentionClassifierConfig, TrainingOptions, train_classifier
from hf_attnprobe.retraining.adversary import train_adversary
from hf_attnprobe.retraining.base_model import load_base_model, train_variant
from hf_attnprobe.retraining.options import Adversary


SETTINGS = {"epochs": 3, "learning_rate": 1e-2, "batch_size": 16, "seed": 1}


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal_weights(model, other):
    own, theirs = weights(model), weights(other)
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)


def train_base(folder, reviews):
    """Train a classifier that has learnt something from 160 texts, and load it as a base model."""
    config = AttentionClassifierConfig(embedding_size=12, encoder_size=6)
    train_classifier(
        config,
        reviews["train"],
        reviews["validation"],
        output_dir=folder,
        options=TrainingOptions(**SETTINGS),
        progress=False,
    )
    return load_base_model(folder)


class SimulatedStopError(Exception):
    """As if the process were gone."""


def plain(base, reviews, folder):
    return train_variant(base, reviews, folder)


def imitating(base, reviews, folder):
    return train_adversary(base, reviews, folder, 0.02, Adversary(epochs=3))
