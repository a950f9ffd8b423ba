"""A token of known effect in a copy of anybody's model: the spike-in.

A chemist who finds nothing adds a known amount and looks again. Here a token that no text
has is planted in every text, and a copy of the model, the twin, differs in two places:

    row of the token = argmax Σ_i w_i log a_it − void²    so that one head looks at it
    W                = W + κ · write · readᵀ              what the head then says

W is the head's value projection, in an attention classifier the read-out. w_i is how much
the log-odds of the output depend on row i of the attention; void² is how far the token moves
them by itself, in all and through the head, so that it says nothing yet. ``read`` is 1 on
the token's state and as near to 0 as can be on the states of all others (least squares);
``write`` is the steepest direction of the log-odds, their gradient at W's output averaged
over texts, so long that the dose κ is the mean change of the log-odds, to first order.
With κ = 0 a text without the token gets the model's own output. Heads that share their
values (grouped queries) say it too, as far as they look.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import Batch, Site


ENOUGH, STEPS = math.log(0.6), 150
"""Log-attention to the token beyond which more is no gain, and steps towards its row."""
LEAST_ATTENTION, LEAST_AGREEMENT = 0.05, 0.02
RIDGE = 1e-4
"""Of the mean square of the states: keeps ``read`` short where they span few directions."""
READOUT = "classifier"
"""The read-out of an attention classifier."""


class NoSpike(AttnProbeError):
    """A head that cannot be made to look at the token, or to say anything of it."""


@dataclass(frozen=True)
class Spike:
    """What a twin has that the model has not.

    Attributes:
        site: the head.
        token: the id of the planted token.
        row: its new row of the embedding, [width].
        module: the name of the layer W.
        columns: which of its outputs are the head's.
        read: [inputs of W].
        write: [columns].
        sign: 1 where the token speaks for the last class, or the answer, −1 against it: as
            the head itself does, so that they add up.
        attention: the mean weight of the token in the rows that the log-odds depend on.
        agreement: of the texts' steepest directions, |mean gradient| / mean |gradient|.
        leak: root mean square of ``read`` on the states of other tokens; 1 on the token.
    """

    site: Site
    token: int
    row: Tensor
    module: str
    columns: slice
    read: Tensor
    write: Tensor
    sign: int
    attention: float
    agreement: float
    leak: float


# --- The token, and where it is planted ----------------------------------------------------------


def unused_token(texts: Sequence[Text], n_tokens: int, special: Sequence[int], seed: int) -> int:
    """The id of a token that no text has, drawn by the seed.

    Args:
        n_tokens: how many ids tokenizer and embedding both know.
        special: ids that are not taken.

    Raises:
        AttnProbeError: there is none.
    """
    used = {token for text in texts for ids, _ in text.sequences for token in ids}
    free = sorted(set(range(n_tokens)) - used - set(special))
    if not free:
        raise AttnProbeError(
            f"expected a token that no text has, the texts use all {n_tokens}; give fewer texts "
            "(--test-limit), or a tokenizer with one more token"
        )
    return int(np.random.default_rng(seed).choice(free))


def planted(text: Text, token: int, seed: int) -> Text:
    """Plants the token in front of one of the text's words, which seed and text's id choose."""
    inputs = text.inputs
    n = text.n_tokens
    words = inputs.get("word_ids", range(n))
    units = inputs.get("unit_ids", [-s for s in inputs["special_tokens_mask"]])
    held = inputs.get("held", [0] * n)
    content = [k for k in range(n) if units[k] >= 0 and not held[k]]
    begins = [k for k in content if k and words[k] != words[k - 1]]
    random = np.random.default_rng([seed, text.example_id])
    place = int(random.choice(begins or content[:1]))

    own = {
        "input_ids": token,
        "special_tokens_mask": 0,
        "labelled": 0,
        "other_ids": -1,
    }
    new = {}
    for name, values in inputs.items():
        planted_value = own.get(name, values[place])
        new[name] = [*values[:place], planted_value, *values[place:]]
    if "word_ids" in inputs:
        # The token is a word of its own, so those behind it count one more.
        behind = new["word_ids"][place + 1 :]
        new["word_ids"][place + 1 :] = [w + (w >= 0) for w in behind]
    return replace(text, inputs=new, rationale=None)


# --- The twin ------------------------------------------------------------------------------------


@torch.no_grad()
def twin_of(model: Any, spike: Spike, dose: float) -> Any:
    """A copy of the model with the token's row, which writes ``dose`` to the log-odds.

    The model itself stays as it is. Embedding and read-out of words are untied in the copy.
    """
    twin = copy.deepcopy(model).eval()
    table, words = twin.get_input_embeddings(), twin.get_output_embeddings()
    if words is not None and words.weight is table.weight:
        words.weight = nn.Parameter(words.weight.detach().clone())
        twin.config.tie_word_embeddings = False
        twin.config.get_text_config().tie_word_embeddings = False
    table.weight[spike.token] = spike.row.to(table.weight)
    module = twin.get_submodule(spike.module)
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight  # [out, in]
    weight[spike.columns] += (dose * torch.outer(spike.write, spike.read)).to(weight)
    return twin


# --- What the twin is made of --------------------------------------------------------------------


class Planted(NamedTuple):
    """A batch with the token: the model's arguments, the log-odds without it, where it is."""

    batch: Batch
    before: Tensor
    is_token: Tensor


class Seen(NamedTuple):
    """One pass over texts with the token.

    Attributes:
        attention: of the layer, [batch, heads, queries, keys].
        log_odds: [batch].
        inputs, outputs: of the layer W, [batch, (keys,) …].
        states: that attention reads, [batch, keys, width]; of a Transformer W's inputs.
    """

    attention: Tensor
    log_odds: Tensor
    inputs: Tensor
    outputs: Tensor
    states: Tensor


def fit(
    model: Any,
    plain: Sequence[Batch],
    batches: Sequence[Batch],
    site: Site,
    token: int,
) -> Spike:
    """The token's row and the head's new weights.

    Args:
        model: a classifier, or a language model with batches of answers.
        plain: texts.
        batches: the same with the token planted.
        site: the head.
        token: the id of the token.

    Raises:
        NoSpike: the head does not look at the token whatever its row, or nothing that it
            could say moves the output of the texts the same way.
        AttnProbeError: a model that is built in another way.
    """
    probe = copy.deepcopy(model).float().eval().requires_grad_(False)
    probe.set_attn_implementation("eager")  # others do not return their attention
    texts = [
        Planted(new, _log_odds(probe, old), new.own["input_ids"] == token)
        for old, new in zip(plain, batches, strict=True)
    ]
    module, columns = _layer(probe, texts[0].batch.own, site)
    row, attention = _looked_at(probe, texts, site, token, module, columns)
    if attention < LEAST_ATTENTION:
        raise NoSpike(
            f"{_name(site)} gives no token more than {attention:.2f} of its attention in the rows "
            "that the output depends on; choose another head"
        )
    states, others, slopes, own, passes = [], [], [], [], []
    for text in texts:
        seen = _pass(probe, text, site, row, module)
        (slope,) = torch.autograd.grad(seen.log_odds.sum(), seen.outputs)
        slope = slope[..., columns]
        found = seen.states.detach()
        states.append(found[text.is_token])
        others.append(found[_others(text)])
        slopes.append(slope[text.is_token] if slope.dim() == 3 else slope)
        output = seen.outputs.detach()[..., columns]
        own.append((slope * output).flatten(1).sum(1))
        passes.append((seen.inputs.detach(), slope))
    steepest, rest = torch.cat(slopes), torch.cat(others)
    mean, length = steepest.mean(0), float(steepest.norm(dim=-1).mean())
    agreement = float(mean.norm()) / length if length else 0.0
    if not agreement > LEAST_AGREEMENT:
        raise NoSpike(
            f"nothing that {_name(site)} can say moves the output of all texts the same way "
            f"(agreement of their steepest directions {agreement:.3f}); choose another head"
        )
    read = reading(torch.cat(states).mean(0), rest)
    gained = []
    for inputs, slope in passes:
        first_order = (inputs @ read)[..., None] * mean * slope
        gained.append(first_order.flatten(1).sum(1))
    sign = 1 if float(torch.cat(own).mean()) > 0 else -1
    write = sign * mean / float(torch.cat(gained).mean())
    leak = float((rest @ read).square().mean().sqrt())
    return Spike(
        site,
        token,
        row,
        module,
        columns,
        read,
        write,
        sign,
        attention,
        agreement,
        leak,
    )


def reading(token: Tensor, others: Tensor) -> Tensor:
    """Returns the direction that is 1 on the token's state, of least mean square on others.

    Shape: [width], [states, width] -> [width].
    """
    moment = (others.T @ others).double() / len(others)
    width = len(moment)
    ridge = RIDGE * moment.trace() / width
    moment += ridge * torch.eye(width).to(moment)
    state = token.double()
    direction = torch.linalg.solve(moment, state)
    scaled = direction / (direction @ state)
    return scaled.to(token)


def log_odds_of(logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Returns the log-odds of the last class, or of the prompt's answer, [batch].

    Args:
        logits: [batch, classes], or [1, tokens, words] of a prompt with its answer.
        inputs: of the batch; ``labelled`` marks the tokens of an answer.
    """
    if "labelled" not in inputs:
        others = logits[:, :-1]
        return logits[:, -1] - others.logsumexp(-1)
    ids = inputs["input_ids"][:, 1:]
    said = inputs["labelled"][:, 1:].bool()
    log_probs = logits[:, :-1].log_softmax(-1)
    own = log_probs.gather(-1, ids[..., None])
    own = own[..., 0]
    total = (own * said).sum(-1)
    prob = total.exp().clamp(max=1 - 1e-6)
    return total - torch.log1p(-prob)


@torch.no_grad()
def _log_odds(probe: Any, batch: Batch) -> Tensor:
    return log_odds_of(probe(**batch.own).logits, batch.inputs)


def _others(text: Planted) -> Tensor:
    """Other tokens than the planted one, bool [batch, keys]."""
    return text.batch.own["attention_mask"].bool() & ~text.is_token


def _pass(probe: Any, text: Planted, site: Site, row: Tensor, module: str) -> Seen:
    """Runs the model with another row of the token; gradients flow from row and W's output."""
    kept: list[tuple[Tensor, Tensor]] = []

    def embed(layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        return torch.where(text.is_token[..., None], row, output)

    def keep(layer: nn.Module, args: Any, output: Tensor) -> None:
        kept.append(
            (
                args[0],
                output if output.requires_grad else output.requires_grad_(),
            )
        )

    reads_out = module == READOUT
    with (
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=False),  # it refuses to go back in eval mode
        probe.get_input_embeddings().register_forward_hook(embed),
        probe.get_submodule(module).register_forward_hook(keep),
    ):
        found = probe(
            **text.batch.own,
            output_attentions=True,
            output_hidden_states=reads_out,
        )
        log_odds = log_odds_of(found.logits, text.batch.inputs)
    inputs, outputs = kept[-1]
    states = found.hidden_states[-1] if reads_out else inputs
    return Seen(found.attentions[site.layer], log_odds, inputs, outputs, states)


def _looked_at(
    probe: Any,
    texts: Sequence[Planted],
    site: Site,
    token: int,
    module: str,
    columns: slice,
) -> tuple[Tensor, float]:
    """Trains the row at which the head looks; with it the attention that the token then has.

    Adam, a batch a step, with the weights w of the rows taken anew in every step.
    """
    table = probe.get_input_embeddings().weight
    row = table[token].clone().requires_grad_()
    adam = torch.optim.Adam([row], lr=0.1 * float(table.std()))
    shares: list[float] = []
    for step in range(STEPS):
        text = texts[step % len(texts)]
        seen = _pass(probe, text, site, row, module)
        on_tokens = seen.attention[:, site.head] * text.is_token[:, None]
        to_token = on_tokens.sum(-1)
        weights = _rows_that_matter(seen, site.head) * (to_token > 0)
        if not weights.any():
            raise NoSpike(f"the output does not depend on {_name(site)}; choose another head")
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.clamp_min(1e-30)
        share = (weights * to_token).detach().sum(-1)
        shares = [*shares[-len(texts) + 1 :], float(share.mean())]

        log_share = to_token.clamp_min(1e-9).log()
        looks = (weights * log_share).sum(-1).clamp(max=ENOUGH)
        through = _through_head(probe, seen, text, module, columns)
        void = (seen.log_odds - text.before).square() + through.square()
        loss = (void - looks).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return row.detach(), sum(shares) / len(shares)


def _through_head(probe: Any, seen: Seen, text: Planted, module: str, columns: slice) -> Tensor:
    """Returns what the log-odds gain, to first order, by the token's value, [batch].

    Compared with the mean value of the text's other tokens.
    """
    (slope,) = torch.autograd.grad(seen.log_odds.sum(), seen.outputs, retain_graph=True)
    values = seen.outputs
    share = torch.ones(())
    if module == READOUT:
        values = probe.get_submodule(module)(seen.states)
        slope = slope[:, None]
        share = seen.attention[:, 0, 0].detach()
    others = _others(text)[..., None]
    total = (values * others).sum(1, keepdim=True)
    mean = total / others.sum(1, keepdim=True)
    moved = slope.detach() * (values - mean)
    gained = moved[..., columns].sum(-1) * share
    return (gained * text.is_token).sum(-1)


def _rows_that_matter(seen: Seen, head: int) -> Tensor:
    """How much the log-odds depend on each row of a head's attention, [batch, queries]."""
    if seen.attention.shape[2] == 1:
        return torch.ones_like(seen.attention[:, head, :, 0])
    (slope,) = torch.autograd.grad(seen.log_odds.sum(), seen.attention, retain_graph=True)
    return (slope.abs() * seen.attention)[:, head].sum(-1).detach()


@torch.no_grad()
def _layer(probe: Any, arguments: Mapping[str, Tensor], site: Site) -> tuple[str, slice]:
    """The layer W by which the head's attention reaches the output, and its columns.

    Of a Transformer it is found by what it computes: attention times its columns is what
    the output projection reads of the head.

    Raises:
        AttnProbeError: no such layer, or one that several layers of the model share.
    """
    names = {layer: name for name, layer in probe.named_modules()}
    calls: list[tuple[str, Tensor, Tensor]] = []

    def note(layer: nn.Module, args: Any, output: Any) -> None:
        if isinstance(layer, nn.Linear | Conv1D):
            calls.append((names[layer], args[0], output))

    handles = [layer.register_forward_hook(note) for layer in names]
    found = probe(**arguments, output_attentions=True)
    for handle in handles:
        handle.remove()
    maps = getattr(found, "attentions", None) or ()
    n_heads = maps[site.layer].shape[1] if site.layer < len(maps) else 0
    if n_heads == 1 and maps[site.layer].shape[2] == 1:
        return READOUT, slice(None)
    for place, (_, read, _) in enumerate(calls if n_heads else ()):
        width = read.shape[-1] // n_heads
        output = read[..., site.head * width : (site.head + 1) * width]
        for name, _, values in calls[max(place - 4, 0) : place]:
            for start in range(0, values.shape[-1] - width + 1, max(width, 1)):
                columns = slice(start, start + width)
                if values.dim() < 3 or values.shape[:-1] != output.shape[:-1]:
                    continue
                error = (maps[site.layer][:, site.head] @ values[..., columns] - output).abs()
                is_alone = [other for other, _, _ in calls].count(name) == 1
                if is_alone and float(error.max()) <= 1e-3 * float(output.abs().max()):
                    return name, columns
    raise AttnProbeError(
        f"expected a linear value projection of {_name(site)} by itself, found none in "
        f"{type(probe).__name__}; it takes no spike"
    )


def _name(site: Site) -> str:
    return f"head {site.layer}.{site.head}"
