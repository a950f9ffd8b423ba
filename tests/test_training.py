import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_attnprobe import AttentionClassifierConfig, AttnProbeError, evidence_dataset, train_classifier
from hf_attnprobe.objectives import classification_metrics, papers_loss, papers_optimizer, roc_auc


SMALL = {"embedding_size": 32, "encoder_size": 32}


@pytest.fixture(scope="module")
def data():
    return evidence_dataset(900, seed=0)


def train(data, folder, *, seed=0, epochs=2, **options):
    return train_classifier(
        AttentionClassifierConfig(**SMALL), data["train"], data["validation"], test=data["test"], output_dir=folder,
        seed=seed, epochs=epochs, progress=False, **options,
    )  # fmt: skip


def test_learns_and_is_reproducible(data, tmp_path):
    first = train(data, tmp_path / "a", epochs=3, learning_rate=1e-2)
    again = train(data, tmp_path / "b", epochs=3, learning_rate=1e-2)
    other = train(data, tmp_path / "c", epochs=3, learning_rate=1e-2, seed=1)
    assert first[2]["test_roc_auc"] > 0.8
    assert first[2] == again[2] and first[2] != other[2]
    for one, two in zip(first[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(one, two)
    assert {p.name for p in (tmp_path / "a").iterdir()} >= {"model.safetensors", "tokenizer.json", "config.json"}
    assert not (tmp_path / "a" / "steps").exists()
    assert first[0].config.id2label == {0: "negative", 1: "positive"}


def test_weight_decay_spares_attention_as_in_the_papers(data, tmp_path):
    model, _, _ = train(data, tmp_path, epochs=1)
    optimizer = papers_optimizer(model, learning_rate=1e-3, weight_decay=1e-5)
    spared = {id(p) for p in optimizer.param_groups[1]["params"]}
    assert spared == {id(p) for p in model.attention_classifier.attention.parameters()}
    assert [g["weight_decay"] for g in optimizer.param_groups] == [1e-5, 0.0]
    assert all(g["amsgrad"] for g in optimizer.param_groups)


def test_loss_is_the_papers_weighted_binary_cross_entropy():
    labels = Dataset.from_dict({"label": [0, 0, 0, 1]})
    z, y = torch.tensor([0.3, -1.2, 2.0]), torch.tensor([1, 0, 1])
    outputs = type("Outputs", (), {"logits": torch.stack([torch.zeros(3), z], dim=-1)})
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(z, y.float(), reduction="none")
    expected = (theirs * torch.tensor([3.0, 1.0, 3.0])).sum()
    assert papers_loss(labels, 2)(outputs, y).item() == pytest.approx(expected.item(), abs=1e-6)


def test_metrics_on_hand_computed_cases():
    assert roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])) == pytest.approx(0.75)
    assert roc_auc(np.array([1.0, 1.0]), np.array([0, 1])) == pytest.approx(0.5)
    assert np.isnan(roc_auc(np.array([1.0]), np.array([1])))
    prediction = type("P", (), {})()
    prediction.predictions, prediction.label_ids = np.array([[0, 1.0], [0, 2], [0, -1]]), np.array([1, 0, 1])
    assert classification_metrics(prediction) == pytest.approx({"accuracy": 1 / 3, "f1": 0.5, "roc_auc": 0.0})


def test_more_than_two_classes(tmp_path):
    rows = [{"text": f"{word} and so on", "label": k} for k, word in enumerate(("red", "green", "blue"))] * 20
    config = AttentionClassifierConfig(encoder="mlp", **SMALL)
    model, _, metrics = train_classifier(
        config, rows, rows, output_dir=tmp_path / "m", epochs=5, learning_rate=0.01, progress=False
    )
    assert model.config.num_labels == 3 and metrics == {"validation_accuracy": 1.0}


def test_pretrained_vectors_are_used(data, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("film " + " ".join(["0.5"] * 32) + "\n")
    model, tokenizer, _ = train(data, tmp_path / "m", epochs=1, vectors=vectors, learning_rate=0.0, weight_decay=0.0)
    weight = model.get_input_embeddings().weight
    assert torch.equal(weight[tokenizer.convert_tokens_to_ids("film")], torch.full((32,), 0.5))


def test_bad_input(data, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("film 1 2 3\n")
    with pytest.raises(AttnProbeError, match="embedding_size=3"):
        train(data, tmp_path / "m", vectors=vectors)
    with pytest.raises(AttnProbeError, match="every class"):
        train_classifier(None, [{"text": "a b", "label": 1}] * 4, output_dir=tmp_path / "m", progress=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(AttnProbeError, match="other files"):
        train(data, tmp_path / "other")
    assert not (tmp_path / "m").exists()
