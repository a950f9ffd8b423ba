"""The contract between models and faithfulness tests.

Every model presents its attention as one tensor `[batch, heads, queries, keys]` per layer. A
BiLSTM attention classifier is treated as a Transformer with one layer, one head and one query,
so a faithfulness test never needs to know which architecture it runs on.

Main classes, in reading order:

- `Site`: a layer and a head, or a group of heads.
- `Batch`: encoded texts with the masks that tests need.
- `AttentionModel`: the methods that every adapter implements.
- `Differentiable`, `EditableInputs`, `LinearReadout` and the other capabilities: optional methods.
  A faithfulness test names the capabilities that it requires.
- `AttentionModelBase`: the base class of adapters, with defaults for everything optional.
- `Observation`: the result of one forward pass, with cached quantities derived from it.
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
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.fingerprint import compute_fingerprint
from hf_attnprobe.functional.intervention import draw_permutations, replace_heads
from hf_attnprobe.functional.predictions import Prediction


T = TypeVar("T")
S = TypeVar("S", covariant=True)

NON_MODEL_COLUMNS = frozenset(
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
"""Columns of encoded texts that only this package reads; they are not passed to a model."""


ALL = -1
"""Value of `Site.head` for all heads of a layer, and of `Site.layer` for all layers."""
HEAD_SET = -2
"""Value of `Site.layer` for a set of heads; `Site.head` is then its index in `head_sets`."""


class Site(NamedTuple):
    """The attention that a test reads or edits: one head, or a group of heads.

    `Site(3, 1)` is head 1 of layer 3, `Site(3, ALL)` is layer 3, `Site(ALL, ALL)` is all attention
    of the model, and `Site(HEAD_SET, 0)` is the first of the model's `head_sets`.

    Attributes:
        layer: Layer index, or `ALL` or `HEAD_SET`.
        head: Head index within the layer, or `ALL`; for `HEAD_SET` the index of the set.
        query: Index of a single query row. With None, edits change every row, and readings use
            the row that the prediction is computed from.
    """

    layer: int = 0
    head: int = 0
    query: int | None = None

    @property
    def is_group(self) -> bool:
        """Whether the site consists of several heads."""
        return self.layer < 0 or self.head < 0


@dataclass(frozen=True, eq=False)
class Batch:
    """Encoded texts, ready for a model.

    Attributes:
        inputs: Keyword arguments of the model, each of shape `[batch, ...]`.
        mask: Positions that may receive attention, bool `[batch, keys]`.
        content_mask: Positions that are explained, bool `[batch, keys]`. Padding and special
            tokens are excluded.
        example_ids: Stable ids from the data set. Together with the seed they determine all
            random draws.
        labels: Class indices, int `[batch]`, or None.
        rationale: Units that annotators marked as the reason for the label, bool
            `[batch, keys]`, or None. A text without a rationale has no marked units.
        segments: Number of the text that each position belongs to, int `[batch, keys]`: 0 for the
            first text, 1 for the second, -1 for other tokens. None if texts are not pairs.
        tokenizer_output: All tensors that the tokenizer returned, which a model can be called
            with directly. Empty if they are not available.
        scores: User-provided scores of the units, float64 `[batch, keys]`, or None. They are
            evaluated as an additional ranking.
        identities: Hashes of prompts with their answers, int64 `[batch]`, or None.
    """

    inputs: Mapping[str, Tensor]
    mask: Tensor
    content_mask: Tensor
    example_ids: tuple[int, ...]
    labels: Tensor | None = None
    rationale: Tensor | None = None
    segments: Tensor | None = None
    tokenizer_output: Mapping[str, Tensor] = field(default_factory=dict)
    scores: Tensor | None = None
    identities: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ReferenceOutputs:
    """Head outputs of a fixed sample of texts, for mean and resample ablation.

    Attributes:
        example_ids: Ids of the sampled texts.
        lengths: Number of real (not padding) queries per text, int `[texts]`.
        outputs: One tensor `[texts, heads, queries, width]` per layer. The real queries of a text
            come first, in their order, followed by zeros.
    """

    example_ids: tuple[int, ...]
    lengths: Tensor
    outputs: tuple[Tensor, ...]

    @classmethod
    def concatenate(cls, parts: Sequence["ReferenceOutputs"]) -> "ReferenceOutputs":
        """Concatenate references along the text axis, padded to the largest number of queries.

        Args:
            parts: References of different texts, from the same model.

        Returns:
            A reference with the texts of all parts.
        """
        example_ids = tuple(example_id for part in parts for example_id in part.example_ids)
        layers = []
        for outputs in zip(*(part.outputs for part in parts), strict=True):
            n_queries = max(output.shape[2] for output in outputs)
            padded = [F.pad(output, (0, 0, 0, n_queries - output.shape[2])) for output in outputs]
            layers.append(torch.cat(padded))
        lengths = torch.cat([part.lengths for part in parts])
        return cls(example_ids, lengths, tuple(layers))


@dataclass(frozen=True, eq=False)
class Donors:
    """States of a fixed sample of texts, which interchange tests insert into other texts.

    Each text contributes the state of its most attended position.

    Attributes:
        decisions: Predicted outcome of each part of the prediction, int `[texts, parts]`.
        states: For each site, and for each layer of that site, a tensor `[texts, heads, width]`.
    """

    decisions: Tensor
    states: Mapping[Site, Mapping[int, Tensor]]


SiteEdit = Callable[[int, Tensor], Tensor]
"""Function from a layer and the attention of some of its heads, `[batch, heads, queries, keys]`,
to edited attention, `[copies, batch, heads, queries, keys]`."""


@runtime_checkable
class AttentionModel(Protocol):
    """Methods that every faithfulness test calls; `hf_attnprobe.wrap` returns such a model.

    Derive adapters from `AttentionModelBase`, which has defaults for everything else. Abilities
    beyond these methods are declared by the capability protocols below. A test checks for one with
    `AttentionModelBase.lacks`.

    Attributes:
        pads_left: Whether texts must be padded on the left.
    """

    pads_left: bool

    @abstractmethod
    def sites(self) -> list[Site]:
        """Return one site for every layer and head that can be read and edited.

        Returns:
            Sites without a query, ordered by layer and head.
        """

    @abstractmethod
    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Create a batch on the model's device from padded tokenizer output.

        Args:
            inputs: Tokenizer output, such as `input_ids` and `attention_mask`, each
                `[batch, keys]`.
            example_ids: Data set id for each text.
            labels: Class indices, int `[batch]`.

        Returns:
            A batch whose masks mark real and explained positions.
        """

    @abstractmethod
    def observe(self, batch: Batch) -> "Observation":
        """Run one forward pass and record the probabilities and the attention of every layer.

        Args:
            batch: Texts from `prepare`.

        Returns:
            An observation with `probs` `[batch, classes]` and one attention tensor
            `[batch, heads, queries, keys]` per layer. Each attention row sums to 1 over the
            visible keys and is exactly 0 at all other keys.
        """

    @abstractmethod
    def get_visible_keys(self, observation: "Observation", layer: int) -> Tensor:
        """Return the keys whose attention weights tests may change, for each query.

        A query of a padding token has no such keys. Some keys are fixed although they have
        weights, for example the question and the first token of a language model's prompt. They
        are marked False, so that a test leaves their weights unchanged and only redistributes the
        remaining weight of the row.

        Args:
            observation: The observed batch.
            layer: Layer index.

        Returns:
            Bool `[batch, queries, keys]`.
        """

    @abstractmethod
    def select_row(self, observation: "Observation", values: Tensor, site: Site) -> Tensor:
        """Select the query row that the prediction is computed from.

        If `site.query` is set, that row is selected instead. Values of the pieces of a word are
        summed at the first piece.

        Args:
            observation: The observed batch.
            values: Values such as attention weights or gradients, `[batch, queries, keys]`.
            site: A single head, whose layer determines the row.

        Returns:
            The row, `[batch, keys]`. It must depend linearly on `values`.
        """

    def describe_readout(self, observation: "Observation") -> str:
        """Describe which query row the prediction is computed from.

        Args:
            observation: The observed batch.

        Returns:
            A phrase such as "the first token", or an empty string if there is only one row.
        """
        return ""

    @abstractmethod
    def replay(self, observation: "Observation", attention: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities with the attention of some layers replaced.

        Layers below the lowest replaced layer are not computed again.

        Args:
            observation: The observed batch.
            attention: New attention by layer, each `[copies, batch, heads, queries, keys]`.
                Every copy is an independent edit.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class Differentiable(Protocol):
    """Capability: gradients of the probability of one class."""

    def compute_gradient_times_input(self, observation: "Observation", target: Tensor) -> Tensor:
        """Compute gradient × input, summed over the embedding dimensions.

        Attention weights are treated as constants.

        Args:
            observation: The observed batch.
            target: Class whose probability is differentiated, int `[batch]`.

        Returns:
            Signed values `[batch, keys]`.
        """

    def compute_attention_gradient(
        self, observation: "Observation", target: Tensor
    ) -> list[Tensor]:
        """Compute the gradient of a probability with respect to the attention weights.

        Args:
            observation: The observed batch.
            target: Class whose probability is differentiated, int `[batch]`.

        Returns:
            One tensor `[batch, heads, queries, keys]` per layer. Masked keys may have a gradient
            too.
        """


@runtime_checkable
class IntegratedGradients(Protocol):
    """Capability: gradients integrated from zero embeddings to those of the text."""

    def compute_integrated_gradients(
        self,
        observation: "Observation",
        target: Tensor,
        n_steps: int,
        *,
        through_attention: bool = True,
    ) -> Tensor:
        """Compute integrated gradients (Sundararajan et al. 2017), summed over dimensions.

        The path is a straight line from embeddings that are all 0 to the embeddings of the text.
        At each of the `n_steps` points of the path, attention has the value that the model
        computes there. The sum over all keys of a text, special tokens included, approximates
        p(text) - p(all embeddings 0).

        Args:
            observation: The observed batch.
            target: Class whose probability is differentiated, int `[batch]`.
            n_steps: Number of points at which the gradient is evaluated.
            through_attention: Whether gradients flow through the attention weights. If not, the
                sum does not approximate the difference of probabilities.

        Returns:
            Signed values `[batch, keys]`.
        """

    def compute_zero_embedding_probs(self, observation: "Observation") -> Tensor:
        """Compute the probabilities at the start of the path, with all embeddings 0.

        Args:
            observation: The observed batch.

        Returns:
            Probabilities `[batch, classes]`.
        """


@runtime_checkable
class EditableInputs(Protocol):
    """Capability: forward passes on texts without some of their units."""

    def compute_leave_one_out(self, observation: "Observation") -> Tensor:
        """Compute each text's probabilities without each one of its units.

        Args:
            observation: The observed batch.

        Returns:
            Probabilities `[batch, keys, classes]`, meaningful wherever `content_mask` is True.
        """

    def erase_inputs(
        self,
        observation: "Observation",
        erased: Tensor,
        *,
        operator: str = "deletion",
    ) -> Tensor:
        """Compute each text's probabilities without the erased units.

        Special tokens are never erased.

        Args:
            observation: The observed batch.
            erased: Units to remove, bool `[copies, batch, keys]`.
            operator: "deletion" removes tokens, "mask" replaces them by the model's `mask_id`. A
                language model supports "deletion" and "gap", which removes tokens but keeps the
                positions of the remaining ones.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class KeptPositions(Protocol):
    """Capability: deletion of units from a prompt without moving the remaining tokens.

    Such a model supports the operator "gap" of `EditableInputs.erase_inputs`.
    """

    keeps_positions: bool


@runtime_checkable
class LinearReadout(Protocol):
    """Capability: logits = Σ_t a_t · token_logits_t, which makes exact solutions possible."""

    def compute_token_logits(self, observation: "Observation") -> Tensor:
        """Compute the logits if all attention were on one token, for each token.

        Args:
            observation: The observed batch.

        Returns:
            Logits including the bias, `[batch, keys, classes]`.
        """

    def get_readout_bias(self) -> Tensor:
        """Return the logits without any attention, `[classes]`."""


@runtime_checkable
class HeadValues(Protocol):
    """Capability: access to the vectors that attention averages."""

    def get_states(self, observation: "Observation", site: Site) -> Tensor:
        """Return one vector for each position of a layer.

        Args:
            observation: The observed batch.
            site: A single head.

        Returns:
            States `[batch, keys, width]`.
        """

    def compute_head_values(self, observation: "Observation") -> tuple[Tensor, ...]:
        """Compute the value vectors of all heads, bias included.

        Args:
            observation: The observed batch.

        Returns:
            One tensor `[batch, heads, keys, width]` per layer.
        """


@runtime_checkable
class OutputProjections(Protocol):
    """Capability: heads whose outputs are combined by a linear map."""

    def get_output_projections(self) -> tuple[Tensor, ...]:
        """Return each head's slice of the output projection.

        Returns:
            One tensor `[heads, width, hidden]` per layer.
        """


@runtime_checkable
class HeadOutputs(Protocol):
    """Capability: heads whose output (attention · values) can be replaced.

    Attributes:
        reference: Head outputs to replace a head's output by, or None before `set_reference`.
    """

    reference: ReferenceOutputs | None

    def set_reference(self, *batches: Batch) -> None:
        """Store the head outputs of a sample of texts as `reference`; called once per audit.

        Args:
            *batches: The sampled texts.
        """

    def replay_outputs(self, observation: "Observation", site: Site, outputs: Tensor) -> Tensor:
        """Compute the probabilities with the output of one head replaced.

        Args:
            observation: The observed batch.
            site: A single head. If `site.query` is set, only that row is replaced.
            outputs: New outputs `[copies, batch, queries, width]`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class ExchangeableStates(HeadValues, Protocol):
    """Capability: heads that can read another state at a key, with unchanged weights.

    Attributes:
        donors: States of other texts, or None before an audit has set them.
    """

    donors: Donors | None

    def replay_interchange(
        self,
        observation: "Observation",
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        """Compute the probabilities if a site's heads read other states at one unit per text.

        The attention weights of the site's layers are kept at their observed values.

        Args:
            observation: The observed batch.
            site: The heads that read the other states.
            units: Position of the unit in each text, int `[copies, batch]`.
            states: States that replace the head values at every position of the unit, by layer,
                each `[batch, heads of the site, width]`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class MaskedReplay(Protocol):
    """Capability: multiplying the attention of several layers, for example to prune heads."""

    def replay_masked(self, observation: "Observation", factors: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities with attention weights multiplied by factors.

        Each layer recomputes its attention from the output of the edited layers below it.

        Args:
            observation: The observed batch.
            factors: Factors by layer, which broadcast to `[copies, batch, heads, queries, keys]`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class Stack(Protocol):
    """Capability: layers of which each one reads the output of the layer below."""

    def list_layers_below(self, layer: int) -> list[int]:
        """List the layers from the input up to a layer.

        Args:
            layer: Layer index.

        Returns:
            Ascending layer indices, which end with `layer`.
        """


@runtime_checkable
class BlockOutputs(Protocol):
    """Capability: access to the output of the block that contains a layer."""

    def compute_block_output(
        self, observation: "Observation", layer: int, factors: Tensor
    ) -> Tensor:
        """Compute a block's output with the attention of its layer multiplied by factors.

        Args:
            observation: The observed batch.
            layer: Layer index.
            factors: Factors of the keys, `[copies, batch, 1, 1, keys]`.

        Returns:
            Hidden states `[copies, batch, queries, hidden]`.
        """


KNOCKOUTS = ("none", "renormalised", "sink")
"""Ways to treat the attention weight that a knockout removes.

The weight is lost ("none"), distributed over the remaining keys of the row in proportion to their weights
("renormalised"), or moved to the attention sink ("sink").
"""


class LayerReader(Protocol[S]):
    """Function that `AnswersFromPassage.read_token_attention` calls in every layer."""

    def __call__(self, layer: int, weights: Tensor, values: Tensor) -> S:
        """Read one layer.

        Args:
            layer: Layer index.
            weights: Attention weights `[heads, rows, tokens]`. Each row sums to 1, or to less
                if the layer has an explicit attention sink.
            values: Value vectors that the weights average, `[heads, tokens, width]`.
        """


@runtime_checkable
class AnswersFromPassage(Protocol):
    """Capability: a language model that answers from a passage.

    Its keys are the units of the passage in their order, followed by two fixed keys: one for all
    other tokens (question, template, answer), and one for the attention sink (the explicit sink,
    or the first token). Its queries are the tokens after the passage. The row of token t - 1
    predicts token t.
    """

    def compute_log_prob(self, observation: "Observation", probs: Tensor) -> Tensor:
        """Compute the log-probability of the whole answer.

        Args:
            observation: The observed prompt.
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Log-probabilities in nats, `[..., batch]`.
        """

    def compute_contrast(self, observation: "Observation", probs: Tensor) -> Tensor:
        """Compute the log-odds of the answer against the user's alternative answer.

        The two are compared at the first token at which they differ.

        Args:
            observation: The observed prompt.
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Log of the ratio of both probabilities in nats, `[..., batch]`. NaN if there is no
            alternative answer.
        """

    def compute_probs_without_passage(self, observation: "Observation") -> Tensor:
        """Compute the probabilities with all units of the passage deleted.

        Args:
            observation: The observed prompt.

        Returns:
            Prediction vectors `[batch, entries]`.
        """

    def is_greedy(self, observation: "Observation") -> Tensor:
        """Check whether greedy decoding generates the answer.

        Args:
            observation: The observed prompt.

        Returns:
            Bool `[batch]`.
        """

    def count_unit_tokens(self, observation: "Observation") -> Tensor:
        """Count the tokens of each unit.

        Args:
            observation: The observed prompt.

        Returns:
            Int `[batch, keys]`; 0 at the two fixed keys.
        """

    def get_row_positions(self, observation: "Observation") -> Tensor:
        """Return the position of each row's token in the prompt.

        Args:
            observation: The observed prompt.

        Returns:
            Int `[rows]`. The token that a row predicts is at the next position.
        """

    def find_answer_rows(self, observation: "Observation") -> Tensor:
        """Find the rows that predict a token of the answer.

        Args:
            observation: The observed prompt.

        Returns:
            Bool `[rows]`.
        """

    def read_token_attention(
        self, observation: "Observation", read_layer: LayerReader[S]
    ) -> list[S]:
        """Run one forward pass and call a function with the token-level attention of each layer.

        The attention itself is not stored. `observation.batch.inputs` contains the `input_ids`
        and `unit_ids` of the tokens, each `[1, tokens + 1]`. The last token of the answer is not
        a key.

        Args:
            observation: The observed prompt.
            read_layer: Function from a layer's weights and values to a result.

        Returns:
            The result of `read_layer` for each layer.
        """

    def replay_masked(
        self,
        observation: "Observation",
        factors: Mapping[int, Tensor],
        *,
        operator: str = "none",
    ) -> Tensor:
        """Compute the probabilities with the attention to some units blocked.

        Like `MaskedReplay.replay_masked`, with a choice of how the removed weight is used.

        Args:
            observation: The observed prompt.
            factors: 0 at the units that are knocked out, 1 elsewhere; by layer, each broadcasts
                to `[copies, batch, heads, queries, keys]`.
            operator: One of `KNOCKOUTS`.

        Returns:
            Prediction vectors `[copies, batch, entries]`.
        """


@runtime_checkable
class Decisions(Protocol):
    """Capability: predictions that are decisions, which an edit may flip, unlike numbers."""

    prediction: Prediction


class AttentionModelBase(AttentionModel):
    """Base class for adapters, with defaults for everything beyond `AttentionModel`.

    Attributes:
        model: The module that is run.
        label_names: Class names, in the same order as the probabilities.
        unit: Name of the unit that attention weights belong to: "token", "word" or "sentence".
        n_embeddings: Number of token ids that the model embeds, or None if it reads no ids.
        separator_ids: Ids of tokens that are not content, in addition to the special tokens.
        segment: "text" if only the first text of a pair receives attention, or None.
        mask_id: Id of the token that replaces erased tokens, or None.
        reference: Head outputs for `HeadOutputs`.
        donors: States for `ExchangeableStates`.
        head_sets: Sets of heads that are edited together, in addition to layers and all heads.
        shared_heads: Sets of heads that share their keys and values.
        max_batch_size: Largest number of texts in a batch, or None for no limit.
        sharpness: Factor on the logits that gives the model the standard temperature; determined
            by an audit, see `Observation.apply_standard_temperature`.
    """

    model: nn.Module
    label_names: list[str]
    pads_left = False
    unit: str = "token"
    n_embeddings: int | None = None
    separator_ids: frozenset[int] = frozenset()
    segment: str | None = None
    mask_id: int | None = None
    reference: ReferenceOutputs | None = None
    donors: Donors | None = None
    head_sets: Sequence[Sequence[Site]] = ()
    shared_heads: Sequence[Sequence[Site]] = ()
    max_batch_size: int | None = None
    sharpness: float = 1.0

    @property
    def n_parallel_batches(self) -> int:
        """Number of batches that an audit processes concurrently."""
        return 1

    @property
    def prediction(self) -> Prediction:
        """Meaning of the probabilities; by default, one of several classes is predicted."""
        return predictions.make_class_prediction(self.label_names)

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        """Return the reason why the model does not have a capability, or None if it does.

        Override this method if the answer depends on the wrapped model, and not only on the
        methods of the adapter class.

        Args:
            capability: A capability protocol, such as `EditableInputs`.
            site: The site that needs the capability, or None for the model as a whole.

        Returns:
            The text of an error message, or None.
        """
        if capability is Decisions and not self.prediction.decides:
            return (
                f"expected a model that makes decisions, but this one predicts "
                f"{self.prediction.name}; set a decision threshold with --threshold"
            )
        if capability is ExchangeableStates and not self.prediction.class_names:
            return (
                "expected a model that chooses among the same classes in every text, but this one "
                f"predicts {self.prediction.name}"
            )
        if isinstance(self, capability):
            return None
        return (
            f"expected a model with the methods of {capability.__name__}, but "
            f"{type(self).__name__} does not have them; add the methods or leave the test out"
        )

    def require(self, capability: type[T], site: Site | None = None) -> T:
        """Return the model, typed as a capability that it must have.

        Args:
            capability: A capability protocol, such as `EditableInputs`.
            site: The site that needs the capability, or None for the model as a whole.

        Returns:
            The model itself.

        Raises:
            AttnProbeError: If the model lacks the capability. The message is the reason that
                `lacks` returns.
        """
        reason = self.lacks(capability, site)
        if reason is not None:
            raise AttnProbeError(reason)
        return cast(T, self)

    def get_heads_by_layer(self, site: Site) -> dict[int, list[int]]:
        """Return the heads of a site, grouped by layer.

        Args:
            site: A head, or a group of heads.

        Returns:
            Ascending head indices by layer index, in ascending order of the layers.

        Raises:
            AttnProbeError: If the model has no such layer or head.
        """
        if site.layer == HEAD_SET:
            return _group_heads_by_layer(self.head_sets[site.head])
        all_heads = self._all_heads_by_layer
        if site.layer == ALL:
            return all_heads
        if site.layer not in all_heads:
            raise AttnProbeError(
                f"expected a layer from {min(all_heads)} to {max(all_heads)}, got {site.layer}"
            )
        heads = all_heads[site.layer]
        if site.head == ALL:
            return {site.layer: heads}
        if site.head not in heads:
            raise AttnProbeError(
                f"expected a head from {min(heads)} to {max(heads)} in layer {site.layer}, "
                f"got {site.head}"
            )
        return {site.layer: [site.head]}

    @cached_property
    def _all_heads_by_layer(self) -> dict[int, list[int]]:
        """All heads of the model by layer; cached because tests look them up often."""
        return _group_heads_by_layer(self.sites())

    def check_site(self, site: Site) -> None:
        """Raise AttnProbeError if the model has no such layer or head.

        Args:
            site: A head, or a group of heads.
        """
        self.get_heads_by_layer(site)

    def self_check(self, batch: Batch) -> None:
        """Raise AttnProbeError if an edit of the attention does not reach the output.

        Called before every audit. By default nothing is checked;
        `hf_attnprobe.testing.check_adapter` checks an adapter in a test suite.

        Args:
            batch: Texts to run the check on.
        """

    def compute_native_probs(self, batch: Batch) -> Tensor | None:
        """Compute the probabilities by calling the user's model without the adapter.

        They are compared with the probabilities that the adapter computes. The model is called
        with `batch.tokenizer_output`, as users call it, or with `batch.inputs` if that is empty.

        Args:
            batch: Texts from `prepare`.

        Returns:
            Probabilities `[batch, classes]`, or None if the model cannot be called by itself.
        """
        return None

    def compute_leave_one_out(self, observation: "Observation") -> Tensor:
        """Compute the probabilities without each unit; see `EditableInputs`.

        Args:
            observation: The observed batch.

        Returns:
            Probabilities `[batch, keys, classes]`.
        """
        n_texts, n_keys = observation.batch.mask.shape
        device = observation.batch.mask.device
        single_units = torch.eye(n_keys, dtype=torch.bool, device=device)
        erased = single_units[:, None].expand(-1, n_texts, -1)
        model = self.require(EditableInputs)
        return model.erase_inputs(observation, erased).transpose(0, 1)

    def get_unit_positions(self, observation: "Observation", layer: int, units: Tensor) -> Tensor:
        """Return all positions of a layer that belong to the given units.

        Args:
            observation: The observed batch.
            layer: Layer index.
            units: Selected units, bool `[..., batch, keys]`.

        Returns:
            Bool `[..., batch, keys]`.
        """
        return units

    def get_max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """Return the largest number of tokens of a text, including special tokens.

        Args:
            tokenizer: The tokenizer of the model.

        Returns:
            The limit, or None if there is none.
        """
        max_length = int(tokenizer.model_max_length)
        return max_length if 0 < max_length < UNLIMITED_LENGTH else None

    def compute_fingerprint(self) -> str:
        """Compute 16 hexadecimal digits that differ between models with different weights."""
        return compute_fingerprint(self.model)


def _group_heads_by_layer(sites: Sequence[Site]) -> dict[int, list[int]]:
    """Group the heads of sites by layer, with layers and heads in ascending order."""
    heads_by_layer: dict[int, list[int]] = {}
    for layer, head in sorted(site[:2] for site in sites):
        heads_by_layer.setdefault(layer, []).append(head)
    return heads_by_layer


UNLIMITED_LENGTH = 10**9
"""Length in tokens above which a limit counts as none; tokenizers without a limit report more."""


@dataclass(frozen=True, eq=False)
class Observation:
    """The result of one forward pass over a batch.

    Derived quantities, such as gradients, are computed on first use and then cached.

    Attributes:
        model: The model that was run.
        batch: The texts that it was run on.
        probs: Probabilities `[batch, classes]`.
        attention: One tensor `[batch, heads, queries, keys]` per layer.
        state: Private data of the adapter.
        cache: Results that `remember` has computed, by key.
        explained_class: The class that is explained. With None, the predicted class of each text
            is explained.
    """

    model: AttentionModelBase
    batch: Batch
    probs: Tensor
    attention: tuple[Tensor, ...]
    state: Any = None
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    explained_class: int | None = None

    def with_target(self, target: str | int | None) -> "Observation":
        """Return this observation with another class to explain, sharing the same cache.

        Gradients, leave-one-out importance and `find_flips` then refer to this class.

        Args:
            target: Name or index of a class; names take precedence. None explains the predicted
                class of each text.

        Returns:
            The observation itself if nothing changes, otherwise a copy.

        Raises:
            AttnProbeError: If the model has no such class.
        """
        class_index = None if target is None else self._find_class_index(target)
        if class_index == self.explained_class:
            return self
        return replace(self, explained_class=class_index)

    def _find_class_index(self, target: str | int) -> int:
        """Find the index of a class by its name or index."""
        prediction = self.model.prediction
        names, n_targets = (
            list(prediction.target_names),
            prediction.count_targets(self.probs),
        )
        if not n_targets:
            raise AttnProbeError(
                f"no target class can be chosen, because this model predicts {prediction.name}; "
                "leave the option out"
            )
        if isinstance(target, str) and names.count(target) == 1:
            return names.index(target)
        class_index = int(target) if str(target).isdecimal() else -1
        if 0 <= class_index < n_targets:
            return class_index
        hint = f"the names are {', '.join(names)}" if names else "choose one of them"
        raise AttnProbeError(
            f"expected a target class from 0 to {n_targets - 1}, got {target}; {hint}"
        )

    def find_flips(self, after: Tensor) -> Tensor:
        """Find the outputs whose decision differs from the decision of this observation.

        If a class is explained, an output flips if it changes between a decision for this class
        and a decision against it.

        Args:
            after: Probabilities after an edit, `[..., batch, classes]`.

        Returns:
            Whether each decision has flipped, `[..., batch]`; NaN if the model makes no decisions.
        """
        flipped = self.model.prediction.has_flipped(self.probs, after, self.explained_class)
        if self.model.prediction.decides:
            return flipped
        return torch.full_like(after[..., 0], torch.nan)

    def compute_change_by_part(self, after: Tensor) -> dict[str, Tensor] | None:
        """Compute the output change of each part of the prediction, such as each label.

        Args:
            after: Prediction vectors after an edit, `[..., batch, entries]`.

        Returns:
            Changes `[..., batch]` by name of the part, or None if parts have no names.
        """
        prediction = self.model.prediction
        if not prediction.parts:
            return None
        changes = prediction.compute_part_distances(after, self.probs)
        return dict(zip(prediction.parts, changes.unbind(-1), strict=True))

    @property
    def _n_parts(self) -> int:
        """Number of parts of the prediction, or 1 if no class can be explained."""
        return self.model.prediction.n_parts or 1

    @property
    def target_sign(self) -> Tensor:
        """-1 for texts decided against the explained class, otherwise 1, `[batch, 1]`."""
        is_for = self.model.prediction.is_decided_for(self.probs, self.explained_class)
        return torch.where(is_for, 1, -1)[:, None]

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return a cached result, and compute it if it is not in the cache yet.

        Args:
            key: Key of the result. It must identify everything that the result depends on, apart
                from this observation.
            compute: Function that computes the result.

        Returns:
            The cached or computed result.
        """
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]

    def read(self, site: Site) -> Tensor:
        """Read the attention of one head in the row that the prediction is computed from.

        If `site.query` is set, that row is read. For a group of heads, their mean is returned.

        Args:
            site: A head, or a group of heads.

        Returns:
            Attention weights `[batch, keys]`.

        Raises:
            AttnProbeError: If the model has no such layer or head.
        """

        def compute() -> Tensor:
            rows = [
                self.model.select_row(
                    self,
                    self.attention[layer][:, head],
                    site._replace(layer=layer, head=head),
                )
                for layer, heads in self.model.get_heads_by_layer(site).items()
                for head in heads
            ]
            return rows[0] if len(rows) == 1 else torch.stack(rows).mean(0)

        return self.remember(("read", site), compute)

    def edit_attention(self, site: Site, edit: SiteEdit) -> dict[int, Tensor]:
        """Edit the attention of a site's heads, for `AttentionModel.replay`.

        Args:
            site: The heads to edit. If `site.query` is set, only that row changes.
            edit: Function from a layer and the attention of the site's heads in it,
                `[batch, heads, queries, keys]`, to new attention
                `[copies, batch, heads, queries, keys]`.

        Returns:
            Attention of all heads by layer, each `[copies, batch, heads, queries, keys]`.
        """
        edits = {}
        for layer, heads in self.model.get_heads_by_layer(site).items():
            attention = self.attention[layer]
            edited = edit(layer, attention[:, heads])
            edits[layer] = replace_heads(attention, heads, site.query, edited)
        return edits

    def find_effective_queries(self, layer: int) -> Tensor:
        """Find the query rows of a layer that can change the output.

        In the last layer of a model that reads only one position, this is a single row, because
        no other row has a gradient. If the model has no gradients, all real rows are returned.

        Args:
            layer: Layer index.

        Returns:
            Bool `[batch, queries]`.
        """

        def compute() -> list[Tensor]:
            return _find_rows_with_gradient(self.with_target(None))

        is_real = self.model.get_visible_keys(self, layer).any(-1)
        return self.remember("reaching", compute)[layer] & is_real

    def get_target_classes(self, target: int | None) -> Tensor:
        """Return the class to explain in each text.

        Args:
            target: Index of a class. With None, the class chosen by `with_target` is used, and if
                there is none, the predicted class of each text.

        Returns:
            Int `[batch]`. If the prediction has several parts, the decided outcome of each part,
            int `[batch, parts]`.
        """
        target = self.explained_class if target is None else target
        return self.model.prediction.select_explained_entries(self.probs, target)

    def compute_explained_probs(self, probs: Tensor) -> Tensor:
        """Compute the probability of the explained class or prediction.

        Args:
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Probabilities `[..., batch]`.
        """
        total = predictions.sum_entries(probs, self.get_target_classes(None))
        return total if self.explained_class is None else total * self._n_parts

    def apply_standard_temperature(self, probs: Tensor) -> Tensor:
        """Convert probabilities to the standard temperature.

        At this temperature, the median margin of the predictions is 3 nats, which is p = 0.95
        with two classes. Statistics computed there do not depend on how confident the model was
        trained to be.

        Args:
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Prediction vectors of the same shape.
        """
        return self.model.prediction.sharpen(probs, self.model.sharpness)

    def compute_standard_losses(self, after: Tensor) -> Tensor:
        """Compute how far the explained probability falls, at the standard temperature.

        If a class is explained and a text is decided against it, the sign is reversed: the
        loss is then the rise of the class's probability.

        Args:
            after: Prediction vectors after an edit, `[copies, batch, entries]`.

        Returns:
            Losses `[copies, batch]`.
        """
        before = self.compute_explained_probs(self.apply_standard_temperature(self.probs))
        edited = self.compute_explained_probs(self.apply_standard_temperature(after))
        return (before - edited) * self.target_sign[:, 0]

    @property
    def token_logits(self) -> Tensor | None:
        """Logits of each token alone, `[batch, keys, classes]`; None without a linear read-out."""
        if self.model.lacks(LinearReadout):
            return None
        model = self.model.require(LinearReadout)
        return self.remember("token_logits", lambda: model.compute_token_logits(self))

    @property
    def leave_one_out(self) -> Tensor:
        """Probabilities without each unit, `[batch, keys, classes]`."""
        model = self.model.require(EditableInputs)
        return self.remember("leave_one_out", lambda: model.compute_leave_one_out(self))

    @property
    def attention_gradient(self) -> list[Tensor]:
        """Gradient of the explained class's probability with respect to the attention.

        One tensor `[batch, heads, queries, keys]` per layer.
        """

        def compute() -> list[Tensor]:
            model = self.model.require(Differentiable)
            return model.compute_attention_gradient(self, self.get_target_classes(None))

        return self.remember(("attention_gradient", self.explained_class), compute)

    @property
    def head_values(self) -> tuple[Tensor, ...]:
        """Value vectors of every head, one tensor `[batch, heads, keys, width]` per layer."""
        model = self.model.require(HeadValues)
        return self.remember("head_values", lambda: model.compute_head_values(self))

    def draw_permutations(self, layer: int, n_copies: int, seed: int) -> Tensor:
        """Draw random permutations of the visible keys of each query, equal for all heads.

        Args:
            layer: Layer index.
            n_copies: Number of permutations per query.
            seed: Seed of the random draws.

        Returns:
            Permutations as key indices, int `[copies, batch, queries, keys]`.
        """
        permutations: dict = self.remember("permutations", dict)
        key = layer, n_copies, seed
        if key not in permutations:
            # Permutations are large, so only those of one layer are cached.
            permutations.clear()
            visible = self.model.get_visible_keys(self, layer)
            permutations[key] = draw_permutations(
                visible, n_copies, seed=seed, example_ids=self.batch.example_ids
            )
        return permutations[key]

    def compute_gradient_importance(self) -> Tensor:
        """Compute |gradient × input| of the explained class's probability.

        Jain & Wallace (2019), Algorithm 1.

        Returns:
            Importance of each position, `[batch, keys]`.
        """

        def compute() -> Tensor:
            model = self.model.require(Differentiable)
            return model.compute_gradient_times_input(self, self.get_target_classes(None)).abs()

        return self.remember(("gradient", self.explained_class), compute)

    def compute_leave_one_out_importance(self) -> Tensor:
        """Compute the output change that leaving out each unit causes.

        The change is the total variation distance to the output of the whole text (Jain & Wallace
        2019, Algorithm 1). If a class is explained, it is |p(text without unit) - p(text)| of that
        class. With two classes, both definitions give the same number.

        Returns:
            Importance of each position, `[batch, keys]`.
        """
        if self.explained_class is None:
            return self.model.prediction.compute_distance(self.probs, self.leave_one_out)
        explained = self.get_target_classes(None)
        is_large = self.probs.gather(-1, explained[:, None])[:, 0] * self._n_parts > 0.5
        before = compute_shifted_probability(self.probs, explained, is_large)
        without = self.leave_one_out
        explained_by_key = explained[:, None].expand(without.shape[:2])
        after = compute_shifted_probability(
            without, explained_by_key, is_large[:, None].expand_as(explained_by_key)
        )
        return (after - before[:, None]).abs() * self._n_parts


def _find_rows_with_gradient(observation: Observation) -> list[Tensor]:
    """Find the query rows whose attention has a gradient, per layer bool `[batch, queries]`.

    The predicted class's probability is differentiated. If its gradient is lost in rounding, the
    least probable class is used too. If that is also lost, all rows of the text are returned.
    """
    attention = observation.attention
    if observation.model.lacks(Differentiable):
        return [torch.ones_like(layer[:, 0, :, 0], dtype=torch.bool) for layer in attention]
    rows = [_has_gradient(gradient) for gradient in observation.attention_gradient]
    is_lost = ~torch.stack([row.any(-1) for row in rows]).any(0)
    if not is_lost.any():
        return rows
    model = observation.model.require(Differentiable)
    probs = observation.probs
    least_probable = probs.masked_fill(probs == 0, torch.inf).argmin(-1)
    gradients = model.compute_attention_gradient(observation, least_probable)
    rows = [row | _has_gradient(gradient) for row, gradient in zip(rows, gradients, strict=True)]
    is_lost = ~torch.stack([row.any(-1) for row in rows]).any(0)
    return [row | is_lost[:, None] for row in rows]


def _has_gradient(gradient: Tensor) -> Tensor:
    """Check for a nonzero gradient, `[batch, heads, queries, keys]` -> bool `[batch, queries]`."""
    return (gradient != 0).any(-1).any(1)
