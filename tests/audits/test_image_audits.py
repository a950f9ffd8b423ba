"""Image classifiers audited from a folder, as objects and with a processor of their own."""

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)
from transformers.image_utils import load_image

from hf_attnprobe import AuditOptions, audit, build_tokenizer, evaluate_scores
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
    assert "left_out" not in report.provenance
    assert {"exchange", "scale", "correlation", "adversarial"} <= set(report.provenance["tests"])


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


MODES = ("RGB", "L", "RGBA", "P", "LA", "1", "CMYK", "I;16")
"""Colour modes of images in Pillow; most are frequent in scans, on web pages and in MNIST."""


@pytest.fixture
def image_folder(tmp_path):
    """A folder with one image in each colour mode."""
    generator = np.random.default_rng(2)
    for k, mode in enumerate(MODES):
        image = Image.fromarray(generator.integers(0, 255, (14, 10, 3), dtype=np.uint8))
        if mode == "I;16":
            image = Image.fromarray(generator.integers(0, 65535, (14, 10), dtype=np.uint16))
        elif mode != "RGB":
            image = image.convert(mode)
        assert image.mode == mode
        suffix = "tiff" if mode in ("CMYK", "I;16") else "png"
        path = tmp_path / "images" / "test" / ("cat", "dog")[k % 2] / f"{k}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    return tmp_path / "images"


def test_images_of_all_colour_modes_are_read_as_a_pipeline_reads_them(image_folder):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SIZES)).eval()
    processor = ViTImageProcessor(size={"height": 12, "width": 12})
    classify = pipeline("image-classification", model=model, image_processor=processor)
    data = datasets.load_dataset("imagefolder", data_dir=str(image_folder), split="test")
    files = [image.filename for image in data["image"]]
    report = audit(classify, str(image_folder), "uniform_attention", progress=False)
    frame = report.to_pandas()
    own = frame[frame.statistic == "probability"].set_index("example_id").value.sort_index()
    assert len(own) == len(MODES)
    expected = [classify(file, top_k=1)[0]["score"] for file in files]
    assert own.tolist() == pytest.approx(expected, abs=1e-6)


def save_rotated_image(path):
    """Save an image whose EXIF orientation states that it must be turned by a quarter."""
    generator = np.random.default_rng(5)
    image = Image.fromarray(generator.integers(0, 255, (14, 10, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[274] = 6
    path.parent.mkdir(parents=True)
    image.save(path, exif=exif)


def test_images_of_another_size_and_orientation_are_read_as_the_model_reads_them(tmp_path):
    """The processor resizes to another size than the model's, so positions are interpolated."""
    file = tmp_path / "images" / "test" / "cat" / "rotated.jpg"
    save_rotated_image(file)
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SIZES)).eval()
    processor = ViTImageProcessor(size={"height": 16, "width": 20})
    upright = load_image(str(file))
    assert upright.size == (14, 10)
    pixels = processor(upright, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        probs = model(pixels, interpolate_pos_encoding=True).logits.softmax(-1)
    with Image.open(file) as image:
        image.load()
    for data in (str(tmp_path / "images"), [{"image": image, "label": 0}]):
        report = audit(model, data, "uniform_attention", tokenizer=processor, progress=False)
        frame = report.to_pandas()
        values = frame[frame.statistic == "probability"].value
        assert values.tolist() == pytest.approx(probs.amax(-1).tolist(), abs=1e-6)
    assert "the images have 16 × 20 pixels (height × width)" in report.to_markdown()
    assert model.config.image_size == 12


def test_regions_of_patches_are_the_units_of_a_report(rows):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SIZES)).eval()
    options = AuditOptions(region_size=2, single_heads=False, shown_texts=1)
    report = audit(model, rows, ["permutation"], options=options, progress=False)
    output = " ".join(report.to_text(verbose=True).split())
    note = "each image has 3 × 3 patches. They form 4 regions of at most 2 × 2 patches"
    assert note in output
    assert "The model attends to their regions" in output
    (example,) = report.examples[:1]
    assert example.tokens[0] == "row 1, column 1"
    assert example.tokens[3] == "rows 2 to 3, columns 2 to 3"
    assert example.unit_map.cells == ((4, 4), (8, 4), (4, 8), (8, 8))
    assert example.unit_map.positions[3] == (8, 8)
    text_model = tiny_models.bert()
    with refuses("--region-size 2 is only for models that read images"):
        audit(
            text_model,
            [{"text": "a film", "label": 0}],
            options=options,
            tokenizer=build_tokenizer(["a film"]),
            progress=False,
        )


@torch.no_grad()
def compute_own_losses(model, image):
    """Return the loss of probability without the token of each patch, with a hook written by hand."""
    probs = model(image[None]).logits.softmax(-1)[0]
    losses = []
    for patch in range(9):
        remaining = [0, *(1 + other for other in range(9) if other != patch)]
        hook = model.vit.layers[0].register_forward_pre_hook(
            lambda block, args, remaining=remaining: (args[0][:, remaining], *args[1:])
        )
        shortened_probs = model(image[None]).logits.softmax(-1)[0]
        hook.remove()
        losses.append(float((probs - shortened_probs)[probs.argmax()]))
    return losses


def test_saliency_values_of_patches_are_evaluated(rows, pixels):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SIZES)).eval()
    scores = [compute_own_losses(model, torch.tensor(image)) for image in pixels]
    options = AuditOptions(single_heads=False)
    report = evaluate_scores(model, rows, scores, "scale", options=options, progress=False)
    frame = report.to_pandas()
    importance = frame[frame.test == "scale"].groupby("statistic").value.mean()
    assert importance["importance@given"] > 0.7
    assert importance["importance@given"] > importance["importance@attention"] + 0.3
    with refuses("expected one score for each of 9 patches, got 8"):
        evaluate_scores(model, rows, [image[1:] for image in scores], "scale", progress=False)


def test_images_of_different_sizes_after_processing_are_refused(model, image_folder):
    def keep_size(images, return_tensors):
        return Processor()([image.resize((12, image.height)) for image in images], return_tensors)

    sizes = np.random.default_rng(6).integers(0, 255, (2, 16, 12, 3), dtype=np.uint8)
    rows = [{"image": Image.fromarray(image[: 12 + 4 * k])} for k, image in enumerate(sizes)]
    with refuses(r"row 1 has \[3, 16, 12\]\. All images must have 3 channels and the same size"):
        audit((model, keep_size), rows, progress=False)


def test_greyscale_models_read_colour_images(image_folder):
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**{**SIZES, "num_channels": 1})).eval()

    def process(images, return_tensors):
        assert all(image.mode == "L" for image in images)
        arrays = [np.asarray(image.resize((12, 12)), dtype=np.float32) / 255 for image in images]
        return {"pixel_values": torch.tensor(np.stack(arrays))[:, None]}

    reports = audit((model, process), str(image_folder), "uniform_attention", progress=False)
    assert reports.to_pandas().example_id.nunique() == len(MODES)


def test_a_processor_that_fails_is_reported_in_one_line(model, image_folder):
    def fail(images, return_tensors):
        raise ValueError("mean must have 1 elements\nif it is an iterable")

    with refuses("the image processor cannot read the images in the column 'image': mean must"):
        audit((model, fail), str(image_folder), progress=False)


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
