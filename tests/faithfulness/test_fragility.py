"""Compare fragility with plain loops over the models' forward passes."""

import pytest
import torch

from hf_attnprobe.faithfulness.fragility import fragility
from hf_attnprobe.faithfulness.options import Fragility
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from tests.helpers.probed_models import LABELS, MODELS, SITE, TEXTS, classifier, observe


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


# --- fragility ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bilstm", "four classes", "concat", "orthogonal"])
def test_fragility_is_a_plain_loop_over_the_read_out(kind):
    """The model's own states and read-out with other weights, text by text and draw by draw."""
    model = MODELS[kind]()
    _adapter, observation = observe(model)
    result = fragility(observation, SITE, Fragility(n_draws=7), seed=2)
    order = observation.draw_permutations(0, 7, 2)
    model = model.double()
    for row, text in enumerate(TEXTS):
        outputs = model(torch.tensor([text]), output_attentions=True, output_hidden_states=True)
        states, weights = outputs.hidden_states[0][0], outputs.attentions[0][0, 0, 0]

        def decide(weights, states=states):
            return model.decode(weights[: len(states)] @ states).argmax().item()

        flat = torch.tensor([0.0, *[1 / (len(text) - 2)] * (len(text) - 2), 0.0]).double()
        padded = torch.nn.functional.pad(weights, (0, order.shape[-1] - len(weights)))
        permuted = [decide(padded[order[k, row, 0]]) for k in range(7)]
        for k in range(model.config.num_labels):
            assert result.trained_share[k][row] == (decide(weights) == k)
            assert result.uniform_share[k][row] == (decide(flat) == k)
            assert result.permuted_share[k][row].item() == pytest.approx(permuted.count(k) / 7)


def test_right_is_what_goes_to_the_label(model):
    _adapter, observation = observe(model)
    result = fragility(observation, SITE, Fragility(n_draws=5))
    for name in ("trained", "uniform", "permuted"):
        shares, correct = (getattr(result, f"{name}_share"), getattr(result, f"{name}_correct"))
        expected = torch.ones(len(TEXTS), dtype=torch.float64)
        torch.testing.assert_close(sum(shares.values()), expected)
        for row, label in enumerate(LABELS):
            assert correct[row].item() == shares[label][row] if label >= 0 else correct[row].isnan()


def test_decisions_flip_where_the_probes_say(model):
    _adapter, observation = observe(model)
    result = fragility(observation, SITE)
    same = sum(result.trained_share[k] * result.uniform_share[k] for k in result.trained_share)
    assert torch.equal(1 - same, uniform_attention(observation, SITE).uniform_flip)
    flips = permutation(observation, SITE).flip_possible
    if flips is not None:
        stays = sum(
            result.trained_share[k] * result.permuted_share[k] for k in result.trained_share
        )
        assert (stays[flips == 0] == 1).all()


def test_without_labels_nothing_is_right():
    _adapter, observation = observe(classifier())
    object.__setattr__(observation.batch, "labels", None)
    assert fragility(observation, SITE).permuted_correct.isnan().all()
