"""Adapters for modules that pool bags, against passes of the module over edited bags."""

import numpy as np
import pytest
import torch
from torch import nn

from hf_attnprobe import PoolingAdapter, check_adapter
from hf_attnprobe.adapters import pooling, wrap
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from tests.helpers.bag_models import (
    WIDTH,
    BypassAdapter,
    GatedAdapter,
    GatedPooling,
    set_key_weights,
)
from tests.helpers.error_messages import refuses


class MixingAdapter(GatedAdapter):
    """Adds the mean of the bag to every instance, so that states depend on each other."""

    mixes_instances = True

    def encode(self, vectors, mask):
        sums = (vectors * mask[..., None]).sum(1, keepdim=True)
        return vectors + sums / mask.sum(1)[:, None, None]

    def run_module(self, inputs, mask):
        return None


class Branches(nn.Module):
    """One attention branch per class, as in CLAM."""

    def __init__(self):
        super().__init__()
        self.scores, self.heads = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)


class BranchAdapter(PoolingAdapter):
    label_names = ("negative", "positive")
    n_heads = 2

    def score(self, states, mask):
        return self.model.scores(states).transpose(1, 2)

    def classify(self, pooled):
        return (pooled * self.model.heads.weight).sum(-1) + self.model.heads.bias


class Items(nn.Module):
    """Attention over integers."""

    def __init__(self):
        super().__init__()
        self.table, self.scores = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 1)
        self.head = nn.Linear(WIDTH, 1)


class ItemAdapter(PoolingAdapter):
    label_names = ("negative", "positive")
    instance_column = "items"

    def embed(self, inputs):
        return self.model.table(inputs)

    def score(self, states, mask):
        return self.model.scores(states)[..., 0]

    def classify(self, pooled):
        return self.model.head(pooled.tanh())


ADAPTERS = {
    "gated": (GatedAdapter, GatedPooling),
    "bypass": (BypassAdapter, GatedPooling),
    "mixing": (MixingAdapter, GatedPooling),
    "branches": (BranchAdapter, Branches),
    "items": (ItemAdapter, Items),
}


def make_batch(adapter, lengths=(12, 7, 1), seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = max(lengths)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    if adapter.instance_column == "items":
        bags = torch.randint(0, 9, (len(lengths), n), generator=generator) * mask
    else:
        bags = torch.randn(len(lengths), n, WIDTH, generator=generator) * mask[..., None]
    inputs = {adapter.instance_column: bags, "attention_mask": mask.long()}
    return adapter.prepare(inputs, example_ids=tuple(range(len(lengths))))


@pytest.fixture(params=ADAPTERS)
def adapter(request):
    adapter_class, module_class = ADAPTERS[request.param]
    torch.manual_seed(1)
    return adapter_class(module_class())


def run_alone(adapter, bag):
    """Probabilities of one bag without padding, from the parts that the subclass defines."""
    mask = torch.ones(1, len(bag), dtype=torch.bool)
    states = adapter.encode(adapter.embed(bag[None]), mask)
    scores = adapter.score(states, mask).reshape(adapter.n_heads, -1)
    weights = scores.softmax(-1)
    logits = adapter.predict(weights[None], states, mask)
    if logits.shape[-1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], -1)
    return logits.softmax(-1)[0]


def test_an_adapter_passes_all_checks(adapter):
    check_adapter(adapter, make_batch(adapter))
    adapter.self_check(make_batch(adapter))


def test_deleting_and_exchanging_equal_passes_over_edited_bags(adapter):
    batch = make_batch(adapter)
    observation = adapter.observe(batch)
    bag = batch.inputs[adapter.instance_column][0]
    without = adapter.compute_leave_one_out(observation)[0]
    for position in range(12):
        expected = run_alone(adapter, torch.cat([bag[:position], bag[position + 1 :]]))
        torch.testing.assert_close(without[position], expected, rtol=1e-10, atol=1e-12)
    contents = adapter.read_unit_contents(observation)
    generator = np.random.default_rng(0)
    for _ in range(20):
        chosen = generator.choice(12, int(generator.integers(1, 12)), replace=False).tolist()
        sets = torch.zeros(1, 3, 12, dtype=torch.bool)
        sets[0, 0, chosen] = True
        remaining = [position for position in range(12) if position not in chosen]
        deleted = adapter.erase_inputs(observation, sets)[0, 0]
        expected = run_alone(adapter, bag[remaining])
        torch.testing.assert_close(deleted, expected, rtol=1e-10, atol=1e-12)
        donors = {position: contents[1][position % 7] for position in chosen}
        exchanged = adapter.exchange_inputs(observation, sets, [donors, {}, {}])[0, 0]
        edited = bag.clone()
        for position, donor in donors.items():
            edited[position] = donor
        torch.testing.assert_close(exchanged, run_alone(adapter, edited), rtol=1e-10, atol=1e-12)


def test_replay_uses_the_given_weights():
    torch.manual_seed(1)
    adapter = GatedAdapter(GatedPooling())
    batch = make_batch(adapter)
    observation = adapter.observe(batch)
    weights = torch.rand(1, 3, 1, 1, 12, dtype=torch.float64) * batch.mask[:, None, None]
    weights = weights / weights.sum(-1, keepdim=True)
    bags = batch.inputs["features"]
    pooled = torch.einsum("bk,bkw->bw", weights[0, :, 0, 0], bags)
    head = adapter.model.head
    expected = (pooled @ head.weight.T + head.bias).softmax(-1)
    torch.testing.assert_close(adapter.replay(observation, {0: weights})[0], expected)


def test_one_instance_with_nearly_all_attention_loses_no_precision():
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    with torch.no_grad():
        adapter.model.score_map.weight *= 12
    features = torch.randn(2, 12, WIDTH, generator=torch.Generator().manual_seed(3)).double()
    features[:, 4, 0] = 4.0
    mask = torch.ones(2, 12, dtype=torch.long)
    batch = adapter.prepare({"features": features, "attention_mask": mask}, (0, 1))
    observation = adapter.observe(batch)
    assert observation.attention[0][0, 0, 0, 4] > 1 - 1e-9
    without = adapter.compute_leave_one_out(observation)[0, 4]
    others = [position for position in range(12) if position != 4]
    torch.testing.assert_close(without, run_alone(adapter, features[0, others]), rtol=1e-10, atol=0)


def test_small_steps_give_the_same_numbers(adapter, monkeypatch):
    observation = adapter.observe(make_batch(adapter))
    expected = adapter.compute_leave_one_out(observation)
    monkeypatch.setattr(pooling, "MAX_ELEMENTS_PER_STEP", 1)
    actual = adapter.compute_leave_one_out(adapter.observe(make_batch(adapter)))
    torch.testing.assert_close(actual, expected)


def test_gradients_equal_finite_differences(adapter):
    observation = adapter.observe(make_batch(adapter))
    target = observation.probs.argmax(-1)
    gradient = adapter.compute_integrated_gradients(observation, target, 40)
    change = observation.probs - adapter.compute_zero_embedding_probs(observation)
    expected = change.gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(gradient.sum(-1), expected, rtol=1e-3, atol=1e-4)


def test_wrong_attributes_are_refused():
    class WrongMixing(MixingAdapter):
        mixes_instances = False

    class WrongHead(GatedAdapter):
        has_linear_head = True

        def classify(self, pooled):
            return self.model.head(pooled.tanh() * 3)

    with refuses("mixes_instances = True"):
        wrong = WrongMixing(GatedPooling())
        wrong.self_check(make_batch(wrong))
    with refuses("has_linear_head = False"):
        wrong = WrongHead(GatedPooling())
        wrong.self_check(make_batch(wrong))
    with refuses("2 logits"):
        named = GatedAdapter(GatedPooling(), label_names=["a", "b", "c"])
        named.observe(make_batch(named))
    with refuses("at least two classes"):
        GatedAdapter(GatedPooling(), label_names=["only"])
    adapter = GatedAdapter(GatedPooling())
    observation = adapter.observe(make_batch(adapter))
    with refuses("operator 'mask'"):
        adapter.erase_inputs(observation, observation.batch.mask[None], operator="mask")


PARAMETER_PATHS = {
    "encoder": "encoder.linear",
    "tanh": "attention.projection",
    "gate": "attention.gate",
}
"""Paths of the layers of a gated classifier."""


@pytest.mark.slow
def test_a_large_bag_equals_full_passes_written_by_hand():
    """Compare 20 of 3,000 instances with passes in plain PyTorch over the edited bag."""
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        inputs="features", feature_size=64, attention="gated", encoder="mlp", encoder_size=32
    )
    model = AttentionClassifierForSequenceClassification(config).double().eval()
    parameters = dict(model.state_dict())

    def run(bag, weights=None):
        prefix = "attention_classifier."
        layer = {
            name: (parameters[prefix + path + ".weight"], parameters[prefix + path + ".bias"])
            for name, path in PARAMETER_PATHS.items()
        }
        states = torch.tanh(bag @ layer["encoder"][0].T + layer["encoder"][1])
        hidden = torch.tanh(states @ layer["tanh"][0].T + layer["tanh"][1])
        gate = torch.sigmoid(states @ layer["gate"][0].T + layer["gate"][1])
        scores = (hidden * gate) @ parameters[prefix + "attention.query.weight"][0]
        attention = torch.exp(scores - scores.max())
        attention = attention / attention.sum() if weights is None else weights
        logit = (attention @ states) @ parameters["classifier.weight"][0]
        positive = torch.sigmoid(logit + parameters["classifier.bias"][0])
        return attention, torch.stack([1 - positive, positive])

    bag, donor = torch.randn(2, 3000, 64, dtype=torch.float64) * 2
    mask = torch.ones(1, 3000, dtype=torch.long)
    adapter = wrap(model)
    observation = adapter.observe(
        adapter.prepare({"features": bag[None], "attention_mask": mask}, (0,))
    )
    attention, probs = run(bag)
    torch.testing.assert_close(observation.attention[0][0, 0, 0], attention, rtol=1e-9, atol=0)
    torch.testing.assert_close(observation.probs[0], probs)
    without = adapter.compute_leave_one_out(observation)[0]
    # The instances with most attention, and some of the others.
    instances = [*attention.argsort(descending=True)[:10].tolist(), *range(100, 2900, 280)]
    sets = torch.zeros(len(instances) + 1, 1, 3000, dtype=torch.bool)
    for row, instance in enumerate(instances):
        others = [*range(instance), *range(instance + 1, 3000)]
        torch.testing.assert_close(without[instance], run(bag[others])[1], rtol=1e-9, atol=0)
        sets[row, 0, instance] = sets[-1, 0, instance] = True
    contents = dict(enumerate(donor))
    exchanged = adapter.exchange_inputs(observation, sets, [contents])[:, 0]
    deleted = adapter.erase_inputs(observation, sets)[:, 0]
    for row, changed in enumerate(sets[:, 0]):
        new_bag = torch.where(changed[:, None], donor, bag)
        torch.testing.assert_close(exchanged[row], run(new_bag)[1], rtol=1e-9, atol=0)
        torch.testing.assert_close(deleted[row], run(bag[~changed])[1], rtol=1e-9, atol=0)
        weights = attention * ~changed / (attention * ~changed).sum()
        replayed = adapter.replay(observation, {0: weights.view(1, 1, 1, 1, -1)})[0, 0]
        torch.testing.assert_close(replayed, run(bag, weights)[1], rtol=1e-9, atol=0)


def test_large_bags_of_a_mixing_module_are_edited_in_groups(monkeypatch):
    monkeypatch.setattr(pooling, "MAX_PASSES_PER_BAG", 32)
    torch.manual_seed(1)
    adapter = MixingAdapter(GatedPooling())
    batch = make_batch(adapter, lengths=(90, 20))
    # One instance decides, although it has little attention.
    batch.inputs["features"][0, 41] = -9 * adapter.model.head.weight[1].sign()
    observation = adapter.observe(batch)
    assert adapter.max_unit_edits == 32 and GatedAdapter(GatedPooling()).max_unit_edits is None
    without = adapter.compute_leave_one_out(observation)
    order = observation.attention[0][0, 0, 0, :90].argsort(descending=True).tolist()
    assert order[-1] == 41
    bag, small_bag = batch.inputs["features"]
    for instance in {*order[:8], 41}:
        expected = run_alone(adapter, torch.cat([bag[:instance], bag[instance + 1 : 90]]))
        torch.testing.assert_close(without[0, instance], expected, rtol=1e-9, atol=1e-12)
    # The small bag in the same batch is not edited in groups.
    for instance in range(20):
        expected = run_alone(
            adapter, torch.cat([small_bag[:instance], small_bag[instance + 1 : 20]])
        )
        torch.testing.assert_close(without[1, instance], expected, rtol=1e-9, atol=1e-12)
