"""The command line: what it prints, where, and what it leaves behind."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from by_name import BY_DEFAULT, audit_by_name
from hf_attnprobe.auditing.report import read_audit
from hf_attnprobe.cli.verbs import COMMANDS, build_parser
from hf_attnprobe.faithfulness.registry import readings
from mini_hub import MiniHub


TESTS = ("correlation", "permutation", "adversarial")
STATISTIC = [
    "test",
    "statistic",
    "layer",
    "head",
    "group",
    "mean",
    "ci95",
    "n",
    "median",
    "std",
    "undefined",
]


def strict(text):
    """JSON as other languages read it."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def parts(folder):
    """The parts of the rows and when they were written."""
    return {file.name: file.stat().st_mtime_ns for file in (folder / "rows").iterdir()}


@pytest.fixture(scope="module")
def command(checkpoint, reviews_folder):
    """An audit with three tests."""
    return (
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        reviews_folder,
        "--test-limit",
        "20",
        "--tests",
        *TESTS,
    )


# --- audit --------------------------------------------------------------------------------------------------------


def test_json_is_as_documented(command, cli, checkpoint, reviews_folder):
    done = cli(*command, "--json")
    found = strict(done.out)
    assert done.code == 0 and done.out.count("\n") == 1
    assert list(found) == [
        "schema_version",
        "model",
        "dataset",
        "n",
        "seed",
        "predicts",
        "answer",
        "verdict",
        "accuracy",
        "findings",
        "statistics",
        "contrasts",
        "contradictions",
        "notes",
        "comparisons",
        "provenance",
    ]
    assert (found["model"], found["n"], found["seed"]) == (str(checkpoint), 20, 0)
    assert found["dataset"] == f"{reviews_folder} (test)"
    seen = set()
    for statistic in found["statistics"]:
        assert list(statistic) == STATISTIC
        assert statistic["statistic"].split("@")[0] in readings()[statistic["test"]]
        assert statistic["group"] in ("all", "negative", "positive")
        assert (statistic["layer"], statistic["head"]) == (0, 0)
        assert all(type(statistic[name]) is int for name in ("layer", "head", "n", "undefined"))
        for value in (
            statistic["mean"],
            statistic["median"],
            statistic["std"],
            *statistic["ci95"],
        ):
            assert type(value) is float if statistic["n"] else value is None
        if statistic["n"]:
            low, high = statistic["ci95"]
            assert low <= statistic["mean"] <= high
        seen.add((statistic["test"], statistic["statistic"], statistic["group"]))
    assert len(seen) == len(found["statistics"])
    assert {test for test, *_ in seen} == set(TESTS) and {group for *_, group in seen} == {
        "all",
        "negative",
        "positive",
    }
    provenance = found["provenance"]
    assert len(provenance["model_fingerprint"]) == len(provenance["data_fingerprint"]) == 16
    assert {"hf_attnprobe", "torch", "transformers", "python"} <= provenance["versions"].keys()
    assert (
        provenance["tests"],
        provenance["skipped_empty"],
        provenance["n_processes"],
    ) == (list(TESTS), 0, 1)


def test_the_folder_holds_what_was_printed(command, cli, tmp_path):
    printed = strict(cli(*command, "--json", "--output-dir", tmp_path / "out").out)
    assert {f.name for f in (tmp_path / "out").iterdir()} == {
        "audit.json",
        "control",
        "rows",
        "summary.json",
        "report.md",
        "report.html",
        "texts.json",
    }
    summary = strict((tmp_path / "out" / "summary.json").read_text())
    assert {key: summary[key] for key in printed} == printed
    rows = pd.read_parquet(
        tmp_path / "out" / "rows"
    )  # a folder of parts, as any reader of Parquet takes it
    assert list(rows.columns) == [
        "test",
        "statistic",
        "example_id",
        "layer",
        "head",
        "value",
    ]
    assert not rows.duplicated(["test", "statistic", "example_id", "layer", "head"]).any()
    assert rows.example_id.nunique() == 20


def test_every_number_can_be_recomputed_from_the_rows(command, cli, tmp_path):
    printed = strict(cli(*command, "--json", "--output-dir", tmp_path / "out").out)
    rows = pd.read_parquet(tmp_path / "out" / "rows")
    predicted = rows[rows.statistic == "predicted_class"].set_index("example_id").value
    ids = {
        "all": set(predicted.index),
        "negative": set(predicted.index[predicted == 0]),
    }
    ids["positive"] = ids["all"] - ids["negative"]
    for s in printed["statistics"]:
        of_group = rows[
            (rows.test == s["test"])
            & (rows.statistic == s["statistic"])
            & rows.example_id.isin(ids[s["group"]])
        ]
        values = of_group.value.to_numpy()
        real = values[~np.isnan(values)]
        assert (s["n"], s["undefined"]) == (len(real), len(values) - len(real))
        for name, function in (
            ("mean", np.mean),
            ("median", np.median),
            ("std", np.std),
        ):
            assert s[name] == pytest.approx(function(real), rel=1e-12)


def test_text_for_people(command, cli):
    done = cli(*command, "--verbose")
    assert done.code == 0
    lines = done.out.splitlines()
    assert "20 texts, seed 0." in " ".join(done.out.split())
    for heading in ("What was audited", "The questions, one by one", "All numbers"):
        assert heading in lines
    for name in ("attention_gradient_tau", "median_tvd", "epsilon_max_jsd@0.05"):
        assert any(line.strip().startswith(name) for line in lines)
    assert "nan" not in done.out


def test_the_function_says_the_same(command, cli, checkpoint, reviews_folder, capsys):
    found = strict(cli(*command, "--json").out)
    report = audit_by_name(checkpoint, reviews_folder, test_limit=20, tests=TESTS)
    assert capsys.readouterr().out == ""
    assert len(report.statistics) == len(found["statistics"])
    for ours, theirs in zip(report.statistics, found["statistics"], strict=True):
        assert (ours.test, ours.statistic, ours.group) == (
            theirs["test"],
            theirs["statistic"],
            theirs["group"],
        )
        assert ours.mean == pytest.approx(theirs["mean"], nan_ok=True)
    assert list(report.to_pandas().columns) == [
        "test",
        "statistic",
        "example_id",
        "layer",
        "head",
        "value",
    ]


def test_the_same_command_again_computes_nothing(command, cli, tmp_path):
    first = cli(*command, "--json", "--output-dir", tmp_path / "out")
    before = parts(tmp_path / "out")
    again = cli(*command, "--json", "--output-dir", tmp_path / "out")
    assert parts(tmp_path / "out") == before
    assert again.out == first.out


def test_options_reach_the_tests(cli, checkpoint, reviews_folder):
    base = (
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        reviews_folder,
        "--json",
        "--test-limit",
        "4",
        "--tests",
    )

    def mean(name, *options, test="permutation"):
        found = strict(cli(*base, test, *options).out)
        return next(
            s["mean"] for s in found["statistics"] if s["statistic"] == name and s["group"] == "all"
        )

    usual = mean("median_tvd")
    assert mean("median_tvd", "--set", "permutation.n_permutations=3") != usual
    assert mean("median_tvd", "--seed", "1") != usual
    assert mean("median_tvd", "--batch-size", "1", "--memory-budget", "1KB") == pytest.approx(
        usual, abs=1e-9
    )
    assert mean("median_tvd", "--dtype", "float32") == pytest.approx(usual, abs=1e-4)
    found = strict(cli(*base, "adversarial", "--set", "adversarial.method=search").out)
    assert {s["statistic"] for s in found["statistics"]} == {
        "epsilon_max_jsd@0.01",
        "epsilon_max_jsd@0.05",
        "epsilon_max_jsd_exact",
        "share_of_largest@0.01",
        "share_of_largest@0.05",
        "largest_jsd",
    }
    found = strict(
        cli(*base, "permutation", "permutation", "--split", "train", "--target", "1").out
    )
    assert found["dataset"].endswith("(train)") and found["provenance"]["tests"] == ["permutation"]


def test_all_tests_by_default(cli, checkpoint, reviews_folder):
    found = strict(
        cli(
            "audit",
            "--model",
            checkpoint,
            "--dataset",
            reviews_folder,
            "--test-limit",
            "2",
            "--json",
        ).out
    )
    assert {s["test"] for s in found["statistics"]} == BY_DEFAULT


@pytest.mark.parametrize("form", ["csv", "parquet", "saved"])
def test_columns_of_other_names_in_other_forms(form, cli, checkpoint, reviews, tmp_path):
    data = (
        reviews["test"]
        .rename_columns({"text": "review", "label": "stars"})
        .remove_columns("rationale")
    )
    (tmp_path / "data").mkdir()
    if form == "saved":
        data.save_to_disk(tmp_path / "data")
    else:
        table = data.to_pandas()
        getattr(table, f"to_{form}")(tmp_path / "data" / f"test.{form}", index=False)
    split = "train" if form == "saved" else "test"
    arguments = (
        "--text-column",
        "review",
        "--label-column",
        "stars",
        "--split",
        split,
        "--tests",
        "permutation",
        "--json",
    )
    done = cli("audit", "--model", checkpoint, "--dataset", tmp_path / "data", *arguments)
    assert strict(done.out)["n"] == 40


def test_four_labels(cli, make_checkpoint, reviews_folder):
    model = make_checkpoint("cnn", "dot_product", 4)
    done = cli(
        "audit",
        "--model",
        model,
        "--dataset",
        reviews_folder,
        "--test-limit",
        "6",
        "--json",
    )
    found = strict(done.out)
    assert {s["group"] for s in found["statistics"]} <= {
        "all",
        "negative",
        "positive",
        "mixed",
        "none",
    }
    assert done.code == 0 and {s["test"] for s in found["statistics"]} == BY_DEFAULT


def test_unlabelled_texts(cli, checkpoint, tmp_path):
    (tmp_path / "test.jsonl").write_text(
        '{"text": "a dull film"}\n{"text": "the plot was superb"}\n'
    )
    done = cli(
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        tmp_path,
        "--json",
        "--output-dir",
        tmp_path / "out",
    )
    assert done.code == 0 and strict(done.out)["n"] == 2
    assert ", labelled" not in (tmp_path / "out" / "report.md").read_text()


# --- report -------------------------------------------------------------------------------------------------------


def test_report_renders_an_audit_again(command, cli, tmp_path):
    cli(*command, "--output-dir", tmp_path / "out")
    written = (tmp_path / "out" / "report.md").read_text()
    done = cli("report", tmp_path / "out")
    assert (done.code, done.out, done.err) == (0, f"{read_audit(tmp_path / 'out')}\n", "")
    again = cli("report", tmp_path / "out", "--output", tmp_path / "again.md")
    assert again.out == f"report in {tmp_path / 'again.md'}\n"
    assert (tmp_path / "again.md").read_text() == written
    for heading in ("The questions, one by one", "Texts", "All numbers"):
        assert f"## {heading}\n" in written


# --- train, then audit --------------------------------------------------------------------------------------------


def test_train_and_audit(cli, reviews_folder, tmp_path):
    sizes = (
        "--encoder",
        "cnn",
        "--attention",
        "dot_product",
        "--embedding-size",
        "8",
        "--encoder-size",
        "8",
    )
    train = (
        "train",
        "--dataset",
        reviews_folder,
        "--output-dir",
        tmp_path / "model",
        *sizes,
        "--epochs",
        "2",
    )
    done = cli(*train, "--json")
    found = strict(done.out)
    assert (
        done.code == 0
        and list(found) == ["model", "seed", "metrics"]
        and found["model"] == str(tmp_path / "model")
    )
    assert {
        f"{split}_{score}"
        for split in ("validation", "test")
        for score in ("accuracy", "f1", "roc_auc")
    } == set(found["metrics"])
    assert all(0 <= score <= 1 for score in found["metrics"].values())
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert (
        model.config.encoder,
        model.config.attention,
        model.config.embedding_size,
    ) == ("cnn", "dot_product", 8)
    assert AutoTokenizer.from_pretrained(tmp_path / "model").vocab_size == model.config.vocab_size
    assert (
        cli(
            "audit",
            "--model",
            tmp_path / "model",
            "--dataset",
            reviews_folder,
            "--test-limit",
            "3",
        ).code
        == 0
    )
    people = cli(*train)
    assert f"model in {tmp_path / 'model'}" in people.out
    for name, value in found["metrics"].items():  # the same seed, the same model
        assert f"{name.replace('_', ' ')}: {value:.3f}" in people.out


def test_names_of_labels_survive_training(cli, tmp_path):
    rows = [
        {"text": "a dull film", "label": "bad"},
        {"text": "a fine film", "label": "good"},
    ] * 4
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli(
        "train",
        "--dataset",
        tmp_path,
        "--output-dir",
        tmp_path / "model",
        "--encoder",
        "mlp",
        "--epochs",
        "1",
    )
    assert done.code == 0
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert model.config.id2label == {0: "bad", 1: "good"} and model.config.label2id == {
        "bad": 0,
        "good": 1,
    }


# --- processes of their own ---------------------------------------------------------------------------------------


def test_a_model_from_a_hub(run_module, checkpoint, reviews_folder, tmp_path):
    """Results on stdout, nothing but progress on stderr, warnings of Python counting as errors."""
    shutil.copytree(checkpoint, tmp_path / "hub/models/acme/bilstm")
    with MiniHub(tmp_path / "hub", missing_status=401) as hub:
        env = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": None,
        }
        arguments = (
            "--dataset",
            reviews_folder,
            "--test-limit",
            "5",
            "--tests",
            "permutation",
            "--json",
        )
        run = run_module("audit", "--model", "acme/bilstm", *arguments, env=env)
    assert run.code == 0, run.err
    found = strict(run.out)
    assert (found["model"], found["n"]) == ("acme/bilstm", 5)
    assert {
        line.split(":")[0] for line in run.err.replace("\r", "\n").split("\n") if line.strip()
    } <= {"audit", "control"} | {line for line in run.err.splitlines() if "about" in line}


def test_an_error_is_one_line_in_a_process_too(run_module, tmp_path):
    run = run_module("audit", "--model", tmp_path / "nothing", "--dataset", tmp_path)
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("attnprobe: ") and run.err.count("\n") == 1


def test_interrupted_by_hand(cli, monkeypatch, command, tmp_path):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_attnprobe.auditing.sweep.run_batch", stop)
    done = cli(*command, "--output-dir", tmp_path / "out")
    assert (done.code, done.out) == (130, "")
    assert done.err.endswith("attnprobe: interrupted; run the same command again to continue\n")
    assert not (tmp_path / "out").exists()  # there was nothing to keep yet


def test_what_does_not_resume_says_so(cli, monkeypatch, tmp_path):
    def stop(arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "demo", stop)
    done = cli("demo", "--output-dir", tmp_path / "out")
    assert done.code == 130 and "run the same command again to start over" in done.err


def test_every_flag_has_a_help_text_and_a_type():
    commands = build_parser()._subparsers._group_actions[0].choices
    for name, command in commands.items():
        for action in command._actions:
            assert action.help, (name, action.option_strings)
            assert not action.help.startswith("default"), (name, action.help)
    where = ["--dataset", "sst", "--output-dir", "out"]
    known = vars(build_parser().parse_args(["train", *where, "--hierarchical"]))
    assert known["hierarchical"] is True and known["kernel_sizes"] is None
    assert vars(build_parser().parse_args(["train", *where]))["hierarchical"] is None
