"""Compare pair models with a NumPy implementation, and test them as Transformers models."""

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, concatenate_datasets
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hf_attnprobe import AttentionClassifierConfig, audit, build_tokenizer, load_examples
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.inference.outputs import observe_split
from hf_attnprobe.training.classifier import train_classifier
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.procedures import choose_procedure, make_paper_optimizer
from tests.helpers.error_messages import refuses
from tests.helpers.pair_models import PAIRS, ManualPairClassifier, make, make_batch


BY_HAND = ("bilstm", "cnn", "mlp", "none")
KINDS = [(e, a) for e in BY_HAND for a in ("additive", "dot_product", "uniform")]
ANSWERS = [5, 6, 7]


@pytest.mark.parametrize("answers", [None, ANSWERS], ids=["all", "candidates"])
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_forward_is_the_papers_computation(kind, answers):
    model = make(*kind, answers=answers)
    outputs, hand = model(**make_batch(), output_attentions=True), ManualPairClassifier(model)
    for row, pair in enumerate(PAIRS):
        probs, weights = hand.run(*pair)
        result = outputs.logits.softmax(-1)[row].detach().numpy()
        np.testing.assert_allclose(result, probs, atol=1e-10)
        attention = outputs.attentions[0][row, 0, 0].detach().numpy()
        np.testing.assert_allclose(attention[1 : len(weights) + 1], weights, atol=1e-10)
        outside = np.delete(attention, np.arange(1, len(weights) + 1))
        assert (outside == 0).all()


@pytest.mark.parametrize("encoder", ["bilstm", "cnn", "mlp"])
def test_training_mode_computes_the_same(encoder):
    model = make(encoder)
    expected = model(**make_batch()).logits
    torch.testing.assert_close(model.train()(**make_batch()).logits, expected)


@pytest.mark.parametrize("kind", [("bilstm", "additive"), ("cnn", "dot_product")])
def test_gradients_of_all_weights_are_finite_differences(kind):
    model, labels = make(*kind, num_labels=2), torch.tensor([0, 1, 1, 0])
    model(**make_batch(), labels=labels).loss.backward()
    draw = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        if "embeddings" in name:
            direction[0] = 0  # the padding's row is not trained
        losses = []
        for step in (1e-5, -2e-5):
            with torch.no_grad():
                parameter += step * direction
                losses.append(model(**make_batch(), labels=labels).loss.item())
        with torch.no_grad():
            parameter += 1e-5 * direction
        result = (parameter.grad * direction).sum().item()
        assert result == pytest.approx((losses[0] - losses[1]) / 2e-5, abs=2e-6), name


def test_labels_that_are_no_candidates_have_probability_zero():
    model = make(answers=ANSWERS)
    logits = model(**make_batch()).logits
    probs = logits.softmax(-1)
    allowed = torch.tensor([[1, 1, 1], [0, 1, 0], [1, 1, 0], [1, 1, 1]]).bool()
    assert torch.equal(probs > 0, allowed)
    assert torch.isinf(logits[~allowed]).all()
    own = torch.tensor([[1, 0, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]])
    given = model(**make_batch(), candidates=own).logits.softmax(-1)
    assert torch.equal(given > 0, own.bool() | ~own.any(-1, keepdim=True).bool())
    loss = model(**make_batch(), labels=torch.tensor([2, 1, 0, 1])).loss
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert loss.isfinite() and all(grad.isfinite().all() for grad in grads)


def test_word_vectors_may_be_given_instead_of_ids():
    model, batch = make("cnn"), make_batch()
    ids, kinds = batch["input_ids"], batch["token_type_ids"]
    tables = model.attention_classifier
    vectors = torch.where(
        (kinds == 1)[..., None], tables.query_reader.embeddings(ids), tables.embeddings(ids)
    )
    given = {name: batch[name] for name in ("token_type_ids", "attention_mask")}
    torch.testing.assert_close(model(inputs_embeds=vectors, **given).logits, model(**batch).logits)
    with pytest.raises(ValueError, match="to find the possible answers"):
        make("cnn", answers=ANSWERS)(inputs_embeds=vectors, **given)


def test_guided_attention_is_taken_as_it_is():
    model, batch = make(attention="guided"), make_batch()
    guide = torch.rand(batch["input_ids"].shape, dtype=torch.float64)
    result = model(**batch, guide=guide, output_attentions=True).attentions[0][:, 0, 0]
    content = torch.zeros_like(result, dtype=torch.bool)
    for row, (first, _) in enumerate(PAIRS):
        content[row, 1 : len(first) + 1] = True
    assert torch.equal(result, guide * content)


def test_inputs_that_are_no_pairs():
    model, batch = make(), make_batch()
    without = {name: v for name, v in batch.items() if name != "token_type_ids"}
    kinds = batch["token_type_ids"]
    second_alone = batch | {"token_type_ids": torch.ones_like(kinds)}
    for inputs, message in (
        (without, "token_type_ids are needed"),
        (batch | {"token_type_ids": 0 * kinds}, "no second text"),
        (second_alone, "no first text"),
        (batch | {"token_type_ids": 1 - kinds}, "before the second"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            model(**inputs)
        assert "\n" not in str(error.value)
    flipped = {name: value.flip(1) for name, value in batch.items()}
    with pytest.raises(ValueError, match="before the second"):
        model(**flipped)


def test_a_label_outside_the_candidates_is_refused_in_training_only():
    model, labels = make(answers=ANSWERS), torch.tensor([0, 0, 0, 0])
    assert torch.isinf(model(**make_batch(), labels=labels).loss)
    with pytest.raises(ValueError, match="row 1 of the batch has label 0"):
        model.train()(**make_batch(), labels=labels)


# As ordinary Transformers models

ROOMS = ("garden", "kitchen", "office")
COLOURS = ("red", "blue")


def stories(n_rows, seed=0):
    """Two rooms and their colours; the room of one colour is asked for."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(n_rows):
        colours, rooms = draw.permutation(COLOURS), draw.permutation(ROOMS)[:2]
        asked = int(draw.integers(2))
        text = " ".join(
            f"the {colour} {room} ." for colour, room in zip(colours, rooms, strict=True)
        )
        rows.append((text, f"which is {colours[asked]} ?", ROOMS.index(rooms[asked])))
    texts, questions, labels = (list(column) for column in zip(*rows, strict=True))
    columns = {"text": texts, "text_pair": questions, "label": labels}
    return Dataset.from_dict(columns).cast_column("label", ClassLabel(names=list(ROOMS)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small model trained on stories, by this package."""
    config = AttentionClassifierConfig(query_encoder=True, embedding_size=20, encoder_size=12)
    options = TrainingOptions(epochs=20, batch_size=32, learning_rate=0.01, answers_in_text=True)
    return train_classifier(
        config,
        stories(240),
        stories(60, seed=1),
        test=stories(60, seed=2),
        output_dir=tmp_path_factory.mktemp("stories"),
        options=options,
        progress=False,
    )


def test_tokenizer_writes_pairs_as_the_model_reads_them():
    tokenizer = build_tokenizer(["a b", "c"], pairs=True)
    encoded = tokenizer("a b", "c d")
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert " ".join(tokens) == "<sos> a b <eos> <sos> c <unk> <eos>"
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert "token_type_ids" not in build_tokenizer(["a"])("a", "a")


def test_training_learns_to_answer(trained):
    """Without the question half of the answers are right: two rooms occur in each story."""
    assert trained.metrics["test_accuracy"] > 0.75
    config = trained.model.config
    words = trained.tokenizer.convert_ids_to_tokens(config.answer_token_ids)
    assert words == list(ROOMS) == [config.id2label[k] for k in range(3)]


def test_pipeline_saves_and_loads(trained, tmp_path):
    trained.model.save_pretrained(tmp_path)
    trained.tokenizer.save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    rows = stories(7, seed=3)
    run = pipeline("text-classification", model=model, tokenizer=tokenizer)
    asked = [{"text": row["text"], "text_pair": row["text_pair"]} for row in rows]
    result = run(asked, batch_size=3, top_k=None)
    batch = tokenizer(rows["text"][:], rows["text_pair"][:], padding=True, return_tensors="pt")
    with torch.no_grad():
        probs = trained.model.eval()(**batch).logits.softmax(-1)
    for answers, row in zip(result, probs.tolist(), strict=True):
        by_name = {answer["label"]: answer["score"] for answer in answers}
        assert [by_name[name] for name in ROOMS] == pytest.approx(row, abs=1e-6)
    with pytest.raises(ValueError, match="no second text"):
        run("the red garden .")


def test_settings_are_the_papers():
    model, procedure = make(), choose_procedure(None, "bilstm", is_pair_model=True)
    optimizer = make_paper_optimizer(model, procedure)
    assert (procedure.epochs, procedure.batch_size) == (25, 100)
    assert not procedure.weighted and procedure.metric == "accuracy"
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], group["amsgrad"]) == (1e-3, 1e-5, True)
    assert choose_procedure(None, "bilstm", is_pair_model=True, epochs=100).epochs == 100


def without_questions(rows):
    return rows.remove_columns("text_pair")


OF_PAIRS = AttentionClassifierConfig(query_encoder=True)
IN_TEXT = {"answers_in_text": True}


def other_answer(rows):
    """The same rows, of which the first text does not have its answer."""
    wrong = (rows["label"][0] + 1) % 3
    text = rows["text"][0].replace(ROOMS[wrong], ROOMS[(wrong + 1) % 3])
    first = rows.select([0]).map(lambda row: {"text": text, "label": wrong})
    return concatenate_datasets([first, rows.select(range(1, len(rows)))])


@pytest.mark.parametrize(
    ("config", "change", "options", "message"),
    [
        (AttentionClassifierConfig(), None, {}, "Set query_encoder=True"),
        (OF_PAIRS, without_questions, {}, "texts are not pairs"),
        (AttentionClassifierConfig(), without_questions, IN_TEXT, "answers_in_text needs a model"),
        (
            OF_PAIRS,
            other_answer,
            IN_TEXT,
            "text 0 has the label '(garden|kitchen|office)', but its first text contains only other labels",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused_before_training(
    config, change, options, message, tmp_path
):
    rows = change(stories(30)) if change else stories(30)
    options = TrainingOptions(epochs=1, **options)
    with refuses(message):
        train_classifier(
            config, rows, rows, output_dir=tmp_path / "out", options=options, progress=False
        )


def test_an_audit_is_of_the_first_text(trained):
    """Its probabilities are the pipeline's. The question is neither explained nor left out."""
    rows = stories(6, seed=4)
    report = audit(trained.model, rows, "correlation", tokenizer=trained.tokenizer, progress=False)
    run = pipeline("text-classification", trained.model, tokenizer=trained.tokenizer)
    asked = [{"text": row["text"], "text_pair": row["text_pair"]} for row in rows]
    assert report.n == 6
    said = " ".join(report.to_text(verbose=True).split())
    assert "attends to the first text of each pair. The second text is its query" in said
    examples = load_examples(rows, "test")
    seen = observe_split(trained.model, trained.tokenizer, examples, level="token")
    for observation in seen:
        assert (observation.batch.content_mask.sum(-1) == 8).all()
        for row, example_id in enumerate(observation.batch.example_ids):
            answers = run(asked[example_id], top_k=None)
            by_name = {answer["label"]: answer["score"] for answer in answers}
            expected = [by_name[name] for name in ROOMS]
            result = observation.probs[row].tolist()
            assert result == pytest.approx(expected, abs=1e-6)
    of_single = rows.remove_columns("text_pair")
    other = AuditOptions(segment="text_pair")
    for data, options, message in (
        (of_single, AuditOptions(), "needs pairs of texts"),
        (rows, other, "attends only to the segment .text"),
    ):
        with refuses(message):
            audit(trained.model, data, options=options, tokenizer=trained.tokenizer, progress=False)
