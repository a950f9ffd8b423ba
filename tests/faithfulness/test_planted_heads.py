"""Heads whose role is known: which of them count in a group's map, and which pairs are found."""

import numpy as np
import pytest
import torch

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.head_ablation import (
    measure_pair_effects,
    predict_without_heads,
    select_heads_for_pairs,
)
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.faithfulness.rankings import compute_site_attention
from hf_attnprobe.faithfulness.uniform_attention import measure_path_share
from hf_attnprobe.protocol import ALL, HeadValues, Site
from hf_attnprobe.statistics.head_pairs import find_head_pairs
from hf_attnprobe.statistics.heads import build_head_rule
from hf_attnprobe.statistics.verdicts import RULES
from tests.helpers import planted_heads, tiny_models
from tests.helpers.hooked_bert import inputs, make_model
from tests.helpers.planted_heads import (
    CHAIN,
    CHAIN_WITH_CONSTANTS,
    DECOYS,
    REDUNDANT,
    WORKING,
    HeadRole,
)
from tests.helpers.written_by_hand import compute_amounts


EVERYWHERE = Site(ALL, ALL)
N_TEXTS = 40
ALL_KINDS = {
    "working": WORKING,
    "decoys": DECOYS,
    "chain": CHAIN,
    "constants": CHAIN_WITH_CONSTANTS,
    "redundant": REDUNDANT,
}


def observe(roles, dtype=torch.float32):
    """Observe planted heads on 40 texts."""
    adapter = wrap(planted_heads.build_planted_bert(roles).to(dtype))
    tokenizer = planted_heads.build_tokenizer_for_heads()
    rows = planted_heads.draw_rows(N_TEXTS)
    encoded = tokenizer(
        [row["text"] for row in rows],
        padding=True,
        return_special_tokens_mask=True,
        return_tensors="pt",
    )
    labels = torch.tensor([row["label"] for row in rows])
    return adapter.observe(adapter.prepare(dict(encoded), tuple(range(N_TEXTS)), labels))


@pytest.fixture(scope="module")
def observations():
    return {name: observe(roles) for name, roles in ALL_KINDS.items()}


def get_weights(observation, **options):
    """Return the mean weight of each head in the map of the whole model, [layers, heads]."""
    weights = observation.compute_head_weights(EVERYWHERE, **options).mean(0)
    return weights.view(planted_heads.N_LAYERS, planted_heads.N_HEADS)


# --- What heads write ----------------------------------------------------------------------------


def test_weights_come_from_the_output_without_the_pattern():
    """The amounts are those of a BERT's own modules, at [CLS] or as a mean over all rows."""
    model = make_model()
    adapter = wrap(model)
    observation = adapter.observe(adapter.prepare(inputs(), (3, 1, 4, 15, 9)))
    given = inputs()
    given.pop("special_tokens_mask")
    batch = observation.batch
    amounts = compute_amounts(model, given, batch.content_mask)
    has_pattern = batch.content_mask.sum(-1) > 1
    assert has_pattern.sum() == 4
    expected = amounts[..., 0].transpose(0, 1).flatten(1)
    expected = (expected / expected.sum(-1, keepdim=True))[has_pattern]
    weights = observation.compute_head_weights(EVERYWHERE)
    torch.testing.assert_close(weights[has_pattern], expected, atol=1e-9, rtol=0)
    # All heads count equally in the text with a single token, which has no pattern.
    assert torch.equal(weights[~has_pattern], torch.full((1, 12), 1 / 12, dtype=torch.float64))

    is_real = batch.mask[:, None].double()
    by_layer = (amounts * is_real).sum(-1) / is_real.sum(-1)
    by_layer[2] = amounts[2, ..., 0]  # only the first row of the last layer reaches the output
    expected = by_layer.transpose(0, 1).flatten(1)
    expected = (expected / expected.sum(-1, keepdim=True))[has_pattern]
    weights = observation.compute_head_weights(EVERYWHERE, all_rows=True)
    torch.testing.assert_close(weights[has_pattern], expected, atol=1e-9, rtol=0)


def test_the_map_of_a_group_is_the_weighted_sum_of_its_heads(observations):
    observation = observations["redundant"]
    weights = observation.compute_head_weights(EVERYWHERE)
    rows = torch.stack(
        [observation.read(Site(layer, head)) for layer in range(3) for head in range(4)], dim=1
    )
    expected = torch.einsum("bh,bhk->bk", weights, rows.double())
    assert torch.allclose(observation.read(EVERYWHERE).double(), expected, atol=1e-6)
    assert not torch.allclose(expected, rows.double().mean(1), atol=0.1)


def test_a_model_that_does_not_show_what_heads_write_counts_them_equally(monkeypatch):
    adapter = wrap(make_model())
    lacks = adapter.lacks
    monkeypatch.setattr(
        adapter,
        "lacks",
        lambda need, site=None: "no values" if need is HeadValues else lacks(need, site),
    )
    observation = adapter.observe(adapter.prepare(inputs(), (3, 1, 4, 15, 9)))
    assert observation.pattern_norms is None
    mean = torch.stack(observation.attention)[:, :, :, 0].mean((0, 2))
    assert torch.allclose(observation.read(EVERYWHERE), mean)


@pytest.mark.parametrize("kind", ["working", "decoys"])
@pytest.mark.parametrize("all_rows", [False, True])
def test_decoys_have_no_weight(observations, kind, all_rows):
    weights = get_weights(observations[kind], all_rows=all_rows)
    assert weights[1, 2] > 0.99
    if kind == "decoys":
        assert weights[0, 1] == weights[2, 3] == 0


def test_heads_that_write_a_constant_have_no_weight(observations):
    weights = get_weights(observations["constants"])
    assert weights[2, 3] > 0.99 and weights[1, 1] < 1e-6 and weights[2, 0] < 1e-6


def test_heads_that_write_the_same_share_the_map(observations):
    weights = get_weights(observations["redundant"])
    assert weights[1, 2] > 0.3 and weights[2, 0] > 0.3 and weights[1, 2] + weights[2, 0] > 0.99


def test_a_head_that_gathers_at_the_mark_counts_only_over_all_rows(observations):
    """It writes nothing at [CLS], which the map of the whole model shows."""
    observation = observations["chain"]
    assert get_weights(observation)[0, 1] < 0.01
    assert 0.03 < get_weights(observation, all_rows=True)[0, 1] < 0.2


def test_decoys_change_neither_map_nor_faithfulness(observations):
    """With a plain mean, two decoys that point to the key word would double its weight."""
    key_weights, plain_means = {}, {}
    for kind in ("working", "decoys"):
        observation = observations[kind]
        ids = observation.batch.inputs["input_ids"]
        tokenizer = planted_heads.build_tokenizer_for_heads()
        is_key = torch.isin(ids, torch.tensor(tokenizer.convert_tokens_to_ids(planted_heads.KEYS)))
        maps = observation.read(EVERYWHERE), compute_site_attention(observation, EVERYWHERE)
        key_weights[kind] = [(weights * is_key).sum(-1).mean().item() for weights in maps]
        plain = torch.stack(observation.attention)[:, :, :, 0].mean((0, 2))
        plain_means[kind] = (plain * is_key).sum(-1).mean().item()
    assert plain_means["decoys"] > 1.5 * plain_means["working"]
    assert key_weights["decoys"] == pytest.approx(key_weights["working"], abs=0.01)
    assert min(key_weights["working"]) > 0.8


@pytest.mark.slow
def test_faithfulness_of_the_whole_is_that_of_the_working_head():
    options = AuditOptions(prune=False, shown_texts=0, layers=[1], heads=[2])
    scores = {}
    for kind in ("working", "decoys"):
        model = planted_heads.build_planted_bert(ALL_KINDS[kind])
        report = audit(
            model,
            planted_heads.draw_rows(32),
            ["scale", "erasure"],
            options=AuditOptions(prune=False, shown_texts=0, single_heads=False),
            tokenizer=planted_heads.build_tokenizer_for_heads(),
            progress=False,
        )
        whole = [head for head in report.head_evaluations if head.site == (ALL, ALL)]
        scores[kind] = whole[0].faithfulness.value
    report = audit(
        planted_heads.build_planted_bert(WORKING),
        planted_heads.draw_rows(32),
        ["scale", "erasure"],
        options=options,
        tokenizer=planted_heads.build_tokenizer_for_heads(),
        progress=False,
    )
    head = [head for head in report.head_evaluations if head.is_head]
    assert scores["decoys"] == pytest.approx(scores["working"], abs=0.02)
    assert scores["working"] == pytest.approx(head[0].faithfulness.value, abs=0.05)


# --- Batches, padding, precision, architectures --------------------------------------------------


def llama(layers=2):
    """Build a decoder with grouped-query heads, which reads the prediction from the last token."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        initializer_range=0.4,
    )
    return LlamaForSequenceClassification(config).eval()


def t5():
    """Build a model with an encoder and a decoder."""
    from transformers import T5Config, T5ForSequenceClassification

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=60,
        d_model=32,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=0,
        initializer_factor=1.0,
    )
    return T5ForSequenceClassification(config).eval()


TEXTS = ([3, 9, 15, 22, 8, 2], [3, 31, 9, 2], [3, 50, 17, 28, 11, 40, 7, 2])


def encode_left(texts):
    """Encode texts with padding on the left."""
    longest = max(map(len, texts))
    ids = torch.tensor([[*[0] * (longest - len(text)), *text] for text in texts])
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "special_tokens_mask": torch.isin(ids, torch.tensor([0, 2, 3])).long(),
    }


@pytest.mark.parametrize("all_rows", [False, True])
@pytest.mark.parametrize("build", [llama, t5, make_model])
def test_weights_do_not_depend_on_other_texts_or_padding(build, all_rows):
    adapter = wrap(build().double())
    encode = encode_left if adapter.pads_left else tiny_models.encoded
    together = adapter.observe(adapter.prepare(encode(TEXTS), (0, 1, 2)))
    weights = together.compute_head_weights(EVERYWHERE, all_rows=all_rows)
    assert torch.allclose(weights.sum(-1), torch.ones(3).double())
    assert weights.std() > 0.01
    for number, text in enumerate(TEXTS):
        alone = adapter.observe(adapter.prepare(encode([text]), (number,)))
        expected = alone.compute_head_weights(EVERYWHERE, all_rows=all_rows)[0]
        torch.testing.assert_close(weights[number], expected, atol=1e-9, rtol=0)


def test_grouped_query_heads_write_with_their_own_projection():
    """Two heads share their values, but each of them has its own rows of the output projection."""
    model = llama(layers=1).double()
    model.set_attn_implementation("eager")
    encoded = encode_left(TEXTS[:1])
    given = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    layer, values = model.model.layers[0].self_attn, []
    hook = layer.v_proj.register_forward_hook(lambda *call: values.append(call[-1][0]))
    with torch.no_grad():
        attention = model.model(**given, output_attentions=True).attentions[0][0]
    hook.remove()
    adapter = wrap(model)
    observation = adapter.observe(adapter.prepare(encoded, (0,)))
    content = observation.batch.content_mask[0]
    assert content.sum() == 4
    amounts = torch.zeros(4).double()
    for head in range(4):
        row = attention[head, -1]
        change = row.where(content, 0) - row[content].mean() * content
        group = head // 2
        projection = layer.o_proj.weight[:, head * 8 : (head + 1) * 8]
        written = projection @ (change @ values[0][:, group * 8 : (group + 1) * 8])
        amounts[head] = written.norm()
    weights = observation.compute_head_weights(EVERYWHERE)[0]
    torch.testing.assert_close(weights, amounts / amounts.sum(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_the_same_weights(observations, dtype):
    weights = get_weights(observe(REDUNDANT, dtype))
    assert torch.allclose(weights, get_weights(observations["redundant"]), atol=0.02)


# --- Shuffles and path shares --------------------------------------------------------------------


def test_path_shares_of_the_whole_and_of_single_heads(observations):
    """Only the pattern of a necessary head matters alone; redundant heads matter together."""
    shares = {}
    for kind, observation in observations.items():
        whole = measure_path_share(observation, EVERYWHERE).mean().item()
        heads = {
            site: measure_path_share(observation, Site(*site)).mean().item()
            for site in ALL_KINDS[kind]
        }
        shares[kind] = whole, heads
    assert shares["working"][0] == pytest.approx(shares["working"][1][1, 2], abs=0.01)
    assert shares["working"][0] > 0.6
    assert shares["decoys"][0] == pytest.approx(shares["working"][0], abs=0.01)
    assert shares["decoys"][1][0, 1] < 0.01 and shares["decoys"][1][2, 3] < 0.01
    for kind in ("chain", "constants"):
        whole, heads = shares[kind]
        assert whole > 0.8 and heads[0, 1] > 0.4 and heads[2, 3] > 0.4
        assert whole > max(heads.values())
    whole, heads = shares["redundant"]
    assert whole > 0.4 and max(heads.values()) < 0.1


@pytest.mark.parametrize("n_working", [4, 10])
def test_heads_that_share_a_decision_have_their_part_of_its_path_share(n_working):
    """Each of them reaches the threshold of a head, and the idle heads stay far below it."""
    sites = [(layer, head) for head in range(4) for layer in range(3)]
    roles = {site: HeadRole(amount=0.4 / n_working) for site in sites[:n_working]}
    observation = observe(roles)
    whole = measure_path_share(observation, EVERYWHERE).mean().item()
    shares = {site: measure_path_share(observation, Site(*site)).mean().item() for site in sites}
    threshold = build_head_rule(RULES["path_share"]).yes
    for site, share in shares.items():
        if site in roles:
            assert share == pytest.approx(whole / n_working, rel=0.15) and share > threshold
        else:
            assert share < threshold / 10


def test_heads_that_cancel_each_other_are_shuffled_separately():
    """The sum of two opposite heads would not change if both were shuffled in the same way."""
    observation = observe({(1, 0): HeadRole(), (1, 3): HeadRole(amount=-2.0)})
    result = permutation(observation, EVERYWHERE, Permutation(n_permutations=20))
    assert result.median_tvd.mean() > 0.2
    layer = permutation(observation, Site(1, ALL), Permutation(n_permutations=20))
    assert layer.median_tvd.mean() > 0.2
    order = observation.draw_permutations(1, 20, 0)[:, :, None]
    shared = observation.attention[1].expand(20, -1, -1, -1, -1)
    shared = shared.gather(-1, order.expand(shared.shape))
    probs = observation.model.replay(observation, {1: shared})
    assert (probs - observation.probs).abs().max() < 0.01


# --- Pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "relations"),
    [
        ("working", {}),
        ("decoys", {}),
        ("chain", {((0, 1), (2, 3)): "together"}),
        ("constants", {((0, 1), (2, 3)): "together"}),
        ("redundant", {((1, 2), (2, 0)): "substitutes"}),
    ],
)
def test_pairs_of_heads(observations, kind, relations):
    observation = observations[kind]
    adapter, batch = observation.model, observation.batch
    effects = {}
    for site in adapter.sites():
        probs = predict_without_heads(adapter, observation, [[site]])[0]
        change = (probs - observation.probs).abs().sum(-1) / 2
        effects[site.layer, site.head] = change.mean().item()
    heads = select_heads_for_pairs(adapter, [batch], effects, 6)
    assert len(heads) == 6 and heads == sorted(heads)
    single, without_other = measure_pair_effects(adapter, [batch], heads)
    names = [site[:2] for site in heads]
    pairs = find_head_pairs(names, single.numpy(), without_other.numpy())
    assert pairs.n_texts == N_TEXTS
    assert {(pair.first, pair.second): pair.relation for pair in pairs.pairs} == relations
    single_effects = np.array([effects[name] for name in names])
    assert np.allclose(single.mean(0).numpy(), single_effects, atol=1e-6)


def test_a_report_names_the_pair(tmp_path):
    from hf_attnprobe.reports.report import read_audit

    report = audit(
        planted_heads.build_planted_bert(REDUNDANT),
        planted_heads.draw_rows(32),
        ["head_ablation"],
        options=AuditOptions(shown_texts=0),
        tokenizer=planted_heads.build_tokenizer_for_heads(),
        output_dir=tmp_path,
        progress=False,
    )
    sentence = "Layer 1 head 2 and layer 2 head 0 replace each other"
    assert sentence in report.to_markdown()
    assert read_audit(tmp_path).head_pairs == report.head_pairs
