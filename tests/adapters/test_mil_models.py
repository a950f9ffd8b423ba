"""Adapters for published models, compared with the models' own forward passes."""

import pytest
import torch

from hf_attnprobe import audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.testing import check_adapter
from tests.helpers.bag_models import WIDTH, make_bags
from tests.helpers.error_messages import refuses
from tests.helpers.mil_models import CLAM_MB, CLAM_SB


def pad_bags(rows):
    """Return padded features and their mask."""
    bags = [torch.tensor(row["features"], dtype=torch.float64) for row in rows]
    masks = [torch.ones(len(bag), dtype=torch.bool) for bag in bags]
    pad = torch.nn.utils.rnn.pad_sequence
    return {"features": pad(bags, True), "attention_mask": pad(masks, True)}


def make_torchmil_model(name):
    models = pytest.importorskip("torchmil.models")
    extractor = torch.nn.Sequential(torch.nn.Linear(WIDTH, 12), torch.nn.ReLU())
    model = getattr(models, name)(in_shape=(WIDTH,), att_dim=6, gated=True, feat_ext=extractor)
    return model, lambda bag: torch.nn.functional.pad(model.double()(bag[None])[:, None], (1, 0))[0]


def make_clam(model_class, n_classes):
    model = model_class(WIDTH, n_classes)
    return model, lambda bag: model.double().eval()(bag)[0][0]


MODELS = {
    "CLAM_SB": lambda: make_clam(CLAM_SB, 3),
    "CLAM_MB": lambda: make_clam(CLAM_MB, 3),
    "torchmil ABMIL": lambda: make_torchmil_model("ABMIL"),
    "torchmil CLAM_SB": lambda: make_torchmil_model("CLAM_SB"),
}
"""Functions that return a model, and its logits for a single bag `[classes]`."""


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_and_deletions_are_those_of_the_model(name):
    torch.manual_seed(0)
    model, compute_logits = MODELS[name]()
    adapter = wrap(model)
    rows = make_bags(3, 0, n_instances=(4, 7))
    inputs = pad_bags(rows)
    observation = adapter.observe(adapter.prepare(inputs, (0, 1, 2)))
    adapter.self_check(observation.batch)
    leave_one_out = adapter.compute_leave_one_out(observation)
    native_probs = adapter.compute_native_probs(observation.batch)
    for index, mask in enumerate(inputs["attention_mask"]):
        bag = inputs["features"][index, mask]
        expected = compute_logits(bag).softmax(-1)
        torch.testing.assert_close(observation.probs[index], expected)
        native = native_probs[index].to(expected.dtype)
        torch.testing.assert_close(native, expected, rtol=1e-5, atol=1e-6)
        for instance in range(len(bag)):
            shortened = torch.cat([bag[:instance], bag[instance + 1 :]])
            torch.testing.assert_close(
                leave_one_out[index, instance], compute_logits(shortened).softmax(-1)
            )


def test_clam_has_one_map_per_class():
    torch.manual_seed(0)
    model = CLAM_MB(WIDTH, 3)
    adapter = wrap(model)
    batch = adapter.prepare(pad_bags(make_bags(3, 0, n_instances=(4, 7))), (0, 1, 2))
    check_adapter(adapter, batch)
    bag = pad_bags(make_bags(1, 0))
    observation = adapter.observe(adapter.prepare(bag, (0,)))
    maps = model.double().eval()(bag["features"][0])[3].softmax(-1)
    assert len(adapter.sites()) == 3
    for site, expected in zip(adapter.sites(), maps, strict=True):
        torch.testing.assert_close(observation.read(site)[0], expected)


def test_an_audit_recognises_the_model():
    torch.manual_seed(0)
    rows = [{**row, "label": "ab"[row["label"]]} for row in make_bags(12, 0)]
    report = audit(CLAM_MB(WIDTH), rows, "permutation", progress=False)
    assert report.n == 12 and "CLAM_MB" in str(report)


def test_transmil_is_refused():
    # The class is recognised by its name and module, so torchmil need not be installed.
    transmil = type("TransMIL", (torch.nn.Linear,), {"__module__": "torchmil.models.transmil"})
    with refuses("no attention distribution"):
        audit(transmil(WIDTH, 1), make_bags(4, 0), progress=False)
