"""Number lines: their labels do not run into each other."""

from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe.documents.number_line import (
    LARGE_SCREEN_CHARACTER_WIDTH,
    PHONE_CHARACTER_WIDTH,
    assign_label_rows,
)


@given(
    st.dictionaries(st.text("ab", min_size=1, max_size=20), st.floats(0, 100), max_size=8),
    st.sampled_from([PHONE_CHARACTER_WIDTH, LARGE_SCREEN_CHARACTER_WIDTH]),
)
def test_labels_do_not_run_into_each_other(labels, letter):
    spans = []
    rows = assign_label_rows(labels, letter)
    for text, x in labels.items():
        width = letter * len(text)
        begin = x - width * x / 100  # as the style shifts it
        assert begin >= 0 or width > 100
        spans.append((rows[text], begin, begin + width))
    for k, (row, start, end) in enumerate(spans):
        for other, begin, stop in spans[:k]:
            assert row != other or end <= begin or stop <= start
