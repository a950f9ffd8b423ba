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
LISTS = ("tags", "datasets", "metrics")  # of which a user's and ours stand together
INDEX = "model-index"
# As huggingface_hub finds it.
FRONT = re.compile(r"^(\s*---(?:\r\n|\r|\n))([\S\s]*?)((?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$))")


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
        before = before if before.endswith(eol * 2) else before.rstrip("\r\n") + eol * 2
        after = eol
    return f"---{eol}{front}---{eol}{before}{part.replace(chr(10), eol)}{after}"


def dumped(data: Any) -> str:
    """Plain data as YAML, in their own order."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=88)


def has_findings(existing: str | None) -> bool:
    """Whether a README already says what an audit found."""
    data = Readme.of(existing or "").data
    return any(
        _is_ours(metric) and metric.get("type") == "attention_faithfulness"
        for result in _results(data.get(INDEX))
        for metric in result.get("metrics") or []
    )


def with_others(text: str, other: str) -> str:
    """A README with what only another version of it has in its front matter.

    Args:
        text: the README whose text stays.
        other: such as the one on the Hub.
    """
    readme, theirs = Readme.of(text), Readme.of(other).data
    data = readme.data
    missing = {key: value for key, value in theirs.items() if key not in data}
    if INDEX in theirs:
        known = [*_results(data.get(INDEX))]
        foreign = [r for r in _results(_without_ours(theirs[INDEX])) if r not in known]
        missing[INDEX] = _joined(data.get(INDEX), foreign)
    front = _front(readme, data | missing)
    return f"---\n{front}---\n{readme.body}"


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


def merged(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Front matter of a user with ours: nothing of theirs goes, of ours what is new stands.

    >>> merged({"license": "mit", "tags": ["a"]}, {"license": "gpl", "tags": ["b"]})
    {'license': 'mit', 'tags': ['a', 'b']}
    """
    data = dict(theirs)
    for key, value in ours.items():
        held = data.get(key)
        if key == INDEX:
            continue
        if held is None:
            data[key] = value
        elif key in LISTS:
            listed = held if isinstance(held, list) else [held]
            data[key] = listed + [item for item in value if item not in listed]
    kept = _without_ours(theirs.get(INDEX))
    index = _joined(kept, _results(ours.get(INDEX)), name=_name(ours.get(INDEX)))
    if index:
        data[INDEX] = index
    elif INDEX in data and theirs.get(INDEX) != kept:
        del data[INDEX]
    return data


def _without_ours(index: Any) -> Any:
    """A model-index without the results that an earlier card wrote."""
    if not isinstance(index, list):
        return index
    models = []
    for model in index:
        if not isinstance(model, Mapping) or not isinstance(model.get("results"), list):
            models.append(model)
            continue
        results = [kept for r in model["results"] if (kept := _foreign(r)) is not None]
        if results or not model["results"]:
            models.append({**model, "results": results})
    return models


def _foreign(result: Any) -> Any:
    """A result without our metrics; None where it had no others."""
    metrics = result.get("metrics") if isinstance(result, Mapping) else None
    if not isinstance(metrics, list):
        return result
    kept = [metric for metric in metrics if not _is_ours(metric)]
    if len(kept) == len(metrics):
        return result
    return {**result, "metrics": kept} if kept else None


def _is_ours(metric: Any) -> bool:
    arguments = metric.get("args") if isinstance(metric, Mapping) else None
    return isinstance(arguments, Mapping) and arguments.get("by") == BY


def _results(index: Any) -> list[dict[str, Any]]:
    """The results of all models of a model-index; none where it is not understood."""
    models = index if isinstance(index, list) else []
    found: list[dict[str, Any]] = []
    for model in models:
        results = model.get("results") if isinstance(model, Mapping) else None
        found += [r for r in results or [] if isinstance(r, dict)]
    return found


def _name(index: Any) -> str:
    return str(index[0]["name"]) if index else ""


def _joined(index: Any, results: list[dict[str, Any]], *, name: str = "") -> Any:
    """A model-index with further results, under the name it has."""
    if not results:
        return index
    if not isinstance(index, list) or not index:
        return [{"name": name, "results": results}]
    first, *others = index
    held = first.get("results") if isinstance(first, Mapping) else None
    if not isinstance(held, list):
        return [*index, {"name": name, "results": results}]
    return [{**first, "results": [*held, *results]}, *others]


def _front(readme: Readme, data: dict[str, Any]) -> str:
    """Front matter that says ``data``, in the user's own lines where they say it already."""
    text = _edited(readme.front.replace("\r\n", "\n"), readme.data, data)
    try:
        is_same = yaml.safe_load(text) == data
    except yaml.YAMLError:
        is_same = False
    return text if is_same else dumped(data)


def _edited(front: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Front matter with the lines of changed values replaced, and new ones behind."""
    lines = front.splitlines()
    root = yaml.compose(front) if front.strip() else None
    starts: dict[str, int] = {}
    if isinstance(root, yaml.MappingNode) and not root.flow_style:
        starts = {key.value: key.start_mark.line for key, _ in root.value}
    ends = [*starts.values(), len(lines)][1:]
    edited = lines[: min(starts.values(), default=0)]
    for (key, start), end in zip(starts.items(), ends, strict=True):
        own = lines[start:end]
        if key in old and key in new and old[key] == new[key]:
            edited += own
            continue
        behind: list[str] = []  # comments and empty lines before the next name
        while own and (not own[-1].strip() or own[-1].startswith("#")):
            behind.insert(0, own.pop())
        edited += dumped({key: new[key]}).splitlines() if key in new else []
        edited += behind
    added = {key: value for key, value in new.items() if key not in starts}
    edited += dumped(added).splitlines() if added else []
    return "\n".join([*edited, ""])
