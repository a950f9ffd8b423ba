"""Checkpoints beside one another: scores against scipy-free plain loops, the table, and the command line."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import zoo
from hf_attnprobe import (
    AttentionClassifierConfig,
    AttnProbeError,
    AuditOptions,
    audit,
    train_classifier,
)
from hf_attnprobe.checkpoint_comparison.report import (
    COLUMNS,
    CheckpointComparison,
    ComparedCheckpoint,
    can_be_told,
    numbers_of,
    published_for,
    regulariser_name,
    to_json,
)
from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
from hf_attnprobe.retraining.base import Setup, load_base, run_test, train_again
from hf_attnprobe.retraining.options import Adversary
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.scores import metrics
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.trainer import Stopwatch
from made_up_rows import rows_of_texts
from shown_page import Reader


SIZES = {"embedding_size": 12, "encoder_size": 6}
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
    return run(checkpoints, reviews_folder, folder), folder


def run(models, data, folder, tests=None):
    return compare_checkpoints(models, data, tests, output_dir=folder, progress=False)


# --- training with penalties --------------------------------------------------------------------------------------


def test_regularised_training_ties_states_to_words(checkpoints, reviews):
    """The distance that the penalty is about, on texts it was not trained on."""
    distances = {}
    for name, folder in list(zip(KINDS, checkpoints, strict=True))[:2]:
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        batch = tokenizer(reviews["test"]["text"][:], padding=True, return_tensors="pt")
        outputs = model(**batch, output_hidden_states=True)
        moved = outputs.hidden_states[0] - model.get_input_embeddings()(batch["input_ids"])
        content = batch["attention_mask"].bool()
        distances[name] = moved.square().sum(-1)[content].mean().item()
    assert distances["tying"] < distances["base"] / 2


def test_masked_training_is_reproducible_and_the_record_does_not_hide_it(
    checkpoints, reviews, tmp_path
):
    base = load_base(checkpoints[2])
    again = train_again(base, reviews, tmp_path / "again")
    assert again.model.config.mlm_weight == 0.5
    for one, two in zip(again.model.parameters(), base.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_masks_are_the_same_after_an_interruption(checkpoints, reviews, tmp_path, monkeypatch):
    class Stop(Exception):
        """As if the process were gone."""

    def on_step_end(self, args, state, control, **options):
        if state.global_step == 14:  # of ten steps an epoch
            raise Stop

    base = load_base(checkpoints[2])
    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr(Stopwatch, "on_step_end", on_step_end)
        train_again(base, reviews, tmp_path / "cut")
    torch.manual_seed(77)  # where another process would be
    continued = train_again(base, reviews, tmp_path / "cut")
    for one, two in zip(continued.model.parameters(), base.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_the_whole_audit_of_a_model_that_cannot_be_resumed(tokenizer, texts):
    rows = [{"text": text} for text in texts[:6]]
    tests = "correlation permutation adversarial erasure input_erasure uniform_attention conicity"
    tests += " scale"
    for changes in ({"residual_connection": "concat"}, {"encoder": "orthogonal_lstm"}):
        model = zoo.classifier(tokenizer, **SIZES | changes)
        report = audit(model, rows, tokenizer=tokenizer, progress=False)
        assert {s.test for s in report.statistics if s.n} == set(tests.split())


def test_a_context_free_model_beside_a_tied_one_is_a_plain_one(checkpoints, reviews, tmp_path):
    base = load_base(checkpoints[1], epochs=1)
    result = run_test("diagnostic_mlp", Setup(base, reviews, tmp_path))
    assert {run.model.config.tying for run in result.trained} == {0.0}


# --- scores from rows ---------------------------------------------------------------------------------------------


def rows_of(trained, uniform, permuted, labels):
    """Rows of an audit from shares [texts, classes] and labels."""
    parts = {("prediction", "label"): labels}
    for name, shares in (("trained", trained), ("uniform", uniform), ("permuted", permuted)):
        for k, column in enumerate(np.asarray(shares).T):
            parts["fragility", f"{name}_share@{k}"] = column
    return rows_of_texts(parts)


def one_hot(predicted, n):
    return np.eye(n)[predicted]


def fragility_scores(rows, n_classes):
    """The scores of an audit with their intervals."""
    return numbers_of(rows, n_classes).estimates()


def test_scores_by_hand():
    labels = [1, 1, 0, 0, -1]
    trained, uniform = one_hot([1, 1, 0, 1, 0], 2), one_hot([1, 0, 0, 1, 0], 2)
    permuted = np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    found = fragility_scores(rows_of(trained, uniform, permuted, labels), 2)
    f1 = 2 * 2 / (3 + 2)
    assert found["f1"].value == pytest.approx(f1)
    assert found["uniform_change"].value == pytest.approx(2 * 1 / (2 + 2) - f1)
    assert found["permuted_change"].value == pytest.approx(2 * 1.5 / (2 + 2) - f1)
    assert found["accuracy"].value == pytest.approx(0.75)
    assert found["accuracy_permuted_change"].value == pytest.approx((1 + 0.5 + 0.5 + 1) / 4 - 0.75)


def test_scores_are_those_of_scores_where_predictions_are_whole():
    for n_classes in (2, 4):
        rng = np.random.default_rng(0)
        labels, trained, uniform = rng.integers(0, n_classes, (3, 80))
        shares = [one_hot(p, n_classes) for p in (trained, uniform)]
        found = fragility_scores(rows_of(shares[0], shares[1], shares[1], labels), n_classes)
        own, theirs = (metrics(labels, share) for share in shares)
        assert found["f1"].value == pytest.approx(own["f1"])
        assert found["accuracy"].value == pytest.approx(own["accuracy"])
        assert found["permuted_change"].value == pytest.approx(theirs["f1"] - own["f1"])
        counts = np.random.default_rng(0).multinomial(80, np.full(80, 1 / 80), size=1000)
        changes = []
        for rows in (np.repeat(np.arange(80), row) for row in counts):
            one, other = (metrics(labels[rows], share[rows])["f1"] for share in shares)
            changes.append(other - one)
        expected = tuple(np.percentile(changes, [2.5, 97.5]))
        assert found["uniform_change"].ci95 == pytest.approx(expected)


def test_without_labels_there_is_no_score():
    shares = one_hot([0, 1], 2)
    assert fragility_scores(rows_of(shares, shares, shares, [-1, -1]), 2) == {}


# --- differences ----------------------------------------------------------------------------------------------------


def room_rows(room, bound):
    """Rows of an audit with ε-max JSD, its ceiling and labels that are all predicted."""
    n = len(room)
    values = {
        ("adversarial", "epsilon_max_jsd@0.01"): room,
        ("adversarial", "largest_jsd"): bound,
        ("prediction", "label"): np.zeros(n),
        ("prediction", "predicted_class"): np.zeros(n),
        ("prediction", "probability"): np.full(n, 0.9),
    }
    return rows_of_texts(values)


def test_room_is_compared_by_its_share_of_each_models_ceiling():
    """Raw .590 against .610 was "more room"; .645 and .693 are the ceilings: it is less."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, 300)
    even = numbers_of(room_rows(0.590 + noise, np.full(300, 0.645)), 2)
    peaked = numbers_of(room_rows(0.610 + noise, np.full(300, 0.693)), 2)
    difference = peaked.minus(even).estimates()
    assert "epsilon_max_jsd@0.01" not in difference and "largest_jsd" not in difference
    share = difference["share_of_largest@0.01"]
    assert share.value == pytest.approx(
        np.mean((0.61 + noise) / 0.693) - np.mean((0.59 + noise) / 0.645)
    )
    assert share.ci95[1] < 0 and can_be_told(share)
    assert even.estimates()["probability"].value == pytest.approx(0.9)


def test_differences_are_paired_by_text():
    """Texts differ by .3, the models by .01 on each: unpaired, nothing could be told."""
    rng = np.random.default_rng(0)
    room = rng.uniform(0.1, 0.4, 200)
    bound = np.full(200, 0.69)
    first = numbers_of(room_rows(room, bound), 2)
    shuffled = room_rows(room + 0.01, bound).sample(frac=1, random_state=0)
    other = numbers_of(shuffled, 2)
    share = other.minus(first).estimates()["share_of_largest@0.01"]
    assert share.value == pytest.approx(0.01 / 0.69)
    assert share.ci95 == pytest.approx((0.01 / 0.69, 0.01 / 0.69))
    one, two = (x.estimates()["share_of_largest@0.01"] for x in (first, other))
    assert one.ci95[1] > two.ci95[0]


def test_where_the_ceiling_is_zero_there_is_no_share():
    numbers = numbers_of(room_rows(np.array([0.0, 0.3]), np.array([0.0, 0.6])), 2)
    share = numbers.estimates()["share_of_largest@0.01"]
    assert share.value == pytest.approx(0.5) and share.n == 1


def test_scores_of_other_texts_are_not_subtracted():
    labels = [1, 0] * 20
    shares = one_hot(np.array(labels), 2)
    first = numbers_of(rows_of(shares, shares, shares, labels), 2)
    fewer = numbers_of(rows_of(shares, shares, shares, [-1, *labels[1:]]), 2)
    assert "f1" in first.minus(first).estimates() and "f1" not in fewer.minus(first).estimates()


@pytest.mark.parametrize("case", range(4))
def test_what_cannot_be_told_follows_from_plain_pandas(case):
    """F1 by counting, resampled by pandas: the mark (?) stands where the interval holds 0."""
    rng = np.random.default_rng(case)
    n = [20, 60, 400, 400][case]
    labels = np.arange(n) % 2
    found, tables = [], []
    for accuracy in (0.75, [0.95, 0.95, 0.75, 0.6][case]):
        predicted = np.where(rng.random(n) < accuracy, labels, 1 - labels)
        shares = one_hot(predicted, 2)
        found.append(numbers_of(rows_of(shares, shares, shares, labels), 2))
        tables.append(predicted)
    frame = pd.DataFrame({"labels": labels, "first": tables[0], "other": tables[1]})

    def f1(part, name):
        hits = ((part.labels == 1) & (part[name] == 1)).sum()
        return 2 * hits / ((part.labels == 1).sum() + (part[name] == 1).sum())

    samples = [frame.sample(frac=1, replace=True, random_state=k) for k in range(400)]
    differences = [f1(part, "other") - f1(part, "first") for part in samples]
    low, high = np.nanpercentile(differences, [2.5, 97.5])
    difference = found[1].minus(found[0]).estimates()["f1"]
    assert difference.value == pytest.approx(f1(frame, "other") - f1(frame, "first"))
    slack = 0.35 / math.sqrt(n)
    assert difference.ci95 == pytest.approx((low, high), abs=slack)
    if can_be_told(difference):
        assert n >= 30 and (low > -slack or high < slack)
    else:
        assert n < 30 or low - slack < 0 < high + slack


# --- the comparison -----------------------------------------------------------------------------------------------


def test_names_say_how_they_were_trained(compared):
    comparison, _ = compared
    assert [c.name for c in comparison.checkpoints] == ["base", "tying 0.5", "mlm 0.5", "concat"]
    assert {c.attention for c in comparison.checkpoints} == {"additive"} and comparison.n == 40
    changes = {"encoder": "orthogonal_lstm", "residual_connection": "concat"}
    both = AttentionClassifierConfig(**changes, conicity_weight=0.5)
    assert regulariser_name(both) == "concat + conicity 0.5 + orthogonal"


def test_numbers_are_those_of_the_models_and_audits(compared, checkpoints, reviews, reviews_folder):
    comparison, _ = compared
    texts, labels = reviews["test"]["text"][:], reviews["test"]["label"][:]
    tests = ["adversarial", "conicity", "single_token"]
    names = "epsilon_max_jsd@0.01 largest_jsd conicity absolute_conicity probability_range"
    for row, folder in zip(comparison.checkpoints, checkpoints, strict=True):
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        right = [
            model(**tokenizer(t, return_tensors="pt")).logits.argmax().item() == y
            for t, y in zip(texts, labels, strict=True)
        ]
        assert row.found["accuracy"].value == pytest.approx(sum(right) / 40)
        options = AuditOptions(shown_texts=0)
        report = audit(folder, reviews_folder, tests, options=options, progress=False)
        means = {s.statistic: s.mean for s in report.statistics if s.group == "all"}
        for name in names.split():
            assert row.found[name].value == pytest.approx(means[name])


def test_differences_stand_beside_the_first(compared):
    comparison, folder = compared
    first, *others = comparison.checkpoints
    assert not first.differences
    shares = []
    for rows in sorted(folder.glob("*/audit/rows")):
        table = read_rows(rows)
        wide = table.pivot_table(index="example_id", columns="statistic", values="value")
        shares.append(wide["epsilon_max_jsd@0.01"] / wide.largest_jsd)
    for row, share in zip(others, shares[1:], strict=True):
        found = row.differences["share_of_largest@0.01"]
        assert found.value == pytest.approx((share - shares[0]).mean())
        f1 = row.differences["f1"]
        assert f1.value == pytest.approx(row.found["f1"].value - first.found["f1"].value)
    text = comparison.to_markdown()
    assert "| difference to the first |" in text
    assert "ε-max JSD (.01) / largest JSD" in text and "mean top probability" in text
    shown = [d for row in others for name, d in row.differences.items() if name in COLUMNS]
    assert text.count("(?) |") == sum(not can_be_told(difference) for difference in shown)


def test_it_continues_to_the_same_table(compared, checkpoints, reviews_folder, copy_of):
    comparison, folder = compared[0], copy_of(compared[1])
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("part-*")}
    assert run(checkpoints, reviews_folder, folder) == comparison
    assert before == {f: f.stat().st_mtime_ns for f in folder.rglob("part-*")}
    assert json.loads((folder / "comparison.json").read_text()) == to_json(comparison)
    assert (folder / "comparison.md").read_text() == comparison.to_markdown()


def test_adversaries_of_several_bases(checkpoints, reviews_folder, tmp_path):
    tests = ["conicity", Adversary(lambdas=[0.002], epochs=1)]
    found = run(checkpoints[:2], reviews_folder, tmp_path / "out", tests)
    for row in found.checkpoints:
        (point,) = row.adversaries
        assert 0 <= point.jsd.value <= math.log(2) and 0 <= point.tvd.value <= 1
    assert "| trained adversary |" in found.to_markdown() and "| Un |" not in found.to_markdown()
    tied = tmp_path / "out" / "2-tying" / "retrained" / "adversary" / "lambda-0.002"
    assert AutoModelForSequenceClassification.from_pretrained(tied).config.tying == 0.5


def test_the_published_row_stands_beside():
    own = {"embedding_size": 256, "tying": 1.0, "attention": "dot_product"}
    assert published_for("sst", AttentionClassifierConfig(**own)) == (83.5, -9.9, -20.0)
    for other in (
        {"encoder": "mlp", "encoder_size": 256},
        {"conicity_weight": 1.0},
        {"attention": "uniform"},
    ):
        assert published_for("sst", AttentionClassifierConfig(**own | other)) is None
    f1, change = Estimate(0.8, (0.75, 0.85)), Estimate(-0.05, (-0.06, -0.04))
    kind = ("m", "tying 1", "bilstm", "dot_product", {"f1": f1, "uniform_change": change})
    row = ComparedCheckpoint(*kind, published=(83.5, -9.9, -20.0))
    text = CheckpointComparison("sst (test)", 9, 0, (row,)).to_markdown()
    beside = "80.0 [75.0, 85.0] | -5.0 [-6.0, -4.0] | 83.5, -9.9, -20.0 |"
    assert f"| tying 1 (m) | dot_product | {beside}" in text


def test_from_the_command_line(cli, checkpoints, reviews_folder, tmp_path):
    command = ["compare", *checkpoints[:2], "--dataset", reviews_folder, "--tests", "fragility"]
    done = cli(*command, "--test-limit", 9, "--output-dir", tmp_path / "out", "--json")
    found = json.loads(done.out)
    assert done.code == 0 and found["n"] == 9 and len(found["checkpoints"]) == 2


def test_bad_input(checkpoints, make_checkpoint, reviews_folder, tmp_path):
    """Refused before any work."""
    zoo.bert(20, layers=1, width=8).save_pretrained(tmp_path / "bert")
    uniform = [*checkpoints[:1], make_checkpoint("mlp", "uniform")]
    endless = {"conicity": {}, "adversary": {"lambdas": [math.inf]}}
    for models, tests, message in (
        (checkpoints, ["erasure"], "unknown test 'erasure'; expected one of fragility"),
        (checkpoints, ["adversary"], "got adversary alone"),
        (checkpoints[0], None, "a list of models"),
        ([tmp_path / "bert"], None, "expected an attention classifier to compare"),
        (checkpoints[:1], endless, "a finite number for lambdas, got inf"),
        (uniform, ["conicity", "adversary"], "has uniform attention"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            run(models, reviews_folder, tmp_path / "out", tests)
    assert not (tmp_path / "out").exists()
    for name in ("thesis.tex", "comparison", "rows"):
        (tmp_path / f"of-{name}").mkdir()
        (tmp_path / f"of-{name}" / name).write_text("mine")
        with pytest.raises(AttnProbeError, match="holds other files"):
            run(checkpoints, reviews_folder, tmp_path / f"of-{name}")
        assert [f.name for f in (tmp_path / f"of-{name}").iterdir()] == [name]


def test_the_page_holds_all_numbers_and_what_can_be_told(compared):
    comparison, folder = compared
    page = (folder / "report.html").read_text()
    assert page == comparison.to_html()
    seen = Reader(page)
    for line in comparison.to_markdown().splitlines():
        for cell in line.strip("| ").split(" | ") if line.startswith("|") else ():
            if cell.strip("- "):
                assert cell in seen.words and cell.split()[0] in str(comparison)
    n = len(comparison.checkpoints)
    assert seen.words.count(f"against {comparison.checkpoints[0].name}:") == n - 1
    evil = replace(comparison.checkpoints[0], model="<b>bold</b>")
    page = replace(comparison, checkpoints=(evil,)).to_html()
    assert "<b>" not in page and "<b>bold</b>" in Reader(page).words
