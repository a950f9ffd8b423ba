"""What the tests measure of one text: scores of its tokens, its prediction in words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.faithfulness.options import Knockout
from hf_attnprobe.faithfulness.passage_units import (
    RENORMALISED,
    compute_answer_losses,
    find_units_that_matter,
    measure_contrast_effects,
    measure_deletion_effects,
    measure_knockouts,
)
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text, preserve_tokenizer
from hf_attnprobe.plots.highlighted_text import (
    PASSAGE_GAIN_LABEL,
    PASSAGE_SHARE_LABEL,
    SINK_SHARE_LABEL,
    HighlightedText,
    split_tokenizer_markers,
)
from hf_attnprobe.protocol import (
    ALL,
    AnswersFromPassage,
    AttentionModelBase,
    Batch,
    Differentiable,
    EditableInputs,
    KeptPositions,
    Observation,
    Site,
)


TextPair = tuple[str, str | None]
"""A text, and of a pair the second one."""


def list_unit_positions(batch: Batch) -> list[list[int]]:
    """The positions of the tokens of every unit of one text that is explained: word or sentence."""
    places = batch.content_mask[0].nonzero().flatten().tolist()
    units = batch.inputs.get("units")
    if units is None:
        return [[place] for place in places]
    found: dict[int, list[int]] = {place: [] for place in places}
    for position, unit in enumerate(units[0].tolist()):
        if unit in found:
            found[unit].append(position)
    return [found[place] or [place] for place in places]


def strip_span(string: str, start: int, end: int) -> tuple[int, int]:
    """A span without the white space around it."""
    own = string[start:end]
    return start + len(own) - len(own.lstrip()), start + len(own.rstrip())


def render_units(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    units: Sequence[Sequence[int]],
    strings: TextPair,
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the units as a reader expects them, and which follow without a space.

    Args:
        ids: of all tokens of the text.
        units: of :func:`list_unit_positions`.
        strings: what was tokenized.
    """
    found = _cut_units_from_text(tokenizer, ids, units, strings)
    if found is not None:
        return found
    pieces = tokenizer.convert_ids_to_tokens(list(ids))
    if all(len(unit) == 1 for unit in units):
        of_units = [pieces[place] for (place,) in units]
        return split_tokenizer_markers(of_units)
    words = []
    for unit in units:
        shown, glued = split_tokenizer_markers([pieces[place] for place in unit])
        spaced = [part if k in glued else f" {part}" for k, part in enumerate(shown)]
        words.append("".join(spaced).strip())
    return tuple(words), ()


@preserve_tokenizer
def _cut_units_from_text(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    units: Sequence[Sequence[int]],
    strings: TextPair,
) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """The units cut out of the text itself; None where the tokens' places are not known."""
    if not tokenizer.is_fast:
        return None
    encoded = tokenizer(
        *strings,
        return_offsets_mapping=True,
        truncation="longest_first",
        max_length=len(ids),
    )
    if list(encoded["input_ids"]) != list(ids):
        return None
    segments, offsets = encoded.sequence_ids(0), encoded["offset_mapping"]
    shown: list[str] = []
    places: list[tuple[int, int, int]] = []  # segment, start, end
    for unit in units:
        segment = segments[unit[0]]
        start, end = offsets[unit[0]][0], offsets[unit[-1]][1]
        if segment is None or end <= start:
            return None
        string = strings[segment] or ""
        first, last = strip_span(string, start, end)
        if places and places[-1][0] == segment:
            # Bytes of one character share a place.
            first = max(first, min(places[-1][2], end))
        last = max(first, last)
        shown.append(string[first:last] or "…")
        places.append((segment, first, last))
    glued = [
        k
        for k, (before, own) in enumerate(pairwise(places), 1)
        if before[0] == own[0] and own[1] <= before[2]
    ]
    return tuple(shown), tuple(glued)


# --- A prompt, its units, and what stands around them --------------------------------------------


class PromptParts(NamedTuple):
    """A prompt as a reader expects it.

    Attributes:
        units: of the passage, without white space around them.
        glued: numbers of units that follow the one before without any.
        around: what stands before each unit, and behind the last one.
    """

    units: tuple[str, ...]
    glued: tuple[int, ...]
    around: tuple[str, ...]


def split_prompt(row: Mapping[str, Any]) -> PromptParts:
    """The prompt of a language model, without its answer.

    Args:
        row: of :func:`~hf_attnprobe.inference.answers.prepare_prompts`.
    """
    text, spans = row["text"], row["units"]
    units = [text[start:end] for start, end in spans]
    # What stands before, between and behind the units.
    around = []
    last = 0
    for start, end in spans:
        around.append(text[last:start])
        last = end
    around.append(text[last:])
    glued = [
        k
        for k, (before, own) in enumerate(pairwise(units), 1)
        if not (around[k] or before[-1:].isspace() or own[:1].isspace())
    ]
    bare = tuple(unit.strip() or "…" for unit in units)
    return PromptParts(bare, tuple(glued), tuple(around))


# --- What a model predicts of a text, and what its label says, in words --------------------------


def describe_prediction(
    prediction: Prediction,
    probs: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str, float | None]:
    """Returns what is predicted of a batch of one text, and its probability.

    Of several parts it is the mean of their probabilities, of a number there is none.

    Args:
        probs: [1, entries].
    """
    if prediction.is_number:
        return _format_numbers(prediction.decode_number(probs)[0]), None
    parts = prediction.group_by_part(probs)[0]
    present = parts.sum(-1) > 0
    decided = prediction.decide(probs)[0].masked_fill(~present, -1)
    decisions = _describe_decisions(prediction, decided, batch, tokenizer)
    total = parts.amax(-1).sum()
    probability = total / present.sum()
    return decisions, float(probability)


def describe_label(
    prediction: Prediction,
    probs: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str | None, bool | None]:
    """The label of a batch of one text, and whether it is what is predicted.

    None without a label, or where a number makes no decision.
    """
    labels = batch.labels
    if labels is None:
        return None, None
    own = labels[0].flatten()
    if prediction.is_number:
        if bool(own.isnan().any()):
            return None, None
        words = _format_numbers(own)
    elif not (own >= 0).any():
        return None, None
    else:
        words = _describe_decisions(prediction, own.long(), batch, tokenizer)
    if not prediction.decides:
        return words, None
    share = float(prediction.compute_accuracy(probs, labels)[0])
    return words, None if share != share else share == 1


def _format_numbers(values: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in values.tolist())


def _describe_decisions(
    prediction: Prediction,
    decided: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> str:
    """Decisions int [parts], −1 where there is none, in words."""
    numbers, kind = decided.tolist(), prediction.kind
    if kind == "labels":
        held = [n for n, k in zip(prediction.parts, numbers, strict=True) if k == 1]
        return ", ".join(held) or "none of the labels"
    if kind == "tags":
        counted = Counter(prediction.outcomes[k] for k in numbers if k >= 0)
        return ", ".join(f"{name} × {n}" for name, n in counted.most_common())
    if kind == "span":
        return _extract_answer(numbers, batch, tokenizer)
    if kind == "words":
        return _decode_masked_words(numbers, batch, tokenizer)
    if kind == "choice":
        return f"choice {numbers[0] + 1}"
    names = prediction.outcomes
    return names[numbers[0]] if numbers[0] < len(names) else str(numbers[0])


def _extract_answer(places: list[int], batch: Batch, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text between start and end."""
    start, end = places[:2]
    ids = batch.inputs["input_ids"][0]
    if not 0 <= start <= end < len(ids):
        return "no answer"
    return str(tokenizer.decode(ids[start : end + 1]))


def _decode_masked_words(
    numbers: list[int], batch: Batch, tokenizer: PreTrainedTokenizerBase
) -> str:
    """Returns the words under the masks, by their places among the likeliest."""
    kept = batch.inputs.get("kept", torch.empty(1, len(numbers), 0))[0]
    words = []
    for row, number in zip(kept.tolist(), numbers, strict=False):
        if 0 <= number < len(row):
            word = str(tokenizer.decode([row[number]]))
            words.append(word.strip())
        else:
            words.append("another word")
    return ", ".join(words)


# --- The scores of a text's tokens, from the same functions that the tests use -------------------
# A text is run alone, so that its numbers depend on no other one.


@dataclass(frozen=True)
class Explainer:
    """What is shown of texts.

    Attributes:
        model: behind the protocol.
        tokenizer: of the model.
        site: the attention that is shown.
        attention_of: which attention it is, in words.
        target: the class that is explained; None: of each text the predicted one.
        has_importances: whether units are left out, and gradients taken.
    """

    model: AttentionModelBase
    tokenizer: PreTrainedTokenizerBase
    site: Site
    attention_of: str = ""
    target: Any = None
    has_importances: bool = True

    def explain(self, text: Text, row: Mapping[str, Any]) -> HighlightedText:
        """One text with the scores of its tokens.

        Args:
            text: as it was tokenized for the model.
            row: of the data, from which it was tokenized.
        """
        batch = collate(self.model, [text], self.tokenizer.pad_token_id or 0)
        observation = self.model.observe(batch).with_target(self.target)
        if self.model.lacks(AnswersFromPassage) is None:
            return self._answered(observation, text, row)
        second = row.get("text_pair")
        if "chosen" in batch.inputs:
            second = row["choices"][int(batch.inputs["chosen"].flatten()[0])]
        probs = observation.probs
        ids = batch.inputs["input_ids"][0].tolist()
        units = list_unit_positions(batch)
        strings = row["text"], second
        tokens, glued = render_units(self.tokenizer, ids, units, strings)
        about = self.model.prediction
        said, probability = describe_prediction(about, probs, batch, self.tokenizer)
        label, correct = describe_label(about, probs, batch, self.tokenizer)
        scores = {"attention": observation.read(self.site)}
        scores |= self._importances(observation)
        content, unknown = batch.content_mask[0], self.tokenizer.unk_token_id
        segments = []
        if batch.segments is not None:
            segments = batch.segments[0][content].tolist()
        return HighlightedText(
            example_id=batch.example_ids[0],
            tokens=tokens,
            predicted=said,
            probability=probability,
            label=label,
            correct=correct,
            scores={name: _to_floats(v[0][content]) for name, v in scores.items()},
            segments=tuple(segments),
            glued=glued,
            unknown=tuple(
                k for k, unit in enumerate(units) if all(ids[place] == unknown for place in unit)
            ),
            attention_of=self.attention_of,
            speaks_for=self._speaks_for(observation),
        )

    def _answered(
        self, observation: Observation, text: Text, row: Mapping[str, Any]
    ) -> HighlightedText:
        """A prompt with the scores of its units, as a language model answered it."""
        model, batch = self.model.require(AnswersFromPassage), observation.batch
        content, weights = batch.content_mask[0], observation.read(self.site)[0]
        without = compute_answer_losses(
            observation, model.compute_probs_without_passage(observation)[None]
        )
        scores = {"attention": weights}
        matters = None
        if self._uses(EditableInputs):
            scores["knockout"] = measure_knockouts(observation, self.site, RENORMALISED)[0][0]
            scores["leave_one_out"] = measure_deletion_effects(observation)[0]
            contrast = measure_contrast_effects(observation)[0]
            if not contrast.isnan().any():
                scores["contrast"] = contrast
            if self.model.lacks(KeptPositions) is None:
                matters = find_units_that_matter(observation, Knockout().least_effect)[0][content]
        numbers = {
            SINK_SHARE_LABEL: float(weights[-1]),
            PASSAGE_SHARE_LABEL: float(weights[content].sum()),
            PASSAGE_GAIN_LABEL: float(without),
        }
        return replace(
            self.describe_answer(text, row),
            scores={name: _to_floats(values[content]) for name, values in scores.items()},
            numbers=numbers,
            matters=None if matters is None else tuple(matters.nonzero()[:, 0].tolist()),
            is_greedy=bool(model.is_greedy(observation)[0]),
        )

    def describe_answer(self, text: Text, row: Mapping[str, Any]) -> HighlightedText:
        """A prompt and its answer in words, without a score; arguments as :meth:`explain`."""
        prompt = split_prompt(row)
        answer = [*compress(text.inputs["input_ids"], text.inputs["labelled"])]
        decoded = self.tokenizer.decode(answer, clean_up_tokenization_spaces=False)
        said, expected = str(decoded).strip(), row.get("expected")
        is_right = None
        if expected is not None:
            is_right = expected.lower() in said.lower()
        if row.get("is_cut") and len(answer) == sum(row["labelled"]):
            said = f"{said} …"
        return HighlightedText(
            example_id=text.example_id,
            tokens=prompt.units,
            predicted=said,
            probability=None,
            label=expected,
            correct=is_right,
            scores={},
            glued=prompt.glued,
            attention_of=self.attention_of,
            speaks_for="the answer, in nats",
            around=prompt.around,
            unit=self.model.unit,
        )

    def _importances(self, observation: Observation) -> dict[str, Tensor]:
        """Gradient × input, and what leaving a token out changes; both signed.

        Their sizes are those that ``correlation`` ranks.
        """
        found: dict[str, Tensor] = {}
        entries = observation.get_target_classes(None)
        if self.model.prediction.is_number:
            entries = entries - entries % 2  # + is a larger number
        if self._uses(Differentiable):
            model = self.model.require(Differentiable, self.site)
            found["gradient"] = model.compute_gradient_times_input(observation, entries)
        if self._uses(EditableInputs):
            size = observation.compute_leave_one_out_importance()
            found["leave_one_out"] = size * _compute_signs(observation, entries)
        return found

    def _uses(self, capability: type) -> bool:
        """Whether importances are asked for, and the model can do what they need."""
        return self.has_importances and self.model.lacks(capability, self.site) is None

    def _speaks_for(self, observation: Observation) -> str:
        if self.model.prediction.is_number:
            return "a larger number"
        if observation.explained_class is None:
            return ""
        names = self.model.prediction.target_names
        known = observation.explained_class < len(names)
        return names[observation.explained_class] if known else str(observation.explained_class)


def _compute_signs(observation: Observation, entries: Tensor) -> Tensor:
    """Returns 1 where the entries' sum is less without a unit, else −1: [batch, keys]."""
    probs = observation.probs
    without = observation.leave_one_out
    flat = entries.reshape(len(probs), -1)
    total = torch.zeros_like(probs).scatter(-1, flat, 1.0)
    is_large = (probs * total).sum(-1) > 0.5
    before = compute_shifted_probability(probs, entries, is_large)[:, None]
    each = entries[:, None]
    if entries.dim() == 1:
        each = each.expand(without.shape[:2])
    after = compute_shifted_probability(without, each, is_large[:, None])
    speaks_for_less = after > before
    return torch.where(speaks_for_less, -1.0, 1.0).to(probs)


def _to_floats(values: Tensor) -> tuple[float, ...]:
    return tuple(values.detach().double().tolist())


def choose_model_attention(model: AttentionModelBase) -> tuple[Site, str]:
    """The attention that stands for a model, and which it is in words.

    The only head, or the mean of all of them.
    """
    sites = model.sites()
    if len(sites) == 1:
        return sites[0], ""
    return Site(ALL, ALL), f"the mean of all {len(sites)} heads"
