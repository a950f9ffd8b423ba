"""The layout of a Transformer: its stacks, attention modules, inputs and read-out."""

import copy
import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig, PreTrainedModel

from hf_attnprobe.adapters.transformer.attention_hooks import find_attention_modules, hook_attention
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    find_attention_blocks,
    get_first_tensor,
    hook_modules,
    record_outputs,
    replace_first_tensor,
)
from hf_attnprobe.adapters.transformer.task_heads import TaskHead
from hf_attnprobe.core.errors import AttnProbeError


READOUTS = ("first", "last", "mean")
READOUT_BY_POOLING = {"mean": "mean", "cls": "first"}
"""The read-outs that ModernBERT's ``classifier_pooling`` names."""

LAST_POSITION_MODEL_TYPES = {"xlnet"}
"""Model types that classify at the last position: their texts are padded on the left."""

CROSS_ATTENTION_NAMES = (
    "encoder_attn",
    "encdecattention",
    "crossattention",
    "cross_attn",
)


class Layer(NamedTuple):
    """One attention layer, numbered in the order of calls.

    Attributes:
        module: qualified name.
        kind: "encoder", "decoder" or "cross"; "layer" in a model with only one stack.
        n_heads: number of heads.
        n_blocks_before: how many block calls are over when it runs, which a resumed pass can
            leave out.
    """

    module: str
    kind: str
    n_heads: int
    n_blocks_before: int


def classify_layer(module: str, is_encoder_decoder: bool) -> str:
    """Kind of a layer, from its qualified name: layer, encoder, decoder or cross."""
    if not is_encoder_decoder:
        return "layer"
    parts = module.lower().split(".")
    if not set(parts).isdisjoint(CROSS_ATTENTION_NAMES):
        return "cross"
    return "decoder" if "decoder" in parts else "encoder"


def name_layers(layers: list[Layer]) -> list[str]:
    """ "layer.3", or "encoder.0", "decoder.0", "cross.0" if there are two stacks.

    Numbers count within the kind.
    """
    kinds = [layer.kind for layer in layers]
    return [f"{kind}.{kinds[:n].count(kind)}" for n, kind in enumerate(kinds)]


def choose_readout(config: PreTrainedConfig, readout: str | None) -> str | None:
    """The read-out asked for, or the one in the configuration.

    None leaves it to the attention, see :func:`compute_row_weights`.

    Raises:
        AttnProbeError: an unknown read-out.
    """
    if readout not in (None, *READOUTS):
        raise AttnProbeError(
            f"expected readout to be one of {', '.join(READOUTS)}, got {readout!r}"
        )
    pooling = READOUT_BY_POOLING.get(getattr(config, "classifier_pooling", ""))
    last = "last" if needs_left_padding(config) else None
    return readout or pooling or last


def needs_left_padding(config: PreTrainedConfig) -> bool:
    """Whether texts must be padded on the left."""
    return config.model_type in LAST_POSITION_MODEL_TYPES


def compute_row_weights(readout: str | None, kind: str, visible: Tensor, mask: Tensor) -> Tensor:
    """Weight of each query row in the read-out of a layer; weights sum to 1.

    Without an asked read-out: the last real token where no query sees a later key (GPT-2,
    Llama) and in decoders, whose classifiers take the last token; the mean over all real
    tokens in the encoder under a decoder; else the first, [CLS].

    Args:
        readout: "first", "last", "mean" or None.
        kind: of the layer, see :class:`Layer`.
        visible: bool [batch, queries, keys].
        mask: bool [batch, keys], real tokens.

    Returns:
        [batch, queries].
    """
    if readout is None:
        is_causal = kind == "layer" and not visible.triu(diagonal=1).any()
        default = {"encoder": "mean", "layer": "last" if is_causal else "first"}
        readout = default.get(kind, "last")
    if readout == "mean":
        return mask / mask.sum(1, keepdim=True).clamp_min(1)
    n_keys = mask.shape[1]
    positions = torch.arange(n_keys, device=mask.device) * mask
    chosen = positions.argmax(1)
    if readout == "first":
        chosen = torch.zeros_like(chosen)
    return F.one_hot(chosen, n_keys)


# --- The input of a model: the images that it takes, and where it embeds what it reads -----------

DEFAULT_IMAGE_CONFIG = {"num_channels": 3, "image_size": 224, "patch_size": 16}
"""Of configurations that say nothing: of convolutions, which take any size."""


def get_image_shape(config: PreTrainedConfig) -> tuple[int, int, int]:
    """Channels, height and width."""
    channels = _of_images(config, "num_channels")
    return (channels, *get_height_and_width(_of_images(config, "image_size")))


def count_patches(config: PreTrainedConfig) -> int:
    """Number of patches of an image."""
    height, width = get_height_and_width(_of_images(config, "image_size"))
    down, right = get_height_and_width(_of_images(config, "patch_size"))
    return (height // down) * (width // right)


def get_height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of an image or patch, from a configuration with both or one number."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width


def get_embeddings_module(model: PreTrainedModel) -> nn.Module:
    """The token embeddings, or the module that makes an image's patches.

    Raises:
        AttnProbeError: it reads texts and has none.
    """
    is_image = model.main_input_name == "pixel_values"
    try:
        found = model.get_input_embeddings()
    except NotImplementedError as error:
        if is_image:
            return _patch_embeddings(model)
        raise AttnProbeError(
            "expected a model that embeds tokens by a table, "
            f"{type(model).__name__} does otherwise and cannot be audited"
        ) from error
    # what SigLIP names is the convolution, whose output is no row of patches
    return _patch_embeddings(model) if isinstance(found, nn.Conv2d) else found


def _patch_embeddings(model: PreTrainedModel) -> nn.Module:
    """The first module whose name says embeddings; else the model itself."""
    for module in model.modules():
        if type(module).__name__.endswith("Embeddings"):
            return module
    return model


def _of_images(config: PreTrainedConfig, name: str) -> Any:
    """A field of the vision part, if the configuration has parts."""
    part = getattr(config, "vision_config", config)
    value = getattr(part, name, None)
    return DEFAULT_IMAGE_CONFIG[name] if value is None else value


# --- What a Transformer looks like to the tests --------------------------------------------------
# It is found by running the model once on a few tokens, never from the model's class.

SUPPORTED_MODELS = (
    "classifiers of texts, images and tokens, extractive question answering, multiple "
    "choice, masked language models and decoders that answer from a passage"
)
EXAMPLE_LENGTH = 8  # odd windows, sinks and landmarks do not come out as 8 keys by chance


class Embeddings(NamedTuple):
    """Modules whose outputs are the token embeddings.

    Attributes:
        modules: several where encoder and decoder each look tokens up.
        sequence_first: whether they give [keys, batch, width], as XLNet's do.
    """

    modules: list[nn.Module]
    sequence_first: bool


class Layout(NamedTuple):
    """Modules of a model that the tests read and edit.

    Attributes:
        modules: attention modules by qualified name.
        blocks: see :mod:`~hf_attnprobe.adapters.transformer.recorded_blocks`.
        layers: the attention layers in the order of their calls.
        embeddings: where gradient × input is taken.
        n_keys: positions of an image, whose number is fixed; None for text.
    """

    modules: dict[str, nn.Module]
    blocks: list[nn.Module]
    layers: list[Layer]
    embeddings: Embeddings
    n_keys: int | None


def copy_with_shared_weights(model: PreTrainedModel, dtype: torch.dtype | None) -> PreTrainedModel:
    """Returns a second module tree over the same weights, in eval mode, without gradients.

    Hooks and patched methods go to the twin: the user's model keeps its mode, its hooks
    and its ``requires_grad`` whatever happens. No weight is copied unless ``dtype`` asks
    for another one.
    """
    memo: dict[int, Tensor] = {id(buffer): buffer for buffer in model.buffers()}
    for weight in model.parameters():
        memo[id(weight)] = weight
        if type(weight) is nn.Parameter:
            memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
    twin = copy.deepcopy(model, memo).eval()
    if dtype is None:
        return twin
    return twin.to(dtype=dtype)


@torch.no_grad()
def find_layout(model: PreTrainedModel, head: TaskHead) -> Layout:
    """Runs ``model`` on a short example and records every layer of softmax attention.

    Raises:
        AttnProbeError: another output than the head's, no softmax attention, or attention
            that is not over every token.
    """
    inputs = create_example_inputs(model)
    run = partial(model, **head.build_arguments(inputs))
    modules = _attention_of(model, run)
    blocks = find_attention_blocks(model, modules)
    shapes, n_skipped = [], []

    def note(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        shapes.append(weights.shape)
        n_skipped.append(len(outputs))
        return weights

    with record_outputs(blocks) as outputs, hook_attention(modules, note) as tap:
        result = run()
    if not outputs:  # SqueezeBERT calls the forward methods of its blocks, past hooks
        blocks = []
    _check_head(model, head, result)
    is_image = "pixel_values" in inputs
    n_keys = shapes[0][-1] if is_image and shapes else EXAMPLE_LENGTH
    _check_attention(model, tap.names, shapes, n_keys)
    layers = []
    for name, shape, skipped in zip(tap.names, shapes, n_skipped, strict=True):
        kind = classify_layer(name, bool(model.config.is_encoder_decoder))
        layers.append(Layer(name, kind, shape[1], skipped))
    used = {name: modules[name] for name in tap.names}
    embeddings = find_embeddings(model, blocks, run)
    return Layout(used, blocks, layers, embeddings, n_keys if is_image else None)


def _attention_of(model: PreTrainedModel, run: Callable[[], object]) -> dict[str, nn.Module]:
    """Modules with attention, if the model runs on a text alone."""
    try:
        return find_attention_modules(model, run)
    except (torch.OutOfMemoryError, AttnProbeError):
        raise
    except Exception as error:  # a model raises whatever it likes
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise AttnProbeError(
            f"expected a model that runs on a text or an image alone, "
            f"{type(model).__name__} does not: {reason}; {SUPPORTED_MODELS} can be audited"
        ) from error


def find_embeddings(
    model: PreTrainedModel,
    blocks: Sequence[nn.Module],
    run: Callable[[], object],
) -> Embeddings:
    """Finds where gradient × input is taken.

    Where nothing but a normalisation reads the embeddings (DeBERTa-v3, ModernBERT,
    Bloom), the model does not depend on their lengths, so that gradient × input is 0 by
    Euler's theorem: there the embeddings are the normalised ones.

    Args:
        model, blocks: see :mod:`~hf_attnprobe.adapters.transformer.recorded_blocks`.
        run: one forward pass of a single text.
    """
    base = get_embeddings_module(model)
    table = getattr(base, "weight", None)
    inside = {module for block in blocks for module in block.modules()}
    tables: list[nn.Module] = []
    norms = []
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.weight is table:
            tables.append(module)
        if "Norm" in type(module).__name__ and module not in inside:
            norms.append(module)
    tables = tables or [base]
    readers: list[nn.Module] = []

    def note_norm(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # "RobertaPreLayerNormModel" is named like one, and called by keywords
        if args and any(args[0] is embeddings for embeddings in looked_up):
            readers.append(module)

    with record_outputs(tables) as looked_up, hook_modules(norms, note_norm):
        run()
    tensors = [leaf for leaf in tree_leaves(looked_up[:1]) if isinstance(leaf, Tensor)]
    if len(tensors) != 1:
        raise AttnProbeError(
            f"expected embeddings that are one tensor, got {len(tensors)} from "
            f"{type(tables[0]).__name__}; such a model cannot be audited"
        )
    return Embeddings(readers or tables, sequence_first=len(tensors[0]) != 1)


def create_example_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """The smallest input that a text or image classifier runs on, a batch of one."""
    config, device = model.config, model.device
    if model.main_input_name == "pixel_values":
        shape = (1, *get_image_shape(config))
        return {"pixel_values": torch.zeros(shape, device=device, dtype=model.dtype)}
    if model.main_input_name != "input_ids":
        raise AttnProbeError(
            "expected a classifier of texts or images, got "
            f"{type(model).__name__}, whose input is {model.main_input_name}"
        )
    config = config.get_text_config()
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, list):
        end = end[0]
    special = {end}
    for name in ("pad", "bos", "unk", "decoder_start"):
        special.add(getattr(config, f"{name}_token_id", None))
    plain = min(set(range(len(special) + 1)) - special)
    # T5 and BART classify at the end token, others do not care
    has_end = end is not None and 0 <= end < config.vocab_size
    text = [plain] * (EXAMPLE_LENGTH - 1) + [end if has_end else plain]
    ids = torch.tensor([text], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _check_head(model: PreTrainedModel, head: TaskHead, result: Any) -> None:
    if not head.can_read(result):
        raise AttnProbeError(
            f"expected {head.output} from {type(model).__name__}, got "
            f"{', '.join(_shapes(result)) or 'none'}; {SUPPORTED_MODELS} can be audited"
        )


def _shapes(result: Any) -> list[str]:
    """Shapes of the tensors in a model's output, such as ``logits [1, 8, 30522]``."""
    items = result.items() if hasattr(result, "items") else ()
    tensors = [(name, value) for name, value in items if isinstance(value, Tensor)]
    return [f"{name} {list(value.shape)}" for name, value in tensors]


def _check_attention(
    model: PreTrainedModel,
    names: list[str],
    shapes: list[torch.Size],
    n_keys: int,
) -> None:
    if not names:
        raise AttnProbeError(
            f"expected softmax attention, saw none in {type(model).__name__} "
            f"(attention implementation {model.config._attn_implementation!r}); models "
            "without it cannot be audited, "
            "others can be loaded with attn_implementation='eager' or 'sdpa'"
        )
    for name, shape in zip(names, shapes, strict=True):
        if shape[0] != 1 or shape[2:] != (n_keys, n_keys):
            raise AttnProbeError(
                f"expected attention [1, heads, {n_keys}, {n_keys}] over {n_keys} "
                f"positions, got {list(shape)} in {name}; "
                "banded, pooled or approximated attention cannot be audited"
            )


# --- Stacks that are not one attention per layer: hybrids, and layers with two attentions --------

LAYER_NAME_PATTERN = re.compile(r"(.*?)\.(\d+)(?:\.|$)")
"""The list of a model's layers, and the number of one of them."""
MAX_LISTED_NUMBERS = 8  # numbers that are named


def describe_unusual_layers(model: nn.Module, layers: Sequence[Layer], names: Sequence[str]) -> list[str]:
    """Notes on layers whose numbers differ from the model's own numbering.

    Args:
        model: with the modules that ``layers`` name.
        layers: those with softmax attention, in the order of their calls.
        names: of the layers, as reports have them.

    Returns:
        A sentence where layers have no softmax attention, as in hybrids (MiniMax,
        Jamba), and one where a layer has several (DiffLlama, LiLT).
    """
    seen: dict[str, set[int]] = {}
    for layer in layers:
        found = LAYER_NAME_PATTERN.match(layer.module)
        if found is not None:
            seen.setdefault(found[1], set()).add(int(found[2]))
    notes = _doubled(layers, names)
    for prefix, numbers in seen.items():
        n_layers = len(list(model.get_submodule(prefix).children()))
        notes += _unseen(prefix, n_layers, numbers)
    return notes


def _unseen(prefix: str, n_layers: int, seen: set[int]) -> list[str]:
    unseen = sorted(set(range(n_layers)) - seen)
    if not unseen:
        return []
    return [
        f"Layers: {len(unseen)} of {n_layers} in {prefix} have no softmax attention "
        f"({_some(unseen)}) and are not tested; of them nothing is said here."
    ]


def _doubled(layers: Sequence[Layer], names: Sequence[str]) -> list[str]:
    """Attention modules called more than once: ALBERT's layers are calls of one module."""
    calls: dict[tuple[str, int], list[str]] = {}
    for layer, name in zip(layers, names, strict=True):
        calls.setdefault((layer.module, layer.n_blocks_before), []).append(name)
    several = [(module, named) for (module, _), named in calls.items() if named[1:]]
    return [
        f"Layers: {module} has {len(named)} attentions, counted as layers of their own: "
        f"{', '.join(named)}, in the order of their calls; so do all layers like it."
        for module, named in several[:1]
    ]


def _some(numbers: Sequence[int]) -> str:
    more = ", …" if len(numbers) > MAX_LISTED_NUMBERS else ""
    return ", ".join(map(str, numbers[:MAX_LISTED_NUMBERS])) + more


# --- Gradient × input at the token embeddings of any model -------------------
# It does without ``inputs_embeds``, which T5 and BART refuse.


def compute_gradient_times_input(
    embeddings: Embeddings,
    explained: Callable[[], Tensor],
    n_keys: int,
    *,
    scale: float = 1.0,
) -> Tensor:
    """Gradient × input of ``explained()``, summed over embedding dimensions.

    A decoder's copy of a token, one position further on behind the start token, counts
    with the token.

    Args:
        embeddings: the modules that give the embeddings.
        explained: runs the model and returns a scalar.
        n_keys: number of positions; patches of an image stand at the end.
        scale: what the embeddings are multiplied by where the gradient is taken; the
            input is as it is.

    Returns:
        [batch, keys], signed.
    """
    inputs: list[Tensor] = []
    leaves: list[Tensor] = []

    def cut(given: Tensor, scaled: Tensor) -> Tensor:
        """The model goes on with a leaf of the graph."""
        inputs.append(given.detach())
        leaves.append(scaled.detach().requires_grad_())
        return leaves[-1].clone()  # a model may go on in place

    with torch.enable_grad(), _scaled(embeddings, scale, cut):
        slopes = torch.autograd.grad(explained(), leaves, materialize_grads=True)
    products = []
    for given, slope in zip(inputs, slopes, strict=True):
        product = (slope * given).sum(-1)
        products.append(product.t() if embeddings.sequence_first else product)
    encoder, *decoder = products
    total = F.pad(encoder, (n_keys - encoder.shape[1], 0))
    for product in decoder:
        total = total + F.pad(product[:, 1:], (0, 1))
    return total


def _scaled(
    embeddings: Embeddings,
    scale: float,
    change: Callable[[Tensor, Tensor], Tensor],
) -> AbstractContextManager[None]:
    """Replaces embeddings by ``change(embeddings, scaled embeddings)`` while the model runs.

    A decoder's start token is not scaled: it is none of the text.
    """
    n_calls = itertools.count()

    def replace(module: nn.Module, args: Any, output: Any) -> Any:
        given = get_first_tensor(output)  # what makes patches may also return their number
        scaled = given * scale
        if next(n_calls):  # of a decoder
            scaled[:, 0] = given[:, 0]
        return replace_first_tensor(output, change(given, scaled))

    return hook_modules(embeddings.modules, replace)


def run_with_zero_embeddings(embeddings: Embeddings, run: Callable[[], Tensor]) -> Tensor:
    """Calls ``run()`` with all embeddings 0, the baseline of the integral."""
    with _scaled(embeddings, 0.0, lambda given, scaled: scaled):
        return run()
