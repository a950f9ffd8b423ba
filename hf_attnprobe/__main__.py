"""Entry point for ``python -m hf_attnprobe``, which launchers such as torchrun use."""

import sys

from hf_attnprobe.cli import main


if __name__ == "__main__":
    sys.exit(main())
