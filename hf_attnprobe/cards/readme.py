"""Our part of a README beside what its user wrote, which stays.

The part stands between two comments; of the front matter only what is ours is put in or
replaced, and all other lines stay as they were written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hf_attnprobe.errors import AttnProbeError


BEGIN = "<!-- attnprobe card: begin; what follows is rewritten, write above or below -->"
END = "<!-- attnprobe card: end -->"
BY = "attnprobe card"
"""Marks our results among a user's: the value of ``by`` in a metric's arguments."""
LISTS = (
    "tags",
    "datasets",
    "metrics",
)  # of which a user's and ours stand together
INDEX = "model-index"
# As huggingface_hub finds it.
FRONT = re.compile(
    r"^(\s*---(?:\r\n|\r|\n))([\S\s]*?)((?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$))"
)


NAMES = re.compile(r"^(?=[^\s#:-])", re.MULTILINE)
"""Where the lines of a name with its value begin."""
COMMENTS = re.compile(r"(?:^(?:#.*)?\n)*\Z", re.MULTILINE)
"""Comments and empty lines behind a value."""


@dataclass(frozen=True)
class Readme:
    """A README in its two halves.

    Attributes:
        front: the YAML as it is written, without its fences; "" without any.
        body: the Markdown behind it.
    """

    front: str
    body: str

    @classmethod
    def of(cls, text: str) -> "Readme":
        """Splits a file's text."""
        found = FRONT.match(text)
        if found is None:
            return cls("", text)
        return cls(found[2], text[found.end() :])

    @property
    def data(self) -> dict[str, Any]:
        """The front matter as plain data.

        Raises:
            AttnProbeError: it is no mapping in YAML.
        """
        try:
            data = yaml.safe_load(self.front)
        except (yaml.YAMLError, ValueError) as error:
            raise AttnProbeError(_no_mapping(error)) from error
        if data is not None and not isinstance(data, dict):
            raise AttnProbeError(_no_mapping(type(data).__name__))
        return data or {}

    @property
    def own_text(self) -> str:
        """What its user wrote: the body without our part and without a lone title."""
        before, _, after = _parts(self.body)
        kept = f"{before}{after}".strip()
        is_title = kept.startswith("# ") and "\n" not in kept
        return "" if is_title else kept


def _no_mapping(found: object) -> str:
    said = str(found).splitlines()[0]
    return f"expected names with values in YAML between the --- of README.md, got {said}; mend it"


def with_part(existing: str, part: str, ours: Mapping[str, Any]) -> str:
    """A README with our part put in, or put in place of an older one.

    Args:
        existing: the README that is there.
        part: ours, with the comments around it.
        ours: what belongs into the front matter.

    Raises:
        AttnProbeError: its front matter is no YAML, or the comments around our part are
            damaged.
    """
    eol = "\r\n" if "\r\n" in existing else "\n"
    readme = Readme.of(existing)
    front = _front(readme, merged(readme.data, ours)).replace("\n", eol)
    before, _, after = _parts(readme.body)
    if not after and BEGIN not in readme.body:
        before = (
            before
            if before.endswith(eol * 2)
            else before.rstrip("\r\n") + eol * 2
        )
        after = eol
    return f"---{eol}{front}---{eol}{before}{part.replace(chr(10), eol)}{after}"


def dumped(data: Any) -> str:
    """Plain data as YAML, in their own order."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=88)


def has_findings(existing: str | None) -> bool:
    """Whether a README already says what an audit found."""
    models = Readme.of(existing or "").data.get(INDEX)
    ours = (
        [model for model in models if _is_ours(model)]
        if isinstance(models, list)
        else []
    )
    return any("attention_faithfulness" in str(model) for model in ours)


def with_others(text: str, other: str) -> str:
    """A README with what only another version of it has in its front matter.

    Args:
        text: the README whose text stays.
        other: such as the one on the Hub.
    """
    readme, theirs = Readme.of(text), Readme.of(other).data
    own = readme.data
    data = theirs | own
    models = theirs.get(INDEX)
    if isinstance(models, list):
        known = own.get(INDEX) or []
        foreign = [
            model
            for model in models
            if not _is_ours(model) and model not in known
        ]
        data[INDEX] = [*foreign, *known]
    in_order = {key: data[key] for key in [*own, *data]}
    return f"---\n{_front(readme, in_order)}---\n{readme.body}"


# --- the body -----------------------------------------------------------------------


def _parts(body: str) -> tuple[str, str, str]:
    """What stands before our part, our part, and what stands behind it."""
    counts = body.count(BEGIN), body.count(END)
    if counts == (0, 0):
        return body, "", ""
    before, _, rest = body.partition(BEGIN)
    ours, end, after = rest.partition(END)
    if counts != (1, 1) or not end:
        raise AttnProbeError(
            "expected one begin and one end of the part of attnprobe in README.md, found "
            f"{counts[0]} and {counts[1]}; put the comments right or delete them"
        )
    return before, ours, after


# --- the front matter ---------------------------------------------------------------


def merged(
    theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> dict[str, Any]:
    """Front matter of a user with ours: nothing of theirs goes, of ours what is new stands.

    >>> merged({"license": "mit", "tags": ["a"]}, {"license": "gpl", "tags": ["b"]})
    {'license': 'mit', 'tags': ['a', 'b']}
    """
    data = dict(theirs)
    for key, value in ours.items():
        held = data.get(key)
        if held is None:
            data[key] = value
        elif key in LISTS:
            listed = held if isinstance(held, list) else [held]
            data[key] = listed + [item for item in value if item not in listed]
    held = theirs.get(INDEX)
    models = ours.get(INDEX, [])
    if isinstance(held, list):
        kept = [model for model in held if not _is_ours(model)]
        # The Hub shows the results of all under one name.
        named = [
            {"name": model["name"]}
            for model in kept
            if isinstance(model, dict) and "name" in model
        ]
        models = [
            *kept,
            *(model | named[0] if named else model for model in models),
        ]
    if models:
        data[INDEX] = models
    elif isinstance(held, list) and held:
        del data[INDEX]
    return data


def _is_ours(model: Any) -> bool:
    """Whether an entry of a model-index is one that a card wrote: every metric is by us."""
    try:
        metrics = [
            metric
            for result in model["results"]
            for metric in result["metrics"]
        ]
        return bool(metrics) and all(
            metric["args"]["by"] == BY for metric in metrics
        )
    except (TypeError, LookupError):
        return False


def _front(readme: Readme, data: dict[str, Any]) -> str:
    """Front matter that says ``data``, in the user's own lines where they say it already."""
    try:
        text = _edited(readme.front.replace("\r\n", "\n"), data)
        is_same = yaml.safe_load(text) == data
    except (yaml.YAMLError, ValueError):
        is_same = False
    return text if is_same else dumped(data)


def _edited(front: str, data: Mapping[str, Any]) -> str:
    """Front matter with the lines of changed values replaced, and new ones behind.

    Raises:
        yaml.YAMLError, ValueError: names with values do not each begin a line.
    """
    text, *blocks = NAMES.split(f"{front}\n" if front else "")
    left = dict(data)
    for block in blocks:
        ((key, value),) = yaml.safe_load(block).items()
        if key in left and left.pop(key) != value:
            block = dumped({key: data[key]}) + COMMENTS.findall(block)[0]
        text += block
    return text + (dumped(left) if left else "")
