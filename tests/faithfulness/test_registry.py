"""Test the registration of tests, its errors, and tests of installed packages."""

import json
import os
import re
from dataclasses import dataclass

import pytest
import torch

from hf_attnprobe import AttnProbeError, Options, audit, option
from hf_attnprobe.faithfulness import registry
from hf_attnprobe.faithfulness.options import Erasure, NoOptions, Permutation
from hf_attnprobe.faithfulness.registry import resolve_faithfulness_tests
from hf_attnprobe.protocol import Differentiable, EditableInputs, LinearReadout
from hf_attnprobe.storage.rows import read_rows
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name


PYTHONPATH = [path for path in [os.environ.get("PYTHONPATH")] if path]
# What an outsider writes: one module, and one line of entry points.
ENTROPY = """
from dataclasses import dataclass

import torch

from hf_attnprobe import Observation
from hf_attnprobe import Options
from hf_attnprobe import Site
from hf_attnprobe import option
from hf_attnprobe import register_test


READINGS = {"entropy": "the attention of a text has an entropy of {mean:.2f} of the largest"}


@dataclass(frozen=True)
class Entropy(Options):
    base: float = option(2.0, "base of the logarithm", at_least=1.5)


@dataclass(frozen=True)
class EntropyResult:
    entropy: torch.Tensor


@register_test(readings=READINGS)
def attention_entropy(
    observation: Observation, site: Site, options: Entropy, *, seed: int
) -> EntropyResult:
    attention = observation.read(site).double()
    entropy = torch.special.entr(attention).sum(-1)
    return EntropyResult(entropy / torch.tensor(options.base).log())
"""


def install(folder, code):
    """A tiny distribution: a module, its metadata, and its entry point; its environment."""
    folder.mkdir()
    info = folder / "entropy_probe-1.0.dist-info"
    info.mkdir()
    (folder / "entropy_probe.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: entropy-probe\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hf_attnprobe.tests]\nattention_entropy = entropy_probe\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), *PYTHONPATH])}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return install(tmp_path_factory.mktemp("site") / "a", ENTROPY)


# --- an installed test --------------------------------------------------------------------


STUDY = """
def study(s):
    tests = {"attention_entropy": {"base": 10}}
    for cell in s.grid(dataset=[%r]):
        s.add("audit", "audit", cell, model=%r, **cell, tests=tests, test_limit=3)
    s.add_table("entropy", audit={"entropy": "entropy"})
"""
PROCESS = """
import json, sys, evaluate, hf_attnprobe
from hf_attnprobe.cli import main
commands, (model, texts) = map(json.loads, sys.argv[1:])
for command in commands:
    try:
        code = main(command)
    except SystemExit as stop:
        code = stop.code
    print(f"\\nENDED {code}")
metric = evaluate.load(hf_attnprobe.get_metric_path())
for base in (2.0, 4.0):
    tests = {"attention_entropy": {"base": base}}
    found = metric.compute(predictions=texts, model_id=model, tests=tests)
    print(found["mean_attention_entropy_entropy"])
"""


@pytest.mark.slow
def test_an_installed_test_is_one_of_the_tests(
    installed, run_warm, checkpoint, reviews_folder, texts, tmp_path
):
    """In one process: the help, an audit, a value that is refused, a column of a study, and the metric."""
    assert len(ENTROPY.strip().splitlines()) <= 60
    file, folder = tmp_path / "entropies.py", tmp_path / "study"
    file.write_text(STUDY % (str(reviews_folder), str(checkpoint)))
    command = ["audit", "--model", str(checkpoint), "--dataset", str(reviews_folder)]
    few = ["--test-limit", "10", "--json", "--output-dir", str(tmp_path / "out")]
    commands = [
        ["audit", "--help-all"],
        [*command, *few, "--set", "attention_entropy.base=10"],
        [*command, "--set", "attention_entropy.base=1"],
        ["study", str(file), "--output-dir", str(folder), "--quick", "--json"],
    ]
    given = json.dumps(commands), json.dumps([str(checkpoint), texts[:3]])
    run = run_warm("-c", PROCESS, *given, env=installed)
    assert run.code == 0, run.err
    shown, audited, refused, studied, measured = re.split(r"\nENDED ", run.out)
    assert "attention_entropy.base=BASE" in shown
    ended, _, report = audited.partition("\n")
    assert ended == "0", run.err  # of the command before
    result = json.loads(report)
    assert result["provenance"]["options"]["attention_entropy"] == {"base": 10.0}
    report = (tmp_path / "out" / "report.md").read_text()
    assert "the attention of a text has an entropy of" in report
    assert refused.startswith("0\n") and studied.startswith("2\n")
    assert "must be at least 1.5" in run.err
    (table,) = json.loads(studied.partition("\n")[2])["tables"]
    value = table["rows"][0][table["head"].index("entropy")]["value"]
    rows = read_rows(next(folder.rglob("audit/**/rows")))
    entropies = rows[rows.test == "attention_entropy"].value
    assert len(entropies) == 3 and value == pytest.approx(entropies.mean())
    ended, two, four = measured.split()
    assert ended == "0" and float(two) == pytest.approx(2 * float(four)) and float(two) > 0


@pytest.mark.slow
def test_what_does_not_load_names_its_package(run_warm, tmp_path):
    broken = install(tmp_path / "broken", "raise ImportError('no such thing')")
    run = run_warm("-m", "hf_attnprobe", "audit", "--help-all", env=broken)
    assert (run.code, run.out) == (1, "")
    assert run.err.endswith(
        "cannot load the test 'attention_entropy' from the package 'entropy-probe': no such "
        "thing. Update or uninstall the package.\n"
    )


# --- registration -------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """Whatever is registered goes away again."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_built_in_tests_in_their_order():
    first = "scale exchange correlation permutation adversarial erasure input_erasure"
    assert " ".join([*registry.load_tests()][:7]) == first
    for name, test in registry.load_tests().items():
        assert test.name == name == test.function.__name__


def test_a_name_that_is_taken(alone):
    def erasure(observation, site, options: NoOptions, *, seed):
        """Another one."""

    with pytest.raises(AttnProbeError, match=r"'erasure' is already in use\. Rename the func"):
        registry.register_test(readings={})(erasure)


def test_an_option_of_another_tests_name(alone):
    """Every test's options are its own, whatever others call theirs."""

    @dataclass(frozen=True)
    class Other(Options):
        n_permutations: int = option(3, "other")
        seed: int = option(4, "other")

    def other(observation, site, options: Other, *, seed):
        """A test that shares the names of options."""

    other.__annotations__ = {"options": Other}
    registry.register_test(readings={})(other)
    asked = {"other": {"n_permutations": 7}, "permutation": {"n_permutations": 8}}
    assert resolve_faithfulness_tests(asked) == {"other": Other(7), "permutation": Permutation(8)}


# --- what is asked for --------------------------------------------------------------------


def test_names_and_options_together():
    expected = {"erasure": Erasure(), "permutation": Permutation(7)}
    assert resolve_faithfulness_tests(["erasure", Permutation(n_permutations=7)]) == expected
    assert (
        resolve_faithfulness_tests({"erasure": None, "permutation": {"n_permutations": 7}})
        == expected
    )
    assert resolve_faithfulness_tests({"erasure": {}, "permutation": Permutation(7)}) == expected
    assert [*resolve_faithfulness_tests(["default", "fragility"])] == ["default", "fragility"]
    assert (
        resolve_faithfulness_tests(None)
        == resolve_faithfulness_tests("default")
        == {"default": NoOptions()}
    )
    assert resolve_faithfulness_tests(["permutation", Permutation(7), "permutation"]) == {
        "permutation": Permutation(7)
    }
    with pytest.raises(
        AttnProbeError, match="'permutation' is listed twice with different options"
    ):
        resolve_faithfulness_tests([Permutation(7), Permutation(8)])
    for wrong in ([NoOptions()], ["erasures"], [3]):
        with pytest.raises(AttnProbeError, match="unknown test"):
            resolve_faithfulness_tests(wrong)


# --- needs --------------------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch):
    """Attention classifiers that lack some capabilities."""

    def lacks(*capabilities):
        from hf_attnprobe.adapters.classifier.adapter import ClassifierAdapter

        known = ClassifierAdapter.lacks

        def answer(self, capability, site=None):
            if capability in capabilities:
                return "this one cannot"
            return known(self, capability, site)

        monkeypatch.setattr(ClassifierAdapter, "lacks", answer)

    return lacks


def test_what_a_model_lacks_is_left_out_and_said_once(without, checkpoint, reviews, caplog):
    without(EditableInputs)
    data = reviews["test"].select(range(3))
    report = audit(checkpoint, data, progress=False)
    left_out = report.provenance["left_out"]
    assert left_out.keys() == {"scale", "correlation", "input_erasure", "plausibility"}
    assert set(left_out.values()) == {"this one cannot (1 of 1 heads)"}
    said = [record.message for record in caplog.records if "left out" in record.message]
    assert said == [f"the test {name} is left out: {reason}" for name, reason in left_out.items()]
    assert "fraction_to_flip@leave_one_out" not in set(report.to_pandas().statistic)
    with pytest.raises(AttnProbeError, match="test 'correlation' cannot run: this one"):
        audit(checkpoint, data, ["correlation"], progress=False)


def test_one_of_two_needs_is_enough(without, checkpoint, reviews):
    data = reviews["test"].select(range(3))
    without(Differentiable)
    options = {"tests": ["adversarial"], "test_limit": 2}
    assert audit_by_name(checkpoint, data, **options).n == 2
    without(Differentiable, LinearReadout)
    with pytest.raises(AttnProbeError, match="test 'adversarial' cannot run"):
        audit_by_name(checkpoint, data, **options)


# --- reports of many heads ----------------------------------------------------------------


def test_a_statistic_of_a_registered_test_is_shown_of_every_head(alone, tokenizer, reviews):
    @dataclass(frozen=True)
    class Result:
        first_weight: torch.Tensor

    def first(observation, site, options: NoOptions, *, seed):
        """A test without titles."""
        return Result(observation.read(site)[:, 0])

    registry.register_test(readings={"first_weight": "{mean:.2f}"})(first)
    model, few = tiny_models.bert(tokenizer, spread=0.02), reviews["test"].select(range(10))
    report = audit(model, few, ["first"], tokenizer=tokenizer, progress=False)
    shown = report.to_markdown()
    for layer, head in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert f"| first_weight ({layer}.{head}) | all | " in shown
