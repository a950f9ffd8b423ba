"""An adapter for a model of somebody's own, written with the documentation alone.

The model is a plain ``torch.nn.Module``, no Transformers model: word vectors, two heads
of softmax attention with one learned query each, and a small network on what they read.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from hf_attnprobe import AttnProbeError, AuditOptions, audit, build_tokenizer
from hf_attnprobe.adapters import register_adapter, wrap
from hf_attnprobe.attention_model import (
    AttentionModelBase,
    Batch,
    Differentiable,
    EditableInputs,
    LinearReadout,
    Observation,
    Site,
)
from hf_attnprobe.faithfulness import registry
from hf_attnprobe.storage.rows import statistics_of
from hf_attnprobe.testing import check_adapter


class Reader(nn.Module):
    """Token ids to the logits of three classes."""

    def __init__(self, n_tokens=30, width=12, n_heads=2, n_classes=3):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, width)
        self.keys = nn.Linear(width, n_heads)
        self.head = nn.Sequential(
            nn.Linear(n_heads * width, 16), nn.Tanh(), nn.Linear(16, n_classes)
        )

    def attend(self, vectors, mask):
        scores = self.keys(vectors).masked_fill(~mask[..., None], -torch.inf)
        return scores.softmax(1).transpose(1, 2)  # [batch, heads, keys]

    def classify(self, attention, vectors):
        return self.head((attention @ vectors).flatten(-2))

    def forward(self, ids, mask):
        vectors = self.embed(ids)
        return self.classify(self.attend(vectors, mask), vectors)


# The adapter: what follows up to the line below is all that somebody has to write.


class ReaderAdapter(AttentionModelBase):
    """One layer of two heads, one query; gradients and leave-one-out."""

    label_names = ["bad", "good", "mixed"]  # noqa: RUF012

    def __init__(self, model):
        self.model = model.double().eval().requires_grad_(False)
        self.n_embeddings = model.embed.num_embeddings

    def sites(self):
        return [Site(0, head) for head in range(self.model.keys.out_features)]

    def prepare(self, inputs, example_ids, labels=None):
        mask = inputs["attention_mask"].bool()
        content = mask & ~inputs["special_tokens_mask"].bool()
        kept = {"input_ids": inputs["input_ids"], "attention_mask": mask}
        return Batch(kept, mask, content, tuple(example_ids), labels)

    def observe(self, batch):
        vectors = self.model.embed(batch.inputs["input_ids"])
        attention = self.model.attend(vectors, batch.mask)
        probs = self.model.classify(attention, vectors).softmax(-1)
        return Observation(self, batch, probs, (attention[:, :, None],), vectors)

    def visible(self, observation, layer):
        return observation.batch.mask[:, None]

    def read_map(self, observation, values, site):
        return values[:, 0]

    def replay(self, observation, attention):
        vectors = observation.state
        return self.model.classify(attention[0][:, :, :, 0], vectors).softmax(-1)

    def gradient(self, observation, target):
        vectors = observation.state.clone().requires_grad_()
        attention = observation.attention[0][:, :, 0]
        with torch.enable_grad():
            probs = self.model.classify(attention, vectors).softmax(-1)
            explained = probs.gather(-1, target[:, None]).sum()
            (slope,) = torch.autograd.grad(explained, vectors)
        return (slope * vectors.detach()).sum(-1)

    def attention_gradient(self, observation, target):
        attention = observation.attention[0].clone().requires_grad_()
        with torch.enable_grad():
            probs = self.replay(observation, {0: attention[None]})[0]
            explained = probs.gather(-1, target[:, None]).sum()
            return list(torch.autograd.grad(explained, attention))

    def leave_one_out(self, observation):
        n_texts, n_keys = observation.batch.mask.shape
        each = torch.eye(n_keys, dtype=torch.bool)[:, None].expand(-1, n_texts, -1)
        return self.erase_inputs(observation, each).transpose(0, 1)

    def erase_inputs(self, observation, erased, *, by="deletion"):
        vectors, batch = observation.state, observation.batch
        copies = []
        for gone in erased & batch.content_mask:
            attention = self.model.attend(vectors, batch.mask & ~gone)
            copies.append(self.model.classify(attention, vectors).softmax(-1))
        return torch.stack(copies)


# The end of the adapter.

TEXTS = ([1, 5, 6, 7, 8, 2], [1, 9, 2], [1, 11, 12, 5, 2])


@pytest.fixture
def adapter():
    torch.manual_seed(0)
    model = Reader()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.8)
    register_adapter(Reader, ReaderAdapter)
    return wrap(model)


@pytest.fixture
def batch(adapter):
    rows = [torch.tensor(text) for text in TEXTS]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    masks = {"attention_mask": ids > 0, "special_tokens_mask": ids < 3}
    return adapter.prepare({"input_ids": ids, **masks}, (0, 1, 2))


def test_the_adapter_keeps_the_protocol(adapter, batch):
    check_adapter(adapter, batch)
    assert not adapter.lacks(Differentiable) and not adapter.lacks(EditableInputs)
    assert "expected a model with LinearReadout" in adapter.lacks(LinearReadout)


def test_the_adapter_is_short():
    source = Path(__file__).read_text().split("has to write.")[1].split("# The end of")[0]
    assert len(source.strip().splitlines()) <= 80


def test_it_answers_as_the_model_does(adapter, batch):
    observation = adapter.observe(batch)
    expected = adapter.model(batch.inputs["input_ids"], batch.mask).softmax(-1)
    torch.testing.assert_close(observation.probs, expected)


@pytest.mark.parametrize("name", ["permutation", "uniform_attention", "correlation"])
def test_faithfulness_tests_run_on_it(name, adapter, batch):
    for site in adapter.sites():
        result = registry.tests()[name].function(adapter.observe(batch), site)
        for values in statistics_of(result).values():
            assert values.shape == (3,)


ROWS = [{"text": "a fine plot", "label": "good"}, {"text": "dull", "label": "bad"}]
TESTS = ["permutation", "uniform_attention", "correlation"]


@pytest.fixture
def tokenizer():
    return build_tokenizer([row["text"] for row in ROWS], min_document_frequency=1)


def test_it_is_audited(adapter, tokenizer):
    settings = {"tokenizer": tokenizer, "progress": False}
    report = audit(adapter, ROWS, TESTS, **settings)
    assert {s.test for s in report.statistics} == set(TESTS) and report.n == 2
    assert "| made even |" in report.to_markdown()
    # The same through the registered factory.
    again = audit(adapter.model, ROWS, TESTS, **settings)
    assert again.to_pandas().equals(report.to_pandas())


def test_what_it_has_not_is_left_out(adapter, tokenizer):
    settings = {"tokenizer": tokenizer, "progress": False}
    report = audit(adapter, ROWS, **settings)
    reason = report.provenance["left_out"]["conicity"]
    assert "expected a model with HeadValues, got ReaderAdapter" in reason
    assert report.prune is None and "zero_tvd" in set(report.to_pandas().statistic)
    with pytest.raises(AttnProbeError, match="the test conicity cannot be run: expected"):
        audit(adapter, ROWS, ["conicity"], **settings)
    with pytest.raises(AttnProbeError, match="expected no level with an adapter"):
        audit(adapter, ROWS, options=AuditOptions(level="word"), **settings)
