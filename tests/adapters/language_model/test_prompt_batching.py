"""Prompts side by side: work asks at once and ends together."""

import threading
from functools import partial

import pytest

from hf_attnprobe.adapters.language_model.prompt_batching import (
    JobCancelled,
    run_batched,
    run_jobs_together,
)


def test_work_side_by_side_asks_at_once_and_ends_together():
    asked, stopped = [], []

    def job(name, n):
        try:
            own = [run_batched([(name, k)] * k, answer) for k in range(n)]
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
    with pytest.raises(KeyError):
        run_jobs_together(jobs, lambda questions: {}["a"])
    assert stopped[0] == ("b", JobCancelled) and {*stopped[1:]} == {
        ("a", JobCancelled),
        ("b", JobCancelled),
    }
    assert not any("ThreadPool" in one.name for one in threading.enumerate())
