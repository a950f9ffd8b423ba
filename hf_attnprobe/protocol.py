"""The protocol between models and tests.

Every model shows its attention as one tensor [batch, heads, queries, keys] per layer. A
BiLSTM attention classifier is a Transformer with one layer, one head and one query: a
test never knows which of them it has.
"""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.functional import predictions
from hf_attnprobe.functional.divergence import small_side
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.functional.intervention import at_heads, random_permutations
from hf_attnprobe.functional.predictions import Prediction


T = TypeVar("T")
S = TypeVar("S", covariant=True)

NO_INPUTS = frozenset(
    [
        "special_tokens_mask",
        "word_ids",
        "segment_ids",
        "held",
        "labelled",
        "unit_ids",
        "other_ids",
    ]
)
"""Columns of encoded texts that are this package's own, and no model's."""


ALL = -1
"""In place of a head: every head of the layer; of a layer: every layer."""
SET = -2
"""In place of a layer: a set of heads, ``head`` is its number in ``head_sets``."""


class Site(NamedTuple):
    """Where attention is read or edited: one head, or a group of heads.

    ``Site(3, ALL)`` is layer 3, ``Site(ALL, ALL)`` all attention of the model, and
    ``Site(SET, 0)`` the first of its ``head_sets``.

    Attributes:
        layer, head: numbers from 0 on, or what makes a group of them.
        query: one query row. ``None``: edits change every row, readings take the row
            that the prediction is read from.
    """

    layer: int = 0
    head: int = 0
    query: int | None = None

    @property
    def is_group(self) -> bool:
        """Whether it stands for several heads at once."""
        return self.layer < 0 or self.head < 0


@dataclass(frozen=True, eq=False)
class Batch:
    """Some texts, ready for a model.

    Attributes:
        inputs: the model's keyword arguments, each [batch, ...].
        mask: bool [batch, keys], positions that may receive attention.
        content_mask: bool [batch, keys], positions that are explained: no padding, no
            special tokens.
        example_ids: stable ids from the data set; with the seed they fix all randomness.
        labels: int [batch], or None.
        rationale: bool [batch, keys], the units that people marked as the reason, none
            in texts without a rationale; or None.
        segments: int [batch, keys], 0 in the text, 1 in the second text, -1 elsewhere;
            None where texts are single.
        own: all that the tokenizer gives for a model; empty where it is not known.
        scores: float64 [batch, keys], scores of the units that somebody gave, which are then
            a ranking among others; or None.
        identities: int64 [batch], of prompts with their answers; or None.
    """

    inputs: Mapping[str, Tensor]
    mask: Tensor
    content_mask: Tensor
    example_ids: tuple[int, ...]
    labels: Tensor | None = None
    rationale: Tensor | None = None
    segments: Tensor | None = None
    own: Mapping[str, Tensor] = field(default_factory=dict)
    scores: Tensor | None = None
    identities: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Reference:
    """Head outputs of a fixed sample of texts, for mean and resample ablation.

    Attributes:
        example_ids: the ids of the texts.
        lengths: int [texts], the number of real queries of each.
        outputs: per layer [texts, heads, queries, width], a text's real queries first
            and in order, then zeros.
    """

    example_ids: tuple[int, ...]
    lengths: Tensor
    outputs: tuple[Tensor, ...]

    @classmethod
    def joined(cls, parts: Sequence["Reference"]) -> "Reference":
        """The texts of several references, padded to the most queries."""
        ids = tuple(example_id for part in parts for example_id in part.example_ids)
        layers = []
        for outputs in zip(*(part.outputs for part in parts), strict=True):
            most = max(output.shape[2] for output in outputs)
            padded = [F.pad(one, (0, 0, 0, most - one.shape[2])) for one in outputs]
            layers.append(torch.cat(padded))
        return cls(ids, torch.cat([part.lengths for part in parts]), tuple(layers))


@dataclass(frozen=True, eq=False)
class Donors:
    """What attention reads most in a fixed sample of texts, to be read in place of another's.

    Attributes:
        decisions: what each text is predicted to be, int [texts, parts].
        states: by site, by layer of it [texts, heads, width].
    """

    decisions: Tensor
    states: Mapping[Site, Mapping[int, Tensor]]


Change = Callable[[int, Tensor], Tensor]
"""(layer, attention of some heads [batch, heads, queries, keys]) -> copies of it."""


@runtime_checkable
class AttentionModel(Protocol):
    """What every faithfulness test asks of a model; :func:`hf_attnprobe.wrap` makes one.

    Derive from :class:`AttentionModelBase`, which has defaults for everything else. What
    a model can do beyond this core is stated by the capabilities below; ask for one with
    :meth:`AttentionModelBase.lacks`.

    Attributes:
        pads_left: whether texts must be padded on the left.
    """

    pads_left: bool

    @abstractmethod
    def sites(self) -> list[Site]:
        """Every layer and head that can be read and edited."""

    @abstractmethod
    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """A batch on the model's device from padded tokenizer output."""

    @abstractmethod
    def observe(self, batch: Batch) -> "Observation":
        """One forward pass: probabilities and the attention of every layer."""

    @abstractmethod
    def visible(self, observation: "Observation", layer: int) -> Tensor:
        """What tests may move: the keys that each query sees, bool [batch, queries, keys].

        Queries of padding see nothing. Keys that are held, such as the question and the
        first token of a language model's prompt, are False though they have weights: a
        test keeps these weights, and with them the mass of a row that it may move.
        """

    @abstractmethod
    def read_map(self, observation: "Observation", values: Tensor, site: Site) -> Tensor:
        """The row of a map that the prediction is read from, or the row of ``site.query``.

        Shape: values [batch, queries, keys] -> [batch, keys]. The pieces of a word are
        added up at the first one.
        """

    def read_from(self, observation: "Observation") -> str:
        """Which of several rows the prediction is read from, in words; else empty."""
        return ""

    @abstractmethod
    def replay(self, observation: "Observation", attention: Mapping[int, Tensor]) -> Tensor:
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

    def attention_gradient(self, observation: "Observation", target: Tensor) -> list[Tensor]:
        """Gradient with respect to the attention; not zero at masked keys.

        Shape: target int [batch] -> per layer [batch, heads, queries, keys].
        """


@runtime_checkable
class IntegratedGradients(Protocol):
    """Gradients of the probability of one class, along the way to the text."""

    def integrated_gradient(
        self,
        observation: "Observation",
        target: Tensor,
        n_steps: int,
        *,
        through_attention: bool = True,
    ) -> Tensor:
        """Integrated gradients (Sundararajan et al. 2017), summed over dimensions.

        The way is straight, from all embeddings 0 to those of the text. At each of its
        ``n_steps`` points attention is what the model computes there. The sum over a
        text's keys, special tokens included, is p(text) − p(all embeddings 0).

        Args:
            through_attention: whether gradients flow through the attention. Without,
                the sum is no such difference.

        Shape: target int [batch] -> signed [batch, keys].
        """

    def probs_without_embeddings(self, observation: "Observation") -> Tensor:
        """Probabilities where the way begins, all embeddings 0, [batch, classes]."""


@runtime_checkable
class EditableInputs(Protocol):
    """The model run again on texts without some of their units."""

    def leave_one_out(self, observation: "Observation") -> Tensor:
        """Probabilities without each unit, [batch, keys, classes].

        Meaningful where ``content_mask`` is True.
        """

    def erase_inputs(
        self,
        observation: "Observation",
        erased: Tensor,
        *,
        by: str = "deletion",
    ) -> Tensor:
        """Probabilities without the units ``erased``.

        Shape: bool [copies, batch, keys] -> [copies, batch, classes]. Ids are deleted
        (by "deletion") or replaced by the model's ``mask_id`` (by "mask"); special tokens stay.
        A language model knows "deletion" and "gap": deleted, the others' positions kept.
        """


@runtime_checkable
class KeptPositions(Protocol):
    """Units of a prompt can be left out by "gap", the others at their positions."""

    keeps_positions: bool


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


@runtime_checkable
class OutputProjections(Protocol):
    """Heads that a linear map mixes."""

    def output_projections(self) -> tuple[Tensor, ...]:
        """The heads' slices of the output projection, per layer [heads, width, hidden]."""


@runtime_checkable
class HeadOutputs(Protocol):
    """Heads whose output (attention · values) can be replaced.

    ``reference`` holds the outputs to replace it by; None until it is set.
    """

    reference: Reference | None

    def set_reference(self, *batches: Batch) -> None:
        """Keeps the head outputs of some texts, once per audit."""

    def replay_outputs(self, observation: "Observation", site: Site, outputs: Tensor) -> Tensor:
        """Probabilities with the output of one head replaced.

        Shape: outputs [copies, batch, queries, width] -> [copies, batch, classes]; only
        at ``site.query`` where that is given.
        """


@runtime_checkable
class ExchangeableStates(HeadValues, Protocol):
    """Heads that can read another state at a key, with their weights as they are.

    ``donors`` holds the states of other texts; None until they are given.
    """

    donors: Donors | None

    def replay_exchanged(
        self,
        observation: "Observation",
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        """Probabilities with what a site's heads read at one unit of every text replaced.

        The weights of the site's layers are held.

        Args:
            units: int [copies, batch].
            states: by layer of the site [batch, heads of the site, width], in place of
                ``head_values`` at every position of the unit.

        Returns:
            [copies, batch, classes].
        """


@runtime_checkable
class MaskedReplay(Protocol):
    """Attention of several layers scaled at once, as pruning several heads needs it."""

    def replay_masked(self, observation: "Observation", kept: Mapping[int, Tensor]) -> Tensor:
        """Probabilities with the attention of some layers multiplied by ``kept``.

        Each layer recomputes its attention on top of the edited layers below. Shape:
        kept by layer, broadcast to [copies, batch, heads, queries, keys] ->
        [copies, batch, classes].
        """


@runtime_checkable
class Stack(Protocol):
    """Layers that feed one another."""

    def layers_below(self, layer: int) -> list[int]:
        """The layers that lead from the input to ``layer``, which is the last."""


@runtime_checkable
class BlockOutputs(Protocol):
    """Layers in blocks whose output can be read."""

    def block_output(self, observation: "Observation", layer: int, kept: Tensor) -> Tensor:
        """Output of the block that holds ``layer``, its attention multiplied by ``kept``.

        Shape: kept [copies, batch, 1, 1, keys] -> [copies, batch, queries, hidden].
        """


KNOCKOUTS = ("none", "renormalised", "sink")
"""Where the weights go that a knockout takes away: nowhere, to all that the row still looks
at in proportion, or to the sink."""


class ReadTokens(Protocol[S]):
    """What :meth:`AnswersFromPassage.token_attention` calls in every layer."""

    def __call__(self, layer: int, weights: Tensor, values: Tensor) -> S:
        """Reads one layer.

        Args:
            layer: its number.
            weights: [heads, rows, tokens], each row sums to 1 (less where the layer has an
                explicit sink).
            values: [heads, tokens, width], what the weights average.
        """


@runtime_checkable
class AnswersFromPassage(Protocol):
    """A language model that answers from a passage.

    Its keys are the passage's units in order, then two that are held: all else (question,
    template, answer), and the sink (the explicit one, or the first token). Its queries
    are the rows behind the passage. Row t − 1 predicts token t.
    """

    def log_prob(self, observation: "Observation", probs: Tensor) -> Tensor:
        """Log-probability of the whole answer, [..., batch, entries] -> [..., batch], nats."""

    def contrast(self, observation: "Observation", probs: Tensor) -> Tensor:
        """How much likelier the answer is than the other one, in nats.

        The log of the ratio of their probabilities at the first token where they differ.
        Shape: [..., batch, entries] -> [..., batch]; NaN without another answer.
        """

    def without_passage(self, observation: "Observation") -> Tensor:
        """Probabilities with every unit deleted, [batch, entries]."""

    def is_greedy(self, observation: "Observation") -> Tensor:
        """Whether greedy decoding says the answer, bool [batch]."""

    def unit_lengths(self, observation: "Observation") -> Tensor:
        """Number of tokens of each unit, int [batch, keys]; 0 at the two held keys."""

    def row_positions(self, observation: "Observation") -> Tensor:
        """The position in the prompt of every row, int [rows]; the next token is at + 1."""

    def answer_rows(self, observation: "Observation") -> Tensor:
        """Which rows predict a token of the answer, bool [rows]."""

    def token_attention(self, observation: "Observation", read: ReadTokens[S]) -> list[S]:
        """Attention by token instead of by unit: one pass, nothing of it is kept.

        ``observation.batch.inputs`` has the tokens' ``input_ids`` [1, tokens + 1] (the
        answer's last token is no key) and ``unit_ids`` [1, tokens + 1].

        Returns:
            What ``read`` returned in each layer.
        """

    def replay_masked(
        self,
        observation: "Observation",
        kept: Mapping[int, Tensor],
        *,
        operator: str = "none",
    ) -> Tensor:
        """Like :meth:`MaskedReplay.replay_masked`, with an operator of ``KNOCKOUTS``.

        ``kept`` is 0 at the units that are knocked out, 1 elsewhere.
        """


@runtime_checkable
class Decisions(Protocol):
    """Predictions that are decisions, which an edit may flip; numbers are none."""

    prediction: Prediction


class AttentionModelBase(AttentionModel):
    """Base class of adapters: defaults for everything beyond the core.

    Attributes:
        model: the module that is run.
        label_names: the names of the classes, in the order of the probabilities.
        unit: what attention weighs and tests explain: "token", "word" or "sentence".
        n_embeddings: number of token ids the model embeds; None where it reads no ids.
        separator_ids: ids of tokens that are no content, beside the special tokens.
        segment: "text" where only the first text of a pair is attended to; None: any.
        mask_id: the token that stands in for an erased one; None where there is none.
        reference: see :class:`HeadOutputs`.
        donors: see :class:`ExchangeableStates`.
        head_sets: sets of heads that are edited together, besides layers and all heads.
        shared_heads: sets of heads that share keys and values.
        texts_at_once: the most texts of a batch; None: any number.
        sharpness: factor on the logits that makes the model's temperature the standard one; an
            audit finds it, see :meth:`Observation.standard`.
    """

    model: nn.Module
    label_names: list[str]
    pads_left = False
    unit: str = "token"
    n_embeddings: int | None = None
    separator_ids: frozenset[int] = frozenset()
    segment: str | None = None
    mask_id: int | None = None
    reference: Reference | None = None
    donors: Donors | None = None
    head_sets: Sequence[Sequence[Site]] = ()
    shared_heads: Sequence[Sequence[Site]] = ()
    texts_at_once: int | None = None
    sharpness: float = 1.0

    @property
    def n_side_by_side(self) -> int:
        """How many batches an audit works on at once."""
        return 1

    @property
    def prediction(self) -> Prediction:
        """What the model predicts; by default one of the classes."""
        return predictions.classes(self.label_names)

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        """Why the model cannot do what a capability asks for, or None where it can.

        Override it where the answer depends on the model and not on its class alone.

        Args:
            capability: one of the protocols above, such as :class:`EditableInputs`.
            site: where it is needed; ``None``: anywhere.
        """
        if capability is Decisions and not self.prediction.decides:
            return (
                f"expected a model that decides, this one predicts "
                f"{self.prediction.name}; give a threshold with --threshold"
            )
        if capability is ExchangeableStates and not self.prediction.class_names:
            return (
                "expected a decision for one of the same classes in every text, this model "
                f"predicts {self.prediction.name}"
            )
        if isinstance(self, capability):
            return None
        return (
            f"expected a model with {capability.__name__}, "
            f"got {type(self).__name__}, which lacks its methods; add them or leave the test out"
        )

    def require(self, capability: type[T], site: Site | None = None) -> T:
        """The model itself, where it has the capability.

        Raises:
            AttnProbeError: the reason that :meth:`lacks` gives.
        """
        reason = self.lacks(capability, site)
        if reason is not None:
            raise AttnProbeError(reason)
        return cast(T, self)

    def members(self, site: Site) -> dict[int, list[int]]:
        """The heads that a site stands for, by layer, both in ascending order.

        Raises:
            AttnProbeError: no such layer, head or set.
        """
        if site.layer == SET:
            return _by_layer(self.head_sets[site.head])
        known = self._known_heads
        if site.layer == ALL:
            return known
        if site.layer not in known:
            expected = f"expected a layer from {min(known)} to {max(known)}"
            raise AttnProbeError(f"{expected}, got {site.layer}")
        heads = known[site.layer]
        if site.head == ALL:
            return {site.layer: heads}
        if site.head not in heads:
            expected = f"expected a head from {min(heads)} to {max(heads)}"
            raise AttnProbeError(f"{expected} in layer {site.layer}, got {site.head}")
        return {site.layer: [site.head]}

    @cached_property
    def _known_heads(self) -> dict[int, list[int]]:
        """The heads of every layer, both in ascending order; a test asks for them often."""
        return _by_layer(self.sites())

    def check_site(self, site: Site) -> None:
        """Raises AttnProbeError where the model has no such layer or head."""
        self.members(site)

    def self_check(self, batch: Batch) -> None:
        """Called before an audit; raises AttnProbeError where an edit does not arrive.

        By default nothing is checked: :func:`hf_attnprobe.testing.check_adapter` does.
        """

    def native_probs(self, batch: Batch) -> Tensor | None:
        """Probabilities [batch, classes] of the model itself, run without the adapter.

        On ``batch.own``, as users run it; where that is empty on the batch's inputs.
        Rows must equal them; None where the model cannot be run by itself.
        """
        return None

    def leave_one_out(self, observation: "Observation") -> Tensor:
        """See :class:`EditableInputs`: every unit erased by itself."""
        n_texts, n_keys = observation.batch.mask.shape
        device = observation.batch.mask.device
        each = torch.eye(n_keys, dtype=torch.bool, device=device)
        erased = each[:, None].expand(-1, n_texts, -1)
        model = self.require(EditableInputs)
        return model.erase_inputs(observation, erased).transpose(0, 1)

    def positions(self, observation: "Observation", layer: int, units: Tensor) -> Tensor:
        """Every position of ``layer`` that belongs to one of the units.

        Shape: bool [..., batch, keys] -> the same.
        """
        return units

    def max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """The most tokens that a text may have, special ones included; None: any number."""
        longest = int(tokenizer.model_max_length)
        return longest if 0 < longest < UNLIMITED else None

    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ between models with different weights."""
        return model_fingerprint(self.model)


def _by_layer(sites: Sequence[Site]) -> dict[int, list[int]]:
    """The heads of sites by layer, both in ascending order."""
    heads: dict[int, list[int]] = {}
    for layer, head in sorted(site[:2] for site in sites):
        heads.setdefault(layer, []).append(head)
    return heads


UNLIMITED = 10**9
"""Tokenizers without a limit say a number beyond this one."""


@dataclass(frozen=True, eq=False)
class Observation:
    """What a model did with a batch.

    Importances are computed when they are first asked for, and once.

    Attributes:
        model, batch: who saw what.
        probs: [batch, classes].
        attention: per layer [batch, heads, queries, keys].
        state: what the adapter keeps for itself.
        memory: what :meth:`remember` has computed.
        explains: the class that is explained; ``None``: of each text the predicted one.
    """

    model: AttentionModelBase
    batch: Batch
    probs: Tensor
    attention: tuple[Tensor, ...]
    state: Any = None
    memory: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    explains: int | None = None

    def explaining(self, target: str | int | None) -> "Observation":
        """The same observation with a class explained, and the same memory.

        Gradients, leave-one-out and :meth:`flips` are then of this class.

        Args:
            target: a class by name or number; a name that is there counts first.
                ``None``: of each text the predicted one.

        Raises:
            AttnProbeError: no such class.
        """
        number = None if target is None else self._number_of(target)
        return self if number == self.explains else replace(self, explains=number)

    def _number_of(self, target: str | int) -> int:
        prediction = self.model.prediction
        names, n_targets = (
            list(prediction.targets),
            prediction.n_targets(self.probs),
        )
        if not n_targets:
            raise AttnProbeError(
                f"expected no target: this model predicts {prediction.name}, of which no "
                "class can be chosen; leave it out"
            )
        if isinstance(target, str) and names.count(target) == 1:
            return names.index(target)
        number = int(target) if str(target).isdecimal() else -1
        if 0 <= number < n_targets:
            return number
        named = f"the names are {', '.join(names)}" if names else "choose one of them"
        raise AttnProbeError(
            f"expected a target class from 0 to {n_targets - 1}, got {target}; {named}"
        )

    def flips(self, after: Tensor) -> Tensor:
        """Whether outputs are decided otherwise: [..., batch, classes] -> [..., batch].

        Where a class is explained, whether they change sides: decided for it or not. NaN
        where the model makes no decisions.
        """
        flipped = self.model.prediction.flips(self.probs, after, self.explains)
        if self.model.prediction.decides:
            return flipped
        return torch.full_like(after[..., 0], torch.nan)

    def moved_by_part(self, after: Tensor) -> dict[str, Tensor] | None:
        """How far each part of the prediction moves, by name; None where parts have no names.

        Shape: [..., batch, entries] -> each [..., batch].
        """
        prediction = self.model.prediction
        if not prediction.parts:
            return None
        moved = prediction.distance_by_part(after, self.probs)
        return dict(zip(prediction.parts, moved.unbind(-1), strict=True))

    @property
    def _n_parts(self) -> int:
        """What a label's entries were divided by; 1 where no label can be explained."""
        return self.model.prediction.n_parts or 1

    @property
    def side(self) -> Tensor:
        """−1 where a class is explained that is not decided for, else 1, [batch, 1]."""
        is_for = self.model.prediction.is_for(self.probs, self.explains)
        return torch.where(is_for, 1, -1)[:, None]

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The value of ``compute()``, which runs for the first of equal keys only."""
        if key not in self.memory:
            self.memory[key] = compute()
        return self.memory[key]

    def read(self, site: Site) -> Tensor:
        """The attention of one head from one query, [batch, keys].

        Of a group the mean over its heads.

        Raises:
            AttnProbeError: no such layer or head.
        """

        def compute() -> Tensor:
            rows = [
                self.model.read_map(
                    self,
                    self.attention[layer][:, head],
                    site._replace(layer=layer, head=head),
                )
                for layer, heads in self.model.members(site).items()
                for head in heads
            ]
            return rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)

        return self.remember(("read", site), compute)

    def edited(self, site: Site, change: Change) -> dict[int, Tensor]:
        """The attention of a site's layers with its heads changed, for ``replay``.

        Args:
            change: (layer, attention of the site's heads in it [batch, heads, queries,
                keys]) -> the new attention [copies, batch, heads, queries, keys].

        Returns:
            By layer, each [copies, batch, heads, queries, keys], all heads of the layer;
            only the row ``site.query`` is changed where there is one.
        """
        edits = {}
        for layer, heads in self.model.members(site).items():
            attention = self.attention[layer]
            new = change(layer, attention[:, heads])
            edits[layer] = at_heads(attention, heads, site.query, new)
        return edits

    def reaching(self, layer: int) -> Tensor:
        """The query rows of a layer that can move the output, bool [batch, queries].

        In the last layer of a model that reads one position this is one row: no other
        one has a gradient. Where a model has no gradients every real row counts.
        """

        def compute() -> list[Tensor]:
            return _reaching(self.explaining(None))

        real = self.model.visible(self, layer).any(-1)
        return self.remember("reaching", compute)[layer] & real

    def target(self, target: int | None) -> Tensor:
        """The class to explain, int [batch]: ``target``, or the predicted one.

        Where the prediction has several parts, the decided outcome of each,
        int [batch, parts]. Without a target that of :meth:`explaining` comes first.
        """
        target = self.explains if target is None else target
        return self.model.prediction.explained(self.probs, target)

    def explained_probs(self, probs: Tensor) -> Tensor:
        """The probability of what is explained, [..., batch, entries] -> [..., batch]."""
        total = predictions.entry_sum(probs, self.target(None))
        return total if self.explains is None else total * self._n_parts

    def standard(self, probs: Tensor) -> Tensor:
        """Returns what is predicted at the standard temperature, [..., batch, entries].

        There the median lead of what is predicted is 3 nats (p = .95 of two classes), so that
        no number depends on how sure a model was trained to be.
        """
        return self.model.prediction.sharpened(probs, self.model.sharpness)

    def standard_losses(self, after: Tensor) -> Tensor:
        """Returns how far the probability of what is explained falls at the standard temperature.

        On the side that the text is on: for a class that is explained, or against it.

        Shape: [copies, batch, entries] -> [copies, batch].
        """
        before = self.explained_probs(self.standard(self.probs))
        return (before - self.explained_probs(self.standard(after))) * self.side[:, 0]

    @property
    def token_logits(self) -> Tensor | None:
        """Logits of each token alone [batch, keys, classes], for linear read-outs only."""
        if self.model.lacks(LinearReadout):
            return None
        model = self.model.require(LinearReadout)
        return self.remember("token_logits", lambda: model.token_logits(self))

    @property
    def leave_one_out(self) -> Tensor:
        """Probabilities without each token, [batch, keys, classes]."""
        model = self.model.require(EditableInputs)
        return self.remember("leave_one_out", lambda: model.leave_one_out(self))

    @property
    def attention_gradient(self) -> list[Tensor]:
        """Gradient of the explained class's probability with respect to the attention.

        Per layer [batch, heads, queries, keys].
        """

        def compute() -> list[Tensor]:
            model = self.model.require(Differentiable)
            return model.attention_gradient(self, self.target(None))

        return self.remember(("attention_gradient", self.explains), compute)

    @property
    def head_values(self) -> tuple[Tensor, ...]:
        """Value vectors of every head, per layer [batch, heads, keys, width]."""
        model = self.model.require(HeadValues)
        return self.remember("head_values", lambda: model.head_values(self))

    def permutations(self, layer: int, n_copies: int, seed: int) -> Tensor:
        """Random permutations of what each query may see; the same for all heads.

        Shape: int [copies, batch, queries, keys].
        """
        shuffles: dict = self.remember("permutations", dict)
        key = layer, n_copies, seed
        if key not in shuffles:
            shuffles.clear()  # they are large: one layer's at a time
            visible = self.model.visible(self, layer)
            shuffles[key] = random_permutations(
                visible, n_copies, seed=seed, example_ids=self.batch.example_ids
            )
        return shuffles[key]

    def gradient_importance(self) -> Tensor:
        """|gradient × input| of the explained class's probability, [batch, keys].

        Jain & Wallace 2019, Algorithm 1.
        """

        def compute() -> Tensor:
            model = self.model.require(Differentiable)
            return model.gradient(self, self.target(None)).abs()

        return self.remember(("gradient", self.explains), compute)

    def leave_one_out_importance(self) -> Tensor:
        """How far the output moves without each token, [batch, keys].

        Total variation distance to the whole text's output (Jain & Wallace 2019,
        Algorithm 1); of an explained class |p(x without t) − p(x)|. For two classes the
        two are equal.
        """
        if self.explains is None:
            return self.model.prediction.distance(self.probs, self.leave_one_out)
        explained = self.target(None)
        is_large = self.probs.gather(-1, explained[:, None])[:, 0] * self._n_parts > 0.5
        before = small_side(self.probs, explained, is_large)
        without = self.leave_one_out
        each = explained[:, None].expand(without.shape[:2])
        after = small_side(without, each, is_large[:, None].expand_as(each))
        return (after - before[:, None]).abs() * self._n_parts


def _reaching(observation: Observation) -> list[Tensor]:
    """Rows with a gradient, per layer bool [batch, queries].

    Of the predicted class's probability, and of the least probable class's where the
    first is lost in rounding; every row of a text in which both are.
    """
    attention = observation.attention
    if observation.model.lacks(Differentiable):
        return [torch.ones_like(a[:, 0, :, 0], dtype=torch.bool) for a in attention]
    rows = [_moves(slope) for slope in observation.attention_gradient]
    lost = ~torch.stack([row.any(-1) for row in rows]).any(0)
    if not lost.any():
        return rows
    model = observation.model.require(Differentiable)
    probs = observation.probs
    least = probs.masked_fill(probs == 0, torch.inf).argmin(-1)
    others = model.attention_gradient(observation, least)
    rows = [row | _moves(slope) for row, slope in zip(rows, others, strict=True)]
    lost = ~torch.stack([row.any(-1) for row in rows]).any(0)
    return [row | lost[:, None] for row in rows]


def _moves(slope: Tensor) -> Tensor:
    """[batch, heads, queries, keys] -> bool [batch, queries]: any slope but 0."""
    return (slope != 0).any(-1).any(1)
