"""The labels of a data set as a model's prediction numbers its outcomes.

Of one class a number; of several labels a 0 or 1 for each; of a number the number; of
tags and answers what the labelled words and characters are among the tokens.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.data.examples import column_of, label_names
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.predictions import Prediction


if TYPE_CHECKING:
    import datasets


Label = int | float | list[int]
"""One number, or one for every part of a prediction."""
Offsets = Sequence[Sequence[tuple[int, int]]]
"""Of every text, the first character and the one behind the last, of every token."""
NEEDING_OFFSETS = {"tags": ("word_labels",), "span": ("answer_start", "answer_end")}
"""Columns that say where labels are, by kind of prediction."""


def needs_offsets(prediction: Prediction, examples: "datasets.Dataset") -> bool:
    """Whether the labels name places in the text."""
    columns = NEEDING_OFFSETS.get(prediction.kind, ())
    return bool(columns) and set(columns) <= set(examples.column_names)


def labels_of(
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
    kinds: Mapping[str, Callable[[], list[Label]]] = {
        "classes": lambda: [*labels_of_model(prediction.outcomes, examples)],
        "choice": lambda: [*_integers(prediction, examples)],
        "labels": lambda: [*_several(prediction, examples)],
        "number": lambda: [*_numbers(examples)],
        "words": lambda: [*_words(examples, tokenizer)],
        "tags": lambda: [*_tags(prediction, examples, inputs, offsets)],
        "span": lambda: [*_spans(examples, inputs, offsets)],
    }
    return kinds[prediction.kind]()


def labels_of_model(classes: Sequence[str], examples: "datasets.Dataset") -> list[int]:
    """The examples' labels as the model numbers its classes, -1 for none.

    Labels are matched by name, ignoring case. Where data and model have no name in
    common they are matched by number, if the data has no names or as many classes as
    the model.

    Raises:
        AttnProbeError: a label that the model does not know, or no classes at all.
    """
    labels = column_of(examples, "label")
    has_names = hasattr(examples.features["label"], "names")
    is_one_logit = len(classes) == 2 and classes[0] == f"not {classes[1]}"
    by_number = is_one_logit and not has_names
    if by_number:
        labels = _as_sides(labels)
    _check_kind(labels, int, "one class per text", "a class")
    names = list(classes) if by_number else label_names(examples)
    numbers = _matched(classes, names, has_names)
    for label in sorted(set(labels)):
        if label >= 0 and numbers[label] is None:
            raise AttnProbeError(
                f"the data has label {names[label]!r} ({label}), the model knows "
                f"{len(classes)} labels: {', '.join(classes)}; audit it on data with its own "
                "labels"
            )
    return [-1 if label < 0 else _known(numbers[label]) for label in labels]


def _as_sides(labels: Sequence[Any]) -> list[Any]:
    """Labels of a single logit: 0 or 1, also where a file has them as 0.0 and 1.0.

    Raises:
        AttnProbeError: other numbers, as of a model that predicts one.
    """
    sides = []
    for row, label in enumerate(labels):
        if isinstance(label, float) and math.isnan(label):
            sides.append(-1)
            continue
        if isinstance(label, int | float) and label not in (-1, 0, 1):
            raise AttnProbeError(
                "the model gives one logit, taken for a probability: expected 0 or 1 as "
                f"label, row {row} has {label!r}; if it predicts a number, say "
                "--predicts number"
            )
        sides.append(int(label) if isinstance(label, float) else label)
    return sides


def _known(number: int | None) -> int:
    assert number is not None  # checked for every label that occurs
    return number


def _matched(
    classes: Sequence[str], names: Sequence[str], has_names: bool
) -> list[int | None]:
    """The model's number of each of the data's names; None where it has none."""
    known = {name.casefold(): k for k, name in enumerate(classes)}
    numbers = [known.get(name.casefold()) for name in names]
    may_go_by_number = not has_names or len(names) == len(classes)
    if may_go_by_number and all(number is None for number in numbers):
        return [k if k < len(classes) else None for k in range(len(names))]
    return numbers


def _check_kind(
    labels: Sequence[Any], kind: type, expected: str, predicts: str
) -> None:
    """Labels are of the kind that the model predicts."""
    for row, label in enumerate(labels):
        if label is not None and not isinstance(label, kind):
            given = "several labels" if isinstance(label, list) else repr(label)
            raise AttnProbeError(
                f"the model predicts {predicts}: expected {expected} as label, row {row} "
                f"has {given}; audit it on data of its own task, or name another column "
                "with --label-column"
            )


def _integers(prediction: Prediction, examples: "datasets.Dataset") -> list[int]:
    labels = column_of(examples, "label")
    _check_kind(labels, int, "the number of the right choice", prediction.name)
    return labels


def _several(prediction: Prediction, examples: "datasets.Dataset") -> list[list[int]]:
    """A 0 or 1 for each label; −1 for all of them where nothing is known."""
    labels = column_of(examples, "label")
    n_labels = len(prediction.parts)
    if all(isinstance(label, int) and label < 0 for label in labels):
        return [[-1] * n_labels for _ in labels]
    _check_kind(labels, list, "a list of the labels that hold", prediction.name)
    items = getattr(examples.features["label"], "feature", None)
    names = getattr(items, "names", None)
    n_names = max((max(label, default=-1) for label in labels if label), default=-1) + 1
    given = list(names or (f"LABEL_{k}" for k in range(n_names)))
    numbers = _matched(prediction.parts, given, names is not None)
    rows = []
    for row, label in enumerate(labels):
        hold = [-1 if label is None else 0] * n_labels
        for k in label or ():
            number = numbers[k] if 0 <= k < len(numbers) else None
            if number is None:
                raise AttnProbeError(
                    f"row {row} has label {k}, the model knows {n_labels} labels: "
                    f"{', '.join(prediction.parts)}; audit it on data with its own labels"
                )
            hold[number] = 1
        rows.append(hold)
    return rows


def _numbers(examples: "datasets.Dataset") -> list[float]:
    """The numbers, NaN where there is none."""
    labels = column_of(examples, "label")
    _check_kind(labels, int | float, "a number", "a number")  # type: ignore[arg-type]
    if hasattr(examples.features["label"], "names"):
        names = ", ".join(label_names(examples)[:5])
        raise AttnProbeError(
            f"the model predicts a number: expected numbers as labels, got the classes "
            f"{names}; name another column with --label-column, or say --predicts "
            "probability"
        )
    are_ids = str(examples.features["label"].dtype).startswith("int")
    nothing = are_ids and all(label == -1 for label in labels)
    return [math.nan if nothing or label is None else float(label) for label in labels]


def spread_of_labels(examples: "datasets.Dataset") -> float | None:
    """Standard deviation of numeric labels; None where they are none, or all equal."""
    if hasattr(examples.features["label"], "names"):
        return None
    labels = column_of(examples, "label")
    if not all(isinstance(label, int | float) for label in labels):
        return None
    known = [float(label) for label in labels if not math.isnan(label)]
    spread = statistics.pstdev(known) if len(known) > 1 else 0.0
    return spread or None


def _words(
    examples: "datasets.Dataset", tokenizer: PreTrainedTokenizerBase
) -> list[int]:
    """The token id of the masked word; −1 where it is none, or more than one token."""
    labels = column_of(examples, "label")
    _check_kind(labels, int, "one word per text", "a masked word")
    if not hasattr(examples.features["label"], "names"):
        return labels
    ids = []
    for name in label_names(examples):
        tokens = tokenizer(f" {name}", add_special_tokens=False)["input_ids"]
        ids.append(tokens[0] if len(tokens) == 1 else -1)
    return [ids[label] if label >= 0 else -1 for label in labels]


def _tags(
    prediction: Prediction,
    examples: "datasets.Dataset",
    inputs: dict[str, Any],
    offsets: Offsets | None,
) -> list[list[int]]:
    """The tags of the labelled words, in the order of their first tokens."""
    if offsets is None:
        return [[-1]] * len(examples)
    feature = examples.features["word_labels"]
    names = getattr(getattr(feature, "feature", None), "names", None)
    numbers = None
    if names is not None:
        numbers = _matched(prediction.outcomes, names, has_names=True)
    texts, tags = column_of(examples, "text"), column_of(examples, "word_labels")
    inputs["labelled"], rows = [], []
    for row, tokens in enumerate(offsets):
        of_char = _tags_by_first_character(texts[row], tags[row] or [])
        labelled, of_row = [0] * len(tokens), []
        for place, (start, end) in enumerate(tokens):
            first = next((at for at in range(start, end) if at in of_char), None)
            if first is None or inputs["special_tokens_mask"][row][place]:
                continue
            labelled[place] = 1
            of_row.append(_tag(prediction, numbers, of_char.pop(first), row))
        inputs["labelled"].append(labelled)
        rows.append(of_row)
    return rows


def _tags_by_first_character(text: str, tags: Sequence[int]) -> dict[int, int]:
    """The tag of each labelled word, by the place of its first character."""
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    if len(tags) > len(starts):
        raise AttnProbeError(
            f"expected a tag for each of {len(starts)} words, got {len(tags)}; count "
            "words as white space separates them"
        )
    return {start: tag for start, tag in zip(starts, tags, strict=False) if tag >= 0}


def _tag(
    prediction: Prediction, numbers: list[int | None] | None, tag: int, row: int
) -> int:
    number = tag if numbers is None else numbers[tag]
    if number is None or number >= len(prediction.outcomes):
        raise AttnProbeError(
            f"row {row} has tag {tag}, the model knows {len(prediction.outcomes)} tags: "
            f"{', '.join(prediction.outcomes)}; audit it on data with its own tags"
        )
    return number


def _spans(
    examples: "datasets.Dataset", inputs: Mapping[str, Any], offsets: Offsets | None
) -> list[list[int]]:
    """The first and the last token of every answer; −1 where it is unknown or cut off."""
    if offsets is None:
        return [[-1, -1]] * len(examples)
    starts, ends = (
        column_of(examples, "answer_start"),
        column_of(examples, "answer_end"),
    )
    rows = []
    for row, tokens in enumerate(offsets):
        segments = inputs["segment_ids"][row]
        inside = [
            place
            for place, (start, end) in enumerate(tokens)
            if segments[place] == 1 and end > starts[row] and start < ends[row]
        ]
        known = inside and starts[row] >= 0
        rows.append([inside[0], inside[-1]] if known else [-1, -1])
    return rows
