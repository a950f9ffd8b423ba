"""What the documents tell a reader to do, works."""

import contextlib
import io
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizer

import hf_attnprobe
from hf_attnprobe.cli import build_parser
from hf_attnprobe.data.word_vectors import read_vectors


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = [
        line.split("#")[0].strip()
        for block in blocks("bash")
        for line in block.splitlines()
    ]
    return [line for line in lines if line]


@pytest.mark.parametrize(
    "command", [c for c in commands() if c.startswith("attnprobe")]
)
def test_every_command_is_understood(command):
    assert build_parser().parse_args(shlex.split(command.replace("…", ""))[1:])


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make")])
def test_every_make_target_exists(command):
    assert re.search(
        rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE
    )


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


def test_the_example_without_arguments_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXAMPLE_SIZE", "240")
    runpy.run_path(str(ROOT / "examples/calibrate.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_ci_runs_the_command_of_the_readme():
    assert "make test" in (ROOT / ".ci/run").read_text() and "make test" in README


def test_public_names_are_documented():
    for name in hf_attnprobe.__all__:
        assert (getattr(hf_attnprobe, name).__doc__ or "").strip(), name


def test_word_vectors_of_a_transformer_are_means_of_its_pieces(
    tmp_path, monkeypatch, capsys
):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dull", "won", "##derful"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    )
    model.save_pretrained(tmp_path)
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    rows = [{"text": "dull", "label": 0}, {"text": "wonderful film", "label": 1}]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {
        "model": tmp_path,
        "dataset": tmp_path / "data",
        "output": tmp_path / "vectors",
    }
    arguments = [
        "word_vectors.py",
        *(part for name, value in given.items() for part in (f"--{name}", str(value))),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(ROOT / "examples/word_vectors.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("3 vectors in ")
    vectors, ids = read_vectors(
        tmp_path / "vectors", {"wonderful": 0, "dull": 1, "film": 2}
    )
    table = model.get_input_embeddings().weight.detach()
    expected = torch.stack([table[[6, 7]].mean(0), table[5], table[1]])
    assert ids.tolist() == [0, 1, 2]
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
