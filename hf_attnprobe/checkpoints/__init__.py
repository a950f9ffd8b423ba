"""Load models and tokenizers from folders or the Hub, and refuse incomplete or unsafe ones.

The main functions are :func:`load_model` and :func:`load_tokenizer`. Start reading in `loading.py`.

origins.py         locates a checkpoint (folder, Hub id, revision), and checks that it runs no code
loading.py         loads and checks configurations, models, peft adapters and tokenizers
chat_templates.py  renders chat templates with a time limit
weights.py         rounds, prunes or randomises a model's weights
records.py         reads and writes the training record and the model card next to the weights
"""

from hf_attnprobe.adapters.pretrained import get_class_names
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    is_attention_classifier,
    load_attention_classifier,
    load_model,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.origins import Origin, locate_checkpoint
from hf_attnprobe.checkpoints.records import (
    RECORD_FILE,
    check_output_is_not_model,
    read_record,
)


__all__ = [
    "RECORD_FILE",
    "Origin",
    "check_output_is_not_model",
    "get_class_names",
    "has_trained_attention",
    "is_attention_classifier",
    "load_attention_classifier",
    "load_model",
    "load_tokenizer",
    "locate_checkpoint",
    "read_record",
]
