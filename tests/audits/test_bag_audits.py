"""Audits of models that attend over bags of instances."""

import numpy as np
import pandas as pd
import pytest
import torch

from hf_attnprobe import Data, TrainingOptions, audit, load_examples, register_adapter
from hf_attnprobe.statistics.wording import rename_units
from hf_attnprobe.training.run import train
from tests.helpers.bag_models import (
    BypassAdapter,
    GatedAdapter,
    GatedPooling,
    make_bags,
    set_idle_weights,
    set_key_weights,
)
from tests.helpers.error_messages import refuses


TRUTHS = {
    "key instances": (GatedAdapter, set_key_weights, "yes"),
    "evidence past attention": (BypassAdapter, lambda module: set_idle_weights(module, 3.0), "no"),
    "idle attention": (GatedAdapter, set_idle_weights, "no"),
}
"""Adapter class, weights and true answer of each constructed model."""


def check_truth(case, seed):
    adapter_class, set_weights, answer = TRUTHS[case]
    torch.manual_seed(seed)
    adapter = adapter_class(set_weights(GatedPooling()))
    report = audit(adapter, make_bags(40, seed), progress=False)
    assert str(report.answer) == answer, str(report)
    return report


@pytest.mark.parametrize("case", TRUTHS)
def test_constructed_models_get_the_true_answer(case):
    check_truth(case, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 10))
@pytest.mark.parametrize("case", TRUTHS)
def test_further_draws_get_the_true_answer(case, seed):
    check_truth(case, seed)


@pytest.fixture(scope="module")
def report():
    return audit(GatedAdapter(set_key_weights(GatedPooling())), make_bags(24, 1), progress=False)


def test_every_sentence_names_the_unit(report):
    prose = report.to_text(verbose=True)
    assert "patches with most attention" in prose and "24 bags" in prose
    # "Words" may only occur in names of options.
    assert not [word for word in ("word", "words", "tokens") if f" {word} " in prose]
    assert all(" word" not in finding.sentence for finding in report.findings)
    assert "patches" in report.to_html()


def test_the_rows_hold_the_modules_own_predictions(report):
    bags = load_examples(make_bags(24, 1), "test")
    module = set_key_weights(GatedPooling()).double()
    rows = report.to_pandas()
    probabilities = rows[rows.statistic == "probability"].sort_values("example_id").value
    expected = []
    for bag in bags["features"]:
        features = torch.tensor(bag, dtype=torch.float64)[None]
        logits = module(features, torch.ones(1, features.shape[1], dtype=torch.bool))
        expected.append(float(logits.detach().softmax(-1).max()))
    np.testing.assert_allclose(probabilities, expected, rtol=1e-9)


def test_train_and_audit_a_parquet_file(tmp_path):
    pd.DataFrame(make_bags(120, 0)).to_parquet(tmp_path / "bags.parquet")
    data = Data(str(tmp_path / "bags.parquet"), holdout=0.3, unit="visit")
    options = TrainingOptions(epochs=3, learning_rate=0.01)
    trained = train(data, output_dir=tmp_path / "model", options=options, progress=False)
    assert trained.tokenizer is None and trained.metrics["test_roc_auc"] > 0.9
    folder = tmp_path / "audit"
    report = audit(str(tmp_path / "model"), data, output_dir=folder, progress=False)
    assert "visits" in str(report) and (folder / "report.html").exists()
    assert "gated (Ilse" in (tmp_path / "model" / "README.md").read_text()
    with refuses("size 8, but the vectors"):
        audit(str(tmp_path / "model"), [{"features": [[1.0]], "label": 0}], progress=False)
    with refuses("reads texts"):
        train(data, model=str(tmp_path / "model"), output_dir=tmp_path / "other")


def test_a_registered_module_needs_no_tokenizer():
    class Registered(GatedPooling):
        pass

    register_adapter(Registered, GatedAdapter)
    model = set_key_weights(Registered())
    report = audit(model, make_bags(12, 2), "permutation", progress=False)
    assert report.n == 12
    with refuses("reads bags of vectors"):
        audit(model, [{"text": "a fine film", "label": 0}], "permutation", progress=False)
    with refuses("one noun"):
        audit(model, Data(make_bags(4, 0), unit="Two words"), "permutation", progress=False)


def test_renaming_leaves_options_and_paths_alone():
    renamed = rename_units(
        "A word of a text in /data/text/x with --text-column is a token.", "item"
    )
    assert renamed == "An item of a bag in /data/text/x with --text-column is an item."
