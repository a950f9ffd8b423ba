"""Writes docs/reference.md from the docstrings: python docs/reference_page.py"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

import hf_attnprobe
from hf_attnprobe import Options, functional
from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.plots import matplotlib_backend as figures
from hf_attnprobe.testing import CHECKS


PAGE = Path(__file__).with_name("reference.md")
HEAD = """# Reference

Every public name, importable from `hf_attnprobe`; `python docs/reference_page.py` writes this page from the docstrings. The docstring of each has
arguments, shapes, units, errors and source: `help(hf_attnprobe.audit)`. [Extending](extending.md) says how the protocol's parts are used.
"""
SECTIONS = {
    "Functions": inspect.isroutine,
    "Options": lambda value: issubclass(value, Options),
    "Models": lambda value: issubclass(value, PreTrainedModel | PretrainedConfig),
    "Capabilities of a model": lambda value: value in CHECKS,
    "Errors": lambda value: issubclass(value, Exception),
    "Classes": inspect.isclass,
}
"""The first whose condition holds is the section of a name."""


def expected() -> str:
    """The page as it should be."""
    rows: dict[str, list[str]] = {title: [] for title in SECTIONS}
    for name in hf_attnprobe.__all__:
        value = getattr(hf_attnprobe, name)
        rows[next(title for title, holds in SECTIONS.items() if holds(value))].append(name)
    parts = [HEAD, *(_section(f"## {title}", hf_attnprobe, names) for title, names in rows.items())]
    parts.append(
        "## Functions of tensors\n\nIn `hf_attnprobe.functional`, without models, data or files.\n"
    )
    for found in pkgutil.iter_modules(functional.__path__, f"{functional.__name__}."):
        home = importlib.import_module(found.name)
        names = [name for name in functional.__all__ if _is_home(home, name)]
        title = _first_sentence(home).rstrip(".")
        parts += [_section(f"### {title}", functional, names)] if names else []
    parts.append(
        "## Figures\n\nIn `hf_attnprobe.plots.matplotlib_backend`, drawn with matplotlib from a report.\n"
    )
    parts.append(_table(figures, figures.__all__))
    return "\n".join(parts)


def _is_home(module: Any, name: str) -> bool:
    """Whether a name is defined in a module, and not only imported there."""
    return name in re.findall(r"^(?:def |class )?(\w+)", inspect.getsource(module), re.MULTILINE)


def _section(title: str, package: Any, names: Iterable[str]) -> str:
    return f"{title}\n\n{_table(package, names)}"


def _table(package: Any, names: Iterable[str]) -> str:
    rows = [[f"`{name}`", _first_sentence(getattr(package, name))] for name in names]
    return "\n".join(markdown.table(["name", ""], rows)) + "\n"


def _first_sentence(value: Any) -> str:
    """The first paragraph of a docstring, without the roles that Sphinx would read."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0]
    said = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", " ".join(text.split()))
    return said or str(value).replace("typing.", "")  # a type's alias has none


if __name__ == "__main__":
    PAGE.write_text(expected())
