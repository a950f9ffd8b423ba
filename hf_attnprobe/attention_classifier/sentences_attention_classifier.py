"""From words to sentences: the second level of a hierarchical attention network (Yang et al. 2016, Section 2.2).

A sentence is a run of words between special tokens, so two separators in a row enclose none. All sentences of a batch
stand under one another as *rows*, and those of about one length are read in one pass, whatever text they are of.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers_attention_classifier import ATTENTIONS, ENCODERS, attend


class Sentences(NamedTuple):
    """Where the sentences of a batch are.

    begin: first word of each sentence, a place in the flattened batch, [rows]. lengths: its number of words, [rows].
    text, place: its text, and which of that text's sentences it is, [rows]. counts: sentences of each text, [batch].
    """

    begin: Tensor
    lengths: Tensor
    text: Tensor
    place: Tensor
    counts: Tensor

    def groups(self) -> Iterator[Tensor]:
        """Rows of sentences whose lengths differ by less than a factor of √2."""
        size = (2 * self.lengths.double().log2()).floor()
        for value in size.unique().tolist():
            yield (size == value).nonzero()[:, 0]

    def words(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the words of some sentences in the flattened batch, and which of them are words, [rows, columns]."""
        lengths = self.lengths[rows]
        columns = torch.arange(int(lengths.max()), device=rows.device)
        mask = columns < lengths[:, None]
        return (self.begin[rows, None] + columns).where(mask, 0), mask

    def mask(self) -> Tensor:
        """Which sentences are real, bool [batch, sentences]; at least one column."""
        places = torch.arange(max(1, int(self.counts.max())), device=self.counts.device)
        return places < self.counts[:, None]

    def stack(self, rows: Tensor) -> Tensor:
        """Values of sentences [rows, ...] as [batch, sentences, ...], 0 for padding."""
        stacked = rows.new_zeros(*self.mask().shape, *rows.shape[1:])
        return stacked.index_put((self.text, self.place), rows)

    def spread(self, words: Tensor) -> Tensor:
        """Values of words [batch, keys] as a map [batch, sentences, keys], 0 outside of the sentence."""
        n_keys = words.shape[1]
        keys, begin = (
            torch.arange(n_keys, device=words.device),
            self.begin[:, None] % n_keys,
        )
        inside = (begin <= keys) & (keys < begin + self.lengths[:, None])
        return words[:, None] * self.stack(inside.to(words.dtype))


def find_sentences(content_mask: Tensor) -> Sentences:
    """The sentences of texts whose words are marked in ``content_mask``, bool [batch, keys]."""
    is_first = content_mask & ~F.pad(content_mask, (1, 0))[:, :-1]
    is_last = content_mask & ~F.pad(content_mask, (0, 1))[:, 1:]
    begin, end = (marked.flatten().nonzero()[:, 0] for marked in (is_first, is_last))
    text, counts = begin // content_mask.shape[1], is_first.sum(-1)
    place = (
        torch.arange(len(begin), device=begin.device)
        - (counts.cumsum(0) - counts)[text]
    )
    return Sentences(begin, end - begin + 1, text, place, counts)


class SentenceReader(nn.Module):
    """Encoder and attention of sentences, of the same kind as those of words; its input are sentence vectors."""

    def __init__(self, config):
        super().__init__()
        self.dropout = nn.Dropout(config.sentence_dropout)
        self.encoder = ENCODERS[config.encoder](config, config.hidden_size)
        self.attention = ATTENTIONS[config.attention](config)

    def encode(self, vectors: Tensor, sentence_mask: Tensor) -> Tensor:
        """States [batch, sentences, hidden] of sentence vectors [batch, sentences, hidden]."""
        return self.encoder(self.dropout(vectors), sentence_mask.long())

    def attend(self, states: Tensor, sentence_mask: Tensor) -> Tensor:
        """Attention [batch, sentences]; all 0 for a text without sentences."""
        return attend(self.attention, states, sentence_mask)
