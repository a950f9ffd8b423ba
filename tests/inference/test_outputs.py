"""Outputs by example id, and guides aligned with the tokens of another model."""

import pytest
import torch

from hf_attnprobe import AttnProbeError, build_tokenizer, load_examples, wrap
from hf_attnprobe.inference.outputs import (
    build_guide_rows,
    get_special_ids,
    make_guide,
    predict,
    read_outputs,
)
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused


ROWS = [
    {"example_id": 31, "text": "the film was superb .", "label": 1},
    {"example_id": 4, "text": "dull", "label": 0},
    {"example_id": 17, "text": "we left the plot was not tender and rain fell .", "label": 0},
]


@pytest.fixture(scope="module")
def examples():
    return load_examples(ROWS, "test")


@pytest.fixture(scope="module")
def outputs(make_model, tokenizer, examples):
    return read_outputs(make_model(), tokenizer, examples)


@pytest.fixture(scope="module")
def one_by_one(make_model, tokenizer):
    """What the model says of each text alone."""
    model = make_model().double()
    texts = {row["example_id"]: row["text"] for row in ROWS}
    return {
        k: model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
        for k, text in texts.items()
    }


def test_outputs_are_those_of_the_model_run_on_each_text_alone(
    outputs, one_by_one, make_model, tokenizer, examples
):
    assert outputs.example_ids == (4, 17, 31)
    rows = {row["example_id"]: row for row in ROWS}
    for k, example_id in enumerate(outputs.example_ids):
        row, plain = rows[example_id], one_by_one[example_id]
        n_tokens = len(row["text"].split())
        assert outputs.mask[k].sum() == n_tokens and outputs.labels[k] == row["label"]
        assert torch.allclose(outputs.probs[k], plain.logits.softmax(-1)[0], atol=1e-9)
        weights = plain.attentions[0][0, 0, 0, 1:-1]
        assert torch.allclose(outputs.attention[k, :n_tokens], weights, atol=1e-9)
        assert (outputs.attention[k, n_tokens:] == 0).all()
    alone = read_outputs(make_model(), tokenizer, examples, batch_size=1)
    assert torch.allclose(alone.attention, outputs.attention, atol=1e-9)
    assert torch.allclose(alone.probs, outputs.probs, atol=1e-9)


def test_a_guide_stands_at_the_tokens_of_its_text(outputs, tokenizer, examples):
    ids = [tokenizer(row["text"])["input_ids"] for row in ROWS]
    special = get_special_ids(tokenizer)
    rows = build_guide_rows(make_guide(outputs), examples, ids, special)
    for row, tokens, weights in zip(ROWS, ids, rows, strict=True):
        place = outputs.example_ids.index(row["example_id"])
        assert len(weights) == len(tokens) and weights[0] == weights[-1] == 0.0
        expected = outputs.attention[place, : len(tokens) - 2].float()
        assert torch.allclose(torch.tensor(weights[1:-1]), expected)
    lacking = {k: weights for k, weights in make_guide(outputs).items() if k != 17}
    shorter = make_guide(outputs) | {31: torch.tensor([0.5, 0.5])}
    for guide, message in (
        (lacking, "does not contain text 17"),
        (shorter, "expected 5 guide weights for text 31, one per token, got 2"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            build_guide_rows(guide, examples, ids, special)
    empty = load_examples([{"example_id": 8, "text": "", "label": 0}], "test")
    assert build_guide_rows({}, empty, [tokenizer("")["input_ids"]], special) == [[0.0, 0.0]]
    assert tokenizer.unk_token_id not in special  # unknown words are words
    assert {tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id} <= special


def test_a_guided_model_reads_out_the_weights_it_is_given(make_model, tokenizer, examples, outputs):
    """Against Σ a_t h_t of the states, text by text."""
    model = make_model("mlp", "guided")
    found = predict(model, tokenizer, examples, guide=make_guide(outputs), batch_size=2)
    base = model.attention_classifier
    for k, example_id in enumerate(outputs.example_ids):
        text = next(row["text"] for row in ROWS if row["example_id"] == example_id)
        inputs = tokenizer(text, return_tensors="pt")
        states = base.encode(base.embeddings(inputs["input_ids"]), inputs["attention_mask"])[
            0, 1:-1
        ]
        context = outputs.attention[k, : len(states)].float() @ states
        assert torch.allclose(found[k].float(), model.decode(context).softmax(-1), atol=1e-6)


def test_a_guided_model_without_a_guide_says_so(make_model, tokenizer, examples):
    guided = make_model("mlp", "guided")
    with pytest.raises(ValueError, match="Pass them as guide="):
        predict(guided, tokenizer, examples)
    inputs = tokenizer("the film", return_tensors="pt")
    with pytest.raises(ValueError, match="Remove guide"):
        make_model("mlp", "additive")(**inputs, guide=torch.ones(1, 4))
    assert not list(guided.attention_classifier.attention.parameters())
    refused("uses another model's attention", wrap, guided)


def test_a_hierarchical_model_can_guide(examples, tokenizer):
    """A word has its weight in its sentence times the sentence's."""
    cutting = build_tokenizer([row["text"] for row in ROWS], sentences=True)
    model = tiny_models.classifier(cutting, encoder="bigru", hierarchical=True, sep_token_id=4)
    rows = [{"example_id": 2, "text": "the film was dull . we left . rain fell", "label": 0}]
    outputs = read_outputs(model, cutting, load_examples(rows, "test"))
    inputs = cutting(rows[0]["text"], return_tensors="pt")
    words, sentences = model(**inputs, output_attentions=True).attentions
    assert sentences.shape[-1] == 3
    per_word = (sentences[0, 0, 0][:, None] * words[0, 0]).sum(0)
    expected = per_word[
        [token not in get_special_ids(cutting) for token in inputs["input_ids"][0].tolist()]
    ]
    assert torch.allclose(outputs.attention[0].float(), expected, atol=1e-6) and len(expected) == 10
    flat = [tokenizer(rows[0]["text"])["input_ids"]]
    assert build_guide_rows(
        make_guide(outputs), load_examples(rows, "test"), flat, get_special_ids(tokenizer)
    )


@pytest.fixture(scope="module")
def pieces():
    """A tokenizer that cuts every word into letters."""
    letters = [*"abcdefghijklmnopqrstuvwxyz."]
    return tiny_models.word_pieces([*letters, *(f"##{c}" for c in letters)])


def test_the_first_head_of_a_transformer_can_guide(pieces, examples, tokenizer):
    """One weight per word: the sum over its pieces in the row of [CLS], without special tokens, summing to 1."""
    model = tiny_models.bert(pieces, attn_implementation="eager")
    outputs = read_outputs(model, pieces, examples)
    for k, example_id in enumerate(outputs.example_ids):
        text = next(row["text"] for row in ROWS if row["example_id"] == example_id)
        inputs = pieces(text, return_tensors="pt")
        attention = model(**inputs, output_attentions=True).attentions[0][0, 0, 0]
        words = torch.zeros(len(text.split()))
        for weight, word in zip(attention.tolist(), inputs.word_ids(0), strict=True):
            if word is not None:
                words[word] += weight
        assert torch.allclose(
            outputs.attention[k, : len(words)].float(), words / words.sum(), atol=1e-5
        )
    ids = [tokenizer(row["text"])["input_ids"] for row in ROWS]
    assert build_guide_rows(make_guide(outputs), examples, ids, get_special_ids(tokenizer))
