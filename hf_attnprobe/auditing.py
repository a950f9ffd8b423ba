"""The runner: texts in, rows on disk, a report out; in batches, on several processes, resumable."""

import contextlib
import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
from tqdm.auto import tqdm

from hf_attnprobe import records
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import AttentionModel, Batch, Site
from hf_attnprobe.data import dataset_fingerprint, load_examples
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import PROBES
from hf_attnprobe.loading import check_at_least, load_model, load_tokenizer, model_fingerprint
from hf_attnprobe.report import Example, Report, examples_to_json, from_json, to_json, to_markdown
from hf_attnprobe.summary import PREDICTION, summarize
from hf_attnprobe.texts import Text, collate, parse_bytes, plan, tokenize


SUMMARY = "summary.json"
METHODS = ("auto", "exact", "search")
FOR_MANY_HEADS = ("screen", "head_ablation")
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


def audit(
    model,
    dataset,
    *,
    split: str = "test",
    tests: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    config: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    query: int | None = None,
    screen: int | None = None,
    seed: int = 0,
    target: int | None = None,
    n_permutations: int = 100,
    method: str = "auto",
    n_starts: int = 5,
    n_steps: int | None = None,
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
        seed: with the example ids it fixes all random numbers.
        target: class whose probability the importances explain; ``None`` is the predicted one.
        n_permutations: shuffles per text. method, n_starts, n_steps: of the adversarial test.
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
    _check_options(
        method, dtype, limit=limit, batch_size=batch_size, n_permutations=n_permutations, n_starts=n_starts, seed=seed,
        screen=screen,
    )  # fmt: skip
    options = {
        "correlation": {"target": target},
        "permutation": {"n_permutations": n_permutations},
        "adversarial": {"method": method, "n_starts": n_starts, "n_steps": n_steps},
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
        "sites": {"layers": layers, "heads": heads, "query": query, "screen": screen},
        "level": level or "default",
        "truncate": truncate,
        "dtype": str(dtype or "default"),
    }
    adapter = wrap(
        loaded.to(state.device), dtype=getattr(torch, dtype) if isinstance(dtype, str) else dtype, level=level
    )
    sites = select_sites(adapter, layers, heads, query)
    tests = check_tests(tests) if tests is not None else suitable_tests(sites)
    if limit is not None:
        examples = examples.select(range(min(limit, len(examples))))
    texts, counts = tokenize(tokenizer, examples, loaded, truncate=truncate)
    pad_token_id = tokenizer.pad_token_id or 0
    by_length = sorted(texts, key=lambda t: t.n_content)
    adapter.self_check(collate(adapter, by_length[-4:], pad_token_id))
    if query is not None:
        _check_query(adapter.observe(collate(adapter, by_length[:1], pad_token_id)), query)
    if method == "exact" and "adversarial" in tests:  # refused on one text rather than in the first batch
        run_batch(adapter, collate(adapter, texts[:1], pad_token_id), ["adversarial"], sites[:1], options, seed)
    with _folder(output_dir, state) as folder, records.claim(folder, identity, state):

        def bytes_per_text(n_keys: int) -> int:
            """Of the two things that need most: all shuffles at once, and a gradient through the model."""
            searched = n_starts if n_steps else 1
            return max(
                adapter.bytes_per_example(n_keys, n_permutations, backward=False),
                adapter.bytes_per_example(n_keys, searched, backward=True),
            )

        def run(tests: Sequence[str], sites: Sequence[Site]) -> None:
            """What of the tests is not there yet, at these sites."""
            there = records.done(folder / "rows")
            jobs = plan(texts, tests, there, bytes_per_text, budget, batch_size)
            state.wait_for_everyone()  # everyone has planned before anyone adds rows
            _run(adapter, jobs, sites, state, options, seed, pad_token_id, folder / "rows", progress)
            state.wait_for_everyone()

        if screen is not None:
            run(["screen", PREDICTION], sites)
            sites = foremost(records.read(folder / "rows"), sites, screen)
        run([*tests, PREDICTION], sites)
        rows = records.read(folder / "rows")
        wanted = [*tests, PREDICTION, *(["screen"] if screen is not None else [])]
        rows = rows[rows.example_id.isin([t.example_id for t in texts]) & rows.test.isin(wanted)]
        classes = [str(loaded.config.id2label[k]) for k in range(loaded.config.num_labels)]
        report = Report(
            model=name,
            dataset=_dataset_name(dataset, split),
            n=len(texts),
            seed=seed,
            statistics=summarize(rows, classes, seed=seed),
            provenance=_provenance(identity, tests, counts, state.num_processes),
            examples=show(adapter, texts[:3], tokenizer, classes, seed=seed) if "adversarial" in tests else (),
            rows=rows.reset_index(drop=True),
        )
        if output_dir is not None and state.is_main_process:
            records.write_atomically(
                folder / SUMMARY, json.dumps(to_json(report) | {"examples": examples_to_json(report)}, indent=1) + "\n"
            )
            records.write_atomically(folder / "report.md", to_markdown(report))
        state.wait_for_everyone()
    return report


def select_sites(
    adapter: AttentionModel, layers: Sequence[int] | None, heads: Sequence[int] | None, query: int | None
) -> list[Site]:
    """The sites asked for, all of the model's by default."""
    known = adapter.sites()
    for name, asked, there in (("layer", layers, {s.layer for s in known}), ("head", heads, {s.head for s in known})):
        missing = sorted(set(asked or ()) - there)
        if missing:
            raise AttnProbeError(
                f"expected a {name} from 0 to {max(there)}, got {missing[0]}; choose another --{name}s"
            )
    return [
        site._replace(query=query)
        for site in known
        if (layers is None or site.layer in layers) and (heads is None or site.head in heads)
    ]


def suitable_tests(sites: Sequence[Site]) -> tuple[str, ...]:
    """All tests; a single head needs no screen and no comparison of heads."""
    return tuple(t for t in PROBES if len(sites) > 1 or t not in FOR_MANY_HEADS)


def foremost(rows: pd.DataFrame, sites: Sequence[Site], n: int) -> list[Site]:
    """The n sites on which the screen foretells the largest mean effect of uniform attention, in the model's order."""
    effects = rows[rows.statistic == "first_order_uniform"].groupby(["layer", "head"]).value.mean()
    ranked = sorted(sites, key=lambda s: (-effects[s.layer, s.head], s.layer, s.head))[:n]
    return [site for site in sites if site in ranked]


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


def _run(adapter, jobs, sites, state, options, seed: int, pad_token_id: int, folder: Path, progress: bool) -> None:
    """This process's share of the batches; the longest first, so that a budget too large fails at once."""
    share = jobs[::-1][state.process_index :: state.num_processes]
    total = sum(len(texts) * sum(1 if t == PREDICTION else len(sites) for t in tests) for tests, texts in share)
    unit = "step" if len(sites) == 1 else "head"
    with tqdm(total=total, unit=unit, desc="audit", disable=not (progress and state.is_main_process)) as bar:
        for tests, texts in share:
            batch = collate(adapter, texts, pad_token_id)
            records.append(folder, run_batch(adapter, batch, tests, sites, options, seed, bar.update))


def run_batch(
    adapter: AttentionModel,
    batch: Batch,
    tests: Sequence[str],
    sites: Sequence[Site],
    options: Mapping,
    seed: int,
    tick: Callable[[int], object] = lambda n: None,
) -> pd.DataFrame:
    """Rows of the given tests at the given sites, for one batch; ``tick`` hears of every finished text at a site."""
    observation = adapter.observe(batch)
    parts = []
    for test in tests:
        for site in sites if test != PREDICTION else [records.NO_SITE]:
            if test == PREDICTION:
                statistics = _prediction(observation)
            else:
                result = PROBES[test](adapter, observation, site, seed=seed, **options.get(test, {}))
                statistics = records.statistics_of(result)
            parts.append(records.to_rows(test, statistics, batch.example_ids, site))
            tick(len(batch.example_ids))
    return pd.concat(parts, ignore_index=True)


def _prediction(observation) -> dict[str, torch.Tensor]:
    prob, predicted = observation.probs.max(-1)
    labels, n_tokens = observation.batch.labels, observation.batch.content_mask.sum(-1)
    return {"predicted_class": predicted, "probability": prob, "label": labels, "n_tokens": n_tokens}


def show(adapter, texts: Sequence[Text], tokenizer, classes: Sequence[str], *, seed: int) -> tuple[Example, ...]:
    """Texts with their attention and, where it can be had exactly, the adversary at ε = .05."""
    batch = collate(adapter, texts, tokenizer.pad_token_id or 0)
    observation, site = adapter.observe(batch), adapter.sites()[0]
    token_logits = adapter.token_logits(observation)
    if token_logits is None or token_logits.shape[-1] != 2:
        return ()
    found = PROBES["adversarial"](adapter, observation, site, epsilons=(0.05,), seed=seed)
    adversary, divergence = found.attention[0.05], found.epsilon_max_jsd[0.05]
    after = adapter.replay(observation, {site.layer: adversary[None, :, None]})[0]
    shown = []
    for row, text in enumerate(texts):
        content, predicted = batch.content_mask[row], int(observation.probs[row].argmax())
        ids = batch.inputs["input_ids"][row][content].tolist()
        shown.append(
            Example(
                example_id=text.example_id,
                tokens=tuple(tokenizer.convert_ids_to_tokens(ids)),
                label=classes[text.label] if text.label >= 0 else None,
                predicted=classes[predicted],
                prob=float(observation.probs[row, predicted]),
                attention=tuple(observation.read(site)[row][content].tolist()),
                adversary=tuple(adversary[row, 0][content].tolist()),
                adversary_prob=float(after[row, predicted]),
                adversary_jsd=float(divergence[row]),
            )
        )
    return tuple(shown)


def _model_and_tokenizer(model, tokenizer, trust_remote_code: bool):
    """Name, model and tokenizer; a model given as an object is used as it is."""
    if isinstance(model, str | os.PathLike):
        loaded = load_model(model, trust_remote_code=trust_remote_code)
        return str(model), loaded, tokenizer or load_tokenizer(model, trust_remote_code=trust_remote_code)
    name = getattr(model, "name_or_path", "") or type(model).__name__
    if tokenizer is None and not getattr(model, "name_or_path", ""):
        raise AttnProbeError("expected a tokenizer with a model given as an object; pass tokenizer=")
    return name, model, tokenizer or load_tokenizer(name, trust_remote_code=trust_remote_code)


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
