"""What a user's type checker says of scripts that use the package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hf_attnprobe


RIGHT = """
from hf_attnprobe import AuditOptions
from hf_attnprobe import Data
from hf_attnprobe import Erasure
from hf_attnprobe import Permutation
from hf_attnprobe import Report
from hf_attnprobe import audit

report: Report = audit(
    "model",
    Data("sst", test_limit=20),
    ["correlation", Permutation(n_permutations=10), Erasure(renormalise=False)],
    options=AuditOptions(layers=[0], batch_size=8),
    output_dir="audit",
)
n: int = report.n
"""
# The libraries below are large, and none of their types is in these scripts.
MYPY_INI = """
[mypy]
follow_imports = silent
[mypy-torch.*,transformers.*,datasets.*,accelerate.*,pandas.*,numpy.*,scipy.*,matplotlib.*]
follow_imports = skip
"""
WRONG = {
    "a text for a number": ("n_permutations=10", 'n_permutations="ten"'),
    "an option that there is not": ("batch_size=8", "batchsize=8"),
    "a number for a yes or no": ("renormalise=False", "renormalise=0.5"),
    "a number for a list": ("layers=[0]", "layers=0"),
    "a result of another kind": ("n: int = report.n", "n: str = report.n"),
    "an argument that there is not": ('output_dir="audit"', 'out="audit"'),
}


def environment():
    """mypy does not see an editable installation unless it is told where it is."""
    source = Path(hf_attnprobe.__file__).parents[1]
    installed = "site-packages" in source.parts
    return dict(os.environ) | ({} if installed else {"MYPYPATH": str(source)})


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """A function from scripts by name to what mypy says of each."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "mypy.ini").write_text(MYPY_INI)

    def run(scripts):
        for name, script in scripts.items():
            (folder / f"{name}.py").write_text(script)
        command = [sys.executable, "-m", "mypy", *(f"{name}.py" for name in scripts)]
        done = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return {
            name: [x for x in done.stdout.splitlines() if x.startswith(f"{name}.py")]
            for name in scripts
        }

    return run


@pytest.mark.slow
def test_a_type_checker_knows_the_options(check):
    scripts = {"right": RIGHT}
    for number, (old, new) in enumerate(WRONG.values()):
        assert old in RIGHT
        scripts[f"wrong_{number}"] = RIGHT.replace(old, new)
    said = check(scripts)
    assert said["right"] == []
    for number, what in enumerate(WRONG):
        assert said[f"wrong_{number}"], what


def test_the_package_says_that_it_is_typed():
    assert (Path(hf_attnprobe.__file__).parent / "py.typed").exists()
