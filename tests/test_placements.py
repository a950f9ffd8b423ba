"""Engines that place partitions: the real packages, killed and resumed."""

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hf_attnprobe.partitions.engines import AuditStep, PartitionAuditor, run_on_ray, tasks_of
from hf_attnprobe.partitions.plan import read_plan
from hf_attnprobe.partitions.store import Store

from hf_attnprobe import AttnProbeError, plan_audit, run_partition
from hf_attnprobe.data.synthetic import rationale_dataset


def needs(package: str):
    """Skips a test where a package is missing, and says so."""
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None,
        reason=f"{package} is not installed: pip install 'hf_attnprobe[{package}]'",
    )


def hashes(job: Path) -> dict[str, str]:
    files = sorted((job / "parts").iterdir())
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture
def job(checkpoint, reviews_folder, tmp_path):
    plan_audit(
        checkpoint,
        str(reviews_folder),
        "uniform_attention",
        output_dir=tmp_path / "job",
        partitions=5,
    )
    return tmp_path / "job"


def test_tasks_of_datatrove_are_the_partitions(job):
    assert tasks_of(str(job)) == {"tasks": 5}
    step = AuditStep(str(job))
    for rank in range(2):  # two tasks take what five would
        assert list(step(None, rank, 2)) == []
    found = hashes(job)
    assert len([name for name in found if name.endswith(".json")]) == 5
    assert list(step()) == [] and hashes(job) == found


def test_an_actor_of_ray_says_what_it_wrote(job):
    said = PartitionAuditor(str(job))({"partition": [3, 1]})
    assert said["partition"] == [3, 1]
    records = [run_partition(job, k) for k in (3, 1)]
    assert said["rows"] == [record["rows"] for record in records]
    assert said["sha256"] == [r["files"]["parquet"]["sha256"] for r in records]


def test_without_ray_it_says_what_to_install(job, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(AttnProbeError, match="pip install 'hf_attnprobe"):
        run_on_ray(str(job))


DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from hf_attnprobe.partitions.engines import AuditStep, tasks_of
if __name__ == "__main__":
    job, logs = sys.argv[1:]
    LocalPipelineExecutor(pipeline=[AuditStep(job)], workers=2, logging_dir=logs, **tasks_of(job)).run()
"""
RAY = """
import sys
import ray
from hf_attnprobe.partitions.engines import run_on_ray
if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    run_on_ray(sys.argv[1], n_workers=2)
"""


@pytest.fixture(scope="module")
def large(checkpoint, tmp_path_factory):
    """A job of 10,000 short texts in 20 partitions, and the same done by one process."""
    folder = tmp_path_factory.mktemp("large")
    texts = rationale_dataset(10_000, seed=1)
    every = [row for split in texts.values() for row in split.select_columns("text")]
    for name in ("engine", "alone"):
        plan_audit(
            checkpoint,
            every,
            "uniform_attention",
            output_dir=folder / name,
            partitions=20,
        )
    for k in range(20):
        run_partition(folder / "alone", k)
    return folder


def run_and_kill(job: Path, script: str, *arguments: str) -> None:
    """Starts a script, kills it with all its children when something is done, and starts it again."""
    command = [sys.executable, "-c", script, str(job), *arguments]
    first = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 500
    while len(list(job.glob("parts/*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    n_done = len(list(job.glob("parts/*.json")))
    assert 3 <= n_done < 20
    subprocess.run(command, check=True, timeout=900)


@pytest.mark.slow
@needs("datatrove")
def test_datatrove_killed_and_resumed(large, copy_of, tmp_path):
    job = copy_of(large / "engine", "datatrove")
    script = tmp_path / "run.py"
    script.write_text(DATATROVE)
    run_and_kill(job, DATATROVE, str(tmp_path / "logs"))
    assert hashes(job) == hashes(large / "alone")
    assert read_plan(Store(str(job))).n_texts == 10_000


@pytest.mark.slow
@needs("ray")
def test_ray_killed_and_resumed(large, copy_of):
    job = copy_of(large / "engine", "ray")
    run_and_kill(job, RAY)
    assert hashes(job) == hashes(large / "alone")
