"""A BERT of two layers that learns, in seconds and without a network, to find one word.

python examples/tiny_bert.py        # saves it into tiny-bert/
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
OTHERS = "the a film plot cast music ending scene story was is we they saw told of with"


def reviews() -> DatasetDict:
    """Reviews of ten words or so, one of which decides the label."""
    sizes = {"train": 600, "validation": 100, "test": 100}
    draw = random.Random(0)
    return DatasetDict(
        {
            split: Dataset.from_list([_review(draw) for _ in range(size)]).cast_column(
                "label", ClassLabel(names=["negative", "positive"])
            )
            for split, size in sizes.items()
        }
    )


def _review(draw: random.Random) -> dict:
    label = draw.randrange(2)
    words = draw.choices(OTHERS.split(), k=draw.randint(8, 14))
    place = draw.randrange(len(words) + 1)
    words.insert(place, draw.choice(GOOD if label else BAD))
    return {"text": " ".join(words), "label": label, "rationale": [place]}


def train_tiny_bert(data: DatasetDict, folder: Path, epochs: int = 5) -> TrainedClassifier:
    """A BERT of 2 layers × 2 heads, trained on these reviews alone."""
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
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "tiny-bert")
    _, _, metrics = train_tiny_bert(reviews(), place)
    print(f"{place / 'trained'}: test accuracy {metrics['test_accuracy']:.2f}")
