"""Loads the audited model with its adapter, its tokenizer and a record of its origin.

Attention classifiers are audited in float64, which takes about twice the time of float32. If a
probability is close to 1, erasing a word may change it by only 1e-8. In float32, the order of such
words would depend on rounding errors. Kendall's τ would then change by about 0.01 if the batch size
changes.
"""

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import (
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.adapters import adapt_model, describe_instances, wrap
from hf_attnprobe.adapters.pretrained import unwrap_peft
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.transformer.custom_model import CustomModel
from hf_attnprobe.adapters.transformer.layout import get_embeddings_module
from hf_attnprobe.adapters.transformer.task_heads import predicts_number
from hf_attnprobe.adapters.wrappers import get_holder_max_length, unpack_holder, unwrap_module
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.pipeline_settings import limit_length, unpack_pipeline
from hf_attnprobe.checkpoints.loading import (
    TEXT_GENERATION,
    check_tokenizer,
    check_tokenizer_fits_model,
    find_head_by_class,
    find_saved_task,
    load_model,
    load_processor,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.origins import Origin, find_commit, locate_checkpoint
from hf_attnprobe.checkpoints.weights import change_weights
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import has_native_bfloat16
from hf_attnprobe.core.options import SavedModel, convert_model_name
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.inference.encoding import (
    ImageReader,
    InputReader,
    accepts_images,
    find_mask_id,
    make_image_reader,
)
from hf_attnprobe.inference.instances import InstanceReader
from hf_attnprobe.protocol import AttentionModelBase


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

ModelLike = (
    str
    | os.PathLike[str]
    | SavedModel
    | nn.Module
    | AttentionModelBase
    | Pipeline
    | tuple[nn.Module, PreTrainedTokenizerBase]
    | list[Any]
)
"""Type of the argument ``model`` of an audit.

It is a folder or a Hub id (a string), a saved model with its loading options, a loaded model, an
adapter, a pipeline, a (model, tokenizer) pair, or an object that contains both, such as a `Trainer`.
A loaded model may be wrapped, for example by `torch.compile`.
"""
TokenizerLike = Any
"""Type of the argument ``tokenizer``: a tokenizer, or an image processor for an image model."""
HALF_PRECISION_TYPES = ("bfloat16", "float16")
"""Values of ``--dtype`` for half precision (16 bits).

An audit in half precision first compares the results for a few texts with float32.
"""
SLOW_CPU_TYPES = {torch.bfloat16, torch.float16}
"""Data types that are slower than float32 on most CPUs."""


@dataclass(frozen=True)
class AuditedModel:
    """The audited model with its adapter and tokenizer.

    Attributes:
        name: Model name: a folder, a Hub id or a class.
        adapter: The adapter, which runs the model.
        tokenizer: Tokenizer, or reader of images or bags.
        origin: Plain data about the weights' origin, for the report's provenance.
        has_number_unit: False if the model predicts a number whose unit is unknown.
        make_float32_adapter: Function that makes a float32 adapter for the same model; None unless
            the audit uses half precision.
    """

    name: str
    adapter: AttentionModelBase
    tokenizer: PreTrainedTokenizerBase | InputReader
    origin: Mapping[str, Any] = field(default_factory=dict)
    has_number_unit: bool = True
    make_float32_adapter: Callable[[], AttentionModelBase] | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer, before an adapter is made.

    Attributes:
        name: Model name: a folder, a Hub id or a class.
        model: The module, or an object with a module inside, such as a PEFT model.
        tokenizer: Tokenizer, or reader of images or bags.
        origin: Plain data about the weights' origin, for the report's provenance.
    """

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase | InputReader
    origin: Mapping[str, Any]


def load_audited_model(
    model: Any,
    tokenizer: TokenizerLike | None,
    options: AuditOptions,
    device: torch.device,
    *,
    spread: float | None = None,
    unit: str | None = None,
    examples: "datasets.Dataset | None" = None,
) -> AuditedModel:
    """Load a model and its tokenizer, move the model to a device, and make its adapter.

    Args:
        model: A folder, a Hub id, a :class:`~hf_attnprobe.core.options.SavedModel`, a loaded model,
            a (model, tokenizer) pair, a pipeline, an adapter, or a Trainer.
        tokenizer: Tokenizer for a model that is passed as an object.
        options: Audit options.
        device: Device of the model.
        spread: Standard deviation of numeric labels, the default unit of a predicted number.
        unit: Unit into which passages are divided, such as "sentence", for a language model.
        examples: The audited data, from which an image model gets the size of its images. If it is
            None, images must have the size in the model's configuration.

    Returns:
        The model, ready to run.

    Raises:
        AttnProbeError: If the model cannot be loaded or audited, if its tokenizer is missing or
            belongs to another model, or if an option does not suit it.
    """
    model, tokenizer = _unpack_model(model, tokenizer)
    if isinstance(model, AttentionModelBase):
        adapter_options = ("dtype", "weights", "level", "region_size", "threshold", "scale")
        _refuse_options(options, adapter_options, "an adapter")
        reader = make_instance_reader(model)
        if reader is None:
            loaded = _load_model(model.model, tokenizer)
        else:
            _refuse_tokenizer(tokenizer)
            loaded = LoadedModel(type(model.model).__name__, model.model, reader, {})
        _check_tokenizer_fits(loaded, model)
        return AuditedModel(loaded.name, model, loaded.tokenizer, loaded.origin)
    loaded = _load_model(model, tokenizer)
    if options.weights is not None:
        is_users_model = loaded.model is model
        loaded = _change_weights(loaded, options.weights, options.seed, must_copy=is_users_model)
    if options.region_size is not None and not isinstance(loaded.tokenizer, ImageReader):
        raise AttnProbeError(
            f"--region-size {options.region_size} is only for models that read images, but "
            f"{loaded.name} reads none. Leave out --region-size."
        )
    image_size = None
    if isinstance(loaded.tokenizer, ImageReader) and examples is not None:
        image_reader = loaded.tokenizer.adapt_to_size(examples)
        if image_reader.shape != loaded.tokenizer.shape:
            image_size = image_reader.shape[1:]
            loaded = replace(loaded, tokenizer=image_reader)
    adapter_arguments = {
        "image_size": image_size,
        "region_size": options.region_size,
        "dtype": None if options.dtype is None else getattr(torch, options.dtype),
        "level": options.level,
        **_build_head_options(loaded, options, spread, unit),
    }
    _check_weight_values(loaded.model)
    adapter = wrap(_move_to_device(loaded.model, device), **adapter_arguments)
    _check_tokenizer_fits(loaded, adapter)
    _warn_if_slow(loaded.model, options, device)

    make_float32_adapter = None
    if options.dtype in HALF_PRECISION_TYPES:
        float32_arguments = {**adapter_arguments, "dtype": torch.float32}
        make_float32_adapter = partial(wrap, loaded.model, **float32_arguments)
    return AuditedModel(
        loaded.name,
        adapter,
        loaded.tokenizer,
        loaded.origin,
        has_number_unit=not adapter.prediction.is_number or bool(options.scale or spread),
        make_float32_adapter=make_float32_adapter,
    )


def explains_tokens(adapter: AttentionModelBase) -> bool:
    """Return whether the units of a model are the tokens of its tokenizer, instead of words.

    Classifiers of this package and users' adapters call their units "token" too, but each of these
    tokens is a word.

    Args:
        adapter: The adapter of the model.
    """
    return isinstance(adapter, TransformerAdapter) and adapter.level == "token"


def check_number_unit(audited_model: AuditedModel) -> None:
    """Check that the unit of a predicted number, such as a star rating from 1 to 5, is known.

    A model that predicts classes always passes. Call this function after the labels have been read,
    so that labels with a wrong type are reported first.

    Args:
        audited_model: The model to check.

    Raises:
        AttnProbeError: If the model predicts a number, but its unit is unknown.
    """
    if not audited_model.has_number_unit:
        raise AttnProbeError(
            f"{audited_model.name} predicts a number, but its unit is unknown, because the labels "
            "are missing or all equal. Name the label column with --label-column, or set the unit "
            "with --scale."
        )


def _unpack_model(model: Any, tokenizer: TokenizerLike | None) -> tuple[Any, TokenizerLike | None]:
    """Unpack an object that contains a model and its tokenizer, and remove the model's wrappers.

    Such an object is a pipeline, a Trainer, a CrossEncoder or a (model, tokenizer) pair. Any other
    model is returned together with the separate tokenizer.
    """
    holder = unwrap_module(model)
    held_pair = None if isinstance(holder, Pipeline) else unpack_holder(holder)
    if isinstance(holder, Pipeline):
        pair: tuple[Any, Any] = unpack_pipeline(holder)
    elif held_pair is not None:
        held_model, held_tokenizer = held_pair
        max_length = get_holder_max_length(holder)
        pair = held_model, held_tokenizer
        if held_tokenizer is None:
            # A Trainer without a tokenizer; it may have been passed separately.
            return _adapt(held_model), tokenizer
        if max_length is not None:
            pair = held_model, limit_length(held_tokenizer, max_length)
    elif isinstance(model, tuple | list):
        has_image_model = len(model) == 2 and accepts_images(unwrap_module(model[0]))
        has_tokenizer = len(model) == 2 and isinstance(model[1], PreTrainedTokenizerBase)
        if not has_image_model and not has_tokenizer:
            type_names = ", ".join(type(part).__name__ for part in model)
            raise AttnProbeError(f"expected a pair (model, tokenizer), got ({type_names})")
        pair = model[0], model[1]
    else:
        return _adapt(model), tokenizer
    if tokenizer is not None:
        raise AttnProbeError(
            f"the {type(model).__name__} already contains a tokenizer. Leave out the argument tokenizer."
        )
    return _adapt(pair[0]), pair[1]


def _adapt(model: Any) -> Any:
    """Remove a loaded model's wrappers and adapt a user's own class; return other models unchanged."""
    return adapt_model(model) if isinstance(model, nn.Module) else model


def _load_model(model: Any, tokenizer: TokenizerLike | None) -> LoadedModel:
    """Load a model and its tokenizer from a folder or the Hub.

    A model that is passed as a Python object is already loaded, and is used without changes.
    """
    resolved_model = convert_model_name(model)
    if isinstance(resolved_model, SavedModel):
        return _load_saved_model(resolved_model, tokenizer)
    source = str(getattr(model, "name_or_path", "") or "")
    reads_text = not accepts_images(model) and make_instance_reader(model) is None
    if tokenizer is None and not source and reads_text:
        raise AttnProbeError(
            "a model that is passed as an object needs a tokenizer. Add the argument tokenizer=..."
        )
    # The model's files are searched only if the tokenizer must be loaded from them.
    locate = partial(locate_checkpoint, source) if source else None
    resolved_tokenizer = _resolve_tokenizer(model, tokenizer, locate)
    # The origin of a user's own class is that of its encoder, so it does not name the model.
    name = type(model).__name__ if isinstance(model, CustomModel) else source
    return LoadedModel(name or type(model).__name__, model, resolved_tokenizer, {})


def _change_weights(loaded: LoadedModel, change: str, seed: int, *, must_copy: bool) -> LoadedModel:
    """Change the weights of a loaded model, or of a copy if the model belongs to the user."""
    model = copy.deepcopy(loaded.model) if must_copy else loaded.model
    change_weights(unwrap_peft(model), change, seed)
    return replace(loaded, model=model, origin={**loaded.origin, "weights": change})


def _load_saved_model(saved: SavedModel, tokenizer: TokenizerLike | None) -> LoadedModel:
    """Load a model from a folder or the Hub, and its tokenizer from the same commit."""
    name, origin = str(saved.model), locate_checkpoint(saved)
    task = TEXT_GENERATION if saved.gguf_file is not None else saved.task
    model = load_model(origin, task=task)
    commit = find_commit(origin)
    # The repository may change between two downloads, so the tokenizer's commit is fixed.
    pinned_origin = replace(origin, revision=commit or origin.revision)
    resolved_tokenizer = _resolve_tokenizer(model, tokenizer, lambda: pinned_origin)
    # The weights may be in another folder than the one that the user named.
    is_in_other_folder = origin.folder and origin.name != name
    record = {
        "checkpoint": origin.name if is_in_other_folder else None,
        "revision": origin.revision,
        "subfolder": origin.subfolder,
        "commit": commit,
    }
    record = {key: value for key, value in record.items() if value is not None}
    return LoadedModel(name, model, resolved_tokenizer, record)


def _resolve_tokenizer(
    model: Any,
    tokenizer: TokenizerLike | None,
    locate: Callable[[], Origin] | None,
) -> PreTrainedTokenizerBase | InputReader:
    """Choose the tokenizer for a loaded model.

    The user's tokenizer is used if there is one. Otherwise, the tokenizer that was saved with the
    model is loaded. A model that reads images gets an image reader instead.

    Args:
        model: The loaded model.
        tokenizer: The user's tokenizer or image processor; None to load the model's.
        locate: Function that returns the model's origin; None if it is unknown.

    Returns:
        The tokenizer, or the image reader.
    """
    reader = make_instance_reader(model)
    if reader is not None:
        _refuse_tokenizer(tokenizer)
        return reader
    if accepts_images(model):
        processor = tokenizer
        if not processor and locate:
            processor = load_processor(locate())
        return make_image_reader(model, processor)
    if tokenizer is None:
        # A model of unknown origin without a tokenizer has already caused an error.
        assert locate is not None
        return load_tokenizer(locate())
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise AttnProbeError(
            f"expected a Transformers tokenizer, got {format_short(tokenizer)}. Load one with "
            "AutoTokenizer.from_pretrained(...)."
        )
    return tokenizer


def make_instance_reader(model: Any) -> InstanceReader | None:
    """Make the reader of bags for a model that reads instances.

    Args:
        model: A loaded model or an adapter.

    Returns:
        The reader; None if the model reads texts or images.
    """
    reads = describe_instances(model)
    if reads is None:
        return None
    return InstanceReader(reads.column, reads.feature_size, reads.n_items)


def _refuse_tokenizer(tokenizer: Any) -> None:
    """Raise AttnProbeError if there is a tokenizer, although the model reads instances."""
    if tokenizer is not None:
        raise AttnProbeError(
            "the model reads bags of instances, which need no tokenizer. Leave out the argument "
            "tokenizer."
        )


def is_language_model(model: Any) -> bool:
    """Return whether a model generates text.

    For a folder or a Hub id, only the configuration is read, not the weights.

    Args:
        model: Anything that an audit accepts as a model; see :func:`load_audited_model`.

    Returns:
        True if the model generates text.

    Raises:
        AttnProbeError: If the configuration cannot be read.
    """
    model = convert_model_name(model)
    if isinstance(model, SavedModel):
        is_declared = model.gguf_file is not None or model.task == TEXT_GENERATION
        return is_declared or find_saved_task(locate_checkpoint(model)) == TEXT_GENERATION
    if isinstance(model, AttentionModelBase):
        return model.prediction.kind == "answer"
    model = unwrap_module(model)
    held_pair = unpack_holder(model)
    if isinstance(model, Pipeline):
        model = model.model
    elif held_pair is not None:
        model = held_pair[0]
    elif isinstance(model, tuple | list) and model:
        model = model[0]
    model = unwrap_module(model)
    return isinstance(model, nn.Module) and _generates_text(model)


def _generates_text(model: nn.Module) -> bool:
    """Return whether a module's class has a head that generates text."""
    head = find_head_by_class(type(unwrap_peft(model)).__name__)
    return head is not None and head.task == TEXT_GENERATION


def _build_head_options(
    loaded: LoadedModel,
    options: AuditOptions,
    spread: float | None,
    unit: str | None,
) -> dict[str, Any]:
    """Build the adapter arguments that depend on the model's head, such as a number's unit."""
    model = loaded.model
    if isinstance(model, nn.Module) and _generates_text(model):
        classifier_options = ("level", "threshold", "scale")
        _refuse_options(options, classifier_options, "a language model")
        return {"rows": options.rows, "unit": unit}
    if options.rows != "behind":
        raise AttnProbeError(
            f"rows={options.rows!r} can be used only with a language model, but {loaded.name} is "
            "another type of model. Remove this option."
        )
    head_options: dict[str, Any] = {
        "threshold": options.threshold,
        "mask_id": _find_erasure_id(loaded.tokenizer, unwrap_peft(model)),
    }
    if options.predicts != "auto":
        head_options["predicts"] = options.predicts
    config = getattr(model, "config", None)
    if isinstance(config, PreTrainedConfig) and predicts_number(config, options.predicts):
        head_options["scale"] = options.scale or spread
    elif options.scale is not None:
        raise AttnProbeError(
            "--scale can be used only with a model that predicts a number. Leave it out, or set "
            "--predicts number."
        )
    return head_options


def _move_to_device(model: nn.Module, device: torch.device) -> nn.Module:
    """Move a model to a device, unless ``device_map`` has spread it over several devices."""
    devices = set((getattr(model, "hf_device_map", None) or {}).values())
    return model if len(devices) > 1 else model.to(device)


def _check_weight_values(model: nn.Module) -> None:
    """Raise AttnProbeError if a weight has no values, or is not stored as a tensor."""
    # A new tensor is checked too, because the default device may be "meta".
    weights = {"every new tensor": torch.empty(0), **model.state_dict()}
    for name, weight in weights.items():
        if isinstance(weight, torch.Tensor) and weight.is_meta:
            raise AttnProbeError(
                f"{name} has no values, because it is on the device 'meta'. Load the "
                "model without cpu_offload, disk_offload and set_default_device('meta')."
            )
        if not name.endswith("_extra_state") and not isinstance(weight, torch.Tensor):
            raise AttnProbeError(
                f"expected the weight {name} as a tensor, but the model is quantized (for example with "
                "quantize_dynamic). Audit the model before it is quantized."
            )


def _check_tokenizer_fits(loaded: LoadedModel, adapter: AttentionModelBase) -> None:
    """Check that a tokenizer works and, if the model has a configuration, fits the model."""
    if isinstance(loaded.tokenizer, InputReader):
        return
    check_tokenizer(loaded.tokenizer, loaded.name)
    config = getattr(adapter.model, "config", None)
    if isinstance(config, PreTrainedConfig):
        # A model that reads one text at a time needs no padding token.
        pads = adapter.max_batch_size != 1
        check_tokenizer_fits_model(loaded.tokenizer, config, adapter.n_embeddings, pads=pads)


def get_number_format(adapter: AttentionModelBase) -> str:
    """Return the number format in which a model computes, such as "bfloat16".

    Durations in different formats cannot be compared, so it is printed with every duration.

    Args:
        adapter: The audited model.
    """
    formats = [weight.dtype for weight in adapter.model.parameters()]
    return next(
        str(number_format).removeprefix("torch.")
        for number_format in formats
        if number_format.is_floating_point
    )


def _warn_if_slow(model: nn.Module, options: AuditOptions, device: torch.device) -> None:
    """Log a warning if the model's data type is slow on this CPU."""
    dtype = getattr(model, "dtype", None)
    slow_types = SLOW_CPU_TYPES
    if has_native_bfloat16():
        slow_types = SLOW_CPU_TYPES - {torch.bfloat16}
    if device.type == "cpu" and options.dtype is None and dtype in slow_types:
        logger.warning(
            "the model's data type %s is slow on this CPU; --dtype float32 is faster and more exact",
            str(dtype).removeprefix("torch."),
        )


def _find_erasure_id(tokenizer: TokenizerLike, model: nn.Module) -> int | None:
    """Return the id of the token that replaces erased tokens; None if there is no such token."""
    if not isinstance(model, PreTrainedModel) or isinstance(tokenizer, InputReader):
        return None
    # A masked language model predicts only at its own mask token.
    if type(model).__name__.endswith("ForMaskedLM"):
        return tokenizer.mask_token_id
    has_embedding_table = isinstance(get_embeddings_module(model), nn.Embedding)
    return find_mask_id(tokenizer, model) if has_embedding_table else None


def _refuse_options(options: AuditOptions, names: Sequence[str], model_description: str) -> None:
    """Raise AttnProbeError if any of the named options is set.

    Args:
        options: Audit options.
        names: Names of options that must be None.
        model_description: Description of the model, which does not support these options.
    """
    for name in names:
        value = getattr(options, name)
        if value is not None:
            raise AttnProbeError(
                f"{name}={value!r} cannot be used with {model_description}. Leave it out."
            )
