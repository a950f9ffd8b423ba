"""The cache of generated answers: what was written is read again, and broken lines are left out."""

import pytest

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.inference.answer_cache import AnswerCache, discard_answers_of_refused_run
from tests.helpers.error_messages import refused


def test_answers_are_read_as_they_were_added(tmp_path):
    cache = AnswerCache(tmp_path / "folder" / "answers.jsonl")
    assert cache.read() == {}
    cache.add({"a": [1, 2], "ü": (3,)})
    cache.add({"a": [4]})
    assert AnswerCache(cache.file).read() == {"a": [4], "ü": [3]}  # the last one counts
    nowhere = AnswerCache(None)
    nowhere.add({"a": [1]})
    assert nowhere.read() == {}


def test_a_line_that_was_cut_spoils_no_other(tmp_path):
    cache = AnswerCache(tmp_path / "answers.jsonl")
    cache.add({"a": [1], "b": [2]})
    whole = cache.file.read_bytes()
    for length in range(len(whole)):
        cache.file.write_bytes(whole[:length])
        cache.add({"c": [3]})
        found = cache.read()
        assert found["c"] == [3] and found.items() <= {"a": [1], "b": [2], "c": [3]}.items()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused("file", AnswerCache(tmp_path / "file" / "answers.jsonl").add, {"a": [1]})


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
    cache = AnswerCache(folder / ".answers-x.jsonl")

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
    AnswerCache(tmp_path / ".answers-old.jsonl").add({"a": [1]})
    with pytest.raises(AttnProbeError), discard_answers_of_refused_run(tmp_path):
        AnswerCache(tmp_path / ".answers-new.jsonl").add({"a": [1]})
        raise AttnProbeError("refused")
    assert [file.name for file in tmp_path.iterdir()] == [".answers-old.jsonl"]
