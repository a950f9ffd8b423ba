"""``python -m hf_attnprobe``, the form that launchers need."""

import sys

from hf_attnprobe.cli import main


if __name__ == "__main__":
    sys.exit(main())
