"""What every result can do with its document: print it, save it, show it in a notebook."""

import json
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import pandas as pd

from hf_attnprobe.documents.blocks import Document
from hf_attnprobe.documents.html import to_cell, to_html
from hf_attnprobe.documents.markdown import to_markdown
from hf_attnprobe.documents.terminal_text import WIDTH, to_text
from hf_attnprobe.storage.folders import write_atomically


def as_json(data: Mapping[str, Any]) -> str:
    """Plain data as the text of a file."""
    return json.dumps(data, indent=1) + "\n"


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(frame: pd.DataFrame) -> str:
    """A table as CSV; ``'`` stands before a text that a spreadsheet would take for a formula.

    Names of classes and groups are whoever made the checkpoint's.
    """
    texts = {name: frame[name].map(_no_formula) for name in frame if frame[name].dtype.kind in "OU"}
    return frame.assign(**texts).to_csv(index=False)


def _no_formula(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


class Documented:
    """The forms of a result that has a document. ``print(result)`` shows it."""

    def document(self) -> Document:
        """All that the result says."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, verbose: bool = False, width: int | None = None) -> str:
        """The report for a terminal.

        Args:
            verbose: all of it; else its lead, and the sections that are ``brief``.
            width: letters of a line; by default those of the terminal, 100 at most and
                where there is none.
        """
        if width is None:
            width = min(WIDTH, get_terminal_size((WIDTH, 24)).columns)
        return to_text(self.document(), verbose=verbose, width=width)

    def to_markdown(self) -> str:
        """The whole report as Markdown."""
        return to_markdown(self.document())

    def to_html(self) -> str:
        """The whole page, self-contained, as ``report.html`` has it."""
        return to_html(self.document())

    def to_json(self) -> str:
        """The same for machines."""
        return as_json(self.document().data or {})

    def write(self, folder: Path, summary: str) -> None:
        """Writes all forms into a folder: ``report.md``, ``report.html`` and the data.

        Args:
            summary: the name of the file with the data.
        """
        write_atomically(folder / summary, self.to_json())
        write_atomically(folder / "report.md", self.to_markdown())
        write_atomically(folder / "report.html", self.to_html())

    def save_html(self, path: str | Path) -> None:
        """Writes the page to a file."""
        write_atomically(Path(path), self.to_html())

    def _repr_html_(self) -> str:
        """What a notebook shows: the lead."""
        return to_cell(self.document().lead)
