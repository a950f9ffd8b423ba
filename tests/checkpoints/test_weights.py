"""Versions of a model: rounding against plain NumPy, equal weights, what changes an answer."""

import copy
import json
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_attnprobe import AttnProbeError, AuditOptions, audit, compare, list_changed_answers
from hf_attnprobe.audits.options import WeightChange
from hf_attnprobe.checkpoints.weights import (
    INT4_GROUP_SIZE,
    RANDOMISERS,
    WEIGHT_CHANGES,
    change_weights,
    prune_half,
    round_to_steps,
)
from hf_attnprobe.reports.comparison import iterate_compared_statistics
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.transformer_families import tiny_model


TESTS = ["permutation", "uniform_attention"]


@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, INT4_GROUP_SIZE), (4, 5), (2, 1)])
def test_rounding_is_that_of_numpy(bits, group):
    weight = torch.randn(7, 300, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    found = round_to_steps(weight, bits, group).numpy()
    for k, row in enumerate(weight.numpy()):
        for start in range(0, 300, group or 300):
            part = row[start : start + (group or 300)]
            step = np.abs(part).max() / (2 ** (bits - 1) - 1)
            expected = step * np.rint(part / step) if step else part
            told = found[k, start : start + len(part)]
            np.testing.assert_allclose(told, expected, rtol=0, atol=1e-6)
            assert len(np.unique(told)) <= 2**bits - 1


def test_pruning_takes_the_smaller_half():
    weight = torch.randn(7, 30, generator=torch.Generator().manual_seed(0))
    found = prune_half(weight)
    assert int((found == 0).sum()) == 105
    assert weight[found == 0].abs().max() < weight[found != 0].abs().min()
    assert torch.equal(found[found != 0], weight[found != 0])


@pytest.mark.parametrize("how", WEIGHT_CHANGES)
def test_matrices_change_and_nothing_else(how):
    model = tiny_models.bert()
    before = copy.deepcopy(model.state_dict())
    change_weights(model, how)
    linear = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name, after in model.state_dict().items():
        assert torch.equal(after, before[name]) != (name in linear), name


def test_experts_are_refused():
    """Whose matrices are stacked in one parameter, some with inputs first."""
    model = tiny_model("MixtralForCausalLM", "mixtral")
    refused("most weights of MixtralForCausalLM are in other layers", change_weights, model, "int8")


def test_every_version_has_a_change():
    assert {*WEIGHT_CHANGES, *RANDOMISERS} == set(get_args(WeightChange))


@pytest.fixture(scope="module")
def survived(checkpoint, reviews_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("survival") / "out"
    versions = ["int8", "pruned", checkpoint]
    options = AuditOptions(prune=False)
    given = {"options": options, "output_dir": folder, "progress": False}
    return compare(checkpoint, versions, reviews_folder, TESTS, **given), folder


def test_equal_weights_differ_by_exactly_nothing(survived):
    comparison, _folder = survived
    same = [d for _, number, d in iterate_compared_statistics(comparison) if number == 3]
    assert same
    for difference in same:
        assert difference.value == 0, difference
    assert not any("3" in sentence.split(":")[0] for sentence in list_changed_answers(comparison))
    other = [d.value for _, number, d in iterate_compared_statistics(comparison) if number == 2]
    assert any(other)


def test_a_version_is_audited_as_that_model_is(survived, checkpoint, reviews_folder):
    """Rounded by hand and given as an object, with the user's own model left as it was."""
    comparison, _folder = survived
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    before = copy.deepcopy(model.state_dict())
    given = {"tokenizer": tokenizer, "progress": False}
    options = AuditOptions(prune=False, weights="int8")
    by_option = audit(model, reviews_folder, TESTS, options=options, **given)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    change_weights(model, "int8")
    by_hand = audit(model, reviews_folder, TESTS, options=AuditOptions(prune=False), **given)
    for report in (by_option, comparison.reports[1]):
        assert report.statistics == by_hand.statistics
    assert by_option.provenance["origin"]["weights"] == "int8"


def test_the_page_names_every_version(survived):
    comparison, folder = survived
    assert len(set(comparison.names)) == 4
    page = (folder / "report.html").read_text()
    assert all(name in page for name in comparison.names)
    assert json.loads((folder / "comparison.json").read_text())["names"] == list(comparison.names)


@pytest.mark.slow
def test_a_certain_change_is_an_exit_code(checkpoint, reviews_folder, tmp_path, cli):
    """Of a model whose attention no longer tells tokens apart, so that shuffles do nothing."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def with_attention_times(factor, name):
        model = AutoModelForSequenceClassification.from_pretrained(checkpoint)
        with torch.no_grad():
            for parameter in model.attention_classifier.attention.parameters():
                parameter.mul_(factor)
        return tiny_models.saved(tmp_path / name, model, tokenizer)

    sharp, even = with_attention_times(10, "sharp"), with_attention_times(0, "even")
    command = ("compare", sharp, even, "--dataset", reviews_folder, "--no-prune")
    command += ("--tests", "permutation", "--output-dir", tmp_path / "out")
    done = cli(*command, "--fail-on-change")
    assert done.code == 3
    assert "changed: effect is no for even, yes for sharp" in done.err
    assert cli(*command).code == 0
    audits = [tmp_path / "out" / name for name in ("0-model", "1-even")]
    again = cli("report", *audits, "--fail-on-change")
    assert again.code == 3
    assert again.err == "attnprobe: changed: effect is no for even, yes for sharp\n"
    assert cli("report", *audits).code == 0


@pytest.mark.parametrize(
    ("versions", "options", "message"),
    [
        ([], {}, "at least one version to compare with the model, got none"),
        ("int8", {}, "expected a list for versions of compare"),
        (["int8"], {"weights": "int4"}, r"pass versions=\['int4'\] instead"),
        (["int8", "/typo"], {}, "expected a model at /typo, which does not exist"),
    ],
)
def test_bad_versions(versions, options, message, checkpoint, reviews_folder, tmp_path):
    with pytest.raises(AttnProbeError, match=message):
        given = {"options": AuditOptions(**options), "output_dir": tmp_path / "out"}
        compare(checkpoint, versions, reviews_folder, **given)
    assert not (tmp_path / "out").exists()
