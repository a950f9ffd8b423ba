"""What is audited: a model behind the protocol, and its tokenizer.

Attention classifiers are audited in float64. Leave-one-out ranks differences of 1e-8 where a
prediction is saturated; in float32 such ranks belong to the matrix kernels, and τ then changes
with the batch size by about .01. It costs about twice the time.
"""

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import (
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.pretrained import unwrap_peft
from hf_attnprobe.adapters.transformer.layout import get_embeddings_module
from hf_attnprobe.adapters.transformer.task_heads import predicts_number
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.checkpoints.loading import (
    TEXT_GENERATION,
    check_tokenizer_fits_model,
    check_tokenizer,
    find_head_by_class,
    load_model,
    load_processor,
    load_tokenizer,
    find_saved_task,
)
from hf_attnprobe.checkpoints.origins import Origin, find_commit, locate_checkpoint
from hf_attnprobe.checkpoints.weights import change_weights
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import multiplies_bfloat16
from hf_attnprobe.core.options import SavedModel, as_saved
from hf_attnprobe.core.serialization import in_short
from hf_attnprobe.inference.encoding import (
    ImageReader,
    find_mask_id,
    make_image_reader,
    accepts_images,
)
from hf_attnprobe.protocol import AttentionModelBase


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
"""What an audit takes for a model."""

TokenizerLike = Any
"""A tokenizer, or for a model of images its image processor."""

HALF_PRECISION_TYPES = ("bfloat16", "float16")
SLOW_CPU_TYPES = {torch.bfloat16, torch.float16}


@dataclass(frozen=True)
class AuditedModel:
    """The model that is audited, by name and behind the protocol, and its tokenizer.

    ``origin`` is what a report records of where the model is from. ``has_unit`` is False
    of a model that predicts a number where nothing says what its changes are counted in.
    ``exact`` makes the same model in float32 where it is asked for in half precision.
    """

    name: str
    adapter: AttentionModelBase
    tokenizer: PreTrainedTokenizerBase | ImageReader
    origin: Mapping[str, Any] = field(default_factory=dict)
    has_number_unit: bool = True
    make_float32_adapter: Callable[[], AttentionModelBase] | None = None


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer, before any adapter; the fields are those of a Subject."""

    name: str
    model: Any
    tokenizer: PreTrainedTokenizerBase | ImageReader
    origin: Mapping[str, Any]


def load_audited_model(
    model: Any,
    tokenizer: TokenizerLike | None,
    options: AuditOptions,
    device: torch.device,
    *,
    spread: float | None = None,
    unit: str | None = None,
) -> AuditedModel:
    """The model behind the protocol, on its device, with its tokenizer.

    Args:
        model: a folder, a Hub id, a :class:`~hf_attnprobe.core.options.SavedModel`, a loaded
            model, a (model, tokenizer) pair, a pipeline, or an adapter.
        tokenizer: that of a model that is given as an object.
        spread: standard deviation of the labels, the unit of a predicted number.
        unit: of a language model: what a passage is cut into, see :class:`BatchFunction`.

    Raises:
        AttnProbeError: it does not load, it has no tokenizer or another model's, or its
            kind cannot be audited.
    """
    model, tokenizer = _unpack_model(model, tokenizer)
    if isinstance(model, AttentionModelBase):
        own = ("dtype", "weights", "level", "threshold", "scale")
        _refuse_options(options, own, "an adapter, which has its own")
        loaded = _load_model(model.model, tokenizer)
        _check_tokenizer_fits(loaded, model)
        return AuditedModel(loaded.name, model, loaded.tokenizer, loaded.origin)
    loaded = _load_model(model, tokenizer)
    if options.weights is not None:
        is_users = loaded.model is model
        loaded = _change_weights(loaded, options.weights, options.seed, is_users=is_users)
    arguments = {
        "dtype": None if options.dtype is None else getattr(torch, options.dtype),
        "level": options.level,
        **_build_head_options(loaded, options, spread, unit),
    }

    def wrapped(model: nn.Module, **others: Any) -> AttentionModelBase:
        return wrap(model, **(arguments | others))

    _check_weight_values(loaded.model)
    adapter = wrapped(_move_to_device(loaded.model, device))
    _check_tokenizer_fits(loaded, adapter)
    _warn_if_slow(loaded.model, options, device)

    has_unit = not adapter.prediction.is_number or bool(options.scale or spread)
    in_float32 = partial(wrapped, loaded.model, dtype=torch.float32)
    exact = in_float32 if options.dtype in HALF_PRECISION_TYPES else None
    return AuditedModel(
        loaded.name,
        adapter,
        loaded.tokenizer,
        loaded.origin,
        has_number_unit=has_unit,
        make_float32_adapter=exact,
    )


def check_number_unit(subject: AuditedModel) -> None:
    """Raises AttnProbeError where a number is predicted whose unit is not known.

    Call it once the labels are known to be numbers.
    """
    if not subject.has_number_unit:
        raise AttnProbeError(
            f"{subject.name} predicts a number: expected different labels, whose standard "
            "deviation is the unit of its changes; name their column with "
            "--label-column, or give the unit with --scale"
        )


def _unpack_model(model: Any, tokenizer: TokenizerLike | None) -> tuple[Any, TokenizerLike | None]:
    """Model and tokenizer of a pipeline or a pair."""
    if isinstance(model, Pipeline):
        reads = model.image_processor if accepts_images(model.model) else model.tokenizer
        pair: tuple[Any, Any] = (model.model, reads)
    elif isinstance(model, tuple | list):
        is_image = len(model) == 2 and accepts_images(model[0])
        is_text = len(model) == 2 and isinstance(model[1], PreTrainedTokenizerBase)
        if not is_image and not is_text:
            kinds = ", ".join(type(part).__name__ for part in model)
            raise AttnProbeError(
                f"expected a pair of model and tokenizer, got ({kinds}); give both, in this order"
            )
        pair = model[0], model[1]
    else:
        return model, tokenizer
    if tokenizer is not None:
        raise AttnProbeError(
            f"expected no tokenizer beside a {type(model).__name__}, which has its own; "
            "leave it out"
        )
    return pair


def _load_model(model: Any, tokenizer: TokenizerLike | None) -> LoadedModel:
    """Name, model and tokenizer; a model given as an object is used as it is."""
    saved = as_saved(model)
    if isinstance(saved, SavedModel):
        return _load_saved_model(saved, tokenizer)
    origin = str(getattr(model, "name_or_path", "") or "")
    if tokenizer is None and not origin and not accepts_images(model):
        raise AttnProbeError(
            "expected a tokenizer with a model given as an object; pass tokenizer="
        )
    place = partial(locate_checkpoint, origin) if origin else None
    reads = _resolve_tokenizer(model, tokenizer, place)
    return LoadedModel(origin or type(model).__name__, model, reads, {})


def _change_weights(loaded: LoadedModel, weights: str, seed: int, *, is_users: bool) -> LoadedModel:
    """The same with its weights changed; a model of the user's is copied before."""
    changed = copy.deepcopy(loaded.model) if is_users else loaded.model
    change_weights(unwrap_peft(changed), weights, seed)
    return replace(loaded, model=changed, origin={**loaded.origin, "weights": weights})


def _load_saved_model(saved: SavedModel, tokenizer: TokenizerLike | None) -> LoadedModel:
    name, origin = str(saved.model), locate_checkpoint(saved)
    task = TEXT_GENERATION if saved.gguf_file is not None else saved.task
    model = load_model(origin, task=task)
    commit = find_commit(origin)
    # of the same commit, whatever was pushed since
    place = replace(origin, revision=commit or origin.revision)
    reads = _resolve_tokenizer(model, tokenizer, lambda: place)
    is_elsewhere = origin.folder and origin.name != name
    known = {
        "checkpoint": origin.name if is_elsewhere else None,
        "revision": origin.revision,
        "subfolder": origin.subfolder,
        "commit": commit,
    }
    version = {key: value for key, value in known.items() if value is not None}
    return LoadedModel(name, model, reads, version)


def _resolve_tokenizer(
    model: Any, given: TokenizerLike | None, place: Callable[[], Origin] | None
) -> PreTrainedTokenizerBase | ImageReader:
    """The tokenizer that was given, or that of the model; a reader of images for those.

    Args:
        given: a tokenizer, or an image processor.
        place: where the model is from; None where that is not known.
    """
    if accepts_images(model):
        processor = given or (load_processor(place()) if place else None)
        return make_image_reader(model, processor)
    if given is not None:
        if not isinstance(given, PreTrainedTokenizerBase):
            raise AttnProbeError(
                f"expected a tokenizer of Transformers, got {in_short(given)}; pass "
                "tokenizer=AutoTokenizer.from_pretrained(…)"
            )
        return given
    assert place is not None  # else the caller has refused
    return load_tokenizer(place())


def is_language_model(model: Any) -> bool:
    """Whether what an audit takes for a model generates text; see :func:`load_audited_model`.

    Of a folder or a Hub id its configuration is read.

    Raises:
        AttnProbeError: the configuration cannot be read.
    """
    model = as_saved(model)
    if isinstance(model, SavedModel):
        is_said = model.gguf_file is not None or model.task == TEXT_GENERATION
        return is_said or find_saved_task(locate_checkpoint(model)) == TEXT_GENERATION
    if isinstance(model, AttentionModelBase):
        return model.prediction.kind == "answer"
    inner = model.model if isinstance(model, Pipeline) else model
    inner = inner[0] if isinstance(inner, tuple | list) and inner else inner
    return isinstance(inner, nn.Module) and _generates_text(inner)


def _generates_text(model: nn.Module) -> bool:
    head = find_head_by_class(type(unwrap_peft(model)).__name__)
    return head is not None and head.task == TEXT_GENERATION


def _build_head_options(
    loaded: LoadedModel,
    options: AuditOptions,
    spread: float | None,
    unit: str | None,
) -> dict[str, Any]:
    """What the adapter of a Transformers model must be told about its head."""
    model = loaded.model
    if isinstance(model, nn.Module) and _generates_text(model):
        of_classifiers = ("level", "threshold", "scale")
        why = "a language model, whose units are those of Answers"
        _refuse_options(options, of_classifiers, why)
        return {"rows": options.rows, "unit": unit}
    if options.rows != "behind":
        raise AttnProbeError(
            f"expected a language model for rows={options.rows!r}, {loaded.name} is none; leave "
            "it out"
        )
    given: dict[str, Any] = {
        "threshold": options.threshold,
        "mask_id": _find_erasure_id(loaded.tokenizer, unwrap_peft(model)),
    }
    if options.predicts != "auto":
        given["predicts"] = options.predicts
    config = getattr(model, "config", None)
    if isinstance(config, PreTrainedConfig) and predicts_number(config, options.predicts):
        given["scale"] = options.scale or spread
    elif options.scale is not None:
        raise AttnProbeError(
            "expected a scale for a model that predicts a number, this one does not; "
            "leave it out, or say --predicts number"
        )
    return given


def _move_to_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The model on a device; one that is spread over several (``device_map``) stays there."""
    spread = set((getattr(model, "hf_device_map", None) or {}).values())
    return model if len(spread) > 1 else model.to(device)


def _check_weight_values(model: nn.Module) -> None:
    """Raises AttnProbeError where a weight has no value that can be read, or nothing computes."""
    for name, weight in {"": torch.empty(0), **model.state_dict()}.items():
        if isinstance(weight, torch.Tensor) and weight.is_meta:
            raise AttnProbeError(
                f"expected weights with values, {name or 'every new tensor'} is on the device "
                "'meta'; load the model without cpu_offload, disk_offload and "
                "set_default_device('meta')"
            )
        if not name.endswith("_extra_state") and not isinstance(weight, torch.Tensor):
            raise AttnProbeError(
                f"expected weights as tensors, {name} is packed, as quantize_dynamic does; "
                "audit the model as it was before"
            )


def _check_tokenizer_fits(loaded: LoadedModel, adapter: AttentionModelBase) -> None:
    """Checks the tokenizer; whether it is the model's only where a configuration tells."""
    if isinstance(loaded.tokenizer, ImageReader):
        return
    check_tokenizer(loaded.tokenizer, loaded.name)
    config = getattr(adapter.model, "config", None)
    if isinstance(config, PreTrainedConfig):
        pads = adapter.max_batch_size != 1
        check_tokenizer_fits_model(loaded.tokenizer, config, adapter.n_embeddings, pads=pads)


def _warn_if_slow(model: nn.Module, options: AuditOptions, device: torch.device) -> None:
    kind = getattr(model, "dtype", None)
    slow = SLOW_CPU_TYPES - {torch.bfloat16} if multiplies_bfloat16() else SLOW_CPU_TYPES
    if device.type == "cpu" and options.dtype is None and kind in slow:
        logger.warning(
            "computing in %s, as the checkpoint was saved, which a CPU does slowly; "
            "--dtype float32 is faster and more exact",
            str(kind).removeprefix("torch."),
        )


def _find_erasure_id(tokenizer: TokenizerLike, model: nn.Module) -> int | None:
    """The token that stands in for an erased one; None where there are no embeddings."""
    if not isinstance(model, PreTrainedModel) or isinstance(tokenizer, ImageReader):
        return None
    if type(model).__name__.endswith("ForMaskedLM"):
        return tokenizer.mask_token_id  # no other token will do
    is_table = isinstance(get_embeddings_module(model), nn.Embedding)
    return find_mask_id(tokenizer, model) if is_table else None


def _refuse_options(options: AuditOptions, names: Sequence[str], why: str) -> None:
    """Raises AttnProbeError where one of some options is given."""
    for name in names:
        given = getattr(options, name)
        if given is not None:
            raise AttnProbeError(f"expected no {name} with {why}, got {given!r}; leave it out")
