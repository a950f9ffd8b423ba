"""Trained readers whose use of one word is proved by exchanging words.

Every word says one of two classes, and one of them is asked for: the marked one, the one behind
``look``, or the last one. A model that is always right, whose decision follows the asked word
when it is exchanged for one of the other class and follows no other word, decides by that word.
Training alone rarely brings all attention there, so every reader is also trained with guidance:
the mean of −log attention on the asked word is added to the loss. The share of texts in which the
asked word has most attention is the p of :mod:`benchmarks.truth.kinds`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerBase

from benchmarks.truth.kinds import Truth
from benchmarks.truth.measure import OF_VERDICT, measured
from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.data.tokenizer import build_tokenizer
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import AttentionModelBase, Batch


N_WORDS = 20
"""Of each class, plain and marked."""
WORDS = [
    mark + side + chr(97 + k) for mark in ("", "x") for side in ("no", "ya") for k in range(N_WORDS)
]
"""By mark, class and number: the first letter marks, the next ones are the class."""
LENGTHS = (6, 14)
N_STEPS, BATCH = 600, 64
GUIDANCE = 0.5
"""Of the guiding term, beside a cross-entropy of weight 1."""
RIGHT = 0.98
"""Share of right answers, and of decisions that follow the asked word, that proves its use."""
MOST = 0.9
"""Share of texts in which the asked word has most attention, from which a truth is known."""


class Texts(NamedTuple):
    """Token ids [texts, words] without special tokens, 0 behind the end; labels and places.

    ``asked`` is the place of the word that decides, ``beside`` that of another one.
    """

    ids: Tensor
    lengths: Tensor
    labels: Tensor
    asked: Tensor
    beside: Tensor


@dataclass(frozen=True)
class Reader:
    """A task, an architecture that can learn it, and whether attention is guided to the word."""

    task: str
    architecture: str
    is_guided: bool

    @property
    def name(self) -> str:
        return f"{self.task}, {self.architecture}{', guided' if self.is_guided else ''}"


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """Of all readers: plain words, marked ones, and the mark that stands alone."""
    return build_tokenizer([" ".join([*WORDS, "look"])])


@cache
def vocabulary() -> Tensor:
    """Token ids of words, [marked, class, word]."""
    ids = tokenizer().convert_tokens_to_ids(WORDS)
    assert tokenizer().unk_token_id not in ids
    return torch.tensor(ids).view(2, 2, N_WORDS)


def drawn(task: str, n_texts: int, seed: int) -> Texts:
    """Texts of a task."""
    draws = np.random.default_rng(seed)
    low, high = LENGTHS
    lengths = draws.integers(low, high + 1, n_texts)
    classes = draws.integers(2, size=(n_texts, high))
    words = draws.integers(N_WORDS, size=(n_texts, high))
    asked = draws.integers(1, lengths) if task != "last" else lengths - 1
    beside = (asked + draws.integers(2, lengths - 1)) % lengths  # neither it nor the one before
    places, rows = np.arange(high), np.arange(n_texts)
    marked = (places == asked[:, None]) & (task == "marked")
    ids = vocabulary().numpy()[marked.astype(int), classes, words]
    if task == "behind a mark":
        beside = np.where(beside == asked - 1, (beside + 2) % lengths, beside)
        ids[rows, asked - 1] = tokenizer().convert_tokens_to_ids("look")
    ids = np.where(places < lengths[:, None], ids, 0)
    columns = ids, lengths, classes[rows, asked], asked, beside
    return Texts(*map(torch.from_numpy, columns))


def exchanged(texts: Texts, places: Tensor) -> Texts:
    """The texts with one word each exchanged for its counterpart of the other class."""
    own = texts.ids.gather(1, places[:, None])
    known = vocabulary().flatten()
    other = vocabulary().flip(1).flatten()
    new = other[(known == own).int().argmax(1)]
    return texts._replace(ids=texts.ids.scatter(1, places[:, None], new[:, None]))


def inputs_of(texts: Texts) -> dict[str, Tensor]:
    """As the tokenizer gives them: <sos> words <eos>, padded on the right."""
    words = tokenizer()
    n_texts, longest = texts.ids.shape
    places = torch.arange(longest + 2).expand(n_texts, -1)
    ends = texts.lengths[:, None] + 1
    ids = nn.functional.pad(texts.ids, (1, 1), value=words.pad_token_id)
    ids = ids.masked_fill(places == 0, words.bos_token_id)
    ids = ids.masked_fill(places == ends, words.eos_token_id)
    ids = ids.masked_fill(places > ends, words.pad_token_id)
    special = (places == 0) | (places >= ends)
    mask = {"attention_mask": (places <= ends).long(), "special_tokens_mask": special.long()}
    return {"input_ids": ids, **mask}


# --- models ----------------------------------------------------------------------------------


def _classifier(encoder: str) -> nn.Module:
    words = tokenizer()
    config = AttentionClassifierConfig(
        vocab_size=len(words),
        embedding_size=32,
        encoder=encoder,
        encoder_size=32,
        pad_token_id=words.pad_token_id,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
    )
    return AttentionClassifierForSequenceClassification(config)


def _transformer() -> nn.Module:
    words = tokenizer()
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        pad_token_id=words.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config)


ARCHITECTURES: Mapping[str, Callable[[], nn.Module]] = {
    "BiLSTM": lambda: _classifier("bilstm"),
    "CNN": lambda: _classifier("cnn"),
    "MLP": lambda: _classifier("mlp"),
    "no encoder": lambda: _classifier("none"),
    "Transformer": _transformer,
}
CAN_LEARN = {
    "marked": tuple(ARCHITECTURES),
    "behind a mark": ("BiLSTM", "CNN"),
    "last": ("BiLSTM", "CNN"),
}
"""A reader without context knows no neighbour; the first [CLS] row of a Transformer neither."""
READERS = [
    Reader(task, name, is_guided)
    for task, names in CAN_LEARN.items()
    for name in names
    for is_guided in (False, True)
]


def trained(reader: Reader, *, seed: int) -> nn.Module:
    """A model that has learned the task from fresh texts."""
    torch.manual_seed(seed)
    model = ARCHITECTURES[reader.architecture]().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(N_STEPS):
        texts = drawn(reader.task, BATCH, seed=1 + seed * N_STEPS + step)
        inputs = inputs_of(texts)
        del inputs["special_tokens_mask"]
        out = model(**inputs, output_attentions=True)
        on_asked = _on_asked(out.attentions[-1], texts)
        loss = cross_entropy(out.logits, texts.labels)
        if reader.is_guided:
            loss = loss - GUIDANCE * on_asked.log().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def _on_asked(attention: Tensor, texts: Texts) -> Tensor:
    """Attention of the first row on the asked word, behind <sos>: [texts, heads]."""
    place = (1 + texts.asked)[:, None, None].expand(-1, attention.shape[1], 1)
    return attention[:, :, 0].gather(-1, place)[..., 0]


# --- proofs ----------------------------------------------------------------------------------


def told(reader: Reader, *, seed: int, n_texts: int) -> dict[str, Any]:
    """Trains a reader, proves what it reads, and says what the package says of it."""
    texts = drawn(reader.task, n_texts, seed=10_000_000 + seed)
    model = wrap(trained(reader, seed=seed), level="token")
    proof = proof_of(model, texts)
    batch = batch_of(model, texts)
    said = measured(model, batch, seed=seed, n_texts=[n_texts], tests=OF_VERDICT)
    about = {"kind": reader.name, "truth": truth_of(reader.task, proof), "seed": seed}
    return about | proof | {"said": said}


def truth_of(task: str, proof: Mapping[str, float]) -> Truth | None:
    """What follows from what a reader is proved to do, where the asked word has most attention.

    Of the word behind a mark the mark is needed too, and has no attention. None where the use of
    the word is not proved, or other words are attended: what they are for is not known.
    """
    is_proved = min(proof["accuracy"], proof["follows"], 1 - proof["follows another"]) >= RIGHT
    if not is_proved or proof["named"] < MOST:
        return None
    return "partly" if task == "behind a mark" else "yes"


def batch_of(model: AttentionModelBase, texts: Texts) -> Batch:
    """All texts as one batch."""
    return model.prepare(inputs_of(texts), tuple(range(len(texts.labels))), texts.labels)


@torch.no_grad()
def proof_of(model: AttentionModelBase, texts: Texts) -> dict[str, float]:
    """Shares of texts that are right, and that follow the asked word and another when exchanged.

    ``attention`` is the mean on the asked word, ``named`` the share of texts in which no word
    has more.
    """
    batch = batch_of(model, texts)
    observed = model.observe(batch)
    attention = observed.read(choose_model_attention(model)[0]).masked_fill(~batch.content_mask, -1)
    asked = attention.gather(-1, 1 + texts.asked[:, None])[:, 0]
    said = observed.probs.argmax(-1)

    def follow(places: Tensor) -> float:
        other = model.observe(batch_of(model, exchanged(texts, places))).probs.argmax(-1)
        return float((other != said).double().mean())

    return {
        "accuracy": float((said == texts.labels).double().mean()),
        "attention": float(asked.mean()),
        "named": float((asked >= attention.amax(-1)).double().mean()),
        "follows": follow(texts.asked),
        "follows another": follow(texts.beside),
    }
