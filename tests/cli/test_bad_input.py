"""Everything a user can get wrong: one line on stderr that names the problem and the way out, and nothing half-written."""

import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttnProbeError,
    audit,
    render_report,
    train_classifier,
)
from hf_attnprobe.cli import main
from hf_attnprobe.inference.batching import parse_bytes
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.training.options import TrainingOptions
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name


ROWS = [{"text": "the film was dull .", "label": 0}, {"text": "a wonderful plot", "label": 1}]


def write(folder, rows, name="test"):
    """A data set of JSON lines."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def contents(folder):
    """Every file below a folder with what is in it."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def refused(cli, tmp_path):
    """Runs a command that must fail in one line without touching anything; returns the line."""

    def run(*arguments, **expected):
        before = contents(tmp_path)
        done = cli(*arguments)
        assert (done.code, done.out) == (1, ""), done
        assert done.err.startswith("attnprobe: ")
        assert done.err.count("\n") == 1 and done.err.endswith("\n")
        assert contents(tmp_path) == before
        assert not (tmp_path / "out").exists()
        return done.err

    return run


@pytest.fixture
def refused_audit(refused, checkpoint, reviews_folder, tmp_path):
    """The same for an audit of which everything is right but what is given."""

    def run(*arguments, model=checkpoint, dataset=reviews_folder, output_dir=tmp_path / "out"):
        command = ["audit", "--model", model, "--dataset", dataset, "--output-dir", output_dir]
        return refused(*command, *arguments)

    return run


# --- the model ----------------------------------------------------------------------------------------------------


def test_no_model_there(refused_audit, tmp_path):
    line = refused_audit(model=tmp_path / "bilstm")
    assert f"expected a model at {tmp_path / 'bilstm'}, which does not exist" in line
    line = refused_audit("--map", tmp_path / "none")
    assert f"expected a map at {tmp_path / 'none'}, which does not exist" in line
    line = refused_audit(model="acme/unheard-of")
    assert "not a local folder" in line and "HF_HUB_OFFLINE=1" in line


@pytest.mark.slow
def test_a_hub_that_is_not_reached_is_not_asked_again_and_again(run_python):
    env = {"HF_HUB_OFFLINE": None, "HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "*"}
    done = run_python("-m", "hf_attnprobe", "audit", "--model=acme/x", "--dataset=sst2", env=env)
    assert done.code == 1 and "network" in done.err and done.err.count("\n") == 1


def test_a_model_folder_that_lacks_something(refused_audit, checkpoint, copy_of):
    tokenizer = ("tokenizer.json", "tokenizer_config.json")
    for k, (removed, message) in enumerate(
        (
            (["model.safetensors"], "a configuration but no weights; save the model again"),
            (
                ["config.json"],
                "config.json is missing. Choose a folder that save_pretrained has created.",
            ),
            (tokenizer, "Save a tokenizer in the model's folder with tokenizer.save_pretrained"),
            (["*"], "config.json is missing"),
        )
    ):
        folder = copy_of(checkpoint, f"copy-{k}")
        for file in [file for pattern in removed for file in folder.glob(pattern)]:
            file.unlink()
        line = refused_audit(model=folder)
        assert message in line and str(folder) in line
    (folder / "small.Q4.gguf").touch()
    assert "pass --gguf-file small.Q4.gguf" in refused_audit(model=folder)


def test_spoilt_files_of_a_model(refused_audit, checkpoint, copy_of):
    weights = (checkpoint / "model.safetensors").read_bytes()
    spoilt = [("model.safetensors", content) for content in (weights[:999], b"no weights" * 9, b"")]
    configurations = ("", "{", "[]", "{}", '{"model_type": "attention-classifier"}')
    spoilt += [("config.json", text.encode()) for text in (*configurations, '{"model_type": 3}')]
    own = json.loads((checkpoint / "config.json").read_text())
    for other in ({"encoder": "transformer"}, {"encoder_size": 16}, {"vocab_size": 50}):
        spoilt.append(("config.json", json.dumps(own | other).encode()))
    for k, (name, content) in enumerate(spoilt):
        folder = copy_of(checkpoint, f"copy-{k}")
        (folder / name).write_bytes(content)
        said = f"the model in {folder} does not load"
        assert said in refused_audit(model=folder), (name, content[:99])
    (copy_of(checkpoint, "tokenizer") / "tokenizer.json").write_text("{")
    said = refused_audit(model=folder.parent / "tokenizer")
    assert (
        "the tokenizer for the model" in said and "Save a tokenizer in the model's folder" in said
    )


def test_parts_of_different_models(refused_audit, make_model, tokenizer, tmp_path):
    """Transformers would fill what is lacking with random numbers, and say so in a warning."""
    base = tiny_models.saved(tmp_path / "base", make_model().attention_classifier, tokenizer)
    line = refused_audit(model=base)
    assert "has no weights for classifier.bias, classifier.weight" in line
    model = make_model()
    model.resize_token_embeddings(20)
    line = refused_audit(model=tiny_models.saved(tmp_path / "small", model, tokenizer))
    assert "the model only has embeddings for ids below 20" in line


def test_objects_that_are_no_model_to_audit(make_model, tokenizer):
    with pytest.raises(AttnProbeError, match="passed as an object needs a tokenizer"):
        audit(make_model(), ROWS)
    with pytest.raises(AttnProbeError, match="load it with AutoModelForSequenceClassification"):
        audit(make_model().attention_classifier, ROWS, tokenizer=tokenizer)


# --- the data -----------------------------------------------------------------------------------------------------


def test_no_data_there(refused_audit, tmp_path):
    place = tmp_path / "nothing"
    line = refused_audit(dataset=place)
    assert f"{place} does not exist: there is no folder and no file with this path" in line
    assert "the data file nosuch.csv does not exist in" in refused_audit(dataset="nosuch.csv")
    line = refused_audit(dataset="nosuch")
    assert (
        f"there is no folder or file 'nosuch' in {Path.cwd()}, and the data set cannot be" in line
    )
    (tmp_path / "none.csv").touch()
    line = refused_audit(dataset=tmp_path / "none.csv")
    assert f"the data file {tmp_path / 'none.csv'} is empty" in line
    (tmp_path / "empty").mkdir()
    (tmp_path / "nearby").mkdir()
    line = refused_audit(dataset=tmp_path / "nearbi")
    assert f"in {tmp_path.resolve()}, which contains nearby. Check the path" in line
    assert "cannot load the data set in the folder" in refused_audit(dataset=tmp_path / "empty")
    line = refused_audit("--dataset-config", "large")
    assert "cannot load the data set in the folder" in line


BAD_DATA = [
    ([{"audio": [0.5], "label": 0}], "the column audio contains audio, video or a time series"),
    ([{"review": "x", "label": 0}], "found no text column with a usual name among review, label"),
    (
        [{"text": 3, "label": 0}, {"text": 4, "label": 1}],
        "must contain strings, but row 0 has a cell of type int",
    ),
    (
        [{"text": ["a", "b"], "label": 0}],
        "column 'text' must contain strings, but row 0 has a cell of type list",
    ),
    (
        [{"text": "a film", "label": 0.5}],
        "expected one class per text as label, because the model predicts a class",
    ),
    ([], "test.jsonl is empty"),
    (
        [*ROWS, {"text": "a film", "label": 2}],
        "the model predicts the 2 classes negative, positive",
    ),
    ([{"text": "a film", "label": "angry"}], "label 'angry'"),
    ([{"text": "a film", "label": name} for name in ("angry", "positive")], "label 'angry'"),
    ([{"text": "x", "label": name} for name in ("negative", "positive", "zen")], "label 'zen'"),
    ([{"text": t, "label": 0} for t in ("", " \n")], "got none in 2 texts"),
]


def test_data_that_cannot_be_audited(refused_audit, tmp_path):
    for k, (rows, message) in enumerate(BAD_DATA):
        assert message in refused_audit(dataset=write(tmp_path / f"data-{k}", rows))


def test_texts_of_no_token_are_skipped_and_counted(cli, checkpoint, tmp_path):
    rows = [ROWS[0], {"text": "", "label": 0}, ROWS[1], {"text": " \t ", "label": 1}]
    data = write(tmp_path / "data", rows)
    done = cli("audit", "--model", checkpoint, "--dataset", data, "--json")
    found = json.loads(done.out)
    assert (done.code, found["n"], found["provenance"]["skipped_empty"]) == (0, 2, 2)
    assert {s["n"] + s["undefined"] for s in found["statistics"] if s["group"] == "all"} == {2}


def test_texts_of_one_token(cli, checkpoint, tmp_path):
    """Defined where the test is, counted as undefined where it is not, and never part of a mean."""
    rows = [{"text": "superb", "label": 1}, *ROWS, {"text": "dull", "label": 0}]
    out, data = tmp_path / "out", write(tmp_path / "data", rows)
    command = ["audit", "--model", checkpoint, "--dataset", data, "--json", "--output-dir", out]
    done = cli(*command, "--tests", "correlation", "permutation", "adversarial")
    written = (out / "summary.json").read_text() + (out / "report.md").read_text()
    assert "NaN" not in done.out + written
    found = {s["statistic"]: s for s in json.loads(done.out)["statistics"] if s["group"] == "all"}
    values = read_rows(out / "rows").pivot_table(
        index="example_id", columns="statistic", values="value"
    )
    undefined = {name for name in found if found[name]["undefined"]}
    tops = {name for name in found if "_top_" in name or name.startswith("top_")}
    assert tops and all(found[name]["undefined"] >= 2 for name in tops)
    undefined -= tops
    shares = {name for name in found if name.startswith("share_of_largest@")}
    assert undefined - shares == {
        *(f"{pair}_{end}" for pair in PAIRS for end in ("tau", "p_value")),
        *("leave_one_out_tau_difference", "gradient_tau_difference"),
        *("attention_leave_one_out_agreement", "attention_leave_one_out_precision"),
    }
    assert shares and shares <= undefined  # a share of no room at all
    for name in undefined:
        assert (found[name]["n"], found[name]["undefined"]) == (2, 2)
        assert values[name].isna().tolist() == [True, False, False, True]
        assert found[name]["mean"] == pytest.approx(values[name].mean())
    single = values.loc[[0, 3]]
    still = single[["median_tvd", "max_tvd", "flip_possible", "logit_variance", "largest_jsd"]]
    assert (still.abs() < 1e-12).all(axis=None)
    assert (single["max_attention"] == 1).all() and (single["epsilon_max_jsd@0.05"] == 0).all()


PAIRS = ("attention_gradient", "attention_leave_one_out", "gradient_leave_one_out")


def test_nothing_but_texts_of_one_token(cli, checkpoint, tmp_path):
    data = write(
        tmp_path / "data", [{"text": t, "label": k} for k, t in enumerate(("dull", "fun"))]
    )
    command = ["audit", "--model", checkpoint, "--dataset", data]
    empty = [s for s in json.loads(cli(*command, "--json").out)["statistics"] if s["n"] == 0]
    assert empty
    for s in empty:
        assert (s["mean"], s["median"], s["std"], s["ci95"]) == (None, None, None, [None, None])
    shown = cli(*command, "--tests", "correlation", "--verbose").out
    ends = [line.split()[-2:] for line in shown.splitlines()]
    assert ["0", "2"] in ends  # no text has a value, of two it is undefined
    assert not re.search(r"\bnan\b", shown, re.IGNORECASE)


def test_what_a_memory_budget_is(refused_audit):
    given = {"2GB": 2 * 10**9, "500mb": 5 * 10**8, " 1.5 KB ": 1500, 7: 7, "7": 7, "1e3": 1000}
    assert {budget: parse_bytes(budget) for budget in given} == given
    for budget in ("much", "-1GB", "0", "2TB2", "", "nan", "inf", "1e999GB", "GB"):
        line = refused_audit(f"--memory-budget={budget}")
        assert "expected a memory budget such as 500MB or 2GB" in line


def test_what_the_model_has_not(refused_audit, make_checkpoint):
    for flag, value, message in (
        ("target", 2, "expected a target class from 0 to 1, got 2"),
        ("target", -1, "expected a target class from 0 to 1, got -1"),
        ("layers", 1, "expected --layers from 0 to 0 for this model, got 1"),
        ("layers", -1, "expected --layers from 0 to 0 for this model, got -1"),
        ("heads", 2, "expected --heads from 0 to 0 for this model, got 2"),
        ("query", 1, "expected --query from 0 to"),
        ("query", -1, "shortest text), got -1"),
    ):
        assert message in refused_audit(f"--{flag}={value}"), (flag, value)
    line = refused_audit("--target", "film", "--tests", "permutation")  # which explains no class
    assert "expected a target class from 0 to 1, got film" in line
    four = make_checkpoint("bilstm", "additive", 4)
    line = refused_audit("--set", "adversarial.method=exact", model=four)
    assert "or method='search'" in line


BAD_OPTIONS = [
    ({"test_limit": 0}, "test_limit must be at least 1, got 0"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ({"tests": {"adversarial": {"n_starts": 0}}}, "n_starts must be at least 1, got 0"),
    ({"n_permutations": 0}, "n_permutations must be at least 1, got 0"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
    ({"tests": {"adversarial": {"method": "guess"}}}, "auto or exact or search for method, got 'g"),
    ({"dtype": "float23"}, "float64 or bfloat16 or float16 for dtype, got 'float23'"),
    ({"tests": []}, "expected at least one test"),
    ({"memory_budget": "inf"}, "expected a memory budget"),
    ({"memory_budget": 0.5}, "for memory_budget, got 0.5"),
    ({"tests": {"permutation": {"n_permutations": "ten"}}}, "a whole number for n_permutations"),
    ({"n_shuffles": 3}, "unknown option 'n_shuffles'; expected one of layers, "),
    ({"layer": [1]}, r"unknown option 'layer'; did you mean layers\?"),
    (
        {"tests": {"permutation": {"n_permutation": 3}}},
        r"unknown option 'n_permutation' of permutation; did you mean n_permutations\?",
    ),
    ({"tests": ["permutations"]}, r"unknown test 'permutations'; did you mean permutation\?"),
    (
        {"tests": {"permutation": False}},
        "expected a dictionary of options for the test 'permutation'",
    ),
]


# --- options ------------------------------------------------------------------------------------------------------


def test_options_of_the_function(checkpoint, tmp_path):
    for options, message in BAD_OPTIONS:
        with pytest.raises(AttnProbeError, match=message):
            audit_by_name(checkpoint, ROWS, output_dir=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


USAGE = ["", "audits", "audit", "audit --model x", "audit --model x --dataset y --frobnicate"]
USAGE += ["audit --model x --dataset y --seed one", "audit --model x --dataset y --seed -1"]
USAGE += ["audit --model x --dataset y --test-limit 0"]
USAGE += ["audit --model x --dataset y --batch-size 0"]
USAGE += ["audit --model x --dataset y --dtype int8"]
USAGE += ["train --dataset x --output-dir y --encoder rnn"]
USAGE += ["train --dataset x --output-dir y --epochs 0"]
USAGE += ["train --dataset x --output-dir y --embedding-size 0"]
USAGE += ["train --dataset x --output-dir y --learning-rate fast", "demo --encoder lstm"]
USAGE += ["demo --n-examples -1", "report"]


def test_usage_errors_are_two_lines(cli):
    """Which name is near, and that nothing heavy is imported for it: test_imports."""
    for line in USAGE:
        done = cli(*line.split())
        assert (done.code, done.out) == (2, ""), line
        assert done.err.startswith("attnprobe") and done.err.count("\n") == 2, line


def test_a_wrong_condition_is_a_usage_error(cli, checkpoint, reviews_folder):
    command = ["audit", "--model", checkpoint, "--dataset", reviews_folder]
    done = cli(*command, "--fail-on", "faithfulnes<.5")
    assert (done.code, done.out) == (2, "")
    assert "got 'faithfulnes<.5'" in done.err and "path_share" in done.err


# --- the output folder --------------------------------------------------------------------------------------------


@pytest.fixture
def audited(checkpoint, reviews_folder, copy_of):
    """A finished audit of eight texts; it may be spoilt."""
    command = ["audit", "--model", str(checkpoint), "--dataset", str(reviews_folder)]
    command += ["--test-limit", "8", "--tests", "permutation", "--output-dir"]
    return copy_of(
        tiny_models.once("audited", lambda folder: main([*command, str(folder)])), "audited"
    )


def test_a_folder_of_another_audit(audited, refused_audit, make_checkpoint):
    for arguments, what in (
        (["--seed", "1"], "seed"),
        (["--split", "train"], "data fingerprint"),
        (["--dtype", "float32"], "dtype"),
        (["--set", "permutation.n_permutations=7"], "options"),
    ):
        line = refused_audit(*arguments, output_dir=audited)
        assert f"belongs to another audit with different settings: {what}" in line
    line = refused_audit(model=make_checkpoint("cnn"), output_dir=audited)
    assert "different settings: model fingerprint" in line and "Choose another --output-dir" in line


def test_a_folder_with_other_files(
    refused_audit, refused_training, refused, audited, tmp_path, checkpoint, copy_of
):
    """Whatever the verb: a text, a file in place of the folder, another model, results of real work."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("important")
    (tmp_path / "file").write_text("important")
    for run in (refused_audit, refused_training):
        line = run(output_dir=tmp_path / "thesis")
        assert "already contains other files" in line and "Choose another --output-dir" in line
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            line = run(output_dir=place)
            assert str(tmp_path / "file") in line and "Choose another --output-dir" in line
    assert "contains other files" in refused_audit(output_dir=copy_of(checkpoint))
    tiny_models.bert(20, layers=1, heads=1, width=8, spread=0.02).save_pretrained(tmp_path / "bert")
    assert "contains other files" in refused_training(output_dir=tmp_path / "bert")
    results = tmp_path / "results"
    shutil.copytree(checkpoint, results / "model")
    shutil.copytree(audited, results / "audit")
    assert "contains other files" in refused("demo", "--output-dir", results)


def test_spoilt_files_of_an_audit(audited, refused_audit, refused):
    summary, identity = audited / "summary.json", audited / "audit.json"
    whole = summary.read_text(), identity.read_text()
    for text in ("", "{", "[]", "{}", "null"):
        identity.write_text(text)
        assert "Choose another --output-dir" in refused_audit(output_dir=audited)
        summary.write_text(text.replace("null", '{"statistics": 3}'))
        line = refused("report", audited)
        assert str(summary) in line and "run the audit again" in line.lower()
    summary.write_text(whole[0]), identity.write_text(whole[1])
    (part,) = (audited / "rows").iterdir()
    rows = part.read_bytes()
    other = io.BytesIO()
    pd.DataFrame({"a": [1]}).to_parquet(other)
    for content in (rows[: len(rows) // 2], b"", other.getvalue()):
        part.write_bytes(content)
        again = refused_audit("--test-limit", "8", output_dir=audited)
        for line in (again, refused("report", audited)):
            assert str(part) in line and "Delete this file and run the audit again" in line


def test_several_processes_need_a_folder_to_meet_in(checkpoint, monkeypatch):
    two = SimpleNamespace(
        num_processes=2, process_index=0, is_main_process=True, device=torch.device("cpu")
    )
    monkeypatch.setattr("hf_attnprobe.audits.pipeline.get_process_state", lambda: two)
    with pytest.raises(
        AttnProbeError,
        match="an audit with several processes needs an output folder",
    ):
        audit(checkpoint, ROWS, progress=False)


# --- report -------------------------------------------------------------------------------------------------------


def test_reports_that_cannot_be(refused, audited, tmp_path):
    there_is_none = "but the file summary.json is missing"
    for arguments, message in (
        ([tmp_path], there_is_none),
        ([tmp_path / "nowhere"], there_is_none),
        (
            [audited, "--output", tmp_path / "report.pdf"],
            "--output for an audit must end in .md or .html",
        ),
        ([audited, "--output", tmp_path / "report"], "--output for an audit must end in"),
        ([audited, "--output", tmp_path / "nowhere" / "report.md"], "cannot write"),
    ):
        assert message in refused("report", *arguments)
    with pytest.raises(AttnProbeError, match="expected a folder with results, got none"):
        render_report([])


UNLABELLED = [{"text": "a film"}]
EMPTY = [{"text": t, "label": k} for k, t in enumerate(("", " "))]
NO_TEXT = [{"text": "", "label": 1}, {"text": None, "label": 0}]
BAD_SPLITS = [
    ({"train": ROWS}, "has no validation split"),
    ({"validation": ROWS}, "the data set has no split 'train'. Choose one of validation"),
    ({"train": ROWS[:1], "validation": ROWS}, "labelled texts of each class"),
    ({"train": UNLABELLED, "validation": UNLABELLED}, "the training texts have no labels"),
    (
        {"train": ROWS, "validation": NO_TEXT},
        "every validation text is blank, 2 in total. Choose another",
    ),
    (
        {"train": ROWS, "validation": [*ROWS, {"text": "a", "label": 2}]},
        "the validation texts must have the same classes",
    ),
    ({"train": ROWS, "validation": [{"text": "a", "label": -1}]}, "validation.* label"),
    (
        {"train": ROWS, "validation": ROWS, "test": [{"text": "a", "label": 7}]},
        "the test texts must have the same classes",
    ),
    ({"train": EMPTY, "validation": ROWS}, "every train text is blank"),
]


# --- train and demo -----------------------------------------------------------------------------------------------


@pytest.fixture
def refused_training(refused, reviews_folder, tmp_path):
    """A training of which everything is right but what is given."""

    def run(*arguments, dataset=reviews_folder, output_dir=tmp_path / "out"):
        return refused("train", "--dataset", dataset, "--output-dir", output_dir, *arguments)

    return run


def write_splits(folder, **splits):
    for name, rows in splits.items():
        write(folder, rows, name)
    return folder


def test_data_that_cannot_be_trained_on(refused_training, tmp_path):
    for k, (splits, message) in enumerate(BAD_SPLITS):
        line = refused_training(dataset=write_splits(tmp_path / f"data-{k}", **splits))
        assert re.search(message, line), line


def test_a_test_split_without_labels_is_not_scored(cli, tmp_path):
    splits = {"train": ROWS, "validation": ROWS, "test": [{"text": "a film", "label": -1}]}
    data = write_splits(tmp_path / "data", **splits)
    command = ["train", "--dataset", data, "--output-dir", tmp_path / "out"]
    done = cli(*command, "--encoder", "mlp", "--epochs", "1", "--json")
    assert done.code == 0
    assert not [name for name in json.loads(done.out)["metrics"] if name.startswith("test_")]


def test_classes_of_the_splits_are_matched_by_name(tmp_path):
    """In memory each split numbers its strings alone: 'positive' is 0 in the second."""
    named = (("dull film", "negative"), ("wonderful plot", "positive"))
    train = [{"text": text, "label": name} for text, name in named]
    config = AttentionClassifierConfig(encoder="mlp", embedding_size=4, encoder_size=4)
    given = {"options": TrainingOptions(epochs=1), "progress": False}
    with pytest.raises(AttnProbeError, match="validation"):
        train_classifier(config, train, train[1:], output_dir=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_sizes_and_vectors_that_make_no_model(refused_training, refused, tmp_path):
    (tmp_path / "vectors.txt").write_text("the 1 2 3\nfilm 1 2 3\n")
    for arguments, message in (
        (
            ["--encoder", "cnn", "--encoder-size", "30"],
            "a multiple of 4, the number of kernel sizes, got 30",
        ),
        (["--word-vectors", tmp_path / "none.txt"], "cannot read the word vectors"),
        (
            ["--word-vectors", tmp_path / "vectors.txt"],
            "3 dimensions, but the model's embeddings have 300",
        ),
    ):
        assert message in refused_training(*arguments)
    small = refused("demo", "--n-examples", "5", "--output-dir", tmp_path / "out")
    assert "n_examples must be at least 6" in small
