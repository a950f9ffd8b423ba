"""Makes the pictures and the example page of the documentation, from data that the project generates.

python docs/make_figures.py             # all of them; some minutes on two cores
python docs/make_figures.py --page-only # screenshot and example page, from attnprobe-demo/ if it is there

The figures are byte-reproducible with the versions of constraints.txt. The screenshot
needs playwright and a chromium.
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
    figures,
    make_rationale_dataset,
    retrain,
    train,
)


DOCS = Path(__file__).absolute().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "examples"))

FROM_THE_DEMO = (
    "tau_leave_one_out",
    "permutation_by_max_attention",
    "adversarial_distance",
    "js_against_attention",
    "fraction_to_flip",
    "comprehensiveness",
    "plausibility",
)
DEMO, PAGE = "attnprobe-demo", "audit/report.html"
ON_THE_PAGE = (
    "scale",
    "correlation",
    "permutation",
    "adversarial",
    "erasure",
    "input_erasure",
    "interchange",
    "plausibility",
)
LARGEST = 300_000  # bytes of the example page
WIDTH, HEIGHT = 1100, 860  # of the screenshot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page-only", action="store_true")
    page_only = parser.parse_args().page_only
    there = Path(DEMO).absolute()
    # pages name the folders they were given: none of this machine's
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder, made = Path(), Path(DEMO)
        if page_only and (there / PAGE).exists():
            shutil.copytree(there, made)
        else:
            report, _ = demo(made)
        screenshot(made / PAGE)
        example_page(made)
        if not page_only:
            draw(report, FROM_THE_DEMO, folder / "figures")
            draw(
                audit_of_heads(folder),
                ("heads_standard_tvd",),
                folder / "heads",
            )
            draw(retrained(folder), ("penalty_curve",), folder / "curve")


def example_page(made: Path) -> None:
    """A page of fewer texts and tests than the demo's as docs/demo_report.html."""
    report = audit(
        made / "model",
        Data(made / "data", test_limit=200),
        ON_THE_PAGE,
        options=AuditOptions(shown_texts=3),
    )
    page = DOCS / "demo_report.html"
    report.save_html(page)
    if page.stat().st_size > LARGEST:
        sys.exit(f"{page} has {page.stat().st_size} bytes, {LARGEST} at most; show less")


def draw(report: object, names: tuple[str, ...], folder: Path) -> None:
    """Keeps the named figures of a report."""
    figures.save_charts(report.charts(), folder, formats=("svg",))
    (DOCS / "figures").mkdir(exist_ok=True)
    for name in names:
        shutil.copy(folder / f"{name}.svg", DOCS / "figures")


def audit_of_heads(folder: Path) -> object:
    """Of a small BERT that looks for one word."""
    from tiny_bert import reviews, train_tiny_bert

    data = reviews()
    train_tiny_bert(data, folder / "bert")
    return audit(
        folder / "bert/trained",
        data["test"],
        ["permutation"],
        options=AuditOptions(groups=False),
    )


def retrained(folder: Path) -> object:
    """Adversaries of a small classifier beside its other seeds."""
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


def screenshot(page: Path) -> None:
    """The first screen of a report as docs/images/page.png, in few enough colours."""
    from playwright.sync_api import sync_playwright

    (DOCS / "images").mkdir(exist_ok=True)
    image = DOCS / "images/page.png"
    with sync_playwright() as player:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = player.chromium.launch(executable_path=found, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        view.goto(page.absolute().as_uri())
        view.screenshot(path=image)
        browser.close()
    _in_few_colours(image)


def _in_few_colours(image: Path) -> None:
    from PIL import Image

    with Image.open(image) as opened:
        reduced = opened.convert("RGB").quantize(64)
    reduced.save(image, optimize=True)


if __name__ == "__main__":
    main()
