"""How tests register, what is refused, and what follows for a test of an installed package."""

import dataclasses
import json
import os
import re
from dataclasses import dataclass

import pytest
import torch

from by_name import audit_by_name
from hf_attnprobe import AttnProbeError, Options, audit, faithfulness, option
from hf_attnprobe.attention_model import Differentiable, EditableInputs, LinearReadout
from hf_attnprobe.faithfulness import Erasure, NoOptions, Permutation, registry
from hf_attnprobe.faithfulness.registry import options_of_tests, parse_tests
from hf_attnprobe.storage.rows import read_rows


PYTHONPATH = [path for path in [os.environ.get("PYTHONPATH")] if path]
# What an outsider writes: one module, and one line of entry points.
ENTROPY = """
from dataclasses import dataclass

import torch

from hf_attnprobe import Observation, Options, Site, option, register_test


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


COMMANDS = """
import json, sys
from hf_attnprobe.cli import main
for command in json.loads(sys.argv[1]):
    try:
        code = main(command)
    except SystemExit as stop:
        code = stop.code
    print(f"\\nENDED {code}")
"""


def test_an_installed_test_is_one_of_the_tests(
    installed, run_python, checkpoint, reviews_folder, tmp_path
):
    """In one process: the help, an audit, and a value that is refused."""
    command = ["audit", "--model", str(checkpoint), "--dataset", str(reviews_folder)]
    few = ["--test-limit", "3", "--json", "--output-dir", str(tmp_path / "out")]
    commands = [
        ["audit", "--help"],
        [*command, *few, "--base", "10"],
        [*command, "--base", "1"],
    ]
    run = run_python("-c", COMMANDS, json.dumps(commands), env=installed)
    assert run.code == 0, run.err
    shown, audited, refused, _ = re.split(r"\nENDED ", run.out)
    assert "attention_entropy" in shown and "--base BASE" in shown
    ended, _, report = audited.partition("\n")
    assert ended == "0", run.err  # of the command before
    found = json.loads(report)
    assert "attention_entropy" in found["provenance"]["tests"]
    assert found["provenance"]["options"]["attention_entropy"] == {"base": 10.0}
    report = (tmp_path / "out" / "report.md").read_text()
    assert "## attention_entropy" in report
    assert "the attention of a text has an entropy of" in report
    assert refused.startswith("0\n") and run.out.endswith("ENDED 2\n")
    assert "must be at least 1.5" in run.err


STUDY = """
title: entropies
steps:
  - name: audit
    verb: audit
    with: {model: "%s", dataset: "%s", tests: [attention_entropy], base: 10}
    quick: {test_limit: 3}
tables:
  - title: entropy
    columns:
      - {name: entropy, step: audit, statistic: entropy}
"""


def test_an_installed_test_fills_a_column_of_a_study(
    installed, run_module, checkpoint, reviews_folder, tmp_path
):
    assert len(ENTROPY.strip().splitlines()) <= 60
    file = tmp_path / "entropies.yaml"
    file.write_text(STUDY % (checkpoint, reviews_folder))
    folder = tmp_path / "out"
    command = ("study", file, "--output-dir", folder, "--quick", "--json")
    run = run_module(*command, env=installed)
    assert run.code == 0, run.err
    (table,) = json.loads(run.out)["tables"]
    assert "entropy" in table["head"]
    value = table["rows"][0][table["head"].index("entropy")]["value"]
    rows = read_rows(folder / "audit" / "rows")
    entropies = rows[rows.test == "attention_entropy"].value
    assert len(entropies) == 3 and value == pytest.approx(entropies.mean())
    report = (folder / "report.md").read_text()
    assert "## entropy" in report and f"{value:.3f}" in report


METRIC = """
import json, sys, evaluate, hf_attnprobe
metric = evaluate.load(hf_attnprobe.metric_path())
model, texts = sys.argv[1], json.loads(sys.argv[2])
for base in (2.0, 4.0):
    found = metric.compute(
        predictions=texts, model_id=model, tests=["attention_entropy"], base=base
    )
    print(found["mean_attention_entropy_entropy"])
"""


def test_an_installed_test_is_in_the_metric(installed, run_python, checkpoint, texts):
    run = run_python("-c", METRIC, checkpoint, json.dumps(texts[:3]), env=installed)
    assert run.code == 0, run.err
    two, four = map(float, run.out.split())
    assert two == pytest.approx(2 * four) and two > 0


def test_what_does_not_load_names_its_package(run_module, tmp_path):
    broken = install(tmp_path / "broken", "raise ImportError('no such thing')")
    run = run_module("audit", "--help", env=broken)
    assert (run.code, run.out) == (1, "")
    assert run.err.endswith(
        "cannot load the test 'attention_entropy' of the package 'entropy-probe': no such "
        "thing; update or uninstall that package\n"
    )


# --- registration -------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """Whatever is registered goes away again."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_built_in_tests_in_their_order():
    assert list(faithfulness.tests())[:5] == [
        "correlation",
        "permutation",
        "adversarial",
        "erasure",
        "input_erasure",
    ]
    for name, test in faithfulness.tests().items():
        assert test.name == name == test.function.__name__
        has_table_of_its_own = name == "attention_by_tag"  # its keys are the data's
        assert test.head_titles or has_table_of_its_own, name
        titled = {*test.head_titles, *test.layer_titles, *test.estimates}
        assert {statistic.split("@")[0] for statistic in titled} <= set(test.readings)


def test_a_name_that_is_taken(alone):
    def erasure(observation, site, options: NoOptions, *, seed):
        """Another one."""

    with pytest.raises(AttnProbeError, match="'erasure' exists already; rename the func"):
        faithfulness.register_test(readings={})(erasure)


@pytest.mark.parametrize("name", ["n_permutations", "seed", "layers", "dataset"])
def test_an_option_that_means_something_else(name, alone):
    kind = dataclasses.make_dataclass(
        "Other", [(name, int, option(3, "other"))], bases=(Options,), frozen=True
    )

    def other(observation, site, options, *, seed):
        """A test whose option has the name of another's."""

    other.__annotations__ = {"options": kind}
    with pytest.raises(AttnProbeError, match=f"new name for the option '{name}' of Other"):
        faithfulness.register_test(readings={})(other)


def test_an_option_that_means_the_same(alone):
    @dataclass(frozen=True)
    class Same(Options):
        n_permutations: int = option(100, "random shuffles per text", at_least=1, at_most=100_000)

    def same(observation, site, options: Same, *, seed):
        """A test that shares an option."""

    same.__annotations__ = {"options": Same}
    faithfulness.register_test(readings={})(same)
    assert parse_tests(["same"], {"n_permutations": 7}) == ["same", Same(7)]
    several = parse_tests(None, {"n_permutations": 7})
    assert several == ["default", Permutation(7), Same(7)]


# --- what is asked for --------------------------------------------------------------------


def test_names_and_options_together():
    asked, by_default = options_of_tests(["erasure", Permutation(n_permutations=7)])
    assert asked == {"erasure": Erasure(), "permutation": Permutation(7)}
    assert not by_default
    asked, by_default = options_of_tests(["default", "fragility", "permutation"])
    assert list(asked) == ["fragility", "permutation"] and by_default
    assert options_of_tests(None) == options_of_tests("default") == ({}, True)
    once, _ = options_of_tests(["permutation", Permutation(7), "permutation"])
    assert once == {"permutation": Permutation(7)}
    with pytest.raises(AttnProbeError, match="options of permutation once"):
        options_of_tests([Permutation(7), Permutation(8)])
    for wrong in ([NoOptions()], ["erasures"], [3]):
        with pytest.raises(AttnProbeError, match="unknown test"):
            options_of_tests(wrong)


def test_values_by_name():
    assert parse_tests(None, {}) == ["default"]
    said = parse_tests(None, {"n_permutations": 100})  # also where it is the default
    assert said == ["default", Permutation(100)]
    assert parse_tests("erasure", {"n_permutations": 7}) == ["erasure"]
    assert parse_tests(None, {"n_draws": 3}) == ["default"]  # fragility is on request
    with pytest.raises(AttnProbeError, match="expected uniform or released for draw"):
        parse_tests(None, {"draw": "some"})


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
    assert left_out.keys() == {"correlation", "input_erasure", "plausibility"}
    assert set(left_out.values()) == {"this one cannot (1 of 1 heads)"}
    assert [record.message for record in caplog.records] == [
        f"the test {name} is left out: {reason}" for name, reason in left_out.items()
    ]
    assert "fraction_to_flip@leave_one_out" not in set(report.rows.statistic)
    with pytest.raises(AttnProbeError, match="test correlation cannot be run: this one"):
        audit(checkpoint, data, ["correlation"], progress=False)


def test_one_of_two_needs_is_enough(without, checkpoint, reviews):
    data = reviews["test"].select(range(3))
    without(Differentiable)
    options = {"tests": ["adversarial"], "test_limit": 2}
    assert audit_by_name(checkpoint, data, **options).n == 2
    without(Differentiable, LinearReadout)
    with pytest.raises(AttnProbeError, match="test adversarial cannot be run"):
        audit_by_name(checkpoint, data, **options)


# --- reports of many heads ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["conicity", "fragility", "plausibility", "single_token"])
def test_every_test_prints_something_of_many_heads(name, make_model, tokenizer, reviews):
    report = audit(
        _bert(tokenizer),
        reviews["test"].select(range(2)),
        [name],
        tokenizer=tokenizer,
        progress=False,
    )
    assert "| layer | head 0 | head 1 |" in report.to_text(verbose=True)


def test_a_statistic_without_a_title_has_a_generic_one(alone, tokenizer, reviews):
    @dataclass(frozen=True)
    class Result:
        first_weight: torch.Tensor

    def first(observation, site, options: NoOptions, *, seed):
        """A test without titles."""
        return Result(observation.read(site)[:, 0])

    faithfulness.register_test(readings={"first_weight": "{mean:.2f}"})(first)
    report = audit(
        _bert(tokenizer),
        reviews["test"].select(range(2)),
        ["first"],
        tokenizer=tokenizer,
        progress=False,
    )
    assert "### first_weight: first weight" in report.to_text(verbose=True)


def _bert(tokenizer):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    return BertForSequenceClassification(config).eval()
