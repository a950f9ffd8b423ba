"""Names that can be shown to anybody: no folder of a machine, nothing that breaks Markdown."""

import html
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hf_attnprobe.data.recipes import RECIPES


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
IN_MEMORY = "data given in memory"
CUT = 200  # characters of a name or value that are shown
LONGEST = 5000  # of a sentence in YAML


@dataclass(frozen=True)
class DataName:
    """What a card calls a data set.

    Attributes:
        name: a word, or a Hub id.
        hub_id: its id on the Hub; None where that is not known.
    """

    name: str
    hub_id: str | None = None

    @classmethod
    def of(cls, recorded: str) -> "DataName":
        """From the name that a training or an audit recorded.

        A folder is known by its last part only, and is not taken for the Hub's data set.

        >>> DataName.of("sst"), DataName.of("data/babi1/")
        (DataName(name='sst', hub_id='SetFit/sst2'), DataName(name='babi1', hub_id=None))
        """
        name, equals, _ = recorded.partition("=")
        if name in RECIPES and (equals or not Path(name).exists()):
            hub_id = RECIPES[name].hub_id
            return cls(name, hub_id if HUB_ID.fullmatch(hub_id) else None)
        for known, recipe in RECIPES.items():
            if recorded == recipe.hub_id and HUB_ID.fullmatch(recorded):
                return cls(known, recorded)
        if is_hub_id(recorded):
            return cls(recorded, recorded)
        return cls(shown(public(recorded)) or "data without a name")


def is_hub_id(name: str) -> bool:
    """Whether a name is ``org/name`` and no folder here."""
    return bool(HUB_ID.fullmatch(name)) and not Path(name).exists()


def public(name: str) -> str:
    """A Hub id as it is; of a path the last part.

    >>> public("org/name"), public("/home/somebody/models/bilstm/"), public("sst")
    ('org/name', 'bilstm', 'sst')
    """
    if is_hub_id(name) or not ("/" in name or "\\" in name):
        return name
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1]


def public_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of a training or an audit, without folders of this machine.

    >>> public_record({"start": "/home/somebody/base", "seed": 1})
    {'start': 'base', 'seed': 1}
    """
    return {
        name: public(value) if isinstance(value, str) else value for name, value in record.items()
    }


def anonymous(text: str, names: Mapping[str, str]) -> str:
    """A text with public names where it names folders of this machine.

    Args:
        names: the public name by what stands in the text; only paths are replaced.
    """
    paths = sorted((name for name in names if "/" in name), key=len, reverse=True)
    for path in paths:
        for form in (path, html.escape(path), json.dumps(path)[1:-1]):
            text = text.replace(form, names[path])
    return text


def shown(value: object, *, most: int = CUT) -> str:
    """A value on one line, without control characters, cut where it is long.

    >>> shown("a\\n b\\x00")
    'a b'
    """
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= most else text[:most] + "…"


def versions(recorded: Mapping[str, Any]) -> str:
    """Versions of packages in words.

    >>> versions({"torch": "2.13", "numpy": "2.4"})
    'torch 2.13, numpy 2.4'
    """
    return ", ".join(f"{shown(name)} {shown(v)}" for name, v in recorded.items())


def code(value: object, *, most: int = CUT) -> str:
    """A value as inline code of Markdown.

    >>> print(code("a`b"))
    `a'b`
    """
    text = shown(value, most=most).replace("`", "'").replace("|", "¦")
    return f"`{text}`" if text else "(empty)"


def prose(sentence: str) -> str:
    """A sentence of ours, which may quote names, with nothing that Markdown or HTML read.

    >>> prose("p < .05 | [a](b)")
    'p &lt; .05 \\\\| [a](b)'
    """
    text = " ".join(sentence.encode("utf-8", "replace").decode("utf-8").split())
    for mark, harmless in {"&": "&amp;", "<": "&lt;", "|": "\\|", "`": "'"}.items():
        text = text.replace(mark, harmless)
    return text


def native(value: Any) -> Any:
    """What YAML keeps as it is: no NumPy, no enum, no control character, nothing infinite.

    A number that is not finite is None, and so is a list with one, such as an interval,
    since readers drop None from lists; None is left out of mappings.

    >>> native({"n": 3, "ci95": (0.1, float("nan")), "no": None})
    {'n': 3}
    """
    if isinstance(value, Mapping):
        plain = {shown(key): native(inner) for key, inner in value.items()}
        return {key: inner for key, inner in plain.items() if inner is not None}
    if isinstance(value, list | tuple):
        inside = [native(inner) for inner in value]
        return None if None in inside else inside
    if isinstance(value, Enum):
        return native(value.value)
    if hasattr(value, "item"):
        return native(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return shown(value, most=LONGEST)
    return value
