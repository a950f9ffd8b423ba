"""Out of memory: with an address space that is really too small, and with errors of an accelerator."""

import json
import sys

import pandas as pd
import pytest
import torch

from hf_attnprobe import AttnProbeError, AuditOptions, Data, Permutation, audit
from hf_attnprobe.audits import runner as sweeps
from hf_attnprobe.core.hardware import PeakMemory, is_out_of_memory, run_with_halving
from hf_attnprobe.storage.rows import read_rows
from tests.helpers.compare_rows import index_values


SMALL = """
import json, resource, sys
from hf_attnprobe import AuditOptions
from hf_attnprobe import Permutation
from hf_attnprobe import audit
from hf_attnprobe import load_examples
from hf_attnprobe.audits import runner as sweep

model, data, room, n = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sizes = []
run_batch = sweep.run_batch
def counted(adapter, batch, *rest):
    rows = run_batch(adapter, batch, *rest)
    sizes.append(len(batch.example_ids))
    return rows
sweep.run_batch = counted
def run():
    sizes.clear()
    options = AuditOptions(shown_texts=0, memory_budget="1000GB")
    report = audit(model, data, [Permutation(n_permutations=n)], options=options, progress=False)
    values = report.to_pandas().sort_values(["statistic", "example_id"]).value.tolist()
    return values, list(sizes)
load_examples(data, "test")  # prepared before memory is short
free, whole = run() if n <= 10000 else ([], [])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
tight, parts = run()
worst = max(abs(a - b) for a, b in zip(free, tight, strict=True) if a == a or b == b)
print(json.dumps([worst, whole, parts]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS of Linux")
def test_a_batch_that_does_not_fit_is_halved_until_it_does(checkpoint, reviews_folder, run_warm):
    run = run_warm("-c", SMALL, checkpoint, reviews_folder, 150_000_000, 10_000)
    assert run.code == 0, run.err
    worst, whole, parts = json.loads(run.out)
    assert worst < 1e-12 and whole == [40]  # kernels round by the shape of a batch
    assert sum(parts) == 40 and max(parts) <= 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS of Linux")
def test_a_text_that_does_not_fit_by_itself_is_one_line(checkpoint, reviews_folder, run_python):
    run = run_python("-c", SMALL, checkpoint, reviews_folder, 150_000_000, 100_000)
    assert run.code == 1
    last = run.err.strip().splitlines()[-1]
    assert "AttnProbeError: memory ran out for text" in last


ROOM = 100  # padded tokens that a made-up device holds


def test_of_an_accelerator_too_and_the_next_batches_are_smaller(
    checkpoint, reviews_folder, monkeypatch
):
    options, data = AuditOptions(shown_texts=0, batch_size=10), Data(reviews_folder, test_limit=20)
    tests = [Permutation(n_permutations=3)]
    expected = index_values(
        audit(checkpoint, data, tests, options=options, progress=False).to_pandas()
    )
    failed_after, done, run_batch = [], set(), sweeps.run_batch

    def on_a_small_device(adapter, batch, *rest):
        if batch.mask.numel() > ROOM:
            failed_after.append(len(done))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        rows = run_batch(adapter, batch, *rest)
        done.update(batch.example_ids)
        return rows

    monkeypatch.setattr(sweeps, "run_batch", on_a_small_device)
    found = index_values(
        audit(checkpoint, data, tests, options=options, progress=False).to_pandas()
    )
    pd.testing.assert_series_equal(found, expected, rtol=1e-12)
    assert failed_after and max(failed_after) < 10  # the second batch is cut at once


def test_a_text_is_named_that_does_not_fit_on_a_device(checkpoint, reviews, monkeypatch, tmp_path):
    run_batch = sweeps.run_batch
    texts = sorted(reviews["test"]["text"][:6], key=len)

    def without(adapter, batch, *rest):
        if 3 in batch.example_ids:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_batch(adapter, batch, *rest)

    monkeypatch.setattr(sweeps, "run_batch", without)
    with pytest.raises(AttnProbeError, match=r"for text 3 of .* tokens alone"):
        rows = [{"example_id": k, "text": text} for k, text in enumerate(texts)]
        audit(checkpoint, rows, ["permutation"], output_dir=tmp_path / "out", progress=False)
    kept = read_rows(tmp_path / "out" / "rows")
    assert 0 < kept.example_id.nunique() < 6 and 3 not in {*kept.example_id}


def test_rows_are_kept_before_a_batch_has_all_its_tests(
    checkpoint, reviews_folder, monkeypatch, tmp_path
):
    data, asked = Data(reviews_folder, test_limit=6), ["permutation", "uniform_attention"]
    given = {"options": AuditOptions(shown_texts=0), "progress": False}
    expected = index_values(audit(checkpoint, data, asked, **given).to_pandas())
    fails = [RuntimeError("killed"), torch.OutOfMemoryError("CUDA out of memory")]
    run_test, ran = sweeps.run_test, []

    def failing(observation, name, *others, **named):
        if len(observation.batch.example_ids) > 1:
            ran.append(name)
            if name == "uniform_attention" and fails:
                raise fails.pop(0)
        return run_test(observation, name, *others, **named)

    monkeypatch.setattr(sweeps, "run_test", failing)
    monkeypatch.setattr(sweeps, "SAVE_INTERVAL_SECONDS", 0)
    given["output_dir"] = tmp_path
    with pytest.raises(RuntimeError, match="killed"):
        audit(checkpoint, data, asked, **given)
    assert "median_tvd" in {*read_rows(tmp_path / "rows").statistic}
    found = index_values(audit(checkpoint, data, asked, **given).to_pandas())
    pd.testing.assert_series_equal(found, expected, rtol=1e-12)
    assert ran.count("permutation") == 1 and ran.count("uniform_attention") == 4 and not fails


def test_other_errors_are_not_taken_for_it():
    assert is_out_of_memory(RuntimeError("[enforce fail] can't allocate memory: x"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("MPS backend out of memory"))
    assert not is_out_of_memory(RuntimeError("expected scalar type Double"))
    assert not is_out_of_memory(ValueError("out of memory"))

    def fails(part):
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        list(run_with_halving([1, 2], fails))


def test_the_peak_counts_what_is_alive_at_once():
    given = torch.zeros(1000)  # not made inside
    with PeakMemory() as memory:
        for _ in range(5):
            a = given[:500] + 1  # 2,000 bytes, and then 4,000 beside them
            b = torch.cat([a, a])
            b.add_(1)
            del a, b
    assert memory.peak == 6000


def test_of_a_long_search_the_first_operations_are_counted():
    ran = []
    with PeakMemory() as memory:
        with memory.limit_operations(10):
            for k in range(100):
                torch.zeros(10 + k)
                ran.append(k)
        torch.zeros(100)
    assert len(ran) == 10 and memory.peak == 400  # and afterwards everything counts again
    with PeakMemory(), memory.limit_operations(5), pytest.raises(RuntimeError, match="of its own"):
        raise RuntimeError("of its own")
