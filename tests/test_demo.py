import pytest
import torch

from hf_attnprobe.demonstration import (
    DemoOptions,
    _rationale_mask,
    demo,
    rationale_scores,
    rationale_sentences,
)


def test_demo_ends_in_a_verdict(tmp_path):
    report, found, metrics = demo(
        tmp_path,
        progress=False,
        options=DemoOptions(encoder="mlp", n_examples=300, epochs=1),
    )
    assert report.n == 50 and "Verdict" in str(report)
    assert (tmp_path / "audit" / "report.md").exists() and 0 <= metrics[
        "test_accuracy"
    ] <= 1
    assert found.n == 50 and 0 < found.chance < 0.5
    assert any("deciding word first" in line for line in rationale_sentences(found))


def test_rationale_positions_are_word_numbers():
    content = torch.tensor(
        [[False, True, True, True, False], [False, True, False, True, False]]
    )
    assert _rationale_mask(content, [[0, 2], [1]]).tolist() == [
        [False, True, False, True, False],
        [False, False, False, True, False],
    ]


@pytest.mark.parametrize("attended", ["cue", "other"])
def test_a_model_that_attends_to_the_rationale_is_told_from_one_that_does_not(
    tmp_path, attended
):
    """The attention of a context-free model is set by hand: all on the word "wonderful", or all on "film"."""
    from datasets import Dataset

    from hf_attnprobe import (
        AttentionClassifierConfig,
        AttentionClassifierForSequenceClassification,
        build_tokenizer,
    )

    text = "the film was wonderful"
    tokenizer = build_tokenizer([text])
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer),
        embedding_size=4,
        encoder="none",
        attention="dot_product",
    )
    model = AttentionClassifierForSequenceClassification(config)
    word = tokenizer.convert_tokens_to_ids("wonderful" if attended == "cue" else "film")
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()[word] = 100.0
        model.attention_classifier.attention.query.weight.fill_(1.0)
    examples = Dataset.from_dict(
        {"example_id": [0], "text": [text], "label": [1], "rationale": [[3]]}
    )
    found = rationale_scores(model, tokenizer, examples)
    assert (
        found.top_in_rationale["attention"] == (attended == "cue")
        and found.chance == 0.25
    )
