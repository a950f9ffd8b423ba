"""Does memory stay flat as the texts grow? The plan, a worker and the report of jobs.

    python benchmarks/scale.py 10000 100000 1000000 --folder scale

For each number of texts: the largest resident set, CPU seconds and wall seconds of

- ``plan``: generated texts as JSON lines, cut into partitions;
- ``work``: one worker on all of them (a classifier of 8 units, uniform attention), up to
  ``--work-up-to`` texts;
- ``report``: terminal and page of a job of made-up rows, 26 statistics of one head and the
  predictions, with ``--draws`` of a control.

Every step is a process of its own, as a user starts it, and so is what makes its input: this
script stays small, since a process begins with the largest resident set of who started it.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from hf_attnprobe.partitions.plan import Plan


WORDS = ["".join(letters) for letters in itertools.product("bdfgk", "aeiou", "lmnrst")]
PER_PART = 2000
TESTS = {
    "correlation": ["attention_leave_one_out_tau", "gradient_leave_one_out_tau"],
    "permutation": ["median_tvd", "max_tvd", "max_attention"],
    "erasure": [
        *("delta_attention", "delta_js"),
        *(
            f"{name}@{ranking}"
            for name in ("fraction_to_flip", "never_flips", "way_to_best")
            for ranking in ("attention", "random", "gradient")
        ),
    ],
    "input_erasure": [
        f"{name}@{ranking}"
        for name in ("comprehensiveness", "sufficiency")
        for ranking in ("attention", "random", "gradient", "product", "leave_one_out")
    ],
}
"""Statistics of the made-up rows, by test."""


def main() -> None:
    """Measures every number of texts and prints a line of JSON for each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--per-partition", type=int, default=5000)
    parser.add_argument("--work-up-to", type=int, default=100_000)
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--steps", nargs="+", default=["plan", "work", "report"])
    given = parser.parse_args()
    model = given.folder / "model"
    apart(make_model, model)
    for n_texts in given.texts:
        folder = given.folder / str(n_texts)
        folder.mkdir(parents=True, exist_ok=True)
        for step, numbers in steps(given, n_texts, model, folder):
            print(json.dumps({"texts": n_texts, "step": step, **numbers}), flush=True)


def steps(given: argparse.Namespace, n_texts: int, model: Path, folder: Path):
    """The steps that are asked for, with what each took."""
    data, job, made = folder / "test.jsonl", folder / "job", folder / "made"
    if "plan" in given.steps:
        make_texts(data, n_texts)
        asked = ["--model", str(model), "--dataset", str(data), "--tests", "uniform_attention"]
        asked += ["--batch-size", "512", "--dtype", "float32", "--output-dir", str(job)]
        partitions = max(2, n_texts // given.per_partition)
        yield "plan", measured("plan", *asked, "--partitions", str(partitions))
    if "work" in given.steps and n_texts <= given.work_up_to:
        yield "work", measured("work", str(job))
    if "report" in given.steps:
        apart(make_job, made, n_texts, given.draws)
        yield "report", measured("report", str(made), "--output", str(folder / "report.html"))


def measured(*command: str) -> dict[str, float]:
    """Runs a command of attnprobe; its largest resident set, CPU and wall time."""
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "hf_attnprobe", *command], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"attnprobe {' '.join(command)} ended with {status}")
    return {
        "rss_mb": round(usage.ru_maxrss / 1024, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "wall_s": round(time.monotonic() - start, 1),
    }


def apart(make: Callable[..., None], *given: Any) -> None:
    """Makes something in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=make, args=given)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{make.__name__} ended with {process.exitcode}")


# --- texts and a model -----------------------------------------------------------------


def make_texts(file: Path, n_texts: int) -> None:
    """Texts of 5 to 20 words as JSON lines, the label by the first word."""
    draw = random.Random(0)
    with file.open("w") as lines:
        for number in range(n_texts):
            words = draw.choices(WORDS, k=draw.randint(5, 20))
            row = {"example_id": number, "text": " ".join(words)}
            lines.write(json.dumps(row | {"label": int(words[0] < "f")}) + "\n")


def make_model(folder: Path) -> None:
    """A classifier of 8 units with random weights, and its tokenizer."""
    import torch

    from hf_attnprobe import (
        AttentionClassifierConfig,
        AttentionClassifierForSequenceClassification,
        build_tokenizer,
    )

    torch.manual_seed(0)
    tokenizer = build_tokenizer([" ".join(WORDS)] * 10)
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer), embedding_size=8, encoder="none", encoder_size=8
    )
    AttentionClassifierForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# --- a job of made-up rows -------------------------------------------------------------


def make_job(folder: Path, n_texts: int, n_draws: int) -> None:
    """A finished job, through the functions that workers use."""
    from hf_attnprobe.partitions.plan import Part, commit, read_plan, rows_ending, write_plan
    from hf_attnprobe.partitions.store import Store

    from hf_attnprobe.storage.rows import parquet_bytes

    store = Store(str(folder))
    write_plan(store, _plan(n_texts, n_draws))
    plan = read_plan(store)
    for k in range(plan.n_partitions):
        files = {
            rows_ending(draw): parquet_bytes(_rows_of(k, draw)) for draw in (None, *range(n_draws))
        }
        ids = range(k * PER_PART, (k + 1) * PER_PART)
        commit(store, plan, Part(k, ids, PER_PART * (len(TESTS) + 1), {}, 0, files))


def _plan(n_texts: int, n_draws: int) -> "Plan":
    from hf_attnprobe.partitions.plan import Plan

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
        control="reassigned attention" if n_draws else "none",
        control_draws=n_draws,
        texts=[{"texts": PER_PART, "sha256": ""}] * (n_texts // PER_PART),
        seed=0,
        versions={},
    )


def _rows_of(k: int, of_control: int | None) -> "pa.Table":
    """Rows of one part, of the model or of a draw of its control; ids are its own."""
    import numpy as np

    from hf_attnprobe.attention_model import Site
    from hf_attnprobe.storage.rows import NO_SITE, joined

    draw = np.random.default_rng([k, 0 if of_control is None else of_control + 1])
    ids = np.arange(k * PER_PART, (k + 1) * PER_PART)
    tables = []
    for test, names in TESTS.items():
        is_lacking = draw.uniform(size=PER_PART) < 0.1  # the same for all: erasure's rule
        values = {name: np.where(is_lacking, np.nan, _values(draw, name)) for name in names}
        if test == "permutation":
            values["max_tvd"] = np.maximum(values["max_tvd"], values["median_tvd"])
        tables.append(_table(test, ids, values, Site(0, 0)))
    if of_control is not None:
        return joined(tables)
    label = draw.integers(0, 2, PER_PART)
    of_model = {
        "predicted_class": np.where(draw.uniform(size=PER_PART) < 0.9, label, 1 - label),
        "label": label,
        "probability": draw.uniform(0.5, 1, PER_PART),
        "n_tokens": draw.integers(3, 60, PER_PART),
    }
    return joined([*tables, _table("prediction", ids, of_model, NO_SITE)])


def _values(draw: "np.random.Generator", name: str) -> "np.ndarray":
    """Numbers of full precision, and flags."""
    values = draw.uniform(size=PER_PART) ** 2
    return values.round() if name.startswith("never") else values


def _table(test: str, ids: "np.ndarray", values: dict[str, "np.ndarray"], site: Any) -> "pa.Table":
    import torch

    from hf_attnprobe.storage.rows import to_rows

    return to_rows(test, ids, {site: {name: torch.from_numpy(v) for name, v in values.items()}})


if __name__ == "__main__":
    main()
