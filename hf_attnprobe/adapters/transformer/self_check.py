"""Before any number is reported: does an edit reach the model, and does editing nothing leave it as it is?

Peers write attention edits that never arrive, and say nothing. Here one edit per layer must change the logits, and the
identity edit must not; otherwise there is no audit.
"""

import torch
from torch import Tensor

from hf_attnprobe.attention_model import Batch
from hf_attnprobe.errors import AttnProbeError


@torch.no_grad()
def self_check(adapter, batch: Batch) -> None:
    """Raises AttnProbeError, naming the layer, unless every layer of a `TransformerAdapter` passes on ``batch``."""
    observation, native = adapter.observe(batch), adapter.logits(batch.inputs)
    scale, tolerance = float(native.abs().max()), _tolerance(adapter.model.dtype)
    for layer, (name, attention) in enumerate(
        zip(adapter.layer_names, observation.attention, strict=True)
    ):
        visible = adapter.visible(observation, layer)
        same = adapter.replay_logits(observation, {layer: attention[None]})[0]
        error = float((same - native).abs().max())
        if not error <= tolerance * scale:
            raise AttnProbeError(
                f"self-check: attention put back unchanged in {name} moved the logits by {error:.1e}, more than "
                f"{tolerance * scale:.1e}; this model cannot be audited, please report it"
            )
        edited = adapter.replay_logits(
            observation, {layer: least_attended(attention, visible)[None]}
        )[0]
        if (visible.sum(-1) > 1).any() and torch.equal(edited, same):
            raise AttnProbeError(
                f"self-check: attention edited in {name} left every logit as it was; the edit does not reach the model, "
                "which cannot be audited, please report it"
            )


def least_attended(attention: Tensor, visible: Tensor) -> Tensor:
    """All of each row's weight on the visible key that had least: another attention wherever two keys are visible.

    Shape: attention [batch, heads, queries, keys], visible bool [batch, queries, keys].
    """
    place = attention.masked_fill(~visible[:, None], torch.inf).argmin(-1, keepdim=True)
    return torch.zeros_like(attention).scatter(-1, place, 1)


def _tolerance(dtype: torch.dtype) -> float:
    """Relative to the largest logit: what another order of summation does to a deep model, far below a lost mask."""
    return min(1000 * torch.finfo(dtype).eps, 0.1)
