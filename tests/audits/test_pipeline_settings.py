"""Pipelines as models: their settings are used, or refused with their names."""

import pytest
import torch
from transformers import (
    BertForMaskedLM,
    BertForTokenClassification,
    TextClassificationPipeline,
    pipeline,
)

from hf_attnprobe import audit
from hf_attnprobe.audits.audited_model import load_audited_model
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.choices import encode_examples
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.error_messages import refused
from tests.reports.test_head_sentences import pair_tokenizer, sentences


CPU = torch.device("cpu")
TEXTS = [f"{first} {second}" for first, second in zip(sentences(6), sentences(12)[6:], strict=True)]


@pytest.fixture(scope="module")
def tokenizer():
    return pair_tokenizer()


@pytest.fixture(scope="module")
def classifier(tokenizer):
    return tiny_models.bert(tokenizer, num_labels=3)


def load(audited_pipeline):
    return load_audited_model(audited_pipeline, None, AuditOptions(), CPU)


def audited_probabilities(audited_pipeline, texts):
    audited_model = load(audited_pipeline)
    examples = load_examples([{"text": text} for text in texts], "test")
    encoded = encode_examples(audited_model.tokenizer, examples, audited_model.adapter)
    return audited_model.adapter.observe(collate(audited_model.adapter, encoded.texts, 0)).probs


SETTINGS = {
    "none": {},
    "length": {"truncation": True, "max_length": 5},
    "length without truncation": {"max_length": 5},
    "truncation": {"truncation": True},
    "no truncation": {"truncation": False, "max_length": 5},
    "strategy": {"truncation": "longest_first", "max_length": 6},
    "padding": {"padding": "max_length", "max_length": 7, "truncation": True},
    "display": {"top_k": 2},
    "softmax": {"function_to_apply": "softmax"},
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", SETTINGS)
def test_an_audit_reads_what_the_pipeline_reads(name, side, tokenizer, classifier):
    settings = SETTINGS[name]
    tokenizer.truncation_side = side
    try:
        audited_pipeline = pipeline(
            "text-classification", model=classifier, tokenizer=tokenizer, **settings
        )
        probabilities = audited_probabilities(audited_pipeline, TEXTS)
        ids = classifier.config.label2id
        for text, probs in zip(TEXTS, probabilities, strict=True):
            for result in audited_pipeline([text], top_k=3)[0]:
                expected = pytest.approx(result["score"], abs=1e-5)
                assert float(probs[ids[result["label"]]]) == expected
    finally:
        tokenizer.truncation_side = "right"
    assert tokenizer.model_max_length > 1000


def test_the_accuracy_of_an_audit_is_that_of_the_pipeline(tokenizer):
    """Labels are the pipeline's own predictions, so all of them are right."""
    classifier = tiny_models.bert(tokenizer, num_labels=3, seed=2)
    short = pipeline(
        "text-classification", model=classifier, tokenizer=tokenizer, truncation=True, max_length=5
    )
    labels = [result["label"] for result in short(TEXTS)]
    whole = pipeline("text-classification", model=classifier, tokenizer=tokenizer)(TEXTS)
    assert labels != [result["label"] for result in whole]
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    frame = audit(short, rows, ["correlation"], progress=False).to_pandas()
    frame = frame[frame.test == "prediction"].pivot(
        index="example_id", columns="statistic", values="value"
    )
    assert len(frame) == len(TEXTS) and frame.label.eq(frame.predicted_class).all()


REFUSED = {
    "truncation='only_first'": {"truncation": "only_first"},
    "add_special_tokens=False": {"add_special_tokens": False},
    "stride=2": {"stride": 2, "return_overflowing_tokens": True},
    "function_to_apply='sigmoid'": {"function_to_apply": "sigmoid"},
}


@pytest.mark.parametrize("fragment", REFUSED)
def test_other_settings_are_refused_with_their_names(fragment, tokenizer, classifier):
    audited_pipeline = pipeline(
        "text-classification", model=classifier, tokenizer=tokenizer, **REFUSED[fragment]
    )
    refused(fragment, load, audited_pipeline)
    refused("pass (pipeline.model, pipeline.tokenizer)", load, audited_pipeline)


def test_zero_shot_pipelines_are_refused_with_advice_that_works(tokenizer):
    names = ("contradiction", "neutral", "entailment")
    model = tiny_models.bert(
        tokenizer,
        id2label=dict(enumerate(names)),
        label2id={name: k for k, name in enumerate(names)},
    )
    zero_shot = pipeline(
        "zero-shot-classification",
        model=model,
        tokenizer=tokenizer,
        candidate_labels=["good", "film"],
    )
    refused("with the candidate labels good, film cannot be audited directly", load, zero_shot)
    refused("Make a row with the columns premise (the text) and hypothesis", load, zero_shot)
    hypotheses = [f"This example is {label}." for label in ("good", "film")]
    rows = [
        {"premise": text, "hypothesis": hypothesis}
        for text in TEXTS[:2]
        for hypothesis in hypotheses
    ]
    audited_model = load((zero_shot.model, zero_shot.tokenizer))
    examples = load_examples(rows, "test")
    encoded = encode_examples(audited_model.tokenizer, examples, audited_model.adapter)
    probs = audited_model.adapter.observe(collate(audited_model.adapter, encoded.texts, 0)).probs
    for k, text in enumerate(TEXTS[:2]):
        entailment = probs[2 * k : 2 * k + 2, 2].log() - probs[2 * k : 2 * k + 2, 0].log()
        result = zero_shot(text, multi_label=True)
        scores = dict(zip(result["labels"], result["scores"], strict=True))
        assert entailment.sigmoid().tolist() == pytest.approx(
            [scores["good"], scores["film"]], abs=1e-5
        )


def test_other_tasks_and_classes_are_refused(tokenizer, classifier):
    features = pipeline("feature-extraction", model=classifier, tokenizer=tokenizer)
    refused("expected a pipeline for one of the tasks text-classification", load, features)

    class Shouting(TextClassificationPipeline):
        def preprocess(self, inputs, **options):
            return super().preprocess(inputs.upper(), **options)

    refused(
        "the pipeline class Shouting is not part of Transformers",
        load,
        Shouting(model=classifier, tokenizer=tokenizer),
    )


def test_settings_of_other_tasks(tokenizer):
    tagger = tiny_models.bert(tokenizer, kind=BertForTokenClassification)
    for strategy in ("none", "simple", "first"):
        load(
            pipeline(
                "token-classification",
                model=tagger,
                tokenizer=tokenizer,
                aggregation_strategy=strategy,
            )
        )
    averaging = pipeline(
        "token-classification", model=tagger, tokenizer=tokenizer, aggregation_strategy="average"
    )
    refused("aggregation_strategy=", load, averaging)
    filler = tiny_models.bert(tokenizer, kind=BertForMaskedLM)
    options = {"tokenizer_kwargs": {"truncation": True, "max_length": 6}, "top_k": 2}
    audited_model = load(pipeline("fill-mask", model=filler, tokenizer=tokenizer, **options))
    assert audited_model.tokenizer.model_max_length == 6
    targets = pipeline("fill-mask", model=filler, tokenizer=tokenizer, targets=["good"])
    refused("target_ids=", load, targets)


def test_settings_of_a_language_model():
    tokenizer = tiny_language_models.tokenizer()
    model = tiny_language_models.llama(tokenizer)
    for options in ({}, {"do_sample": False}):
        load(pipeline("text-generation", model=model, tokenizer=tokenizer, **options))
    sampled = pipeline("text-generation", model=model, tokenizer=tokenizer, do_sample=True)
    refused("do_sample=True", load, sampled)
    longer = pipeline("text-generation", model=model, tokenizer=tokenizer, max_new_tokens=7)
    refused("max_new_tokens=7. An audit generates answers greedily; set their length", load, longer)
