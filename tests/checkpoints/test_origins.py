"""Origins of checkpoints: the saved class is loaded, and checkpoints without a best one are not guessed."""

import json

import torch
import transformers
from transformers import LlamaConfig, ViTConfig

from hf_attnprobe.checkpoints import load_model
from hf_attnprobe.checkpoints.loading import HEADS, find_saved_task
from hf_attnprobe.checkpoints.origins import locate_checkpoint
from hf_attnprobe.core.options import Task
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def bert(vocab_size, kind="BertForSequenceClassification", **options):
    return tiny_models.bert(vocab_size, kind=getattr(transformers, kind), spread=0.02, **options)


def llama(kind, vocab_size=30, **fields):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocab_size, **SIZES, num_key_value_heads=2, **fields)
    return getattr(transformers, f"LlamaFor{kind}")(config)


def change(folder, **values):
    """Other values in a folder's configuration; None takes one out."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    kept = {name: value for name, value in config.items() if value is not None}
    file.write_text(json.dumps(kept))


def test_a_model_is_loaded_as_the_class_that_was_saved(tmp_path):
    for head in HEADS:
        folder = tmp_path / head.task
        if head.task == "image-classification":
            sizes = {"image_size": 8, "patch_size": 4}
            saved = transformers.ViTForImageClassification(ViTConfig(**SIZES, **sizes))
        elif head.task == "text-generation":
            saved = llama("CausalLM")
        else:
            saved = bert(30, f"Bert{head.suffix}")
        saved.save_pretrained(folder)
        loaded = load_model(folder)
        assert type(loaded) is type(saved)
        ours, theirs = loaded.state_dict(), saved.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert type(load_model(folder, task=head.task)) is type(saved)
        for named in (240, "BertModel", None):
            change(folder, architectures=named)
            refused("does not name the model class", load_model, folder)
            assert find_saved_task(locate_checkpoint(folder)) is None
        assert type(load_model(folder, task=head.task)) is type(saved)
    assert list(Task.__args__) == [head.task for head in HEADS]


def test_a_language_model_is_loaded_in_parts_too(tmp_path):
    saved = llama("CausalLM").bfloat16()
    saved.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    loaded = load_model(tmp_path)
    assert type(loaded) is type(saved) and loaded.dtype == torch.bfloat16
    ours, theirs = loaded.state_dict(), saved.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert find_saved_task(locate_checkpoint(tmp_path)) == "text-generation"
