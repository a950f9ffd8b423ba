"""Second level of a hierarchical attention network, from sentences to a text.

Yang et al. 2016, Section 2.2. A sentence is a sequence of words between special tokens, so that
there is no sentence between two consecutive separators. All sentences in a batch are stacked as
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
    """Sentence positions in a batch, as int64 tensors.

    Attributes:
        starts: Index of each sentence's first word in the flattened batch, ``[rows]``.
        lengths: Word count in each sentence, ``[rows]``.
        text_index: Index of each sentence's text in the batch, ``[rows]``.
        index_in_text: Index of each sentence in its text, ``[rows]``.
        counts: Sentence count in each text, ``[batch]``.
    """

    starts: Tensor
    lengths: Tensor
    text_index: Tensor
    index_in_text: Tensor
    counts: Tensor

    def group_by_length(self) -> Iterator[Tensor]:
        """Yield groups of sentences with similar lengths, so that a group needs little padding.

        Lengths in a group differ by less than a factor of √2.

        Yields:
            Indices of the sentences in each group.
        """
        # A length class contains the lengths from one power of √2 to the next.
        length_class = (2 * self.lengths.double().log2()).floor()
        for value in length_class.unique().tolist():
            yield (length_class == value).nonzero()[:, 0]

    def locate_words(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Find the positions of all words in some sentences.

        Args:
            rows: Indices of the sentences.

        Returns:
            Word positions in the flattened batch, int64 ``[rows, words]``, and a mask that is False
            for padding, bool ``[rows, words]``.
        """
        lengths = self.lengths[rows]
        columns = torch.arange(int(lengths.max()), device=rows.device)
        mask = columns < lengths[:, None]
        positions = self.starts[rows, None] + columns
        return positions.where(mask, 0), mask

    def build_mask(self) -> Tensor:
        """Build a mask over the sentences of each text, which is False for padding.

        Returns:
            Mask, bool ``[batch, sentences]``, with at least one column, even if no text has a
            sentence.
        """
        n_sentences = max(1, int(self.counts.max()))
        return torch.arange(n_sentences, device=self.counts.device) < self.counts[:, None]

    def arrange_by_text(self, rows: Tensor) -> Tensor:
        """Convert a list of all sentences to a table with one row for each text.

        Args:
            rows: Values for all sentences in the batch, ``[rows, ...]``.

        Returns:
            Values ``[batch, sentences, ...]``; 0 for padding.
        """
        stacked = rows.new_zeros(*self.build_mask().shape, *rows.shape[1:])
        return stacked.index_put((self.text_index, self.index_in_text), rows)

    def arrange_by_sentence(self, words: Tensor) -> Tensor:
        """Convert word values to a table with one row for each sentence.

        For example, the values [1, 2, 3] become [[1, 2, 0], [0, 0, 3]] if the third word is in
        the second sentence.

        Args:
            words: Values for all words, ``[batch, keys]``.

        Returns:
            Values ``[batch, sentences, keys]``; 0 outside the sentence.
        """
        n_keys = words.shape[1]
        keys = torch.arange(n_keys, device=words.device)
        # Position of each sentence's first word in its own text.
        start = self.starts[:, None] % n_keys
        is_inside = (start <= keys) & (keys < start + self.lengths[:, None])
        return words[:, None] * self.arrange_by_text(is_inside.to(words.dtype))


def find_sentence_positions(content_mask: Tensor) -> Sentences:
    """Find the sentences in each text. Sentences are separated by special tokens.

    Args:
        content_mask: Mask that is True for words and False for special tokens and padding, bool
            ``[batch, keys]``. A sentence is a sequence of words without any such token.

    Returns:
        Sentence positions.
    """
    # A sentence starts at a word that follows a special token or the start of the sequence.
    is_first = content_mask & ~pad(content_mask, (1, 0))[:, :-1]
    is_last = content_mask & ~pad(content_mask, (0, 1))[:, 1:]
    starts = is_first.flatten().nonzero()[:, 0]
    ends = is_last.flatten().nonzero()[:, 0]
    text_index = starts // content_mask.shape[1]
    counts = is_first.sum(-1)
    # Number of sentences in all texts before the text that contains the sentence.
    n_in_earlier_texts = (counts.cumsum(0) - counts)[text_index]
    return Sentences(
        starts=starts,
        lengths=ends - starts + 1,
        text_index=text_index,
        index_in_text=torch.arange(len(starts), device=starts.device) - n_in_earlier_texts,
        counts=counts,
    )


class SentenceReader(nn.Module):
    """Sentence encoder and attention, with the same classes as for words.

    Args:
        config: Model configuration.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.sentence_dropout)
        self.encoder = ENCODER_CLASSES[config.encoder](config, config.hidden_size)
        self.attention = ATTENTION_CLASSES[config.attention](config)

    def encode(self, vectors: Tensor, sentence_mask: Tensor) -> Tensor:
        """Compute sentence states from sentence vectors.

        Args:
            vectors: Sentence vectors ``[batch, sentences, hidden]``.
            sentence_mask: False for padding, bool ``[batch, sentences]``.

        Returns:
            States ``[batch, sentences, hidden]``.
        """
        return self.encoder(self.dropout(vectors), sentence_mask.long())

    def attend(self, states: Tensor, sentence_mask: Tensor) -> Tensor:
        """Compute the attention weights of the sentences in each text.

        Args:
            states: States ``[batch, sentences, hidden]``.
            sentence_mask: False for padding, bool ``[batch, sentences]``.

        Returns:
            Attention ``[batch, sentences]``; 0 everywhere for a text without sentences.
        """
        return attend(self.attention, states, sentence_mask)
