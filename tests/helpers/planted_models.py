"""Attention classifier with weights set by hand, and texts for it.

The classifier has no encoder. Each word vector has two entries: an attention score, and an effect on
the logit of one of two classes. In every text, a decoy without effect receives the most attention,
and the decisive word receives about a tenth.
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
"""Words with a random attention score and almost no effect."""
KEYS = (["noko", "nola", "nomi"], ["yako", "yala", "yami"])
"""Decisive words of each class."""
DECOYS = ["sinka", "sinku"]
"""Words with a large attention score and no effect."""
LENGTHS = (8, 14)
"""Smallest number of words of a text, and the bound that is not reached."""
GAIN = 40.0
"""Factor from the averaged effect to the logit."""


@cache
def build_planted_tokenizer() -> PreTrainedTokenizerBase:
    """Return a word tokenizer for all words of this module."""
    return build_tokenizer([" ".join([*FILLERS, *KEYS[0], *KEYS[1], *DECOYS])])


@dataclass(frozen=True)
class PlantedModel:
    """Model with hand-set weights, its texts, and their labels."""

    adapter: AttentionModelBase
    texts: Sequence[str]
    labels: Sequence[int]
    tokenizer: PreTrainedTokenizerBase = field(default_factory=build_planted_tokenizer)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Texts and labels as a data set."""
        pairs = zip(self.texts, self.labels, strict=True)
        return [{"text": text, "label": label} for text, label in pairs]

    @property
    def planted(self) -> dict[int, list[float]]:
        """Effect of each word on the label of its text, by number of the text."""
        word_effects = self.adapter.model.get_input_embeddings().weight[:, 1]
        effects = {}
        for number, (text, label) in enumerate(zip(self.texts, self.labels, strict=True)):
            token_ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            sign = 2 * label - 1
            effects[number] = (sign * word_effects[token_ids]).tolist()
        return effects


@torch.no_grad()
def draw_planted_model(seed: int, n_texts: int) -> PlantedModel:
    """Draw the vectors of the filler words, and texts with one decisive word and one decoy."""
    generator = np.random.default_rng(seed)
    tokenizer = build_planted_tokenizer()
    model = tiny_models.classifier(
        tokenizer, encoder="none", embedding_size=2, attention="dot_product"
    )
    table = model.get_input_embeddings().weight
    table.copy_(torch.from_numpy(generator.normal(0, [0.3, 0.03], table.shape)))
    for keys, effect in zip(KEYS, (-1.0, 1.0), strict=True):
        table[tokenizer.convert_tokens_to_ids(keys), 1] = effect
    table[tokenizer.convert_tokens_to_ids(DECOYS)] = torch.tensor([3.0, 0.0])
    for name, weight in model.named_parameters():
        if name.endswith("attention.query.weight"):
            weight.copy_(torch.tensor([[2.0**0.5, 0.0]]))
        elif name == "classifier.weight":
            weight.copy_(torch.tensor([[0.0, GAIN]]))
        elif name == "classifier.bias":
            weight.zero_()
    labels = generator.integers(2, size=n_texts).tolist()
    texts = [_draw_text(label, generator) for label in labels]
    return PlantedModel(wrap(model, level="token"), texts, labels)


def _draw_text(label: int, generator: np.random.Generator) -> str:
    """Draw a text with one decisive word of a class and one decoy among filler words."""
    planted = [generator.choice(KEYS[label]), generator.choice(DECOYS)]
    fillers = generator.choice(FILLERS, int(generator.integers(*LENGTHS)) - 2)
    return " ".join(generator.permutation([*planted, *fillers]))
