"""Files that are torn, damaged, foreign or of other runs: a result or one line that names the place, no wrong number."""

import json
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe import AttnProbeError, read_audit
from hf_attnprobe.cli import main
from hf_attnprobe.protocol import Site
from hf_attnprobe.storage.rows import append_rows, build_rows, read_rows
from tests.helpers.child_processes import WriteMonitor, run_in_child


# --- damaged files --------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_part(tmp_path_factory):
    """Rows, their folder, its one part and the part's bytes."""
    folder = tmp_path_factory.mktemp("rows")
    values = torch.randn(60, generator=torch.Generator().manual_seed(0))
    rows = build_rows("erasure", range(60), {Site(0, 0): {"x": values}})
    append_rows(folder, rows, name="one")
    (part,) = folder.iterdir()
    return read_rows(folder), folder, part, part.read_bytes()


@settings(max_examples=60)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_of_rows_is_found_or_does_no_harm(one_part, place, bit):
    rows, folder, part, whole = one_part
    spoilt = bytearray(whole)
    spoilt[int(place * len(whole))] ^= 1 << bit
    part.write_bytes(spoilt)
    try:
        read = read_rows(folder)
    except AttnProbeError as error:
        assert str(part) in str(error) and "\n" not in str(error)
    else:
        assert read.to_dict("list") == rows.to_dict("list")
    finally:
        part.write_bytes(whole)


def test_damaged_weights_are_not_taken_for_finished(commands, base, cli, tmp_path):
    folder = tmp_path / "copy"
    assert cli(*commands["train"](folder)).code == 0
    file = folder / "model.safetensors"
    spoilt = bytearray(file.read_bytes())
    spoilt[-5] ^= 1
    file.write_bytes(spoilt)
    done = cli(*commands["train"](folder))
    assert done.code == 1 and str(file) in done.err.splitlines()[-1]


DAMAGED = (
    ("nothing", None),
    ("model.safetensors", "flipped"),
    ("optimizer.pt", "half"),
    ("rng_state.pth", "gone"),
    (".digests.json", "flipped"),
)


@pytest.mark.slow
def test_a_training_with_a_damaged_checkpoint_begins_anew(commands, tmp_path):
    """However small the damage: the weights are those of a training in one go."""
    command, whole, cut = commands["train"], tmp_path / "whole", tmp_path / "cut"
    assert run_in_child(lambda: main(command(whole))).code == 0

    def dies_while_it_saves():
        WriteMonitor(cut / "tokenizer_config.json", kill_at=0)
        return main(command(cut))

    assert run_in_child(dies_while_it_saves).code == -9
    (checkpoint,) = (cut / ".steps").glob("checkpoint-*")
    for name, how in DAMAGED:
        folder = tmp_path / name
        shutil.copytree(cut, folder)
        if how is not None:
            spoil(folder / checkpoint.relative_to(cut) / name, how)
        ended = run_in_child(lambda folder=folder: main(command(folder)))
        assert ended.code == 0, (name, ended.err)
        assert ("was damaged; the training starts from the beginning" in ended.err) == (
            how is not None
        ), name
        weights = [path / "model.safetensors" for path in (folder, whole)]
        assert weights[0].read_bytes() == weights[1].read_bytes(), name


def spoil(file, how):
    """Damages a file as a kill, a bad disk, or a user does."""
    whole = file.read_bytes()
    middle = len(whole) // 3
    flipped = bytes([whole[middle] ^ 128]) if whole else b""
    spoilt = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "flipped": whole[:middle] + flipped + whole[middle + 1 :],
        "a list": b"[]",
        "nothing in it": b"{}",
    }
    if how == "a folder":
        file.unlink()
        file.mkdir()
    elif how == "gone":
        file.unlink()
    else:
        file.write_bytes(spoilt[how])


HOW = ("empty", "half", "flipped", "a list", "nothing in it", "a folder", "gone")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "audit", "retrain", "study", "compare"])
def test_every_file_damaged_in_every_way(verb, commands, tmp_path):
    """The same command again, and the report: each is a result, or one line that names the folder or the file."""
    whole, spoilt = tmp_path / "whole", tmp_path / "spoilt"
    assert main(commands[verb](whole)) == 0
    kinds = (".json", ".parquet", ".safetensors")
    files = [f.relative_to(whole) for f in whole.rglob("*") if f.suffix in kinds]
    count = {0: 0, 1: 0}
    for file in files:
        for how in HOW if file.suffix == ".json" else HOW[:3]:
            for command in (commands[verb](spoilt), ["report", str(spoilt)]):
                shutil.rmtree(spoilt, ignore_errors=True)
                shutil.copytree(whole, spoilt)
                spoil(spoilt / file, how)
                ended = run_in_child(lambda command=command: main(command))
                where = (verb, str(file), how, command[0], ended.err)
                assert ended.code in (0, 1) and "Traceback" not in ended.err, where
                if ended.code:
                    line = ended.err.splitlines()[-1]
                    assert line.startswith("attnprobe: ") and str(spoilt) in line, where
                count[ended.code] += 1
    print(f"{verb}: {count[0]} results, {count[1]} lines")


# --- rows and folders of others -------------------------------------------------------


def test_the_report_of_more_rows_than_the_summary_is_the_audits(commands, cli, copy_of, tmp_path):
    """An audit extended and interrupted: rows of more texts than the summary tells of."""
    small, large = tmp_path / "small", tmp_path / "large"
    command = commands["audit"](small)
    assert cli(*command).code == 0
    more = ["9" if part == "4" else part for part in commands["audit"](large)]
    assert cli(*more).code == 0
    told, printed = (small / "report.md").read_text(), cli("report", small).out
    for part in (large / "rows").iterdir():
        shutil.copy(part, small / "rows" / f"part-more-{part.name[5:]}")
    done = cli("report", small)
    assert done.code == 0 and done.out == printed
    assert len(read_audit(small).to_pandas().example_id.unique()) == 4
    assert len(read_rows(small / "rows").example_id.unique()) == 9
    assert cli(*command).code == 0  # the audit itself
    assert (small / "report.md").read_text() == told


def test_a_retraining_whose_mark_is_gone_is_one_line(cli, tmp_path):
    summary = {"model": "m", "dataset": "d", "n": 1, "seed": 0, "statistics": []}
    summary |= {"provenance": {}, "scores": {}, "models": [], "findings": []}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    done = cli("report", tmp_path)
    assert done.code == 1 and "schema version None" in done.err
    assert done.err.count("\n") == 1
