"""The training loop: it continues after interruptions, and no training fails because of its card."""

import pytest
import torch

from hf_attnprobe import AttentionClassifierConfig, train
from hf_attnprobe.training import trainer
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.trainer import Stopwatch
from tests.helpers import tiny_models
from tests.helpers.stopped_trainings import (
    SimulatedStopError,
    assert_equal_weights,
    imitating,
    plain,
    train_base,
)


@pytest.fixture(scope="module")
def base(reviews, tmp_path_factory):
    """The base model; do not write into its folder."""
    return train_base(tmp_path_factory.mktemp("retrained") / "base", reviews)


def stop_at(step):
    def on_step_end(self, args, state, control, **options):
        if state.global_step == step:
            raise SimulatedStopError

    return on_step_end


@pytest.fixture(scope="module")
def whole(base, reviews, tmp_path_factory):
    """What comes out where nothing is interrupted."""
    return {
        train: train(base, reviews, tmp_path_factory.mktemp("whole") / "model")
        for train in (plain, imitating)
    }


# In the first of three epochs of 10 steps each, at its end, in the third.
STOPPED = [(plain, 3), (plain, 10), (plain, 27), (imitating, 27)]


def test_no_training_fails_because_of_its_card(monkeypatch, tmp_path, reviews, caplog):
    def broken(*_):
        raise RuntimeError("no room for cards")

    monkeypatch.setattr(trainer, "write_readme", broken)
    architecture = AttentionClassifierConfig(embedding_size=4, encoder_size=2, encoder="none")
    few = {name: part.select(range(20)) for name, part in reviews.items()}
    given = {"options": TrainingOptions(epochs=1), "progress": False}
    trained = train(few, output_dir=tmp_path, architecture=architecture, **given)
    assert "test_accuracy" in trained.metrics and "no room for cards" in caplog.text
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize("stopped", tiny_models.daily(STOPPED, [imitating]))
def test_an_interrupted_training_continues_to_the_same_weights(
    stopped, whole, base, reviews, tmp_path, monkeypatch
):
    train, step = stopped
    with monkeypatch.context() as patched, pytest.raises(SimulatedStopError):
        patched.setattr(Stopwatch, "on_step_end", stop_at(step))
        train(base, reviews, tmp_path / "cut")
    assert not (tmp_path / "cut" / "training.json").exists()
    assert (tmp_path / "cut" / ".steps").exists()
    torch.manual_seed(77)  # where another process would be
    continued = train(base, reviews, tmp_path / "cut")
    assert_equal_weights(continued.model, whole[train].model)
    assert continued.metrics == whole[train].metrics and continued.n_epochs == whole[train].n_epochs
    assert not (tmp_path / "cut" / ".steps").exists()


@pytest.mark.slow
def test_half_a_checkpoint_is_none(whole, base, reviews, tmp_path, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(SimulatedStopError):
        patched.setattr(Stopwatch, "on_step_end", stop_at(27))
        plain(base, reviews, tmp_path / "cut")
    (state,) = (tmp_path / "cut" / ".steps" / "checkpoint-20").glob("trainer_state.json")
    state.write_text(state.read_text()[:100])
    assert_equal_weights(plain(base, reviews, tmp_path / "cut").model, whole[plain].model)
