"""Answers of language models by full forward passes, with every edit written by hand.

The attention of an eager model is changed at its call of `softmax`, cell by cell. No code of the
package is involved, so these passes are an independent reference.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.protocol import KNOCKOUTS
from tests.helpers.transformer_families import BEGIN, N_WORDS, tiny_language_model


Edit = Callable[[int, Tensor], Tensor]
"""Function from a layer and its weights `[heads, tokens, keys]` to edited weights."""


class PromptTokens(NamedTuple):
    """A prompt with its answer, as tokens.

    Attributes:
        ids: Token ids, int `[1, tokens]`.
        units: Positions of each unit's tokens.
        n_answer: Number of last tokens that are the answer.
    """

    ids: Tensor
    units: list[list[int]]
    n_answer: int

    @property
    def first_row(self) -> int:
        """First row after the passage, or the first row that predicts the answer."""
        after_passage = max(max(unit) for unit in self.units) + 1
        return min(after_passage, self.ids.shape[1] - 1 - self.n_answer)

    @property
    def columns(self) -> list[list[int]]:
        """Keys of each column: the units, other tokens, and the first token if it is no unit."""
        n_keys, sink = self.ids.shape[1] - 1, [] if [0] in self.units else [0]
        units = [[key for key in unit if key not in sink] for unit in self.units]
        assigned = {key for unit in units for key in unit} | set(sink)
        return [*units, [key for key in range(n_keys) if key not in assigned], sink]

    def inputs(self, other: int | None = None) -> dict[str, Tensor]:
        """Return the inputs of `LanguageModelAdapter.prepare`."""
        unit_ids, other_ids = torch.full_like(self.ids, -1), torch.full_like(self.ids, -1)
        for number, unit in enumerate(self.units):
            unit_ids[0, unit] = number
        labelled = torch.zeros_like(self.ids)
        labelled[0, -self.n_answer :] = 1
        if other is not None:
            other_ids[0, -self.n_answer] = other
        return {
            "input_ids": self.ids,
            "unit_ids": unit_ids,
            "labelled": labelled,
            "other_ids": other_ids,
        }


def create_prompt(
    *,
    n_units: int = 3,
    length: int = 3,
    before: int = 2,
    behind: int = 3,
    n_answer: int = 2,
    seed: int = 7,
) -> PromptTokens:
    """Create a prompt of random words: template, units separated by a word, question, answer."""
    generator = torch.Generator().manual_seed(seed)
    units = [
        list(range(first, first + length))
        for first in range(before, before + n_units * (length + 1), length + 1)
    ]
    n_tokens = units[-1][-1] + 1 + behind + n_answer
    ids = torch.randint(5, N_WORDS, (1, n_tokens), generator=generator)
    if before:
        ids[0, 0] = BEGIN
    return PromptTokens(ids, units, n_answer)


@contextmanager
def edit_softmax(edit: Edit, n_tokens: int) -> Iterator[None]:
    """Edit the result of each attention softmax; layers are counted by its calls."""
    original_softmax, layers = F.softmax, iter(range(1000))

    def softmax(scores: Tensor, *args: object, **kwargs: object) -> Tensor:
        weights = original_softmax(scores, *args, **kwargs)
        if weights.shape[-2] not in (n_tokens, n_tokens + 1) or weights.shape[-1] < n_tokens:
            return weights
        by_head = weights if weights.dim() == 3 else weights[0]
        return edit(next(layers), by_head.clone()).reshape(weights.shape)

    F.softmax = softmax
    try:
        yield
    finally:
        F.softmax = original_softmax


@torch.no_grad()
def compute_answer_probs(
    model: PreTrainedModel, prompt: PromptTokens, edit: Edit | None = None
) -> Tensor:
    """Compute probabilities `[answer tokens, words]` in a full pass with edited attention."""
    with edit_softmax(edit or (lambda layer, weights: weights), prompt.ids.shape[1] - 1):
        logits = model(prompt.ids[:, :-1], use_cache=False).logits[0]
    return logits[-prompt.n_answer :].double().softmax(-1)


def rescale_columns(weights: Tensor, prompt: PromptTokens, new: Tensor) -> Tensor:
    """Rescale the columns of the rows after the passage to new sums, cell by cell.

    Args:
        weights: Attention weights `[heads, tokens, keys]`, changed in place.
        prompt: The prompt.
        new: New sums `[heads, rows, columns]`.
    """
    n_keys, columns = prompt.ids.shape[1] - 1, prompt.columns
    if weights.shape[-1] > n_keys:  # The last key is an explicit sink.
        columns = [*columns[:-2], [*columns[-1], *columns[-2]], [n_keys]]
    for head in range(len(weights)):
        for row in range(prompt.first_row, n_keys):
            cells = weights[head, row]
            for keys, total in zip(
                columns, new[head, row - prompt.first_row].tolist(), strict=True
            ):
                old_total = sum(float(cells[key]) for key in keys)
                visible = [key for key in keys if float(cells[key]) > 0]
                for key in keys:
                    even_share = 1 / max(len(visible), 1)
                    share = float(cells[key]) / old_total if old_total else even_share
                    cells[key] = share * total
    return weights


def sum_by_column(weights: Tensor, prompt: PromptTokens) -> Tensor:
    """Sum the weights of rows after the passage by column, to `[heads, rows, columns]`."""
    n_keys, columns = prompt.ids.shape[1] - 1, prompt.columns
    if weights.shape[-1] > n_keys:
        columns = [*columns[:-2], [*columns[-1], *columns[-2]], [n_keys]]
    rows = weights[:, prompt.first_row :]
    return torch.stack([rows[..., keys].sum(-1) for keys in columns], -1)


def apply_knockout(weights: Tensor, prompt: PromptTokens, unit: int, operator: str) -> Tensor:
    """Block the attention of the rows after the passage to a unit; changes the weights in place."""
    n_keys = prompt.ids.shape[1] - 1
    unit_keys = [key for key in prompt.units[unit] if key != 0 or prompt.units[unit] == [0]]
    for head in range(len(weights)):
        for row in range(prompt.first_row, n_keys):
            cells = weights[head, row]
            blocked_weight = float(cells[unit_keys].sum())
            cells[unit_keys] = 0
            if operator == "renormalised" and cells.sum() > 0:
                cells /= cells.sum()
            sink = n_keys if len(cells) > n_keys else 0
            if operator == "sink" and float(cells[sink]) > 0:
                cells[sink] += blocked_weight
    return weights


def get_named_probs(adapter: LanguageModelAdapter, probs: Tensor, n_answer: int) -> Tensor:
    """Return the adapter's probabilities of candidate words, `[answer tokens, words]`."""
    return probs.unflatten(-1, (n_answer, -1))[..., :-2] * n_answer


TOLERANCE = 1e-5
"""Largest allowed difference of probabilities in float32."""


def examine_class(name: str, model_type: str) -> list[str]:
    """Return the result of one class, the reason, layers × heads, and the rows that run."""
    try:
        model = tiny_language_model(name, model_type)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        return ["not buildable here", f"{type(error).__name__}: {reason}", "", ""]
    try:
        adapter = wrap(model)
        prompt = create_prompt()
        observation = adapter.observe(adapter.prepare(prompt.inputs(), (0,)))
        adapter.self_check(observation.batch)
    except AttnProbeError as error:
        return ["refused", str(error), "", ""]
    assert isinstance(adapter, LanguageModelAdapter)
    try:
        eager = tiny_language_model(name, model_type, attn_implementation="eager")
    except ValueError:
        # The family has only one implementation.
        eager = model
    max_errors = measure_errors(adapter, eager, prompt)
    wrong = [
        f"{name} by {error:.0e}" for name, error in max_errors.items() if not error <= TOLERANCE
    ]
    shape = f"{len(adapter.layers)} × {max(adapter.n_heads)}"
    rows = "behind the passage" if observation.state.first_run_row else "all"
    return ["wrong" if wrong else "works", ", ".join(wrong), shape, rows]


def measure_errors(
    adapter: LanguageModelAdapter, model: PreTrainedModel, prompt: PromptTokens
) -> dict[str, float]:
    """Measure the largest difference between the adapter and full passes, for each kind of edit.

    Args:
        adapter: Adapter of the model, or of the same model with other attention kernels.
        model: The model with eager attention.
        prompt: The prompt.
    """
    batch = adapter.prepare(prompt.inputs(), (0,))
    observation = adapter.observe(batch)
    candidates = batch.inputs["candidate_ids"][0]
    max_errors: dict[str, float] = {}

    def compare(name: str, probs: Tensor, expected: Tensor) -> None:
        named = get_named_probs(adapter, probs, prompt.n_answer)
        error = float((named - expected.gather(-1, candidates)).abs().max())
        max_errors[name] = max(max_errors.get(name, 0.0), error)

    weights: dict[int, Tensor] = {}

    def note_weights(layer: int, layer_weights: Tensor) -> Tensor:
        weights[layer] = layer_weights.clone()
        return layer_weights

    compare("native", observation.probs[0], compute_answer_probs(model, prompt, note_weights))
    layers = range(len(adapter.layers))
    attention_errors = [
        float((sum_by_column(weights[n], prompt) - observation.attention[n][0]).abs().max())
        for n in layers
    ]
    max_errors["attention"] = max(attention_errors)
    generator = torch.Generator().manual_seed(3)
    edits = {}
    for n in layers:
        attention = observation.attention[n]
        same = adapter.replay(observation, {n: attention[None]})[0]
        max_errors["identity"] = max(
            max_errors.get("identity", 0.0), float((same - observation.probs).abs().max())
        )
        new = torch.rand((2, *attention.shape), generator=generator) * (attention > 0)
        edits[n] = new / new.sum(-1, keepdim=True)
    top = layers[-1]
    for edited_layers in ([0], [top], [*layers]):
        after = adapter.replay(observation, {n: edits[n] for n in edited_layers})
        for copy in range(2):
            new_sums = {n: edits[n][copy, 0] for n in edited_layers}
            change = partial(_rescale_layer, prompt, new_sums)
            compare("edits", after[copy, 0], compute_answer_probs(model, prompt, change))
    unit = 0 if [0] in prompt.units else len(prompt.units) - 1
    unit_factors = torch.ones(1, 1, 1, 1, len(prompt.units) + 2)
    unit_factors[..., unit] = 0
    for operator in KNOCKOUTS:
        after = adapter.replay_masked(
            observation, dict.fromkeys(layers, unit_factors), operator=operator
        )
        knockout = partial(_knock_out_unit, prompt, unit, operator)
        compare(f"knockout {operator}", after[0, 0], compute_answer_probs(model, prompt, knockout))
    without = adapter.compute_leave_one_out(observation)
    for number, unit_tokens in enumerate(prompt.units):
        remaining = [
            position for position in range(prompt.ids.shape[1]) if position not in unit_tokens
        ]
        shorter = prompt._replace(ids=prompt.ids[:, remaining])
        compare("deletion", without[0, number], compute_answer_probs(model, shorter))
        if adapter.keeps_positions:
            erased = torch.zeros_like(batch.content_mask)[None]
            erased[..., number] = True
            after = adapter.erase_inputs(observation, erased, operator="gap")
            compare("gap", after[0, 0], compute_probs_at_positions(model, shorter, remaining))
    return max_errors


def _rescale_layer(
    prompt: PromptTokens, new_sums: dict[int, Tensor], layer: int, weights: Tensor
) -> Tensor:
    """Rescale the columns of a layer if it is edited."""
    return rescale_columns(weights, prompt, new_sums[layer]) if layer in new_sums else weights


def _knock_out_unit(
    prompt: PromptTokens, unit: int, operator: str, layer: int, weights: Tensor
) -> Tensor:
    """Block the attention to a unit in every layer."""
    return apply_knockout(weights, prompt, unit, operator)


@torch.no_grad()
def compute_probs_at_positions(
    model: PreTrainedModel, shorter: PromptTokens, token_positions: list[int]
) -> Tensor:
    """Compute probabilities `[answer tokens, words]` of tokens at given positions."""
    ids = shorter.ids[:, :-1]
    positions = torch.tensor([token_positions[:-1]])
    # Without a mask, the model interprets such positions as several packed texts.
    mask = torch.ones_like(ids)
    logits = model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits[0]
    return logits[-shorter.n_answer :].double().softmax(-1)
