import ast
import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import datasets
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.data.examples import (
    _choose_split,
    dataset_fingerprint,
    label_names,
    load_examples,
)
from hf_attnprobe.data.recipes import RECIPES, Recipe, split_sentences
from hf_attnprobe.data.tokenizer import read_vectors
from hf_attnprobe.errors import AttnProbeError


ROOT = Path(__file__).parents[1]
SHARED = ROOT / "../shared/data"
ROWS = [{"text": f"a sentence of number {i}", "label": i % 2} for i in range(10)]


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write_folder(folder, rows, form):
    """Three splits in one of the forms that `load_dataset` reads."""
    folder.mkdir()
    for split, part in {
        "train": rows[:6],
        "validation": rows[6:8],
        "test": rows[8:],
    }.items():
        table, path = datasets.Dataset.from_list(part), folder / f"{split}.{form}"
        {"parquet": table.to_parquet, "csv": table.to_csv, "json": table.to_json}[form](path)
    return folder


def message(*args, **options):
    """The message of the error that loading raises; always one line."""
    with pytest.raises(AttnProbeError) as caught:
        load_examples(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what comes out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_a_folder_gives_the_three_columns(tmp_path, form):
    examples = load_examples(str(write_folder(tmp_path / "d", ROWS, form)), "validation")
    assert examples.column_names == ["example_id", "text", "label"]
    assert examples[:] == {
        "example_id": [0, 1],
        "text": [row["text"] for row in ROWS[6:8]],
        "label": [0, 1],
    }
    assert examples.features["example_id"].dtype == examples.features["label"].dtype == "int64"


def test_a_path_object_and_a_dataset_saved_to_disk_can_be_read(tmp_path):
    datasets.DatasetDict(test=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "saved")
    assert load_examples(tmp_path / "saved", "test")["text"][:] == [row["text"] for row in ROWS]


def test_memory_folder_and_order_have_one_fingerprint_and_other_content_another(
    tmp_path,
):
    whole = load_examples(ROWS[:6], "train")
    folder = load_examples(write_folder(tmp_path / "d", ROWS, "csv"), "train")
    shuffled = whole.shuffle(seed=1)
    fingerprints = {dataset_fingerprint(examples) for examples in (whole, folder, shuffled)}
    assert len(fingerprints) == 1 and len(fingerprints.pop()) == 16
    changed = load_examples([{**ROWS[0], "label": 1}, *ROWS[1:6]], "train")
    assert (
        dataset_fingerprint(changed)
        != dataset_fingerprint(whole)
        != dataset_fingerprint(whole.select(range(5)))
    )


def test_a_list_and_a_dataset_are_one_split_whatever_its_name():
    assert (
        load_examples(ROWS, "nonsense")[:]
        == load_examples(datasets.Dataset.from_list(ROWS), "test")[:]
    )


def test_limit_draws_the_same_rows_every_time_and_fewer_among_more():
    drawn = {n: load_examples(ROWS, "test", limit=n)[:] for n in (1, 3, 6, 99)}
    ids = {n: rows["example_id"] for n, rows in drawn.items()}
    assert [len(ids[n]) for n in (1, 3, 6)] == [1, 3, 6] and ids[99] == list(range(10))
    assert set(ids[1]) < set(ids[3]) < set(ids[6]) and ids[6] == sorted(ids[6])
    assert drawn[3]["text"] == [ROWS[k]["text"] for k in ids[3]]
    assert load_examples(ROWS, "test", limit=3)["example_id"][:] == ids[3]


def test_limit_takes_all_classes_of_a_sorted_data_set():
    """2,000 texts, the first half of one class: 200 of them have 100 ± 35 of it (five standard deviations)."""
    rows = [{"text": f"text {k}", "label": int(k >= 1000)} for k in range(2000)]
    assert abs(sum(load_examples(rows, "test", limit=200)["label"][:]) - 100) <= 35


def test_ids_of_the_source_are_kept_if_usable():
    rows = [{**row, "example_id": 7 * i} for i, row in enumerate(ROWS)]
    assert load_examples(rows, "test")["example_id"][:3] == [0, 7, 14]
    for unusable in ([3] * 10, [str(i) for i in range(10)], range(-5, 5)):
        rows = [{**row, "example_id": i} for row, i in zip(ROWS, unusable, strict=True)]
        assert load_examples(rows, "test")["example_id"][:] == list(range(10))


def test_a_rationale_is_carried_over_if_it_is_positions():
    for name in ("rationale", "evidence"):
        rows = [{**row, name: list(range(i))} for i, row in enumerate(ROWS)]
        assert load_examples(rows, "test")["rationale"][2] == [0, 1]
    assert (
        "rationale"
        not in load_examples(
            [{**row, "rationale": ["a quote"]} for row in ROWS], "test"
        ).column_names
    )


def test_examples_can_be_loaded_again():
    rows = [
        {"text": "good", "label": "pos", "rationale": [0]},
        {"text": "bad", "label": "neg", "rationale": []},
    ]
    once = load_examples(rows, "test")
    again = load_examples(once, "test")
    assert again[:] == once[:] and again.features == once.features


def test_columns_are_text_then_sentence_then_as_named():
    both = [{"text": "a", "sentence": "b", "label": 0, "stars": 3}]
    assert load_examples(both, "test")["text"][:] == ["a"]
    assert load_examples([{"sentence": "b", "label": 0}], "test")["text"][:] == ["b"]
    named = load_examples(both, "test", text_column="sentence", label_column="stars")
    assert (named["text"][:], named["label"][:]) == (["b"], [3])


def test_texts_of_white_space_only_are_left_in():
    assert load_examples([{"text": " \n ", "label": 0}, {"text": "", "label": 1}], "test")["text"][
        :
    ] == [" \n ", ""]


# --- labels -------------------------------------------------------------------------------------------------------


def test_class_labels_keep_their_names():
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"])
    )
    examples = load_examples(
        datasets.Dataset.from_dict({"text": ["a"], "label": [1]}, features=features),
        "test",
    )
    assert label_names(examples) == ["no", "yes"] and examples["label"][:] == [1]


def test_string_labels_are_numbered_alike_in_all_splits():
    parts = {"train": ["z", "m", "a"], "test": ["z", "m"]}
    source = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"text": labels, "label": labels})
            for name, labels in parts.items()
        }
    )
    examples = load_examples(source, "test")
    assert label_names(examples) == ["a", "m", "z"] and examples["label"][:] == [2, 1]


def test_unlabelled_rows_have_minus_one():
    assert load_examples([{"text": "a"}], "test")["label"][:] == [-1]
    assert load_examples([{"text": "a"}, {"text": "b", "label": 1}], "test")["label"][:] == [-1, 1]
    assert load_examples([{"text": "a", "label": None}, {"text": "b", "label": "x"}], "test")[
        "label"
    ][:] == [-1, 0]


def test_integer_labels_have_the_names_of_transformers_and_truth_values_are_integers():
    assert label_names(load_examples([{"text": "a", "label": 2}], "test")) == [
        "LABEL_0",
        "LABEL_1",
        "LABEL_2",
    ]
    assert label_names(load_examples([{"text": "a"}], "test")) == []
    assert load_examples([{"text": "a", "label": True}], "test")["label"][:] == [1]


# --- recipes ------------------------------------------------------------------------------------------------------


def local(name, folder):
    return replace(RECIPES[name], hub_id=str(folder))


def test_every_recipe_names_a_hub_id_and_only_columns_and_splits_that_make_sense():
    for recipe in RECIPES.values():
        assert recipe.hub_id.count("/") == 1
        assert set(recipe.splits) <= {"train", "validation", "test"}
        assert recipe.validation_fraction is None or 0 < recipe.validation_fraction < 1


def test_classes_are_kept_by_name_and_renumbered_in_the_order_of_the_recipe(tmp_path):
    rows = [
        {"text": f"{'word ' * 10}{i}", "label_text": name}
        for i, name in enumerate(["rec.sport.hockey", "sci.med"] * 5)
    ]
    rows[8]["label_text"] = "rec.sport.baseball"
    examples = load_examples(local("20news", write_folder(tmp_path / "d", rows, "json")), "test")
    assert label_names(examples) == ["rec.sport.baseball", "rec.sport.hockey"]
    assert (examples["example_id"][:], examples["label"][:]) == ([0], [0])


def test_length_bounds_are_strict_and_ids_are_rows_before_the_filter(tmp_path):
    rows = [{"text": " ".join(["w"] * n), "label": 0} for n in (6, 7, 399, 400, 8, 9, 1, 1, 1, 1)]
    examples = load_examples(
        local("imdb", write_folder(tmp_path / "d", rows, "parquet")), "train", limit=3
    )
    assert examples["example_id"][:] == [1, 2, 4]


def test_validation_is_set_apart_from_train_where_the_source_has_none():
    rows = [{"text": "w " * 9 + str(i), "label": i % 2} for i in range(50)]
    source = datasets.Dataset.from_list(rows)
    recipe = Recipe("in memory", validation_fraction=0.2)

    def ids(split, seed=0, **more):
        return list(
            _choose_split({"train": source, "test": source, **more}, split, recipe, seed)[1]
        )

    assert (
        sorted(ids("train") + ids("validation")) == list(range(50)) and len(ids("validation")) == 10
    )
    assert ids("validation") == ids("validation") != ids("validation", seed=1)
    assert (
        ids("test")
        == ids("train", validation=source)
        == ids("validation", validation=source)
        == list(range(50))
    )


def test_the_test_split_of_sst2_is_the_labelled_one(tmp_path):
    rows = [{"sentence": row["text"], "label": row["label"]} for row in ROWS]
    folder = write_folder(tmp_path / "d", rows, "csv")
    assert load_examples(local("sst2", folder), "test")[:] == load_examples(folder, "validation")[:]


def test_several_text_columns_are_joined_leaving_out_what_is_missing(tmp_path):
    rows = [
        {
            "topic": i % 2,
            "question_title": f"why {i}?",
            "question_content": content,
            "best_answer": "because .",
        }
        for i, content in enumerate(["it rains", None, ""] + ["it rains"] * 7)
    ]
    examples = load_examples(local("yahoo", write_folder(tmp_path / "d", rows, "json")), "test")
    assert examples["text"][:] == [
        "why 8? it rains because .",
        "why 9? it rains because .",
    ]
    in_memory = load_examples(
        rows,
        "test",
        text_column=["best_answer", "question_content"],
        label_column="topic",
    )
    assert in_memory["text"][:3] == ["because . it rains", "because .", "because ."]
    assert "--text-column" in message(rows, "test", text_column=["best_answer", "question"])
    assert "row 0 is int" in message(rows, "test", text_column=["best_answer", "topic"])


def test_the_command_line_takes_several_text_columns(tmp_path, cli, checkpoint):
    rows = [{"title": "the film", "body": f"was good {i}", "label": "positive"} for i in range(10)]
    folder = write_folder(tmp_path / "d", rows, "json")
    command = (
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        folder,
        "--tests",
        "uniform_attention",
        "--output-dir",
        tmp_path / "o",
    )
    assert cli(*command, "--text-column", "title", "body").code == 0
    rows = pd.read_parquet(tmp_path / "o" / "rows")
    assert set(rows[rows.statistic == "n_tokens"].value) == {5}


def test_classes_that_are_numbered_from_one(tmp_path):
    rows = [
        {"class_index": i % 5 + 1, "review_title": None, "review_text": f"fine {i}"}
        for i in range(10)
    ]
    examples = load_examples(local("amazon", write_folder(tmp_path / "d", rows, "csv")), "test")
    assert examples["label"][:] == [3, 4] and label_names(examples)[0] == "1 star"
    ratings = [{"text": "a", "label": label} for label in (1, 10, -1, 5, 6)] * 2
    rated = load_examples(
        local("imdb10", write_folder(tmp_path / "i", ratings, "parquet")), "train"
    )
    assert rated["label"][:] == [0, 9, -1, 4, 5, 0] and label_names(rated)[9] == "10"
    for wrong in (0, 11):
        spoilt = write_folder(tmp_path / f"w{wrong}", [{"text": "a", "label": wrong}] * 10, "csv")
        assert f"from 1 to 10, or -1 for none, row 0 has {wrong}" in message(
            local("imdb10", spoilt), "test"
        )


def test_labels_with_names_of_their_own_start_at_zero(tmp_path):
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(num_classes=10)
    )
    source = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 9]}, features=features)
    datasets.DatasetDict(test=source).save_to_disk(tmp_path / "d")
    assert load_examples(local("imdb10", tmp_path / "d"), "test")["label"][:] == [0, 9]


@pytest.mark.parametrize(
    ("name", "n_sentences", "n_tokens"),
    [("amazon", 15, 130), ("yelp", 43, 200), ("yahoo", 50, 350)],
)
def test_outliers_are_dropped_from_training_and_validation_only(
    tmp_path, name, n_sentences, n_tokens
):
    fits = ["ok . " * n_sentences, "w " * (n_tokens - 1) + "w.", "short"]
    outliers = [
        "ok . " * (n_sentences + 1),
        "fine. " + "w " * n_tokens + "w.",
        "w " * (n_tokens + 1),
    ]
    recipe = RECIPES[name]
    columns = recipe.text_column or ("text",)
    rows = [
        {
            columns[0]: text,
            **dict.fromkeys(columns[1:], ""),
            recipe.label_column or "label": recipe.first_label,
        }
        for text in fits + outliers
    ]
    source = datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows) for split in ("train", "validation", "test")}
    )
    source.save_to_disk(tmp_path / "d")
    for split, kept in (("train", 3), ("validation", 3), ("test", 6)):
        assert load_examples(local(name, tmp_path / "d"), split)["example_id"][:] == list(
            range(kept)
        )


def test_a_tenth_of_every_class_is_set_apart(tmp_path):
    rows = [
        {"text": f"word {i}", "label": min(i % 8, 4)} for i in range(320)
    ]  # 40 of four classes, 160 of one
    datasets.DatasetDict(train=datasets.Dataset.from_list(rows)).save_to_disk(tmp_path / "d")
    apart, rest = (
        load_examples(local("yelp", tmp_path / "d"), split) for split in ("validation", "train")
    )
    assert [apart["label"][:].count(k) for k in range(5)] == [4, 4, 4, 4, 16]
    assert sorted(apart["example_id"][:] + rest["example_id"][:]) == list(range(320))
    other = load_examples(local("yelp", tmp_path / "d"), "validation", seed=1)
    assert other["example_id"][:] != apart["example_id"][:]


def test_imdb10_without_its_folder_says_what_is_expected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "a folder of data files" in message("imdb10", "train")
    rows = [{"text": "a film", "label": rating} for rating in range(1, 11)] * 10
    write_folder(tmp_path / "imdb10", rows, "csv")
    assert len(label_names(load_examples("imdb10", "test"))) == 10


@pytest.mark.parametrize(
    ("name", "folder", "sizes", "names"),
    [
        ("sst", "sst", {0: 889, 1: 887}, ["neg", "pos"]),
        (
            "agnews",
            "agnews",
            {0: 1900, 1: 1900, 2: 1900, 3: 1900},
            ["World", "Sports", "Business", "Sci/Tech"],
        ),
        ("agnews-binary", "agnews", {0: 1900, 1: 1900}, ["World", "Business"]),
    ],
)
def test_recipes_on_the_real_data(name, folder, sizes, names):
    if not (SHARED / folder).is_dir():
        pytest.skip(
            f"the real data set {folder} is not on this machine (expected in ../shared/data)"
        )
    examples = load_examples(local(name, SHARED / folder), "test")
    labels = examples["label"][:]
    assert {label: labels.count(label) for label in sorted(set(labels))} == sizes
    assert label_names(examples) == names


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_the_known_ones_and_the_reason(monkeypatch):
    def unreachable(*_):
        raise ConnectionError(
            "Couldn't reach 'sstt' on the Hub\n(LocalEntryNotFoundError)" + " and so on" * 99
        )

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    text = message("sstt", "test")
    assert (
        "sst, sst2, imdb" in text
        and "'sstt'" in text
        and "Couldn't reach" in text
        and len(text) < 450
    )


def test_a_folder_without_data_says_so(tmp_path):
    assert "doesn't contain any data files" in message(tmp_path, "test")


def test_a_missing_split_lists_the_splits(tmp_path):
    assert "train, validation, test" in message(write_folder(tmp_path / "d", ROWS, "csv"), "dev")


def test_a_missing_column_lists_the_columns_and_the_flag():
    rows = [{"body": "a", "label": 0}]
    for options in ({}, {"text_column": "txt"}):
        text = message(rows, "test", **options)
        assert "body, label" in text and "--text-column" in text
    assert "--label-column" in message(ROWS, "test", label_column="stars")


@pytest.mark.parametrize(("bad", "kind"), [(None, "NoneType"), (3, "int")])
def test_a_text_that_is_no_string_is_named_by_its_row(bad, kind):
    text = message([ROWS[0], ROWS[1], {"text": bad, "label": 0}], "test")
    assert "row 2" in text and kind in text
    assert "row 0" in message([{"text": 1.5, "label": 0}], "test")


def test_labels_must_be_integers_from_zero_or_strings():
    assert "dict" in message([{"text": "a", "label": {"x": 1}}], "test")
    assert "row 1 has -3" in message(
        [{"text": "a", "label": 0}, {"text": "b", "label": -3}], "test"
    )


def test_labels_must_fit_the_names_of_the_recipe(tmp_path):
    rows = [{"text": "w " * 9, "label": 5}] * 10
    assert "from 0 to 1" in message(local("sst", write_folder(tmp_path / "d", rows, "csv")), "test")
    assert "World, Business" in message(local("agnews-binary", tmp_path / "d"), "test")


def test_no_row_left_and_other_misuse(tmp_path):
    for empty in ([], datasets.Dataset.from_dict({"text": [], "label": []})):
        assert "empty" in message(empty, "test")
    short = write_folder(tmp_path / "d", [{"text": "short", "label": 0}] * 10, "csv")
    assert "no example left of 6 rows" in message(local("sst", short), "train")
    assert "limit" in message(ROWS, "test", limit=0)
    assert "got int" in message(3, "test")
    assert "got list" in message([["a text"]], "test")


def test_datasets_is_imported_only_where_it_is_used():
    for file in (ROOT / "hf_attnprobe/data").rglob("*.py"):
        imported = set()
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
        assert "datasets" not in imported, file


# --- word vectors -------------------------------------------------------------------------------------------------

VOCAB = {"<pad>": 0, "the": 3, "film": 1, "new york": 2}
GLOVE = "film 1 2 3\nnew york 4 5 6\nunknown 0 0 0\nthe -1 .5 1e-1\nfilm 9 9 9\n"


@pytest.mark.parametrize("header", ["", "5 3\n"])
@pytest.mark.parametrize("line_end", ["\n", " \n", "\r\n"])
@pytest.mark.parametrize("zipped", [False, True])
def test_vectors_of_all_the_text_formats(tmp_path, header, line_end, zipped):
    path = tmp_path / ("v.txt.gz" if zipped else "v.txt")
    content = (header + GLOVE).replace("\n", line_end).encode()
    path.write_bytes(gzip.compress(content) if zipped else content)
    vectors, ids = read_vectors(path, VOCAB)
    assert ids.tolist() == [1, 2, 3] and ids.dtype == torch.int64
    torch.testing.assert_close(vectors, torch.tensor([[1, 2, 3], [4, 5, 6], [-1, 0.5, 0.1]]))


def test_no_word_found_gives_empty_tensors_of_the_right_width(tmp_path):
    (tmp_path / "v").write_text(GLOVE)
    vectors, ids = read_vectors(tmp_path / "v", {"nothing": 0})
    assert vectors.shape == (0, 3) and ids.shape == (0,)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("the 1 2\nfilm 1\n", "line 2: expected a word and 2 numbers, got 2 fields"),
        ("9 2\nthe 1 2\n\n", "line 3"),
        ("the 1 2\nfilm 1 two\n", "line 2: expected 2 numbers after the word"),
        ("the\n", "line 1"),
        ("", "empty file"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, content, expected):
    (tmp_path / "v").write_text(content)
    with pytest.raises(AttnProbeError, match=expected):
        read_vectors(tmp_path / "v", VOCAB)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(GLOVE.encode())[:-12])
    (tmp_path / "not.gz").write_text(GLOVE)
    for name in ("cut.gz", "not.gz", "absent"):
        with pytest.raises(AttnProbeError, match="cannot read the word vectors"):
            read_vectors(tmp_path / name, VOCAB)


WORDS = st.text(
    st.characters(exclude_characters=" \n\r", exclude_categories=["Cs"]),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(
    table=st.dictionaries(
        WORDS,
        st.lists(
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            min_size=2,
            max_size=2,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_table_is_read_back(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("vectors") / "v"
    lines = [f"{word} {' '.join(map(repr, values))}\n" for word, values in table.items()]
    path.write_text(f"{len(table)} 2\n" + "".join(lines), encoding="utf-8", newline="\n")
    vectors, ids = read_vectors(path, {word: i for i, word in enumerate(table)})
    assert ids.tolist() == list(range(len(table)))
    assert torch.equal(vectors, torch.tensor(list(table.values()), dtype=torch.float32))


def test_the_fingerprint_is_the_one_that_is_documented():
    rows = [[0, "b", 1], [1, "a", 0]]
    expected = hashlib.sha256(
        b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    ).hexdigest()[:16]
    assert (
        dataset_fingerprint(
            load_examples([{"text": "b", "label": 1}, {"text": "a", "label": 0}], "t")
        )
        == expected
    )


# --- lengths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One . Two ! Three", ["One .", "Two !", "Three"]),
        (
            'He said "no." (Why?) Nobody knew...',
            ['He said "no."', "(Why?)", "Nobody knew..."],
        ),
        ("3.5 metres, e.g.this", ["3.5 metres, e.g.this"]),
        ("a line\n\nanother line\n", ["a line", "another line"]),
        (" \n ", []),
        ("", []),
    ],
)
def test_sentences_end_at_punctuation_before_white_space_and_at_line_ends(text, sentences):
    assert split_sentences(text) == sentences


@given(st.text("ab .!?\n\"')", max_size=40))
def test_no_token_is_lost_between_sentences(text):
    assert " ".join(split_sentences(text)).split() == text.split()
