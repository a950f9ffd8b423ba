"""Adapter for attention classifiers that read text pairs.

The attention over the first text is read, edited and explained. The second text, from which the
query is computed, stays fixed. The classifier tanh(W_p Σ_t a_t h_t + W_q q) is not linear, but its
argument is linear in the attention weights a_t. W_p h_t is therefore computed only once per token.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.adapters.classifier.adapter import SingleHeadAdapter
from hf_attnprobe.adapters.deletion import compute_erased_probs
from hf_attnprobe.adapters.exchange import compute_exchanged_probs
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.models.attention_classifier.pairs_attention_classifier import (
    PairDecoder,
    split_pair,
)
from hf_attnprobe.protocol import Batch, Observation


class TanhArgument(NamedTuple):
    """Terms of the sum to which the classifier applies tanh.

    The sum is Σ_t a_t tokens_t + constant, with the attention weights a_t.

    Attributes:
        constant: Contribution of the query and the biases, `[batch, inner]`.
        tokens: Contribution of each token's encoder state, `[batch, keys, inner]`.
    """

    constant: Tensor
    tokens: Tensor


class PairState(NamedTuple):
    """Results from one forward pass over text pairs.

    Attributes:
        first: Mask for the first text's tokens, int64 `[batch, keys]`.
        states: Encoder states for the first text, `[batch, keys, hidden]`.
        query: Query vector q from the second text, `[batch, hidden]`.
        candidates: Labels that may be predicted, bool `[batch, classes]`.
        argument: Terms of the sum to which the classifier applies tanh.
    """

    first: Tensor
    states: Tensor
    query: Tensor
    candidates: Tensor
    argument: TanhArgument


class PairAdapter(SingleHeadAdapter):
    """Adapter that reads and edits the attention of a classifier for text pairs.

    Masks and importances cover the first text's tokens. If tokens are erased, the second text and
    the candidate labels do not change. See `SingleHeadAdapter` for the arguments.
    """

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Create a batch of text pairs; see `AttentionModel.prepare`."""
        names = ("input_ids", "attention_mask", "token_type_ids")
        device = self.model.device
        model_inputs = {name: inputs[name].to(device) for name in names if name in inputs}
        try:
            pair = split_pair(model_inputs["attention_mask"], model_inputs.get("token_type_ids"))
        except ValueError as error:
            # Checkpoint code is independent of this package, so it raises a ValueError.
            first_id = example_ids[0] if example_ids else "?"
            raise AttnProbeError(
                f"{error} (in the batch that starts at text {first_id})"
            ) from error
        content = self.base.build_content_mask(pair.first, model_inputs["input_ids"])
        candidates = self.base.find_candidates(model_inputs["input_ids"], pair.first)
        if candidates is not None:
            model_inputs["candidates"] = candidates
        return Batch(model_inputs, content, content, tuple(example_ids), labels)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        """Run one forward pass and record the attention; see `AttentionModel.observe`."""
        ids = batch.inputs["input_ids"]
        pair = split_pair(batch.inputs["attention_mask"], batch.inputs["token_type_ids"])
        query = self.base.read_query(self.base.embed(ids, pair), pair, ids)
        states = self.base.encode(self.base.embeddings(ids), pair.first)
        candidates = batch.inputs.get("candidates")
        if candidates is None:
            shape = len(ids), len(self.label_names)
            candidates = torch.ones(shape, dtype=torch.bool, device=ids.device)
        attention = self.base.attend(states, batch.mask, query)[:, None, None]
        argument = self._compute_tanh_argument(states, query)
        probs = self._compute_probs(attention[None], argument, candidates)[0]
        state = PairState(pair.first, states, query, candidates, argument)
        return Observation(self, batch, probs, (attention,), state)

    @property
    def _decoder(self) -> PairDecoder:
        """Module that computes the logits from the attended state and the query."""
        return self.model.classifier

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities with edited attention; see `AttentionModel.replay`."""
        state = observation.state
        return self._compute_probs(attention[self.layer], state.argument, state.candidates)

    def _compute_tanh_argument(self, states: Tensor, query: Tensor) -> TanhArgument:
        """Compute the terms of the sum to which the classifier applies tanh.

        Args:
            states: Encoder states, `[batch, keys, hidden]`.
            query: Query vector q, `[batch, hidden]`.
        """
        decoder = self._decoder
        constant = decoder.query(query) + decoder.context.bias
        return TanhArgument(constant, states @ decoder.context.weight.t())

    def _compute_probs(
        self, attention: Tensor, argument: TanhArgument, candidates: Tensor
    ) -> Tensor:
        """Compute the probabilities from attention weights, which need not sum to 1.

        Args:
            attention: Several versions (copies) of the attention weights,
                `[copies, batch, 1, 1, keys]`.
            argument: Terms of the sum to which the classifier applies tanh.
            candidates: Labels that may be predicted, bool `[batch, classes]`.

        Returns:
            Probabilities for each version, `[copies, batch, classes]`.
        """
        # The weights have shape [batch, copies, keys].
        weights = attention[:, :, 0, 0].transpose(0, 1)
        mixed = weights @ argument.tokens + argument.constant[:, None]
        logits = self._decoder.output(mixed.tanh())
        is_excluded = ~candidates[:, None]
        logits = logits.masked_fill(is_excluded, -torch.inf)
        probs = logits.softmax(-1)
        return probs.transpose(0, 1)

    # Capabilities

    def _compute_probs_with_state(
        self, observation: Observation, attention: Tensor, state: Tensor
    ) -> Tensor:
        _, _, query, candidates, argument = observation.state
        extra_argument = self._compute_tanh_argument(state, query)
        tokens = torch.cat([argument.tokens, extra_argument.tokens], 1)
        return self._compute_probs(attention, TanhArgument(argument.constant, tokens), candidates)

    def _compute_probs_from_vectors(
        self,
        vectors: Tensor,
        first: Tensor,
        content: Tensor,
        query: Tensor,
        candidates: Tensor,
        *,
        hold_attention: bool = False,
    ) -> Tensor:
        """Compute the probabilities for first texts, with fixed queries and candidate labels.

        Args:
            vectors: Word vectors, `[batch, keys, embedding]`.
            first: Mask for the first text's tokens, `[batch, keys]`.
            content: Mask for the tokens that receive attention, `[batch, keys]`.
            query: Query vector q, `[batch, hidden]`.
            candidates: Labels that may be predicted, bool `[batch, classes]`.
            hold_attention: Whether attention weights are treated as constants by gradients.

        Returns:
            Probabilities `[batch, classes]`.
        """
        states = self.base.encode(vectors, first)
        attended_states = states.detach() if hold_attention else states
        weights = self.base.attend(attended_states, content, query)
        argument = self._compute_tanh_argument(states, query)
        attention = weights[None, :, None, None]
        return self._compute_probs(attention, argument, candidates)[0]

    def _compute_scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        # Only the first text is scaled; the query and the candidates stay as observed.
        state, batch = observation.state, observation.batch
        vectors = self.base.embeddings(batch.inputs["input_ids"])
        return self._compute_probs_from_vectors(
            vectors * factor[..., None],
            state.first,
            batch.mask,
            state.query,
            state.candidates,
            hold_attention=hold_attention,
        )

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """Compute the probabilities after erasing tokens; see `EditableInputs`.

        If the whole first text is erased, the query alone determines the prediction.
        """
        inputs = self._collect_first_text_inputs(observation)
        no_attention = torch.zeros_like(observation.attention[0])[None]
        return compute_erased_probs(
            observation,
            erased,
            self._run_first_texts,
            self._erasure_settings,
            inputs=inputs,
            operator=operator,
            empty=self.replay(observation, {self.layer: no_attention})[0],
        )

    @torch.no_grad()
    def exchange_inputs(
        self,
        observation: Observation,
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Any]],
    ) -> Tensor:
        """Compute the probabilities after replacing tokens of the first text."""
        return compute_exchanged_probs(
            observation,
            exchanged,
            replacements,
            self._run_first_texts,
            self._erasure_settings,
            inputs=self._collect_first_text_inputs(observation),
        )

    @staticmethod
    def _collect_first_text_inputs(observation: Observation) -> dict[str, Tensor]:
        """Collect the first text, the encoded query and the candidates as model inputs.

        Query and candidates get an extra axis of size 1, so that they are not mistaken for
        per-token values, which are shortened.
        """
        state = observation.state
        return {
            "input_ids": observation.batch.inputs["input_ids"],
            "attention_mask": state.first,
            "query": state.query[:, None],
            "candidates": state.candidates[:, None],
        }

    def _run_first_texts(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Compute the probabilities for shortened first texts, `[texts, classes]`."""
        ids, first = texts["input_ids"], texts["attention_mask"]
        content = self.base.build_content_mask(first, ids)
        query = texts["query"][:, 0]
        candidates = texts["candidates"][:, 0]
        vectors = self.base.embeddings(ids)
        return self._compute_probs_from_vectors(vectors, first, content, query, candidates)
