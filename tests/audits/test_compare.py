"""Checkpoints beside one another: scores against scipy-free plain loops, the table, and the command line."""

import json

import numpy as np
import pytest
import torch

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttnProbeError,
    AuditOptions,
    audit,
    train_classifier,
)
from hf_attnprobe.audits.compare import compare
from hf_attnprobe.retraining.base_model import (
    RetrainingSetup,
    load_base_model,
    run_retraining_test,
    train_variant,
)
from hf_attnprobe.statistics.scores import compute_metrics
from hf_attnprobe.studies.paper_tables import compute_f1_changes
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.trainer import Stopwatch
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.synthetic_rows import make_rows


SIZES = {"embedding_size": 12, "encoder_size": 6}
TESTS = ["fragility", "adversarial", "conicity"]
KINDS = {
    "base": {},
    "tying": {"tying": 0.5},
    "mlm": {"mlm_weight": 0.5},
    "concat": {"residual_connection": "concat"},
}


@pytest.fixture(scope="module")
def checkpoints(reviews, once):
    """Four trainings of three epochs over 160 texts, differing in one field of the configuration."""
    options = TrainingOptions(epochs=3, learning_rate=1e-2, batch_size=16)
    data = reviews["train"], reviews["validation"]

    def make(folder):
        for name, changes in KINDS.items():
            config = AttentionClassifierConfig(**SIZES, **changes)
            given = {"output_dir": folder / name, "options": options, "progress": False}
            train_classifier(config, *data, **given)

    folder = once("compared", make)
    return [folder / name for name in KINDS]


@pytest.fixture(scope="module")
def compared(checkpoints, reviews_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "out"
    return run(checkpoints[:2], reviews_folder, folder), folder


def run(models, data, folder, tests=TESTS):
    return compare(models[0], models[1:], data, tests, output_dir=folder, progress=False)


# --- training with penalties --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_masked_training_is_reproducible_and_the_record_does_not_hide_it(
    checkpoints, reviews, tmp_path
):
    base = load_base_model(checkpoints[2])
    again = train_variant(base, reviews, tmp_path / "again")
    assert again.model.config.mlm_weight == 0.5
    for one, two in zip(again.model.parameters(), base.model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
def test_masks_are_the_same_after_an_interruption(checkpoints, reviews, tmp_path, monkeypatch):
    class InterruptionError(Exception):
        """As if the process were gone."""

    def on_step_end(self, args, state, control, **options):
        if state.global_step == 14:  # of ten steps an epoch
            raise InterruptionError

    base = load_base_model(checkpoints[2])
    with monkeypatch.context() as patched, pytest.raises(InterruptionError):
        patched.setattr(Stopwatch, "on_step_end", on_step_end)
        train_variant(base, reviews, tmp_path / "cut")
    torch.manual_seed(77)  # where another process would be
    continued = train_variant(base, reviews, tmp_path / "cut")
    for one, two in zip(continued.model.parameters(), base.model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
def test_the_whole_audit_of_a_model_that_cannot_be_resumed(tokenizer, texts):
    rows = [{"text": text} for text in texts[:6]]
    tests = "correlation permutation adversarial erasure input_erasure uniform_attention conicity"
    tests += " scale"
    for changes in ({"residual_connection": "concat"}, {"encoder": "orthogonal_lstm"}):
        model = tiny_models.classifier(tokenizer, **SIZES | changes)
        report = audit(model, rows, tokenizer=tokenizer, progress=False)
        assert {s.test for s in report.statistics if s.n} == set(tests.split())


@pytest.mark.slow
def test_a_context_free_model_beside_a_tied_one_is_a_plain_one(checkpoints, reviews, tmp_path):
    base = load_base_model(checkpoints[1], epochs=1)
    result = run_retraining_test("diagnostic_mlp", RetrainingSetup(base, reviews, tmp_path))
    assert {run.model.config.tying for run in result.trained} == {0.0}


# --- scores from rows ---------------------------------------------------------------------------------------------


def rows_of(trained, uniform, permuted, labels):
    """Rows of an audit from shares [texts, classes] and labels."""
    parts = {("prediction", "label"): labels}
    for name, shares in (("trained", trained), ("uniform", uniform), ("permuted", permuted)):
        for k, column in enumerate(np.asarray(shares).T):
            parts["fragility", f"{name}_share@{k}"] = column
    return make_rows(parts)


def one_hot(predicted, n):
    return np.eye(n)[predicted]


def scores_of(rows):
    """F1 of an audit with its intervals, and its changes."""
    wide = rows.pivot(index="example_id", columns="statistic", values="value")
    return compute_f1_changes(wide)


def test_scores_by_hand():
    labels = [1, 1, 0, 0, -1]
    trained, uniform = one_hot([1, 1, 0, 1, 0], 2), one_hot([1, 0, 0, 1, 0], 2)
    permuted = np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    found = scores_of(rows_of(trained, uniform, permuted, labels))
    f1 = 2 * 2 / (3 + 2)
    changes = 2 * 1 / (2 + 2) - f1, 2 * 1.5 / (2 + 2) - f1
    assert [e.value for e in found] == pytest.approx([100 * v for v in (f1, *changes)])
    assert {e.n for e in found} == {4}


def test_scores_are_those_of_scores_where_predictions_are_whole():
    for n_classes in (2, 12):
        rng = np.random.default_rng(0)
        labels, trained, uniform = rng.integers(0, n_classes, (3, 80))
        shares = [one_hot(p, n_classes) for p in (trained, uniform)]
        f1, uniform_change, permuted_change = scores_of(rows_of(shares[0], *shares[1:] * 2, labels))
        own, theirs = (compute_metrics(labels, share) for share in shares)
        assert f1.value == pytest.approx(100 * own["f1"])
        assert permuted_change.value == pytest.approx(100 * (theirs["f1"] - own["f1"]))
        counts = np.random.default_rng(0).multinomial(80, np.full(80, 1 / 80), size=1000)
        changes = []
        for rows in (np.repeat(np.arange(80), row) for row in counts):
            one, other = (compute_metrics(labels[rows], share[rows])["f1"] for share in shares)
            changes.append(100 * (other - one))
        expected = tuple(np.percentile(changes, [2.5, 97.5]))
        assert uniform_change.ci95 == pytest.approx(expected)


# --- the comparison -----------------------------------------------------------------------------------------------


def test_every_number_is_that_of_an_audit_and_differences_are_paired(
    compared, checkpoints, reviews_folder
):
    comparison, folder = compared
    options = AuditOptions(shown_texts=0)
    alone = [
        audit(model, reviews_folder, TESTS, options=options, progress=False)
        for model in checkpoints[:2]
    ]
    room = [report.wide_frame()["epsilon_max_jsd@0.01"] for report in alone]
    (own,) = [s for s in comparison.statistics if s.statistic == "epsilon_max_jsd@0.01"]
    assert [m.value for m in own.means] == pytest.approx([r.mean() for r in room])
    (difference,) = own.differences
    assert difference.value == pytest.approx((room[1] - room[0]).mean()) and difference.paired
    assert (folder / "1-tying" / "summary.json").is_file()


def test_it_continues_to_the_same_comparison(compared, checkpoints, reviews_folder, copy_of):
    comparison, folder = compared[0], copy_of(compared[1])
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("part-*")}
    assert run(checkpoints[:2], reviews_folder, folder).to_json() == comparison.to_json()
    assert before == {f: f.stat().st_mtime_ns for f in folder.rglob("part-*")}
    assert (folder / "report.md").read_text() == comparison.to_markdown()


def test_from_the_command_line(cli, checkpoints, reviews_folder, tmp_path):
    command = ["compare", *checkpoints[:2], "--dataset", reviews_folder, "--tests", "fragility"]
    done = cli(*command, "--test-limit", 9, "--output-dir", tmp_path / "out", "--json")
    found = json.loads(done.out)
    assert done.code == 0 and found["n"] == [9, 9] and len(found["names"]) == 2
    shown = {s["statistic"] for s in found["statistics"]}
    assert {"trained_correct", "uniform_correct", "permuted_correct"} <= shown


def test_bad_input(checkpoints, reviews_folder, tmp_path):
    """Refused before any work."""
    for versions in (checkpoints[1], []):
        with pytest.raises(
            AttnProbeError,
            match=r"needs at least one version to compare|expected a list for versions",
        ):
            compare(checkpoints[0], versions, reviews_folder, output_dir=tmp_path / "out")
    options = {"output_dir": tmp_path / "out", "options": AuditOptions(map="map")}
    refused("--map belongs to one model", compare, checkpoints[0], ["int8"], "d", **options)
    assert not (tmp_path / "out").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    refused("contains other files", run, checkpoints, reviews_folder, tmp_path / "mine")
    assert [f.name for f in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
