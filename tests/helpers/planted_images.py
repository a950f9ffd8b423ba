"""Noise images with one red or blue patch, and image classifiers that find it with or without attention."""

import numpy as np
import torch
from PIL import Image
from transformers import (
    SiglipConfig,
    SiglipForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)


PATCH_SIZE = 4
N_SIDE = 3
"""Number of patches in a row and in a column of an image."""
COLOURS = ((0, 0, 255), (255, 0, 0))
"""Colour of the planted patch by class: blue, red."""
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": PATCH_SIZE * N_SIDE,
    "patch_size": PATCH_SIZE,
}


def draw_images(n_images, seed):
    """Draw images of grey noise in which one patch has the colour of the class.

    Returns:
        The images, uint8 `[images, height, width, 3]`; their classes; the planted patch of each image.
    """
    generator = np.random.default_rng(seed)
    side = PATCH_SIZE * N_SIDE
    images = generator.integers(90, 160, (n_images, side, side, 3)).astype(np.uint8)
    labels = np.arange(n_images) % 2
    planted = generator.integers(0, N_SIDE**2, n_images)
    for image, label, patch in zip(images, labels, planted, strict=True):
        row, column = (int(index) * PATCH_SIZE for index in divmod(patch, N_SIDE))
        image[row : row + PATCH_SIZE, column : column + PATCH_SIZE] = COLOURS[label]
    return images, labels, planted


class PlantedImageProcessor:
    """Image processor that scales pixels to values from −1 to 1."""

    do_normalize = True
    image_mean = (0.5, 0.5, 0.5)
    image_std = (0.5, 0.5, 0.5)

    def __call__(self, images, return_tensors="pt"):
        arrays = [np.asarray(image, dtype=np.float32) / 127.5 - 1 for image in images]
        return {"pixel_values": torch.tensor(np.stack(arrays)).permute(0, 3, 1, 2)}


def make_vit(seed):
    """Build a ViT, which can read the planted patch only through attention to it."""
    torch.manual_seed(seed)
    return ViTForImageClassification(ViTConfig(**SIZES, num_labels=2))


def make_bypassing_model(seed):
    """Build a model that averages its patches, and whose attention has almost no effect.

    The output projections of its attention are tiny and not trained. Its attention is sharp, because
    its queries and keys have large weights.
    """
    torch.manual_seed(seed)
    config = SiglipConfig(vision_config=SIZES)
    config.num_labels = 2
    model = SiglipForImageClassification(config)
    for layer in model.vision_model.encoder.layers:
        attention = layer.self_attn
        for projection in (attention.q_proj, attention.k_proj):
            torch.nn.init.normal_(projection.weight, 0, 0.5)
        torch.nn.init.normal_(attention.out_proj.weight, 0, 1e-4)
        attention.requires_grad_(False)
    return model


def train(model, seed, *, n_images=300, n_epochs=10):
    """Train an image classifier on planted images, and return it in eval mode."""
    images, labels, _ = draw_images(n_images, seed)
    pixels = PlantedImageProcessor()(images)["pixel_values"]
    targets = torch.tensor(labels)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(weights, 3e-3)
    torch.manual_seed(seed)
    for _ in range(n_epochs):
        for rows in torch.randperm(n_images).split(25):
            loss = model(pixel_values=pixels[rows], labels=targets[rows]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def make_rows(n_images, seed):
    """Return images and labels as rows of a data set."""
    images, labels, planted = draw_images(n_images, seed)
    rows = [
        {"image": Image.fromarray(image), "label": int(label)}
        for image, label in zip(images, labels, strict=True)
    ]
    return rows, planted
