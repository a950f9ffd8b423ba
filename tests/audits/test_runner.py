"""The work of a runner: its batches, their order, and the share of each process."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hf_attnprobe import AuditOptions, Data
from hf_attnprobe.audits import runner as runners
from hf_attnprobe.audits.cost_model import AuditProgress
from hf_attnprobe.audits.runner import AuditRunner
from hf_attnprobe.audits.setup import AuditRequest, prepare_audit
from hf_attnprobe.core.hardware import PeakMemory
from hf_attnprobe.protocol import Site
from hf_attnprobe.storage.rows import read_finished_ids


SITES = {"uniform_attention": [Site(0, 0)]}


@pytest.fixture(scope="module")
def audit(checkpoint, reviews_folder):
    """An audit of 24 texts before its first test."""
    options = AuditOptions(batch_size=4)
    data = Data(reviews_folder, test_limit=24)
    return prepare_audit(AuditRequest(checkpoint, data, ["uniform_attention"], options))


@pytest.fixture
def runner(audit, tmp_path):
    return audit.make_runner(audit.tokenized.texts, tmp_path / "rows", AuditProgress())


def record_batches(monkeypatch):
    """Replace the work on a batch by a list of the batches."""
    batches = []
    monkeypatch.setattr(
        AuditRunner, "run_and_save", lambda self, sites, texts, limit: batches.append(texts)
    )
    return batches


def test_the_memory_budget_limits_batches(runner):
    """The peak is counted at every operation of the real batches."""

    def measure_peak(texts):
        with PeakMemory() as memory:
            runner.run_texts(SITES, texts)
        return memory.peak

    unlimited = replace(runner, batch_size=64)
    [(_, all_texts)] = unlimited.plan_pending_work(SITES, {})
    assert len(all_texts) == 24
    budget = measure_peak(all_texts) // 4
    limited = replace(unlimited, memory_budget=budget)
    batches = [texts for _, texts in limited.plan_pending_work(SITES, {})]
    assert sum(map(len, batches)) == 24 and 4 <= len(batches) < 24
    assert max(map(measure_peak, batches)) <= budget


def test_the_longest_texts_come_first(runner, monkeypatch):
    batches = record_batches(monkeypatch)
    runner.run_pending(SITES, {})
    lengths = [max(text.n_tokens for text in batch) for batch in batches]
    assert len(batches) == 6 and lengths == sorted(lengths, reverse=True)
    assert lengths[0] == max(text.n_tokens for text in runner.texts) > lengths[-1]


def test_every_process_has_a_share_of_the_batches(runner, monkeypatch):
    batches_by_process = []
    for index in range(2):
        state = SimpleNamespace(
            process_index=index, num_processes=2, wait_for_everyone=lambda: None
        )
        monkeypatch.setattr(runners, "get_process_state", lambda state=state: state)
        batches = record_batches(monkeypatch)
        runner.run_pending(SITES, {})
        batches_by_process.append(batches)
    shares = [{t.example_id for batch in part for t in batch} for part in batches_by_process]
    assert not shares[0] & shares[1] and len(shares[0] | shares[1]) == 24
    assert [len(part) for part in batches_by_process] == [3, 3]


def test_finished_texts_do_not_run_again(runner, monkeypatch):
    runner.run_pending(SITES, {})
    finished = read_finished_ids(runner.folder)
    assert finished["uniform_attention", 0, 0] == {t.example_id for t in runner.texts}
    batches = record_batches(monkeypatch)
    runner.run_pending(SITES, finished)
    assert not batches
    finished["uniform_attention", 0, 0].remove(runner.texts[5].example_id)
    runner.run_pending(SITES, finished)
    assert batches == [[runner.texts[5]]]
