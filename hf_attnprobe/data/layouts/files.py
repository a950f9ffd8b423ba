"""What all layouts need: files found or named as missing, lines, JSON, tables.

And the two layouts that are little more: the pairs of SNLI and MultiNLI in JSON lines, and the
tables of texts and labels of Jain & Wallace, whose code writes every data set as one CSV file.
"""

import csv
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_attnprobe.errors import AttnProbeError


Row = dict[str, Any]
SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""The papers' names of the splits, and ours."""
LONGEST_FIELD = 2**31 - 1
"""Characters of a cell, in place of the few that Python's csv takes."""


@dataclass(frozen=True)
class Contents:
    """What a folder holds.

    Attributes:
        splits: rows by the name of the split.
        classes: names of the classes, where there may be more than the labels show.
    """

    splits: dict[str, list[Row]]
    classes: tuple[str, ...] | None = None


def find(folder: Path, names: Sequence[str], places: Sequence[str]) -> Path | None:
    """The first place below ``folder`` that holds one of the files; None if none does.

    Args:
        names: of files or folders.
        places: folders relative to ``folder``, "" for itself.
    """
    for place in places:
        if any((folder / place / name).exists() for name in names):
            return folder / place
    return None


def require(folder: Path, file: str, name: str) -> Path:
    """The path of a file, also gzipped, that the data set ``name`` cannot do without.

    Raises:
        AttnProbeError: it is not there.
    """
    for path in (folder / file, folder / f"{file}.gz"):
        if path.exists():
            return path
    raise AttnProbeError(
        f"expected {file} in {folder}, found {_listed(folder)}; bring the file, "
        f"`attnprobe datasets {name}` says where it comes from"
    )


def _listed(folder: Path) -> str:
    """The names in a folder, in short."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more if names else "nothing"


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file without their ends, counted from 1.

    Raises:
        AttnProbeError: the file is no UTF-8 text.
    """
    try:
        # A line feed alone ends a line: some tokens are other line separators.
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as reason:
        raise AttnProbeError(
            f"expected UTF-8 text in {path}, got {reason}; bring the file again"
        ) from reason


def json_lines(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    """The objects of a file of JSON lines.

    Args:
        path: of the file.
        fields: that every object must have.

    Raises:
        AttnProbeError: a line that is no object, or lacks a field.
    """
    for number, line in lines_of(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as reason:
            raise _malformed(path, number, "a JSON object", str(reason)) from reason
        if not isinstance(row, dict):
            raise _malformed(path, number, "a JSON object", type(row).__name__)
        lacking = [field for field in fields if field not in row]
        if lacking:
            expected = f"the field {lacking[0]!r}"
            raise _malformed(path, number, expected, ", ".join(row) or "none")
        yield row


def _malformed(path: Path, line: int, expected: str, got: str) -> AttnProbeError:
    return AttnProbeError(
        f"{path}, line {line}: expected {expected}, got {got}; bring the file again"
    )


def one_line(text: str) -> str:
    """A text with single spaces for all white space."""
    return " ".join(text.split())


def hold_out(labels: Sequence[Any], share: float, seed: int) -> set[int]:
    """Places of a share of every class, always the same ones for a seed.

    >>> sorted(hold_out(["a", "a", "b", "b"], 0.5, seed=0))
    [1, 3]
    """
    places: dict[Any, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    draw = random.Random(seed)
    held_out: set[int] = set()
    for label in sorted(places):
        held_out.update(draw.sample(places[label], round(share * len(places[label]))))
    return held_out


def cut(rows: list[Row], share: float, seed: int) -> dict[str, list[Row]]:
    """Rows in one piece, cut into train and a test split with ``share`` of each class."""
    held_out = hold_out([row["label"] for row in rows], share, seed)
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    for place, row in enumerate(rows):
        splits["test" if place in held_out else "train"].append(row)
    return splits


def read_prepared(folder: Path, name: str) -> Contents | None:
    """The rows of the one `…_dataset.csv` in a folder; None without one."""
    files = sorted(folder.glob("*_dataset.csv"))
    if not files:
        return None
    if len(files) > 1:
        raise AttnProbeError(
            f"expected one …_dataset.csv in {folder} for {name}, got "
            f"{', '.join(path.name for path in files)}; put each in a folder of its own"
        )
    rows = read_table(files[0], ",", "exp_split")
    splits: dict[str, list[Row]] = {}
    for row in rows:
        split = row.pop("exp_split")
        if split not in SPLITS:
            raise AttnProbeError(
                f"{files[0]}: expected {', '.join(SPLITS)} in the column exp_split, got "
                f"{split!r}; bring the file again"
            )
        splits.setdefault(SPLITS[split], []).append(row)
    return Contents(splits)


def read_table(path: Path, separator: str, *further: str) -> list[Row]:
    """The rows of a table with the columns `text` and `label`, labels 0 or 1."""
    import pandas as pd

    # tweets hold quotation marks of their own
    quoting: Literal[0, 3] = 0 if separator == "," else 3
    check_fields(path, separator, quoting)
    table = pd.read_csv(
        path, sep=separator, dtype=str, keep_default_na=False, quoting=quoting
    ).rename(columns=str.strip)
    columns = ("text", "label", *further)
    lacking = [column for column in columns if column not in table.columns]
    if lacking:
        raise AttnProbeError(
            f"{path}: expected a first line with the columns {', '.join(columns)}, got "
            f"{', '.join(map(str, table.columns))[:100]}; add one"
        )
    rows = table[list(columns)].to_dict("records")
    for number, row in enumerate(rows):
        if row["label"] not in ("0", "1"):
            raise AttnProbeError(
                f"{path}, row {number}: expected 0 or 1 as label, got {row['label']!r}; "
                "mend or drop it"
            )
        row["label"] = int(row["label"])
    return rows


def check_fields(path: Path, separator: str, quoting: Literal[0, 1, 2, 3] = 0) -> None:
    """Checks that every row of a table has as many fields as its header has names.

    pandas takes what the first row has too many for an index, by which all columns are
    another's, and fills up rows that have too few.

    Raises:
        AttnProbeError: a row has more or fewer, or a name is there twice.
    """
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        # what is no UTF-8 is said by whoever reads the table
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = csv.reader(file, delimiter=separator, quoting=quoting)
            rows = (row for row in lines if len(row) > 1 or "".join(row).strip())
            header = [name.strip() for name in next(rows, [])]
            for number, row in enumerate(rows):
                if len(row) != len(header):
                    raise AttnProbeError(
                        f"{path}, row {number} (line {lines.line_num}): expected "
                        f"{len(header)} fields as in the header, got {len(row)}; give one "
                        f"per column, texts that hold {separator!r} in double quotes"
                    )
    finally:
        csv.field_size_limit(before)
    named = list(filter(None, header))
    if len(set(named)) < len(named):
        raise AttnProbeError(
            f"{path}: expected a header of different names, got {', '.join(header)}; rename one"
        )


# MultiNLI's test labels are secret; the splits are named as on the Hub.
NLI_FILES = {
    "snli": {
        "train": "snli_1.0_train.jsonl",
        "validation": "snli_1.0_dev.jsonl",
        "test": "snli_1.0_test.jsonl",
    },
    "multinli": {
        "train": "multinli_1.0_train.jsonl",
        "validation_matched": "multinli_1.0_dev_matched.jsonl",
        "validation_mismatched": "multinli_1.0_dev_mismatched.jsonl",
    },
}


def read_nli(folder: Path, name: str) -> Contents | None:
    """Rows of `premise`, `hypothesis` and `label`; None without such files.

    Pairs without agreement, whose label is "-", are left out, as everywhere.
    """
    files = NLI_FILES[name]
    place = find(folder, list(files.values()), ("", f"{name}_1.0"))
    if place is None:
        return None
    fields = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}
    paths = {split: require(place, file, name) for split, file in files.items()}
    return Contents(
        {
            split: [
                {ours: row[theirs] for ours, theirs in fields.items()}
                for row in json_lines(path, tuple(fields.values()))
                if row["gold_label"] != "-"
            ]
            for split, path in paths.items()
        }
    )


def read_tables(folder: Path, name: str) -> Contents | None:
    """Rows of `text` and `label`; None without a CSV file of the paper's, or tweets in TSV files.

    A TSV file alone has no splits: a fifth of every class becomes the test split.
    """
    prepared = read_prepared(folder, name)
    if prepared is not None:
        return prepared
    files = sorted(folder.glob("*.tsv"))
    if not files:
        return None
    if len(files) > 1:
        named = {path.stem: path for path in files}
        if {"train", "test"} <= named.keys() <= {"train", "validation", "test"}:
            return Contents({split: read_table(named[split], "\t") for split in named})
        raise AttnProbeError(
            f"expected one TSV file, or train.tsv and test.tsv, in {folder}, got "
            f"{', '.join(path.name for path in files)}; leave the others out"
        )
    return Contents(cut(read_table(files[0], "\t"), share=0.2, seed=13020))
