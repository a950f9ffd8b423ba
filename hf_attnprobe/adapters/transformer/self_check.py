"""Before any number is reported: does an edit reach the model?

Other tools write attention edits that never arrive, and say nothing. Here one edit per
layer must change the logits, and the identity edit must not; otherwise there is no audit.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.resume import relative_tolerance
from hf_attnprobe.attention_model import Observation
from hf_attnprobe.errors import AttnProbeError


@torch.no_grad()
def self_check(
    observation: Observation,
    native: Tensor,
    replay_logits: Callable[[Observation, Mapping[int, Tensor]], Tensor],
    layer_names: Sequence[str],
    dtype: torch.dtype,
) -> None:
    """Raises AttnProbeError, naming the layer, unless edits of every layer arrive.

    Args:
        observation: of the texts to check with.
        native: the logits without any edit, [batch, outputs].
        replay_logits: as the adapter's method.
        layer_names: by layer.
        dtype: what the model computes in.
    """
    tolerance = relative_tolerance(dtype) * float(native.abs().max())
    for layer, (name, attention) in enumerate(zip(layer_names, observation.attention, strict=True)):
        same = replay_logits(observation, {layer: attention[None]})[0]
        error = float((same - native).abs().max())
        if not error <= tolerance:
            raise AttnProbeError(
                f"self-check: attention put back unchanged in {name} moved the logits by "
                f"{error:.1e}, more than {tolerance:.1e}; this model cannot be audited, "
                "please report it"
            )
        visible = observation.model.visible(observation, layer)
        edit = least_attended(attention, visible)[None]
        edited = replay_logits(observation, {layer: edit})[0]
        if (visible.sum(-1) > 1).any() and torch.equal(edited, same):
            raise AttnProbeError(
                f"self-check: attention edited in {name} left every logit as it was; the "
                "edit does not reach the model, which cannot be audited, please report it"
            )


def least_attended(attention: Tensor, visible: Tensor) -> Tensor:
    """All of each row's weight on the visible key that had least.

    It is another attention wherever two keys are visible. Shape: attention [batch, heads,
    queries, keys], visible bool [batch, queries, keys].
    """
    lowest = attention.masked_fill(~visible[:, None], torch.inf)
    place = lowest.argmin(-1, keepdim=True)
    return torch.zeros_like(attention).scatter(-1, place, 1)
