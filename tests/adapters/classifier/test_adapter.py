"""The classifier adapter against the model's own forward, deletion and re-encoding, and finite differences."""

from itertools import product

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.models.attention_classifier import AttentionClassifierModel
from tests.helpers import tiny_models


KINDS = [*product(tiny_models.ENCODERS, ("additive", "dot_product", "uniform"), (2, 4))]
KINDS += [("orthogonal_lstm", "additive", 2), ("orthogonal_lstm", "dot_product", 4)]
KINDS += [
    (f"{e}+{c}", "additive", 2) for e, c in product(tiny_models.ENCODERS, ("concat", "residual"))
]
FEW = tiny_models.daily(KINDS, (*tiny_models.FEW_ENCODERS, "bigru+concat", "cnn+residual"))
IDS = torch.tensor(
    [
        [2, 5, 6, 7, 7, 8, 9, 5, 3],
        [2, 5, 6, 7, 9, 3, 0, 0, 0],
        [2, 8, 8, 3, 0, 0, 0, 0, 0],
        [2, 8, 3, 0, 0, 0, 0, 0, 0],
        [2, 3, 0, 0, 0, 0, 0, 0, 0],
    ]
)


def make(encoder="bilstm", attention="additive", num_labels=2):
    encoder, _, connection = encoder.partition("+")
    width = 10 if connection != "residual" else 16 if encoder in ("bilstm", "bigru") else 8
    fields = {"attention": attention, "num_labels": num_labels}
    fields |= {"embedding_size": width, "residual_connection": connection or "none"}
    return tiny_models.classifier(encoder=encoder, **fields)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_observation_equals_the_models_own_forward(kind):
    model = make(*kind)
    _, observation = tiny_models.seen(model, IDS)
    with torch.no_grad():
        outputs = model.double()(IDS, output_attentions=True)
    assert torch.allclose(observation.probs, outputs.logits.softmax(-1), atol=1e-12)
    assert torch.allclose(observation.attention[0], outputs.attentions[0], atol=1e-12)


@pytest.mark.parametrize("kind", FEW, ids=str)
def test_gradient_equals_finite_differences(kind):
    model = make(*kind)
    adapter, observation = tiny_models.seen(model, IDS)
    model = model.double()
    target = torch.tensor([1, 0, 1, 0, 1])
    ours = adapter.compute_gradient_times_input(observation, target)
    base, mask, step = model.attention_classifier, (IDS != 0).long(), 1e-6
    embeddings = base.embeddings(IDS).detach()

    def explained(scale):
        """The target's probability with every embedding of one position scaled: the derivative is gradient × input."""
        states = base.encode(embeddings * scale[..., None], mask)
        weights = observation.attention[0][:, 0, 0]
        context = torch.einsum("bk,bkh->bh", weights, states)
        return model.decode(context).softmax(-1).gather(1, target[:, None])[:, 0]

    for position in range(IDS.shape[1]):
        nudge = torch.zeros(IDS.shape, dtype=torch.float64)
        nudge[:, position] = step
        slope = (explained(1 + nudge) - explained(1 - nudge)) / (2 * step)
        assert torch.allclose(ours[:, position], slope, atol=1e-8)


def test_the_users_model_stays_as_it_was():
    model = make().train()
    before = {name: (p.dtype, p.requires_grad) for name, p in model.named_parameters()}
    tiny_models.seen(model, IDS)
    assert model.training
    assert before == {name: (p.dtype, p.requires_grad) for name, p in model.named_parameters()}


def test_a_base_model_is_refused():
    with pytest.raises(AttnProbeError, match="classification head"):
        wrap(AttentionClassifierModel(make().config))
