"""What the verb ``card`` did."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WrittenCard:
    """Files that were written, and addresses where they are published.

    Attributes:
        files: in the checkpoint's folder.
        model_url: of the repository on the Hub; None where it was not published.
        rows_url: of the data set of rows; None where there are no audits.
    """

    files: tuple[Path, ...]
    model_url: str | None = None
    rows_url: str | None = None

    def __str__(self) -> str:
        lines = [f"card in {', '.join(map(str, self.files))}"]
        if self.model_url:
            lines.append(f"model at {self.model_url}")
        if self.rows_url:
            lines.append(f"rows at {self.rows_url}")
        return "\n".join(lines)
