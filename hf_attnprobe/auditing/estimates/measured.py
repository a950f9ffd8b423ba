"""What a few texts took that were really run: the memory of batches, and all else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd
import torch

from hf_attnprobe.auditing.estimates.fitted import Fitted, Step
from hf_attnprobe.hardware.memory import PeakMemory
from hf_attnprobe.inference.batching import by_length
from hf_attnprobe.inference.encoding import Text


SPARE = 1.25
"""Times the memory that was measured: operations need some inside that nobody sees."""


def as_batch(texts: Sequence[Text]) -> Step:
    """A batch as a single step."""
    longest = max(text.n_tokens for text in texts)
    return Step("batch", "first", len(texts), longest)


def samples_of(texts: Sequence[Text]) -> list[Sequence[Text]]:
    """A short text, a long one, two of middle length: sizes that tell a curve."""
    texts = by_length(texts)
    middle = len(texts) // 2
    samples = [texts[:1], texts[middle : middle + 2], texts[-1:]]
    different = {(len(some), some[-1].n_tokens): some for some in samples}
    return list(different.values())


def measured_memory(
    texts: Sequence[Text],
    run: Callable[[Sequence[Text]], object],
    device: torch.device,
) -> Callable[[int], int]:
    """Bytes that a text of so many tokens takes in a batch, with some to spare.

    Where a batch takes a constant besides, each of its texts is said to.

    Args:
        texts: those that batches will be made of.
        run: runs a batch.
        device: where it runs.
    """
    found = Fitted()
    for some in samples_of(texts):
        with PeakMemory(device) as memory:
            run(some)
        found.add(as_batch(some), memory.peak)

    def size(n_tokens: int) -> int:
        constant, each, linear, squared = found.weights(("batch", "first"))
        n_bytes = constant + each + linear * n_tokens + squared * n_tokens**2
        return int(SPARE * n_bytes)

    return size


@dataclass(frozen=True)
class Calibration:
    """What steps take, fitted to those that were run.

    Attributes:
        seconds, edited, flops: by step.
        memory: bytes, of the one step that stands for a batch.
        forward_flops: of one plain forward pass, by batch.
        rows: of the samples that were run.
        texts: ids of the texts in them.
    """

    seconds: Fitted = field(default_factory=Fitted)
    edited: Fitted = field(default_factory=Fitted)
    flops: Fitted = field(default_factory=Fitted)
    memory: Fitted = field(default_factory=Fitted)
    forward_flops: Fitted = field(default_factory=Fitted)
    rows: list[pd.DataFrame] = field(default_factory=list)
    texts: set[int] = field(default_factory=set)

    def memory_of(self, texts: Sequence[Text]) -> int:
        """Bytes that a batch of these texts takes, with some to spare."""
        return int(SPARE * self.memory.total([as_batch(texts)]))
