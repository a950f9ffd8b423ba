"""Advice: who follows it gets an answer within two steps, or reads why there will not be one."""

import json
import math
import shlex

import numpy as np
import pytest

from benchmarks.truth.kinds import EVERY_KIND
from benchmarks.truth.measure import rows_of
from hf_attnprobe.cli import main
from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.data.synthetic import make_rationale_dataset
from hf_attnprobe.data.tokenizer import build_tokenizer
from hf_attnprobe.documents.blocks import CodeBlock
from hf_attnprobe.reports.next_step import (
    NO_OTHER_STEP_ADVICE,
    build_command,
    recommend_next_step,
)
from hf_attnprobe.reports.report import Report, assemble_report
from hf_attnprobe.reports.verdict import compute_findings
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.rows import Rows
from tests.helpers import tiny_models
from tests.helpers.verdict_rows import good_model, moving, way_of


MAX_STEPS = 2
"""Number of suggested commands after which there must be an answer or an explanation."""
FINAL_REASONS = (
    "too close to a threshold for more texts to decide",
    "more texts will not settle this",
)
"""Reasons of an open answer that explain why no step is suggested."""


def follow_advice(run, settings):
    """Run an audit, and then every command that its report suggests.

    Args:
        run: function from settings to a report.
        settings: settings of the first audit.

    Returns:
        The reports, the first one included.
    """
    reports, all_settings = [run(settings)], [settings]
    while isinstance(advice := recommend_next_step(reports[-1]), CodeBlock):
        settings = parse_command(advice.text)
        assert settings not in all_settings, f"{advice.text} has already run"
        all_settings.append(settings)
        reports.append(run(settings))
        assert len(reports) <= MAX_STEPS + 1, all_settings
    if reports[-1].answer == Answer.CANNOT_SAY:
        text = " ".join(str(reports[-1]).split())
        is_explained = bool(advice) or any(reason in text for reason in FINAL_REASONS)
        assert is_explained and "Run this command" not in text, text
    return reports


def parse_command(command):
    """Settings of a command by flag, such as ``{"test_limit": 30}``."""
    words = shlex.split(command)
    assert words[:2] == ["attnprobe", "audit"]
    values = {}
    for word in words[2:]:
        if word.startswith("--"):
            name = word.removeprefix("--").replace("-", "_")
            values[name] = []
        else:
            values[name].append(word)
    settings = {name: (items[0] if items else True) for name, items in values.items()}
    if "tests" in values:
        settings["tests"] = {test: {} for test in values["tests"]}
    if "test_limit" in values:
        settings["test_limit"] = int(settings["test_limit"])
    return (
        {"no_groups": settings.pop("no_groups")} | settings if "no_groups" in values else settings
    )


# --- constructed models ---------------------------------------------------------------------------


N_TEXTS = 120
"""Number of texts in the data of a constructed model."""
TESTS = ("scale", "exchange", "erasure", "uniform_attention")


def make_constructed_audit(name, n_texts=N_TEXTS):
    """A function that audits a constructed model, from rows that are measured once."""
    kind = EVERY_KIND[name]
    n_texts = min(n_texts, kind.max_texts)
    model, batch = kind.draw(name, seed=1, n_texts=n_texts)
    rows = rows_of(model, batch, seed=1, tests=TESTS)

    def run(settings):
        n_selected = min(settings.get("test_limit", n_texts), n_texts)
        tests = list(settings.get("tests", TESTS))
        provenance = {
            "tests": tests,
            "classes": model.label_names,
            "prediction": {"kind": "classes", "name": "it", "outcomes": model.label_names},
            "asked_for": settings,
            "options": {},
            "versions": {},
        }
        selected_rows = rows.select_ids(range(n_selected))
        if "time" in settings:
            selected_rows, provenance["stopping"] = stop_in_time(selected_rows, settings["time"])
        return assemble_report(
            selected_rows.select(lambda test, *_: test in {*tests, "prediction"}),
            model="m",
            dataset=get_dataset_name("d", "test"),
            n=n_selected,
            seed=0,
            example_ids=tuple(range(n_selected)),
            provenance=provenance,
        )

    return run


def stop_in_time(rows, time):
    """Rows of the texts that the tests reach one after the other, ten of them in a minute."""
    minutes = int(time.removesuffix("m"))
    budget, n_by_test = 10 * minutes, dict.fromkeys(TESTS, 0)
    while budget > 0 and min(n_by_test.values()) < len(rows):
        test = min(TESTS, key=n_by_test.__getitem__)
        n_by_test[test] = min(n_by_test[test] + 10, len(rows))
        budget -= 10
    frame = rows.build_long_frame()
    n_reached = frame.test.map(n_by_test).fillna(len(rows))
    record = {
        "seconds": 60 * minutes,
        "runs_done": sum(n_by_test.values()),
        "runs_of_full_audit": len(TESTS) * len(rows),
        "n_texts": len(rows),
        "seed": 0,
    }
    return type(rows).coerce(frame[frame.example_id < n_reached]), record


FIRST_SETTINGS = {
    "all": {},
    "few texts": {"test_limit": 12},
    "one test": {"tests": {"scale": {}}},
    "one test of few texts": {"tests": {"erasure": {}}, "test_limit": 12},
    "three minutes": {"time": "3m"},
}
"""Settings of the first audit of a constructed model."""
DAILY_KINDS = ("pointer",)


def list_kinds():
    assert {*DAILY_KINDS} <= EVERY_KIND.keys(), sorted(EVERY_KIND)
    return [
        pytest.param(name, marks=() if name in DAILY_KINDS else pytest.mark.slow)
        for name in EVERY_KIND
    ]


@pytest.mark.parametrize("name", list_kinds())
def test_the_advice_for_constructed_models_leads_to_an_answer(name, record_property):
    run = make_constructed_audit(name, N_TEXTS if name not in DAILY_KINDS else 60)
    for start, settings in FIRST_SETTINGS.items():
        reports = follow_advice(run, {"model": "m", "dataset": "d", **settings})
        record_property(start, (len(reports) - 1, str(reports[-1].answer)))


# --- trained and random models, by the command line -------------------------------------------------


LETTERS = "abcdefghij"
"""Letters of texts without spaces."""


def make_texts(tokenizer, n, length, separator=" "):
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    generator = np.random.default_rng(0)
    if length == 1:
        return [str(word) for word in generator.choice(words, n, replace=False)]
    return [separator.join(generator.choice(words, length)) for _ in range(n)]


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory):
    """A function that saves a model and its texts, and returns the beginning of an audit's settings."""
    words = make_rationale_dataset(400, seed=0)["test"]
    tokenizer = build_tokenizer(words["text"])
    tokenizer.model_max_length = 64

    def make(model="classifier", *, n=40, length=6, separator=" ", labels=None):
        folder = tmp_path_factory.mktemp("advice")
        texts, own_tokenizer = make_texts(tokenizer, n, length, separator), tokenizer
        if not separator:
            # Each text is one word of several letters, which are tokens of their own.
            own_tokenizer = tiny_models.word_pieces([*LETTERS, *(f"##{x}" for x in LETTERS)])
            generator = np.random.default_rng(0)
            texts = ["".join(generator.choice([*LETTERS], length)) for _ in range(n)]
        if model == "bert":
            built = tiny_models.bert(own_tokenizer, heads=2, width=16, spread=0.5)
        else:
            built = tiny_models.classifier(len(tokenizer), query=5, read_out=9)
        tiny_models.saved(folder / "model", built, own_tokenizer)
        columns = {"text": texts}
        if labels is not None:
            columns["label"] = [labels[k % len(labels)] for k in range(n)]
        lines = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        data = folder / "test.jsonl"
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"model": str(folder / "model"), "dataset": str(data), "shown_texts": "0"}

    return make


def run_command_line(folder):
    """A function that runs an audit by the command line, each in a new folder, and reads its report."""
    count = iter(range(9))

    def run(settings):
        arguments = []
        for name, value in settings.items():
            values = value if isinstance(value, dict) else [] if value is True else [value]
            arguments += [f"--{name.replace('_', '-')}", *map(str, values)]
        output = folder / str(next(count))
        assert main(["audit", *arguments, "--output-dir", str(output)]) == 0
        return Report.load(output)

    return run


MODELS = {
    "one word": ({"length": 1}, {}),
    "no spaces": ({"model": "bert", "separator": "", "length": 8}, {"no_single_heads": True}),
    "few texts": ({"n": 12}, {}),
    "few of the texts": ({"n": 40}, {"test_limit": "12"}),
    "one class": ({"labels": [0]}, {}),
    "labels": ({"labels": [0, 1]}, {"tests": {"permutation": {}}}),
    "heads alone": (
        {"model": "bert"},
        {"tests": {"permutation": {}, "scale": {}}, "no_groups": True},
    ),
    "bert in little time": ({"model": "bert"}, {"time": "8s"}),
    "bert": ({"model": "bert"}, {"tests": {"scale": {}}, "no_single_heads": True}),
}
"""Maps a model to the arguments that make it, and to the settings of its first audit."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_advice_for_saved_models_leads_to_an_answer(
    name, make_folder, tmp_path, record_property
):
    arguments, settings = MODELS[name]
    reports = follow_advice(run_command_line(tmp_path), make_folder(**arguments) | settings)
    record_property(name, (len(reports) - 1, str(reports[-1].answer)))


def test_a_command_of_an_earlier_run_is_not_suggested_again():
    asked = {"model": "m", "dataset": "d", "test_limit": 30}
    provenance = {"asked_for": asked, "classes": [], "tests": [], "earlier_runs": []}
    report = Report("m", get_dataset_name("d", "test"), 30, 0, (), provenance)
    assert isinstance(build_command(report, test_limit=60), CodeBlock)
    assert build_command(report, test_limit=30) == NO_OTHER_STEP_ADVICE
    provenance["earlier_runs"].append({**asked, "test_limit": 60})
    assert build_command(report, test_limit=60) == NO_OTHER_STEP_ADVICE
    assert not math.isfinite(report.score.value)


def test_scores_are_read_by_the_suggested_command():
    asked = {"model": "m", "dataset": "d", "test_limit": 30, "scores": "scores.jsonl"}
    provenance = {"asked_for": asked, "classes": [], "tests": [], "scores_fingerprint": "1"}
    report = Report("m", get_dataset_name("d", "test"), 30, 0, (), provenance)
    advice = build_command(report, test_limit=60)
    assert advice.text.startswith("attnprobe evaluate-scores ")


def test_more_texts_are_asked_of_the_classes_that_count():
    n = 40
    is_default = np.arange(n) % 2 == 0  # predicted "neg"
    statistics = way_of(np.where(is_default, 0.0, 0.9))
    statistics["scale"]["largest_loss"] = np.where(is_default, 0.01, 0.6)
    statistics["exchange"] = {"largest_exchange": np.where(is_default, 0.01, 0.6)}
    rows = good_model(n, **statistics, **moving(n, 0.3))
    provenance = {"asked_for": {"model": "m", "dataset": "d"}, "classes": ["neg", "pos"]}
    findings = compute_findings(rows, ("neg", "pos"))
    data = get_dataset_name("d", "test")
    report = Report(
        "m", data, n, 0, (), provenance, findings=tuple(findings), rows=Rows.coerce(rows)
    )
    told = " ".join(str(report).split())
    assert "Add more of them. Texts that are predicted as neg do not count" in told
