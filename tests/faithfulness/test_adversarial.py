"""Test the adversarial test on linear read-outs with two classes and with more."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.functional.divergence import jsd, tvd
from hf_attnprobe.protocol import Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import tiny_models
from tests.helpers.observed_classifiers import SITE, observe_classifier


def observe(n_classes, n_texts=40, n_tokens=12):
    """The reviewer's case: an untrained model with large weights, texts of random words."""
    sizes = {"embedding_size": 16, "encoder_size": 16, "num_labels": n_classes}
    model = tiny_models.classifier(200, read_out=8, query=6, seed=1, encoder="mlp", **sizes)
    return tiny_models.seen(model, torch.randint(4, 200, (n_texts, n_tokens)))[1]


@pytest.fixture(scope="module")
def three_classes():
    return observe(3)


def test_the_attention_of_the_lower_bound_is_within_epsilon(three_classes):
    model = three_classes.model
    for options in (Adversarial(), Adversarial(n_steps=100)):
        result = adversarial(three_classes, Site(), options)
        for epsilon, attention in result.attention.items():
            probs = model.replay(three_classes, {0: attention[None, :, None]})[0]
            assert (tvd(probs, three_classes.probs) <= epsilon + 1e-9).all()
            theirs = jsd(attention[:, 0], three_classes.attention[0][:, 0, 0])
            assert torch.allclose(theirs, result.epsilon_max_jsd[epsilon], atol=1e-9)


def test_a_search_from_the_best_only_adds(three_classes):
    quick = adversarial(three_classes, Site())
    more = adversarial(three_classes, Site(), Adversarial(n_steps=100))
    for epsilon, values in quick.epsilon_max_jsd.items():
        assert (more.epsilon_max_jsd[epsilon] >= values).all()
    gained = more.epsilon_max_jsd[0.05] - quick.epsilon_max_jsd[0.05]
    assert gained.max() > 0


def test_unless_asked_nothing_is_searched(three_classes, monkeypatch):
    def searched(*arguments, **options):
        raise ZeroDivisionError

    name = "hf_attnprobe.faithfulness.adversarial.search_adversarial_attention"
    monkeypatch.setattr(name, searched)
    assert adversarial(three_classes, Site()).epsilon_max_jsd
    with pytest.raises(ZeroDivisionError):
        adversarial(three_classes, Site(), Adversarial(n_steps=1))


@pytest.mark.parametrize(
    ("n_classes", "method", "is_exact", "has_upper"),
    [(2, "auto", 1, False), (2, "search", 0, False), (3, "auto", 0, True), (3, "search", 0, False)],
)
def test_every_number_carries_its_kind(n_classes, method, is_exact, has_upper):
    observation = observe(n_classes, n_texts=5)
    options = Adversarial(method=method, epsilons=(0.01, 0.05), n_steps=20)
    result = collect_statistics(adversarial(observation, Site(), options))
    assert result["epsilon_max_jsd_exact"].tolist() == [is_exact] * 5
    for epsilon in (0.01, 0.05):
        assert (f"epsilon_max_jsd_upper@{epsilon}" in result) == has_upper
        assert (f"share_of_largest_upper@{epsilon}" in result) == has_upper
        share = result[f"share_of_largest@{epsilon}"]
        assert not has_upper or (share <= result[f"share_of_largest_upper@{epsilon}"] + 1e-12).all()
        expected = result[f"epsilon_max_jsd@{epsilon}"] / result["largest_jsd"]
        assert torch.equal(share, expected) and (share <= 1 + 1e-9).all()


def test_the_share_of_no_room_is_undefined():
    result = adversarial(observe(3, n_texts=2, n_tokens=1), Site())
    assert (result.largest_jsd == 0).all() and (result.epsilon_max_jsd[0.05] == 0).all()
    assert result.share_of_largest[0.05].isnan().all()
    assert result.share_of_largest_upper[0.05].isnan().all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_text_without_units_cannot_be_moved(n_classes):
    model = tiny_models.classifier(20, num_labels=n_classes, encoder="mlp")
    tokens = torch.tensor([[2, 3, 0, 0], [2, 5, 6, 3]])
    inputs = {"input_ids": tokens, "attention_mask": (tokens > 0).long()}
    inputs["special_tokens_mask"] = ((tokens == 2) | (tokens == 3)).long()
    adapter = wrap(model)
    result = adversarial(adapter.observe(adapter.prepare(inputs, (0, 1))), Site())
    for values in (result.largest_jsd, result.epsilon_max_jsd[0.01]):
        assert values[0] == 0 and values[1] > 0
    assert result.share_of_largest[0.01].isnan().tolist() == [True, False]


@pytest.mark.parametrize("num_labels", [2, 4])
def test_search_stays_feasible_and_below_the_exact_answer(num_labels):
    adapter, observation = observe_classifier(num_labels=num_labels)
    result = adversarial(observation, SITE, Adversarial(method="search", n_steps=150))
    for epsilon, attention in result.attention.items():
        after = adapter.replay(observation, {0: attention[None, :, None]})[0]
        assert (tvd(after, observation.probs) <= epsilon + 1e-9).all()
        assert torch.allclose(
            jsd(attention[:, 0], observation.read(SITE)), result.epsilon_max_jsd[epsilon], atol=1e-9
        )
        assert (result.epsilon_max_jsd[epsilon] <= result.largest_jsd + 1e-9).all()
    assert result.epsilon_max_jsd[0.05][3] == 0  # one token cannot move
    if num_labels == 2:
        exact = adversarial(observation, SITE, Adversarial(method="exact", epsilons=(0.01, 0.05)))
        for epsilon in (0.01, 0.05):
            assert (exact.epsilon_max_jsd[epsilon] >= result.epsilon_max_jsd[epsilon] - 1e-9).all()


def test_exact_is_refused_where_it_does_not_hold():
    _adapter, observation = observe_classifier(num_labels=4)
    with pytest.raises(AttnProbeError, match="method='search'"):
        adversarial(observation, SITE, Adversarial(method="exact"))
