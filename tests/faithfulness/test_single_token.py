"""Single tokens: their outputs are those of texts of one token."""

import math

import pytest
import torch

from hf_attnprobe.faithfulness.single_token import single_token
from tests.helpers.probed_models import MODELS, SITE, TEXTS, observe


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def test_single_tokens_are_one_token_texts(model):
    _adapter, observation = observe(model)
    result = single_token(observation, SITE)
    model = model.double()
    for row, text in enumerate(TEXTS):
        target = observation.probs[row].argmax()
        alone = [
            model(torch.tensor([[2, token, 3]])).logits.softmax(-1)[0, target].item()
            for token in text[1:-1]
        ]
        mean = sum(alone) / len(alone)
        std = math.sqrt(sum((p - mean) ** 2 for p in alone) / len(alone))
        assert result.lowest_probability[row].item() == pytest.approx(min(alone), abs=1e-9)
        assert result.highest_probability[row].item() == pytest.approx(max(alone), abs=1e-9)
        if len(alone) > 1:
            expected = max(alone) - min(alone)
            assert result.probability_range[row].item() == pytest.approx(expected, abs=1e-9)
            assert result.probability_std[row].item() == pytest.approx(std, abs=1e-9)
        else:
            assert result.probability_range[row].isnan() and result.probability_std[row].isnan()
