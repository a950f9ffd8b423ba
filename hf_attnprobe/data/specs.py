"""The data arguments that every verb takes: texts with labels, or passages with questions.

What reads data is imported when data are read, so that a command knows its flags without it.
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


COLUMNS = (
    "dataset_config",
    "text_column",
    "text_pair_column",
    "label_column",
    "labels",
    "holdout",
)
"""Fields of :class:`Data` that say how its source is read."""


@dataclass(frozen=True)
class Data(Options):
    """A data set, its columns, and how much of it is used.

    Verbs take it wherever they take a data set:
    ``audit(model, Data("sst", test_limit=200))``.
    A name, a folder, a Hub id or examples in memory alone stand for ``Data(dataset)``.
    """

    dataset: Any = option(
        help=(
            "data set: a name (sst, imdb, agnews, …), a Hub id, a folder that "
            "datasets.load_dataset reads, or, to test on, a file (csv, tsv, json, jsonl, parquet)"
        )
    )
    dataset_config: str | None = option(
        None, "configuration of a data set that has several", daily=False
    )
    text_column: str | Sequence[str] | None = option(
        None,
        "column with the texts; several columns are joined by a space into one text "
        "(default: a known pair such as premise and hypothesis, else text or sentence)",
        metavar="COLUMN",
    )
    text_pair_column: str | None = option(
        None,
        "column with the second texts, which the tokenizer pairs with the first "
        "(default: that of a known pair)",
        metavar="COLUMN",
    )
    label_column: str | Sequence[str] | None = option(
        None,
        "column with the labels; several are one column of 0 and 1 per label (default: label)",
        metavar="COLUMN",
    )
    labels: Sequence[str] | None = option(
        None,
        "what the model calls the data's labels: bad=neg good=pos, or 1=neg 5=pos; with nothing "
        "behind =, texts of that label count as not labelled",
        metavar="DATA=MODEL",
    )
    holdout: float | None = option(
        None,
        "share of a single file or split that is set apart to test on, and as much again for "
        "validation; always the same texts",
        at_least=0.01,
        at_most=0.4,
        metavar="SHARE",
    )
    split: str = option("test", "split to test on")
    test_limit: int | None = option(
        None,
        "number of texts to test on, always the same ones (default: all)",
        at_least=1,
    )
    train_limit: int | None = option(
        None,
        "number of texts to train on, spread evenly over the classes (default: all)",
        at_least=1,
    )

    def examples(self, *, limit: int | None = None, seed: int = 0) -> "datasets.Dataset":
        """The tested split, see :func:`~hf_attnprobe.data.examples.load_examples`.

        Args:
            limit: number of rows to keep; at least 1.
            seed: chooses the rows of a validation split that has to be set apart.
        """
        from hf_attnprobe.data.examples import load_examples

        return load_examples(self.dataset, self.split, **self._columns(), limit=limit, seed=seed)

    def opened(self, *, seed: int = 0) -> "OpenedSplit":
        """The tested split before it is read; ``seed`` as :meth:`examples`."""
        from hf_attnprobe.data.examples import open_split

        return open_split(self.dataset, self.split, **self._columns(), seed=seed)

    def splits(self, *, seed: int = 0) -> "dict[str, datasets.Dataset]":
        """All splits, see :func:`~hf_attnprobe.data.examples.load_splits`.

        ``train_limit`` bounds the training texts.
        """
        from hf_attnprobe.data.examples import load_splits

        return load_splits(self.dataset, **self._columns(), limit=self.train_limit, seed=seed)

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COLUMNS}


def as_data(dataset: Any) -> Data:
    """The data given to a verb, as :class:`Data`."""
    return dataset if isinstance(dataset, Data) else Data(dataset)


# --- Passages with questions, and the answers of a language model to them ---

USUAL = {
    "context": ("context", "passage", "document"),
    "question": ("question", "query"),
    "prompt": ("prompt",),
    "turns": ("messages", "turns"),
    "answer": ("answer", "answers"),
    "other": ("other",),
    "expected": ("expected",),
}
"""What a row may have, each with the names under which it is looked for."""
ASKED_BY = ("question", "prompt", "turns")
"""What may ask: of these a row has one."""
FOREIGN = (
    "text_column",
    "text_pair_column",
    "label_column",
    "labels",
    "train_limit",
)
"""Fields of :class:`Data` that say nothing of questions."""


@dataclass(frozen=True)
class Answers(Data):
    """Passages, a question about each, and the answers of a language model.

    ``audit(model, Answers(rows, units="sentence"), tokenizer=tokenizer)`` asks whether the
    model's attention to the units of a passage explains what it answers. A row has a
    passage (``context``, a text or a list of texts) and what asks about it:

    - ``question``: both are put into one user turn of the tokenizer's chat template, or,
      where it has none, into a plain prompt;
    - ``prompt``: the whole prompt, used as it is; the passage is found in it;
    - ``turns``: a conversation as lists of ``{"role": …, "content": …}``, rendered by the
      chat template; the passage is found in it. With ``units="turn"`` there is no
      passage: the units are the turns before the last one.

    An ``answer`` is scored as it is given (behind a ``prompt`` exactly as it is written, with
    the space that it begins with); without one the model's greedy answer is taken.
    """

    units: Literal["sentence", "token", "word", "passage", "turn"] = option(
        "sentence",
        "parts of a passage that are compared",
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
        "column with whole prompts, in which the passages are found (default: prompt)",
        metavar="COLUMN",
        daily=False,
    )
    turns_column: str | None = option(
        None,
        "column with conversations, lists of role and content (default: messages or turns)",
        metavar="COLUMN",
        daily=False,
    )
    answer_column: str | None = option(
        None,
        "column with the answers to be explained (default: answer or answers, where there is "
        "one; else what the model says, greedily)",
        metavar="COLUMN",
        daily=False,
    )
    other_column: str | None = option(
        None,
        "column with another answer each, to which the answer is contrasted (default: other)",
        metavar="COLUMN",
        daily=False,
    )
    expected_column: str | None = option(
        None,
        "column with what a right answer contains, by which the right ones are counted (default: "
        "expected)",
        metavar="COLUMN",
        daily=False,
    )
    template: str | None = option(
        None,
        "text of the user's turn, or of the whole prompt without a chat template, with "
        "{context} and {question} in it",
        metavar="TEXT",
        daily=False,
    )
    max_new_tokens: int = option(
        32,
        "longest answer that the model generates, in tokens",
        at_least=1,
        at_most=4096,
        daily=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in FOREIGN:
            if getattr(self, name) is not None:
                raise AttnProbeError(
                    f"expected no {name} with passages and questions, got "
                    f"{getattr(self, name)!r}; name columns by context_column, question_column "
                    "and answer_column"
                )
        said = self.template
        if said is not None and (said.count("{context}") != 1 or "{question}" not in said):
            raise AttnProbeError(
                f"expected {{context}} once, and {{question}}, in the template, got {said!r}"
            )

    def examples(self, *, limit: int | None = None, seed: int = 0) -> "datasets.Dataset":
        """The tested split as it is asked: nothing is rendered and nothing generated.

        Returns:
            Rows with ``example_id``; ``text``, the passage; what there is of ``passages``
            (those of a list), ``listed`` (whether it is one), ``question``, ``prompt``, ``turns``, ``answer``,
            ``other`` and ``expected``; and ``label``, −1, since answers are no labels.

        Raises:
            AttnProbeError: no such data set or column, nothing that asks or several things
                that do, or a cell that is no text.
        """
        import datasets

        from hf_attnprobe.data.columns import column_of
        from hf_attnprobe.data.examples import example_ids
        from hf_attnprobe.statistics.sampling import sample

        opened = self.opened(seed=seed)
        columns = self.columns(opened.source.column_names)
        ids = example_ids(opened.source)
        rows = sample(list(opened.rows), [ids[row] for row in opened.rows], limit)
        cells = {name: column_of(opened.source, column) for name, column in columns.items()}
        read = {
            name: [_READERS[name](cells[name][k], columns[name], k) for k in rows]
            for name in columns
        }
        table: dict[str, Any] = {
            "example_id": [ids[row] for row in rows],
            "text": [""] * len(rows),
            "label": [-1] * len(rows),
            **read,
        }
        if "context" in read:
            contexts = table.pop("context")
            table["text"] = ["\n\n".join(passages) for passages in contexts]
            table["passages"] = contexts
            table["listed"] = [isinstance(cells["context"][row], list) for row in rows]
        examples = datasets.Dataset.from_dict(table)
        examples.info.description = ", ".join(columns.values())
        return examples

    def splits(self, *, seed: int = 0) -> "dict[str, datasets.Dataset]":
        """Refused: nothing is trained on answers."""
        raise AttnProbeError("expected texts with labels to train on, got Answers; give Data(…)")

    def _columns(self) -> dict[str, Any]:
        """What opens the source: all columns are texts, years among them."""
        named = [getattr(self, f"{name}_column") for name in USUAL]
        return super()._columns() | {"as_text": [*filter(None, named), *chain(*USUAL.values())]}

    def columns(self, present: Sequence[str]) -> dict[str, str]:
        """The columns that are read, by what they hold.

        Args:
            present: all columns of the source.

        Raises:
            AttnProbeError: no such column; nothing that asks, or several things that do;
                no passage.
        """
        from hf_attnprobe.data.columns import check_present

        given = {name: getattr(self, f"{name}_column") for name in USUAL}
        found: dict[str, str] = {}
        for name, usual in USUAL.items():
            if given[name] is not None:
                check_present(present, given[name], f"--{name}-column")
            known = (one for one in usual if one in present)
            column = given[name] or next(known, None)
            if column is not None:
                found[name] = column
        named = [name for name in ASKED_BY if given[name]]
        asking = named or [name for name in ASKED_BY if name in found]
        if len(asking) != 1:
            several = " and ".join(found[name] for name in asking)
            raise AttnProbeError(
                "expected one column that asks about the passages, a question, a prompt or "
                f"turns, got {several or 'none of them'} among {', '.join(present)}; name it "
                "with --question-column, --prompt-column or --turns-column"
            )
        if self.units == "turn":
            if asking != ["turns"]:
                raise AttnProbeError(
                    'expected turns for units="turn", got a '
                    f"{asking[0]} per row; name their column with --turns-column"
                )
            found.pop("context", None)
        elif "context" not in found:
            raise AttnProbeError(
                "expected a column with the passages, none of "
                f"{', '.join(USUAL['context'])} is among {', '.join(present)}; name it with "
                "--context-column"
            )
        left_out = {*ASKED_BY} - {*asking}
        return {name: column for name, column in found.items() if name not in left_out}


def as_answers(data: Data) -> Answers:
    """The data given to a language model; plain data has its columns under the usual names."""
    if isinstance(data, Answers):
        return data
    return Answers(**{field.name: getattr(data, field.name) for field in fields(Data)})


def _passages(cell: Any, column: str, row: int) -> list[str]:
    """A passage, or those of a list; blank ones are refused."""
    passages = cell if isinstance(cell, list) else [cell]
    if not passages or not all(isinstance(one, str) and one.strip() for one in passages):
        raise _unreadable(column, row, cell, "a passage, or a list of passages")
    return passages


def _text(cell: Any, column: str, row: int) -> str:
    if not isinstance(cell, str) or not cell.strip():
        raise _unreadable(column, row, cell, "a text")
    return cell


def _turns(cell: Any, column: str, row: int) -> list[dict[str, Any]]:
    """Role and content of each turn; other fields of a turn are left out."""
    turns = cell if isinstance(cell, list) else []
    said = [
        {key: turn.get(key) for key in ("role", "content")}
        if isinstance(turn, dict)
        else {"role": None}
        for turn in turns
    ]
    if not said or not all(isinstance(value, str) for turn in said for value in turn.values()):
        expected = "turns, each with a role and its content in words"
        raise _unreadable(column, row, cell, expected)
    return said


def _answer(cell: Any, column: str, row: int) -> str | None:
    """An answer, None where there is none; of several, as SQuAD has them, the first."""
    if isinstance(cell, dict):
        cell = cell.get("text")
    if isinstance(cell, list):
        cell = cell[0] if cell else None
    is_gap = cell is None or cell == ""  # of a table
    return None if is_gap else _text(cell, column, row)


_READERS = {
    "context": _passages,
    "question": _text,
    "prompt": _text,
    "turns": _turns,
    "answer": _answer,
    "other": _answer,
    "expected": _answer,
}


def _unreadable(column: str, row: int, cell: Any, expected: str) -> AttnProbeError:
    got = "an empty one" if cell in (None, "", []) or not str(cell).strip() else type(cell).__name__
    return AttnProbeError(
        f"expected {expected} in every row of column {column!r}, row {row} has {got}; mend it or "
        "leave the row out"
    )
