"""The work of tests, counted while they run: edited texts, floating-point operations."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hf_attnprobe.attention_model import AttentionModelBase
from hf_attnprobe.auditing.estimates.estimate import in_flops
from hf_attnprobe.auditing.estimates.fitted import Fitted
from hf_attnprobe.auditing.progress import Step


EDITING = ("replay", "replay_outputs", "replay_masked", "erase_inputs")
"""Methods of an adapter that run edited texts, and return [copies, batch, classes]."""


@dataclass
class Counts:
    """What was counted so far.

    Attributes:
        edited: texts with an edit that the model, or what is above the edit, was run on.
        flops: floating-point operations of matrix products, attention and convolutions.
    """

    edited: int = 0
    flops: int = 0


@contextmanager
def counting(adapter: AttentionModelBase) -> Iterator[Callable[[], Counts]]:
    """A function that tells what was counted since it was last called.

    FLOPs by PyTorch's counter: two per multiplication and addition, elementwise
    operations left out.
    """
    edited, seen = [0], Counts()

    def wrapped(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(*args: Any, **kwargs: Any) -> Tensor:
            result = method(*args, **kwargs)
            edited[0] += result.shape[0] * result.shape[1]
            return result

        return counted

    names = [name for name in EDITING if callable(getattr(adapter, name, None))]
    with FlopCounterMode(display=False) as counter:

        def since() -> Counts:
            now = Counts(edited[0], counter.get_total_flops())
            new = Counts(now.edited - seen.edited, now.flops - seen.flops)
            seen.edited, seen.flops = now.edited, now.flops
            return new

        for name in names:
            setattr(adapter, name, wrapped(getattr(adapter, name)))
        try:
            yield since
        finally:
            for name in names:
                delattr(adapter, name)


def work_in_words(
    adapter: AttentionModelBase,
    run: Callable[[Callable[[], object]], object],
    measured: Sequence[Step],
    to_come: Sequence[Step],
) -> str:
    """What steps to come are in edited texts and FLOPs, by counting a few of them.

    Args:
        run: runs the steps ``measured``, and calls its argument after each.
    """
    edited, flops, steps = Fitted(), Fitted(), iter(measured)
    with counting(adapter) as since:

        def tick() -> None:
            step, new = next(steps), since()
            edited.add(step, new.edited)
            flops.add(step, new.flops)

        run(tick)
    total = in_flops(flops.total(to_come))
    return f", {edited.total(to_come):,.0f} edited texts, {total}"
