"""Computes scores for the units of one text, and describes its prediction and label in words.

The tests compute their statistics with the same functions. Every text runs alone, so that its
scores do not depend on other texts.
"""

import base64
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.transformer.image_patches import name_region
from hf_attnprobe.audits.audited_model import explains_tokens
from hf_attnprobe.audits.split_samples import measure_noise_floor
from hf_attnprobe.data.instances import COORDINATES_COLUMN
from hf_attnprobe.faithfulness.options import Knockout
from hf_attnprobe.faithfulness.passage_units import (
    RENORMALISED_KNOCKOUT,
    compute_answer_losses,
    find_units_that_matter,
    measure_contrast_effects,
    measure_deletion_effects,
    measure_knockouts,
    measure_position_noise,
)
from hf_attnprobe.faithfulness.rankings import compute_importance
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import ImageReader, InputReader, Text, preserve_tokenizer
from hf_attnprobe.plots.highlighted_text import (
    CERTIFIED_MAP_NAME,
    PASSAGE_GAIN_LABEL,
    PASSAGE_SHARE_LABEL,
    SINK_SHARE_LABEL,
    HighlightedText,
    UnitMap,
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
"""The strings of a text and of its second text, such as a premise and a hypothesis.

The second string is None for single texts.
"""


# --- Units in words ------------------------------------------------------------------------------


def list_unit_token_positions(batch: Batch) -> list[list[int]]:
    """List the token positions that belong to each explained unit of a text.

    Args:
        batch: A batch with a single text.

    Returns:
        Token positions for each unit (a token, a word or a sentence).
    """
    positions = batch.content_mask[0].nonzero().flatten().tolist()
    unit_of_token = batch.inputs.get("units")
    if unit_of_token is None:
        return [[position] for position in positions]
    # The model identifies each unit by the position of its first token.
    tokens_by_unit: dict[int, list[int]] = {position: [] for position in positions}
    for position, unit in enumerate(unit_of_token[0].tolist()):
        if unit in tokens_by_unit:
            tokens_by_unit[unit].append(position)
    return [tokens_by_unit[position] or [position] for position in positions]


def strip_span(string: str, start: int, end: int) -> tuple[int, int]:
    """Shrink a span so that it excludes white space at its start and end.

    Args:
        string: The string.
        start: Start position in the string.
        end: End position, exclusive.

    Returns:
        New start and end.
    """
    substring = string[start:end]
    n_leading_blanks = len(substring) - len(substring.lstrip())
    stripped_end = start + len(substring.rstrip())
    return start + n_leading_blanks, stripped_end


def render_units(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    units: Sequence[Sequence[int]],
    strings: TextPair,
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Render units as readable strings.

    If possible, the units are cut out of the original text. Otherwise they are put together from
    the tokens.

    Args:
        tokenizer: The model's tokenizer.
        ids: Token ids for the whole text.
        units: Token positions for every unit, see :func:`list_unit_token_positions`.
        strings: The original text.

    Returns:
        The units, and the indices of units that follow the previous unit without a space.
    """
    rendered_units = _cut_units_from_text(tokenizer, ids, units, strings)
    if rendered_units is not None:
        return rendered_units
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    if all(len(unit) == 1 for unit in units):
        return split_tokenizer_markers([tokens[position] for (position,) in units])
    words = []
    for unit in units:
        pieces, glued_indices = split_tokenizer_markers([tokens[position] for position in unit])
        word = ""
        for index, piece in enumerate(pieces):
            word += piece if index in glued_indices else f" {piece}"
        words.append(word.strip())
    return tuple(words), ()


@preserve_tokenizer
def _cut_units_from_text(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    units: Sequence[Sequence[int]],
    strings: TextPair,
) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Cut units out of the original text; return None if token positions are unknown."""
    if not tokenizer.is_fast:
        return None
    encoding = tokenizer(
        *strings,
        return_offsets_mapping=True,
        truncation="longest_first",
        max_length=len(ids),
    )
    if list(encoding["input_ids"]) != list(ids):
        return None
    segments, offsets = encoding.sequence_ids(0), encoding["offset_mapping"]
    unit_strings: list[str] = []
    # Each entry holds a unit's segment, start and end.
    spans: list[tuple[int, int, int]] = []
    for unit in units:
        segment = segments[unit[0]]
        start, end = offsets[unit[0]][0], offsets[unit[-1]][1]
        if segment is None or end <= start:
            return None
        string = strings[segment] or ""
        stripped_start, stripped_end = strip_span(string, start, end)
        if spans and spans[-1][0] == segment:
            # Tokens that encode bytes of one character have the same span.
            stripped_start = max(stripped_start, min(spans[-1][2], end))
        stripped_end = max(stripped_start, stripped_end)
        unit_strings.append(string[stripped_start:stripped_end] or "…")
        spans.append((segment, stripped_start, stripped_end))
    glued_indices = [
        index
        for index, (previous_span, span) in enumerate(pairwise(spans), 1)
        if previous_span[0] == span[0] and span[1] <= previous_span[2]
    ]
    return tuple(unit_strings), tuple(glued_indices)


class PromptParts(NamedTuple):
    """A prompt, split into its units and the text around them.

    Attributes:
        units: Units of the passage, without surrounding white space.
        glued: Indices of units that follow the previous unit without white space between them.
        around: Text before each unit, and the text after the last unit.
    """

    units: tuple[str, ...]
    glued: tuple[int, ...]
    around: tuple[str, ...]


def split_prompt(row: Mapping[str, Any]) -> PromptParts:
    """Split a language model's prompt, without its answer, into units.

    Args:
        row: A prompt in the form that :func:`~hf_attnprobe.inference.answers.prepare_prompts`
            returns: its text, and the start and end of each unit.

    Returns:
        The units and the text before, between and after them.
    """
    text, spans = row["text"], row["units"]
    units = [text[start:end] for start, end in spans]
    surroundings = []
    previous_end = 0
    for start, end in spans:
        surroundings.append(text[previous_end:start])
        previous_end = end
    surroundings.append(text[previous_end:])
    # Two units without any text or white space between them are displayed without a gap.
    glued_indices = []
    for index, (previous_unit, unit) in enumerate(pairwise(units), 1):
        has_space = previous_unit[-1:].isspace() or unit[:1].isspace()
        if not surroundings[index] and not has_space:
            glued_indices.append(index)
    stripped_units = tuple(unit.strip() or "…" for unit in units)
    return PromptParts(stripped_units, tuple(glued_indices), tuple(surroundings))


# --- Patches and instances -----------------------------------------------------------------------

MAX_PICTURE_SIDE = 224
"""Largest width and height, in pixels, of an image in a report. Larger images are reduced."""


def locate_units(
    model: AttentionModelBase,
    reader: InputReader,
    observation: Observation,
    row: Mapping[str, Any],
) -> tuple[tuple[str, ...], UnitMap]:
    """Find the names and the positions of an image's patches, or of a bag's instances.

    Args:
        model: The model.
        reader: Reader of images or bags.
        observation: The observed image or bag.
        row: The data row, with the coordinates of a bag.

    Returns:
        A name for each unit, and their positions.
    """
    if isinstance(reader, ImageReader):
        # Only Transformers read images.
        assert isinstance(model, TransformerAdapter) and model.patches is not None
        grid = model.patches.grid
        image = reader.restore_image(observation.batch.inputs["pixel_values"][0])
        scale = min(1.0, MAX_PICTURE_SIDE / max(image.size))
        width, height = (max(1, round(side * scale)) for side in image.size)
        scale_x, scale_y = width / image.width, height / image.height
        stream = io.BytesIO()
        image.resize((width, height)).save(stream, format="PNG", optimize=True)
        positions, cells = [], []
        for region in model.patches.regions:
            rows, columns = region.find_pixels(grid)
            centre = (columns.start + columns.stop) / 2, (rows.start + rows.stop) / 2
            positions.append((centre[0] * scale_x, centre[1] * scale_y))
            region_width, region_height = columns.stop - columns.start, rows.stop - rows.start
            cells.append((region_width * scale_x, region_height * scale_y))
        unit_map = UnitMap(
            unit=model.unit,
            input_name="image",
            positions=tuple(positions),
            cells=tuple(cells),
            picture=base64.b64encode(stream.getvalue()).decode(),
        )
        return tuple(map(name_region, model.patches.regions)), unit_map
    coordinates = [(float(x), float(y)) for x, y in row[COORDINATES_COLUMN]]
    names = tuple(f"{model.unit} {index}" for index in range(len(coordinates)))
    return names, UnitMap(unit=model.unit, input_name="bag", positions=tuple(coordinates))


# --- Predictions and labels in words -------------------------------------------------------------


def describe_prediction(
    prediction: Prediction,
    probs: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str, float | None]:
    """Describe the prediction for a text.

    Args:
        prediction: The model's prediction type and its outcomes.
        probs: Probabilities of the outcomes, `[1, outcomes]`.
        batch: A batch with a single text.
        tokenizer: The model's tokenizer.

    Returns:
        The prediction in words, and its probability. If a prediction has several parts, such as one
        tag per word, the probability is their mean. It is None if the model predicts a number.
    """
    if prediction.is_number:
        return _format_numbers(prediction.decode_number(probs)[0]), None
    parts = prediction.group_by_part(probs)[0]
    # The probabilities of a part sum to 1, or to 0 if the part is padding.
    is_present = parts.sum(-1) > 0
    decisions = prediction.decide(probs)[0].masked_fill(~is_present, -1)
    description = _describe_decisions(prediction, decisions, batch, tokenizer)
    probability = parts.amax(-1).sum() / is_present.sum()
    return description, float(probability)


def describe_label(
    prediction: Prediction,
    probs: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str | None, bool | None]:
    """Describe a text's label, and compare it with the prediction.

    Args:
        prediction: The model's prediction type and its outcomes.
        probs: Probabilities, `[1, entries]`.
        batch: A batch with a single text.
        tokenizer: The model's tokenizer.

    Returns:
        The label in words, and whether the prediction is right. Both are None without a label. The
        second value is also None if the model predicts a number without a decision threshold.
    """
    if batch.labels is None:
        return None, None
    labels = batch.labels[0].flatten()
    if prediction.is_number:
        if bool(labels.isnan().any()):
            return None, None
        description = _format_numbers(labels)
    elif not (labels >= 0).any():
        return None, None
    else:
        description = _describe_decisions(prediction, labels.long(), batch, tokenizer)
    if not prediction.decides:
        return description, None
    accuracy = float(prediction.compute_accuracy(probs, batch.labels)[0])
    if math.isnan(accuracy):
        return description, None
    return description, accuracy == 1


def _format_numbers(values: Tensor) -> str:
    """Format numbers with four significant digits, separated by commas."""
    return ", ".join(f"{value:.4g}" for value in values.tolist())


def _describe_decisions(
    prediction: Prediction,
    decisions: Tensor,
    batch: Batch,
    tokenizer: PreTrainedTokenizerBase,
) -> str:
    """Describe a model's decisions about a text in words.

    Args:
        prediction: The model's prediction type and its outcomes.
        decisions: Outcome index for each part, int `[parts]`; −1 for no decision.
        batch: A batch with a single text.
        tokenizer: The model's tokenizer.

    Returns:
        The decisions in words.
    """
    indices, kind = decisions.tolist(), prediction.kind
    if kind == "labels":
        names = [name for name, index in zip(prediction.parts, indices, strict=True) if index == 1]
        return ", ".join(names) or "none of the labels"
    if kind == "tags":
        counts = Counter(prediction.outcomes[index] for index in indices if index >= 0)
        return ", ".join(f"{name} × {count}" for name, count in counts.most_common())
    if kind == "span":
        return _extract_answer(indices, batch, tokenizer)
    if kind == "words":
        return _decode_masked_words(indices, batch, tokenizer)
    if kind == "choice":
        return f"choice {indices[0] + 1}"
    classes = prediction.outcomes
    return classes[indices[0]] if indices[0] < len(classes) else str(indices[0])


def _extract_answer(span: list[int], batch: Batch, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of the answer that a model extracts from its input.

    Args:
        span: Positions of the answer's first and last token.
        batch: A batch with a single text.
        tokenizer: The model's tokenizer.

    Returns:
        The answer; "no answer" if the positions are invalid.
    """
    start, end = span[:2]
    ids = batch.inputs["input_ids"][0]
    if not 0 <= start <= end < len(ids):
        return "no answer"
    return str(tokenizer.decode(ids[start : end + 1]))


def _decode_masked_words(ranks: list[int], batch: Batch, tokenizer: PreTrainedTokenizerBase) -> str:
    """Decode the words that a masked language model predicts at its masks.

    Args:
        ranks: For each mask, the rank of the predicted token among the stored likely tokens.
        batch: A batch with a single text. Its input "candidate_ids" holds the likely token ids of
            each mask.
        tokenizer: The model's tokenizer.

    Returns:
        The words, joined by commas; "another word" if a rank has no stored token.
    """
    likely_tokens = batch.inputs.get("candidate_ids", torch.empty(1, len(ranks), 0))[0]
    words = []
    for token_ids, rank in zip(likely_tokens.tolist(), ranks, strict=False):
        if 0 <= rank < len(token_ids):
            words.append(str(tokenizer.decode([token_ids[rank]])).strip())
        else:
            words.append("another word")
    return ", ".join(words)


# --- Scores for the units of a text ---------------------------------------------------------------


@dataclass(frozen=True)
class Explainer:
    """Computes the unit scores of texts, for display in a report.

    Attributes:
        model: The model.
        tokenizer: The model's tokenizer, or its reader of images or bags.
        site: Site whose attention is displayed.
        attention_of: Description of the displayed attention, such as "the mean of all 72 heads".
        target: Class to explain; None for each text's predicted class.
        has_importances: Whether leave-one-out and gradients are computed in addition to attention.
        alternative: Name of the ranking whose scores are displayed next to attention, such as
            "product"; None for no other ranking.
        compute_map: Function that computes the scores of an attention map, `[batch, keys]`, which are
            displayed as "map"; None for no map.
        map_name: Name of this map, such as "map (not certified)".
    """

    model: AttentionModelBase
    tokenizer: PreTrainedTokenizerBase | InputReader
    site: Site
    attention_of: str = ""
    target: Any = None
    has_importances: bool = True
    alternative: str | None = None
    compute_map: Callable[[Observation, Site], Tensor] | None = None
    map_name: str = CERTIFIED_MAP_NAME

    @property
    def _text_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer. Descriptions of images and bags, whose predictions are classes, ignore it."""
        return cast(PreTrainedTokenizerBase, self.tokenizer)

    def explain(self, text: Text, row: Mapping[str, Any]) -> HighlightedText:
        """Compute the attention and importance scores of a text's units.

        Args:
            text: The text as tokens.
            row: The data row from which the text was encoded.

        Returns:
            The text with its prediction and scores.
        """
        batch = collate(self.model, [text], self.tokenizer.pad_token_id or 0)
        observation = self.model.observe(batch).with_target(self.target)
        if self.model.lacks(AnswersFromPassage) is None:
            return self._explain_answer(observation, text, row)
        unit_map: UnitMap | None = None
        glued: tuple[int, ...] = ()
        unknown_units: list[int] = []
        if isinstance(self.tokenizer, InputReader):
            tokens, unit_map = locate_units(self.model, self.tokenizer, observation, row)
        else:
            tokens, glued, unknown_units = self._render_tokens(batch, row)
        prediction, probs = self.model.prediction, observation.probs
        predicted_outcome, probability = describe_prediction(
            prediction, probs, batch, self._text_tokenizer
        )
        label, is_correct = describe_label(prediction, probs, batch, self._text_tokenizer)
        scores = {"attention": observation.read(self.site)}
        scores |= self._compute_map_scores(observation)
        if self.alternative is not None:
            with torch.enable_grad():
                values = compute_importance(observation, self.site, self.alternative)
            scores[self.alternative] = values.detach()
        scores |= self._compute_importances(observation)
        is_content = batch.content_mask[0]
        segments = []
        if batch.segments is not None:
            segments = batch.segments[0][is_content].tolist()
        return HighlightedText(
            example_id=batch.example_ids[0],
            tokens=tokens,
            predicted=predicted_outcome,
            probability=probability,
            label=label,
            correct=is_correct,
            scores={
                name: _convert_to_floats(values[0][is_content]) for name, values in scores.items()
            },
            segments=tuple(segments),
            glued=glued,
            unknown=tuple(unknown_units),
            attention_of=self.attention_of,
            speaks_for=self._name_explained_class(observation),
            unit_map=unit_map,
            level="token" if explains_tokens(self.model) else "word",
            map_name=self.map_name,
        )

    def _render_tokens(
        self, batch: Batch, row: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], tuple[int, ...], list[int]]:
        """Render the units of a text as strings.

        Returns:
            The units, the indices of units that follow the previous one without a space, and the
            indices of units that are not in the vocabulary.
        """
        second_text = row.get("text_pair")
        if "chosen" in batch.inputs:
            second_text = row["choices"][int(batch.inputs["chosen"].flatten()[0])]
        ids = batch.inputs["input_ids"][0].tolist()
        units = list_unit_token_positions(batch)
        tokens, glued = render_units(self._text_tokenizer, ids, units, (row["text"], second_text))
        unknown_id = self.tokenizer.unk_token_id
        unknown_units = [
            index
            for index, unit in enumerate(units)
            if all(ids[position] == unknown_id for position in unit)
        ]
        return tokens, glued, unknown_units

    def _explain_answer(
        self, observation: Observation, text: Text, row: Mapping[str, Any]
    ) -> HighlightedText:
        """Compute unit scores for a prompt, which explain the language model's answer."""
        model, batch = self.model.require(AnswersFromPassage), observation.batch
        is_unit, weights = batch.content_mask[0], observation.read(self.site)[0]
        probs_without_passage = model.compute_probs_without_passage(observation)
        passage_gain = compute_answer_losses(observation, probs_without_passage[None])
        scores = {"attention": weights}
        scores |= {
            name: values[0] for name, values in self._compute_map_scores(observation).items()
        }
        units_that_matter = None
        noise: tuple[float, ...] = ()
        least_effect = None
        if self._can_compute(EditableInputs):
            knockout_losses, _ = measure_knockouts(observation, self.site, RENORMALISED_KNOCKOUT)
            scores["knockout"] = knockout_losses[0]
            scores["leave_one_out"] = measure_deletion_effects(observation)[0]
            contrast = measure_contrast_effects(observation)[0]
            if not contrast.isnan().any():
                scores["contrast"] = contrast
            if self.model.lacks(KeptPositions) is None:
                least_effect = max(Knockout().least_effect, measure_noise_floor(observation))
                matters = find_units_that_matter(observation, least_effect)[0][is_unit]
                units_that_matter = tuple(matters.nonzero()[:, 0].tolist())
                position_noise = measure_position_noise(observation, least_effect)[0]
                noise = _convert_to_floats(position_noise[is_unit])
        return replace(
            self.describe_answer(text, row),
            scores={name: _convert_to_floats(values[is_unit]) for name, values in scores.items()},
            numbers={
                SINK_SHARE_LABEL: float(weights[-1]),
                PASSAGE_SHARE_LABEL: float(weights[is_unit].sum()),
                PASSAGE_GAIN_LABEL: float(passage_gain),
            },
            matters=units_that_matter,
            is_greedy=bool(model.is_greedy(observation)[0]),
            noise=noise,
            least_effect=least_effect,
        )

    def describe_answer(self, text: Text, row: Mapping[str, Any]) -> HighlightedText:
        """Describe a prompt and its answer in words, without scores.

        Args:
            text: The prompt and the answer as tokens.
            row: The data row from which the text was encoded.

        Returns:
            The prompt with its answer.
        """
        prompt = split_prompt(row)
        answer_ids = [*compress(text.inputs["input_ids"], text.inputs["labelled"])]
        answer = str(
            self._text_tokenizer.decode(answer_ids, clean_up_tokenization_spaces=False)
        ).strip()
        expected_answer = row.get("expected")
        is_correct = None
        if expected_answer is not None:
            is_correct = expected_answer.lower() in answer.lower()
        is_whole_answer = len(answer_ids) == sum(row["labelled"])
        if row.get("is_cut") and is_whole_answer:
            answer = f"{answer} …"
        return HighlightedText(
            example_id=text.example_id,
            tokens=prompt.units,
            predicted=answer,
            probability=None,
            label=expected_answer,
            correct=is_correct,
            scores={},
            glued=prompt.glued,
            attention_of=self.attention_of,
            speaks_for="the answer, in nats",
            around=prompt.around,
            unit=self.model.unit,
            map_name=self.map_name,
        )

    def _compute_map_scores(self, observation: Observation) -> dict[str, Tensor]:
        """Compute the scores of the attention map, `[batch, keys]`; empty without a map."""
        if self.compute_map is None:
            return {}
        return {"map": self.compute_map(observation, self.site)}

    def _compute_importances(self, observation: Observation) -> dict[str, Tensor]:
        """Compute signed gradient × input and leave-one-out, each `[batch, keys]`.

        The test ``correlation`` ranks units by their absolute values.
        """
        importances: dict[str, Tensor] = {}
        entries = observation.get_target_classes(None)
        if self.model.prediction.is_number:
            # A predicted number is stored as two entries, "larger" (even index) and "smaller" (odd
            # index). Always explain "larger", so that positive scores support a larger number.
            is_odd = entries % 2
            entries = entries - is_odd
        if self._can_compute(Differentiable):
            model = self.model.require(Differentiable, self.site)
            importances["gradient"] = model.compute_gradient_times_input(observation, entries)
        if self._can_compute(EditableInputs):
            output_change = observation.compute_leave_one_out_importance()
            importances["leave_one_out"] = output_change * _compute_signs(observation, entries)
        return importances

    def _can_compute(self, capability: type) -> bool:
        """Return whether importances are requested and the model has the capability for them."""
        return self.has_importances and self.model.lacks(capability, self.site) is None

    def _name_explained_class(self, observation: Observation) -> str:
        """Return the name of the class that positive scores support; empty if there is none."""
        if self.model.prediction.is_number:
            return "a larger number"
        explained_class = observation.explained_class
        if explained_class is None:
            return ""
        names = self.model.prediction.target_names
        has_name = explained_class < len(names)
        return names[explained_class] if has_name else str(explained_class)


def _compute_signs(observation: Observation, entries: Tensor) -> Tensor:
    """Compute whether each unit (token, word or sentence) supports or opposes the explained outcome.

    A unit opposes an outcome if the outcome becomes more probable when the unit is removed.

    Args:
        observation: A model's output on a batch.
        entries: Indices of the explained outcomes, int `[batch]`. If a prediction has several parts,
            there is one outcome for each part, `[batch, parts]`.

    Returns:
        −1 for a unit that opposes the outcomes, else 1, `[batch, keys]`.
    """
    probs, probs_without_unit = observation.probs, observation.leave_one_out
    # The mask is 1 at the explained outcomes.
    is_target = torch.zeros_like(probs).scatter(-1, entries.reshape(len(probs), -1), 1.0)
    # For probabilities near 1, compare p − 1 instead of p: floating-point numbers near 0 have more
    # digits, so that small differences remain visible.
    is_large = (probs * is_target).sum(-1) > 0.5
    # Compare this probability before and after each unit is removed.
    probability = compute_shifted_probability(probs, entries, is_large)[:, None]
    entries_by_unit = entries[:, None]
    if entries.dim() == 1:
        entries_by_unit = entries_by_unit.expand(probs_without_unit.shape[:2])
    probability_without_unit = compute_shifted_probability(
        probs_without_unit, entries_by_unit, is_large[:, None]
    )
    return torch.where(probability_without_unit > probability, -1.0, 1.0).to(probs)


def _convert_to_floats(values: Tensor) -> tuple[float, ...]:
    """Convert a one-dimensional tensor to a tuple of floats."""
    return tuple(values.detach().double().tolist())


def choose_model_attention(model: AttentionModelBase) -> tuple[Site, str]:
    """Choose the attention that represents a model: its only head, or the mean of all heads.

    Args:
        model: The model.

    Returns:
        The site and its description, which is empty if there is only one head.
    """
    sites = model.sites()
    if len(sites) == 1:
        return sites[0], ""
    return Site(ALL, ALL), describe_head_mean(model, f"all {len(sites)} heads")


def describe_head_mean(model: AttentionModelBase, heads: str) -> str:
    """Describe the attention map of a group of heads.

    Args:
        model: The model.
        heads: Name of the heads, such as "all 72 heads".

    Returns:
        A description such as "the mean of all 72 heads, weighted by what they write".
    """
    weighting = ", weighted by what they write" if model.weighs_heads else ""
    return f"the mean of {heads}{weighting}"
