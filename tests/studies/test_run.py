"""``attnprobe study``: what it makes of its steps, that it can be killed, what it refuses."""

import json
import re
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from hf_attnprobe import AttnProbeError, build_tokenizer
from hf_attnprobe.cli import main
from hf_attnprobe.core.options import SavedModel
from hf_attnprobe.core.serialization import convert_to_plain
from hf_attnprobe.retraining.options import TransferOptions
from hf_attnprobe.retraining.run import transfer
from hf_attnprobe.statistics.scores import compute_metrics
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.studies import run as study_run
from hf_attnprobe.studies import steps as steps_module
from hf_attnprobe.studies.builtin import STUDIES_BY_NAME
from hf_attnprobe.studies.report import INTERVAL_NOTE, read_study_report
from hf_attnprobe.studies.run import plan_study, study
from hf_attnprobe.studies.steps import Steps, StudyOptions
from tests.helpers import tiny_models
from tests.helpers.child_processes import WriteMonitor, run_in_child
from tests.helpers.data_folders import write as write_rows
from tests.helpers.error_messages import refused, refuses


SMALL = {"embedding_size": 12, "encoder_size": 6}
SMALL |= {"epochs": 2, "learning_rate": 0.01, "batch_size": 16}
TINY = """
    # A study of the tests, as a user writes one.
    SMALL = {small}


    def study(s):
        \"\"\"A tiny study\"\"\"
        short = {{"test_limit": 10}} if s.quick else {{}}
        encoders = ["mlp"] if s.quick else ["mlp", "bilstm"]
        for data in s.grid(dataset=["reviews"]):
            own = s.add("train", "own", data, **data, encoder="mlp", **SMALL)
            for encoder in s.grid(encoder=encoders):
                at = data | encoder
                base = s.add("train", "base", at, **at, **SMALL)
                tests = ["permutation", "adversarial"]
                s.add("audit", "audit", at, model=base, **data, tests=tests, **short)
                s.add("transfer", "transfer", at, model=own, guide=base, **data)
        room = {{"statistic": "epsilon_max_jsd@0.05", "threshold": 0.01, "means": "there is room"}}
        s.add_table(
            "Room",
            audit={{
                "room": room,
                "share": "epsilon_max_jsd@0.05/largest_jsd",
                "accuracy": "accuracy",
            }},
            transfer={{"lost": {{"score": "transfer/guided/f1", "difference": True}}}},
        )
        s.add_table("By length", [12, 25], audit={{"room": "epsilon_max_jsd@0.05"}})
"""


def write(folder: Path, name: str = "tiny.py", **replaced: str) -> Path:
    """The tiny study as a file, with some of its words replaced."""
    text = textwrap.dedent(TINY.format(small=SMALL))
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture(scope="module")
def file(once):
    def make(folder):
        folder.mkdir()
        write(folder)

    (made,) = once("study-file", make).iterdir()
    return made


@pytest.fixture(scope="module")
def flags(file, reviews_folder):
    return [file, "--dataset", f"reviews={reviews_folder}"]


@pytest.fixture(scope="module")
def folder(file, reviews_folder, once):
    """What the tiny study leaves behind; do not write into it."""
    given = StudyOptions(dataset=f"reviews={reviews_folder}")
    return once("study", lambda made: study(file, options=given, output_dir=made, progress=False))


@pytest.fixture
def run(reviews_folder, tmp_path):
    """A study of the reviews, under the name of a data set."""

    def run(file, name="reviews", output_dir=tmp_path / "out", **options):
        given = StudyOptions(dataset=f"{name}={options.pop('data', reviews_folder)}", **options)
        return study(file, options=given, output_dir=output_dir, progress=False)

    return run


@pytest.fixture(scope="module")
def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def files_in(folder):
    """Every model and every part of rows, and when it was written."""
    every = [*folder.rglob("*.safetensors"), *folder.rglob("*.parquet")]
    files = [f for f in every if ".steps" not in f.parts]
    return {str(f.relative_to(folder)): f.stat().st_mtime_ns for f in files}


# --- a whole study ------------------------------------------------------------------------------------------------


def test_every_step_has_a_folder_for_every_cell_that_it_depends_on(folder, summary):
    expected = ["own/reviews"]
    for cell in ("reviews-mlp", "reviews-bilstm"):
        expected += [f"{step}/{cell}" for step in ("base", "audit", "transfer")]
    assert all((folder / name).is_dir() for name in expected)
    steps = {s["name"]: s for s in summary["steps"]}
    assert [n for n in steps if n in expected] == expected
    guided = {f"{name}/guided" for name in expected if name.startswith("transfer")}
    assert set(steps) - set(expected) == guided
    assert all(s["seconds"] > 0 for s in steps.values())
    assert steps["base/reviews-mlp"]["epochs"] == 2
    (data,) = summary["data"]
    assert data["sizes"] == {"train": 160, "validation": 40, "test": 40}


def test_the_numbers_of_a_table_are_those_of_the_rows(folder, summary):
    table = next(t for t in summary["tables"] if t["title"] == "Room")
    assert table["head"] == ["dataset", "encoder", "room", "share", "accuracy", "lost"]
    for row in table["rows"]:
        rows = read_rows(folder / "audit" / f"reviews-{row[1]}" / "rows")
        wide = rows.pivot_table(index="example_id", columns="statistic", values="value")
        room = wide["epsilon_max_jsd@0.05"]
        assert row[2]["value"] == pytest.approx(room.mean()) and row[2]["n"] == len(wide) == 40
        assert row[2]["ci95"][0] < row[2]["value"] < row[2]["ci95"][1]
        assert row[3]["value"] == pytest.approx((room / wide.largest_jsd).mean())
        assert row[4]["value"] == pytest.approx((wide.label == wide.predicted_class).mean())
        found = json.loads((folder / "transfer" / f"reviews-{row[1]}" / "summary.json").read_text())
        scores = {(s["model"], s["metric"]): s for s in found["scores"]["transfer"]}
        assert row[5] == scores["guided", "f1"]["lost"]
    assert "There is room (whole interval from 0.01 upwards) in 2 of 2" in table["sentences"][0]


def test_lengths_divide_the_texts(folder, summary):
    table = next(t for t in summary["tables"] if t["title"] == "By length")
    assert [row[2] for row in table["rows"]] == ["1–11", "12–24", "from 25"] * 2
    rows = read_rows(folder / "audit" / "reviews-mlp" / "rows")
    wide = rows.pivot_table(index="example_id", columns="statistic", values="value")
    long = wide[wide.n_tokens >= 25]["epsilon_max_jsd@0.05"]
    told = table["rows"][2][3]
    assert told["value"] == pytest.approx(long.mean()) and told["n"] == len(long)
    assert sum(row[3]["n"] for row in table["rows"][:3]) == 40


def test_a_guided_model_is_trained_with_the_guides_weights(folder, reviews_folder):
    """The scores are those of the saved model under the attention of the guide, read again."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from hf_attnprobe.data.examples import load_examples
    from hf_attnprobe.inference.outputs import make_guide, predict, read_outputs

    out = folder / "transfer" / "reviews-bilstm"
    examples = load_examples(reviews_folder, "test")
    tokenizer = AutoTokenizer.from_pretrained(out / "guided")
    guide = AutoModelForSequenceClassification.from_pretrained(folder / "base" / "reviews-bilstm")
    guided = AutoModelForSequenceClassification.from_pretrained(out / "guided")
    weights = make_guide(read_outputs(guide, tokenizer, examples))
    probs = predict(guided, tokenizer, examples, guide=weights)
    found = compute_metrics(np.asarray(examples["label"][:]), probs.numpy())
    scores = json.loads((out / "summary.json").read_text())["scores"]["transfer"]
    told = {s["metric"]: s["value"] for s in scores if s["model"] == "guided"}
    assert told == pytest.approx(found)


def test_the_same_again_does_nothing(folder, flags, summary, monkeypatch, cli, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "out")
    before = files_in(folder)
    for work in ("transformers.Trainer.train", "hf_attnprobe.audits.runner.run_batch"):
        monkeypatch.setattr(work, lambda *args, **options: pytest.fail("done again"))
    done = cli("study", *flags, "--output-dir", folder, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == summary and files_in(folder) == before
    text = (folder / "report.md").read_text()
    assert cli("report", folder).out == f"{read_study_report(folder)}\n"
    assert text.startswith("# A tiny study")
    assert "step 7 of 7: transfer/reviews-bilstm (transfer), already finished" in done.err


@pytest.mark.slow
def test_killed_in_the_middle(folder, flags, summary, tmp_path, cli):
    """While the second step is at work; then the same command again."""
    killed = tmp_path / "killed"
    command = ["study", *map(str, flags), "--output-dir", str(killed)]

    def die():
        WriteMonitor(killed / "base" / "reviews-bilstm" / ".steps" / "checkpoint", kill_at=2)
        return main(command)

    assert run_in_child(die).code == -9
    before = files_in(killed)
    assert "base/reviews-mlp/model.safetensors" in before
    assert "base/reviews-bilstm/model.safetensors" not in before
    done = cli(*command, "--json")
    assert done.code == 0, done.err
    assert before.items() <= files_in(killed).items()  # what was finished was left alone
    assert json.loads(done.out)["tables"] == summary["tables"]
    for name in ("base/reviews-bilstm", "transfer/reviews-bilstm/guided"):
        one, other = (load_file(out / name / "model.safetensors") for out in (killed, folder))
        assert all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.slow
def test_a_deleted_step_and_what_was_made_of_it_are_done_again(copy_of, folder, flags, cli):
    copy = copy_of(folder)
    shutil.rmtree(copy / "own")
    done = cli("study", *flags, "--output-dir", copy)
    assert done.code == 0, done.err
    steps = [line for line in done.err.splitlines() if line.startswith("step ")]
    again = [line.split()[4] for line in steps if "already finished" not in line]
    assert again == ["own/reviews", "transfer/reviews-mlp", "transfer/reviews-bilstm"]


def test_quick_says_so(run, file):
    report = run(file, quick=True)
    first = report.to_markdown().splitlines()[4]
    assert first.startswith("- This is the quick version")
    said = " ".join(str(report).split())
    assert said.index(first) < said.index(report.tables[0].title)
    assert convert_to_plain(report)["quick"] is True
    (row,) = report.tables[0].rows
    assert row[1] == "mlp" and row[2].n == 10
    refused("contains the results of the quick study tiny, not of the full", run, file)


def test_other_arguments_or_texts_are_refused(folder, file, run, reviews_folder, copy_of, tmp_path):
    before = files_in(folder)
    copy, data = copy_of(folder), copy_of(reviews_folder, "data")
    lines = (data / "test.jsonl").read_text().splitlines(keepends=True)
    held = (copy / "study.json").read_text().replace(str(reviews_folder), str(data))
    (copy / "study.json").write_text(held)
    (data / "test.jsonl").write_text("".join(lines[:-1]))
    for name in ("epochs", "column"):
        (tmp_path / name).mkdir()
    other_epochs = write(tmp_path / "epochs", **{"'epochs': 2": "'epochs': 3"})
    # of which an audit reads other columns
    unlabelled = write(
        tmp_path / "column", **{"tests=tests": "tests=tests, label_column='nothing'"}
    )
    thesis, out = tmp_path / "thesis", tmp_path / "out"
    thesis.mkdir()
    (thesis / "thesis.tex").touch()
    for into, given, options, message in (
        (folder, other_epochs, {}, "step own/reviews was run with epochs 2, not 3"),
        (folder, file, {"train_limit": 100}, "was run with train_limit None, not 100"),
        (
            folder,
            write(tmp_path, "other.py"),
            {},
            "the results of the full study tiny, not of the full",
        ),
        (copy, file, {"data": data}, "have changed since step own/reviews was run"),
        (thesis, file, {}, "contains other files"),
        (out, file, {"data": tmp_path / "nowhere"}, "does not exist"),
        (out, unlabelled, {}, "no column 'nothing'"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            run(given, output_dir=into, **options)
    assert files_in(folder) == before and not out.exists()
    assert [f.name for f in thesis.iterdir()] == ["thesis.tex"]


# --- papers -------------------------------------------------------------------------------------------------------


SHORT_SEARCH = {"adversarial": {"method": "search", "n_steps": 5}}


class Shrunk:
    """The steps of a study, with other arguments by verb or step, and some lists cut short."""

    def __init__(self, steps: Steps, changes: dict, lists: dict) -> None:
        self.__dict__.update(steps=steps, changes=changes, lists=lists)

    def __getattr__(self, name):
        return getattr(self.steps, name)

    def __setattr__(self, name, value):
        setattr(self.steps, name, value)

    def grid(self, **lists):
        return self.steps.grid(**lists | {k: v for k, v in self.lists.items() if k in lists})

    def add(self, verb, step, cell, **arguments):
        own = self.changes.get(verb, {}) | self.changes.get(step, {})
        return self.steps.add(verb, step, cell, **arguments | own)


def shrunk(name: str, changes: dict, **lists: list):
    """A paper's study with small models; the steps keep their names."""

    def study(steps):
        STUDIES_BY_NAME[name](Shrunk(steps, changes, lists))

    study.__name__, study.__doc__ = name, STUDIES_BY_NAME[name].__doc__
    return study


def cells(table) -> list[dict]:
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


@pytest.mark.slow
def test_wiegreffe_and_pinter_beside_ours(run):
    tests = {"seeds": {"n_seeds": 1}, "adversary": {"lambdas": [0.05], "epochs": 2}}
    options = {"tests": {"uniform": {}, "diagnostic_mlp": {}, **tests}}
    small = shrunk("wiegreffe-pinter", {"train": SMALL, "retrain": options})
    # The texts of another folder under the name of SST, as a folder that stands for it: long enough for its recipe.
    report = run(small, "sst")
    tables = {t.title.split("?")[0]: t for t in report.tables}
    rows = {row["attention"]: row for row in cells(tables["Is attention needed"])}
    assert rows["base"]["published F1"] == 0.831 and rows["base"]["Jain & Wallace's F1"] == 0.81
    assert rows["uniform"]["published F1"] == 0.822 and rows["uniform"]["F1 lost"].ci95 is not None
    told = cells(tables["Are the weights useful to another model"])
    guides = {row["guide"]: row["published F1"] for row in told}
    assert guides == {"uniform": 0.812, "trained": 0.817, "base": 0.824, "adversary": 0.592}
    elsewhere = tables["Can a model be trained to attend elsewhere"]
    assert elsewhere.rows[-1] == ("published, λ 0.00105 (on our scale)", 0.514, 0.072, 0.823)
    assert any("a baseline and not a bound" in line for line in elsewhere.sentences)
    note, over_texts = report.notes
    assert over_texts == INTERVAL_NOTE
    assert "Wiegreffe & Pinter 2019" in note and "no pretrained word vectors" in note
    made = {m.name: m for m in report.steps}
    assert made["retrained/sst/seeds/1"].seed == 1
    assert made["retrained/sst/adversary/lambda-0.05"].epochs == 2
    text = report.to_markdown()
    assert "nan" not in text and "| retrained/sst/uniform |" in text
    assert report.data[0].sizes["train"] <= 160


@pytest.mark.slow
def test_jain_and_wallace_beside_ours(run, tmp_path):
    changes = {"train": SMALL | {"encoder_size": 8}, "search": {"tests": SHORT_SEARCH}}
    lists = {"encoder": ["bilstm", "mlp"], "attention": ["additive"]}
    report = run(shrunk("jain-wallace", changes, **lists), "sst")
    tau, together, differences, room, shuffled, overall, first = report.tables
    audited = read_rows(tmp_path / "out" / "audit" / "sst-bilstm-additive" / "rows")
    wide = audited.pivot_table(index="example_id", columns="statistic", values="value")
    number = {"neg": 0, "pos": 1}  # of a predicted class
    for row in cells(tau):
        if row["encoder"] == "mlp":
            continue
        predicted = wide[wide.predicted_class == number[row["predicted"]]]
        own = predicted[f"attention_{row['τ with']}_tau"]
        assert row["τ"].value == pytest.approx(own.mean())
        assert row["std"] == pytest.approx(own.std(ddof=0), abs=1e-3)
    of_bilstm = [row for row in cells(tau) if row["encoder"] == "bilstm"]
    theirs = {(r["τ with"], number[r["predicted"]]): r["published τ"] for r in of_bilstm}
    own = {r["measure"]: r for r in cells(together) if r["encoder"] == "bilstm"}
    agreement = own["τ(g, loo)"]
    share = (wide.gradient_leave_one_out_p_value <= 0.05).mean()
    mean = wide.gradient_leave_one_out_tau.mean()
    assert agreement["ours"].value == pytest.approx(mean)
    assert agreement["significant"] == pytest.approx(share, abs=5e-4)
    published_rerun = agreement["published"], agreement["published significant"]
    assert published_rerun == (0.66, 0.91)
    found = pd.crosstab(wide.label, wide.predicted_class)
    found = found.reindex(columns=[0, 1], fill_value=0)
    precision = found.loc[1, 1] / max(found[1].sum(), 1)
    recall = found.loc[1, 1] / found.loc[1].sum()
    f1 = 2 / (1 / precision + 1 / recall) if recall else 0.0
    assert own["F1"]["ours"].value == pytest.approx(f1, abs=5e-4)
    assert own["F1"]["published"] == 0.784
    assert [theirs["gradient", k] for k in (0, 1)] == [0.40, 0.38]
    assert [theirs["leave_one_out", k] for k in (0, 1)] == [0.34, 0.33]
    for row in cells(room):
        theirs = {"bilstm": (0.49, 0.50), "mlp": (0.47, 0.50)}[row["encoder"]]
        assert row["published (searched)"] == theirs[number[row["predicted"]]]
        assert row["searched"].value <= row["exactly"].value + 1e-9
    assert sum(row["median Δŷ"].n for row in cells(shuffled)) == 2 * len(wide)
    assert len(overall.rows) == len(first.rows) == 2
    other = read_rows(tmp_path / "out" / "audit" / "sst-mlp-additive" / "rows")
    other = other.pivot_table(index="example_id", columns="statistic", values="value")
    loo = "attention_leave_one_out_tau"
    expected = {}
    for encoder, own in (("bilstm", wide), ("mlp", other)):
        agreement = own.gradient_leave_one_out_tau
        expected[f"τ(g, loo) − τ(α, loo), {encoder}"] = agreement - own[loo]
        expected[f"τ(g, loo) − τ(α, g), {encoder}"] = agreement - own.attention_gradient_tau
    expected["τ(α, loo), average − BiLSTM"] = other[loo] - wide[loo]
    found = {row["difference of τ"]: row for row in cells(differences)}
    assert found.keys() == expected.keys()
    for name, texts in expected.items():
        assert found[name]["mean"].value == pytest.approx(texts.mean())
        assert found[name]["above 0"].value == pytest.approx((texts > 0).mean())
        assert found[name]["mean"].n == texts.notna().sum()
    assert [row["published mean"] for row in found.values()] == [*(0.2, 0.25, None, None), 0.375]


@pytest.mark.slow
def test_questions_get_a_model_of_pairs_and_are_not_divided_by_class(run, tmp_path):
    changes = {"train": SMALL | {"learning_rate": 0.03}, "search": {"tests": SHORT_SEARCH}}
    small = shrunk("jain-wallace", changes, encoder=["bilstm"], attention=["additive"])
    report = run(small, "babi1", data=stories(tmp_path / "babi"), epochs=3, test_limit=9)
    trained = tmp_path / "out/base/babi1-bilstm-additive"
    config = json.loads((trained / "config.json").read_text())
    assert config["query_encoder"] and config["embedding_size"] == 12
    assert json.loads((trained / "training.json").read_text())["n_epochs"] == 3
    differences = next(note for note in report.notes if note.startswith("Differences from"))
    assert "only 9 test texts; at most 3 epochs of training" in differences
    tau, together, _, room, shuffled, *_ = report.tables
    assert {row["predicted"] for row in cells(tau)} == {"all"}
    assert [row["published τ"] for row in cells(tau)] == [0.23, 0.23]
    assert [row["published (searched)"] for row in cells(room)] == [0.54]
    assert [row["exactly"] for row in cells(room)] == [None]  # no linear read-out
    assert sum(row["median Δŷ"].n for row in cells(shuffled)) == 9
    rows = read_rows(tmp_path / "out/audit/babi1-bilstm-additive/rows")
    wide = rows.pivot_table(index="example_id", columns="statistic", values="value")
    accuracy = (wide.label == wide.predicted_class).mean()
    found = cells(together)[0]
    assert found["measure"] == "accuracy"
    assert found["ours"].value == pytest.approx(accuracy)


def stories(folder: Path) -> Path:
    """Questions about stories, in the columns of bAbI."""
    rows = []
    for k in range(52):
        place = ("office", "garden", "kitchen")[k % 3]
        text = f"Mary went to the {place} . John saw {k} of them"
        rows.append({"text": text, "text_pair": "Where is Mary", "label": place})
    return write_rows(folder, train__jsonl=rows[:40], test__jsonl=rows[40:])


def trainings(name: str, **options) -> dict[str, dict]:
    """The arguments of a study's trainings, by their folder."""
    steps = plan_study(name, StudyOptions(**options))
    return {job.folder: job.arguments for job in steps.jobs if job.verb == "train"}


def test_steps_have_settings_by_data_set():
    """Those of the authors' code, and for questions a model that reads them."""
    given = trainings("jain-wallace", dataset=["snli", "babi1=here", "sst"])
    snli, babi, sst = (given[f"base/{name}-mlp-additive"] for name in ("snli", "babi1", "sst"))
    assert snli["batch_size"] == 128 and babi["batch_size"] == 50 and "batch_size" not in sst
    assert snli["query_encoder"] and babi["query_encoder"] and "query_encoder" not in sst
    assert babi["dataset"] == "babi1=here" and babi["epochs"] == 100
    quick = trainings("jain-wallace", dataset="babi1", quick=True)
    few = dict.fromkeys(("base/babi1-bilstm-additive", "base/babi1-mlp-additive"), 3)
    assert {name: given["epochs"] for name, given in quick.items()} == few
    replaced = trainings("jain-wallace", dataset="babi1", quick=True, epochs=7)
    assert {given["epochs"] for given in replaced.values()} == {7}
    asked = trainings("jain-wallace", dataset="mine", text_pair_column="question")
    assert all(given["query_encoder"] for given in asked.values())


@pytest.mark.slow
def test_tutek_and_snajder_beside_ours(run, tmp_path):
    adversaries = {"adversary": {"lambdas": [0.0005, 0.001, 0.002], "epochs": 2}}
    sizes = {"embedding_size": 12, "encoder_size": 6}
    changes = {"train": SMALL | sizes | {"epochs": 1}, "adversaries": {"tests": adversaries}}
    report = run(shrunk("tutek-snajder", changes, attention=["additive"]), "sst", quick=True)
    changes, harder, left = map(cells, report.tables)
    models = ["base", "concat", "residual", "tying", "mlm"]
    assert [row["model"] for row in changes] == models
    published = {row["model"]: row["published permuted"] for row in changes}
    assert (published["base"], published["tying"]) == (-5.0, -18.0)
    folder = tmp_path / "out" / "base" / "sst-additive-tying"
    record = json.loads((folder / "training.json").read_text())
    assert changes[3]["F1 trained"].value == pytest.approx(100 * record["metrics"]["test_f1"])
    assert 0 < left[3]["exact ε-max JSD (.01) / largest JSD"].value <= 1
    assert 0.5 <= left[3]["mean top probability"].value <= 1 and len(harder) == 5 * 3
    made = [m.name for m in report.steps]
    assert "adversaries/sst-additive-tying/adversary/lambda-0.001" in made


@pytest.mark.slow
def test_serrano_and_smith_beside_ours(run, reviews, tmp_path):
    """Under the name of a data set of theirs, whose ratings start at 1."""
    rated = {
        f"{name}__jsonl": [{"text": t, "label": 1 + k % 10} for k, t in enumerate(part["text"])]
        for name, part in reviews.items()
    }
    data = write_rows(tmp_path / "data", **rated)
    sizes = {"procedure": "jain-wallace", "embedding_size": 12, "encoder_size": 6, "epochs": 1}
    report = run(shrunk("serrano-smith", {"train": sizes}, encoder=["bigru"]), "imdb10", data=data)
    fractions, singles = map(cells, report.tables[:2])
    assert {row["model"] for row in fractions} == {"HAN", "FLAN"}
    assert not any(r["published median"] for r in fractions if r["model"] == "HAN")
    rows = {row["order"]: row for row in fractions if row["model"] == "FLAN"}
    theirs = {name: row["published median"] for name, row in rows.items()}
    expected = {"random": 0.90, "random, pooled": 0.90, "attention": 0.40, "gradient": 0.11}
    assert theirs == expected | {"product": 0.04, "least_attention": None, "smallest set": None}
    folders = tmp_path / "out" / "audit"
    (folder,) = (path for path in folders.iterdir() if "alse" in path.name)
    audited = read_rows(folder / "rows")
    own = audited[audited.statistic == "fraction_to_flip@gradient"].value
    share = "median share of tokens erased"
    assert rows["gradient"][share].value == pytest.approx(own.median())
    pooled = rows.pop("random, pooled")
    draws = audited[audited.statistic.str.match(r"fraction_to_flip@random_\d")].value
    assert pooled[share].value == pytest.approx(draws.median())
    assert pooled[share].n == 5 * rows["random"][share].n
    never = audited[audited.statistic == "never_flips@random"].value
    assert pooled["never flips"].value == pytest.approx(never.mean())
    n_texts = {row[share].n for row in rows.values()}
    assert len(n_texts) == 1  # all orders on the same texts
    js = audited[audited.statistic == "delta_js"].value.dropna()
    flat = [row for row in singles if row["model"] == "FLAN"]
    assert sum(row["texts"] for row in flat) == len(js)
    below = sum(row["texts"] * row["ΔJS below 0"] for row in flat)
    assert below == pytest.approx((js < -1e-9).sum())
    assert all(row[share].value >= rows["smallest set"][share].value for row in rows.values())


@pytest.mark.slow
def test_deception_in_a_table(run, tmp_path):
    def deceived(s):
        for cell in s.grid(dataset=["reviews"]):
            base = s.add("train", "base", cell, **cell, **SMALL)
            tests = {"deception": {"words": ["the"], "epochs": 1}}
            s.add("retrain", "deceived", cell, model=base, **cell, tests=tests)
        columns = {"kept": {"score": "deception/deceived/accuracy"}, "mass": "after_mass"}
        s.add_table("t", deceived=columns)

    report = run(deceived, "reviews")
    folder = tmp_path / "out" / "deceived" / "reviews"
    summary = json.loads((folder / "summary.json").read_text())
    record = json.loads((folder / "deception" / "training.json").read_text())
    (row,) = cells(report.tables[0])
    (mass,) = (
        s for s in summary["statistics"] if (s["statistic"], s["group"]) == ("after_mass", "all")
    )
    assert (row["mass"].value, row["mass"].n) == (mass["mean"], mass["n"])
    assert row["kept"].value == pytest.approx(record["metrics"]["test_accuracy"])
    assert row["kept"].n == 40


def test_a_word_is_never_mistaken_for_a_step(tmp_path):
    def study(s):
        base = s.add("train", "base", {}, dataset="sst", **SMALL)
        tests = {"deception": {"words": ["<br>", "<", "base", "$"]}}
        s.add("retrain", "deceived", {}, model=base, dataset="sst", tests=tests)

    arguments = study_run._make_keywords(plan_study(study).jobs[1], tmp_path)
    assert arguments["tests"]["deception"]["words"] == ["<br>", "<", "base", "$"]
    assert arguments["model"] == SavedModel(str(tmp_path / "base"))


# --- what is planned ----------------------------------------------------------------------------------------------


def base(s, **arguments):
    return s.add("train", "base", {}, **{"dataset": "sst"} | arguments)


def audited(s, **arguments):
    return s.add("audit", "audit", {}, **{"model": base(s), "dataset": "sst"} | arguments)


def table(s, **column):
    audited(s)
    s.add_table("t", audit={"c": column})


def twice(s):
    base(s)
    base(s, epochs=3)


def nowhere(s):
    for cell in s.grid(dataset=["sst"], encoder_size=[4, 8], seed=[0, 1]):
        at = {k: cell[k] for k in ("dataset", "encoder_size")}
        model = s.add("train", "base", at, **at)
        s.add("audit", "one", at, model=model, dataset="sst")
        own = {"seed": cell["seed"]}
        s.add("audit", "two", own, model="org/b", dataset="sst", **own)
    both = {"c": "accuracy"}
    s.add_table("t", one=both, two=both)


WRONG = [
    (lambda s: None, "the study plans no steps"),
    (lambda s: setattr(s, "paper", "nobody") or base(s), "unknown paper 'nobody'"),
    (lambda s: s.add("teach", "base", {}), "step base: unknown verb 'teach'; expected one of tr"),
    (lambda s: s.add("train", "a/b", {}, dataset="sst"), "may only contain letters, .* 'a/b'"),
    (lambda s: s.add("train", "..", {}, dataset="sst"), "may only contain letters, .* got '..'"),
    (lambda s: s.add("train", "base", {}), "step base: the argument dataset is missing"),
    (lambda s: base(s, epoch=3), "step base: unknown option 'epoch'; did you mean epochs?"),
    (lambda s: base(s, output_dir="x"), "unknown option 'output_dir'"),
    (lambda s: base(s, epochs="3"), "step base: expected a whole number for epochs, got '3'"),
    (lambda s: base(s, epochs=True), "expected a whole number for epochs, got True"),
    (lambda s: base(s, batch_size=0), "step base: batch_size must be at least 1"),
    (lambda s: base(s, learning_rate="1e-3"), "expected a number for learning_rate, got '1e-3'"),
    (lambda s: base(s, encoder="gpt"), "step base: expected bilstm or bigru"),
    (lambda s: base(s, procedure="own"), "expected jain-wallace or serrano-smith for procedure"),
    (lambda s: base(s, split="test"), "step base: unknown option 'split'"),
    (lambda s: base(s, dataset=3), "step base: dataset must be the name of a data set, got 3"),
    (
        lambda s: base(s, model="org/bert", encoder="mlp"),
        "base: encoder applies only to attention class",
    ),
    (lambda s: s.add("audit", "a", {}, dataset="sst"), "step a: the argument model is missing"),
    (lambda s: audited(s, model="./no/model"), "step audit: expected a model at ./no/model"),
    (lambda s: audited(s, token="x"), "step audit: unknown option 'token'"),
    (lambda s: audited(s, tests=["permutatoin"]), "step audit: .* did you mean permutation?"),
    (lambda s: audited(s, tests={"erasure": {"n_rando": 3}}), "did you mean n_random?"),
    (
        lambda s: audited(s, tests=3),
        "expected test names or a dictionary from test names to options, got 3",
    ),
    (
        lambda s: s.add("retrain", "a", {}, model=base(s), dataset="sst", tests=["permutation"]),
        "step a: unknown test 'permutation'; expected one of uniform",
    ),
    (twice, "step base: the step was already added for the empty cell with other arg"),
    (lambda s: s.add_table("t"), "table 't': the table has no columns"),
    (lambda s: s.add_table("t", b={"c": "accuracy"}), "table 't', column 'c': unknown step 'b'"),
    (nowhere, "table 't': step two runs for several values of .*, but step one does not. Put"),
    (lambda s: table(s), "either a statistic or a score"),
    (lambda s: table(s, statistic="acuracy"), "unknown statistic 'acuracy'; did you mean accur"),
    (
        lambda s: table(s, statistic="accuracy", threshold=0.1),
        "both threshold and means .*, got only threshold",
    ),
    (
        lambda s: table(s, score="a/b/c"),
        "step audit has no scores for this table, .* with the verb retrain or transfer",
    ),
    (lambda s: table(s, statistics="x"), "unknown field 'statistics'; did you mean statistic?"),
]


@pytest.mark.parametrize(("study", "message"), WRONG)
def test_what_is_wrong_is_said_in_one_line_before_anything_runs(study, message):
    with refuses(message):
        plan_study(study)


def test_bad_files_and_data_sets(tmp_path, cli, file):
    def said(*words):
        done = cli("study", *words, "--output-dir", tmp_path / "out")
        assert done.code == 1 and done.err.count("\n") == 1 and not (tmp_path / "out").exists()
        return done.err

    ready = "a Python file or the name of a study (encoders, jain-wallace"
    (tmp_path / "old.yaml").write_text("title: x")
    (tmp_path / "none.py").write_text("x = 1")
    assert ready in said(tmp_path / "nowhere.py") and ready in said(tmp_path / "old.yaml")
    assert "has no function study(steps)" in said(tmp_path / "none.py")
    assert "data sets must have different names" in said(file, "--dataset", "sst", "sst=x")
    fixed = "def study(s):\n    s.add('train', 'base', {}, dataset='sst')\n"
    (tmp_path / "fixed.py").write_text(fixed)
    assert "its grid has no list of data sets" in said(tmp_path / "fixed.py", "--dataset", "imdb")


def test_the_documented_studies_are_sound(tmp_path):
    guide = (Path(__file__).parents[2] / "docs/studies.md").read_text()
    (block,) = re.findall(r"```python\n(def study.*?)```", guide, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(block)
    found = plan_study(tmp_path / "mine.py")
    assert [job.folder for job in found.jobs][:3] == ["base/sst-0", "audit/sst-0", "base/sst-0.1"]
    example = textwrap.dedent(steps_module.__doc__.partition("For example::\n")[2])
    (tmp_path / "example.py").write_text(example.replace(": Steps", ""))
    assert len(plan_study(tmp_path / "example.py").jobs) == 4


@pytest.fixture
def bert(tokenizer, tmp_path):
    """A folder of a BERT with two heads."""
    return tiny_models.saved(
        tmp_path / "bert", tiny_models.bert(tokenizer, layers=1, width=8), tokenizer
    )


@pytest.mark.slow
def test_a_transformer_as_a_step(bert, run, tmp_path):
    def tuned(s, **heads):
        for cell in s.grid(dataset=["reviews"]):
            model = s.add("train", "tuned", cell, **cell, model=str(bert), epochs=1)
            given = {"model": model, "tests": {"permutation": {"n_permutations": 2}}, **heads}
            s.add("audit", "audit", cell, **cell, **given, test_limit=4)
        s.add_table("t", audit={"c": "median_tvd"})

    def one_head(s):
        tuned(s, heads=[1])

    with pytest.raises(AttnProbeError, match=r"needs an audit with a single head, .* has 2"):
        run(tuned, output_dir=tmp_path / "two")
    report = run(one_head)
    assert report.tables[0].rows[0][1].n == 4 and report.steps[0].epochs == 1
    before = files_in(tmp_path / "out")
    assert (
        convert_to_plain(run(one_head)) == convert_to_plain(report)
        and files_in(tmp_path / "out") == before
    )


def test_a_guide_must_have_the_same_words_under_the_same_numbers(
    folder, reviews, reviews_folder, bert, copy_of, tmp_path
):
    own = folder / "own" / "reviews"
    other = copy_of(own)
    build_tokenizer(reviews["train"]["text"][:40]).save_pretrained(other)
    into = {"dataset": reviews_folder, "progress": False}
    for guide, uniform, message in (
        (other, None, "must have the same vocabulary"),
        (bert, None, "expected an attention classifier as guide"),
        (own, own, "uniform must be a model with uniform attention"),
    ):
        options = TransferOptions(uniform=uniform)
        with pytest.raises(AttnProbeError, match=message):
            transfer(own, guide=guide, output_dir=tmp_path / "out", options=options, **into)
    assert not (tmp_path / "out").exists()
    done = copy_of(folder, "done") / "transfer" / "reviews-bilstm"
    refused("different settings: other models", transfer, own, guide=own, output_dir=done, **into)
