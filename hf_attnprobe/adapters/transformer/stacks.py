"""Stacks that are not one attention per layer: hybrids, and layers with two attentions."""

import re
from collections.abc import Sequence

from torch import nn

from hf_attnprobe.adapters.transformer.readout import Layer


PLACE = re.compile(r"(.*?)\.(\d+)(?:\.|$)")
"""The list of a model's layers, and the number of one of them."""
MOST = 8  # numbers that are named


def stack_notes(model: nn.Module, layers: Sequence[Layer], names: Sequence[str]) -> list[str]:
    """What a reader must know of layers that are not numbered as the model's own.

    Args:
        model: with the modules that ``layers`` name.
        layers: those with softmax attention, in the order of their calls.
        names: of the layers, as reports have them.

    Returns:
        A sentence where layers have no softmax attention, as in hybrids (MiniMax,
        Jamba), and one where a layer has several (DiffLlama, LiLT).
    """
    seen: dict[str, set[int]] = {}
    for layer in layers:
        found = PLACE.match(layer.module)
        if found is not None:
            seen.setdefault(found[1], set()).add(int(found[2]))
    notes = _doubled(layers, names)
    for prefix, numbers in seen.items():
        n_layers = len(list(model.get_submodule(prefix).children()))
        notes += _unseen(prefix, n_layers, numbers)
    return notes


def _unseen(prefix: str, n_layers: int, seen: set[int]) -> list[str]:
    unseen = sorted(set(range(n_layers)) - seen)
    if not unseen:
        return []
    return [
        f"Layers: {len(unseen)} of {n_layers} in {prefix} have no softmax attention "
        f"({_some(unseen)}) and are not tested; of them nothing is said here."
    ]


def _doubled(layers: Sequence[Layer], names: Sequence[str]) -> list[str]:
    """Attentions of one call of one module: ALBERT's layers are calls of their own."""
    calls: dict[tuple[str, int], list[str]] = {}
    for layer, name in zip(layers, names, strict=True):
        calls.setdefault((layer.module, layer.n_skipped), []).append(name)
    several = [(module, named) for (module, _), named in calls.items() if named[1:]]
    return [
        f"Layers: {module} has {len(named)} attentions, counted as layers of their own: "
        f"{', '.join(named)}, in the order of their calls; so do all layers like it."
        for module, named in several[:1]
    ]


def _some(numbers: Sequence[int]) -> str:
    more = ", …" if len(numbers) > MOST else ""
    return ", ".join(map(str, numbers[:MOST])) + more
