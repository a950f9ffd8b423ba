"""Work on several prompts side by side, whose passes become one.

A test knows one prompt. So each prompt has a thread of its own, of which one runs at a time, up to
where it asks for passes. When all have asked, what they asked for is answered at once. Nothing
depends on which thread is faster, since none runs beside another.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch


T = TypeVar("T")
Request = TypeVar("Q")
Answer = TypeVar("A")
BatchFunction = Callable[[Sequence[Request]], Sequence[Answer]]
"""Questions -> an answer to each."""

_asking: ContextVar[BatchFunction[Any, Any] | None] = ContextVar("_asking", default=None)


class JobCancelled(BaseException):
    """Ends a job because another one failed."""


def run_batched(questions: Sequence[Request], answer: BatchFunction[Request, Answer]) -> Sequence[Answer]:
    """The answers, together with those of the jobs beside; by ``answer`` where there are none."""
    together = _asking.get() or answer
    return together(questions)


def run_jobs_together(jobs: Sequence[Callable[[], T]], answer: BatchFunction[Any, Any]) -> list[T]:
    """What the jobs return, each of which may :func:`ask`.

    Args:
        answer: answers the questions of all jobs that go on, at once.

    Raises:
        Exception: of the first job that fails, or of ``answer``; the others are stopped.
    """
    found: dict[PromptThread[T], T] = {}
    with ThreadPoolExecutor(len(jobs)) as pool:
        started = [PromptThread(job, pool) for job in jobs]
        try:
            replies: dict[PromptThread[T], Sequence[Any] | None] = dict.fromkeys(started)
            while replies:
                asked = {}
                for job, reply in replies.items():
                    questions = job.go_on(reply)
                    if questions is None:
                        found[job] = job.ended.result()
                    else:
                        asked[job] = questions
                every = [one for some in asked.values() for one in some]
                answers: Iterator[Any] = iter(answer(every))
                replies = {
                    job: [*islice(answers, len(questions))] for job, questions in asked.items()
                }
        finally:
            for job in started:
                job.stop()
    return [found[job] for job in started]


class PromptThread(Generic[T]):
    """Work in a thread that waits for its turn.

    Attributes:
        ended: holds what the work returns or raises.
    """

    def __init__(self, work: Callable[[], T], pool: ThreadPoolExecutor) -> None:
        self._replies: SimpleQueue[Any] = SimpleQueue()
        self._questions: SimpleQueue[Sequence[Any] | None] = SimpleQueue()
        self.ended = pool.submit(self._run, work, torch.is_grad_enabled())

    def go_on(self, reply: Sequence[Any] | None) -> Sequence[Any] | None:
        """Works until there are questions, which are returned; None: it has ended."""
        self._replies.put(reply)
        return self._questions.get()

    def stop(self) -> None:
        """Ends the work where it asks next."""
        self._replies.put(JobCancelled)

    def _run(self, work: Callable[[], T], with_gradients: bool) -> T:
        self._wait()
        _asking.set(self._ask)
        try:
            with torch.set_grad_enabled(with_gradients):
                return work()
        finally:
            self._questions.put(None)

    def _ask(self, questions: Sequence[Any]) -> Any:
        self._questions.put(questions)
        return self._wait()

    def _wait(self) -> Any:
        reply = self._replies.get()
        if reply is JobCancelled:
            raise JobCancelled
        return reply
