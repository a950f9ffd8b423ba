"""Find the model inside the objects that people hold: parallel and compiled models, a Trainer.

A wrapper changes how a model is called, but not what it computes, so the inner model is audited.
"""

import sys
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.image_processing_base import ImageProcessingMixin

from hf_attnprobe.protocol import AttentionModelBase


PARALLEL_CLASSES = (nn.DataParallel, nn.parallel.DistributedDataParallel)
"""Classes that run copies of a model on several devices; the model is their attribute `module`."""


def unwrap_module(module: Any) -> Any:
    """Return the model inside `DataParallel`, `DistributedDataParallel` or `torch.compile`.

    Args:
        module: Any object. Wrappers may be nested.

    Returns:
        The inner model, or `module` itself if it is not wrapped.
    """
    # The class is only known after the first call of `torch.compile` has imported its module.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    compiled_class: Any = getattr(dynamo, "OptimizedModule", ())
    while True:
        if isinstance(module, PARALLEL_CLASSES):
            module = module.module
        elif isinstance(module, compiled_class):
            module = module._orig_mod
        else:
            return module


def unpack_holder(holder: Any) -> tuple[nn.Module, Any] | None:
    """Return the model and the tokenizer of an object that contains both.

    Such objects are a Transformers `Trainer`, and a `CrossEncoder` of sentence-transformers. They
    are recognised by their attributes, because importing their classes takes long.

    Args:
        holder: Any object.

    Returns:
        The model, and its tokenizer or image processor, which may be None. The result is None if
        the object is not such a holder.
    """
    if isinstance(holder, AttentionModelBase):
        return None
    class_names = {parent.__name__ for parent in type(holder).__mro__}
    # A user's own module may also store its encoder and its tokenizer, but it has further layers.
    if isinstance(holder, nn.Module) and "CrossEncoder" not in class_names:
        return None
    model = getattr(holder, "model", None)
    if not isinstance(model, nn.Module):
        return None
    is_trainer = hasattr(holder, "processing_class") and hasattr(holder, "train_dataset")
    processor = getattr(holder, "processing_class", None) or getattr(holder, "tokenizer", None)
    is_processor = isinstance(processor, PreTrainedTokenizerBase | ImageProcessingMixin)
    if not is_trainer and not is_processor:
        return None
    return model, processor if is_processor else None


def get_holder_max_length(holder: Any) -> int | None:
    """Return the number of tokens to which a `CrossEncoder` cuts its texts; None for no limit.

    Args:
        holder: An object that `unpack_holder` accepts.
    """
    max_length = getattr(holder, "max_length", None)
    return max_length if isinstance(max_length, int) else None


def copy_inference_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that gradients can be computed with.

    Weights that were created inside `torch.inference_mode()` cannot be used for gradients, so they
    are copied. Other tensors are returned unchanged.

    Args:
        tensor: A weight or a buffer of a model.
    """
    return tensor.clone() if tensor.is_inference() else tensor
