"""Labels of a model: they are matched with labels of data as their names say."""

import datasets
import pytest
from transformers import BertForSequenceClassification

from hf_attnprobe import load_examples
from hf_attnprobe.adapters import wrap
from hf_attnprobe.inference.labels import convert_class_labels, convert_labels
from tests.helpers import tiny_models
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


# --- Several labels of a text -----------------------------------------------------------


NAMES = ("toxic", "insult", "threat")
SETS = [["toxic"], [], ["toxic", "insult"]]


def convert_sets(source, **options):
    """Return 0, 1 or −1 for each label of a model of several labels, for each text of the data."""
    model = tiny_models.bert(
        kind=BertForSequenceClassification,
        id2label=dict(enumerate(NAMES)),
        problem_type="multi_label_classification",
    )
    examples = load_examples(source, "test", **options)
    return convert_labels(wrap(model).prediction, examples, None, {}, None)


def test_a_label_that_applies_to_no_text_is_a_label(caplog):
    as_names = [{"text": f"text {k}", "label": names} for k, names in enumerate(SETS)]
    as_numbers = [{**row, "label": [NAMES.index(n) for n in row["label"]]} for row in as_names]
    expected = [[1, 0, 0], [0, 0, 0], [1, 1, 0]]
    assert convert_sets(as_numbers) == convert_sets(as_names) == expected
    # A loaded split may be passed on, and lists may be renamed.
    assert convert_sets(load_examples(as_names, "test")) == expected
    renamed = [
        {**row, "label": ["poison" if n == "toxic" else n for n in row["label"]]}
        for row in as_names
    ]
    assert convert_sets(renamed, labels=["poison=toxic"]) == expected
    assert not caplog.records


def test_labels_without_a_column_or_a_declared_name_are_unknown(caplog):
    columns = {"text": ["a", "b"], "toxic": [1, 0], "insult": [0, 1]}
    expected = [[1, 0, -1], [0, 1, -1]]
    assert convert_sets(columns, label_column=["toxic", "insult"]) == expected
    feature = datasets.List(datasets.ClassLabel(names=["toxic", "insult"]))
    declared = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [[0], [1]]})
    assert convert_sets(declared.cast_column("label", feature)) == expected
    expected_line = "no column or name for 1 of the model's 3 labels (threat)"
    assert [expected_line in record.getMessage() for record in caplog.records] == [True, True]


@pytest.mark.parametrize(
    ("classes", "label", "expected"),
    [
        ("ab", 5, "has the label '5', but the model predicts the 2 classes a, b"),
        ("ab", 5, "with --labels 0=CLASS 5=CLASS"),
        ("ab", "c", "with --labels c=CLASS."),
        ("ab", "[0, 1]", "a list of labels or a one-hot list"),
        ("ab", "a, b", "a list of labels or a one-hot list"),
        ("ab", "0,25", "numbers with decimal commas"),
    ],
)
def test_messages_write_labels_as_the_file_does(classes, label, expected):
    first = 0 if isinstance(label, int) else label
    with refuses() as caught:
        convert_class_labels(classes, load_examples(rows_of(first, label), "test"))
    assert expected in str(caught.value) and "LABEL_" not in str(caught.value)


def test_a_cell_with_several_labels_is_quoted_with_the_list_to_write():
    with refuses() as caught:
        convert_sets(rows_of("toxic, insult", "none"))
    line = str(caught.value)
    assert "text 0 has the label 'toxic, insult'" in line and "['toxic', 'insult']" in line


def test_texts_are_named_by_their_id_in_the_source():
    rows = [{"example_id": 70 + k, "text": "a", "label": k % 2} for k in range(2)]
    with refuses("text 70 has the label 0"):
        convert_sets(rows)
