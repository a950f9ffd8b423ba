"""The model that is meant, or none: its head, its weights, its configuration and its tokenizer."""

import json

import pytest
import torch
import transformers
from transformers import BertConfig, LlamaConfig, LlavaConfig, T5Config, ViTConfig

from adapters import families
from hf_attnprobe import AttnProbeError, audit, wrap
from hf_attnprobe.auditing.options import AuditOptions, Task
from hf_attnprobe.checkpoints import load_model, load_tokenizer
from hf_attnprobe.checkpoints.loading import HEADS, check_values, task_saved
from hf_attnprobe.checkpoints.origins import origin_of


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
ROWS = [
    {"text": "the film was dull .", "label": 0},
    {"text": "a wonderful plot", "label": 1},
]
FEW = {"tests": ["permutation"], "options": AuditOptions(single_heads=False)}


def bert(vocab_size, kind="BertForSequenceClassification", **options):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=vocab_size, max_position_embeddings=64, **SIZES, **options)
    return getattr(transformers, kind)(config).eval()


@pytest.fixture(scope="session")
def bert_folder(tokenizer, tmp_path_factory):
    """A tiny BERT with a tokenizer; do not write into it."""
    folder = tmp_path_factory.mktemp("bert")
    bert(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def change(folder, **values):
    """Other values in a folder's configuration; None takes one out."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    kept = {name: value for name, value in config.items() if value is not None}
    file.write_text(json.dumps(kept))


def refused(message, function, *arguments, **options):
    """Calls a function that must fail in one line with this in it."""
    with pytest.raises(AttnProbeError) as caught:
        function(*arguments, **options)
    assert message in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


# --- heads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.task)
def test_a_model_is_loaded_as_the_class_that_was_saved(head, tmp_path):
    if head.task == "image-classification":
        sizes = {"image_size": 8, "patch_size": 4}
        saved = transformers.ViTForImageClassification(ViTConfig(**SIZES, **sizes))
    elif head.task == "text-generation":
        saved = transformers.LlamaForCausalLM(LlamaConfig(vocab_size=30, **SIZES))
    else:
        saved = bert(30, f"Bert{head.suffix}")
    saved.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert type(loaded) is type(saved)
    ours, theirs = loaded.state_dict(), saved.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert type(load_model(tmp_path, task=head.task)) is type(saved)
    change(tmp_path, architectures=None)
    refused("found no architectures", load_model, tmp_path)
    assert type(load_model(tmp_path, task=head.task)) is type(saved)


def test_the_tasks_of_the_flag_are_those_that_load():
    assert list(Task.__args__) == [head.task for head in HEADS]


@pytest.mark.parametrize(
    ("kind", "task", "message"),
    [
        ("BertModel", None, "is a BertModel; fine-tune it first"),
        ("BertForNextSentencePrediction", None, "is a BertForNextSentencePrediction"),
        ("BertModel", "text-classification", "is a BertModel"),
        (
            "BertForTokenClassification",
            "text-classification",
            "expected a model for text-classification",
        ),
        ("BertForSequenceClassification", "ner", "expected task to be one of"),
    ],
)
def test_another_head_is_refused(kind, task, message, tmp_path):
    bert(30, kind).save_pretrained(tmp_path)
    refused(message, load_model, tmp_path, task=task)


def test_a_language_model_is_loaded_in_parts_too(tmp_path):
    config = LlamaConfig(vocab_size=30, **SIZES, num_key_value_heads=2)
    saved = transformers.LlamaForCausalLM(config).bfloat16()
    saved.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    loaded = load_model(tmp_path)
    assert type(loaded) is type(saved) and loaded.dtype == torch.bfloat16
    ours, theirs = loaded.state_dict(), saved.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert task_saved(origin_of(tmp_path)) == "text-generation"


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        ("LlavaForConditionalGeneration", LlavaConfig, "which reads images beside its text"),
        ("T5ForConditionalGeneration", T5Config, "which reads its text by an encoder"),
    ],
)
def test_models_that_read_more_than_text_from_left_to_right_are_refused(
    kind, config, message, tmp_path
):
    config(architectures=[kind]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    refused(message, load_model, tmp_path)


def test_a_head_of_tokens_is_audited_as_what_it_is(tokenizer, tmp_path):
    config = LlamaConfig(vocab_size=len(tokenizer), **SIZES, num_key_value_heads=2, pad_token_id=0)
    model = transformers.LlamaForTokenClassification(config)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    for given in (str(tmp_path), (model, tokenizer)):
        report = audit(given, [{"text": row["text"]} for row in ROWS], **FEW)
        assert report.provenance["prediction"]["kind"] == "tags"


# --- weights ------------------------------------------------------------------------------------------------------


def test_left_over_and_missing_weights_are_refused(tmp_path):
    llama = LlamaConfig(vocab_size=30, **SIZES, num_key_value_heads=2)
    transformers.LlamaForTokenClassification(llama).save_pretrained(tmp_path / "llama")
    change(tmp_path / "llama", architectures=["LlamaForSequenceClassification"])
    refused(
        "left over are those of another head: score.bias",
        load_model,
        tmp_path / "llama",
    )

    bert(30, "BertForTokenClassification").save_pretrained(tmp_path / "bert")
    change(tmp_path / "bert", architectures=["BertForSequenceClassification"])
    refused("it has no weights for bert.pooler", load_model, tmp_path / "bert")

    bert(30).save_pretrained(tmp_path / "deep")
    change(tmp_path / "deep", num_hidden_layers=1)
    refused("left over are those of layers", load_model, tmp_path / "deep")

    bert(30).save_pretrained(tmp_path / "wide")
    names = {"0": "a", "1": "b", "2": "c"}
    change(tmp_path / "wide", id2label=names, label2id={v: k for k, v in names.items()})
    refused("[2], its configuration says [3]", load_model, tmp_path / "wide")


@pytest.mark.parametrize("kind", ["Bert", "DistilBert", "Roberta", "Electra", "Albert"])
def test_tied_weights_of_masked_models_are_not_missing(kind, tmp_path):
    name = kind.lower()
    sizes = families.FAMILIES[name][1] | {
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    config = getattr(transformers, f"{kind}Config")(**sizes)
    saved = getattr(transformers, f"{kind}ForMaskedLM")(config)
    saved.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    tied = loaded.get_output_embeddings().weight
    assert tied.data_ptr() == loaded.get_input_embeddings().weight.data_ptr()
    assert torch.equal(tied, saved.get_output_embeddings().weight)


# --- configurations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sep_token_id": "102"}, "expected a token id for sep_token_id"),
        ({"unk_token_id": {}}, "expected a token id for unk_token_id"),
        ({"eos_token_id": ["a"]}, "expected a token id for eos_token_id"),
        ({"max_position_embeddings": "64"}, "for max_position_embeddings"),
        ({"num_labels": 10**12}, "for num_labels"),
        ({"num_labels": "2"}, "for num_labels"),
        ({"architectures": "Bert"}, "for architectures"),
        ({"architectures": [3]}, "for architectures"),
        ({"id2label": {"1": "a", "2": "b"}}, "for id2label"),
        ({"id2label": {"a": "b"}}, "for id2label"),
        ({"id2label": ["a", "b"]}, "for id2label"),
        ({"hidden_size": "16"}, "does not load"),
        ({"num_attention_heads": 5}, "does not load"),
        ({"hidden_act": "none at all"}, "does not load"),
    ],
)
def test_values_of_the_wrong_kind(values, message, bert_folder, copy_of):
    folder = copy_of(bert_folder)
    change(folder, **values)
    refused(message, load_model, folder)


def test_ends_may_be_several_and_other_values_are_not_judged():
    check_values({"eos_token_id": [1, 2], "pad_token_id": -1, "own": "x"}, "model")


def test_outputs_without_names(bert_folder, copy_of):
    """A checkpoint is read so that they have names; an object is left to its owner."""
    folder = copy_of(bert_folder)
    change(folder, return_dict=False)
    loaded = load_model(folder)
    assert loaded.config.return_dict and wrap(loaded).label_names
    loaded.config.return_dict = False
    refused("set model.config.return_dict = True", wrap, loaded)


def test_hierarchical_means_nothing_to_a_bert(bert_folder, copy_of):
    folder = copy_of(bert_folder)
    change(folder, hierarchical=True)
    assert wrap(load_model(folder)).separator_ids == frozenset()


def test_a_plain_module(tokenizer):
    plain = torch.nn.Linear(2, 2)
    refused("register one with register_adapter", wrap, plain)
    refused("register one with", audit, plain, ROWS, tokenizer=tokenizer, **FEW)
    plain.config = BertConfig()  # and no embeddings
    refused("register one with register_adapter", wrap, plain)


# --- tokenizers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "distilbert",
        "xlm_roberta",
        "deberta_v2",
        "electra",
        "albert",
        "t5",
        "roberta",
        "gpt2",
    ],
)
def test_a_folder_without_tokenizer_files(family, tmp_path):
    if family == "xlm_roberta":
        config = transformers.XLMRobertaConfig(**families.SIZES)
        model = transformers.XLMRobertaForSequenceClassification(config)
    else:
        model = families.shared(family)
    model.config.save_pretrained(tmp_path)
    refused("save one beside the weights", load_tokenizer, tmp_path)


def test_a_tokenizer_that_is_not_the_models(bert_folder, tokenizer):
    refused(
        "which embeds 30522 tokens",
        audit,
        (bert(30522), tokenizer),
        ROWS,
        **FEW,
    )
    refused(
        "the configuration says pad_token_id 7, the tokenizer 0",
        audit,
        (bert(len(tokenizer), pad_token_id=7), tokenizer),
        ROWS,
        **FEW,
    )
    other = load_tokenizer(bert_folder)
    other.add_special_tokens({"pad_token": "[not in the vocabulary]"})
    refused(
        "the tokenizer pads with '[not in the vocabulary]'",
        audit,
        (bert(len(tokenizer)), other),
        ROWS,
        **FEW,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_input_names": ["input_ids"]}, "expected attention_mask"),
        ({"model_max_length": "512"}, "expected a number for model_max_length"),
        ({"pad_token": "[nothing]"}, "the tokenizer pads with '[nothing]'"),
    ],
)
def test_a_tokenizer_configuration_of_the_wrong_kind(values, message, bert_folder, copy_of):
    folder = copy_of(bert_folder)
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
    refused("67% of their tokens are <unk>", audit, str(bert_folder), strange, **FEW)


# --- the model's own probabilities --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*families.TEXT_FAMILIES, "vit"])
def test_an_adapter_says_what_the_model_says(family):
    model = families.shared(family)
    adapter = wrap(model)
    batch = families.prepare(adapter)
    with torch.no_grad():
        inputs = {n: v for n, v in batch.inputs.items() if n != "units"}
        own = model(**inputs).logits.softmax(-1)
    torch.testing.assert_close(adapter.native_probs(batch), own, atol=1e-6, rtol=0)
    torch.testing.assert_close(adapter.observe(batch).probs, own, atol=1e-6, rtol=0)


def test_probabilities_that_are_not_the_models_stop_the_audit(bert_folder, make_checkpoint):
    """One weight that the adapter reads and the model does not is enough, for both kinds of adapter."""
    for folder in (bert_folder, make_checkpoint()):
        adapter = wrap(load_model(folder))
        with torch.no_grad():
            head = adapter.model.classifier
            moved = head.bias.clone()
            moved[-1] += 0.01
            head.bias = torch.nn.Parameter(moved)
        tokenizer = load_tokenizer(folder)
        refused(
            "expected the model's own probabilities",
            audit,
            adapter,
            ROWS,
            tokenizer=tokenizer,
            **FEW | {"options": AuditOptions(control="none")},
        )


def test_a_model_in_training_is_run_in_eval_mode_and_left_as_it_was(tokenizer):
    model = bert(len(tokenizer)).train()
    model.bert.pooler.eval()
    was = {name: module.training for name, module in model.named_modules()}
    audit((model, tokenizer), ROWS, **FEW)
    assert {name: module.training for name, module in model.named_modules()} == was
