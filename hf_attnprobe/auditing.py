"""The runner: texts in, rows on disk, a report out; in batches, on several processes, resumable."""

import contextlib
import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from hf_attnprobe import records
from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.input_erasure import OPERATORS, check_operator
from hf_attnprobe.attention_model import Site
from hf_attnprobe.comparisons import compare
from hf_attnprobe.data import dataset_fingerprint, load_examples
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import PROBES
from hf_attnprobe.faithfulness.single_weight import check_draw
from hf_attnprobe.loading import check_at_least, load_model, load_tokenizer, model_fingerprint
from hf_attnprobe.report import Report, extras_to_json, from_json, to_json, to_markdown
from hf_attnprobe.specimens import show
from hf_attnprobe.summary import PREDICTION, summarize
from hf_attnprobe.sweep import Sweep, foremost, prune_heads, run, run_batch, select_sites, suitable_tests
from hf_attnprobe.texts import collate, has_rationales, mask_id, parse_bytes, reference_batch, tokenize


SUMMARY = "summary.json"
METHODS = ("auto", "exact", "search")
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


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
        dataset, split, config, text_column, label_column, limit: see :func:`hf_attnprobe.data.load_examples`.
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
    _check_options(
        method, dtype, limit=limit, batch_size=batch_size, n_permutations=n_permutations, n_starts=n_starts, seed=seed,
        screen=screen,
    )  # fmt: skip
    options = {
        "correlation": {"target": target},
        "permutation": {"n_permutations": n_permutations},
        "adversarial": {"method": method, "n_starts": n_starts, "n_steps": n_steps},
        "erasure": {"renormalise": renormalise, "draw": draw, "all_zero": all_zero},
        "input_erasure": {"by": erase_by, "naopc_beam": naopc_beam},
    }
    budget = parse_bytes(memory_budget)
    examples = load_examples(
        dataset, split, config=config, text_column=text_column, label_column=label_column, seed=seed
    )
    state = process_state()
    name, loaded, tokenizer = _model_and_tokenizer(model, tokenizer, trust_remote_code)
    _check_target(loaded, target)
    identity = {
        "model_fingerprint": model_fingerprint(loaded),
        "data_fingerprint": dataset_fingerprint(examples),
        "seed": seed,
        "options": options,
        "sites": {
            "layers": layers,
            "heads": heads,
            "query": query,
            "screen": screen and [screen, limit],  # other texts may put other heads first
        },
        "level": level or "default",
        "truncate": truncate,
        "dtype": str(dtype or "default"),
    }
    adapter = wrap(
        loaded.to(state.device), dtype=getattr(torch, dtype) if isinstance(dtype, str) else dtype, level=level
    )
    sites = select_sites(adapter, layers, heads, query)
    adapter.mask_id = mask_id(tokenizer, loaded)
    rationales = has_rationales(examples)
    tests = check_tests(tests) if tests is not None else suitable_tests(sites, rationales=rationales)
    _check_needs(tests, rationales, tokenizer, erase_by, adapter.mask_id)
    if "head_ablation" in tests:
        adapter.set_reference(reference_batch(adapter, tokenizer, examples, loaded))
    if limit is not None:
        examples = examples.select(range(min(limit, len(examples))))
    texts, counts = tokenize(tokenizer, examples, loaded, truncate=truncate)
    with _folder(output_dir, state) as folder:
        sweep = Sweep(
            adapter, texts, options, seed, tokenizer.pad_token_id or 0, budget, batch_size, folder / "rows", state, progress
        )  # fmt: skip
        _rehearse(sweep, tests, sites)
        with records.claim(folder, identity, state):
            if screen is not None:
                run(sweep, ["screen"], sites)
                sites = foremost(records.read(folder / "rows"), sites, screen)
                tests = tuple(dict.fromkeys((*tests, "screen")))
            run(sweep, [t for t in tests if screen is None or t != "screen"], sites)
            report = Report(
                model=name,
                dataset=_dataset_name(dataset, split),
                n=len(texts),
                seed=seed,
                provenance=_provenance(identity, tests, counts, state.num_processes),
                examples=show(adapter, texts[:3], tokenizer, loaded.config.id2label) if "adversarial" in tests else (),
                **_statistics_and_rows(sweep, tests, loaded.config, seed, prune),
            )
            if output_dir is not None and state.is_main_process:
                _write(report, folder)
            state.wait_for_everyone()
    return report


def _rehearse(sweep: Sweep, tests: Sequence[str], sites: Sequence[Site]) -> None:
    """What would stop the audit later stops it here, before anything is written."""
    by_length = sorted(sweep.texts, key=lambda t: t.n_content)
    sweep.adapter.self_check(collate(sweep.adapter, by_length[-4:], sweep.pad_token_id))
    shortest = collate(sweep.adapter, by_length[:1], sweep.pad_token_id)
    if sites[0].query is not None:
        _check_query(sweep.adapter.observe(shortest), sites[0].query)
    if sweep.options["adversarial"]["method"] == "exact" and "adversarial" in tests:
        run_batch(sweep.adapter, shortest, ["adversarial"], sites[:1], sweep.options, sweep.seed)
    if "input_erasure" in tests:  # does the model read a text of special tokens alone?
        everything, by = shortest.content_mask[None], sweep.options["input_erasure"]["by"]
        sweep.adapter.erase_inputs(sweep.adapter.observe(shortest), everything, by=by)


def _statistics_and_rows(sweep: Sweep, tests: Sequence[str], config, seed: int, prune: bool) -> dict:
    """Of this run's texts and tests; the folder may hold more."""
    rows = records.read(sweep.folder)
    rows = rows[rows.example_id.isin([t.example_id for t in sweep.texts]) & rows.test.isin([*tests, PREDICTION])]
    classes = [str(config.id2label[k]) for k in range(config.num_labels)]
    statistics = summarize(rows, classes, seed=seed)
    return {
        "statistics": statistics,
        "rows": rows.reset_index(drop=True),
        "prune": prune_heads(sweep, statistics) if prune else None,
        "comparisons": compare(rows, seed=seed),
    }


def _write(report: Report, folder: Path) -> None:
    summary = to_json(report) | extras_to_json(report)
    records.write_atomically(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    records.write_atomically(folder / "report.md", to_markdown(report))


def check_tests(tests: Sequence[str] | None) -> tuple[str, ...]:
    """The tests asked for, all of them by default."""
    tests = PROBES if tests is None else [tests] if isinstance(tests, str) else tests
    unknown = sorted(set(tests) - set(PROBES))
    if unknown:
        raise AttnProbeError(f"unknown test {', '.join(unknown)}; the known ones are {', '.join(PROBES)}")
    if not tests:
        raise AttnProbeError(f"expected at least one test of {', '.join(PROBES)}; leave it out for all of them")
    return tuple(dict.fromkeys(tests))


def _check_options(method: str, dtype: torch.dtype | str | None, *, seed: int, **counts: int | None) -> None:
    check_at_least(0, seed=seed)
    check_at_least(1, **counts)
    if method not in METHODS:
        raise AttnProbeError(f"expected a method of {', '.join(METHODS)}, got {method!r}")
    if isinstance(dtype, str) and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise AttnProbeError(f"expected a dtype such as float32 or float64, got {dtype!r}")


def _model_and_tokenizer(model, tokenizer, trust_remote_code: bool):
    """Name, model and tokenizer; a model given as an object is used as it is."""
    if isinstance(model, str | os.PathLike):
        loaded = load_model(model, trust_remote_code=trust_remote_code)
        return str(model), loaded, tokenizer or load_tokenizer(model, trust_remote_code=trust_remote_code)
    name = getattr(model, "name_or_path", "") or type(model).__name__
    if tokenizer is None and not getattr(model, "name_or_path", ""):
        raise AttnProbeError("expected a tokenizer with a model given as an object; pass tokenizer=")
    return name, model, tokenizer or load_tokenizer(name, trust_remote_code=trust_remote_code)


def _check_needs(tests: Sequence[str], rationales: bool, tokenizer, erase_by: str, mask_id: int | None) -> None:
    """What some tests need of data and tokenizer."""
    if "plausibility" in tests and not (rationales and tokenizer.is_fast):
        raise AttnProbeError(
            "expected human rationales for the test plausibility, found none that a fast tokenizer could place; give "
            "the data a column 'evidence' with the positions of the decisive words, or leave the test out"
        )
    if "input_erasure" in tests or erase_by not in OPERATORS:
        check_operator(erase_by, mask_id)


def _check_target(model, target: int | None) -> None:
    if target is not None and not 0 <= target < model.config.num_labels:
        raise AttnProbeError(f"expected a target class from 0 to {model.config.num_labels - 1}, got {target}")


def _check_query(shortest, query: int) -> None:
    """Every text has to have the query; ``shortest`` is the observation of the shortest one."""
    n_queries = min(attention.shape[2] for attention in shortest.attention)
    if not 0 <= query < n_queries:
        raise AttnProbeError(
            f"expected a query from 0 to {n_queries - 1}, which the shortest text has, got {query}; choose another --query"
        )


@contextlib.contextmanager
def _folder(output_dir, state) -> Iterator[Path]:
    """The output folder, or one that goes away."""
    if output_dir is not None:
        yield Path(output_dir)
        return
    if state.num_processes > 1:
        raise AttnProbeError("several processes meet in the output folder; give one with --output-dir")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def read_audit(folder: str | Path) -> Report:
    """The report of an audit's folder, with its rows."""
    summary = Path(folder) / SUMMARY
    if not summary.is_file():
        raise AttnProbeError(f"expected an audit in {folder}, found no {SUMMARY} there; finish or run the audit first")
    try:
        report = from_json(json.loads(summary.read_text()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AttnProbeError(f"cannot read the summary in {summary}; run the audit again") from error
    return dataclasses.replace(report, rows=records.read(Path(folder) / "rows"))


def _dataset_name(dataset, split: str) -> str:
    dataset = getattr(dataset, "hub_id", dataset)  # of a recipe
    name = str(dataset) if isinstance(dataset, str | os.PathLike) else "data given in memory"
    return f"{name} ({split})"


def _provenance(identity: dict, tests: Sequence[str], counts: Mapping[str, int], n_processes: int) -> dict:
    versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    return identity | {
        "tests": list(tests),
        **counts,
        "n_processes": n_processes,
        "versions": versions,
    }
