"""The report of a job, finished or not: from the summaries of its parts, not its rows.

A summary of a part is as large for a thousand texts as for a million, so a report needs
as much memory and little more time. A job with few enough values is read whole, and
its report is that of an ordinary audit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hf_attnprobe.auditing.merged_findings import merged_findings
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import audit_asked_for
from hf_attnprobe.auditing.report import Report
from hf_attnprobe.auditing.verdict import findings
from hf_attnprobe.cards.names import IN_MEMORY
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.data.examples import dataset_name
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import asked_tests, readings
from hf_attnprobe.options import from_flat
from hf_attnprobe.partitions.plan import Plan, read_part, read_plan, records
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.statistics.checks import contradictions
from hf_attnprobe.statistics.differences import compare_rankings
from hf_attnprobe.statistics.merging import (
    MOST_CLASSES,
    Partial,
    merged,
    merged_statistics,
    n_texts,
)
from hf_attnprobe.statistics.summary import summarize
from hf_attnprobe.statistics.wording import Words, words_of
from hf_attnprobe.storage.wide_rows import from_wide, read_partial, read_wide


FEW_VALUES = 1_000_000
"""A job with no more is read whole: about 20,000 texts by sites, of fifty statistics."""
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
    def words(self) -> Words:
        """How sentences speak of what the model predicts."""
        return words_of(self.plan.prediction, unit=self.unit_of_number)

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
    """A job and what is done of it.

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

    Reads the summaries of the parts and merges them in the order of the partitions, so
    that it does not depend on who worked. Only where there are at most a million values
    it reads the rows, and gives what an ordinary audit gives.

    Args:
        job: folder or URL of :func:`~hf_attnprobe.partitions.planning.plan_audit`.

    Returns:
        The report; without rows where there are many. Its notes say how much of the job
        is done, which texts were set aside, and what would have needed the rows.

    Raises:
        AttnProbeError: there is no plan, no finished partition, or a part is not the one
            that its record vouches for.
    """
    opened = open_job(job)
    if not opened.records:
        raise AttnProbeError(
            f"expected a finished partition of {opened.plan.n_partitions} in {job}, "
            f"found none; start attnprobe work {job}"
        )
    summary = merged(_summaries(opened))
    if summary.n.sum() <= FEW_VALUES:
        return _from_rows(opened, summary)
    return _from_summary(opened, summary)


def rows_of_job(job: str | Path) -> Iterator[pd.DataFrame]:
    """The long rows of a job, one finished partition after the other.

    Args:
        job: folder or URL of :func:`~hf_attnprobe.partitions.planning.plan_audit`.

    Yields:
        Columns test, statistic, example_id, layer, head and value, as
        :func:`~hf_attnprobe.storage.rows.read_rows` gives them of an audit.
    """
    yield from _rows(open_job(job))


def _rows(job: Job) -> Iterator[pd.DataFrame]:
    for k in sorted(job.records):
        yield from_wide(read_wide(read_part(job.store, job.plan, k, "parquet")))


def _summaries(job: Job) -> Iterator[Partial]:
    for k in sorted(job.records):
        yield read_partial(read_part(job.store, job.plan, k, "summary"))


def _from_rows(job: Job, summary: Partial) -> Report:
    plan, seed = job.plan, job.plan.seed
    rows = pd.concat([*_rows(job)], ignore_index=True)
    return Report(
        **_described(job, summary),
        statistics=summarize(rows, plan.classes, readings()),
        comparisons=compare_rankings(rows, seed=seed),
        findings=findings(rows, None, plan.classes, seed=seed, words=job.words),
        contradictions=tuple(contradictions(rows, readings(), of_number=job.words.is_number)),
        notes=tuple(_notes_on_progress(job)),
        example_ids=tuple(sorted(rows.example_id.unique().tolist())),
        rows=rows,
    )


def _from_summary(job: Job, summary: Partial) -> Report:
    classes = job.plan.classes
    return Report(
        **_described(job, summary),
        statistics=merged_statistics(summary, classes, readings()),
        findings=merged_findings(summary, classes, words=job.words),
        notes=(*_notes_on_progress(job), *_notes_on_summaries(job, summary)),
    )


def _described(job: Job, summary: Partial) -> dict[str, Any]:
    """What a report of the job has whether it has rows or not."""
    plan = job.plan
    return {
        "model": plan.model["name"],
        "dataset": dataset_name(plan.data["dataset"], plan.data["split"]),
        "n": n_texts(summary),
        "seed": plan.seed,
        "provenance": _provenance(job),
    }


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
            from_flat(plan.options, AuditOptions),
        ),
        "versions": dict(plan.versions),
        **({"unit_of_number": unit} if unit else {}),
        **({"left_out": dict(plan.left_out)} if plan.left_out else {}),
    }


def _notes_on_progress(job: Job) -> list[str]:
    """How much is done, and what could not be."""
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


def _notes_on_summaries(job: Job, summary: Partial) -> list[str]:
    """What a report without rows has less."""
    notes = [
        "Summaries: this report was made from summaries of the parts, not from rows. "
        "Medians are to 1/1024. "
        "Paired tests of rankings, charts, simultaneous intervals of heads and the search "
        "for contradictions need rows, and are not here."
    ]
    if summary.is_brief.any():
        notes.append(
            "Single heads: there are many, so their medians are to 1/64; their intervals "
            "are each head's for itself."
        )
    if len(job.plan.classes) > MOST_CLASSES:
        notes.append(
            f"Classes: with more than {MOST_CLASSES} classes summaries are of all texts "
            "only, not of each predicted class."
        )
    return notes
