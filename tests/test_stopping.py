"""Audits that stop when they are sure: intervals at every look, races, order, resume."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import zoo
from hf_attnprobe import AuditOptions, Data, Permutation, audit, build_tokenizer, rationale_dataset
from hf_attnprobe.attention_model import Site
from hf_attnprobe.auditing.clock import Clock, steps_of
from hf_attnprobe.auditing.report import Report
from hf_attnprobe.auditing.rounds import RowsSoFar, Stage, Timetable
from hf_attnprobe.auditing.stopping import limits_of, seconds_of, width_of
from hf_attnprobe.auditing.sweep import plan
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.rows import nothing
from hf_attnprobe.statistics.samples import random_order
from hf_attnprobe.statistics.stopping import (
    Stopping,
    confidence_sequence,
    marked,
    standing,
    stopping_of,
    widened,
    without_gaps,
)
from made_up_rows import rows_of_texts


# confseq 0.0.11 (the authors' package), hedged_cs with 20,000 grid points, ¾ as the most
# that is bet and the running intersection, on 60 values; (low, high) without a population
# and with one of 90.
OF_CONFSEQ = {
    "even": [(0.33015, 0.52920), (0.35730, 0.50655)],
    "skewed": [(0.04750, 0.19475), (0.08614, 0.17260)],
    "shares": [(0.05165, 0.31415), (0.10000, 0.26100)],
}


def values_of(name):
    k = np.arange(60)
    values = (k * k * 7 + 3 * k + 1) % 101 / 101
    shapes = {"even": values, "skewed": values**6, "shares": (values < 0.1) * 1.0}
    return shapes[name]


@pytest.mark.parametrize("name", OF_CONFSEQ)
def test_the_bets_are_those_of_the_authors_package(name):
    for population, expected in zip((None, 90), OF_CONFSEQ[name], strict=True):
        found = confidence_sequence(values_of(name)[:, None], population)[:, 0]
        assert found == pytest.approx(expected, abs=6e-5)  # their grid has steps of 5e-5


def populations(n):
    generator = np.random.default_rng(0)
    return [generator.random(n), generator.beta(0.5, 8, n), (generator.random(n) < 0.1) * 1.0]


def test_all_looks_together_cover_the_mean():
    """400 orders, drawn with and without return: that a look before errs would show, since looks are intersected."""
    generator = np.random.default_rng(1)
    for is_finite, population in itertools.product((True, False), populations(150)):
        drawn = np.stack([generator.permutation(population) for _ in range(400)], 1)
        if not is_finite:
            drawn = generator.choice(population, size=(150, 400))
        low, high = confidence_sequence(drawn[:120], 150 if is_finite else None)
        covered = (low <= population.mean()) & (population.mean() <= high)
        assert covered.mean() >= 0.95
        assert (high - low).mean() < 0.35  # and it says something


def test_when_all_texts_are_seen_the_mean_is_known():
    population = np.random.default_rng(2).random((40, 3)) * 2 - 1
    ends = confidence_sequence(population, 40, bounds=(-1, 1))
    np.testing.assert_allclose(ends, np.stack([population.mean(0)] * 2), atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 40), st.integers(0, 5))
@example([2e-311], 0, 0)  # a risk so small that no bet is bounded by it
def test_an_interval_holds_its_mean_shrinks_and_passes_over_gaps(values, more, gaps):
    column = np.array(values)
    population = len(column) + more
    low, high = confidence_sequence(column[:, None], population)[:, 0]
    assert low - 1e-9 <= column.mean() <= high + 1e-9
    first = confidence_sequence(column[:-1, None], population)[:, 0]
    is_inside = first[0] <= column[:-1].mean() <= first[1] if len(column) > 1 else True
    assert is_inside
    with_gaps = np.concatenate([np.full(gaps, np.nan), column])[:, None]
    np.testing.assert_allclose(
        confidence_sequence(with_gaps, population)[:, 0], (low, high), atol=1e-12
    )


def test_a_race_decides_rightly_at_every_look():
    """Against the ranking of the whole population, over 40 orders."""
    generator = np.random.default_rng(3)
    means = np.array([0.4, 0.35, 0.3, 0.12, 0.1, 0.08, 0.05, 0.02])
    population = generator.beta(8 * means, 8 * (1 - means), size=(300, 8))
    truth = set(np.argsort(-population.mean(0))[:3])
    n_wrong, n_decided = 0, 0
    for _ in range(40):
        drawn = generator.permutation(population)
        for n in (40, 120, 300):
            found = standing(drawn[:n], 3, 300)
            surely_in = set(np.flatnonzero(found.inside))
            surely_out = set(np.flatnonzero(found.outside))
            n_wrong += not (surely_in <= truth and not surely_out & truth)
            n_decided += n == 120 and not found.undecided.any()
        assert set(found.first()) == truth
        assert not found.undecided.any()  # all texts are seen
    assert n_wrong <= 0.05 * 120
    assert n_decided >= 20  # long before the end


def test_only_texts_up_to_a_gap_count_whatever_was_run():
    order = random_order(range(10), seed=4)
    gap = order[:2] + order[3:]
    rows = [
        rows_of_texts({("a", "x"): 1.0}, ids=sorted(ids), head=head)
        for head, ids in enumerate((order[:6], gap))
    ]
    kept = without_gaps(pd.concat(rows), order)
    by_place = kept.long().groupby(["test", "layer", "head"]).example_id.agg(set).to_dict()
    assert by_place == {("a", 0, 0): set(order[:6]), ("a", 0, 1): set(order[:2])}


def test_limits_that_are_none_are_refused():
    for text in ("", "10 minutes", "-1s", "0", "nan", "1e400s", "10mm"):
        with pytest.raises(AttnProbeError, match="expected a time"):
            seconds_of(text)
    for text in ("", ".02", "width", "width=0", "width=2", "width=nan"):
        with pytest.raises(AttnProbeError, match="expected --until width="):
            width_of(text)
    for options in ({"top": 2, "screen": 3}, {"top": 2, "single_heads": False}):
        with pytest.raises(AttnProbeError, match="expected"):
            limits_of(AuditOptions(**options))


def test_a_mark_stays_with_selections_and_leaves_finished_columns_alone():
    stopping = Stopping(n_texts=4, seed=0)
    rows = marked(nothing(), stopping)
    assert stopping_of(rows.of_texts([1])) == stopping_of(rows.long()) == stopping
    frame = pd.DataFrame({"full": [0.1, 0.2, 0.3, 0.2], "cut": [0.1, 0.2, np.nan, np.nan]})
    ordinary = np.array([[0.15, 0.1], [0.25, 0.2]])
    ends = widened(ordinary, frame, [(0.0, 1.0)] * 2, stopping)
    assert ends[:, 0].tolist() == [0.15, 0.25]
    assert ends[0, 1] < 0.1 and ends[1, 1] > 0.2


def texts_of(n):
    return [Text(k, 0, {"input_ids": [1] * (3 + k % 2)}) for k in range(n)]


def test_work_is_resumed_by_test_site_and_text():
    sites = [Site(0, 0), Site(0, 1)]
    done = {("a", 0, 0): {0, 1}, ("a", 0, 1): {1}, ("b", 0, 0): {0, 1, 2}}
    jobs = plan(texts_of(3), {"a": sites, "b": sites[:1]}, done, lambda n: 1, 100, 10)
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
    data = rationale_dataset(400, seed=0)["test"]
    tokenizer = build_tokenizer(data["text"])
    tokenizer.model_max_length = 64
    return (zoo.bert(tokenizer, heads=3, width=24, spread=0.5), tokenizer), data


TESTS = ["uniform_attention", "head_ablation", Permutation(n_permutations=3)]


def run(model, folder=None, **options):
    pair, data = model
    options = AuditOptions(**{"shown_texts": 0, "prune": False} | options)
    given = {"options": options, "output_dir": folder, "progress": False}
    return audit(pair, Data(data, test_limit=60), TESTS, **given)


def means_of(report):
    return {(s.statistic, s.layer, s.head): s for s in report.statistics if s.group == "all"}


@pytest.fixture(scope="module")
def full(model):
    return means_of(run(model))


def test_an_audit_stops_says_so_and_goes_on_to_the_full_one(model, full, tmp_path):
    stopped = run(model, tmp_path / "out", until="width=.35")
    facts = stopped.provenance["stopping"]
    assert 0 < facts["runs_done"] < facts["runs_of_full_audit"]
    assert stopped.notes[0].startswith("Stopping (--until width=0.35)")
    some = [s for s in means_of(stopped).values() if s.n < 60]
    assert some and all(s.undefined == 0 for s in some)
    bounded = [s for s in some if s.statistic in ("uniform_tvd", "zero_tvd")]
    inside = [
        s.ci95[0] - 1e-9 <= full[s.statistic, s.layer, s.head].mean <= s.ci95[1] + 1e-9
        for s in bounded
    ]
    assert np.mean(inside) >= 0.95
    assert all(s.ci95[1] - s.ci95[0] <= 0.35 for s in bounded)
    loaded = Report.load(tmp_path / "out")
    assert stopping_of(loaded.to_pandas()) == stopping_of(stopped.to_pandas())
    assert loaded.to_markdown() == stopped.to_markdown()
    whole = means_of(run(model, tmp_path / "out"))  # the same folder, to the end
    for key, s in full.items():
        assert whole[key].n == s.n
        np.testing.assert_allclose(whole[key].mean, s.mean, atol=1e-6)


def test_the_first_heads_are_those_of_the_full_audit(model, full):
    report = run(model, top=2)
    zero = [s for s in full.values() if s.statistic == "zero_tvd" and min(s.layer, s.head) >= 0]
    effects = {(s.layer, s.head): s.mean for s in zero}
    first = sorted(effects, key=effects.get, reverse=True)[:2]
    race = report.provenance["stopping"]["race"]
    assert race["first"] == [f"{layer}.{head}" for layer, head in first]
    shuffled = [s for s in report.statistics if s.statistic == "median_tvd" and s.head >= 0]
    assert {(s.layer, s.head) for s in shuffled} == set(first)
    assert not any(s.head == -1 and s.layer >= 0 for s in report.statistics)


def test_with_time_enough_nothing_is_left_out(model):
    report = run(model, time="1h")
    facts = report.provenance["stopping"]
    assert facts["runs_done"] == facts["runs_of_full_audit"]
    assert report.notes[0].startswith("Stopping (--time, about")
    assert all(s.n == 60 for s in means_of(report).values())


class Worker:
    """Stands for the machine: seconds that work takes, and a list of what was run."""

    def __init__(self, seconds, limit):
        self.seconds, self.now, self.ran = seconds, 0.0, []
        self.clock = Clock(limit=limit, now=lambda: self.now)

    def __call__(self, texts, where, done):
        self.clock.begin(steps_of([(where, texts)]))
        for test, sites in where.items():
            for site in sites:
                held = done.setdefault((test, site.layer, site.head), set())
                new = [t for t in texts if t.example_id not in held]
                held.update(t.example_id for t in new)
                self.now += self.seconds.get(test, 0.0) * len(new)
                self.clock.tick()
                self.ran.append((test, site, len(new)))

    def rows_of(self, folder, n_texts):
        return RowsSoFar(folder, texts_of(n_texts), self)


ALL = [Site(-1, -1)]


@settings(max_examples=30, deadline=None)
@given(st.floats(0.001, 3), st.floats(0.001, 3), st.floats(10, 300))
def test_a_timetable_keeps_its_time_and_its_order(tmp_path_factory, cheap, dear, limit):
    worker = Worker({"cheap": cheap, "dear": dear}, limit)
    known = worker.rows_of(tmp_path_factory.mktemp("none"), 40)
    layers = [Site(k, -1) for k in range(3)]
    stages = [
        Stage({"cheap": ALL, "dear": ALL}, 0.5, first=30),
        Stage({"cheap": layers, "dear": layers}),
    ]
    Timetable(known, worker.clock, 16).run(stages)
    # A step whose cost is not known yet may be begun with little time left.
    assert worker.now <= limit + 2 * max(cheap, dear)
    tested = [(test, site) for test, site, n in worker.ran if n and test != "prediction"]
    assert tested[0][1] in ALL
    n_cheap, n_dear = (len(known.ids(test, ALL[0])) for test in ("cheap", "dear"))
    assert n_cheap >= min(n_dear, 30) or 2 * cheap > dear
    if (cheap + dear) * 120 < limit / 4:
        assert known.n_done({"cheap": layers, "dear": layers}) == 2 * 3 * 40


def test_a_test_that_comes_to_no_answer_waits_for_those_that_do(tmp_path):
    worker = Worker({"cheap": 3.0, "dear": 20.0}, 250.0)  # 30 texts of it take 600 s
    known = worker.rows_of(tmp_path, 40)
    Timetable(known, worker.clock, 16).run([Stage({"dear": ALL, "cheap": ALL})])
    ran = [test for test, _, n in worker.ran if n and test != "prediction"]
    first_dear, *others = [place for place, test in enumerate(ran) if test == "dear"]
    last_cheap = len(ran) - 1 - ran[::-1].index("cheap")
    assert len(known.ids("cheap", ALL[0])) == 40
    # One to tell what it costs; more only when nothing else is left.
    assert first_dear < last_cheap < min(others)


def test_when_time_is_up_nothing_more_begins(tmp_path):
    worker = Worker({"cheap": 1.0}, 60.0)
    known = worker.rows_of(tmp_path, 100)
    timetable = Timetable(known, worker.clock, 16)
    timetable.run([Stage({"cheap": ALL}, first=10)])
    worker.now += 500.0  # the machine slept
    n_before, stages = len(worker.ran), [Stage({"cheap": ALL}), Stage({"new": ALL}, 0.5)]
    timetable.run(stages)
    timetable.run(stages[1:])
    assert len(worker.ran) == n_before > 0


def test_beyond_enough_texts_what_an_answer_rests_on_comes_first(tmp_path):
    worker = Worker({"conicity": 0.1, "correlation": 1.0}, 150.0)  # 120 s of correlation
    known = worker.rows_of(tmp_path, 120)
    Timetable(known, worker.clock, 16).run([Stage({"conicity": ALL, "correlation": ALL})])
    ran = [(test, n) for test, _, n in worker.ran if n and test != "prediction"]
    last = {test: place for place, (test, _) in enumerate(ran)}
    assert len(known.ids("correlation", ALL[0])) == 120
    assert ran[0][0] == "conicity" and last["conicity"] > last["correlation"]


def test_how_many_texts_a_test_gets_does_not_depend_on_what_was_found():
    """A clock looks at nothing: the intervals are those of so many texts."""
    ordinary = np.array([[0.1], [0.2]])
    frame = pd.DataFrame({"cut": [0.1, 0.2, np.nan]})
    asked = Stopping(n_texts=3, seed=0)
    assert widened(ordinary, frame, [(0.0, 1.0)], replace(asked, looked=False)) is ordinary
    assert widened(ordinary, frame, [(0.0, 1.0)], asked)[1] > 0.2


def test_what_was_done_before_a_time_was_up_is_kept(model, monkeypatch, tmp_path):
    """Nothing but predictions: refused, and the same command goes on with more time."""

    def only_predict(timetable, stages):
        timetable.so_far.run(timetable.so_far.texts, {})

    monkeypatch.setattr(Timetable, "run", only_predict)
    with pytest.raises(AttnProbeError, match="give more with --time"):
        run(model, tmp_path / "out", time="1m")
    kept = {part: part.stat().st_mtime_ns for part in (tmp_path / "out").rglob("part-*")}
    assert kept
    monkeypatch.undo()
    report = run(model, tmp_path / "out", time="1m")
    assert len(report.statistics) > 1
    assert all(part.stat().st_mtime_ns == before for part, before in kept.items())


def test_a_clock_keeps_time_for_the_report():
    worker = Worker({}, 600.0)
    assert worker.clock.left == 540.0
    worker.now = 100.0
    assert worker.clock.left == 440.0
    assert Clock().left == float("inf")


@pytest.mark.parametrize(
    ("said", "expected"), [((), 10), (("--set", "permutation.n_permutations=100"), 100)]
)
def test_in_haste_tests_do_less_unless_something_else_is_said(
    said, expected, on_disk, cli, tmp_path
):
    command = [str(part) for part in on_disk]
    names = command.index("--tests")
    command[names + 1 : names + 3] = ["permutation"]
    limited = [*command, "--no-single-heads", "--json", "--output-dir", tmp_path / "out"]
    done = cli(*limited, "--time", "1m", *said)
    assert done.code == 0, done.err
    provenance = json.loads(done.out)["provenance"]
    assert provenance["options"]["permutation"] == {"n_permutations": expected}
    repeated = provenance["asked_for"]
    assert repeated["tests"]["permutation"].get("n_permutations", 10) == expected
    note = "without --time, add --set permutation.n_permutations=10"
    assert (note in (tmp_path / "out" / "report.md").read_text()) == (not said)
    if not said:
        other = cli(*limited)
        assert other.code == 1 and "belongs to another audit" in other.err
        assert cli(*limited, "--set", "permutation.n_permutations=10").code == 0


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
@pytest.mark.parametrize("limit", [("--until", "width=.35"), ("--top", "2")])
def test_two_processes_stop_where_one_does(limit, on_disk, run_python, torchrun, tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    one = run_python("-m", "hf_attnprobe", *on_disk, *limit, "--output-dir", alone)
    assert one.code == 0, one.err
    two = torchrun(*on_disk, *limit, "--output-dir", together)
    assert two.code == 0, two.err
    expected, found = stopped_rows(alone), stopped_rows(together)
    assert found.index.equals(expected.index)
    np.testing.assert_allclose(found, expected, atol=1e-6)


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
