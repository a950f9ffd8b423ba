"""Cloze questions about news articles with anonymous names (Hermann et al. 2015).

Read are the `.question` files of the authors' archive, or the three text files that Chen
et al. (2016) made of them, which the code of Jain & Wallace (2019) reads. The classes are
the entities of all articles; an answer other than one of its own article is left to the
model to rule out.
"""

from collections.abc import Iterable
from pathlib import Path

from hf_attnprobe.data.layouts.files import Contents, Row, find, lines_of, require
from hf_attnprobe.errors import AttnProbeError


FOLDERS = {"train": "training", "validation": "validation", "test": "test"}
FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
ENTITY = "@entity"


def read_cnn(folder: Path, name: str) -> Contents | None:
    """Rows of `text`, `text_pair` and `label`; None without such files."""
    place = find(folder, list(FOLDERS.values()), ("", "questions", "cnn/questions", "cnn"))
    if place is not None and not (place / FILES["train"]).exists():
        return _contents({s: _folder(place, FOLDERS[s], name) for s in FOLDERS})
    place = find(folder, [FILES["train"]], ("", "cnn"))
    if place is None:
        return None
    return _contents({s: _prepared(require(place, FILES[s], name)) for s in FILES})


def _folder(place: Path, split: str, name: str) -> list[Row]:
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
    return _row(article, question, answer, str(path))


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
            rows.append(_row(block[2], block[0], block[1], f"{path}, line {number}"))
            block = []
    return rows


def _row(article: str, question: str, answer: str, where: str) -> Row:
    if not answer.startswith(ENTITY):
        raise AttnProbeError(
            f"{where}: expected an answer such as {ENTITY}3, got {answer!r}; bring the "
            "anonymised version"
        )
    return {"text": article, "text_pair": question, "label": answer}


def _contents(splits: dict[str, list[Row]]) -> Contents:
    rows = [row for part in splits.values() for row in part]
    found = {row["label"] for row in rows} | _entities(row["text"] for row in rows)
    return Contents(splits, tuple(sorted(found, key=_number)))


def _entities(articles: Iterable[str]) -> set[str]:
    words = {word for article in articles for word in article.split()}
    return {word for word in words if word.startswith(ENTITY)}


def _number(entity: str) -> tuple[int, str]:
    digits = entity.removeprefix(ENTITY)
    return (int(digits) if digits.isdecimal() else -1, entity)
