"""A BERT with two layers that learns in seconds, without a network, to find one word.

Usage: python examples/tiny_bert.py [FOLDER]  # saves it in tiny-bert/ by default
"""

import random
import sys
from pathlib import Path

import torch
from datasets import ClassLabel, Dataset, DatasetDict
from transformers import BertConfig, BertForSequenceClassification

from hf_attnprobe import TrainedClassifier, TrainingOptions, build_tokenizer, train


GOOD = ["wonderful", "charming", "gripping", "funny"]
BAD = ["awful", "dull", "clumsy", "tiresome"]
NEUTRAL = "the a film plot cast music ending scene story was is we they saw told of with"


def reviews() -> DatasetDict:
    """Generate reviews of about ten words, one of which decides the label."""
    sizes = {"train": 600, "validation": 100, "test": 100}
    draw = random.Random(0)
    return DatasetDict(
        {
            split: Dataset.from_list([_generate_review(draw) for _ in range(size)]).cast_column(
                "label", ClassLabel(names=["negative", "positive"])
            )
            for split, size in sizes.items()
        }
    )


def _generate_review(draw: random.Random) -> dict:
    """Generate one review with its label and the position of the deciding word."""
    label = draw.randrange(2)
    words = draw.choices(NEUTRAL.split(), k=draw.randint(8, 14))
    position = draw.randrange(len(words) + 1)
    words.insert(position, draw.choice(GOOD if label else BAD))
    return {"text": " ".join(words), "label": label, "rationale": [position]}


def train_tiny_bert(data: DatasetDict, folder: Path, epochs: int = 5) -> TrainedClassifier:
    """Train a BERT with 2 layers of 2 heads from scratch on these reviews."""
    tokenizer = build_tokenizer(data["train"]["text"][:])
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    start = Path(folder) / "start"
    BertForSequenceClassification(config).save_pretrained(start)
    tokenizer.save_pretrained(start)
    options = TrainingOptions(epochs=epochs, learning_rate=3e-3, batch_size=16)
    return train(
        data,
        model=start,
        output_dir=Path(folder) / "trained",
        options=options,
        progress=False,
    )


if __name__ == "__main__":
    output_dir = Path(sys.argv[1] if len(sys.argv) > 1 else "tiny-bert")
    _, _, metrics = train_tiny_bert(reviews(), output_dir)
    print(f"{output_dir / 'trained'}: test accuracy {metrics['test_accuracy']:.2f}")
