"""The audit of a Transformer's heads from the command line and in Python: a tiny BERT in a folder, with its tokenizer."""

import shutil

import pandas as pd
import pytest
from transformers import BertModel, FNetConfig, FNetForSequenceClassification

from hf_attnprobe import build_tokenizer, make_rationale_dataset
from hf_attnprobe.audits.site_selection import assign_half
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.reports.head_tables import get_head_means
from hf_attnprobe.reports.report import read_audit
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name
from tests.helpers.compare_rows import assert_same_rows
from tests.helpers.error_messages import refused


N_LAYERS, N_HEADS = 2, 3


@pytest.fixture(scope="module")
def data():
    return make_rationale_dataset(60, seed=0, max_tokens=8)["test"]


@pytest.fixture(scope="module")
def tokenizer(data):
    tokenizer = build_tokenizer(data["text"])
    tokenizer.model_max_length = 64
    return tokenizer


@pytest.fixture(scope="module")
def make(tokenizer):
    """A function from changes to a BERT."""
    return lambda **changes: tiny_models.bert(
        tokenizer, layers=N_LAYERS, heads=N_HEADS, width=24, spread=0.5, **changes
    )


@pytest.fixture
def folder(make, tokenizer, tmp_path):
    return tiny_models.saved(tmp_path / "bert", make(), tokenizer)


def quick(model, data, **options):
    return audit_by_name(model, data, **{"test_limit": 4, "n_permutations": 3} | options)


def test_every_head_and_every_test(folder, data, tmp_path):
    report = quick(folder, data, output_dir=tmp_path / "out")
    heads = {(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS)}
    for name in (
        "median_tvd",
        "uniform_tvd",
        "zero_tvd",
        "mean_tvd",
        "epsilon_max_jsd@0.05",
        "attention_leave_one_out_tau",
    ):
        assert get_head_means(report.statistics, name).keys() == heads
    text = (tmp_path / "out" / "report.md").read_text()
    assert "Which heads matter" in text
    assert report.head_pairs is not None


def test_pairs_of_heads_can_be_left_out(folder, data, tmp_path, cli):
    kept, left_out = (
        quick(folder, data, tests=["head_ablation"], prune=prune) for prune in (True, False)
    )
    assert kept.head_pairs is not None and left_out.head_pairs is None
    assert kept.statistics == left_out.statistics
    data.select(range(4)).save_to_disk(tmp_path / "data")
    command = ["audit", "--model", folder, "--dataset", tmp_path / "data", "--split", "train"]
    command += ["--tests", "head_ablation", "--no-prune", "--output-dir", tmp_path / "out"]
    assert cli(*command).code == 0
    assert read_audit(tmp_path / "out").head_pairs is None


def means(rows, statistic, ids):
    """The mean of a statistic over some texts by (layer, head), in plain pandas."""
    wanted = rows[(rows.statistic == statistic) & rows.example_id.isin(ids)]
    wanted = wanted[(wanted.layer >= 0) & (wanted["head"] >= 0)]  # no groups of heads
    return wanted.groupby(["layer", "head"]).value.mean().to_dict()


def halves(report):
    ids = report.to_pandas().example_id.unique()
    return [[i for i in ids if assign_half(i) == half] for half in (0, 1)]


def test_a_screen_tests_the_heads_that_the_other_half_puts_first(make, tokenizer, data):
    """No text has a say in which heads it is tested at."""
    chosen_in_sample = []
    for model_seed in range(4):
        model = make(seed=model_seed)
        quick_rows = quick(
            model, data, test_limit=10, screen=2, tests=["uniform_attention"], tokenizer=tokenizer
        )
        rows = quick_rows.to_pandas()
        ours, theirs = halves(quick_rows)
        assert ours and theirs
        for half, others in ((ours, theirs), (theirs, ours)):
            estimates = means(rows, "first_order_even", others)
            assert len(estimates) == N_LAYERS * N_HEADS
            tested = set(means(rows, "uniform_tvd", half))
            assert tested == set(sorted(estimates, key=estimates.get)[-2:])
            own = means(rows, "first_order_even", half)
            chosen_in_sample.append(tested == set(sorted(own, key=own.get)[-2:]))
        uniform = [s for s in quick_rows.statistics if s.statistic == "uniform_tvd"]
        sizes = {s.n for s in uniform if s.group == "all"}
        assert sizes <= {len(ours), len(theirs), len(ours) + len(theirs)}
    assert not all(chosen_in_sample)  # else this test could not tell the two apart


def test_a_screened_head_has_the_value_it_has_without_a_screen(folder, data, tmp_path):
    given = {"tests": ["uniform_attention"]}
    screened_options = given | {"screen": 2, "output_dir": tmp_path / "out"}
    screened = quick(folder, data, **screened_options).to_pandas()
    everywhere = quick(folder, data, **given).to_pandas()
    keys = ["statistic", "example_id", "layer", "head"]
    both = screened[screened.statistic == "uniform_tvd"].merge(everywhere, on=keys)
    both = both[both["head"] >= 0]  # groups are tested whatever the screen says
    assert len(both) == 2 * 4 and (both.value_x - both.value_y).abs().max() < 1e-6
    # Other texts may put other heads first.
    refused("belongs to another audit", quick, folder, data, **screened_options, test_limit=6)


@pytest.mark.slow
def test_a_screened_audit_is_continued_with_the_same_heads(folder, data, tmp_path):
    options = {"screen": 1, "tests": ["uniform_attention"], "test_limit": 8}
    whole = quick(folder, data, output_dir=tmp_path / "whole", **options)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    parts = sorted((tmp_path / "cut" / "rows").glob("part-*.parquet"))
    for part in parts:  # as if it had been interrupted before the tests, after the screen
        if "uniform_attention" in set(pd.read_parquet(part).test):
            part.unlink()
    assert len(list((tmp_path / "cut" / "rows").glob("part-*.parquet"))) < len(parts)
    again = quick(folder, data, output_dir=tmp_path / "cut", batch_size=1, **options)
    assert_same_rows(again.to_pandas(), whole.to_pandas(), tolerance=1e-5)


def test_a_screen_of_texts_of_one_half_is_refused(folder, data, tmp_path):
    ids = [i for i in range(100) if assign_half(i) == 0][:3]
    texts = [row | {"example_id": i} for i, row in zip(ids, data.to_list()[:3], strict=True)]
    refused("Audit more texts", quick, folder, texts, screen=1, output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_audited_says_why(folder, data, make, tokenizer, tmp_path):
    tiny_models.saved(tmp_path / "base", make(kind=BertModel), tokenizer)
    fnet = FNetForSequenceClassification(FNetConfig(vocab_size=len(tokenizer), hidden_size=16))
    broken = make()
    broken.classifier.bias.data[0] = float("nan")
    own = {"tokenizer": tokenizer}
    for model, options, said in (
        (folder, {"layers": [7]}, "expected --layers from 0 to 1 for this model, got 7"),
        (folder, {"heads": [3]}, "expected --heads from 0 to 2 for this model, got 3"),
        (folder, {"layers": []}, "--layers needs at least one layer"),
        (folder, {"query": 500}, "500"),
        (tmp_path / "base", {}, "attnprobe train --model"),
        (fnet, own, "attention"),
        (make(vocab_size=9), own, "tokenizer"),
        (broken, own, "the model returns NaN or infinity for all 10 texts of a sample"),
    ):
        with pytest.raises(AttnProbeError, match=said):
            quick(model, data, output_dir=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_long_texts_are_cut_and_counted_or_refused(folder, data):
    long = [{"example_id": 7, "text": " ".join(["film"] * 200), "label": 0}, *data.to_list()[:2]]
    report = quick(folder, long, tests=["uniform_attention"])
    assert report.provenance["truncated"] == 1 and report.n == 3
    with pytest.raises(
        AttnProbeError, match="text 7 has 202 tokens, but the model reads at most 64"
    ):
        quick(folder, long, tests=["uniform_attention"], truncate=False)
