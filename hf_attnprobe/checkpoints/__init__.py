"""Loads models and tokenizers from folders or the Hub, or says why not.

origins.py  where they are: folder, Hub id, revision; pickles and code refused unless allowed
loading.py  configurations, heads, adapters of peft on their base, models and tokenizers, checked
records.py  what stands beside the weights: the record of the training, and the card
"""

from hf_attnprobe.adapters.pretrained import class_names
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    is_attention_classifier,
    load_attention_classifier,
    load_model,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.origins import Origin, origin_of
from hf_attnprobe.checkpoints.records import (
    RECORD,
    check_not_itself,
    read_record,
)


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
