"""Runs that are killed at a write: the same command goes on to the same result, and nothing is left behind."""

import json
import os
import random
import shutil
import signal
import threading
import time
from functools import partial

import pytest

from hf_attnprobe import AttnProbeError, TrainingOptions, train_classifier
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.cli import main
from hf_attnprobe.data.specs import make_data
from hf_attnprobe.storage.folders import (
    LOCK_FILE,
    TEMPORARY_SUFFIX,
    get_temporary_path,
    write_atomically,
)
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.training.procedures import make_paper_config
from tests.helpers.child_processes import WriteMonitor, run_in_child


KILLS = 12  # of a verb, where it writes more often
TRAINING = ("train", "deception", "retrain", "demo")
READING = ("audit", "answers", "share", "evaluate-scores", "compare-rounded", "detection-limit")
FURTHER = ("study", "answers-by-head", "compare-answers")
RANDOM_KILLS = 9  # of a verb
SHARE_KILLED_TWICE = 0.4
MARK = "write: "  # before each in what a child prints
TIMES = ("seconds",)
"""Names of what differs from run to run."""


def killed(command, path, at):
    """Runs a command in a child that dies at a write to what begins with a path; whether it did."""

    def die():
        WriteMonitor(path, kill_at=at)
        return main(command)

    return run_in_child(die).code == -9


def writes_of(command, folder):
    """What a command changes below a folder, in order."""

    def count():
        writes = WriteMonitor(folder)
        code = main(command)
        print(*(f"{MARK}{write}" for write in writes.seen), sep="\n")
        return code

    ended = run_in_child(count)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    return [line[len(MARK) :] for line in lines if line.startswith(MARK)]


def weights_of(folder):
    """The bytes of every model below a folder."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("model.safetensors"))
    }


def results_of(folder):
    """What every file of JSON says but for times, and every row, by its place below a folder."""
    found = {}
    for file in sorted(folder.rglob("[!.]*.json")):
        if not any(part.startswith(".") for part in file.relative_to(folder).parts):
            found[str(file.relative_to(folder))] = said_in(json.loads(file.read_text()), folder)
    for rows in sorted(folder.rglob("rows")):
        found[str(rows.relative_to(folder))] = read_rows(rows).to_csv()
    return found


def said_in(data, folder):
    """Plain data without times, and with the folder's own place as it is called anywhere."""
    if isinstance(data, dict):
        kept = {name: value for name, value in data.items() if name not in TIMES}
        return {name: said_in(value, folder) for name, value in kept.items()}
    if isinstance(data, list):
        return [said_in(value, folder) for value in data]
    return data.replace(str(folder), "HERE") if isinstance(data, str) else data


def hidden_in(folder):
    return list(folder.rglob(".*"))


def check_goes_on(command, whole, tmp_path, at):
    """Killed at a write and begun again, it ends as the undisturbed run, and nothing hidden is left."""
    folder = tmp_path / f"killed-{at}"
    assert killed(command(folder), folder, at)
    check_same_result(command, whole, folder, at)
    shutil.rmtree(folder)


def check_same_result(command, whole, folder, at):
    """Begun again in a folder that a kill left, the command ends as the undisturbed run."""
    again = run_in_child(partial(main, command(folder)))
    assert again.code == 0, (at, again.err)
    assert weights_of(folder) == weights_of(whole), at
    assert results_of(folder) == results_of(whole), at
    # The generated answers of a language model are kept for the next audit.
    assert {file.name.partition("-")[0] for file in hidden_in(folder)} <= {".answers"}, at
    assert {file.name for file in folder.iterdir()} == {file.name for file in whole.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("verb", [*TRAINING, *READING])
def test_killed_at_writes_from_the_first_to_the_last(verb, commands, tmp_path):
    command, whole = commands[verb], tmp_path / "whole"
    n_writes = len(writes_of(command(whole), whole))
    places = range(0, n_writes, max(1, n_writes // KILLS))
    print(f"{verb}: killed at {len(places)} of {n_writes} writes")
    for at in places:
        check_goes_on(command, whole, tmp_path, at)


@pytest.mark.slow
@pytest.mark.parametrize("verb", [*TRAINING, *READING, *FURTHER])
def test_killed_at_random_moments(verb, commands, tmp_path):
    """Nine kills of each verb, some of them twice before the command may end: 117 together."""
    command, whole = commands[verb], tmp_path / "whole"
    start = time.monotonic()
    ended = run_in_child(partial(main, command(whole)))
    seconds = time.monotonic() - start
    assert ended.code == 0, ended.err
    draws = random.Random(verb)
    n_killed = n_too_late = n_killed_twice = 0
    while n_killed < RANDOM_KILLS:
        assert n_too_late < 5 * RANDOM_KILLS, "nearly all kills came after the end of the command"
        folder = tmp_path / f"killed-{n_killed}-{n_too_late}"
        if not kill_after(command(folder), seconds * draws.uniform(0.1, 1)):
            n_too_late += 1
            shutil.rmtree(folder)
            continue
        n_killed += 1
        if draws.random() < SHARE_KILLED_TWICE:
            n_killed_twice += kill_after(command(folder), seconds * draws.uniform(0.1, 1))
        check_same_result(command, whole, folder, f"kill {n_killed}")
        shutil.rmtree(folder)
    print(f"{verb}: {n_killed} kills, {n_killed_twice} of them twice, {n_too_late} came too late")


def kill_after(command, seconds):
    """Run a command in a child that is killed after a time; return whether this was in time."""

    def run():
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        code = main(command)
        # The timer must not delay the end of a command that was fast enough.
        os._exit(code)

    return run_in_child(run).code == -signal.SIGKILL


def test_a_model_half_written_over_another_is_not_taken_for_one(few, commands, cli, tmp_path):
    """Weights of the new model, tokenizer of the old one, as a kill between the two leaves them."""
    splits = make_data(few).load_splits(seed=0)
    config = make_paper_config(None, encoder="none", embedding_size=4)

    def train(words):
        given = {"options": TrainingOptions(epochs=1), "progress": False}
        few = splits["train"].select(range(words))
        train_classifier(config, few, output_dir=tmp_path, **given)

    train(20)
    old = (tmp_path / "tokenizer.json").read_bytes()

    def die():
        WriteMonitor(tmp_path / "tokenizer_config.json", kill_at=0)
        train(40)

    assert run_in_child(die).code == -9
    assert (tmp_path / "tokenizer.json").read_bytes() == old
    with pytest.raises(AttnProbeError, match=r"the training of the model in .* was interrupted"):
        load_model(tmp_path)
    audit = ["audit", "--model", tmp_path, "--dataset", few, "--tests", "conicity"]
    done = cli(*audit)
    assert (
        done.code == 1
        and "was interrupted; run the same training command" in done.err.splitlines()[-1]
    )
    train(40)  # not refused
    assert (tmp_path / "tokenizer.json").read_bytes() != old
    assert cli(*audit, "--test-limit", 2).code == 0


def test_what_a_killed_audit_left_is_taken_away_and_nothing_else(commands, cli, tmp_path):
    command = commands["audit"]
    folder = tmp_path / "out"
    folder.mkdir()
    for written, at in (("rows/.", 0), (".summary.json", 1)):
        assert killed(command(folder), f"{folder}/{written}", at)
        left = [file.name for file in hidden_in(folder)]
        assert LOCK_FILE in left and len(left) == 2, left
    older = [".summary.json.99999", ".report.md.7", "rows/.part-0f.parquet.12"]
    older = [f"{name}{TEMPORARY_SUFFIX}" for name in older]
    for name in older:
        (folder / name).write_text("{")
    others = [folder / ".notes.json.1", folder / ".git", folder / "rows" / ".thesis"]
    for file in others:
        file.write_text("mine")
    assert cli(*command(folder)).code == 0
    assert sorted(hidden_in(folder)) == sorted(others)


def test_half_written_files_have_names_of_their_own(tmp_path):
    file = tmp_path / "report.html"
    assert get_temporary_path(file).name.startswith(".report.html.")
    assert get_temporary_path(file).name.endswith(".attnprobe")
    write_atomically(file, json.dumps({}))
    assert [f.name for f in tmp_path.iterdir()] == ["report.html"]
