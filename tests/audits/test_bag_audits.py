"""Audits of models that attend over bags of instances."""

import numpy as np
import pandas as pd
import pytest
import torch

from hf_attnprobe import (
    AuditOptions,
    Data,
    TrainingOptions,
    audit,
    evaluate_scores,
    join_shares,
    load_examples,
    read_audit,
    register_adapter,
)
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


# --- other ways to audit bags ------------------------------------------------------------------


def compute_own_importances(rows):
    """Return how much the logit of the predicted class loses without each instance, by brute force."""
    module = set_key_weights(GatedPooling()).double()

    def compute_margin(bag):
        logits = module(bag[None], torch.ones(1, len(bag), dtype=torch.bool))[0].detach()
        return float(logits[1] - logits[0])

    importances = []
    for row in rows:
        bag = torch.tensor(row["features"], dtype=torch.float64)
        margin = compute_margin(bag)
        shortened = [torch.cat([bag[:k], bag[k + 1 :]]) for k in range(len(bag))]
        sign = 1 if margin > 0 else -1
        importances.append([sign * (margin - compute_margin(rest)) for rest in shortened])
    return importances


def compute_mean_importance(report):
    rows = report.to_pandas()
    return rows[rows.statistic == "importance@given"].value.mean()


def test_scores_of_another_explainer_are_evaluated():
    rows = make_bags(32, 3)
    scores = compute_own_importances(rows)
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    best = compute_mean_importance(evaluate_scores(adapter, rows, scores, "scale", progress=False))
    shuffled = [np.random.default_rng(k).permutation(bag).tolist() for k, bag in enumerate(scores)]
    random = compute_mean_importance(
        evaluate_scores(adapter, rows, shuffled, "scale", progress=False)
    )
    assert best > 0.6 and abs(random) < 0.2
    with refuses("expected one score for each of [0-9]+ patches, got"):
        evaluate_scores(adapter, rows, [bag[1:] for bag in scores], "scale", progress=False)


def test_shares_and_a_second_run_have_the_rows_of_a_whole_audit(tmp_path):
    rows, tests = make_bags(24, 1), ["permutation", "scale"]
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    whole = audit(adapter, rows, tests, progress=False)
    for index in range(2):
        options = AuditOptions(share=f"{index}/2")
        audit(adapter, rows, tests, options=options, output_dir=tmp_path, progress=False)
    joined = join_shares(sorted(tmp_path.glob("share-*")))
    order = ["test", "statistic", "example_id"]
    expected = whole.to_pandas().sort_values(order, ignore_index=True)
    actual = joined.to_pandas().sort_values(order, ignore_index=True)
    pd.testing.assert_frame_equal(actual, expected)
    assert "24 bags" in str(joined)
    # A second run reads the rows of the first one.
    again = audit(adapter, rows, tests, options=options, output_dir=tmp_path, progress=False)
    finished = read_audit(tmp_path / "share-1-of-2")
    pd.testing.assert_frame_equal(again.to_pandas(), finished.to_pandas())
