"""Columns of texts and images: which ones are chosen by their names, and how they are read."""

import hashlib

import numpy as np
import pytest
from datasets import Dataset

from hf_attnprobe.data.columns import (
    PAIR_COLUMNS,
    TextColumns,
    choose_columns,
    compute_image_digest,
    find_image_column,
    read_text_columns,
)
from tests.helpers.error_messages import refused


@pytest.mark.parametrize("pair", PAIR_COLUMNS)
def test_a_usual_pair_is_found_whole_or_by_its_second_column(pair):
    first, second = pair
    present = ["label", second, first]
    assert choose_columns(present, None, None) == TextColumns((first,), second)
    assert choose_columns([first, second], None, second) == TextColumns((first,), second)


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (["label", "text"], "text"),
        (["sentence", "id"], "sentence"),
        (["tokens", "ner_tags"], "tokens"),
        (["text", "tokens"], "text"),
    ],
)
def test_single_texts_are_found_by_their_usual_names(present, chosen):
    assert choose_columns(present, None, None) == TextColumns((chosen,))


@pytest.mark.parametrize(
    ("present", "text", "text_pair", "said"),
    [
        (["text", "premise", "hypothesis"], None, None, "premise with hypothesis or text"),
        (["a", "b"], None, None, "a, b"),
        (["a", "b"], "c", None, "--text-column"),
        (["a", "b"], "a", "c", "--text-pair-column"),
        (["a", "b"], "a", "a", "'a' for both"),
        (["a", "b", "c"], ["a", "b"], "c", "a, b"),
        (["a", "b"], None, "b", "--text-column"),
    ],
)
def test_columns_that_leave_no_choice_or_several_are_refused(present, text, text_pair, said):
    refused(said, choose_columns, present, text, text_pair)


def test_columns_and_words_are_joined_by_spaces():
    source = Dataset.from_dict(
        {"title": ["A", None], "body": ["b c", "d"], "words": [["x", "y z"], ["u"]]}
    )
    texts = read_text_columns(source, TextColumns(("title", "body")))
    assert texts == (["A b c", "d"], None)
    pairs = read_text_columns(source, TextColumns(("body",), "words"))
    assert pairs == (["b c", "d"], ["x yz", "u"])  # as many words as items
    assert read_text_columns(source, TextColumns(("title",))) == (["A", ""], None)
    for text, advice in (([1], "lists of words"), ({"body": 1}, "choose one of text.body")):
        other = Dataset.from_dict({"text": [text]})
        refused(advice, read_text_columns, other, TextColumns(("text",)))
    empty = Dataset.from_dict({"words": [["x", " "]]})
    refused("empty word", read_text_columns, empty, TextColumns(("words",)))


def test_an_image_is_known_by_its_pixels():
    assert find_image_column(["label", "img", "image"]) == "image"
    assert find_image_column(["label", "text"]) is None
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    turned = pixels.transpose(1, 0, 2)
    expected = hashlib.sha256(bytes(range(12))).hexdigest()
    assert compute_image_digest(pixels) == f"(2, 2, 3) uint8 {expected}"
    assert compute_image_digest(turned) == compute_image_digest(turned.copy())
    assert compute_image_digest(turned) != compute_image_digest(pixels)
    assert compute_image_digest(pixels.reshape(4, 3)) != compute_image_digest(pixels)
