"""What one classifier of Transformers must pass, whatever its family: native outputs, edits, replays, an audit."""

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
"""Of probabilities and attention in float32."""

LENGTHS = (7, 3, 5, 4)
TEXTS = [
    " ".join(f"w{10 + (7 * k + row) % 45}" for k in range(length))
    for row, length in enumerate(LENGTHS)
]
LABELS = [0, 1, 2, 1]


class Outcome(NamedTuple):
    """What became of one class.

    Attributes:
        name: of the class.
        result: works, refused, not buildable here or wrong.
        reason: the reason, where it does not work.
        layers: such as "2 × 4 heads".
        compared: whether its attention was held against ``output_attentions``.
        left_out: tests that the default audit left out.
    """

    name: str
    result: str
    reason: str = ""
    layers: str = ""
    compared: str = ""
    left_out: tuple[str, ...] = ()


class CheckFailedError(AssertionError):
    """A number that is not what it should be."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Words w5 to w59 between a begin and an end."""
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
    """Builds a tiny model of a class, and puts it through everything."""
    with _quiet():
        try:
            model = tiny_model(class_name, model_type)
        except ImportError as error:
            return Outcome(class_name, ABSENT, _needed(error))
        try:
            adapter = wrap(model)
        except AttnProbeError as error:
            return Outcome(class_name, REFUSED, _one_line(error))
        assert isinstance(adapter, TransformerAdapter)
        try:
            return _examined(class_name, model_type, model, adapter)
        except AttnProbeError as error:
            return Outcome(class_name, REFUSED, _one_line(error))


def _examined(class_name: str, model_type: str, model: PreTrainedModel, adapter: Any) -> Outcome:
    """The audit first: what it refuses need not be examined."""
    report = audit(
        model,
        _rows(model),
        ["default", Permutation(n_permutations=2)],
        tokenizer=None if _is_image(model) else tiny_tokenizer(),
        options=AuditOptions(shown_texts=2, prune=False),
        progress=False,
    )
    batch = _batch(adapter, range(len(TEXTS)))
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


def _rows(model: PreTrainedModel) -> dict[str, list[Any]]:
    if not _is_image(model):
        return {"text": TEXTS, "label": LABELS}
    return {"pixel_values": _pixels(model).tolist(), "label": LABELS}


def _is_image(model: PreTrainedModel) -> bool:
    return model.main_input_name == "pixel_values"


def _pixels(model: PreTrainedModel) -> torch.Tensor:
    size = getattr(model.config, "image_size", None) or model.config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    shape = (len(TEXTS), 3, height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _inputs(model: PreTrainedModel, rows: Any, left: bool) -> dict[str, torch.Tensor]:
    if _is_image(model):
        return {"pixel_values": _pixels(model)[list(rows)].to(model.dtype)}
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = "left" if left else "right"
    encoded = tokenizer(
        [TEXTS[row] for row in rows],
        padding=True,
        return_special_tokens_mask=True,
        return_tensors="pt",
    )
    return dict(encoded)


def _batch(adapter: Any, rows: Any) -> Batch:
    inputs = _inputs(adapter.model, rows, adapter.pads_left)
    return adapter.prepare(inputs, tuple(rows))


@torch.no_grad()
def _check_probabilities(model: PreTrainedModel, observation: Observation) -> None:
    """The probabilities are those of a plain call of the model."""
    known = inspect.signature(model.forward).parameters
    inputs = _inputs(model, range(len(TEXTS)), observation.model.pads_left)
    result = model(**{name: value for name, value in inputs.items() if name in known})
    expected = result.logits.softmax(-1).to(observation.probs.dtype)
    _close("probabilities", observation.probs, expected)


@torch.no_grad()
def _check_edits(adapter: Any, observation: Observation) -> None:
    """The identity edit, an edit that arrives, and replays as whole passes."""
    generator = torch.Generator().manual_seed(0)
    for layer, attention in enumerate(observation.attention):
        name = adapter.layer_names[layer]
        same = adapter.replay(observation, {layer: attention[None]})[0]
        _close(f"the identity edit of {name}", same, observation.probs)
        visible = adapter.get_visible_keys(observation, layer)
        edits = [put_weight_on_least_attended(attention, visible)]
        drawn = torch.rand(attention.shape, generator=generator, dtype=attention.dtype)
        drawn = drawn.masked_fill(~visible[:, None], 0)
        edits.append(drawn / drawn.sum(-1, keepdim=True).clamp_min(1e-9))
        replayed = adapter.replay(observation, {layer: torch.stack(edits)})
        if not (replayed - observation.probs).abs().max() > 1e-9:
            raise CheckFailedError(f"edits of {name} do not arrive")
        for edit, found in zip(edits, replayed, strict=True):
            expected = _rerun(adapter, observation, layer, edit)
            _close(f"a replay of {name}", found, expected)


def _rerun(adapter: Any, observation: Observation, layer: int, edit: torch.Tensor) -> torch.Tensor:
    """The whole model with one edit, nothing resumed."""

    def edited(n: int, weights: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return edit.reshape(weights.shape) if n == layer else weights

    return adapter.compute_logits(observation.batch.inputs, edited).softmax(-1)


def _check_probes(adapter: Any, observation: Observation) -> None:
    """Importances are numbers, and leave-one-out is the shorter text."""
    _finite("gradient × input", observation.compute_gradient_importance())
    if _is_image(adapter.model):
        return
    _finite("leave-one-out", observation.compute_leave_one_out_importance())
    inputs = _inputs(adapter.model, [0], adapter.pads_left)
    kept = torch.arange(inputs["input_ids"].shape[1]) != 3
    shorter = {name: value[:, kept] for name, value in inputs.items()}
    expected = adapter.observe(adapter.prepare(shorter, (0,))).probs[0]
    alone = adapter.observe(_batch(adapter, [0]))
    _close("leave-one-out", adapter.compute_leave_one_out(alone)[0, 3], expected)


def _check_padding(adapter: Any, together: Observation) -> None:
    """Padding is seen by nobody, and changes nothing."""
    for row in range(len(TEXTS)):
        alone = adapter.observe(_batch(adapter, [row]))
        _close("a text without padding", alone.probs[0], together.probs[row])
        real = together.batch.mask[row]
        for a, b in zip(together.attention, alone.attention, strict=True):
            _close("attention without padding", a[row][:, real][:, :, real], b[0])


@torch.no_grad()
def _check_attention(class_name: str, model_type: str) -> str:
    """What is captured is what the eager model itself gives out, where it does."""
    try:
        model = tiny_model(class_name, model_type, attn_implementation="eager")
        adapter = wrap(model)
    except (ValueError, TypeError):
        return "no eager model"
    batch = _batch(adapter, range(len(TEXTS)))
    known = inspect.signature(model.forward).parameters
    inputs = {k: v for k, v in batch.inputs.items() if k in known}
    result = model(**inputs, output_attentions=True)
    given = _given(result)
    found = adapter.observe(batch).attention
    if not given:
        return "not given out"
    if [a.shape for a in given] != [a.shape for a in found]:
        return "given out in another form"
    mask = batch.mask
    has_sink = any(name.endswith("sinks") for name, _ in model.named_parameters())
    are_scores = any(float(a.max()) > 1 + TOLERANCE for a in given)  # SqueezeBERT's
    for expected, captured in zip(given, found, strict=True):
        if are_scores:
            expected = expected.softmax(-1)
        rows = mask[:, None, :, None] if captured.shape[2] == mask.shape[1] else 1
        if has_sink:  # what is given out is without the sink, and sums to less than 1
            expected = expected / expected.sum(-1, keepdim=True)
        _close("attention", captured * rows, expected.to(captured.dtype) * rows)
    if are_scores:
        return "equal to the softmax of what is given out"
    return "equal, beside the sink" if has_sink else "equal"


def _given(result: Any) -> list[torch.Tensor]:
    """All attention that a model returns, in the order of its calls."""
    if result.get("encoder_attentions") is not None:
        pairs = zip(
            result.get("decoder_attentions") or (),
            result.get("cross_attentions") or (),
            strict=True,
        )
        all_of = [*result["encoder_attentions"], *(a for pair in pairs for a in pair)]
    else:
        all_of = list(result.get("attentions") or ())
    return [a for a in all_of if isinstance(a, torch.Tensor)]


def _close(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    error = float((found - expected).abs().max())
    if not error <= TOLERANCE:
        raise CheckFailedError(f"{what}: off by {error:.1e}")


def _finite(what: str, values: torch.Tensor) -> None:
    if not values.isfinite().all():
        raise CheckFailedError(f"{what}: not finite")


def _one_line(error: AttnProbeError) -> str:
    if "\n" in str(error):
        raise CheckFailedError(f"an error of several lines: {error}") from error
    # How much differs from processor to processor; that it does is the reason.
    return re.sub(r" by \d\.\de-\d\d ", " ", str(error))


def _needed(error: ImportError) -> str:
    """The library that is missing."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    transformers.logging.set_verbosity(before)
