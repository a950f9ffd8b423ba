"""A head of known effect in a tiny BERT: its weights are written by hand, no training.

The words of a role carry two directions of their own, a flag and a class. One head of the
last block looks from the first token at the flag and writes the class where the
classifier reads; all other weights are small and random.
"""

from dataclasses import dataclass, replace

import torch
from transformers import BertConfig, BertForSequenceClassification

from hf_attnprobe.adapters import wrap
from hf_attnprobe.calibration.constructed import (
    VOCABULARY,
    Drawn,
    tokenizer,
    words_of,
)


FLAG, CLASS, FIRST, READ = range(4)
"""Directions of the hidden states: is looked at, which class, first token, evidence."""
HIDDEN, N_HEADS, N_LAYERS = 32, 4, 2


@dataclass(frozen=True)
class Graft:
    """Which heads of the last block are written by hand.

    Attributes:
        looks: the head that looks at the keys.
        writes: the head that writes their class; where it is another one, that one
            attends evenly and the first is an ornament.
        sharpness: how far a key's score is above the others'.
    """

    looks: int = 1
    writes: int = 1
    sharpness: float = 5.0


def with_graft(drawn: Drawn, graft: Graft, *, seed: int) -> Drawn:
    """The same texts, for a Transformer with the graft; their first role is its keys."""
    return replace(drawn, adapter=wrap(grafted(graft, seed=seed), level="token"))


@torch.no_grad()
def grafted(graft: Graft, *, seed: int) -> BertForSequenceClassification:
    """A classifier with the graft, in float64; the first role's words are its keys."""
    words = tokenizer()
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=HIDDEN,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=64,
        pad_token_id=words.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).double().eval()
    draws = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "LayerNorm" not in name:
            weight.copy_(0.02 * torch.randn(weight.shape, generator=draws).double())
    table = model.bert.embeddings.word_embeddings.weight
    table.copy_(0.3 * torch.randn(table.shape, generator=draws))
    table[:, [FLAG, CLASS, FIRST, READ]] = 0
    table[words.bos_token_id, FIRST] = 3
    for k, side in enumerate((-1, 1)):
        ids = words.convert_tokens_to_ids(VOCABULARY[words_of(0, k, 2)])
        table[ids, FLAG], table[ids, CLASS] = 3.0, 3.0 * side
    width = HIDDEN // N_HEADS
    attention = model.bert.encoder.layer[-1].attention
    looking, writing = graft.looks * width, graft.writes * width
    attention.self.query.weight[looking, FIRST] = graft.sharpness**0.5
    attention.self.key.weight[looking, FLAG] = graft.sharpness**0.5 / 4
    attention.self.value.weight[writing, CLASS] = 1.0
    attention.output.dense.weight[READ, writing] = 3.0
    model.bert.pooler.dense.weight[READ, READ] = 1.0
    model.classifier.weight[:, READ] = torch.tensor([-3.0, 3.0]).double()
    return model
