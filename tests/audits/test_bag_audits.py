"""Audits of models that attend over bags of instances."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

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
from hf_attnprobe.adapters import pooling
from hf_attnprobe.audits import setup
from hf_attnprobe.reports.result import convert_report_to_json
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
    # Names of settings, such as "tokens to flip", are the same for all data.
    sentences, heading, _ = prose.partition("How to repeat this audit")
    assert heading
    assert not [word for word in ("word", "words", "tokens") if f" {word} " in sentences]
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


def test_bags_in_files_and_bags_one_by_one_give_the_same_rows(report, tmp_path, monkeypatch):
    rows = make_bags(24, 1)
    names = [f"{index}.npy" for index in range(len(rows))]
    for name, row in zip(names, rows, strict=True):
        np.save(tmp_path / name, np.array(row["features"]))
    table = pd.DataFrame({"features": names, "label": [row["label"] for row in rows]})
    table["rationale"] = [row["rationale"] for row in rows]
    table.to_parquet(tmp_path / "test.parquet")
    monkeypatch.setattr(setup, "MAX_BATCH_NUMBERS", 1)
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    from_files = audit(adapter, str(tmp_path), ["exchange", "correlation"], progress=False)
    assert adapter.max_batch_size == 1
    # The limit of an adapter is not raised.
    monkeypatch.setattr(GatedAdapter, "max_batch_size", 1)
    monkeypatch.setattr(setup, "MAX_BATCH_NUMBERS", 1_000)
    audit(adapter, rows, "correlation", progress=False)
    assert adapter.max_batch_size == 1
    keys = ["test", "statistic", "layer", "head", "example_id"]
    expected, actual = (
        each.to_pandas().set_index(keys).value.sort_index() for each in (report, from_files)
    )
    assert {"exchange", "correlation"} <= {*actual.index.get_level_values("test")}
    pd.testing.assert_series_equal(actual, expected[actual.index], rtol=1e-9, atol=1e-12)


def test_a_report_states_that_instances_were_edited_in_groups(monkeypatch):
    monkeypatch.setattr(pooling, "MAX_PASSES_PER_BAG", 12)
    adapter = BypassAdapter(set_idle_weights(GatedPooling()))
    rows = make_bags(12, 0, n_instances=(10, 16))
    n_large = sum(len(row["features"]) > 12 for row in rows)
    report = audit(adapter, rows, ["scale", "exchange"], progress=False)
    (note,) = [note for note in report.notes if "in groups" in note]
    assert f"{n_large} of 12 bags have more than 12 patches" in note
    assert 0 < n_large < 12 and "only the 3 patches with most attention" in note
    exact = audit(GatedAdapter(set_idle_weights(GatedPooling())), rows, "scale", progress=False)
    assert not [note for note in exact.notes if "in groups" in note]


def test_findings_about_scores_of_instances_are_about_bags():
    rows = make_bags(8, 0)
    scores = [[1.0] * len(row["features"]) for row in rows]
    adapter = GatedAdapter(set_key_weights(GatedPooling()))
    report = evaluate_scores(adapter, rows, scores, ["scale"], progress=False)
    findings = convert_report_to_json(report)["verdict"]["findings"]
    (sentence,) = [f["sentence"] for f in findings if f["rule"] == "importance"]
    assert sentence.endswith("There are only 8 of the 30 required bags.")


def test_train_and_audit_a_parquet_file(tmp_path):
    pd.DataFrame(make_bags(120, 0)).to_parquet(tmp_path / "bags.parquet")
    data = Data(str(tmp_path / "bags.parquet"), holdout=0.3, unit="visit")
    options = TrainingOptions(epochs=3, learning_rate=0.01)
    trained = train(data, output_dir=tmp_path / "model", options=options, progress=False)
    assert trained.tokenizer is None and trained.metrics["test_roc_auc"] > 0.9
    folder = tmp_path / "audit"
    report = audit(str(tmp_path / "model"), data, output_dir=folder, progress=False)
    assert "visits" in str(report) and (folder / "report.html").exists()
    card = (tmp_path / "model" / "README.md").read_text()
    # The Hub has no task for bags.
    assert "gated (Ilse" in card and "- Classes:" in card and "text-classification" not in card
    prose = "".join(card.split("```")[::2])
    assert not re.search(r"\b(words?|texts?|tokens?)\b", prose, re.IGNORECASE)
    assert "AutoTokenizer" not in card and "torch.zeros(1, 3, 8)" in card
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


class LargestReadings(nn.Module):
    """A rule without parameters: attention is on large values, and their weighted mean decides."""

    def score(self, vectors):
        return 4 * vectors[..., 0].abs()

    def head(self, pooled):
        return torch.stack([-pooled[..., 0], pooled[..., 0]], -1)

    def forward(self, vectors, mask):
        weights = self.score(vectors).masked_fill(~mask, -torch.inf).softmax(-1)
        return self.head((weights[..., None] * vectors).sum(1))


@pytest.mark.parametrize("options", [AuditOptions(), AuditOptions(time="1h")])
def test_a_module_without_parameters_is_audited(options):
    rows = make_bags(12, 2)
    adapter = GatedAdapter(LargestReadings())
    report = audit(adapter, rows, "permutation", options=options, progress=False)
    predicted = report.wide_frame().sort_index().predicted_class
    # Within each bag, both large values have the sign of the label.
    assert predicted.tolist() == [row["label"] for row in rows]


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
    with refuses("expected one score for each of 13 patches, got 12"):
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
