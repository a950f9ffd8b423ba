"""Data sets in folders, as people bring them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset


def write(folder: Path, **files: str | list[dict[str, Any]]) -> Path:
    """Writes files by name, ``__`` for a dot; what is no text becomes JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if not isinstance(content, str):
            content = "".join(json.dumps(row) + "\n" for row in content)
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")
    return folder


def write_splits(folder: Path, splits: Mapping[str, Dataset]) -> Path:
    """Writes generated reviews as JSON lines, without their rationales."""
    folder.mkdir()
    for name, examples in splits.items():
        table = examples.remove_columns("rationale").to_pandas()
        table.to_json(folder / f"{name}.jsonl", orient="records", lines=True)
    return folder
