"""Texts that kill: found by halves in children, and set aside.

When a worker dies, the texts it had begun are suspected. Whoever comes next tries them
in a child first, whose result is dropped, so that what is innocent is computed in the
batches of the plan, to the same bytes. What kills its worker twice is halved; a single
text that does is set aside. That a worker was killed from outside proves nothing.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

from hf_attnprobe.inference.encoding import Text


DEATHS = 2
"""How often texts must kill before they are held guilty."""
TOGETHER = 20
"""How often worker and child must die together at the same texts, for the same.

Of 200 kills at random three workers had two such pairs at one batch: two prove nothing.
"""
REASON = f"killed a worker {DEATHS} times"


@dataclass
class Trial:
    """What is known of the texts of one partition, and how they are tried.

    Attributes:
        died: the texts that dead workers had begun, once for each death.
        tried: the same of workers that died with the child they tried them in.
        survives: tries texts in a child; whether it lived.
    """

    died: Collection[frozenset[int]]
    tried: Collection[frozenset[int]]
    survives: Callable[[Sequence[Text]], bool]
    aside: dict[int, str] = field(default_factory=dict)

    def pieces(self, batch: Sequence[Text]) -> list[list[Text]]:
        """The batch as it can be run: whole, or without those that kill, in parts."""
        ids = frozenset(text.example_id for text in batch)
        if not any(ids & suspects for suspects in self.died):
            return [list(batch)]
        return self._harmless(list(batch))

    def _harmless(self, texts: list[Text]) -> list[list[Text]]:
        ids = frozenset(text.example_id for text in texts)
        together = sum(ids == others for others in self.tried)
        for _ in range(DEATHS if together < TOGETHER else 0):
            if self.survives(texts):
                return [texts]
        if len(texts) == 1:
            self.aside[texts[0].example_id] = REASON
            return []
        middle = len(texts) // 2
        return self._harmless(texts[:middle]) + self._harmless(texts[middle:])


def lives_through(work: Callable[[], object]) -> bool:
    """Does the work in a child of this process; False where a signal killed the child.

    An error is not death: whoever does the work then meets it too. Only where a process
    can be copied: on Linux, before any GPU is used.
    """
    child = multiprocessing.get_context("fork").Process(target=_quietly, args=(work,))
    child.start()
    child.join()
    return child.exitcode is not None and child.exitcode >= 0


def lives_anew(target: Callable[..., object], *arguments: object) -> bool:
    """The same in a fresh process, where a copy cannot use the GPU."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=target, args=arguments)
    child.start()
    child.join()
    return child.exitcode is not None and child.exitcode >= 0


def can_be_copied(device: torch.device) -> bool:
    """Whether a child may be a copy of this process."""
    return sys.platform == "linux" and device.type == "cpu"


def _quietly(work: Callable[[], object]) -> None:
    try:
        work()
    except Exception:
        os._exit(1)
    os._exit(0)
