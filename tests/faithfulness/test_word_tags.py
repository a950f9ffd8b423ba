"""Attention by the tags of words, against counts of our own over the plain forward pass."""

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, List, Value

import zoo
from hf_attnprobe import AttnProbeError, audit, load_examples
from hf_attnprobe.data import labels
from hf_attnprobe.data.examples import dataset_fingerprint
from hf_attnprobe.data.labels import tag_words


def tag(word):
    if word in (".", ","):
        return "."
    return "DET" if word in ("the", "a", "this") else "OTHER"


@pytest.fixture(scope="module")
def tagged(reviews):
    examples = reviews["test"].select(range(12))
    return tag_words(examples, lambda words: [tag(word) for word in words])


def test_shares_are_those_of_a_hand_count(checkpoint, make_model, tokenizer, tagged):
    report = audit(checkpoint, tagged, ["attention_by_tag"], progress=False)
    rows = report.to_pandas()
    rows = rows[rows.test == "attention_by_tag"]
    model = make_model().double()
    for row in load_examples(tagged, "test"):
        words = row["text"].split()
        inputs = tokenizer(row["text"], return_tensors="pt")
        assert inputs["input_ids"].shape[1] == len(words) + 2
        with torch.no_grad():
            weights = model(**inputs, output_attentions=True).attentions[0][0, 0, 0]
        found = rows[rows.example_id == row["example_id"]].set_index("statistic").value
        for name in (".", "DET", "OTHER"):
            mine = [k for k, word in enumerate(words) if tag(word) == name]
            share = sum(float(weights[k + 1]) for k in mine)
            of_tokens = len(mine) / len(words)
            assert found[f"attention_share@{name}"] == pytest.approx(share, abs=1e-9)
            assert found[f"token_share@{name}"] == pytest.approx(of_tokens)
            assert found[f"attention_above_share@{name}"] == pytest.approx(
                share - of_tokens, abs=1e-9
            )
    assert "| tag | share of attention | share of tokens |" in report.to_markdown()


def test_a_word_of_several_pieces_has_its_tag_once(tmp_path):
    """A tokenizer that splits every word into letters: the units are words again."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = Tokenizer(
        models.WordPiece(
            {"[PAD]": 0, "[UNK]": 1} | {x: k for k, x in enumerate(["a", "b", "##a", "##b"], 2)},
            unk_token="[UNK]",
        )
    )
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]")
    torch.manual_seed(0)
    model = zoo.bert(6, layers=1, width=8, spread=0.02)
    data = [
        {"text": "ab ba b", "label": 0, "word_tags": ["X", "Y", ""]},
        {"text": "a ab", "label": 1, "word_tags": ["Y", "Y"]},
    ]
    report = audit(model, data, ["attention_by_tag"], tokenizer=tokenizer, progress=False)
    rows = report.to_pandas()
    shares = rows[rows.statistic.isin(["token_share@X", "token_share@Y"])]
    shares = shares[(shares["head"] == 0)].set_index(["statistic", "example_id"]).value
    assert shares["token_share@X"].tolist() == pytest.approx([1 / 3, 0])
    assert shares["token_share@Y"].tolist() == pytest.approx([1 / 3, 1])


def test_tags_are_read_from_named_classes_and_change_the_fingerprint(tagged):
    names = [".", "DET", "OTHER"]
    table = {
        "text": tagged["text"][:],
        "label": tagged["label"][:],
        "pos_tags": [[names.index(t) for t in row] for row in tagged["word_tags"][:]],
    }
    features = Features(
        text=Value("string"), label=Value("int64"), pos_tags=List(ClassLabel(names=names))
    )
    examples = load_examples(Dataset.from_dict(table, features=features), "test")
    assert examples["word_tags"][:] == tagged["word_tags"][:]
    without = examples.remove_columns("word_tags")
    assert dataset_fingerprint(examples) != dataset_fingerprint(without)


def test_what_is_wrong_is_said_in_one_line(checkpoint, tagged, reviews, monkeypatch):
    with pytest.raises(AttnProbeError, match=r"tags of words for the test attention_by"):
        audit(checkpoint, reviews["test"], ["attention_by_tag"], progress=False)
    rows = [{"text": "the film", "label": 0, "word_tags": ["DET"]}]
    with pytest.raises(AttnProbeError, match=r"one tag for each of its 2 words, got 1"):
        audit(checkpoint, rows, ["attention_by_tag"], progress=False)

    def none_installed(name):
        raise ImportError(name)

    monkeypatch.setattr(labels, "import_module", none_installed)
    for tagger in ("nltk", "spacy"):
        with pytest.raises(AttnProbeError, match=rf"expected {tagger} with .* install"):
            tag_words(reviews["test"], tagger)


def test_the_markdown_has_a_table_of_tags(checkpoint, tagged, tmp_path):
    audit(checkpoint, tagged, ["attention_by_tag"], output_dir=tmp_path, progress=False)
    text = (tmp_path / "report.md").read_text()
    assert "| tag | share of attention | share of tokens | difference | ratio |" in text
