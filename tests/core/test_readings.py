"""Readings: every statistic of the probes has one."""

import torch

from hf_attnprobe.core.readings import get_sentence
from hf_attnprobe.faithfulness import registry
from hf_attnprobe.faithfulness.interchange import collect_donors
from hf_attnprobe.protocol import AnswersFromPassage, Site
from hf_attnprobe.statistics.wording import CLASS_WORDING
from hf_attnprobe.storage.rows import collect_statistics
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


def test_every_statistic_has_a_reading():
    adapter, observation = observe_classifier()
    adapter.donors = collect_donors(adapter, [observation.batch], [SITE], 0)
    for test in registry.load_tests().values():
        if AnswersFromPassage in test.needs:  # told in adapters/test_language_model.py
            continue
        result = collect_statistics(test.function(observation, SITE))
        assert result and {name.split("@")[0] for name in result} <= set(test.readings)
        for name in result:
            pattern = get_sentence(test.name, name, registry.load_readings())
            sentence = CLASS_WORDING.fill(pattern, mean=0.5, median=0.5, key="0.05")
            assert "{" not in sentence and len(sentence) > 20
