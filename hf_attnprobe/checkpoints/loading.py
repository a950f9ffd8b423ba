"""Load models and tokenizers, and refuse incomplete ones.

Transformers draws missing weights at random, and creates an empty tokenizer if its files are
missing. This module loads a model as the class that its configuration names, and requires that
every weight is present and used. Adapters from peft are merged into their base model, so the rest
of the package does not have to handle them.
"""

import json
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import find_adapter_config_file, is_peft_available

from hf_attnprobe.checkpoints.origins import (
    CONFIG_FILES,
    Origin,
    check_adapter_is_data,
    check_selects_no_hub_kernel,
    check_weights_are_data,
    locate_checkpoint,
    summarize_error,
)
from hf_attnprobe.checkpoints.records import check_training_finished
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)


MAX_LABELS = 1_000_000
"""Maximum number of labels in a model configuration.

Transformers creates a name for each label, which would take days for a wrong number like 10^12.
"""
MAX_LAYERS = 2_000
"""Maximum number of layers in a model configuration.

The deepest models have 1,000 layers. Transformers creates all layers before it loads weights, so a
wrong number could exhaust the memory.
"""


def load_config(origin: Origin, **labels: Any) -> PreTrainedConfig:
    """Load a checkpoint's configuration.

    Args:
        origin: the checkpoint's source.
        **labels: ``id2label`` and ``label2id`` to use instead of the checkpoint's.

    Returns:
        The configuration.

    Raises:
        AttnProbeError: if there is no configuration, or a value in it has a wrong type, is out of
            range, or names code.
    """
    with origin.convert_errors():
        values, _ = PreTrainedConfig.get_config_dict(origin.name, **origin.load_arguments)
        values = dict(values)
    check_config_values(values, origin.name)
    check_selects_no_hub_kernel(origin, values)
    with origin.convert_errors():
        # load_arguments contains the revision if the user chose one. return_dict is set because
        # model outputs are read by their names.
        return AutoConfig.from_pretrained(  # nosec B615
            origin.name,
            trust_remote_code=origin.trust_remote_code,
            return_dict=True,
            **origin.load_arguments,
            **labels,
        )


def check_config_values(values: Mapping[str, Any], name: str) -> None:
    """Check that the numbers of labels and layers in a configuration are realistic.

    With a damaged configuration, Transformers could hang or fail without an error.

    Args:
        values: a parsed config.json.
        name: model name for the error message.

    Raises:
        AttnProbeError: if there are too many labels or layers, or the label names are not numbered
            from 0.
    """
    for key, value in values.items():
        if key == "num_labels":
            maximum = MAX_LABELS
        elif key.endswith(("layer", "layers")):
            maximum = MAX_LAYERS
        else:
            continue
        if isinstance(value, int) and value > maximum:
            raise _make_config_error(key, f"a whole number up to {maximum:,}", value, name)
    names = values.get("id2label")
    if isinstance(names, dict) and set(names) != set(map(str, range(len(names)))):
        raise _make_config_error("id2label", "the keys 0, 1, 2 and so on", names, name)


def _make_config_error(key: str, expected: str, value: Any, name: str) -> AttnProbeError:
    """Return the error for a wrong value in a configuration."""
    return AttnProbeError(
        f"expected {expected} for {key} in the config.json of {name}, got {format_short(value)}; "
        "correct the file"
    )


# --- The head of a checkpoint --------------------------------------------------------------------
# The configuration names the saved class. If a checkpoint were loaded as another class, its head's
# weights might fit by chance, or new weights might be drawn at random without an error.


class Head(NamedTuple):
    """A supported type of model head.

    Attributes:
        task: task name in pipelines and on the Hub.
        suffix: ending of model class names with this head.
        auto: Transformers class that loads such models.
    """

    task: str
    suffix: str
    auto: Any


TEXT_GENERATION = "text-generation"
"""Name of the text generation task, on the Hub and as a value of ``--task``."""
HEADS = (
    Head(
        "text-classification",
        "ForSequenceClassification",
        AutoModelForSequenceClassification,
    ),
    Head(
        "token-classification",
        "ForTokenClassification",
        AutoModelForTokenClassification,
    ),
    Head(
        "question-answering",
        "ForQuestionAnswering",
        AutoModelForQuestionAnswering,
    ),
    Head("multiple-choice", "ForMultipleChoice", AutoModelForMultipleChoice),
    Head("fill-mask", "ForMaskedLM", AutoModelForMaskedLM),
    Head(
        "image-classification",
        "ForImageClassification",
        AutoModelForImageClassification,
    ),
    Head(TEXT_GENERATION, "ForCausalLM", AutoModelForCausalLM),
)
"""Supported model heads.

For example, the first entry is the head of `BertForSequenceClassification` and similar classes. Its
task is called "text-classification", and `AutoModelForSequenceClassification` loads such models.
"""
CLASSIFICATION_HEAD = HEADS[0]
"""Head for text classification, which is the first entry of :data:`HEADS`."""
UNUSED_WEIGHT_NAMES = ("pooler.", "position_ids", "inv_freq", "masked_bias", "attn.bias")
"""Name parts of weights that a checkpoint may contain although the loaded model does not use them.

For example, some model heads do not use the weights of the pooler, and models compute position ids
themselves.
"""


def find_head_by_class(class_name: str) -> Head | None:
    """Find the task head of a model class from the end of its name.

    Args:
        class_name: the class name, such as ``BertForSequenceClassification``.

    Returns:
        The head; None if it is not supported.
    """
    # Some class names have irregular endings: XLNetForQuestionAnsweringSimple, GPT2LMHeadModel.
    regular_name = class_name.removesuffix("Simple").replace("LMHeadModel", "ForCausalLM")
    return next((head for head in HEADS if regular_name.endswith(head.suffix)), None)


def get_head_for_task(task: str) -> Head:
    """Return the head for a task.

    Args:
        task: task name, such as "text-classification".

    Returns:
        The head.

    Raises:
        AttnProbeError: if the task is unknown.
    """
    head_by_task = {head.task: head for head in HEADS}
    if task not in head_by_task:
        raise AttnProbeError(f"expected task to be one of {', '.join(head_by_task)}, got {task!r}")
    return head_by_task[task]


def find_head(config: PreTrainedConfig, name: str, task: str | None = None) -> Head:
    """Find the head with which a checkpoint was saved.

    Args:
        config: the checkpoint's configuration.
        name: model name for the error message.
        task: the task that the user named, for a configuration that names no class.

    Returns:
        The head.

    Raises:
        AttnProbeError: if the configuration names no head or an unsupported one, or a head for
            another task than ``task``.
    """
    requested_head = None if task is None else get_head_for_task(task)
    class_names = list_architectures(config.architectures)
    class_name = class_names[0] if class_names else "model with custom code"
    head = find_head_by_class(class_name)
    if head is None:
        # A model with custom code may register its class under the name of an auto class.
        auto_map = getattr(config, "auto_map", None) or {}
        custom_heads = [candidate for candidate in HEADS if candidate.auto.__name__ in auto_map]
        head = custom_heads[0] if len(custom_heads) == 1 else None
    if head is None and class_names:
        check_is_decoder_only(class_name, config, name)
        suffixes = ", ".join(supported_head.suffix for supported_head in HEADS)
        raise AttnProbeError(
            f"expected a class name that ends with one of {suffixes}, but {name} is a {class_name}. "
            "Fine-tune it first with attnprobe train --model."
        )
    head = head or requested_head
    if head is None:
        raise AttnProbeError(
            f"the task of {name} is unknown, because its config.json does not name a model class "
            "(architectures). Set --task."
        )
    if requested_head is not None and head.task != requested_head.task:
        raise AttnProbeError(
            f"expected a model for the task {requested_head.task!r}, but {name} is a {class_name} for "
            f"the task {head.task!r}. Correct --task, or choose another model."
        )
    return head


def list_architectures(architectures: Any) -> list[str]:
    """Convert the field ``architectures`` of a configuration to a list of class names.

    If the field is not a list, the result is empty.
    """
    if not isinstance(architectures, list):
        return []
    return [str(class_name) for class_name in architectures]


def find_saved_task(origin: Origin) -> str | None:
    """Find the task for which a checkpoint was saved.

    Args:
        origin: the checkpoint's source.

    Returns:
        The task name; None if the configuration names no supported head.

    Raises:
        AttnProbeError: if there is no model, or its configuration cannot be read.
    """
    adapter = read_adapter_config(origin)
    if adapter is not None:
        task = PEFT_TASKS.get(str(adapter.get("task_type")))
        return task or find_saved_task(locate_base_model(origin, adapter))
    if origin.folder is not None and origin.gguf_file is None:
        _check_model_folder(origin.folder)
    class_names = list_architectures(load_config(origin).architectures)
    head = find_head_by_class(class_names[0]) if class_names else None
    return None if head is None else head.task


def check_is_decoder_only(class_name: str, config: Any, name: str) -> None:
    """Check that a language model only has a decoder, and no encoder for images or text.

    Args:
        class_name: the model's class name.
        config: the model's configuration.
        name: model name for the error message.

    Raises:
        AttnProbeError: for a vision-language model or an encoder-decoder model.
    """
    if not class_name.endswith(("ForConditionalGeneration", "ForImageTextToText")):
        return
    reads_images = hasattr(config, "vision_config")
    difference = "It also reads images" if reads_images else "It has an encoder for its input"
    raise AttnProbeError(
        f"expected a decoder-only language model (ForCausalLM), but {name} is a {class_name}. "
        f"{difference}, so choose another model."
    )


def check_weights(
    name: str,
    base_prefix: str,
    info: Mapping[str, Any],
    *,
    new_head: bool = False,
    adapter_weights: Collection[str] = (),
) -> None:
    """Check that a checkpoint has all weights of a model, and no weights that the model ignores.

    Args:
        name: model name for the error message.
        base_prefix: name prefix for all weights below the head, such as "bert".
        info: Transformers' ``output_loading_info``.
        new_head: whether a new head will be trained. The checkpoint may then have no head, or
            another one.
        adapter_weights: names of weights that an adapter will add.

    Raises:
        AttnProbeError: if weights are missing, unused or of another shape.
    """
    for key, saved_shape, expected_shape in sorted(info["mismatched_keys"]):
        if key not in adapter_weights:
            raise AttnProbeError(
                f"the model in {name} does not load, because the weights {key} have the shape "
                f"{list(saved_shape)}, but its configuration requires {list(expected_shape)}. Save "
                "the model again with save_pretrained."
            )
    missing = sorted(set(info["missing_keys"]) - set(adapter_weights))
    if missing and not new_head:
        raise AttnProbeError(
            f"expected a fine-tuned model, but {name!r} has no weights for "
            f"{_format_first_keys(missing)}. Fine-tune it first with attnprobe train --model."
        )
    unused = [
        key
        for key in sorted(info["unexpected_keys"])
        if not any(part in key for part in UNUSED_WEIGHT_NAMES)
    ]
    if unused and not new_head:
        unused_below_head = [key for key in unused if key.startswith(f"{base_prefix}.")]
        if unused_below_head:
            owner = "layers that its configuration does not have"
        else:
            owner = "another head"
        raise AttnProbeError(
            f"{name!r} contains weights of {owner}, such as "
            f"{_format_first_keys(unused_below_head or unused)}. Load it with the task and the "
            "configuration with which it was saved."
        )


def _format_first_keys(keys: list[str]) -> str:
    """Return the first three weight names and the number of further ones."""
    suffix = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + suffix


# --- Adapters such as LoRA, which peft saves without their base model ----------------------------

PEFT_TASKS = {
    "SEQ_CLS": "text-classification",
    "TOKEN_CLS": "token-classification",
    "QUESTION_ANS": "question-answering",
    "CAUSAL_LM": TEXT_GENERATION,
}
"""Maps the ``task_type`` in the configuration of a peft adapter to a task name on the Hub."""

PEFT_WEIGHT_PREFIX = "base_model.model."
"""Prefix that peft adds to the names of weights when it saves an adapter."""


def read_adapter_config(origin: Origin) -> dict[str, Any] | None:
    """Read a checkpoint's ``adapter_config.json``, in which a peft adapter names its base model.

    Args:
        origin: the checkpoint's source.

    Returns:
        The content; None if the checkpoint is a whole model and not an adapter.

    Raises:
        AttnProbeError: if the file cannot be read, or names no base model.
    """
    if origin.gguf_file is not None:
        return None
    with origin.convert_errors():
        path = find_adapter_config_file(origin.name, **origin.hub_arguments)
        if path is None:
            return None
        values = json.loads(Path(path).read_text())
    if not isinstance(values, dict) or not _find_base_name(origin, values):
        raise AttnProbeError(
            f"the adapter_config.json of {origin.name} does not name a base model; save the adapter "
            "again with save_pretrained"
        )
    return values


def locate_base_model(origin: Origin, values: Mapping[str, Any]) -> Origin:
    """Locate an adapter's base model.

    Args:
        origin: the adapter's source.
        values: its parsed ``adapter_config.json``.

    Returns:
        The adapter's folder if it also holds the base model, otherwise the model that the
        configuration names.

    Raises:
        AttnProbeError: if the name is not valid.
    """
    return locate_checkpoint(
        _find_base_name(origin, values),
        revision=values.get("revision"),
        token=origin.token,
        trust_remote_code=origin.trust_remote_code,
        allow_pickle=origin.allow_pickle,
    )


def _find_base_name(origin: Origin, values: Mapping[str, Any]) -> str:
    """Return the folder or Hub id with an adapter's base model, or "" if none is named."""
    if origin.folder is not None and (origin.folder / "config.json").exists():
        return origin.name
    return str(values.get("base_model_name_or_path") or "")


def load_adapter_model(
    origin: Origin, values: Mapping[str, Any], task: str | None
) -> PreTrainedModel:
    """Load an adapter's base model and merge the adapter into it.

    The merged model has the same outputs as the base model with the adapter, up to rounding.

    Args:
        origin: the adapter's source.
        values: its parsed ``adapter_config.json``.
        task: the task that the user named; None to use the adapter's or the base model's task.

    Returns:
        The merged model.

    Raises:
        AttnProbeError: if peft is not installed, the base model does not load, the head's weights
            are missing, or the adapter cannot be merged.
    """
    if not is_peft_available():
        raise AttnProbeError(
            f"{origin.name} is a peft adapter, but peft is not installed; run `pip install peft`"
        )
    import peft

    check_adapter_is_data(origin)
    _check_mergeable(origin, values)
    base = locate_base_model(origin, values)
    config = load_config(base)
    check_weights_are_data(base, config.to_dict())
    head = _choose_adapter_head(config, values, base, task)
    with origin.convert_errors():
        weights = peft.load_peft_weights(origin.name, device="cpu", **origin.hub_arguments)
    adapter_weights = {name.removeprefix(PEFT_WEIGHT_PREFIX) for name in weights}
    n_labels = _count_adapter_labels(weights, config, head)
    if n_labels not in (None, config.num_labels):
        config.num_labels = n_labels
    model, info = _load_with_info(head, base, config, adapter_kwargs={})
    # The base model may have another head, so unused weights are no error. If it lacks the right
    # head, the adapter must contain the complete head.
    info["unexpected_keys"] = []
    check_weights(base.name, model.base_model_prefix, info, adapter_weights=adapter_weights)
    with origin.convert_errors(), warnings.catch_warnings():
        # peft uses a Transformers name that the next major version removes.
        warnings.simplefilter("ignore", FutureWarning)
        adapted_model = peft.PeftModel.from_pretrained(model, origin.name, **origin.hub_arguments)
    with origin.convert_errors():
        return adapted_model.merge_and_unload().eval().requires_grad_(True)


def _check_mergeable(origin: Origin, values: Mapping[str, Any]) -> None:
    """Check that the adapter has a type that can be merged into the weights of its base model.

    This is possible for LoRA, for example, but not for adapters that add prompts to the input.
    """
    from peft import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    type_name = str(values.get("peft_type"))
    config_classes = {
        peft_type.value: config_class
        for peft_type, config_class in PEFT_TYPE_TO_CONFIG_MAPPING.items()
    }
    config_class = config_classes.get(type_name)
    if config_class is None or issubclass(config_class, PromptLearningConfig):
        raise AttnProbeError(
            f"{origin.name} is an adapter of type {type_name}. Such adapters cannot be merged into "
            "their base model, so choose another type, such as LoRA."
        )


def _choose_adapter_head(
    config: PreTrainedConfig,
    values: Mapping[str, Any],
    base: Origin,
    task: str | None,
) -> Head:
    """Choose the task head to load for an adapter.

    The task comes from the adapter's configuration, or otherwise from ``--task``. If both are
    missing, the head of the base model is used.
    """
    adapter_task = PEFT_TASKS.get(str(values.get("task_type")))
    if adapter_task is not None and task not in (None, adapter_task):
        raise AttnProbeError(
            f"--task is {task!r}, but the adapter was trained for the task {adapter_task!r}; leave "
            "--task out"
        )
    if adapter_task is not None or task is not None:
        return get_head_for_task(adapter_task or task or "")
    return find_head(config, base.name)


def _count_adapter_labels(
    weights: Mapping[str, torch.Tensor], config: PreTrainedConfig, head: Head
) -> int | None:
    """Count the labels of the classification head in an adapter's weights.

    Returns:
        The number of labels; None if the adapter contains no head.
    """
    # On the device "meta", the model is built without allocating memory for its weights.
    with torch.device("meta"):
        empty_model = head.auto.from_config(config)
    # The head is a linear layer with one output per label. The adapter's head may have another number
    # of labels than the configuration of the base model, so the layer is found by its name.
    head_weight = None
    for name, module in empty_model.named_modules():
        if isinstance(module, torch.nn.Linear) and module.out_features == config.num_labels:
            head_weight = weights.get(f"{PEFT_WEIGHT_PREFIX}{name}.weight", head_weight)
    return None if head_weight is None else len(head_weight)


# --- Models --------------------------------------------------------------------------------------


def load_model(
    model: str | Path | Origin,
    *,
    task: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    new_head: bool = False,
    **labels: Any,
) -> PreTrainedModel:
    """Load a model with the task head with which it was saved.

    A peft adapter is merged into its base model.

    Args:
        model: a folder, a Hub id, ``org/name@revision``, or a result of
            :func:`~hf_attnprobe.checkpoints.origins.locate_checkpoint`.
        task: the head's task, such as "text-classification", for a configuration that names no
            model class.
        trust_remote_code: whether code that comes with the model may run.
        allow_pickle: whether pickled weights may be read.
        new_head: whether to load a classification head for training, instead of the saved head; its
            weights are drawn at random if the checkpoint lacks them.
        **labels: ``id2label`` and ``label2id`` to use instead of the checkpoint's.

    Returns:
        The model.

    Raises:
        AttnProbeError: if there is no such folder or Hub id, the configuration or weights are
            missing, the model type or the head is not supported, or weights are unused, pickled or
            have a wrong shape.
    """
    origin = locate_checkpoint(
        model, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle
    )
    if origin.folder is not None and origin.gguf_file is None:
        _check_model_folder(origin.folder)
    adapter = read_adapter_config(origin)
    if adapter is not None:
        return load_adapter_model(origin, adapter, task)
    config = load_config(origin, **labels)
    head = CLASSIFICATION_HEAD if new_head else find_head(config, origin.name, task)
    # The weights of a GGUF checkpoint are in the GGUF file, which contains no code.
    if origin.gguf_file is None:
        check_weights_are_data(origin, config.to_dict())
    loaded, info = _load_with_info(head, origin, config)
    check_weights(origin.name, loaded.base_model_prefix, info, new_head=new_head)
    return loaded


def _load_with_info(
    head: Head, origin: Origin, config: PreTrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model, and return it with the names of weights that do not fit.

    These are weights that are missing in the files, that the model does not use, or that have
    another size.
    """
    with origin.convert_errors():
        # Mismatched sizes are ignored here, since check_weights reports them afterwards.
        return head.auto.from_pretrained(
            origin.name,
            config=config,
            trust_remote_code=origin.trust_remote_code,
            use_safetensors=None if origin.allow_pickle else True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **origin.load_arguments,
            **options,
        )


def load_attention_classifier(
    model: str | Path, purpose: str, advice: str
) -> AttentionClassifierForSequenceClassification:
    """Load a model, and check that it is an attention classifier of this package.

    Args:
        model: the model's folder or Hub id.
        purpose: purpose for the error message, such as "to compare".
        advice: fix for the error message, if the model has another type.

    Returns:
        The model.

    Raises:
        AttnProbeError: if the model does not load, or has another type.
    """
    loaded = load_model(model)
    if not isinstance(loaded, AttentionClassifierForSequenceClassification):
        raise AttnProbeError(
            f"expected an attention classifier {purpose}, but {model} is a "
            f"{loaded.config.model_type}; {advice}"
        )
    return loaded


def is_attention_classifier(
    config: PreTrainedConfig,
) -> TypeGuard[AttentionClassifierConfig]:
    """Check whether a configuration belongs to an attention classifier from this package."""
    return config.model_type == AttentionClassifierConfig.model_type


def has_trained_attention(config: PreTrainedConfig) -> bool:
    """Check whether a model is an attention classifier with one trained attention layer.

    Models with two attention levels (hierarchical) or with fixed attention weights are excluded.
    """
    if not is_attention_classifier(config) or config.hierarchical:
        return False
    return config.attention not in ("uniform", "guided")


def _check_model_folder(folder: Path) -> None:
    """Check that a folder contains a configuration and the weights of a finished model."""
    check_training_finished(folder)
    if not any((folder / name).exists() for name in CONFIG_FILES):
        advice = "Choose a folder that save_pretrained has created."
        gguf_files = sorted(file.name for file in folder.glob("*.gguf"))
        if gguf_files:
            advice = f"To load a GGUF file of the folder, pass --gguf-file {gguf_files[0]}."
        raise AttnProbeError(
            f"there is no model in {folder}, because the file config.json is missing. {advice}"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise AttnProbeError(
            f"the folder {folder} contains a configuration but no weights; save the model again"
        )


# --- Tokenizers ----------------------------------------------------------------------------------
# If a tokenizer's files are missing, Transformers creates an empty tokenizer without an error. All
# words would then be unknown, and an audit would be meaningless.

MIN_VOCABULARY_SHARE = 0.5
"""Minimum ratio of a tokenizer's vocabulary size to the number of embeddings in its model.

A tokenizer with a smaller vocabulary belongs to a different model. A model may have some unused
embeddings as padding, but not more than half of them.
"""

MIN_ORDINARY_TOKENS = 3
"""Minimum number of ordinary (not special) tokens in a complete tokenizer.

Transformers creates an empty tokenizer if the files are missing. An empty tokenizer has at most two
ordinary tokens.
"""

TOKENIZER_ADVICE = "Save a tokenizer in the model's folder with tokenizer.save_pretrained."
"""Advice at the end of error messages about missing tokenizers."""


def load_tokenizer(
    model: str | Path | Origin, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model.

    If the model is an adapter without its own tokenizer, the tokenizer of its base model is
    loaded.

    Args:
        model: a folder, a Hub id or a located checkpoint.
        trust_remote_code: whether code that comes with the tokenizer may run.

    Returns:
        The tokenizer.

    Raises:
        AttnProbeError: if there is no tokenizer, it does not load, or it has no tokens.
    """
    origin = locate_checkpoint(model, trust_remote_code=trust_remote_code)
    adapter = read_adapter_config(origin)
    if adapter is not None and origin.find_file("tokenizer_config.json") is None:
        origin = locate_base_model(origin, adapter)
    try:
        # The security checker bandit requires a revision here. It is in load_arguments if the user
        # chose one.
        tokenizer = AutoTokenizer.from_pretrained(  # nosec B615
            origin.name,
            trust_remote_code=origin.trust_remote_code,
            **origin.load_arguments,
        )
    except Exception as error:
        raise AttnProbeError(
            f"the tokenizer for the model {origin.name!r} does not load ({summarize_error(error)}). "
            f"{TOKENIZER_ADVICE}"
        ) from error
    check_tokenizer(tokenizer, origin.name)
    return tokenizer


def load_processor(origin: Origin) -> Any:
    """Load the image processor that was saved with a model.

    Args:
        origin: the checkpoint's source.

    Returns:
        The processor; None if it is missing or cannot be loaded, for example without Pillow.
    """
    try:
        # The security checker bandit requires a revision here. It is in hub_arguments.
        return AutoImageProcessor.from_pretrained(  # nosec B615
            origin.name,
            trust_remote_code=origin.trust_remote_code,
            **origin.hub_arguments,
        )
    except Exception:
        return None


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Check that a tokenizer has a vocabulary, and that its settings have valid types.

    Args:
        tokenizer: the tokenizer.
        name: model name for the error message.

    Raises:
        AttnProbeError: if the tokenizer has only special tokens, returns no attention mask, or has
            a maximum length that is not a number.
    """
    n_ordinary_tokens = len(tokenizer) - len(set(tokenizer.all_special_ids))
    if n_ordinary_tokens < MIN_ORDINARY_TOKENS:
        raise AttnProbeError(
            f"the model {name!r} has no tokenizer, because its files are missing. {TOKENIZER_ADVICE}"
        )
    if "attention_mask" not in tokenizer.model_input_names:
        raise AttnProbeError(
            "expected 'attention_mask' in model_input_names in the tokenizer_config.json of "
            f"{name!r}, got {tokenizer.model_input_names}; correct the file"
        )
    max_length = tokenizer.model_max_length
    if isinstance(max_length, bool) or not isinstance(max_length, int | float):
        raise AttnProbeError(
            f"expected a number for model_max_length in the tokenizer_config.json of {name!r}, got "
            f"{max_length!r}; correct the file"
        )


def check_tokenizer_fits_model(
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig | None,
    n_embeddings: int | None,
    *,
    pads: bool = True,
) -> None:
    """Check that a tokenizer may belong to a model, from vocabulary size and special tokens.

    Args:
        tokenizer: the tokenizer.
        config: the model's configuration; None if it has none.
        n_embeddings: number of token ids that the model embeds; None if it is unknown.
        pads: whether texts are padded; False for language models, which read one prompt at a time.

    Raises:
        AttnProbeError: if the tokenizer has far fewer tokens than the model embeds, the padding id
            has no embedding, or special tokens have other ids than in the configuration.
    """
    advice = "Load the tokenizer that was saved with the model."
    if n_embeddings is not None and len(tokenizer) < MIN_VOCABULARY_SHARE * n_embeddings:
        raise AttnProbeError(
            f"the tokenizer has {len(tokenizer)} tokens, but the model has embeddings for "
            f"{n_embeddings} tokens. {advice}"
        )
    padding_id = tokenizer.pad_token_id if pads else None
    if n_embeddings is not None and padding_id is not None and padding_id >= n_embeddings:
        raise AttnProbeError(
            f"the tokenizer's padding token {tokenizer.pad_token!r} has the id {padding_id}, but the "
            f"model has embeddings only for ids below {n_embeddings}. {advice}"
        )
    for name in ("pad", "cls", "sep") if pads else ():
        config_id = getattr(config, f"{name}_token_id", None)
        tokenizer_id = getattr(tokenizer, f"{name}_token_id")
        if None not in (config_id, tokenizer_id) and config_id != tokenizer_id:
            raise AttnProbeError(
                f"{name}_token_id is {config_id} in the model's configuration, but {tokenizer_id} in "
                f"the tokenizer. {advice}"
            )
