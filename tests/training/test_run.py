"""The command for training: it trains as its function and refuses what means nothing."""

import pytest

from hf_attnprobe import AttnProbeError
from hf_attnprobe.data.specs import Data
from hf_attnprobe.training import run as verb
from hf_attnprobe.training.options import TrainingOptions


@pytest.mark.slow
def test_the_verb_trains_as_its_function_and_continues(reviews_folder, tmp_path, monkeypatch):
    options = TrainingOptions(epochs=1, seed=3)
    architecture = {"encoder": "mlp", "embedding_size": 8, "encoder_size": None}
    again = {"output_dir": tmp_path / "m", "options": options, "progress": False}
    limited = Data(reviews_folder, train_limit=100)
    model, _, metrics = verb.train(limited, architecture=architecture, **again)
    assert (model.config.encoder, model.config.encoder_size) == ("mlp", 128)
    assert {"validation_accuracy", "test_accuracy"} <= metrics.keys()
    monkeypatch.setattr(
        "transformers.Trainer.train", lambda *args, **options: pytest.fail("trained")
    )
    assert verb.train(limited, architecture=architecture, **again)[2] == metrics
    with pytest.raises(AttnProbeError, match="holds a training with architecture"):
        verb.train(limited, architecture={"encoder": "cnn"}, **again)
    with pytest.raises(AttnProbeError, match="holds a training with data"):
        verb.train(reviews_folder, architecture=architecture, **again)


def test_what_means_nothing_to_a_pretrained_model_is_refused(checkpoint, reviews_folder, tmp_path):
    for arguments, message in (
        ({"options": TrainingOptions(patience=3)}, "patience applies only to attention class"),
        ({"options": TrainingOptions(procedure="jain-wallace")}, "procedure applies only to"),
        ({"architecture": {"encoder": "cnn"}}, "encoder applies only to attention classifiers"),
        ({"architecture": {"encoders": "cnn"}}, "'encoders'; did you mean encoder"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            verb.train(reviews_folder, output_dir=tmp_path / "m", model=checkpoint, **arguments)
    assert not (tmp_path / "m").exists()
