"""python -m benchmarks.truth PART …: measures models of known truth, or prints the tables."""

import argparse
import logging
from pathlib import Path

import torch

from benchmarks.truth import run


PARTS = ("kinds", "nuisances", "trained")


def main() -> None:
    """Runs the parts that are named; what is measured already is not measured again."""
    parser = argparse.ArgumentParser("benchmarks.truth", description=__doc__)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART")
    parser.add_argument("--folder", type=Path, default=Path("truth"))
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--texts", type=int, default=200)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    seeds = range(given.draws)
    if "kinds" in given.parts:
        run.run_kinds(given.folder, seeds, given.texts)
    if "nuisances" in given.parts:
        run.run_nuisances(given.folder, seeds, given.texts)
    if "trained" in given.parts:
        run.run_trained(given.folder, seeds, given.texts)


if __name__ == "__main__":
    main()
