"""The public function ``audit``: texts in, rows on disk, a report out."""

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.attention_model import (
    AttentionModelBase,
    HeadOutputs,
    Site,
)
from hf_attnprobe.auditing import control as controls
from hf_attnprobe.auditing.command import asked_for
from hf_attnprobe.auditing.distance import distance_of_erased
from hf_attnprobe.auditing.estimates.calibration import (
    calibrate,
    work_of,
    work_of_control,
)
from hf_attnprobe.auditing.estimates.estimate import Estimate
from hf_attnprobe.auditing.estimates.half_precision import compared_with_float32
from hf_attnprobe.auditing.estimates.sums import estimate
from hf_attnprobe.auditing.examples import shown_texts
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.page import audit_page
from hf_attnprobe.auditing.progress import Pace
from hf_attnprobe.auditing.rehearsal import rehearse
from hf_attnprobe.auditing.report import Report
from hf_attnprobe.auditing.result import extras_to_json, to_json
from hf_attnprobe.auditing.selection import (
    Choice,
    check_both_halves,
    choose,
    crossed,
    head_set_names,
    sites_by_test,
    tests_given,
)
from hf_attnprobe.auditing.stopping.intervals import valid_statistics
from hf_attnprobe.auditing.stopping.limits import (
    Deadline,
    Limits,
    limits_of,
    without_extras,
)
from hf_attnprobe.auditing.stopping.notes import stopping_notes
from hf_attnprobe.auditing.stopping.run import (
    Outcome,
    repeat_on_control,
    run_until_sure,
)
from hf_attnprobe.auditing.subject import Model, Subject, check_unit, make_subject
from hf_attnprobe.auditing.sweep import (
    Part,
    Sweep,
    Work,
    beside,
    prune_heads,
    run,
    run_parts,
)
from hf_attnprobe.auditing.verdict import findings, site_of_model
from hf_attnprobe.data.arguments import Data, as_data
from hf_attnprobe.data.examples import (
    columns_read,
    dataset_fingerprint,
    dataset_name,
    sample,
)
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import readings, tests
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.hardware.memory import one_line_without_memory
from hf_attnprobe.hardware.threads import suited_threads
from hf_attnprobe.inference.batching import parse_bytes
from hf_attnprobe.inference.choices import encode
from hf_attnprobe.inference.encoding import Tokenized, has_rationales
from hf_attnprobe.inference.labels import spread_of_labels
from hf_attnprobe.inference.reference import reference_batch
from hf_attnprobe.inference.unknown_tokens import unknown_note, unknown_share
from hf_attnprobe.options import Options
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.statistics.checks import contradictions
from hf_attnprobe.statistics.comparisons import compare_rankings
from hf_attnprobe.statistics.contrasts import Contrast, contrast
from hf_attnprobe.statistics.stopped import MARK, rows_that_count
from hf_attnprobe.statistics.summary import PREDICTION, summarize
from hf_attnprobe.statistics.wording import words_of
from hf_attnprobe.storage.folders import (
    check_claim,
    claim,
    write_atomically,
    write_json,
)
from hf_attnprobe.storage.provenance import SUMMARY, versions
from hf_attnprobe.storage.rows import read_rows


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)
PAGE = "report.html"
"""The page of an audit, in its folder."""


@quiet_libraries()
def audit(
    model: Model,
    dataset: Any,
    tests: "Sequence[str | Options] | str | Options | None" = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    progress: bool = True,
) -> Report:
    """Runs faithfulness tests on every text, at every head, and summarises them.

        audit("minilm-sst", "sst")
        audit(
            model,
            Data("sst", test_limit=200),
            ["erasure", Permutation(n_permutations=10)],
            options=AuditOptions(layers=[5]),
            tokenizer=tokenizer,
        )

    Args:
        model: a folder, a Hub id, ``org/name@revision``, a loaded model, a (model,
            tokenizer) pair, a pipeline, or an adapter. With an object give its
            ``tokenizer`` too, unless it knows the folder it was loaded from.
        dataset: a name, folder or Hub id, examples in memory, or a
            :class:`~hf_attnprobe.data.arguments.Data` that says split, columns and
            limit.
        tests: names of tests, see :func:`hf_attnprobe.faithfulness.tests`, or their
            options. "default" among them stands for those that suit model and data, and
            so does None. Of these a test is left out whose needs the model does not
            meet; the report's provenance says which, and why.
        options: where to look, and how to run.
        output_dir: where ``rows``, ``summary.json``, ``texts.json``, ``report.md`` and
            ``report.html`` go. Run again with the same folder to continue after an
            interruption, or to add texts or tests. None keeps nothing on disk.
        tokenizer: that of a model that is given as an object.
        progress: show a bar on stderr.

    Returns:
        The report; the same on every process.

    Raises:
        AttnProbeError: for anything that the caller can mend, before anything is
            written.
    """
    limits = limits_of(options)
    deadline = Deadline(limits.seconds)
    job = _prepared(model, dataset, tests, options, tokenizer)
    subject, choice, state = job.subject, job.choice, job.state
    pace = Pace(
        shown=progress and state.is_main_process,
        n_runs=1 if subject.control is None else 2,
        is_kept=output_dir is not None,
    )
    with _folder(output_dir, state) as folder, pace, job.on_this_machine():
        sweep = job.sweep(folder, pace)
        rehearse(sweep, choice.sites, choice.rationales)
        besides = job.besides | compared_with_float32(
            sweep.adapter, subject.exact, sweep.texts, sweep.pad_token_id
        )
        with claim(folder, job.identity, state):
            own = deadline if subject.control is None else deadline.halved()
            outcome = _run_tests(sweep, choice, options, limits, own)
            others = None
            if subject.control is not None:
                other = beside(sweep, subject.control)
                repeat_on_control(other, outcome, limits, deadline, job.control)
                others = _rows_of(other) if any(other.folder.glob("part-*")) else None
                besides = {**besides, "control": job.control}
            if outcome.facts:
                besides = {**besides, MARK: outcome.facts}
            provenance = _provenance(job.identity, sweep, choice.left_out, besides)
            shown = options if limits.seconds is None else without_extras(options)
            report = _report(job, sweep, provenance, others, shown)
            if output_dir is not None and state.is_main_process:
                _write(report, folder)
            state.wait_for_everyone()
    return report


@quiet_libraries()
def estimate_audit(
    model: Model,
    dataset: Any,
    tests: "Sequence[str | Options] | str | Options | None" = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Estimate:
    """What :func:`audit` with these arguments will take; nothing is written.

    It prepares the audit, runs each test at two sites on a few texts, and makes the
    report once from these rows. What an output folder holds already is not counted.

    Args:
        model, dataset, tests, options, output_dir, tokenizer: those of :func:`audit`.
        clock: seconds; by default those that pass, ``time.process_time`` for those that
            the processor works.

    Returns:
        Work, time, memory and disk space of what is left. Time within a factor of 1.5 on
        the jobs on which it was tested (tests/test_estimates.py), if the machine stays
        as busy as it is.

    Raises:
        AttnProbeError: whatever would stop the audit before its first rows.
    """
    begun = clock()
    job = _prepared(model, dataset, tests, options, tokenizer)
    pace = Pace(shown=False, clock=clock)
    with tempfile.TemporaryDirectory() as elsewhere, job.on_this_machine():
        where = Path(elsewhere if output_dir is None else output_dir)
        sweep = job.sweep(where, pace)
        rehearse(sweep, job.choice.sites, job.choice.rationales)
        if output_dir is not None:
            check_claim(where, job.identity)
        prepared = clock() - begun
        plan = _plan(job, sweep, options)
        found = calibrate(sweep, [*plan["audit"], *plan["control"]])

        def report_on(folder: Path, n_texts: int) -> None:
            tried = replace(sweep, folder=folder / "rows", texts=sweep.texts[:n_texts])
            provenance = _provenance(job.identity, tried, {}, job.besides)
            others = None if job.subject.control is None else _rows_of(tried)
            without = replace(options, prune=False)
            report = _report(job, tried, provenance, others, without)
            _write(report, folder)

        return estimate(sweep, plan, found, report_on, prepared, Path(elsewhere))


def _plan(job: "_Job", sweep: Sweep, options: AuditOptions) -> dict[str, list[Work]]:
    """The batches that are left, of the model and of its control."""
    control = job.subject.control
    left = (
        [] if control is None else work_of_control(sweep, control, job.choice, options)
    )
    return {"audit": work_of(sweep, job.choice, options), "control": left}


@dataclass(frozen=True)
class _Job:
    """An audit before its first test: everything is loaded, encoded and chosen.

    Attributes:
        control: what the control is, in words.
        besides: what the report's provenance says beside settings.
    """

    subject: Subject
    examples: "datasets.Dataset"
    data: Data
    options: AuditOptions
    choice: Choice
    identity: dict[str, Any]
    tokenized: Tokenized
    control: str
    besides: dict[str, Any]
    budget: int
    state: PartialState

    @contextlib.contextmanager
    def on_this_machine(self) -> Iterator[None]:
        """Threads as many as help, and one line where there is no memory."""
        with (
            suited_threads(self.subject.adapter.model),
            one_line_without_memory("the audit"),
        ):
            yield

    def sweep(self, folder: Path, pace: Pace) -> Sweep:
        """The work of the audit, its rows in a folder."""
        return Sweep(
            adapter=self.subject.adapter,
            texts=self.tokenized.texts,
            options=self.choice.tests,
            seed=self.options.seed,
            pad_token_id=self.subject.tokenizer.pad_token_id or 0,
            budget=self.budget,
            batch_size=self.options.batch_size,
            folder=folder / "rows",
            state=self.state,
            pace=pace,
        )


def _prepared(
    model: Model,
    dataset: Any,
    tests: "Sequence[str | Options] | str | Options | None",
    options: AuditOptions,
    tokenizer: PreTrainedTokenizerBase | None,
) -> _Job:
    """Loads, encodes and chooses; for the arguments see :func:`audit`."""
    budget, data = parse_bytes(options.memory_budget), as_data(dataset)
    given = tests_given(tests, options)
    examples = data.examples(seed=options.seed)
    state = process_state()
    spread = spread_of_labels(examples)
    subject = make_subject(model, tokenizer, options, state.device, spread=spread)
    usable = has_rationales(examples, subject.adapter.unit)
    rationales = usable and subject.tokenizer.is_fast
    choice = choose(subject.adapter, given, rationales, options)
    _log_left_out(choice.left_out)
    identity = _identity(subject, examples, data, options, choice)
    _set_reference(subject, examples, choice.tests)
    tokenized = _tokenized(subject, examples, data, options)
    control = _finish_control(subject, examples, options)
    besides: dict[str, Any] = {
        "skipped_empty": tokenized.n_empty,
        "truncated": tokenized.n_cut,
        "unknown_tokens": unknown_share(tokenized.texts, subject.tokenizer),
        **_unit_of_number(subject.adapter.prediction, spread, options),
        **({"origin": dict(subject.origin)} if subject.origin else {}),
        "text_columns": columns_read(examples),
        "asked_for": asked_for(model, data, tests, options),
        **_architecture(subject.adapter),
    }
    return _Job(
        subject,
        examples,
        data,
        options,
        choice,
        identity,
        tokenized,
        control,
        besides,
        budget,
        state,
    )


def _architecture(adapter: AttentionModelBase) -> dict[str, dict[str, str]]:
    """What the papers' tables are divided by, of attention classifiers."""
    config = getattr(adapter.model, "config", None)
    if not isinstance(config, AttentionClassifierConfig):
        return {}
    return {"architecture": {"encoder": config.encoder, "attention": config.attention}}


def _unit_of_number(
    prediction: Prediction, spread: float | None, options: AuditOptions
) -> dict[str, str]:
    """What a change of a number is counted in, where that is no given size."""
    by_labels = options.scale is None and prediction.scale == spread
    if not (prediction.is_number and by_labels):
        return {}
    return {"unit_of_number": "standard deviations of the labels"}


def _tokenized(
    subject: Subject,
    examples: "datasets.Dataset",
    data: Data,
    options: AuditOptions,
) -> Tokenized:
    """The texts of the audit, ready for the model."""
    limited = _limited(examples, data.test_limit)
    adapter, cut = subject.adapter, options.truncate
    tokenized = encode(
        subject.tokenizer, limited, adapter, truncate=cut, segment=options.segment
    )
    check_unit(subject)
    if options.screen is not None:
        check_both_halves(text.example_id for text in tokenized.texts)
    return tokenized


def _log_left_out(left_out: Mapping[str, str]) -> None:
    for name, reason in left_out.items():
        logger.warning("the test %s is left out: %s", name, reason)


def _identity(
    subject: Subject,
    examples: "datasets.Dataset",
    data: Data,
    options: AuditOptions,
    choice: Choice,
) -> dict[str, Any]:
    """What the rows of a folder belong to."""
    screen: Any = options.screen
    if screen is not None:  # other texts may put other heads first
        screen = [screen, data.test_limit, "crossed"]
    where = {
        "layers": options.layers,
        "heads": options.heads,
        "query": options.query,
        "screen": screen,
    }
    identity = {
        "model_fingerprint": subject.adapter.fingerprint(),
        "data_fingerprint": dataset_fingerprint(examples),
        "seed": options.seed,
        "options": _options_of_rows({**choice.asked, **choice.tests}),
        "sites": where,
        "single_heads": options.single_heads,
        "groups": options.groups,
        "head_sets": head_set_names(subject.adapter),
        "level": options.level or "default",
        "truncate": options.truncate,
        "dtype": options.dtype or "default",
        "prediction": dataclasses.asdict(subject.adapter.prediction),
    }
    if options.segment is not None:  # folders from before pairs have none
        identity["segment"] = options.segment
    return identity


def _options_of_rows(given: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """The options of all tests, so that a test that is added later has the same.

    Of installed tests only those that are not the defaults, since one may be installed
    between two runs.
    """
    recorded = {}
    for name, test in tests().items():
        options = given.get(name, test.options())
        built_in = test.function.__module__.startswith("hf_attnprobe.")
        values = dataclasses.asdict(options)
        if values and (built_in or options != test.options()):
            recorded[name] = values
    return recorded


def _set_reference(
    subject: Subject, examples: "datasets.Dataset", chosen: Mapping[str, Options]
) -> None:
    """Keeps the head outputs of a sample of texts, where a test needs them."""
    used = any(tests()[name].uses_reference for name in chosen)
    adapter = subject.adapter
    if used and adapter.lacks(HeadOutputs) is None:
        batch = reference_batch(adapter, subject.tokenizer, examples)
        adapter.require(HeadOutputs).set_reference(batch)


def _finish_control(
    subject: Subject, examples: "datasets.Dataset", options: AuditOptions
) -> str:
    """Makes the control's attention as peaked as the model's; what it is, in words."""
    if subject.control is None:
        return "none"
    batch = reference_batch(subject.adapter, subject.tokenizer, examples)
    return controls.finish(subject.control, subject.adapter, batch, options)


def _limited(examples: "datasets.Dataset", limit: int | None) -> "datasets.Dataset":
    if limit is None:
        return examples
    ids = examples.with_format(None)["example_id"][:]
    return examples.select(sample(range(len(examples)), ids, limit))


def _run_tests(
    sweep: Sweep,
    choice: Choice,
    options: AuditOptions,
    limits: Limits,
    deadline: Deadline,
) -> Outcome:
    """Runs the tests; with ``screen`` only at the heads with the largest estimates.

    These are chosen for one half of the texts by the estimates on the other half. Groups
    of heads are tested whatever the screen says. With limits it stops when they say so.

    Returns:
        The heads that were tested, by texts.
    """
    if limits.given:
        heads = choice.sites if options.single_heads else []
        return run_until_sure(sweep, choice, heads, limits, deadline)
    if options.screen is None:
        parts: list[Part] = [
            (sweep.texts, choice.sites if options.single_heads else [])
        ]
        run_parts(sweep, parts, choice.groups, done=None)
        return Outcome(parts, choice.groups)
    run(sweep, sites_by_test(["screen"], sweep.adapter, choice.sites))
    estimates = read_rows(sweep.folder)
    parts = [*crossed(sweep.texts, estimates, choice.sites, options.screen)]
    run_parts(sweep, parts, choice.groups, done="screen")
    return Outcome(parts, choice.groups)


def _rows_of(sweep: Sweep) -> pd.DataFrame:
    """The rows of this run's texts and tests; the folder may hold more."""
    rows = read_rows(sweep.folder)
    audited = rows.example_id.isin([text.example_id for text in sweep.texts])
    return rows[audited & rows.test.isin([*sweep.options, PREDICTION])]


def _report(
    job: _Job,
    sweep: Sweep,
    provenance: dict[str, Any],
    control: pd.DataFrame | None,
    options: AuditOptions,
) -> Report:
    """The report of this run's texts and tests."""
    subject, data, examples = job.subject, job.data, job.examples
    facts = provenance.get(MARK)
    ids = tuple(sorted(text.example_id for text in sweep.texts))
    rows = rows_that_count(_rows_of(sweep), facts, ids)
    classes, seed = subject.adapter.label_names, sweep.seed
    unit = provenance.get("unit_of_number", "")
    words = words_of(provenance["prediction"], unit=unit)
    statistics = summarize(rows, classes, readings(), seed=seed)
    statistics = valid_statistics(statistics, rows, classes)
    contrasts: tuple[Contrast, ...] = ()
    if control is not None:
        contrasts = contrast(rows, control, classes, seed=seed)
    return Report(
        model=subject.name,
        dataset=dataset_name(data.dataset, data.split),
        n=len(sweep.texts),
        seed=seed,
        example_ids=ids,
        statistics=statistics,
        provenance=provenance,
        examples=shown_texts(subject, sweep, rows, examples, options),
        prune=prune_heads(sweep, rows) if options.prune else None,
        comparisons=compare_rankings(rows, seed=seed),
        findings=findings(rows, control, classes, seed=seed, words=words),
        contrasts=contrasts,
        contradictions=tuple(contradictions(rows, of_number=words.is_number)),
        notes=(
            *stopping_notes(facts, statistics),
            *_notes(sweep, rows, provenance, options.predicts),
        ),
        rows=rows.reset_index(drop=True),
    )


def _notes(
    sweep: Sweep, rows: pd.DataFrame, provenance: Mapping[str, Any], predicts: str
) -> tuple[str, ...]:
    """What is to be seen beside the findings."""
    unknown = unknown_note(provenance["unknown_tokens"])
    notes = [unknown, _single_logit_note(sweep.adapter, predicts)]
    if isinstance(sweep.adapter, TransformerAdapter):
        notes += sweep.adapter.stack_notes()
    site = site_of_model(rows)
    in_haste = "seconds" in provenance.get(MARK, {}).get("limits", {})
    if site is not None and not in_haste and "input_erasure" in sweep.options:
        distance = distance_of_erased(sweep, Site(*site))
        notes.append(None if distance is None else distance.sentence())
    return tuple(note for note in notes if note is not None)


def _single_logit_note(adapter: AttentionModelBase, predicts: str) -> str | None:
    """Where a single logit was taken for a probability, and nobody said that it is."""
    config = getattr(adapter.model, "config", None)
    is_single = getattr(config, "num_labels", None) == 1
    said = getattr(config, "problem_type", None) is not None or predicts != "auto"
    if not is_single or said or adapter.prediction.kind != "classes":
        return None
    return (
        "Prediction: this model gives one logit, and its configuration does not say what "
        "it is (problem_type). It was taken for the log-odds of a probability; of a "
        "model that predicts a number say --predicts number."
    )


def _write(report: Report, folder: Path) -> None:
    summary = to_json(report) | extras_to_json(report)
    write_json(folder / SUMMARY, summary)
    files = {"report.md": report.to_markdown, PAGE: lambda: audit_page(report)}
    for name, form in files.items():
        try:
            write_atomically(folder / name, form())
        except OSError as error:  # rows and summary hold everything
            logger.warning(
                "cannot write %s (%s); nothing is lost: attnprobe report %s --output FILE",
                folder / name,
                error.strerror,
                folder,
            )


@contextlib.contextmanager
def _folder(output_dir: str | Path | None, state: PartialState) -> Iterator[Path]:
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


def _provenance(
    identity: Mapping[str, Any],
    sweep: Sweep,
    left_out: Mapping[str, str],
    besides: Mapping[str, Any],
) -> dict[str, Any]:
    """What was done: settings, tests, tests left out, versions and what else is known."""
    provenance = {
        **identity,
        "tests": list(sweep.options),
        "classes": list(sweep.adapter.label_names),
        **besides,
        "n_processes": sweep.state.num_processes,
        "versions": versions(),
    }
    if left_out:
        provenance["left_out"] = dict(left_out)
    if sweep.adapter.unit == "sentence":
        provenance["units"] = "sentences"
    if sweep.adapter.segment is not None:
        provenance["attended"] = sweep.adapter.segment
    return provenance
