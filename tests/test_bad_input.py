"""Everything a user can get wrong: one line on stderr that names the problem and the way out, and nothing half-written."""

import json
import re
import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import zoo
from by_name import audit_by_name
from hf_attnprobe import (
    AttentionClassifierConfig,
    AttnProbeError,
    audit,
    train_classifier,
)
from hf_attnprobe.cli import main
from hf_attnprobe.distributed import process_state
from hf_attnprobe.faithfulness import registry
from hf_attnprobe.inference.batching import parse_bytes
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.training.options import TrainingOptions


ROWS = [
    {"text": "the film was dull .", "label": 0},
    {"text": "a wonderful plot", "label": 1},
]


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
        assert (
            done.err.startswith("attnprobe: ")
            and done.err.count("\n") == 1
            and done.err.endswith("\n")
        )
        assert contents(tmp_path) == before
        assert not (tmp_path / "out").exists()
        return done.err

    return run


@pytest.fixture
def refused_audit(refused, checkpoint, reviews_folder, tmp_path):
    """The same for an audit of which everything is right but what is given."""

    def run(
        *arguments,
        model=checkpoint,
        dataset=reviews_folder,
        output_dir=tmp_path / "out",
    ):
        return refused(
            "audit",
            "--model",
            model,
            "--dataset",
            dataset,
            "--output-dir",
            output_dir,
            *arguments,
        )

    return run


# --- the model ----------------------------------------------------------------------------------------------------


def test_no_model_there(refused_audit, tmp_path):
    line = refused_audit(model=tmp_path / "bilstm")
    assert f"expected a model at {tmp_path / 'bilstm'}, there is nothing" in line
    assert "no folder here" in refused_audit(model="acme/unheard-of")


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (
            ["model.safetensors"],
            "found a configuration only; save the model there again",
        ),
        (
            ["config.json"],
            "found no config.json there; give the folder of save_pretrained",
        ),
        (
            ["tokenizer.json", "tokenizer_config.json"],
            "save one beside the weights with tokenizer.save_pretrained",
        ),
        (["*"], "found no config.json there"),
    ],
)
def test_a_model_folder_that_lacks_something(removed, message, refused_audit, checkpoint, copy_of):
    folder = copy_of(checkpoint)
    for pattern in removed:
        for file in folder.glob(pattern):
            file.unlink()
    line = refused_audit(model=folder)
    assert message in line and str(folder) in line


@pytest.mark.parametrize("spoil", ["cut", "garbage", "empty"])
def test_spoilt_weights(spoil, refused_audit, checkpoint, copy_of):
    file = copy_of(checkpoint) / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "garbage": b"no weights " * 100,
            "empty": b"",
        }[spoil]
    )
    line = refused_audit(model=file.parent)
    assert f"expected a model in {file.parent}, but it does not load" in line


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"model_type": "attention-classifier"}',
        '{"model_type": 3}',
    ],
)
def test_spoilt_configuration(text, refused_audit, checkpoint, copy_of):
    file = copy_of(checkpoint) / "config.json"
    file.write_text(text)
    assert f"expected a model in {file.parent}, but it does not load" in refused_audit(
        model=file.parent
    )


def test_code_in_the_folder_is_run_on_request_only(refused_audit, checkpoint, copy_of):
    file = copy_of(checkpoint) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "something else"}))
    line = refused_audit(model=file.parent)
    assert "contains custom code" in line and line.endswith("Allow it with --trust-remote-code\n")


def test_spoilt_tokenizer(refused_audit, checkpoint, copy_of):
    file = copy_of(checkpoint) / "tokenizer.json"
    file.write_text("{")
    assert "expected a tokenizer with the model" in refused_audit(model=file.parent)


@pytest.mark.parametrize(
    ("name", "value"),
    [("encoder", "transformer"), ("encoder_size", 16), ("vocab_size", 50)],
)
def test_configuration_and_weights_of_different_models(
    name, value, refused_audit, checkpoint, copy_of
):
    file = copy_of(checkpoint) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    assert f"expected a model in {file.parent}, but it does not load" in refused_audit(
        model=file.parent
    )


def test_weights_that_lack_the_read_out(refused_audit, make_model, tokenizer, tmp_path):
    """Transformers would fill it with random numbers and say so in a warning."""
    make_model().attention_classifier.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    line = refused_audit(model=tmp_path / "base")
    assert "it has no weights for classifier.bias, classifier.weight" in line


def test_a_tokenizer_of_another_model(refused_audit, make_model, tokenizer, tmp_path):
    model = make_model()
    model.resize_token_embeddings(20)
    model.save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    line = refused_audit(model=tmp_path / "small")
    assert "the model embeds ids below 20; load the tokenizer saved with the model" in line


def test_a_model_that_is_an_object_without_a_tokenizer(make_model):
    with pytest.raises(
        AttnProbeError,
        match="expected a tokenizer with a model given as an object; pass tokenizer=",
    ):
        audit(make_model(), ROWS)


def test_a_base_model_as_an_object(make_model, tokenizer):
    with pytest.raises(AttnProbeError, match="load it with AutoModelForSequenceClassification"):
        audit(make_model().attention_classifier, ROWS, tokenizer=tokenizer)


# --- the data -----------------------------------------------------------------------------------------------------


def test_no_data_there(refused_audit, tmp_path):
    place = tmp_path / "nothing"
    assert f"expected a data set at {place}, there is nothing" in refused_audit(dataset=place)
    assert "there is no file nosuch.csv in" in refused_audit(dataset="nosuch.csv")
    assert "cannot be loaded" in refused_audit(dataset="nosuch")
    (tmp_path / "none.csv").touch()
    line = refused_audit(dataset=tmp_path / "none.csv")
    assert f"expected examples in {tmp_path / 'none.csv'}, the file is empty" in line
    (tmp_path / "empty").mkdir()
    assert "which cannot be loaded" in refused_audit(dataset=tmp_path / "empty")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text-column", "review"], "no column 'review' among the columns"),
        (["--label-column", "stars"], "no column 'stars' among the columns"),
        (["--split", "dev"], "expected one of the splits"),
        (["--dataset-config", "large"], "cannot be loaded"),
    ],
)
def test_what_the_data_set_does_not_have(arguments, message, refused_audit):
    assert message in refused_audit(*arguments)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"review": "x", "label": 0}],
            "no column 'text' or 'sentence' among the columns review, label",
        ),
        (
            [{"text": 3, "label": 0}, {"text": 4, "label": 1}],
            "column 'text' must hold strings, row 0 is int",
        ),
        (
            [{"text": ["a", "b"], "label": 0}],
            "column 'text' must hold strings, row 0 is list",
        ),
        (
            [*ROWS, {"text": None, "label": 1}],
            "column 'text' must hold strings, row 2 is NoneType",
        ),
        (
            [{"text": "a film", "label": 0.5}],
            "the model predicts a class: expected one class per text",
        ),
        ([], "cannot be loaded"),
        (
            [*ROWS, {"text": "a film", "label": 2}],
            "the model knows 2 labels: negative, positive",
        ),
        ([{"text": "a film", "label": "angry"}], "label 'angry'"),
        (
            [{"text": "a film", "label": name} for name in ("angry", "positive")],
            "label 'angry'",
        ),
        (
            [{"text": "a film", "label": name} for name in ("negative", "positive", "zen")],
            "label 'zen'",
        ),
        (
            [{"text": "", "label": 0}, {"text": " \n", "label": 1}],
            "expected texts with tokens, all 2 have none",
        ),
    ],
)
def test_data_that_cannot_be_audited(rows, message, refused_audit, tmp_path):
    assert message in refused_audit(dataset=write(tmp_path / "data", rows))


def test_labels_are_matched_by_name(checkpoint):
    """Here 'positive' is number 0 of the data and number 1 of the model."""
    rows = [
        {"text": "a wonderful plot", "label": "positive"},
        {"text": "superb", "label": "positive"},
    ]
    for named in (rows, [row | {"label": "Positive"} for row in rows]):
        found = audit(checkpoint, named, tests=["permutation"], progress=False).to_pandas()
        assert found[found.statistic == "label"].value.tolist() == [1, 1]


def test_classes_under_other_names_go_by_number(checkpoint):
    rows = [
        {"text": "a wonderful plot", "label": "pos"},
        {"text": "dull", "label": "neg"},
    ]
    report = audit(checkpoint, rows, tests=["adversarial"], progress=False)
    found = report.to_pandas()
    assert found[found.statistic == "label"].value.tolist() == [1, 0]
    labels = {example.example_id: example.label for example in report.examples}
    assert labels == {0: "positive", 1: "negative"}


def test_texts_of_no_token_are_skipped_and_counted(cli, checkpoint, tmp_path):
    rows = [ROWS[0], {"text": "", "label": 0}, ROWS[1], {"text": " \t ", "label": 1}]
    done = cli(
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        write(tmp_path / "data", rows),
        "--json",
    )
    found = json.loads(done.out)
    assert (done.code, found["n"], found["provenance"]["skipped_empty"]) == (0, 2, 2)
    assert {s["n"] + s["undefined"] for s in found["statistics"] if s["group"] == "all"} == {2}


def test_texts_of_one_token(cli, checkpoint, tmp_path):
    """Defined where the test is, counted as undefined where it is not, and never part of a mean."""
    rows = [{"text": "superb", "label": 1}, *ROWS, {"text": "dull", "label": 0}]
    out = tmp_path / "out"
    done = cli(
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        write(tmp_path / "data", rows),
        "--json",
        "--output-dir",
        out,
        "--tests",
        "correlation",
        "permutation",
        "adversarial",
    )
    assert (
        "NaN" not in done.out + (out / "summary.json").read_text() + (out / "report.md").read_text()
    )
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
        tmp_path / "data",
        [{"text": "superb", "label": 1}, {"text": "dull", "label": 0}],
    )
    done = cli("audit", "--model", checkpoint, "--dataset", data, "--json")
    for s in json.loads(done.out)["statistics"]:
        if s["n"] == 0:
            assert (s["mean"], s["median"], s["std"], s["ci95"]) == (
                None,
                None,
                None,
                [None, None],
            )
    assert (
        "undefined for all 2 texts"
        in cli("audit", "--model", checkpoint, "--dataset", data, "--verbose").out
    )


# --- options ------------------------------------------------------------------------------------------------------


def test_an_unknown_test(refused_audit):
    line = refused_audit("--tests", "permutation", "erasures", "shuffle")
    assert "unknown test 'erasures'; did you mean erasure?" in line
    known = ", ".join(registry.tests())
    assert f"unknown test 'shuffle'; expected one of {known}, default" in refused_audit(
        "--tests", "shuffle"
    )


@pytest.mark.parametrize("budget", ["much", "-1GB", "0", "2TB2", "", "nan", "inf", "1e999GB", "GB"])
def test_a_memory_budget_that_is_none(budget, refused_audit):
    assert "expected a memory budget such as 500MB or 2GB" in refused_audit(
        f"--memory-budget={budget}"
    )


@pytest.mark.parametrize(
    ("budget", "n_bytes"),
    [
        ("2GB", 2 * 10**9),
        ("500mb", 5 * 10**8),
        (" 1.5 KB ", 1500),
        (7, 7),
        ("7", 7),
        ("1e3", 1000),
    ],
)
def test_a_memory_budget(budget, n_bytes):
    assert parse_bytes(budget) == n_bytes


@pytest.mark.parametrize("target", [2, -1])
def test_a_target_the_model_has_not(target, refused_audit):
    assert f"expected a target class from 0 to 1, got {target}" in refused_audit(
        f"--target={target}"
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [("layer", 1), ("layer", -1), ("head", 2), ("query", 1), ("query", -1)],
)
def test_a_place_the_model_has_not(flag, value, refused_audit):
    flags = f"--{flag}" if flag == "query" else f"--{flag}s"
    line = refused_audit(f"{flags}={value}")
    assert re.search(f"expected a {flag} from 0 to 0.* got {value}; choose another {flags}", line)


def test_the_exact_method_where_there_is_none(refused_audit, make_checkpoint):
    line = refused_audit(
        "--set", "adversarial.method=exact", model=make_checkpoint("bilstm", "additive", 4)
    )
    assert "use method='search'" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_limit": 0}, "test_limit must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"tests": {"adversarial": {"n_starts": 0}}}, "n_starts must be at least 1, got 0"),
        ({"n_permutations": 0}, "n_permutations must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        (
            {"tests": {"adversarial": {"method": "guess"}}},
            "expected auto or exact or search for method, got 'guess'",
        ),
        (
            {"dtype": "float23"},
            "expected float32 or float64 or bfloat16 or float16 for dtype, got 'float23'",
        ),
        ({"tests": []}, "expected at least one test"),
        ({"memory_budget": "inf"}, "expected a memory budget"),
        ({"memory_budget": 0.5}, "for memory_budget, got 0.5"),
        (
            {"tests": {"permutation": {"n_permutations": "ten"}}},
            "expected a whole number for n_permutations",
        ),
        ({"n_shuffles": 3}, "unknown option 'n_shuffles'; expected one of layers, "),
        ({"layer": [1]}, r"unknown option 'layer'; did you mean layers\?"),
        (
            {"tests": {"permutation": {"n_permutation": 3}}},
            r"unknown option 'n_permutation' of permutation; did you mean n_permutations\?",
        ),
        ({"tests": ["permutations"]}, r"unknown test 'permutations'; did you mean permutation\?"),
        ({"tests": {"permutation": False}}, "expected names with values for permutation"),
    ],
)
def test_options_of_the_function(options, message, checkpoint, tmp_path):
    with pytest.raises(AttnProbeError, match=message):
        audit_by_name(checkpoint, ROWS, output_dir=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["audits"],
        ["audit"],
        ["audit", "--model", "x"],
        ["audit", "--model", "x", "--dataset", "y", "--frobnicate"],
        ["audit", "--model", "x", "--dataset", "y", "--seed", "one"],
        ["audit", "--model", "x", "--dataset", "y", "--seed", "-1"],
        ["audit", "--model", "x", "--dataset", "y", "--test-limit", "0"],
        ["audit", "--model", "x", "--dataset", "y", "--batch-size", "0"],
        ["audit", "--model", "x", "--dataset", "y", "--dtype", "int8"],
        ["train", "--dataset", "x", "--output-dir", "y", "--encoder", "rnn"],
        ["train", "--dataset", "x", "--output-dir", "y", "--epochs", "0"],
        ["train", "--dataset", "x", "--output-dir", "y", "--embedding-size", "0"],
        ["train", "--dataset", "x", "--output-dir", "y", "--learning-rate", "fast"],
        ["demo", "--encoder", "lstm"],
        ["demo", "--n-examples", "-1"],
        ["report"],
    ],
    ids=" ".join,
)
def test_usage_errors(arguments, cli):
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("attnprobe") and done.err.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audti"], "attnprobe: unknown command 'audti'; did you mean audit?"),
        (["--verison"], "attnprobe: unknown flag --verison; did you mean --version?"),
        (["audit", "--modle", "x"], "attnprobe audit: unknown flag --modle; did you mean --model?"),
        (["train", "--epoch=3", "--encoders", "mlp"], "unknown flag --encoders; did you mean"),
        (["audit", "--n-permutations", "5"], "are written --set TEST.OPTION=VALUE, see --help-all"),
    ],
    ids=" ".join,
)
def test_a_mistyped_name_says_which_one_is_near(arguments, message, cli):
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err.splitlines()[0] and len(done.err.splitlines()) == 2


# --- the output folder --------------------------------------------------------------------------------------------


@pytest.fixture
def audited(checkpoint, reviews_folder, copy_of):
    """A finished audit of eight texts; it may be spoilt."""
    command = ["audit", "--model", str(checkpoint), "--dataset", str(reviews_folder)]
    command += ["--test-limit", "8", "--tests", "permutation", "--output-dir"]
    return copy_of(zoo.once("audited", lambda folder: main([*command, str(folder)])), "audited")


def test_a_folder_of_another_model(audited, refused_audit, make_checkpoint):
    line = refused_audit(model=make_checkpoint("cnn"), output_dir=audited)
    assert (
        "belongs to another audit: its model fingerprint" in line
        and "choose another --output-dir" in line
    )


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--seed", "1"], "seed"),
        (["--split", "train"], "data fingerprint"),
        (["--dtype", "float32"], "dtype"),
        (["--set", "permutation.n_permutations=7"], "options"),
    ],
)
def test_a_folder_of_another_audit(arguments, what, audited, refused_audit):
    line = refused_audit(*arguments, output_dir=audited)
    assert f"belongs to another audit: its {what}" in line


def test_a_folder_with_other_files(refused_audit, tmp_path, checkpoint, copy_of):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("important")
    line = refused_audit(output_dir=tmp_path / "thesis")
    assert "expected a new or an empty folder" in line and "choose another --output-dir" in line
    assert "holds other files" in refused_audit(output_dir=copy_of(checkpoint))


def test_a_file_in_place_of_the_folder(refused_audit, tmp_path):
    (tmp_path / "file").write_text("important")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        line = refused_audit(output_dir=place)
        assert str(tmp_path / "file") in line and "choose another --output-dir" in line


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null"])
def test_spoilt_identity(text, audited, refused_audit):
    (audited / "audit.json").write_text(text)
    assert "choose another --output-dir" in refused_audit("--test-limit", "8", output_dir=audited)


@pytest.mark.parametrize("spoil", ["cut", "empty", "other columns"])
def test_spoilt_rows(spoil, audited, refused_audit, refused):
    (part,) = (audited / "rows").iterdir()
    whole = part.read_bytes()
    if spoil == "other columns":
        pd.DataFrame({"a": [1]}).to_parquet(part)
    else:
        part.write_bytes(whole[: len(whole) // 2] if spoil == "cut" else b"")
    for line in (
        refused_audit("--test-limit", "8", output_dir=audited),
        refused("report", audited),
    ):
        assert str(part) in line and "delete it and run the audit again" in line


def test_leftovers_of_an_interrupted_write_do_no_harm(audited, cli, checkpoint, reviews_folder):
    """A process that is killed leaves hidden files; nobody reads them, and they may be another process's."""
    (audited / "rows" / ".0123456789abcdef").write_bytes(b"half a part")
    (audited / ".summary.json.123").write_text("{")
    command = (
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        reviews_folder,
        "--test-limit",
        "9",
        "--tests",
        "permutation",
    )
    assert cli(*command, "--output-dir", audited).code == 0
    rows = pd.read_parquet(audited / "rows")
    assert rows[rows.test == "permutation"].example_id.nunique() == 9


def test_killed_while_claiming_the_folder(cli, checkpoint, reviews_folder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".audit.json.123").write_text("{")
    command = (
        "audit",
        "--model",
        checkpoint,
        "--dataset",
        reviews_folder,
        "--test-limit",
        "2",
        "--tests",
        "permutation",
    )
    assert cli(*command, "--output-dir", tmp_path / "out").code == 0


def test_more_processes_than_accelerate_sees(refused_audit, monkeypatch):
    """As where a launcher meets a PartialState that was made without cpu=True: each would do all the work."""
    audit_in_one_process = process_state()
    assert audit_in_one_process.num_processes == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = refused_audit("--test-limit", "2")
    assert "expected 2 processes (WORLD_SIZE), Accelerate sees 1" in line and "cpu=True" in line


def test_several_processes_need_a_folder_to_meet_in(checkpoint, monkeypatch):
    two = SimpleNamespace(
        num_processes=2,
        process_index=0,
        is_main_process=True,
        device=torch.device("cpu"),
    )
    monkeypatch.setattr("hf_attnprobe.auditing.prepare.process_state", lambda: two)
    with pytest.raises(
        AttnProbeError,
        match="several processes meet in the output folder; give one with --output-dir",
    ):
        audit(checkpoint, ROWS, progress=False)


# --- report -------------------------------------------------------------------------------------------------------


def test_reports_that_cannot_be(refused, audited, tmp_path):
    assert "found no summary.json there; finish or run the audit first" in refused(
        "report", tmp_path
    )
    assert "found no summary.json there" in refused("report", tmp_path / "nowhere")
    assert "expected an output file ending in .md" in refused(
        "report", audited, "--output", tmp_path / "report.pdf"
    )
    assert "cannot write" in refused(
        "report", audited, "--output", tmp_path / "nowhere" / "report.md"
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"statistics": 3}'])
def test_spoilt_summary(text, audited, refused):
    (audited / "summary.json").write_text(text)
    line = refused("report", audited)
    assert str(audited / "summary.json") in line and "run the audit again" in line


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


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": ROWS}, "expected a validation split"),
        ({"validation": ROWS}, "expected one of the splits validation, got 'train'"),
        ({"train": ROWS[:1], "validation": ROWS}, "every class"),
        (
            {"train": [{"text": "a film"}], "validation": [{"text": "a film"}]},
            "expected labelled training texts",
        ),
        (
            {
                "train": ROWS,
                "validation": [{"text": "", "label": 1}, {"text": None, "label": 0}],
            },
            "row 1 is NoneType",
        ),
        (
            {"train": ROWS, "validation": [*ROWS, {"text": "a film", "label": 2}]},
            "validation.* label",
        ),
        (
            {"train": ROWS, "validation": [{"text": "a film", "label": -1}]},
            "validation.* label",
        ),
        (
            {
                "train": ROWS,
                "validation": ROWS,
                "test": [{"text": "a film", "label": 7}],
            },
            "test.* label",
        ),
        (
            {
                "train": [{"text": "", "label": 0}, {"text": " ", "label": 1}],
                "validation": ROWS,
            },
            "expected a word",
        ),
    ],
)
def test_data_that_cannot_be_trained_on(splits, message, refused_training, tmp_path):
    line = refused_training(dataset=write_splits(tmp_path / "data", **splits))
    assert re.search(message, line), line


def test_a_test_split_without_labels_is_not_scored(cli, tmp_path):
    data = write_splits(
        tmp_path / "data",
        train=ROWS,
        validation=ROWS,
        test=[{"text": "a film", "label": -1}],
    )
    done = cli(
        "train",
        "--dataset",
        data,
        "--output-dir",
        tmp_path / "out",
        "--encoder",
        "mlp",
        "--epochs",
        "1",
        "--json",
    )
    assert done.code == 0
    assert not [name for name in json.loads(done.out)["metrics"] if name.startswith("test_")]


def test_classes_of_the_splits_are_matched_by_name(tmp_path):
    """In memory each split numbers its strings alone: 'positive' is 0 in the second."""
    train = [
        {"text": t, "label": k}
        for t, k in (("dull film", "negative"), ("wonderful plot", "positive"))
    ]
    config = AttentionClassifierConfig(encoder="mlp", embedding_size=4, encoder_size=4)
    with pytest.raises(AttnProbeError, match="validation"):
        train_classifier(
            config,
            train,
            train[1:],
            output_dir=tmp_path / "out",
            progress=False,
            options=TrainingOptions(epochs=1),
        )
    assert not (tmp_path / "out").exists()


def test_sizes_that_make_no_model(refused_training):
    line = refused_training("--encoder", "cnn", "--encoder-size", "30")
    assert "encoder_size must be a multiple of the 4 kernel sizes, got 30" in line


def test_word_vectors_that_do_not_fit(refused_training, tmp_path):
    assert "cannot read the word vectors" in refused_training(
        "--word-vectors", tmp_path / "none.txt"
    )
    (tmp_path / "vectors.txt").write_text("the 1 2 3\nfilm 1 2 3\n")
    line = refused_training("--word-vectors", tmp_path / "vectors.txt")
    assert "have 3 numbers, the model embeds in 300" in line


def test_training_into_a_folder_with_other_files(refused_training, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("important")
    assert "holds other files; choose another --output-dir" in refused_training(
        output_dir=tmp_path / "thesis"
    )
    (tmp_path / "file").write_text("important")
    assert "choose another --output-dir" in refused_training(output_dir=tmp_path / "file")


def test_training_into_the_folder_of_another_model(refused_training, tmp_path):
    zoo.bert(20, layers=1, heads=1, width=8, spread=0.02).save_pretrained(tmp_path / "bert")
    line = refused_training(output_dir=tmp_path / "bert")
    assert "holds other files; choose another --output-dir" in line


def test_training_again_after_an_interruption(monkeypatch, cli, tmp_path):
    """Interrupted or killed, the steps are left, and the same command works again."""
    data = write_splits(tmp_path / "data", train=ROWS * 8, validation=ROWS)
    command = (
        "train",
        "--dataset",
        data,
        "--output-dir",
        tmp_path / "out",
        "--encoder",
        "mlp",
        "--epochs",
        "2",
    )

    def stop(*args, **kwargs):
        (tmp_path / "out" / ".steps" / "checkpoint-1").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("transformers.Trainer.train", stop)
        done = cli(*command)
    assert (
        done.code == 130
        and "run the same command again to continue" in done.err
        and (tmp_path / "out" / ".steps").exists()
    )
    assert cli(*command).code == 0
    assert not (tmp_path / "out" / ".steps").exists()
    assert cli(*command).code == 0  # over its own result


def test_a_demo_never_touches_the_results_of_real_work(refused, audited, checkpoint, tmp_path):
    results = tmp_path / "results"
    shutil.copytree(checkpoint, results / "model")
    shutil.copytree(audited, results / "audit")
    line = refused("demo", "--output-dir", results)
    assert "holds other files; choose another --output-dir" in line


def test_a_demo_too_small(refused, tmp_path):
    assert "expected at least 6 examples" in refused(
        "demo", "--n-examples", "5", "--output-dir", tmp_path / "out"
    )
