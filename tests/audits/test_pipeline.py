"""What --estimate says: against the audit itself, which goes on from its first round."""

import json
import time

import numpy as np
import pytest
import torch

from hf_attnprobe import Answers, AuditOptions, Permutation, audit, build_tokenizer
from hf_attnprobe.audits import runner as sweeps
from hf_attnprobe.audits.cost_model import CostModel, Step
from hf_attnprobe.audits.pipeline import AuditEstimate, estimate_audit
from hf_attnprobe.core.hardware import PeakMemory
from hf_attnprobe.statistics.rows import ROW_KEY
from hf_attnprobe.storage.rows import read_rows
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.error_messages import refused


OPTIONS = AuditOptions(shown_texts=2)


@pytest.fixture(scope="module")
def bert(tokenizer):
    """Two layers of two heads, with its tokenizer."""
    return tiny_models.bert(tokenizer, spread=0.02), tokenizer


def test_seconds_of_a_test_are_those_of_its_texts(checkpoint, reviews_folder, monkeypatch):
    """A test that sleeps 20 ms a text: the first round has seen some of 40, the others are left."""
    run_test = sweeps.run_test

    def slow(observation, name, *rest, **options):
        if name == "correlation":
            time.sleep(0.02 * len(observation.probs))
        return run_test(observation, name, *rest, **options)

    monkeypatch.setattr(sweeps, "run_test", slow)
    tests = ["correlation", Permutation(n_permutations=5)]
    told = estimate_audit(checkpoint, reviews_folder, tests, options=OPTIONS)
    n_left = told.n_runs / 2
    assert 15 < n_left < 40
    assert told.seconds["correlation"] == pytest.approx(0.02 * n_left, rel=0.5)
    assert told.seconds["permutation"] < told.seconds["correlation"]


def test_the_first_round_is_kept_and_what_is_done_is_not_counted(
    checkpoint, reviews_folder, tmp_path, cli
):
    folder = tmp_path / "audit"
    asked = ["audit", "--model", checkpoint, "--dataset", reviews_folder]
    asked += ["--tests", "permutation"]
    asked += ["--shown-texts", 0, "--set", "permutation.n_permutations=5"]
    done = cli(*asked, "--estimate", "--test-limit", 30)
    assert done.code == 0 and "The results were not saved" in done.out and "on 30 texts" in done.out
    asked += ["--output-dir", folder]
    told = json.loads(cli(*asked, "--test-limit", 30, "--estimate", "--json").out)
    kept = {part: part.stat().st_mtime_ns for part in (folder / "rows").glob("part-*")}
    n_kept = read_rows(folder / "rows").example_id.nunique()
    assert (told["n_texts"], told["n_runs"]) == (30, 30 - n_kept)
    assert [*told["seconds"]] == ["permutation"]
    assert kept and told["kept"] == str(folder) and not (folder / "summary.json").exists()
    assert told["total"] == pytest.approx(sum(told["seconds"].values()))
    assert cli(*asked, "--test-limit", 30).code == 0
    assert all(part.stat().st_mtime_ns == before for part, before in kept.items())
    rows = read_rows(folder / "rows")
    assert rows.example_id.nunique() == 30 and not rows.duplicated(list(ROW_KEY)).any()
    nothing = json.loads(cli(*asked, "--test-limit", 30, "--estimate", "--json").out)
    assert nothing["n_runs"] == nothing["total"] == 0
    other = cli(*asked, "--test-limit", 20, "--estimate", "--seed", 1)
    assert other.code == 1 and "belongs to another audit" in other.err


def test_where_it_takes_long_shorter_ways_are_named():
    def told(seconds, n_runs=11_850):
        by_test = {"permutation": 0.2 * seconds, "erasure": 0.8 * seconds}
        return AuditEstimate(50, n_runs, by_test, None, "float32").to_text().splitlines()

    first, dearest, cheap, shorter, _ = told(73_000.0)
    assert first.startswith("about 20.3 h for 2 tests on 50 texts in float32: 11,850 runs left")
    assert dearest.split() == ["erasure", "about", "16.2", "h"]
    assert cheap.split() == ["permutation", "about", "4.1", "h"]
    assert (
        shorter.startswith("To shorten the audit, use one of these options: --time 10m")
        and "--no-single-heads" in shorter
    )
    assert "heads" not in told(73_000.0, n_runs=100)[3]  # all attention alone is asked for
    assert not any(line.startswith("to shorten it") for line in told(100.0))


def test_of_a_language_model_a_few_prompts_are_run(tmp_path):
    chat = tiny_language_models.tokenizer()
    data = Answers([row | {"id": k} for k, row in enumerate(tiny_language_models.ROWS * 4)])
    folder = tmp_path / "audit"
    told = estimate_audit(tiny_language_models.llama(chat), data, tokenizer=chat, output_dir=folder)
    assert told.n_texts == 4 * len(tiny_language_models.ROWS) and told.total > 0
    assert told.saved_folder is None and not folder.exists()


def test_what_was_measured_is_told_of_other_sizes():
    costs = CostModel()
    steps = [Step("a", "first", 1280)] * 3
    assert costs.estimate_seconds(steps) == 0
    costs.add_measurement(Step("a", "first", 40), 8.0)
    costs.add_measurement(Step("a", "first", 10), 2.0)
    assert costs.estimate_seconds(steps) == pytest.approx(3 * 1280 * 0.2)
    assert costs.estimate_seconds([Step("a", "head", 20)]) == pytest.approx(4.0)  # of the same test
    costs.add_measurement(Step("a", "head", 40), 1.0)  # of its own place there is better
    assert costs.estimate_seconds([Step("a", "head", 40)]) == pytest.approx(1.0)
    assert costs.estimate_seconds([Step("b", "head", 90)]) == pytest.approx(11.0)  # of all


@pytest.mark.slow
def test_batches_by_measured_memory_fill_the_budget_and_stay_within(
    bert, reviews_folder, monkeypatch
):
    """The peak is counted at every operation of the real batches."""
    peaks, sizes, run_batch = [], [], sweeps.run_batch

    def watched(adapter, batch, *rest):
        with PeakMemory() as memory:
            rows = run_batch(adapter, batch, *rest)
        peaks.append(memory.peak)
        sizes.append(len(batch.example_ids))
        return rows

    def rows_of(budget):
        peaks.clear(), sizes.clear()
        options = AuditOptions(shown_texts=0, prune=False, memory_budget=budget)
        tests = [Permutation(n_permutations=20), "head_ablation"]
        return audit(bert, reviews_folder, tests, options=options, progress=False)

    monkeypatch.setattr(sweeps, "run_batch", watched)
    free = rows_of("2GB")
    assert len(sizes) == 1
    budget = max(peaks) // 4
    cut = rows_of(budget)
    assert sum(sizes) == 40 and 4 <= len(sizes) < 20
    assert budget / 4 < max(peaks) <= budget
    found, expected = (
        report.to_pandas().sort_values(["test", "statistic", "layer", "head", "example_id"])
        for report in (cut, free)
    )
    np.testing.assert_allclose(found.value, expected.value, atol=1e-5)


def test_an_estimate_refuses_what_an_audit_refuses(checkpoint, reviews_folder):
    refused("unknown test", estimate_audit, checkpoint, reviews_folder, ["shuffling"])


# --- Texts that are cut or left out, and labels in a doubtful order ---------------------


FEW = [Permutation(n_permutations=2)]
WORDS = [
    "dull",
    "fine",
    "long",
    "odd",
    "calm",
    "loud",
    "dark",
    "warm",
    "cold",
    "slow",
    "fast",
    "rare",
]
WHOLE = AuditOptions(single_heads=False, shown_texts=0)


def audit_rows(rows, names=("negative", "positive"), **options):
    """Audit a BERT with a length of 8 tokens that predicts the last class for every text."""
    tokenizer = build_tokenizer([row["text"] or "" for row in rows])
    model = tiny_models.bert(
        tokenizer, max_position_embeddings=8, id2label=dict(enumerate(names)), **options
    )
    with torch.no_grad():
        model.classifier.bias += torch.arange(len(names)) * 15.0
    return audit(model, rows, FEW, options=WHOLE, tokenizer=tokenizer, progress=False)


def test_cut_and_blank_texts_are_counted_on_the_first_screen_and_on_stderr(caplog):
    texts = ["a film " * 20, "a dull plot", None, "b film " * 10, "", " "]
    report = audit_rows([{"text": text, "label": 1} for text in texts])
    lengths = [len(text.split()) + 2 for text in (texts[0], texts[3])]
    share = 16 / sum(lengths)
    sentences = [
        "3 of 6 texts are blank and left out",
        f"2 of 3 texts were cut to 8 tokens; {share:.0%} of their tokens were read",
    ]
    assert [r.getMessage() for r in caplog.records if "texts" in r.getMessage()][:2] == sentences
    first_screen = " ".join(str(report).split())
    assert all(f"{sentence}." in first_screen for sentence in sentences)
    assert report.provenance["truncated_tokens"] == sum(lengths)


ORDERS = {
    "data has names": (["good", "bad"], ("LABEL_0", "LABEL_1"), "'bad' as 'LABEL_0'"),
    "model has names": ([0, 1], ("negative", "positive"), "'0' as 'negative'"),
    "numbers as names": (["LABEL_0", "LABEL_1"], ("no", "yes"), "'LABEL_0' as 'no'"),
}


@pytest.mark.parametrize("name", ORDERS)
def test_labels_matched_by_number_below_chance_are_questioned(name, caplog):
    labels, classes, match = ORDERS[name]
    # The model predicts the class with the last number, which is the second label by name.
    wrong = sorted(labels, key=str)[0]
    right = sorted(labels, key=str)[1]
    rows = [{"text": f"a {WORDS[k]} film", "label": wrong if k < 8 else right} for k in range(12)]
    report = audit_rows(rows, classes)
    (question,) = [note for note in report.notes if note.startswith("Labels: ")]
    assert match in question and "only 33% are predicted, which is less than chance" in question
    assert "Is this order right?" in question and question.removeprefix("Labels: ") in caplog.text
    assert "Is this order right?" in report.to_markdown()
    caplog.clear()
    reverse = [{**row, "label": right if row["label"] == wrong else wrong} for row in rows]
    assert not any(note.startswith("Labels") for note in audit_rows(reverse, classes).notes)


def test_labels_matched_by_name_are_not_questioned():
    rows = [{"text": f"a {WORDS[k]} film", "label": "no" if k < 8 else "yes"} for k in range(12)]
    assert not any(note.startswith("Labels") for note in audit_rows(rows, ("no", "yes")).notes)
