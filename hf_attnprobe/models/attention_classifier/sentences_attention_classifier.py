"""Second level of a hierarchical attention network, from sentences to a text.

Yang et al. 2016, Section 2.2. A sentence is a sequence of words between special tokens, so that
there is no sentence between two consecutive separators. All sentences of a batch are stacked as
*rows*. Rows of similar length are read in one pass, also if they belong to different texts.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .configuration_attention_classifier import AttentionClassifierConfig
from .layers_attention_classifier import ATTENTION_CLASSES, ENCODER_CLASSES, attend


class Sentences(NamedTuple):
    """Positions of the sentences of a batch, int64 tensors.

    Attributes:
        starts: Position of each sentence's first word in the flattened batch, ``[rows]``.
        lengths: Number of words of each sentence, ``[rows]``.
        text_index: Index of each sentence's text in the batch, ``[rows]``.
        index_in_text: Index of each sentence in its text, ``[rows]``.
        counts: Number of sentences of each text, ``[batch]``.
    """

    starts: Tensor
    lengths: Tensor
    text_index: Tensor
    index_in_text: Tensor
    counts: Tensor

    def group_by_length(self) -> Iterator[Tensor]:
        """Yield the rows of sentences whose lengths differ by less than a factor of √2."""
        length_class = (2 * self.lengths.double().log2()).floor()
        for value in length_class.unique().tolist():
            yield (length_class == value).nonzero()[:, 0]

    def locate_words(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Locate the words of some sentences.

        Args:
            rows: Indices of the sentences.

        Returns:
            Positions of the words in the flattened batch, int64 ``[rows, words]``, and a mask of
            these positions without padding, bool ``[rows, words]``.
        """
        lengths = self.lengths[rows]
        columns = torch.arange(int(lengths.max()), device=rows.device)
        mask = columns < lengths[:, None]
        return (self.starts[rows, None] + columns).where(mask, 0), mask

    def build_mask(self) -> Tensor:
        """Return a mask of the sentences of each text, bool ``[batch, sentences]``.

        It has at least one column, also if no text has a sentence.
        """
        n_sentences = max(1, int(self.counts.max()))
        return torch.arange(n_sentences, device=self.counts.device) < self.counts[:, None]

    def stack(self, rows: Tensor) -> Tensor:
        """Arrange values of sentences by text.

        Args:
            rows: Values of all sentences, ``[rows, ...]``.

        Returns:
            Values ``[batch, sentences, ...]``; 0 for padding.
        """
        stacked = rows.new_zeros(*self.build_mask().shape, *rows.shape[1:])
        return stacked.index_put((self.text_index, self.index_in_text), rows)

    def spread(self, words: Tensor) -> Tensor:
        """Arrange values of words by sentence.

        Args:
            words: Values of words, ``[batch, keys]``.

        Returns:
            Values ``[batch, sentences, keys]``; 0 outside of the sentence.
        """
        n_keys = words.shape[1]
        keys = torch.arange(n_keys, device=words.device)
        start = self.starts[:, None] % n_keys
        is_inside = (start <= keys) & (keys < start + self.lengths[:, None])
        return words[:, None] * self.stack(is_inside.to(words.dtype))


def find_sentence_positions(content_mask: Tensor) -> Sentences:
    """Find the sentences of each text.

    Args:
        content_mask: Word mask, bool ``[batch, keys]``. A sentence is a run of words.

    Returns:
        Sentence positions.
    """
    is_first = content_mask & ~pad(content_mask, (1, 0))[:, :-1]
    is_last = content_mask & ~pad(content_mask, (0, 1))[:, 1:]
    starts = is_first.flatten().nonzero()[:, 0]
    ends = is_last.flatten().nonzero()[:, 0]
    text_index = starts // content_mask.shape[1]
    counts = is_first.sum(-1)
    n_in_earlier_texts = (counts.cumsum(0) - counts)[text_index]
    return Sentences(
        starts=starts,
        lengths=ends - starts + 1,
        text_index=text_index,
        index_in_text=torch.arange(len(starts), device=starts.device) - n_in_earlier_texts,
        counts=counts,
    )


class SentenceReader(nn.Module):
    """Encoder and attention of sentences, with the same classes as those of words.

    Args:
        config: Model configuration.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.sentence_dropout)
        self.encoder = ENCODER_CLASSES[config.encoder](config, config.hidden_size)
        self.attention = ATTENTION_CLASSES[config.attention](config)

    def encode(self, vectors: Tensor, sentence_mask: Tensor) -> Tensor:
        """Compute the states of sentences.

        Args:
            vectors: Sentence vectors ``[batch, sentences, hidden]``.
            sentence_mask: Sentence mask, bool ``[batch, sentences]``.

        Returns:
            States ``[batch, sentences, hidden]``.
        """
        return self.encoder(self.dropout(vectors), sentence_mask.long())

    def attend(self, states: Tensor, sentence_mask: Tensor) -> Tensor:
        """Compute the attention over sentences.

        Args:
            states: States ``[batch, sentences, hidden]``.
            sentence_mask: Sentence mask, bool ``[batch, sentences]``.

        Returns:
            Attention ``[batch, sentences]``; 0 everywhere for a text without sentences.
        """
        return attend(self.attention, states, sentence_mask)
