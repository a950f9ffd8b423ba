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
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from hf_attnprobe.adapters.language_model.prompt import (
    Change,
    Prompt,
    kept_words,
)
from hf_attnprobe.adapters.pretrained import forget_lengths, positions_by_length
from hf_attnprobe.adapters.transformer.adapter import in_one_line
from hf_attnprobe.adapters.transformer.layout import example_inputs
from hf_attnprobe.adapters.transformer.replay import TappedTransformer
from hf_attnprobe.adapters.transformer.resume import relative_tolerance
from hf_attnprobe.adapters.transformer.taps import Edit, OutputTap, unpacked
from hf_attnprobe.adapters.transformer.task_heads import scores_of_kept
from hf_attnprobe.errors import AttnProbeError


KeysValues = Sequence[tuple[Tensor, Tensor] | None]
"""Of every layer of the cache, each [1, heads, tokens, width]; None: it keeps none."""


class HeldLayer(DynamicLayer):
    """Keys and values of a prompt's first tokens, which every copy shares; never grows."""

    def __init__(self, keys: Tensor, values: Tensor, n_tokens: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = (
            keys[..., :n_tokens, :],
            values[..., :n_tokens, :],
        )

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """Those of the first tokens beside those of the rows that run."""
        shape = (len(key_states), -1, -1, -1)
        assert self.keys is not None and self.values is not None
        keys = torch.cat([self.keys.expand(shape), key_states], -2)
        return keys, torch.cat([self.values.expand(shape), value_states], -2)


def held_cache(kept: KeysValues, n_tokens: int) -> DynamicCache | None:
    """A cache of the first tokens; None where there are none.

    It has no configuration, so that windows keep all keys; the masks hide them.
    """
    if not n_tokens:
        return None
    cache = DynamicCache()
    cache.layers = [
        DynamicLayer() if pair is None else HeldLayer(*pair, n_tokens)
        for pair in kept
    ]
    return cache


def keys_values_of(cache: DynamicCache) -> KeysValues:
    """The keys and values of a cache that a pass has filled."""
    pairs: list[tuple[Tensor, Tensor] | None] = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        keys, values = layer.keys, layer.values
        pairs.append(None if keys is None or values is None else (keys, values))
    return pairs


class Prefilled(NamedTuple):
    """A full pass over a prompt, in the model's fastest kernels.

    Attributes:
        kept: see :class:`~hf_attnprobe.adapters.language_model.prompt.Answer`, int
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
        kept: see :class:`Prefilled`.
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
    def cut(self) -> int:
        """Rows from here on run in every replay."""
        return 0 if self.keys_values is None else self.prompt.start


class PromptPasses(TappedTransformer):
    """A twin of a language model, and the passes that are run with it."""

    _last: Prefilled | None = None

    @cached_property
    def takes(self) -> set[str]:
        """What the model's forward names; what it takes by ``**kwargs`` it may ignore."""
        return set(inspect.signature(self.model.forward).parameters)

    @property
    def continues(self) -> bool:
        """Whether the model goes on from keys and values, and shorter texts have the same."""
        return self._example is not None and not self.by_length

    @cached_property
    def by_length(self) -> bool:
        """Whether positions depend on how long a text is; each is then run by itself."""
        return positions_by_length(self.model.config)

    @cached_property
    def _example(self) -> KeysValues | None:
        """Keys and values of the example; None if the model does not go on from them."""
        if "past_key_values" not in self.takes:
            return None
        ids, cache = example_inputs(self.model)["input_ids"], DynamicCache()
        half = ids.shape[1] // 2
        try:
            with torch.no_grad():
                whole = self._logits_of(ids, half, cache)
                kept = keys_values_of(cache)
                held = held_cache(kept, half)
                rest = self._logits_of(ids[:, half:], half, held)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a model raises whatever it likes
            return None
        return kept if self.agree(rest, whole) else None

    @property
    def n_shared(self) -> list[int]:
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
        if "position_ids" not in self.takes:
            return False
        ids = example_inputs(self.model)["input_ids"]
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        try:
            with torch.no_grad():
                own = self.logits(inputs)
                return self.agree(
                    self.logits({**inputs, "position_ids": positions}), own
                )
        except (RuntimeError, IndexError, TypeError):
            return False

    def agree(self, found: Tensor, expected: Tensor) -> bool:
        """Whether two ways to compute the same scores did."""
        tolerance = relative_tolerance(self.model.dtype) * expected.abs().max()
        return bool((found - expected).abs().max() <= tolerance)

    def _logits_of(
        self, ids: Tensor, n_read: int, cache: DynamicCache | None
    ) -> Tensor:
        """Logits [n_read, words] of the last rows, as the model computes them."""
        forget_lengths(self.model)
        logits = self.logits(
            {"input_ids": ids, **self._arguments(cache, n_read)}
        )[0]
        return logits.unflatten(
            0, (-1, self.model.config.get_text_config().vocab_size)
        )[-n_read:]

    def _arguments(
        self, cache: DynamicCache | None, n_read: int
    ) -> dict[str, Any]:
        # a slice of a batch would make its head copy the words' weights for every text
        last = torch.arange(-n_read, 0, device=self.model.device)
        given: dict[str, Any] = {"logits_to_keep": last}
        if cache is not None:
            given |= {"past_key_values": cache, "use_cache": True}
        return {name: given[name] for name in given if name in self.takes}

    @torch.no_grad()
    def prefilled(self, inputs: Mapping[str, Tensor]) -> Prefilled:
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
        cache = DynamicCache() if self.continues else None
        with in_one_line(inputs):
            logits = self._logits_of(ids, n_answer, cache)
        if not logits.isfinite().all():
            raise AttnProbeError(
                f"expected finite logits, got NaN or infinity in {self.model.dtype}; "
                "load the model in float32 or bfloat16"
            )
        if kept is None:
            said, other = (
                inputs[n][0, -n_answer:] for n in ("input_ids", "other_ids")
            )
            kept = kept_words(logits, said, other)[None]
        scores = scores_of_kept(logits[None], kept).flatten(1)
        self._last = Prefilled(
            kept, scores, None if cache is None else keys_values_of(cache)
        )
        return self._last

    def scores_of(
        self,
        ids: Tensor,
        kept: Tensor,
        edit: Edit | None = None,
        *,
        cache: DynamicCache | None = None,
        outputs: Sequence[Any] = (),
        tap: OutputTap | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Returns scores [batch, scores] of the answer, from one pass over the last tokens.

        Args:
            ids: int [batch, rows].
            kept: see :class:`Prefilled`.
            cache: of the tokens before them.
            edit, outputs, tap: see :meth:`logits`.
            others: further arguments of the model; ``n_padded``, see :class:`Answer`.
        """
        others = dict(others or {})
        n_read = kept.shape[1]
        if "n_padded" in others:
            n_read += int(others["n_padded"].max())
        arguments = self._arguments(cache, n_read) | others
        inputs = {"input_ids": ids, "kept": kept, **arguments}
        forget_lengths(self.model)
        n_keys = ids.shape[1]
        if cache is not None:
            n_keys += cache.get_seq_length()
        return self.logits(inputs, edit, outputs, tap, n_keys=n_keys)

    def rows_from(
        self,
        layer: int,
        state: PassageState,
        n_copies: int = 1,
        change: Change | None = None,
        tap: OutputTap | None = None,
    ) -> Tensor:
        """Scores [copies, scores] of a pass over the rows that run.

        Args:
            layer: the pass begins with the block of this layer.
            state: what is known of the prompt.
            n_copies: how many copies are run.
            change: what the rows that may move go through; ``None``: nothing.
            tap: what the heads' outputs go through.
        """
        n_skipped = self.layers[layer].n_skipped if state.outputs else 0
        below: list[Any] = []
        if (
            n_skipped
        ):  # blocks that do not run hand on what the last of them returned
            below = [
                _shared(state.outputs[n_skipped - 1], n_copies)
            ] * n_skipped
        return self.scores_of(
            state.prompt.ids[:, state.cut :].expand(n_copies, -1),
            state.kept,
            None if change is None else self._editing(state.prompt, change),
            cache=held_cache(state.keys_values or (), state.cut),
            outputs=below,
            tap=tap,
        )

    def _editing(self, prompt: Prompt, change: Change) -> Edit:
        """Returns the edit that changes the rows that may move, which are the last ones."""

        def edit(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            n_heads = self.n_heads[layer]
            by_head = unpacked(weights, n_heads)
            n_before = by_head.shape[2] - prompt.n_rows
            rows = by_head[:, :, n_before:]
            of_rows = unpacked(scores, n_heads)[:, :, n_before:]
            columns = prompt.columns(weights.shape[-1])
            new = change(layer, rows, of_rows, columns)
            if new is rows:
                return weights
            if n_before:
                new = torch.cat(
                    [by_head[:, :, :n_before], new.to(rows.dtype)], 2
                )
            return new.reshape(weights.shape)

        return edit


def _shared(output: Any, n_copies: int) -> Any:
    """A block's output for every copy, [1, ...] -> [copies, ...]."""

    def share(tensor: Tensor) -> Tensor:
        is_of_text = tensor.dim() > 0 and len(tensor) == 1
        return (
            tensor.repeat(n_copies, *[1] * (tensor.dim() - 1))
            if is_of_text
            else tensor
        )

    return tree_map_only(Tensor, share, output)
