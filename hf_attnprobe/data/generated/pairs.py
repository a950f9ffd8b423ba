"""Made-up premises and hypotheses whose relation is decided by one word in each.

The layout is SNLI's, and here, unlike there, a rule says which words decide:

1. An *attribute* is one of the words in `ATTRIBUTES`; each has a kind, colour or
   material. In a premise it is *hearsay* if it follows a verb of `HEARSAY_VERBS` and "a",
   as in "neighbours expected a green vase", and decides nothing.
2. A premise has exactly one attribute that is not hearsay, a hypothesis exactly one.
3. The label is entailment if the two are the same word, contradiction if they are
   different words of one kind, and neutral if they are of two kinds.
4. The evidence is these two words: `rationale` in the premise, `rationale_pair` in the
   hypothesis. No other token has any bearing on the label.

Either text alone says nothing: with each label, either attribute is equally often each
of the words. So a model must read both, and the premise in context. Tokens are
lower-case words and marks joined by single spaces, as `build_tokenizer` splits them.
"""

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.data.generated.reviews import HEARSAY_VERBS
from hf_attnprobe.data.generated.splits import in_splits
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


PAIR_LABELS = ("entailment", "neutral", "contradiction")  # in SNLI's order
KINDS: dict[str, Sequence[str]] = {
    "colour": ("red", "green", "blue", "yellow", "black", "white"),
    "material": ("wooden", "plastic", "leather", "silver", "woollen", "stone"),
}
ATTRIBUTES = {word: kind for kind, words in KINDS.items() for word in words}

_OBJECTS = ("box", "bag", "chair", "cup", "hat", "lamp", "table", "toy", "vase", "bowl")
_SLOTS: dict[str, Sequence[str]] = {
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
_HEARSAY = "{who} {hearsay} a {attribute} {object}"
_FILLERS = (
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
_MOST_FILLERS = 2
_ATTEMPTS = 1000  # at a pair that differs from all before


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
    seen: set[tuple[str, str]] = set()
    labels: list[int] = []
    for example_id in range(n_pairs):
        if not labels:
            labels = rng.sample(range(3), 3)
        label = labels.pop()
        for _ in range(_ATTEMPTS):
            pair = _pair(rng, label, decoy_rate)
            if (pair["premise"], pair["hypothesis"]) not in seen:
                break
        else:
            raise AttnProbeError(
                f"found only {example_id} different pairs of {n_pairs}; ask for fewer"
            )
        seen.add((pair["premise"], pair["hypothesis"]))
        yield {"example_id": example_id, **pair}


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
    return in_splits(pairs)


def _pair(rng: random.Random, label: int, decoy_rate: float) -> dict[str, Any]:
    """A pair with the label, its attributes each drawn evenly from all."""
    told = rng.choice(list(ATTRIBUTES))
    claimed = rng.choice(_claims(told, label))
    thing = rng.choice(_OBJECTS)
    premise, rationale = _premise(rng, thing, told, decoy_rate)
    hypothesis = _fill(rng, rng.choice(_CLAIMS), thing, claimed)
    return {
        "premise": " ".join(premise),
        "hypothesis": " ".join([*hypothesis, "."]),
        "label": label,
        "rationale": [rationale],
        "rationale_pair": [hypothesis.index(claimed)],
    }


def _claims(told: str, label: int) -> list[str]:
    """The attributes that have the relation to what the premise tells."""
    if PAIR_LABELS[label] == "entailment":
        return [told]
    is_neutral = PAIR_LABELS[label] == "neutral"
    return [
        word
        for word, kind in ATTRIBUTES.items()
        if word != told and (kind != ATTRIBUTES[told]) == is_neutral
    ]


def _premise(rng: random.Random, thing: str, told: str, decoy_rate: float) -> tuple[list[str], int]:
    """The words of a premise, and the place of what it tells."""
    clauses = [
        _fill(rng, template, thing, "")
        for template in rng.sample(_FILLERS, rng.randint(0, _MOST_FILLERS))
    ]
    if rng.random() < decoy_rate:
        decoy = rng.choice(list(ATTRIBUTES))
        clauses.append(_fill(rng, _HEARSAY, thing, decoy))
    rng.shuffle(clauses)
    scene = _fill(rng, rng.choice(_SCENES), thing, told)
    n_before = rng.randint(0, len(clauses))
    words: list[str] = []
    for clause in clauses[:n_before]:
        words += [*clause, ","]
    place = len(words) + scene.index(told)
    words += scene
    for clause in clauses[n_before:]:
        words += [",", *clause]
    return [*words, "."], place


def _fill(rng: random.Random, template: str, thing: str, attribute: str) -> list[str]:
    """The words of a template; slots without a word of their own get a random one."""
    own = {"{object}": thing, "{attribute}": attribute}
    return [
        own[word] if word in own else rng.choice(_SLOTS.get(word, (word,)))
        for word in template.split()
    ]
