"""Does memory stay flat as the texts grow, and are shares joined as fast as one folder is read?

    python benchmarks/scale.py 10000 100000 1000000 --folder scale

For each number of texts: the largest resident set, CPU seconds and wall seconds of

- ``audit``: generated texts as JSON lines, uniform attention of a classifier of 8 units, up to
  ``--audit-up-to`` texts;
- ``report``: terminal and page of an audit of made-up rows, 26 statistics of one head and the
  predictions;
- ``joined``: the same of as many rows in ``--shares`` folders.

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
    parser.add_argument("--shares", type=int, default=64)
    parser.add_argument("--audit-up-to", type=int, default=100_000)
    parser.add_argument("--steps", nargs="+", default=["audit", "report", "joined"])
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
    page = ["--output", str(folder / "report.html")]
    if "audit" in given.steps and n_texts <= given.audit_up_to:
        data = folder / "test.jsonl"
        make_texts(data, n_texts)
        asked = ["--model", str(model), "--dataset", str(data), "--tests", "uniform_attention"]
        asked += ["--batch-size", "512", "--dtype", "float32", "--output-dir", str(folder / "own")]
        yield "audit", measured("audit", *asked)
    if "report" in given.steps:
        apart(make_audits, folder / "made", model, n_texts, 1)
        yield "report", measured("report", str(folder / "made" / "share-0-of-1"), *page)
    if "joined" in given.steps:
        apart(make_audits, folder / "shares", model, n_texts, given.shares)
        shares = map(str, sorted((folder / "shares").glob("share-*")))
        yield "joined", measured("report", *shares, *page)


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


# --- audits of made-up rows -------------------------------------------------------------


def make_audits(folder: Path, model: Path, n_texts: int, n_shares: int) -> None:
    """Finished shares of an audit: a real one of a few texts, whose rows are then others."""
    import shutil

    from hf_attnprobe import AuditOptions, audit
    from hf_attnprobe.storage.rows import append_rows

    few = folder.parent / f"{folder.name}.jsonl"
    make_texts(few, 40)
    shutil.rmtree(folder, ignore_errors=True)  # rows that an earlier run made up
    options = AuditOptions(share="0/1", shown_texts=0, prune=False)
    audit(model, few, list(TESTS), options=options, output_dir=folder, progress=False)
    own = folder / "share-0-of-1"
    for k in range(n_shares):
        share = folder / f"share-{k}-of-{n_shares}"
        if share != own:
            shutil.copytree(own, share)
        shutil.rmtree(share / "rows")
        ids = [*range(k, n_texts, n_shares)]
        for start in range(0, len(ids), PER_PART):
            append_rows(share / "rows", _rows_of(ids[start : start + PER_PART]))
        _say(share / "summary.json", k, n_shares, ids)
    if n_shares > 1:
        shutil.rmtree(own)


def _say(file: Path, k: int, n_shares: int, ids: list[int]) -> None:
    """Has a summary tell of these texts."""
    summary = json.loads(file.read_text())
    summary |= {"n": len(ids), "example_ids": ids}
    summary["provenance"]["share"] = [k, n_shares]
    file.write_text(json.dumps(summary))


def _rows_of(ids: list[int]) -> "pa.Table":
    """Rows of one part; they are drawn by its first id."""
    import numpy as np

    from hf_attnprobe.protocol import Site
    from hf_attnprobe.storage.rows import NO_SITE, concatenate_rows

    n = len(ids)
    draw = np.random.default_rng(ids[0])
    tables = []
    for test, names in TESTS.items():
        is_lacking = draw.uniform(size=n) < 0.1  # the same for all: erasure's rule
        values = {name: np.where(is_lacking, np.nan, _values(draw, name, n)) for name in names}
        if test == "permutation":
            values["max_tvd"] = np.maximum(values["max_tvd"], values["median_tvd"])
        tables.append(_table(test, ids, values, Site(0, 0)))
    label = draw.integers(0, 2, n)
    of_model = {
        "predicted_class": np.where(draw.uniform(size=n) < 0.9, label, 1 - label),
        "label": label,
        "probability": draw.uniform(0.5, 1, n),
        "n_tokens": draw.integers(3, 60, n),
    }
    return concatenate_rows([*tables, _table("prediction", ids, of_model, NO_SITE)])


def _values(draw: "np.random.Generator", name: str, n: int) -> "np.ndarray":
    """Numbers of full precision, and flags."""
    values = draw.uniform(size=n) ** 2
    return values.round() if name.startswith("never") else values


def _table(test: str, ids: list[int], values: dict[str, "np.ndarray"], site: Any) -> "pa.Table":
    import torch

    from hf_attnprobe.storage.rows import build_rows

    return build_rows(test, ids, {site: {name: torch.from_numpy(v) for name, v in values.items()}})


if __name__ == "__main__":
    main()
