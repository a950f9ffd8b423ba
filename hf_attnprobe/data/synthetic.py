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

Of **pairs**, premises and hypotheses laid out as in SNLI, it is one word in each:

1. An *attribute* is one of the words in `ATTRIBUTES`; each has a kind, colour or
   material. In a premise it is *hearsay* if it follows a verb of `HEARSAY_VERBS` and "a",
   as in "neighbours expected a green vase", and decides nothing.
2. A premise has exactly one attribute that is not hearsay, a hypothesis exactly one.
3. The label is entailment if the two are the same word, contradiction if they are
   different words of one kind, and neutral if they are of two kinds.
4. The evidence is these two words: `rationale` in the premise, `rationale_pair` in the
   hypothesis. No other token has any bearing on the label.

Either text alone says nothing: with each label, either attribute is equally often each
of the words. So a model must read both, and the premise in context.

Of **records**, passages for a language model, it is one line:

1. A record is a line of four different words, as in "amber lantern river stone"; no word is
   in two records of a passage.
2. Asked is the first word of one record, the answer is its other three. Words are drawn
   anew for every passage: only this record says what follows.

In reviews and pairs tokens are lower-case words and marks joined by single spaces, as `build_tokenizer`
splits them.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.errors import AttnProbeError


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
    "{who}": ["critics", "friends", "reporters", "neighbours", "colleagues", "posters"],
    "{one}": ["usher", "baker", "director", "teacher", "student", "driver", "waiter", "cousin"],
    "{place}": ["door", "station", "corner", "harbour", "lobby", "market", "river", "museum"],
    "{when}": ["early", "late", "again", "today", "quietly", "together", "outside", "nearby"],
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
_DECOYS = ("{who} {hearsay} a {cue} {thing}", "the {one} {hearsay} a {cue} {thing}")
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
_ATTEMPTS = 1000  # at a sentence or a pair that differs from all before


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

    def draw(label: int) -> dict[str, Any]:
        length = rng.randint(min_tokens, max_tokens)
        tokens, rationale = _sentence(rng, length, label, negation_rate, decoy_rate)
        text = " ".join(tokens)
        return {"text": text, "tokens": tokens, "label": label, "rationale": rationale}

    return _different(n_examples, _balanced(rng, 2), draw, "sentences", "raise max_tokens")


def _balanced(rng: random.Random, n_labels: int) -> Iterator[int]:
    """Labels in random order, of as many in succession one of each."""
    while True:
        if n_labels == 2:
            first = rng.randrange(2)
            yield from (first, 1 - first)
        else:
            yield from reversed(rng.sample(range(n_labels), n_labels))


def _different(
    n: int,
    labels: Iterator[int],
    draw: Callable[[int], dict[str, Any]],
    what: str,
    advice: str,
) -> Iterator[dict[str, Any]]:
    """Examples whose texts differ from all before."""
    seen: set[tuple[str, ...]] = set()
    for example_id, label in zip(range(n), labels, strict=False):
        for example in (draw(label) for _ in range(_ATTEMPTS)):
            texts = tuple(value for value in example.values() if isinstance(value, str))
            if texts not in seen:
                break
        else:
            raise AttnProbeError(f"found only {example_id} different {what} of {n}; {advice}")
        seen.add(texts)
        yield {"example_id": example_id, **example}


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
    from datasets import ClassLabel, Dataset, Features, List, Value

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
    return _in_splits(examples)


def _sentence(
    rng: random.Random, length: int, label: int, negation_rate: float, decoy_rate: float
) -> tuple[list[str], list[int]]:
    """Exactly `length` tokens (verdict, perhaps decoy, fillers) and the rationale."""
    room = length - 1  # for the full stop
    verdict, rationale = _verdict(rng, room, label, negation_rate)
    others = _others(rng, room - len(verdict), decoy_rate)
    room -= len(verdict) + sum(len(clause) + 1 for clause in others)
    n_before = rng.randint(0, len(others))
    tokens = rng.sample(_OPENERS, room)
    start = _join(tokens, verdict, others, n_before, lambda: rng.choice(_CONNECTIVES))
    return tokens, [start + position for position in rationale]


def _join(
    words: list[str],
    told: list[str],
    others: Sequence[list[str]],
    n_before: int,
    connective: Callable[[], str],
) -> int:
    """Puts a clause behind some of the others and before the rest; where it begins."""
    for clause in others[:n_before]:
        words += [*clause, connective()]
    start = len(words)
    words += told
    for clause in others[n_before:]:
        words += [connective(), *clause]
    words.append(".")
    return start


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


PAIR_LABELS = ("entailment", "neutral", "contradiction")  # in SNLI's order
KINDS: dict[str, Sequence[str]] = {
    "colour": ("red", "green", "blue", "yellow", "black", "white"),
    "material": ("wooden", "plastic", "leather", "silver", "woollen", "stone"),
}
ATTRIBUTES = {word: kind for kind, words in KINDS.items() for word in words}

_OBJECTS = ("box", "bag", "chair", "cup", "hat", "lamp", "table", "toy", "vase", "bowl")
_PAIR_SLOTS: dict[str, Sequence[str]] = {
    "{who}": ("neighbours", "friends", "visitors", "children", "guests", "reporters"),
    "{one}": ("woman", "man", "girl", "boy", "teacher", "driver", "baker", "waiter"),
    "{place}": ("door", "window", "market", "river", "station", "garden", "wall"),
    "{when}": ("early", "late", "today", "quietly", "again", "outside"),
    "{hearsay}": HEARSAY_VERBS,
}
_SCENES = (
    "the {object} by the {place} was {attribute}",
    "a {one} carried a {attribute} {object}",
    "there was a {attribute} {object} near the {place}",
    "the {one} left the {attribute} {object} outside",
    "the {object} that the {one} bought was {attribute}",
)
_PAIR_HEARSAY = "{who} {hearsay} a {attribute} {object}"
_PAIR_FILLERS = (
    "rain fell {when}",
    "the {one} waited by the {place}",
    "everyone sat down",
    "a {one} walked past the {place} {when}",
    "the {place} was crowded",
)
_CLAIMS = (
    "the {object} is {attribute}",
    "there is a {attribute} {object}",
    "someone saw a {attribute} {object} {when}",
    "the {object} near the {place} is {attribute}",
)
_MOST_PAIR_FILLERS = 2


def evidence_pairs(
    n_pairs: int, *, seed: int = 0, decoy_rate: float = 0.5
) -> Iterator[dict[str, Any]]:
    """Different pairs with labels and evidence; the same arguments give the same.

    Labels are balanced: every three pairs in succession have one of each.

    Args:
        n_pairs: number of pairs.
        seed: of the random numbers.
        decoy_rate: share of premises with an attribute that is hearsay.

    Yields:
        `example_id`, `premise`, `hypothesis`, `label` (0 entailment, 1 neutral,
        2 contradiction), `rationale` and `rationale_pair` (the position of the deciding
        word in premise and hypothesis, each a list of one).

    Raises:
        AttnProbeError: a rate out of range, or too few different pairs.
    """
    if not 0 <= decoy_rate <= 1:
        raise AttnProbeError(f"expected a decoy_rate from 0 to 1, got {decoy_rate}; it is a share")
    rng = random.Random(seed)
    labels = _balanced(rng, len(PAIR_LABELS))
    return _different(
        n_pairs, labels, lambda label: _pair(rng, label, decoy_rate), "pairs", "ask for fewer"
    )


def evidence_pair_dataset(n_pairs: int = 6000, **options: Any) -> "datasets.DatasetDict":
    """:func:`evidence_pairs` as train (two thirds), validation and test.

    Validation and test are a sixth each. No pair and no `example_id` occurs twice,
    within a split or across.

    Args:
        n_pairs: number of pairs, at least 18.
        options: the other arguments of :func:`evidence_pairs`, such as `seed`.

    Raises:
        AttnProbeError: fewer than 18 pairs; see also :func:`evidence_pairs`.
    """
    from datasets import ClassLabel, Dataset, Features, List, Value

    if n_pairs < 18:
        raise AttnProbeError(
            f"expected at least 18 pairs, for every label in three splits, got {n_pairs}; "
            "ask for more"
        )
    features = Features(
        example_id=Value("int64"),
        premise=Value("string"),
        hypothesis=Value("string"),
        label=ClassLabel(names=list(PAIR_LABELS)),
        rationale=List(Value("int64")),
        rationale_pair=List(Value("int64")),
    )
    pairs = Dataset.from_list(list(evidence_pairs(n_pairs, **options)), features=features)
    return _in_splits(pairs)


def _pair(rng: random.Random, label: int, decoy_rate: float) -> dict[str, Any]:
    """A pair with the label; each attribute is drawn uniformly."""
    told = rng.choice(list(ATTRIBUTES))
    claimed = rng.choice(_claims(told, label))
    thing = rng.choice(_OBJECTS)
    premise, rationale = _premise(rng, thing, told, decoy_rate)
    hypothesis = _fill_pair(rng, rng.choice(_CLAIMS), thing, claimed)
    return {
        "premise": " ".join(premise),
        "hypothesis": " ".join([*hypothesis, "."]),
        "label": label,
        "rationale": [rationale],
        "rationale_pair": [hypothesis.index(claimed)],
    }


def _claims(told: str, label: int) -> list[str]:
    """Attributes with the given relation to those of the premise."""
    if PAIR_LABELS[label] == "entailment":
        return [told]
    is_neutral = PAIR_LABELS[label] == "neutral"
    return [
        word
        for word, kind in ATTRIBUTES.items()
        if word != told and (kind != ATTRIBUTES[told]) == is_neutral
    ]


def _premise(rng: random.Random, thing: str, told: str, decoy_rate: float) -> tuple[list[str], int]:
    """Words of a premise, and the position of the attribute it states."""
    clauses = [
        _fill_pair(rng, template, thing, "")
        for template in rng.sample(_PAIR_FILLERS, rng.randint(0, _MOST_PAIR_FILLERS))
    ]
    if rng.random() < decoy_rate:
        decoy = rng.choice(list(ATTRIBUTES))
        clauses.append(_fill_pair(rng, _PAIR_HEARSAY, thing, decoy))
    rng.shuffle(clauses)
    scene = _fill_pair(rng, rng.choice(_SCENES), thing, told)
    n_before = rng.randint(0, len(clauses))
    words: list[str] = []
    start = _join(words, scene, clauses, n_before, lambda: ",")
    return words, start + scene.index(told)


def _fill_pair(rng: random.Random, template: str, thing: str, attribute: str) -> list[str]:
    """Words of a template; slots without a word of their own get a random one."""
    own = {"{object}": thing, "{attribute}": attribute}
    return [
        own[word] if word in own else rng.choice(_PAIR_SLOTS.get(word, (word,)))
        for word in template.split()
    ]


def _in_splits(examples: "datasets.Dataset") -> "datasets.DatasetDict":
    """Two thirds for training, a sixth each for validation and test, in order."""
    from datasets import DatasetDict

    n_held_out = len(examples) // 6
    n_train = len(examples) - 2 * n_held_out
    return DatasetDict(
        train=examples.select(range(n_train)),
        validation=examples.select(range(n_train, n_train + n_held_out)),
        test=examples.select(range(n_train + n_held_out, len(examples))),
    )


# --- records -------------------------------------------------------------------------------------

RECORD_WORDS = (
    *("amber", "anchor", "barley", "basil", "candle", "cedar", "copper", "coral"),
    *("ember", "falcon", "fennel", "garnet", "harbour", "hazel", "island", "ivory"),
    *("juniper", "lantern", "linen", "maple", "marble", "meadow", "olive", "orchard"),
    *("pebble", "river", "saffron", "silver", "thistle", "velvet", "willow", "winter"),
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
