"""Models that refuse a batch: one line whatever the tests, and no half-made folder."""

import pytest
import torch
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    Data2VecTextConfig,
    Data2VecTextForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

from hf_attnprobe import audit
from tests.helpers.error_messages import refuses


ROWS = [
    {"text": "the film was dull .", "label": 0},
    {"text": "a wonderful plot", "label": 1},
    {"text": "the plot was wonderful and the film too .", "label": 1},
]


def gpt2(tokenizer):
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2)
    return GPT2ForSequenceClassification(config)


def bart(tokenizer):
    """Reads at its end token, which one of the texts has as a word."""
    sizes = {"d_model": 16, "max_position_embeddings": 64}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 16}
    film = tokenizer.convert_tokens_to_ids("film")
    config = BartConfig(
        vocab_size=len(tokenizer),
        eos_token_id=film,
        pad_token_id=tokenizer.pad_token_id,
        forced_eos_token_id=None,
        **sizes,
    )
    return BartForSequenceClassification(config)


def saved(make, tokenizer, folder):
    torch.manual_seed(0)
    make(tokenizer).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


SAID = {
    gpt2: "refused a batch of .*padding token.*. Set model.config.pad_token_id",
    bart: "refused a batch of .*<eos> tokens. Leave out texts",
}


@pytest.mark.parametrize("make", SAID)
@pytest.mark.parametrize("tests", [None, ["permutation"], ["head_ablation"]])
def test_a_model_that_refuses_a_batch_is_one_line(make, tests, tokenizer, tmp_path):
    model = saved(make, tokenizer, tmp_path / "model")
    out = tmp_path / "out"
    with refuses(SAID[make]):
        audit(model, ROWS, tests, output_dir=out, progress=False)
    assert not out.exists()


def test_positions_that_begin_behind_the_padding_are_fewer(tokenizer):
    """Numbered on from the padding's id as RoBERTa's: long texts are cut, or would end in an IndexError."""
    torch.manual_seed(0)
    config = Data2VecTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Data2VecTextForSequenceClassification(config).eval()
    rows = [*ROWS, {"text": "the film was dull . " * 5, "label": 0}]
    report = audit((model, tokenizer), rows, ["head_ablation"], progress=False)
    assert report.provenance["truncated"] == 1
