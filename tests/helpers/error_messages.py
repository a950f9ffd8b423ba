"""What is refused is told in one line: what was expected, what came, what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hf_attnprobe.core.errors import AttnProbeError


@contextmanager
def refuses(match: str | None = None, *, longest: int = 1000) -> Iterator[Any]:
    """Expects an ``AttnProbeError`` of one line of at most ``longest`` characters in which ``match`` is found."""
    with pytest.raises(AttnProbeError, match=match) as caught:
        yield caught
    said = str(caught.value)
    assert "\n" not in said and len(said) <= longest, said


def refusal(function: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The line in which a call is refused."""
    with refuses() as caught:
        function(*arguments, **options)
    return str(caught.value)


def refused(message: str, function: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Checks that a call is refused in one line that has a message in it."""
    said = refusal(function, *arguments, **options)
    assert message in said and len(said) < 700, said
