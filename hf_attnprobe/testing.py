"""Does an adapter keep the protocol? For people who write one for their own models.

Call :func:`check_adapter` in a test with a handful of texts of different lengths, as
``check_estimator`` of scikit-learn is called.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.replay import least_attended
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    BlockOutputs,
    Differentiable,
    EditableInputs,
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
    """Checks the core of the protocol and every capability that the adapter claims.

    The core: shapes; attention that sums to 1 over what a query sees and is exactly 0
    elsewhere; the same answer twice, alone and in the batch; the attention put back gives
    the same probabilities; an edit of every layer reaches the output, of its own text and
    copy only. Gradients are compared with finite differences, leave-one-out with shorter
    texts, linear read-outs and head outputs with edits of the attention.

    Args:
        adapter: what :func:`hf_attnprobe.wrap` would return.
        batch: two or more texts of different lengths, from ``adapter.prepare``. With a
            model in float64 even small errors are found.

    Raises:
        AttnProbeError: what failed, and at which layer.
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
    if not bool(condition):
        raise AttnProbeError(f"check_adapter: {message}")


def _expect_close(found: Tensor, expected: Tensor, message: str) -> None:
    """Equal up to rounding in the precision of the model."""
    _expect_shape(found, expected.shape, message)
    tolerance = 1000 * torch.finfo(expected.dtype).eps
    close = torch.allclose(found.to(expected.dtype), expected, rtol=tolerance, atol=tolerance)
    _expect(close, f"expected {message}; they differ")


def _expect_shape(found: Tensor, shape: tuple[int, ...], message: str) -> None:
    came = list(found.shape)
    _expect(came == list(shape), f"expected {message} {list(shape)}, got {came}")


def _layers(model: AttentionModelBase) -> list[int]:
    return sorted({site.layer for site in model.sites()})


def _visible(observation: Observation, layer: int) -> Tensor:
    """Bool [batch, 1, queries, keys]."""
    return observation.model.visible(observation, layer)[:, None]


def _other_attention(observation: Observation, layer: int) -> Tensor:
    """All weight on the key with the least; nothing changes where one key is visible."""
    attention = observation.attention[layer]
    visible = observation.model.visible(observation, layer)
    is_real = visible.any(-1)[:, None, :, None]
    return least_attended(attention, visible).where(is_real, attention)


# The core


def _check_shapes(observation: Observation) -> None:
    model, batch = observation.model, observation.batch
    n_texts = len(batch.example_ids)
    _expect(n_texts > 1, "expected a batch of two or more texts")
    _expect(bool(model.sites()), "expected at least one site")
    for name in ("mask", "content_mask"):
        values = getattr(batch, name)
        _expect(values.dtype == torch.bool, f"expected {name} to be bool")
        _expect_shape(values, (n_texts, batch.mask.shape[1]), name)
    outside = batch.content_mask & ~batch.mask
    _expect(not outside.any(), "expected content_mask only where mask is True")
    classes = (n_texts, len(model.label_names))
    _expect_shape(observation.probs, classes, "probabilities of every label name")
    ones = torch.ones_like(observation.probs[:, 0])
    _expect_close(observation.probs.sum(-1), ones, "probabilities to sum to 1")
    for site in model.sites():
        _expect(site.query is None, "expected sites() without queries")
        known = len(observation.attention)
        _expect(site.layer < known, f"sites() names layer {site.layer} of {known}")
        attention = observation.attention[site.layer]
        _expect(
            attention.dim() == 4,
            f"layer {site.layer}: attention has not 4 axes",
        )
        n_heads = attention.shape[1]
        _expect(site.head < n_heads, f"sites() names head {site.head} of {n_heads}")
        for query in (None, 0):
            row = observation.read(site._replace(query=query))
            _expect_shape(row, batch.mask.shape, f"a reading of layer {site.layer}")
    for layer in _layers(model):
        values = observation.attention[layer][:, 0]
        visible = model.visible(observation, layer)
        _expect(visible.dtype == torch.bool, f"layer {layer}: visible is not bool")
        _expect_shape(visible, values.shape, f"visible of layer {layer}")
        twice = model.read_map(observation, 2 * values, Site(layer))
        once = model.read_map(observation, values, Site(layer))
        _expect_close(twice, 2 * once, f"read_map of layer {layer} to be linear")


def _check_attention(observation: Observation) -> None:
    for layer in _layers(observation.model):
        attention, visible = (
            observation.attention[layer],
            _visible(observation, layer),
        )
        real = visible.any(-1, keepdim=True)
        hidden = attention.masked_fill(visible | ~real, 0)
        _expect(
            not hidden.any(),
            f"layer {layer}: expected attention exactly 0 where nothing is visible",
        )
        padding = ~observation.batch.mask
        if visible.shape[-1] == padding.shape[-1]:
            seen = visible & padding[:, None, None]
            _expect(not seen.any(), f"layer {layer}: padding is visible")
        sums = attention.sum(-1, keepdim=True)
        ones = torch.ones_like(sums).where(real, sums)
        _expect_close(sums, ones, f"rows of attention in layer {layer} to sum to 1")


def _check_determinism(observation: Observation) -> None:
    again = observation.model.observe(observation.batch)
    same = torch.equal(again.probs, observation.probs)
    _expect(same, "two passes over the same batch differ; is dropout on?")


def _check_replay(observation: Observation) -> None:
    model = observation.model
    probs = observation.probs
    for layer in _layers(model):
        own = observation.attention[layer]
        other = _other_attention(observation, layer)
        first = other.clone()
        first[1:] = own[1:]
        edits = torch.stack([own, other, first])
        after = model.replay(observation, {layer: edits})
        _expect_shape(after, (3, *probs.shape), f"replayed probabilities of layer {layer}")
        same = f"the attention put back in layer {layer} to change no probability"
        _expect_close(after[0], probs, same)
        editable = (_visible(observation, layer).sum(-1) > 1).any()
        arrived = not torch.equal(after[1], after[0]) or not editable
        _expect(arrived, f"layer {layer}: an edit does not reach the output")
        alone = f"an edit of one text in layer {layer} to leave the others"
        _expect_close(after[2, 1:], probs[1:], alone)
        copies = f"copies of an edit in layer {layer} not to touch each other"
        _expect_close(after[2, 0], after[1, 0], copies)


def _check_single_texts(observation: Observation) -> None:
    """What a text gives alone and unpadded, it gives in the batch."""
    for row, single in _single_texts(observation):
        alone = observation.model.observe(single)
        message = f"the same probabilities of text {row} alone and in the batch"
        _expect_close(alone.probs[0], observation.probs[row], message)
        for site in observation.model.sites():
            found = alone.read(site)[0]
            expected = observation.read(site)[row]
            found = found[single.mask[0]]
            expected = expected[observation.batch.mask[row]]
            message = f"the same attention of text {row} in layer {site.layer} alone"
            _expect_close(found, expected, message)


def _single_texts(observation: Observation) -> Iterator[tuple[int, Batch]]:
    """Yields every text as a batch, its padding cut off where it is at the end."""
    batch = observation.batch
    tokens = batch.inputs.get("attention_mask", batch.mask).bool()
    for row in range(len(tokens)):
        n_tokens = int(tokens[row].sum())
        n_units = int(batch.mask[row].sum())
        cuts = {}
        if tokens[row, :n_tokens].all():  # padded on the right
            cuts[tokens.shape[1]] = n_tokens
        if batch.mask.shape[1] != tokens.shape[1]:
            cuts[batch.mask.shape[1]] = max(n_units, 1)
        yield row, _one_text(batch, row, cuts)


def _one_text(batch: Batch, row: int, cuts: dict[int, int]) -> Batch:
    """One text, with its axis of so many positions cut."""

    def cut(values: Tensor) -> Tensor:
        if len(values) != len(batch.example_ids):
            return values
        values = values[row : row + 1]
        if values.dim() < 2:
            return values
        return values[:, : cuts.get(values.shape[1])]

    inputs = {name: cut(value) for name, value in batch.inputs.items()}
    ids = batch.example_ids[row : row + 1]
    return Batch(inputs, cut(batch.mask), cut(batch.content_mask), ids)


# Capabilities


def _check_gradients(observation: Observation) -> None:
    model = observation.model.require(Differentiable)
    target = observation.target(None)
    slope = model.gradient(observation, target)
    _expect_shape(slope, observation.batch.mask.shape, "gradient × input of")
    _expect(slope.isfinite().all(), "expected a finite gradient × input")
    content = observation.batch.content_mask
    _expect(slope[content].any(), "gradient × input is 0 at every token")
    tokens = observation.batch.inputs.get("attention_mask", content).bool()
    real = tokens if tokens.shape == content.shape else content
    _expect(not slope[~real].any(), "gradient × input of padding is not 0")
    gradients = model.attention_gradient(observation, target)
    for layer in _layers(observation.model):
        attention, found = observation.attention[layer], gradients[layer]
        shape = attention.shape
        _expect_shape(found, shape, f"attention gradients of layer {layer}")
        _check_slope(observation, layer, found, target)


def _check_integrated(observation: Observation) -> None:
    model = observation.model.require(IntegratedGradients)
    target = observation.target(None)
    found = model.integrated_gradient(observation, target, 3)
    _expect_shape(found, observation.batch.mask.shape, "integrated gradients of")
    _expect(found.isfinite().all(), "expected finite integrated gradients")
    without = model.probs_without_embeddings(observation)
    _expect_shape(without, observation.probs.shape, "probs_without_embeddings")
    for row, single in _single_texts(observation):
        alone = observation.model.observe(single)
        expected = model.integrated_gradient(alone, target[row : row + 1], 3)[0]
        _expect_close(
            expected[single.content_mask[0]],
            found[row, observation.batch.content_mask[row]],
            f"the same integrated gradients of text {row} alone and in the batch",
        )


def _check_slope(observation: Observation, layer: int, gradient: Tensor, target: Tensor) -> None:
    """Checks the gradient along a random direction against the change of replayed outputs."""
    attention = observation.attention[layer]
    draw = torch.Generator().manual_seed(layer)
    direction = torch.randn(attention.shape, generator=draw).to(attention)
    direction = direction * _visible(observation, layer)
    step = 1e-2 if attention.dtype == torch.float32 else 1e-3
    edits = torch.stack([attention + step * direction, attention - step * direction])
    with torch.no_grad():
        after = observation.model.replay(observation, {layer: edits})
    explained = target[None, :, None].expand(2, -1, 1)
    up, down = after.gather(-1, explained)[..., 0]
    expected = (up - down) / (2 * step)
    of_weights = gradient * direction
    found = of_weights.sum((1, 2, 3))
    # many models compute norms in float32, whatever they are asked for
    allowed = 2e-4 + 0.05 * expected.abs().max()
    error = (found - expected).abs()
    close = (error <= allowed).all()
    _expect(close, f"layer {layer}: attention_gradient is not that of an edit")


def _check_inputs(observation: Observation) -> None:
    model = observation.model.require(EditableInputs)
    batch, probs = observation.batch, observation.probs
    content = batch.content_mask
    nothing = torch.zeros_like(content)[None]
    unchanged = model.erase_inputs(observation, nothing)[0]
    _expect_close(unchanged, probs, "the same probabilities where nothing is erased")
    without = model.leave_one_out(observation)
    _expect_shape(without, (*content.shape, probs.shape[1]), "leave_one_out")
    each = torch.eye(content.shape[1], dtype=torch.bool, device=content.device)
    erased = model.erase_inputs(observation, each[:, None].expand(-1, len(content), -1))
    _expect_close(
        erased.transpose(0, 1)[content],
        without[content],
        "leave_one_out to be erase_inputs of one unit",
    )
    for row, single in _single_texts(observation):
        shorter = _without_one(single)
        if shorter is not None:
            removed, text = shorter
            expected = observation.model.observe(text).probs[0]
            found = without[row, removed]
            message = f"leave_one_out of text {row} to be the text without position"
            _expect_close(found, expected, f"{message} {removed}")


def _without_one(single: Batch) -> tuple[int, Batch] | None:
    """A text without its first content token; None where that is not plain to see."""
    shape = single.mask.shape
    inputs = dict(single.inputs)
    places = torch.arange(shape[1], device=single.mask.device)[None]
    units = inputs.pop("units", places)
    tokens = inputs.get("attention_mask", single.mask)
    same_width = all(value.shape == shape for value in inputs.values())
    is_padded = not tokens.bool().all()
    if not same_width or is_padded or not torch.equal(units, places) or shape[1] < 2:
        return None
    content = single.content_mask[0].nonzero()[:, 0].tolist()
    if not content:
        return None
    kept = places[0] != content[0]
    inputs = {name: value[:, kept] for name, value in inputs.items()}
    if "units" in single.inputs:
        inputs["units"] = places[:, :-1]
    mask, content_mask = single.mask[:, kept], single.content_mask[:, kept]
    return content[0], Batch(inputs, mask, content_mask, single.example_ids)


def _check_linear_readout(observation: Observation) -> None:
    model = observation.model.require(LinearReadout)
    (site,) = observation.model.sites()
    logits, bias = model.token_logits(observation), model.readout_bias()
    n_classes = observation.probs.shape[1]
    _expect_shape(logits, (*observation.batch.mask.shape, n_classes), "token_logits")
    _expect_shape(bias, (n_classes,), "readout_bias")
    edit = _other_attention(observation, site.layer)
    for attention in (observation.attention[site.layer], edit):
        weights = attention[:, 0, 0, :, None]
        expected = (weights * (logits - bias)).sum(1) + bias
        found = observation.model.replay(observation, {site.layer: attention[None]})[0]
        message = "probabilities to be the softmax of Σ a_t token_logits_t"
        _expect_close(found, expected.softmax(-1).to(found.dtype), message)


def _check_head_values(observation: Observation) -> None:
    model = observation.model.require(HeadValues)
    values = model.head_values(observation)
    for site in observation.model.sites():
        attention = observation.attention[site.layer]
        n_texts, n_heads, _, n_keys = attention.shape
        width = values[site.layer].shape[-1]
        expected = (n_texts, n_heads, n_keys, width)
        message = f"head values of layer {site.layer}"
        _expect_shape(values[site.layer], expected, message)
        states = model.states(observation, site)
        of_states = (n_texts, n_keys, states.shape[-1])
        _expect_shape(states, of_states, f"states of layer {site.layer}")


def _check_projections(observation: Observation) -> None:
    projections = observation.model.require(OutputProjections).output_projections()
    for layer in _layers(observation.model):
        n_heads = observation.attention[layer].shape[1]
        shape = (n_heads, *projections[layer].shape[1:])
        _expect_shape(projections[layer], shape, f"output projections of layer {layer}")


def _check_head_outputs(observation: Observation) -> None:
    """Replacing an output by what other attention gives is editing the attention."""
    model = observation.model.require(HeadOutputs)
    if observation.model.lacks(HeadValues):
        return
    for site in observation.model.sites():
        own = observation.attention[site.layer]
        edit = own.clone()
        edit[:, site.head] = _other_attention(observation, site.layer)[:, site.head]
        values = observation.head_values[site.layer][:, site.head]
        output = edit[:, site.head].to(values.dtype) @ values
        found = model.replay_outputs(observation, site, output[None])[0]
        expected = observation.model.replay(observation, {site.layer: edit[None]})[0]
        message = f"outputs of {site} to be attention · values"
        _expect_close(found, expected, message)


def _check_masked_replay(observation: Observation) -> None:
    model = observation.model.require(MaskedReplay)
    for layer in _layers(observation.model):
        own = observation.attention[layer]
        kept = own.new_ones(2, *own.shape[:2], 1, 1)
        kept[1, :, 0] = 0
        found = model.replay_masked(observation, {layer: kept})
        expected = observation.model.replay(observation, {layer: own * kept})
        _expect_close(found, expected, f"masked attention of layer {layer} to be an edit")


def _check_stack(observation: Observation) -> None:
    for layer in _layers(observation.model):
        if observation.model.lacks(Stack, Site(layer)):
            continue
        stack = observation.model.require(Stack)
        below = stack.layers_below(layer)
        is_last = below == sorted(below) and below[-1:] == [layer]
        _expect(is_last, f"layers_below({layer}) does not ascend to {layer}")


def _check_block_outputs(observation: Observation) -> None:
    model = observation.model.require(BlockOutputs)
    for layer in _layers(observation.model):
        n_texts, _, n_queries, n_keys = observation.attention[layer].shape
        kept = observation.probs.new_ones(2, n_texts, 1, 1, n_keys)
        output = model.block_output(observation, layer, kept)
        shape = (2, n_texts, n_queries, output.shape[-1])
        _expect_shape(output, shape, f"block outputs of layer {layer}")


CHECKS = {
    Differentiable: _check_gradients,
    IntegratedGradients: _check_integrated,
    EditableInputs: _check_inputs,
    LinearReadout: _check_linear_readout,
    HeadValues: _check_head_values,
    OutputProjections: _check_projections,
    HeadOutputs: _check_head_outputs,
    MaskedReplay: _check_masked_replay,
    Stack: _check_stack,
    BlockOutputs: _check_block_outputs,
}
"""What is checked where an adapter claims a capability."""
