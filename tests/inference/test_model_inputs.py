"""Columns that a model reads besides its texts, compared with the model's own forward method."""

import inspect
import logging

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertModel,
    LayoutLMConfig,
    LayoutLMForSequenceClassification,
    LayoutLMForTokenClassification,
    LayoutLMv2Tokenizer,
    LayoutLMv3Tokenizer,
)

from hf_attnprobe import audit, explain_text
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.setup import AuditRequest, encode_audit, load_audit, select_audit
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import compute_dataset_fingerprint
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.reports.test_head_sentences import pair_tokenizer, sentences


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.4,
}
N_TEXTS = 5


@pytest.fixture(scope="module")
def tokenizer():
    return pair_tokenizer()


@pytest.fixture(scope="module")
def layout_model(tokenizer):
    torch.manual_seed(0)
    config = LayoutLMConfig(vocab_size=len(tokenizer), num_labels=3, **SIZES)
    return LayoutLMForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def documents():
    """Texts of words of several pieces, with a box for each word."""
    generator = np.random.default_rng(0)
    rows = []
    for k, text in enumerate(sentences(N_TEXTS)):
        words = [*text.split(), "goodgood!"]
        corners = generator.integers(0, 900, (len(words), 2))
        boxes = np.concatenate([corners, corners + 50], 1).tolist()
        rows.append({"tokens": words, "bbox": boxes, "label": k % 3})
    return rows


def call_layout_model(model, tokenizer, words, boxes):
    """The model's own prediction, with the input of LayoutLM's documentation."""
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    token_boxes = [[0] * 4 if word is None else boxes[word] for word in encoded.word_ids()]
    token_boxes[-1] = [1000] * 4
    with torch.no_grad():
        return model(**encoded, bbox=torch.tensor([token_boxes])).logits.softmax(-1)[0]


def observe(model, rows, tokenizer, **options):
    """Adapter, observation of all texts in one batch, and their examples."""
    request = AuditRequest(model, rows, ["correlation"], AuditOptions(**options), tokenizer)
    loaded = load_audit(request)
    prepared = encode_audit(loaded, select_audit(loaded))
    adapter = loaded.audited_model.adapter
    batch = collate(adapter, prepared.tokenized.texts, 0)
    adapter.self_check(batch)
    observation = adapter.observe(batch)
    torch.testing.assert_close(observation.probs, adapter.compute_native_probs(batch))
    return adapter, observation, loaded.examples


@pytest.mark.parametrize("name", ["bbox", "bboxes", "boxes"])
def test_boxes_of_words(name, layout_model, documents, tokenizer):
    rows = [{name if key == "bbox" else key: row[key] for key in row} for row in documents]
    _, observation, _ = observe(layout_model, rows, tokenizer)
    for row, probs in zip(documents, observation.probs, strict=True):
        own = call_layout_model(layout_model, tokenizer, row["tokens"], row["bbox"])
        torch.testing.assert_close(probs, own)
        without = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            assert (layout_model(**without).logits.softmax(-1)[0] - own).abs().max() > 0.01


def test_boxes_of_tokens(layout_model, documents, tokenizer):
    rows = []
    for row in documents:
        encoded = tokenizer(row["tokens"], is_split_into_words=True)
        boxes = [[7] * 4 if word is None else row["bbox"][word] for word in encoded.word_ids()]
        rows.append({"text": " ".join(row["tokens"]), "bbox": boxes})
    _, observation, _ = observe(layout_model, rows, tokenizer)
    for row, probs in zip(rows, observation.probs, strict=True):
        encoded = tokenizer(row["text"], return_tensors="pt")
        with torch.no_grad():
            own = layout_model(**encoded, bbox=torch.tensor([row["bbox"]])).logits.softmax(-1)[0]
        torch.testing.assert_close(probs, own)


def test_a_deleted_word_takes_its_box_along(layout_model, documents, tokenizer):
    adapter, observation, _ = observe(layout_model, documents, tokenizer)
    positions = observation.batch.content_mask.nonzero()
    for text, position in positions[::3].tolist():
        erased = torch.zeros_like(observation.batch.mask)[None]
        erased[0, text, position] = True
        probs = adapter.erase_inputs(observation, erased)[0, text]
        masked = adapter.erase_inputs(observation, erased, operator="mask")[0, text]
        row = documents[text]
        encoded = tokenizer(row["tokens"], is_split_into_words=True)
        pieces = [
            k for k, word in enumerate(observation.batch.inputs["units"][text]) if word == position
        ]
        boxes = [[0] * 4 if word is None else row["bbox"][word] for word in encoded.word_ids()]
        boxes[-1] = [1000] * 4
        kept = [k for k in range(len(boxes)) if k not in pieces]
        ids = torch.tensor([[encoded["input_ids"][k] for k in kept]])
        with torch.no_grad():
            kept_boxes = torch.tensor([[boxes[k] for k in kept]])
            own = layout_model(ids, bbox=kept_boxes).logits.softmax(-1)[0]
            torch.testing.assert_close(probs, own)
            ids = torch.tensor([encoded["input_ids"]])
            ids[0, pieces] = adapter.mask_id
            own = layout_model(ids, bbox=torch.tensor([boxes])).logits.softmax(-1)[0]
            torch.testing.assert_close(masked, own)


def test_an_exchanged_word_takes_the_box_of_its_place(layout_model, documents, tokenizer):
    adapter, observation, _ = observe(layout_model, documents, tokenizer, level="token")
    position = 2
    new_ids = torch.tensor(tokenizer(["film", "good"], is_split_into_words=True)["input_ids"][1:3])
    exchanged = torch.zeros_like(observation.batch.mask)[None]
    exchanged[0, :, position] = True
    replacements = [{position: new_ids}] * N_TEXTS
    probs = adapter.exchange_inputs(observation, exchanged, replacements)[0]
    for row, changed in zip(documents, probs, strict=True):
        encoded = tokenizer(row["tokens"], is_split_into_words=True)
        boxes = [[0] * 4 if word is None else row["bbox"][word] for word in encoded.word_ids()]
        boxes[-1] = [1000] * 4
        ids = encoded["input_ids"]
        ids = [*ids[:position], *new_ids.tolist(), *ids[position + 1 :]]
        boxes = [*boxes[:position], boxes[position], boxes[position], *boxes[position + 1 :]]
        with torch.no_grad():
            own = layout_model(torch.tensor([ids]), bbox=torch.tensor([boxes])).logits.softmax(-1)[
                0
            ]
        torch.testing.assert_close(changed, own)


def test_tags_of_words_with_boxes(documents, tokenizer):
    torch.manual_seed(0)
    config = LayoutLMConfig(vocab_size=len(tokenizer), id2label={0: "O", 1: "B"}, **SIZES)
    model = LayoutLMForTokenClassification(config).eval()
    rows = [
        {"tokens": row["tokens"], "bbox": row["bbox"], "ner_tags": [0] * len(row["tokens"])}
        for row in documents
    ]
    _, observation, _ = observe(model, rows, tokenizer)
    row = documents[0]
    encoded = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
    words = encoded.word_ids()
    boxes = [[0] * 4 if word is None else row["bbox"][word] for word in words]
    boxes[-1] = [1000] * 4
    with torch.no_grad():
        tags = model(**encoded, bbox=torch.tensor([boxes])).logits[0].softmax(-1)
    first_pieces = [words.index(k) for k in range(len(row["tokens"]))]
    own = tags[first_pieces] / len(first_pieces)
    torch.testing.assert_close(observation.probs[0, : own.numel()], own.flatten())


class WithFeatures(nn.Module):
    """A user's module that reads numbers about each text in addition to its words."""

    def __init__(self, n_tokens, n_features):
        super().__init__()
        torch.manual_seed(0)
        self.bert = BertModel(BertConfig(vocab_size=n_tokens, **SIZES))
        self.features = nn.Linear(n_features, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask, features=None, weight=None):
        hidden = self.bert(input_ids, attention_mask).last_hidden_state[:, 0]
        if features is not None:
            hidden = hidden + self.features(features)
        if weight is not None:
            hidden = hidden * weight[:, None]
        return self.head(hidden)


@pytest.mark.parametrize("n_features", [3, 9])
def test_numbers_about_a_whole_text(n_features, tokenizer):
    """Deleting words leaves them as they are, also if there are as many as tokens."""
    model = WithFeatures(len(tokenizer), n_features).eval()
    generator = np.random.default_rng(0)
    rows = [
        {
            "text": text,
            "features": generator.normal(size=n_features).tolist(),
            "weight": float(k + 1) / 3,
        }
        for k, text in enumerate(sentences(N_TEXTS))
    ]
    adapter, observation, _ = observe(model, rows, tokenizer)
    if n_features == 9:
        assert observation.batch.mask.shape[1] == 9
    erased = torch.zeros_like(observation.batch.mask)[None]
    erased[0, :, 1] = True
    probs = adapter.erase_inputs(observation, erased)[0]
    for row, whole, shortened in zip(rows, observation.probs, probs, strict=True):
        for text, found in ((row["text"], whole), (row["text"].split(" ", 1)[1], shortened)):
            encoded = tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                own = model(
                    encoded["input_ids"],
                    encoded["attention_mask"],
                    torch.tensor([row["features"]]),
                    torch.tensor([row["weight"]]),
                )
            torch.testing.assert_close(found, own.softmax(-1)[0])


def test_segments_from_the_data(tokenizer):
    model = tiny_models.bert(tokenizer, num_labels=3)
    rows = []
    for text in sentences(N_TEXTS):
        n_tokens = len(tokenizer(text)["input_ids"])
        segments = [int(k > 2) for k in range(n_tokens)]
        rows.append({"text": text, "token_type_ids": segments})
    _, observation, _ = observe(model, rows, tokenizer)
    for row, probs in zip(rows, observation.probs, strict=True):
        ids = torch.tensor([tokenizer(row["text"])["input_ids"]])
        with torch.no_grad():
            own = model(ids, token_type_ids=torch.tensor([row["token_type_ids"]])).logits
        torch.testing.assert_close(probs, own.softmax(-1)[0])


def test_columns_of_the_tokenizer_must_match_the_texts(tokenizer):
    model = tiny_models.bert(tokenizer, num_labels=3)
    texts = sentences(N_TEXTS)
    padded = tokenizer(texts, padding="max_length", max_length=16)
    rows = {"text": texts, **padded}
    _, observation, _ = observe(model, rows, tokenizer)
    plain = observe(model, {"text": texts}, tokenizer)[1]
    torch.testing.assert_close(observation.probs, plain.probs)
    cut = {"text": texts, **tokenizer(texts, truncation=True, max_length=4)}
    refused(
        "reads the column 'input_ids', which has 4 values for text 0",
        observe,
        model,
        cut,
        tokenizer,
    )
    reversed_texts = [" ".join(reversed(text.split())) for text in texts]
    other = {"text": texts, **tokenizer(reversed_texts)}
    refused("the column 'input_ids' of text 0 differs from", observe, model, other, tokenizer)


def test_columns_that_cannot_be_passed_are_refused(tokenizer, layout_model, documents):
    model = tiny_models.bert(tokenizer, num_labels=3)
    positions = [{"text": text, "position_ids": [0, 1]} for text in sentences(2)]
    refused("this model also reads position_ids, but", observe, model, positions, tokenizer)
    short = [{**documents[0], "bbox": documents[0]["bbox"][:2]}]
    refused(
        "reads the column 'bbox', which has 2 values for text 0",
        observe,
        layout_model,
        short,
        tokenizer,
    )
    words = [{"text": text, "bbox": "here"} for text in sentences(2)]
    refused("must contain numbers", observe, layout_model, words, tokenizer)
    choice = tiny_models.bert(tokenizer, kind=BertForMultipleChoice)
    rows = [
        {"text": "who", "choices": ["good", "film"], "token_type_ids": [0], "position_ids": [1]}
    ]
    refused("this model also reads position_ids, but", observe, choice, rows, tokenizer)


def test_tokenizers_that_need_boxes_are_refused(layout_model, documents, tokenizer):
    class LayoutTokenizer(type(tokenizer)):
        def __call__(self, text, text_pair=None, boxes=None, **options):
            raise ValueError("You must provide corresponding bounding boxes")

    boxed = LayoutTokenizer(tokenizer_object=tokenizer.backend_tokenizer, pad_token="[PAD]")
    boxed.model_max_length = 64
    refused("LayoutTokenizer reads words together with their boxes", tokenize, boxed, None, None)
    for kind in (LayoutLMv2Tokenizer, LayoutLMv3Tokenizer):
        assert "boxes" in inspect.signature(kind.__call__).parameters


def test_the_values_belong_to_the_identity_of_texts_and_data(layout_model, documents, tokenizer):
    other = [{**row, "bbox": [[1, 2, 3, 4]] * len(row["tokens"])} for row in documents]
    first, second = (observe(layout_model, rows, tokenizer) for rows in (documents, other))
    assert not first[1].batch.identities.eq(second[1].batch.identities).any()
    fingerprints = [compute_dataset_fingerprint(examples) for _, _, examples in (first, second)]
    assert fingerprints[0] != fingerprints[1]
    assert read_column(first[2], "text") == read_column(second[2], "text")


def test_a_model_without_its_boxes_is_warned_about(layout_model, documents, tokenizer, caplog):
    rows = [{"tokens": row["tokens"]} for row in documents]
    with caplog.at_level(logging.WARNING):
        observe(layout_model, rows, tokenizer)
    assert (
        "LayoutLMForSequenceClassification also reads bbox, but the data has no such" in caplog.text
    )
    caplog.clear()
    explain_text(layout_model, tokenizer, "good film")
    assert "also reads bbox, which a single text does not have" in caplog.text


@pytest.mark.slow
def test_an_audit_of_documents(layout_model, documents, tokenizer):
    report = audit(layout_model, documents, tokenizer=tokenizer, progress=False)
    frame = report.to_pandas()
    predictions = frame[(frame.test == "prediction") & (frame.statistic == "probability")]
    for example_id, value in predictions.set_index("example_id").value.items():
        row = documents[example_id]
        own = call_layout_model(layout_model, tokenizer, row["tokens"], row["bbox"])
        assert value == pytest.approx(float(own.max()), abs=1e-5)
