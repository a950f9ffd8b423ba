import json

import pandas as pd
import pytest
import torch
from datasets import Dataset

from hf_attnprobe import audit, build_tokenizer
from hf_attnprobe.data.synthetic import generate_record_questions
from hf_attnprobe.demonstration import DemoOptions, demo, format_rationale_line
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.result import convert_report_to_json
from hf_attnprobe.statistics.checks import find_contradictions
from hf_attnprobe.storage.provenance import format_repeat_command
from tests.helpers import tiny_models
from tests.helpers.page_reader import Reader


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What a short demo gives, and its folder."""
    folder = tmp_path_factory.mktemp("demo")
    options = DemoOptions(encoder="mlp", n_examples=300, epochs=1)
    return *demo(folder, progress=False, options=options), folder


def test_demo_ends_in_a_verdict(small):
    report, metrics, folder = small
    assert report.n == 50 and f"50 texts of {folder}/data" in " ".join(report.to_text().split())
    line = format_rationale_line(report)
    wide = report.wide_frame()
    chance, own = wide["rationale_size"].mean(), wide["token_f1@attention"].mean()
    assert "\n" not in line and line.endswith(f"chance {chance:.0%} (50 texts)")
    assert f": attention {own:.0%} · gradient × input " in line and 0 < chance < 0.5
    assert (folder / "audit" / "report.md").exists() and 0 <= metrics["test_accuracy"] <= 1


def test_the_command_of_a_demos_page_repeats_it(small, cli, tmp_path):
    report, _, folder = small
    page = Reader((folder / "audit" / "report.html").read_text()).words
    command = format_repeat_command("audit", report.provenance)
    assert (
        command.split() == f"attnprobe audit --model {folder}/model --dataset {folder}/data".split()
    )
    assert command in page and "object in Python" not in page
    done = cli(*command.split()[1:], "--json")
    assert json.loads(done.out)["findings"] == convert_report_to_json(report)["findings"]


def way_to_best(report):
    """What erasure found of every text, and how far attention goes from chance to the best, by hand."""
    rows = report.to_pandas()
    rows = rows[rows.test == "erasure"]
    wide = rows.pivot(index="example_id", columns="statistic", values="value")
    chance, own = (wide[f"fraction_to_flip@{name}"] for name in ("random", "attention"))
    best = wide["minimal_fraction"]
    return wide, (chance - own) / (chance - best).where(chance > best)


def test_the_way_from_chance_to_best_is_of_one_population(small):
    report, *_ = small
    wide, way = way_to_best(report)
    assert way.notna().sum() > 20 and way.max() < 1 + 1e-9
    pd.testing.assert_series_equal(wide["way_to_best@attention"], way, check_names=False)
    assert find_contradictions(report.to_pandas(), load_readings()) == []


@pytest.mark.parametrize("attended", ["cue", "other"])
def test_a_model_that_attends_to_the_rationale_is_told_from_one_that_does_not(tmp_path, attended):
    """The attention of a context-free model is set by hand: all on the word "wonderful", or all on "film"."""
    text = "the film was wonderful"
    tokenizer = build_tokenizer([text])
    model = tiny_models.classifier(
        tokenizer, embedding_size=4, encoder="none", attention="dot_product"
    )
    word = tokenizer.convert_tokens_to_ids("wonderful" if attended == "cue" else "film")
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()[word] = 20.0
        model.attention_classifier.attention.query.weight.fill_(1.0)
    data = Dataset.from_dict({"text": [text], "label": [1], "rationale": [[3]]})
    report = audit(model, data, ["plausibility"], tokenizer=tokenizer, progress=False)
    said = f": attention {100 * (attended == 'cue')}% · "
    assert said in format_rationale_line(report) and "chance 25% (1 text)" in format_rationale_line(
        report
    )


# --- a language model ---------------------------------------------------------------------------


def test_an_answer_is_said_by_one_record_alone():
    for row in generate_record_questions(20, seed=3):
        records = [record.split() for record in row["context"].split("\n\n")]
        words = [word for record in records for word in record]
        assert len(words) == len(set(words)) and 4 <= len(records) <= 8
        assert [row["question"], *row["answer"].split()] == records[row["source"]]


@pytest.mark.slow
def test_the_demo_of_a_language_model_names_its_induction_heads(cli, tmp_path):
    """Trains as long as it takes to copy: two minutes of a processor."""
    done = cli("demo", "--language-model", "--output-dir", tmp_path / "demo")
    assert done.code == 0 and "CONTRADICTION" not in done.out, done.err
    summary = json.loads((tmp_path / "demo" / "audit" / "summary.json").read_text())
    looks = {
        (s["layer"], s["head"]): s["mean"]
        for s in summary["statistics"]
        if (s["statistic"], s["group"]) == ("induction", "all")
    }
    layer, head = max(looks, key=looks.get)
    assert layer == 1 and looks[layer, head] > 0.5
    answers = {found["rule"]: found["answer"] for found in summary["findings"]}
    assert (answers["own"], answers["passage"], answers["source"]) == ("yes", "yes", "yes")
    assert "answers itself" in " ".join(done.out.split())
    page = Reader((tmp_path / "demo" / "audit" / "report.html").read_text()).words
    assert "induction" in page and f"{looks[layer, head]:.2f}" in page
