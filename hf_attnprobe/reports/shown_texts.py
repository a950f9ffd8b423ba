"""A shown text in words, for the forms that cannot shade its tokens. Pure."""

from collections.abc import Sequence

from hf_attnprobe.charts.shown_text import (
    ADVERSARY_EPSILON,
    ADVERSARY_JSD,
    ADVERSARY_PROBABILITY,
    SIGNED,
    ShownText,
)
from hf_attnprobe.reports.document import Block, Quoted, Strong, Words


SHOWN_WEIGHT = 0.05  # tokens with less attention have no number
N_SHOWN = 5  # tokens of the largest importances
NAMES = {"gradient": "gradient × input", "leave_one_out": "left out"}


def in_words(text: ShownText) -> list[Block]:
    """A text with its attention, beside what else ranks its tokens."""
    truth: list[str] = [] if text.label is None else [", labelled ", Quoted(text.label)]
    sure = ""
    if text.probability is not None:
        sure = f" with probability {text.probability:.3f}"
    why = f" Shown: {text.why}." if text.why else ""
    predicted = Quoted(text.predicted)
    said = (f"Text {text.example_id}", *truth, ": predicted ", predicted, f"{sure}.{why}")
    of = f" ({text.attention_of})" if text.attention_of else ""
    lines: list[Words] = [(f"attention{of}: ", *_weights(text, text.scores["attention"]))]
    if "adversary" in text.scores:
        weights = _weights(text, text.scores["adversary"])
        lines.append((f"adversary ({_of_adversary(text)}): ", *weights))
    for name in SIGNED:
        if name in text.scores:
            lines.append((f"{NAMES[name]}, largest: ", *_largest(text, name)))
    if text.smallest_set is not None:
        tokens = _joined([[Quoted(text.tokens[k])] for k in text.smallest_set], ", ")
        lines.append(("smallest set that flips the decision: ", *(tokens or ["there is none"])))
    return [said, lines]


def _of_adversary(text: ShownText) -> str:
    known = {"JSD": ADVERSARY_JSD, "probability": ADVERSARY_PROBABILITY}
    numbers = [
        f"{short} {text.numbers[name]:.3f}" for short, name in known.items() if name in text.numbers
    ]
    if ADVERSARY_EPSILON in text.numbers:
        within = text.numbers[ADVERSARY_EPSILON]
        numbers.insert(0, f"output changed by at most ε = {within:g}")
    return ", ".join(numbers)


def _largest(text: ShownText, name: str) -> list[str]:
    scores = text.scores[name]
    order = sorted(range(len(scores)), key=lambda k: -abs(scores[k]))[:N_SHOWN]
    return _joined([[Quoted(text.tokens[k]), f" ({scores[k]:+.2g})"] for k in order], ", ")


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
