"""hf_attnprobe: does this model's attention explain its predictions?

Importing the package imports no other: what is public is imported when it is first used. Two things
happen at once: the metric is put into evaluate's cache of modules, and as soon as
Transformers is imported too, its Auto classes and pipelines know ours.
"""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_attnprobe.core.lazy_imports import once_imported
from hf_attnprobe.integrations import register_with_transformers
from hf_attnprobe.integrations.evaluate_metric import install_metric


__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """The module of every public name, as the stub beside this file imports it."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _homes()
__all__ = sorted(_HOMES)

once_imported("transformers", register_with_transformers)
# How many threads PyTorch begins with: another number is then the user's.
once_imported("torch", lambda: importlib.import_module(f"{__name__}.core.hardware"))
install_metric()


def __getattr__(name: str) -> Any:
    """A public name or a module of this package, imported when it is first used."""
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names alone."""
    return __all__
