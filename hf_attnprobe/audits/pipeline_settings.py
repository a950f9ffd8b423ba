"""Audit the model of a Transformers pipeline on the input that the pipeline reads.

A pipeline may have settings, such as ``max_length=128``. Each setting is either used or refused, so
an audit never tests another input or another prediction than the pipeline's.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from transformers import Pipeline, PreTrainedTokenizerBase

from hf_attnprobe.adapters.wrappers import unwrap_module
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.inference.encoding import accepts_images


TASK_BY_CLASS = {
    "TextClassificationPipeline": "text-classification",
    "TokenClassificationPipeline": "token-classification",
    "QuestionAnsweringPipeline": "question-answering",
    "FillMaskPipeline": "fill-mask",
    "ImageClassificationPipeline": "image-classification",
    "TextGenerationPipeline": "text-generation",
    "AttentionExplainPipeline": "attention-explain",
}
"""Maps the class name of each pipeline that can be audited to its task."""
HARMLESS_SETTINGS = frozenset(
    [
        "padding",
        "padding_side",
        "pad_to_multiple_of",
        "return_tensors",
        "timeout",
        "top_k",
        "return_all_scores",
        "_legacy",
        "ignore_labels",
    ]
)
"""Settings that change neither the model's input nor its prediction.

Padding is hidden by the attention mask, and an audit checks that it does not change a prediction.
The other settings only choose how inputs are loaded and how predictions are displayed.
"""
TRUNCATION_VALUES = (None, True, False, "longest_first", "do_not_truncate")
"""Values of the setting ``truncation`` that cut texts in the same way as an audit."""
UNCHANGED_AGGREGATIONS = ("none", "simple", "first")
"""Values of ``aggregation_strategy`` that use the tag of each word's first token, as an audit does."""
ZERO_SHOT_ADVICE = (
    "A zero-shot pipeline reads each text together with a hypothesis for each candidate label. Make a "
    "row with the columns premise (the text) and hypothesis (such as 'This example is sports.') for "
    "each text and label, and pass the pair (pipeline.model, pipeline.tokenizer) as the model."
)
"""Advice in the error message for a zero-shot-classification pipeline."""
PAIR_ADVICE = (
    "To audit the model without these settings, pass (pipeline.model, pipeline.tokenizer)."
)
"""Advice in error messages about settings that an audit cannot use."""


def unpack_pipeline(pipeline: Pipeline) -> tuple[Any, Any]:
    """Return a pipeline's model, and its tokenizer or image processor with the pipeline's settings.

    Args:
        pipeline: The pipeline, which is not changed.

    Returns:
        The model, and its tokenizer or image processor. If the pipeline cuts texts to a length, the
        tokenizer is a copy with this maximum length.

    Raises:
        AttnProbeError: If an audit cannot test the pipeline's task, or cannot use one of its
            settings.
    """
    _check_task(pipeline)
    processor: Any
    if accepts_images(unwrap_module(pipeline.model)):
        processor = pipeline.image_processor
    else:
        processor = pipeline.tokenizer
    max_length = _check_settings(pipeline)
    if max_length is not None:
        processor = limit_length(processor, max_length)
    return pipeline.model, processor


def limit_length(tokenizer: Any, max_length: int) -> Any:
    """Return a copy of a tokenizer with another maximum length of texts.

    Args:
        tokenizer: The tokenizer, which is not changed.
        max_length: Number of tokens to which texts are cut, including special tokens.
    """
    if (
        not isinstance(tokenizer, PreTrainedTokenizerBase)
        or tokenizer.model_max_length == max_length
    ):
        return tokenizer
    limited_tokenizer = copy.deepcopy(tokenizer)
    limited_tokenizer.model_max_length = max_length
    return limited_tokenizer


def _check_task(pipeline: Pipeline) -> None:
    """Raise AttnProbeError if an audit cannot test the predictions of a pipeline."""
    pipeline_class = type(pipeline)
    if pipeline_class.__name__ == "ZeroShotClassificationPipeline":
        labels = getattr(pipeline, "_preprocess_params", {}).get("candidate_labels")
        suffix = "" if not labels else f" with the candidate labels {', '.join(labels)}"
        raise AttnProbeError(
            f"a pipeline for zero-shot-classification{suffix} cannot be audited directly. "
            f"{ZERO_SHOT_ADVICE}"
        )
    package = pipeline_class.__module__.partition(".")[0]
    if package not in ("transformers", "hf_attnprobe"):
        raise AttnProbeError(
            f"the pipeline class {pipeline_class.__name__} is not part of Transformers, so it may "
            f"change the input or the prediction. {PAIR_ADVICE}"
        )
    if pipeline_class.__name__ not in TASK_BY_CLASS:
        raise AttnProbeError(
            f"expected a pipeline for one of the tasks {', '.join(TASK_BY_CLASS.values())}, got "
            f"{pipeline.task or pipeline_class.__name__!r}. {PAIR_ADVICE}"
        )


def _check_settings(pipeline: Pipeline) -> int | None:
    """Check that an audit can use all settings of a pipeline.

    Returns:
        The number of tokens to which texts are cut; None for the model's own limit.

    Raises:
        AttnProbeError: If a setting changes the input or the prediction in another way.
    """
    settings = _list_changed_settings(pipeline)
    # The pipeline for masked words has its tokenizer settings in a dict.
    tokenizer_settings = settings.pop("tokenizer_kwargs", None) or {}
    settings |= tokenizer_settings
    max_length = settings.pop("max_length", None)
    truncation = settings.pop("truncation", None)
    is_harmless_by_name: dict[str, Callable[[Any], bool]] = {
        "add_special_tokens": lambda value: value is True,
        "is_split_into_words": lambda value: not value,
        "do_sample": lambda value: not value,
        "num_beams": lambda value: value == 1,
        "aggregation_strategy": lambda value: _get_enum_value(value) in UNCHANGED_AGGREGATIONS,
        "function_to_apply": lambda value: (
            _get_enum_value(value) == _get_default_function(pipeline.model.config)
        ),
    }
    refused_settings = {}
    for name, value in settings.items():
        is_harmless = is_harmless_by_name.get(name, lambda value: False)
        if name not in HARMLESS_SETTINGS and not is_harmless(value):
            refused_settings[name] = value
    task = TASK_BY_CLASS[type(pipeline).__name__]
    is_generation = task == "text-generation"
    if is_generation and max_length is not None:
        refused_settings["max_length"] = max_length
    if truncation not in TRUNCATION_VALUES:
        refused_settings["truncation"] = truncation
    if refused_settings:
        # An element of an enumeration is printed as the string that a user passes for it.
        settings_text = ", ".join(
            f"{name}={format_short(getattr(value, 'value', value))}"
            for name, value in refused_settings.items()
        )
        advice = PAIR_ADVICE
        if is_generation:
            advice = (
                "An audit generates answers greedily; set their length with "
                f"Answers(…, max_new_tokens=…). {PAIR_ADVICE}"
            )
        raise AttnProbeError(
            f"an audit cannot use these settings of the {task} pipeline: {settings_text}. {advice}"
        )
    cuts_texts = truncation not in (False, "do_not_truncate")
    return max_length if cuts_texts and isinstance(max_length, int) else None


def _list_changed_settings(pipeline: Pipeline) -> dict[str, Any]:
    """List the settings that a pipeline was created with, without the defaults of its class."""
    parts = ("_preprocess_params", "_forward_params", "_postprocess_params")
    defaults = pipeline._sanitize_parameters()
    changed_settings: dict[str, Any] = {}
    for name, default_values in zip(parts, defaults, strict=True):
        values: Mapping[str, Any] = getattr(pipeline, name, None) or {}
        for key, value in values.items():
            if key not in default_values or default_values[key] != value:
                changed_settings[key] = value
    # Pipelines that generate text store the settings of the generation separately.
    return changed_settings | getattr(pipeline, "_generate_kwargs", {})


def _get_enum_value(value: Any) -> str:
    """Return a setting as lower-case text, whether it is an element of an enumeration or a string."""
    return str(getattr(value, "value", value)).lower()


def _get_default_function(config: Any) -> str:
    """Return the function with which a classification pipeline turns logits into its scores."""
    problem_type = getattr(config, "problem_type", None)
    if problem_type == "regression":
        return "none"
    is_sigmoid = problem_type == "multi_label_classification" or config.num_labels == 1
    return "sigmoid" if is_sigmoid else "softmax"
