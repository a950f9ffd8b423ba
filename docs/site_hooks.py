"""What the site has that GitHub shows without it: the project's other pages, and the API.

Links in ``docs/`` are relative to the file, as GitHub follows them. Pages beside that
folder are put onto the site under their own paths and all links are written anew; what is
no page of the site keeps its words and loses its link.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


ROOT = Path(__file__).parents[1]
BESIDE = (
    "*.md",
    "benchmarks/*.md",
    "examples/*.md",
    "model_cards/*.md",
    "model_cards/*/*.md",
)
LEFT_OUT = {"README.md"}  # GitHub's first page; the site's is docs/index.md
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ROLE = re.compile(r":\w+:<code>~?(?:\w+\.)*(\w+)</code>")
FENCE = re.compile(r"(```.*?```)", re.DOTALL)
NOT_SEARCHED = ("benchmarks/", "examples/", "model_cards/", "CHANGELOG.md", "architectures.md")
"""Pages of numbers, in which what a reader searches for would drown."""
NAME = re.compile(r"^\| `(\w+)` \| \S", re.MULTILINE)
PACKAGES = {
    "## Functions of tensors": "hf_attnprobe.functional",
    "## Figures": "hf_attnprobe.plots.matplotlib_backend",
}
"""Whose names a section of the reference has, and all below it."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages beside ``docs/``."""
    for pattern in BESIDE:
        for page in sorted(ROOT.glob(pattern)):
            path = page.relative_to(ROOT).as_posix()
            if path not in LEFT_OUT:
                files.append(File.generated(config, path, abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as the site has them, what is searched, and on the reference every docstring."""
    here = page.file.src_uri
    if here.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}

    def link(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return found[0]
        there = site_path(repository_path(here, path))
        if files.get_file_from_path(there) is None:
            return words
        relative = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return f"{picture}[{words}]({relative}{hash_}{anchor})"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    text = "".join(parts)
    return with_docstrings(text) if here == "reference.md" else text


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Names in docstrings without the roles that Sphinx would read."""
    return ROLE.sub(r"<code>\1</code>", html)


def repository_path(here: str, target: str) -> str:
    """Where a link of a page of the site points to, from the repository's root."""
    own = f"docs/{here}" if (ROOT / "docs" / here).exists() else here
    return posixpath.normpath(posixpath.join(posixpath.dirname(own), target))


def site_path(path: str) -> str:
    """The same as a path of the site; that of the README is the first page."""
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/")


def with_docstrings(reference: str) -> str:
    """Below the table of each section the docstrings of its names."""
    package = "hf_attnprobe"
    sections = re.split(r"(?m)^(?=##+ )", reference)
    for k, section in enumerate(sections):
        package = PACKAGES.get(section.partition("\n")[0], package)
        names = NAME.findall(section)
        sections[k] += "\n".join(f"\n::: {package}.{name}\n" for name in names)
    return "".join(sections)
