"""What a Transformer looks like to the tests: found by running it once on a few tokens, never from its class."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hf_attnprobe.adapters.transformer.attention_tap import attention_modules, tapped
from hf_attnprobe.adapters.transformer.embedding_gradient import (
    Embeddings,
    find_embeddings,
)
from hf_attnprobe.adapters.transformer.readout import Layer, layer_kind
from hf_attnprobe.adapters.transformer.resume import attention_blocks, recorded
from hf_attnprobe.errors import AttnProbeError


N_PROBED = 8  # odd windows, sinks and landmarks do not come out as 8 keys by chance


class Layout(NamedTuple):
    """modules: attention modules by qualified name. blocks: see `resume`. layers: in the order of calls.

    embeddings: see `embedding_gradient`. n_keys: positions of an image, whose number is fixed; None for text.
    """

    modules: dict[str, nn.Module]
    blocks: list[nn.Module]
    layers: list[Layer]
    embeddings: Embeddings
    n_keys: int | None


def frozen_twin(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """A second module tree over the same weights, in eval mode and without gradients of its own.

    Hooks and patched methods go to the twin: the user's model keeps its mode, its hooks and its ``requires_grad``
    whatever happens, and no weight is copied unless ``dtype`` asks for another one.
    """
    weights = list(model.parameters())
    memo = {
        id(w): nn.Parameter(w.detach(), requires_grad=False)
        if type(w) is nn.Parameter
        else w
        for w in weights
    }
    memo |= {id(buffer): buffer for buffer in model.buffers()}
    twin = copy.deepcopy(model, memo).eval()
    return twin if dtype is None else twin.to(dtype)


@torch.no_grad()
def find_layout(model: nn.Module) -> Layout:
    """Runs ``model`` on a short example and notes every layer of softmax attention.

    Raises:
        AttnProbeError: no classification head, no softmax attention, or attention that is not over every token.
    """
    inputs = example_inputs(model)
    modules = attention_modules(model, lambda: model(**inputs))
    blocks = attention_blocks(model, modules)
    shapes, n_skipped = [], []
    with recorded(blocks) as outputs:

        def note(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            shapes.append(weights.shape)
            n_skipped.append(len(outputs))
            return weights

        with tapped(modules, note) as tap:
            result = model(**inputs)
    _check_head(model, result)
    is_image = "pixel_values" in inputs
    _check_attention(
        model, tap.names, shapes, shapes[0][-1] if is_image and shapes else N_PROBED
    )
    kinds = [
        layer_kind(name, bool(model.config.is_encoder_decoder)) for name in tap.names
    ]
    layers = [
        Layer(*row)
        for row in zip(
            tap.names, kinds, [shape[1] for shape in shapes], n_skipped, strict=True
        )
    ]
    embeddings = find_embeddings(model, blocks, lambda: model(**inputs))
    used = {layer.module: modules[layer.module] for layer in layers}
    return Layout(used, blocks, layers, embeddings, shapes[0][-1] if is_image else None)


def example_inputs(model: nn.Module) -> dict[str, Tensor]:
    """The least that a text or image classifier runs on, a batch of one."""
    config = model.config
    if model.main_input_name == "pixel_values":
        size = (
            config.image_size
            if isinstance(config.image_size, list | tuple)
            else [config.image_size] * 2
        )
        return {
            "pixel_values": torch.zeros(
                1, config.num_channels, *size, device=model.device, dtype=model.dtype
            )
        }
    if model.main_input_name != "input_ids":
        raise AttnProbeError(
            f"expected a classifier of texts or images, got {type(model).__name__}, whose input is {model.main_input_name}"
        )
    config = config.get_text_config()
    special = {
        getattr(config, f"{name}_token_id", None)
        for name in ("pad", "bos", "unk", "decoder_start")
    }
    eos = getattr(config, "eos_token_id", None)
    eos = eos[0] if isinstance(eos, list) else eos
    if (
        eos is None or eos >= config.vocab_size
    ):  # T5 and BART classify at that token, others do not care
        eos = -1
    plain = next(
        token for token in range(len(special) + 2) if token not in special | {eos}
    )
    ids = torch.tensor(
        [[plain] * (N_PROBED - 1) + [plain if eos < 0 else eos]], device=model.device
    )
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _check_head(model: nn.Module, result) -> None:
    logits = getattr(result, "logits", None)
    if logits is None or logits.dim() != 2:
        raise AttnProbeError(
            f"expected a model with a classification head, got {type(model).__name__}; "
            "load it with AutoModelForSequenceClassification or AutoModelForImageClassification"
        )
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        raise AttnProbeError(
            "expected one label per text, got a multi-label classifier, which cannot be audited"
        )


def _check_attention(
    model: nn.Module, names: list[str], shapes: list[torch.Size], n_keys: int
) -> None:
    if not names:
        raise AttnProbeError(
            f"expected softmax attention, saw none in {type(model).__name__} "
            f"(attention implementation {model.config._attn_implementation!r}); models without it cannot be audited, "
            "others can be loaded with attn_implementation='eager' or 'sdpa'"
        )
    for name, shape in zip(names, shapes, strict=True):
        if shape[0] != 1 or shape[2:] != (n_keys, n_keys):
            raise AttnProbeError(
                f"expected attention [1, heads, {n_keys}, {n_keys}] over {n_keys} positions, got {list(shape)} in {name}; "
                "banded, pooled or approximated attention cannot be audited"
            )
