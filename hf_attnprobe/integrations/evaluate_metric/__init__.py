"""Installation of the metric ``attention_faithfulness`` for ``evaluate.load``.

The metric itself is in the folder ``attention_faithfulness``.
"""

import hashlib
import os
from pathlib import Path


METRIC_NAME = "attention_faithfulness"
"""Name of the metric, as in ``evaluate.load("attention_faithfulness")``."""
LOADER_SOURCE = '''"""Written by hf_attnprobe: evaluate.load("attention_faithfulness") finds it."""

import importlib
from pathlib import Path

try:
    import hf_attnprobe

    # Only the installed version knows where its metric is. This file may be from another version.
    folder = Path(hf_attnprobe.get_metric_path())
    package = folder.relative_to(Path(hf_attnprobe.__file__).parents[1]).parts
    module = importlib.import_module(".".join([*package, folder.name]))
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "attention_faithfulness needs the package hf_attnprobe, but the module "
        f"{error.name} is not installed; install hf_attnprobe with pip in this environment"
    ) from error

AttentionFaithfulness = module.AttentionFaithfulness
'''
"""Source code of a Python module that imports the metric. It is written to the cache of evaluate."""


def get_metric_path() -> str:
    """Return the path of the metric's folder, which ``evaluate.load`` can load without a network.

    Example:
        metric = evaluate.load(hf_attnprobe.get_metric_path())
    """
    return str(Path(__file__).parent / METRIC_NAME)


def get_modules_cache() -> Path:
    """Return the folder in which the library evaluate caches modules."""
    if "HF_MODULES_CACHE" in os.environ:
        return Path(os.environ["HF_MODULES_CACHE"])
    default_cache = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    # `Path.expanduser` would raise an error if there is no home folder.
    return Path(os.path.expanduser(os.environ.get("HF_HOME", default_cache))) / "modules"


def install_metric(cache: Path | None = None) -> Path | None:
    """Make ``evaluate.load("attention_faithfulness")`` find the installed metric.

    evaluate searches the Hub first, and then uses the newest module with this name in its cache.
    Therefore this function writes a module into the cache that imports the metric. If another
    version of this package has written a newer module, the time of this version's module is renewed.
    Several processes can call this function at the same time.

    Args:
        cache: Folder for cached modules; None for the cache of evaluate.

    Returns:
        Path of the module. None if the cache is not writable; in this case load the metric with
        ``evaluate.load(get_metric_path())``.
    """
    metrics = (cache or get_modules_cache()) / "evaluate_modules" / "metrics"
    folder = metrics / f"evaluate-metric--{METRIC_NAME}"
    file = folder / hashlib.sha256(LOADER_SOURCE.encode()).hexdigest() / f"{METRIC_NAME}.py"
    try:
        # A file with other content is replaced, since evaluate would run it.
        if file.is_file() and file.read_bytes() == LOADER_SOURCE.encode():
            if not _is_newest(file):
                os.utime(file)
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        # Each of the four folders in the path must be a Python package.
        for parent in file.parents[:4]:
            (parent / "__init__.py").touch()
        temporary_file = file.with_suffix(f".{os.getpid()}")
        temporary_file.write_bytes(LOADER_SOURCE.encode())
        os.replace(temporary_file, file)
    except OSError:
        return None
    return file


def _is_newest(file: Path) -> bool:
    """Check whether no other module in the cache is as new as this one, because evaluate uses the newest."""
    other_files = [other for other in file.parents[1].glob(f"*/{file.name}") if other != file]
    own_time = file.stat().st_mtime_ns
    return all(other.stat().st_mtime_ns < own_time for other in other_files)
