"""Compare hierarchical models with a plain loop over texts, sentences and words."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from tests.helpers import tiny_models
from tests.models.attention_classifier.test_modeling_attention_classifier import encoded


SEP = 4
KINDS = [(e, n) for e in ("bigru", "cnn", "none", "bilstm", "mlp") for n in (2, 5)]
TEXTS = [[[5, 6, 7, 7], [8], [9, 5, 10]], [[5]], [[7, 9, 8, 8, 6]], [[8, 8], [6, 5]]]


def make(encoder="bigru", n_labels=2, **options):
    sizes = {"embedding_size": 6, "kernel_sizes": (3, 5)}
    sizes |= {"encoder": encoder, "num_labels": n_labels, "hierarchical": True}
    return tiny_models.classifier(**sizes | {"sep_token_id": SEP} | options).double()


def ids_of(text):
    """<sos> words <sep> words <eos>."""
    words = [i for sentence in text for i in [*sentence, SEP]]
    return [2, *words[:-1], 3]


def pad(rows, n_keys=None):
    n_keys = n_keys or max(map(len, rows))
    ids = torch.tensor([row + [0] * (n_keys - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def attended(attention, states):
    """Weights and their sum of states: u = tanh(W h + b), the score is u · context vector (Yang et al. 2016, eq. 5 to 7)."""
    u = torch.tanh(states @ attention.projection.weight.t() + attention.projection.bias)
    weights = (u @ attention.query.weight[0]).softmax(0)
    return weights, weights @ states


@torch.no_grad()
def plain(model, text):
    """Logits, attention of words per sentence, attention of sentences of one text [[word, …], …]."""
    base, kind = model.attention_classifier, model.config.encoder
    result = [
        attended(base.attention, encoded(base.encoder, kind, base.embeddings.weight[ids]))
        for ids in text
    ]
    vectors = torch.stack([vector for _, vector in result])
    weights, context = attended(
        base.sentences.attention, encoded(base.sentences.encoder, kind, vectors)
    )
    logits = model.classifier.weight @ context + model.classifier.bias
    return (
        functional.pad(logits, (1, 0)) if model.config.num_labels == 2 else logits,
        [w for w, _ in result],
        weights,
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_a_padded_batch_equals_the_plain_loop(kind, training):
    """Also while training, when recurrent layers on a CPU run each direction by itself."""
    model = make(*kind).train(training)
    outputs = model(**pad([ids_of(text) for text in TEXTS], n_keys=17), output_attentions=True)
    words, sentences = outputs.attentions
    assert words.shape == (4, 1, 3, 17) and sentences.shape == (4, 1, 1, 3)
    for row, text in enumerate(TEXTS):
        logits, of_words, of_sentences = plain(model, text)
        torch.testing.assert_close(outputs.logits[row], logits, atol=1e-6, rtol=0)
        torch.testing.assert_close(
            sentences[row, 0, 0], functional.pad(of_sentences, (0, 3 - len(text)))
        )
        expected, place = torch.zeros(3, 17, dtype=torch.float64), 1
        for number, weights in enumerate(of_words):
            expected[number, place : place + len(weights)] = weights
            place += len(weights) + 1
        torch.testing.assert_close(words[row, 0], expected)
        assert (words[row, 0] > 0).equal(expected > 0)  # exactly 0 elsewhere


@pytest.mark.parametrize(
    "encoder", tiny_models.daily(["bigru", "cnn", "none"], tiny_models.FEW_ENCODERS)
)
def test_the_attention_size_of_the_papers(encoder):
    model = make(encoder, attention_size=100, encoder_size=50)
    for attention in (
        model.attention_classifier.attention,
        model.attention_classifier.sentences.attention,
    ):
        assert attention.projection.weight.shape[0] == 100
        assert attention.query.weight.shape == (1, 100)
    assert model.config.hidden_size == {"bigru": 100, "cnn": 50, "none": 6}[encoder]


texts = st.lists(st.lists(st.integers(5, 11), min_size=1, max_size=6), min_size=1, max_size=5)


@settings(max_examples=30)
@given(
    batch=st.lists(texts, min_size=1, max_size=5),
    extra=st.integers(0, 7),
    encoder=st.sampled_from(["bigru", "cnn"]),
)
def test_neither_padding_nor_batch_nor_order_matter(batch, extra, encoder):
    model = make(encoder, 3)
    rows = [ids_of(text) for text in batch]
    with torch.no_grad():
        together = model(**pad(rows, max(map(len, rows)) + extra)).logits
        backward = model(**pad(rows[::-1])).logits.flip(0)
    torch.testing.assert_close(together, backward, atol=1e-12, rtol=0)
    for row, text in enumerate(batch):
        torch.testing.assert_close(together[row], plain(model, text)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    "encoder", tiny_models.daily(["bigru", "cnn", "none"], tiny_models.FEW_ENCODERS)
)
def test_separators_without_words_between_them_enclose_no_sentence(encoder):
    model = make(encoder)
    bare, full = [2, 5, 6, SEP, 7, 3], [2, SEP, 5, 6, SEP, SEP, SEP, 7, SEP, 3]
    one, other = (model(**pad([row]), output_attentions=True) for row in (bare, full))
    torch.testing.assert_close(one.logits, other.logits, atol=1e-14, rtol=0)
    assert one.attentions[1].shape == other.attentions[1].shape == (1, 1, 1, 2)


@pytest.mark.parametrize("rows", [[[2, 3]], [[2, SEP, 3], [2, 5, 3]]])
def test_a_text_without_words_gets_the_bias(rows):
    model = make(n_labels=3)
    outputs = model(**pad(rows), output_attentions=True)
    torch.testing.assert_close(outputs.logits[0], model.classifier.bias)
    assert (outputs.attentions[0][0] == 0).all() and (outputs.attentions[1][0] == 0).all()


def test_embeddings_in_place_of_ids_are_one_sentence():
    model = make()
    vectors = model.get_input_embeddings().weight[torch.tensor([[2, 5, 6, 7, 3]])]
    torch.testing.assert_close(model(inputs_embeds=vectors).logits[0], plain(model, [[5, 6, 7]])[0])


@pytest.mark.parametrize("encoder", ["bilstm", "bigru"])
@pytest.mark.parametrize("hierarchical", [False, True])
def test_training_and_evaluation_have_the_same_gradients(encoder, hierarchical):
    """Training on a CPU goes another way through recurrent layers."""
    model, result = make(encoder), []
    model.config.hierarchical = hierarchical
    for training in (False, True):
        model.train(training).zero_grad()
        model(
            **pad([ids_of(text) for text in TEXTS]), labels=torch.tensor([0, 1, 1, 0])
        ).loss.backward()
        result.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
    assert result[0].keys() == result[1].keys() and len(result[0]) > 8
    for name in result[0]:
        torch.testing.assert_close(result[0][name], result[1][name], atol=1e-12, rtol=1e-9)


def test_a_gru_starts_as_the_papers():
    """Input weights U(±√(6 / (fan_in + fan_out))), recurrent weights orthogonal, no bias."""
    model = tiny_models.classifier(9, encoder="bigru", encoder_size=50, embedding_size=200)
    weights = dict(model.attention_classifier.encoder.gru.named_parameters())
    bound = (6 / (200 + 150)) ** 0.5
    for suffix in ("l0", "l0_reverse"):
        given, recurrent = (weights[f"weight_ih_{suffix}"], weights[f"weight_hh_{suffix}"])
        assert given.abs().max() <= bound and given.abs().max() > 0.99 * bound
        assert given.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
        assert abs(given.mean().item()) < 0.005
        torch.testing.assert_close(recurrent.t() @ recurrent, torch.eye(50), atol=1e-5, rtol=0)
        assert not weights[f"bias_ih_{suffix}"].any() and not weights[f"bias_hh_{suffix}"].any()


@pytest.mark.parametrize("name", ["embedding_dropout", "sentence_dropout", "logit_dropout"])
def test_dropout_acts_while_training_only(name):
    model, batch = make("none", 5, **{name: 0.5}), pad([ids_of(text) for text in TEXTS])
    expected = make("none", 5)(**batch).logits
    torch.testing.assert_close(model(**batch).logits, expected, rtol=0, atol=0)
    model.train()
    one, other = model(**batch).logits, model(**batch).logits
    assert not torch.equal(one, other)
    if name == "logit_dropout":  # after the linear layer: a logit is 0 or twice what it was
        plain_logits = model.eval()(**batch).logits
        assert ((one == 0) | torch.isclose(one, 2 * plain_logits)).all() and (one == 0).any()


def test_flat_models_have_no_weights_of_sentences_and_attend_to_no_separator():
    model = tiny_models.classifier(sep_token_id=SEP)
    assert not any("sentences" in name for name in model.state_dict())
    attention = model(**pad([[2, 5, SEP, 6, 3]]), output_attentions=True).attentions[0][0, 0, 0]
    assert attention[2] == 0 and attention[[1, 3]].sum().item() == pytest.approx(1)
