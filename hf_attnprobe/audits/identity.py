"""Audit identity: fingerprints for the model and the data, and all settings that affect the rows.

An output folder contains the rows of audits with the same identity. An audit with another identity
cannot use the folder, so rows from different models, data or settings are never mixed.
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
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import compute_dataset_fingerprint
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.functional.fingerprint import hash_tensors
from hf_attnprobe.inference.answers import list_end_tokens
from hf_attnprobe.inference.encoding import InputReader
from hf_attnprobe.inference.instances import InstanceReader


if TYPE_CHECKING:
    import datasets


IGNORED_SETTINGS = ("architectures", "auto_map", "dtype", "torch_dtype")
"""Model settings that are ignored in the fingerprint of a model's configuration.

The first two only describe how the model was saved. The data types are already part of the
fingerprint of the weights.
"""
ORIGIN_WORDS = ("name", "path", "file", "version")
"""Words in the names of settings that describe the origin of a model, such as "name_or_path".

A fingerprint ignores these settings, so it stays the same if the model is moved to another folder.
"""
TOKENIZER_ATTRIBUTES = (
    "model_input_names",
    "model_max_length",
    "padding_side",
    "special_tokens_map",
    "truncation_side",
)
"""Tokenizer attributes that are part of a tokenizer's fingerprint.

They are listed here because the serialised backend of a fast tokenizer does not contain them.
"""


def build_identity(
    audited_model: AuditedModel,
    examples: "datasets.Dataset",
    data: Data,
    options: AuditOptions,
    selection: AuditSelection,
) -> dict[str, Any]:
    """Build the record that identifies an audit's rows.

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
        # The selected heads depend on the texts, so the record includes their number.
        screen = [screen, data.test_limit, "crossed"]
    identity: dict[str, Any] = {
        **compute_fingerprints(audited_model),
        "data_fingerprint": compute_dataset_fingerprint(examples),
        "seed": options.seed,
        "options": _list_recorded_options({**selection.requested_options, **selection.tests}),
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
        **({} if options.region_size is None else {"region_size": options.region_size}),
        "truncate": options.truncate,
        "dtype": options.dtype or "default",
        "prediction": dataclasses.asdict(adapter.prediction),
    }
    if isinstance(data, Answers):
        # A model that generates text reads no images or bags.
        assert not isinstance(audited_model.tokenizer, InputReader)
        chat_template = getattr(audited_model.tokenizer, "chat_template", None)
        answers: dict[str, Any] = {
            "units": data.units,
            "rows": options.rows,
            "template": [data.template, chat_template],
            "max_new_tokens": data.max_new_tokens,
        }
        if None in _read_data_answers(examples):
            # The model generates the missing answers, which end at these tokens.
            answers["end_tokens"] = list_end_tokens(
                get_user_model(audited_model), audited_model.tokenizer
            )
        identity["answers"] = answers
    # Output folders from older versions have no such entry.
    if options.segment is not None:
        identity["segment"] = options.segment
    return identity


def _read_data_answers(examples: "datasets.Dataset") -> list[str | None]:
    """Read the answers in the data; None for each prompt that the model has to answer."""
    if "answer" not in examples.column_names:
        return [None] * len(examples)
    return read_column(examples, "answer")


def _list_recorded_options(options_by_test: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """List the options of all registered tests for the record that identifies an audit.

    Tests that do not run are included with their default options. A later run can then add such a
    test only with the same options. Tests from other packages with default options are left out,
    because another package may be installed between two runs.
    """
    recorded_options = {}
    for name, test in load_tests().items():
        options = options_by_test.get(name, test.options())
        values = dataclasses.asdict(options)
        is_built_in = test.function.__module__.startswith("hf_attnprobe.")
        has_default_options = options == test.options()
        if values and (is_built_in or not has_default_options):
            recorded_options[name] = values
    return recorded_options


def compute_fingerprints(audited_model: AuditedModel) -> dict[str, str]:
    """Compute fingerprints for a model's weights, configuration and tokenizer.

    Fingerprints stay the same if the model is saved in another folder or format, or has been run.

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
    """Return the module of the original model, before any changes by the adapter."""
    adapter = audited_model.adapter
    return getattr(adapter, "user_model", adapter.model)


def _hash_configuration(model: nn.Module) -> str:
    """Hash a model's configuration, and the buffers that are not saved with its weights."""
    config = getattr(model, "config", None)
    saved_names = model.state_dict().keys()
    settings = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
    unsaved_buffers = {
        name: buffer for name, buffer in model.named_buffers() if name not in saved_names
    }
    return hash_json([_remove_origin_settings(settings), hash_tensors(unsaved_buffers)])


def _hash_tokenizer(tokenizer: PreTrainedTokenizerBase | InputReader) -> str:
    """Hash a tokenizer's settings and vocabulary, or the settings of a reader of images or bags."""
    if isinstance(tokenizer, InstanceReader):
        return hash_json([tokenizer.column, tokenizer.feature_size, tokenizer.n_items])
    if isinstance(tokenizer, InputReader):
        get_settings = getattr(getattr(tokenizer, "processor", None), "to_dict", dict)
        return hash_json(_remove_origin_settings(get_settings()))
    if tokenizer.is_fast:
        # Truncation and padding depend on the last call, so they are not part of the identity.
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
    """Remove settings that do not affect predictions, also from nested settings.

    These are :data:`IGNORED_SETTINGS`, private settings (names that start with an underscore) and
    settings about the model's origin (names that contain one of :data:`ORIGIN_WORDS`).
    """
    if not isinstance(settings, Mapping):
        return settings
    remaining_settings = {}
    for name, value in settings.items():
        is_private = str(name).startswith("_")
        describes_origin = not set(ORIGIN_WORDS).isdisjoint(str(name).split("_"))
        if name not in IGNORED_SETTINGS and not is_private and not describes_origin:
            remaining_settings[str(name)] = _remove_origin_settings(value)
    return remaining_settings


def hash_json(content: Any) -> str:
    """Hash JSON data.

    Args:
        content: The data; objects that JSON cannot represent are converted to strings.

    Returns:
        16 hexadecimal digits.
    """
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
