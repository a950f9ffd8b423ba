"""Origins of checkpoints: the saved class is loaded, and checkpoints without a best one are not guessed."""

import torch
import transformers
from transformers import ViTConfig

from hf_attnprobe.checkpoints import load_model
from hf_attnprobe.checkpoints.loading import HEADS, find_saved_task
from hf_attnprobe.checkpoints.origins import locate_checkpoint
from hf_attnprobe.core.options import Task
from tests.helpers.error_messages import refused
from tests.helpers.saved_models import SIZES, build_bert, build_llama, edit_config


def test_a_model_is_loaded_as_the_class_that_was_saved(tmp_path):
    for head in HEADS:
        folder = tmp_path / head.task
        if head.task == "image-classification":
            sizes = {"image_size": 8, "patch_size": 4}
            saved = transformers.ViTForImageClassification(ViTConfig(**SIZES, **sizes))
        elif head.task == "text-generation":
            saved = build_llama("CausalLM")
        else:
            saved = build_bert(30, f"Bert{head.suffix}")
        saved.save_pretrained(folder)
        loaded = load_model(folder)
        assert type(loaded) is type(saved)
        ours, theirs = loaded.state_dict(), saved.state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert type(load_model(folder, task=head.task)) is type(saved)
        for named in (240, "BertModel", None):
            edit_config(folder, architectures=named)
            refused("does not name a model class", load_model, folder)
            assert find_saved_task(locate_checkpoint(folder)) is None
        assert type(load_model(folder, task=head.task)) is type(saved)
    assert list(Task.__args__) == [head.task for head in HEADS]


def test_a_language_model_is_loaded_in_parts_too(tmp_path):
    saved = build_llama("CausalLM").bfloat16()
    saved.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    loaded = load_model(tmp_path)
    assert type(loaded) is type(saved) and loaded.dtype == torch.bfloat16
    ours, theirs = loaded.state_dict(), saved.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert find_saved_task(locate_checkpoint(tmp_path)) == "text-generation"
