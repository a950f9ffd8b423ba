"""Test ``explanations``: which quantity computed from attention ranks tokens like leave-one-out?

Jain & Wallace 2019, Algorithm 1, applied to each quantity.

Question
    Raw attention may be a bad explanation. Is another quantity that is computed from it better?

Measure
    Kendall's τ-b between a map and leave-one-out, as in ``correlation``.

    - Maps of a head: raw attention, attention × gradient, effective attention (Brunner et al.
      2020), and norm-based attention (Kobayashi et al. 2020).
    - Maps of a layer: mean attention, rollout up to the layer and (on request) attention flow
      (Abnar & Zuidema 2020), norm-based attention, and value zeroing with its rollout (Mohebbi et
      al. 2023).

    The absolute values of signed maps are ranked. All maps are read in the query row from which the
    prediction is read, in every layer. The maps of a layer are reported at head −1.

Compared quantities
    The maps with each other, and with ``gradient_leave_one_out_tau`` of ``correlation``.

Interpretation
    1 is the same order, 0 are unrelated orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.correlation import rank_by_leave_one_out, rank_with_ties
from hf_attnprobe.faithfulness.options import Explanations
from hf_attnprobe.faithfulness.rankings import (
    HEAD_MAPS,
    LAYER_MAPS,
    compute_flow_to_tokens,
)
from hf_attnprobe.faithfulness.registry import (
    AuditPreview,
    register_test,
)
from hf_attnprobe.functional.rank import kendall_tau_b
from hf_attnprobe.protocol import (
    ALL,
    EditableInputs,
    Observation,
    Site,
    Stack,
)


READINGS = {
    "raw_attention_tau": (
        "this head's attention and leave-one-out have a rank correlation of {mean:.2f}"
    ),
    "attention_times_gradient_tau": (
        "attention × gradient and leave-one-out have a rank correlation of {mean:.2f}"
    ),
    "effective_attention_tau": (
        "effective attention and leave-one-out have a rank correlation of {mean:.2f}"
    ),
    "norm_based_tau": (
        "the norms of weighted values and leave-one-out have a rank correlation of {mean:.2f}"
    ),
    "mean_attention_tau": (
        "the mean attention of the heads and leave-one-out have a rank correlation of {mean:.2f}"
    ),
    "rollout_tau": (
        "attention rollout up to this layer and leave-one-out have a rank correlation of {mean:.2f}"
    ),
    "flow_tau": (
        "attention flow up to this layer and leave-one-out have a rank correlation of {mean:.2f} "
        "(over texts that are short enough)"
    ),
    "layer_norm_based_tau": (
        "the layer's norms of weighted values and leave-one-out have a rank correlation of "
        "{mean:.2f}"
    ),
    "value_zeroing_tau": ("value zeroing and leave-one-out have a rank correlation of {mean:.2f}"),
    "value_zeroing_rollout_tau": (
        "the rollout of value zeroing up to this layer and leave-one-out have a rank correlation of "
        "{mean:.2f}"
    ),
}


@dataclass(frozen=True)
class ExplanationsResult:
    """Statistics from the test ``explanations``, tensors ``[batch]``.

    All are Kendall's τ-b between a map and leave-one-out, in [−1, 1], and NaN in one-token texts
    and for constant maps. Statistics about heads are None for layers and vice versa. All are None
    if the model lacks a capability that the map needs.

    Attributes:
        raw_attention_tau: Raw attention of a head.
        attention_times_gradient_tau: Attention × gradient of a head.
        effective_attention_tau: Effective attention of a head.
        norm_based_tau: Norm-based attention of a head.
        mean_attention_tau: Mean attention of a layer's heads.
        rollout_tau: Attention rollout up to a layer.
        flow_tau: Attention flow up to a layer, on request. NaN in texts with more than
            ``flow_positions`` positions.
        layer_norm_based_tau: Norm-based attention of a layer.
        value_zeroing_tau: Value zeroing of a layer.
        value_zeroing_rollout_tau: Rollout of value zeroing up to a layer.
    """

    raw_attention_tau: Tensor | None = None
    attention_times_gradient_tau: Tensor | None = None
    effective_attention_tau: Tensor | None = None
    norm_based_tau: Tensor | None = None
    mean_attention_tau: Tensor | None = None
    rollout_tau: Tensor | None = None
    flow_tau: Tensor | None = None
    layer_norm_based_tau: Tensor | None = None
    value_zeroing_tau: Tensor | None = None
    value_zeroing_rollout_tau: Tensor | None = None


def add_layer_sites(sites: Sequence[Site]) -> list[Site]:
    """Add a site for each layer to a list of heads.

    For example, two heads in layer 0 are followed by one site for all heads in layer 0.

    Args:
        sites: Heads to be tested. If there is only one, no layer is added.
    """
    if len(sites) == 1:
        return list(sites)
    # The keys of a dictionary are unique and keep their order.
    layers = dict.fromkeys(site._replace(head=ALL) for site in sites)
    return [*sites, *layers]


def _check_flow_length(preview: AuditPreview, options: Explanations) -> None:
    """Raise AttnProbeError if attention flow is requested but all texts are too long for it.

    The option ``flow_positions`` is the length up to which the flow is computed, 0 for never.
    """
    n_positions = int(preview.shortest_text.batch.mask.sum(-1).amin())
    if 0 < options.flow_positions < n_positions:
        raise AttnProbeError(
            f"flow_positions={options.flow_positions} is too small, because the shortest text has "
            f"{n_positions} positions. Increase it, or set it to 0 to skip attention flow."
        )


@register_test(
    readings=READINGS,
    summary="compares other maps computed from attention with leave-one-out",
    needs=(EditableInputs,),
    default="many heads",
    sites=add_layer_sites,
    check=_check_flow_length,
)
def explanations(
    observation: Observation,
    site: Site,
    options: Explanations = Explanations(),
    *,
    seed: int = 0,
) -> ExplanationsResult:
    """Correlate every map from a head or a layer with leave-one-out.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head, or whole layer.
        options: Explained class, and text length up to which attention flow is computed.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    observation = observation.with_target(options.target)
    content = observation.batch.content_mask
    leave_one_out_ranks = rank_by_leave_one_out(observation)
    maps = LAYER_MAPS if site.head == ALL else HEAD_MAPS
    taus = {}
    for name, attention_map in maps.items():
        if not attention_map.is_available(observation.model, site):
            continue
        values = attention_map.read(observation, site)
        largest_value = (values * content).amax(-1, keepdim=True)
        scale = largest_value if attention_map.is_difference else 0.0
        ranks = rank_with_ties(values, content, scale)
        taus[f"{name}_tau"] = kendall_tau_b(ranks, leave_one_out_ranks, content).tau
    has_flow = site.head == ALL and not observation.model.lacks(Stack, site)
    if has_flow and options.flow_positions:
        taus["flow_tau"] = _compute_flow_tau(observation, site, options, leave_one_out_ranks)
    return ExplanationsResult(**taus)


def _compute_flow_tau(
    observation: Observation,
    site: Site,
    options: Explanations,
    leave_one_out_ranks: Tensor,
) -> Tensor:
    """Compute the rank correlation between attention flow and leave-one-out importance.

    Attention flow (Abnar & Zuidema 2020) is the maximum flow from each input token to the
    prediction, in a network whose capacities are the attention weights.

    Args:
        observation: Model outputs and attention for a batch.
        site: Head group whose attention is used.
        options: Largest number of positions for which the flow is computed (``flow_positions``).
        leave_one_out_ranks: Ranks by leave-one-out importance, ``[batch, keys]``.

    Returns:
        Kendall's τ-b ``[batch]``; NaN in texts with too many positions.
    """
    content = observation.batch.content_mask
    flows = compute_flow_to_tokens(observation, site, options.flow_positions)
    is_too_long = flows.isnan().any(-1)
    ranks = rank_with_ties(flows.nan_to_num(), content)
    tau = kendall_tau_b(ranks, leave_one_out_ranks, content).tau
    return tau.masked_fill(is_too_long, torch.nan)
