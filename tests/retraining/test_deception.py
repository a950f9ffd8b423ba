"""The test ``deception``: the penalty by hand, and its effect on small models."""

import json
import math
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
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
from hf_attnprobe.core.options import SavedModel
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.retraining import get_retraining_readings, select_retraining_tests
from hf_attnprobe.retraining.base_model import load_base_model
from hf_attnprobe.retraining.deception import (
    compute_deception_penalty,
    delete_other_words,
    find_word_ids,
    select_readout_rows,
)
from hf_attnprobe.retraining.options import RetrainOptions
from hf_attnprobe.retraining.report import read_retraining
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.retraining.verdict import DECEIVED_MODEL, grade_retraining
from hf_attnprobe.statistics.scores import compare_scores
from hf_attnprobe.statistics.summary import summarize
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.run import fine_tune
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.page_reader import Reader
from tests.helpers.synthetic_rows import make_rows


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


def run_deception(folder, model, data, words=NAMED, seed=0, **options):
    """Runs the test deception and returns its report."""
    return retrain(
        model,
        data,
        {"deception": {"words": words, **options}},
        output_dir=folder,
        options=RetrainOptions(seed=seed),
        progress=False,
    )


def means_of(report):
    """The statistics over all texts, by name."""
    return {s.statistic: s for s in report.statistics if s.group == "all"}


def accuracy_of(report):
    """Accuracy by model."""
    scores = report.scores["deception"]
    return {s.model: s.value for s in scores if s.metric == "accuracy"}


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
    output_dir = tmp_path_factory.mktemp("deceived") / "out"
    return run_deception(output_dir, classifier, folder), output_dir


def test_the_penalty_by_hand():
    first, second = [[0.5, 0.25, 0.25], [0.9, 0.1, 0.0]], [[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]
    attention = torch.tensor([first, second])
    named = torch.tensor([[True, False, False], [False, False, False]])
    costs = -math.log(0.5), -math.log(0.1)
    assert compute_deception_penalty(attention, named).tolist() == pytest.approx(
        [sum(costs) / 2, 0.0]
    )
    largest = compute_deception_penalty(attention, named, over_heads="max")
    assert largest.tolist() == pytest.approx([costs[1], 0.0])
    # A dropout of weights is no attention elsewhere.
    dropped = compute_deception_penalty(attention[:1, :1] / 0.9, named[:1])
    torch.testing.assert_close(dropped, compute_deception_penalty(attention[:1, :1], named[:1]))


def test_the_penalty_has_a_gradient_where_all_attention_is_on_named_tokens():
    scores = torch.tensor(
        [[[200.0, 0.0, 0.0]], [[1.0, 2.0, 3.0]], [[0.0, 0.0, 0.0]]], requires_grad=True
    )
    named = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    penalty = compute_deception_penalty(scores.softmax(-1), named)
    assert penalty.isfinite().all() and penalty[0] > 20
    (slope,) = torch.autograd.grad(penalty.sum(), scores)
    assert slope.isfinite().all() and (slope[2] == 0).all()
    nearly = torch.tensor(
        [[[17.0, 0.0, 0.0]]], requires_grad=True
    )  # 1 − mass is below a float's step there
    (slope,) = torch.autograd.grad(
        compute_deception_penalty(nearly.softmax(-1), named[:1]).sum(), nearly
    )
    assert slope[0, 0, 0] == pytest.approx(1.0, abs=1e-3)


def test_rows_that_predictions_are_read_from(bert):
    """The first token's of a BERT, the last one's of a causal model."""
    model = AutoModelForSequenceClassification.from_pretrained(bert, attn_implementation="eager")
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])
    mask = (ids > 0).long()
    attentions = model(ids, mask, output_attentions=True).attentions
    rows = select_readout_rows(model.config, attentions, mask)
    torch.testing.assert_close(rows, torch.cat([a[:, :, 0] for a in attentions], dim=1))
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 9, "pad_token_id": 0}
    config = GPT2Config(**sizes, attn_implementation="eager")
    model = GPT2ForSequenceClassification(config).eval()
    attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    expected = [torch.cat([a[row, :, last] for a in attentions]) for row, last in ((0, 4), (1, 2))]
    torch.testing.assert_close(select_readout_rows(config, attentions, mask), torch.stack(expected))


def test_mass_goes_and_accuracy_stays(deceived, data):
    report, output_dir = deceived
    means, accuracy = means_of(report), accuracy_of(report)
    assert means["before_mass"].mean > 0.3 and means["after_mass"].mean < 0.05
    assert accuracy["base"] > 0.9 and accuracy[DECEIVED_MODEL] > 0.9
    assert report.n == means["word_share"].n == 60
    share = sum(1 / len(text.split()) for text in data["test"]["text"][:]) / 60
    assert means["word_share"].mean == pytest.approx(share)
    record = json.loads((output_dir / "deception" / "training.json").read_text())
    expected = {"deceives_on": NAMED, "weight": 1.0, "learning_rate": 1e-2}
    assert record.items() >= expected.items()
    assert read_retraining(output_dir).statistics == report.statistics


def test_what_is_reported_is_what_the_models_do(deceived, classifier, data):
    """Text by text, from the checkpoints' own forward passes: mass, accuracy, and output changes.

    For the control, all deletions of one other word: five draws lie between them, and near their mean on average.
    """
    report, output_dir = deceived
    means = means_of(report)
    models = (("before", "base", classifier), ("after", DECEIVED_MODEL, output_dir / "deception"))
    for time, name, path in models:
        model = AutoModelForSequenceClassification.from_pretrained(path).double()
        tokenizer = AutoTokenizer.from_pretrained(path)
        masses, changes, control_means, extremes, hits = [], [], [], [], 0
        for text, label in zip(data["test"]["text"][:], data["test"]["label"][:], strict=True):
            words = text.split()
            outputs = model(**tokenizer(text, return_tensors="pt"), output_attentions=True)
            probability = outputs.logits.softmax(-1)[0, 1]

            def change(words, model=model, tokenizer=tokenizer, before=probability):
                inputs = tokenizer(" ".join(words), return_tensors="pt")
                return abs(model(**inputs).logits.softmax(-1)[0, 1] - before).item()

            hits += outputs.logits.argmax().item() == label
            weights = outputs.attentions[0][0, 0, 0, 1:-1].tolist()
            at_named = [w for w, word in zip(weights, words, strict=True) if word in NAMED]
            masses.append(sum(at_named))
            changes.append(change([word for word in words if word not in NAMED]))
            others = [k for k, word in enumerate(words) if word not in NAMED]
            of_others = [change(words[:k] + words[k + 1 :]) for k in others]
            control_means.append(np.mean(of_others))
            extremes.append((min(of_others), max(of_others)))
        assert means[f"{time}_mass"].mean == pytest.approx(np.mean(masses), abs=1e-6)
        assert accuracy_of(report)[name] == pytest.approx(hits / 60)
        assert means[f"{time}_word_tvd"].mean == pytest.approx(np.mean(changes), abs=1e-6)
        low, high = np.mean(extremes, axis=0)
        control = means[f"{time}_control_tvd"].mean
        assert low < control < high and control == pytest.approx(np.mean(control_means), rel=0.25)
    (sentence,) = report.verdict.sentences()
    assert "Hiding: yes. The model uses the impermissible tokens" in sentence
    assert "Attention does not show" in sentence


USES = [
    ({"named": 0.0}, {"named": 0.0}, "cannot say", "None of the test texts"),
    ({"control": np.nan}, {"control": np.nan}, "cannot say", "no control"),
    ({"change": 0.01}, {}, "no", "There was nothing to hide"),
    ({}, {"mass": 0.01}, "yes", "The model uses"),
    # Deleting any words has this effect, so it does not show a use of the named ones.
    ({}, {"mass": 0.01, "control": 0.3}, "no", "The model hardly uses"),
    ({"control": 0.3}, {"mass": 0.01}, "no", "nothing to hide"),
    ({}, {"mass": 0.01, "control": 0.25}, "cannot say", "may or may not use"),
    ({}, {"mass": 0.4}, "no", "still shows"),
    ({}, {"mass": 0.25}, "cannot say", "may or may not show"),
    ({}, {"mass": 0.01, "right": 0.6}, "no", RULES["loss"].if_yes.capitalize()),
    ({}, {"mass": 0.01, "right": 0.78}, "cannot say", RULES["loss"].if_open.capitalize()),
]


def measurements(n, *, named=0.1, mass=0.5, change=0.3, control=0.0, right=0.8):
    """Labels, probabilities and statistics of n texts, with noise of .01."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 2
    positive = np.where(np.arange(n) < right * n, labels, 1 - labels) * 0.8 + 0.1
    mass, change, control = (
        np.full(n, value) + (rng.normal(0, 0.01, n) if value else 0)
        for value in (mass, change, control)
    )
    control[::7] = np.nan
    if not named:
        mass, change, control = (np.full(n, np.nan) for _ in range(3))
    probs = np.stack([1 - positive, positive], axis=1)
    change = np.where(np.isnan(control), np.nan, change)
    return labels, probs, {"mass": mass, "word_tvd": change, "control_tvd": control}


def verdict_of(before, after):
    """The finding about two measurements."""
    statistics = {
        f"{time}_{name}": values
        for time, (_, _, measured) in (("before", before), ("after", after))
        for name, values in measured.items()
    }
    statistics["hidden_mass"] = statistics["before_mass"] / 2 - statistics["after_mass"]
    for time in ("before", "after"):
        statistics[f"{time}_use"] = (
            statistics[f"{time}_word_tvd"] - statistics[f"{time}_control_tvd"]
        )
    values = {("deception", name): numbers for name, numbers in statistics.items()}
    rows = make_rows(values, ids=range(len(before[0])))
    scores = compare_scores(
        before[0], {"base": before[1], DECEIVED_MODEL: after[1]}, reference="base", seed=0
    )
    found = summarize(rows, [], get_retraining_readings())
    return grade_retraining(found, {"deception": scores})


def test_the_answer_depends_on_the_control():
    for before, after, answer, words in USES:
        verdict = verdict_of(measurements(200, **before), measurements(200, **before | after))
        sentence = verdict.sentence("hiding")
        assert sentence.startswith(f"Hiding: {answer}.") and words in sentence
        assert "nan" not in sentence
    few = verdict_of(measurements(20), measurements(20, mass=0.01)).sentence("hiding")
    assert few.startswith("Hiding: cannot say.") and "30 texts" in few


def test_statistics_are_means_over_the_texts_that_have_them(deceived):
    """The use of words is the output change beyond its control, in plain pandas."""
    report, _ = deceived
    wide, means = report.wide_frame(), means_of(report)
    for time in ("before", "after"):
        use = (wide[f"{time}_word_tvd"] - wide[f"{time}_control_tvd"]).dropna()
        assert means[f"{time}_use"].mean == pytest.approx(use.mean())
        assert means[f"{time}_use"].n == len(use)
    hidden = wide.before_mass / 2 - wide.after_mass
    assert means["hidden_mass"].mean == pytest.approx(hidden.mean())


def test_the_control_deletes_as_many_other_tokens():
    ids = [2, 10, 5, 11, 12, 5, 13, 3]
    special = [1, 0, 0, 0, 0, 0, 0, 1]

    def deleted(ids, special, named, example_id=0, draw=0):
        inputs = {"input_ids": ids, "special_tokens_mask": special}
        text = Text(example_id, 0, inputs)
        left = delete_other_words(text, named, seed=0, draw=draw)
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
    """Texts of named words alone count in the mass, but not in the output changes; weight 0 changes nothing."""
    test = [("dull poor film", 0), ("superb witty", 1), ("the film was witty and superb", 1)]
    test = [{"text": text, "label": label} for text, label in test]
    splits = DatasetDict(data | {"test": Dataset.from_list(test)})
    means = means_of(run_deception(tmp_path / "m", classifier, splits, weight=0.0, epochs=1))
    assert (means["word_share"].n, means["after_mass"].n) == (3, 3)
    assert means["before_word_tvd"].n == means["after_control_tvd"].n == 1
    assert means["after_mass"].mean > 0.3


def test_test_texts_without_the_words_give_no_answer(classifier, data, tmp_path):
    test = [{"text": f"the film was seen by {k}", "label": k % 2} for k in range(40)]
    splits = DatasetDict(data | {"test": Dataset.from_list(test)})
    report = run_deception(tmp_path / "m", classifier, splits, epochs=1)
    (sentence,) = report.verdict.sentences()
    assert sentence.startswith("Hiding: cannot say. None of the test texts")
    assert "nan" not in report.to_markdown() and "None of the test texts" in report.to_html()


@pytest.mark.slow
def test_reproducible(deceived, classifier, folder, tmp_path):
    again = run_deception(tmp_path / "m", classifier, folder)
    assert again.statistics == deceived[0].statistics and again.scores == deceived[0].scores


def test_the_same_again_trains_nothing(deceived, classifier, folder, copy_of, monkeypatch):
    copy = copy_of(deceived[1])
    monkeypatch.setattr("transformers.Trainer.train", lambda *args, **kw: pytest.fail("trained"))
    assert run_deception(copy, classifier, folder).statistics == deceived[0].statistics
    with pytest.raises(AttnProbeError, match=r"holds a training with weight 1\.0, not 0\.1"):
        run_deception(copy, classifier, folder, weight=0.1)


def test_it_runs_with_the_other_tests(deceived, classifier, folder, tmp_path):
    """The numbers are the same, and the base model is not changed by its further training."""
    tests = {"uniform": {}, "deception": {"words": NAMED}}
    report = retrain(classifier, folder, tests, output_dir=tmp_path / "m", progress=False)
    assert {s.test for s in report.statistics} == {"uniform", "deception"}
    expected = means_of(deceived[0])
    assert {name: means_of(report)[name] for name in expected} == expected


@pytest.mark.slow
@pytest.mark.parametrize("pooled", [("mean", "all"), ("max", "all"), ("mean", "last")])
def test_a_transformer_too(pooled, tuned, folder, tmp_path):
    over_heads, layers = pooled
    options = {"over_heads": over_heads, "layers": layers, "epochs": 12, "learning_rate": 2e-3}
    report = run_deception(tmp_path / "m", tuned, folder, **options)
    means, accuracy = means_of(report), accuracy_of(report)
    before, after = (means[f"{time}_largest_mass"].mean for time in ("before", "after"))
    assert accuracy["base"] > 0.9 and accuracy[DECEIVED_MODEL] > 0.9
    assert before > 0.2 and after < before / 3
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m" / "deception")
    assert model.config.model_type == "bert"
    assert run_deception(tmp_path / "m", tuned, folder, **options).statistics == report.statistics


def test_bad_input(classifier, bert, make_checkpoint, folder, copy_of, tmp_path):
    no_padding = copy_of(bert, "no-padding")
    tokenizer = AutoTokenizer.from_pretrained(no_padding)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(no_padding)
    uniform = make_checkpoint("mlp", "uniform")
    for model, options, message in (
        (classifier, {"words": ["zebra"]}, "'zebra' is <unk>"),
        (classifier, {"words": None}, "needs a list of words that the model should learn to hide"),
        (classifier, {"weight": -1.0}, "weight must be at least 0"),
        (classifier, {"over_heads": "sum"}, "mean or max for over_heads, got 'sum'"),
        (classifier, {"epochs": 0}, "epochs must be at least 1"),
        (no_padding, {"epochs": 1}, "needs a tokenizer with a padding token"),
        (uniform, {"words": ["film"]}, "needs a model with trained attention over the words"),
    ):
        with pytest.raises(AttnProbeError, match=message):
            run_deception(tmp_path / "m", model, folder, **options)
    assert not (tmp_path / "m").exists()
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    found = find_word_ids(tokenizer, ["witty", "dull"]).tolist()
    assert found == sorted(tokenizer.convert_tokens_to_ids(["witty", "dull"]))
    for wrong in (["nowhere"], ["the film"], [""]):
        refused("must be a single token", find_word_ids, tokenizer, wrong)
    for tests in ("deception", {"deception": {"words": []}}):
        refused("deception needs a list of words", select_retraining_tests, tests)
    assert "deception" not in select_retraining_tests(None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1}, "--epochs has no effect on the test deception.*deception.epochs=N"),
        ({"batch_size": 8}, "--batch-size has no effect on the test deception"),
        ({"procedure": "jain-wallace"}, "--procedure has no effect on the test deception"),
    ],
)
def test_options_without_effect_are_refused(options, message, classifier, data, tmp_path):
    selection = {"deception": {"words": NAMED}}
    given = {"output_dir": tmp_path / "m", "options": RetrainOptions(**options)}
    with pytest.raises(AttnProbeError, match=message):
        retrain(classifier, data, selection, **given, progress=False)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("tests", [{"seeds": {}}, {"seeds": {}, "deception": {"words": NAMED}}])
def test_data_with_other_classes_are_refused_with_any_training_from_scratch(
    tests, make_checkpoint, data, tmp_path
):
    three_classes = make_checkpoint("bilstm", "additive", 3)
    tests = {
        name: options | ({"words": ["film"]} if options else {}) for name, options in tests.items()
    }
    with pytest.raises(AttnProbeError, match="classes"):
        retrain(three_classes, data, tests, output_dir=tmp_path / "m", progress=False)
    assert not (tmp_path / "m").exists()


def test_the_training_record_is_read_from_the_subfolder(classifier, tmp_path):
    shutil.copytree(classifier, tmp_path / "repository" / "model")
    saved = SavedModel(str(tmp_path / "repository"), subfolder="model")
    in_subfolder, direct = load_base_model(saved), load_base_model(classifier)
    assert in_subfolder.settings == direct.settings
    assert in_subfolder.notes == direct.notes == ()


def test_the_model_is_not_overwritten(classifier, folder, copy_of):
    own = copy_of(classifier)
    before = {f.name: f.read_bytes() for f in own.iterdir()}
    with pytest.raises(AttnProbeError, match="contains other files"):
        run_deception(Path(own.parent / "." / own.name), own, folder, epochs=1)
    refused("is the folder of the initial model", fine_tune, own, [], output_dir=own)
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
    command = ["retrain", "--model", classifier, "--dataset", folder, "--tests", "deception"]
    command += ["--set", "deception.words=dull,witty", "deception.epochs=1"]
    done = cli(*command, "--output-dir", tmp_path / "m", "--json")
    found = json.loads(done.out)
    assert done.code == 0 and found["provenance"]["deception"]["words"] == ["dull", "witty"]
    (share,) = (
        s for s in found["statistics"] if s["statistic"] == "word_share" and s["group"] == "all"
    )
    assert 0 < share["n"] < found["n"]


def test_every_format_contains_the_answer_and_the_numbers(deceived):
    report, folder = deceived
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert page == report.to_html() and text == report.to_markdown()
    finding, means = report.verdict.hiding, means_of(report)
    names = ("mass", "largest_mass", "word_tvd", "control_tvd", "use")
    numbers = [means[f"{time}_{name}"].mean for time in ("before", "after") for name in names]
    numbers += accuracy_of(report).values()
    for form in (Reader(page).words, text, report.to_text(verbose=True)):
        words = " ".join(form.split())
        assert f"{finding.answer}" in words.lower() and finding.sentence in words
        assert "on attention to dull, poor, superb, witty" in words
        for value in numbers:
            assert f"{value:z.3f}" in words
    evil = replace(report, model="<b>bold</b>")
    assert "<b>" not in evil.to_html() and "&lt;b>bold" in evil.to_markdown()
