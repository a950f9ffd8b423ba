"""Pages in a real browser: what it says, asks for and shows."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",  # containers have little of it
]


@dataclass
class Opened:
    """A page that is open, and what it has said and asked for."""

    page: object
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def is_wider_than_the_screen(self) -> bool:
        """Whether the page as a whole scrolls sideways."""
        root = "document.scrollingElement"
        return self.page.evaluate(f"{root}.scrollWidth > {root}.clientWidth")

    def list_violations(self) -> list[str]:
        """Return all violations that axe-core reports, whatever their impact."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright")
        return [
            f"{violation['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for violation in axe.Axe().run(self.page).response["violations"]
            for node in violation["nodes"][:3]
        ]

    def findings(self) -> list[str]:
        """What axe-core calls serious or critical; the page must be open with ``axe``."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright")
        found = axe.Axe().run(self.page).response["violations"]
        return [
            f"{finding['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for finding in found
            if finding["impact"] in ("serious", "critical")
            for node in finding["nodes"][:3]
        ]


@contextmanager
def browser() -> Iterator[object]:
    """Chromium without a window; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(
            executable_path=CHROMIUM,
            args=ARGUMENTS,
            env={k: v for k, v in os.environ.items() if k != "DISPLAY"},
        )
        try:
            yield chromium
        finally:
            chromium.close()


@contextmanager
def opened(
    chromium: object,
    path: Path,
    *,
    dark: bool = False,
    width: int = 1200,
    scripts: bool = True,
    axe: bool = False,
) -> Iterator[Opened]:
    """A file opened in a fresh context.

    Args:
        chromium: of ``browser``.
        path: of the page.
        dark: whether the reader prefers dark.
        width: of the window in pixels.
        scripts: whether scripts run.
        axe: whether axe-core may be injected, which the page's own policy forbids.
    """
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
        bypass_csp=axe,
    )
    try:
        page = context.new_page()
        found = Opened(page)
        page.on("console", lambda message: found.messages.append(message.text))
        page.on("pageerror", lambda error: found.messages.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(Path(path).resolve().as_uri())
        yield found
    finally:
        context.close()
