"""The memory of batches, from a few texts that were really run."""

from collections.abc import Callable, Sequence

import torch

from hf_attnprobe.auditing.estimates.fitted import Fitted, as_batch
from hf_attnprobe.hardware.memory import PeakMemory
from hf_attnprobe.inference.batching import by_length
from hf_attnprobe.inference.encoding import Text


SPARE = 1.25
"""Times the memory that was measured: operations need some inside that nobody sees."""


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
        constant, each, linear, squared = found.weights(("batch", True))
        n_bytes = constant + each + linear * n_tokens + squared * n_tokens**2
        return int(SPARE * n_bytes)

    return size
