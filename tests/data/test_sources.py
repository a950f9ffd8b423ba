"""What people give as data: files, frames, columns, and labels of every kind."""

import itertools
import json
import math
from dataclasses import replace
from functools import partial

import datasets
import pandas as pd
import pytest

from hf_attnprobe import AttnProbeError, Data, load_examples
from hf_attnprobe.data.examples import (
    compute_dataset_fingerprint,
    describe_text_columns,
    get_label_names,
    get_label_type,
    load_splits,
    prepare_splits,
)
from hf_attnprobe.data.recipes import RECIPES
from tests.helpers.error_messages import refusal, refused, refuses


TEXTS = ["NULL", "nan", "NA", "None of it", "a\ttab", "fine"]
ROWS = [{"text": text, "label": k % 2} for k, text in enumerate(TEXTS)]


pytestmark = pytest.mark.usefixtures("private_cache")


message = partial(refusal, load_examples)


def labels(rows, **options):
    return load_examples(rows, "test", **options)["label"][:]


def write(path):
    """The rows in the format that the file's name tells."""
    frame = pd.DataFrame(ROWS)
    kind = path.suffix
    if kind in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if kind == ".tsv" else ",")
    elif kind == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=kind == ".jsonl")
    return path


def test_a_file_is_one_split_with_its_cells_as_they_are(tmp_path):
    for kind in ("csv", "tsv", "json", "jsonl", "parquet"):
        path = write(tmp_path / f"test.{kind}")
        examples = load_examples(path, "test")
        assert examples["text"][:] == TEXTS
        assert compute_dataset_fingerprint(examples) == compute_dataset_fingerprint(
            load_examples(ROWS, "test")
        )
        with pytest.raises(
            AttnProbeError,
            match=r"training needs the splits .* got a single file. To split it, use",
        ):
            load_splits(path)
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "test.csv")
    assert load_examples(tmp_path / "d", "test")["text"][:] == TEXTS


def placed(folder, kind, table):
    """A table as a file, in a folder, or in a folder that stands for a named data set."""
    folder.mkdir()
    name = {"folder": "test.csv", "published": "adr_dataset.csv"}.get(kind, f"d.{kind}")
    (folder / name).write_text(table.replace(",", "\t") if kind == "tsv" else table)
    return {"folder": folder, "published": f"adr={folder}"}.get(kind, folder / name)


COMMAS = {
    "every row": (0, "text,label\nthe film, was dull,0\na fine, plot,1\n"),
    "the first row": (0, "text,label\nthe film, was dull,0\na plot,1\na film,1\n"),
    "a later row": (1, "text,label\nthe film,0\na fine, plot,1\n"),
    "class names": (0, "text,label\nthe film, was dull,neg\na fine, plot,pos\n"),
    "label first": (0, "label,text\n0,the film, was dull\n1,a fine, plot\n"),
    "too few": (1, "text,label\nthe film,0\na fine plot\n"),
}


def test_a_row_of_more_or_fewer_fields_than_the_header_is_refused(tmp_path):
    """pandas takes the first field of such rows for an index, and another for the text."""
    for kind, (where, (row, table)) in itertools.product(
        ("csv", "tsv", "folder", "published"), COMMAS.items()
    ):
        line = message(placed(tmp_path / f"{kind}-{where}", kind, table), "test")
        assert f"row {row} (line {row + 2}) has" in line
        assert "in double quotes" in line


def test_quoted_separators_and_line_ends_are_text(tmp_path):
    rows = ["the film, was dull", "a fine\nplot", 'so "good", they said', "x" * 200_000]
    frame = pd.DataFrame({"text": rows, "label": [0, 1, 1, 0]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "d.csv").write_text((tmp_path / "d.csv").read_text() + "\n  \n")
    assert load_examples(tmp_path / "d.csv", "test")["text"][:] == rows


def test_blanks_around_the_names_of_a_header_are_none_of_them(tmp_path):
    table = "number, text ,label\n7,a film of more than five words,1\n"
    file, folder = (placed(tmp_path / kind, kind, table) for kind in ("csv", "folder"))
    for given in (file, folder, f"adr={folder}"):
        examples = load_examples(given, "test")
        assert examples["text"][:] == ["a film of more than five words"]
        assert examples["label"][:] == [1]


def test_a_name_that_is_twice_in_a_header_is_refused(tmp_path):
    (tmp_path / "d.csv").write_text("text,label, text\na film,0,a plot\n")
    assert "have the same name. Rename one of the columns text, label, text" in message(
        tmp_path / "d.csv", "test"
    )


def test_a_file_that_cannot_be_read_names_the_kinds(tmp_path):
    (tmp_path / "rows.xlsx").write_bytes(b"PK")
    assert ".csv, .tsv" in message(str(tmp_path / "rows.xlsx"), "test")


def test_data_in_memory_in_every_form_is_the_same_data():
    expected = compute_dataset_fingerprint(load_examples(ROWS, "test"))
    frame = pd.DataFrame(ROWS)
    columns = {"text": TEXTS, "label": frame.label.to_numpy()}
    split = {"test": ROWS, "train": ROWS[:2]}
    for form in (frame, columns, datasets.Dataset.from_list(ROWS), tuple(ROWS), split):
        assert compute_dataset_fingerprint(load_examples(form, "test")) == expected
    assert load_examples(TEXTS, "test")["text"][:] == TEXTS
    assert labels(TEXTS) == [-1] * len(TEXTS)
    with pytest.raises(AttnProbeError, match=r"training needs the splits .* got a single split"):
        load_splits(columns)
    assert "text 2, label 1" in message({"text": ["a", "b"], "label": [0]}, "test")


def test_one_missing_label_leaves_the_others_classes(tmp_path):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": None}]
    frame = pd.DataFrame(rows)
    assert frame.label.dtype == float
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert labels(rows) == labels(frame) == labels(tmp_path / "t.csv") == [1, -1]
    (tmp_path / "n.csv").write_text("text,label\na,1\nb,NA\nc,0\n")
    named = load_examples(tmp_path / "n.csv", "test", labels=["NA="])
    assert [get_label_names(named)[k] if k >= 0 else None for k in named["label"]] == [
        "1",
        None,
        "0",
    ]


def test_fractions_are_numbers_to_be_predicted():
    rows = [{"text": "a", "label": 2.5}, {"text": "b"}, {"text": "c", "label": 1}]
    examples = load_examples(rows, "test")
    assert get_label_type(examples) == "numbers" and get_label_names(examples) == []
    assert examples.features["label"].dtype == "float64"
    assert examples["label"][0] == 2.5 and examples["label"][2] == 1
    assert math.isnan(examples["label"][1])
    again = load_examples(examples, "test")
    assert compute_dataset_fingerprint(again) == compute_dataset_fingerprint(examples)
    refused("one class per training text", prepare_splits, rows, rows, None)


def test_lists_are_several_labels():
    for given, names in (
        ([[0, 2], [], [1]], ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ([["joy", "awe"], [], ["fear"]], ["awe", "fear", "joy"]),
    ):
        examples = load_examples([{"text": "a", "labels": value} for value in given], "test")
        assert get_label_type(examples) == "several" and examples["label"][:] == [[0, 2], [], [1]]
        assert get_label_names(examples) == names
        again = load_examples(examples, "test")
        assert again[:] == examples[:] and again.features == examples.features


def test_one_column_per_label():
    rows = [{"text": "a", "toxic": 1, "rude": 0}, {"text": "b", "toxic": 1, "rude": 1}]
    examples = load_examples(rows, "test", label_column=["rude", "toxic"])
    assert examples["label"][:] == [[1], [0, 1]]
    assert get_label_names(examples) == ["rude", "toxic"]
    rows[1]["rude"] = 2
    assert "column 'rude' contains 2 in row 1" in message(
        rows, "test", label_column=["rude", "toxic"]
    )


def test_labels_that_are_none():
    for rows, expected in (
        ([{"text": "a", "label": 4 * 10**18}], "row 0 has 4000000000000000000"),
        ([{"text": "a", "label": math.inf}], "finite"),
        ([{"text": "a", "label": {"x": 1}}], "dict"),
        ([{"text": "a", "label": 0}, {"text": "b", "label": -3}], "row 1 has -3"),
        ([{"text": "a", "label": 1}, {"text": "b", "label": "x"}], "Could not convert 'x'"),
        ([{"text": "a", "label": [1, "x"]}], "'label' must contain values of the same type"),
        (
            [{"text": "a", "rationale": [1, "x"]}],
            "'rationale' must contain values of the same type",
        ),
        ([{"text": "a", "label": [0, 1]}], "contains one-hot lists such as [0, 1]. If each text"),
        ([{"text": "a", "label": [0, 0]}], "seems to contain masks of 0 and 1"),
        ([{"text": "a", "label": [1.0, 0.0, 1.0]}], "one column of 0 and 1 per label"),
        ([{"text": "a", "label": [0, -3]}], "row 0 has -3"),
        ([{"text": "a", "label": [0.5]}], "lists of label names or of whole numbers"),
        ([{"text": "a", "label": 2**70}], "'label' must contain values of the same type"),
    ):
        assert expected in message(rows, "test")


def test_ids_past_int64_are_refused(tmp_path):
    rows = [{"example_id": 2**70 + k, "text": "a", "label": 0} for k in range(2)]
    pd.DataFrame(rows).to_csv(tmp_path / "t.csv", index=False)
    for source in (rows, tmp_path / "t.csv", pd.DataFrame(rows)):
        with refuses("example_id"):
            load_examples(source, "test")


def test_rationales_are_lists_of_positions():
    for cells, expected in (
        ([[0, 2], [1]], [[0, 2], [1]]),
        ([[0, 2], None], [[0, 2], []]),
        ([[], []], [[], []]),
        (["0 2", "1"], None),
        ([[True, False, True], [False, True, False]], None),
        ([2, 1], None),
    ):
        rows = [{"text": "a good film", "rationale": cell} for cell in cells]
        examples = load_examples(rows, "test")
        if expected is None:
            assert "rationale" not in examples.column_names
        else:
            assert examples["rationale"][:] == expected


def test_without_a_label_column_training_says_so():
    rows = [{"text": "a"}, {"text": "b"}]
    refused(
        "the training texts have no labels. Choose the label column",
        prepare_splits,
        rows,
        rows,
        None,
    )
    some = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    refused(
        "1 of 2 validation texts have no label",
        prepare_splits,
        some,
        [some[0], {"text": "c"}],
        None,
    )


def test_a_named_set_in_a_folder_with_the_usual_columns(tmp_path):
    rows = [
        {"text": "w " * 9, "label": name}
        for name in ("rec.sport.hockey", "rec.sport.baseball", "sci.med")
    ]
    (tmp_path / "d").mkdir()
    pd.DataFrame(rows).to_json(tmp_path / "d" / "test.jsonl", orient="records", lines=True)
    recipe = replace(RECIPES["20news"], hub_id=str(tmp_path / "d"))
    assert labels(recipe) == [1, 0]


def test_words_with_labels():
    rows = [
        {"tokens": ["Anna", "in", "Bonn"], "ner_tags": [1, 0, 2]},
        {"tokens": ["no", "U S", "."], "ner_tags": [0, -100, 0]},
    ]
    features = datasets.Features(
        tokens=datasets.List(datasets.Value("string")),
        ner_tags=datasets.List(datasets.ClassLabel(names=["O", "PER", "LOC"])),
    )
    examples = load_examples(datasets.Dataset.from_list(rows[:1], features=features), "test")
    assert examples["text"][:] == ["Anna in Bonn"]
    assert examples["word_labels"][:] == [[1, 0, 2]]
    assert examples.features["word_labels"].feature.names == ["O", "PER", "LOC"]
    again = load_examples(examples, "test")
    assert again[:] == examples[:] and again.features == examples.features
    assert load_examples(rows, "test")["word_labels"][1] == [0, -1, 0]
    assert load_examples(rows, "test")["text"][1] == "no US ."
    named = [{"tokens": ["a", "b"], "tags": ["X", "O"]}]
    assert load_examples(named, "test")["word_labels"][:] == [[1, 0]]
    rows[0]["pos_tags"] = rows[1]["pos_tags"] = [1, 2, 3]
    assert "ner_tags, pos_tags" in message(rows, "test")
    chosen = load_examples(rows, "test", label_column="pos_tags")
    assert chosen["word_labels"][:] == [[1, 2, 3]] * 2
    assert "row 0 has 2 words and 1 label" in message([{"tokens": ["a", "b"], "tags": [1]}], "test")


def test_answers_are_places_in_the_context():
    context = "Anna lives in Bonn ."
    rows = [
        {"answers": {"text": ["Bonn", "in Bonn"], "answer_start": [14, 11]}},
        {"answers": {"text": [], "answer_start": []}},
    ]
    rows = [{"question": "Where ?", "context": context, **row} for row in rows]
    examples = load_examples(rows, "test")
    assert examples["text"][:] == ["Where ?"] * 2
    assert examples["text_pair"][:] == [context] * 2
    assert examples["answer_start"][:] == [14, -1]
    assert examples["answer_end"][:] == [18, -1]
    assert context[14:18] == "Bonn"
    assert load_examples(examples, "test")[:] == examples[:]
    rows[0]["answers"]["answer_start"] = [13, 11]
    assert "'Bonn' at character 13" in message(rows, "test")


def test_choices_of_the_usual_data_sets():
    ends = {f"ending{k}": f"end {k}" for k in range(4)}
    swag = {"sent1": "He sits.", "sent2": "He", **ends, "label": 2}
    arc = {
        "question": "Why?",
        "choices": {"text": ["so", "not"], "label": ["A", "B"]},
        "answerKey": "B",
    }
    hellaswag = {"ctx": "He sits.", "endings": ["up", "down"], "label": "1"}
    for row, text, choices, label in (
        (swag, "He sits.", [f"He end {k}" for k in range(4)], 2),
        (arc, "Why?", ["so", "not"], 1),
        (hellaswag, "He sits.", ["up", "down"], 1),
    ):
        examples = load_examples([row], "test")
        assert examples["text"][:] == [text] and examples["choices"][:] == [choices]
        assert examples["label"][:] == [label]
        assert load_examples(examples, "test")[:] == examples[:]
    assert "at least two" in message([{**hellaswag, "endings": ["one"]}], "test")


def test_what_was_read_is_on_record(tmp_path):
    rows = [{"premise": "a", "hypothesis": "b", "label": 0}]
    examples = load_examples(rows, "test")
    assert describe_text_columns(examples) == "premise with hypothesis"
    assert describe_text_columns(examples.select([0])) == "premise with hypothesis"
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"a": "x", "b": "y", "label": 0}) + "\n")
    data = Data(path, text_column="a", text_pair_column="b")
    assert describe_text_columns(data.load_examples()) == "a with b"


# --- labels and the model's classes ---------------------------------------------------


# --- Rows without a text ----------------------------------------------------------------


BLANK_ROWS = [
    {"text": text, "label": k % 2} for k, text in enumerate(["a film", None, "", " \t", "a plot"])
]


@pytest.mark.parametrize(
    "name", ["t.csv", "t.tsv", "t.json", "t.jsonl", "t.parquet", "rows", "frame", "NaN", "Dataset"]
)
def test_missing_texts_are_read_alike_from_every_format(name, tmp_path):
    path = tmp_path / name
    frame = pd.DataFrame(BLANK_ROWS)
    if path.suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix:
        frame.to_json(path, orient="records", lines=path.suffix == ".jsonl")
    sources = {
        "rows": BLANK_ROWS,
        "frame": frame,
        "NaN": [{**row, "text": row["text"] or math.nan} for row in BLANK_ROWS],
        "Dataset": datasets.Dataset.from_list(BLANK_ROWS),
    }
    examples = load_examples(sources.get(name, path), "test")
    assert [text.strip() for text in examples["text"]] == ["a film", "", "", "", "a plot"]
    assert examples["label"][:] == [0, 1, 0, 1, 0]


def test_a_list_of_texts_may_lack_some():
    assert load_examples(["a", None, math.nan], "test")["text"][:] == ["a", "", ""]


# --- Names of columns -------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_spaces_around_a_column_name_do_not_count(suffix, tmp_path):
    path = tmp_path / f"t{suffix}"
    frame = pd.DataFrame({"Review ": ["1984", "b"], " Stars": [1, 0]})
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    for text, label in (("Review ", " Stars"), ("Review", "Stars")):
        examples = load_examples(path, "test", text_column=text, label_column=label)
        assert (examples["text"][:], examples["label"][:]) == (["1984", "b"], [1, 0])
    refused("apart from spaces", load_examples, {"text": ["a"], "text ": ["b"]}, "test")


def test_nested_columns_are_named_with_dots(tmp_path):
    rows = [{"review": {"body": {"en": f"text {k}"}, "stars": k}, "id": k} for k in range(3)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for source in (tmp_path / "t.jsonl", rows, {"test": rows}):
        examples = load_examples(
            source, "test", text_column="review.body.en", label_column="review.stars"
        )
        assert examples["text"][:] == ["text 0", "text 1", "text 2"]
        assert examples["label"][:] == [0, 1, 2]
    assert "no column 'review.title'. Choose one of review, id with --text-column" in message(
        rows, "test", text_column="review.title"
    )


# --- Files that are not what their names say --------------------------------------------


MISLEADING = {
    "t.tsv": ("text,label\na film,1\n", "ends in .tsv, so its columns must be separated by tabs"),
    "wrapped.json": ('{"version": 1, "data": [{"text": "a"}]}', "its list 'data' seems to contain"),
    "columns.json": ('{"text": {"0": "a"}, "label": {"0": 1}}', "use to_json(…, orient='records'"),
    "broken.jsonl": ('{"text": "a"}\n{"text": b}\n', "not valid JSON: line 2, column 10"),
    "cut.json": ('[{"text": "a"},\n {"text"', "not valid JSON: line 2, column 9"),
    "t.parquet": ("text,label\n", "is not a complete Parquet file"),
    "empty.parquet": ("", "is empty"),
}


@pytest.mark.parametrize("name", MISLEADING)
def test_a_file_that_is_not_what_its_name_says(name, tmp_path):
    content, expected = MISLEADING[name]
    (tmp_path / name).write_text(content)
    assert expected in message(tmp_path / name, "test")


def test_folders_of_text_files_have_no_labels(tmp_path, caplog):
    for name in ("pos", "neg"):
        (tmp_path / "both" / name).mkdir(parents=True)
        (tmp_path / "both" / name / "1.txt").write_text("a film")
    line = message(tmp_path / "both", "train")
    assert "are in the folders neg, pos, but names of folders are not read as labels" in line
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "test.txt").write_text("a film\na plot")
    assert load_examples(tmp_path / "flat", "test")["text"][:] == ["a film", "a plot"]
    assert "each line is read as a text without a label" in caplog.text


def test_a_saved_dataset_without_splits_offers_a_holdout(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    line = message(tmp_path / "saved", "test")
    assert "Choose one of train with --split, or test on a part of it with --holdout .2" in line
    assert len(load_examples(tmp_path / "saved", "test", holdout=0.2)) == 1
