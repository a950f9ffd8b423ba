"""Fine-tuned models as people have them: each a real folder, a repository of a Hub, or an object."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    BertModel,
    Trainer,
    TrainingArguments,
    pipeline,
)

from hf_attnprobe import AttnProbeError, audit
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.checkpoints import load_model, load_tokenizer, locate_checkpoint
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.mini_hub import MiniHub


ROWS = [{"text": "the film was dull .", "label": 0}, {"text": "a wonderful plot", "label": 1}]
FEW = {"tests": ["permutation"], "options": AuditOptions(single_heads=False)}


def tiny_bert(tokenizer, seed=0, kind=BertForSequenceClassification, **options):
    return tiny_models.bert(tokenizer, seed=seed, kind=kind, spread=0.15, **options)


def probs_of(model, tokenizer):
    """What a plain forward pass says of each text."""
    said = []
    for row in ROWS:
        with torch.no_grad():
            logits = model.eval()(**tokenizer(row["text"], return_tensors="pt")).logits
        said.append(logits.softmax(-1)[0].numpy())
    return np.array(said)


def audited(model, **options):
    """The report of an audit of both texts."""
    given = {"single_heads": False} | options
    return audit(model, ROWS, ["permutation"], options=AuditOptions(**given))


@pytest.fixture(scope="module")
def bert(tokenizer):
    return tiny_bert(tokenizer)


def same_weights(one, other):
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


# --- folders ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_folder(tokenizer, tmp_path_factory):
    """What a Trainer leaves: checkpoint-1 to checkpoint-3, the best of them recorded, nothing above them."""
    folder = tmp_path_factory.mktemp("run")
    rows = [dict(tokenizer(row["text"]), labels=row["label"]) for row in ROWS]
    rows = Dataset.from_list(rows)
    each = {"max_steps": 3, "save_steps": 1, "eval_steps": 1, "eval_strategy": "steps"}
    each["learning_rate"] = 0.3  # so that the loss goes up and down
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    one = {"per_device_train_batch_size": 1, "load_best_model_at_end": True}
    settings = TrainingArguments(folder, **each, **quiet, **one)
    data = {"train_dataset": rows, "eval_dataset": rows, "processing_class": tokenizer}
    trainer = Trainer(tiny_bert(tokenizer), settings, **data)
    trainer.train()
    return folder, trainer


def test_the_best_checkpoint_of_a_training_is_taken_and_said(run_folder, caplog):
    folder, trainer = run_folder
    best = trainer.state.best_model_checkpoint
    report = audit(str(folder), ROWS, **FEW)
    assert report.provenance["origin"]["checkpoint"] == best
    assert f"the best one, {best.rpartition('/')[2]}" in caplog.text
    assert same_weights(load_model(folder), trainer.model)  # which was loaded at the end


def test_checkpoints_without_a_best_one_are_not_guessed(run_folder, tmp_path):
    folder = shutil.copytree(run_folder[0], tmp_path / "run")
    for file in folder.glob("*/trainer_state.json"):
        state = json.loads(file.read_text()) | {"best_model_checkpoint": None}
        file.write_text(json.dumps(state))
    with pytest.raises(AttnProbeError) as caught:
        audit(str(folder), ROWS, **FEW)
    assert str(caught.value) == (
        f"{folder} contains several checkpoints of a training, and the best of them is unknown. "
        f"Choose one, such as the newest, {folder}/checkpoint-3."
    )
    assert locate_checkpoint(folder / "checkpoint-2").name == str(folder / "checkpoint-2")
    assert locate_checkpoint(folder, subfolder="checkpoint-1").name.endswith("checkpoint-1")
    refused(
        "Correct its name, or remove this option",
        locate_checkpoint,
        folder,
        subfolder="checkpoint-9",
    )


def test_shards_are_the_whole(bert, tokenizer, tmp_path):
    bert.save_pretrained(tmp_path, max_shard_size="5KB")
    tokenizer.save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert same_weights(load_model(tmp_path), bert)
    assert audited(str(tmp_path)).statistics == audited((bert, tokenizer)).statistics


def test_half_precision_on_a_cpu_is_advised_against(tokenizer, tmp_path, caplog):
    tiny_models.saved(tmp_path, tiny_bert(tokenizer).to(torch.float16), tokenizer)
    audited(str(tmp_path))
    assert (
        "data type float16 is slow on this CPU" in caplog.text and "--dtype float32" in caplog.text
    )
    caplog.clear()
    audited(str(tmp_path), dtype="float32")
    assert "is slow on this CPU" not in caplog.text


# --- adapters of peft ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lora(tokenizer, tmp_path_factory):
    """An adapter of three classes on a base without a head: (folder, base, the model in memory)."""
    peft = pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("lora")
    body = tiny_bert(tokenizer, seed=1, kind=BertModel)
    body.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    base = AutoModelForSequenceClassification.from_pretrained(folder / "base", num_labels=3)
    settings = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft's own making
        model = peft.get_peft_model(base, settings)
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:  # or LoRA's B is 0 and changes nothing
                weight.normal_(0, 0.3)
    model.eval().save_pretrained(folder / "adapter")
    return folder / "adapter", folder / "base", model


def test_an_adapter_is_its_base_with_its_weights_added(lora, tokenizer):
    folder, base, model = lora
    merged = load_model(folder)
    assert type(merged) is BertForSequenceClassification
    assert merged.config.num_labels == 3
    said = probs_of(model, tokenizer)
    np.testing.assert_allclose(probs_of(merged, tokenizer), said, atol=1e-6)
    plain = BertForSequenceClassification.from_pretrained(base, num_labels=3)
    plain.classifier.load_state_dict(merged.classifier.state_dict())
    assert abs(probs_of(plain, tokenizer) - said).max() > 1e-3  # the rest was added too
    assert load_tokenizer(folder).get_vocab() == tokenizer.get_vocab()  # the base's


def test_merged_and_unmerged_have_the_same_numbers(lora, tokenizer):
    folder, _, model = lora
    merged, beside = (audited(given).to_pandas() for given in (str(folder), (model, tokenizer)))
    keys = [name for name in merged.columns if name != "value"]
    together = merged.merge(beside, on=keys, validate="1:1")
    assert len(together) == len(merged) == len(beside)
    values = (together[name].astype(float) for name in ("value_x", "value_y"))
    np.testing.assert_allclose(*values, atol=1e-5)


def test_an_adapter_whose_head_is_nowhere_is_refused(lora, tmp_path, monkeypatch):
    folder = shutil.copytree(lora[0], tmp_path / "adapter")
    file = folder / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({k: v for k, v in weights.items() if "classifier" not in k}, file)
    refused("has no weights for classifier", load_model, folder)
    monkeypatch.setattr("hf_attnprobe.checkpoints.loading.is_peft_available", lambda: False)
    refused("pip install peft", load_model, lora[0])


# --- objects ------------------------------------------------------------------------------------------------------


def test_pairs_and_pipelines_are_the_model_in_them(bert, tokenizer):
    known = audit(bert, ROWS, tokenizer=tokenizer, **FEW)
    said = pipeline("text-classification", model=bert, tokenizer=tokenizer)
    for subject in ((bert, tokenizer), [bert, tokenizer], said):
        assert audit(subject, ROWS, **FEW).statistics == known.statistics
    with pytest.raises(AttnProbeError, match="tuple already contains a tokenizer"):
        audit((bert, tokenizer), ROWS, tokenizer=tokenizer, **FEW)
    refused("expected a pair (model, tokenizer)", audit, (bert, "tokenizer"), ROWS, **FEW)


# --- the Hub ------------------------------------------------------------------------------------------------------

AUDITS = """
import json, sys
import hf_attnprobe

rows = json.loads(sys.argv[1])
def run(model, **place):
    model = hf_attnprobe.SavedModel(model, **place)
    options = hf_attnprobe.AuditOptions(single_heads=False)
    try:
        report = hf_attnprobe.audit(model, rows, ["permutation"], options=options)
    except hf_attnprobe.AttnProbeError as error:
        return {"error": str(error)}
    return report.provenance.get("origin", {}) | {
        "fingerprint": report.provenance["model_fingerprint"], "token": "s3cret" in repr((model, report.provenance))
    }

told = {
    "main": run("acme/bert"),
    "v1": run("acme/bert", revision="v1"),
    "at": run("acme/bert@v1"),
    "none": run("acme/bert@v9"),
    "sub": run("acme/bert", subfolder="inner/model"),
    "closed": run("acme/private"),
    "open": run("acme/private", token="s3cret"),
    "adapter": run("acme/lora"),
}
print(json.dumps(told))
"""


@pytest.mark.slow
def test_revision_subfolder_token_and_adapter_from_a_hub(
    bert, lora, tokenizer, run_python, tmp_path
):
    models = tmp_path / "hub/models/acme"
    kinds = {"bert": 0, "bert@v1": 1, "bert/inner/model": 2, "private": 3, "base": 1}
    for place, seed in kinds.items():
        tiny_bert(tokenizer, seed).save_pretrained(models / place)
        tokenizer.save_pretrained(models / place)
    shutil.copytree(lora[0], models / "lora")
    file = models / "lora/adapter_config.json"
    settings = json.loads(file.read_text()) | {"base_model_name_or_path": "acme/base"}
    file.write_text(json.dumps(settings))
    with MiniHub(tmp_path / "hub", private={"acme/private": "s3cret"}) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": None}
        run = run_python("-c", AUDITS, json.dumps(ROWS), env=env)
        commits = {
            name: hub.commit(hub.root / "models" / "acme" / name)
            for name in ("bert", "bert@v1", "private")
        }
    assert run.code == 0, run.err
    told = json.loads(run.out)
    prints = {name: part.get("fingerprint") for name, part in told.items()}
    assert prints["v1"] == prints["at"]
    assert len({prints[name] for name in ("main", "v1", "sub", "open", "adapter")}) == 5
    assert told["main"]["commit"] == commits["bert"]
    assert told["v1"]["commit"] == told["at"]["commit"] == commits["bert@v1"]
    assert told["at"]["revision"] == "v1" and told["sub"]["subfolder"] == "inner/model"
    assert "does not load from the Hub" in told["none"]["error"]
    assert "does not load from the Hub" in told["closed"]["error"]
    assert told["open"]["commit"] == commits["private"]
    assert not any(part.get("token") for part in told.values())
    assert all(len(part["error"].splitlines()) == 1 for part in told.values() if "error" in part)
