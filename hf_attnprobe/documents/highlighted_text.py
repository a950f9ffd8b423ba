"""Shown texts: in words, and as tokens to be shaded by what each ranking says of them. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hf_attnprobe.documents.blocks import Block, Quoted, Strong, Words
from hf_attnprobe.plots.shown_text import (
    NEGLIGIBLE,
    SIGNED,
    ShownText,
    unmarked,
)


NAMES = {
    "attention": "attention",
    "leave_one_out": "left out",
    "knockout": "knocked out",
    "contrast": "lead over the other answer",
    "gradient": "gradient × input",
}
MEANINGS = {
    "attention": "the weight that the model gives each {unit}",
    "leave_one_out": "what the {said} loses without the {unit}",
    "knockout": "what the answer loses where no later token may look at the {unit}",
    "contrast": "what the answer's lead over the other one loses without the {unit}",
    "gradient": "how strongly the output reacts to the {unit}, with attention held fixed",
}
N_FIRST = 2
"""Rankings of a text that are seen at once; the others are folded away."""
SHOWN_WEIGHT = 0.05  # in words tokens with less attention have no number
N_SHOWN = 5  # in words: tokens of the largest importances
N_STEPS = 9  # of shading above none
UNFOLDED = 400  # tokens of a text that are seen at once; the others are folded away
MOST_TOKENS = 600
"""Of all texts of a page together, but for its first text, so that it stays light."""


NEARLY_ALL = 0.99
"""Of the attention: what is left is of no account."""
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"
)
"""Characters that steer a terminal, the direction of writing, or cannot be encoded."""


def legible(text: str) -> str:
    """A text as HTML can hold it, with the names of characters that are not seen.

    >>> legible("a\\u202eb\\x00")
    'a[U+202E]b[U+0000]'
    """
    if hasattr(text, "__html__"):
        return text
    return UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


# --- in words -------------------------------------------------------------------------


def in_words(text: ShownText) -> list[Block]:
    """A text with its attention, beside what else ranks its tokens."""
    said_of = "; ".join(of_attention(text))
    of = f" ({said_of})" if said_of else ""
    lines: list[Words] = [(f"attention{of}: ", *_weights(text, text.scores["attention"]))]
    for name in SIGNED:
        if name in text.scores:
            lines.append((f"{NAMES[name]}, largest: ", *_largest(text, name)))
    how, labelled = ("answered", "expected") if text.unit else ("predicted", "labelled")
    truth: list[str] = [] if text.label is None else [f", {labelled} ", Quoted(text.label)]
    sure = "" if text.predicted.endswith(".") else "."
    if text.probability is not None:
        sure = f" with probability {text.probability:.3f}."
    why = f" Shown: {text.why}." if text.why else ""
    rests = f" {text.rests_on}" if text.rests_on else ""
    return [
        (
            text.name,
            *truth,
            f": {how} ",
            Quoted(text.predicted),
            f"{sure}{rests}{why}",
        ),
        lines,
    ]


def of_attention(text: ShownText) -> list[str]:
    """Which attention it is, and how much of it is on what is shown, where that is not all."""
    said = [*filter(None, [text.attention_of])]
    share = sum(text.scores["attention"])
    if share < NEARLY_ALL:
        said.append(f"{share:.0%} of it on these {text.unit or 'word'}s")
    return said


def _largest(text: ShownText, name: str) -> list[str]:
    scores = text.scores[name]
    order = sorted(range(len(scores)), key=lambda k: -abs(scores[k]))
    parts = []
    for k in order[:N_SHOWN]:
        parts.append([Quoted(text.tokens[k]), f" ({scores[k]:+.2g})"])
    return _joined(parts, ", ")


def _weights(text: ShownText, weights: Sequence[float]) -> list[str]:
    """The text; tokens with much attention are strong, with their weight.

    Of a pair it says where each text begins.
    """
    words: list[list[str]] = []
    names, before = ("(text)", "(second text)"), None
    for k, (token, weight) in enumerate(zip(text.tokens, weights, strict=True)):
        if text.segments and text.segments[k] != before:
            before = text.segments[k]
            words.append([names[before]])
        shown = weight >= SHOWN_WEIGHT
        words.append([Strong(token), f" ({weight:.2f})"] if shown else [Quoted(token)])
    return _joined(words, " ")


def _joined(parts: Sequence[Sequence[str]], between: str) -> list[str]:
    joined: list[str] = []
    for k, part in enumerate(parts):
        joined += [between, *part] if k else part
    return joined


# --- shaded, for a page ---------------------------------------------------------------


@dataclass(frozen=True)
class Ranking:
    """What a ranking says of a text's tokens.

    Attributes:
        name: of the ranking, in words.
        aside: what it says, in words.
        is_signed: whether its scores speak for and against.
        tokens: of each the text's part that begins there (else ""), the space before it, its
            classes in the style of the page, itself, and its score where it is shaded.
    """

    name: str
    aside: str
    is_signed: bool
    tokens: list[tuple[str, str, str, str, str]]


def fitting(texts: Sequence[ShownText]) -> list[ShownText]:
    """The texts that a page has room for: the first, and those that follow it within bounds."""
    sizes = accumulate(len(text.tokens) for text in texts)
    return [
        t for k, (t, n) in enumerate(zip(texts, sizes, strict=True)) if not k or n <= MOST_TOKENS
    ]


def rankings_of(texts: Sequence[ShownText]) -> list[str]:
    """The rankings that some text has, in the order of the legend; then others."""
    found = dict.fromkeys(name for text in texts for name in text.scores)
    return [
        *(name for name in NAMES if name in found),
        *(n for n in found if n not in NAMES),
    ]


def rankings(text: ShownText) -> Iterator[Ranking]:
    """A text's tokens with their shading, ranking by ranking."""
    for name in rankings_of([text]):
        scores = text.scores[name]
        largest = max((abs(score) for score in scores if score == score), default=0.0)
        is_signed = name in SIGNED
        said = "answer" if text.unit else "prediction"
        aside = MEANINGS.get(name, "").format(unit=text.unit or "word", said=said)
        if scores and largest < NEGLIGIBLE:
            # Shaded by the largest, what is next to nothing would look like all others.
            aside, largest = "all below 1e-6", 0.0
        of = of_attention(text) if name == "attention" else []
        if is_signed and text.speaks_for:
            of = [f"+ for {text.speaks_for}"]
        said = "; ".join(filter(None, [aside, *of]))
        yield Ranking(
            NAMES.get(name, name),
            said,
            is_signed,
            list(_tokens(text, name, largest)),
        )


def _tokens(text: ShownText, name: str, largest: float) -> Iterator[tuple[str, str, str, str, str]]:
    """Few letters each, since there may be many: a token without shade has no class."""
    glued, unknown, segment = set(text.glued), set(text.unknown), None
    for k, (token, score) in enumerate(zip(text.tokens, text.scores[name], strict=True)):
        begins = ""
        if text.segments and text.segments[k] != segment:
            segment = text.segments[k]
            begins = ("first text", "second text")[segment == 1]
        if name == "attention" and text.around:
            begins = unmarked(text.around[k]) or begins
        step = _step(score, largest)
        classes = {
            f"s{step}": step > 0,
            "m": step > 0 and name in SIGNED and score < 0,
            "unknown": k in unknown,
        }
        kinds = " ".join(kind for kind, holds in classes.items() if holds)
        number = f"{score:{'+' if name in SIGNED else ''}.2g}" if step else ""
        yield begins, "" if k in glued else " ", kinds, token, number
    if name == "attention" and text.around:
        yield unmarked(text.around[-1]), "", "", "", ""


def _step(score: float, largest: float) -> int:
    """0 for none, 9 for the largest size; a score that is no number has none."""
    if score != score or not largest:
        return 0
    return min(N_STEPS, int(abs(score) / largest * N_STEPS + 0.5))
