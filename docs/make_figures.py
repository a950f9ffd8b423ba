"""Draw the pictures and the example page of the documentation from generated data.

    python docs/make_figures.py              # everything; takes a few minutes on two cores
    python docs/make_figures.py --page-only  # screenshot and example page; reuses attnprobe-demo/ if it exists

The figures are byte-reproducible with the versions in constraints.txt. The screenshot needs playwright and Chromium.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from hf_attnprobe import (
    AuditOptions,
    Data,
    TrainingOptions,
    audit,
    demo,
    make_rationale_dataset,
    retrain,
    train,
)
from hf_attnprobe.plots import matplotlib_backend as figures


DOCS = Path(__file__).absolute().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "examples"))

DEMO_FIGURES = (
    "tau_leave_one_out",
    "permutation_by_max_attention",
    "adversarial_distance",
    "js_against_attention",
    "fraction_to_flip",
    "comprehensiveness",
    "plausibility",
)
DEMO, PAGE = "attnprobe-demo", "audit/report.html"
EXAMPLE_PAGE_TESTS = (
    "scale",
    "correlation",
    "permutation",
    "adversarial",
    "erasure",
    "input_erasure",
    "interchange",
    "plausibility",
)
MAX_PAGE_SIZE = 300_000
"""Largest size of the example page, in bytes."""
WIDTH, HEIGHT = 1100, 860
"""Size of the screenshot, in pixels."""


def main() -> None:
    """Draw the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page-only", action="store_true")
    page_only = parser.parse_args().page_only
    existing_demo = Path(DEMO).absolute()
    # Pages contain the paths of their folders, so run in a temporary folder and use relative paths.
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder, demo_folder = Path(), Path(DEMO)
        if page_only and (existing_demo / PAGE).exists():
            shutil.copytree(existing_demo, demo_folder)
        else:
            report, _ = demo(demo_folder)
        save_screenshot(demo_folder / PAGE)
        save_example_page(demo_folder)
        if not page_only:
            save_figures(report, DEMO_FIGURES, folder / "figures")
            save_figures(
                audit_tiny_bert(folder),
                ("heads_standard_tvd",),
                folder / "heads",
            )
            save_figures(retrain_small_classifier(folder), ("penalty_curve",), folder / "curve")


def save_example_page(demo_folder: Path) -> None:
    """Save docs/demo_report.html, a page with fewer texts and tests than that of the demo."""
    report = audit(
        demo_folder / "model",
        Data(demo_folder / "data", test_limit=200),
        EXAMPLE_PAGE_TESTS,
        options=AuditOptions(shown_texts=3),
    )
    page = DOCS / "demo_report.html"
    report.save_html(page)
    if page.stat().st_size > MAX_PAGE_SIZE:
        sys.exit(f"{page} has {page.stat().st_size} bytes; reduce it to at most {MAX_PAGE_SIZE}")


def save_figures(report: object, names: tuple[str, ...], folder: Path) -> None:
    """Save the named figures of a report in docs/figures."""
    figures.save_charts(report.charts(), folder, formats=("svg",))
    (DOCS / "figures").mkdir(exist_ok=True)
    for name in names:
        shutil.copy(folder / f"{name}.svg", DOCS / "figures")


def audit_tiny_bert(folder: Path) -> object:
    """Audit the heads of a small BERT that was trained to look for one word."""
    from tiny_bert import reviews, train_tiny_bert

    data = reviews()
    train_tiny_bert(data, folder / "bert")
    return audit(
        folder / "bert/trained",
        data["test"],
        ["permutation"],
        options=AuditOptions(groups=False),
    )


def retrain_small_classifier(folder: Path) -> object:
    """Train adversaries, other seeds and uniform attention for a small classifier."""
    data = make_rationale_dataset(900, seed=0)
    small = {"encoder": "bilstm", "embedding_size": 32, "encoder_size": 32}
    options = TrainingOptions(epochs=4, learning_rate=2e-3)
    base = folder / "base"
    train(data, output_dir=base, architecture=small, options=options)
    return retrain(
        base,
        data,
        {
            "uniform": {},
            "seeds": {"n_seeds": 2},
            "adversary": {"lambdas": [0.01, 0.1, 1.0]},
        },
        output_dir=folder / "retrained",
    )


def save_screenshot(page: Path) -> None:
    """Save the first screen of a report as docs/images/page.png, with a reduced number of colours."""
    from playwright.sync_api import sync_playwright

    (DOCS / "images").mkdir(exist_ok=True)
    image = DOCS / "images/page.png"
    with sync_playwright() as player:
        executable = shutil.which("chromium") or shutil.which("google-chrome")
        browser = player.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        view.goto(page.absolute().as_uri())
        view.screenshot(path=image)
        browser.close()
    _reduce_colours(image)


def _reduce_colours(image: Path) -> None:
    """Reduce a PNG file to 64 colours, which makes it smaller."""
    from PIL import Image

    with Image.open(image) as opened:
        reduced = opened.convert("RGB").quantize(64)
    reduced.save(image, optimize=True)


if __name__ == "__main__":
    main()
