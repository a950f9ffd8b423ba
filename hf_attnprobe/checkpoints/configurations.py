"""The configuration of a checkpoint, its values checked before they reach tensors."""

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from hf_attnprobe.checkpoints.origins import Origin
from hf_attnprobe.checkpoints.trust import check_names_no_code
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import LARGEST


MOST_LABELS = 1_000_000
"""Transformers names every label when it reads a configuration: 10^12 take for ever."""
ENDS_A_TEXT = "eos_token_id"
"""Of a model that generates there may be several."""


def load_config(origin: Origin, **labels: Any) -> PreTrainedConfig:
    """The configuration of a checkpoint.

    Args:
        labels: ``id2label`` and ``label2id``, in place of the checkpoint's.

    Raises:
        AttnProbeError: there is none, one of its values is of the wrong type or range,
            or names code.
    """
    with origin.reported():
        values, _ = PreTrainedConfig.get_config_dict(origin.name, **origin.place)
        values = dict(values)
    check_values(values, origin.name)
    check_names_no_code(origin, values)
    with origin.reported():
        # whose revision it is, the user says: `place` holds it
        return AutoConfig.from_pretrained(  # nosec B615
            origin.name,
            trust_remote_code=origin.trust_remote_code,
            return_dict=True,  # adapters read what a model returns by its names
            **origin.place,
            **labels,
        )


def check_values(values: Mapping[str, Any], name: str) -> None:
    """Checks the values that Transformers takes as they are.

    Args:
        values: of a config.json.
        name: of the model, for the error.

    Raises:
        AttnProbeError: the first that is of the wrong type or range.
    """

    def refuse(key: str, expected: str) -> None:
        value = str(values[key])
        value = value if len(value) <= 80 else value[:80] + "…"
        raise AttnProbeError(
            f"expected {expected} for {key} in the configuration of {name}, got {value}; "
            "correct its config.json"
        )

    for key, value in values.items():
        if key.endswith("_token_id") and not _is_id(value, several=key == ENDS_A_TEXT):
            refuse(key, "a token id")
    longest = values.get("max_position_embeddings")
    if longest is not None and not (_is_int(longest) and longest <= LARGEST):
        refuse("max_position_embeddings", f"a whole number up to {LARGEST:,}")
    n_labels = values.get("num_labels")
    if n_labels is not None and not (_is_int(n_labels) and n_labels <= MOST_LABELS):
        refuse("num_labels", f"a whole number up to {MOST_LABELS:,}")
    if not _is_list_of_names(values.get("architectures")):
        refuse("architectures", "a list of names")
    if not _is_numbered(values.get("id2label")):
        refuse("id2label", "names for the numbers from 0 on")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: Any, *, several: bool) -> bool:
    """A number, where ``several`` may be a list of some, or none."""
    values = value if isinstance(value, list) and value and several else [value]
    return value is None or all(_is_int(v) and abs(v) <= LARGEST for v in values)


def _is_list_of_names(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_numbered(names: Any) -> bool:
    if names is None:
        return True
    if not isinstance(names, dict):
        return False
    return {str(key) for key in names} == {str(k) for k in range(len(names))}
