"""What is published holds all it needs: the wheel is installed and used somewhere else."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
NOT_SOURCE = shutil.ignore_patterns(
    *(".git", ".venv", "build", "dist", "site", "*.egg-info", "__pycache__", ".*_cache"),
    *("attnprobe-demo", "runs", ".hypothesis"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the repository, since builds write into their folder."""
    folder = tmp_path_factory.mktemp("source") / "hf_attnprobe"
    return Path(shutil.copytree(ROOT, folder, ignore=NOT_SOURCE))


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory, run_python):
    folder = tmp_path_factory.mktemp("wheel")
    built = run_python(
        *("-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation"),
        *("--no-index", "--quiet", "--wheel-dir", folder),
    )
    assert built.code == 0, built.err
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_holds_every_file_of_the_package_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as packed:
        held = {name for name in packed.namelist() if ".dist-info/" not in name}
    package = ROOT / "hf_attnprobe"
    expected = {
        file.relative_to(ROOT).as_posix()
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.name != "ruff.toml"
    }
    assert held == expected
    kinds = {Path(name).suffix for name in held} | {Path(name).name for name in held}
    assert {".css", ".yaml", "py.typed", "README.md"} <= kinds


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Programs of an environment that has the wheel, and all else from this one.

    The path of this one's packages is added without its ``.pth`` files, so that an
    editable install of the package is not seen.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(venv, check=True)
    python = folder / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps"]
    quiet = ["--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, *install, *quiet], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def run(program, *arguments, cwd, **env):
    outside = {k: v for k, v in (os.environ | env).items() if k != "PYTHONPATH"}
    return subprocess.run(
        [program, *map(str, arguments)],
        cwd=cwd,
        env=outside,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel(installed, tmp_path):
    where = "import hf_attnprobe; print(hf_attnprobe.__file__)"
    found = run(installed / "python", "-c", where, cwd=tmp_path)
    assert Path(found.stdout.strip()).is_relative_to(installed.parent), found.stderr
    small = ("--encoder", "mlp", "--n-examples", 240, "--epochs", 1)
    done = run(*(installed / "attnprobe", "demo", *small, "--output-dir", "made"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Does attention explain these predictions?" in done.stdout
    made = {file.name for file in (tmp_path / "made/audit").iterdir()}
    assert {"rows", "summary.json", "report.md"} <= made


@pytest.mark.slow
def test_evaluate_finds_the_metric_of_the_wheel(installed, tmp_path):
    """In a home where nothing has run before, without a network."""
    by_name = "evaluate.load('attention_faithfulness').name"
    code = f"import evaluate, hf_attnprobe; print({by_name})"
    home = str(tmp_path / "home")
    done = run(*(installed / "python", "-c", code), cwd=tmp_path, HOME=home, HF_HOME=home)
    assert (done.returncode, done.stdout) == (0, "attention_faithfulness\n"), done.stderr


@pytest.mark.slow
def test_the_source_distribution_holds_what_is_tracked(source, tmp_path, run_python):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("this is no git repository, so that nobody knows what is tracked")
    build = f"from setuptools import build_meta as b; b.build_sdist({str(tmp_path)!r})"
    built = run_python("-c", build, cwd=source)
    assert built.code == 0, built.err
    (file,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(file) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    present = {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()}
    assert present - held == set()
