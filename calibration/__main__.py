"""python -m calibration: counts the verdict's wrong answers where the truth is known."""

import argparse
import json

from calibration.options import CalibrationOptions
from calibration.report import to_json
from calibration.run import calibrate
from hf_attnprobe.cli.flags import add_options, from_flat


def main() -> None:
    """Calibrates the verdict and prints the tables."""
    parser = argparse.ArgumentParser("calibration", description=__doc__)
    parser.add_argument("--output-dir")
    parser.add_argument("--json", action="store_true")
    add_options(parser, CalibrationOptions)
    given = vars(parser.parse_args())
    found = calibrate(given["output_dir"], options=from_flat(given, CalibrationOptions))
    print(json.dumps(to_json(found)) if given["json"] else found)


if __name__ == "__main__":
    main()
