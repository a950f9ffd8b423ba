"""Discharge notes of MIMIC-III with their diagnoses, from one's own credentialed files.

Diabetes: any code that starts with 250.00, against none, on the admissions of CAML's
50-code splits. Anemia: acute (285.1) against chronic (285.2), without admissions that
have both, all admissions cut at random. Read are MIMIC's own tables, the tables that
CAML's scripts make of them (Mullenbach et al. 2018), or the CSV file of Jain & Wallace's
notebooks.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hf_attnprobe.data.layouts.files import (
    SPLITS,
    Contents,
    Row,
    cut,
    find,
    one_line,
    read_prepared,
    require,
)
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import pandas as pd


NOTES, DIAGNOSES = "NOTEEVENTS.csv", "DIAGNOSES_ICD.csv"
_DEIDENTIFIED = re.compile(r"\[\s*\*\s*\*.*?\*\s*\*\s*\]", re.DOTALL)


def read_mimic(folder: Path, name: str) -> Contents | None:
    """Rows of `text` and `label` (0 or 1); None without such files."""
    prepared = read_prepared(folder, name)
    if prepared is not None:
        return prepared
    if find(folder, [NOTES, f"{NOTES}.gz", DIAGNOSES, f"{DIAGNOSES}.gz"], ("",)):
        return _raw(folder, name)
    ending = "50" if name == "diabetes" else "full"
    files = [f"{split}_{ending}.csv" for split in SPLITS]
    if find(folder, files, ("",)):
        tables = {split: require(folder, f"{split}_{ending}.csv", name) for split in SPLITS}
        return _labelled(tables, name)
    return None


def _labelled(tables: Mapping[str, Path], name: str) -> Contents:
    """CAML's tables; Anemia takes all admissions together and cuts them itself."""
    splits: dict[str, list[Row]] = {}
    for split, path in tables.items():
        table = _table(path, ("TEXT", "LABELS"))
        notes = zip(table["TEXT"], table["LABELS"], strict=True)
        splits[SPLITS[split]] = _rows(((text, codes.split(";")) for text, codes in notes), name)
    if name == "diabetes":
        return Contents(splits)
    return Contents(_cut_anemia([row for part in splits.values() for row in part]))


def _raw(folder: Path, name: str) -> Contents:
    """MIMIC's own tables."""
    paths = [require(folder, file, name) for file in (NOTES, DIAGNOSES)]
    splits = _admissions(folder, name) if name == "diabetes" else {}
    notes, codes = _notes(paths[0]), _codes(paths[1])
    both = [admission for admission in notes if admission in codes]
    if name != "diabetes":
        rows = _rows(((notes[key], codes[key]) for key in both), name)
        return Contents(_cut_anemia(rows))
    chosen = {split: [key for key in both if key in splits[split]] for split in splits}
    return Contents(
        {
            SPLITS[split]: _rows(((notes[key], codes[key]) for key in keys), name)
            for split, keys in chosen.items()
        }
    )


def _admissions(folder: Path, name: str) -> dict[str, set[str]]:
    """CAML's lists of admissions by split, a number per line."""
    files = {split: f"{split}_50_hadm_ids.csv" for split in SPLITS}
    return {
        split: set(require(folder, file, name).read_text().split()) for split, file in files.items()
    }


def _notes(path: Path) -> dict[str, str]:
    """The discharge notes by admission, each report before its addenda."""
    import pandas as pd

    columns = ("HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "ISERROR", "TEXT")
    parts = []
    for chunk in _chunks(path, columns):
        chosen = (chunk["CATEGORY"] == "Discharge summary") & (chunk["ISERROR"] == "")
        parts.append(chunk[chosen & (chunk["HADM_ID"] != "")])
    table = pd.concat(parts)
    table["is_addendum"] = table["DESCRIPTION"] != "Report"
    table = table.sort_values(["is_addendum", "CHARTDATE"], kind="stable")
    joined = table.groupby("HADM_ID")["TEXT"].agg(" ".join)
    return {_admission(key): text for key, text in joined.items()}


def _codes(path: Path) -> dict[str, list[str]]:
    """The diagnoses by admission, with the point of ICD-9 that the table leaves out."""
    table = _table(path, ("HADM_ID", "ICD9_CODE"))
    codes: dict[str, list[str]] = {}
    for key, code in zip(table["HADM_ID"], table["ICD9_CODE"], strict=True):
        if code:
            codes.setdefault(_admission(key), []).append(f"{code[:3]}.{code[3:]}")
    return codes


def _admission(key: str) -> str:
    return key.removesuffix(".0")


def _rows(notes: Iterable[tuple[str, list[str]]], name: str) -> list[Row]:
    """A row for each note that has a label."""
    rows = []
    for text, codes in notes:
        label = (_diabetes if name == "diabetes" else _anemia)(codes)
        if label is not None:
            text = one_line(_DEIDENTIFIED.sub(" DE ", text))
            rows.append({"text": text, "label": label})
    return rows


def _diabetes(codes: list[str]) -> int | None:
    return int(any(code.startswith("250.00") for code in codes))


def _anemia(codes: list[str]) -> int | None:
    """1 acute, 0 chronic, None neither or both."""
    acute = any(code.startswith("285.1") for code in codes)
    chronic = any(code.startswith("285.2") for code in codes)
    return int(acute) if acute != chronic else None


def _cut_anemia(rows: list[Row]) -> dict[str, list[Row]]:
    return cut(rows, share=0.2, seed=12939)


def _table(path: Path, columns: tuple[str, ...]) -> "pd.DataFrame":
    import pandas as pd

    return pd.concat(_chunks(path, columns))


def _chunks(path: Path, columns: tuple[str, ...]) -> "list[pd.DataFrame]":
    """The columns of a CSV file as strings, "" where a cell is empty."""
    import pandas as pd

    present = pd.read_csv(path, nrows=0).columns
    lacking = [column for column in columns if column not in present]
    if lacking:
        raise AttnProbeError(
            f"{path}: expected the columns {', '.join(columns)}, got "
            f"{', '.join(present)}; bring the file again"
        )
    return pd.read_csv(
        path, usecols=list(columns), dtype=str, keep_default_na=False, chunksize=50_000
    )
