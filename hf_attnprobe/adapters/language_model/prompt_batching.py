"""Run the forward passes of several prompts as one batch.

Tests work on one prompt at a time. To use a GPU well, the passes for several prompts are combined.
Each prompt gets a thread, in which its job (all tests on that prompt) runs until it calls
`run_batched`. Only one thread runs at a time, so results do not depend on thread timing. When all
jobs wait for results, their requests run as one padded forward pass, and every job receives its
results:

    thread 1   job 1 ──▶ requests ┐                            ┌─▶ results ──▶ job 1 continues
    thread 2   job 2 ──▶ requests ┼─▶ one padded forward pass ─┼─▶ results ──▶ job 2 continues
    thread 3   job 3 ──▶ requests ┘                            └─▶ results ──▶ job 3 continues

`run_jobs_together` starts the threads and runs the collected requests. A job that runs without
`run_jobs_together` can also call `run_batched`; its requests then run at once.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import ContextVar
from itertools import islice
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from hf_attnprobe.core.errors import AttnProbeError


T = TypeVar("T")
Request = TypeVar("Request")
Result = TypeVar("Result")
BatchFunction = Callable[[Sequence[Request]], Sequence[Result]]
"""Type of a function that runs a list of requests and returns their results in the same order."""


class Submission(NamedTuple):
    """How the current thread submits its requests to `run_jobs_together`.

    Attributes:
        run: Function with which `run_jobs_together` runs the requests of all jobs.
        submit: Function that submits requests and waits for their results.
    """

    run: BatchFunction[Any, Any]
    submit: BatchFunction[Any, Any]


_submission: ContextVar[Submission | None] = ContextVar("_submission", default=None)
"""Submission of the current thread; None if `run_jobs_together` has not started the thread."""


class JobCancelled(BaseException):
    """Signal that ends a job because another job has failed."""


def run_batched(
    requests: Sequence[Request], run: BatchFunction[Request, Result]
) -> Sequence[Result]:
    """Run forward passes in one batch with the forward passes of other jobs.

    A job runs all tests on one prompt, and requests forward passes. If it was not started by
    `run_jobs_together`, there are no other jobs, and its requests run immediately. Requests to
    another model than the model of the jobs run immediately too.

    Args:
        requests: The requests of this job.
        run: Function that runs requests, usually a method of the adapter of a model.

    Returns:
        One result per request.
    """
    submission = _submission.get()
    # Two bound methods are equal if they are the same method of the same object.
    if submission is None or submission.run != run:
        return run(requests)
    return submission.submit(requests)


def run_jobs_together(jobs: Sequence[Callable[[], T]], run: BatchFunction[Any, Any]) -> list[T]:
    """Run several jobs concurrently, and combine the requests that they submit into batches.

    Jobs submit requests by calling `run_batched`. Whenever all unfinished jobs wait for results,
    their requests run as one batch.

    Args:
        jobs: Functions without arguments.
        run: Function that runs a batch of requests.

    Returns:
        The jobs' results.

    Raises:
        AttnProbeError: If the operating system refuses to start a thread for every job.
        Exception: If a job or `run` fails. All other jobs are cancelled.

    Example:
        def job():
            return sum(run_batched([1, 2], double))

        def double(requests):
            return [2 * request for request in requests]

        run_jobs_together([job, job], double)  # [6, 6], with a single call of double
    """
    job_results: dict[PromptThread[T], T] = {}
    threads = [PromptThread(job, run) for job in jobs]
    # The pool waits for its threads at the end, so every thread is cancelled before, however the
    # block ends: also if a thread cannot be started, or on Ctrl-C between two starts.
    with ThreadPoolExecutor(len(jobs)) as pool, ExitStack() as stack:
        for thread in threads:
            stack.callback(thread.cancel)
            thread.start(pool)
        # The first reply, None, starts a job.
        replies: dict[PromptThread[T], Sequence[Any] | None] = dict.fromkeys(threads)
        while replies:
            requests_by_thread = {}
            for thread, reply in replies.items():
                requests = thread.resume(reply)
                if requests is None:
                    job_results[thread] = thread.future.result()
                else:
                    requests_by_thread[thread] = requests
            all_requests = [
                request for requests in requests_by_thread.values() for request in requests
            ]
            results: Iterator[Any] = iter(run(all_requests))
            replies = {
                thread: [*islice(results, len(requests))]
                for thread, requests in requests_by_thread.items()
            }
    return [job_results[thread] for thread in threads]


class PromptThread(Generic[T]):
    """Thread that runs one job, and pauses it whenever the job submits requests.

    Args:
        job: Function without arguments.
        run: Function that runs the requests of all jobs.

    Attributes:
        future: Holds the result or the error of the job, after the thread was started.
    """

    future: Future[T]

    def __init__(self, job: Callable[[], T], run: BatchFunction[Any, Any]) -> None:
        self._job = job
        self._submission = Submission(run, self._submit)
        self._replies: SimpleQueue[Any] = SimpleQueue()
        self._requests: SimpleQueue[Sequence[Any] | None] = SimpleQueue()

    def start(self, pool: ThreadPoolExecutor) -> None:
        """Start the thread, which waits for the first reply before it runs the job.

        Raises:
            AttnProbeError: If the operating system refuses to start a thread.
        """
        try:
            self.future = pool.submit(self._run, torch.is_grad_enabled())
        except RuntimeError as error:
            raise AttnProbeError(
                f"cannot start one thread for each prompt of a batch ({error}). Allow this user more "
                "processes (ulimit -u), or use --batch-size 1."
            ) from error

    def resume(self, reply: Sequence[Any] | None) -> Sequence[Any] | None:
        """Let the job continue until it submits its next requests or ends.

        Args:
            reply: Results of the previous requests; None to start the job.

        Returns:
            The next requests, or None if the job has ended.
        """
        self._replies.put(reply)
        return self._requests.get()

    def cancel(self) -> None:
        """End the job as soon as it waits for a reply."""
        self._replies.put(JobCancelled)

    def _run(self, with_gradients: bool) -> T:
        """Run the job in its thread, with or without gradients as in the calling thread."""
        self._wait_for_reply()
        _submission.set(self._submission)
        try:
            with torch.set_grad_enabled(with_gradients):
                return self._job()
        finally:
            self._requests.put(None)

    def _submit(self, requests: Sequence[Any]) -> Any:
        """Submit requests and wait for their results."""
        self._requests.put(requests)
        return self._wait_for_reply()

    def _wait_for_reply(self) -> Any:
        """Wait until the job may continue, and return the reply."""
        reply = self._replies.get()
        if reply is JobCancelled:
            raise JobCancelled
        return reply
