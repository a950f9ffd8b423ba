"""How does longer training change attention? Compare two checkpoints, paired by text.

Usage: python examples/before_and_after.py
"""

import tempfile
from pathlib import Path

from tiny_bert import reviews, train_tiny_bert

from hf_attnprobe import AuditOptions, Data, audit, compare_audits


TESTS = ["scale", "permutation"]


def main() -> None:
    """Train a small BERT for 2 and for 5 epochs, audit both checkpoints and print the comparison."""
    data = reviews()
    with tempfile.TemporaryDirectory() as name:
        audits = []
        for epochs in (2, 5):
            folder = Path(name) / f"{epochs}-epochs"
            model, tokenizer, scores = train_tiny_bert(data, folder, epochs)
            print(f"{epochs} epochs: test accuracy {scores['test_accuracy']:.2f}")
            audit(
                model,
                Data(data["test"], test_limit=50),
                TESTS,
                options=AuditOptions(single_heads=False, prune=False),
                tokenizer=tokenizer,
                output_dir=folder / "audit",
                progress=False,
            )
            audits.append(folder / "audit")
        print(compare_audits(audits))


if __name__ == "__main__":
    main()
