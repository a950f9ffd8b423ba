"""``attnprobe retrain``: what it prints and leaves behind, that it can be killed, and what it refuses."""

import json
import re
import shlex
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_attnprobe import AttentionClassifierConfig, AttnProbeError, train_classifier
from hf_attnprobe.cli.commands import build_parser
from hf_attnprobe.cli.flags import parse_test_selection as asked_by_flags
from hf_attnprobe.data.examples import load_splits
from hf_attnprobe.inference.outputs import make_guide, predict, read_outputs
from hf_attnprobe.retraining import select_retraining_tests
from hf_attnprobe.retraining.base_model import load_base_model
from hf_attnprobe.retraining.options import OPTIONS_BY_TEST, Adversary, RetrainOptions, Seeds
from hf_attnprobe.retraining.report import format_command as retraining_command
from hf_attnprobe.retraining.report import parse_retraining, read_retraining
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.retraining.verdict import compute_points, convert_retraining_to_json
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.training.options import TrainingOptions
from tests.helpers import tiny_models
from tests.helpers.page_reader import Reader


TESTS = ["uniform", "seeds", "adversary", "diagnostic_mlp"]
ADVERSARY = Adversary(lambdas=[0.05, 0.001], epochs=3)
ASKED = {"default": {}, "seeds": {"n_seeds": 2}, "adversary": ADVERSARY}


def run(model, data, folder, tests=ASKED, **options):
    given = RetrainOptions(**options)
    return retrain(model, data, tests, output_dir=folder, options=given, progress=False)


@pytest.fixture(scope="module")
def base(reviews, once):
    """A checkpoint of two epochs over 160 texts."""
    config = AttentionClassifierConfig(embedding_size=12, encoder_size=6)
    options = TrainingOptions(epochs=2, learning_rate=1e-2, batch_size=16)
    data = {"validation": reviews["validation"], "options": options, "progress": False}
    return once(
        "base", lambda made: train_classifier(config, reviews["train"], output_dir=made, **data)
    )


@pytest.fixture(scope="module")
def folder(base, reviews_folder, once):
    """What all tests leave behind; do not write into it."""
    return once("retrained", lambda made: run(base, reviews_folder, made))


@pytest.fixture(scope="module")
def report(folder):
    return read_retraining(folder)


def models_in(folder):
    """Every trained model and when it was written."""
    files = folder.rglob("model.safetensors")
    return {str(f.parent.relative_to(folder)): f.stat().st_mtime_ns for f in files}


# --- results ------------------------------------------------------------------------------------------------------


def test_the_short_verdict_and_its_table_are_the_reports_numbers(report):
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) <= 24  # a screen
    graded = report.verdict.findings()
    asked = [line for line in lines if re.match(r"(Is|Can|Do) ", line)]
    assert len(graded) == 3
    for found, line in zip(graded, asked, strict=True):
        begin, question = line.split("  ")[0], found.rule_with_thresholds.question
        assert question.startswith(begin) and question.removeprefix(begin).strip() in lines
        assert re.match(rf"  +{found.answer}  *\S", line.removeprefix(begin))
        assert f" {found.value:z.3f}" in line


def test_every_model_is_an_ordinary_checkpoint(folder, report):
    expected = ["uniform", "seeds/1", "seeds/2", "adversary/lambda-0.001", "adversary/lambda-0.05"]
    guides = ("uniform", "trained", "base", "adversary-lambda-0.001")
    expected += [f"diagnostic_mlp/{guide}" for guide in guides]
    assert [m.name for m in report.models] == expected and models_in(folder).keys() == set(expected)
    for m in report.models:
        assert m.seconds > 0 and m.n_epochs in (2, 3) and "test_accuracy" in m.metrics
    saved = folder / "adversary" / "lambda-0.05"
    model = AutoModelForSequenceClassification.from_pretrained(saved)
    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert model(**tokenizer("the film was superb", return_tensors="pt")).logits.shape == (1, 2)
    assert not list(folder.rglob(".steps"))
    names = {f.name for f in folder.iterdir() if f.is_file()}
    assert names == {"retraining.json", "summary.json", "report.md", "report.html"}


def test_the_adversary_guides_that_is_nearest_to_the_papers(folder):
    """λ = .002 in our scale: .001 here, not .05. Its weights, read again, are those that the model was trained with."""
    from_folder = AutoModelForSequenceClassification.from_pretrained
    tokenizer = load_base_model(folder / "seeds" / "1").tokenizer
    data = json.loads((folder / "summary.json").read_text())["dataset"].removesuffix(" (test)")
    examples = load_splits(data)["test"]
    adversary = from_folder(folder / "adversary" / "lambda-0.001")
    guide = make_guide(read_outputs(adversary, tokenizer, examples))
    guided = from_folder(folder / "diagnostic_mlp" / "adversary-lambda-0.001")
    found = predict(guided, tokenizer, examples, guide=guide).argmax(-1)
    rows = read_retraining(folder).wide_frame().sort_index()
    assert np.array_equal(found.numpy() == rows.label, rows.adversary_guide_correct == 1)


def test_every_mean_can_be_recomputed_from_the_rows(folder, report):
    rows = read_rows(folder / "rows")
    assert {*rows.columns} == {"test", "statistic", "example_id", "layer", "head", "value"}
    for s in report.statistics:
        if s.group == "all":
            values = rows[(rows.test == s.test) & (rows.statistic == s.statistic)].value
            assert s.n + s.undefined == 40 and values.mean() == pytest.approx(
                s.mean, rel=1e-9, nan_ok=True
            )
    assert {s.test for s in report.statistics} == set(TESTS)


def test_the_curve_has_what_it_is_compared_with(report):
    points = {p.name: p for p in compute_points(report.statistics, report.scores) if p.name}
    means = {s.statistic: s.mean for s in report.statistics if s.group == "all"}
    assert points["adversary λ 0.05"].jsd.value == means["adversary_jsd@0.05"]
    assert points["another seed"].tvd.value == means["seed_tvd"]
    assert points["trained with uniform attention"].jsd.value == means["uniform_model_jsd"]
    frontier, search = points["exact frontier, ε 0.05"], points["search, ε 0.05"]
    assert frontier.displayed_change == "≤ 0.05"
    assert search.jsd.value <= frontier.jsd.value + 1e-9
    farthest = max(p.jsd.value for p in points.values())
    assert points["largest possible JSD"].jsd.value >= farthest - 1e-9


def test_json_and_back(folder, report, cli):
    data = json.loads((folder / "summary.json").read_text())
    assert (
        convert_retraining_to_json(parse_retraining(data))
        == data
        == convert_retraining_to_json(report)
    )
    assert data["verdict"] == report.verdict.sentences()
    assert cli("report", folder).out == f"{report}\n"


# --- again, and killed --------------------------------------------------------------------------------------------


def test_the_same_again_trains_nothing(
    base, reviews_folder, copy_of, folder, report, monkeypatch, cli
):
    """In a copy, too: a folder may be moved between two runs."""
    folder = copy_of(folder)
    before = models_in(folder)
    monkeypatch.setattr(
        "transformers.Trainer.train", lambda *args, **options: pytest.fail("trained")
    )
    command = ["retrain", "--model", base, "--dataset", reviews_folder, "--output-dir", folder]
    command += ["--set", "seeds.n_seeds=2", "adversary.lambdas=0.05,0.001", "adversary.epochs=3"]
    done = cli(*command, "--json")
    assert done.code == 0, done.err
    assert (
        json.loads(done.out) == convert_retraining_to_json(report) and models_in(folder) == before
    )


@pytest.mark.slow
def test_tests_seeds_and_adversaries_added_later(base, reviews_folder, copy_of, folder):
    """λ = .002 is nearer to the paper's than .001: the model that the first one guided is not taken for the second's."""
    copy = copy_of(folder)
    before = models_in(copy)
    found = run(base, reviews_folder, copy, Seeds(n_seeds=3))
    assert {s.test for s in found.statistics} == {"seeds"}
    assert "one_seed_jsd@3" in {s.statistic for s in found.statistics}
    run(base, reviews_folder, copy, [replace(ADVERSARY, lambdas=[0.001, 0.002]), "diagnostic_mlp"])
    after = models_in(copy)
    assert before.items() <= after.items()
    new = {"seeds/3", "adversary/lambda-0.002", "diagnostic_mlp/adversary-lambda-0.002"}
    assert after.keys() - before.keys() == new


def test_another_run_in_the_same_folder_is_refused(base, reviews, reviews_folder, copy_of, folder):
    folder = copy_of(folder)
    before = models_in(folder)
    fewer = type(reviews)({name: part.select(range(30)) for name, part in reviews.items()})
    for model, data, change, what in (
        (base, reviews_folder, {"seed": 1}, "seed"),
        (base, reviews_folder, {"epochs": 1}, r"settings \(epochs \d+ instead of epochs 1\)"),
        (base, reviews_folder, {"tests": Adversary(epochs=2)}, "adversary"),
        (folder / "seeds" / "1", reviews_folder, {}, "model fingerprint"),
        (base, fewer, {}, "data fingerprint"),
    ):
        message = f"belongs to another retraining with different settings: .*{what}"
        with pytest.raises(AttnProbeError, match=message):
            run(model, data, folder, **change)
    assert models_in(folder) == before


def test_what_cannot_be_trained_again(
    base, make_checkpoint, tokenizer, reviews, reviews_folder, tmp_path
):
    bert = tiny_models.saved(
        tmp_path / "bert", tiny_models.bert(tokenizer, layers=1, width=8), tokenizer
    )
    no_test = type(reviews)({name: reviews[name] for name in ("train", "validation")})
    colours = [{"text": f"{word} and so on", "label": word} for word in ("red", "green")] * 10
    colours = dict.fromkeys(("train", "validation", "test"), colours)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").touch()
    for model, data, into, tests, message in (
        (bert, reviews_folder, "out", ASKED, "retrain needs an attention classifier"),
        (
            make_checkpoint("bilstm", "uniform"),
            reviews_folder,
            "out",
            ASKED,
            "has uniform attention",
        ),
        (base, no_test, "out", ASKED, "the data set has no labelled test texts"),
        (
            base,
            colours,
            "out",
            ASKED,
            "classes green, red, but .* was trained with the classes negative, positive",
        ),
        (base, reviews_folder, "thesis", ASKED, "contains other files"),
        (
            base,
            reviews_folder,
            "out",
            {"adversary": {"lambdas": []}},
            "lambdas must be finite numbers of at least 0, got none",
        ),
        (base, reviews_folder, "out", {"seeds": {"n_seeds": 0}}, "n_seeds must be at least 1"),
        (
            base,
            reviews_folder,
            "out",
            {"adversary": {"tvd_scale": "double"}},
            "expected true or half for tvd_scale",
        ),
        (base, reviews_folder, "out", [], "got none"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            run(model, data, tmp_path / into, tests)
    assert not (tmp_path / "out").exists()
    assert [f.name for f in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]


# --- bad input ----------------------------------------------------------------------------------------------------


def test_bad_flags_are_one_line(base, reviews_folder, tmp_path, cli):
    command = ["retrain", "--dataset", reviews_folder, "--output-dir", tmp_path / "out"]
    done = cli(*command, "--model", base, "--tests", "uniform", "permutation")
    assert done.code == 2 and done.err.startswith(
        "attnprobe retrain: argument --tests: unknown test 'permutation'; expected one of "
        "uniform, seeds, adversary, "
    )
    done = cli(*command, "--model", tmp_path / "nowhere")
    assert done.code == 1 and done.err.count("\n") == 1 and "expected a model at" in done.err
    assert cli(*command, "--model", base, "--set", "adversary.lambdas=-1").code == 2
    assert cli(*command, "--model", base, "--set", "adversary.tvd_scale=double").code == 2
    assert not (tmp_path / "out").exists()


# --- the page -----------------------------------------------------------------------


def test_the_page_holds_every_answer_table_and_the_command(folder, report):
    page = (folder / "report.html").read_text()
    assert page == report.to_html()
    seen = Reader(page)
    assert report.verdict.chance in seen.words
    for finding in report.verdict.findings():
        asked = RULES[finding.rule].question
        assert f"{asked} {finding.answer} {finding.sentence}" in seen.words
    for model in report.models:
        assert model.name in seen.words
    shown = {"verdict", "limits", "scores", "curve", "statistics", "provenance", "glossary"}
    assert shown | {"penalty_curve", "seeds", "reason"} <= set(seen.ids)
    assert len(seen.ids) == len(set(seen.ids))
    meanings = seen.words[seen.words.rindex("Glossary") :]
    for term in ("λ", "frontier", "guide", "model without context"):
        assert term in meanings
    for said in (
        "seeds.n_seeds=2 adversary.lambdas=0.05,0.001 adversary.epochs=3",
        "attnprobe audit --model",
        "attnprobe report FOLDER --output numbers.csv",
        "lost against base (negative: gained)",
    ):
        assert said in seen.words


def test_the_page_opens_with_its_answers_and_how_good_the_model_is(report):
    words = Reader(report.to_html()).words
    opening = words[: words.index("The base model is a")]
    for found in report.verdict.findings():
        assert f"{found.rule_with_thresholds.question}{found.answer}{found.value:z.3f} [" in opening
    wide = report.wide_frame()
    positive = wide.label.mean()
    assert f"the best constant guess has {2 * positive / (1 + positive):.3f}" in opening
    assert f"is correct for {max(positive, 1 - positive):.1%}" in opening
    unlabelled = replace(report, rows=pd.DataFrame())
    assert "the texts have no labels" in Reader(unlabelled.to_html()).words


def test_the_command_on_the_page_asks_for_the_same(report):
    words = shlex.split(retraining_command(report))
    asked = vars(build_parser().parse_args(words[1:]))
    assert asked["model"] == report.model
    chosen = select_retraining_tests(asked_by_flags(asked, lambda: OPTIONS_BY_TEST))
    assert list(chosen) == TESTS and chosen == select_retraining_tests(ASKED)
