"""The report of a job, finished or not: that of an audit, on the rows of its partitions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import audit_asked_for
from hf_attnprobe.auditing.report import Report, found_in, notes_on_size
from hf_attnprobe.cards.metadata import IN_MEMORY
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.data.examples import dataset_name
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import asked_tests
from hf_attnprobe.hardware import large_arrays_apart
from hf_attnprobe.options import from_flat
from hf_attnprobe.partitions.plan import Plan, read_held, read_plan, records, rows_ending
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.verdicts import with_thresholds
from hf_attnprobe.storage.rows import Parts, read_part, rows_of_parts


MOST_IDS = 20  # of texts set aside that a note names


@dataclass(frozen=True)
class Job:
    """A job as it stands.

    Attributes:
        store: its files.
        plan: what it is.
        records: of the finished partitions, by partition.
    """

    store: Store
    plan: Plan
    records: Mapping[int, Mapping[str, Any]]

    @property
    def options(self) -> AuditOptions:
        """Those of the audit."""
        return from_flat(self.plan.options, AuditOptions)

    @property
    def unit_of_number(self) -> str:
        """What a change of a number is counted in, where that is the labels' spread."""
        kind, scale = (self.plan.prediction.get(key) for key in ("kind", "scale"))
        by_labels = "scale" not in self.plan.options and scale == self.plan.spread
        is_spread = kind == "number" and by_labels
        return "standard deviations of the labels" if is_spread else ""

    @property
    def set_aside(self) -> list[Mapping[str, Any]]:
        """The texts that could not be audited, with the reason."""
        return [text for r in self.records.values() for text in r["set_aside"]]


def open_job(job: str | Path) -> Job:
    """Opens a job and counts what is done.

    Args:
        job: folder or URL of :func:`~hf_attnprobe.partitions.planning.plan_audit`.

    Raises:
        AttnProbeError: there is no plan.
    """
    store = Store(str(job))
    plan = read_plan(store)
    return Job(store, plan, records(store, plan))


def job_report(job: str | Path) -> Report:
    """The report of a job, of the partitions that are done so far.

    That of an audit of the same texts: it is made of the same rows, in the order of their
    ids, so that it does not depend on who worked. A statistic is read at a time.

    Args:
        job: folder or URL of :func:`~hf_attnprobe.partitions.planning.plan_audit`.

    Returns:
        The report. Its notes say how much of the job is done, and which texts were set
        aside.

    Raises:
        AttnProbeError: there is no plan, no finished partition, or a part is not the one
            that its record vouches for.
    """
    large_arrays_apart()
    opened = open_job(job)
    plan = opened.plan
    if not opened.records:
        raise AttnProbeError(
            f"expected a finished partition of {plan.n_partitions} in {job}, found none; "
            f"start attnprobe work {job}"
        )
    n_texts = sum(record["audited"] for record in opened.records.values())
    provenance = _provenance(opened)
    rows, *draws = _all_rows(opened)
    return Report(
        model=plan.model["name"],
        dataset=dataset_name(plan.data["dataset"], plan.data["split"]),
        n=n_texts,
        seed=plan.seed,
        provenance=provenance,
        notes=(*_notes(opened), *notes_on_size(n_texts)),
        **found_in(
            rows,
            draws,
            provenance,
            seed=plan.seed,
            shares_draws=opened.options.control not in ("auto", "reassigned"),
            rules=with_thresholds(opened.options.thresholds),
        ),
    )


def rows_of_job(job: str | Path) -> Iterator[pd.DataFrame]:
    """The long rows of a job, one finished partition after the other.

    Args:
        job: folder or URL of :func:`~hf_attnprobe.partitions.planning.plan_audit`.

    Yields:
        Columns test, statistic, example_id, layer, head and value, as
        :func:`~hf_attnprobe.storage.rows.read_rows` gives them of an audit.
    """
    opened = open_job(job)
    for k in sorted(opened.records):
        yield rows_of_parts([_table(opened, k)]).long()


def _all_rows(job: Job) -> list[Rows]:
    """The rows of the finished partitions, of the model and of every draw of its control."""
    parts, n_draws = Parts(), job.plan.control_draws
    for k in sorted(job.records):
        for draw in (None, *range(n_draws)):
            parts.add(_table(job, k, draw), draw=draw)
    return parts.finished(n_draws)


def _table(job: Job, k: int, draw: int | None = None) -> pa.Table:
    """A finished partition, of the model or of a draw of its control."""
    return read_part(read_held(job.store, job.records[k], rows_ending(draw)))


def _provenance(job: Job) -> dict[str, Any]:
    plan, unit = job.plan, job.unit_of_number
    data = from_flat(plan.data, Data)
    without = sum(record["without_tokens"] for record in job.records.values())
    return {
        "job": plan.name,
        "partitions": plan.n_partitions,
        "partitions_done": len(job.records),
        "set_aside": job.set_aside,
        "skipped_empty": without,
        **{k: v for k, v in plan.model.items() if k.endswith("_fingerprint")},
        "seed": plan.seed,
        "options": dict(plan.tests),
        "prediction": dict(plan.prediction),
        "tests": list(plan.tests),
        "classes": list(plan.classes),
        "text_columns": plan.data.get("columns", ""),
        "asked_for": audit_asked_for(
            plan.model["name"],
            data if data.dataset != IN_MEMORY else replace(data, dataset=None),
            asked_tests(plan.tests),
            job.options,
        ),
        "versions": dict(plan.versions),
        **({"control": plan.control} if plan.control != "none" else {}),
        **({"unit_of_number": unit} if unit else {}),
        **({"left_out": dict(plan.left_out)} if plan.left_out else {}),
    }


def _notes(job: Job) -> list[str]:
    """States how much is done, and what could not be done."""
    plan, notes = job.plan, []
    done = sum(record["texts"] for record in job.records.values())
    if len(job.records) < plan.n_partitions:
        notes.append(
            f"Progress: {len(job.records)} of {plan.n_partitions} partitions are done, "
            f"{done} of {plan.n_texts} texts. Partitions are by a hash of ids, so these "
            "texts are a random part of all, and the intervals are of that part."
        )
    aside = job.set_aside
    if aside:
        ids = ", ".join(str(text["example_id"]) for text in aside[:MOST_IDS])
        more = ", …" if len(aside) > MOST_IDS else ""
        notes.append(
            f"Set aside: {len(aside)} of {done} texts ({len(aside) / done:.2%}) failed or "
            f"killed their worker and count in nothing (example_id {ids}{more})."
        )
    return notes
