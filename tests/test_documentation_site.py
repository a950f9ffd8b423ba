"""The documentation site: built as ``make docs`` does, then read with an HTML parser."""

import importlib
import json
import posixpath
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import hf_attnprobe
from hf_attnprobe import functional
from hf_attnprobe.plots import matplotlib_backend as figures
from tests.helpers.page_reader import Reader


ROOT = Path(__file__).parents[1]
LOADS = ("script src", "img src", "link href", "iframe src", "source src")


def given(page, *names):
    """The values of attributes of these names; of one element's as in "a href"."""
    wanted = [name.rpartition(" ")[::2] for name in names]
    return [
        own[name]
        for tag, own in page.elements
        for of, name in wanted
        if of in ("", tag) and own.get(name)
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory, run_python):
    """The pages by their paths, and the folder."""
    folder = tmp_path_factory.mktemp("site")
    built = run_python(
        *("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder),
        env={"NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        timeout=120,
    )
    assert built.code == 0 and not (built.out + built.err).strip(), built.err
    pages = {
        file.relative_to(folder).as_posix(): Reader(file.read_text())
        for file in folder.rglob("*.html")
    }
    return folder, pages


def test_a_warning_stops_the_build():
    assert re.search(r"^strict: true$", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert "mkdocs build --strict" in (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site):
    folder, pages = site
    loaded = {url for page in pages.values() for url in given(page, *LOADS)}
    assert loaded and not {url for url in loaded if "//" in url}
    for sheet in folder.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text())


@pytest.mark.slow
def test_every_link_arrives(site):
    folder, pages = site
    for here, page in pages.items():
        if here == "404.html":
            continue
        for link in given(page, "a href"):
            path, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:") or path == ".":
                continue
            there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
            there = here if not path else unquote(there)
            assert (folder / there).is_file(), (here, link)
            if anchor and not anchor.startswith("__") and there in pages:
                assert unquote(anchor) in given(pages[there], "id", "name"), (here, link)


@pytest.mark.slow
def test_every_public_name_has_its_docstring_there(site):
    reference = site[1]["reference.html"]
    names = {f"hf_attnprobe.{name}" for name in hf_attnprobe.__all__}
    names |= {f"hf_attnprobe.functional.{name}" for name in functional.__all__}
    names |= {f"hf_attnprobe.plots.matplotlib_backend.{name}" for name in figures.__all__}
    assert names <= {*given(reference, "id", "name")}
    for name in names:
        told = (_object(name).__doc__ or "").strip()  # a type's alias has none
        first = told.partition("\n")[0]
        start = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", first)[:30]
        assert _words(start) in _words(reference.words), name


def _object(name):
    home, _, last = name.rpartition(".")
    return getattr(importlib.import_module(home), last)


def _words(text):
    return re.sub(r"\W+", " ", text).strip()


@pytest.mark.slow
def test_pictures_say_what_they_show(site):
    pictures = [own for p in site[1].values() for tag, own in p.elements if tag == "img"]
    assert not [own for own in pictures if not own.get("alt")]


@pytest.mark.slow
def test_search_finds_guides_and_no_tables_of_results(site):
    index = json.loads((site[0] / "search/search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"quickstart.html", "transformers.html", "reference.html"} <= found
    assert not [page for page in found if page.startswith(("examples/", "CHANGELOG"))]


@pytest.mark.slow
def test_the_site_shows_a_whole_page(site):
    page = site[0] / "demo_report.html"
    assert page.stat().st_size < 300_000
    assert "default-src 'none'" in unescape(page.read_text())
    asked = "Does attention explain these predictions?"
    assert asked in site[1]["demo_report.html"].words
    for path in ("index.html", "reports.html", "quickstart.html"):
        assert "demo_report.html" in given(site[1][path], "a href")
