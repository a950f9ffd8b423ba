"""What a Transformer looks like to the tests.

It is found by running the model once on a few tokens, never from the model's class.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from hf_attnprobe.adapters.transformer.attention_tap import attention_modules, tapped
from hf_attnprobe.adapters.transformer.inputs import embeddings_of, image_shape
from hf_attnprobe.adapters.transformer.readout import Layer, layer_kind
from hf_attnprobe.adapters.transformer.resume import attention_blocks, hooked, recorded
from hf_attnprobe.adapters.transformer.task_heads import TaskHead
from hf_attnprobe.errors import AttnProbeError


COVERED = (
    "classifiers of texts, images and tokens, extractive question answering, multiple "
    "choice and masked language models"
)
N_PROBED = 8  # odd windows, sinks and landmarks do not come out as 8 keys by chance


class Embeddings(NamedTuple):
    """The modules whose outputs are the token embeddings.

    Attributes:
        modules: several where encoder and decoder each look tokens up.
        sequence_first: whether they give [keys, batch, width], as XLNet's do.
    """

    modules: list[nn.Module]
    sequence_first: bool


class Layout(NamedTuple):
    """Where a model keeps what the tests read and edit.

    Attributes:
        modules: attention modules by qualified name.
        blocks: see :mod:`~hf_attnprobe.adapters.transformer.resume`.
        layers: the attention layers in the order of their calls.
        embeddings: where gradient × input is taken.
        n_keys: positions of an image, whose number is fixed; None for text.
    """

    modules: dict[str, nn.Module]
    blocks: list[nn.Module]
    layers: list[Layer]
    embeddings: Embeddings
    n_keys: int | None


def frozen_twin(model: PreTrainedModel, dtype: torch.dtype | None) -> PreTrainedModel:
    """A second module tree over the same weights, in eval mode and without gradients.

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
    return twin if dtype is None else twin.to(dtype=dtype)


@torch.no_grad()
def find_layout(model: PreTrainedModel, head: TaskHead) -> Layout:
    """Runs ``model`` on a short example and notes every layer of softmax attention.

    Raises:
        AttnProbeError: another output than the head's, no softmax attention, or attention
            that is not over every token.
    """
    inputs = example_inputs(model)
    run = partial(model, **head.arguments(inputs))
    modules = _attention_of(model, run)
    blocks = attention_blocks(model, modules)
    shapes, n_skipped = [], []

    def note(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
        shapes.append(weights.shape)
        n_skipped.append(len(outputs))
        return weights

    with recorded(blocks) as outputs, tapped(modules, note) as tap:
        result = run()
    if not outputs:  # SqueezeBERT calls the forward methods of its blocks, past hooks
        blocks = []
    _check_head(model, head, result)
    is_image = "pixel_values" in inputs
    n_keys = shapes[0][-1] if is_image and shapes else N_PROBED
    _check_attention(model, tap.names, shapes, n_keys)
    layers = []
    for name, shape, skipped in zip(tap.names, shapes, n_skipped, strict=True):
        kind = layer_kind(name, bool(model.config.is_encoder_decoder))
        layers.append(Layer(name, kind, shape[1], skipped))
    used = {name: modules[name] for name in tap.names}
    embeddings = find_embeddings(model, blocks, run)
    return Layout(used, blocks, layers, embeddings, n_keys if is_image else None)


def _attention_of(model: PreTrainedModel, run: Callable[[], object]) -> dict[str, nn.Module]:
    """The modules with attention, where the model runs on a text and nothing else."""
    try:
        return attention_modules(model, run)
    except (torch.OutOfMemoryError, AttnProbeError):
        raise
    except Exception as error:  # a model raises whatever it likes
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise AttnProbeError(
            f"expected a model that runs on a text or an image alone, "
            f"{type(model).__name__} does not: {reason}; {COVERED} can be audited"
        ) from error


def find_embeddings(
    model: PreTrainedModel, blocks: Sequence[nn.Module], run: Callable[[], object]
) -> Embeddings:
    """Where gradient × input is taken.

    Where nothing but a normalisation reads the embeddings (DeBERTa-v3, ModernBERT,
    Bloom), the model does not depend on their lengths, so that gradient × input is 0 by
    Euler's theorem: there the embeddings are the normalised ones.

    Args:
        model, blocks: see :mod:`~hf_attnprobe.adapters.transformer.resume`.
        run: one forward pass of a single text.
    """
    base = embeddings_of(model)
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

    with recorded(tables) as looked_up, hooked(norms, note_norm):
        run()
    tensors = [leaf for leaf in tree_leaves(looked_up[0]) if isinstance(leaf, Tensor)]
    if len(tensors) != 1:
        raise AttnProbeError(
            f"expected embeddings that are one tensor, got {len(tensors)} from "
            f"{type(tables[0]).__name__}; such a model cannot be audited"
        )
    return Embeddings(readers or tables, sequence_first=len(tensors[0]) != 1)


def example_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """The least that a text or image classifier runs on, a batch of one."""
    config, device = model.config, model.device
    if model.main_input_name == "pixel_values":
        shape = (1, *image_shape(config))
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
    text = [plain] * (N_PROBED - 1) + [end if has_end else plain]
    ids = torch.tensor([text], device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _check_head(model: PreTrainedModel, head: TaskHead, result: Any) -> None:
    if not head.fits(result):
        raise AttnProbeError(
            f"expected {head.output} from {type(model).__name__}, got "
            f"{', '.join(_shapes(result)) or 'none'}; {COVERED} can be audited"
        )


def _shapes(result: Any) -> list[str]:
    """The tensors of a model's output, such as ``logits [1, 8, 30522]``."""
    items = result.items() if hasattr(result, "items") else ()
    tensors = [(name, value) for name, value in items if isinstance(value, Tensor)]
    return [f"{name} {list(value.shape)}" for name, value in tensors]


def _check_attention(
    model: PreTrainedModel, names: list[str], shapes: list[torch.Size], n_keys: int
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
