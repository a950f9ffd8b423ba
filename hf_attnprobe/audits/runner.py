"""Runs an audit's tests on its texts and writes rows, so that a killed run can resume.

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
    draw_texts_to_check,
)
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import PeakMemory, release_free_pages, run_with_halving
from hf_attnprobe.core.options import Options
from hf_attnprobe.faithfulness.head_ablation import (
    measure_pair_effects,
    select_heads_for_pairs,
)
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.inference.batching import (
    collate,
    describe_text,
    form_batches,
    split_for_model,
)
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import (
    AnswersFromPassage,
    AttentionModelBase,
    Batch,
    MaskedReplay,
    Observation,
    Site,
)
from hf_attnprobe.statistics.head_pairs import HeadPairs, find_head_pairs
from hf_attnprobe.statistics.rows import IDENTITY_STATISTIC, PREDICTION_TEST, Rows, Texts
from hf_attnprobe.statistics.sampling import draw_sample
from hf_attnprobe.storage.rows import (
    NO_SITE,
    FinishedIds,
    append_rows,
    build_rows,
    collect_statistics,
    compute_batch_prediction_statistics,
    concatenate_rows,
    load_rows,
    read_finished_ids,
)


SAVE_INTERVAL_SECONDS = 20.0
"""Interval, in seconds, at which finished rows are saved while a batch is still running."""
N_PAIRED_HEADS = 8
"""Number of heads that are ablated in pairs. There are 28 pairs of 8 heads."""
N_PAIR_TEXTS = 64
"""Maximum number of texts on which pairs of heads are ablated."""
MAX_CHECKS_WITHOUT_BATCHES = 2
"""Maximum number of saved predictions to check for a model that reads one text at a time.

Such a model needs only a few checks, because it cannot mix up the texts in a batch.
"""
QUICK_ROUND_SECONDS = 3.0
"""Maximum duration, in seconds, of a quick warm-up round.

A warm-up round runs the tests on a few texts to measure their durations. After a quick round,
another round with more texts follows.
"""
WARM_UP_GROWTH_FACTOR = 4
"""Factor by which the number of texts grows from one warm-up round to the next."""
MEMORY_SAFETY_FACTOR = 1.25
"""Safety factor for the measured memory.

The measurement does not include memory that operators such as matrix products use internally.
"""
MAX_PROFILED_OPERATIONS = 1000
"""Maximum number of tensor operations for which the peak memory of a test is profiled.

Long tests repeat the same operations, so their later operations do not need more memory.
"""

SitesByTest = Mapping[str, Sequence[Site]]
"""Sites at which each test runs, by test name."""
WorkItem = tuple[SitesByTest, list[Text]]
"""A batch of texts with the tests that must still run on it, as a pair (sites by test, texts)."""


def list_test_site_pairs(sites_by_test: SitesByTest) -> list[tuple[str, Site]]:
    """List every test with each of its sites, as pairs (test, site)."""
    return [(test, site) for test, sites in sites_by_test.items() for site in sites]


@dataclass
class BatchLimit:
    """Largest batch that may still fit into device memory.

    Attributes:
        max_tokens: Maximum number of tokens per batch, including padding. It is lowered whenever
            memory runs out.
    """

    max_tokens: float = math.inf

    def shrink(self, halves: Sequence[Sequence[Text]]) -> None:
        """Lower the limit after a batch did not fit into memory and was split.

        The new limit is the number of tokens, including padding, in the larger half.

        Args:
            halves: The two halves of the batch.
        """
        larger_half = max(len(half) * _get_max_length(half) for half in halves)
        self.max_tokens = min(self.max_tokens, larger_half)

    def count_fitting_texts(self, texts: Sequence[Text]) -> int:
        """Return how many of the texts, at least 1, fit into a batch within the limit."""
        n_fitting = min(self.max_tokens / _get_max_length(texts), len(texts))
        return max(1, int(n_fitting))


def _get_max_length(texts: Sequence[Text]) -> int:
    """Return the length of the longest text in tokens."""
    return max(text.n_tokens for text in texts)


@dataclass
class PartialWriter:
    """Saves the finished rows of a running batch at intervals, so that a killed run loses little.

    Attributes:
        folder: Folder for the rows.
        now: Function that returns the current time in seconds.
        has_written: Whether any rows have been saved.
    """

    folder: Path
    now: Callable[[], float]
    has_written: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._last_write = self.now()

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last rows were saved."""
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
        batch_size: Maximum number of texts per batch.
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
        """Run this process's part of the unfinished tests, and save their rows.

        The longest texts come first, so that a batch that does not fit into memory fails early.

        Args:
            sites_by_test: The sites (heads and groups of heads) for every test.
            finished: Ids of the texts with saved results, by test, layer and head.
        """
        # Batches are planned from the shortest to the longest texts, and run in reverse.
        work = self.plan_pending_work(sites_by_test, finished)[::-1]
        state = get_process_state()
        # Every process must have planned its part before any process adds rows.
        state.wait_for_everyone()
        # With n processes, process i runs the batches i, i + n, i + 2n and so on.
        process_work = work[state.process_index :: state.num_processes]
        self.progress.plan_steps(list_steps(process_work))
        batch_limit = BatchLimit()
        for pending_sites, texts in process_work:
            self.run_and_save(pending_sites, texts, batch_limit)
        state.wait_for_everyone()

    def warm_up(self, sites_by_test: SitesByTest) -> None:
        """Run every test at up to three sites on a few texts, to measure the costs.

        The first round has one text. After each quick round, a round with more texts follows. Only
        the last round's durations are kept, because the first texts also load GPU kernels. The rows
        from all rounds are saved.

        Args:
            sites_by_test: The sites (heads and groups of heads) for every test.
        """
        sampled_sites = {test: pick_warm_up_sites(sites) for test, sites in sites_by_test.items()}
        n_texts, remaining_texts = 1, self.texts
        while remaining_texts:
            round_texts = remaining_texts[:n_texts]
            remaining_texts = remaining_texts[n_texts:]
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
            n_texts *= WARM_UP_GROWTH_FACTOR

    def verify_saved_rows(self, n_texts: int, cause: str) -> None:
        """Check on some texts that the model still gives the same predictions as the saved rows.

        For a language model, predictions for edited prompts are checked too. At most
        :data:`MAX_CHECKS_WITHOUT_BATCHES` texts are checked if the model reads one text at a time.

        Args:
            n_texts: Maximum number of texts to check.
            cause: Likely cause of a difference and its remedy, for the error message.

        Raises:
            AttnProbeError: If a prediction differs by more than rounding, or if the rows belong to
                another prompt or answer.
        """
        predictions = Texts.from_rows(load_rows(self.folder, PREDICTION_TEST)).to_frame()
        if not self.adapter.lacks(AnswersFromPassage):
            self._check_prompt_identities(predictions)
        if self.adapter.max_batch_size == 1:
            n_texts = min(n_texts, MAX_CHECKS_WITHOUT_BATCHES)
        for text in draw_texts_to_check(self.texts, predictions, n_texts, self.seed):
            batch = collate(self.adapter, [text], self.pad_token_id)
            if isinstance(self.adapter, LanguageModelAdapter):
                check_prompt_edits(self.adapter, batch)
            source = f"the saved value in {self.folder}"
            check_recorded_prediction(self.adapter, batch, predictions, source=source, cause=cause)

    def _check_prompt_identities(self, predictions: pd.DataFrame) -> None:
        """Raise AttnProbeError if a prompt or answer has changed since its rows were saved.

        The identity of a prompt is a hash of its text, its units and its answer. Other texts cannot
        change, because the output folder of an audit is refused if the data or the tokenizer differ.
        """
        saved_identities = predictions.get(IDENTITY_STATISTIC, pd.Series(dtype=float)).dropna()
        for text in self.texts:
            saved_identity = saved_identities.get(text.example_id, text.identity)
            if saved_identity != text.identity:
                raise AttnProbeError(
                    f"the prompt or the answer of text {text.example_id} has changed since the "
                    f"rows in {self.folder} were written. Choose another --output-dir. To keep "
                    "the answers the same, add a column with the answers to the data."
                )

    def run_and_save(
        self, pending_sites: SitesByTest, texts: Sequence[Text], batch_limit: BatchLimit
    ) -> None:
        """Run tests on a batch of texts and save the rows; split the batch if memory runs out.

        Args:
            pending_sites: The tests to run, with their sites.
            texts: The batch.
            batch_limit: Largest batch that may fit; it is lowered if this batch does not fit.

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

        A language model processes each prompt as a separate batch, but combines their forward
        passes. Any other model reads all texts as one batch.

        Args:
            sites_by_test: The tests to run, each with its sites (heads and groups of heads).
            texts: The texts.
            writer: Saves finished rows at intervals if the texts form a single batch.

        Returns:
            The rows that the writer has not saved.
        """
        self.progress.start_batch(list_steps([(sites_by_test, texts)]))
        finish_step = self.progress.finish_step
        if len(texts) == 1 or not isinstance(self.adapter, LanguageModelAdapter):
            return self._run_as_one_batch(sites_by_test, texts, finish_step, writer)
        # All prompts finish a step at about the same time, so it is counted only for the last one.
        callbacks = [_do_nothing] * (len(texts) - 1) + [finish_step]
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
        """Form batches within the memory budget, for all tests that have not run on all texts.

        Args:
            sites_by_test: The sites (heads and groups of heads) for every test.
            finished: Ids of the texts with saved results, by test, layer and head.

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

    def compute_head_pairs(self, rows: Rows) -> HeadPairs | None:
        """Find heads that only work together, or that replace each other.

        The strongest heads are ablated in pairs, on a sample of the texts.

        Args:
            rows: The audit's rows.

        Returns:
            The pairs; None if the effects of single heads were not measured, or if the model cannot
            ablate several heads together.
        """
        effects = rows.build_head_frame("zero_tvd").mean().dropna()
        adapter = self.adapter
        if len(effects) < 2 or adapter.lacks(MaskedReplay):
            return None
        ids = [text.example_id for text in self.texts]
        sample = draw_sample(range(len(ids)), ids, N_PAIR_TEXTS)
        texts = [self.texts[index] for index in sample]
        heads = select_heads_for_pairs(
            adapter, self._collate_batches(texts), effects.to_dict(), N_PAIRED_HEADS
        )
        single, without_other = measure_pair_effects(adapter, self._collate_batches(texts), heads)
        layer_heads = [(site.layer, site.head) for site in heads]
        return find_head_pairs(layer_heads, single.numpy(), without_other.numpy())

    def _collate_batches(self, texts: Sequence[Text]) -> Iterator[Batch]:
        """Yield batches of texts, each within the memory budget."""
        # This copy of the runner plans batches only for the given texts.
        planner = replace(self, texts=texts)
        # The second argument states that no text is finished, so that all texts are planned.
        for _, batch_texts in planner.plan_pending_work({PREDICTION_TEST: [NO_SITE]}, {}):
            self.progress.start_report("ablating heads in pairs")
            # A language model reads one prompt at a time; its tests alone combine several prompts.
            for part in split_for_model(self.adapter, batch_texts):
                yield collate(self.adapter, part, self.pad_token_id)


def make_memory_estimator(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    sites_by_test: SitesByTest,
    options: Mapping[str, Options],
    pad_token_id: int,
    negligible_bytes: float,
    measured_bytes: dict[object, int],
) -> Callable[[int], int]:
    """Make a function that estimates the memory per text in a batch from the text length.

    The function runs every test on a single text, at the site that needs the most memory, and
    records the peak memory. Few texts have to be measured; see :func:`estimate_text_bytes`.

    Args:
        adapter: The audited model.
        texts: Texts that will form batches, or a sample of them.
        sites_by_test: The sites (heads and groups of heads) for every test.
        options: Options for the tests, by test name.
        pad_token_id: Token id for padding.
        negligible_bytes: Maximum memory per text with which a full batch fits into the memory
            budget.
        measured_bytes: Cache of measurements by tests and token count, which is extended.

    Returns:
        Function that takes a token count and returns bytes, including
        :data:`MEMORY_SAFETY_FACTOR`.
    """
    text_by_length = {text.n_tokens: text for text in texts}

    def get_size_rank(site: Site) -> tuple[bool, bool]:
        """Return a key that is smallest for all heads, then for a layer, then for a single head."""
        return site.head >= 0, site.layer >= 0

    # Editing more heads takes more memory.
    largest_sites = {
        test: min(sites, key=get_size_rank) for test, sites in sites_by_test.items() if sites
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
    """Return 0 bytes for any text length, so that memory does not limit a batch."""
    return 0


def _do_nothing() -> None:
    """Do nothing; the default for ``on_step_end``."""


def plan_batches(
    texts: Sequence[Text],
    sites_by_test: SitesByTest,
    finished: FinishedIds,
    bytes_per_text: Callable[[int], int],
    memory_budget: int,
    batch_size: int,
) -> list[WorkItem]:
    """Form batches of texts with similar lengths, and list the tests that must still run on each.

    Args:
        texts: The texts.
        sites_by_test: The sites (heads and groups of heads) for every test.
        finished: Ids of the texts with saved results, by test, layer and head.
        bytes_per_text: Function that takes a token count and returns the bytes per text in a batch.
        memory_budget: Memory that a batch may take, in bytes.
        batch_size: Largest number of texts per batch.

    Returns:
        Batches of texts with their tests and sites; the same runs are missing for all texts in a
        batch.
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
    """Pick up to three sites on which the duration of a test is measured.

    These are the first site, the middle one of the later heads, and the middle one of the later head
    groups. The first site takes longer, because some computations are shared by all sites.
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
    """Run the model and several tests on a batch, and return the results as a table.

    Args:
        adapter: The audited model.
        batch: The batch.
        sites_by_test: The tests to run, each with its sites (heads and groups of heads).
        options: Options by test name; a missing test runs with its default options.
        seed: Random seed.
        on_step_end: Function that is called after each test at each site.
        writer: Saves finished rows at intervals; they are not returned.

    Returns:
        A table with one row per text and test; each statistic is a list with one value per site.
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
        sites_by_test: The tests to run, each with its sites (heads and groups of heads).
        options: Options by test name; a missing test runs with its default options.
        seed: Random seed.
        on_step_end: Function that is called after each test at each site.
        writer: Saves finished rows at intervals; they are not returned.

    Returns:
        A table with one row per text and test; each statistic is a list with one value per site.
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
    """Run one test on one head, or one group of heads, and return its statistics.

    Args:
        observation: A model's output and attention on a batch.
        name: Test name, or "prediction" for statistics about the model's predictions.
        site: The head, or group of heads.
        options: Options by test name; a missing test runs with its default options.
        seed: Random seed.

    Returns:
        Values `[batch]` by statistic name.
    """
    if name == PREDICTION_TEST:
        return compute_batch_prediction_statistics(
            observation.model, observation.batch, observation.probs
        )
    test = load_tests()[name]
    test_options = options.get(name, test.options())
    return collect_statistics(test.function(observation, site, test_options, seed=seed))
