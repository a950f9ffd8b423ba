"""Generated premises and hypotheses: the rule read off the words, chance for either text alone, the data set's layout."""

import numpy as np
import pytest

from hf_attnprobe.data.examples import dataset_fingerprint, load_examples
from hf_attnprobe.data.synthetic import (
    ATTRIBUTES,
    HEARSAY_VERBS,
    PAIR_LABELS,
    evidence_pair_dataset,
    evidence_pairs,
)
from hf_attnprobe.data.tokenizer import build_tokenizer
from hf_attnprobe.errors import AttnProbeError


MANY = list(evidence_pairs(3000, seed=0))


def deciding(tokens):
    """The place of the only attribute that is not hearsay."""
    places = [
        place
        for place, token in enumerate(tokens)
        if token in ATTRIBUTES
        and not (tokens[place - 1] == "a" and tokens[place - 2] in HEARSAY_VERBS)
    ]
    assert len(places) == 1
    return places[0]


def label_of(told, claimed):
    if told == claimed:
        return "entailment"
    return "contradiction" if ATTRIBUTES[told] == ATTRIBUTES[claimed] else "neutral"


def test_the_generator_agrees_with_the_rule():
    for pair in MANY:
        premise, hypothesis = pair["premise"].split(" "), pair["hypothesis"].split(" ")
        places = deciding(premise), deciding(hypothesis)
        assert ([places[0]], [places[1]]) == (pair["rationale"], pair["rationale_pair"])
        label = label_of(premise[places[0]], hypothesis[places[1]])
        assert label == PAIR_LABELS[pair["label"]]


def test_labels_are_balanced_and_decoys_as_asked():
    labels = np.array([pair["label"] for pair in MANY]).reshape(-1, 3)
    assert (np.sort(labels, axis=1) == [0, 1, 2]).all()
    decoys = [sum(t in ATTRIBUTES for t in pair["premise"].split()) == 2 for pair in MANY]
    assert np.mean(decoys) == pytest.approx(0.5, abs=0.03)
    for rate in (0, 1):
        for pair in evidence_pairs(30, decoy_rate=rate):
            n = sum(t in ATTRIBUTES for t in pair["premise"].split())
            assert n == 1 + rate


@pytest.mark.parametrize("text", ["premise", "hypothesis", "both"])
def test_either_text_alone_is_at_chance(text):
    """Least squares on words, fitted on two thirds: .33 for one text. With products of the two deciding words: all."""
    sides = ("premise", "hypothesis") if text == "both" else (text,)
    vocabulary = sorted({t for p in MANY for s in sides for t in p[s].split()})
    column = {token: k for k, token in enumerate(vocabulary)}
    words = sorted(ATTRIBUTES)
    features = np.zeros((len(MANY), len(vocabulary) + len(words) ** 2))
    for row, pair in enumerate(MANY):
        for side in sides:
            for token in pair[side].split():
                features[row, column[token]] = 1
        if text == "both":
            told = pair["premise"].split()[pair["rationale"][0]]
            claimed = pair["hypothesis"].split()[pair["rationale_pair"][0]]
            product = words.index(told) * len(words) + words.index(claimed)
            features[row, len(vocabulary) + product] = 1
    labels = np.array([pair["label"] for pair in MANY])
    weights = np.linalg.lstsq(features[:2000], np.eye(3)[labels[:2000]], rcond=None)[0]
    accuracy = ((features[2000:] @ weights).argmax(1) == labels[2000:]).mean()
    if text == "both":
        assert accuracy > 0.99
    else:
        assert accuracy == pytest.approx(1 / 3, abs=0.05)


def test_tokens_are_those_of_the_tokenizer():
    texts = [pair[side] for pair in MANY for side in ("premise", "hypothesis")]
    tokenizer = build_tokenizer(texts)
    assert all(tokenizer.tokenize(text) == text.split(" ") for text in texts[:500])


def test_the_data_set_loads_as_pairs_with_evidence_in_both():
    splits = evidence_pair_dataset(180, seed=3)
    assert {name: len(part) for name, part in splits.items()} == {
        "train": 120,
        "validation": 30,
        "test": 30,
    }
    pairs = {(row["premise"], row["hypothesis"]) for part in splits.values() for row in part}
    assert len(pairs) == 180
    rows, given = load_examples(splits, "test"), splits["test"]
    for name, column in {
        "text": "premise",
        "text_pair": "hypothesis",
        "label": "label",
        "rationale": "rationale",
        "rationale_pair": "rationale_pair",
    }.items():
        assert rows[name][:] == given[column][:]
    assert rows.features["label"].names == list(PAIR_LABELS)


def test_the_same_arguments_give_the_same_and_seeds_differ():
    first, again, other = (
        dataset_fingerprint(load_examples(evidence_pair_dataset(60, seed=seed), "test"))
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_errors():
    with pytest.raises(AttnProbeError, match="decoy_rate from 0 to 1"):
        next(evidence_pairs(1, decoy_rate=1.5))
    with pytest.raises(AttnProbeError, match="at least 18"):
        evidence_pair_dataset(6)
