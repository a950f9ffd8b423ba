"""The shown texts in Markdown."""

import re
from collections.abc import Sequence

from hf_attnprobe.charts.shown_text import (
    ADVERSARY_EPSILON,
    ADVERSARY_JSD,
    ADVERSARY_PROBABILITY,
    SIGNED,
    ShownText,
)


SHOWN_WEIGHT = 0.05  # tokens with less attention have no number
N_SHOWN = 5  # tokens of the largest importances
NAMES = {"gradient": "gradient × input", "leave_one_out": "left out"}


def texts_section(texts: Sequence[ShownText]) -> list[str]:
    """The texts with their attention, beside what else ranks their tokens."""
    parts = ["", "## texts"] if texts else []
    for text in texts:
        parts += ["", *_text(text)]
    return parts


def _text(text: ShownText) -> list[str]:
    truth = "" if text.label is None else f", labelled {_escaped(text.label)}"
    sure = ""
    if text.probability is not None:
        sure = f" with probability {text.probability:.3f}"
    lines = [f"Text {text.example_id}{truth}: predicted {_escaped(text.predicted)}{sure}."]
    if text.why:
        lines[0] += f" Shown: {text.why}."
    of = f" ({text.attention_of})" if text.attention_of else ""
    lines += ["", f"- attention{of}: {_weights(text, text.scores['attention'])}"]
    if "adversary" in text.scores:
        known = {"JSD": ADVERSARY_JSD, "probability": ADVERSARY_PROBABILITY}
        numbers = [
            f"{short} {text.numbers[name]:.3f}"
            for short, name in known.items()
            if name in text.numbers
        ]
        if ADVERSARY_EPSILON in text.numbers:
            within = text.numbers[ADVERSARY_EPSILON]
            numbers.insert(0, f"output changed by at most ε = {within:g}")
        weights = _weights(text, text.scores["adversary"])
        lines.append(f"- adversary ({', '.join(numbers)}): {weights}")
    for name in SIGNED:
        if name in text.scores:
            lines.append(f"- {NAMES[name]}, largest: {_largest(text, name)}")
    if text.smallest_set is not None:
        words = ", ".join(_escaped(text.tokens[k]) for k in text.smallest_set)
        lines.append(f"- smallest set that flips the decision: {words or 'there is none'}")
    return lines


def _largest(text: ShownText, name: str) -> str:
    scores = text.scores[name]
    order = sorted(range(len(scores)), key=lambda k: -abs(scores[k]))[:N_SHOWN]
    return ", ".join(f"{_escaped(text.tokens[k])} ({scores[k]:+.2g})" for k in order)


def _weights(text: ShownText, weights: Sequence[float]) -> str:
    """The text; tokens with much attention are bold, with their weight.

    Of a pair it says where each text begins.
    """
    words = []
    names, before = ("(text)", "(second text)"), None
    for k, (token, weight) in enumerate(zip(text.tokens, weights, strict=True)):
        if text.segments and text.segments[k] != before:
            before = text.segments[k]
            words.append(names[before])
        shown, written = weight >= SHOWN_WEIGHT, _escaped(token)
        words.append(f"**{written}** ({weight:.2f})" if shown else written)
    return " ".join(words)


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    plain = " ".join(text.split()) or text
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", plain)
