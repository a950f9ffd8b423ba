"""A check for continuous integration that fails if attention no longer matters.

Usage:
    python examples/gate.py             # trains a small model and audits it
    python examples/gate.py MODEL DATA  # audits your model on your data

The exit code is 1 if an answer is worse than required, so that a pipeline stops. If an interval crosses a
threshold, the answer is "cannot say" and the check passes; use more texts to get an answer.
"""

import sys
import tempfile

from tiny_bert import reviews

from hf_attnprobe import Data, Report, TrainingOptions, audit, train


TESTS = ["scale", "permutation"]
FAILING_ANSWERS = {"accuracy": ("no", "cannot say"), "effect": ("no",), "faithfulness": ("no",)}
"""Answers that make the check fail, by question."""


def main() -> int:
    """Audit the model, print every finding, and return the exit code."""
    if len(sys.argv) == 3:
        report = audit(sys.argv[1], Data(sys.argv[2], test_limit=200), TESTS)
    else:
        report = audit_small_model()
    failed = False
    for finding in report.findings:
        is_failure = str(finding.answer) in FAILING_ANSWERS.get(finding.rule, ())
        failed |= is_failure
        print("fail" if is_failure else "pass", finding.sentence)
    return int(failed)


def audit_small_model() -> Report:
    """Train an attention classifier to find one word, and audit it."""
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
