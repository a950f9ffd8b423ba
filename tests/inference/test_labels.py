"""Labels of a model: they are matched with labels of data as their names say."""

import pytest

from hf_attnprobe import load_examples
from hf_attnprobe.inference.labels import convert_class_labels
from tests.helpers.error_messages import refuses


pytestmark = pytest.mark.usefixtures("private_cache")


MATCHED = [
    # the same names, whatever their case, blanks and order
    (["POSITIVE", "NEGATIVE"], ["negative", "positive"], [1, 0]),
    (["negative", "positive"], [" positive", "negative "], [1, 0]),
    ([" no", "yes "], ["yes", "no"], [1, 0]),
    # names that are numbers
    (["LABEL_1", "LABEL_0"], [0, 1, -1], [0, 1, -1]),
    (["cat", "dog"], [1, 0], [1, 0]),
    (["LABEL_0", "LABEL_1"], ["pos", "neg"], [1, 0]),
    (["no", "yes"], ["LABEL_1", "LABEL_0"], [1, 0]),
    ([f"c{k}" for k in range(12)], [str(k) for k in range(12)], [*range(12)]),
]


REFUSED = [
    (
        ["good", "bad"],
        ["neg", "pos"],
        "has the labels 'neg', 'pos', but the model predicts the 2 classes",
    ),
    (
        ["POSITIVE", "NEGATIVE"],
        ["neg", "pos"],
        "the model predicts the 2 classes POSITIVE, NEGATIVE",
    ),
    (
        ["c0", "c1"],
        ["1", "2"],
        "has the label '2', but the model predicts the 2 classes c0, c1",
    ),
    (["toxic", "toxic"], ["toxic", "fine"], "have the same name: 'toxic', 'toxic'. Rename them"),
    (["Straße", "STRASSE"], ["Straße", "STRASSE"], "have the same name: 'Straße', 'STRASSE'"),
    (["no", " no"], ["no", "no"], "have the same name: 'no', ' no'"),
]


def rows_of(*values):
    return [{"text": f"text {k}", "label": value} for k, value in enumerate(values)]


def test_labels_are_matched_as_their_names_say():
    for classes, given, numbers in MATCHED:
        assert convert_class_labels(classes, load_examples(rows_of(*given), "test")) == numbers
    for classes, given, expected in REFUSED:
        with refuses() as caught:
            convert_class_labels(classes, load_examples(rows_of(*given), "test"))
        assert expected in str(caught.value)
