"""Readings: every statistic of the probes has one."""

from hf_attnprobe.core.readings import get_sentence
from hf_attnprobe.faithfulness import registry
from hf_attnprobe.faithfulness.exchange import collect_unit_donors
from hf_attnprobe.faithfulness.interchange import collect_donors
from hf_attnprobe.protocol import AnswersFromPassage
from hf_attnprobe.statistics.wording import CLASS_WORDING
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers.observed_classifiers import SITE, observe_classifier


def test_every_statistic_has_a_reading():
    adapter, observation = observe_classifier()
    adapter.donors = collect_donors(adapter, [observation.batch], [SITE], 0)
    adapter.unit_donors = collect_unit_donors(adapter, [observation.batch], 0)
    for test in registry.load_tests().values():
        if AnswersFromPassage in test.needs:
            # Tested in tests/adapters/language_model/test_adapter.py.
            continue
        result = collect_statistics(test.function(observation, SITE))
        assert result and {name.split("@")[0] for name in result} <= set(test.readings)
        for name in result:
            pattern = get_sentence(test.name, name, registry.load_readings())
            sentence = CLASS_WORDING.fill(pattern, mean=0.5, median=0.5, key="0.05")
            assert "{" not in sentence and len(sentence) > 20
