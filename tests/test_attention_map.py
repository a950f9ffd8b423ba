"""Maps are saved, published and loaded, score texts by the model's own attention, and fit one model only."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hf_attnprobe import (
    Answers,
    AttentionMap,
    AuditOptions,
    Data,
    TextExplainer,
    audit,
    evaluate_scores,
    explain,
    explain_text,
    fit_map,
    write_card,
)
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_map import (
    MAP_FILE,
    GateValue,
    HeadWeight,
    MapCertificate,
    ShuffledControl,
)
from hf_attnprobe.integrations.publishing import AuditFolder
from hf_attnprobe.reports.alternatives import measure_fitted_map, measure_ranking
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.scale import ORDER, SOURCE, estimate_part
from tests.helpers import planted_retrieval
from tests.helpers.error_messages import refusal, refused
from tests.helpers.mini_hub import MiniHub


CERTIFICATE = MapCertificate(
    faithfulness=Estimate(0.91, (0.81, 0.98), 60),
    gate=(GateValue("effect", "yes", Estimate(0.3, (0.2, 0.4), 60)),),
    n_choosing=20,
    n_certifying=60,
    n_candidates=301,
    control=ShuffledControl(20, 0.01, 0.15, 0),
    dataset="data (test)",
    date="2026-11-28",
    version="0.1.0",
)


@pytest.fixture(scope="module")
def retrieval():
    tokenizer = planted_retrieval.build_tokenizer()
    return planted_retrieval.build_model(tokenizer), tokenizer


def make_map(model, *, ranking="", heads=((1, 2, 0.75), (0, 1, 0.25))):
    fingerprint = wrap(model).compute_fingerprint()
    weights = () if ranking else tuple(HeadWeight(*head) for head in heads)
    return AttentionMap(ranking, weights, "tiny", fingerprint, CERTIFICATE)


def test_a_saved_map_is_loaded_unchanged(retrieval, tmp_path):
    attention_map = make_map(retrieval[0])
    file = attention_map.save_pretrained(tmp_path / "model")
    assert file == tmp_path / "model" / MAP_FILE
    assert AttentionMap.from_pretrained(tmp_path / "model") == attention_map
    content = json.loads(file.read_text())
    assert content["heads"][0] == {"layer": 1, "head": 2, "weight": 0.75}
    assert content["certificate"]["faithfulness"]["ci95"] == [0.81, 0.98]
    assert "0.91 [0.81, 0.98] on 60 texts" in str(attention_map)


def test_a_missing_or_damaged_map_is_refused(retrieval, tmp_path):
    refused("has no attention_map.json", AttentionMap.from_pretrained, tmp_path)
    refused("expected a map at ./none", AttentionMap.from_pretrained, "./none")
    # A missing map is reported before the model is loaded, which would fail here.
    options = AuditOptions(map="./none")
    refused("expected a map at ./none", audit, "acme/no-model", make_prompts(2), options=options)
    file = make_map(retrieval[0]).save_pretrained(tmp_path)
    file.write_text(file.read_text().replace('"weight": 0.75', '"weight": "much"'))
    refused("cannot read", AttentionMap.from_pretrained, tmp_path)
    refused("either a ranking or heads", AttentionMap, "", (), "tiny", "0")


def test_a_prompt_is_scored_by_the_shares_of_the_heads(retrieval):
    model, tokenizer = retrieval
    row = planted_retrieval.draw_prompts(1)[0]
    n_words = len(row["context"].split())
    explainer = TextExplainer(model, tokenizer, make_map(model))
    text = explainer.explain_answer(**row, answer="v3", units="word")
    assert list(text.scores)[:2] == ["attention", "map"]
    # The template of a prompt without a chat template puts further words around the passage, so the
    # prompt is read from the text itself.
    pairs = zip(text.around, (*text.tokens, ""), strict=True)
    prompt = " ".join(part for pair in pairs for part in pair)
    tokens = tokenizer(prompt, return_tensors="pt")
    n_before = len(tokenizer(text.around[0])["input_ids"])
    answer = tokenizer("v3", return_tensors="pt")["input_ids"]
    ids = torch.cat([tokens["input_ids"], answer], dim=1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(input_ids=ids[:, :-1], output_attentions=True).attentions
    expected = torch.zeros(n_words)
    for layer, head, weight in ((1, 2, 0.75), (0, 1, 0.25)):
        rows = attentions[layer][0, head, -answer.shape[1] :, n_before : n_before + n_words]
        mean = rows.mean(0)
        expected += weight * mean / mean.sum()
    assert text.scores["map"] == pytest.approx(expected.tolist(), abs=1e-5)
    options = {"answer": "v3", "units": "word", "attention_map": make_map(model)}
    table = str(explain(model, tokenizer, **row, **options))
    assert "fitted map" in table and "not certified" not in table


def test_a_map_without_a_certificate_is_called_not_certified(retrieval, make_model, tokenizer):
    model, retrieval_tokenizer = retrieval
    row = planted_retrieval.draw_prompts(1)[0]
    uncertified = replace(make_map(model), certificate=None)
    options = {"answer": "v3", "units": "word", "attention_map": uncertified}
    prompt = explain(model, retrieval_tokenizer, **row, **options)
    header = next(line for line in str(prompt).splitlines() if "leave-one-out" in line)
    assert header.endswith("map (not certified)") and "fitted map" not in str(prompt)
    # Every number ends below the end of its title.
    end = header.index("map (not certified)") + len("map (not certified)")
    assert all(end == len(line[:end].rstrip()) for line in str(prompt).splitlines()[3:8])
    uncertified = replace(make_map(make_model(), ranking="attention"), certificate=None)
    text = explain_text(make_model(), tokenizer, "a b", attention_map=uncertified)
    assert "map (not certified)" in str(text) and "fitted map" not in str(text)


def test_a_map_of_another_model_is_refused(retrieval):
    model, tokenizer = retrieval
    other = planted_retrieval.build_model(tokenizer, seed=1)
    row = planted_retrieval.draw_prompts(1)[0]
    options = {**row, "units": "word", "attention_map": make_map(other)}
    refused("has other weights", explain, model, tokenizer, **options)


def test_a_classifier_is_scored_by_a_ranking(make_model, tokenizer, texts):
    model = make_model()
    attention_map = make_map(model, ranking="attention")
    text = explain_text(model, tokenizer, texts[0], attention_map=attention_map)
    assert text.scores["map"] == pytest.approx(text.scores["attention"])
    unknown = make_map(model, ranking="rollout")
    options = {"attention_map": unknown}
    refused("needs the ranking 'rollout'", explain_text, model, tokenizer, texts[0], **options)


PUBLISH = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from hf_attnprobe import AttentionMap, explain

folder, row = json.loads(sys.argv[1])
url = AttentionMap.from_pretrained(folder).push_to_hub("acme/retrieval", token="writes")
loaded = AttentionMap.from_pretrained("acme/retrieval")
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
text = explain(model, tokenizer, **row, attention_map=loaded)
(result,) = pipeline("attention-explain", model=folder, attention_map=loaded)(row)
print("RESULT" + json.dumps([url, loaded.to_json(), text.scores["map"], result["map"]]))
"""


@pytest.mark.slow
def test_a_fitted_map_is_published_and_used_by_a_new_process(retrieval, run_python, tmp_path):
    model, tokenizer = retrieval
    folder = tmp_path / "retrieval"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    fitted = fit_map(str(folder), make_prompts(28), progress=False)
    fitted.map.save_pretrained(folder)
    row = {**planted_retrieval.draw_prompts(1)[0], "answer": "v3", "units": "word"}
    (tmp_path / "hub").mkdir()
    with MiniHub(tmp_path / "hub", writable=True) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": None}
        arguments = json.dumps([str(folder), row])
        done = run_python("-c", PUBLISH, arguments, env=environment)
    assert done.code == 0, done.err
    url, loaded, explained, piped = json.loads(done.out.split("RESULT")[1])
    assert url.endswith("acme/retrieval")
    assert loaded == json.loads(json.dumps(fitted.map.to_json()))
    published = tmp_path / "hub" / "models" / "acme" / "retrieval" / MAP_FILE
    assert json.loads(published.read_text()) == loaded
    expected = explain(model, tokenizer, **row, attention_map=fitted.map).scores["map"]
    assert explained == pytest.approx(expected, abs=1e-6) and piped == explained
    card = " ".join(write_card(folder).file.read_text().split())
    certificate = fitted.map.certificate
    assert f"faithfulness {certificate.faithfulness.interval_text} on 21 texts" in card
    assert f"({certificate.date}, hf_attnprobe {certificate.version})" in card
    assert certificate.gate_text in card


# --- Audits of a map -----------------------------------------------------------------------------


def make_prompts(n_prompts):
    rows = planted_retrieval.draw_prompts(n_prompts)
    return Answers(rows, units="word", template=planted_retrieval.TEMPLATE, max_new_tokens=1)


@pytest.fixture(scope="module")
def map_folder(retrieval, tmp_path_factory):
    folder = tmp_path_factory.mktemp("map")
    head = (*planted_retrieval.RETRIEVING_HEAD, 1.0)
    make_map(retrieval[0], heads=(head,)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def map_report(retrieval, map_folder):
    model, tokenizer = retrieval
    options = AuditOptions(map=str(map_folder))
    return audit(
        model,
        make_prompts(12),
        ["sources"],
        options=options,
        tokenizer=tokenizer,
        progress=False,
    )


def test_an_audit_compares_a_map_with_attention(map_report, retrieval):
    """The scores are read from the outputs of Transformers, and evaluated as another explainer's."""
    model, tokenizer = retrieval
    layer, head = planted_retrieval.RETRIEVING_HEAD
    model.set_attn_implementation("eager")
    rows, scores = planted_retrieval.draw_prompts(12), []
    for row in rows:
        tokens = tokenizer(f"{row['context']} {row['question']}", return_tensors="pt")
        with torch.no_grad():
            weights = model(**tokens, output_attentions=True).attentions[layer][0, head, -1]
        scores.append(weights[: len(row["context"].split())].tolist())
    options = {"tokenizer": tokenizer, "progress": False}
    expected_report = evaluate_scores(model, make_prompts(12), scores, **options)
    for part in (ORDER, SOURCE):
        measured = estimate_part(map_report.evidence.texts, part, "map")
        expected = estimate_part(expected_report.evidence.texts, part, "given")
        assert measured.value == pytest.approx(expected.value, abs=1e-6)
    measured = measure_fitted_map(map_report).faithfulness
    assert measured.value > measure_ranking(map_report, "attention").faithfulness.value + 0.1
    text = map_report.examples[0]
    weights = scores[text.example_id]
    assert text.scores["map"] == pytest.approx([w / sum(weights) for w in weights], abs=1e-5)


def test_a_report_shows_the_map_and_its_certificate(map_report):
    words = " ".join(str(map_report).split())
    assert "Show the fitted map, head 1.2 (layer.head) instead: its faithfulness is" in words
    assert "Certificate: faithfulness 0.91 [0.81, 0.98] on 60 texts of data (test)" in words
    assert "attention as a whole: effect 0.30 [0.20, 0.40] (yes)" in words
    page = map_report.to_html()
    assert "fitted map: head 1.2 (layer.head)" in page and "<h4>fitted map" in page
    assert map_report.provenance["fitted_map"]["ranking"] == "map"
    summary = map_report.examples[0].importance_summary
    assert "the fitted map rank" in summary
    # Published reports do not reveal the folder of the map.
    path = map_report.provenance["asked_for"]["map"]
    names = AuditFolder(Path("audit"), map_report).get_public_names("org/model")
    assert "/" in path and names[path] == Path(path).name


def test_a_map_that_does_not_fit_the_audit_is_refused(retrieval, map_folder, tmp_path):
    model, tokenizer = retrieval

    def audit_with_map(folder, tests=("sources",), **options):
        settings = AuditOptions(map=str(folder), **options)
        arguments = {"options": settings, "tokenizer": tokenizer, "progress": False}
        audit(model, make_prompts(12), list(tests), **arguments)

    other = planted_retrieval.build_model(tokenizer, seed=1)
    make_map(other).save_pretrained(tmp_path / "other")
    refused("has other weights", audit_with_map, tmp_path / "other")
    refused("has no attention_map.json", audit_with_map, tmp_path)
    refused("expected a map at ./none, which does not exist", audit_with_map, "./none")
    refused("only tests some heads", audit_with_map, map_folder, heads=[1])
    refused("--map needs one of the tests", audit_with_map, map_folder, tests=["permutation"])
    make_map(model, heads=((7, 0, 1.0),)).save_pretrained(tmp_path / "missing")
    refused("needs head 7.0", audit_with_map, tmp_path / "missing" / MAP_FILE)
    make_map(model, ranking="rollout").save_pretrained(tmp_path / "rollout")
    refused("needs the ranking 'rollout'", audit_with_map, tmp_path / "rollout")


def test_a_folder_without_the_map_is_refused_with_advice(retrieval, map_folder, tmp_path):
    """The folder belongs to an audit whose rows do not contain the scores of the map."""
    model, tokenizer = retrieval
    arguments = {"tokenizer": tokenizer, "progress": False, "output_dir": tmp_path / "out"}
    rows = make_prompts(3)
    audit(model, rows, ["sources"], **arguments)
    options = AuditOptions(map=str(map_folder))
    message = refusal(audit, model, rows, ["sources"], options=options, **arguments)
    assert "map fingerprint (None instead of" in message
    assert message.endswith("Choose a new --output-dir for this audit.")
    assert "do not contain the scores of this map" in message


def test_a_ranking_that_an_audit_measures_anyway_is_not_measured_again(
    make_model, tokenizer, reviews, tmp_path
):
    model = make_model()
    make_map(model, ranking="product").save_pretrained(tmp_path)
    tests = ["scale", "erasure"]
    arguments = {"tokenizer": tokenizer, "progress": False}
    options = AuditOptions(shown_texts=1)
    reviews = Data(reviews, test_limit=10)
    plain = audit(model, reviews, tests, options=options, **arguments)
    with_map = audit(
        model, reviews, tests, options=replace(options, map=str(tmp_path)), **arguments
    )
    assert with_map.to_pandas().equals(plain.to_pandas())
    assert with_map.provenance["fitted_map"]["ranking"] == "product"
    assert "fitted map: attention × gradient" in with_map.to_markdown()
    (text,) = with_map.examples
    with torch.enable_grad():
        explained = explain_text(
            model,
            tokenizer,
            " ".join(text.tokens),
            attention_map=AttentionMap.from_pretrained(tmp_path),
        )
    assert text.scores["product"] == pytest.approx(explained.scores["map"], abs=1e-6)
    assert "product" not in plain.examples[0].scores


# --- Model cards ---------------------------------------------------------------------------------


def test_a_card_shows_the_certificate_of_its_models_map(make_model, checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "bilstm")
    make_map(make_model(), ranking="attention").save_pretrained(folder)
    card = write_card(folder).file.read_text()
    assert "## Fitted attention map" in card
    assert "chosen for this model: attention of the whole model. Certificate: faithfulness" in card
    attention_map = AttentionMap.from_pretrained(folder)
    replace(attention_map, model_fingerprint="0" * 16).save_pretrained(folder)
    refused("has other weights", write_card, folder)
