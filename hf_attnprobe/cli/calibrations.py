"""calibrate: how often the verdict is wrong where the truth is known."""

import argparse
import json
from typing import Any

from hf_attnprobe.calibration.options import CalibrationOptions
from hf_attnprobe.cli.flags import add_json, add_options
from hf_attnprobe.terminal import show


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Flags of calibrate."""
    parser.add_argument(
        "--output-dir",
        help="folder for calibration.json, its page (html, md) and the answers of each model",
    )
    add_options(parser, CalibrationOptions)
    add_json(parser)


def run_calibrate(arguments: dict[str, Any]) -> None:
    """Calibrates the verdict and prints the tables."""
    from hf_attnprobe.calibration.report import to_json
    from hf_attnprobe.calibration.run import calibrate
    from hf_attnprobe.options import from_flat

    options = from_flat(arguments, CalibrationOptions)
    found = calibrate(arguments["output_dir"], options=options)
    show(json.dumps(to_json(found)) if arguments["json"] else str(found))
