import dataclasses
import inspect
from typing import get_args, get_type_hints

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertTokenizer

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttnProbeError,
    AuditOptions,
    audit,
    make_rationale_dataset,
    train_classifier,
)
from hf_attnprobe.data import examples as splits
from hf_attnprobe.models.attention_classifier import (
    configuration_attention_classifier as configuration,
)
from hf_attnprobe.statistics.scores import compute_classification_metrics
from hf_attnprobe.training import classifier as training
from hf_attnprobe.training.options import Architecture, TrainingOptions
from hf_attnprobe.training.procedures import make_paper_config
from tests.helpers.error_messages import refused


SMALL = {"embedding_size": 32, "encoder_size": 32}


@pytest.fixture(scope="module")
def data():
    return make_rationale_dataset(900, seed=0)


def train(data, folder, config=None, **options):
    """A classifier trained on rows, or on the splits of a data set."""
    config = config or AttentionClassifierConfig(**SMALL)
    splits = data if isinstance(data, dict) else {"train": data, "validation": data}
    given = {"test": splits["test"]} if "test" in splits else {}
    options = TrainingOptions(**{"epochs": 1} | options)
    given |= {"output_dir": folder, "options": options, "progress": False}
    return train_classifier(config, splits["train"], splits["validation"], **given)


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


def test_learns_and_is_reproducible(data, tmp_path):
    given = {"epochs": 3, "learning_rate": 1e-2}
    first, again = (train(data, tmp_path / name, **given) for name in "ab")
    assert first[2]["test_roc_auc"] > 0.8
    assert first[2] == again[2]
    for one, two in zip(first[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(one, two)
    few = {name: examples.select(range(40)) for name, examples in data.items()}
    seeds = (train(few, tmp_path / f"seed-{seed}", seed=seed)[2] for seed in (0, 1))
    assert next(seeds) != next(seeds)
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert names >= {"model.safetensors", "tokenizer.json", "config.json"}
    assert not (tmp_path / "a" / ".steps").exists()
    assert first[0].config.id2label == {0: "negative", 1: "positive"}


def test_metrics_on_hand_computed_cases():
    prediction = type("P", (), {})()
    prediction.predictions = np.array([[0, 1.0], [0, 2], [0, -1]])
    prediction.label_ids = np.array([1, 0, 1])
    expected = {"accuracy": 1 / 3, "f1": 0.5, "roc_auc": 0.0}
    assert compute_classification_metrics(prediction) == pytest.approx(expected)


def test_more_than_two_classes(tmp_path):
    words = ("red", "green", "blue")
    rows = [{"text": f"{word} and so on", "label": k} for k, word in enumerate(words)] * 20
    config = AttentionClassifierConfig(encoder="mlp", **SMALL)
    model, _, metrics = train(rows, tmp_path / "m", config, epochs=5, learning_rate=0.01)
    assert model.config.num_labels == 3 and metrics == {"validation_accuracy": 1.0}


def test_pretrained_vectors_are_used(data, tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("film " + " ".join(["0.5"] * 32) + "\n")
    still = {"learning_rate": 0.0, "weight_decay": 0.0}
    few = {name: examples.select(range(40)) for name, examples in data.items()}
    model, tokenizer, _ = train(few, tmp_path / "m", word_vectors=vectors, **still)
    weight = model.get_input_embeddings().weight
    assert torch.equal(weight[tokenizer.convert_tokens_to_ids("film")], torch.full((32,), 0.5))


def test_an_audit_says_where_the_model_knows_the_texts(data, tmp_path):
    small = {name: examples.select(range(40)) for name, examples in data.items()}
    train(small, tmp_path / "m")

    def notes(split):
        options = AuditOptions(shown_texts=0)
        found = audit(tmp_path / "m", small[split], "correlation", options=options, progress=False)
        return [note for note in found.notes if note.startswith("Texts: the model was")]

    assert "trained on these very texts" in notes("train")[0]
    assert "selected on these very texts" in notes("validation")[0]
    assert notes("test") == []


def test_bad_input(data, tmp_path):
    (tmp_path / "vectors.txt").write_text("film 1 2 3\n")
    refused("embedding_size=3", train, data, tmp_path / "m", word_vectors=tmp_path / "vectors.txt")
    one_class = [{"text": "a b", "label": 1}] * 4
    with pytest.raises(AttnProbeError, match="labelled texts of each class"):
        train_classifier(None, one_class, output_dir=tmp_path / "m", progress=False)
    given = {"options": TrainingOptions(procedure="serrano-smith"), "progress": False}
    given["output_dir"] = tmp_path / "m"
    refused("needs validation texts", train_classifier, None, data["train"], **given)
    refused("plateau_factor must be greater than 0", TrainingOptions, plateau_factor=1.5)
    with pytest.raises(AttnProbeError, match="jain-wallace or serrano-smith for procedure, got 'y"):
        TrainingOptions(procedure="yang")
    plain = training.build_tokenizer(data["train"]["text"][:])
    config = make_paper_config("serrano-smith", hierarchical=True)
    with pytest.raises(AttnProbeError, match="separates sentences"):
        train_classifier(config, data["train"], data["validation"], tokenizer=plain, **given)
    assert not (tmp_path / "m").exists()


# --- the procedure of Serrano & Smith -------------------------------------------------------------------------------


def test_validation_texts_of_one_class_choose_by_accuracy(tmp_path, watched):
    rows = [{"text": f"{word} film", "label": k // 8} for k, word in enumerate(["dull", "fun"] * 8)]
    config = AttentionClassifierConfig(embedding_size=4, encoder_size=4, encoder="mlp")
    for name, validation in (("accuracy", rows[:8]), ("roc_auc", rows)):
        train({"train": rows, "validation": validation}, tmp_path / name, config, epochs=2)
        assert watched[-1].state.best_metric is not None
        assert watched[-1].args.metric_for_best_model == name


def test_one_split_alone_is_not_trained_and_scored_on_alike():
    rows = [{"text": f"text {k}", "label": k % 2} for k in range(8)]
    rows = datasets.Dataset.from_list(rows)
    for single in (rows, rows.to_list()):
        refused("training needs the splits train, validation and test", splits.load_splits, single)
    whole = datasets.DatasetDict({"train": rows, "validation": rows})
    assert splits.load_splits(whole).keys() == {"train", "validation"}


def test_tokens_that_begin_and_end_a_text_are_no_content_whatever_they_are_called(tmp_path):
    """A tokenizer of BERT's kind: [CLS] and [SEP], no bos and no eos."""
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dull", "film"])
    )
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    config = AttentionClassifierConfig(embedding_size=4, encoder_size=4)
    model = training.build_model(config, tokenizer, ["neg", "pos"]).eval()
    inputs = tokenizer("dull film", return_tensors="pt")
    weights = model(**inputs, output_attentions=True).attentions[0][0, 0, 0].detach()
    assert weights[0] == weights[-1] == 0 and weights[1:-1].sum() == pytest.approx(1, abs=1e-6)


def test_a_limit_takes_the_same_texts_of_every_class(tmp_path):
    rows = [{"example_id": k, "text": f"text {k}", "label": int(k >= 90)} for k in range(100)]
    pd.DataFrame(rows).to_json(tmp_path / "train.jsonl", orient="records", lines=True)
    pd.DataFrame(rows[85:95]).to_json(tmp_path / "validation.jsonl", orient="records", lines=True)
    chosen = {n: splits.load_splits(str(tmp_path), limit=n)["train"] for n in (4, 12, 50, 500)}
    assert [sum(chosen[n]["label"][:]) for n in (4, 12, 50, 500)] == [2, 6, 10, 10]
    ids = [set(chosen[n]["example_id"][:]) for n in (4, 12, 50, 500)]
    assert ids[0] < ids[1] < ids[2] < ids[3] and len(ids[3]) == 100
    assert len(splits.load_splits(str(tmp_path), limit=4)["validation"]) == 10


# --- the verb -------------------------------------------------------------------------------------------------------


def test_what_the_caller_gives_is_not_changed(data, tokenizer, tmp_path):
    config = AttentionClassifierConfig(encoder="mlp", **SMALL)
    before, length = config.to_dict(), tokenizer.model_max_length
    options = TrainingOptions(epochs=1, max_length=7)
    given = {"options": options, "tokenizer": tokenizer, "progress": False}
    model, used, _ = train_classifier(
        config, data["validation"], output_dir=tmp_path / "m", **given
    )
    assert config.to_dict() == before and model.config.vocab_size == len(tokenizer)
    assert (tokenizer.model_max_length, used.model_max_length) == (length, 7)


def test_the_architecture_is_the_configurations():
    """Every field that a user chooses, with the choices of the checkpoint code."""
    # The data determine the vocabulary, the type of the inputs and the size of features.
    filled_in = {"model_type", "vocab_size", "inputs", "feature_size"}
    chosen = inspect.get_annotations(AttentionClassifierConfig)
    chosen = [n for n in chosen if n not in filled_in and "_token_id" not in n]
    assert [field.name for field in dataclasses.fields(Architecture)] == chosen
    kinds = get_type_hints(Architecture)
    choices = {name: get_args(get_args(kinds[name])[0]) for name in ("encoder", "attention")}
    assert choices["encoder"] == configuration.ENCODERS
    assert {*choices["attention"], "guided"} == {*configuration.ATTENTIONS}
    assert get_args(get_args(kinds["residual_connection"])[0]) == configuration.CONNECTIONS
    options = Architecture(encoder="cnn", kernel_sizes=[3], hierarchical=True)
    config = make_paper_config(**vars(options))
    assert (config.encoder, config.hierarchical) == ("cnn", True)
    refused("for encoder, got 'gru'", Architecture, encoder="gru")
