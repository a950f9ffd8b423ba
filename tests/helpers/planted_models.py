"""A classifier whose weights are written by hand, and texts for it.

Without an encoder: a word has a score, by which it is attended to, and a worth, by which it speaks
for one of two classes. In every text a word that is worth nothing has most attention, and what
decides has a tenth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters import wrap
from hf_attnprobe.data.tokenizer import build_tokenizer
from hf_attnprobe.protocol import AttentionModelBase
from tests.helpers import tiny_models


FILLERS = [a + b + c for a in "bdfgprst" for b in "aeiou" for c in "kmt"]
KEYS = (["noko", "nola", "nomi"], ["yako", "yala", "yami"])
DECOYS = ["sinka", "sinku"]
LENGTHS = (8, 14)
GAIN = 40.0


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    return build_tokenizer([" ".join([*FILLERS, *KEYS[0], *KEYS[1], *DECOYS])])


@dataclass(frozen=True)
class Drawn:
    """A model with its texts and their labels."""

    adapter: AttentionModelBase
    texts: Sequence[str]
    labels: Sequence[int]
    tokenizer: PreTrainedTokenizerBase = field(default_factory=tokenizer)

    @property
    def rows(self) -> list[dict[str, Any]]:
        pairs = zip(self.texts, self.labels, strict=True)
        return [{"text": text, "label": label} for text, label in pairs]

    @property
    def planted(self) -> dict[int, list[float]]:
        """How much each word of a text says for its label."""
        worth = self.adapter.model.get_input_embeddings().weight[:, 1]
        return {
            k: (
                (2 * label - 1) * worth[self.tokenizer(text, add_special_tokens=False)["input_ids"]]
            ).tolist()
            for k, (text, label) in enumerate(zip(self.texts, self.labels, strict=True))
        }


@torch.no_grad()
def drawn(seed: int, n_texts: int) -> Drawn:
    draws = np.random.default_rng(seed)
    words = tokenizer()
    model = tiny_models.classifier(words, encoder="none", embedding_size=2, attention="dot_product")
    table = model.get_input_embeddings().weight
    table.copy_(torch.from_numpy(draws.normal(0, [0.3, 0.03], table.shape)))
    for keys, worth in zip(KEYS, (-1.0, 1.0), strict=True):
        table[words.convert_tokens_to_ids(keys), 1] = worth
    table[words.convert_tokens_to_ids(DECOYS)] = torch.tensor([3.0, 0.0])
    for name, weight in model.named_parameters():
        if name.endswith("attention.query.weight"):
            weight.copy_(torch.tensor([[2.0**0.5, 0.0]]))
        elif name == "classifier.weight":
            weight.copy_(torch.tensor([[0.0, GAIN]]))
        elif name == "classifier.bias":
            weight.zero_()
    labels = draws.integers(2, size=n_texts).tolist()
    texts = [_text(label, draws) for label in labels]
    return Drawn(wrap(model, level="token"), texts, labels)


def _text(label: int, draws: np.random.Generator) -> str:
    planted = [draws.choice(KEYS[label]), draws.choice(DECOYS)]
    rest = draws.choice(FILLERS, int(draws.integers(*LENGTHS)) - 2)
    return " ".join(draws.permutation([*planted, *rest]))
