"""The commands' data arguments: labelled texts, or passages with questions.

Modules that read data are imported inside the methods that need them. A command can thus print its
help without importing `datasets`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import Options, option


if TYPE_CHECKING:
    import datasets

    from hf_attnprobe.data.examples import OpenedSplit


LOADING_FIELDS = (
    "dataset_config",
    "text_column",
    "text_pair_column",
    "instance_column",
    "label_column",
    "labels",
    "holdout",
    "encoding",
)
"""Fields of :class:`Data` that are passed to :func:`load_examples` as keyword arguments."""


@dataclass(frozen=True)
class Data(Options):
    """A data set, its columns, and the number of texts to use.

    Every function that takes a data set accepts this class. If it is given a name, a folder, a Hub
    id or examples in memory instead, it uses ``Data(dataset)``.

    Example::

        from hf_attnprobe import Data

        data = Data([{"text": "a fine film", "label": "pos"}], test_limit=200)
        data.load_examples()[0]["text"]  # 'a fine film'
    """

    dataset: Any = option(
        help=(
            "data set: a name (sst, imdb, agnews, …), a name with a folder of its files "
            "(sst=FOLDER), a Hub id, a folder that datasets.load_dataset can read, or, for testing only, a file (csv, tsv, json, jsonl, "
            "parquet)"
        )
    )
    dataset_config: str | None = option(
        None, "configuration of the data set, if it has several", basic=False
    )
    text_column: str | Sequence[str] | None = option(
        None,
        "column with the texts; several columns are joined by a space "
        "(default: a usual pair such as premise and hypothesis, else text or sentence)",
        metavar="COLUMN",
    )
    text_pair_column: str | None = option(
        None,
        "column with the second texts, which the tokenizer pairs with the first ones "
        "(default: that of a usual pair)",
        metavar="COLUMN",
    )
    instance_column: str | None = option(
        None,
        "for data that are not texts: column with bags of instances, which are matrices, lists of "
        "integers, or paths of .npy, .safetensors or .h5 files (default: features or items, if "
        "there are no texts)",
        metavar="COLUMN",
        basic=False,
    )
    unit: str | None = option(
        None,
        "name of one instance in reports, such as patch, visit or item (default: instance)",
        metavar="NAME",
        basic=False,
    )
    label_column: str | Sequence[str] | None = option(
        None,
        "column with the labels, or several columns of 0 and 1, one per label (default: label)",
        metavar="COLUMN",
    )
    labels: Sequence[str] | None = option(
        None,
        "the model's names of the data's labels, such as bad=neg good=pos or 1=neg 5=pos; write "
        "nothing after = to treat the texts of a label as unlabelled",
        metavar="DATA=MODEL",
    )
    holdout: float | None = option(
        None,
        "share of a single file or split to use for testing; the same share is used for validation, "
        "and the choice of texts is always the same",
        at_least=0.01,
        at_most=0.4,
        metavar="SHARE",
    )
    encoding: str | None = option(
        None,
        "encoding of CSV, TSV, JSON and text files, such as latin-1 or cp1252 (default: UTF-8, or the "
        "one that a file's byte order mark announces, as in Excel's UTF-16)",
        basic=False,
    )
    split: str = option("test", "split to test on")
    test_limit: int | None = option(
        None,
        "number of texts to test on; the choice is always the same (default: all)",
        at_least=1,
    )
    train_limit: int | None = option(
        None,
        "number of texts to train on, balanced over the classes (default: all)",
        at_least=1,
    )

    def load_examples(self, *, limit: int | None = None, seed: int = 0) -> "datasets.Dataset":
        """Load the texts of the split that is tested (field ``split``).

        Args:
            limit: number of rows to sample; at least 1.
            seed: random seed for drawing a validation split, if the data set has none.

        Returns:
            The rows, see :func:`~hf_attnprobe.data.examples.load_examples`.

        Raises:
            AttnProbeError: if the data cannot be read.
        """
        from hf_attnprobe.data.examples import load_examples

        options = self._get_reading_options()
        return load_examples(self.dataset, self.split, **options, limit=limit, seed=seed)

    def check_named_columns(self) -> None:
        """Raise AttnProbeError if the data set or a column that the user named does not exist.

        Only the column names are read.
        """
        from hf_attnprobe.data.columns import list_columns
        from hf_attnprobe.data.examples import check_named_columns

        requested = {
            f"--{field.name.replace('_', '-')}": list_columns(getattr(self, field.name))
            for field in fields(self)
            if field.name.endswith("_column")
        }
        check_named_columns(
            self.dataset,
            self.split,
            requested,
            dataset_config=self.dataset_config,
            encoding=self.encoding,
        )

    def open_split(self, *, seed: int = 0) -> "OpenedSplit":
        """Open the split that is tested, without reading its texts.

        Args:
            seed: random seed for drawing a validation split, if the data set has none.

        Returns:
            The opened split.

        Raises:
            AttnProbeError: if the split does not exist.
        """
        from hf_attnprobe.data.examples import open_split

        return open_split(self.dataset, self.split, **self._get_reading_options(), seed=seed)

    def load_splits(self, *, seed: int = 0) -> "dict[str, datasets.Dataset]":
        """Load all splits for a training, with at most ``train_limit`` training texts.

        Args:
            seed: random seed for drawing a validation split, if the data set has none.

        Returns:
            The splits by name, see :func:`~hf_attnprobe.data.examples.load_splits`.

        Raises:
            AttnProbeError: if the data cannot be read or has no validation split.
        """
        from hf_attnprobe.data.examples import load_splits

        options = self._get_reading_options()
        return load_splits(self.dataset, **options, limit=self.train_limit, seed=seed)

    def _get_reading_options(self) -> dict[str, Any]:
        """Return the fields in ``LOADING_FIELDS`` as keyword arguments for ``load_examples``."""
        return {name: getattr(self, name) for name in LOADING_FIELDS}


def make_data(dataset: Any) -> Data:
    """Return a data set as :class:`Data`. It can be a name, a path, an object in memory, or `Data`."""
    return dataset if isinstance(dataset, Data) else Data(dataset)


# --- Passages with questions, and the answers of a language model --------------------------------

DEFAULT_COLUMNS = {
    "context": ("context", "passage", "document"),
    "question": ("question", "query"),
    "prompt": ("prompt",),
    "turns": ("messages", "turns"),
    "answer": ("answer", "answers"),
    "other": ("other",),
    "expected": ("expected",),
}
"""Maps each part of an example to the usual names of its column.

An example has a passage (`context`) and a question about it. Instead of a question, it can have a
complete prompt or a conversation (`turns`). `other` is a second answer, and `expected` is a text
that correct answers contain.
"""
QUESTION_FIELDS = ("question", "prompt", "turns")
"""Fields that can contain the question about a passage.

A data set has exactly one of them: questions, complete prompts, or conversations (`turns`).
"""
CLASSIFICATION_FIELDS = (
    "text_column",
    "text_pair_column",
    "instance_column",
    "unit",
    "label_column",
    "labels",
    "train_limit",
)
"""Fields of :class:`Data` that are only valid for classification.

Setting one of them in :class:`Answers` raises an error.
"""


@dataclass(frozen=True)
class Answers(Data):
    """Passages, a question about each, and optionally the answers of a language model.

    An audit tests whether the model's attention to a passage's units, such as its sentences,
    explains the answer. Each row has a passage (``context``: one text or several) and one of three
    columns that pose the question:

    - ``question``: a question. Passage and question become one user turn of the tokenizer's chat
      template, or a plain prompt if the tokenizer has no template.
    - ``prompt``: a complete prompt, which contains the passage and is used unchanged.
    - ``turns``: a conversation as a list of ``{"role": …, "content": …}``, which contains the
      passage and is rendered with the chat template. With ``units="turn"`` there is no passage, and
      the units are all turns except the last one.

    If a row has an ``answer``, the audit explains the model's probability for this answer. The
    answer is appended to a ``prompt`` exactly as written, so it may need a leading space. Without
    an ``answer``, the model generates one greedily.

    Example::

        from hf_attnprobe import Answers

        rows = [{"context": "Ann is in Rome. Bo is in Oslo.", "question": "Where is Ann?"}]
        data = Answers(rows, units="sentence")
        data.load_examples()[0]["question"]  # 'Where is Ann?'
    """

    units: Literal["sentence", "token", "word", "passage", "turn"] = option(
        "sentence",
        "parts of a passage to compare",
    )
    context_column: str | None = option(
        None, "column with the passages (default: context)", metavar="COLUMN"
    )
    question_column: str | None = option(
        None,
        "column with the questions (default: question or query)",
        metavar="COLUMN",
    )
    prompt_column: str | None = option(
        None,
        "column with complete prompts that contain the passages (default: prompt)",
        metavar="COLUMN",
        basic=False,
    )
    turns_column: str | None = option(
        None,
        "column with conversations, lists of role and content (default: messages or turns)",
        metavar="COLUMN",
        basic=False,
    )
    answer_column: str | None = option(
        None,
        "column with the answers to explain (default: answer or answers; if there is no such "
        "column, the model generates an answer greedily)",
        metavar="COLUMN",
        basic=False,
    )
    other_column: str | None = option(
        None,
        "column with a second answer, with which the answer is contrasted (default: other)",
        metavar="COLUMN",
        basic=False,
    )
    expected_column: str | None = option(
        None,
        "column with the text that a correct answer must contain; it is used to count correct "
        "answers (default: expected)",
        metavar="COLUMN",
        basic=False,
    )
    template: str | None = option(
        None,
        "text with {context} and {question} in it, used as the user turn, or as the complete prompt "
        "if the tokenizer has no chat template",
        metavar="TEXT",
        basic=False,
    )
    max_new_tokens: int = option(
        32,
        "maximum length of a generated answer, in tokens",
        at_least=1,
        at_most=4096,
        basic=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in CLASSIFICATION_FIELDS:
            if getattr(self, name) is not None:
                raise AttnProbeError(
                    f"{name} is not an option for passages with questions, got "
                    f"{getattr(self, name)!r}. Use context_column, question_column and "
                    "answer_column instead."
                )
        if self.template is None:
            return
        has_one_context = self.template.count("{context}") == 1
        if not has_one_context or "{question}" not in self.template:
            raise AttnProbeError(
                "template must contain {question}, and {context} exactly once, got "
                f"{self.template!r}"
            )

    def load_examples(self, *, limit: int | None = None, seed: int = 0) -> "datasets.Dataset":
        """Load the split to test on, without rendering prompts or generating answers.

        Args:
            limit: number of rows to sample; at least 1.
            seed: random seed for drawing a validation split, if the data set has none.

        Returns:
            Rows with ``example_id``, ``text`` (the passage), ``label`` (always −1) and, if the data
            has them, ``passages`` (list of texts that form the passage), ``listed`` (whether the
            source has a list), ``question``, ``prompt``, ``turns``, ``answer``, ``other`` and
            ``expected``.

        Raises:
            AttnProbeError: if the data set or a column does not exist, no column or several columns
                pose the question, or a cell is not a text.
        """
        import datasets

        from hf_attnprobe.data.columns import read_column
        from hf_attnprobe.data.examples import read_example_ids
        from hf_attnprobe.statistics.sampling import draw_sample

        opened = self.open_split(seed=seed)
        columns = self.find_columns(opened.source.column_names)
        ids = read_example_ids(opened.source)
        rows = draw_sample(list(opened.rows), [ids[row] for row in opened.rows], limit)
        cells = {name: read_column(opened.source, column) for name, column in columns.items()}
        values = {}
        for name, column in columns.items():
            read_cell = _READER_BY_FIELD[name]
            values[name] = [read_cell(cells[name][row], column, row) for row in rows]
        table: dict[str, Any] = {
            "example_id": [ids[row] for row in rows],
            "text": [""] * len(rows),
            "label": [-1] * len(rows),
            **values,
        }
        if "context" in values:
            contexts = table.pop("context")
            table["text"] = ["\n\n".join(passages) for passages in contexts]
            table["passages"] = contexts
            table["listed"] = [isinstance(cells["context"][row], list) for row in rows]
        examples = datasets.Dataset.from_dict(table)
        examples.info.description = ", ".join(columns.values())
        return examples

    def load_splits(self, *, seed: int = 0) -> "dict[str, datasets.Dataset]":
        """Raise AttnProbeError, since classifiers are not trained on answers."""
        raise AttnProbeError(
            "a classifier cannot be trained on Answers. Use Data(…) with labelled texts."
        )

    def _get_reading_options(self) -> dict[str, Any]:
        """Return the same options as :class:`Data`, and the names of columns to read as strings."""
        requested_columns = [getattr(self, f"{name}_column") for name in DEFAULT_COLUMNS]
        string_columns = [*filter(None, requested_columns), *chain(*DEFAULT_COLUMNS.values())]
        return super()._get_reading_options() | {"string_columns": string_columns}

    def find_columns(self, present: Sequence[str]) -> dict[str, str]:
        """Find the columns with passages, questions, answers and further parts.

        Args:
            present: all column names in the source.

        Returns:
            Column names by the part of a row that they contain, such as ``context``.

        Raises:
            AttnProbeError: if a column does not exist, no column or several columns pose the
                question, or there is no column with passages.
        """
        from hf_attnprobe.data.columns import check_column_exists

        requested = {name: getattr(self, f"{name}_column") for name in DEFAULT_COLUMNS}
        columns: dict[str, str] = {}
        for name, usual_columns in DEFAULT_COLUMNS.items():
            if requested[name] is not None:
                check_column_exists(present, requested[name], f"--{name}-column")
            usual_column = next((column for column in usual_columns if column in present), None)
            column = requested[name] or usual_column
            if column is not None:
                columns[name] = column

        # A column that the user named takes precedence over columns with usual names.
        question_fields = [name for name in QUESTION_FIELDS if requested[name]]
        if not question_fields:
            question_fields = [name for name in QUESTION_FIELDS if name in columns]
        if len(question_fields) != 1:
            candidates = " and ".join(columns[name] for name in question_fields)
            raise AttnProbeError(
                "expected one column with questions, prompts or conversations, got "
                f"{candidates or 'none'} among the columns {', '.join(present)}. Choose one with "
                "--question-column, --prompt-column or --turns-column."
            )
        if self.units == "turn":
            if question_fields != ["turns"]:
                raise AttnProbeError(
                    "--units 'turn' needs a column with conversations, but the chosen column "
                    f"{columns[question_fields[0]]!r} has other content. Choose the column of the "
                    "conversations with --turns-column."
                )
            columns.pop("context", None)
        elif "context" not in columns:
            raise AttnProbeError(
                "found no column with passages. Choose one of the columns "
                f"{', '.join(present)} with --context-column."
            )
        unused_fields = set(QUESTION_FIELDS) - set(question_fields)
        return {name: column for name, column in columns.items() if name not in unused_fields}


def make_answers(data: Data) -> Answers:
    """Convert :class:`Data` for a language model to :class:`Answers`, with default columns."""
    if isinstance(data, Answers):
        return data
    return Answers(**{field.name: getattr(data, field.name) for field in fields(Data)})


def _read_passages(cell: Any, column: str, row: int) -> list[str]:
    """Return the passages in a cell as a list. The cell contains one text or a list of texts."""
    passages = cell if isinstance(cell, list) else [cell]
    are_texts = all(isinstance(passage, str) and passage.strip() for passage in passages)
    if not passages or not are_texts:
        raise _make_invalid_cell_error(
            column, row, cell, expected="a passage or a list of passages"
        )
    return passages


def _read_text(cell: Any, column: str, row: int) -> str:
    """Return the text in a cell, or raise AttnProbeError if the cell is blank or not a text."""
    if not isinstance(cell, str) or not cell.strip():
        raise _make_invalid_cell_error(column, row, cell, expected="a text")
    return cell


def _read_turns(cell: Any, column: str, row: int) -> list[dict[str, Any]]:
    """Return the turns of a conversation. Keys other than role and content are removed."""
    turns: list[dict[str, Any]] = []
    are_valid = isinstance(cell, list) and len(cell) > 0
    for turn in cell if are_valid else []:
        role = turn.get("role") if isinstance(turn, dict) else None
        content = turn.get("content") if isinstance(turn, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            are_valid = False
        turns.append({"role": role, "content": content})
    if not are_valid:
        raise _make_invalid_cell_error(
            column, row, cell, expected="a list of turns with 'role' and 'content'"
        )
    return turns


def _read_answer(cell: Any, column: str, row: int) -> str | None:
    """Return the first answer in a cell, or None if the cell is empty."""
    if isinstance(cell, dict):
        cell = cell.get("text")
    if isinstance(cell, list):
        cell = cell[0] if cell else None
    is_empty = cell is None or cell == ""
    return None if is_empty else _read_text(cell, column, row)


_READER_BY_FIELD = {
    "context": _read_passages,
    "question": _read_text,
    "prompt": _read_text,
    "turns": _read_turns,
    "answer": _read_answer,
    "other": _read_answer,
    "expected": _read_answer,
}
"""Maps each field of an example to the function that reads a cell of its column."""


def _make_invalid_cell_error(column: str, row: int, cell: Any, *, expected: str) -> AttnProbeError:
    """Return the error for a table cell that does not contain what its column must contain."""
    is_blank = cell in (None, "", []) or not str(cell).strip()
    content = "an empty cell" if is_blank else f"a cell of type {type(cell).__name__}"
    return AttnProbeError(
        f"column {column!r} must contain {expected} in every row, but row {row} has {content}. "
        "Correct or drop this row."
    )
