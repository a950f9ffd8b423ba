"""Training procedures of papers: losses, weight decay, architectures and rates."""

import pytest
import torch
from datasets import Dataset

from hf_attnprobe import AttentionClassifierConfig
from hf_attnprobe.training import classifier as training
from hf_attnprobe.training.procedures import (
    choose_procedure,
    make_paper_config,
    make_paper_loss,
    make_paper_optimizer,
)
from tests.helpers import tiny_models
from tests.training.test_classifier import train


@pytest.fixture
def watched(monkeypatch):
    """Every trainer that is made."""
    made, own = [], training.make_trainer
    monkeypatch.setattr(
        training,
        "make_trainer",
        lambda *args, **options: made.append(own(*args, **options)) or made[-1],
    )
    return made


def test_weight_decay_spares_attention_as_in_the_papers(tokenizer):
    model = tiny_models.classifier(tokenizer)
    optimizer = make_paper_optimizer(model, choose_procedure(None, "bilstm"))
    spared = {id(p) for p in optimizer.param_groups[1]["params"]}
    assert spared == {id(p) for p in model.attention_classifier.attention.parameters()}
    assert [g["weight_decay"] for g in optimizer.param_groups] == [1e-5, 0.0]
    assert all(g["amsgrad"] for g in optimizer.param_groups)


def test_the_loss_of_either_paper():
    """Weighted binary cross-entropy, and the plain mean."""
    labels = Dataset.from_dict({"label": [0, 0, 0, 1]})
    z, y = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([1, 0, 1])
    outputs = type("Outputs", (), {"logits": torch.stack([torch.zeros(3), z], dim=-1)})
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(z, y.float(), reduction="none")
    expected = (theirs * torch.tensor([3.0, 1.0, 3.0])).sum()
    assert make_paper_loss(labels, 2)(outputs, y).item() == pytest.approx(expected.item(), abs=1e-6)
    found = make_paper_loss(labels, 2, weighted=False)(outputs, y)
    assert found.item() == pytest.approx(theirs.mean().item(), abs=1e-6)


def test_the_architectures_of_serrano_and_smith():
    """The numbers of their released code for IMDB."""
    han, flan = (make_paper_config("serrano-smith", hierarchical=value) for value in (True, False))
    theirs = {"encoder": "bigru", "encoder_size": 50, "embedding_size": 200, "attention_size": 100}
    theirs |= {"hidden_size": 100, "embedding_dropout": 0.444}
    own = {"sentence_dropout": 0.22, "logit_dropout": 0.246}
    flat = {"sentence_dropout": 0.0, "logit_dropout": 0.346}
    for config, expected in ((han, theirs | own), (flan, theirs | flat)):
        assert {name: getattr(config, name) for name in expected} == expected
    conv = make_paper_config("serrano-smith", encoder="cnn")
    assert (tuple(conv.kernel_sizes), conv.encoder_size) == ((3, 5), 100)
    assert make_paper_config("serrano-smith", encoder="none").attention_size == 200
    assert (
        make_paper_config("serrano-smith", embedding_size=7, logit_dropout=0.0).embedding_size == 7
    )
    assert make_paper_config().to_dict() == AttentionClassifierConfig().to_dict()


def test_the_procedures():
    theirs = {"epochs": 15, "patience": 5, "batch_size": 64, "learning_rate": 4e-4}
    theirs |= {"max_grad_norm": 10.0, "plateau_factor": 0.5, "min_document_frequency": 5}
    jain_wallace = {"epochs": 8, "batch_size": 32, "learning_rate": 1e-3, "weight_decay": 1e-5}
    for name, encoder, given, expected in (
        ("serrano-smith", "bigru", {}, theirs),
        ("serrano-smith", "none", {}, {"epochs": 60, "patience": 10}),
        (
            "serrano-smith",
            "none",
            {"epochs": 3, "patience": None, "weight_decay": 0.1},
            {"epochs": 3, "patience": 10, "weight_decay": 0.1},
        ),
        ("jain-wallace", "bilstm", {}, jain_wallace | {"max_grad_norm": 0}),
    ):
        found = choose_procedure(name, encoder, **given)
        assert {field: getattr(found, field) for field in expected} == expected


@pytest.mark.parametrize("encoder", tiny_models.daily(["bigru", "cnn", "none"], ["none"]))
def test_hierarchical_models_are_trained(encoder, tmp_path):
    """One sentence of each text, anywhere in it, says what class it is of."""
    telling, rows = ("It is wonderful.", "It is dull!", "It is odd?"), []
    for k in range(360):
        sentences = ["We went there.", "The cast was big!", "So it ends?"][: k % 4]
        sentences.insert(k % 7 % (len(sentences) + 1), telling[k % 3])
        rows.append({"text": " ".join(sentences), "label": k % 3})
    sizes = {"hierarchical": True, "embedding_size": 32, "embedding_dropout": 0.1}
    config = make_paper_config("serrano-smith", encoder=encoder, **sizes)
    options = {"procedure": "serrano-smith", "epochs": 8, "learning_rate": 0.01}
    options |= {"batch_size": 16, "min_document_frequency": 1, "max_length": 30}
    splits = {"train": rows[:300], "validation": rows[300:]}
    model, tokenizer, metrics = train(splits, tmp_path / "m", config, **options)
    assert metrics["validation_accuracy"] > 0.9
    assert model.config.sep_token_id == tokenizer.sep_token_id == 4
    assert tokenizer.model_max_length == 30
    batch = tokenizer("It is dull. It is odd! So it is", return_tensors="pt")
    assert model(**batch, output_attentions=True).attentions[1].shape == (1, 1, 1, 3)


def test_no_progress_halves_the_rate_and_ends_the_training(tmp_path, watched):
    """All texts are the same, so that no epoch is better than the first."""
    rows = [{"text": "the same", "label": k % 2} for k in range(20)]
    config = make_paper_config("serrano-smith", encoder="none", embedding_size=4)
    options = {"procedure": "serrano-smith", "epochs": 30, "patience": 3}
    train(rows, tmp_path / "m", config, **options, min_document_frequency=1)
    (trainer,) = watched
    rates = [e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e]
    assert rates == pytest.approx([4e-4, 4e-4, 2e-4, 1e-4])
    assert trainer.args.max_grad_norm == 10 and trainer.args.per_device_train_batch_size == 64
    assert not trainer.optimizer.param_groups[0]["amsgrad"]
