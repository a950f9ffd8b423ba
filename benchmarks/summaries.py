"""The report of a job of a million texts: seconds, memory, bytes on disk.

    python benchmarks/summaries.py --texts 10000 1000000 --folder /tmp/jobs

Makes jobs of generated values, 24 statistics of one head and the predictions, through
the functions that workers use (``to_rows``, ``parquet_bytes``, ``commit``), and then
reads the report of each in a process of its own. Seconds are of the processor's clock.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from hf_attnprobe.attention_model import Site
from hf_attnprobe.partitions.plan import Part, Plan, commit, read_plan, write_plan
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.storage.rows import NO_SITE, joined, parquet_bytes, to_rows


PER_PART = 2000
TESTS = {
    "correlation": ["attention_leave_one_out_tau", "gradient_leave_one_out_tau"],
    "permutation": ["median_tvd", "max_tvd", "max_attention"],
    "erasure": [
        f"{name}@{ranking}"
        for name in ("fraction_to_flip", "never_flips", "way_to_best")
        for ranking in ("attention", "random", "gradient")
    ],
    "input_erasure": [
        f"{name}@{ranking}"
        for name in ("comprehensiveness", "sufficiency")
        for ranking in ("attention", "random", "gradient", "product", "leave_one_out")
    ],
}
SHOWN = """
import json, sys, time
def mb():  # not of getrusage, which counts the parent's memory before exec
    lines = open("/proc/self/status").read().splitlines()
    return next(int(l.split()[1]) / 1024 for l in lines if l.startswith("VmHWM"))
started = time.process_time()
from hf_attnprobe.partitions.report import job_report
loaded, memory, wall = time.process_time(), mb(), time.time()
report = job_report(sys.argv[1])
text, page, markdown = str(report), report.to_html(), report.to_markdown()
print(json.dumps({
    "loading_s": loaded - started, "report_s": time.process_time() - loaded,
    "report_wall_s": time.time() - wall, "mb": mb(), "mb_of_imports": memory,
    "n": report.n, "statistics": len(report.statistics), "page_bytes": len(page),
    "text": text,
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    for n_texts in given.texts:
        job = given.folder / f"job-{n_texts}"
        print(json.dumps({"texts": n_texts, **made(job, n_texts), **shown(job)}))


def made_part(k: int) -> dict[str, bytes]:
    """The files of a part."""
    return {"parquet": parquet_bytes(rows_of(k))}


def made(job: Path, n_texts: int) -> dict[str, float]:
    """Makes a job, and what its parts cost."""
    store, plan = Store(str(job)), plan_of(n_texts)
    write_plan(store, plan)
    plan, started = read_plan(store), time.process_time()
    for k in range(plan.n_partitions):
        files = made_part(k)
        ids = range(k * PER_PART, (k + 1) * PER_PART)
        commit(store, plan, Part(k, ids, PER_PART * (len(TESTS) + 1), {}, 0, files))
    size = sum(file.stat().st_size for file in job.glob("parts/*.parquet"))
    return {
        "making_s": time.process_time() - started,
        "making_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes_of_rows": size,
        "bytes_per_value": size / n_texts / (sum(map(len, TESTS.values())) + 4),
    }


def plan_of(n_texts: int) -> Plan:
    """A plan of generated texts."""
    return Plan(
        model={"name": "a-tiny-classifier", "fingerprint": "generated"},
        data={"dataset": "generated", "split": "test", "columns": "text"},
        tests={test: {} for test in TESTS},
        left_out={},
        options={},
        classes=["no", "yes"],
        prediction={"kind": "classes", "name": "", "parts": []},
        reference=[],
        rationales=False,
        spread=None,
        control="none",
        control_draws=0,
        texts=[{"texts": PER_PART, "sha256": ""}] * (n_texts // PER_PART),
        seed=0,
        versions={},
    )


def rows_of(k: int) -> pa.Table:
    """Rows of one part; ids are its own."""
    draw = np.random.default_rng(k)
    ids = np.arange(k * PER_PART, (k + 1) * PER_PART)
    tables = []
    for test, names in TESTS.items():
        is_lacking = draw.uniform(size=PER_PART) < 0.1  # the same for all: erasure's rule
        values = {name: np.where(is_lacking, np.nan, _values(draw, name)) for name in names}
        if test == "permutation":
            values["max_tvd"] = np.maximum(values["max_tvd"], values["median_tvd"])
        tables.append(_rows(test, ids, values, Site(0, 0)))
    label = draw.integers(0, 2, PER_PART)
    says = np.where(draw.uniform(size=PER_PART) < 0.9, label, 1 - label)
    of_model = {
        "predicted_class": says,
        "label": label,
        "probability": draw.uniform(0.5, 1, PER_PART),
        "n_tokens": draw.integers(3, 60, PER_PART),
    }
    return joined([*tables, _rows("prediction", ids, of_model, NO_SITE)])


def _values(draw: np.random.Generator, name: str) -> np.ndarray:
    """Numbers of full precision, and flags."""
    values = draw.uniform(size=PER_PART) ** 2
    return np.round(values) if name.startswith("never") else values


def _rows(test: str, ids: np.ndarray, values: dict[str, np.ndarray], site: Site) -> pa.Table:
    return to_rows(test, ids, {site: {name: torch.from_numpy(v) for name, v in values.items()}})


def shown(job: Path) -> dict[str, object]:
    """What the report of a job costs, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", SHOWN, str(job)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout)
    print(found.pop("text"), file=sys.stderr)
    return found


if __name__ == "__main__":
    main()
