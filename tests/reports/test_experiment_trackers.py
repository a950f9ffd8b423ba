"""An audit in a tracker, by what each tracker documents; stand-ins record what they are told."""

import dataclasses
import sys
from types import SimpleNamespace

import pytest

from hf_attnprobe import audit
from tests.helpers.error_messages import refused


class Recorder:
    """Records every call by name; a run of a tracker, which ``with`` closes."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, given, named))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.append(("closed", (), {}))

    def told(self, name):
        return [(given, named) for called, given, named in self.calls if called == name]


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


def test_tensorboard_shows_scalars_and_the_report(report, monkeypatch):
    writer = Recorder()
    stand_in = SimpleNamespace(SummaryWriter=lambda folder: writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stand_in)
    report.log_to("tensorboard", step=7)
    scalars = {name: value for (name, value, _), _ in writer.told("add_scalar")}
    assert scalars == questions(report)
    assert {step for (*_, step), _ in writer.told("add_scalar")} == {7}
    (((_, text, _), _),) = writer.told("add_text")
    assert text == report.to_markdown()
    assert writer.told("closed")


@pytest.mark.parametrize("is_open", [True, False])
def test_wandb_gets_the_page_in_the_run_that_is_open(report, monkeypatch, is_open):
    run = Recorder()
    started = []
    stand_in = SimpleNamespace(
        run=run if is_open else None,
        init=lambda: started.append(run) or run,
        Html=lambda page: ("page", page),
    )
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    report.log_to("wandb")
    (((logged,), named),) = run.told("log")
    page = logged.pop("attention_faithfulness/page")
    assert page == ("page", report.to_html())
    assert logged == questions(report)
    assert named == {"step": None}
    assert bool(started) == bool(run.told("closed")) == (not is_open)  # only its own run is ended


@pytest.mark.parametrize("is_open", [True, False])
def test_mlflow_gets_the_page_as_an_artefact(report, monkeypatch, is_open):
    mlflow, run = Recorder(), Recorder()
    mlflow.active_run = lambda: run if is_open else None
    mlflow.start_run = lambda: run
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    report.log_to("mlflow", step=3)
    assert mlflow.told("log_metrics") == [((questions(report),), {"step": 3})]
    assert mlflow.told("log_text") == [((report.to_html(), "attention_faithfulness.html"), {})]
    assert bool(run.told("closed")) == (not is_open)


def test_no_number_of_few_texts_is_logged(report):
    logged = []
    few = [dataclasses.replace(found, n=9) for found in report.findings]
    dataclasses.replace(report, findings=tuple(few)).log_to(logged.append)
    assert logged == [{}]


def test_a_tracker_that_is_not_there_says_so(report, monkeypatch):
    refused("unknown tracker 'wandbb'; did you mean wandb", report.log_to, "wandbb")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    refused("needs the package mlflow", report.log_to, "mlflow")
