"""Compare edits of head groups with edits of the weights of a BERT, and with single heads."""

import numpy as np
import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.site_selection import parse_head_sets
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.head_ablation import head_ablation
from hf_attnprobe.faithfulness.input_erasure import input_erasure
from hf_attnprobe.faithfulness.options import InputErasure, Permutation
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.faithfulness.rankings import TEXT_RANKINGS
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.explanations import rollout
from hf_attnprobe.protocol import ALL, HEAD_SET, Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.faithfulness.test_input_erasure import ByHand
from tests.helpers import tiny_models
from tests.helpers.written_by_hand import compute_amounts, weigh_heads


N_LAYERS, N_HEADS, WIDTH = 3, 4, 8
IDS = (3, 1, 4, 15, 9)
EVERYWHERE = Site(ALL, ALL)
SHUFFLES = Permutation(n_permutations=7)
RUNS = {
    "permutation": (permutation, SHUFFLES),
    "uniform_attention": (uniform_attention, None),
    "head_ablation": (head_ablation, None),
    "input_erasure": (input_erasure, InputErasure()),
    "adversarial": (adversarial, None),
}


def make_model():
    return tiny_models.bert(
        layers=N_LAYERS, heads=N_HEADS, width=N_HEADS * WIDTH, intermediate_size=48
    ).double()


def make_eager_model():
    model = make_model()
    model.set_attn_implementation("eager")
    return model


def inputs():
    return tiny_models.encoded(tiny_models.five_texts(), special=(1, 2))


def observe(sets=("1.2", "0.3+2.0+2.1")):
    adapter = wrap(make_model())
    adapter.head_sets = parse_head_sets(adapter, sets)
    return adapter.observe(adapter.prepare(inputs(), IDS))


def run(observation, site, name, seed=0):
    function, options = RUNS[name]
    given = () if options is None else (options,)
    return collect_statistics(function(observation, site, *given, seed=seed))


def compute_output(model):
    given = inputs()
    given.pop("special_tokens_mask")
    with torch.no_grad():
        return model(**given).logits.softmax(-1)


def compute_attentions(model):
    return [layer.attention.self for layer in model.bert.encoder.layer]


# --- yardsticks: the same model with other weights ------------------------------------


EDITS = {"uniform_attention": ("uniform", ("query", "key")), "head_ablation": ("zero", ("value",))}
"""What each does to attention, and the weights without which a model has it of itself."""
ALL_HEADS = slice(None)


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize(
    ("site", "layers", "heads"),
    [
        (EVERYWHERE, (0, 1, 2), ALL_HEADS),
        (Site(0, ALL), (0,), ALL_HEADS),
        (Site(1, ALL), (1,), ALL_HEADS),
        (Site(2, ALL), (2,), ALL_HEADS),
        (Site(HEAD_SET, 0), (1,), [0, 3]),
    ],
    ids=str,
)
def test_an_edit_of_heads_is_a_model_with_other_weights(name, site, layers, heads):
    """Where all scores are equal softmax itself spreads over what is visible."""
    model, (edit, parts) = make_model(), EDITS[name]
    before = compute_output(model)
    for layer in layers:
        for part in (getattr(compute_attentions(model)[layer], part) for part in parts):
            part.weight.data.unflatten(0, (N_HEADS, WIDTH))[heads] = 0
            part.bias.data.unflatten(0, (N_HEADS, WIDTH))[heads] = 0
    result = run(observe(sets=("1.3+1.0",)), site, name)
    after = compute_output(model)
    expected = tvd(after, before)
    assert expected.max() > 0.01 or site.layer == HEAD_SET
    assert torch.allclose(result[f"{edit}_tvd"], expected, atol=1e-12)
    flips = (after.argmax(-1) != before.argmax(-1)).double()
    assert torch.equal(result[f"{edit}_flip"], flips)
    if name == "head_ablation":
        assert set(result) == {"zero_tvd", "zero_flip"}  # no mean, no resample


def test_a_shuffle_of_all_attention_only_moves_weights_between_visible_keys(monkeypatch):
    """Every row keeps its weights, and every head of every layer has its own order."""
    observation = observe()
    seen = []
    replay = observation.model.replay

    def spy(observation, attention):
        seen.append(attention)
        return replay(observation, attention)

    monkeypatch.setattr(observation.model, "replay", spy)
    monkeypatch.setattr("hf_attnprobe.faithfulness.permutation.MAX_WEIGHTS_PER_PASS", 1)
    result = run(observation, EVERYWHERE, "permutation")
    assert len(seen) == 4  # 7 copies of 3 layers, 2 at once
    orders = {}
    for layer in range(N_LAYERS):
        shuffled = torch.cat([part[layer] for part in seen])
        assert shuffled.shape[0] == SHUFFLES.n_permutations
        original = observation.attention[layer].expand_as(shuffled)
        assert torch.equal(shuffled.sort(-1).values, original.sort(-1).values)
        visible = observation.model.get_visible_keys(observation, layer)[:, None]
        hidden = visible.any(-1, keepdim=True) & ~visible  # of queries that are no padding
        assert not (shuffled * hidden).any()
        same = (shuffled[..., :, None] == original[..., None, :]).double()
        orders[layer] = same.argmax(-1)[:, 0, :, :, :]  # a text without padding
        for head in range(1, N_HEADS):
            assert not torch.equal(orders[layer][:, 0], orders[layer][:, head])
        assert len(set(map(str, orders[layer][:, 0].tolist()))) > 1
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(orders[1], orders[2])
    outputs = torch.cat([replay(observation, part) for part in seen])
    changes = (outputs - observation.probs).abs().sum(-1).numpy() / 2
    assert np.allclose(result["median_tvd"].numpy(), np.median(changes, axis=0), atol=1e-12)


# --- a group of one, batches, padding, order ------------------------------------------


@pytest.mark.parametrize("head", ["0.0", "1.2", "2.3"])
def test_a_group_of_one_head_is_that_head(head):
    observation = observe(sets=(head,))
    for name in ("permutation", "uniform_attention", "head_ablation", "adversarial"):
        single = run(observation, Site(*map(int, head.split("."))), name)
        group = run(observation, Site(HEAD_SET, 0), name)
        assert group.keys() <= single.keys()
        for statistic, values in group.items():
            assert torch.allclose(values, single[statistic], atol=1e-12, equal_nan=True), statistic


def test_a_query_alone_is_edited():
    """All attention at the row of [CLS] differs from all attention at every row."""
    observation = observe()
    every, one = (
        run(observation, site, "uniform_attention")["uniform_tvd"]
        for site in (EVERYWHERE, Site(ALL, ALL, 0))
    )
    assert not torch.allclose(every, one) and (one > 0).all()


def weigh_by_hand(observation):
    """The mean over all heads, weighted by what they write at [CLS] according to BERT's modules."""
    given = inputs()
    given.pop("special_tokens_mask")
    model, content = make_eager_model(), observation.batch.content_mask
    amounts = compute_amounts(model, given, content)[..., 0]  # [layers, batch, heads]
    weights = weigh_heads(amounts)
    rows = torch.stack(observation.attention)[:, :, :, 0]  # [layers, batch, heads, keys]
    return (rows * weights[..., None]).sum((0, 2))


def test_the_largest_attention_of_a_group_is_that_of_its_mean():
    observation = observe()
    result = run(observation, EVERYWHERE, "permutation")["max_attention"]
    assert torch.allclose(result, weigh_by_hand(observation).amax(-1), atol=1e-12)


# --- erased inputs --------------------------------------------------------------------


def test_erasure_in_the_order_of_aggregated_attention():
    """The orders from means and rollout; the losses from the model run on shorter texts."""
    model, observation = make_model(), observe()
    result = input_erasure(observation, EVERYWHERE, InputErasure())
    names = {"attention", "mean_attention", "last_layer_attention", "rollout"}
    assert set(result.comprehensiveness) == names | set(TEXT_RANKINGS)
    maps = torch.stack(observation.attention).mean(2)  # [layers, batch, queries, keys]
    expected = {
        "attention": weigh_by_hand(observation),
        "mean_attention": maps.mean(0)[:, 0],
        "last_layer_attention": maps[-1][:, 0],
        "rollout": rollout(list(maps))[:, 0],
    }
    hand = ByHand(model, observation, 0)
    for name, rows in expected.items():
        order = rows[0, 1:7].argsort(descending=True).tolist()
        own = result.comprehensiveness[name][0].item(), result.sufficiency[name][0].item()
        wanted = hand.removal(order), hand.removal(order, kept=True)
        assert own == pytest.approx(wanted, abs=1e-10)
    # 1, 1, 1, 2 and 3 of six tokens, and all of a text of one
    assert result.erased_share[[0, 3]].tolist() == pytest.approx([8 / 30, 1.0])


def test_what_a_layer_and_a_set_rank():
    observation = observe()
    of_layer = input_erasure(observation, Site(1, ALL), InputErasure()).sufficiency
    assert of_layer.keys() >= {"mean_attention", "rollout", "layer_norm_based"}
    assert of_layer.keys() >= {"value_zeroing", "value_zeroing_rollout", "random"}
    assert "attention" in of_layer
    of_set = input_erasure(observation, Site(HEAD_SET, 1), InputErasure()).sufficiency
    assert set(of_set) == {"attention", "mean_attention", *TEXT_RANKINGS}
    lonely = input_erasure(observation, Site(HEAD_SET, 0), InputErasure()).sufficiency
    head = input_erasure(observation, Site(1, 2), InputErasure()).sufficiency
    assert torch.equal(lonely["mean_attention"], head["attention"])
