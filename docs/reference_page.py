"""Write docs/reference.md from the docstrings. Usage: python docs/reference_page.py"""

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

This page lists all public names. Import them from `hf_attnprobe`. For the complete documentation of a name, with its
arguments, shapes and errors, use `help`, for example `help(hf_attnprobe.audit)`. [Extending](extending.md) shows how to use
the classes of the protocol.

`python docs/reference_page.py` generates this page from the docstrings.
"""
SECTIONS = {
    "Functions": inspect.isroutine,
    "Options": lambda value: issubclass(value, Options),
    "Models": lambda value: issubclass(value, PreTrainedModel | PretrainedConfig),
    "Capabilities of a model": lambda value: value in CHECKS,
    "Errors": lambda value: issubclass(value, Exception),
    "Classes": inspect.isclass,
}
"""Condition for each section of the page; a name goes into the first section whose condition holds."""


def render_page() -> str:
    """Return the page: tables of all public names, of the functions of tensors and of the figures."""
    rows: dict[str, list[str]] = {title: [] for title in SECTIONS}
    for name in hf_attnprobe.__all__:
        value = getattr(hf_attnprobe, name)
        rows[next(title for title, holds in SECTIONS.items() if holds(value))].append(name)
    parts = [HEAD, *(_section(f"## {title}", hf_attnprobe, names) for title, names in rows.items())]
    parts.append(
        "## Functions of tensors\n\n`hf_attnprobe.functional` computes all measures from tensors, without models or files.\n"
    )
    for module_info in pkgutil.iter_modules(functional.__path__, f"{functional.__name__}."):
        home = importlib.import_module(module_info.name)
        names = [name for name in functional.__all__ if _is_home(home, name)]
        title = _first_sentence(home).rstrip(".")
        parts += [_section(f"### {title}", functional, names)] if names else []
    parts.append(
        "## Figures\n\n`hf_attnprobe.plots.matplotlib_backend` draws the charts of a report with matplotlib.\n"
    )
    parts.append(_table(figures, figures.__all__))
    return "\n".join(parts)


def _is_home(module: Any, name: str) -> bool:
    """Return whether a module defines a name, rather than importing it."""
    return name in re.findall(r"^(?:def |class )?(\w+)", inspect.getsource(module), re.MULTILINE)


def _section(title: str, package: Any, names: Iterable[str]) -> str:
    """Return a heading and the table of the names below it."""
    return f"{title}\n\n{_table(package, names)}"


def _table(package: Any, names: Iterable[str]) -> str:
    """Return a table of names and the first sentences of their docstrings."""
    rows = [[f"`{name}`", _first_sentence(getattr(package, name))] for name in names]
    return "\n".join(markdown.format_table(["name", ""], rows)) + "\n"


def _first_sentence(value: Any) -> str:
    """Return the first paragraph of a docstring, without Sphinx roles such as ``:func:``."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0]
    sentence = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", " ".join(text.split()))
    # A type alias has no docstring.
    return sentence or str(value).replace("typing.", "")


if __name__ == "__main__":
    PAGE.write_text(render_page())
