"""Fit an attention map to a model, and certify it on texts that the choice did not see."""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_attnprobe.attention_map import (
    MAP_FILE,
    MEAN_CANDIDATE,
    AttentionMap,
    GateValue,
    HeadIndex,
    MapCertificate,
    ShuffledControl,
    compute_head_shares,
)
from hf_attnprobe.audits.audited_model import ModelLike
from hf_attnprobe.audits.cost_model import AuditProgress
from hf_attnprobe.audits.identity import hash_json
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.pipeline import (
    estimate_prepared_audit,
    reserve_output_folder,
    run_prepared_audit,
)
from hf_attnprobe.audits.setup import (
    N_WARM_UP_PROMPTS,
    AuditRequest,
    PreparedAudit,
    prepare_audit,
)
from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.audits.user_scores import UserScores, attach_scores
from hf_attnprobe.cards.metadata import DatasetReference, strip_local_folders
from hf_attnprobe.core.distributed import require_single_process
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.progress import ProgressBar, format_duration
from hf_attnprobe.core.serialization import convert_to_plain
from hf_attnprobe.faithfulness.passage_units import measure_deletion_effects
from hf_attnprobe.faithfulness.rankings import (
    TEXT_RANKINGS,
    USER_SCORE_RANKINGS,
    compute_ranking,
)
from hf_attnprobe.faithfulness.scale import compute_leave_one_out_losses, list_rankings
from hf_attnprobe.inference.answer_cache import discard_answers_of_refused_run
from hf_attnprobe.inference.batching import iterate_batches, sort_by_length
from hf_attnprobe.inference.encoding import InputReader, Text, count_distinct_texts
from hf_attnprobe.maps.options import (
    CHOOSING_SHARE,
    CHOOSING_SHARE_RANGE,
    PART_WEIGHTS_PER_TEXT,
    REFUSED_OPTIONS,
)
from hf_attnprobe.maps.selection import (
    MIN_CHOOSING_TEXTS,
    Candidate,
    TextCosts,
    list_candidates,
    run_shuffled_control,
    split_texts,
)
from hf_attnprobe.protocol import AnswersFromPassage, EditableInputs, Observation, Site
from hf_attnprobe.reports.report import Report
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS, Estimate
from hf_attnprobe.statistics.grades import Answer, grade, join_answers, list_possible_answers
from hf_attnprobe.statistics.scale import compute_faithfulness
from hf_attnprobe.statistics.verdicts import (
    RULES,
    QuestionSet,
    choose_question_set,
    index_by_rule,
)
from hf_attnprobe.storage.folders import check_writable, write_json


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


RESULT_FILE = "fit_map.json"
"""Name of the file in the output folder with the result, whether or not a map was certified."""
CERTIFICATION_FOLDER = "certification"
"""Name of the folder in the output folder with the audit of the certifying texts."""
CLASSIFIER_TESTS = ("exchange", "scale", "erasure", "permutation", "uniform_attention")
"""Tests that measure the faithfulness of all rankings, and the gate, of a classifier."""
ANSWER_TESTS = ("sources", "permutation", "knockout")
"""Tests that measure the faithfulness of a map, and the gate, of a language model."""
GATE_QUESTIONS = ("effect", "path_share", "path")
"""Questions about attention as a whole that must not be answered no: whether it matters which unit has
which weight, and whether the decision (path_share) or the important units (path) act through attention."""
MAX_BATCH_TEXTS = 16
"""Largest number of texts in a batch when the costs of all units are measured for the choice."""
MAX_CONTROL_TEXTS = 100
"""Largest number of certifying texts on which a classifier's shuffled control is measured.

The audit stores no costs of single words, so they are measured again for these texts.
"""
N_CONTROL_RUNS = 40
"""Number of times that the choice is repeated with shuffled costs."""


@dataclass(frozen=True)
class CandidateResult:
    """A candidate with its results on both parts of the texts.

    Attributes:
        name: Name of the candidate.
        description: What it shows.
        agreement: Agreement with the costs of removing units in the choosing texts.
        choosing_faithfulness: Faithfulness on the choosing texts, by which rankings are chosen; None
            for a language model, whose map is chosen by agreement.
        faithfulness: Faithfulness on the certifying texts; None if it was not measured there.
        is_chosen: Whether it was chosen.
    """

    name: str
    description: str
    agreement: float
    choosing_faithfulness: Estimate | None
    faithfulness: Estimate | None
    is_chosen: bool


@dataclass(frozen=True)
class FittedMap:
    """Result of :func:`fit_map`.

    Attributes:
        map: The certified map; None if no map was certified.
        answer: Whether the chosen map shows what the predictions are based on.
        reason: Sentence that states why a map was certified or not.
        model: Name of the model.
        dataset: Data set and split.
        gate: Answers about the model's attention as a whole.
        candidates: All candidates, the chosen one first; empty if the model does not pass the gate.
        ceiling: Faithfulness of the order by leaving out each unit, which needs one forward pass per
            unit and is not a map of attention; None for a language model, whose scale ends there.
        control: What maps achieve that are chosen by shuffled costs; None without candidates.
        n_choosing: Number of texts by which the map was chosen.
        n_certifying: Number of other texts, by which it is certified.
        report: Audit report of the certifying texts.
    """

    map: AttentionMap | None
    answer: Answer
    reason: str
    model: str
    dataset: str
    gate: tuple[GateValue, ...]
    candidates: tuple[CandidateResult, ...]
    ceiling: Estimate | None
    control: ShuffledControl | None
    n_choosing: int
    n_certifying: int
    report: Report = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Convert the result to plain data, as printed by ``attnprobe fit-map --json``."""
        fields = {name: value for name, value in vars(self).items() if name != "report"}
        return convert_to_plain(fields)

    def __str__(self) -> str:
        # Bags and images have other units and inputs than words and texts.
        rename = self.report.rename_units
        lines = [rename(self.reason)]
        if self.candidates:
            lines += ["", *_format_candidates(self.candidates)]
        if self.ceiling is not None and self.candidates:
            sentence = (
                "For comparison: leaving out each word, which is not a map of attention, reaches"
            )
            lines.append(f"{rename(sentence)} {self.ceiling.interval_text}.")
        if self.control is not None:
            lines.append(
                f"Control: maps chosen by shuffled costs reach an agreement of "
                f"{self.control.mean:.2f} on average and {self.control.largest:.2f} at most on the "
                f"other texts; {self.control.n_passing} of {self.control.n_runs} would pass."
            )
        if self.gate:
            values = [
                f"{RULES[value.rule].name.lower()} {value.estimate.interval_text} ({value.answer})"
                for value in self.gate
            ]
            lines.append(f"Attention as a whole: {', '.join(values)}.")
        lines.append(
            f"{rename('Texts')}: {self.n_choosing} to choose, {self.n_certifying} others to certify, "
            f"from {self.dataset}."
        )
        return "\n".join(lines)


def _format_candidates(candidates: Sequence[CandidateResult]) -> list[str]:
    """Format the candidates as the lines of a table.

    The column for the choosing texts contains the number by which the map was chosen.
    """
    width = max(len(candidate.description) for candidate in candidates)
    is_chosen_by_agreement = candidates[0].choosing_faithfulness is None
    criterion = "agreement" if is_chosen_by_agreement else "faithfulness"
    title = f"{criterion} (choosing)"
    lines = [f"  {'candidate':{width}}  {title:23}  faithfulness (certifying)"]
    for candidate in candidates:
        chosen_by = f"{candidate.agreement:.2f}"
        if not is_chosen_by_agreement:
            chosen_by = _format_faithfulness(candidate.choosing_faithfulness)
        mark = "*" if candidate.is_chosen else " "
        lines.append(
            f"{mark} {candidate.description:{width}}  {chosen_by:23}  "
            f"{_format_faithfulness(candidate.faithfulness)}"
        )
    return lines


def _format_faithfulness(estimate: Estimate | None) -> str:
    """Format a faithfulness with its interval, or state that it was not measured."""
    return estimate.interval_text if estimate is not None and estimate.n else "not measured"


@public_function
def fit_map(
    model: ModelLike,
    dataset: Any,
    *,
    choosing_share: float = CHOOSING_SHARE,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    progress: bool = True,
) -> FittedMap:
    """Choose an attention map of a model, and certify it on other texts.

    The texts are split by a hash of their ids. A map is chosen on the first part. An audit of the second
    part then measures the faithfulness of the chosen map, and whether attention has an effect at all.
    The map is certified if the answer to both is yes.

    For language models, the candidates are the mean of all heads, the best layer, and the k best
    heads, and they are compared by what leaving out each unit costs. For other models, the candidates
    are the rankings that an audit measures: attention, its last layer, attention × gradient, rollout
    and so on. They are compared by their faithfulness in an audit of the first part.

    Args:
        model: The model, as :func:`audit` accepts it.
        dataset: The data set, as :func:`audit` accepts it. For a language model, about 20 prompts to
            choose and 60 to certify are advisable.
        choosing_share: Share of the texts by which the map is chosen, from 0.1 to 0.5.
        options: Audit options. Options that select heads cannot be used.
        output_dir: Folder for the result, the certified map and the audit; None saves nothing.
        tokenizer: Tokenizer for a model that is passed as an object.
        progress: Whether to display a progress bar on stderr.

    Returns:
        The result. Its ``map`` is None if no map was certified, and ``reason`` states why.

    Raises:
        AttnProbeError: An option cannot be used, or there are too few texts.

    Example::

        fitted = fit_map("bilstm-sst", Data("sst", test_limit=400))
        print(fitted)
        if fitted.map is not None:
            fitted.map.save_pretrained("bilstm-sst")
    """
    require_single_process("fit-map")
    _check_options(choosing_share, options)
    if output_dir is not None:
        check_writable(output_dir)
    options = replace(options, prune=False)
    request = AuditRequest(model, dataset, None, options, tokenizer)
    bar = ProgressBar(
        "fit-map",
        visible=progress,
        n_parts=len(PART_WEIGHTS_PER_TEXT),
        part_name="step",
        part_weights=[
            PART_WEIGHTS_PER_TEXT["preparing"],
            PART_WEIGHTS_PER_TEXT["choosing"] * choosing_share,
            PART_WEIGHTS_PER_TEXT["certifying"] * (1 - choosing_share),
        ],
    )
    with bar, discard_answers_of_refused_run(output_dir):
        bar.start_part("preparing")
        audit = prepare_audit(
            request,
            folder=output_dir,
            model_tests=(*CLASSIFIER_TESTS, *ANSWER_TESTS),
            show_progress=progress,
            check_text_count=lambda n: check_choosing_count(n, choosing_share),
        )
        fitted = _fit_prepared_map(audit, choosing_share, output_dir, bar)
    if output_dir is not None:
        _save_result(fitted, Path(output_dir))
    return fitted


def _save_result(fitted: FittedMap, folder: Path) -> None:
    """Save a result and its map, and delete the map of an earlier run that is no longer certified.

    A run with other options can withdraw the certificate that an earlier run gave. A map in a folder
    without a result is from another source, and is kept.
    """
    has_earlier_result = (folder / RESULT_FILE).is_file()
    write_json(folder / RESULT_FILE, fitted.to_json())
    if fitted.map is not None:
        fitted.map.save_pretrained(folder)
    elif has_earlier_result:
        (folder / MAP_FILE).unlink(missing_ok=True)


def _check_options(choosing_share: float, options: AuditOptions) -> None:
    """Raise an error if the share is out of range, or if an option selects heads or texts."""
    smallest, largest = CHOOSING_SHARE_RANGE
    if not smallest <= choosing_share <= largest:
        raise AttnProbeError(
            f"expected choosing_share from {smallest} to {largest}, got {choosing_share}"
        )
    default_options = AuditOptions()
    for name in REFUSED_OPTIONS:
        if getattr(options, name) != getattr(default_options, name):
            flag = name.replace("_", "-")
            raise AttnProbeError(
                f"--{flag} cannot be used with fit-map, which concerns the attention of the whole "
                "model and all texts. Leave it out."
            )


def check_choosing_count(
    n_texts: int, choosing_share: float, *, excludes_copies: bool = False
) -> None:
    """Raise an error if the texts are too few to choose a map by a share of them.

    Args:
        n_texts: Number of all texts.
        choosing_share: Share of the texts by which the map is chosen.
        excludes_copies: Whether the number excludes copies and blank texts. The message then mentions
            different texts.

    Raises:
        AttnProbeError: Fewer than :data:`MIN_CHOOSING_TEXTS` texts would choose the map.

    >>> check_choosing_count(80, 0.25)
    """
    n_choosing = round(choosing_share * n_texts)
    if n_choosing >= MIN_CHOOSING_TEXTS:
        return
    noun = "different texts" if excludes_copies else "texts"
    remedy = f"Use at least {math.ceil(MIN_CHOOSING_TEXTS / choosing_share)} {noun}"
    sufficient_share = math.ceil(100 * MIN_CHOOSING_TEXTS / max(n_texts, 1)) / 100
    n_certifying = n_texts - MIN_CHOOSING_TEXTS
    if sufficient_share <= CHOOSING_SHARE_RANGE[1] and n_certifying >= MIN_DISPLAYED_TEXTS:
        remedy += f", or --choosing-share {sufficient_share}"
    raise AttnProbeError(
        f"expected at least {MIN_CHOOSING_TEXTS} texts by which a map can be chosen, got {n_choosing}: "
        f"a share of {choosing_share:g} of {n_texts} {noun}. {remedy}."
    )


def _advise_more_texts(audit: PreparedAudit, n_ranking: int) -> str:
    """Advise how many texts to use if too few choosing texts can rank their units.

    Args:
        audit: The prepared audit of all texts.
        n_ranking: Number of choosing texts that can rank their units.
    """
    if n_ranking == 0:
        return "Use other texts."
    n_needed = math.ceil(audit.n_texts * MIN_CHOOSING_TEXTS / n_ranking)
    return f"Use about {n_needed} texts like these, or a larger choosing share."


# --- Fitting -------------------------------------------------------------------------------------


def _fit_prepared_map(
    audit: PreparedAudit, choosing_share: float, output_dir: str | Path | None, bar: ProgressBar
) -> FittedMap:
    """Choose a map on some texts of a prepared audit, and certify it on the others."""
    adapter = audit.audited_model.adapter
    if adapter.lacks(EditableInputs) is not None:
        raise AttnProbeError(
            f"a map cannot be chosen, because no unit can be left out: {adapter.lacks(EditableInputs)}"
        )
    choosing_ids, certifying_ids = split_texts(
        {text.example_id: text.identity for text in audit.tokenized.texts}, choosing_share
    )
    # Blank texts and copies are known only now.
    n_different = count_distinct_texts(audit.tokenized.texts)
    check_choosing_count(n_different, choosing_share, excludes_copies=True)
    choosing_texts = [text for text in audit.tokenized.texts if text.example_id in choosing_ids]
    certifying_texts = [text for text in audit.tokenized.texts if text.example_id in certifying_ids]
    is_prompted = adapter.lacks(AnswersFromPassage) is None
    all_heads = [(site.layer, site.head) for site in adapter.sites()] if is_prompted else []

    if is_prompted and bar.visible:
        duration = _estimate_duration(audit, len(choosing_texts), len(certifying_texts))
        bar.print_line(
            f"choosing a map by {len(choosing_texts)} prompts and certifying it on "
            f"{len(certifying_texts)} others takes {format_duration(duration)}, as estimated from a "
            "few prompts"
        )
    bar.start_part(f"choosing by {len(choosing_texts)} texts")
    with audit.adapt_to_machine():
        # The audit of a classifier's choosing texts takes longer than their costs, and has a bar.
        choosing = _measure_costs(audit, choosing_texts, bar if is_prompted else None)
    n_ranking = sum(text.has_order for text in choosing)
    if n_ranking < MIN_CHOOSING_TEXTS:
        raise AttnProbeError(
            f"expected at least {MIN_CHOOSING_TEXTS} texts by which a map can be chosen, got "
            f"{n_ranking} of {len(choosing_texts)}: the others have a single unit, no unit that "
            "matters, or an answer that the model does not give itself. "
            f"{_advise_more_texts(audit, n_ranking)}"
        )
    choosing_faithfulness = None
    if not is_prompted:
        part = _select_part(audit, choosing_texts, choosing_share)
        choosing_report = run_prepared_audit(
            part, None, AuditProgress(bar.visible), describes_precision=False
        )
        choosing_faithfulness = {
            name: measure_map_faithfulness(choosing_report, name) for name in choosing[0].scores
        }
    candidates = list_candidates(choosing, all_heads, choosing_faithfulness)
    chosen = candidates[0]

    bar.start_part(f"certifying on {len(certifying_texts)} texts")
    certifying: list[TextCosts] = []
    if is_prompted:
        with audit.adapt_to_machine():
            bar.update(None, "reading the attention of all heads")
            certifying = _measure_costs(audit, certifying_texts, None, has_costs=False)
    certification = _prepare_certification(
        audit, certifying_texts, chosen, certifying, all_heads, choosing_share
    )
    folder = None if output_dir is None else Path(output_dir) / CERTIFICATION_FOLDER
    # The bar of fit-map is open already, and displays the progress of the audit.
    with reserve_output_folder(folder):
        report = run_prepared_audit(certification, folder, AuditProgress(bar.visible))
    gate, closed_reason = judge_gate(report)
    result = FittedMap(
        map=None,
        answer=Answer.CANNOT_SAY,
        reason=closed_reason,
        model=audit.audited_model.name,
        dataset=str(report.dataset),
        gate=gate,
        candidates=(),
        ceiling=_measure_ceiling(report),
        control=None,
        n_choosing=len(choosing_texts),
        n_certifying=len(certifying_texts),
        report=report,
    )
    if closed_reason:
        return result
    if choosing_faithfulness and not any(score.n for score in choosing_faithfulness.values()):
        raise AttnProbeError(
            f"faithfulness could not be measured on the {len(choosing_texts)} choosing texts, so no "
            "map can be chosen. Use more texts, or a larger choosing share."
        )
    if is_prompted:
        certifying = _read_costs(certifying, report)
    else:
        control_texts = certifying_texts[:MAX_CONTROL_TEXTS]
        bar.update(None, "control")
        with audit.adapt_to_machine():
            certifying = _measure_costs(audit, control_texts, None)
    control = run_shuffled_control(
        choosing,
        [text for text in certifying if text.has_order],
        all_heads,
        n_runs=N_CONTROL_RUNS,
        threshold=report.rules["faithfulness"].yes,
        seed=audit.options.seed,
    )
    return _certify(result, candidates, control, adapter.compute_fingerprint())


def _estimate_duration(audit: PreparedAudit, n_choosing: int, n_certifying: int) -> float:
    """Estimate the seconds until a map of a language model is chosen and certified.

    The duration of the certifying audit is measured on a few prompts. A choosing prompt takes the
    share of this time per prompt that follows from :data:`PART_WEIGHTS_PER_TEXT`.

    Args:
        audit: The prepared audit of all prompts.
        n_choosing: Number of prompts by which the map is chosen.
        n_certifying: Number of prompts by which it is certified.
    """
    tokenized = replace(audit.tokenized, texts=audit.tokenized.texts[:N_WARM_UP_PROMPTS])
    sample = replace(audit, tokenized=tokenized, n_texts=n_certifying)
    certification_seconds = estimate_prepared_audit(sample, None, AuditProgress()).total
    ratio = PART_WEIGHTS_PER_TEXT["choosing"] / PART_WEIGHTS_PER_TEXT["certifying"]
    return certification_seconds * (1 + ratio * n_choosing / n_certifying)


@torch.enable_grad()
def _measure_costs(
    audit: PreparedAudit,
    texts: Sequence[Text],
    bar: ProgressBar | None,
    *,
    has_costs: bool = True,
) -> list[TextCosts]:
    """Measure what leaving out each unit costs, and how all candidates score the units.

    Args:
        audit: The prepared audit.
        texts: The texts.
        bar: Progress bar that counts the texts; None for no count.
        has_costs: Whether units are left out. Otherwise, all costs are 0.

    Returns:
        One record per text, shortest texts first.
    """
    adapter, tokenizer = audit.audited_model.adapter, audit.audited_model.tokenizer
    site, _ = choose_model_attention(adapter)
    is_prompted = adapter.lacks(AnswersFromPassage) is None
    batch_size = min(audit.options.batch_size, MAX_BATCH_TEXTS)
    batches = iterate_batches(
        adapter, sort_by_length(texts), tokenizer.pad_token_id or 0, batch_size
    )
    records: list[TextCosts] = []
    for batch in batches:
        observation = adapter.observe(batch).with_target(audit.options.target)
        costs = torch.zeros(batch.content_mask.shape, dtype=torch.float64)
        head_shares = None
        if is_prompted:
            scores = {MEAN_CANDIDATE: observation.read(site)}
            heads = [compute_head_shares(observation, head) for head in adapter.sites()]
            head_shares = torch.stack(heads, dim=1)
            is_greedy = adapter.require(AnswersFromPassage).is_greedy(observation)
            if has_costs:
                with torch.no_grad():
                    # Only answers of the model itself count, as in an audit.
                    costs = measure_deletion_effects(observation) * is_greedy[:, None]
        else:
            scores = _rank_by_candidates(observation, site, audit.options.seed)
            if has_costs:
                costs = compute_leave_one_out_losses(observation).abs()
        records += _split_batch(observation, costs, scores, head_shares)
        if bar is not None:
            bar.update_count(len(records), len(texts), "texts")
    return records


def _rank_by_candidates(observation: Observation, site: Site, seed: int) -> dict[str, Tensor]:
    """Compute the rank of each unit in each ranking that can be chosen, `[batch, keys]` by name.

    Rankings that do not read attention, such as leave-one-out, cannot be chosen.
    """
    return {
        name: compute_ranking(observation, site, name, seed=seed)
        for name in list_rankings(observation, site)
        if name not in (*TEXT_RANKINGS, *USER_SCORE_RANKINGS)
    }


def _split_batch(
    observation: Observation,
    costs: Tensor,
    scores: Mapping[str, Tensor],
    head_shares: Tensor | None,
) -> list[TextCosts]:
    """Split the costs and scores of a batch into one record per text, without padding."""
    records = []
    for row, is_unit in enumerate(observation.batch.content_mask.cpu()):

        def select_units(values: Tensor, row: int = row, is_unit: Tensor = is_unit) -> Any:
            return values[row].detach().cpu().double()[..., is_unit].numpy()

        records.append(
            TextCosts(
                example_id=int(observation.batch.example_ids[row]),
                costs=select_units(costs),
                scores={name: select_units(values) for name, values in scores.items()},
                head_shares=None if head_shares is None else select_units(head_shares),
            )
        )
    return records


def _select_part(
    audit: PreparedAudit, texts: Sequence[Text], choosing_share: float
) -> PreparedAudit:
    """Restrict a prepared audit to one part of its texts."""
    tokenized = replace(audit.tokenized, texts=[*texts])
    identity = {**audit.identity, "choosing_share": choosing_share}
    return replace(audit, tokenized=tokenized, identity=identity, n_texts=len(texts))


def _prepare_certification(
    audit: PreparedAudit,
    texts: Sequence[Text],
    chosen: Candidate,
    records: Sequence[TextCosts],
    all_heads: Sequence[HeadIndex],
    choosing_share: float,
) -> PreparedAudit:
    """Restrict a prepared audit to the certifying texts, and attach the scores of chosen heads.

    Args:
        audit: The prepared audit of all texts.
        texts: The certifying texts.
        chosen: The chosen candidate.
        records: Scores of all heads in the certifying texts.
        all_heads: The heads to which these scores belong.
        choosing_share: Share of the texts by which the map was chosen.
    """
    if not chosen.heads:
        return _select_part(audit, texts, choosing_share)
    tokenizer = audit.audited_model.tokenizer
    # A language model reads no images or bags.
    assert not isinstance(tokenizer, InputReader)
    scores_by_id = {
        record.example_id: UserScores(chosen.score_units(record, all_heads).tolist())
        for record in records
    }
    texts = attach_scores(texts, scores_by_id, audit.audited_model.adapter, tokenizer, {})
    part = _select_part(audit, texts, choosing_share)
    fingerprint = hash_json({text.example_id: text.scores for text in texts})
    return replace(part, identity={**part.identity, "map_scores_fingerprint": fingerprint})


def _read_costs(records: Sequence[TextCosts], report: Report) -> list[TextCosts]:
    """Read the costs of deleting each unit, which the audit has measured, from a report's rows.

    Only prompts whose answer the model gives itself are returned.
    """
    assert report.evidence is not None
    texts = report.evidence.texts
    record_by_id = {record.example_id: record for record in records}
    with_costs = []
    frame = texts.to_frame()
    for example_id in texts.index:
        record = record_by_id[int(example_id)]
        names = [f"unit_loss@{unit}" for unit in range(len(record.costs))]
        costs = frame.loc[example_id, names].to_numpy(dtype=float)
        with_costs.append(replace(record, costs=costs))
    return with_costs


# --- Certification -------------------------------------------------------------------------------


def judge_gate(report: Report) -> tuple[tuple[GateValue, ...], str]:
    """Check whether attention as a whole has an effect, so that a map of it can mean anything.

    A map can rank the units well although attention does nothing, if the model reads the same units
    in another way. Faithfulness cannot notice this, but these answers can.

    Args:
        report: Audit report of the certifying texts.

    Returns:
        The answers, and a sentence that states why nothing is fitted; empty if the gate is passed.
    """
    findings = index_by_rule(report.findings)
    question_set = choose_question_set(findings)
    values, problems = [], []
    gate = findings.get(question_set.gate)
    if gate is not None and gate.n and gate.answer != Answer.YES:
        situation, _ = question_set.closed_texts
        problems.append(situation)
    for key in GATE_QUESTIONS:
        if key not in question_set.questions:
            continue
        finding = findings.get(key)
        rule = report.rules[key]
        if finding is None or not finding.n:
            problems.append(f"{rule.name.lower()} could not be measured")
            continue
        if finding.n < MIN_DISPLAYED_TEXTS:
            count = format_count(finding.n, "text")
            problems.append(f"{rule.name.lower()} was measured on only {count}")
            continue
        values.append(GateValue(key, str(finding.answer), finding.estimate))
        if finding.answer == Answer.NO:
            problems.append(f"{report.words.fill(rule.if_no)} ({finding.number})")
        elif finding.answer == Answer.CANNOT_SAY:
            problems.append(f"the answer to {rule.name.lower()} is open ({finding.number})")
    if not problems:
        return tuple(values), ""
    return tuple(values), f"Nothing is fitted: {'; '.join(problems)}."


def measure_map_faithfulness(report: Report, ranking: str) -> Estimate:
    """Measure the faithfulness of a ranking, as an audit measures that of attention.

    Args:
        report: An audit report with rows.
        ranking: Name of the ranking, such as "product" or "given".

    Returns:
        The faithfulness; its n is 0 if it was not measured.
    """
    assert report.evidence is not None
    explained = report.evidence.explained_evidence
    return compute_faithfulness(explained.texts, ranking, explained.parts).score


def _measure_ceiling(report: Report) -> Estimate | None:
    """Measure the faithfulness of the order by leave-one-out; None if too few texts have a value."""
    if report.evidence is None:
        return None
    ceiling = measure_map_faithfulness(report, "leave_one_out")
    return ceiling if (ceiling.n or 0) >= MIN_DISPLAYED_TEXTS else None


def _certify(
    result: FittedMap,
    candidates: Sequence[Candidate],
    control: ShuffledControl,
    model_fingerprint: str,
) -> FittedMap:
    """Measure the faithfulness of all candidates, and certify the chosen one if it passes.

    Args:
        result: Result without candidates, of a model that passes the gate.
        candidates: The candidates, the chosen one first.
        control: What maps achieve that are chosen by shuffled costs.
        model_fingerprint: Hash of the model's weights.
    """
    report, rule = result.report, result.report.rules["faithfulness"]
    question_set: QuestionSet = choose_question_set(index_by_rule(report.findings))
    candidate_results = []
    for candidate in candidates:
        is_chosen = candidate is candidates[0]
        attention_map = AttentionMap.from_candidate(
            candidate.name,
            candidate.heads,
            model=result.model,
            model_fingerprint=model_fingerprint,
        )
        faithfulness = None
        if not candidate.heads:
            faithfulness = measure_map_faithfulness(report, candidate.name)
        elif is_chosen:
            faithfulness = measure_map_faithfulness(report, "given")
        candidate_results.append(
            CandidateResult(
                candidate.name,
                attention_map.description,
                candidate.agreement,
                candidate.choosing_faithfulness,
                faithfulness,
                is_chosen,
            )
        )
    chosen_faithfulness = candidate_results[0].faithfulness
    assert chosen_faithfulness is not None
    answer = grade(chosen_faithfulness, rule, question_set.min_texts)
    is_refuted = answer == Answer.YES and control.n_passing > 0
    result = replace(
        result,
        answer=Answer.CANNOT_SAY if is_refuted else answer,
        candidates=tuple(candidate_results),
        control=control,
    )
    if is_refuted:
        reason = (
            f"No map is certified: {control.n_passing} of {control.n_runs} maps that were chosen by "
            "shuffled costs pass as well, so the texts are too few or too short."
        )
        return replace(result, reason=reason)
    if answer != Answer.YES:
        return replace(result, reason=_explain_failure(result, question_set.min_texts))
    # The map is published with the model, so it contains no names of local folders.
    public_data_name = DatasetReference.from_name(report.dataset.name).name
    certificate = MapCertificate(
        faithfulness=chosen_faithfulness.plain_estimate,
        gate=result.gate,
        n_choosing=result.n_choosing,
        n_certifying=result.n_certifying,
        n_candidates=sum(candidate.n_tried for candidate in candidates),
        control=control,
        dataset=str(replace(report.dataset, name=public_data_name)),
        date=datetime.date.today().isoformat(),
        version=version("hf_attnprobe"),
    )
    attention_map = AttentionMap.from_candidate(
        candidates[0].name,
        candidates[0].heads,
        model=strip_local_folders(result.model),
        model_fingerprint=model_fingerprint,
        certificate=certificate,
    )
    reason = (
        f"Certified: {attention_map.description} shows what the predictions are based on, with "
        f"faithfulness {chosen_faithfulness.interval_text} on {chosen_faithfulness.n} texts "
        f"({rule.threshold_text})."
    )
    return replace(result, map=attention_map, reason=reason)


def _explain_failure(result: FittedMap, min_texts: int) -> str:
    """Explain in a sentence why the faithfulness of the chosen map does not suffice."""
    chosen = result.candidates[0]
    estimate, rule = chosen.faithfulness, result.report.rules["faithfulness"]
    assert estimate is not None
    beginning = (
        f"No map is certified: the chosen candidate, {chosen.description}, has faithfulness "
        f"{estimate.interval_text} ({rule.threshold_text})"
    )
    if (estimate.n or 0) < min_texts:
        return f"{beginning}, on only {estimate.n or 0} of the {min_texts} required texts."
    if result.answer == Answer.CANNOT_SAY:
        possible = list_possible_answers(estimate, estimate, rule, min_texts)
        advice = "Use more texts."
        if Answer.YES not in possible:
            advice = "Only a yes is certified, so more texts will not help."
        return f"{beginning}, so the answer is {join_answers(possible)}. {advice}"
    return f"{beginning}, so the answer is {result.answer}."
