"""A prompt with its answer: which key belongs to which column, and which rows may move.

An edit gives units other totals: within a unit the proportions stay those that the pass computes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.adapters.transformer.attention_hooks import find_visible_keys
from hf_attnprobe.adapters.transformer.task_heads import (
    TaskHead,
    count_candidate_words,
    compute_candidate_scores,
)
from hf_attnprobe.functional.predictions import Prediction


ROW_CHOICES = ("behind", "answer", "all")
"""Which rows tests may move: all behind the passage, those that predict the answer, or those
inside of the passage too."""
N_EXTRA_COLUMNS = 2
"""Columns behind the units: everything else, and the sink."""


class KeyColumns(NamedTuple):
    """The columns of attention that keys belong to.

    Attributes:
        of_keys: int [keys].
        members: [keys, columns], 1 where a key belongs to a column, else 0.
        sink: the key of the sink: the explicit one, or the first token, of a unit of its own too.
    """

    column_of_key: Tensor
    members: Tensor
    sink: int

    def sum_by_column(self, weights: Tensor) -> Tensor:
        """[..., keys] -> [..., columns], in float32 or more."""
        precise = torch.promote_types(weights.dtype, torch.float32)
        return weights.to(precise) @ self.members.to(precise)

    def spread_to_keys(self, values: Tensor) -> Tensor:
        """[..., columns] -> [..., keys]: of every key its column's value."""
        # a product with ones and zeros is exact, and faster than an index
        return values @ self.members.T.to(values.dtype)


class Prompt:
    """Places in a prompt with its answer.

    Attributes:
        ids: int [1, tokens], the tokens that rows are computed of: all but the last.
        n_answer: number of tokens of the answer; as many of the last rows predict them.
        start: the first row that tests may move.
        unit_ids: int [tokens], −1 in no unit.
        n_columns: number of units, and ``N_EXTRA_COLUMNS``.
    """

    def __init__(self, inputs: Mapping[str, Tensor], rows: str) -> None:
        self.ids = inputs["input_ids"][:, :-1]
        self.n_answer = int(inputs["labelled"].sum())
        self.unit_ids = inputs["unit_ids"][0, :-1]
        n_units = int(self.unit_ids.max()) + 1
        self.n_columns = n_units + N_EXTRA_COLUMNS
        in_unit = self.unit_ids >= 0
        of_units = in_unit.nonzero()[:, 0].tolist()
        predicting = self.n_tokens - self.n_answer
        first = {
            "behind": of_units[-1] + 1,
            "answer": predicting,
            "all": of_units[0],
        }
        self.first_row = min(first[rows], predicting)
        self._columns: dict[int, KeyColumns] = {}

    @property
    def n_tokens(self) -> int:
        return self.ids.shape[1]

    @property
    def n_rows(self) -> int:
        """Number of rows that tests may move."""
        return self.n_tokens - self.first_row

    @property
    def _begins_with_a_unit(self) -> bool:
        """Whether the first token is a whole unit, whose column it then is."""
        first = self.unit_ids[0]
        return bool(first >= 0) and int((self.unit_ids == first).sum()) == 1

    def find_remaining_tokens(self, units: Sequence[int]) -> Tensor:
        """The places of the tokens that are left without some units, int [n]."""
        gone = torch.isin(self.unit_ids, torch.tensor(units, device=self.ids.device))
        return (~gone).nonzero()[:, 0]

    def find_first_changed_row(self, left: Tensor) -> int:
        """The first row that differs, or is read, where only tokens at ``left`` are left."""
        # behind the first token that moved all have moved
        is_same = left == torch.arange(len(left), device=left.device)
        return min(int(is_same.sum()), len(left) - self.n_answer)

    def get_columns(self, n_keys: int) -> KeyColumns:
        """The columns of ``n_keys`` keys: one more than tokens where there is an explicit sink."""
        if n_keys not in self._columns:
            other, sink = self.n_columns - 2, self.n_columns - 1
            of_keys = self.unit_ids.where(self.unit_ids >= 0, other)
            is_explicit = n_keys > self.n_tokens
            if is_explicit:
                of_keys = F.pad(of_keys, (0, n_keys - self.n_tokens), value=sink)
            elif not self._begins_with_a_unit:
                of_keys = of_keys.index_fill(0, of_keys.new_zeros(1), sink)
            members = F.one_hot(of_keys, self.n_columns).float()
            self._columns[n_keys] = KeyColumns(of_keys, members, n_keys - 1 if is_explicit else 0)
        return self._columns[n_keys]


RowEdit = Callable[[int, Tensor, Tensor, KeyColumns], Tensor]
"""(layer, rows that may move [batch, heads, rows, keys], the same before the softmax, columns)
-> rows."""


def rescale_columns(weights: Tensor, scores: Tensor, columns: KeyColumns, new: Tensor) -> Tensor:
    """Weights whose columns have other totals, in the proportions that they have.

    Where a column had no weight its new total is spread evenly over its visible keys.

    Args:
        weights: [batch, heads, rows, keys].
        scores: the same before the softmax.
        columns: of the keys.
        new: [batch, heads, rows, columns].
    """
    totals = columns.sum_by_column(weights)
    is_empty = totals <= torch.finfo(totals.dtype).tiny
    factor = (new / totals.masked_fill(is_empty, 1)).masked_fill(is_empty, 0)
    edited = weights * columns.spread_to_keys(factor)
    filled = is_empty & ((new != 0) | new.requires_grad)
    if not filled.any():
        return edited
    visible = find_visible_keys(scores)
    even = new / columns.sum_by_column(visible.to(new.dtype)).clamp_min(1)
    return edited + columns.spread_to_keys(even.masked_fill(~filled, 0)) * visible


def apply_knockout(
    weights: Tensor,
    scores: Tensor,
    columns: KeyColumns,
    kept: Tensor,
    operator: str,
) -> Tensor:
    """Returns the weights times ``kept`` [batch, heads, rows, columns], see ``KNOCKOUTS``."""
    stays = columns.spread_to_keys(kept.to(weights.dtype))
    edited = weights * stays
    before = weights.sum(-1, keepdim=True)
    after = edited.sum(-1, keepdim=True)
    if operator == "renormalised":
        tiny = torch.finfo(after.dtype).tiny
        return edited * (before / after.clamp_min(tiny))
    if operator == "sink":
        is_sink = torch.arange(edited.shape[-1], device=edited.device) == columns.sink
        takes_rest = is_sink & (stays > 0) & find_visible_keys(scores)
        return edited + (before - after) * takes_rest
    return edited


# --- What is read of the answer ------------------------------------------------------------------


class AnswerHead(TaskHead):
    """The tokens of an answer: a distribution for each, divided by their number.

    Its entries: the token that was said, the other answer's where they part, the likeliest
    ones, then the next one, and all others together. What is merged can only make a total
    variation distance smaller: it is a lower bound.
    """

    output = "logits [batch, tokens, words]"

    def __init__(self, n_words: int) -> None:
        n_kept = count_candidate_words(n_words)
        super().__init__(
            Prediction(
                "answer",
                f"the tokens of the answer: of each its {n_kept} likeliest candidates, the "
                "next one, and the others as one",
                n_parts=None,
                n_outcomes=n_kept + 2,
                has_rest=True,
            )
        )

    def can_read(self, result: Any) -> bool:
        logits = getattr(result, "logits", None)
        return logits is not None and logits.dim() == 3

    def compute_scores(self, result: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns [batch, tokens · entries] of the last rows; without ``kept`` all logits.

        Behind them are ``n_padded`` rows of padding, int [batch], if any.
        """
        every = result.logits
        kept = inputs.get("kept")
        if kept is None:
            return every.flatten(1)
        n_read = kept.shape[1]
        logits = every[:, -n_read:]
        padded = inputs.get("n_padded")
        if padded is not None:
            ends = every.shape[1] - padded[:, None]
            from_end = torch.arange(-n_read, 0, device=ends.device)
            texts = torch.arange(len(every), device=ends.device)[:, None]
            logits = every[texts, ends + from_end]
        of_texts = kept.expand(len(logits), -1, -1)
        # One text after another: a copy of all their logits would not stay in the cache.
        each = list(map(compute_candidate_scores, logits, of_texts))
        return torch.stack(each).flatten(1)

    def compute_probs(self, scores: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """In float64, whose smallest probabilities have a logarithm."""
        n_answer = inputs["kept"].shape[1]
        each = scores.unflatten(-1, (n_answer, -1)).double().softmax(-1)
        return each.flatten(-2) / n_answer


def select_candidate_words(logits: Tensor, said: Tensor, other: Tensor) -> Tensor:
    """The words that are told apart: the said one, the other one, the likeliest.

    Shape: logits [tokens, words], said int [tokens], other int [tokens] (−1: none) ->
    int [tokens, n].
    """
    first = logits.scatter(-1, said[:, None], torch.inf)
    rows = (other >= 0).nonzero()[:, 0]
    first[rows, other[rows]] = torch.finfo(logits.dtype).max
    return first.topk(count_candidate_words(logits.shape[-1])).indices
