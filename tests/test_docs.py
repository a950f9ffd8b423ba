"""What the documents tell a reader to do, works."""

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path

import pytest

import hf_attnprobe
from hf_attnprobe.cli import build_parser


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("attnprobe")])
def test_every_command_is_understood(command):
    assert build_parser().parse_args(shlex.split(command.replace("…", ""))[1:])


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make")])
def test_every_make_target_exists(command):
    assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_no_other_commands():
    assert all(c.startswith(("make ", "attnprobe ")) for c in commands())


def test_the_python_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, "README.md", "exec"), names)
        if "print(report)" in block:
            assert "Verdict" in printed.getvalue()
    assert len(names["result"]["permutation_median_tvd"]) == 2


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXAMPLE_SIZE", "240")
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_ci_runs_the_command_of_the_readme():
    assert "make test" in (ROOT / ".ci/run").read_text() and "make test" in README


def test_public_names_are_documented():
    for name in hf_attnprobe.__all__:
        assert (getattr(hf_attnprobe, name).__doc__ or "").strip(), name
