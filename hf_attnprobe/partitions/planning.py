"""The public function ``plan_audit``: plans an audit and cuts it into partitions."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_attnprobe.auditing.control import with_draws
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import fingerprints
from hf_attnprobe.auditing.stopping import limits_of
from hf_attnprobe.auditing.subject import Subject, is_language_model, make_subject
from hf_attnprobe.data.answers import Answers
from hf_attnprobe.data.arguments import Data, as_data
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import asked_tests
from hf_attnprobe.hardware import give_back
from hf_attnprobe.options import Asked, Options, check_at_least, check_at_most
from hf_attnprobe.partitions.plan import (
    PLAN,
    TEXTS,
    Plan,
    Shared,
    read_plan,
    share_out,
    texts_name,
    write_plan,
)
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.partitions.work import Auditor, device_here, tried_auditor
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.storage.provenance import versions


NOT_IN_A_PLAN = (
    *("token", "trust_remote_code", "allow_pickle"),
    *("screen", "prune", "shown_texts"),
)
"""Secrets, what a user must say himself, and what looks at all texts at once."""
WEIGHTS = ("*.safetensors", "*.bin")
MOST_PARTITIONS = 100_000
"""Each is a file that is written now and looked at by every worker."""


@quiet_libraries()
def plan_audit(
    model: str | os.PathLike[str],
    dataset: Any,
    tests: Asked | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path,
    partitions: int = 64,
) -> Plan:
    """Plans an audit that any number of workers share, on as many machines as there are.

    Loads the model and tries it on a sample of the texts, so that what would stop a
    worker later stops the plan. Writes ``plan.json``, and the texts of every partition.

    Args:
        model: a folder that all workers see, or a Hub id.
        dataset: as of :func:`~hf_attnprobe.auditing.run.audit`.
        tests: as of an audit.
        options: as of an audit; without a screen and the curve of pruned heads, which
            compare all texts.
        output_dir: folder of the job, or a URL that fsspec knows, such as
            ``s3://bucket/job``.
        partitions: number of parts, whatever the number of workers; one should take
            five to fifteen minutes, and there should be eight or more for each worker.

    Returns:
        The plan; its ``name`` is the job's.

    Raises:
        AttnProbeError: for anything that the caller can mend.
    """
    check_at_least(1, partitions=partitions)
    check_at_most(MOST_PARTITIONS, partitions=partitions)
    data, name = as_data(dataset), _named(model)
    if isinstance(data, Answers) or is_language_model(name, options):
        raise AttnProbeError(
            "expected a model that reads many texts at once for a plan, a language model's "
            "answers are audited by one process; use attnprobe audit"
        )
    _check_options(options)
    asked = asked_tests(tests, in_haste=options.in_haste)
    store = Store(str(output_dir))
    _check_free(store)
    limit, seed = data.test_limit, options.seed
    with _whole_or_nothing(store, partitions):
        opened = partial(data.opened, seed=seed)
        shared = share_out(opened, store, partitions, seed, limit)
        give_back()
        subject = make_subject(name, None, options, device_here(), spread=shared.spread)
        draft = _draft(subject, data, shared, options, name)
        auditor = tried_auditor(store, draft, subject, options, asked)
        control, n_draws = auditor.prepared.control, len(subject.controls)
        plan = replace(
            draft,
            tests=_plain_tests(auditor),
            left_out=dict(auditor.prepared.choice.left_out),
            control=with_draws(control, n_draws) if n_draws else control,
            control_draws=len(auditor.turns) - 1,
        )
        write_plan(store, plan)
    return read_plan(store)


@contextlib.contextmanager
def _whole_or_nothing(store: Store, partitions: int) -> Iterator[None]:
    """Takes the texts of a job away again if it comes to no plan."""
    try:
        yield
    except BaseException:
        if store.read(PLAN) is None:
            store.sweep(TEXTS)
            for k in range(partitions):
                store.remove(texts_name(k))
            store.remove_empty(TEXTS)
        raise


def _named(model: Any) -> str:
    if not isinstance(model, str | os.PathLike):
        raise AttnProbeError(
            "expected a folder or a Hub id for the model of a plan, which workers load "
            f"by its name, got {type(model).__name__}; save it first"
        )
    name = os.fspath(model)
    return os.path.abspath(name) if Path(name).is_dir() else name


def _check_options(options: AuditOptions) -> None:
    if options.screen is not None:
        raise AttnProbeError(
            "expected no --screen in a plan, which would compare all texts; name heads "
            "with --layers and --heads"
        )
    if options.limits is not None:
        raise AttnProbeError(
            "expected no --limits in a plan, whose workers do not know how many texts there will "
            "be; leave it out"
        )
    if limits_of(options).given:
        raise AttnProbeError(
            "expected neither --until nor --top nor --time in a plan, which would look at "
            "all texts; take fewer texts with --test-limit"
        )


def _check_free(store: Store) -> None:
    """Refuses to replace a plan of which parts may exist."""
    if store.read(PLAN) is not None and store.names("parts"):
        raise AttnProbeError(
            f"{store.url} is a job with results; choose another --output-dir, or go on "
            "with attnprobe work"
        )


def _draft(subject: Subject, data: Data, shared: Shared, options: AuditOptions, name: str) -> Plan:
    """The plan before its tests are chosen."""
    adapter, commit = subject.adapter, subject.origin.get("commit")
    kept = {**_changed(options), **({"revision": commit} if commit else {})}
    return Plan(
        model={
            "name": name.partition("@")[0] if commit else name,
            **fingerprints(subject),
            "origin": dict(subject.origin),
            "files": _weight_files(name),
        },
        data={
            **_changed(data),
            "dataset": _words(data.dataset),
            "split": data.split,
            "columns": shared.columns,
        },
        tests={},
        left_out={},
        options={**kept, "seed": options.seed},
        classes=list(adapter.label_names),
        prediction=_as_plain(dataclasses.asdict(adapter.prediction)),
        reference=shared.reference,
        rationales=shared.rationales and subject.tokenizer.is_fast,
        spread=shared.spread,
        control="none",
        control_draws=0,
        texts=shared.texts,
        seed=options.seed,
        versions=versions(),
    )


def _words(dataset: Any) -> str:
    is_named = isinstance(dataset, str | os.PathLike)
    return os.fspath(dataset) if is_named else "data given in memory"


def _changed(options: Options) -> dict[str, Any]:
    """Fields that are not the defaults and belong into a plan, as plain data."""
    changed = {
        field.name: getattr(options, field.name)
        for field in dataclasses.fields(options)
        if field.name not in (*NOT_IN_A_PLAN, "dataset")
        and getattr(options, field.name) != field.default
    }
    return _as_plain(changed)


def _plain_tests(auditor: Auditor) -> dict[str, dict[str, Any]]:
    chosen = auditor.prepared.choice.tests.items()
    return {name: _as_plain(dataclasses.asdict(options)) for name, options in chosen}


def _as_plain(value: Any) -> Any:
    """Tuples as lists, as JSON gives them back."""
    if isinstance(value, Mapping):
        return {key: _as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain(inner) for inner in value]
    return value


def _weight_files(name: str) -> dict[str, str]:
    """SHA-256 of the weights of a folder, by file; of the Hub the commit says it."""
    folder = Path(name)
    if not folder.is_dir():
        return {}
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern))
    return {file.name: _sha256_of(file) for file in files}


def _sha256_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
