"""Audits of image classifiers with known truth, and the maps in their reports."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.documents.token_shading import MAP_TITLES
from hf_attnprobe.plots.matplotlib_backend import save_texts
from hf_attnprobe.reports.report import Report
from tests.helpers.bag_models import GatedAdapter, GatedPooling, make_bags, set_key_weights
from tests.helpers.planted_images import (
    COLOURS,
    N_SIDE,
    PATCH_SIZE,
    PlantedImageProcessor,
    make_bypassing_model,
    make_rows,
    make_vit,
    train,
)


FAITHFULNESS_TESTS = ["exchange", "erasure", "scale", "uniform_attention"]
MAKERS = {"yes": make_vit, "no": make_bypassing_model}
"""Function that builds a model, by the true answer."""


@pytest.fixture(scope="module")
def planted():
    return make_rows(30, 100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("audit") / "vit"


@pytest.fixture(scope="module")
def report(planted, folder):
    """A report on a ViT that reads the planted patch through attention."""
    model = train(make_vit(0), 0)
    options = AuditOptions(shown_texts=3, prune=False)
    return audit(
        model,
        planted[0],
        FAITHFULNESS_TESTS,
        tokenizer=PlantedImageProcessor(),
        options=options,
        output_dir=folder,
        progress=False,
    )


def test_a_planted_patch_is_answered_with_yes(report):
    assert str(report.answer) == "yes", str(report)
    assert report.provenance["instance"] == "patch"
    assert "left_out" not in report.provenance


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("answer", MAKERS)
def test_three_seeds_get_the_true_answer(answer, seed):
    model = train(MAKERS[answer](seed), seed)
    # A model may predict one class by default. Half of the images then have no evidence.
    rows, _ = make_rows(80, 100 + seed)
    report = audit(model, rows, tokenizer=PlantedImageProcessor(), progress=False)
    assert str(report.answer) == answer, str(report)
    findings = {finding.rule: finding for finding in report.findings}
    # Every question has a number.
    assert {"accuracy", "path_share", "faithfulness"} <= findings.keys()
    assert all(np.isfinite(finding.value) for finding in findings.values()), str(report)


def test_every_sentence_names_patches_and_images(report):
    prose = report.to_text(verbose=True)
    assert "patches with most attention" in prose and "30 images" in prose
    words = re.findall(
        r"(?<!special )(?<!class )(?<![-\w])(?:words?|tokens?|texts?)\b(?![/_.-])", prose
    )
    # Names of options may contain these words.
    assert not words
    assert "from the class token" in report.provenance["attention"]


def test_the_effect_map_points_to_the_planted_patch(report, planted):
    patches = planted[1]
    for image in report.examples:
        patch = int(patches[image.example_id])
        # Blue is the prediction without evidence, so only red patches have an effect.
        if image.predicted == "LABEL_1":
            assert int(np.argmax(image.scores["leave_one_out"])) == patch
            assert image.scores["leave_one_out"][patch] > 0.5
        row, column = divmod(patch, N_SIDE)
        assert image.tokens[patch] == f"row {row + 1}, column {column + 1}"
        x, y = (int(value) for value in image.unit_map.positions[patch])
        with Image.open(io.BytesIO(base64.b64decode(image.unit_map.picture))) as picture:
            # The processor's scale is undone, so the patch has its colour.
            assert picture.getpixel((x, y)) == COLOURS[int(image.label[-1])]
        assert set(image.unit_map.cells) == {(PATCH_SIZE, PATCH_SIZE)}
    assert any(image.predicted == "LABEL_1" for image in report.examples)


def test_a_page_shows_the_maps_with_their_description(report):
    page = report.to_html()
    maps = re.findall(r'<svg class="chart unit-map".*?</svg>', page, flags=re.DOTALL)
    assert len(maps) == len(report.examples) == 3
    for image, drawing in zip(report.examples, maps, strict=True):
        assert 'role="img"' in drawing
        title, description = re.findall(r"<(?:title|desc) [^>]*>(.*?)</", drawing)
        assert title.startswith("Image ")
        assert "Map of the attention of 9 patches, the largest: row" in description
        assert "Map of the effect of leaving out of 9 patches" in description
        # The image and two grey copies are contained in the page itself.
        assert drawing.count("data:image/png;base64,") == 3
        assert image.example_id >= 0
    assert "http" not in "".join(maps).replace("http://www.w3.org/", "")
    assert "point at a word" not in page


def test_a_saved_report_has_the_same_maps(report, folder):
    loaded = Report.load(folder)
    assert loaded.examples == report.examples


def test_maps_are_saved_as_figures(report, tmp_path):
    image = report.examples[0]
    paths = save_texts([image], tmp_path, MAP_TITLES, ("svg", "png"))
    name = f"image_{image.example_id}"
    assert [path.name for path in paths] == [f"{name}.svg", f"{name}.png"]
    assert "effect of leaving out" in paths[0].read_text()
    with Image.open(tmp_path / f"{name}.png") as figure:
        # Three panels side by side: noise in colour, and two grey copies.
        assert figure.width > 2 * figure.height


def test_bags_with_coordinates_have_maps(tmp_path):
    rows = make_bags(12, 1)
    generator = np.random.default_rng(0)
    for row in rows:
        row["coordinates"] = generator.uniform(0, 5000, (len(row["features"]), 2)).tolist()
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    options = AuditOptions(shown_texts=2)
    report = audit(adapter, rows, ["scale", "input_erasure"], options=options, progress=False)
    bag = report.examples[0]
    row = rows[bag.example_id]
    np.testing.assert_allclose(bag.unit_map.positions, row["coordinates"])
    assert bag.name == f"Bag {bag.example_id}" and not bag.unit_map.picture
    assert bag.tokens[1] == "patch 1"
    # The attention is that of the module.
    features = torch.tensor(row["features"])[None]
    weights = set_key_weights(GatedPooling()).score(features).softmax(-1)[0]
    np.testing.assert_allclose(bag.scores["attention"], weights.tolist(), rtol=1e-5)
    assert report.to_html().count('<svg class="chart unit-map"') == len(report.examples)
    assert {"attention", "leave_one_out"} <= bag.scores.keys()
    (path,) = save_texts([bag], tmp_path, MAP_TITLES, ("svg",))
    assert path.name == f"bag_{bag.example_id}.svg"


def test_bags_with_three_coordinates_have_no_maps():
    rows = [
        {**row, "coordinates": [[0.0, 1.0, 2.0]] * len(row["features"])} for row in make_bags(4, 1)
    ]
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    assert audit(adapter, rows, ["scale"], progress=False).examples == ()
