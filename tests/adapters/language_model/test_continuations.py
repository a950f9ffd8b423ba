"""Scores of several continuations after shortened prompts equal plain full passes."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.language_model.continuations import score_continuations
from tests.adapters.language_model.test_adapter import FAMILIES, decoder
from tests.helpers import tiny_language_models
from tests.helpers.manual_passes import create_prompt


PROMPT = create_prompt(n_units=4, behind=3)


def list_prompts():
    """List the token ids of the prompt without some of its units."""
    prompt_ids = PROMPT.ids[0, : -PROMPT.n_answer].tolist()
    prompts = []
    for removed_units in ([], [0], [1], [3], [0, 1, 2, 3], [1, 2, 3]):
        removed = {position for unit in removed_units for position in PROMPT.units[unit]}
        prompts.append([token for k, token in enumerate(prompt_ids) if k not in removed])
    # The last prompt shares no token with the complete one.
    return [*prompts, prompts[0][1:]]


@pytest.mark.parametrize(
    ("name", "tokens_per_pass"),
    # With 20 tokens, each chunk contains one or two prompts.
    [*((name, None) for name in FAMILIES), ("LlamaForCausalLM", 20)],
)
def test_log_probabilities_equal_those_of_full_passes(name, tokens_per_pass):
    check_log_probabilities(decoder(name), tokens_per_pass)


def test_positions_may_depend_on_the_length():
    """The shortened prompts are shorter than the length at which the positions change."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4}
    rope |= {"original_max_position_embeddings": PROMPT.ids.shape[1] - 2}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [8.0] * 4}
    tokenizer = tiny_language_models.tokenizer(chat=False)
    model = tiny_language_models.llama(tokenizer, rope_parameters=rope)
    check_log_probabilities(model)


def check_log_probabilities(model, tokens_per_pass=None):
    """Compare the log-probability of every token with a full pass of the original model."""
    adapter = wrap(model, tokens_per_pass=tokens_per_pass)
    observation = adapter.observe(adapter.prepare(PROMPT.inputs(), (0,)))
    continuations = [PROMPT.ids[0, -PROMPT.n_answer :].tolist(), [5], [7, 6, 9, 8, 5]]
    results = score_continuations(adapter, observation, list_prompts(), continuations)
    for scores, continuation in zip(results, continuations, strict=True):
        rows = zip(*scores, list_prompts(), strict=True)
        for log_probs, is_first_choice, prompt in rows:
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *continuation]])).logits[0].double()
            distributions = logits[len(prompt) - 1 : -1].log_softmax(-1)
            ids = torch.tensor(continuation)
            expected = distributions.gather(-1, ids[:, None])[:, 0]
            assert log_probs.tolist() == pytest.approx(expected.tolist(), abs=2e-5)
            assert is_first_choice.equal(distributions.argmax(-1) == ids)
