"""python -m benchmarks.truth PART …: measures models of known truth, and writes page and sheet."""

import argparse
import logging
from pathlib import Path

import torch

from benchmarks.truth import run, scoreboard, tables


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "calibration.md"
SHEET = ROOT / "hf_attnprobe" / "statistics" / "calibration.json"
FIGURE = ROOT / "docs" / "figures" / "scoreboard.svg"
PARTS = ("kinds", "nuisances", "trained", "coverage", "scoreboard", "page")
N_SCOREBOARD_SEEDS = 2
"""Number of models of each kind for the scoreboard."""


def main() -> None:
    """Runs the parts that are named, or all; what is measured already is not measured again."""
    parser = argparse.ArgumentParser("benchmarks.truth", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=PARTS, metavar="PART")
    parser.add_argument("--folder", type=Path, default=Path("truth"))
    parser.add_argument("--draws", type=int, default=10, help="models of a kind")
    parser.add_argument("--texts", type=int, default=200, help="of a kind, and of a reader")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # numbers do not depend on how many cores there are
    if "kinds" in given.parts:
        run.run_kinds(given.folder, range(given.draws), given.texts)
    if "nuisances" in given.parts:
        run.run_nuisances(given.folder, [0], given.texts // 2)
    if "trained" in given.parts:
        run.run_trained(given.folder, range(3), given.texts)
    if "coverage" in given.parts:
        run.run_coverage(given.folder)
    if "scoreboard" in given.parts:
        folder = given.folder / "scoreboard"
        scoreboard.run_scoreboard(folder, range(N_SCOREBOARD_SEEDS), given.texts)
        scoreboard.write_tables(folder)
        scoreboard.write_figure(folder, FIGURE)
    if "page" in given.parts:
        SHEET.write_text(tables.packed(tables.sheet(given.folder)))
        PAGE.write_text(tables.page(given.folder))


if __name__ == "__main__":
    main()
