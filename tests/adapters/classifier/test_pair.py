"""The adapter of pairs against the model written out in NumPy: leave-one-out, gradients, permutations, the adversary."""

import itertools

import numpy as np
import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.classifier.pair import PairAdapter
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.protocol import (
    Differentiable,
    EditableInputs,
    HeadValues,
    IntegratedGradients,
    LinearReadout,
    Site,
)
from hf_attnprobe.testing import check_adapter
from tests.helpers.error_messages import refuses
from tests.helpers.pair_models import PAIRS, ManualPairClassifier, make, make_batch


ANSWERS = [5, 6, 7]
KINDS = [
    ("bilstm", "additive", None),
    ("bilstm", "dot_product", ANSWERS),
    ("cnn", "additive", ANSWERS),
    ("mlp", "dot_product", None),
    ("none", "uniform", None),
]


def observe(model, pairs=PAIRS, n_keys=None, **options):
    adapter = wrap(model, **options)
    batch = adapter.prepare(make_batch(pairs, n_keys), tuple(range(len(pairs))))
    return adapter, adapter.observe(batch)


@pytest.mark.parametrize("num_labels", [2, 3])
@pytest.mark.parametrize("encoder", ["bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none"])
def test_keeps_the_protocol(encoder, num_labels):
    adapter, observation = observe(
        make(encoder, num_labels=num_labels, answers=ANSWERS[:num_labels])
    )
    check_adapter(adapter, observation.batch)
    adapter, observation = observe(make(encoder, "dot_product", num_labels))
    check_adapter(adapter, observation.batch)
    assert type(adapter) is PairAdapter and adapter.sites() == [Site()]
    assert adapter.lacks(LinearReadout)
    for capability in (Differentiable, EditableInputs, HeadValues, IntegratedGradients):
        assert not adapter.lacks(capability)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_observation_is_the_papers_computation(kind):
    model = make(kind[0], kind[1], answers=kind[2])
    _, observation = observe(model)
    for row, pair in enumerate(PAIRS):
        probs, weights = ManualPairClassifier(model).run(*pair)
        np.testing.assert_allclose(observation.probs[row].numpy(), probs, atol=1e-10)
        content = observation.batch.content_mask[row]
        found = observation.read(Site())[row]
        np.testing.assert_allclose(found[content].numpy(), weights, atol=1e-10)
        assert content.sum() == len(pair[0]) and not found[~content].any()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_leave_one_out_by_hand(kind):
    """The first text is encoded again; the question and the candidates of the whole stay."""
    model = make(kind[0], kind[1], answers=kind[2])
    hand, (_, observation) = ManualPairClassifier(model), observe(model)
    for row, (first, second) in enumerate(PAIRS):
        candidates = hand.find_candidates(first)
        for place in range(len(first)):
            shorter = first[:place] + first[place + 1 :]
            expected, _ = hand.run(shorter, second, candidates)
            found = observation.leave_one_out[row, place + 1]
            np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)


def test_masked_tokens_by_hand():
    model = make(answers=ANSWERS)
    hand, (adapter, observation) = ManualPairClassifier(model), observe(model, mask_id=1)
    erased = torch.zeros(1, *observation.batch.mask.shape, dtype=torch.bool)
    erased[0, :, 1] = True
    found = adapter.erase_inputs(observation, erased, operator="mask")[0]
    for row, (first, second) in enumerate(PAIRS):
        expected, _ = hand.run([1, *first[1:]], second, hand.find_candidates(first))
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_permuted_attention_by_hand(kind):
    model = make(kind[0], kind[1], answers=kind[2])
    hand, (adapter, observation) = ManualPairClassifier(model), observe(model)
    shuffle = observation.draw_permutations(0, 3, seed=0)
    moved = observation.attention[0].expand(3, -1, -1, -1, -1)
    moved = moved.gather(-1, shuffle[:, :, None])
    found = adapter.replay(observation, {0: moved})
    for copy, (row, (first, second)) in itertools.product(range(3), enumerate(PAIRS)):
        q, states = hand.compute_query(second), hand.compute_states(first)
        weights = moved[copy, row, 0, 0, 1 : len(first) + 1].numpy()
        expected = hand.decode(weights @ states, q, hand.find_candidates(first))
        np.testing.assert_allclose(found[copy, row].numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_gradient_is_a_finite_difference_by_hand(kind):
    """Of the first text's words, with attention and question held."""
    model = make(kind[0], kind[1], answers=kind[2])
    hand, (adapter, observation) = ManualPairClassifier(model), observe(model)
    target, step = torch.tensor([1, 1, 0, 2]), 1e-6
    ours = adapter.compute_gradient_times_input(observation, target)
    for row, (first, second) in enumerate(PAIRS):
        q = hand.compute_query(second)
        _, weights = hand.run(first, second)

        def explained(scale, row=row, first=first, q=q, weights=weights):
            context = weights @ hand.compute_states(first, scale)
            return hand.decode(context, q, hand.find_candidates(first))[target[row]]

        n_tokens = len(first) + 2
        assert not ours[row, n_tokens:].any()
        for place in range(n_tokens):
            nudge = step * np.eye(n_tokens)[place]
            slope = (explained(1 + nudge) - explained(1 - nudge)) / (2 * step)
            assert ours[row, place].item() == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[3]], ids=str)
def test_integrated_gradients_add_up_to_what_the_first_text_changes(kind):
    """By hand: p of the pair less p with all word vectors of the first text 0, the question and the candidates held."""
    model = make(kind[0], kind[1], answers=kind[2])
    adapter, observation = observe(model)
    target, hand = observation.get_target_classes(None), ManualPairClassifier(model)
    found, changes = adapter.compute_integrated_gradients(observation, target, 60), []
    for row, (first, second) in enumerate(PAIRS):
        q = hand.compute_query(second)
        blank = hand.compute_states(first, np.zeros(len(first) + 2))
        without = hand.decode(
            hand.compute_attention(blank, q) @ blank, q, hand.find_candidates(first)
        )
        expected = hand.run(first, second)[0][target[row]] - without[target[row]]
        changes.append(abs(expected))
        assert found[row].sum().item() == pytest.approx(expected, abs=1e-7)
        assert not found[row, len(first) + 2 :].any()
    assert max(changes) > 1e-2  # or there is nothing to add up to


def test_inputs_that_are_no_pairs():
    adapter, batch = wrap(make()), make_batch()
    kinds = batch["token_type_ids"]
    for inputs, message in (
        (batch | {"token_type_ids": 0 * kinds}, "no second text"),
        (batch | {"token_type_ids": 1 - kinds}, "before the second"),
        (
            {name: v for name, v in batch.items() if name != "token_type_ids"},
            "token_type_ids are needed",
        ),
    ):
        with refuses(message) as error:
            adapter.prepare(inputs, (7, 8, 9, 10))
        assert "text 7" in str(error.value)


# The adversary


def enumerated(observation, row, epsilon, n_weights=201):
    """The farthest attention on two tokens of a text within ε, on a plain grid."""
    own = observation.attention[0][row, 0, 0]
    tokens = observation.batch.mask[row].nonzero()[:, 0].tolist()
    weights = torch.linspace(0, 1, n_weights, dtype=own.dtype)
    farthest = 0.0
    for first, second in itertools.combinations(tokens, 2):
        edge = torch.zeros(n_weights, *observation.attention[0].shape, dtype=own.dtype)
        edge[:, :, 0, 0] = observation.attention[0][:, 0, 0]
        edge[:, row] = 0
        edge[:, row, 0, 0, first] = weights
        edge[:, row, 0, 0, second] = 1 - weights
        probs = observation.model.replay(observation, {0: edge})[:, row]
        within = tvd(probs, observation.probs[row]) <= epsilon
        reach = jsd(edge[:, row, 0, 0], own)[within]
        farthest = max(farthest, *reach.tolist(), 0.0)
    return farthest


@pytest.mark.parametrize("n_steps", [0, 40])
@pytest.mark.parametrize(("num_labels", "scale"), [(2, 1.0), (2, 4.0), (4, 1.0)])
def test_no_attention_on_two_tokens_is_farther_than_what_is_found(num_labels, scale, n_steps):
    model = make(num_labels=num_labels)
    with torch.no_grad():
        model.classifier.output.weight *= scale
    adapter, observation = observe(model)
    options = Adversarial(n_steps=n_steps)
    result = adversarial(observation, Site(), options)
    own = observation.attention[0][:, 0]
    for epsilon, found in result.epsilon_max_jsd.items():
        attention = result.attention[epsilon]
        probs = adapter.replay(observation, {0: attention[None, :, None]})[0]
        assert (tvd(probs, observation.probs) <= epsilon).all()
        assert (attention >= 0).all() and not attention[~observation.batch.mask[:, None]].any()
        torch.testing.assert_close(attention.sum(-1), torch.ones(4, 1).double())
        torch.testing.assert_close(jsd(attention, own)[:, 0], found)
        assert (found <= result.largest_jsd + 1e-9).all()
        for row in range(len(PAIRS)):
            assert found[row] >= enumerated(observation, row, epsilon) - 1e-9
    assert not result.epsilon_max_jsd_exact.any() and not result.epsilon_max_jsd_upper


def test_the_search_goes_on_from_two_tokens():
    """With more labels the farthest attention has more than two tokens."""
    pairs = [([5, 9, 13, 7, 11], [8]), ([6, 10, 14, 12, 16, 17], [9, 4])]
    _, observation = observe(make(num_labels=4), pairs)
    on_edges, searched = (
        adversarial(observation, Site(), Adversarial(n_steps=n)).epsilon_max_jsd for n in (0, 300)
    )
    gains = torch.stack([searched[e] - on_edges[e] for e in on_edges])
    assert (gains >= -1e-12).all() and gains.max() > 0.01
