"""Texts with their tokens shaded by what each ranking says of them. Pure."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count

from hf_attnprobe.charts.shown_text import (
    ADVERSARY_EPSILON,
    ADVERSARY_JSD,
    ADVERSARY_PROBABILITY,
    NEGLIGIBLE,
    SIGNED,
    ShownText,
)
from hf_attnprobe.reports.elements import details, html_table
from hf_attnprobe.reports.tags import Html, join, tag


N_STEPS = 9
"""Steps of shading above none."""
UNFOLDED = 400
"""Tokens of a text that are seen at once; the others are folded away."""
NAMES = {
    "attention": "attention",
    "adversary": "adversary",
    "gradient": "gradient × input",
    "leave_one_out": "left out",
}
MEANINGS = {
    "attention": "the weight that the model gives each token",
    "adversary": "other weights, as far from these as were found, with nearly the same output",
    "gradient": "which tokens the output reacts to, with attention held fixed",
    "leave_one_out": "how far the output moves without the token",
}


def texts_view(texts: Sequence[ShownText]) -> Html:
    """All texts under one legend."""
    return join([_legend(texts), *map(_article, texts)])


def _legend(texts: Sequence[ShownText]) -> Html:
    """What is shown, what shading means, and what it is scaled by."""
    names = [n for n in NAMES if any(n in text.scores for text in texts)]
    steps = [tag("span", f"{step / N_STEPS:.0%}", class_=f"s{step}") for step in (0, 3, 6, N_STEPS)]
    shades = join(steps, " ")
    lines: list[object] = [
        "Shading and the thickness of the line below say how large a token's score is, "
        "beside the largest of the same row, whose size stands behind the row's name: "
        "compare within a row, not between rows. "
    ]
    signed = Html("")
    if set(names) & set(SIGNED):
        plus = tag("span", "speaks for the prediction (+)", class_="s6")
        minus = tag("span", "speaks against it (−)", class_="s6 m")
        signed = tag("p", plus, " solid line; ", minus, " dashed line", class_="signed")
    rows = [[tag("dt", NAMES[name]), tag("dd", f"{MEANINGS[name]}.")] for name in names]
    if any(text.smallest_set for text in texts):
        boxed = tag("span", "boxed", class_="flip")
        meaning = (
            "the smallest set of tokens whose attention has to be erased to change the decision."
        )
        rows.append([tag("dt", boxed), tag("dd", meaning)])
    if any(text.unknown for text in texts):
        dotted = tag("span", "dotted", class_="unknown")
        rows.append([tag("dt", dotted), tag("dd", "a token the model has no word for.")])
    return tag(
        "div",
        tag("p", *lines),
        tag("p", shades, class_="tokens weights"),
        signed and tag("div", signed, class_="tokens"),
        tag("dl", rows),
        tag(
            "p",
            "One text shows what happened in it, and not how often that happens: an audit "
            "counts that over many texts.",
        ),
        class_="texts-legend",
    )


def _article(text: ShownText) -> Html:
    right = {True: "true", False: "false", None: "unknown"}[text.correct]
    return tag(
        "article",
        _header(text),
        *[_ranking(text, name) for name in _names(text)],
        _smallest(text),
        _numbers(text),
        class_="text",
        data_class=harmless(text.predicted),
        data_right=right,
    )


def _names(text: ShownText) -> list[str]:
    """Rankings in the order of the legend, then those it does not know."""
    known = [name for name in NAMES if name in text.scores]
    return known + [name for name in text.scores if name not in NAMES]


def _header(text: ShownText) -> Html:
    said: list[object] = ["predicted ", tag("strong", harmless(text.predicted))]
    if text.probability is not None:
        said.append(f" (probability {text.probability:.3f})")
    if text.label is not None:
        said += [", labelled ", tag("strong", harmless(text.label))]
    if text.correct is not None:
        verdict = "✓ right" if text.correct else "✗ wrong"
        said += [" ", tag("span", verdict, class_="right" if text.correct else "wrong")]
    return tag(
        "header",
        tag("h3", f"Text {text.example_id}"),
        tag("p", *said),
        tag("p", f"Shown: {harmless(text.why)}.", class_="why") if text.why else None,
    )


def _ranking(text: ShownText, name: str) -> Html:
    scores = text.scores[name]
    sizes = [abs(score) for score in scores if score == score]
    largest = max(sizes, default=0.0)
    signed = name in SIGNED
    aside = f"largest {'size ' if signed else ''}{largest:.3g}"
    if sizes and largest < NEGLIGIBLE:
        # Shaded by the largest, what is next to nothing would look like all others.
        aside, largest = "all below 1e-6", 0.0
    if name == "attention" and text.attention_of:
        aside = f"{text.attention_of}; {aside}"
    if name == "adversary":
        aside = "; ".join([*_of_adversary(text), aside])
    if signed and text.speaks_for:
        aside = f"+ for {harmless(text.speaks_for)}; {aside}"
    return tag(
        "div",
        tag("h4", NAMES.get(name, name), " ", tag("small", f"({aside})")),
        _tokens(text, name, largest),
        class_="ranking",
    )


def _of_adversary(text: ShownText) -> list[str]:
    """How far it is from attention, and what the model says with it."""
    found = []
    if ADVERSARY_EPSILON in text.numbers:
        within = text.numbers[ADVERSARY_EPSILON]
        found.append(f"other attention that changes the output by at most ε = {within:g}")
    if ADVERSARY_JSD in text.numbers:
        distance = text.numbers[ADVERSARY_JSD]
        found.append(f"JSD {distance:.2f} from attention, of at most 0.69")
    if ADVERSARY_PROBABILITY in text.numbers:
        probability = text.numbers[ADVERSARY_PROBABILITY]
        found.append(f"probability of {harmless(text.predicted)} with it {probability:.3f}")
    return found


def _tokens(text: ShownText, name: str, largest: float) -> Html:
    """The whole text; what is beyond the first tokens is folded away."""
    signed = name in SIGNED
    kind = "tokens signed" if signed else "tokens weights"
    shown = list(_spans(text, text.scores[name], largest, signed, name == "attention"))
    first = tag("p", Html("".join(shown[:UNFOLDED])), class_=kind, dir="auto")
    rest = shown[UNFOLDED:]
    if not rest:
        return first
    more = tag("p", Html("".join(rest)), class_=kind, dir="auto")
    return join([first, details(f"the other {len(rest):,} tokens", more)])


def _spans(
    text: ShownText,
    scores: Sequence[float],
    largest: float,
    signed: bool,
    boxed: bool,
) -> Iterable[str]:
    """A span per token, with the space before it; few letters each, there may be many."""
    glued, unknown = set(text.glued), set(text.unknown)
    flips = set(text.smallest_set or ()) if boxed else set()
    segment = None
    for k, token, score in zip(count(), text.tokens, scores, strict=False):
        if text.segments and text.segments[k] != segment:
            segment = text.segments[k]
            yield f' <em class="segment">{("first", "second")[segment == 1]} text</em>'
        classes = [f"s{_step(score, largest)}"]
        classes += ["m"] if signed and score < 0 else []
        classes += ["flip"] if k in flips else []
        classes += ["unknown"] if k in unknown else []
        number = f"{score:+.3g}" if signed else f"{score:.3g}"
        space = "" if k in glued else " "
        yield (
            f'{space}<span class="{" ".join(classes)}" title="{number}">'
            f"{escape(harmless(token), quote=False)}</span>"
        )


def _step(score: float, largest: float) -> int:
    """0 for none, 9 for the largest size; a score that is no number has none."""
    if score != score or not largest:
        return 0
    return min(N_STEPS, int(abs(score) / largest * N_STEPS + 0.5))


def _smallest(text: ShownText) -> Html | None:
    """The smallest set in words, beside its boxes."""
    if text.smallest_set is None:
        return None
    if not text.smallest_set:
        said = "No set of tokens changes the decision when its attention is erased."
        return tag("p", said, class_="smallest")
    n, all_tokens = len(text.smallest_set), len(text.tokens)
    words = [harmless(text.tokens[k]) for k in text.smallest_set[:12]]
    more = f" and {n - len(words)} more" if n > len(words) else ""
    return tag(
        "p",
        f"The decision changes when the attention of {n} of {all_tokens} tokens is "
        "erased, and of no fewer: ",
        join([tag("bdi", word, class_="flip") for word in words], " "),
        f"{more}.",
        class_="smallest",
    )


def _numbers(text: ShownText) -> Html | None:
    """All numbers of a text in tables, for who cannot see the shading."""
    names = _names(text)
    head = ["place", "token", *[NAMES.get(name, name) for name in names]]
    rows = [
        [k + 1, harmless(token), *[_number(text.scores[n][k]) for n in names]]
        for k, token in enumerate(text.tokens[:UNFOLDED])
    ]
    caption = ""
    if len(text.tokens) > UNFOLDED:
        caption = f"The first {UNFOLDED} of {len(text.tokens):,} tokens."
    of_text = [[name, f"{value:.3g}"] for name, value in text.numbers.items()]
    return details(
        "the numbers",
        html_table(["of this text", "number"], of_text, sortable=False) if of_text else None,
        html_table(head, rows, caption=caption),
    )


def _number(value: float) -> float | str:
    """With three digits, however small it is."""
    return value if value == 0 or abs(value) >= 0.0005 or value != value else f"{value:.1e}"


UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]"
)
"""Characters that steer a terminal, the direction of writing, or cannot be encoded."""


def harmless(text: str) -> str:
    """Text whose characters that are not seen are named.

    >>> harmless("a\\u202eb\\x00")
    'a[U+202E]b[U+0000]'
    """
    return UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
