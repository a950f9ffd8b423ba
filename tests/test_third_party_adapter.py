"""The adapter that the page on extending writes, for a plain ``torch.nn.Module``: what it is, has and has not."""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hf_attnprobe import AuditOptions, adapters, audit, build_tokenizer
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import Differentiable, EditableInputs, LinearReadout
from hf_attnprobe.testing import check_adapter
from refusals import refused


PAGE = Path(__file__).parents[1] / "docs/extending.md"
FILES = ("reader", "reader_adapter", "full_adapter")
TEXTS = ([1, 5, 6, 7, 8, 2], [1, 9, 2], [1, 11, 12, 5, 2])
ROWS = [{"text": "a fine plot", "label": 1}, {"text": "dull", "label": 0}]
TESTS = ["permutation", "uniform_attention", "correlation"]


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page's modules, as if somebody had written its files; what they register goes away again."""
    monkeypatch.setattr(adapters, "_factories", dict(adapters._factories))
    written = dict(
        re.findall(r"<!-- file: (\w+)\.py -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in FILES:
        (tmp_path / f"{name}.py").write_text(written[name])
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return SimpleNamespace(**{name: importlib.import_module(name) for name in FILES})


@pytest.fixture
def adapter(page):
    torch.manual_seed(0)
    model = page.reader.Reader(30)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.8)
    return wrap(model)


@pytest.fixture
def batch(adapter):
    rows = [torch.tensor(text) for text in TEXTS]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    masks = {"attention_mask": ids > 0, "special_tokens_mask": ids < 3}
    return adapter.prepare({"input_ids": ids, **masks}, (0, 1, 2))


def test_the_adapter_keeps_the_protocol(page, adapter, batch):
    assert isinstance(adapter, page.full_adapter.FullAdapter)
    check_adapter(adapter, batch)
    assert not adapter.lacks(Differentiable) and not adapter.lacks(EditableInputs)
    assert "expected a model with LinearReadout" in adapter.lacks(LinearReadout)


def test_it_answers_as_the_model_does(adapter, batch):
    observation = adapter.observe(batch)
    expected = adapter.model(batch.inputs["input_ids"], batch.mask).softmax(-1)
    torch.testing.assert_close(observation.probs, expected)


@pytest.fixture
def settings():
    tokenizer = build_tokenizer([row["text"] for row in ROWS], min_document_frequency=1)
    return {"tokenizer": tokenizer, "progress": False}


def test_it_is_audited_as_an_adapter_and_as_the_model_that_was_registered(adapter, settings):
    report = audit(adapter, ROWS, TESTS, **settings)
    assert {s.test for s in report.statistics} == set(TESTS) and report.n == 2
    again = audit(adapter.model, ROWS, TESTS, **settings)
    assert again.to_pandas().equals(report.to_pandas())


def test_what_it_has_not_is_left_out(adapter, settings):
    report = audit(adapter, ROWS, **settings)
    reason = report.provenance["left_out"]["conicity"]
    assert "expected a model with HeadValues, got FullAdapter" in reason
    assert report.prune is None and "zero_tvd" in set(report.to_pandas().statistic)
    said = "the test conicity cannot be run: expected"
    refused(said, audit, adapter, ROWS, ["conicity"], **settings)
    options = AuditOptions(level="word")
    refused("expected no level with an adapter", audit, adapter, ROWS, options=options, **settings)
