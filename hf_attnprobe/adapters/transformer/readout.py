"""How a Transformer's prediction is read: from which query row, and which of its layers are what."""

from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.errors import AttnProbeError


READOUTS = ("first", "last", "mean")
LAST_POSITION = {"xlnet"}
"""Model types that classify at the last position, real or not: their texts are padded on the left."""

CROSS_ATTENTION = ("encoder_attn", "encdecattention", "crossattention", "cross_attn")


class Layer(NamedTuple):
    """One attention layer; its number is its place in the order of calls.

    module: qualified name. kind: "encoder", "decoder" or "cross"; "layer" in a model that has only one stack.
    n_heads: how many. n_skipped: how many block calls are over when it runs, which a resumed pass can leave out.
    """

    module: str
    kind: str
    n_heads: int
    n_skipped: int


def layer_kind(module: str, is_encoder_decoder: bool) -> str:
    """What a layer of this qualified module name attends to."""
    if not is_encoder_decoder:
        return "layer"
    parts = module.lower().split(".")
    if any(part in CROSS_ATTENTION for part in parts):
        return "cross"
    return "decoder" if "decoder" in parts else "encoder"


def layer_names(layers: list[Layer]) -> list[str]:
    """ "layer.3", or "encoder.0", "decoder.0", "cross.0" where there are two stacks; numbers count within the kind."""
    counts: dict[str, int] = {}
    names = []
    for layer in layers:
        names.append(f"{layer.kind}.{counts.setdefault(layer.kind, 0)}")
        counts[layer.kind] += 1
    return names


def readout_of(config, readout: str | None) -> str | None:
    """The asked read-out, or the one that the configuration tells; None leaves it to the attention, see `query_rows`."""
    if readout is not None and readout not in READOUTS:
        raise AttnProbeError(
            f"expected readout to be one of {', '.join(READOUTS)}, got {readout!r}"
        )
    pooling = getattr(config, "classifier_pooling", None)  # ModernBERT
    return (
        readout
        or {"mean": "mean", "cls": "first"}.get(pooling)
        or ("last" if pads_left(config) else None)
    )


def pads_left(config) -> bool:
    """Whether texts must be padded on the left."""
    return config.model_type in LAST_POSITION


def query_rows(readout: str | None, kind: str, visible: Tensor, mask: Tensor) -> Tensor:
    """How much each query row counts in the reading of a layer, [batch, queries], rows summing to 1.

    Without an asked read-out: the last real token where no query sees a later key (GPT-2, Llama) and in decoders, whose
    classifiers take the last token; the mean over all real tokens in the encoder under a decoder; else the first, [CLS].

    Args:
        readout: "first", "last", "mean" or None.
        kind: of the layer, see :class:`Layer`.
        visible: bool [batch, queries, keys].
        mask: bool [batch, keys], real tokens.
    """
    if readout is None:
        causal = kind == "layer" and not visible.triu(diagonal=1).any()
        readout = (
            "last"
            if causal or kind in ("decoder", "cross")
            else "mean"
            if kind == "encoder"
            else "first"
        )
    if readout == "mean":
        return mask / mask.sum(1, keepdim=True).clamp_min(1)
    places = torch.arange(mask.shape[1], device=mask.device) * mask
    chosen = places.argmax(1) if readout == "last" else torch.zeros_like(places[:, 0])
    return torch.nn.functional.one_hot(chosen, mask.shape[1])


def probabilities(logits: Tensor) -> Tensor:
    """[..., classes] from [..., outputs]; a single logit is the positive class's."""
    return (
        logits.softmax(-1)
        if logits.shape[-1] > 1
        else torch.cat([-logits, logits], dim=-1).sigmoid()
    )
