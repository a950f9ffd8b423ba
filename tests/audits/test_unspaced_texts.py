"""Audits of texts whose words are not separated by spaces."""

import json
import logging
import re

import pandas as pd
import pytest

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.integrations.pipeline import TextExplainer
from hf_attnprobe.reports.result import convert_report_to_json
from tests.helpers.chinese_texts import KEYS, build_chinese_model, make_chinese_rows
from tests.helpers.page_reader import Reader


OPTIONS = AuditOptions(single_heads=False)
TESTS = ["permutation", "scale", "erasure", "exchange", "uniform_attention"]


@pytest.fixture(scope="module")
def chinese():
    model, tokenizer = build_chinese_model()
    return model, tokenizer, make_chinese_rows(32)


def run(chinese, tests=TESTS, **fields):
    model, tokenizer, rows = chinese
    options = AuditOptions(single_heads=False, shown_texts=1, **fields)
    return audit(model, rows, tests, tokenizer=tokenizer, options=options, progress=False)


def test_tokens_are_explained_without_any_option(chinese, caplog):
    with caplog.at_level(logging.WARNING):
        report = run(chinese, ["scale"])
    assert "finds 1.0 words and 8.8 tokens per text, so tokens are explained" in caplog.text
    importance = next(finding for finding in report.findings if finding.rule == "importance")
    assert importance.answer == "yes" and "tokens with more attention" in str(report)
    told = " ".join(report.to_text(verbose=True).split())
    assert "Spaces do not separate the words" in told
    # Every other sentence of all formats says "token".
    findings = json.dumps(convert_report_to_json(report)["findings"])
    for output in (told, report.to_markdown(), Reader(report.to_html()).words, findings):
        sentences = re.sub(r"[Ss]paces do not[^(]+\([^)]+\)", "", output)
        assert "token" in sentences
        assert not re.search(r".{0,40}\bwords?\b.{0,40}", sentences)
    assert "point at a token to see its score" in report.to_html()
    # The command repeats the choice.
    assert report.provenance["asked_for"]["level"] == "token"


@pytest.mark.slow
def test_chinese_texts_get_the_true_answer_without_any_option(chinese):
    chosen, explicit = run(chinese), run(chinese, level="token")
    assert str(chosen.answer) == "yes", str(chosen)
    pd.testing.assert_frame_equal(chosen.to_pandas(), explicit.to_pandas())
    assert "level_note" in chosen.provenance and "level_note" not in explicit.provenance


@pytest.mark.slow
def test_words_on_request_lead_to_the_advice_to_explain_tokens(chinese):
    report = run(chinese, level="word")
    assert str(report.answer) == "cannot say"
    assert "Run the audit again with --level token." in " ".join(str(report).split())


def test_the_users_own_adapter_is_not_changed(chinese):
    model, tokenizer, rows = chinese
    adapter = wrap(model)
    tests = ["uniform_attention"]
    report = audit(adapter, rows[:12], tests, tokenizer=tokenizer, options=OPTIONS, progress=False)
    # --level cannot be used with an adapter, so it is no advice.
    assert adapter.level is None and "--level" not in str(report)


def test_a_chinese_text_is_explained_by_tokens(chinese):
    model, tokenizer, rows = chinese
    text = TextExplainer(model, tokenizer).explain(rows[0]["text"])
    largest = max(range(len(text.tokens)), key=text.scores["attention"].__getitem__)
    assert len(text.tokens) > 6 and text.tokens[largest] == KEYS[rows[0]["label"]]
