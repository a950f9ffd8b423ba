"""Our side of a benchmark does what the peer's rule says; the peers themselves are optional installs."""

import importlib.util
from pathlib import Path

import families
import pytest
import torch

from hf_attnprobe import Site
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def peers():
    spec = importlib.util.spec_from_file_location("peers", ROOT / "benchmarks" / "peers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_comprehensiveness_by_ferrets_rule(peers):
    adapter = TransformerAdapter(families.make("bert"))
    batch = families.prepare(adapter)
    scores = adapter.observe(batch).read(Site(2, 0))
    found = peers.comprehensiveness(adapter, batch, scores)
    for row, ids in enumerate(families.TEXTS):

        @torch.no_grad()
        def probs(kept):
            return adapter.model(torch.tensor([kept])).logits.softmax(-1)[0]

        whole, places = probs(ids), range(1, len(ids) - 1)
        order = sorted(places, key=lambda place: -scores[row, place].item())
        sizes = sorted({len(places) * percent // 100 for percent in range(10, 101, 10)} - {0})
        after = [probs([t for place, t in enumerate(ids) if place not in order[:n]]) for n in sizes]
        target = int(whole.argmax())
        expected = sum((whole - p)[target].item() for p in after) / len(sizes)
        assert found[row].item() == pytest.approx(expected, abs=1e-5)
