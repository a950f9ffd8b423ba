"""Converts data sets from the files that their authors publish to what `datasets` reads.

    python examples/authors_files.py babi1 tasks_1-20_v1-2 babi1-converted
    attnprobe audit --dataset babi1=babi1-converted ...

`attnprobe datasets NAME` says which files to bring. A reader gives rows, or None where the
folder holds other files.
"""

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.sources import check_table_fields, draw_holdout_rows


if TYPE_CHECKING:
    import datasets
    import pandas as pd


Row = dict[str, Any]
SPLITS = {"train": "train", "dev": "validation", "test": "test"}
"""The papers' names of the splits, and ours."""
LONGEST_FIELD = 2**31 - 1
"""Characters of a cell, in place of the few that Python's csv takes."""


@dataclass(frozen=True)
class Contents:
    """Files in a folder.

    Attributes:
        splits: rows by the name of the split.
        classes: names of the classes, where there may be more than the labels show.
    """

    splits: dict[str, list[Row]]
    classes: tuple[str, ...] | None = None


def find(folder: Path, names: Sequence[str], places: Sequence[str]) -> Path | None:
    """The first path below ``folder`` with one of the files; None if there is none.

    Args:
        names: of files or folders.
        places: folders relative to ``folder``, "" for itself.
    """
    for place in places:
        if any((folder / place / name).exists() for name in names):
            return folder / place
    return None


def require(folder: Path, file: str, name: str) -> Path:
    """Path of a file, possibly gzipped, without which the data set ``name`` cannot be read.

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


def cut(rows: list[Row], share: float, seed: int) -> dict[str, list[Row]]:
    """Splits rows into train and test, with ``share`` of each class in test."""
    held_out = draw_holdout_rows([row["label"] for row in rows], share, seed)
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
    check_table_fields(path, separator, quoting)
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


# --- bAbI stories with a question, and the sentences that answer it (Weston et al. 2015) ---------
# Read are the text files of the archive tasks_1-20_v1-2, and the same as Parquet with
# columns `sentences`, `question`, `label` and `supporting_facts`. As in the code of Jain &
# Wallace (2019) a text is the story's sentences so far, joined by " . ", without question
# mark or last full stop. The rationale is the words of the supporting sentences.

log = logging.getLogger(__name__)
STEMS = {
    "babi1": "qa1_single-supporting-fact",
    "babi2": "qa2_two-supporting-facts",
    "babi3": "qa3_three-supporting-facts",
}
# The versions with 10,000 questions, which the paper takes, come first.
PLACES = (
    "",
    "en-10k",
    "tasks_1-20_v1-2/en-10k",
    "en",
    "tasks_1-20_v1-2/en",
)


def read_babi(folder: Path, name: str) -> Contents | None:
    """Rows of `text`, `text_pair`, `label` and `rationale`; None without such files."""
    stem = STEMS[name]
    files = {split: f"{stem}_{split}.txt" for split in ("train", "test")}
    place = find(folder, list(files.values()), PLACES)
    if place is not None:
        _say_which(place, place.name == "en")
        paths = {split: require(place, files[split], name) for split in files}
        return Contents({split: _stories(paths[split]) for split in paths})
    task = stem.partition("_")[0]
    for place in (folder / f"{task}_10k", folder / task, folder):
        if list(place.glob("train*.parquet")):
            _say_which(place, place.name == task)
            return _parquet(place, int(name[-1]))
    return None


def _say_which(place: Path, is_small: bool) -> None:
    if is_small:
        log.warning(f"{place} is the version with 1,000 questions, the paper takes 10,000")


def _stories(path: Path) -> list[Row]:
    """A row for every question of a file."""
    rows = []
    sentences: dict[str, str] = {}  # of the story so far, by the number of their line
    for number, line in lines_of(path):
        place, _, text = line.partition(" ")
        if place == "1":
            sentences = {}
        question, *rest = text.split("\t")
        if not rest:
            sentences[place] = text
            continue
        facts = rest[1].split() if len(rest) == 2 else []
        if not facts or not set(facts) <= sentences.keys():
            raise AttnProbeError(
                f"{path}, line {number}: expected a question, its answer and the lines "
                f"that support it, separated by tabs, got {line!r}; bring the file again"
            )
        order = list(sentences)
        supporting = [order.index(fact) for fact in facts]
        rows.append(_row(sentences.values(), supporting, question, rest[0].strip()))
    return rows


def _parquet(place: Path, task: int) -> Contents:
    """The splits of a folder of Parquet files."""
    import datasets

    files = {}
    for split in ("train", "validation", "test"):
        found = sorted(str(path) for path in place.glob(f"{split}*.parquet"))
        if found:
            files[split] = found
    splits = {}
    # files of this machine, which have no revision
    loaded = datasets.load_dataset("parquet", data_files=files)  # nosec B615
    for split, examples in loaded.items():
        _check_task(examples, place, task)
        names = examples.features["label"].names
        splits[split] = [
            _row(
                row["sentences"],
                row["supporting_facts"],
                row["question"],
                names[row["label"]],
            )
            for row in examples
        ]
    return Contents(splits)


def _check_task(examples: "datasets.Dataset", place: Path, task: int) -> None:
    """Raises AttnProbeError where columns are missing or of another task."""
    features = examples.features
    needed = ("sentences", "supporting_facts", "question", "label")
    lacking = [column for column in needed if column not in features]
    if lacking or not hasattr(features["label"], "names"):
        raise AttnProbeError(
            f"expected the columns {', '.join(needed)} with named labels in the Parquet "
            f"files of {place}, got {', '.join(features)}; `attnprobe datasets "
            f"babi{task}` says what to bring"
        )
    others = {row["task"] for row in examples if "task" in row} - {task}
    if others:
        raise AttnProbeError(
            f"expected questions of task {task} in {place}, got task {min(others)}; give "
            "the folder of the task itself"
        )


def _row(sentences: Iterable[str], supporting: Sequence[int], question: str, answer: str) -> Row:
    words: list[str] = []
    rationale: list[int] = []
    for place, sentence in enumerate(sentences):
        if place:
            words.append(".")
        own = sentence.strip().removesuffix(".").split()
        if place in supporting:
            rationale += range(len(words), len(words) + len(own))
        words += own
    return {
        "text": " ".join(words),
        "text_pair": question.strip().removesuffix("?").strip(),
        "label": answer,
        "rationale": rationale,
    }


# --- Cloze questions about news articles with anonymous names (Hermann et al. 2015) --------------
# Read are the `.question` files of the authors' archive, or the three text files that Chen
# et al. (2016) made of them, which the code of Jain & Wallace (2019) reads. The classes are
# the entities of all articles; an answer other than one of its own article is left to the
# model to rule out.

FOLDERS = {"train": "training", "validation": "validation", "test": "test"}
CLOZE_FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
ENTITY = "@entity"


def read_cnn(folder: Path, name: str) -> Contents | None:
    """Rows of `text`, `text_pair` and `label`; None without such files."""
    place = find(folder, list(FOLDERS.values()), ("", "questions", "cnn/questions", "cnn"))
    if place is not None and not (place / CLOZE_FILES["train"]).exists():
        return _contents({s: _cloze_folder(place, FOLDERS[s], name) for s in FOLDERS})
    place = find(folder, [CLOZE_FILES["train"]], ("", "cnn"))
    if place is None:
        return None
    return _contents({s: _prepared(require(place, CLOZE_FILES[s], name)) for s in CLOZE_FILES})


def _cloze_folder(place: Path, split: str, name: str) -> list[Row]:
    paths = sorted(require(place, split, name).glob("*.question"))
    if not paths:
        raise AttnProbeError(
            f"expected .question files in {place / split}, found none; unpack the "
            f"archive again, `attnprobe datasets {name}` says which"
        )
    return [_question(path) for path in paths]


def _question(path: Path) -> Row:
    """One file: address, article, question, answer, names, with an empty line between."""
    parts = path.read_text(encoding="utf-8").split("\n\n")
    if len(parts) < 4:
        raise AttnProbeError(
            f"{path}: expected address, article, question and answer with an empty line "
            f"between, got {len(parts)} part(s); unpack the archive again"
        )
    _, article, question, answer = (" ".join(part.split()) for part in parts[:4])
    return _cloze(article, question, answer, str(path))


def _prepared(path: Path) -> list[Row]:
    """One file of Chen et al.: question, answer, article, each in a line."""
    rows = []
    block: list[str] = []
    for number, line in [*lines_of(path), (0, "")]:
        if line.strip():
            block.append(line.strip())
        elif block:
            if len(block) < 3:
                raise AttnProbeError(
                    f"{path}, before line {number or 'last'}: expected question, answer "
                    f"and article in a line each, got {len(block)}; bring the file again"
                )
            rows.append(_cloze(block[2], block[0], block[1], f"{path}, line {number}"))
            block = []
    return rows


def _cloze(article: str, question: str, answer: str, where: str) -> Row:
    if not answer.startswith(ENTITY):
        raise AttnProbeError(
            f"{where}: expected an answer such as {ENTITY}3, got {answer!r}; bring the "
            "anonymised version"
        )
    return {"text": article, "text_pair": question, "label": answer}


def _contents(splits: dict[str, list[Row]]) -> Contents:
    rows = [row for part in splits.values() for row in part]
    found = {row["label"] for row in rows} | _entities(row["text"] for row in rows)
    return Contents(splits, tuple(sorted(found, key=_entity_number)))


def _entities(articles: Iterable[str]) -> set[str]:
    words = {word for article in articles for word in article.split()}
    return {word for word in words if word.startswith(ENTITY)}


def _entity_number(entity: str) -> tuple[int, str]:
    digits = entity.removeprefix(ENTITY)
    return (int(digits) if digits.isdecimal() else -1, entity)


# --- ERASER's data sets with human rationales (DeYoung et al. 2020) ------------------------------
# A folder holds `train.jsonl`, `val.jsonl`, `test.jsonl` and the documents, as files in
# `docs` or lines of `docs.jsonl`. A document's tokens are separated by spaces and its
# sentences by line feeds; an evidence is a range of tokens of a document. The rationale is
# the union of all evidences, any group of which is enough for the answer.

ARCHIVES = {
    "eraser-movies": "movies",
    "eraser-boolq": "boolq",
    "eraser-multirc": "multirc",
    "eraser-fever": "fever",
    "eraser-evidence-inference": "evidence_inference",
    "eraser-esnli": "esnli",
    "eraser-cose": "cose",
}
ERASER_FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
LETTERS = ("A", "B", "C", "D", "E")


def read_eraser(folder: Path, name: str) -> Contents | None:
    """Rows of `text`, `label`, `rationale`, and what else the task has.

    `text_pair` is the query, in e-SNLI the hypothesis, with `rationale_pair`; `choices`
    are the answers of CoS-E.
    """
    places = ("", ARCHIVES[name], f"data/{ARCHIVES[name]}")
    place = find(folder, list(ERASER_FILES.values()), places)
    if place is None:
        return None
    paths = {split: require(place, ERASER_FILES[split], name) for split in ERASER_FILES}
    documents = _Documents(place, name)
    make = {"eraser-esnli": _entailment, "eraser-cose": _choice}.get(name, _queried)
    splits = {}
    for split, path in paths.items():
        needed = ("annotation_id", "classification", "query", "evidences")
        notes = json_lines(path, needed)
        splits[split] = [make(note, documents) for note in notes]
        if name == "eraser-movies":  # all ask the same
            for row in splits[split]:
                del row["text_pair"]
    return Contents(splits, LETTERS if name == "eraser-cose" else None)


@dataclass
class _Documents:
    """The tokens of the documents, each read when it is first asked for."""

    place: Path
    name: str
    known: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.place / "docs").is_dir():
            return
        path = require(self.place, "docs.jsonl", self.name)
        for row in json_lines(path, ("docid", "document")):
            self.known[row["docid"]] = _tokens(row["document"].split("\n"))

    def __getitem__(self, docid: str) -> list[str]:
        if docid not in self.known:
            if not (self.place / "docs" / docid).is_file():
                raise AttnProbeError(
                    f"expected the document {docid!r} in {self.place}, found no such one "
                    "in docs or docs.jsonl; unpack the archive again"
                )
            path = self.place / "docs" / docid
            self.known[docid] = _tokens(line for _, line in lines_of(path))
        return self.known[docid]


def _tokens(sentences: Iterable[str]) -> list[str]:
    """All tokens; other white space inside one is taken out, so that each is one word."""
    return [
        "".join(token.split()) or "_"
        for sentence in sentences
        for token in sentence.strip().split(" ")
        if token
    ]


def _docids(note: Row) -> list[str]:
    """The documents of an annotation, in the order listed, else in that of its evidences."""
    listed = note.get("docids") or []
    quoted = [evidence["docid"] for group in note["evidences"] for evidence in group]
    return list(dict.fromkeys([*listed, *quoted])) or [note["annotation_id"]]


def _queried(note: Row, documents: _Documents) -> Row:
    """The documents one after the other, with the query as second text."""
    text, rationale = _marked(note, _docids(note), documents)
    return {
        "text": text,
        "text_pair": _query(note),
        "label": note["classification"],
        "rationale": rationale,
    }


def _entailment(note: Row, documents: _Documents) -> Row:
    """Premise and hypothesis, each a document."""
    listed = _docids(note)
    ids = []
    for part in ("premise", "hypothesis"):
        known = [docid for docid in listed if docid.endswith(part)]
        ids.append(known[0] if known else f"{note['annotation_id']}_{part}")
    text, rationale = _marked(note, ids[:1], documents)
    text_pair, rationale_pair = _marked(note, ids[1:], documents)
    return {
        "text": text,
        "text_pair": text_pair,
        "label": note["classification"],
        "rationale": rationale,
        "rationale_pair": rationale_pair,
    }


def _choice(note: Row, documents: _Documents) -> Row:
    """The question, with its five answers as choices."""
    text, rationale = _marked(note, _docids(note), documents)
    choices = [choice.strip() for choice in _query(note).split("[sep]")]
    answer = note["classification"]
    if answer not in LETTERS[: len(choices)]:
        raise AttnProbeError(
            f"{note['annotation_id']}: expected one of the letters "
            f"{', '.join(LETTERS[: len(choices)])} as classification, got {answer!r}; "
            "unpack the archive again"
        )
    return {"text": text, "choices": choices, "label": answer, "rationale": rationale}


def _query(note: Row) -> str:
    query: Any = note["query"]
    return query if isinstance(query, str) else " ".join(query)


def _marked(note: Row, docids: Sequence[str], documents: _Documents) -> tuple[str, list[int]]:
    """Words of documents, and the positions of those that are evidence."""
    words: list[str] = []
    starts: dict[str, int] = {}
    for docid in docids:
        starts[docid] = len(words)
        words += documents[docid]
    marked: set[int] = set()
    for evidence in (item for group in note["evidences"] for item in group):
        docid = evidence["docid"]
        start, end = evidence.get("start_token", -1), evidence.get("end_token", -1)
        if docid not in starts or start < 0:
            continue
        if end > len(documents[docid]):
            raise AttnProbeError(
                f"{note['annotation_id']}: expected evidence within the "
                f"{len(documents[docid])} tokens of {docid!r}, got tokens {start} to "
                f"{end}; are the documents those of the annotations?"
            )
        marked.update(range(starts[docid] + start, starts[docid] + end))
    return " ".join(words), sorted(marked)


# --- Discharge notes of MIMIC-III with their diagnoses, from one's own credentialed files --------
# Diabetes: any code that starts with 250.00, against none, on the admissions of CAML's
# 50-code splits. Anemia: acute (285.1) against chronic (285.2), without admissions that
# have both, all admissions cut at random. Read are MIMIC's own tables, the tables that
# CAML's scripts make of them (Mullenbach et al. 2018), or the CSV file of Jain & Wallace's
# notebooks.

NOTES, DIAGNOSES = "NOTEEVENTS.csv", "DIAGNOSES_ICD.csv"
_DEIDENTIFIED = re.compile(r"\[\s*\*\s*\*.*?\*\s*\*\s*\]", re.DOTALL)


def read_mimic(folder: Path, name: str) -> Contents | None:
    """Rows of `text` and `label` (0 or 1); None without such files."""
    prepared = read_prepared(folder, name)
    if prepared is not None:
        return prepared
    if find(folder, [NOTES, f"{NOTES}.gz", DIAGNOSES, f"{DIAGNOSES}.gz"], ("",)):
        return _mimic_tables(folder, name)
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
        splits[SPLITS[split]] = _labelled_notes(
            ((text, codes.split(";")) for text, codes in notes), name
        )
    if name == "diabetes":
        return Contents(splits)
    return Contents(_cut_anemia([row for part in splits.values() for row in part]))


def _mimic_tables(folder: Path, name: str) -> Contents:
    paths = [require(folder, file, name) for file in (NOTES, DIAGNOSES)]
    splits = _admissions(folder, name) if name == "diabetes" else {}
    notes, codes = _notes(paths[0]), _codes(paths[1])
    both = [admission for admission in notes if admission in codes]
    if name != "diabetes":
        rows = _labelled_notes(((notes[key], codes[key]) for key in both), name)
        return Contents(_cut_anemia(rows))
    chosen = {split: [key for key in both if key in splits[split]] for split in splits}
    return Contents(
        {
            SPLITS[split]: _labelled_notes(((notes[key], codes[key]) for key in keys), name)
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
    """Diagnoses by admission, with the point of ICD-9 that the table omits."""
    table = _table(path, ("HADM_ID", "ICD9_CODE"))
    codes: dict[str, list[str]] = {}
    for key, code in zip(table["HADM_ID"], table["ICD9_CODE"], strict=True):
        if code:
            codes.setdefault(_admission(key), []).append(f"{code[:3]}.{code[3:]}")
    return codes


def _admission(key: str) -> str:
    return key.removesuffix(".0")


def _labelled_notes(notes: Iterable[tuple[str, list[str]]], name: str) -> list[Row]:
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


BABI = dict.fromkeys(STEMS, read_babi)
ERASER = dict.fromkeys(ARCHIVES, read_eraser)
READERS = {
    **BABI,
    **ERASER,
    "adr": read_tables,
    "anemia": read_mimic,
    "cnn": read_cnn,
    "diabetes": read_mimic,
    "multinli": read_nli,
    "snli": read_nli,
}
"""What reads the files of a data set, by its name."""


def convert(name: str, folder: str | Path, output_dir: str | Path) -> None:
    """Writes a data set's splits, read from the files its authors publish, as a DatasetDict.

    Args:
        name: of the data set, of :data:`READERS`.
        folder: that holds the files.
        output_dir: folder to write, which stands for the name as ``name=output_dir``.

    Raises:
        AttnProbeError: another name, or files that are missing or not what they should be.
    """
    import datasets

    if name not in READERS:
        raise AttnProbeError(f"expected one of {', '.join(READERS)}, got {name!r}")
    contents = READERS[name](Path(folder), name)
    if contents is None:
        raise AttnProbeError(
            f"expected the files of {name} in {folder}, found {_listed(Path(folder))}; "
            f"`attnprobe datasets {name}` says which to bring"
        )
    splits = {split: datasets.Dataset.from_list(rows) for split, rows in contents.splits.items()}
    tables = datasets.DatasetDict(splits)
    if contents.classes is not None:
        tables = tables.cast_column("label", datasets.ClassLabel(names=list(contents.classes)))
    tables.save_to_disk(output_dir)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    try:
        convert(*sys.argv[1:])
    except AttnProbeError as error:
        raise SystemExit(f"authors_files: {error}") from None
