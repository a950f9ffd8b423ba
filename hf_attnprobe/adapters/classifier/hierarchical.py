"""Hierarchical attention classifiers as an :class:`AttentionModel` over sentences.

The attention that is read and edited is that of the sentences, layer 1, as in Serrano &
Smith (2019, Section 3). Whole sentences are left out: those that stay keep their vectors,
only what reads them runs again.

Sentences come as a separator token that the tokenizer itself puts into the ids, so nothing around
the model knows of them, and every test runs on the one site unchanged.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.adapters.classifier.adapter import (
    ClassifierAdapter,
    SingleHeadAdapter,
)
from hf_attnprobe.adapters.deletion import check_erasure_operator
from hf_attnprobe.models.attention_classifier.sentences_attention_classifier import (
    Sentences,
    find_sentences,
)
from hf_attnprobe.protocol import Batch, Observation


SENTENCES_PER_PASS = 1 << 15  # with padding


class HierarchicalState(NamedTuple):
    """Results of one forward pass that the tests read, detached.

    Attributes:
        vectors: the sentences' vectors, [batch, sentences, hidden].
        states: what the sentence encoder makes of them.
        token_logits: the read-out of each, [batch, sentences, classes].
    """

    vectors: Tensor
    states: Tensor
    token_logits: Tensor


class HierarchicalAdapter(ClassifierAdapter):
    """Reads and edits the sentence attention of a hierarchical classifier.

    Masks, importances and read-outs are over sentences, [batch, sentences].
    ``inputs["units"]`` [batch, keys] holds the number of each word's sentence, −1 for
    special tokens and padding. See :class:`ClassifierAdapter` for the arguments.
    """

    layer = 1
    unit = "sentence"

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        batch = super().prepare(inputs, example_ids, labels)
        is_behind_word = F.pad(batch.mask, (1, 0))[:, :-1]
        is_first = batch.mask & ~is_behind_word
        sentence = is_first.cumsum(-1) - 1
        units = sentence.where(batch.mask, -1)
        sentences = find_sentences(batch.mask)
        mask = sentences.mask()
        inputs = {**batch.inputs, "units": units}
        return replace(batch, inputs=inputs, mask=mask, content_mask=mask)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        sentences = _sentences(batch)
        embeddings = self.base.embeddings(batch.inputs["input_ids"])
        vectors, words = self.base.read_words(embeddings, sentences)
        states, attention = self.base.read_sentences(vectors, sentences)
        words = sentences.spread(words)[:, None]
        attention = attention[:, None, None, :]
        token_logits = self.model.decode(states)
        state = HierarchicalState(sentences.stack(vectors), states, token_logits)
        probs = self._probs(attention[None], token_logits)[0]
        return Observation(self, batch, probs, (words, attention), state)

    # Nothing of the words' encoder is traced, nor resumed.
    compute_gradient_times_input = SingleHeadAdapter.compute_gradient_times_input
    compute_leave_one_out = SingleHeadAdapter.compute_leave_one_out

    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold: bool
    ) -> Tensor:
        """Sums the words of each sentence; special tokens are in none, and not read.

        Args:
            hold: holds the attention of both levels fixed.
        """
        values = super().compute_scaled_gradient(observation, target, scale, hold)
        summed = values.new_zeros(len(values), observation.batch.mask.shape[1] + 1)
        units = observation.batch.inputs["units"]
        return summed.scatter_add(1, units + 1, values)[:, 1:]

    def _scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        batch = observation.batch
        sentences = _sentences(batch)
        embeddings = self.base.embeddings(batch.inputs["input_ids"])
        vectors, _ = self.base.read_words(
            embeddings * factor[..., None],
            sentences,
            hold_attention=hold_attention,
        )
        states, attention = self.base.read_sentences(vectors, sentences)
        if hold_attention:
            attention = attention.detach()
        return self._probs(attention[None, :, None, None], self.model.decode(states))[0]

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """See the protocol; NaN for words, which are no site."""
        slope = super().compute_attention_gradient(observation, target)[-1]
        words = slope.new_full((), torch.nan).expand_as(observation.attention[0])
        return [words, slope]

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """See the protocol; NaN for words, which are no site."""
        (states,) = super().compute_head_values(observation)
        shape = (
            len(states),
            1,
            observation.attention[0].shape[-1],
            states.shape[-1],
        )
        return states.new_full((), torch.nan).expand(shape), states

    def get_output_projections(self) -> tuple[Tensor, ...]:
        return super().get_output_projections() * 2

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        check_erasure_operator(operator, self.mask_id)
        batch = observation.batch
        if operator == "deletion":
            n_copies, n_texts, _ = erased.shape
            text = torch.arange(n_texts, device=erased.device).repeat(n_copies)
            left = (batch.content_mask & ~erased).flatten(0, 1)
            probs = self._probs_of(observation, text, left)
            return probs.unflatten(0, (n_copies, n_texts))
        units = batch.inputs["units"]
        is_word = units >= 0
        sentence = units.clamp_min(0).expand(len(erased), -1, -1)
        words = erased.gather(-1, sentence) & is_word
        of_words = replace(observation, batch=replace(batch, content_mask=is_word))
        return super().erase_inputs(of_words, words, operator=operator)

    def _probs_of(self, observation: Observation, text: Tensor, left: Tensor) -> Tensor:
        """Probabilities of texts reduced to some of their sentences.

        Shape: text int [rows], left bool [rows, sentences] -> [rows, classes].
        """
        if len(text) == 0:
            return observation.probs[text]
        order = left.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        mask = left.gather(-1, order)
        reader = self.base.sentences
        n_at_once = max(1, SENTENCES_PER_PASS // left.shape[1])
        parts = []
        for rows in torch.arange(len(text), device=text.device).split(n_at_once):
            vectors = observation.state.vectors[text[rows, None], order[rows]]
            states = reader.encode(vectors, mask[rows])
            weights = reader.attend(states, mask[rows])
            attention = weights[None, :, None, None]
            parts.append(self._probs(attention, self.model.decode(states))[0])
        return torch.cat(parts)


def _sentences(batch: Batch) -> Sentences:
    return find_sentences(batch.inputs["units"] >= 0)
