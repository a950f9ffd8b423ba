"""Layers, all attention and sets of heads in an audit: from the command line to the report's table."""

import re
from types import SimpleNamespace

import pytest
import torch

from hf_attnprobe import build_tokenizer, make_rationale_dataset
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.documents.markdown import render_markdown_blocks
from hf_attnprobe.faithfulness.input_erasure import ERASURE_CAUTION
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.protocol import ALL, HEAD_SET, Site
from hf_attnprobe.reports.head_tables import build_head_table, build_parts_section
from hf_attnprobe.reports.report import read_audit
from hf_attnprobe.statistics.summary import PREDICTION_TEST
from hf_attnprobe.storage.rows import NO_SITE, append_rows, build_rows
from hf_attnprobe.studies.paper_tables import Results
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name
from tests.helpers.compare_rows import index_values


N_LAYERS, N_HEADS = 2, 3
HEADS = {(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS)}
LAYERS = {(layer, ALL) for layer in range(N_LAYERS)}
EVERYWHERE = (ALL, ALL)
EDITS = ["permutation", "uniform_attention", "head_ablation"]


@pytest.fixture(scope="module")
def data():
    return make_rationale_dataset(60, seed=0, max_tokens=8)["test"]


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    tokenizer = build_tokenizer(data["text"])
    tokenizer.model_max_length = 64
    model = tiny_models.bert(tokenizer, layers=N_LAYERS, heads=N_HEADS, width=24, spread=0.5)
    return tiny_models.saved(tmp_path_factory.mktemp("bert"), model, tokenizer)


def quick(folder, data, **options):
    given = {"test_limit": 4, "n_permutations": 3, "tests": EDITS, "prune": False}
    return audit_by_name(folder, data, **given | options)


def places(report, test):
    rows = report.to_pandas()
    of_test = rows.loc[rows.test == test, ["layer", "head"]]
    return set(of_test.itertuples(index=False, name=None))


@pytest.mark.slow
def test_from_the_command_line(folder, data, tmp_path, cli):
    data.select(range(3)).save_to_disk(tmp_path / "data")
    command = ["audit", "--model", folder, "--dataset", tmp_path / "data"]
    command += ["--split", "train", "--set", "permutation.n_permutations=3", "--tests"]
    command += [*EDITS, "correlation", "input_erasure", "explanations"]
    command += ["--output-dir", tmp_path / "out", "--head-sets", "1.0", "1.2+0.1"]
    done = cli(*command)
    assert done.code == 0, done.err
    report = read_audit(tmp_path / "out")
    assert report.provenance["head_sets"] == ["1.0", "0.1+1.2"]
    groups = {EVERYWHERE, *LAYERS, (HEAD_SET, 0), (HEAD_SET, 1)}
    for test in (*EDITS, "input_erasure"):
        assert places(report, test) == HEADS | groups
    assert places(report, "correlation") == HEADS | groups
    assert places(report, "explanations") == HEADS | LAYERS

    values = index_values(report.to_pandas())
    for statistic, test in (("median_tvd", EDITS[0]), ("zero_flip", EDITS[2])):
        single = values.loc[test, statistic, :, 1, 0]
        assert (values.loc[test, statistic, :, HEAD_SET, 0] - single).abs().max() < 1e-12

    again = cli(*command[:-1], "1.2")  # other sets are another audit
    assert again.code != 0 and "belongs to another audit" in again.err


def test_left_out_on_request_and_in_models_of_one_head(folder, data, checkpoint, reviews):
    report = quick(folder, data, groups=False, test_limit=2)
    assert places(report, "permutation") == HEADS
    report = quick(folder, data, groups=False, test_limit=2, head_sets=["0.0+1.1"])
    assert places(report, "permutation") == {*HEADS, (HEAD_SET, 0)}
    report = quick(checkpoint, reviews["test"], tests=["permutation"], test_limit=2)
    assert places(report, "permutation") == {(0, 0)}
    assert not build_parts_section(report.statistics)


def test_a_part_of_the_heads_has_the_groups_that_are_whole(folder, data):
    report = quick(folder, data, layers=[1], test_limit=2)
    assert places(report, "head_ablation") == {(1, 0), (1, 1), (1, 2), (1, ALL)}
    assert "all attention" not in [row[0] for row in build_head_table(report).rows]
    report = quick(folder, data, heads=[0, 2], test_limit=2)
    assert all(min(place) >= 0 for place in places(report, "head_ablation"))


def test_groups_alone(folder, data):
    report = quick(
        folder, data, tests=["permutation", "conicity"], single_heads=False, test_limit=2
    )
    assert places(report, "permutation") == {EVERYWHERE, *LAYERS}
    assert report.provenance["tests"] == ["permutation"]
    assert "single heads" in report.provenance["left_out"]["conicity"]
    assert "  all attention " in report.to_text(verbose=True)
    for options, message in (
        ({"tests": ["conicity"]}, "can run on groups of heads"),
        ({"screen": 1}, "--screen"),
        ({"groups": False}, "has no groups of heads"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            quick(folder, data, single_heads=False, test_limit=4, **options)


def test_a_screen_leaves_the_groups_whole(folder, data):
    report = quick(folder, data, screen=1, test_limit=4)
    found = places(report, "uniform_attention")
    assert found >= {EVERYWHERE, *LAYERS} and 1 <= len(found & HEADS) <= 2


def test_the_table_says_what_the_rows_say(folder, data):
    report = quick(folder, data, head_sets=["0.1+1.2"], test_limit=10)
    lines = render_markdown_blocks([build_head_table(report)])[0].splitlines()
    table = [[c.strip() for c in line.split("|")[1:-1]] for line in lines if "|" in line]
    head, cells = table[0], {row[0]: row for row in table[2:]}
    names = ["all attention", "layer 0", "layer 1", "heads 0.1+1.2", "1.2"]
    assert list(cells)[:4] == names[:4] and len(cells) == 4 + len(HEADS)
    rows = report.to_pandas()
    columns = {
        "effect": "standard_tvd",
        "worst shuffle": "largest_standard_tvd",
        "made uniform": "uniform_tvd",
        "zeroed": "zero_tvd",
        "replaced by its mean": "mean_tvd",
    }
    for place, name in zip(
        (EVERYWHERE, (0, ALL), (1, ALL), (HEAD_SET, 0), (1, 2)), names, strict=True
    ):
        here = rows[(rows.layer == place[0]) & (rows["head"] == place[1])]
        means = here.groupby("statistic").value.mean()
        for column, statistic in columns.items():
            if statistic in means:
                cell = cells[name][head.index(column)]
                assert float(cell.split()[0]) == pytest.approx(means[statistic], abs=6e-3)
    assert re.fullmatch(
        r"\d\.\d{2} \[\d\.\d{2}, \d\.\d{2}\]", cells["layer 0"][head.index("effect")]
    )


def test_a_study_reads_the_head_and_no_group(tmp_path):
    """A column of a study is about one head; rows of groups stand before it in the folder."""
    sites = {Site(HEAD_SET, 0): 0.9, Site(ALL, ALL): 0.8, Site(0, ALL): 0.7, Site(0, 0): 0.1}
    tested = {
        site: {"median_tvd": torch.tensor([value], dtype=torch.float64)}
        for site, value in sites.items()
    }
    right = dict.fromkeys(("label", "predicted_class"), torch.tensor([1.0]))
    for test, found in (("permutation", tested), (PREDICTION_TEST, {NO_SITE: right})):
        append_rows(tmp_path / "heads" / "rows", build_rows(test, [5], found))
    found = Results._read_statistics(SimpleNamespace(folder=tmp_path), "heads")
    assert found.median_tvd.tolist() == [0.1] and found.accuracy.tolist() == [1.0]


def test_a_caution_stands_with_the_numbers_of_erased_inputs(folder, data, checkpoint):
    """In the report of one head, in that of many; the sentences name the operator."""
    of_one = quick(checkpoint, data, tests=["input_erasure"], test_limit=10)
    many = quick(folder, data, tests=["input_erasure"], test_limit=2)
    for report in (of_one, many):
        assert ERASURE_CAUTION in report.to_markdown()
    for name in ("comprehensiveness", "sufficiency"):
        assert f"{name}@attention: with" in of_one.to_markdown()
        assert "deleted, or masked" in load_readings()["input_erasure"][name]
