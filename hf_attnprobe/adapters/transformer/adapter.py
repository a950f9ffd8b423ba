"""A Transformer as an :class:`AttentionModel`.

One adapter is one class: a method of the core or of a capability is a check and a call, and what
it does is in the files beside it. What the heads of a family let one read is examined once, and
``lacks`` answers from that.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters.deletion import (
    ErasureSettings,
    compute_erased_probs,
    sum_over_pieces,
    find_word_units,
)
from hf_attnprobe.adapters.pretrained import (
    PretrainedModelInfo,
    ScaledGradients,
    select_forward_inputs,
)
from hf_attnprobe.adapters.transformer.attention_hooks import (
    AttentionEdit,
    detach_attention,
    create_masking_edit,
    create_replacing_edit,
    unpack_heads,
    find_visible_keys,
)
from hf_attnprobe.adapters.transformer.layout import (
    Layout,
    compute_gradient_times_input,
    count_patches,
    needs_left_padding,
    compute_row_weights,
    choose_readout,
    run_with_zero_embeddings,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import BlockCall, record_calls
from hf_attnprobe.adapters.transformer.replay import (
    HookedTransformer,
    compute_block_output,
    check_partial_replays,
    compute_outputs_and_values,
    create_reference,
    replay_interchange,
    replay_logits,
    replay_outputs,
    check_edits_reach_logits,
)
from hf_attnprobe.adapters.transformer.task_heads import ADAPTER_INPUTS, create_head
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.protocol import (
    NON_MODEL_COLUMNS,
    AttentionModelBase,
    Batch,
    BlockOutputs,
    EditableInputs,
    ExchangeableStates,
    HeadOutputs,
    HeadValues,
    Observation,
    OutputProjections,
    Reference,
    Site,
    Stack,
)


# --- From tokenizer output to a batch for a Transformer ------------------------------------------
# Which positions are real, which are special, and which tokens are one word.

LEVELS = ("token", "word")


def build_masks(
    model: PreTrainedModel, layout: Layout, inputs: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Which positions may receive attention, and which are special, both bool [batch, keys].

    Raises:
        AttnProbeError: inputs are missing, or are not those of this model.
    """
    if layout.n_keys is not None:
        # before the patches come [CLS] and its like
        positions = torch.arange(layout.n_keys, device=model.device)
        special = positions < layout.n_keys - count_patches(model.config)
        special = special.expand(len(inputs["pixel_values"]), -1)
        return torch.ones_like(special), special
    needed = {"input_ids", "attention_mask", "special_tokens_mask"}
    missing = needed - inputs.keys()
    if missing:
        raise AttnProbeError(
            f"expected {', '.join(sorted(missing))} in a batch; the tokenizer gives them when asked"
        )
    largest = int(inputs["input_ids"].max())
    table = model.get_input_embeddings().weight
    assert isinstance(table, Tensor)  # a module's attributes may be modules too
    if largest >= len(table):
        raise AttnProbeError(
            f"expected token ids below {len(table)}, got {largest}; use the tokenizer of this model"
        )
    mask = inputs["attention_mask"].bool()
    if needs_left_padding(model.config) and not mask[:, -1].all():
        raise AttnProbeError(
            "expected padding on the left, got it on the right; "
            f"{type(model).__name__} classifies at the last position"
        )
    return mask, inputs["special_tokens_mask"].bool()


def find_units(level: str | None, inputs: Mapping[str, Tensor], mask: Tensor) -> Tensor:
    """For each position, the position that represents its unit, int64 [batch, keys].

    That is the first piece of its word, or itself.

    Raises:
        AttnProbeError: words are asked for, and the batch has none.
    """
    if level == "word" and "word_ids" not in inputs:
        raise AttnProbeError(
            "expected word_ids in a batch, got none; use a fast tokenizer or level='token'"
        )
    if level == "token" or "word_ids" not in inputs:
        return torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
    return find_word_units(inputs["word_ids"])


# --- Any Transformer with a classification head as an :class:`AttentionModel` --------------------

DELETION_TOKENS_ON_CPU = 1024
"""Whole passes over a core's cache: smaller ones are faster, of 512 to 4,096 tokens."""

ERROR_HINTS = {
    "padding token": "set model.config.pad_token_id, as for its training",
    "<eos> token": "leave out texts that hold the model's end token as a word",
}
"""What to do, by what a model says: GPT-2 and its kin saved without one, BART."""


HEAD_CAPABILITIES = {
    HeadValues: "no_values",
    OutputProjections: "no_projections",
    HeadOutputs: "no_outputs",
    ExchangeableStates: "no_outputs",
}
"""Where :class:`HeadSupport` says why a capability is missing."""


class TransformerState(NamedTuple):
    """Results of one forward pass from which replays start.

    Attributes:
        calls: of every block, in order.
        visible: per layer bool [batch, queries, keys], what the mask lets be seen.
    """

    calls: tuple[BlockCall, ...]
    visible: tuple[Tensor, ...]

    @property
    def outputs(self) -> tuple[Any, ...]:
        """What every block call returned."""
        return tuple(call.output for call in self.calls)


class TransformerAdapter(PretrainedModelInfo, ScaledGradients, HookedTransformer, AttentionModelBase):
    """Reads and edits the attention of every layer and head of a Transformer.

    It works on a twin of the model that shares its weights (in eval mode, as loaded:
    eager or sdpa, half precision or not): the user's own model is never hooked, switched
    or changed. Move it to its device before.

    Args:
        model: with a head that :func:`~hf_attnprobe.adapters.transformer.task_heads.find_head`
            knows: classes of texts or images, several labels, a number, tags of words, the
            span of an answer, one of several choices, a masked word.
        dtype: what to compute in; ``None``: as loaded.
        level: what is explained and left out, "token" or "word" (all its pieces together,
            represented by the first); ``None``: words where :meth:`prepare` is given
            ``word_ids``.
        readout: the query row that the prediction is read from, "first", "last" or
            "mean"; ``None``: found out, see
            :func:`~hf_attnprobe.adapters.transformer.layout.compute_row_weights`.
        mask_id: the token that stands in for an erased one.
        tokens_per_pass: how many tokens to feed at once in replays and leave-one-out;
            ``None``: by device.
        predicts: what a single logit is: "probability" or "number"; "auto": as the
            configuration says.
        scale: the unit in which changes of a predicted number are measured.
        threshold: what makes a decision of a number.

    Attributes:
        layers: kind and heads of each layer; the position is the layer's number.
        n_heads: number of heads of each layer.
        layer_names: "layer.3", or "encoder.0", "decoder.0", "cross.0".
    """

    model: PreTrainedModel

    def __init__(
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
    ) -> None:
        if level not in (None, *LEVELS):
            raise AttnProbeError(f"expected level to be one of {', '.join(LEVELS)}, got {level!r}")
        self.readout = choose_readout(model.config, readout)
        head = create_head(
            model,
            predicts=predicts,
            scale=scale,
            threshold=threshold,
            mask_id=mask_id,
        )
        PretrainedModelInfo.__init__(self, model)
        HookedTransformer.__init__(self, model, head, dtype=dtype, tokens_per_pass=tokens_per_pass)
        self.label_names = list(head.prediction.class_names)
        self.level, self.mask_id = level, mask_id
        self.unit = level or "word"
        self.pads_left = needs_left_padding(model.config)

    @property
    def prediction(self) -> Prediction:
        return self.head.prediction

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        if capability is EditableInputs and self.layout.n_keys is not None:
            return "expected texts, got images, from which no token can be removed"
        if capability in HEAD_CAPABILITIES:
            reason = getattr(self._heads, HEAD_CAPABILITIES[capability])
            if reason is not None:
                return reason
        if capability is BlockOutputs and not self.layout.blocks:
            name = type(self.model).__name__
            return f"expected layers in a list, found none in {name}; leave the test out"
        if (
            capability is Stack
            and site is not None
            and self.layers[site.layer].kind in ("decoder", "cross")
        ):
            name = self.layer_names[site.layer]
            return f"expected a single stack up to {name}, which joins two"
        return super().lacks(capability, site)

    # Batches

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Makes a batch of padded tokenizer output, or of ``pixel_values``.

        Texts need ``special_tokens_mask`` [batch, keys] beside the model's own inputs;
        ``word_ids`` [batch, keys] (int, -1 for none) makes words of pieces. The batch
        keeps ``units`` among its inputs: for each token the position that stands for it.
        """
        device = self.model.device
        inputs = {name: value.to(device) for name, value in inputs.items()}
        inputs = self.head.select_inputs(inputs, self._run)
        mask, special = build_masks(self.model, self.layout, inputs)
        stands_for = find_units(self.level, inputs, mask)
        places = torch.arange(mask.shape[1], device=mask.device)
        content = mask & ~special & (stands_for == places)
        inputs = self.head.add_readout_inputs(inputs, mask, content, self._run)
        if labels is not None:
            labels = self.head.convert_labels(labels, inputs)

        kept = {name: value for name, value in inputs.items() if name in ADAPTER_INPUTS}
        kept |= self._taken(inputs)
        kept["units"] = stands_for
        is_read_alone = _read_alone(kept, content)
        content = content & ~is_read_alone
        return Batch(kept, mask, content, tuple(example_ids), labels)

    @torch.no_grad()
    def _run(self, inputs: Mapping[str, Tensor]) -> Any:
        with shorten_model_errors(inputs):
            return self.model(**self.build_arguments(self._taken(inputs)))

    def _taken(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        besides = ADAPTER_INPUTS | NON_MODEL_COLUMNS
        return select_forward_inputs(self.model, {n: v for n, v in inputs.items() if n not in besides})

    # Forward passes

    def observe(self, batch: Batch) -> Observation:
        attention: list[Tensor] = []
        visible: list[Tensor] = []

        def capture(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            n_heads = self.n_heads[layer]
            precise = torch.promote_types(weights.dtype, torch.float32)
            attention.append(unpack_heads(weights, n_heads).to(precise))
            visible.append(find_visible_keys(unpack_heads(scores, n_heads)[:, 0]))
            return weights

        refusals = shorten_model_errors(batch.inputs)
        with (
            torch.no_grad(),
            refusals,
            record_calls(self.layout.blocks) as calls,
        ):
            scores = self.compute_logits(batch.inputs, capture)
        probs = self.head.compute_probs(scores, batch.inputs)
        if not probs.isfinite().all():
            raise AttnProbeError(
                f"expected finite logits, got NaN or infinity in {self.model.dtype}; "
                "load the model in float32 or bfloat16"
            )
        state = TransformerState(tuple(calls), tuple(visible))
        return Observation(self, batch, probs, tuple(attention), state)

    def compute_native_probs(self, batch: Batch) -> Tensor | None:
        inputs = dict(batch.inputs)
        own = {n: v.to(batch.mask.device) for n, v in batch.tokenizer_output.items()}
        if own:
            inputs.pop("known", None)  # of several choices the model sees all
        with shorten_model_errors(batch.inputs):
            result = self.compute_native_output(own or self.build_arguments(inputs))
        scores = self.head.compute_scores(result, inputs)
        precise = torch.promote_types(scores.dtype, torch.float32)
        return self.head.compute_probs(scores.to(precise), inputs)

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        scores = self.replay_logits(observation, attention)
        return self.head.compute_probs(scores, observation.batch.inputs)

    def replay_logits(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Like :meth:`replay`, for the head's scores: [copies, batch, scores]."""
        for layer, edited in attention.items():
            self.check_site(Site(layer))
            if edited.shape[1:] != observation.attention[layer].shape:
                expected = ["copies", *observation.attention[layer].shape]
                raise AttnProbeError(
                    f"expected attention {expected} for layer {layer}, got {list(edited.shape)}"
                )
        return replay_logits(self, observation, attention, create_replacing_edit)

    def replay_masked(self, observation: Observation, kept: Mapping[int, Tensor]) -> Tensor:
        masked = partial(create_masking_edit, n_heads=self.n_heads)
        scores = replay_logits(self, observation, kept, masked)
        return self.head.compute_probs(scores, observation.batch.inputs)

    def set_reference(self, *batches: Batch) -> None:
        self.require(HeadOutputs)
        with shorten_model_errors(batches[0].inputs):
            self.reference = Reference.concatenate([create_reference(self, batch) for batch in batches])

    def replay_outputs(self, observation: Observation, site: Site, outputs: Tensor) -> Tensor:
        self.check_site(site)
        self.require(HeadOutputs, site)
        return replay_outputs(self, observation, site, outputs)

    def replay_exchanged(
        self,
        observation: Observation,
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        self.require(ExchangeableStates, site)
        return replay_interchange(self, observation, site, units, states)

    def list_layers_below(self, layer: int) -> list[int]:
        self.require(Stack, Site(layer))
        kind = self.layers[layer].kind
        return [n for n in range(layer + 1) if self.layers[n].kind == kind]

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        self.require(HeadValues)
        return compute_outputs_and_values(self, observation.batch)[1]

    def get_states(self, observation: Observation, site: Site) -> Tensor:
        return observation.head_values[site.layer][:, site.head]

    def get_output_projections(self) -> tuple[Tensor, ...]:
        self.require(OutputProjections)
        assert self._heads.projections is not None
        return self._heads.projections

    def compute_block_output(self, observation: Observation, layer: int, kept: Tensor) -> Tensor:
        self.require(BlockOutputs)
        return compute_block_output(self, observation, layer, kept)

    # Importances

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        kind = self.layers[site.layer].kind
        if site.query is not None:
            row = values[:, site.query]
        else:
            visible = observation.state.visible[site.layer]
            rows = self._rows_read(observation, kind, visible)
            row = (rows.to(values.dtype)[:, None] @ values)[:, 0]
        if kind == "decoder":  # its input is shifted by one, behind a start token
            row = F.pad(row[:, 1:], (0, 1))
        return sum_over_pieces(row, observation.batch.inputs["units"])

    def describe_readout(self, observation: Observation) -> str:
        """Of the first text; empty where stacks differ, or where parts are read apart."""
        batch = observation.batch
        if {layer.kind for layer in self.layers} != {"layer"} or "reads" in batch.inputs:
            return ""
        rows = self._rows_read(observation, "layer", observation.state.visible[0])[0]
        if rows.count_nonzero() > 1:
            return "all tokens"
        is_first = rows.argmax() == batch.mask[0].long().argmax()
        return "the first token" if is_first else "the last token"

    def _rows_read(self, observation: Observation, kind: str, visible: Tensor) -> Tensor:
        """Weight of each query row in the read-out, [batch, queries].

        The tokens that the prediction is read from count alike; where it is read from
        the whole text, see :func:`compute_row_weights`.
        """
        reads = observation.batch.inputs.get("reads")
        if reads is None or self.readout is not None or kind == "encoder":
            mask = observation.batch.mask
            return compute_row_weights(self.readout, kind, visible, mask)
        read = reads >= 0
        if kind != "layer":  # a decoder's input is shifted by one
            read = F.pad(read[:, :-1], (1, 0))
        return read / read.sum(1, keepdim=True).clamp_min(1)

    def get_unit_positions(self, observation: Observation, layer: int, units: Tensor) -> Tensor:
        stands_for = observation.batch.inputs["units"]
        places = units.gather(-1, stands_for.expand(units.shape))
        if self.layers[layer].kind == "decoder":  # see `read_map`
            places = F.pad(places[..., :-1], (1, 0))
        return places

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        """See the protocol: follows causality and windows; padding sees nothing.

        What is drawn for queries, or averaged over them, then does not depend on padding.
        """
        mask = observation.batch.mask
        return observation.state.visible[layer] & mask[:, None] & mask[:, :, None]

    def _explained(self, inputs: Mapping[str, Tensor], edit: AttentionEdit | None, target: Tensor) -> Tensor:
        """Probability of the class ``target`` [batch], summed over texts."""
        probs = self.head.compute_probs(self.compute_logits(inputs, edit), inputs)
        return compute_shifted_probability(probs, target).sum()

    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold_attention: bool
    ) -> Tensor:
        """See the base class; a decoder's start token is not scaled."""
        inputs = observation.batch.inputs
        edit = detach_attention if hold_attention else None
        slopes = compute_gradient_times_input(
            self.layout.embeddings,
            partial(self._explained, inputs, edit, target),
            observation.batch.mask.shape[1],
            scale=scale,
        )
        return sum_over_pieces(slopes, inputs["units"])

    @torch.no_grad()
    def compute_zero_embedding_probs(self, observation: Observation) -> Tensor:
        inputs = observation.batch.inputs
        scores = run_with_zero_embeddings(self.layout.embeddings, partial(self.compute_logits, inputs))
        return self.head.compute_probs(scores, inputs)

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """See the protocol; one backward pass."""
        seen: list[Tensor] = []

        def mark(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            seen.append(weights.requires_grad_())
            return weights

        with torch.enable_grad():
            explained = self._explained(observation.batch.inputs, mark, target)
            slopes = torch.autograd.grad(explained, seen, materialize_grads=True)
        gradients = []
        for slope, attention in zip(slopes, observation.attention, strict=True):
            gradients.append(slope.reshape(attention.shape).to(attention.dtype))
        return gradients

    def _probs_of(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Probabilities of shortened texts."""
        with shorten_model_errors(texts):
            scores = self.compute_logits(texts)
        return self.head.compute_probs(scores, texts)

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """Probabilities without the erased units, [copies, batch, classes].

        Those of the whole text where nothing is erased, or nothing would be left, not
        even a special token.
        """
        self.require(EditableInputs)
        inputs = dict(observation.batch.inputs)
        if "reads" in inputs:  # a shorter text may lack what is read
            inputs["whole"] = observation.probs[:, None]
        n_tokens = self.tokens_per_pass
        if self.model.device.type == "cpu":
            n_tokens = min(n_tokens, DELETION_TOKENS_ON_CPU)
        settings = ErasureSettings(
            pad_id=self.model.config.get_text_config().pad_token_id or 0,
            tokens_per_pass=n_tokens,
            mask_id=self.mask_id,
            pads_left=self.pads_left,
        )
        return compute_erased_probs(
            observation,
            erased,
            self._probs_of,
            settings,
            inputs=inputs,
            units=inputs["units"],
            operator=operator,
            empty=observation.probs,
        )

    def self_check(self, batch: Batch) -> None:
        """Raises AttnProbeError unless edits of every layer reach the logits.

        The identity edit must leave them as they are. Where short replays are not what
        whole passes are, there are none from here on.
        """
        observation = self.observe(batch)
        check_partial_replays(self, observation)
        native = _comparable(self.compute_logits(batch.inputs))
        names, dtype = self.layer_names, self.model.dtype

        def replayed(observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
            return _comparable(self.replay_logits(observation, attention))

        check_edits_reach_logits(observation, native, replayed, names, dtype)


def _comparable(scores: Tensor) -> Tensor:
    """Scores with finite differences: 0 where a slot cannot be chosen or does not exist."""
    return scores.nan_to_num(nan=0, neginf=0)


def _read_alone(inputs: Mapping[str, Tensor], content: Tensor) -> Tensor:
    """Tokens that alone determine the prediction, bool [batch, keys].

    Without it there is nothing to compare, so it is not explained.
    """
    if "reads" not in inputs:
        return torch.zeros_like(content)
    read = inputs["reads"] >= 0
    return read & (read.sum(1, keepdim=True) == 1)


@contextlib.contextmanager
def shorten_model_errors(inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Turns an error of the model, such as for too long a text, into one line."""
    try:
        yield
    except (AttnProbeError, torch.OutOfMemoryError):
        raise
    except (ValueError, IndexError, RuntimeError) as error:
        shape = list(next(iter(inputs.values())).shape)
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        mends = [f"; {mend}" for said, mend in ERROR_HINTS.items() if said in reason]
        raise AttnProbeError(
            f"the model refused a batch of shape {shape}: {reason}{''.join(mends)}"
        ) from error
