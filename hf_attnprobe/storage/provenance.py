"""Where numbers come from: the versions of what computed them."""

import platform
from importlib.metadata import version


SUMMARY = "summary.json"
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


def versions() -> dict[str, str]:
    """Of what computed the numbers."""
    return {name: version(name) for name in PACKAGES} | {
        "python": platform.python_version()
    }
