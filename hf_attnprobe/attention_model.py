"""The protocol between models and tests: every model shows its attention as [batch, heads, queries, keys] per layer.

A BiLSTM attention classifier is a Transformer with one layer, one head and one query; a test never knows which it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hf_attnprobe.functional.intervention import random_permutations


class Site(NamedTuple):
    """Where attention is read or edited. ``query=None``: every query row (edits), the read-out row (reading)."""

    layer: int = 0
    head: int = 0
    query: int | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """Some texts, ready for a model.

    inputs: the model's keyword arguments, each [batch, ...].
    mask: bool [batch, keys], positions that may receive attention.
    content_mask: bool [batch, keys], positions that may be explained: no padding, no special tokens.
    example_ids: stable ids from the data set; with the seed they fix all randomness.
    labels: int [batch], or None.
    rationale: bool [batch, keys], the units that people marked as the reason, or None; none are marked in texts
        without a rationale.
    """

    inputs: Mapping[str, Tensor]
    mask: Tensor
    content_mask: Tensor
    example_ids: tuple[int, ...]
    labels: Tensor | None = None
    rationale: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Reference:
    """Head outputs of a fixed sample of texts, for ablations by what a head does elsewhere.

    example_ids: of the texts. lengths: int [texts], how many real queries each has.
    outputs: per layer [texts, heads, queries, width], a text's real queries first and in order, then zeros.
    """

    example_ids: tuple[int, ...]
    lengths: Tensor
    outputs: tuple[Tensor, ...]


class AttentionModel(Protocol):
    """What a test may ask of a model; :func:`hf_attnprobe.wrap` makes one.

    ``reference``: see :meth:`set_reference`; None until it is called, and where head outputs cannot be replaced.
    ``pads_left``: whether texts must be padded on the left. ``mask_id``: the token that stands in for an erased one, for
    :meth:`erase_inputs`; None until it is set.
    """

    reference: Reference | None
    pads_left: bool
    mask_id: int | None

    def self_check(self, batch: Batch) -> None:
        """Raises AttnProbeError, naming the layer, unless an edit of each layer reaches the output and no edit is none."""

    def sites(self) -> list[Site]:
        """Every layer and head that can be read and edited."""

    def prepare(
        self, inputs: Mapping[str, Tensor], example_ids: tuple[int, ...], labels: Tensor | None = None
    ) -> Batch:
        """A batch on the model's device from padded tokenizer output."""

    def observe(self, batch: Batch) -> "Observation":
        """One forward pass: probabilities and the attention of every layer."""

    def read(self, observation: "Observation", site: Site) -> Tensor:
        """The attention of one head from ``site.query``, or from the row that the prediction is read from,
        [batch, keys]; the pieces of a word add up at its first one."""

    def visible(self, observation: "Observation", layer: int) -> Tensor:
        """What each query may attend to, bool [batch, queries, keys]."""

    def replay(self, observation: "Observation", attention: Mapping[int, Tensor]) -> Tensor:
        """Probabilities [copies, batch, classes] with layer l's attention replaced by ``attention[l]``,
        [copies, batch, heads, queries, keys]; nothing below the lowest replaced layer is recomputed."""

    def set_reference(self, batch: Batch) -> None:
        """Keeps the head outputs of ``batch`` as ``reference``, once per audit and with the same texts in every process."""

    def replay_masked(self, observation: "Observation", kept: Mapping[int, Tensor]) -> Tensor:
        """As :meth:`replay`, with layer l's attention multiplied by ``kept[l]`` [copies, batch, heads, 1, 1]: what is
        edited is the attention that the layer comes to behind the edits below it."""

    def replay_outputs(self, observation: "Observation", site: Site, outputs: Tensor) -> Tensor:
        """Probabilities [copies, batch, classes] with the output of one head (attention · values, before the output
        projection) replaced by ``outputs`` [copies, batch, queries, width]; only at ``site.query`` where that is given."""

    def read_map(self, observation: "Observation", values: Tensor, site: Site) -> Tensor:
        """As :meth:`read`, of any map [batch, queries, keys] over the positions of ``site.layer``."""

    def positions(self, observation: "Observation", layer: int, units: Tensor) -> Tensor:
        """Where the keys of ``layer`` hold the units that :meth:`read` shows: from units, bool [..., batch, keys], to
        every position of theirs, such as all pieces of a word, bool [..., batch, keys]."""

    def layers_below(self, layer: int) -> list[int]:
        """The layers that a position's way from the input leads through, ``layer`` the last; raises AttnProbeError where
        there are several ways, or none."""

    def head_values(self, observation: "Observation") -> tuple[Tensor, ...]:
        """Value vectors of every head, bias included, per layer [batch, heads, keys, width]."""

    def states(self, observation: "Observation", site: Site) -> Tensor:
        """What the attention of ``site`` averages, a vector for every position of its layer, [batch, keys, width]."""

    @property
    def output_projections(self) -> tuple[Tensor, ...]:
        """Per layer the heads' slices of the output projection, [heads, width, hidden]."""

    def block_output(self, observation: "Observation", layer: int, kept: Tensor) -> Tensor:
        """Output of the block that holds ``layer``, [copies, batch, queries, hidden], its attention multiplied by ``kept``
        [copies, batch, 1, 1, keys]."""

    def gradient(self, observation: "Observation", target: Tensor, *, hold_attention: bool = True) -> Tensor:
        """Gradient × input of the probability of class ``target`` [batch], summed over embedding dimensions, signed,
        [batch, keys]; with ``hold_attention`` the attention weights count as constants."""

    def leave_one_out(self, observation: "Observation") -> Tensor:
        """Probabilities without each token, [batch, keys, classes]; meaningful where ``content_mask`` is True."""

    def erase_inputs(self, observation: "Observation", erased: Tensor, *, by: str = "deletion") -> Tensor:
        """Probabilities [copies, batch, classes] of the model run again without the units ``erased``, bool [copies, batch,
        keys]: ids deleted (by "deletion") or replaced by ``mask_id`` (by "mask"). Special tokens always stay; where no
        token at all would, the answer is that of :meth:`leave_one_out`. Raises AttnProbeError for images."""

    def attention_gradient(self, observation: "Observation", target: Tensor) -> list[Tensor]:
        """Gradient of the probability of class ``target`` [batch] with respect to the attention, per layer [batch,
        heads, queries, keys]; not zero at masked keys."""

    def token_logits(self, observation: "Observation") -> Tensor | None:
        """[batch, keys, classes] with logits = Σ_t a_t · token_logits_t where the read-out is linear, else None."""

    def readout_bias(self) -> Tensor | None:
        """[classes], the part of ``token_logits`` that stays where there is no attention at all; None where those are."""

    def bytes_per_example(self, n_keys: int, n_copies: int, *, backward: bool = True) -> int:
        """Upper estimate of the memory that one text of ``n_keys`` positions needs with ``n_copies`` edits at once;
        ``backward=False`` where no gradients are taken."""


@dataclass(frozen=True, eq=False)
class Observation:
    """What a model did with a batch. Importances are computed when first asked for, and once.

    probs: [batch, classes]. attention: per layer [batch, heads, queries, keys]. state: the adapter's own.
    maps: what explanations have computed, by name and layer.
    erased: what the model answers to erased inputs, by operator: which answer is whose, and the answers.
    """

    model: AttentionModel
    batch: Batch
    probs: Tensor
    attention: tuple[Tensor, ...]
    state: Any = None
    shuffles: dict[tuple[int, int, int], Tensor] = field(default_factory=dict, repr=False)
    gradients: dict[tuple[int | None, bool], Tensor] = field(default_factory=dict, repr=False)
    maps: dict[tuple[str, int], Tensor] = field(default_factory=dict, repr=False)
    erased: dict[Any, tuple[dict, list[Tensor]]] = field(default_factory=dict, repr=False)

    def read(self, site: Site) -> Tensor:
        """The attention of one head from one query, [batch, keys]; ``query=None`` is the row the prediction is read from."""
        return self.model.read(self, site)

    def target(self, target: int | None) -> Tensor:
        """The class to explain, int [batch]: the predicted one, or ``target`` for every text."""
        predicted = self.probs.argmax(-1)
        return predicted if target is None else torch.full_like(predicted, target)

    @cached_property
    def leave_one_out(self) -> Tensor:
        """Probabilities without each token, [batch, keys, classes]."""
        return self.model.leave_one_out(self)

    @cached_property
    def attention_gradient(self) -> list[Tensor]:
        """Of the predicted class's probability, per layer [batch, heads, queries, keys]."""
        return self.model.attention_gradient(self, self.target(None))

    @cached_property
    def head_values(self) -> tuple[Tensor, ...]:
        """Value vectors of every head, per layer [batch, heads, keys, width]."""
        return self.model.head_values(self)

    def permutations(self, layer: int, n_copies: int, seed: int) -> Tensor:
        """Random permutations of what each query may see, [copies, batch, queries, keys]; one set for all heads."""
        key = (layer, n_copies, seed)
        if key not in self.shuffles:
            visible = self.model.visible(self, layer)
            self.shuffles.clear()  # one layer's at a time: they are large
            self.shuffles[key] = random_permutations(visible, n_copies, seed=seed, example_ids=self.batch.example_ids)
        return self.shuffles[key]

    def gradient_importance(self, target: int | None = None, *, hold_attention: bool = True) -> Tensor:
        """|gradient × input| of the explained class's probability, [batch, keys] (Jain & Wallace 2019, Algorithm 1)."""
        key = (target, hold_attention)
        if key not in self.gradients:
            slope = self.model.gradient(self, self.target(target), hold_attention=hold_attention)
            self.gradients[key] = slope.abs()
        return self.gradients[key]

    def leave_one_out_importance(self, target: int | None = None) -> Tensor:
        """|p(x without t) − p(x)| of the explained class, [batch, keys]; for two classes the paper's TVD."""
        place = self.target(target)[:, None, None].expand(-1, self.leave_one_out.shape[1], 1)
        return (self.leave_one_out.gather(-1, place)[..., 0] - self.probs.gather(-1, place[:, 0])).abs()
