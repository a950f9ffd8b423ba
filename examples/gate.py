"""A gate for continuous integration: stops where attention no longer matters.

python examples/gate.py             # trains a small model and audits it
python examples/gate.py MODEL DATA  # audits yours

Ends with 1 where an answer is worse than asked for, so that a pipeline stops. An interval that
crosses a threshold "cannot say", and stops nothing: ask for more texts.
"""

import sys
import tempfile

from tiny_bert import reviews

from hf_attnprobe import Data, Report, TrainingOptions, audit, train


TESTS = ["scale", "permutation"]
REFUSED = {"accuracy": ("no", "cannot say"), "effect": ("no",), "faithfulness": ("no",)}
"""By question, the answers that stop the pipeline."""


def main() -> int:
    if len(sys.argv) == 3:
        report = audit(sys.argv[1], Data(sys.argv[2], test_limit=200), TESTS)
    else:
        report = of_a_small_model()
    stopped = False
    for finding in report.findings:
        refused = str(finding.answer) in REFUSED.get(finding.rule, ())
        stopped |= refused
        print("stop" if refused else "pass", finding.sentence)
    return int(stopped)


def of_a_small_model() -> Report:
    """Of an attention classifier that has learned to find one word."""
    data = reviews()
    with tempfile.TemporaryDirectory() as folder:
        train(
            data,
            output_dir=folder,
            architecture={"embedding_size": 32, "encoder_size": 32},
            options=TrainingOptions(epochs=4, learning_rate=5e-3),
            progress=False,
        )
        return audit(folder, data["test"], TESTS, progress=False)


if __name__ == "__main__":
    sys.exit(main())
