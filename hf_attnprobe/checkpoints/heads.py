"""What a checkpoint predicts, by its head, and whether the head's weights are there.

The configuration names the class that was saved. Loaded as another class the weights of
the head may fit all the same, or be drawn at random, and nothing would say so.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from transformers import (
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
)

from hf_attnprobe.errors import AttnProbeError


class Head(NamedTuple):
    """A kind of head.

    Attributes:
        task: its name, as pipelines and the Hub call it.
        suffix: how the names of such classes end.
        auto: the class of Transformers that loads it.
    """

    task: str
    suffix: str
    auto: Any


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
    Head("question-answering", "ForQuestionAnswering", AutoModelForQuestionAnswering),
    Head("multiple-choice", "ForMultipleChoice", AutoModelForMultipleChoice),
    Head("fill-mask", "ForMaskedLM", AutoModelForMaskedLM),
    Head(
        "image-classification",
        "ForImageClassification",
        AutoModelForImageClassification,
    ),
)
"""All that is understood: a further kind of head is a further line."""

CLASSIFIER = HEADS[0]
HARMLESS = ("pooler.", "position_ids", "inv_freq", "masked_bias", "attn.bias")
"""Left-over weights that no head reads: of poolers, and tables that are computed."""


def head_named(class_name: str) -> Head | None:
    """The kind of head of a class of models; None if it is none of those understood."""
    plain = class_name.removesuffix("Simple")  # XLNetForQuestionAnsweringSimple
    found = [head for head in HEADS if plain.endswith(head.suffix)]
    return found[0] if found else None


def head_for(task: str) -> Head:
    """The kind of head for a task.

    Raises:
        AttnProbeError: an unknown task.
    """
    for head in HEADS:
        if head.task == task:
            return head
    known = ", ".join(head.task for head in HEADS)
    raise AttnProbeError(f"expected task to be one of {known}, got {task!r}")


def head_of(config: PreTrainedConfig, name: str, task: str | None = None) -> Head:
    """The head that a checkpoint was saved with.

    Args:
        config: its configuration.
        name: of the model, for the error.
        task: the head that is meant, where the configuration names none.

    Raises:
        AttnProbeError: no head is named, one that is not understood, or another one than
            that of ``task``.
    """
    meant = None if task is None else head_for(task)
    classes = [str(kind) for kind in config.architectures or []]
    remote = getattr(config, "auto_map", None) or {}
    own = [head for head in HEADS if head.auto.__name__ in remote]
    named = head_named(classes[0]) if classes else None
    if named is None and len(own) == 1:  # code of its own, whatever its classes' names
        named = own[0]
    if named is None and classes:
        raise AttnProbeError(
            f"expected a model with a head that is understood ({_understood()}), {name} "
            f"is a {classes[0]}; fine-tune it first with attnprobe train --model"
        )
    if named is None and meant is None:
        raise AttnProbeError(
            f"expected the configuration of {name} to name the model's class, found no "
            "architectures in it; say with --task which head it has"
        )
    if named is not None and meant is not None and named is not meant:
        kind = classes[0] if classes else "model with code of its own"
        raise AttnProbeError(
            f"expected a model for {meant.task}, {name} is a {kind}, for {named.task}; "
            "choose another"
        )
    found = named or meant
    assert found is not None
    return found


def _understood() -> str:
    return ", ".join(head.suffix for head in HEADS)


def check_weights(
    name: str,
    base_prefix: str,
    info: Mapping[str, Any],
    *,
    new_head: bool = False,
    brought: Collection[str] = (),
) -> None:
    """Checks that a model is made of all weights of its checkpoint, and of no others.

    Args:
        name: of the model, for the error.
        base_prefix: what the names of all weights below the head begin with.
        info: ``output_loading_info`` of Transformers.
        new_head: whether the head is to be trained, so that it may be missing and
            another's may be left over.
        brought: weights that come from elsewhere.

    Raises:
        AttnProbeError: weights of another shape, missing or left over.
    """
    for key, saved, needed in sorted(info["mismatched_keys"]):
        if key not in brought:
            raise AttnProbeError(
                f"expected a model in {name}, but it does not load: the weights {key} are "
                f"{list(saved)}, its configuration says {list(needed)}"
            )
    missing = sorted(set(info["missing_keys"]) - set(brought))
    if missing and not new_head:
        raise AttnProbeError(
            f"expected a fine-tuned model in {name!r}, but it has no weights for "
            f"{_some(missing)}; fine-tune it first with attnprobe train --model"
        )
    over = [
        key for key in sorted(info["unexpected_keys"]) if not any(part in key for part in HARMLESS)
    ]
    if over and not new_head:
        below = [key for key in over if key.startswith(f"{base_prefix}.")]
        of = "layers that its configuration has not" if below else "another head"
        raise AttnProbeError(
            f"expected every weight of {name!r} in the model, left over are those of "
            f"{of}: {_some(below or over)}; load it as the model that was saved"
        )


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more
