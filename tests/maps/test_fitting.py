"""Models in which it is known what decides: the right map is certified, and no other."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hf_attnprobe import Answers, AuditOptions, audit, evaluate_scores, fit_map
from hf_attnprobe.attention_map import MAP_FILE, AttentionMap, ShuffledControl
from hf_attnprobe.audits.pipeline import AuditEstimate
from hf_attnprobe.maps.fitting import (
    CLASSIFIER_TESTS,
    RESULT_FILE,
    _certify,
    _explain_failure,
    _save_result,
    check_choosing_count,
    judge_gate,
    measure_map_faithfulness,
)
from hf_attnprobe.maps.selection import (
    HEADS_CANDIDATE,
    NEGLIGIBLE_DIFFERENCE,
    Candidate,
    split_texts,
)
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import RULES
from tests.helpers import bypassing_models, planted_heads, planted_models, planted_retrieval
from tests.helpers.error_messages import refusal, refused


def make_answers(rows):
    return Answers(rows, units="word", template=planted_retrieval.TEMPLATE, max_new_tokens=1)


@pytest.fixture(scope="module")
def retrieval():
    """The model in which one head retrieves the answer, and its tokenizer."""
    tokenizer = planted_retrieval.build_tokenizer()
    return planted_retrieval.build_model(tokenizer), tokenizer


@pytest.fixture(scope="module")
def rows():
    return planted_retrieval.draw_prompts(28)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fit") / "out"


@pytest.fixture(scope="module")
def fitted(retrieval, rows, folder):
    model, tokenizer = retrieval
    return fit_map(
        model, make_answers(rows), tokenizer=tokenizer, output_dir=folder, progress=False
    )


# --- Language models -----------------------------------------------------------------------------


def test_the_head_that_retrieves_the_answer_is_certified(fitted):
    assert fitted.answer == Answer.YES
    (head,) = fitted.map.heads
    assert (head.layer, head.head) == planted_retrieval.RETRIEVING_HEAD
    certificate = fitted.map.certificate
    assert certificate.faithfulness.ci95[0] > 0.65
    assert (certificate.n_choosing, certificate.n_certifying) == (7, 21)
    assert {value.rule for value in certificate.gate} == {"effect", "path"}
    assert certificate.n_candidates == 1 + 3 + 12
    assert certificate.control.n_passing == 0
    mean = next(c for c in fitted.candidates if c.name == "attention")
    assert mean.faithfulness.value < certificate.faithfulness.value - 0.2


def test_faithfulness_is_that_of_the_heads_own_attention(fitted, retrieval, rows):
    """The scores are read from the outputs of Transformers, and evaluated as another explainer's."""
    model, tokenizer = retrieval
    layer, head = planted_retrieval.RETRIEVING_HEAD
    model.set_attn_implementation("eager")
    ids = sorted(fitted.report.example_ids)
    chosen_rows, scores = [], {}
    for example_id in ids:
        row = rows[example_id]
        tokens = tokenizer(f"{row['context']} {row['question']}", return_tensors="pt")
        with torch.no_grad():
            weights = model(**tokens, output_attentions=True).attentions[layer][0, head, -1]
        scores[example_id] = weights[: len(row["context"].split())].tolist()
        chosen_rows.append({**row, "example_id": example_id})
    report = evaluate_scores(
        model, make_answers(chosen_rows), scores, tokenizer=tokenizer, progress=False
    )
    assert sorted(report.example_ids) == ids
    expected = measure_map_faithfulness(report, "given")
    measured = fitted.map.certificate.faithfulness
    assert measured.value == pytest.approx(expected.value, abs=1e-6)
    assert measured.ci95 == pytest.approx(expected.ci95, abs=1e-6)


def test_the_folder_holds_the_map_and_the_result(fitted, folder):
    assert AttentionMap.from_pretrained(folder) == fitted.map
    assert (folder / MAP_FILE).is_file()
    result = json.loads((folder / RESULT_FILE).read_text())
    assert result == json.loads(json.dumps(fitted.to_json()))
    assert result["map"]["certificate"]["n_certifying"] == 21
    assert (folder / "certification" / "report.html").is_file()


def test_a_map_that_lost_its_certificate_is_deleted(fitted, tmp_path):
    _save_result(fitted, tmp_path)
    assert (tmp_path / MAP_FILE).is_file()
    _save_result(replace(fitted, map=None), tmp_path)
    assert not (tmp_path / MAP_FILE).exists()
    # A map from another source, in a folder without a result, is kept.
    (tmp_path / RESULT_FILE).unlink()
    fitted.map.save_pretrained(tmp_path)
    _save_result(replace(fitted, map=None), tmp_path)
    assert (tmp_path / MAP_FILE).is_file()


def certify_retrieving_head(result, n_passing=0):
    candidate = Candidate(HEADS_CANDIDATE, 0.9, (planted_retrieval.RETRIEVING_HEAD,), 12)
    control = ShuffledControl(20, 0.1, 0.9, n_passing)
    return _certify(replace(result, map=None), [candidate], control, "fingerprint")


def test_no_map_is_certified_if_shuffled_costs_pass(fitted):
    assert certify_retrieving_head(fitted).map is not None
    refuted = certify_retrieving_head(fitted, n_passing=3)
    assert refuted.map is None and refuted.answer == Answer.CANNOT_SAY
    assert "3 of 20 maps that were chosen by shuffled costs pass as well" in refuted.reason


def test_a_map_contains_no_local_folders(fitted):
    dataset = replace(fitted.report.dataset, name="/home/somebody/prompts.jsonl")
    report = replace(fitted.report, dataset=dataset)
    local = replace(fitted, model="/home/somebody/tiny", dataset=str(dataset), report=report)
    attention_map = certify_retrieving_head(local).map
    assert attention_map.model == "tiny"
    assert attention_map.certificate.dataset.startswith("prompts.jsonl")
    assert "somebody" not in json.dumps(attention_map.to_json())


def test_the_gate_shows_no_number_of_fewer_than_ten_texts(fitted):
    findings = tuple(replace(finding, n=7) for finding in fitted.report.findings)
    values, reason = judge_gate(replace(fitted.report, findings=findings))
    assert values == ()
    assert "effect was measured on only 7 texts" in reason


@pytest.mark.slow
def test_no_map_is_fitted_if_no_unit_matters(retrieval):
    """The retrieving head writes almost nothing, so the answer does not depend on the passage."""
    model, tokenizer = planted_retrieval.build_model(retrieval[1]), retrieval[1]
    with torch.no_grad():
        model.transformer.h[planted_retrieval.RETRIEVING_HEAD[0]].attn.c_proj.weight.mul_(1e-3)
    data = make_answers(planted_retrieval.draw_prompts(24, seed=1))
    result = fit_map(model, data, tokenizer=tokenizer, progress=False)
    assert result.map is None
    assert result.reason.startswith("Nothing is fitted")


# --- Classifiers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        bypassing_models.SAME_WORDS,
        pytest.param(bypassing_models.OTHER_WORDS, marks=pytest.mark.slow),
    ],
)
def test_no_map_is_fitted_if_the_evidence_bypasses_attention(kind):
    tokenizer = planted_heads.build_tokenizer_for_heads()
    model = bypassing_models.build_bypassing_model(kind, attention_share=0.03)
    rows = bypassing_models.draw_rows(model, 48)
    result = fit_map(model, rows, tokenizer=tokenizer, progress=False)
    assert result.map is None
    assert result.reason.startswith("Nothing is fitted")
    assert "passes through attention" in result.reason
    assert not result.candidates
    if kind == bypassing_models.SAME_WORDS:
        # Faithfulness alone would certify attention that does nothing.
        assert measure_map_faithfulness(result.report, "attention").ci95[0] > 0.65


@pytest.mark.slow
def test_attention_whose_pattern_does_not_matter_gets_no_certificate():
    """In the planted model, even weights would decide the same: the decisive word has a tenth."""
    planted = planted_models.draw_planted_model(3, 60)
    result = fit_map(planted.adapter, planted.rows, tokenizer=planted.tokenizer, progress=False)
    assert result.map is None
    assert "hardly any of the decision passes through attention" in result.reason


@pytest.mark.slow
def test_the_map_of_a_working_head_is_certified():
    tokenizer = planted_heads.build_tokenizer_for_heads()
    model = planted_heads.build_planted_bert(planted_heads.WORKING)
    rows = planted_heads.draw_rows(48)
    result = fit_map(model, rows, tokenizer=tokenizer, progress=False)
    assert result.map.ranking == "attention"
    ids = result.report.example_ids
    assert len(ids) == result.n_certifying == 36 and result.n_choosing == 12
    text = str(result)
    assert "Certified" in text and "path share" in text and "0 of 40 would pass" in text


@pytest.mark.slow
def test_a_ranking_is_chosen_by_its_faithfulness_in_an_audit_of_the_choosing_texts(capsys):
    tokenizer = planted_heads.build_tokenizer_for_heads()
    model = planted_heads.build_planted_bert(planted_heads.WORKING)
    rows = planted_heads.draw_rows(80)
    result = fit_map(model, rows, tokenizer=tokenizer, choosing_share=0.25)
    # Few texts are enough to choose, so they are not called too few.
    assert "required texts" not in capsys.readouterr().err
    choosing_rows = [row for row in rows if row["example_id"] not in result.report.example_ids]
    assert len(choosing_rows) == result.n_choosing == 20
    report = audit(model, choosing_rows, CLASSIFIER_TESTS, tokenizer=tokenizer, progress=False)
    # The standard temperature and the exchanged words depend slightly on the audited texts.
    for candidate in result.candidates:
        expected = measure_map_faithfulness(report, candidate.name)
        assert candidate.choosing_faithfulness.value == pytest.approx(expected.value, abs=0.02)
    chosen = result.candidates[0]
    best = max(candidate.choosing_faithfulness.value for candidate in result.candidates)
    assert chosen.choosing_faithfulness.value >= best - NEGLIGIBLE_DIFFERENCE


@pytest.mark.slow
def test_a_map_below_the_threshold_is_not_certified():
    """With a stricter threshold, the interval of the best candidate contains the threshold."""
    tokenizer = planted_heads.build_tokenizer_for_heads()
    model = planted_heads.build_planted_bert(planted_heads.WORKING)
    options = AuditOptions(thresholds=["faithfulness=.4,.995"])
    rows = planted_heads.draw_rows(48)
    result = fit_map(model, rows, tokenizer=tokenizer, options=options, progress=False)
    assert result.map is None
    chosen = result.candidates[0]
    assert chosen.is_chosen and chosen.faithfulness.ci95[0] < 0.995
    assert result.reason.startswith("No map is certified: the chosen candidate")
    assert chosen.faithfulness.interval_text in result.reason
    assert result.ceiling.n == result.n_certifying


@pytest.mark.parametrize(
    ("interval", "advice"),
    [
        ((0.37, 0.45), "Only a yes is certified, so more texts will not help."),
        ((0.3, 0.8), "Use more texts."),
    ],
)
def test_more_texts_are_advised_only_if_a_yes_is_possible(interval, advice):
    estimate = Estimate(0.41, interval, n=118)
    candidate = SimpleNamespace(description="gradient", faithfulness=estimate)
    result = SimpleNamespace(
        candidates=[candidate], report=SimpleNamespace(rules=RULES), answer=Answer.CANNOT_SAY
    )
    assert _explain_failure(result, 30).endswith(advice)


def test_options_that_do_not_suit_a_map_are_refused():
    data, model = [{"text": "a b"}], "unused"
    refused("choosing_share from 0.1 to 0.5", fit_map, model, data, choosing_share=0.9)
    for options in (AuditOptions(layers=[0]), AuditOptions(time="5m")):
        refused("cannot be used with fit-map", fit_map, model, data, options=options)


def test_the_expected_duration_is_printed_before_the_map_is_chosen(
    retrieval, rows, monkeypatch, capsys
):
    model, tokenizer = retrieval

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_attnprobe.maps.fitting._measure_costs", stop)
    estimate = AuditEstimate(21, 21, {"sources": 2000.0, "knockout": 520.0}, None, "float32")
    monkeypatch.setattr(
        "hf_attnprobe.maps.fitting.estimate_prepared_audit",
        lambda audit, folder, progress: replace(estimate, n_texts=audit.n_texts),
    )
    with pytest.raises(KeyboardInterrupt):
        fit_map(model, make_answers(rows), tokenizer=tokenizer)
    # 2520 s for the audit of 21 prompts, and a third of the time per prompt for 7 others.
    assert (
        "choosing a map by 7 prompts and certifying it on 21 others takes about 47 min, as estimated"
        in capsys.readouterr().err
    )


def test_too_few_texts_are_refused(retrieval, monkeypatch):
    model, tokenizer = retrieval
    data = make_answers(planted_retrieval.draw_prompts(8))
    options = {"tokenizer": tokenizer, "progress": False}
    # The number of prompts is checked before any answer is generated.
    with monkeypatch.context() as patch:
        patch.setattr("hf_attnprobe.audits.setup.encode_audit", None)
        message = refusal(fit_map, model, data, **options)
    assert message == (
        "expected at least 5 texts by which a map can be chosen, got 2: a share of 0.25 of 8 texts. "
        "Use at least 20 texts."
    )
    copies = make_answers(planted_retrieval.draw_prompts(4) * 5)
    message = refusal(fit_map, model, copies, **options)
    assert message.endswith(
        "got 1: a share of 0.25 of 4 different texts. Use at least 20 different texts."
    )


def test_a_larger_share_is_advised_if_enough_texts_remain_to_certify():
    message = refusal(check_choosing_count, 16, 0.25)
    assert message.endswith("Use at least 20 texts, or --choosing-share 0.32.")
    check_choosing_count(16, 0.32)
    check_choosing_count(20, 0.25)
    # With 14 texts, only 9 would remain.
    assert refusal(check_choosing_count, 14, 0.25).endswith("Use at least 20 texts.")


def test_texts_that_rank_no_units_are_named(retrieval):
    """The model does not give the answers of 4 of the 7 choosing prompts, as the split by ids shows."""
    model, tokenizer = retrieval
    rows = planted_retrieval.draw_prompts(28)
    choosing_ids, _ = split_texts(dict.fromkeys(range(28)), 0.25)
    for example_id in sorted(choosing_ids)[:4]:
        rows[example_id] = {**rows[example_id], "answer": "v0 v0"}
    message = refusal(fit_map, model, make_answers(rows), tokenizer=tokenizer, progress=False)
    assert "got 3 of 7: the others have a single unit" in message
    assert message.endswith("Use about 47 texts like these, or a larger choosing share.")


def test_numbers_in_the_text_are_those_of_the_json(fitted):
    control = fitted.to_json()["control"]
    assert f"{control['mean']:.2f} on average and {control['largest']:.2f} at most" in str(fitted)
    assert np.isfinite(control["mean"])
