"""Agreement of attention with attributions: against scipy, and undefined where there is nothing to compare."""

import itertools

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import pearsonr

from hf_attnprobe.faithfulness.attribution_agreement import attribution_agreement
from hf_attnprobe.faithfulness.options import AttributionAgreement
from hf_attnprobe.protocol import Site
from tests.adapters.test_integrated_gradients import IDS, change_of_output, classifier
from tests.helpers import tiny_models
from tests.helpers.adapter_families import get_shared_model, observe_texts


def test_where_a_norm_stretches_tiny_embeddings_the_gap_is_said():
    """DeBERTa without position embeddings jumps at embeddings of 0: no sum of gradients contains the jump."""
    adapter, observation = observe_texts(get_shared_model("deberta"), dtype=torch.float64)
    target = observation.get_target_classes(None)
    summed = adapter.compute_integrated_gradients(observation, target, 50).sum(-1)
    expected = (summed - change_of_output(adapter, observation, target)).abs()
    found = attribution_agreement(observation, Site(1, 2)).integrated_gap
    torch.testing.assert_close(found, expected.to(found.dtype), atol=1e-9, rtol=0)
    assert found.max() > 0.01
    held = AttributionAgreement(attention="held", n_steps=5)
    assert attribution_agreement(observation, Site(1, 2), held).integrated_gap is None


def test_agreement_of_attention_and_attributions_against_scipy():
    adapter, observation = tiny_models.seen(classifier(encoder="bilstm"), IDS)
    options = AttributionAgreement(n_steps=20, target=1)
    found = attribution_agreement(observation, Site(), options)
    target = torch.ones(len(IDS), dtype=torch.int64)
    measures = {
        "attention": observation.attention[0][:, 0, 0],
        "gradient": adapter.compute_gradient_times_input(observation, target).abs(),
        "integrated": adapter.compute_integrated_gradients(observation, target, 20).abs(),
    }
    for a, b in itertools.combinations(measures, 2):
        for row, real in enumerate(observation.batch.content_mask):
            x, y = (measures[name][row][real].numpy() for name in (a, b))
            x, y = x / x.sum(), y / y.sum()
            wanted = pearsonr(x, y)[0]
            assert getattr(found, f"{a}_{b}_pearson")[row].item() == pytest.approx(wanted, abs=1e-9)
            expected = jensenshannon(x, y) ** 2
            assert getattr(found, f"{a}_{b}_jsd")[row].item() == pytest.approx(expected, abs=1e-9)


def test_agreement_is_undefined_where_there_is_nothing_to_compare():
    ids = torch.tensor([[2, 5, 3, 0], [2, 6, 6, 3]])
    _, observation = tiny_models.seen(classifier(), ids)
    found = attribution_agreement(observation, Site())
    assert found.attention_integrated_pearson[0].isnan()  # one token
    assert found.attention_integrated_jsd[0].item() == pytest.approx(0, abs=1e-12)
