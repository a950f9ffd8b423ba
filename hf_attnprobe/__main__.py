"""Entry point of ``python -m hf_attnprobe``, which launchers such as torchrun need."""

import sys

from hf_attnprobe.cli import main


if __name__ == "__main__":
    sys.exit(main())
