"""Audits with a time: what runs first, that it ends, and that the same command goes on."""

import json
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe import (
    Answers,
    AuditOptions,
    Data,
    Permutation,
    audit,
    build_tokenizer,
    make_rationale_dataset,
)
from hf_attnprobe.audits import pipeline
from hf_attnprobe.audits import scheduler as rounds
from hf_attnprobe.audits.cost_model import AuditProgress, list_steps
from hf_attnprobe.audits.options import parse_duration, parse_time_limit
from hf_attnprobe.audits.runner import plan_batches
from hf_attnprobe.audits.scheduler import CompletedWork, run_within_time, summarise_heads
from hf_attnprobe.core.progress import ProgressBar, format_duration
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import Site
from hf_attnprobe.reports.report import Report
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.rows import Rows
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.synthetic_rows import make_rows


def test_limits_that_are_none_are_refused():
    for text in ("", "10 minutes", "-1s", "0", "nan", "1e400s", "10mm"):
        refused("expected a duration", parse_duration, text)
    refused(
        "--screen and --time cannot be combined",
        parse_time_limit,
        AuditOptions(time="1m", screen=3),
    )


def texts_of(n):
    return [Text(k, 0, {"input_ids": [1] * (3 + k % 2)}) for k in range(n)]


def test_work_is_resumed_by_test_site_and_text():
    sites = [Site(0, 0), Site(0, 1)]
    done = {("a", 0, 0): {0, 1}, ("a", 0, 1): {1}, ("b", 0, 0): {0, 1, 2}}
    jobs = plan_batches(texts_of(3), {"a": sites, "b": sites[:1]}, done, lambda n: 1, 100, 10)
    ran = sorted(
        (test, site.head, text.example_id)
        for where, texts in jobs
        for test, of_test in where.items()
        for site in of_test
        for text in texts
    )
    assert ran == [("a", 0, 2), ("a", 1, 0), ("a", 1, 2)]


@pytest.fixture(scope="module")
def model():
    data = make_rationale_dataset(400, seed=0)["test"]
    tokenizer = build_tokenizer(data["text"])
    tokenizer.model_max_length = 64
    return (tiny_models.bert(tokenizer, heads=3, width=24, spread=0.5), tokenizer), data


TESTS = ["uniform_attention", "head_ablation", Permutation(n_permutations=3)]
WITH_ERASURE = [*TESTS, "erasure"]


def run(model, folder=None, tests=TESTS, **options):
    pair, data = model
    options = AuditOptions(**{"shown_texts": 0, "prune": False} | options)
    given = {"options": options, "output_dir": folder, "progress": False}
    return audit(pair, Data(data, test_limit=60), tests, **given)


def means_of(report):
    return {(s.statistic, s.layer, s.head): s for s in report.statistics if s.group == "all"}


def test_with_time_enough_nothing_is_left_out(model):
    report = run(model, time="1h")
    facts = report.provenance["stopping"]
    assert facts["runs_done"] == facts["runs_of_full_audit"]
    assert 0 < facts["seconds"] < facts["time_limit"] == 3600
    spent = f"{format_duration(facts['seconds'])} in float32"
    assert report.notes[0].startswith(f"With --time (spent: {spent}), ")
    assert all(s.n == 60 for s in means_of(report).values())


def test_time_and_commands_of_a_report_are_those_of_all_runs_in_its_folder(model, tmp_path):
    folder = tmp_path / "out"
    first = run(model, folder, time="1h")
    again = run(model, folder, time="30m")
    seconds = [report.provenance["stopping"]["seconds"] for report in (first, again)]
    assert seconds[1] > seconds[0] > 0
    assert "earlier_runs" not in first.provenance
    assert [asked["time"] for asked in again.provenance["earlier_runs"]] == ["1h"]
    for text in (again.to_markdown(), again.to_html()):
        assert "--time 1h" in text and "--time 30m" in text
    stored = json.loads((folder / "runs.json").read_text())
    assert [entry["asked_for"]["time"] for entry in stored] == ["1h", "30m"]
    assert sum(entry["seconds"] for entry in stored) >= seconds[1]


class Worker:
    """Stands for the machine: seconds that work takes, and a list of what was run."""

    def __init__(self, seconds, limit, size=lambda text: 1):
        self.seconds, self.size, self.now, self.ran = seconds, size, 0.0, []
        self.progress = AuditProgress(time_limit=limit, now=lambda: self.now)

    def __call__(self, texts, where, done):
        self.progress.start_batch(list_steps([(where, texts)]))
        for test, sites in where.items():
            for site in sites:
                held = done.setdefault((test, site.layer, site.head), set())
                new = [t for t in texts if t.example_id not in held]
                held.update(t.example_id for t in new)
                self.now += self.seconds.get(test, 0.0) * sum(map(self.size, new))
                self.progress.finish_step()
                self.ran.append((test, site, len(new)))

    def rows_of(self, folder, n_texts):
        return CompletedWork(folder, texts_of(n_texts), self)


ALL = [Site(-1, -1)]
LAYERS = [Site(k, -1) for k in range(3)]


def in_time(worker, known, *turns):
    """Runs turns of tests at sites within the worker's time."""
    run_within_time(known, worker.progress, lambda n_heads: iter(turns), batch_size=16)


def test_a_time_is_kept_where_texts_were_run_before(tmp_path):
    worker = Worker({"dear": 9.0}, limit=100)
    known = worker.rows_of(tmp_path, 40)
    known.get_ids("dear", ALL[0]).update(range(10))  # which say nothing of what it costs today
    in_time(worker, known, {"dear": ALL})
    assert worker.ran and worker.now <= 100


@settings(max_examples=30)
@given(st.floats(0.001, 3), st.floats(0.001, 3), st.floats(10, 300))
def test_a_time_is_kept_and_all_attention_comes_first(tmp_path_factory, cheap, dear, limit):
    worker = Worker({"cheap": cheap, "dear": dear}, limit)
    known = worker.rows_of(tmp_path_factory.mktemp("none"), 40)
    in_time(worker, known, *({"cheap": at, "dear": at} for at in (ALL, LAYERS)))
    # A step whose cost is not known yet may be begun with little time left.
    assert worker.now <= limit + 2 * max(cheap, dear)
    tested = [(test, site) for test, site, n in worker.ran if n and test != "prediction"]
    assert tested[0][1] in ALL
    n_cheap, n_dear = (len(known.get_ids(test, ALL[0])) for test in ("cheap", "dear"))
    # Costs are known per token: of texts of 3 and 4 tokens to within a third.
    assert n_cheap >= n_dear or cheap > 0.75 * dear
    if any(site in LAYERS for _, site in tested):
        assert max(n_cheap, n_dear) >= 30
    if (cheap + dear) * 160 < limit / 4:
        assert known.count_runs({"cheap": LAYERS, "dear": LAYERS}) == 2 * 3 * 40


def test_the_cheap_tests_come_first(tmp_path):
    worker = Worker({"cheap": 3.0, "dear": 12.0}, 700.0)
    known = worker.rows_of(tmp_path, 40)
    in_time(worker, known, dict.fromkeys(("dear", "cheap"), ALL))
    ran = [test for test, _, n in worker.ran if n and test != "prediction"]
    # One text of each to tell what it costs; then 30 of the cheap one.
    assert ran[:2] == ["dear", "cheap"] and ran[2:5] == ["cheap", "cheap", "dear"]
    assert len(known.get_ids("cheap", ALL[0])) == 40


@settings(max_examples=30)
@given(st.floats(0.01, 20), st.floats(0.01, 20), st.floats(10, 300))
def test_no_test_ends_between_one_text_and_ten(tmp_path_factory, cheap, dear, limit):
    worker = Worker({"cheap": cheap, "dear": dear}, limit)
    known = worker.rows_of(tmp_path_factory.mktemp("none"), 40)
    in_time(worker, known, {"cheap": ALL}, {"dear": ALL})
    for test in ("cheap", "dear"):
        assert not 1 < len(known.get_ids(test, ALL[0])) < MIN_DISPLAYED_TEXTS


def test_the_verdict_comes_first_then_the_effect_and_faithfulness_of_a_few_heads(
    model, monkeypatch
):
    rounds_of_turns = []

    def look(so_far, clock, list_turns, batch_size, n_heads, *, completes_texts):
        assert n_heads == 6 and not completes_texts
        first = list(list_turns(2))
        so_far.run(so_far.texts[:30], first[1])  # a report needs rows
        rounds_of_turns.extend([first, list(list_turns(4)), list(list_turns(8))])

    monkeypatch.setattr(rounds, "run_within_time", look)
    monkeypatch.setattr(rounds, "N_FOREMOST_HEADS", 2)
    run(model, tests=WITH_ERASURE, time="1h")
    told = [
        [
            (*sorted(where), *sorted({len(sites) for sites in where.values()}))
            for where in turns
            if where
        ]
        for turns in rounds_of_turns
    ]
    of_heads = ("permutation", "uniform_attention")
    whole = [("prediction", 1), (*of_heads, 1), ("screen", 6)]
    pair, other = [(test, 2) for test in of_heads], [("erasure", 1), ("head_ablation", 1)]
    assert told[0] == [*whole, *pair, *other]
    assert told[1] == [*whole, *pair, *pair, *other, (*of_heads, 2)]  # with layers
    assert told[2][: len(whole) + 6] == [*whole, *pair, *pair, *pair]
    everything = ("erasure", "head_ablation", *of_heads)
    assert (*everything, 2) in told[2]
    last = told[2][-12:]
    assert sorted(last) == sorted((test, 2) for test in everything for _ in range(3))


def test_the_foremost_heads_are_those_of_the_screen(model, monkeypatch):
    """By the effects on the texts of the first round, so that later rounds replace no head."""
    monkeypatch.setattr(rounds, "N_FOREMOST_HEADS", 2)
    seen, first_round_ids = [], []
    original = rounds.plan_turns

    def plan(runner, heads, groups, texts):
        list_turns = original(runner, heads, groups, texts)
        first_round_ids.extend(text.example_id for text in texts[:30])

        def look(n_heads):
            for turn in list_turns(n_heads):
                seen.append(turn)
                yield turn

        return look

    monkeypatch.setattr(rounds, "plan_turns", plan)
    report = run(model, time="1h")
    rows = report.to_pandas().query("statistic == 'first_order_even'")
    assert rows.groupby(["layer", "head"]).ngroups == 6 and rows.example_id.nunique() == 60
    turns = [turn["permutation"] for turn in seen if set(turn) == {"permutation"}]
    first_ids = report.to_pandas().query("statistic == 'median_tvd' and layer >= 0 and head >= 0")
    assert set(first_ids.groupby(["layer", "head"]).ngroup()) == set(range(6))
    first_rows = rows[rows.example_id.isin(first_round_ids)]
    means = first_rows.groupby(["layer", "head"]).value.mean().sort_values(ascending=False)
    foremost = [*means.index[:2]]
    assert [(site.layer, site.head) for site in turns[0]] == foremost
    assert [(site.layer, site.head) for site in turns[-3]] == foremost


def test_texts_of_later_rounds_do_not_change_the_order_of_the_heads(tmp_path, monkeypatch):
    """The second head has larger effects, but only on texts that the first round does not have."""
    first_head, second_head = Site(0, 0), Site(0, 1)
    texts = [Text(example_id, -1, {}) for example_id in range(60)]
    name = ("screen", "first_order_even")
    effects = np.where(np.arange(60) < 30, 0.1, 1.0)
    frame = pd.concat([make_rows({name: np.full(60, 0.2)}), make_rows({name: effects}, head=1)])
    monkeypatch.setattr(rounds, "load_rows", lambda folder, test: Rows.coerce(frame))
    runner = SimpleNamespace(folder=tmp_path)
    heads = [second_head, first_head]
    assert rounds.sort_heads(runner, heads, texts) == [first_head, second_head]
    assert rounds.sort_heads(runner, heads, texts[::-1]) == [second_head, first_head]


def test_heads_that_time_left_out_are_counted_and_their_time_is_told(tmp_path):
    """Two of three foremost heads lack 30 texts of one test, which takes two seconds a text."""
    model = SimpleNamespace(sites=lambda: SITES, lacks=lambda capability, site=None: None)
    runner = SimpleNamespace(
        adapter=model, options=dict.fromkeys(["permutation", "screen"]), folder=tmp_path
    )
    worker = Worker({"permutation": 2.0, "screen": 0.0}, limit=1e6)
    runner.progress = worker.progress
    known = worker.rows_of(tmp_path, 40)
    known.run(known.texts[:30], {"screen": SITES, "permutation": SITES[:1]})
    known.run(known.texts[:15], {"permutation": SITES[1:2]})
    told = summarise_heads(known, runner, SITES)["heads"]
    seconds = told.pop("seconds_left")
    assert told == {
        "n_heads": 3,
        "n_screened": 3,
        "n_tested": 1,
        "n_foremost": 3,
        "n_foremost_missing": 2,
    }
    assert seconds == pytest.approx(2.0 * (15 + 30), rel=0.35)  # known by token
    known.run(known.texts[15:30], {"permutation": SITES[1:2]})
    known.run(known.texts[:30], {"permutation": SITES[2:]})
    done = summarise_heads(known, runner, SITES)["heads"]
    assert (done["n_tested"], done["n_foremost_missing"], done["seconds_left"]) == (3, 0, 0)
    # Deletion is missing, but faithfulness is known by exchange; without exchange it is not.
    known.run(known.texts[:30], {"exchange": SITES})
    runner.options = dict.fromkeys(["permutation", "exchange", "scale"])
    assert summarise_heads(known, runner, SITES)["heads"]["n_tested"] == 3
    runner.options = dict.fromkeys(["permutation", "scale"])
    assert summarise_heads(known, runner, SITES)["heads"]["n_tested"] == 0
    left = rounds.estimate_pending_seconds(
        known, worker.progress.costs, {"permutation": SITES}, known.texts
    )
    assert left == pytest.approx(2.0 * 3 * 10, rel=0.35)


SITES = [Site(0, head) for head in range(3)]


def test_a_portion_is_expected_to_take_as_long_as_its_texts(tmp_path):
    """The first texts are short: by them alone a portion would end long after the time."""
    worker = Worker({"test": 0.1}, 40.0, size=lambda text: text.n_tokens)
    texts = [Text(k, 0, {"input_ids": [1] * (1 if k < 2 else 50)}) for k in range(60)]
    in_time(worker, CompletedWork(tmp_path, texts, worker), {"test": ALL})
    assert worker.now < 40


def test_a_time_is_kept_if_long_texts_take_longer_per_token(tmp_path):
    """A test takes the square of the length, and ten short texts come first."""
    texts = [Text(k, 0, {"input_ids": [1] * (4 if k < 10 else 40)}) for k in range(60)]
    worker = Worker({"test": 0.01}, 100.0, size=lambda text: text.n_tokens**2)
    completed = CompletedWork(tmp_path, texts, worker)
    in_time(worker, completed, {"test": ALL})
    # A portion of long texts contains four times as many tokens as all portions before it. The first
    # one takes up to ten times as long as expected: 4 texts of 16 s.
    assert worker.now <= 100 and len(completed.get_ids("test", ALL[0])) >= 12


def test_every_test_reaches_ten_texts_before_one_reaches_thirty(tmp_path):
    worker = Worker({"cheap": 2.0, "dear": 3.0}, 100.0)  # 10 texts of both take 50 s
    completed = worker.rows_of(tmp_path, 40)
    in_time(worker, completed, {"cheap": ALL, "dear": ALL})
    n_cheap, n_dear = (len(completed.get_ids(test, ALL[0])) for test in ("cheap", "dear"))
    assert worker.now <= 100 and n_dear == MIN_DISPLAYED_TEXTS < n_cheap < 30


@pytest.mark.parametrize("limit", [40, 20])
def test_a_time_that_is_too_short_for_an_answer_is_announced(model, monkeypatch, limit):
    """Every test takes 0.01 s per token and site, by a clock of the test."""
    now, lines = [0.0], []
    finish_step = AuditProgress.finish_step

    def finish_step_slowly(progress):
        now[0] += 0.01 * progress._batch[0].n_tokens
        finish_step(progress)

    monkeypatch.setattr(AuditProgress, "finish_step", finish_step_slowly)
    monkeypatch.setattr(pipeline, "AuditProgress", partial(AuditProgress, now=lambda: now[0]))
    monkeypatch.setattr(ProgressBar, "print_line", lambda bar, line: lines.append(line))
    report = run(model, tests=TESTS[::2], time=f"{limit}s")
    announcements = [line for line in lines if "too short for an answer" in line]
    (tokenizer, data) = model[0][1], model[1]
    mean_tokens = np.mean([len(ids) for ids in tokenizer(data["text"][:60])["input_ids"]])
    # Two tests decide the answer; 30% are added for safety, and 10 seconds for the report.
    expected_seconds = 1.3 * 0.01 * 2 * 30 * mean_tokens + 10
    seconds = report.provenance["stopping"]["seconds_for_answer"]
    assert seconds == pytest.approx(expected_seconds, rel=0.2)
    assert len(announcements) == (limit == 20) and now[0] < limit


def in_time_by_prompt(worker, completed, *turns):
    """Run turns within the worker's time, and finish every text before the next."""
    run_within_time(
        completed, worker.progress, lambda n_heads: iter(turns), batch_size=1, completes_texts=True
    )


@settings(max_examples=30)
@given(st.floats(0.1, 20), st.floats(0.1, 20), st.floats(20, 400))
def test_a_prompt_is_finished_with_all_its_tests_before_the_next(
    tmp_path_factory, cheap, dear, limit
):
    worker = Worker({"cheap": cheap, "dear": dear}, limit)
    completed = worker.rows_of(tmp_path_factory.mktemp("none"), 40)
    in_time_by_prompt(worker, completed, {"cheap": ALL, "dear": ALL})
    ran = [test for test, _, n in worker.ran if n and test != "prediction"]
    assert ran == ["cheap", "dear"] * (len(ran) // 2)
    finished = {test: completed.get_ids(test, ALL[0]) for test in ("cheap", "dear")}
    assert finished["cheap"] == finished["dear"]
    # The first prompt starts without a known cost. The texts have 3 or 4 tokens, and the safety
    # factor is 1.3, so at least half of the time is used unless all texts are finished.
    assert worker.now <= limit + cheap + dear
    n_finished = len(finished["cheap"])
    assert n_finished == 40 or (n_finished + 2) * (cheap + dear) > limit / 2


def test_unfinished_prompts_are_finished_first(tmp_path):
    """A folder in which one test has more prompts than the other: only the missing rows run."""
    worker = Worker({"cheap": 1.0, "dear": 3.0}, 1e6)
    completed = worker.rows_of(tmp_path, 12)
    completed.run(completed.texts[:7], {"cheap": ALL})
    worker.ran.clear()
    in_time_by_prompt(worker, completed, {"cheap": ALL, "dear": ALL})
    ran = [(test, n) for test, _, n in worker.ran if test != "prediction"]
    assert ran == [("cheap", 0), ("dear", 1)] * 7 + [("cheap", 1), ("dear", 1)] * 5


def test_a_short_time_gives_complete_prompts_of_a_language_model(monkeypatch):
    """Every prompt takes 4 s by a clock of the test, and 10 s of 60 are reserved for the report."""
    now = [0.0]
    original = CompletedWork.run

    def run_slowly(completed, texts, sites_by_test):
        original(completed, texts, sites_by_test)
        now[0] += 4.0

    monkeypatch.setattr(CompletedWork, "run", run_slowly)
    progress = partial(AuditProgress, now=lambda: now[0])
    monkeypatch.setattr(pipeline, "AuditProgress", progress)
    tokenizer = tiny_language_models.tokenizer()
    model = tiny_language_models.llama(tokenizer)
    prompts = [
        {**row, "question": f"{row['question']} ({number})"}
        for number in range(10)
        for row in tiny_language_models.ROWS
    ]
    options = AuditOptions(time="1m", shown_texts=0)
    report = audit((model, tokenizer), Answers(prompts), options=options, progress=False)
    ids = report.to_pandas().groupby("test").example_id.agg(frozenset)
    tests = ["knockout", "permutation", "sources"]
    assert len({ids[test] for test in tests}) == 1
    # 60 s without the reserve of 10 s.
    assert len(ids["sources"]) == math.ceil(50 / 4)
    assert report.provenance["stopping"]["dtype"] == "float32"


def test_when_time_is_up_nothing_more_begins(tmp_path):
    worker = Worker({"cheap": 1.0}, 60.0)
    known = worker.rows_of(tmp_path, 100)
    in_time(worker, known, {"cheap": ALL})
    assert 0 < len(known.get_ids("cheap", ALL[0])) < 60
    assert 0 < worker.progress.estimate_remaining() == worker.progress.remaining_seconds
    worker.now += 500.0  # the machine slept
    n_before = len(worker.ran)
    in_time(worker, known, {"cheap": ALL}, {"new": ALL})
    assert len(worker.ran) == n_before


def test_every_place_has_enough_texts_before_one_has_more(tmp_path):
    worker = Worker({"test": 0.5}, 160.0)  # 60 texts everywhere take 120 s
    known = worker.rows_of(tmp_path, 400)
    in_time(worker, known, {"test": ALL}, {"test": LAYERS})
    sizes = [len(known.get_ids("test", site)) for site in (*ALL, *LAYERS)]
    assert sizes[0] > 60 and sizes[1:] == [60] * 3
    first = [text.example_id for text in known.texts[: sizes[0]]]
    assert known.get_ids("test", ALL[0]) == {*first}


def test_what_was_done_before_a_time_was_up_is_kept(model, monkeypatch, tmp_path):
    """Nothing but predictions: refused, and the same command goes on with more time."""

    def only_predict(so_far, *others, **options):
        so_far.run(so_far.texts, {})

    monkeypatch.setattr(rounds, "run_within_time", only_predict)
    monkeypatch.setattr(rounds, "_measure_cost", lambda *arguments: None)
    refused("too short to run any test", run, model, tmp_path / "out", time="1m")
    kept = {part: part.stat().st_mtime_ns for part in (tmp_path / "out").rglob("part-*")}
    assert kept
    monkeypatch.undo()
    report = run(model, tmp_path / "out", time="1m")
    assert len(report.statistics) > 1
    assert all(part.stat().st_mtime_ns == before for part, before in kept.items())


def test_a_clock_keeps_time_for_the_report():
    worker = Worker({}, 600.0)
    assert worker.progress.remaining_seconds == 540.0
    worker.now = 100.0
    assert worker.progress.remaining_seconds == 440.0
    assert AuditProgress().remaining_seconds == float("inf")


# --- several processes --------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_disk(model, tmp_path_factory):
    """The model and the data as the command line takes them."""
    folder = tmp_path_factory.mktemp("stopping")
    (bert, tokenizer), data = model
    bert.save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    data.select_columns(["text", "label"]).to_json(folder / "test.jsonl")
    command = ["audit", "--model", folder / "bert", "--dataset", folder / "test.jsonl"]
    command += ["--test-limit", "60", "--tests", "uniform_attention", "head_ablation"]
    return [*command, "--shown-texts", "0", "--no-prune"]


def stopped_rows(folder):
    keys = ["test", "statistic", "layer", "head", "example_id"]
    return Report.load(folder).to_pandas()[[*keys, "value"]].set_index(keys).value.sort_index()


@pytest.mark.slow
def test_two_processes_stop_in_time(on_disk, torchrun, tmp_path):
    """The main process's clock decides for both; what is left goes on."""
    folder = tmp_path / "out"
    limited = (*on_disk, "--batch-size", "4", "--output-dir", folder)
    first = torchrun(*limited, "--time", "12s")
    assert first.code == 0, first.err
    few = stopped_rows(folder)
    again = torchrun(*limited)
    assert again.code == 0, again.err
    whole = stopped_rows(folder)
    assert len(few) and few.index.isin(whole.index).all()
    assert len(whole.xs("uniform_tvd", level="statistic")) == 60 * 9  # 6 + 2 + 1 sites
