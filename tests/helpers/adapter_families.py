"""Tiny random models of many architectures.

Their weights are large enough that attention is far from uniform. No model has a ReLU, so that
finite differences converge.
"""

import functools

import torch
import transformers

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from tests.helpers import tiny_models
from tests.helpers.transformer_families import SMALL, tiny_config


SIZES = {name: SMALL[name] for name in ("vocab_size", "hidden_size", "num_attention_heads")}
SIZES |= {"num_hidden_layers": 3, "intermediate_size": 48, "max_position_embeddings": 64}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
MODERN = {"local_attention": 8, "global_attn_every_n_layers": 2, "classifier_pooling": "mean"}
NEO = {"attention_types": [[["global", "local", "global"], 1]], "intermediate_size": None}

FAMILIES = {
    "bert": ("Bert", {}),
    "roberta": ("Roberta", {"pad_token_id": 1}),
    "electra": ("Electra", {"embedding_size": 16}),
    "distilbert": ("DistilBert", {}),
    "albert": ("Albert", {"embedding_size": 16}),
    "deberta": ("Deberta", DISENTANGLED | {"position_biased_input": False}),
    "deberta_v2": ("DebertaV2", DISENTANGLED | {"position_buckets": 8, "conv_kernel_size": 3}),
    "modernbert": ("ModernBert", MODERN),
    "mpnet": ("MPNet", {"pad_token_id": 1}),
    "xlnet": ("XLNet", {}),
    "gpt2": ("GPT2", {"n_inner": None}),
    "gpt_neo": ("GPTNeo", NEO),
    "gpt_neox": ("GPTNeoX", {}),
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "mistral": ("Mistral", {"sliding_window": 4}),
    "gemma2": ("Gemma2", {"sliding_window": 4}),
    "falcon": ("Falcon", {}),
    "opt": ("OPT", {"activation_function": "gelu"}),
    "bloom": ("Bloom", {}),
    "t5": ("T5", {"feed_forward_proj": "gated-gelu"}),
    "bart": ("Bart", {"decoder_start_token_id": 2}),
    "vit": ("ViT", {"image_size": 8}),
}
MODEL_TYPES = {"deberta_v2": "deberta-v2"}
LAYER_COUNT_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
TEXT_FAMILIES = [name for name in FAMILIES if name != "vit"]
FEW = ("bert", "gpt2", "deberta_v2", "modernbert", "llama", "xlnet", "t5", "vit")
"""One family for every form of attention: positions in a table, causal, relative positions,
windows, grouped queries, two streams, two stacks, images."""
SOME, SOME_TEXT = tiny_models.daily(FAMILIES, FEW), tiny_models.daily(TEXT_FAMILIES, FEW)

TEXTS = ([3, 11, 12, 13, 14, 15, 16, 17, 2], [3, 21, 22, 23, 2], [3, 31, 32, 33, 34, 35, 2])
"""Token ids of three texts, with special tokens at both ends; 2 is the end token."""
WORDS = ([-1, 0, 1, 1, 2, 3, 3, 3, -1], [-1, 0, 0, 1, -1], [-1, 0, 1, 2, 3, 4, -1])


def make(family, *, head=None, num_labels=3, attn_implementation=None, **options):
    """Create a tiny model in eval mode."""
    name, fields = FAMILIES[family]
    small = tiny_config(MODEL_TYPES.get(family, family)).to_dict()
    layer_counts = {
        field: 3 for field in LAYER_COUNT_FIELDS if field in small and family not in ("t5", "bart")
    }
    options = layer_counts | fields | {"num_labels": num_labels} | options
    config = tiny_config(MODEL_TYPES.get(family, family), **options)
    torch.manual_seed(0)
    default_head = "ForImageClassification" if family == "vit" else "ForSequenceClassification"
    model_class = getattr(transformers, name + (head or default_head))
    model = model_class._from_config(config, attn_implementation=attn_implementation).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.15)
    return model


@functools.cache
def get_shared_model(family: str):
    """Return a cached model, which must not be changed."""
    return make(family)


def encode(model, texts=TEXTS, words=None) -> dict[str, torch.Tensor]:
    """Encode texts as a tokenizer does; for image models, create random images."""
    if model.main_input_name == "pixel_values":
        pixels = torch.randn(len(TEXTS), 3, 8, 8, generator=torch.Generator().manual_seed(0))
        return {"pixel_values": pixels[: len(texts)]}
    n_keys = max(map(len, texts))

    def pad(rows, filler):
        padding = [[filler] * (n_keys - len(row)) for row in rows]
        left = model.config.model_type == "xlnet"
        return torch.tensor(
            [[*p, *row] if left else [*row, *p] for row, p in zip(rows, padding, strict=True)]
        )

    inputs = {
        "input_ids": pad(texts, model.config.pad_token_id),
        "attention_mask": pad([[1] * len(text) for text in texts], 0),
        "special_tokens_mask": pad([[int(token in (2, 3)) for token in text] for text in texts], 1),
    }
    return inputs if words is None else inputs | {"word_ids": pad(words, -1)}


def prepare(adapter, texts=TEXTS, words=None):
    """Prepare a batch of texts."""
    return adapter.prepare(encode(adapter.model, texts, words), tuple(range(len(texts))))


def observe_texts(model, texts=TEXTS, words=None, **options):
    """Return the adapter of a Transformer and its observation of the texts."""
    adapter = TransformerAdapter(model, **options)
    return adapter, adapter.observe(prepare(adapter, texts, words))


def transposed(module, query, key, value, mask, scaling=None, dropout=0.0, **kwargs):
    """Compute eager attention with transposed matrices: the same numbers by other operations."""
    scores = query @ key.transpose(2, 3) * scaling + (0 if mask is None else mask)
    weights = scores.softmax(-1)
    output = value.transpose(2, 3) @ weights.transpose(2, 3)
    return output.permute(0, 3, 1, 2).contiguous(), weights
