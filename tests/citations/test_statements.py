"""Answers with markers are split into statements, and every marker belongs to one of them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.citations.statements import parse_answer, parse_numbers


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("It opened in 1921 [1].", [("It opened in 1921.", (1,))]),
        (
            "It opened in 1921. [1] Ann directs it. [2, 3]",
            [("It opened in 1921.", (1,)), ("Ann directs it.", (2, 3))],
        ),
        ("Ann [1] and Bob [2][3] met.", [("Ann and Bob met.", (1, 2, 3))]),
        ("Ann met Bob [2-4; 1].", [("Ann met Bob.", (2, 3, 4, 1))]),
        ("Ann met Bob [1, 1].", [("Ann met Bob.", (1,))]),
        ("[1] Ann left.\n[2] Bob stayed.", [("Ann left.", (1,)), ("Bob stayed.", (2,))]),
        ("Ann left.\n[1]", [("Ann left.", (1,))]),
        ("Dr. A. Berg came [1]! Why?", [("Dr. A. Berg came!", (1,)), ("Why?", ())]),
        ("Nothing is cited [citation needed].", [("Nothing is cited [citation needed].", ())]),
        ("The range [9-1] is no marker.", [("The range [9-1] is no marker.", ())]),
        ("[1] [2]", []),
    ],
)
def test_markers_belong_to_their_sentence(answer, expected):
    parsed = parse_answer(answer)
    assert [(statement.text, statement.cited) for statement in parsed.statements] == expected


def test_a_range_lists_all_its_numbers():
    assert parse_numbers("[2–4]") == (2, 3, 4)
    assert parse_numbers("[1-5000]") == ()


WORDS = st.sampled_from(["Ann", "left", "the", "museum", "in", "1921"])
SENTENCES = st.lists(WORDS, min_size=1, max_size=5).map(" ".join)
NUMBERS = st.lists(st.integers(1, 9), min_size=0, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SENTENCES, NUMBERS, st.booleans()), min_size=1, max_size=5))
def test_statements_and_citations_are_recovered_from_any_answer(parts):
    """The markers stand before or after the full stop."""
    pieces = []
    for sentence, numbers, is_before_stop in parts:
        marker = f" [{', '.join(map(str, numbers))}]" if numbers else ""
        pieces.append(f"X{sentence}{marker}." if is_before_stop else f"X{sentence}.{marker}")
    parsed = parse_answer(" ".join(pieces))
    assert [statement.text for statement in parsed.statements] == [
        f"X{sentence}." for sentence, _, _ in parts
    ]
    assert [statement.cited for statement in parsed.statements] == [
        tuple(dict.fromkeys(numbers)) for _, numbers, _ in parts
    ]


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="aB .!?\n[]12,-–é", max_size=60))
def test_no_text_is_lost_and_every_marker_has_a_place(answer):
    parsed = parse_answer(answer)
    for marker in parsed.markers:
        assert re.fullmatch(r"\[[\d\s,;–-]+\]", answer[marker.start : marker.end])
        assert set(marker.numbers) <= set(parsed.statements[marker.statement].cited)
    if not parsed.statements:
        return
    rest = answer
    for marker in reversed(parsed.markers):
        rest = rest[: marker.start] + rest[marker.end :]
    statements = "".join(statement.text for statement in parsed.statements)
    assert "".join(statements.split()) == "".join(rest.split())
