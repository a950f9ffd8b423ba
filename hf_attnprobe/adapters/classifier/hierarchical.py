"""Adapter for hierarchical attention classifiers, with sentences as units.

As in Serrano & Smith (2019, Section 3), the attention over sentences, layer 1, is read and edited.
Erasure removes whole sentences. The remaining sentences' vectors do not change, so only the
sentence encoder and the read-out run again.

The tokenizer marks sentence boundaries with a separator token. Code outside this adapter therefore
needs no special case for sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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
    find_sentence_positions,
)
from hf_attnprobe.protocol import Batch, Observation


MAX_SENTENCES_PER_PASS = 32_768
"""Maximum number of sentences, including padding, in a forward pass of the sentence encoder."""


class HierarchicalState(NamedTuple):
    """Results from one forward pass, detached from the graph.

    Attributes:
        vectors: Sentence vectors, `[batch, sentences, hidden]`.
        states: States of the sentence encoder, `[batch, sentences, hidden]`.
        token_logits: Logits for each sentence's state alone, `[batch, sentences, classes]`.
    """

    vectors: Tensor
    states: Tensor
    token_logits: Tensor


class HierarchicalAdapter(ClassifierAdapter):
    """Adapter that reads and edits the sentence attention of a hierarchical classifier.

    All masks and importances are over sentences, `[batch, sentences]`. `inputs["units"]`
    `[batch, keys]` contains the index of each word's sentence, and -1 for special tokens and
    padding. See `SingleHeadAdapter` for the arguments.
    """

    layer = 1
    unit = "sentence"

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Create a batch whose masks are over sentences; see `AttentionModel.prepare`."""
        batch = super().prepare(inputs, example_ids, labels)
        is_word = batch.mask
        # A word begins a sentence if a separator (or nothing) precedes it.
        follows_word = F.pad(is_word, (1, 0))[:, :-1]
        is_first = is_word & ~follows_word
        sentence = is_first.cumsum(-1) - 1
        units = sentence.where(is_word, -1)
        sentence_mask = find_sentence_positions(is_word).build_mask()
        inputs = {**batch.inputs, "units": units}
        return replace(batch, inputs=inputs, mask=sentence_mask, content_mask=sentence_mask)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        """Run one forward pass and record the attention over words and over sentences."""
        sentences = _find_batch_sentences(batch)
        embeddings = self.base.embeddings(batch.inputs["input_ids"])
        vectors, words = self.base.read_words(embeddings, sentences)
        states, attention = self.base.read_sentences(vectors, sentences)
        words = sentences.arrange_by_sentence(words)[:, None]
        attention = attention[:, None, None, :]
        token_logits = self.model.decode(states)
        state = HierarchicalState(sentences.arrange_by_text(vectors), states, token_logits)
        probs = self._compute_probs(attention[None], token_logits)[0]
        return Observation(self, batch, probs, (words, attention), state)

    # The word encoder is not recorded, so nothing can be reused from it.
    compute_gradient_times_input = SingleHeadAdapter.compute_gradient_times_input
    compute_leave_one_out = SingleHeadAdapter.compute_leave_one_out

    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold_attention: bool
    ) -> Tensor:
        """Compute gradient × input, summed over each sentence's words; see `ScaledGradients`.

        Special tokens belong to no sentence. `hold_attention` applies to both attention layers.
        """
        values = super().compute_scaled_gradient(observation, target, scale, hold_attention)
        # The first column collects the special tokens, whose unit is -1, and is dropped.
        sums = values.new_zeros(len(values), observation.batch.mask.shape[1] + 1)
        units = observation.batch.inputs["units"]
        return sums.scatter_add(1, units + 1, values)[:, 1:]

    def _compute_scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        batch = observation.batch
        sentences = _find_batch_sentences(batch)
        embeddings = self.base.embeddings(batch.inputs["input_ids"])
        vectors, _ = self.base.read_words(
            embeddings * factor[..., None],
            sentences,
            hold_attention=hold_attention,
        )
        states, attention = self.base.read_sentences(vectors, sentences)
        if hold_attention:
            attention = attention.detach()
        return self._compute_probs(attention[None, :, None, None], self.model.decode(states))[0]

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """Compute the gradient with respect to sentence attention; see `Differentiable`.

        Word attention is not tested, so its gradient is NaN.
        """
        gradient = super().compute_attention_gradient(observation, target)[-1]
        words = gradient.new_full((), torch.nan).expand_as(observation.attention[0])
        return [words, gradient]

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """Return the sentence states as values for sentence attention; see `HeadValues`.

        Word attention is not tested, so its values are NaN.
        """
        (states,) = super().compute_head_values(observation)
        n_words = observation.attention[0].shape[-1]
        shape = (len(states), 1, n_words, states.shape[-1])
        return states.new_full((), torch.nan).expand(shape), states

    def get_output_projections(self) -> tuple[Tensor, ...]:
        """Return an identity matrix for each of the two attention layers."""
        return super().get_output_projections() * 2

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """Compute the probabilities after erasing sentences; see `EditableInputs`."""
        check_erasure_operator(operator, self.mask_id)
        batch = observation.batch
        if operator == "deletion":
            # The vectors of the remaining sentences are reused.
            n_copies, n_texts, _ = erased.shape
            text = torch.arange(n_texts, device=erased.device).repeat(n_copies)
            remaining = (batch.content_mask & ~erased).flatten(0, 1)
            probs = self._compute_probs_of_sentences(observation, text, remaining)
            return probs.unflatten(0, (n_copies, n_texts))
        # To mask sentences, all their words are replaced, and the whole model runs again.
        units = batch.inputs["units"]
        is_word = units >= 0
        sentence = units.clamp_min(0).expand(len(erased), -1, -1)
        erased_words = erased.gather(-1, sentence) & is_word
        word_observation = replace(observation, batch=replace(batch, content_mask=is_word))
        return super().erase_inputs(word_observation, erased_words, operator=operator)

    def read_unit_contents(self, observation: Observation) -> list[dict[int, Any]]:
        """Read the vector of every sentence; see `ExchangeableUnits`."""
        contents = []
        vectors = observation.state.vectors.detach()
        for text_vectors, is_sentence in zip(vectors, observation.batch.content_mask, strict=True):
            sentences = is_sentence.nonzero()[:, 0].tolist()
            contents.append({sentence: text_vectors[sentence] for sentence in sentences})
        return contents

    @torch.no_grad()
    def exchange_inputs(
        self,
        observation: Observation,
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Any]],
    ) -> Tensor:
        """Compute the probabilities after replacing sentence vectors; see `ExchangeableUnits`."""
        vectors, mask = observation.state.vectors, observation.batch.mask
        new_vectors = vectors.clone()
        for text, contents in enumerate(replacements):
            for sentence, vector in contents.items():
                new_vectors[text, sentence] = vector
        reader = self.base.sentences
        probs = []
        for is_exchanged in exchanged:
            states = reader.encode(torch.where(is_exchanged[..., None], new_vectors, vectors), mask)
            attention = reader.attend(states, mask)[None, :, None, None]
            probs.append(self._compute_probs(attention, self.model.decode(states))[0])
        return torch.stack(probs)

    def _compute_probs_of_sentences(
        self, observation: Observation, text: Tensor, remaining: Tensor
    ) -> Tensor:
        """Compute the probabilities for texts from which some sentences have been removed.

        Args:
            observation: The observed whole texts.
            text: Whole-text index for each shortened text, int `[shortened texts]`.
            remaining: Whether each sentence remains, bool `[shortened texts, sentences]`.

        Returns:
            Probabilities `[shortened texts, classes]`.
        """
        if len(text) == 0:
            return observation.probs[text]
        # A stable sort moves the remaining sentences to the front and keeps their order.
        order = remaining.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        mask = remaining.gather(-1, order)
        reader = self.base.sentences
        rows_per_pass = max(1, MAX_SENTENCES_PER_PASS // remaining.shape[1])
        probs = []
        for rows in torch.arange(len(text), device=text.device).split(rows_per_pass):
            vectors = observation.state.vectors[text[rows, None], order[rows]]
            states = reader.encode(vectors, mask[rows])
            weights = reader.attend(states, mask[rows])
            attention = weights[None, :, None, None]
            probs.append(self._compute_probs(attention, self.model.decode(states))[0])
        return torch.cat(probs)


def _find_batch_sentences(batch: Batch) -> Sentences:
    """Find the sentences in a batch."""
    return find_sentence_positions(batch.inputs["units"] >= 0)
