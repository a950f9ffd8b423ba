"""Decides in which order an audit runs its tests, and on how many texts.

The texts have a fixed random order. With ``--time``, the tests run in *turns*. The first turns run
the tests that decide the verdict, on the mean over all heads. The next turns screen all heads, and
measure the effect and the faithfulness of the ten heads with the largest estimated effects. After the
last turn, all turns are repeated with twice as many texts and twice as many heads, until the time is
up.

A classifier runs a test on many texts before the next test starts, because its tests run on batches.
A language model runs all tests of a turn on one prompt before it starts the next prompt, because
nothing can be said about a prompt from a single test.

``torch.compile`` is not used. On a CPU with two cores, it made forward passes at most 23% faster, but
compiling the model took at least 16 seconds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, product
from pathlib import Path
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list

from hf_attnprobe.audits.audited_model import get_number_format
from hf_attnprobe.audits.cost_model import (
    AuditProgress,
    CostModel,
    get_cost_class,
    list_steps,
)
from hf_attnprobe.audits.options import AuditOptions, parse_duration
from hf_attnprobe.audits.runner import AuditRunner, SitesByTest, list_test_site_pairs
from hf_attnprobe.audits.site_selection import (
    AuditSelection,
    assign_screened_sites,
    list_sites_by_test,
    sort_by_screen,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import split_into_chunks
from hf_attnprobe.core.progress import format_duration
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import ALL, HEAD_SET, AnswersFromPassage, Site
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.grades import MIN_PROMPTS, MIN_TEXTS
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.sampling import draw_random_order
from hf_attnprobe.statistics.summary import PREDICTION_TEST
from hf_attnprobe.storage.rows import NO_SITE, FinishedIds, TestSite, load_rows, read_finished_ids


N_FIRST_ROUND_TEXTS = MIN_TEXTS
"""Number of texts on which every test runs in the first round of a time-limited audit.

It is doubled in every later round. It is also the smallest number of texts with which a report
answers its questions.
"""
PREDICTION_TEXTS_FACTOR = 4
"""Number of texts that a time-limited audit predicts, as a multiple of the texts that its tests use.

For example, if the tests run on 30 texts, the model predicts 120 texts. The additional predictions
are cheap, and make the accuracy more precise.
"""
N_FOREMOST_HEADS = 10
"""Number of heads that the first round of a time-limited audit tests one by one.

They are the heads with the largest first-order effects. The number is doubled in every later round.
In each turn, a test covers at most this many heads.
"""
TIME_SAFETY_FACTOR = 1.3
"""Safety factor for estimated durations. An estimate of 10 seconds counts as 13 seconds."""
PORTION_GROWTH_FACTOR = 4
"""Maximum length of a portion of texts, as a multiple of the length that a test has already run on.

The clock is read only between two portions. A duration that was measured on one short text is
imprecise for long texts, so a large portion could end long after the time limit.
"""
LATE_TESTS = {"erasure"}
"""Names of the tests of the verdict that run after the screen of all heads, because they take long."""

Decision = TypeVar("Decision")
ListTurns = Callable[[int], Iterable[SitesByTest]]
"""Function that takes a number of single heads, and yields the turns of a round with these heads."""
RunTests = Callable[[Sequence[Text], SitesByTest, FinishedIds], None]
"""Function that runs tests at sites on texts, except those that are finished."""


@dataclass
class CompletedWork:
    """Records on which texts each test has run at each site, and runs tests on further texts.

    Attributes:
        folder: Folder with the saved rows.
        texts: Texts in the fixed random order.
        run_tests: Function that runs tests and saves their rows.
        finished_ids: Text ids with rows, by test, layer and head.
    """

    folder: Path
    texts: Sequence[Text]
    run_tests: RunTests
    finished_ids: dict[TestSite, set[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.finished_ids = read_finished_ids(self.folder)

    def run(self, texts: Sequence[Text], sites_by_test: SitesByTest) -> None:
        """Run all unfinished tests on some texts, and compute the predictions for these texts.

        Args:
            texts: The texts.
            sites_by_test: The sites (heads and groups of heads) for every test.
        """
        # Predictions are stored like the results of a test, but belong to no head.
        all_sites = {**sites_by_test, PREDICTION_TEST: [NO_SITE]}
        self.run_tests(texts, all_sites, self.finished_ids)
        for test, site in list_test_site_pairs(all_sites):
            self.get_ids(test, site).update(text.example_id for text in texts)

    def synchronise(self, decision: Decision) -> Decision:
        """Return the main process's decision on every process.

        Decisions depend on the remaining time. Without this function, two processes could decide
        differently.

        Args:
            decision: This process's own decision.
        """
        decisions = [decision]
        broadcast_object_list(decisions)
        return decisions[0]

    def get_ids(self, test: str, site: Site) -> set[int]:
        """Return the text ids on which a test has run at a site."""
        return self.finished_ids.setdefault((test, site.layer, site.head), set())

    def is_missing(self, sites_by_test: SitesByTest, text: Text) -> bool:
        """Return whether any of the tests still has to run on a text, at one site or more."""
        pairs = list_test_site_pairs(sites_by_test)
        return any(text.example_id not in self.get_ids(test, site) for test, site in pairs)

    def count_runs(self, sites_by_test: SitesByTest) -> int:
        """Count finished runs; one test at one site on one text is one run."""
        audited_ids = {text.example_id for text in self.texts}
        pairs = list_test_site_pairs(sites_by_test)
        return sum(len(self.get_ids(test, site) & audited_ids) for test, site in pairs)


def load_completed_work(runner: AuditRunner) -> CompletedWork:
    """Read from the output folder which tests have already run on which texts.

    Args:
        runner: The test runner.

    Returns:
        The completed work, with the texts in the fixed random order.
    """
    text_by_id = {text.example_id: text for text in runner.texts}
    order = draw_random_order(text_by_id, runner.seed)

    def run_tests(texts: Sequence[Text], sites_by_test: SitesByTest, finished: FinishedIds) -> None:
        # A copy of the runner with fewer texts runs the tests only on these texts.
        replace(runner, texts=texts).run_pending(sites_by_test, finished)

    texts = [text_by_id[example_id] for example_id in order]
    return CompletedWork(runner.folder, texts, run_tests)


# --- Audits with a time limit --------------------------------------------------------------------

# The number of texts for a test depends only on its costs, never on its results. The confidence
# intervals assume a fixed sample size, so they would otherwise be wrong.


def run_within_time(
    completed: CompletedWork,
    progress: AuditProgress,
    list_turns: ListTurns,
    batch_size: int,
    n_heads: int = 0,
    *,
    completes_texts: bool = False,
) -> None:
    """Run tests on a few texts and heads, then on twice as many of both, until time is up.

    Args:
        completed: The completed work, which is updated.
        progress: Remaining time and measured costs; must have a time limit.
        list_turns: Function that yields the tests and sites of a round, with the most important
            first. It is called in every round, because the head order depends on the rows so far.
        batch_size: Maximum number of texts that run before the clock is read again.
        n_heads: Number of heads that are tested one by one in the last round.
        completes_texts: Whether all tests of a turn run on a text before the next text starts. If
            False, a test runs on all texts of the round before the next test starts.
    """
    goal, n_texts = N_FIRST_ROUND_TEXTS, len(completed.texts)
    n_heads_goal = N_FOREMOST_HEADS
    # A report displays an unfinished test only from this number of texts.
    min_texts = 1 if completes_texts else MIN_DISPLAYED_TEXTS
    while True:
        for turn in list_turns(n_heads_goal):
            groups = _group_tests(turn, completes_texts)
            for group in groups:
                _measure_cost(completed, progress, group, min_texts)
            # In the first round, all tests of a turn reach the smallest number of texts that a report
            # displays before one of them takes the time for more texts.
            for turn_goal in (min_texts, goal) if goal == N_FIRST_ROUND_TEXTS else (goal,):
                for group in _sort_by_cost(completed, progress, groups):
                    factor = PREDICTION_TEXTS_FACTOR if PREDICTION_TEST in group else 1
                    texts = completed.texts[: turn_goal * factor]
                    _run_in_portions(completed, progress, batch_size, group, texts, min_texts)
        is_last_round = goal >= n_texts and n_heads_goal >= n_heads
        if is_last_round or completed.synchronise(progress.remaining_seconds <= 0):
            return
        goal *= 2
        n_heads_goal *= 2


def _measure_cost(
    completed: CompletedWork, progress: AuditProgress, group: SitesByTest, min_texts: int
) -> None:
    """Run a group of tests on one text, unless the duration of each of its tests is known.

    Most durations grow faster than the length of a text, so a text of median length is chosen.

    Args:
        completed: The completed work, which is updated.
        progress: Remaining time and measured costs, which are updated.
        group: The tests, each with its sites.
        min_texts: Number of unfinished texts, the first ones in the random order, of which the text
            has the median length.
    """
    is_measured = all(map(progress.costs.has_measured, group))
    if completed.synchronise(is_measured):
        return
    pending_texts = [text for text in completed.texts if completed.is_missing(group, text)]
    sorted_texts = sorted(pending_texts[:min_texts], key=lambda text: text.n_tokens)
    median_text = sorted_texts[len(sorted_texts) // 2 :][:1]
    _run_in_portions(completed, progress, 1, group, median_text, 1)


def _group_tests(turn: SitesByTest, completes_texts: bool) -> list[SitesByTest]:
    """Group the tests of a turn; a text runs through all tests of a group at once.

    Args:
        turn: Sites by test. Tests without sites are left out.
        completes_texts: Whether all tests form one group. If False, every test is a group.
    """
    tests = {test: sites for test, sites in turn.items() if sites}
    if completes_texts:
        return [tests] if tests else []
    return [{test: sites} for test, sites in tests.items()]


def _sort_by_cost(
    completed: CompletedWork, progress: AuditProgress, groups: Sequence[SitesByTest]
) -> list[SitesByTest]:
    """Sort groups of tests by their estimated duration for one text, with the shortest first."""
    first_text = completed.texts[:1]

    def estimate_cost(group: SitesByTest) -> float:
        return progress.costs.estimate_seconds(list_steps([(group, first_text)]))

    # All processes must use the same order, so they use the main process's order.
    return completed.synchronise(sorted(groups, key=estimate_cost))


def _run_in_portions(
    completed: CompletedWork,
    progress: AuditProgress,
    batch_size: int,
    sites_by_test: SitesByTest,
    texts: Sequence[Text],
    min_texts: int,
) -> None:
    """Run a group of tests, a few texts at a time, on all texts or until the time is up.

    The duration of each text is estimated from its length, because some texts are much longer than
    others.

    Args:
        completed: The completed work, which is updated.
        progress: Remaining time and measured costs.
        batch_size: Maximum number of texts in a portion.
        sites_by_test: The tests, each with its sites.
        texts: The texts.
        min_texts: Smallest number of finished texts that is of use. If there is not enough time for
            them, the tests do not start.
    """
    costs = progress.costs
    pending_texts = [text for text in texts if completed.is_missing(sites_by_test, text)]
    while pending_texts:
        n_finished = len(texts) - len(pending_texts)
        min_portion = max(1, min(min_texts - n_finished, len(pending_texts)))
        candidates = pending_texts[: max(batch_size, min_portion)]
        cumulative_seconds = accumulate(
            costs.estimate_seconds(list_steps([(sites_by_test, [text])])) for text in candidates
        )
        available_seconds = progress.remaining_seconds
        if all(map(costs.has_measured, sites_by_test)):
            available_seconds /= TIME_SAFETY_FACTOR
        n_affordable = sum(
            available_seconds > 0 and seconds <= available_seconds for seconds in cumulative_seconds
        )
        max_tokens = PORTION_GROWTH_FACTOR * min(map(costs.count_measured_tokens, sites_by_test))
        cumulative_tokens = accumulate(text.n_tokens for text in candidates)
        n_predictable = max(sum(n_tokens <= max_tokens for n_tokens in cumulative_tokens), 1)
        n_affordable, n_predictable = completed.synchronise((n_affordable, n_predictable))
        if n_affordable < min_portion:
            return
        portion = pending_texts[: min(n_affordable, n_predictable, batch_size)]
        completed.run(portion, sites_by_test)
        pending_texts = pending_texts[len(portion) :]


def list_tests_with_role(role: str) -> set[str]:
    """List the tests that answer the questions with a given role in the report.

    Args:
        role: Role of the questions: the deciding "score", a "part" of it, or an "effect" without
            which there is nothing to explain.

    Returns:
        Test names.
    """
    return {question.test for question in ALL_QUESTIONS.values() if question.role == role}


def list_head_tests(tests: Iterable[str]) -> list[str]:
    """List those tests that measure the effect and the faithfulness of a head, in running order.

    Effects come first, because a head without an effect explains nothing. Reports prefer exchange to
    deletion (test ``scale``). If the time ends in between, all heads must be measured in the same
    way, so exchange runs before deletion.

    Args:
        tests: Names of the audit's tests.
    """
    effect_tests = sorted(list_tests_with_role("effect"))
    score_tests = sorted(list_tests_with_role("score"))
    return [test for test in (*effect_tests, "exchange", *score_tests) if test in tests]


def list_verdict_sites(
    runner: AuditRunner, heads: Sequence[Site], groups: Sequence[Site]
) -> SitesByTest:
    """List the tests that decide the verdict, each with the sites that they need for it.

    Args:
        runner: The test runner.
        heads: Heads that are tested one by one.
        groups: Head groups that are tested as a whole.

    Returns:
        Sites by test: the mean over all heads and the head sets of the user, or the only head. The
        tests of :data:`LATE_TESTS` come last.
    """
    adapter = runner.adapter
    model_groups = [group for group in groups if group.layer in (ALL, HEAD_SET)]
    single_head = heads if len(adapter.sites()) == 1 else []
    part_tests = list_tests_with_role("part") & {*runner.options}
    verdict_tests = {*list_head_tests(runner.options), *part_tests}
    sorted_tests = sorted(verdict_tests, key=lambda test: (test in LATE_TESTS, test))
    return list_sites_by_test(sorted_tests, adapter, single_head, model_groups)


def sort_heads(runner: AuditRunner, heads: Sequence[Site], texts: Sequence[Text]) -> list[Site]:
    """Sort heads by their first-order effects on the texts of the first round, largest first.

    The order ignores the texts of later rounds. Otherwise, heads with almost equal effects could change
    places, and heads that have been tested would be replaced by heads that have not.

    Args:
        runner: The test runner. Its folder contains the rows of the test ``screen``.
        heads: Heads that are tested one by one.
        texts: Texts in the fixed random order.
    """
    first_round_ids = [text.example_id for text in texts[:N_FIRST_ROUND_TEXTS]]
    screen_rows = load_rows(runner.folder, "screen").select_ids(first_round_ids)
    return sort_by_screen(screen_rows, heads)


def plan_turns(
    runner: AuditRunner,
    heads: Sequence[Site],
    groups: Sequence[Site],
    texts: Sequence[Text],
) -> ListTurns:
    """Plan the turns of a time-limited audit, with the most important tests and sites first.

    The order in a round is:

    1. the predictions (accuracy of a classifier);
    2. for the mean over all heads, the tests that decide the verdict, except for those in step 5;
    3. the first-order effects of all heads (test ``screen``);
    4. for the heads with the largest first-order effects, the tests that measure their effect and
       score their faithfulness;
    5. for the mean over all heads, the test ``erasure``, then the tests that the verdict does not
       need. Erasure is a part of faithfulness, but takes longer than all tests of step 2 together;
    6. from the second round on, the tests of step 4 for layers;
    7. as soon as a round contains all heads, the remaining tests for layers and single heads.

    If there are at most as many heads as the first round tests, it contains all steps.

    Args:
        runner: The test runner.
        heads: Heads that are tested one by one.
        groups: Head groups that are tested as a whole.
        texts: Texts in the fixed random order.

    Returns:
        Function that takes the number of heads for step 4 and yields the turns. Call it again in every
        round, because the number of heads grows.
    """
    adapter = runner.adapter
    tests = [test for test in runner.options if test != "screen"]
    model_groups = [group for group in groups if group.layer in (ALL, HEAD_SET)]
    layers = [group for group in groups if group not in model_groups]
    has_single_head = len(adapter.sites()) == 1
    single_head = heads if has_single_head else []
    head_tests = list_head_tests(tests)
    verdict_sites = list_verdict_sites(runner, heads, groups)
    late_tests = LATE_TESTS & verdict_sites.keys()
    first_sites = {test: verdict_sites[test] for test in verdict_sites if test not in late_tests}
    late_sites = {test: verdict_sites[test] for test in late_tests}
    other_tests = [test for test in tests if test not in verdict_sites]

    def list_head_turns(tests: Iterable[str], heads: Sequence[Site]) -> Iterator[SitesByTest]:
        for some_heads, test in product(split_into_chunks(heads, N_FOREMOST_HEADS), tests):
            yield list_sites_by_test([test], adapter, some_heads)

    def list_turns(n_heads: int) -> Iterator[SitesByTest]:
        if adapter.lacks(AnswersFromPassage):
            yield {PREDICTION_TEST: [NO_SITE]}
        yield first_sites
        if not has_single_head:
            screen = [test for test in runner.options if test == "screen"]
            yield list_sites_by_test(screen, adapter, heads)
            sorted_heads = sort_heads(runner, heads, texts)
            yield from list_head_turns(head_tests, sorted_heads[:n_heads])
        yield late_sites
        yield list_sites_by_test(other_tests, adapter, single_head, model_groups)
        if has_single_head:
            return
        has_all_heads = n_heads >= len(heads)
        if has_all_heads or n_heads > N_FOREMOST_HEADS:
            yield list_sites_by_test(head_tests, adapter, [], layers)
        if has_all_heads:
            yield list_sites_by_test(tests, adapter, [], layers)
            yield from list_head_turns(tests, sorted_heads)

    return list_turns


# --- The work of an audit ------------------------------------------------------------------------


def run_tests(
    runner: AuditRunner,
    selection: AuditSelection,
    options: AuditOptions,
) -> dict[str, Any]:
    """Run an audit's tests, within its time limit if it has one.

    With ``--screen``, only the single heads with the largest first-order effects are tested. They
    are chosen for one half of the texts by the effects on the other half. Head groups are always
    tested.

    Args:
        runner: The test runner.
        selection: The tests and sites.
        options: Audit options.

    Returns:
        Record for the report's provenance that states which part of the full audit is finished;
        empty without a time limit.

    Raises:
        AttnProbeError: If the time limit is too short for any test.
    """
    tests, groups, heads = list(runner.options), list(selection.groups), selection.heads
    completed = load_completed_work(runner)
    sites_by_test = list_sites_by_test(tests, runner.adapter, heads, groups)
    if options.time is not None:
        return _run_with_time_limit(runner, selection, completed, sites_by_test, options.time)
    parts: Sequence[tuple[Sequence[Text], Sequence[Site]]] = [(completed.texts, heads)]
    if options.screen is not None:
        completed.run(completed.texts, list_sites_by_test(["screen"], runner.adapter, heads))
        screen_rows = load_rows(runner.folder, "screen")
        parts = assign_screened_sites(runner.texts, screen_rows, heads, options.screen)
        tests.remove("screen")
    for texts, part_heads in parts:
        completed.run(texts, list_sites_by_test(tests, runner.adapter, part_heads, groups))
    return {}


def _run_with_time_limit(
    runner: AuditRunner,
    selection: AuditSelection,
    completed: CompletedWork,
    sites_by_test: SitesByTest,
    limit: str,
) -> dict[str, Any]:
    """Run an audit's tests within its time limit, and print a line if no answer can be expected.

    Args:
        runner: The test runner.
        selection: The tests and sites.
        completed: The completed work, which is updated.
        sites_by_test: All tests and sites in the full audit.
        limit: The option ``--time`` as the user wrote it.

    Returns:
        Record for the report's provenance that states which part of the full audit is finished.
    """
    heads, groups = selection.heads, list(selection.groups)
    progress, texts = runner.progress, completed.texts
    preparation_seconds = progress.elapsed_seconds
    completes_texts = not runner.adapter.lacks(AnswersFromPassage)
    verdict_sites = list_verdict_sites(runner, heads, groups)
    answer_texts = texts[: MIN_PROMPTS if completes_texts else MIN_TEXTS]
    pending_seconds = _measure_pending_seconds(
        completed, progress, verdict_sites, answer_texts, completes_texts=completes_texts
    )
    if completed.synchronise(pending_seconds > progress.remaining_seconds):
        needed_seconds = progress.estimate_time_limit(progress.elapsed_seconds + pending_seconds)
        all_measured = all(map(progress.costs.has_measured, verdict_sites))
        progress.bar.print_line(
            f"--time {limit} is too short for an answer on this machine. The tests of all attention "
            f"on {len(answer_texts)} texts need {'' if all_measured else 'more than '}"
            f"{format_duration(needed_seconds)} in total."
        )
    run_within_time(
        completed,
        progress,
        plan_turns(runner, heads, groups, texts),
        runner.batch_size,
        len(heads),
        completes_texts=completes_texts,
    )
    _check_any_test_ran(completed, limit)
    time_limit = parse_duration(limit)
    record = summarise_work(completed, time_limit, sites_by_test, runner.seed)
    record["seconds_left"] = estimate_pending_seconds(
        completed, progress.costs, sites_by_test, texts
    )
    if verdict_sites and all(map(progress.costs.has_measured, verdict_sites)):
        steps = list_steps([(verdict_sites, [text]) for text in answer_texts])
        test_seconds = TIME_SAFETY_FACTOR * progress.costs.estimate_seconds(steps)
        record["seconds_for_answer"] = progress.estimate_time_limit(
            preparation_seconds + test_seconds
        )
    record["dtype"] = get_number_format(runner.adapter)
    return record | summarise_heads(completed, runner, heads)


def _measure_pending_seconds(
    completed: CompletedWork,
    progress: AuditProgress,
    sites_by_test: SitesByTest,
    texts: Sequence[Text],
    *,
    completes_texts: bool,
) -> float:
    """Run each of some tests on one text, and estimate the seconds until all texts are finished.

    As soon as the estimate exceeds the remaining time, the other tests do not run.

    Args:
        completed: The completed work, which is updated.
        progress: Remaining time and measured costs, which are updated.
        sites_by_test: The tests, each with its sites.
        texts: The texts.
        completes_texts: Whether all tests run on a text before the next text starts.

    Returns:
        Estimated seconds, including :data:`TIME_SAFETY_FACTOR`.
    """
    min_texts = 1 if completes_texts else MIN_DISPLAYED_TEXTS
    pending_seconds = 0.0
    measured_sites: dict[str, Sequence[Site]] = {}
    for group in _group_tests(sites_by_test, completes_texts):
        _measure_cost(completed, progress, group, min_texts)
        measured_sites |= group
        pending_seconds = TIME_SAFETY_FACTOR * estimate_pending_seconds(
            completed, progress.costs, measured_sites, texts
        )
        if completed.synchronise(pending_seconds > progress.remaining_seconds):
            break
    return pending_seconds


def _check_any_test_ran(completed: CompletedWork, limit: str) -> None:
    """Raise AttnProbeError if no test has run within the time limit."""
    finished_tests = set()
    for (test, _, _), example_ids in completed.finished_ids.items():
        if example_ids:
            finished_tests.add(test)
    if not finished_tests - {PREDICTION_TEST}:
        raise AttnProbeError(
            f"--time {limit} is too short to run any test. Increase it. With --output-dir, the next "
            "run uses the answers that this run generated."
        )


def summarise_work(
    completed: CompletedWork, time_limit: float, sites_by_test: SitesByTest, seed: int
) -> dict[str, Any]:
    """Summarise how much of an audit was finished within its time limit.

    Args:
        completed: The completed work.
        time_limit: The time limit in seconds.
        sites_by_test: All tests and sites in the full audit.
        seed: Seed for the random text order.

    Returns:
        Numbers that the report saves and displays. The callers add further entries, such as "seconds",
        the time of all runs in the output folder. A run is one test on one text at one site (a head or
        a group of heads); a full audit would have "runs_of_full_audit" runs.
    """
    n_sites = sum(len(sites) for sites in sites_by_test.values())
    return {
        "time_limit": time_limit,
        "runs_done": completed.count_runs(sites_by_test),
        "runs_of_full_audit": n_sites * len(completed.texts),
        "n_texts": len(completed.texts),
        "seed": seed,
    }


def estimate_pending_seconds(
    completed: CompletedWork,
    costs: CostModel,
    sites_by_test: SitesByTest,
    texts: Sequence[Text],
) -> float:
    """Estimate the seconds until some tests have run at all their sites on some texts.

    Args:
        completed: The completed work.
        costs: Measured costs.
        sites_by_test: The tests and their sites.
        texts: The texts.
    """
    tokens_by_id = {text.example_id: text.n_tokens for text in texts}
    n_tokens = sum(tokens_by_id.values())
    seconds = 0.0
    for test, sites in sites_by_test.items():
        for index, site in enumerate(sites):
            finished_ids = completed.get_ids(test, site) & tokens_by_id.keys()
            n_pending = n_tokens - sum(tokens_by_id[example_id] for example_id in finished_ids)
            cost_key = test, get_cost_class(index, site)
            seconds += costs.estimate_seconds_per_token(cost_key) * n_pending
    return seconds


def summarise_heads(
    completed: CompletedWork, runner: AuditRunner, heads: Sequence[Site]
) -> dict[str, Any]:
    """Summarise which single heads an audit with a time limit has tested on enough texts.

    A head is tested if its effect and its faithfulness were measured on as many texts as the first
    round has.

    Args:
        completed: The completed work.
        runner: The test runner.
        heads: Heads that are tested one by one.

    Returns:
        The entry "heads" for the record: the number of heads, of screened and of tested heads; how
        many of the foremost heads are missing, out of how many; and how many seconds these and the
        screen would take. Empty for a model with a single head, or if no test measures heads.
    """
    adapter, tests = runner.adapter, list_head_tests(runner.options)
    if "exchange" in tests:
        # Faithfulness by exchange does not need the deletion of words as well.
        tests = [test for test in tests if test not in list_tests_with_role("score")]
    if len(adapter.sites()) == 1 or not heads or not tests:
        return {}
    texts = completed.texts[:N_FIRST_ROUND_TEXTS]
    screen = list_sites_by_test([t for t in runner.options if t == "screen"], adapter, heads)

    def is_finished(names: Iterable[str], head: Site) -> bool:
        sites_by_test = list_sites_by_test([*names], adapter, [head])
        return not any(completed.is_missing(sites_by_test, text) for text in texts)

    sorted_heads = sort_heads(runner, heads, completed.texts)
    tested_heads = {head for head in heads if is_finished(tests, head)}
    foremost_heads = sorted_heads[:N_FOREMOST_HEADS]
    missing_heads = [head for head in foremost_heads if head not in tested_heads]
    missing_work = {**screen, **list_sites_by_test(tests, adapter, missing_heads)}
    return {
        "heads": {
            "n_heads": len(heads),
            "n_screened": sum(is_finished(screen, head) for head in heads) if screen else 0,
            "n_tested": len(tested_heads),
            "n_foremost": len(foremost_heads),
            "n_foremost_missing": len(missing_heads),
            "seconds_left": estimate_pending_seconds(
                completed, runner.progress.costs, missing_work, texts
            ),
        }
    }
