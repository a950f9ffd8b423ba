"""Tiny random models of every family, with weights large enough that attention is far from uniform.

None has a kink (ReLU), so that finite differences converge.
"""

import functools
import importlib

import torch
import transformers

import zoo


SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60, "n_positions": 64}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
GROUPED = SIZES | ENDS | {"num_key_value_heads": 2}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}

FAMILIES = {
    "bert": ("Bert", SIZES),
    "roberta": ("Roberta", SIZES | {"pad_token_id": 1}),
    "electra": ("Electra", SIZES | {"embedding_size": 16}),
    "distilbert": (
        "DistilBert",
        {
            "dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 48,
            "vocab_size": 60,
            "max_position_embeddings": 64,
        },
    ),
    "albert": ("Albert", SIZES | {"embedding_size": 16}),
    "deberta": ("Deberta", SIZES | DISENTANGLED | {"position_biased_input": False}),
    "deberta_v2": (
        "DebertaV2",
        SIZES | DISENTANGLED | {"position_buckets": 8, "conv_kernel_size": 3},
    ),
    "modernbert": (
        "ModernBert",
        SIZES
        | {"local_attention": 8, "global_attn_every_n_layers": 2, "classifier_pooling": "mean"}
        | {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "mpnet": ("MPNet", SIZES | {"pad_token_id": 1}),
    "xlnet": ("XLNet", {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48, "vocab_size": 60}),
    "gpt2": ("GPT2", GPT | ENDS),
    "gpt_neo": (
        "GPTNeo",
        {
            "hidden_size": 32,
            "num_layers": 3,
            "num_heads": 4,
            "vocab_size": 60,
            "max_position_embeddings": 64,
        }
        | {"attention_types": [[["global", "local", "global"], 1]], "window_size": 4}
        | ENDS,
    ),
    "gpt_neox": ("GPTNeoX", SIZES | ENDS),
    "llama": ("Llama", GROUPED),
    "qwen2": ("Qwen2", GROUPED),
    "mistral": ("Mistral", GROUPED | {"sliding_window": 4}),
    "gemma2": ("Gemma2", GROUPED | {"head_dim": 8, "sliding_window": 4}),
    "falcon": (
        "Falcon",
        {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 60}
        | ENDS,
    ),
    "opt": (
        "OPT",
        {k: v for k, v in SIZES.items() if k != "intermediate_size"}
        | {"ffn_dim": 48, "word_embed_proj_dim": 32, "activation_function": "gelu"},
    ),
    "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60}),
    "t5": (
        "T5",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60}
        | {"eos_token_id": 2, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu"},
    ),
    "bart": (
        "Bart",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "vocab_size": 60,
            "max_position_embeddings": 64,
        }
        | {
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
        }
        | ENDS
        | {"decoder_start_token_id": 2},
    ),
    "vit": (
        "ViT",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
        }
        | {"image_size": 8, "patch_size": 4},
    ),
}
TEXT_FAMILIES = [name for name in FAMILIES if name != "vit"]
FEW = ("bert", "gpt2", "deberta_v2", "modernbert", "llama", "xlnet", "t5", "vit")
"""Of every form of attention one: tables, one way, by distance, windows, groups, two streams, two stacks, images."""
SOME, SOME_TEXT = zoo.daily(FAMILIES, FEW), zoo.daily(TEXT_FAMILIES, FEW)

TEXTS = ([3, 11, 12, 13, 14, 15, 16, 17, 2], [3, 21, 22, 23, 2], [3, 31, 32, 33, 34, 35, 2])
"""Special tokens at both ends; 2 ends a text where a model asks for that."""
WORDS = ([-1, 0, 1, 1, 2, 3, 3, 3, -1], [-1, 0, 0, 1, -1], [-1, 0, 1, 2, 3, 4, -1])


def make(family, *, head=None, num_labels=3, attn_implementation=None, **options):
    """A model in eval mode, for what its head predicts, and in the implementation that Transformers chooses for it."""
    torch.manual_seed(0)
    name, sizes = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(
        **{"pad_token_id": 0, "num_labels": num_labels} | sizes | options
    )
    usual = "ForImageClassification" if family == "vit" else "ForSequenceClassification"
    kind = getattr(transformers, name + (head or usual))
    model = kind._from_config(config, attn_implementation=attn_implementation).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.15)
    return model


@functools.cache
def shared(family: str):
    """The same, made once; do not change it."""
    return make(family)


def encode(model, texts=TEXTS, words=None) -> dict[str, torch.Tensor]:
    """Padded as the model asks, with the masks that a tokenizer gives; for images as many random ones as texts."""
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
    return adapter.prepare(encode(adapter.model, texts, words), tuple(range(len(texts))))


class Given:
    """A model's attention replaced from outside: each layer's map in turn."""

    def __init__(self, family, monkeypatch, **options):
        self.model = make(family, attn_implementation="eager", **options).double()
        module = importlib.import_module(type(self.model).__module__)
        monkeypatch.setattr(module, "eager_attention_forward", self.forward)

    def forward(self, module, query, key, value, attention_mask, **kwargs):
        weights = self.maps.pop(0)[None]
        return (weights @ value).transpose(1, 2).contiguous(), weights

    @torch.no_grad()
    def probs(self, ids, maps):
        self.maps = list(maps)
        found = self.model(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
        assert not self.maps
        return found
