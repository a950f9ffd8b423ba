"""Fixtures for tests of the faithfulness tests."""

import itertools

import pytest

from hf_attnprobe.adapters import wrap


@pytest.fixture(scope="session")
def observe(make_model, tokenizer, texts):
    """Return a function that observes truncated texts with a model; the last text has one word."""

    def run(*kind, lengths=range(4, 12), n_texts=12):
        adapter = wrap(make_model(*kind))
        words = [text.split() for text in texts[:n_texts]]
        pairs = zip(words, itertools.cycle(lengths), strict=False)
        cut = [" ".join(text[:length]) for text, length in pairs]
        inputs = tokenizer([*cut, "superb"], padding=True, return_tensors="pt")
        return adapter, adapter.observe(adapter.prepare(inputs, tuple(range(50, 51 + n_texts))))

    return run
