"""BERT with weights set by hand, in which it is known what every head does.

A hidden state consists of features. Each feature is a pair of entries (x, -x), so that layer norms
only rescale the states. The feed-forward layers write nothing. A text has one key word, which
determines the class, one mark, and filler words. Heads that are not described by a `HeadRole` write
next to nothing and attend to random tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import BertForSequenceClassification, PreTrainedTokenizerBase

from tests.helpers import tiny_models


FILLERS = [a + b for a in ("ba", "de", "fi", "go", "pu", "ra") for b in ("ko", "mi", "tu", "ne")]
KEYS = ("noko", "yako")
"""Key words of class 0 and class 1."""
MARK = "mark"
N_LAYERS, N_HEADS, HEAD_WIDTH = 3, 4, 8
NOISE = 0.005
"""Standard deviation of all weights that are not set by hand."""
WIDTH = N_HEADS * HEAD_WIDTH
IDLE_SPREAD = 0.15
"""Standard deviation of the query and key weights of heads without a role."""

SPECIAL, IS_KEY, CLASS, IS_MARK, GATHERED, ANSWER, FILLER = range(7)
"""Features of a state: [CLS] or [SEP], any key word, the key word's class (-1 or 1), the mark, the
class that a head has written to the mark, the class that heads have written for the classifier, and
filler words. Further features distinguish the fillers."""
N_FILLER_FEATURES = WIDTH // 2 - FILLER - 1


@dataclass(frozen=True)
class HeadRole:
    """What a head attends to, and what it writes.

    Attributes:
        attends_to: Feature of the tokens that receive nearly all attention.
        reads: Feature that the head reads there, or None if it reads nothing.
        writes: Feature to which it writes what it has read.
        amount: Factor on the written feature; 0 sets the output projection to 0.
        constant: Constant that is written in addition, whatever the head attends to.
        from_marks: Whether only the mark attends in this way. All other tokens then attend to the
            special tokens.
    """

    attends_to: int = IS_KEY
    reads: int | None = CLASS
    writes: int = ANSWER
    amount: float = 2.0
    constant: float = 0.0
    from_marks: bool = False


WORKING = {(1, 2): HeadRole()}
"""One head reads the key word's class for the prediction."""
DECOYS = {**WORKING, (0, 1): HeadRole(amount=0), (2, 3): HeadRole(amount=0)}
"""Like `WORKING`, with two further heads that attend to the key word and write nothing."""
CHAIN = {
    (0, 1): HeadRole(writes=GATHERED, from_marks=True),
    (2, 3): HeadRole(attends_to=IS_MARK, reads=GATHERED),
}
"""The first head gathers the class at the mark, and the second head reads the mark. Both are necessary."""
IDLE_CONSTANT = HeadRole(reads=None, writes=FILLER, constant=1.0)
CHAIN_WITH_CONSTANTS = {**CHAIN, (1, 1): IDLE_CONSTANT, (2, 0): IDLE_CONSTANT}
"""Like `CHAIN`, with two further heads that attend to the key word and write a constant."""
REDUNDANT = {(1, 2): HeadRole(), (2, 0): HeadRole()}
"""Two heads read the class. Each of them is sufficient."""


def build_tokenizer_for_heads() -> PreTrainedTokenizerBase:
    """Return a word tokenizer for all words of this module."""
    return tiny_models.word_pieces([*FILLERS, *KEYS, MARK])


def draw_rows(n_texts: int, seed: int = 0) -> list[dict]:
    """Draw texts of 8 to 13 words: a key word, a mark, and fillers, in random order."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(n_texts):
        label = int(generator.integers(2))
        fillers = generator.choice(FILLERS, int(generator.integers(6, 12)))
        words = generator.permutation([KEYS[label], MARK, *fillers])
        rows.append({"example_id": number, "text": " ".join(words), "label": label})
    return rows


@torch.no_grad()
def build_planted_bert(
    roles: Mapping[tuple[int, int], HeadRole], *, confidence: float = 6.0
) -> BertForSequenceClassification:
    """Build a BERT whose heads have the given roles.

    Args:
        roles: Role of each (layer, head).
        confidence: Largest possible logit difference between the two classes, in nats.
    """
    tokenizer = build_tokenizer_for_heads()
    sizes = {"layers": N_LAYERS, "heads": N_HEADS, "width": WIDTH}
    # An audit requires that every layer has some effect, so the other weights are not exactly 0.
    model = tiny_models.bert(tokenizer, **sizes, spread=NOISE, num_labels=2)
    _write_embeddings(model.bert.embeddings.word_embeddings.weight, tokenizer)
    generator = torch.Generator().manual_seed(0)
    for block in model.bert.encoder.layer:
        for projection in (block.attention.self.query, block.attention.self.key):
            projection.weight.normal_(std=IDLE_SPREAD, generator=generator)
    for (layer, head), role in roles.items():
        attention = model.bert.encoder.layer[layer].attention
        rows = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
        _plant_head(attention, rows, role)
    model.bert.pooler.dense.weight[0] = 0.5 * _read_feature(ANSWER)
    model.classifier.weight[:, 0] = torch.tensor([-confidence / 2, confidence / 2])
    return model


def _read_feature(feature: int) -> Tensor:
    """Return the weights that read a feature from a state, `[width]`."""
    weights = torch.zeros(WIDTH)
    weights[2 * feature] = 0.5
    weights[2 * feature + 1] = -0.5
    return weights


def _write_embeddings(table: Tensor, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the features of every token into the embedding table."""
    generator = np.random.default_rng(0)
    vectors: dict[str, dict[int, float]] = {
        tokenizer.cls_token: {SPECIAL: 3.0},
        tokenizer.sep_token: {SPECIAL: 3.0},
        KEYS[0]: {IS_KEY: 3.0, CLASS: -2.0},
        KEYS[1]: {IS_KEY: 3.0, CLASS: 2.0},
        MARK: {IS_MARK: 3.0},
    }
    for word in FILLERS:
        noise = generator.normal(size=N_FILLER_FEATURES)
        vectors[word] = {FILLER: 2.0, CLASS: 0.1 * generator.normal()}
        vectors[word] |= {FILLER + 1 + index: float(x) for index, x in enumerate(noise)}
    for word, features in vectors.items():
        row = table[tokenizer.convert_tokens_to_ids(word)]
        for feature, value in features.items():
            row[2 * feature], row[2 * feature + 1] = value, -value


def _plant_head(attention: torch.nn.Module, rows: slice, role: HeadRole) -> None:
    """Set the weights of a head. The slice selects the head's rows in the projections."""
    inputs, output = attention.self, attention.output.dense
    sharpness = 4.0
    for projection in (inputs.query, inputs.key, inputs.value):
        projection.weight[rows] = 0
    query, key = inputs.query.weight[rows], inputs.key.weight[rows]
    key[0] = sharpness * _read_feature(role.attends_to)
    if role.from_marks:
        query[0] = sharpness * _read_feature(IS_MARK)
        key[1] = sharpness * _read_feature(SPECIAL)
        inputs.query.bias[rows.start + 1] = 3.0
    else:
        inputs.query.bias[rows.start] = 3.0
    if role.reads is not None:
        inputs.value.weight[rows][0] = _read_feature(role.reads)
    inputs.value.bias[rows.start] = role.constant
    amount = role.amount
    output.weight[:, rows] = 0
    output.weight[2 * role.writes, rows.start] = amount
    output.weight[2 * role.writes + 1, rows.start] = -amount
