"""Change a model's weights: round, prune, shuffle or reinitialise them.

Rounded and pruned weights isolate the effect of compression, since the model still computes in full
precision. Weights are rounded to the nearest multiple of a step, without calibration data ("RTN",
the baseline in Frantar et al. 2023, GPTQ, Section 5):

    step = max |w| / (2^(bits − 1) − 1),   w' = step · round(w / step)

In 8 bits there is one step per output channel (Dettmers et al. 2022, LLM.int8(), Section 2.1). In 4
bits there is one step per output channel and group of 128 inputs (GPTQ, Section 5). Pruning sets
the smaller half of every matrix, by magnitude, to 0 (Han et al. 2015, Section 3).

A randomised copy isolates the effect of the architecture. Either the entries in every weight tensor
are shuffled, which keeps their distribution (Adebayo et al. 2018, "Sanity Checks for Saliency
Maps", Section 3), or the model is initialised anew from its configuration.
"""

import copy
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from hf_attnprobe.core.errors import AttnProbeError


INT4_GROUP_SIZE = 128
"""Number of consecutive weights that share one scale when weights are rounded to 4 bits."""


def round_to_steps(weight: Tensor, bits: int, group_size: int | None = None) -> Tensor:
    """Round the weights of a matrix to a few values, as in quantisation to a few bits.

    All values are multiples of a step. For example, with 2 bits they are −step, 0 and step. The
    step is chosen such that the weight with the largest magnitude is not changed.

    Args:
        weight: matrix, [outputs, inputs].
        bits: number of bits per weight. There are at most 2^bits − 1 different values per step.
        group_size: number of consecutive inputs that share a step; None for all inputs. The last
            group may be smaller.

    Returns:
        The rounded matrix, with the data type of ``weight``.

    >>> round_to_steps(torch.tensor([[-1.0, 0.1, 0.5]]), bits=2)
    tensor([[-1.,  0.,  0.]])
    """
    max_multiple = 2 ** (bits - 1) - 1

    def round_group(group: Tensor) -> Tensor:
        step = group.abs().amax(1, keepdim=True) / max_multiple
        return torch.where(step > 0, (group / step).round() * step, group)

    groups = weight.float().split(group_size or weight.shape[1], dim=1)
    return torch.cat([round_group(group) for group in groups], dim=1).to(weight.dtype)


def prune_half(weight: Tensor) -> Tensor:
    """Set half of the entries in a matrix to 0: those with the smallest magnitudes.

    Args:
        weight: matrix, [outputs, inputs].

    Returns:
        The pruned matrix.

    >>> prune_half(torch.tensor([[-1.0, 0.1], [0.2, 0.5]]))
    tensor([[-1.0000,  0.0000],
            [ 0.0000,  0.5000]])
    """
    n_pruned = weight.numel() // 2
    pruned_indices = weight.abs().flatten().argsort(stable=True)[:n_pruned]
    keep_mask = torch.ones(weight.numel(), dtype=torch.bool, device=weight.device)
    keep_mask[pruned_indices] = False
    return torch.where(keep_mask.view_as(weight), weight, 0)


WEIGHT_CHANGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "bfloat16": lambda weight: weight.to(torch.bfloat16).to(weight.dtype),
    "float16": lambda weight: weight.to(torch.float16).to(weight.dtype),
    "int8": lambda weight: round_to_steps(weight, 8),
    "int4": lambda weight: round_to_steps(weight, 4, INT4_GROUP_SIZE),
    "pruned": prune_half,
}
"""Maps each value of ``--weights`` to the function that rounds or prunes a weight matrix.

The matrices have the shape [outputs, inputs].
"""


CHANGEABLE_LAYERS = (nn.Linear, Conv1D, nn.Conv1d, nn.Conv2d, nn.RNNBase)
"""Classes of layers whose weights can be changed with ``--weights`` (rounded or pruned)."""


@torch.no_grad()
def change_weights(model: nn.Module, change: str, seed: int = 0) -> None:
    """Change a model's weights in place.

    Embeddings are not rounded or pruned, and neither is an output layer that shares its weights
    with them.

    Args:
        model: the model.
        change: a key in ``WEIGHT_CHANGES`` or ``RANDOMISERS``.
        seed: random seed for ``RANDOMISERS``.

    Raises:
        AttnProbeError: if most weights are not in ``CHANGEABLE_LAYERS`` (as in stacked experts), or
            the model cannot be initialised anew.
    """
    if change in RANDOMISERS:
        RANDOMISERS[change](model, seed)
    else:
        _change_matrices(model, WEIGHT_CHANGES[change])


def _change_matrices(model: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Apply a function to the matrices in all linear, convolutional and recurrent layers."""
    matrices = list(_iterate_matrices(model))
    matrix_ids = {id(weight) for weight, _ in matrices}
    # Count the weights of larger tensors in other layers, such as stacked experts.
    n_other_weights = sum(
        parameter.numel()
        for parameter in model.parameters()
        if parameter.ndim > 2 and id(parameter) not in matrix_ids
    )
    if n_other_weights >= sum(weight.numel() for weight, _ in matrices):
        raise AttnProbeError(
            "only weights in linear, convolutional and recurrent layers can be changed, but most "
            f"weights of {type(model).__name__} are in other layers. Change the weights yourself, "
            "and audit the changed model."
        )
    for weight, inputs_first in matrices:
        matrix = weight.T if inputs_first else weight.flatten(1)
        changed_matrix = change(matrix)
        weight.copy_(changed_matrix.T if inputs_first else changed_matrix.view_as(weight))


def _iterate_matrices(model: nn.Module) -> Iterator[tuple[Tensor, bool]]:
    """Yield each weight matrix of a model once, except embeddings.

    Yields:
        The matrix, and whether its shape is [inputs, outputs], as in GPT-2. Other matrices have
        the shape [outputs, inputs].
    """
    # Embeddings count as visited, so neither they nor output layers that share their weights are
    # yielded.
    visited_ids = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    for module in model.modules():
        if not isinstance(module, CHANGEABLE_LAYERS):
            continue
        for parameter in module.parameters(recurse=False):
            is_matrix = parameter.ndim >= 2 and parameter.is_floating_point()
            if is_matrix and id(parameter) not in visited_ids:
                visited_ids.add(id(parameter))
                yield parameter, isinstance(module, Conv1D)


# --- Randomised copies, which contain nothing that the model has learned -------------------------


def _shuffle_weights(model: nn.Module, seed: int) -> None:
    """Shuffle the entries within every weight tensor of a model.

    The embedding of the padding token is not shuffled, so it remains 0.
    """
    padding_rows = {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    for index, parameter in enumerate(model.parameters()):
        _shuffle_parameter(parameter, seed + index, padding_rows.get(id(parameter)))


def _shuffle_parameter(parameter: nn.Parameter, seed: int, fixed_row: int | None) -> None:
    """Shuffle the entries of a weight tensor in place.

    Args:
        parameter: the weight tensor.
        seed: random seed.
        fixed_row: index of a row that is not shuffled, or None.
    """
    is_shuffled = torch.ones(parameter.shape, dtype=torch.bool)
    if fixed_row is not None:
        is_shuffled[fixed_row] = False
    is_shuffled = is_shuffled.to(parameter.device)
    values = parameter[is_shuffled]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(values), generator=generator)
    parameter[is_shuffled] = values[order.to(values.device)]


def _reinitialise(model: nn.Module, seed: int) -> None:
    """Replace the weights of a model with those of a new, untrained model.

    The new model has the same class and configuration.
    """
    if not isinstance(model, PreTrainedModel):
        raise AttnProbeError(
            f"--weights 'untrained' needs a Transformers model, got {type(model).__name__}; use "
            "--weights 'randomised'"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained_model = type(model)(copy.deepcopy(model.config))
    untrained_weights = dict(untrained_model.named_parameters())
    weights = dict(model.named_parameters())
    differing_names = weights.keys() ^ untrained_weights.keys()
    if differing_names:
        raise AttnProbeError(
            "--weights 'untrained' creates a new model from the configuration, but only one of both "
            f"models has the weights {min(differing_names)!r}. Use --weights 'randomised'."
        )
    for name, parameter in weights.items():
        parameter.copy_(untrained_weights[name])


RANDOMISERS: Mapping[str, Callable[[nn.Module, int], None]] = {
    "randomised": _shuffle_weights,
    "untrained": _reinitialise,
}
"""Maps each value of ``--weights`` to the function that randomises a model's weights.

The functions expect the model and a seed.
"""
