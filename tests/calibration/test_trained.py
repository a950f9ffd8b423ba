"""Trained models: texts say nothing but by the signal, and what is proved is what is so."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from hf_attnprobe.calibration.constructs import CONSTRUCTS, WHOLE
from hf_attnprobe.calibration.report import by_proof, by_ranking, from_json, to_json
from hf_attnprobe.calibration.trained import SIGNAL, VOID, Proof
from scipy.linalg import lstsq
from scipy.stats import binomtest

import speakers
from hf_attnprobe import AttnProbeError, CalibrationOptions, calibrate
from hf_attnprobe.calibration import trained


@pytest.fixture(scope="module")
def splits():
    return trained.planted_splits(0, 400)


def test_every_text_has_one_signal_of_its_label_and_one_void(splits):
    n_without = Counter()
    for name, part in splits.items():
        for text, label in zip(part["text"], part["label"], strict=True):
            words = Counter(text.split())
            n_without[name] += words[SIGNAL[label]] == 0
            assert words[SIGNAL[label]] <= 1 and words[SIGNAL[1 - label]] == 0
            assert words[VOID[0]] + words[VOID[1]] == 1
    assert n_without["test"] == 0
    assert binomtest(n_without["train"], trained.N_TRAIN, 0.25).pvalue > 0.01


def test_without_the_signal_a_bag_of_words_is_at_chance_and_with_it_right(splits):
    """The ceiling of everything else, by least squares."""

    words = sorted({word for text in splits["train"]["text"] for word in text.split()})

    def right(left_out: tuple[str, ...]) -> int:
        read = [word for word in words if word not in left_out]

        def counts(part: str) -> np.ndarray:
            return np.array([[t.split().count(w) for w in read] for t in splits[part]["text"]])

        fitted, *_ = lstsq(counts("train"), np.array(splits["train"]["label"]) - 0.5)
        said = counts("test") @ fitted > 0
        return int((said == np.array(splits["test"]["label"])).sum())

    assert binomtest(right(SIGNAL), 400).pvalue > 0.01
    assert right(()) == 400


def test_fewer_test_texts_are_the_first_of_more(splits):
    fewer = trained.planted_splits(0, 30)
    assert fewer["test"]["text"] == splits["test"]["text"][:30]
    assert fewer["train"]["text"] == splits["train"]["text"]


@pytest.mark.parametrize(("right", "proved"), [(0, False), (50, False), (59, False), (61, True)])
def test_a_proof_is_an_accuracy_above_one_half_by_its_exact_interval(right, proved):
    low = binomtest(right, 100).proportion_ci(method="exact").low
    assert (low > 0.5) is proved
    assert Proof("kind", 0, 100, right, 0.0, 0.0, 0.0, {}, {}).is_proved is proved


def proof(attention: float, right: int = 200, sure: float = 0.0) -> Proof:
    named, void = {"attention": attention}, {"attention": 0.0}
    return Proof("kind", 0, 200, right, 1.0, 0.0, sure, named, void)


@pytest.mark.parametrize(
    ("proofs", "expected"),
    [
        ([], {}),
        ([proof(1.0), proof(0.97)], {"accuracy": True, "importance": True, "removal": True}),
        ([proof(1.0), proof(0.7)], {"accuracy": True}),
        (
            [proof(0.0), proof(0.1, sure=0.1)],
            {"accuracy": True, "importance": False, "removal": False, WHOLE: False},
        ),
        ([proof(1.0), proof(1.0, right=100)], {}),
        ([proof(1.0), proof(1.0, sure=0.3)], {"accuracy": True}),
        ([proof(0.0), proof(0.0, sure=0.3)], {"accuracy": True}),
    ],
)
def test_a_truth_needs_a_proof_of_every_model(proofs, expected):
    assert {rule: t.holds for rule, t in trained.truths_of(proofs).items()} == expected


def test_of_equal_ranks_each_is_first_by_its_share():
    drawn = CONSTRUCTS["pointer"].draw("pointer", seed=0, n_texts=1)
    cut = drawn.tokenizer(["a b c"], return_tensors="pt", return_special_tokens_mask=True)
    batch = drawn.adapter.prepare(cut, (0,))
    places = batch.content_mask[0].nonzero()[:, 0]
    ranks = torch.zeros(batch.content_mask.shape)
    marked = torch.zeros_like(batch.content_mask)
    marked[0, places[0]] = True
    assert trained.first_share(ranks, marked, batch) == pytest.approx(1 / len(places))
    ranks[0, places[0]] = 1
    assert trained.first_share(ranks, marked, batch) == 1.0
    ranks[0, places[1]] = 2
    assert trained.first_share(ranks, marked, batch) == 0.0


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    kinds = ["context-free", "context-free, hides"]
    options = CalibrationOptions(trained=True, constructs=kinds, draws=1, texts=[60])
    return calibrate(folder, options=options), folder


def test_a_context_free_classifier_is_proved_and_its_attention_names_the_signal(found):
    """Without an encoder attention is the only path, so what it weighs is what is used."""
    honest, hides = found[0].proofs
    assert (
        honest.is_proved
        and honest.sure_without < 0.1
        and honest.follows == 1.0
        and honest.follows_void == 0.0
    )
    assert honest.named["leave_one_out"] == 1.0 and honest.named_void["leave_one_out"] == 0.0
    assert abs(honest.named["random"] - 1 / 12) < 0.1
    assert hides.named["attention"] < honest.named["attention"]


def test_a_trained_model_is_loaded_when_it_is_there(found, monkeypatch):
    before, folder = found
    again = calibrate(
        folder,
        options=CalibrationOptions(trained=True, constructs=["context-free"], draws=1, texts=[60]),
    )
    assert again.proofs == before.proofs[:1]
    own = [c for c in before.cells if c.construct == "context-free"]
    assert list(again.cells) == own


def test_files_and_page_hold_the_proofs(found):
    found, _ = found
    assert from_json(to_json(found)) == dataclasses.replace(found, models=None)
    text = found.to_markdown()
    assert "proved to use a word" in text and "1 of 1" in text
    assert len(by_proof(found).rows) == len(by_ranking(found).rows) == 2


def test_a_model_that_cuts_the_words_is_refused_before_it_is_trained(tmp_path):
    words = speakers.tokenizer(chat=False)
    with pytest.raises(AttnProbeError, match="this one cuts alpha"):
        trained.token_ids(words, "alpha")
    words.save_pretrained(tmp_path / "start")
    options = CalibrationOptions(
        trained=True, pretrained=str(tmp_path / "start"), constructs=["pretrained"], texts=[30]
    )
    with pytest.raises(AttnProbeError, match="choose another to fine-tune"):
        calibrate(tmp_path / "out", options=options)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"trained": True, "decoders": True}, "choose one"),
        ({"pretrained": "model"}, "expected trained beside"),
        (
            {"trained": True, "constructs": ["pretrained"]},
            "expected a pretrained model to fine-tune",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(fields, says):
    with pytest.raises(AttnProbeError, match=says):
        calibrate(options=CalibrationOptions(**fields))
