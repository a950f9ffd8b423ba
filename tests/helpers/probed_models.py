"""Small classifiers of every kind and a BERT, with texts that they observe."""

import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.protocol import Site
from tests.helpers import tiny_models


TEXTS = ([2, 5, 6, 7, 7, 8, 9, 5, 3], [2, 9, 6, 4, 7, 3], [2, 8, 5, 3], [2, 7, 3])
LABELS, EXAMPLE_IDS = (1, 0, -1, 1), (3, 1, 4, 15)
SITE = Site()


def classifier(num_labels=2, **options):
    options = {"embedding_size": 16, "num_labels": num_labels} | options
    return tiny_models.classifier(read_out=20, query=20, seed=1, **options)


def bert():
    return tiny_models.bert(heads=4, num_labels=3)


def observe(model):
    adapter = wrap(model, dtype=torch.float64)
    batch = adapter.prepare(tiny_models.encoded(TEXTS), EXAMPLE_IDS, torch.tensor(LABELS))
    return adapter, adapter.observe(batch)


MODELS = {
    "bilstm": classifier,
    "four classes": lambda: classifier(4),
    "concat": lambda: classifier(residual_connection="concat"),
    "residual": lambda: classifier(residual_connection="residual"),
    "orthogonal": lambda: classifier(encoder="orthogonal_lstm"),
    "bert": bert,
}
