"""How large a batch may be, learned from those that did not fit."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hf_attnprobe.inference.encoding import Text


@dataclass
class Room:
    """What is known of the memory that there really is.

    Attributes:
        size: padded tokens of a batch that may fit; more did not.
    """

    size: float = math.inf

    def did_not_fit(self, halves: Sequence[Sequence[Text]]) -> None:
        """A batch was split into these, so that batches as large are not tried again."""
        self.size = min(self.size, max(map(_size, halves)))

    def parts(self, texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
        """The texts in batches that are not known to be too large, in their order."""
        longest = max(text.n_tokens for text in texts)
        n = max(1, int(min(self.size / longest, len(texts))))
        for start in range(0, len(texts), n):
            yield texts[start : start + n]


def _size(texts: Sequence[Text]) -> int:
    return len(texts) * max(text.n_tokens for text in texts)
