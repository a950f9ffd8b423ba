"""Images as model inputs, in the same form as tokenized texts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters.transformer.layout import image_shape
from hf_attnprobe.data.columns import column_of, image_column
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import Text, TextModel, Tokenized
from hf_attnprobe.inference.labels import labels_of_model
from hf_attnprobe.plain_data import in_short


if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class ImageReader:
    """Reads images, where a text model has a tokenizer.

    Attributes:
        processor: of the model, for a column of images; None where there is none, which
            a column ``pixel_values`` does not need.
        shape: channels, height and width of what the model takes.
    """

    processor: Any
    shape: tuple[int, int, int]
    is_fast: bool = False
    pad_token_id: int = 0
    unk_token_id: None = None
    bos_token_id: None = None
    eos_token_id: None = None
    model_max_length: int = 10**30

    def read(self, examples: "datasets.Dataset") -> Tensor:
        """Pixels of all images, [images, channels, height, width].

        Raises:
            AttnProbeError: no column of images, no processor for them, or pixels of
                another shape than the model's.
        """
        name = image_column(examples.column_names)
        if name is None:
            raise AttnProbeError(
                "expected a column 'pixel_values' or 'image' for a model of images, got "
                f"the columns {', '.join(examples.column_names)}; audit it on images"
            )
        images = column_of(examples, name)
        if name == "pixel_values":
            pixels = [
                torch.as_tensor(image, dtype=torch.float32) for image in images
            ]
        elif self.processor is None:
            raise AttnProbeError(
                f"expected an image processor with the model for the column {name!r}, "
                "but none loads (most need torchvision); install it, or "
                "give a column 'pixel_values'"
            )
        else:
            pixels = list(
                self.processor(images, return_tensors="pt")["pixel_values"]
            )
        for row, image in enumerate(pixels):
            if tuple(image.shape) != self.shape:
                raise AttnProbeError(
                    f"expected pixels of shape {list(self.shape)} (channels, height, "
                    f"width), row {row} has {list(image.shape)}; give what the model's "
                    "image processor makes of the images"
                )
        return torch.stack(pixels)


@dataclass(frozen=True)
class ImageText(Text):
    """One image; its ``inputs`` hold ``pixel_values``, its positions are its tokens."""

    n_positions: int = 0

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        return []

    @property
    def n_tokens(self) -> int:
        return self.n_positions

    @property
    def n_content(self) -> int:
        return self.n_positions


def takes_images(model: Any) -> bool:
    """Whether a model's input is pixels."""
    return getattr(model, "main_input_name", None) == "pixel_values"


def reader_of(model: PreTrainedModel, processor: Any) -> ImageReader:
    """The reader of a model's images.

    Raises:
        AttnProbeError: what should read them cannot.
    """
    if processor is not None and not callable(processor):
        raise AttnProbeError(
            f"expected an image processor of Transformers, got {in_short(processor)}; pass "
            "tokenizer=AutoImageProcessor.from_pretrained(…)"
        )
    return ImageReader(processor, image_shape(model.config))


def encode_images(
    reader: ImageReader, examples: "datasets.Dataset", model: TextModel
) -> Tokenized:
    """Reads images in the form that :func:`~hf_attnprobe.inference.encoding.tokenize` gives
    texts.
    """
    pixels = reader.read(examples)
    labels = labels_of_model(model.prediction.outcomes, examples)
    layout = getattr(model, "layout", None)
    n_positions = getattr(layout, "n_keys", None) or 0
    rows = zip(column_of(examples, "example_id"), labels, pixels, strict=True)
    texts: list[Text] = [
        ImageText(k, label, {"pixel_values": image}, n_positions=n_positions)
        for k, label, image in rows
    ]
    return Tokenized(texts, n_empty=0, n_cut=0)
