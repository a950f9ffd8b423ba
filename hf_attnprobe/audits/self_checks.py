"""Checks that an audit computes the same predictions as the original model.

A recorded prediction must equal the prediction of the original model for this text alone, without
adapter, batch or padding. The checks run before anything is written (*pre-flight checks*), before
an audit is resumed, and at its end. They detect lost inputs, models whose predictions depend on
padding or on other texts in the batch, and models that have changed since their rows were saved.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.audits.site_selection import check_query
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import list_number_formats, run_with_halving
from hf_attnprobe.core.options import Options
from hf_attnprobe.faithfulness.options import TargetOptions
from hf_attnprobe.faithfulness.registry import AuditPreview, load_tests
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.inference.batching import (
    collate,
    describe_text,
    sort_by_length,
    split_for_model,
)
from hf_attnprobe.inference.encoding import InputReader, Text
from hf_attnprobe.protocol import AttentionModelBase, Batch, Observation, Site
from hf_attnprobe.statistics.sampling import draw_random_order
from hf_attnprobe.storage.rows import compute_batch_prediction_statistics


logger = logging.getLogger(__name__)

N_TEXTS_CHECKED_AT_END = 8
"""Number of texts whose saved predictions are checked again at the end of an audit."""
N_TEXTS_CHECKED_ON_RESUME = 2
"""Number of texts whose saved predictions are checked when an audit is resumed."""
CHANGED_MODEL_CAUSE = (
    "The model, its tokenizer or its hooks have changed. Restore them, or choose another "
    "--output-dir."
)
"""Cause and remedy in the error message for a prediction that differs when an audit is resumed."""
BATCH_DEPENDENCE_CAUSE = (
    "The model changed during the audit, or its predictions depend on padding or on the other "
    "texts in the batch. Try --batch-size 1 with another --output-dir."
)
"""Cause and remedy in the error message for a prediction that differs at the end of an audit."""
N_HALF_PRECISION_TEXTS = 8
"""Number of texts on which half precision is compared with float32: the longest ones."""
PRECISION_WARNING_THRESHOLD = 0.01
"""Difference between half precision and float32 above which a warning is logged.

Differences are measured in probabilities, and in the output change from uniform attention.
"""
PRECISION_ERROR_THRESHOLD = 0.1
"""Difference between half precision and float32 above which the audit stops with an error.

Differences are measured in probabilities, and in the output change from uniform attention.
"""
N_PREFLIGHT_TEXTS = 4
"""Number of texts on which the model is checked before the audit starts: the longest ones."""
TESTED_PADDINGS = (1, 4, 16)
"""Numbers of padding tokens that are added to a text. They must not change its prediction."""


def draw_texts_to_check(
    texts: Sequence[Text], predictions: pd.DataFrame, n_texts: int, seed: int
) -> list[Text]:
    """Draw texts whose saved predictions will be checked: the longest text and random texts.

    Texts without a saved prediction are not drawn.

    Args:
        texts: The audited texts.
        predictions: Saved predictions, indexed by text id.
        n_texts: Maximum number of texts to draw.
        seed: Seed for the random order.

    Returns:
        The drawn texts.
    """
    saved_ids = set(predictions.index)
    text_by_id = {text.example_id: text for text in texts if text.example_id in saved_ids}
    sorted_texts = sort_by_length([*text_by_id.values()])
    longest_ids = [text.example_id for text in sorted_texts[-1:]]
    random_order = draw_random_order(text_by_id, seed)
    random_ids = [example_id for example_id in random_order if example_id not in longest_ids]
    drawn_ids = [*longest_ids, *random_ids][:n_texts]
    return [text_by_id[example_id] for example_id in drawn_ids]


def check_recorded_prediction(
    adapter: AttentionModelBase,
    batch: Batch,
    predictions: pd.DataFrame,
    *,
    source: str,
    cause: str,
) -> None:
    """Check that a recorded prediction equals the model's own prediction for the text alone.

    Nothing is checked if the adapter cannot run the original model (without hooks).

    Args:
        adapter: The audited model.
        batch: A batch with a single text.
        predictions: Recorded predictions, one row per text and one column per statistic.
        source: Name of the recorded prediction in the error message, such as "the saved value in
            folder/rows".
        cause: Likely cause of a difference and its remedy, for the error message.

    Raises:
        AttnProbeError: If a probability, or a predicted number, differs by more than rounding.
    """
    native_probs = adapter.compute_native_probs(batch)
    if native_probs is None:
        return
    (example_id,) = batch.example_ids
    recorded_values = predictions.loc[example_id].dropna().to_dict()
    statistic = "value" if "value" in recorded_values else "probability"
    predicted_class = int(recorded_values["predicted_class"])
    if statistic == "probability" and predicted_class >= 0:
        native_value = float(native_probs[0, predicted_class])
    else:
        native_value = float(
            compute_batch_prediction_statistics(adapter, batch, native_probs)[statistic]
        )
    recorded_value = recorded_values[statistic]
    tolerance = compute_tolerance(adapter, native_value)
    # A comparison with NaN is false, so NaN counts as a difference.
    if not abs(recorded_value - native_value) <= tolerance:
        raise AttnProbeError(
            f"the model predicts {native_value:.6g} for text {example_id} alone, but {source} is "
            f"{recorded_value:.6g} (tolerance {tolerance:.1e}). {cause}"
        )


def check_prompt_edits(adapter: LanguageModelAdapter, batch: Batch) -> None:
    """Check that an audited model and the original model agree on an edited prompt.

    The audited model is the original model with hooks that change its attention. In the first check,
    one unit (such as a sentence) is deleted from the prompt. In the second check, the attention to
    this unit is blocked, which is called a knockout. The unit is drawn at random, with the prompt's
    id as the seed.

    Args:
        adapter: The audited language model.
        batch: A batch with a single prompt.

    Raises:
        AttnProbeError: If a probability differs by more than rounding.
    """
    (example_id,) = batch.example_ids
    units = batch.content_mask[0].nonzero()[:, 0].tolist()
    unit = draw_random_order(units, example_id)[0]
    differences = adapter.measure_native_differences(adapter.observe(batch), unit)
    for edit, difference in differences.items():
        # A comparison with NaN is false, so NaN counts as a difference.
        if not difference <= compute_tolerance(adapter, 1.0):
            raise AttnProbeError(
                f"the edited prompts of this model are incorrect. After the {edit} of unit "
                f"{unit + 1} in text {example_id}, a probability differs by {difference:.1e} from "
                "the original model without hooks. Please report this problem."
            )


def compute_tolerance(adapter: AttentionModelBase, number: float) -> float:
    """Compute the largest difference between two predictions that rounding can cause.

    The tolerance is 1000 times the machine epsilon of the number format, but at most 0.1. For a number
    larger than 1, the tolerance is multiplied by the number.

    The original model and the audited model may have different number formats. In this case, the less
    precise format determines the tolerance. A model without floating-point parameters counts as
    float32.

    Args:
        adapter: The audited model.
        number: A probability or a predicted number; the tolerance grows with large numbers.

    Returns:
        The tolerance, in the unit of ``number``.
    """
    # If the audited model is a changed copy, this attribute holds the original model.
    user_model = getattr(adapter, "user_model", adapter.model)
    dtypes = {*list_number_formats(adapter.model), *list_number_formats(user_model)}
    largest_eps = max(torch.finfo(dtype).eps for dtype in dtypes)
    return min(1000 * largest_eps, 0.1) * max(1.0, abs(number))


# --- Half precision ------------------------------------------------------------------------------


def compare_with_float32(
    adapter: AttentionModelBase,
    make_float32_adapter: Callable[[], AttentionModelBase] | None,
    texts: Sequence[Text],
    pad_token_id: int,
) -> dict[str, dict[str, float]]:
    """Measure how much half precision changes an audit compared with float32.

    Two quantities are compared on the longest texts: the probabilities, and the output change when
    the last head's attention is made uniform.

    Args:
        adapter: The model in half precision.
        make_float32_adapter: Function that makes the same model in float32; None if the audit does
            not use half precision. Nothing is compared in this case.
        texts: The audited texts.
        pad_token_id: Token id for padding.

    Returns:
        The provenance entry ``rounding`` with the largest differences and the text count; empty if
        nothing is compared.

    Raises:
        AttnProbeError: If a difference exceeds :data:`PRECISION_ERROR_THRESHOLD`, or if numbers overflow.
    """
    if make_float32_adapter is None:
        return {}
    longest_texts = sort_by_length(texts)[-N_HALF_PRECISION_TEXTS:]
    float32_adapter = make_float32_adapter()
    probability_difference, change_difference = 0.0, 0.0
    for batch_texts in split_for_model(adapter, longest_texts):
        half_outputs, float32_outputs = (
            _compute_outputs(model, collate(model, batch_texts, pad_token_id))
            for model in (adapter, float32_adapter)
        )
        differences = [
            float((half_values - float32_values).abs().max())
            for half_values, float32_values in zip(half_outputs, float32_outputs, strict=True)
        ]
        probability_difference = max(probability_difference, differences[0])
        change_difference = max(change_difference, differences[1])
    largest_difference = max(probability_difference, change_difference)
    if not largest_difference <= PRECISION_ERROR_THRESHOLD:
        raise AttnProbeError(
            f"half precision changes the results by up to {largest_difference:.3f} compared with "
            f"float32, but at most {PRECISION_ERROR_THRESHOLD} is allowed. Use --dtype float32."
        )
    if largest_difference > PRECISION_WARNING_THRESHOLD:
        logger.warning(
            "half precision: probabilities or output changes differ by %.3f from float32 on %d "
            "texts",
            largest_difference,
            len(longest_texts),
        )
    return {
        "rounding": {
            "probability": probability_difference,
            "change": change_difference,
            "texts": len(longest_texts),
        }
    }


def _compute_outputs(model: AttentionModelBase, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute probabilities `[batch, classes]` and output changes after an edit `[batch]`."""
    observation = model.observe(batch)
    change = uniform_attention(observation, model.sites()[-1]).uniform_tvd
    return observation.probs.detach().double().cpu(), change.double().cpu()


# --- Pre-flight checks ---------------------------------------------------------------------------


def run_preflight_checks(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    tests: Mapping[str, Options],
    sites: Sequence[Site],
    *,
    tokenizer: PreTrainedTokenizerBase | InputReader,
    has_rationales: bool,
    target: str | int | None = None,
) -> None:
    """Check the model on the longest and shortest texts, and run the check of every test.

    Args:
        adapter: The audited model.
        texts: The audited texts, or a sample of them.
        tests: Options for the tests that will run, by test name.
        sites: The selected heads.
        tokenizer: The model's tokenizer.
        has_rationales: Whether the data has human rationales.
        target: Class to explain; None for the predicted class.

    Raises:
        AttnProbeError: If edits to the attention have no effect, if predictions depend on padding
            or differ from the model's own, if the class or the query does not exist, or if a test
            cannot run.
    """
    texts_by_length = sorted(texts, key=lambda text: text.n_content)
    pad_token_id = tokenizer.pad_token_id or 0
    n_longest = 1 if adapter.max_batch_size == 1 else N_PREFLIGHT_TEXTS
    batch_predictions = _run_self_checks(adapter, texts_by_length[-n_longest:], pad_token_id)

    shortest_text = texts_by_length[0]
    shortest_observation = adapter.observe(collate(adapter, [shortest_text], pad_token_id))
    if adapter.max_batch_size != 1:
        longest_text = max(texts, key=lambda text: text.n_tokens)
        check_padding(
            shortest_observation, collate(adapter, [shortest_text, longest_text], pad_token_id)
        )
        if not isinstance(tokenizer, InputReader):
            max_length = adapter.get_max_length(tokenizer) or math.inf
            for n_padding in TESTED_PADDINGS:
                if shortest_text.n_tokens + n_padding <= max_length:
                    padded_batch = collate(adapter, [shortest_text], pad_token_id, n_more=n_padding)
                    check_padding(shortest_observation, padded_batch)
    for batch_texts, predictions in batch_predictions:
        for text in batch_texts:
            check_recorded_prediction(
                adapter,
                collate(adapter, [text], pad_token_id),
                predictions,
                source="the value in a batch",
                cause="This model cannot be audited. Please report this problem.",
            )
    if sites[0].query is not None:
        check_query(shortest_observation, sites[0].query)
    preview = AuditPreview(shortest_observation, sites, has_rationales)
    # Raises an error if the model lacks the class.
    shortest_observation.with_target(target)
    for name, options in tests.items():
        if isinstance(options, TargetOptions):
            shortest_observation.with_target(options.target)
        load_tests()[name].check(preview, options)


def _run_self_checks(
    adapter: AttentionModelBase, texts: Sequence[Text], pad_token_id: int
) -> list[tuple[Sequence[Text], pd.DataFrame]]:
    """Check on some texts that an audited model gives the same predictions as the original model.

    The texts form batches, which are halved as often as necessary to fit into memory.

    Args:
        adapter: The audited model.
        texts: The texts.
        pad_token_id: Token id for padding.

    Returns:
        The texts and predictions of every batch. Empty for a language model, whose self-check
        already compares its predictions with the original model (without hooks).
    """

    def check_batch(texts: Sequence[Text]) -> pd.DataFrame | None:
        batch = collate(adapter, texts, pad_token_id)
        adapter.self_check(batch)
        if isinstance(adapter, LanguageModelAdapter):
            return None
        statistics = compute_batch_prediction_statistics(
            adapter, batch, adapter.observe(batch).probs
        )
        columns = {name: values.tolist() for name, values in statistics.items()}
        return pd.DataFrame(columns, index=list(batch.example_ids))

    results: list[tuple[Sequence[Text], pd.DataFrame | None]] = []
    for batch_texts in split_for_model(adapter, texts):
        results += run_with_halving(batch_texts, check_batch, describe_item=describe_text)
    return [(texts, predictions) for texts, predictions in results if predictions is not None]


def check_padding(observation: Observation, padded_batch: Batch) -> None:
    """Check that a text has the same prediction with and without padding.

    A model fails this check, for example, if it averages over padding tokens.

    Args:
        observation: The model's predictions for a single text without padding.
        padded_batch: Batch that begins with the same text, padded to the length of longer texts.

    Raises:
        AttnProbeError: If the probabilities of the text differ by more than rounding.
    """
    adapter = observation.model
    group_probs = adapter.prediction.group_by_part
    unpadded_probs = group_probs(observation.probs.detach())[0]
    padded_probs = group_probs(adapter.observe(padded_batch).probs.detach())[0][
        : len(unpadded_probs)
    ]
    # With this input, the model predicts token positions or candidate tokens, which padding can
    # reorder. Therefore only the largest probabilities are compared.
    if "reads" in observation.batch.inputs:
        unpadded_probs, padded_probs = unpadded_probs.amax(-1), padded_probs.amax(-1)
    difference = float((padded_probs - unpadded_probs).abs().max())
    tolerance = compute_tolerance(adapter, float(unpadded_probs.abs().max()))
    # Probabilities that are not finite are reported by other checks.
    if not difference <= tolerance and unpadded_probs.isfinite().all():
        raise AttnProbeError(
            "predictions must not depend on padding, but a probability from "
            f"{type(adapter.model).__name__} changes by {difference:.1e} if text "
            f"{padded_batch.example_ids[0]} is padded to {padded_batch.mask.shape[1]} tokens. This "
            "model cannot be audited in batches."
        )
