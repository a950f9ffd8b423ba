"""Test the alignment of human rationales, their scores, and audits of data without rationales."""

from types import SimpleNamespace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from hf_attnprobe import audit, load_examples
from hf_attnprobe.adapters import wrap
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.options import InputErasure, Plausibility
from hf_attnprobe.faithfulness.plausibility import plausibility
from hf_attnprobe.faithfulness.rankings import TEXT_RANKINGS
from hf_attnprobe.faithfulness.registry import load_tests as all_tests
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.protocol import IntegratedGradients, Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name


ROWS = [
    {
        "example_id": 5,
        "text": "The plot, frankly, was hopeless-ness .",
        "label": 0,
        "rationale": [4],
    },
    {"example_id": 8, "text": "superb", "label": 1, "rationale": [0]},
    {"example_id": 2, "text": "a  superb  plot", "label": 1, "rationale": [1, 2]},
    {"example_id": 3, "text": "a plot", "label": 1, "rationale": []},
]
PIECES = ["the", "plot", "frankly", "was", "hope", "##less", "ness", "a", "superb", ".", ",", "-"]


@pytest.fixture(scope="module")
def pieces():
    """A WordPiece tokenizer that splits at punctuation, as BERT's does."""
    return tiny_models.word_pieces(PIECES, model_max_length=32)


@pytest.fixture(scope="module")
def bert(pieces):
    return tiny_models.bert(pieces, spread=0.5)


def make_batch(bert, pieces, level=None, rows=ROWS):
    adapter = wrap(bert, level=level)
    texts = tokenize(pieces, load_examples(rows, "test"), adapter).texts
    return adapter, collate(adapter, texts, pieces.pad_token_id)


def test_rationales_reach_the_tokens(bert, pieces):
    _, batch = make_batch(bert, pieces, "token")
    tokens = [
        [pieces.convert_ids_to_tokens(int(i)) for i in row] for row in batch.inputs["input_ids"]
    ]
    marked = [
        [t for t, m in zip(*pair, strict=True) if m]
        for pair in zip(tokens, batch.rationale.tolist(), strict=True)
    ]
    assert marked == [["hope", "##less", "-", "ness"], ["superb"], ["superb", "plot"], []]


def test_rationales_reach_words_at_their_first_piece(bert, pieces):
    """White space makes the words of the rationale, the tokenizer those that are explained: one of them may be several."""
    _, batch = make_batch(bert, pieces)
    assert batch.rationale[0].nonzero()[:, 0].tolist() == [7, 9, 10]  # hope(less), -, ness
    assert not (batch.rationale & ~batch.content_mask).any()
    assert batch.rationale[2].nonzero()[:, 0].tolist() == [2, 3]


def test_a_classifier_has_them_too(make_model, tokenizer, reviews):
    model, examples = make_model(), reviews["test"]
    adapter = wrap(model)
    texts = tokenize(tokenizer, examples, adapter).texts
    batch = collate(adapter, texts, tokenizer.pad_token_id)
    for row, rationale in enumerate(examples["rationale"]):
        places = [1 + place for place in rationale]  # behind the start token
        assert batch.rationale[row].nonzero()[:, 0].tolist() == places


def test_the_probe_by_hand(bert, pieces):
    adapter, batch = make_batch(bert, pieces)
    observation = adapter.observe(batch)
    result = collect_statistics(plausibility(observation, Site(1, 1), seed=2))
    scores = ["auprc", "average_precision", "token_f1", "iou_precision", "iou_recall", "iou_f1"]
    keys = {f"{name}@{key}" for name in scores for key in ("attention", *TEXT_RANKINGS)}
    assert result.keys() == keys | {"attention_on_rationale", "rationale_size"}
    # of "a superb plot", marked are the last two
    attention = observation.read(Site(1, 1))[2, 1:4].tolist()
    order = sorted(range(3), key=lambda k: -attention[k])
    hits = [k > 0 for k in order]
    precision = [sum(hits[: k + 1]) / (k + 1) for k in range(3)]
    expected = sum(p for p, h in zip(precision, hits, strict=True) if h) / 2
    assert result["average_precision@attention"][2].item() == pytest.approx(expected)
    before = [1, *precision]  # ERASER's curve starts at precision 1
    wanted = sum((precision[k] + before[k]) / 2 for k in range(3) if hits[k]) / 2
    assert result["auprc@attention"][2].item() == pytest.approx(wanted)
    assert result["token_f1@attention"][2].item() == pytest.approx(sum(hits[:2]) / 2)
    theirs = sum(attention[1:]) / sum(attention)
    assert result["attention_on_rationale"][2].item() == pytest.approx(theirs)
    assert result["rationale_size"][2].item() == pytest.approx(2 / 3)
    for values in result.values():
        assert values[[1, 3]].isnan().all()  # all marked, none marked
        assert ((values[[0, 2]] >= 0) & (values[[0, 2]] <= 1)).all()


def test_integrated_gradients_are_compared_where_asked_for(bert, pieces):
    """Average precision by scikit-learn's definition, of attributions that the adapter gives."""
    adapter, batch = make_batch(bert, pieces)
    observation = adapter.observe(batch)
    options = Plausibility(integrated_gradients=True)
    result = plausibility(observation, Site(0, 0), options).average_precision
    values = adapter.compute_integrated_gradients(
        observation, observation.get_target_classes(None), 50
    )
    for row in (0, 2):
        units = batch.content_mask[row].nonzero()[:, 0]
        order = units[values[row, units].abs().argsort(descending=True)]
        hits = batch.rationale[row, order].numpy()
        precision = np.cumsum(hits) / (1 + np.arange(len(hits)))
        assert result["integrated_gradient"][row].item() == pytest.approx(precision[hits].mean())


def test_an_adapter_without_integrated_gradients_serves_until_they_are_asked_for():
    needed = []
    shortest = SimpleNamespace(model=SimpleNamespace(require=needed.append))
    preview = SimpleNamespace(rationales=True, shortest_text=shortest)
    for asked in (False, True):
        all_tests()["plausibility"].check(preview, Plausibility(integrated_gradients=asked))
        assert needed == [IntegratedGradients] * asked


@pytest.mark.parametrize(
    ("rationale", "message"),
    [
        ([0, 3], "positions from 0 to 2, but text 7 has 0, 3"),
        ([0, 1, 0, 0], "text 7 has 0, 1, 0, 0"),
        ([-1], "text 7 has -1. Separate words"),
    ],
)
def test_a_rationale_that_is_not_of_its_text(rationale, message, make_checkpoint, tmp_path):
    rows = [{"example_id": 7, "text": "a superb plot", "label": 1, "rationale": rationale}]
    with pytest.raises(AttnProbeError, match=message):
        audit(make_checkpoint(), rows, ["correlation"], output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_audit_runs_it_where_there_are_rationales(make_checkpoint, reviews):
    examples = reviews["test"].select(range(6))
    options = {"n_permutations": 2, "progress": False}
    result = audit_by_name(make_checkpoint(), examples, **options)
    assert {"auprc@attention", "auprc@random"} <= {
        s.statistic for s in result.statistics if s.test == "plausibility"
    }
    without = audit_by_name(make_checkpoint(), examples.remove_columns("rationale"), **options)
    assert "plausibility" not in {s.test for s in without.statistics}
    assert "input_erasure" in {s.test for s in without.statistics}


def test_asked_for_where_there_are_none(make_checkpoint, reviews_folder, cli, tmp_path):
    audited = ("audit", "--model", make_checkpoint(), "--dataset", reviews_folder)
    done = cli(*audited, "--tests", "plausibility", "--output-dir", tmp_path / "out")
    assert done.code == 1
    assert "Add a column 'rationale'" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_erasure_by_the_mask_or_the_unknown_token(make_checkpoint, reviews, bert, pieces):
    by_unknown = {"input_erasure": {"by": "mask", "beam_width": 1}}
    few = reviews["test"].select(range(2))
    result = audit_by_name(make_checkpoint(), few, tests=by_unknown)
    assert "naopc_comprehensiveness@attention" in {s.statistic for s in result.statistics}
    options = {"tokenizer": pieces, "layers": [0], "heads": [0]}
    masked, deleted = (
        audit_by_name(bert, ROWS, tests=[InputErasure(by=by)], **options).to_pandas().value
        for by in ("mask", "deletion")
    )
    assert not masked.equals(deleted)


def test_a_tokenizer_without_either(bert, pieces, tmp_path):
    bare = PreTrainedTokenizerFast(
        tokenizer_object=pieces.backend_tokenizer, pad_token="[PAD]", model_max_length=32
    )
    with pytest.raises(
        AttnProbeError,
        match=r"needs a mask token or an unknown token, .*; use the operator 'deletion'",
    ):
        audit_by_name(
            bert, ROWS, tokenizer=bare, tests=[InputErasure(by="mask")], output_dir=tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()
