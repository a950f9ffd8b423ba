"""Where numbers come from: the versions of what computed them."""

import platform
from collections.abc import Mapping
from importlib.metadata import version

from hf_attnprobe import markdown
from hf_attnprobe.storage.plain_data import in_words


SUMMARY = "summary.json"
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute the numbers, by name."""
    found = {name: version(name) for name in PACKAGES}
    return found | {"python": platform.python_version()}


def provenance_section(provenance: Mapping) -> list[str]:
    """The section of a Markdown report that says where its numbers come from."""
    lines = [f"{name}: {in_words(value)}" for name, value in provenance.items()]
    return ["", "## provenance", "", *markdown.bullets(lines)]
