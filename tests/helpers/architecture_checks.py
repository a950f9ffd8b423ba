"""Checks of a Transformers class after its family: native outputs, edits, replays and an audit."""

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from hf_attnprobe import AttnProbeError, AuditOptions, audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.transformer.replay import put_weight_on_least_attended
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.protocol import Batch, Observation
from tests.helpers.transformer_families import BEGIN, END, MASK, N_WORDS, PAD, UNKNOWN, tiny_model


WORKS, REFUSED, ABSENT, WRONG = "works", "refused", "not buildable here", "wrong"
TOLERANCE = 5e-5
"""Largest allowed difference of probabilities and attention in float32."""

LENGTHS = (7, 3, 5, 4)
TEXTS = [
    " ".join(f"w{10 + (7 * k + row) % 45}" for k in range(length))
    for row, length in enumerate(LENGTHS)
]
LABELS = [0, 1, 2, 1]


class Outcome(NamedTuple):
    """Result of the checks of one class.

    Attributes:
        name: Name of the class.
        result: One of `WORKS`, `REFUSED`, `ABSENT` and `WRONG`.
        reason: Reason if the class does not work.
        layers: Number of layers and heads, such as "2 × 4".
        compared: How its attention was compared with `output_attentions`.
        left_out: Tests that the default audit left out.
    """

    name: str
    result: str
    reason: str = ""
    layers: str = ""
    compared: str = ""
    left_out: tuple[str, ...] = ()


class CheckFailedError(AssertionError):
    """A computed number differs from its expected value."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Create a tokenizer of the words w5 to w59, with a begin and an end token."""
    special = ("[PAD]", "[BEGIN]", "[END]", "[UNK]", "[MASK]")
    words = {name: k for k, name in enumerate(special)}
    words |= {f"w{k}": k for k in range(len(special), N_WORDS)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(
        single="[BEGIN] $A [END]", special_tokens=[("[BEGIN]", BEGIN), ("[END]", END)]
    )
    names = dict(zip(("pad", "cls", "sep", "unk", "mask"), special, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="[BEGIN]",
        eos_token="[END]",
        model_input_names=["input_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
    )


assert (PAD, UNKNOWN, MASK) == (0, 3, 4)


def examine_class(class_name: str, model_type: str) -> Outcome:
    """Build a tiny model of a class and run all checks."""
    with _suppress_warnings():
        try:
            model = tiny_model(class_name, model_type)
        except ImportError as error:
            return Outcome(class_name, ABSENT, _get_missing_library(error))
        try:
            adapter = wrap(model)
        except AttnProbeError as error:
            return Outcome(class_name, REFUSED, _get_message(error))
        assert isinstance(adapter, TransformerAdapter)
        try:
            return _run_checks(class_name, model_type, model, adapter)
        except AttnProbeError as error:
            return Outcome(class_name, REFUSED, _get_message(error))


def _run_checks(class_name: str, model_type: str, model: PreTrainedModel, adapter: Any) -> Outcome:
    """Run an audit, and then the checks if the audit does not refuse the model."""
    report = audit(
        model,
        _create_rows(model),
        ["default", Permutation(n_permutations=2)],
        tokenizer=None if _is_image(model) else tiny_tokenizer(),
        options=AuditOptions(shown_texts=2, prune=False),
        progress=False,
    )
    batch = _prepare_batch(adapter, range(len(TEXTS)))
    observation = adapter.observe(batch)
    _check_probabilities(model, observation)
    _check_edits(adapter, observation)
    _check_probes(adapter, observation)
    if not _is_image(model):
        _check_padding(adapter, observation)
    compared = _check_attention(class_name, model_type)
    heads = sorted(set(adapter.n_heads))
    layers = f"{len(adapter.layers)} × {'/'.join(map(str, heads))}"
    left_out = tuple(report.provenance.get("left_out", {}))
    return Outcome(class_name, WORKS, "", layers, compared, left_out)


def _create_rows(model: PreTrainedModel) -> dict[str, list[Any]]:
    """Create the data set of the audit."""
    if not _is_image(model):
        return {"text": TEXTS, "label": LABELS}
    return {"pixel_values": _create_pixels(model).tolist(), "label": LABELS}


def _is_image(model: PreTrainedModel) -> bool:
    """Check whether a model reads images."""
    return model.main_input_name == "pixel_values"


def _create_pixels(model: PreTrainedModel) -> torch.Tensor:
    """Create random images."""
    size = getattr(model.config, "image_size", None) or model.config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    shape = (len(TEXTS), 3, height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _create_inputs(model: PreTrainedModel, rows: Any, pads_left: bool) -> dict[str, torch.Tensor]:
    """Create the inputs of some texts or images."""
    if _is_image(model):
        return {"pixel_values": _create_pixels(model)[list(rows)].to(model.dtype)}
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = "left" if pads_left else "right"
    encoded = tokenizer(
        [TEXTS[row] for row in rows],
        padding=True,
        return_special_tokens_mask=True,
        return_tensors="pt",
    )
    return dict(encoded)


def _prepare_batch(adapter: Any, rows: Any) -> Batch:
    """Prepare a batch of some texts or images."""
    inputs = _create_inputs(adapter.model, rows, adapter.pads_left)
    return adapter.prepare(inputs, tuple(rows))


@torch.no_grad()
def _check_probabilities(model: PreTrainedModel, observation: Observation) -> None:
    """Check that the probabilities are those of a plain call of the model."""
    parameters = inspect.signature(model.forward).parameters
    inputs = _create_inputs(model, range(len(TEXTS)), observation.model.pads_left)
    result = model(**{name: value for name, value in inputs.items() if name in parameters})
    expected = result.logits.softmax(-1).to(observation.probs.dtype)
    _check_close("probabilities", observation.probs, expected)


@torch.no_grad()
def _check_edits(adapter: Any, observation: Observation) -> None:
    """Check unchanged attention, that edits change the output, and replays against full passes."""
    generator = torch.Generator().manual_seed(0)
    for layer, attention in enumerate(observation.attention):
        name = adapter.layer_names[layer]
        unchanged = adapter.replay(observation, {layer: attention[None]})[0]
        _check_close(f"the identity edit of {name}", unchanged, observation.probs)
        visible = adapter.get_visible_keys(observation, layer)
        edits = [put_weight_on_least_attended(attention, visible)]
        random_weights = torch.rand(attention.shape, generator=generator, dtype=attention.dtype)
        random_weights = random_weights.masked_fill(~visible[:, None], 0)
        edits.append(random_weights / random_weights.sum(-1, keepdim=True).clamp_min(1e-9))
        replayed = adapter.replay(observation, {layer: torch.stack(edits)})
        if not (replayed - observation.probs).abs().max() > 1e-9:
            raise CheckFailedError(f"edits of {name} do not arrive")
        for edit, probs in zip(edits, replayed, strict=True):
            expected = _run_with_edit(adapter, observation, layer, edit)
            _check_close(f"a replay of {name}", probs, expected)


def _run_with_edit(
    adapter: Any, observation: Observation, layer: int, edit: torch.Tensor
) -> torch.Tensor:
    """Compute the probabilities in a full pass with one edit."""

    def replace_layer(n: int, weights: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return edit.reshape(weights.shape) if n == layer else weights

    return adapter.compute_logits(observation.batch.inputs, replace_layer).softmax(-1)


def _check_probes(adapter: Any, observation: Observation) -> None:
    """Check that importances are finite, and that leave-one-out equals the shorter text."""
    _check_finite("gradient × input", observation.compute_gradient_importance())
    _check_finite("leave-one-out", observation.compute_leave_one_out_importance())
    if _is_image(adapter.model):
        _check_patches(adapter, observation)
        return
    inputs = _create_inputs(adapter.model, [0], adapter.pads_left)
    remaining = torch.arange(inputs["input_ids"].shape[1]) != 3
    shorter = {name: value[:, remaining] for name, value in inputs.items()}
    expected = adapter.observe(adapter.prepare(shorter, (0,))).probs[0]
    alone = adapter.observe(_prepare_batch(adapter, [0]))
    _check_close("leave-one-out", adapter.compute_leave_one_out(alone)[0, 3], expected)


@torch.no_grad()
def _check_patches(adapter: Any, observation: Observation) -> None:
    """Check that leaving a patch out equals dropping its token, and that patches are exchanged."""
    n_keys = observation.batch.mask.shape[1]
    # The second patch from the left in the uppermost row.
    position = n_keys - adapter.patches.grid.n_patches + 1
    remaining = [key for key in range(n_keys) if key != position]

    def drop_token(block: Any, args: Any) -> Any:
        return (args[0][:, remaining], *args[1:])

    pixels = observation.batch.inputs["pixel_values"]
    handle = adapter.layout.blocks[0].register_forward_pre_hook(drop_token)
    expected = adapter.model(pixel_values=pixels).logits.softmax(-1)
    handle.remove()
    _check_close("a patch left out", observation.leave_one_out[:, position], expected)
    exchanged = torch.zeros_like(observation.batch.mask)
    exchanged[:, position] = True
    height, width = adapter.patches.grid[2:]
    replacements = [{position: image[:, -height:, -width:]} for image in pixels]
    edited = pixels.clone()
    edited[:, :, :height, width : 2 * width] = pixels[:, :, -height:, -width:]
    expected = adapter.model(pixel_values=edited).logits.softmax(-1)
    probs = adapter.exchange_inputs(observation, exchanged[None], replacements)[0]
    _check_close("an exchanged patch", probs, expected)


def _check_padding(adapter: Any, together: Observation) -> None:
    """Check that a text has the same results with and without padding."""
    for row in range(len(TEXTS)):
        alone = adapter.observe(_prepare_batch(adapter, [row]))
        _check_close("a text without padding", alone.probs[0], together.probs[row])
        is_real = together.batch.mask[row]
        for a, b in zip(together.attention, alone.attention, strict=True):
            _check_close("attention without padding", a[row][:, is_real][:, :, is_real], b[0])


@torch.no_grad()
def _check_attention(class_name: str, model_type: str) -> str:
    """Compare the attention with `output_attentions` of the eager model, if it returns them."""
    try:
        model = tiny_model(class_name, model_type, attn_implementation="eager")
        adapter = wrap(model)
    except (ValueError, TypeError):
        return "no eager model"
    batch = _prepare_batch(adapter, range(len(TEXTS)))
    parameters = inspect.signature(model.forward).parameters
    inputs = {k: v for k, v in batch.inputs.items() if k in parameters}
    result = model(**inputs, output_attentions=True)
    returned = _list_returned_attention(result)
    observed = adapter.observe(batch).attention
    if not returned:
        return "not given out"
    if [a.shape for a in returned] != [a.shape for a in observed]:
        return "given out in another form"
    mask = batch.mask
    has_sink = any(name.endswith("sinks") for name, _ in model.named_parameters())
    are_scores = any(float(a.max()) > 1 + TOLERANCE for a in returned)  # as in SqueezeBERT
    for expected, captured in zip(returned, observed, strict=True):
        if are_scores:
            expected = expected.softmax(-1)
        rows = mask[:, None, :, None] if captured.shape[2] == mask.shape[1] else 1
        if has_sink:  # The returned rows lack the sink, so they sum to less than 1.
            expected = expected / expected.sum(-1, keepdim=True)
        _check_close("attention", captured * rows, expected.to(captured.dtype) * rows)
    if are_scores:
        return "equal to the softmax of what is given out"
    return "equal, beside the sink" if has_sink else "equal"


def _list_returned_attention(result: Any) -> list[torch.Tensor]:
    """List all attention that a model returns, in the order of its calls."""
    if result.get("encoder_attentions") is not None:
        pairs = zip(
            result.get("decoder_attentions") or (),
            result.get("cross_attentions") or (),
            strict=True,
        )
        all_attention = [*result["encoder_attentions"], *(a for pair in pairs for a in pair)]
    else:
        all_attention = list(result.get("attentions") or ())
    return [a for a in all_attention if isinstance(a, torch.Tensor)]


def _check_close(quantity: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise CheckFailedError if two tensors differ."""
    error = float((actual - expected).abs().max())
    if not error <= TOLERANCE:
        raise CheckFailedError(f"{quantity}: off by {error:.1e}")


def _check_finite(quantity: str, values: torch.Tensor) -> None:
    """Raise CheckFailedError if a value is not finite."""
    if not values.isfinite().all():
        raise CheckFailedError(f"{quantity}: not finite")


def _get_message(error: AttnProbeError) -> str:
    """Return the one-line message of an error, without numbers that depend on the processor."""
    if "\n" in str(error):
        raise CheckFailedError(f"an error of several lines: {error}") from error
    return re.sub(r" by \d\.\de-\d\d ", " ", str(error))


def _get_missing_library(error: ImportError) -> str:
    """Return the message that names a missing library."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


@contextmanager
def _suppress_warnings() -> Iterator[None]:
    """Suppress warnings of Transformers inside the context."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    transformers.logging.set_verbosity(verbosity)
