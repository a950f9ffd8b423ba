"""The structure of the package: which package imports which, and that everything public is documented."""

import ast
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest

import hf_attnprobe


PACKAGE = Path(hf_attnprobe.__file__).parent
DESIGN = (PACKAGE.parent / "DESIGN.md").read_text()
# The names of the packages on a line end at the first two spaces; a description follows.
LAYERS = [
    line.split("  ")[0].split()
    for line in re.search("```layers\n(.*?)```", DESIGN, re.DOTALL)[1].splitlines()
]
"""Names of packages and single modules, from the lowest layer to the highest."""
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
MODULES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if "__pycache__" not in file.parts
    and file not in (PACKAGE / "__init__.py", PACKAGE / "__main__.py")
]
ALLOWED_LIBRARIES = {
    "functional": {"torch", "numpy", "scipy"},
    "statistics": {"numpy", "pandas", "scipy"},
    "models": {"torch", "transformers"},
}
"""Libraries that a package may import, if that is restricted."""
ALLOWED_PACKAGES = {
    "functional": set(),
    "statistics": {"core"},
    "models": set(),
    "adapters": {"core", "functional", "models", "protocol"},
    "faithfulness": {"core", "functional", "protocol"},
}
"""Packages of hf_attnprobe that a package may import, if these are not all lower ones."""


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def list_imports(file: Path) -> set[str]:
    """Return the full names of all modules that a file imports, also within functions."""
    names = set()
    package = ["hf_attnprobe", *file.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *filter(None, [node.module])]
            names |= {".".join([*base, alias.name]) for alias in node.names}
    return names


def get_layer_name(file: Path) -> str:
    """Return the name under which DESIGN.md lists a file."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def list_imported_layers(file: Path) -> set[str]:
    """Return the names in DESIGN.md of the other packages that a file imports."""
    names = {name.split(".")[1] for name in list_imports(file) if name.startswith("hf_attnprobe.")}
    return (names & HEIGHT.keys()) - {get_layer_name(file)}


def test_imports_lead_to_lower_layers_only():
    for file in MODULES:
        layer = get_layer_name(file)
        assert layer in HEIGHT, f"add {layer} to the layers in DESIGN.md"
        wrong = {name for name in list_imported_layers(file) if HEIGHT[name] >= HEIGHT[layer]}
        assert not wrong, f"{file} imports from the same or a higher layer: {wrong}"
        if "hf_attnprobe" in list_imports(file):
            # The evaluate module is loaded by its path, like a user's script.
            assert layer == "integrations"
        assert list_imported_layers(file) <= ALLOWED_PACKAGES.get(layer, HEIGHT.keys()), file
        standard = {*sys.stdlib_module_names, "hf_attnprobe"}
        libraries = {name.split(".")[0] for name in list_imports(file)} - standard
        assert libraries <= ALLOWED_LIBRARIES.get(layer, libraries), file


def test_every_layer_in_the_design_exists():
    assert {get_layer_name(file) for file in MODULES} == HEIGHT.keys()


def test_there_are_no_import_cycles():
    def get_module_name(file: Path) -> str:
        parts = ["hf_attnprobe", *file.relative_to(PACKAGE).with_suffix("").parts]
        return ".".join(parts).removesuffix(".__init__")

    names = {get_module_name(file) for file in MODULES}
    graph = {}
    for file in MODULES:
        imports = list_imports(file)
        modules = {name if name in names else name.rpartition(".")[0] for name in imports}
        graph[get_module_name(file)] = (modules & names) - {get_module_name(file)}
    while graph:
        # Modules that import nothing that is left can be removed; a cycle never can.
        removable = [name for name, imported in graph.items() if not imported & graph.keys()]
        assert removable, f"these modules import each other: {sorted(graph)}"
        for name in removable:
            del graph[name]


def test_no_folder_holds_a_single_module():
    for folder in {file.parent for file in MODULES} - {PACKAGE}:
        modules = [file for file in folder.rglob("*.py") if file.name != "__init__.py"]
        assert len(modules) > 1, f"{folder} holds one module; make it a module"


def test_no_code_catches_our_error_to_find_out_what_a_model_supports():
    """Only code that adds a location to the message, shares it between processes or prints it may catch it."""
    allowed = {
        "adapters/transformer/adapter.py",
        "adapters/transformer/custom_model.py",
        "adapters/transformer/layout.py",
        "cli/__init__.py",
        "cli/flags.py",
        "data/sources.py",
        "inference/answer_cache.py",
        "integrations/evaluate_metric/attention_faithfulness/app.py",
        "storage/folders.py",
        "studies/run.py",
        "studies/steps.py",
    }
    for file in MODULES:
        if str(file.relative_to(PACKAGE)) not in allowed:
            handlers = [
                ast.unparse(node.type)
                for node in ast.walk(parse(file))
                if isinstance(node, ast.ExceptHandler) and node.type is not None
            ]
            assert not [name for name in handlers if "AttnProbeError" in name], file


def test_a_public_function_is_defined_once_in_its_package():
    homes: dict[tuple[Path, str], Path] = {}
    for file in MODULES:
        for node in parse(file).body:
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
                key = file.parent, node.name
                assert key not in homes, f"{node.name} in {homes[key]} and {file}"
                homes[key] = file


def test_no_module_is_named_like_a_public_function():
    """An imported submodule becomes an attribute of its package and would replace the function."""
    names = {get_layer_name(file) for file in MODULES}
    assert not names & set(hf_attnprobe.__all__)


def test_checkpoint_code_imports_only_its_own_folder():
    """Transformers copies the files and their relative imports of one dot; it silently ignores all others."""
    for file in (PACKAGE / "models" / "attention_classifier").glob("*_attention_classifier.py"):
        for node in ast.walk(parse(file)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module and "." not in node.module
            elif isinstance(node, ast.Import | ast.ImportFrom):
                assert "hf_attnprobe" not in ast.unparse(node)


WITHOUT_DATASETS = """
import sys
sys.modules |= {"datasets": None, "evaluate": None}
import hf_attnprobe, torch
for name in ("AttentionClassifierConfig", "AttnProbeError", "Site", "get_metric_path", "wrap"):
    getattr(hf_attnprobe, name)
config = hf_attnprobe.AttentionClassifierConfig(vocab_size=9, embedding_size=4, encoder_size=4)
adapter = hf_attnprobe.wrap(hf_attnprobe.AttentionClassifierForSequenceClassification(config))
ids = torch.tensor([[2, 4, 5, 6, 3]])
observation = adapter.observe(adapter.prepare({"input_ids": ids, "attention_mask": torch.ones_like(ids)}, (0,)))
from hf_attnprobe.faithfulness.registry import load_tests
unsupported = []
for name, test in load_tests().items():
    if test.lacks(adapter, adapter.sites()[0]):
        unsupported.append(name)
    else:
        test.function(observation, adapter.sites()[0], seed=0)
assert unsupported == ["sources", "knockout", "head_roles"]
"""


@pytest.mark.slow
def test_the_core_works_without_datasets_and_evaluate(run_python):
    run = run_python("-W", "error::ImportWarning", "-c", WITHOUT_DATASETS)
    assert run.code == 0, run.err


def test_public_names_are_sorted_and_documented():
    assert list(hf_attnprobe.__all__) == sorted(hf_attnprobe.__all__)
    for name in hf_attnprobe.__all__:
        assert inspect.getdoc(getattr(hf_attnprobe, name)), name
        assert name in dir(hf_attnprobe)
    with pytest.raises(AttributeError, match="has no attribute 'audit_all'"):
        hf_attnprobe.audit_all  # noqa: B018
    namespace = {}
    exec("from hf_attnprobe import *", namespace)
    assert set(hf_attnprobe.__all__) <= namespace.keys()
