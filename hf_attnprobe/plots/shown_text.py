"""A text with what the rankings of its tokens say, as data."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field


SIGNED = ("gradient", "leave_one_out", "knockout", "contrast")
"""Rankings whose scores have a sign: + speaks for the prediction, − against it."""
ON_SINK = "share of the attention on the sink"
ON_PASSAGE = "share of the attention on the passage"
GAIN = "nats that the answer gains by the passage"
AGREE = "attention and leaving out agree most"
DISAGREE = "attention and leaving out disagree most"
WRONG = "a wrong prediction"
FIRST = (AGREE, DISAGREE, WRONG)
"""Reasons of the texts that a page shows first."""
NEGLIGIBLE = 1e-6
"""Rankings whose scores are all smaller say nothing of the order of the tokens."""


@dataclass(frozen=True)
class ShownText:
    """One text, its prediction, and scores of its tokens.

    Attributes:
        example_id: of the text.
        tokens: what is explained, in reading order, without padding: tokens, words or
            sentences as they stand in the text, without marks of the tokenizer.
        predicted: what the model says, in words.
        probability: of it; None where a number is predicted.
        label: the true one, in words, of a prompt what a right answer contains; None without one.
        correct: whether it is right; None without a label.
        scores: by the name of the ranking, "attention" first; each one number per token.
            Attention is at least 0 and sums to at most 1, those in :data:`SIGNED` have a sign.
        numbers: of a prompt, by what they are in words.
        why: why it is shown, in words.
        segments: of pairs, for each token 0 in the text and 1 in the second text.
        glued: positions of tokens that follow the one before without a space.
        unknown: positions of tokens that are not in the model's vocabulary.
        attention_of: which attention it is, in words; empty where there is only one.
        speaks_for: what a + of the signed scores speaks for, in words; empty: for what is
            predicted.
        around: of a prompt, what stands before each unit, and behind the last one; empty
            of other texts.
        unit: what is explained, in one word, where it is a part of a passage: "sentence".
        matters: positions of the units whose deletion costs the answer more than noise; None
            where that is not known.
        is_greedy: whether the model itself says the answer; None where that is not known.

    Raises:
        ValueError: other than one score for each token, or a place that no token has.
    """

    example_id: int
    tokens: tuple[str, ...]
    predicted: str
    probability: float | None
    label: str | None
    correct: bool | None
    scores: dict[str, tuple[float, ...]]
    numbers: dict[str, float] = field(default_factory=dict)
    why: str = ""
    segments: tuple[int, ...] = ()
    glued: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    attention_of: str = ""
    speaks_for: str = ""
    around: tuple[str, ...] = ()
    unit: str = ""
    matters: tuple[int, ...] | None = None
    is_greedy: bool | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens)
        lengths = {*map(len, self.scores.values()), len(self.segments) or n}
        places = {*self.glued, *self.unknown, *(self.matters or ())}
        if lengths != {n} or len(self.around) not in (0, n + 1) or not places <= {*range(n)}:
            raise ValueError(
                f"expected numbers of the {n} tokens of text {self.example_id}, got others"
            )

    @property
    def name(self) -> str:
        """What the text is called: "Text 18", or "Prompt 18"."""
        return f"{'Prompt' if self.around else 'Text'} {self.example_id}"

    @property
    def units(self) -> list[dict[str, str | float]]:
        """What is explained, one by one: its text and what every ranking says of it."""
        return [
            {
                "text": token,
                **{name: scores[k] for name, scores in self.scores.items()},
            }
            for k, token in enumerate(self.tokens)
        ]

    @property
    def rests_on(self) -> str:
        """What an answer rests on, beside what attention puts first, in a sentence or two.

        Empty of a text that is no prompt, or of which no unit was deleted.
        """
        losses, weights = (self.scores.get(name) for name in ("leave_one_out", "attention"))
        if not (self.unit and losses and weights):
            return ""
        first, brightest = _largest(losses), _largest(weights)
        without = f"without it {_less_likely(losses[first])}"
        is_noise = losses[first] <= 0 or (self.matters is not None and first not in self.matters)
        a_little = "" if losses[first] >= HALF else " a little"
        said = f"The answer rests{a_little} on {self.unit} {first + 1} ({without})"
        if is_noise:
            said = f"The answer rests on no single {self.unit} more than noise"
        named = f"{self.unit} {brightest + 1}"
        if first == brightest and not is_noise:
            named = "it"
        asked = ""
        if self.is_greedy is False:
            asked = " The model itself says another answer."
        return f"{said}; attention puts {named} first.{self._against}{asked}"

    @property
    def _against(self) -> str:
        """What an answer's lead over another one rests on; empty without another one."""
        leads = self.scores.get("contrast")
        if leads is None:
            return ""
        first = _largest(leads)
        lead = f"{-leads[first]:+.1f} nats".replace("-", "−")
        return f" Its lead over the other answer rests on {self.unit} {first + 1} ({lead})."

    @property
    def _asks(self) -> str:
        """The first line behind the passage, without the template's mark at its end."""
        behind = "".join(self.around[-1:])
        return unmarked(behind).partition("\n")[0]

    def __str__(self) -> str:
        """A prompt as a table of its units; another text as its fields."""
        if not self.rests_on:
            return repr(self)
        names = [name for name in PRINTED if name in self.scores]
        head = "".join(f"{PRINTED[name][0]:>13}" for name in names)
        lines = [f"Prompt {self.example_id}: {self._asks}".rstrip(": ")]
        lines.append(f"answered: {self.predicted}")
        lines.append(f"   {head}")
        for k, token in enumerate(self.tokens):
            mark = "*" if k in (self.matters or ()) else " "
            row = f"{k + 1:>2}{mark}"
            for name in names:
                _, sign, plus = PRINTED[name]
                value = sign * self.scores[name][k]
                said = f"{value:{plus}.2f}" if value else NOT_DONE
                row += f"{said:>13}"
            lines.append(f"{row}  {token}")
        if self.matters is not None:
            lines.append(f"nats; * more than noise; {NOT_DONE} not deleted")
        return "\n".join([*lines, self.rests_on])


PRINTED = {
    "leave_one_out": ("without it", -1, "+"),
    "knockout": ("knocked out", -1, "+"),
    "contrast": ("its lead", -1, "+"),
    "attention": ("attention", 1, ""),
}
"""Scores of a printed prompt: column, factor, and whether + is written; losses are below 0."""


MARKS = re.compile(r"^<\S+>\w*$|<\S+>$", re.MULTILINE)
"""Of a chat's template: lines that say who speaks, and what ends a line."""


def unmarked(text: str) -> str:
    """Returns a part of a prompt without the marks of its template.

    >>> unmarked("<|im_start|>user\\nWho?<|im_end|>\\n<|im_start|>assistant\\n")
    'Who?'
    """
    return MARKS.sub("", text).strip()


HALF = math.log(2)
"""Nats without which an answer is half as likely."""
MOST_TIMES = 1000


def _less_likely(loss: float) -> str:
    """Returns how much less likely an answer is that loses so many nats, in words.

    >>> _less_likely(4.2), _less_likely(0.4), _less_likely(9.0)
    ('66.7 times less likely', '1.5 times less likely', 'over 1,000 times less likely')
    """
    if loss > math.log(MOST_TIMES):
        return f"over {MOST_TIMES:,} times less likely"
    return f"{math.exp(loss):.1f} times less likely"


NOT_DONE = "–"


def _largest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def without_marks(
    pieces: Sequence[str],
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Pieces of a tokenizer as a reader expects them, and which follow without a space.

    ``##`` marks a piece that goes on (WordPiece), ``Ġ`` and ``▁`` one that begins a word
    (byte-level BPE, SentencePiece).

    >>> without_marks(["em", "##bed", "##ding"])
    (('em', 'bed', 'ding'), (1, 2))
    >>> without_marks(["Hel", "lo", "Ġyou"])
    (('Hel', 'lo', 'you'), (1,))
    """
    begins = tuple("Ġ▁")
    has_begins = any(piece.startswith(begins) for piece in pieces)
    shown, glued = [], []
    for k, piece in enumerate(pieces):
        goes_on = len(piece) > 2 and piece.startswith("##")
        if goes_on or (has_begins and not piece.startswith(begins)):
            glued.append(k)
        bare = piece[2:] if goes_on else piece.lstrip("Ġ▁")
        shown.append(bare or piece)
    return tuple(shown), tuple(k for k in glued if k > 0)
