"""Runs an audit's tests on its texts and writes the rows, so that a killed run can resume.

:class:`AuditRunner` forms batches, runs every test at every site on them and appends the rows to
the output folder. Tests, sites and texts that already have rows are skipped. A batch that does not
fit into memory is split into halves.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import torch

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.audits.cost_model import AuditProgress, estimate_text_bytes, list_steps
from hf_attnprobe.audits.self_checks import (
    check_prompt_edits,
    check_recorded_prediction,
    draw_texts,
)
from hf_attnprobe.audits.site_selection import assign_half
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import PeakMemory, release_free_pages, run_with_halving
from hf_attnprobe.core.options import Options
from hf_attnprobe.faithfulness.head_ablation import (
    PruneCurve,
    measure_prune_curve,
    sort_sites_by_effect,
)
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.inference.batching import collate, describe_text, form_batches
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    Decisions,
    MaskedReplay,
    Observation,
    Site,
)
from hf_attnprobe.statistics.rows import PREDICTION_TEST, Rows, Texts
from hf_attnprobe.storage.rows import (
    NO_SITE,
    FinishedIds,
    append_rows,
    build_rows,
    collect_statistics,
    compute_prediction_rows,
    concatenate_rows,
    load_rows,
    read_finished_ids,
)


SAVE_INTERVAL_SECONDS = 20.0
"""Time after which the finished rows of a running batch are saved, in seconds."""
N_PRUNE_STEPS = 12
"""Number of steps from no ablated head to all ablated heads in the accuracy curve."""
MAX_SINGLE_TEXT_CHECKS = 2
"""Largest number of recomputed texts for a model that reads one text at a time.

Such a model cannot mix up the texts of a batch, so that fewer checks are enough.
"""
QUICK_ROUND_SECONDS = 3.0
"""If a warm-up round takes at most this long, in seconds, a round with more texts follows."""
WARM_UP_GROWTH = 4
"""Factor on the number of texts from one warm-up round to the next."""
MEMORY_SAFETY_FACTOR = 1.25
"""Factor on the measured memory, for buffers inside operators that profiling cannot see."""
MAX_PROFILED_OPERATIONS = 1000
"""Number of operations of a test that are profiled for its peak memory.

Some tests are searches; their later steps need no more memory than the first ones.
"""

SitesByTest = Mapping[str, Sequence[Site]]
"""Sites at which each test runs, by test name."""
WorkItem = tuple[SitesByTest, list[Text]]
"""Tests with their sites, and a batch of texts on which they have not run yet."""


def list_test_site_pairs(sites_by_test: SitesByTest) -> list[tuple[str, Site]]:
    """List all pairs of a test and one of its sites."""
    return [(test, site) for test, sites in sites_by_test.items() for site in sites]


@dataclass
class BatchLimit:
    """Largest batch that is not known to exceed the memory of the device.

    Attributes:
        max_tokens: Largest number of tokens per batch, including padding; lowered whenever memory
            runs out.
    """

    max_tokens: float = math.inf

    def shrink(self, halves: Sequence[Sequence[Text]]) -> None:
        """Lower the limit to the larger half of a batch that did not fit into memory."""
        larger_half = max(len(half) * _get_max_length(half) for half in halves)
        self.max_tokens = min(self.max_tokens, larger_half)

    def count_fitting_texts(self, texts: Sequence[Text]) -> int:
        """Return the number of texts, at least 1, that form a batch within the limit."""
        return max(1, int(min(self.max_tokens / _get_max_length(texts), len(texts))))


def _get_max_length(texts: Sequence[Text]) -> int:
    """Return the number of tokens in  the longest text."""
    return max(text.n_tokens for text in texts)


@dataclass
class PartialWriter:
    """Saves the rows of a running batch from time to time, so that a killed run loses little.

    Attributes:
        folder: Folder of the rows.
        now: Function that returns the current time in seconds.
        has_written: Whether rows were saved before all tests of the batch were finished.
    """

    folder: Path
    now: Callable[[], float]
    has_written: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._last_write = self.now()

    @property
    def is_due(self) -> bool:
        """Whether the last rows were saved so long ago that new ones should be saved."""
        return self.now() - self._last_write >= SAVE_INTERVAL_SECONDS

    def write(self, tables: Sequence[pa.Table]) -> None:
        """Append rows to the folder."""
        append_rows(self.folder, concatenate_rows(tables))
        self._last_write, self.has_written = self.now(), True


@dataclass(frozen=True)
class AuditRunner:
    """Runs an audit's tests on its texts.

    Attributes:
        adapter: The audited model.
        texts: The audited texts.
        options: Options for the tests that run, by test name.
        seed: Random seed.
        pad_token_id: Token id for padding.
        memory_budget: Memory that a batch may take, in bytes.
        batch_size: Largest number of texts per batch.
        folder: Folder to which the rows are written.
        progress: Finished and planned work, measured costs and the progress bar.
    """

    adapter: AttentionModelBase
    texts: Sequence[Text]
    options: Mapping[str, Options]
    seed: int
    pad_token_id: int
    memory_budget: int
    batch_size: int
    folder: Path
    progress: AuditProgress

    def run_pending(self, sites_by_test: SitesByTest, finished: FinishedIds) -> None:
        """Run this process's share of all tests that have not run yet, and save their rows.

        The longest texts come first, so that a batch that does not fit into memory fails early.

        Args:
            sites_by_test: The sites for every test.
            finished: Text ids with rows, by test, layer and head.
        """
        work = self.plan_pending_work(sites_by_test, finished)[::-1]
        state = get_process_state()
        # Every process must have planned its share before any process adds rows.
        state.wait_for_everyone()
        share = work[state.process_index :: state.num_processes]
        self.progress.plan_steps(list_steps(share))
        batch_limit = BatchLimit()
        for pending_sites, texts in share:
            self.run_and_save(pending_sites, texts, batch_limit)
        state.wait_for_everyone()

    def warm_up(self, sites_by_test: SitesByTest) -> None:
        """Run every test at up to three sites on a few texts, to measure what it costs.

        The first round has one text. As long as a round is quick, another one with more texts
        follows. Only the durations of the last round are kept, because the first texts also load
        GPU kernels. The rows of all rounds are saved.

        Args:
            sites_by_test: The sites for every test.
        """
        sampled_sites = {test: pick_warm_up_sites(sites) for test, sites in sites_by_test.items()}
        n_texts, remaining_texts = 1, self.texts
        while remaining_texts:
            round_texts, remaining_texts = remaining_texts[:n_texts], remaining_texts[n_texts:]
            work = plan_batches(
                round_texts,
                sampled_sites,
                read_finished_ids(self.folder),
                _ignore_memory,
                self.memory_budget,
                self.batch_size,
            )
            if work:
                self.progress.costs.clear_seconds()
            start = self.progress.elapsed_seconds
            for pending_sites, texts in work:
                self.run_and_save(pending_sites, texts, BatchLimit())
            if self.progress.elapsed_seconds - start > QUICK_ROUND_SECONDS:
                return
            n_texts *= WARM_UP_GROWTH

    def verify_saved_rows(self, n_texts: int, cause: str) -> None:
        """Check that some texts with saved rows are still predicted as the rows record it.

        For a language model, two edits of the same prompts are checked too. Two prompts are enough
        for a model that reads one text at a time: an edit that the model would not compute itself
        comes from the model's code or from the length of a text, not from other texts.

        Args:
            n_texts: Number of texts to check.
            cause: Likely cause of a difference and its remedy, for the error message.

        Raises:
            AttnProbeError: If a prediction differs by more than rounding, or if the rows belong to
                another prompt or answer.
        """
        predictions = Texts.from_rows(load_rows(self.folder, PREDICTION_TEST)).to_frame()
        self._check_prompt_identities(predictions)
        if self.adapter.max_batch_size == 1:
            n_texts = min(n_texts, MAX_SINGLE_TEXT_CHECKS)
        for text in draw_texts(self.texts, predictions, n_texts, self.seed):
            batch = collate(self.adapter, [text], self.pad_token_id)
            if isinstance(self.adapter, LanguageModelAdapter):
                check_prompt_edits(self.adapter, batch)
            source = f"the value in {self.folder}"
            check_recorded_prediction(self.adapter, batch, predictions, source=source, cause=cause)

    def _check_prompt_identities(self, predictions: pd.DataFrame) -> None:
        """Raise AttnProbeError if saved rows belong to another prompt or answer of a text."""
        saved_identities = predictions.get("identity", pd.Series(dtype=float))
        for text in self.texts:
            saved_identity = saved_identities.get(text.example_id, text.identity)
            if text.identity is not None and saved_identity != text.identity:
                raise AttnProbeError(
                    f"the prompt or the answer of text {text.example_id} has changed since the "
                    f"rows in {self.folder} were written; give the answers with the data, or "
                    "choose another --output-dir"
                )

    def run_and_save(
        self, pending_sites: SitesByTest, texts: Sequence[Text], batch_limit: BatchLimit
    ) -> None:
        """Run tests on a batch of texts and save the rows; split the batch if memory runs out.

        Args:
            pending_sites: The tests to run, with their sites.
            texts: The batch.
            batch_limit: Largest batch that may fit; lowered if this batch does not fit.

        Raises:
            AttnProbeError: If a single text does not fit into memory.
        """
        writer = PartialWriter(self.folder, self.progress.now)

        def run(part: Sequence[Text]) -> pa.Table:
            # After a failed attempt, some rows of this part may already be saved.
            finished = read_finished_ids(self.folder) if writer.has_written else {}
            [(unsaved_sites, _)] = plan_batches(
                part, pending_sites, finished, _ignore_memory, self.memory_budget, len(part)
            )
            return self.run_texts(unsaved_sites, part, writer)

        parts = run_with_halving(
            texts,
            run,
            max_items=batch_limit.count_fitting_texts(texts),
            describe_item=describe_text,
            on_split=batch_limit.shrink,
        )
        for _, rows in parts:
            # The table is empty if the writer has already saved all rows.
            if rows.num_rows:
                append_rows(self.folder, rows)

    def run_texts(
        self, sites_by_test: SitesByTest, texts: Sequence[Text], writer: PartialWriter | None = None
    ) -> pa.Table:
        """Run tests on texts and return their rows.

        A language model runs the prompts side by side, each as a batch of its own whose forward
        passes are combined. Any other model reads the texts as one batch.

        Args:
            sites_by_test: The tests to run, with their sites.
            texts: The texts.
            writer: Saves finished rows from time to time if the texts form a single batch.

        Returns:
            The rows that the writer has not saved.
        """
        self.progress.start_batch(list_steps([(sites_by_test, texts)]))
        finish_step = self.progress.finish_step
        if len(texts) == 1 or not isinstance(self.adapter, LanguageModelAdapter):
            return self._run_as_one_batch(sites_by_test, texts, finish_step, writer)
        # The prompts advance together, so only the steps of the last prompt are counted.
        callbacks = [*[_do_nothing] * (len(texts) - 1), finish_step]
        jobs = [
            partial(self._run_as_one_batch, sites_by_test, [text], callback)
            for text, callback in zip(texts, callbacks, strict=True)
        ]
        return concatenate_rows(self.adapter.run_jobs_together(jobs))

    def _run_as_one_batch(
        self,
        sites_by_test: SitesByTest,
        texts: Sequence[Text],
        on_step_end: Callable[[], object],
        writer: PartialWriter | None = None,
    ) -> pa.Table:
        """Collate texts into one batch, run tests on it and return the rows."""
        batch = collate(self.adapter, texts, self.pad_token_id)
        return run_batch(
            self.adapter, batch, sites_by_test, self.options, self.seed, on_step_end, writer
        )

    def plan_pending_work(
        self, sites_by_test: SitesByTest, finished: FinishedIds
    ) -> list[WorkItem]:
        """Form batches, within the memory budget, of all tests and texts that have not run yet.

        Args:
            sites_by_test: The sites for every test.
            finished: Text ids with rows, by test, layer and head.

        Returns:
            Batches of texts, each with the tests and sites that are still to run on it.
        """
        estimate_bytes: Callable[[int], int] = _ignore_memory
        # Batches of a single text cannot be made smaller, so their memory is not measured.
        if self.batch_size > 1:
            estimate_bytes = make_memory_estimator(
                self.adapter,
                self.texts,
                sites_by_test,
                self.options,
                self.pad_token_id,
                self.memory_budget / self.batch_size,
                self.progress.costs.measured_bytes,
            )
        return plan_batches(
            self.texts,
            sites_by_test,
            finished,
            estimate_bytes,
            self.memory_budget,
            self.batch_size,
        )

    def compute_prune_curve(self, rows: Rows) -> PruneCurve | None:
        """Measure the accuracy as more and more heads are zero-ablated together.

        Heads are removed in the order of their own effect, the smallest first. The order for one
        half of the texts comes from the effects on the other half, so that no text influences the
        order in which heads are removed for it.

        Args:
            rows: The audit's rows.

        Returns:
            The curve; None if the effects were not measured on both halves, or if the model cannot
            ablate several heads together.
        """
        effects = rows.to_head_frame("zero_tvd")
        adapter = self.adapter
        if effects.empty or adapter.lacks(MaskedReplay) or adapter.lacks(Decisions):
            return None
        halves, n_heads = [], []
        for half in (0, 1):
            effects_on_other_half = effects[effects.index.map(assign_half) != half]
            mean_effects = effects_on_other_half.mean().dropna()
            texts = [text for text in self.texts if assign_half(text.example_id) == half]
            if len(mean_effects) < 2 or not texts:
                return None
            removal_order = sort_sites_by_effect(mean_effects.to_dict())
            halves.append((self._collate_batches(texts), removal_order))
            n_heads.append(len(mean_effects))
        steps = range(N_PRUNE_STEPS + 1)
        n_removed = sorted({round(step * min(n_heads) / N_PRUNE_STEPS) for step in steps})
        return measure_prune_curve(adapter, halves, n_removed=n_removed)

    def _collate_batches(self, texts: Sequence[Text]) -> Iterator[Batch]:
        """Yield texts as collated batches within the memory budget."""
        planner = replace(self, texts=texts)
        for _, batch_texts in planner.plan_pending_work({PREDICTION_TEST: [NO_SITE]}, {}):
            self.progress.start_report("accuracy as heads are removed together")
            yield collate(self.adapter, batch_texts, self.pad_token_id)


def make_memory_estimator(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    sites_by_test: SitesByTest,
    options: Mapping[str, Options],
    pad_token_id: int,
    negligible_bytes: float,
    measured_bytes: dict[object, int],
) -> Callable[[int], int]:
    """Make a function that estimates the memory of a text in a batch from its number of tokens.

    The function runs every test on a single text, at the site that needs the most memory, and
    records the peak memory. Few texts have to be measured; see :func:`estimate_text_bytes`.

    Args:
        adapter: The audited model.
        texts: Texts of which batches will be formed, or a sample of them.
        sites_by_test: The sites for every test.
        options: Options for the tests, by test name.
        pad_token_id: Token id for padding.
        negligible_bytes: Memory of one text up to which a full batch fits into the memory budget.
        measured_bytes: Cache of measurements, by tests and number of tokens; new ones are added.

    Returns:
        Function from a number of tokens to bytes, including :data:`MEMORY_SAFETY_FACTOR`.
    """
    text_by_length = {text.n_tokens: text for text in texts}
    # Editing all heads takes the most memory, then editing a layer, then editing one head.
    largest_sites = {
        test: min(sites, key=lambda site: (site.head >= 0, site.layer >= 0))
        for test, sites in sites_by_test.items()
        if sites
    }

    def measure_peak(texts: Sequence[Text]) -> int:
        with PeakMemory() as memory:
            observation = adapter.observe(collate(adapter, texts, pad_token_id))
            for test, site in largest_sites.items():
                with memory.limit_operations(MAX_PROFILED_OPERATIONS):
                    run_test(observation, test, site, options, seed=0)
        return int(MEMORY_SAFETY_FACTOR * memory.peak)

    def measure_text(n_tokens: int) -> int:
        key = (*largest_sites, n_tokens)
        if key not in measured_bytes:
            text = text_by_length[n_tokens]
            [(_, n_bytes)] = run_with_halving([text], measure_peak, describe_item=describe_text)
            measured_bytes[key] = n_bytes
        return measured_bytes[key]

    return partial(
        estimate_text_bytes,
        lengths=text_by_length,
        measure=measure_text,
        negligible_bytes=negligible_bytes,
    )


def _ignore_memory(n_tokens: int) -> int:
    """Return 0 bytes for a text of any length, so that memory does not limit a batch."""
    return 0


def _do_nothing() -> None:
    """Ignore the end of a step."""


def plan_batches(
    texts: Sequence[Text],
    sites_by_test: SitesByTest,
    finished: FinishedIds,
    bytes_per_text: Callable[[int], int],
    memory_budget: int,
    batch_size: int,
) -> list[WorkItem]:
    """Form batches of texts of similar length, with the tests and sites still to run on them.

    Args:
        texts: The texts.
        sites_by_test: The sites for every test.
        finished: Text ids with rows, by test, layer and head.
        bytes_per_text: Function from a number of tokens to the bytes of such a text in a batch.
        memory_budget: Memory that a batch may take, in bytes.
        batch_size: Largest number of texts per batch.

    Returns:
        Batches of texts; all texts of a batch lack rows for the same tests and sites.
    """
    pairs = list_test_site_pairs(sites_by_test)
    finished_pairs: dict[int, set[int]] = {}
    for pair_index, (test, site) in enumerate(pairs):
        for example_id in finished.get((test, site.layer, site.head), ()):
            finished_pairs.setdefault(example_id, set()).add(pair_index)

    texts_by_finished_pairs: dict[frozenset[int], list[Text]] = {}
    for text in texts:
        key = frozenset(finished_pairs.get(text.example_id, ()))
        texts_by_finished_pairs.setdefault(key, []).append(text)

    work: list[WorkItem] = []
    for finished_indices, group in texts_by_finished_pairs.items():
        pending_sites: dict[str, list[Site]] = {}
        for pair_index, (test, site) in enumerate(pairs):
            if pair_index not in finished_indices:
                pending_sites.setdefault(test, []).append(site)
        if pending_sites:
            batches = form_batches(group, bytes_per_text, memory_budget, batch_size)
            work += [(pending_sites, batch) for batch in batches]
    return work


def pick_warm_up_sites(sites: Sequence[Site]) -> Sequence[Site]:
    """Pick one site of every cost class: the first site, and the middle head and middle group.

    The first site of a test also pays for the computations that all its sites share.
    """
    later_heads = [site for site in sites[1:] if not site.is_group]
    later_groups = [site for site in sites[1:] if site.is_group]
    return [*sites[:1], *_pick_middle_site(later_heads), *_pick_middle_site(later_groups)]


def _pick_middle_site(sites: Sequence[Site]) -> Sequence[Site]:
    """Return a list with the middle site, or an empty list if there are no sites."""
    return sites[len(sites) // 2 :][:1]


def run_batch(
    adapter: AttentionModelBase,
    batch: Batch,
    sites_by_test: SitesByTest,
    options: Mapping[str, Options],
    seed: int,
    on_step_end: Callable[[], object] = _do_nothing,
    writer: PartialWriter | None = None,
) -> pa.Table:
    """Run the model on a batch, run tests at their sites, and return the rows.

    Args:
        adapter: The audited model.
        batch: The batch.
        sites_by_test: The tests to run, with their sites.
        options: Options by test name; a missing test runs with its default options.
        seed: Random seed.
        on_step_end: Called after each test at each site.
        writer: Saves finished rows from time to time; they are not returned.

    Returns:
        One row for each text and test, with a list over the sites for each statistic.
    """
    observation = adapter.observe(batch)
    return compute_rows(observation, sites_by_test, options, seed, on_step_end, writer)


def compute_rows(
    observation: Observation,
    sites_by_test: SitesByTest,
    options: Mapping[str, Options],
    seed: int,
    on_step_end: Callable[[], object] = _do_nothing,
    writer: PartialWriter | None = None,
) -> pa.Table:
    """Run tests on an observed batch and return the rows.

    Args:
        observation: A model's output and attention on a batch.
        sites_by_test: The tests to run, with their sites.
        options: Options by test name; a missing test runs with its default options.
        seed: Random seed.
        on_step_end: Called after each test at each site.
        writer: Saves finished rows from time to time; they are not returned.

    Returns:
        One row for each text and test, with a list over the sites for each statistic.
    """
    example_ids = observation.batch.example_ids
    tables: list[pa.Table] = []
    has_many_sites = len(list_test_site_pairs(sites_by_test)) > len(sites_by_test)
    for test, sites in sites_by_test.items():
        statistics_by_site = {}
        for site in sites:
            statistics = run_test(observation, test, site, options, seed=seed)
            statistics_by_site[site] = {
                name: values.detach().cpu() for name, values in statistics.items()
            }
            if has_many_sites:
                release_free_pages()
            on_step_end()
            if writer is not None and writer.is_due:
                writer.write([*tables, build_rows(test, example_ids, statistics_by_site)])
                tables, statistics_by_site = [], {}
        if statistics_by_site:
            tables.append(build_rows(test, example_ids, statistics_by_site))
    return concatenate_rows(tables)


def run_test(
    observation: Observation,
    name: str,
    site: Site,
    options: Mapping[str, Options],
    *,
    seed: int,
) -> dict[str, torch.Tensor]:
    """Run one test at one site and return its statistics.

    Args:
        observation: A model's output and attention on a batch.
        name: Test name, or "prediction" for statistics of the model's predictions.
        site: The site.
        options: Options by test name; a missing test runs with its default options.
        seed: Random seed.

    Returns:
        Values `[batch]` by statistic name.
    """
    if name == PREDICTION_TEST:
        return compute_prediction_rows(observation.model, observation.batch, observation.probs)
    test = load_tests()[name]
    test_options = options.get(name, test.options())
    return collect_statistics(test.function(observation, site, test_options, seed=seed))
