"""Find a Transformer's attention modules, blocks, embeddings and read-out.

The main function is `find_layout`. It runs the model once on a short example text, so it does not
need to know the model's class.
"""

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
from hf_attnprobe.adapters.wrappers import copy_inference_tensor
from hf_attnprobe.core.errors import AttnProbeError


READOUTS = ("first", "last", "mean")
"""Possible read-outs of a model. The read-out tokens determine the prediction.

- "first": the first token, such as [CLS].
- "last": the last token.
- "mean": all tokens, whose states are averaged.
"""
READOUT_BY_CLASSIFIER_POOLING = {"mean": "mean", "cls": "first"}
"""Maps the setting `classifier_pooling` of a ModernBERT configuration to one of `READOUTS`."""

LAST_POSITION_MODEL_TYPES = {"xlnet"}
"""Model types that classify a text at its last position, even if this position is padding.

Texts for these models must be padded on the left.
"""

CROSS_ATTENTION_NAMES = (
    "encoder_attn",
    "encdecattention",
    "crossattention",
    "cross_attn",
)
"""Lower-case names of modules in which a decoder attends to an encoder (cross-attention).

A module is cross-attention if such a name is a part of its path, as in
`decoder.layers.0.encoder_attn`.
"""


class Layer(NamedTuple):
    """An attention layer; layers are numbered in call order.

    Attributes:
        module: Qualified name of the attention module.
        kind: "encoder", "decoder" or "cross"; "layer" in a model with only one stack.
        n_heads: Number of heads.
        n_blocks_before: Number of block calls that finish before the layer runs. A replay that
            edits this layer can skip them.
    """

    module: str
    kind: str
    n_heads: int
    n_blocks_before: int


def classify_layer(module: str, is_encoder_decoder: bool) -> str:
    """Determine from a module's name whether it is encoder, decoder or cross-attention.

    Args:
        module: Qualified name of the attention module.
        is_encoder_decoder: Whether the model has an encoder and a decoder.

    Returns:
        "layer", "encoder", "decoder" or "cross".
    """
    if not is_encoder_decoder:
        return "layer"
    parts = module.lower().split(".")
    if not set(parts).isdisjoint(CROSS_ATTENTION_NAMES):
        return "cross"
    return "decoder" if "decoder" in parts else "encoder"


def name_layers(layers: list[Layer]) -> list[str]:
    """Return a name for each attention layer, such as "encoder.0".

    A name consists of the kind of the layer and its number among the layers of this kind.

    Args:
        layers: All layers of a model.

    Returns:
        Names such as "layer.3", or "encoder.0", "decoder.0" and "cross.0".
    """
    kinds = [layer.kind for layer in layers]
    names = []
    for position, kind in enumerate(kinds):
        index = kinds[:position].count(kind)
        names.append(f"{kind}.{index}")
    return names


def choose_readout(config: PreTrainedConfig, readout: str | None) -> str | None:
    """Choose the token whose last hidden state a model uses for its prediction (read-out).

    Args:
        config: Model configuration.
        readout: The option `readout`, one of `READOUTS`, or None if it is not set.

    Returns:
        The option, or else the read-out that the configuration implies. None means that it depends
        on the attention; see `compute_row_weights`.

    Raises:
        AttnProbeError: If the option has an unknown value.
    """
    if readout not in (None, *READOUTS):
        raise AttnProbeError(
            f"expected readout to be one of {', '.join(READOUTS)}, got {readout!r}"
        )
    configured = READOUT_BY_CLASSIFIER_POOLING.get(getattr(config, "classifier_pooling", ""))
    default = "last" if needs_left_padding(config) else None
    return readout or configured or default


def needs_left_padding(config: PreTrainedConfig) -> bool:
    """Check whether texts for a model must be padded on the left.

    Args:
        config: Model configuration.
    """
    return config.model_type in LAST_POSITION_MODEL_TYPES


def compute_row_weights(readout: str | None, kind: str, visible: Tensor, mask: Tensor) -> Tensor:
    """Compute how much each token's last hidden state contributes to the prediction.

    The weights of a text sum to 1. If the read-out is None, they depend on the architecture:

    - decoders and causal models (GPT-2, Llama): the last real token, because their classifiers use
      it;
    - an encoder below a decoder: all real tokens, with equal weights;
    - other models: the first token, [CLS].

    Args:
        readout: One of `READOUTS`, or None for the default.
        kind: Layer kind, see `Layer`.
        visible: Visible keys, bool `[batch, queries, keys]`.
        mask: Real tokens, bool `[batch, keys]`.

    Returns:
        Weights `[batch, queries]`.
    """
    if readout is None:
        # In a causal model, no query sees a later key.
        is_causal = kind == "layer" and not visible.triu(diagonal=1).any()
        default = {"encoder": "mean", "layer": "last" if is_causal else "first"}
        readout = default.get(kind, "last")
    if readout == "mean":
        return mask / mask.sum(1, keepdim=True).clamp_min(1)
    n_keys = mask.shape[1]
    # Padding gets the position 0, so the largest position is the last real token.
    positions = torch.arange(n_keys, device=mask.device) * mask
    row = positions.argmax(1)
    if readout == "first":
        row = torch.zeros_like(row)
    return F.one_hot(row, n_keys)


# --- Model inputs: image sizes and embeddings ----------------------------------------------------

DEFAULT_IMAGE_CONFIG = {"num_channels": 3, "image_size": 224, "patch_size": 16}
"""Number of channels, and image and patch size in pixels, if the model configuration lacks them.

Configurations of convolutional networks lack them, because these networks accept any image size.
"""


def get_image_shape(config: PreTrainedConfig) -> tuple[int, int, int]:
    """Return the channel count, height and width of the images that a model expects.

    Args:
        config: Model configuration.
    """
    n_channels = get_image_setting(config, "num_channels")
    return (n_channels, *get_height_and_width(get_image_setting(config, "image_size")))


def set_image_size(config: PreTrainedConfig, height: int, width: int) -> None:
    """Store the height and width of the images that a model will read in its configuration.

    Args:
        config: Model configuration, which is changed.
        height: Height in pixels.
        width: Width in pixels.
    """
    vision_config = getattr(config, "vision_config", config)
    vision_config.image_size = [height, width]


def get_height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Convert a configured image or patch size to height and width.

    Args:
        size: Both numbers, or one number for a square.
    """
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width


def get_image_setting(config: PreTrainedConfig, name: str) -> Any:
    """Return a setting for images from a model configuration, or its default value.

    Args:
        config: Model configuration.
        name: Name of the setting, a key in `DEFAULT_IMAGE_CONFIG`.
    """
    vision_config = getattr(config, "vision_config", config)
    value = getattr(vision_config, name, None)
    return DEFAULT_IMAGE_CONFIG[name] if value is None else value


def get_embeddings_module(model: PreTrainedModel) -> nn.Module:
    """Return a model's token embeddings, or the module that embeds image patches.

    Args:
        model: The model.

    Raises:
        AttnProbeError: If a text model has no embedding table.
    """
    is_image = model.main_input_name == "pixel_values"
    try:
        embeddings = model.get_input_embeddings()
    except NotImplementedError as error:
        if is_image:
            return _find_patch_embeddings(model)
        # A user's own class often does not set `base_model_prefix`.
        inner_models = [*find_inner_models(model).values()]
        if len(inner_models) == 1:
            return get_embeddings_module(inner_models[0])
        raise AttnProbeError(
            f"cannot find the token embeddings of {type(model).__name__}. Add a method to this class: "
            "`def get_input_embeddings(self): return self.…`. A model without a token embedding "
            "table cannot be audited."
        ) from error
    # SigLIP returns a convolution, whose output is not a row of patches.
    return _find_patch_embeddings(model) if isinstance(embeddings, nn.Conv2d) else embeddings


def find_inner_models(module: nn.Module) -> dict[str, PreTrainedModel]:
    """Find the Transformers models inside a module, but not the models inside these.

    Args:
        module: Any module, which does not count itself.

    Returns:
        Models by qualified name. A model that is used several times is listed once.
    """
    inner_models: dict[str, PreTrainedModel] = {}
    for name, inner_module in module.named_modules():
        is_nested = any(name.startswith(f"{outer_name}.") for outer_name in inner_models)
        if name and isinstance(inner_module, PreTrainedModel) and not is_nested:
            inner_models[name] = inner_module
    return inner_models


def _find_patch_embeddings(model: PreTrainedModel) -> nn.Module:
    """Find the first module whose class name ends in "Embeddings", or return the model itself."""
    for module in model.modules():
        if type(module).__name__.endswith("Embeddings"):
            return module
    return model


# --- Finding the layout by running an example ----------------------------------------------------

SUPPORTED_MODELS = (
    "classifiers of texts, images and tokens, extractive question answering, multiple "
    "choice, masked language models and decoders that answer from a passage"
)
"""Description of all supported models for error messages."""
EXAMPLE_TEXT_LENGTH = 8
"""Number of tokens in the example text with which a model's attention modules are found.

Only attention matrices with 8 columns are attention over the text's tokens. Attention over windows,
landmarks or additional tokens has a different number of columns.
"""


class Embeddings(NamedTuple):
    """Modules whose outputs are the token embeddings.

    Attributes:
        modules: The modules; several if encoder and decoder embed tokens separately.
        sequence_first: Whether their outputs have the shape `[keys, batch, width]`, as in XLNet.
    """

    modules: list[nn.Module]
    sequence_first: bool


class Layout(NamedTuple):
    """Modules of a model that tests read and edit.

    Attributes:
        modules: Attention modules by qualified name.
        blocks: Blocks that contain them, see `recorded_blocks`.
        layers: Attention layers in call order.
        embeddings: Modules at whose outputs gradient × input is computed.
        n_keys: Fixed number of positions per image; None for text models.
    """

    modules: dict[str, nn.Module]
    blocks: list[nn.Module]
    layers: list[Layer]
    embeddings: Embeddings
    n_keys: int | None


def copy_with_shared_weights(model: PreTrainedModel, dtype: torch.dtype | None) -> PreTrainedModel:
    """Copy the modules of a model, but not its weights, which both models share.

    Hooks are only added to the copy, so the original model is not changed. The copy is in eval mode
    and without gradients.

    Args:
        model: The original model.
        dtype: Data type of the copy, or None for the model's own type. If the types differ, the
            weights are copied as well.

    Returns:
        The copy.
    """
    # `deepcopy` does not copy the tensors in this dictionary, but uses the values in it.
    memo: dict[int, Tensor] = {
        id(buffer): copy_inference_tensor(buffer) for buffer in model.buffers()
    }
    for weight in model.parameters():
        memo[id(weight)] = weight
        if type(weight) is nn.Parameter:
            values = copy_inference_tensor(weight.detach())
            memo[id(weight)] = nn.Parameter(values, requires_grad=False)
    model_copy = copy.deepcopy(model, memo).eval()
    if dtype is None:
        return model_copy
    return model_copy.to(dtype=dtype)


@torch.no_grad()
def find_layout(model: PreTrainedModel, head: TaskHead) -> Layout:
    """Find a model's attention modules, blocks and embeddings by running a short example.

    Args:
        model: The model.
        head: Its task head.

    Returns:
        The layout, with all softmax attention layers.

    Raises:
        AttnProbeError: If the task head cannot read the model's output, or if the model has no
            softmax attention over all tokens.
    """
    inputs = create_example_inputs(model)
    run = partial(model, **head.build_arguments(inputs))
    modules = _find_attention_modules(model, run)
    blocks = find_attention_blocks(model, modules)
    shapes, n_blocks_before = [], []

    def record_layer(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        shapes.append(weights.shape)
        n_blocks_before.append(len(outputs))
        return weights

    with record_outputs(blocks) as outputs, hook_attention(modules, record_layer) as hook:
        result = run()
    if not outputs:
        # SqueezeBERT calls the forward methods of its blocks directly, which bypasses hooks.
        blocks = []
    _check_output(model, head, result)
    is_image = "pixel_values" in inputs
    n_keys = shapes[0][-1] if is_image and shapes else EXAMPLE_TEXT_LENGTH
    _check_attention_shapes(model, hook.names, shapes, n_keys)
    layers = []
    for name, shape, n_before in zip(hook.names, shapes, n_blocks_before, strict=True):
        kind = classify_layer(name, bool(model.config.is_encoder_decoder))
        layers.append(Layer(name, kind, shape[1], n_before))
    called_modules = {name: modules[name] for name in hook.names}
    embeddings = find_embeddings(model, blocks, run)
    return Layout(called_modules, blocks, layers, embeddings, n_keys if is_image else None)


def _find_attention_modules(
    model: PreTrainedModel, run: Callable[[], object]
) -> dict[str, nn.Module]:
    """Find the attention modules by running the model on an example.

    Raises:
        AttnProbeError: If the model fails on the example.
    """
    try:
        return find_attention_modules(model, run)
    except (torch.OutOfMemoryError, AttnProbeError):
        raise
    except Exception as error:
        # A model may raise arbitrary exceptions.
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise AttnProbeError(
            f"{type(model).__name__} failed on an example text or image with the error: {reason}. "
            f"Supported models: {SUPPORTED_MODELS}."
        ) from error


def find_embeddings(
    model: PreTrainedModel,
    blocks: Sequence[nn.Module],
    run: Callable[[], object],
) -> Embeddings:
    """Find the modules at whose outputs gradient × input is computed.

    In some models (DeBERTa-v3, ModernBERT, Bloom), only a normalisation layer reads the embeddings.
    The output then does not depend on their length, and gradient × input is 0 by Euler's theorem.
    For these models, the normalised embeddings are used.

    Args:
        model: The model.
        blocks: Transformer blocks of the model, see `recorded_blocks`.
        run: Function that runs one forward pass with a single text.

    Returns:
        The embedding modules.

    Raises:
        AttnProbeError: If the embeddings are not one tensor.
    """
    base = get_embeddings_module(model)
    table = getattr(base, "weight", None)
    block_modules = {module for block in blocks for module in block.modules()}
    table_modules: list[nn.Module] = []
    norms = []
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.weight is table:
            table_modules.append(module)
        if "Norm" in type(module).__name__ and module not in block_modules:
            norms.append(module)
    table_modules = table_modules or [base]
    reading_norms: list[nn.Module] = []

    def record_norm(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        # The class RobertaPreLayerNormModel also has "Norm" in its name, but is called with
        # keyword arguments only.
        if args and any(args[0] is embeddings for embeddings in recorded_embeddings):
            reading_norms.append(module)

    with record_outputs(table_modules) as recorded_embeddings, hook_modules(norms, record_norm):
        run()
    first_output = tree_leaves(recorded_embeddings[:1])
    tensors = [leaf for leaf in first_output if isinstance(leaf, Tensor)]
    if len(tensors) != 1:
        raise AttnProbeError(
            f"expected a single tensor of embeddings from {type(table_modules[0]).__name__}, got "
            f"{len(tensors)} tensors; this model cannot be audited"
        )
    return Embeddings(reading_norms or table_modules, sequence_first=len(tensors[0]) != 1)


def create_example_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Create a short example text, or an empty image, that a model can run on.

    Args:
        model: The model.

    Returns:
        Model inputs by name, as a batch of one.

    Raises:
        AttnProbeError: If the model reads neither texts nor images.
    """
    config, device = model.config, model.device
    if model.main_input_name == "pixel_values":
        shape = (1, *get_image_shape(config))
        return {"pixel_values": torch.zeros(shape, device=device, dtype=model.dtype)}
    if model.main_input_name != "input_ids":
        raise AttnProbeError(
            "expected a model for texts or images (input_ids or pixel_values), but the input of "
            f"{type(model).__name__} is {model.main_input_name}"
        )
    config = config.get_text_config()
    end_id = getattr(config, "eos_token_id", None)
    if isinstance(end_id, list):
        end_id = end_id[0]
    special_ids = {end_id}
    for name in ("pad", "bos", "unk", "decoder_start"):
        special_ids.add(getattr(config, f"{name}_token_id", None))
    # The example repeats the smallest token id that is not a special token.
    plain_id = min(set(range(len(special_ids) + 1)) - special_ids)
    # T5 and BART classify at the end token; other models accept it as well.
    has_end = end_id is not None and 0 <= end_id < config.vocab_size
    text = [plain_id] * (EXAMPLE_TEXT_LENGTH - 1) + [end_id if has_end else plain_id]
    ids = torch.tensor([text], device=device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # Only a user's own class has this attribute.
    if "token_type_ids" in getattr(model, "required_inputs", ()):
        inputs["token_type_ids"] = torch.zeros_like(ids)
    return inputs


def _check_output(model: PreTrainedModel, head: TaskHead, result: Any) -> None:
    """Check that the model's output contains the tensors that the task head needs."""
    if not head.can_read(result):
        raise AttnProbeError(
            f"expected {head.output} from {type(model).__name__}, got "
            f"{', '.join(_describe_shapes(result)) or 'none'}. Supported models: {SUPPORTED_MODELS}."
        )


def _describe_shapes(result: Any) -> list[str]:
    """Describe the tensors in a model's output, for example "logits [1, 8, 30522]"."""
    items = result.items() if hasattr(result, "items") else ()
    tensors = [(name, value) for name, value in items if isinstance(value, Tensor)]
    return [f"{name} {list(value.shape)}" for name, value in tensors]


def _check_attention_shapes(
    model: PreTrainedModel,
    names: list[str],
    shapes: list[torch.Size],
    n_keys: int,
) -> None:
    """Check that every attention layer has one weight for each pair of tokens.

    Args:
        model: The model.
        names: Attention module names, in call order.
        shapes: Attention shapes, in the same order.
        n_keys: Length of the example in tokens.
    """
    if not names:
        raise AttnProbeError(
            f"expected softmax attention, found none in {type(model).__name__} with "
            f"attn_implementation={model.config._attn_implementation!r}. Try "
            "attn_implementation='eager' or 'sdpa'. A model without softmax attention cannot be "
            "audited."
        )
    for name, shape in zip(names, shapes, strict=True):
        if shape[0] != 1 or shape[2:] != (n_keys, n_keys):
            raise AttnProbeError(
                f"expected attention of shape [1, heads, {n_keys}, {n_keys}] in {name}, got "
                f"{list(shape)}. Models with banded, pooled or approximated attention cannot be "
                "audited."
            )


# --- Models whose layers are not numbered as in their code: hybrids, layers with two attentions --

LAYER_NAME_PATTERN = re.compile(r"(.*?)\.(\d+)(?:\.|$)")
"""Regular expression that splits a module name into the name of a layer list and a layer index.

For example, it splits `encoder.layer.3.attention` into `encoder.layer` and 3.
"""
MAX_LISTED_LAYERS = 8
"""Maximum number of layers in a list of a report. An ellipsis replaces further layers."""


def describe_unusual_layers(
    model: nn.Module, layers: Sequence[Layer], names: Sequence[str]
) -> list[str]:
    """Describe attention layers that are numbered differently than in the model's own code.

    Args:
        model: The model.
        layers: The model's softmax attention layers, in call order.
        names: Layer names in reports.

    Returns:
        Sentences for a report. One sentence is about layers without softmax attention, as in
        hybrid models (MiniMax, Jamba). Another is about layers with several attention operations
        (DiffLlama, LiLT). The list is empty for most models.
    """
    attention_indices: dict[str, set[int]] = {}
    for layer in layers:
        match = LAYER_NAME_PATTERN.match(layer.module)
        if match is not None:
            attention_indices.setdefault(match[1], set()).add(int(match[2]))
    notes = _describe_repeated_attention(layers, names)
    for prefix, indices in attention_indices.items():
        n_layers = len(list(model.get_submodule(prefix).children()))
        notes += _describe_layers_without_attention(prefix, n_layers, indices)
    return notes


def _describe_layers_without_attention(
    prefix: str, n_layers: int, attention_indices: set[int]
) -> list[str]:
    """Describe the layers of a model that have no softmax attention.

    Args:
        prefix: Name of the list of layers, such as "encoder.layer".
        n_layers: Number of layers in this list.
        attention_indices: Indices of the layers with softmax attention.

    Returns:
        One sentence, or an empty list if all layers have softmax attention.
    """
    missing_indices = sorted(set(range(n_layers)) - attention_indices)
    if not missing_indices:
        return []
    return [
        f"Layers: {len(missing_indices)} of {n_layers} in {prefix} have no softmax attention "
        f"({_list_numbers(missing_indices)}). They are not tested."
    ]


def _describe_repeated_attention(layers: Sequence[Layer], names: Sequence[str]) -> list[str]:
    """Describe the first block that calls the same attention module more than once.

    In ALBERT, all layers share one module. This is not described, because each block call uses the
    module only once.

    Returns:
        One sentence, or an empty list if there is no such block.
    """
    names_by_call: dict[tuple[str, int], list[str]] = {}
    for layer, name in zip(layers, names, strict=True):
        names_by_call.setdefault((layer.module, layer.n_blocks_before), []).append(name)
    for (module, _), layer_names in names_by_call.items():
        if len(layer_names) > 1:
            return [
                f"Layers: {module} has {len(layer_names)} attentions, counted as separate layers: "
                f"{', '.join(layer_names)}, in call order."
            ]
    return []


def _list_numbers(numbers: Sequence[int]) -> str:
    """Join numbers with commas, and end a long list with an ellipsis."""
    ellipsis = ", …" if len(numbers) > MAX_LISTED_LAYERS else ""
    return ", ".join(map(str, numbers[:MAX_LISTED_LAYERS])) + ellipsis


# --- Gradient × input at the token embeddings ----------------------------------------------------
# The argument `inputs_embeds` is not used, because T5 and BART do not accept it.


def compute_gradient_times_input(
    embeddings: Embeddings,
    compute_explained: Callable[[], Tensor],
    n_keys: int,
    *,
    scale: float = 1.0,
) -> Tensor:
    """Compute gradient × input, summed over the embedding dimensions.

    In an encoder-decoder, the decoder reads each token again, one position later because of its
    start token. The values for both occurrences are added.

    Args:
        embeddings: The model's embedding modules.
        compute_explained: Function that runs the model and returns the scalar to differentiate.
        n_keys: Number of positions. In image models, the patches are the last positions.
        scale: Factor on the embeddings at which the gradient is evaluated. The gradient is then
            multiplied by the unscaled embeddings.

    Returns:
        Signed values `[batch, keys]`.
    """
    inputs: list[Tensor] = []
    leaves: list[Tensor] = []

    def start_graph(unscaled: Tensor, scaled: Tensor) -> Tensor:
        inputs.append(unscaled.detach())
        leaves.append(scaled.detach().requires_grad_())
        # A model may change its embeddings in place, which a leaf does not allow.
        return leaves[-1].clone()

    with torch.enable_grad(), _replace_embeddings(embeddings, scale, start_graph):
        gradients = torch.autograd.grad(compute_explained(), leaves, materialize_grads=True)
    products = []
    for unscaled, gradient in zip(inputs, gradients, strict=True):
        product = (gradient * unscaled).sum(-1)
        products.append(product.t() if embeddings.sequence_first else product)
    encoder_product, *decoder_products = products
    total = F.pad(encoder_product, (n_keys - encoder_product.shape[1], 0))
    for product in decoder_products:
        total = total + F.pad(product[:, 1:], (0, 1))
    return total


def _replace_embeddings(
    embeddings: Embeddings,
    scale: float,
    change: Callable[[Tensor, Tensor], Tensor],
) -> AbstractContextManager[None]:
    """Replace the embeddings of a model inside a ``with`` block.

    The embedding of a decoder's start token is not scaled, because it is not part of the text.

    Args:
        embeddings: The model's embedding modules.
        scale: Factor on the embeddings.
        change: Function that receives the original and the scaled embeddings, and returns the new
            embeddings.
    """
    call_index = itertools.count()

    def replace_output(module: nn.Module, args: Any, output: Any) -> Any:
        # A module that creates image patches may also return their number.
        unscaled = get_first_tensor(output)
        scaled = unscaled * scale
        is_decoder = next(call_index) > 0
        if is_decoder:
            scaled[:, 0] = unscaled[:, 0]
        return replace_first_tensor(output, change(unscaled, scaled))

    return hook_modules(embeddings.modules, replace_output)


def run_with_zero_embeddings(embeddings: Embeddings, run: Callable[[], Tensor]) -> Tensor:
    """Run a model with all token embeddings set to 0.

    This input is the baseline of integrated gradients.

    Args:
        embeddings: The model's embedding modules.
        run: Function that runs the model and returns the result.

    Returns:
        The result of `run`.
    """
    with _replace_embeddings(embeddings, 0.0, lambda unscaled, scaled: scaled):
        return run()
