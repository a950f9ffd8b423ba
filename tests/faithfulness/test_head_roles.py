"""Compare head roles with loops over query rows, and check them on pure patterns."""

import numpy as np
import pytest
import torch

from hf_attnprobe.faithfulness.head_roles import (
    ATTENTION_PATTERNS,
    find_pattern_positions,
    head_roles,
)
from hf_attnprobe.protocol import AttentionModelBase, Batch, Observation, Site
from tests.helpers import tiny_models


IDS = torch.tensor([9, 5, 6, 7, 8, 5, 6, 3, 7, 4, 6, 5, 6])
UNITS = torch.tensor([-1, 0, 0, 0, 1, 1, 1, -1, -1, -1, -1, -1, -1])
ROWS = torch.arange(6, 12)  # behind the passage: the answer is the last two tokens
N_ANSWER = 2


class Written(AttentionModelBase):
    """Attention by token as it is written down, [heads, rows, tokens] per layer."""

    def __init__(self, *layers):
        self.layers = layers

    def sites(self):
        return [Site(k, h) for k, layer in enumerate(self.layers) for h in range(len(layer))]

    def get_row_positions(self, observation):
        return ROWS

    def find_answer_rows(self, observation):
        return len(IDS) - 1 - N_ANSWER <= ROWS

    def read_token_attention(self, observation, read):
        return [read(k, layer, layer) for k, layer in enumerate(self.layers)]

    def lacks(self, capability, site=None):
        return None

    def prepare(self, inputs, example_ids, labels=None):
        raise NotImplementedError

    observe = get_visible_keys = select_row = replay = prepare


def compute_scores(model):
    inputs = {"input_ids": IDS[None], "unit_ids": UNITS[None]}
    none = torch.zeros(1, 4, dtype=torch.bool)
    observation = Observation(model, Batch(inputs, none, none, (0,)), torch.zeros(1, 2), ())
    return {
        site: {
            role: float(getattr(head_roles(observation, site), role)[0])
            for role in ATTENTION_PATTERNS
        }
        for site in model.sites()
    }


def draw_weights(n_heads=3, seed=0):
    weights = tiny_models.drawn(n_heads, len(ROWS), len(IDS) - 1, seed=seed).sigmoid()
    seen = torch.arange(len(IDS) - 1) <= ROWS[:, None]
    weights = weights.pow(3) * seen
    return weights / weights.sum(-1, keepdim=True)


def score_with_loops(weights):
    """The definitions, one row and one token at a time."""
    ids, rows = IDS.tolist(), ROWS.tolist()
    result = {role: [] for role in ATTENTION_PATTERNS}
    for r, p in enumerate(rows):
        w = weights[r].tolist()
        result["previous_token"].append(w[p - 1])
        result["first_token"].append(w[0] + 1 - sum(w))
        earlier = [q for q in range(p) if ids[q] == ids[p]]
        if earlier:
            result["duplicate_token"].append(sum(w[q] for q in earlier))
            result["induction"].append(sum(w[q + 1] for q in earlier))
        answer = ids[p + 1]
        copies = [q for q in range(len(ids) - 1) if ids[q] == answer and UNITS[q] >= 0]
        if p >= len(ids) - 1 - N_ANSWER and copies:
            result["retrieval"].append(int(np.argmax(w)) in copies)
    return {role: np.mean(values) for role, values in result.items()}


def test_scores_are_the_definitions_in_every_layer_and_head():
    layers = draw_weights(3), 0.7 * draw_weights(2, seed=1)  # the second has an explicit sink
    result = compute_scores(Written(*layers))
    assert len(result) == 5
    for site, scores in result.items():
        expected = score_with_loops(layers[site.layer][site.head])
        assert scores == pytest.approx(expected)


@pytest.mark.parametrize("role", range(3))
def test_a_head_that_only_looks_there_scores_one(role):
    positions = find_pattern_positions(IDS[:-1], ROWS)[role].double()
    pure = positions / positions.sum(-1, keepdim=True).clamp_min(1)
    pure[:, 0] += 1 - pure.sum(-1)  # a row without such a token looks at the sink
    scores = compute_scores(Written(pure[None]))[Site(0, 0)]
    assert scores[ATTENTION_PATTERNS[role]] == pytest.approx(1)


def test_a_head_that_copies_retrieves():
    weights = torch.zeros(1, len(ROWS), len(IDS) - 1, dtype=torch.float64)
    weights[..., 0] = 1
    assert compute_scores(Written(weights))[Site(0, 0)]["retrieval"] == 0
    for row in (-2, -1):
        weights[0, row] = 0
        place = int(((IDS[ROWS[row] + 1] == IDS) & (UNITS >= 0)).int().argmax())
        weights[0, row, place] = 1
    assert compute_scores(Written(weights))[Site(0, 0)]["retrieval"] == 1
