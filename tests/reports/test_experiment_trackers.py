"""An audit in the trackers of Accelerate, and in any function that logs a dictionary."""

import dataclasses

import pytest
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, on_main_process

from hf_attnprobe import audit
from tests.helpers.error_messages import refused


class ListTracker(GeneralTracker):
    """A tracker as the documentation of Accelerate describes it; it keeps what is logged."""

    name = "list"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.logged = []

    @property
    def tracker(self):
        return self.logged

    @on_main_process
    def log(self, values, step=None, **kwargs):
        self.logged.append((values, step))


@pytest.fixture(scope="module")
def report(checkpoint, reviews):
    return audit(checkpoint, reviews["test"].select(range(12)), ["scale", "permutation"])


def questions(report):
    """Every number that a reader sees, from the findings alone."""
    numbers = {}
    for found in report.findings:
        if found.rule == "accuracy":  # of the model, and beyond the most frequent class
            continue
        key = f"attention_faithfulness/{found.rule}"
        numbers[key] = found.value
        if found.ci95 is not None:
            numbers[f"{key}_low"], numbers[f"{key}_high"] = found.ci95
        numbers[f"{key}_n"] = found.n
    return {name: value for name, value in numbers.items() if value == value}


def test_any_function_gets_the_number_of_every_question(report):
    logged = []
    report.log_to(logged.append)
    assert logged == [questions(report)]
    parts = ("faithfulness", "importance", "effect")
    assert {f"attention_faithfulness/{name}" for name in parts} <= logged[0].keys()


def test_the_trackers_of_an_accelerator_get_the_numbers(report):
    tracker = ListTracker()
    accelerator = Accelerator(log_with=tracker, cpu=True)
    accelerator.init_trackers("attention")
    report.log_to(accelerator)
    report.log_to(accelerator, step=7)
    report.log_to(tracker, step=8)
    report.log_to(accelerator.log, step=9)
    assert tracker.logged == [(questions(report), step) for step in (None, 7, 8, 9)]


def test_no_number_of_few_texts_is_logged(report, caplog):
    logged = []
    few = [dataclasses.replace(found, n=9) for found in report.findings]
    dataclasses.replace(report, findings=tuple(few)).log_to(logged.append)
    assert logged == [{}]
    assert "no question was measured on at least 10 texts" in caplog.text


def test_a_tracker_that_would_log_nothing_is_refused(report):
    """Accelerate leaves out a tracker whose package is missing, or that was not started."""
    refused("has no active tracker", report.log_to, Accelerator(log_with=ListTracker(), cpu=True))
    refused("got 'wandb'", report.log_to, "wandb")
    refused("init_trackers", report.log_to, "trackio")
