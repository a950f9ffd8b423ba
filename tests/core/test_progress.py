"""The one bar on stderr: on a terminal, in a file, of parts; estimates; quiet libraries."""

import io
import re

import datasets
import pytest
import transformers

from hf_attnprobe import AttentionClassifierConfig, TrainingOptions, train_classifier
from hf_attnprobe.audits.cost_model import AuditProgress, Step
from hf_attnprobe.audits.runner import pick_warm_up_sites
from hf_attnprobe.core.progress import ProgressBar, silence_libraries
from hf_attnprobe.protocol import ALL, Site


class Terminal(io.StringIO):
    """A stderr on which a line can be written anew."""

    def isatty(self):
        return True


class Seconds:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Seconds()


@pytest.fixture
def stderr_as(monkeypatch):
    def replace(stream):
        monkeypatch.setattr("sys.stderr", stream)
        return stream

    return replace


def work(clock, seconds):
    """Work of so many seconds, each of them shown."""
    with ProgressBar("audit", clock=clock) as bar:
        for left in range(seconds - 1, -1, -1):
            clock.now += 1
            bar.update(left, "permutation")


def test_in_a_file_there_is_a_plain_line_soon_and_then_every_half_minute(clock, stderr_as):
    file = stderr_as(io.StringIO())
    work(clock, 100)
    assert file.getvalue().splitlines() == [
        "audit: 8%, about 90 s left, permutation",
        "audit: 38%, about 60 s left, permutation",
        "audit: 68%, about 30 s left, permutation",
        "audit: 98%, about 5 s left, permutation",
        "audit: done in about 2 min",
    ]
    assert "\r" not in file.getvalue()


def test_the_percentage_agrees_with_the_count(clock, stderr_as):
    """It used to print "67%, about 5 s left, 12 of 12 prompts"."""
    file = stderr_as(io.StringIO())
    with ProgressBar("answers", clock=clock) as bar:
        for n_done, seconds in ((4, 20), (8, 20), (12, 40)):
            clock.now += seconds
            bar.update_count(n_done, 12, "prompts")
    assert file.getvalue().splitlines()[:2] == [
        "answers: 33%, about 40 s left, 4 of 12 prompts",
        "answers: 100%, 12 of 12 prompts",
    ]


def test_items_of_a_part_are_counted_from_its_start(clock, stderr_as):
    file = stderr_as(io.StringIO())
    with ProgressBar("fit-map", n_parts=2, clock=clock) as bar:
        bar.start_part("preparing")
        clock.now += 100
        bar.start_part("choosing")
        clock.now += 10
        bar.update_count(1, 5, "texts")
        clock.now += 40
        bar.update_count(5, 5, "texts")
    assert "about 40 s left, part 2 of 2: choosing, 1 of 5 texts" in file.getvalue()
    assert "100%, part 2 of 2: choosing, 5 of 5 texts" in file.getvalue()


def test_short_work_leaves_no_line_in_a_file(clock, stderr_as):
    file = stderr_as(io.StringIO())
    work(clock, 7)
    assert file.getvalue() == ""


def test_on_a_terminal_one_line_moves_and_never_back(clock, stderr_as, monkeypatch):
    terminal = stderr_as(Terminal())
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)
    with ProgressBar("audit", clock=clock) as bar:
        for left in (30, 10, 40, 5):  # it was less than thought
            clock.now += 10
            bar.update(left, "permutation")
            bar._tqdm.refresh()
    text = terminal.getvalue()
    shares = [int(share) for share in re.findall(r"(\d+)%", text)]
    assert shares == sorted(shares) and shares[:2] == [0, 25]
    assert shares[-1] == 100
    assert "about 10 s left, permutation" in text
    assert text.count("\n") == 1 and text.endswith("\n")


def test_a_bar_within_a_bar_tells_of_its_part(clock, stderr_as):
    file = stderr_as(io.StringIO())
    with ProgressBar("retrain", n_parts=3, part_name="model", clock=clock) as models:
        for name in ("uniform", "seeds/1", "seeds/2"):
            models.start_part(name)
            with ProgressBar("training", clock=clock) as training:
                for left in (30, 0):
                    clock.now += 30
                    training.update(left, "epoch 1 of 2")
    lines = file.getvalue().splitlines()
    assert lines[0] == (
        "retrain: 17%, about 2 min left, model 1 of 3: uniform, epoch 1 of 2"
    )  # 30 s of 3 models of 60 s
    assert lines[2].startswith("retrain: 50%, about 90 s left, model 2 of 3: seeds/1")
    assert all(line.startswith("retrain: ") for line in lines) and len(lines) == 7


def test_later_parts_are_estimated_in_proportion_to_their_weights(clock, stderr_as):
    """The last part takes 7 times as long as the first; its start was announced as 67%, 20 s left."""
    file = stderr_as(io.StringIO())
    weights = (10, 20, 70)
    with ProgressBar("fit-map", n_parts=3, part_weights=weights, clock=clock) as bar:
        for weight in weights:
            bar.start_part(f"part of {weight} s")
            for left in range(weight - 10, -1, -10):
                clock.now += 10
                bar.update(left)
    shown = [
        re.findall(r"(\d+)%(?:, about (\d+) s)?", line)[:1] for line in file.getvalue().split("\n")
    ]
    estimates = [pairs[0] for pairs in shown if pairs]
    assert estimates[:3] == [("10", "90"), ("40", "60"), ("70", "30")]


def test_a_bar_that_is_not_shown_says_nothing_and_an_error_closes_one(clock, stderr_as):
    file = stderr_as(io.StringIO())
    with ProgressBar("audit", visible=False, clock=clock) as bar:
        clock.now = 100
        bar.update(5)
        bar.print_line("a line")
    with pytest.raises(KeyboardInterrupt), ProgressBar("audit", clock=clock):
        raise KeyboardInterrupt
    assert file.getvalue() == "" and ProgressBar._open_bars == []


# --- the estimate of an audit -------------------------------------------------------


def steps(*costs):
    return [Step(test, place, 40) for test, place in costs]


def test_what_is_left_weighs_what_it_costs(clock):
    batch = steps(("cheap", "first"), ("dear", "first"), *[("dear", "head")] * 3)
    other = steps(("cheap", "first"))
    told = AuditProgress(now=clock)
    told.plan_steps([*batch, *batch, *other])
    told.start_batch(batch)
    for seconds in (1.0, 9.0, 5.0, 5.0, 5.0):
        clock.now += seconds
        told.finish_step()
    assert told.estimate_remaining() == pytest.approx(25 + 1)  # one more batch, and the other step
    told.start_batch(batch)
    clock.now += 1
    told.finish_step()
    assert told.estimate_remaining() == pytest.approx(24 + 1)


def test_while_a_report_is_made_no_seconds_are_said(clock, stderr_as):
    """It used to say "about 5 s left" for two minutes."""
    file = stderr_as(io.StringIO())
    with AuditProgress(is_displayed=True, now=clock) as told:
        told.plan_steps(steps(("dear", "first")))
        told.start_batch(steps(("dear", "first")))
        clock.now += 40
        told.finish_step()
        for _ in range(3):
            clock.now += 40
            told.start_report("accuracy as heads are removed together")
    assert file.getvalue().splitlines() == [
        "audit: 0%, about 5 s left, dear",
        *["report: 0%, accuracy as heads are removed together"] * 3,
        "report: done in about 3 min",
    ]


def test_of_many_heads_two_are_measured():
    heads, groups = [Site(0, k) for k in range(72)], [Site(k, ALL) for k in range(7)]
    assert pick_warm_up_sites([*heads, *groups]) == [heads[0], heads[36], groups[3]]
    assert (
        pick_warm_up_sites(heads[:2]) == heads[:2] and pick_warm_up_sites(groups[:1]) == groups[:1]
    )


# --- libraries ----------------------------------------------------------------------


def test_libraries_are_quiet_for_a_while():
    log = transformers.logging
    before = log.get_verbosity(), log.is_progress_bar_enabled()
    datasets.enable_progress_bars()
    with pytest.raises(ValueError), silence_libraries():
        assert log.get_verbosity() == log.ERROR
        assert not log.is_progress_bar_enabled()
        assert datasets.are_progress_bars_disabled()
        raise ValueError
    assert (log.get_verbosity(), log.is_progress_bar_enabled()) == before
    assert not datasets.are_progress_bars_disabled()


def test_a_training_in_python_prints_nothing_but_its_bar(reviews, tmp_path, capfd, monkeypatch):
    for name in ("SECONDS_BETWEEN_LINES", "SECONDS_TO_FIRST_LINE"):
        monkeypatch.setattr(f"hf_attnprobe.core.progress.{name}", 0.0)
    train_classifier(
        AttentionClassifierConfig(embedding_size=4, encoder_size=2, encoder="mlp"),
        reviews["train"],
        reviews["validation"],
        output_dir=tmp_path / "model",
        options=TrainingOptions(epochs=2, batch_size=80),
    )
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    assert printed.out == "" and all(x.startswith("training: ") for x in lines)
    epochs = re.findall(r"epoch (\d) of 2", printed.err)
    assert epochs == ["1", "1", "2", "2"] and "accuracy 0." in lines[-2]
    assert lines[-1].startswith("training: done in about")
