"""What the documents tell a reader to do, works."""

import importlib.metadata
import json
import re
import runpy
import shlex
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import yaml
from transformers import BertModel, BertTokenizer

import coverage_table
import hf_attnprobe
import reference_page
import rules_table
from hf_attnprobe import adapters, functional, load_examples
from hf_attnprobe import protocol as attention_model
from hf_attnprobe.audits.user_scores import read_scores
from hf_attnprobe.cli.commands import build_parser
from hf_attnprobe.data.tokenizer import read_vectors
from hf_attnprobe.faithfulness import registry
from hf_attnprobe.plots import matplotlib_backend as figures
from hf_attnprobe.statistics import questions
from hf_attnprobe.testing import CHECKS
from tests.helpers import tiny_language_models, tiny_models


ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
MORE_PAGES = ["DESIGN.md", "CONTRIBUTING.md", "benchmarks/README.md"]


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(page), flags=re.DOTALL)


def command_lines(page: str) -> list[str]:
    lines = [
        line.split("#")[0].strip()
        for block in [*blocks(page, "bash"), *blocks(page, "text")]
        for line in block.splitlines()
    ]
    return [line for line in lines if line]


COMMANDS = [(page, command) for page in PAGES for command in command_lines(page)]


@pytest.fixture
def registries(monkeypatch):
    """Tests and adapters that a document registers go away again."""
    registry.load_tests()  # built-in ones are loaded once, and have to stay
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    monkeypatch.setattr(adapters, "_factories", dict(adapters._factories))


SMALLER = {
    "rationale_dataset(1500": "rationale_dataset(240",
    "TrainingOptions(epochs=4)": "TrainingOptions(epochs=1)",
}
"""What a page that is read does at length, and a test shortly."""


def run_python_blocks(page: str, folder: Path, monkeypatch, smaller: dict[str, str]) -> dict:
    """Runs a page's blocks in order, in ``folder``; those of a named file become it."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if "smollm2" in read(page):
        chat = tiny_language_models.tokenizer()
        tiny_models.saved(folder / "smollm2", tiny_language_models.llama(chat), chat)
    importlib.invalidate_caches()
    names: dict = {}
    pattern = r"(?:<!-- file: (\S+) -->\n)?```python\n(.*?)```"
    for file, block in re.findall(pattern, read(page), flags=re.DOTALL):
        if file:
            (folder / file).write_text(block)
            monkeypatch.delitem(sys.modules, file.removesuffix(".py"), raising=False)
        else:
            for given, less in smaller.items():
                block = block.replace(given, less)
            exec(compile(block, page, "exec"), names)
    return names


# --- commands and links -----------------------------------------------------------------


def test_every_command_is_understood(registries, monkeypatch):
    """An ``attnprobe`` command by the parser, and ``make`` has the target; there are no others."""
    installed = importlib.metadata.EntryPoint("attention_entropy", "attention_entropy", "")
    monkeypatch.setattr("hf_attnprobe.audits.options.entry_points", lambda group: [installed])
    page = read("docs/extending.md")
    file = re.findall(r"<!-- file: \S+ -->\n```python\n(.*?)```", page, re.S)[0]
    exec(compile(file, "docs/extending.md", "exec"), {})
    parser = build_parser()
    for page, command in COMMANDS:
        program, *arguments = shlex.split(command)
        if program == "pip":
            # The README names the command that installs torch for a CPU.
            assert arguments[0] == "install" and arguments[1] in ("torch", "."), (
                f"{page}: {command}"
            )
            continue
        assert program in ("make", "attnprobe"), f"{page}: {command}"
        if program == "make":
            assert re.search(rf"^{arguments[0]}:", read("Makefile"), flags=re.MULTILINE), command
        else:
            assert parser.parse_args(arguments), f"{page}: {command}"


def test_what_a_page_names_is_there():
    """Links lead to files, files that are named exist, and no mark of a merge is left."""
    tops = "hf_attnprobe|docs|examples|tests|benchmarks|model_cards"
    for page in [*PAGES, *MORE_PAGES]:
        for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
            file = target.split("#")[0]
            if "://" not in target and file:
                assert (ROOT / page).parent.joinpath(file).exists(), f"{page}: {target}"
        for name in re.findall(rf"`((?:{tops})/[\w./-]+)`", read(page)):
            assert (ROOT / name).exists(), f"{page}: {name}"
    for page in [*PAGES, *MORE_PAGES, "CHANGELOG.md"]:
        assert not re.search(r"^(<<<<<<<|=======|>>>>>>>)", read(page), re.MULTILINE), page


def test_every_part_of_the_answer_is_explained():
    """By the name that the first screen has."""
    named = set(re.findall(r"\*\*([\w ]+)\*\*|^\| (\w+) \|", read("docs/reports.md"), re.MULTILINE))
    told = {name.lower() for pair in named for name in pair if name}
    asked = [*questions.CLASSIFIER_QUESTIONS.values(), *questions.ANSWER_QUESTIONS.values()]
    assert {question.name.lower() for question in asked} <= told


def test_every_page_is_in_the_index():
    linked = set(re.findall(r"\]\((\w+\.md)\)", read("docs/index.md")))
    assert linked == {page.removeprefix("docs/") for page in PAGES[1:]} - {"index.md"}


def test_ci_runs_the_command_of_the_readme():
    assert "make test" in read("README.md")
    assert read(".ci/run").splitlines()[-1] == "make test"
    workflow = yaml.safe_load(read(".github/workflows/ci.yml"))
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": "make test"}


# --- code -------------------------------------------------------------------------------


RUN = [page for page in PAGES if blocks(page, "python")]
SAID = {
    "README.md": "Does attention explain these predictions?",
    "docs/quickstart.md": "Does attention explain these predictions?",
    "docs/extending.md": "attention has an entropy of",
    "docs/training.md": "attention",
    "docs/many_machines.md": "median_tvd",
}
"""What the Python of a page prints."""


@pytest.mark.parametrize(
    "page",
    tiny_models.daily(RUN, ("README.md", "docs/extending.md", "docs/attention_interface.md")),
)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, capsys, registries):
    names = run_python_blocks(page, tmp_path, monkeypatch, SMALLER)
    assert SAID.get(page, "") in capsys.readouterr().out
    if page == "docs/quickstart.md":
        assert len(names["result"]["permutation_median_tvd"]) == 2
    if page == "docs/extending.md":
        (project,) = map(tomllib.loads, blocks(page, "toml"))
        ((name, module),) = project["project"]["entry-points"][registry.ENTRY_POINT_GROUP].items()
        assert name in registry.load_tests() and (tmp_path / f"{module}.py").exists()
        assert project["tool"]["setuptools"]["py-modules"] == [module]
    if page == "docs/hub.md":
        logged = {key for line in names["trainer"].state.log_history for key in line}
        told = "eval_attention_faithfulness/permutation.median_tvd"
        assert {told, f"{told}_low", f"{told}_high", f"{told}_n"} <= logged
        keys = re.findall(r"^\| (`.*?`) \|", read(page), flags=re.MULTILINE)
        documented = {key for row in keys for key in re.findall(r"`(\w+)`", row)}
        assert set(names["explanation"]) <= documented
    if page == "docs/attention_interface.md":
        check_attention_recipes(names)


def check_attention_recipes(names: dict) -> None:
    """Compare with Transformers' own attention weights, and with models that lack the heads."""
    model, prompt = names["language_model"], names["prompt"]
    model.set_attn_implementation("eager")
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    asked = {"output_attentions": True, "return_dict_in_generate": True}
    told = model.generate(prompt, **options, **asked)
    assert torch.equal(told.sequences, names["generated"])
    assert names["rows_by_layer"].keys() == {0, 1}
    for layer, rows in names["rows_by_layer"].items():
        for row, attentions in zip(rows, told.attentions, strict=True):
            torch.testing.assert_close(row, attentions[layer][:, :, -1])

    heads, batch = names["disabled_heads"], names["batch"]

    def logits_without(model, outputs):
        """A head is gone if the output projection ignores it."""
        for layer, some in heads.items():
            for head in some:
                outputs[layer].weight.data[:, 8 * head : 8 * head + 8] = 0
        with torch.no_grad():
            return model(**batch).logits

    bert = names["classifier"]
    outputs = [layer.attention.output.dense for layer in bert.bert.encoder.layer]
    wanted = logits_without(bert, outputs)
    torch.testing.assert_close(names["logits_without_heads"], wanted)
    assert not torch.allclose(names["logits"], wanted, atol=1e-4)
    distilbert = names["distilbert"]
    distilbert.set_attn_implementation("disable_heads")
    with torch.no_grad():
        logits = distilbert(**batch).logits
    distilbert.set_attn_implementation("sdpa")
    outputs = [layer.attention.out_lin for layer in distilbert.distilbert.transformer.layer]
    torch.testing.assert_close(logits, logits_without(distilbert, outputs))

    # An audit describes the model without the heads.
    reviews = hf_attnprobe.make_rationale_dataset(60, seed=0)["test"].select(range(10))
    tokenizer = hf_attnprobe.build_tokenizer(reviews["text"])
    bert = tiny_models.bert(len(tokenizer), layers=2, heads=4)
    bert.set_attn_implementation("disable_heads")
    report = hf_attnprobe.audit(bert, reviews, ["permutation"], tokenizer=tokenizer, progress=False)
    rows = report.to_pandas().query("statistic == 'median_tvd' and layer >= 0 and head >= 0")
    effects = rows.groupby(["layer", "head"]).value.max()
    assert {site for site, effect in effects.items() if effect == 0} == {(0, 1), (1, 0), (1, 2)}


@pytest.mark.slow
def test_the_python_of_the_readme_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    assert all(given in read("README.md") for given in SMALLER)
    run_python_blocks("README.md", tmp_path, monkeypatch, {})
    assert SAID["README.md"] in capsys.readouterr().out


def test_the_example_of_a_score_file_has_the_ids_of_the_texts(tmp_path, monkeypatch):
    (example,) = blocks("docs/tests.md", "py")
    (tmp_path / "reviews.csv").write_text("example_id,text,label\n7,a fine film,1\n3,dull,0\n")
    monkeypatch.chdir(tmp_path)
    exec(example, {"json": json, "load_examples": load_examples})
    scores = read_scores("scores.jsonl", [])
    assert {k: list(text.values) for k, text in scores.items()} == {7: [1, 4, 4], 3: [4]}


def test_every_page_with_python_is_known_to_run():
    """Blocks of other languages are commands, settings and output."""
    languages = {found for page in PAGES for found in re.findall(r"^```(\w+)", read(page), re.M)}
    assert languages <= {"bash", "py", "python", "text", "toml", "yaml", "sh"}
    assert set(SAID) <= set(RUN)


def test_the_capabilities_on_the_page_are_those_of_the_protocol():
    page = read("docs/extending.md").partition("| capability |")[2]
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*?`) \|", page, flags=re.MULTILINE))
    assert rows.keys() == {capability.__name__ for capability in CHECKS}
    for name, methods in rows.items():
        capability = getattr(attention_model, name)
        told = set(re.findall(r"\w+", methods))
        public = {n for n in dir(capability) if not n.startswith("_")}
        assert told == public | set(capability.__annotations__)


def test_the_page_lists_every_capability_that_a_test_needs():
    page = read("docs/extending.md").partition("| capability |")[2]
    uses = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page, flags=re.MULTILINE))
    tests = registry.load_tests()
    listed = {(name, test) for name, use in uses.items() for test in re.findall(r"`(\w+)`", use)}
    needed = set()
    for test in tests.values():
        needs = [need if isinstance(need, tuple) else (need,) for need in test.needs]
        needed |= {(need.__name__, test.name) for alternatives in needs for need in alternatives}
    # The prediction of a class is a decision. The text below the table describes the two others.
    unlisted = {"Decisions", "ExchangeableStates", "KeptPositions"}
    assert listed == {(name, test) for name, test in needed if name not in unlisted}


def test_the_tests_on_the_page_of_tests_are_all():
    told = re.findall(r"^### `(\w+)`: ", read("docs/tests.md"), flags=re.MULTILINE)
    assert set(told) == set(registry.load_tests())


def test_the_options_on_the_page_of_tests_exist():
    told = re.findall(r"`(?:--set )?(\w+)\.(\w+)\b", read("docs/tests.md"))
    of_tests = [(name, option) for name, option in told if name in registry.load_tests()]
    assert len(of_tests) >= 5
    for name, option in of_tests:
        assert option in {f.name for f in fields(registry.load_tests()[name].options)}, option


@pytest.mark.slow
def test_the_example_without_arguments_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXAMPLE_SIZE", "240")
    runpy.run_path(str(ROOT / "examples/calibrate.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


# --- the reference ----------------------------------------------------------------------


def test_the_reference_is_what_the_docstrings_say():
    """``python docs/reference_page.py`` writes it."""
    page = read("docs/reference.md")
    assert page == reference_page.render_page(), "make pages writes it"
    names = re.findall(r"^\| `(\w+)` \| \S", page, flags=re.MULTILINE)
    expected = [*hf_attnprobe.__all__, *functional.__all__, *figures.__all__]
    assert sorted(names) == sorted(expected)


def test_word_vectors_of_a_transformer_are_means_of_its_pieces(tmp_path, monkeypatch, capsys):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dull", "won", "##derful"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    model = tiny_models.bert(8, kind=BertModel, layers=1, heads=1, width=8, spread=0.02)
    model.save_pretrained(tmp_path)
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    rows = [{"text": "dull", "label": 0}, {"text": "wonderful film", "label": 1}]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = {"model": tmp_path, "dataset": tmp_path / "data", "output": tmp_path / "vectors"}
    arguments = [
        "word_vectors.py",
        *(part for name, value in given.items() for part in (f"--{name}", str(value))),
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(ROOT / "examples/word_vectors.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("3 vectors in ")
    vectors, ids = read_vectors(tmp_path / "vectors", {"wonderful": 0, "dull": 1, "film": 2})
    table = model.get_input_embeddings().weight.detach()
    expected = torch.stack([table[[6, 7]].mean(0), table[5], table[1]])
    assert ids.tolist() == [0, 1, 2]
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)


def test_the_table_of_rules_is_the_one_that_the_code_reads():
    """``python docs/rules_table.py`` writes it."""
    assert read("docs/verdicts.md") == rules_table.render_page()


def test_the_table_of_coverage_is_the_one_that_was_simulated():
    """``python docs/coverage_table.py`` writes it."""
    assert read("docs/verdicts.md") == coverage_table.render_page()
