"""Every command calls a public function, and every flag is one of its arguments or options."""

import argparse
import dataclasses
import inspect
import re
from importlib.metadata import entry_points
from pathlib import Path

import hf_attnprobe
from hf_attnprobe import (
    audit,
    cite,
    cli,
    compare,
    evaluate_scores,
    find_detection_limit,
    fit_map,
    list_datasets,
)
from hf_attnprobe import demonstration as demonstration
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.cli import commands
from hf_attnprobe.core.options import SavedModel, collect_fields
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.faithfulness.options import FAITHFULNESS_OPTIONS
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.integrations.card_options import PublishingOptions
from hf_attnprobe.integrations.publishing import write_card
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.statistics.verdicts import ANSWER_SET, CLASSIFIER_SET, join_words
from hf_attnprobe.studies.run import study
from hf_attnprobe.studies.steps import StudyOptions
from hf_attnprobe.training.options import Architecture
from hf_attnprobe.training.run import train


README = Path(hf_attnprobe.__file__).parents[1] / "README.md"


def get_parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    (subparsers,) = (
        action
        for action in commands.build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return subparsers.choices


def list_parameters(*functions) -> set[str]:
    return {name for function in functions for name in inspect.signature(function).parameters}


def list_option_fields(function) -> set[str]:
    """Return the field names of the function's options."""
    options = inspect.signature(function).parameters["options"].default
    return {field.name for field in dataclasses.fields(options)}


MODEL_FIELDS = collect_fields([SavedModel]).keys()
DATA_FIELDS = collect_fields([Data]).keys()
ANSWER_FIELDS = collect_fields([Answers]).keys()
ARCHITECTURE_FIELDS = collect_fields([Architecture]).keys()
OUTPUT_FLAGS = {"json", "verbose", "fail_on", "estimate"}
"""Flags for the format of the output, the exit code and the estimate of an audit's duration."""


def list_allowed_flags() -> dict[str, set[str]]:
    """Return, for each command, the arguments and options of the function that it calls."""
    training = DATA_FIELDS | OUTPUT_FLAGS | {"set"}
    return {
        "demo": list_parameters(demonstration.demo)
        | list_option_fields(demonstration.demo)
        | {"verbose"},
        "audit": list_parameters(audit)
        | list_option_fields(audit)
        | (ANSWER_FIELDS | MODEL_FIELDS | OUTPUT_FLAGS | {"set"}),
        "evaluate-scores": list_parameters(evaluate_scores)
        | list_option_fields(evaluate_scores)
        | (DATA_FIELDS | MODEL_FIELDS | OUTPUT_FLAGS | {"set"}),
        # The positional argument `models` holds the model and its versions.
        "compare": list_parameters(compare)
        | list_option_fields(compare)
        | (ANSWER_FIELDS | MODEL_FIELDS | {"models", "json", "set", "fail_on_change"}),
        "fit-map": list_parameters(fit_map)
        | list_option_fields(fit_map)
        | (ANSWER_FIELDS | MODEL_FIELDS | {"json"}),
        "study": list_parameters(study, StudyOptions) | {"json"},
        "detection-limit": list_parameters(find_detection_limit)
        | list_option_fields(find_detection_limit)
        | (ANSWER_FIELDS | {"json"}),
        # The argument `rows` is called `dataset`, as in the other commands.
        "cite": list_parameters(cite)
        | list_option_fields(cite)
        | (MODEL_FIELDS | {"dataset", "json", "verbose", "fail_on"}),
        "report": {"folders", "output", "figures", "fail_on_change"},
        "card": list_parameters(write_card) | list_option_fields(write_card),
        "datasets": list_parameters(list_datasets) | {"json"},
        "train": list_parameters(train)
        | list_option_fields(train)
        | (
            training
            | MODEL_FIELDS
            | ARCHITECTURE_FIELDS
            | collect_fields([PublishingOptions]).keys()
        ),
        "retrain": list_parameters(retrain) | list_option_fields(retrain) | training | MODEL_FIELDS,
    }


def test_every_flag_is_an_argument_with_its_default_and_a_line_of_help(cli):
    """Commands with rare flags list them in the full help."""
    functions = {"demo": demonstration.demo, "audit": audit, "retrain": retrain}
    functions["study"] = StudyOptions
    allowed_flags = list_allowed_flags()
    for name, parser in get_parsers().items():
        actions = parser._actions
        flags = {action.dest for action in actions} - {"help", "help_all"}
        assert flags <= allowed_flags[name], flags - allowed_flags[name]
        has_full_help = any(action.dest == "help_all" for action in actions)
        run = cli(name, "--help-all" if has_full_help else "--help")
        assert (run.code, run.err) == (0, "")
        parameters = inspect.signature(functions[name]).parameters if name in functions else {}
        for action in actions:
            assert action.help and not action.help.startswith("default"), (name, action.dest)
            assert all(option in run.out for option in action.option_strings)
            assert getattr(action, "basic", True) or has_full_help, action.dest
            if action.dest in parameters and not action.required:
                assert action.default == parameters[action.dest].default, (name, action.dest)


def test_every_argument_of_audit_has_a_flag():
    flags = {action.dest for action in get_parsers()["audit"]._actions}
    assert list_parameters(audit) - flags == {"options", "tokenizer", "progress"}
    assert list_option_fields(audit) <= flags


def test_every_command_is_documented():
    assert get_parsers().keys() == commands.COMMANDS.keys() == list_allowed_flags().keys()
    for name, function in commands.COMMANDS.items():
        assert function.__doc__
        assert f"attnprobe {name}" in README.read_text()
        assert re.search(rf"\b{name}\b", cli.__doc__)


def test_defaults_and_help_of_flags_are_those_of_the_options():
    options = collect_fields([Data, AuditOptions])
    for action in get_parsers()["audit"]._actions:
        if action.dest in options and not action.required:
            assert action.default == options[action.dest].default, action.dest
            assert options[action.dest].metadata["help"].split()[0] in action.help


def test_flags_of_train_that_are_not_used_keep_the_procedure():
    parser = get_parsers()["train"]
    for name in (list_option_fields(train) | ARCHITECTURE_FIELDS) - {"seed"}:
        assert not parser.get_default(name), name


def test_the_full_help_of_audit_lists_the_options_of_all_tests(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    basic_help, full_help = (cli("audit", flag).out for flag in ("--help", "--help-all"))
    assert "permutation.n_permutations=N" not in basic_help
    for name, test in load_tests().items():
        for field in dataclasses.fields(test.options):
            assert f"\n  {name}.{field.name}=" in full_help


def test_the_help_of_audit_names_the_tests_without_which_there_is_no_verdict(cli):
    words = " ".join(cli("audit", "--help").out.split())
    for question_set in (CLASSIFIER_SET, ANSWER_SET):
        assert join_words(question_set.required_tests) in words


def test_options_on_the_command_line_are_those_of_the_tests():
    """The command line lists options without importing the tests, which would import torch."""
    built_in = {
        name: test.options
        for name, test in load_tests().items()
        if test.function.__module__.startswith("hf_attnprobe.")
    }
    assert list(FAITHFULNESS_OPTIONS.items()) == list(built_in.items())


def test_the_console_script_is_the_command_line():
    (script,) = entry_points(group="console_scripts", name="attnprobe")
    assert script.load() is cli.main


def test_the_help_of_dataset_names_the_form_with_a_folder(cli):
    assert "sst=FOLDER" in " ".join(cli("audit", "--help").out.split())
