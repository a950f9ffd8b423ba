"""Generated reviews: their rule read off the words, and their layout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.examples import _choose_split, compute_dataset_fingerprint, load_examples
from hf_attnprobe.data.recipes import Recipe
from hf_attnprobe.data.synthetic import (
    CUE_SENTIMENTS,
    HEARSAY_VERBS,
    NEGATORS,
    generate_rationale_examples,
    make_rationale_dataset,
)
from hf_attnprobe.data.tokenizer import build_tokenizer
from tests.helpers.error_messages import refused


ROOT = Path(__file__).parents[2]
MANY = list(generate_rationale_examples(3000, seed=0))


def label_of(tokens):
    """The label that the rule gives to tokens, and the ascending rationale."""
    counting = []
    for position, token in enumerate(tokens):
        before = tokens[max(0, position - 2) : position]
        is_hearsay = before[-1:] == ["a"] and before[0] in HEARSAY_VERBS
        if token in CUE_SENTIMENTS and not is_hearsay:
            counting.append(position)
    if len(counting) != 1:
        raise AttnProbeError(f"expected exactly one cue, got {len(counting)}")
    cue = counting[0]
    label = CUE_SENTIMENTS[tokens[cue]]
    if cue > 0 and tokens[cue - 1] in NEGATORS:
        return 1 - label, [cue - 1, cue]
    return label, [cue]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    shortest=st.integers(5, 20),
    more=st.integers(8, 30),
    negation_rate=st.floats(0, 1),
    hearsay_rate=st.floats(0, 1),
)
def test_the_generator_agrees_with_the_rule(seed, shortest, more, negation_rate, hearsay_rate):
    for example in generate_rationale_examples(
        20,
        seed=seed,
        min_tokens=shortest,
        max_tokens=shortest + more,
        negation_rate=negation_rate,
        hearsay_rate=hearsay_rate,
    ):
        assert example["tokens"] == example["text"].split(" ")
        assert label_of(example["tokens"]) == (example["label"], example["rationale"])
        assert shortest <= len(example["tokens"]) <= shortest + more


def test_the_rule_on_sentences_of_its_own():
    for text, expected in {
        "the film was dull .": (0, [3]),
        "the film was not dull .": (1, [3, 4]),
        "the usher did not wait and it remained a tender plot .": (1, [9]),
        "critics promised a tender plot , it was hardly tender": (0, [8, 9]),
        "promised a dull": None,
        "dull and witty": None,
    }.items():
        if expected is None:
            refused("exactly one cue", label_of, text.split())
        else:
            assert label_of(text.split()) == expected


def test_lengths_negation_and_decoys_are_as_asked():
    lengths = [len(example["tokens"]) for example in MANY]
    assert set(lengths) == set(range(5, 41))
    long = [example for example in MANY if len(example["tokens"]) >= 12]
    assert sum(len(example["rationale"]) == 2 for example in long) / len(long) == pytest.approx(
        0.25, abs=0.03
    )
    cues = [sum(token in CUE_SENTIMENTS for token in example["tokens"]) for example in long]
    assert set(cues) == {1, 2} and sum(n == 2 for n in cues) / len(long) == pytest.approx(
        0.5, abs=0.03
    )


def test_labels_are_balanced_in_every_prefix_of_even_length():
    labels = [example["label"] for example in MANY]
    assert all(a + b == 1 for a, b in zip(labels[::2], labels[1::2], strict=True))


def test_decoys_negators_and_length_say_nothing_of_the_label():
    for select in (
        lambda e: sum(token in CUE_SENTIMENTS for token in e["tokens"]) == 2,
        lambda e: any(token in NEGATORS for token in e["tokens"]),
        lambda e: len(e["tokens"]) > 25,
    ):
        labels = [example["label"] for example in MANY if select(example)]
        assert sum(labels) / len(labels) == pytest.approx(0.5, abs=0.05)


def test_tokens_are_those_of_the_tokenizer():
    tokenizer = build_tokenizer(example["text"] for example in MANY)
    assert len(tokenizer) < 130
    assert all(tokenizer.tokenize(example["text"]) == example["tokens"] for example in MANY)


def test_counting_words_is_not_enough():
    """Logistic regression on word counts, fitted on the very examples that it is asked for: .74 measured."""
    tokenizer = build_tokenizer(example["text"] for example in MANY)
    ids = [
        tokenizer(example["text"], add_special_tokens=False)["input_ids"] for example in MANY[:2000]
    ]
    counts = torch.stack(
        [torch.bincount(torch.tensor(row), minlength=len(tokenizer)) for row in ids]
    ).float()
    labels = torch.tensor([float(example["label"]) for example in MANY[:2000]])
    weights = torch.zeros(len(tokenizer), requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100)

    def loss():
        optimizer.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(counts @ weights, labels)
        value.backward()
        return value

    optimizer.step(loss)
    accuracy = ((counts @ weights > 0) == labels.bool()).float().mean()
    assert 0.6 < accuracy < 0.85


def test_splits_are_disjoint_and_load_as_they_are():
    splits = make_rationale_dataset(600, seed=3)
    sizes = {name: len(part) for name, part in splits.items()}
    assert sizes == {"train": 400, "validation": 100, "test": 100}
    texts = [text for part in splits.values() for text in part["text"]]
    assert len(set(texts)) == 600
    test = load_examples(splits, "test")
    assert test[:] == splits["test"][:] and test["example_id"][:] == list(range(500, 600))
    assert test.features["label"].names == ["negative", "positive"]
    assert sum(test["label"]) == 50


def test_seeds_give_different_sentences():
    first, second = (
        compute_dataset_fingerprint(make_rationale_dataset(60, seed=seed)["train"])
        for seed in (0, 1)
    )
    assert first != second


def fixed_by_their_seed():
    """What must not depend on the process: sentences, vocabulary and the rows that are set apart for validation."""
    train = make_rationale_dataset(60, seed=0)["train"]
    rows = _choose_split(
        {"train": train}, "train", Recipe("in memory", validation_fraction=0.5), seed=3
    )[1]
    return [
        compute_dataset_fingerprint(train),
        list(rows),
        build_tokenizer(train["text"]).get_vocab(),
    ]


@pytest.mark.slow
def test_another_process_with_another_hash_seed_gives_the_same():
    code = "import json; from tests.data.test_synthetic import fixed_by_their_seed; print(json.dumps(fixed_by_their_seed()))"
    paths = str(ROOT)
    environment = {**os.environ, "PYTHONHASHSEED": "99", "PYTHONPATH": paths}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(run.stdout) == fixed_by_their_seed()


def test_errors():
    refused("5 <= min_tokens", generate_rationale_examples, 1, min_tokens=4)
    refused("5 <= min_tokens", generate_rationale_examples, 1, min_tokens=9, max_tokens=8)
    refused("n_examples is 5000", list, generate_rationale_examples(5000, max_tokens=5))
    refused("at least 6", make_rationale_dataset, 5)
