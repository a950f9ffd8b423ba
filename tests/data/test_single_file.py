"""A single table as people have it: its separator, its names of labels, its texts set apart."""

import pytest

from hf_attnprobe import load_examples
from hf_attnprobe.data.examples import get_label_names, load_splits
from tests.helpers.error_messages import refused


ROWS = [(f"text {k} of a film", "bad" if k % 2 else "good") for k in range(50)]


@pytest.fixture(params=[",", ";", "\t", "|"])
def table(request, tmp_path):
    lines = [request.param.join(row) for row in [("text", "label"), *ROWS]]
    path = tmp_path / "one.csv"
    path.write_text("\n".join(lines))
    return path


def test_texts_are_set_apart_the_same_for_training_and_audit(table):
    splits = load_splits(table, holdout=0.2)
    sizes = {name: len(rows) for name, rows in splits.items()}
    assert sizes == {"train": 30, "validation": 10, "test": 10}
    texts = [text for rows in splits.values() for text in rows["text"][:]]
    assert sorted(texts) == sorted(text for text, _ in ROWS)  # every text in one split
    assert load_examples(table, "test", holdout=0.2)["text"][:] == splits["test"]["text"][:]
    refused("Omit --holdout", load_splits, dict(splits), holdout=0.2)


def test_labels_have_the_names_of_the_model(table):
    examples = load_examples(table, "test", labels=["bad=neg", "good="])
    assert get_label_names(examples) == ["neg"]
    assert examples["label"][:] == [0 if label == "bad" else -1 for _, label in ROWS]
    numbered = [{"text": "a", "label": 1}, {"text": "b", "label": 5}]
    examples = load_examples(numbered, "test", labels=["1=neg", "5=pos"])
    assert [get_label_names(examples)[k] for k in examples["label"]] == ["neg", "pos"]
    refused(
        "renames worst, but the data has no such label. Its labels are bad, good",
        load_examples,
        table,
        "test",
        labels=["worst=neg"],
    )
