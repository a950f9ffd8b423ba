"""The work of an audit: every test at every head on every text, in batches, shared out, resumable."""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from accelerate import PartialState
from tqdm.auto import tqdm

from hf_attnprobe.attention_model import AttentionModel, Batch, Site
from hf_attnprobe.auditing.head_tables import by_head
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import PROBES, SITES
from hf_attnprobe.faithfulness.erasure import COPIES_AT_ONCE
from hf_attnprobe.faithfulness.prune_curve import PruneCurve, least_first, prune_curve
from hf_attnprobe.inference.batching import collate, plan
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.summary import PREDICTION, Statistic
from hf_attnprobe.storage.rows import (
    NO_SITE,
    append_rows,
    finished_ids,
    prediction_statistics,
    statistics_of,
    to_rows,
)


def give_back_freed_memory() -> None:
    """Hands the C library's free pages back to the system, where it is glibc; elsewhere nothing.

    Tensors of a few megabytes leave holes in its heap, and some hundred probes of changing shapes leave so many that
    an audit of MiniLM with a budget of 500 MB held 900 MB: its tensors kept to the budget, the heap did not. Costs 1%.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


PRUNE_POINTS = 12
FOR_MANY_HEADS = ("screen", "head_ablation", "explanations")
FOR_RATIONALES = ("plausibility",)
FOR_COMPARISONS = (
    "fragility",
    "single_token",
)  # of one model with another: only where asked for


@dataclass(frozen=True)
class Sweep:
    """What stays the same over an audit. options: keyword arguments by test. budget: bytes. folder: of the rows."""

    adapter: AttentionModel
    texts: Sequence[Text]
    options: Mapping[str, Mapping]
    seed: int
    pad_token_id: int
    budget: int
    batch_size: int
    folder: Path
    state: PartialState
    progress: bool


def run(sweep: Sweep, tests: Sequence[str], sites: Sequence[Site]) -> None:
    """What of the tests is not on disk yet; this process's share of it, the longest texts first.

    So a batch that does not fit into memory is met at once.
    """
    tests = (*tests, PREDICTION)
    size = _bytes_per_text(sweep)
    jobs = plan(
        sweep.texts,
        tests,
        finished_ids(sweep.folder),
        size,
        sweep.budget,
        sweep.batch_size,
    )
    sweep.state.wait_for_everyone()  # everyone has planned before anyone adds rows
    share = jobs[::-1][sweep.state.process_index :: sweep.state.num_processes]
    total = sum(
        len(texts) * sum(len(_sites_of(t, sites)) for t in todo)
        for todo, texts in share
    )
    unit = "step" if len(sites) == 1 else "head"
    shown = sweep.progress and sweep.state.is_main_process
    with tqdm(total=total, unit=unit, desc="audit", disable=not shown) as bar:
        for todo, texts in share:
            batch = collate(sweep.adapter, texts, sweep.pad_token_id)
            rows = run_batch(
                sweep.adapter, batch, todo, sites, sweep.options, sweep.seed, bar.update
            )
            append_rows(sweep.folder, rows)
    sweep.state.wait_for_everyone()


def _bytes_per_text(sweep: Sweep) -> Callable[[int], int]:
    """Of the things that need most: all shuffles, or some erasures, at once, and a gradient through the model."""
    n_copies = max(sweep.options["permutation"]["n_permutations"], COPIES_AT_ONCE)
    searching = (
        sweep.options["adversarial"]["n_starts"]
        if sweep.options["adversarial"]["n_steps"]
        else 1
    )

    def size(n_keys: int) -> int:
        return max(
            sweep.adapter.bytes_per_example(n_keys, n_copies, backward=False),
            sweep.adapter.bytes_per_example(n_keys, searching, backward=True),
        )

    return size


def prune_heads(sweep: Sweep, statistics: Sequence[Statistic]) -> PruneCurve | None:
    """Accuracy as the heads are silenced in the order of their own effect; None where that was not measured."""
    effects = by_head(statistics, "zero_tvd")
    if len(effects) < 2:
        return None
    jobs = plan(
        sweep.texts,
        (PREDICTION,),
        {},
        _bytes_per_text(sweep),
        sweep.budget,
        sweep.batch_size,
    )
    batches = (collate(sweep.adapter, texts, sweep.pad_token_id) for _, texts in jobs)
    points = sorted(
        {round(k * len(effects) / PRUNE_POINTS) for k in range(PRUNE_POINTS + 1)}
    )
    return prune_curve(sweep.adapter, batches, least_first(effects), n_removed=points)


def run_batch(
    adapter: AttentionModel,
    batch: Batch,
    tests: Sequence[str],
    sites: Sequence[Site],
    options: Mapping[str, Mapping],
    seed: int,
    tick: Callable[[int], object] = lambda n: None,
) -> pd.DataFrame:
    """Rows of the given tests at the given sites, for one batch; ``tick`` hears of every finished text at a site."""
    observation = adapter.observe(batch)
    parts = []
    for test in tests:
        for site in _sites_of(test, sites):
            if test == PREDICTION:
                content = observation.batch.content_mask
                statistics = prediction_statistics(
                    observation.probs, observation.batch.labels, content.sum(-1)
                )
            else:
                result = PROBES[test](
                    adapter, observation, site, seed=seed, **options.get(test, {})
                )
                statistics = statistics_of(result)
            parts.append(to_rows(test, statistics, batch.example_ids, site))
            if len(sites) > 1:
                give_back_freed_memory()
            tick(len(batch.example_ids))
    return pd.concat(parts, ignore_index=True)


def _sites_of(test: str, sites: Sequence[Site]) -> Sequence[Site]:
    return (
        [NO_SITE]
        if test == PREDICTION
        else SITES[test](sites)
        if test in SITES
        else sites
    )


def select_sites(
    adapter: AttentionModel,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    query: int | None,
) -> list[Site]:
    """The sites asked for, all of the model's by default."""
    known = adapter.sites()
    for name, asked, there in (
        ("layer", layers, {s.layer for s in known}),
        ("head", heads, {s.head for s in known}),
    ):
        if asked is not None and not asked:
            raise AttnProbeError(
                f"expected at least one {name}; leave {name}s out for all of them"
            )
        missing = sorted(set(asked or ()) - there)
        if missing:
            raise AttnProbeError(
                f"expected a {name} from 0 to {max(there)}, got {missing[0]}; choose another --{name}s"
            )
    return [
        site._replace(query=query)
        for site in known
        if (layers is None or site.layer in layers)
        and (heads is None or site.head in heads)
    ]


def suitable_tests(
    sites: Sequence[Site], *, rationales: bool = False
) -> tuple[str, ...]:
    """All tests but those that compare models; a single head needs no screen and no comparison of heads, plausibility
    needs human ``rationales``."""
    unsuitable = (
        (() if len(sites) > 1 else FOR_MANY_HEADS)
        + (() if rationales else FOR_RATIONALES)
        + FOR_COMPARISONS
    )
    return tuple(t for t in PROBES if t not in unsuitable)


def foremost(rows: pd.DataFrame, sites: Sequence[Site], n: int) -> list[Site]:
    """The n sites on which the screen foretells the largest mean effect of uniform attention, in the model's order."""
    effects = (
        rows[rows.statistic == "first_order_uniform"]
        .groupby(["layer", "head"])
        .value.mean()
    )
    ranked = sorted(sites, key=lambda s: (-effects[s.layer, s.head], s.layer, s.head))[
        :n
    ]
    return [site for site in sites if site in ranked]
