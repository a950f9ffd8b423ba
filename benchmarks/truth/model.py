"""A model by formula, behind the protocol of the package: one layer, one head, one query.

    logits = Σ_i a_i h_i + Σ_i r_i + b,    a = softmax(s)

A text is a table with a row per word; nothing else is known of a word:

    score s [texts, words]: how it draws attention.
    value v, rest r [texts, words, classes]: what it says, read through attention and around it.
    mark, turn, lock, summary [texts, words]: 1 where the word is one of those below, else 0.
    pull [texts, words]: what is added to the score of the word that is looked at.

Deleting a word takes its row out and closes the gap, and everything is computed anew. White-box
models have tested explanations before: Hao 2020 (arXiv 2010.08606), Khakzar et al. 2023
(arXiv 2310.06514).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.inference.encoding import compute_identity
from hf_attnprobe.protocol import AttentionModelBase, Batch, Observation, Site


Looks = Literal["nowhere", "last", "behind a mark", "first mark"]


@dataclass(frozen=True)
class Formula:
    """How the words of a text make states and scores.

    Attributes:
        looks: the word whose score is raised by the text's pull, found anew in what is left of
            a text; "nowhere": none, scores are the words' own.
        reads: the state of a word holds what the word so many places further says.
        context: how much of a state comes from its two neighbours, 0 to 1.
        shared: how much of every state is the sum of all words, 0 to 1.
        n_locks: so many locks are needed for any word to say anything.
        default: what is said for the first class by no word.
        turns: the classes of what a word says are shifted by its place modulo this number; places
            are counted from the first word, or from the last one if the number is negative. 1 and
            0: never.

    The state of a summary word is the sum of what all words say.
    """

    looks: Looks = "nowhere"
    reads: int = 0
    context: float = 0.0
    shared: float = 0.0
    n_locks: int = 0
    default: float = 0.0
    turns: int = 0

    def scores(self, words: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Scores of the words, [texts, words]."""
        marked = words["mark"] * mask
        targets = {
            "nowhere": torch.zeros_like(marked),
            "last": _first_of(mask.double().flip(-1)).flip(-1),
            "behind a mark": shifted(marked, -1),
            "first mark": _first_of(marked),
        }
        return words["score"] + words["pull"] * targets[self.looks]

    def read(self, words: Mapping[str, Tensor], present: Tensor) -> tuple[Tensor, Tensor]:
        """States [texts, words, classes], and what goes around attention [texts, classes].

        Args:
            present: what each word counts, 1, or 0 where there is none, [texts, words].
        """
        unlocked = (words["lock"] * present).sum(-1) - self.n_locks + 1
        turned = (1 - 2 * words["turn"] * present).prod(-1)
        factor = unlocked.clamp(0, 1) if self.n_locks else torch.ones_like(unlocked)
        said = words["value"] * (present * factor[:, None])[..., None]
        kept = ((1 + turned) / 2)[:, None, None]
        said = kept * said + (1 - kept) * said.flip(-1)
        if self.turns:
            said = self._turn_by_place(said, present)
        own = shifted(said, self.reads)
        beside = (shifted(said, 1) + shifted(said, -1)) / 2
        states = (1 - self.context) * own + self.context * beside
        total = said.sum(-2, keepdim=True)
        states = (1 - self.shared) * states + self.shared * total
        is_summary = (words["summary"] * present)[..., None]
        states = (1 - is_summary) * states + is_summary * total
        rest = (words["rest"] * present[..., None]).sum(-2)
        first = torch.zeros_like(rest)
        first[:, 0] = self.default
        return states, rest + first

    def _turn_by_place(self, said: Tensor, present: Tensor) -> Tensor:
        """Shift the classes of what each word says by its place, [texts, words, classes]."""
        places = present.cumsum(-1) - 1
        if self.turns < 0:
            places = present.sum(-1, keepdim=True) - 1 - places
        classes = torch.arange(said.shape[-1])
        by = (places.long().clamp_min(0) % abs(self.turns))[..., None]
        return said.gather(-1, (classes - by) % said.shape[-1])


def shifted(values: Tensor, by: int) -> Tensor:
    """Each word gets what the word ``by`` places further has, [texts, words, ...]; 0 outside."""
    moved = values.roll(-by, 1)
    if by > 0:
        moved[:, -by:] = 0
    elif by < 0:
        moved[:, :-by] = 0
    return moved


def _first_of(flags: Tensor) -> Tensor:
    """1 at the first 1 of each text, [texts, words]."""
    return flags * (flags.cumsum(-1) == 1)


def attend(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the mask, [texts, words]; all 0 where the mask is empty."""
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)


def probabilities(attention: Tensor, states: Tensor, rest: Tensor) -> Tensor:
    """[..., texts, words] and what it averages -> [..., texts, classes]."""
    return ((attention[..., None] * states).sum(-2) + rest).softmax(-1)


class ConstructedModel(AttentionModelBase):
    """The formula behind the protocol, in closed form and in float64.

    Args:
        formula: of all texts.
        n_classes: two or more.
    """

    def __init__(self, formula: Formula, n_classes: int) -> None:
        self.model = nn.Module()
        self.formula = formula
        self.label_names = [f"class {k}" for k in range(n_classes)]

    def sites(self) -> list[Site]:
        return [Site()]

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Inputs: the columns of the texts' words, and ``mask``; padding is on the right."""
        mask = inputs["mask"]
        identities = torch.tensor(
            [
                compute_identity({"words": words[real]})
                for words, real in zip(_stack_columns(inputs), mask, strict=True)
            ]
        )
        return Batch(dict(inputs), mask, mask, tuple(example_ids), labels, identities=identities)

    def observe(self, batch: Batch) -> Observation:
        """Keeps as state what attention averages and what goes around it."""
        states, rest = self.formula.read(batch.inputs, batch.mask.double())
        attention = attend(self.formula.scores(batch.inputs, batch.mask), batch.mask)
        probs = probabilities(attention, states, rest)
        return Observation(self, batch, probs, (attention[:, None, None],), (states, rest))

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        return observation.batch.mask[:, None]

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        return values[:, 0]

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        states, rest = observation.state
        weights = attention[0][:, :, 0, 0]
        logits = (weights.transpose(0, 1) @ states).transpose(0, 1) + rest
        return logits.softmax(-1)

    # Capabilities

    def get_states(self, observation: Observation, site: Site) -> Tensor:
        return observation.state[0]

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        return (observation.state[0][:, None],)

    def replay_interchange(
        self, observation: Observation, site: Site, units: Tensor, states: Mapping[int, Tensor]
    ) -> Tensor:
        own, rest = observation.state
        places = units[..., None, None].expand(*units.shape, 1, own.shape[-1])
        new = states[0].expand(len(units), -1, -1, -1)
        exchanged = own.expand(len(units), *own.shape).scatter(2, places, new)
        return probabilities(observation.attention[0][:, 0, 0], exchanged, rest)

    def compute_token_logits(self, observation: Observation) -> Tensor:
        """What goes around attention is part of every word's logits: weights sum to 1."""
        states, rest = observation.state
        return states + rest[:, None]

    def get_readout_bias(self) -> Tensor:
        return torch.zeros(len(self.label_names), dtype=torch.float64)

    def compute_gradient_times_input(self, observation: Observation, target: Tensor) -> Tensor:
        """Gradient × input of what words say; attention is held (Jain & Wallace 2019)."""
        present = observation.batch.mask.double().requires_grad_()
        with torch.enable_grad():
            states, rest = self.formula.read(observation.batch.inputs, present)
            probs = probabilities(observation.attention[0][:, 0, 0], states, rest)
            (slope,) = torch.autograd.grad(
                compute_shifted_probability(probs, target).sum(), present
            )
        return slope * observation.batch.mask

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """In closed form: p (h_target − Σ_k p_k h_k)."""
        states, _ = observation.state
        probs = observation.probs
        explained = target[:, None, None].expand(-1, states.shape[1], 1)
        mean = (states * probs[:, None]).sum(-1)
        above_mean = states.gather(-1, explained)[..., 0] - mean
        return [(probs.gather(-1, target[:, None]) * above_mean)[:, None, None]]

    def compute_leave_one_out(self, observation: Observation) -> Tensor:
        n_texts, n_keys = observation.batch.mask.shape
        each = torch.eye(n_keys, dtype=torch.bool)[:, None].expand(-1, n_texts, -1)
        return self.erase_inputs(observation, each).transpose(0, 1)

    def read_unit_contents(self, observation: Observation) -> list[dict[int, Tensor]]:
        """Every word's row of the table: all columns, one after the other."""
        rows = _stack_columns(observation.batch.inputs)
        masks = observation.batch.mask
        return [
            {position: text_rows[position] for position in mask.nonzero()[:, 0].tolist()}
            for text_rows, mask in zip(rows, masks, strict=True)
        ]

    def exchange_inputs(
        self,
        observation: Observation,
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Tensor]],
    ) -> Tensor:
        """See the protocol; a word keeps its place, and gets another word's row of the table."""
        batch = observation.batch
        original = _stack_columns(batch.inputs)
        new = original.clone()
        for text, rows in enumerate(replacements):
            for position, row in rows.items():
                new[text, position] = row
        n_copies, n_texts, _ = exchanged.shape
        table = torch.where(exchanged[..., None], new, original).flatten(0, 1)
        mask = batch.mask.repeat(n_copies, 1)
        words = _split_columns(table, batch.inputs) | {"mask": mask}
        states, rest = self.formula.read(words, mask.double())
        probs = probabilities(attend(self.formula.scores(words, mask), mask), states, rest)
        return probs.unflatten(0, (n_copies, n_texts))

    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """See the protocol; there is no mask token, so words are always deleted."""
        batch = observation.batch
        kept = (batch.mask & ~erased).flatten(0, -2)
        n_copies = len(kept) // len(batch.mask)
        order = (~kept).to(torch.int8).argsort(dim=-1, stable=True)
        text = torch.arange(len(batch.mask)).repeat(n_copies)[:, None]
        words = {name: column[text, order] for name, column in batch.inputs.items()}
        mask = kept.gather(-1, order)
        states, rest = self.formula.read(words, mask.double())
        probs = probabilities(attend(self.formula.scores(words, mask), mask), states, rest)
        return probs.unflatten(0, erased.shape[:-1])


def _stack_columns(inputs: Mapping[str, Tensor]) -> Tensor:
    """All columns of the words' table but the mask, [texts, words, columns]."""
    columns = [values for name, values in sorted(inputs.items()) if name != "mask"]
    return torch.cat([values.double().reshape(*values.shape[:2], -1) for values in columns], -1)


def _split_columns(table: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The columns of a table by name, in the shapes that the inputs have."""
    names = [name for name in sorted(inputs) if name != "mask"]
    widths = [inputs[name][0, 0].numel() for name in names]
    parts = zip(names, table.split(widths, -1), strict=True)
    return {name: part.reshape(*table.shape[:2], *inputs[name].shape[2:]) for name, part in parts}
