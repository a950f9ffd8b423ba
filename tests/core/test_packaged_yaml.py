"""YAML beside the code is checked when it is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import hf_attnprobe
from hf_attnprobe.core.serialization import read_package_yaml


@dataclass(frozen=True)
class Box:
    name: str
    sides: tuple[float, float] | None = None
    holds: Mapping[str, tuple[str, ...]] | None = None
    inner: "Box | None" = None


def read(folder, text):
    file = folder / "boxes.yaml"
    file.write_text(text)
    return read_package_yaml(file, Mapping[str, Box])


def test_mappings_become_dataclasses_and_lists_tuples(tmp_path):
    found = read(
        tmp_path,
        "a: {name: small, sides: [1, 2.5], inner: {name: b}}\nc: {name: d, holds: {x: [y]}}",
    )
    assert found["a"] == Box("small", (1, 2.5), inner=Box("b"))
    assert found["c"].holds == {"x": ("y",)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {sides: [1, 2]}", "boxes.yaml, a, name: expected a value, got none"),
        ("a: {name: b, colour: red}", "boxes.yaml, a: expected one of name, sides"),
        ("a: {name: 3}", "boxes.yaml, a, name: expected a text, got 3"),
        ("a: {name: b, sides: [1, 2, 3]}", "boxes.yaml, a, sides: expected 2 values"),
        ("a: {name: b, sides: [1, red]}", "boxes.yaml, a, sides 2: expected a number, got 'red'"),
        ("a: {name: b, holds: [1]}", "boxes.yaml, a, holds: expected names with values, got"),
        ("a: {name: b, inner: {name: 3}}", "boxes.yaml, a, inner, name: expected a text"),
        ("a: red", "boxes.yaml, a: expected names with values, got 'red'"),
        ("[]", "boxes.yaml: expected names with values, got"),
    ],
)
def test_an_error_names_the_file_and_the_key(text, said, tmp_path):
    with pytest.raises(ValueError) as error:
        read(tmp_path, text)
    assert said in str(error.value)


def names_twice(node):
    """Keys that stand twice in a mapping, of which YAML would keep the last without a word."""
    if isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        yield from (name for name in set(names) if names.count(name) > 1)
        for _, below in node.value:
            yield from names_twice(below)
    elif isinstance(node, yaml.SequenceNode):
        for below in node.value:
            yield from names_twice(below)


def test_no_key_stands_twice():
    files = sorted(Path(hf_attnprobe.__file__).parent.rglob("*.yaml"))
    assert {"published.yaml", "recipes.yaml"} <= {file.name for file in files}
    for file in files:
        assert list(names_twice(yaml.compose(file.read_text()))) == [], file
