"""Measurement of the smallest planted effect that the tests detect.

:mod:`hf_attnprobe.planted_effects.planting` modifies copies of a model so that one head responds to
a planted token. Here these copies are audited at the modified head, on texts that contain the
token, for doses from 0 upwards. At dose 0 the token is present but has no effect.

The size of an effect is measured relative to dose 0, as a mean over the texts. It is the change in
the last class's (or the answer's) probability, and the change in its log-odds.
:mod:`hf_attnprobe.statistics.detection` computes the smallest effect for which the rule that an
audit uses answers yes.
"""

import hashlib
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from hf_attnprobe.audits.audited_model import load_audited_model
from hf_attnprobe.audits.identity import compute_fingerprints, get_user_model
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.runner import compute_rows
from hf_attnprobe.audits.setup import AuditRequest, PreparedAudit, prepare_audit
from hf_attnprobe.audits.site_selection import parse_head_sets
from hf_attnprobe.audits.split_samples import set_reference
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.serialization import convert_fields
from hf_attnprobe.data.examples import get_dataset_name
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.documents.blocks import Cell as Entry
from hf_attnprobe.documents.blocks import (
    Code,
    DefinitionList,
    Document,
    FormattedNumber,
    NumericText,
    Section,
    Table,
)
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.passage_units import compute_log_prob
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.inference.batching import iterate_batches, sort_by_length
from hf_attnprobe.inference.encoding import InputReader, Text, select_distinct_texts
from hf_attnprobe.planted_effects.options import DetectionLimitOptions
from hf_attnprobe.planted_effects.planting import (
    CannotPlantEffectError,
    PlantedEffect,
    find_unused_token,
    fit_planted_effect,
    insert_token,
    make_modified_copy,
)
from hf_attnprobe.protocol import (
    AnswersFromPassage,
    AttentionModelBase,
    Batch,
    Observation,
    Site,
)
from hf_attnprobe.reports.detection_limits import (
    DETECTION_LIMITS_FILE,
    ROWS_FILE,
    build_detection_rule,
)
from hf_attnprobe.statistics.calibration_table import format_share
from hf_attnprobe.statistics.detection import (
    LOG_PROB_STATISTIC,
    N_SIMULATED_AUDITS,
    DetectionLimit,
    compute_detection_rate,
    compute_dose_effects,
    draw_text_counts,
    estimate_detection_limit,
    interpolate_effect,
    pivot_by_dose,
)
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.folders import mark_folder, reserve_folder, write_atomically, write_json
from hf_attnprobe.storage.provenance import get_versions
from hf_attnprobe.storage.rows import NO_SITE, build_rows, collect_rows


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_attnprobe.audits.audited_model import ModelLike


logger = logging.getLogger(__name__)

SETTINGS_FILE = "detection-limit.json"
"""Name of the file with the settings of a measurement, which marks its output folder."""
GRADED_STATISTICS = {
    "path_share": "uniform_attention",
    "standard_tvd": "permutation",
    "zero_tvd": "head_ablation",
    "mean_tvd": "head_ablation",
    "resample_tvd": "head_ablation",
    "uniform_tvd": "uniform_attention",
    "largest_knockout_tvd@renormalised": "knockout",
}
"""Tests that measure an edit of the head, by statistic.

In an audit, the path share of a head decides whether its faithfulness counts. For language models, this
is the first output change. All output changes are compared with the threshold of the rule ``effect``.
"""

N_FITTING_TEXTS = 48
"""Number of texts that are used to fit a planted effect."""
BATCH_SIZE = 16
"""Number of texts in a batch, unless the model requires smaller batches."""
TEST_OPTIONS = {"permutation": Permutation(n_permutations=20)}
"""Maps faithfulness tests to their options. All other tests run with their default options."""
TABLE_NAMES = ("limits", "planted", "effects", "responses")
"""Fields of :class:`DetectionLimitReport` that are tables."""
Record = dict[str, Entry]
"""A table row: cells by column name."""


# --- The report ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DetectionLimitReport(DocumentedResult):
    """Report on the effects that the tests detect in a model. ``print(report)`` displays it.

    Attributes:
        model: Model name.
        fingerprints: Fingerprints of the model's weights, configuration and tokenizer, as in an
            audit.
        dataset: Data set name.
        n: Number of different texts.
        n_texts: Number of texts. Copies of a text count once, so only one of them is measured.
        seed: Seed for the token, its positions and the choice of heads.
        limits: Detection limits by head and statistic, for ``n / 2``, ``n`` and ``2 * n`` texts.
        planted: Diagnostics for each head with a planted effect.
        effects: Changes in probability and log-odds, by head and dose.
        responses: Means of all statistics, by head and dose.
        without: Reasons why no effect could be planted, by head.
        versions: Versions of the packages that computed the numbers.
        seconds: Processor time in seconds.
        rows: One value per head, dose, statistic and text.
    """

    model: str
    fingerprints: dict[str, str]
    dataset: str
    n: int
    n_texts: int
    seed: int
    limits: list[Record]
    planted: list[Record]
    effects: list[Record]
    responses: list[Record]
    without: dict[str, str]
    versions: dict[str, str]
    seconds: float
    rows: pd.DataFrame

    def build_document(self) -> Document:
        """Return the report as a document with sections and tables.

        The model's weights were changed so that a head has a known effect on the output (a planted
        effect of a given dose). The tables state which effects the tests detect.
        """
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        n_texts = format_count(self.n_texts, "text")
        if self.n < self.n_texts:
            n_texts += f" ({self.n} different)"
        provenance = (
            f"{self.model} was measured on {n_texts} of {self.dataset} with seed {self.seed}, "
            f"in {self.seconds:.0f} s of processor time. Versions: {versions}."
        )
        planted_tables = [_make_table(self.planted, "Heads with a planted effect")]
        planted_tables += [_make_table(self.effects, "Mean effect of each dose")]
        smallest = "Smallest change of the probability that is detected in 95% of draws"
        return Document(
            f"Which effects would the tests miss in {self.model}?",
            [(Code("attnprobe detection-limit"), ": ", METHOD_NOTE), provenance],
            [
                Section(
                    "Detection limits",
                    [_make_table(self.limits, smallest)],
                    in_short_report=True,
                ),
                Section("Planted effects", planted_tables),
                Section(
                    "Dose and response",
                    [_make_table(self.responses, "Means by dose")],
                ),
                Section("Heads without a planted effect", [DefinitionList(self.without)]),
            ],
            data=convert_fields(self, "rows"),
        )


METHOD_NOTE = (
    "an unused token is inserted into every text. In each copy of the model, one head is modified: "
    "it attends to this token and changes the log-odds of the last class, or of the answer. The "
    "size of this change is the dose (to first order). At dose 0 the token has no effect. The "
    "detection limit is the smallest change of the probability that an audit would detect in 95% "
    "of random draws of the texts. Its 95% confidence interval is over texts."
)
"""Explanation of the method in a report on detection limits. It follows the words "attnprobe
detection-limit:"."""


def _make_table(records: Sequence[Record], caption: str) -> Table:
    """Make a table from records with different fields, which become columns.

    A cell is empty if its record does not have the field.
    """
    # The keys of a dictionary are the fields without repetitions, in order.
    columns: dict[str, None] = {}
    for record in records:
        columns.update(dict.fromkeys(record))
    rows = [[record.get(name) for name in columns] for record in records]
    return Table(list(columns), rows, caption)


def _write_report(report: DetectionLimitReport, folder: Path) -> None:
    """Write the report and its rows to a folder.

    The rows are the measurements of single texts. The report contains the hash of their file, so
    that a changed file is noticed.
    """
    rows = report.rows.to_csv(index=False, float_format="%.6g")
    write_atomically(folder / ROWS_FILE, rows)
    digest = hashlib.sha256((folder / ROWS_FILE).read_bytes()).hexdigest()
    write_json(
        folder / DETECTION_LIMITS_FILE, convert_fields(report, "rows") | {"rows_sha256": digest}
    )
    write_atomically((folder / DETECTION_LIMITS_FILE).with_suffix(".md"), report.to_markdown())
    write_atomically((folder / DETECTION_LIMITS_FILE).with_suffix(".html"), report.to_html())


def _describe_head(
    head: str, rows: pd.DataFrame, sign: int, seed: int, *, is_only_head: bool
) -> Iterator[tuple[Record, Record]]:
    """Yield two table rows for each statistic measured at a head: responses and detection limits.

    Args:
        head: Name of the head, such as ``1.0``.
        rows: The head's rows for all doses.
        sign: 1 if the token increases the log-odds, -1 if it decreases them.
        seed: Seed for the random draws of texts.
        is_only_head: Whether the model has no other head.
    """
    probability_changes, log_odds_changes = compute_dose_effects(rows, sign)
    doses, n = sorted(set(rows.dose)), rows.example_id.nunique()
    for statistic in [name for name in GRADED_STATISTICS if (rows.statistic == name).any()]:
        rule = build_detection_rule(statistic, RULES, n_heads=1, is_all_attention=is_only_head)
        values = pivot_by_dose(rows, statistic)
        if values.shape[1] < 2:
            continue
        labels: Record = {"head": head, "statistic": Code(statistic)}
        means = values.mean(1)
        correlation = float(spearmanr(doses, means).statistic)
        means_by_dose = {
            f"dose {dose:g}": float(mean) for dose, mean in zip(doses, means, strict=True)
        }
        limits_by_size = {
            size: estimate_detection_limit(values, size, seed, rule) for size in (n // 2, n, 2 * n)
        }
        limits = {
            format_count(size, "text"): _format_limit(
                interpolate_effect(probability_changes, limit)
            )
            for size, limit in limits_by_size.items()
        }
        draws = draw_text_counts(values.shape[1], n, seed)
        n_false_positives = round(
            float(compute_detection_rate(values[0], draws, rule)) * N_SIMULATED_AUDITS
        )
        in_log_odds = _format_limit(interpolate_effect(log_odds_changes, limits_by_size[n]))
        false_positives = NumericText(format_share(n_false_positives, N_SIMULATED_AUDITS))
        yield (
            labels | means_by_dose | {"rank correlation": correlation},
            labels | limits | {"in log-odds": in_log_odds, "yes at dose 0": false_positives},
        )


def _format_limit(limit: DetectionLimit) -> FormattedNumber:
    """Format a detection limit with its interval, or as "more than" the largest tested effect."""
    if limit.interval is None:
        return FormattedNumber(limit.effect, prefix="more than")
    return FormattedNumber(limit.effect, limit.interval)


# --- Planting and measuring ----------------------------------------------------------------------


@public_function
def find_detection_limit(
    model: "ModelLike",
    dataset: Any,
    output_dir: str | Path | None = None,
    *,
    options: DetectionLimitOptions = DetectionLimitOptions(),
    tokenizer: "PreTrainedTokenizerBase | None" = None,
) -> DetectionLimitReport:
    """Find the smallest planted effect that the tests detect in a model.

    Effects of known size are planted in copies of the model, which are then audited. The model
    itself is not modified.

    Args:
        model: The model, in any form that :func:`hf_attnprobe.audit` accepts.
        dataset: The texts, in any form that :func:`hf_attnprobe.audit` accepts.
        output_dir: Folder for the report (JSON, Markdown and HTML) and ``rows.csv``. It must be
            new, empty, or the folder of the same measurement. None writes nothing.
        options: The heads in which effects are planted, and the effect sizes.
        tokenizer: The tokenizer of a model in memory.

    Returns:
        The report, with detection limits by head and statistic.

    Raises:
        AttnProbeError: If the model predicts something other than a class or an answer, if every
            token occurs in some text, or if no effect could be planted in any head.

    Example:
        Measure the detection limit of two heads::

            options = DetectionLimitOptions(spiked_heads=["0.1", "3.2"])
            report = find_detection_limit("bert-sst", "sst", options=options)
            print(report)
    """
    start_seconds = time.process_time()
    audit_options = AuditOptions(seed=options.seed, groups=False)
    request = AuditRequest(model, dataset, ["head_ablation"], audit_options, tokenizer)
    if output_dir is None:
        return _plant_and_measure(prepare_audit(request), options, start_seconds)
    # The folder is locked first, because a language model generates its answers in the preparation.
    with reserve_folder(output_dir, SETTINGS_FILE) as folder:
        job = prepare_audit(request)
        identity = {
            **job.identity,
            "test_limit": job.data.test_limit,
            "options": asdict(options),
        }
        with mark_folder(folder / SETTINGS_FILE, identity):
            report = _plant_and_measure(job, options, start_seconds)
            if get_process_state().is_main_process:
                _write_report(report, folder)
    return report


def _plant_and_measure(
    job: PreparedAudit, options: DetectionLimitOptions, start_seconds: float
) -> DetectionLimitReport:
    """Plant effects in one head at a time and measure the response to each dose.

    Args:
        job: The prepared audit of the unmodified model.
        options: The heads and the doses.
        start_seconds: Processor time before the model was loaded.
    """
    adapter, tokenizer = job.audited_model.adapter, job.audited_model.tokenizer
    # Copies of a text count once in every interval, so one of them is enough.
    original_texts = select_distinct_texts(job.tokenized.texts)
    if adapter.prediction.kind not in ("classes", "answer") or isinstance(tokenizer, InputReader):
        raise AttnProbeError(
            "effects can only be planted in a model that predicts a class or an answer from a "
            f"text, but {job.audited_model.name} does not. Choose another model."
        )
    n_tokens = min(adapter.n_embeddings or 0, len(tokenizer))
    token = find_unused_token(original_texts, n_tokens, tokenizer.all_special_ids, options.seed)
    texts_without_token = sort_by_length(original_texts)
    texts = [insert_token(text, token, options.seed) for text in texts_without_token]
    batches_without_token = _make_batches(
        job, adapter, _sample_evenly(texts_without_token, N_FITTING_TEXTS)
    )
    batches_with_token = _make_batches(job, adapter, _sample_evenly(texts, N_FITTING_TEXTS))
    tables: dict[str, list[Record]] = {name: [] for name in TABLE_NAMES}
    rows, skipped_heads = [], {}
    for site in _choose_sites(adapter, options):
        head = f"{site.layer}.{site.head}"
        try:
            effect = fit_planted_effect(
                get_user_model(job.audited_model),
                batches_without_token,
                batches_with_token,
                site,
                token,
            )
        except CannotPlantEffectError as reason:
            logger.warning("%s", reason)
            skipped_heads[head] = str(reason)
            continue
        doses = (0.0, *options.doses)
        rows_of_doses = [_measure_dose(job, effect, dose, texts) for dose in doses]
        head_rows = pd.concat(rows_of_doses, ignore_index=True)
        rows.append(head_rows.assign(head=head))
        diagnostics = {
            "attention": effect.attention,
            "agreement": effect.agreement,
            "leak": effect.leak,
        }
        tables["planted"].append(
            {"head": head, "token": str(tokenizer.decode([token])), **diagnostics}
        )
        probability_changes, log_odds_changes = compute_dose_effects(head_rows, effect.sign)
        for k, dose in enumerate(doses):
            changes = {
                "probability": float(probability_changes[k]),
                "log-odds": float(log_odds_changes[k]),
            }
            tables["effects"].append({"head": head, "dose": dose, **changes})
        descriptions = _describe_head(
            head,
            head_rows,
            effect.sign,
            options.seed,
            is_only_head=len(adapter.sites()) == 1,
        )
        for response, limits in descriptions:
            tables["responses"].append(response)
            tables["limits"].append(limits)
        logger.info(
            "head %s measured after %.0f s of processor time",
            head,
            time.process_time() - start_seconds,
        )
    if not rows:
        raise AttnProbeError("; ".join(skipped_heads.values()))
    return DetectionLimitReport(
        model=job.audited_model.name,
        fingerprints=compute_fingerprints(job.audited_model),
        dataset=str(get_dataset_name(job.data.dataset, job.data.split)),
        n=len(texts),
        n_texts=len(job.tokenized.texts),
        seed=options.seed,
        **tables,
        without=skipped_heads,
        versions=get_versions(),
        seconds=round(time.process_time() - start_seconds, 1),
        rows=pd.concat(rows, ignore_index=True),
    )


def _choose_sites(adapter: AttentionModelBase, options: DetectionLimitOptions) -> list[Site]:
    """Choose the heads whose weights are changed: the heads in the options, or random heads."""
    if options.spiked_heads is not None:
        head_sets = parse_head_sets(adapter, options.spiked_heads)
        return list(itertools.chain.from_iterable(head_sets))
    all_sites = adapter.sites()
    random_order = np.random.default_rng(options.seed).permutation(len(all_sites))
    return sorted(all_sites[k] for k in random_order[: options.n_spiked])


def _sample_evenly(items: Sequence[Any], n: int) -> list[Any]:
    """Return ``n`` evenly spaced items from the first to the last, or all if there are fewer."""
    positions = np.linspace(0, len(items) - 1, min(n, len(items)))
    return [items[int(position)] for position in positions]


def _make_batches(
    job: PreparedAudit, adapter: AttentionModelBase, texts: Sequence[Text]
) -> list[Batch]:
    """Collate texts into padded batches for the model."""
    pad_token_id = job.audited_model.tokenizer.pad_token_id or 0
    batch_size = adapter.max_batch_size or BATCH_SIZE
    return list(iterate_batches(adapter, texts, pad_token_id, batch_size))


def _measure_dose(
    job: PreparedAudit, effect: PlantedEffect, dose: float, texts: Sequence[Text]
) -> pd.DataFrame:
    """Plant an effect with one dose in a copy of the model, and audit the head in this copy.

    Args:
        job: The prepared audit of the original model.
        effect: The effect to plant in one head.
        dose: Change in log-odds that the planted token causes.
        texts: Texts that contain the planted token.

    Returns:
        Rows with the head's statistics, and the log-probability of the last class or the answer.
    """
    unit = job.data.units if isinstance(job.data, Answers) else None
    tokenizer = job.audited_model.tokenizer
    options = job.options
    site = effect.site
    modified = make_modified_copy(get_user_model(job.audited_model), effect, dose)
    adapter = load_audited_model(
        (modified, tokenizer), None, options, get_process_state().device, unit=unit
    ).adapter
    # All doses are compared at the same standard temperature.
    adapter.sharpness = job.audited_model.adapter.sharpness
    set_reference(adapter, tokenizer, job.examples, GRADED_STATISTICS.values())
    sites_by_test = {}
    for name in dict.fromkeys(GRADED_STATISTICS.values()):
        if load_tests()[name].lacks(adapter, site) is None:
            sites_by_test[name] = [site]
    parts = []
    for batch in _make_batches(job, adapter, texts):
        observation = adapter.observe(batch)
        log_probs = {LOG_PROB_STATISTIC: _compute_log_prob(observation)}
        parts.append(build_rows("effect", batch.example_ids, {NO_SITE: log_probs}))
        parts.append(compute_rows(observation, sites_by_test, TEST_OPTIONS, options.seed))
    rows = collect_rows(parts).build_long_frame().assign(dose=dose)
    return rows[rows.statistic.isin([*GRADED_STATISTICS, LOG_PROB_STATISTIC])]


def _compute_log_prob(observation: Observation) -> torch.Tensor:
    """Return the log-probability of the answer, or of the last class, for each text, [batch]."""
    if observation.model.lacks(AnswersFromPassage) is None:
        return compute_log_prob(observation).double()
    return observation.probs[:, -1].double().log()
