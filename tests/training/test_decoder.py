"""Training of decoders: they learn a recital, and are saved and asked."""

import itertools

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attnprobe.data.synthetic import RECORD_LENGTH
from hf_attnprobe.training import decoder


def test_what_is_learned_of_a_recital_stands_in_its_passage():
    words = {word: number for number, word in enumerate(["<sos>", *decoder.RECORD_WORDS])}
    batches = decoder.RecitationDataset(words, seed=1)
    for step in (0, 5, len(batches) - 1):
        batch = batches[step]
        assert all(torch.equal(batch[name], batches[step][name]) for name in batch)
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            learned = [place for place, label in enumerate(labels) if label != -100]
            first = learned[0] - 1  # of the recital: its first word is not learned
            assert [p for p in range(first, len(ids)) if (p - first) % RECORD_LENGTH] == learned
            pairs = [*itertools.pairwise(ids[:first])]
            for place in learned:
                assert labels[place] == ids[place]
                assert (ids[place - 1], ids[place]) in pairs


def test_a_decoder_is_trained_saved_and_asked(tmp_path):
    model, _ = decoder.train_decoder(tmp_path, seed=2, n_steps=4, progress=False)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)("amber anchor", return_tensors="pt")["input_ids"]
    assert torch.equal(model(ids).logits, again(ids).logits)
