"""Every text and image classifier of the installed Transformers: works, or says why not.

    python tests/architectures_table.py [MODEL_TYPE …]

puts a tiny random model of every class through ``battery.py`` and writes
docs/architectures.md. With model types only those run again; the others keep what
docs/architectures.json has of them.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tiny_models import image_classifiers, text_classifiers


HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE, RESULTS = DOCS / "architectures.md", HERE / "architectures.json"
LIMIT = 900  # seconds for one class: one that hangs is wrong
ONE = "import json, sys; from battery import outcome_of; print(json.dumps(outcome_of(*sys.argv[1:])))"


def run(names: Mapping[str, str]) -> dict[str, list]:
    """What became of each class, each in a process of its own."""
    found = {}
    for name, model_type in names.items():
        command = [sys.executable, "-c", ONE, name, model_type]
        done = subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, timeout=LIMIT
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0:
            found[name] = json.loads(lines[-1])[1:]
        else:
            said = (done.stderr.strip().splitlines() or ["no word"])[-1]
            found[name] = ["wrong", said[:300], "", "", []]
        print(name, *found[name], flush=True)
    return found


if __name__ == "__main__":
    print(run({**text_classifiers(), **image_classifiers()}), Counter, RESULTS)
