"""Generate synthetic texts whose labels follow a rule, to calibrate the tests.

For real texts, nobody knows which words decide the label. For the generated **reviews** it is
known:

1. A *cue* is one of the 24 sentiment words in `CUE_SENTIMENTS`, each negative (0) or positive (1).
2. A cue is *hearsay* if it follows a verb of `HEARSAY_VERBS` and "a", as in "critics expected a
   wonderful plot". Hearsay has no influence on the label.
3. Each text has exactly one cue that is not hearsay. This cue is in the *decisive clause*. The
   label is the cue's sentiment. It is reversed if a word from `NEGATORS` directly precedes the cue,
   as in "the film was hardly wonderful".
4. The rationale consists of this cue and its negator. All other tokens are drawn independently of
   the label: the hearsay, the fillers and the length of the text.

A model must therefore read words in context. Counting words is not enough to distinguish the
decisive cue from hearsay, or to notice a negation. Tokens are lower-case words and punctuation
marks joined by single spaces, in the same way as `build_tokenizer` splits them.

The generated **records** are passages for a language model, with the same property:

1. A record is a line of four different words, as in "amber lantern river stone". No word occurs in
   two records of a passage.
2. The question is one record's first word, and the answer consists of its other three words.
   Words are drawn anew for every passage, so only this record contains the answer.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


LABEL_NAMES = ("negative", "positive")
"""Names of the labels 0 and 1 of a generated review."""
NEGATORS = ("not", "never", "hardly")
"""Words that reverse the sentiment of the next word: "not dull" is positive."""
HEARSAY_VERBS = ("expected", "predicted", "promised", "announced")
"""Verbs that introduce an opinion of other people, as in "critics expected a dull film".

These opinions do not affect the label of a review.
"""

_NEGATIVE = [
    "dull",
    "poor",
    "clumsy",
    "tedious",
    "bleak",
    "lifeless",
    "shallow",
    "painful",
    "dreadful",
    "stale",
    "boring",
    "hollow",
]
_POSITIVE = [
    "wonderful",
    "moving",
    "clever",
    "brilliant",
    "charming",
    "delightful",
    "superb",
    "graceful",
    "witty",
    "fresh",
    "gripping",
    "tender",
]
CUE_SENTIMENTS: dict[str, int] = dict.fromkeys(_NEGATIVE, 0) | dict.fromkeys(_POSITIVE, 1)
"""Maps each sentiment word ("cue") to its sentiment: 0 is negative, 1 is positive."""

_WORDS_BY_PLACEHOLDER: dict[str, Sequence[str]] = {
    "{topic}": [
        "film",
        "plot",
        "cast",
        "story",
        "dialogue",
        "music",
        "ending",
        "script",
        "camera",
        "pacing",
    ],
    "{people}": [
        "critics",
        "friends",
        "reporters",
        "neighbours",
        "colleagues",
        "posters",
    ],
    "{person}": [
        "usher",
        "baker",
        "director",
        "teacher",
        "student",
        "driver",
        "waiter",
        "cousin",
    ],
    "{place}": [
        "door",
        "station",
        "corner",
        "harbour",
        "lobby",
        "market",
        "river",
        "museum",
    ],
    "{adverb}": [
        "early",
        "late",
        "again",
        "today",
        "quietly",
        "together",
        "outside",
        "nearby",
    ],
    "{negator}": NEGATORS,
    "{hearsay}": HEARSAY_VERBS,
    "{cue}": list(CUE_SENTIMENTS),
    "{negative}": _NEGATIVE,
    "{positive}": _POSITIVE,
}
"""Maps each placeholder to the words that can replace it in a template.

For example, "the {topic} was {cue}" becomes "the film was dull".
"""
_DECISIVE_TEMPLATES = (
    "the {topic} was {cue}",
    "the {topic} proved {cue}",
    "we found the {topic} {cue}",
    "this was a {cue} {topic}",
    "it remained a {cue} {topic}",
)
"""Templates for the decisive clause of a review: its sentiment word determines the label."""
_HEARSAY_TEMPLATES = (
    "{people} {hearsay} a {cue} {topic}",
    "the {person} {hearsay} a {cue} {topic}",
)
"""Templates for clauses that report an opinion of other people (hearsay).

For example, "critics expected a dull film" does not affect the label of a review.
"""
_FILLER_TEMPLATES = (
    "rain fell {adverb}",
    "everyone sat down",
    "the {person} left {adverb}",
    "the {place} was crowded",
    "we met the {person} {adverb}",
    "we walked past the {place}",
    "the {person} bought a ticket",
    # This template contains a negator that does not negate a cue.
    "the {person} did not wait",
    "the {topic} lasted an hour",
    "the {person} waited by the {place}",
    "the {person} read about the {topic} {adverb}",
)
"""Templates for filler clauses, which contain no sentiment word."""
_CONNECTIVES = (",", "and", "while", "as", "but")
"""Words and punctuation marks that can connect two clauses of a review."""
_OPENING_WORDS = ("well", "so", "yesterday", "honestly", "apparently", "meanwhile")
"""Words that can open a review. They are added until it has exactly the required length."""
_MIN_DECISIVE_LENGTH = 4
"""Number of words in the shortest decisive clause, such as "the film was dull"."""
_MIN_HEARSAY_LENGTH = 5
"""Number of words in the shortest hearsay clause, such as "critics expected a dull film"."""
_MIN_FILLER_LENGTH = 3
"""Number of words in the shortest filler clause, such as "rain fell early"."""
_MAX_ATTEMPTS_PER_TEXT = 1000
"""Maximum number of attempts per text to generate one that differs from all earlier texts."""


def generate_rationale_examples(
    n_examples: int,
    *,
    seed: int = 0,
    min_tokens: int = 5,
    max_tokens: int = 40,
    negation_rate: float = 0.25,
    hearsay_rate: float = 0.5,
) -> Iterator[dict[str, Any]]:
    """Generate distinct synthetic reviews with labels and rationales.

    The same arguments always give the same reviews. Labels are balanced: each pair of consecutive
    reviews (the first two, the next two, …) has one negative and one positive review.

    Args:
        n_examples: number of reviews.
        seed: random seed.
        min_tokens: minimum length in tokens, at least 5; lengths are uniform between the bounds.
        max_tokens: maximum length in tokens.
        negation_rate: share of reviews with a negated cue, among reviews with at least 6 tokens.
        hearsay_rate: share of reviews with hearsay, among reviews that are long enough (11 or 12
            tokens or more).

    Yields:
        `example_id`, `text`, `tokens`, `label` (0 or 1) and `rationale` (positions of the tokens
        that decide the label).

    Raises:
        AttnProbeError: if the lengths are out of range, or too few distinct reviews have these
            lengths.
    """
    if not _MIN_DECISIVE_LENGTH < min_tokens <= max_tokens:
        raise AttnProbeError(
            f"expected 5 <= min_tokens <= max_tokens, got min_tokens={min_tokens} and "
            f"max_tokens={max_tokens}"
        )
    rng = random.Random(seed)

    def draw_review(label: int) -> tuple[list[str], list[int]]:
        length = rng.randint(min_tokens, max_tokens)
        return _draw_review(rng, length, label, negation_rate, hearsay_rate)

    return _draw_distinct_examples(n_examples, rng, draw_review)


def _draw_distinct_examples(
    n_examples: int,
    rng: random.Random,
    draw_tokens: Callable[[int], tuple[list[str], list[int]]],
) -> Iterator[dict[str, Any]]:
    """Yield examples with distinct texts, and with both labels in each pair of examples.

    Args:
        n_examples: number of examples.
        rng: random generator.
        draw_tokens: function that draws a text for a label, and returns its tokens and rationale.
    """
    earlier_texts: set[str] = set()
    label = 0
    for example_id in range(n_examples):
        is_second_in_pair = example_id % 2 == 1
        label = 1 - label if is_second_in_pair else rng.randrange(2)
        for _ in range(_MAX_ATTEMPTS_PER_TEXT):
            tokens, rationale = draw_tokens(label)
            text = " ".join(tokens)
            if text not in earlier_texts:
                break
        else:
            raise AttnProbeError(
                f"found only {example_id} different texts with these lengths, but n_examples is "
                f"{n_examples}. Increase max_tokens, or decrease n_examples."
            )
        earlier_texts.add(text)
        yield {
            "example_id": example_id,
            "text": text,
            "tokens": tokens,
            "label": label,
            "rationale": rationale,
        }


def make_rationale_dataset(n_examples: int = 3000, **options: Any) -> "datasets.DatasetDict":
    """Generate reviews with labels and rationales, split into train, validation and test.

    Train has two thirds of the reviews, validation and test have a sixth each. All texts differ,
    and so do all ids.

    Args:
        n_examples: number of reviews, at least 6.
        **options: other arguments of :func:`generate_rationale_examples`, such as `seed`.

    Returns:
        The splits, with the columns `example_id`, `text`, `label` and `rationale`.

    Raises:
        AttnProbeError: if there are fewer than 6 examples, or an option is out of range.

    Example::

        from hf_attnprobe import make_rationale_dataset

        splits = make_rationale_dataset(60, seed=1)
        len(splits["train"])  # 40
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

    if n_examples < 6:
        raise AttnProbeError(
            f"n_examples must be at least 6, since there are three splits, got {n_examples}"
        )
    features = Features(
        example_id=Value("int64"),
        text=Value("string"),
        label=ClassLabel(names=list(LABEL_NAMES)),
        rationale=List(Value("int64")),
    )
    rows = list(generate_rationale_examples(n_examples, **options))
    for row in rows:
        del row["tokens"]
    examples = Dataset.from_list(rows, features=features)
    n_test = n_examples // 6
    n_train = n_examples - 2 * n_test
    return DatasetDict(
        train=examples.select(range(n_train)),
        validation=examples.select(range(n_train, n_train + n_test)),
        test=examples.select(range(n_train + n_test, n_examples)),
    )


def _draw_review(
    rng: random.Random,
    length: int,
    label: int,
    negation_rate: float,
    hearsay_rate: float,
) -> tuple[list[str], list[int]]:
    """Draw a review with exactly `length` tokens.

    Args:
        rng: Random generator.
        length: Number of tokens.
        label: 0 for a negative and 1 for a positive review.
        negation_rate: Probability that the decisive clause is negated.
        hearsay_rate: Probability of a clause with an opinion of other people (hearsay), which does
            not affect the label.

    Returns:
        The tokens, and the rationale: the positions of the tokens that determine the label.
    """
    # One token is reserved for the full stop.
    n_free = length - 1
    decisive_clause, decisive_positions = _draw_decisive_clause(rng, n_free, label, negation_rate)
    n_free -= len(decisive_clause)
    other_clauses = _draw_other_clauses(rng, n_free, hearsay_rate)
    # Each of the other clauses needs one connective.
    n_opening_words = n_free - sum(len(clause) + 1 for clause in other_clauses)

    n_clauses_before = rng.randint(0, len(other_clauses))
    tokens = rng.sample(_OPENING_WORDS, n_opening_words)
    for clause in other_clauses[:n_clauses_before]:
        tokens += [*clause, rng.choice(_CONNECTIVES)]
    start = len(tokens)
    tokens += decisive_clause
    for clause in other_clauses[n_clauses_before:]:
        tokens += [rng.choice(_CONNECTIVES), *clause]
    tokens.append(".")
    return tokens, [start + position for position in decisive_positions]


def _draw_decisive_clause(
    rng: random.Random, max_length: int, label: int, negation_rate: float
) -> tuple[list[str], list[int]]:
    """Draw the decisive clause, whose sentiment word determines the label.

    Returns:
        The words of the clause, and the positions of the words that determine the label: the
        sentiment word, and the negator if there is one.
    """
    is_negated = max_length > _MIN_DECISIVE_LENGTH and rng.random() < negation_rate
    max_template_length = max_length - 1 if is_negated else max_length
    words = _choose_template(rng, _DECISIVE_TEMPLATES, max_template_length)
    start = words.index("{cue}")
    # A negator reverses the label, so the sentiment word must have the opposite sentiment.
    cue_label = 1 - label if is_negated else label
    # A placeholder such as "{positive}" is later replaced by a random word of this sentiment.
    deciding_words = ["{" + LABEL_NAMES[cue_label] + "}"]
    if is_negated:
        deciding_words = ["{negator}", *deciding_words]
    end = start + len(deciding_words)
    words[start : start + 1] = deciding_words
    return _fill_placeholders(rng, words), list(range(start, end))


def _draw_other_clauses(rng: random.Random, n_free: int, hearsay_rate: float) -> list[list[str]]:
    """Draw clauses that do not affect the label, in random order.

    With probability `hearsay_rate`, one of them is an opinion of other people (hearsay), such as
    "critics expected a dull film". The clauses fill up to `n_free` tokens, including one connective
    per clause. At most three tokens remain unused, since no clause is short enough for them.
    """
    clauses: list[list[str]] = []

    def draw_clause(templates: Sequence[str], max_length: int) -> list[str]:
        return _fill_placeholders(rng, _choose_template(rng, templates, max_length))

    if n_free > _MIN_HEARSAY_LENGTH and rng.random() < hearsay_rate:
        clauses.append(draw_clause(_HEARSAY_TEMPLATES, n_free - 1))
        n_free -= len(clauses[-1]) + 1
    while n_free > _MIN_FILLER_LENGTH:
        clauses.append(draw_clause(_FILLER_TEMPLATES, n_free - 1))
        n_free -= len(clauses[-1]) + 1
    rng.shuffle(clauses)
    return clauses


def _choose_template(rng: random.Random, templates: Sequence[str], max_length: int) -> list[str]:
    """Choose a random template with at most `max_length` words, and return it as words."""
    templates_as_words = [template.split() for template in templates]
    return rng.choice([words for words in templates_as_words if len(words) <= max_length])


def _fill_placeholders(rng: random.Random, words: Sequence[str]) -> list[str]:
    """Replace each placeholder, such as "{topic}", by a random word such as "film"."""
    return [
        rng.choice(_WORDS_BY_PLACEHOLDER[word]) if word in _WORDS_BY_PLACEHOLDER else word
        for word in words
    ]


# --- Records -------------------------------------------------------------------------------------

RECORD_WORDS = [
    "amber",
    "anchor",
    "barley",
    "basil",
    "candle",
    "cedar",
    "copper",
    "coral",
    "ember",
    "falcon",
    "fennel",
    "garnet",
    "harbour",
    "hazel",
    "island",
    "ivory",
    "juniper",
    "lantern",
    "linen",
    "maple",
    "marble",
    "meadow",
    "olive",
    "orchard",
    "pebble",
    "river",
    "saffron",
    "silver",
    "thistle",
    "velvet",
    "willow",
    "winter",
]
"""Words from which records are drawn. A record is a line of random words, as in a generated passage."""
RECORD_LENGTH = 4
"""Number of words in a record.

A record is a line of random words without any meaning, such as "amber coral maple river".
"""


def draw_records(rng: random.Random, n_records: int) -> list[list[str]]:
    """Draw the records of one passage, such as [["amber", "coral", "maple", "river"], …].

    A record is a list of four random words without any meaning.

    Args:
        rng: random generator.
        n_records: number of records, at most 8.

    Returns:
        The records; no word occurs twice.
    """
    words = rng.sample(RECORD_WORDS, RECORD_LENGTH * n_records)
    starts = range(0, len(words), RECORD_LENGTH)
    return [words[start : start + RECORD_LENGTH] for start in starts]


def generate_record_questions(
    n_examples: int, *, seed: int = 0, min_records: int = 4, max_records: int = 8
) -> Iterator[dict[str, Any]]:
    """Generate passages that consist of records, with one question each.

    A record is a line of four random words, such as "amber coral maple river". The question is a
    record's first word, and the answer is the rest of this record. The same arguments always give
    the same passages.

    Args:
        n_examples: number of passages.
        seed: random seed.
        min_records: minimum number of records in a passage.
        max_records: maximum number of records in a passage, at most 8.

    Yields:
        ``example_id``, ``context``, ``question`` (a record's first word), ``answer`` (the three
        words that follow it) and ``source`` (this record's index in the passage).
    """
    rng = random.Random(f"questions {seed}")
    for example_id in range(n_examples):
        passage = draw_records(rng, rng.randint(min_records, max_records))
        source = rng.randrange(len(passage))
        question, *answer = passage[source]
        yield {
            "example_id": example_id,
            "context": "\n\n".join(" ".join(record) for record in passage),
            "question": question,
            "answer": " ".join(answer),
            "source": source,
        }
