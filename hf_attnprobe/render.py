"""Rendering of saved results in any output format, as the command ``attnprobe report`` does."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.documents.formats import format_csv
from hf_attnprobe.documents.token_shading import MAP_TITLES, RANKING_TITLES
from hf_attnprobe.reports.audit_document import N_VISIBLE_TEXTS, select_displayed_texts
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
from hf_attnprobe.retraining.report import RETRAINING_FILE, read_retraining
from hf_attnprobe.storage.folders import write_atomically
from hf_attnprobe.studies.report import read_study_report
from hf_attnprobe.studies.steps import STATE_FILE


Folders = str | Path | Sequence[str | Path]
"""Type for an argument that is one output folder or a list of them."""

RENDERERS: Mapping[str, Callable[[Any], str]] = {
    ".md": lambda result: result.to_markdown(),
    ".html": lambda result: result.to_html(),
    ".json": lambda result: result.to_json(),
    ".csv": lambda result: format_csv(result.summary_frame()),
}
"""Maps the ending of an output file to the function that renders a result in this format."""

FIGURE_FORMATS = ("svg", "pdf", "png")
"""File formats in which the option ``--figures`` saves each figure."""

DOCUMENT_ENDINGS = (".md", ".html", ".json")
"""Endings of the output files that every type of result supports."""

TABLE_ENDINGS = (".csv",)
"""Endings of output files that contain a table. Only audits and retrainings support them."""


@dataclass(frozen=True)
class ResultType:
    """A type of result that a command saves in a folder.

    Attributes:
        name: the type's name with an article, such as "an audit", for error messages.
        marker: file whose presence identifies a folder of this type.
        read: function that reads the result from its folder; None if only its saved files can be
            returned.
        endings: file endings that the result can be rendered to.
        files: saved file for each ending, if ``read`` is None.
    """

    name: str
    marker: str
    read: Callable[[Any], Any] | None = None
    endings: Collection[str] = DOCUMENT_ENDINGS
    files: Mapping[str, str] = field(default_factory=dict)

    def render(self, source: Any, ending: str, output: object) -> str:
        """Read a result and render it in the format that a file ending selects.

        Args:
            source: the result's folder, or several folders.
            ending: file ending, such as ".html".
            output: the output file, for links and error messages; None if there is none.

        Returns:
            The rendered text.

        Raises:
            AttnProbeError: If the result is unfinished or cannot be rendered in this format.
        """
        if ending not in self.endings:
            raise AttnProbeError(
                f"--output for {self.name} must end in {' or '.join(self.endings)}, got "
                f"{output or 'no file'}. Choose another file name."
            )
        if self.read is not None:
            result = self.read(source)
            if isinstance(result, AuditComparison) and output is not None:
                result = result.add_page_links(source, Path(str(output)).parent)
            return RENDERERS[ending](result)
        try:
            return (source / self.files[ending]).read_text(encoding="utf-8")
        except OSError as error:
            raise AttnProbeError(
                f"{source} contains no finished results of {self.name}. Run the command that created "
                "the folder again."
            ) from error


AUDIT_RESULT = ResultType(
    name="an audit",
    marker="summary.json",
    read=read_audit,
    endings=(*DOCUMENT_ENDINGS, *TABLE_ENDINGS),
)
"""Result type of the output folder of an audit, which contains the marker file."""

RETRAINING_RESULT = ResultType(
    name="a retraining",
    marker=RETRAINING_FILE,
    read=read_retraining,
    endings=(*DOCUMENT_ENDINGS, *TABLE_ENDINGS),
)
"""Result type of the output folder of a retraining, which contains the marker file."""

STUDY_RESULT = ResultType(name="a study", marker=STATE_FILE, read=read_study_report)
"""Result type of the output folder of a study, which a state file identifies."""

TYPES_WITH_FIGURES = (AUDIT_RESULT, RETRAINING_RESULT)
"""Result types with figures. The option ``--figures`` saves these figures as files."""

SHARES_RESULT = ResultType(
    name="shares of an audit", marker="", read=join_shares, endings=AUDIT_RESULT.endings
)
"""Result type of several folders that each contain one share of the same audit.

A share is a part of the texts. Shares need no marker file, because each folder is an audit.
"""

AUDIT_COMPARISON_RESULT = ResultType(
    name="several audits",
    marker="",
    read=compare_audits,
    endings=(*DOCUMENT_ENDINGS, *TABLE_ENDINGS),
)
"""Result type of several folders of different audits.

The first audit is compared with the others.
"""

RESULT_TYPES = (
    RETRAINING_RESULT,
    STUDY_RESULT,
    ResultType(
        name="a comparison",
        marker="comparison.json",
        files={
            ".md": "report.md",
            ".html": "report.html",
            ".json": "comparison.json",
        },
    ),
    ResultType(
        name="citations",
        marker="citations.json",
        files={
            ".md": "report.md",
            ".html": "report.html",
            ".json": "citations.json",
        },
    ),
    AUDIT_RESULT,
)
"""Result types of single folders, in the order in which their marker files are looked for."""


def detect_result_type(folder: Path) -> ResultType:
    """Detect which command wrote the results in a folder.

    Each type of result has a marker: a file with a name that only this type contains.

    Args:
        folder: output folder of a command.

    Returns:
        The type of the results; an audit if there is no marker file.
    """
    for result_type in RESULT_TYPES:
        if (folder / result_type.marker).is_file():
            return result_type
    return AUDIT_RESULT


@public_function
def render_report(folder: Folders, output: str | Path | None = None) -> str:
    """Render saved results in the format that a file ending selects.

    Audits and retrainings are rendered again from their stored rows. Several folders are joined into
    one audit if they are its shares; otherwise they are compared.

    Example::

        render_report("my-audit", "report.html")

    Args:
        folder: output folder of a command, or several folders of audits.
        output: file to write, ending in .html, .md, .json or .csv; None writes no file and returns
            Markdown.

    Returns:
        The rendered text, which is also the file's content.

    Raises:
        AttnProbeError: If a folder contains no results, the format is not supported, or the file
            cannot be written.
    """
    result_type, source = _detect_source(folder)
    ending = ".md" if output is None else Path(output).suffix
    text = result_type.render(source, ending, output)
    if output is not None:
        try:
            write_atomically(Path(output), text)
        except OSError as error:
            raise AttnProbeError(
                f"cannot write {output}: {error.strerror}. Choose another file for --output."
            ) from error
    return text


def render_terminal_report(folder: Folders) -> str:
    """Render saved results as the text that their command printed when it finished.

    Args:
        folder: output folder of a command, or several folders of audits.

    Returns:
        Plain text; Markdown for results whose files cannot be rendered again.

    Raises:
        AttnProbeError: If a folder contains no results.
    """
    result_type, source = _detect_source(folder)
    if result_type.read is None:
        return result_type.render(source, ".md", None)
    return str(result_type.read(source))


def _detect_source(folder: Folders) -> tuple[ResultType, Any]:
    """Detect the type of the results in one or several folders.

    Returns:
        The type of the results, and the folder or the list of folders from which they are read.
    """
    folders = _list_folders(folder)
    if len(folders) == 1:
        return detect_result_type(folders[0]), folders[0]
    _check_comparable(folders)
    # A share is a part of an audit that was divided between several machines.
    are_shares = all(is_share(path) for path in folders)
    result_type = SHARES_RESULT if are_shares else AUDIT_COMPARISON_RESULT
    return result_type, folders


def save_figures(folder: Folders, output_dir: str | Path) -> None:
    """Save an audit's or a retraining's figures as SVG, PDF and PNG files, with captions.

    The figures of an audit include the first screen and the texts that its page displays first.

    Args:
        folder: output folder of one audit or retraining.
        output_dir: folder for the figures.

    Raises:
        AttnProbeError: If there are several folders, the result has no figures, or a file cannot be
            written.
    """
    folders = _list_folders(folder)
    names = " or ".join(supported_type.name for supported_type in TYPES_WITH_FIGURES)
    if len(folders) != 1:
        raise AttnProbeError(
            f"--figures needs exactly one folder with {names}, got {len(folders)}. Pass only this folder."
        )
    result_type = detect_result_type(folders[0])
    if result_type not in TYPES_WITH_FIGURES or result_type.read is None:
        raise AttnProbeError(
            f"--figures needs a folder with {names}, but {folders[0]} contains {result_type.name}. Pass a "
            "folder of this type; those of a study are inside its folder, such as audit/STEP."
        )
    # Matplotlib is slow to import.
    from hf_attnprobe.plots.matplotlib_backend import save_charts, save_texts

    result = result_type.read(folders[0])
    save_charts(result.charts(), output_dir, FIGURE_FORMATS)
    if result_type is AUDIT_RESULT:
        texts = select_displayed_texts(result.examples)[:N_VISIBLE_TEXTS]
        titles = {name: RANKING_TITLES[name] for name in ("attention", "leave_one_out")}
        if result.instance is not None:
            titles = MAP_TITLES
        save_texts(texts, output_dir, titles, FIGURE_FORMATS)


def _list_folders(folder: Folders) -> list[Path]:
    """Return one or several folders as a list of paths."""
    folders = [folder] if isinstance(folder, str | Path) else folder
    if not folders:
        raise AttnProbeError(
            "expected a folder with results, got none. Pass the output folder of a command."
        )
    return [Path(path) for path in folders]


def _check_comparable(folders: Sequence[Path]) -> None:
    """Raise an error if a folder contains no audit, or is listed twice."""
    for folder in folders:
        result_type = detect_result_type(folder)
        if result_type is not AUDIT_RESULT:
            raise AttnProbeError(
                f"only audits can be compared, but {folder} contains {result_type.name}. Pass this "
                "folder without other folders."
            )
    check_distinct_folders(folders)
