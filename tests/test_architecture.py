"""The rules of the house: who may import whom, and that everything public is documented."""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import hf_attnprobe
from hf_attnprobe import audit, cli, judge
from hf_attnprobe import demonstration as demo
from hf_attnprobe.audits import compare as survival
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.cli import verbs
from hf_attnprobe.core.options import SavedModel, names_of
from hf_attnprobe.data import examples as data
from hf_attnprobe.data.catalog import known_datasets
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.faithfulness.options import OPTIONS
from hf_attnprobe.faithfulness.registry import tests as all_tests
from hf_attnprobe.integrations import publishing
from hf_attnprobe.integrations.card_options import PublishingOptions
from hf_attnprobe.planted_effects.detection_limit import spike_in
from hf_attnprobe.retraining import deception
from hf_attnprobe.retraining import run as retraining
from hf_attnprobe.studies import run as study
from hf_attnprobe.studies.steps import StudyOptions
from hf_attnprobe.training import classifier as training
from hf_attnprobe.training.options import Architecture
from hf_attnprobe.training.run import fine_tune, train


PACKAGE = Path(hf_attnprobe.__file__).parent
DESIGN = (PACKAGE.parent / "DESIGN.md").read_text()
# Lowest first; the name of a module or package comes before two spaces, what it is behind them.
FLOORS = [
    line.split("  ")[0].split()
    for line in re.search("```floors\n(.*?)```", DESIGN, re.DOTALL)[1].splitlines()
]
HEIGHT = {name: height for height, line in enumerate(FLOORS) for name in line}
MODULES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if "__pycache__" not in file.parts
    and file not in (PACKAGE / "__init__.py", PACKAGE / "__main__.py")
]
# What a package may import from outside, and from the house, where that is less than all below it.
ONLY = {
    "functional": {"torch", "numpy", "scipy"},
    "statistics": {"numpy", "pandas", "scipy"},
    "models": {"torch", "transformers"},
}
KNOWS = {
    "functional": set(),
    "statistics": {"core"},
    "models": set(),
    "adapters": {"core", "functional", "models", "protocol"},
    "faithfulness": {"core", "functional", "protocol"},
}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports_of(file: Path) -> set[str]:
    """Full names of the modules that a file imports, also inside functions and for type checking."""
    found = set()
    package = ["hf_attnprobe", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *filter(None, [node.module])]
            found |= {".".join([*base, alias.name]) for alias in node.names}
    return found


def room_of(file: Path) -> str:
    """The name under which a file stands in FLOORS."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rooms_imported(file: Path) -> set[str]:
    """Names in FLOORS of what a file imports from other rooms."""
    ours = {name.split(".")[1] for name in imports_of(file) if name.startswith("hf_attnprobe.")}
    return (ours & HEIGHT.keys()) - {room_of(file)}


def test_imports_go_strictly_down():
    for file in MODULES:
        own = room_of(file)
        assert own in HEIGHT, f"say where {own} stands in DESIGN.md"
        wrong = {name for name in rooms_imported(file) if HEIGHT[name] >= HEIGHT[own]}
        assert not wrong, f"{file} imports from above itself or beside it: {wrong}"
        if "hf_attnprobe" in imports_of(file):
            assert own == "integrations"  # it is loaded by path, as a stranger to the package
        assert rooms_imported(file) <= KNOWS.get(own, HEIGHT.keys()), file
        ours_or_pythons = {*sys.stdlib_module_names, "hf_attnprobe"}
        outside = {name.split(".")[0] for name in imports_of(file)} - ours_or_pythons
        assert outside <= ONLY.get(own, outside), file


def test_every_floor_is_there():
    rooms = {room_of(file) for file in MODULES}
    assert rooms == HEIGHT.keys()


def test_no_module_is_part_of_a_cycle_or_of_a_long_chain():
    def name_of(file: Path) -> str:
        return ".".join(
            ["hf_attnprobe", *file.relative_to(PACKAGE).with_suffix("").parts]
        ).removesuffix(".__init__")

    names = {name_of(file) for file in MODULES}
    graph = {}
    for file in MODULES:
        imported = imports_of(file)
        modules = {name if name in names else name.rpartition(".")[0] for name in imported}
        graph[name_of(file)] = (modules & names) - {name_of(file)}
    n_floors = 0
    while graph:  # a module that imports nothing that is left goes; a cycle never does
        free = [name for name, needed in graph.items() if not needed & graph.keys()]
        assert free, f"these import each other: {sorted(graph)}"
        for name in free:
            del graph[name]
        n_floors += 1
    assert n_floors < 20


def test_no_folder_holds_a_single_module():
    folders = {file.parent for file in MODULES} - {PACKAGE}
    for folder in folders:
        held = [file for file in folder.rglob("*.py") if file.name != "__init__.py"]
        assert len(held) > 1, f"{folder} holds one module: make it a module"


def test_nobody_catches_our_error_to_find_out_what_a_model_can_do():
    """Only who puts a place before the message, shares it, or prints it may catch it."""
    may = {"studies/steps.py", "studies/run.py", "storage/folders.py"}
    may |= {"cli/__init__.py", "cli/flags.py"}
    may.add("integrations/evaluate_metric/attention_faithfulness/app.py")  # prints it
    passing = ("adapters/transformer/adapter", "adapters/transformer/layout")
    may |= {f"{name}.py" for name in (*passing, "data/sources")}  # let it pass
    for file in MODULES:
        if str(file.relative_to(PACKAGE)) not in may:
            handlers = [
                ast.unparse(node.type)
                for node in ast.walk(tree_of(file))
                if isinstance(node, ast.ExceptHandler) and node.type is not None
            ]
            assert not [name for name in handlers if "AttnProbeError" in name], file


def test_a_public_function_has_one_home_in_its_package():
    homes: dict[tuple[Path, str], Path] = {}
    for file in MODULES:
        for node in tree_of(file).body:
            public = isinstance(node, ast.FunctionDef) and node.name[0] != "_"
            if public:
                key = file.parent, node.name
                assert key not in homes, f"{node.name} in {homes[key]} and {file}"
                homes[key] = file


def test_no_module_is_named_like_a_public_function():
    """A submodule that is imported becomes an attribute of its package, and would replace the function."""
    names = {room_of(file) for file in MODULES}
    assert not names & set(hf_attnprobe.__all__)


def test_the_checkpoint_code_is_flat():
    """Transformers copies the files and their relative imports of one dot; anything else breaks without a word."""
    for file in (PACKAGE / "models" / "attention_classifier").glob("*_attention_classifier.py"):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module and "." not in node.module
            else:
                assert "hf_attnprobe" not in ast.unparse(node) or not isinstance(
                    node, ast.Import | ast.ImportFrom
                )


WITHOUT = """
import sys
sys.modules |= {"datasets": None, "evaluate": None}
import hf_attnprobe, torch
for name in ("AttentionClassifierConfig", "AttnProbeError", "Site", "metric_path", "wrap"):
    getattr(hf_attnprobe, name)
config = hf_attnprobe.AttentionClassifierConfig(vocab_size=9, embedding_size=4, encoder_size=4)
adapter = hf_attnprobe.wrap(hf_attnprobe.AttentionClassifierForSequenceClassification(config))
ids = torch.tensor([[2, 4, 5, 6, 3]])
observation = adapter.observe(adapter.prepare({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, (0,)))
from hf_attnprobe.faithfulness.registry import tests
of_answers = []
for name, test in tests().items():
    if test.lacks(adapter, adapter.sites()[0]):
        of_answers.append(name)
    else:
        test.function(observation, adapter.sites()[0], seed=0)
assert of_answers == ["sources", "knockout", "head_roles"]
"""


@pytest.mark.slow
def test_the_core_works_without_datasets_and_evaluate(run_python):
    run = run_python("-W", "error::ImportWarning", "-c", WITHOUT)
    assert run.code == 0, run.err


DOCUMENTED = [audit, retraining.retrain, study.study, spike_in, survival.compare_checkpoints]
DOCUMENTED += [survival.survive, deception.deceive, training.train_classifier, fine_tune, train]
DOCUMENTED += [demo.demo, publishing.write_card, data.load_examples, known_datasets]


SPEAKING = (
    "trust_remote_code batch_size epochs learning_rate weight_decay min_document_frequency seed "
    "progress tokenizer encoder attention"
)


def test_every_argument_is_documented():
    """By name in the docstring, or by a name that speaks for itself."""
    for function in DOCUMENTED:
        for name in inspect.signature(function).parameters.keys() - {*SPEAKING.split()}:
            assert re.search(rf"\b{name}\b", function.__doc__), (function, name)


def test_public_names_are_sorted_documented_and_no_others():
    assert list(hf_attnprobe.__all__) == sorted(hf_attnprobe.__all__)
    for name in hf_attnprobe.__all__:
        value = getattr(hf_attnprobe, name)
        assert len(inspect.getdoc(value).split()) >= 4, name
        assert name in dir(hf_attnprobe)
    with pytest.raises(AttributeError, match="has no attribute 'audit_all'"):
        hf_attnprobe.audit_all  # noqa: B018
    namespace = {}
    exec("from hf_attnprobe import *", namespace)
    assert set(hf_attnprobe.__all__) <= namespace.keys()


def test_every_flag_is_a_keyword_argument_with_its_default_and_a_line_of_help(cli):
    """Where there are rare flags, in the long help."""
    functions = {"demo": demo.demo, "audit": audit, "retrain": retraining.retrain}
    functions["study"] = StudyOptions
    for name, command in commands().items():
        actions = command._actions
        assert {action.dest for action in actions} - {"help", "help_all"} <= FUNCTIONS[name]
        all_of_them = any(action.dest == "help_all" for action in actions)
        done = cli(name, "--help-all" if all_of_them else "--help")
        assert (done.code, done.err) == (0, "")
        known = inspect.signature(functions[name]).parameters if name in functions else {}
        for action in actions:
            assert action.help and not action.help.startswith("default"), (name, action.dest)
            assert all(option in done.out for option in action.option_strings)
            assert getattr(action, "daily", True) or all_of_them, action.dest
            if action.dest in known and not action.required:
                assert action.default == known[action.dest].default, (name, action.dest)
    assert parameters(audit) - {a.dest for a in commands()["audit"]._actions} == {
        *("options", "tokenizer", "progress")
    }
    assert options_of(audit) <= {action.dest for action in commands()["audit"]._actions}


def test_modules_and_public_functions_say_what_they_are():
    for file in MODULES:
        tree = tree_of(file)
        assert ast.get_docstring(tree) or not tree.body, file
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
                inherits = isinstance(node, ast.ClassDef) and "PreTrained" in ast.unparse(node)
                assert ast.get_docstring(node) or inherits, f"{file}: {node.name}"


# --- the command line ---------------------------------------------------------------------------------------------


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (
        action
        for action in verbs.build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return found.choices


def parameters(*functions) -> set[str]:
    return {name for function in functions for name in inspect.signature(function).parameters}


def options_of(function) -> set[str]:
    """Names of the fields of a verb's options."""
    options = inspect.signature(function).parameters["options"].default
    return {field.name for field in dataclasses.fields(options)}


OF_MODEL = names_of([SavedModel]).keys()
OF_DATA = {field.name for field in dataclasses.fields(Data)}
OF_ARCHITECTURE = {field.name for field in dataclasses.fields(Architecture)}
# What a flag may be besides a keyword argument: a field of the options or the data, the
# form of the output, and whose folder.
# the form of the output, the exit code, or what it would take
OF_OUTPUT = {"json", "verbose", "fail_on", "estimate"}
OF_ANSWERS = names_of([Answers]).keys()
OF_CHANGES = OF_ANSWERS | options_of(audit) | OF_MODEL | {"json", "set", "fail_on_change"}
FUNCTIONS = {
    "demo": parameters(demo.demo) | options_of(demo.demo) | {"verbose"},
    "audit": parameters(audit) | OF_ANSWERS | options_of(audit) | OF_MODEL | OF_OUTPUT | {"set"},
    "judge": parameters(judge) | OF_DATA | OF_MODEL | OF_OUTPUT | options_of(judge) | {"set"},
    "survive": parameters(survival.survive) | OF_CHANGES,
    "compare": parameters(survival.compare_checkpoints) | OF_CHANGES,
    "study": parameters(study.study, StudyOptions) | {"json"},
    "spike": parameters(spike_in) | options_of(spike_in) | OF_ANSWERS | {"json"},
    "report": {"folders", "output", "figures", "fail_on_change"},
    "card": parameters(publishing.write_card) | options_of(publishing.write_card),
    "datasets": parameters(known_datasets) | {"json"},
}
for command, verb in {
    "train": train,
    "retrain": retraining.retrain,
    "deceive": deception.deceive,
}.items():
    FUNCTIONS[command] = parameters(verb) | options_of(verb) | OF_DATA | OF_OUTPUT | {"set"}
FUNCTIONS["deceive"] |= OF_MODEL
FUNCTIONS["train"] |= OF_MODEL | OF_ARCHITECTURE | names_of([PublishingOptions]).keys()


def test_every_verb_has_a_function_and_the_documentation_of_one():
    assert commands().keys() == verbs.COMMANDS.keys() == FUNCTIONS.keys()
    for name, function in verbs.COMMANDS.items():
        assert len(function.__doc__.split()) >= 4
        assert f"attnprobe {name}" in (PACKAGE.parent / "README.md").read_text()
        assert re.search(rf"\b{name}\b", cli.__doc__)


def test_defaults_and_choices_of_flags_are_those_of_the_options():
    options = names_of([Data, AuditOptions])
    for action in commands()["audit"]._actions:
        if action.dest in options and not action.required:
            assert action.default == options[action.dest].default, action.dest
            assert options[action.dest].metadata["help"].split()[0] in action.help


def test_what_is_not_given_to_train_is_left_to_the_procedure():
    parser = commands()["train"]
    for name in (options_of(train) | OF_ARCHITECTURE) - {"seed"}:
        assert not parser.get_default(name), name


def test_the_help_of_audit_is_short_and_the_long_one_has_the_options_of_tests(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("audit", "--help").out.splitlines()
    flags = [line for line in lines if re.match(r"  (-h, )?--", line)]
    assert len(flags) <= 28 and len(lines) <= 90
    shown = cli("audit", "--help-all").out
    for name, test in all_tests().items():
        for field in dataclasses.fields(test.options):
            assert f"\n  {name}.{field.name}=" in shown


def test_the_options_that_a_command_line_checks_are_those_of_the_tests():
    built_in = {
        name: test.options
        for name, test in all_tests().items()
        if test.function.__module__.startswith("hf_attnprobe.")
    }
    assert list(OPTIONS.items()) == list(built_in.items())


def test_the_script_is_the_command_line():
    (script,) = entry_points(group="console_scripts", name="attnprobe")
    assert script.load() is cli.main
