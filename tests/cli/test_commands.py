"""The command line: what it prints, where, and what it leaves behind."""

import contextlib
import json

import jsonschema
import pandas as pd
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import report_schema
from hf_attnprobe.cli import main
from hf_attnprobe.cli.commands import COMMANDS, build_parser
from hf_attnprobe.storage.rows import read_rows
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name


TESTS = ("correlation", "permutation", "adversarial")
COLUMNS = ["test", "statistic", "layer", "head", "example_id", "value"]


def strict(text):
    """JSON as other languages read it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def parts(folder):
    """The parts of the rows and when they were written."""
    return {file.name: file.stat().st_mtime_ns for file in (folder / "rows").iterdir()}


@pytest.fixture(scope="module")
def command(checkpoint, reviews_folder):
    """An audit with three tests."""
    audit = ("audit", "--model", checkpoint, "--dataset", reviews_folder)
    return (*audit, "--test-limit", "20", "--tests", *TESTS)


@pytest.fixture
def printed(command, copy_of):
    """What that audit says as JSON, and a copy of the folder that it wrote."""

    def make(made):
        made.mkdir()
        arguments = [*map(str, command), "--json", "--output-dir", str(made / "out")]
        with (made / "printed.json").open("w") as file, contextlib.redirect_stdout(file):
            assert main(arguments) == 0

    made = tiny_models.once("printed", make)
    return strict((made / "printed.json").read_text()), copy_of(made / "out", "out")


# --- audit --------------------------------------------------------------------------------------------------------


def test_json_is_as_documented(printed, checkpoint, reviews_folder):
    found, _ = printed
    jsonschema.validate(found, json.loads(report_schema.FILE.read_text()))
    assert (found["model"], found["n"], found["seed"]) == (str(checkpoint), 20, 0)
    assert found["dataset"] == f"{reviews_folder} (test)"
    seen = {(s["test"], s["statistic"], s["group"]) for s in found["statistics"]}
    assert len(seen) == len(found["statistics"])
    assert {test for test, *_ in seen} == set(TESTS)
    assert {group for *_, group in seen} == {"all", "negative", "positive"}
    for statistic in found["statistics"]:
        assert (statistic["layer"], statistic["head"]) == (0, 0)
        assert statistic["n"] or statistic["mean"] is None
    provenance = found["provenance"]
    told = (provenance["tests"], provenance["skipped_empty"], provenance["n_processes"])
    assert told == (list(TESTS), 0, 1)


def test_the_folder_holds_what_was_printed(printed):
    found, folder = printed
    expected = "audit.json rows runs.json summary.json report.md report.html texts.json"
    assert {f.name for f in folder.iterdir()} == set(expected.split())
    summary = strict((folder / "summary.json").read_text())
    assert {key: summary[key] for key in found} == found
    rows = read_rows(folder / "rows")
    assert list(rows.columns) == COLUMNS
    assert not rows.duplicated(["test", "statistic", "example_id", "layer", "head"]).any()
    assert rows.example_id.nunique() == 20


def test_text_for_people(command, cli):
    done = cli(*command, "--verbose")
    assert done.code == 0
    lines = done.out.splitlines()
    said = " ".join(done.out.split())
    assert " texts 20 of " in said and " seed 0 " in said
    for heading in ("What was audited", "The questions, one by one", "All numbers"):
        assert heading in lines
    for name in ("attention_gradient_tau", "median_tvd", "epsilon_max_jsd@0.05"):
        assert any(line.strip().startswith(name) for line in lines)
    assert "nan" not in done.out


def test_the_function_says_the_same(printed, checkpoint, reviews_folder, capsys):
    found, _ = printed
    report = audit_by_name(checkpoint, reviews_folder, test_limit=20, tests=TESTS)
    assert capsys.readouterr().out == ""
    for ours, theirs in zip(report.statistics, found["statistics"], strict=True):
        named = (ours.test, ours.statistic, ours.group)
        assert named == tuple(theirs[name] for name in ("test", "statistic", "group"))
        assert ours.mean == pytest.approx(theirs["mean"], nan_ok=True)
    assert list(report.to_pandas().columns) == COLUMNS


def test_the_same_command_again_computes_nothing(command, cli, printed):
    found, folder = printed
    before = parts(folder)
    again = cli(*command, "--json", "--output-dir", folder)
    assert parts(folder) == before
    assert strict(again.out) == found


def test_options_reach_the_tests(cli, checkpoint, reviews_folder):
    base = ("audit", "--model", checkpoint, "--dataset", reviews_folder, "--json", "--test-limit")

    def mean(*options):
        found = strict(cli(*base, "4", "--tests", "permutation", *options).out)
        (wanted,) = (
            s["mean"]
            for s in found["statistics"]
            if (s["statistic"], s["group"]) == ("median_tvd", "all")
        )
        return wanted

    usual = mean()
    assert mean("--set", "permutation.n_permutations=3") != usual
    assert mean("--seed", "1") != usual
    again = mean("--batch-size", "1", "--memory-budget", "1KB")
    assert again == pytest.approx(usual, abs=1e-9)
    assert mean("--dtype", "float32") == pytest.approx(usual, abs=1e-4)
    search = (*base, "4", "--tests", "adversarial", "--set", "adversarial.method=search")
    known = {s["statistic"] for s in strict(cli(*search).out)["statistics"]}
    assert "epsilon_max_jsd_exact" in known and not any("upper" in name for name in known)
    twice = (*base, "4", "--tests", "permutation", "permutation", "--split", "train")
    found = strict(cli(*twice, "--target", "1").out)
    assert found["dataset"].endswith("(train)") and found["provenance"]["tests"] == ["permutation"]


# --- train, then audit --------------------------------------------------------------------------------------------


def test_train_and_audit(cli, reviews_folder, tmp_path):
    train = ["train", "--dataset", reviews_folder, "--output-dir", tmp_path / "model"]
    train += ["--encoder", "cnn", "--attention", "dot_product", "--embedding-size", "8"]
    train += ["--encoder-size", "8", "--epochs", "2"]
    done = cli(*train, "--json")
    found = strict(done.out)
    assert done.code == 0 and list(found) == ["model", "seed", "metrics"]
    assert found["model"] == str(tmp_path / "model")
    scores = ("accuracy", "f1", "roc_auc")
    expected = {f"{split}_{score}" for split in ("validation", "test") for score in scores}
    assert set(found["metrics"]) == expected
    assert all(0 <= score <= 1 for score in found["metrics"].values())
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    config = model.config
    assert (config.encoder, config.attention) == ("cnn", "dot_product")
    assert config.embedding_size == 8
    assert AutoTokenizer.from_pretrained(tmp_path / "model").vocab_size == config.vocab_size
    audit = ("audit", "--model", tmp_path / "model", "--dataset", reviews_folder)
    assert cli(*audit, "--test-limit", "3").code == 0
    people = cli(*train)
    assert f"model in {tmp_path / 'model'}" in people.out
    for name, value in found["metrics"].items():  # the same seed, the same model
        assert f"{name.replace('_', ' ')}: {value:.3f}" in people.out


# --- processes of their own ---------------------------------------------------------------------------------------


def test_what_does_not_resume_says_so(cli, monkeypatch, tmp_path):
    def stop(arguments):
        raise KeyboardInterrupt

    audit = ("audit", "--model", tmp_path, "--dataset", "sst")
    for command, advice in (
        (("demo", "--output-dir", tmp_path / "out"), "run the same command again to start over"),
        (
            ("cite", *audit[1:], "--output-dir", tmp_path / "out"),
            "run the same command again to start over",
        ),
        (audit, "nothing was saved; use --output-dir so that the same command can resume"),
        (
            (*audit, "--output-dir", tmp_path / "out"),
            "run the same command again to resume",
        ),
        (
            ("fit-map", *audit[1:], "--output-dir", tmp_path / "out"),
            "run the same command again: it reuses generated answers and the audit of the certifying "
            "texts, but chooses the map again",
        ),
    ):
        monkeypatch.setitem(COMMANDS, command[0], stop)
        done = cli(*command)
        assert done.code == 130 and done.err.endswith(f"; {advice}\n")


def test_a_flag_that_is_not_given_is_none():
    where = ["train", "--dataset", "sst", "--output-dir", "out"]
    known = vars(build_parser().parse_args([*where, "--hierarchical"]))
    assert known["hierarchical"] is True and known["kernel_sizes"] is None
    assert vars(build_parser().parse_args(where))["hierarchical"] is None


def test_every_help_ends_in_an_example_that_is_understood(cli):
    for name in COMMANDS:
        *_, example = cli(name, "--help").out.split("for example: ")
        program, *words = example.split()
        assert program == "attnprobe" and build_parser().parse_args(words).command == name
    assert cli("--help").out.startswith("usage: attnprobe COMMAND [FLAG ...]\n")


IMPORT_CHECK = """
import sys
from hf_attnprobe.cli import main
code = main(sys.argv[1:])
print(code, "torch" in sys.modules)
"""


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
def test_a_wrong_column_is_reported_before_torch_is_imported(name, run_python, tmp_path):
    frame = pd.DataFrame({"Review": ["a", "b"], "label": [0, 1]})
    path = tmp_path / name
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    command = ["audit", "--model", "nowhere", "--dataset", path, "--text-column", "Revue"]
    done = run_python("-c", IMPORT_CHECK, *command)
    assert "no column 'Revue'. Choose one of Review, label with --text-column" in done.err
    assert done.out.split() == ["1", "False"]
