"""Compare encoders: whose attention finds the words that are known to decide the label?

Usage: EXAMPLE_SIZE=3000 python examples/calibrate.py  # takes about 90 seconds on two cores
"""

import os
import tempfile

from hf_attnprobe import AttentionClassifierConfig, audit, make_rationale_dataset, train_classifier
from hf_attnprobe.demonstration import format_rationale_line
from hf_attnprobe.training.options import TrainingOptions


def main(n_examples: int) -> None:
    """Train a classifier with each encoder on generated texts, and print how well attention finds the words."""
    data = make_rationale_dataset(n_examples, seed=0)
    for encoder in ("bilstm", "cnn", "mlp", "none"):
        config = AttentionClassifierConfig(encoder=encoder, embedding_size=64, encoder_size=64)
        with tempfile.TemporaryDirectory() as folder:
            model, tokenizer, metrics = train_classifier(
                config,
                data["train"],
                data["validation"],
                test=data["test"],
                output_dir=folder,
                progress=False,
                options=TrainingOptions(epochs=4, learning_rate=2e-3),
            )
        report = audit(model, data["test"], ["plausibility"], tokenizer=tokenizer, progress=False)
        accuracy = f"accuracy {metrics['test_accuracy']:.3f}"
        print(f"{encoder:<8} {accuracy}; {format_rationale_line(report)}")


if __name__ == "__main__":
    main(int(os.environ.get("EXAMPLE_SIZE", "600")))
