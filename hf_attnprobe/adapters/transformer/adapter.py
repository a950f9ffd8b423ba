"""Any Transformer with a classification head as an :class:`AttentionModel`: tap, edit, resume."""

import inspect
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_attnprobe.adapters.input_erasure import erased_probs
from hf_attnprobe.adapters.token_deletion import deletions, sum_pieces
from hf_attnprobe.adapters.transformer.attention_tap import (
    Edit,
    replacing,
    tapped,
    untouched,
    visible_keys,
)
from hf_attnprobe.adapters.transformer.block_output import block_output
from hf_attnprobe.adapters.transformer.embedding_gradient import gradient_times_input
from hf_attnprobe.adapters.transformer.head_outputs import (
    check_outputs,
    head_outputs,
    output_projections,
    reference_of,
)
from hf_attnprobe.adapters.transformer.layout import (
    example_inputs,
    find_layout,
    frozen_twin,
)
from hf_attnprobe.adapters.transformer.memory import bytes_per_example
from hf_attnprobe.adapters.transformer.output_tap import OutputTap
from hf_attnprobe.adapters.transformer.preparation import LEVELS, masks, units
from hf_attnprobe.adapters.transformer.readout import (
    layer_names,
    pads_left,
    probabilities,
    query_rows,
    readout_of,
)
from hf_attnprobe.adapters.transformer.replay import (
    masking,
    replay_logits,
    replay_outputs,
)
from hf_attnprobe.adapters.transformer.resume import recorded, resumed
from hf_attnprobe.adapters.transformer.self_check import self_check
from hf_attnprobe.attention_model import (
    AttentionModelBase,
    Batch,
    EditableInputs,
    HeadValues,
    LinearReadout,
    Observation,
    Reference,
    Site,
    Stack,
)
from hf_attnprobe.errors import AttnProbeError


TOKENS_PER_PASS = {"cpu": 4096}
"""On a CPU core larger passes leave the caches: 8,192 tokens take 10 to 30% more time per token, 1,024 up to 20%."""


class TransformerState(NamedTuple):
    """What one forward pass leaves for replays.

    outputs: of every block call, in order. visible: per layer bool [batch, queries, keys], what the mask lets be seen.
    """

    outputs: tuple[Any, ...]
    visible: tuple[Tensor, ...]


class TransformerAdapter(AttentionModelBase):
    """Reads and edits the attention of every layer and head of a ``PreTrainedModel`` with a classification head.

    Works on a twin of the model that shares its weights (in eval mode, as loaded: eager or sdpa, half precision or
    not): the user's own model is never hooked, switched or changed. Move it to its device before.

    Args:
        model: a text or image classifier; two or more logits are classes, one logit is a sigmoid.
        dtype: what to compute in; ``None``: as loaded.
        level: what is explained and left out, "token" or "word" (all its pieces together, represented by the first);
            ``None``: words where :meth:`prepare` is given ``word_ids``.
        readout: the query row that the prediction is read from, "first", "last" or "mean"; ``None``: found out, see
            :func:`~hf_attnprobe.adapters.transformer.readout.query_rows`.
        tokens_per_pass: how many tokens to feed at once in replays and leave-one-out; ``None``: by device.

    Attributes:
        layers: kind and heads of each layer; the position in this list is the layer's number.
        layer_names: "layer.3", or "encoder.0", "decoder.0", "cross.0".
        mask_id: the token that stands in for an erased one; None until it is set, as an audit does.
    """

    mask_id: int | None = None

    def __init__(
        self,
        model,
        *,
        dtype: torch.dtype | None = None,
        level: str | None = None,
        readout: str | None = None,
        tokens_per_pass: int | None = None,
    ):
        if level not in (None, *LEVELS):
            raise AttnProbeError(
                f"expected level to be one of {', '.join(LEVELS)}, got {level!r}"
            )
        self.model = frozen_twin(model, dtype)
        self.layout = find_layout(self.model)
        self.layers = self.layout.layers
        self.layer_names = layer_names(self.layers)
        self.level, self.readout = level, readout_of(self.model.config, readout)
        self.tokens_per_pass = tokens_per_pass or TOKENS_PER_PASS.get(
            self.model.device.type, 65536
        )
        # Whole passes over a core's cache: on a CPU smaller ones are faster, measured at 512 to 4096 tokens.
        self.tokens_per_deletion_pass = (
            1024 if self.model.device.type == "cpu" else self.tokens_per_pass
        )
        self.accepted = inspect.signature(self.model.forward).parameters.keys()
        self.pads_left = pads_left(self.model.config)
        self.reference: Reference | None = None
        self.vectorises = True  # until it turns out that vmap cannot run this model

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        if capability is LinearReadout:
            return "a Transformer's logits are not linear in its attention"
        if capability is EditableInputs and self.layout.n_keys is not None:
            return "no token can be removed from images"
        if capability is HeadValues:
            return self._why_no_values
        if capability is Stack:
            return self._why_no_stack(site)
        return super().lacks(capability, site)

    @cached_property
    def _why_no_values(self) -> str | None:
        batch = Batch(example_inputs(self.model), torch.empty(0), torch.empty(0), ())
        try:
            head_outputs(self, batch)
            output_projections(self)
        except AttnProbeError as error:
            return str(error)
        return None

    def _why_no_stack(self, site: Site | None) -> str | None:
        if not self.layout.blocks:
            return f"{type(self.model).__name__} has no layers in a list"
        if site is not None and self.layers[site.layer].kind in ("decoder", "cross"):
            return f"{self.layer_names[site.layer]} joins two stacks of layers"
        return None

    def sites(self) -> list[Site]:
        return [
            Site(number, head)
            for number, layer in enumerate(self.layers)
            for head in range(layer.n_heads)
        ]

    def check_site(self, site: Site) -> None:
        """Raises AttnProbeError where ``site`` is no layer or head of this model."""
        if not 0 <= site.layer < len(self.layers):
            raise AttnProbeError(
                f"expected a layer from 0 to {len(self.layers) - 1}, got {site.layer}"
            )
        n_heads = self.layers[site.layer].n_heads
        if not 0 <= site.head < n_heads:
            raise AttnProbeError(
                f"expected a head from 0 to {n_heads - 1} in layer {site.layer}, got {site.head}"
            )

    # Batches

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """A batch on the model's device from padded tokenizer output, or from ``pixel_values``.

        Beside the model's own inputs, ``special_tokens_mask`` [batch, keys] is needed for texts, and ``word_ids``
        [batch, keys] (int, -1 for none) makes words of pieces. The batch keeps ``units`` among its inputs: for each
        token the position that stands for it.
        """
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        mask, special = masks(self.model, self.layout, inputs)
        stands_for = units(self.level, inputs, mask)
        content = (
            mask
            & ~special
            & (stands_for == torch.arange(mask.shape[1], device=mask.device))
        )
        kept = {name: value for name, value in inputs.items() if name in self.accepted}
        return Batch(
            {**kept, "units": stands_for}, mask, content, tuple(example_ids), labels
        )

    # Forward passes

    def logits(
        self,
        inputs: Mapping[str, Tensor],
        edit: Edit | None = None,
        outputs: tuple = (),
        tap: OutputTap | None = None,
    ) -> Tensor:
        """Logits [batch, outputs] with ``edit`` on every layer's attention, and ``tap`` on what it does with it; the first
        block calls give ``outputs`` instead of running."""
        inputs = {name: value for name, value in inputs.items() if name != "units"}
        if "use_cache" in self.accepted:
            inputs["use_cache"] = False
        first = sum(layer.n_skipped < len(outputs) for layer in self.layers)
        modules = {} if edit is None and tap is None else self.layout.modules
        with (
            tapped(modules, edit or untouched, first=first, outputs=tap),
            resumed(self.layout.blocks if outputs else (), outputs),
        ):
            logits = self.model(**inputs).logits
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _try_logits(
        self, inputs: Mapping[str, Tensor], edit: Edit | None = None
    ) -> Tensor:
        try:
            return self.logits(inputs, edit)
        except (AttnProbeError, torch.OutOfMemoryError):
            raise
        except (
            ValueError,
            IndexError,
            RuntimeError,
        ) as error:  # too long a text, no padding or end-of-text token
            shape, reason = (
                list(inputs[self.model.main_input_name].shape),
                str(error).splitlines()[0],
            )
            raise AttnProbeError(
                f"the model refused a batch of shape {shape}: {reason}"
            ) from error

    def observe(self, batch: Batch) -> Observation:
        attention, visible = [], []

        def capture(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            # a text of one token: its grouped queries come packed as [batch, key heads, group, 1]
            shape = (len(weights), self.layers[layer].n_heads, -1, weights.shape[-1])
            attention.append(
                weights.reshape(shape).to(
                    torch.promote_types(weights.dtype, torch.float32)
                )
            )
            visible.append(visible_keys(scores.reshape(shape)[:, 0]))
            return weights

        with torch.no_grad(), recorded(self.layout.blocks) as outputs:
            logits = self._try_logits(batch.inputs, capture)
        if not logits.isfinite().all():
            raise AttnProbeError(
                f"expected finite logits, got NaN or infinity in {self.model.dtype}; load the model in float32 or bfloat16"
            )
        state = TransformerState(tuple(outputs), tuple(visible))
        return Observation(self, batch, probabilities(logits), tuple(attention), state)

    def replay(
        self, observation: Observation, attention: Mapping[int, Tensor]
    ) -> Tensor:
        return probabilities(self.replay_logits(observation, attention))

    def replay_logits(
        self, observation: Observation, attention: Mapping[int, Tensor]
    ) -> Tensor:
        """As :meth:`replay`, before the softmax: [copies, batch, outputs]."""
        for layer, edited in attention.items():
            self.check_site(Site(layer))
            if edited.shape[1:] != observation.attention[layer].shape:
                expected = ["copies", *observation.attention[layer].shape]
                raise AttnProbeError(
                    f"expected attention {expected} for layer {layer}, got {list(edited.shape)}"
                )
        return replay_logits(self, observation, attention, replacing)

    def replay_masked(
        self, observation: Observation, kept: Mapping[int, Tensor]
    ) -> Tensor:
        masked = partial(masking, layers=self.layers)
        return probabilities(replay_logits(self, observation, kept, masked))

    def set_reference(self, batch: Batch) -> None:
        try:
            check_outputs(self, batch)
            self.reference = reference_of(self, batch)
        except AttnProbeError:  # the family computes something else: its heads can be silenced, not replaced
            self.reference = None

    def replay_outputs(
        self, observation: Observation, site: Site, outputs: Tensor
    ) -> Tensor:
        self.check_site(site)
        return replay_outputs(self, observation, site, outputs)

    def layers_below(self, layer: int) -> list[int]:
        kind = self.layers[layer].kind
        if kind in ("decoder", "cross"):
            raise AttnProbeError(
                f"expected a single stack up to {self.layer_names[layer]}, which joins two"
            )
        return [n for n in range(layer + 1) if self.layers[n].kind == kind]

    def head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        return head_outputs(self, observation.batch)[1]

    def states(self, observation: Observation, site: Site) -> Tensor:
        return observation.head_values[site.layer][:, site.head]

    @cached_property
    def output_projections(self) -> tuple[Tensor, ...]:
        return output_projections(self)

    def block_output(
        self, observation: Observation, layer: int, kept: Tensor
    ) -> Tensor:
        return block_output(self, observation, layer, kept)

    # Importances

    def read(self, observation: Observation, site: Site) -> Tensor:
        self.check_site(site)
        return self.read_map(
            observation, observation.attention[site.layer][:, site.head], site
        )

    def read_map(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        kind = self.layers[site.layer].kind
        if site.query is not None:
            row = values[:, site.query]
        else:
            rows = query_rows(
                self.readout,
                kind,
                observation.state.visible[site.layer],
                observation.batch.mask,
            )
            row = (rows.to(values.dtype)[:, None] @ values)[:, 0]
        if (
            kind == "decoder"
        ):  # its input is the text one position further on, behind a start token
            row = torch.nn.functional.pad(row[:, 1:], (0, 1))
        return sum_pieces(row, observation.batch.inputs["units"])

    def positions(self, observation: Observation, layer: int, units: Tensor) -> Tensor:
        stands_for = observation.batch.inputs["units"]
        places = units.gather(-1, stands_for.expand(units.shape))
        if self.layers[layer].kind == "decoder":  # see `read_map`
            places = torch.nn.functional.pad(places[..., :-1], (1, 0))
        return places

    def visible(self, observation: Observation, layer: int) -> Tensor:
        """What each query may attend to, bool [batch, queries, keys]: causality and windows taken in, nothing for padding.

        Queries of padding see nothing, so that what is drawn for or averaged over queries knows no padding.
        """
        mask = observation.batch.mask
        return observation.state.visible[layer] & mask[:, None] & mask[:, :, None]

    def gradient(
        self, observation: Observation, target: Tensor, *, hold_attention: bool = True
    ) -> Tensor:
        inputs = observation.batch.inputs

        def hold(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            return weights.detach() if hold_attention else weights

        def explained() -> Tensor:
            return (
                probabilities(self.logits(inputs, hold))
                .gather(-1, target[:, None])
                .sum()
            )

        slopes = gradient_times_input(
            self.layout.embeddings, explained, observation.batch.mask.shape[1]
        )
        return sum_pieces(slopes, inputs["units"])

    def attention_gradient(
        self, observation: Observation, target: Tensor
    ) -> list[Tensor]:
        """Gradient of the probability of class ``target`` [batch] with respect to the attention of every layer.

        Per layer [batch, heads, queries, keys], in one backward pass; not zero at masked keys.
        """
        seen = []

        def mark(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            seen.append(weights if weights.requires_grad else weights.requires_grad_())
            return weights

        with torch.enable_grad():
            probs = probabilities(self.logits(observation.batch.inputs, mark))
            slopes = torch.autograd.grad(
                probs.gather(-1, target[:, None]).sum(), seen, materialize_grads=True
            )
        shaped = zip(slopes, observation.attention, strict=True)
        return [
            slope.reshape(attention.shape).to(attention.dtype)
            for slope, attention in shaped
        ]

    @torch.no_grad()
    def leave_one_out(self, observation: Observation) -> Tensor:
        """Probabilities without each unit, [batch, keys, classes]; those of the whole text where there is nothing to
        remove or nothing would be left."""
        batch = observation.batch
        if self.layout.n_keys is not None:
            raise AttnProbeError(
                "expected texts for leave-one-out, got images, from which no token can be removed"
            )
        inputs = {
            name: value for name, value in batch.inputs.items() if name != "units"
        }
        probs = observation.probs[:, None].repeat(1, batch.mask.shape[1], 1)
        for example, place, texts in deletions(
            inputs, batch.inputs["units"], batch.content_mask, **self._passes
        ):
            probs[example, place] = probabilities(self._try_logits(texts))
        return probs

    @property
    def _passes(self) -> dict[str, Any]:
        """How shorter texts are fed."""
        return {
            "pad_id": self.model.config.get_text_config().pad_token_id or 0,
            "tokens_per_pass": min(self.tokens_per_pass, self.tokens_per_deletion_pass),
            "left": self.pads_left,
        }

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, by: str = "deletion"
    ) -> Tensor:
        """Probabilities without the erased units, [copies, batch, classes]; those of the whole text where nothing is
        erased or nothing would be left, not even a special token."""
        if self.layout.n_keys is not None:
            raise AttnProbeError(
                "expected texts to erase inputs of, got images, from which no token can be removed"
            )
        return erased_probs(
            observation,
            erased,
            lambda texts: probabilities(self._try_logits(texts)),
            units=observation.batch.inputs["units"],
            by=by,
            mask_id=self.mask_id,
            empty=observation.probs,
            **self._passes,
        )

    def token_logits(self, observation: Observation) -> None:
        return None

    def readout_bias(self) -> None:
        return None

    def self_check(self, batch: Batch) -> None:
        """Raises AttnProbeError unless an edit in each layer changes the logits and the identity edit does not."""
        self_check(self, batch)

    def bytes_per_example(
        self, n_keys: int, n_copies: int, *, backward: bool = True
    ) -> int:
        """``backward=False`` where no gradients are taken, which needs much less."""
        return bytes_per_example(
            self.model,
            self.layout,
            n_keys,
            n_copies,
            tokens_per_pass=self.tokens_per_pass,
            backward=backward,
        )
