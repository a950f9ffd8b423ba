"""Check that a custom adapter implements the protocol correctly.

If you have written an adapter, call `check_adapter` in its tests, with a few texts of different
lengths. It is similar to scikit-learn's `check_estimator`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.replay import put_weight_on_least_attended
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    BlockOutputs,
    Differentiable,
    EditableInputs,
    ExchangeableUnits,
    HeadOutputs,
    HeadValues,
    IntegratedGradients,
    LinearReadout,
    MaskedReplay,
    Observation,
    OutputProjections,
    Site,
    Stack,
)


__all__ = ["check_adapter"]


def check_adapter(adapter: AttentionModelBase, batch: Batch) -> None:
    """Check that an adapter implements the protocol and all its capabilities correctly.

    These checks run for every adapter:

    - All tensors have the documented shapes.
    - A query's attention sums to 1 over its visible keys and is exactly 0 at other keys.
    - Two forward passes give the same result.
    - A text gives the same result alone and in a batch.
    - Replaying unchanged attention gives the same probabilities.
    - Editing the attention in any layer changes the output, but only for the edited text and copy.

    For optional capabilities, gradients are compared with finite differences, and leave-one-out
    with shorter texts. An exchange of units for themselves must change nothing. Linear read-outs and head outputs are compared with edited attention.

    Args:
        adapter: The adapter that `hf_attnprobe.wrap` would return.
        batch: Two or more texts of different lengths, from `adapter.prepare`. Use a model in
            float64 to detect small errors as well.

    Raises:
        AttnProbeError: If a check fails. The message names the check and the layer.

    Example:
        adapter = MyAdapter(model.double())
        check_adapter(adapter, adapter.prepare(inputs, example_ids=(0, 1, 2)))
    """
    observation = adapter.observe(batch)
    _check_shapes(observation)
    _check_attention(observation)
    _check_determinism(observation)
    _check_replay(observation)
    _check_single_texts(observation)
    for capability, check in CHECKS.items():
        if not adapter.lacks(capability):
            check(observation)


def _expect(condition: bool | Tensor, message: str) -> None:
    """Raise AttnProbeError with the given message if a condition is false."""
    if not bool(condition):
        raise AttnProbeError(f"check_adapter: {message}")


def _expect_close(actual: Tensor, expected: Tensor, expectation: str) -> None:
    """Raise AttnProbeError if two tensors differ by more than rounding errors.

    Args:
        actual: The tensor to check.
        expected: The tensor that it should equal.
        expectation: End of a sentence that begins with "expected", for the error message.
    """
    actual_shape, shape = list(actual.shape), list(expected.shape)
    message = f"expected {expectation}, but the shapes {actual_shape} and {shape} differ"
    _expect(actual_shape == shape, message)
    tolerance = 1000 * torch.finfo(expected.dtype).eps
    is_close = torch.allclose(actual.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)
    _expect(is_close, f"expected {expectation}, but the values differ")


def _expect_shape(actual: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Raise AttnProbeError if a tensor does not have the expected shape.

    Args:
        actual: The tensor to check.
        shape: The expected shape.
        name: Name of the tensor for the error message.
    """
    actual_shape = list(actual.shape)
    message = f"{name}: expected the shape {list(shape)}, got {actual_shape}"
    _expect(actual_shape == list(shape), message)


def _list_layers(model: AttentionModelBase) -> list[int]:
    """List the numbers of all layers with a site, in ascending order."""
    return sorted({site.layer for site in model.sites()})


def _get_visible_keys(observation: Observation, layer: int) -> Tensor:
    """Return whether each query can attend to each key, bool `[batch, 1, queries, keys]`."""
    return observation.model.get_visible_keys(observation, layer)[:, None]


def _create_edited_attention(observation: Observation, layer: int) -> Tensor:
    """Change the attention in a layer: move all the weight of each query to its least attended key.

    Queries without visible keys, such as padding, stay unchanged.
    """
    attention = observation.attention[layer]
    visible = observation.model.get_visible_keys(observation, layer)
    # The mask has the axes [batch, queries]; axes for heads and keys are added.
    is_real = visible.any(-1)[:, None, :, None]
    return put_weight_on_least_attended(attention, visible).where(is_real, attention)


# Checks for every adapter


def _check_shapes(observation: Observation) -> None:
    """Check the shapes and types of masks, probabilities, attention weights and selected rows."""
    model, batch = observation.model, observation.batch
    n_texts = len(batch.example_ids)
    _expect(n_texts > 1, "expected a batch of two or more texts")
    _expect(bool(model.sites()), "expected at least one site")
    for name in ("mask", "content_mask"):
        values = getattr(batch, name)
        _expect(values.dtype == torch.bool, f"expected {name} to be bool")
        _expect_shape(values, (n_texts, batch.mask.shape[1]), name)
    is_outside = batch.content_mask & ~batch.mask
    _expect(not is_outside.any(), "expected content_mask to be False wherever mask is False")
    expected_shape = (n_texts, len(model.label_names))
    _expect_shape(observation.probs, expected_shape, "probabilities")
    ones = torch.ones_like(observation.probs[:, 0])
    _expect_close(observation.probs.sum(-1), ones, "probabilities to sum to 1")
    for site in model.sites():
        _expect(site.query is None, "expected sites() without queries")
        n_layers = len(observation.attention)
        _expect(
            site.layer < n_layers,
            f"sites() contains layer {site.layer}, but the model has {format_count(n_layers, 'layer')}",
        )
        attention = observation.attention[site.layer]
        _expect(
            attention.dim() == 4,
            f"layer {site.layer}: expected attention with 4 axes, got {attention.dim()}",
        )
        n_heads = attention.shape[1]
        _expect(
            site.head < n_heads,
            f"sites() contains head {site.head}, but layer {site.layer} has "
            f"{format_count(n_heads, 'head')}",
        )
        for query in (None, 0):
            row = observation.read(site._replace(query=query))
            _expect_shape(row, batch.mask.shape, f"a row of layer {site.layer}")
    for layer in _list_layers(model):
        values = observation.attention[layer][:, 0]
        visible = model.get_visible_keys(observation, layer)
        _expect(visible.dtype == torch.bool, f"layer {layer}: visible keys are not bool")
        _expect_shape(visible, values.shape, f"visible keys of layer {layer}")
        doubled_row = model.select_row(observation, 2 * values, Site(layer))
        row = model.select_row(observation, values, Site(layer))
        _expect_close(doubled_row, 2 * row, f"select_row of layer {layer} to be linear")


def _check_attention(observation: Observation) -> None:
    """Check that attention is 0 at invisible keys and that its rows sum to 1."""
    for layer in _list_layers(observation.model):
        attention = observation.attention[layer]
        visible = _get_visible_keys(observation, layer)
        is_real = visible.any(-1, keepdim=True)
        invisible_weights = attention.masked_fill(visible | ~is_real, 0)
        _expect(
            not invisible_weights.any(),
            f"layer {layer}: expected attention exactly 0 at keys that are not visible",
        )
        padding = ~observation.batch.mask
        if visible.shape[-1] == padding.shape[-1]:
            is_visible_padding = visible & padding[:, None, None]
            _expect(not is_visible_padding.any(), f"layer {layer}: padding is visible")
        sums = attention.sum(-1, keepdim=True)
        # Rows without visible keys are compared with themselves, so that they always pass.
        ones = torch.ones_like(sums).where(is_real, sums)
        _expect_close(sums, ones, f"rows of attention in layer {layer} to sum to 1")


def _check_determinism(observation: Observation) -> None:
    """Check that a second forward pass gives exactly the same probabilities."""
    second_observation = observation.model.observe(observation.batch)
    is_equal = torch.equal(second_observation.probs, observation.probs)
    _expect(is_equal, "two passes over the same batch differ; is dropout active?")


def _check_replay(observation: Observation) -> None:
    """Check that edited attention changes the output of the edited text, and of no other text.

    ``replay`` computes the probabilities for given attention. It takes several copies of the batch
    with different edits.
    """
    model = observation.model
    probs = observation.probs
    for layer in _list_layers(model):
        unchanged = observation.attention[layer]
        edited = _create_edited_attention(observation, layer)
        only_first = edited.clone()
        only_first[1:] = unchanged[1:]
        # Three copies: no edit, an edit of all texts, and an edit of the first text only.
        edits = torch.stack([unchanged, edited, only_first])
        after = model.replay(observation, {layer: edits})
        _expect_shape(after, (3, *probs.shape), f"replayed probabilities of layer {layer}")
        _expect_close(
            after[0],
            probs,
            f"the same probabilities with unchanged attention in layer {layer}",
        )
        is_editable = (_get_visible_keys(observation, layer).sum(-1) > 1).any()
        has_changed = not torch.equal(after[1], after[0]) or not is_editable
        _expect(has_changed, f"layer {layer}: an edit does not reach the output")
        _expect_close(
            after[2, 1:],
            probs[1:],
            f"an edit of one text in layer {layer} to leave the other texts unchanged",
        )
        _expect_close(
            after[2, 0],
            after[1, 0],
            f"copies of an edit in layer {layer} to be independent",
        )


def _check_single_texts(observation: Observation) -> None:
    """Check that each text gives the same results alone, without padding, as in the batch."""
    for row, single in _iterate_single_texts(observation):
        alone = observation.model.observe(single)
        message = f"the same probabilities of text {row} alone and in the batch"
        _expect_close(alone.probs[0], observation.probs[row], message)
        for site in observation.model.sites():
            weights_alone = alone.read(site)[0]
            weights_in_batch = observation.read(site)[row]
            weights_alone = weights_alone[single.mask[0]]
            weights_in_batch = weights_in_batch[observation.batch.mask[row]]
            message = (
                f"the same attention to text {row} in layer {site.layer}, alone and in the batch"
            )
            _expect_close(weights_alone, weights_in_batch, message)


def _iterate_single_texts(observation: Observation) -> Iterator[tuple[int, Batch]]:
    """Yield a batch with a single text for every text of a batch, together with the text's index.

    Padding on the right is removed.
    """
    batch = observation.batch
    is_token = batch.inputs.get("attention_mask", batch.mask).bool()
    # Tensors have one element per token, or one per unit (such as a sentence). Both are shortened.
    for row in range(len(is_token)):
        n_tokens = int(is_token[row].sum())
        n_units = int(batch.mask[row].sum())
        new_lengths = {}
        is_padded_right = is_token[row, :n_tokens].all()
        if is_padded_right:
            new_lengths[is_token.shape[1]] = n_tokens
        if batch.mask.shape[1] != is_token.shape[1]:
            new_lengths[batch.mask.shape[1]] = max(n_units, 1)
        yield row, _select_text(batch, row, new_lengths)


def _select_text(batch: Batch, row: int, new_lengths: dict[int, int]) -> Batch:
    """Create a batch with a single text, and remove its padding.

    Args:
        batch: The batch.
        row: Index of the text.
        new_lengths: Maps the length of the second axis of a tensor to its new length.
    """

    def select(values: Tensor) -> Tensor:
        # Tensors without an axis for texts are used as they are.
        if len(values) != len(batch.example_ids):
            return values
        values = values[row : row + 1]
        if values.dim() < 2:
            return values
        return values[:, : new_lengths.get(values.shape[1])]

    inputs = {name: select(value) for name, value in batch.inputs.items()}
    ids = batch.example_ids[row : row + 1]
    return Batch(inputs, select(batch.mask), select(batch.content_mask), ids)


# Capabilities


def _check_gradients(observation: Observation) -> None:
    """Check the gradients of the probability of the predicted class.

    Gradient × input must be finite and 0 at padding. Gradients with respect to the attention are
    compared with finite differences.
    """
    model = observation.model.require(Differentiable)
    # None selects each text's predicted class.
    target = observation.get_target_classes(None)
    values = model.compute_gradient_times_input(observation, target)
    _expect_shape(values, observation.batch.mask.shape, "gradient × input")
    _expect(values.isfinite().all(), "expected a finite gradient × input")
    content = observation.batch.content_mask
    _expect(values[content].any(), "gradient × input is 0 at every token")
    # If the attention is over sentences, the mask of tokens has another shape, so the mask of
    # explained positions is used instead.
    is_token = observation.batch.inputs.get("attention_mask", content).bool()
    is_real = is_token if is_token.shape == content.shape else content
    _expect(not values[~is_real].any(), "gradient × input of padding is not 0")
    gradients = model.compute_attention_gradient(observation, target)
    for layer in _list_layers(observation.model):
        attention, gradient = observation.attention[layer], gradients[layer]
        shape = attention.shape
        _expect_shape(gradient, shape, f"attention gradients of layer {layer}")
        _check_attention_gradient(observation, layer, gradient, target)


def _check_integrated_gradients(observation: Observation) -> None:
    """Check that integrated gradients are finite, and do not depend on other texts in the batch."""
    model = observation.model.require(IntegratedGradients)
    # None selects each text's predicted class.
    target = observation.get_target_classes(None)
    # The argument 3 is the number of steps of the approximation.
    values = model.compute_integrated_gradients(observation, target, 3)
    _expect_shape(values, observation.batch.mask.shape, "integrated gradients")
    _expect(values.isfinite().all(), "expected finite integrated gradients")
    zero_probs = model.compute_zero_embedding_probs(observation)
    _expect_shape(zero_probs, observation.probs.shape, "compute_zero_embedding_probs")
    for row, single in _iterate_single_texts(observation):
        alone = observation.model.observe(single)
        text_target = target[row : row + 1]
        values_alone = model.compute_integrated_gradients(alone, text_target, 3)[0]
        _expect_close(
            values_alone[single.content_mask[0]],
            values[row, observation.batch.content_mask[row]],
            f"the same integrated gradients of text {row} alone and in the batch",
        )


def _check_attention_gradient(
    observation: Observation, layer: int, gradient: Tensor, target: Tensor
) -> None:
    """Compare an attention gradient with finite differences along a random direction.

    If the attention changes by step · direction, the explained probability changes by about
    step · Σ gradient · direction. The actual change is computed with two replays.

    Args:
        observation: The observed batch.
        layer: Layer index.
        gradient: The gradient to check, `[batch, heads, queries, keys]`.
        target: Class whose probability is differentiated, int `[batch]`.
    """
    attention = observation.attention[layer]
    generator = torch.Generator().manual_seed(layer)
    direction = torch.randn(attention.shape, generator=generator).to(attention)
    direction = direction * _get_visible_keys(observation, layer)
    step = 1e-2 if attention.dtype == torch.float32 else 1e-3
    edits = torch.stack([attention + step * direction, attention - step * direction])
    with torch.no_grad():
        after = observation.model.replay(observation, {layer: edits})
    explained = target[None, :, None].expand(2, -1, 1)
    probs_up, probs_down = after.gather(-1, explained)[..., 0]
    measured_slope = (probs_up - probs_down) / (2 * step)
    predicted_slope = (gradient * direction).sum((1, 2, 3))
    # Many models compute norms in float32, even if their weights are float64.
    tolerance = 2e-4 + 0.05 * measured_slope.abs().max()
    error = (predicted_slope - measured_slope).abs()
    is_close = (error <= tolerance).all()
    _expect(
        is_close,
        f"layer {layer}: compute_attention_gradient differs from finite differences of replays",
    )


def _check_inputs(observation: Observation) -> None:
    """Check the probabilities after erasing nothing, and after erasing each unit of a text.

    A unit is a token, a word or a sentence. Erasing a token must give the same probabilities as a
    text that never contained it.
    """
    model = observation.model.require(EditableInputs)
    batch, probs = observation.batch, observation.probs
    content = batch.content_mask
    # A mask that is False everywhere erases nothing. Its first axis counts the copies of the batch.
    nothing = torch.zeros_like(content)[None]
    unchanged = model.erase_inputs(observation, nothing)[0]
    _expect_close(unchanged, probs, "the same probabilities if nothing is erased")
    without = model.compute_leave_one_out(observation)
    _expect_shape(without, (*content.shape, probs.shape[1]), "compute_leave_one_out")
    # Row i of this matrix is True only at position i, so it erases only this unit.
    single_units = torch.eye(content.shape[1], dtype=torch.bool, device=content.device)
    erased = model.erase_inputs(observation, single_units[:, None].expand(-1, len(content), -1))
    _expect_close(
        erased.transpose(0, 1)[content],
        without[content],
        "compute_leave_one_out to equal erase_inputs of one unit",
    )
    for row, single in _iterate_single_texts(observation):
        shortened = _remove_first_token(single)
        if shortened is not None:
            position, text = shortened
            expected = observation.model.observe(text).probs[0]
            message = f"compute_leave_one_out to equal text {row} without position {position}"
            _expect_close(without[row, position], expected, message)


def _check_exchanges(observation: Observation) -> None:
    """Check that exchanged units change the output, but only of the edited text."""
    model = observation.model.require(ExchangeableUnits)
    probs, content = observation.probs, observation.batch.content_mask
    contents = model.read_unit_contents(observation)
    positions = [is_unit.nonzero()[:, 0].tolist() for is_unit in content]
    _expect(
        [sorted(text_contents) for text_contents in contents] == positions,
        "expected read_unit_contents to return the positions of all explained units",
    )
    # The first copy keeps all units, and the second copy exchanges every unit for itself.
    sets = torch.stack([torch.zeros_like(content), content])
    same_probs = model.exchange_inputs(observation, sets, contents)
    _expect_shape(same_probs, (2, *probs.shape), "exchange_inputs")
    _expect_close(same_probs[0], probs, "the same probabilities if no unit is exchanged")
    _expect_close(
        same_probs[1], probs, "the same probabilities if units are exchanged for themselves"
    )
    # Every unit is exchanged for the first unit of the next text, in one text at a time.
    n_texts = len(content)
    first_units = [next(iter(text_contents.values()), None) for text_contents in contents]
    replacements = [
        dict.fromkeys(text_positions, first_units[(text + 1) % n_texts])
        for text, text_positions in enumerate(positions)
    ]
    is_edited = torch.eye(n_texts, dtype=torch.bool, device=content.device)
    sets = is_edited[..., None] & content
    is_tested = is_edited & content.any(-1) & content.any(-1).roll(-1)
    if not is_tested.diagonal().all():
        return
    edited_probs = model.exchange_inputs(observation, sets, replacements)
    unedited = probs.expand_as(edited_probs)
    _expect_close(
        edited_probs[~is_edited],
        unedited[~is_edited],
        "an exchange in one text to leave the other texts unchanged",
    )
    _expect(
        not torch.equal(edited_probs[is_edited], unedited[is_edited]),
        "expected an exchange of all units to change the probabilities",
    )


def _remove_first_token(single: Batch) -> tuple[int, Batch] | None:
    """Remove the first explained token from a text.

    Returns:
        The token's position and the shorter text. None if the text is padded or its tokens are
        grouped into words, because the inputs for the shorter text are then not obvious.
    """
    shape = single.mask.shape
    inputs = dict(single.inputs)
    positions = torch.arange(shape[1], device=single.mask.device)[None]
    units = inputs.pop("units", positions)
    is_token = inputs.get("attention_mask", single.mask)
    # The vectors of a bag's instances are the only input with more than one number per position.
    same_width = all(value.shape == shape or name == "features" for name, value in inputs.items())
    is_padded = not is_token.bool().all()
    if not same_width or is_padded or not torch.equal(units, positions) or shape[1] < 2:
        return None
    content = single.content_mask[0].nonzero()[:, 0].tolist()
    if not content:
        return None
    # Keep all positions except the first explained one.
    remaining = positions[0] != content[0]
    inputs = {name: value[:, remaining] for name, value in inputs.items()}
    if "units" in single.inputs:
        inputs["units"] = positions[:, :-1]
    mask, content_mask = single.mask[:, remaining], single.content_mask[:, remaining]
    return content[0], Batch(inputs, mask, content_mask, single.example_ids)


def _check_linear_readout(observation: Observation) -> None:
    """Check that a model's output is a weighted mean over its tokens.

    For models with this property, each token has its own logits. The probabilities must be the
    softmax of their mean, weighted by the attention. This is checked for the model's own attention
    and for edited attention.
    """
    model = observation.model.require(LinearReadout)
    (site,) = observation.model.sites()
    logits, bias = model.compute_token_logits(observation), model.get_readout_bias()
    n_classes = observation.probs.shape[1]
    _expect_shape(logits, (*observation.batch.mask.shape, n_classes), "compute_token_logits")
    _expect_shape(bias, (n_classes,), "get_readout_bias")
    edit = _create_edited_attention(observation, site.layer)
    for attention in (observation.attention[site.layer], edit):
        # Select the only head and query, and add an axis for the classes.
        weights = attention[:, 0, 0, :, None]
        # The bias is part of every token's logits, but is added only once.
        expected = (weights * (logits - bias)).sum(1) + bias
        probs = observation.model.replay(observation, {site.layer: attention[None]})[0]
        message = "probabilities to be the softmax of Σ a_t token_logits_t"
        _expect_close(probs, expected.softmax(-1).to(probs.dtype), message)


def _check_head_values(observation: Observation) -> None:
    """Check the shapes of the vectors of which each head computes a weighted mean.

    These vectors are called values; the states are the inputs from which they are computed.
    """
    model = observation.model.require(HeadValues)
    values = model.compute_head_values(observation)
    for site in observation.model.sites():
        attention = observation.attention[site.layer]
        n_texts, n_heads, _, n_keys = attention.shape
        width = values[site.layer].shape[-1]
        values_shape = (n_texts, n_heads, n_keys, width)
        message = f"head values of layer {site.layer}"
        _expect_shape(values[site.layer], values_shape, message)
        states = model.get_states(observation, site)
        states_shape = (n_texts, n_keys, states.shape[-1])
        _expect_shape(states, states_shape, f"states of layer {site.layer}")


def _check_projections(observation: Observation) -> None:
    """Check that every layer has one output projection (a matrix) for each of its heads."""
    projections = observation.model.require(OutputProjections).get_output_projections()
    for layer in _list_layers(observation.model):
        n_heads = observation.attention[layer].shape[1]
        shape = (n_heads, *projections[layer].shape[1:])
        _expect_shape(projections[layer], shape, f"output projections of layer {layer}")


def _check_head_outputs(observation: Observation) -> None:
    """Check that a head's output is its attention times its values.

    Replacing the attention of a head must give the same probabilities as replacing its output by
    the new attention times the values.
    """
    model = observation.model.require(HeadOutputs)
    if observation.model.lacks(HeadValues):
        return
    for site in observation.model.sites():
        edited = observation.attention[site.layer].clone()
        edited[:, site.head] = _create_edited_attention(observation, site.layer)[:, site.head]
        values = observation.head_values[site.layer][:, site.head]
        head_output = edited[:, site.head].to(values.dtype) @ values
        probs = model.replay_outputs(observation, site, head_output[None])[0]
        expected = observation.model.replay(observation, {site.layer: edited[None]})[0]
        message = f"outputs of {site} to be attention · values"
        _expect_close(probs, expected, message)


def _check_masked_replay(observation: Observation) -> None:
    """Check that removing a head by a mask gives the same result as setting its attention to 0."""
    model = observation.model.require(MaskedReplay)
    for layer in _list_layers(observation.model):
        attention = observation.attention[layer]
        # The first copy keeps the attention; the second copy removes the first head.
        factors = attention.new_ones(2, *attention.shape[:2], 1, 1)
        factors[1, :, 0] = 0
        probs = model.replay_masked(observation, {layer: factors})
        expected = observation.model.replay(observation, {layer: attention * factors})
        _expect_close(probs, expected, f"masked attention of layer {layer} to equal an edit")


def _check_stack(observation: Observation) -> None:
    """Check that `list_layers_below(layer)` returns ascending layers, with the layer itself last."""
    for layer in _list_layers(observation.model):
        if observation.model.lacks(Stack, Site(layer)):
            continue
        stack = observation.model.require(Stack)
        below = stack.list_layers_below(layer)
        is_ascending = below == sorted(below) and below[-1:] == [layer]
        _expect(is_ascending, f"list_layers_below({layer}) does not ascend to {layer}")


def _check_block_outputs(observation: Observation) -> None:
    """Check the shape of the output of each Transformer block."""
    model = observation.model.require(BlockOutputs)
    for layer in _list_layers(observation.model):
        n_texts, _, n_queries, n_keys = observation.attention[layer].shape
        # The block is run twice. Both times the attention weights are multiplied by 1, so they do
        # not change. The first axis of the output must therefore have length 2.
        factors = observation.probs.new_ones(2, n_texts, 1, 1, n_keys)
        output = model.compute_block_output(observation, layer, factors)
        shape = (2, n_texts, n_queries, output.shape[-1])
        _expect_shape(output, shape, f"block outputs of layer {layer}")


CHECKS = {
    Differentiable: _check_gradients,
    IntegratedGradients: _check_integrated_gradients,
    EditableInputs: _check_inputs,
    ExchangeableUnits: _check_exchanges,
    LinearReadout: _check_linear_readout,
    HeadValues: _check_head_values,
    OutputProjections: _check_projections,
    HeadOutputs: _check_head_outputs,
    MaskedReplay: _check_masked_replay,
    Stack: _check_stack,
    BlockOutputs: _check_block_outputs,
}
"""Function that checks each optional capability of an adapter.

`check_adapter` calls it with an observed batch if the adapter has the capability.
"""
