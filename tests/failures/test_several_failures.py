"""Two undisturbed runs, and several processes of one: equal files, one line for one error."""

import re

import pytest

from hf_attnprobe.cli import main


def without_clock(file):
    """A file's text without its seconds, which stand in JSON, a page's own too, and in one sentence of a card."""
    if file.suffix == ".safetensors":
        return file.read_bytes().hex()
    text = re.sub(r'"seconds": ?[\d.e-]+', "", file.read_text())
    return re.sub(r", [\d,]+ seconds with evaluation", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "retrain", "compare", "study"])
def test_two_finished_folders_are_equal_but_for_the_clock(verb, commands, tmp_path):
    contents = []
    for name in ("first", "other"):  # as long: a page shortens paths
        folder = tmp_path / name / "out"
        assert main(commands[verb](folder)) == 0
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        # Rows of an audit lie in parts of random names; study.json has random numbers of runs.
        files = [f for f in files if f.suffix != ".parquet" and f.name != "study.json"]
        contents.append({f.relative_to(folder): without_clock(f) for f in files})
    first, second = contents
    assert len(first) >= 5 and first.keys() == second.keys()
    for file, content in first.items():
        told = content.replace("/first/out", "/other/out")
        assert told == second[file], file
    for report in tmp_path.rglob("report.md"):
        assert "seconds" not in report.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["deception", "retrain", "study", "demo"])
def test_verbs_of_one_process_refuse_two_in_one_line(verb, commands, torchrun, tmp_path):
    done = torchrun(*commands[verb](tmp_path / "out"))
    lines = re.findall("^attnprobe: .*", done.err, re.MULTILINE)
    assert done.code == 1 and len(lines) == 1, done.err
    assert lines[0].endswith("must run in a single process. Start it without torchrun.")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_error_of_two_processes_is_printed_once(commands, torchrun, tmp_path):
    (tmp_path / "thesis.tex").touch()
    done = torchrun(*commands["audit"](tmp_path))
    lines = re.findall("^attnprobe: .*", done.err, re.MULTILINE)
    assert done.code == 1 and len(lines) == 1, done.err
    assert "contains other files" in lines[0]


@pytest.mark.slow
def test_two_processes_train_one_model(commands, torchrun, tmp_path):
    done = torchrun(*commands["train"](tmp_path / "out"))
    assert done.code == 0, done.err
    assert done.out.count("model in") == 1
    assert main(commands["train"](tmp_path / "out")) == 0
    assert not [file for file in (tmp_path / "out").iterdir() if file.name[0] == "."]
