"""Attention classifiers of pairs as an :class:`AttentionModel`.

The first text is read, edited and explained; the second, its query, is held. The
read-out is not linear, but its first layer is: tanh(W_p Σ_t a_t h_t + W_q q) needs of
each token only W_p h_t, computed once.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.adapters.classifier.adapter import (
    TOKENS_PER_PASS,
    SingleHeadAdapter,
)
from hf_attnprobe.adapters.deletion import compute_erased_probs
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.models.attention_classifier.pairs_attention_classifier import (
    PairDecoder,
    split_pair,
)
from hf_attnprobe.protocol import Batch, Observation


class TanhArgument(NamedTuple):
    """The argument of the read-out's tanh: Σ_t a_t tokens_t + held.

    Attributes:
        held: of q and the biases, [batch, inner].
        tokens: of each state, [batch, keys, inner].
    """

    held: Tensor
    tokens: Tensor


class PairState(NamedTuple):
    """Results of one forward pass that the tests read.

    Attributes:
        first: the tokens of the first text, int64 [batch, keys].
        states: of the first text, [batch, keys, hidden].
        query: q of the second text, [batch, hidden].
        candidates: the labels that may be predicted, bool [batch, classes].
        inner: of these states.
    """

    first: Tensor
    states: Tensor
    query: Tensor
    candidates: Tensor
    inner: TanhArgument


class PairAdapter(SingleHeadAdapter):
    """Reads and edits the attention of a classifier of pairs.

    Masks and importances are of the tokens of the first text. Without a token of it, the
    second text and the candidates of the whole first one stay as they are. See
    :class:`SingleHeadAdapter` for the arguments.
    """

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        names = ("input_ids", "attention_mask", "token_type_ids")
        device = self.model.device
        kept = {name: inputs[name].to(device) for name in names if name in inputs}
        try:
            pair = split_pair(kept["attention_mask"], kept.get("token_type_ids"))
        except ValueError as error:  # the checkpoint code knows no error but Python's
            first = example_ids[0] if example_ids else "?"
            raise AttnProbeError(f"{error} (batch from text {first} on)") from error
        content = self.base.content_mask(pair.first, kept["input_ids"])
        candidates = self.base.candidates(kept["input_ids"], pair.first)
        if candidates is not None:
            kept["candidates"] = candidates
        return Batch(kept, content, content, tuple(example_ids), labels)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        ids = batch.inputs["input_ids"]
        pair = split_pair(batch.inputs["attention_mask"], batch.inputs["token_type_ids"])
        query = self.base.read_query(self.base.embed(ids, pair), pair, ids)
        states = self.base.encode(self.base.embeddings(ids), pair.first)
        candidates = batch.inputs.get("candidates")
        if candidates is None:
            shape = len(ids), len(self.label_names)
            candidates = torch.ones(shape, dtype=torch.bool, device=ids.device)
        attention = self.base.attend(states, batch.mask, query)[:, None, None]
        inner = self._inner(states, query)
        probs = self._probs(attention[None], inner, candidates)[0]
        state = PairState(pair.first, states, query, candidates, inner)
        return Observation(self, batch, probs, (attention,), state)

    @property
    def _decoder(self) -> PairDecoder:
        return self.model.classifier

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        state = observation.state
        return self._probs(attention[self.layer], state.inner, state.candidates)

    def _inner(self, states: Tensor, query: Tensor) -> TanhArgument:
        """The argument of the read-out's tanh, from states [batch, keys, hidden] and q [batch,
        hidden].
        """
        decoder = self._decoder
        held = decoder.query(query) + decoder.context.bias
        return TanhArgument(held, states @ decoder.context.weight.t())

    def _probs(self, attention: Tensor, inner: TanhArgument, candidates: Tensor) -> Tensor:
        """Returns the probabilities of the read-out; attention need not sum to 1.

        Shape: attention [copies, batch, 1, 1, keys] -> [copies, batch, classes].
        """
        weights = attention[:, :, 0, 0].transpose(0, 1)  # [batch, copies, keys]
        mixed = weights @ inner.tokens + inner.held[:, None]
        logits = self._decoder.output(mixed.tanh())
        is_no_candidate = ~candidates[:, None]
        logits = logits.masked_fill(is_no_candidate, -torch.inf)
        probs = logits.softmax(-1)
        return probs.transpose(0, 1)

    # Capabilities

    def _probs_beside(self, observation: Observation, attention: Tensor, state: Tensor) -> Tensor:
        _, _, query, candidates, inner = observation.state
        beside = self._inner(state, query)
        tokens = torch.cat([inner.tokens, beside.tokens], 1)
        return self._probs(attention, TanhArgument(inner.held, tokens), candidates)

    def _probs_of(
        self,
        vectors: Tensor,
        first: Tensor,
        content: Tensor,
        query: Tensor,
        candidates: Tensor,
        *,
        hold_attention: bool = False,
    ) -> Tensor:
        """Probabilities [batch, classes] of first texts; query and candidates are held.

        Args:
            vectors: word vectors [batch, keys, embedding].
            first, content: its tokens, and those that get attention, [batch, keys].
        """
        states = self.base.encode(vectors, first)
        read = states.detach() if hold_attention else states
        weights = self.base.attend(read, content, query)
        inner = self._inner(states, query)
        attention = weights[None, :, None, None]
        return self._probs(attention, inner, candidates)[0]

    def _scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        """Returns what the base class says; the second text and the candidates are not scaled."""
        state, batch = observation.state, observation.batch
        vectors = self.base.embeddings(batch.inputs["input_ids"])
        return self._probs_of(
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
        """See the protocol; without a first text, q alone is classified."""
        batch, state = observation.batch, observation.state
        # What is held has an axis of 1, so that it is not taken for values of tokens.
        inputs = {
            "input_ids": batch.inputs["input_ids"],
            "attention_mask": state.first,
            "query": state.query[:, None],
            "candidates": state.candidates[:, None],
        }
        nothing = torch.zeros_like(observation.attention[0])[None]
        return compute_erased_probs(
            observation,
            erased,
            self._run_first,
            inputs=inputs,
            operator=operator,
            mask_id=self.mask_id,
            empty=self.replay(observation, {self.layer: nothing})[0],
            pad_id=self.model.config.pad_token_id or 0,
            tokens_per_pass=TOKENS_PER_PASS,
        )

    def _run_first(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Returns the probabilities [n, classes] of first texts; the second texts are held."""
        ids, first = texts["input_ids"], texts["attention_mask"]
        content = self.base.content_mask(first, ids)
        query = texts["query"][:, 0]
        candidates = texts["candidates"][:, 0]
        vectors = self.base.embeddings(ids)
        return self._probs_of(vectors, first, content, query, candidates)
