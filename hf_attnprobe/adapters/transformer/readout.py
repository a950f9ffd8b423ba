"""How a Transformer's prediction is read: from which query row, and from which layers."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from hf_attnprobe.errors import AttnProbeError


READOUTS = ("first", "last", "mean")
POOLINGS = {"mean": "mean", "cls": "first"}
"""The read-outs that ModernBERT's ``classifier_pooling`` names."""

LAST_POSITION = {"xlnet"}
"""Model types that classify at the last position: their texts are padded on the left."""

CROSS_ATTENTION = ("encoder_attn", "encdecattention", "crossattention", "cross_attn")


class Layer(NamedTuple):
    """One attention layer; its number is its place in the order of calls.

    Attributes:
        module: qualified name.
        kind: "encoder", "decoder" or "cross"; "layer" in a model with only one stack.
        n_heads: number of heads.
        n_skipped: how many block calls are over when it runs, which a resumed pass can
            leave out.
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
    if not set(parts).isdisjoint(CROSS_ATTENTION):
        return "cross"
    return "decoder" if "decoder" in parts else "encoder"


def layer_names(layers: list[Layer]) -> list[str]:
    """ "layer.3", or "encoder.0", "decoder.0", "cross.0" where there are two stacks.

    Numbers count within the kind.
    """
    kinds = [layer.kind for layer in layers]
    return [f"{kind}.{kinds[:n].count(kind)}" for n, kind in enumerate(kinds)]


def readout_of(config: PreTrainedConfig, readout: str | None) -> str | None:
    """The asked read-out, or the one that the configuration tells.

    None leaves it to the attention, see :func:`query_rows`.

    Raises:
        AttnProbeError: an unknown read-out.
    """
    if readout not in (None, *READOUTS):
        raise AttnProbeError(
            f"expected readout to be one of {', '.join(READOUTS)}, got {readout!r}"
        )
    pooling = POOLINGS.get(getattr(config, "classifier_pooling", ""))
    last = "last" if pads_left(config) else None
    return readout or pooling or last


def pads_left(config: PreTrainedConfig) -> bool:
    """Whether texts must be padded on the left."""
    return config.model_type in LAST_POSITION


def query_rows(readout: str | None, kind: str, visible: Tensor, mask: Tensor) -> Tensor:
    """How much each query row counts in the reading of a layer, rows summing to 1.

    Without an asked read-out: the last real token where no query sees a later key (GPT-2,
    Llama) and in decoders, whose classifiers take the last token; the mean over all real
    tokens in the encoder under a decoder; else the first, [CLS].

    Args:
        readout: "first", "last", "mean" or None.
        kind: of the layer, see :class:`Layer`.
        visible: bool [batch, queries, keys].
        mask: bool [batch, keys], real tokens.

    Returns:
        [batch, queries].
    """
    if readout is None:
        is_causal = kind == "layer" and not visible.triu(diagonal=1).any()
        default = {"encoder": "mean", "layer": "last" if is_causal else "first"}
        readout = default.get(kind, "last")
    if readout == "mean":
        return mask / mask.sum(1, keepdim=True).clamp_min(1)
    n_keys = mask.shape[1]
    positions = torch.arange(n_keys, device=mask.device) * mask
    chosen = positions.argmax(1)
    if readout == "first":
        chosen = torch.zeros_like(chosen)
    return F.one_hot(chosen, n_keys)
