"""What --estimate says: against the audit itself, brute-force counts and the formula of a forward pass."""

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
    Data,
    Permutation,
    audit,
)
from hf_attnprobe.adapters import wrap
from hf_attnprobe.auditing import sweep as sweeps
from hf_attnprobe.auditing.estimate import estimate_audit
from hf_attnprobe.auditing.steps import Fitted, Step, counting, in_bytes, measured_memory
from hf_attnprobe.hardware import PeakMemory


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


def test_edited_texts_are_those_that_an_audit_runs(bert, reviews_folder, monkeypatch):
    """Counted in the real audit by wrapping the adapter's class."""
    tests = [Permutation(n_permutations=7)]
    data = Data(reviews_folder, test_limit=12)
    options = AuditOptions(shown_texts=0, prune=False)
    told = estimate_audit(bert, data, tests, options=options)
    kind = type(wrap(bert[0]))
    ran, replay = [0], kind.replay

    def counted(self, observation, attention):
        result = replay(self, observation, attention)
        ran[0] += result.shape[0] * result.shape[1]
        return result

    monkeypatch.setattr(kind, "replay", counted)
    monkeypatch.setattr("hf_attnprobe.auditing.estimate.rehearse", lambda *_: None)
    audit(bert, data, tests, options=options, progress=False)
    assert told.edited_texts == pytest.approx(ran[0], rel=0.02)
    assert (told.n_texts, told.n_left, told.n_tests) == (12, 12, 1)
    assert told.n_heads == 2 * 2 + 2 + 1


def test_flops_of_a_forward_pass_are_those_of_its_matrices(bert):
    adapter, n = wrap(bert[0]), 9
    ids = torch.randint(5, 20, (3, n))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["special_tokens_mask"] = torch.zeros_like(ids)
    batch = adapter.prepare(inputs, (0, 1, 2))
    with counting(adapter) as since:
        adapter.observe(batch)
        flops = since().flops
    hidden, wide = 16, 32
    per_token = 2 * (4 * hidden**2 + 2 * hidden * wide) + 4 * n * hidden
    pooled = 2 * (hidden**2 + hidden * 2)
    assert flops == pytest.approx(3 * (2 * n * per_token + pooled), rel=0.1)
    assert "replay" not in vars(adapter)


def test_the_time_of_an_audit_on_the_clock_of_the_processor(checkpoint, reviews_folder):
    tests = [Permutation(n_permutations=400), Correlation()]
    told = estimate_audit(
        checkpoint, reviews_folder, tests, options=OPTIONS, clock=time.process_time
    )
    begun = time.process_time()
    audit(checkpoint, reviews_folder, tests, options=OPTIONS, progress=False)
    taken = time.process_time() - begun
    assert taken / 1.5 < told.seconds.total < 1.5 * taken
    assert told.with_control
    alone = estimate_audit(checkpoint, reviews_folder, tests[:1], options=OPTIONS)
    assert not alone.with_control  # shuffles are compared with nothing


def test_nothing_is_written_and_what_is_done_is_not_counted(
    checkpoint, reviews_folder, tmp_path, cli
):
    folder = tmp_path / "audit"
    asked = ["audit", "--model", checkpoint, "--dataset", reviews_folder]
    asked += ["--tests", "permutation", "--control", "none", "--output-dir", folder]
    asked += ["--shown-texts", 0, "--set", "permutation.n_permutations=5"]
    done = cli(*asked, "--estimate", "--test-limit", 30)
    assert done.code == 0 and not folder.exists()
    assert "nothing was written" in done.out and "on 30 texts" in done.out
    assert cli(*asked, "--test-limit", 20).code == 0
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    told = json.loads(cli(*asked, "--test-limit", 30, "--estimate", "--json").out)
    assert (told["n_texts"], told["n_left"]) == (30, 10)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before
    seconds = told["seconds"]
    assert seconds["total"] == pytest.approx(
        seconds["preparation"] + seconds["tests"] + seconds["report"]
    )
    nothing = json.loads(cli(*asked, "--test-limit", 20, "--estimate", "--json").out)
    assert nothing["n_left"] == nothing["edited_texts"] == seconds["tests"] * 0
    other = cli(*asked, "--test-limit", 20, "--estimate", "--seed", 1)
    assert other.code == 1 and "belongs to another audit" in other.err


def test_what_was_measured_is_told_of_other_sizes():
    fitted = Fitted()
    for n, k in ((4, 10), (16, 10), (16, 30), (2, 50), (1, 7), (8, 25)):
        fitted.add(Step("a", "first", n, k), 3.0 + 0.2 * n * k + 0.01 * n * k**2)
    steps = [Step("a", "first", 64, 20)] * 3
    assert fitted.total(steps) == pytest.approx(3 * (3 + 0.2 * 1280 + 0.01 * 25600))
    other = Fitted()
    other.add(Step("a", "first", 4, 10), 8.0)  # of one size in proportion to it
    assert other.total([Step("a", "head", 2, 10)]) == pytest.approx(4.0)
    assert other.total([Step("b", "first", 2, 10)]) == 0


@pytest.mark.slow
def test_batches_by_measured_memory_are_larger_and_stay_within_the_budget(
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

    def rows_of(cut):
        peaks.clear(), sizes.clear()
        monkeypatch.setattr(sweeps, "CUT", cut)
        options = AuditOptions(shown_texts=0, prune=False, memory_budget=budget)
        tests = [Permutation(n_permutations=20), "head_ablation"]
        return audit(bert, reviews_folder, tests, options=options, progress=False)

    monkeypatch.setattr(sweeps, "run_batch", watched)
    budget = 3_000_000
    worst, n_worst = rows_of(cut=1e9), len(sizes)
    measured = rows_of(cut=1.5)
    whole = [n for n in sizes if n > 2]  # the measured samples are smaller
    assert len(whole) < n_worst / 1.5 and sum(sizes) >= 40
    assert max(peaks) <= budget
    found, expected = (
        report.to_pandas().sort_values(["test", "statistic", "layer", "head", "example_id"])
        for report in (measured, worst)
    )
    np.testing.assert_allclose(found.value, expected.value, atol=1e-5)


def test_memory_is_that_of_a_single_tensor():
    class Text:
        def __init__(self, n):
            self.n_tokens, self.example_id = n, n

    texts = [Text(n) for n in (10, 20, 40)]

    def run(some):
        n = max(text.n_tokens for text in some)
        torch.zeros(len(some), n, n)

    size = measured_memory(texts, run, torch.device("cpu"))
    assert 4 * 30**2 <= size(30) <= 1.5 * 4 * 30**2


def test_bytes_in_words():
    assert in_bytes(1_340_000_000) == "1.3 GB" and in_bytes(700) == "700 B"


def test_an_estimate_refuses_what_an_audit_refuses(checkpoint, reviews_folder):
    with pytest.raises(AttnProbeError, match="unknown test"):
        estimate_audit(checkpoint, reviews_folder, ["shuffling"])
