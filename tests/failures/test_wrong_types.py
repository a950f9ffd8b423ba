"""Public functions with arguments of wrong types: one line, before anything is loaded or written."""

import inspect

import pytest
import torch

import hf_attnprobe
from hf_attnprobe import audit
from tests.helpers.error_messages import refusal, refuses


WRONG = (3, 2.5, b"bytes", object(), {"a": 1}, [None], torch.zeros(2), ValueError, len)
"""Nothing of these is a path, a tokenizer, options or a report."""
READING = ("read_audit", "read_retraining", "read_rows", "compare_audits", "joined_report")
READING += ("render_report", "changed_answers")
VERBS = ("audit", "judge", "survive", "compare_checkpoints", "spike_in", "retrain", "transfer")
VERBS += ("deceive", "train", "train_classifier", "fine_tune", "study", "demo", "write_card")
ANSWERING = ("explain", "explain_text", "explain_html")


def right(name, folder):
    """An argument that is right by its type, whatever it is of."""
    texts = [{"text": "a film", "label": 0}]
    known = {"dataset": texts, "train": texts, "validation": texts, "versions": ["int8"]}
    known |= {"tokens": ["a"], "models": ["a", "b"], "scores": [[1.0]], "folders": [str(folder)]}
    known |= {"config": None, "study": "none", "comparison": None, "folder": str(folder)}
    known |= {"text": "a", "context": "a", "question": "a", "guide": str(folder), "tokenizer": None}
    return known.get(name, str(folder))


def cases():
    """Every public verb and reader with each of its arguments once."""
    for name in (*READING, *VERBS, *ANSWERING):
        for argument in inspect.signature(getattr(hf_attnprobe, name)).parameters.values():
            if argument.kind is not inspect.Parameter.VAR_KEYWORD:
                yield name, argument.name


@pytest.mark.parametrize(("function", "argument"), [*cases()])
def test_a_wrong_type_is_one_line(function, argument, tmp_path):
    called = getattr(hf_attnprobe, function)
    parameters = inspect.signature(called).parameters
    nowhere = tmp_path / "nowhere"
    for wrong in WRONG:
        if argument == "study" and callable(wrong):
            continue  # a study is any function
        given = {
            name: right(name, nowhere)
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        }
        given |= {argument: wrong}
        if "output_dir" in parameters and argument != "output_dir":
            given["output_dir"] = tmp_path / "out"
        refusal(called, **given)
        assert not [*tmp_path.iterdir()], wrong


@pytest.mark.parametrize("wrong", WRONG)
def test_a_tokenizer_is_one(wrong, models):
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(models["bert"])
    with refuses("expected a tokenizer of Transformers"):
        audit(model, ["a film"], tokenizer=wrong, progress=False)


def test_what_is_wrong_is_said_with_what_is_expected():
    with refuses("expected AuditOptions for options of audit, got {'seed': 1}; see help"):
        audit("none", ["a"], options={"seed": 1})
    with refuses("expected a list of texts for folders of compare_audits, got 'a'"):
        hf_attnprobe.compare_audits("a")
    assert audit.__doc__ and "options" in inspect.signature(audit).parameters
