"""Prompts side by side: work asks at once and ends together."""

import threading
from functools import partial

import pytest

from hf_attnprobe import AttnProbeError
from hf_attnprobe.adapters.language_model.prompt_batching import (
    JobCancelled,
    run_batched,
    run_jobs_together,
)


def test_work_side_by_side_asks_at_once_and_ends_together():
    asked, stopped = [], []

    def job(name, n, run=None):
        try:
            own = [run_batched([(name, k)] * k, run or answer) for k in range(n)]
        except BaseException as error:
            stopped.append((name, type(error)))
            raise
        return own if n != 3 else 1 / 0

    def answer(questions):
        asked.append([*questions])
        return [name * k for name, k in questions]

    jobs = [partial(job, "a", 2), partial(job, "b", 4)]
    assert run_jobs_together(jobs, answer) == [[[], ["a"]], [[], ["b"], ["bb"] * 2, ["bbb"] * 3]]
    assert next(filter(None, asked)) == [("a", 1), ("b", 1)] and len(asked) == 5
    with pytest.raises(ZeroDivisionError):
        run_jobs_together([*jobs, partial(job, "c", 3)], answer)

    def fail(questions):
        raise KeyError

    with pytest.raises(KeyError):
        run_jobs_together([partial(job, run=fail) for job in jobs], fail)
    assert stopped[0] == ("b", JobCancelled) and {*stopped[1:]} == {
        ("a", JobCancelled),
        ("b", JobCancelled),
    }
    assert not any("ThreadPool" in one.name for one in threading.enumerate())


def run_in_seconds(function, seconds=20):
    """Run a function in a thread, and return what it raised; fail if it hangs."""
    errors = []

    def run():
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "the jobs hang"
    return errors


@pytest.mark.parametrize("n_started", [0, 1, 3])
@pytest.mark.parametrize("interrupt", [RuntimeError("can't start new thread"), KeyboardInterrupt()])
def test_a_thread_that_cannot_start_ends_the_run(n_started, interrupt, monkeypatch):
    """As with a limit of threads in a container, or Ctrl-C between the starts of two threads."""
    started, start = [], threading.Thread.start

    def start_some(thread):
        if "ThreadPool" in thread.name:
            if len(started) == n_started:
                raise interrupt
            started.append(thread)
        start(thread)

    ran = []
    jobs = [partial(ran.append, name) for name in "abcde"]
    monkeypatch.setattr(threading.Thread, "start", start_some)
    [error] = run_in_seconds(lambda: run_jobs_together(jobs, list))
    assert not ran
    if isinstance(interrupt, RuntimeError):
        assert isinstance(error, AttnProbeError) and "--batch-size 1" in str(error)
    else:
        assert error is interrupt
    for thread in started:
        thread.join(5)
        assert not thread.is_alive()


class Doubler:
    """A stand-in for an adapter: its answers show which object has answered."""

    def __init__(self, name):
        self.name = name

    def run_passes(self, requests):
        return [(self.name, request) for request in requests]


def test_another_models_requests_within_a_job_are_answered_by_it():
    """A test may compare the model with a proxy, whose passes are no passes of the model."""
    first, second = Doubler("first"), Doubler("second")

    def job(request):
        answers = [run_batched([request], model.run_passes) for model in (first, second, first)]
        return [answer for [answer] in answers]

    results = run_jobs_together([partial(job, "a"), partial(job, "b")], first.run_passes)
    assert results == [[("first", name), ("second", name), ("first", name)] for name in ("a", "b")]
