"""What does a head look at, whatever comes of it?

Scores of attention by token, in the rows behind the passage, of heads whose patterns have
names. What a head causes stands beside them (``head_ablation``): a role is no effect.

Question: does the head look where heads of a known role look?
Measure:  the weight that a row at position p, which holds token x_p, gives to
Previous: position p − 1 (previous-token heads; Elhage et al. 2021).
Duplicate: earlier positions of the same token, x_q = x_p (Wang et al. 2023, "IOI").
Induction: the token behind an earlier x_q = x_p, position q + 1 (prefix matching; Olsson et
          al. 2022, who repeat random tokens; these are a text's own).
Sink:     the first token, and an explicit sink (Xiao et al. 2024).
Retrieval: whether, in the row that predicts a token of the answer, the head's largest weight
          is on this very token in the passage (Wu et al. 2025, "Retrieval Head").
Rows:     the mean over the rows behind the passage in which there is such a token; of
          retrieval over the tokens of the answer that are in the passage.
Reading:  near 1 the head does that wherever it can, 0 it never does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.core.readings import TestReadings, share
from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.protocol import AnswersFromPassage, Observation, Site


READINGS: TestReadings = {
    "previous_token": "the head gives the token before {mean:.2f} of its attention",
    "duplicate_token": "the head gives earlier copies of a token {mean:.2f} of its attention",
    "induction": (
        "the head gives what followed earlier copies of a token {mean:.2f} of its attention"
    ),
    "first_token": "the head gives the first token {mean:.2f} of its attention",
    "retrieval": share(
        "in {mean:.0%} of the answer's tokens the head looks most at this token in the passage"
    ),
}
ROLES = tuple(READINGS)


@dataclass(frozen=True)
class HeadRolesResult:
    """All [batch], in [0, 1]; NaN where no row has such a token."""

    previous_token: Tensor
    duplicate_token: Tensor
    induction: Tensor
    first_token: Tensor
    retrieval: Tensor


@register_test(
    readings=READINGS,
    does="says which heads look at copies, at what followed them, before, or at the sink",
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
    """Scores one head by where it looks; all heads are scored in one pass of a text.

    Args:
        seed: unused, nothing here is random.
    """
    scores = observation.remember("head roles", lambda: _all_heads(observation))
    return HeadRolesResult(*scores[site.layer][:, site.head, None])


def _all_heads(observation: Observation) -> list[Tensor]:
    """Returns the scores of every head, per layer [roles, heads]."""
    model = observation.model.require(AnswersFromPassage)
    ids = observation.batch.inputs["input_ids"][0]
    is_unit = observation.batch.inputs["unit_ids"][0] >= 0
    rows = model.row_positions(observation)
    n_tokens = len(ids) - 1
    ids_read = ids[:n_tokens]
    wanted = looked_for(ids_read, rows)

    next_ids = ids[rows + 1]
    in_passage = is_unit[:n_tokens]
    copied = (ids_read == next_ids[:, None]) & in_passage
    copied &= model.answer_rows(observation)[:, None]

    def read(layer: int, weights: Tensor, values: Tensor) -> Tensor:
        of_roles = [mean_weight(weights, positions) for positions in wanted]
        missing = 1 - weights.sum(-1)
        explicit = missing.mean(-1)
        first = weights[..., 0].mean(-1) + explicit
        retrieval = _retrieval(weights, copied)
        return torch.stack([*of_roles, first, retrieval])

    return model.token_attention(observation, read)


def looked_for(ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns where previous-token, duplicate and induction heads look, bool [rows, tokens].

    Args:
        ids: int [tokens].
        rows: positions of the rows, int [rows].
    """
    place = torch.arange(len(ids), device=ids.device)
    own_place = rows[:, None]
    previous = place == own_place - 1
    is_same = ids == ids[rows, None]
    is_earlier = place < own_place
    duplicate = is_same & is_earlier
    induction = torch.zeros_like(duplicate)
    induction[:, 1:] = duplicate[:, :-1]
    return previous, duplicate, induction


def mean_weight(weights: Tensor, positions: Tensor) -> Tensor:
    """Weight on some positions, averaged over the rows that have any.

    Args:
        weights: [heads, rows, tokens].
        positions: bool [rows, tokens].

    Returns:
        [heads]; NaN where no row has any.
    """
    some = positions.any(-1)
    return (weights * positions).sum(-1)[:, some].mean(-1)


def _retrieval(weights: Tensor, copied: Tensor) -> Tensor:
    """Share of rows whose largest weight is on a copy, bool [rows, tokens]; [heads]."""
    some = copied.any(-1)
    largest = weights.argmax(-1, keepdim=True)
    hits = copied.expand(len(weights), -1, -1).gather(-1, largest)[..., 0]
    return hits[:, some].to(weights.dtype).mean(-1)
