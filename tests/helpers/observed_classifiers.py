"""Classifiers with random weights that have observed four short texts."""

import torch

from hf_attnprobe.protocol import Site
from tests.helpers import tiny_models


SITE = Site()
IDS = torch.tensor(
    [[2, 5, 6, 7, 8, 9, 3], [2, 9, 6, 4, 3, 0, 0], [2, 8, 5, 3, 0, 0, 0], [2, 8, 3, 0, 0, 0, 0]]
)


def observe_classifier(attention="additive", num_labels=2, encoder="bilstm"):
    query = 10 if attention == "additive" else 1
    kind = {"encoder": encoder, "attention": attention, "num_labels": num_labels}
    model = tiny_models.classifier(read_out=10, query=query, seed=1, **kind)
    return tiny_models.seen(model, IDS, (10, 11, 12, 13))
