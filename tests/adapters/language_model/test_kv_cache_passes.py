"""Passes with a key-value cache: prompts side by side are as each alone."""

from functools import partial

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.language_model import kv_cache_passes as passes
from tests.adapters.language_model.test_adapter import FAMILIES, WITHOUT_CACHE, decoder, observed
from tests.helpers import transformer_families
from tests.helpers.manual_passes import create_prompt


UNLIKE = [
    create_prompt(),
    create_prompt(behind=6, seed=8),
    create_prompt(n_units=5, n_answer=1, seed=9),
    create_prompt(before=0),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_side_by_side_are_as_each_alone(name, monkeypatch):
    """Of other lengths, units and answers: padded in front and behind in one pass."""
    small = transformer_families.SMALL
    for positions in ("max_position_embeddings", "n_positions"):  # as many as the longest has
        monkeypatch.setitem(small, positions, max(prompt.ids.shape[1] for prompt in UNLIKE))
    adapter = wrap(decoder(name))
    monkeypatch.setattr(passes, "MAX_DELETION_TOKENS_ON_CPU", 4096)
    monkeypatch.setattr(passes, "MAX_LENGTH_DIFFERENCE", 1)
    sizes, as_one = [], adapter._run_joined
    monkeypatch.setattr(
        adapter, "_run_joined", lambda some: sizes.append(len(some)) or as_one(some)
    )

    def work(prompt):
        own, draws = observed(adapter, prompt), torch.Generator().manual_seed(len(prompt.units))
        edits = {layer: some.flip(-1)[None] for layer, some in enumerate(own.attention)}
        shape = (2, 1, *own.attention[0].shape[1:])
        stays = {layer: torch.rand(shape, generator=draws) for layer in edits}
        found = [adapter.compute_leave_one_out(own)[0, :, None], adapter.replay(own, edits)]
        found.append(adapter.replay_masked(own, stays, operator="renormalised"))
        if adapter.keeps_positions:
            content = own.batch.content_mask[None]
            found.append(adapter.erase_inputs(own, content, operator="gap"))
        return [adapter.compute_log_prob(own, one) for one in (own.probs, *found)]

    alone = [work(prompt) for prompt in UNLIKE]
    sizes.clear()
    together = adapter.run_jobs_together([partial(work, prompt) for prompt in UNLIKE])
    for found, expected in zip(together, alone, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert one.allclose(other, rtol=0, atol=1e-5)
        assert all((one - expected[0]).abs().max() > 1e-3 for one in expected[1:])
    assert adapter.can_join_prompts == (name not in {*WITHOUT_CACHE, "BloomForCausalLM"})
    # of each prompt one edit of each kind
    assert (sizes.count(len(UNLIKE)) >= 2) == adapter.can_join_prompts, sizes
