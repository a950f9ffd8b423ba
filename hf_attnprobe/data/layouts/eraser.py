"""ERASER's data sets with human rationales (DeYoung et al. 2020).

A folder holds `train.jsonl`, `val.jsonl`, `test.jsonl` and the documents, as files in
`docs` or lines of `docs.jsonl`. A document's tokens are separated by spaces and its
sentences by line feeds; an evidence is a range of tokens of a document. The rationale is
the union of all evidences, any group of which is enough for the answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_attnprobe.data.layouts.files import (
    Contents,
    Row,
    find,
    json_lines,
    lines_of,
    require,
)
from hf_attnprobe.errors import AttnProbeError


ARCHIVES = {
    "eraser-movies": "movies",
    "eraser-boolq": "boolq",
    "eraser-multirc": "multirc",
    "eraser-fever": "fever",
    "eraser-evidence-inference": "evidence_inference",
    "eraser-esnli": "esnli",
    "eraser-cose": "cose",
}
FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
LETTERS = ("A", "B", "C", "D", "E")


def read_eraser(folder: Path, name: str) -> Contents | None:
    """Rows of `text`, `label`, `rationale`, and what else the task has.

    `text_pair` is the query, in e-SNLI the hypothesis, with `rationale_pair`; `choices`
    are the answers of CoS-E.
    """
    places = ("", ARCHIVES[name], f"data/{ARCHIVES[name]}")
    place = find(folder, list(FILES.values()), places)
    if place is None:
        return None
    paths = {split: require(place, FILES[split], name) for split in FILES}
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
    """The documents of an annotation, in order: as listed, else as in its evidences."""
    listed = note.get("docids") or []
    quoted = [evidence["docid"] for group in note["evidences"] for evidence in group]
    return list(dict.fromkeys([*listed, *quoted])) or [note["annotation_id"]]


def _queried(note: Row, documents: _Documents) -> Row:
    """The documents behind one another, with the query as second text."""
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
    """The words of documents, and the places of those that are evidence."""
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
