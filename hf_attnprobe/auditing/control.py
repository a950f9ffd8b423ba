"""The yardstick of a model that has learned nothing.

A test that gives a model without its training the same number has measured the
architecture, not what the model learned (Adebayo et al. 2018, "Sanity Checks for
Saliency Maps", Section 3). So the same tests run on a control:

randomised: the entries of every weight tensor are shuffled, so that their sizes stay. In
            attention classifiers the query is then scaled until the mean largest weight
            is the model's own: gradients and leave-one-out have the attention weight
            as a factor, so peaked attention agrees with them whatever it learned.
untrained:  a model of the same configuration, freshly initialised.

From the top down: with a number of layers, only these last blocks and what stands above
them lose their training (the paper's cascading randomisation, one step per audit).
"""

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_attnprobe.attention_model import AttentionModelBase, Batch
from hf_attnprobe.auditing.options import AuditOptions, Control
from hf_attnprobe.errors import AttnProbeError


def has_control(control: Control, adapter: AttentionModelBase) -> bool:
    """Whether the audit has a control; by itself only where it is cheap."""
    if control == "auto":
        return len(adapter.sites()) == 1
    return control != "none"


def control_of(
    model: nn.Module, control: Control, *, n_layers: int | None, seed: int
) -> nn.Module:
    """A copy of a model without what it has learned.

    Args:
        model: is left as it is.
        control: "untrained"; all others are randomised.
        n_layers: blocks from the top that lose their training; None: the whole model.
        seed: of the shuffles or the initialisation.

    Raises:
        AttnProbeError: a model that cannot be initialised anew, or without so many
            blocks.
    """
    fresh = copy.deepcopy(model)
    parameters = dict(fresh.named_parameters())
    if n_layers is not None:
        parameters = _from_the_top(fresh, n_layers)
    if control == "untrained":
        initial = dict(_initialised(model, seed).named_parameters())
    padding = _padding_rows(fresh)
    with torch.no_grad():
        for place, (name, parameter) in enumerate(parameters.items()):
            if control == "untrained":
                parameter.copy_(initial[name])
            else:
                _shuffle(parameter, seed + place, padding.get(id(parameter)))
    return fresh


def finish(
    control: AttentionModelBase,
    model: AttentionModelBase,
    batch: Batch,
    options: AuditOptions,
) -> str:
    """Makes the control's attention as peaked as the model's; what it is, in words.

    Args:
        batch: texts on which the two attend equally sharply then.
    """
    layers, where = options.control_layers, ""
    if layers is not None:
        blocks = {0: "", 1: "the last layer and "}
        last = blocks.get(layers, f"the last {layers} layers and ")
        where = f" of {last}what stands above"
    if options.control == "untrained":
        return f"weights{where} freshly initialised"
    kind = f"weights{where} shuffled"
    if sharpen_like(control, model, batch):
        kind += ", attention as peaked as the model's"
    return kind


@torch.no_grad()
def sharpen_like(
    control: AttentionModelBase, model: AttentionModelBase, batch: Batch
) -> bool:
    """Scales the query of a control until its attention is as peaked as the model's.

    By the mean over the texts of the largest weight, within a factor of 2^±12.

    Returns:
        Whether there is a query to scale: attention classifiers have one.
    """
    queries = _queries(control.model)
    if not queries:
        return False
    wanted, original = _peakedness(model, batch), [query.clone() for query in queries]
    low, high = -12.0, 12.0
    for _ in range(20):
        middle = (low + high) / 2
        for query, first in zip(queries, original, strict=True):
            query.copy_(first * 2**middle)
        if _peakedness(control, batch) < wanted:
            low = middle
        else:
            high = middle
    return True


def _queries(model: nn.Module) -> list[Tensor]:
    """The vectors whose product with a state is a score of attention."""
    found = [getattr(module, "query", None) for module in model.modules()]
    linear = [query for query in found if isinstance(query, nn.Linear)]
    return [query.weight for query in linear if query.out_features == 1]


def _peakedness(model: AttentionModelBase, batch: Batch) -> float:
    """The mean over texts of the largest weight."""
    observation = model.observe(batch)
    return float(observation.read(model.sites()[0]).amax(-1).mean())


def _padding_rows(model: nn.Module) -> dict[int, int]:
    """The rows of embeddings that stand for padding: models keep them at 0."""
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }


def _shuffle(parameter: nn.Parameter, seed: int, kept_row: int | None) -> None:
    """Shuffles the entries in place, all but those of one row."""
    free = torch.ones(parameter.shape, dtype=torch.bool)
    if kept_row is not None:
        free[kept_row] = False
    free = free.to(parameter.device)
    values = parameter[free]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(values), generator=generator)
    parameter[free] = values[order.to(values.device)]


def _initialised(model: nn.Module, seed: int) -> nn.Module:
    """A model of the same class and configuration, as it is before training."""
    if not isinstance(model, PreTrainedModel):
        raise AttnProbeError(
            "expected a Transformers model for --control untrained, got "
            f"{type(model).__name__}; use --control randomised"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return type(model)(copy.deepcopy(model.config))


def _from_the_top(model: nn.Module, n_layers: int) -> dict[str, nn.Parameter]:
    """The parameters of the last blocks and of everything declared behind them."""
    blocks = _blocks(model)
    if n_layers > len(blocks):
        raise AttnProbeError(
            f"expected at most {len(blocks)} --control-layers, which the model has, got "
            f"{n_layers}"
        )
    kept = {id(p) for b in blocks[: len(blocks) - n_layers] for p in b.parameters()}
    in_blocks = {id(p) for p in blocks.parameters()}
    places = enumerate(map(id, model.parameters()))
    first = next(place for place, key in places if key in in_blocks)
    for place, key in enumerate(map(id, model.parameters())):
        if key in kept:
            first = place + 1
    return dict(list(model.named_parameters())[first:])


def _blocks(model: nn.Module) -> nn.ModuleList:
    """The longest list of modules: the stack of a Transformer."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise AttnProbeError(
            f"expected a Transformer for --control-layers, {type(model).__name__} has "
            "no list of blocks; leave it out"
        )
    return max(lists, key=len)
