"""A Transformer that is run with edits of its attention, from any block on."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
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
from hf_attnprobe.adapters.transformer.resume import resumed
from hf_attnprobe.adapters.transformer.stacks import stack_notes
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
        self.accepted = inspect.signature(self.model.forward).parameters.keys()
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

    def arguments(self, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the model is called with: the inputs that are not this package's own."""
        own = {name: value for name, value in inputs.items() if name not in OURS}
        arguments = self.head.arguments(own)
        if "use_cache" in self.accepted:
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
