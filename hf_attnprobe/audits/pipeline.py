"""Runs one audit from its texts to its report, or estimates how long this would take.

:func:`run_requested_audit` implements :func:`hf_attnprobe.audit`. It prepares the audit, runs the
tests in a locked output folder, and builds and writes the report.
"""

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.transformer.layout import get_image_shape
from hf_attnprobe.audits.audited_model import ModelLike, explains_tokens, get_number_format
from hf_attnprobe.audits.cost_model import AuditProgress, Step, get_cost_class
from hf_attnprobe.audits.example_selection import select_example_texts
from hf_attnprobe.audits.options import (
    AuditOptions,
    get_share_folder,
    limit_report_extras,
    parse_share,
    parse_time_limit,
)
from hf_attnprobe.audits.runner import AuditRunner
from hf_attnprobe.audits.scheduler import run_tests
from hf_attnprobe.audits.self_checks import (
    BATCH_DEPENDENCE_CAUSE,
    CHANGED_MODEL_CAUSE,
    N_TEXTS_CHECKED_AT_END,
    N_TEXTS_CHECKED_ON_RESUME,
    compare_with_float32,
)
from hf_attnprobe.audits.setup import AuditRequest, PreparedAudit, prepare_audit
from hf_attnprobe.audits.site_selection import list_sites_by_test
from hf_attnprobe.checkpoints.records import read_record
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError, UndefinedLogitsError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.options import TestSelection, public_function
from hf_attnprobe.core.progress import format_duration
from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.faithfulness.passage_units import MAX_DELETED_UNITS
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.functional.grouped_effects import SINGLE_SHARE
from hf_attnprobe.inference.answer_cache import discard_answers_of_refused_run
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.choices import describe_unknown_share
from hf_attnprobe.inference.encoding import count_distinct_texts
from hf_attnprobe.inference.labels import list_number_matches
from hf_attnprobe.protocol import ALL, AnswersFromPassage, AttentionModelBase, Site
from hf_attnprobe.reports.alternatives import choose_displayed_ranking
from hf_attnprobe.reports.detection_limits import describe_detection_limits, read_planted_rows
from hf_attnprobe.reports.report import Report, assemble_report, select_reported_rows
from hf_attnprobe.reports.result import convert_extras_to_json, convert_report_to_json
from hf_attnprobe.reports.verdict import warn_about_precision
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.rows import PREDICTION_TEST, STOPPING_KEY, Rows
from hf_attnprobe.statistics.summary import compute_accuracy, select_predictions
from hf_attnprobe.statistics.verdicts import ANSWER_SET, CLASSIFIER_SET, apply_thresholds
from hf_attnprobe.statistics.wording import TOKEN_UNITS, form_plural
from hf_attnprobe.storage.folders import (
    mark_folder,
    refuse_outside_link,
    reserve_folder,
    write_atomically,
    write_json,
)
from hf_attnprobe.storage.provenance import (
    AUDIT_FILE,
    DISTINCT_TEXTS_KEY,
    EARLIER_RUNS_KEY,
    SUMMARY_FILE,
    UNSUPPORTED_TESTS_KEY,
    get_versions,
)
from hf_attnprobe.storage.rows import NO_SITE, load_rows, read_finished_ids
from hf_attnprobe.storage.run_log import RUNS_FILE, read_run_log


logger = logging.getLogger(__name__)
T = TypeVar("T")

PAGE_FILE = "report.html"
"""Name of the HTML page in an audit's output folder."""
FIRST_TOKEN = "the first token"
"""Description of the token from which a model predicts, if this is the first token.

Reports display the name of the token instead, such as "[CLS]", if it is known.
"""
MAX_LISTED_MATCHES = 4
"""Maximum number of labels that the question about their order lists with the model's classes."""
LONG_AUDIT_SECONDS = 1800.0
"""Duration, in seconds, of a long audit.

If an audit is estimated to take at least this long, ``--estimate`` also explains how to shorten it.
"""


def run_requested_audit(
    request: AuditRequest,
    output_dir: str | Path | None,
    *,
    show_progress: bool,
    start_time: float | None = None,
) -> Report:
    """Run an audit and return its report.

    Args:
        request: The audit's arguments.
        output_dir: Output folder; None saves nothing. If the option ``share`` selects a part of the
            texts, the results are saved in a folder inside it.
        show_progress: Whether to display a progress bar.
        start_time: Time from which a time limit counts, by ``time.perf_counter``; None for now.

    Returns:
        The report.
    """
    parse_time_limit(request.options)
    share = parse_share(request.options)
    if output_dir is not None and share is not None:
        share_folder = get_share_folder(output_dir, share)
        refuse_outside_link(share_folder, Path(output_dir))
        output_dir = share_folder
    _, report = prepare_and_run(
        request, output_dir, show_progress=show_progress, start_time=start_time
    )
    return report


def prepare_and_run(
    request: AuditRequest,
    output_dir: str | Path | None,
    *,
    reference_examples: Any = None,
    show_progress: bool,
    start_time: float | None = None,
) -> tuple[PreparedAudit, Report]:
    """Prepare an audit and run it.

    Args:
        request: The audit's arguments.
        output_dir: Output folder; None saves nothing.
        reference_examples: Prompts with another model's answers, which are explained instead of
            this model's own answers; None in an ordinary audit.
        show_progress: Whether to display a progress bar.
        start_time: Time from which a time limit counts, by ``time.perf_counter``; None for now.

    Returns:
        The prepared audit and its report.
    """
    is_displayed = show_progress and get_process_state().is_main_process
    seconds_before = 0.0 if start_time is None else time.perf_counter() - start_time
    progress = AuditProgress(
        is_displayed, parse_time_limit(request.options), seconds_before=seconds_before
    )

    def run(leaves_out_undefined: bool) -> tuple[PreparedAudit, Report]:
        audit = prepare_audit(
            request,
            folder=output_dir,
            reference_examples=reference_examples,
            show_progress=is_displayed,
            leaves_out_undefined=leaves_out_undefined,
        )
        return audit, run_prepared_audit(audit, output_dir, progress)

    with reserve_output_folder(output_dir), discard_answers_of_refused_run(output_dir):
        return _retry_without_undefined_prompts(run)


def _retry_without_undefined_prompts(run: Callable[[bool], T]) -> T:
    """Run an audit, and run it again if the logits for some prompts are NaN or infinite.

    Such prompts are rare, so the first run does not look for them. The second run leaves them out,
    and continues from the saved rows and answers.

    Args:
        run: Function that prepares and runs an audit. Its argument is whether it leaves out prompts
            with undefined logits.

    Returns:
        The result of the function.
    """
    try:
        return run(False)
    except UndefinedLogitsError:
        # Other processes have met no such prompt, and do not run again.
        if get_process_state().num_processes > 1:
            raise
        return run(True)


def run_prepared_audit(
    audit: PreparedAudit,
    output_dir: str | Path | None,
    progress: AuditProgress,
    *,
    describes_precision: bool = True,
) -> Report:
    """Run the tests of a prepared audit, and build and write its report.

    Args:
        audit: The audit.
        output_dir: Output folder; None saves nothing.
        progress: Time limit and progress bar.
        describes_precision: Whether to print a line above the progress bar if the texts are too few
            for an answer. An audit whose answers nobody reads needs no such line.

    Returns:
        The report.
    """
    audited_model, selection, options = audit.audited_model, audit.selection, audit.options
    time_limit, state = progress.time_limit, get_process_state()
    # The report needs the training record; report a damaged record before any test runs.
    read_record(Path(audited_model.name))
    with open_audit(audit, output_dir, progress) as (runner, extra_provenance):
        has_prompts = not runner.adapter.lacks(AnswersFromPassage)
        expected_precision = warn_about_precision(count_distinct_texts(runner.texts), has_prompts)
        if expected_precision and describes_precision:
            progress.bar.print_line(expected_precision)
        run_log = read_run_log(
            runner.folder.parent,
            extra_provenance["asked_for"],
            lambda: progress.elapsed_seconds,
        )
        if state.is_main_process:
            run_log.start()
        stopping_record = run_tests(runner, selection, options)
        runner.verify_saved_rows(N_TEXTS_CHECKED_AT_END, BATCH_DEPENDENCE_CAUSE)
        if stopping_record:
            stopping_record["seconds"] = round(run_log.seconds, 1)
            extra_provenance = {**extra_provenance, STOPPING_KEY: stopping_record}
        if run_log.earlier_settings:
            extra_provenance = {**extra_provenance, EARLIER_RUNS_KEY: run_log.earlier_settings}
        first_token = getattr(audited_model.tokenizer, "cls_token", None)
        attention = _describe_model_attention(runner, selection.groups, first_token)
        if attention:
            extra_provenance = {**extra_provenance, "attention": attention}
        provenance = build_provenance(audit.identity, runner, selection.left_out, extra_provenance)
        is_partial = time_limit is not None or "share" in audit.extra_provenance
        report_options = limit_report_extras(options) if is_partial else options
        report = build_report(audit, runner, provenance, report_options)
        if output_dir is not None and state.is_main_process:
            progress.start_report("writing the page")
            write_report(report, runner.folder.parent)
        if state.is_main_process:
            run_log.finish()
        state.wait_for_everyone()
    return report


@contextlib.contextmanager
def open_audit(
    audit: PreparedAudit, output_dir: str | Path | None, progress: AuditProgress
) -> Iterator[tuple[AuditRunner, dict[str, Any]]]:
    """Run the pre-flight checks, mark the output folder with the audit's identity, yield the runner.

    Args:
        audit: The prepared audit.
        output_dir: Output folder, which this run has locked; None uses a temporary folder.
        progress: Progress bar for display while the context is open.

    Yields:
        The runner, and the report's provenance entries in addition to the identity.

    Raises:
        AttnProbeError: If a check fails, or if the folder belongs to another audit.
    """
    with (
        _open_output_folder(output_dir, get_process_state()) as folder,
        progress,
        audit.adapt_to_machine(),
    ):
        runner = audit.make_runner(audit.tokenized.texts, folder / "rows", progress)
        audit.run_preflight_checks(runner.texts)
        rounding = compare_with_float32(
            runner.adapter,
            audit.audited_model.make_float32_adapter,
            runner.texts,
            runner.pad_token_id,
        )
        with mark_folder(folder / AUDIT_FILE, audit.identity):
            runner.verify_saved_rows(N_TEXTS_CHECKED_ON_RESUME, CHANGED_MODEL_CAUSE)
            yield runner, audit.extra_provenance | rounding


@contextlib.contextmanager
def reserve_output_folder(output_dir: str | Path | None) -> Iterator[None]:
    """Check and lock the output folder, if there is one, inside a ``with`` block.

    The lock includes the preparation of the audit, because a language model's answers are generated
    and saved there.
    """
    if output_dir is None:
        yield
        return
    # A run that ended before its first rows leaves only the log of its time.
    with reserve_folder(output_dir, AUDIT_FILE, RUNS_FILE):
        yield


@contextlib.contextmanager
def _open_output_folder(output_dir: str | Path | None, state: PartialState) -> Iterator[Path]:
    """Yield the output folder, or a temporary folder that is deleted at the end."""
    if output_dir is not None:
        yield Path(output_dir)
        return
    if state.num_processes > 1:
        raise AttnProbeError(
            "an audit with several processes needs an output folder. Set --output-dir."
        )
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


# --- The report ----------------------------------------------------------------------------------


def build_report(
    audit: PreparedAudit,
    runner: AuditRunner,
    provenance: dict[str, Any],
    options: AuditOptions,
) -> Report:
    """Build an audit's report from its saved rows.

    Args:
        audit: The prepared audit.
        runner: The test runner, which has finished.
        provenance: The report's provenance.
        options: Audit options, which decide whether pairs of heads and examples are computed.

    Returns:
        The report.
    """
    audited_model, data = audit.audited_model, audit.data
    example_ids = tuple(sorted(text.example_id for text in runner.texts))
    rows = select_reported_rows(load_rows(runner.folder), provenance, example_ids)
    runner.progress.start_report("summing up")
    question = ask_about_label_order(audit, rows)
    if question is not None:
        logger.warning("%s", question)
    report = assemble_report(
        rows,
        model=audited_model.name,
        dataset=get_dataset_name(data.dataset, data.split),
        n=len(runner.texts),
        seed=runner.seed,
        example_ids=example_ids,
        provenance=provenance,
        head_pairs=runner.compute_head_pairs(rows) if options.prune else None,
        notes=[
            *([] if question is None else [f"Labels: {question}"]),
            *_list_notes(runner, provenance, options.predicts),
            *list_training_overlap_notes(audited_model.name, provenance),
            *_list_detection_limits(audit, count_distinct_texts(runner.texts)),
        ],
    )
    examples = select_example_texts(
        audited_model,
        runner,
        rows,
        audit.examples,
        options,
        alternative=choose_displayed_ranking(report),
    )
    return dataclasses.replace(report, examples=examples)


def ask_about_label_order(audit: PreparedAudit, rows: Rows) -> str | None:
    """Ask whether the labels have the right order, if they were matched by number and are mostly wrong.

    Args:
        audit: The prepared audit.
        rows: The audit's rows, which contain the predictions.

    Returns:
        Two sentences; None if a label has the name of a class, if there are too few labelled texts,
        or if the model is right at least as often as by chance.
    """
    prediction = audit.audited_model.adapter.prediction
    matches = list_number_matches(prediction, audit.examples)
    predictions = select_predictions(rows).to_frame()
    if len(matches) < 2 or not len(predictions):
        return None
    accuracy = compute_accuracy(predictions).dropna()
    if len(accuracy) < MIN_DISPLAYED_TEXTS:
        return None
    # Each label of a set applies or does not apply.
    chance = 0.5 if prediction.kind == "labels" else 1 / len(prediction.outcomes)
    if accuracy.mean() >= chance:
        return None
    listed_matches = [f"{name!r} as {model_name!r}" for name, model_name in matches.items()]
    ellipsis = ", …" if len(matches) > MAX_LISTED_MATCHES else ""
    return (
        f"the labels were matched to the model's classes by number "
        f"({', '.join(listed_matches[:MAX_LISTED_MATCHES])}{ellipsis}), and only "
        f"{accuracy.mean():.0%} are predicted, which is less than chance ({chance:.0%}). Is this order "
        "right? If not, set the names with --labels DATA=MODEL."
    )


def _list_notes(
    runner: AuditRunner, provenance: Mapping[str, Any], predicts: str
) -> tuple[str, ...]:
    """List the report's notes about unusual texts and models."""
    notes: list[str | None] = [
        describe_unknown_share(provenance["unknown_tokens"]),
        _describe_single_logit(runner.adapter, predicts),
        _describe_long_passages(runner),
        _describe_grouping(runner),
    ]
    if isinstance(runner.adapter, TransformerAdapter):
        notes += [
            _describe_image_size(runner.adapter),
            _describe_regions(runner.adapter),
            *runner.adapter.describe_unusual_layers(),
        ]
    return tuple(note for note in notes if note is not None)


def _describe_grouping(runner: AuditRunner) -> str | None:
    """Return the note that the instances of large bags were edited in groups."""
    limit = runner.adapter.max_unit_edits
    if limit is None:
        return None
    n_grouped = sum(text.n_content > limit for text in runner.texts)
    if not n_grouped:
        return None
    n_single = int(SINGLE_SHARE * limit)
    unit = form_plural(runner.adapter.unit)
    return (
        f"{n_grouped} of {len(runner.texts)} bags have more than {limit} {unit}. This model needs a "
        f"pass for every edited bag, so in these bags only the {n_single} {unit} with most attention "
        "were left out and exchanged one at a time. The others were edited in groups with similar "
        "attention, and the groups with the largest effects were divided further. Each member of a "
        "group gets an equal share of the group's effect."
    )


def _describe_image_size(adapter: TransformerAdapter) -> str | None:
    """Return a note if the images have another size than the one in the model's configuration."""
    if not adapter.reads_images:
        return None
    configured_size, size = (
        " × ".join(map(str, get_image_shape(model.config)[1:]))
        for model in (adapter.user_model, adapter.model)
    )
    if size == configured_size:
        return None
    return (
        f"Image size: the images have {size} pixels (height × width), but the model's configuration "
        f"has {configured_size}, so the model interpolates its position embeddings."
    )


def _describe_regions(adapter: TransformerAdapter) -> str | None:
    """Return a note on the size of regions, if they are the units of the images."""
    if adapter.patches is None or adapter.unit != "region":
        return None
    grid, size = adapter.patches.grid, adapter.patches.region_size
    return (
        f"Regions: each image has {grid.n_rows} × {grid.n_columns} patches. They form "
        f"{len(adapter.patches.regions)} regions of at most {size} × {size} patches, which are left "
        "out and exchanged as a whole. Attention to a region is the sum over its patches."
    )


def list_training_overlap_notes(model: str, provenance: Mapping[str, Any]) -> list[str]:
    """List warnings if the model was trained, or selected, on the audited texts.

    Args:
        model: Model name; a folder may hold a record of its training.
        provenance: The report's record of its model, data and options.

    Returns:
        Warnings for the report; empty if there is no record of the training, or if the model was
        trained and selected on other texts.
    """
    data_fingerprints = read_record(Path(model)).get("data") or {}
    notes = []
    for split, use in (("train", "trained"), ("validation", "selected")):
        if data_fingerprints.get(split) == provenance["data_fingerprint"]:
            notes.append(
                f"Texts: the model was {use} on these very texts, so the results may be different "
                "for new texts. Audit texts that the model has not seen."
            )
    return notes


def _list_detection_limits(audit: PreparedAudit, n_distinct: int) -> list[str]:
    """List sentences for the report about the smallest effects that the audit would detect.

    Such a detection limit is measured beforehand with artificial effects of known size. The list is
    empty unless the option ``limits`` names a folder with these measurements.

    Args:
        audit: The audit.
        n_distinct: Number of different texts.
    """
    if audit.options.limits is None:
        return []
    rows = read_planted_rows(audit.options.limits, audit.identity)
    n_heads = max(1, len(audit.selection.sites))
    return describe_detection_limits(
        rows,
        n=n_distinct,
        n_heads=n_heads,
        is_all_attention=n_heads == 1 and not audit.selection.groups,
        rules=apply_thresholds(audit.options.thresholds),
        seed=audit.options.seed,
    )


def _describe_long_passages(runner: AuditRunner) -> str | None:
    """Return a note if some passages were too long to delete all their units, else None.

    A unit is a sentence or another part of a passage. A unit is knocked out if the model cannot
    attend to it, and deleted if it is removed from the prompt.
    """
    n_long = 0
    for text in runner.texts:
        # Tokens outside all units have the unit id −1.
        unit_ids = {*text.inputs.get("unit_ids", ())} - {-1}
        n_long += len(unit_ids) > MAX_DELETED_UNITS
    if not n_long or "sources" not in runner.options:
        return None
    return (
        f"Long passages: {n_long} of {len(runner.texts)} prompts have more than "
        f"{MAX_DELETED_UNITS} units. All their units were knocked out, but only "
        f"{MAX_DELETED_UNITS} were deleted: the units with the most attention or the largest "
        "effect of a knockout. The deletion of any other unit counts as having no effect."
    )


def _describe_single_logit(adapter: AttentionModelBase, predicts: str) -> str | None:
    """Return a note if a model's single output was assumed to be a probability, else None."""
    config = getattr(adapter.model, "config", None)
    has_single_logit = getattr(config, "num_labels", None) == 1
    is_meaning_known = getattr(config, "problem_type", None) is not None or predicts != "auto"
    if not has_single_logit or is_meaning_known or adapter.prediction.kind != "classes":
        return None
    return (
        "Prediction: this model has a single logit, and its configuration (problem_type) does not "
        "state its meaning. It was assumed to be the log-odds of a probability. If the model "
        "predicts a number, use --predicts number."
    )


def write_report(report: Report, folder: Path) -> None:
    """Write an audit's summary, Markdown report and HTML page.

    If the Markdown or HTML file cannot be written, only a warning is logged, because both can be
    made from the summary.

    Args:
        report: The report.
        folder: The output folder.
    """
    summary = convert_report_to_json(report) | convert_extras_to_json(report)
    write_json(folder / SUMMARY_FILE, summary)
    renderers = {"report.md": report.to_markdown, PAGE_FILE: report.to_html}
    for file_name, render in renderers.items():
        try:
            write_atomically(folder / file_name, render())
        except OSError as error:
            logger.warning(
                "cannot write %s (%s). Run attnprobe report %s --output FILE to write it elsewhere.",
                folder / file_name,
                error.strerror,
                folder,
            )


def build_provenance(
    identity: Mapping[str, Any],
    runner: AuditRunner,
    left_out: Mapping[str, str],
    extra_provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """Build a report's provenance: settings, tests and versions.

    Args:
        identity: Record that identifies the audit's rows.
        runner: The test runner.
        left_out: Reasons for tests that did not run, by test name.
        extra_provenance: Further entries.

    Returns:
        Plain data.
    """
    adapter = runner.adapter
    provenance = {
        **identity,
        "tests": list(runner.options),
        "classes": list(adapter.label_names),
        **extra_provenance,
        "n_processes": get_process_state().num_processes,
        "versions": get_versions(),
    }
    n_distinct = count_distinct_texts(runner.texts)
    if n_distinct < len(runner.texts):
        provenance[DISTINCT_TEXTS_KEY] = n_distinct
    if left_out:
        provenance["left_out"] = dict(left_out)
    unsupported_tests = list_unsupported_tests(adapter)
    if unsupported_tests:
        provenance[UNSUPPORTED_TESTS_KEY] = unsupported_tests
    if explains_tokens(adapter):
        provenance["units"] = TOKEN_UNITS
    if adapter.unit == "sentence":
        provenance["units"] = "sentences"
    if adapter.instance_column is not None or adapter.reads_images:
        provenance["instance"] = adapter.unit
    if adapter.reads_images:
        provenance["input"] = "image"
    if adapter.prediction.kind == "answer":
        provenance["units"] = f"{form_plural(adapter.unit)} of the prompt"
    if adapter.segment is not None:
        provenance["attended"] = adapter.segment
    return provenance


def list_unsupported_tests(adapter: AttentionModelBase) -> dict[str, str]:
    """List the tests that a verdict usually requires, but that the model cannot run.

    Args:
        adapter: The audited model.

    Returns:
        Reasons by test name, such as ``{"erasure": "the model predicts a number"}``.
    """
    sites = adapter.sites()
    site = sites[0] if len(sites) == 1 else Site(ALL, ALL)
    is_classifier = adapter.lacks(AnswersFromPassage) is not None
    question_set = CLASSIFIER_SET if is_classifier else ANSWER_SET
    reasons = {}
    for test in question_set.required_tests:
        reason = load_tests()[test].lacks(adapter, site)
        if reason is not None:
            reasons[test] = reason
    return reasons


def _describe_model_attention(
    runner: AuditRunner, groups: Sequence[Site], first_token: str | None
) -> str:
    """Describe the model's overall attention, such as "weighted mean of 72 heads from [CLS]".

    Args:
        runner: The test runner. A classifier runs once more on the first text.
        groups: Head groups that are tested as a whole.
        first_token: Special token at the start of texts, such as "[CLS]"; or None.

    Returns:
        The description; empty if only single heads are tested.
    """
    adapter = runner.adapter
    n_heads = len(adapter.sites())
    if n_heads == 1:
        return "the only head"
    model_groups = [site for site in groups if (site.layer, site.head) == (ALL, ALL)]
    if not model_groups:
        return ""
    query = model_groups[0].query
    if query is not None:
        source = f"the token at position {query}"
    elif not adapter.lacks(AnswersFromPassage):
        source = "the tokens that predict the answer"
    else:
        batch = collate(adapter, runner.texts[:1], runner.pad_token_id)
        source = adapter.describe_readout(adapter.observe(batch))
    if source == FIRST_TOKEN and first_token:
        source = first_token
    suffix = f" from {source}" if source else ""
    mean = "weighted mean" if adapter.weighs_heads else "mean"
    return f"{mean} of {n_heads} heads{suffix}"


# --- Estimated duration --------------------------------------------------------------------


@dataclass(frozen=True)
class AuditEstimate:
    """Estimated remaining duration of an audit, from a warm-up on a few texts.

    Attributes:
        n_texts: Number of texts in the audit.
        n_runs: Number of remaining runs; one test at one site on one text is one run.
        seconds: Estimated seconds on this machine under its present load, by test name.
        saved_folder: Folder with the warm-up's rows; None if they were not saved.
        dtype: Number format in which the model computes, such as "bfloat16".
        input_name: Name of one input: "text", "bag" or "image".
    """

    n_texts: int
    n_runs: int
    seconds: dict[str, float]
    saved_folder: str | None
    dtype: str
    input_name: str = "text"

    @property
    def total(self) -> float:
        """Estimated seconds for all tests together."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Convert the estimate to a dictionary that can be saved as JSON.

        Two keys differ from the names of the attributes: "kept" is the folder in which the results
        so far are kept, and "total" is the estimated number of seconds for all tests together.
        """
        return {
            "n_texts": self.n_texts,
            "n_runs": self.n_runs,
            "seconds": dict(self.seconds),
            "kept": self.saved_folder,
            "total": self.total,
            "dtype": self.dtype,
        }

    def to_text(self) -> str:
        """Format the estimate for a terminal, with the most expensive test first."""
        width = max(map(len, self.seconds))
        sorted_seconds = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        lines = [
            f"{format_duration(self.total)} for {format_count(len(self.seconds), 'test')} on "
            f"{format_count(self.n_texts, self.input_name)} in {self.dtype}: "
            f"{format_count(self.n_runs, 'run')} left (a run is one test at one head or group of heads "
            f"on one {self.input_name})",
            *(f"  {test:{width}}  {format_duration(seconds)}" for test, seconds in sorted_seconds),
        ]
        if self.total >= LONG_AUDIT_SECONDS:
            advice = ["--time 10m (report the results after ten minutes)"]
            has_several_sites = self.n_runs > self.n_texts * len(self.seconds)
            if has_several_sites:
                advice.append("--no-single-heads (test only layers and the mean over all heads)")
            advice.append("--tests (leave out the most expensive test)")
            lines.append(f"To shorten the audit, use one of these options: {', '.join(advice)}.")
        if self.saved_folder is None:
            saved = "The results were not saved."
        else:
            saved = (
                f"The results are saved in {self.saved_folder}. The same command without "
                "--estimate continues from them."
            )
        lines.append(
            f"The tests ran on a few {self.input_name}s, each at up to two heads and one group of heads. The time "
            "for loading, for generated answers and for the report is not included. The estimate "
            f"assumes the present load of this machine. {saved}"
        )
        return "\n".join(lines)


@public_function
def estimate_audit(
    model: ModelLike,
    dataset: Any,
    tests: TestSelection | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> AuditEstimate:
    """Estimate how long :func:`audit` would take with these arguments.

    Every test runs at a few sites on a few texts. With an output folder, their rows are saved, so
    that the audit can continue from them. Work that is already finished in the folder is not
    counted. A language model's rows are not saved, because they depend on the audit's other prompts.

    Args:
        model: The model, as :func:`audit` accepts it.
        dataset: The data set, as :func:`audit` accepts it.
        tests: Test names or test options; None for all tests that suit the model and the data.
        options: Audit options.
        output_dir: The audit's output folder; None saves nothing.
        tokenizer: Tokenizer for a model that is passed as an object.

    Returns:
        The estimate.

    Raises:
        AttnProbeError: If the audit cannot start.

    Example::

        estimate = estimate_audit("minilm-sst", "sst", ["permutation"])
        print(estimate.to_text())
    """
    progress = AuditProgress()
    request = AuditRequest(model, dataset, tests, options, tokenizer)

    def estimate(leaves_out_undefined: bool) -> AuditEstimate:
        audit = prepare_audit(request, is_warm_up=True, leaves_out_undefined=leaves_out_undefined)
        return estimate_prepared_audit(audit, output_dir, progress)

    return _retry_without_undefined_prompts(estimate)


def estimate_prepared_audit(
    audit: PreparedAudit, output_dir: str | Path | None, progress: AuditProgress
) -> AuditEstimate:
    """Run the tests on a few texts, and estimate the duration of the whole audit.

    Args:
        audit: The audit, prepared for a warm-up.
        output_dir: The audit's output folder; None saves nothing.
        progress: Measures the cost of each test.
    """
    is_classifier = audit.audited_model.adapter.lacks(AnswersFromPassage) is not None
    saved_folder = output_dir if is_classifier else None
    with (
        reserve_output_folder(saved_folder),
        open_audit(audit, saved_folder, progress) as (runner, _),
    ):
        heads = audit.selection.heads[: audit.options.screen]
        sites_by_test = list_sites_by_test(
            list(runner.options), runner.adapter, heads, audit.selection.groups
        )
        runner.warm_up({**sites_by_test, PREDICTION_TEST: [NO_SITE]})
        finished = read_finished_ids(runner.folder)
        mean_tokens = sum(text.n_tokens for text in runner.texts) / len(runner.texts)
        seconds, n_runs = dict.fromkeys(sites_by_test, 0.0), 0
        for test, sites in sites_by_test.items():
            for index, site in enumerate(sites):
                n_pending = audit.n_texts - len(finished.get((test, site.layer, site.head), ()))
                n_runs += n_pending
                step = Step(test, get_cost_class(index, site), n_pending * mean_tokens)
                seconds[test] += progress.costs.estimate_seconds([step])
        adapter = runner.adapter
        input_name = "text"
        if adapter.instance_column is not None:
            input_name = "bag"
        elif adapter.reads_images:
            input_name = "image"
        return AuditEstimate(
            audit.n_texts,
            n_runs,
            seconds,
            None if saved_folder is None else str(saved_folder),
            get_number_format(adapter),
            input_name,
        )
