"""The evaluate module: how it is found, and that it says what ``audit`` says."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import evaluate
import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

import hf_attnprobe
from hf_attnprobe import Answers, AttnProbeError, AuditOptions, audit
from hf_attnprobe.integrations import evaluate_metric as metrics
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.audit_by_name import DEFAULT_TESTS
from tests.helpers.error_messages import refuses
from tests.helpers.mini_hub import MiniHub


INSTALLER = Path(metrics.__file__)
TESTS = ["correlation", "permutation"]
PROMPT = {"context": "A", "question": "A"}
ANSWERS = {"faithfulness", "faithfulness_ci95", "answer", "findings"}

# Loads by both names, in another folder, and prints what both compute; what the import alone has installed stands first.
LOAD = """
import evaluate, hf_attnprobe
import json, pathlib, sys
modules = pathlib.Path(evaluate.config.HF_MODULES_CACHE)
files = {f.name: f.stat().st_size for f in modules.rglob("*") if f.is_file()}
found = {"installed": files, "name": evaluate.load("attention_faithfulness").name}
for name in ("attention_faithfulness", hf_attnprobe.get_metric_path()):
    metric = evaluate.load(name)
    found[metric.__class__.__module__.split(".")[0]] = metric.compute(
        predictions=json.loads(sys.argv[2]), model_id=sys.argv[1], tests=["permutation"]
    )
print("RESULT" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def metric():
    return evaluate.load(hf_attnprobe.get_metric_path())


def plain(value):
    """Only what json keeps as it is."""
    if isinstance(value, dict):
        return all(type(key) is str and plain(v) for key, v in value.items())
    if type(value) is list:
        return all(map(plain, value))
    return value is None or type(value) in (float, int, str, bool)


def numbers(found):
    """Without the answers, which also depend on what labels are known."""
    return {k: v for k, v in found.items() if k not in ANSWERS}


# --- how it is found ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", tiny_models.daily([None, 404, 401], [None]))
def test_loading_by_name_and_by_path(status, run_python, checkpoint, texts, tmp_path):
    """Offline in a fresh home, where no command and no call but one small file makes it known.

    And online where the Hub says that it has no such module, or that it does not say.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "hub").mkdir()
    env = {"HOME": str(tmp_path), "HF_HOME": None}
    with MiniHub(tmp_path / "hub", missing_status=status or 404) as hub:
        if status is not None:
            env |= {"HF_ENDPOINT": hub.url, "HF_EVALUATE_OFFLINE": None, "HF_HUB_OFFLINE": None}
        run = run_python("-c", LOAD, checkpoint, json.dumps(texts[:5]), env=env, cwd=elsewhere)
        assert {status for *_, status in hub.requests} == ({status} if status else set())
    assert run.code == 0, run.err
    found = json.loads(run.out.split("RESULT")[1])
    sizes = {"__init__.py": 0, "attention_faithfulness.py": len(metrics.LOADER_SOURCE)}
    assert (found.pop("name"), found.pop("installed")) == ("attention_faithfulness", sizes)
    # the shim imports the first, the path copies the file
    assert found.keys() == {"hf_attnprobe", "evaluate_modules"}
    assert found["hf_attnprobe"] == found["evaluate_modules"]
    rows = audit(
        checkpoint, [{"text": text} for text in texts[:5]], tests=["permutation"], progress=False
    ).to_pandas()
    expected = rows[rows.statistic == "median_tvd"].sort_values("example_id").value.tolist()
    assert found["hf_attnprobe"]["permutation_median_tvd"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("inside", ["", "below"])
def test_a_cache_that_cannot_be_written_breaks_nothing(inside, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "file" / inside))
    assert metrics.install_metric() is None
    assert Path(hf_attnprobe.get_metric_path()).is_dir()


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can become a user without rights"
)
@pytest.mark.parametrize("place", ["private", "/"])
def test_a_cache_of_somebody_else(place, tmp_path):
    """The home is another user's, as in containers: it may not be written, perhaps not even looked into."""
    tmp_path.chmod(0o700)
    other_user = "os.setgroups([]); os.setuid(65534); print(install_metric())"
    home = tmp_path if place == "private" else Path(place)
    command = [sys.executable, "-S", "-c", f"__file__ = ''\n{INSTALLER.read_text()}\n{other_user}"]
    run = subprocess.run(
        command, env={"HF_HOME": str(home)}, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == ("None\n", 0), run.stderr


def test_no_home_at_all(monkeypatch):
    for name in ("HOME", "HF_HOME", "HF_MODULES_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert metrics.get_modules_cache() == Path("~/.cache/huggingface/modules")  # as evaluate has it


@pytest.mark.parametrize(
    "env",
    [
        {"HF_MODULES_CACHE": "/a/b", "HF_HOME": "/c"},
        {"HF_MODULES_CACHE": "~/b"},
        {"HF_HOME": "~/c"},
        {"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"},
        {"XDG_CACHE_HOME": "~/d"},
        {},
    ],
)
def test_the_cache_is_where_evaluate_has_it(env, monkeypatch):
    for name in ("HF_HOME", "HF_MODULES_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    # A second instance of evaluate's own configuration, read under this environment.
    spec = importlib.util.spec_from_file_location("evaluate.config_again", evaluate.config.__file__)
    config = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(config)
    assert metrics.get_modules_cache() == config.HF_MODULES_CACHE


def test_processes_that_install_at_once_leave_one_whole_file(tmp_path):
    code = "import runpy, sys, pathlib; runpy.run_path(sys.argv[1])['install_metric'](pathlib.Path(sys.argv[2]))"
    command = [sys.executable, "-S", "-c", code, str(INSTALLER), str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(8)]
    assert [process.wait(timeout=60) for process in running] == [0] * 8
    files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != "__init__.py")
    assert [file.read_text() for file in files] == [metrics.LOADER_SOURCE]
    assert len(files[0].parent.name) == 64
    for folder in files[0].relative_to(tmp_path).parents[:-1]:
        assert (tmp_path / folder / "__init__.py").exists()


def test_without_the_package_the_installed_file_says_what_to_do(monkeypatch, tmp_path):
    file = metrics.install_metric(tmp_path)
    name = "hf_attnprobe.integrations.evaluate_metric.attention_faithfulness.attention_faithfulness"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="needs the package hf_attnprobe; install it"):
        exec(compile(file.read_text(), file, "exec"), {})


def test_the_folder_holds_what_a_space_needs():
    files = {file.name for file in Path(hf_attnprobe.get_metric_path()).iterdir()}
    assert {"attention_faithfulness.py", "README.md"} <= files


# --- what it computes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("references", [None, [0, 1] * 4])
def test_values_are_those_of_audit_in_the_order_of_the_texts(references, metric, checkpoint, texts):
    chosen = texts[7::-1]  # of different lengths, so that batching reorders them
    found = metric.compute(
        predictions=chosen, references=references, model_id=str(checkpoint), tests=TESTS, seed=3
    )
    data = [{"example_id": k, "text": text} for k, text in enumerate(chosen)]
    rows = audit(checkpoint, data, TESTS, options=AuditOptions(seed=3), progress=False).to_pandas()
    names = set()
    for (test, statistic), group in rows[rows.test != "prediction"].groupby(["test", "statistic"]):
        values, name = group.sort_values("example_id").value.tolist(), f"{test}_{statistic}"
        assert found[name] == pytest.approx(values, rel=1e-9, abs=1e-9)
        expected = np.mean(values)
        assert found[f"mean_{test}_{statistic}"] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        names |= {f"{test}_{statistic}", f"mean_{test}_{statistic}"}
    assert found.keys() == names | ANSWERS
    assert plain(found)
    assert json.loads(json.dumps(found)) == found


def test_a_model_as_an_object_with_its_tokenizer(metric, checkpoint, tokenizer, texts):
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    given = {"predictions": texts[:4], "tests": ["adversarial"]}
    expected = metric.compute(**given, model_id=str(checkpoint))
    assert metric.compute(**given, model=model, tokenizer=tokenizer) == expected
    assert metric.compute(**given, model=model) == expected  # it knows where it came from
    with pytest.raises(AttnProbeError, match="pass tokenizer="):
        model.name_or_path = ""
        metric.compute(**given, model=model)


def test_all_tests_by_default_and_options_of_audit(metric, checkpoint, texts):
    found = metric.compute(
        predictions=texts[:3],
        model_id=str(checkpoint),
        tests={"default": {}, "permutation": {"n_permutations": 7}},
        batch_size=1,
    )
    assert all(any(name.startswith(f"mean_{test}_") for name in found) for test in DEFAULT_TESTS)


def test_texts_without_a_value_are_nan_and_in_no_mean(metric, checkpoint, texts):
    predictions = [texts[0], "", "superb", texts[1]]
    found = metric.compute(predictions=predictions, model_id=str(checkpoint), tests=TESTS)
    taus = found["correlation_attention_gradient_tau"]
    assert [math.isnan(tau) for tau in taus] == [False, True, True, False]
    expected = (taus[0] + taus[3]) / 2
    assert found["mean_correlation_attention_gradient_tau"] == pytest.approx(expected)
    changes = found["permutation_median_tvd"]
    assert [math.isnan(change) for change in changes] == [False, True, False, False]
    assert changes[2] == 0
    assert plain(found)


@pytest.mark.parametrize("is_given", [True, False])
def test_passages_with_questions_are_those_of_audit(is_given, metric, tmp_path):
    chat = tiny_language_models.tokenizer()
    folder = tiny_models.saved(tmp_path / "speaker", tiny_language_models.llama(chat), chat)
    keys = ("context", "question", "answer") if is_given else ("context", "question")
    asked = [{key: row[key] for key in keys} for row in tiny_language_models.ROWS]
    found = metric.compute(predictions=asked, model_id=str(folder), seed=3)
    expected = audit(folder, Answers(asked), options=AuditOptions(seed=3), progress=False)
    rows = expected.to_pandas()
    for name in ("contextual_gain", "answer_is_greedy", "source_found@attention"):
        own = rows[(rows.test == "sources") & (rows.statistic == name)]
        values = own.sort_values("example_id").value.tolist()
        assert found[f"sources_{name}"] == pytest.approx(values, nan_ok=True)
    assert found["answer"] == "cannot say"
    assert [f["rule"] for f in found["findings"]] == [f.rule for f in expected.findings]
    own_answers = found["sources_answer_is_greedy"]
    assert is_given or own_answers == [1.0, 1.0]


def test_texts_added_bit_by_bit_as_arrays_and_in_combinations(metric, checkpoint, texts):
    options = {"model_id": str(checkpoint), "tests": ["permutation"]}
    given = {"predictions": texts[:3], "references": [0, 1, 0]}
    expected = metric.compute(**given, **options)
    assert expected["answer"] == "cannot say"  # three texts
    assert [f["rule"] for f in expected["findings"]] == ["accuracy", "effect"]
    arrays = {name: np.array(values) for name, values in given.items()}
    assert metric.compute(**arrays, **options) == expected
    assert evaluate.combine([metric]).compute(**given, **options) == expected
    metric.add_batch(predictions=texts[:1])
    metric.add_batch(predictions=texts[1:2], references=[1])
    metric.add(prediction=texts[2])
    assert numbers(metric.compute(**options)) == numbers(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of model_id and model"),
        ({"model_id": "x", "model": object()}, "exactly one of model_id and model"),
        ({"model_id": "{checkpoint}", "tests": ["permutations"]}, "did you mean permutation?"),
        ({"model_id": "{checkpoint}", "references": [0, 5]}, "label"),
        ({"model_id": "{checkpoint}", "predictions": []}, "has no rows"),
        ({"model_id": "{checkpoint}", "predictions": ["", " "]}, "none of the 2 texts has tokens"),
        (
            {"model_id": "{checkpoint}", "predictions": "a text"},
            "got a single string; put it in a list",
        ),
        ({"model_id": "x", "predictions": [PROMPT, PROMPT | {"answer": "A"}]}, "question, answer"),
        (
            {"model_id": "no/such/folder"},
            "expected a model at no/such/folder, which does not exist",
        ),
    ],
)
def test_bad_input_and_the_metric_still_works_after_it(
    arguments, message, metric, checkpoint, texts
):
    arguments = {
        k: v.format(checkpoint=checkpoint) if k == "model_id" else v for k, v in arguments.items()
    }
    with refuses(message):
        metric.compute(**{"predictions": texts[:2]} | arguments)
    assert metric.compute(predictions=texts[:1], model_id=str(checkpoint), tests="permutation")
