"""A result depends on the model, the text and the seed: on nothing about how the work was cut up."""

import json
import random

import numpy as np
import pandas as pd
import pytest
import torch

from hf_attnprobe import audit
from hf_attnprobe.cli import main
from hf_attnprobe.statistics.summary import PREDICTION_TEST
from hf_attnprobe.storage.rows import read_rows
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name
from tests.helpers.child_processes import WriteMonitor, run_in_child
from tests.helpers.compare_rows import assert_same_rows, index_values


TESTS = ("correlation", "permutation", "adversarial")
KINDS = [(e, a, 2) for e in ("bilstm", "cnn", "mlp") for a in ("additive", "dot_product")] + [
    ("bilstm", "additive", 4)
]


@pytest.fixture(scope="module")
def examples(reviews):
    """Twelve texts of many lengths, with one of a single token; ids that are no row numbers."""
    rows = [
        {"example_id": 900 - k, "text": row["text"], "label": row["label"]}
        for k, row in enumerate(reviews["test"])
    ]
    return [*rows[:11], {"example_id": 7, "text": "superb", "label": 1}]


@pytest.fixture(scope="module")
def rows_of(make_checkpoint):
    """A function to the rows of an audit of the given kind of model."""

    def run(data, kind=(), tests=TESTS, **options):
        return audit_by_name(make_checkpoint(*kind), data, tests=tests, **options).to_pandas()

    return run


@pytest.fixture(scope="module")
def usual(rows_of, examples):
    """The rows of an audit that was cut up as audits are."""
    return rows_of(examples)


# --- batches, padding, order, seeds -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny_models.daily(KINDS, ("bilstm",)), ids=str)
def test_one_text_at_a_time_or_all_together(kind, rows_of, examples):
    """One at a time is unpadded, together is padded to the longest."""
    data = examples if kind[2] == 2 else examples[-4:]  # more classes mean the slow search
    assert_same_rows(rows_of(data, kind, batch_size=1), rows_of(data, kind, batch_size=64))


@pytest.mark.parametrize("kind", [(), ("cnn", "additive", 2)], ids=str)
def test_the_order_of_the_data_set(kind, rows_of, examples):
    shuffled = random.Random(0).sample(examples, len(examples))
    assert_same_rows(rows_of(shuffled, kind), rows_of(examples, kind))


def test_which_other_texts_are_audited(rows_of, usual, examples):
    """Only the standard temperature depends on them: it is that of all texts of an audit."""
    whole, some = (
        rows[~rows.statistic.isin(["standard_tvd", "largest_standard_tvd"])]
        for rows in (usual, rows_of(examples[3:6]))
    )
    assert_same_rows(some, whole[whole.example_id.isin(some.example_id)])


def test_the_state_of_the_random_numbers(rows_of, examples):
    torch.manual_seed(5)
    np.random.seed(5)
    first = rows_of(examples, tests=["permutation"])
    state = torch.get_rng_state()
    torch.manual_seed(6)
    pd.testing.assert_frame_equal(rows_of(examples, tests=["permutation"]), first)
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)  # and leaves it alone


def test_another_seed_shuffles_otherwise(rows_of, examples):
    first, second = (index_values(rows_of(examples, seed=seed)) for seed in (0, 1))
    changed = {statistic for _, statistic, *_ in first.index[(first - second).abs() > 1e-12]}
    drawn = {"median_tvd", "standard_tvd", "flips_drawn"}
    assert changed == drawn
    longer = first.index[(first.index.get_level_values("statistic") == "median_tvd") & (first > 0)]
    assert (first[longer] != second[longer]).mean() > 0.9


# --- one folder, several runs -------------------------------------------------------------------------------------


def parts(folder):
    return {file.name: file.stat().st_mtime_ns for file in (folder / "rows").iterdir()}


def names_in(folder, names):
    return set(pd.concat(pd.read_parquet(folder / "rows" / name) for name in names).test)


def test_tests_added_later(rows_of, usual, examples, tmp_path):
    rows_of(examples, tests=["permutation"], output_dir=tmp_path)
    before = parts(tmp_path)
    found = rows_of(examples, output_dir=tmp_path)
    after = parts(tmp_path)
    assert before.items() <= after.items()
    assert names_in(tmp_path, after.keys() - before.keys()) == {"correlation", "adversarial"}
    assert_same_rows(found, usual)
    assert_same_rows(read_rows(tmp_path / "rows"), found)
    only = rows_of(examples, tests=["correlation"], output_dir=tmp_path)
    assert parts(tmp_path) == after and set(only.test) == {"correlation", PREDICTION_TEST}


def test_texts_added_later(rows_of, usual, examples, tmp_path):
    few = set(rows_of(examples, test_limit=4, output_dir=tmp_path).example_id)
    before = parts(tmp_path)
    found = rows_of(examples, output_dir=tmp_path, batch_size=3)
    after = parts(tmp_path)
    assert before.items() <= after.items()
    new = pd.concat(
        pd.read_parquet(tmp_path / "rows" / name) for name in after.keys() - before.keys()
    )
    assert len(few) == 4 and set(new.example_id) == {row["example_id"] for row in examples} - few
    assert_same_rows(found, usual)
    assert_same_rows(
        rows_of(examples, test_limit=4, output_dir=tmp_path), rows_of(examples, test_limit=4)
    )


def test_a_part_that_was_lost_is_computed_again(rows_of, examples, tmp_path):
    expected = rows_of(examples, output_dir=tmp_path, batch_size=2)
    lost = sorted(parts(tmp_path))[::3]
    for name in lost:
        (tmp_path / "rows" / name).unlink()
    kept = parts(tmp_path)
    assert_same_rows(rows_of(examples, output_dir=tmp_path), expected)
    assert kept.items() <= parts(tmp_path).items()


def command(checkpoint, data, folder, *options):
    """An audit, of a batch per write."""
    arguments = ["audit", "--model", checkpoint, "--dataset", data, "--output-dir", folder]
    arguments += ["--json", "--tests", *TESTS, *options]
    return [str(argument) for argument in arguments]


@pytest.fixture(scope="module")
def data_folder(examples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in examples))
    return folder


def test_killed_and_resumed(checkpoint, data_folder, usual, cli, tmp_path):
    folder = tmp_path / "out"

    def die():
        WriteMonitor(folder / "rows" / ".", kill_at=7)
        return main(command(checkpoint, data_folder, folder, "--batch-size", "1"))

    assert run_in_child(die).code == -9
    before = {name: time_ for name, time_ in parts(folder).items() if name.startswith("part-")}
    assert 2 <= len(before) < 12 and not (folder / "summary.json").exists()
    done = cli(*command(checkpoint, data_folder, folder))
    assert done.code == 0, done.err
    assert before.items() <= parts(folder).items()
    assert_same_rows(read_rows(folder / "rows"), usual)
    assert json.loads(done.out)["n"] == 12


def test_two_processes(checkpoint, data_folder, usual, torchrun, tmp_path):
    run = torchrun(*command(checkpoint, data_folder, tmp_path / "out", "--batch-size", "3"))
    assert run.code == 0, run.err
    found = json.loads(run.out)  # printed once
    assert (found["n"], found["provenance"]["n_processes"]) == (12, 2)
    assert_same_rows(read_rows(tmp_path / "out" / "rows"), usual)
    assert len(parts(tmp_path / "out")) == 4
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.slow
def test_the_launcher_itself(checkpoint, data_folder, usual, run_python, tmp_path):
    """Of which the other tests of two processes do what it does."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    arguments = command(checkpoint, data_folder, tmp_path / "out", "--batch-size", "3")
    run = run_python(*launch, "-m", "hf_attnprobe", *arguments)
    assert run.code == 0, run.err
    assert_same_rows(read_rows(tmp_path / "out" / "rows"), usual)


@pytest.mark.slow
def test_two_processes_give_up_together(
    make_checkpoint, checkpoint, data_folder, torchrun, tmp_path
):
    """Nobody waits for one that has found the folder to be another model's."""
    folder = tmp_path / "out"
    other = {"tests": ["permutation"], "output_dir": folder, "progress": False}
    audit(make_checkpoint("cnn"), data_folder, **other)
    before = parts(folder)
    run = torchrun(*command(checkpoint, data_folder, folder))
    assert run.code == 1 and run.out == ""
    said = (
        f"attnprobe: {folder} belongs to another audit with different settings: model fingerprint"
    )
    assert run.err.count(said) == 1  # the first process says it for all
    # The only traceback is the launcher's.
    assert "hf_attnprobe/audits" not in run.err
    assert parts(folder) == before
