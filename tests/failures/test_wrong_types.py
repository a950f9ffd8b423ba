"""Public functions with arguments of wrong types: one line, before anything is loaded or written."""

import inspect

import pytest
import torch

from hf_attnprobe import (
    audit,
    compare,
    compare_audits,
    demo,
    evaluate_scores,
    explain,
    explain_html,
    explain_text,
    find_detection_limit,
    fine_tune,
    join_shares,
    list_changed_answers,
    read_audit,
    read_retraining,
    read_rows,
    render_report,
    retrain,
    study,
    train,
    train_classifier,
    transfer,
    write_card,
)
from tests.helpers.error_messages import refusal, refuses


WRONG_VALUES = (3, 2.5, b"bytes", object(), {"a": 1}, [None], torch.zeros(2), ValueError, len)
"""Values that are neither a path nor a tokenizer, options or a report."""
FUNCTIONS = (
    read_audit,
    read_retraining,
    read_rows,
    compare_audits,
    join_shares,
    render_report,
    list_changed_answers,
    audit,
    evaluate_scores,
    compare,
    find_detection_limit,
    retrain,
    transfer,
    train,
    train_classifier,
    fine_tune,
    study,
    demo,
    write_card,
    explain,
    explain_text,
    explain_html,
)
"""Public functions that run a command or read its results."""


def make_valid_value(name, folder):
    """A value of the right type for an argument; it need not name anything that exists."""
    texts = [{"text": "a film", "label": 0}]
    values = {
        "dataset": texts,
        "train": texts,
        "validation": texts,
        "versions": ["int8"],
        "tokens": ["a"],
        "models": ["a", "b"],
        "scores": [[1.0]],
        "folders": [str(folder)],
        "config": None,
        "study": "none",
        "comparison": None,
        "folder": str(folder),
        "text": "a",
        "context": "a",
        "question": "a",
        "guide": str(folder),
        "tokenizer": None,
    }
    return values.get(name, str(folder))


def list_cases():
    """Every function of FUNCTIONS with each of its arguments."""
    for function in FUNCTIONS:
        for argument in inspect.signature(function).parameters.values():
            if argument.kind is not inspect.Parameter.VAR_KEYWORD:
                yield pytest.param(
                    function, argument.name, id=f"{function.__name__}-{argument.name}"
                )


@pytest.mark.parametrize(("function", "argument"), [*list_cases()])
def test_a_wrong_type_is_one_line(function, argument, tmp_path):
    parameters = inspect.signature(function).parameters
    missing_folder = tmp_path / "nowhere"
    for wrong_value in WRONG_VALUES:
        # A study may be any function.
        if argument == "study" and callable(wrong_value):
            continue
        arguments = {
            name: make_valid_value(name, missing_folder)
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        }
        arguments |= {argument: wrong_value}
        if "output_dir" in parameters and argument != "output_dir":
            arguments["output_dir"] = tmp_path / "out"
        refusal(function, **arguments)
        assert not [*tmp_path.iterdir()], wrong_value


@pytest.mark.parametrize("wrong_value", WRONG_VALUES)
def test_a_tokenizer_is_one(wrong_value, models):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(models["bert"])
    with refuses("expected a Transformers tokenizer"):
        audit(model, ["a film"], tokenizer=wrong_value, progress=False)


def test_what_is_wrong_is_said_with_what_is_expected():
    with refuses("expected AuditOptions for options of audit, got {'seed': 1}. See help"):
        audit("none", ["a"], options={"seed": 1})
    with refuses("expected a list of texts for folders of compare_audits, got 'a'"):
        compare_audits("a")
    assert audit.__doc__ and "options" in inspect.signature(audit).parameters
