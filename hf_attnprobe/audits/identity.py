"""Identity of an audit: fingerprints of the model and the data, and the settings of the rows.

The rows of an output folder belong to one identity. An audit with another identity is refused in
that folder, so that rows of different models, data or settings are never mixed.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from hf_attnprobe.audits.audited_model import AuditedModel
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.site_selection import AuditSelection, list_head_set_names
from hf_attnprobe.core.options import Options
from hf_attnprobe.data.examples import compute_dataset_fingerprint
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.functional.fingerprint import hash_tensors
from hf_attnprobe.inference.encoding import ImageReader


if TYPE_CHECKING:
    import datasets


IGNORED_SETTINGS = ("architectures", "auto_map", "dtype", "torch_dtype")
"""Settings of a configuration that depend on how the model was saved, not on its predictions.

The number format is part of the fingerprint of the weights.
"""
ORIGIN_WORDS = ("name", "path", "file", "version")
"""Words in the names of settings that record where a model comes from."""
TOKENIZER_ATTRIBUTES = (
    "model_input_names",
    "model_max_length",
    "padding_side",
    "special_tokens_map",
    "truncation_side",
)
"""Attributes of a tokenizer that its serialised backend does not contain."""


def build_identity(
    audited_model: AuditedModel,
    examples: "datasets.Dataset",
    data: Data,
    options: AuditOptions,
    selection: AuditSelection,
) -> dict[str, Any]:
    """Build the record that identifies the rows of an audit.

    Args:
        audited_model: The model with its adapter and tokenizer.
        examples: All examples in the split.
        data: The data specification.
        options: Audit options.
        selection: The tests and sites.

    Returns:
        Plain data. Two audits with the same identity can share an output folder.
    """
    adapter = audited_model.adapter
    screen: Any = options.screen
    if screen is not None:
        # The heads that are screened depend on the texts.
        screen = [screen, data.test_limit, "crossed"]
    identity = {
        **compute_fingerprints(audited_model),
        "data_fingerprint": compute_dataset_fingerprint(examples),
        "seed": options.seed,
        "options": _list_recorded_options({**selection.requested, **selection.tests}),
        "sites": {
            "layers": options.layers,
            "heads": options.heads,
            "query": options.query,
            "screen": screen,
        },
        "single_heads": options.single_heads,
        "groups": options.groups,
        "head_sets": list_head_set_names(adapter),
        "level": options.level or "default",
        "truncate": options.truncate,
        "dtype": options.dtype or "default",
        "prediction": dataclasses.asdict(adapter.prediction),
    }
    if isinstance(data, Answers):
        chat_template = getattr(audited_model.tokenizer, "chat_template", None)
        identity["answers"] = {
            "units": data.units,
            "rows": options.rows,
            "template": [data.template, chat_template],
            "max_new_tokens": data.max_new_tokens,
        }
    # Output folders of older versions have no such entry.
    if options.segment is not None:
        identity["segment"] = options.segment
    return identity


def _list_recorded_options(options_by_test: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """List the options of all registered tests, so that a test added later has the same options.

    Tests of other packages are listed only if their options differ from the defaults, because such
    a package may be installed between two runs.
    """
    recorded = {}
    for name, test in load_tests().items():
        options = options_by_test.get(name, test.options())
        is_built_in = test.function.__module__.startswith("hf_attnprobe.")
        values = dataclasses.asdict(options)
        if values and (is_built_in or options != test.options()):
            recorded[name] = values
    return recorded


def compute_fingerprints(audited_model: AuditedModel) -> dict[str, str]:
    """Compute fingerprints of a model's weights, configuration and tokenizer.

    They do not depend on the folder or format in which the model was saved, nor on whether the
    model has been run.

    Args:
        audited_model: The model with its adapter and tokenizer.

    Returns:
        Three fingerprints of 16 hexadecimal digits.
    """
    return {
        "model_fingerprint": audited_model.adapter.compute_fingerprint(),
        "configuration_fingerprint": _hash_configuration(get_user_model(audited_model)),
        "tokenizer_fingerprint": _hash_tokenizer(audited_model.tokenizer),
    }


def get_user_model(audited_model: AuditedModel) -> Any:
    """Return the module that the user passed, before the adapter changed or converted it."""
    adapter = audited_model.adapter
    return getattr(adapter, "user_model", adapter.model)


def _hash_configuration(model: nn.Module) -> str:
    """Hash the configuration of a model, and its buffers that are not saved with the weights."""
    config, saved_names = getattr(model, "config", None), model.state_dict().keys()
    settings = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
    unsaved_buffers = {
        name: buffer for name, buffer in model.named_buffers() if name not in saved_names
    }
    return hash_json([_remove_origin_settings(settings), hash_tensors(unsaved_buffers)])


def _hash_tokenizer(tokenizer: PreTrainedTokenizerBase | ImageReader) -> str:
    """Hash a tokenizer, or the image processor of a model that reads images."""
    if isinstance(tokenizer, ImageReader):
        get_settings = getattr(tokenizer.processor, "to_dict", dict)
        return hash_json(_remove_origin_settings(get_settings()))
    if tokenizer.is_fast:
        # Truncation and padding are left over from the last call of the tokenizer.
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        content = {**backend, "truncation": None, "padding": None}
    else:
        content = {
            "vocabulary": tokenizer.get_vocab(),
            **_remove_origin_settings(tokenizer.init_kwargs),
        }
    attributes = {name: getattr(tokenizer, name) for name in TOKENIZER_ATTRIBUTES}
    return hash_json([content, attributes])


def _remove_origin_settings(settings: Any) -> Any:
    """Remove names, paths and versions from nested settings."""
    if not isinstance(settings, Mapping):
        return settings
    return {
        str(name): _remove_origin_settings(value)
        for name, value in settings.items()
        if name not in IGNORED_SETTINGS
        and not str(name).startswith("_")
        and not any(word in str(name).split("_") for word in ORIGIN_WORDS)
    }


def hash_json(content: Any) -> str:
    """Hash data of JSON types.

    Args:
        content: The data; objects of other types are converted to strings.

    Returns:
        16 hexadecimal digits.
    """
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
