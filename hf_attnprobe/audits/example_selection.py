"""Selects the example texts that a report displays, with the reason for each.

The first two examples are the texts in which attention and leave-one-out agree most and disagree
most. The third one is a confident but wrong prediction. All further examples are drawn by id hash,
so that ordinary texts are displayed too. The same rows always give the same examples.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.audits.audited_model import AuditedModel
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.runner import AuditRunner
from hf_attnprobe.audits.text_scores import Explainer, describe_head_mean
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.data.columns import has_images, read_column
from hf_attnprobe.data.instances import COORDINATES_COLUMN, has_instances
from hf_attnprobe.faithfulness.options import Knockout
from hf_attnprobe.inference.encoding import ImageReader, InputReader, Text
from hf_attnprobe.plots.highlighted_text import (
    AGREEMENT_REASON,
    DISAGREEMENT_REASON,
    PASSAGE_GAIN_LABEL,
    PASSAGE_SHARE_LABEL,
    SINK_SHARE_LABEL,
    WRONG_PREDICTION_REASON,
    HighlightedText,
)
from hf_attnprobe.protocol import ALL, HEAD_SET, AttentionModelBase, Site
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.sampling import order_by_hash
from hf_attnprobe.statistics.summary import (
    compute_accuracy,
    find_model_site,
    select_predictions,
    select_site_texts,
)
from hf_attnprobe.storage.provenance import write_texts


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

MIN_AGREEMENT_TOKENS = 5
"""Minimum length, in tokens, of example texts that are selected by their agreement.

The agreement compares attention with leave-one-out. In shorter texts, the two could agree by chance.
"""
LEAVE_ONE_OUT_TESTS = {"correlation", "erasure", "input_erasure", "sources", "knockout"}
"""Names of the tests that compute leave-one-out for every text.

If none of these tests ran, the report does not display leave-one-out for its example texts, because
that would take additional time.
"""
N_COMPARED_DECIMALS = 6
"""Number of decimals to which values are rounded before they are compared.

Smaller differences can be rounding errors, which must not decide which text is displayed.
"""
RANKING_STATISTICS = {
    "attention": "unit_attention",
    "knockout": "unit_knockout",
    "leave_one_out": "unit_loss",
    "map": "unit_map",
}
"""Maps each ranking of a prompt's units to the statistic that contains its scores.

There is one value per unit. For example, "unit_loss@3" is the leave-one-out score of the unit with
index 3.
"""
PROMPT_STATISTICS = {
    "sink_share": SINK_SHARE_LABEL,
    "passage_share": PASSAGE_SHARE_LABEL,
    "contextual_gain": PASSAGE_GAIN_LABEL,
    "answer_is_greedy": "",
}
"""Maps each statistic of a whole prompt to its label in a report.

The statistic with the empty label is not displayed as a number. It is 1 if the answer is the
model's greedy answer, and otherwise 0.
"""
MAX_SAVED_PROMPTS = 1000
"""Maximum number of prompts that are saved with the report, each with the scores of its units."""
AGREEMENT_STATISTICS = (
    "importance@attention",
    "source_agreement@attention",
    "attention_leave_one_out_tau",
)
"""Statistics that measure the agreement between attention and leave-one-out.

Example texts are selected by the first statistic in this list that the audit has measured.
"""
RANDOM_REASON = "drawn by chance"
"""Reason that a report gives for an example text that was drawn at random."""


def select_example_texts(
    audited_model: AuditedModel,
    runner: AuditRunner,
    rows: Rows,
    examples: "datasets.Dataset",
    options: AuditOptions,
    *,
    alternative: str | None = None,
) -> tuple[HighlightedText, ...]:
    """Select example texts for a report, compute their scores, and save them.

    For a classifier, the scores are computed now, but only if tests have computed the same scores,
    so that an example costs no more than an audited text. For a language model, the rows already
    contain all scores, so all prompts are saved. A page displays the prompts that have a reason.

    Args:
        audited_model: The model with its tokenizer.
        runner: The test runner.
        rows: The audit's rows (values of all statistics for every text and head).
        examples: The data set that contains the texts.
        options: Audit options.
        alternative: Name of the ranking whose scores are displayed next to attention; None for no
            other ranking.

    Returns:
        The examples; empty for bags without two coordinates per instance, or if no site was tested.
    """
    tokenizer, site = audited_model.tokenizer, choose_displayed_site(rows)
    if site is None or not _can_display(tokenizer, examples):
        return ()
    site = site._replace(query=options.query)
    explainer = Explainer(
        runner.adapter,
        tokenizer,
        site,
        attention_of=describe_attention(runner.adapter, site, rows),
        target=options.target,
        alternative=alternative,
        has_importances=not LEAVE_ONE_OUT_TESTS.isdisjoint(runner.options),
    )
    knockout_options = runner.options.get("knockout", Knockout())
    assert isinstance(knockout_options, Knockout)
    least_effect = max(knockout_options.least_effect, runner.adapter.noise_floor)
    prompts = load_scored_prompts(explainer, runner.texts, rows, examples, least_effect)
    reasons = choose_example_ids(rows, options.shown_texts)
    if prompts:
        example_texts = [
            replace(prompt, why=reasons.get(example_id, ""))
            for example_id, prompt in prompts.items()
        ]
    else:
        text_by_id = {text.example_id: text for text in runner.texts}
        example_by_id = _select_examples(examples, set(reasons))
        example_texts = []
        for example_id, reason in reasons.items():
            runner.progress.start_report("texts with their scores")
            scored_text = explainer.explain(text_by_id[example_id], example_by_id[example_id])
            example_texts.append(replace(scored_text, why=reason))
    if get_process_state().is_main_process:
        output_folder = runner.folder.parent
        try:
            write_texts(output_folder, example_texts)
        except OSError as error:
            # The report contains the examples too, so they are not lost.
            logger.warning("cannot write the texts in %s (%s)", output_folder, error.strerror)
    return tuple(example_texts)


def _can_display(
    tokenizer: PreTrainedTokenizerBase | InputReader, examples: "datasets.Dataset"
) -> bool:
    """Return whether a report can display the inputs: texts, images, or bags with coordinates."""
    if not isinstance(tokenizer, InputReader) or isinstance(tokenizer, ImageReader):
        return True
    if COORDINATES_COLUMN not in examples.column_names:
        return False
    # A map has two axes.
    return all(len(position) == 2 for position in examples[0][COORDINATES_COLUMN])


def load_scored_prompts(
    explainer: Explainer,
    texts: Sequence[Text],
    rows: Rows,
    examples: "datasets.Dataset",
    least_effect: float,
) -> dict[int, HighlightedText]:
    """Load the unit scores of all prompts from an audit's rows.

    Args:
        explainer: Describes the prompts in words.
        texts: Prompts and answers as tokens.
        rows: The audit's rows (values of all statistics for every text and head).
        examples: The data set that contains the prompts.
        least_effect: Smallest loss, in nats, that counts as more than noise.

    Returns:
        Up to :data:`MAX_SAVED_PROMPTS` prompts with their scores, by id; empty if the rows contain no
        unit scores.
    """
    unit_statistics = {*RANKING_STATISTICS.values(), "unit_matters"}

    # The names of unit statistics end with the unit's index, as in "unit_loss@3".
    def is_unit_statistic(test: str, statistic: str, *site: int) -> bool:
        base_name = statistic.partition("@")[0]
        return base_name in unit_statistics

    unit_rows = rows.select(is_unit_statistic)
    if not any(statistic.startswith("unit_loss@") for _, statistic, *_ in unit_rows.columns):
        return {}
    site = explainer.site[:2]
    unit_values = select_site_texts(unit_rows, site).to_frame()
    prompt_values = select_site_texts(rows.select_statistics(PROMPT_STATISTICS), site).to_frame()
    first_texts = sorted(texts, key=lambda text: text.example_id)[:MAX_SAVED_PROMPTS]
    example_by_id = _select_examples(examples, {text.example_id for text in first_texts})
    prompts = {}
    for text in first_texts:
        example_id = text.example_id
        if example_id in unit_values.index:
            prompts[example_id] = _add_unit_scores(
                explainer.describe_answer(text, example_by_id[example_id]),
                unit_values.loc[example_id],
                prompt_values.loc[example_id],
                least_effect,
            )
    return prompts


def _add_unit_scores(
    prompt: HighlightedText,
    unit_values: pd.Series,
    prompt_values: pd.Series,
    least_effect: float,
) -> HighlightedText:
    """Add unit scores and other numbers to a prompt.

    Args:
        prompt: The prompt in words.
        unit_values: Values for single units, by names such as "unit_loss@3" for the fourth unit.
        prompt_values: Values for the whole prompt, by statistic name.
        least_effect: Smallest loss, in nats, that counts as more than noise.

    Returns:
        The prompt with its scores.
    """
    positions = range(len(prompt.tokens))

    def collect_values(statistic: str) -> tuple[float, ...]:
        return tuple(float(unit_values.get(f"{statistic}@{k}", np.nan)) for k in positions)

    scores = {name: collect_values(statistic) for name, statistic in RANKING_STATISTICS.items()}
    # The statistic is 1 for units that matter, 0 for other units, and NaN if it was not measured.
    matter_flags = collect_values("unit_matters")
    has_flags = not np.isnan(matter_flags).all()
    return replace(
        prompt,
        scores={name: values for name, values in scores.items() if not np.isnan(values).all()},
        matters=tuple(k for k in positions if matter_flags[k] == 1) if has_flags else None,
        numbers={
            description: float(prompt_values[name])
            for name, description in PROMPT_STATISTICS.items()
            if description
        },
        is_greedy=bool(prompt_values["answer_is_greedy"] == 1),
        least_effect=least_effect if has_flags else None,
    )


def _select_examples(examples: "datasets.Dataset", ids: set[int]) -> dict[int, Mapping[str, Any]]:
    """Select examples from a data set by id, and return them in a dictionary."""
    all_ids = read_column(examples, "example_id")
    row_indices = [index for index, example_id in enumerate(all_ids) if example_id in ids]
    if has_images(examples) or has_instances(examples):
        # The model has already read the images or vectors, which may be large.
        names = ("example_id", COORDINATES_COLUMN)
        examples = examples.select_columns(
            [name for name in names if name in examples.column_names]
        )
    selected_examples = examples.with_format(None).select(row_indices)
    return {example["example_id"]: example for example in selected_examples}


def choose_example_ids(rows: Rows, n_examples: int) -> dict[int, str]:
    """Choose which texts a report displays, and why. No text is displayed twice.

    Args:
        rows: The audit's rows (values of all statistics for every text and head).
        n_examples: Maximum number of texts.

    Returns:
        The reason for each chosen text, by text id, in display order.
    """
    rows = rows.merge_duplicates()
    predictions = select_predictions(rows).to_frame()
    if n_examples < 1 or not len(predictions):
        return {}
    ids = [int(example_id) for example_id in predictions.index]
    predictions = predictions.loc[[ids[index] for index in order_by_hash(ids)]]
    reasons: dict[int, str] = {}

    def add_examples(candidates: Iterator[tuple[int, str]], max_examples: int) -> None:
        """Add candidates until there are ``max_examples`` texts in total."""
        for example_id, reason in candidates:
            if len(reasons) >= max_examples:
                return
            # A text that is already included keeps its first reason.
            reasons.setdefault(int(example_id), reason)

    # Choose up to two texts by agreement and one wrong prediction, then add random texts.
    add_examples(_find_agreement_extremes(rows, predictions), min(n_examples, 2))
    add_examples(_find_confident_errors(predictions), min(n_examples, len(reasons) + 1))
    add_examples(((example_id, RANDOM_REASON) for example_id in predictions.index), n_examples)
    return reasons


def _find_agreement_extremes(rows: Rows, predictions: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """Yield the two texts for which attention agrees most and least with leave-one-out.

    Leave-one-out measures how much the output changes if a token is removed. Each text is a pair of
    its id and the reason that a report displays.
    """
    site = choose_displayed_site(rows)
    if site is None:
        return
    agreement_rows = rows.select_statistics(set(AGREEMENT_STATISTICS))
    values = select_site_texts(agreement_rows, (site.layer, site.head)).to_frame()
    measured_statistics = [name for name in AGREEMENT_STATISTICS if name in values]
    if not measured_statistics:
        return
    # Rounding makes the choice the same on machines whose results differ in the last digits.
    agreement = values[measured_statistics[0]].reindex(predictions.index).round(N_COMPARED_DECIMALS)
    is_long = predictions.n_tokens >= MIN_AGREEMENT_TOKENS
    if is_long.any():
        agreement = agreement[is_long]
    agreement = agreement.dropna()
    if len(agreement):
        yield agreement.idxmax(), AGREEMENT_REASON
        yield agreement.idxmin(), DISAGREEMENT_REASON


def _find_confident_errors(predictions: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """Yield the texts with wrong predictions, the most confident prediction first.

    Each text is a pair of its id and the reason that a report displays.
    """
    wrong_predictions = predictions[compute_accuracy(predictions) < 1]
    probabilities = wrong_predictions.probability.round(N_COMPARED_DECIMALS)
    sorted_probabilities = probabilities.sort_values(ascending=False, kind="stable")
    return ((example_id, WRONG_PREDICTION_REASON) for example_id in sorted_probabilities.index)


def choose_displayed_site(rows: Rows) -> Site | None:
    """Choose the head, or group of heads, whose attention a report displays.

    The first available choice is used:

    1. the attention that represents the model, such as the mean over all heads;
    2. the head whose ablation (or, if this was not measured, the shuffling of its attention weights)
       changes the output most;
    3. the first tested head;
    4. the first tested head group.

    Args:
        rows: The audit's rows (values of all statistics for every text and head).

    Returns:
        The site; None if no site was tested.
    """
    model_site = find_model_site(rows)
    if model_site is not None:
        return Site(*model_site)
    # These statistics are the effects of ablation and of shuffled attention weights.
    for statistic in ("zero_tvd", "median_tvd"):
        effects = rows.build_head_frame(statistic)
        if len(effects):
            layer, head = effects.mean().round(N_COMPARED_DECIMALS).idxmax()
            return Site(int(layer), int(head))
    sites = sorted(rows.sites)
    # Head groups have a negative layer or head index.
    heads = [site for site in sites if min(site) >= 0]
    return Site(*(heads or sites)[0]) if sites else None


def describe_attention(model: AttentionModelBase, site: Site, rows: Rows) -> str:
    """Describe the displayed attention, such as "the mean of all 72 heads".

    Args:
        model: The audited model.
        site: The displayed site.
        rows: The audit's rows (values of all statistics for every text and head).

    Returns:
        The description; empty if the model has only one head.
    """
    n_heads = len(model.sites())
    if n_heads == 1:
        return ""
    if site.layer == HEAD_SET:
        return describe_head_mean(model, f"the heads of set {site.head}")
    if site.layer == ALL:
        return describe_head_mean(model, f"all {n_heads} heads")
    if site.head == ALL:
        return describe_head_mean(model, f"the heads of layer {site.layer}")
    has_effects = len(rows.build_head_frame("zero_tvd")) > 0
    reason = " with the largest output change" if has_effects else ""
    return f"the head{reason}: layer {site.layer}, head {site.head}"
