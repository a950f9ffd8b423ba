"""Compare the forward pass with PyTorch's own layers, one unpadded text at a time."""

import itertools

import pytest
import torch
from torch.nn import functional

from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierModel,
)
from tests.helpers import tiny_models


ATTENTIONS = ("additive", "dot_product", "uniform")
KINDS = [*itertools.product(tiny_models.ENCODERS, ATTENTIONS, (2, 4))]
TEXTS = [[5, 6, 7, 7, 8, 9, 5], [5], [7, 9, 8], [8, 8]]  # content ids, between <sos> 2 and <eos> 3


def make(encoder="bilstm", attention="additive", n_labels=2, **options):
    options = {"encoder": encoder, "attention": attention, "num_labels": n_labels} | options
    return tiny_models.classifier(**{"embedding_size": 6} | options).double()


def pad(texts, n_keys=None):
    """input_ids and attention_mask, [batch, keys], padded on the right."""
    rows = [torch.tensor([2, *text, 3]) for text in texts]
    n_keys = n_keys or max(map(len, rows))
    ids = torch.stack([functional.pad(row, (0, n_keys - len(row))) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def encoded(encoder, kind, vectors):
    """States [length, hidden] of one unpadded sequence of vectors, by torch's own layers."""
    if kind in ("bigru", "bilstm"):
        own = encoder.gru if kind == "bigru" else encoder.lstm
        rnn = type(own)(own.input_size, own.hidden_size, bidirectional=True).double()
        rnn.load_state_dict(own.state_dict())
        return rnn(vectors)[0]
    if kind == "cnn":
        maps = [
            functional.conv1d(vectors.t(), c.weight, c.bias, padding=c.weight.shape[-1] // 2)
            for c in encoder.convolutions
        ]
        return torch.cat(maps).relu().t()
    if kind == "mlp":
        return torch.tanh(vectors @ encoder.linear.weight.t() + encoder.linear.bias)
    return vectors


def expected_attention(model, states):
    """Attention over the content of one unpadded text: all but the first and the last state."""
    attention, content = model.attention_classifier.attention, states[1:-1]
    if model.config.attention == "additive":
        linear = content @ attention.projection.weight.t() + attention.projection.bias
        scores = torch.tanh(linear) @ attention.query.weight[0]
    elif model.config.attention == "dot_product":
        scores = content @ attention.query.weight[0] / states.shape[1] ** 0.5
    else:
        scores = torch.zeros(len(content), dtype=states.dtype)
    return functional.pad(scores.exp() / scores.exp().sum(), (1, 1))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_text_of_a_padded_batch_equals_the_oracle_on_it_alone(kind):
    model = make(*kind)
    with torch.no_grad():
        outputs = model(**pad(TEXTS, n_keys=13), output_attentions=True, output_hidden_states=True)
        assert outputs.logits.shape == (4, kind[2])
        assert [a.shape for a in outputs.attentions] == [(4, 1, 1, 13)]
        for row, text in enumerate(TEXTS):
            vectors = model.attention_classifier.embeddings.weight[[2, *text, 3]]
            states = encoded(model.attention_classifier.encoder, kind[0], vectors)
            attention = expected_attention(model, states)
            logits = model.classifier.weight @ (attention @ states) + model.classifier.bias
            logits = functional.pad(logits, (1, 0)) if kind[2] == 2 else logits
            result = outputs.attentions[0][row, 0, 0]
            torch.testing.assert_close(outputs.hidden_states[0][row, : len(text) + 2], states)
            torch.testing.assert_close(result, functional.pad(attention, (0, 11 - len(text))))
            assert (result > 0).tolist() == [
                False,
                *[True] * len(text),
                *[False] * (12 - len(text)),
            ]
            torch.testing.assert_close(outputs.logits[row], logits)


@pytest.mark.parametrize("kind", tiny_models.daily(KINDS, tiny_models.FEW_ENCODERS), ids=str)
def test_what_stands_under_the_padding_changes_nothing(kind):
    model, batch = make(*kind), pad(TEXTS, n_keys=11)
    other = batch | {
        "input_ids": batch["input_ids"].where(batch["attention_mask"].bool(), torch.tensor(7))
    }
    torch.testing.assert_close(model(**other).logits, model(**batch).logits, rtol=0, atol=0)


def test_the_loss_is_the_papers_binary_cross_entropy():
    model, labels = make(), torch.tensor([0, 1, 1, 0])
    outputs = model(**pad(TEXTS), labels=labels)
    z = outputs.logits[:, 1]
    torch.testing.assert_close(
        outputs.loss, functional.binary_cross_entropy_with_logits(z, labels.double())
    )
    halved = model(
        **pad(TEXTS), labels=labels, num_items_in_batch=8
    ).loss  # how the Trainer accumulates gradients
    torch.testing.assert_close(halved, outputs.loss / 2)


def test_the_loss_of_more_labels_is_cross_entropy():
    model, labels = make(n_labels=4), torch.tensor([3, 0, 2, 1])
    outputs = model(**pad(TEXTS), labels=labels)
    torch.testing.assert_close(outputs.loss, functional.cross_entropy(outputs.logits, labels))


@pytest.mark.parametrize("kind", tiny_models.daily(KINDS, tiny_models.FEW_ENCODERS), ids=str)
def test_embeddings_in_place_of_ids(kind):
    model, batch = make(*kind), pad(TEXTS)
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    by_ids = model(**batch, output_attentions=True)
    by_embeddings = model(
        inputs_embeds=embeddings, attention_mask=batch["attention_mask"], output_attentions=True
    )
    assert torch.equal(by_ids.logits, by_embeddings.logits)
    assert torch.equal(by_ids.attentions[0], by_embeddings.attentions[0])


def test_without_a_mask_the_padding_id_is_the_mask():
    model, batch = make(), pad(TEXTS)
    assert torch.equal(model(batch["input_ids"]).logits, model(**batch).logits)
    embeddings = model.get_input_embeddings()(torch.tensor([[2, 5, 6, 3]]))
    assert torch.equal(
        model(inputs_embeds=embeddings).logits, model(torch.tensor([[2, 5, 6, 3]])).logits
    )


@pytest.mark.parametrize(
    "inputs", [{}, {"input_ids": torch.tensor([[2, 3]]), "inputs_embeds": torch.zeros(1, 2, 6)}]
)
def test_exactly_one_form_of_input(inputs):
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        make()(**inputs)


@pytest.mark.parametrize("kind", tiny_models.daily(KINDS, tiny_models.FEW_ENCODERS), ids=str)
def test_an_empty_text_has_no_attention_and_the_logits_of_the_bias(kind):
    model = make(*kind)
    outputs = model(**pad([[], [5, 6]]), output_attentions=True)
    assert (outputs.attentions[0][0] == 0).all()
    bias = functional.pad(model.classifier.bias, (1, 0)) if kind[2] == 2 else model.classifier.bias
    assert torch.equal(outputs.logits[0], bias)


@pytest.mark.parametrize(
    "encoder", tiny_models.daily(["bilstm", "cnn", "mlp", "none"], tiny_models.FEW_ENCODERS)
)
def test_a_row_of_nothing_but_padding_is_finite(encoder):
    batch = pad([[5, 6]])
    batch = {name: functional.pad(values, (0, 0, 0, 1)) for name, values in batch.items()}
    outputs = make(encoder)(**batch, output_attentions=True)
    assert outputs.logits.isfinite().all() and (outputs.attentions[0][1] == 0).all()


def on_the_left(batch):
    lengths = batch["attention_mask"].sum(-1).tolist()
    return {
        name: torch.stack([row.roll(len(row) - n) for row, n in zip(values, lengths, strict=True)])
        for name, values in batch.items()
    }


@pytest.mark.parametrize(
    "encoder", tiny_models.daily(["bilstm", "cnn", "mlp", "none"], tiny_models.FEW_ENCODERS)
)
def test_other_types_of_masks_and_weights_and_padding_on_the_left(encoder):
    model, batch = make(encoder), pad(TEXTS)
    expected = model(**batch).logits
    for kind in (torch.bool, torch.float32, torch.int32):
        other = model(batch["input_ids"], batch["attention_mask"].to(kind))
        assert torch.equal(other.logits, expected)
    if encoder == "bilstm":  # which would read it
        with pytest.raises(ValueError, match="expected padding on the right only"):
            model(**on_the_left(batch))
    else:
        torch.testing.assert_close(model(**on_the_left(batch)).logits, expected)
    for dtype in (torch.bfloat16, torch.float16):
        outputs = make(encoder).to(dtype)(**batch, output_attentions=True)
        assert outputs.logits.dtype == dtype and outputs.logits.isfinite().all()
        assert (outputs.attentions[0][:, 0, 0, 0] == 0).all()


def test_no_start_no_end_no_padding_token():
    model = make(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    attention = model(torch.tensor([[5, 6, 2, 3]]), output_attentions=True).attentions[0]
    assert (attention > 0).all()
    embeddings = model.get_input_embeddings()(torch.tensor([[5, 6, 2, 3]]))
    assert torch.equal(
        model(inputs_embeds=embeddings, output_attentions=True).attentions[0], attention
    )


def test_attentions_come_on_request_only():
    model, batch = make(), pad(TEXTS)
    assert model(**batch).attentions is None and model(**batch).hidden_states is None
    model.config.output_attentions = True
    assert model(**batch).attentions[0].shape == (4, 1, 1, 9)
    assert model(**batch, output_attentions=False).attentions is None


@pytest.mark.parametrize("wanted", ["argument", "config"])
def test_a_tuple_on_request(wanted):
    model, batch = make(), pad(TEXTS)
    expected = model(**batch, labels=torch.tensor([0, 1, 0, 1]))
    model.config.return_dict = wanted != "config"
    options = {"return_dict": False} if wanted == "argument" else {}
    loss, logits = model(**batch, labels=torch.tensor([0, 1, 0, 1]), **options)
    assert torch.equal(loss, expected.loss) and torch.equal(logits, expected.logits)


@pytest.mark.parametrize("kind", tiny_models.daily(KINDS, tiny_models.FEW_ENCODERS), ids=str)
def test_every_parameter_gets_a_gradient(kind):
    model = make(*kind)
    model(**pad(TEXTS), labels=torch.tensor([0, 1, 0, 1])).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    assert (model.get_input_embeddings().weight.grad[0] == 0).all()  # the padding's


def test_no_buffer_is_left_out_of_the_checkpoint():
    """Non-persistent buffers come back from ``from_pretrained`` as uninitialised memory."""
    for kind in KINDS:
        model = make(*kind)
        persistent = model.state_dict().keys()
        assert not [name for name, _ in model.named_buffers() if name not in persistent]
        for module in model.modules():  # plain attributes stay on the meta device
            assert not any(isinstance(value, torch.Tensor) for value in vars(module).values())


def test_a_fresh_model_starts_from_pytorchs_own_distributions():
    config = AttentionClassifierConfig(
        vocab_size=5000, embedding_size=20, encoder="bilstm", encoder_size=64
    )
    model = AttentionClassifierModel(config)
    vectors = model.embeddings.weight
    assert (vectors[0] == 0).all() and vectors[1:].std().item() == pytest.approx(1, rel=0.02)
    for parameter in model.encoder.lstm.parameters():
        assert 0.9 / 8 < parameter.abs().max() <= 1 / 8


def test_the_kernels_bind_the_width_of_a_cnn_only():
    for encoder in ("bilstm", "mlp", "none"):
        assert make(encoder, encoder_size=9)(**pad(TEXTS)).logits.shape == (4, 2)


def test_the_vocabulary_can_grow():
    model = make()
    before = model(**pad(TEXTS)).logits
    model.resize_token_embeddings(20)
    assert model.config.vocab_size == 20
    torch.testing.assert_close(model(**pad(TEXTS)).logits, before)
