"""The interface between models and faithfulness tests.

Every model provides its attention as one tensor `[batch, heads, queries, keys]` per layer. A BiLSTM
attention classifier is treated as a Transformer with one layer, one head and one query, so
faithfulness tests do not depend on the architecture.

Main classes, in reading order:

- `Site`: a layer and a head, or a group of heads.
- `Batch`: encoded texts with the masks that tests need.
- `AttentionModel`: the methods that every adapter implements.
- `Differentiable`, `EditableInputs`, `LinearReadout` and the other capabilities: optional methods.
  A faithfulness test names the capabilities that it requires.
- `AttentionModelBase`: the base class for adapters, with defaults for all optional members.
- `Observation`: the result of one forward pass, with quantities that are derived from it.
"""

import inspect
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
from hf_attnprobe.functional.explanations import compute_pattern_norms, normalise_head_weights
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
"""Columns of encoded texts that are used by tests and are not passed to the model.

- `special_tokens_mask`: 1 for special tokens such as [CLS], otherwise 0.
- `word_ids`: index of the word that each token belongs to.
- `segment_ids`: text within a pair (0 or 1) that each token belongs to.
- `held`: 1 for tokens of the text in a pair that is not explained.
- `labelled`: 1 for tokens with a label, such as a tag or a token of an answer.
- `unit_ids`: index of the passage's unit that each token belongs to.
- `other_ids`: token id of an alternative answer at the token at which both answers differ.
"""


ALL = -1
"""Index that means "all" in a `Site`: all heads of the layer, or all layers."""
HEAD_SET = -2
"""Layer index of a `Site` that is a set of heads from any layers.

The head index then selects the set: `Site(HEAD_SET, 0)` is the first set in
`AttentionModelBase.head_sets`.
"""


class Site(NamedTuple):
    """Location of the attention that a test reads or edits: one head, or a group of heads.

    `Site(3, 1)` is head 1 in layer 3, `Site(3, ALL)` is the whole layer 3, `Site(ALL, ALL)` is the
    model's entire attention, and `Site(HEAD_SET, 0)` is the first of the model's `head_sets`.

    Attributes:
        layer: Layer index, or `ALL` or `HEAD_SET`.
        head: Head index within the layer, or `ALL`. With `HEAD_SET`, the index of the head set.
        query: Index of a single query row. With None, edits change every row, and statistics use
            the row from which the prediction is computed.
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
        inputs: Keyword arguments for the model, each `[batch, ...]`.
        mask: Positions that may receive attention, bool `[batch, keys]`.
        content_mask: Positions that are explained, bool `[batch, keys]`. Padding and special
            tokens are excluded.
        example_ids: Stable ids from the data set. Together with the seed, they determine all
            random draws.
        labels: Class indices, int `[batch]`, or None.
        rationale: Units that annotators marked as the reason for the label, bool
            `[batch, keys]`, or None. A text without a rationale has no marked units.
        segments: Text within a pair to which each position belongs, int `[batch, keys]`: 0 for the
            first text, 1 for the second text, -1 for other tokens. None if texts are not pairs.
        tokenizer_output: All tensors that the tokenizer returned. Users call their model with
            them. Empty if they are not available.
        scores: User-provided scores for the units, float64 `[batch, keys]`, or None. They are
            evaluated as an additional ranking.
        identities: Hashes of everything that the model reads, int64 `[batch]`, or None. Texts with
            the same hash are copies and count once in every result.
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

    def list_identities(self) -> list[int | None]:
        """List the identity of each text; None for texts whose identity is not known."""
        if self.identities is None:
            return [None] * len(self.example_ids)
        return self.identities.tolist()


@dataclass(frozen=True, eq=False)
class ReferenceOutputs:
    """Head outputs for a fixed sample of texts.

    Mean ablation and resample ablation insert them in place of a head's own output.

    Attributes:
        example_ids: Ids of the sampled texts.
        lengths: Number of real (not padding) queries per text, int `[texts]`.
        outputs: One tensor `[texts, heads, queries, width]` per layer. Each text's real queries
            come first, in their original order, followed by zeros.
        identities: Identity of each text, as in :class:`Batch`; None if it is not known. A copy of a
            text cannot be its donor.
    """

    example_ids: tuple[int, ...]
    lengths: Tensor
    outputs: tuple[Tensor, ...]
    identities: tuple[int | None, ...]

    @classmethod
    def concatenate(cls, parts: Sequence["ReferenceOutputs"]) -> "ReferenceOutputs":
        """Join references for several groups of texts into one.

        Shorter outputs are padded to the largest number of queries.

        Args:
            parts: References for different texts, from the same model.

        Returns:
            A reference with the texts from all parts.
        """
        example_ids = tuple(example_id for part in parts for example_id in part.example_ids)
        layers = []
        for outputs in zip(*(part.outputs for part in parts), strict=True):
            n_queries = max(output.shape[2] for output in outputs)
            padded = [F.pad(output, (0, 0, 0, n_queries - output.shape[2])) for output in outputs]
            layers.append(torch.cat(padded))
        lengths = torch.cat([part.lengths for part in parts])
        identities = tuple(identity for part in parts for identity in part.identities)
        return cls(example_ids, lengths, tuple(layers), identities)


@dataclass(frozen=True, eq=False)
class Donors:
    """Hidden states from a fixed sample of texts, one for the most attended position of each text.

    The test `interchange` inserts them into other texts.

    Attributes:
        decisions: Predicted outcome for each part of the prediction, int `[texts, parts]`.
        states: One tensor `[texts, heads, width]` for each site and each of its layers.
    """

    decisions: Tensor
    states: Mapping[Site, Mapping[int, Tensor]]


@dataclass(frozen=True, eq=False)
class UnitDonors:
    """Units (such as words) from a fixed sample of texts, which replace units in other texts.

    Attributes:
        example_ids: Ids of the sampled texts.
        probs: Prediction vector for each text, each `[entries]`.
        units: Units of each text by segment, each list with the most attended unit first. Texts
            that are not pairs have a single segment, 0. The adapter defines the content of a unit,
            for example its token ids.
        identities: Identity of each text, as in :class:`Batch`; None if it is not known. A copy of a
            text cannot be its donor.
        read_contents: Function that takes the index of a text and returns the contents of its units
            by position. `units` then contains positions instead of contents, because the contents
            of all texts may not fit into memory. None if `units` contains contents.
    """

    example_ids: tuple[int, ...]
    probs: tuple[Tensor, ...]
    units: tuple[Mapping[int, Sequence[Any]], ...]
    identities: tuple[int | None, ...]
    read_contents: Callable[[int], Sequence[Any]] | None = None

    def read_units(self, text: int) -> Mapping[int, Sequence[Any]]:
        """Return the contents of a text's units by segment, the most attended unit first.

        Args:
            text: Index of the text in the sample.
        """
        if self.read_contents is None:
            return self.units[text]
        contents = self.read_contents(text)
        return {
            segment: [contents[position] for position in positions]
            for segment, positions in self.units[text].items()
        }


SiteEdit = Callable[[int, Tensor], Tensor]
"""Type of a function `edit(layer, weights)` that edits the attention of some heads in a layer.

It receives the layer index and the attention weights `[batch, heads, queries, keys]`. It returns
one or more edited copies of these weights, `[copies, batch, heads, queries, keys]`.
"""


@runtime_checkable
class AttentionModel(Protocol):
    """Methods that every faithfulness test calls and every adapter implements.

    `hf_attnprobe.wrap` returns an adapter. Derive your own adapters from `AttentionModelBase`,
    which has defaults for everything else. The capability protocols below declare optional methods.
    A test calls `AttentionModelBase.lacks` to check for a capability.

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
        """Run one forward pass, and record the probabilities and every layer's attention.

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

        Keys that a query cannot attend to are marked False, and so are all keys for padding
        queries. Keys with a fixed weight are also marked False, for example the question and the
        first token in a language model's prompt. Tests leave their weights unchanged and only
        redistribute the row's remaining weight.

        Args:
            observation: The observed batch.
            layer: Layer index.

        Returns:
            Whether each weight may change, bool `[batch, queries, keys]`.
        """

    @abstractmethod
    def select_row(self, observation: "Observation", values: Tensor, site: Site) -> Tensor:
        """Select the query row from which the prediction is computed.

        If `site.query` is set, this row is selected instead. Values for the pieces of a word are
        summed at the first piece.

        Args:
            observation: The observed batch.
            values: Values such as attention weights or gradients, `[batch, queries, keys]`.
            site: A single head, whose layer determines the row.

        Returns:
            The row, `[batch, keys]`. It must depend linearly on `values`.
        """

    def describe_readout(self, observation: "Observation") -> str:
        """Describe the query row from which the prediction is computed.

        The default implementation is for models with a single query row. Adapters for other models
        override this method.

        Args:
            observation: The observed batch.

        Returns:
            A phrase such as "the first token", or an empty string if there is only one row.
        """
        return ""

    @abstractmethod
    def replay(self, observation: "Observation", attention: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities after replacing the attention in some layers.

        Layers below the lowest replaced layer are not computed again.

        Args:
            observation: The observed batch.
            attention: New attention by layer index, each `[copies, batch, heads, queries, keys]`.
                Every copy is an independent edit.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class Differentiable(Protocol):
    """Capability: gradients of one class's probability."""

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
            One tensor `[batch, heads, queries, keys]` per layer. Masked keys may have nonzero
            gradients.
        """


@runtime_checkable
class IntegratedGradients(Protocol):
    """Capability: gradients integrated from zero embeddings to the text's embeddings."""

    def compute_integrated_gradients(
        self,
        observation: "Observation",
        target: Tensor,
        n_steps: int,
        *,
        through_attention: bool = True,
    ) -> Tensor:
        """Compute integrated gradients (Sundararajan et al. 2017), summed over dimensions.

        The path is a straight line from zero embeddings to the text's embeddings. At each of its
        `n_steps` points, the model computes the attention anew. The sum over all keys of a text,
        including special tokens, approximates p(text) - p(zero embeddings).

        Args:
            observation: The observed batch.
            target: Class whose probability is differentiated, int `[batch]`.
            n_steps: Number of points at which the gradient is evaluated.
            through_attention: Whether gradients flow through the attention weights. If not, the
                sum does not approximate the probability difference.

        Returns:
            Signed values `[batch, keys]`.
        """

    def compute_zero_embedding_probs(self, observation: "Observation") -> Tensor:
        """Compute the probabilities for embeddings that are all 0.

        This is the start of the path for integrated gradients.

        Args:
            observation: The observed batch.

        Returns:
            Probabilities `[batch, classes]`.
        """


@runtime_checkable
class EditableInputs(Protocol):
    """Capability: forward passes on texts from which some units (words, for example) are erased."""

    def compute_leave_one_out(self, observation: "Observation") -> Tensor:
        """Compute the probabilities after erasing each unit alone.

        Args:
            observation: The observed batch.

        Returns:
            Probabilities `[batch, keys, classes]`, meaningful only for keys in `content_mask`.
        """

    def erase_inputs(
        self,
        observation: "Observation",
        erased: Tensor,
        *,
        operator: str = "deletion",
    ) -> Tensor:
        """Compute the probabilities after erasing units from the texts.

        Special tokens are never erased.

        Args:
            observation: The observed batch.
            erased: Units to erase, bool `[copies, batch, keys]`.
            operator: "deletion" removes tokens; "mask" replaces them with the model's `mask_id`.
                Language models support "deletion" and "gap", which removes tokens but keeps the
                positions of the remaining tokens.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class ExchangeableUnits(Protocol):
    """Capability: forward passes on texts in which some units come from other texts.

    Attributes:
        unit_donors: Units from other texts, or None before an audit has set them.
    """

    unit_donors: UnitDonors | None

    def read_unit_contents(self, observation: "Observation") -> list[dict[int, Any]]:
        """Read the content of every explained unit, for example its token ids.

        Args:
            observation: The observed batch.

        Returns:
            For each text, the content by the unit's position.
        """

    def exchange_inputs(
        self,
        observation: "Observation",
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Any]],
    ) -> Tensor:
        """Compute the probabilities after replacing units.

        A unit keeps its place among the other units. Special tokens never change.

        Args:
            observation: The observed batch.
            exchanged: Units to replace, bool `[copies, batch, keys]`.
            replacements: For each text, the new content by the unit's position. It comes from
                `read_unit_contents`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class KeptPositions(Protocol):
    """Capability: deleting units from a prompt while the other tokens keep their positions.

    Such a model supports the operator "gap" of `EditableInputs.erase_inputs`.

    Attributes:
        keeps_positions: Whether the model can keep the positions.
    """

    keeps_positions: bool


@runtime_checkable
class LinearReadout(Protocol):
    """Capability: logits that are a sum of one logit vector per token, weighted by attention.

    If the attention weights a_t sum to 1, the logits are Σ_t a_t · token_logits_t. Tests can then
    compute exactly which attention changes the prediction most, without a search.
    """

    def compute_token_logits(self, observation: "Observation") -> Tensor:
        """Compute the logits that result if one token receives all attention, for each token.

        Args:
            observation: The observed batch.

        Returns:
            Logits including the bias, `[batch, keys, classes]`.
        """

    def get_readout_bias(self) -> Tensor:
        """Return the logits that result if all attention weights are 0, `[classes]`."""


@runtime_checkable
class HeadValues(Protocol):
    """Capability: access to the vectors that attention averages."""

    def get_states(self, observation: "Observation", site: Site) -> Tensor:
        """Return the vectors of which a head computes a weighted mean, one per position.

        Args:
            observation: The observed batch.
            site: A single head.

        Returns:
            States `[batch, keys, width]`.
        """

    def compute_head_values(self, observation: "Observation") -> tuple[Tensor, ...]:
        """Compute every head's value vectors, including the bias.

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
    """Capability: heads whose output (attention times values) can be replaced.

    Attributes:
        reference: Head outputs that ablation inserts, or None before `set_reference` is called.
    """

    reference: ReferenceOutputs | None

    def set_reference(self, *batches: Batch) -> None:
        """Store the head outputs for a sample of texts in the attribute `reference`.

        An audit calls this method once.

        Args:
            *batches: The sampled texts.
        """

    def replay_outputs(self, observation: "Observation", site: Site, outputs: Tensor) -> Tensor:
        """Compute the probabilities after replacing one head's output.

        Args:
            observation: The observed batch.
            site: A single head. If `site.query` is set, only this row is replaced.
            outputs: New head outputs `[copies, batch, queries, width]`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class ExchangeableStates(HeadValues, Protocol):
    """Capability: replacing the state that heads read at a key, with unchanged attention weights.

    Attributes:
        donors: States from other texts, or None before an audit has set them.
    """

    donors: Donors | None

    def replay_interchange(
        self,
        observation: "Observation",
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        """Compute the probabilities after exchanging the state of one unit per text.

        Only the site's heads read the new state. The attention weights in the site's layers keep
        their observed values.

        Args:
            observation: The observed batch.
            site: The heads that read the new states.
            units: Position of the unit in each text, int `[copies, batch]`.
            states: New states by layer index, each `[batch, site heads, width]`. They replace the
                head values at all positions of the unit.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class MaskedReplay(Protocol):
    """Capability: multiplying the attention in several layers by factors, such as 0 to prune heads."""

    def replay_masked(self, observation: "Observation", factors: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities after multiplying attention weights by factors.

        Each layer recomputes its attention from the output of the edited layers below it.

        Args:
            observation: The observed batch.
            factors: Factors by layer index, which broadcast to
                `[copies, batch, heads, queries, keys]`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """


@runtime_checkable
class Stack(Protocol):
    """Capability: a stack of layers, in which each layer reads the output of the layer below."""

    def list_layers_below(self, layer: int) -> list[int]:
        """List the layers from the input up to and including a layer.

        Args:
            layer: Layer index.

        Returns:
            Layer indices in ascending order. The last one is `layer`.
        """


@runtime_checkable
class BlockOutputs(Protocol):
    """Capability: access to the outputs of Transformer blocks."""

    def compute_block_output(
        self, observation: "Observation", layer: int, factors: Tensor
    ) -> Tensor:
        """Compute a block's output after multiplying its attention weights by factors.

        Args:
            observation: The observed batch.
            layer: Index of the attention layer in the block.
            factors: One factor per key, `[copies, batch, 1, 1, keys]`.

        Returns:
            Hidden states `[copies, batch, queries, hidden]`.
        """


KNOCKOUTS = ("none", "renormalised", "sink")
"""Operators for a knockout, which sets the attention weights of one unit of a passage to 0.

They differ in what happens to the removed attention weight:

- "none": it is lost, so that the remaining attention weights sum to less than 1.
- "renormalised": the other keys receive it, in proportion to their attention weights.
- "sink": the attention sink (usually the first token) receives it.
"""


class LayerReader(Protocol[S]):
    """Function that `AnswersFromPassage.read_token_attention` calls for every layer."""

    def __call__(self, layer: int, weights: Tensor, values: Tensor) -> S:
        """Compute a result from one layer's attention weights and values.

        Args:
            layer: Layer index.
            weights: Attention weights `[heads, rows, tokens]`. Each row sums to 1, or to less
                if the layer has an explicit attention sink.
            values: Value vectors that the weights average, `[heads, tokens, width]`.
        """


@runtime_checkable
class AnswersFromPassage(Protocol):
    """Capability: a language model that answers from a passage.

    The keys are the passage's units, in text order, followed by two fixed keys:

    - one for all other tokens (question, template and answer),
    - one for the attention sink (the model's explicit sink, or else the first token).

    The queries are the tokens after the passage. Each query row predicts the next token.
    """

    def compute_log_prob(self, observation: "Observation", probs: Tensor) -> Tensor:
        """Compute the log-probability of the whole answer, summed over its tokens.

        Args:
            observation: The observed prompt.
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Log-probabilities in nats, `[..., batch]`.
        """

    def compute_contrast(self, observation: "Observation", probs: Tensor) -> Tensor:
        """Compute the log-odds of the answer against the user's alternative answer.

        The answers are compared at the first token at which they differ.

        Args:
            observation: The observed prompt.
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Log of the probability ratio in nats, `[..., batch]`. NaN if there is no alternative
            answer.
        """

    def compute_probs_without_passage(self, observation: "Observation") -> Tensor:
        """Compute the probabilities after deleting all units of the passage.

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
            Whether greedy decoding generates exactly the answer, bool `[batch]`.
        """

    def count_unit_tokens(self, observation: "Observation") -> Tensor:
        """Count the tokens in each unit of the passage.

        Args:
            observation: The observed prompt.

        Returns:
            Token counts, int `[batch, keys]`; 0 for the two fixed keys.
        """

    def get_row_positions(self, observation: "Observation") -> Tensor:
        """Return the prompt position of each query row's token.

        Args:
            observation: The observed prompt.

        Returns:
            Positions, int `[rows]`. A row predicts the token at the next position.
        """

    def find_answer_rows(self, observation: "Observation") -> Tensor:
        """Find the query rows that predict a token of the answer.

        Args:
            observation: The observed prompt.

        Returns:
            Whether each row predicts an answer token, bool `[rows]`.
        """

    def read_token_attention(
        self, observation: "Observation", read_layer: LayerReader[S]
    ) -> list[S]:
        """Run one forward pass, and call a function with each layer's token-level attention.

        The attention itself is not stored. `observation.batch.inputs` contains the tokens'
        `input_ids` and `unit_ids`, each `[1, tokens + 1]`. The answer's last token is not a key.

        Args:
            observation: The observed prompt.
            read_layer: Function that computes a result from a layer's weights and values.

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
        """Compute the probabilities after blocking the attention to some units.

        This is like `MaskedReplay.replay_masked`, but the operator determines what happens to the
        removed attention weight.

        Args:
            observation: The observed prompt.
            factors: Factors by layer index, 0 for blocked units and 1 otherwise, which broadcast to
                `[copies, batch, heads, queries, keys]`.
            operator: One of `KNOCKOUTS`.

        Returns:
            Prediction vectors `[copies, batch, entries]`.
        """


@runtime_checkable
class Decisions(Protocol):
    """Capability: predictions that are decisions (such as classes), which an edit may flip.

    Predicted numbers without a threshold are not decisions.

    Attributes:
        prediction: Description of the prediction.
    """

    prediction: Prediction


def list_capability_members(capability: type) -> list[str]:
    """List the methods and attributes that an adapter needs for a capability.

    Args:
        capability: A capability protocol, such as `EditableInputs`.

    Returns:
        The names, attributes before methods.
    """
    names: dict[str, None] = {}
    for protocol in capability.__mro__:
        # Attributes of a protocol are only annotated, so they are not in its namespace.
        names |= dict.fromkeys([*inspect.get_annotations(protocol), *vars(protocol)])
    return [name for name in names if not name.startswith("_")]


class AttentionModelBase(AttentionModel):
    """Base class for adapters, with defaults for everything beyond `AttentionModel`.

    Attributes:
        model: The module that is run.
        label_names: Class names, in the same order as the probabilities.
        unit: Name of the unit that attention weights belong to: "token", "word" or "sentence",
            "patch" for images, or a name such as "visit" for instances of a bag.
        instance_column: Column with bags that the model reads: "features" (vectors) or "items"
            (integers). None for a model that reads texts or images.
        feature_size: Size of the vectors in "features", or None for any size.
        reads_images: Whether the model reads images, whose units are patches.
        n_embeddings: Number of rows in the token embedding table, or None if the model reads no
            token ids.
        separator_ids: Ids of tokens that are not explained, in addition to the special tokens.
        segment: "text" if only the first text of a pair receives attention, or None.
        mask_id: Id of the token that replaces erased tokens, or None.
        reference: Head outputs for `HeadOutputs`.
        donors: States for `ExchangeableStates`.
        unit_donors: Units for `ExchangeableUnits`.
        head_sets: Sets of heads that are edited together, in addition to layers and all heads.
        shared_heads: Sets of heads that share their keys and values.
        max_batch_size: Largest number of texts in a batch, or None for no limit.
        sharpness: Factor on the logits that gives the model the standard temperature. An audit
            determines it, see `Observation.apply_standard_temperature`.
        noise_floor: Largest difference between losses of an answer, in nats, that rounding alone can
            cause. An audit measures it for models in half precision.
        compute_fitted_map: Function that computes the unit scores of a fitted attention map,
            `[batch, keys]`, from an observation and the site of the whole model. None without a map.
    """

    model: nn.Module
    label_names: list[str]
    pads_left = False
    unit: str = "token"
    instance_column: str | None = None
    feature_size: int | None = None
    reads_images: bool = False
    n_embeddings: int | None = None
    separator_ids: frozenset[int] = frozenset()
    segment: str | None = None
    mask_id: int | None = None
    reference: ReferenceOutputs | None = None
    donors: Donors | None = None
    unit_donors: UnitDonors | None = None
    head_sets: Sequence[Sequence[Site]] = ()
    shared_heads: Sequence[Sequence[Site]] = ()
    max_batch_size: int | None = None
    sharpness: float = 1.0
    noise_floor: float = 0.0
    compute_fitted_map: Callable[["Observation", Site], Tensor] | None = None

    @property
    def n_parallel_batches(self) -> int:
        """Number of batches that an audit processes concurrently."""
        return 1

    @property
    def max_unit_edits(self) -> int | None:
        """Largest number of edited copies of a text that measure the effects of all its units.

        If a text has more units, most of them are edited in groups; see
        :mod:`hf_attnprobe.functional.grouped_effects`. By default, there is no limit.
        """
        return None

    @property
    def weighs_heads(self) -> bool:
        """Whether the heads of a group are weighted by what they write.

        This requires `HeadValues` and `OutputProjections`. Otherwise, all heads count equally. See
        `Observation.compute_head_weights`.
        """
        return self.lacks(HeadValues) is None and self.lacks(OutputProjections) is None

    @property
    def prediction(self) -> Prediction:
        """Description of the prediction; by default, it is one of several classes."""
        return predictions.make_class_prediction(self.label_names)

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        """Return the reason why the model lacks a capability, or None if it has the capability.

        By default, the model has a capability if the adapter class has its methods. Override this
        method if the answer also depends on the wrapped model.

        Args:
            capability: A capability protocol, such as `EditableInputs`.
            site: The site that needs the capability, or None for the model as a whole.

        Returns:
            The text of an error message, or None.
        """
        if capability is Decisions and not self.prediction.decides:
            return (
                f"this model predicts {self.prediction.name} and makes no decisions (define "
                "them with --threshold)"
            )
        if capability is ExchangeableStates and not self.prediction.class_names:
            return (
                "the test needs the same classes for every text, but this model predicts "
                f"{self.prediction.name}"
            )
        if isinstance(self, capability):
            return None
        missing_members = [
            name for name in list_capability_members(capability) if not hasattr(self, name)
        ]
        return (
            f"{type(self).__name__} does not have the methods of {capability.__name__} (missing: "
            f"{', '.join(missing_members)})"
        )

    def require(self, capability: type[T], site: Site | None = None) -> T:
        """Return the model itself, or raise an error if it lacks a capability.

        For type checkers, the result has the capability's methods.

        Args:
            capability: A capability protocol, such as `EditableInputs`.
            site: The site that needs the capability, or None for the model as a whole.

        Returns:
            The model itself.

        Raises:
            AttnProbeError: If the model lacks the capability. The message is the result of `lacks`.
        """
        reason = self.lacks(capability, site)
        if reason is not None:
            raise AttnProbeError(reason)
        return cast(T, self)

    def get_heads_by_layer(self, site: Site) -> dict[int, list[int]]:
        """List a site's heads by layer.

        Args:
            site: A head, or a group of heads.

        Returns:
            Head indices by layer index, both in ascending order.

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
        """Indices of the model's heads by layer; cached because tests need them often."""
        return _group_heads_by_layer(self.sites())

    def check_site(self, site: Site) -> None:
        """Raise AttnProbeError if the model has no such layer or head.

        Args:
            site: A head, or a group of heads.
        """
        self.get_heads_by_layer(site)

    def self_check(self, batch: Batch) -> None:
        """Raise AttnProbeError if edited attention does not affect the output.

        An audit calls this method before its tests. The default implementation does not check
        anything, so adapters should override it. To check an adapter in a test suite, use
        `hf_attnprobe.testing.check_adapter`.

        Args:
            batch: Texts to run the check on.
        """

    def replay_without_units(
        self, observation: "Observation", site: Site, is_erased: Tensor, *, renormalise: bool
    ) -> Tensor | None:
        """Compute the probabilities without the attention to some units, if there is a fast method.

        The result must be the same as that of `replay` with the attention to these units set to 0
        in every query row. The default implementation returns None, and `replay` is used instead.

        Args:
            observation: The observed batch.
            site: Head or head group whose attention is erased.
            is_erased: Units whose attention is erased, bool `[copies, batch, keys]`.
            renormalise: Whether the remaining weights of a row are scaled up to their previous sum.

        Returns:
            Probabilities `[copies, batch, classes]`, or None.
        """
        return None

    def compute_native_probs(self, batch: Batch) -> Tensor | None:
        """Compute probabilities with the original model, without the adapter's hooks.

        An audit compares these probabilities with the adapter's probabilities. Adapters that
        override this method should call the model with `batch.tokenizer_output`, or with
        `batch.inputs` if there is no tokenizer output. The default implementation returns None.

        Args:
            batch: Texts from `prepare`.

        Returns:
            Probabilities `[batch, classes]`, or None if the model cannot run without the adapter.
        """
        return None

    def compute_leave_one_out(self, observation: "Observation") -> Tensor:
        """Compute the probabilities after erasing each unit alone; see `EditableInputs`.

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
        """Convert selected units to the positions at which a layer stores them.

        The default implementation returns `units` unchanged. Adapters override this method if a
        unit has several positions (such as the pieces of a word), or if some layers shift the
        positions.

        Args:
            observation: The observed batch.
            layer: Layer index.
            units: Whether each unit is selected, bool `[..., batch, keys]`.

        Returns:
            Whether each position belongs to a selected unit, bool `[..., batch, keys]`.
        """
        return units

    def get_max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """Return the largest token count that a text may have, including special tokens.

        Args:
            tokenizer: The model's tokenizer.

        Returns:
            The limit, or None for no limit.
        """
        max_length = int(tokenizer.model_max_length)
        return max_length if 0 < max_length < UNLIMITED_LENGTH else None

    def compute_fingerprint(self) -> str:
        """Compute a hash of the model's weights, 16 hexadecimal digits."""
        return compute_fingerprint(self.model)


def _group_heads_by_layer(sites: Sequence[Site]) -> dict[int, list[int]]:
    """Collect the head indices of sites by layer, in ascending order."""
    heads_by_layer: dict[int, list[int]] = {}
    for layer, head in sorted(site[:2] for site in sites):
        heads_by_layer.setdefault(layer, []).append(head)
    return heads_by_layer


UNLIMITED_LENGTH = 10**9
"""If a tokenizer's `model_max_length` is at least this number, its length is unlimited.

Tokenizers without a length limit set `model_max_length` to a very large number, such as 10**30.
"""


@dataclass(frozen=True, eq=False)
class Observation:
    """Result of one forward pass over a batch.

    Derived quantities, such as gradients, are computed on first use and then cached.

    Attributes:
        model: The adapter of the model.
        batch: The texts that the model has read.
        probs: Probabilities `[batch, classes]`.
        attention: One tensor `[batch, heads, queries, keys]` per layer.
        state: Private data of the adapter.
        cache: Results that `remember` has computed, by key.
        explained_class: Index of the class to explain; None explains each text's predicted class.
    """

    model: AttentionModelBase
    batch: Batch
    probs: Tensor
    attention: tuple[Tensor, ...]
    state: Any = None
    cache: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    explained_class: int | None = None

    def with_target(self, target: str | int | None) -> "Observation":
        """Return an observation that explains another class and shares the same cache.

        Gradients, leave-one-out importance and `find_flips` then refer to this class.

        Args:
            target: Name or index of a class; names take precedence. None explains each text's
                predicted class.

        Returns:
            A copy, or the observation itself if it already explains this class.

        Raises:
            AttnProbeError: If the model has no such class.
        """
        class_index = None if target is None else self._find_class_index(target)
        if class_index == self.explained_class:
            return self
        return replace(self, explained_class=class_index)

    def _find_class_index(self, target: str | int) -> int:
        """Convert a class name or class index to a valid class index."""
        prediction = self.model.prediction
        names = list(prediction.target_names)
        n_targets = prediction.count_targets(self.probs)
        if not n_targets:
            raise AttnProbeError(
                f"this model has no classes, because it predicts {prediction.name}. Leave out the target."
            )
        if isinstance(target, str) and names.count(target) == 1:
            return names.index(target)
        class_index = int(target) if str(target).isdecimal() else -1
        if 0 <= class_index < n_targets:
            return class_index
        hint = f". The class names are {', '.join(names)}." if names else ""
        raise AttnProbeError(
            f"expected a target class from 0 to {n_targets - 1}, got {target}{hint}"
        )

    def find_flips(self, after: Tensor) -> Tensor:
        """Find the texts whose predicted class changes after an edit.

        If `explained_class` is set, only changes to or from this class count.

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
        """Compute the output change for each label or tag, if a prediction consists of several.

        These labels or tags are called the parts of the prediction.

        Args:
            after: Prediction vectors after an edit, `[..., batch, entries]`.

        Returns:
            Changes `[..., batch]` by part name, or None if parts have no names.
        """
        prediction = self.model.prediction
        if not prediction.parts:
            return None
        changes = prediction.compute_part_distances(after, self.probs)
        return dict(zip(prediction.parts, changes.unbind(-1), strict=True))

    @property
    def _n_parts(self) -> int:
        """Number of parts that the prediction has, or 1 if it differs between texts."""
        return self.model.prediction.n_parts or 1

    @property
    def target_sign(self) -> Tensor:
        """Sign per text, `[batch, 1]`: 1 if the explained class is predicted, otherwise -1.

        It is 1 for all texts if `explained_class` is None.
        """
        predicts_explained_class = self.model.prediction.is_target_predicted(
            self.probs, self.explained_class
        )
        return torch.where(predicts_explained_class, 1, -1)[:, None]

    def remember(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return a cached result, or compute and cache it.

        Args:
            key: Cache key. It must identify everything that the result depends on, apart from this
                observation.
            compute: Function that computes the result.

        Returns:
            The cached or computed result.
        """
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]

    def read(self, site: Site) -> Tensor:
        """Return a head's attention weights in the row from which the prediction is computed.

        If `site.query` is set, this row is used instead. For a group of heads, the weighted mean
        over the heads is returned, see `compute_head_weights`.

        Args:
            site: A head, or a group of heads.

        Returns:
            Attention weights `[batch, keys]`.

        Raises:
            AttnProbeError: If the model has no such layer or head.
        """

        def compute() -> Tensor:
            heads = self._list_heads(site)
            rows = [
                self.model.select_row(self, self.attention[head.layer][:, head.head], head)
                for head in heads
            ]
            if len(rows) == 1:
                return rows[0]
            stacked_rows = torch.stack(rows)
            weights = self.compute_head_weights(site)
            if weights is None:
                return stacked_rows.mean(0)
            weights = weights.T.unsqueeze(-1).to(stacked_rows.dtype)
            return (stacked_rows * weights).sum(0)

        return self.remember(("read", site), compute)

    def _list_heads(self, site: Site) -> list[Site]:
        """List a site's heads as single sites with the same query, ordered by layer and head."""
        return [
            site._replace(layer=layer, head=head)
            for layer, heads in self.model.get_heads_by_layer(site).items()
            for head in heads
        ]

    @property
    def pattern_norms(self) -> tuple[Tensor, ...] | None:
        """How much each head writes because of its attention pattern, in every query row.

        One tensor `[batch, heads, queries]` per layer, see
        `hf_attnprobe.functional.explanations.compute_pattern_norms`. None for a model without
        `HeadValues` or `OutputProjections`.
        """
        if not self.model.weighs_heads:
            return None

        def compute() -> tuple[Tensor, ...]:
            projections = self.model.require(OutputProjections).get_output_projections()
            content = self.batch.content_mask
            norms = []
            for layer, attention in enumerate(self.attention):
                positions = self.model.get_unit_positions(self, layer, content)
                explained = self.model.get_visible_keys(self, layer) & positions[:, None]
                values = self.head_values[layer]
                norms.append(
                    compute_pattern_norms(attention, values, projections[layer], explained)
                )
            return tuple(norms)

        return self.remember("pattern_norms", compute)

    @torch.no_grad()
    def compute_head_weights(self, site: Site, *, all_rows: bool = False) -> Tensor | None:
        """Compute the weight of each head in the attention map of a group of heads.

        A head's weight is proportional to `pattern_norms`: the amount that the head adds to the
        hidden states because of its attention pattern. A head that writes nothing or only a
        constant therefore has no weight, wherever it attends.

        Args:
            site: A group of heads.
            all_rows: Whether the amount is averaged over all query rows that can change the output.
                If not, or if `site.query` is set, it is read from the same row as in `read`.

        Returns:
            Weights `[batch, heads]` that sum to 1, ordered by layer and head. None if the model has
            no `pattern_norms`; all heads of the group then count equally.
        """
        norms_by_layer = self.pattern_norms
        if norms_by_layer is None:
            return None
        norms = []
        for head in self._list_heads(site):
            head_norms = norms_by_layer[head.layer][:, head.head]
            if all_rows and site.query is None:
                is_effective = self.find_effective_queries(head.layer)
                n_rows = is_effective.sum(-1).clamp_min(1)
                norms.append((head_norms * is_effective).sum(-1) / n_rows)
            else:
                norms.append(self._average_read_rows(head_norms, head))
        return normalise_head_weights(torch.stack(norms, dim=-1))

    def _average_read_rows(self, row_values: Tensor, head: Site) -> Tensor:
        """Average one value per query row over the rows from which the prediction is computed.

        Args:
            row_values: Values `[batch, queries]`.
            head: A single head, whose layer determines the rows.

        Returns:
            Means `[batch]`.
        """
        # `select_row` is linear. A row with the same value at every key becomes a row whose sum is
        # this value times the sum that a row of ones gets.
        shape = self.attention[head.layer][:, 0].shape
        repeated_values = row_values.unsqueeze(-1).expand(shape)
        total = self.model.select_row(self, repeated_values, head).sum(-1)
        ones = torch.ones_like(row_values).unsqueeze(-1).expand(shape)
        n_selected = self.model.select_row(self, ones, head).sum(-1)
        return total / n_selected.where(n_selected > 0, 1)

    def edit_attention(self, site: Site, edit: SiteEdit) -> dict[int, Tensor]:
        """Create edited attention for a site's heads, as input for `AttentionModel.replay`.

        Args:
            site: The heads to edit. If `site.query` is set, only this row changes.
            edit: Function that takes a layer index and the attention weights of the site's heads,
                `[batch, heads, queries, keys]`. It returns new weights
                `[copies, batch, heads, queries, keys]`.

        Returns:
            Attention weights for all heads by layer index, each
            `[copies, batch, heads, queries, keys]`.
        """
        edits = {}
        for layer, heads in self.model.get_heads_by_layer(site).items():
            attention = self.attention[layer]
            edited = edit(layer, attention[:, heads])
            edits[layer] = replace_heads(attention, heads, site.query, edited)
        return edits

    def find_effective_queries(self, layer: int) -> Tensor:
        """Find the query rows in a layer whose attention can change the output.

        In the last layer, this is often a single row, because the prediction is read from one
        position. Rows are found by their gradients. If the model has no gradients, all rows of real
        tokens are returned.

        Args:
            layer: Layer index.

        Returns:
            Whether each row can change the output, bool `[batch, queries]`.
        """

        def compute() -> list[Tensor]:
            # The cache is shared by all explained classes, so the rows must not depend on one.
            return _find_rows_with_gradient(self.with_target(None))

        is_effective_by_layer = self.remember("effective_queries", compute)
        is_real_token = self.model.get_visible_keys(self, layer).any(-1)
        return is_effective_by_layer[layer] & is_real_token

    def get_target_classes(self, target: int | None) -> Tensor:
        """Return the index of the class to explain in each text.

        Args:
            target: Class index. None uses the class that `with_target` has set, or else each text's
                predicted class.

        Returns:
            Class indices, int `[batch]`. If the prediction has several parts, the predicted outcome
            for each part, int `[batch, parts]`.
        """
        target = self.explained_class if target is None else target
        return self.model.prediction.select_explained_entries(self.probs, target)

    def compute_explained_probs(self, probs: Tensor) -> Tensor:
        """Compute the explained class's probability from prediction vectors.

        If `explained_class` is None, it is the probability of the class that the model predicts
        for the whole text.

        Args:
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Probabilities `[..., batch]`.
        """
        total = predictions.sum_entries(probs, self.get_target_classes(None))
        if self.explained_class is None:
            return total
        # The entries of all parts together sum to 1, so this part's entries sum to 1 / n_parts.
        return total * self._n_parts

    def apply_standard_temperature(self, probs: Tensor) -> Tensor:
        """Convert probabilities to the standard temperature.

        At this temperature, the median probability of the predicted class is .95, regardless of the
        number of classes. Statistics that are computed at this temperature can be compared between
        models with different confidence.

        Args:
            probs: Prediction vectors `[..., batch, entries]`.

        Returns:
            Prediction vectors of the same shape.
        """
        return self.model.prediction.sharpen(probs, self.model.sharpness)

    def compute_standard_losses(self, after: Tensor) -> Tensor:
        """Compute how much an edit lowers the explained class's probability.

        The loss is p(before the edit) - p(after the edit). Both probabilities are converted to the
        standard temperature, see `apply_standard_temperature`. For texts in which the model does
        not predict `explained_class`, the sign is reversed: the loss is then the increase in the
        class's probability.

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
        """Logits that result if one token receives all attention, `[batch, keys, classes]`.

        None for a model without a linear read-out.
        """
        if self.model.lacks(LinearReadout):
            return None
        model = self.model.require(LinearReadout)
        return self.remember("token_logits", lambda: model.compute_token_logits(self))

    @property
    def leave_one_out(self) -> Tensor:
        """Probabilities after erasing each unit alone, `[batch, keys, classes]`."""
        model = self.model.require(EditableInputs)
        return self.remember("leave_one_out", lambda: model.compute_leave_one_out(self))

    @property
    def attention_gradient(self) -> list[Tensor]:
        """Gradient of the explained class's probability with respect to the attention weights.

        One tensor `[batch, heads, queries, keys]` per layer.
        """

        def compute() -> list[Tensor]:
            model = self.model.require(Differentiable)
            return model.compute_attention_gradient(self, self.get_target_classes(None))

        return self.remember(("attention_gradient", self.explained_class), compute)

    @property
    def head_values(self) -> tuple[Tensor, ...]:
        """Every head's value vectors, one tensor `[batch, heads, keys, width]` per layer."""
        model = self.model.require(HeadValues)
        return self.remember("head_values", lambda: model.compute_head_values(self))

    def draw_permutations(self, layer: int, n_copies: int, seed: int) -> Tensor:
        """Draw random permutations of each query's visible keys, the same for all heads.

        Args:
            layer: Layer index.
            n_copies: Number of permutations per query.
            seed: Seed for the random draws.

        Returns:
            Permutations as key indices, int `[copies, batch, queries, keys]`.
        """
        cached_permutations: dict = self.remember("permutations", dict)
        key = layer, n_copies, seed
        if key not in cached_permutations:
            # Permutations are large, so only one layer's permutations are cached.
            cached_permutations.clear()
            visible = self.model.get_visible_keys(self, layer)
            cached_permutations[key] = draw_permutations(
                visible, n_copies, seed=seed, example_ids=self.batch.example_ids
            )
        return cached_permutations[key]

    def compute_gradient_importance(self) -> Tensor:
        """Compute |gradient × input| for the explained class's probability.

        See Jain & Wallace (2019), Algorithm 1.

        Returns:
            Importance of each position, `[batch, keys]`.
        """

        def compute() -> Tensor:
            model = self.model.require(Differentiable)
            return model.compute_gradient_times_input(self, self.get_target_classes(None)).abs()

        return self.remember(("gradient", self.explained_class), compute)

    def compute_leave_one_out_importance(self) -> Tensor:
        """Compute leave-one-out importance: the output change after erasing each unit alone.

        The output change is the total variation distance (Jain & Wallace 2019, Algorithm 1). If
        `explained_class` is set, it is |p(text without unit) - p(text)| for this class instead.
        With two classes, both definitions give the same number.

        Returns:
            Importance of each position, `[batch, keys]`.
        """
        if self.explained_class is None:
            return self.model.prediction.compute_distance(self.probs, self.leave_one_out)
        classes = self.get_target_classes(None)
        probs_without_unit = self.leave_one_out
        # Probabilities above 1/2 are compared as p - 1, because floating-point numbers near 0 are
        # more precise than numbers near 1.
        is_large = self.probs.gather(-1, classes[:, None])[:, 0] * self._n_parts > 0.5
        before = compute_shifted_probability(self.probs, classes, is_large)
        classes_by_key = classes[:, None].expand(probs_without_unit.shape[:2])
        is_large_by_key = is_large[:, None].expand_as(classes_by_key)
        after = compute_shifted_probability(probs_without_unit, classes_by_key, is_large_by_key)
        return (after - before[:, None]).abs() * self._n_parts


def _find_rows_with_gradient(observation: Observation) -> list[Tensor]:
    """Find the query rows whose attention has a nonzero gradient.

    These are the rows with a gradient of the predicted class's probability. If a text has no such
    row, because its gradients are rounded to 0, the gradients of the least probable class are used
    too. If these are also 0, all rows of the text are selected.

    Returns:
        Whether each row is selected. One tensor per layer, bool `[batch, queries]`.
    """
    if observation.model.lacks(Differentiable):
        return [
            torch.ones_like(weights[:, 0, :, 0], dtype=torch.bool)
            for weights in observation.attention
        ]
    selected = [_has_gradient(gradient) for gradient in observation.attention_gradient]
    if not _has_no_selected_row(selected).any():
        return selected
    model = observation.model.require(Differentiable)
    probs = observation.probs
    least_probable_class = probs.masked_fill(probs == 0, torch.inf).argmin(-1)
    gradients = model.compute_attention_gradient(observation, least_probable_class)
    selected = [
        layer_selected | _has_gradient(gradient)
        for layer_selected, gradient in zip(selected, gradients, strict=True)
    ]
    selects_all_rows = _has_no_selected_row(selected)[:, None]
    return [layer_selected | selects_all_rows for layer_selected in selected]


def _has_no_selected_row(selected: Sequence[Tensor]) -> Tensor:
    """Return whether a text has no selected query row in any layer, bool `[batch]`.

    Args:
        selected: Whether each row is selected. One tensor per layer, bool `[batch, queries]`.
    """
    has_row_by_layer = torch.stack([layer_selected.any(-1) for layer_selected in selected])
    return ~has_row_by_layer.any(0)


def _has_gradient(gradient: Tensor) -> Tensor:
    """Return whether each query row has a nonzero gradient, bool `[batch, queries]`.

    Args:
        gradient: Gradient with respect to attention, `[batch, heads, queries, keys]`.
    """
    is_nonzero = gradient != 0
    has_nonzero_key = is_nonzero.any(-1)
    return has_nonzero_key.any(1)
