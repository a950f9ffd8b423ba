"""Models from folders or the Hub, with errors of one line."""

from pathlib import Path
from typing import Any, TypeGuard

from transformers import PreTrainedConfig, PreTrainedModel

from hf_attnprobe.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.checkpoints.configurations import load_config
from hf_attnprobe.checkpoints.heads import CLASSIFIER, check_weights, head_of
from hf_attnprobe.checkpoints.origins import Origin, origin_of
from hf_attnprobe.checkpoints.peft_adapters import adapter_config, load_adapted
from hf_attnprobe.checkpoints.records import check_whole
from hf_attnprobe.checkpoints.trust import check_weights_are_data
from hf_attnprobe.errors import AttnProbeError


def load_model(
    model: str | Path | Origin,
    *,
    task: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    new_head: bool = False,
    **labels: Any,
) -> PreTrainedModel:
    """Loads a model with a task head from a folder or a Hub id, as the class it was saved.

    An adapter of peft is merged into its base model.

    Args:
        model: a folder, a Hub id, ``org/name@revision``, or what
            :func:`~hf_attnprobe.checkpoints.origins.origin_of` gives.
        task: the head that is meant, such as "text-classification", where the
            configuration names none.
        trust_remote_code: allow code that comes with the model on the Hub.
        allow_pickle: allow weights that are pickled.
        new_head: whether a classification head is wanted whatever was saved, its
            weights drawn at random where the checkpoint lacks them, to be trained.
        labels: ``id2label`` and ``label2id``, in place of the checkpoint's.

    Raises:
        AttnProbeError: no such folder or Hub id, a folder without configuration or weights,
            an unknown model type, a head that is not understood or not meant, or weights
            that are missing, left over, pickled or of another shape.
    """
    origin = origin_of(model, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if origin.folder is not None:
        _check_folder(origin.folder)
    adapter = adapter_config(origin)
    if adapter is not None:
        return load_adapted(origin, adapter, task)
    config = load_config(origin, **labels)
    head = CLASSIFIER if new_head else head_of(config, origin.name, task)
    check_weights_are_data(origin, config.to_dict())
    with origin.reported():
        loaded, info = head.auto.from_pretrained(
            origin.name,
            config=config,
            trust_remote_code=origin.trust_remote_code,
            use_safetensors=None if origin.allow_pickle else True,
            ignore_mismatched_sizes=True,  # said below, and which
            output_loading_info=True,
            **origin.place,
        )
    check_weights(origin.name, loaded.base_model_prefix, info, new_head=new_head)
    return loaded


def load_attention_classifier(
    model: str | Path, purpose: str, advice: str
) -> AttentionClassifierForSequenceClassification:
    """Loads an attention classifier.

    Args:
        purpose: such as ``to compare``, for the error.
        advice: what to do about a model of another kind, for the error.

    Raises:
        AttnProbeError: as :func:`load_model`, and a model of another kind.
    """
    loaded = load_model(model)
    if not isinstance(loaded, AttentionClassifierForSequenceClassification):
        raise AttnProbeError(
            f"expected an attention classifier {purpose}, {model} is a "
            f"{loaded.config.model_type}; {advice}"
        )
    return loaded


def is_attention_classifier(
    config: PreTrainedConfig,
) -> TypeGuard[AttentionClassifierConfig]:
    """Whether a configuration is that of this package's attention classifiers."""
    return config.model_type == AttentionClassifierConfig.model_type


def has_trained_attention(config: PreTrainedConfig) -> bool:
    """Whether a model is an attention classifier of one level that trains its attention."""
    if not is_attention_classifier(config) or config.hierarchical:
        return False
    return config.attention not in ("uniform", "guided")


def _check_folder(folder: Path) -> None:
    check_whole(folder)
    names = ("config.json", "adapter_config.json")
    if not any((folder / name).exists() for name in names):
        raise AttnProbeError(
            f"expected a model in {folder}, found no config.json there; give the folder "
            "of save_pretrained"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise AttnProbeError(
            f"expected weights in {folder}, found a configuration only; save the model there again"
        )
