"""MkDocs hooks that add the project's other pages and the API reference to the site.

Links in ``docs/`` are relative to the file, as on GitHub. Pages outside this folder are added to the site under
their own paths, and all links are rewritten. A link to a file that is not on the site is replaced by its text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files


ROOT = Path(__file__).parents[1]
OTHER_PAGES = (
    "*.md",
    "benchmarks/*.md",
    "examples/*.md",
    "model_cards/*.md",
    "model_cards/*/*.md",
)
"""Patterns of the pages outside ``docs/`` that are added to the site."""
EXCLUDED_PAGES = {"README.md"}
"""The first page on GitHub; on the site, docs/index.md takes its place."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ROLE = re.compile(r":\w+:<code>~?(?:\w+\.)*(\w+)</code>")
FENCE = re.compile(r"(```.*?```)", re.DOTALL)
NOT_SEARCHED = ("benchmarks/", "examples/", "model_cards/", "CHANGELOG.md", "architectures.md")
"""Pages with many numbers, which are excluded from the search so that they do not hide other results."""
NAME = re.compile(r"^\| `(\w+)` \| \S", re.MULTILINE)
PACKAGES = {
    "## Functions of tensors": "hf_attnprobe.functional",
    "## Figures": "hf_attnprobe.plots.matplotlib_backend",
}
"""Package of the names in a section of the reference page and in the sections below it."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside ``docs/`` to the site."""
    for pattern in OTHER_PAGES:
        for page in sorted(ROOT.glob(pattern)):
            path = page.relative_to(ROOT).as_posix()
            if path not in EXCLUDED_PAGES:
                files.append(File.generated(config, path, abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links, exclude pages from the search, and add docstrings to the reference page."""
    here = page.file.src_uri
    if here.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}

    def rewrite_link(match: re.Match[str]) -> str:
        image_mark, text, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        target_page = get_site_path(resolve_repository_path(here, path))
        if files.get_file_from_path(target_page) is None:
            return text
        relative = posixpath.relpath(target_page, posixpath.dirname(here) or ".")
        return f"{image_mark}[{text}]({relative}{hash_}{anchor})"

    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(rewrite_link, part) for part in parts[::2]]
    text = "".join(parts)
    return add_docstrings(text) if here == "reference.md" else text


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Replace Sphinx roles in docstrings, such as ``:func:``, by the names they refer to."""
    return ROLE.sub(r"<code>\1</code>", html)


def resolve_repository_path(here: str, target: str) -> str:
    """Return the path, from the repository's root, of a link target on the page ``here``."""
    page = f"docs/{here}" if (ROOT / "docs" / here).exists() else here
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def get_site_path(path: str) -> str:
    """Return the site's path of a file in the repository; the README becomes the first page."""
    if path == "README.md":
        return "index.md"
    return path.removeprefix("docs/")


def add_docstrings(reference: str) -> str:
    """Add the docstrings of all names below the table of their section."""
    package = "hf_attnprobe"
    sections = re.split(r"(?m)^(?=##+ )", reference)
    for k, section in enumerate(sections):
        package = PACKAGES.get(section.partition("\n")[0], package)
        names = NAME.findall(section)
        sections[k] += "\n".join(f"\n::: {package}.{name}\n" for name in names)
    return "".join(sections)
