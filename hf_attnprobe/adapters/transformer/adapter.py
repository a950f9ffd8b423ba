"""Adapter for any Transformer with a supported task head.

Most methods of `TransformerAdapter` check their arguments and call a function in another module of
this package.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters.deletion import (
    ErasureSettings,
    choose_padding_id,
    compute_each_set_once,
    compute_erased_probs,
    find_word_units,
    sum_over_pieces,
)
from hf_attnprobe.adapters.exchange import compute_exchanged_probs, read_unit_token_ids
from hf_attnprobe.adapters.pretrained import (
    PretrainedModelInfo,
    ScaledGradients,
    describe_undefined_logits,
    select_forward_inputs,
)
from hf_attnprobe.adapters.transformer.attention_hooks import (
    AttentionEdit,
    create_masking_edit,
    create_replacing_edit,
    detach_attention,
    find_visible_keys,
    unpack_heads,
)
from hf_attnprobe.adapters.transformer.image_patches import (
    PatchRemover,
    cut_patches,
    paste_patches,
    repeat_pixels,
)
from hf_attnprobe.adapters.transformer.layout import (
    choose_readout,
    compute_gradient_times_input,
    compute_row_weights,
    get_embeddings_module,
    needs_left_padding,
    run_with_zero_embeddings,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import BlockCall, record_calls
from hf_attnprobe.adapters.transformer.replay import (
    HookedTransformer,
    check_edits_reach_logits,
    check_partial_replays,
    compute_block_output,
    compute_outputs_and_values,
    create_reference,
    prepare_row_removal,
    replay_interchange,
    replay_logits,
    replay_outputs,
    replay_without_keys,
)
from hf_attnprobe.adapters.transformer.task_heads import ADAPTER_INPUTS, create_head
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.input_names import TEXT_INPUT
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.protocol import (
    ALL,
    NON_MODEL_COLUMNS,
    AttentionModelBase,
    Batch,
    BlockOutputs,
    EditableInputs,
    ExchangeableStates,
    ExchangeableUnits,
    HeadOutputs,
    HeadValues,
    Observation,
    OutputProjections,
    ReferenceOutputs,
    Site,
    Stack,
)


RESERVED_POSITIONS = 2
"""Number of position embeddings that some models (RoBERTa) do not use for tokens."""


# --- From tokenizer output to a batch ------------------------------------------------------------

LEVELS = ("token", "word")
"""Possible units of a text, as values of the option ``level``.

- "token": every token is a unit.
- "word": all tokens (pieces) of a word form one unit.
"""


def build_masks(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Build the masks of real tokens and special tokens for a batch of texts.

    Args:
        model: The model.
        inputs: Tokenizer output.

    Returns:
        Positions that may receive attention, and positions of special tokens; both are bool
        `[batch, keys]`.

    Raises:
        AttnProbeError: If inputs are missing or do not suit the model.
    """
    required = {"input_ids", "attention_mask", "special_tokens_mask"}
    missing = required - inputs.keys()
    if missing:
        raise AttnProbeError(
            f"the batch has no {', '.join(sorted(missing))}; call the tokenizer with "
            "return_special_tokens_mask=True"
        )
    largest_id = int(inputs["input_ids"].max())
    table = get_embeddings_module(model).weight
    # Without this line, the type checker assumes that the attribute may also be a module.
    assert isinstance(table, Tensor)
    if largest_id >= len(table):
        raise AttnProbeError(
            f"expected token ids below {len(table)}, got {largest_id}; use this model's tokenizer"
        )
    mask = inputs["attention_mask"].bool()
    if needs_left_padding(model.config) and not mask[:, -1].all():
        raise AttnProbeError(
            "expected padding on the left, got padding on the right. Set tokenizer.padding_side to "
            f"'left', because {type(model).__name__} classifies a text at its last position."
        )
    return mask, inputs["special_tokens_mask"].bool()


def find_unit_representatives(
    level: str | None, inputs: Mapping[str, Tensor], mask: Tensor
) -> Tensor:
    """Find the position that represents each token's unit (a token or a word).

    A word is represented by its first piece; a token is represented by itself.

    Args:
        level: "token", "word", or None for words if the batch has `word_ids`.
        inputs: Tokenizer output, with `word_ids` for words.
        mask: Real tokens, bool `[batch, keys]`.

    Returns:
        Positions, int64 `[batch, keys]`.

    Raises:
        AttnProbeError: If the level is "word" and the batch has no `word_ids`.
    """
    if level == "word" and "word_ids" not in inputs:
        raise AttnProbeError(
            "level='word' needs word_ids in the batch, but there are none; use a fast tokenizer, or "
            "set level='token'"
        )
    if level == "token" or "word_ids" not in inputs:
        return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return find_word_units(inputs["word_ids"])


# --- The adapter ---------------------------------------------------------------------------------

MAX_DELETION_TOKENS_ON_CPU = 1024
"""Maximum number of tokens in one forward pass on a CPU, in passes over texts with deleted tokens.

This limit was the fastest of those from 512 to 4,096 tokens. Larger passes exceed a core's cache.
"""

HINTS_BY_ERROR = {
    "padding token": "Set model.config.pad_token_id to the token used in training.",
    "<eos> token": "Leave out texts that contain the model's end token as a word.",
}
"""Maps a fragment of a model's error message to a hint that is added to the message.

Models without a configured padding token, such as GPT-2, raise the first error. BART raises the
second error if a text contains several end tokens.
"""


REASON_FIELDS = {
    HeadValues: "no_values",
    OutputProjections: "no_projections",
    HeadOutputs: "no_outputs",
    ExchangeableStates: "no_outputs",
}
"""Maps each capability to the field of `HeadSupport` with the reason why a model lacks it."""


class TransformerState(NamedTuple):
    """Results from one forward pass, from which replays start.

    Attributes:
        calls: Recorded block calls, in call order.
        visible: Keys that the model's attention mask does not hide, one bool tensor
            `[batch, queries, keys]` per layer.
    """

    calls: tuple[BlockCall, ...]
    visible: tuple[Tensor, ...]

    @property
    def outputs(self) -> tuple[Any, ...]:
        """Recorded output of every block call."""
        return tuple(call.output for call in self.calls)


class TransformerAdapter(
    PretrainedModelInfo, ScaledGradients, HookedTransformer, AttentionModelBase
):
    """Adapter that reads and edits a Transformer's attention in every layer and head.

    The adapter works on a copy of the model that shares its weights, in eval mode. The copy keeps
    the precision and the attention implementation. The original model is never hooked or changed.
    Move the model to its device before creating the adapter.

    Args:
        model: A model that predicts classes, several labels, a number, word tags, the span of an
            answer, one of several choices, or a masked word; see `create_head`.
        dtype: Data type for all computations. None keeps the weights' type.
        level: Unit that is explained and erased, "token" or "word" (all pieces of a word,
            represented by the first). None uses words if `prepare` receives `word_ids`. It must be
            None for images.
        readout: Token that the prediction is read from: "first", "last", or "mean" for all tokens.
            None determines it from the attention, see `compute_row_weights`.
        mask_id: Id of the token that replaces erased tokens.
        tokens_per_pass: Token count for a forward pass of replays and leave-one-out. None
            chooses it by device.
        predicts: Meaning of a single logit, "probability" or "number". "auto" follows the
            configuration.
        scale: Unit in which changes of a predicted number are measured.
        threshold: Number above which a predicted number counts as a positive decision.
        image_size: Height and width of all images in pixels. None uses the size in the
            configuration. For any other size, the model interpolates its position embeddings.
        region_size: Largest number of rows and of columns of patches in a region, which is one unit
            of an image. By default, every patch is a unit.

    Attributes:
        layers: One description per attention layer, with its head count.
        n_heads: Number of heads per layer.
        layer_names: Names such as "layer.3", or "encoder.0", "decoder.0" and "cross.0".

    Example:
        adapter = TransformerAdapter(model, level="word", mask_id=tokenizer.mask_token_id)
    """

    model: PreTrainedModel

    def __init__(  # noqa: PLR0913 (options that users set through `wrap`)
        self,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype | None = None,
        level: str | None = None,
        readout: str | None = None,
        mask_id: int | None = None,
        tokens_per_pass: int | None = None,
        predicts: str = "auto",
        scale: float | None = None,
        threshold: float | None = None,
        image_size: tuple[int, int] | None = None,
        region_size: int = 1,
    ) -> None:
        if region_size < 1:
            raise AttnProbeError(f"expected region_size to be 1 or more, got {region_size}")
        if level not in (None, *LEVELS):
            raise AttnProbeError(f"expected level to be one of {', '.join(LEVELS)}, got {level!r}")
        # The read-out of a user's own class has been found by running an example.
        self.readout = choose_readout(model.config, readout or getattr(model, "readout", None))
        head = create_head(
            model,
            predicts=predicts,
            scale=scale,
            threshold=threshold,
            mask_id=mask_id,
        )
        PretrainedModelInfo.__init__(self, model)
        HookedTransformer.__init__(
            self,
            model,
            head,
            dtype=dtype,
            tokens_per_pass=tokens_per_pass,
            image_size=image_size,
        )
        self.label_names = list(head.prediction.class_names)
        self.level, self.mask_id = level, mask_id
        self.unit = level or "word"
        self.patches: PatchRemover | None = None
        if self.layout.n_keys is not None:
            if level is not None:
                raise AttnProbeError(
                    f"level={level!r} chooses the units of texts, but {type(model).__name__} reads "
                    "images. Leave out level. The units of images are chosen with region_size."
                )
            self.patches = PatchRemover(self, region_size)
            self.unit = "patch" if region_size == 1 else "region"
            self.reads_images = True
        elif image_size is not None or region_size != 1:
            raise AttnProbeError(
                "image_size and region_size are only for models that read images, but "
                f"{type(model).__name__} reads none. Leave out these options."
            )
        self.pads_left = needs_left_padding(model.config)

    @property
    def prediction(self) -> Prediction:
        """Description of the prediction vector, which depends on the task head."""
        return self.head.prediction

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        """Return the reason why the model lacks a capability, or None; see `AttentionModelBase`."""
        if (
            capability is EditableInputs
            and self.patches is not None
            and not self.patches.n_block_calls
        ):
            name = type(self.model).__name__
            return (
                "patches can be left out only of models whose layers are in an nn.ModuleList, and "
                f"{name} has none"
            )
        if capability in REASON_FIELDS:
            reason = getattr(self._head_support, REASON_FIELDS[capability])
            if reason is not None:
                return reason
        if capability is BlockOutputs and not self.layout.blocks:
            name = type(self.model).__name__
            return (
                f"expected a model whose layers are in an nn.ModuleList, found none in {name}; "
                "remove this test"
            )
        if (
            capability is Stack
            and site is not None
            and self.layers[site.layer].kind in ("decoder", "cross")
        ):
            name = self.layer_names[site.layer]
            return (
                f"expected a single stack of layers up to {name}, but an encoder-decoder joins two "
                "stacks there; choose encoder layers"
            )
        return super().lacks(capability, site)

    # Batches

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Create a batch from padded tokenizer output or from images.

        Args:
            inputs: For texts, the tokenizer's output including `special_tokens_mask`
                `[batch, keys]`. If it has `word_ids` (int `[batch, keys]`, -1 for none), pieces are
                grouped into words. For images, `pixel_values`.
            example_ids: Data set id for each text.
            labels: Data set labels.

        Returns:
            A batch. Its inputs include `units`, the position that represents each token's unit.
        """
        device = self.model.device
        inputs = {
            name: self._convert_further_input(name, value.to(device))
            for name, value in inputs.items()
        }
        inputs = self.head.select_inputs(inputs, self._run)
        if self.patches is None:
            mask, is_special = build_masks(self.model, inputs)
        else:
            mask, is_special = self.patches.build_masks(len(inputs["pixel_values"]))
        if self.patches is None:
            units = find_unit_representatives(self.level, inputs, mask)
        else:
            units = self.patches.find_units(len(mask))
        positions = torch.arange(mask.shape[1], device=mask.device)
        content = mask & ~is_special & (units == positions)
        inputs = self.head.add_readout_inputs(inputs, mask, content, self._run)
        if labels is not None:
            labels = self.head.convert_labels(labels, inputs)

        batch_inputs = {name: value for name, value in inputs.items() if name in ADAPTER_INPUTS}
        batch_inputs |= self._select_model_inputs(inputs)
        batch_inputs["units"] = units
        content = content & ~_find_only_readout_tokens(batch_inputs, content)
        return Batch(batch_inputs, mask, content, tuple(example_ids), labels)

    def _convert_further_input(self, name: str, value: Tensor) -> Tensor:
        """Convert a column that the model reads in addition to its texts; return others unchanged.

        Values that belong to a whole text get an additional axis, `[batch, 1, ...]`. Otherwise, a
        vector with as many entries as a text has tokens would be shortened like a text.
        """
        if value.is_floating_point() and name != "pixel_values":
            value = value.to(self.model.dtype)
        return value[:, None] if name.startswith(TEXT_INPUT) else value

    @torch.no_grad()
    def _run(self, inputs: Mapping[str, Tensor]) -> Any:
        """Run the model without edits, and return its output."""
        with shorten_model_errors(inputs):
            return self.model(**self.build_arguments(self._select_model_inputs(inputs)))

    def _select_model_inputs(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select the inputs that the model's `forward` method accepts."""
        excluded = ADAPTER_INPUTS | NON_MODEL_COLUMNS
        candidates = {name: value for name, value in inputs.items() if name not in excluded}
        text_inputs = {
            name: candidates.pop(name) for name in list(candidates) if name.startswith(TEXT_INPUT)
        }
        return {**select_forward_inputs(self.model, candidates), **text_inputs}

    # Forward passes

    def observe(self, batch: Batch) -> Observation:
        """Run one forward pass and record all attention; see `AttentionModel.observe`."""
        attention: list[Tensor] = []
        visible: list[Tensor] = []

        def record_layer(layer: int, weights: Tensor, attention_scores: Tensor) -> Tensor:
            n_heads = self.n_heads[layer]
            # Weights in half precision are stored as float32.
            stored_dtype = torch.promote_types(weights.dtype, torch.float32)
            attention.append(unpack_heads(weights, n_heads).to(stored_dtype))
            # Masked keys have a very low attention score. All heads have the same mask.
            first_head_scores = unpack_heads(attention_scores, n_heads)[:, 0]
            visible.append(find_visible_keys(first_head_scores))
            return weights

        with (
            torch.no_grad(),
            shorten_model_errors(batch.inputs),
            record_calls(self.layout.blocks) as calls,
        ):
            logits = self.compute_logits(batch.inputs, record_layer)
        probs = self.head.compute_probs(logits, batch.inputs)
        is_undefined = ~probs.isfinite().flatten(1).all(1)
        if is_undefined.any():
            example_id = batch.example_ids[int(is_undefined.nonzero()[0])]
            raise AttnProbeError(
                f"text {example_id}: {describe_undefined_logits(self.model.dtype)}"
            )
        state = TransformerState(tuple(calls), tuple(visible))
        return Observation(self, batch, probs, tuple(attention), state)

    def compute_native_probs(self, batch: Batch) -> Tensor | None:
        """Compute the probabilities with the original model (without hooks), `[batch, classes]`."""
        inputs = dict(batch.inputs)
        tokenizer_output = {
            name: value.to(batch.mask.device) for name, value in batch.tokenizer_output.items()
        }
        if tokenizer_output:
            # The original model receives all choices, so no logits are taken from the batch.
            inputs.pop("choice_logits", None)
            arguments = {**tokenizer_output, **self.head.fixed_arguments}
        else:
            arguments = self.build_arguments(inputs)
        with shorten_model_errors(batch.inputs):
            result = self.compute_native_output(arguments)
        scores = self.head.compute_scores(result, inputs)
        precise = torch.promote_types(scores.dtype, torch.float32)
        return self.head.compute_probs(scores.to(precise), inputs)

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities with edited attention; see `AttentionModel.replay`."""
        scores = self.replay_logits(observation, attention)
        return self.head.compute_probs(scores, observation.batch.inputs)

    def replay_logits(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Compute the task head's scores with edited attention.

        Args:
            observation: The observed batch.
            attention: New attention weights by layer number, each
                `[copies, batch, heads, queries, keys]`.

        Returns:
            Scores `[copies, batch, scores]`.

        Raises:
            AttnProbeError: If a layer does not exist or its new attention has another shape.
        """
        for layer, edited in attention.items():
            self.check_site(Site(layer))
            if edited.shape[1:] != observation.attention[layer].shape:
                axes = ["copies", *map(str, observation.attention[layer].shape)]
                raise AttnProbeError(
                    f"expected attention of shape [{', '.join(axes)}] for layer {layer}, "
                    f"got {list(edited.shape)}"
                )
        return replay_logits(self, observation, attention, create_replacing_edit)

    def replay_masked(self, observation: Observation, factors: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities after multiplying attention by factors; see `MaskedReplay`."""
        create_edit = partial(create_masking_edit, n_heads=self.n_heads)
        scores = replay_logits(self, observation, factors, create_edit)
        return self.head.compute_probs(scores, observation.batch.inputs)

    def replay_without_units(
        self, observation: Observation, site: Site, is_erased: Tensor, *, renormalise: bool
    ) -> Tensor | None:
        """Compute the probabilities without the attention to some units; see `AttentionModelBase`.

        The site must contain all heads. Each set of units is computed only once per text.
        """
        has_all_heads = self.get_heads_by_layer(site) == self.get_heads_by_layer(Site(ALL, ALL))
        if site.query is not None or not has_all_heads:
            return None
        partial_replay = prepare_row_removal(self, observation)
        if partial_replay is None:
            return None

        def compute_probs(texts: Tensor, sets: Tensor) -> Tensor:
            probs = observation.probs[texts]
            # The output of a text without an erased unit is known.
            has_erased = sets.any(1)
            if has_erased.any():
                new_probs = replay_without_keys(
                    self,
                    observation,
                    partial_replay,
                    texts[has_erased],
                    sets[has_erased],
                    renormalise=renormalise,
                    tokens_per_pass=self._edited_tokens_per_pass,
                )
                probs[has_erased] = new_probs.to(probs.dtype)
            return probs

        positions = self.get_unit_positions(observation, 0, is_erased)
        cache_key = ("erased attention", renormalise)
        return compute_each_set_once(observation, cache_key, positions, compute_probs)

    def set_reference(self, *batches: Batch) -> None:
        """Store the head outputs for a reference sample of texts; see `HeadOutputs`."""
        self.require(HeadOutputs)
        with shorten_model_errors(batches[0].inputs):
            references = [create_reference(self, batch) for batch in batches]
            self.reference = ReferenceOutputs.concatenate(references)

    def replay_outputs(self, observation: Observation, site: Site, outputs: Tensor) -> Tensor:
        """Compute the probabilities after replacing a head's output; see `HeadOutputs`."""
        self.check_site(site)
        self.require(HeadOutputs, site)
        return replay_outputs(self, observation, site, outputs)

    def replay_interchange(
        self,
        observation: Observation,
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        """Compute the probabilities after exchanging a unit's states; see `ExchangeableStates`."""
        self.require(ExchangeableStates, site)
        return replay_interchange(self, observation, site, units, states)

    def list_layers_below(self, layer: int) -> list[int]:
        """List the layers in the same stack up to and including a layer; see `Stack`."""
        self.require(Stack, Site(layer))
        kind = self.layers[layer].kind
        return [number for number in range(layer + 1) if self.layers[number].kind == kind]

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """Compute every head's value vectors; see `HeadValues`."""
        self.require(HeadValues)
        _, values = compute_outputs_and_values(self, observation.batch)
        return values

    def get_states(self, observation: Observation, site: Site) -> Tensor:
        """Return one head's value vectors, `[batch, keys, width]`."""
        return observation.head_values[site.layer][:, site.head]

    def get_output_projections(self) -> tuple[Tensor, ...]:
        """Return each head's slice of the output projection; see `OutputProjections`."""
        self.require(OutputProjections)
        assert self._head_support.projections is not None
        return self._head_support.projections

    def compute_block_output(self, observation: Observation, layer: int, factors: Tensor) -> Tensor:
        """Compute a block's output after multiplying its attention; see `BlockOutputs`."""
        self.require(BlockOutputs)
        return compute_block_output(self, observation, layer, factors)

    # Importances

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        """Select the attention row that the prediction is read from; see `AttentionModel`."""
        kind = self.layers[site.layer].kind
        if site.query is not None:
            row = values[:, site.query]
        else:
            visible = observation.state.visible[site.layer]
            row_weights = self._compute_row_weights(observation, kind, visible)
            row = (row_weights.to(values.dtype)[:, None] @ values)[:, 0]
        if kind == "decoder":
            # A decoder's input starts with an additional token, so its positions are shifted by
            # one.
            row = F.pad(row[:, 1:], (0, 1))
        return sum_over_pieces(row, observation.batch.inputs["units"])

    def describe_readout(self, observation: Observation) -> str:
        """Describe which tokens the prediction for the first text is read from.

        The description is empty if the model has an encoder and a decoder, or if parts of the
        prediction are read from different tokens.
        """
        batch = observation.batch
        if {layer.kind for layer in self.layers} != {"layer"} or "reads" in batch.inputs:
            return ""
        visible = observation.state.visible[0]
        row_weights = self._compute_row_weights(observation, "layer", visible)[0]
        if self.patches is not None:
            return self.patches.describe_readout(row_weights)
        if row_weights.count_nonzero() > 1:
            return "all tokens"
        is_first = row_weights.argmax() == batch.mask[0].long().argmax()
        return "the first token" if is_first else "the last token"

    def _compute_row_weights(self, observation: Observation, kind: str, visible: Tensor) -> Tensor:
        """Compute how strongly the prediction is read from each token, `[batch, queries]`.

        If parts of the prediction are read from different tokens (tags, for example), these tokens
        have equal weights. Otherwise see `compute_row_weights`.

        Args:
            observation: The observed batch.
            kind: Layer kind, see `Layer`.
            visible: Visible keys in the layer, bool `[batch, queries, keys]`.
        """
        if self.patches is not None and self.readout is None:
            readout_weights = self.patches.readout_weights
            if readout_weights is not None:
                return readout_weights.expand(len(visible), -1)
        reads = observation.batch.inputs.get("reads")
        if reads is None or self.readout is not None or kind == "encoder":
            mask = observation.batch.mask
            return compute_row_weights(self.readout, kind, visible, mask)
        is_read = reads >= 0
        if kind != "layer":
            # A decoder's input is shifted by one position.
            is_read = F.pad(is_read[:, :-1], (1, 0))
        return is_read / is_read.sum(1, keepdim=True).clamp_min(1)

    def get_unit_positions(self, observation: Observation, layer: int, units: Tensor) -> Tensor:
        """Return all positions of some units; in a decoder, they are shifted by one.

        Args:
            observation: The observed batch.
            layer: Layer number.
            units: Chosen units, marked at their representative position, bool `[..., keys]`.

        Returns:
            Positions of all their tokens, bool `[..., keys]`.
        """
        representatives = observation.batch.inputs["units"]
        positions = units.gather(-1, representatives.expand(units.shape))
        if self.layers[layer].kind == "decoder":
            positions = F.pad(positions[..., :-1], (1, 0))
        return positions

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        """Return the keys that each query can attend to, bool `[batch, queries, keys]`.

        Causal masks and windows are taken into account. Padding sees no key, so random draws for
        queries, and means over queries, do not depend on padding.
        """
        mask = observation.batch.mask
        return observation.state.visible[layer] & mask[:, None] & mask[:, :, None]

    def _sum_explained_probs(
        self, inputs: Mapping[str, Tensor], edit: AttentionEdit | None, target: Tensor
    ) -> Tensor:
        """Sum the target class probabilities over the texts; gradients are computed from this sum.

        Args:
            inputs: Batch inputs.
            edit: Edit for the attention weights, or None.
            target: Target class per text, int `[batch]`.
        """
        probs = self.head.compute_probs(self.compute_logits(inputs, edit), inputs)
        return compute_shifted_probability(probs, target).sum()

    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold_attention: bool
    ) -> Tensor:
        """Compute gradient × input at scaled embeddings; see `ScaledGradients`.

        A decoder's start token is not scaled.
        """
        inputs = observation.batch.inputs
        edit = detach_attention if hold_attention else None
        values = compute_gradient_times_input(
            self.layout.embeddings,
            partial(self._sum_explained_probs, inputs, edit, target),
            observation.batch.mask.shape[1],
            scale=scale,
        )
        return sum_over_pieces(values, inputs["units"])

    @torch.no_grad()
    def compute_zero_embedding_probs(self, observation: Observation) -> Tensor:
        """Compute the probabilities with all embeddings set to 0; see `IntegratedGradients`."""
        inputs = observation.batch.inputs
        run = partial(self.compute_logits, inputs)
        scores = run_with_zero_embeddings(self.layout.embeddings, run)
        return self.head.compute_probs(scores, inputs)

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """Compute the gradient with respect to all attention weights in one backward pass."""
        layer_weights: list[Tensor] = []

        def require_gradient(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            layer_weights.append(weights.requires_grad_())
            return weights

        with torch.enable_grad():
            explained = self._sum_explained_probs(
                observation.batch.inputs, require_gradient, target
            )
            gradients = torch.autograd.grad(explained, layer_weights, materialize_grads=True)
        reshaped = []
        for gradient, attention in zip(gradients, observation.attention, strict=True):
            reshaped.append(gradient.reshape(attention.shape).to(attention.dtype))
        return reshaped

    def _compute_text_probs(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Compute the probabilities for shortened texts, `[texts, classes]`."""
        with shorten_model_errors(texts):
            scores = self.compute_logits(texts)
        return self.head.compute_probs(scores, texts)

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """Compute the probabilities after erasing units; see `EditableInputs`.

        If no token would remain, not even a special token, the probabilities for the whole text
        are returned. From images, patches are left out, see `PatchRemover`.
        """
        self.require(EditableInputs)
        if self.patches is not None:
            return self._leave_out_patches(observation, erased, operator)
        inputs = self._collect_editable_inputs(observation)
        return compute_erased_probs(
            observation,
            erased,
            self._compute_text_probs,
            self._erasure_settings,
            inputs=inputs,
            units=inputs["units"],
            operator=operator,
            empty=observation.probs,
        )

    def _leave_out_patches(
        self, observation: Observation, left_out: Tensor, operator: str
    ) -> Tensor:
        """Compute the probabilities after leaving patches out, `[copies, batch, classes]`."""
        assert self.patches is not None
        patches, pixels = self.patches, observation.batch.inputs["pixel_values"]
        if operator != "deletion":
            raise AttnProbeError(
                f"patches can only be left out of an image, got the erasure operator {operator!r}. "
                "Use the operator 'deletion'."
            )

        def compute_probs(image: Tensor, sets: Tensor) -> Tensor:
            probs = observation.probs[image]
            # The output of a whole image is known.
            is_edited = sets.any(1)
            if is_edited.any():
                images = image[is_edited]
                scores = patches.compute_logits(
                    pixels, images, sets[is_edited], self._edited_tokens_per_pass
                )
                new_probs = self.head.compute_probs(scores, {})
                probs[is_edited] = new_probs.to(probs.dtype)
            return probs

        is_left_out = self._spread_over_patches(observation, left_out)
        sets = is_left_out[..., patches.n_special :]
        return compute_each_set_once(observation, "left out patches", sets, compute_probs)

    def _spread_over_patches(self, observation: Observation, chosen: Tensor) -> Tensor:
        """Mark all patches of chosen regions, bool `[..., keys]`; special tokens are never chosen."""
        units = observation.batch.inputs["units"]
        is_chosen = chosen & observation.batch.content_mask
        return is_chosen.gather(-1, units.expand(chosen.shape))

    def read_unit_contents(self, observation: Observation) -> list[dict[int, Any]]:
        """Read the token ids of every unit, or the pixels of every patch; see `ExchangeableUnits`."""
        if self.patches is not None:
            return self.patches.cut_regions(observation.batch.inputs["pixel_values"])
        return read_unit_token_ids(observation, observation.batch.inputs["units"])

    @torch.no_grad()
    def exchange_inputs(
        self,
        observation: Observation,
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Any]],
    ) -> Tensor:
        """Compute the probabilities after replacing units; see `ExchangeableUnits`."""
        self.require(ExchangeableUnits)
        if self.patches is not None:
            return self._exchange_patches(observation, exchanged, replacements)
        inputs = self._collect_editable_inputs(observation)
        # Models without a limit, such as XLNet, report -1 or nothing.
        n_positions = getattr(self.model.config.get_text_config(), "max_position_embeddings", -1)
        has_limit = n_positions is not None and n_positions > RESERVED_POSITIONS
        return compute_exchanged_probs(
            observation,
            exchanged,
            replacements,
            self._compute_text_probs,
            self._erasure_settings,
            inputs=inputs,
            units=inputs["units"],
            max_tokens=n_positions - RESERVED_POSITIONS if has_limit else None,
        )

    def _exchange_patches(
        self,
        observation: Observation,
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Tensor]],
    ) -> Tensor:
        """Compute the probabilities after replacing patches, `[copies, batch, classes]`."""
        assert self.patches is not None
        grid, n_special = self.patches.grid, self.patches.n_special
        pixels = observation.batch.inputs["pixel_values"]
        new_pixels = pixels.clone()
        has_new = torch.zeros_like(observation.batch.content_mask)
        region_by_position = dict(
            zip(self.patches.find_positions(), self.patches.regions, strict=True)
        )
        for index, contents in enumerate(replacements):
            for position, new_region in contents.items():
                rows, columns = region_by_position[position].find_pixels(grid)
                area = new_pixels[index, :, rows, columns]
                area.copy_(repeat_pixels(new_region, *area.shape[1:]))
                has_new[index, position] = True
        new_patches = cut_patches(new_pixels, grid)
        n_copies, n_images = exchanged.shape[:2]
        is_exchanged = self._spread_over_patches(observation, exchanged & has_new)
        sets = is_exchanged.flatten(0, 1)[:, n_special:]
        image = torch.arange(n_images, device=pixels.device).repeat(n_copies)
        probs = observation.probs[image]
        # The output of an image without an exchanged patch is known.
        edited_rows = sets.any(1).nonzero()[:, 0]
        n_rows = max(1, self._edited_tokens_per_pass // observation.batch.mask.shape[1])
        # Splitting an empty tensor yields an empty part, on which some models fail.
        for rows in edited_rows.split(n_rows) if len(edited_rows) else ():
            images = image[rows]
            edited = paste_patches(pixels[images], new_patches[images], sets[rows], grid)
            probs[rows] = self._compute_text_probs({"pixel_values": edited}).to(probs.dtype)
        return probs.unflatten(0, (n_copies, n_images))

    def _collect_editable_inputs(self, observation: Observation) -> dict[str, Tensor]:
        """Return the batch's inputs, with everything that edited texts need."""
        inputs = dict(observation.batch.inputs)
        if "reads" in inputs:
            # An edited text may lack tokens from which the prediction is read.
            inputs["whole_probs"] = observation.probs[:, None]
        return inputs

    @property
    def _edited_tokens_per_pass(self) -> int:
        """Largest number of tokens in one forward pass over edited texts or images."""
        if self.model.device.type == "cpu":
            return min(self.tokens_per_pass, MAX_DELETION_TOKENS_ON_CPU)
        return self.tokens_per_pass

    @property
    def _erasure_settings(self) -> ErasureSettings:
        """Model properties that are needed to edit texts."""
        return ErasureSettings(
            pad_id=choose_padding_id(
                [self.model.config.get_text_config().pad_token_id], self.n_embeddings
            ),
            tokens_per_pass=self._edited_tokens_per_pass,
            mask_id=self.mask_id,
            pads_left=self.pads_left,
        )

    def self_check(self, batch: Batch) -> None:
        """Raise AttnProbeError unless edits to every layer reach the logits.

        Replaying unchanged attention must not change the logits. If partial replays differ from
        full passes, they are disabled.
        """
        observation = self.observe(batch)
        if self.patches is not None and self.patches.n_block_calls:
            self.patches.check(batch.inputs["pixel_values"][:1])
        check_partial_replays(self, observation)
        native = _make_finite(self.compute_logits(batch.inputs))
        names, dtype = self.layer_names, self.model.dtype

        def replay_finite_logits(
            observation: Observation, attention: Mapping[int, Tensor]
        ) -> Tensor:
            return _make_finite(self.replay_logits(observation, attention))

        check_edits_reach_logits(observation, native, replay_finite_logits, names, dtype)


def _make_finite(scores: Tensor) -> Tensor:
    """Replace NaN and -inf, the scores for missing tokens, with 0 so that scores can be compared."""
    return scores.nan_to_num(nan=0, neginf=0)


def _find_only_readout_tokens(inputs: Mapping[str, Tensor], content: Tensor) -> Tensor:
    """Find the tokens that are their text's only read-out token.

    A read-out token is a token from which the prediction is read. If the only one were erased,
    there would be no prediction to compare with.

    Args:
        inputs: Batch inputs.
        content: Explained tokens, bool `[batch, keys]`.

    Returns:
        Whether each token is a text's only read-out token, bool `[batch, keys]`.
    """
    if "reads" not in inputs:
        return torch.zeros_like(content)
    is_read = inputs["reads"] >= 0
    return is_read & (is_read.sum(1, keepdim=True) == 1)


@contextlib.contextmanager
def shorten_model_errors(inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Convert a model's exceptions, for example for long texts, to one-line AttnProbeErrors.

    Args:
        inputs: Model inputs, whose shape is included in the message.
    """
    try:
        yield
    except (AttnProbeError, torch.OutOfMemoryError):
        raise
    except (ValueError, IndexError, RuntimeError) as error:
        shape = list(next(iter(inputs.values())).shape)
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        hints = [f". {hint}" for fragment, hint in HINTS_BY_ERROR.items() if fragment in reason]
        raise AttnProbeError(
            f"the model refused a batch of shape {shape}: {reason}{''.join(hints)}"
        ) from error
