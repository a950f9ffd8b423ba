"""Images as grids of patches: leave patches out, and exchange them for patches of other images.

An image model divides an image into a grid of patches and reads one token per patch. Leaving a patch
out means that the model reads no token for it, while all other tokens keep their positions (Jain et
al. 2022, "Missingness bias in model debugging"). No pixels are blackened or blurred, which would only
exchange the patch for another one.

Tokens read each other only through attention. A patch is therefore left out if its key is hidden in
every layer and its last hidden state is removed before the model's head. This also works for models
whose position biases need all tokens, such as BEiT. `PatchRemover.check` verifies that the pixels of a
patch that was left out have no effect.

To exchange a patch, its pixels are replaced. The new patch then gets the position of the old one.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from hf_attnprobe.adapters.transformer.layout import (
    create_example_inputs,
    get_height_and_width,
    get_image_setting,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    get_first_tensor,
    get_relative_tolerance,
    hook_modules,
    record_outputs,
    replace_first_tensor,
)
from hf_attnprobe.adapters.transformer.replay import HookedTransformer
from hf_attnprobe.core.errors import AttnProbeError


class PatchGrid(NamedTuple):
    """Grid of patches into which a model divides an image, numbered from left to right, row by row.

    Attributes:
        n_rows: Number of rows.
        n_columns: Number of columns.
        height: Height of a patch in pixels.
        width: Width of a patch in pixels.
    """

    n_rows: int
    n_columns: int
    height: int
    width: int

    @property
    def n_patches(self) -> int:
        """Number of patches."""
        return self.n_rows * self.n_columns


def get_patch_grid(config: PreTrainedConfig) -> PatchGrid:
    """Return the grid of patches into which a model divides an image.

    Pixels at the right and lower edge that do not fill a patch belong to no patch.

    Args:
        config: Model configuration.
    """
    image_height, image_width = get_height_and_width(get_image_setting(config, "image_size"))
    height, width = get_height_and_width(get_image_setting(config, "patch_size"))
    return PatchGrid(image_height // height, image_width // width, height, width)


def cut_patches(pixels: Tensor, grid: PatchGrid) -> Tensor:
    """Cut images into their patches.

    Args:
        pixels: Images `[images, channels, height, width]`.
        grid: The grid of patches.

    Returns:
        Patches `[images, patches, channels, patch height, patch width]`.

    Example:
        >>> grid = PatchGrid(n_rows=1, n_columns=2, height=1, width=2)
        >>> cut_patches(torch.arange(4).reshape(1, 1, 1, 4), grid).tolist()
        [[[[[0, 1]]], [[[2, 3]]]]]
    """
    rows = pixels[:, :, : grid.n_rows * grid.height, : grid.n_columns * grid.width]
    rows = rows.unflatten(3, (grid.n_columns, grid.width)).unflatten(2, (grid.n_rows, grid.height))
    # [images, channels, rows, patch height, columns, patch width]
    return rows.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def paste_patches(pixels: Tensor, patches: Tensor, is_pasted: Tensor, grid: PatchGrid) -> Tensor:
    """Replace some patches of images.

    Args:
        pixels: Images `[images, channels, height, width]`.
        patches: New patches `[images, patches, channels, patch height, patch width]`.
        is_pasted: Which patches to replace, bool `[images, patches]`.
        grid: The grid of patches.

    Returns:
        New images, of the same shape.
    """
    new = torch.where(is_pasted[:, :, None, None, None], patches, cut_patches(pixels, grid))
    by_row = new.unflatten(1, (grid.n_rows, grid.n_columns)).permute(0, 3, 1, 4, 2, 5)
    edited = pixels.clone()
    edited[:, :, : grid.n_rows * grid.height, : grid.n_columns * grid.width] = by_row.flatten(
        4, 5
    ).flatten(2, 3)
    return edited


# --- Regions -------------------------------------------------------------------------------------


class Region(NamedTuple):
    """A rectangle of neighbouring patches, which are left out and exchanged together.

    Attributes:
        first_row: Number of its first row of patches; rows start at 0.
        end_row: Number of the row after its last row.
        first_column: Number of its first column of patches.
        end_column: Number of the column after its last column.
    """

    first_row: int
    end_row: int
    first_column: int
    end_column: int

    def find_pixels(self, grid: PatchGrid) -> tuple[slice, slice]:
        """Return the rows and the columns of pixels that the region covers.

        Args:
            grid: The grid of patches.
        """
        return (
            slice(self.first_row * grid.height, self.end_row * grid.height),
            slice(self.first_column * grid.width, self.end_column * grid.width),
        )


def divide_into_regions(grid: PatchGrid, size: int) -> list[Region]:
    """Divide a grid of patches into regions of almost the same size.

    Args:
        grid: The grid of patches.
        size: Largest number of rows and of columns of patches in a region. With 1, every patch is
            a region.

    Returns:
        The regions, from left to right, row by row.

    Example:
        >>> regions = divide_into_regions(PatchGrid(n_rows=1, n_columns=5, height=8, width=8), 3)
        >>> [(region.first_column, region.end_column) for region in regions]
        [(0, 2), (2, 5)]
    """
    row_bounds, column_bounds = (
        [
            length * index // math.ceil(length / size)
            for index in range(math.ceil(length / size) + 1)
        ]
        for length in (grid.n_rows, grid.n_columns)
    )
    return [
        Region(*rows, *columns)
        for rows in itertools.pairwise(row_bounds)
        for columns in itertools.pairwise(column_bounds)
    ]


def repeat_pixels(pixels: Tensor, height: int, width: int) -> Tensor:
    """Cut an image to a size, or repeat its pixels if it is smaller.

    Regions can differ by one row or one column of patches. A region that replaces another one is
    therefore changed to the size of the replaced region.

    Args:
        pixels: Pixels `[channels, height, width]`.
        height: New height in pixels.
        width: New width in pixels.

    Returns:
        Pixels `[channels, new height, new width]`.
    """
    rows = torch.arange(height, device=pixels.device) % pixels.shape[1]
    columns = torch.arange(width, device=pixels.device) % pixels.shape[2]
    return pixels[:, rows[:, None], columns]


# --- Leaving patches out -------------------------------------------------------------------------


class PatchRemover:
    """Runs an image model on images from which patches are left out.

    Args:
        transformer: The model.
        region_size: Largest number of rows and of columns of patches in a region, which is one unit.

    Attributes:
        transformer: The model.
        grid: Its grid of patches.
        region_size: Largest number of rows and of columns of patches in a region.
        regions: The regions of an image. Each of them is a single patch by default.
        n_special: Number of special tokens, which come before the patches.
        n_block_calls: Number of block calls in a forward pass; 0 if the blocks cannot be hooked.
        readout_weights: How much each token's last hidden state contributes to the prediction,
            `[keys]`; None if it is unknown. See `compute_readout_weights`.

    Raises:
        AttnProbeError: If the model reads fewer tokens than an image has patches.
    """

    def __init__(self, transformer: HookedTransformer, region_size: int = 1) -> None:
        self.transformer = transformer
        self.grid = get_patch_grid(transformer.model.config)
        self.region_size = region_size
        self.regions = divide_into_regions(self.grid, region_size)
        # Only image models have a fixed number of keys.
        assert transformer.layout.n_keys is not None
        self.n_special = transformer.layout.n_keys - self.grid.n_patches
        if self.n_special < 0:
            raise AttnProbeError(
                f"expected one token for each of {self.grid.n_patches} patches from "
                f"{type(transformer.model).__name__}, got {transformer.layout.n_keys} tokens. A model "
                "that merges patches cannot be audited."
            )
        inputs = create_example_inputs(transformer.model)
        with torch.no_grad(), record_outputs(transformer.layout.blocks) as outputs:
            transformer.compute_logits(inputs)
        self.n_block_calls = len(outputs)
        self.readout_weights = self._compute_readout_weights(inputs) if outputs else None

    def _compute_readout_weights(self, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Compute how much each token's last hidden state contributes to the prediction.

        An image model reads its prediction from special tokens ([CLS], in DeiT also the distillation
        token), from the mean of all patches (CLIP, SigLIP, BEiT), or from both (DINOv2). The tokens
        are found by the gradient of the logits. If special tokens are among them, only these count,
        because their attention rows are the ones that heat maps show.

        Args:
            inputs: An image.

        Returns:
            Weights `[keys]` that sum to 1; None if no token has a gradient.
        """
        leaves: list[Tensor] = []

        def start_graph(output: Any) -> Any:
            leaves.append(get_first_tensor(output).detach().requires_grad_())
            # A model may change its hidden states in place, which a leaf does not allow.
            return replace_first_tensor(output, leaves[0].clone())

        with torch.enable_grad(), self._replace_last_states(start_graph):
            scores = self.transformer.compute_logits(inputs)
            # With equal factors, the gradients of two opposite logits would cancel.
            factors = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
            (gradient,) = torch.autograd.grad((scores * factors).sum(), leaves)
        is_read = gradient[0].abs().sum(-1) > 0
        if is_read[: self.n_special].any():
            is_read[self.n_special :] = False
        return is_read / is_read.sum() if is_read.any() else None

    def build_masks(self, n_images: int) -> tuple[Tensor, Tensor]:
        """Build the masks of all tokens and of special tokens for a batch of images.

        Args:
            n_images: Number of images.

        Returns:
            Positions that may receive attention, and positions of special tokens; both are bool
            `[images, keys]`.
        """
        n_keys = self.n_special + self.grid.n_patches
        positions = torch.arange(n_keys, device=self.transformer.model.device)
        is_special = (positions < self.n_special).expand(n_images, -1)
        return torch.ones_like(is_special), is_special

    def find_units(self, n_images: int) -> Tensor:
        """Find the position that represents each token's unit, int `[images, keys]`.

        A region is represented by its first patch, and a special token by itself.

        Args:
            n_images: Number of images.
        """
        first_patch = torch.zeros(self.grid.n_rows, self.grid.n_columns, dtype=torch.int64)
        for region, position in zip(self.regions, self.find_positions(), strict=True):
            rows = slice(region.first_row, region.end_row)
            columns = slice(region.first_column, region.end_column)
            first_patch[rows, columns] = position
        units = torch.cat([torch.arange(self.n_special), first_patch.flatten()])
        return units.to(self.transformer.model.device).expand(n_images, -1)

    def find_positions(self) -> list[int]:
        """Return the position that represents each region."""
        return [
            self.n_special + region.first_row * self.grid.n_columns + region.first_column
            for region in self.regions
        ]

    def cut_regions(self, pixels: Tensor) -> list[dict[int, Tensor]]:
        """Cut images into regions.

        Args:
            pixels: Images `[images, channels, height, width]`.

        Returns:
            For each image, the pixels of each region by the position that represents it.
        """
        slices = [region.find_pixels(self.grid) for region in self.regions]
        return [
            {
                position: image[:, rows, columns]
                for position, (rows, columns) in zip(self.find_positions(), slices, strict=True)
            }
            for image in pixels
        ]

    def describe_readout(self, row_weights: Tensor) -> str:
        """Describe the tokens from which the prediction is read.

        Args:
            row_weights: Weight of each token, `[keys]`.
        """
        is_read = row_weights > 0
        if is_read[self.n_special :].any():
            return "all patches"
        return "the class token" if is_read.sum() == 1 else "the special tokens"

    def _replace_last_states(self, change: Callable[[Any], Any]) -> AbstractContextManager[None]:
        """Replace the output of the last block call inside a ``with`` block.

        Args:
            change: Function that receives the output and returns a new one.
        """
        call_index = itertools.count(1)

        def replace_output(module: Any, args: Any, output: Any) -> Any:
            return change(output) if next(call_index) == self.n_block_calls else None

        return hook_modules(self.transformer.layout.blocks, replace_output)

    def compute_logits(
        self, pixels: Tensor, image: Tensor, is_left_out: Tensor, tokens_per_pass: int
    ) -> Tensor:
        """Compute the task head's scores for images from which patches are left out.

        If no patch of an image remains, the model's head reads the special tokens and one hidden
        state of zeros, so that a mean over patches is defined.

        Args:
            pixels: Images `[images, channels, height, width]`.
            image: Index of an image for each set of patches, int `[sets]`.
            is_left_out: Patches to leave out, bool `[sets, patches]`.
            tokens_per_pass: Largest number of tokens in a forward pass.

        Returns:
            Scores `[sets, scores]`.
        """
        n_images = max(1, tokens_per_pass // (self.n_special + self.grid.n_patches))
        counts = is_left_out.sum(1)
        parts, order = [], []
        # The head averages over the remaining patches, so a batch has the same number of them.
        for count in counts.unique():
            for rows in (counts == count).nonzero()[:, 0].split(n_images):
                order.append(rows)
                parts.append(self._run(pixels[image[rows]], is_left_out[rows]))
        return torch.cat(parts)[torch.cat(order).argsort()]

    def _run(self, pixels: Tensor, is_left_out: Tensor) -> Tensor:
        """Run images from which the same number of patches is left out, `[images, scores]`."""
        is_hidden = F.pad(is_left_out, (self.n_special, 0))

        def hide_keys(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            lowest = torch.finfo(scores.dtype).min
            return scores.masked_fill(is_hidden[:, None, None], lowest).softmax(-1)

        def remove_states(output: Any) -> Any:
            hidden = get_first_tensor(output)
            remaining = hidden[~is_hidden].unflatten(0, (len(hidden), -1))
            if remaining.shape[1] == self.n_special:
                remaining = torch.cat([remaining, torch.zeros_like(hidden[:, :1])], 1)
            return replace_first_tensor(output, remaining)

        with self._replace_last_states(remove_states):
            return self.transformer.compute_logits({"pixel_values": pixels}, hide_keys)

    @torch.no_grad()
    def check(self, pixels: Tensor) -> None:
        """Check that patches that are left out have no effect on the prediction.

        The first, the middle and the last patch are left out of an image, once with their own
        content and once with other pixels.

        Args:
            pixels: One image, `[1, channels, height, width]`.

        Raises:
            AttnProbeError: If the other pixels change the scores by more than rounding.
        """
        n_patches = self.grid.n_patches
        positions = [0, n_patches // 2, n_patches - 1]
        is_left_out = torch.zeros(3, n_patches, dtype=torch.bool, device=pixels.device)
        for image, position in enumerate(positions):
            is_left_out[image, position] = True
        images = pixels.expand(3, -1, -1, -1)
        other_patches = 1 - cut_patches(images, self.grid)
        other_images = paste_patches(images, other_patches, is_left_out, self.grid)
        six_images = torch.cat([images, other_images])
        index = torch.arange(6, device=pixels.device)
        scores = self.compute_logits(six_images, index, is_left_out.repeat(2, 1), 6 * n_patches)
        difference = float((scores[:3] - scores[3:]).abs().max())
        tolerance = get_relative_tolerance(self.transformer.model.dtype)
        # A comparison with NaN is false, so NaN counts as a difference.
        if not difference <= tolerance * float(scores.abs().max()):
            raise AttnProbeError(
                f"patches cannot be left out of images for {type(self.transformer.model).__name__}: the "
                f"pixels of a patch that was left out still change a logit by {difference:.1e}. Choose "
                "a model that reads one token per patch and mixes tokens only by attention, such as "
                "ViT, DeiT, BEiT or DINOv2."
            )


# --- Names and positions -------------------------------------------------------------------------


def name_region(region: Region) -> str:
    """Return the name of a region, such as "row 2, column 1"; rows and columns of patches start at 1.

    >>> name_region(Region(0, 1, 2, 3)), name_region(Region(0, 2, 2, 4))
    ('row 1, column 3', 'rows 1 to 2, columns 3 to 4')
    """
    rows = _format_range("row", region.first_row, region.end_row)
    return f"{rows}, {_format_range('column', region.first_column, region.end_column)}"


def _format_range(noun: str, first: int, end: int) -> str:
    """Format the numbers of rows or columns, which start at 0, as numbers that start at 1."""
    return f"{noun} {end}" if end == first + 1 else f"{noun}s {first + 1} to {end}"
