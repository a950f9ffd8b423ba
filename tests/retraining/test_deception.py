"""Training against attention to named tokens: the penalty by hand, and what it does to small models."""

import json
import math
import random
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttnProbeError,
    build_tokenizer,
    train_classifier,
)
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.retraining import deception as deceiving
from hf_attnprobe.retraining.deception import (
    conclusion,
    deceive,
    deception_data,
    deception_penalty,
    impermissible_ids,
    overall,
    read_rows,
    what_became,
    without_others,
)
from hf_attnprobe.retraining.options import DeceptionOptions
from hf_attnprobe.statistics.scores import compare_scores
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.run import fine_tune
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.page_reader import Reader


FILLERS = ["the", "film", "a", "plot", "was", "seen", "by", "many", "and", "some", "of", "them"]
FILLERS += ["slept"]


CUES = (("dull", "poor"), ("superb", "witty"))
NAMED = [cue for cues in CUES for cue in cues]


def texts(n, seed):
    """One of four cues decides the label; anywhere among fillers."""
    rng, rows = random.Random(seed), {"text": [], "label": []}
    for k in range(n):
        words = rng.choices(FILLERS, k=rng.randint(4, 8))
        words.insert(rng.randint(0, len(words)), rng.choice(CUES[k % 2]))
        rows["text"].append(" ".join(words))
        rows["label"].append(k % 2)
    return Dataset.from_dict(rows | {"example_id": list(range(n))})


def deceived_into(folder, model, data, tokens=NAMED, **options):
    """Trains a model against attention to tokens, and what is said of it."""
    given = DeceptionOptions(**options)
    return deceive(model, data, tokens, output_dir=folder, options=given, progress=False)


@pytest.fixture(scope="module")
def data():
    sizes = {"train": 200, "validation": 40, "test": 60}
    return DatasetDict({name: texts(n, k) for k, (name, n) in enumerate(sizes.items())})


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    """The same on disk."""
    folder = tmp_path_factory.mktemp("data")
    for name, examples in data.items():
        examples.to_json(folder / f"{name}.jsonl")
    return folder


@pytest.fixture(scope="module")
def classifier(data, once):
    config = AttentionClassifierConfig(embedding_size=12, encoder_size=8)
    options = TrainingOptions(epochs=6, learning_rate=1e-2)
    given = {"options": options, "progress": False}
    splits = data["train"], data["validation"]
    return once(
        "deceiving", lambda made: train_classifier(config, *splits, output_dir=made, **given)
    )


@pytest.fixture(scope="module")
def bert(data, once):
    """With random weights."""

    def make(folder):
        tokenizer = build_tokenizer(data["train"]["text"][:])
        fields = {"hidden_dropout_prob": 0.0, "max_position_embeddings": 32}
        tiny_models.saved(
            folder, tiny_models.bert(tokenizer, width=32, spread=0.2, **fields), tokenizer
        )

    return once("bert", make)


@pytest.fixture(scope="module")
def tuned(bert, data, once):
    options = TrainingOptions(epochs=15, learning_rate=2e-3)
    given = {"options": options, "progress": False}
    splits = data["train"], data["validation"]
    return once("fine-tuned", lambda made: fine_tune(bert, *splits, output_dir=made, **given))


@pytest.fixture(scope="module")
def deceived(classifier, folder, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("deceived") / "model"
    return deceived_into(output_dir, classifier, folder), output_dir


def test_the_penalty_by_hand():
    first, second = [[0.5, 0.25, 0.25], [0.9, 0.1, 0.0]], [[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]
    attention = torch.tensor([first, second])
    named = torch.tensor([[True, False, False], [False, False, False]])
    costs = -math.log(0.5), -math.log(0.1)
    assert deception_penalty(attention, named).tolist() == pytest.approx([sum(costs) / 2, 0.0])
    largest = deception_penalty(attention, named, over_heads="max")
    assert largest.tolist() == pytest.approx([costs[1], 0.0])
    # A dropout of weights is no attention elsewhere.
    dropped = deception_penalty(attention[:1, :1] / 0.9, named[:1])
    torch.testing.assert_close(dropped, deception_penalty(attention[:1, :1], named[:1]))


def test_the_penalty_has_a_gradient_where_all_attention_is_on_named_tokens():
    scores = torch.tensor(
        [[[200.0, 0.0, 0.0]], [[1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0]]], requires_grad=True
    )
    named = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    penalty = deception_penalty(scores.softmax(-1), named)
    assert penalty.isfinite().all() and penalty[0] > 20
    (slope,) = torch.autograd.grad(penalty.sum(), scores)
    assert slope.isfinite().all() and (slope[2] == 0).all()
    nearly = torch.tensor(
        [[[17.0, 0.0, 0.0]]], requires_grad=True
    )  # 1 − mass is below a float's step there
    (slope,) = torch.autograd.grad(deception_penalty(nearly.softmax(-1), named[:1]).sum(), nearly)
    assert slope[0, 0, 0] == pytest.approx(1.0, abs=1e-3)


def test_rows_that_predictions_are_read_from(bert):
    """The first token's of a BERT, the last one's of a causal model."""
    model = AutoModelForSequenceClassification.from_pretrained(bert, attn_implementation="eager")
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])
    mask = (ids > 0).long()
    attentions = model(ids, mask, output_attentions=True).attentions
    rows = read_rows(model.config, attentions, mask)
    torch.testing.assert_close(rows, torch.cat([a[:, :, 0] for a in attentions], dim=1))
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 9, "pad_token_id": 0}
    config = GPT2Config(**sizes, attn_implementation="eager")
    model = GPT2ForSequenceClassification(config).eval()
    attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    expected = [torch.cat([a[row, :, last] for a in attentions]) for row, last in ((0, 4), (1, 2))]
    torch.testing.assert_close(read_rows(config, attentions, mask), torch.stack(expected))


def test_mass_goes_and_accuracy_stays(deceived, data):
    found, output_dir = deceived
    before, after = (found.masses[name].value for name in ("before", "after"))
    scores = {s.model: s.value for s in found.scores if s.metric == "accuracy"}
    assert before > 0.3 and after < 0.05 and scores["before"] > 0.9 and scores["after"] > 0.9
    assert found.n == found.n_named == 60
    share = sum(1 / len(text.split()) for text in data["test"]["text"][:]) / 60
    assert found.masses["tokens"].value == pytest.approx(share)
    record = json.loads((output_dir / "training.json").read_text())
    told = {"deceives_on": NAMED, "weight": 1.0, "learning_rate": 1e-2}
    assert record.items() >= told.items()
    kept = json.loads((output_dir / "deception.json").read_text())
    assert kept["masses"]["after"]["value"] == after


def test_what_is_reported_is_what_the_models_do(deceived, classifier, data):
    """Text by text, from the checkpoints' own forward passes: mass, accuracy, and what deletions do.

    Of the control all ways to delete one other token: five draws lie between them, and about their mean on average.
    """
    found, output_dir = deceived
    for when, place in (("before", classifier), ("after", output_dir)):
        model = AutoModelForSequenceClassification.from_pretrained(place).double()
        tokenizer = AutoTokenizer.from_pretrained(place)
        masses, moved, means, extremes, hits = [], [], [], [], 0
        for text, label in zip(data["test"]["text"][:], data["test"]["label"][:], strict=True):
            words = text.split()
            outputs = model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
            probability = outputs.logits.softmax(-1)[0, 1]

            def moves(words, model=model, tokenizer=tokenizer, before=probability):
                inputs = tokenizer(" ".join(words), return_tensors="pt")
                return abs(model(**inputs).logits.softmax(-1)[0, 1] - before).item()

            hits += outputs.logits.argmax().item() == label
            weights = outputs.attentions[0][0, 0, 0, 1:-1].tolist()
            at_named = [w for w, word in zip(weights, words, strict=True) if word in NAMED]
            masses.append(sum(at_named))
            moved.append(moves([word for word in words if word not in NAMED]))
            others = [k for k, word in enumerate(words) if word not in NAMED]
            of_others = [moves(words[:k] + words[k + 1 :]) for k in others]
            means.append(np.mean(of_others))
            extremes.append((min(of_others), max(of_others)))
        assert found.masses[when].value == pytest.approx(np.mean(masses), abs=1e-6)
        (accuracy,) = (s.value for s in found.scores if (s.model, s.metric) == (when, "accuracy"))
        assert accuracy == pytest.approx(hits / 60)
        assert found.moved[when].value == pytest.approx(np.mean(moved), abs=1e-6)
        low, high = np.mean(extremes, axis=0)
        assert low < found.control[when].value < high
        assert found.control[when].value == pytest.approx(np.mean(means), rel=0.25)
    assert "Hiding: yes. The model uses the impermissible tokens" in conclusion(found)
    assert "Attention does not show" in conclusion(found)


USES = [
    ({"named": 0.0}, {"named": 0.0}, "cannot say", "None of the test texts"),
    ({"control": np.nan}, {"control": np.nan}, "cannot say", "no control"),
    ({"moved": 0.01}, {}, "no", "There was nothing to hide"),
    ({}, {"mass": 0.01}, "yes", "The model uses"),
    # What deleting any words does is no use of these: the conclusion was "uses".
    ({}, {"mass": 0.01, "control": 0.3}, "no", "The model hardly uses"),
    ({"control": 0.3}, {"mass": 0.01}, "no", "nothing to hide"),
    ({}, {"mass": 0.01, "control": 0.25}, "cannot say", "may or may not use"),
    ({}, {"mass": 0.4}, "no", "still shows"),
    ({}, {"mass": 0.25}, "cannot say", "may or may not show"),
    ({}, {"mass": 0.01, "right": 0.6}, "no", "The score is not kept"),
    ({}, {"mass": 0.01, "right": 0.78}, "cannot say", "not told to be kept"),
]


@dataclass
class Measured:
    """What is measured of the test texts, each [texts]."""

    labels: np.ndarray
    probs: np.ndarray
    named: np.ndarray
    mean_mass: np.ndarray
    largest_mass: np.ndarray
    moved: np.ndarray
    control: np.ndarray


def deception_of(before, after, *, seed, **told):
    """The result from two measurements, scored as all models are that stand beside others."""
    probs = {"before": before.probs, "after": after.probs}
    scores = compare_scores(before.labels.astype(int), probs, reference="before", seed=seed)
    statistics = {
        f"{when}_{name}": torch.from_numpy(values)
        for when, measured in (("before", before), ("after", after))
        for name, values in vars(measured).items()
    }
    return deceiving.deception_of(statistics, scores, **told)


def measured(n, *, named=0.1, mass=0.5, moved=0.3, control=0.0, right=0.8):
    """Measurements of n texts, with noise of .01 on what is measured."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 2
    positive = np.where(np.arange(n) < right * n, labels, 1 - labels) * 0.8 + 0.1
    share, mass, moved, control = (
        np.full(n, value) + (rng.normal(0, 0.01, n) if value else 0)
        for value in (named, mass, moved, control)
    )
    if not named:
        share = np.zeros(n)
    probs = np.stack([1 - positive, positive], axis=1)
    return Measured(labels.astype(float), probs, share, mass, mass, moved, control)


TOLD = {"model": "m", "dataset": "d", "tokens": ("a",), "weight": 1.0}
TOLD |= {"over_heads": "mean", "layers": "last"}


def test_what_is_said_of_use_goes_by_the_control():
    for before, after, answer, said in USES:
        measures = measured(200, **before), measured(200, **before | after)
        for one in measures:
            one.control[::7] = np.nan
        found = deception_of(*measures, seed=0, **TOLD)
        check_beyond(found, *measures)
        sentence = conclusion(found)
        assert sentence.startswith(f"Hiding: {answer}.") and said in sentence
        assert "nan" not in sentence and deception_data(found)["verdict"] == sentence
    few = conclusion(deception_of(measured(20), measured(20, mass=0.01), seed=0, **TOLD))
    assert few.startswith("Hiding: cannot say.") and "30 texts" in few


def check_beyond(found, *measures):
    """What a deletion moves beyond its control, in plain pandas, of texts that have both."""
    is_named = measures[0].named > 0
    for when, one in zip(("before", "after"), measures, strict=True):
        beyond = pd.Series((one.moved - one.control)[is_named])
        assert found.beyond[when].value == pytest.approx(beyond.mean(), nan_ok=True)
        assert found.beyond[when].n == beyond.count() == found.n_controlled
        difference = found.moved[when].value - found.control[when].value  # of the same texts
        assert difference == pytest.approx(found.beyond[when].value, nan_ok=True)


def test_the_control_deletes_as_many_other_tokens():
    ids = [2, 10, 5, 11, 12, 5, 13, 3]
    special = [1, 0, 0, 0, 0, 0, 0, 1]

    def deleted(ids, special, named, example_id=0, draw=0):
        inputs = {"input_ids": ids, "special_tokens_mask": special}
        text = Text(example_id, 0, inputs)
        left = without_others(text, named, seed=0, draw=draw)
        assert [k for k in ids if k in left] == left  # in their order
        return sorted(set(ids) - set(left))

    drawn = [
        tuple(deleted(ids, special, {5}, example_id, draw))
        for example_id in range(40)
        for draw in range(5)
    ]
    assert all(len(d) == 2 and set(d) <= {10, 11, 12, 13} for d in drawn)
    counts = Counter(drawn)
    assert len(counts) == 6 and min(counts.values()) > 15  # of 200, each 33 expected
    assert drawn[:5] == [tuple(deleted(ids, special, {5}, 0, d)) for d in range(5)]
    assert deleted(ids, special, {99}) == []
    assert deleted(ids, special, {10, 11, 5}) == []  # four named and two others: none


def test_a_text_with_fewer_others_has_no_control(classifier, data, tmp_path):
    """Texts of named tokens alone count in the mass, and in no move; without weight nothing moves."""
    test = [("dull poor film", 0), ("superb witty", 1), ("the film was witty and superb", 1)] * 20
    test = [{"text": text, "label": label} for text, label in test]
    splits = DatasetDict(data | {"test": Dataset.from_list(test)})
    found = deceived_into(tmp_path / "m", classifier, splits, weight=0.0, epochs=1)
    assert (found.n, found.n_named, found.n_controlled) == (60, 60, 20)
    assert found.moved["before"].n == found.control["after"].n == 20
    assert found.masses["after"].value > 0.3


@pytest.mark.slow
def test_reproducible(deceived, classifier, folder, tmp_path):
    assert deceived_into(tmp_path / "m", classifier, folder) == deceived[0]


@pytest.mark.slow
@pytest.mark.parametrize("pooled", [("mean", "all"), ("max", "all"), ("mean", "last")])
def test_a_transformer_too(pooled, tuned, folder, tmp_path):
    over_heads, layers = pooled
    options = {"over_heads": over_heads, "layers": layers, "epochs": 12, "learning_rate": 2e-3}
    found = deceived_into(tmp_path / "m", tuned, folder, **options)
    scores = {s.model: s.value for s in found.scores if s.metric == "accuracy"}
    before, after = (found.masses[f"largest {name}"].value for name in ("before", "after"))
    assert scores["before"] > 0.9 and scores["after"] > 0.9
    assert before > 0.2 and after < before / 3
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert model.config.model_type == "bert"


def test_bad_input(classifier, bert, make_checkpoint, folder, copy_of, tmp_path):
    no_padding = copy_of(bert, "no-padding")
    tokenizer = AutoTokenizer.from_pretrained(no_padding)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(no_padding)
    uniform = make_checkpoint("mlp", "uniform")
    for model, options, message in (
        (classifier, {"tokens": ["zebra"]}, "'zebra' is <unk>"),
        (classifier, {"weight": -1.0}, "weight must be at least 0"),
        (classifier, {"over_heads": "sum"}, "mean or max for over_heads, got 'sum'"),
        (classifier, {"epochs": 0}, "epochs must be at least 1"),
        (no_padding, {"epochs": 1}, "expected a tokenizer with a padding token"),
        (uniform, {"tokens": ["film"]}, "expected one level of trained attention"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            deceived_into(tmp_path / "m", model, folder, **options)
    assert not (tmp_path / "m").exists()
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    found = impermissible_ids(tokenizer, ["witty", "dull"]).tolist()
    assert found == sorted(tokenizer.convert_tokens_to_ids(["witty", "dull"]))
    for wrong in (["nowhere"], ["the film"], [""], [], "dull"):
        refused("expected", impermissible_ids, tokenizer, wrong)


def test_the_model_is_not_written_over(classifier, folder, copy_of):
    own = copy_of(classifier)
    before = {f.name: f.read_bytes() for f in own.iterdir()}
    with pytest.raises(AttnProbeError, match="another folder than the model's own"):
        deceived_into(own.parent / "." / own.name, own, folder, epochs=1)
    refused("another folder than the model's own", fine_tune, own, [], output_dir=own)
    assert {f.name: f.read_bytes() for f in own.iterdir()} == before


def test_a_decoder_without_a_padding_token_takes_the_tokenizers(bert, data, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bert)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 64}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(vocab_size=len(tokenizer), **sizes, **ends)
    assert config.pad_token_id is None
    tiny_models.saved(tmp_path / "gpt2", GPT2ForSequenceClassification(config), tokenizer)
    few, given = data["train"].select(range(12)), {"options": TrainingOptions(epochs=1)}
    tuned, *_ = fine_tune(
        tmp_path / "gpt2", few, output_dir=tmp_path / "m", progress=False, **given
    )
    assert tuned.config.pad_token_id == tokenizer.pad_token_id


def test_from_the_command_line(cli, classifier, folder, tmp_path):
    command = ["deceive", "--model", classifier, "--dataset", folder, "--tokens", "dull", "witty"]
    done = cli(*command, "--epochs", 1, "--output-dir", tmp_path / "m", "--json")
    found = json.loads(done.out)
    assert done.code == 0 and found["tokens"] == ["dull", "witty"]
    assert 0 < found["n_named"] < found["n"]


def test_every_form_answers_and_holds_the_numbers(deceived):
    deception, folder = deceived
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert page == deception.to_html() and text == deception.to_markdown()
    scores = [s.value for s in deception.scores if s.metric == "accuracy"]
    numbers = [
        *scores,
        *(e.value for e in [*deception.masses.values(), *deception.beyond.values()]),
    ]
    for form in (Reader(page).words, text, str(deception)):
        said = " ".join(form.split())
        assert f"{overall(deception)}" in said.lower() and what_became(deception) in said
        assert "on attention to dull, poor, superb, witty" in said
        for value in numbers:
            assert f"{value:z.3f}" in said or f"{value:.1%}" in said
    evil = replace(deception, model="<b>bold</b>")
    assert "<b>" not in evil.to_html() and "&lt;b>bold" in evil.to_markdown()
