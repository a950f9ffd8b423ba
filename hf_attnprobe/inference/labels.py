"""Converts data set labels to the numbering of a model's outcomes.

A class becomes the model's class index. A set of labels becomes 0 or 1 for each of the model's
labels. A number stays a number. Word tags become token tags, and character spans become token
positions.
"""

import logging
import math
import re
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import (
    are_names_from_lists,
    get_label_names,
    read_class_names,
)
from hf_attnprobe.functional.predictions import Prediction


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

Label = int | float | list[int]
"""Type of a text's label: one number, or a list with one number for each part of a prediction.

For example, a model that tags words has one label per word.
"""
Offsets = Sequence[Sequence[tuple[int, int]]]
"""Type of token offsets: for each text, a list with the (start, end) of every token in characters.

The end is exclusive.
"""
NUMBERED_CLASS_NAME = re.compile(r"(not )?(label_)?\d+")
"""Pattern for class names that consist of a number, such as "3" or "label_0".

It also matches "not label_0", which is the other class of a model with a single logit.
"""
OFFSET_COLUMNS = {
    "tags": ("word_labels",),
    "span": ("answer_start", "answer_end"),
}
"""Maps a prediction type to the label columns that refer to positions in a text.

For example, "answer_start" is the position of an answer's first character. To find the tokens at
these positions, the tokenizer must return the offsets (start and end) of all tokens. The type "tags"
is one class per word, and "span" is an answer that is copied from a context.
"""


def needs_offsets(prediction: Prediction, examples: "datasets.Dataset") -> bool:
    """Return whether labels refer to positions in the text, so that token offsets are needed."""
    columns = OFFSET_COLUMNS.get(prediction.kind, ())
    return bool(columns) and set(columns) <= set(examples.column_names)


def convert_labels(
    prediction: Prediction,
    examples: "datasets.Dataset",
    tokenizer: PreTrainedTokenizerBase,
    inputs: dict[str, Any],
    offsets: Offsets | None,
) -> list[Label]:
    """Convert the labels of all texts to the model's numbering.

    For a model that predicts tags, the list ``labelled`` is added to the inputs. It is 1 at the
    first token of every labelled word, else 0.

    Args:
        prediction: The model's prediction type and its outcomes.
        examples: The examples.
        tokenizer: The model's tokenizer.
        inputs: The texts' inputs by name, as lists with one number per token.
        offsets: Start and end for every token; None if labels do not refer to positions.

    Returns:
        One label for every text.

    Raises:
        AttnProbeError: If a label's type does not suit the model, or if the model does not know a
            label.
    """
    if offsets is None and needs_offsets(prediction, examples):
        raise AttnProbeError(
            "labels for words or characters need a fast tokenizer, got "
            f"{type(tokenizer).__name__}. Load the fast tokenizer of the model, for example "
            "with AutoTokenizer."
        )
    if prediction.kind == "answer":
        raise AttnProbeError(
            "a language model needs passages with questions, got texts. Pass Answers(…) as data."
        )
    converters: Mapping[str, Callable[[], Sequence[Label]]] = {
        "classes": lambda: convert_class_labels(prediction.outcomes, examples),
        "choice": lambda: _convert_choice_labels(prediction, examples),
        "labels": lambda: _convert_label_sets(prediction, examples),
        "number": lambda: _convert_numbers(prediction, examples),
        "words": lambda: _convert_masked_words(examples, tokenizer, inputs),
        "tags": lambda: _convert_tags(prediction, examples, inputs, offsets),
        "span": lambda: _convert_answer_spans(prediction, examples, inputs, offsets),
    }
    return [*converters[prediction.kind]()]


def convert_class_labels(classes: Sequence[str], examples: "datasets.Dataset") -> list[int]:
    """Convert class labels to the model's numbering.

    Args:
        classes: The model's class names.
        examples: The examples.

    Returns:
        The model's class index for every text; −1 for texts without a label.

    Raises:
        AttnProbeError: If no class, or more than one class, has the name of a label.
    """
    labels = read_column(examples, "label")
    has_names = hasattr(examples.features["label"], "names")
    has_single_logit = len(classes) == 2 and classes[0] == f"not {classes[1]}"
    if has_single_logit:
        expected = "0 or 1"
        predicted = "a probability, or a number with --predicts number"
    else:
        expected, predicted = "one class per text", "a class"
    _check_label_types(examples, int, expected, predicted)
    names = get_label_names(examples)
    model_indices = _match_names(classes, names, has_names)
    present = sorted(set(labels) - {-1})
    # Without names, a label is the number in the data.
    present_names = {label: names[label] if has_names else str(label) for label in present}
    unknown = [name for label, name in present_names.items() if model_indices[label] is None]
    if unknown:
        # If one number is renamed, all labels become names, so all of them must be renamed.
        renamed = unknown if has_names else [*present_names.values()]
        label_noun = "label" if len(unknown) == 1 else "labels"
        raise AttnProbeError(
            f"the data has the {label_noun} {_list_names([*map(repr, unknown)])}, but the model "
            f"predicts the {len(classes)} classes {_list_names(classes)}. {_advise_on_labels(renamed)}"
        )
    converted = {label: model_indices[label] for label in present}
    # The number −1 stands for a text without a label.
    return [-1 if label == -1 else converted[label] for label in labels]


MAX_NAMES_IN_MESSAGE = 20
"""Maximum number of class names that are listed in an error message."""


MAX_RENAMED_IN_MESSAGE = 5
"""Maximum number of labels whose renaming an error message writes out."""


def _list_names(names: Sequence[str]) -> str:
    """Return class names as one string, without the last ones if there are many."""
    listed_names = ", ".join(names[:MAX_NAMES_IN_MESSAGE])
    return listed_names if len(names) <= MAX_NAMES_IN_MESSAGE else f"{listed_names}, …"


def _advise_on_labels(names: Sequence[str]) -> str:
    """Return advice for labels of the data, some of which are no classes of the model."""
    if all(re.fullmatch(r"-?\d+,\d+", name) for name in names):
        return "These seem to be numbers with decimal commas. Write them with decimal points."
    if any(map(is_list_in_cell, names)):
        return (
            "A cell seems to contain a list of labels or a one-hot list. Write one class in each "
            "cell, by its name or number."
        )
    pairs = " ".join(shlex.quote(f"{name}=CLASS") for name in names[:MAX_RENAMED_IN_MESSAGE])
    return (
        "Use data with these classes, or rename the labels to these classes with "
        f"--labels {pairs}{' …' if len(names) > MAX_RENAMED_IN_MESSAGE else ''}."
    )


def is_list_in_cell(name: str) -> bool:
    """Return whether a label name looks like several labels in one cell, such as "toxic, insult".

    >>> is_list_in_cell("[0, 1]"), is_list_in_cell("toxic; insult"), is_list_in_cell("toxic")
    (True, True, False)
    """
    return name.startswith("[") or any(mark in name for mark in ",;|")


def _match_names(classes: Sequence[str], names: Sequence[str], has_names: bool) -> list[int | None]:
    """Match the data's class names to the model's class names.

    Labels without names are the model's indices. Letter case and surrounding blanks are ignored. If
    no name matches, and the data or the model has only numbers as names, such as LABEL_0, classes
    are matched by number.

    Args:
        classes: The model's class names.
        names: The data's class names.
        has_names: Whether the data has names for its classes.

    Returns:
        The model's index for each name in the data; None if the model has no such class.

    Raises:
        AttnProbeError: If two of the model's classes have the same name as a label.
    """
    if not has_names:
        return [index if index < len(classes) else None for index in range(len(names))]
    model_names = [name.strip().casefold() for name in classes]
    data_names = [name.strip().casefold() for name in names]
    _check_unique_names(classes, model_names, data_names)
    matches = [model_names.index(name) if name in model_names else None for name in data_names]
    if any(index is not None for index in matches):
        return matches

    # No name matches. If the data or the model has only numbers as names, match by number.
    if all(map(NUMBERED_CLASS_NAME.fullmatch, data_names)):
        numbers = [int(name.rpartition("_")[2]) for name in data_names]
        return [number if number < len(model_names) else None for number in numbers]
    has_equal_counts = len(data_names) == len(model_names)
    if has_equal_counts and all(map(NUMBERED_CLASS_NAME.fullmatch, model_names)):
        return [*range(len(model_names))]
    return matches


def list_number_matches(prediction: Prediction, examples: "datasets.Dataset") -> dict[str, str]:
    """List the model's class for each label of the data, if names had to be matched by number.

    Args:
        prediction: The model's prediction type and its outcomes.
        examples: The examples.

    Returns:
        The model's names by the data's names; empty if a label has the name of a class, or if
        neither the data nor the model has names other than numbers.
    """
    column, classes = {
        "classes": ("label", prediction.outcomes),
        "labels": ("label", prediction.parts),
        "tags": ("word_labels", prediction.outcomes),
    }.get(prediction.kind, ("", ()))
    if column not in examples.column_names:
        return {}
    names = read_class_names(examples.features[column])
    model_names = [name.strip().casefold() for name in classes]
    data_names = [name.strip().casefold() for name in names or map(str, range(len(classes)))]
    has_common_names = names is not None and bool({*model_names} & {*data_names})
    has_only_numbers = all(map(NUMBERED_CLASS_NAME.fullmatch, [*model_names, *data_names]))
    if has_common_names or has_only_numbers:
        return {}
    indices = _match_names(classes, names or data_names, names is not None)
    return {
        name: classes[index]
        for name, index in zip(names or data_names, indices, strict=True)
        if index is not None
    }


def _check_unique_names(
    classes: Sequence[str], model_names: Sequence[str], data_names: Sequence[str]
) -> None:
    """Raise AttnProbeError if a label of the data matches two classes of the model.

    Args:
        classes: The model's class names.
        model_names: The same names in the form that is compared, for example in lower case.
        data_names: The label names of the data, in the form that is compared.
    """
    repeated_names = {name for name, count in Counter(model_names).items() if count > 1}
    if repeated_names & set(data_names):
        repeated_classes = [
            repr(original)
            for original, name in zip(classes, model_names, strict=True)
            if name in repeated_names
        ]
        raise AttnProbeError(
            "labels are matched by class name, but these classes of the model have the same "
            f"name: {', '.join(repeated_classes)}. Rename them in id2label, or use class numbers as "
            "labels."
        )


def _check_label_types(
    examples: "datasets.Dataset", label_type: type, expected: str, predicted: str
) -> None:
    """Check that all labels have a type that suits the model.

    Args:
        examples: The examples; a label is None for texts without a label.
        label_type: Python type of a suitable label.
        expected: Description of a suitable label, for the error message.
        predicted: Description of the model's prediction, for the error message.

    Raises:
        AttnProbeError: If a label has another type.
    """
    ids, labels = read_column(examples, "example_id"), read_column(examples, "label")
    class_names = read_class_names(examples.features["label"])
    for example_id, label in zip(ids, labels, strict=True):
        # The number −1 stands for a missing class.
        if label is None or label == -1 or isinstance(label, label_type):
            continue
        advice = "Use data for this task, or name another column with --label-column."
        if isinstance(label, list):
            description = "several labels"
        elif class_names is not None:
            description = f"the label {class_names[label]!r}"
            if label_type is list:
                advice = (
                    "Write lists of label names in a JSON file, such as "
                    f"{_split_cell(class_names[label])}. Alternatively, store one column of 0 and 1 "
                    "per label, and name these columns with --label-column."
                )
        else:
            description = f"the label {label}"
        raise AttnProbeError(
            f"expected {expected} as label, because the model predicts {predicted}, but "
            f"text {example_id} has {description}. {advice}"
        )


def _split_cell(name: str) -> list[str]:
    """Split a cell such as "toxic, insult" into the label names that it contains."""
    return [part.strip() for part in re.split(r"[,;|]", name.strip("[]")) if part.strip()]


def _check_no_text_labels(
    prediction: Prediction, examples: "datasets.Dataset", expected: str
) -> None:
    """Check that no text has a single label if the model makes several predictions per text.

    Args:
        prediction: The model's prediction type and its outcomes.
        examples: The examples.
        expected: Description of a suitable label, for the error message.

    Raises:
        AttnProbeError: If a text has a single label.
    """
    _check_label_types(examples, int, expected, prediction.name)
    ids, labels = read_column(examples, "example_id"), read_column(examples, "label")
    labelled_ids = [example_id for example_id, label in zip(ids, labels, strict=True) if label >= 0]
    if labelled_ids:
        raise AttnProbeError(
            f"expected {expected}, because the model predicts {prediction.name}, "
            f"but text {labelled_ids[0]} has one label for the whole text. Use data for this "
            "task, or remove the labels."
        )


def _convert_choice_labels(prediction: Prediction, examples: "datasets.Dataset") -> list[int]:
    """Return the index of the correct choice for every multiple-choice question.

    The index is −1 for questions without a label. An index out of range raises AttnProbeError.
    """
    labels = read_column(examples, "label")
    _check_label_types(examples, int, "the number of the right choice", prediction.name)
    # Without this column, the examples are pairs of a text and a single choice.
    if "choices" not in examples.column_names:
        return labels
    ids, choices = read_column(examples, "example_id"), read_column(examples, "choices")
    for example_id, label, row_choices in zip(ids, labels, choices, strict=True):
        if label >= len(row_choices):
            raise AttnProbeError(
                f"expected the number of a choice as label (0 to {len(row_choices) - 1}, or "
                f"-1 if there is no label), but text {example_id} has {label}. Correct the label."
            )
    return labels


def _convert_label_sets(prediction: Prediction, examples: "datasets.Dataset") -> list[list[int]]:
    """Convert sets of labels to 0 or 1 for each of the model's labels.

    Returns:
        For each text, a list with 1 for labels that apply, 0 for labels that do not apply, and −1
        for unknown labels. All labels are unknown if the text has no list of labels. If the data
        names the labels for which its texts were labelled, as columns do, the other labels of the
        model are unknown too.
    """
    labels = read_column(examples, "label")
    n_labels = len(prediction.parts)
    if all(isinstance(label, int) and label < 0 for label in labels):
        return [[-1] * n_labels for _ in labels]
    _check_label_types(examples, list, "a list of the labels that apply", prediction.name)
    class_names = read_class_names(examples.features["label"])
    data_names = class_names or [f"LABEL_{index}" for index in range(n_labels)]
    model_indices = _match_names(prediction.parts, data_names, class_names is not None)
    matched_indices = [index for index in model_indices if index is not None]
    if not matched_indices:
        raise AttnProbeError(
            f"the data has labels {', '.join(data_names[:5])}, but the model predicts "
            f"{_list_names(prediction.parts)}. Use data with the labels of the model, or rename the "
            "labels with --labels DATA=MODEL."
        )
    # Lists of names are complete: they name all labels of the model that apply to a text.
    known_indices: Sequence[int] = range(n_labels)
    if class_names is not None and not are_names_from_lists(examples.features["label"]):
        known_indices = matched_indices
        unknown_names = [
            name for index, name in enumerate(prediction.parts) if index not in matched_indices
        ]
        if unknown_names:
            logger.warning(
                "the data has no column or name for %d of the model's %d labels (%s); the texts count "
                "as unlabelled for them",
                len(unknown_names),
                n_labels,
                _list_names(unknown_names),
            )
    ids, rows = read_column(examples, "example_id"), []
    for example_id, row_labels in zip(ids, labels, strict=True):
        values = [-1] * n_labels
        if row_labels is not None:
            for index in known_indices:
                values[index] = 0
        for label in row_labels or ():
            model_index = model_indices[label] if label < len(model_indices) else None
            if model_index is None:
                name = repr(class_names[label]) if class_names else label
                raise AttnProbeError(
                    f"text {example_id} has the label {name}, but the model predicts the labels "
                    f"{_list_names(prediction.parts)}. Use data with the labels of the model, or "
                    "rename the labels with --labels DATA=MODEL."
                )
            values[model_index] = 1
        rows.append(values)
    return rows


def _convert_numbers(prediction: Prediction, examples: "datasets.Dataset") -> list[float]:
    """Convert labels to numbers, with NaN for texts without a label."""
    labels = read_column(examples, "label")
    _check_label_types(examples, int | float, "a number", "a number")  # type: ignore[arg-type]
    if hasattr(examples.features["label"], "names"):
        names = ", ".join(get_label_names(examples)[:5])
        raise AttnProbeError(
            "expected numbers as labels, because the model predicts a number, got the "
            f"classes {names}. Name another column with --label-column, or use --predicts "
            "probability."
        )
    # A data set without labels has the integer −1 in every row.
    has_integers = str(examples.features["label"].dtype).startswith("int")
    is_unlabelled = has_integers and all(label == -1 for label in labels)
    numbers = [math.nan if is_unlabelled or label is None else float(label) for label in labels]
    if not prediction.has_one_part and not all(map(math.isnan, numbers)):
        raise AttnProbeError(
            "one number per text cannot be used as label, because the model predicts "
            f"{prediction.name}. Remove the labels, and set the unit with --scale."
        )
    return numbers


def compute_label_spread(examples: "datasets.Dataset") -> float | None:
    """Compute the standard deviation of numeric labels.

    Args:
        examples: The examples.

    Returns:
        The standard deviation; None if labels are not numbers, or are all equal.
    """
    if hasattr(examples.features["label"], "names"):
        return None
    labels = read_column(examples, "label")
    if not all(isinstance(label, int | float) for label in labels):
        return None
    numbers = [float(label) for label in labels if not math.isnan(label)]
    spread = statistics.pstdev(numbers) if len(numbers) > 1 else 0.0
    # Equal labels have no spread that could be used as a unit.
    return spread or None


def _convert_masked_words(
    examples: "datasets.Dataset",
    tokenizer: PreTrainedTokenizerBase,
    inputs: Mapping[str, Any],
) -> list[int]:
    """Convert the labels of a masked language model, which are words, to token ids.

    Returns:
        One token id per text; −1 if the text has no label, or if its word is not a single token.
    """
    labels = read_column(examples, "label")
    _check_label_types(examples, int, "one word per text", "a masked word")
    ids = read_column(examples, "example_id")
    _check_masks(ids, labels, tokenizer, inputs["input_ids"])
    if not hasattr(examples.features["label"], "names"):
        for example_id, label in zip(ids, labels, strict=True):
            if label >= 0:
                raise AttnProbeError(
                    "expected a word as label, because the model predicts a masked word, but "
                    f"text {example_id} has the number {label}. Replace the number with the word, or "
                    "remove the labels."
                )
        return labels
    word_ids = []
    for name in get_label_names(examples):
        token_ids = tokenizer(f" {name}", add_special_tokens=False)["input_ids"]
        is_known_token = len(token_ids) == 1 and token_ids[0] != tokenizer.unk_token_id
        word_ids.append(token_ids[0] if is_known_token else -1)
    converted = [word_ids[label] if label >= 0 else -1 for label in labels]
    n_unusable = sum(word_ids[label] < 0 for label in labels if label >= 0)
    if n_unusable:
        logger.warning(
            "the labels of %d texts are not single tokens; these texts count as unlabelled",
            n_unusable,
        )
    return converted


def _check_masks(
    ids: Sequence[int],
    labels: Sequence[int],
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Sequence[Sequence[int]],
) -> None:
    """Check that every text has a mask token, and exactly one if it has a label."""
    for example_id, label, token_ids in zip(ids, labels, input_ids, strict=True):
        n_masks = list(token_ids).count(tokenizer.mask_token_id)
        if n_masks == 0:
            raise AttnProbeError(
                f"expected the mask token {tokenizer.mask_token!r} in every text, but text "
                f"{example_id} has none. Replace the word to predict with the mask token, or "
                "shorten the text if its end was cut off."
            )
        if n_masks > 1 and label >= 0:
            raise AttnProbeError(
                f"expected one mask token in a labelled text, but text {example_id} has {n_masks}. "
                "Mask one word per text, or remove the labels."
            )


def _convert_tags(
    prediction: Prediction,
    examples: "datasets.Dataset",
    inputs: dict[str, Any],
    offsets: Offsets | None,
) -> list[list[int]]:
    """Convert word tags to the model's tags, and add ``labelled`` to the inputs.

    Args:
        prediction: The model's prediction type and its outcomes.
        examples: The examples.
        inputs: The texts' inputs; the new list ``labelled`` is 1 at the first token of every
            labelled word, else 0.
        offsets: Start and end for every token; None without tags.

    Returns:
        For each text, the tags of its labelled words in text order.
    """
    if offsets is None:
        _check_no_text_labels(prediction, examples, "a label for every word (word_labels)")
        return [[-1]] * len(examples)
    names = read_class_names(examples.features["word_labels"])
    model_indices = None
    if names is not None:
        model_indices = _match_names(prediction.outcomes, names, has_names=True)
    ids = read_column(examples, "example_id")
    texts, tags = read_column(examples, "text"), read_column(examples, "word_labels")
    inputs["labelled"], rows = [], []
    for row, token_spans in enumerate(offsets):
        remaining_tags = _index_tags_by_character(texts[row], tags[row] or [])
        labelled: list[int] = [0] * len(token_spans)
        row_tags: list[int] = []
        for position, (start, end) in enumerate(token_spans):
            word_start = next((k for k in range(start, end) if k in remaining_tags), None)
            if word_start is None or inputs["special_tokens_mask"][row][position]:
                continue
            labelled[position] = 1
            tag = remaining_tags.pop(word_start)
            row_tags.append(_convert_tag(prediction, names, model_indices, tag, ids[row]))
        if not row_tags and texts[row].strip():
            raise AttnProbeError(
                f"expected a labelled word in every text, but text {ids[row]} has none in the part "
                "that the model reads. Leave out this text."
            )
        inputs["labelled"].append(labelled)
        rows.append(row_tags)
    return rows


def _index_tags_by_character(text: str, tags: Sequence[int]) -> dict[int, int]:
    """Return the tags of a text's words in a dictionary, by the position of each word in the text.

    For example, "a big dog" with the tags [3, 4, 5] gives {0: 3, 2: 4, 6: 5}.

    Args:
        text: The text; words are separated by white space.
        tags: One tag per word; −1 for words without a label, which are left out.

    Returns:
        The tags by the position of each word's first character.
    """
    word_starts = [word.start() for word in re.finditer(r"\S+", text)]
    if len(tags) > len(word_starts):
        raise AttnProbeError(
            f"expected at most {len(word_starts)} tags, one for each word, got {len(tags)}. "
            "Separate words at white space."
        )
    return {start: tag for start, tag in zip(word_starts, tags, strict=False) if tag >= 0}


def _convert_tag(
    prediction: Prediction,
    names: Sequence[str] | None,
    model_indices: list[int | None] | None,
    tag: int,
    example_id: int,
) -> int:
    """Convert one tag from the data to the model's tag index.

    Args:
        prediction: The model's prediction type and its outcomes.
        names: Names of the data's tags; None if tags are the model's indices.
        model_indices: The model's index for each tag in the data; None if they are the same.
        tag: The data's tag.
        example_id: Id of the text, for the error message.

    Returns:
        The model's tag index.
    """
    model_index = tag if model_indices is None else model_indices[tag]
    if model_index is None or model_index >= len(prediction.outcomes):
        description = tag if names is None else repr(names[tag])
        raise AttnProbeError(
            f"text {example_id} has the tag {description}, but the model predicts the tags "
            f"{_list_names(prediction.outcomes)}. Use data with the tags of the model."
        )
    return model_index


def _convert_answer_spans(
    prediction: Prediction,
    examples: "datasets.Dataset",
    inputs: Mapping[str, Any],
    offsets: Offsets | None,
) -> list[list[int]]:
    """Convert answers from character positions to token positions.

    Returns:
        Positions of the first and last token in every answer; −1 for answers that are unknown or
        were cut off.
    """
    ids = read_column(examples, "example_id")
    for example_id, segments in zip(ids, inputs["segment_ids"], strict=True):
        if 1 not in segments:
            raise AttnProbeError(
                f"expected a context for every question, but text {example_id} has an empty context. "
                "Leave out this question."
            )
    if offsets is None:
        _check_no_text_labels(prediction, examples, "the position of the answer (answers)")
        return [[-1, -1]] * len(examples)
    starts, ends = read_column(examples, "answer_start"), read_column(examples, "answer_end")
    contexts = read_column(examples, "text_pair")
    rows = []
    for row, token_spans in enumerate(offsets):
        segments = inputs["segment_ids"][row]
        text_up_to_answer_end = contexts[row][: max(ends[row], 0)].rstrip()
        answer_tokens = [
            position
            for position, (start, end) in enumerate(token_spans)
            if segments[position] == 1 and end > starts[row] and start < ends[row]
        ]
        if not answer_tokens or starts[row] < 0:
            rows.append([-1, -1])
            continue
        first_token, last_token = answer_tokens[0], answer_tokens[-1]
        end_of_last_token = token_spans[last_token][1]
        is_complete = end_of_last_token >= len(text_up_to_answer_end)
        rows.append([first_token, last_token] if is_complete else [-1, -1])
    return rows
