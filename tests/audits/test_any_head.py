"""Pairs and every other head: results that depend on nothing else, and bad input in one line."""

import itertools
import random

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    NystromformerConfig,
    NystromformerForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetForQuestionAnswering,
    XLNetForQuestionAnsweringSimple,
)

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttnProbeError,
    AuditOptions,
    Correlation,
    Data,
    Permutation,
    audit,
)
from tests.helpers import tiny_models
from tests.helpers.compare_rows import assert_same_rows
from tests.helpers.error_messages import refuses
from tests.reports.test_head_sentences import pair_tokenizer, question, sentences


TEXTS = sentences(8)
SHUFFLED = ("correlation", Permutation(n_permutations=4))
HEADS = tiny_models.HEADS
DATA = {
    "classes": [
        {"premise": text, "hypothesis": TEXTS[k - 1], "label": k % 3}
        for k, text in enumerate(TEXTS)
    ],
    "labels": [{"text": t, "labels": [0, 2] if k % 2 else [2]} for k, t in enumerate(TEXTS)],
    "number": [{"text": t, "label": k / 3} for k, t in enumerate(TEXTS)],
    "tags": [
        {"tokens": t.split(), "ner_tags": [k % 2 for k in range(len(t.split()))]} for t in TEXTS
    ],
    "span": [question(text) for text in TEXTS],
    "choice": [
        {"text": t, "choices": ["a film", "the dull plot", "ben"], "label": k % 3}
        for k, t in enumerate(TEXTS)
    ],
    "words": [{"text": f"[MASK] {t.split(' ', 1)[1]}", "label": t.split()[0]} for t in TEXTS],
}


@pytest.fixture(scope="module")
def tokenizer():
    return pair_tokenizer()


@pytest.fixture(scope="module")
def model_of(tokenizer):
    """A model of each head, made once."""
    models = {}

    def get(head):
        if head not in models:
            models[head] = tiny_models.bert(tokenizer, **HEADS[head])
        return models[head]

    return get


@pytest.fixture
def rows_of(model_of, tokenizer):
    def run(head, data, tests=SHUFFLED, **options):
        folder = options.pop("output_dir", None)
        settings = {"single_heads": False, "prune": False} | options
        given = {"options": AuditOptions(**settings), "output_dir": folder, "progress": False}
        return audit((model_of(head), tokenizer), data, list(tests), **given).to_pandas()

    return run


def numbered(rows):
    return [{"example_id": 50 - k, **row} for k, row in enumerate(rows)]


@pytest.mark.parametrize("head", tiny_models.daily(HEADS, ("labels", "tags", "span")))
def test_batches_padding_and_order_change_nothing(rows_of, head):
    rows = numbered(DATA[head][:5])
    expected = rows_of(head, rows)
    shuffled = random.Random(1).sample(rows, len(rows))
    assert_same_rows(rows_of(head, shuffled, batch_size=1), expected, tolerance=1e-4)


def changed(head, **columns):
    """The head's data with other columns, values or functions of number and row."""
    rows = []
    for k, row in enumerate(DATA[head]):
        new = {n: v(k, row) if callable(v) else v for n, v in columns.items()}
        rows.append({n: v for n, v in {**row, **new}.items() if v != "left out"})
    return rows


def spans(**columns):
    return changed("span", answers="left out", **columns)


LONG = " ".join(["film"] * 60)
UNREAD = changed("tags", ner_tags=lambda k, row: [-100 * (k == 3)] * len(row["tokens"]))
TWO_CHOICES = changed("choice", choices=lambda k, row: row["choices"][: 3 - (k == 4)])
BAD = [
    # pairs
    (
        "classes",
        changed("classes", premise="", hypothesis=""),
        {},
        "got none in 8 texts",
    ),
    ("classes", changed("number"), {"segment": "text_pair"}, "single texts"),
    ("classes", DATA["choice"], {}, "the data has a column of choices"),
    # options that mean nothing for the head
    (
        "classes",
        DATA["classes"],
        {"threshold": 0.5},
        "this model has 3 classes. Leave threshold out",
    ),
    (
        "classes",
        DATA["classes"],
        {"predicts": "number"},
        "predicts='number' needs a model with one logit",
    ),
    ("tags", DATA["tags"], {"predicts": "number"}, "is for another task"),
    ("span", DATA["span"], {"threshold": 1.0}, "threshold is only for"),
    ("choice", DATA["choice"], {"target": 5}, "from 0 to 2, got 5"),
    ("span", DATA["span"], {"target": 0}, "this model has no classes"),
    ("classes", DATA["classes"], {"target": -1}, "from 0 to 2, got -1"),
    # labels of another kind
    ("classes", DATA["number"], {}, "expected one class per text"),
    ("classes", DATA["labels"], {}, "text 0 has several labels"),
    ("classes", changed("classes", label=-7), {}, "labels must be numbers from 0 to"),
    ("labels", DATA["classes"], {}, "expected a list of the labels that apply"),
    ("labels", changed("labels", labels=[0, 7]), {}, "text 0 has the label 7"),
    ("labels", changed("labels", labels=lambda k, row: [0] * (k + 1)), {}, "masks of 0 and 1"),
    ("labels", changed("labels", labels=["toxic", "odd"]), {}, "text 0 has the label 'odd'"),
    ("number", changed("number", label="good"), {}, "expected numbers as labels"),
    ("number", DATA["labels"], {}, "expected a number as label"),
    ("number", changed("number", label=1.5), {}, "missing or all equal"),
    ("tags", DATA["classes"], {}, "one label for the whole text"),
    (
        "tags",
        changed("tags", ner_tags=[0] * 9),
        {},
        "row 0 has 7 words and 9 labels",
    ),
    ("tags", changed("tags", ner_tags=lambda k, r: ["X"] * len(r["tokens"])), {}, "'X'"),
    ("tags", UNREAD, {}, "text 3 has none in the part that the model reads"),
    ("span", DATA["number"], {}, "expected a context for every question"),
    ("span", spans(context=""), {}, "text 0 has an empty context"),
    ("span", DATA["classes"], {}, "expected the position of the answer"),
    ("span", spans(answer_start="0", answer_end="4"), {}, "got '0' to '4'"),
    ("span", spans(answer_start=0.5, answer_end=2.5), {}, "got 0.5 to 2.5"),
    ("span", spans(answer_start=0, answer_end=999), {}, "got 0 to 999"),
    (
        "choice",
        changed("choice", label="first"),
        {},
        "the label 'first' in row 0 is not one of the choices",
    ),
    (
        "choice",
        changed("choice", label=7),
        {},
        "0 to 2, or -1 if there is no label), but text 0 has 7",
    ),
    ("choice", changed("choice", label=0.5), {}, "text 0 has the label 0.5"),
    ("choice", TWO_CHOICES, {}, "text 4 has 2"),
    ("choice", DATA["classes"], {}, "needs a column 'choices'"),
    ("words", DATA["number"], {}, "has the label 0.0"),
    ("words", changed("words", text="a film"), {}, "text 0 has none. Replace the word to predict"),
    ("words", changed("words", text="[MASK] film [MASK]"), {}, "text 0 has 2"),
    ("words", changed("words", label=1), {}, "text 0 has the number 1"),
]


def test_bad_input_is_one_line(rows_of, tmp_path):
    for head, data, options, message in BAD:
        options = dict(options)
        target = options.pop("target", None)
        tests = ["correlation" if target is None else Correlation(target=target)]
        with pytest.raises(AttnProbeError) as error:
            rows_of(head, data, tests, output_dir=tmp_path / "out", **options)
        line = str(error.value)
        assert message in line and "\n" not in line, (head, message)
    assert not (tmp_path / "out").exists()
    for name, number in itertools.product(("threshold", "scale"), (float("nan"), float("inf"))):
        with pytest.raises(AttnProbeError, match=name):
            AuditOptions(**{name: number})


def test_columns_that_are_not_there():
    with pytest.raises(AttnProbeError, match="no column 'conclusion'"):
        Data(DATA["classes"], text_pair_column="conclusion").load_examples(seed=0)
    with pytest.raises(AttnProbeError, match="must be in different columns"):
        same = {"text_column": "premise", "text_pair_column": "premise"}
        Data(DATA["classes"], **same).load_examples(seed=0)


def test_labels_that_the_data_does_not_name_are_not_known(rows_of):
    """Of three labels the data has columns for two: the third counts neither way."""
    rows = [{"text": t, "toxic": k % 2, "rude": 1} for k, t in enumerate(TEXTS)]
    both = rows_of("labels", Data(rows, label_column=["toxic", "rude"]), ["correlation"])
    found = both[both.statistic == "correct"].value
    assert found.isin([0, 0.5, 1]).all()  # shares of two, not of three


def test_an_answer_that_was_cut_off_is_not_known(rows_of):
    """The answer's first words are read, its last are not."""
    context = f"{LONG} good plot"
    at = len(" ".join(["film"] * 30))
    whole = {"question": "who", "context": context, "answer_start": 0, "answer_end": 4}
    cut = {**whole, "answer_start": at + 1, "answer_end": len(context)}
    rows = rows_of("span", [whole, cut], ["correlation"])
    found = rows[rows.statistic == "correct"].sort_values("example_id").value
    assert found.notna().tolist() == [True, False]


def test_the_right_choice_by_text_or_number(rows_of):
    expected = rows_of("choice", DATA["choice"], ["correlation"])
    for name in (lambda k, row: row["choices"][row["label"]], lambda k, row: str(row["label"])):
        assert_same_rows(
            rows_of("choice", changed("choice", label=name), ["correlation"]), expected
        )


def test_a_word_beyond_the_likeliest_is_another_decision(model_of, tokenizer):
    """The mass of all other words together is no decision; the next word is one."""
    about = audit_prediction(model_of("words"), tokenizer)
    n = about.n_outcomes
    probs = torch.full((3, n), 0.0).double()
    probs[0, [0, n - 1]] = torch.tensor([0.2, 0.8]).double()
    probs[1, [0, n - 2]] = torch.tensor([0.3, 0.7]).double()
    probs[2, 0] = 1.0
    assert about.decide(probs)[:, 0].tolist() == [0, n - 2, 0]
    assert about.has_flipped(probs[0], probs[1]) and not about.has_flipped(probs[0], probs[2])


def audit_prediction(model, tokenizer):
    from hf_attnprobe.adapters import wrap

    return wrap(model, mask_id=tokenizer.mask_token_id).prediction


NARROW = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NARROW["intermediate_size"] = 24
OTHERS = {
    "causal": lambda n: GPT2LMHeadModel(GPT2Config(vocab_size=n, n_embd=16, n_layer=1, n_head=2)),
    "text to text": lambda n: T5ForConditionalGeneration(
        T5Config(vocab_size=n, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    ),
    "beam search": lambda n: XLNetForQuestionAnswering(
        XLNetConfig(vocab_size=n, d_model=16, n_layer=1, n_head=2, d_inner=16)
    ),
    "depends on padding": lambda n: NystromformerForSequenceClassification(
        NystromformerConfig(
            vocab_size=n,
            pad_token_id=0,
            initializer_range=0.3,
            max_position_embeddings=40,
            **NARROW,
        )
    ),
}


def test_models_that_are_not_covered(tokenizer):
    for kind, make in OTHERS.items():
        torch.manual_seed(0)
        model = make(len(tokenizer)).eval()
        data = DATA["span"] if kind == "beam search" else [*TEXTS, " ".join(TEXTS[:4])]
        with refuses(longest=400) as error:
            audit((model, tokenizer), data, ["correlation"], progress=False)
        assert ("padding" in str(error.value)) == (kind == "depends on padding")
    for n_texts in (1, 3):  # all of one length; to leave a word out would pad them
        with pytest.raises(AttnProbeError, match="predictions must not depend on padding"):
            audit((model, tokenizer), TEXTS[:1] * n_texts, ["correlation"], progress=False)


def test_xlnets_answers_without_a_beam_are_audited(tokenizer, tmp_path):
    """The class that AutoModelForQuestionAnswering makes of XLNet, from a folder."""
    torch.manual_seed(0)
    config = XLNetConfig(
        vocab_size=len(tokenizer), d_model=16, n_layer=1, n_head=2, d_inner=16, pad_token_id=0
    )
    model = XLNetForQuestionAnsweringSimple(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = AuditOptions(single_heads=False, prune=False)
    report = audit(tmp_path, DATA["span"][:4], ["correlation"], options=options, progress=False)
    rows = report.to_pandas()
    found = rows[rows.statistic == "probability"].sort_values("example_id").value
    for row, probability in zip(DATA["span"], found, strict=False):
        encoded = tokenizer(row["question"], row["context"], return_tensors="pt")
        inside = torch.tensor([s == 1 for s in encoded.sequence_ids(0)])
        with torch.no_grad():
            out = model(**encoded)
        tops = [float(x[0][inside].softmax(-1).max()) for x in (out.start_logits, out.end_logits)]
        assert probability == pytest.approx(np.mean(tops), abs=1e-5)


def test_answers_that_are_no_tokens():
    sizes = {"vocab_size": 20, "query_encoder": True, "num_labels": 2}
    for ids in ([1, 1], [10**6, 1], ["rome", "paris"], [-3, 4], [1]):
        with pytest.raises(ValueError, match="answer_token_ids") as error:
            AttentionClassifierConfig(**sizes, answer_token_ids=ids)
        assert "\n" not in str(error.value)
