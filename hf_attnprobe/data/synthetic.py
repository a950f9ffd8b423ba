"""Synthetic texts whose labels follow a rule, to calibrate the tests.

On real text nobody knows which words decide the label. Of **reviews** it is known:

1. A *cue* is one of the 24 words in `CUES`; each has a polarity, negative (0) or
   positive (1).
2. A cue is *hearsay* if it follows a verb of `HEARSAY_VERBS` and "a", as in "critics
   expected a wonderful plot": what others thought beforehand. It decides nothing.
3. Exactly one cue of a text is not hearsay. The label is its polarity, flipped if the
   word directly before it is one of `NEGATORS`, as in "the film was hardly wonderful".
4. The rationale is that cue and its negator. No other token has any bearing on the
   label: polarities of hearsay, lengths and fillers are drawn independently of it.

So a model must read words in their context: counting words alone cannot tell the cue
that counts from hearsay, nor undo a negation.

Of **records**, passages for a language model, it is one line:

1. A record is a line of four different words, as in "amber lantern river stone"; no word is
   in two records of a passage.
2. Asked is the first word of one record, the answer is its other three. Words are drawn
   anew for every passage: only this record says what follows.

In reviews tokens are lower-case words and marks joined by single spaces, as `build_tokenizer`
splits them.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


LABEL_NAMES = ("negative", "positive")
NEGATORS = ("not", "never", "hardly")
HEARSAY_VERBS = ("expected", "predicted", "promised", "announced")

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

_SLOTS: dict[str, Sequence[str]] = {
    "{thing}": [
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
    "{who}": [
        "critics",
        "friends",
        "reporters",
        "neighbours",
        "colleagues",
        "posters",
    ],
    "{one}": [
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
    "{when}": [
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
_VERDICTS = (
    "the {thing} was {cue}",
    "the {thing} proved {cue}",
    "we found the {thing} {cue}",
    "this was a {cue} {thing}",
    "it remained a {cue} {thing}",
)
_DECOYS = (
    "{who} {hearsay} a {cue} {thing}",
    "the {one} {hearsay} a {cue} {thing}",
)
_FILLERS = (
    "rain fell {when}",
    "everyone sat down",
    "the {one} left {when}",
    "the {place} was crowded",
    "we met the {one} {when}",
    "we walked past the {place}",
    "the {one} bought a ticket",
    "the {one} did not wait",  # a negator that negates no cue
    "the {thing} lasted an hour",
    "the {one} waited by the {place}",
    "the {one} read about the {thing} {when}",
)
_CONNECTIVES = (",", "and", "while", "as", "but")
_OPENERS = ("well", "so", "yesterday", "honestly", "apparently", "meanwhile")
_SHORTEST_VERDICT, _SHORTEST_DECOY, _SHORTEST_FILLER = 4, 5, 3
_ATTEMPTS = 1000  # at a sentence that differs from all before


def rationale_examples(
    n_examples: int,
    *,
    seed: int = 0,
    min_tokens: int = 5,
    max_tokens: int = 40,
    negation_rate: float = 0.25,
    decoy_rate: float = 0.5,
) -> Iterator[dict[str, Any]]:
    """Different sentences with labels and rationales; the same arguments give the same.

    Labels are balanced: every two examples in succession have one of each.

    Args:
        n_examples: number of sentences.
        seed: of the random numbers.
        min_tokens, max_tokens: lengths are uniform between the two, both included; at
            least 5.
        negation_rate: share of sentences whose cue is negated, among those of at least
            6 tokens.
        decoy_rate: share with a hearsay phrase, among those that have room for it (from
            11 or 12 tokens).

    Yields:
        `example_id`, `text`, `tokens`, `label` (0 or 1) and `rationale` (positions of
        the deciding tokens).

    Raises:
        AttnProbeError: lengths out of range, or, once they are used up, too few
            different sentences of these lengths.
    """
    if not _SHORTEST_VERDICT < min_tokens <= max_tokens:
        raise AttnProbeError(
            f"expected 5 <= min_tokens <= max_tokens, got {min_tokens} and "
            f"{max_tokens}; widen the range"
        )
    rng = random.Random(seed)

    return _different(
        n_examples,
        rng,
        lambda label: _sentence(
            rng,
            rng.randint(min_tokens, max_tokens),
            label,
            negation_rate,
            decoy_rate,
        ),
    )


def _different(
    n: int,
    rng: random.Random,
    draw: Callable[[int], tuple[list[str], list[int]]],
) -> Iterator[dict[str, Any]]:
    """Examples whose texts differ from all before; of two in succession one of each label."""
    seen: set[str] = set()
    label = 0
    for example_id in range(n):
        label = 1 - label if example_id % 2 else rng.randrange(2)
        for _ in range(_ATTEMPTS):
            tokens, rationale = draw(label)
            text = " ".join(tokens)
            if text not in seen:
                break
        else:
            raise AttnProbeError(
                f"found only {example_id} different sentences of {n}; raise max_tokens"
            )
        seen.add(text)
        yield {
            "example_id": example_id,
            "text": text,
            "tokens": tokens,
            "label": label,
            "rationale": rationale,
        }


def rationale_dataset(n_examples: int = 3000, **options: Any) -> "datasets.DatasetDict":
    """:func:`rationale_examples` as train (two thirds), validation and test.

    Validation and test are a sixth each. No sentence and no `example_id` occurs twice,
    within a split or across. `tokens` are left out.

    Args:
        n_examples: number of sentences, at least 6.
        options: the other arguments of :func:`rationale_examples`, such as `seed`.

    Raises:
        AttnProbeError: fewer than 6 examples; see also :func:`rationale_examples`.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

    if n_examples < 6:
        raise AttnProbeError(
            f"expected at least 6 examples to fill three splits, got {n_examples}; ask for more"
        )
    features = Features(
        example_id=Value("int64"),
        text=Value("string"),
        label=ClassLabel(names=list(LABEL_NAMES)),
        rationale=List(Value("int64")),
    )
    rows = list(rationale_examples(n_examples, **options))
    for row in rows:
        del row["tokens"]
    examples = Dataset.from_list(rows, features=features)
    n_held_out = n_examples // 6
    n_train = n_examples - 2 * n_held_out
    return DatasetDict(
        train=examples.select(range(n_train)),
        validation=examples.select(range(n_train, n_train + n_held_out)),
        test=examples.select(range(n_train + n_held_out, n_examples)),
    )


def _sentence(
    rng: random.Random,
    length: int,
    label: int,
    negation_rate: float,
    decoy_rate: float,
) -> tuple[list[str], list[int]]:
    """Exactly `length` tokens (verdict, perhaps decoy, fillers) and the rationale."""
    room = length - 1  # for the full stop
    verdict, rationale = _verdict(rng, room, label, negation_rate)
    others = _others(rng, room - len(verdict), decoy_rate)
    room -= len(verdict) + sum(len(clause) + 1 for clause in others)
    n_before = rng.randint(0, len(others))
    tokens = rng.sample(_OPENERS, room)
    for clause in others[:n_before]:
        tokens += [*clause, rng.choice(_CONNECTIVES)]
    start = len(tokens)
    tokens += verdict
    for clause in others[n_before:]:
        tokens += [rng.choice(_CONNECTIVES), *clause]
    tokens.append(".")
    return tokens, [start + position for position in rationale]


def _verdict(
    rng: random.Random, room: int, label: int, negation_rate: float
) -> tuple[list[str], list[int]]:
    """The deciding clause, and the positions in it of the cue and its negator."""
    is_negated = room > _SHORTEST_VERDICT and rng.random() < negation_rate
    words = _choose(rng, _VERDICTS, room - is_negated)
    start = words.index("{cue}")
    deciding = [f"{{{LABEL_NAMES[label ^ is_negated]}}}"]
    if is_negated:
        deciding = ["{negator}", *deciding]
    words[start : start + 1] = deciding
    return _fill(rng, words), list(range(start, start + len(deciding)))


def _others(rng: random.Random, room: int, decoy_rate: float) -> list[list[str]]:
    """Clauses that do not affect the label, in random order.

    With a connective each they leave less than 4 tokens of `room`.
    """
    clauses = []
    if room > _SHORTEST_DECOY and rng.random() < decoy_rate:
        clauses.append(_fill(rng, _choose(rng, _DECOYS, room - 1)))
        room -= len(clauses[0]) + 1
    while room > _SHORTEST_FILLER:
        clauses.append(_fill(rng, _choose(rng, _FILLERS, room - 1)))
        room -= len(clauses[-1]) + 1
    rng.shuffle(clauses)
    return clauses


def _choose(rng: random.Random, templates: Sequence[str], room: int) -> list[str]:
    """Words of a random template with at most `room` words."""
    clauses = [template.split() for template in templates]
    return rng.choice([words for words in clauses if len(words) <= room])


def _fill(rng: random.Random, words: Sequence[str]) -> list[str]:
    """The words, with a random word in each slot."""
    return [rng.choice(_SLOTS[word]) if word in _SLOTS else word for word in words]


# --- records -------------------------------------------------------------------------------------

RECORD_WORDS = (
    *(
        "amber",
        "anchor",
        "barley",
        "basil",
        "candle",
        "cedar",
        "copper",
        "coral",
    ),
    *(
        "ember",
        "falcon",
        "fennel",
        "garnet",
        "harbour",
        "hazel",
        "island",
        "ivory",
    ),
    *(
        "juniper",
        "lantern",
        "linen",
        "maple",
        "marble",
        "meadow",
        "olive",
        "orchard",
    ),
    *(
        "pebble",
        "river",
        "saffron",
        "silver",
        "thistle",
        "velvet",
        "willow",
        "winter",
    ),
)
RECORD_LENGTH = 4


def records(rng: random.Random, n: int) -> list[list[str]]:
    """Records of a passage, each as its words; at most 8."""
    words = rng.sample(RECORD_WORDS, RECORD_LENGTH * n)
    return [words[start : start + RECORD_LENGTH] for start in range(0, len(words), RECORD_LENGTH)]


def record_questions(
    n_examples: int, *, seed: int = 0, fewest: int = 4, most: int = 8
) -> Iterator[dict[str, Any]]:
    """Passages of records with a question each; the same arguments give the same.

    Args:
        n_examples: number of passages.
        seed: of the random numbers.
        fewest, most: records of a passage, at most 8.

    Yields:
        ``example_id``, ``context``, ``question`` (a word), ``answer`` (the three that follow
        it) and ``source`` (the number of the record that says it, from 0).
    """
    rng = random.Random(f"questions {seed}")
    for example_id in range(n_examples):
        passage = records(rng, rng.randint(fewest, most))
        source = rng.randrange(len(passage))
        key, *said = passage[source]
        yield {
            "example_id": example_id,
            "context": "\n\n".join(map(" ".join, passage)),
            "question": key,
            "answer": " ".join(said),
            "source": source,
        }
