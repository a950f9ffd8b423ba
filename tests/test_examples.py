"""Notebooks and scripts in ``examples/`` run from clean, without data and network."""

import json
import re
import runpy
import sys
from collections import Counter

import nbformat
import pytest

from tests import notebooks
from tests.helpers import tiny_language_models, tiny_models


EXAMPLES = notebooks.EXAMPLES
NOTEBOOKS = [file.name for file in notebooks.NOTEBOOKS]


@pytest.fixture
def in_examples(tmp_path, monkeypatch):
    """A folder to write into, where scripts find each other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "tiny_bert", raising=False)


@pytest.fixture(scope="module")
def executed():
    """The outputs of both notebooks, run anew."""
    return {name: outputs_of(notebook) for name, notebook in notebooks.executed().items()}


def outputs_of(notebook):
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


def stored(name):
    return outputs_of(nbformat.read(EXAMPLES / name, as_version=4))


def headlines(outputs):
    """What the pages in a notebook's cells say first, without marks."""
    pages = [out.data["text/html"] for out in outputs if "text/html" in out.get("data", {})]
    answers = re.findall(r'class="answer.*?</div>', "".join(pages), re.DOTALL)
    return [re.sub(r"<[^>]*>|\s+", " ", answer) for answer in answers]


def results(outputs):
    """What the last lines of cells gave, as plain text."""
    return [out.data["text/plain"] for out in outputs if out.output_type == "execute_result"]


def kinds(outputs):
    return [kind for out in outputs for kind in out.get("data", {})]


def pictures(outputs):
    """Cells that show a picture, drawn as pixels or as lines."""
    drawn = {"image/png", "image/svg+xml"}
    return sum(bool(drawn & out.get("data", {}).keys()) for out in outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_committed_with_what_it_shows(name):
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(cell.metadata for cell in code)
    outputs = outputs_of(notebook)
    assert not [out for out in outputs if out.output_type == "error"]
    assert pictures(outputs) and headlines(outputs)
    text = (EXAMPLES / name).read_text()
    assert not re.search(r"/(home|root|tmp|Users|work)\b|[A-Z]:\\\\", text)
    assert len(text) < 200_000


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_notebook_shows_is_what_it_shows_today(executed, name):
    assert headlines(stored(name)) == headlines(executed[name])
    assert len(stored(name)) == len(executed[name])


@pytest.mark.slow
def test_the_notebook_of_a_classifier_runs(executed):
    outputs = executed["audit_a_classifier.ipynb"]
    assert not [out for out in outputs if out.output_type == "error"]
    assert pictures(outputs) >= 2 and "text/html" in kinds(outputs)
    assert results(outputs)[-1] == "True"


@pytest.mark.slow
def test_the_notebook_of_heads_runs(executed):
    outputs = executed["audit_bert_heads.ipynb"]
    assert not [out for out in outputs if out.output_type == "error"]
    assert pictures(outputs) and "text/html" in kinds(outputs)
    accuracy = float(results(outputs)[0])
    assert accuracy > 0.9  # what it says of heads is of a model that has learned


def test_the_gate_passes_and_stops(in_examples, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gate.py"])
    gate = runpy.run_path(str(EXAMPLES / "gate.py"))
    report = gate["audit_small_model"]()
    gate["main"].__globals__["audit_small_model"] = lambda: report
    assert gate["main"]() == 0
    printed = capsys.readouterr().out
    answers = {f.rule: str(f.answer) for f in report.findings}
    assert printed.count("pass ") == len(report.findings)
    gate["FAILING_ANSWERS"]["effect"] = (answers["effect"],)
    assert gate["main"]() == 1
    assert "fail Effect" in capsys.readouterr().out


def passages():
    lines = (EXAMPLES / "passages.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_answer_to_every_passage_stands_in_one_of_its_sentences():
    counted = Counter(row["domain"] for row in passages())
    assert len(counted) == 5 and min(counted.values()) >= 5
    for row in passages():
        sentences = re.split(r"(?<=[.?!]) ", row["context"].replace("Mr. ", "Mr "))
        assert sum(row["expected"] in sentence for sentence in sentences) == 1, row


def test_a_language_models_answers_by_domain(in_examples, capsys, monkeypatch, tmp_path):
    chat = tiny_language_models.tokenizer()
    folder = tiny_models.saved(tmp_path / "speaker", tiny_language_models.llama(chat), chat)
    run = runpy.run_path(str(EXAMPLES / "language_model.py"))
    short = [row for row in passages() if len(row["context"]) < 300]
    lines = "\n".join(map(json.dumps, short))
    (tmp_path / "short.jsonl").write_text(lines, "utf-8")
    run["main"].__globals__["PASSAGES"] = tmp_path / "short.jsonl"
    monkeypatch.setattr(sys, "argv", ["language_model.py", str(folder)])
    run["main"]()
    printed = capsys.readouterr().out
    assert "attention ranks" in printed and (tmp_path / "language_model.html").exists()
    for domain, n in Counter(row["domain"] for row in short).items():
        assert re.search(rf"^{domain} +{n} ", printed, re.M)


@pytest.mark.slow
def test_before_and_after(in_examples, capsys):
    runpy.run_path(str(EXAMPLES / "before_and_after.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"^5 epochs: test accuracy (0\.9\d|1\.00)$", printed, re.M)
    number = r"([+-]?\d+\.\d+)"
    told = re.findall(rf"(higher|lower): {number} \[{number}, {number}\]", printed)
    changes = [(side, *map(float, numbers)) for side, *numbers in told]
    assert len(changes) == 6  # accuracy, faithfulness, its three parts and the effect
    for side, change, low, high in changes:
        assert low <= change <= high
        assert (side == "higher") == (low > 0)
    scores = [
        [float(score) for score in re.findall(rf"{number} \[", line)]
        for line in re.findall(r"^\d-epochs/trained  (.*)", printed, re.M)
    ]
    (most, *_, effect), (least, *_, other_effect) = scores
    assert most > least
    assert changes[-1][1] == pytest.approx(effect - other_effect, abs=0.02)
