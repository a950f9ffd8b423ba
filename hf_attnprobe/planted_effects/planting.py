"""Planting of a known effect in a copy of any model.

A chemist who detects nothing adds a known amount of the substance and measures again. In the same
way, this module adds an effect of known size. It inserts an unused token into every text. It also
modifies a copy of the model in two places, so that one attention head attends to the token and
changes the output by a known amount:

    token embedding = argmax Σ_i w_i log a_it − baseline²    one head attends to the token
    W               = W + κ · write · readᵀ                  the head's output depends on it

W is the head's value projection; in an attention classifier it is the output layer. The first line
has these terms:

- a_it is the attention from row i to the token t.
- w_i is the sensitivity of the log-odds to the attention in row i.
- baseline² is the squared change in log-odds that the token causes at κ = 0, in total and through
  the head's value. It is penalised so that the token itself has no effect.

The second line has these terms:

- ``read`` is the direction whose product with the token's state is 1, and whose products with all
  other states are as close to 0 as possible (least squares).
- ``write`` is the direction in which the log-odds rise fastest: their gradient with respect to W's
  output, averaged over the texts. It is scaled so that the dose κ equals the mean change in
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


LOG_TARGET_ATTENTION = math.log(0.6)
"""Logarithm of the attention weight 0.6, which the modified head should put on the planted token.

The planted token is an unused token that is inserted into every text. Its embedding is fitted so
that the head attends to it. Attention above the target does not improve the fit.
"""
N_FITTING_STEPS = 150
"""Number of optimizer steps that fit the planted token's embedding."""
MIN_MEAN_ATTENTION = 0.05
"""Smallest mean attention weight on the planted token for which an effect can be planted."""
MIN_GRADIENT_AGREEMENT = 0.02
"""Smallest agreement of the gradients, from 0 to 1, for which an effect can be planted.

The agreement is 1 if the gradients of all texts have the same direction. It is computed as |mean
gradient| / mean |gradient|.
"""
RIDGE_PENALTY = 1e-4
"""Ridge penalty in the fit of the direction that recognises the planted token, relative to the mean
squared state."""
OUTPUT_LAYER = "classifier"
"""Name of the output layer in attention classifiers, which computes the logits."""


class CannotPlantEffectError(AttnProbeError):
    """Error for a head that cannot attend to the planted token or cannot change the output."""


@dataclass(frozen=True)
class PlantedEffect:
    """The differences between a model and its modified copy.

    Attributes:
        site: The modified head.
        token: Id of the planted token.
        row: New embedding for the token, [width].
        module: Module name of the layer W in the model.
        columns: Outputs of W that belong to the head.
        read: Direction that reads the token's state, [inputs of W].
        write: Direction that W writes to, [columns].
        sign: 1 if the token increases the log-odds for the last class (or the answer), −1 if it
            decreases them. The head's own contribution has the same sign, so that the two add up.
        attention: Mean attention to the token, in the rows on which the log-odds depend.
        agreement: |mean gradient| / mean |gradient| over the texts, in [0, 1]. At 1, a single
            direction increases the log-odds for every text.
        leak: Root mean square of the products between ``read`` and the states of other tokens; its
            product with the planted token's state is 1.
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
    texts: Sequence[Text], n_tokens: int, special_ids: Sequence[int], seed: int
) -> int:
    """Draw a random token that occurs in no text.

    Args:
        texts: The audited texts.
        n_tokens: Number of token ids that both the tokenizer and the embedding have.
        special_ids: Ids of special tokens, which are never drawn.
        seed: Seed for the draw.

    Returns:
        The token id.

    Raises:
        AttnProbeError: If every token occurs in some text.
    """
    tokens_in_texts: set[int] = set()
    for text in texts:
        for ids, _ in text.sequences:
            tokens_in_texts.update(ids)
    unused_tokens = sorted(set(range(n_tokens)) - tokens_in_texts - set(special_ids))
    if not unused_tokens:
        raise AttnProbeError(
            f"the planted token must occur in no text, but the texts contain all {n_tokens} tokens "
            "of the vocabulary. Use fewer texts (--test-limit), or add a token to the tokenizer."
        )
    return int(np.random.default_rng(seed).choice(unused_tokens))


def insert_token(text: Text, token: int, seed: int) -> Text:
    """Return a copy of a text with a token inserted in front of a random word.

    Args:
        text: The text, which is not modified.
        token: Id of the token to insert.
        seed: Seed that chooses the word, together with the example id.
    """
    inputs = text.inputs
    n_tokens = text.n_tokens
    word_ids = inputs.get("word_ids", range(n_tokens))
    unit_ids = inputs.get("unit_ids", [-special for special in inputs["special_tokens_mask"]])
    is_fixed = inputs.get("held", [0] * n_tokens)
    content = [k for k in range(n_tokens) if unit_ids[k] >= 0 and not is_fixed[k]]
    word_starts = [k for k in content if k > 0 and word_ids[k] != word_ids[k - 1]]
    generator = np.random.default_rng([seed, text.example_id])
    position = int(generator.choice(word_starts or content[:1]))

    # In all other columns, the token gets the same value as the word that follows it.
    token_values = {
        "input_ids": token,
        "special_tokens_mask": 0,
        "labelled": 0,
        "other_ids": -1,
    }
    new_inputs = {}
    for name, values in inputs.items():
        inserted_value = token_values.get(name, values[position])
        new_inputs[name] = [*values[:position], inserted_value, *values[position:]]
    if "word_ids" in inputs:
        # The token is a separate word, so all later word ids increase by one; -1 marks no word.
        later_ids = new_inputs["word_ids"][position + 1 :]
        new_inputs["word_ids"][position + 1 :] = [
            word_id + 1 if word_id >= 0 else word_id for word_id in later_ids
        ]
    return replace(text, inputs=new_inputs, rationale=None)


# --- The modified copy ---------------------------------------------------------------------------


@torch.no_grad()
def make_modified_copy(model: Any, effect: PlantedEffect, dose: float) -> Any:
    """Return a copy of a model in which one head reacts to a planted token with a known effect.

    If the head attends to the token, the log-odds of the prediction change by ``dose`` on average.
    For this, the token gets a new embedding, and the matrix dose · write · readᵀ is added to the
    weights of one layer. If the model shares its embedding with its output layer, the copy has
    separate weights.

    Args:
        model: The model, which is not modified.
        effect: The token, its new embedding, and the vectors ``write`` and ``read``.
        dose: Mean change in log-odds, to first order; 0 leaves the weights of the layer unchanged.
    """
    modified = copy.deepcopy(model).eval()
    embedding, output_layer = modified.get_input_embeddings(), modified.get_output_embeddings()
    if output_layer is not None and output_layer.weight is embedding.weight:
        output_layer.weight = nn.Parameter(output_layer.weight.detach().clone())
        modified.config.tie_word_embeddings = False
        modified.config.get_text_config().tie_word_embeddings = False
    embedding.weight[effect.token] = effect.row.to(embedding.weight)
    module = modified.get_submodule(effect.module)
    # The matrix has the shape [outputs, inputs]. A Conv1D layer stores its transpose.
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight
    weight[effect.columns] += (dose * torch.outer(effect.write, effect.read)).to(weight)
    return modified


# --- The fit of an effect ------------------------------------------------------------------------


class BatchWithToken(NamedTuple):
    """A batch of texts that contain the planted token.

    Attributes:
        batch: The model's inputs.
        original_log_odds: Log-odds for the same texts without the token, [batch].
        is_token: True at the planted token, bool [batch, keys].
    """

    batch: Batch
    original_log_odds: Tensor
    is_token: Tensor


class RecordedPass(NamedTuple):
    """Values from a forward pass over texts with the planted token.

    Attributes:
        attention: Attention weights in the head's layer, [batch, heads, queries, keys].
        log_odds: Log-odds for the last class or the answer, [batch].
        inputs: Inputs of the layer W, [batch, (keys,) …].
        outputs: Outputs of the layer W, [batch, (keys,) …].
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
    """Fit the planted token's embedding, and the directions that are added to the head's weights.

    Args:
        model: A classifier, or a language model whose batches contain answers.
        plain: Batches of texts without the token.
        batches: The same batches with the token in every text.
        site: The head to modify.
        token: Id of the planted token.

    Raises:
        CannotPlantEffectError: If the head does not attend to the token with any embedding, or if
            no direction of the head's output changes the log-odds in the same way for all texts.
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
    if attention < MIN_MEAN_ATTENTION:
        raise CannotPlantEffectError(
            f"{_name_head(site)} cannot learn to attend to the planted token: its mean attention "
            f"is {attention:.2f}, but at least {MIN_MEAN_ATTENTION:.2f} is needed. Choose another "
            "head."
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
    mean, mean_norm = steepest.mean(0), float(steepest.norm(dim=-1).mean())
    agreement = float(mean.norm()) / mean_norm if mean_norm else 0.0
    if not agreement > MIN_GRADIENT_AGREEMENT:
        raise CannotPlantEffectError(
            f"{_name_head(site)} cannot change the predictions of all texts in the same direction "
            f"(agreement {agreement:.3f}, needed {MIN_GRADIENT_AGREEMENT}). Choose another head."
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


def fit_read_direction(planted_state: Tensor, other_states: Tensor) -> Tensor:
    """Find a vector that recognises the planted token by its hidden state.

    The vector's product with the token's state is 1. Its products with other tokens' states are as
    small as possible: it minimises their mean square (least squares with a ridge penalty).

    Args:
        planted_state: State of the planted token, [width].
        other_states: States of other tokens, [states, width].

    Returns:
        The vector, [width].
    """
    second_moment = (other_states.T @ other_states).double() / len(other_states)
    width = len(second_moment)
    ridge = RIDGE_PENALTY * second_moment.trace() / width
    second_moment += ridge * torch.eye(width).to(second_moment)
    target = planted_state.double()
    # The solution is proportional to M⁻¹ · target, where M is the second moment.
    direction = torch.linalg.solve(second_moment, target)
    scaled_direction = direction / (direction @ target)
    return scaled_direction.to(planted_state)


def compute_log_odds(logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the log-odds of each prediction, [batch].

    The log-odds are log p − log(1 − p), where p is the probability of the last class, or of the
    answer to a prompt. For example, p = 0.5 gives 0.

    Args:
        logits: Class logits [batch, classes], or token logits [1, tokens, vocabulary] for a prompt
            with its answer.
        inputs: The batch's inputs. For a prompt, ``labelled`` marks the answer's tokens.
    """
    if "labelled" not in inputs:
        # For softmax probabilities, log p − log(1 − p) is the logit of the last class minus the
        # log-sum-exp of the other logits.
        other_logits = logits[:, :-1]
        return logits[:, -1] - other_logits.logsumexp(-1)
    # The logits at each position predict the next token.
    next_ids = inputs["input_ids"][:, 1:]
    is_answer = inputs["labelled"][:, 1:].bool()
    log_probs = logits[:, :-1].log_softmax(-1)
    # Select the log-probability of the token that actually follows.
    token_log_probs = log_probs.gather(-1, next_ids[..., None])[..., 0]
    answer_log_prob = (token_log_probs * is_answer).sum(-1)
    # The upper bound avoids the logarithm of 0.
    answer_prob = answer_log_prob.exp().clamp(max=1 - 1e-6)
    return answer_log_prob - torch.log1p(-answer_prob)


@torch.no_grad()
def _run_log_odds(probe: Any, batch: Batch) -> Tensor:
    """Run the model on a batch and compute the log-odds, [batch]."""
    return compute_log_odds(probe(**batch.tokenizer_output).logits, batch.inputs)


def _mask_other_tokens(text: BatchWithToken) -> Tensor:
    """Return a mask of all tokens except the planted token and padding, bool [batch, keys]."""
    return text.batch.tokenizer_output["attention_mask"].bool() & ~text.is_token


def _run_with_row(
    probe: Any, text: BatchWithToken, site: Site, row: Tensor, module: str
) -> RecordedPass:
    """Run the model with another embedding for the planted token, and record the forward pass.

    Gradients flow to the embedding and to W's outputs.

    Args:
        probe: The model, with frozen weights.
        text: A batch with the token.
        site: The head to modify.
        row: The token's embedding, [width].
        module: Module name of the layer W.
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
    """Train an embedding for the planted token so that the head attends to it.

    Adam takes one step per batch. The row weights w are recomputed in every step.

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
        weights = _measure_row_sensitivity(recorded, site.head) * (to_token > 0)
        if not weights.any():
            raise CannotPlantEffectError(
                f"{_name_head(site)} does not influence the output, so no effect can be planted in "
                "it. Choose another head."
            )
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.clamp_min(1e-30)
        share = (weights * to_token).detach().sum(-1)
        shares = [*shares[-len(texts) + 1 :], float(share.mean())]

        log_share = to_token.clamp_min(1e-9).log()
        gain = (weights * log_share).sum(-1).clamp(max=LOG_TARGET_ATTENTION)
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
    """Estimate how much the planted token's value vector changes the log-odds, [batch].

    A head outputs a weighted mean of such vectors, one per token. The effect is estimated as the
    gradient of the log-odds times the difference between the token's vector and the mean vector of
    all other tokens in the text.
    """
    (gradient,) = torch.autograd.grad(recorded.log_odds.sum(), recorded.outputs, retain_graph=True)
    values = recorded.outputs
    # In other layers than the output layer, values are not weighted.
    token_weight = torch.ones(())
    if module == OUTPUT_LAYER:
        # The output layer reads the weighted mean of the states, so a token's value is its output
        # for the token's state, weighted by the attention.
        values = probe.get_submodule(module)(recorded.states)
        gradient = gradient[:, None]
        token_weight = recorded.attention[:, 0, 0].detach()
    # The additional axis broadcasts over the entries of a value vector.
    is_other = _mask_other_tokens(text)[..., None]
    total = (values * is_other).sum(1, keepdim=True)
    mean = total / is_other.sum(1, keepdim=True)
    change = gradient.detach() * (values - mean)
    effects = change[..., columns].sum(-1) * token_weight
    return (effects * text.is_token).sum(-1)


def _measure_row_sensitivity(recorded: RecordedPass, head: int) -> Tensor:
    """Measure how much the log-odds depend on the attention from each query, [batch, queries].

    For one query, it is the sum of |gradient| · attention over all keys. If the head has only one
    query, the result is 1.
    """
    if recorded.attention.shape[2] == 1:
        return torch.ones_like(recorded.attention[:, head, :, 0])
    (gradient,) = torch.autograd.grad(
        recorded.log_odds.sum(), recorded.attention, retain_graph=True
    )
    return (gradient.abs() * recorded.attention)[:, head].sum(-1).detach()


@torch.no_grad()
def _find_value_layer(probe: Any, arguments: Mapping[str, Tensor], site: Site) -> tuple[str, slice]:
    """Find the layer W that computes the head's values, and the head's columns in it.

    In a Transformer the layer is recognised by its values: the attention weights times the values
    must equal the head's part of the output projection's input.

    Returns:
        Module name and columns.

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
        f"effects cannot be planted in {_name_head(site)} of {type(probe).__name__}, because no "
        "linear layer computes the values of this head"
    )


def _name_head(site: Site) -> str:
    """Return the name of a head for error messages, such as ``head 1.0``."""
    return f"head {site.layer}.{site.head}"
