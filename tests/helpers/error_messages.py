"""Check error messages: each is one line that states what was expected, what was received, and how to fix it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hf_attnprobe.core.errors import AttnProbeError


@contextmanager
def refuses(match: str | None = None, *, longest: int = 1000) -> Iterator[Any]:
    """Expect that the block raises an ``AttnProbeError`` with a message of one line.

    Args:
        match: regular expression that the message must match.
        longest: largest number of characters of the message.
    """
    with pytest.raises(AttnProbeError, match=match) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message and len(message) <= longest, message


def refusal(function: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Return the message of the ``AttnProbeError`` that a call raises."""
    with refuses() as caught:
        function(*arguments, **options)
    return str(caught.value)


def refused(
    fragment: str, function: Callable[..., object], *arguments: Any, **options: Any
) -> None:
    """Check that a call raises an ``AttnProbeError`` whose message contains a fragment."""
    message = refusal(function, *arguments, **options)
    assert fragment in message and len(message) < 700, message
