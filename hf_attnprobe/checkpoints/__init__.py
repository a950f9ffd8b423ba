"""Models and tokenizers from folders or the Hub: the one that is meant, or an error.

origins.py         where they are: folder, Hub id, revision, checkpoints of a training
configurations.py  a configuration, its values checked
heads.py           what a checkpoint predicts, and whether its weights are all there
peft_adapters.py   LoRA and its like, on their base model
loading.py         models
tokenizers.py      tokenizers, and whether they are the model's
trust.py           pickles and names of code, refused unless allowed
records.py         what a training leaves beside its weights
"""

from hf_attnprobe.adapters.pretrained import class_names
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    is_attention_classifier,
    load_attention_classifier,
    load_model,
)
from hf_attnprobe.checkpoints.origins import Origin, origin_of
from hf_attnprobe.checkpoints.records import RECORD, check_not_itself, read_record
from hf_attnprobe.checkpoints.tokenizers import load_tokenizer


__all__ = [
    "RECORD",
    "Origin",
    "check_not_itself",
    "class_names",
    "has_trained_attention",
    "is_attention_classifier",
    "load_attention_classifier",
    "load_model",
    "load_tokenizer",
    "origin_of",
    "read_record",
]
