"""A model whose weights are rounded or pruned, as versions of it that are served are, or a twin of it
that has learned nothing.

What is computed with them is not rounded: this is what the weights alone change. Rounding is to
the nearest multiple of a step, without data ("RTN", the baseline of Frantar et al. 2023, GPTQ,
Section 5):

    step = max |w| / (2^(bits − 1) − 1),   w' = step · round(w / step)

with one step for every output channel in 8 bits (Dettmers et al. 2022, LLM.int8(), Section 2.1)
and for every 128 inputs of one in 4 (GPTQ, Section 5). Pruning sets to 0 the half of every matrix
that is smallest in magnitude (Han et al. 2015, Section 3).

A twin says what the architecture alone gives. Its weights are the model's own, the entries of every
tensor shuffled, so that their sizes stay (Adebayo et al. 2018, "Sanity Checks for Saliency Maps",
Section 3), or those of the same configuration before any training.
"""

import copy
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hf_attnprobe.core.errors import AttnProbeError


GROUP = 128
"""Inputs of an output channel that share a step in 4 bits."""


def rounded(weight: Tensor, bits: int, group: int | None = None) -> Tensor:
    """A matrix rounded to steps.

    >>> rounded(torch.tensor([[-1.0, 0.1, 0.5]]), bits=2)
    tensor([[-1.,  0.,  0.]])

    Args:
        weight: [outputs, inputs].
        bits: of a weight; there are 2^bits − 1 values, 0 among them.
        group: inputs that share a step; None for all of an output. The last group is shorter.
    """
    largest = 2 ** (bits - 1) - 1

    def nearest(part: Tensor) -> Tensor:
        step = part.abs().amax(1, keepdim=True) / largest
        return torch.where(step > 0, (part / step).round() * step, part)

    parts = weight.float().split(group or weight.shape[1], dim=1)
    return torch.cat([nearest(part) for part in parts], dim=1).to(weight.dtype)


def pruned(weight: Tensor) -> Tensor:
    """A matrix without the half of its entries that is smallest in magnitude.

    >>> pruned(torch.tensor([[-1.0, 0.1], [0.2, 0.5]]))
    tensor([[-1.0000,  0.0000],
            [ 0.0000,  0.5000]])
    """
    n_removed = weight.numel() // 2
    smallest = weight.abs().flatten().argsort(stable=True)[:n_removed]
    kept = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
    kept[smallest] = False
    return torch.where(kept.view_as(weight), weight, 0)


CHANGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "bfloat16": lambda weight: weight.to(torch.bfloat16).to(weight.dtype),
    "float16": lambda weight: weight.to(torch.float16).to(weight.dtype),
    "int8": lambda weight: rounded(weight, 8),
    "int4": lambda weight: rounded(weight, 4, GROUP),
    "pruned": pruned,
}
"""What becomes of a matrix [outputs, inputs], by the name of the version."""


LAYERS = (nn.Linear, Conv1D, nn.Conv1d, nn.Conv2d, nn.RNNBase)
"""Whose matrices are changed."""


@torch.no_grad()
def change_weights(model: nn.Module, how: str, seed: int = 0) -> None:
    """Changes a model's weights in place.

    Args:
        model: an output layer that shares the embeddings' weights keeps them when matrices are
            rounded or pruned.
        how: of :data:`CHANGES` or :data:`TWINS`.
        seed: of the twins.

    Raises:
        AttnProbeError: most weights are in layers of other kinds, such as stacked experts, or the
            model cannot be initialised anew.
    """
    if how in TWINS:
        TWINS[how](model, seed)
    else:
        _change_matrices(model, CHANGES[how])


def _change_matrices(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Rounds or prunes the matrices of linear, convolutional and recurrent layers."""
    matrices = list(_matrices(model))
    own = {id(weight) for weight, _ in matrices}
    elsewhere = sum(p.numel() for p in model.parameters() if p.ndim > 2 and id(p) not in own)
    if elsewhere >= sum(weight.numel() for weight, _ in matrices):
        raise AttnProbeError(
            f"expected a model of linear layers to change the weights of, most of those of "
            f"{type(model).__name__} are elsewhere; save the changed model, and give its folder"
        )
    for weight, inputs_first in matrices:
        matrix = weight.T if inputs_first else weight.flatten(1)
        changed = change(matrix)
        weight.copy_(changed.T if inputs_first else changed.view_as(weight))


def _matrices(model: nn.Module) -> Iterator[tuple[Tensor, bool]]:
    """Every matrix once, and whether its inputs are its rows, as in GPT-2."""
    seen = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    for module in (module for module in model.modules() if isinstance(module, LAYERS)):
        for parameter in module.parameters(recurse=False):
            if parameter.ndim < 2 or id(parameter) in seen or not parameter.is_floating_point():
                continue
            seen.add(id(parameter))
            yield parameter, isinstance(module, Conv1D)


# --- Twins without what the model has learned -----------------------------------------------------


def _randomise(model: nn.Module, seed: int) -> None:
    """Shuffles the entries of every weight; embeddings of padding stay, which models keep at 0."""
    padding = {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    for place, parameter in enumerate(model.parameters()):
        _shuffle(parameter, seed + place, padding.get(id(parameter)))


def _shuffle(parameter: nn.Parameter, seed: int, kept_row: int | None) -> None:
    """Shuffles the entries in place, except those of one row."""
    free = torch.ones(parameter.shape, dtype=torch.bool)
    if kept_row is not None:
        free[kept_row] = False
    free = free.to(parameter.device)
    values = parameter[free]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(values), generator=generator)
    parameter[free] = values[order.to(values.device)]


def _initialise(model: nn.Module, seed: int) -> None:
    """Takes the weights of a model of the same class and configuration before training."""
    if not isinstance(model, PreTrainedModel):
        raise AttnProbeError(
            f"expected a Transformers model for --weights untrained, got {type(model).__name__}; "
            "use --weights randomised"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = type(model)(copy.deepcopy(model.config))
    initial = dict(fresh.named_parameters())
    own = dict(model.named_parameters())
    if others := own.keys() ^ initial.keys():
        raise AttnProbeError(
            f"expected the weights that the configuration of {type(model).__name__} says for "
            f"--weights untrained, {min(others)} is another one; use --weights randomised"
        )
    for name, parameter in own.items():
        parameter.copy_(initial[name])


TWINS: Mapping[str, Callable[[nn.Module, int], None]] = {
    "randomised": _randomise,
    "untrained": _initialise,
}
"""What makes a model a twin of it that has learned nothing, from a seed, by name."""
