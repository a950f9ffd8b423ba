"""``pipeline("attention-explain")`` and the functions behind the Space's app."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
from transformers.pipelines import check_task

from hf_attnprobe import Answers, audit, wrap
from hf_attnprobe import explain as explain_answer
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.inference.answers import prepare_prompts
from hf_attnprobe.integrations.pipeline import CAUTION, TextExplainer, explain_html, explain_text
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.error_messages import refused, refuses
from tests.reports.test_head_sentences import pair_tokenizer, question, sentences


@pytest.fixture(scope="module")
def explain(make_checkpoint):
    return pipeline("attention-explain", model=str(make_checkpoint()))


@pytest.fixture(scope="module")
def bert():
    tokenizer = pair_tokenizer()
    return tiny_models.bert(tokenizer, **tiny_models.HEADS["classes"]), tokenizer


def numbers_of_audit(model, rows, tests, site):
    """The rows of an audit at one site, by statistic and text."""
    report = audit(model, rows, tests, progress=False)
    found = report.to_pandas()
    found = found[(found.layer == site[0]) & (found["head"] == site[1])]
    return report, found.pivot_table(index="example_id", columns="statistic", values="value")


def test_the_numbers_are_those_of_the_tests(explain, make_checkpoint, texts):
    rows = [{"example_id": k, "text": text} for k, text in enumerate(texts[:4])]
    report, found = numbers_of_audit(make_checkpoint(), rows, ["correlation"], (0, 0))
    by_id = {text.example_id: text for text in report.examples}
    for k, result in enumerate(explain(texts[:4])):
        assert result["tokens"] == list(by_id[k].tokens)
        for name, scores in by_id[k].scores.items():
            assert result[name] == pytest.approx(scores)
        tau = kendalltau(result["attention"], np.abs(result["gradient"])).statistic
        assert tau == pytest.approx(found.attention_gradient_tau[k])
        assert result["caution"] == CAUTION
        assert json.loads(json.dumps(result)) == result


def test_one_text_several_and_batches_are_the_same(explain, texts):
    alone = [explain(text)[0] for text in texts[:3]]
    assert alone == explain(texts[:3]) == explain(texts[:3], batch_size=2)


def test_predictions_are_those_of_text_classification(make_checkpoint, explain, texts):
    classify = pipeline("text-classification", model=str(make_checkpoint()))
    for text, result in zip(texts[:3], explain(texts[:3]), strict=True):
        (expected,) = classify(text)
        assert result["prediction"] == expected["label"]
        assert result["probability"] == pytest.approx(expected["score"], abs=1e-5)


def test_pairs_are_read_as_an_audit_reads_them(bert):
    model, tokenizer = bert
    explain = pipeline("attention-explain", model=model, tokenizer=tokenizer)
    first, second = sentences(2)
    (result,) = explain({"text": first, "text_pair": second})
    assert result["tokens"] == first.split() + second.split()
    rows = [{"example_id": 0, "premise": first, "hypothesis": second}]
    _, found = numbers_of_audit(bert, rows, ["correlation"], (-1, -1))
    told = kendalltau(result["attention"], np.abs(result["leave_one_out"])).statistic
    assert told == pytest.approx(found.attention_leave_one_out_tau[0], abs=1e-6)
    assert result["attention_of"].startswith("the mean of all")


@pytest.mark.parametrize("kind", ["labels", "number", "span", "choice"])
def test_other_heads_are_explained(kind):
    tokenizer, text = pair_tokenizer(), sentences(1)[0]
    model = tiny_models.bert(tokenizer, **tiny_models.HEADS[kind])
    explain = pipeline("attention-explain", model=model, tokenizer=tokenizer)
    given = {"text": text}
    if kind == "span":
        given["text_pair"] = question(text)["context"]
    if kind == "choice":
        given["choices"] = ["a film", "the dull plot"]
    (result,) = explain(given)
    assert result["prediction"]
    assert len(result["leave_one_out"]) == len(result["tokens"])


def test_what_is_no_text_is_one_line(explain):
    for bad in ({"txt": "a"}, 3, "  ", {"text": "a", "labels": 1}):
        refused("the text is empty" if bad == "  " else "expected a text", explain, bad)
    refused("has no options", explain.__class__, explain.model, explain.tokenizer, top_k=2)


def test_the_pipeline_is_known_by_name_and_imported_when_it_is_used():
    name, entry, _ = check_task("attention-explain")
    assert name == "attention-explain"
    assert entry["impl"] == "hf_attnprobe.integrations.pipeline.AttentionExplainPipeline"


def test_text_and_page_of_a_loaded_model(make_checkpoint, texts):
    folder = make_checkpoint()
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shown = explain_text(model, tokenizer, texts[0])
    assert shown == TextExplainer(model, tokenizer).explain(texts[0])
    html = explain_html(model, tokenizer, f"<script>alert(1)</script> {texts[0]}")
    named = {"text": f"<script>alert(1)</script> {texts[0]}"}
    assert explain_html(model, tokenizer, named) == html
    with pytest.raises(
        AttnProbeError, match="the key 'text' and optionally 'text_pair' or 'choices'"
    ):
        explain_html(model, tokenizer, {"text": "a", "question": "b"})
    assert "<script" not in html and 'class="ranking"' in html
    assert CAUTION in html


def test_the_page_takes_what_the_pipeline_takes(bert):
    model, tokenizer = bert
    first, second = sentences(2)
    explainer = TextExplainer(model, tokenizer)
    asked = {"text": first, "text_pair": second}
    assert explainer.render_html(asked) == explainer.render_html(first, second)
    assert explainer.explain(asked) == explainer.explain(first, second)
    refused(
        "the key 'text' and optionally 'text_pair' or 'choices'",
        explainer.render_html,
        {"text": first, "second": second},
    )


# --- answers of language models ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def speaker():
    tokenizer = tiny_language_models.tokenizer()
    return tiny_language_models.llama(tokenizer), tokenizer


ASKED = {"context": tiny_language_models.PASSAGE, "question": "Where does Bob live?"}


def test_an_answer_is_explained_as_an_audit_explains_it(speaker):
    model, tokenizer = speaker
    given = ASKED | {"answer": "Oslo"}
    shown = explain_answer(model, tokenizer, **given)
    report = audit(speaker, Answers([given]), progress=False)
    # Only an audit measures the noise of a unit.
    same = {"scores": report.examples[0].scores, "noise": report.examples[0].noise}
    assert replace(report.examples[0], why="") == replace(shown, **same)
    for name, values in report.examples[0].scores.items():
        assert shown.scores[name] == pytest.approx(values, abs=1e-6)
    assert [unit["text"] for unit in shown.units] == [*shown.tokens] and len(shown.tokens) == 4


def test_without_an_answer_the_models_own_is_explained(speaker):
    shown = explain_answer(*speaker, **ASKED, units="word")
    assert shown.is_greedy and shown.predicted
    assert len(shown.tokens) == len(ASKED["context"].split())


@torch.no_grad()
def test_a_part_of_an_answer_is_explained_given_what_stands_before_it(speaker):
    """By hand: without a sentence, the log-probability of the part's tokens alone."""
    model, tokenizer = speaker
    shown = explain_answer(*speaker, **ASKED, answer="Bob lives in Oslo, not Rome", span="Oslo")
    data = Answers([ASKED | {"answer": "Bob lives in Oslo, not Rome"}])
    row = prepare_prompts(data.load_examples(), data, tokenizer, wrap(model), model)[0]
    n_prompt = row["labelled"].index(1)
    said = [tokenizer.decode(row["input_ids"][n_prompt:k]) for k in range(n_prompt, 200)]
    first = n_prompt + next(k for k, text in enumerate(said) if len(text) > 13) - 1
    behind = n_prompt + next(k for k, text in enumerate(said) if len(text) >= 17)
    tokens = [*zip(row["unit_ids"], row["input_ids"], strict=True)][:behind]

    def log_prob(without):
        ids = [token for unit, token in tokens if unit != without]
        rows, wanted = slice(-(behind - first) - 1, -1), ids[-(behind - first) :]
        logits = model(torch.tensor([ids])).logits[0, rows].double().log_softmax(-1)
        return float(logits[range(len(wanted)), wanted].sum())

    assert shown.predicted == "Oslo"
    for number, unit in enumerate(shown.units):
        lost = log_prob(None) - log_prob(number)
        assert unit["leave_one_out"] == pytest.approx(lost, abs=1e-5)
    by_place = explain_answer(*speaker, **ASKED, answer="Bob lives in Oslo", span=(13, 17))
    assert by_place.scores == shown.scores
    apart = {"answer": "Bob lives in Oslo, not Rome", "other": "Bob lives in Rome", "span": "not"}
    refused(
        "the answer and the other answer have the same words in the span",
        explain_answer,
        *speaker,
        **ASKED,
        **apart,
    )


@torch.no_grad()
def test_an_answer_is_explained_against_another_one(speaker):
    """By hand: its lead is the difference of logits where the answers part."""
    model, tokenizer = speaker
    shown = explain_answer(*speaker, **ASKED, answer="Oslo", other="Rome")
    data = Answers([ASKED | {"answer": "Oslo", "other": "Rome"}])
    row = prepare_prompts(data.load_examples(), data, tokenizer, wrap(model), model)[0]
    place = next(k for k, token in enumerate(row["other_ids"]) if token >= 0)
    own, other = row["input_ids"][place], row["other_ids"][place]
    tokens = [*zip(row["unit_ids"], row["input_ids"], strict=True)][:place]

    def lead(without):
        ids = [token for unit, token in tokens if unit != without]
        logits = model(torch.tensor([ids])).logits[0, -1]
        return float(logits[own] - logits[other])

    lost = [lead(None) - lead(number) for number in range(4)]
    assert [unit["contrast"] for unit in shown.units] == pytest.approx(lost, abs=1e-5)
    most = lost.index(max(lost)) + 1
    assert (
        f"Its margin over the other answer depends most on sentence {most} ("
        in shown.importance_summary
    )
    assert "margin" in str(shown)
    assert "contrast" not in explain_answer(*speaker, **ASKED, answer="Oslo").scores


def test_the_pipeline_explains_answers(speaker):
    model, tokenizer = speaker
    explains = pipeline("attention-explain", model=model, tokenizer=tokenizer)
    (found,) = explains(ASKED | {"answer": "Oslo"})
    shown = explain_answer(model, tokenizer, **ASKED, answer="Oslo")
    assert found["tokens"] == [*shown.tokens] and found["rests_on"] == shown.importance_summary
    assert found["leave_one_out"] == [*shown.scores["leave_one_out"]]
    json.dumps(found)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Where does Bob live?", "a language model needs a dict with the keys 'context'"),
        ({"text": "Bob."}, "a language model needs a dict with the keys 'context'"),
        (ASKED | {"anwser": "Oslo"}, "did you mean answer?"),
        (
            ASKED | {"answer": "Oslo", "span": "Rome"},
            "the answer 'Oslo' does not contain the span 'Rome'",
        ),
        (ASKED | {"context": "Bob lives in Oslo."}, "consist of a single sentence"),
    ],
)
def test_what_is_no_question_is_said_in_one_line(speaker, given, said):
    model, tokenizer = speaker
    with refuses() as caught:
        pipeline("attention-explain", model=model, tokenizer=tokenizer)(given)
    assert said in str(caught.value)


def test_a_classifier_answers_no_question(bert):
    refused("expected a language model", explain_answer, *bert, **ASKED)
