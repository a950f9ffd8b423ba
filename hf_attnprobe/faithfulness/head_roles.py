"""Test ``head_roles``: which kinds of token does a head attend to?

The test scores each head for well-known attention patterns. A pattern does not imply an effect on
the answer, which ``head_ablation`` measures.

Question
    Does the head attend to the tokens that heads with a known role attend to?

Measure
    Attention from the query at position p, with token x_p, to certain tokens. It is averaged over
    all query rows after the passage that have such a token.

    - Previous token: position p − 1 (Elhage et al. 2021).
    - Duplicate token: earlier positions q of the same token, x_q = x_p (Wang et al. 2023, "IOI").
    - Induction: the position q + 1 after an earlier copy x_q = x_p (prefix matching; Olsson et al.
      2022). Olsson et al. repeat random tokens, whereas this test uses the repetitions in a text.
    - First token: the first token, plus an explicit attention sink (Xiao et al. 2024).
    - Retrieval: 1 if, in the row that predicts a token of the answer, the largest weight is on the
      same token in the passage (Wu et al. 2025, "Retrieval Head"). It is averaged over the tokens
      of the answer that occur in the passage.

Interpretation
    Near 1: the head shows the pattern wherever it can. 0: it never does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, make_share_reading
from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.protocol import AnswersFromPassage, Observation, Site


READINGS: TestReadings = {
    "previous_token": "the head gives {mean:.2f} of its attention to the previous token",
    "duplicate_token": "the head gives {mean:.2f} of its attention to earlier copies of a token",
    "induction": (
        "the head gives {mean:.2f} of its attention to the tokens after earlier copies of a token"
    ),
    "first_token": "the head gives {mean:.2f} of its attention to the first token",
    "retrieval": make_share_reading(
        "for {mean:.0%} of the answer's tokens, the head attends most to the same token in the "
        "passage"
    ),
}
ATTENTION_PATTERNS = tuple(READINGS)
"""Names of the attention patterns that are scored for each head. For example, ``previous_token`` is
attention to the previous token."""


@dataclass(frozen=True)
class HeadRolesResult:
    """Statistics from the test ``head_roles``, tensors ``[batch]`` in [0, 1].

    A score is NaN if no query row has a token to which the pattern applies.

    Attributes:
        previous_token: Mean attention to the previous token.
        duplicate_token: Mean attention to earlier copies of the query's token.
        induction: Mean attention to the tokens after earlier copies.
        first_token: Mean attention to the first token and to an explicit attention sink.
        retrieval: Share of the answer's tokens that the head retrieves from the passage.
    """

    previous_token: Tensor
    duplicate_token: Tensor
    induction: Tensor
    first_token: Tensor
    retrieval: Tensor


@register_test(
    readings=READINGS,
    summary="detects heads that attend to previous, repeated, following or first tokens",
    needs=(AnswersFromPassage,),
    default="on request",
)
@torch.no_grad()
def head_roles(
    observation: Observation,
    site: Site,
    options: NoOptions = NoOptions(),
    *,
    seed: int = 0,
) -> HeadRolesResult:
    """Measure how strongly a head shows well-known patterns, such as attending to the previous token.

    The first call scores all heads in one forward pass. Later calls for the same prompt use the
    stored scores.

    Args:
        observation: Model outputs for a single prompt.
        site: Head.
        options: Unused, because the test has no options.
        seed: Unused, because the test is deterministic.

    Returns:
        Score of each pattern.
    """
    scores = observation.remember("head roles", lambda: _score_all_heads(observation))
    return HeadRolesResult(*scores[site.layer][:, site.head, None])


def _score_all_heads(observation: Observation) -> list[Tensor]:
    """Compute how strongly each head shows each attention pattern.

    The patterns are attention to the previous token, to an earlier copy of the current token, to
    the token after such a copy (induction), to the first token, and to the token that is predicted
    next (retrieval).

    Returns:
        Scores ``[patterns, heads]`` for each layer.
    """
    model = observation.model.require(AnswersFromPassage)
    token_ids = observation.batch.inputs["input_ids"][0]
    is_unit = observation.batch.inputs["unit_ids"][0] >= 0
    rows = model.get_row_positions(observation)
    # The last token is predicted, but never attended to.
    n_attended = len(token_ids) - 1
    attended_ids = token_ids[:n_attended]
    positions_by_pattern = find_pattern_positions(attended_ids, rows)

    # Retrieval heads attend to a token in the passage that equals the token to be predicted. Only
    # rows that predict a token of the answer count.
    next_ids = token_ids[rows + 1]
    in_passage = is_unit[:n_attended]
    is_copy = (attended_ids == next_ids[:, None]) & in_passage
    is_copy &= model.find_answer_rows(observation)[:, None]

    def score_layer(layer: int, weights: Tensor, values: Tensor) -> Tensor:
        pattern_scores = [
            average_pattern_attention(weights, positions) for positions in positions_by_pattern
        ]
        # If a layer has an explicit attention sink, the weights on the tokens sum to less than 1.
        sink_weight = (1 - weights.sum(-1)).mean(-1)
        first_token = weights[..., 0].mean(-1) + sink_weight
        retrieval = _score_retrieval(weights, is_copy)
        return torch.stack([*pattern_scores, first_token, retrieval])

    return model.read_token_attention(observation, score_layer)


def find_pattern_positions(token_ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions to which previous-token, duplicate-token and induction heads attend.

    In "A B C A", the last token is "A". A previous-token head attends to "C", a duplicate-token head
    to the first "A", and an induction head to "B", which follows the first "A".

    Args:
        token_ids: Token ids, int ``[tokens]``.
        rows: Positions of the tokens that attend, int ``[rows]``.

    Returns:
        Three masks of positions, in this order, each bool ``[rows, tokens]``.
    """
    position = torch.arange(len(token_ids), device=token_ids.device)
    row_position = rows[:, None]
    previous = position == row_position - 1
    is_same_token = token_ids == token_ids[rows, None]
    is_earlier = position < row_position
    duplicate = is_same_token & is_earlier
    # Induction heads attend to the token after an earlier copy, so the mask is shifted by one.
    induction = torch.zeros_like(duplicate)
    induction[:, 1:] = duplicate[:, :-1]
    return previous, duplicate, induction


def average_pattern_attention(weights: Tensor, positions: Tensor) -> Tensor:
    """Compute each head's mean attention to the positions of a pattern.

    The attention is summed over the positions in a row, and averaged over all rows that have at
    least one such position.

    Args:
        weights: Attention ``[heads, rows, tokens]``.
        positions: Positions of the pattern in each row, bool ``[rows, tokens]``.

    Returns:
        Mean attention ``[heads]``; NaN if no row has such a position.
    """
    row_sums = (weights * positions).sum(-1)
    has_position = positions.any(-1)
    return row_sums[:, has_position].mean(-1)


def _score_retrieval(weights: Tensor, is_copy: Tensor) -> Tensor:
    """Return the share of rows in which a head attends most to the token to be predicted.

    Args:
        weights: Attention ``[heads, rows, tokens]``.
        is_copy: Tokens in the passage that equal the token to be predicted, bool
            ``[rows, tokens]``. Rows without such a token are not counted.
    """
    has_copy = is_copy.any(-1)
    largest = weights.argmax(-1, keepdim=True)
    # For each head and row: whether the token with the largest weight is such a copy.
    hits = is_copy.expand(len(weights), -1, -1).gather(-1, largest)[..., 0]
    return hits[:, has_copy].to(weights.dtype).mean(-1)
