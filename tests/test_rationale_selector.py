"""The selector of tokens that are enough, on texts of which one word decides, for a base whose attention is known."""

import math
import random
import shutil

import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
    AttnProbeError,
    build_tokenizer,
)
from hf_attnprobe.retraining import rationale as token_selector
from hf_attnprobe.retraining.base import Base, Setup, run_test
from hf_attnprobe.retraining.options import Rationale
from hf_attnprobe.retraining.rationale import Judge, SelectorTrainer, TokenSelector, select
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.storage.folders import write_json
from hf_attnprobe.training.options import TrainingOptions


FILLERS = ["the", "film", "door", "rain", "usher", "ticket", "music", "we"]
CUES = {"dull": 0, "fine": 1, "poor": 0, "fresh": 1}
OPTIONS = Rationale(size=8, epochs=10, learning_rate=2e-2)


def texts(n, seed):
    draw, rows = random.Random(seed), []
    for k in range(n):
        cue = draw.choice(list(CUES))
        words = draw.choices(FILLERS, k=draw.randint(3, 8))
        words.insert(draw.randint(0, len(words)), cue)
        rows.append({"example_id": k, "text": " ".join(words), "label": CUES[cue]})
    features = Features(
        example_id=Value("int64"),
        text=Value("string"),
        label=ClassLabel(names=["negative", "positive"]),
    )
    return Dataset.from_list(rows, features=features)


@pytest.fixture(scope="module")
def splits():
    return DatasetDict(train=texts(160, 0), validation=texts(40, 1), test=texts(30, 2))


@pytest.fixture(scope="module")
def base(splits):
    """Attention e : 1 for a cue against any other word; the logit is 8 times the attention on it, with its sign."""
    tokenizer = build_tokenizer(splits["train"]["text"][:])
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer),
        embedding_size=2,
        encoder="none",
        attention="dot_product",
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    model = AttentionClassifierForSequenceClassification(config).eval()
    with torch.no_grad():
        table = model.attention_classifier.embeddings.weight.zero_()
        for word, label in CUES.items():
            row = tokenizer.convert_tokens_to_ids(word)
            table[row] = torch.tensor([1.0, 8 * (2 * label - 1)])
        model.attention_classifier.attention.query.weight[:] = torch.tensor([math.sqrt(2), 0.0])
        model.classifier.weight[:] = torch.tensor([0.0, 1.0])
        model.classifier.bias.zero_()
    return Base("made by hand", model, tokenizer, TrainingOptions(seed=0, batch_size=16))


@pytest.fixture(scope="module")
def found(base, splits, tmp_path_factory):
    return run_selector(base, splits, tmp_path_factory.mktemp("retrained"))


def run_selector(base, splits, folder, options=OPTIONS):
    return run_test("rationale", Setup(base, splits, folder, {"rationale": options}))


def test_the_selector_finds_the_word_that_decides(found, base, splits):
    selected, _ = select(base, found.trained[0].model, splits["test"])
    for row, text in enumerate(splits["test"]["text"]):
        words = text.split()
        kept = [w for w, s in zip(words, selected[row], strict=False) if s]
        assert kept == [w for w in words if w in CUES]
    assert found.statistics["rationale_correct"].tolist() == [1.0] * 30


def test_its_share_of_attention_is_that_of_a_hand_count(found, splits):
    for row, text in enumerate(splits["test"]["text"]):
        n = len(text.split())
        attention = math.e / (math.e + n - 1)
        expected = {"": attention, "_above_length": attention - 1 / n}
        assert found.statistics["rationale_length"][row].item() == pytest.approx(1 / n)
        for end, value in expected.items():
            share = found.statistics[f"rationale_attention{end}"]
            assert share[row].item() == pytest.approx(value)


def test_the_judge_rewards_what_a_hand_count_rewards(base):
    ids = base.tokenizer("the fine film", return_tensors="pt")["input_ids"]
    mask = torch.ones_like(ids)
    first, last = ids[0, 0].item(), ids[0, -1].item()
    assert ids.shape == (1, 5) and first != last  # <sos> and <eos> around it
    selected = torch.tensor([[[1, 0, 1, 0, 0]], [[0, 1, 0, 1, 0]], [[1] * 5]]).bool()
    found = Judge(base, sparsity=0.2).read(ids, mask, torch.tensor([1]), selected)
    logit = 8 * math.e / (math.e + 2)
    likelihood = [-math.log1p(math.exp(-z)) for z in (logit, 0.0, logit)]
    expected = [likelihood[0] + 0.2 * 2 / 3, likelihood[1] + 0.2 / 3, likelihood[2]]
    assert found.log_likelihood[:, 0].tolist() == pytest.approx(likelihood, abs=1e-6)
    assert found.reward[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_gradient_is_that_of_the_expected_reward(base):
    """Against the sum over all 2³ selections: the mean of many draws comes close."""
    batch = base.tokenizer("the fine film", return_tensors="pt")
    ids, mask = batch["input_ids"], torch.ones_like(batch["input_ids"])
    judge, label = Judge(base, 0.5), torch.tensor([1])
    odds = torch.tensor([[0.0, 0.3, -0.4, 0.8, 0.0]], requires_grad=True)
    expected = 0.0
    for bits in range(8):
        chosen = [False, *(bool(bits >> k & 1) for k in range(3)), False]
        selected = torch.tensor([[chosen]])
        inner = torch.where(selected[0], odds, -odds).sigmoid()[:, 1:-1]
        reward = judge.read(ids, mask, label, selected).reward[0, 0]
        expected = expected - reward * inner.prod()
    (expected,) = torch.autograd.grad(expected, odds)
    trainer = SelectorTrainer.__new__(SelectorTrainer)
    trainer.judge = judge
    torch.manual_seed(0)
    many = 5000
    inputs = {
        "input_ids": ids.expand(many, -1),
        "attention_mask": mask.expand(many, -1),
        "labels": label.expand(many),
    }
    loss = trainer.compute_loss(lambda ids, mask: odds.expand(many, -1), inputs)
    (found,) = torch.autograd.grad(loss, odds)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)
    assert expected.abs().max() > 0.05


def test_a_finished_selector_is_loaded_and_other_settings_are_refused(
    found, base, splits, tmp_path, monkeypatch
):
    folder = shutil.copytree(found.trained[0].folder, tmp_path / "rationale")
    assert isinstance(TokenSelector.from_pretrained(folder), TokenSelector)
    monkeypatch.setattr(token_selector, "make_trainer", None)  # nothing is trained
    again = run_selector(base, splits, tmp_path)
    for name, values in found.statistics.items():
        assert torch.equal(again.statistics[name], values)
    other = Rationale(size=8, sparsity=0.1)
    with pytest.raises(AttnProbeError, match=r"training with sparsity 0\.5, not 0\.1"):
        run_selector(base, splits, tmp_path, other)


def test_an_interrupted_training_goes_on_to_the_same_weights(base, splits, tmp_path, monkeypatch):
    options = Rationale(size=4, epochs=3)
    whole = token_selector.train_selector(base, splits, tmp_path / "whole", options)
    evaluate, n_epochs = SelectorTrainer.evaluate, []

    def interrupted(self, *arguments, **others):
        n_epochs.append(1)
        if len(n_epochs) == 3:
            raise KeyboardInterrupt
        return evaluate(self, *arguments, **others)

    monkeypatch.setattr(SelectorTrainer, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        token_selector.train_selector(base, splits, tmp_path / "parts", options)
    monkeypatch.setattr(SelectorTrainer, "evaluate", evaluate)
    parts = token_selector.train_selector(base, splits, tmp_path / "parts", options)
    theirs = parts.model.state_dict()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, theirs[name]), name


def test_the_command_retrain_reports_it(base, splits, tmp_path):
    folder = tmp_path / "base"
    base.model.save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    write_json(folder / "training.json", {"seed": 0, "batch_size": 16, "epochs": 1})
    report = retrain(
        folder, splits, Rationale(size=4, epochs=2), output_dir=tmp_path / "out", progress=False
    )
    assert [m.name for m in report.models] == ["rationale"]
    assert {s.statistic for s in report.statistics} == {
        "rationale_length",
        "rationale_attention",
        "rationale_attention_above_length",
        "rationale_correct",
    }
    text = (tmp_path / "out" / "report.md").read_text()
    assert "## rationale" in text and "| rationale alone |" in text
