"""What tells two audited models apart: weights, configuration and tokenizer, as hashes."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from hf_attnprobe.auditing.subject import Subject
from hf_attnprobe.functional.fingerprint import hash_of_tensors
from hf_attnprobe.inference.images import ImageReader


NO_SETTINGS = ("architectures", "auto_map", "dtype", "torch_dtype")
"""Of a configuration what saving adds; of what kind the weights are, they say."""
ELSEWHERE = ("name", "path", "file", "version")
"""Parts of the names of settings that say where a model is from."""
OF_TOKENIZER = (
    "model_input_names",
    "model_max_length",
    "padding_side",
    "special_tokens_map",
    "truncation_side",
)


def fingerprints(subject: Subject) -> dict[str, str]:
    """16 hexadecimal digits each of the model's weights, its configuration, its tokenizer.

    They are the same wherever the model was saved, and before and after it was run.
    """
    model = getattr(subject.adapter, "given", subject.adapter.model)
    return {
        "model_fingerprint": subject.adapter.fingerprint(),
        "configuration_fingerprint": _of_configuration(model),
        "tokenizer_fingerprint": _of_tokenizer(subject.tokenizer),
    }


def _of_configuration(model: nn.Module) -> str:
    """Of the settings, and of buffers that are not saved with the weights."""
    config, saved = getattr(model, "config", None), model.state_dict().keys()
    settings = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
    buffers = {n: b for n, b in model.named_buffers() if n not in saved}
    return _hash([_kept(settings), hash_of_tensors(buffers)])


def _of_tokenizer(tokenizer: PreTrainedTokenizerBase | ImageReader) -> str:
    if isinstance(tokenizer, ImageReader):
        return _hash(_kept(getattr(tokenizer.processor, "to_dict", dict)()))
    if tokenizer.is_fast:
        # what truncates and pads is what the last call asked for
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        content = {**backend, "truncation": None, "padding": None}
    else:
        content = {"vocabulary": tokenizer.get_vocab(), **_kept(tokenizer.init_kwargs)}
    return _hash([content, {name: getattr(tokenizer, name) for name in OF_TOKENIZER}])


def _kept(settings: Any) -> Any:
    """Nested settings without names, paths and versions."""
    if not isinstance(settings, Mapping):
        return settings
    return {
        str(name): _kept(value)
        for name, value in settings.items()
        if name not in NO_SETTINGS
        and not str(name).startswith("_")
        and not any(word in str(name).split("_") for word in ELSEWHERE)
    }


def _hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
