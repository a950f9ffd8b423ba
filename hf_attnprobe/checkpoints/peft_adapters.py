"""LoRA and its like: weights that peft saved without the model that they change."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import (
    cached_file,
    find_adapter_config_file,
    is_peft_available,
)

from hf_attnprobe.checkpoints.configurations import load_config
from hf_attnprobe.checkpoints.heads import Head, check_weights, head_for, head_of
from hf_attnprobe.checkpoints.origins import Origin, origin_of
from hf_attnprobe.checkpoints.trust import (
    check_adapter_is_data,
    check_weights_are_data,
)
from hf_attnprobe.errors import AttnProbeError


TASKS = {
    "SEQ_CLS": "text-classification",
    "TOKEN_CLS": "token-classification",
    "QUESTION_ANS": "question-answering",
}
"""What peft calls the heads."""

PREFIX = "base_model.model."
"""What peft puts before the names of saved weights."""


def adapter_config(origin: Origin) -> dict[str, Any] | None:
    """What ``adapter_config.json`` says; None of a whole model.

    Raises:
        AttnProbeError: it cannot be read, or names no base.
    """
    with origin.reported():
        file = find_adapter_config_file(origin.name, **origin.place)
        if file is None:
            return None
        values = json.loads(Path(file).read_text())
    if not isinstance(values, dict) or not _base_name(origin, values):
        raise AttnProbeError(
            f"expected a base model in adapter_config.json of {origin.name}, found none; "
            "save the adapter again"
        )
    return values


def base_of(origin: Origin, values: Mapping[str, Any]) -> Origin:
    """Where an adapter's base model is: beside it, or where its configuration says."""
    return origin_of(
        _base_name(origin, values),
        revision=values.get("revision"),
        token=origin.token,
        trust_remote_code=origin.trust_remote_code,
        allow_pickle=origin.allow_pickle,
    )


def _base_name(origin: Origin, values: Mapping[str, Any]) -> str:
    if origin.folder is not None and (origin.folder / "config.json").exists():
        return origin.name
    return str(values.get("base_model_name_or_path") or "")


def has_tokenizer(origin: Origin) -> bool:
    """Whether a tokenizer was saved beside the weights."""
    with origin.reported():
        file = cached_file(
            origin.name,
            "tokenizer_config.json",
            _raise_exceptions_for_missing_entries=False,
            **origin.place,
        )
    return file is not None


def load_adapted(origin: Origin, values: Mapping[str, Any], task: str | None) -> PreTrainedModel:
    """The base model with an adapter's weights added into its own.

    Its outputs are those of the two side by side, but for rounding.

    Raises:
        AttnProbeError: peft is not installed, the base does not load, a head that is
            nowhere, or an adapter whose weights cannot be added.
    """
    if not is_peft_available():
        raise AttnProbeError(
            f"expected a whole model in {origin.name}, found a peft adapter, and peft is "
            "not installed; pip install peft, or save the merged model"
        )
    import peft

    check_adapter_is_data(origin)
    _check_can_be_added(origin, values)
    base = base_of(origin, values)
    config = load_config(base)
    check_weights_are_data(base, config.to_dict())
    head = _head(config, values, base, task)
    with origin.reported():
        weights = peft.load_peft_weights(origin.name, device="cpu", **origin.place)
    brought = {name.removeprefix(PREFIX) for name in weights}
    n_labels = _labels_of(weights, config, head)
    if n_labels not in (None, config.num_labels):
        config.num_labels = n_labels
    with base.reported():
        model, info = head.auto.from_pretrained(
            base.name,
            config=config,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=base.trust_remote_code,
            use_safetensors=None if base.allow_pickle else True,
            adapter_kwargs={},
            **base.place,
        )
    # The base may have had another head, or none: then the adapter must bring all of it.
    info["unexpected_keys"] = []
    check_weights(base.name, model.base_model_prefix, info, brought=brought)
    with origin.reported(), warnings.catch_warnings():
        # peft asks Transformers by a name that goes with the next major version
        warnings.simplefilter("ignore", FutureWarning)
        adapted = peft.PeftModel.from_pretrained(model, origin.name, **origin.place)
    with origin.reported():
        return adapted.merge_and_unload().eval().requires_grad_(True)


def _check_can_be_added(origin: Origin, values: Mapping[str, Any]) -> None:
    """Before anything of it is loaded: prompts bring tokenizers and files of their own."""
    from peft import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    name = str(values.get("peft_type"))
    known = {kind.value: made for kind, made in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    if name not in known or issubclass(known[name], PromptLearningConfig):
        raise AttnProbeError(
            f"expected an adapter whose weights can be added to the model's, as LoRA's, "
            f"{origin.name} is {name}; it cannot be audited"
        )


def _head(
    config: PreTrainedConfig,
    values: Mapping[str, Any],
    base: Origin,
    task: str | None,
) -> Head:
    """The head that the adapter was trained with; else that of its base."""
    named = TASKS.get(str(values.get("task_type")))
    if named is not None and task not in (None, named):
        raise AttnProbeError(
            f"expected the task {named}, which the adapter was trained for, got {task!r}; "
            "leave --task out"
        )
    if named is not None or task is not None:
        return head_for(named or task or "")
    return head_of(config, base.name)


def _labels_of(
    weights: Mapping[str, torch.Tensor], config: PreTrainedConfig, head: Head
) -> int | None:
    """How many outputs the head has that an adapter brings; None if it brings none."""
    with torch.device("meta"):
        empty = head.auto.from_config(config)
    last = None
    for name, module in empty.named_modules():
        if isinstance(module, torch.nn.Linear) and (module.out_features == config.num_labels):
            last = weights.get(f"{PREFIX}{name}.weight", last)
    return None if last is None else len(last)
