"""Options of planted effects: doses that make no sense are refused."""

import pytest

from hf_attnprobe.planted_effects.options import DetectionLimitOptions
from tests.helpers.error_messages import refuses


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"doses": [1.0, 0.5]}, "in ascending order"),
        ({"doses": [0.0, 0.5]}, "dose 0 is added automatically"),
        ({"doses": []}, "in ascending order"),
        ({"n_spiked": 0}, "at least 1"),
    ],
)
def test_doses_that_make_no_sense_are_refused(fields, says):
    with refuses(says):
        DetectionLimitOptions(**fields)
