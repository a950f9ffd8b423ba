"""The verb ``card``, and the way of model, card, rows and metric over a Hub on loopback."""

import json
import re
import shutil
from pathlib import Path

import evaluate
import numpy as np
import pandas as pd
import pytest
import yaml
from huggingface_hub import ModelCard, SpaceCard, parse_eval_result_entries

import hf_attnprobe
from hf_attnprobe import CardOptions, get_metric_path, write_card
from hf_attnprobe.cards.metadata import replace_local_paths
from hf_attnprobe.integrations.publishing import build_rows_files, load_audits
from hf_attnprobe.reports.report import read_audit
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.mini_hub import MiniHub


# A Python start costs seconds, so one process does all that knows the package: it loads
# the metric from its Space before anybody imports the package, runs all commands, and
# then asks metric and audit of the model that they published.
OURS = """
import contextlib, io, json, sys, time
import evaluate

metric = evaluate.load("acme/attention_faithfulness")
import hf_attnprobe
from hf_attnprobe.cli import main

commands, texts = json.loads(sys.argv[1])
done = []
for arguments in commands:
    out, err, since = io.StringIO(), io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    seconds = time.monotonic() - since
    done.append([code, out.getvalue(), err.getvalue(), seconds])
name, tests = "acme/bilstm", ["permutation"]
computed = metric.compute(predictions=texts, model_id=name, tests=tests)
texts = [{"text": text} for text in texts]
report = hf_attnprobe.audit(name, texts, tests, progress=False)
found = {
    "done": done,
    "computed": computed["permutation_median_tvd"],
    "audited": report.to_pandas().query("statistic == 'median_tvd'").value.tolist(),
    "commit": report.provenance["origin"]["commit"],
}
print("RESULT" + json.dumps(found))
"""

# The code of the published card, where the package cannot be imported, whichever way it
# is installed.
STRANGER = """
import importlib.abc, json, re, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_attnprobe":
            raise ModuleNotFoundError("blocked", name=name)

sys.meta_path.insert(0, Blocker())
import torch
from datasets import load_dataset
from huggingface_hub import ModelCard

name = "acme/bilstm"
code = re.search("```python\\n(.*?)```", ModelCard.load(name).text, re.DOTALL)[1]
assert name in code and "trust_remote_code=True" in code
used = {}
exec(code, used)
batch = used["tokenizer"](json.loads(sys.argv[1]), padding=True, return_tensors="pt")
with torch.no_grad():
    logits = used["model"](**batch).logits
rows = load_dataset(f"{name}-attention-audit", "reviews-test", split="model").to_dict()
print("RESULT" + json.dumps({"logits": logits.tolist(), "rows": rows}))
"""


@pytest.fixture(scope="module")
def folder(audited):
    return audited("classifier")


@pytest.fixture
def model(checkpoint, copy_of):
    """A checkpoint to be written into."""
    return copy_of(checkpoint, "bilstm")


def result(run):
    assert run.code == 0, run.err
    return json.loads(run.out.split("RESULT")[1])


# --- in the folder ------------------------------------------------------------------


def test_the_card_says_what_the_audit_says(cli, model, folder, tmp_path):
    done = cli("card", model, folder, "--data-id", "acme/reviews", "--license", "mit")
    assert done.code == 0, done.err
    assert str(model / "README.md") in done.out
    report = read_audit(folder)
    card = ModelCard.load(model / "README.md")
    told = [r for r in card.data.eval_results if r.metric_type == "attention_faithfulness"]
    wanted = [f for f in report.findings if f.rule != "accuracy"]
    assert wanted and [r.metric_value for r in told] == [f.value for f in wanted]
    assert {r.dataset_type for r in told} == {"acme/reviews"}
    right = next(r for r in card.data.eval_results if r.metric_type == "accuracy")
    predicted = report.to_pandas()[report.to_pandas().test == "prediction"]
    wide = predicted.pivot(index="example_id", columns="statistic", values="value")
    assert right.metric_value == pytest.approx((wide.predicted_class == wide.label).mean())
    text = (model / "README.md").read_text()
    for finding in report.findings:
        assert finding.sentence.partition("<")[0] in text
    (again,) = re.findall("Command: `(.*)`", text)
    assert again == "attnprobe audit --model bilstm --dataset reviews --tests " + " ".join(
        tiny_models.OF_A_CLASSIFIER
    )
    assert card.data.license == "mit" and str(tmp_path) not in text
    assert str(tiny_models.CACHE) not in text
    results = sorted((model / ".eval_results").iterdir())
    assert [file.name for file in results] == ["attnprobe-reviews-test.yaml"]
    entries = parse_eval_result_entries(yaml.safe_load(results[0].read_text()))
    assert {entry.task_id: entry.value for entry in entries} == {
        f"attention_{f.rule}": pytest.approx(f.value) for f in wanted
    }
    assert {entry.dataset_id for entry in entries} == {"acme/reviews"}
    # Once more with nothing: what was found is not dropped without a word.
    done = cli("card", model)
    assert done.code == 1 and done.err.count("\n") == 1
    assert "contains audit results, but no audits were given" in done.err
    assert (model / "README.md").read_text() == text


def test_the_next_card_replaces_results_and_leaves_files_of_others(cli, model, folder):
    """Without an id on the Hub there is nothing to show; results of other tools stay."""
    (model / ".eval_results").mkdir()
    (model / ".eval_results" / "mmlu.yaml").write_text("[]\n")
    assert cli("card", model, folder, "--data-id", "acme/reviews").code == 0
    assert len(list((model / ".eval_results").iterdir())) == 2
    assert cli("card", model, folder).code == 0
    assert [file.name for file in (model / ".eval_results").iterdir()] == ["mmlu.yaml"]


def test_audits_of_another_model_are_refused(cli, make_checkpoint, copy_of, checkpoint, folder):
    other = copy_of(make_checkpoint("cnn"), "cnn")
    done = cli("card", other, folder)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "does not belong to the model" in done.err and "attnprobe audit" in done.err
    assert not (other / "README.md").exists()
    refused("twice", write_card, checkpoint, [folder] * 2)
    refused("expected the folder of a checkpoint", write_card, "acme/bilstm")
    refused("but the file summary.json is missing", write_card, checkpoint, [checkpoint])


def test_paths_become_names_in_what_is_published():
    names = {"/home/me/<a>": "acme/a", "sst": "SST"}
    assert replace_local_paths("/home/me/<a>/x &lt;", names) == "acme/a/x &lt;"
    assert replace_local_paths("/home/me/&lt;a&gt; sst", names) == "acme/a sst"


def test_offline_is_one_line(cli, model, folder):
    done = cli("card", model, folder, "--push-to-hub", "acme/bilstm")
    assert (done.code, done.err.count("\n")) == (1, 2), done.err
    assert done.err.startswith("publishing (new repositories are public) as the model acme/bilstm")
    assert "HF_HUB_OFFLINE is set" in done.err
    done = cli("card", model, "--push-to-hub", "bilstm")
    assert (done.code, done.err.count("\n")) == (1, 1) and "ORG/NAME" in done.err
    assert "hidden" not in repr(CardOptions(token="hidden"))


@pytest.mark.parametrize("with_texts", [False, True])
def test_texts_are_published_only_where_that_is_asked_for(checkpoint, folder, with_texts):
    (read,) = load_audits([folder], checkpoint, fingerprint_of(folder))
    assert read.report.examples
    files = build_rows_files([read], "acme/rows", "acme/bilstm", None, with_texts=with_texts)
    said = {name: file.decode() for name, file in files.items() if not name.endswith("parquet")}
    assert any(name.endswith("report.html") for name in said)
    for text in read.report.examples:
        shown = re.compile(r"\W+".join(map(re.escape, text.tokens[:4])))
        found = {name for name, form in said.items() if shown.search(_bare(form))}
        assert bool(found) == with_texts, found
    assert any("texts.json" in name for name in said) == with_texts
    assert ("contains none of the audited texts" in said["README.md"]) != with_texts


def fingerprint_of(folder):
    return read_audit(folder).provenance["model_fingerprint"]


def _bare(form):
    """A form's words, without tags and the weights behind tokens."""
    return re.sub(r"<[^>]*>|\*\*|\(\d\.\d+\)|\\", " ", form)


# --- over HTTP ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_life_on_the_hub(model, folder, texts, make_model, tokenizer, run_python, tmp_path):
    """Push; load without the package; rows; the metric from its Space; audit by id."""
    root = tmp_path / "hub"
    shutil.copytree(
        get_metric_path(),
        root / "spaces" / "acme" / "attention_faithfulness",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    theirs = root / "models" / "acme" / "bilstm"
    theirs.mkdir(parents=True)
    (theirs / ".eval_results").mkdir()
    (theirs / ".eval_results" / "attnprobe-old-test.yaml").write_text("[]\n")
    (theirs / ".eval_results" / "mmlu.yaml").write_text("[]\n")
    (theirs / "README.md").write_text("---\nlicense: mit\n---\nWords on the Hub.\n")
    (root / "datasets").mkdir()
    card = ["card", str(model), str(folder), "--data-id", "acme/reviews", "--push-to-hub"]
    said = [
        [*card, "acme/bilstm", "--token", "reader"],
        [*card, "nobody/bilstm", "--token", "writer"],
        [*card, "acme/bilstm", "--token", "broken"],
        [*card, "acme/bilstm", "--token", "writer"],
        [*card, "acme/bilstm", "--token", "writer", "--private"],
    ]
    (model / "training.json").write_text(json.dumps({"start": str(model), "seed": 1}))
    with MiniHub(
        root, writable=True, orgs={"acme"}, read_only={"reader"}, dropping={"broken"}
    ) as hub:
        env = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
            **dict.fromkeys(["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE"]),
        }
        given = json.dumps([said, texts[:4]])
        ours = result(run_python("-c", OURS, given, env=env))
        given = json.dumps(texts[:4])
        stranger = result(run_python("-I", "-c", STRANGER, given, env=env))

    reader, nobody, broken, first, again = ours["done"]
    for (code, _, err, seconds), reason in (
        (reader, "the token has no write access"),
        (nobody, "the organisation or repository does not exist"),
        (broken, "run the same command again"),
    ):
        assert code == 1 and err.count("\n") == 2 and reason in err, err  # and what would go
        assert seconds < 20
    for code, out, err, _ in (first, again):
        assert code == 0 and "without texts (--publish-texts adds them)" in err, err
        assert f"{hub.url}/acme/bilstm" in out
        assert f"{hub.url}/datasets/acme/bilstm-attention-audit" in out

    # The model is the model; what somebody wrote on the Hub is still there.
    batch = tokenizer(texts[:4], padding=True, return_tensors="pt")
    logits = make_model()(**batch).logits.detach().numpy()
    np.testing.assert_allclose(stranger["logits"], logits, atol=1e-5)
    published = ModelCard.load(theirs / "README.md")
    assert published.text.startswith("Words on the Hub.")
    assert published.data.license == "mit"
    local = ModelCard.load(model / "README.md")
    assert published.data.eval_results == local.data.eval_results
    rows_url = f"{hub.url}/datasets/acme/bilstm-attention-audit"
    assert rows_url in published.text and "acme/bilstm" in published.text
    assert json.loads((theirs / "training.json").read_text())["start"] == "bilstm"
    # The Hub finds every result of the audit; old ones of ours are gone, those of others are not.
    results = theirs / ".eval_results"
    assert {f.name for f in results.iterdir()} == {"attnprobe-reviews-test.yaml", "mmlu.yaml"}
    shown = yaml.safe_load((results / "attnprobe-reviews-test.yaml").read_text())
    entries = parse_eval_result_entries(shown)
    numbers = {entry.task_id: entry.value for entry in entries}
    assert numbers["attention_faithfulness"] == read_audit(folder).score.value
    assert {(entry.dataset_id, entry.source_url) for entry in entries} == {
        ("acme/reviews", rows_url)
    }

    # The rows are the rows, and nobody's folders are among them.
    report = read_audit(folder)
    got = pd.DataFrame(stranger["rows"])
    assert len(got) == len(report.to_pandas())
    pd.testing.assert_frame_equal(got, report.to_pandas(), check_dtype=False, check_exact=True)
    data = root / "datasets" / "acme" / "bilstm-attention-audit"
    names = {f.name for f in data.rglob("*")}
    assert {"summary.json", "report.md", "report.html"} <= names and "texts.json" not in names
    for file in [*data.rglob("*"), *theirs.rglob("*")]:
        if file.suffix in (".md", ".json", ".html", ".yaml"):
            assert str(tiny_models.CACHE) not in file.read_text(), file
            assert str(tmp_path) not in file.read_text(), file

    assert ours["computed"] == pytest.approx(ours["audited"], rel=1e-12)
    assert len(ours["commit"]) == 40


def test_the_metric_folder_is_a_space():
    """What a Space of the Hub needs, by its own reader of cards; the metric loads from it."""
    folder = Path(get_metric_path())
    front = SpaceCard.load(folder / "README.md").data
    assert (front.sdk, front.app_file) == ("gradio", "app.py")
    assert {"evaluate", "metric"} <= set(front.tags) and front["sdk_version"]
    compile((folder / front.app_file).read_text(), "app.py", "exec")
    required = (folder / "requirements.txt").read_text().split()
    assert any(line.startswith("gradio") for line in required)
    assert "hf_attnprobe" in required
    assert evaluate.load(str(folder)).name == "attention_faithfulness"


def test_nothing_but_the_app_imports_gradio():
    package = Path(hf_attnprobe.__file__).parent
    importing = re.compile(r"^\s*(import|from) gradio", re.MULTILINE)
    files = [f for f in package.rglob("*.py") if importing.search(f.read_text())]
    assert files == [Path(get_metric_path()) / "app.py"]
