"""Which encoders' attention finds the deciding words? Trains each on generated texts and compares.

EXAMPLE_SIZE=3000 python examples/calibrate.py        # about a minute and a half on two cores
"""

import os
import tempfile

from hf_attnprobe import AttentionClassifierConfig, audit, rationale_dataset, train_classifier
from hf_attnprobe.demonstration import rationale_line
from hf_attnprobe.training.options import TrainingOptions


def main(n_examples: int) -> None:
    data = rationale_dataset(n_examples, seed=0)
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
        print(f"{encoder:<8} {accuracy}; {rationale_line(report)}")


if __name__ == "__main__":
    main(int(os.environ.get("EXAMPLE_SIZE", "600")))
