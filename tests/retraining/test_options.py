"""Options of retraining: both scales weigh the two terms alike, and options that are none are refused."""

import pytest

from hf_attnprobe import AttnProbeError
from hf_attnprobe.retraining.options import DEFAULT_LAMBDAS, Adversary


def test_both_scales_weigh_the_two_terms_alike():
    assert Adversary().sorted_lambdas() == DEFAULT_LAMBDAS
    half = Adversary(tvd_scale="half")
    assert half.sorted_lambdas() == tuple(strength / 2 for strength in DEFAULT_LAMBDAS)
    assert half.name_folder(0.00025) == "lambda-0.00025"


def test_options_of_the_adversary_that_are_none():
    with pytest.raises(AttnProbeError, match="tvd_scale"):
        Adversary(tvd_scale="double")
    with pytest.raises(AttnProbeError, match="patience must be at least 1"):
        Adversary(patience=0)
