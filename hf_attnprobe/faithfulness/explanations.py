"""Which explanation ranks tokens as leaving them out does?

Jain & Wallace 2019, Algorithm 1, for each of them.

Question: raw attention may explain badly; does another quantity computed from it
          explain better?
Measure:  Kendall's τ-b between a reading and the change of the output when a token is
          left out, as in ``correlation``. Of each head: raw attention; attention ×
          gradient; effective attention (Brunner et al. 2020); norm-based (Kobayashi et
          al. 2020). Of each layer: mean attention; rollout up to it, and attention flow
          on request (Abnar & Zuidema 2020); norm-based; value zeroing and its rollout (Mohebbi et al. 2023). What
          can be negative counts by its size.
Compare:  the readings with each other, and with ``gradient_leave_one_out_tau`` of
          ``correlation``.
Reading:  1 the same order, 0 unrelated orders.

A layer's readings are reported at head −1. All are read at the row the prediction is
read from, in every layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.correlation import leave_one_out_ranks, ranks
from hf_attnprobe.faithfulness.options import Explanations
from hf_attnprobe.faithfulness.rankings import (
    OF_HEADS,
    OF_LAYERS,
    flow_to_tokens,
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
        "this head's attention and leaving out order the tokens with rank correlation {mean:.2f}"
    ),
    "attention_times_gradient_tau": (
        "attention × gradient and leaving out agree with rank correlation {mean:.2f}"
    ),
    "effective_attention_tau": (
        "effective attention and leaving out agree with rank correlation {mean:.2f}"
    ),
    "norm_based_tau": (
        "the norms of weighted values and leaving out agree with rank correlation {mean:.2f}"
    ),
    "mean_attention_tau": (
        "the heads' mean attention and leaving out agree with rank correlation {mean:.2f}"
    ),
    "rollout_tau": (
        "attention rollout up to this layer and leaving out agree with rank correlation {mean:.2f}"
    ),
    "flow_tau": (
        "attention flow up to this layer and leaving out agree with rank correlation "
        "{mean:.2f} (over texts short enough for it)"
    ),
    "layer_norm_based_tau": (
        "the layer's norms of weighted values and leaving out agree with rank "
        "correlation {mean:.2f}"
    ),
    "value_zeroing_tau": ("value zeroing and leaving out agree with rank correlation {mean:.2f}"),
    "value_zeroing_rollout_tau": (
        "value zeroing rolled out up to this layer and leaving out agree with rank "
        "correlation {mean:.2f}"
    ),
}


@dataclass(frozen=True)
class ExplanationsResult:
    """All [batch]: τ-b in [−1, 1], NaN for one-token texts and constant rows.

    The first four are of a head, the others of a layer. None where it is the other kind of
    site, or where the model lacks what the explanation needs. ``flow_tau`` is NaN too in
    texts of more than ``flow_positions`` positions, None where that is 0.
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


def with_layers(sites: Sequence[Site]) -> list[Site]:
    """The sites and, behind them, one for each of their layers as a whole.

    A model with a single head has no layers besides.
    """
    layers = dict.fromkeys(site._replace(head=ALL) for site in sites)
    return [*sites, *layers] if len(sites) > 1 else list(sites)


def _check(preview: AuditPreview, options: Explanations) -> None:
    n_positions = int(preview.shortest.batch.mask.sum(-1).amin())
    if 0 < options.flow_positions < n_positions:
        raise AttnProbeError(
            "expected texts short enough for attention flow, the shortest has "
            f"{n_positions} positions and flow_positions is {options.flow_positions}; "
            "raise it, or leave it out"
        )


@register_test(
    readings=READINGS,
    does="compares other explanations of a head with leaving tokens out",
    needs=(EditableInputs,),
    default="many heads",
    sites=with_layers,
    check=_check,
)
def explanations(
    observation: Observation,
    site: Site,
    options: Explanations = Explanations(),
    *,
    seed: int = 0,
) -> ExplanationsResult:
    """Rank correlation of every explanation of a head or a layer with leave-one-out.

    Args:
        site: a head, or a whole layer.
        seed: unused, nothing here is random.
    """
    observation = observation.explaining(options.target)
    content = observation.batch.content_mask
    importance = leave_one_out_ranks(observation)
    taus = {}
    for name, explanation in (OF_LAYERS if site.head == ALL else OF_HEADS).items():
        if not explanation.is_possible(observation.model, site):
            continue
        values = explanation.read(observation, site)
        largest = (values * content).amax(-1, keepdim=True)
        unit = largest if explanation.is_difference else 0.0
        ranked = ranks(values, content, unit)
        taus[f"{name}_tau"] = kendall_tau_b(ranked, importance, content).tau
    has_flow = site.head == ALL and not observation.model.lacks(Stack, site)
    if has_flow and options.flow_positions:
        taus["flow_tau"] = _flow_tau(observation, site, options, importance)
    return ExplanationsResult(**taus)


def _flow_tau(
    observation: Observation,
    site: Site,
    options: Explanations,
    importance: Tensor,
) -> Tensor:
    """τ-b [batch] of attention flow with the ranks of leave-one-out."""
    content = observation.batch.content_mask
    flows = flow_to_tokens(observation, site, options.flow_positions)
    too_long = flows.isnan().any(-1)
    ranked = ranks(flows.nan_to_num(), content)
    tau = kendall_tau_b(ranked, importance, content).tau
    return tau.masked_fill(too_long, torch.nan)
