"""Constructed models do what their formula says, and what their truths claim is so."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hf_attnprobe.calibration.constructs import (
    CONSTRUCTS,
    HIDDEN,
    N_HEADS,
    WHOLE,
    Knobs,
    Role,
    draw,
)
from hf_attnprobe.calibration.run import TESTS, batch_of, rows_of

from hf_attnprobe import AttnProbeError, AuditOptions, audit
from hf_attnprobe.attention_model import Site
from hf_attnprobe.functional.intervention import permute, random_permutations
from hf_attnprobe.statistics.rows import KEY
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.testing import check_adapter


BY_FORMULA = [name for name, kind in CONSTRUCTS.items() if kind.graft is None]
GRAFTS = CONSTRUCTS.keys() - BY_FORMULA


def drawn_as(name: str, *, seed: int = 1, n_texts: int = 12):
    return CONSTRUCTS[name].draw(name, seed=seed, n_texts=n_texts)


def observed(drawn):
    return drawn.adapter.observe(batch_of(drawn))


def by_hand(model, ids, attention=None):
    """Probabilities and attention of one text, by loops over its words."""
    gain, shared, around = model.paths.tolist()
    scores, values, halves = (
        getattr(model, name).detach().numpy()[ids] for name in ("scores", "values", "halves")
    )
    n_words, n_classes = values.shape
    worth = np.array(values)
    for i in range(n_words):
        for j in range(n_words):
            both = halves[i, 0] * halves[j, 1] + halves[i, 1] * halves[j, 0]
            worth[i, :2] += both * np.array([-0.5, 0.5])
    if attention is None:
        attention = np.exp(scores) / np.exp(scores).sum()
    logits = np.zeros(n_classes)
    for i in range(n_words):
        state = (1 - shared) * worth[i] + shared * worth.sum(0)
        logits += gain * attention[i] * state + around * worth[i]
    odds = np.exp(logits - logits.max())
    return odds / odds.sum(), attention


@pytest.mark.parametrize("name", BY_FORMULA)
def test_probabilities_and_attention_are_the_formula(name):
    drawn = drawn_as(name)
    observation = observed(drawn)
    for row, mask in enumerate(observation.batch.mask):
        ids = observation.batch.inputs["input_ids"][row, mask].numpy()
        probs, attention = by_hand(drawn.adapter.model, ids)
        np.testing.assert_allclose(observation.probs[row], probs, rtol=1e-9, atol=1e-15)
        own = observation.attention[0][row, 0, 0, mask]
        np.testing.assert_allclose(own, attention, rtol=1e-9)


@pytest.mark.parametrize("name", sorted({*BY_FORMULA} - {"path of weight 0"}))
def test_the_adapter_keeps_the_protocol(name):
    drawn = drawn_as(name, n_texts=6)
    check_adapter(drawn.adapter, batch_of(drawn))


def test_no_edit_arrives_by_a_path_of_weight_0():
    drawn = drawn_as("path of weight 0", n_texts=6)
    with pytest.raises(AttnProbeError, match="an edit does not reach the output"):
        check_adapter(drawn.adapter, batch_of(drawn))


@pytest.mark.parametrize("name", BY_FORMULA)
def test_leaving_words_out_is_the_shorter_text(name):
    drawn = drawn_as(name, n_texts=3)
    observation = observed(drawn)
    without = drawn.adapter.leave_one_out(observation)
    for row, mask in enumerate(observation.batch.mask):
        ids = observation.batch.inputs["input_ids"][row]
        for place in mask.nonzero().flatten().tolist():
            kept = mask.clone()
            kept[place] = False
            probs, _ = by_hand(drawn.adapter.model, ids[kept].numpy())
            np.testing.assert_allclose(without[row, place], probs, atol=1e-12)


# --- what the truths claim ---------------------------------------------------------------


def other_attentions(observation, n_copies: int = 50):
    """Random attention over each text's words, [copies, batch, 1, 1, keys]."""
    mask = observation.batch.mask
    draws = torch.rand(n_copies, *mask.shape, generator=torch.Generator().manual_seed(0))
    weights = draws.double().pow(4) * mask  # some sharp, some even
    return (weights / weights.sum(-1, keepdim=True))[:, :, None, None]


@pytest.mark.parametrize("name", BY_FORMULA)
def test_where_assignment_is_none_no_attention_moves_the_output(name):
    truth = CONSTRUCTS[name].truths.get("assignment")
    if truth is None:
        pytest.skip("no truth")
    drawn = drawn_as(name, n_texts=40)
    observation = observed(drawn)
    after = observation.model.replay(observation, {0: other_attentions(observation)})
    log_odds = (after.log() - observation.probs.log()).abs().amax(-1)
    if name in ("ornament", "path of weight 0"):
        assert log_odds.max() < 1e-9
    elif not truth.holds:  # even: its own weights, in any order
        ids, visible = observation.batch.example_ids, observation.batch.mask[:, None]
        order = random_permutations(visible, 1, seed=3, example_ids=ids)
        weights = permute(observation.attention[0][:, 0], order)[:, :, None]
        shuffled = drawn.adapter.replay(observation, {0: weights})[0]
        moved = (shuffled - observation.probs).abs().sum(-1) / 2
        assert moved.mean() < RULES["assignment"].yes / 2
    else:
        assert log_odds.median() > 0.5


@pytest.mark.parametrize("name", BY_FORMULA)
def test_the_labels_are_what_accuracy_says(name):
    drawn = drawn_as(name, n_texts=300)
    right = observed(drawn).probs.argmax(-1) == torch.tensor(drawn.labels)
    if CONSTRUCTS[name].truths["accuracy"].holds:
        assert right.double().mean() > 0.99
    else:
        assert 0.4 < right.double().mean() < 0.6


@pytest.mark.parametrize("name", BY_FORMULA)
def test_the_most_attended_words_decide_where_it_is_so_said(name):
    """Erased together by brute force: the role's words where the truth is yes, else others."""
    truth = CONSTRUCTS[name].truths.get("removal")
    if truth is None or name.startswith("untrained") or name == "even":
        pytest.skip("not by the most attended words")
    drawn = drawn_as(name, n_texts=60)
    observation = observed(drawn)
    sharing = sum(role.n for role in CONSTRUCTS[name].knobs.roles if role.share)
    attention = observation.attention[0][:, 0, 0]
    top = torch.zeros_like(observation.batch.mask)
    top.scatter_(1, attention.topk(sharing).indices, True)
    after = drawn.adapter.erase_inputs(observation, top[None])[0]
    label = torch.tensor(drawn.labels)[:, None]
    before, without = (p.gather(1, label)[:, 0] for p in (observation.probs, after))
    if truth.holds:
        assert (before - without).mean() > 0.3
    else:
        assert (before - without).mean() < 0


def test_every_truth_is_of_a_rule_and_says_why():
    for construct in CONSTRUCTS.values():
        assert construct.truths.keys() <= {*RULES, WHOLE}
        for truth in construct.truths.values():
            assert len(truth.why.split()) >= 4 and not truth.why.endswith(".")


# --- grafts ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(GRAFTS))
def test_the_head_that_writes_is_the_one_that_decides(name):
    """By the checkpoint alone: without a head's part of the output projection."""
    graft, drawn = CONSTRUCTS[name].graft, drawn_as(name, n_texts=50)
    batch = batch_of(drawn)
    model = drawn.adapter.model
    ids = {n: batch.inputs[n] for n in ("input_ids", "attention_mask")}
    whole = model(**ids).logits.softmax(-1)
    assert (whole.argmax(-1) == torch.tensor(drawn.labels)).double().mean() > 0.97
    for head in range(N_HEADS):
        without = deepcopy(model)
        width = HIDDEN // N_HEADS
        projection = without.bert.encoder.layer[-1].attention.output.dense.weight
        projection.data[:, head * width : (head + 1) * width] = 0
        moved = (without(**ids).logits.softmax(-1) - whole).abs().sum(-1) / 2
        assert (moved.mean() > 0.3) == (head == graft.writes)
        looks = observed(drawn).read(Site(1, head)).amax(-1).mean()
        assert (looks > 0.8) == (head == graft.looks)


# --- draws -------------------------------------------------------------------------------


def test_a_seed_fixes_model_and_texts_and_more_texts_begin_with_fewer():
    first, again = drawn_as("several cues"), drawn_as("several cues", n_texts=30)
    assert again.texts[:12] == first.texts and again.labels[:12] == first.labels
    assert torch.equal(first.adapter.model.scores, again.adapter.model.scores)
    assert drawn_as("several cues", seed=2).texts != first.texts


def test_lengths_are_a_knob():
    texts = draw("long", Knobs(lengths=(20, 30)), seed=0, n_texts=50).texts
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 20 and max(lengths) <= 30


def test_the_share_of_a_role_is_its_attention_at_mean_length():
    knobs = Knobs(roles=(Role(share=0.7),), score_noise=0.0, lengths=(11, 11))
    drawn = draw("share", knobs, seed=0, n_texts=5)
    largest = observed(drawn).attention[0].amax(-1)
    torch.testing.assert_close(largest, torch.full_like(largest, 0.7))


# --- rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["soft pointer", "three classes", "half around"])
def test_rows_are_those_of_an_audit_whatever_its_batches(name, tmp_path):
    drawn = drawn_as(name, n_texts=20)
    report = audit(
        drawn.adapter,
        drawn.rows,
        list(TESTS),
        tokenizer=drawn.tokenizer,
        options=AuditOptions(seed=1, batch_size=6),
        output_dir=tmp_path,
        progress=False,
    )
    found, expected = rows_of(drawn, seed=1), report.to_pandas()
    both = found.merge(expected, on=list(KEY), suffixes=("", "_of_audit"))
    assert len(both) == len(found)
    # counts of erasures are divided in float32
    np.testing.assert_allclose(both.value, both.value_of_audit, rtol=1e-6, atol=1e-9)
