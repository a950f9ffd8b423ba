"""The public class ``Report``, and functions that read, assemble and join reports."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.serialization import read_json
from hf_attnprobe.core.terminal import truncate_start
from hf_attnprobe.documents.blocks import Document, map_texts
from hf_attnprobe.documents.formats import DocumentedResult, format_csv, format_json
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.plots.chart import Chart, HeatMap
from hf_attnprobe.plots.highlighted_text import HighlightedText
from hf_attnprobe.reports.audit_document import build_audit_document, build_site_charts
from hf_attnprobe.reports.charts import build_score_chart
from hf_attnprobe.reports.experiment_trackers import Tracker, collect_metrics, log_metrics
from hf_attnprobe.reports.first_screen import describe_stopping
from hf_attnprobe.reports.head_tables import build_head_maps
from hf_attnprobe.reports.result import (
    AuditResult,
    check_schema,
    convert_report_to_json,
    parse_report_fields,
)
from hf_attnprobe.reports.verdict import compute_findings
from hf_attnprobe.statistics.checks import find_contradictions
from hf_attnprobe.statistics.differences import compare_rankings
from hf_attnprobe.statistics.estimates import MAX_RESAMPLED_TEXTS
from hf_attnprobe.statistics.rows import (
    COLUMN_FIELDS,
    PREDICTION_TEST,
    STOPPING_KEY,
    Rows,
    select_counted_rows,
)
from hf_attnprobe.statistics.summary import Statistic, find_model_site, summarize
from hf_attnprobe.statistics.wording import Wording, build_wording, find_unit_names
from hf_attnprobe.storage.folders import find_differences, write_atomically
from hf_attnprobe.storage.provenance import (
    DISTINCT_TEXTS_KEY,
    EARLIER_RUNS_KEY,
    SCORES_FINGERPRINT_KEY,
    UNSUPPORTED_TESTS_KEY,
    read_summary,
    read_texts,
)
from hf_attnprobe.storage.rows import (
    collect_rows,
    list_parts,
    load_rows,
    read_part,
)


if TYPE_CHECKING:
    from matplotlib.axes import Axes


SUMMARY_COLUMNS = (
    "group",
    "mean",
    "ci_low",
    "ci_high",
    "median",
    "std",
    "n",
    "undefined",
)
"""Columns of ``Report.summary_frame`` after test, statistic, layer and head.

They are the group of texts; mean, 95% interval, median and standard deviation over these texts; and
the numbers of texts with a value and with an undefined value.
"""


class Report(AuditResult, DocumentedResult):
    """An audit's results together with all output formats.

    ``print(report)`` prints the verdict and one line per question; notebooks display a page.
    ``to_text(verbose=True)`` and ``to_markdown()`` contain all numbers, and ``summary_frame()``,
    ``wide_frame()`` and ``to_pandas()`` return them as data frames.
    """

    def __repr__(self) -> str:
        model, data = truncate_start(self.model, 40), truncate_start(str(self.dataset), 40)
        texts = self.rename_units(self.words.format_text_count(self.n, self.n_distinct))
        return f"<Report: {model} on {data}, {texts}, answer: {self.answer}>"

    @classmethod
    def load(cls, folder: str | Path) -> "Report":
        """Read a saved audit from its output folder.

        Args:
            folder: the audit's output folder.

        Raises:
            AttnProbeError: If the folder contains no finished audit, or another version wrote it.
        """
        return read_audit(folder)

    def build_document(self) -> Document:
        """Build the document that all output formats print."""
        document = build_audit_document(self)
        if find_unit_names(self.provenance) is None:
            return document
        return map_texts(document, self.rename_units)

    def charts(self, *, site: tuple[int, int] | None = None) -> tuple[Chart | HeatMap, ...]:
        """Return all charts as data, in the order of the questions.

        The last chart is that of the first screen: faithfulness and its parts.

        Args:
            site: layer and head; by default, the attention as a whole.
        """
        score_chart = build_score_chart(self.answer_findings)
        return (
            *build_site_charts(self, site),
            *build_head_maps(self.head_evaluations, self.rules),
            *([score_chart] if score_chart is not None else []),
        )

    def plot(
        self,
        kind: str | None = None,
        ax: "Axes | None" = None,
        *,
        site: tuple[int, int] | None = None,
    ) -> "Axes":
        """Draw a chart with matplotlib. Notebooks display it.

        Example::

            report.plot("tau_gradient").savefig("tau.png")

        Args:
            kind: key of a chart in :meth:`charts`, such as "tau_gradient"; by default the first.
            ax: matplotlib axes to draw on; by default, a new figure is created (``plot().figure``).
            site: layer and head; by default, the attention as a whole.

        Returns:
            The matplotlib axes.

        Raises:
            AttnProbeError: If there are no charts, or none has this key.
        """
        # Matplotlib is slow to import.
        from hf_attnprobe.plots.matplotlib_backend import draw_by_key

        return draw_by_key(self.charts(site=site), kind, ax)

    def to_pandas(self) -> pd.DataFrame:
        """Return all values as a data frame in long format.

        The columns are test, statistic, example_id, layer, head and value.
        """
        return self.rows.build_long_frame()

    def wide_frame(self) -> pd.DataFrame:
        """Return a data frame with one row per text and one column per statistic.

        A column has the name of its statistic. If several tests have a statistic of this name, the
        column is named ``test.statistic``.

        If several heads were tested, the columns have the levels statistic, layer and head. Layer
        and head are empty for numbers that do not depend on attention, such as ``predicted_class``.

        Returns:
            The data frame, indexed by ``example_id``. A value is NaN if it was not measured.
        """
        columns = self.rows.columns
        frame = self.rows.build_wide_frame()
        measured_statistics = {(test, statistic) for test, statistic, *_ in columns}
        n_tests = Counter(statistic for _, statistic in measured_statistics)
        names = [
            f"{test}.{statistic}" if n_tests[statistic] > 1 else statistic
            for test, statistic, *_ in columns
        ]
        if len(self.rows.sites) <= 1:
            return frame.set_axis(pd.Index(names, name="statistic"), axis=1)
        sites = [
            ("", "") if test == PREDICTION_TEST else (layer, head)
            for test, _, layer, head in columns
        ]
        levels = [(name, *site) for name, site in zip(names, sites, strict=True)]
        index = pd.MultiIndex.from_tuples(levels, names=["statistic", "layer", "head"])
        return frame.set_axis(index, axis=1)

    def sentences(self) -> pd.DataFrame:
        """Return a data frame with one row per passage unit, such as a sentence.

        Only audits of language models have such rows, for up to 1,000 prompts. The column
        ``leave_one_out`` contains the drop in the answer's log-probability without the unit, in nats.
        The column ``matters`` contains whether this drop is more than noise.

        Returns:
            Columns ``example_id``, ``unit`` (counted from 1), ``text``, ``attention``, ``knockout``,
            ``leave_one_out`` and ``matters``.
        """
        rows = []
        for text in self.examples:
            for k, unit in enumerate(text.units):
                matters = None if text.matters is None else k in text.matters
                row = {"example_id": text.example_id, "unit": k + 1, **unit, "matters": matters}
                rows.append(row)
        return pd.DataFrame(rows)

    def summary_frame(self, statistics: Collection[str] | None = None) -> pd.DataFrame:
        """Return a data frame with one row per statistic and group of texts.

        One group contains all texts. Each other group contains the texts with one predicted class.

        Args:
            statistics: names of the statistics to include, such as "median_tvd"; None includes all.

        Returns:
            Columns test, statistic, layer, head, group, mean, ci_low, ci_high, median, std, n and
            undefined.
        """
        rows = [
            s.build_table_row()
            for s in self.statistics
            if statistics is None or s.statistic in statistics
        ]
        return pd.DataFrame(rows, columns=[*COLUMN_FIELDS, *SUMMARY_COLUMNS])

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`summary_frame` to a CSV file.

        Args:
            path: the file to write; an existing file is replaced.
        """
        write_atomically(Path(path), format_csv(self.summary_frame()))

    def to_json(self) -> str:
        """Return all results as JSON, including long lists that a page omits."""
        return format_json(convert_report_to_json(self))

    def log_to(self, tracker: Tracker, *, step: int | None = None) -> None:
        """Log the number and the interval of every question to an experiment tracker.

        Example::

            accelerator = Accelerator(log_with="trackio")
            accelerator.init_trackers("attention")
            report.log_to(accelerator)
            report.log_to(trainer.log)

        Args:
            tracker: an ``accelerate.Accelerator`` with active trackers; one of Accelerate's trackers;
                or a function that logs a dictionary of numbers. If you pass ``step``, the function
                must accept the argument ``step``.
            step: training step at which the model was audited.

        Raises:
            AttnProbeError: If the tracker is of another type, or the ``Accelerator`` has no active
                tracker.
        """
        log_metrics(tracker, collect_metrics(self.findings), step)


MANY_TEXTS_NOTE = (
    f"With more than {MAX_RESAMPLED_TEXTS:,} texts, normal approximations replace resampling. They are used "
    "for p-values of paired tests, for the interval of R², and for simultaneous intervals of heads."
)
"""Note in reports of audits with so many texts that nothing is resampled."""


def assemble_report(rows: Rows, *, notes: Sequence[str] = (), **facts: Any) -> Report:
    """Compute statistics, findings and comparisons from rows, and return the report.

    Args:
        rows: the audit's rows, as selected by :func:`select_reported_rows`.
        notes: sentences to be printed with the findings.
        facts: other fields of :class:`AuditResult`, such as model, dataset and provenance.
    """
    report = Report(statistics=(), rows=rows, **facts)
    distinct_rows = report.distinct_rows
    provenance = _count_distinct_texts(report)
    classes = provenance["classes"]
    words = build_wording(provenance["prediction"], unit=provenance.get("unit_of_number", ""))
    stopping = provenance.get(STOPPING_KEY)
    statistics = summarize(distinct_rows, classes, load_readings())
    if stopping is not None:
        statistics = correct_undefined_counts(statistics, distinct_rows)
    comparison_options: dict[str, Any] = {}
    # User-provided scores have the key "given". All other rankings are compared with them.
    if SCORES_FINGERPRINT_KEY in provenance:
        comparison_options = {"against": "given", "site": find_model_site(distinct_rows)}
    size_notes = [MANY_TEXTS_NOTE] if len(distinct_rows) > MAX_RESAMPLED_TEXTS else []
    findings = compute_findings(
        distinct_rows,
        classes,
        seed=report.seed,
        words=words,
        rules=report.rules,
        unsupported_tests=provenance.get(UNSUPPORTED_TESTS_KEY, ()),
    )
    return dataclasses.replace(
        report,
        provenance=provenance,
        statistics=statistics,
        comparisons=compare_rankings(distinct_rows, seed=report.seed, **comparison_options),
        findings=report.rename_units_in_findings(findings),
        contradictions=tuple(find_contradictions(rows, load_readings(), is_number=words.is_number)),
        notes=(
            *describe_stopping(stopping),
            *_describe_copies(len(rows), len(distinct_rows), words),
            *notes,
            *size_notes,
        ),
    )


def _count_distinct_texts(report: Report) -> dict[str, Any]:
    """Return a report's provenance with the number of different texts, if its rows contain copies.

    Rows of earlier versions have no hashes, so their copies are not recognised and count as different.
    If an audit ended early, the number in the provenance also counts texts without rows.
    """
    provenance = dict(report.provenance)
    n_measured, n_distinct = len(report.rows), len(report.distinct_rows)
    if n_distinct == n_measured:
        provenance.pop(DISTINCT_TEXTS_KEY, None)
    elif n_measured == report.n:
        provenance[DISTINCT_TEXTS_KEY] = n_distinct
    return provenance


def _describe_copies(n_texts: int, n_distinct: int, words: Wording) -> list[str]:
    """Return a note that explains how copies of a text count; the list is empty without copies."""
    if n_distinct == n_texts:
        return []
    return [
        f"Copies: only {n_distinct:,} of the {n_texts:,} {words.texts} are different. All copies of "
        "the same text count as one text, with the mean of their values."
    ]


def correct_undefined_counts(statistics: Sequence[Statistic], rows: Rows) -> tuple[Statistic, ...]:
    """Correct the counts of texts without a defined value, for audits that ended early.

    Texts that a test did not reach have no value either, but do not count as undefined.

    Args:
        statistics: the audit's statistics.
        rows: the audit's rows.

    Returns:
        The statistics with corrected counts.
    """
    test_rows = rows.select_test_columns()
    n_undefined_by_column = {}
    for column in test_rows.columns:
        was_tested = test_rows.read_mask(column)
        values = test_rows.read_column(column)[was_tested]
        n_undefined_by_column[column] = int(np.isnan(values).sum())
    corrected_statistics = []
    for s in statistics:
        n_undefined = min(s.undefined, n_undefined_by_column.get(s.column, 0))
        corrected_statistics.append(dataclasses.replace(s, undefined=n_undefined))
    return tuple(corrected_statistics)


def select_reported_rows(
    stored_rows: Rows, provenance: Mapping[str, Any], ids: Sequence[int]
) -> Rows:
    """Select the rows of a report's tests and texts.

    The folder of the audit may also contain rows of an unfinished run.

    Args:
        stored_rows: all rows in the audit's folder.
        provenance: the report's provenance.
        ids: ids of the report's texts.
    """
    counted_rows = select_counted_rows(stored_rows, provenance.get(STOPPING_KEY), ids)
    tests = {*provenance["tests"], PREDICTION_TEST}
    return counted_rows.select(lambda test, *_: test in tests).select_ids(ids)


@public_function
def read_audit(folder: str | Path) -> Report:
    """Read a saved audit from its output folder.

    Example::

        report = read_audit("my-audit")

    Args:
        folder: the audit's output folder.

    Raises:
        AttnProbeError: If the folder contains no finished audit, or another version wrote it.
    """
    report = read_summary(
        folder, _parse_summary, run_name="an audit", verb="the audit", check=check_schema
    )
    ids = report.example_ids
    # The folder may also contain texts and tests of an unfinished run. The summary does not cover them.
    examples = [text for text in read_texts(Path(folder)) if text.example_id in ids]
    stored_rows = load_rows(Path(folder) / "rows")
    return dataclasses.replace(
        report,
        rows=select_reported_rows(stored_rows, report.provenance, ids),
        examples=tuple(examples),
    )


def check_distinct_folders(folders: Sequence[str | Path]) -> None:
    """Raise an error if a list of audit folders contains the same folder twice.

    Args:
        folders: audit folders.

    Raises:
        AttnProbeError: If two paths lead to the same folder.
    """
    resolved_folders = [Path(folder).resolve() for folder in folders]
    for resolved, folder in zip(resolved_folders, folders, strict=True):
        if resolved_folders.count(resolved) > 1:
            raise AttnProbeError(f"the folder {folder} is listed twice. List each folder once.")


def _parse_summary(data: Mapping) -> Report:
    """Parse a summary into a report without rows, and check that it is complete."""
    report = parse_report(data)
    # Reading these fields now reports a damaged file at once, instead of when it is displayed.
    _ = report.words, report.provenance["tests"]
    return report


def parse_report(data: Mapping) -> Report:
    """Parse a summary into a report without rows.

    Args:
        data: parsed JSON from ``summary.json``.
    """
    return Report(**parse_report_fields(data))


def format_page_line(folder: str | Path | None) -> str:
    """Return the last line of an audit's terminal output, which names the HTML page.

    Args:
        folder: the audit's output folder; None if nothing was saved.
    """
    if folder is None:
        return "  page          not saved; --output-dir DIR saves the page and the rows"
    return f"  page          {Path(folder) / 'report.html'}    more: --verbose"


# --- audits split into shares ----------------------------------------------------------
# Each process audits the texts of one share. A share is an audit with its own folder, lock and
# rows, and it resumes when it is run again. All randomness depends on the seed and the id of the
# text, so each text gets the same numbers on every machine.
#
#     for k in 0 1 2 3; do attnprobe audit … --share $k/4 --output-dir job & done
#     attnprobe report job/share-*


SUMMED_COUNTS = ("truncated", "truncated_tokens", "truncated_tokens_read", "skipped_empty")
"""Keys of the numbers of truncated and skipped texts in the provenance.

These numbers are added up when the shares of an audit are joined.
"""


def is_share(folder: Path) -> bool:
    """Check whether a folder contains the results of only one of several processes of an audit.

    An audit can be split over several processes, each of which handles a share of the texts. Its
    results are in folders such as ``share-0-of-2``.

    Args:
        folder: the folder.
    """
    return folder.name.startswith("share-") and (folder / "audit.json").is_file()


@public_function
def join_shares(folders: Sequence[str | Path]) -> Report:
    """Join the shares of a split audit into one report.

    A share is the part of the texts that one process audited. Some shares may be missing.

    Example::

        report = join_shares(["job/share-0-of-2", "job/share-1-of-2"])

    Args:
        folders: output folders of the shares.

    Raises:
        AttnProbeError: If a folder contains no finished share, or the shares belong to different
            audits.
    """
    paths = [Path(folder) for folder in folders]
    shares = [read_audit(path) for path in paths]
    _check_same_audit(paths)
    provenance = _join_provenance(shares)
    tests = {*provenance["tests"], PREDICTION_TEST}
    parts = (part for path in paths for part in list_parts(path / "rows"))
    rows = collect_rows(read_part(part) for part in parts)
    return assemble_report(
        rows.select(lambda test, *_: test in tests),
        model=shares[0].model,
        dataset=shares[0].dataset,
        n=sum(share.n for share in shares),
        seed=shares[0].seed,
        provenance=provenance,
        notes=_describe_progress(shares),
        examples=tuple(_collect_prompts(shares)),
    )


def _collect_prompts(shares: Sequence[Report]) -> Iterator[HighlightedText]:
    """Yield the prompts of all shares with their scores.

    Texts of classifiers are omitted.
    """
    for share in shares:
        for text in share.examples:
            reason_to_display = f"{text.why} in its share" if text.why else ""
            # Only prompts of language models have named units, such as sentences.
            if text.unit:
                yield dataclasses.replace(text, why=reason_to_display)


def _check_same_audit(folders: Sequence[Path]) -> None:
    """Raise an error if the folders contain shares of different audits."""
    identities = [
        read_json(folder / "audit.json", dict[str, Any], "Run the share again.")
        for folder in folders
    ]
    for folder, identity in zip(folders, identities, strict=True):
        differences = find_differences(identity, identities[0])
        if differences:
            raise AttnProbeError(
                f"{folder} and {folders[0]} are not shares of one audit, because they differ in "
                f"{', '.join(differences)}. Join only shares of the same audit."
            )


def _join_provenance(shares: Sequence[Report]) -> dict[str, Any]:
    """Join the provenance of all shares into one, and add up their counts of texts."""
    provenances = [share.provenance for share in shares]
    counts = {}
    for name in SUMMED_COUNTS:
        counts[name] = sum(provenance.get(name, 0) for provenance in provenances)
    # A share without truncated texts does not record the maximum length.
    max_lengths = [
        provenance["max_length"] for provenance in provenances if "max_length" in provenance
    ]
    if max_lengths:
        counts["max_length"] = max(max_lengths)
    n_texts = sum(share.n for share in shares)
    # The proportion of unknown tokens is a mean over texts, so larger shares have more weight.
    unknown_sum = sum(share.n * share.provenance["unknown_tokens"] for share in shares)
    arguments = _leave_out_share(provenances[0]["asked_for"])
    earlier_runs: list[dict[str, Any]] = []
    for provenance in provenances:
        for settings in map(_leave_out_share, provenance.get(EARLIER_RUNS_KEY, ())):
            if settings != arguments and settings not in earlier_runs:
                earlier_runs.append(settings)
    # A text can have copies in several shares, so the numbers of different texts cannot be added up.
    omitted_keys = (DISTINCT_TEXTS_KEY, EARLIER_RUNS_KEY)
    joined_provenance = {
        name: value for name, value in provenances[0].items() if name not in omitted_keys
    }
    if earlier_runs:
        joined_provenance[EARLIER_RUNS_KEY] = earlier_runs
    return {
        **joined_provenance,
        **counts,
        "unknown_tokens": unknown_sum / n_texts,
        "asked_for": arguments,
        "share": [provenance["share"] for provenance in provenances],
    }


def _leave_out_share(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run without the option ``--share``."""
    return {name: value for name, value in settings.items() if name != "share"}


def _describe_progress(shares: Sequence[Report]) -> list[str]:
    """Return a note about missing shares.

    The list is empty if no share is missing.

    Raises:
        AttnProbeError: If a share occurs twice, or the shares belong to different splits.
    """
    counts = Counter(tuple(share.provenance["share"]) for share in shares)
    totals = {total for _, total in counts}
    if len(totals) > 1 or max(counts.values()) > 1:
        share_names = ", ".join(f"{index}/{total}" for index, total in sorted(counts.elements()))
        raise AttnProbeError(
            f"expected different shares K/N with the same N, got {share_names}. List each share once."
        )
    (n_shares,) = totals
    if len(counts) == n_shares:
        return []
    return [
        f"Progress: {len(counts)} of {n_shares} shares. Shares are formed by hashes of the texts' "
        "ids, so these texts are a random sample of all texts, and the intervals refer to them."
    ]
