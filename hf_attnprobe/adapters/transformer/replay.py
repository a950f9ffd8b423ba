"""Forward passes of a Transformer with edited attention, on a copy that shares its weights.

Two methods save time compared to a loop of full passes:

- The layers below an edit are not run again, because their outputs are cached. With 32 edits of the
  top layer of a 6-layer BERT, this is 5.4 times faster.
- All edited copies of a batch run at once (vectorised). This is 6.6 times faster.

Both methods together are 7.6 times faster. A few models, such as Bloom and Falcon, cannot be
vectorised. For these models, the batch is repeated above the cached layers.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from transformers import PreTrainedModel

from hf_attnprobe.adapters.deletion import split_by_length
from hf_attnprobe.adapters.pretrained import select_forward_inputs
from hf_attnprobe.adapters.transformer.attention_hooks import (
    VARIABLE_LENGTH_KERNELS,
    AttentionEdit,
    InterchangeHook,
    OutputHook,
    SubstituteValues,
    create_masking_edit,
    create_output_edit,
    create_replacing_edit,
    hook_attention,
    keep_attention,
    unpack_heads,
)
from hf_attnprobe.adapters.transformer.custom_model import CustomModel
from hf_attnprobe.adapters.transformer.layout import (
    EXAMPLE_TEXT_LENGTH,
    copy_with_shared_weights,
    create_example_inputs,
    describe_unusual_layers,
    find_layout,
    get_image_shape,
    name_layers,
    set_image_size,
)
from hf_attnprobe.adapters.transformer.partial_replay import (
    PartialReplay,
    Sublayer,
    find_sublayers,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    get_first_tensor,
    get_relative_tolerance,
    hook_modules,
    record_calls,
    repeat_batch,
    replace_first_tensor,
    skip_first_calls,
)
from hf_attnprobe.adapters.transformer.task_heads import ADAPTER_INPUTS, TaskHead
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.input_names import TEXT_INPUT
from hf_attnprobe.functional.intervention import zero_out
from hf_attnprobe.protocol import Batch, Observation, ReferenceOutputs, Site


MAX_TOKENS_PER_PASS = {"cpu": 4096}
"""Maximum number of tokens in a forward pass, by device type. The default is 65,536.

4,096 tokens were fastest on a CPU core. With 8,192 tokens, which exceed its caches, the time per
token was 10 to 30% longer.
"""


INTERPOLATION = {"interpolate_pos_encoding": True}
"""Argument with which models of Transformers interpolate their position embeddings.

They can then read images of another size than the one in their configuration.
"""


class HookedTransformer:
    """A copy of a model that shares its weights, with access to its attention.

    Args:
        model: The original model, which is not changed.
        head: Its task head.
        dtype: Data type for all computations; None keeps the weights' type.
        tokens_per_pass: Token count for a forward pass; None chooses it by device.
        image_size: Height and width of all images in pixels; None for the size in the configuration
            of an image model, and for text models.

    Attributes:
        model: The copy, in eval mode.
        head: The task head.
        layout: Modules that are read and edited, see `Layout`.
        layers: One description per attention layer, with its head count.
        n_heads: Number of heads per layer.
        layer_names: Names such as "layer.3", or "encoder.0", "decoder.0" and "cross.0".
        accepts_use_cache: Whether the model's `forward` method has the parameter `use_cache`.
        tokens_per_pass: Token count for a forward pass.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: TaskHead,
        *,
        dtype: torch.dtype | None = None,
        tokens_per_pass: int | None = None,
        image_size: tuple[int, int] | None = None,
    ) -> None:
        self.model = copy_with_shared_weights(model, dtype)
        if isinstance(self.model, CustomModel):
            self.model.disable_cache()
        self.head = head
        if image_size is not None and image_size != get_image_shape(model.config)[1:]:
            set_image_size(self.model.config, *image_size)
            # Models such as ViT refuse other sizes without this argument. Other models, such as
            # DINOv2 and BEiT, read all sizes.
            head.fixed_arguments = select_forward_inputs(model, INTERPOLATION)
        self.layout = find_layout(self.model, head)
        self.layers = self.layout.layers
        self.n_heads = [layer.n_heads for layer in self.layers]
        self.layer_names = name_layers(self.layers)
        parameters = inspect.signature(self.model.forward).parameters
        self.accepts_use_cache = "use_cache" in parameters
        default_tokens = MAX_TOKENS_PER_PASS.get(self.model.device.type, 65536)
        self.tokens_per_pass = tokens_per_pass or default_tokens

    def sites(self) -> list[Site]:
        """Return a site for every head of every layer."""
        return [
            Site(layer, head)
            for layer, n_heads in enumerate(self.n_heads)
            for head in range(n_heads)
        ]

    def describe_unusual_layers(self) -> list[str]:
        """Describe layers whose numbers differ from those in the model's own code."""
        return describe_unusual_layers(self.model, self.layers, self.layer_names)

    @cached_property
    def _head_support(self) -> "HeadSupport":
        """Which head outputs can be read and replaced, determined once on an example."""
        return examine_head_support(self)

    def compute_logits(
        self,
        inputs: Mapping[str, Tensor],
        edit: AttentionEdit | None = None,
        skipped_outputs: Sequence[Any] = (),
        output_hook: OutputHook | None = None,
        n_keys: int | None = None,
    ) -> Tensor:
        """Run one forward pass and compute the task head's scores.

        Args:
            inputs: Inputs for the model and the task head.
            edit: Function that edits the attention weights in every layer; None for no edit.
            skipped_outputs: Recorded outputs for the first blocks. These blocks do not run but
                return their recorded outputs.
            output_hook: Hook that edits the head outputs; None for no edit.
            n_keys: Number of keys that are tokens, see `standardise_form`.

        Returns:
            Scores `[batch, scores]`, in float32 or more.
        """
        arguments = self.build_arguments(inputs)
        n_skipped_layers = sum(
            layer.n_blocks_before < len(skipped_outputs) for layer in self.layers
        )
        modules = {} if edit is None and output_hook is None else self.layout.modules
        hooks = hook_attention(
            modules,
            edit or keep_attention,
            first_layer=n_skipped_layers,
            output_hook=output_hook,
            n_keys=n_keys,
        )
        with (
            sdpa_kernel(VARIABLE_LENGTH_KERNELS),
            hooks if modules else nullcontext(),
            skip_first_calls(self.layout.blocks if skipped_outputs else (), skipped_outputs),
        ):
            result = self.model(**arguments)
        scores = self.head.compute_scores(result, inputs)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def compute_scores_from_hidden(
        self,
        inputs: Mapping[str, Tensor],
        outputs: Sequence[Any],
        hidden: Tensor,
    ) -> Tensor:
        """Compute the task head's scores from the last hidden states.

        Args:
            inputs: Inputs for the model and the task head.
            outputs: Recorded outputs from all blocks.
            hidden: Hidden states that replace the last block's output,
                `[copies, batch, queries, hidden]`.

        Returns:
            Scores `[copies, batch, scores]`.
        """

        # Only the layers after the last block run, because all blocks return recorded outputs.
        def run_head(inputs: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
            last_output = replace_first_tensor(outputs[-1], hidden)
            return self.compute_logits(inputs, None, (*outputs[:-1], last_output))

        if self.supports_vmap:
            return torch.func.vmap(partial(run_head, inputs))(hidden)
        n_copies, n_batch = hidden.shape[:2]
        inputs = repeat_batch(dict(inputs), n_copies, n_batch)
        scores = run_head(inputs, hidden.flatten(0, 1))
        return scores.unflatten(0, (n_copies, n_batch))

    @cached_property
    def sublayers(self) -> list[Sublayer] | None:
        """Modules that partial replays need, for all blocks; None if they cannot be used.

        A partial replay runs only the part of the model that an edit affects. It is used if its
        scores on an example are the same as those of a run of the complete model.
        """
        has_single_stack = all(layer.kind == "layer" for layer in self.layers)
        is_on_several_devices = getattr(self.model, "hf_device_map", None) is not None
        if not has_single_stack or self.layout.embeddings.sequence_first or is_on_several_devices:
            return None
        try:
            with torch.no_grad():
                return self._find_verified_sublayers()
        except torch.OutOfMemoryError:
            raise
        except Exception:
            # A block with another structure may raise arbitrary exceptions.
            return None

    def _find_verified_sublayers(self) -> list[Sublayer] | None:
        """Find the modules for partial replays, and check their results on an example.

        The scores must be the same as those of the complete model.
        """
        inputs = create_example_inputs(self.model)
        attention: list[Tensor] = []

        def record_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            attention.append(weights)
            return weights

        with record_calls(self.layout.blocks) as calls:
            self.compute_logits(inputs, record_attention)
        sublayers = find_sublayers(calls, self.layout.modules, self.n_heads)
        if sublayers is None:
            return None
        mask = torch.ones_like(attention[0][:, 0, 0], dtype=torch.bool)
        outputs = [call.output for call in calls]
        head = partial(self.compute_scores_from_hidden, inputs, outputs)
        partial_replay = PartialReplay(calls, sublayers, attention, mask, head)
        for layer, weights in enumerate(attention):
            # As an edit, the order of the attention weights is reversed.
            if not equals_full_pass(self, partial_replay, inputs, layer, weights.flip(-1)):
                return None
        return sublayers

    def build_arguments(self, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Build the keyword arguments with which the model is called.

        Inputs that only the task head uses are left out.

        Args:
            inputs: Inputs for the model and the task head.
        """
        model_inputs: dict[str, Tensor] = {}
        for name, value in inputs.items():
            if name.startswith(TEXT_INPUT):
                # Remove the additional axis of values that belong to a whole text.
                model_inputs[name.removeprefix(TEXT_INPUT)] = value[:, 0]
            elif name not in ADAPTER_INPUTS:
                model_inputs[name] = value
        arguments = self.head.build_arguments(model_inputs)
        if self.accepts_use_cache:
            arguments.setdefault("use_cache", False)
        return arguments

    @cached_property
    def supports_vmap(self) -> bool:
        """Whether `torch.func.vmap` can run the model with several edits at once.

        This is tested once on an example, so that an error during an audit is never mistaken for
        missing vmap support. vmap fails for layers whose computation depends on values, such as a
        choice between experts, and for custom autograd functions (Bloom).
        """
        inputs = create_example_inputs(self.model)
        n_keys = self.layout.n_keys or EXAMPLE_TEXT_LENGTH
        shape = (2, 1, self.n_heads[0], n_keys, n_keys)
        edits = torch.full(shape, 1 / n_keys, device=self.model.device)
        run = torch.func.vmap(
            lambda edit: self.compute_logits(inputs, create_replacing_edit({0: edit}))
        )
        try:
            with torch.no_grad():
                run(edits)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return False
        return True


# --- Many edits of one observation at once -------------------------------------------------------

Inputs = Mapping[str, Tensor]
"""Inputs for the model and the task head, by name."""
Edits = Mapping[int, Tensor]
"""Data for edits by layer number, each `[copies, batch, ...]`.

The data can be new attention weights, factors on attention weights, or new head outputs.
"""
RunAboveEdits = Callable[[Inputs, tuple[Any, ...], Edits], Tensor]
"""Type of a function `run(inputs, skipped_outputs, edits)` that runs the edited part of a model.

It receives the inputs, the recorded outputs of the blocks to skip, and data for edits by layer,
each `[batch, ...]`. It returns a result `[batch, ...]`.
"""


def resume_above_edits(
    transformer: HookedTransformer,
    observation: Observation,
    edits: Edits,
    run: RunAboveEdits,
) -> Tensor:
    """Run the model on edited copies of a batch, from the lowest edited layer upwards.

    Blocks below this layer are skipped, because their outputs are recorded in the observation.

    Args:
        transformer: The model.
        observation: The observed batch.
        edits: Data by layer, such as new attention weights, each `[copies, batch, ...]`. Each copy
            of the batch is edited with its own data.
        run: Function that runs the model on one copy.

    Returns:
        Results `[copies, batch, ...]`.
    """
    lowest_layer = min(edits)
    n_skipped = transformer.layers[lowest_layer].n_blocks_before
    skipped_outputs = observation.state.outputs[:n_skipped]
    inputs = observation.batch.inputs

    def run_copies(copies: slice) -> Tensor:
        chunk = {layer: edited[copies] for layer, edited in edits.items()}
        if transformer.supports_vmap:
            return torch.func.vmap(partial(run, inputs, skipped_outputs))(chunk)
        n_copies, n_batch = chunk[lowest_layer].shape[:2]
        flat_edits = {layer: edited.flatten(0, 1) for layer, edited in chunk.items()}
        repeated_inputs, repeated_outputs = repeat_batch(
            (dict(inputs), skipped_outputs), n_copies, n_batch
        )
        result = run(repeated_inputs, repeated_outputs, flat_edits)
        return result.unflatten(0, (n_copies, n_batch))

    chunk_size = transformer.tokens_per_pass // observation.batch.mask.numel()
    return run_in_chunks(run_copies, len(edits[lowest_layer]), chunk_size)


def prepare_partial_replay(
    transformer: HookedTransformer, observation: Observation
) -> PartialReplay | None:
    """Prepare an observed batch for partial replays, which run only the affected part of a model.

    Args:
        transformer: The model.
        observation: The observed batch.

    Returns:
        The prepared batch, or None if partial replays would not be exact for it.
    """
    sublayers = transformer.sublayers
    if sublayers is None:
        return None

    def prepare() -> PartialReplay | None:
        state = observation.state
        inputs, mask = observation.batch.inputs, observation.batch.mask
        head = partial(transformer.compute_scores_from_hidden, inputs, state.outputs)
        partial_replay = PartialReplay(state.calls, sublayers, observation.attention, mask, head)
        is_exact = partial_replay.is_exact(get_relative_tolerance(transformer.model.dtype))
        return partial_replay if is_exact else None

    return observation.remember("short_replay", prepare)


@torch.no_grad()
def check_partial_replays(transformer: HookedTransformer, observation: Observation) -> None:
    """Compare partial replays with the complete model, and disable them if the scores differ.

    Every layer is checked. A partial replay runs only the part of the model that an edit affects.

    Args:
        transformer: The model.
        observation: The observed batch.
    """
    partial_replay = prepare_partial_replay(transformer, observation)
    if partial_replay is None:
        return
    inputs = observation.batch.inputs
    for layer, attention in enumerate(observation.attention):
        visible = observation.model.get_visible_keys(observation, layer)
        edited = put_weight_on_least_attended(attention, visible)
        if not equals_full_pass(transformer, partial_replay, inputs, layer, edited):
            transformer.sublayers = None
            return


def equals_full_pass(
    transformer: HookedTransformer,
    partial_replay: PartialReplay,
    inputs: Inputs,
    layer: int,
    edited: Tensor,
) -> bool:
    """Check whether a partial replay gives the same scores as the complete model.

    Differences due to rounding are allowed.

    Args:
        transformer: The model.
        partial_replay: The prepared batch.
        inputs: Inputs for the same batch.
        layer: Number of the edited layer.
        edited: New attention weights, `[batch, heads, queries, keys]`. Two copies of them are
            replayed.
    """
    expected = transformer.compute_logits(inputs, create_replacing_edit({layer: edited}))
    scores = partial_replay.replay(layer, edited.repeat(2, 1, 1, 1, 1))
    return _equal_up_to_rounding(scores, expected.expand_as(scores), transformer.model.dtype)


def _equal_up_to_rounding(scores: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Check whether scores differ by rounding only, for a model with weights of the given type."""
    largest = float(expected.nan_to_num(neginf=0).abs().max())
    tolerance = get_relative_tolerance(dtype) * largest
    return torch.allclose(scores, expected, rtol=0, atol=tolerance, equal_nan=True)


def prepare_row_removal(
    transformer: HookedTransformer, observation: Observation
) -> PartialReplay | None:
    """Prepare an observed batch for replays that leave out the rows of erased tokens.

    The result is checked once per batch: every other token is erased, and the scores must be the
    same as those of the complete model.

    Args:
        transformer: The model.
        observation: The observed batch.

    Returns:
        The prepared batch, or None if such replays are not possible or not exact.
    """
    partial_replay = prepare_partial_replay(transformer, observation)
    if partial_replay is None or not partial_replay.can_leave_out_rows:
        return None
    model, batch = observation.model, observation.batch

    @torch.no_grad()
    def is_exact() -> bool:
        is_odd = torch.arange(batch.mask.shape[1], device=batch.mask.device) % 2 == 1
        is_erased = batch.content_mask & is_odd
        edited = {}
        for layer, attention in enumerate(observation.attention):
            visible = model.get_visible_keys(observation, layer)[:, None]
            edited[layer] = zero_out(attention, is_erased[:, None, None], movable=visible)
        expected = transformer.compute_logits(batch.inputs, create_replacing_edit(edited))
        texts = torch.arange(len(is_erased), device=is_erased.device)
        states = partial_replay.compute_readout_states(texts, is_erased, renormalise=True)
        scores = partial_replay.compute_scores(states[None])[0]
        return _equal_up_to_rounding(scores, expected, transformer.model.dtype)

    return partial_replay if observation.remember("rows can be left out", is_exact) else None


def replay_without_keys(
    transformer: HookedTransformer,
    observation: Observation,
    partial_replay: PartialReplay,
    texts: Tensor,
    is_erased: Tensor,
    *,
    renormalise: bool,
    tokens_per_pass: int,
) -> Tensor:
    """Compute the probabilities after erasing keys from the attention of all heads.

    Args:
        transformer: The model.
        observation: The observed batch.
        partial_replay: The result of `prepare_row_removal` for this batch.
        texts: Index of the text for each set of erased keys, int `[sets]`.
        is_erased: Erased keys, bool `[sets, keys]`.
        renormalise: Whether the remaining weights of a row are scaled up to their previous sum.
        tokens_per_pass: Largest number of rows in one pass, including padding.

    Returns:
        Probabilities `[sets, classes]`.
    """
    lengths, order = partial_replay.find_remaining_rows(texts, is_erased).sum(1).sort(stable=True)
    chunks = []
    for chunk in split_by_length(lengths.tolist(), tokens_per_pass):
        indices = order[chunk]
        states = partial_replay.compute_readout_states(
            texts[indices], is_erased[indices], renormalise=renormalise
        )
        chunks.append(states)
    states = torch.empty_like(torch.cat(chunks))
    states[order] = torch.cat(chunks)

    # The head computes one set of every text at once: the first sets, then the second sets, etc.
    n_texts = len(observation.batch.mask)
    counts = torch.nn.functional.one_hot(texts, n_texts).cumsum(0)
    copies = counts.gather(1, texts[:, None])[:, 0] - 1
    n_copies = int(copies.max()) + 1
    grid = states.new_zeros(n_copies, n_texts, *states.shape[1:])
    grid[copies, texts] = states
    chunk_size = transformer.tokens_per_pass // observation.batch.mask.numel()
    scores = run_in_chunks(
        lambda part: partial_replay.compute_scores(grid[part]), n_copies, chunk_size
    )
    probs = transformer.head.compute_probs(scores, observation.batch.inputs)
    return probs[copies, texts]


def run_in_chunks(run: Callable[[slice], Tensor], n_copies: int, chunk_size: int) -> Tensor:
    """Split edited copies of a batch into chunks, run each chunk, and join the results.

    Args:
        run: Function that receives a slice of the copies and returns their results `[copies, ...]`.
        n_copies: Number of copies.
        chunk_size: Number of copies per chunk; values below 1 count as 1.

    Returns:
        Results `[copies, ...]`.
    """
    chunk_size = max(1, chunk_size)
    starts = range(0, n_copies, chunk_size)
    return torch.cat([run(slice(start, start + chunk_size)) for start in starts])


def replay_logits(
    transformer: HookedTransformer,
    observation: Observation,
    edits: Edits,
    create_edit: Callable[[Edits], AttentionEdit],
) -> Tensor:
    """Compute the task head's scores with edited attention.

    Args:
        transformer: The model.
        observation: The observed batch.
        edits: Data by layer, such as new attention weights, each `[copies, batch, ...]`. Each copy
            of the batch is edited with its own data.
        create_edit: Function that turns the data for one copy into an edit.

    Returns:
        Scores `[copies, batch, scores]`.
    """
    partial_replay = prepare_partial_replay(transformer, observation)
    if partial_replay is not None:
        return _replay_partially(transformer, partial_replay, edits, create_edit)

    def run(inputs: Inputs, skipped_outputs: tuple[Any, ...], edits: Edits) -> Tensor:
        return transformer.compute_logits(inputs, create_edit(edits), skipped_outputs)

    return resume_above_edits(transformer, observation, edits, run)


def _replay_partially(
    transformer: HookedTransformer,
    partial_replay: PartialReplay,
    edits: Edits,
    create_edit: Callable[[Edits], AttentionEdit],
) -> Tensor:
    """Compute the scores of `replay_logits` by running only the part of the model above the edits.

    In the lowest edited layer, the recorded attention is edited for all copies at once. The layers
    above it are edited while the model runs. All copies of all texts then share one batch axis.
    """
    lowest_layer = min(edits)
    n_texts = len(partial_replay.mask)
    recorded_attention = partial_replay.attention[lowest_layer]

    def edit_lowest_layer(edit: Tensor) -> Tensor:
        return create_edit({lowest_layer: edit})(
            lowest_layer, recorded_attention, recorded_attention
        )

    def run_copies(copies: slice) -> Tensor:
        edited_attention = torch.func.vmap(edit_lowest_layer)(edits[lowest_layer][copies])
        edits_above = {}
        for layer, edit in edits.items():
            if layer != lowest_layer:
                edit_per_text = edit[copies].expand(-1, n_texts, -1, -1, -1)
                edits_above[layer] = edit_per_text.flatten(0, 1)
        edit_above = create_edit(edits_above) if edits_above else None
        return partial_replay.replay(lowest_layer, edited_attention, edit_above)

    chunk_size = transformer.tokens_per_pass // (n_texts * partial_replay.count_rows(lowest_layer))
    return run_in_chunks(run_copies, len(edits[lowest_layer]), chunk_size)


def replay_outputs(
    transformer: HookedTransformer,
    observation: Observation,
    site: Site,
    outputs: Tensor,
) -> Tensor:
    """Replace the output of one head, and compute the class probabilities; see `HeadOutputs`.

    Args:
        transformer: The model.
        observation: The observed batch.
        site: The head, and optionally the only query that is replaced.
        outputs: New head outputs, `[copies, batch, queries, width]`.

    Returns:
        Probabilities `[copies, batch, classes]`.
    """
    n_heads = transformer.n_heads[site.layer]
    partial_replay = prepare_partial_replay(transformer, observation)
    if partial_replay is not None:
        chunk_size = max(1, transformer.tokens_per_pass // observation.batch.mask.numel())
        chunks = [partial_replay.replay_output(*site, chunk) for chunk in outputs.split(chunk_size)]
        logits = torch.cat(chunks)
        return transformer.head.compute_probs(logits, observation.batch.inputs)

    def run(inputs: Inputs, skipped_outputs: tuple[Any, ...], edits: Edits) -> Tensor:
        edit = create_output_edit(*site, n_heads, edits[site.layer])
        return transformer.compute_logits(inputs, None, skipped_outputs, OutputHook(edit))

    logits = resume_above_edits(transformer, observation, {site.layer: outputs}, run)
    return transformer.head.compute_probs(logits, observation.batch.inputs)


def replay_interchange(
    transformer: HookedTransformer,
    observation: Observation,
    site: Site,
    units: Tensor,
    states: Edits,
) -> Tensor:
    """Compute the class probabilities after exchanging the state of one unit per text.

    The site's heads read a donor's state instead of the unit's own state. Attention weights do not
    change. See `ExchangeableStates`.

    Args:
        transformer: The model.
        observation: The observed batch.
        site: The heads that read the donor's state.
        units: Position of the unit in each text, int `[copies, batch]`.
        states: Donor states by layer, each `[batch, site heads, width]`.

    Returns:
        Probabilities `[copies, batch, classes]`.
    """
    model = observation.model
    mask = observation.batch.mask
    is_unit = torch.nn.functional.one_hot(units, mask.shape[1]).bool()
    positions, substitutes, observed_attention = {}, {}, {}
    for layer, heads in model.get_heads_by_layer(site).items():
        attention = observation.attention[layer]
        observed_attention[layer] = attention
        positions[layer] = model.get_unit_positions(observation, layer, is_unit)
        substitutes[layer] = SubstituteValues.create(heads, site.query, states[layer], attention)

    def run(inputs: Inputs, skipped_outputs: tuple[Any, ...], positions: Edits) -> Tensor:
        lowest_positions = positions[min(positions)]
        # Without vmap, the batch contains several copies of the texts.
        n_copies = len(lowest_positions) // len(mask)
        fixed_attention = {}
        for layer, weights in observed_attention.items():
            fixed_attention[layer] = weights.repeat(n_copies, 1, 1, 1)
        interchange_hook = InterchangeHook(positions, substitutes, transformer.n_heads)
        fixing_edit = create_replacing_edit(fixed_attention)
        return transformer.compute_logits(inputs, fixing_edit, skipped_outputs, interchange_hook)

    logits = resume_above_edits(transformer, observation, positions, run)
    return transformer.head.compute_probs(logits, observation.batch.inputs)


class _BlockReachedError(Exception):
    """Signal that ends a forward pass after the block of interest; not a failure."""


def compute_block_output(
    transformer: HookedTransformer,
    observation: Observation,
    layer: int,
    factors: Tensor,
) -> Tensor:
    """Compute a block's output after multiplying its attention by factors; see `BlockOutputs`.

    The forward pass starts at the block's recorded input and ends after the block.

    Args:
        transformer: The model.
        observation: The observed batch.
        layer: Layer index.
        factors: One factor per key, `[copies, batch, 1, 1, keys]`.

    Returns:
        Hidden states `[copies, batch, queries, hidden]`.
    """
    n_blocks_before = transformer.layers[layer].n_blocks_before

    def run(inputs: Inputs, skipped_outputs: tuple[Any, ...], edits: Edits) -> Tensor:
        outputs: list[Any] = []

        def stop(module: nn.Module, args: Any, output: Any) -> None:
            outputs.append(output)
            if len(outputs) > n_blocks_before:
                raise _BlockReachedError

        edit = create_masking_edit(edits, transformer.n_heads)
        try:
            with hook_modules(transformer.layout.blocks, stop):
                transformer.compute_logits(inputs, edit, skipped_outputs)
        except _BlockReachedError:
            pass
        return extract_hidden_states(transformer, outputs[n_blocks_before])

    return resume_above_edits(transformer, observation, {layer: factors}, run)


def extract_hidden_states(transformer: HookedTransformer, output: Any) -> Tensor:
    """Extract the hidden states `[batch, queries, hidden]` from a block's output.

    Args:
        transformer: The model.
        output: Output from any block.
    """
    hidden = get_first_tensor(output)
    if transformer.layout.embeddings.sequence_first:
        return hidden.transpose(0, 1)
    return hidden


# --- Checking that edits reach the model, before any number is reported --------------------------


@torch.no_grad()
def check_edits_reach_logits(
    observation: Observation,
    native: Tensor,
    replay_logits: Callable[[Observation, Mapping[int, Tensor]], Tensor],
    layer_names: Sequence[str],
    dtype: torch.dtype,
    layers: Sequence[int] | None = None,
) -> None:
    """Check that edits to every layer change the logits, and that unchanged attention does not.

    An edit that never reached the model would otherwise go unnoticed, because its numbers would
    look plausible.

    Args:
        observation: The observed texts.
        native: Logits without any edit, `[batch, outputs]`.
        replay_logits: Function that takes an observation and new attention weights by layer, and
            returns logits.
        layer_names: Layer names for error messages.
        dtype: Data type of the model's computations.
        layers: Numbers of the layers to check, or None for all.

    Raises:
        AttnProbeError: If the check fails for a layer.
    """
    tolerance = get_relative_tolerance(dtype) * float(native.abs().max())
    for layer in range(len(layer_names)) if layers is None else layers:
        name, attention = layer_names[layer], observation.attention[layer]
        unchanged = replay_logits(observation, {layer: attention[None]})[0]
        error = float((unchanged - native).abs().max())
        if not error <= tolerance:
            raise AttnProbeError(
                f"self-check failed: the logits changed by {error:.1e} when the attention in {name} "
                f"was replaced with itself (tolerance: {tolerance:.1e}). This model cannot be "
                "audited. Please report this problem."
            )
        visible = observation.model.get_visible_keys(observation, layer)
        edit = put_weight_on_least_attended(attention, visible)[None]
        edited = replay_logits(observation, {layer: edit})[0]
        if (visible.sum(-1) > 1).any() and torch.equal(edited, unchanged):
            raise AttnProbeError(
                f"self-check failed: no logit changed when the attention in {name} was edited. "
                "This model cannot be audited. Please report this problem."
            )


def put_weight_on_least_attended(attention: Tensor, visible: Tensor) -> Tensor:
    """Put each row's entire attention weight on the visible key that had the smallest weight.

    The result differs from the original attention in every row with two or more visible keys.

    Args:
        attention: Attention weights, `[batch, heads, queries, keys]`.
        visible: Visible keys, bool `[batch, queries, keys]`.

    Returns:
        New weights `[batch, heads, queries, keys]`.
    """
    visible_weights = attention.masked_fill(~visible[:, None], torch.inf)
    least_attended = visible_weights.argmin(-1, keepdim=True)
    return torch.zeros_like(attention).scatter(-1, least_attended, 1)


# --- Head outputs and values ---------------------------------------------------------------------
# In some architectures, a head's output is not the product of attention and values, so there is
# nothing to read or to replace. `examine_head_support` determines this on an example.


class HeadSupport(NamedTuple):
    """Which parts of a model's attention heads can be read and replaced.

    Attributes:
        projections: Each head's slice of the output projection, one tensor `[heads, width, hidden]`
            per layer. A head adds `output @ slice` to the hidden states. None if a layer has no
            linear output projection.
        no_values: Reason why values cannot be read; None if they can.
        no_projections: Reason why output projections cannot be read; None if they can.
        no_outputs: Reason why head outputs cannot be replaced; None if they can.
    """

    projections: tuple[Tensor, ...] | None
    no_values: str | None
    no_projections: str | None
    no_outputs: str | None


@torch.no_grad()
def examine_head_support(transformer: HookedTransformer) -> HeadSupport:
    """Determine which parts of a model's attention heads can be read and replaced.

    Head outputs count as replaceable if, on an example, setting a head's output to 0 has the same
    effect as setting its attention to 0.

    Args:
        transformer: The model.

    Returns:
        The output projections, and a reason for each part that cannot be read or replaced.
    """
    inputs = create_example_inputs(transformer.model)
    layers = range(len(transformer.layers))
    attention: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}

    def record_attention(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        attention[layer] = weights
        return weights

    def record_output(layer: int, output: Tensor, values: Tensor) -> Tensor:
        outputs[layer] = output
        return output

    output_hook = OutputHook(record_output)
    logits = transformer.compute_logits(inputs, record_attention, output_hook=output_hook)
    no_values = _describe_missing_layer(transformer, outputs, "the product of attention and values")
    no_projections = _describe_missing_layer(
        transformer,
        output_hook.projections,
        "a linear output projection of head outputs",
    )
    projections = None
    if no_projections is None:
        projections = tuple(output_hook.projections[layer] for layer in layers)
    if no_values is not None:
        return HeadSupport(projections, no_values, no_projections, no_values)
    tolerance = 1e-3 * float(logits.abs().max())
    no_outputs = None
    for layer in reversed(layers):
        weights, output = attention[layer], outputs[layer]
        error = _compute_ablation_error(transformer, inputs, layer, weights, output)
        if not error <= tolerance:
            no_outputs = (
                "expected a head's output to be attention times values, but "
                f"{transformer.layer_names[layer]} of "
                f"{type(transformer.model).__name__} computes something else; "
                "its heads can only be zero-ablated"
            )
    return HeadSupport(projections, no_values, no_projections, no_outputs)


def _describe_missing_layer(
    transformer: HookedTransformer, layers: Collection[int], operation: str
) -> str | None:
    """Return an error message if an operation was not found in one of the layers.

    Args:
        transformer: The model.
        layers: Numbers of the layers that compute the operation.
        operation: Description of the operation for the message.

    Returns:
        A message about the first such layer, or None if every layer has the operation.
    """
    for layer, name in enumerate(transformer.layer_names):
        if layer not in layers:
            return (
                f"expected {operation} in every layer, but {name} of "
                f"{type(transformer.model).__name__} has none; its heads can only be zero-ablated"
            )
    return None


def _compute_ablation_error(
    transformer: HookedTransformer,
    inputs: dict[str, Tensor],
    layer: int,
    attention: Tensor,
    output: Tensor,
) -> float:
    """Remove the effect of a layer's first head in two ways, and compare the logits.

    Either the head's output or its attention is set to 0. The logits agree if the output is
    attention times values. They differ if the model applies a gate or a norm in between.

    Args:
        transformer: The model.
        inputs: Example inputs.
        layer: Layer index.
        attention: The layer's attention weights on the example.
        output: The layer's head outputs on the example.

    Returns:
        The largest difference between two logits.
    """
    n_heads = transformer.n_heads[layer]
    zero_attention = attention.clone()
    zero_attention[:, 0] = 0
    zeros = torch.zeros_like(unpack_heads(output, n_heads)[:, 0])
    zero_output = create_output_edit(layer, 0, None, n_heads, zeros)
    expected = transformer.compute_logits(inputs, create_replacing_edit({layer: zero_attention}))
    ablated = transformer.compute_logits(inputs, output_hook=OutputHook(zero_output))
    return float((ablated - expected).abs().max())


@torch.no_grad()
def compute_outputs_and_values(
    transformer: HookedTransformer, batch: Batch
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Compute every head's outputs and values in one forward pass.

    Args:
        transformer: The model.
        batch: The texts.

    Returns:
        Two tuples with one tensor per layer: outputs `[batch, heads, queries, width]` and values
        `[batch, heads, keys, width]`.
    """
    outputs, values = {}, {}

    def record_layer(layer: int, layer_output: Tensor, layer_values: Tensor) -> Tensor:
        n_heads = transformer.n_heads[layer]
        # Several heads may share their values.
        n_sharing_heads = n_heads // layer_values.shape[1]
        outputs[layer] = unpack_heads(layer_output, n_heads)
        values[layer] = layer_values.repeat_interleave(n_sharing_heads, dim=1)
        return layer_output

    transformer.compute_logits(batch.inputs, output_hook=OutputHook(record_layer))
    layers = range(len(transformer.layers))
    return tuple(outputs[layer] for layer in layers), tuple(values[layer] for layer in layers)


def create_reference(transformer: HookedTransformer, batch: Batch) -> ReferenceOutputs:
    """Run the model on some texts, and store the outputs of all its heads.

    Padding is moved to the end of each text.

    Args:
        transformer: The model.
        batch: The texts.
    """
    mask = batch.mask
    # A stable sort moves the real tokens to the front and keeps their order.
    order = (~mask).sort(dim=1, stable=True).indices
    is_real = mask.gather(1, order)[:, None, :, None]
    rows = order[:, None, :, None]
    head_outputs, _ = compute_outputs_and_values(transformer, batch)
    sorted_outputs = []
    for output in head_outputs:
        sorted_output = output.gather(2, rows.expand(output.shape))
        sorted_outputs.append(sorted_output * is_real)
    identities = tuple(batch.list_identities())
    return ReferenceOutputs(batch.example_ids, mask.sum(1), tuple(sorted_outputs), identities)
