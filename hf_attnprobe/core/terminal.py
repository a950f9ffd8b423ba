"""Printing to a terminal, with control characters escaped.

Texts, class names and file names come from users and from the Hub, and could contain escape sequences
that move the cursor or change the window title. Therefore the package prints everything with
:func:`print_text`.
"""

import errno
import os
import re
import sys
from typing import TextIO


CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Pattern for characters that are escaped before a text is printed.

It matches control characters except line breaks and tabs, characters that change the writing direction,
and code points that cannot be encoded (surrogates and noncharacters).
"""


def escape_control_characters(text: str) -> str:
    r"""Replace control characters, except line breaks and tabs, with visible escape sequences.

    Args:
        text: Any text.

    Returns:
        A text that is safe to print.

    >>> escape_control_characters("a\x1b[31mb"), escape_control_characters("two\nlines")
    ('a\\x1b[31mb', 'two\nlines')
    >>> escape_control_characters("\u202eabc")
    '\\u202eabc'
    """
    return CONTROL_CHARACTERS.sub(_escape_match, text)


def escape_line(text: str) -> str:
    r"""Replace control characters, line breaks and tabs with visible escape sequences.

    Args:
        text: Any text.

    Returns:
        A text that fits on one line and is safe to print.

    >>> escape_line("two\nlines")
    'two\\nlines'
    """
    return escape_control_characters(text).replace("\n", "\\n").replace("\t", "\\t")


def print_text(text: object, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print a text with escaped control characters.

    Args:
        text: An object whose ``str`` is printed; it may have several lines.
        end: Text to print at the end.
        file: Stream to print to; the default is stdout. Characters that its encoding lacks are
            escaped.

    Raises:
        BrokenPipeError: The stream is closed, or its reader has exited.
    """
    stream = file or sys.stdout
    # Python sets stdout to None if it is closed when the process starts.
    if stream is None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    encoding = stream.encoding or "utf-8"
    safe_text = escape_control_characters(str(text)) + end
    stream.write(safe_text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _escape_match(match: re.Match[str]) -> str:
    r"""Return a matched character as an escape sequence, such as ``\x1b`` or ``\u202e``."""
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def truncate_start(text: str, max_length: int) -> str:
    """Shorten a long text, such as a path, by cutting off its beginning.

    Args:
        text: The text.
        max_length: Maximum length of the result, in characters.

    Returns:
        The text if it is short enough; otherwise an ellipsis and the end of the text.

    >>> truncate_start("/home/me/model", 7)
    '…/model'
    """
    return text if len(text) <= max_length else "…" + text[len(text) - max_length + 1 :]
