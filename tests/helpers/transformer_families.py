"""A tiny random classifier of every family of the installed Transformers, made from its default configuration."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import configuration_auto, modeling_auto


N_WORDS, N_LABELS = 60, 3
PAD, BEGIN, END, UNKNOWN, MASK = range(5)
"""Ids of the special tokens, the same in every family."""

SIZES = {
    32: "hidden_size embedding_size d_model n_embd dim emb_dim word_embed_proj_dim",
    2: "num_hidden_layers num_layers num_decoder_layers encoder_layers decoder_layers "
    "num_key_value_heads n_layer n_layers num_experts_per_tok",
    4: "num_attention_heads encoder_attention_heads decoder_attention_heads num_heads n_head "
    "n_heads num_experts num_local_experts n_routed_experts patch_size",
    8: "head_dim d_kv",
    48: "intermediate_size encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff d_inner n_inner "
    "hidden_dim dff",
    64: "max_position_embeddings n_positions max_seq_len",
    24: "moe_intermediate_size shared_expert_intermediate_size",
    16: "image_size",
    3: "num_channels",
}
"""What every configuration gets that has a field of this name."""
SMALL: dict[str, Any] = {name: size for size, names in SIZES.items() for name in names.split()}
SMALL |= {"vocab_size": N_WORDS}

SPECIAL = {
    "pad_token_id": PAD,
    "bos_token_id": BEGIN,
    "cls_token_id": BEGIN,
    "eos_token_id": END,
    "sep_token_id": END,
    "unk_token_id": UNKNOWN,
    "mask_token_id": MASK,
    "decoder_start_token_id": PAD,
}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "qk_head_dim": 16,
    "v_head_dim": 8,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
}
"""Attention through a latent, as DeepSeek's."""
GROUPED = {"n_group": 1, "topk_group": 1}
DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
"""Every second layer without softmax, as Qwen3-Next's."""
MAMBA = {"num_key_value_heads": 4, "mamba_d_state": 8, "mamba_dt_rank": 4}
STAGES: dict[str, Any] = {"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 16}
WINDOWS = STAGES | {"image_size": 32, "patch_size": 4, "window_size": 2, "num_layers": 2}
FOUR = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 32]}

OF_FAMILY: dict[str, dict[str, Any]] = {
    "axk1": LATENT | GROUPED | {"mlp_layer_types": ["dense", "sparse"]},
    "axk2": LATENT
    | {
        "mlp_layer_types": ["dense", "sparse"],
        "index_topk": 4,
        "index_head_dim": 8,
        "index_n_heads": 2,
        "gated_norm_rank": 4,
        "layer_types": ["indexed_attention"] * 2,
    },
    "bit": {"depths": [1, 1, 1, 1], "hidden_sizes": [128] * 4, "embedding_size": 32},
    "canine": {"num_hash_buckets": 64, "local_transformer_stride": 8},
    "cohere_compass_text": {
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
    },
    "convnext": FOUR,
    "convnextv2": FOUR,
    "cvt": {"embed_dim": [8, 24, 24], "depth": [1, 2, 3]},
    "deepseek_v2": LATENT | GROUPED | {"first_k_dense_replace": 1},
    "deepseek_v3": LATENT | GROUPED | {"first_k_dense_replace": 1},
    "deepseek_v32": LATENT | GROUPED | {"first_k_dense_replace": 1},
    "codegen": {"rotary_dim": 8, "n_ctx": 64},
    "cpmant": {"dim_head": 8, "prompt_length": 0},
    "glm4_moe_lite": LATENT | GROUPED,
    "glm_moe_dsa": LATENT | GROUPED,
    "longcat_flash": LATENT | GROUPED,
    "youtu": LATENT,
    "kimi_linear": LATENT | DELTA,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "qwen3_5_moe_text": DELTA,
    "qwen4_exp_text": DELTA,
    "bailing_hybrid": LATENT | DELTA,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 32},
    "donut-swin": WINDOWS,
    "efficientnet": {"image_size": 32, "width_coefficient": 0.1, "hidden_dim": 128},
    "esmc": {"num_key_value_heads": 4},
    "focalnet": {
        "image_size": 32,
        "embed_dim": 8,
        "depths": [1, 1],
        "focal_levels": [1, 1],
        "focal_windows": [3, 3],
    },
    "funnel": {"block_sizes": [1, 1], "block_repeats": [1, 1], "d_head": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 8},
    "hiera": {
        "embed_dim": 8,
        "image_size": [64, 64],
        "depths": [1, 1, 1, 1],
        "num_heads": [1, 2, 4, 4],
    },
    "jamba": MAMBA | {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 8, "max_2d_position_embeddings": 64},
    "lilt": {"hidden_size": 48},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 8},
    "markuplm": {
        "xpath_unit_hidden_size": 4,
        "max_depth": 4,
        "max_xpath_subs_unit_embeddings": 1024,
    },
    "minicpm3": LATENT,
    "minimax": {"layer_types": ["full_attention", "linear_attention"], "block_size": 8},
    "mistral4": LATENT | GROUPED | {"head_dim": 16},
    "perceiver": {
        "num_latents": 4,
        "d_latents": 32,
        "num_self_attends_per_block": 1,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 1,
    },
    "poolformer": FOUR,
    "pvt": {"hidden_sizes": [8, 16, 20, 32], "depths": [1, 1, 1, 1], "image_size": 32},
    "pvt_v2": {"hidden_sizes": [8, 16, 20, 32], "depths": [1, 1, 1, 1], "image_size": 32},
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA,
    "reformer": {
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 16],
        "attention_head_size": 8,
        "attn_layers": ["local", "lsh"],
        "feed_forward_size": 48,
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "regnet": FOUR | {"embedding_size": 8, "groups_width": 8},
    "resnet": FOUR | {"embedding_size": 8},
    "roc_bert": {
        "pronunciation_embed_dim": 8,
        "shape_embed_dim": 8,
        "pronunciation_vocab_size": N_WORDS,
        "shape_vocab_size": N_WORDS,
    },
    "segformer": {"hidden_sizes": [8, 16, 20, 32], "depths": [1, 1, 1, 1]},
    "swin": WINDOWS,
    "swinv2": WINDOWS | {"pretrained_window_sizes": [0, 0]},
    "xlnet": {"d_head": 8, "mem_len": None},
    "zamba": MAMBA
    | {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": MAMBA
    | {
        "layers_block_type": ["linear_attention", "hybrid"],
        "hybrid_layer_ids": [1],
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "chunk_size": 8,
        "adapter_rank": 4,
        "kv_channels": 8,
        "num_query_groups": 4,
        "num_mem_blocks": 1,
    },
}
"""What else a family needs to be small, by model type."""


def text_classifiers() -> dict[str, str]:
    """Class names of all ``…ForSequenceClassification``, and the model type of each."""
    return _classes(modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)


def image_classifiers() -> dict[str, str]:
    """Class names of all ``…ForImageClassification``, and the model type of each."""
    return _classes(modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES)


def language_models() -> dict[str, str]:
    """Class names of all causal language models, and the model type of each."""
    return _classes(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _classes(mapping: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for model_type, names in mapping.items():
        for name in (names,) if isinstance(names, str) else names:
            found.setdefault(name, model_type)
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def tiny_config(model_type: str, **fields: Any) -> PreTrainedConfig:
    """The default configuration of a family, made small, but for some fields."""
    kind = getattr(transformers, configuration_auto.CONFIG_MAPPING_NAMES[model_type])
    return kind(**_small(kind()) | {"num_labels": N_LABELS} | fields)


def _small(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields that make a configuration small, those of its parts too."""
    own = OF_FAMILY.get(config.model_type, {})
    defaults = {**config.to_dict(), **SPECIAL}
    other_names = set(config.attribute_map)
    given = {}
    for name, value in (SMALL | SPECIAL).items():
        name = config.attribute_map.get(name, name)
        if name in defaults and not isinstance(defaults[name], list | tuple | dict):
            given[name] = value
    for name, part in vars(config).items():
        if isinstance(part, PreTrainedConfig):
            given[name] = _small(part)
    return {k: v for k, v in (given | own).items() if k not in other_names or k in own}


def tiny_language_model(class_name: str, model_type: str, **options: Any) -> PreTrainedModel:
    """A causal language model; the language part of a configuration, of BERT and its kin a decoder."""
    config = tiny_config(model_type)
    if class_name.endswith("ForCausalLM"):
        config = config.get_text_config()
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    return tiny_model(class_name, model_type, config=config, **options)


def tiny_model(
    class_name: str, model_type: str, *, config: PreTrainedConfig | None = None, **options: Any
) -> PreTrainedModel:
    """A model in eval mode, its weights large enough that attention is far from uniform."""
    torch.manual_seed(0)
    config = config or tiny_config(model_type)
    kind = getattr(transformers, class_name)
    model = kind._from_config(config, **options).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1 and weight.is_floating_point():
                weight.normal_(0, 0.15, generator=generator)
    return model.float()
