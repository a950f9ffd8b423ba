"""JSON that a command left and somebody changed: what reads it says so in one line, and nothing runs on it."""

import json
import shutil

import pytest

from hf_attnprobe.cli import main


DELETE = "<deleted>"
CHANGES = [
    ("audit", "summary.json", "statistics 3 mean", {}),
    ("audit", "summary.json", "statistics", {"a": 1}),
    ("audit", "summary.json", "notes", [3]),
    ("audit", "summary.json", "findings 0 ci95", [0.5]),
    ("audit", "summary.json", "findings 0 answer", "perhaps"),
    ("audit", "summary.json", "findings 0 rule", "unheard of"),
    ("audit", "summary.json", "provenance tests", None),
    ("audit", "summary.json", "provenance", [1]),
    ("audit", "summary.json", "provenance prediction", [1]),
    ("audit", "summary.json", "provenance prediction", {"kind": "alien"}),
    ("retrain", "summary.json", "provenance asked_for", 1.5),
    ("retrain", "summary.json", "scores uniform 0 value", "x"),
    ("retrain", "summary.json", "scores uniform 0 model", "another"),
    ("retrain", "summary.json", "scores uniform 1 metric", "another"),
    ("retrain", "summary.json", "statistics 0 statistic", "another"),
    ("study", "summary.json", "title", -1),
    ("study", "summary.json", "data", {"a": 1}),
    ("study", "summary.json", "steps 0 name", [None]),
]
AGAIN = [
    ("train", "training.json", "metrics validation_accuracy", []),
    ("train", "training.json", "weights_sha256", []),
    ("train", "training.json", "n_epochs", DELETE),
    ("retrain", "uniform/training.json", "seconds", "x"),
    ("study", "audit/summary.json", "accuracy", DELETE),
    ("study", "audit/summary.json", "provenance", [1]),
    ("study", "study.json", "data", True),
    ("study", "study.json", "steps audit", [0]),
]


@pytest.fixture(scope="module")
def finished(commands, tmp_path_factory):
    """By verb the folder of its shortest run, made when it is first asked for; do not write into it."""
    made = {}

    def folder_of(verb):
        if verb not in made:
            made[verb] = tmp_path_factory.mktemp(verb) / "out"
            assert main(commands[verb](made[verb])) == 0
        return made[verb]

    return folder_of


def edited(folder, name, path, value, into):
    """A copy of a folder with one value of one of its files changed."""
    shutil.copytree(folder, into)
    document = json.loads((into / name).read_text())
    *way, last = [int(key) if key.isdigit() else key for key in path.split()]
    place = document
    for key in way:
        place = place[key]
    if value == DELETE:
        del place[last]
    else:
        place[last] = value
    (into / name).write_text(json.dumps(document))
    return into


def check_one_line(done, name):
    assert done.code == 1, done
    (line,) = [line for line in done.err.splitlines() if line.startswith("attnprobe: ")]
    assert name in line and len(line) < 1000


@pytest.mark.parametrize(("verb", "name", "path", "value"), CHANGES, ids=str)
def test_a_report_of_an_edited_summary_is_one_line(
    verb, name, path, value, finished, cli, tmp_path
):
    folder = edited(finished(verb), name, path, value, tmp_path / "out")
    check_one_line(cli("report", folder), name)


@pytest.mark.parametrize(("verb", "name", "path", "value"), AGAIN, ids=str)
def test_a_command_that_goes_on_from_an_edited_record_is_one_line(
    verb, name, path, value, finished, commands, cli, tmp_path
):
    folder = edited(finished(verb), name, path, value, tmp_path / "out")
    check_one_line(cli(*commands[verb](folder)), name)


def test_shown_texts_that_were_edited_are_made_again(finished, commands, cli, tmp_path):
    folder = edited(finished("audit"), "texts.json", "texts 0 tokens 0", [0], tmp_path / "out")
    assert cli("report", folder).code == 0
    assert cli(*commands["audit"](folder)).code == 0
    tokens = json.loads((folder / "texts.json").read_text())["texts"][0]["tokens"]
    assert all(isinstance(token, str) for token in tokens)


@pytest.mark.parametrize(
    "verb", ["audit", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("train", "study"))]
)
def test_a_deeply_nested_file_is_one_line_or_changes_nothing(
    verb, finished, commands, cli, tmp_path
):
    """Python's reader of JSON raises a RecursionError for a file of 100,000 brackets."""
    for number, file in enumerate(sorted(finished(verb).rglob("[!.]*.json"))):
        folder = tmp_path / str(number) / "out"
        shutil.copytree(finished(verb), folder)
        (folder / file.relative_to(finished(verb))).write_text("[" * 100_000)
        for command in (["report", folder], commands[verb](folder)):
            done = cli(*command)
            assert done.code in (0, 1) and "Traceback" not in done.err, (file, done.err)
