"""Audits in partitions: the same bytes whoever computes them, and however often they are killed."""

import contextlib
import hashlib
import json
import os
import random
import signal
import time
import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hf_attnprobe.partitions import plan as texts_module
from hf_attnprobe.partitions import store as leases_module
from hf_attnprobe.partitions import work as run_module
from hf_attnprobe.partitions import work as workers_module
from hf_attnprobe.partitions.plan import partition_of, read_part, read_plan, records
from hf_attnprobe.partitions.store import Leases, Store
from hf_attnprobe.partitions.work import DEATHS, TOGETHER, Trial, Trust, lives_through, load_auditor
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe import (
    AttnProbeError,
    AuditOptions,
    Data,
    Permutation,
    WorkOptions,
    audit,
    plan_audit,
    run_partition,
    work,
)
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.storage.rows import read_part as read_table
from hf_attnprobe.storage.rows import rows_of_parts


TESTS = ["uniform_attention", Permutation(n_permutations=3)]
PARTITIONS = 6
ANY = WorkOptions(fail_on_error=1.0)


@pytest.fixture(scope="module")
def planned(checkpoint, reviews_folder, tmp_path_factory):
    """A job of 40 texts in 6 partitions, in small batches, that nobody worked on."""
    folder = tmp_path_factory.mktemp("planned") / "job"
    options = AuditOptions(batch_size=4)
    plan_audit(
        checkpoint,
        str(reviews_folder),
        TESTS,
        options=options,
        output_dir=folder,
        partitions=PARTITIONS,
    )
    return folder


@pytest.fixture
def job(planned, copy_of):
    """A copy of it."""
    return copy_of(planned)


@pytest.fixture(scope="module")
def expected(planned, tmp_path_factory):
    """SHA-256 of its parts, computed one after the other by one process."""
    import shutil

    folder = shutil.copytree(planned, tmp_path_factory.mktemp("expected") / "job")
    for k in range(PARTITIONS):
        run_partition(folder, k)
    return hashes(folder)


def hashes(job: Path) -> dict[str, str]:
    """SHA-256 by name of everything that a job's parts consist of."""
    files = sorted((job / "parts").iterdir())
    assert not [f for f in files if f.name.startswith(".")], "half-written files stay"
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def rows_of(job: Path | str) -> pd.DataFrame:
    """The long rows of all parts that their records vouch for."""
    store = Store(str(job))
    plan = read_plan(store)
    parts = [
        rows_of_parts([read_table(read_part(store, plan, k, "parquet"))]).long()
        for k in range(plan.n_partitions)
    ]
    keys = ["test", "statistic", "example_id", "layer", "head"]
    return pd.concat(parts).sort_values(keys, ignore_index=True)


# --- real processes ----------------------------------------------------------------------------------------------


def start(target, *arguments) -> int:
    """A process of its own, a copy of this one with its model loaded; its number."""
    number = os.fork()
    if number:
        with contextlib.suppress(OSError):  # it did so itself, and is gone
            os.setpgid(number, number)
        return number
    code = 1
    try:
        os.setpgid(0, 0)
        workers_module._SALT = os.urandom(8).hex()
        target(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def worker(job: Path, clock_ahead: float = 0.0) -> None:
    """One worker, with a clock that may go wrong by seconds."""
    true = time.time
    time.time = lambda: true() + clock_ahead
    workers_module.POLL = 0.02
    work(job, options=ANY)


def wait_for(numbers) -> list[int]:
    """How processes ended: exit codes, or minus a signal."""
    codes = []
    for number in numbers:
        _, status = os.waitpid(number, 0)
        codes.append(os.waitstatus_to_exitcode(status))
    return codes


def test_one_worker_three_and_seventeen_write_the_same_bytes(job, expected):
    for n_workers in (1, 3, 17):
        for file in (job / "parts").glob("*") if (job / "parts").exists() else ():
            file.unlink()
        assert wait_for([start(worker, job) for _ in range(n_workers)]) == ([0] * n_workers)
        assert hashes(job) == expected


def kill_at_random(job: Path, n_kills: int, n_workers: int, seed: int) -> int:
    """Workers of which one after the other is killed at random, and replaced."""
    draw = random.Random(seed)
    alive = {start(worker, job, draw.choice([0, 3600, -3600])) for _ in range(n_workers)}
    killed = 0
    while killed < n_kills:
        time.sleep(draw.uniform(0, 0.12))
        victim = draw.choice(sorted(alive))
        with contextlib.suppress(ProcessLookupError):  # it is done
            os.killpg(victim, signal.SIGKILL)
        killed += wait_for([victim]) == [-signal.SIGKILL]
        alive.remove(victim)
        if killed % 10 == 9:  # else nothing is left to be killed at
            done = sorted((job / "parts").glob("*"))
            for file in draw.sample(done, len(done) // 2):
                file.unlink(missing_ok=True)  # half-written files come and go
        alive.add(start(worker, job, draw.choice([0, 3600, -3600])))
    assert set(wait_for(alive)) == {0}
    return killed


def test_killed_at_random_they_write_the_same_bytes(job, expected):
    assert kill_at_random(job, n_kills=8, n_workers=3, seed=0) == 8
    assert hashes(job) == expected
    assert not list((job / "leases").iterdir()), "leases of the dead stay"


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 3, 17])
def test_killed_a_hundred_times_they_write_the_same_bytes(job, expected, n_workers):
    assert kill_at_random(job, 100, n_workers, seed=n_workers) == 100
    assert hashes(job) == expected


def test_killed_in_the_middle_of_writing(job, expected, monkeypatch):
    """The file is half on disk when the worker goes."""

    def dies_while_writing(folder):
        def half(file, data, lasting):
            if file.name.startswith(".part-") and "parquet" in file.name:
                file.write_bytes(data[: len(data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            file.write_bytes(data)

        monkeypatch.setattr("hf_attnprobe.partitions.store._write_down", half)
        run_partition(folder, 2)

    assert wait_for([start(dies_while_writing, job)]) == [-signal.SIGKILL]
    left = [f.name for f in (job / "parts").iterdir()]
    assert len(left) == 1 and left[0].startswith(".part-00002.parquet")
    work(job)
    assert hashes(job) == expected


# --- what is trusted ----------------------------------------------------------------------------------------------


def test_different_bytes_are_an_alarm(job, monkeypatch):
    run_partition(job, 0)
    auditor = run_module.auditor_of(str(job), read_plan(Store(str(job))).name, run_module.Trust())
    true = run_module._run
    monkeypatch.setattr(
        run_module,
        "_run",
        lambda *a: true(*a).assign(value=lambda rows: rows.value + 1e-9),
    )
    before = hashes(job)
    with pytest.raises(AttnProbeError, match="computed twice with different results"):
        run_module.run_open(auditor, 0, Leases(Store(str(job))))
    assert hashes(job) == before


@pytest.mark.parametrize("damage", ["torn", "gone", "foreign", "no json"])
def test_a_part_that_is_not_whole_is_computed_again(job, expected, damage):
    run_partition(job, 1)
    rows, record = (
        job / "parts" / "part-00001.parquet",
        job / "parts" / "part-00001.json",
    )
    if damage == "torn":
        rows.write_bytes(rows.read_bytes()[:-7])
    elif damage == "gone":
        rows.unlink()
    elif damage == "foreign":
        record.write_text(json.dumps(json.loads(record.read_text()) | {"job": "other"}))
    else:
        record.write_text(record.read_text()[:40])
    run_partition(job, 1)
    assert hashes(job) == {n: h for n, h in expected.items() if "00001" in n}


def test_a_reader_refuses_rows_that_were_changed(job):
    run_partition(job, 1)
    rows = job / "parts" / "part-00001.parquet"
    data = bytearray(rows.read_bytes())
    data[len(data) // 2] ^= 1
    rows.write_bytes(data)
    store = Store(str(job))
    with pytest.raises(AttnProbeError, match="is not what was written"):
        read_part(store, read_plan(store), 1, "parquet")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda plan: plan.update(seed=5), "was changed after it was made"),
        (lambda plan: plan.pop("seed"), "is no plan that this version reads"),
    ],
)
def test_a_changed_plan_is_refused(job, change, said):
    document = json.loads((job / "plan.json").read_text())
    change(document["plan"])
    (job / "plan.json").write_text(json.dumps(document))
    with pytest.raises(AttnProbeError, match=said):
        work(job)


def test_changed_texts_and_other_weights_are_refused(job, copy_of, monkeypatch):
    (job / "texts" / "part-00003.parquet").write_bytes(b"PAR1")
    with pytest.raises(AttnProbeError, match="is missing or not the one of the plan"):
        work(job)
    run_module.auditor_of.cache_clear()
    monkeypatch.setattr(
        "hf_attnprobe.adapters.pretrained.model_fingerprint", lambda model: "0" * 16
    )
    with pytest.raises(AttnProbeError, match="expected the model fingerprint of the plan, "):
        work(job)


@pytest.mark.parametrize("changed", ["configuration", "tokenizer"])
def test_a_configuration_or_tokenizer_changed_after_the_plan_is_refused(
    changed, checkpoint, copy_of, reviews_folder, tmp_path
):
    model, job = copy_of(checkpoint), tmp_path / "job"
    plan_audit(model, str(reviews_folder), TESTS, output_dir=job, partitions=4)
    run_partition(job, 0)
    run_module.auditor_of.cache_clear()  # another worker
    name = {"configuration": "config.json", "tokenizer": "tokenizer.json"}[changed]
    held = json.loads((model / name).read_text())
    if changed == "configuration":
        held["encoder_dropout"] = 0.5
    else:
        words = held["model"]["vocab"]
        words["the"], words["a"] = words["a"], words["the"]
    (model / name).write_text(json.dumps(held))
    with pytest.raises(AttnProbeError, match=f"expected the {changed} fingerprint of"):
        work(job)
    assert len([*(job / "parts").glob("*.json")]) == 1


# --- what is computed ---------------------------------------------------------------------------------------------


def test_rows_are_those_of_an_audit(job, checkpoint, reviews_folder):
    """Up to rounding: texts are padded beside others."""
    report = audit(
        checkpoint,
        str(reviews_folder),
        TESTS,
        options=AuditOptions(),
        progress=False,
    )
    work(job)
    theirs, ours = report.to_pandas(), rows_of(job)
    keys = ["test", "statistic", "example_id", "layer", "head"]
    theirs = theirs[[*keys, "value"]].sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(
        ours.astype({"test": object, "statistic": object}),
        theirs.astype({"test": object, "statistic": object}),
        check_dtype=False,
        rtol=1e-9,
        atol=1e-9,
    )


def test_blocks_of_any_size_make_the_same_job(
    checkpoint, reviews_folder, planned, tmp_path, monkeypatch
):
    monkeypatch.setattr(texts_module, "AT_ONCE", 7)
    plan = plan_audit(
        checkpoint,
        str(reviews_folder),
        TESTS,
        options=AuditOptions(batch_size=4),
        output_dir=tmp_path / "job",
        partitions=PARTITIONS,
    )
    assert plan == read_plan(Store(str(planned)))
    data = Data(str(reviews_folder)).examples().to_pandas()
    parts = [pd.read_parquet(f) for f in sorted((tmp_path / "job/texts").iterdir())]
    found = pd.concat(parts).sort_values("example_id", ignore_index=True)
    pd.testing.assert_frame_equal(found, data)
    held = [set(part.example_id) for part in parts]
    shares = partition_of(data.example_id.to_numpy(), PARTITIONS, seed=0)
    assert held == [set(data.example_id[shares == k]) for k in range(PARTITIONS)]


def test_a_limit_draws_the_texts_of_an_audit(checkpoint, reviews_folder, tmp_path):
    data = Data(str(reviews_folder), test_limit=9)
    plan_audit(checkpoint, data, "uniform_attention", output_dir=tmp_path, partitions=4)
    work(tmp_path)
    report = audit(checkpoint, data, "uniform_attention", progress=False)
    assert set(rows_of(tmp_path).example_id) == set(report.example_ids)


def test_texts_without_tokens_and_partitions_without_texts(checkpoint, tmp_path):
    texts = [{"text": "", "label": 0}] * 3 + [{"text": "a good film", "label": 1}] * 2
    plan_audit(checkpoint, texts, "uniform_attention", output_dir=tmp_path, partitions=40)
    done = work(tmp_path)
    assert done.is_complete and not done.set_aside
    store = Store(str(tmp_path))
    found = records(store, read_plan(store)).values()
    assert sum(record["without_tokens"] for record in found) == 3
    assert set(rows_of(tmp_path).example_id) == {3, 4}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 2**63 - 1), min_size=1, unique=True),
    st.integers(1, 5000),
    st.integers(0, 2**40),
)
def test_partitions_are_those_of_big_integers(ids, n_partitions, seed):
    def by_hand(number: int) -> int:
        mask = 2**64 - 1
        bits = (number + seed * 0x9E3779B97F4A7C15 + 1) & mask
        for shift, factor in (
            (30, 0xBF58476D1CE4E5B9),
            (27, 0x94D049BB133111EB),
            (31, 1),
        ):
            bits = ((bits ^ (bits >> shift)) * factor) & mask
        return bits % n_partitions

    found = partition_of(ids, n_partitions, seed)
    assert found.tolist() == [by_hand(number) for number in ids]


def test_partitions_are_of_one_size():
    counts = np.bincount(partition_of(np.arange(64_000), 64, seed=3), minlength=64)
    assert ((counts - 1000) ** 2 / 1000).sum() < 110  # χ² of 63 degrees, p ≈ .0002


# --- texts that kill ----------------------------------------------------------------------------------------------


def poisoned(monkeypatch, ids, how) -> None:
    true = run_module._run

    def run(auditor, texts):
        if ids & {text.example_id for text in texts}:
            how()
        return true(auditor, texts)

    monkeypatch.setattr(run_module, "_run", run)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_text_that_kills_is_set_aside(job, expected, monkeypatch):
    victim = 209
    poisoned(monkeypatch, {victim}, die)
    assert wait_for([start(worker, job)]) == [-signal.SIGKILL]
    assert wait_for([start(worker, job)]) == [0]
    done = work(job, options=ANY)
    assert done.is_complete and set(done.set_aside) == {victim}
    assert "killed a worker 2 times" in str(done) and "2.50%" in str(done)
    assert victim not in set(rows_of(job).example_id)
    k = int(partition_of([victim], PARTITIONS, seed=0)[0])
    others = {n: h for n, h in expected.items() if f"-{k:05d}." not in n}
    assert others.items() <= hashes(job).items()
    with pytest.raises(AttnProbeError, match=r"--fail-on-error 0\.01 allows"):
        work(job)


def test_a_text_that_fails_is_set_aside(job, monkeypatch):
    def fail():
        raise RuntimeError("CUDA error: device-side assert\nand more")

    poisoned(monkeypatch, {210, 217}, fail)
    done = work(job, options=ANY)
    said = "RuntimeError: CUDA error: device-side assert"
    assert done.set_aside == {210: said, 217: said}


def test_who_was_killed_from_outside_is_innocent(job, expected, monkeypatch):
    """Its texts are tried by the next worker, and computed in the batches of the plan."""
    poisoned(monkeypatch, set(range(200, 240)), die)
    assert wait_for([start(worker, job)]) == [-signal.SIGKILL]
    monkeypatch.undo()
    assert len(list((job / "leases").iterdir())) == 1
    assert not work(job).set_aside
    assert hashes(job) == expected


def test_deaths_of_worker_and_child_together_prove_nothing_until_they_are_many():
    batch = [Text(k, 0, {"input_ids": []}) for k in range(4)]
    ids = frozenset(range(4))
    tried = []

    def survives(some):
        tried.append([text.example_id for text in some])
        return True

    few = Trial([ids], [ids] * (TOGETHER - 1), survives)
    assert few.pieces(batch) == [batch] and tried == [[0, 1, 2, 3]]
    many = Trial([ids], [ids] * TOGETHER, survives)
    assert many.pieces(batch) == [batch[:2], batch[2:]] and not many.aside
    assert Trial([], [ids] * TOGETHER, survives).pieces(batch) == [batch]


def test_a_child_that_dies_is_noticed_and_one_that_fails_is_not_dead():
    assert not lives_through(die)
    assert lives_through(lambda: 1 / 0) and lives_through(lambda: None)
    assert DEATHS == 2


# --- leases -------------------------------------------------------------------------------------------------------


def test_a_worker_elsewhere_is_dead_when_it_does_not_move(job, monkeypatch):
    """Seen by one's own clock alone, whatever the other's says."""
    monkeypatch.setattr(leases_module, "_this_process", lambda: ("there", 1, "5"))
    Leases(Store(str(job))).say(4, [1, 2])
    monkeypatch.undo()
    now = [1e9]
    here = Leases(Store(str(job)), clock=lambda: now[0], patience=10)
    (lease,) = here.others()
    for moved, dead in ((0, False), (9, False), (2, True)):
        now[0] += moved
        assert here.is_dead(lease) == dead
    assert (lease.partition, lease.ids) == (4, {1, 2})


def test_a_lease_that_is_none_is_nobodys(job):
    (job / "leases").mkdir()
    (job / "leases" / "00001.x.json").write_text("{")
    assert Leases(Store(str(job))).others() == []


# --- places and shares --------------------------------------------------------------------------------------------


def test_a_job_in_memory_is_the_job_on_disk(checkpoint, reviews_folder, expected):
    url = "memory://attnprobe-job"
    plan_audit(
        checkpoint,
        str(reviews_folder),
        TESTS,
        options=AuditOptions(batch_size=4),
        output_dir=url,
        partitions=PARTITIONS,
    )
    assert work(url).is_complete
    store = Store(url)
    found = {
        name: hashlib.sha256(store.read(f"parts/{name}")).hexdigest()
        for name in store.names("parts")
    }
    assert found == expected


def test_file_urls_and_places_that_nobody_knows(job):
    assert run_partition(f"file://{job}", 0)["partition"] == 0
    with pytest.raises(AttnProbeError, match="a place that fsspec knows"):
        work("nowhere://bucket/job")
    with pytest.raises(AttnProbeError, match="found none; make it with attnprobe plan"):
        work(job / "empty")


def test_each_process_of_a_launcher_begins_with_its_share(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    order = sorted(range(12), key=workers_module._own_order)
    assert set(order[:4]) == {2, 5, 8, 11} and set(order) == set(range(12))


@pytest.mark.parametrize("given", ["6/6", "1/5", "x/6", "3", "-1/6"])
def test_a_partition_that_is_none(job, given):
    with pytest.raises(AttnProbeError, match="expected a partition from 0"):
        work(job, options=WorkOptions(partition=given))


@pytest.mark.parametrize(
    "options, said",
    [
        (AuditOptions(screen=1), "expected no --screen"),
        (AuditOptions(time="10m"), "neither --until nor --top nor --time"),
        (AuditOptions(limits="spiked"), "expected no --limits in a plan"),
    ],
)
def test_what_compares_all_texts_is_not_planned(checkpoint, tmp_path, options, said):
    with pytest.raises(AttnProbeError, match=said):
        plan_audit(checkpoint, ["a film"], options=options, output_dir=tmp_path / "job")
    assert not (tmp_path / "job").exists()


def test_what_a_user_must_say_himself_is_not_in_a_plan(checkpoint, tmp_path):
    said = AuditOptions(allow_pickle=True, trust_remote_code=True, token="hf_secret")
    plan = plan_audit(
        checkpoint, ["a film"], options=said, output_dir=tmp_path / "job", partitions=1
    )
    written = (tmp_path / "job" / "plan.json").read_text()
    assert not {"allow_pickle", "trust_remote_code", "token"} & set(plan.options)
    assert "hf_secret" not in written
    auditor = load_auditor(Store(str(tmp_path / "job")), plan, Trust())
    loaded = auditor.prepared.options
    assert not loaded.allow_pickle and not loaded.trust_remote_code


def test_a_plan_does_not_replace_one_with_results(job, checkpoint, reviews_folder):
    run_partition(job, 0)
    with pytest.raises(AttnProbeError, match="is a job with results"):
        plan_audit(checkpoint, str(reviews_folder), output_dir=job)


def test_a_model_that_workers_cannot_load_is_refused(make_model, tmp_path):
    with pytest.raises(AttnProbeError, match="which workers load by its name"):
        plan_audit(make_model(), ["a film"], output_dir=tmp_path / "job")


def test_threads_are_put_back(job):
    torch.set_num_threads(2)
    try:
        run_partition(job, 0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_commands(checkpoint, reviews_folder, tmp_path, cli):
    job = tmp_path / "job"
    planned = cli(
        *("plan", "--model", checkpoint, "--dataset", reviews_folder),
        *("--tests", "uniform_attention", "--partitions", 3, "--output-dir", job),
    )
    assert planned.code == 0 and planned.out.endswith("you like, anywhere\n")
    assert "40 texts in 3 partitions" in planned.out
    one = cli("work", job, "--partition", "2/3")
    assert one.out.startswith("1 of 3 partitions are done, 1 of them by this worker")
    rest = cli("work", job)
    assert rest.code == 0
    assert rest.out.startswith("3 of 3 partitions are done, 2 of them by this worker")
    assert cli("work", tmp_path).code == 1


@pytest.mark.slow
def test_processes_are_started_again(job, expected, run_module):
    done = run_module("work", job, "--processes", 2)
    assert done.code == 0, done.err
    assert hashes(job) == expected
