"""Maps are saved, published and loaded, score texts by the model's own attention, and fit one model only."""

import json
import shutil

import pytest
import torch

from hf_attnprobe import AttentionMap, TextExplainer, explain, explain_text
from hf_attnprobe.adapters import wrap
from hf_attnprobe.maps.attention_map import (
    MAP_FILE,
    GateValue,
    HeadWeight,
    MapCertificate,
)
from hf_attnprobe.maps.selection import ShuffledControl
from hf_attnprobe.statistics.estimates import Estimate
from tests.helpers import planted_retrieval
from tests.helpers.error_messages import refused
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
    assert "fitted map" in table


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
from transformers import pipeline
from hf_attnprobe import AttentionMap

folder, text = json.loads(sys.argv[1])
url = AttentionMap.from_pretrained(folder).push_to_hub("acme/bilstm", token="writes")
loaded = AttentionMap.from_pretrained("acme/bilstm")
explain = pipeline("attention-explain", model=folder, attention_map=loaded)
(result,) = explain(text)
print("RESULT" + json.dumps([url, loaded.to_json(), result["map"], result["attention"]]))
"""


@pytest.mark.slow
def test_a_published_map_is_loaded_by_a_new_process(
    make_model, checkpoint, texts, run_python, tmp_path
):
    folder = shutil.copytree(checkpoint, tmp_path / "bilstm")
    attention_map = make_map(make_model(), ranking="attention")
    attention_map.save_pretrained(folder)
    (tmp_path / "hub").mkdir()
    with MiniHub(tmp_path / "hub", writable=True) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": None}
        arguments = json.dumps([str(folder), texts[0]])
        done = run_python("-c", PUBLISH, arguments, env=environment)
    assert done.code == 0, done.err
    url, loaded, scores, attention = json.loads(done.out.split("RESULT")[1])
    assert url.endswith("acme/bilstm")
    assert loaded == attention_map.to_json()
    assert scores == pytest.approx(attention)
    published = tmp_path / "hub" / "models" / "acme" / "bilstm" / MAP_FILE
    assert json.loads(published.read_text()) == loaded
