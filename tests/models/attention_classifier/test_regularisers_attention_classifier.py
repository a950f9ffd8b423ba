"""Compare the penalties with computations by hand, and test their effect on training and checkpoints."""

import copy
import math

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification

from hf_attnprobe.models.attention_classifier.regularisers_attention_classifier import (
    compute_conicity,
    compute_tying_penalty,
    draw_masked_words,
)
from hf_attnprobe.training.procedures import make_paper_loss
from tests.helpers import tiny_models


IDS = torch.tensor([[2, 5, 6, 7, 7, 8, 1, 3], [2, 9, 8, 3, 0, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0, 0]])
CONTENT = torch.isin(IDS, torch.tensor([0, 2, 3]), invert=True)
LABELS = torch.tensor([1, 0, 1])
PENALTIES = [{"tying": 0.5}, {"conicity_weight": 0.7}, {"mlm_weight": 2.0, "mlm_rate": 0.6}]
CHANGES = [*PENALTIES, {"residual_connection": "concat"}, {"residual_connection": "residual"}]
CHANGES += [{"encoder": "orthogonal_lstm"}]
CHANGES += [{"encoder": "cnn", "encoder_size": 9, "kernel_sizes": [1, 3, 5]}]


def make(dtype=torch.float64, **options):
    sizes = {"embedding_size": 8, "encoder_size": 4}
    return tiny_models.classifier(**sizes | options).to(dtype).train()


def states_of(model):
    base = model.attention_classifier
    vectors = base.embeddings(IDS)
    return base.encode(vectors, (IDS != 0).long()), vectors


# --- what each penalty is -----------------------------------------------------------------------------------------


def test_tying_by_hand():
    states = torch.tensor([[[1.0, 2.0], [9.0, 9.0], [0.0, 0.0]]])
    vectors = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]]])
    content = torch.tensor([[True, False, True]])
    assert compute_tying_penalty(states, vectors, content).tolist() == [(1 + 4 + 9 + 16) / 2]
    assert compute_tying_penalty(states, vectors, torch.zeros_like(content)).tolist() == [0.0]


def test_conicity_by_hand():
    states = torch.tensor(
        [[[2.0, 0.0], [0.0, 2.0], [5.0, 5.0]], [[3.0, 0.0], [-1.0, 0.0], [7.0, 7.0]]]
    )
    content = torch.tensor([[True, True, False]] * 2)
    expected = torch.tensor([math.cos(math.pi / 4), 0.0])
    torch.testing.assert_close(compute_conicity(states, content), expected)


@pytest.mark.parametrize("rate", [0.15, 0.6])
def test_masked_are_content_words_at_the_rate(rate):
    torch.manual_seed(0)
    maskable = torch.tensor([True, False]).repeat(1, 5000)
    masked = draw_masked_words(maskable, rate)
    assert not (masked & ~maskable).any()
    assert masked.sum().item() / 5000 == pytest.approx(
        rate, abs=4 * math.sqrt(rate * (1 - rate) / 5000)
    )


def test_masked_words_by_hand():
    """The same masks drawn again: the masked words' vectors are the unknown word's, all else is as it was."""
    model = make(mlm_weight=2.0, mlm_rate=0.6)
    base = model.attention_classifier
    torch.manual_seed(3)
    result = model(IDS, (IDS != 0).long()).regularization
    torch.manual_seed(3)
    masked = torch.rand(IDS.shape) < 0.6
    masked &= torch.isin(
        IDS, torch.tensor([0, 1, 2, 3]), invert=True
    )  # no special token, no unknown word
    assert masked[0].sum() > 1 and masked[1].any()
    for row in range(3):
        ids = IDS[row][IDS[row] != 0]
        read = ids.where(~masked[row, : len(ids)], torch.tensor(1))[None]
        states = base.encode(base.embeddings(read), torch.ones_like(read))[0]
        chosen = masked[row, : len(ids)]
        expected = 0.0
        if chosen.any():
            expected = functional.cross_entropy(
                base.regulariser.words(states[chosen]), ids[chosen]
            ).item()
        assert result[row].item() == pytest.approx(2 * expected, rel=1e-9)


def test_the_text_is_classified_without_masks():
    model, other = make(mlm_weight=2.0, mlm_rate=0.6), make()
    other.load_state_dict(model.state_dict(), strict=False)
    assert torch.equal(model(IDS).logits, other(IDS).logits)


@pytest.mark.parametrize(
    ("penalty", "options"),
    [(compute_tying_penalty, {"tying": 0.5}), (compute_conicity, {"conicity_weight": 0.7})],
)
def test_weighted_and_of_the_states_that_attention_weighs(penalty, options):
    model = make(**options)
    states, vectors = states_of(model)
    expected = (
        penalty(states, vectors, CONTENT)
        if penalty is compute_tying_penalty
        else penalty(states, CONTENT)
    )
    (weight,) = options.values()
    torch.testing.assert_close(model(IDS).regularization, weight * expected)
    both = make(tying=0.5, conicity_weight=0.7)(IDS).regularization
    wanted = 0.5 * compute_tying_penalty(states, vectors, CONTENT) + 0.7 * compute_conicity(
        states, CONTENT
    )
    torch.testing.assert_close(both, wanted)


# --- where it enters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_the_models_own_loss_has_the_mean_of_the_penalties(options):
    model = make(**options)
    torch.manual_seed(1)
    outputs = model(IDS, labels=LABELS)
    task = functional.cross_entropy(outputs.logits, LABELS)
    torch.testing.assert_close(outputs.loss, task + outputs.regularization.mean())
    torch.manual_seed(1)
    halved = model(
        IDS, labels=LABELS, num_items_in_batch=6
    ).loss  # how the Trainer accumulates gradients
    torch.testing.assert_close(halved, outputs.loss / 2)


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_the_papers_loss_reduces_penalties_as_losses(options):
    from datasets import Dataset

    train = Dataset.from_dict({"label": [0, 0, 0, 1]})
    outputs = make(**options)(IDS)
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    summed = functional.cross_entropy(outputs.logits, LABELS, weights, reduction="sum")
    summed = summed + outputs.regularization.sum()
    torch.testing.assert_close(make_paper_loss(train, 2)(outputs, LABELS), summed)
    averaged = functional.cross_entropy(outputs.logits, LABELS) + outputs.regularization.mean()
    torch.testing.assert_close(make_paper_loss(train, 2, weighted=False)(outputs, LABELS), averaged)


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_its_gradient_reaches_encoder_and_embeddings(options):
    model = make(**options)
    model(IDS).regularization.sum().backward()
    for name, parameter in model.named_parameters():
        if ".encoder." in name or "embeddings" in name:
            assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_nothing_of_it_outside_of_training(options):
    model, plain = make(**options).eval(), make().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    state = torch.get_rng_state()
    ours, theirs = (m(IDS, labels=LABELS, output_attentions=True) for m in (model, plain))
    assert torch.equal(state, torch.get_rng_state())
    assert ours.regularization is None and ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in ("loss", "logits"))


def test_without_any_the_weights_are_the_old_ones():
    names = make().state_dict().keys()
    assert not [name for name in names if "regulariser" in name]
    assert make(tying=1.0).state_dict().keys() == names
    assert make(mlm_weight=1.0).state_dict().keys() - names == {
        f"attention_classifier.regulariser.words.{part}" for part in ("weight", "bias")
    }


def test_words_cannot_be_masked_in_embeddings():
    model = make(mlm_weight=1.0)
    with pytest.raises(ValueError, match="input_ids are needed to mask words"):
        model(inputs_embeds=model.get_input_embeddings()(IDS))


# --- connections and the orthogonal LSTM --------------------------------------------------------------------------


def test_connections():
    plain, concat, residual = (
        make(residual_connection=how) for how in ("none", "concat", "residual")
    )
    encoder = plain.attention_classifier.encoder.state_dict()
    for model in (concat, residual):
        model.attention_classifier.encoder.load_state_dict(encoder)
    vectors = plain.attention_classifier.embeddings(IDS)
    states, beside, added = (
        m.attention_classifier.encode(vectors, (IDS != 0).long()) for m in (plain, concat, residual)
    )
    assert torch.equal(beside, torch.cat([states, vectors], dim=-1))
    assert torch.equal(added, states + vectors)
    assert concat.classifier.in_features == concat.config.hidden_size == 16


def test_the_orthogonal_lstm_step_by_step():
    model = make(encoder="orthogonal_lstm")
    base, (states, _) = model.attention_classifier, states_of(model)
    lstm = torch.nn.LSTM(8, 4).double()
    lstm.load_state_dict(
        {f"{name}_l0": value for name, value in base.encoder.cell.state_dict().items()}
    )
    hidden, cell, before = torch.zeros(1, 4).double(), torch.zeros(1, 4).double(), []
    for t in range(8):
        hidden, cell = lstm(base.embeddings(IDS[0, t])[None], (hidden, cell))[1]
        if before:
            mean = torch.cat(before).mean(0)
            hidden = hidden - (hidden @ mean)[:, None] / (mean @ mean) * mean
        before.append(hidden)
    torch.testing.assert_close(states[0], torch.cat(before))


def test_padding_does_not_reach_the_orthogonal_lstm():
    model = make(encoder="orthogonal_lstm").eval()
    alone = model(IDS[1:2, :4]).logits
    torch.testing.assert_close(model(IDS).logits[1:2], alone)
    with pytest.raises(ValueError, match="padding on the right"):
        model(IDS.flip(1), (IDS.flip(1) != 0).long())


def test_an_orthogonal_lstm_of_sentences():
    """Each sentence alone, then their vectors as a text without special tokens."""
    model = make(encoder="orthogonal_lstm", hierarchical=True, sep_token_id=1).eval()
    base = model.attention_classifier
    vectors = []
    for sentence in ([5, 6], [7, 8, 9]):
        states = base.encoder(
            base.embeddings(torch.tensor([sentence])), torch.ones(1, len(sentence))
        )
        vectors.append(
            base.attend(states, torch.ones(1, len(sentence), dtype=torch.bool)) @ states[0]
        )
    states = base.sentences.encoder(torch.stack(vectors, dim=1), torch.ones(1, 2))
    weights = base.sentences.attend(states, torch.ones(1, 2, dtype=torch.bool))
    text = torch.tensor([[2, 5, 6, 1, 7, 8, 9, 3, 0], [2, 5, 6, 8, 8, 8, 8, 8, 3]])
    torch.testing.assert_close(model(text).logits[:1], model.decode(weights @ states[0]))


# --- the checkpoint says it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", CHANGES, ids=str)
def test_round_trip(options, tmp_path):
    model = make(torch.float32, **options).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert {name: getattr(loaded.config, name) for name in options} == options
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    assert copy.deepcopy(loaded.config).to_dict() == loaded.config.to_dict()
