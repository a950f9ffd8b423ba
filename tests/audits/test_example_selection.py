"""The texts that an audit shows: which, why, and with which scores."""

import json
import random

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kendalltau

from hf_attnprobe import AuditOptions, Data, Report, audit
from hf_attnprobe.audits.example_selection import choose_example_ids
from hf_attnprobe.reports.report import read_audit
from hf_attnprobe.statistics.rows import Rows
from tests.audits.test_any_head import DATA
from tests.helpers import tiny_models
from tests.helpers.written_by_hand import compute_amounts, weigh_heads
from tests.reports.test_head_sentences import pair_tokenizer


SHOWN = 6
TESTS = ["correlation", "adversarial", "erasure"]


@pytest.fixture(scope="module")
def rows(reviews):
    """Ten reviews with ids that are no row numbers."""
    return [
        {"example_id": 900 - k, "text": row["text"], "label": row["label"]}
        for k, row in zip(range(10), reviews["test"], strict=False)
    ]


@pytest.fixture(scope="module")
def run(make_checkpoint):
    def audited(data, folder=None, tests=TESTS, kind=(), **options):
        options = AuditOptions(**{"shown_texts": SHOWN} | options)
        given = {"options": options, "output_dir": folder, "progress": False}
        return audit(make_checkpoint(*kind), data, tests, **given)

    return audited


@pytest.fixture
def by_hand(report, make_model, tokenizer, rows):
    """Of every shown text its token ids, its states below the read-out, and the model in double precision."""
    model = make_model().double()
    base = model.attention_classifier
    texts = {row["example_id"]: row["text"] for row in rows}
    found = []
    for shown in report[0].examples:
        ids = torch.tensor([tokenizer(texts[shown.example_id])["input_ids"]])
        special = tokenizer.get_special_tokens_mask(
            ids[0].tolist(), already_has_special_tokens=True
        )
        content = ~torch.tensor(special).bool()
        with torch.no_grad():
            states = base.encode(base.embeddings(ids), torch.ones_like(ids))[0]
        found.append((shown, ids, content, states[content]))
    return model, found


@pytest.fixture(scope="module")
def report(run, rows):
    folder = tiny_models.once("shown", lambda folder: run(rows, folder))
    return Report.load(folder), folder


def test_scores_are_those_of_the_model_run_by_hand(by_hand):
    """Attention, gradient × input by autograd, leaving out by running the shorter text."""
    model, texts = by_hand
    base = model.attention_classifier
    for shown, ids, content, _ in texts:
        mask = torch.ones_like(ids)
        with torch.no_grad():
            output = model(ids, attention_mask=mask, output_attentions=True)
        probs = output.logits.softmax(-1)[0]
        predicted = int(probs.argmax())
        assert shown.predicted == model.config.id2label[predicted]
        assert shown.probability == pytest.approx(float(probs[predicted]))
        attention = output.attentions[-1].flatten()
        assert shown.scores["attention"] == pytest.approx(attention[content].tolist())

        embeddings = base.embeddings(ids).detach().requires_grad_()
        states = base.encode(embeddings, mask)
        logits = model.decode((attention[None, :, None] * states).sum(1))
        logits.softmax(-1)[0, predicted].backward()
        product = (embeddings.grad * embeddings).sum(-1)[0][content]
        assert shown.scores["gradient"] == pytest.approx(product.tolist(), abs=1e-12)

        without = []
        for place in content.nonzero().flatten().tolist():
            shorter = torch.cat([ids[:, :place], ids[:, place + 1 :]], 1)
            with torch.no_grad():
                after = model(shorter, attention_mask=torch.ones_like(shorter))
            without.append(float(probs[predicted] - after.logits.softmax(-1)[0, predicted]))
        assert shown.scores["leave_one_out"] == pytest.approx(without, abs=1e-9)


def test_the_choice_depends_on_neither_batches_nor_order(run, report, rows):
    shuffled = [*rows]
    random.Random(0).shuffle(shuffled)
    for data, options in ((rows, {"batch_size": 1}), (shuffled, {"batch_size": 5})):
        assert run(data, **options).examples == report[0].examples


def test_texts_are_shown_for_reasons_that_the_rows_bear_out(report):
    found = (
        report[0].to_pandas().pivot_table(index="example_id", columns="statistic", values="value")
    )
    by_why = {text.why: text.example_id for text in report[0].examples}
    tau = found.attention_leave_one_out_tau[found.n_tokens >= 5].round(6)
    assert tau[by_why["attention and leave-one-out agree most"]] == tau.max()
    assert tau[by_why["attention and leave-one-out disagree most"]] == tau.min()
    shown = found.loc[[t.example_id for t in report[0].examples]]
    wrong = found[found.predicted_class != found.label]
    assert any("wrong" in t.why for t in report[0].examples) == bool(len(wrong))
    assert len(report[0].examples) == SHOWN == shown.index.nunique()


def test_ordinary_texts_are_drawn_without_regard_to_their_numbers():
    values = pd.DataFrame({"example_id": range(100), "value": 0.0})
    names = {"predicted_class": 1, "label": 1, "probability": 0.9, "n_tokens": 9}
    parts = [
        values.assign(test="prediction", statistic=n, layer=-1, head=-1, value=v)
        for n, v in names.items()
    ]
    rows = pd.concat(parts, ignore_index=True)
    chosen = choose_example_ids(Rows.coerce(rows), 5)
    assert [*chosen.values()] == ["drawn by chance"] * 5
    larger = choose_example_ids(Rows.coerce(rows), 9)
    assert chosen.keys() <= larger.keys() and len(larger) == 9
    assert choose_example_ids(Rows.coerce(rows), 0) == {}


def test_texts_are_written_and_read_again(run, rows, tmp_path):
    folder = tmp_path / "out"
    first = run(rows, folder, ["adversarial"])
    assert json.loads((folder / "texts.json").read_text())["texts"]
    assert "examples" not in json.loads((folder / "summary.json").read_text())
    assert read_audit(folder).examples == first.examples
    (folder / "texts.json").write_text("{")  # spoilt, it is made anew
    assert read_audit(folder).examples == ()
    again = run(rows, folder, ["adversarial"]).examples
    assert again == first.examples == read_audit(folder).examples


def of_heads(berts, pairs, head, rows, tests, **options):
    """An audit of a model with several heads."""
    options = AuditOptions(**{"single_heads": False, "prune": False} | options)
    return audit((berts(head), pairs), rows, tests, options=options, progress=False)


@pytest.fixture(scope="module")
def pairs():
    return pair_tokenizer()


@pytest.fixture(scope="module")
def berts(pairs):
    return lambda head: tiny_models.bert(pairs, **tiny_models.HEADS[head])


def test_every_head_of_a_transformer_has_texts(berts, pairs):
    for head in tiny_models.HEADS:
        rows = DATA[head][:4]
        report = of_heads(berts, pairs, head, rows, ["correlation"], shown_texts=3)
        strings = [json.dumps(row).lower() for row in rows]
        tau = report.to_pandas().query("layer == -1 and head == -1")
        tau = tau[tau.statistic == "attention_leave_one_out_tau"].set_index("example_id").value
        assert len(report.examples) == 3
        for text in report.examples:
            assert set(text.scores) == {"attention", "gradient", "leave_one_out"}
            assert {len(s) for s in text.scores.values()} == {len(text.tokens)}
            assert text.attention_of == "the mean of all 4 heads, weighted by what they write"
            assert any(all(t.lower() in s for t in text.tokens) for s in strings)
            assert (text.probability is None) == (head == "number")
            assert text.predicted and text.label is not None
            sizes = np.abs(text.scores["leave_one_out"])
            told = kendalltau(text.scores["attention"], sizes).statistic  # but for ties
            assert told == pytest.approx(tau[text.example_id], abs=0.1, nan_ok=True)


def test_one_head_of_many_is_named(berts, pairs):
    columns = {"text_column": "premise", "text_pair_column": "hypothesis"}
    data, tests = Data(DATA["classes"][:4], **columns), ["permutation", "head_ablation"]
    single = {"single_heads": True, "groups": False, "shown_texts": 2}
    report = of_heads(berts, pairs, "classes", data, tests, **single)
    rows = report.to_pandas()
    effects = rows[rows.statistic == "zero_tvd"].groupby(["layer", "head"]).value.mean()
    layer, head = effects.idxmax()
    most = f"the head with the largest output change: layer {layer}, head {head}"
    for text in report.examples:
        assert text.attention_of == most
        assert set(text.scores) == {"attention"}
        assert set(text.segments) == {0, 1}


def test_attention_of_a_transformer_is_the_models_own(berts, pairs):
    """The weighted mean over heads of the row of [CLS], summed over a word's pieces."""
    row = DATA["labels"][0]
    model = berts("labels")
    model.set_attn_implementation("eager")
    encoded = pairs(row["text"], return_tensors="pt")
    with torch.no_grad():
        attention = model(**encoded, output_attentions=True).attentions
    words = encoded.word_ids(0)
    is_word = torch.tensor([[word is not None for word in words]])
    head_weights = weigh_heads(compute_amounts(model, dict(encoded), is_word)[..., 0])
    weights = (torch.stack(attention)[..., 0, :] * head_weights[..., None]).sum((0, 2))[0]
    expected = [0.0] * (1 + max(word for word in words if word is not None))
    for weight, word in zip(weights.tolist(), words, strict=True):
        if word is not None:
            expected[word] += weight
    report = of_heads(berts, pairs, "labels", [row | {"example_id": 4}], ["permutation"])
    (shown,) = report.examples
    assert shown.scores["attention"] == pytest.approx(expected, abs=1e-6)
