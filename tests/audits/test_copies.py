"""Audits of texts that occur several times: identities, folders, shares, cards and the metric."""

import json
from types import SimpleNamespace

import evaluate
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

import hf_attnprobe
from hf_attnprobe import AuditOptions, audit, join_shares, read_audit, wrap
from hf_attnprobe.cards.card import PublishedRows, render_rows_readme
from hf_attnprobe.cards.metadata import DatasetReference
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.inference.choices import encode_examples
from hf_attnprobe.inference.encoding import compute_identity, count_distinct_texts
from hf_attnprobe.integrations.publishing import AuditFolder, summarize_audit
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.studies.paper_tables import Results
from tests.helpers.compare_rows import assert_same_rows


N_COPIES = 20
TESTS = ["scale", "erasure", "correlation"]
OPTIONS = AuditOptions(prune=False, shown_texts=3)


@pytest.fixture(scope="module")
def examples(reviews):
    """Twelve different reviews."""
    return [
        {"example_id": k, "text": row["text"], "label": row["label"]}
        for k, row in enumerate(list(reviews["test"])[:12])
    ]


@pytest.fixture(scope="module")
def copies(examples):
    """Twenty copies of each review, one after the other."""
    return [
        {**row, "example_id": 100 * copy + row["example_id"]}
        for copy in range(N_COPIES)
        for row in examples
    ]


def run(checkpoint, data, folder=None, tests=TESTS, **options):
    options = AuditOptions(**{**vars(OPTIONS), **options})
    return audit(checkpoint, data, tests, options=options, output_dir=folder, progress=False)


@pytest.fixture(scope="module")
def folder(checkpoint, copies, tmp_path_factory):
    """The folder of an audit of all copies; do not write into it."""
    folder = tmp_path_factory.mktemp("copies") / "audit"
    run(checkpoint, copies, folder)
    return folder


# --- identities -----------------------------------------------------------------------------------


def test_an_identity_depends_on_what_the_model_reads_and_on_nothing_else():
    text = {"input_ids": [2, 7, 8, 3], "attention_mask": [1] * 4, "word_ids": [-1, 0, 1, -1]}
    same = compute_identity(text)
    assert same == compute_identity({**text, "word_ids": [-1, 0, 0, -1]})
    assert same == compute_identity(dict(reversed(text.items())))
    others = [
        {**text, "input_ids": [2, 8, 7, 3]},
        {**text, "token_type_ids": [0, 0, 1, 1]},
        {**text, "segment_ids": [-1, 0, 1, -1]},
        {**text, "segment_ids": [-1, 0, 1, -1], "held": [0, 0, 1, 0]},
        {**text, "input_ids": [[2, 7], [8, 3]]},
    ]
    hashes = {same, *map(compute_identity, others)}
    assert len(hashes) == 6 and all(0 <= h < 2**52 and float(h) == h for h in hashes)
    image = torch.rand(3, 4, 4)
    first = compute_identity({"pixel_values": image})
    assert first == compute_identity({"pixel_values": image.clone()})
    assert first != compute_identity({"pixel_values": image.transpose(1, 2)})
    assert first != compute_identity({"pixel_values": image.reshape(3, 2, 8)})


def test_texts_with_other_labels_and_other_spaces_are_copies(make_model, tokenizer):
    model = wrap(make_model())
    rows = [
        {"text": "a good film", "label": 1},
        {"text": "a  good film", "label": 0},
        {"text": "a good film", "label": 1},
        {"text": "good a film", "label": 1},
    ]
    texts = encode_examples(tokenizer, load_examples(rows, "test"), model).texts
    first, spaced, again, other = [text.identity for text in texts]
    assert first == spaced == again != other
    assert count_distinct_texts(texts) == 2


def test_images_are_copies_if_all_pixels_are_equal():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "image_size": 8, "patch_size": 4}
    model = ViTForImageClassification(ViTConfig(**sizes, num_labels=2)).eval()
    pixels = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    data = {"pixel_values": pixels[[0, 1, 0, 0]].tolist()}
    report = audit(model, data, "uniform_attention", options=OPTIONS, progress=False)
    assert (report.n, report.n_distinct, len(report.distinct_rows)) == (4, 2, 2)


# --- an audit ---------------------------------------------------------------------------------------


def test_copies_give_the_results_of_the_different_texts(checkpoint, examples, folder):
    """Numbers without random draws are those of an audit of the twelve texts alone."""
    once, report = run(checkpoint, examples), read_audit(folder)
    assert (report.n, report.n_distinct, once.n_distinct) == (240, 12, 12)
    assert report.provenance["different_texts"] == 12
    assert "different_texts" not in once.provenance
    assert str(report.answer) == "cannot say" and report.score.n <= 12
    accuracy, expected = report.accuracy["accuracy"], once.accuracy["accuracy"]
    assert accuracy == pytest.approx(expected) and report.accuracy["n"] == 12
    ours, theirs = (r.summary_frame(["attention_leave_one_out_tau"]) for r in (report, once))
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-6)
    assert len({text.tokens for text in report.examples}) == 3
    assert "240 texts (12 different)" in str(report)


def test_rows_are_stored_for_all_copies(folder):
    rows = read_rows(folder / "rows")
    assert rows.example_id.nunique() == 240
    identity = rows[rows.statistic == "identity"]
    assert set(identity.test) == {"prediction"} and len(identity) == 240
    assert identity.value.groupby(identity.example_id % 100).nunique().eq(1).all()
    assert identity.value.nunique() == 12
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["provenance"]["different_texts"] == 12
    assert "identity" not in {s["statistic"] for s in summary["statistics"]}
    for name in ("report.md", "report.html"):
        assert "240 texts (12 different)" in (folder / name).read_text()


def test_an_audit_of_copies_is_resumed(checkpoint, copies, folder, copy_of):
    again = copy_of(folder)
    parts = sorted((again / "rows").iterdir())
    parts[0].unlink()
    report = run(checkpoint, copies, again)
    assert_same_rows(report.to_pandas(), read_audit(folder).to_pandas())
    assert report.n_distinct == 12


def test_rows_without_identities_are_resumed(checkpoint, examples, tmp_path, monkeypatch):
    """Rows of an earlier version have no identity; the texts in them count as different."""
    data = [*examples[:6], {**examples[0], "example_id": 50}]
    monkeypatch.setattr("hf_attnprobe.inference.encoding.compute_identity", lambda inputs: None)
    old = run(checkpoint, data, tmp_path, tests=["correlation"])
    assert "identity" not in set(old.to_pandas().statistic)
    monkeypatch.undo()
    report = run(checkpoint, data, tmp_path, tests=["correlation"])
    assert_same_rows(report.to_pandas(), old.to_pandas())
    assert report.n_distinct == len(report.distinct_rows) == 7


def test_copies_in_several_shares_count_once(checkpoint, copies, folder, tmp_path):
    for k in range(2):
        run(checkpoint, copies, tmp_path, share=f"{k}/2", shown_texts=0)
    joined, whole = join_shares(sorted(tmp_path.iterdir())), read_audit(folder)
    assert (joined.n, joined.n_distinct, len(joined.distinct_rows)) == (240, 12, 12)
    assert joined.accuracy["n"] == 12
    statistic = ["attention_leave_one_out_tau"]
    pd.testing.assert_frame_equal(
        joined.summary_frame(statistic), whole.summary_frame(statistic), rtol=1e-6
    )


def test_the_model_card_counts_different_texts(checkpoint, folder, copy_of):
    model = copy_of(checkpoint, "model")
    hf_attnprobe.write_card(model, [folder])
    card = " ".join((model / "README.md").read_text().split())
    assert "Audit of 240 texts (12 different) from" in card
    summary = summarize_audit(AuditFolder(folder, read_audit(folder)), "acme/model")
    assert (summary.n_texts, summary.n_distinct) == (240, 12)


def test_the_metric_counts_different_texts(checkpoint, examples):
    metric = evaluate.load(hf_attnprobe.get_metric_path())
    texts = [row["text"] for row in examples]
    given = {"references": [row["label"] for row in examples], "model_id": str(checkpoint)}
    once = metric.compute(predictions=texts, tests=TESTS, prune=False, **given)
    given["references"] = given["references"] * N_COPIES + [0] * 5
    found = metric.compute(
        predictions=texts * N_COPIES + texts[:1] * 5, tests=TESTS, prune=False, **given
    )
    assert (found["n_texts"], found["n_different_texts"]) == (245, 12)
    assert "n_texts" not in once and found["answer"] == "cannot say"
    assert {finding["n"] for finding in found["findings"]} <= {*range(13)}
    # The list contains all texts, and the mean counts the first text once and not 25 times.
    name = "correlation_attention_leave_one_out_tau"
    assert len(found[name]) == 245
    assert found[f"mean_{name}"] == pytest.approx(once[f"mean_{name}"], rel=1e-6)
    assert np.nanmean(found[name]) != pytest.approx(once[f"mean_{name}"], rel=1e-6)


def test_the_readme_of_published_rows_counts_different_texts(folder):
    report = read_audit(folder)
    facts = {"conclusion": "No.", "files": {"model": "model.parquet"}}
    data = DatasetReference.from_name("reviews")

    def render(n_distinct):
        rows = PublishedRows("all", data, "test", report.n, n_distinct, n_distinct, **facts)
        return render_rows_readme("acme/rows", "acme/model", [rows], None)

    assert "240 texts (12 different) from `reviews`" in render(12)
    assert "count as one text in these results." in render(12)
    assert "240 texts from `reviews`" in render(240) and "identity" not in render(240)


def test_tables_of_studies_count_different_texts(folder):
    plan = SimpleNamespace(jobs_by_step={})
    statistics = Results(plan, folder.parent).rows(folder.name)
    assert statistics.index.tolist() == [*range(12)]
    wide = read_audit(folder).wide_frame()
    rows = wide[["attention_leave_one_out_tau", "predicted_class", "label"]]
    tau = rows.attention_leave_one_out_tau
    expected = tau.groupby(tau.index % 100).mean()
    assert statistics.attention_leave_one_out_tau.tolist() == pytest.approx(
        expected.tolist(), nan_ok=True
    )
    right = (rows.predicted_class == rows.label).groupby(rows.index % 100).mean()
    assert statistics.accuracy.tolist() == right.tolist()
