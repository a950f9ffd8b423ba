"""The evaluate module: how it is found, and that it says what ``audit`` says."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import evaluate
import pytest

import hf_attnprobe
from hf_attnprobe import audit
from hf_attnprobe.integrations import evaluate_metric as metrics
from tests.helpers import tiny_models
from tests.helpers.mini_hub import MiniHub


INSTALLER = Path(metrics.__file__)

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


def test_a_newer_module_of_another_version_does_not_win(tmp_path):
    own = metrics.install_metric(tmp_path)
    stale = own.parents[1] / ("0" * 64) / own.name
    stale.parent.mkdir()
    stale.write_text("raise ModuleNotFoundError('an older version')")
    os.utime(own, (1, 1))
    assert metrics.install_metric(tmp_path) == own
    assert own.stat().st_mtime > 1 and own.stat().st_mtime_ns >= stale.stat().st_mtime_ns
    # Nothing is written if this module is the newest already.
    os.utime(stale, (1, 1))
    os.utime(own, (2, 2))
    metrics.install_metric(tmp_path)
    assert own.stat().st_mtime == 2


def test_the_written_module_asks_the_installed_package_and_names_what_is_missing(tmp_path):
    """The module may be read by a version whose metric is in another folder, or that misses a module."""
    package = tmp_path / "hf_attnprobe"
    metric = package / "moved" / "attention_faithfulness"
    metric.mkdir(parents=True)
    (metric / "attention_faithfulness.py").write_text("AttentionFaithfulness = 'of that version'\n")
    start = package / "__init__.py"
    start.write_text(f"def get_metric_path(): return {str(metric)!r}")
    code = f"exec({metrics.LOADER_SOURCE!r}); print(AttentionFaithfulness)"
    command = [sys.executable, "-S", "-c", code]

    def run():
        env = {"PYTHONPATH": str(tmp_path)}
        return subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert (run().stdout, run().stderr) == ("of that version\n", "")
    start.write_text("import missing_library")
    assert "but the module missing_library is not installed" in run().stderr


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


def test_a_changed_file_is_replaced(tmp_path):
    """The file is code that evaluate runs, so it is never used as somebody else has left it."""
    file = metrics.install_metric(tmp_path)
    source = file.read_bytes()
    file.write_text("raise SystemExit('not the metric')")
    assert metrics.install_metric(tmp_path) == file
    assert file.read_bytes() == source
    (tmp_path / "elsewhere.py").write_text("x = 1")
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere.py")
    assert metrics.install_metric(tmp_path) == file
    assert file.read_bytes() == source and (tmp_path / "elsewhere.py").read_text() == "x = 1"


def test_without_the_package_the_installed_file_says_what_to_do(monkeypatch, tmp_path):
    file = metrics.install_metric(tmp_path)
    name = "hf_attnprobe.integrations.evaluate_metric.attention_faithfulness.attention_faithfulness"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError,
        match=f"needs the package hf_attnprobe, but the module {name} is not installed",
    ):
        exec(compile(file.read_text(), file, "exec"), {})


def test_the_folder_holds_what_a_space_needs():
    files = {file.name for file in Path(hf_attnprobe.get_metric_path()).iterdir()}
    assert {"attention_faithfulness.py", "README.md"} <= files
