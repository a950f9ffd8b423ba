"""Made-up reviews whose label is decided by known tokens, to calibrate faithfulness tests and for the demo.

On real text nobody knows which words decide the label; here a rule does, and `label_of` is that rule:

1. A *cue* is one of the 24 words in `CUES`; each has a polarity, negative (0) or positive (1).
2. A cue is *hearsay* if it follows a verb of `HEARSAY_VERBS` and "a", as in "critics expected a wonderful plot": what
   others thought beforehand. It decides nothing.
3. Exactly one cue of a text is not hearsay. The label is its polarity, flipped if the word directly before it
   is one of `NEGATORS`, as in "the film was hardly wonderful".
4. The evidence is that cue and its negator. No other token has any bearing on the label: polarities of hearsay,
   lengths and fillers are drawn independently of it.

So a model must read words in their context: counting words alone cannot tell the cue that counts from hearsay, nor
undo a negation. Tokens are lower-case words and marks joined by single spaces, just as `build_tokenizer` cuts them.
"""

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


def _words(text: str) -> list[str]:
    return text.split()


LABEL_NAMES = ("negative", "positive")
_CUES_BY_LABEL = (
    _words(
        "dull poor clumsy tedious bleak lifeless shallow painful dreadful stale boring hollow"
    ),
    _words(
        "wonderful moving clever brilliant charming delightful superb graceful witty fresh gripping tender"
    ),
)
CUES: dict[str, int] = {
    word: label for label, words in enumerate(_CUES_BY_LABEL) for word in words
}
NEGATORS = ("not", "never", "hardly")
HEARSAY_VERBS = ("expected", "predicted", "promised", "announced")

_SLOTS: dict[str, list[str]] = {
    "{thing}": _words(
        "film plot cast story dialogue music ending script camera pacing"
    ),
    "{who}": _words("critics friends reporters neighbours colleagues posters"),
    "{one}": _words("usher baker director teacher student driver waiter cousin"),
    "{place}": _words("door station corner harbour lobby market river museum"),
    "{when}": _words("early late again today quietly together outside nearby"),
    "{negator}": list(NEGATORS),
    "{hearsay}": list(HEARSAY_VERBS),
    "{cue}": list(CUES),
    **{
        f"{{{name}}}": words
        for name, words in zip(LABEL_NAMES, _CUES_BY_LABEL, strict=True)
    },
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
_ATTEMPTS = 1000


def label_of(tokens: Sequence[str]) -> tuple[int, list[int]]:
    """The label that the rule above gives to `tokens`, and the ascending positions that decide it.

    >>> label_of("critics expected a wonderful plot but the film was hardly dull .".split())
    (1, [9, 10])

    Raises:
        AttnProbeError: no cue counts, or more than one does.
    """
    counting = [
        at
        for at, token in enumerate(tokens)
        if token in CUES and not _is_hearsay(tokens, at)
    ]
    if len(counting) != 1:
        raise AttnProbeError(
            f"expected exactly one cue that is not hearsay, got {len(counting)}; see CUES for the words"
        )
    at = counting[0]
    negated = at > 0 and tokens[at - 1] in NEGATORS
    return CUES[tokens[at]] ^ negated, [at - 1, at] if negated else [at]


def _is_hearsay(tokens: Sequence[str], at: int) -> bool:
    return at >= 2 and tokens[at - 1] == "a" and tokens[at - 2] in HEARSAY_VERBS


def evidence_examples(
    n_examples: int,
    *,
    seed: int = 0,
    min_tokens: int = 5,
    max_tokens: int = 40,
    negation_rate: float = 0.25,
    decoy_rate: float = 0.5,
) -> Iterator[dict[str, Any]]:
    """Different sentences as dicts of `example_id`, `text`, `tokens`, `label` (0 or 1) and `evidence` (positions).

    Labels are balanced: each two examples in succession have one of each. The same arguments give the same sentences.

    Args:
        min_tokens, max_tokens: lengths are uniform between the two, both included; at least 5.
        negation_rate: share of the sentences whose cue is negated, among those of 6 tokens and more.
        decoy_rate: share with a hearsay phrase, among those that have room for it (from 11 or 12 tokens).

    Raises:
        AttnProbeError: lengths out of range, or too few different sentences of these lengths (when it comes to that).
    """
    if not _SHORTEST_VERDICT < min_tokens <= max_tokens:
        raise AttnProbeError(
            f"expected 5 <= min_tokens <= max_tokens, got {min_tokens} and {max_tokens}; widen the range"
        )
    rng, seen = random.Random(seed), set()
    for example_id in range(n_examples):
        if example_id % 2 == 0:
            first = rng.randrange(2)
        label = first ^ (example_id % 2)
        for _ in range(_ATTEMPTS):
            tokens, evidence = _sentence(
                rng,
                rng.randint(min_tokens, max_tokens),
                label,
                negation_rate,
                decoy_rate,
            )
            if (text := " ".join(tokens)) not in seen:
                break
        else:
            raise AttnProbeError(
                f"found only {example_id} different sentences of {n_examples}; raise max_tokens"
            )
        seen.add(text)
        yield {
            "example_id": example_id,
            "text": text,
            "tokens": tokens,
            "label": label,
            "evidence": evidence,
        }


def evidence_dataset(
    n_examples: int = 3000,
    *,
    seed: int = 0,
    min_tokens: int = 5,
    max_tokens: int = 40,
    negation_rate: float = 0.25,
    decoy_rate: float = 0.5,
) -> "datasets.DatasetDict":
    """`evidence_examples` as splits: train (two thirds), validation and test (a sixth each), without `tokens`.

    No sentence and no `example_id` occurs twice, within a split or across.
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
        evidence=List(Value("int64")),
    )
    options = {"min_tokens": min_tokens, "max_tokens": max_tokens}
    rates = {"negation_rate": negation_rate, "decoy_rate": decoy_rate}
    rows = list(evidence_examples(n_examples, seed=seed, **options, **rates))
    held_out = n_examples // 6
    parts = {
        "train": rows[: -2 * held_out],
        "validation": rows[-2 * held_out : -held_out],
        "test": rows[-held_out:],
    }
    return DatasetDict(
        {
            name: Dataset.from_dict(
                {column: [row[column] for row in part] for column in features},
                features=features,
            )
            for name, part in parts.items()
        }
    )


def _sentence(
    rng: random.Random, length: int, label: int, negation_rate: float, decoy_rate: float
) -> tuple[list[str], list[int]]:
    """Exactly `length` tokens and the positions of the evidence: a verdict, perhaps a decoy, and fillers."""
    room = length - 1  # for the full stop
    verdict, evidence = _verdict(rng, room, label, negation_rate)
    others = _others(rng, room - len(verdict), decoy_rate)
    room -= len(verdict) + sum(len(clause) + 1 for clause in others)
    before = rng.randint(0, len(others))
    tokens = rng.sample(_OPENERS, room)
    for clause in others[:before]:
        tokens += [*clause, rng.choice(_CONNECTIVES)]
    start = len(tokens)
    tokens += verdict
    for clause in others[before:]:
        tokens += [rng.choice(_CONNECTIVES), *clause]
    return [*tokens, "."], [start + at for at in evidence]


def _verdict(
    rng: random.Random, room: int, label: int, negation_rate: float
) -> tuple[list[str], list[int]]:
    """The clause that decides, and where in it the cue and its negator are."""
    negated = room > _SHORTEST_VERDICT and rng.random() < negation_rate
    words = _choose(rng, _VERDICTS, room - negated)
    at = words.index("{cue}")
    words[at : at + 1] = ["{negator}"] * negated + [
        f"{{{LABEL_NAMES[label ^ negated]}}}"
    ]
    return _fill(rng, words), list(range(at, at + 1 + negated))


def _others(rng: random.Random, room: int, decoy_rate: float) -> list[list[str]]:
    """Clauses without bearing on the label, in any order, which with a connective each leave less than 4 of `room`."""
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
    return rng.choice(
        [words for words in map(str.split, templates) if len(words) <= room]
    )


def _fill(rng: random.Random, words: Sequence[str]) -> list[str]:
    return [rng.choice(_SLOTS[word]) if word in _SLOTS else word for word in words]
