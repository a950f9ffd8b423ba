"""Permutation of attention: against all permutations, and shuffles that are drawn one by one."""

import itertools
import statistics

import pandas as pd
import pytest
import scipy.stats
import torch

from hf_attnprobe import Answers, AuditOptions, audit
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.permutation import N_FIRST_SHUFFLES, permutation
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.protocol import Site
from hf_attnprobe.statistics.questions import EFFECT_THRESHOLD
from tests.faithfulness.test_erasure import make_decoder
from tests.helpers import tiny_language_models
from tests.helpers.observed_classifiers import SITE, observe_classifier


def test_equal_states_make_permutation_harmless():
    adapter, observation = observe_classifier(encoder="none")
    adapter.base.embeddings.weight.data[4:] = adapter.base.embeddings.weight.data[4]
    observation = adapter.observe(observation.batch)
    assert permutation(observation, SITE).max_tvd.abs().max() < 1e-12
    everything = adversarial(observation, SITE)
    assert torch.allclose(everything.epsilon_max_jsd[0.001], everything.largest_jsd, atol=1e-9)


# shuffles


SHARPNESS = 2.5
"""A temperature that is not the model's own."""


def compute_output_changes(before, after, sharpness=1.0):
    """Total variation of two outputs, whose logits are multiplied by a factor."""
    first, second = ((logits * sharpness).softmax(-1) for logits in (before, after))
    return 0.5 * (first - second).abs().sum().item()


@pytest.fixture(params=[1, 3], ids=["unsure", "saturated"])
def case(request, observe):
    """A function to an observation of short texts."""

    def run(n_labels):
        adapter, observation = observe("mlp", "additive", n_labels, lengths=range(1, 7))
        adapter.sharpness = SHARPNESS
        with torch.no_grad():
            adapter.model.classifier.weight *= request.param
        return adapter, adapter.observe(observation.batch)

    return run


@pytest.mark.parametrize("n_labels", [2, 3])
def test_shuffles_against_all_permutations(case, n_labels):
    adapter, observation = case(n_labels)
    result = permutation(observation, SITE, Permutation(n_permutations=3000))
    for row in range(12):
        decode, words = make_decoder(adapter, observation, row)
        weights = observation.read(SITE)[row, words]
        orders = itertools.permutations(range(len(weights)))
        before, every = decode(weights), torch.stack([decode(weights[list(o)]) for o in orders])
        changes = torch.tensor([compute_output_changes(before, after) for after in every]).double()
        low, high = (
            changes.quantile(q, interpolation=i) for q, i in ((0.45, "lower"), (0.55, "higher"))
        )
        assert low - 1e-6 <= result.median_tvd[row] <= high + 1e-6
        flips = (every.argmax(-1) != before.argmax()).any().item()
        assert result.flip_possible[row] == flips
        logit = every[:, 1] - every[:, 0] if n_labels == 2 else every[:, before.argmax()]
        assert result.logit_mean[row].item() == pytest.approx(logit.mean().item(), abs=1e-6)
        variance = logit.var(correction=0).item()
        assert result.logit_variance[row].item() == pytest.approx(variance, rel=1e-5, abs=1e-6)
        if n_labels == 2:  # by the linear read-out
            worst = max(compute_output_changes(before, after, SHARPNESS) for after in every)
            assert result.max_tvd[row].item() == pytest.approx(changes.max().item(), abs=1e-6)
            assert result.largest_standard_tvd[row].item() == pytest.approx(worst, abs=1e-6)
    assert (n_labels == 2) == (result.max_tvd is not None)


@pytest.mark.parametrize("n_labels", [2, 3])
def test_the_drawn_shuffles_one_by_one(case, n_labels):
    adapter, observation = case(n_labels)
    result = permutation(observation, Site(), Permutation(n_permutations=9))
    drawn = observation.draw_permutations(0, 9, 0)[:, :, 0]
    for row in range(12):
        decode, words = make_decoder(adapter, observation, row)
        weights = observation.read(SITE)[row, words]
        before = decode(weights)
        after = [decode(observation.read(SITE)[row, order][words]) for order in drawn[:, row]]
        plain = statistics.median(compute_output_changes(before, logits) for logits in after)
        assert result.median_tvd[row].item() == pytest.approx(plain, abs=1e-6)
        standard = [compute_output_changes(before, logits, SHARPNESS) for logits in after]
        expected = statistics.median(standard)
        assert result.standard_tvd[row].item() == pytest.approx(expected, abs=1e-6)
        flips = sum(bool(logits.argmax() != before.argmax()) for logits in after)
        assert result.flips_drawn[row].item() == pytest.approx(flips / 9)
        largest = result.largest_standard_tvd[row].item()
        if n_labels == 2:  # of all shuffles, by the linear read-out
            assert largest >= max(standard) - 1e-6
        else:
            assert largest == pytest.approx(max(standard), abs=1e-6)


# early stopping


def test_six_shuffles_are_the_fewest_that_give_an_interval():
    """The range of n values misses their median if all are on one side of it."""
    misses = [
        2 * scipy.stats.binom.pmf(n, n, 0.5) for n in (N_FIRST_SHUFFLES - 1, N_FIRST_SHUFFLES)
    ]
    assert misses[0] > 0.05 >= misses[1]


def test_a_text_stops_if_its_first_shuffles_are_on_one_side_of_the_threshold(case):
    """Each text has the numbers of six or of all shuffles, whatever the rest of its batch does."""
    adapter, observation = case(3)
    few, many = (
        permutation(observation, SITE, Permutation(n_permutations=n))
        for n in (N_FIRST_SHUFFLES, 40)
    )
    drawn = observation.draw_permutations(0, N_FIRST_SHUFFLES, 0)[:, :, 0]
    threshold = few.standard_tvd.median().item()
    options = Permutation(n_permutations=40, stop_threshold=threshold)
    result = permutation(observation, SITE, options)
    stopped = []
    for row in range(12):
        decode, words = make_decoder(adapter, observation, row)
        before = decode(observation.read(SITE)[row, words])
        orders = drawn[:, row]
        after = [decode(observation.read(SITE)[row, order][words]) for order in orders]
        changes = [compute_output_changes(before, logits, SHARPNESS) for logits in after]
        is_clear = min(changes) > threshold or max(changes) < threshold
        stopped.append(is_clear)
        expected = few if is_clear else many
        for name in ("median_tvd", "standard_tvd", "largest_standard_tvd", "flips_drawn"):
            value, right = getattr(result, name)[row], getattr(expected, name)[row]
            assert value.item() == pytest.approx(right.item(), abs=1e-12)
        assert result.shuffles_drawn[row] == (N_FIRST_SHUFFLES if is_clear else 40)
    assert 0 < sum(stopped) < 12
    assert few.shuffles_drawn is None and many.shuffles_drawn is None


def test_all_shuffles_are_drawn_if_there_are_no_more_than_six(case):
    _, observation = case(2)
    plain = permutation(observation, SITE, Permutation(n_permutations=4))
    result = permutation(observation, SITE, Permutation(n_permutations=4, stop_threshold=0.05))
    assert torch.equal(result.median_tvd, plain.median_tvd)
    assert (result.shuffles_drawn == 4).all()


@pytest.fixture(scope="module")
def prompts():
    """A tiny language model and ten prompts with ids."""
    tokenizer = tiny_language_models.tokenizer()
    model = tiny_language_models.llama(tokenizer, initializer_range=0.1)
    rows = [
        {**row, "question": f"{row['question']} ({number})", "example_id": 10 * number + index}
        for number in range(5)
        for index, row in enumerate(tiny_language_models.ROWS)
    ]
    return (model, tokenizer), rows


def audit_shuffles(prompts, rows, folder=None, **options):
    """Numbers of an audit with a threshold that lies within the changes of the tiny model."""
    model, _ = prompts
    test = Permutation(n_permutations=12, stop_threshold=0.0095)
    options = AuditOptions(shown_texts=0, **options)
    audited = audit(model, Answers(rows), test, options=options, output_dir=folder, progress=False)
    values = audited.to_pandas().query("test == 'permutation'")
    return values.set_index(["statistic", "layer", "head", "example_id"]).value.sort_index()


def test_early_stopping_depends_on_nothing_but_the_prompt(prompts, tmp_path):
    """Prompts in another order, fewer prompts, and an audit that is resumed."""
    _, rows = prompts
    together = audit_shuffles(prompts, rows)
    n_drawn = together.xs("shuffles_drawn")
    assert {*n_drawn} == {6.0, 12.0}
    fewer = audit_shuffles(prompts, rows[6:1:-1])
    pd.testing.assert_series_equal(fewer, together[together.index.isin(fewer.index)], rtol=1e-5)
    folder = tmp_path / "resumed"
    audit_shuffles(prompts, rows, folder)
    removed = sorted((folder / "rows").glob("part-*"))[len(rows) // 2 :]
    for part in removed:
        part.unlink()
    resumed = audit_shuffles(prompts, rows, folder)
    pd.testing.assert_series_equal(resumed, together, rtol=1e-5)


def test_the_default_audit_of_a_language_model_stops_at_the_threshold_of_the_effect():
    assert load_tests()["permutation"].answer_options == Permutation(
        n_permutations=20, stop_threshold=EFFECT_THRESHOLD
    )
    assert Permutation().stop_threshold is None
