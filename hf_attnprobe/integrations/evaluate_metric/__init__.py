"""Where the evaluate module is, and how ``evaluate.load`` finds it by its bare name."""

import hashlib
import os
from pathlib import Path


NAME = "attention_faithfulness"
SHIM = '''"""Written by hf_attnprobe: evaluate.load("attention_faithfulness") finds it."""

try:
    from hf_attnprobe.integrations.evaluate_metric.attention_faithfulness import (
        attention_faithfulness,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "attention_faithfulness needs the package hf_attnprobe; install it with pip"
    ) from error

AttentionFaithfulness = attention_faithfulness.AttentionFaithfulness
'''


def metric_path() -> str:
    """The folder of the evaluate module, for ``evaluate.load`` where nothing can be cached."""
    return str(Path(__file__).parent / NAME)


def modules_cache() -> Path:
    """Where evaluate keeps modules, by its own rules."""
    if "HF_MODULES_CACHE" in os.environ:
        return Path(os.environ["HF_MODULES_CACHE"])
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    # Not Path.expanduser, which raises where no home is known.
    return Path(os.path.expanduser(os.environ.get("HF_HOME", cache))) / "modules"


def install_metric(cache: Path | None = None) -> Path | None:
    """Makes ``evaluate.load("attention_faithfulness")`` find the installed metric.

    evaluate asks the Hub first and then uses the newest module of that name in its
    cache; a few lines that import the metric are written there, when the package is
    imported. Several processes may do it at once.

    Args:
        cache: the folder of modules; by default evaluate's own.

    Returns:
        The file, or None where the cache cannot be written; then load by
        :func:`metric_path`.
    """
    metrics = (cache or modules_cache()) / "evaluate_modules" / "metrics"
    folder = metrics / f"evaluate-metric--{NAME}"
    file = folder / hashlib.sha256(SHIM.encode()).hexdigest() / f"{NAME}.py"
    try:
        if file.exists():
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        for parent in file.parents[:4]:
            (parent / "__init__.py").touch()
        hidden = file.with_suffix(f".{os.getpid()}")
        hidden.write_text(SHIM)
        os.replace(hidden, file)
    except OSError:  # a home that cannot be written or read: the path still works
        return None
    return file
