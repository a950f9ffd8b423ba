"""The public function ``render_report``: folders of results in the form that is asked for."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import pandas as pd

from hf_attnprobe.auditing.comparison import compare_audits
from hf_attnprobe.auditing.report import Report, read_audit
from hf_attnprobe.auditing.result import to_json as audit_to_json
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.partitions.plan import PLAN
from hf_attnprobe.partitions.report import job_report
from hf_attnprobe.reports.forms import Documented
from hf_attnprobe.retraining.report import KIND, read_retraining
from hf_attnprobe.storage.folders import write_atomically
from hf_attnprobe.studies.plan import STATE
from hf_attnprobe.studies.report import read_study_report


T = TypeVar("T")
Folders = str | Path | Sequence[str | Path]
Form = Callable[[Path], str]
"""From a folder of results to the text of a file."""


@dataclass(frozen=True)
class Shown:
    """What the folders of one verb can be shown as.

    Attributes:
        name: of what such a folder holds.
        mark: the file that tells such a folder.
        forms: by the ending of the file to write.
    """

    name: str
    mark: str
    forms: Mapping[str, Form] = field(default_factory=dict)


def render_report(folder: Folders, output: str | Path | None = None) -> str:
    """The results of a verb in the form that a file's ending names.

    Audits and retrainings are rendered again from their rows and summary.

    Args:
        folder: the output folder of ``audit``, ``plan``, ``retrain``, ``compare``,
            ``deceive`` or ``study``; several folders of audits for a comparison.
        output: a file to write, ending in .html, .md, .json, .csv or .tex; None writes
            nothing and gives Markdown.

    Returns:
        The text of the file.

    Raises:
        AttnProbeError: a folder without results, a form that there is not, or a file
            that cannot be written.
    """
    folders = _as_list(folder)
    ending = ".md" if output is None else Path(output).suffix
    text = _form(folders, ending, output)
    if output is not None:
        try:
            write_atomically(Path(output), text)
        except OSError as error:
            raise AttnProbeError(
                f"cannot write {output} ({error.strerror}); choose another --output"
            ) from error
    return text


def save_figures(folder: Folders, output_dir: str | Path) -> None:
    """Writes the figures of an audit or a retraining as SVG and PDF, and their captions.

    Raises:
        AttnProbeError: other folders, several folders, or nothing that can be drawn.
    """
    folders = _as_list(folder)
    shown = kind_of(folders[0])
    if len(folders) != 1 or shown not in (AUDIT, RETRAINING):
        raise AttnProbeError(
            "expected the folder of one audit or retraining for --figures; give one such folder"
        )
    from hf_attnprobe.figures import save  # matplotlib is slow to import

    read = read_retraining if shown is RETRAINING else read_audit
    save(read(folders[0]).charts(), output_dir)


def _as_list(folder: Folders) -> list[Path]:
    several = [folder] if isinstance(folder, str | Path) else folder
    return [Path(one) for one in several]


def _form(folders: Sequence[Path], ending: str, output: object) -> str:
    """The text, or in one line why there is none."""
    if len(folders) > 1:
        return _compared(folders, ending, output)
    shown = kind_of(folders[0])
    return _chosen(shown.forms, shown.name, ending, output)(folders[0])


def _compared(folders: Sequence[Path], ending: str, output: object) -> str:
    others = [folder for folder in folders if kind_of(folder) is not AUDIT]
    if others:
        raise AttnProbeError(
            f"expected folders of audits to compare, {others[0]} holds "
            f"{kind_of(others[0]).name}; give it alone"
        )
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise AttnProbeError(f"expected every audit once, got {folder} twice; leave one out")
        seen.add(folder.resolve())
    return _chosen(COMPARED, "several audits", ending, output)(folders)


def _chosen(forms: Mapping[str, T], name: str, ending: str, output: object) -> T:
    if ending not in forms:
        raise AttnProbeError(
            f"expected an output file ending in {' or '.join(forms)} for {name}, got "
            f"{output or 'none'}; choose another --output"
        )
    return forms[ending]


# --- what each verb can be shown as ---------------------------------------------------


class _WithFrame(Protocol):
    """A result that has numbers to put into a table."""

    def summary_frame(self) -> pd.DataFrame: ...


def _as_json(data: Mapping) -> str:
    return json.dumps(data, indent=1) + "\n"


def _documented(read: Callable[[T], Documented]) -> dict[str, Callable[[T], str]]:
    """The forms of what has a document, read from its folder or folders."""
    return {
        ".md": lambda folder: read(folder).to_markdown(),
        ".html": lambda folder: read(folder).to_html(),
        ".json": lambda folder: _as_json(read(folder).document().data or {}),
    }


def _in_rows(read: Callable[[T], _WithFrame]) -> dict[str, Callable[[T], str]]:
    """The form of what has numbers in rows."""
    return {".csv": lambda folder: read(folder).summary_frame().to_csv(index=False)}


def _of_audit(read: Callable[[Path], Report]) -> dict[str, Form]:
    """The forms of an audit; its JSON has all that a page is too small for."""
    return {
        **_documented(read),
        ".json": lambda folder: _as_json(audit_to_json(read(folder))),
        **_in_rows(read),
        ".tex": lambda folder: read(folder).to_latex(),
    }


def _written(name: str, verb: str) -> Form:
    """A file that the verb itself has written."""

    def read(folder: Path) -> str:
        try:
            return (folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise AttnProbeError(
                f"expected a finished {verb} in {folder}; run it again to finish it"
            ) from error

    return read


AUDIT = Shown("an audit", "summary.json", _of_audit(read_audit))
RETRAINING = Shown(
    "a retraining",
    f"{KIND}.json",
    {**_documented(read_retraining), **_in_rows(read_retraining)},
)
COMPARED = {**_documented(compare_audits), **_in_rows(compare_audits)}
"""What several audits can be shown as."""
STUDY = Shown("a study", STATE, _documented(read_study_report))
COMPARISON = Shown(
    "a comparison of checkpoints",
    "comparison.json",
    {
        ".md": _written("comparison.md", "comparison"),
        ".html": _written("report.html", "comparison"),
        ".json": _written("comparison.json", "comparison"),
    },
)
DECEPTION = Shown(
    "a deception",
    "deception.json",
    {
        ".md": _written("report.md", "deception"),
        ".html": _written("report.html", "deception"),
        ".json": _written("deception.json", "deception"),
    },
)
JOB = Shown("a job", PLAN, _of_audit(job_report))
SHOWN = (RETRAINING, STUDY, COMPARISON, DECEPTION, JOB, AUDIT)
"""In the order in which their marks are looked for; what has none is read as an audit."""


def kind_of(folder: Path) -> Shown:
    """Which verb a folder is of."""
    return next((shown for shown in SHOWN if (folder / shown.mark).is_file()), AUDIT)
