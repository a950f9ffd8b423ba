"""A text with its prediction and token scores, as data for reports and pages."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


SIGNED_RANKINGS = ("product", "gradient", "leave_one_out", "knockout", "contrast", "map")
"""Names of the rankings with positive and negative scores.

A positive score supports the prediction, a negative score opposes it.
"""

SINK_SHARE_LABEL = "share of the attention on the sink"
"""Key in ``HighlightedText.numbers`` for the proportion of attention on the attention sink.

The sink is the token, usually the first, that gets much attention in every text.
"""

PASSAGE_SHARE_LABEL = "share of the attention on the passage"
"""Key in ``HighlightedText.numbers`` for the proportion of attention on the passage."""

PASSAGE_GAIN_LABEL = "nats that the answer gains by the passage"
"""Key in ``HighlightedText.numbers`` for how much a passage helps to give an answer.

The number is the answer's log-probability with the passage minus the one without it, in nats.
"""

UNSIGNED_ALTERNATIVES = ("last_layer", "rollout", "input_gradient")
"""Names of the rankings without negative scores that a report may display next to attention."""

AGREEMENT_REASON = "attention and leave-one-out agree most"
"""Reason for displaying the example text on which attention and leave-one-out agree most."""

DISAGREEMENT_REASON = "attention and leave-one-out disagree most"
"""Reason for displaying the example text on which attention and leave-one-out disagree most."""

WRONG_PREDICTION_REASON = "a wrong prediction"
"""Reason for displaying an example text that the model predicts wrongly."""

REASON_ORDER = (AGREEMENT_REASON, DISAGREEMENT_REASON, WRONG_PREDICTION_REASON)
"""Reasons for displaying example texts, in the order in which a page displays the texts."""

CERTIFIED_MAP_NAME = "fitted map"
"""Name of an attention map with a certificate, in tables and sentences about a text."""

UNCERTIFIED_MAP_NAME = "map (not certified)"
"""Name of an attention map without a certificate, in tables and sentences about a text."""

NEGLIGIBLE_SCORE = 1e-6
"""Absolute value below which a score counts as 0, because it may be a rounding error."""


@dataclass(frozen=True)
class UnitMap:
    """Positions of units in a plane: patches of an image, or instances of a bag with coordinates.

    Attributes:
        unit: name of one unit, such as "patch".
        input_name: name of the input, "image" or "bag".
        positions: centre of each unit: x, then y. The y axis points downwards, as in images.
        cells: width and height of each unit, in the unit of the positions; empty if unknown.
        picture: the image as a PNG file in base64; empty without an image. Positions are in pixels.
    """

    unit: str
    input_name: str
    positions: tuple[tuple[float, float], ...] = field(repr=False)
    cells: tuple[tuple[float, float], ...] = field(default=(), repr=False)
    picture: str = field(default="", repr=False)


@dataclass(frozen=True)
class HighlightedText:
    """A text with its prediction and one score per unit for each ranking.

    Units are tokens, words, or the sentences of a passage.

    Attributes:
        example_id: the text's id.
        tokens: units in reading order, without padding and tokenizer markers.
        predicted: predicted class, number or answer, as text.
        probability: probability of the prediction; None if a number is predicted.
        label: the label as text, or the text that a correct answer contains; None if unknown.
        correct: whether the prediction is right; None without a label.
        scores: one score per unit for each ranking, "attention" first. Attention weights are at
            least 0 and sum to at most 1; rankings in :data:`SIGNED_RANKINGS` have a sign.
        numbers: further numbers about a prompt, by description.
        why: reason for displaying the text; empty if there is none.
        segments: for a pair of texts, whether each unit belongs to the first (0) or second (1).
        glued: positions of units that follow the previous unit without a space.
        unknown: positions of units that are not in the model's vocabulary.
        attention_of: description of the displayed attention; empty if the model has one head.
        speaks_for: the class or answer that positive scores support; empty for the prediction.
        around: for a prompt, the text before each unit and after the last unit.
        unit: name of a prompt's units, such as "sentence"; empty for other texts.
        level: name of the units of a text that is not a prompt, "word" or "token".
        matters: positions of the units whose deletion costs the answer more than noise; None if
            not measured.
        is_greedy: whether the model itself generates the answer; None if not measured.
        noise: for each unit of a prompt, the part of its leave-one-out score that may be due to
            later units moving up, in nats; NaN for units that were not checked. Empty if not
            measured.
        unit_map: positions of the units, if the input is an image or a bag with coordinates.
        least_effect: smallest leave-one-out score, in nats, that counts as more than noise; None if
            not measured.
        map_name: name of the attention map whose scores are the ranking "map":
            :data:`CERTIFIED_MAP_NAME` or :data:`UNCERTIFIED_MAP_NAME`.

    Raises:
        ValueError: If the number of scores differs from the number of units, or a position is out of
            range.
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
    noise: tuple[float, ...] = ()
    unit_map: UnitMap | None = None
    least_effect: float | None = None
    level: str = "word"
    map_name: str = CERTIFIED_MAP_NAME

    def __post_init__(self) -> None:
        n_units = len(self.tokens)
        has_valid_scores = all(len(scores) == n_units for scores in self.scores.values())
        has_valid_segments = len(self.segments) in (0, n_units)
        has_valid_surroundings = len(self.around) in (0, n_units + 1)
        has_valid_noise = len(self.noise) in (0, n_units)
        has_valid_map = self.unit_map is None or len(self.unit_map.positions) == n_units
        has_valid_lengths = (
            has_valid_scores
            and has_valid_segments
            and has_valid_surroundings
            and has_valid_noise
            and has_valid_map
        )
        positions = {*self.glued, *self.unknown, *(self.matters or ())}
        has_valid_positions = positions <= set(range(n_units))
        if not has_valid_lengths or not has_valid_positions:
            raise ValueError(
                f"each ranking of text {self.example_id} must have one score per token, which makes "
                f"{n_units}, and all positions must be from 0 to {n_units - 1}"
            )

    @property
    def name(self) -> str:
        """The text's name in reports, such as "Text 18", "Prompt 18" or "Image 18"."""
        if self.unit_map is not None:
            return f"{self.unit_map.input_name.capitalize()} {self.example_id}"
        return f"{'Prompt' if self.around else 'Text'} {self.example_id}"

    @property
    def unit_noun(self) -> str:
        """Noun for one unit of the input, such as "word", "sentence" or "patch"."""
        if self.unit_map is not None:
            return self.unit_map.unit
        return self.unit or self.level

    @property
    def displayed_reason(self) -> str:
        """Reason for displaying the text; empty if the page cannot show what the reason refers to.

        A text may be chosen because attention and leave-one-out agree on it. If there was no time to
        compute its leave-one-out scores, readers could not see this agreement.
        """
        refers_to_leave_one_out = self.why in (AGREEMENT_REASON, DISAGREEMENT_REASON)
        if refers_to_leave_one_out and "leave_one_out" not in self.scores:
            return ""
        return self.why

    @property
    def is_list(self) -> bool:
        """Whether the units are sentences or longer, so that a page prints each on a line."""
        return self.unit not in ("", "word", "token")

    @property
    def units(self) -> list[dict[str, str | float]]:
        """One dictionary per unit, with its text and its score in each ranking."""
        units: list[dict[str, str | float]] = []
        for k, token in enumerate(self.tokens):
            scores_of_unit = {name: scores[k] for name, scores in self.scores.items()}
            units.append({"text": token, **scores_of_unit})
        return units

    @property
    def importance_summary(self) -> str:
        """Sentences about the most important and the most attended unit of a prompt.

        The most important unit is the one without which the answer is least likely. The summary is
        empty if the text is not a prompt, or if these losses were not measured.
        """
        losses = self.scores.get("leave_one_out")
        weights = self.scores.get("attention")
        if not (self.unit and losses and weights):
            return ""
        most_important = _index_of_largest(losses)
        most_attended = _index_of_largest(weights)
        loss = losses[most_important]
        # The field `matters` lists the units whose effect is larger than measurement noise.
        is_noise = loss <= 0 or (self.matters is not None and most_important not in self.matters)
        if is_noise:
            statement = f"No single {self.unit} supports the answer more than noise"
        elif loss < MIN_SOURCE_LOSS:
            statement = (
                f"The answer rests on no single {self.unit} (without {self.unit} {most_important + 1}, "
                f"it is {_describe_loss(loss)})"
            )
        else:
            degree = "" if loss >= HALVING_LOSS else " slightly"
            statement = (
                f"The answer depends{degree} on {self.unit} {most_important + 1} "
                f"({_describe_loss(loss)} without it)"
            )
        named_unit = None if is_noise else most_important
        attended_unit = self._name_unit(most_attended, named_unit)
        ranking_clause = f"attention ranks {attended_unit} first"
        if "map" in self.scores:
            first_in_map = _index_of_largest(self.scores["map"])
            # "It" would be ambiguous after the unit that attention ranks first.
            map_unit = self._name_unit(first_in_map, None)
            ranking_clause += f", and the {self.map_name} ranks {map_unit} first"
            if first_in_map == most_attended:
                ranking_clause = f"attention and the {self.map_name} rank {attended_unit} first"
        caveat = ""
        if self.is_greedy is False:
            caveat = " The model itself would give another answer."
        return (
            f"{statement}; {ranking_clause}.{self._opposing_summary}{self._margin_summary}{caveat}"
        )

    def _name_unit(self, position: int, named_position: int | None) -> str:
        """Name a unit, such as "sentence 3"; the unit that the sentence has named is "it"."""
        return "it" if position == named_position else f"{self.unit} {position + 1}"

    @property
    def _opposing_summary(self) -> str:
        """Sentence about the unit without which the answer would be most likely.

        The sentence is empty if no deletion makes the answer at least twice as likely.
        """
        losses = self.scores["leave_one_out"]
        opposing_unit = min(range(len(losses)), key=losses.__getitem__)
        gain = -losses[opposing_unit]
        if gain < HALVING_LOSS:
            return ""
        return (
            f" Without {self.unit} {opposing_unit + 1}, the answer would be "
            f"{_format_factor(gain)} times more likely."
        )

    @property
    def _margin_summary(self) -> str:
        """Sentence about the unit that favours the answer most over the other answer in the data.

        The margin is the difference between the log-probabilities of both answers. The sentence is
        empty if there is no other answer.
        """
        margins = self.scores.get("contrast")
        if margins is None:
            return ""
        most_important = _index_of_largest(margins)
        change = f"{margins[most_important]:+.1f} nats".replace("-", "−")
        return (
            " Its margin over the other answer depends most on "
            f"{self.unit} {most_important + 1} ({change})."
        )

    @property
    def question(self) -> str:
        """Question of a prompt, without chat template tokens.

        It is the first line after the passage. If no text follows the passage, it is the last line
        before the passage.
        """
        text_after = strip_chat_markers("".join(self.around[-1:]))
        text_before = strip_chat_markers("".join(self.around[:1]))
        return text_after.partition("\n")[0] or text_before.rpartition("\n")[2]

    def __str__(self) -> str:
        """Return a table with the scores of each word, or of each sentence or other unit of a prompt."""
        if not self.importance_summary:
            return self._format_word_table()
        columns = {name: self.scores[name] for name in PRINTED_COLUMNS if name in self.scores}
        if self.noise:
            columns["noise"] = self.noise
            columns = {name: columns[name] for name in PRINTED_COLUMNS if name in columns}
        lines = [f"question: {self.question}"] if self.question else []
        lines.append(f"answered: {self.predicted}")
        titles = {name: self._choose_title(name, PRINTED_COLUMNS) for name in columns}
        widths = {name: max(15, len(title) + 2) for name, title in titles.items()}
        lines.append("   " + "".join(f"{titles[name]:>{widths[name]}}" for name in columns))
        has_missing_scores = False
        for k, token in enumerate(self.tokens):
            mark = "*" if k in (self.matters or ()) else " "
            row = f"{k + 1:>2}{mark}"
            for name, values in columns.items():
                sign = PRINTED_COLUMNS[name][1]
                is_missing = math.isnan(values[k]) or not values[k]
                has_missing_scores |= is_missing
                printed = MISSING_SCORE_TEXT if is_missing else format(values[k], f"{sign}.2f")
                row += f"{printed:>{widths[name]}}"
            lines.append(f"{row}  {token}")
        if self.matters is not None:
            legend = f"nats that the answer loses without the {self.unit}; * more than noise"
            if self.least_effect is not None:
                legend += f", at least {self.least_effect:.2f}"
            if has_missing_scores:
                legend += f"; {MISSING_SCORE_TEXT} not measured"
            lines.append(legend)
        return "\n".join([*lines, self.importance_summary])

    def _choose_title(self, ranking: str, columns: Mapping[str, tuple[str, str]]) -> str:
        """Return the title of a ranking's column in a printed table."""
        return self.map_name if ranking == "map" else columns[ranking][0]

    def _format_word_table(self) -> str:
        """Return the prediction, and a table with the scores of each word."""
        prediction = f"predicted: {self.predicted}"
        if self.probability is not None:
            prediction += f" (probability {self.probability:.3g})"
        if self.label is not None:
            prediction += f", labelled {self.label}"
        columns = [name for name in PRINTED_WORD_COLUMNS if name in self.scores]
        width = max(map(len, self.tokens), default=0)
        titles = {name: self._choose_title(name, PRINTED_WORD_COLUMNS) for name in columns}
        widths = {name: max(18, len(title) + 2) for name, title in titles.items()}
        header = "".join(f"{titles[name]:>{widths[name]}}" for name in columns)
        lines = [prediction, " " * width + header]
        for k, token in enumerate(self.tokens):
            row = f"{token:<{width}}"
            for name in columns:
                value, number_format = self.scores[name][k], PRINTED_WORD_COLUMNS[name][1]
                is_missing = math.isnan(value)
                score = MISSING_SCORE_TEXT if is_missing else format(value, number_format)
                row += f"{score:>{widths[name]}}"
            lines.append(row)
        if self.attention_of:
            lines.append(f"attention: {self.attention_of}")
        return "\n".join(lines)


PRINTED_WORD_COLUMNS = {
    "attention": ("attention", ".3f"),
    "map": (CERTIFIED_MAP_NAME, ".3f"),
    "leave_one_out": ("leave-one-out", "+.3f"),
    "gradient": ("gradient × input", "+.1e"),
}
"""Title and number format of a column in the table that is printed for a text, by ranking."""

PRINTED_COLUMNS = {
    "leave_one_out": ("leave-one-out", "+"),
    "noise": ("noise", ""),
    "knockout": ("knockout", "+"),
    "contrast": ("contrast", "+"),
    "attention": ("attention", ""),
    "map": (CERTIFIED_MAP_NAME, ""),
}
"""Format of a column in the table that is printed for a prompt, by the name of its scores.

Each value has two items:

- the column title;
- the sign option of the number format: ``+`` prints the sign of positive numbers too.
"""


CHAT_TEMPLATE_MARKERS = re.compile(r"^<\S+>\w*$|<\S+>$", re.MULTILINE)
"""Pattern for the special tokens of a chat template, such as ``<|im_start|>user``."""


def strip_chat_markers(text: str) -> str:
    r"""Remove chat template markers from a part of a prompt.

    >>> strip_chat_markers("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    'Who?'

    Args:
        text: part of a prompt.
    """
    return CHAT_TEMPLATE_MARKERS.sub("", text).strip()


MIN_SOURCE_LOSS = 0.5
"""Smallest decrease of log-probability, in nats, at which an answer rests on a single unit.

With planted prompts and SmolLM2-135M, the unit with the largest loss was the planted one in 94 of 94
prompts with a loss of at least 1 nat, in 7 of 9 with 0.5 to 1, and in 7 of 17 with less than 0.5.
"""
HALVING_LOSS = math.log(2)
"""Decrease of log-probability, in nats, that makes an answer half as likely."""

MAX_PRINTED_FACTOR = 1000
"""Largest factor that is printed as a number, as in "66.7 times less likely".

Larger factors are printed as "over 1,000 times less likely".
"""


def _describe_loss(loss: float) -> str:
    """Describe how much less likely an answer becomes, such as "1.5 times less likely".

    The loss is the decrease of its log-probability in nats.

    >>> _describe_loss(4.2), _describe_loss(0.4), _describe_loss(9.0)
    ('66.7 times less likely', '1.5 times less likely', 'over 1,000 times less likely')
    """
    return f"{_format_factor(loss)} times less likely"


def _format_factor(difference: float) -> str:
    """Format a difference of log-probabilities, in nats, as a factor, such as "66.7" for 4.2."""
    if difference > math.log(MAX_PRINTED_FACTOR):
        return f"over {MAX_PRINTED_FACTOR:,}"
    return f"{math.exp(difference):.1f}"


MISSING_SCORE_TEXT = "–"
"""Text that a report prints instead of a score that was not measured."""


def _index_of_largest(values: Sequence[float]) -> int:
    """Return the index of the largest value."""
    return max(range(len(values)), key=values.__getitem__)


def split_tokenizer_markers(
    pieces: Sequence[str],
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Remove a tokenizer's markers from its tokens.

    ``##`` marks a token that continues a word (WordPiece); ``Ġ`` and ``▁`` mark one that begins
    a word (byte-level BPE, SentencePiece).

    >>> split_tokenizer_markers(["em", "##bed", "##ding"])
    (('em', 'bed', 'ding'), (1, 2))
    >>> split_tokenizer_markers(["Hel", "lo", "Ġyou"])
    (('Hel', 'lo', 'you'), (1,))

    Args:
        pieces: tokens as the tokenizer returns them.

    Returns:
        tokens: the tokens without markers.
        glued: positions of tokens that follow the previous token without a space.
    """
    word_start_markers = tuple("Ġ▁")
    marks_word_starts = any(piece.startswith(word_start_markers) for piece in pieces)
    tokens, glued = [], []
    for k, piece in enumerate(pieces):
        continues_word = len(piece) > 2 and piece.startswith("##")
        lacks_start_marker = marks_word_starts and not piece.startswith(word_start_markers)
        if continues_word or lacks_start_marker:
            glued.append(k)
        stripped_piece = piece[2:] if continues_word else piece.lstrip("Ġ▁")
        tokens.append(stripped_piece or piece)
    return tuple(tokens), tuple(k for k in glued if k > 0)
