"""Generate synthetic texts whose labels follow a rule, to calibrate the tests.

For real texts, nobody knows which words decide the label. For the generated **reviews** it is
known:

1. A *cue* is one of the 24 words in `CUES`. Its polarity is negative (0) or positive (1).
2. A cue is *hearsay* if it follows a verb of `HEARSAY_VERBS` and "a", as in "critics expected a
   wonderful plot". Hearsay has no influence on the label.
3. Each text has exactly one cue that is not hearsay. The label is the polarity of this cue, and it
   is flipped if the word directly before the cue is one of `NEGATORS`, as in "the film was hardly
   wonderful".
4. The rationale consists of this cue and its negator. The label is independent of every other
   token: the polarity of hearsay, the length and the fillers are drawn separately.

A model must therefore read words in context. Counting words is not enough to distinguish the
decisive cue from hearsay, or to notice a negation. Tokens are lower-case words and punctuation
marks joined by single spaces, in the same way as `build_tokenizer` splits them.

The generated **records** are passages for a language model, with the same property:

1. A record is a line of four different words, as in "amber lantern river stone". No word occurs in
   two records of a passage.
2. The question is the first word of one record, and the answer consists of its other three words.
   Words are drawn anew for every passage, so only this record contains the answer.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


LABEL_NAMES = ("negative", "positive")
"""Names of the two classes of reviews."""
NEGATORS = ("not", "never", "hardly")
"""Words that flip the polarity of the cue that follows them."""
HEARSAY_VERBS = ("expected", "predicted", "promised", "announced")
"""Verbs after which a cue has no influence on the label."""

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
CUES: dict[str, int] = dict.fromkeys(_NEGATIVE, 0) | dict.fromkeys(_POSITIVE, 1)
"""Polarity of each cue word: 0 negative, 1 positive."""

_SLOTS: dict[str, Sequence[str]] = {
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
    "{cue}": list(CUES),
    "{negative}": _NEGATIVE,
    "{positive}": _POSITIVE,
}
"""Words that may fill each slot of a clause."""
_VERDICTS = (
    "the {topic} was {cue}",
    "the {topic} proved {cue}",
    "we found the {topic} {cue}",
    "this was a {cue} {topic}",
    "it remained a {cue} {topic}",
)
"""Clauses with the cue that decides the label."""
_DECOYS = (
    "{people} {hearsay} a {cue} {topic}",
    "the {person} {hearsay} a {cue} {topic}",
)
"""Clauses with hearsay."""
_FILLERS = (
    "rain fell {adverb}",
    "everyone sat down",
    "the {person} left {adverb}",
    "the {place} was crowded",
    "we met the {person} {adverb}",
    "we walked past the {place}",
    "the {person} bought a ticket",
    # This filler contains a negator that negates no cue.
    "the {person} did not wait",
    "the {topic} lasted an hour",
    "the {person} waited by the {place}",
    "the {person} read about the {topic} {adverb}",
)
"""Clauses without any cue."""
_CONNECTIVES = (",", "and", "while", "as", "but")
"""Tokens between two clauses."""
_OPENERS = ("well", "so", "yesterday", "honestly", "apparently", "meanwhile")
"""Words at the start of a text that extend it to the exact length."""
_MIN_VERDICT_LENGTH, _MIN_DECOY_LENGTH, _MIN_FILLER_LENGTH = 4, 5, 3
"""Number of tokens of the shortest clause in each group."""
_MAX_ATTEMPTS = 1000
"""Largest number of draws for a text that differs from all earlier ones."""


def generate_rationale_examples(
    n_examples: int,
    *,
    seed: int = 0,
    min_tokens: int = 5,
    max_tokens: int = 40,
    negation_rate: float = 0.25,
    decoy_rate: float = 0.5,
) -> Iterator[dict[str, Any]]:
    """Generate different reviews with labels and rationales.

    The same arguments always give the same reviews. Labels are balanced: of the first two reviews,
    one is negative and one is positive, and so on for every following two.

    Args:
        n_examples: number of reviews.
        seed: random seed.
        min_tokens: smallest length, at least 5 tokens; lengths are uniform between the bounds.
        max_tokens: largest length.
        negation_rate: share of negated cues, among reviews of at least 6 tokens.
        decoy_rate: share of reviews with hearsay, among those that are long enough for it (11 or 12
            tokens or more).

    Yields:
        `example_id`, `text`, `tokens`, `label` (0 or 1) and `rationale` (positions of the tokens
        that decide the label).

    Raises:
        AttnProbeError: if the lengths are out of range, or there are not enough different reviews
            of these lengths.
    """
    if not _MIN_VERDICT_LENGTH < min_tokens <= max_tokens:
        raise AttnProbeError(
            f"expected 5 <= min_tokens <= max_tokens, got min_tokens {min_tokens} and max_tokens "
            f"{max_tokens}; widen the range"
        )
    rng = random.Random(seed)

    def draw_review(label: int) -> tuple[list[str], list[int]]:
        length = rng.randint(min_tokens, max_tokens)
        return _draw_sentence(rng, length, label, negation_rate, decoy_rate)

    return _draw_distinct_examples(n_examples, rng, draw_review)


def _draw_distinct_examples(
    n_examples: int,
    rng: random.Random,
    draw_tokens: Callable[[int], tuple[list[str], list[int]]],
) -> Iterator[dict[str, Any]]:
    """Yield examples with different texts, alternating the labels within each pair of examples.

    Args:
        n_examples: number of examples.
        rng: random generator.
        draw_tokens: draws the tokens and the rationale of a text for a label.
    """
    earlier_texts: set[str] = set()
    label = 0
    for example_id in range(n_examples):
        label = 1 - label if example_id % 2 else rng.randrange(2)
        for _ in range(_MAX_ATTEMPTS):
            tokens, rationale = draw_tokens(label)
            text = " ".join(tokens)
            if text not in earlier_texts:
                break
        else:
            raise AttnProbeError(
                f"only {example_id} of {n_examples} sentences differ at these lengths; raise "
                "max_tokens or ask for fewer"
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
            f"three splits need at least 6 examples, got n_examples {n_examples}; ask for more"
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


def _draw_sentence(
    rng: random.Random,
    length: int,
    label: int,
    negation_rate: float,
    decoy_rate: float,
) -> tuple[list[str], list[int]]:
    """Draw a sentence of exactly `length` tokens, and return the tokens and the rationale."""
    # One token is reserved for the full stop.
    n_free = length - 1
    verdict, verdict_rationale = _draw_verdict(rng, n_free, label, negation_rate)
    clauses = _draw_other_clauses(rng, n_free - len(verdict), decoy_rate)
    n_openers = n_free - len(verdict) - sum(len(clause) + 1 for clause in clauses)
    n_clauses_before = rng.randint(0, len(clauses))
    tokens = rng.sample(_OPENERS, n_openers)
    for clause in clauses[:n_clauses_before]:
        tokens += [*clause, rng.choice(_CONNECTIVES)]
    start = len(tokens)
    tokens += verdict
    for clause in clauses[n_clauses_before:]:
        tokens += [rng.choice(_CONNECTIVES), *clause]
    tokens.append(".")
    return tokens, [start + position for position in verdict_rationale]


def _draw_verdict(
    rng: random.Random, max_length: int, label: int, negation_rate: float
) -> tuple[list[str], list[int]]:
    """Draw the clause that decides the label, and return it with the positions of its rationale."""
    is_negated = max_length > _MIN_VERDICT_LENGTH and rng.random() < negation_rate
    words = _choose_template(rng, _VERDICTS, max_length - is_negated)
    start = words.index("{cue}")
    polarity = LABEL_NAMES[label ^ is_negated]
    deciding_slots = [f"{{{polarity}}}"]
    if is_negated:
        deciding_slots = ["{negator}", *deciding_slots]
    words[start : start + 1] = deciding_slots
    return _fill_slots(rng, words), list(range(start, start + len(deciding_slots)))


def _draw_other_clauses(rng: random.Random, n_free: int, decoy_rate: float) -> list[list[str]]:
    """Draw clauses that do not affect the label, in random order.

    Together with a connective for each clause they fill `n_free` tokens up to at most 3.
    """
    clauses = []
    if n_free > _MIN_DECOY_LENGTH and rng.random() < decoy_rate:
        clauses.append(_fill_slots(rng, _choose_template(rng, _DECOYS, n_free - 1)))
        n_free -= len(clauses[0]) + 1
    while n_free > _MIN_FILLER_LENGTH:
        clauses.append(_fill_slots(rng, _choose_template(rng, _FILLERS, n_free - 1)))
        n_free -= len(clauses[-1]) + 1
    rng.shuffle(clauses)
    return clauses


def _choose_template(rng: random.Random, templates: Sequence[str], max_length: int) -> list[str]:
    """Return the words of a random template with at most `max_length` words."""
    templates_as_words = [template.split() for template in templates]
    return rng.choice([words for words in templates_as_words if len(words) <= max_length])


def _fill_slots(rng: random.Random, words: Sequence[str]) -> list[str]:
    """Return the words with each slot replaced by a random word."""
    return [rng.choice(_SLOTS[word]) if word in _SLOTS else word for word in words]


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
"""Words of which records consist."""
RECORD_LENGTH = 4
"""Number of words in a record."""


def draw_records(rng: random.Random, n_records: int) -> list[list[str]]:
    """Draw the records of a passage, each as a list of words.

    Args:
        rng: random generator.
        n_records: number of records, at most 8.

    Returns:
        The records, which have no word in common.
    """
    words = rng.sample(RECORD_WORDS, RECORD_LENGTH * n_records)
    return [words[start : start + RECORD_LENGTH] for start in range(0, len(words), RECORD_LENGTH)]


def generate_record_questions(
    n_examples: int, *, seed: int = 0, min_records: int = 4, max_records: int = 8
) -> Iterator[dict[str, Any]]:
    """Generate passages of records with one question each.

    The same arguments always give the same passages.

    Args:
        n_examples: number of passages.
        seed: random seed.
        min_records: smallest number of records in a passage.
        max_records: largest number of records in a passage, at most 8.

    Yields:
        ``example_id``, ``context``, ``question`` (the first word of a record), ``answer`` (the
        three words that follow it) and ``source`` (the index of this record in the passage).
    """
    rng = random.Random(f"questions {seed}")
    for example_id in range(n_examples):
        passage = draw_records(rng, rng.randint(min_records, max_records))
        source = rng.randrange(len(passage))
        question, *answer = passage[source]
        yield {
            "example_id": example_id,
            "context": "\n\n".join(map(" ".join, passage)),
            "question": question,
            "answer": " ".join(answer),
            "source": source,
        }
