"""The record of reports finds numbers and answers in every format."""

import pytest

from tests.record_reports import count_numbers, extract_visible_text, find_answers, find_changes


def test_numbers_are_read_however_they_are_written():
    text = "F1 0.30 [−.25, 1,024], 12% of bert-2x, 1e-3; from 3–5, at p95 [0.30]."
    expected = ["0.3", "0.3", "-0.25", "1024", "12%", "0.001", "3", "5"]
    assert sorted(count_numbers(text).elements()) == sorted(expected)


@pytest.mark.parametrize(
    "text",
    [
        "Is it needed?   CANNOT SAY (few texts)",
        "- **Is it needed?** cannot say. Few texts.",
        extract_visible_text(
            ".html", "<h3>Is it needed?</h3><p><b><svg/><i>cannot say</i></b> Few</p>"
        )["page"],
        "| Is it needed? | 0.3 | cannot say |",
    ],
)
def test_an_answer_is_found_in_every_form(text):
    assert find_answers(text) == {("Is it needed?", "cannot say")}


def test_a_page_is_read_without_scripts_and_pictures():
    page = "<style>p {x: 1}</style><p>two 2<svg><text>3</text></svg></p><script>4</script>"
    assert extract_visible_text(".html", page) == {"page": "two 2\n", "pictures": "3\n"}


def test_every_type_of_change_is_listed():
    changes = find_changes(
        "Is it? Yes. 1 1 2.25 35% 7", "Is it? No. 1 2.2513 0.35 8", format_name="markdown"
    )
    assert changes == {
        "missing": ["1 ×1 (of 2)", "7 ×1 (of 1)"],
        "reformatted": ["2.25 as 2.2513", "35% as 0.35"],
        "added": ["8 ×1"],
        "answers missing": ["Is it? yes"],
        "answers added": ["Is it? no"],
    }
