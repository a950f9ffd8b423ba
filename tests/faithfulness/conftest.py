"""What a classifier sees of short texts."""

import itertools

import pytest

from hf_attnprobe.adapters import wrap


@pytest.fixture(scope="session")
def observe(make_model, tokenizer, texts):
    """A function to adapter and observation of generated texts cut to a few words; the last has one."""

    def run(*kind, lengths=range(4, 12), n_texts=12):
        adapter = wrap(make_model(*kind))
        words = [text.split() for text in texts[:n_texts]]
        pairs = zip(words, itertools.cycle(lengths), strict=False)
        cut = [" ".join(text[:length]) for text, length in pairs]
        inputs = tokenizer([*cut, "superb"], padding=True, return_tensors="pt")
        return adapter, adapter.observe(adapter.prepare(inputs, tuple(range(50, 51 + n_texts))))

    return run
