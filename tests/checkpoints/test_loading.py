"""The model that is meant, or none: its head, its weights, its configuration and its tokenizer."""

import json

import pytest
import torch
import transformers
from transformers import BertConfig, LlavaConfig, T5Config

from hf_attnprobe import audit, wrap
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.checkpoints import load_model, load_tokenizer
from hf_attnprobe.checkpoints.loading import check_config_values
from tests.helpers import adapter_families as families
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused
from tests.helpers.saved_models import build_bert, build_llama, edit_config


ROWS = [{"text": "the film was dull .", "label": 0}, {"text": "a wonderful plot", "label": 1}]
FEW = {"tests": ["permutation"], "options": AuditOptions(single_heads=False)}


@pytest.fixture(scope="session")
def bert_folder(tokenizer, tmp_path_factory):
    """A tiny BERT with a tokenizer; do not write into it."""
    return tiny_models.saved(tmp_path_factory.mktemp("bert"), build_bert(len(tokenizer)), tokenizer)


# --- heads --------------------------------------------------------------------------------------------------------


def test_another_head_is_refused(tmp_path):
    token = "BertForTokenClassification"
    for kind, task, message in (
        ("BertModel", None, "is a BertModel. Fine-tune it first"),
        ("BertForNextSentencePrediction", None, "is a BertForNextSentencePrediction"),
        ("BertModel", "text-classification", "is a BertModel"),
        (token, "text-classification", "expected a model for the task 'text-classification'"),
        ("BertForSequenceClassification", "ner", "expected task to be one of"),
    ):
        build_bert(30, kind).save_pretrained(tmp_path / kind)
        refused(message, load_model, tmp_path / kind, task=task)
    for kind, config, message in (
        ("LlavaForConditionalGeneration", LlavaConfig, "It also reads images"),
        ("T5ForConditionalGeneration", T5Config, "It has an encoder for its input"),
    ):
        config(architectures=[kind]).save_pretrained(tmp_path / kind)
        (tmp_path / kind / "model.safetensors").touch()
        refused(message, load_model, tmp_path / kind)


def test_a_head_of_tokens_is_audited_as_what_it_is(tokenizer, tmp_path):
    model = build_llama("TokenClassification", len(tokenizer), pad_token_id=0)
    tiny_models.saved(tmp_path, model, tokenizer)
    for given in (str(tmp_path), (model, tokenizer)):
        report = audit(given, [{"text": row["text"]} for row in ROWS], **FEW)
        assert report.provenance["prediction"]["kind"] == "tags"


# --- weights ------------------------------------------------------------------------------------------------------


def test_left_over_and_missing_weights_are_refused(tmp_path):
    names = {"0": "a", "1": "b", "2": "c"}
    three = {"id2label": names, "label2id": {v: k for k, v in names.items()}}
    token, sequence = (
        build_bert(30, "BertForTokenClassification"),
        ["BertForSequenceClassification"],
    )
    of_llama = {"architectures": ["LlamaForSequenceClassification"]}
    for k, (model, values, message) in enumerate(
        (
            (
                build_llama("TokenClassification"),
                of_llama,
                "contains weights of another head, such as score",
            ),
            (token, {"architectures": sequence}, "has no weights for bert.pooler"),
            (build_bert(30), {"num_hidden_layers": 1}, "contains weights of layers"),
            (build_bert(30), three, "[2], but its configuration requires [3]"),
        )
    ):
        model.save_pretrained(tmp_path / str(k))
        edit_config(tmp_path / str(k), **values)
        refused(message, load_model, tmp_path / str(k))


def test_tied_weights_of_masked_models_are_not_missing(tmp_path):
    for kind in ("Bert", "DistilBert", "Roberta", "Electra", "Albert"):
        tied = {"pad_token_id": 0, "tie_word_embeddings": True}
        saved = families.make(kind.lower(), head="ForMaskedLM", **tied)
        saved.save_pretrained(tmp_path / kind)
        loaded = load_model(tmp_path / kind)
        tied = loaded.get_output_embeddings().weight
        assert tied.data_ptr() == loaded.get_input_embeddings().weight.data_ptr()
        assert torch.equal(tied, saved.get_output_embeddings().weight)


# --- configurations -----------------------------------------------------------------------------------------------


def test_values_of_the_wrong_kind(bert_folder, copy_of):
    for k, (values, message) in enumerate(
        (
            ({"eos_token_id": ["a"]}, "does not load"),
            ({"max_position_embeddings": "64"}, "does not load"),
            ({"num_labels": 10**12}, "for num_labels"),
            ({"num_hidden_layers": 10**9}, "for num_hidden_layers"),
            ({"num_labels": "2"}, "does not load"),
            ({"architectures": "Bert"}, "does not name a model class"),
            ({"architectures": [3]}, "expected a class name that ends with"),
            ({"id2label": {"1": "a", "2": "b"}}, "for id2label"),
            ({"id2label": {"a": "b"}}, "for id2label"),
            ({"id2label": ["a", "b"]}, "does not load"),
            ({"hidden_size": "16"}, "does not load"),
            ({"num_attention_heads": 5}, "does not load"),
            ({"hidden_act": "none at all"}, "does not load"),
        )
    ):
        folder = copy_of(bert_folder, f"copy-{k}")
        edit_config(folder, **values)
        refused(message, load_model, folder)
    check_config_values({"eos_token_id": [1, 2], "pad_token_id": -1, "own": "x"}, "model")  # may be
    for name, value in (("n_layer", 10**6), ("encoder_layers", 10**30)):
        refused(f"for {name} in the config.json", check_config_values, {name: value}, "model")


def test_outputs_without_names(bert_folder, copy_of):
    """A checkpoint is read so that they have names; an object is left to its owner."""
    folder = copy_of(bert_folder)
    edit_config(folder, return_dict=False, hierarchical=True)  # which means nothing to a BERT
    loaded = load_model(folder)
    assert loaded.config.return_dict and wrap(loaded).label_names
    assert wrap(loaded).separator_ids == frozenset()
    loaded.config.return_dict = False
    refused("set model.config.return_dict = True", wrap, loaded)


def test_a_plain_module(tokenizer):
    plain = torch.nn.Linear(2, 2)
    refused("register it with register_adapter", wrap, plain)
    refused("register it with", audit, plain, ROWS, tokenizer=tokenizer, **FEW)
    plain.config = BertConfig()  # and no embeddings
    refused("register it with register_adapter", wrap, plain)


# --- tokenizers ---------------------------------------------------------------------------------------------------


def test_a_folder_without_tokenizer_files(tmp_path):
    known = ["bert", "distilbert", "deberta_v2", "electra", "albert", "t5", "roberta", "gpt2"]
    models = {family: families.get_shared_model(family) for family in known}
    config = transformers.XLMRobertaConfig(**families.SIZES)
    models["xlm_roberta"] = transformers.XLMRobertaForSequenceClassification(config)
    for family, model in models.items():
        model.config.save_pretrained(tmp_path / family)
        refused("Save a tokenizer in the model's folder", load_tokenizer, tmp_path / family)


def test_a_tokenizer_that_is_not_the_models(bert_folder, tokenizer, copy_of):
    other = load_tokenizer(bert_folder)
    other.add_special_tokens({"pad_token": "[not in the vocabulary]"})
    padded = build_bert(len(tokenizer), pad_token_id=7)
    for model, own, message in (
        (build_bert(30522), tokenizer, "embeddings for 30522 tokens"),
        (
            padded,
            tokenizer,
            "pad_token_id is 7 in the model's configuration, but 0 in the tokenizer",
        ),
        (build_bert(len(tokenizer)), other, "padding token '[not in the vocabulary]' has the id"),
    ):
        refused(message, audit, (model, own), ROWS, **FEW)
    for k, (values, message) in enumerate(
        (
            ({"model_input_names": ["input_ids"]}, "expected 'attention_mask'"),
            ({"model_max_length": "512"}, "expected a number for model_max_length"),
            ({"pad_token": "[nothing]"}, "padding token '[nothing]' has the id"),
        )
    ):
        folder = copy_of(bert_folder, f"copy-{k}")
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
        refused(message, audit, str(folder), ROWS, **FEW)


def test_unknown_tokens_are_counted_said_and_refused(bert_folder, texts):
    known = [{"text": text, "label": -1} for text in texts[:3]]
    report = audit(str(bert_folder), known, **FEW)
    assert report.provenance["unknown_tokens"] == 0 and report.notes == ()
    report = audit(str(bert_folder), [{"text": "the film was grzlb .", "label": 0}], **FEW)
    tokens = load_tokenizer(bert_folder).tokenize("the film was grzlb .")
    share = tokens.count("<unk>") / len(tokens)
    assert 0.1 < share < 0.5
    assert report.provenance["unknown_tokens"] == pytest.approx(share)
    assert f"does not know {share:.0%} of the tokens" in report.notes[0]
    strange = [{"text": "grzlb brzlg the", "label": 0}]
    refused("does not know 67% of the tokens", audit, str(bert_folder), strange, **FEW)


# --- the model's own probabilities --------------------------------------------------------------------------------


def test_probabilities_that_are_not_the_models_stop_the_audit(bert_folder, make_checkpoint):
    """One weight that the adapter reads and the model does not is enough, for both kinds of adapter."""
    options = {"tests": ["permutation"]}
    options["options"] = AuditOptions()
    for folder in (bert_folder, make_checkpoint()):
        adapter, tokenizer = wrap(load_model(folder)), load_tokenizer(folder)
        with torch.no_grad():
            head = adapter.model.classifier
            moved = head.bias.clone()
            moved[-1] += 0.01
            head.bias = torch.nn.Parameter(moved)
        said = "alone, but the value in a batch is"
        refused(said, audit, adapter, ROWS, tokenizer=tokenizer, **options)
