"""The papers' data sets by name: every Hub id on a small hub, folders, rules, and what goes wrong."""

import json
from functools import partial

import datasets
import pytest

import datasets_page
from hf_attnprobe import list_datasets, load_examples
from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.studies.steps import name_dataset
from tests.helpers import tiny_models
from tests.helpers.data_folders import write
from tests.helpers.error_messages import refusal
from tests.helpers.mini_hub import MiniHub


pytestmark = pytest.mark.usefixtures("private_cache")


message = partial(refusal, load_examples, split="train")


NLI = {"premise": "it rains", "hypothesis": "it is wet", "label": 2}


YAHOO = {"id": 0, "topic": 1, "question_title": "one two", "question_content": ""}


# --- name=folder --------------------------------------------------------------------------------------------------


def test_a_folder_stands_for_a_name_in_every_command(tmp_path, cli, reviews):
    folder = tmp_path / "films"
    for split, part in reviews.items():
        part = part.remove_columns("rationale")
        part.to_csv(write(folder) / f"{split}.csv")
    data = f"sst={folder}"
    options = ("--epochs", 1, "--encoder-size", 4, "--embedding-size", 4)
    done = cli("train", "--dataset", data, "--output-dir", tmp_path / "m", *options)
    assert done.code == 0, done.err
    report = tmp_path / "audit"
    command = ("audit", "--model", tmp_path / "m", "--dataset", data, "--test-limit", 9)
    tests = ("--tests", "uniform_attention", "--output-dir", report)
    assert cli(*command, *tests).code == 0
    assert name_dataset(get_dataset_name(data, "test").name) == "sst"
    # The cut of the name: sentences of more than five words.
    short = [{"text": "too short", "label": 0}, {"text": "w " * 6, "label": 1}]
    write(tmp_path / "few", **{"test.jsonl": short})
    assert len(load_examples(f"sst={tmp_path / 'few'}", "test")) == 1
    assert len(load_examples(tmp_path / "few", "test")) == 2


def test_what_a_folder_lacks_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "n", train__jsonl=[{"text": "a", "label": 0}])
    assert "must have the classes rec.sport.baseball" in message(f"20news={folder}")
    other = write(tmp_path / "o", train__jsonl=[{"tekst": "a", "label": 0}])
    assert "found no text column with a usual name among tekst, label" in message(f"20news={other}")
    assert "no column 'question2'. Choose one of text, label" in message(f"qqp={folder}")
    assert "no column 'text_pair'. Choose one of text, label" in message(f"cnn={folder}")
    assert "Did you mean imdb=" in message(f"imbd={folder}")
    # A name that is like no other is the folder as it is.
    assert len(load_examples(f"mine={folder}", "train")) == 1
    (tmp_path / "empty").mkdir()
    assert "cannot load the data set in the folder 'empty'" in message("cnn=empty")
    for name, recipe in RECIPES.items():
        if recipe.hub_id.startswith("./"):
            assert f"To list the required files, run `attnprobe datasets {name}`" in message(name)


# --- the Hub ------------------------------------------------------------------------------------------------------

LONG = "one two three four five six seven eight"
HUB = {
    # name: columns of the card on the Hub, names of its classes
    "sst": ({"text": LONG, "label": 1, "label_text": "positive"}, None),
    "sst2": ({"idx": 0, "sentence": LONG, "label": 1}, ["negative", "positive"]),
    "imdb": ({"text": LONG, "label": 1}, ["neg", "pos"]),
    "agnews": ({"text": LONG, "label": 2}, ["World", "Sports", "Business", "Sci/Tech"]),
    "20news": ({"text": LONG, "label": 10, "label_text": "rec.sport.hockey"}, None),
    "yahoo": (YAHOO | {"best_answer": "three"}, [f"topic {k}" for k in range(10)]),
    "amazon": ({"class_index": 2, "review_title": "one", "review_text": "two"}, None),
    "yelp": ({"label": 1, "text": LONG}, [f"{k} star" for k in range(1, 6)]),
    "qqp": (
        {"question1": "why?", "question2": "who?", "label": 1, "idx": 0},
        ["not_duplicate", "duplicate"],
    ),
    "snli": (NLI, ["entailment", "neutral", "contradiction"]),
    "multinli": ({"promptID": 1, **NLI}, ["entailment", "neutral", "contradiction"]),
}
EXPECTED = {  # the second row of the test split: text, second text, class
    "sst": (LONG, None, "pos"),
    "sst2": (LONG, None, "positive"),
    "imdb": (LONG, None, "pos"),
    "agnews": (LONG, None, "Business"),
    "agnews-binary": (LONG, None, "Business"),
    "20news": (LONG, None, "rec.sport.hockey"),
    "yahoo": ("one two three", None, "topic 1"),
    "amazon": ("one two", None, "2 stars"),
    "yelp": (LONG, None, "2 star"),
    "qqp": ("why?", "who?", "duplicate"),
    "snli": ("it rains", "it is wet", "contradiction"),
    "multinli": ("it rains", "it is wet", "contradiction"),
}
LOAD_ALL = """
import json, sys
import datasets
datasets.disable_progress_bars()
from hf_attnprobe import list_datasets
from hf_attnprobe import load_splits
from hf_attnprobe.data import sources
from hf_attnprobe.data.examples import get_label_names
load, loaded, found = sources._load_splits, {}, {}
def once(recipe, split):  # the three splits of a data set need one download
    if recipe.name not in loaded:
        loaded[recipe.name] = load(recipe, split)
    return loaded[recipe.name]
sources._load_splits = once
for name in json.loads(sys.argv[1]):
    before = list_datasets(name)[0].at_hand
    splits = load_splits(name)
    row = splits["test"][-1]
    label = get_label_names(splits["test"])[row["label"]]
    after = list_datasets(name)[0].at_hand
    found[name] = [
        row["text"], row.get("text_pair"), label, sorted(splits), before, after
    ]
print(json.dumps(found))
"""


def hub_folder(root, name, columns, names):
    """A folder of the Hub's layout: README.md with the configuration, Parquet files."""
    recipe = RECIPES[name]
    label = recipe.label_column or "label"
    folder = root / "datasets" / recipe.hub_id
    place = recipe.config or "data"
    ours = {"train": "train", "validation": "validation", "test": "test"}
    own = {**ours, **recipe.splits} if name == "multinli" else ours
    held_out = recipe.validation_fraction is not None
    splits = {own[split] for split in ours if not (held_out and split == "validation")}
    first = dict(columns)
    if name in ("20news", "agnews"):
        first[label] = {"20news": "rec.sport.baseball", "agnews": 0}[name]
    elif names or recipe.label_names:
        first[label] = recipe.first_label
    (folder / place).mkdir(parents=True)
    front = f"---\nconfigs:\n- config_name: {recipe.config or 'default'}\n  data_files:\n"
    for split in sorted(splits):
        table = [first, columns]
        if name in ("snli", "multinli"):
            table[1:1] = [first | {label: 1}, first | {label: -1}]
        examples = datasets.Dataset.from_list(table * (10 if split == "train" else 1))
        if names:
            examples = examples.cast_column(label, datasets.ClassLabel(names=names))
        examples.to_parquet(folder / place / f"{split}-00000-of-00001.parquet")
        front += f"  - split: {split}\n    path: {place}/{split}-*\n"
    (folder / "README.md").write_text(f"{front}---\n")


ON_HUB = tuple(name for name, r in RECIPES.items() if not r.hub_id.startswith("./"))


@pytest.mark.parametrize(
    "on_hub", tiny_models.daily([ON_HUB, ("agnews", "agnews-binary")], ("agnews",))
)
def test_every_data_set_of_the_hub_is_loaded_from_a_folder_of_its_layout(
    on_hub, tmp_path, run_python
):
    assert set(ON_HUB) == EXPECTED.keys() == {*HUB, "agnews-binary"}
    for name, (columns, names) in HUB.items():
        hub_folder(tmp_path / "hub", name, columns, names)
    with MiniHub(tmp_path / "hub") as hub:
        offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), **dict.fromkeys(offline)}
        run = run_python("-c", LOAD_ALL, json.dumps(on_hub), env=env)
    assert run.code == 0, run.err
    found = json.loads(run.out.splitlines()[-1])
    cached = "in the Hub's cache"
    for name in on_hub:
        before = cached if name == "agnews-binary" else ""  # as agnews, just before
        splits = ["test", "train", "validation"]
        assert found[name] == [*EXPECTED[name], splits, before, cached], name


# --- the list -----------------------------------------------------------------------------------------------------


def test_every_name_has_a_card_and_says_what_to_bring():
    assert all(recipe.card for recipe in RECIPES.values())
    for dataset in list_datasets():
        text = str(dataset)
        assert dataset.card.rules and f"{dataset.name}=FOLDER" in text
        if not dataset.is_on_hub:
            assert dataset.card.bring and "loaded from the Hub" not in text
        else:
            assert f"({RECIPES[dataset.name].hub_id}" in text


def test_the_page_says_what_the_command_says():
    page = datasets_page.PAGE.read_text()
    assert page == datasets_page.render_page(), "make pages writes it"


def test_the_command_lists_describes_and_counts(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = cli("datasets").out.split("\nLicences")[0].splitlines()
    assert [line.split()[0] for line in listed[1:]] == list(RECIPES)
    story = {"text": "Mary went to the hall", "text_pair": "Where is Mary", "label": "hall"}
    files = {f"{split}__jsonl": [story] * 9 for split in ("train", "test")}
    write(tmp_path / "babi1", **files)
    assert "at hand   ./babi1" in cli("datasets", "babi1").out
    done = cli("datasets", "babi1=babi1", "anemia")
    assert "  found     train 8, validation 1, test 9, after applying the rules below" in done.out
    assert "DIAGNOSES_ICD.csv" in done.out and "at hand   no" in done.out
    (known,) = json.loads(cli("datasets", "snli", "--json").out)
    assert (known["name"], known["n_classes"]) == ("snli", 3)
    for wrong, said_ in (
        ("sstt", "'sstt' is not a registered data set. Choose from sst, sst2"),
        ("sst=x", "'x'"),
    ):
        done = cli("datasets", wrong)
        assert (done.code, done.out) == (1, "") and said_ in done.err
