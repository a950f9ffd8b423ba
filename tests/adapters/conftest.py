"""A Transformer of each of some families, and its adapter."""

import pytest

from adapters.families import SOME, shared
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter


@pytest.fixture(params=SOME)
def family(request):
    return request.param


@pytest.fixture
def adapter(family):
    return TransformerAdapter(shared(family))
