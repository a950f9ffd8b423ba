"""Tests whether the attention of a model explains its predictions.

Start with :func:`audit`, which tests a model on a data set and returns a :class:`Report`. The other
public names are listed in ``__init__.pyi``.

Importing this package is fast, because every public name is imported when it is first used. The
import has two side effects: it installs the metric into the module cache of evaluate, and it registers
our models and the pipeline with Transformers as soon as Transformers is imported.
"""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hf_attnprobe.core.lazy_imports import call_after_import
from hf_attnprobe.integrations import register_with_transformers
from hf_attnprobe.integrations.evaluate_metric import install_metric


__version__ = "0.1.0"


def _find_public_modules() -> dict[str, str]:
    """Map every public name to the module from which ``__init__.pyi`` imports it."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULE_BY_NAME = _find_public_modules()
__all__ = sorted(_MODULE_BY_NAME)

call_after_import("transformers", register_with_transformers)
# `hardware` stores the default thread count of PyTorch. If the count differs later, the user has set it.
call_after_import("torch", lambda: importlib.import_module(f"{__name__}.core.hardware"))
install_metric()


def __getattr__(name: str) -> Any:
    """Import a public name or a module of this package when it is first used."""
    if name in _MODULE_BY_NAME:
        value = getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names only."""
    return __all__
