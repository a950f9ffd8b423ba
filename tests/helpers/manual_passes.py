"""Answers of language models by full passes, with every edit written by hand.

The attention of an eager model is changed where it calls ``softmax``, cell by cell: no code of
the package has a part in it.
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
"""(layer, weights [heads, tokens, keys]) -> weights."""


class PromptTokens(NamedTuple):
    """A prompt with its answer, as tokens.

    Attributes:
        ids: int [1, tokens].
        units: the positions of each unit's tokens.
        n_answer: number of tokens of the answer, the last ones.
    """

    ids: Tensor
    units: list[list[int]]
    n_answer: int

    @property
    def start(self) -> int:
        """The first row behind the passage, or that predicts the answer."""
        behind = max(max(unit) for unit in self.units) + 1
        return min(behind, self.ids.shape[1] - 1 - self.n_answer)

    @property
    def columns(self) -> list[list[int]]:
        """The keys of each column: the units, all others, and the first token if no unit is it."""
        n_keys, sink = self.ids.shape[1] - 1, [] if [0] in self.units else [0]
        units = [[key for key in unit if key not in sink] for unit in self.units]
        taken = {key for unit in units for key in unit} | set(sink)
        return [*units, [key for key in range(n_keys) if key not in taken], sink]

    def inputs(self, other: int | None = None) -> dict[str, Tensor]:
        """What an adapter prepares a batch of."""
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
    """A prompt of random words: template, units with a word between them, question, answer."""
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
    """Changes what attention's softmax returns, layers counted by its calls."""
    real, layers = F.softmax, iter(range(1000))

    def softmax(scores: Tensor, *args: object, **kwargs: object) -> Tensor:
        weights = real(scores, *args, **kwargs)
        if weights.shape[-2] not in (n_tokens, n_tokens + 1) or weights.shape[-1] < n_tokens:
            return weights
        by_head = weights if weights.dim() == 3 else weights[0]
        return edit(next(layers), by_head.clone()).reshape(weights.shape)

    F.softmax = softmax
    try:
        yield
    finally:
        F.softmax = real


@torch.no_grad()
def compute_answer_probs(model: PreTrainedModel, asked: PromptTokens, edit: Edit | None = None) -> Tensor:
    """Probabilities [answer tokens, words] of a full pass with edited attention."""
    with edit_softmax(edit or (lambda layer, weights: weights), asked.ids.shape[1] - 1):
        logits = model(asked.ids[:, :-1], use_cache=False).logits[0]
    return logits[-asked.n_answer :].double().softmax(-1)


def rescale_columns(weights: Tensor, asked: PromptTokens, new: Tensor) -> Tensor:
    """Weights [heads, tokens, keys] whose rows behind the passage have totals ``new``.

    Shape: new [heads, rows, columns]; cell by cell.
    """
    n_keys, columns = asked.ids.shape[1] - 1, asked.columns
    if weights.shape[-1] > n_keys:  # an explicit sink
        columns = [*columns[:-2], [*columns[-1], *columns[-2]], [n_keys]]
    for head in range(len(weights)):
        for row in range(asked.start, n_keys):
            cells = weights[head, row]
            for keys, total in zip(columns, new[head, row - asked.start].tolist(), strict=True):
                own = sum(float(cells[key]) for key in keys)
                seen = [key for key in keys if float(cells[key]) > 0]
                for key in keys:
                    share = float(cells[key]) / own if own else 1 / max(len(seen), 1)
                    cells[key] = share * total
    return weights


def sum_by_column(weights: Tensor, asked: PromptTokens) -> Tensor:
    """[heads, tokens, keys] -> [heads, rows, columns] of the rows behind the passage."""
    n_keys, columns = asked.ids.shape[1] - 1, asked.columns
    if weights.shape[-1] > n_keys:
        columns = [*columns[:-2], [*columns[-1], *columns[-2]], [n_keys]]
    rows = weights[:, asked.start :]
    return torch.stack([rows[..., keys].sum(-1) for keys in columns], -1)


def apply_knockout(weights: Tensor, asked: PromptTokens, unit: int, operator: str) -> Tensor:
    """Weights [heads, tokens, keys] whose rows behind the passage do not look at a unit."""
    n_keys = asked.ids.shape[1] - 1
    gone = [key for key in asked.units[unit] if key != 0 or asked.units[unit] == [0]]
    for head in range(len(weights)):
        for row in range(asked.start, n_keys):
            cells = weights[head, row]
            lost = float(cells[gone].sum())
            cells[gone] = 0
            if operator == "renormalised" and cells.sum() > 0:
                cells /= cells.sum()
            sink = n_keys if len(cells) > n_keys else 0
            if operator == "sink" and float(cells[sink]) > 0:
                cells[sink] += lost
    return weights


def get_named_probs(adapter: LanguageModelAdapter, probs: Tensor, n_answer: int) -> Tensor:
    """The adapter's probabilities of the words it names, [answer tokens, words]."""
    return probs.unflatten(-1, (n_answer, -1))[..., :-2] * n_answer


TOLERANCE = 1e-5
"""Of probabilities in float32."""


def examine_class(name: str, model_type: str) -> list[str]:
    """What became of one class: the result, why not, layers × heads, the rows that run."""
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
    except ValueError:  # of families with one implementation
        eager = model
    found = measure_errors(adapter, eager, prompt)
    wrong = [f"{name} by {error:.0e}" for name, error in found.items() if not error <= TOLERANCE]
    shape = f"{len(adapter.layers)} × {max(adapter.n_heads)}"
    rows = "behind the passage" if observation.state.first_run_row else "all"
    return ["wrong" if wrong else "works", ", ".join(wrong), shape, rows]


def measure_errors(adapter: LanguageModelAdapter, model: PreTrainedModel, asked: PromptTokens) -> dict[str, float]:
    """The largest difference to full passes, by what was edited.

    Args:
        adapter: of the model, or of its twin with other kernels.
        model: with eager attention.
        asked: the prompt.
    """
    batch = adapter.prepare(asked.inputs(), (0,))
    observation = adapter.observe(batch)
    kept = batch.inputs["kept"][0]
    found: dict[str, float] = {}

    def compare(name: str, probs: Tensor, expected: Tensor) -> None:
        named = get_named_probs(adapter, probs, asked.n_answer)
        error = float((named - expected.gather(-1, kept)).abs().max())
        found[name] = max(found.get(name, 0.0), error)

    weights: dict[int, Tensor] = {}

    def note(layer: int, by_hand: Tensor) -> Tensor:
        weights[layer] = by_hand.clone()
        return by_hand

    compare("native", observation.probs[0], compute_answer_probs(model, asked, note))
    layers = range(len(adapter.layers))
    read = [
        float((sum_by_column(weights[n], asked) - observation.attention[n][0]).abs().max()) for n in layers
    ]
    found["attention"] = max(read)
    generator = torch.Generator().manual_seed(3)
    edits = {}
    for n in layers:
        own = observation.attention[n]
        same = adapter.replay(observation, {n: own[None]})[0]
        found["identity"] = max(
            found.get("identity", 0.0), float((same - observation.probs).abs().max())
        )
        new = torch.rand((2, *own.shape), generator=generator) * (own > 0)
        edits[n] = new / new.sum(-1, keepdim=True)
    top = layers[-1]
    for chosen in ([0], [top], [*layers]):
        after = adapter.replay(observation, {n: edits[n] for n in chosen})
        for copy in range(2):
            wanted = {n: edits[n][copy, 0] for n in chosen}
            change = partial(_replaced, asked, wanted)
            compare("edits", after[copy, 0], compute_answer_probs(model, asked, change))
    unit = 0 if [0] in asked.units else len(asked.units) - 1
    kept_units = torch.ones(1, 1, 1, 1, len(asked.units) + 2)
    kept_units[..., unit] = 0
    for operator in KNOCKOUTS:
        after = adapter.replay_masked(
            observation, dict.fromkeys(layers, kept_units), operator=operator
        )
        knock = partial(_knocked, asked, unit, operator)
        compare(f"knockout {operator}", after[0, 0], compute_answer_probs(model, asked, knock))
    without = adapter.compute_leave_one_out(observation)
    for number, gone in enumerate(asked.units):
        left = [place for place in range(asked.ids.shape[1]) if place not in gone]
        shorter = asked._replace(ids=asked.ids[:, left])
        compare("deletion", without[0, number], compute_answer_probs(model, shorter))
        if adapter.keeps_positions:
            erased = torch.zeros_like(batch.content_mask)[None]
            erased[..., number] = True
            after = adapter.erase_inputs(observation, erased, operator="gap")
            compare("gap", after[0, 0], compute_probs_at_positions(model, shorter, left))
    return found


def _replaced(asked: PromptTokens, wanted: dict[int, Tensor], layer: int, weights: Tensor) -> Tensor:
    return rescale_columns(weights, asked, wanted[layer]) if layer in wanted else weights


def _knocked(asked: PromptTokens, unit: int, operator: str, layer: int, weights: Tensor) -> Tensor:
    return apply_knockout(weights, asked, unit, operator)


@torch.no_grad()
def compute_probs_at_positions(model: PreTrainedModel, shorter: PromptTokens, places: list[int]) -> Tensor:
    """Probabilities [answer tokens, words] where tokens have other positions."""
    ids = shorter.ids[:, :-1]
    positions = torch.tensor([places[:-1]])
    mask = torch.ones_like(ids)  # without it such positions are several packed texts
    logits = model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits[0]
    return logits[-shorter.n_answer :].double().softmax(-1)
