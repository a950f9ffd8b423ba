"""The metric of evaluate: its values are those of an audit, in the order of the texts."""

import json
import math

import evaluate
import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

import hf_attnprobe
from hf_attnprobe import Answers, AttnProbeError, AuditOptions, audit
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.audit_by_name import DEFAULT_TESTS
from tests.helpers.bag_models import GatedAdapter, GatedPooling, make_bags, set_key_weights
from tests.helpers.error_messages import refuses
from tests.helpers.planted_images import PlantedImageProcessor, make_rows, make_vit


TESTS = ["correlation", "permutation"]
PROMPT = {"context": "A", "question": "A"}
ANSWERS = {"faithfulness", "faithfulness_ci95", "answer", "n", "findings"}


@pytest.fixture(scope="module")
def metric():
    return evaluate.load(hf_attnprobe.get_metric_path())


def plain(value):
    """Only what json keeps as it is."""
    if isinstance(value, dict):
        return all(type(key) is str and plain(v) for key, v in value.items())
    if type(value) is list:
        return all(map(plain, value))
    return value is None or type(value) in (float, int, str, bool)


def numbers(found):
    """Without the answers, which also depend on what labels are known."""
    return {k: v for k, v in found.items() if k not in ANSWERS}


@pytest.mark.parametrize("references", [None, [0, 1] * 4])
def test_values_are_those_of_audit_in_the_order_of_the_texts(references, metric, checkpoint, texts):
    chosen = texts[7::-1]  # of different lengths, so that batching reorders them
    found = metric.compute(
        predictions=chosen, references=references, model_id=str(checkpoint), tests=TESTS, seed=3
    )
    data = [{"example_id": k, "text": text} for k, text in enumerate(chosen)]
    rows = audit(checkpoint, data, TESTS, options=AuditOptions(seed=3), progress=False).to_pandas()
    names = set()
    for (test, statistic), group in rows[rows.test != "prediction"].groupby(["test", "statistic"]):
        values, name = group.sort_values("example_id").value.tolist(), f"{test}_{statistic}"
        assert found[name] == pytest.approx(values, rel=1e-9, abs=1e-9)
        expected = np.mean(values)
        assert found[f"mean_{test}_{statistic}"] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        names |= {f"{test}_{statistic}", f"mean_{test}_{statistic}"}
    assert found.keys() == names | ANSWERS
    assert plain(found)
    assert json.loads(json.dumps(found)) == found


def test_a_model_as_an_object_with_its_tokenizer(metric, checkpoint, tokenizer, texts):
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    given = {"predictions": texts[:4], "tests": ["adversarial"]}
    expected = metric.compute(**given, model_id=str(checkpoint))
    assert metric.compute(**given, model=model, tokenizer=tokenizer) == expected
    assert metric.compute(**given, model=model) == expected  # it knows where it came from
    with pytest.raises(AttnProbeError, match="needs a tokenizer"):
        model.name_or_path = ""
        metric.compute(**given, model=model)


def test_all_tests_by_default_and_options_of_audit(metric, checkpoint, texts):
    found = metric.compute(
        predictions=texts[:3],
        model_id=str(checkpoint),
        tests={"default": {}, "permutation": {"n_permutations": 7}},
        batch_size=1,
    )
    assert all(any(name.startswith(f"mean_{test}_") for name in found) for test in DEFAULT_TESTS)


def test_texts_without_a_value_are_nan_and_in_no_mean(metric, checkpoint, texts):
    predictions = [texts[0], "", "superb", texts[1]]
    found = metric.compute(predictions=predictions, model_id=str(checkpoint), tests=TESTS)
    taus = found["correlation_attention_gradient_tau"]
    assert [math.isnan(tau) for tau in taus] == [False, True, True, False]
    expected = (taus[0] + taus[3]) / 2
    assert found["mean_correlation_attention_gradient_tau"] == pytest.approx(expected)
    changes = found["permutation_median_tvd"]
    assert [math.isnan(change) for change in changes] == [False, True, False, False]
    assert changes[2] == 0
    assert plain(found)


@pytest.mark.parametrize("is_given", [True, False])
def test_passages_with_questions_are_those_of_audit(is_given, metric, tmp_path):
    chat = tiny_language_models.tokenizer()
    folder = tiny_models.saved(tmp_path / "speaker", tiny_language_models.llama(chat), chat)
    keys = ("context", "question", "answer") if is_given else ("context", "question")
    asked = [{key: row[key] for key in keys} for row in tiny_language_models.ROWS]
    found = metric.compute(predictions=asked, model_id=str(folder), seed=3)
    expected = audit(folder, Answers(asked), options=AuditOptions(seed=3), progress=False)
    rows = expected.to_pandas()
    for name in ("contextual_gain", "answer_is_greedy", "source_found@attention"):
        own = rows[(rows.test == "sources") & (rows.statistic == name)]
        values = own.sort_values("example_id").value.tolist()
        assert found[f"sources_{name}"] == pytest.approx(values, nan_ok=True)
    assert found["answer"] == "cannot say"
    assert [f["rule"] for f in found["findings"]] == [f.rule for f in expected.findings]
    own_answers = found["sources_answer_is_greedy"]
    assert is_given or own_answers == [1.0, 1.0]


def test_texts_added_bit_by_bit_as_arrays_and_in_combinations(metric, checkpoint, texts):
    options = {"model_id": str(checkpoint), "tests": ["permutation"]}
    given = {"predictions": texts[:3], "references": [0, 1, 0]}
    expected = metric.compute(**given, **options)
    assert expected["answer"] == "cannot say"  # three texts
    assert [f["rule"] for f in expected["findings"]] == ["accuracy", "effect"]
    arrays = {name: np.array(values) for name, values in given.items()}
    assert metric.compute(**arrays, **options) == expected
    assert evaluate.combine([metric]).compute(**given, **options) == expected
    metric.add_batch(predictions=texts[:1])
    metric.add_batch(predictions=texts[1:2], references=[1])
    metric.add(prediction=texts[2])
    assert numbers(metric.compute(**options)) == numbers(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either model_id or model"),
        ({"model_id": "x", "model": object()}, "either model_id or model"),
        ({"model_id": "{checkpoint}", "tests": ["permutations"]}, "did you mean permutation?"),
        ({"model_id": "{checkpoint}", "references": [0, 5]}, "label"),
        ({"model_id": "{checkpoint}", "predictions": []}, "split 'test' is empty"),
        ({"model_id": "{checkpoint}", "predictions": ["", " "]}, "got none in 2 texts"),
        (
            {"model_id": "{checkpoint}", "predictions": "a text"},
            "must be a list of texts, got a single string",
        ),
        (
            {"model_id": "x", "predictions": [PROMPT, PROMPT | {"answer": "A"}]},
            "'question', 'answer'",
        ),
        (
            {"model_id": "no/such/folder"},
            "expected a model at no/such/folder",
        ),
    ],
)
def test_bad_input_and_the_metric_still_works_after_it(
    arguments, message, metric, checkpoint, texts
):
    arguments = {
        k: v.format(checkpoint=checkpoint) if k == "model_id" else v for k, v in arguments.items()
    }
    with refuses(message):
        metric.compute(**{"predictions": texts[:2]} | arguments)
    assert metric.compute(predictions=texts[:1], model_id=str(checkpoint), tests="permutation")


def test_references_may_be_names(metric, checkpoint, texts):
    """Names, their numbers and a mixture with unknown labels are read alike in every call."""
    settings = {"model_id": str(checkpoint), "tests": ["permutation"], "summary": True}
    names, chosen = ["positive", None, "negative", "positive"], texts[:4]
    found = metric.compute(predictions=chosen, references=[1, None, 0, 1], **settings)
    assert metric.compute(predictions=chosen, references=names, **settings) == found
    for text, name in zip(chosen, names, strict=True):
        metric.add(prediction=text, reference=name)
    assert metric.compute(**settings) == found


@pytest.mark.parametrize(
    ("references", "expected"),
    [
        (["happy", "unhappy"], "has the labels 'happy', 'unhappy', but the model predicts"),
        (
            ["positive", 1],
            r"references\[1\] is 1, but other labels show that it should be the name",
        ),
        ([[0], "positive"], r"references\[1\] is 'positive', but"),
        ("ab", "references must be a list of labels, got a single string"),
    ],
)
def test_references_that_are_no_labels_of_the_model(references, expected, metric, checkpoint):
    with refuses(expected):
        metric.compute(predictions=["a", "b"], references=references, model_id=str(checkpoint))


def test_an_unknown_number_is_not_minus_one(metric, monkeypatch):
    """For a regression model, −1 is a number like any other, so it cannot mark an unknown label."""
    labels = []

    def record(model, examples, *arguments, **settings):
        labels.extend(example["label"] for example in examples)
        raise AttnProbeError("recorded")

    monkeypatch.setattr(hf_attnprobe, "audit", record)
    with refuses("recorded"):
        metric.compute(predictions=["a", "b", "c"], references=[0.5, None, -1.0], model_id="model")
    assert labels == [0.5, pytest.approx(math.nan, nan_ok=True), -1.0]


def test_later_references_have_the_type_of_earlier_ones(metric):
    metric.add_batch(predictions=["a"], references=["positive"])
    with refuses("have another type than the labels that were added before"):
        metric.add_batch(predictions=["b"], references=[1])
    metric.writer = None


def test_bags_of_instances(metric):
    """The results are those of an audit, and other dicts are refused."""
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    rows = make_bags(12, 0)
    bags = [{"features": row["features"]} for row in rows]
    settings = {"model": adapter, "tests": ["permutation"], "unit": "visit"}
    result = metric.compute(predictions=bags, references=[row["label"] for row in rows], **settings)
    report = hf_attnprobe.audit(adapter, rows, "permutation", progress=False)
    frame = report.to_pandas()
    expected = frame[frame.statistic == "median_tvd"].sort_values("example_id").value
    assert result["permutation_median_tvd"] == pytest.approx(expected.tolist())
    assert adapter.unit == "visit"
    with refuses("with 'features', 'items' or 'image'"):
        metric.compute(predictions=[{"patches": [[1.0]]}], **settings)


def test_images(metric):
    """The results are those of an audit with the same image processor."""
    model, processor = make_vit(0).eval(), PlantedImageProcessor()
    rows, _ = make_rows(6, 1)
    result = metric.compute(
        predictions=[{"image": row["image"]} for row in rows],
        references=[row["label"] for row in rows],
        model=model,
        tokenizer=processor,
        tests=["permutation"],
        single_heads=False,
    )
    options = AuditOptions(single_heads=False)
    settings = {"options": options, "tokenizer": processor, "progress": False}
    frame = audit(model, rows, "permutation", **settings).to_pandas()
    is_model = (frame.statistic == "median_tvd") & (frame.layer == -1)
    expected = frame[is_model].sort_values("example_id").value.tolist()
    assert result["permutation_median_tvd_layer-1_head-1"] == pytest.approx(expected)
