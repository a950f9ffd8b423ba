"""A prompt with its answer, its units (such as sentences), and the rows that tests may edit.

A row is a query token, and its attention weights are summed over the tokens of each unit. Tests
therefore see one *column* per unit, with summed weights, and not one key per token. An edit assigns
new sums to the columns. Within a unit, the weights keep the proportions that the model computes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.adapters.transformer.attention_hooks import find_visible_keys
from hf_attnprobe.adapters.transformer.task_heads import (
    TaskHead,
    compute_candidate_scores,
    count_candidate_words,
)
from hf_attnprobe.functional.predictions import Prediction


ROW_CHOICES = ("behind", "answer", "all")
"""Possible sets of attention rows that tests edit, as values of the option ``rows``.

Each token of a prompt has one row, which contains its attention to all tokens.

- "behind": all rows after the passage.
- "answer": only the rows that predict the answer.
- "all": the rows after the passage and the rows within it.
"""
N_EXTRA_COLUMNS = 2
"""Number of extra attention columns, which follow the columns for the units of a passage.

The first extra column is for all tokens outside the units, such as the question. The second one is
for the attention sink, which is usually the first token.
"""


class KeyColumns(NamedTuple):
    """Assignment of keys (tokens) to columns (units, other tokens, and the attention sink).

    Attributes:
        column_of_key: Column of each key, int `[keys]`.
        membership: 1 if a key belongs to a column, otherwise 0, `[keys, columns]`.
        sink: Index of the attention sink's key. This is the model's explicit sink if it has one,
            and otherwise the first token, even if that token is a unit by itself.
    """

    column_of_key: Tensor
    membership: Tensor
    sink: int

    def sum_by_column(self, weights: Tensor) -> Tensor:
        """Sum attention weights over the tokens of each unit.

        There is one column for each unit, one for all other tokens, and one for the attention
        sink. The sums are computed in float32 or more.

        Args:
            weights: Attention weights of each token, `[..., keys]`.

        Returns:
            Sums `[..., columns]`.
        """
        precise = torch.promote_types(weights.dtype, torch.float32)
        return weights.to(precise) @ self.membership.to(precise)

    def spread_to_keys(self, values: Tensor) -> Tensor:
        """Copy the value of each unit to all its tokens.

        Args:
            values: One value per unit and for the two other columns, `[..., columns]`.

        Returns:
            One value per token, `[..., keys]`.
        """
        # A product with ones and zeros is exact, and faster than indexing.
        return values @ self.membership.T.to(values.dtype)


class Prompt:
    """A prompt with its answer, and the positions of units, answer and editable rows.

    Args:
        inputs: Inputs for one prompt, see `LanguageModelAdapter.prepare`.
        rows: One of `ROW_CHOICES`.

    Attributes:
        ids: Token ids without the last token, whose row predicts nothing, int `[1, tokens]`.
        n_answer: Token count of the answer. The last `n_answer` rows predict these tokens.
        first_row: The first row that tests may edit.
        unit_ids: Unit index of each token, or -1 outside all units, int `[tokens]`.
        n_columns: Number of columns, including the extra columns.
    """

    def __init__(self, inputs: Mapping[str, Tensor], rows: str) -> None:
        self.ids = inputs["input_ids"][:, :-1]
        self.n_answer = int(inputs["labelled"].sum())
        self.unit_ids = inputs["unit_ids"][0, :-1]
        n_units = int(self.unit_ids.max()) + 1
        self.n_columns = n_units + N_EXTRA_COLUMNS
        is_in_unit = self.unit_ids >= 0
        unit_positions = is_in_unit.nonzero()[:, 0].tolist()
        first_answer_row = self.n_tokens - self.n_answer
        first_rows = {
            "behind": unit_positions[-1] + 1,
            "answer": first_answer_row,
            "all": unit_positions[0],
        }
        self.first_row = min(first_rows[rows], first_answer_row)
        self._columns: dict[int, KeyColumns] = {}

    @property
    def n_tokens(self) -> int:
        """Number of tokens, not counting the last token."""
        return self.ids.shape[1]

    @property
    def n_rows(self) -> int:
        """Number of rows that tests may edit."""
        return self.n_tokens - self.first_row

    @property
    def _begins_with_unit(self) -> bool:
        """Whether the first token is a unit by itself, which therefore keeps its own column."""
        first_unit = self.unit_ids[0]
        return bool(first_unit >= 0) and int((self.unit_ids == first_unit).sum()) == 1

    def find_remaining_tokens(self, units: Sequence[int]) -> Tensor:
        """Find the tokens that remain after some units are deleted.

        Args:
            units: Indices of the deleted units.

        Returns:
            Positions of the remaining tokens, int `[remaining tokens]`.
        """
        is_deleted = torch.isin(self.unit_ids, torch.tensor(units, device=self.ids.device))
        return (~is_deleted).nonzero()[:, 0]

    def find_first_changed_row(self, remaining: Tensor) -> int:
        """Find the first token of a shortened prompt whose hidden states must be computed again.

        This is the first token after a deletion, or the first token that predicts the answer,
        whichever comes first. All tokens before it can be taken from a cache.

        Args:
            remaining: Original positions of the remaining tokens, int `[remaining tokens]`.
        """
        # All tokens after the first deletion have a new position.
        new_positions = torch.arange(len(remaining), device=remaining.device)
        n_unchanged = int((remaining == new_positions).sum())
        first_answer_row = len(remaining) - self.n_answer
        return min(n_unchanged, first_answer_row)

    def get_columns(self, n_keys: int) -> KeyColumns:
        """Assign each token (key) to a unit, to the other tokens or to the attention sink.

        The result is cached.

        Args:
            n_keys: Number of keys. It is larger than the token count if the model has an explicit
                attention sink.
        """
        if n_keys not in self._columns:
            other_column, sink_column = self.n_columns - 2, self.n_columns - 1
            column_of_key = self.unit_ids.where(self.unit_ids >= 0, other_column)
            has_explicit_sink = n_keys > self.n_tokens
            if has_explicit_sink:
                n_sinks = n_keys - self.n_tokens
                column_of_key = F.pad(column_of_key, (0, n_sinks), value=sink_column)
            elif not self._begins_with_unit:
                first_key = column_of_key.new_zeros(1)
                column_of_key = column_of_key.index_fill(0, first_key, sink_column)
            membership = F.one_hot(column_of_key, self.n_columns).float()
            sink = n_keys - 1 if has_explicit_sink else 0
            self._columns[n_keys] = KeyColumns(column_of_key, membership, sink)
        return self._columns[n_keys]


RowEdit = Callable[[int, Tensor, Tensor, KeyColumns], Tensor]
"""Type of a function `edit(layer, weights, scores, columns)` that edits the last attention rows.

It receives the layer number, the rows' weights `[batch, heads, rows, keys]`, their scores before
the softmax in the same shape, and the assignment of keys to columns. It returns the new weights.
"""


def rescale_columns(
    weights: Tensor, scores: Tensor, columns: KeyColumns, new_sums: Tensor
) -> Tensor:
    """Change the attention to each unit to a new sum, by scaling the weights of its tokens.

    If a unit had no attention, its new sum is spread evenly over its visible tokens.

    Args:
        weights: Attention weights of all tokens, `[batch, heads, rows, keys]`.
        scores: Scores before the softmax, in the same shape.
        columns: Assignment of tokens (keys) to units (columns).
        new_sums: New sum of the weights of each unit, `[batch, heads, rows, columns]`.

    Returns:
        Edited weights `[batch, heads, rows, keys]`.
    """
    # Multiply each column's weights by new sum / old sum.
    sums = columns.sum_by_column(weights)
    is_empty = sums <= torch.finfo(sums.dtype).tiny
    factors = (new_sums / sums.masked_fill(is_empty, 1)).masked_fill(is_empty, 0)
    edited = weights * columns.spread_to_keys(factors)
    # A column without weight cannot be rescaled, so its new sum is spread evenly.
    is_filled = is_empty & ((new_sums != 0) | new_sums.requires_grad)
    if not is_filled.any():
        return edited
    visible = find_visible_keys(scores)
    n_visible = columns.sum_by_column(visible.to(new_sums.dtype)).clamp_min(1)
    even_weights = new_sums / n_visible
    return edited + columns.spread_to_keys(even_weights.masked_fill(~is_filled, 0)) * visible


def apply_knockout(
    weights: Tensor,
    scores: Tensor,
    columns: KeyColumns,
    factors: Tensor,
    operator: str,
) -> Tensor:
    """Block the attention to some units of a passage (knockout).

    The operator determines whether the removed weight is lost ("none"), divided among the other
    tokens ("renormalised"), or moved to the attention sink ("sink").

    Args:
        weights: Attention weights of all tokens, `[batch, heads, rows, keys]`.
        scores: Scores before the softmax, in the same shape.
        columns: Assignment of tokens (keys) to units (columns).
        factors: 0 for blocked units and 1 for all others, `[batch, heads, rows, columns]`.
        operator: One of `hf_attnprobe.protocol.KNOCKOUTS`.

    Returns:
        Edited weights `[batch, heads, rows, keys]`.
    """
    key_factors = columns.spread_to_keys(factors.to(weights.dtype))
    edited = weights * key_factors
    sum_before = weights.sum(-1, keepdim=True)
    sum_after = edited.sum(-1, keepdim=True)
    if operator == "renormalised":
        tiny = torch.finfo(sum_after.dtype).tiny
        return edited * (sum_before / sum_after.clamp_min(tiny))
    if operator == "sink":
        is_sink = torch.arange(edited.shape[-1], device=edited.device) == columns.sink
        receives_weight = is_sink & (key_factors > 0) & find_visible_keys(scores)
        return edited + (sum_before - sum_after) * receives_weight
    return edited


# --- The prediction: the tokens of the answer ----------------------------------------------------


class AnswerHead(TaskHead):
    """Task head that predicts an answer's tokens, with one distribution per answer token.

    The outcomes for each token are, in this order:

    - the answer's token,
    - the alternative answer's token, at the first token at which both answers differ,
    - the most likely other words,
    - the next most likely word,
    - all remaining words together.

    Each distribution is divided by the number of answer tokens, so that all outcomes sum to 1.
    Merging words can only reduce a total variation distance, so computed distances are lower
    bounds.

    Args:
        n_words: Vocabulary size.
    """

    output = "logits [batch, tokens, words]"

    def __init__(self, n_words: int) -> None:
        n_candidates = count_candidate_words(n_words)
        super().__init__(
            Prediction(
                "answer",
                f"the tokens of the answer: each is one of its {n_candidates} most likely "
                "candidates, the next most likely word, or any other word",
                n_parts=None,
                n_outcomes=n_candidates + 2,
                has_rest=True,
            )
        )

    def can_read(self, result: Any) -> bool:
        """Check whether the model's output has logits for each token."""
        logits = getattr(result, "logits", None)
        return logits is not None and logits.dim() == 3

    def compute_scores(self, result: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute the scores of the candidate words for each token of the answer.

        The answer is predicted at the last tokens of the prompt.

        Args:
            result: The model's output.
            inputs: The model's inputs. `candidate_ids` contains the candidate words for each answer
                token, int `[batch, answer tokens, words]`. `n_padded` contains the number of
                padding rows after the answer, int `[batch]`; without it, there is no padding.

        Returns:
            Scores `[batch, answer tokens · outcomes]`. Without `candidate_ids`, these are all
            logits.
        """
        all_logits = result.logits
        candidates = inputs.get("candidate_ids")
        if candidates is None:
            return all_logits.flatten(1)
        n_read = candidates.shape[1]
        logits = all_logits[:, -n_read:]
        n_padded = inputs.get("n_padded")
        if n_padded is not None:
            answer_ends = all_logits.shape[1] - n_padded[:, None]
            offsets = torch.arange(-n_read, 0, device=answer_ends.device)
            text_indices = torch.arange(len(all_logits), device=answer_ends.device)[:, None]
            logits = all_logits[text_indices, answer_ends + offsets]
        text_candidates = candidates.expand(len(logits), -1, -1)
        # Texts are processed one by one, because a copy of all logits would exceed the CPU's cache.
        text_scores = list(map(compute_candidate_scores, logits, text_candidates))
        return torch.stack(text_scores).flatten(1)

    def compute_probs(self, scores: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Convert scores to the probabilities of the candidate words for each answer token.

        They are divided by the number of answer tokens, so that they sum to 1. Probabilities are
        computed in float64, so that small ones do not become 0.
        """
        n_answer = inputs["candidate_ids"].shape[1]
        probs = scores.unflatten(-1, (n_answer, -1)).double().softmax(-1)
        return probs.flatten(-2) / n_answer


def select_candidate_words(logits: Tensor, answer: Tensor, alternative: Tensor) -> Tensor:
    """Select the candidate words for each token of an answer.

    Args:
        logits: Logits `[tokens, words]`.
        answer: Token ids in the answer, int `[tokens]`.
        alternative: Token ids in the alternative answer, int `[tokens]`; -1 for none.

    Returns:
        Token ids, int `[tokens, candidates]`: the answer's token, the alternative answer's token if
        there is one, and the most likely words.
    """
    # To put the answer's token first and the alternative's token second, they get the largest and
    # the second largest possible logit.
    ranking_logits = logits.scatter(-1, answer[:, None], torch.inf)
    rows = (alternative >= 0).nonzero()[:, 0]
    ranking_logits[rows, alternative[rows]] = torch.finfo(logits.dtype).max
    return ranking_logits.topk(count_candidate_words(logits.shape[-1])).indices
