"""Threads: one for small models, all others as they were; what the user set stays."""

import functools

import pytest
import torch

from hf_attnprobe.core import hardware
from hf_attnprobe.core.hardware import is_small_model, limit_threads
from tests.helpers import tiny_models


@pytest.fixture
def two_threads(monkeypatch):
    """A process that started with two threads, and nobody set a number."""
    for name in hardware._THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(hardware, "_INITIAL_N_THREADS", 2)
    yield
    torch.set_num_threads(before)


def test_a_small_model_has_one_thread_and_gives_the_others_back(make_model, two_threads):
    with pytest.raises(ValueError), limit_threads(make_model()) as n:
        assert n == torch.get_num_threads() == 1
        with limit_threads(make_model("cnn")) as inner:
            assert inner == 1
        assert torch.get_num_threads() == 1
        raise ValueError
    assert torch.get_num_threads() == 2


def test_a_large_one_has_all_and_tables_do_not_count(two_threads):
    assert is_small_model(tiny_models.bert(30_000, layers=1, width=64))
    with limit_threads(tiny_models.bert(50, layers=1, width=64, intermediate_size=4096)) as n:
        assert n == torch.get_num_threads() == 2


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_the_user_said_is_kept(name, make_model, two_threads, monkeypatch):
    monkeypatch.setenv(name, "2")
    with limit_threads(make_model()) as n:
        assert n == 2


def test_what_the_user_set_is_kept(make_model, two_threads):
    torch.set_num_threads(3)
    with limit_threads(make_model()) as n:
        assert n == torch.get_num_threads() == 3


def test_audits_and_trainings_use_it(checkpoint, reviews, tmp_path, two_threads, monkeypatch):
    from hf_attnprobe import AttentionClassifierConfig, TrainingOptions, audit, train_classifier
    from hf_attnprobe.models.attention_classifier import modeling_attention_classifier as code

    seen = set()
    kind = code.AttentionClassifierForSequenceClassification
    forward = kind.forward

    @functools.wraps(forward)  # the Trainer reads its signature
    def watched(self, *args, **kwargs):
        seen.add(torch.get_num_threads())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(kind, "forward", watched)
    audit(checkpoint, ["a good film"] * 2, ["permutation"], progress=False)
    assert seen == {1} and torch.get_num_threads() == 2
    seen.clear()
    train_classifier(
        AttentionClassifierConfig(embedding_size=4, encoder_size=2, encoder="mlp"),
        reviews["validation"],
        reviews["test"],
        output_dir=tmp_path / "model",
        options=TrainingOptions(epochs=1, batch_size=20),
        progress=False,
    )
    assert seen == {1} and torch.get_num_threads() == 2
