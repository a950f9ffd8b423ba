"""The public function ``render_report``: folders of results in the form that is asked for."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.documents.formats import format_csv
from hf_attnprobe.reports.comparison import (
    AuditComparison,
    compare_audits,
)
from hf_attnprobe.reports.report import (
    check_distinct_folders,
    is_share,
    join_shares,
    read_audit,
)
from hf_attnprobe.retraining.report import FOLDER_KIND, read_retraining
from hf_attnprobe.storage.folders import write_atomically
from hf_attnprobe.studies.report import read_study_report
from hf_attnprobe.studies.steps import STATE


Folders = str | Path | Sequence[str | Path]
RENDERERS: Mapping[str, Callable[[Any], str]] = {
    ".md": lambda result: result.to_markdown(),
    ".html": lambda result: result.to_html(),
    ".json": lambda result: result.to_json(),
    ".csv": lambda result: format_csv(result.summary_frame()),
}
"""How a result is written, by the ending of the file."""
DOCUMENT_ENDINGS, TABLE_ENDINGS = (".md", ".html", ".json"), (".csv",)


@dataclass(frozen=True)
class ResultType:
    """What the folders of one verb can be shown as.

    Attributes:
        name: of what such a folder holds.
        mark: the file that tells such a folder.
        read: from a folder to its result.
        endings: of the files that can be written of that.
        files: by ending, those that the verb itself wrote, where nothing reads its result.
    """

    name: str
    mark: str
    read: Callable[[Any], Any] | None = None
    endings: Collection[str] = DOCUMENT_ENDINGS
    files: Mapping[str, str] = field(default_factory=dict)

    def text(self, folder: Any, ending: str, output: object) -> str:
        """The text of a file with this ending.

        Raises:
            AttnProbeError: a form that there is not, or a verb that has not finished.
        """
        if ending not in self.endings:
            raise AttnProbeError(
                f"expected an output file ending in {' or '.join(self.endings)} for {self.name}, "
                f"got {output or 'none'}; choose another --output"
            )
        if self.read is not None:
            result = self.read(folder)
            if isinstance(result, AuditComparison) and output is not None:
                result = result.add_page_links(folder, Path(str(output)).parent)
            return RENDERERS[ending](result)
        try:
            return (folder / self.files[ending]).read_text(encoding="utf-8")
        except OSError as error:
            raise AttnProbeError(
                f"expected the finished results of {self.name} in {folder}; run it again to "
                "finish it"
            ) from error


AUDIT_RESULT = ResultType("an audit", "summary.json", read_audit, (*DOCUMENT_ENDINGS, *TABLE_ENDINGS))
RETRAINING_RESULT = ResultType("a retraining", f"{FOLDER_KIND}.json", read_retraining, (*DOCUMENT_ENDINGS, *TABLE_ENDINGS))
STUDY_RESULT = ResultType("a study", STATE, read_study_report)
TYPES_WITH_FIGURES = (AUDIT_RESULT, RETRAINING_RESULT)
SHARES_RESULT = ResultType("shares of an audit", "", join_shares, AUDIT_RESULT.endings)
AUDIT_COMPARISON_RESULT = ResultType("several audits", "", compare_audits, (*DOCUMENT_ENDINGS, *TABLE_ENDINGS))
RESULT_TYPES = (
    RETRAINING_RESULT,
    STUDY_RESULT,
    ResultType(
        "a comparison",
        "comparison.json",
        files={
            ".md": "report.md",
            ".html": "report.html",
            ".json": "comparison.json",
        },
    ),
    AUDIT_RESULT,
)
"""In the order in which their marks are looked for."""


def detect_result_type(folder: Path) -> ResultType:
    """Which verb a folder is of; an audit's, if it has no mark."""
    return next((kind for kind in RESULT_TYPES if (folder / kind.mark).is_file()), AUDIT_RESULT)


@public_function
def render_report(folder: Folders, output: str | Path | None = None) -> str:
    """The results of a verb in the form that a file's ending names.

    Audits and retrainings are rendered again from their rows and summary.

    Args:
        folder: the output folder of ``audit``, ``retrain``, ``compare``,
            or ``study``; several folders of audits for a comparison.
        output: a file to write, ending in .html, .md, .json or .csv; None writes
            nothing and gives Markdown.

    Returns:
        The text of the file.

    Raises:
        AttnProbeError: a folder without results, a form that there is not, or a file
            that cannot be written.
    """
    kind, source = _detect_source(folder)
    ending = ".md" if output is None else Path(output).suffix
    text = kind.text(source, ending, output)
    if output is not None:
        try:
            write_atomically(Path(output), text)
        except OSError as error:
            raise AttnProbeError(
                f"cannot write {output} ({error.strerror}); choose another --output"
            ) from error
    return text


def render_terminal_report(folder: Folders) -> str:
    """What the verb printed when it was done; Markdown of what only its own files hold.

    Raises:
        AttnProbeError: as :func:`render_report`.
    """
    kind, source = _detect_source(folder)
    return kind.text(source, ".md", None) if kind.read is None else str(kind.read(source))


def _detect_source(folder: Folders) -> tuple[ResultType, Any]:
    """What is shown, and the folder or the folders that it is read from."""
    folders = _list_folders(folder)
    if len(folders) == 1:
        return detect_result_type(folders[0]), folders[0]
    _check_comparable(folders)
    return SHARES_RESULT if all(map(is_share, folders)) else AUDIT_COMPARISON_RESULT, folders


def save_figures(folder: Folders, output_dir: str | Path) -> None:
    """Writes the figures of an audit or a retraining as SVG and PDF, and their captions.

    Raises:
        AttnProbeError: other folders, several folders, or nothing that can be drawn.
    """
    folders = _list_folders(folder)
    kind = detect_result_type(folders[0])
    if len(folders) != 1 or kind not in TYPES_WITH_FIGURES or kind.read is None:
        names = " or ".join(one.name for one in TYPES_WITH_FIGURES)
        raise AttnProbeError(f"expected one folder of {names} for --figures; give one such folder")
    from hf_attnprobe.plots.matplotlib_backend import save_charts  # matplotlib is slow to import

    save_charts(kind.read(folders[0]).charts(), output_dir)


def _list_folders(folder: Folders) -> list[Path]:
    several = [folder] if isinstance(folder, str | Path) else folder
    if not several:
        raise AttnProbeError(
            "expected a folder of results, got none; name the output folder of a verb"
        )
    return [Path(one) for one in several]


def _check_comparable(folders: Sequence[Path]) -> None:
    """Raises AttnProbeError for a folder that holds no audit, or is there twice."""
    for folder in folders:
        if (kind := detect_result_type(folder)) is not AUDIT_RESULT:
            raise AttnProbeError(
                f"expected folders of audits to compare, {folder} holds {kind.name}; give it alone"
            )
    check_distinct_folders(folders)
