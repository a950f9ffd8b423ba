"""Hierarchical attention classifiers as an :class:`AttentionModel` whose units are sentences.

The attention that is read and edited is that of the sentences, layer 1, as in Serrano & Smith (2019, Section 3). What is
left out is a whole sentence: those that stay keep their vectors, only what reads them runs again.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.adapters.classifier.adapter import ClassifierAdapter
from hf_attnprobe.adapters.input_erasure import check_operator, erase_classifier_inputs
from hf_attnprobe.attention_classifier.sentences_attention_classifier import (
    Sentences,
    find_sentences,
)
from hf_attnprobe.attention_model import Batch, Observation


SENTENCES_PER_PASS = 1 << 15  # with padding


class HierarchicalState(NamedTuple):
    """What one forward pass leaves for the tests, no graph.

    vectors: of the sentences, [batch, sentences, hidden]. states: what the sentence encoder makes of them.
    token_logits: the read-out of each, [batch, sentences, classes].
    """

    vectors: Tensor
    states: Tensor
    token_logits: Tensor


class HierarchicalAdapter(ClassifierAdapter):
    """Reads and edits the sentence attention of a hierarchical model; see :class:`ClassifierAdapter`.

    Masks, importances and read-outs are over sentences, [batch, sentences]. ``inputs["units"]`` [batch, keys] says in
    which sentence each word is, −1 for special tokens and padding.
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
        first = batch.mask & ~F.pad(batch.mask, (1, 0))[:, :-1]
        units = (first.cumsum(-1) - 1).where(batch.mask, -1)
        mask = find_sentences(batch.mask).mask()
        return replace(
            batch, inputs={**batch.inputs, "units": units}, mask=mask, content_mask=mask
        )

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        sentences, embeddings = (
            _sentences(batch),
            self.base.embeddings(batch.inputs["input_ids"]),
        )
        vectors, words = self.base.read_words(embeddings, sentences)
        states, attention = self.base.read_sentences(vectors, sentences)
        attentions = sentences.spread(words)[:, None], attention[:, None, None]
        state = HierarchicalState(
            sentences.stack(vectors), states, self.model.decode(states)
        )
        probs = self._probs(attentions[1][None], state.token_logits)[0]
        return Observation(self, batch, probs, attentions, state)

    def gradient(
        self, observation: Observation, target: Tensor, *, hold_attention: bool = True
    ) -> Tensor:
        """As in the protocol, summed over the words of each sentence; held is the attention of both levels."""
        batch, sentences = observation.batch, _sentences(observation.batch)
        embeddings = self.base.embeddings(batch.inputs["input_ids"])
        with torch.enable_grad():
            factor = torch.ones_like(embeddings[..., 0], requires_grad=True)
            vectors, _ = self.base.read_words(
                embeddings * factor[..., None], sentences, hold_attention=hold_attention
            )
            states, attention = self.base.read_sentences(vectors, sentences)
            attention = attention.detach() if hold_attention else attention
            probs = self._probs(
                attention[None, :, None, None], self.model.decode(states)
            )[0]
            (slope,) = torch.autograd.grad(
                probs.gather(-1, target[:, None]).sum(), factor
            )
        summed = slope.new_zeros(len(slope), batch.mask.shape[1] + 1)
        return summed.scatter_add(1, batch.inputs["units"] + 1, slope)[:, 1:]

    def attention_gradient(
        self, observation: Observation, target: Tensor
    ) -> list[Tensor]:
        """As in the protocol; of words, which are no site, NaN."""
        slope = super().attention_gradient(observation, target)[-1]
        return [
            slope.new_full((), torch.nan).expand_as(observation.attention[0]),
            slope,
        ]

    def head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """As in the protocol; of words, which are no site, NaN."""
        (states,) = super().head_values(observation)
        shape = (len(states), 1, observation.attention[0].shape[-1], states.shape[-1])
        return states.new_full((), torch.nan).expand(shape), states

    @property
    def output_projections(self) -> tuple[Tensor, ...]:
        return super().output_projections * 2

    @torch.no_grad()
    def leave_one_out(self, observation: Observation) -> Tensor:
        """Probabilities without each sentence, [batch, sentences, classes]; without the only one, the bias's."""
        content, probs = observation.batch.content_mask, observation.probs
        text, place = content.nonzero().unbind(1)
        left = content[text] & (
            torch.arange(content.shape[1], device=content.device) != place[:, None]
        )
        found = probs[:, None].repeat(1, content.shape[1], 1)
        found[text, place] = self._probs_of(observation, text, left)
        return found

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, by: str = "deletion"
    ) -> Tensor:
        check_operator(by, self.mask_id)
        batch = observation.batch
        if by == "deletion":
            text = torch.arange(len(batch.mask), device=erased.device).repeat(
                len(erased)
            )
            left = (batch.content_mask & ~erased).flatten(0, 1)
            return self._probs_of(observation, text, left).unflatten(
                0, erased.shape[:2]
            )
        units = batch.inputs["units"]
        words = erased.gather(-1, units.clamp_min(0).expand(len(erased), -1, -1)) & (
            units >= 0
        )
        of_words = replace(observation, batch=replace(batch, content_mask=units >= 0))
        return erase_classifier_inputs(self, of_words, words, by)

    def _probs_of(self, observation: Observation, text: Tensor, left: Tensor) -> Tensor:
        """Probabilities [rows, classes] of texts [rows] of which the sentences ``left`` [rows, sentences] stay."""
        order = left.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        mask, found = left.gather(-1, order), []
        for rows in torch.arange(len(text), device=text.device).split(
            max(1, SENTENCES_PER_PASS // left.shape[1])
        ):
            vectors = observation.state.vectors[text[rows, None], order[rows]]
            states = self.base.sentences.encode(vectors, mask[rows])
            attention = self.base.sentences.attend(states, mask[rows])
            found.append(
                self._probs(attention[None, :, None, None], self.model.decode(states))[
                    0
                ]
            )
        return torch.cat(found) if found else observation.probs[text]

    def bytes_per_example(
        self, n_keys: int, n_copies: int, *, backward: bool = True
    ) -> int:
        """With every second token a sentence, which no text exceeds; words are encoded once, with a graph."""
        words = (
            n_keys
            * 60
            * self.model.config.hidden_size
            * self.model.classifier.weight.element_size()
        )
        return words + super().bytes_per_example(
            (n_keys + 1) // 2, n_copies, backward=backward
        )


def _sentences(batch: Batch) -> Sentences:
    return find_sentences(batch.inputs["units"] >= 0)
