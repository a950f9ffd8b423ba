"""Controls of retraining: seeds without the base, and guides that fit."""

import pytest
import torch

from hf_attnprobe import AttnProbeError
from hf_attnprobe.inference.outputs import make_guide, read_outputs
from hf_attnprobe.retraining.base_model import train_variant
from hf_attnprobe.retraining.controls import compute_guides, list_other_seeds
from tests.helpers.stopped_trainings import train_base


@pytest.fixture(scope="module")
def base(reviews, tmp_path_factory):
    """The base model; do not write into its folder."""
    return train_base(tmp_path_factory.mktemp("retrained") / "base", reviews)


def test_other_seeds_leave_out_the_base():
    assert list_other_seeds(2, 4) == [0, 1, 3, 4] and list_other_seeds(10, 2) == [0, 1]


def test_guides_are_read_of_the_split_that_they_are_for(base, reviews):
    guides = compute_guides(base.model, base, reviews)
    expected = make_guide(read_outputs(base.model, base.tokenizer, reviews["train"]))
    assert guides["train"].keys() == expected.keys() == set(reviews["train"]["example_id"])
    assert all(torch.equal(guides["train"][k], expected[k]) for k in expected)


def test_guides_that_do_not_fit(base, reviews, tmp_path):
    guides = compute_guides(base.model, base, reviews)
    lost = reviews["train"]["example_id"][3]
    changes = {"encoder": "mlp", "attention": "guided"}
    spoilt = guides | {"train": {k: w for k, w in guides["train"].items() if k != lost}}
    with pytest.raises(AttnProbeError, match=f"does not contain text {lost}"):
        train_variant(base, reviews, tmp_path / "a", changes=changes, guides=spoilt)
    spoilt = guides | {"train": guides["train"] | {lost: torch.ones(99)}}
    with pytest.raises(AttnProbeError, match=f"text {lost}, one per token, got 99"):
        train_variant(base, reviews, tmp_path / "b", changes=changes, guides=spoilt)
    with pytest.raises(AttnProbeError, match=r"attention='guided' needs attention weights"):
        train_variant(base, reviews, tmp_path / "c", changes=changes)
    of_train = {"train": guides["train"]}
    with pytest.raises(AttnProbeError, match="guides are also needed for the validation texts"):
        train_variant(base, reviews, tmp_path / "d", changes=changes, guides=of_train)
    assert not any((tmp_path / name).exists() for name in "abcd")
