"""Image classifiers audited from a folder, as objects and with a processor of their own."""

import datasets
import numpy as np
import pytest
import torch
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from hf_attnprobe import audit
from hf_attnprobe.data.examples import compute_dataset_fingerprint, load_examples
from tests.helpers import tiny_models
from tests.helpers.error_messages import refuses


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 3,
    "id2label": {0: "cat", 1: "dog", 2: "owl"},
    "initializer_range": 0.4,
}
FAMILIES = {
    "vit": (ViTConfig, ViTForImageClassification),
    "deit": (DeiTConfig, DeiTForImageClassification),
}


@pytest.fixture(scope="module", params=tiny_models.daily(FAMILIES, ("vit",)))
def model(request):
    config, kind = FAMILIES[request.param]
    torch.manual_seed(0)
    return kind(config(**SIZES)).eval()


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).normal(size=(6, 3, 12, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def rows(pixels):
    return {"pixel_values": pixels.tolist(), "label": ["owl", "cat", "dog"] * 2}


def test_the_rows_hold_the_models_own_predictions(model, rows, pixels, tmp_path):
    model.save_pretrained(tmp_path / "model")
    report = audit(tmp_path / "model", rows, progress=False)
    own = report.to_pandas()
    own = own[own.test == "prediction"].pivot(
        index="example_id", columns="statistic", values="value"
    )
    with torch.no_grad():
        probs = model(torch.tensor(pixels)).logits.softmax(-1)
    assert own.probability.tolist() == pytest.approx(probs.amax(-1).tolist(), abs=1e-6)
    assert own.predicted_class.tolist() == probs.argmax(-1).tolist()
    names = {0: "cat", 1: "dog", 2: "owl"}
    assert [names[int(label)] for label in own.label] == rows["label"]
    left_out = report.provenance["left_out"]
    assert "from which no token can be removed" in left_out["correlation"]
    assert {"permutation", "uniform_attention", "adversarial"} <= set(report.provenance["tests"])


class Processor:
    """What an image processor does, without torchvision."""

    def __call__(self, images, return_tensors):
        arrays = [torch.tensor(np.asarray(image)) for image in images]
        pixels = [array.permute(2, 0, 1) / 255.0 for array in arrays]
        return {"pixel_values": torch.stack(pixels)}


def test_images_go_through_the_processor(model):
    images = np.random.default_rng(1).integers(0, 255, (3, 12, 12, 3), dtype=np.uint8)
    features = datasets.Features(image=datasets.Image())
    data = datasets.Dataset.from_dict({"image": list(images)}, features=features)
    report = audit((model, Processor()), data, "uniform_attention", progress=False)
    own = report.to_pandas()[report.to_pandas().statistic == "probability"].value
    with torch.no_grad():
        given = Processor()(images, "pt")["pixel_values"]
        probs = model(given).logits.softmax(-1)
    assert own.tolist() == pytest.approx(probs.amax(-1).tolist(), abs=1e-6)


def test_fingerprints_differ_by_pixels(rows):
    other = {**rows, "pixel_values": rows["pixel_values"][::-1]}
    first, second = (compute_dataset_fingerprint(load_examples(r, "test")) for r in (rows, other))
    assert first != second


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"text": "a cat"}], "needs a column 'pixel_values' or 'image'"),
        ([{"pixel_values": [[[0.0]]]}], r"expected pixels of shape \[3, 12, 12\]"),
    ],
)
def test_data_that_is_no_image(data, message):
    model = ViTForImageClassification(ViTConfig(**SIZES))
    with refuses(message):
        audit(model, data, progress=False)
