"""What --estimate says: against the audit itself, which goes on from its first round."""

import json
import time

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from hf_attnprobe import (
    AttnProbeError,
    AuditOptions,
    Correlation,
    Permutation,
    audit,
)
from hf_attnprobe.auditing import sweep as sweeps
from hf_attnprobe.auditing.clock import Clock, Step
from hf_attnprobe.auditing.estimate import AuditEstimate, Seconds, estimate_audit, in_bytes
from hf_attnprobe.hardware import PeakMemory
from hf_attnprobe.statistics.rows import KEY
from hf_attnprobe.storage.rows import read_rows


OPTIONS = AuditOptions(shown_texts=2)


@pytest.fixture(scope="module")
def bert(tokenizer):
    """Two layers of two heads, with its tokenizer."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForSequenceClassification(config).eval(), tokenizer


def test_the_time_of_an_audit_on_the_clock_of_the_processor(checkpoint, reviews_folder):
    tests = [Permutation(n_permutations=400), Correlation()]
    audit(checkpoint, reviews_folder, tests, options=OPTIONS, progress=False)  # imports are no work
    told = estimate_audit(
        checkpoint, reviews_folder, tests, options=OPTIONS, clock=time.process_time
    )
    begun = time.process_time()
    audit(checkpoint, reviews_folder, tests, options=OPTIONS, progress=False)
    taken = time.process_time() - begun
    assert taken / 1.5 < told.seconds.total < 1.5 * taken


def test_the_first_round_is_kept_and_what_is_done_is_not_counted(
    checkpoint, reviews_folder, tmp_path, cli
):
    folder = tmp_path / "audit"
    asked = ["audit", "--model", checkpoint, "--dataset", reviews_folder]
    asked += ["--tests", "permutation"]
    asked += ["--shown-texts", 0, "--set", "permutation.n_permutations=5"]
    done = cli(*asked, "--estimate", "--test-limit", 30)
    assert done.code == 0 and "nothing was written" in done.out and "on 30 texts" in done.out
    asked += ["--output-dir", folder]
    told = json.loads(cli(*asked, "--test-limit", 30, "--estimate", "--json").out)
    assert (told["n_texts"], told["n_left"], told["n_runs"], told["n_tests"]) == (30, 30, 30, 1)
    kept = {part: part.stat().st_mtime_ns for part in (folder / "rows").glob("part-*")}
    n_kept = read_rows(folder / "rows").example_id.nunique()
    assert kept and n_kept == told["measured_texts"] and not (folder / "summary.json").exists()
    again = json.loads(cli(*asked, "--test-limit", 30, "--estimate", "--json").out)
    assert again["n_left"] == 30 - n_kept
    seconds = told["seconds"]
    assert seconds["total"] == pytest.approx(
        seconds["preparation"] + seconds["tests"] + seconds["report"]
    )
    assert cli(*asked, "--test-limit", 30).code == 0
    assert all(part.stat().st_mtime_ns == before for part, before in kept.items())
    rows = read_rows(folder / "rows")
    assert rows.example_id.nunique() == 30 and not rows.duplicated(list(KEY)).any()
    nothing = json.loads(cli(*asked, "--test-limit", 30, "--estimate", "--json").out)
    assert nothing["n_left"] == nothing["n_runs"] == nothing["seconds"]["tests"] == 0
    other = cli(*asked, "--test-limit", 20, "--estimate", "--seed", 1)
    assert other.code == 1 and "belongs to another audit" in other.err


def test_where_it_takes_long_shorter_ways_are_named():
    def told(seconds, without_heads=700.0):
        return AuditEstimate(
            50, 50, 3, 79, 11_850, 10**9, 10**8, 10**6, Seconds(10.0, seconds, 20.0),
            {"erasure": 0.8 * seconds, "permutation": 0.2 * seconds}, without_heads, 21, None,
        )  # fmt: skip

    (line,) = [x for x in told(73_000.0).to_text().splitlines() if x.startswith("shorter")]
    assert line == (
        "shorter  --time 10m reports what is known by then; --no-single-heads takes about 12 min; "
        "erasure takes 80% of it, leave it out with --tests"
    )
    assert "shorter" not in told(100.0).to_text()
    assert "--no-single-heads" not in told(73_000.0, None).to_text()


def test_what_was_measured_is_told_of_other_sizes():
    clock = Clock()
    for n, k in ((4, 10), (16, 10), (16, 30), (2, 50), (1, 7), (8, 25)):
        clock.add(Step("a", "first", n, k), 3.0 + 0.2 * n * k + 0.01 * n * k**2)
    steps = [Step("a", "first", 64, 20)] * 3
    assert clock.expects(steps) == pytest.approx(3 * (3 + 0.2 * 1280 + 0.01 * 25600))
    other = Clock()
    assert other.expects(steps) == 0
    other.add(Step("a", "first", 4, 10), 8.0)  # of one size in proportion to it
    assert other.expects([Step("a", "head", 2, 10)]) == pytest.approx(4.0)
    other.add(Step("a", "head", 4, 10), 1.0)  # of its own place there is better
    assert other.expects([Step("a", "head", 4, 10)]) == pytest.approx(1.0)


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


def test_bytes_in_words():
    assert in_bytes(1_340_000_000) == "1.3 GB" and in_bytes(700) == "700 B"


def test_an_estimate_refuses_what_an_audit_refuses(checkpoint, reviews_folder):
    with pytest.raises(AttnProbeError, match="unknown test"):
        estimate_audit(checkpoint, reviews_folder, ["shuffling"])
