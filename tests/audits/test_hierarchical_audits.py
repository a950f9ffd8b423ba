"""Audits of hierarchical models on texts as they come: without sentences, without words, of one of either."""

import json
import re

import numpy as np
import pytest
import torch

from hf_attnprobe import Report, audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.tokenizer import build_tokenizer
from hf_attnprobe.faithfulness.single_token import single_token
from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.training.classifier import build_model
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name


REAL = (
    "the plot was dull . the cast was fine ! we left .",
    "a moving film",
    "word",
    "the cast was dull . unheardof words here ? a fine plot .",
    "zzz qqq . the film",
    "fine . dull",
    ". . .",
)
NOTHING = ("<sep>", "<sep> <sep>", "\n\n\n", "<br/><br/>", "", "  ")  # no word in any
TESTS = ("permutation", "adversarial", "erasure", "input_erasure", "conicity", "fragility")
TESTS += ("single_token",)


@pytest.fixture(scope="module")
def han():
    tokenizer = build_tokenizer(REAL, sentences=True, min_document_frequency=1)
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        encoder="bigru", hierarchical=True, embedding_size=8, encoder_size=4, attention_size=4
    )
    return build_model(config, tokenizer, ["negative", "positive"]).eval(), tokenizer


def run(han, texts, **options):
    rows = [{"example_id": k, "text": text, "label": k % 2} for k, text in texts]
    return audit_by_name(han[0], rows, tokenizer=han[1], n_permutations=5, **options)


@pytest.fixture(scope="module")
def report(han):
    texts = list(enumerate(REAL + NOTHING))
    folder = tiny_models.once(
        "sentences", lambda folder: run(han, texts, tests=TESTS, output_dir=folder)
    )
    return Report.load(folder), folder


def test_texts_without_a_word_are_counted_and_left_out(report):
    found, _ = report
    assert found.n == len(REAL) and found.provenance["skipped_empty"] == len(NOTHING)
    assert set(found.to_pandas().example_id) == set(range(len(REAL)))


def test_no_number_is_infinite_and_json_is_valid(report):
    found, folder = report
    assert not np.isinf(found.to_pandas().value).any()
    summary = (folder / "summary.json").read_text()
    json.loads(summary, parse_constant=pytest.fail)  # NaN, Infinity are no JSON
    for text in (found.to_text(verbose=True), found.to_markdown()):
        assert not re.search(r"\b(nan|inf)\b", text) and "weighs sentences" in text


def test_single_sentences_are_those_of_the_plain_model(han, report):
    model, tokenizer = han
    rows = report[0].to_pandas()
    text = "the plot was dull . the cast was fine ! we left ."
    parts = ("the plot was dull .", "the cast was fine !", "we left .")
    with torch.no_grad():
        predicted = model(**tokenizer(text, return_tensors="pt")).logits.argmax()
        alone = [
            model(**tokenizer(p, return_tensors="pt")).logits.softmax(-1)[0, predicted].item()
            for p in parts
        ]
    own = rows[(rows.example_id == 0) & (rows.test == "single_token")].set_index("statistic").value
    assert own["lowest_probability"] == pytest.approx(min(alone), abs=1e-6)
    assert own["highest_probability"] == pytest.approx(max(alone), abs=1e-6)


def test_no_sentence_has_no_probability(han):
    model, tokenizer = han
    encoded = tokenizer(["<sep>", "dull . fine"], padding=True, return_tensors="pt")
    adapter = wrap(model)
    found = single_token(adapter.observe(adapter.prepare(encoded, (0, 1))), adapter.sites()[0])
    for values in vars(found).values():
        assert values[0].isnan() and 0 <= values[1] <= 1


def test_rationales_of_words_are_nothing_to_sentences(han):
    rows = [{"text": text, "label": 0, "rationale": [0]} for text in REAL]
    with pytest.raises(AttnProbeError, match="needs the words that people marked"):
        audit(han[0], rows, tokenizer=han[1], tests=["plausibility"], progress=False)
    by_default = audit_by_name(han[0], rows, tokenizer=han[1], n_permutations=2)
    assert "plausibility" not in by_default.provenance["tests"]


def test_texts_of_one_sentence_cannot_tell_whether_attention_is_unique(han):
    found = run(han, [(0, "word"), (1, "a moving film")], tests=["adversarial"])
    said = {finding.rule for finding in found.findings}
    assert "uniqueness" not in said and "pinned down" not in found.to_text(verbose=True)
