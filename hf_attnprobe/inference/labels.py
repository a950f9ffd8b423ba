"""Converts a data set's labels to the numbers of a model's outcomes.

Of one class a number; of several labels a 0 or 1 for each; of a number the number; of
tags and answers what the labelled words and characters are among the tokens.
"""

import logging
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import list_label_names, get_class_names
from hf_attnprobe.functional.predictions import Prediction


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

Label = int | float | list[int]
"""One number, or one for every part of a prediction."""
Offsets = Sequence[Sequence[tuple[int, int]]]
"""Of every text, the first character and the one behind the last, of every token."""
NUMBERED_NAME = re.compile(r"(not )?(label_)?\d+")
"""A name that says no more than a number, "not LABEL_0" for the other side of a logit."""
OFFSET_COLUMNS = {
    "tags": ("word_labels",),
    "span": ("answer_start", "answer_end"),
}
"""Columns that say where labels are, by kind of prediction."""


def needs_offsets(prediction: Prediction, examples: "datasets.Dataset") -> bool:
    """Whether labels are positions in the text."""
    columns = OFFSET_COLUMNS.get(prediction.kind, ())
    return bool(columns) and set(columns) <= set(examples.column_names)


def convert_labels(
    prediction: Prediction,
    examples: "datasets.Dataset",
    tokenizer: PreTrainedTokenizerBase,
    inputs: dict[str, Any],
    offsets: Offsets | None,
) -> list[Label]:
    """The label of every text.

    Of tags, ``inputs`` get ``labelled``: 1 at the first token of every labelled word.

    Args:
        prediction: of the model.
        examples: the texts.
        tokenizer: of the model.
        inputs: of the texts, by name, lists of one number per token.
        offsets: of their tokens; None where no label names a place.

    Raises:
        AttnProbeError: labels of another kind than the prediction, or unknown ones.
    """
    if offsets is None and needs_offsets(prediction, examples):
        raise AttnProbeError(
            "expected a fast tokenizer for labels of words and characters, got "
            f"{type(tokenizer).__name__}; load the model with its fast tokenizer"
        )
    if prediction.kind == "answer":
        raise AttnProbeError(
            "expected passages with questions for a language model, got texts; give Answers"
        )
    kinds: Mapping[str, Callable[[], Sequence[Label]]] = {
        "classes": lambda: convert_class_labels(prediction.outcomes, examples),
        "choice": lambda: _convert_choice_labels(prediction, examples),
        "labels": lambda: _convert_label_sets(prediction, examples),
        "number": lambda: _convert_numbers(prediction, examples),
        "words": lambda: _convert_masked_words(examples, tokenizer, inputs),
        "tags": lambda: _convert_tags(prediction, examples, inputs, offsets),
        "span": lambda: _convert_answer_spans(prediction, examples, inputs, offsets),
    }
    return [*kinds[prediction.kind]()]


def convert_class_labels(classes: Sequence[str], examples: "datasets.Dataset") -> list[int]:
    """The examples' labels as the model numbers its classes, -1 for none.

    Raises:
        AttnProbeError: a label that the model does not know, or has two classes for.
    """
    labels = read_column(examples, "label")
    has_names = hasattr(examples.features["label"], "names")
    expected, said = "one class per text", "a class"
    if len(classes) == 2 and classes[0] == f"not {classes[1]}":  # one logit
        expected = "0 or 1"
        said = "a probability, or with --predicts number a number"
    _check_label_types(labels, int, expected, said)
    names = list_label_names(examples)
    numbers = _match_names(classes, names, has_names)
    known = {-1: -1}
    for label in sorted({*labels} - {-1}):
        number = numbers[label]
        if number is None:
            raise AttnProbeError(
                f"the data has label {names[label]!r} ({label}), the model knows "
                f"{len(classes)} labels: {', '.join(classes)}; audit it on data with its own "
                "labels, or say --labels DATA=MODEL"
            )
        known[label] = number
    return [known[label] for label in labels]


def _match_names(classes: Sequence[str], names: Sequence[str], has_names: bool) -> list[int | None]:
    """Returns for each class name of the data the model's number; None where it has none.

    Labels without names are the model's numbers. Names are compared without case and
    blanks around; where none is the same and either side's are nothing but numbers, such as
    LABEL_0, the numbers count.

    Raises:
        AttnProbeError: two of the model's classes have the name of a label.
    """
    if not has_names:
        return [k if k < len(classes) else None for k in range(len(names))]
    known = [name.strip().casefold() for name in classes]
    given = [name.strip().casefold() for name in names]
    _check_unique_names(classes, known, given)
    numbers = [known.index(name) if name in known else None for name in given]
    if any(number is not None for number in numbers):
        return numbers

    # No name is the same: where either side's are nothing but numbers, those count.
    if all(map(NUMBERED_NAME.fullmatch, given)):
        said = [int(name.rpartition("_")[2]) for name in given]
        return [k if k < len(known) else None for k in said]
    if len(given) == len(known) and all(map(NUMBERED_NAME.fullmatch, known)):
        return [*range(len(known))]
    return numbers


def _check_unique_names(classes: Sequence[str], known: Sequence[str], given: Sequence[str]) -> None:
    twice = {name for name, count in Counter(known).items() if count > 1}
    if twice & set(given):
        alike = [repr(c) for c, name in zip(classes, known, strict=True) if name in twice]
        raise AttnProbeError(
            "expected classes of different names, to match the data's labels by, the model "
            f"has {', '.join(alike)}; rename them in its id2label, or give labels as its "
            "numbers"
        )


def _check_label_types(labels: Sequence[Any], kind: type, expected: str, predicts: str) -> None:
    """Checks that the labels are of the kind that the model predicts."""
    for row, label in enumerate(labels):
        if label is not None and not isinstance(label, kind):
            given = "several labels" if isinstance(label, list) else repr(label)
            raise AttnProbeError(
                f"the model predicts {predicts}: expected {expected} as label, row {row} "
                f"has {given}; audit it on data of its own task, or name another column "
                "with --label-column"
            )


def _check_no_text_labels(prediction: Prediction, examples: "datasets.Dataset", expected: str) -> None:
    """Checks that no label is about the whole text, for a model that predicts its parts."""
    labels = read_column(examples, "label")
    _check_label_types(labels, int, expected, prediction.name)
    row = next((row for row, label in enumerate(labels) if label >= 0), None)
    if row is not None:
        raise AttnProbeError(
            f"the model predicts {prediction.name}: expected {expected} or no labels, "
            f"row {row} has one label for the whole text; audit it on data of its own "
            "task, or leave the labels out"
        )


def _convert_choice_labels(prediction: Prediction, examples: "datasets.Dataset") -> list[int]:
    labels = read_column(examples, "label")
    _check_label_types(labels, int, "the number of the right choice", prediction.name)
    if "choices" not in examples.column_names:  # of each choice by itself
        return labels
    choices = read_column(examples, "choices")
    for row, (label, of_row) in enumerate(zip(labels, choices, strict=True)):
        if label >= len(of_row):
            raise AttnProbeError(
                f"expected as label the number of a choice, from 0 to {len(of_row) - 1}, "
                f"or -1 for none, row {row} has {label}; renumber it"
            )
    return labels


def _convert_label_sets(prediction: Prediction, examples: "datasets.Dataset") -> list[list[int]]:
    """0 or 1 per label; −1 for all of them where none is known."""
    labels = read_column(examples, "label")
    n_labels = len(prediction.parts)
    if all(isinstance(label, int) and label < 0 for label in labels):
        return [[-1] * n_labels for _ in labels]
    _check_label_types(labels, list, "a list of the labels that hold", prediction.name)
    names = get_class_names(examples.features["label"])
    given = names or [f"LABEL_{k}" for k in range(n_labels)]
    numbers = _match_names(prediction.parts, given, names is not None)
    # of a label that the data has names for, but not this one, nothing is known
    known = [k for k in numbers if k is not None]
    if not known:
        raise AttnProbeError(
            f"the data has labels {', '.join(given[:5])}, the model knows others: "
            f"{', '.join(prediction.parts)}; audit it on data with its own labels"
        )
    rows = []
    for row, label in enumerate(labels):
        hold = [-1] * n_labels
        for place in known if label is not None else ():
            hold[place] = 0
        for k in label or ():
            number = numbers[k] if k < len(numbers) else None
            if number is None:
                name = repr(names[k]) if names else k
                raise AttnProbeError(
                    f"row {row} has label {name}, the model knows {n_labels} labels: "
                    f"{', '.join(prediction.parts)}; audit it on data with its own labels"
                )
            hold[number] = 1
        rows.append(hold)
    return rows


def _convert_numbers(prediction: Prediction, examples: "datasets.Dataset") -> list[float]:
    """Labels as numbers; NaN where there is none."""
    labels = read_column(examples, "label")
    _check_label_types(labels, int | float, "a number", "a number")  # type: ignore[arg-type]
    if hasattr(examples.features["label"], "names"):
        names = ", ".join(list_label_names(examples)[:5])
        raise AttnProbeError(
            f"the model predicts a number: expected numbers as labels, got the classes "
            f"{names}; name another column with --label-column, or say --predicts "
            "probability"
        )
    are_ids = str(examples.features["label"].dtype).startswith("int")
    nothing = are_ids and all(label == -1 for label in labels)
    numbers = [math.nan if nothing or label is None else float(label) for label in labels]
    if not prediction.has_one_part and not all(map(math.isnan, numbers)):
        raise AttnProbeError(
            f"the model predicts {prediction.name}, whose labels are not read: expected "
            "none, got one number per text; leave the labels out, and give the unit with "
            "--scale"
        )
    return numbers


def compute_label_spread(examples: "datasets.Dataset") -> float | None:
    """Standard deviation of numeric labels; None where there are none, or all are equal."""
    if hasattr(examples.features["label"], "names"):
        return None
    labels = read_column(examples, "label")
    if not all(isinstance(label, int | float) for label in labels):
        return None
    known = [float(label) for label in labels if not math.isnan(label)]
    spread = statistics.pstdev(known) if len(known) > 1 else 0.0
    return spread or None


def _convert_masked_words(
    examples: "datasets.Dataset",
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Any],
) -> list[int]:
    """Token id of the masked word; −1 where there is none or it has several tokens."""
    labels = read_column(examples, "label")
    _check_label_types(labels, int, "one word per text", "a masked word")
    _check_masks(labels, tokenizer, inputs["input_ids"])
    if not hasattr(examples.features["label"], "names"):
        row = next((row for row, label in enumerate(labels) if label >= 0), None)
        if row is not None:
            raise AttnProbeError(
                "the model predicts a masked word: expected the word as label, row "
                f"{row} has the number {labels[row]}; write the word, or leave the "
                "labels out"
            )
        return labels
    ids = []
    for name in list_label_names(examples):
        tokens = tokenizer(f" {name}", add_special_tokens=False)["input_ids"]
        is_one = len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id
        ids.append(tokens[0] if is_one else -1)
    numbers = [ids[label] if label >= 0 else -1 for label in labels]
    n_lost = sum(ids[label] < 0 for label in labels if label >= 0)
    if n_lost:
        logger.warning(
            "of %d texts the label is no single token, they count as not labelled",
            n_lost,
        )
    return numbers


def _check_masks(
    labels: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Sequence[Sequence[int]],
) -> None:
    """Checks that every text has a mask token, and at most one if it has a label."""
    for row, (label, ids) in enumerate(zip(labels, input_ids, strict=True)):
        n_masks = list(ids).count(tokenizer.mask_token_id)
        if n_masks == 0:
            raise AttnProbeError(
                f"expected a mask token ({tokenizer.mask_token}) in every text, row {row} "
                "has none that is read; write it in place of the word to predict"
            )
        if n_masks > 1 and label >= 0:
            raise AttnProbeError(
                f"expected one mask in a text with a word as label, row {row} has "
                f"{n_masks}; mask one word per text, or leave the labels out"
            )


def _convert_tags(
    prediction: Prediction,
    examples: "datasets.Dataset",
    inputs: dict[str, Any],
    offsets: Offsets | None,
) -> list[list[int]]:
    """Tags of the labelled words, in the order of the words' first tokens."""
    if offsets is None:
        _check_no_text_labels(prediction, examples, "a label for every word (word_labels)")
        return [[-1]] * len(examples)
    names = get_class_names(examples.features["word_labels"])
    numbers = None
    if names is not None:
        numbers = _match_names(prediction.outcomes, names, has_names=True)
    texts, tags = (
        read_column(examples, "text"),
        read_column(examples, "word_labels"),
    )
    inputs["labelled"], rows = [], []
    for row, tokens in enumerate(offsets):
        of_char = _index_tags_by_character(texts[row], tags[row] or [])
        labelled, of_row = [0] * len(tokens), []
        for place, (start, end) in enumerate(tokens):
            first = next((at for at in range(start, end) if at in of_char), None)
            if first is None or inputs["special_tokens_mask"][row][place]:
                continue
            labelled[place] = 1
            of_row.append(_convert_tag(prediction, names, numbers, of_char.pop(first), row))
        if not of_row and texts[row].strip():
            raise AttnProbeError(
                f"expected a label of a word in every text, row {row} has none that the "
                "model reads; leave it out"
            )
        inputs["labelled"].append(labelled)
        rows.append(of_row)
    return rows


def _index_tags_by_character(text: str, tags: Sequence[int]) -> dict[int, int]:
    """The tag of each labelled word, by the position of its first character."""
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    if len(tags) > len(starts):
        raise AttnProbeError(
            f"expected a tag for each of {len(starts)} words, got {len(tags)}; count "
            "words as white space separates them"
        )
    return {start: tag for start, tag in zip(starts, tags, strict=False) if tag >= 0}


def _convert_tag(
    prediction: Prediction,
    names: Sequence[str] | None,
    numbers: list[int | None] | None,
    tag: int,
    row: int,
) -> int:
    number = tag if numbers is None else numbers[tag]
    if number is None or number >= len(prediction.outcomes):
        given = tag if names is None else repr(names[tag])
        raise AttnProbeError(
            f"row {row} has tag {given}, the model knows {len(prediction.outcomes)} tags: "
            f"{', '.join(prediction.outcomes)}; audit it on data with its own tags"
        )
    return number


def _convert_answer_spans(
    prediction: Prediction,
    examples: "datasets.Dataset",
    inputs: Mapping[str, Any],
    offsets: Offsets | None,
) -> list[list[int]]:
    """First and last token of every answer; −1 where it is unknown or was cut off."""
    for row, of_row in enumerate(inputs["segment_ids"]):
        if 1 not in of_row:
            raise AttnProbeError(
                f"expected a context beside every question, row {row} has an empty one; "
                "leave it out"
            )
    if offsets is None:
        _check_no_text_labels(prediction, examples, "where the answer is (answers)")
        return [[-1, -1]] * len(examples)
    starts, ends = (
        read_column(examples, "answer_start"),
        read_column(examples, "answer_end"),
    )
    contexts = read_column(examples, "text_pair")
    rows = []
    for row, tokens in enumerate(offsets):
        segments = inputs["segment_ids"][row]
        answer = contexts[row][: max(ends[row], 0)].rstrip()
        inside = [
            place
            for place, (start, end) in enumerate(tokens)
            if segments[place] == 1 and end > starts[row] and start < ends[row]
        ]
        is_whole = inside and tokens[inside[-1]][1] >= len(answer)
        known = is_whole and starts[row] >= 0
        rows.append([inside[0], inside[-1]] if known else [-1, -1])
    return rows
