"""YAML as plain data within bounds: what is absurd in itself is refused while it is read.

YAML can say more than a study needs: tags that make other objects, aliases that multiply
("a billion laughs"), nesting that no reader stands, and numbers of any length. The events
of its parser are counted first, which takes no memory, and only then are objects made.
"""

from collections.abc import Hashable
from typing import Any

import yaml

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import LARGEST, in_short


MOST_CHARACTERS = 1_000_000
DEEPEST = 20
MOST_VALUES = 100_000
LONGEST_NUMBER = 100
"""Bounds of a file: its length, its nesting, its values with all aliases written out, and
the characters of a whole number."""


def plain_yaml(text: str) -> Any:
    """The content of a YAML file as mappings, lists, texts, numbers and truth values.

    A date is the text that it is written as. Names of a mapping are texts.

    Raises:
        AttnProbeError: it is not YAML, beyond the bounds, has tags, a name twice or one
            that is no text, or a number that no table holds.
    """
    if len(text) > MOST_CHARACTERS:
        raise AttnProbeError(f"expected at most {MOST_CHARACTERS:,} characters, got {len(text):,}")
    try:
        _check_size(text)
        return yaml.load(text, _Loader)  # nosec B506: it is a safe loader, see above
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise AttnProbeError(f"is not YAML: {reason[:300]}") from error


def _check_size(text: str) -> None:
    """Counts what the file stands for, from the events of the parser."""
    sizes: dict[str, int] = {}  # values below each anchor, aliases written out
    open_parts: list[tuple[str | None, int]] = []  # anchor, values counted before it
    n_values = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            inside_itself = 2 * MOST_VALUES
            n_values += sizes.get(event.anchor or "", inside_itself)
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
            _check_untagged(event)
        if isinstance(event, yaml.ScalarEvent):
            n_values += 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        if isinstance(event, yaml.CollectionStartEvent):
            open_parts.append((event.anchor, n_values))
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_parts.pop()
            sizes |= {anchor: n_values - before + 1} if anchor else {}
        if len(open_parts) > DEEPEST:
            raise AttnProbeError(f"expected at most {DEEPEST} levels of nesting, got more")
        if n_values > MOST_VALUES:
            raise AttnProbeError(
                f"expected at most {MOST_VALUES:,} values, aliases written out, got more"
            )


def _check_untagged(event: Any) -> None:
    if event.tag not in (None, "!"):
        tag = event.tag.replace("tag:yaml.org,2002:", "!!")
        raise AttnProbeError(f"expected plain values, got the tag {in_short(tag)}")


class _Loader(yaml.SafeLoader):
    """Dates stay texts, and a name stands once in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose names are texts, each there once."""
        names = [key.value for key, _ in node.value]
        for (key, _), name in zip(node.value, names, strict=True):
            kind = key.tag.rpartition(":")[2]
            if kind not in ("str", "merge"):
                raise AttnProbeError(
                    f"expected texts as names, got {in_short(name)}; put it in quotation marks"
                )
            if names.count(name) > 1:
                raise AttnProbeError(f"expected each name once, got {name!r} twice")
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number that a table holds."""
        if len(node.value) <= LONGEST_NUMBER:
            number = super().construct_yaml_int(node)
            if -LARGEST <= number <= LARGEST:
                return number
        raise AttnProbeError(f"expected whole numbers within ± {LARGEST:,}, got {node.value:.40}")


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if "timestamp" not in entry[0]]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
