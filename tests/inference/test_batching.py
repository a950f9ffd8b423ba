"""Batches of texts: the memory budget, the batch size and the order of lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_attnprobe.inference.batching import form_batches
from hf_attnprobe.inference.encoding import Text


def make_texts(lengths):
    return [Text(k, 0, {"input_ids": [1] * length}) for k, length in enumerate(lengths)]


def squared(n_tokens):
    """Bytes of a text, as of a matrix of attention weights."""
    return n_tokens**2


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.integers(1, 3000),
    st.integers(1, 12),
)
def test_no_batch_exceeds_the_memory_budget_or_the_batch_size(lengths, budget, batch_size):
    texts = make_texts(lengths)
    batches = [*form_batches(texts, squared, budget, batch_size)]
    ids = [text.example_id for batch in batches for text in batch]
    assert sorted(ids) == [*range(len(texts))]
    for batch in batches:
        assert 1 <= len(batch) <= batch_size
        # All texts of a batch are padded to the longest one; one text alone may exceed the budget.
        longest = max(text.n_tokens for text in batch)
        assert len(batch) == 1 or len(batch) * squared(longest) <= budget


@pytest.mark.parametrize(
    ("budget", "sizes"), [(300, [3, 3, 3, 3]), (250, [2] * 6), (99, [1] * 12), (10**9, [10, 2])]
)
def test_batches_fill_the_memory_budget(budget, sizes):
    batches = form_batches(make_texts([10] * 12), squared, budget, batch_size=10)
    assert [len(batch) for batch in batches] == sizes


def test_texts_of_similar_length_share_a_batch():
    batches = [*form_batches(make_texts([9, 2, 9, 2, 5]), squared, 10**9, batch_size=2)]
    assert [[text.n_tokens for text in batch] for batch in batches] == [[2, 2], [5, 9], [9]]
