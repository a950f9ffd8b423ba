"""BERTs whose decision comes almost only from the words themselves, around attention."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.helpers import planted_heads


SAME_WORDS, OTHER_WORDS = "same words", "other words"
KINDS = (SAME_WORDS, OTHER_WORDS)
"""What is read around attention: the key words, to which attention points, or the filler words."""


class BypassingModel(nn.Module):
    """A BERT with a second path from the words to the logits.

    Args:
        encoder: The BERT.
        effects: What each word adds to the logits, `[words, classes]`.
        attention_share: Share of the logits that comes from the BERT.
    """

    def __init__(self, encoder: nn.Module, effects: Tensor, attention_share: float) -> None:
        super().__init__()
        self.encoder, self.attention_share = encoder, attention_share
        self.register_buffer("effects", effects)

    def forward(self, **inputs: Tensor) -> Tensor:
        logits = self.encoder(**inputs).logits
        bypass = self.effects[inputs["input_ids"]].sum(1)
        return self.attention_share * logits + (1 - self.attention_share) * bypass


def build_bypassing_model(kind: str, *, attention_share: float, seed: int = 0) -> BypassingModel:
    """Build a model in which a working head points to the key word, but hardly matters.

    Args:
        kind: One of :data:`KINDS`.
        attention_share: Share of the logits that passes through attention.
        seed: Seed for the effects of the words.
    """
    tokenizer = planted_heads.build_tokenizer_for_heads()
    encoder = planted_heads.build_planted_bert(planted_heads.WORKING)
    effects = draw_word_effects(kind, seed, len(tokenizer))
    return BypassingModel(encoder, effects, attention_share)


def draw_word_effects(kind: str, seed: int, n_words: int) -> Tensor:
    """Draw what each word adds to the logits around attention, `[words, classes]`."""
    tokenizer = planted_heads.build_tokenizer_for_heads()
    generator = torch.Generator().manual_seed(seed)
    effects = torch.zeros(n_words, 2)
    if kind == SAME_WORDS:
        strength = 3 + 2 * torch.rand(2, generator=generator)
        for label, word in enumerate(planted_heads.KEYS):
            effects[tokenizer.convert_tokens_to_ids(word), label] = strength[label]
    else:
        fillers = tokenizer.convert_tokens_to_ids(planted_heads.FILLERS)
        effects[fillers] = 2 * torch.randn(len(fillers), 2, generator=generator)
    return effects


def draw_rows(model: BypassingModel, n_texts: int, seed: int = 0) -> list[dict[str, Any]]:
    """Draw texts whose labels are what the words say around attention, so that the model is accurate."""
    tokenizer = planted_heads.build_tokenizer_for_heads()
    rows = planted_heads.draw_rows(n_texts, seed)
    for row in rows:
        ids = tokenizer(row["text"])["input_ids"]
        row["label"] = int(model.effects[ids].sum(0).argmax())
    return rows
