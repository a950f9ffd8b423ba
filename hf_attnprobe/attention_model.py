"""The protocol between models and tests: every model shows its attention as [batch, heads, queries, keys] per layer.

A BiLSTM attention classifier is a Transformer with one layer, one head and one query; a test never knows which it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

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


@runtime_checkable
class AttentionModel(Protocol):
    """What every faithfulness test asks of a model; :func:`hf_attnprobe.wrap` makes one.

    Derive from :class:`AttentionModelBase`, which has defaults for all that is no core.
    What a model can do beyond the core is stated by the capabilities below, and asked
    for with :meth:`AttentionModelBase.lacks`.
    """

    pads_left: bool

    def sites(self) -> list[Site]:
        """Every layer and head that can be read and edited."""

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """A batch on the model's device from padded tokenizer output."""

    def observe(self, batch: Batch) -> "Observation":
        """One forward pass: probabilities and the attention of every layer."""

    def visible(self, observation: "Observation", layer: int) -> Tensor:
        """What each query may attend to, bool [batch, queries, keys]."""

    def read_map(
        self, observation: "Observation", values: Tensor, site: Site
    ) -> Tensor:
        """The row of a map that the prediction is read from, or the row of ``site.query``.

        Shape: values [batch, queries, keys] -> [batch, keys]. The pieces of a word are
        added up at its first one.
        """

    def replay(
        self, observation: "Observation", attention: Mapping[int, Tensor]
    ) -> Tensor:
        """Probabilities with the attention of some layers replaced.

        Shape: attention by layer, each [copies, batch, heads, queries, keys] ->
        [copies, batch, classes]. Layers below the lowest replaced one are not rerun.
        """


@runtime_checkable
class Differentiable(Protocol):
    """Gradients of the probability of one class."""

    def gradient(self, observation: "Observation", target: Tensor) -> Tensor:
        """Gradient × input, attention held fixed, summed over embedding dimensions.

        Shape: target int [batch] -> signed [batch, keys].
        """

    def attention_gradient(
        self, observation: "Observation", target: Tensor
    ) -> list[Tensor]:
        """Gradient with respect to the attention; not zero at masked keys.

        Shape: target int [batch] -> per layer [batch, heads, queries, keys].
        """


@runtime_checkable
class EditableInputs(Protocol):
    """The model run again on texts without some of their units.

    ``mask_id`` is the token that stands in for an erased one; None where there is none.
    """

    mask_id: int | None

    def leave_one_out(self, observation: "Observation") -> Tensor:
        """Probabilities without each unit, [batch, keys, classes].

        Meaningful where ``content_mask`` is True.
        """

    def erase_inputs(
        self, observation: "Observation", erased: Tensor, *, by: str = "deletion"
    ) -> Tensor:
        """Probabilities without the units ``erased``.

        Shape: bool [copies, batch, keys] -> [copies, batch, classes]. Ids are deleted
        (by "deletion") or replaced by ``mask_id`` (by "mask"); special tokens stay.
        """


@runtime_checkable
class LinearReadout(Protocol):
    """logits = Σ_t a_t · token_logits_t: what makes exact answers possible."""

    def token_logits(self, observation: "Observation") -> Tensor:
        """Logits of each token alone, bias included, [batch, keys, classes]."""

    def readout_bias(self) -> Tensor:
        """The logits that stay where there is no attention at all, [classes]."""


@runtime_checkable
class HeadValues(Protocol):
    """The vectors that attention averages."""

    def states(self, observation: "Observation", site: Site) -> Tensor:
        """One vector per position of the site's layer, [batch, keys, width]."""

    def head_values(self, observation: "Observation") -> tuple[Tensor, ...]:
        """Value vectors, bias included, per layer [batch, heads, keys, width]."""

    @property
    def output_projections(self) -> tuple[Tensor, ...]:
        """The heads' slices of the output projection, per layer [heads, width, hidden]."""


@runtime_checkable
class HeadOutputs(Protocol):
    """Heads whose output (attention · values) can be replaced.

    ``reference`` holds the outputs to replace it by; None until it is set.
    """

    reference: Reference | None

    def set_reference(self, batch: Batch) -> None:
        """Keeps the head outputs of ``batch``, once per audit."""

    def replay_outputs(
        self, observation: "Observation", site: Site, outputs: Tensor
    ) -> Tensor:
        """Probabilities with the output of one head replaced.

        Shape: outputs [copies, batch, queries, width] -> [copies, batch, classes]; only
        at ``site.query`` where that is given.
        """


@runtime_checkable
class Stack(Protocol):
    """Layers that feed one another."""

    def layers_below(self, layer: int) -> list[int]:
        """The layers that lead from the input to ``layer``, which is the last."""

    def block_output(
        self, observation: "Observation", layer: int, kept: Tensor
    ) -> Tensor:
        """Output of the block that holds ``layer``, its attention multiplied by ``kept``.

        Shape: kept [copies, batch, 1, 1, keys] -> [copies, batch, queries, hidden].
        """


class AttentionModelBase:
    """Defaults for what an adapter need not say.

    Attributes:
        pads_left: whether texts must be padded on the left.
        unit: what attention weighs and tests explain, "token", "word" or "sentence".
    """

    pads_left: bool = False
    unit: str = "token"

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        """Why the model cannot do what a capability asks for, or None where it can.

        Args:
            capability: one of the protocols above, such as :class:`EditableInputs`.
            site: where; ``None`` is anywhere.
        """
        if isinstance(self, capability):
            return None
        return f"{type(self).__name__} has no {capability.__name__}"

    def self_check(self, batch: Batch) -> None:
        """Raises AttnProbeError, naming the layer, where an edit does not reach the output."""

    def bytes_per_example(
        self, n_keys: int, n_copies: int, *, backward: bool = True
    ) -> int:
        """Upper estimate of the memory that one text needs.

        Args:
            n_keys: positions of the text. n_copies: edits at once.
            backward: whether gradients are taken.
        """
        return 1_000_000 + 64 * n_keys**2 * n_copies

    def positions(
        self, observation: "Observation", layer: int, units: Tensor
    ) -> Tensor:
        """Units as they are read, at every position of ``layer`` that belongs to them.

        Shape: bool [..., batch, keys] -> the same.
        """
        return units


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
    shuffles: dict[tuple[int, int, int], Tensor] = field(
        default_factory=dict, repr=False
    )
    gradients: dict[tuple[int | None, bool], Tensor] = field(
        default_factory=dict, repr=False
    )
    maps: dict[tuple[str, int], Tensor] = field(default_factory=dict, repr=False)
    erased: dict[Any, tuple[dict, list[Tensor]]] = field(
        default_factory=dict, repr=False
    )

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
            self.shuffles[key] = random_permutations(
                visible, n_copies, seed=seed, example_ids=self.batch.example_ids
            )
        return self.shuffles[key]

    def gradient_importance(
        self, target: int | None = None, *, hold_attention: bool = True
    ) -> Tensor:
        """|gradient × input| of the explained class's probability, [batch, keys] (Jain & Wallace 2019, Algorithm 1)."""
        key = (target, hold_attention)
        if key not in self.gradients:
            slope = self.model.gradient(
                self, self.target(target), hold_attention=hold_attention
            )
            self.gradients[key] = slope.abs()
        return self.gradients[key]

    def leave_one_out_importance(self, target: int | None = None) -> Tensor:
        """|p(x without t) − p(x)| of the explained class, [batch, keys]; for two classes the paper's TVD."""
        place = self.target(target)[:, None, None].expand(
            -1, self.leave_one_out.shape[1], 1
        )
        return (
            self.leave_one_out.gather(-1, place)[..., 0]
            - self.probs.gather(-1, place[:, 0])
        ).abs()
