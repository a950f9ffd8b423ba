"""Forward passes of a language model over the last tokens of a prompt, with a key-value cache.

In a causal model, no token sees a later one. The keys and values of the tokens before the first
edited row are therefore computed once per prompt (*prefill*). A pass then runs only the rows after
this prefix. All copies of an edit are a batch with the same cached prefix, and they start at the
lowest edited block.

If a model gives other results with cached keys and values than without them (hybrids), all rows run
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
    EXAMPLE_LENGTH,
    create_example_inputs,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import get_relative_tolerance
from hf_attnprobe.adapters.transformer.replay import HookedTransformer
from hf_attnprobe.adapters.transformer.task_heads import compute_candidate_scores
from hf_attnprobe.core.errors import AttnProbeError


DELETION_TOKENS_ON_CPU = 512
"""Largest number of rows of shortened prompts in a pass on a CPU; larger passes are not faster."""
FREE_TOKENS_ON_GPU = 1024
"""Number of tokens below which a pass on a GPU takes almost no time per token.

Starting the kernels dominates such a pass. With 7 billion weights, 200 tokens took 0.02 to 0.04 s
and 2,000 tokens took 0.06 s (H200).
"""
MAX_REPEATED_SHARE = 1 / 4
"""Largest share of unchanged rows that a pass may compute again to join a longer pass."""

KeysValues = Sequence[tuple[Tensor, Tensor] | None]
"""Keys and values of each cache layer, both `[1, heads, tokens, width]`.

An entry is None for a layer that caches nothing.
"""


class CachedPrefixLayer(DynamicLayer):
    """Cache layer with the keys and values of prompt prefixes; it does not store new tokens.

    Prefixes of different lengths are padded on the left. All copies of a prompt share its prefix.

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
        self._prefix_keys, self._prefix_values, self._n_copies = keys, values, n_copies
        # The length of the cache is that of the longest prefix.
        self.keys = max(keys, key=lambda prefix: prefix.shape[-2])

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the cached prefix keys and values, followed by those of the running rows.

        Args:
            key_states: Keys of the running rows, `[batch, heads, rows, width]`.
            value_states: Values of the running rows, in the same shape.
            *args: Not used.
            **kwargs: Not used.
        """
        keys = torch.cat([self._expand_prefixes(self._prefix_keys), key_states], -2)
        return keys, torch.cat([self._expand_prefixes(self._prefix_values), value_states], -2)

    def _expand_prefixes(self, prefixes: Sequence[Tensor]) -> Tensor:
        """Pad the prefixes on the left and expand them to all copies of their prompts."""
        n_tokens = self.get_seq_length()
        padded = []
        for prefix, n_copies in zip(prefixes, self._n_copies, strict=True):
            n_padding = n_tokens - prefix.shape[-2]
            padded.append(F.pad(prefix, (0, 0, n_padding, 0)).expand(n_copies, -1, -1, -1))
        return torch.cat(padded) if len(padded) > 1 else padded[0]


def build_prefix_cache(
    prompt_keys_values: Sequence[KeysValues | None],
    n_tokens: Sequence[int],
    n_copies: Sequence[int],
) -> DynamicCache | None:
    """Build a cache with the first tokens of some prompts.

    The cache has no model configuration, so models with a sliding window keep all keys. Their masks
    hide the keys outside the window.

    Args:
        prompt_keys_values: Keys and values for all tokens, by prompt.
        n_tokens: Prefix length for each prompt.
        n_copies: Number of copies per prompt.

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
        keys, values = (
            [tensor[..., :n, :] for tensor, n in zip(tensors, n_tokens, strict=True)]
            for tensors in zip(*layer_pairs, strict=True)
        )
        cache.layers.append(CachedPrefixLayer(keys, values, n_copies))
    return cache


def get_keys_values(cache: DynamicCache) -> KeysValues:
    """Return the keys and values that a forward pass has stored in a cache.

    Args:
        cache: The cache.
    """
    pairs: list[tuple[Tensor, Tensor] | None] = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        keys, values = layer.keys, layer.values
        pairs.append(None if keys is None or values is None else (keys, values))
    return pairs


class PrefillResult(NamedTuple):
    """Result from a full pass over a prompt, without hooks.

    Attributes:
        candidates: Candidate words of each answer token, int `[1, answer tokens, words]`; see
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
        prompt: Positions in the prompt.
        candidates: Candidate words, see `PrefillResult`.
        keys_values: Keys and values for all tokens, or None if the model cannot use them.
        outputs: Output of every block call, for the rows that run.
        visible: Visible columns, bool `[1, rows, columns]` per layer.
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
    """A forward pass over copies of a prompt, or over copies without some of its tokens.

    Attributes:
        state: The observed prompt.
        ids: Token ids for all copies, int `[copies, tokens]`.
        n_prefix_tokens: Number of first tokens that equal those of the prompt, so that cached keys
            and values are used.
        edit: Edit for the rows that tests may change, or None.
        output_hook: Hook for the head outputs, or None.
        layer: Layer in whose block the pass starts.
        positions: Position per token, int `[tokens]`; None for consecutive positions.
        n_trailing_rows: Number of last rows that do not predict a token of the answer.
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
    """A copy of a language model that shares its weights, and the passes that are run with it."""

    _last_prefill: PrefillResult | None = None

    @cached_property
    def forward_parameters(self) -> set[str]:
        """Explicit parameters of the model's forward; it may ignore those in `**kwargs`."""
        return set(inspect.signature(self.model.forward).parameters)

    @property
    def supports_prefix_cache(self) -> bool:
        """Whether cached keys and values can be used, also for shortened texts."""
        has_cache = self._example_keys_values is not None
        return has_cache and not self.has_length_dependent_positions

    @cached_property
    def has_length_dependent_positions(self) -> bool:
        """Whether positions depend on the length of a text, so that each text runs separately."""
        return has_length_dependent_positions(self.model.config)

    @cached_property
    def _example_keys_values(self) -> KeysValues | None:
        """Keys and values of an example, or None if they do not reproduce the model's scores."""
        if "past_key_values" not in self.forward_parameters:
            return None
        ids, cache = create_example_inputs(self.model)["input_ids"], DynamicCache()
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
        """Number of heads that share keys and values, for each layer; 1 if it is unknown."""
        keys_values = self._example_keys_values or ()
        if len(keys_values) != len(self.layers):
            return [1] * len(self.layers)
        return [
            1 if pair is None else n_heads // pair[0].shape[1]
            for n_heads, pair in zip(self.n_heads, keys_values, strict=True)
        ]

    @cached_property
    def keeps_positions(self) -> bool:
        """Whether the model accepts `position_ids` that count from 0; determined on an example."""
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
        """Whether prompts of different lengths can run in one pass; determined on an example."""
        if not (self.supports_prefix_cache and self.keeps_positions):
            return False
        n_words = self.model.config.get_text_config().vocab_size
        numbers = torch.arange(1, EXAMPLE_LENGTH + 1, device=self.model.device)
        ids = numbers[None] % n_words
        trials = [self._create_trial_pass(trial_ids) for trial_ids in (ids, ids[:, :-2])]
        try:
            joint_scores = self._run_joined([trial_pass for trial_pass, _ in trials])
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # A model may raise arbitrary exceptions.
            return False
        return all(
            self.scores_agree(scores, expected)
            for scores, (_, expected) in zip(joint_scores, trials, strict=True)
        )

    def _create_trial_pass(self, ids: Tensor) -> tuple[PromptPass, Tensor]:
        """Create a pass over the second half of some tokens, and compute its expected scores."""
        position = torch.arange(ids.shape[1], device=ids.device)[None]
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
        """Compute the logits of the last rows without edits, `[n_read, words]`."""
        reset_dynamic_positions(self.model)
        arguments = self._build_pass_arguments(cache, n_read)
        logits = self.compute_logits({"input_ids": ids, **arguments})[0]
        return logits.unflatten(0, (-1, self.model.config.get_text_config().vocab_size))[-n_read:]

    def _build_pass_arguments(self, cache: DynamicCache | None, n_read: int) -> dict[str, Any]:
        """Build arguments of the model that select the last rows and pass a cache."""
        # Indices are passed and not a number, because with a slice of a batch the output layer
        # would copy its weights for every text.
        last_rows = torch.arange(-n_read, 0, device=self.model.device)
        arguments: dict[str, Any] = {"logits_to_keep": last_rows}
        if cache is not None:
            arguments |= {"past_key_values": cache, "use_cache": True}
        return {name: value for name, value in arguments.items() if name in self.forward_parameters}

    @torch.no_grad()
    def prefill(self, inputs: Mapping[str, Tensor]) -> PrefillResult:
        """Run a full pass over a prompt without hooks; the last prompt's result is cached.

        Args:
            inputs: Inputs for a prompt. `kept`, the candidate words, is used if it is present.

        Returns:
            Candidate words, scores, and keys and values.

        Raises:
            AttnProbeError: If the logits are not finite.
        """
        candidates = inputs.get("kept")
        if self._last_prefill is not None and self._last_prefill.candidates is candidates:
            return self._last_prefill
        ids, n_answer = (
            inputs["input_ids"][:, :-1],
            int(inputs["labelled"].sum()),
        )
        cache = DynamicCache() if self.supports_prefix_cache else None
        with shorten_model_errors(inputs):
            logits = self._compute_last_logits(ids, n_answer, cache)
        if not logits.isfinite().all():
            raise AttnProbeError(
                f"expected finite logits, got NaN or infinity in {self.model.dtype}; "
                "load the model in float32 or bfloat16"
            )
        if candidates is None:
            answer, alternative = (
                inputs[name][0, -n_answer:] for name in ("input_ids", "other_ids")
            )
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
            edit: Edit for the attention in every layer.
            cache: Cache of the tokens before `ids`.
            skipped_outputs: Outputs of the first block calls, which do not run.
            output_hook: Hook for the head outputs.
            extra_inputs: Further arguments of the model, and `n_padded`, see `AnswerHead`.

        Returns:
            Scores `[batch, scores]`.
        """
        extra_inputs = dict(extra_inputs or {})
        n_read = candidates.shape[1]
        if "n_padded" in extra_inputs:
            n_read += int(extra_inputs["n_padded"].max())
            n_read = min(n_read, ids.shape[1])
        arguments = self._build_pass_arguments(cache, n_read) | extra_inputs
        inputs = {"input_ids": ids, "kept": candidates, **arguments}
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
        """Compute the answer scores in one pass over the rows after the prefix.

        Args:
            state: The prompt.
            edit: Edit for the rows that tests may change.
            output_hook: Hook for the head outputs.

        Returns:
            Scores `[1, scores]`.
        """
        prompt_pass = PromptPass(state, state.prompt.ids, state.first_run_row, edit, output_hook)
        return self._run_joined([prompt_pass])[0]

    # Joint passes

    def run_passes(self, passes: Sequence[PromptPass]) -> list[Tensor]:
        """Run passes, and join those that need about the same number of rows.

        A pass over few tokens takes as long as reading the model's weights, so joining passes saves
        time.

        Args:
            passes: The passes.

        Returns:
            Scores `[copies, scores]` of each pass.
        """
        indices = range(len(passes))
        longest_first = sorted(indices, key=lambda k: -passes[k].n_rows)
        groups: list[list[int]] = []
        for k in longest_first:
            if groups and self._can_join([passes[n] for n in groups[-1]], passes[k]):
                groups[-1].append(k)
            else:
                groups.append([k])
        scores_by_index: dict[int, Tensor] = {}
        for group in groups:
            group_scores = self._run_joined([passes[k] for k in group])
            scores_by_index |= zip(group, group_scores, strict=True)
        return [scores_by_index[k] for k in indices]

    def _can_join(self, group: Sequence[PromptPass], candidate: PromptPass) -> bool:
        """Check whether a pass can be added to a group of passes with at least as many rows."""
        first = group[0]
        must_run_alone = any(
            prompt_pass.output_hook is not None or self._count_skipped_blocks(prompt_pass)
            for prompt_pass in (first, candidate)
        )
        is_other_prompt = candidate.state is not first.state
        is_edit = candidate.edit is not None
        if (
            must_run_alone
            or self.has_length_dependent_positions
            or is_edit != (first.edit is not None)
        ):
            return False
        if is_other_prompt and not self.can_join_prompts:
            return False
        joint_passes = (*group, candidate)
        n_copies = sum(len(prompt_pass.ids) for prompt_pass in joint_passes)
        if is_edit:
            n_keys = max(prompt_pass.ids.shape[1] for prompt_pass in joint_passes)
            return n_copies * n_keys <= self.tokens_per_pass
        max_tokens, n_free_tokens = self.tokens_per_pass, FREE_TOKENS_ON_GPU
        if self.model.device.type == "cpu":
            max_tokens, n_free_tokens = min(max_tokens, DELETION_TOKENS_ON_CPU), 0
        has_similar_length = candidate.n_rows >= first.n_rows * (1 - MAX_REPEATED_SHARE)
        return n_copies * first.n_rows <= (max_tokens if has_similar_length else n_free_tokens)

    def _count_skipped_blocks(self, prompt_pass: PromptPass) -> int:
        """Return the number of blocks that do not run, because their outputs are recorded."""
        if not prompt_pass.state.outputs:
            return 0
        return self.layers[prompt_pass.layer].n_blocks_before

    def _run_joined(self, passes: Sequence[PromptPass]) -> list[Tensor]:
        """Run passes as one batch and return the scores `[copies, scores]` of each pass.

        Rows are padded at the end, where no other row sees the padding. The cached prefixes of
        several prompts are padded on the left and hidden by a mask.
        """
        n_prefix_tokens = _count_prefix_tokens(passes)
        n_copies = [len(prompt_pass.ids) for prompt_pass in passes]
        row_ids = [
            prompt_pass.ids[:, n:] for prompt_pass, n in zip(passes, n_prefix_tokens, strict=True)
        ]
        max_rows = max(ids.shape[1] for ids in row_ids)
        n_padded = [
            max_rows - ids.shape[1] + prompt_pass.n_trailing_rows
            for prompt_pass, ids in zip(passes, row_ids, strict=True)
        ]
        batch_ids = torch.cat([F.pad(ids, (0, max_rows - ids.shape[1])) for ids in row_ids])
        extra_inputs: dict[str, Any] = {}
        if any(n_padded):
            copies = torch.tensor(n_copies, device=batch_ids.device)
            padded = torch.tensor(n_padded, device=batch_ids.device)
            extra_inputs["n_padded"] = padded.repeat_interleave(copies)
        has_positions = any(prompt_pass.positions is not None for prompt_pass in passes)
        if has_positions or len({*n_prefix_tokens}) > 1:
            # Without a mask, the model would interpret such positions as several packed texts.
            extra_inputs |= _build_position_inputs(passes, n_prefix_tokens, max_rows)

        n_answers = [prompt_pass.state.candidates.shape[1] for prompt_pass in passes]
        max_answer = max(n_answers)
        candidates = [
            F.pad(prompt_pass.state.candidates, (0, 0, max_answer - n, 0)).expand(k, -1, -1)
            for prompt_pass, n, k in zip(passes, n_answers, n_copies, strict=True)
        ]
        first = passes[0]
        n_skipped = self._count_skipped_blocks(first)
        skipped_outputs: list[Any] = []
        if n_skipped:
            # Only the last of the skipped outputs is used by the first block that runs.
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
            pass_scores[:, max_answer - n :].flatten(1)
            for pass_scores, n in zip(token_scores, n_answers, strict=True)
        ]

    def _create_joint_edit(
        self, passes: Sequence[PromptPass], n_prefix_tokens: Sequence[int]
    ) -> AttentionEdit | None:
        """Create an edit of a joint pass, in which each pass edits only its own rows and keys."""
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
        # Keys of a joint pass: padded prefixes, padded rows, and the explicit sink if there is one.
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
        """Create an edit of whole attention maps from an edit of the last rows."""

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
    """Count the cached tokens of each pass; all passes of a prompt use the same number."""
    min_tokens: dict[int, int] = {}
    for prompt_pass in passes:
        key = id(prompt_pass.state)
        n_tokens = prompt_pass.n_prefix_tokens
        min_tokens[key] = min(n_tokens, min_tokens.get(key, n_tokens))
    return [min_tokens[id(prompt_pass.state)] for prompt_pass in passes]


def _build_position_inputs(
    passes: Sequence[PromptPass], n_prefix_tokens: Sequence[int], n_rows: int
) -> dict[str, Tensor]:
    """Build position ids of the rows, and a mask that hides the padding of the prefixes.

    Args:
        passes: The passes of a joint pass.
        n_prefix_tokens: Number of cached tokens per pass.
        n_rows: Number of rows, including padding.
    """
    max_prefix = max(n_prefix_tokens)
    device = passes[0].ids.device
    keys = torch.arange(max_prefix + n_rows, device=device)
    batch_positions, masks = [], []
    for prompt_pass, n in zip(passes, n_prefix_tokens, strict=True):
        # Padding gets the position of the last token, because a model with a table of positions
        # may have no further ones.
        positions = keys[n : n + n_rows].clamp(max=prompt_pass.ids.shape[1] - 1)
        if prompt_pass.positions is not None:
            row_positions = prompt_pass.positions[n:]
            positions = F.pad(row_positions, (0, n_rows - len(row_positions)))
        batch_positions.append(positions.expand(len(prompt_pass.ids), -1))
        mask = (keys >= max_prefix - n).long()
        masks.append(mask.expand(len(prompt_pass.ids), -1))
    return {
        "position_ids": torch.cat(batch_positions),
        "attention_mask": torch.cat(masks),
    }


def _repeat_output(output: Any, n_copies: int) -> Any:
    """Repeat a block's output for every copy, `[1, ...]` -> `[copies, ...]`."""

    def repeat(tensor: Tensor) -> Tensor:
        has_batch_axis = tensor.dim() > 0 and len(tensor) == 1
        return tensor.repeat(n_copies, *[1] * (tensor.dim() - 1)) if has_batch_axis else tensor

    return tree_map_only(Tensor, repeat, output)
