"""Text for terminals: nothing in it steers the terminal, and every stream can print it."""

import io
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.core.terminal import (
    escape_control_characters,
    escape_line,
    print_text,
    truncate_start,
)


@settings(max_examples=40)
@given(st.text(max_size=20))
def test_a_visible_text_has_nothing_that_steers(text):
    shown = escape_control_characters(text)
    left = {unicodedata.category(c) for c in set(shown) - {"\n", "\t"}}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    assert len(escape_line(text).splitlines()) <= 1
    if text.isprintable():
        assert shown == text


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_what_an_encoding_lacks_is_escaped(encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_text("a → \x1b[31mb\nü", end="!", file=stream)
    shown = raw.getvalue().decode(encoding)
    arrow = "→" if encoding == "utf-8" else "\\u2192"
    umlaut = "\\xfc" if encoding == "ascii" else "ü"
    assert shown.replace("\r", "") == f"a {arrow} \\x1b[31mb\n{umlaut}!"


def test_a_closed_stdout_is_a_broken_pipe(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(BrokenPipeError):
        print_text("text")


@given(st.text(max_size=12), st.integers(1, 12))
def test_a_long_text_keeps_its_end(text, max_length):
    shown = truncate_start(text, max_length)
    assert len(shown) == min(len(text), max_length)
    assert text.endswith(shown.removeprefix("…")) if len(text) > max_length else shown == text
