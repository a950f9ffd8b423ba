"""Score several continuations of several shortened copies of one prompt.

Each shortened prompt runs once, and its keys and values are cached. Its first tokens, which are the same
as those of the complete prompt, are not run again. Every continuation then runs as a batch over the
cached prompts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.adapters.language_model.kv_cache_passes import (
    KeysValues,
    PassageState,
    PromptPass,
)
from hf_attnprobe.protocol import Observation


class ContinuationScores(NamedTuple):
    """Scores of one continuation after each of several prompts.

    Attributes:
        log_probs: Log-probability of each token in nats, float64 `[prompts, tokens]`.
        is_first_choice: Whether greedy decoding would write each token after the tokens before it, bool
            `[prompts, tokens]`.
    """

    log_probs: Tensor
    is_first_choice: Tensor


@torch.no_grad()
def score_continuations(
    adapter: LanguageModelAdapter,
    observation: Observation,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
) -> list[ContinuationScores]:
    """Compute the log-probability of each token of several continuations after several prompts.

    Args:
        adapter: Adapter of the language model.
        observation: The complete prompt with any continuation, from which the first tokens of all
            prompts are taken.
        prompts: Token ids of each prompt, at least one token each.
        continuations: Token ids of each continuation, at least one token each.

    Returns:
        The scores of each continuation.
    """
    state: PassageState = observation.state
    results: list[list[ContinuationScores]] = [[] for _ in continuations]
    for chunk in _split_prompts(prompts, adapter.tokens_per_pass):
        states = _cache_prompts(adapter, state, chunk)
        passes = [
            _create_pass(adapter, prompt_state, prompt, continuation)
            for continuation in continuations
            for prompt_state, prompt in zip(states, chunk, strict=True)
        ]
        scores = iter(adapter.run_passes(passes))
        for prompt_scores, continuation in zip(results, continuations, strict=True):
            for _ in chunk:
                # The outcomes are the token, the most likely other word, and all remaining words.
                token_scores = next(scores).unflatten(-1, (len(continuation), -1))[0]
                prompt_scores.append(
                    ContinuationScores(
                        token_scores.double().log_softmax(-1)[:, 0],
                        token_scores[:, 0] >= token_scores[:, 1],
                    )
                )
    return [
        ContinuationScores(*map(torch.stack, zip(*prompt_scores, strict=True)))
        for prompt_scores in results
    ]


def _split_prompts(
    prompts: Sequence[Sequence[int]], max_tokens: int
) -> Iterator[list[Sequence[int]]]:
    """Split prompts into chunks with a limited number of tokens, whose keys and values fit in memory.

    Args:
        prompts: Token ids of each prompt.
        max_tokens: Largest number of tokens in a chunk. A longer prompt is a chunk by itself.
    """
    chunk: list[Sequence[int]] = []
    n_tokens = 0
    for prompt in prompts:
        if chunk and n_tokens + len(prompt) > max_tokens:
            yield chunk
            chunk, n_tokens = [], 0
        chunk.append(prompt)
        n_tokens += len(prompt)
    yield chunk


def _cache_prompts(
    adapter: LanguageModelAdapter, state: PassageState, prompts: Sequence[Sequence[int]]
) -> list[PassageState]:
    """Compute the keys and values of all tokens of each prompt, except the last one.

    The last token runs together with the continuation, because it predicts its first token.

    Args:
        adapter: Adapter of the language model.
        state: The complete prompt with its keys and values.
        prompts: Token ids of each prompt.

    Returns:
        One state per prompt. It has no keys and values if the model cannot use them.
    """
    if state.keys_values is None:
        return [state] * len(prompts)
    complete_ids = state.prompt.ids[0].tolist()
    passes: dict[int, PromptPass] = {}
    keys_values: dict[int, KeysValues] = {}
    for index, prompt in enumerate(prompts):
        n_shared = _count_shared_tokens(prompt[:-1], complete_ids)
        keys_values[index] = state.keys_values
        if n_shared < len(prompt) - 1:
            ids = torch.tensor([prompt[:-1]], device=state.prompt.ids.device)
            # Each pass has its own state, so that it takes as many tokens from the cache as it can.
            passes[index] = PromptPass(state._replace(), ids, n_shared)
    keys_values |= zip(passes, adapter.extend_keys_values([*passes.values()]), strict=True)
    return [state._replace(keys_values=keys_values[index]) for index in range(len(prompts))]


def _create_pass(
    adapter: LanguageModelAdapter,
    state: PassageState,
    prompt: Sequence[int],
    continuation: Sequence[int],
) -> PromptPass:
    """Describe the forward pass over a continuation after a cached prompt."""
    # The last token of the continuation predicts nothing. It only runs if it changes the positions.
    n_trailing_rows = int(adapter.has_length_dependent_positions)
    ids = [*prompt, *continuation][: len(prompt) + len(continuation) - 1 + n_trailing_rows]
    device = state.prompt.ids.device
    candidates = torch.tensor(continuation, device=device)[None, :, None]
    return PromptPass(
        state._replace(candidates=candidates),
        torch.tensor([ids], device=device),
        0 if state.keys_values is None else len(prompt) - 1,
        n_trailing_rows=n_trailing_rows,
    )


def _count_shared_tokens(ids: Sequence[int], other_ids: Sequence[int]) -> int:
    """Count the tokens at the start of two sequences that are equal."""
    n_shared = 0
    for token, other_token in zip(ids, other_ids, strict=False):
        if token != other_token:
            break
        n_shared += 1
    return n_shared
