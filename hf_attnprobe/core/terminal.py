"""Lines for a terminal, in which nothing of a user's text is a command to it."""

import errno
import os
import re
import sys
from typing import TextIO


STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""Characters that move the cursor, colour, name windows or turn the direction of writing.

Line ends and tabs are not among them; half surrogates and noncharacters are, which no file
can hold.
"""


def visible(text: str) -> str:
    r"""A text in which characters that steer a terminal are written out.

    >>> visible("a\x1b[31mb"), visible("two\nlines"), visible("\u202eabc")
    ('a\\x1b[31mb', 'two\nlines', '\\u202eabc')
    """
    return STEERING.sub(_written, text)


def one_line(text: str) -> str:
    r"""As :func:`visible`, line ends and tabs written out too.

    >>> one_line("two\nlines")
    'two\\nlines'
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def show(text: object, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Prints a text, made visible; the one place of this package that prints.

    Args:
        text: of any lines.
        end: what follows it.
        file: default stdout. What its encoding lacks is written out.

    Raises:
        BrokenPipeError: nobody reads the file, or it was closed from the beginning.
    """
    stream = file or sys.stdout
    if stream is None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    encoding = stream.encoding or "utf-8"
    said = (visible(str(text)) + end).encode(encoding, "backslashreplace")
    stream.write(said.decode(encoding))
    stream.flush()


def _written(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


# --- What is printed: texts, class names and file names cannot steer the terminal ----------------
# lines.py  control characters made visible, and the one place that prints

__all__ = ["one_line", "show", "visible"]


def tail(text: str, room: int) -> str:
    """A text that is too long, without its beginning, as of a path.

    >>> tail("/home/me/model", 7)
    '…/model'
    """
    return text if len(text) <= room else "…" + text[len(text) - room + 1 :]
