"""Which reading of attention ranks tokens as leaving them out does? Jain & Wallace 2019, Algorithm 1, for each of them.

Question: raw attention may explain badly; does another quantity computed from it explain better?
Measure:  Kendall's τ-b between a reading and the change of the output when a token is left out, as in ``correlation``.
          Of each head: raw attention; attention × gradient; effective attention (Brunner et al. 2020); norm-based
          (Kobayashi et al. 2020). Of each layer: mean attention; rollout up to it (Abnar & Zuidema 2020); norm-based;
          value zeroing and its rollout (Mohebbi et al. 2023). What can be negative counts by its size.
Compare:  the readings with each other, and with ``gradient_leave_one_out_tau`` of ``correlation``.
Reading:  1 the same order, 0 unrelated orders.

A layer's readings are reported at head −1. All are read at the row the prediction is read from, in every layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.attention_model import (
    AttentionModel,
    BlockOutputs,
    Differentiable,
    HeadValues,
    Observation,
    OutputProjections,
    Site,
    Stack,
)
from hf_attnprobe.faithfulness.correlation import ranks
from hf_attnprobe.functional import explanations as maps
from hf_attnprobe.functional.rank import kendall_tau_b


LAYER = -1  # the head that stands for the whole layer
COLUMNS_AT_ONCE = 8  # of value zeroing: a block output [batch, queries, hidden] for each is held at a time
READINGS = {
    "raw_attention_tau": "this head's attention and leave-one-out order the tokens with rank correlation {mean:.2f}",
    "attention_times_gradient_tau": "attention × gradient and leave-one-out agree with rank correlation {mean:.2f}",
    "effective_attention_tau": "effective attention and leave-one-out agree with rank correlation {mean:.2f}",
    "norm_based_tau": "the norms of weighted values and leave-one-out agree with rank correlation {mean:.2f}",
    "mean_attention_tau": "the heads' mean attention and leave-one-out agree with rank correlation {mean:.2f}",
    "rollout_tau": "attention rollout up to this layer and leave-one-out agree with rank correlation {mean:.2f}",
    "layer_norm_based_tau": "the layer's norms of weighted values and leave-one-out agree with rank correlation {mean:.2f}",
    "value_zeroing_tau": "value zeroing and leave-one-out agree with rank correlation {mean:.2f}",
    "value_zeroing_rollout_tau": "value zeroing rolled out up to this layer and leave-one-out agree with rank correlation {mean:.2f}",
}


@dataclass(frozen=True)
class ExplanationsResult:
    """All [batch], τ-b in [−1, 1], NaN for one-token texts and constant rows. The first four are of a head, the others
    of a layer; None where it is the other kind of site, or where the model does not allow the reading."""

    raw_attention_tau: Tensor | None = None
    attention_times_gradient_tau: Tensor | None = None
    effective_attention_tau: Tensor | None = None
    norm_based_tau: Tensor | None = None
    mean_attention_tau: Tensor | None = None
    rollout_tau: Tensor | None = None
    layer_norm_based_tau: Tensor | None = None
    value_zeroing_tau: Tensor | None = None
    value_zeroing_rollout_tau: Tensor | None = None


def with_layers(sites: Sequence[Site]) -> list[Site]:
    """The sites and, behind them, one for each of their layers as a whole; a single head is its layer."""
    layers = dict.fromkeys(site._replace(head=LAYER) for site in sites)
    return [*sites, *layers] if len(sites) > 1 else list(sites)


def explanations(
    model: AttentionModel, observation: Observation, site: Site, *, seed: int = 0
) -> ExplanationsResult:
    """Rank correlation of every reading of a head, or of a layer where ``site.head`` is −1, with leave-one-out.

    Args:
        seed: unused, nothing here is random.
    """
    content = observation.batch.content_mask
    importance = ranks(observation.leave_one_out_importance(), content)
    found = {}
    for name, reading in (OF_LAYERS if site.head == LAYER else OF_HEADS).items():
        if any(model.lacks(capability, site) for capability in NEEDS.get(name, ())):
            continue
        values = reading(model, observation, site)
        values = model.read_map(observation, values, site).abs()
        values = _scaled(values, content) if name in NOT_SHARES else values
        found[f"{name}_tau"] = kendall_tau_b(
            ranks(values, content), importance, content
        ).tau
    return ExplanationsResult(**found)


# Of a head, [batch, queries, keys]


def _attention(model: AttentionModel, observation: Observation, site: Site) -> Tensor:
    return observation.attention[site.layer][:, site.head]


def _attention_times_gradient(
    model: AttentionModel, observation: Observation, site: Site
) -> Tensor:
    gradient = observation.attention_gradient[site.layer][:, site.head]
    return maps.attention_times_gradient(_attention(model, observation, site), gradient)


def _effective_attention(
    model: AttentionModel, observation: Observation, site: Site
) -> Tensor:
    values = observation.head_values[site.layer][:, site.head]
    return maps.effective_attention(
        _attention(model, observation, site), _real(observation, values)
    )


def _norm_based(model: AttentionModel, observation: Observation, site: Site) -> Tensor:
    head = slice(site.head, site.head + 1)
    values, projection = (
        observation.head_values[site.layer],
        model.output_projections()[site.layer],
    )
    return maps.norm_based(
        observation.attention[site.layer][:, head], values[:, head], projection[head]
    )[:, 0]


# Of a layer, [batch, queries, keys]


def _mean_attention(
    model: AttentionModel, observation: Observation, site: Site
) -> Tensor:
    return observation.attention[site.layer].mean(1)


def _rollout(model: AttentionModel, observation: Observation, site: Site) -> Tensor:
    return maps.rollout(
        [
            observation.attention[layer].mean(1)
            for layer in model.layers_below(site.layer)
        ]
    )


def _layer_norm_based(
    model: AttentionModel, observation: Observation, site: Site
) -> Tensor:
    values, projection = (
        observation.head_values[site.layer],
        model.output_projections()[site.layer],
    )
    return maps.norm_based_layer(observation.attention[site.layer], values, projection)


@torch.no_grad()
def _value_zeroing(
    model: AttentionModel, observation: Observation, site: Site
) -> Tensor:
    def compute() -> Tensor:
        n_keys = observation.batch.mask.shape[1]
        kept = ~torch.eye(n_keys, dtype=torch.bool, device=observation.probs.device)[
            :, None, None, None
        ]
        kept = kept.expand(-1, len(observation.probs), -1, -1, -1)
        original = model.block_output(
            observation, site.layer, torch.ones_like(kept[:1])
        )
        parts = kept.split(COLUMNS_AT_ONCE)
        columns = [
            maps.cosine_distance(
                original, model.block_output(observation, site.layer, part)
            )
            for part in parts
        ]
        visible = model.visible(observation, site.layer)
        return maps.value_zeroing(torch.cat(columns).permute(1, 2, 0), visible)

    return observation.remember(("value_zeroing", site.layer), compute)


def _value_zeroing_rollout(
    model: AttentionModel, observation: Observation, site: Site
) -> Tensor:
    below = model.layers_below(site.layer)
    return maps.rollout(
        [_value_zeroing(model, observation, Site(layer)) for layer in below],
        residual=False,
    )


def _real(observation: Observation, values: Tensor) -> Tensor:
    """Values [batch, keys, width] with nothing at padding."""
    return values * observation.batch.mask[..., None]


def _scaled(values: Tensor, content: Tensor) -> Tensor:
    """With 1 the largest of a text, [batch, keys]: ties are told by a tolerance that knows attention's scale."""
    largest = (values * content).amax(-1, keepdim=True)
    return values / largest.clamp_min(torch.finfo(values.dtype).tiny)


Reading = Callable[[AttentionModel, Observation, Site], Tensor]
OF_HEADS: dict[str, Reading] = {
    "raw_attention": _attention,
    "attention_times_gradient": _attention_times_gradient,
    "effective_attention": _effective_attention,
    "norm_based": _norm_based,
}
OF_LAYERS: dict[str, Reading] = {
    "mean_attention": _mean_attention,
    "rollout": _rollout,
    "layer_norm_based": _layer_norm_based,
    "value_zeroing": _value_zeroing,
    "value_zeroing_rollout": _value_zeroing_rollout,
}
NEEDS: dict[str, tuple[type, ...]] = {
    "attention_times_gradient": (Differentiable,),
    "effective_attention": (HeadValues,),
    "norm_based": (OutputProjections,),
    "rollout": (Stack,),
    "layer_norm_based": (OutputProjections,),
    "value_zeroing": (BlockOutputs,),
    "value_zeroing_rollout": (Stack, BlockOutputs),
}
"""What a reading asks of the model; the others ask for nothing but attention."""

NOT_SHARES = ("attention_times_gradient", "norm_based", "layer_norm_based")
"""Readings that do not add up to 1: gradients and norms may be of any size."""
