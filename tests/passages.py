"""A language model of one head by formula, and passages for it.

    logits = gain · Σ_j a_j / A · [(1 − c) v_j + c Σ_i v_i] + around · Σ_j v_j + known

The passage has units j, each with a score, a value v_j (a number per possible answer) and
a length. One row reads: it gives the units A of its attention, a = A · softmax(scores),
the rest to the question and the sink. Deleting a unit takes it from every sum; taking its
cell away takes a_j alone, so with c > 0 its value still reaches the answer through the
states of the other units, and with ``around`` without any attention. ``known`` is what
the question alone says for the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_attnprobe.attention_model import AttentionModelBase, Batch, Observation, ReadTokens, Site
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.functional.predictions import Prediction


HELD = (0.2, 0.4)
"""Attention to the question, and to the sink."""
READ = 1 - sum(HELD)
N_ANSWERS = 8


@dataclass(frozen=True)
class Numbers:
    """Those of the formula: gain, c, around, known."""

    gain: float = 7.0
    shared: float = 0.3
    around: float = 1.0
    known: float = 0.5


class ConstructedDecoder(AttentionModelBase):
    """The formula behind the protocol: one layer, one head, one row, in float64.

    Keys are the units, padding, and the two held ones. Batches are made by
    :func:`batch_of_passages`, any number of texts at once.
    """

    unit = "sentence"
    keeps_positions = True

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.model = nn.Module()
        self.label_names = []

    @property
    def prediction(self) -> Prediction:
        return Prediction("answer", "an answer", n_outcomes=N_ANSWERS)

    def sites(self) -> list[Site]:
        return [Site()]

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Inputs: scores, lengths [batch, units], values [batch, units, answers], is_unit."""
        content = inputs["is_unit"].bool()
        held = torch.zeros(len(content), len(HELD), dtype=torch.bool)
        content = torch.cat([content, held], 1)
        mask = torch.cat([content[:, : -len(HELD)], ~held], 1)
        return Batch(dict(inputs), mask, content, tuple(example_ids), labels)

    def observe(self, batch: Batch) -> Observation:
        attention = self._attention(batch, batch.content_mask)
        probs = self._answer(batch, attention, batch.content_mask)
        return Observation(self, batch, probs, (attention[:, None, None],))

    def _attention(self, batch: Batch, kept: Tensor) -> Tensor:
        """Of the units kept, [..., batch, keys]; without a unit the passage's share is lost."""
        units = kept[..., : -len(HELD)]
        scores = batch.inputs["scores"].expand(units.shape).masked_fill(~units, -torch.inf)
        weights = READ * scores.softmax(-1).nan_to_num(0.0)
        held = torch.tensor(HELD, dtype=weights.dtype).expand(*weights.shape[:-1], -1)
        return torch.cat([weights, held], -1)

    def _answer(self, batch: Batch, attention: Tensor, kept: Tensor) -> Tensor:
        """Probabilities by the formula, [..., batch, answers]."""
        gain, shared, around, known = astuple(self.numbers)
        values = batch.inputs["values"] * kept[..., : -len(HELD), None]
        total = values.sum(-2)
        states = (1 - shared) * values + shared * total[..., None, :]
        read = (attention[..., : -len(HELD), None] * states).sum(-2) / READ
        assert batch.labels is not None  # of a question the answer is always known
        own = nn.functional.one_hot(batch.labels, N_ANSWERS)
        return (gain * read + around * total + known * own).softmax(-1)

    def visible(self, observation: Observation, layer: int) -> Tensor:
        return observation.batch.content_mask[:, None]

    def read_map(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        return values[:, 0]

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        batch = observation.batch
        return self._answer(batch, attention[0][:, :, 0, 0], batch.content_mask)

    # Capabilities

    def leave_one_out(self, observation: Observation) -> Tensor:
        n_texts, n_keys = observation.batch.mask.shape
        each = torch.eye(n_keys, dtype=torch.bool)[:, None].expand(-1, n_texts, -1)
        return self.erase_inputs(observation, each).transpose(0, 1)

    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, by: str = "deletion"
    ) -> Tensor:
        """See the protocol; units have no positions, so a gap is a deletion."""
        batch = observation.batch
        kept = batch.content_mask & ~erased
        return self._answer(batch, self._attention(batch, kept), kept)

    def replay_masked(
        self, observation: Observation, kept: Mapping[int, Tensor], *, operator: str = "none"
    ) -> Tensor:
        attention = observation.attention[0][:, 0, 0]
        kept_here = kept[0][:, :, 0, 0].to(attention.dtype)
        weights = attention * kept_here
        if operator == "renormalised":
            weights = normalise(weights)
        elif operator == "sink":
            weights[..., -1] += attention.sum(-1) - weights.sum(-1)
        return self._answer(observation.batch, weights, observation.batch.content_mask)

    def log_prob(self, observation: Observation, probs: Tensor) -> Tensor:
        labels = observation.batch.labels
        assert labels is not None
        own = labels[:, None].expand(*probs.shape[:-1], 1)
        return probs.gather(-1, own)[..., 0].log()

    def contrast(self, observation: Observation, probs: Tensor) -> Tensor:
        return torch.full(probs.shape[:-1], torch.nan, dtype=probs.dtype)

    def without_passage(self, observation: Observation) -> Tensor:
        nothing = torch.zeros_like(observation.batch.content_mask)
        return self._answer(observation.batch, self._attention(observation.batch, nothing), nothing)

    def is_greedy(self, observation: Observation) -> Tensor:
        labels = observation.batch.labels
        assert labels is not None
        return observation.probs.argmax(-1) == labels

    def unit_lengths(self, observation: Observation) -> Tensor:
        lengths = observation.batch.inputs["lengths"]
        return torch.cat([lengths, lengths.new_zeros(len(lengths), len(HELD))], 1)

    def row_positions(self, observation: Observation) -> Tensor:
        return torch.zeros(1, dtype=torch.long)

    def answer_rows(self, observation: Observation) -> Tensor:
        return torch.ones(1, dtype=torch.bool)

    def token_attention(self, observation: Observation, read: ReadTokens[Any]) -> list[Any]:
        """See the protocol; its tokens are its units, and what they hold."""
        return [read(0, observation.attention[0][0, :, :, :], observation.batch.inputs["values"])]


Passage = dict[str, np.ndarray]
"""Scores and lengths [units], values [units, answers]."""


def passage(draws: np.random.Generator, answer: int) -> Passage:
    """Two to seven units; one says the answer and is looked at most, another says any."""
    n_units = int(draws.integers(2, 8))
    scores = draws.normal(0, 0.3, n_units)
    values = draws.normal(0, 0.2, (n_units, N_ANSWERS))
    lengths = draws.integers(4, 41, n_units)
    says, beside = draws.permutation(n_units)[:2]
    values[[says, beside]] = 0
    values[says, answer] = 1
    values[beside, draws.integers(N_ANSWERS)] = 0.5
    scores[says] += 1.5
    scores[beside] += 0.8
    return {"scores": scores, "values": values, "lengths": lengths}


def batch_of_passages(
    adapter: ConstructedDecoder, passages: Sequence[Passage], labels: Sequence[int]
) -> Batch:
    """Passages with their answers as one batch, padded to the longest."""
    longest = max(len(passage["scores"]) for passage in passages)

    def padded(name: str) -> Tensor:
        rows = []
        for passage in passages:
            values = passage[name]
            rest = [(0, longest - len(values)), *[(0, 0)] * (values.ndim - 1)]
            rows.append(torch.from_numpy(np.pad(values, rest)))
        return torch.stack(rows)

    inputs = {name: padded(name) for name in ("scores", "values", "lengths")}
    n_units = torch.tensor([len(passage["scores"]) for passage in passages])
    inputs["is_unit"] = torch.arange(longest) < n_units[:, None]
    return adapter.prepare(inputs, tuple(range(len(passages))), torch.tensor(labels))
