"""Run a language model over the last tokens of a prompt, with a key-value cache for the others.

In a causal model, no token sees a later token. The keys and values for all tokens before the first
edited row are therefore computed once per prompt (*prefill*). Each pass then runs only the rows
after this prefix. Several copies of the prompt, with different edits, run as one batch with the
same cached prefix, and they start at the lowest edited block.

In some models (hybrids), cached keys and values change the results. For these models, all rows run
in every pass.
"""

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from hf_attnprobe.adapters.language_model.prompt import (
    Prompt,
    RowEdit,
    select_candidate_words,
)
from hf_attnprobe.adapters.pretrained import (
    describe_undefined_logits,
    has_length_dependent_positions,
    reset_dynamic_positions,
)
from hf_attnprobe.adapters.transformer.adapter import shorten_model_errors
from hf_attnprobe.adapters.transformer.attention_hooks import (
    AttentionEdit,
    OutputHook,
    unpack_heads,
)
from hf_attnprobe.adapters.transformer.layout import (
    EXAMPLE_TEXT_LENGTH,
    create_example_inputs,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import get_relative_tolerance
from hf_attnprobe.adapters.transformer.replay import HookedTransformer
from hf_attnprobe.adapters.transformer.task_heads import compute_candidate_scores
from hf_attnprobe.core.errors import UndefinedLogitsError


MAX_DELETION_TOKENS_ON_CPU = 512
"""Maximum number of tokens in one forward pass on a CPU, in passes over prompts with deleted units.

A larger pass would not be faster: twice as many tokens take twice as long.
"""
CONSTANT_TIME_TOKENS = 1024
"""Number of tokens up to which all forward passes on a GPU take about the same time.

Starting kernels takes most of this time. With 7 billion weights on an H200, 200 tokens took 0.02 to
0.04 s, and 2,000 tokens took 0.06 s.
"""
MAX_LENGTH_DIFFERENCE = 1 / 4
"""Maximum relative difference in length between forward passes that run as one batch.

For example, passes over 75 and 100 rows may run together. Shorter passes are padded to the longest,
so a larger difference would waste time. It does not matter for batches of at most
`CONSTANT_TIME_TOKENS` tokens on a GPU.
"""

KeysValues = Sequence[tuple[Tensor, Tensor] | None]
"""One pair (keys, values) per cache layer, both `[1, heads, tokens, width]`.

The entry is None for a layer that caches nothing.
"""


class CachedPrefixLayer(DynamicLayer):
    """Read-only cache layer with keys and values for the first tokens of several prompts.

    Prefixes of different lengths are padded on the left. All copies of a prompt share its prefix.
    New tokens are not stored.

    Args:
        keys: Keys for each prompt's prefix, `[1, heads, tokens, width]`.
        values: Values for each prompt's prefix, in the same shape.
        n_copies: Number of copies per prompt.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        n_copies: Sequence[int],
    ) -> None:
        super().__init__()
        self.lazy_initialization(keys[0], values[0])
        self._prefix_keys = keys
        self._prefix_values = values
        self._n_copies = n_copies
        # The longest prefix determines the cache length that the model sees.
        self.keys = max(keys, key=lambda prefix: prefix.shape[-2])

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Append new keys and values to the cached prefixes, without storing them.

        Args:
            key_states: Keys for the running rows, `[batch, heads, rows, width]`.
            value_states: Values for the running rows, in the same shape.
            *args: Not used.
            **kwargs: Not used.

        Returns:
            Keys and values, both `[batch, heads, prefix tokens + rows, width]`.
        """
        keys = torch.cat([self._expand_prefixes(self._prefix_keys), key_states], -2)
        values = torch.cat([self._expand_prefixes(self._prefix_values), value_states], -2)
        return keys, values

    def _expand_prefixes(self, prefixes: Sequence[Tensor]) -> Tensor:
        """Pad cached keys or values to one length, and repeat them for each copy of a prompt.

        Args:
            prefixes: Keys or values for the first tokens of each prompt.

        Returns:
            One tensor for all copies of all prompts, padded on the left.
        """
        n_tokens = self.get_seq_length()
        padded = []
        for prefix, n_copies in zip(prefixes, self._n_copies, strict=True):
            n_padding = n_tokens - prefix.shape[-2]
            # Only the second to last axis, which contains the tokens, is padded.
            padded_prefix = F.pad(prefix, (0, 0, n_padding, 0))
            padded.append(padded_prefix.expand(n_copies, -1, -1, -1))
        return torch.cat(padded) if len(padded) > 1 else padded[0]


class ExtendedPrefixLayer(CachedPrefixLayer):
    """Cache layer like `CachedPrefixLayer` that also stores the new tokens of the last pass.

    Attributes:
        new_keys: Keys of the rows that ran last, `[batch, heads, rows, width]`.
        new_values: Values of these rows, in the same shape.
    """

    new_keys: Tensor
    new_values: Tensor

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values, and append them to the prefixes; see `CachedPrefixLayer`."""
        self.new_keys, self.new_values = key_states, value_states
        return super().update(key_states, value_states, *args, **kwargs)

    def get_extended(self, index: int, n_rows: int) -> tuple[Tensor, Tensor]:
        """Return the keys and the values of one prompt: its prefix, and its new tokens.

        Args:
            index: Index of the prompt. Each prompt must have a single copy.
            n_rows: Number of new tokens, without padding.
        """
        new_keys = self.new_keys[index : index + 1, :, :n_rows]
        new_values = self.new_values[index : index + 1, :, :n_rows]
        return (
            torch.cat([self._prefix_keys[index], new_keys], -2),
            torch.cat([self._prefix_values[index], new_values], -2),
        )


def build_prefix_cache(
    prompt_keys_values: Sequence[KeysValues | None],
    n_tokens: Sequence[int],
    n_copies: Sequence[int],
    layer_class: type[CachedPrefixLayer] = CachedPrefixLayer,
) -> DynamicCache | None:
    """Build a key-value cache with the first tokens of each prompt.

    The cache is created without the model configuration, so it also keeps keys outside a sliding
    window. The model's attention mask hides these keys.

    Args:
        prompt_keys_values: Keys and values for all tokens, by prompt.
        n_tokens: Prefix length for each prompt.
        n_copies: Number of copies per prompt.
        layer_class: Class of the cache layers.

    Returns:
        The cache, or None if all prefixes are empty.
    """
    if not any(n_tokens):
        return None
    cache = DynamicCache()
    cache.layers = []
    for layer_pairs in zip(*prompt_keys_values, strict=True):
        if None in layer_pairs:
            cache.layers.append(DynamicLayer())
            continue
        prefix_keys, prefix_values = [], []
        for (keys, values), n_prefix in zip(layer_pairs, n_tokens, strict=True):
            prefix_keys.append(keys[..., :n_prefix, :])
            prefix_values.append(values[..., :n_prefix, :])
        cache.layers.append(layer_class(prefix_keys, prefix_values, n_copies))
    return cache


def get_keys_values(cache: DynamicCache) -> KeysValues:
    """Return the keys and values that a forward pass has stored in a cache.

    Args:
        cache: The cache.

    Returns:
        A pair of keys and values per layer, or None for a layer without them.
    """
    pairs: list[tuple[Tensor, Tensor] | None] = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        keys, values = layer.keys, layer.values
        pairs.append(None if keys is None or values is None else (keys, values))
    return pairs


class PrefillResult(NamedTuple):
    """Results from a full pass over a prompt, without hooks.

    Attributes:
        candidates: Candidate words for each answer token, int `[1, answer tokens, words]`; see
            `AnswerHead`.
        scores: Answer scores, `[1, scores]`.
        keys_values: Keys and values for all tokens, or None if the model cannot use them.
    """

    candidates: Tensor
    scores: Tensor
    keys_values: KeysValues | None


class PassageState(NamedTuple):
    """Results from one pass over a prompt, from which replays start.

    Attributes:
        prompt: The prompt, with the positions of its units and its answer.
        candidates: Candidate words, see `PrefillResult`.
        keys_values: Keys and values for all tokens, or None if the model cannot use them.
        outputs: Output of every block call, for the rows that run.
        visible: Columns that each row can attend to, one bool tensor `[1, rows, columns]` per
            layer. A column is a unit's group of keys.
    """

    prompt: Prompt
    candidates: Tensor
    keys_values: KeysValues | None
    outputs: tuple[Any, ...] = ()
    visible: tuple[Tensor, ...] = ()

    @property
    def first_run_row(self) -> int:
        """First row that runs in every replay; earlier rows are in the cache."""
        return 0 if self.keys_values is None else self.prompt.first_row


class PromptPass(NamedTuple):
    """Description of a forward pass over copies of a prompt, which may lack some tokens.

    Attributes:
        state: The observed prompt.
        ids: Token ids for all copies, int `[copies, tokens]`.
        n_prefix_tokens: Number of tokens at the start that are unchanged and taken from the cache.
        edit: Edit for the rows that tests may change, or None.
        output_hook: Hook that edits the head outputs, or None.
        layer: Number of the layer whose block runs first.
        positions: Position id per token, int `[tokens]`; None for consecutive positions.
        n_trailing_rows: Number of rows at the end that do not predict an answer token.
    """

    state: PassageState
    ids: Tensor
    n_prefix_tokens: int
    edit: RowEdit | None = None
    output_hook: OutputHook | None = None
    layer: int = 0
    positions: Tensor | None = None
    n_trailing_rows: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows that run in each copy."""
        return self.ids.shape[1] - self.n_prefix_tokens


class PromptRunner(HookedTransformer):
    """Copy of a language model that shares its weights, and runs passes over prompts."""

    _last_prefill: PrefillResult | None = None

    @cached_property
    def forward_parameters(self) -> set[str]:
        """Names of the explicit parameters of the model's `forward` method.

        A parameter that is only accepted through `**kwargs` may be ignored by the model.
        """
        return set(inspect.signature(self.model.forward).parameters)

    @property
    def supports_prefix_cache(self) -> bool:
        """Whether cached keys and values can be used for prompts and shortened prompts."""
        has_cache = self._example_keys_values is not None
        return has_cache and not self.has_length_dependent_positions

    @cached_property
    def has_length_dependent_positions(self) -> bool:
        """Whether position embeddings depend on the text length, so texts must run separately."""
        return has_length_dependent_positions(self.model.config)

    @cached_property
    def _example_keys_values(self) -> KeysValues | None:
        """Keys and values of the model for an example text.

        It is None if the model gives different logits when it takes the first half of the text from
        a cache. The cache is then not used.
        """
        if "past_key_values" not in self.forward_parameters:
            return None
        ids = create_example_inputs(self.model)["input_ids"]
        cache = DynamicCache()
        half = ids.shape[1] // 2
        try:
            with torch.no_grad():
                expected = self._compute_last_logits(ids, half, cache)
                keys_values = get_keys_values(cache)
                prefix_cache = build_prefix_cache([keys_values], [half], [1])
                logits = self._compute_last_logits(ids[:, half:], half, prefix_cache)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # A model may raise arbitrary exceptions.
            return None
        return keys_values if self.scores_agree(logits, expected) else None

    @property
    def n_sharing_heads(self) -> list[int]:
        """Number of heads per layer that share keys and values (grouped-query attention).

        The number is 1 if it is unknown.
        """
        keys_values = self._example_keys_values or ()
        if len(keys_values) != len(self.layers):
            return [1] * len(self.layers)
        group_sizes = []
        for n_heads, pair in zip(self.n_heads, keys_values, strict=True):
            n_key_heads = n_heads if pair is None else pair[0].shape[1]
            group_sizes.append(n_heads // n_key_heads)
        return group_sizes

    @cached_property
    def keeps_positions(self) -> bool:
        """Whether the model accepts `position_ids` that count from 0.

        To find out, the model is run on an example with and without them.
        """
        if "position_ids" not in self.forward_parameters:
            return False
        ids = create_example_inputs(self.model)["input_ids"]
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        try:
            with torch.no_grad():
                expected = self.compute_logits(inputs)
                logits = self.compute_logits({**inputs, "position_ids": positions})
                return self.scores_agree(logits, expected)
        except (RuntimeError, IndexError, TypeError):
            return False

    @cached_property
    def can_join_prompts(self) -> bool:
        """Whether prompts of different lengths can run in one batch.

        To find out, the model is run on two examples together and separately.
        """
        if not (self.supports_prefix_cache and self.keeps_positions):
            return False
        n_words = self.model.config.get_text_config().vocab_size
        numbers = torch.arange(1, EXAMPLE_TEXT_LENGTH + 1, device=self.model.device)
        ids = numbers[None] % n_words
        long_pass, long_scores = self._create_trial_pass(ids)
        short_pass, short_scores = self._create_trial_pass(ids[:, :-2])
        try:
            joint_scores = self._run_joined([long_pass, short_pass])
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # A model may raise arbitrary exceptions.
            return False
        return self.scores_agree(joint_scores[0], long_scores) and self.scores_agree(
            joint_scores[1], short_scores
        )

    def _create_trial_pass(self, ids: Tensor) -> tuple[PromptPass, Tensor]:
        """Describe a forward pass over a token sequence whose first half is in the cache.

        Returns:
            The pass, and the scores that it should give.
        """
        position = torch.arange(ids.shape[1], device=ids.device)[None]
        # The token in the middle is the only unit, and the last token is the answer. A token has
        # the unit id 0 if it is in the unit, and otherwise −1.
        inputs = {
            "input_ids": ids,
            "unit_ids": (position == ids.shape[1] // 2).long() - 1,
            "labelled": (position == ids.shape[1] - 1).long(),
            "other_ids": torch.full_like(ids, -1),
        }
        prefill = self.prefill(inputs)
        prompt = Prompt(inputs, "behind")
        state = PassageState(prompt, prefill.candidates, prefill.keys_values)
        return PromptPass(state, state.prompt.ids, state.first_run_row), prefill.scores

    def scores_agree(self, scores: Tensor, expected: Tensor) -> bool:
        """Check whether two computations of the same scores agree up to rounding.

        Args:
            scores: Scores from one computation.
            expected: Scores from the other computation.
        """
        tolerance = get_relative_tolerance(self.model.dtype) * expected.abs().max()
        return bool((scores - expected).abs().max() <= tolerance)

    def _compute_last_logits(self, ids: Tensor, n_read: int, cache: DynamicCache | None) -> Tensor:
        """Compute the logits of the last tokens without any edit.

        Args:
            ids: Token ids, int `[1, tokens]`.
            n_read: Number of tokens at the end whose logits are returned.
            cache: Keys and values of the tokens before `ids`, or None.

        Returns:
            Logits `[n_read, words]`.
        """
        reset_dynamic_positions(self.model)
        arguments = self._build_pass_arguments(cache, n_read)
        logits = self.compute_logits({"input_ids": ids, **arguments})[0]
        n_words = self.model.config.get_text_config().vocab_size
        row_logits = logits.unflatten(0, (-1, n_words))
        # A model without `logits_to_keep` returns the logits of all rows.
        return row_logits[-n_read:]

    def _build_pass_arguments(self, cache: DynamicCache | None, n_read: int) -> dict[str, Any]:
        """Build the model arguments for a cache, and for computing only the last logits.

        Args:
            cache: Keys and values of earlier tokens, or None.
            n_read: Number of tokens at the end whose logits are needed.
        """
        # A tensor of indices is passed instead of a number. With a number, the model would slice
        # the batch, and the output layer would copy its weights for every text.
        last_rows = torch.arange(-n_read, 0, device=self.model.device)
        arguments: dict[str, Any] = {"logits_to_keep": last_rows}
        if cache is not None:
            arguments |= {"past_key_values": cache, "use_cache": True}
        return {name: value for name, value in arguments.items() if name in self.forward_parameters}

    @torch.no_grad()
    def prefill(self, inputs: Mapping[str, Tensor]) -> PrefillResult:
        """Run the model on a complete prompt, and return its scores, keys and values.

        The scores are for a few candidate words. The result for the last prompt is cached.

        Args:
            inputs: Inputs for a prompt. If they include `candidate_ids`, these candidate words are used.
                Otherwise the most likely words are selected as candidates.

        Returns:
            Candidate words, scores, and keys and values.

        Raises:
            UndefinedLogitsError: If a logit is NaN or infinite.
        """
        candidates = inputs.get("candidate_ids")
        if self._last_prefill is not None and self._last_prefill.candidates is candidates:
            return self._last_prefill
        ids = inputs["input_ids"][:, :-1]
        n_answer = int(inputs["labelled"].sum())
        cache = DynamicCache() if self.supports_prefix_cache else None
        with shorten_model_errors(inputs):
            logits = self._compute_last_logits(ids, n_answer, cache)
        if not logits.isfinite().all():
            raise UndefinedLogitsError(describe_undefined_logits(self.model.dtype))
        if candidates is None:
            answer = inputs["input_ids"][0, -n_answer:]
            alternative = inputs["other_ids"][0, -n_answer:]
            candidates = select_candidate_words(logits, answer, alternative)[None]
        scores = compute_candidate_scores(logits[None], candidates).flatten(1)
        keys_values = None if cache is None else get_keys_values(cache)
        self._last_prefill = PrefillResult(candidates, scores, keys_values)
        return self._last_prefill

    def compute_answer_scores(
        self,
        ids: Tensor,
        candidates: Tensor,
        edit: AttentionEdit | None = None,
        *,
        cache: DynamicCache | None = None,
        skipped_outputs: Sequence[Any] = (),
        output_hook: OutputHook | None = None,
        extra_inputs: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Compute the answer scores in one pass over the last tokens.

        Args:
            ids: Token ids, int `[batch, rows]`.
            candidates: Candidate words, see `PrefillResult`.
            edit: Function that edits the attention weights in every layer; None for no edit.
            cache: Cache with the tokens before `ids`.
            skipped_outputs: Recorded outputs for the first blocks, which do not run.
            output_hook: Hook that edits the head outputs; None for no edit.
            extra_inputs: Further model arguments, and `n_padded`, see `AnswerHead`.

        Returns:
            Scores `[batch, scores]`.
        """
        extra_inputs = dict(extra_inputs or {})
        n_read = candidates.shape[1]
        if "n_padded" in extra_inputs:
            n_read += int(extra_inputs["n_padded"].max())
            n_read = min(n_read, ids.shape[1])
        arguments = self._build_pass_arguments(cache, n_read) | extra_inputs
        inputs = {"input_ids": ids, "candidate_ids": candidates, **arguments}
        reset_dynamic_positions(self.model)
        n_keys = ids.shape[1]
        if cache is not None:
            n_keys += cache.get_seq_length()
        return self.compute_logits(inputs, edit, skipped_outputs, output_hook, n_keys=n_keys)

    def compute_row_scores(
        self,
        state: PassageState,
        edit: RowEdit | None = None,
        output_hook: OutputHook | None = None,
    ) -> Tensor:
        """Run the model on the tokens of a prompt that are not in the cache.

        Args:
            state: The prompt, with its cached keys and values.
            edit: Function that edits the attention; None for no edit.
            output_hook: Hook that edits the head outputs; None for no edit.

        Returns:
            Scores of the answer `[1, scores]`.
        """
        prompt_pass = PromptPass(state, state.prompt.ids, state.first_run_row, edit, output_hook)
        return self._run_joined([prompt_pass])[0]

    # Joint passes

    def run_passes(self, passes: Sequence[PromptPass]) -> list[Tensor]:
        """Run several forward passes, and combine passes of similar length into batches.

        Even a pass over few tokens must read all the model's weights, so this saves time.

        Args:
            passes: The passes.

        Returns:
            Scores `[copies, scores]` for each pass.
        """
        scores_by_index: dict[int, Tensor] = {}
        for group in self._group_passes(passes):
            group_scores = self._run_joined([passes[index] for index in group])
            scores_by_index |= zip(group, group_scores, strict=True)
        return [scores_by_index[index] for index in range(len(passes))]

    @torch.no_grad()
    def extend_keys_values(self, passes: Sequence[PromptPass]) -> list[KeysValues]:
        """Compute the keys and values of prompts that begin with the tokens of a cached prompt.

        Args:
            passes: One pass per prompt, with one copy and without edits. The keys and values of its
                first `n_prefix_tokens` tokens are in the cache of its state.

        Returns:
            Keys and values of all tokens, for each prompt.
        """
        results: dict[int, KeysValues] = {}
        for group in self._group_passes(passes):
            joint_passes = [passes[index] for index in group]
            n_prefix_tokens = _count_prefix_tokens(joint_passes)
            batch_ids, n_rows, extra_inputs = _join_rows(joint_passes, n_prefix_tokens)
            states = [prompt_pass.state for prompt_pass in joint_passes]
            n_copies = [1] * len(states)
            cache = build_prefix_cache(
                [state.keys_values for state in states],
                n_prefix_tokens,
                n_copies,
                ExtendedPrefixLayer,
            )
            if cache is None:
                cache = DynamicCache()
            # The scores are not used, so the output layer runs for a single row.
            candidates = torch.cat([state.candidates[:, :1] for state in states])
            with shorten_model_errors({"input_ids": batch_ids}):
                self.compute_answer_scores(
                    batch_ids, candidates, cache=cache, extra_inputs=extra_inputs
                )
            for position, (index, n) in enumerate(zip(group, n_rows, strict=True)):
                results[index] = _read_extended_prompt(cache, position, n)
        return [results[index] for index in range(len(passes))]

    def _group_passes(self, passes: Sequence[PromptPass]) -> list[list[int]]:
        """Group the indices of forward passes that run as one batch."""
        indices = range(len(passes))
        longest_first = sorted(indices, key=lambda index: -passes[index].n_rows)
        groups: list[list[int]] = []
        for index in longest_first:
            last_group = [passes[member] for member in groups[-1]] if groups else []
            if last_group and self._can_join(last_group, passes[index]):
                groups[-1].append(index)
            else:
                groups.append([index])
        return groups

    def _can_join(self, group: Sequence[PromptPass], candidate: PromptPass) -> bool:
        """Check whether a forward pass can run in one batch with a group of other passes.

        Args:
            group: Passes that are at least as long, longest first.
            candidate: The pass to add to the group.
        """
        longest = group[0]
        if self.has_length_dependent_positions:
            return False
        if self._must_run_alone(longest) or self._must_run_alone(candidate):
            return False
        is_edit = candidate.edit is not None
        if is_edit != (longest.edit is not None):
            return False
        is_same_prompt = candidate.state is longest.state
        if not is_same_prompt and not self.can_join_prompts:
            return False

        joint_passes = (*group, candidate)
        n_copies = sum(len(prompt_pass.ids) for prompt_pass in joint_passes)
        if is_edit:
            n_keys = max(prompt_pass.ids.shape[1] for prompt_pass in joint_passes)
            return n_copies * n_keys <= self.tokens_per_pass
        n_tokens = n_copies * longest.n_rows
        is_on_cpu = self.model.device.type == "cpu"
        has_similar_length = candidate.n_rows >= longest.n_rows * (1 - MAX_LENGTH_DIFFERENCE)
        if not has_similar_length:
            return not is_on_cpu and n_tokens <= CONSTANT_TIME_TOKENS
        max_tokens = self.tokens_per_pass
        if is_on_cpu:
            max_tokens = min(max_tokens, MAX_DELETION_TOKENS_ON_CPU)
        return n_tokens <= max_tokens

    def _must_run_alone(self, prompt_pass: PromptPass) -> bool:
        """Check whether a pass cannot share a batch: it has an output hook, or skips some blocks."""
        return prompt_pass.output_hook is not None or self._count_skipped_blocks(prompt_pass) > 0

    def _count_skipped_blocks(self, prompt_pass: PromptPass) -> int:
        """Count the first blocks of the model that a pass does not have to run.

        These are the blocks below the first edited layer. Their outputs have been recorded.
        """
        if not prompt_pass.state.outputs:
            return 0
        return self.layers[prompt_pass.layer].n_blocks_before

    def _run_joined(self, passes: Sequence[PromptPass]) -> list[Tensor]:
        """Run several passes as one batch, and return each pass's scores `[copies, scores]`.

        Rows are padded at the end, so that no real row sees the padding. The cached prefixes are
        padded on the left, and a mask hides this padding.
        """
        n_prefix_tokens = _count_prefix_tokens(passes)
        n_copies = [len(prompt_pass.ids) for prompt_pass in passes]
        batch_ids, n_rows, extra_inputs = _join_rows(passes, n_prefix_tokens)
        n_padded = [
            batch_ids.shape[1] - n + prompt_pass.n_trailing_rows
            for prompt_pass, n in zip(passes, n_rows, strict=True)
        ]
        if any(n_padded):
            copies = torch.tensor(n_copies, device=batch_ids.device)
            padded = torch.tensor(n_padded, device=batch_ids.device)
            extra_inputs["n_padded"] = padded.repeat_interleave(copies)

        n_answers = [prompt_pass.state.candidates.shape[1] for prompt_pass in passes]
        max_answer = max(n_answers)
        candidates = []
        for prompt_pass, n_answer, k in zip(passes, n_answers, n_copies, strict=True):
            padding = (0, 0, max_answer - n_answer, 0)
            padded_candidates = F.pad(prompt_pass.state.candidates, padding)
            candidates.append(padded_candidates.expand(k, -1, -1))
        first = passes[0]
        n_skipped = self._count_skipped_blocks(first)
        skipped_outputs: list[Any] = []
        if n_skipped:
            # The first block that runs uses only the last of the skipped outputs.
            output = first.state.outputs[n_skipped - 1]
            skipped_outputs = [_repeat_output(output, len(batch_ids))] * n_skipped
        keys_values = [prompt_pass.state.keys_values for prompt_pass in passes]
        with shorten_model_errors({"input_ids": batch_ids}):
            scores = self.compute_answer_scores(
                batch_ids,
                torch.cat(candidates),
                self._create_joint_edit(passes, n_prefix_tokens),
                cache=build_prefix_cache(keys_values, n_prefix_tokens, n_copies),
                skipped_outputs=skipped_outputs,
                output_hook=first.output_hook,
                extra_inputs=extra_inputs,
            )
        token_scores = scores.unflatten(-1, (max_answer, -1)).split(n_copies)
        return [
            pass_scores[:, max_answer - n_answer :].flatten(1)
            for pass_scores, n_answer in zip(token_scores, n_answers, strict=True)
        ]

    def _create_joint_edit(
        self, passes: Sequence[PromptPass], n_prefix_tokens: Sequence[int]
    ) -> AttentionEdit | None:
        """Create one edit for a batch of passes; each pass edits only its own rows and keys."""
        edits = [
            self._create_attention_edit(prompt_pass.state.prompt, prompt_pass.edit)
            for prompt_pass in passes
            if prompt_pass.edit is not None
        ]
        if len(edits) < 2:
            return next(iter(edits), None)
        n_copies = [len(prompt_pass.ids) for prompt_pass in passes]
        n_rows = [
            prompt_pass.ids.shape[1] - n
            for prompt_pass, n in zip(passes, n_prefix_tokens, strict=True)
        ]
        # The keys are, in this order: padded prefixes, padded rows, and an explicit attention sink
        # if the model has one.
        rows_start = max(n_prefix_tokens)
        rows_end = rows_start + max(n_rows)

        def edit_joint_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            n_heads = self.n_heads[layer]
            weights_by_head = unpack_heads(weights, n_heads)
            scores_by_head = unpack_heads(scores, n_heads)
            all_keys = torch.arange(weights_by_head.shape[-1], device=weights.device)
            sink_keys = all_keys[rows_end:]
            edited = []
            parts = zip(
                weights_by_head.split(n_copies), scores_by_head.split(n_copies), strict=True
            )
            for (pass_weights, pass_scores), edit, n_prefix, n in zip(
                parts, edits, n_prefix_tokens, n_rows, strict=True
            ):
                own_keys = all_keys[rows_start - n_prefix : rows_start + n]
                keys = torch.cat([own_keys, sink_keys])
                new_weights = pass_weights.clone()
                new_weights[:, :, :n, keys] = edit(
                    layer, pass_weights[:, :, :n, keys], pass_scores[:, :, :n, keys]
                ).to(new_weights.dtype)
                edited.append(new_weights)
            return torch.cat(edited).reshape(weights.shape)

        return edit_joint_attention

    def _create_attention_edit(self, prompt: Prompt, edit: RowEdit) -> AttentionEdit:
        """Convert an edit for the last tokens of a prompt to an edit for all its tokens.

        The attention weights of the other tokens are not changed.

        Args:
            prompt: The prompt.
            edit: Edit for the attention of the last `prompt.n_rows` tokens.
        """

        def edit_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            n_heads = self.n_heads[layer]
            weights_by_head = unpack_heads(weights, n_heads)
            n_rows_before = weights_by_head.shape[2] - prompt.n_rows
            rows = weights_by_head[:, :, n_rows_before:]
            row_scores = unpack_heads(scores, n_heads)[:, :, n_rows_before:]
            columns = prompt.get_columns(weights.shape[-1])
            new = edit(layer, rows, row_scores, columns)
            if new is rows:
                return weights
            if n_rows_before:
                new = torch.cat([weights_by_head[:, :, :n_rows_before], new.to(rows.dtype)], 2)
            return new.reshape(weights.shape)

        return edit_attention


def _count_prefix_tokens(passes: Sequence[PromptPass]) -> list[int]:
    """Return how many tokens each pass takes from the cache of keys and values.

    All passes over the same prompt share one cache. They therefore take equally many tokens from
    it: the smallest number for any of them.
    """
    min_tokens: dict[int, int] = {}
    for prompt_pass in passes:
        key = id(prompt_pass.state)
        n_tokens = prompt_pass.n_prefix_tokens
        min_tokens[key] = min(n_tokens, min_tokens.get(key, n_tokens))
    return [min_tokens[id(prompt_pass.state)] for prompt_pass in passes]


def _join_rows(
    passes: Sequence[PromptPass], n_prefix_tokens: Sequence[int]
) -> tuple[Tensor, list[int], dict[str, Any]]:
    """Join the rows of several passes to one batch, padded at the end.

    Args:
        passes: The passes.
        n_prefix_tokens: Number of cached tokens per pass.

    Returns:
        Token ids of all rows, int `[copies, rows]`; the number of rows of each pass; and further
        inputs of the model, see `_build_position_inputs`.
    """
    row_ids = [
        prompt_pass.ids[:, n_prefix:]
        for prompt_pass, n_prefix in zip(passes, n_prefix_tokens, strict=True)
    ]
    n_rows = [ids.shape[1] for ids in row_ids]
    max_rows = max(n_rows)
    batch_ids = torch.cat([F.pad(ids, (0, max_rows - ids.shape[1])) for ids in row_ids])
    extra_inputs: dict[str, Any] = {}
    has_positions = any(prompt_pass.positions is not None for prompt_pass in passes)
    if has_positions or len({*n_prefix_tokens}) > 1:
        # Without a mask, the model would take gaps in the positions for several packed texts.
        extra_inputs |= _build_position_inputs(passes, n_prefix_tokens, max_rows)
    return batch_ids, n_rows, extra_inputs


def _read_extended_prompt(cache: DynamicCache, index: int, n_rows: int) -> KeysValues:
    """Return the keys and values of one prompt after a pass in which its last tokens ran.

    Args:
        cache: Cache of the pass.
        index: Index of the prompt in the batch.
        n_rows: Number of tokens that ran, without padding.
    """
    pairs: list[tuple[Tensor, Tensor] | None] = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        if isinstance(layer, ExtendedPrefixLayer):
            pairs.append(layer.get_extended(index, n_rows))
        elif layer.keys is None or layer.values is None:
            pairs.append(None)
        else:
            keys, values = layer.keys[index : index + 1], layer.values[index : index + 1]
            pairs.append((keys[..., :n_rows, :], values[..., :n_rows, :]))
    return pairs


def _build_position_inputs(
    passes: Sequence[PromptPass], n_prefix_tokens: Sequence[int], n_rows: int
) -> dict[str, Tensor]:
    """Build the position ids and the attention mask for passes that run as one batch.

    Cached tokens are padded on the left. The mask hides this padding.

    Args:
        passes: Passes that run as one batch.
        n_prefix_tokens: Number of cached tokens per pass.
        n_rows: Number of tokens that are not cached, including padding on the right.

    Returns:
        `position_ids` `[batch, rows]` and `attention_mask` `[batch, keys]`.
    """
    max_prefix = max(n_prefix_tokens)
    device = passes[0].ids.device
    keys = torch.arange(max_prefix + n_rows, device=device)
    batch_positions, masks = [], []
    for prompt_pass, n_prefix in zip(passes, n_prefix_tokens, strict=True):
        # Padding gets the last token's position, because a model with a position table may not
        # have larger positions.
        positions = keys[n_prefix : n_prefix + n_rows].clamp(max=prompt_pass.ids.shape[1] - 1)
        if prompt_pass.positions is not None:
            row_positions = prompt_pass.positions[n_prefix:]
            positions = F.pad(row_positions, (0, n_rows - len(row_positions)))
        batch_positions.append(positions.expand(len(prompt_pass.ids), -1))
        mask = (keys >= max_prefix - n_prefix).long()
        masks.append(mask.expand(len(prompt_pass.ids), -1))
    return {
        "position_ids": torch.cat(batch_positions),
        "attention_mask": torch.cat(masks),
    }


def _repeat_output(output: Any, n_copies: int) -> Any:
    """Repeat every tensor `[1, ...]` in a block's output to `[copies, ...]`."""

    def repeat(tensor: Tensor) -> Tensor:
        has_batch_axis = tensor.dim() > 0 and len(tensor) == 1
        if not has_batch_axis:
            return tensor
        return tensor.repeat(n_copies, *[1] * (tensor.dim() - 1))

    return tree_map_only(Tensor, repeat, output)
