"""Test saved checkpoints with and without the package, from a folder and from a Hub."""

import json
import shutil

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
    AttentionClassifierModel,
    AuditOptions,
    audit,
    build_tokenizer,
)
from tests.helpers import tiny_models
from tests.helpers.mini_hub import MiniHub


CODE = {
    f"{part}_attention_classifier.py"
    for part in ("configuration", "modeling", "layers", "sentences", "pairs", "regularisers")
}
SAVED = CODE | {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
NAMES = (*tiny_models.ENCODERS, "hub", "hierarchical", "pairs")
SENTENCES = [
    "the film was not dull .",
    "well , a wonderful plot , said the critics . superb !",
    "superb",
]

# Runs where the package cannot be imported, whichever way it is installed.
WITHOUT_THE_PACKAGE = """
import importlib.abc, json, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_attnprobe":
            raise ModuleNotFoundError("blocked", name=name)

sys.meta_path.insert(0, Blocker())
try:
    import hf_attnprobe
except ModuleNotFoundError:
    found = {"blocked": True}

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, pipeline

sources, sentences, saved = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
for name, source in sources.items():
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=True)
    seconds = sentences[::-1] if name == "pairs" else None
    batch = tokenizer(sentences, seconds, padding=True, return_tensors="pt")
    classifier = AutoModelForSequenceClassification.from_pretrained(source, trust_remote_code=True)
    base = AutoModel.from_pretrained(source, trust_remote_code=True)
    classifier.save_pretrained(f"{saved}/{name}")
    tokenizer.save_pretrained(f"{saved}/{name}")
    base.save_pretrained(f"{saved}/{name}-base")
    again = AutoModelForSequenceClassification.from_pretrained(f"{saved}/{name}", trust_remote_code=True)
    base_again = AutoModel.from_pretrained(f"{saved}/{name}-base", trust_remote_code=True)
    base_of_saved = AutoModel.from_pretrained(f"{saved}/{name}", trust_remote_code=True)
    with torch.no_grad():
        outputs = classifier(**batch, output_attentions=True)
        found[name] = {
            "module": type(classifier).__module__.split(".")[0],
            "training": classifier.training,
            "logits": outputs.logits.tolist(),
            "attention": outputs.attentions[0].tolist(),
            "context": base(**batch).pooler_output.tolist(),
            "logits again": again(**batch).logits.tolist(),
            "context again": base_again(**batch).pooler_output.tolist(),
            "context of the saved": base_of_saved(**batch).pooler_output.tolist(),
        }
found["labels"] = pipeline("text-classification", model=sources["bilstm"], trust_remote_code=True)(sentences)
try:
    AutoModelForSequenceClassification.from_pretrained(sources["bilstm"], trust_remote_code=False)
except ValueError as error:
    found["refusal"] = str(error)
print("RESULT" + json.dumps(found))
"""


def made(reviews, folder, tokens, **fields):
    """A model of three labels, its tokenizer and the folder of both."""
    tokenizer = build_tokenizer(reviews["train"]["text"][:], **{tokens: True})
    model = tiny_models.classifier(tokenizer, embedding_size=16, num_labels=3, **fields)
    return model, tokenizer, tiny_models.saved(folder, model, tokenizer)


@pytest.fixture(scope="module")
def hierarchical(reviews, tmp_path_factory):
    fields = {"encoder": "bigru", "hierarchical": True, "sep_token_id": 4}
    return made(reviews, tmp_path_factory.mktemp("hierarchical"), "sentences", **fields)


@pytest.fixture(scope="module")
def pairs(reviews, tmp_path_factory):
    fields = {"query_encoder": True, "answer_token_ids": [5, 6, 7]}
    return made(reviews, tmp_path_factory.mktemp("pairs"), "pairs", **fields)


@pytest.fixture(scope="module")
def without_the_package(make_checkpoint, hierarchical, pairs, run_python, tmp_path_factory):
    """What a process without the package makes of all encoders in folders, of one on a Hub and of a hierarchical model."""
    folder = tmp_path_factory.mktemp("without")
    shutil.copytree(make_checkpoint(), folder / "hub/models/acme/bilstm")
    sources = {encoder: str(make_checkpoint(encoder)) for encoder in tiny_models.ENCODERS}
    sources |= {"hierarchical": str(hierarchical[2]), "pairs": str(pairs[2]), "hub": "acme/bilstm"}
    with MiniHub(folder / "hub") as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": None}
        given = json.dumps(sources), json.dumps(SENTENCES), folder / "saved"
        run = run_python("-I", "-c", WITHOUT_THE_PACKAGE, *given, env=env)
        asked = [path for method, path, status in hub.requests if status == 200]
    assert run.code == 0, run.err
    assert any(path.endswith("model.safetensors") for path in asked)
    return json.loads(run.out.split("RESULT")[1]) | {"saved": folder / "saved"}


@pytest.fixture
def expected(make_model, tokenizer, hierarchical, pairs):
    """Logits, attention and context of a model that was never saved."""

    def run(name):
        if name in ("hierarchical", "pairs"):
            made = hierarchical if name == "hierarchical" else pairs
            model, tokenize = made[:2]
        else:
            model, tokenize = make_model("bilstm" if name == "hub" else name), tokenizer
        seconds = SENTENCES[::-1] if name == "pairs" else None
        batch = tokenize(SENTENCES, seconds, padding=True, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**batch, output_attentions=True)
            return (
                outputs.logits,
                outputs.attentions[0],
                model.attention_classifier(**batch).pooler_output,
            )

    return run


@pytest.mark.slow
def test_the_package_is_really_out_of_reach_there(without_the_package):
    assert without_the_package["blocked"]
    assert {without_the_package[name]["module"] for name in NAMES} == {"transformers_modules"}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_numbers_without_the_package(name, without_the_package, expected):
    result = without_the_package[name]
    logits, attention, context = expected(name)
    assert not result["training"]
    torch.testing.assert_close(torch.tensor(result["logits"]), logits)
    torch.testing.assert_close(torch.tensor(result["attention"]), attention)
    torch.testing.assert_close(torch.tensor(result["context"]), context)


@pytest.mark.parametrize("name", NAMES)
def test_saved_again_without_the_package_and_loaded_again(name, without_the_package):
    result, folder = without_the_package[name], without_the_package["saved"] / name
    pairs = {"logits again": "logits", "context again": "context"}
    for again, first in (pairs | {"context of the saved": "context"}).items():
        torch.testing.assert_close(torch.tensor(result[again]), torch.tensor(result[first]))
    assert {file.name for file in folder.iterdir()} >= SAVED
    # and back here, with the package
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(model) is AttentionClassifierForSequenceClassification


def test_a_pipeline_without_the_package(without_the_package):
    logits = without_the_package["bilstm"]["logits"]
    names = [("negative", "positive")[row[1] > 0] for row in logits]
    assert [result["label"] for result in without_the_package["labels"]] == names


def test_without_consent_no_remote_code_runs(without_the_package):
    assert "trust_remote_code=True" in without_the_package["refusal"]


@pytest.mark.parametrize(
    "name", tiny_models.daily([*tiny_models.ENCODERS, "hierarchical"], ["hierarchical"])
)
def test_a_model_of_the_remote_classes_is_audited_like_ours(
    name, make_checkpoint, hierarchical, texts
):
    """Loaded before the package was imported, a model's classes are other objects than the package's."""
    folder = hierarchical[2] if name == "hierarchical" else make_checkpoint(name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    name = "modeling_attention_classifier.AttentionClassifierForSequenceClassification"
    stranger = get_class_from_dynamic_module(name, folder).from_pretrained(folder)
    assert not isinstance(stranger, AttentionClassifierForSequenceClassification)
    data = [{"text": f"{text} {other}"} for text, other in zip(texts[:4], texts[4:], strict=False)]
    options = AuditOptions(shown_texts=1)
    result, expected = (
        audit(model, data, tokenizer=tokenizer, options=options, progress=False).to_pandas()
        for model in (stranger, folder)
    )
    pd.testing.assert_frame_equal(result, expected)


@pytest.mark.parametrize("encoder", tiny_models.ENCODERS)
def test_what_is_saved(encoder, make_checkpoint, make_model):
    folder = make_checkpoint(encoder)
    names = {file.name for file in folder.iterdir()}
    assert names == SAVED
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert set(weights.keys()) == make_model(encoder).state_dict().keys()
    auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
    assert auto_map.keys() == {"AutoConfig", "AutoModel", "AutoModelForSequenceClassification"}
    for place in auto_map.values():
        module, name = place.split(".")
        assert f"class {name}(" in (folder / f"{module}.py").read_text()


@pytest.mark.parametrize("encoder", tiny_models.ENCODERS)
@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_the_auto_classes_find_the_installed_code(
    encoder, trust_remote_code, make_checkpoint, make_model
):
    """Also with the flag: the package's own classes win over those in the folder."""
    folder, model = make_checkpoint(encoder), make_model(encoder)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    base = AutoModel.from_pretrained(folder, trust_remote_code=trust_remote_code)
    classifier = AutoModelForSequenceClassification.from_pretrained(
        folder, trust_remote_code=trust_remote_code
    )
    assert type(config) is AttentionClassifierConfig and config.encoder == encoder
    assert type(base) is AttentionClassifierModel
    assert type(classifier) is AttentionClassifierForSequenceClassification
    for name, value in model.state_dict().items():
        assert torch.equal(classifier.state_dict()[name], value)
        if name.startswith("attention_classifier."):
            assert torch.equal(base.state_dict()[name.removeprefix("attention_classifier.")], value)


def test_the_tokenizer_comes_back(checkpoint, tokenizer):
    loaded = AutoTokenizer.from_pretrained(checkpoint)
    assert loaded(SENTENCES)["input_ids"] == tokenizer(SENTENCES)["input_ids"]
    assert loaded.model_input_names == ["input_ids", "attention_mask"]
    assert loaded("a b")["input_ids"][0] == loaded.bos_token_id == 2


def test_a_hierarchical_checkpoint_reads_raw_text(hierarchical):
    """Sentences are found by tokenizer.json alone; the attention of words is in the first layer, of sentences in the second."""
    model, tokenizer, folder = hierarchical
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    assert type(loaded) is AttentionClassifierForSequenceClassification
    assert loaded.config.hierarchical
    text = "The film was dull. A wonderful plot!<br />Superb"
    batch = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    words, sentences = loaded(**batch, output_attentions=True).attentions
    assert words.shape == (1, 1, 3, batch["input_ids"].shape[1]) and sentences.shape == (1, 1, 1, 3)
    probs = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
    result = pipeline("text-classification", model=str(folder))(text, top_k=None)
    expected = {f"LABEL_{k}": probs[k].item() for k in range(3)}
    assert {row["label"]: row["score"] for row in result} == pytest.approx(expected, abs=1e-5)


def test_a_base_model_is_a_checkpoint_too(make_model, tokenizer, tmp_path):
    model = make_model().attention_classifier
    model.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == CODE | {"config.json", "model.safetensors"}
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    again = AutoModel.from_pretrained(tmp_path)
    torch.testing.assert_close(again(**batch).pooler_output, model(**batch).pooler_output)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_loading_in_another_precision(checkpoint, dtype):
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model(torch.tensor([[2, 5, 6, 3]])).logits.dtype == dtype


def test_a_pipeline_gives_the_names_of_the_labels(checkpoint, make_model, tokenizer):
    classify = pipeline("text-classification", model=str(checkpoint))
    model = make_model()
    for sentence, result in zip(SENTENCES, classify(SENTENCES, batch_size=3), strict=True):
        probs = model(**tokenizer(sentence, return_tensors="pt")).logits.softmax(-1)[0]
        assert result["label"] == ("negative", "positive")[probs.argmax()]
        assert result["score"] == pytest.approx(probs.max().item(), abs=1e-5)
    both = classify(SENTENCES[0], top_k=None)
    assert {one["label"] for one in both} == {"negative", "positive"}
    assert sum(one["score"] for one in both) == pytest.approx(1)


def test_the_plain_trainer(make_model, tokenizer, reviews, tmp_path):
    data = reviews.map(lambda rows: tokenizer(rows["text"]), batched=True)
    model = make_model("mlp")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    arguments = TrainingArguments(
        tmp_path / "steps",
        num_train_epochs=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        learning_rate=0.01,
        load_best_model_at_end=True,
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    unchanged = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < unchanged
    assert all(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert trainer.predict(data["test"]).predictions.shape == (40, 2)
    trainer.save_model(tmp_path / "saved")
    assert {file.name for file in (tmp_path / "saved").iterdir()} >= SAVED
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved")
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
