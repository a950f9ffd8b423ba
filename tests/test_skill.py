"""The skill for coding agents: its format, and that its commands, keys and exit codes are ours."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

import hf_attnprobe.cli
from hf_attnprobe.cli.commands import build_parser
from tests.test_docs import ROOT


FILE = ROOT / "skills/attention-faithfulness/SKILL.md"


@pytest.fixture(scope="module")
def page() -> str:
    return FILE.read_text()


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


def test_the_front_matter_follows_the_specification_of_agent_skills(page):
    """https://agentskills.io/specification"""
    _, front, body = page.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields.keys() <= {"name", "description", "license", "compatibility"}
    assert fields["name"] == FILE.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"]) and len(fields["name"]) <= 64
    assert 1 <= len(fields["description"]) <= 1024
    assert 1 <= len(fields["compatibility"]) <= 500
    assert len(body.splitlines()) < 500


def test_every_command_parses(page):
    parser = build_parser()
    commands = [
        line
        for block in re.findall(r"```bash\n(.*?)```", page, re.S)
        for line in block.splitlines()
    ]
    assert len(commands) >= 10
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "attnprobe" and parser.parse_args(arguments), command
    flags = set(re.findall(r"`(--[a-z-]+)", page))
    elsewhere = {"--help", "--help-all", "--push-to-hub", "--fail-on-change"}
    known = vars(parser.parse_args(["audit", "--model", "m", "--dataset", "d"]))
    assert {flag.strip("-").replace("-", "_") for flag in flags - elsewhere} <= known.keys()


def test_the_keys_are_those_of_a_report(page):
    schema = json.loads((ROOT / "docs/report.schema.json").read_text())
    named = set(re.findall(r"^\| `(\w+)` \|", section(page, "Read the answer"), re.M))
    assert named and named <= schema["properties"].keys()


def test_the_exit_codes_are_all_that_there_are(page):
    codes = re.findall(r"^\| (\d+) \|", section(page, "Exit codes"), re.M)
    documented = re.findall(r"^    (\d+)  ", hf_attnprobe.cli.__doc__, re.M)
    assert codes == ["0", *documented]


def test_the_readme_says_where_it_is():
    assert FILE.relative_to(ROOT).as_posix() in Path(ROOT / "README.md").read_text()
