"""The cache of generated answers: what was written is read again, and changed lines are left out."""

import json
import logging

import pytest

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.inference.answer_cache import AnswerCache, discard_answers_of_refused_run
from tests.helpers.error_messages import refused


PROMPTS = {"a": [7, 8], "b": [9], "c": [7], "ü": [5, 6]}


def test_answers_are_read_as_they_were_added(tmp_path):
    cache = AnswerCache(tmp_path / "folder" / "answers.jsonl", PROMPTS)
    assert cache.read() == {}
    cache.add({"a": [1, 2], "ü": (3,)})
    cache.add({"a": [4]})
    assert AnswerCache(cache.file, PROMPTS).read() == {"a": [4], "ü": [3]}  # the last one counts
    assert AnswerCache(cache.file, {"ü": [5, 6]}).read() == {"ü": [3]}  # of a part of the texts
    nowhere = AnswerCache(None, PROMPTS)
    nowhere.add({"a": [1]})
    assert nowhere.read() == {}


def test_a_line_that_was_cut_spoils_no_other(tmp_path):
    cache = AnswerCache(tmp_path / "answers.jsonl", PROMPTS)
    cache.add({"a": [1], "b": [2]})
    whole = cache.file.read_bytes()
    for length in range(len(whole)):
        cache.file.write_bytes(whole[:length])
        cache.add({"c": [3]})
        found = cache.read()
        assert found["c"] == [3] and found.items() <= {"a": [1], "b": [2], "c": [3]}.items()


def test_an_answer_to_another_prompt_is_not_used(tmp_path, caplog):
    """A chat template may insert today's date, so that tomorrow's prompt is another one."""
    AnswerCache(tmp_path / "answers.jsonl", PROMPTS).add({"a": [1], "b": [2]})
    tomorrow = AnswerCache(tmp_path / "answers.jsonl", PROMPTS | {"a": [7, 9]})
    with caplog.at_level(logging.WARNING):
        assert tomorrow.read() == {"b": [2]}
    assert "1 cached answers in" in caplog.text and "generated again" in caplog.text
    tomorrow.add({"a": [3]})
    caplog.clear()
    assert tomorrow.read() == {"a": [3], "b": [2]} and not caplog.text


@pytest.mark.parametrize(
    "change",
    [
        lambda name, ids, checksum: [name, [*ids, 1], checksum],
        lambda name, ids, checksum: [name, [float(i) for i in ids], checksum],
        lambda name, ids, checksum: [name, [True, 2], checksum],
        lambda name, ids, checksum: [name, "12", checksum],
        lambda name, ids, checksum: [name, {"0": 1}, checksum],
        lambda name, ids, checksum: [name, None, checksum],
        lambda name, ids, checksum: [name, [], checksum],
        lambda name, ids, checksum: [name, [-1], checksum],
        lambda name, ids, checksum: [name, [10**400], checksum],
        lambda name, ids, checksum: [name, ids],
        lambda name, ids, checksum: [name, ids, None],
        lambda name, ids, checksum: [[name], ids, checksum],
        lambda name, ids, checksum: [None, ids, checksum],
        lambda name, ids, checksum: ["b", ids, checksum],
        lambda name, ids, checksum: {name: ids},
        lambda name, ids, checksum: [],
        lambda name, ids, checksum: 5,
    ],
)
def test_a_line_that_was_changed_is_not_used(change, tmp_path):
    cache = AnswerCache(tmp_path / "answers.jsonl", PROMPTS)
    cache.add({"a": [1, 2]})
    line = json.loads(cache.file.read_text())
    cache.file.write_text(json.dumps(change(*line)))
    assert cache.read() == {}


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff\xfe", b"NaN", b"[1" + b"0" * 5000 + b"]"])
def test_a_line_that_no_reader_takes_is_not_used(line, tmp_path):
    cache = AnswerCache(tmp_path / "answers.jsonl", PROMPTS)
    cache.file.write_bytes(line)
    assert cache.read() == {}


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused("file", AnswerCache(tmp_path / "file" / "answers.jsonl", PROMPTS).add, {"a": [1]})


@pytest.mark.parametrize(
    ("error", "has_rows", "is_kept"),
    [
        (AttnProbeError, False, False),
        (AttnProbeError, True, True),
        (KeyboardInterrupt, False, True),
        (None, False, True),
    ],
)
def test_a_refused_run_leaves_no_answers(error, has_rows, is_kept, tmp_path):
    folder = tmp_path / "out"
    cache = AnswerCache(folder / ".answers-x.jsonl", PROMPTS)

    def run():
        with discard_answers_of_refused_run(folder):
            cache.add({"a": [1]})
            if has_rows:
                (folder / "rows").mkdir()
                (folder / "rows" / "part-0").write_text("")
            if error:
                raise error

    if error:
        with pytest.raises(error):
            run()
    else:
        run()
    assert cache.file.exists() == folder.exists() == is_kept


def test_answers_of_an_earlier_run_are_kept(tmp_path):
    AnswerCache(tmp_path / ".answers-old.jsonl", PROMPTS).add({"a": [1]})
    with pytest.raises(AttnProbeError), discard_answers_of_refused_run(tmp_path):
        AnswerCache(tmp_path / ".answers-new.jsonl", PROMPTS).add({"a": [1]})
        raise AttnProbeError("refused")
    assert [file.name for file in tmp_path.iterdir()] == [".answers-old.jsonl"]
