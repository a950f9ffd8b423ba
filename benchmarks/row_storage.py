"""Time and memory to write and read the rows of an audit.

    python benchmarks/row_storage.py --texts 1000000 --heads 1 --texts-per-part 2000
    python benchmarks/row_storage.py --texts 2000 --heads 144 --texts-per-part 32

The rows are made up: three tests with eight statistics, half of which are flags and small integers
and half of which are random float64. Each step runs in a process of its own, since the peak memory of
a process never decreases:

- ``import``: only imports the package, to know what the other steps cost in addition;
- ``write``: builds the rows of each batch of texts and writes them as a part;
- ``resume``: reads which texts are finished, as an audit does when it is continued;
- ``one test``: reads every column of the test "prediction";
- ``report``: reads every column, one after the other, as a report does;
- ``frame``: reads everything into one pandas frame.

For each step one line of JSON is printed: CPU seconds (user and system) of the step without imports, and
the peak resident memory of its process in MB.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


STATISTICS = {
    "prediction": ["label", "predicted_class", "probability", "n_tokens"],
    "permutation": ["median_tvd", "max_tvd"],
    "erasure": ["removal@attention", "lead_is_lost"],
}
"""Statistics of the made-up rows, by test."""
LARGEST_INTEGER = {"label": 1, "predicted_class": 1, "lead_is_lost": 1, "n_tokens": 60}
"""Largest value of each statistic that has integer values."""
HEADS_PER_LAYER = 12
STEPS = ("import", "write", "resume", "one test", "report", "frame")


def main() -> None:
    """Run every step in a process of its own and print its cost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--texts-per-part", type=int, default=2000)
    parser.add_argument("--run", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        step, folder = arguments.run
        print(run_step(step, Path(folder), arguments))
        return
    with tempfile.TemporaryDirectory() as folder:
        for step in STEPS:
            cost = measure_step(step, folder)
            megabytes = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
            print(json.dumps({"step": step, **cost, "files_mb": round(megabytes, 1)}), flush=True)


def measure_step(step: str, folder: str) -> dict[str, float]:
    """Run one step in a new process and return its CPU seconds and peak memory."""
    command = [sys.executable, *sys.argv, "--run", step, folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the step {step!r} failed")
    return {"cpu_s": round(float(output), 2), "rss_mb": usage.ru_maxrss // 1024}


def run_step(step: str, folder: Path, arguments: argparse.Namespace) -> float:
    """Run one step in this process and return its CPU seconds without imports."""
    import numpy as np

    from hf_attnprobe.storage import rows

    start = time.process_time()
    if step == "write":
        return write_parts(folder, arguments)
    if step == "resume":
        rows.read_finished_ids(folder)
    elif step == "frame":
        rows.read_rows(folder)
    elif step in ("one test", "report"):
        loaded = rows.load_rows(folder, "prediction" if step == "one test" else None)
        for column in loaded.columns:
            np.nanmean(loaded.read_column(column))
            loaded.read_mask(column).sum()
    return time.process_time() - start


def write_parts(folder: Path, arguments: argparse.Namespace) -> float:
    """Write the made-up rows; return the CPU seconds without those for making up values."""
    import numpy as np
    import torch

    from hf_attnprobe.protocol import Site
    from hf_attnprobe.storage.rows import NO_SITE, append_rows, build_rows, concatenate_rows

    generator = np.random.default_rng(0)

    def draw_values(statistic: str, n_texts: int) -> torch.Tensor:
        if statistic in LARGEST_INTEGER:
            integers = generator.integers(0, LARGEST_INTEGER[statistic] + 1, n_texts)
            return torch.from_numpy(integers.astype(float))
        return torch.from_numpy(generator.uniform(size=n_texts))

    heads = [Site(*divmod(head, HEADS_PER_LAYER)) for head in range(arguments.heads)]
    seconds = 0.0
    for first_id in range(0, arguments.texts, arguments.texts_per_part):
        ids = range(first_id, min(first_id + arguments.texts_per_part, arguments.texts))
        statistics_by_test = {
            test: {
                site: {name: draw_values(name, len(ids)) for name in names}
                for site in ([NO_SITE] if test == "prediction" else heads)
            }
            for test, names in STATISTICS.items()
        }
        start = time.process_time()
        tables = [
            build_rows(test, ids, statistics) for test, statistics in statistics_by_test.items()
        ]
        append_rows(folder, concatenate_rows(tables))
        seconds += time.process_time() - start
    return seconds


if __name__ == "__main__":
    main()
