"""The runner: texts in, rows on disk, a report out; in batches, on several processes, resumable."""

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import AttentionModel, Site
from hf_attnprobe.auditing.checks import (
    check_needs,
    check_options,
    check_query,
    check_target,
    check_tests,
)
from hf_attnprobe.auditing.examples import show
from hf_attnprobe.auditing.report import (
    Report,
    extras_to_json,
    from_json,
    to_json,
    to_markdown,
)
from hf_attnprobe.auditing.sweep import (
    Sweep,
    foremost,
    prune_heads,
    run,
    run_batch,
    select_sites,
    suitable_tests,
)
from hf_attnprobe.checkpoints import load_model, load_tokenizer, model_fingerprint
from hf_attnprobe.data.examples import (
    dataset_fingerprint,
    dataset_name,
    load_examples,
    sample,
)
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import READINGS
from hf_attnprobe.faithfulness.single_weight import check_draw
from hf_attnprobe.inference.batching import collate, parse_bytes, reference_batch
from hf_attnprobe.inference.encoding import has_rationales, mask_id, tokenize
from hf_attnprobe.options import check_at_least
from hf_attnprobe.statistics.comparisons import compare
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.storage.folders import claim, write_atomically, write_json
from hf_attnprobe.storage.provenance import SUMMARY, versions
from hf_attnprobe.storage.rows import read_rows


def audit(
    model,
    dataset,
    *,
    split: str = "test",
    tests: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    query: int | None = None,
    screen: int | None = None,
    prune: bool = True,
    seed: int = 0,
    target: int | None = None,
    n_permutations: int = 100,
    method: str = "auto",
    n_starts: int = 5,
    n_steps: int | None = None,
    renormalise: bool = True,
    draw: str = "uniform",
    all_zero: bool = False,
    erase_by: str = "deletion",
    naopc_beam: int = 0,
    level: str | None = None,
    truncate: bool = True,
    dtype: torch.dtype | str | None = None,
    batch_size: int = 64,
    memory_budget: str | int = "2GB",
    tokenizer=None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> Report:
    """Runs faithfulness tests on every text of a split, at every head asked for, and summarises them.

    Args:
        model: a folder, a Hub id, or a loaded model (then give its ``tokenizer``).
        dataset, split, config, text_column, label_column, limit: see :func:`hf_attnprobe.data.examples.load_examples`.
        tests: names from :data:`hf_attnprobe.faithfulness.PROBES`; by default all that suit the model.
        output_dir: where ``rows``, ``summary.json`` and ``report.md`` go. Run again with the same folder to continue
            after an interruption, or to add texts or tests. ``None`` keeps nothing on disk.
        layers, heads, query: where to look; all layers, all heads, all queries (read: the row that is read out).
        screen: test only so many heads, those on which one backward pass foretells the largest effect.
        prune: where ``head_ablation`` tests several heads, silence them together as well, the least important first.
        seed: with the example ids it fixes all random numbers.
        target: class whose probability the importances explain; ``None`` is the predicted one.
        n_permutations: shuffles per text. method, n_starts, n_steps: of the adversarial test.
        renormalise, draw, all_zero: of the erasure test: divide what is left by its sum; how the weight that is compared
            with the largest is drawn, "uniform" or as in the "released" code; count the decision without any attention.
        erase_by: how the input erasure test takes tokens out, by "deletion" or by the tokenizer's "mask" token.
        naopc_beam: width of the beam search for the bounds that normalise input erasure; 0 leaves them out.
        level: of Transformers, explain and leave out each "word" or "token"; words where the tokenizer tells them.
        truncate: cut texts that are longer than the model's positions, and count them, or refuse them.
        dtype: to compute in; float64 for attention classifiers, as loaded for others.
        batch_size: texts at once, fewer where they would exceed ``memory_budget`` ("2GB", or bytes).
        progress: a bar on stderr.

    Returns:
        The report; the same on every process.

    Raises:
        AttnProbeError: for anything the caller can mend, before anything is written.
    """
    check_tests(tests)
    check_draw(draw)
    check_at_least(0, n_steps=n_steps, naopc_beam=naopc_beam)
    check_options(
        method,
        dtype,
        limit=limit,
        batch_size=batch_size,
        n_permutations=n_permutations,
        n_starts=n_starts,
        seed=seed,
        screen=screen,
    )
    options = {
        "correlation": {"target": target},
        "permutation": {"n_permutations": n_permutations},
        "adversarial": {"method": method, "n_starts": n_starts, "n_steps": n_steps},
        "erasure": {"renormalise": renormalise, "draw": draw, "all_zero": all_zero},
        "input_erasure": {"by": erase_by, "naopc_beam": naopc_beam},
    }
    budget = parse_bytes(memory_budget)
    examples = load_examples(
        dataset,
        split,
        config=config,
        text_column=text_column,
        label_column=label_column,
        seed=seed,
    )
    state = process_state()
    name, loaded, tokenizer = _model_and_tokenizer(model, tokenizer, trust_remote_code)
    check_target(loaded, target)
    where = {"layers": layers, "heads": heads, "query": query}
    where["screen"] = screen and [
        screen,
        limit,
    ]  # other texts may put other heads first
    identity = _identity(
        loaded,
        examples,
        seed,
        options,
        where,
        level=level,
        truncate=truncate,
        dtype=dtype,
    )
    adapter = _adapter(loaded, tokenizer, state.device, dtype=dtype, level=level)
    sites = select_sites(adapter, layers, heads, query)
    tests = _possible_tests(
        tests,
        sites,
        has_rationales(examples, loaded.config),
        tokenizer,
        erase_by,
        adapter.mask_id,
    )
    if "head_ablation" in tests:
        adapter.set_reference(reference_batch(adapter, tokenizer, examples, loaded))
    if limit is not None:
        examples = examples.select(
            sample(
                range(len(examples)), examples.with_format(None)["example_id"][:], limit
            )
        )
    texts, counts = tokenize(tokenizer, examples, loaded, truncate=truncate)
    with _folder(output_dir, state) as folder:
        sweep = Sweep(
            adapter,
            texts,
            options,
            seed,
            tokenizer.pad_token_id or 0,
            budget,
            batch_size,
            folder / "rows",
            state,
            progress,
        )
        _rehearse(sweep, tests, sites)
        with claim(folder, identity, state):
            tests = _run_tests(sweep, tests, sites, screen)
            report = _report(
                sweep,
                tests,
                loaded.config,
                prune,
                model=name,
                dataset=dataset_name(dataset, split),
                provenance=_provenance(identity, tests, counts, state.num_processes)
                | _units(loaded.config),
                examples=show(adapter, texts[:3], tokenizer, loaded.config.id2label)
                if "adversarial" in tests
                else (),
            )
            if output_dir is not None and state.is_main_process:
                _write(report, folder)
            state.wait_for_everyone()
    return report


def _identity(
    model,
    examples,
    seed: int,
    options: dict,
    where: dict,
    *,
    level,
    truncate: bool,
    dtype,
) -> dict:
    """What the rows of a folder belong to. where: the heads that were asked for."""
    return {
        "model_fingerprint": model_fingerprint(model),
        "data_fingerprint": dataset_fingerprint(examples),
        "seed": seed,
        "options": options,
        "sites": where,
        "level": level or "default",
        "truncate": truncate,
        "dtype": str(dtype or "default"),
    }


def _adapter(
    model, tokenizer, device: torch.device, *, dtype: torch.dtype | str | None, level
) -> AttentionModel:
    """The model behind the protocol, where and in what it is to compute."""
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    adapter = wrap(model.to(device), dtype=dtype, level=level)
    adapter.mask_id = mask_id(tokenizer, model)
    return adapter


def _possible_tests(
    tests, sites, rationales: bool, tokenizer, erase_by: str, mask_id: int | None
) -> tuple[str, ...]:
    """Those asked for if model and data have what they need, by default all that suit them."""
    tests = (
        check_tests(tests)
        if tests is not None
        else suitable_tests(sites, rationales=rationales)
    )
    check_needs(tests, rationales, tokenizer, erase_by, mask_id)
    return tests


def _rehearse(sweep: Sweep, tests: Sequence[str], sites: Sequence[Site]) -> None:
    """What would stop the audit later stops it here, before anything is written."""
    by_length = sorted(sweep.texts, key=lambda t: t.n_content)
    sweep.adapter.self_check(collate(sweep.adapter, by_length[-4:], sweep.pad_token_id))
    shortest = collate(sweep.adapter, by_length[:1], sweep.pad_token_id)
    if sites[0].query is not None:
        check_query(sweep.adapter.observe(shortest), sites[0].query)
    if sweep.options["adversarial"]["method"] == "exact" and "adversarial" in tests:
        run_batch(
            sweep.adapter,
            shortest,
            ["adversarial"],
            sites[:1],
            sweep.options,
            sweep.seed,
        )
    if "input_erasure" in tests:  # does the model read a text of special tokens alone?
        everything, by = (
            shortest.content_mask[None],
            sweep.options["input_erasure"]["by"],
        )
        sweep.adapter.erase_inputs(sweep.adapter.observe(shortest), everything, by=by)


def _run_tests(
    sweep: Sweep, tests: Sequence[str], sites: Sequence[Site], screen: int | None
) -> tuple[str, ...]:
    """The tests that have rows now; with ``screen`` the others are run at the foremost heads only."""
    if screen is not None:
        run(sweep, ["screen"], sites)
        sites = foremost(read_rows(sweep.folder), sites, screen)
        tests = tuple(dict.fromkeys((*tests, "screen")))
    run(sweep, [t for t in tests if screen is None or t != "screen"], sites)
    return tests


def _report(sweep: Sweep, tests: Sequence[str], config, prune: bool, **told) -> Report:
    """Of this run's texts and tests; the folder may hold more. ``told`` are the fields that say what was done."""
    rows = read_rows(sweep.folder)
    rows = rows[
        rows.example_id.isin([t.example_id for t in sweep.texts])
        & rows.test.isin([*tests, PREDICTION])
    ]
    classes = [str(config.id2label[k]) for k in range(config.num_labels)]
    statistics = summarize(rows, classes, READINGS, seed=sweep.seed)
    return Report(
        **told,
        n=len(sweep.texts),
        seed=sweep.seed,
        statistics=statistics,
        prune=prune_heads(sweep, statistics) if prune else None,
        comparisons=compare(rows, seed=sweep.seed),
        rows=rows.reset_index(drop=True),
    )


def _write(report: Report, folder: Path) -> None:
    summary = to_json(report) | extras_to_json(report)
    write_json(folder / SUMMARY, summary)
    write_atomically(folder / "report.md", to_markdown(report))


def _model_and_tokenizer(model, tokenizer, trust_remote_code: bool):
    """Name, model and tokenizer; a model given as an object is used as it is."""
    if isinstance(model, str | os.PathLike):
        loaded = load_model(model, trust_remote_code=trust_remote_code)
        return (
            str(model),
            loaded,
            tokenizer or load_tokenizer(model, trust_remote_code=trust_remote_code),
        )
    name = getattr(model, "name_or_path", "") or type(model).__name__
    if tokenizer is None and not getattr(model, "name_or_path", ""):
        raise AttnProbeError(
            "expected a tokenizer with a model given as an object; pass tokenizer="
        )
    return (
        name,
        model,
        tokenizer or load_tokenizer(name, trust_remote_code=trust_remote_code),
    )


@contextlib.contextmanager
def _folder(output_dir, state) -> Iterator[Path]:
    """The output folder, or one that goes away."""
    if output_dir is not None:
        yield Path(output_dir)
        return
    if state.num_processes > 1:
        raise AttnProbeError(
            "several processes meet in the output folder; give one with --output-dir"
        )
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def read_audit(folder: str | Path) -> Report:
    """The report of an audit's folder, with its rows."""
    summary = Path(folder) / SUMMARY
    if not summary.is_file():
        raise AttnProbeError(
            f"expected an audit in {folder}, found no {SUMMARY} there; finish or run the audit first"
        )
    try:
        report = from_json(json.loads(summary.read_text()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AttnProbeError(
            f"cannot read the summary in {summary}; run the audit again"
        ) from error
    return dataclasses.replace(report, rows=read_rows(Path(folder) / "rows"))


def _provenance(
    identity: dict, tests: Sequence[str], counts: Mapping[str, int], n_processes: int
) -> dict:
    return identity | {
        "tests": list(tests),
        **counts,
        "n_processes": n_processes,
        "versions": versions(),
    }


def _units(config) -> dict[str, str]:
    """What the attention weighs, where it is no tokens."""
    return {"units": "sentences"} if getattr(config, "hierarchical", False) else {}
