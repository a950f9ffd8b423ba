"""Passes of a language model over a prompt: the whole one once, then only its last rows.

No row sees a later one, so what comes before the first row that may move is computed once, as
keys and values. Rows behind it run with these, all copies of an edit as a batch over the same
ones, from the lowest edited block up. Where a pass that goes on from keys and values does not
agree with the model's own (hybrids), all rows run.
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
    RowEdit,
    Prompt,
    select_candidate_words,
)
from hf_attnprobe.adapters.pretrained import reset_dynamic_positions, has_length_dependent_positions
from hf_attnprobe.adapters.transformer.adapter import shorten_model_errors
from hf_attnprobe.adapters.transformer.attention_hooks import AttentionEdit, OutputHook, unpack_heads
from hf_attnprobe.adapters.transformer.layout import (
    EXAMPLE_LENGTH,
    create_example_inputs,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import get_relative_tolerance
from hf_attnprobe.adapters.transformer.replay import HookedTransformer
from hf_attnprobe.adapters.transformer.task_heads import compute_candidate_scores
from hf_attnprobe.core.errors import AttnProbeError


DELETION_TOKENS_ON_CPU = 512
"""Rows of shorter prompts in a pass: more at once take no less time each."""
FREE_TOKENS_ON_GPU = 1024
"""Of a pass on a GPU that are taken to cost no time beside the start of its kernels: through 7 billion
weights 200 took .02 to .04 s and 2,000 .06 s (H200)."""
MAX_REPEATED_SHARE = 1 / 4
"""Of the rows of a prompt in such a pass those that need not run."""

KeysValues = Sequence[tuple[Tensor, Tensor] | None]
"""Of every layer of the cache, each [1, heads, tokens, width]; None: it keeps none."""


class CachedPrefixLayer(DynamicLayer):
    """Keys and values of prompts' first tokens, in front of the rows that run; never grows.

    Those of fewer tokens are padded in front. All copies of a prompt share them.

    Args:
        keys, values: of each prompt, [1, heads, tokens, width].
        n_copies: of each.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        n_copies: Sequence[int],
    ) -> None:
        super().__init__()
        self.lazy_initialization(keys[0], values[0])
        self._keys, self._values, self._n_copies = keys, values, n_copies
        self.keys = max(keys, key=lambda some: some.shape[-2])

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Those of the first tokens beside those of the rows that run."""
        keys = torch.cat([self._in_front(self._keys), key_states], -2)
        return keys, torch.cat([self._in_front(self._values), value_states], -2)

    def _in_front(self, held: Sequence[Tensor]) -> Tensor:
        n_tokens = self.get_seq_length()
        padded = [
            F.pad(one, (0, 0, n_tokens - one.shape[-2], 0)).expand(n, -1, -1, -1)
            for one, n in zip(held, self._n_copies, strict=True)
        ]
        return torch.cat(padded) if len(padded) > 1 else padded[0]


def build_prefix_cache(
    kept: Sequence[KeysValues | None],
    n_tokens: Sequence[int],
    n_copies: Sequence[int],
) -> DynamicCache | None:
    """A cache of the first tokens of some prompts; None where there are none.

    It has no configuration, so that windows keep all keys; the masks hide them.
    """
    if not any(n_tokens):
        return None
    cache = DynamicCache()
    cache.layers = []
    for pairs in zip(*kept, strict=True):  # of a layer, of each prompt
        if None in pairs:
            cache.layers.append(DynamicLayer())
            continue
        keys, values = (
            [one[..., :n, :] for one, n in zip(some, n_tokens, strict=True)]
            for some in zip(*pairs, strict=True)
        )
        cache.layers.append(CachedPrefixLayer(keys, values, n_copies))
    return cache


def get_keys_values(cache: DynamicCache) -> KeysValues:
    """The keys and values of a cache that a pass has filled."""
    pairs: list[tuple[Tensor, Tensor] | None] = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        keys, values = layer.keys, layer.values
        pairs.append(None if keys is None or values is None else (keys, values))
    return pairs


class PrefillResult(NamedTuple):
    """A full pass over a prompt, in the model's fastest kernels.

    Attributes:
        kept: see :class:`~hf_attnprobe.adapters.language_model.prompt.AnswerHead`, int
            [1, answer tokens, words].
        scores: [1, scores].
        keys_values: None where the model cannot go on from them.
    """

    kept: Tensor
    scores: Tensor
    keys_values: KeysValues | None


class PassageState(NamedTuple):
    """Results of one pass from which replays start.

    Attributes:
        prompt: its places.
        kept: see :class:`PrefillResult`.
        keys_values: of all its tokens; None where the model cannot go on from them.
        outputs: what every block call returned, of the rows that run.
        visible: per layer bool [1, rows, columns].
    """

    prompt: Prompt
    kept: Tensor
    keys_values: KeysValues | None
    outputs: tuple[Any, ...] = ()
    visible: tuple[Tensor, ...] = ()

    @property
    def first_run_row(self) -> int:
        """Rows from here on run in every replay."""
        return 0 if self.keys_values is None else self.prompt.first_row


class PromptPass(NamedTuple):
    """Copies of a prompt, or of what is left of it, that run from the first row on that differs.

    Attributes:
        state: what is known of the prompt.
        ids: int [copies, tokens].
        n_same: so many first tokens are the prompt's own, and are not read.
        change: what the rows that may move go through; None: nothing.
        tap: what the heads' outputs go through.
        layer: the pass begins with the block of this layer.
        places: int [tokens], their positions; None: as they stand.
        n_behind: of the last tokens those that predict nothing of the answer.
    """

    state: PassageState
    ids: Tensor
    n_same: int
    change: RowEdit | None = None
    tap: OutputHook | None = None
    layer: int = 0
    places: Tensor | None = None
    n_behind: int = 0

    @property
    def n_rows(self) -> int:
        """Rows of a copy that run."""
        return self.ids.shape[1] - self.n_same


class PromptRunner(HookedTransformer):
    """A twin of a language model, and the passes that are run with it."""

    _last: PrefillResult | None = None

    @cached_property
    def forward_parameters(self) -> set[str]:
        """What the model's forward names; what it takes by ``**kwargs`` it may ignore."""
        return set(inspect.signature(self.model.forward).parameters)

    @property
    def supports_prefix_cache(self) -> bool:
        """Whether the model goes on from keys and values, and shorter texts have the same."""
        return self._example is not None and not self.has_length_dependent_positions

    @cached_property
    def has_length_dependent_positions(self) -> bool:
        """Whether positions depend on how long a text is; each is then run by itself."""
        return has_length_dependent_positions(self.model.config)

    @cached_property
    def _example(self) -> KeysValues | None:
        """Keys and values of the example; None if the model does not go on from them."""
        if "past_key_values" not in self.forward_parameters:
            return None
        ids, cache = create_example_inputs(self.model)["input_ids"], DynamicCache()
        half = ids.shape[1] // 2
        try:
            with torch.no_grad():
                whole = self._logits_of(ids, half, cache)
                kept = get_keys_values(cache)
                held = build_prefix_cache([kept], [half], [1])
                rest = self._logits_of(ids[:, half:], half, held)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a model raises whatever it likes
            return None
        return kept if self.scores_agree(rest, whole) else None

    @property
    def n_sharing_heads(self) -> list[int]:
        """Returns for every layer how many heads share keys and values; 1 where it is not known."""
        kept = self._example or ()
        if len(kept) != len(self.layers):
            return [1] * len(self.layers)
        return [
            1 if pair is None else n_heads // pair[0].shape[1]
            for n_heads, pair in zip(self.n_heads, kept, strict=True)
        ]

    @cached_property
    def keeps_positions(self) -> bool:
        """Whether ``position_ids`` are the positions of tokens, from 0 on; tried once."""
        if "position_ids" not in self.forward_parameters:
            return False
        ids = create_example_inputs(self.model)["input_ids"]
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        try:
            with torch.no_grad():
                own = self.compute_logits(inputs)
                return self.scores_agree(self.compute_logits({**inputs, "position_ids": positions}), own)
        except (RuntimeError, IndexError, TypeError):
            return False

    @cached_property
    def can_join_prompts(self) -> bool:
        """Whether prompts of unequal lengths run as one pass; tried once."""
        if not (self.supports_prefix_cache and self.keeps_positions):
            return False
        n_words = self.model.config.get_text_config().vocab_size
        numbers = torch.arange(1, EXAMPLE_LENGTH + 1, device=self.model.device)
        ids = numbers[None] % n_words
        tried = [self._tried(some) for some in (ids, ids[:, :-2])]
        try:
            found = self._run_joined([one for one, _ in tried])
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a model raises whatever it likes
            return False
        return all(
            self.scores_agree(scores, alone) for scores, (_, alone) in zip(found, tried, strict=True)
        )

    def _tried(self, ids: Tensor) -> tuple[PromptPass, Tensor]:
        """A pass over the second half of some tokens as a prompt, and its scores by itself."""
        place = torch.arange(ids.shape[1], device=ids.device)[None]
        inputs = {
            "input_ids": ids,
            "unit_ids": (place == ids.shape[1] // 2).long() - 1,
            "labelled": (place == ids.shape[1] - 1).long(),
            "other_ids": torch.full_like(ids, -1),
        }
        whole = self.prefill(inputs)
        state = PassageState(Prompt(inputs, "behind"), whole.kept, whole.keys_values)
        return PromptPass(state, state.prompt.ids, state.first_run_row), whole.scores

    def scores_agree(self, found: Tensor, expected: Tensor) -> bool:
        """Whether two ways to compute the same scores did."""
        tolerance = get_relative_tolerance(self.model.dtype) * expected.abs().max()
        return bool((found - expected).abs().max() <= tolerance)

    def _logits_of(self, ids: Tensor, n_read: int, cache: DynamicCache | None) -> Tensor:
        """Logits [n_read, words] of the last rows, as the model computes them."""
        reset_dynamic_positions(self.model)
        logits = self.compute_logits({"input_ids": ids, **self._arguments(cache, n_read)})[0]
        return logits.unflatten(0, (-1, self.model.config.get_text_config().vocab_size))[-n_read:]

    def _arguments(self, cache: DynamicCache | None, n_read: int) -> dict[str, Any]:
        # a slice of a batch would make its head copy the words' weights for every text
        last = torch.arange(-n_read, 0, device=self.model.device)
        given: dict[str, Any] = {"logits_to_keep": last}
        if cache is not None:
            given |= {"past_key_values": cache, "use_cache": True}
        return {name: given[name] for name in given if name in self.forward_parameters}

    @torch.no_grad()
    def prefill(self, inputs: Mapping[str, Tensor]) -> PrefillResult:
        """The model's own pass over a prompt; that of the last prompt is kept.

        Args:
            inputs: of a prompt; ``kept`` where it is known already.
        """
        kept = inputs.get("kept")
        if self._last is not None and self._last.kept is kept:
            return self._last
        ids, n_answer = (
            inputs["input_ids"][:, :-1],
            int(inputs["labelled"].sum()),
        )
        cache = DynamicCache() if self.supports_prefix_cache else None
        with shorten_model_errors(inputs):
            logits = self._logits_of(ids, n_answer, cache)
        if not logits.isfinite().all():
            raise AttnProbeError(
                f"expected finite logits, got NaN or infinity in {self.model.dtype}; "
                "load the model in float32 or bfloat16"
            )
        if kept is None:
            said, other = (inputs[n][0, -n_answer:] for n in ("input_ids", "other_ids"))
            kept = select_candidate_words(logits, said, other)[None]
        scores = compute_candidate_scores(logits[None], kept).flatten(1)
        self._last = PrefillResult(kept, scores, None if cache is None else get_keys_values(cache))
        return self._last

    def compute_answer_scores(
        self,
        ids: Tensor,
        kept: Tensor,
        edit: AttentionEdit | None = None,
        *,
        cache: DynamicCache | None = None,
        outputs: Sequence[Any] = (),
        tap: OutputHook | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Returns scores [batch, scores] of the answer, from one pass over the last tokens.

        Args:
            ids: int [batch, rows].
            kept: see :class:`PrefillResult`.
            cache: of the tokens before them.
            edit, outputs, tap: see :meth:`logits`.
            others: further arguments of the model; ``n_padded``, see :class:`AnswerHead`.
        """
        others = dict(others or {})
        n_read = kept.shape[1]
        if "n_padded" in others:
            n_read += int(others["n_padded"].max())
            n_read = min(n_read, ids.shape[1])
        arguments = self._arguments(cache, n_read) | others
        inputs = {"input_ids": ids, "kept": kept, **arguments}
        reset_dynamic_positions(self.model)
        n_keys = ids.shape[1]
        if cache is not None:
            n_keys += cache.get_seq_length()
        return self.compute_logits(inputs, edit, outputs, tap, n_keys=n_keys)

    def compute_row_scores(
        self,
        state: PassageState,
        change: RowEdit | None = None,
        tap: OutputHook | None = None,
    ) -> Tensor:
        """Scores [1, scores] of a pass over the rows that run, see :class:`PromptPass`."""
        one = PromptPass(state, state.prompt.ids, state.first_run_row, change, tap)
        return self._run_joined([one])[0]

    # Passes that are one

    def run_passes(self, passes: Sequence[PromptPass]) -> list[Tensor]:
        """Scores [copies, scores] of each; what differs first at about the same place runs as one.

        Few tokens at once take the time to read the model's weights.
        """
        numbers = range(len(passes))
        longest_first = sorted(numbers, key=lambda k: -passes[k].n_rows)
        groups: list[list[int]] = []
        for k in longest_first:
            if groups and self._fits([passes[n] for n in groups[-1]], passes[k]):
                groups[-1].append(k)
            else:
                groups.append([k])
        found: dict[int, Tensor] = {}
        for group in groups:
            scores = self._run_joined([passes[k] for k in group])
            found |= zip(group, scores, strict=True)
        return [found[k] for k in numbers]

    def _fits(self, group: Sequence[PromptPass], one: PromptPass) -> bool:
        """Whether a pass of no more rows than those of a group may be run with them."""
        first = group[0]
        alone = any(some.tap is not None or self._n_skipped(some) for some in (first, one))
        is_other = one.state is not first.state
        is_edit = one.change is not None
        if alone or self.has_length_dependent_positions or is_edit != (first.change is not None):
            return False
        if is_other and not self.can_join_prompts:
            return False
        n_copies = sum(len(some.ids) for some in (*group, one))
        if is_edit:
            n_keys = max(some.ids.shape[1] for some in (*group, one))
            return n_copies * n_keys <= self.tokens_per_pass
        at_once, for_free = self.tokens_per_pass, FREE_TOKENS_ON_GPU
        if self.model.device.type == "cpu":
            at_once, for_free = min(at_once, DELETION_TOKENS_ON_CPU), 0
        is_near = one.n_rows >= first.n_rows * (1 - MAX_REPEATED_SHARE)
        return n_copies * first.n_rows <= (at_once if is_near else for_free)

    def _n_skipped(self, one: PromptPass) -> int:
        """Blocks that do not run; they hand on what the last of them returned."""
        return self.layers[one.layer].n_blocks_before if one.state.outputs else 0

    def _run_joined(self, passes: Sequence[PromptPass]) -> list[Tensor]:
        """Scores of each, from one pass of the model.

        Rows are padded behind, where no row of theirs sees it; what stands in front of them, of
        several prompts, is padded in front and hidden by a mask.
        """
        n_held = _first_tokens(passes)
        n_copies = [len(one.ids) for one in passes]
        rows = [one.ids[:, n:] for one, n in zip(passes, n_held, strict=True)]
        longest = max(some.shape[1] for some in rows)
        n_padded = [
            longest - some.shape[1] + one.n_behind for one, some in zip(passes, rows, strict=True)
        ]
        ids = torch.cat([F.pad(some, (0, longest - some.shape[1])) for some in rows])
        others: dict[str, Any] = {}
        if any(n_padded):
            copies = torch.tensor(n_copies, device=ids.device)
            padded = torch.tensor(n_padded, device=ids.device)
            others["n_padded"] = padded.repeat_interleave(copies)
        is_kept = any(one.places is not None for one in passes)
        if is_kept or len({*n_held}) > 1:
            # without a mask other positions are taken for several packed texts
            others |= _positions(passes, n_held, longest)

        n_answers = [one.state.kept.shape[1] for one in passes]
        most = max(n_answers)
        kept = [
            F.pad(one.state.kept, (0, 0, most - n, 0)).expand(k, -1, -1)
            for one, n, k in zip(passes, n_answers, n_copies, strict=True)
        ]
        first = passes[0]
        n_skipped = self._n_skipped(first)
        below: list[Any] = []
        if n_skipped:
            output = first.state.outputs[n_skipped - 1]
            below = [_shared(output, len(ids))] * n_skipped
        keys_values = [one.state.keys_values for one in passes]
        with shorten_model_errors({"input_ids": ids}):
            scores = self.compute_answer_scores(
                ids,
                torch.cat(kept),
                self._edit_of(passes, n_held),
                cache=build_prefix_cache(keys_values, n_held, n_copies),
                outputs=below,
                tap=first.tap,
                others=others,
            )
        by_token = scores.unflatten(-1, (most, -1)).split(n_copies)
        return [some[:, most - n :].flatten(1) for some, n in zip(by_token, n_answers, strict=True)]

    def _edit_of(self, passes: Sequence[PromptPass], n_held: Sequence[int]) -> AttentionEdit | None:
        """The edit that shows each prompt's change its own rows and keys alone."""
        changes = [
            self._editing(one.state.prompt, one.change) for one in passes if one.change is not None
        ]
        if len(changes) < 2:
            return next(iter(changes), None)
        n_copies = [len(one.ids) for one in passes]
        ends = [one.ids.shape[1] - n for one, n in zip(passes, n_held, strict=True)]
        begin = max(n_held)
        behind = begin + max(ends)

        def edit(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            n_heads = self.n_heads[layer]
            by_head = unpack_heads(weights, n_heads)
            every = torch.arange(by_head.shape[-1], device=weights.device)
            edited = []
            parts = zip(
                by_head.split(n_copies),
                unpack_heads(scores, n_heads).split(n_copies),
                strict=True,
            )
            for (own, before), change, n, end in zip(parts, changes, n_held, ends, strict=True):
                of_sink = every[behind:]
                keys = torch.cat([every[begin - n : begin + end], of_sink])
                new = own.clone()
                new[:, :, :end, keys] = change(
                    layer, own[:, :, :end, keys], before[:, :, :end, keys]
                ).to(new.dtype)
                edited.append(new)
            return torch.cat(edited).reshape(weights.shape)

        return edit

    def _editing(self, prompt: Prompt, change: RowEdit) -> AttentionEdit:
        """Returns the edit that changes the rows that may move, which are the last ones."""

        def edit(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            n_heads = self.n_heads[layer]
            by_head = unpack_heads(weights, n_heads)
            n_before = by_head.shape[2] - prompt.n_rows
            rows = by_head[:, :, n_before:]
            of_rows = unpack_heads(scores, n_heads)[:, :, n_before:]
            columns = prompt.get_columns(weights.shape[-1])
            new = change(layer, rows, of_rows, columns)
            if new is rows:
                return weights
            if n_before:
                new = torch.cat([by_head[:, :, :n_before], new.to(rows.dtype)], 2)
            return new.reshape(weights.shape)

        return edit


def _first_tokens(passes: Sequence[PromptPass]) -> list[int]:
    """How many tokens stand in front of each pass's rows: as many in all those of a prompt."""
    fewest: dict[int, int] = {}
    for one in passes:
        name = id(one.state)
        fewest[name] = min(one.n_same, fewest.get(name, one.n_same))
    return [fewest[id(one.state)] for one in passes]


def _positions(passes: Sequence[PromptPass], n_held: Sequence[int], n_rows: int) -> dict[str, Tensor]:
    """The positions of rows, and a mask that hides what is padded in front of them."""
    begin = max(n_held)
    device = passes[0].ids.device
    keys = torch.arange(begin + n_rows, device=device)
    positions, masks = [], []
    for one, n in zip(passes, n_held, strict=True):
        # padding has the last one: models with a table of positions have no more
        places = keys[n : n + n_rows].clamp(max=one.ids.shape[1] - 1)
        if one.places is not None:
            kept = one.places[n:]
            places = F.pad(kept, (0, n_rows - len(kept)))
        positions.append(places.expand(len(one.ids), -1))
        mask = (keys >= begin - n).long()
        masks.append(mask.expand(len(one.ids), -1))
    return {
        "position_ids": torch.cat(positions),
        "attention_mask": torch.cat(masks),
    }


def _shared(output: Any, n_copies: int) -> Any:
    """A block's output for every copy, [1, ...] -> [copies, ...]."""

    def share(tensor: Tensor) -> Tensor:
        is_of_text = tensor.dim() > 0 and len(tensor) == 1
        return tensor.repeat(n_copies, *[1] * (tensor.dim() - 1)) if is_of_text else tensor

    return tree_map_only(Tensor, share, output)
