"""Rows that cannot be used are refused with their number."""

import json

import pytest

from hf_attnprobe.citations.rows import read_rows
from tests.helpers.error_messages import refused


GOOD = {"passages": ["Ann left.", {"title": " A  b ", "text": "Bob."}], "question": "Who?"}


def test_a_file_and_objects_give_the_same_rows(tmp_path):
    rows = [GOOD, {**GOOD, "answer": "Ann left [1]. Bob [1, 2]."}]
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n")
    listed = tmp_path / "rows.json"
    listed.write_text(json.dumps(rows))
    parsed = read_rows(rows)
    assert read_rows(lines) == read_rows(str(listed)) == parsed
    first, second = parsed
    assert first.answer is None and second.number == 2
    assert [passage.body for passage in first.passages] == ["Ann left.", "A b\nBob."]
    assert [statement.cited for statement in second.answer.statements] == [(1,), (1, 2)]


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"passages": []}, "row 2: passages must be a list"),
        ({"passages": "Ann left."}, "row 2: passages must be a list"),
        ({"passages": ["Ann", " "]}, "passage 2 of row 2 must be a text"),
        ({"passages": [{"title": "Ann"}]}, "the text of passage 1 of row 2"),
        ({"passages": [{"text": "Ann", "title": 3}]}, "the title of passage 1 of row 2"),
        ({"passages": [{"text": "Ann", "body": "x"}]}, "got body"),
        ({"question": ""}, "the question of row 2"),
        ({"answer": 7}, "the answer of row 2"),
        ({"answer": "[1]"}, "the answer of row 2 has no statement"),
        ({"answer": "Ann left [3]."}, "the answer of row 2 cites [3], but the row has 2 passages"),
        ({"answer": "Ann left [0]."}, "the answer of row 2 cites [0]"),
        ({"answer": "Ann \ud800 left."}, "unpaired surrogate"),
    ],
)
def test_unusable_rows_are_refused_with_their_number(change, fragment):
    refused(fragment, read_rows, [GOOD, {**GOOD, **change}])


def test_unusable_files_are_refused(tmp_path):
    refused("got no rows", read_rows, [])
    refused("row 1 must be an object", read_rows, ["Ann left."])
    other_keys = {"documents": ["Ann left."], "query": "Who?"}
    refused(
        "row 2 has no key 'passages'; its keys are documents, query", read_rows, [GOOD, other_keys]
    )
    refused(
        "row 1 has no key 'question'; its keys are passages", read_rows, [{"passages": ["Ann"]}]
    )
    refused("cannot read", read_rows, tmp_path / "missing.jsonl")
    refused("ends in .jsonl or .json", read_rows, tmp_path / "rows.csv")
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(GOOD) + "\n{broken\n")
    refused("row 2 of", read_rows, file)
