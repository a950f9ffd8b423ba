"""From a calibration and the work that is left to an estimate of all of it."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import pandas as pd

from hf_attnprobe.attention_model import MaskedReplay
from hf_attnprobe.auditing.estimates.estimate import Estimate, Seconds
from hf_attnprobe.auditing.estimates.measured import Calibration, as_batch
from hf_attnprobe.auditing.progress import Step, steps_of
from hf_attnprobe.auditing.sweep import PRUNE_POINTS, Sweep, Work
from hf_attnprobe.faithfulness import readings
from hf_attnprobe.hardware.memory import resident_bytes
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.storage.rows import KEY, append_rows


FEWEST, MOST = 24, 400
"""Texts of the report that is tried; a line tells of more."""
REPORT_SECONDS = 10.0
"""What it may take to run the model on them, one by one."""


def estimate(
    sweep: Sweep,
    plan: Mapping[str, Sequence[Work]],
    found: Calibration,
    report_on: Callable[[Path, int], None],
    prepared: float,
    folder: Path,
) -> Estimate:
    """Everything that an audit will take.

    Args:
        sweep: of the audit.
        plan: the batches that are left, of the model ("audit") and its control.
        found: what the steps take.
        report_on: makes the report of so many texts from the rows in a folder, without
            what runs the model on all of them.
        prepared: seconds that the preparation took.
        folder: for what is tried; it goes away.
    """
    works = [*chain.from_iterable(plan.values())]
    steps = [step for todo, texts in works for step in steps_of(todo, texts)]
    tested = [sites for todo, _ in works for test, sites in todo.items() if test != PREDICTION]
    heads = {site for sites in tested for site in sites}
    n_values = _n_values(found, steps)
    report, disk = _try_report(sweep, found, report_on, n_values, folder)
    batch = max((found.memory_of(texts) for _, texts in works), default=0)
    process = resident_bytes()
    everything = [as_batch([text]) for text in sweep.texts]
    return Estimate(
        n_texts=len(sweep.texts),
        n_left=len({text.example_id for _, texts in works for text in texts}),
        n_tests=len(sweep.options),
        n_heads=len(heads),
        with_control=bool(plan["control"]),
        edited_texts=round(found.edited.total(steps)),
        flops=found.flops.total(steps),
        forward_flops=found.forward_flops.total(everything),
        memory=process + batch,
        batch_memory=batch,
        disk=disk,
        seconds=Seconds(prepared, found.seconds.total(steps), report),
        measured_texts=len(found.texts),
        measured_heads=min(2, len(heads)),  # see `few_sites`
    )


def _n_values(found: Calibration, steps: Sequence[Step]) -> int:
    """Rows that the steps make: each test's statistics, of every text."""
    kinds = pd.concat(found.rows).groupby("test").statistic.nunique() if steps else {}
    return sum(step.n_texts * int(kinds.get(step.test, 0)) for step in steps)


def _try_report(
    sweep: Sweep,
    found: Calibration,
    report_on: Callable[[Path, int], None],
    n_values: int,
    folder: Path,
) -> tuple[float, int]:
    """Seconds and bytes of the report, tried on rows that repeat those measured.

    A line through a small and a larger report tells of more texts. Of more heads the
    statistics take longer in proportion.
    """
    forward = _seconds_of_forward(sweep)
    n_texts = len(sweep.texts)
    room = int(REPORT_SECONDS / max(2 * forward, 1e-9))  # it observes texts one by one
    larger = min(n_texts, max(FEWEST, min(MOST, room)))
    sizes = sorted({max(larger // 4, min(FEWEST, n_texts)), larger})
    taken = []
    for n in sizes:
        place = folder / str(n)
        n_rows, statistics = _write_rows(sweep, found, n, place / "rows")
        begun = sweep.pace.clock()
        report_on(place, n)
        taken.append(sweep.pace.clock() - begun)
    slope = max(taken[-1] - taken[0], 0.0) / max(sizes[-1] - sizes[0], 1)
    more = n_values / max(n_rows * n_texts / larger, 1) - 1
    seconds = taken[-1] + slope * (n_texts - larger) + max(more, 0.0) * statistics
    seconds += _n_pruned(sweep, found) * forward
    n_bytes = _size(place / "rows") * n_values / max(n_rows, 1)
    besides = sum(f.stat().st_size for f in place.iterdir() if f.is_file())
    return seconds, int(n_bytes) + besides


def _write_rows(sweep: Sweep, found: Calibration, n: int, folder: Path) -> tuple[int, float]:
    """Rows of n texts, those measured again and again; how many, seconds to sum them up."""
    rows = found.rows[-1].drop_duplicates(list(KEY))
    measured = sorted(rows.example_id.unique())
    ids = [text.example_id for text in sweep.texts[:n]]
    names = pd.DataFrame(
        {
            "example_id": [measured[k % len(measured)] for k in range(n)],
            "new": ids,
        }
    )
    rows = rows.merge(names, on="example_id")
    rows = rows.drop(columns="example_id").rename(columns={"new": "example_id"})
    for start in range(0, n, sweep.batch_size):
        part = rows[rows.example_id.isin(ids[start : start + sweep.batch_size])]
        append_rows(folder, part)
    begun = sweep.pace.clock()
    summarize(rows, sweep.adapter.label_names, readings())
    return len(rows), sweep.pace.clock() - begun


def _seconds_of_forward(sweep: Sweep) -> float:
    """Of one text of middle length, by itself."""
    text = sorted(sweep.texts, key=lambda text: text.n_tokens)[len(sweep.texts) // 2]
    batch = collate(sweep.adapter, [text], sweep.pad_token_id)
    begun = sweep.pace.clock()
    sweep.adapter.observe(batch)
    return sweep.pace.clock() - begun


def _n_pruned(sweep: Sweep, found: Calibration) -> int:
    """Texts that are run with heads taken away, at every point of the prune curve."""
    measured = "zero_tvd" in set(found.rows[-1].statistic)
    is_single = len(sweep.adapter.sites()) < 2
    if is_single or not measured or sweep.adapter.lacks(MaskedReplay) is not None:
        return 0
    return (PRUNE_POINTS + 1) * len(sweep.texts)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
