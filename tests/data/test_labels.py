"""Labels of a data set: classes, numbers and lists are told apart, numbered and renamed."""

import math

import pytest
from datasets import Dataset

from hf_attnprobe.data.labels import (
    Labels,
    convert_to_names,
    find_word_label_column,
    join_label_columns,
    read_answer_spans,
    read_labels,
    read_word_labels,
    rename_labels,
    select_classes,
)
from tests.helpers.error_messages import refused


def read(values, all_values=None, **options):
    return read_labels(values, values if all_values is None else all_values, column="y", **options)


def test_names_are_numbered_in_alphabetical_order_over_all_splits():
    labels = read(["pos", " neg ", "", None], ["pos", "neg", "mixed"])
    assert labels == Labels("classes", [2, 1, -1, -1], ("mixed", "neg", "pos"))
    assert convert_to_names(labels.values, labels.names) == ["pos", "neg", None, None]


def test_whole_numbers_are_classes_and_others_are_numbers():
    assert read([1, 2.0, None, True], first_label=1) == Labels("classes", [0, 1, -1, 0])
    numbers = read([0.5, None, 2])
    assert numbers.label_type == "numbers" and numbers.names is None
    assert numbers.values[::2] == [0.5, 2] and math.isnan(numbers.values[1])


def test_lists_are_several_labels_of_a_text():
    assert read([["b", "a", "b"], [], None]) == Labels(
        "several", [[0, 1], [], None], ("a", "b"), lists_all_names=False
    )
    assert read([[2, 0], [1]], names=("a", "b", "c")) == Labels(
        "several", [[0, 2], [1]], ("a", "b", "c")
    )
    assert join_label_columns([[1, 0, None], [1, 0, 1]], ["a", "b"]) == [[0, 1], [], None]


@pytest.mark.parametrize(
    ("values", "options", "column"),
    [
        ([1, "pos"], {}, "y"),
        ([math.inf], {}, "y"),
        ([0.5], {"names": ("a", "b")}, "y"),
        (["c"], {"names": ("a", "b")}, "y"),
        ([["a"], "b"], {}, "y"),
        ([[0, 1, 1], [1, 0, 0]], {}, "y"),  # masks of 0 and 1
        ([["a", 1]], {}, "y"),
    ],
)
def test_labels_of_no_one_type_are_refused_with_their_column(values, options, column):
    refused(f"column '{column}'", read, values, **options)


@pytest.mark.parametrize("labels", [[0, 2], [0, -2]])
def test_numbers_without_a_class_are_refused_with_their_row(labels):
    refused("row 1 has", read, labels, names=("a", "b"))


def test_labels_are_renamed_or_dropped():
    names = ["good", "bad", None, "so-so"]
    renamed = rename_labels(names, ["good=pos", "bad=neg", "so-so="], names)
    lists = [["good", "bad"], ["so-so"], None]
    changes = ["good=pos", "so-so="]
    assert rename_labels(lists, changes, lists) == [["pos", "bad"], [], None]
    assert renamed == ["pos", "neg", None, None]
    refused("worst", rename_labels, names, ["worst=neg"], names)


def test_whole_numbers_with_a_blank_row_are_renamed_without_a_decimal_point():
    names = convert_to_names([1.0, float("nan"), 2.0, 2.5, [3.0]], None)
    assert names == ["1", None, "2", "2.5", ["3"]]
    assert rename_labels(names, ["1=neg", "2=pos"], names)[:3] == ["neg", None, "pos"]


def test_chosen_classes_have_their_own_order():
    labels = Labels("classes", [0, 1, 2, -1], ("a", "b", "c"))
    assert select_classes(labels, None) is labels
    assert select_classes(labels, ("c", "a")) == Labels("classes", [1, None, 0, None], ("c", "a"))
    refused("a, d", select_classes, labels, ("a", "d"))


def test_every_word_has_a_label():
    numbers, names = read_word_labels([["A", -100], ["B"]], None, ["two words", "one"], "tags")
    assert (numbers, names) == ([[0, -1], [1]], ("A", "B"))
    refused("row 0 has 2 words", read_word_labels, [["A"]], None, ["two words"], "tags")
    both = Dataset.from_dict({"ner_tags": [[1]], "pos_tags": [[2]]})
    refused("ner_tags, pos_tags", find_word_label_column, both, None)
    assert find_word_label_column(both, "pos_tags") == "pos_tags"
    assert find_word_label_column(both.rename_column("pos_tags", "word_labels"), None)


def test_answers_are_found_at_their_characters():
    contexts = ["Rome is old.", "No answer."]
    cells = [
        {"text": ["old", "Rome"], "answer_start": [8, 0]},
        {"text": [], "answer_start": []},
    ]
    spans = read_answer_spans(Dataset.from_dict({"answers": cells}), contexts)
    assert spans == {"answer_start": [8, -1], "answer_end": [11, -1]}
    assert contexts[0][8:11] == "old"
    own = Dataset.from_dict({"answer_start": [0, None], "answer_end": [4, None]})
    assert read_answer_spans(own, contexts) == {"answer_start": [0, -1], "answer_end": [4, -1]}
    assert read_answer_spans(Dataset.from_dict({"x": [1, 2]}), contexts) == {}
    wrong = [{"text": ["old"], "answer_start": [7]}, cells[1]]
    refused("row 0", read_answer_spans, Dataset.from_dict({"answers": wrong}), contexts)
    outside = Dataset.from_dict({"answer_start": [0, 3], "answer_end": [4, 99]})
    refused("row 1", read_answer_spans, outside, contexts)
