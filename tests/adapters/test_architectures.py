"""Classifiers and language models of every family: some in every run, all of them when asked (``-m slow``)."""

import pytest
import transformers

from hf_attnprobe.adapters import wrap
from tests import architectures_table as table
from tests.helpers import tiny_models
from tests.helpers.architecture_checks import REFUSED, WORKS
from tests.helpers.transformer_families import (
    image_classifiers,
    language_models,
    text_classifiers,
    tiny_model,
)


ALL = {**text_classifiers(), **image_classifiers(), **language_models()}
SHORT = {
    "GptOssForSequenceClassification": (WORKS, ""),  # a sink beside the keys
    "CLIPForImageClassification": (WORKS, ""),  # a configuration of two parts
    "ResNetForImageClassification": (REFUSED, "found none in ResNet"),
    "ImageGPTForImageClassification": (REFUSED, "must not depend on padding"),
    "Data2VecVisionForImageClassification": (WORKS, ""),  # patches in a tuple
    "CanineForSequenceClassification": (REFUSED, "token embedding table"),
    "IBertForSequenceClassification": (WORKS, ""),  # its weights by keyword
    "CTRLForSequenceClassification": (WORKS, ""),  # scales its embeddings in place
    "SqueezeBertForSequenceClassification": (WORKS, ""),  # its blocks are called past hooks
    "JambaForCausalLM": (WORKS, ""),  # a hybrid
    "RobertaForCausalLM": (WORKS, ""),  # positions begin behind the padding token's id
    "MambaForCausalLM": (REFUSED, "found none in MambaForCausalLM"),
    "XLNetLMHeadModel": (REFUSED, "tokens attend to later tokens"),
    "ProphetNetForCausalLM": (REFUSED, "the answer's last token changed"),
    "GotOcr2ForConditionalGeneration": (REFUSED, "also reads images"),
}
FEW = SHORT.keys() - {
    "GptOssForSequenceClassification",
    "CLIPForImageClassification",
    "IBertForSequenceClassification",
    "Data2VecVisionForImageClassification",
}
"""Those that take a second or two."""


@pytest.mark.parametrize("name", tiny_models.daily(SHORT, FEW))
def test_a_class_works_or_says_why_not(name):
    result, said = SHORT[name]
    found = table.outcome(name, ALL[name])
    assert found[0] == result and said in found[1], found


def test_hybrids_and_layers_with_two_attentions_are_named():
    def notes(name):
        return wrap(tiny_model(name, ALL[name])).describe_unusual_layers()

    (hybrid,) = notes("MiniMaxForSequenceClassification")
    assert "1 of 2 in model.layers have no softmax attention (1)" in hybrid
    (twice,) = notes("DiffLlamaForSequenceClassification")
    assert "has 2 attentions, counted as separate layers: layer.0, layer.1" in twice
    for plain in ("Albert", "T5", "Bert"):
        assert notes(f"{plain}ForSequenceClassification") == []


def test_the_page_is_the_table_of_all_classes():
    """What docs/architectures.md says is what was run, of this Transformers, and nothing is wrong."""
    version, results = table.stored()
    assert table.PAGE.read_text() == table.page(version, results)
    if version == transformers.__version__:
        assert results.keys() == ALL.keys()
    assert [name for name, said in results.items() if said[0] == "wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_every_class_is_as_the_page_says(name):
    version, results = table.stored()
    if version != transformers.__version__:
        pytest.skip(f"the page is of Transformers {version}; write it anew")
    assert table.outcome(name, ALL[name]) == results[name]
