"""One audit: texts in, rows on disk, a report out; or what that would take."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.audits.audited_model import ModelLike
from hf_attnprobe.audits.example_selection import select_example_texts
from hf_attnprobe.audits.options import (
    AuditOptions,
    get_share_folder,
    parse_time_limit,
    limit_report_extras,
)
from hf_attnprobe.audits.runner import (
    AuditRunner,
    Clock,
    Step,
    verify_saved_rows,
    warm_up,
    get_cost_class,
    compute_prune_curve,
)
from hf_attnprobe.audits.scheduler import run_tests
from hf_attnprobe.audits.self_checks import (
    CHANGED_MODEL_CAUSE,
    N_TEXTS_CHECKED_AFTER,
    N_TEXTS_CHECKED_BEFORE,
    BATCH_DEPENDENCE_CAUSE,
    compare_with_float32,
)
from hf_attnprobe.audits.setup import PreparedAudit, prepare_audit
from hf_attnprobe.audits.site_selection import list_sites_by_test
from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import Asked, public_function
from hf_attnprobe.core.progress import in_words
from hf_attnprobe.data.examples import (
    get_dataset_name,
)
from hf_attnprobe.faithfulness.passage_units import MAX_DELETED_UNITS
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.choices import describe_unknown_share
from hf_attnprobe.protocol import (
    ALL,
    AnswersFromPassage,
    AttentionModelBase,
    Site,
)
from hf_attnprobe.reports.detection_limits import notes_on_limits, spiked_rows
from hf_attnprobe.reports.report import Report, report_from, rows_told
from hf_attnprobe.reports.result import extras_to_json, to_json
from hf_attnprobe.reports.verdict import foreseen
from hf_attnprobe.statistics.rows import PREDICTION, STOPPING
from hf_attnprobe.storage.answers import AnswerCache
from hf_attnprobe.storage.folders import (
    alone_in,
    write_atomically,
    write_json,
)
from hf_attnprobe.storage.provenance import SUMMARY, versions
from hf_attnprobe.storage.rows import NO_SITE, finished_ids, rows_in


logger = logging.getLogger(__name__)
PAGE_FILE = "report.html"
"""The page of an audit, in its folder."""
FIRST_TOKEN = "the first token"


def run_audit(
    model: ModelLike,
    dataset: Any,
    tests: Asked | None,
    *,
    options: AuditOptions,
    output_dir: str | Path | None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    progress: bool,
    scores: Any = None,
) -> Report:
    """One audit from its texts to its report; as :func:`hf_attnprobe.audit` and ``judge``."""
    clock = Clock(progress and process_state().is_main_process, parse_time_limit(options))
    with AnswerCache() as told:
        job = prepare_audit(
            model,
            dataset,
            tests,
            options,
            tokenizer,
            scores,
            folder=output_dir,
            told=told,
            shown=clock.shown,
        )
        if output_dir is not None and "share" in job.extra_provenance:
            output_dir = get_share_folder(output_dir, job.extra_provenance["share"])
        return run_prepared_audit(job, output_dir, clock)


def run_prepared_audit(job: PreparedAudit, output_dir: str | Path | None, clock: Clock) -> Report:
    """The report of an audit that is prepared."""
    subject, choice, options, state = (
        job.subject,
        job.choice,
        job.options,
        process_state(),
    )
    limit = clock.limit
    read_record(Path(subject.name))  # what is wrong with it is said before anything runs
    with open_audit(job, output_dir, clock) as (sweep, besides):
        are_prompts = not sweep.adapter.lacks(AnswersFromPassage)
        expected = foreseen(len(sweep.texts), are_prompts)
        if expected:
            clock.bar.say(expected)
        facts = run_tests(sweep, choice, options, limit)
        verify_saved_rows(sweep, N_TEXTS_CHECKED_AFTER, BATCH_DEPENDENCE_CAUSE)
        if facts:
            besides = {**besides, STOPPING: facts}
        first_token = getattr(subject.tokenizer, "cls_token", None)
        which = _describe_model_attention(sweep, choice.groups, first_token)
        if which:
            besides = {**besides, "attention": which}
        provenance = build_provenance(job.identity, sweep, choice.left_out, besides)
        is_short = limit is not None or "share" in job.extra_provenance
        shown = limit_report_extras(options) if is_short else options
        report = build_report(job, sweep, provenance, shown)
        if output_dir is not None and state.is_main_process:
            clock.tests_end("writing the page")
            write_report(report, sweep.folder.parent)
        state.wait_for_everyone()
    return report


@contextlib.contextmanager
def open_audit(
    job: PreparedAudit, output_dir: str | Path | None, clock: Clock
) -> Iterator[tuple[AuditRunner, dict[str, Any]]]:
    """The work of an audit in a folder of its own, once what would stop it later was tried.

    Args:
        output_dir: None: a folder that goes away.

    Yields:
        The work, and what the report's provenance says beside settings.
    """
    with (
        _open_output_folder(output_dir, process_state()) as folder,
        clock,
        job.on_this_machine(),
    ):
        sweep = job.sweep(job.tokenized.texts, folder / "rows", clock)
        job.rehearse(sweep.texts)
        rounding = compare_with_float32(
            sweep.adapter, job.subject.make_float32_adapter, sweep.texts, sweep.pad_token_id
        )
        with alone_in(folder, "audit.json", identity=job.identity):
            verify_saved_rows(sweep, N_TEXTS_CHECKED_BEFORE, CHANGED_MODEL_CAUSE)
            yield sweep, job.extra_provenance | rounding


@contextlib.contextmanager
def _open_output_folder(output_dir: str | Path | None, state: PartialState) -> Iterator[Path]:
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


def build_report(
    job: PreparedAudit,
    sweep: AuditRunner,
    provenance: dict[str, Any],
    options: AuditOptions,
) -> Report:
    """The report of this run's texts and tests, by their rows."""
    subject, data = job.subject, job.data
    ids = tuple(sorted(text.example_id for text in sweep.texts))
    rows = rows_told(rows_in(sweep.folder), provenance, ids)
    sweep.clock.tests_end("summing up")
    return report_from(
        rows,
        model=subject.name,
        dataset=get_dataset_name(data.dataset, data.split),
        n=len(sweep.texts),
        seed=sweep.seed,
        example_ids=ids,
        provenance=provenance,
        examples=select_example_texts(subject, sweep, rows, job.examples, options),
        prune=compute_prune_curve(sweep, rows) if options.prune else None,
        notes=[
            *_list_notes(sweep, provenance, options.predicts),
            *list_training_overlap_notes(subject.name, provenance),
            *_list_detection_limits(job, len(sweep.texts)),
        ],
    )


def _list_detection_limits(job: PreparedAudit, n: int) -> list[str]:
    """What so many texts would have shown, where somebody measured it."""
    if job.options.limits is None:
        return []
    rows = spiked_rows(job.options.limits, job.identity)
    n_heads = max(1, len(job.choice.sites))
    return notes_on_limits(rows, n=n, n_heads=n_heads, seed=job.options.seed)


def _list_notes(sweep: AuditRunner, provenance: Mapping[str, Any], predicts: str) -> tuple[str, ...]:
    """What is to be seen beside the findings."""
    unknown = describe_unknown_share(provenance["unknown_tokens"])
    notes: list[str | None] = [
        unknown,
        _describe_single_logit(sweep.adapter, predicts),
        _describe_long_passages(sweep),
    ]
    if isinstance(sweep.adapter, TransformerAdapter):
        notes += sweep.adapter.stack_notes()
    return tuple(note for note in notes if note is not None)


def list_training_overlap_notes(model: str, provenance: Mapping[str, Any]) -> list[str]:
    """That the model learned these very texts, where the record of its training says so."""
    read = read_record(Path(model)).get("data") or {}
    return [
        f"Texts: these are the texts that the model {did}, so that it knows them; what is "
        "found here need not hold for new ones. Audit texts that it has not seen."
        for split, did in (
            ("train", "was trained on"),
            ("validation", "was chosen on"),
        )
        if read.get(split) == provenance["data_fingerprint"]
    ]


def _describe_long_passages(sweep: AuditRunner) -> str | None:
    """That not every unit of long passages was deleted; None where all were."""
    n_units = [len({*text.inputs.get("unit_ids", ())} - {-1}) for text in sweep.texts]
    n_long = sum(n > MAX_DELETED_UNITS for n in n_units)
    if not n_long or "sources" not in sweep.options:
        return None
    return (
        f"Long passages: of {n_long} of {len(n_units)} prompts with more than {MAX_DELETED_UNITS} units all were "
        f"knocked out, but only {MAX_DELETED_UNITS} were deleted, those with most attention or most lost by "
        "knockout; the others count as costing nothing."
    )


def _describe_single_logit(adapter: AttentionModelBase, predicts: str) -> str | None:
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


def write_report(report: Report, folder: Path) -> None:
    """Writes summary, Markdown and page; the first is what the others are made of."""
    summary = to_json(report) | extras_to_json(report)
    write_json(folder / SUMMARY, summary)
    files = {"report.md": report.to_markdown, PAGE_FILE: report.to_html}
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


def build_provenance(
    identity: Mapping[str, Any],
    sweep: AuditRunner,
    left_out: Mapping[str, str],
    besides: Mapping[str, Any],
) -> dict[str, Any]:
    """What was done: settings, tests, tests left out, versions and what else is known."""
    provenance = {
        **identity,
        "tests": list(sweep.options),
        "classes": list(sweep.adapter.label_names),
        **besides,
        "n_processes": process_state().num_processes,
        "versions": versions(),
    }
    if left_out:
        provenance["left_out"] = dict(left_out)
    if sweep.adapter.unit == "sentence":
        provenance["units"] = "sentences"
    if sweep.adapter.prediction.kind == "answer":
        provenance["units"] = f"{sweep.adapter.unit}s of the prompt"
    if sweep.adapter.segment is not None:
        provenance["attended"] = sweep.adapter.segment
    return provenance


def _describe_model_attention(sweep: AuditRunner, groups: Sequence[Site], first_token: str | None) -> str:
    """ "mean of 72 heads from [CLS]"; empty where heads are tested one by one alone.

    Args:
        sweep: whose first text a classifier reads once more.
        groups: of heads that are tested together.
        first_token: the name of the special token that texts begin with.
    """
    n_heads = len(sweep.adapter.sites())
    if n_heads == 1:
        return "the only head"
    whole = [site for site in groups if (site.layer, site.head) == (ALL, ALL)]
    if not whole:
        return ""
    if whole[0].query is not None:
        row = f"the token at place {whole[0].query}"
    elif not sweep.adapter.lacks(AnswersFromPassage):
        row = "the tokens that predict the answer"
    else:
        batch = collate(sweep.adapter, sweep.texts[:1], sweep.pad_token_id)
        row = sweep.adapter.describe_readout(sweep.adapter.observe(batch))
    if row == FIRST_TOKEN and first_token:
        row = first_token
    return f"mean of {n_heads} heads{f' from {row}' if row else ''}"


# --- what it would take: the seconds of a first round, extrapolated -----------

LONG_AUDIT_SECONDS = 1800.0
"""Seconds of an audit from which on shorter ways are named."""


@dataclass(frozen=True)
class AuditEstimate:
    """What is left of an audit, judged by its first round.

    Attributes:
        n_texts: texts of the audit.
        n_runs: one test at one head, or group of heads, on one text is a run.
        seconds: by test, by the wall clock, on this machine as busy as it is now.
        kept: the folder that has the rows of the first round; None: none.
    """

    n_texts: int
    n_runs: int
    seconds: dict[str, float]
    kept: str | None

    @property
    def total(self) -> float:
        """Seconds of all tests."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Everything by name; the seconds with their total."""
        return asdict(self) | {"total": self.total}

    def to_text(self) -> str:
        """Some lines for a terminal."""
        width = max(map(len, self.seconds))
        dearest = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        lines = [
            f"{in_words(self.total)} for {len(self.seconds)} tests on {self.n_texts:,} texts: "
            f"{self.n_runs:,} runs are left (one test at one head, or group of heads, on one text)",
            *(f"  {test:{width}}  {in_words(seconds)}" for test, seconds in dearest),
        ]
        if self.total >= LONG_AUDIT_SECONDS:
            of_heads = ""
            if self.n_runs > self.n_texts * len(self.seconds):
                of_heads = "--no-single-heads tests layers and all attention only; "
            lines.append(
                f"shorter: --time 10m reports what is known by then; {of_heads}"
                "leave the dearest test out with --tests"
            )
        kept = "nothing was kept"
        if self.kept is not None:
            kept = (
                f"what it ran is kept in {self.kept}: without --estimate the same command goes on"
            )
        lines.append(
            "measured on a few texts, at up to two heads and one group of heads for each test, at "
            "this machine's present load; loading, a model's own answers and the report are not "
            f"counted; {kept}"
        )
        return "\n".join(lines)


@public_function
def estimate_audit(
    model: ModelLike,
    dataset: Any,
    tests: Asked | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> AuditEstimate:
    """Estimates what :func:`audit` with these arguments takes.

    It begins the audit: it runs each test at a few sites on a few texts. These rows are kept where
    there is a folder, but for a language model, whose rows depend on the other prompts too. What
    the folder holds already is not counted.

    Args:
        model, dataset, tests, options, output_dir, tokenizer: those of :func:`audit`.

    Raises:
        AttnProbeError: whatever would stop the audit before its first rows.
    """
    clock = Clock()
    job = prepare_audit(
        model,
        dataset,
        tests,
        options,
        tokenizer,
        is_first_round=True,
    )
    is_classifier = job.subject.adapter.lacks(AnswersFromPassage) is not None
    is_kept = output_dir is not None and is_classifier
    with open_audit(job, output_dir if is_kept else None, clock) as (sweep, _):
        choice = job.choice
        heads = choice.heads[: options.screen]
        where = list_sites_by_test([*sweep.options], sweep.adapter, heads, choice.groups)
        warm_up(sweep, {**where, PREDICTION: [NO_SITE]})
        held = finished_ids(sweep.folder)
        tokens = sum(text.n_tokens for text in sweep.texts) / len(sweep.texts)
        seconds, n_runs = dict.fromkeys(where, 0.0), 0
        for test, sites in where.items():
            for k, site in enumerate(sites):
                n_left = job.n_texts - len(held.get((test, site.layer, site.head), ()))
                n_runs += n_left
                seconds[test] += clock.expects([Step(test, get_cost_class(k, site), n_left * tokens)])
        return AuditEstimate(job.n_texts, n_runs, seconds, str(output_dir) if is_kept else None)
