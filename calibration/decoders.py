"""Language models of known truth, constructed by formula.

    logits = gain · Σ_j a_j / A · [(1 − c) v_j + c Σ_i v_i] + around · Σ_j v_j + known

The passage has units j, each with a score, a value v_j (a number per possible answer) and
a length. One row reads: it gives the units A of its attention, a = A · softmax(scores),
the rest to the question and the sink. Deleting a unit takes it from every sum; taking its
cell away takes a_j alone, so with c > 0 its value still reaches the answer through the
states of the other units, and with ``around`` without any attention. ``known`` is what
the question alone says for the answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from calibration.constructs import (
    SEVERAL_CUES,
    WHOLE,
    Role,
    Truth,
    attend,
    share_of_fillers,
)
from hf_attnprobe.attention_model import AttentionModelBase, Batch, Observation, ReadTokens, Site
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.functional.predictions import Prediction


HELD = (0.2, 0.4)
"""Attention to the question, and to the sink."""
READ = 1 - sum(HELD)


@dataclass(frozen=True)
class Knobs:
    """Parameters of a kind of constructed language model and of its passages.

    Attributes:
        roles: units that are no fillers; their shares are of the attention to the passage.
        logit: the answer's margin that goes through attention, in a passage of mean length.
        around, known: margins that go around attention, and that the question alone gives.
        shared: c, from 0 (a unit's state knows that unit) to 1 (every state knows all).
        score_noise, value_noise: standard deviations of a filler's score and worth.
        by_length: whether attention goes by the square of the units' lengths.
        long_source: whether the unit that says the answer is one of the longer ones.
        n_answers: possible answers.
        n_units: the fewest and the most units of a passage.
    """

    roles: tuple[Role, ...] = (Role(share=0.85),)
    logit: float = 4.0
    around: float = 0.0
    known: float = 0.0
    shared: float = 0.0
    score_noise: float = 0.3
    value_noise: float = 0.03
    by_length: bool = False
    long_source: bool = False
    n_answers: int = 8
    n_units: tuple[int, int] = (8, 14)

    @property
    def filler_share(self) -> float:
        """Attention of each unit without a share of its own, in a passage of mean length."""
        return share_of_fillers(self.roles, self.n_units)

    @property
    def total_evidence(self) -> float:
        """Worth of all units of a passage for its answer, with equal weights of 1."""
        return sum(role.evidence for role in self.roles) or 1.0

    @property
    def gain(self) -> float:
        """Factor that gives the attention path the margin ``logit``."""
        attended = sum((r.share or self.filler_share) * r.evidence for r in self.roles)
        path = (1 - self.shared) * attended + self.shared * self.total_evidence
        return self.logit / (path or 1.0)


class DecoderTable(nn.Module):
    """The numbers of the formula: gain, shared, around, known."""

    def __init__(self, knobs: Knobs) -> None:
        super().__init__()
        around = knobs.around / knobs.total_evidence
        numbers = [knobs.gain, knobs.shared, around, knobs.known]
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.float64))


class ConstructedDecoder(AttentionModelBase):
    """The formula behind the protocol: one layer, one head, one row, in float64.

    Keys are the units, padding, and the two held ones. Batches are made by
    :func:`batch_of_passages`, any number of texts at once.
    """

    unit = "sentence"

    def __init__(self, knobs: Knobs) -> None:
        self.model: DecoderTable = DecoderTable(knobs)
        self.n_answers = knobs.n_answers
        self.label_names = []

    @property
    def prediction(self) -> Prediction:
        return Prediction("answer", "an answer", n_outcomes=self.n_answers)

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
        weights = READ * attend(batch.inputs["scores"].expand(units.shape), units)
        held = torch.tensor(HELD, dtype=weights.dtype).expand(*weights.shape[:-1], -1)
        return torch.cat([weights, held], -1)

    def _answer(self, batch: Batch, attention: Tensor, kept: Tensor) -> Tensor:
        """Probabilities by the formula, [..., batch, answers]."""
        gain, shared, around, known = self.model.get_buffer("numbers")
        values = batch.inputs["values"] * kept[..., : -len(HELD), None]
        total = values.sum(-2)
        states = (1 - shared) * values + shared * total[..., None, :]
        read = (attention[..., : -len(HELD), None] * states).sum(-2) / READ
        assert batch.labels is not None  # of a question the answer is always known
        own = nn.functional.one_hot(batch.labels, self.n_answers)
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


# --- passages --------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnDecoder:
    """One model of a kind, and its passages.

    Attributes:
        adapter: the model behind the protocol.
        batch: all texts.
    """

    adapter: ConstructedDecoder
    batch: Batch


def draw_decoder(name: str, knobs: Knobs, *, seed: int, n_texts: int) -> DrawnDecoder:
    """A model of a kind, and passages for it; fewer are the first of more.

    Args:
        name: of the kind; two kinds of one seed are drawn apart.
        knobs: what the kind is.
        seed: of the passages.
        n_texts: how many.
    """
    adapter, key = ConstructedDecoder(knobs), crc32(name.encode())
    texts = np.random.default_rng([seed, key, 0])
    labels, own = [], []
    for _ in range(n_texts):
        labels.append(int(texts.integers(knobs.n_answers)))
        own.append(_passage(knobs, texts, labels[-1]))
    return DrawnDecoder(adapter, batch_of_passages(adapter, own, labels))


Passage = dict[str, np.ndarray]
"""Scores and lengths [units], values [units, answers]."""


def _passage(knobs: Knobs, draws: np.random.Generator, label: int) -> Passage:
    """A passage whose roles of side "label" speak for the answer."""
    low, high = knobs.n_units
    n_units = int(draws.integers(low, high + 1))
    scores = draws.normal(0, knobs.score_noise, n_units)
    values = draws.normal(0, knobs.value_noise, (n_units, knobs.n_answers))
    lengths = draws.integers(4, 41, n_units)
    order = draws.permutation(n_units)
    if knobs.long_source:
        lengths[order[0]] = draws.integers(25, 41)
    if knobs.by_length:
        scores += 2 * np.log(lengths)
    places = iter(order)
    for role in knobs.roles:
        answer = label if role.side == "label" else int(draws.integers(knobs.n_answers))
        for place in [next(places) for _ in range(role.n)]:
            values[place] = 0
            values[place, answer] = role.worth
            if role.share:
                scores[place] += np.log(role.share / knobs.filler_share)
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


# --- the kinds, and which answer is true of each, and why ------------------------------------


@dataclass(frozen=True)
class Decoder:
    """A kind of constructed language model; as :class:`~calibration.constructs.Construct`."""

    says: str
    knobs: Knobs
    truths: Mapping[str, Truth] = field(default_factory=dict)

    def draw(self, name: str, *, seed: int, n_texts: int) -> DrawnDecoder:
        """Draws a model of this kind, with passages for it."""
        return draw_decoder(name, self.knobs, seed=seed, n_texts=n_texts)

    def sizes(self, n_texts: Sequence[int]) -> list[int]:
        """Numbers of texts for which the verdict is asked: all."""
        return [*n_texts]


DECOY = partial(Role, worth=0.0, side="any")
"""Units that say nothing, looked at whatever is asked; their share is the argument."""
READS = {"passage": Truth(True, "only a unit of the passage says the answer")}
LOOKED_AT = {"path": Truth(True, "a unit reaches the answer by its own cell alone")}
POINTS = (
    READS
    | LOOKED_AT
    | {
        "source": Truth(True, "most attention is on the unit that says the answer"),
        "order": Truth(True, "attention is on the unit that says the answer"),
        "exchange": Truth(True, "the unit's weight on another one would leave nothing said"),
        WHOLE: Truth(True, "attention is the only path, and lies on the unit that says it"),
    }
)
MISLEADS = READS | {
    "source": Truth(False, "most attention is on units that say nothing"),
    "order": Truth(False, "most attention is on units that say nothing"),
    WHOLE: Truth(False, "attention is on units that say nothing"),
}
AROUND = READS | {
    "source": POINTS["source"],
    "order": POINTS["order"],
    "path": Truth(False, "half of what the unit says reaches the answer without its cell"),
}
VOID = AROUND | {
    "exchange": Truth(False, "any other attention to the units gives the very same answer"),
    WHOLE: Truth(False, "where in the passage the weights lie changes nothing"),
}

DECODERS: dict[str, Decoder] = {
    "decoder, pointer": Decoder(
        ".85 of the passage's attention is on the unit that says the answer", Knobs(), POINTS
    ),
    "decoder, sure pointer": Decoder("the same, three times as sure", Knobs(logit=12.0), POINTS),
    "decoder, soft pointer": Decoder(
        ".5 of the passage's attention is on that unit",
        Knobs(roles=(Role(share=0.5),), logit=3.0),
        POINTS,
    ),
    "decoder, several cues": Decoder(
        "two more units speak for any answer, with less attention",
        Knobs(roles=SEVERAL_CUES, score_noise=0.1),
        POINTS,
    ),
    "decoder, a tenth around": Decoder(
        "a tenth of the margin of 4 needs no attention", Knobs(logit=3.6, around=0.4), POINTS
    ),
    "decoder, few units": Decoder(
        "a pointer in passages of 2 to 4 units",
        Knobs(roles=(Role(share=0.7),), n_units=(2, 4)),
        {rule: POINTS[rule] for rule in ("passage", "source", "path")},
    ),
    "decoder, half around": Decoder(
        "half of the margin of 4 needs no attention", Knobs(logit=2.0, around=2.0), AROUND
    ),
    "decoder, half by a neighbour": Decoder(
        "every state holds all; another unit has more attention than the one that says it",
        Knobs(roles=(Role(share=0.35), DECOY(0.5)), shared=1.0, score_noise=0.1),
        READS
        | {
            "source": MISLEADS["source"],
            WHOLE: VOID[WHOLE],
            "path": Truth(False, "more of what the unit says is read from other units' states"),
            "exchange": VOID["exchange"],
        },
    ),
    "decoder, by a neighbour": Decoder(
        "every state holds all, and most attention is on another unit",
        Knobs(roles=(Role(), DECOY(0.84)), shared=1.0),
        MISLEADS
        | {
            "path": Truth(False, "what the unit says is read from another unit's state"),
            "exchange": VOID["exchange"],
        },
    ),
    "decoder, ornament": Decoder(
        "attention is on the unit, but every state holds the same sum",
        Knobs(shared=1.0),
        # Its own cell is one of those that carry the sum.
        {rule: truth for rule, truth in VOID.items() if rule != "path"},
    ),
    "decoder, path of weight 0": Decoder(
        "attention is on the unit, but the answer is read from the mean around it",
        Knobs(logit=0.0, around=4.0),
        VOID | {"path": Truth(False, "nothing reaches the answer by any unit's cell")},
    ),
    "decoder, even": Decoder(
        "attention is even but for noise, the unit's value decides",
        Knobs(roles=(Role(),), score_noise=0.1),
        READS
        | LOOKED_AT
        | {
            "source": Truth(False, "the unit that says the answer has a filler's weight"),
            "order": Truth(False, "the unit has a filler's weight: noise ranks the units"),
            "exchange": Truth(False, "the weights are nearly equal"),
            WHOLE: Truth(False, "attention says nothing of what the values decide"),
        },
    ),
    "decoder, decoy": Decoder(
        ".84 of the attention is on a unit that says nothing",
        Knobs(roles=(Role(), DECOY(0.84)), logit=2.5),
        MISLEADS,
    ),
    "decoder, long decoys": Decoder(
        "four units that say nothing share .84 of the attention",
        Knobs(roles=(Role(), DECOY(0.21, n=4)), logit=2.5),
        MISLEADS,
    ),
    "decoder, length": Decoder(
        "attention goes by the units' length, any unit may say the answer",
        Knobs(roles=(Role(),), by_length=True),
        READS
        | LOOKED_AT
        | {
            "source": Truth(False, "the longest unit has most attention, whatever it says"),
            "order": Truth(False, "attention is the order of the units' lengths"),
            WHOLE: Truth(False, "attention says how long the units are"),
        },
    ),
    "decoder, long units": Decoder(
        "the same, and the unit that says the answer is one of the longer ones",
        Knobs(roles=(Role(),), by_length=True, long_source=True),
        READS | LOOKED_AT | {"source": Truth(False, "the unit's length alone says as much")},
    ),
    "decoder, knows already": Decoder(
        "the question alone says the answer, attention is on a unit that says nothing",
        Knobs(roles=(Role(share=0.85, worth=0.0),), known=2.0, value_noise=0.3),
        {"passage": Truth(False, "what the passage says has nothing to do with the answer")},
    ),
}
"""By name, in the order of the tables."""
