"""The public class ``Report``: what an audit found, and how it is shown."""

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
from hf_attnprobe.core.terminal import tail
from hf_attnprobe.documents.blocks import Document
from hf_attnprobe.documents.formats import Documented, as_json, csv_of
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.plots.chart import Chart, HeatMap
from hf_attnprobe.plots.shown_text import ShownText
from hf_attnprobe.reports.audit_document import charts_of_audit, document_of
from hf_attnprobe.reports.experiment_trackers import Tracker, log_to, numbers_by_name
from hf_attnprobe.reports.first_screen import stopping_notes
from hf_attnprobe.reports.head_tables import head_maps
from hf_attnprobe.reports.number_tables import JUDGED
from hf_attnprobe.reports.result import (
    AuditResult,
    check_schema,
    fields_from_json,
    to_json,
)
from hf_attnprobe.reports.verdict import findings
from hf_attnprobe.statistics.checks import contradictions
from hf_attnprobe.statistics.differences import compare_rankings
from hf_attnprobe.statistics.estimates import MANY_TEXTS
from hf_attnprobe.statistics.rows import (
    COLUMNS,
    PREDICTION,
    STOPPING,
    Rows,
    rows_that_count,
)
from hf_attnprobe.statistics.summary import Statistic, site_of_model, summarize
from hf_attnprobe.statistics.wording import words_of
from hf_attnprobe.storage.folders import differing, write_atomically
from hf_attnprobe.storage.provenance import read_summary, read_texts
from hf_attnprobe.storage.rows import (
    parts_in,
    read_part,
    rows_in,
    rows_of_parts,
)


if TYPE_CHECKING:
    from matplotlib.axes import Axes


OF_TEXTS = (
    "group",
    "mean",
    "ci_low",
    "ci_high",
    "median",
    "std",
    "n",
    "undefined",
)
"""Columns of a statistic over texts, behind those of its place."""


class Report(AuditResult, Documented):
    """The report of an audit. ``print(report)`` gives the verdict and a line per question.

    A notebook shows it as a page; ``to_text(verbose=True)`` and ``to_markdown()`` have
    all numbers, ``summary_frame()``, ``wide_frame()`` and ``to_pandas()`` give them as
    data frames.
    """

    def __repr__(self) -> str:
        model, data = tail(self.model, 40), tail(str(self.dataset), 40)
        return f"<Report: {model} on {data}, {self.n} texts, answer: {self.answer}>"

    @classmethod
    def load(cls, folder: str | Path) -> "Report":
        """The report of an audit's folder, with its rows.

        Raises:
            AttnProbeError: no finished audit there, or one of another version.
        """
        return read_audit(folder)

    def document(self) -> Document:
        """The report as a document."""
        return document_of(self)

    def charts(self, *, site: tuple[int, int] | None = None) -> tuple[Chart | HeatMap, ...]:
        """All charts as data, in the order of the questions.

        Args:
            site: layer and head; by default what stands for the model's attention.
        """
        own = charts_of_audit(self, site)
        return (*own, *head_maps(self.judged, self.rules))

    def plot(
        self,
        kind: str | None = None,
        ax: "Axes | None" = None,
        *,
        site: tuple[int, int] | None = None,
    ) -> "Axes":
        """Draws a figure with matplotlib, which a notebook shows as the last line of a cell.

        Args:
            kind: key of one of :meth:`charts`; by default the first.
            ax: where it is drawn; by default a figure of its own, which is ``plot().figure``.
            site: layer and head; by default what stands for the model's attention.

        Raises:
            AttnProbeError: nothing to draw, or no such figure.
        """
        from hf_attnprobe.plots.matplotlib_backend import (
            draw_one,
        )  # matplotlib is slow to import

        return draw_one(self.charts(site=site), kind, ax)

    def to_pandas(self) -> pd.DataFrame:
        """The rows: test, statistic, example_id, layer, head, value."""
        return self.rows.long()

    def wide_frame(self) -> pd.DataFrame:
        """A text per row, a statistic per column; NaN where a text has no value.

        Returns:
            The index is ``example_id``. A column is called as its statistic, and
            ``test.statistic`` where several tests have one of that name. Where several
            heads or groups were tested, columns have the levels statistic, layer and head;
            what is no statistic of attention, such as ``predicted_class``, has empty ones.
        """
        columns, wide = self.rows.columns, self.rows.wide()
        n_tests = Counter(name for _, name in {c[:2] for c in columns})
        names = [f"{c[0]}.{c[1]}" if n_tests[c[1]] > 1 else c[1] for c in columns]
        if len(self.rows.sites) <= 1:
            return wide.set_axis(pd.Index(names, name="statistic"), axis=1)
        places = [("", "") if c[0] == PREDICTION else c[2:] for c in columns]
        levels = [(name, *place) for name, place in zip(names, places, strict=True)]
        index = pd.MultiIndex.from_tuples(levels, names=["statistic", "layer", "head"])
        return wide.set_axis(index, axis=1)

    def sentences(self) -> pd.DataFrame:
        """Of a language model: a unit of a passage per row.

        Returns:
            ``example_id``, ``unit`` (its number, from 1), ``text``; ``attention``,
            ``knockout`` and ``leave_one_out`` (nats that the answer loses without it), and
            ``matters``, whether that is more than noise. Of up to 1,000 prompts.
        """
        rows = [
            {"example_id": one.example_id, "unit": k + 1, **unit}
            | {"matters": None if one.matters is None else k in one.matters}
            for one in self.examples
            for k, unit in enumerate(one.units)
        ]
        return pd.DataFrame(rows)

    def summary_frame(self, statistics: Collection[str] | None = None) -> pd.DataFrame:
        """A statistic per row, over all texts and by predicted class.

        Args:
            statistics: names to keep, such as "median_tvd"; None keeps all.

        Returns:
            Columns test, statistic, layer, head, group, mean, ci_low, ci_high, median, std,
            n, undefined.
        """
        rows = [s.row() for s in self.statistics if statistics is None or s.statistic in statistics]
        return pd.DataFrame(rows, columns=[*COLUMNS, *OF_TEXTS])

    def to_csv(self, path: str | Path) -> None:
        """Writes :meth:`summary_frame` to a file."""
        write_atomically(Path(path), csv_of(self.summary_frame()))

    def to_json(self) -> str:
        """All of it for machines; a page is too small for that."""
        return as_json(to_json(self))

    def log_to(self, tracker: Tracker, *, step: int | None = None) -> None:
        """Logs every question's number with its interval, and the page, to a tracker.

            report.log_to("wandb")
            report.log_to(trainer.log)

        Args:
            tracker: "tensorboard", "wandb" or "mlflow", whose open run is used, else one of its
                own; or any function of a dict of numbers, which gets no page.
            step: of the training, where the model was then.

        Raises:
            AttnProbeError: a name that is not known, or a package that is not installed.
        """
        log_to(tracker, numbers_by_name(self.findings), self, step)


MANY = (
    f"Many texts: with more than {MANY_TEXTS:,} nothing is resampled. P-values of paired tests, "
    "the interval of R² and intervals that hold for many heads at once are those of normal means."
)


def report_from(rows: Rows, *, notes: Sequence[str] = (), **facts: Any) -> Report:
    """Makes a report of rows, wherever they are stored, and of what they do not say.

    Args:
        rows: of the audit, those that count; see :func:`rows_told`.
        notes: sentences that belong beside the findings.
        facts: other fields of :class:`AuditResult`: model, dataset, provenance and so on.
    """
    bare = Report(statistics=(), rows=rows, **facts)
    provenance = bare.provenance
    classes = provenance["classes"]
    words = words_of(provenance["prediction"], unit=provenance.get("unit_of_number", ""))
    stopped = provenance.get(STOPPING)
    statistics = summarize(rows, classes, readings())
    if stopped is not None:
        statistics = without_those_not_run(statistics, rows)
    against: dict[str, Any] = {}
    if JUDGED in provenance:  # scores that somebody gave
        against = {"against": "given", "site": site_of_model(rows)}
    many = [MANY] if len(rows) > MANY_TEXTS else []
    return dataclasses.replace(
        bare,
        statistics=statistics,
        comparisons=compare_rankings(rows, seed=bare.seed, **against),
        findings=findings(rows, classes, seed=bare.seed, words=words, rules=bare.rules),
        contradictions=tuple(contradictions(rows, readings(), of_number=words.is_number)),
        notes=(*stopping_notes(stopped), *notes, *many),
    )


def without_those_not_run(statistics: Sequence[Statistic], rows: Rows) -> tuple[Statistic, ...]:
    """The same; texts that a head was not run on are not counted as undefined."""
    tested = rows.of_tests()
    n = {c: int(np.isnan(tested.read(c)[tested.is_there(c)]).sum()) for c in tested.columns}
    return tuple(
        dataclasses.replace(s, undefined=min(s.undefined, n.get(s.column, 0))) for s in statistics
    )


def rows_told(held: Rows, provenance: Mapping[str, Any], ids: Sequence[int]) -> Rows:
    """Returns the rows of a report's texts and tests that count; its folder may hold more."""
    counted = rows_that_count(held, provenance.get(STOPPING), ids)
    told = {*provenance["tests"], PREDICTION}
    return counted.select(lambda test, *_: test in told).of_texts(ids)


@public_function
def read_audit(folder: str | Path) -> Report:
    """The report of an audit's folder, with its rows."""
    report = read_summary(folder, _parsed, kind="an audit", verb="the audit", check=check_schema)
    shown, ids = read_texts(Path(folder)), report.example_ids
    # The folder may hold texts and tests that no summary has been made of yet.
    return dataclasses.replace(
        report,
        rows=rows_told(rows_in(Path(folder) / "rows"), report.provenance, ids),
        examples=tuple(text for text in shown if text.example_id in ids),
    )


def check_once(folders: Sequence[str | Path]) -> None:
    """Raises AttnProbeError where a folder is named twice."""
    places = [Path(folder).resolve() for folder in folders]
    for place, folder in zip(places, folders, strict=True):
        if places.count(place) > 1:
            raise AttnProbeError(f"expected every audit once, got {folder} twice; leave one out")


def _parsed(data: Mapping) -> Report:
    """The report without its rows."""
    report = from_json(data)
    _ = (
        report.words,
        report.provenance["tests"],
    )  # else first asked for where they are shown
    return report


def from_json(data: Mapping) -> Report:
    """The inverse of ``to_json`` and ``extras_to_json``, without the rows."""
    return Report(**fields_from_json(data))


def place_line(folder: str | Path | None) -> str:
    """Names the page of an audit, or says how to keep one."""
    if folder is None:
        return "  page          nothing was kept; --output-dir DIR keeps page and rows"
    return f"  page          {Path(folder) / 'report.html'}    more: --verbose"


# --- an audit shared out: each process takes the texts of one share --------------------
# A share is an audit of its own, with its own folder, lock and rows, and goes on when it is run
# again. The same texts have the same numbers whoever runs them, since all randomness is by seed
# and id.
#
#     for k in 0 1 2 3; do attnprobe audit … --share $k/4 --output-dir job & done
#     attnprobe report job/share-*


SUMMED = ("truncated", "skipped_empty")
"""Counts in the provenance, of the texts of a share alone."""


def is_share(folder: Path) -> bool:
    """Whether a folder holds a share of an audit."""
    return folder.name.startswith("share-") and (folder / "audit.json").is_file()


@public_function
def joined_report(folders: Sequence[str | Path]) -> Report:
    """The report of some shares of one audit, or of all.

    Raises:
        AttnProbeError: a folder without a finished share, or shares of different audits.
    """
    places = [Path(folder) for folder in folders]
    shares = [read_audit(place) for place in places]
    _check_one_audit(places)
    first = shares[0]
    provenance = _joined(shares)
    wanted = {*provenance["tests"], PREDICTION}
    rows = rows_of_parts(read_part(part) for place in places for part in parts_in(place / "rows"))
    return report_from(
        rows.select(lambda test, *_: test in wanted),
        model=first.model,
        dataset=first.dataset,
        n=sum(share.n for share in shares),
        seed=first.seed,
        provenance=provenance,
        notes=_progress(shares),
        examples=tuple(_prompts(shares)),
    )


def _prompts(shares: Sequence[Report]) -> Iterator[ShownText]:
    """Yields a language model's prompts, all of which a share keeps with their scores."""
    for share in shares:
        for text in share.examples:
            why = f"{text.why} in its share" if text.why else ""
            if text.unit:
                yield dataclasses.replace(text, why=why)


def _check_one_audit(places: Sequence[Path]) -> None:
    marks = [
        read_json(place / "audit.json", dict[str, Any], "run the share again") for place in places
    ]
    for mark in marks:
        mark.pop("scores_fingerprint", None)  # of a share's own texts
    for place, mark in zip(places, marks, strict=True):
        wrong = differing(mark, marks[0])
        if wrong:
            raise AttnProbeError(
                f"expected shares of one audit, {place} differs from {places[0]} in "
                f"{', '.join(wrong)}; join those of one audit"
            )


def _joined(shares: Sequence[Report]) -> dict[str, Any]:
    """The provenance of all; what is counted in a share is added up."""
    known = [share.provenance for share in shares]
    total = {name: sum(one[name] for one in known) for name in SUMMED}
    n = sum(share.n for share in shares)
    unknown = sum(share.n * share.provenance["unknown_tokens"] for share in shares) / n
    asked = {k: v for k, v in known[0]["asked_for"].items() if k != "share"}
    said = [one["share"] for one in known]
    return {
        **known[0],
        **total,
        "unknown_tokens": unknown,
        "asked_for": asked,
        "share": said,
    }


def _progress(shares: Sequence[Report]) -> list[str]:
    """How much of the audit this is."""
    held = Counter(tuple(share.provenance["share"]) for share in shares)
    of = {n for _, n in held}
    if len(of) > 1 or max(held.values()) > 1:
        raise AttnProbeError("expected every share once, and all of as many")
    (n,) = of
    if len(held) == n:
        return []
    return [
        f"Progress: {len(held)} of {n} shares. They are by a hash of ids, so these texts are a "
        "random part of all, and the intervals are of that part."
    ]
