"""Planting of a token with a known effect in a copy of any model.

A chemist who detects nothing adds a known amount of the substance and measures again. In the same
way, this module inserts a token that occurs in no text into every text, and modifies a copy of the
model in two places, so that one attention head attends to the token and writes an effect of known
size to the output:

    embedding of the token = argmax Σ_i w_i log a_it − baseline²    one head attends to the token
    W                      = W + κ · write · readᵀ                  the head's output depends on it

W is the value projection of the head; in an attention classifier it is the output layer. The first
line has these terms:

- a_it is the attention of row i to the token t.
- w_i is the sensitivity of the log-odds to row i of the attention.
- baseline² is the squared change of the log-odds that the token causes at κ = 0, in total and
  through the value of the head. It is penalised so that the token has no effect of its own.

The second line has these terms:

- ``read`` is the direction whose product with the token's state is 1, and with the states of all
  other tokens as close to 0 as possible (least squares).
- ``write`` is the direction of steepest ascent of the log-odds: their gradient with respect to W's
  output, averaged over the texts. It is scaled so that the dose κ equals the mean change of the
  log-odds, to first order.

At κ = 0, a text without the token has exactly the output of the original model. If several heads
share their values (grouped-query attention), the effect passes through all of them, in proportion
to their attention to the token.
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


LOG_ATTENTION_GOAL = math.log(0.6)
"""Logarithm of the attention to the token above which the fit stops increasing it."""
N_FITTING_STEPS = 150
"""Number of optimizer steps in the fit of the token's embedding."""
MIN_ATTENTION = 0.05
"""Mean attention that a head must be able to give the token for an effect to be planted."""
MIN_AGREEMENT = 0.02
"""Smallest agreement of the texts' gradients, see :attr:`PlantedEffect.agreement`."""
RIDGE = 1e-4
"""Ridge penalty of the least-squares fit of ``read``, relative to the mean square of the states."""
OUTPUT_LAYER = "classifier"
"""Name of the output layer of an attention classifier."""


class CannotPlantEffectError(AttnProbeError):
    """Error for a head that cannot attend to the token or cannot change the output."""


@dataclass(frozen=True)
class PlantedEffect:
    """The differences between a modified copy and its model.

    Attributes:
        site: The head.
        token: The planted token's id.
        row: The new embedding of the token, [width].
        module: The name that layer W has in the model.
        columns: The outputs of W that belong to the head.
        read: The direction that reads the token's state, [inputs of W].
        write: The direction that W writes to, [columns].
        sign: 1 if the token increases the log-odds of the last class (or of the answer), −1 if it
            decreases them. The sign is that of the head's own contribution, so that the two add up.
        attention: The mean attention to the token, in the rows that the log-odds depend on.
        agreement: |mean gradient| / mean |gradient| over the texts, in [0, 1]. At 1, a single
            direction increases the log-odds of every text.
        leak: The root mean square of ``read`` on the states of other tokens; it is 1 on the token.
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


# --- The token and its position ------------------------------------------------------------------


def find_unused_token(
    texts: Sequence[Text], n_tokens: int, special: Sequence[int], seed: int
) -> int:
    """Draw the id of a token that occurs in no text.

    Args:
        texts: The texts of an audit.
        n_tokens: Number of ids that both the tokenizer and the embedding have.
        special: Ids of special tokens, which are never drawn.
        seed: Seed of the draw.

    Raises:
        AttnProbeError: If every token occurs in some text.
    """
    tokens_in_texts = {token for text in texts for ids, _ in text.sequences for token in ids}
    unused_tokens = sorted(set(range(n_tokens)) - tokens_in_texts - set(special))
    if not unused_tokens:
        raise AttnProbeError(
            f"expected a token that occurs in no text, but the texts use all {n_tokens} tokens; "
            "use fewer texts (--test-limit), or add a token to the tokenizer"
        )
    return int(np.random.default_rng(seed).choice(unused_tokens))


def insert_token(text: Text, token: int, seed: int) -> Text:
    """Return a copy of the text with the token inserted in front of a random word.

    Args:
        text: The text, which is not modified.
        token: The token id.
        seed: Seed that chooses the word, together with the id of the text.
    """
    inputs = text.inputs
    n = text.n_tokens
    words = inputs.get("word_ids", range(n))
    units = inputs.get("unit_ids", [-s for s in inputs["special_tokens_mask"]])
    is_fixed = inputs.get("held", [0] * n)
    content = [k for k in range(n) if units[k] >= 0 and not is_fixed[k]]
    word_starts = [k for k in content if k and words[k] != words[k - 1]]
    random = np.random.default_rng([seed, text.example_id])
    position = int(random.choice(word_starts or content[:1]))

    # Any other column repeats its value at the position of the word.
    values_of_token = {
        "input_ids": token,
        "special_tokens_mask": 0,
        "labelled": 0,
        "other_ids": -1,
    }
    new_inputs = {}
    for name, values in inputs.items():
        inserted_value = values_of_token.get(name, values[position])
        new_inputs[name] = [*values[:position], inserted_value, *values[position:]]
    if "word_ids" in inputs:
        # The token is a word of its own, so the numbers of all later words increase by one.
        later_words = new_inputs["word_ids"][position + 1 :]
        new_inputs["word_ids"][position + 1 :] = [w + (w >= 0) for w in later_words]
    return replace(text, inputs=new_inputs, rationale=None)


# --- The modified copy ---------------------------------------------------------------------------


@torch.no_grad()
def make_modified_copy(model: Any, effect: PlantedEffect, dose: float) -> Any:
    """Return a copy of the model in which the token adds ``dose`` to the log-odds.

    If the model shares its embedding with its output layer, the copy has separate weights.

    Args:
        model: The model, which is not modified.
        effect: The token's embedding and the directions that are added to W.
        dose: Mean change of the log-odds, to first order; 0 leaves W as it is.
    """
    modified = copy.deepcopy(model).eval()
    embedding, output_layer = modified.get_input_embeddings(), modified.get_output_embeddings()
    if output_layer is not None and output_layer.weight is embedding.weight:
        output_layer.weight = nn.Parameter(output_layer.weight.detach().clone())
        modified.config.tie_word_embeddings = False
        modified.config.get_text_config().tie_word_embeddings = False
    embedding.weight[effect.token] = effect.row.to(embedding.weight)
    module = modified.get_submodule(effect.module)
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight  # [out, in]
    weight[effect.columns] += (dose * torch.outer(effect.write, effect.read)).to(weight)
    return modified


# --- The fit of an effect ------------------------------------------------------------------------


class BatchWithToken(NamedTuple):
    """A batch of texts that contain the planted token.

    Attributes:
        batch: The arguments of the model.
        original_log_odds: The log-odds of the same texts without the token, [batch].
        is_token: The position of the token, bool [batch, keys].
    """

    batch: Batch
    original_log_odds: Tensor
    is_token: Tensor


class RecordedPass(NamedTuple):
    """Values of a forward pass over texts with the token.

    Attributes:
        attention: The attention of the layer, [batch, heads, queries, keys].
        log_odds: The log-odds of the last class or the answer, [batch].
        inputs: The inputs of the layer W, [batch, (keys,) …].
        outputs: The outputs of the layer W, [batch, (keys,) …].
        states: The states that attention averages, [batch, keys, width]. In a Transformer these
            are the inputs of W.
    """

    attention: Tensor
    log_odds: Tensor
    inputs: Tensor
    outputs: Tensor
    states: Tensor


def fit_planted_effect(
    model: Any,
    plain: Sequence[Batch],
    batches: Sequence[Batch],
    site: Site,
    token: int,
) -> PlantedEffect:
    """Fit the token's embedding and the directions that are added to the head's weights.

    Args:
        model: A classifier, or a language model with batches of answers.
        plain: Batches of texts.
        batches: The same batches with the token in every text.
        site: The head.
        token: The token id.

    Raises:
        CannotPlantEffect: If the head does not attend to the token with any embedding, or if no
            direction of its output changes the log-odds of the texts in the same way.
        AttnProbeError: If the model has no separate linear value projection for the head.
    """
    probe = copy.deepcopy(model).float().eval().requires_grad_(False)
    # Other attention implementations do not return their weights.
    probe.set_attn_implementation("eager")
    texts = []
    for old, new in zip(plain, batches, strict=True):
        is_token = new.tokenizer_output["input_ids"] == token
        texts.append(BatchWithToken(new, _run_log_odds(probe, old), is_token))
    module, columns = _find_value_layer(probe, texts[0].batch.tokenizer_output, site)
    row, attention = _fit_attended_row(probe, texts, site, token, module, columns)
    if attention < MIN_ATTENTION:
        raise CannotPlantEffectError(
            f"{_name_head(site)} gives no token more than {attention:.2f} of its attention in the "
            "rows that the output depends on; choose another head"
        )

    token_states, other_states, token_slopes, contributions, passes = [], [], [], [], []
    for text in texts:
        recorded = _run_with_row(probe, text, site, row, module)
        (slope,) = torch.autograd.grad(recorded.log_odds.sum(), recorded.outputs)
        slope = slope[..., columns]
        states = recorded.states.detach()
        token_states.append(states[text.is_token])
        other_states.append(states[_mask_other_tokens(text)])
        token_slopes.append(slope[text.is_token] if slope.dim() == 3 else slope)
        output = recorded.outputs.detach()[..., columns]
        contributions.append((slope * output).flatten(1).sum(1))
        passes.append((recorded.inputs.detach(), slope))

    steepest, background = torch.cat(token_slopes), torch.cat(other_states)
    mean, length = steepest.mean(0), float(steepest.norm(dim=-1).mean())
    agreement = float(mean.norm()) / length if length else 0.0
    if not agreement > MIN_AGREEMENT:
        raise CannotPlantEffectError(
            f"no output of {_name_head(site)} changes the predictions of all texts in the same "
            f"direction (agreement of the gradients {agreement:.3f}); choose another head"
        )
    read = fit_read_direction(torch.cat(token_states).mean(0), background)
    gains = []
    for inputs, slope in passes:
        first_order = (inputs @ read)[..., None] * mean * slope
        gains.append(first_order.flatten(1).sum(1))
    sign = 1 if float(torch.cat(contributions).mean()) > 0 else -1
    return PlantedEffect(
        site=site,
        token=token,
        row=row,
        module=module,
        columns=columns,
        read=read,
        write=sign * mean / float(torch.cat(gains).mean()),
        sign=sign,
        attention=attention,
        agreement=agreement,
        leak=float((background @ read).square().mean().sqrt()),
    )


def fit_read_direction(token: Tensor, others: Tensor) -> Tensor:
    """Return the direction that is 1 on the token's state and has the least mean square on others.

    Args:
        token: The state of the token, [width].
        others: The states of other tokens, [states, width].

    Returns:
        The direction, [width].
    """
    moment = (others.T @ others).double() / len(others)
    width = len(moment)
    ridge = RIDGE * moment.trace() / width
    moment += ridge * torch.eye(width).to(moment)
    state = token.double()
    direction = torch.linalg.solve(moment, state)
    scaled = direction / (direction @ state)
    return scaled.to(token)


def compute_log_odds(logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the log-odds of the last class, or of the answer to a prompt, [batch].

    Args:
        logits: [batch, classes], or [1, tokens, vocabulary] for a prompt with its answer.
        inputs: Inputs of the batch; ``labelled`` marks the tokens of an answer.
    """
    if "labelled" not in inputs:
        other_logits = logits[:, :-1]
        return logits[:, -1] - other_logits.logsumexp(-1)
    ids = inputs["input_ids"][:, 1:]
    is_answer = inputs["labelled"][:, 1:].bool()
    log_probs = logits[:, :-1].log_softmax(-1)
    token_log_probs = log_probs.gather(-1, ids[..., None])[..., 0]
    total = (token_log_probs * is_answer).sum(-1)
    prob = total.exp().clamp(max=1 - 1e-6)
    return total - torch.log1p(-prob)


@torch.no_grad()
def _run_log_odds(probe: Any, batch: Batch) -> Tensor:
    """Run the model on a batch and return the log-odds, [batch]."""
    return compute_log_odds(probe(**batch.tokenizer_output).logits, batch.inputs)


def _mask_other_tokens(text: BatchWithToken) -> Tensor:
    """Return the positions of all tokens except the planted one, bool [batch, keys]."""
    return text.batch.tokenizer_output["attention_mask"].bool() & ~text.is_token


def _run_with_row(
    probe: Any, text: BatchWithToken, site: Site, row: Tensor, module: str
) -> RecordedPass:
    """Run the model with another embedding of the token, and record the pass.

    Gradients flow to the embedding and to the outputs of W.

    Args:
        probe: The model, with frozen weights.
        text: A batch with the token.
        site: The head.
        row: The token's embedding, [width].
        module: The name that layer W has in the model.
    """
    recorded: list[tuple[Tensor, Tensor]] = []

    def embed(layer: nn.Module, args: Any, output: Tensor) -> Tensor:
        return torch.where(text.is_token[..., None], row, output)

    def record(layer: nn.Module, args: Any, output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_()
        recorded.append((args[0], output))

    is_output_layer = module == OUTPUT_LAYER
    with (
        torch.enable_grad(),
        # The recurrent kernels of cuDNN have no backward pass in evaluation mode.
        torch.backends.cudnn.flags(enabled=False),
        probe.get_input_embeddings().register_forward_hook(embed),
        probe.get_submodule(module).register_forward_hook(record),
    ):
        result = probe(
            **text.batch.tokenizer_output,
            output_attentions=True,
            output_hidden_states=is_output_layer,
        )
        log_odds = compute_log_odds(result.logits, text.batch.inputs)
    inputs, outputs = recorded[-1]
    states = result.hidden_states[-1] if is_output_layer else inputs
    return RecordedPass(result.attentions[site.layer], log_odds, inputs, outputs, states)


def _fit_attended_row(
    probe: Any,
    texts: Sequence[BatchWithToken],
    site: Site,
    token: int,
    module: str,
    columns: slice,
) -> tuple[Tensor, float]:
    """Train an embedding of the token that the head attends to.

    Adam takes one step per batch. The weights w of the attention rows are computed anew in every
    step.

    Returns:
        The embedding [width], and the mean attention that the token receives with it.
    """
    table = probe.get_input_embeddings().weight
    row = table[token].clone().requires_grad_()
    adam = torch.optim.Adam([row], lr=0.1 * float(table.std()))
    shares: list[float] = []
    for step in range(N_FITTING_STEPS):
        text = texts[step % len(texts)]
        recorded = _run_with_row(probe, text, site, row, module)
        attention_to_token = recorded.attention[:, site.head] * text.is_token[:, None]
        to_token = attention_to_token.sum(-1)
        weights = _weight_rows(recorded, site.head) * (to_token > 0)
        if not weights.any():
            raise CannotPlantEffectError(
                f"the output does not depend on {_name_head(site)}; choose another head"
            )
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.clamp_min(1e-30)
        share = (weights * to_token).detach().sum(-1)
        shares = [*shares[-len(texts) + 1 :], float(share.mean())]

        log_share = to_token.clamp_min(1e-9).log()
        gain = (weights * log_share).sum(-1).clamp(max=LOG_ATTENTION_GOAL)
        value_effect = _compute_value_effect(probe, recorded, text, module, columns)
        baseline_effect = (recorded.log_odds - text.original_log_odds).square()
        loss = (baseline_effect + value_effect.square() - gain).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
    return row.detach(), sum(shares) / len(shares)


def _compute_value_effect(
    probe: Any, recorded: RecordedPass, text: BatchWithToken, module: str, columns: slice
) -> Tensor:
    """Return the change of the log-odds by the token's value, to first order, [batch].

    The value of the token is compared with the mean value of the text's other tokens.
    """
    (slope,) = torch.autograd.grad(recorded.log_odds.sum(), recorded.outputs, retain_graph=True)
    values = recorded.outputs
    share = torch.ones(())
    if module == OUTPUT_LAYER:
        values = probe.get_submodule(module)(recorded.states)
        slope = slope[:, None]
        share = recorded.attention[:, 0, 0].detach()
    is_other = _mask_other_tokens(text)[..., None]
    total = (values * is_other).sum(1, keepdim=True)
    mean = total / is_other.sum(1, keepdim=True)
    change = slope.detach() * (values - mean)
    effects = change[..., columns].sum(-1) * share
    return (effects * text.is_token).sum(-1)


def _weight_rows(recorded: RecordedPass, head: int) -> Tensor:
    """Return the sensitivity of the log-odds to each row of a head's attention, [batch, queries]."""
    if recorded.attention.shape[2] == 1:
        return torch.ones_like(recorded.attention[:, head, :, 0])
    (slope,) = torch.autograd.grad(recorded.log_odds.sum(), recorded.attention, retain_graph=True)
    return (slope.abs() * recorded.attention)[:, head].sum(-1).detach()


@torch.no_grad()
def _find_value_layer(probe: Any, arguments: Mapping[str, Tensor], site: Site) -> tuple[str, slice]:
    """Return the name of the layer W that computes the head's values, and its columns.

    In a Transformer the layer is recognised by its values: attention times the columns of W must
    equal the part of the output projection's input that belongs to the head.

    Raises:
        AttnProbeError: If there is no such layer, or if the model uses it in several places.
    """
    names = {layer: name for name, layer in probe.named_modules()}
    calls: list[tuple[str, Tensor, Tensor]] = []

    def record(layer: nn.Module, args: Any, output: Any) -> None:
        if isinstance(layer, nn.Linear | Conv1D):
            calls.append((names[layer], args[0], output))

    handles = [layer.register_forward_hook(record) for layer in names]
    result = probe(**arguments, output_attentions=True)
    for handle in handles:
        handle.remove()
    maps = getattr(result, "attentions", None) or ()
    n_heads = maps[site.layer].shape[1] if site.layer < len(maps) else 0
    if n_heads == 1 and maps[site.layer].shape[2] == 1:
        return OUTPUT_LAYER, slice(None)
    call_names = [name for name, _, _ in calls]
    for position, (_, projection_input, _) in enumerate(calls if n_heads else ()):
        width = projection_input.shape[-1] // n_heads
        head_output = projection_input[..., site.head * width : (site.head + 1) * width]
        # Attention layers compute their values shortly before their output projection.
        for name, _, values in calls[max(position - 4, 0) : position]:
            if values.dim() < 3 or values.shape[:-1] != head_output.shape[:-1]:
                continue
            for start in range(0, values.shape[-1] - width + 1, max(width, 1)):
                columns = slice(start, start + width)
                mixed = maps[site.layer][:, site.head] @ values[..., columns]
                error = (mixed - head_output).abs().max()
                is_equal = float(error) <= 1e-3 * float(head_output.abs().max())
                if call_names.count(name) == 1 and is_equal:
                    return name, columns
    raise AttnProbeError(
        f"no separate linear value projection was found for {_name_head(site)} of "
        f"{type(probe).__name__}; effects cannot be planted in this model"
    )


def _name_head(site: Site) -> str:
    """Return the name of a head for error messages, such as ``head 1.0``."""
    return f"head {site.layer}.{site.head}"
