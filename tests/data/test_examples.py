import gzip
import hashlib
import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import datasets
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.examples import (
    _choose_split,
    compute_dataset_fingerprint,
    get_label_names,
    load_examples,
)
from hf_attnprobe.data.recipes import RECIPES, Recipe, split_sentences
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.data.tokenizer import read_vectors
from hf_attnprobe.storage.rows import read_rows
from tests.helpers.error_messages import refusal, refused, refuses


ROOT = Path(__file__).parents[2]
SHARED = ROOT / "../shared/data"
ROWS = [{"text": f"a sentence of number {i}", "label": i % 2} for i in range(10)]


pytestmark = pytest.mark.usefixtures("private_cache")


def write_folder(folder, rows, form):
    """Three splits in one of the forms that `load_dataset` reads."""
    folder.mkdir()
    for split, part in {"train": rows[:6], "validation": rows[6:8], "test": rows[8:]}.items():
        table = datasets.Dataset.from_list(part)
        getattr(table, f"to_{form}")(folder / f"{split}.{form}")
    return folder


message = partial(refusal, load_examples)


# --- what comes out -----------------------------------------------------------------------------------------------


def test_a_folder_gives_the_three_columns(tmp_path):
    texts = [row["text"] for row in ROWS]
    for form in ("parquet", "csv", "json"):
        examples = load_examples(str(write_folder(tmp_path / form, ROWS, form)), "validation")
        assert examples.column_names == ["example_id", "text", "label"]
        assert examples[:] == {"example_id": [0, 1], "text": texts[6:8], "label": [0, 1]}
        kinds = {examples.features[name].dtype for name in ("example_id", "label")}
        assert kinds == {"int64"}
    datasets.DatasetDict(test=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "saved")
    assert load_examples(tmp_path / "saved", "test")["text"][:] == texts


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
    # A column may hold numbers as strings or floats, depending on the format of the file.
    for kind in (str, float):
        rows = [{**row, "example_id": kind(7 * i)} for i, row in enumerate(ROWS)]
        assert load_examples(rows, "test")["example_id"][:3] == [0, 7, 14]


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 2, 9], "rows 2 and 8 both have 2"),
        ([0, 1, None, 3, 4, 5, 6, 7, 8, 9], "row 2 has None"),
        ([f"q{i}" for i in range(10)], "row 0 has 'q0'"),
        (["0", "1", "2", "x3", *"456789"], "row 3 has 'x3'"),
        ([*"01234", "", *"6789"], "row 5 has ''"),
        (["1" * 5000, *"123456789"], "row 0 has '1111"),
        (range(5, -5, -1), "row 6 has -1"),
        ([i / 2 for i in range(10)], r"row 1 has 0\.5"),
        ([0.0, 1.0, float("nan"), *range(3, 10)], "row 2 has nan"),
        ([i > 4 for i in range(10)], "row 0 has False"),
    ],
)
def test_ids_that_name_no_row_are_refused_with_the_row(ids, problem):
    """They are never replaced by row numbers, since scores by id would then go to other texts."""
    rows = [{**row, "example_id": i} for row, i in zip(ROWS, ids, strict=True)]
    with refuses(f"'example_id' must contain a different whole number.*, but {problem}"):
        load_examples(rows, "test")
    questions = [{**row, "question": "Who?", "context": "A. B."} for row in rows]
    with refuses(f"'example_id' must contain a different whole number.*, but {problem}"):
        Answers(questions).load_examples()


def test_columns_are_text_then_sentence_then_as_named():
    both = [{"text": "a", "sentence": "b", "label": 0, "stars": 3}]
    assert load_examples(both, "test")["text"][:] == ["a"]
    assert load_examples([{"sentence": "b", "label": 0}], "test")["text"][:] == ["b"]
    named = load_examples(both, "test", text_column="sentence", label_column="stars")
    assert (named["text"][:], named["label"][:]) == (["b"], [3])
    blank = [{"text": " \n ", "label": 0}, {"text": "", "label": 1}]  # which are left in
    assert load_examples(blank, "test")["text"][:] == [" \n ", ""]


# --- labels -------------------------------------------------------------------------------------------------------


def test_string_labels_are_numbered_alike_in_all_splits():
    parts = {"train": ["z", "m", "a"], "test": ["z", "m"]}
    source = datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({"text": labels, "label": labels})
            for name, labels in parts.items()
        }
    )
    examples = load_examples(source, "test")
    assert get_label_names(examples) == ["a", "m", "z"] and examples["label"][:] == [2, 1]


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
    assert get_label_names(examples) == ["rec.sport.baseball", "rec.sport.hockey"]
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
        splits = {"train": source, "test": source, **more}
        return list(_choose_split(splits, split, recipe, seed)[1])

    everything = list(range(50))
    assert sorted(ids("train") + ids("validation")) == everything and len(ids("validation")) == 10
    assert ids("validation") == ids("validation") != ids("validation", seed=1)
    assert ids("test") == ids("train", validation=source) == everything
    assert ids("validation", validation=source) == everything


def test_the_test_split_of_sst2_is_the_labelled_one(tmp_path):
    rows = [{"sentence": row["text"], "label": row["label"]} for row in ROWS]
    folder = write_folder(tmp_path / "d", rows, "csv")
    assert load_examples(local("sst2", folder), "test")[:] == load_examples(folder, "validation")[:]


def test_several_text_columns_are_joined_leaving_out_what_is_missing(tmp_path, cli, checkpoint):
    contents = ["it rains", None, ""] + ["it rains"] * 7
    rows = [
        {"topic": i % 2, "question_title": f"why {i}?", "question_content": content}
        | {"best_answer": "because ."}
        for i, content in enumerate(contents)
    ]
    examples = load_examples(local("yahoo", write_folder(tmp_path / "d", rows, "json")), "test")
    assert examples["text"][:] == [f"why {i}? it rains because ." for i in (8, 9)]
    columns = {"text_column": ["best_answer", "question_content"], "label_column": "topic"}
    in_memory = load_examples(rows, "test", **columns)
    assert in_memory["text"][:3] == ["because . it rains", "because .", "because ."]
    assert "--text-column" in message(rows, "test", text_column=["best_answer", "question"])
    assert "row 0 has a cell of type int" in message(
        rows, "test", text_column=["best_answer", "topic"]
    )
    rows = [{"title": "the film", "body": f"was good {i}", "label": "positive"} for i in range(10)]
    folder = write_folder(tmp_path / "c", rows, "json")
    command = ["audit", "--model", checkpoint, "--dataset", folder, "--output-dir", tmp_path / "o"]
    command += ["--tests", "uniform_attention", "--text-column", "title", "body"]
    assert cli(*command).code == 0
    rows = read_rows(tmp_path / "o" / "rows")
    assert set(rows[rows.statistic == "n_tokens"].value) == {5}


def test_classes_that_are_numbered_from_one(tmp_path):
    rows = [
        {"class_index": i % 5 + 1, "review_title": None, "review_text": f"fine {i}"}
        for i in range(10)
    ]
    examples = load_examples(local("amazon", write_folder(tmp_path / "d", rows, "csv")), "test")
    assert examples["label"][:] == [3, 4] and get_label_names(examples)[0] == "1 star"
    ratings = [{"text": "a", "label": label} for label in (1, 10, -1, 5, 6)] * 2
    folder = write_folder(tmp_path / "i", ratings, "parquet")
    rated = load_examples(local("imdb10", folder), "train")
    assert rated["label"][:] == [0, 9, -1, 4, 5, 0] and get_label_names(rated)[9] == "10"
    for wrong in (0, 11):
        spoilt = write_folder(tmp_path / f"w{wrong}", [{"text": "a", "label": wrong}] * 10, "csv")
        said = f"from 1 to 10, or -1 for texts without a label, but row 0 has {wrong}"
        assert said in message(local("imdb10", spoilt), "test")
    # Labels with names of their own start at zero.
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(num_classes=10)
    )
    source = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 9]}, features=features)
    datasets.DatasetDict(test=source).save_to_disk(tmp_path / "own")
    assert load_examples(local("imdb10", tmp_path / "own"), "test")["label"][:] == [0, 9]


def test_outliers_are_dropped_from_training_and_validation_only(tmp_path):
    for name, n_sentences, n_tokens in (("amazon", 15, 130), ("yelp", 43, 200), ("yahoo", 50, 350)):
        fits = ["ok . " * n_sentences, "w " * (n_tokens - 1) + "w.", "short"]
        outliers = ["ok . " * (n_sentences + 1), "fine. " + "w " * n_tokens + "w."]
        texts = [*fits, *outliers, "w " * (n_tokens + 1)]
        recipe = RECIPES[name]
        first, *others = recipe.text_column or ("text",)
        empty = dict.fromkeys(others, "") | {recipe.label_column or "label": recipe.first_label}
        rows = datasets.Dataset.from_list([{first: text, **empty} for text in texts])
        kept = {"train": 3, "validation": 3, "test": 6}
        datasets.DatasetDict(dict.fromkeys(kept, rows)).save_to_disk(tmp_path / name)
        for split, n in kept.items():
            examples = load_examples(local(name, tmp_path / name), split)
            assert examples["example_id"][:] == list(range(n))


def test_a_tenth_of_every_class_is_set_apart(tmp_path):
    labels = [min(i % 8, 4) for i in range(320)]  # 40 of four classes, 160 of one
    rows = [{"text": f"word {i}", "label": label} for i, label in enumerate(labels)]
    datasets.DatasetDict(train=datasets.Dataset.from_list(rows)).save_to_disk(tmp_path / "d")
    recipe = local("yelp", tmp_path / "d")
    apart, rest = (load_examples(recipe, split) for split in ("validation", "train"))
    assert [apart["label"][:].count(k) for k in range(5)] == [4, 4, 4, 4, 16]
    assert sorted(apart["example_id"][:] + rest["example_id"][:]) == list(range(320))
    other = load_examples(recipe, "validation", seed=1)
    assert other["example_id"][:] != apart["example_id"][:]


def test_imdb10_without_its_folder_says_what_is_expected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the folder ./imdb10" in message("imdb10", "train")
    rows = [{"text": "a film", "label": rating} for rating in range(1, 11)] * 10
    write_folder(tmp_path / "imdb10", rows, "csv")
    assert len(get_label_names(load_examples("imdb10", "test"))) == 10


def test_recipes_on_the_real_data():
    news = ["World", "Sports", "Business", "Sci/Tech"]
    for name, folder, sizes, names in (
        ("sst", "sst", [889, 887], ["neg", "pos"]),
        ("agnews", "agnews", [1900] * 4, news),
        ("agnews-binary", "agnews", [1900] * 2, ["World", "Business"]),
    ):
        if not (SHARED / folder).is_dir():
            pytest.skip(f"{folder} is not on this machine (expected in ../shared/data)")
        examples = load_examples(local(name, SHARED / folder), "test")
        labels = examples["label"][:]
        assert [labels.count(k) for k in range(len(names))] == sizes and sum(sizes) == len(labels)
        assert get_label_names(examples) == names


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_an_unknown_name_says_what_lists_the_known_ones_and_the_reason(monkeypatch):
    reason = "Couldn't reach 'sstt' on the Hub\n(LocalEntryNotFoundError)" + " and so on" * 99

    def unreachable(*_):
        raise ConnectionError(reason)

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    text = message("sstt", "test")
    assert all(
        said in text for said in ("that `attnprobe datasets` lists", "'sstt'", "Couldn't reach")
    )
    assert len(text) < 480


def test_what_is_missing_is_said_with_what_is_there(tmp_path):
    assert "train, validation, test" in message(write_folder(tmp_path / "d", ROWS, "csv"), "dev")
    rows = [{"body": "a", "label": 0}]
    for options in ({}, {"text_column": "txt"}):
        text = message(rows, "test", **options)
        assert "body, label" in text and "--text-column" in text
    assert "--label-column" in message(ROWS, "test", label_column="stars")
    labels = [{"text": "w " * 9, "label": 5}] * 10
    folder = write_folder(tmp_path / "l", labels, "csv")
    assert "from 0 to 1" in message(local("sst", folder), "test")
    assert "World, Business" in message(local("agnews-binary", folder), "test")


def test_no_row_left_and_other_misuse(tmp_path):
    for empty in ([], datasets.Dataset.from_dict({"text": [], "label": []})):
        assert "split 'test' is empty" in message(empty, "test")
    short = write_folder(tmp_path / "d", [{"text": "short", "label": 0}] * 10, "csv")
    assert "no row of split 'train' passes the filters" in message(local("sst", short), "train")
    assert "limit" in message(ROWS, "test", limit=0)
    assert "got int" in message(3, "test")
    assert "got list" in message([["a text"]], "test")


# --- word vectors -------------------------------------------------------------------------------------------------

VOCAB = {"<pad>": 0, "the": 3, "film": 1, "new york": 2}
GLOVE = "film 1 2 3\nnew york 4 5 6\nunknown 0 0 0\nthe -1 .5 1e-1\nfilm 9 9 9\n"


def test_vectors_of_all_the_text_formats(tmp_path):
    """With and without a header, with any line end, zipped or not."""
    kinds = itertools.product(("", "5 3\n"), ("\n", " \n", "\r\n"), (False, True))
    for header, line_end, zipped in kinds:
        path = tmp_path / ("v.txt.gz" if zipped else "v.txt")
        content = (header + GLOVE).replace("\n", line_end).encode()
        path.write_bytes(gzip.compress(content) if zipped else content)
        vectors, ids = read_vectors(path, VOCAB)
        assert ids.tolist() == [1, 2, 3] and ids.dtype == torch.int64
        torch.testing.assert_close(vectors, torch.tensor([[1, 2, 3], [4, 5, 6], [-1, 0.5, 0.1]]))
    vectors, ids = read_vectors(path, {"nothing": 0})
    assert vectors.shape == (0, 3) and ids.shape == (0,)


def test_vectors_that_cannot_be_read(tmp_path):
    for content, expected in (
        (
            "the 1 2\nfilm 1\n",
            "must contain a word and 2 numbers, separated by spaces, but has 2 fields",
        ),
        ("9 2\nthe 1 2\n\n", "line 3 of .*v must contain a word"),
        ("the 1 2\nfilm 1 two\n", "must contain 2 numbers after the word"),
        ("the\n", "line 1 of .*v must contain a word"),
        ("", "v is empty"),
    ):
        (tmp_path / "v").write_text(content)
        with pytest.raises(AttnProbeError, match=expected):
            read_vectors(tmp_path / "v", VOCAB)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(GLOVE.encode())[:-12])
    (tmp_path / "not.gz").write_text(GLOVE)
    for name in ("cut.gz", "not.gz", "absent"):
        refused("cannot read the word vectors", read_vectors, tmp_path / name, VOCAB)


NUMBERS = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2
)


WORDS = st.text(
    st.characters(exclude_characters=" \n\r", exclude_categories=["Cs"]), min_size=1, max_size=5
)


@settings(max_examples=40)
@given(table=st.dictionaries(WORDS, NUMBERS, min_size=1, max_size=6))
def test_any_table_is_read_back(tmp_path_factory, table):
    path = tmp_path_factory.mktemp("vectors") / "v"
    lines = [f"{word} {' '.join(map(repr, values))}\n" for word, values in table.items()]
    path.write_text(f"{len(table)} 2\n" + "".join(lines), encoding="utf-8", newline="\n")
    vectors, ids = read_vectors(path, {word: i for i, word in enumerate(table)})
    assert ids.tolist() == list(range(len(table)))
    assert torch.equal(vectors, torch.tensor(list(table.values()), dtype=torch.float32))


def test_the_fingerprint_is_the_one_that_is_documented(tmp_path):
    """Of the content alone: neither of its order nor of its form."""
    whole = load_examples(ROWS[:6], "train")
    folder = load_examples(write_folder(tmp_path / "d", ROWS, "csv"), "train")
    prints = {
        compute_dataset_fingerprint(examples) for examples in (whole, folder, whole.shuffle(seed=1))
    }
    lines = [json.dumps([k, row["text"], row["label"]]).encode() for k, row in enumerate(ROWS[:6])]
    documented = hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()[:16]
    assert prints == {documented}
    changed = load_examples([{**ROWS[0], "label": 1}, *ROWS[1:6]], "train")
    for other in (changed, whole.select(range(5))):
        assert compute_dataset_fingerprint(other) != documented
    in_memory = datasets.Dataset.from_list(ROWS)
    assert load_examples(ROWS, "nonsense")[:] == load_examples(in_memory, "test")[:]


def test_labels_of_every_kind():
    features = datasets.Features(
        text=datasets.Value("string"), label=datasets.ClassLabel(names=["no", "yes"])
    )
    named = datasets.Dataset.from_dict({"text": ["a"], "label": [1]}, features=features)
    for rows, labels, names in (
        (named, [1], ["no", "yes"]),
        ([{"text": "a"}], [-1], []),
        ([{"text": "a"}, {"text": "b", "label": 1}], [-1, 1], ["LABEL_0", "LABEL_1"]),
        ([{"text": "a", "label": None}, {"text": "b", "label": "x"}], [-1, 0], ["x"]),
        ([{"text": "a", "label": 2}], [2], ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ([{"text": "a", "label": True}], [1], ["LABEL_0", "LABEL_1"]),
    ):
        examples = load_examples(rows, "test")
        assert (examples["label"][:], get_label_names(examples)) == (labels, names)


# --- lengths ------------------------------------------------------------------------------------------------------


def test_sentences_end_at_punctuation_before_white_space_and_at_line_ends():
    quoted = ['He said "no."', "(Why?)", "Nobody knew..."]
    for text, sentences in {
        "One . Two ! Three": ["One .", "Two !", "Three"],
        " ".join(quoted): quoted,
        "3.5 metres, e.g.this": ["3.5 metres, e.g.this"],
        "a line\n\nanother line\n": ["a line", "another line"],
        " \n ": [],
        "": [],
    }.items():
        assert split_sentences(text) == sentences


@given(st.text("ab .!?\n\"')", max_size=40))
def test_no_token_is_lost_between_sentences(text):
    assert " ".join(split_sentences(text)).split() == text.split()
