"""Output formats of a result: terminal text, Markdown, HTML page, JSON and CSV."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import pandas as pd

from hf_attnprobe.documents.blocks import Document, NextStep
from hf_attnprobe.documents.html import render_cell_html, render_html
from hf_attnprobe.documents.markdown import render_markdown
from hf_attnprobe.documents.terminal_text import MAX_LINE_WIDTH, render_text
from hf_attnprobe.storage.folders import write_atomically


def format_json(data: Mapping[str, Any]) -> str:
    """Format plain data as the content of a JSON file.

    Args:
        data: values that JSON can represent.
    """
    return json.dumps(data, indent=1) + "\n"


FORMULA_PREFIXES = ("=", "+", "-", "@", "\t", "\r")
"""First characters of table cells that a spreadsheet would evaluate as formulas."""


def format_csv(frame: pd.DataFrame) -> str:
    """Format a table as CSV that is safe to open in a spreadsheet.

    A spreadsheet evaluates cells such as ``=A1`` as formulas, which can be abused by names in a
    checkpoint. These cells therefore get a leading ``'``.

    Args:
        frame: the table.
    """
    # NumPy uses the type codes O for Python objects and U for strings.
    text_columns = [name for name in frame if frame[name].dtype.kind in "OU"]
    escaped_columns = {name: frame[name].map(_escape_formula) for name in text_columns}
    return frame.assign(**escaped_columns).to_csv(index=False)


def _escape_formula(cell: object) -> object:
    """Add a leading quote to a cell if a spreadsheet would evaluate it as a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_PREFIXES) else cell


COMMAND_LINE_FLAG = re.compile(r"--([a-z][a-z-]*)(?: (\d+))?")
"""Pattern for a flag of the command line in a sentence, with its value if this is a number."""


def phrase_for_python(step: NextStep) -> NextStep:
    """Phrase advice for a notebook: flags become arguments, and a command can be run in a cell.

    >>> phrase_for_python(NextStep("Run the audit again with --test-limit 60."))
    NextStep(words='Run the audit again with test_limit=60.', command='', resumes=False)

    Args:
        step: advice for the command line.
    """
    words = step.words
    if isinstance(words, str):
        words = COMMAND_LINE_FLAG.sub(_format_argument, words)
    # Notebooks run a line that starts with an exclamation mark as a command.
    return NextStep(words, f"!{step.command}" if step.command else "")


RESUMING_COMMAND_INTRODUCTION = "Run this command. It continues from the saved results:"
"""Introduction of a suggested command that contains the output folder of the previous results."""


def add_output_folder(step: NextStep, folder: str | Path) -> NextStep:
    """Add the output folder to a command that continues from the results in this folder.

    Files contain the command without its folder, because they may be moved, and because the names of
    local folders are private. The terminal prints the complete command.

    >>> add_output_folder(NextStep("Run this:", "attnprobe audit", resumes=True), "my audit").command
    "attnprobe audit --output-dir 'my audit'"

    Args:
        step: advice on what to do next. It is returned unchanged if its command does not resume.
        folder: the output folder of the results.
    """
    if not step.resumes:
        return step
    command = f"{step.command} --output-dir {shlex.quote(str(folder))}"
    return NextStep(RESUMING_COMMAND_INTRODUCTION, command, resumes=True)


def _format_argument(match: re.Match[str]) -> str:
    """Format a flag as a Python argument, such as "test_limit=60" for "--test-limit 60"."""
    name = match[1].replace("-", "_")
    return name if match[2] is None else f"{name}={match[2]}"


class DocumentedResult:
    """Base class for results that can be printed, saved, and displayed in a notebook.

    Subclasses implement :meth:`build_document`. ``print(result)`` prints the short report.
    """

    def build_document(self) -> Document:
        """Build the document that all output formats print."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.to_text()

    def to_text(
        self,
        *,
        verbose: bool = False,
        width: int | None = None,
        output_dir: str | Path | None = None,
    ) -> str:
        """Return the report as plain text for a terminal.

        Args:
            verbose: return the whole report instead of the short one.
            width: characters per line; by default the terminal's width, at most 100.
            output_dir: folder that contains the results. A suggested command that continues from
                them then contains this folder.
        """
        if width is None:
            width = min(MAX_LINE_WIDTH, get_terminal_size((MAX_LINE_WIDTH, 24)).columns)
        document = self.build_document()
        if output_dir is not None:
            lead = [
                add_output_folder(block, output_dir) if isinstance(block, NextStep) else block
                for block in document.lead
            ]
            document = replace(document, lead=lead)
        return render_text(document, verbose=verbose, width=width)

    def to_markdown(self) -> str:
        """Return the whole report as Markdown."""
        return render_markdown(self.build_document())

    def to_html(self) -> str:
        """Return the whole report as one self-contained HTML page."""
        return render_html(self.build_document())

    def to_json(self) -> str:
        """Return the results as JSON, for programs."""
        return format_json(self.build_document().data or {})

    def write(self, folder: Path, json_name: str) -> None:
        """Write ``report.md``, ``report.html`` and a JSON file with the results into a folder.

        Args:
            folder: an existing folder.
            json_name: name of the JSON file, such as "summary.json".
        """
        write_atomically(folder / json_name, self.to_json())
        write_atomically(folder / "report.md", self.to_markdown())
        write_atomically(folder / "report.html", self.to_html())

    def save_html(self, path: str | Path) -> None:
        """Write the HTML page to a file.

        Args:
            path: the file to write; an existing file is replaced.
        """
        write_atomically(Path(path), self.to_html())

    def _repr_html_(self) -> str:
        """Return the beginning of the report as HTML, which notebooks display."""
        document = self.build_document()
        lead = [
            phrase_for_python(block) if isinstance(block, NextStep) else block
            for block in document.lead
        ]
        sections = [s for s in document.sections if s is not None and s.in_notebook]
        return render_cell_html([*lead, *sections], title=document.heading)
