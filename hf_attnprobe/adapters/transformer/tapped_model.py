"""A Transformer that is run with edits of its attention, from any block on."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters.transformer.attention_tap import (
    Edit,
    replacing,
    tapped,
    untouched,
)
from hf_attnprobe.adapters.transformer.layout import (
    N_PROBED,
    example_inputs,
    find_layout,
    frozen_twin,
)
from hf_attnprobe.adapters.transformer.output_tap import OutputTap
from hf_attnprobe.adapters.transformer.readout import layer_names
from hf_attnprobe.adapters.transformer.resume import (
    recorded_calls,
    relative_tolerance,
    repeated,
    resumed,
    with_first_tensor,
)
from hf_attnprobe.adapters.transformer.short_replay import ShortReplay, find_sublayers
from hf_attnprobe.adapters.transformer.stacks import stack_notes
from hf_attnprobe.adapters.transformer.sublayers import Sublayer
from hf_attnprobe.adapters.transformer.task_heads import OURS, TaskHead


TOKENS_PER_PASS = {"cpu": 4096}
"""By device. On a CPU core larger passes leave the caches.

8,192 tokens take 10 to 30% more time per token, 1,024 up to 20%.
"""


class TappedTransformer:
    """A twin of a model that shares its weights, and where its attention is.

    Attributes:
        model: the twin, in eval mode.
        head: what the model predicts.
        layout: see :class:`~hf_attnprobe.adapters.transformer.layout.Layout`.
        layers: kind and heads of each layer; the position is the layer's number.
        n_heads: number of heads of each layer.
        layer_names: "layer.3", or "encoder.0", "decoder.0", "cross.0".
        tokens_per_pass: how many tokens are fed at once.
        caches: whether the model may be told to keep no cache.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: TaskHead,
        *,
        dtype: torch.dtype | None = None,
        tokens_per_pass: int | None = None,
    ) -> None:
        self.model, self.head = frozen_twin(model, dtype), head
        self.layout = find_layout(self.model, head)
        self.layers = self.layout.layers
        self.n_heads = [layer.n_heads for layer in self.layers]
        self.layer_names = layer_names(self.layers)
        self.caches = "use_cache" in inspect.signature(self.model.forward).parameters
        at_once = TOKENS_PER_PASS.get(self.model.device.type, 65536)
        self.tokens_per_pass = tokens_per_pass or at_once

    def stack_notes(self) -> list[str]:
        """Sentences about layers that are not numbered as the model's own."""
        return stack_notes(self.model, self.layers, self.layer_names)

    def logits(
        self,
        inputs: Mapping[str, Tensor],
        edit: Edit | None = None,
        outputs: Sequence[Any] = (),
        tap: OutputTap | None = None,
    ) -> Tensor:
        """The head's scores [batch, scores] of one forward pass.

        Args:
            inputs: the model's keyword arguments, and what the head knows of the texts.
            edit: what the attention of every layer goes through.
            outputs: what the first block calls return instead of running.
            tap: what the heads' outputs go through.
        """
        arguments = self.arguments(inputs)
        first = sum(layer.n_skipped < len(outputs) for layer in self.layers)
        modules = {} if edit is None and tap is None else self.layout.modules
        with (
            tapped(modules, edit or untouched, first=first, outputs=tap),
            resumed(self.layout.blocks if outputs else (), outputs),
        ):
            result = self.model(**arguments)
        scores = self.head.scores(result, inputs)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def from_last(
        self,
        inputs: Mapping[str, Tensor],
        outputs: Sequence[Any],
        hidden: Tensor,
    ) -> Tensor:
        """The head's scores [copies, batch, scores] of last hidden states.

        Args:
            inputs: see :meth:`logits`.
            outputs: of every block call.
            hidden: [copies, batch, queries, hidden], in place of the last of them.
        """

        def run(inputs: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
            last = with_first_tensor(outputs[-1], hidden)
            return self.logits(inputs, None, (*outputs[:-1], last))

        if self.vectorises:
            return torch.func.vmap(partial(run, inputs))(hidden)
        n_copies, n_batch = hidden.shape[:2]
        inputs = repeated(dict(inputs), n_copies, n_batch)
        return run(inputs, hidden.flatten(0, 1)).unflatten(0, (n_copies, n_batch))

    @cached_property
    def sublayers(self) -> list[Sublayer] | None:
        """The attention of every block, where replays may be short.

        Tried once, on the example, an edit in every layer; None where a model is built
        in another way.
        """
        kinds = {layer.kind for layer in self.layers}
        is_spread = getattr(self.model, "hf_device_map", None) is not None
        if kinds != {"layer"} or self.layout.embeddings.sequence_first or is_spread:
            return None
        try:
            with torch.no_grad():
                return self._tried_sublayers()
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a block raises whatever it likes
            return None

    def _tried_sublayers(self) -> list[Sublayer] | None:
        inputs, attention = example_inputs(self.model), []

        def note(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            attention.append(weights)
            return weights

        with recorded_calls(self.layout.blocks) as calls:
            native = self.logits(inputs, note)
        sublayers = find_sublayers(calls, self.layout.modules, self.n_heads)
        if sublayers is None:
            return None
        mask = torch.ones_like(attention[0][:, 0, 0], dtype=torch.bool)
        head = partial(self.from_last, inputs, [call.output for call in calls])
        short = ShortReplay(calls, sublayers, attention, mask, head)
        tolerance = relative_tolerance(self.model.dtype)
        for layer, weights in enumerate(attention):
            edited = weights.flip(-1)
            expected = self.logits(inputs, replacing({layer: edited}))
            found = short.replay(layer, edited.repeat(2, 1, 1, 1, 1))
            error = (found - expected).abs().max()
            if not error <= tolerance * native.abs().max():
                return None
        return sublayers

    def arguments(self, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the model is called with: the inputs that are not this package's own."""
        own = {name: value for name, value in inputs.items() if name not in OURS}
        arguments = self.head.arguments(own)
        if self.caches:
            arguments["use_cache"] = False
        return arguments

    @cached_property
    def vectorises(self) -> bool:
        """Whether ``torch.func.vmap`` can run the model over several edits.

        Tried once, on the example: an error in an audit is never taken for this. vmap
        refuses layers that look at values (routers, overflow guards) and autograd
        functions of a model's own (Bloom).
        """
        inputs = example_inputs(self.model)
        n_keys = self.layout.n_keys or N_PROBED
        shape = (2, 1, self.n_heads[0], n_keys, n_keys)
        edits = torch.full(shape, 1 / n_keys, device=self.model.device)
        run = torch.func.vmap(lambda edit: self.logits(inputs, replacing({0: edit})))
        try:
            with torch.no_grad():
                run(edits)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return False
        return True
