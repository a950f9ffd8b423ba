"""Convert data sets from their authors' files to a folder that ``datasets`` can read.

Usage::

    python examples/authors_files.py babi1 tasks_1-20_v1-2 babi1-converted
    attnprobe audit --dataset babi1=babi1-converted ...

``attnprobe datasets NAME`` lists the files that a data set needs and their sources. The main
function is :func:`convert_dataset`. ``READERS`` contains one function per data set, which reads all
splits from a folder and returns None if the folder does not contain the expected files.
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


logger = logging.getLogger(__name__)

Row = dict[str, Any]
SPLIT_NAMES = {"train": "train", "dev": "validation", "test": "test"}
"""Split names in this package, by the names that the papers use."""


@dataclass(frozen=True)
class DatasetContent:
    """All splits of a data set, as read from its authors' files.

    Attributes:
        splits: rows by split name.
        classes: all class names, for data sets in which some class may have no row; None otherwise.
    """

    splits: dict[str, list[Row]]
    classes: tuple[str, ...] | None = None


# --- Files, shared by all data sets --------------------------------------------------------------


def find_subfolder(
    folder: Path, file_names: Sequence[str], subfolders: Sequence[str]
) -> Path | None:
    """Find the first subfolder that contains at least one of the named files.

    Args:
        folder: the folder that the user named.
        file_names: names of files or folders to look for.
        subfolders: paths relative to ``folder``, in order of preference; "" is ``folder`` itself.

    Returns:
        The subfolder's path; None if no subfolder contains any of the files.
    """
    for subfolder in subfolders:
        if any((folder / subfolder / name).exists() for name in file_names):
            return folder / subfolder
    return None


def locate_file(folder: Path, file_name: str, dataset: str) -> Path:
    """Return the path to a required file, or to its compressed version.

    Args:
        folder: the folder with the file.
        file_name: the file name without the suffix .gz.
        dataset: the data set's name, for the error message.

    Returns:
        The path.

    Raises:
        AttnProbeError: if neither the file nor its .gz version exists.
    """
    for path in (folder / file_name, folder / f"{file_name}.gz"):
        if path.exists():
            return path
    raise AttnProbeError(
        f"expected {file_name} in {folder}, found {_format_file_names(folder)}; add the file, "
        f"`attnprobe datasets {dataset}` states where to get it"
    )


def _format_file_names(folder: Path) -> str:
    """Return up to five file names from a folder, and the number of further ones."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        return "nothing"
    suffix = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + suffix


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line in a UTF-8 file with its number, counted from 1.

    Args:
        path: the file.

    Yields:
        The line number, and the line without its end.

    Raises:
        AttnProbeError: if the file is not valid UTF-8.
    """
    try:
        # Only a line feed ends a line, since some tokens are other line separators.
        with path.open(encoding="utf-8", newline="\n") as file:
            for line_number, line in enumerate(file, start=1):
                yield line_number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise AttnProbeError(
            f"expected UTF-8 text in {path}, got {error}; download the file again"
        ) from error


def read_json_lines(path: Path, required_fields: Sequence[str]) -> Iterator[Row]:
    """Yield the JSON object on each line in a file; blank lines are skipped.

    Args:
        path: the file.
        required_fields: names of the fields that every object must have.

    Yields:
        The objects.

    Raises:
        AttnProbeError: if a line is not a JSON object, or a field is missing.
    """
    for line_number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise _make_line_error(path, line_number, "a JSON object", str(error)) from error
        if not isinstance(row, dict):
            raise _make_line_error(path, line_number, "a JSON object", type(row).__name__)
        for name in required_fields:
            if name not in row:
                present = ", ".join(row) or "none"
                raise _make_line_error(path, line_number, f"the field {name!r}", present)
        yield row


def _make_line_error(path: Path, line_number: int, expected: str, received: str) -> AttnProbeError:
    """Return the error for a malformed line in one of the authors' files."""
    return AttnProbeError(
        f"{path}, line {line_number}: expected {expected}, got {received}; download the file again"
    )


def split_train_test(rows: list[Row], test_share: float, seed: int) -> dict[str, list[Row]]:
    """Split rows at random into train and test, with the same test share in every class.

    Args:
        rows: rows with a field ``label``.
        test_share: share of the rows to put into the test split, from 0 to 1.
        seed: random seed; the same seed always gives the same split.

    Returns:
        The splits "train" and "test".
    """
    test_rows = draw_holdout_rows([row["label"] for row in rows], test_share, seed)
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    for index, row in enumerate(rows):
        splits["test" if index in test_rows else "train"].append(row)
    return splits


# --- Tables with texts and labels ----------------------------------------------------------------


def read_tables(folder: Path, dataset: str) -> DatasetContent | None:
    """Read texts and labels from the CSV file of Jain & Wallace (2019), or from TSV files.

    The TSV files are train.tsv, test.tsv and optionally validation.tsv, or a single file with any
    name. From a single file, a fifth of every class becomes the test split.

    Args:
        folder: the folder with the files.
        dataset: the data set's name.

    Returns:
        Rows with `text` and `label`; None if the folder has no such files.

    Raises:
        AttnProbeError: if there are several files with other names, or a table is malformed.
    """
    prepared_content = read_prepared_table(folder, dataset)
    if prepared_content is not None:
        return prepared_content
    paths = sorted(folder.glob("*.tsv"))
    if not paths:
        return None
    if len(paths) == 1:
        rows = read_labelled_table(paths[0], "\t")
        return DatasetContent(split_train_test(rows, test_share=0.2, seed=13020))
    path_by_split = {path.stem: path for path in paths}
    if {"train", "test"} <= path_by_split.keys() <= {"train", "validation", "test"}:
        return DatasetContent(
            {split: read_labelled_table(path, "\t") for split, path in path_by_split.items()}
        )
    raise AttnProbeError(
        f"expected one TSV file, or train.tsv and test.tsv, in {folder}, got "
        f"{', '.join(path.name for path in paths)}; remove the other files"
    )


def read_prepared_table(folder: Path, dataset: str) -> DatasetContent | None:
    """Read the CSV file that the notebooks of Jain & Wallace (2019) write.

    Its name ends with `_dataset.csv`, and its column `exp_split` contains each row's split.

    Args:
        folder: the folder with the file.
        dataset: the data set's name, for the error message.

    Returns:
        Rows with `text` and `label`; None if there is no such file.

    Raises:
        AttnProbeError: if there are several such files, or the table is malformed.
    """
    paths = sorted(folder.glob("*_dataset.csv"))
    if not paths:
        return None
    if len(paths) > 1:
        raise AttnProbeError(
            f"expected one file named …_dataset.csv in {folder} for {dataset}, got "
            f"{', '.join(path.name for path in paths)}; put each file into its own folder"
        )
    splits: dict[str, list[Row]] = {}
    for row in read_labelled_table(paths[0], ",", "exp_split"):
        paper_split = row.pop("exp_split")
        if paper_split not in SPLIT_NAMES:
            raise AttnProbeError(
                f"{paths[0]}: expected {', '.join(SPLIT_NAMES)} in the column exp_split, got "
                f"{paper_split!r}; create the file again"
            )
        splits.setdefault(SPLIT_NAMES[paper_split], []).append(row)
    return DatasetContent(splits)


def read_labelled_table(path: Path, separator: str, *further_columns: str) -> list[Row]:
    """Read a table with the columns `text` and `label`.

    Args:
        path: the CSV or TSV file.
        separator: the column separator.
        *further_columns: names of further columns to read, as strings.

    Returns:
        One row per text, with labels as the integers 0 and 1.

    Raises:
        AttnProbeError: if a column is missing, or a label is neither 0 nor 1.
    """
    import pandas as pd

    # Quotation marks in TSV files are part of the tweets (csv.QUOTE_NONE is 3).
    quoting: Literal[0, 3] = 0 if separator == "," else 3
    check_table_fields(path, separator, quoting)
    table = pd.read_csv(
        path, sep=separator, dtype=str, keep_default_na=False, quoting=quoting
    ).rename(columns=str.strip)
    columns = ("text", "label", *further_columns)
    if not set(columns) <= set(table.columns):
        raise AttnProbeError(
            f"{path}: expected a first line with the columns {', '.join(columns)}, got "
            f"{', '.join(map(str, table.columns))[:100]}; add this line"
        )
    rows = table[list(columns)].to_dict("records")
    for row_number, row in enumerate(rows):
        if row["label"] not in ("0", "1"):
            raise AttnProbeError(
                f"{path}, row {row_number}: expected 0 or 1 as label, got {row['label']!r}; "
                "correct or delete this row"
            )
        row["label"] = int(row["label"])
    return rows


# --- SNLI and MultiNLI: pairs of a premise and a hypothesis --------------------------------------

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
"""File name for each split, by data set. MultiNLI's test labels are secret. Its splits have the same
names as on the Hub."""
NLI_FIELDS = {"premise": "sentence1", "hypothesis": "sentence2", "label": "gold_label"}
"""Field names in the authors' files, by the column that is written."""


def read_nli(folder: Path, dataset: str) -> DatasetContent | None:
    """Read SNLI or MultiNLI.

    Pairs on which the annotators did not agree have the label "-" and are dropped, as is usual.

    Args:
        folder: the folder with the authors' JSON lines, or the one that contains this folder.
        dataset: "snli" or "multinli".

    Returns:
        Rows with `premise`, `hypothesis` and `label`; None if the folder has no such files.

    Raises:
        AttnProbeError: if a file is missing or malformed.
    """
    file_by_split = NLI_FILES[dataset]
    subfolder = find_subfolder(folder, list(file_by_split.values()), ("", f"{dataset}_1.0"))
    if subfolder is None:
        return None
    path_by_split = {
        split: locate_file(subfolder, file_name, dataset)
        for split, file_name in file_by_split.items()
    }
    splits: dict[str, list[Row]] = {}
    for split, path in path_by_split.items():
        splits[split] = []
        for pair in read_json_lines(path, tuple(NLI_FIELDS.values())):
            if pair["gold_label"] != "-":
                row = {column: pair[name] for column, name in NLI_FIELDS.items()}
                splits[split].append(row)
    return DatasetContent(splits)


# --- bAbI: stories with a question, and the sentences that answer it (Weston et al. 2015) --------
# The files are the text files in the archive tasks_1-20_v1-2, or Parquet files with the columns
# `sentences`, `question`, `label` and `supporting_facts`. As in the code of Jain & Wallace (2019), a
# text consists of the story's sentences up to the question, joined by " . ", and neither the text
# nor the question has a final punctuation mark. The rationale consists of all words in the
# supporting sentences.

BABI_FILES = {
    "babi1": "qa1_single-supporting-fact",
    "babi2": "qa2_two-supporting-facts",
    "babi3": "qa3_three-supporting-facts",
}
"""Start of the file names, by data set; "_train.txt" or "_test.txt" follows."""
BABI_SUBFOLDERS = (
    "",
    "en-10k",
    "tasks_1-20_v1-2/en-10k",
    "en",
    "tasks_1-20_v1-2/en",
)
"""Subfolders that may contain the text files. The papers use the version with 10,000 questions, so
its folders (en-10k) come before those with 1,000 questions (en)."""
PARQUET_COLUMNS = ("sentences", "supporting_facts", "question", "label")
"""Columns that the Parquet files of bAbI must have."""


def read_babi(folder: Path, dataset: str) -> DatasetContent | None:
    """Read one bAbI task from text files or Parquet files.

    Args:
        folder: the folder with the files, or the unpacked archive.
        dataset: "babi1", "babi2" or "babi3".

    Returns:
        Rows with `text`, `text_pair` (the question), `label` (the answer) and `rationale`; None if
        the folder has no such files.

    Raises:
        AttnProbeError: if a file is missing or malformed.
    """
    stem = BABI_FILES[dataset]
    file_by_split = {split: f"{stem}_{split}.txt" for split in ("train", "test")}
    subfolder = find_subfolder(folder, list(file_by_split.values()), BABI_SUBFOLDERS)
    if subfolder is not None:
        if subfolder.name == "en":
            _warn_small_version(subfolder)
        path_by_split = {
            split: locate_file(subfolder, file_name, dataset)
            for split, file_name in file_by_split.items()
        }
        return DatasetContent(
            {split: _read_babi_stories(path) for split, path in path_by_split.items()}
        )
    task = stem.partition("_")[0]
    for parquet_folder in (folder / f"{task}_10k", folder / task, folder):
        if list(parquet_folder.glob("train*.parquet")):
            if parquet_folder.name == task:
                _warn_small_version(parquet_folder)
            return _read_babi_parquet(parquet_folder, int(dataset[-1]))
    return None


def _warn_small_version(folder: Path) -> None:
    """Log a warning that a folder contains the small version of bAbI."""
    logger.warning(f"{folder} is the version with 1,000 questions; the papers use 10,000")


def _read_babi_stories(path: Path) -> list[Row]:
    """Read a bAbI text file, which contains several stories with several questions each.

    Every line starts with its number within the story. A question line continues with the question,
    its answer and the numbers of the supporting lines, separated by tabs.
    """
    rows = []
    sentence_by_number: dict[str, str] = {}
    for line_number, line in read_lines(path):
        story_line_number, _, content = line.partition(" ")
        if story_line_number == "1":
            sentence_by_number = {}
        question, *answer_fields = content.split("\t")
        if not answer_fields:
            sentence_by_number[story_line_number] = content
            continue
        fact_numbers = answer_fields[1].split() if len(answer_fields) == 2 else []
        if not fact_numbers or not set(fact_numbers) <= sentence_by_number.keys():
            raise AttnProbeError(
                f"{path}, line {line_number}: expected a question, its answer and the numbers of the "
                f"supporting lines, separated by tabs, got {line!r}; download the file again"
            )
        numbers = list(sentence_by_number)
        supporting_facts = [numbers.index(number) for number in fact_numbers]
        answer = answer_fields[0].strip()
        rows.append(
            _build_babi_row(sentence_by_number.values(), supporting_facts, question, answer)
        )
    return rows


def _read_babi_parquet(folder: Path, task: int) -> DatasetContent:
    """Read all splits of a bAbI task from a folder with Parquet files."""
    import datasets

    files_by_split = {}
    for split in ("train", "validation", "test"):
        paths = sorted(str(path) for path in folder.glob(f"{split}*.parquet"))
        if paths:
            files_by_split[split] = paths
    # These files are on this machine, so they have no revision.
    loaded = datasets.load_dataset("parquet", data_files=files_by_split)  # nosec B615
    splits = {}
    for split, examples in loaded.items():
        _check_babi_parquet(examples, folder, task)
        answers = examples.features["label"].names
        splits[split] = [
            _build_babi_row(
                row["sentences"],
                row["supporting_facts"],
                row["question"],
                answers[row["label"]],
            )
            for row in examples
        ]
    return DatasetContent(splits)


def _check_babi_parquet(examples: "datasets.Dataset", folder: Path, task: int) -> None:
    """Raise AttnProbeError if columns are missing, or questions belong to another task."""
    features = examples.features
    has_columns = set(PARQUET_COLUMNS) <= set(features)
    if not has_columns or not hasattr(features["label"], "names"):
        raise AttnProbeError(
            f"expected the columns {', '.join(PARQUET_COLUMNS)} with named labels in the Parquet "
            f"files in {folder}, got {', '.join(features)}; `attnprobe datasets babi{task}` lists "
            "the files to provide"
        )
    other_tasks = {row["task"] for row in examples if "task" in row} - {task}
    if other_tasks:
        raise AttnProbeError(
            f"expected questions of task {task} in {folder}, got task {min(other_tasks)}; give the "
            f"folder for task {task}"
        )


def _build_babi_row(
    sentences: Iterable[str], supporting_facts: Sequence[int], question: str, answer: str
) -> Row:
    """Build the row for one question.

    Args:
        sentences: the story up to the question.
        supporting_facts: indices of the sentences that answer the question.
        question: the question.
        answer: the answer.
    """
    words: list[str] = []
    rationale: list[int] = []
    for index, sentence in enumerate(sentences):
        if index > 0:
            words.append(".")
        sentence_words = sentence.strip().removesuffix(".").split()
        if index in supporting_facts:
            rationale += range(len(words), len(words) + len(sentence_words))
        words += sentence_words
    return {
        "text": " ".join(words),
        "text_pair": question.strip().removesuffix("?").strip(),
        "label": answer,
        "rationale": rationale,
    }


# --- CNN: cloze questions about news articles with anonymous names (Hermann et al. 2015) ---------
# The files are the `.question` files in the authors' archive, or the three text files that Chen et
# al. (2016) prepared from them and that the code of Jain & Wallace (2019) reads. The classes are the
# entities in all articles, such as @entity3. A model must learn by itself that the answer is one of
# the entities in the same article.

QUESTION_FOLDERS = {"train": "training", "validation": "validation", "test": "test"}
"""Folder with .question files for each split."""
CLOZE_FILES = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
"""File for each split as prepared by Chen et al. (2016)."""
ENTITY_PREFIX = "@entity"
"""Start of the placeholders that replace names, such as "@entity3"."""


def read_cnn(folder: Path, dataset: str) -> DatasetContent | None:
    """Read the cloze questions about CNN articles.

    Args:
        folder: the folder with the files, or the unpacked archive.
        dataset: "cnn".

    Returns:
        Rows with `text` (the article), `text_pair` (the question) and `label` (the entity); None if
        the folder has no such files.

    Raises:
        AttnProbeError: if a file is missing or malformed.
    """
    folder_names = list(QUESTION_FOLDERS.values())
    subfolder = find_subfolder(folder, folder_names, ("", "questions", "cnn/questions", "cnn"))
    if subfolder is not None and not (subfolder / CLOZE_FILES["train"]).exists():
        return _add_entity_classes(
            {
                split: _read_question_folder(subfolder, folder_name, dataset)
                for split, folder_name in QUESTION_FOLDERS.items()
            }
        )
    subfolder = find_subfolder(folder, [CLOZE_FILES["train"]], ("", "cnn"))
    if subfolder is None:
        return None
    return _add_entity_classes(
        {
            split: _read_prepared_questions(locate_file(subfolder, file_name, dataset))
            for split, file_name in CLOZE_FILES.items()
        }
    )


def _read_question_folder(subfolder: Path, folder_name: str, dataset: str) -> list[Row]:
    """Read all .question files in one split's folder."""
    paths = sorted(locate_file(subfolder, folder_name, dataset).glob("*.question"))
    if not paths:
        raise AttnProbeError(
            f"expected .question files in {subfolder / folder_name}, found none; unpack the archive "
            f"again, `attnprobe datasets {dataset}` states its name"
        )
    return [_read_question_file(path) for path in paths]


def _read_question_file(path: Path) -> Row:
    """Read a .question file: address, article, question, answer and names, between empty lines."""
    parts = path.read_text(encoding="utf-8").split("\n\n")
    if len(parts) < 4:
        raise AttnProbeError(
            f"{path}: expected address, article, question and answer, separated by empty lines, got "
            f"{len(parts)} part(s); unpack the archive again"
        )
    _, article, question, answer = (" ".join(part.split()) for part in parts[:4])
    return _build_cloze_row(article, question, answer, str(path))


def _read_prepared_questions(path: Path) -> list[Row]:
    """Read a file prepared by Chen et al. (2016).

    It consists of blocks separated by empty lines. A block has the question, the answer and the
    article on one line each, and may continue with names.
    """
    rows = []
    block: list[str] = []
    final_empty_line = (0, "")
    for line_number, line in [*read_lines(path), final_empty_line]:
        if line.strip():
            block.append(line.strip())
        elif block:
            if len(block) < 3:
                position = f"before line {line_number}" if line_number else "at the end"
                raise AttnProbeError(
                    f"{path}, {position}: expected question, answer and article on one line each, "
                    f"got {len(block)} line(s); download the file again"
                )
            question, answer, article = block[:3]
            rows.append(_build_cloze_row(article, question, answer, f"{path}, line {line_number}"))
            block = []
    return rows


def _build_cloze_row(article: str, question: str, answer: str, location: str) -> Row:
    """Build the row for one question; ``location`` names the file in the error message."""
    if not answer.startswith(ENTITY_PREFIX):
        raise AttnProbeError(
            f"{location}: expected an answer such as {ENTITY_PREFIX}3, got {answer!r}; download the "
            "version with anonymous names"
        )
    return {"text": article, "text_pair": question, "label": answer}


def _add_entity_classes(splits: dict[str, list[Row]]) -> DatasetContent:
    """Return the splits, with every entity in an article or an answer as a class."""
    entities = set()
    for rows in splits.values():
        for row in rows:
            entities.add(row["label"])
            entities.update(_list_entities(row["text"]))
    return DatasetContent(splits, tuple(sorted(entities, key=_make_entity_sort_key)))


def _list_entities(article: str) -> list[str]:
    """Return the placeholders in an article, such as "@entity3"."""
    return [word for word in article.split() if word.startswith(ENTITY_PREFIX)]


def _make_entity_sort_key(entity: str) -> tuple[int, str]:
    """Return a key that sorts entities by number, and entities without a number first."""
    digits = entity.removeprefix(ENTITY_PREFIX)
    return (int(digits) if digits.isdecimal() else -1, entity)


# --- ERASER: data sets with human rationales (DeYoung et al. 2020) -------------------------------
# A folder contains `train.jsonl`, `val.jsonl`, `test.jsonl` and the documents, as files in `docs` or
# as lines in `docs.jsonl`. Documents are already tokenised: spaces separate tokens, and line feeds
# separate sentences. An annotation lists groups of evidences, and each evidence is a token range in
# a document. Any one group suffices for the answer; the rationale is the union of all groups.

ERASER_FOLDERS = {
    "eraser-movies": "movies",
    "eraser-boolq": "boolq",
    "eraser-multirc": "multirc",
    "eraser-fever": "fever",
    "eraser-evidence-inference": "evidence_inference",
    "eraser-esnli": "esnli",
    "eraser-cose": "cose",
}
"""Name of the unpacked archive, by data set."""
ERASER_FILES = {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
"""File with the annotations for each split."""
ERASER_FIELDS = ("annotation_id", "classification", "query", "evidences")
"""Fields that every annotation must have."""
CHOICE_LETTERS = ("A", "B", "C", "D", "E")
"""Labels in CoS-E, one for each of the five choices."""


def read_eraser(folder: Path, dataset: str) -> DatasetContent | None:
    """Read one of the ERASER data sets.

    Args:
        folder: the folder with the annotations, or the unpacked archive.
        dataset: the data set's name, a key in ``ERASER_FOLDERS``.

    Returns:
        Rows with `text`, `label` and `rationale`; None if the folder has no such files. Most data
        sets also have `text_pair` with the query. e-SNLI has the hypothesis there, with
        `rationale_pair`. CoS-E has `choices` instead, and the movie reviews have neither, since
        all of them have the same query.

    Raises:
        AttnProbeError: if a file is missing or malformed.
    """
    archive = ERASER_FOLDERS[dataset]
    subfolder = find_subfolder(
        folder, list(ERASER_FILES.values()), ("", archive, f"data/{archive}")
    )
    if subfolder is None:
        return None
    path_by_split = {
        split: locate_file(subfolder, file_name, dataset)
        for split, file_name in ERASER_FILES.items()
    }
    documents = _Documents(subfolder, dataset)
    row_builders = {"eraser-esnli": _build_entailment_row, "eraser-cose": _build_choice_row}
    build_row = row_builders.get(dataset, _build_query_row)
    splits = {}
    for split, path in path_by_split.items():
        rows = [
            build_row(annotation, documents) for annotation in read_json_lines(path, ERASER_FIELDS)
        ]
        if dataset == "eraser-movies":
            for row in rows:
                del row["text_pair"]
        splits[split] = rows
    return DatasetContent(splits, CHOICE_LETTERS if dataset == "eraser-cose" else None)


@dataclass
class _Documents:
    """The documents of an ERASER data set as lists of tokens.

    Files in `docs` are read when they are first requested; the lines in `docs.jsonl` are read at
    once.

    Attributes:
        folder: the folder with `docs` or `docs.jsonl`.
        dataset: the data set's name.
        tokens_by_id: tokens of the documents that were read, by document id.
    """

    folder: Path
    dataset: str
    tokens_by_id: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.folder / "docs").is_dir():
            return
        path = locate_file(self.folder, "docs.jsonl", self.dataset)
        for row in read_json_lines(path, ("docid", "document")):
            self.tokens_by_id[row["docid"]] = _split_into_tokens(row["document"].split("\n"))

    def __getitem__(self, document_id: str) -> list[str]:
        if document_id not in self.tokens_by_id:
            path = self.folder / "docs" / document_id
            if not path.is_file():
                raise AttnProbeError(
                    f"expected the document {document_id!r} in {self.folder}, but neither docs nor "
                    "docs.jsonl contains it; unpack the archive again"
                )
            sentences = (line for _, line in read_lines(path))
            self.tokens_by_id[document_id] = _split_into_tokens(sentences)
        return self.tokens_by_id[document_id]


def _split_into_tokens(sentences: Iterable[str]) -> list[str]:
    """Split tokenised sentences at spaces into one list of tokens.

    Other white space inside a token is removed, so that every token is exactly one word. A token
    without any other character becomes "_".
    """
    tokens = []
    for sentence in sentences:
        for token in sentence.strip().split(" "):
            if token:
                tokens.append("".join(token.split()) or "_")
    return tokens


def _list_evidences(annotation: Row) -> list[Row]:
    """Return all evidences in an annotation as one list, without their groups."""
    return [evidence for group in annotation["evidences"] for evidence in group]


def _list_document_ids(annotation: Row) -> list[str]:
    """Return the ids of an annotation's documents, or the annotation's own id if it names none.

    Documents in the field `docids` come first, followed by those that only evidences name.
    """
    listed_ids = annotation.get("docids") or []
    evidence_ids = [evidence["docid"] for evidence in _list_evidences(annotation)]
    return list(dict.fromkeys([*listed_ids, *evidence_ids])) or [annotation["annotation_id"]]


def _build_query_row(annotation: Row, documents: _Documents) -> Row:
    """Build a row with the joined documents as text, and the query as second text."""
    text, rationale = _join_documents(annotation, _list_document_ids(annotation), documents)
    return {
        "text": text,
        "text_pair": _get_query(annotation),
        "label": annotation["classification"],
        "rationale": rationale,
    }


def _build_entailment_row(annotation: Row, documents: _Documents) -> Row:
    """Build a row for e-SNLI, in which premise and hypothesis are separate documents."""
    premise_id = _find_part_id(annotation, "premise")
    hypothesis_id = _find_part_id(annotation, "hypothesis")
    premise, premise_rationale = _join_documents(annotation, [premise_id], documents)
    hypothesis, hypothesis_rationale = _join_documents(annotation, [hypothesis_id], documents)
    return {
        "text": premise,
        "text_pair": hypothesis,
        "label": annotation["classification"],
        "rationale": premise_rationale,
        "rationale_pair": hypothesis_rationale,
    }


def _find_part_id(annotation: Row, part: str) -> str:
    """Return the id of the document with one part of a pair, "premise" or "hypothesis"."""
    for document_id in _list_document_ids(annotation):
        if document_id.endswith(part):
            return document_id
    return f"{annotation['annotation_id']}_{part}"


def _build_choice_row(annotation: Row, documents: _Documents) -> Row:
    """Build a row for CoS-E, with the question as text and its five answers as choices."""
    text, rationale = _join_documents(annotation, _list_document_ids(annotation), documents)
    choices = [choice.strip() for choice in _get_query(annotation).split("[sep]")]
    letters = CHOICE_LETTERS[: len(choices)]
    answer = annotation["classification"]
    if answer not in letters:
        raise AttnProbeError(
            f"{annotation['annotation_id']}: expected one of the letters {', '.join(letters)} as "
            f"classification, got {answer!r}; unpack the archive again"
        )
    return {"text": text, "choices": choices, "label": answer, "rationale": rationale}


def _get_query(annotation: Row) -> str:
    """Return an annotation's query, which may be stored as a string or as a list of words."""
    query: Any = annotation["query"]
    return query if isinstance(query, str) else " ".join(query)


def _join_documents(
    annotation: Row, document_ids: Sequence[str], documents: _Documents
) -> tuple[str, list[int]]:
    """Join documents into one text, and locate the annotation's evidence in it.

    Args:
        annotation: the annotation.
        document_ids: ids of the documents to join.
        documents: all documents.

    Returns:
        The text, and the sorted positions of its evidence words, counted from 0.
    """
    words: list[str] = []
    start_by_id: dict[str, int] = {}
    for document_id in document_ids:
        start_by_id[document_id] = len(words)
        words += documents[document_id]
    positions: set[int] = set()
    for evidence in _list_evidences(annotation):
        document_id = evidence["docid"]
        start, end = evidence.get("start_token", -1), evidence.get("end_token", -1)
        if document_id not in start_by_id or start < 0:
            continue
        if end > len(documents[document_id]):
            raise AttnProbeError(
                f"{annotation['annotation_id']}: expected evidence within the "
                f"{len(documents[document_id])} tokens of {document_id!r}, got tokens {start} to "
                f"{end}; use the documents that belong to the annotations"
            )
        offset = start_by_id[document_id]
        positions.update(range(offset + start, offset + end))
    return " ".join(words), sorted(positions)


# --- MIMIC-III: discharge notes with diagnoses, for users with credentials of their own ----------
# Diabetes: label 1 if any ICD-9 code starts with 250.00, for the admissions in CAML's splits with 50
# codes. Anemia: acute (285.1, label 1) or chronic (285.2, label 0), without admissions that have
# both or neither; all admissions are split at random. The files are the original tables of
# MIMIC-III, the tables that CAML's scripts derive from them (Mullenbach et al. 2018), or the CSV
# file that the notebooks of Jain & Wallace (2019) write.

NOTES_FILE = "NOTEEVENTS.csv"
"""Table of MIMIC-III with the notes."""
DIAGNOSES_FILE = "DIAGNOSES_ICD.csv"
"""Table of MIMIC-III with the diagnoses."""
NOTE_COLUMNS = ("HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "ISERROR", "TEXT")
"""Columns of ``NOTES_FILE`` that are read."""
ROWS_PER_CHUNK = 50_000
"""Number of table rows that are read at a time, to limit the memory."""
_DEIDENTIFIED = re.compile(r"\[\s*\*\s*\*.*?\*\s*\*\s*\]", re.DOTALL)
"""Placeholder for a removed name or date, such as "[**2101-10-20**]"."""


def read_mimic(folder: Path, dataset: str) -> DatasetContent | None:
    """Read discharge notes with a diagnosis.

    Args:
        folder: the folder with the files.
        dataset: "diabetes" or "anemia".

    Returns:
        Rows with `text` and `label` (0 or 1); None if the folder has no such files.

    Raises:
        AttnProbeError: if a file is missing or malformed.
    """
    prepared_content = read_prepared_table(folder, dataset)
    if prepared_content is not None:
        return prepared_content
    mimic_files = [NOTES_FILE, f"{NOTES_FILE}.gz", DIAGNOSES_FILE, f"{DIAGNOSES_FILE}.gz"]
    if find_subfolder(folder, mimic_files, ("",)) is not None:
        return _read_mimic_tables(folder, dataset)
    suffix = "50" if dataset == "diabetes" else "full"
    caml_files = {split: f"{split}_{suffix}.csv" for split in SPLIT_NAMES}
    if find_subfolder(folder, list(caml_files.values()), ("",)) is not None:
        path_by_split = {
            split: locate_file(folder, file_name, dataset)
            for split, file_name in caml_files.items()
        }
        return _read_caml_tables(path_by_split, dataset)
    return None


def _read_caml_tables(path_by_split: Mapping[str, Path], dataset: str) -> DatasetContent:
    """Read the tables that CAML's scripts write; for anemia, all notes are split anew."""
    splits: dict[str, list[Row]] = {}
    for split, path in path_by_split.items():
        table = _read_csv(path, ("TEXT", "LABELS"))
        code_lists = [codes.split(";") for codes in table["LABELS"]]
        splits[SPLIT_NAMES[split]] = _label_notes(table["TEXT"], code_lists, dataset)
    if dataset == "diabetes":
        return DatasetContent(splits)
    all_rows = [row for rows in splits.values() for row in rows]
    return DatasetContent(_split_anemia(all_rows))


def _read_mimic_tables(folder: Path, dataset: str) -> DatasetContent:
    """Read the original tables of MIMIC-III."""
    notes_path = locate_file(folder, NOTES_FILE, dataset)
    diagnoses_path = locate_file(folder, DIAGNOSES_FILE, dataset)
    needs_random_split = dataset != "diabetes"
    ids_by_split = {} if needs_random_split else _read_caml_admissions(folder, dataset)
    notes = _read_discharge_notes(notes_path)
    codes = _read_diagnosis_codes(diagnoses_path)
    complete_ids = [admission_id for admission_id in notes if admission_id in codes]

    def build_rows(admission_ids: Sequence[str]) -> list[Row]:
        texts = [notes[admission_id] for admission_id in admission_ids]
        code_lists = [codes[admission_id] for admission_id in admission_ids]
        return _label_notes(texts, code_lists, dataset)

    if needs_random_split:
        return DatasetContent(_split_anemia(build_rows(complete_ids)))
    splits = {}
    for split, split_ids in ids_by_split.items():
        admission_ids = [admission_id for admission_id in complete_ids if admission_id in split_ids]
        splits[SPLIT_NAMES[split]] = build_rows(admission_ids)
    return DatasetContent(splits)


def _read_caml_admissions(folder: Path, dataset: str) -> dict[str, set[str]]:
    """Read the admission ids for each of CAML's splits, from files with one id per line."""
    admissions_by_split = {}
    for split in SPLIT_NAMES:
        path = locate_file(folder, f"{split}_50_hadm_ids.csv", dataset)
        admissions_by_split[split] = set(path.read_text().split())
    return admissions_by_split


def _read_discharge_notes(path: Path) -> dict[str, str]:
    """Read the discharge notes by admission id; a report is followed by its addenda."""
    import pandas as pd

    chunks = []
    for chunk in _iterate_csv_chunks(path, NOTE_COLUMNS):
        is_discharge_note = (chunk["CATEGORY"] == "Discharge summary") & (chunk["ISERROR"] == "")
        chunks.append(chunk[is_discharge_note & (chunk["HADM_ID"] != "")])
    table = pd.concat(chunks)
    table["is_addendum"] = table["DESCRIPTION"] != "Report"
    table = table.sort_values(["is_addendum", "CHARTDATE"], kind="stable")
    note_by_id = table.groupby("HADM_ID")["TEXT"].agg(" ".join)
    return {_normalize_admission_id(key): text for key, text in note_by_id.items()}


def _read_diagnosis_codes(path: Path) -> dict[str, list[str]]:
    """Read the ICD-9 codes by admission id, and insert the point that the table omits."""
    table = _read_csv(path, ("HADM_ID", "ICD9_CODE"))
    codes: dict[str, list[str]] = {}
    for admission_id, code in zip(table["HADM_ID"], table["ICD9_CODE"], strict=True):
        if code:
            codes_of_admission = codes.setdefault(_normalize_admission_id(admission_id), [])
            codes_of_admission.append(f"{code[:3]}.{code[3:]}")
    return codes


def _normalize_admission_id(admission_id: str) -> str:
    """Remove the ".0" that some exports append to the number."""
    return admission_id.removesuffix(".0")


def _label_notes(texts: Iterable[str], code_lists: Iterable[list[str]], dataset: str) -> list[Row]:
    """Build one row per note, and drop notes without a label.

    Args:
        texts: the notes.
        code_lists: ICD-9 codes for each note.
        dataset: "diabetes" or "anemia".
    """
    compute_label = _compute_diabetes_label if dataset == "diabetes" else _compute_anemia_label
    rows = []
    for text, codes in zip(texts, code_lists, strict=True):
        label = compute_label(codes)
        if label is not None:
            words = _DEIDENTIFIED.sub(" DE ", text).split()
            rows.append({"text": " ".join(words), "label": label})
    return rows


def _compute_diabetes_label(codes: list[str]) -> int | None:
    """Return 1 if any ICD-9 code stands for diabetes without complications (250.00), else 0."""
    return int(any(code.startswith("250.00") for code in codes))


def _compute_anemia_label(codes: list[str]) -> int | None:
    """Return 1 for acute anemia (285.1), 0 for chronic anemia (285.2), None for both or neither."""
    is_acute = any(code.startswith("285.1") for code in codes)
    is_chronic = any(code.startswith("285.2") for code in codes)
    return None if is_acute == is_chronic else int(is_acute)


def _split_anemia(rows: list[Row]) -> dict[str, list[Row]]:
    """Split the anemia notes at random, with a fifth of each class for testing."""
    return split_train_test(rows, test_share=0.2, seed=12939)


def _read_csv(path: Path, columns: tuple[str, ...]) -> "pd.DataFrame":
    """Read some columns of a CSV file as strings, with "" for empty cells."""
    import pandas as pd

    return pd.concat(_iterate_csv_chunks(path, columns))


def _iterate_csv_chunks(path: Path, columns: tuple[str, ...]) -> "Iterable[pd.DataFrame]":
    """Iterate over a CSV file in parts of ``ROWS_PER_CHUNK`` rows, see :func:`_read_csv`."""
    import pandas as pd

    present = pd.read_csv(path, nrows=0).columns
    if not set(columns) <= set(present):
        raise AttnProbeError(
            f"{path}: expected the columns {', '.join(columns)}, got {', '.join(present)}; download "
            "the file again"
        )
    return pd.read_csv(
        path, usecols=list(columns), dtype=str, keep_default_na=False, chunksize=ROWS_PER_CHUNK
    )


# --- All data sets -------------------------------------------------------------------------------

READERS = {
    **dict.fromkeys(BABI_FILES, read_babi),
    **dict.fromkeys(ERASER_FOLDERS, read_eraser),
    "adr": read_tables,
    "anemia": read_mimic,
    "cnn": read_cnn,
    "diabetes": read_mimic,
    "multinli": read_nli,
    "snli": read_nli,
}
"""Function that reads a data set from a folder, by the data set's name."""


def convert_dataset(name: str, folder: str | Path, output_dir: str | Path) -> None:
    """Convert a data set from its authors' files, and save it as a ``DatasetDict``.

    Args:
        name: the data set's name, a key in ``READERS``.
        folder: the folder with the authors' files.
        output_dir: the folder to write; commands read it as ``--dataset name=output_dir``.

    Raises:
        AttnProbeError: if the name is unknown, or a file is missing or malformed.
    """
    import datasets

    if name not in READERS:
        raise AttnProbeError(f"expected one of {', '.join(READERS)} as data set, got {name!r}")
    content = READERS[name](Path(folder), name)
    if content is None:
        raise AttnProbeError(
            f"expected the files of {name} in {folder}, found {_format_file_names(Path(folder))}; "
            f"`attnprobe datasets {name}` lists the files to provide"
        )
    dataset = datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows) for split, rows in content.splits.items()}
    )
    if content.classes is not None:
        dataset = dataset.cast_column("label", datasets.ClassLabel(names=list(content.classes)))
    dataset.save_to_disk(output_dir)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    try:
        convert_dataset(*sys.argv[1:])
    except AttnProbeError as error:
        raise SystemExit(f"authors_files: {error}") from None
