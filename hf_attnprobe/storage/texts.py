"""Shown texts on disk: ``texts.json`` in the folder of an audit."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hf_attnprobe.charts.shown_text import (
    ShownText,
)
from hf_attnprobe.plain_data import from_plain, plain
from hf_attnprobe.storage.folders import as_json, write_json


TEXTS = "texts.json"


def write_texts(
    folder: Path, texts: Sequence[ShownText], made_with: Mapping[str, Any]
) -> None:
    """Writes the texts, the whole file or nothing.

    Args:
        folder: of the audit.
        texts: what is shown.
        made_with: what their numbers depend on beside model and data.
    """
    write_json(
        folder / TEXTS, {"made_with": plain(made_with), "texts": plain(texts)}
    )


def read_texts(
    folder: Path, made_with: Mapping[str, Any] | None = None
) -> tuple[ShownText, ...] | None:
    """The texts of a folder; None where it has none, or none that can be read.

    Args:
        folder: of the audit.
        made_with: as for :func:`write_texts`; None where texts made with others suit too.
    """
    try:
        held = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
        if made_with is not None and held["made_with"] != as_json(
            plain(made_with)
        ):
            return None
        return tuple(map(text_from_plain, held["texts"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def text_from_plain(data: Mapping[str, Any]) -> ShownText:
    """The inverse of ``plain``."""
    text = from_plain(ShownText, data)
    known = {name: n for name, n in text.numbers.items() if n == n}
    numbers = [*chain(*text.scores.values()), *text.segments, *known.values()]
    numbers.append(text.probability or 0.0)
    if "attention" not in text.scores or not all(
        isinstance(n, int | float) for n in numbers
    ):
        raise ValueError(
            f"expected numbers in the shown text {text.example_id}"
        )
    return dataclasses.replace(text, numbers=known)
