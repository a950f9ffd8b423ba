"""From words to sentences: the second level of a hierarchical attention network.

Yang et al. 2016, Section 2.2. A sentence is a run of words between special tokens, so
two separators in a row enclose none. All sentences of a batch stand under one another
as *rows*; rows of similar length are read in one pass, whatever text they belong to.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_attention_classifier import AttentionClassifierConfig
from .layers_attention_classifier import ATTENTIONS, ENCODERS, attend


class Sentences(NamedTuple):
    """Where the sentences of a batch are; all int64.

    Attributes:
        begin: position of each sentence's first word in the flattened batch, [rows].
        lengths: number of its words, [rows].
        text: number of its text in the batch, [rows].
        place: its number among the sentences of that text, [rows].
        counts: number of sentences of each text, [batch].
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
        """The words of some sentences.

        Returns:
            Their positions in the flattened batch, int64 [rows, words], and which of
            these are words rather than padding, bool [rows, words].
        """
        lengths = self.lengths[rows]
        columns = torch.arange(int(lengths.max()), device=rows.device)
        mask = columns < lengths[:, None]
        return (self.begin[rows, None] + columns).where(mask, 0), mask

    def mask(self) -> Tensor:
        """Which sentences are real, bool [batch, sentences]; at least one column."""
        n_sentences = max(1, int(self.counts.max()))
        return torch.arange(n_sentences, device=self.counts.device) < self.counts[:, None]

    def stack(self, rows: Tensor) -> Tensor:
        """Values of sentences [rows, ...] as [batch, sentences, ...], 0 for padding."""
        stacked = rows.new_zeros(*self.mask().shape, *rows.shape[1:])
        return stacked.index_put((self.text, self.place), rows)

    def spread(self, words: Tensor) -> Tensor:
        """Values of words [batch, keys] as a map [batch, sentences, keys].

        The map is 0 outside of the sentence.
        """
        n_keys = words.shape[1]
        keys = torch.arange(n_keys, device=words.device)
        begin = self.begin[:, None] % n_keys
        is_inside = (begin <= keys) & (keys < begin + self.lengths[:, None])
        return words[:, None] * self.stack(is_inside.to(words.dtype))


def find_sentences(content_mask: Tensor) -> Sentences:
    """The sentences of texts whose words are marked in ``content_mask``.

    Args:
        content_mask: bool [batch, keys].
    """
    is_first = content_mask & ~F.pad(content_mask, (1, 0))[:, :-1]
    is_last = content_mask & ~F.pad(content_mask, (0, 1))[:, 1:]
    begin = is_first.flatten().nonzero()[:, 0]
    end = is_last.flatten().nonzero()[:, 0]
    text = begin // content_mask.shape[1]
    counts = is_first.sum(-1)
    n_before = (counts.cumsum(0) - counts)[text]  # sentences of the texts before
    return Sentences(
        begin=begin,
        lengths=end - begin + 1,
        text=text,
        place=torch.arange(len(begin), device=begin.device) - n_before,
        counts=counts,
    )


class SentenceReader(nn.Module):
    """Encoder and attention of sentences, of the same kind as those of words."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.sentence_dropout)
        self.encoder = ENCODERS[config.encoder](config, config.hidden_size)
        self.attention = ATTENTIONS[config.attention](config)

    def encode(self, vectors: Tensor, sentence_mask: Tensor) -> Tensor:
        """States [batch, sentences, hidden] of vectors [batch, sentences, hidden]."""
        return self.encoder(self.dropout(vectors), sentence_mask.long())

    def attend(self, states: Tensor, sentence_mask: Tensor) -> Tensor:
        """Attention [batch, sentences]; all 0 for a text without sentences."""
        return attend(self.attention, states, sentence_mask)
