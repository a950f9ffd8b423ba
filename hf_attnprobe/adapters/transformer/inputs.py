"""The input of a model: the images that it takes, and where it embeds what it reads."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_attnprobe.errors import AttnProbeError


USUAL = {"num_channels": 3, "image_size": 224, "patch_size": 16}
"""Of configurations that say nothing: of convolutions, which take any size."""


def image_shape(config: PreTrainedConfig) -> tuple[int, int, int]:
    """Channels, height and width."""
    channels = _of_images(config, "num_channels")
    return (channels, *height_and_width(_of_images(config, "image_size")))


def n_patches(config: PreTrainedConfig) -> int:
    """Into how many patches an image is cut."""
    height, width = height_and_width(_of_images(config, "image_size"))
    down, right = height_and_width(_of_images(config, "patch_size"))
    return (height // down) * (width // right)


def height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    """Of an image or patch whose configuration gives both, or one number for a square."""
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width


def embeddings_of(model: PreTrainedModel) -> nn.Module:
    """The table of a model's tokens, or what makes patches of its images.

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
    """The first module that is named like embeddings; the model itself without one."""
    for module in model.modules():
        if type(module).__name__.endswith("Embeddings"):
            return module
    return model


def _of_images(config: PreTrainedConfig, name: str) -> Any:
    """A value of the part for images, where a configuration has parts."""
    part = getattr(config, "vision_config", config)
    value = getattr(part, name, None)
    return USUAL[name] if value is None else value
