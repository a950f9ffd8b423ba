"""Example texts in reports: sentences for text formats, and shaded tokens for pages."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hf_attnprobe.documents.blocks import Block, InlineText, Strong, UserText
from hf_attnprobe.plots.highlighted_text import (
    NEGLIGIBLE_SCORE,
    SIGNED_RANKINGS,
    UNSIGNED_ALTERNATIVES,
    HighlightedText,
    strip_chat_markers,
)
from hf_attnprobe.statistics.wording import form_plural


RANKING_TITLES = {
    "attention": "attention",
    "map": "fitted map",
    "product": "attention × gradient",
    "last_layer": "attention of the last layer",
    "rollout": "attention rollout",
    "input_gradient": "size of gradient × input",
    "leave_one_out": "leave-one-out",
    "knockout": "knockout",
    "contrast": "contrast",
    "gradient": "gradient × input",
}
"""Maps each ranking to its title in reports, in the order of display."""

RANKING_MEANINGS = {
    "attention": "the weight that the model gives each {unit}",
    "map": "the score in an attention map that was fitted to the model",
    "product": "attention to the {unit}, times how much more of it would raise the {output}",
    "last_layer": "the weight that the last layer gives each {unit}",
    "rollout": "the share of the {unit} in the last layer if attention passes it on",
    "input_gradient": "how strongly the output reacts to the {unit}, in either direction",
    "leave_one_out": "the drop of the {output} without the {unit}",
    "knockout": "the drop of the answer if no later token can attend to the {unit}",
    "contrast": "the drop of the answer's margin over the other answer without the {unit}",
    "gradient": "how strongly the output reacts to the {unit}, with attention held fixed",
}
"""Maps each ranking to the explanation of its scores in a report.

``{unit}`` is replaced by the name of one unit, such as "word" or "sentence". ``{output}`` is replaced by
"prediction" or "answer".
"""

MAP_TITLES = {"attention": "attention", "leave_one_out": "effect of leaving out"}
"""Maps each ranking that a map of patches or instances displays to its title."""

N_VISIBLE_RANKINGS = 2
"""Number of rankings per text that a page displays at first. Readers click to see the others."""

MIN_PRINTED_WEIGHT = 0.05
"""Smallest attention weight that Markdown and terminal reports print after its token."""

N_PRINTED_TOKENS = 5
"""Number of tokens that Markdown and terminal reports list for each ranking.

These are the tokens with the largest scores.
"""

N_SHADES = 9
"""Number of background shades for tokens.

Shade 9 marks the token with the largest score of a text.
"""

N_VISIBLE_TOKENS = 400
"""Number of tokens per text that a page displays at first. Readers click to see the others."""

N_VISIBLE_UNITS = 30
"""Number of sentences, or other long units of a prompt, that a page displays at first."""

MAX_PAGE_TOKENS = 600
"""Maximum number of tokens that all example texts on a page have together.

The first text is displayed even if it is longer.
"""

MAP_LENGTH = 60
"""Number of tokens that a map of patches or instances counts for :data:`MAX_PAGE_TOKENS`."""

MAX_MENTIONED_SHARE = 0.99
"""Share of attention on the displayed tokens below which a report mentions this share."""

INVISIBLE_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"
)
"""Pattern for invisible characters. Pages display their code points instead, such as ``[U+202E]``.

The pattern matches control characters, marks that change the writing direction, and code points
that UTF-8 cannot encode.
"""


def escape_invisible(text: str) -> str:
    r"""Replace invisible characters by their code points, so that readers can see them.

    >>> escape_invisible("a\u202eb\x00")
    'a[U+202E]b[U+0000]'

    Args:
        text: any text; HTML that is already escaped is returned unchanged.
    """
    # Only strings that Jinja treats as escaped HTML have this method.
    if hasattr(text, "__html__"):
        return text
    return INVISIBLE_CHARACTERS.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)


# --- text formats ---------------------------------------------------------------------


def describe_highlighted_text(text: HighlightedText) -> list[Block]:
    """Describe an example text in words, for terminal and Markdown.

    Args:
        text: the text with its scores.

    Returns:
        A sentence about the prediction, and a list with one item per ranking.
    """
    attention_notes = "; ".join(describe_attention_share(text))
    aside = f" ({attention_notes})" if attention_notes else ""
    items: list[InlineText] = [(f"attention{aside}: ", *_mark_weights(text))]
    if text.unit_map is not None:
        items = [(f"attention{aside}, largest: ", *_list_largest_scores(text, "attention"))]
    for name in (*UNSIGNED_ALTERNATIVES, *SIGNED_RANKINGS):
        if name in text.scores:
            title = text.map_name if name == "map" else RANKING_TITLES[name]
            items.append((f"{title}, largest: ", *_list_largest_scores(text, name)))
    # Only prompts for language models, which are answered, have a unit.
    if text.unit:
        predicted_verb, label_verb = "answered", "expected"
    else:
        predicted_verb, label_verb = "predicted", "labelled"
    label: list[str] = []
    if text.label is not None:
        label = [f", {label_verb} ", UserText(text.label)]
    ending = "" if text.predicted.endswith(".") else "."
    if text.probability is not None:
        ending = f" with probability {text.probability:.3f}."
    summary = f" {text.importance_summary}" if text.importance_summary else ""
    reason = f" Reason for showing it: {text.displayed_reason}." if text.displayed_reason else ""
    question: list[str] = []
    if text.question:
        question = [", question ", UserText(text.question)]
    sentence = (
        text.name,
        *question,
        *label,
        f": {predicted_verb} ",
        UserText(text.predicted),
        f"{ending}{summary}{reason}",
    )
    return [sentence, items]


def describe_attention_share(text: HighlightedText) -> list[str]:
    """Return notes on the displayed attention, such as "80% of it on these words".

    Args:
        text: the text with its scores.
    """
    notes = [text.attention_of] if text.attention_of else []
    share = sum(text.scores["attention"])
    if share < MAX_MENTIONED_SHARE:
        notes.append(f"{share:.0%} of it on these {form_plural(text.unit_noun)}")
    return notes


def _list_largest_scores(text: HighlightedText, name: str) -> list[str]:
    """List the tokens with the largest absolute scores, each with its score."""
    scores = text.scores[name]
    sign = "+" if name in SIGNED_RANKINGS else ""
    order = sorted(range(len(scores)), key=lambda k: -abs(scores[k]))
    parts = []
    for k in order[:N_PRINTED_TOKENS]:
        parts.append([UserText(text.tokens[k]), f" ({scores[k]:{sign}.2g})"])
    return _join_parts(parts, ", ")


def _mark_weights(text: HighlightedText) -> list[str]:
    """Format the tokens of a text, with bold type for tokens with a large attention weight.

    The weight follows a bold token in brackets. In a pair of texts, a label precedes each text.

    Returns:
        Parts of a sentence.
    """
    parts: list[list[str]] = []
    # In a pair of texts, segment 0 is the first text and segment 1 the second.
    segment_names = ("(text)", "(second text)")
    previous_segment = None
    for k, (token, weight) in enumerate(zip(text.tokens, text.scores["attention"], strict=True)):
        if text.segments and text.segments[k] != previous_segment:
            previous_segment = text.segments[k]
            parts.append([segment_names[previous_segment]])
        if weight >= MIN_PRINTED_WEIGHT:
            parts.append([Strong(token), f" ({weight:.2f})"])
        else:
            parts.append([UserText(token)])
    return _join_parts(parts, " ")


def _join_parts(parts: Sequence[Sequence[str]], separator: str) -> list[str]:
    """Concatenate lists of strings, with a separator between neighbouring lists.

    For example, the lists [a, b] and [c] become [a, b, separator, c].
    """
    spans: list[str] = []
    for part in parts:
        if spans:
            spans.append(separator)
        spans += part
    return spans


def describe_unit_maps(text: HighlightedText) -> str:
    """Describe the maps of an image or a bag in words, for readers who cannot see them.

    Args:
        text: an image or a bag with positions.
    """
    unit_map = text.unit_map
    if unit_map is None:
        raise TypeError(f"{text.name} has no positions, so it has no maps")
    sentences = []
    if unit_map.picture:
        sentences.append(f"The {unit_map.input_name}, followed by maps of its scores.")
    n_units = f"{len(text.tokens):,} {form_plural(unit_map.unit)}"
    for name, title in MAP_TITLES.items():
        if name in text.scores:
            largest_scores = "".join(map(str, _list_largest_scores(text, name)))
            sentences.append(f"Map of the {title} of {n_units}, the largest: {largest_scores}.")
    return " ".join(sentences)


# --- pages ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ShadedRanking:
    """A text's tokens, shaded by their scores in one ranking.

    Attributes:
        key: the ranking's name in the scores.
        name: the ranking's title.
        aside: explanation of the scores.
        is_signed: whether scores can be negative.
        tokens: five strings per token: heading before the token (else ""), space before it, CSS
            classes, the token, and its score (else "").
    """

    key: str
    name: str
    aside: str
    is_signed: bool
    tokens: list[tuple[str, str, str, str, str]]


def select_fitting_texts(texts: Sequence[HighlightedText]) -> list[HighlightedText]:
    """Select the first texts in the list, until a page is full.

    The first text is always selected.

    Args:
        texts: the texts in display order.
    """
    fitting_texts = []
    n_tokens = 0
    for k, text in enumerate(texts):
        n_tokens += len(text.tokens) if text.unit_map is None else MAP_LENGTH
        if k == 0 or n_tokens <= MAX_PAGE_TOKENS:
            fitting_texts.append(text)
    return fitting_texts


def list_ranking_names(texts: Sequence[HighlightedText]) -> list[str]:
    """List the rankings for which any text has scores.

    Rankings with a title come first.

    Args:
        texts: texts with their scores.
    """
    names = dict.fromkeys(name for text in texts for name in text.scores)
    names_with_title = [name for name in RANKING_TITLES if name in names]
    names_without_title = [name for name in names if name not in RANKING_TITLES]
    return names_with_title + names_without_title


def shade_rankings(text: HighlightedText) -> Iterator[ShadedRanking]:
    """Yield the tokens of a text once per ranking, with shades that show their scores.

    Args:
        text: the text with its scores.

    Yields:
        The shaded tokens, one ranking after the other.
    """
    for name in list_ranking_names([text]):
        scores = text.scores[name]
        largest_score = max((abs(score) for score in scores if not math.isnan(score)), default=0.0)
        is_signed = name in SIGNED_RANKINGS
        output = "answer" if text.unit else "prediction"
        meaning = RANKING_MEANINGS.get(name, "").format(unit=text.unit_noun, output=output)
        if scores and largest_score < NEGLIGIBLE_SCORE:
            # Shading is relative to the largest score, which would exaggerate tiny scores.
            meaning = "all below 1e-6"
            largest_score = 0.0
        notes = describe_attention_share(text) if name == "attention" else []
        if is_signed and text.speaks_for:
            notes = [f"+ for {text.speaks_for}"]
        yield ShadedRanking(
            name,
            text.map_name if name == "map" else RANKING_TITLES.get(name, name),
            "; ".join(filter(None, [meaning, *notes])),
            is_signed,
            list(_shade_tokens(text, name, largest_score)),
        )


@dataclass(frozen=True)
class PassageUnit:
    """A sentence or another long unit of a prompt, as a page displays it.

    Attributes:
        heading: text of the prompt before the unit; empty if there is none.
        text: the unit.
        css_classes: shade by leave-one-out; empty if the answer does not depend on the unit.
        loss: leave-one-out score with its sign, as text; empty if it was not measured.
        bar: attention in percent of the largest attention in the prompt.
        attention: attention in percent, as text.
    """

    heading: str
    text: str
    css_classes: str
    loss: str
    bar: float
    attention: str


def list_passage_units(text: HighlightedText) -> list[PassageUnit]:
    """List the units of a prompt with their attention, and mark those that the answer depends on.

    If it is known which units matter more than noise, only these are shaded.

    Args:
        text: a prompt.
    """
    weights = text.scores["attention"]
    largest_weight = max(weights, default=0.0) or 1.0
    missing_losses = (math.nan,) * len(text.tokens)
    losses = text.scores.get("leave_one_out", missing_losses)
    largest_loss = max((abs(loss) for loss in losses if not math.isnan(loss)), default=0.0)
    units = []
    for k, (unit, weight, loss) in enumerate(zip(text.tokens, weights, losses, strict=True)):
        matters = text.matters is None or k in text.matters
        shade = _compute_shade(loss, largest_loss) if matters else 0
        css_classes = ""
        if shade:
            css_classes = f"s{shade} m" if loss < 0 else f"s{shade}"
        heading = strip_chat_markers(text.around[k]) if text.around and k > 0 else ""
        units.append(
            PassageUnit(
                heading,
                unit,
                css_classes,
                "" if math.isnan(loss) else f"{loss:+.2f} nats",
                round(100 * weight / largest_weight, 1),
                f"{weight:.0%}",
            )
        )
    return units


def _shade_tokens(
    text: HighlightedText, name: str, largest_score: float
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield five strings per token: its heading, space, CSS classes, text and score.

    Args:
        text: the text with its scores.
        name: name of the ranking.
        largest_score: largest absolute score; the shade of a token is relative to it.

    Yields:
        Tuples as described in :class:`ShadedRanking`.
    """
    glued_positions, unknown_positions = set(text.glued), set(text.unknown)
    segment = None
    for k, (token, score) in enumerate(zip(text.tokens, text.scores[name], strict=True)):
        heading = ""
        if text.segments and text.segments[k] != segment:
            segment = text.segments[k]
            heading = "second text" if segment == 1 else "first text"
        if name == "attention" and text.around and k > 0:
            # The text before the first unit is part of the chat template, which is not displayed.
            heading = strip_chat_markers(text.around[k]) or heading
        shade = _compute_shade(score, largest_score)
        # In the page's CSS, s1 to s9 are shades, and m changes the colour of a negative score.
        css_classes = []
        if shade > 0:
            css_classes.append(f"s{shade}")
            if name in SIGNED_RANKINGS and score < 0:
                css_classes.append("m")
        if k in unknown_positions:
            css_classes.append("unknown")
        sign = "+" if name in SIGNED_RANKINGS else ""
        printed_score = f"{score:{sign}.2g}" if shade else ""
        space = "" if k in glued_positions else " "
        yield heading, space, " ".join(css_classes), token, printed_score


def _compute_shade(score: float, largest_score: float) -> int:
    """Compute the shade of a token from its score.

    The shade is a number from 0 (no shade) to 9, in proportion to the absolute score.

    Args:
        score: the token's score; NaN gets no shade.
        largest_score: largest absolute score in the text; with 0, no token is shaded.
    """
    if math.isnan(score) or not largest_score:
        return 0
    return min(N_SHADES, int(abs(score) / largest_score * N_SHADES + 0.5))
