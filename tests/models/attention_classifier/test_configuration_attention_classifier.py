"""Configurations of attention classifiers: those that make no model are refused."""

import math

import pytest

from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig


WIDE = {"embedding_size": 9, "encoder": "mlp", "encoder_size": 8}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder": "rnn"}, "one of bilstm, bigru, orthogonal_lstm, cnn, mlp, none, got 'rnn'"),
        ({"attention": "self"}, "one of additive, gated, dot_product, uniform, guided, got 'self'"),
        ({"num_labels": 1}, "num_labels must be at least 2"),
        ({"encoder": "cnn", "kernel_sizes": [2, 3, 5, 7]}, "kernel_sizes must be odd"),
        ({"encoder": "cnn", "kernel_sizes": []}, "kernel_sizes must be odd"),
        (
            {"encoder": "cnn", "encoder_size": 10},
            "a multiple of 4, the number of kernel sizes, got 10",
        ),
        ({"inputs": "features"}, "needs the size of an instance's vector as feature_size"),
        ({"feature_size": 8}, "Set inputs='features', or leave out feature_size"),
        (
            {"inputs": "features", "feature_size": 8, "mlm_weight": 1.0},
            "mlm_weight can only be used in a model for texts",
        ),
        ({"query_encoder": True, "attention": "gated"}, "Set attention='additive'"),
        ({"encoder_size": 0}, "encoder_size must be at least 1, got 0"),
        ({"bos_token_id": "<s>"}, "bos_token_id must be a token id"),
        ({"sep_token_id": [2]}, "sep_token_id must be a token id"),
        ({"pad_token_id": -1}, "pad_token_id must be a token id"),
        ({"embedding_size": -1}, "embedding_size must be at least 1, got -1"),
        (
            {"query_encoder": True, "hierarchical": True, "sep_token_id": 4},
            "Set hierarchical=False",
        ),
        ({"query_encoder": True, "residual_connection": "concat"}, "as wide as the query"),
        ({"answer_token_ids": [5, 6]}, "query_encoder=True"),
        ({"query_encoder": True, "answer_token_ids": [5, 6, 7]}, "one id for each of the 2"),
        (WIDE | {"residual_connection": "residual"}, "Set embedding_size=8"),
        (
            WIDE | {"tying": 1.0},
            "tying needs states and word vectors of the same width, got widths 8 and 9",
        ),
        (WIDE | {"tying": 1.0, "residual_connection": "concat"}, "same width, got widths 17 and 9"),
        ({"residual_connection": "add"}, "one of none, concat, residual, got 'add'"),
        ({"conicity_weight": -1.0}, "conicity_weight must be at least 0 and finite, got -1.0"),
        ({"tying": math.nan}, "tying must be at least 0 and finite, got nan"),
        ({"mlm_rate": 1.5}, "mlm_rate must be at least 0 and below 1"),
        ({"mlm_weight": 1.0, "mlm_rate": 0.0}, "mlm_weight needs an mlm_rate above 0"),
        ({"mlm_weight": 1.0, "unk_token_id": None}, "and an unk_token_id"),
        ({"conicity_weight": 1.0, "hierarchical": True}, "Set hierarchical=False"),
        ({"sentence_dropout": -0.1}, "sentence_dropout must be at least 0 and below 1, got -0.1"),
        ({"sentence_dropout": 1.0}, "sentence_dropout must be at least 0 and below 1, got 1.0"),
    ],
)
def test_configurations_that_make_no_model(options, message):
    with pytest.raises(ValueError, match=message) as error:
        AttentionClassifierConfig(**options)
    assert "\n" not in str(error.value)


def test_only_models_for_bags_save_the_fields_for_bags():
    assert not {"inputs", "feature_size"} & AttentionClassifierConfig().to_dict().keys()
    config = AttentionClassifierConfig(inputs="features", feature_size=7, attention="gated")
    loaded = AttentionClassifierConfig(**config.to_dict())
    assert (loaded.inputs, loaded.feature_size, loaded.embedding_size) == ("features", 7, 7)
