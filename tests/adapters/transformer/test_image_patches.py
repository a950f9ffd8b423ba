"""Patches that are left out of images, exchanged and zeroed, against hooks written by hand."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
import transformers
from torch import nn
from transformers import AttentionInterface

from hf_attnprobe import AttnProbeError
from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer import image_patches
from hf_attnprobe.adapters.transformer.image_patches import PatchGrid
from hf_attnprobe.protocol import EditableInputs, ExchangeableUnits, Site
from tests.helpers import tiny_models


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": [8, 12],
    "patch_size": 4,
    "num_channels": 3,
    "initializer_range": 0.4,
}
SQUARE = {"image_size": 8}
RELATIVE = {"use_relative_position_bias": True, "use_mean_pooling": True}
MODELS = {
    "ViTForImageClassification": ("ViTConfig", {}, "vit.layers"),
    "DeiTForImageClassification": ("DeiTConfig", {}, "deit.layers"),
    "DeiTForImageClassificationWithTeacher": ("DeiTConfig", {}, "deit.layers"),
    "BeitForImageClassification": ("BeitConfig", SQUARE | RELATIVE, "beit.layers"),
    "Dinov2ForImageClassification": ("Dinov2Config", SQUARE, "dinov2.encoder.layer"),
    "Dinov2WithRegistersForImageClassification": (
        "Dinov2WithRegistersConfig",
        SQUARE,
        "dinov2_with_registers.encoder.layer",
    ),
    "IJepaForImageClassification": ("IJepaConfig", SQUARE, "ijepa.layers"),
    "ViTMSNForImageClassification": ("ViTMSNConfig", SQUARE, "vit.layers"),
    "SiglipForImageClassification": ("SiglipConfig", SQUARE, "vision_model.encoder.layers"),
    "CLIPForImageClassification": ("CLIPConfig", SQUARE, "vision_model.encoder.layers"),
}
"""For each class: its configuration, fields of the configuration, and the name of its blocks."""
DAILY_MODELS = (
    "ViTForImageClassification",
    "BeitForImageClassification",
    "Dinov2WithRegistersForImageClassification",
)
READOUT_TOKENS = {
    "DeiTForImageClassificationWithTeacher": [0, 1],
    "BeitForImageClassification": [1, 2, 3, 4],
    "IJepaForImageClassification": [0, 1, 2, 3],
    "SiglipForImageClassification": [0, 1, 2, 3],
    "CLIPForImageClassification": [1, 2, 3, 4],
}
"""Tokens from which the classes read their prediction; all others read it from the first token."""


def make_model(name, *, sizes=None, **options):
    """Build a small model with random weights; ``sizes`` replaces fields of its configuration."""
    config_name, fields, _ = MODELS[name]
    config_class = getattr(transformers, config_name)
    sizes = {**SIZES, **fields, **(sizes or {})}
    if hasattr(config_class(), "vision_config"):
        config = config_class(vision_config=sizes, text_config={"hidden_size": 16})
        config.num_labels = 3
    else:
        config = config_class(**sizes, num_labels=3)
    torch.manual_seed(0)
    model = getattr(transformers, name)._from_config(config, **options).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        # Also weights that are 0 at first, such as those of position biases.
        nn.init.normal_(weight, 0, 0.3, generator=generator)
    return model


@pytest.fixture(scope="module", params=tiny_models.daily(MODELS, DAILY_MODELS))
def case(request):
    """The name of a class, a model, its adapter and an observation of three images."""
    model = make_model(request.param)
    adapter = wrap(model)
    size = getattr(model.config, "vision_config", model.config).image_size
    height, width = size if isinstance(size, list) else (size, size)
    pixels = torch.randn(3, 3, height, width, generator=torch.Generator().manual_seed(1))
    batch = adapter.prepare({"pixel_values": pixels}, (0, 1, 2))
    return request.param, model, adapter, adapter.observe(batch)


@contextmanager
def drop_tokens(model, blocks_name, remaining):
    """Remove tokens from the hidden states before the first block, and from position biases."""

    def select_tokens(block, args):
        return (args[0][:, remaining], *args[1:])

    def select_biases(module, args, output):
        return output[..., remaining, :][..., remaining]

    handles = [model.get_submodule(blocks_name)[0].register_forward_pre_hook(select_tokens)]
    for module in model.modules():
        if "RelativePositionBias" in type(module).__name__:
            handles.append(module.register_forward_hook(select_biases))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def run_without_tokens(name, model, pixels, left_out):
    """Compute the probabilities of images from whose tokens some are dropped."""
    n_keys = left_out.shape[-1]
    probs = []
    for image, is_left_out in zip(pixels, left_out, strict=True):
        remaining = [key for key in range(n_keys) if not is_left_out[key]]
        with drop_tokens(model, MODELS[name][2], remaining):
            probs.append(model(pixel_values=image[None]).logits.softmax(-1))
    return torch.cat(probs)


def test_leaving_patches_out_equals_dropping_their_tokens(case):
    name, model, adapter, observation = case
    content = observation.batch.content_mask
    n_patches = adapter.patches.grid.n_patches
    assert content.sum(1).tolist() == [n_patches] * 3
    # A single patch, two thirds of the patches, all but the first, and a different set per image.
    sets = torch.zeros(4, *content.shape, dtype=torch.bool)
    sets[0, :, -2] = True
    sets[1, :, -(2 * n_patches // 3) :] = True
    sets[2, :, -(n_patches - 1) :] = True
    for image in range(3):
        sets[3, image, -1 - image :] = True
    sets &= content
    actual = adapter.erase_inputs(observation, sets)
    pixels = observation.batch.inputs["pixel_values"]
    for left_out, probs in zip(sets, actual, strict=True):
        expected = run_without_tokens(name, model, pixels, left_out)
        torch.testing.assert_close(probs, expected, atol=1e-5, rtol=0)
    loss = adapter.compute_leave_one_out(observation)[:, -2]
    torch.testing.assert_close(loss, actual[0], atol=1e-6, rtol=0)
    assert (actual[:3] - observation.probs).abs().amax(-1).min() > 1e-3


def test_an_image_without_patches_has_a_prediction(case):
    _, _, adapter, observation = case
    everything = torch.ones_like(observation.batch.content_mask)[None]
    probs = adapter.erase_inputs(observation, everything)[0]
    # No pixel is left, so all images have the same prediction.
    torch.testing.assert_close(probs, probs[:1].expand(3, -1))
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))
    assert not torch.allclose(probs, observation.probs, atol=1e-3)


def test_no_edited_patch_changes_nothing(case):
    _, _, adapter, observation = case
    nothing = torch.zeros_like(observation.batch.content_mask)[None]
    assert torch.equal(adapter.erase_inputs(observation, nothing)[0], observation.probs)
    assert torch.equal(
        adapter.exchange_inputs(observation, nothing, [{}] * 3)[0], observation.probs
    )
    # Special tokens are never left out.
    special = ~observation.batch.content_mask[None]
    assert torch.equal(adapter.erase_inputs(observation, special)[0], observation.probs)


@torch.no_grad()
def test_a_patch_is_exchanged_at_its_position(case):
    _, model, adapter, observation = case
    pixels, n_special = observation.batch.inputs["pixel_values"], adapter.patches.n_special
    contents = adapter.read_unit_contents(observation)
    assert [min(text) for text in contents] == [n_special] * 3
    # The second patch of each image is replaced by the last patch of the next image.
    second, last = n_special + 1, max(contents[0])
    replacements = [{second: contents[(image + 1) % 3][last]} for image in range(3)]
    exchanged = torch.zeros_like(observation.batch.content_mask)[None]
    exchanged[0, :2, second] = True
    # A patch without a replacement is not changed.
    exchanged[0, :, last] = True
    probs = adapter.exchange_inputs(observation, exchanged, replacements)[0]
    edited = pixels.clone()
    edited[0, :, :4, 4:8] = pixels[1, :, -4:, -4:]
    edited[1, :, :4, 4:8] = pixels[2, :, -4:, -4:]
    torch.testing.assert_close(probs, model(pixel_values=edited).logits.softmax(-1))
    assert torch.equal(probs[2], observation.probs[2])
    assert (probs[:2] - observation.probs[:2]).abs().max() > 1e-3


@pytest.mark.parametrize("layer", [0, 1])
def test_zeroed_weights_equal_an_attention_function_written_by_hand(layer):
    name = "ViTForImageClassification"
    position, calls = 3, []

    def zero_one_key(module, query, key, value, attention_mask, scaling, **kwargs):
        weights = (query @ key.transpose(-2, -1) * scaling).softmax(-1)
        if len(calls) == layer:
            weights[:, :, :, position] = 0
        calls.append(module)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    AttentionInterface.register("zero_one_key", zero_one_key)
    pixels = torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = make_model(name, attn_implementation="zero_one_key")(pixels).logits.softmax(-1)
    assert len(calls) == 2
    adapter = wrap(make_model(name))
    observation = adapter.observe(adapter.prepare({"pixel_values": pixels}, (0, 1)))
    edited = observation.attention[layer].clone()
    edited[..., position] = 0
    probs = adapter.replay(observation, {layer: edited[None]})[0]
    torch.testing.assert_close(probs, expected, atol=1e-5, rtol=0)
    assert (probs - observation.probs).abs().max() > 1e-3


def test_the_readout_is_found(case):
    name, model, adapter, observation = case
    weights = adapter.patches.readout_weights
    tokens = READOUT_TOKENS.get(name, [0])
    expected = torch.zeros_like(weights)
    expected[tokens] = 1 / len(tokens)
    torch.testing.assert_close(weights, expected)
    site = adapter.sites()[-1]
    rows = observation.attention[site.layer][:, site.head, tokens]
    torch.testing.assert_close(observation.read(site), rows.mean(1))
    has_special_tokens = tokens[0] < adapter.patches.n_special
    expected_description = "the class token" if tokens == [0] else "the special tokens"
    if not has_special_tokens:
        expected_description = "all patches"
    assert adapter.describe_readout(observation) == expected_description
    # The option of the user has precedence.
    with_option = wrap(model, readout="last")
    observation = with_option.observe(observation.batch)
    last_row = observation.attention[0][:, 0, -1]
    torch.testing.assert_close(observation.read(Site(0)), last_row)


def test_the_check_passes_and_images_have_both_capabilities(case):
    _, _, adapter, observation = case
    assert adapter.lacks(EditableInputs) is None
    assert adapter.lacks(ExchangeableUnits) is None
    adapter.self_check(observation.batch)


class MixingMlp(nn.Module):
    """A layer that adds the state of the previous token to each token."""

    def forward(self, hidden, *args):
        return hidden + hidden.roll(1, dims=1)


def test_a_model_that_mixes_tokens_outside_attention_is_refused():
    model = make_model("ViTForImageClassification")
    model.vit.layers[0].mlp = MixingMlp()
    adapter = wrap(model)
    batch = adapter.prepare({"pixel_values": torch.rand(2, 3, 8, 12)}, (0, 1))
    message = "patches cannot be left out of images for ViTForImageClassification: the pixels"
    with pytest.raises(AttnProbeError, match=message):
        adapter.self_check(batch)


def test_a_mask_is_refused(case):
    _, _, adapter, observation = case
    with pytest.raises(AttnProbeError, match="patches can only be left out"):
        adapter.erase_inputs(observation, observation.batch.content_mask[None], operator="mask")


READS_ALL_SIZES = (
    "BeitForImageClassification",
    "Dinov2ForImageClassification",
    "Dinov2WithRegistersForImageClassification",
)
"""Classes that read images of all sizes without an argument; the others need one."""


@pytest.mark.parametrize("name", tiny_models.daily(MODELS, DAILY_MODELS))
@torch.no_grad()
def test_position_embeddings_are_interpolated_for_images_of_another_size(name):
    # ViT and DeiT cannot interpolate from an image that is not a square.
    model = make_model(name, sizes=SQUARE)
    adapter = wrap(model, image_size=(12, 16))
    pixels = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(4))
    batch = adapter.prepare({"pixel_values": pixels}, (0, 1))
    observation = adapter.observe(batch)
    if name not in READS_ALL_SIZES:
        with pytest.raises((ValueError, RuntimeError)):
            model(pixel_values=pixels)
        model.forward = partial(model.forward, interpolate_pos_encoding=True)
    expected = model(pixel_values=pixels).logits.softmax(-1)
    torch.testing.assert_close(observation.probs, expected)
    adapter.self_check(batch)
    assert adapter.patches.grid == PatchGrid(3, 4, 4, 4)
    left_out = torch.zeros_like(batch.content_mask)
    left_out[:, -5] = True
    expected = run_without_tokens(name, model, pixels, left_out)
    probs = adapter.erase_inputs(observation, left_out[None])[0]
    torch.testing.assert_close(probs, expected, atol=1e-5, rtol=0)
    assert (probs - observation.probs).abs().max() > 1e-3


def test_patches_are_cut_row_by_row():
    grid = PatchGrid(n_rows=2, n_columns=3, height=2, width=1)
    pixels = torch.arange(2 * 1 * 5 * 3).reshape(2, 1, 5, 3)
    patches = image_patches.cut_patches(pixels, grid)
    assert patches.shape == (2, 6, 1, 2, 1)
    assert patches[0, 4].flatten().tolist() == pixels[0, 0, 2:4, 1].tolist()
    only_fifth = torch.zeros(2, 6, dtype=torch.bool)
    only_fifth[1, 4] = True
    edited = image_patches.paste_patches(pixels, -patches, only_fifth, grid)
    expected = pixels.clone()
    expected[1, 0, 2:4, 1] *= -1
    assert torch.equal(edited, expected)
    region = image_patches.divide_into_regions(grid, 1)[4]
    assert image_patches.name_region(region) == "row 2, column 2"
    assert region.find_pixels(grid) == (slice(2, 4), slice(1, 2))


# --- Regions -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=tiny_models.daily(MODELS, ("ViTForImageClassification",)))
def region_case(request):
    """A model of images with 3 × 5 patches, its adapter for regions, and an observation."""
    model = make_model(request.param, sizes=SQUARE)
    adapter = wrap(model, image_size=(12, 20), region_size=2)
    if request.param not in READS_ALL_SIZES:
        model.forward = partial(model.forward, interpolate_pos_encoding=True)
    pixels = torch.randn(3, 3, 12, 20, generator=torch.Generator().manual_seed(5))
    observation = adapter.observe(adapter.prepare({"pixel_values": pixels}, (0, 1, 2)))
    return request.param, model, adapter, observation


# The rows are divided into 1 + 2, and the columns into 1 + 2 + 2.
REGIONS = [[0], [1, 2], [3, 4], [5, 10], [6, 7, 11, 12], [8, 9, 13, 14]]
"""Patches of each region of an image with 3 × 5 patches."""


def test_options_for_other_inputs_are_refused():
    with pytest.raises(AttnProbeError, match="reads images"):
        wrap(make_model("ViTForImageClassification"), level="word")
    for options in ({"region_size": 2}, {"image_size": (8, 8)}):
        with pytest.raises(AttnProbeError, match="BertForSequenceClassification reads none"):
            wrap(tiny_models.bert(), **options)


def test_attention_to_a_region_is_the_sum_over_its_patches(region_case):
    name, _, adapter, observation = region_case
    n_special, content = adapter.patches.n_special, observation.batch.content_mask[0]
    first_patches = [patches[0] for patches in REGIONS]
    assert (content.nonzero()[:, 0] - n_special).tolist() == first_patches
    site = adapter.sites()[0]
    patch_adapter = wrap(make_model(name, sizes=SQUARE), image_size=(12, 20))
    patch_batch = patch_adapter.prepare(
        {"pixel_values": observation.batch.inputs["pixel_values"]}, (0, 1, 2)
    )
    by_patch = patch_adapter.observe(patch_batch).read(site)[:, n_special:]
    expected = torch.stack([by_patch[:, patches].sum(1) for patches in REGIONS], 1)
    torch.testing.assert_close(observation.read(site)[:, content], expected)
    assert adapter.unit == "region" and patch_adapter.unit == "patch"


def test_leaving_a_region_out_drops_the_tokens_of_all_its_patches(region_case):
    name, model, adapter, observation = region_case
    content = observation.batch.content_mask
    loss = adapter.compute_leave_one_out(observation)[:, content[0]]
    pixels = observation.batch.inputs["pixel_values"]
    for index in (0, 4):
        left_out = torch.zeros_like(content)
        left_out[:, [adapter.patches.n_special + patch for patch in REGIONS[index]]] = True
        expected = run_without_tokens(name, model, pixels, left_out)
        torch.testing.assert_close(loss[:, index], expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_region_is_exchanged_for_a_region_of_another_size(region_case):
    _, model, adapter, observation = region_case
    pixels = observation.batch.inputs["pixel_values"]
    contents = adapter.read_unit_contents(observation)
    positions = [*contents[0]]
    assert [tuple(contents[0][position].shape[1:]) for position in positions[:2]] == [
        (4, 4),
        (4, 8),
    ]
    # The fifth region has 2 × 2 patches. It is repeated from a region of a single patch.
    replacements = [{positions[4]: contents[1][positions[0]]}, {}, {}]
    exchanged = observation.batch.content_mask[None]
    probs = adapter.exchange_inputs(observation, exchanged, replacements)[0]
    edited = pixels.clone()
    edited[0, :, 4:12, 4:12] = pixels[1, :, :4, :4].repeat(1, 2, 2)
    torch.testing.assert_close(probs, model(pixel_values=edited).logits.softmax(-1))
    # A larger region is cut.
    replacements = [{positions[0]: contents[2][positions[4]]}, {}, {}]
    probs = adapter.exchange_inputs(observation, exchanged, replacements)[0]
    edited = pixels.clone()
    edited[0, :, :4, :4] = pixels[2, :, 4:8, 4:8]
    torch.testing.assert_close(probs, model(pixel_values=edited).logits.softmax(-1))


def test_no_region_has_fewer_than_one_patch():
    with pytest.raises(AttnProbeError, match="expected region_size to be 1 or more, got 0"):
        wrap(make_model("ViTForImageClassification"), region_size=0)
