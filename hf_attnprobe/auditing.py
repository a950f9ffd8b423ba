"""The runner: texts in, rows on disk, a report out; in batches, on several processes, resumable."""

import contextlib
import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch
from tqdm.auto import tqdm

from hf_attnprobe import records
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import AttentionModel, Batch
from hf_attnprobe.data import dataset_fingerprint, label_names, load_examples
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import PROBES
from hf_attnprobe.loading import check_at_least, load_model, load_tokenizer, model_fingerprint
from hf_attnprobe.report import Example, Report, examples_to_json, from_json, to_json, to_markdown
from hf_attnprobe.summary import PREDICTION, summarize


SUMMARY = "summary.json"
METHODS = ("auto", "exact", "search")
PAD_VALUES = {"attention_mask": 0, "special_tokens_mask": 1, "token_type_ids": 0, "word_ids": -1}
PACKAGES = ("hf_attnprobe", "torch", "transformers", "scipy", "numpy")


@dataclass(frozen=True)
class Text:
    """One tokenized text; ``inputs`` are lists of one length."""

    example_id: int
    label: int
    inputs: Mapping[str, list[int]]

    @property
    def n_content(self) -> int:
        return len(self.inputs["input_ids"]) - sum(self.inputs["special_tokens_mask"])


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
    seed: int = 0,
    target: int | None = None,
    n_permutations: int = 100,
    method: str = "auto",
    dtype: torch.dtype | str | None = None,
    batch_size: int = 64,
    memory_budget: str | int = "2GB",
    tokenizer=None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> Report:
    """Runs faithfulness tests on every text of a split and summarises them.

    Args:
        model: a folder, a Hub id, or a loaded model (then give its ``tokenizer``).
        dataset, split, config, text_column, label_column, limit: see :func:`hf_attnprobe.data.load_examples`.
        tests: names from :data:`hf_attnprobe.faithfulness.PROBES`; all of them by default.
        output_dir: where ``rows``, ``summary.json`` and ``report.md`` go. Run again with the same folder to continue
            after an interruption, or to add texts or tests. ``None`` keeps nothing on disk.
        seed: with the example ids it fixes all random numbers.
        target: class whose probability the importances explain; ``None`` is the predicted one.
        n_permutations: shuffles per text. method: of the adversarial test.
        dtype: to compute in; float64 for attention classifiers unless given.
        batch_size: texts at once, fewer where they would exceed ``memory_budget`` ("2GB", or bytes).
        progress: a bar on stderr.

    Returns:
        The report; the same on every process.

    Raises:
        AttnProbeError: for anything the caller can mend, before anything is written.
    """
    tests = check_tests(tests)
    _check_options(method, dtype, limit=limit, batch_size=batch_size, n_permutations=n_permutations, seed=seed)
    options = {
        "correlation": {"target": target},
        "permutation": {"n_permutations": n_permutations},
        "adversarial": {"method": method},
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
        "dtype": str(dtype or "default"),
    }
    adapter = wrap(loaded.to(state.device), dtype=getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    if limit is not None:
        examples = examples.select(range(min(limit, len(examples))))
    texts, skipped = tokenize(tokenizer, examples, loaded)
    if method == "exact" and "adversarial" in tests:  # refused on one text rather than in the first batch
        run_batch(adapter, collate(adapter, texts[:1], tokenizer.pad_token_id or 0), ["adversarial"], options, seed)
    with _folder(output_dir, state) as folder, records.claim(folder, identity, state):
        jobs = plan(
            texts, (*tests, PREDICTION), records.done(folder / "rows"), adapter, budget, batch_size, n_permutations
        )
        state.wait_for_everyone()  # everyone has planned before anyone adds rows
        _run(adapter, jobs, state, options, seed, tokenizer.pad_token_id or 0, folder / "rows", progress)
        state.wait_for_everyone()
        rows = records.read(folder / "rows")
        rows = rows[rows.example_id.isin([t.example_id for t in texts]) & rows.test.isin([*tests, PREDICTION])]
        classes = [str(loaded.config.id2label[k]) for k in range(loaded.config.num_labels)]
        report = Report(
            model=name,
            dataset=_dataset_name(dataset, split),
            n=len(texts),
            seed=seed,
            statistics=summarize(rows, classes, seed=seed),
            provenance=_provenance(identity, tests, skipped, state.num_processes),
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


def parse_bytes(size: str | int) -> int:
    """Bytes of "500MB", "2GB" or a plain number."""
    text = str(size).strip().upper()
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
    number, unit = (text[:-2], units[text[-2:]]) if text[-2:] in units else (text, 1)
    try:
        n_bytes = int(float(number) * unit)
    except (ValueError, OverflowError):
        n_bytes = 0
    if n_bytes <= 0:
        raise AttnProbeError(f"expected a memory budget such as 500MB or 2GB, got {size!r}")
    return n_bytes


def tokenize(tokenizer, examples, model) -> tuple[list[Text], int]:
    """The texts that have tokens, with the model's numbers for their labels, and how many have none."""
    columns = examples.with_format(None)[:]
    labels = labels_of_model(model.config, examples)
    encoded = tokenizer(columns["text"], return_special_tokens_mask=True)
    texts = [
        Text(example_id, label, {key: values[row] for key, values in encoded.items()})
        for row, (example_id, label) in enumerate(zip(columns["example_id"], labels, strict=True))
    ]
    n_rows = model.get_input_embeddings().num_embeddings
    largest = max((max(t.inputs["input_ids"], default=0) for t in texts), default=0)
    if largest >= n_rows:
        raise AttnProbeError(
            f"the tokenizer gives id {largest}, the model embeds ids below {n_rows}; load the tokenizer saved with the model"
        )
    kept = [t for t in texts if t.n_content > 0]
    if not kept:
        raise AttnProbeError(f"expected texts with tokens, all {len(texts)} have none; check the text column")
    return kept, len(texts) - len(kept)


def labels_of_model(config, examples) -> list[int]:
    """The examples' labels as the model numbers its classes, -1 for none.

    They are matched by name, whatever the case. Where data and model have no name in common they go by number, for
    data without names or with as many classes as the model.

    Raises:
        AttnProbeError: a label that the model does not know: data and model do not belong together.
    """
    values, names = examples.with_format(None)["label"][:], label_names(examples)
    known = {str(name).casefold(): k for k, name in config.id2label.items()}
    by_name = [known.get(name.casefold()) for name in names]
    named = hasattr(examples.features["label"], "names")
    if set(by_name) <= {None} and (not named or len(names) == config.num_labels):
        by_name = [k if k < config.num_labels else None for k in range(len(names))]
    unknown = sorted({label for label in values if label >= 0 and by_name[label] is None})
    if unknown:
        raise AttnProbeError(
            f"the data has label {names[unknown[0]]!r} ({unknown[0]}), the model knows {config.num_labels} labels: "
            f"{', '.join(map(str, config.id2label.values()))}; audit it on data with its own labels"
        )
    return [by_name[label] if label >= 0 else -1 for label in values]


def plan(
    texts: Sequence[Text],
    tests: Sequence[str],
    done: Mapping[str, set[int]],
    adapter: AttentionModel,
    budget: int,
    batch_size: int,
    n_copies: int,
) -> list[tuple[tuple[str, ...], list[Text]]]:
    """What is left to do: tests with the texts that lack them, batched by length within the memory budget."""
    left: dict[tuple[str, ...], list[Text]] = {}
    for text in texts:
        missing = tuple(t for t in tests if text.example_id not in done.get(t, ()))
        if missing:
            left.setdefault(missing, []).append(text)
    jobs = []
    for missing, group in left.items():
        batch: list[Text] = []
        for text in sorted(group, key=lambda t: (len(t.inputs["input_ids"]), t.example_id)):
            size = adapter.bytes_per_example(len(text.inputs["input_ids"]), n_copies)
            if batch and (len(batch) >= batch_size or (len(batch) + 1) * size > budget):
                jobs.append((missing, batch))
                batch = []
            batch.append(text)
        jobs.append((missing, batch))
    return jobs


def collate(adapter: AttentionModel, texts: Sequence[Text], pad_token_id: int) -> Batch:
    """Texts padded on the right to the longest."""
    n_keys = max(len(t.inputs["input_ids"]) for t in texts)
    pads = PAD_VALUES | {"input_ids": pad_token_id}
    inputs = {
        key: torch.tensor([[*t.inputs[key], *[pads[key]] * (n_keys - len(t.inputs[key]))] for t in texts])
        for key in texts[0].inputs
    }
    return adapter.prepare(inputs, tuple(t.example_id for t in texts), torch.tensor([t.label for t in texts]))


def _run(adapter, jobs, state, options, seed: int, pad_token_id: int, folder: Path, progress: bool) -> None:
    """This process's share of the batches; the longest first, so that a budget too large fails at once."""
    share = jobs[::-1][state.process_index :: state.num_processes]
    total = sum(len(texts) for _, texts in share)
    with tqdm(total=total, unit="text", desc="audit", disable=not (progress and state.is_main_process)) as bar:
        for tests, texts in share:
            records.append(folder, run_batch(adapter, collate(adapter, texts, pad_token_id), tests, options, seed))
            bar.update(len(texts))


def run_batch(
    adapter: AttentionModel, batch: Batch, tests: Sequence[str], options: Mapping, seed: int
) -> pd.DataFrame:
    """Rows of the given tests at every site, for one batch."""
    observation = adapter.observe(batch)
    parts = []
    for test in tests:
        if test == PREDICTION:
            statistics = _prediction(observation)
            parts.append(records.to_rows(test, statistics, batch.example_ids, records.NO_SITE))
            continue
        for site in adapter.sites():
            result = PROBES[test](adapter, observation, site, seed=seed, **options[test])
            parts.append(records.to_rows(test, records.statistics_of(result), batch.example_ids, site))
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


def _provenance(identity: dict, tests: Sequence[str], skipped: int, n_processes: int) -> dict:
    versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    return identity | {
        "tests": list(tests),
        "skipped_empty": skipped,
        "n_processes": n_processes,
        "versions": versions,
    }
