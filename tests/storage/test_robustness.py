"""What a user may do to an audit's folder, and odd names, cost one line at most and no numbers."""

import copy
import errno
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe import AttnProbeError, audit, explain_text, read_audit
from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.integrations.pipeline import TextExplainer
from hf_attnprobe.reports.head_tables import build_head_maps
from hf_attnprobe.statistics.heads import evaluate_heads
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import group_texts, make_group_names
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage import rows as stored
from hf_attnprobe.storage.folders import write_atomically
from tests.helpers import tiny_models
from tests.helpers.error_messages import refuses
from tests.helpers.synthetic_rows import make_many_head_rows


FILES = ("summary.json", "texts.json", "report.md", "report.html")
TESTS = ["permutation", "correlation"]


@pytest.fixture(scope="module")
def rows(reviews):
    return [{"text": row["text"], "label": row["label"]} for row in reviews["test"]][:6]


@pytest.fixture(scope="module")
def kept(checkpoint, rows):
    """The folder of an audit; do not write into it."""
    return tiny_models.once("kept", lambda folder: audited(checkpoint, rows, folder))


def audited(model, rows, folder=None, tests=TESTS, **options):
    return audit(model, rows, tests, output_dir=folder, progress=False, **options)


@pytest.fixture
def spoilt(kept, copy_of):
    return copy_of(kept)


def refused(finished):
    """The one line of a command that failed."""
    assert finished.code == 1 and finished.err.count("\n") == 1, finished.err
    return finished.err


# --- a disk that is full --------------------------------------------------------------


@pytest.fixture
def full_for(monkeypatch):
    """A function: half of the files with these names is written, then the disk is full."""
    write = Path.write_text

    def fill(*names):
        def written(file, text, **options):
            if any(name in file.name for name in names):
                write(file, text[: len(text) // 2], **options)
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(file, text, **options)

        monkeypatch.setattr(Path, "write_text", written)

    return fill


def test_what_cannot_be_written_is_one_line_each_and_nothing_is_lost(
    checkpoint, rows, kept, full_for, monkeypatch, tmp_path, caplog
):
    with monkeypatch.context() as patched:
        full_for("texts.json", "report.")
        report = audited(checkpoint, rows, tmp_path)
        patched.undo()
    monkeypatch.undo()
    said = [r.getMessage() for r in caplog.records if "No space" in r.getMessage()]
    assert len(said) == 3 and all("\n" not in line for line in said)
    assert len(report.examples) and len(read_audit(tmp_path).to_pandas()) == len(report.to_pandas())
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]
    for name in FILES:  # as a process leaves them that is killed while it writes
        (tmp_path / name).write_text("{")
        (tmp_path / f".{name}.99999").write_text("{")
    audited(checkpoint, rows, tmp_path)
    for name in FILES:
        here, there = (
            (folder / name).read_text().replace(str(folder), "FOLDER")
            for folder in (tmp_path, kept)
        )
        assert here == there


def test_half_a_file_is_taken_away(monkeypatch, tmp_path):
    """Of a text, and of rows."""
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "file", "text")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]

    def full(table, file, owner):
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stored, "write_part", full)
    with pytest.raises(OSError):
        stored.append_rows(tmp_path / "rows", stored.build_rows("test", [0], {}))
    assert not [*(tmp_path / "rows").iterdir()]


# --- a folder that was changed --------------------------------------------------------


def test_spoilt_texts_are_left_out(spoilt):
    file = spoilt / "texts.json"
    whole = file.read_text()
    for wrong in (
        {"tokens": []},
        {"scores": {}},
        {"scores": {"attention": "abc"}},
        {"matters": [999]},
        {"segments": [0]},
        {"probability": "high"},
        {"numbers": {"JSD": "far"}},
    ):
        held = json.loads(whole)
        held["texts"][0] |= wrong
        file.write_text(json.dumps(held))
        assert read_audit(spoilt).examples == ()
    file.write_text("[" * 100_000)
    assert read_audit(spoilt).examples == ()
    assert "Texts" not in re.findall(r"<h2[^>]*>([^<]*)", read_audit(spoilt).to_html())


def test_a_folder_twice_or_in_place_of_a_file_is_one_line(cli, kept, tmp_path):
    assert "twice" in refused(cli("report", kept, kept.parent / "." / kept.name))
    (tmp_path / "page.html").mkdir()
    line = refused(cli("report", kept, "--output", tmp_path / "page.html"))
    assert "Is a directory" in line and "/." not in line
    assert len([*tmp_path.iterdir()]) == 1


# --- names and numbers that are odd ---------------------------------------------------


def test_classes_that_are_called_as_all_or_alike_have_their_own_numbers():
    names = make_group_names(["all", "no", "no"])
    assert len({"all", *names}) == 4
    predicted = pd.DataFrame({"example_id": range(6), "value": [0.0, 0, 0, 1, 1, 2]})
    predicted = predicted.assign(test="prediction", statistic="predicted_class", layer=-1, head=-1)
    wide = pd.DataFrame({"number": range(6)}, index=pd.RangeIndex(6, name="example_id"))
    groups = group_texts(Rows.coerce(predicted), wide.index, ["all", "no", "no"])
    assert [group.sum() for group in groups.values()] == [6, 3, 2, 1]


def test_a_cell_keeps_to_its_place():
    lines = markdown.format_table(["class", "n"], [["a|b\nc", 1], ["<b>x</b>", 2], ["p < .05", 3]])
    cells = [re.split(r"(?<!\\)\|", line) for line in lines]
    assert {len(row) for row in cells} == {4} and len(lines) == 5
    assert "&lt;b>" in lines[3] and "p < .05" in lines[4]


def test_heads_without_a_value_have_no_map():
    rows = make_many_head_rows(40)
    nothing = evaluate_heads(rows.assign(value=np.nan), RULES)
    assert nothing == [] and build_head_maps(nothing, RULES) == ()


def test_what_is_no_text_is_one_line():
    for text in (None, 3, "half of a \ud800"):
        with refuses("expected a text|unpaired surrogate"):
            TextExplainer(None, None).explain(text)


# --- what the user's tokenizer remembers ----------------------------------------------


def test_a_tokenizer_is_left_as_it_was(make_model, tokenizer, rows):
    """A fast one keeps, and saves with itself, how the last call cut and padded."""
    model, own = make_model(), copy.deepcopy(tokenizer)
    own.model_max_length = 7
    unknown = [{"text": row["text"], "label": "nowhere"} for row in rows]
    for is_set in (False, True):
        own.backend_tokenizer.no_truncation()
        own.backend_tokenizer.no_padding()
        if is_set:
            own.backend_tokenizer.enable_truncation(50, stride=3, direction="left")
            own.backend_tokenizer.enable_padding(length=9, pad_token="[PAD]")
        before = own.backend_tokenizer.to_str()
        explain_text(model, own, rows[0]["text"])
        assert own.backend_tokenizer.to_str() == before
        audited(model, rows, tests=["uniform_attention"], tokenizer=own)
        assert own.backend_tokenizer.to_str() == before
        with pytest.raises(AttnProbeError, match="label 'nowhere'"):
            audited(model, unknown, tests=["uniform_attention"], tokenizer=own)
        assert own.backend_tokenizer.to_str() == before
