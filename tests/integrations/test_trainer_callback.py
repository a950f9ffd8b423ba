"""Faithfulness logged while a model is trained, which goes on as if nobody had looked."""

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import DataCollatorWithPadding, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import integration_utils

from hf_attnprobe import Answers, AttnProbeError, AuditOptions, Data, audit
from hf_attnprobe.integrations.trainer_callback import (
    LOG_PREFIX,
    AttentionFaithfulnessCallback,
    preserve_state,
)
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.error_messages import refused


class Tracker(TrainerCallback):
    """Stands for W&B, TensorBoard and all others that ``report_to`` can name."""

    def __init__(self):
        self.logged = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logged.append((state.global_step, dict(logs)))


class Modes(TrainerCallback):
    """Spoils the modes that the audit must leave alone, and reads them afterwards."""

    def on_train_begin(self, args, state, control, *, model, **_):
        model.bert.embeddings.eval()


@pytest.fixture
def make_trainer(reviews, tokenizer, tmp_path, monkeypatch):
    """A function to a Trainer of a small BERT with dropout that evaluates four times."""
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "tracker", Tracker)

    def encoded(split):
        kept = reviews[split].select(range(32))
        columns = [name for name in kept.column_names if name != "label"]
        return kept.map(lambda rows: tokenizer(rows["text"]), batched=True, remove_columns=columns)

    def make(**settings):
        usual = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-2}
        usual |= {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no"}
        usual |= {"use_cpu": True, "dataloader_pin_memory": False, "disable_tqdm": True}
        usual |= {"report_to": ["tracker"], **settings}
        arguments = TrainingArguments(str(tmp_path / "trained"), **usual)
        return Trainer(
            tiny_models.bert(tokenizer, width=8, spread=0.02).train(),
            arguments,
            train_dataset=encoded("train"),
            eval_dataset=encoded("validation"),
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
        )

    return make


def tracker_of(trainer):
    (found,) = (c for c in trainer.callback_handler.callbacks if isinstance(c, Tracker))
    return found


def test_the_numbers_reach_what_report_to_names(make_trainer, reviews):
    trainer = make_trainer()
    callback = AttentionFaithfulnessCallback(reviews["test"], every=2, limit=12)
    callback.add_to(trainer)
    trainer.train()
    logged = [
        (step, logs)
        for step, logs in tracker_of(trainer).logged
        if any(name.startswith(LOG_PREFIX) for name in logs)
    ]
    assert [step for step, _ in logged] == [2, 6]  # of evaluations at 2, 4, 6 and 8
    kept = [e for e in trainer.state.log_history if f"{LOG_PREFIX}permutation.median_tvd" in e]
    assert [(e["step"], {k: v for k, v in e.items() if k != "step"}) for e in kept] == [
        (step, logs) for step, logs in logged
    ]
    # The audit of the step, its rows averaged by pandas; the interval holds the mean.
    rows = callback.report.to_pandas()
    whole = rows[(rows.layer == -1) & (rows["head"] == -1)]
    means = whole.groupby(["test", "statistic"]).value.mean().dropna()
    numbers = logged[-1][1]
    for statistic in ("median_tvd", "standard_tvd"):
        key = f"{LOG_PREFIX}permutation.{statistic}"
        assert numbers[key] == pytest.approx(means["permutation", statistic], rel=1e-12)
        assert numbers[f"{key}_low"] <= numbers[key] <= numbers[f"{key}_high"]
        assert numbers[f"{key}_n"] == 12 == whole.example_id.nunique()
    assert numbers[f"{LOG_PREFIX}faithfulness"] == callback.report.score.value


def test_a_language_models_answers_are_audited_by_their_own_tests(tmp_path):
    words = tiny_language_models.tokenizer(chat=False)
    words.pad_token = words.eos_token
    encoded = [words(tiny_language_models.PASSAGE) for _ in range(4)]
    encoded = [{**one, "labels": one["input_ids"]} for one in encoded]
    asked = [{k: row[k] for k in ("context", "question")} for row in tiny_language_models.ROWS]
    quietly = {"save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True}
    each = {"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "learning_rate": 1e-9}
    arguments = TrainingArguments(str(tmp_path), **each, **quietly)
    trainer = Trainer(
        tiny_language_models.llama(words).train(),
        arguments,
        train_dataset=encoded,
        eval_dataset=encoded,
        processing_class=words,
    )
    callback = AttentionFaithfulnessCallback(Answers(asked, max_new_tokens=4))
    callback.add_to(trainer)
    trainer.train()
    assert callback.report.provenance["tests"] == ["permutation", "sources", "knockout"]
    (logged,) = (
        e for e in trainer.state.log_history if f"{LOG_PREFIX}permutation.standard_tvd" in e
    )
    rows = callback.report.to_pandas()
    for name in ("contextual_gain", "source_found@attention"):
        values = rows[(rows.test == "sources") & (rows.statistic == name)].value
        key = f"{LOG_PREFIX}sources.{name}".replace("@", ".")
        assert logged[key] == pytest.approx(values.mean())


@pytest.mark.slow
def test_training_is_the_same_to_the_last_bit(make_trainer, reviews):
    plain = make_trainer()
    plain.add_callback(Modes())
    plain.train()
    watched = make_trainer()  # which seeds all generators again
    watched.add_callback(Modes())
    AttentionFaithfulnessCallback(reviews["test"], limit=4).add_to(watched)
    watched.train()
    weights = watched.model.state_dict()
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    losses = [
        [e["eval_loss"] for e in t.state.log_history if "eval_loss" in e] for t in (plain, watched)
    ]
    assert losses[0] == losses[1] and len(set(losses[0])) > 2  # it did learn
    assert watched.model.config.to_dict() == plain.model.config.to_dict()


def test_a_sample_audited_by_the_callback_is_the_one_that_audit_draws(
    make_trainer, reviews, tokenizer
):
    trainer = make_trainer()
    options = AuditOptions(layers=[1], heads=[0], prune=False)
    data, named = Data(reviews["test"], test_limit=5), {"statistics": ["median_tvd"]}
    callback = AttentionFaithfulnessCallback(data, "permutation", options=options, **named)
    trainer.train_dataset = trainer.train_dataset.select(range(8))
    callback.add_to(trainer)
    trainer.train()
    given = {"options": options, "tokenizer": tokenizer, "progress": False}
    apart = audit(trainer.model, data, "permutation", **given)
    pd.testing.assert_frame_equal(apart.to_pandas(), callback.report.to_pandas())
    (entry,) = (e for e in trainer.state.log_history if f"{LOG_PREFIX}permutation.median_tvd" in e)
    assert {name for name in entry if name.startswith(LOG_PREFIX)} == {
        f"{LOG_PREFIX}permutation.median_tvd{end}" for end in ("", "_low", "_high", "_n")
    }


def test_modes_and_random_states_are_put_back(make_model):
    model = make_model()
    model.train()
    model.get_input_embeddings().eval()
    modes = [module.training for module in model.modules()]

    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    def seeded():
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seeded()
    expected = draws()
    seeded()
    with pytest.raises(ZeroDivisionError), preserve_state(model):
        model.eval()
        draws()
        1 / 0  # noqa: B018
    assert draws() == expected
    assert [module.training for module in model.modules()] == modes


def test_what_cannot_be_audited_is_said_before_the_training(make_trainer, reviews):
    trainer = make_trainer()
    AttentionFaithfulnessCallback(reviews["test"], "no_such_test").add_to(trainer)
    refused("no_such_test", trainer.train)
    assert trainer.state.global_step == 0


def test_what_would_never_be_logged_is_said_before_the_training(make_trainer, reviews, caplog):
    trainer = make_trainer()
    data, tests = reviews["test"].select(range(4)), ["permutation"]
    callback = AttentionFaithfulnessCallback(data, tests, statistics="no_such_number")
    callback.add_to(trainer)
    with pytest.raises(AttnProbeError, match=r"no_such_number. Choose from .*median_tvd"):
        trainer.train()
    assert trainer.state.global_step == 0
    callback.statistics, trainer.args.eval_strategy = ("median_tvd",), "no"
    words = callback.tokenizer or trainer.processing_class
    callback.on_train_begin(trainer.args, None, None, trainer.model, processing_class=words)
    assert "Set eval_strategy" in caplog.text


def test_a_callback_that_knows_no_trainer_is_refused(make_trainer, reviews):
    trainer = make_trainer()
    with pytest.raises(AttnProbeError, match="add_to"):
        given = {"eval_dataset": trainer.eval_dataset}
        given["callbacks"] = [AttentionFaithfulnessCallback(reviews["test"])]
        Trainer(trainer.model, trainer.args, **given)
    trainer.add_callback(AttentionFaithfulnessCallback(reviews["test"]))
    refused("add_to", trainer.train)
    refused(
        "every must be at least 1, got 0", AttentionFaithfulnessCallback, reviews["test"], every=0
    )


TWO_PROCESSES = """
import hashlib, json, sys
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed
from tests.helpers import tiny_models
from hf_attnprobe import (
    AttentionFaithfulnessCallback, build_tokenizer, rationale_dataset,
)

data = rationale_dataset(120, seed=0)
tokenizer = build_tokenizer(data["train"]["text"][:])
encoded = {
    name: split.map(lambda row: tokenizer(row["text"])).select_columns(
        ["input_ids", "attention_mask", "label"]
    )
    for name, split in data.items()
}

def weights(watched):
    trainer = Trainer(
        tiny_models.bert(tokenizer, layers=1, width=8, spread=0.02).train(),
        TrainingArguments(
            "trained", num_train_epochs=1, eval_strategy="epoch", report_to=[],
            save_strategy="no", use_cpu=True, dataloader_pin_memory=False, seed=0,
            learning_rate=1e-2,
        ),
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    if watched:
        AttentionFaithfulnessCallback(data["test"], limit=12).add_to(trainer)
    trainer.train()
    parts = [p.detach().numpy().tobytes() for p in trainer.model.parameters()]
    return trainer, hashlib.sha256(b"".join(parts)).hexdigest()

watched, with_it = weights(True)
_, without = weights(False)
logged = [e for e in watched.state.log_history if any("faithfulness" in k for k in e)]
told = {"rank": watched.args.process_index, "of": watched.args.world_size}
told |= {"logged": logged, "same": with_it == without}
with open(f"{sys.argv[1]}/{told['rank']}.json", "w") as file:
    json.dump(told, file)
"""


@pytest.mark.slow
def test_two_processes_share_the_texts_and_log_the_same(run_two, tmp_path):
    run = run_two("-c", TWO_PROCESSES, tmp_path, env={"PYTHONPATH": str(Path(__file__).parents[2])})
    assert run.code == 0, run.err
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["of"], second["of"]) == (2, 2)
    assert first["logged"] == second["logged"] and len(first["logged"]) == 1
    assert first["logged"][0][f"{LOG_PREFIX}permutation.median_tvd_n"] == 12
    assert first["same"] and second["same"]
