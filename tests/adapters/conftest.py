"""A Transformer of each of some families, and its adapter."""

import pytest

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from tests.helpers.adapter_families import SOME, get_shared_model, prepare


@pytest.fixture(params=SOME)
def family(request):
    return request.param


@pytest.fixture
def adapter(family):
    return TransformerAdapter(get_shared_model(family))


@pytest.fixture
def observation(adapter):
    """What it sees of the texts."""
    return adapter.observe(prepare(adapter))
